/* What a relay decides, and when a peer behind one asks. */
#include "unit.h"

#include <stdio.h>

#include "failheap.h"
#include "proto/peer/relay.h"

#define WALL_S UINT64_C(1900000000)

static struct mu_relay_hop hop;
static struct mu_relay_hop_config terms;
static struct mu_now now;

static int set_up(void **unused)
{
    (void)unused;
    terms = mu_relay_hop_config_defaults();
    now = (struct mu_now){.mono = {MU_NS_PER_S}, .wall = {WALL_S * MU_NS_PER_S}};
    return 0;
}

static void pass_ms(uint64_t ms)
{
    now.mono.ns += ms * MU_NS_PER_MS;
    now.wall.ns += ms * MU_NS_PER_MS;
}

/* A peer of that number. */
static struct mu_peer_id peer(unsigned n)
{
    struct mu_peer_id id = {.len = 34, .bytes = {0x12, 0x20, (uint8_t)n, (uint8_t)(n >> 8)}};

    return id;
}

static enum mu_relay_status reserve(unsigned n, const char *ip)
{
    struct mu_peer_id id = peer(n);
    uint64_t expire_s;

    return mu_relay_hop_reserve(&hop, now, &id, mu_span_str(ip), false, &expire_s);
}

static enum mu_relay_status connect(unsigned from, unsigned to, struct mu_relay_circuit *c)
{
    struct mu_peer_id a = peer(from);
    struct mu_peer_id b = peer(to);

    return mu_relay_hop_connect(&hop, now.mono, &a, &b, false, c);
}

static bool is_reserved(unsigned n)
{
    struct mu_peer_id id = peer(n);

    return mu_relay_hop_reserved(&hop, now.mono, &id);
}

static void test_relay_reservation_lasts_as_long_as_is_said(void **unused)
{
    struct mu_peer_id id = peer(1);
    uint64_t expire_s = 0;

    (void)unused;
    mu_relay_hop_init(&hop, &terms);
    assert_int_equal(mu_relay_hop_deadline(&hop).ns, MU_MONO_NEVER.ns);
    assert_int_equal(mu_relay_hop_reserve(&hop, now, &id, MU_SPAN_LIT("1.2.3.4"), false, &expire_s),
                     MU_RELAY_OK);
    assert_int_equal(expire_s, WALL_S + 3600);
    assert_int_equal(mu_mono_until_ms(mu_relay_hop_deadline(&hop), now.mono), 3600 * 1000);
    pass_ms(3600 * 1000 - 1);
    assert_true(is_reserved(1));
    assert_false(mu_relay_hop_expire(&hop, now.mono, &id));
    pass_ms(1);
    assert_false(is_reserved(1));
    id = peer(2);
    assert_true(mu_relay_hop_expire(&hop, now.mono, &id));
    assert_int_equal(id.bytes[2], 1);
    assert_false(mu_relay_hop_expire(&hop, now.mono, &id));
    assert_int_equal(mu_relay_hop_count(&hop), 0);
    mu_relay_hop_fini(&hop);
}

static void test_relay_reservation_that_is_renewed_lasts_longer(void **unused)
{
    struct mu_peer_id id;

    (void)unused;
    mu_relay_hop_init(&hop, &terms);
    assert_int_equal(reserve(1, ""), MU_RELAY_OK);
    pass_ms(1000);
    assert_int_equal(reserve(2, ""), MU_RELAY_OK);
    pass_ms(3000 * 1000);
    assert_int_equal(reserve(1, ""), MU_RELAY_OK);
    assert_int_equal(mu_relay_hop_count(&hop), 2);
    pass_ms(600 * 1000);
    /* The other one ends first now. */
    assert_true(mu_relay_hop_expire(&hop, now.mono, &id));
    assert_int_equal(id.bytes[2], 2);
    assert_false(mu_relay_hop_expire(&hop, now.mono, &id));
    assert_true(is_reserved(1));
    mu_relay_hop_fini(&hop);
}

static void test_relay_reservations_have_limits(void **unused)
{
    (void)unused;
    terms.reservations_max = 5;
    terms.reservations_ip_max = 3;
    mu_relay_hop_init(&hop, &terms);
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(reserve(i, "1.2.3.4"), MU_RELAY_OK);
    }
    assert_int_equal(reserve(3, "1.2.3.4"), MU_RELAY_RESERVATION_REFUSED);
    assert_int_equal(reserve(3, "1.2.3.5"), MU_RELAY_OK);
    assert_int_equal(reserve(4, ""), MU_RELAY_OK);
    assert_int_equal(reserve(5, "1.2.3.6"), MU_RELAY_RESERVATION_REFUSED);
    assert_false(is_reserved(5));
    /* Who has one is not hindered by that. */
    assert_int_equal(reserve(0, "1.2.3.4"), MU_RELAY_OK);
    /* And a place that is free can be taken. */
    mu_relay_hop_forget(&hop, &(struct mu_peer_id){.len = 34, .bytes = {0x12, 0x20, 1}});
    assert_false(is_reserved(1));
    assert_int_equal(reserve(5, "1.2.3.4"), MU_RELAY_OK);
    mu_relay_hop_fini(&hop);
}

static void test_relay_reserves_for_one_peer_only_so_often(void **unused)
{
    struct mu_peer_id id = peer(1);
    uint64_t expire_s = 0;

    (void)unused;
    mu_relay_hop_init(&hop, &terms);
    for (unsigned i = 0; i < terms.renewals_max; i++) {
        assert_int_equal(reserve(1, ""), MU_RELAY_OK);
    }
    pass_ms(30000);
    assert_int_equal(mu_relay_hop_reserve(&hop, now, &id, (struct mu_span){0}, false, &expire_s),
                     MU_RELAY_RESERVATION_REFUSED);
    assert_int_equal(expire_s, 0);
    assert_true(is_reserved(1));
    assert_int_equal(reserve(2, ""), MU_RELAY_OK);
    pass_ms(30000);
    assert_int_equal(reserve(1, ""), MU_RELAY_OK);
    mu_relay_hop_fini(&hop);
}

static void test_relay_takes_nobody_who_is_relayed(void **unused)
{
    struct mu_relay_circuit c;
    struct mu_peer_id a = peer(1);
    struct mu_peer_id b = peer(2);
    uint64_t expire_s;

    (void)unused;
    mu_relay_hop_init(&hop, &terms);
    assert_int_equal(mu_relay_hop_reserve(&hop, now, &a, MU_SPAN_LIT("x"), true, &expire_s),
                     MU_RELAY_PERMISSION_DENIED);
    assert_int_equal(reserve(2, ""), MU_RELAY_OK);
    assert_int_equal(mu_relay_hop_connect(&hop, now.mono, &a, &b, true, &c),
                     MU_RELAY_PERMISSION_DENIED);
    assert_int_equal(mu_relay_hop_connect(&hop, now.mono, &b, &b, false, &c),
                     MU_RELAY_PERMISSION_DENIED);
    assert_int_equal(hop.circuit_count, 0);
    mu_relay_hop_fini(&hop);
}

static void test_relay_leads_only_to_who_has_a_reservation(void **unused)
{
    struct mu_relay_circuit c;

    (void)unused;
    mu_relay_hop_init(&hop, &terms);
    assert_int_equal(connect(1, 2, &c), MU_RELAY_NO_RESERVATION);
    assert_int_equal(reserve(1, ""), MU_RELAY_OK);
    assert_int_equal(connect(1, 2, &c), MU_RELAY_NO_RESERVATION);
    assert_int_equal(connect(2, 1, &c), MU_RELAY_OK);
    mu_relay_circuit_end(&c);
    /* One whose time is up counts no more, whether that was noticed or not. */
    pass_ms(3600 * 1000);
    assert_int_equal(connect(2, 1, &c), MU_RELAY_NO_RESERVATION);
    mu_relay_hop_fini(&hop);
}

static void test_relay_circuits_have_limits(void **unused)
{
    struct mu_relay_circuit c[8];
    struct mu_relay_circuit more;

    (void)unused;
    terms.circuits_max = 6;
    terms.circuits_peer_max = 3;
    mu_relay_hop_init(&hop, &terms);
    for (unsigned i = 0; i < 4; i++) {
        assert_int_equal(reserve(i, ""), MU_RELAY_OK);
    }
    assert_int_equal(connect(10, 0, &c[0]), MU_RELAY_OK);
    assert_int_equal(connect(10, 1, &c[1]), MU_RELAY_OK);
    assert_int_equal(connect(10, 0, &c[2]), MU_RELAY_OK);
    assert_int_equal(connect(10, 2, &more), MU_RELAY_RESOURCE_LIMIT_EXCEEDED);
    assert_int_equal(connect(11, 0, &c[3]), MU_RELAY_OK);
    assert_int_equal(connect(12, 0, &more), MU_RELAY_RESOURCE_LIMIT_EXCEEDED);
    assert_int_equal(connect(12, 1, &c[4]), MU_RELAY_OK);
    assert_int_equal(connect(12, 2, &c[5]), MU_RELAY_OK);
    assert_int_equal(connect(13, 3, &more), MU_RELAY_RESOURCE_LIMIT_EXCEEDED);
    mu_relay_circuit_end(&c[5]);
    mu_relay_circuit_end(&c[5]);
    assert_int_equal(connect(13, 3, &c[5]), MU_RELAY_OK);
    for (unsigned i = 0; i < 6; i++) {
        mu_relay_circuit_end(&c[i]);
    }
    assert_int_equal(hop.circuit_count, 0);
    mu_relay_hop_fini(&hop);
}

static void test_relay_circuit_has_a_time(void **unused)
{
    struct mu_relay_circuit c;

    (void)unused;
    mu_relay_hop_init(&hop, &terms);
    assert_int_equal(reserve(1, ""), MU_RELAY_OK);
    assert_int_equal(connect(2, 1, &c), MU_RELAY_OK);
    assert_int_equal(mu_mono_until_ms(c.ends_at, now.mono), terms.open_ms);
    pass_ms(1000);
    mu_relay_circuit_open(&c, now.mono);
    assert_int_equal(mu_mono_until_ms(c.ends_at, now.mono), 1800 * 1000);
    mu_relay_circuit_end(&c);
    hop.config.limit.duration_s = 0;
    assert_int_equal(connect(2, 1, &c), MU_RELAY_OK);
    mu_relay_circuit_open(&c, now.mono);
    assert_int_equal(c.ends_at.ns, MU_MONO_NEVER.ns);
    mu_relay_circuit_end(&c);
    mu_relay_hop_fini(&hop);
}

static void test_relay_circuit_passes_so_much_each_way(void **unused)
{
    struct mu_relay_circuit c;

    (void)unused;
    terms.limit.data_bytes = 1000;
    mu_relay_hop_init(&hop, &terms);
    assert_int_equal(reserve(1, ""), MU_RELAY_OK);
    assert_int_equal(connect(2, 1, &c), MU_RELAY_OK);
    assert_int_equal(mu_relay_circuit_pass(&c, 0, 600), 600);
    assert_int_equal(mu_relay_circuit_pass(&c, 1, 1000), 1000);
    assert_int_equal(mu_relay_circuit_pass(&c, 0, 600), 400);
    assert_int_equal(mu_relay_circuit_pass(&c, 0, 1), 0);
    assert_int_equal(mu_relay_circuit_pass(&c, 1, 1), 0);
    assert_int_equal(c.passed[0], 1000);
    mu_relay_circuit_end(&c);
    hop.config.limit.data_bytes = 0;
    assert_int_equal(connect(2, 1, &c), MU_RELAY_OK);
    assert_int_equal(mu_relay_circuit_pass(&c, 0, SIZE_MAX / 2), SIZE_MAX / 2);
    assert_int_equal(mu_relay_circuit_pass(&c, 0, SIZE_MAX / 2), SIZE_MAX / 2);
    mu_relay_circuit_end(&c);
    mu_relay_hop_fini(&hop);
}

static void test_relay_refuses_without_memory_and_keeps_what_it_has(void **unused)
{
    (void)unused;
    for (long nth = 0;; nth++) {
        bool fired;
        enum mu_relay_status status;

        mu_relay_hop_init(&hop, &terms);
        failheap_arm(nth);
        status = reserve(1, "1.2.3.4");
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(status, fired ? MU_RELAY_RESERVATION_REFUSED : MU_RELAY_OK);
        assert_int_equal(mu_relay_hop_count(&hop), fired ? 0 : 1);
        assert_int_equal(reserve(1, "1.2.3.4"), MU_RELAY_OK);
        mu_relay_hop_fini(&hop);
        if (!fired) {
            break;
        }
    }
}

/* --- behind a relay --------------------------------------------------------------------------- */

static struct mu_relay_reservation k;

static void begin(void)
{
    struct mu_relay_reservation_config config = mu_relay_reservation_config_defaults();

    config.seed = 3;
    mu_relay_reservation_init(&k, &config, now.mono);
}

static uint64_t until_ms(void)
{
    return mu_mono_until_ms(mu_relay_reservation_deadline(&k), now.mono);
}

static void test_relay_keeper_asks_at_once_and_again_before_the_end(void **unused)
{
    (void)unused;
    begin();
    assert_int_equal(until_ms(), 0);
    assert_true(mu_relay_reservation_ask(&k, now.mono));
    assert_false(mu_relay_reservation_ask(&k, now.mono));
    pass_ms(100);
    mu_relay_reservation_granted(&k, now, WALL_S + 3600);
    assert_true(k.held);
    assert_false(mu_relay_reservation_ask(&k, now.mono));
    assert_in_range(until_ms(), 3470 * 1000, 3480 * 1000);
    pass_ms(until_ms());
    assert_true(mu_relay_reservation_ask(&k, now.mono));
    assert_true(k.held);
    mu_relay_reservation_granted(&k, now, WALL_S + 7200);
    assert_true(k.held);
    assert_in_range(until_ms(), 3600 * 1000 - 121000, 3600 * 1000);
}

static void test_relay_keeper_holds_on_while_it_asks_again_in_vain(void **unused)
{
    unsigned asked = 0;
    uint64_t since = now.mono.ns;

    (void)unused;
    begin();
    assert_true(mu_relay_reservation_ask(&k, now.mono));
    mu_relay_reservation_granted(&k, now, now.wall.ns / MU_NS_PER_S + 3600);
    while (k.held) {
        pass_ms(until_ms());
        mu_relay_reservation_tick(&k, now.mono);
        if (mu_relay_reservation_ask(&k, now.mono)) {
            asked++;
            mu_relay_reservation_failed(&k, now.mono);
        }
    }
    assert_in_range(asked, 4, 12);
    assert_int_equal((now.mono.ns - since) / MU_NS_PER_S, 3600);
    assert_true(until_ms() > 0);
}

static void test_relay_keeper_asks_later_each_time(void **unused)
{
    uint64_t last = 0;

    (void)unused;
    begin();
    for (int i = 0; i < 40; i++) {
        uint64_t ms;

        assert_true(mu_relay_reservation_ask(&k, now.mono));
        mu_relay_reservation_failed(&k, now.mono);
        ms = until_ms();
        assert_in_range(ms, 1000, 300000);
        assert_true(ms >= last / 2);
        last = ms;
        pass_ms(ms);
        mu_relay_reservation_tick(&k, now.mono);
    }
    assert_in_range(last, 150000, 300000);
    /* What is granted is a new beginning. */
    assert_true(mu_relay_reservation_ask(&k, now.mono));
    mu_relay_reservation_granted(&k, now, now.wall.ns / MU_NS_PER_S + 3600);
    mu_relay_reservation_lost(&k, now.mono);
    assert_in_range(until_ms(), 1000, 2000);
}

static void test_relay_keeper_waits_only_so_long_for_an_answer(void **unused)
{
    (void)unused;
    begin();
    assert_true(mu_relay_reservation_ask(&k, now.mono));
    assert_int_equal(until_ms(), 30000);
    pass_ms(30000);
    mu_relay_reservation_tick(&k, now.mono);
    assert_false(k.asking);
    assert_in_range(until_ms(), 1000, 2000);
    mu_relay_reservation_failed(&k, now.mono); /* It comes too late to count again. */
    assert_in_range(until_ms(), 1000, 2000);
}

static void test_relay_keeper_loses_its_place_with_the_connection(void **unused)
{
    (void)unused;
    begin();
    mu_relay_reservation_lost(&k, now.mono); /* There was none. */
    assert_true(mu_relay_reservation_ask(&k, now.mono));
    mu_relay_reservation_granted(&k, now, WALL_S + 3600);
    mu_relay_reservation_lost(&k, now.mono);
    assert_false(k.held);
    assert_in_range(until_ms(), 1000, 2000);
}

static void test_relay_keeper_bears_clocks_that_are_off(void **unused)
{
    (void)unused;
    begin();
    assert_true(mu_relay_reservation_ask(&k, now.mono));
    mu_relay_reservation_granted(&k, now, WALL_S - 500000);
    assert_true(k.held);
    assert_int_equal(until_ms(), 45000);
    begin();
    assert_true(mu_relay_reservation_ask(&k, now.mono));
    mu_relay_reservation_granted(&k, now, UINT64_MAX);
    assert_int_equal(until_ms(), (86400 - 120) * 1000);
}

#define T(name) cmocka_unit_test_setup(name, set_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_relay_reservation_lasts_as_long_as_is_said),
        T(test_relay_reservation_that_is_renewed_lasts_longer),
        T(test_relay_reservations_have_limits),
        T(test_relay_reserves_for_one_peer_only_so_often),
        T(test_relay_takes_nobody_who_is_relayed),
        T(test_relay_leads_only_to_who_has_a_reservation),
        T(test_relay_circuits_have_limits),
        T(test_relay_circuit_has_a_time),
        T(test_relay_circuit_passes_so_much_each_way),
        T(test_relay_refuses_without_memory_and_keeps_what_it_has),
        T(test_relay_keeper_asks_at_once_and_again_before_the_end),
        T(test_relay_keeper_holds_on_while_it_asks_again_in_vain),
        T(test_relay_keeper_asks_later_each_time),
        T(test_relay_keeper_waits_only_so_long_for_an_answer),
        T(test_relay_keeper_loses_its_place_with_the_connection),
        T(test_relay_keeper_bears_clocks_that_are_off),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

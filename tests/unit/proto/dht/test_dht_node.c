/* Nodes of the DHT, several in memory: what is stored is found, who comes gets his part.
 * test_dht_node_hostile.c has those who lie. */
#include "unit.h"

#include "dht_swarm.h"
#include "failheap.h"

static void assert_found(size_t n, const char *key, bool latest, const char *value)
{
    struct mu_dht_id id = swarm_key(key);
    struct mu_dht_op *op = swarm_get(n, &id, latest);

    assert_int_equal(op->status, 0);
    if (value == NULL) {
        assert_int_equal(op->results[0].type, MU_DHT_NOT_FOUND);
    } else {
        assert_int_equal(op->results[0].type, MU_DHT_FOUND_REGULAR);
        assert_span_text(mu_buf_span(&op->results[0].value), value);
    }
    mu_dht_op_free(op);
}

static size_t count_keepers(const char *key)
{
    struct mu_dht_id id = swarm_key(key);
    size_t count = 0;

    for (size_t i = 0; i < swarm_count; i++) {
        count += mu_dht_storage_get(mu_dht_main_storage(swarm[i].dht), swarm_time(), &id) != NULL;
    }
    return count;
}

/* --- storing and finding ---------------------------------------------------------------------- */

static void test_dht_node_what_one_stores_all_find(void **unused)
{
    (void)unused;
    swarm_start(40);
    assert_int_equal(swarm_store_text(3, "key", "\x2a", 60), 5);
    assert_int_equal(count_keepers("key"), 5);
    for (size_t i = 0; i < 40; i++) {
        assert_found(i, "key", i % 2 == 0, "\x2a");
    }
    assert_found(7, "another", true, NULL);
}

static void test_dht_node_finds_nothing_that_has_expired(void **unused)
{
    (void)unused;
    swarm_start(10);
    assert_int_equal(swarm_store_text(0, "key", "\x2a", 10), 5);
    assert_found(5, "key", false, "\x2a"); /* and has it in its cache now */
    swarm_ns += 9999 * MU_NS_PER_MS;
    assert_found(5, "key", false, "\x2a");
    swarm_ns += MU_NS_PER_MS;
    for (size_t i = 0; i < 10; i++) {
        assert_found(i, "key", false, NULL);
    }
}

static void test_dht_node_of_two_values_the_later_expiration_wins(void **unused)
{
    (void)unused;
    swarm_start(12);
    assert_int_equal(swarm_store_text(0, "key", "\x01", 100), 5);
    assert_int_equal(swarm_store_text(1, "key", "\x02", 50), 0);
    assert_found(2, "key", true, "\x01");
    assert_int_equal(swarm_store_text(3, "key", "\x03", 200), 5);
    for (size_t i = 0; i < 12; i++) {
        assert_found(i, "key", true, "\x03");
    }
}

static void test_dht_node_subkeys_of_several_writers_are_one_dictionary(void **unused)
{
    struct mu_dht_id id = swarm_key("dict");
    struct mu_dht_dict dict;
    struct mu_dht_entry e;
    struct mu_dht_op *op;
    unsigned seen = 0;

    (void)unused;
    swarm_start(12);
    for (uint8_t i = 0; i < 6; i++) {
        struct mu_dht_put put = {id, mu_span(&i, 1), mu_span(&i, 1), swarm_time() + 10 + i};

        op = swarm_store(i, &put, 1);
        assert_int_equal(op->results[0].stored, 5);
        mu_dht_op_free(op);
    }
    swarm_ns += 11500 * MU_NS_PER_MS; /* the first two are over */
    op = swarm_get(9, &id, true);
    assert_int_equal(op->results[0].type, MU_DHT_FOUND_DICTIONARY);
    assert_int_equal(mu_dht_dict_decode(mu_buf_span(&op->results[0].value), &dict), 0);
    while (mu_dht_dict_next(&dict, &e)) {
        assert_true(mu_span_eq(e.subkey, e.value) && e.expiration > swarm_time());
        seen |= 1u << e.subkey.data[0];
    }
    assert_int_equal(seen, 0x3c);
    mu_dht_op_free(op);
}

static void test_dht_node_most_may_die_and_it_is_still_found(void **unused)
{
    (void)unused;
    swarm_start(20);
    assert_int_equal(swarm_store_text(0, "key", "\x2a", 600), 5);
    for (size_t i = 1, killed = 0; i < 20 && killed < 4; i++) {
        struct mu_dht_id id = swarm_key("key");

        if (mu_dht_storage_get(mu_dht_main_storage(swarm[i].dht), swarm_time(), &id) != NULL) {
            swarm[i].dead = true;
            killed++;
        }
    }
    for (size_t i = 0; i < 20; i++) {
        if (!swarm[i].dead) {
            assert_found(i, "key", true, "\x2a");
        }
    }
}

static void test_dht_node_a_newcomer_gets_what_it_should_keep(void **unused)
{
    struct mu_dht_config config;
    struct mu_dht_id id = swarm_key("key");

    (void)unused;
    swarm_start(12);
    assert_int_equal(swarm_store_text(0, "key", "\x2a", 600), 5);
    config = swarm_config(12);
    config.self.node = id; /* as near as can be */
    swarm_add(&config);
    assert_non_null(mu_dht_storage_get(mu_dht_main_storage(swarm[12].dht), swarm_time(), &id));
}

static void test_dht_node_a_client_asks_and_is_not_known(void **unused)
{
    struct mu_dht_config config;
    struct mu_peer_id from = swarm_peer(1);
    struct swarm_reply reply;

    (void)unused;
    swarm_start(8);
    config = swarm_config(8);
    config.client = true;
    swarm_add(&config);
    assert_int_equal(swarm_store_text(8, "key", "\x2a", 60), 5);
    assert_found(8, "key", true, "\x2a");
    for (size_t i = 0; i < 8; i++) {
        assert_false(mu_dht_table_knows(mu_dht_routing(swarm[i].dht), &config.self.node));
    }
    reply = swarm_ask(8, &from, MU_DHT_FIND, (struct mu_span){0});
    assert_int_equal(reply.status, MUSTER_ENOMETHOD);
    mu_buf_fini(&reply.message);
}

static void test_dht_node_that_has_lost_everybody_comes_back_with_its_records(void **unused)
{
    struct mu_dht_stats stats;

    (void)unused;
    swarm_start(8);
    for (size_t i = 0; i < 7; i++) {
        swarm[i].dead = true;
    }
    assert_int_equal(swarm_store_text(7, "key", "\x2a", 6000), 1); /* itself */
    for (int i = 0; i < 200 && mu_dht_routing(swarm[7].dht)->count > 0; i++) {
        assert_found(7, "nothing", true, NULL);
        swarm_tick(1000);
    }
    assert_int_equal(mu_dht_routing(swarm[7].dht)->count, 0);
    for (size_t i = 0; i < 7; i++) {
        swarm[i].dead = false;
    }
    for (int i = 0; i < 20; i++) {
        swarm_tick(1000);
    }
    mu_dht_stats(swarm[7].dht, &stats);
    assert_int_equal(stats.rejoins, 1);
    assert_true(count_keepers("key") >= 5);
    assert_found(2, "key", true, "\x2a");
}

/* Who failed is left alone for a while, but not longer than until it has answered something. */
static void test_dht_node_asks_again_who_has_answered_a_ping_since_it_failed(void **unused)
{
    struct mu_peer_id other = swarm_peer(1);
    struct mu_dht_op *op;

    (void)unused;
    swarm_start(2);
    swarm[1].dead = true;
    assert_int_equal(swarm_store_text(0, "key", "\x2a", 6000), 1); /* itself */
    swarm[1].dead = false;
    assert_int_equal(mu_dht_bootstrap(swarm[0].dht, swarm_now(), &other, 1, &op), 0);
    mu_dht_op_free(swarm_finish(op));
    assert_int_equal(swarm_store_text(0, "key", "\x2b", 6001), 2);
}

static unsigned first_difference(const struct mu_dht_id *a, const struct mu_dht_id *b)
{
    unsigned bit = 0;

    while (((a->bytes[bit / 8] ^ b->bytes[bit / 8]) >> (7 - bit % 8) & 1) == 0) {
        bit++;
    }
    return bit;
}

/* Of the other half, and of the other quarter of its own half, each node knows somebody. */
static void test_dht_node_knows_some_in_every_part_of_the_space(void **unused)
{
    (void)unused;
    swarm_start(SWARM_MAX);
    for (size_t i = 0; i < SWARM_MAX; i++) {
        struct mu_dht_id self = swarm_config(i).self.node;
        size_t known[8 * MU_DHT_ID_LEN] = {0};

        for (size_t j = 0; j < SWARM_MAX; j++) {
            struct mu_dht_id other = swarm_config(j).self.node;

            if (i != j && mu_dht_table_knows(mu_dht_routing(swarm[i].dht), &other)) {
                known[first_difference(&self, &other)]++;
            }
        }
        assert_true(known[0] >= 3 && known[1] >= 3);
    }
}

static void test_dht_node_sees_by_itself_who_is_gone(void **unused)
{
    struct mu_dht_config gone = swarm_config(3);

    (void)unused;
    swarm_start(8);
    swarm[3].dead = true;
    for (int i = 0; i < 200; i++) {
        swarm_tick(1000);
    }
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(mu_dht_table_knows(mu_dht_routing(swarm[i].dht), &gone.self.node), false);
        assert_int_equal(mu_dht_routing(swarm[i].dht)->count, i == 3 ? 7 : 6);
    }
}

/* Nodes that do not answer are found out by asking. */
static void forget_the_dead(size_t first, size_t count, size_t left)
{
    for (int i = 0; i < 200; i++) {
        size_t known = 0;

        for (size_t n = first; n < first + count; n++) {
            assert_found(n, "nothing", true, NULL);
            known += mu_dht_routing(swarm[n].dht)->count;
        }
        if (known == count * left) {
            return;
        }
        swarm_tick(1000);
    }
    fail_msg("the dead are still known");
}

static void set_dead(size_t first, size_t count, bool dead)
{
    for (size_t i = first; i < first + count; i++) {
        swarm[i].dead = dead;
    }
}

/* Two who have lost the others and not each other: neither is alone, and both are away. */
static void test_dht_node_two_that_were_cut_off_together_come_back(void **unused)
{
    struct mu_dht_stats stats;

    (void)unused;
    swarm_start(8);
    set_dead(6, 2, true);
    forget_the_dead(0, 6, 5);
    set_dead(6, 2, false);
    set_dead(0, 6, true);
    forget_the_dead(6, 2, 1);
    assert_int_equal(swarm_store_text(7, "key", "\x2a", 6000), 2);
    set_dead(0, 6, false);
    for (int i = 0; i < 100; i++) {
        swarm_tick(1000);
    }
    mu_dht_stats(swarm[7].dht, &stats);
    assert_int_equal(stats.rejoins, 1);
    assert_int_equal(mu_dht_routing(swarm[7].dht)->count, 7);
    assert_true(count_keepers("key") >= 5);
    assert_found(2, "key", true, "\x2a");
}

static void test_dht_node_asks_again_before_what_it_has_read_expires(void **unused)
{
    struct mu_dht_id id = swarm_key("key");
    size_t reader = 2;

    (void)unused;
    swarm_start(12);
    assert_int_equal(swarm_store_text(0, "key", "\x01", 20), 5);
    /* Somebody who is not one of those that keep it anyway. */
    while (mu_dht_storage_get(mu_dht_main_storage(swarm[reader].dht), swarm_time(), &id) != NULL) {
        reader++;
    }
    assert_found(reader, "key", false, "\x01");
    assert_found(reader, "key", false, "\x01");
    assert_int_equal(swarm_store_text(1, "key", "\x02", 600), 5);
    assert_null(mu_dht_storage_get(mu_dht_main_storage(swarm[reader].dht), swarm_time(), &id));
    for (int i = 0; i < 19; i++) {
        swarm_tick(1000);
    }
    for (size_t i = 0; i < 12; i++) {
        swarm[i].dead = i != reader; /* what it has now it has asked for by itself */
    }
    swarm_ns += 5 * MU_NS_PER_S;
    assert_found(reader, "key", false, "\x02");
}

/* Found far from where it belongs: it is cached where others look first, and they find it there. */
static void test_dht_node_what_is_found_is_cached_at_the_nearest(void **unused)
{
    struct mu_dht_id id = swarm_key("key");
    struct mu_dht_neighbour near[12];
    size_t far;
    size_t count;

    (void)unused;
    swarm_start(12);
    count = mu_dht_table_nearest(mu_dht_routing(swarm[0].dht), &id, 12, NULL, near);
    assert_int_equal(count, 11);
    far = near[count - 1].peer.bytes[2];
    assert_int_equal(mu_dht_storage_put(mu_dht_main_storage(swarm[far].dht), swarm_time(), NULL,
                                        &id, MU_SPAN_LIT("\x2a"), swarm_time() + 60),
                     0);
    assert_found(0, "key", true, "\x2a");
    assert_int_equal(count_keepers("key"), 1); /* a cache is not a place to keep it */
    swarm[far].dead = swarm[0].dead = true;
    assert_found(near[1].peer.bytes[2], "key", true, "\x2a");
    swarm_ns += 60 * MU_NS_PER_S;
    assert_found(near[1].peer.bytes[2], "key", true, NULL);
}

/* --- joining ---------------------------------------------------------------------------------- */

static void test_dht_node_whose_clock_is_wrong_is_told(void **unused)
{
    struct mu_dht_config config;
    struct mu_peer_id peer = swarm_peer(0);
    struct mu_now wrong;
    struct mu_dht_event e;
    struct mu_dht_op *op;
    struct mu_dht *d;
    struct swarm_reply reply;

    (void)unused;
    swarm_start(1);
    config = swarm_config(5);
    assert_int_equal(mu_dht_new(&config, &d), 0);
    wrong = swarm_now();
    wrong.wall.ns += 10 * MU_NS_PER_S;
    assert_int_equal(mu_dht_bootstrap(d, wrong, &peer, 1, &op), 0);
    assert_true(mu_dht_next_event(d, &e));
    reply = swarm_ask(0, &config.self.peer, MU_DHT_PING, MU_SPAN_LIT(""));
    mu_dht_answer(d, wrong, e.number, reply.status, mu_buf_span(&reply.message));
    mu_buf_fini(&reply.message);
    assert_true(mu_dht_next_event(d, &e));
    assert_ptr_equal(e.op, op);
    assert_int_equal(op->status, MUSTER_EDHT_CLOCK);
    mu_dht_op_free(op);
    mu_dht_free(d);
}

static void test_dht_node_finds_nobody_and_says_so(void **unused)
{
    struct mu_dht_config config = swarm_config(1);
    struct mu_peer_id peer = swarm_peer(40);
    struct mu_dht_op *op;

    (void)unused;
    swarm_start(0);
    assert_int_equal(mu_dht_new(&config, &swarm[0].dht), 0);
    swarm_count = 1;
    assert_int_equal(mu_dht_bootstrap(swarm[0].dht, swarm_now(), &peer, 1, &op), 0);
    swarm_finish(op);
    assert_int_equal(op->status, MUSTER_EDHT_NOBODY);
    mu_dht_op_free(op);
    assert_true(mu_dht_deadline(swarm[0].dht).ns != UINT64_MAX); /* it will try again */
}

/* --- ends ------------------------------------------------------------------------------------- */

static void test_dht_node_refuses_to_store_what_is_no_record(void **unused)
{
    struct mu_dht_put put = {
        .key = swarm_key("k"), .value = MU_SPAN_LIT("\x01"), .expiration = SWARM_WALL + 1};
    struct mu_dht_op *op;

    (void)unused;
    swarm_start(1);
    put.expiration = SWARM_WALL - 1;
    assert_int_equal(mu_dht_store(swarm[0].dht, swarm_now(), &put, 1, &op), MUSTER_EDHT_EXPIRED);
    put.expiration = SWARM_WALL + 1;
    put.value = MU_SPAN_LIT("\xa9x");
    assert_int_equal(mu_dht_store(swarm[0].dht, swarm_now(), &put, 1, &op), MUSTER_EDHT_VALUE);
    put.value = MU_SPAN_LIT("\x01");
    put.subkey = MU_SPAN_LIT("\xc0");
    assert_int_equal(mu_dht_store(swarm[0].dht, swarm_now(), &put, 1, &op), MUSTER_EDHT_VALUE);
    assert_int_equal(mu_dht_store(swarm[0].dht, swarm_now(), &put, 0, &op), MUSTER_EINVAL);
}

static void test_dht_node_operations_end_in_time_whoever_is_silent(void **unused)
{
    struct mu_dht_id id = swarm_key("k");
    struct mu_dht_op *op;
    struct mu_dht_event e;
    bool ended = false;

    (void)unused;
    swarm_start(4);
    assert_int_equal(mu_dht_get(swarm[3].dht, swarm_now(), &id, 1, true, &op), 0);
    while (mu_dht_next_event(swarm[3].dht, &e)) {
        assert_int_equal(e.type, MU_DHT_EVENT_CALL); /* which nobody answers */
    }
    swarm_ns += 60 * MU_NS_PER_S;
    mu_dht_tick(swarm[3].dht, swarm_now());
    while (mu_dht_next_event(swarm[3].dht, &e)) {
        if (e.type == MU_DHT_EVENT_ENDED && e.op == op) {
            ended = true;
        }
    }
    assert_true(ended);
    assert_int_equal(op->status, MUSTER_ETIMEDOUT);
    mu_dht_op_free(op);
}

static void test_dht_node_without_memory_every_operation_ends(void **unused)
{
    (void)unused;
    for (long nth = 0; nth < 400; nth += 7) {
        struct mu_dht_id id = swarm_key("key");
        struct mu_dht_put put = {
            .key = id, .value = MU_SPAN_LIT("\x2a"), .expiration = SWARM_WALL + 600};
        struct mu_dht_event e;
        struct mu_dht_op *ops[2] = {NULL, NULL};
        size_t begun = 0;
        size_t ended = 0;

        swarm_start(3);
        failheap_arm(nth);
        begun += mu_dht_store(swarm[2].dht, swarm_now(), &put, 1, &ops[0]) == 0;
        begun += mu_dht_get(swarm[2].dht, swarm_now(), &id, 1, true, &ops[1]) == 0;
        while (mu_dht_next_event(swarm[2].dht, &e)) {
            if (e.type == MU_DHT_EVENT_CALL) {
                mu_dht_answer(swarm[2].dht, swarm_now(), e.number, MUSTER_ECONN,
                              (struct mu_span){0});
            } else if (e.type == MU_DHT_EVENT_ENDED) {
                mu_dht_op_free(e.op);
                ended++;
            }
        }
        failheap_disarm();
        assert_int_equal(begun, ended);
        swarm_stop();
    }
}
#define T(name) cmocka_unit_test_teardown(name, swarm_tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_dht_node_what_one_stores_all_find),
        T(test_dht_node_finds_nothing_that_has_expired),
        T(test_dht_node_of_two_values_the_later_expiration_wins),
        T(test_dht_node_subkeys_of_several_writers_are_one_dictionary),
        T(test_dht_node_most_may_die_and_it_is_still_found),
        T(test_dht_node_a_newcomer_gets_what_it_should_keep),
        T(test_dht_node_a_client_asks_and_is_not_known),
        T(test_dht_node_that_has_lost_everybody_comes_back_with_its_records),
        T(test_dht_node_asks_again_who_has_answered_a_ping_since_it_failed),
        T(test_dht_node_knows_some_in_every_part_of_the_space),
        T(test_dht_node_sees_by_itself_who_is_gone),
        T(test_dht_node_two_that_were_cut_off_together_come_back),
        T(test_dht_node_asks_again_before_what_it_has_read_expires),
        T(test_dht_node_what_is_found_is_cached_at_the_nearest),
        T(test_dht_node_whose_clock_is_wrong_is_told),
        T(test_dht_node_finds_nobody_and_says_so),
        T(test_dht_node_refuses_to_store_what_is_no_record),
        T(test_dht_node_operations_end_in_time_whoever_is_silent),
        T(test_dht_node_without_memory_every_operation_ends),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

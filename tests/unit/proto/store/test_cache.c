/* Held keys at a gateway: what may be answered from memory, and which calls are shared. */
#include "unit.h"

#include <stdio.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "proto/store/adds.h"
#include "proto/store/cache.h"

static struct mu_cache cache;
static mu_mono_t now;
static struct mu_buf brought;

static int setup(void **state)
{
    struct mu_cache_config config = mu_cache_config_defaults();

    (void)state;
    now = (mu_mono_t){MU_NS_PER_S};
    mu_cache_init(&cache, &config);
    mu_buf_init(&brought, 1 << 20);
    cache.on = true;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mu_cache_fini(&cache);
    mu_buf_fini(&brought);
    return 0;
}

struct get {
    struct mu_span key;
    struct mu_store_request request;
    struct mu_cache_ask ask;
};

static void join(struct get *g, enum mu_store_verb verb, const char *key)
{
    *g = (struct get){.key = mu_span_str(key)};
    g->request = (struct mu_store_request){.verb = verb,
                                           .flags = verb == MU_STORE_GET ? MU_STORE_NOWAIT : 0,
                                           .keys = &g->key,
                                           .key_count = 1};
    g->ask.request = &g->request;
    assert_int_equal(mu_cache_join(&cache, &g->ask), 0);
}

static struct mu_cache_flight *take_off(void)
{
    struct mu_cache_flight *f = mu_cache_next_flight(&cache, now);

    assert_non_null(f);
    return f;
}

static void land(struct mu_cache_flight *f, uint32_t state, const char *value, uint32_t lease_ms)
{
    struct mu_found found = {state, mu_span_str(value)};

    mu_buf_reset(&brought);
    assert_int_equal(mu_found_encode(&brought, lease_ms, &found, 1), 0);
    mu_cache_land(&cache, now, f, 0, mu_buf_span(&brought));
}

/* What a GET is told: its value, "-" for none, "?" for no answer. */
static const char *told(const struct get *g)
{
    static char text[64];
    struct mu_cache_outcome out;

    if (!mu_cache_next(&cache, now, &out)) {
        return "?";
    }
    assert_ptr_equal(out.ask, &g->ask);
    assert_false(out.failed);
    if (out.pass) {
        return "pass";
    }
    if (out.status == MUSTER_ENOENT) {
        return "-";
    }
    (void)snprintf(text, sizeof(text), "%.*s",
                   out.reply.value_count == 0 ? 4 : (int)out.reply.values[0].len,
                   out.reply.value_count == 0 ? "done" : (const char *)out.reply.values[0].data);
    return text;
}

static const char *get(const char *key)
{
    static char text[64];
    struct mu_span one = mu_span_str(key);
    struct mu_store_request q = {
        .verb = MU_STORE_GET, .flags = MU_STORE_NOWAIT, .keys = &one, .key_count = 1};
    struct mu_store_reply reply;
    int err = mu_cache_answer(&cache, now, &q, &reply);

    if (err != 0) {
        return err == MUSTER_ENOENT ? "-" : "?";
    }
    (void)snprintf(text, sizeof(text), "%.*s", (int)reply.values[0].len,
                   (const char *)reply.values[0].data);
    return text;
}

/* Brings a key into memory. */
static void fill(const char *key, uint32_t state, const char *value)
{
    struct get g;

    join(&g, MU_STORE_GET, key);
    land(take_off(), state | MU_FOUND_HELD, value, 5000);
    (void)told(&g);
    assert_string_equal(told(&g), "?");
}

static void test_cache_answers_for_what_it_holds(void **state)
{
    (void)state;
    assert_string_equal(get("k"), "?");
    fill("k", MU_FOUND_VALUE, "v");
    fill("none", 0, "");
    assert_string_equal(get("k"), "v");
    assert_string_equal(get("none"), "-");
    assert_string_equal(get("other"), "?");
    mu_cache_recall(&cache, mu_span_str("k"));
    assert_string_equal(get("k"), "?");
    mu_cache_change(&cache, mu_span_str("none"));
    assert_string_equal(get("none"), "?");
    assert_int_equal(cache.hits, 2);
}

static void test_cache_forgets_everything_with_its_lease(void **state)
{
    (void)state;
    fill("k", MU_FOUND_VALUE, "v");
    now = mu_mono_add_ms(now, 4999);
    assert_string_equal(get("k"), "v");
    now = mu_mono_add_ms(now, 1);
    assert_string_equal(get("k"), "?");
    /* A renewal that comes too late does not bring it back. */
    mu_cache_renewed(&cache, now, now, 5000);
    assert_string_equal(get("k"), "?");
}

static void test_cache_counts_a_lease_from_when_it_was_asked_for(void **state)
{
    struct mu_cache_flight *f;
    struct get g;

    (void)state;
    join(&g, MU_STORE_GET, "k");
    f = take_off();
    now = mu_mono_add_ms(now, 3000);
    land(f, MU_FOUND_VALUE | MU_FOUND_HELD, "v", 5000);
    assert_string_equal(told(&g), "v");
    assert_string_equal(told(&g), "?");
    now = mu_mono_add_ms(now, 1999);
    assert_string_equal(get("k"), "v");
    now = mu_mono_add_ms(now, 1);
    assert_string_equal(get("k"), "?");
}

static void test_cache_does_not_keep_what_was_asked_back_on_its_way(void **state)
{
    struct mu_cache_flight *f;
    struct get g;

    (void)state;
    join(&g, MU_STORE_GET, "k");
    f = take_off();
    mu_cache_recall(&cache, mu_span_str("k"));
    land(f, MU_FOUND_VALUE | MU_FOUND_HELD, "old", 5000);
    assert_string_equal(told(&g), "old"); /* it was so after the question */
    assert_string_equal(told(&g), "?");
    assert_string_equal(get("k"), "?");
    /* Meets spoils_max: with too many to remember, all count. */
    cache.config.spoils_max = 1;
    join(&g, MU_STORE_GET, "k");
    f = take_off();
    mu_cache_change(&cache, mu_span_str("x"));
    mu_cache_change(&cache, mu_span_str("y"));
    land(f, MU_FOUND_VALUE | MU_FOUND_HELD, "v", 5000);
    assert_string_equal(told(&g), "v");
    assert_string_equal(told(&g), "?");
    assert_string_equal(get("k"), "?");
}

static void test_cache_sends_those_who_come_late_on_the_next_flight(void **state)
{
    struct mu_cache_flight *f;
    struct get first;
    struct get late;

    (void)state;
    join(&first, MU_STORE_GET, "k");
    f = take_off();
    join(&late, MU_STORE_GET, "k");
    assert_null(mu_cache_next_flight(&cache, now));
    land(f, MU_FOUND_VALUE, "old", 5000); /* not held: it may be old by now */
    assert_string_equal(told(&first), "old");
    assert_string_equal(told(&late), "?");
    f = take_off();
    join(&first, MU_STORE_GET, "k");
    land(f, MU_FOUND_VALUE | MU_FOUND_HELD, "new", 5000);
    assert_string_equal(told(&late), "new");
    assert_string_equal(told(&first), "new"); /* from memory */
    assert_string_equal(told(&first), "?");
    assert_int_equal(cache.joined, 2);
}

static void test_cache_wait_is_never_over_because_a_key_is_not_there(void **state)
{
    struct get waits[2];
    struct mu_cache_flight *f;

    (void)state;
    fill("k", 0, "");
    for (size_t i = 0; i < 2; i++) {
        struct mu_store_reply reply;

        join(&waits[i], MU_STORE_WAIT, "k");
        assert_int_equal(mu_cache_answer(&cache, now, &waits[i].request, &reply), MUSTER_EAGAIN);
    }
    f = take_off();
    assert_true(f->waits);
    /* A queue's element is for one of them. */
    land(f, MU_FOUND_QUEUE, "", 0);
    assert_string_equal(told(&waits[0]), "done");
    assert_string_equal(told(&waits[1]), "?");
    f = take_off();
    assert_ptr_equal(mu_cache_leave(&cache, &waits[1].ask), f);
    mu_cache_land(&cache, now, f, MUSTER_ECANCELED, (struct mu_span){0});
    assert_string_equal(told(&waits[1]), "?");
}

/* Joins as PyTorch's WAIT does. */
static void join_line(struct get *g, const char *key)
{
    join(g, MU_STORE_WAIT, key);
    (void)mu_cache_leave(&cache, &g->ask);
    g->request.flags = MU_STORE_IN_TURN;
    assert_int_equal(mu_cache_join(&cache, &g->ask), 0);
}

/* Who comes later must not find the element before that one has popped it. */
static void test_cache_says_who_took_an_element_and_who_was_late(void **state)
{
    struct mu_cache_outcome out;
    struct get waits[3];
    struct mu_cache_flight *f;

    (void)state;
    join_line(&waits[0], "q");
    join_line(&waits[1], "q");
    f = take_off();
    join_line(&waits[2], "q");
    assert_null(mu_cache_next_flight(&cache, now));
    land(f, MU_FOUND_QUEUE, "", 0);
    for (size_t i = 0; i < 3; i++) {
        assert_true(mu_cache_next(&cache, now, &out));
        assert_ptr_equal(out.ask, &waits[i].ask);
        assert_true(out.took == (i == 0) && out.late == (i != 0) && !out.pass && !out.failed);
        assert_null(out.ask->flight);
    }
    assert_false(mu_cache_next(&cache, now, &out));
    assert_null(mu_cache_next_flight(&cache, now));
}

static void test_cache_passes_on_what_is_too_large(void **state)
{
    struct mu_cache_outcome out;
    struct get g;

    (void)state;
    join(&g, MU_STORE_GET, "k");
    land(take_off(), MU_FOUND_LARGE, "", 5000);
    assert_string_equal(told(&g), "pass");
    assert_string_equal(told(&g), "?");
    join(&g, MU_STORE_GET, "k");
    mu_cache_land(&cache, now, take_off(), 0, MU_SPAN_LIT("nonsense"));
    assert_true(mu_cache_next(&cache, now, &out));
    assert_true(out.failed && out.status == MUSTER_EPROTO);
    assert_false(mu_cache_next(&cache, now, &out));
}

/* Meets keys_max and bytes_max of proto/store/cache.h. */
static void test_cache_keeps_its_bounds(void **state)
{
    (void)state;
    cache.config.keys_max = 2;
    fill("a", MU_FOUND_VALUE, "1");
    fill("b", MU_FOUND_VALUE, "2");
    assert_string_equal(get("a"), "1"); /* so b was not used for longest */
    fill("c", MU_FOUND_VALUE, "3");
    assert_string_equal(get("b"), "?");
    assert_string_equal(get("a"), "1");
    cache.config.bytes_max = cache.bytes;
    fill("d", MU_FOUND_VALUE, "a longer one");
    assert_true(cache.bytes <= cache.config.bytes_max);
    mu_cache_clear(&cache);
    assert_int_equal(cache.count, 0);
    assert_int_equal(cache.bytes, 0);
}

static void test_cache_renews_only_for_something(void **state)
{
    (void)state;
    assert_true(mu_cache_renew_at(&cache).ns == MU_MONO_NEVER.ns);
    fill("k", MU_FOUND_VALUE, "v");
    assert_true(mu_cache_renew_at(&cache).ns == MU_MONO_NEVER.ns);
    assert_string_equal(get("k"), "v");
    assert_true(mu_cache_renew_at(&cache).ns == mu_mono_add_ms(now, 2500).ns);
    mu_cache_renewed(&cache, now, mu_mono_add_ms(now, 1), 5000);
    assert_true(mu_cache_renew_at(&cache).ns == MU_MONO_NEVER.ns);
    assert_string_equal(get("k"), "v");
    mu_cache_recall(&cache, mu_span_str("k"));
    assert_true(mu_cache_renew_at(&cache).ns == MU_MONO_NEVER.ns);
}

static void test_cache_shows_what_may_be_lent(void **state)
{
    struct mu_found found;

    (void)state;
    assert_int_equal(mu_cache_until(&cache, now).ns, 0);
    fill("k", MU_FOUND_VALUE, "v");
    assert_true(mu_cache_peek(&cache, now, mu_span_str("k"), &found));
    assert_true(mu_span_eq(found.value, mu_span_str("v")));
    assert_false(mu_cache_peek(&cache, now, mu_span_str("other"), &found));
    assert_true(mu_cache_until(&cache, now).ns == mu_mono_add_ms(now, 5000).ns);
    /* Who has lent something renews for it. */
    assert_true(mu_cache_renew_at(&cache).ns == mu_mono_add_ms(now, 2500).ns);
    now = mu_mono_add_ms(now, 5000);
    assert_false(mu_cache_peek(&cache, now, mu_span_str("k"), &found));
    assert_int_equal(mu_cache_until(&cache, now).ns, 0);
}

/* --- ADDs that share a call ------------------------------------------------------------------- */

static void assert_sum(struct mu_adds *a, struct mu_add *add, int64_t sum)
{
    struct mu_add *got;
    int64_t number;
    int status;

    assert_true(mu_adds_next(a, &got, &status, &number));
    assert_ptr_equal(got, add);
    assert_int_equal(status, 0);
    assert_int_equal(number, sum);
}

static void test_adds_give_everybody_its_own_number(void **state)
{
    struct mu_span key = MU_SPAN_LIT("n");
    struct mu_adds_call *call;
    struct mu_add adds[4];
    struct mu_adds a;
    struct mu_add *none;
    int64_t number;
    int status;

    (void)state;
    mu_adds_init(&a, 0);
    assert_false(mu_adds_has(&a, key));
    assert_int_equal(mu_adds_submit(&a, &adds[0], key, 1), 0);
    assert_true(mu_adds_has(&a, key));
    call = mu_adds_next_call(&a);
    assert_int_equal(call->delta, 1);
    for (int i = 1; i < 4; i++) {
        assert_int_equal(mu_adds_submit(&a, &adds[i], key, 10 * i), 0);
    }
    assert_null(mu_adds_next_call(&a));
    assert_false(mu_adds_leave(&a, &adds[0]));
    assert_true(mu_adds_leave(&a, &adds[2]));
    mu_adds_land(&a, call, 0, 101);
    assert_sum(&a, &adds[0], 101);
    assert_false(mu_adds_next(&a, &none, &status, &number));
    call = mu_adds_next_call(&a);
    assert_int_equal(call->delta, 40);
    mu_adds_land(&a, call, 0, 150); /* somebody else has added 9 */
    assert_sum(&a, &adds[1], 120);
    assert_sum(&a, &adds[3], 150);
    assert_false(mu_adds_next(&a, &none, &status, &number));
    assert_int_equal(a.combined, 1);
    mu_adds_fini(&a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_cache_answers_for_what_it_holds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cache_forgets_everything_with_its_lease, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_cache_counts_a_lease_from_when_it_was_asked_for, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_cache_does_not_keep_what_was_asked_back_on_its_way,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_cache_sends_those_who_come_late_on_the_next_flight,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_cache_wait_is_never_over_because_a_key_is_not_there,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(test_cache_says_who_took_an_element_and_who_was_late, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_cache_passes_on_what_is_too_large, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cache_keeps_its_bounds, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cache_renews_only_for_something, setup, teardown),
        cmocka_unit_test_setup_teardown(test_cache_shows_what_may_be_lent, setup, teardown),
        cmocka_unit_test(test_adds_give_everybody_its_own_number),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

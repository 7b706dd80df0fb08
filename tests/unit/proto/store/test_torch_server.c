/* What each request does, what is refused, and why. */
#include <stddef.h>
#include <stdint.h>

#include "torch_requests.h"

/* --- what PyTorch's servers answer to, question by question -------------------------------- */

static void test_torch_server_answers_a_missing_key_empty_in_generation_2(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);
    rig_ask(&r, 0, GET("/no"), I64(0));
    rig_say(&r, 0, SET("/b", "2"));
    rig_ask(&r, 0, rig_bytes("bnsss", MU_TORCH_MULTI_GET, N(3), "/a", "/b", "/c"),
            rig_bytes("nsn", N(0), "2", N(0)));
    rig_say(&r, 0, PUSH("/q", "e"));
    rig_ask(&r, 0, GET("/q"), I64(0));
    rig_fini(&r);
}

static void test_torch_server_closes_on_a_missing_key_in_generation_1(void **state)
{
    struct rig r;

    (void)state;
    rig_init(&r, RIG_WHOLE, 0);
    rig_ask(&r, 0, SET_1("/b", "2"), RIG_NOTHING);
    rig_ask(&r, 0, GET_1("/b"), rig_bytes("s", "2"));
    rig_refuse(&r, 0, GET_1("/no"), MUSTER_ENOENT);
    assert_string_equal(mu_torch_server_errmsg(&r.conns[0].t), "GET of \"/no\": no such key");
    rig_refuse(&r, 1, rig_bytes("bnss", 10, N(2), "/b", "/no"), MUSTER_ENOENT);
    rig_expect(&r, 1, RIG_NOTHING);
    rig_fini(&r);
}

static void test_torch_server_wakes_waiters_when_a_key_is_created(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);

    rig_ask(&r, 1, WAIT1("/k"), RIG_NOTHING);
    rig_ask(&r, 0, CAS("/k", "", "v"), rig_bytes("s", "v"));
    rig_expect(&r, 1, BYTE(0));

    rig_ask(&r, 1, WAIT1("/add"), RIG_NOTHING);
    rig_ask(&r, 0, rig_bytes("bsn", MU_TORCH_ADD, "/add", N(5)), I64(5));
    rig_expect(&r, 1, BYTE(0));

    rig_ask(&r, 1, WAIT1("/app"), RIG_NOTHING);
    rig_ask(&r, 0, rig_bytes("bss", MU_TORCH_APPEND, "/app", "x"), RIG_NOTHING);
    rig_expect(&r, 1, BYTE(0));

    rig_ask(&r, 1, rig_bytes("bnss", MU_TORCH_WAIT, N(2), "/m1", "/m2"), RIG_NOTHING);
    rig_ask(&r, 0, rig_bytes("bnssss", MU_TORCH_MULTI_SET, N(2), "/m1", "1", "/m2", "22"),
            RIG_NOTHING);
    rig_expect(&r, 1, BYTE(0));

    rig_ask(&r, 1, rig_bytes("bn", MU_TORCH_WAIT, N(0)), BYTE(0));
    rig_fini(&r);
}

static void test_torch_server_does_not_wake_on_a_compare_set_that_fails(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);
    rig_ask(&r, 1, WAIT1("/k"), RIG_NOTHING);
    rig_ask(&r, 0, CAS("/k", "x", "v"), rig_bytes("s", "x"));
    rig_expect(&r, 1, RIG_NOTHING);
    rig_say(&r, 0, SET("/k", "v"));
    rig_expect(&r, 1, BYTE(0));
    rig_fini(&r);
}

static void test_torch_server_wakes_one_waiter_for_each_push(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);
    rig_ask(&r, 1, WAIT1("/q"), RIG_NOTHING);
    rig_ask(&r, 2, WAIT1("/q"), RIG_NOTHING);
    rig_say(&r, 0, PUSH("/q", "e1"));
    rig_expect(&r, 1, BYTE(0));
    rig_expect(&r, 2, RIG_NOTHING);
    rig_say(&r, 0, PUSH("/q", "e2"));
    rig_expect(&r, 2, BYTE(0));
    rig_ask(&r, 2, rig_bytes("bs", MU_TORCH_QUEUE_POP, "/q"), rig_bytes("ns", N(2), "e1"));
    rig_ask(&r, 1, rig_bytes("bs", MU_TORCH_QUEUE_POP, "/q"), rig_bytes("ns", N(1), "e2"));
    rig_ask(&r, 1, rig_bytes("bs", MU_TORCH_QUEUE_POP, "/q"), I64(0));
    rig_fini(&r);
}

static void test_torch_server_keeps_queues_apart_from_values(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);
    rig_say(&r, 0, SET("/k", "v"));
    rig_say(&r, 0, PUSH("/q", "e"));
    rig_ask(&r, 0, BYTE(MU_TORCH_LIST_KEYS), rig_bytes("ns", N(1), "/k"));
    rig_ask(&r, 0, BYTE(MU_TORCH_GETNUMKEYS), I64(1));
    rig_ask(&r, 0, rig_bytes("bs", MU_TORCH_DELETE_KEY, "/q"), I64(0));
    rig_ask(&r, 0, rig_bytes("bs", MU_TORCH_QUEUE_LEN, "/q"), I64(1));
    rig_ask(&r, 0, CHECK1("/q"), BYTE(0));
    rig_ask(&r, 0, rig_bytes("bs", MU_TORCH_QUEUE_POP, "/k"), I64(0));
    rig_ask(&r, 0, CHECK1("/none"), BYTE(1));
    rig_ask(&r, 0, rig_bytes("bn", MU_TORCH_CHECK, N(0)), BYTE(0));
    rig_fini(&r);
}

static void test_torch_server_always_answers_cancel_wait(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);
    rig_ask(&r, 0, BYTE(MU_TORCH_CANCEL_WAIT), BYTE(1));
    rig_ask(&r, 0, WAIT1("/k"), RIG_NOTHING);
    rig_ask(&r, 0, BYTE(MU_TORCH_CANCEL_WAIT), BYTE(1));
    rig_ask(&r, 1, SET("/k", "v"), RIG_NOTHING);
    rig_expect(&r, 0, RIG_NOTHING);
    /* Generation 1 has it as well, since 2.0. */
    rig_close(&r, 2);
    rig_open(&r, 2);
    rig_ask(&r, 2, BYTE(12), BYTE(1));
    rig_fini(&r);
}

static void test_torch_server_refuses_what_is_no_request(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);
    rig_refuse(&r, 0, BYTE(19), MUSTER_EPROTO);
    assert_string_equal(mu_torch_server_errmsg(&r.conns[0].t), "unknown opcode 19");
    rig_refuse(&r, 1, rig_bytes("bw", 0, MU_TORCH_MAGIC), MUSTER_EPROTO);
    assert_string_equal(mu_torch_server_errmsg(&r.conns[1].t), "VALIDATE a second time");
    for (size_t i = 2; i < 5; i++) {
        rig_close(&r, i);
        rig_open(&r, i);
    }
    /* PING before VALIDATE, then a wrong magic: neither is met with silence. */
    rig_refuse(&r, 2, rig_bytes("bw", MU_TORCH_PING, 1u), MUSTER_EPROTO);
    rig_refuse(&r, 3, rig_bytes("bwbw", 0, MU_TORCH_MAGIC + 1, MU_TORCH_PING, 1u), MUSTER_ELIMIT);
    rig_refuse(&r, 4, BYTE(255), MUSTER_EPROTO);
    rig_fini(&r);
}

static void test_torch_server_refuses_lengths_before_their_bytes(void **state)
{
    static const size_t first = 1 + 8;
    struct rig r;

    (void)state;
    open_2(&r);
    rig_refuse(&r, 0, rig_bytes("bn", MU_TORCH_GET, N(MU_TORCH_KEY_BYTES_MAX + 1)), MUSTER_ELIMIT);
    assert_string_equal(mu_torch_server_errmsg(&r.conns[0].t),
                        "key of 8193 bytes is over the limit of 8192");
    rig_refuse(&r, 1, rig_bytes("bsn", MU_TORCH_SET, "/k", N(MU_TORCH_VALUE_BYTES_MAX + 1)),
               MUSTER_ELIMIT);
    assert_string_equal(mu_torch_server_errmsg(&r.conns[1].t),
                        "value of 8388609 bytes is over the limit of 8388608");
    rig_refuse(&r, 2, rig_bytes("bn", MU_TORCH_WAIT, N(MU_TORCH_KEYS_MAX + 1)), MUSTER_ELIMIT);
    assert_string_equal(mu_torch_server_errmsg(&r.conns[2].t),
                        "WAIT of 131073 keys is over the limit of 131072");
    rig_refuse(&r, 3, rig_bytes("bn", MU_TORCH_GET, UINT64_MAX), MUSTER_ELIMIT);
    rig_refuse(&r, 4, rig_bytes("bnsn", MU_TORCH_WAIT, N(5), "/k", N(1) << 62), MUSTER_ELIMIT);
    /* A length at its limit is waited for. */
    rig_say(&r, 5, rig_bytes("bn", MU_TORCH_GET, N(MU_TORCH_KEY_BYTES_MAX)));
    assert_int_equal(r.conns[5].t.in.len, first);
    rig_fini(&r);
}

static void test_torch_server_bounds_a_request_in_all(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);
    r.limits.request_bytes_max = 1000;
    rig_refuse(&r, 0, rig_bytes("bn", MU_TORCH_WAIT, N(126)), MUSTER_ELIMIT);
    rig_refuse(&r, 1, rig_bytes("bsn", MU_TORCH_SET, "/k", N(990)), MUSTER_ELIMIT);
    assert_string_equal(mu_torch_server_errmsg(&r.conns[1].t),
                        "SET is over the limit of 1000 bytes");
    rig_refuse(&r, 2, rig_bytes("bnn", MU_TORCH_WAIT, N(100), N(200)), MUSTER_ELIMIT);
    rig_refuse(&r, 3, rig_bytes("bn", MU_TORCH_MULTI_SET, N(63)), MUSTER_ELIMIT);
    rig_fini(&r);
}

static void test_torch_server_takes_what_is_at_the_limit(void **state)
{
    static uint8_t big[64 + 8192 + (8 << 20)];
    struct rig r;
    size_t n = 0;

    (void)state;
    open_2(&r);
    r.split = RIG_RANDOM;
    big[n++] = MU_TORCH_SET;
    mu_put_u64(big + n, 8192);
    memset(big + n + 8, 'k', 8192);
    n += 8 + 8192;
    mu_put_u64(big + n, 8 << 20);
    memset(big + n + 8, 'v', 8 << 20);
    rig_say(&r, 0, mu_span(big, 100000));
    r.split = RIG_WHOLE;
    rig_say(&r, 0, mu_span(big + 100000, n + 8 + (8 << 20) - 100000));
    assert_int_equal(r.ks.key_count, 1);
    big[0] = MU_TORCH_GET;
    rig_say(&r, 0, mu_span(big, n));
    assert_int_equal(r.conns[0].got.len, 8 + (8 << 20));
    assert_int_equal(mu_torch_server_memory(&r.conns[0].t), 0);
    rig_fini(&r);
}

static void test_torch_server_adds_as_strtoll_reads(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);
    rig_say(&r, 0, SET("/n", " 7"));
    rig_ask(&r, 0, rig_bytes("bsn", MU_TORCH_ADD, "/n", N(1)), I64(8));
    rig_say(&r, 0, SET("/n", "9223372036854775807"));
    rig_ask(&r, 0, rig_bytes("bsn", MU_TORCH_ADD, "/n", N(1)), I64(INT64_MIN));
    rig_say(&r, 0, SET("/n", "abc"));
    rig_refuse(&r, 0, rig_bytes("bsn", MU_TORCH_ADD, "/n", N(1)), MUSTER_ENOTNUM);
    rig_fini(&r);
}

static void test_torch_server_serves_others_while_one_request_is_half_sent(void **state)
{
    struct rig r;
    struct mu_span set;

    (void)state;
    open_2(&r);
    set = SET("/k", "half");
    rig_say(&r, 0, mu_span(set.data, set.len - 1));
    rig_ask(&r, 1, CHECK1("/k"), BYTE(1));
    rig_say(&r, 0, mu_span_skip(set, set.len - 1));
    rig_ask(&r, 1, CHECK1("/k"), BYTE(0));
    rig_fini(&r);
}

static void test_torch_server_answers_ahead_of_a_pending_wait(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);
    rig_ask(&r, 0, WAIT1("/k"), RIG_NOTHING);
    rig_ask(&r, 0, BYTE(MU_TORCH_GETNUMKEYS), I64(0));
    rig_say(&r, 1, SET("/k", "v"));
    rig_expect(&r, 0, BYTE(0));
    rig_fini(&r);
}

static void test_torch_server_places_the_end_of_a_wait_where_it_happened(void **state)
{
    static const enum rig_split ways[] = {RIG_WHOLE, RIG_BYTES, RIG_RANDOM};

    (void)state;
    /* One connection waits for what it sets itself, all in one segment or byte by byte. */
    for (size_t i = 0; i < 3; i++) {
        struct mu_buf all;
        struct rig r;

        rig_init(&r, ways[i], i);
        rig_greet(&r, 0);
        mu_buf_init(&all, 4096);
        assert_int_equal(mu_buf_append(&all, WAIT1("/k")), 0);
        assert_int_equal(mu_buf_append(&all, SET("/k", "v")), 0);
        assert_int_equal(mu_buf_append(&all, GET("/k")), 0);
        rig_ask(&r, 0, mu_buf_span(&all), rig_bytes("bs", 0, "v"));
        mu_buf_fini(&all);
        rig_fini(&r);
    }
}

static void test_torch_server_never_sends_a_stray_byte_to_generation_1(void **state)
{
    struct rig r;

    (void)state;
    rig_init(&r, RIG_WHOLE, 0);
    /* A client of 1.13 whose wait timed out says nothing about it and goes on. */
    rig_say(&r, 0, SET_1("/k", "v"));
    rig_ask(&r, 0, WAIT_1("/nope"), RIG_NOTHING);
    rig_ask(&r, 0, WAIT_1("/k"), BYTE(0));
    rig_ask(&r, 0, GET_1("/k"), rig_bytes("s", "v"));
    rig_say(&r, 1, SET_1("/nope", "late"));
    rig_expect(&r, 0, RIG_NOTHING);
    /* The same if the first thing it does is to create the key itself. */
    rig_ask(&r, 0, WAIT_1("/mine"), RIG_NOTHING);
    rig_ask(&r, 0, SET_1("/mine", "v"), RIG_NOTHING);
    rig_ask(&r, 0, GET_1("/mine"), rig_bytes("s", "v"));
    rig_fini(&r);
}

static void test_torch_server_replaces_a_pending_wait_by_a_second_one(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);
    rig_ask(&r, 0, WAIT1("/a"), RIG_NOTHING);
    rig_ask(&r, 0, WAIT1("/b"), RIG_NOTHING);
    rig_say(&r, 1, SET("/a", ""));
    rig_expect(&r, 0, RIG_NOTHING);
    rig_say(&r, 1, SET("/b", ""));
    rig_expect(&r, 0, BYTE(0));
    assert_int_equal(r.ks.wait_count, 0);
    rig_fini(&r);
}

static void test_torch_server_counts_a_key_that_came_and_went(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);
    rig_ask(&r, 0, rig_bytes("bnsss", MU_TORCH_WAIT, N(3), "/a", "/b", "/a"), RIG_NOTHING);
    rig_say(&r, 1, SET("/a", "1"));
    rig_ask(&r, 1, rig_bytes("bs", MU_TORCH_DELETE_KEY, "/a"), I64(1));
    rig_expect(&r, 0, RIG_NOTHING);
    rig_say(&r, 1, SET("/b", "1"));
    rig_expect(&r, 0, BYTE(0));
    rig_fini(&r);
}

static void test_torch_server_compares_as_pytorch_does(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);
    rig_ask(&r, 0, CAS("/c", "x", "y"), rig_bytes("s", "x"));
    rig_ask(&r, 0, CAS("/c", "", "a"), rig_bytes("s", "a"));
    rig_ask(&r, 0, CAS("/c", "a", ""), rig_bytes("s", ""));
    rig_ask(&r, 0, CAS("/c", "", "longer than what was there"),
            rig_bytes("s", "longer than what was there"));
    rig_ask(&r, 0, CAS("/c", "no", "z"), rig_bytes("s", "longer than what was there"));
    rig_fini(&r);
}

/* --- barrier ------------------------------------------------------------------------------- */

static void test_torch_server_opens_a_barrier_when_all_have_come(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);
    for (int round = 0; round < 2; round++) {
        rig_ask(&r, 0, BARRIER("/b", 3), RIG_NOTHING);
        rig_ask(&r, 1, BARRIER("/b", 3), RIG_NOTHING);
        rig_ask(&r, 2, BARRIER("/b", 3), BYTE(0));
        rig_expect(&r, 0, BYTE(0));
        rig_expect(&r, 1, BYTE(0));
        rig_ask(&r, 3, BARRIER("/b", 3), BYTE(0));
        rig_ask(&r, 0, GET("/b"), rig_bytes("s", "4"));
        rig_ask(&r, 0, BYTE(MU_TORCH_LIST_KEYS), rig_bytes("ns", N(1), "/b"));
        rig_ask(&r, 0, rig_bytes("bs", MU_TORCH_DELETE_KEY, "/b"), I64(1));
    }
    rig_fini(&r);
}

static void test_torch_server_cancels_a_barrier(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);
    rig_ask(&r, 0, BARRIER("/b", 2), RIG_NOTHING);
    rig_ask(&r, 0, BYTE(MU_TORCH_CANCEL_WAIT), BYTE(1));
    rig_ask(&r, 1, BARRIER("/b", 2), BYTE(0));
    rig_expect(&r, 0, RIG_NOTHING);
    assert_int_equal(r.ks.wait_count, 0);
    rig_say(&r, 0, SET("/b", "text"));
    rig_refuse(&r, 0, BARRIER("/b", 2), MUSTER_ENOTNUM);
    assert_int_equal(r.ks.wait_count, 0);
    rig_fini(&r);
}

/* --- watching, generation 1 ---------------------------------------------------------------- */

static void test_torch_server_tells_watchers_what_pytorch_tells(void **state)
{
    struct rig r;

    (void)state;
    rig_init(&r, RIG_WHOLE, 0);
    rig_greet(&r, 2);
    rig_ask(&r, 1, WATCH_1("/w"), BYTE(3));
    rig_say(&r, 0, SET_1("/w", "v1"));
    rig_expect(&r, 1, rig_bytes("bsss", 1, "/w", "", "v1"));
    rig_say(&r, 0, SET_1("/w", "v2"));
    rig_expect(&r, 1, rig_bytes("bsss", 0, "/w", "v1", "v2"));
    rig_say(&r, 2, CAS("/w", "v2", "3"));
    rig_expect(&r, 1, rig_bytes("bsss", 0, "/w", "v2", "3"));
    rig_say(&r, 2, CAS("/w", "no", "4"));
    rig_expect(&r, 1, RIG_NOTHING);
    rig_say(&r, 2, rig_bytes("bsn", MU_TORCH_ADD, "/w", N(1)));
    rig_expect(&r, 1, rig_bytes("bsss", 0, "/w", "3", "4"));
    rig_say(&r, 2, rig_bytes("bss", MU_TORCH_APPEND, "/w", "xy"));
    rig_expect(&r, 1, rig_bytes("bsss", 4, "/w", "", "xy"));
    rig_say(&r, 2, rig_bytes("bs", MU_TORCH_DELETE_KEY, "/w"));
    rig_expect(&r, 1, rig_bytes("bsss", 2, "/w", "4xy", ""));
    rig_say(&r, 2, rig_bytes("bs", MU_TORCH_DELETE_KEY, "/w"));
    rig_expect(&r, 1, RIG_NOTHING);
    rig_say(&r, 2, rig_bytes("bss", MU_TORCH_APPEND, "/w", "z"));
    rig_expect(&r, 1, rig_bytes("bsss", 1, "/w", "", "z"));
    rig_fini(&r);
}

static void test_torch_server_survives_a_dead_watcher(void **state)
{
    struct rig r;

    (void)state;
    rig_init(&r, RIG_WHOLE, 0);
    rig_ask(&r, 1, WATCH_1("/w"), BYTE(3));
    rig_ask(&r, 2, WATCH_1("/w"), BYTE(3));
    rig_close(&r, 1);
    rig_open(&r, 1);
    rig_refuse(&r, 2, BYTE(200), MUSTER_EPROTO);
    assert_int_equal(r.ks.watch_count, 0);
    rig_ask(&r, 0, SET_1("/w", "v"), RIG_NOTHING);
    rig_expect(&r, 2, RIG_NOTHING);
    rig_fini(&r);
}

static void test_torch_server_drops_a_watcher_that_does_not_read(void **state)
{
    struct rig r;

    (void)state;
    rig_init(&r, RIG_WHOLE, 0);
    r.limits.output_bytes_max = 400;
    rig_ask(&r, 1, WATCH_1("/w"), BYTE(3));
    r.conns[1].deaf = true;
    for (int i = 0; i < 100; i++) {
        rig_say(&r, 0, SET_1("/w", "a value"));
    }
    assert_int_equal(r.conns[1].err, MUSTER_EOVERFLOW);
    assert_true(r.conns[1].t.out.len <= 400);
    assert_non_null(strstr(mu_torch_server_errmsg(&r.conns[1].t), "too slowly"));
    rig_fini(&r);
}

static void test_torch_server_limits_watches(void **state)
{
    struct rig r;

    (void)state;
    rig_init(&r, RIG_WHOLE, 0);
    r.limits.watches_max = 2;
    rig_ask(&r, 0, WATCH_1("/a"), BYTE(3));
    rig_ask(&r, 0, WATCH_1("/b"), BYTE(3));
    rig_refuse(&r, 0, WATCH_1("/c"), MUSTER_ELIMIT);
    rig_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torch_server_answers_a_missing_key_empty_in_generation_2),
        cmocka_unit_test(test_torch_server_closes_on_a_missing_key_in_generation_1),
        cmocka_unit_test(test_torch_server_wakes_waiters_when_a_key_is_created),
        cmocka_unit_test(test_torch_server_does_not_wake_on_a_compare_set_that_fails),
        cmocka_unit_test(test_torch_server_wakes_one_waiter_for_each_push),
        cmocka_unit_test(test_torch_server_keeps_queues_apart_from_values),
        cmocka_unit_test(test_torch_server_always_answers_cancel_wait),
        cmocka_unit_test(test_torch_server_refuses_what_is_no_request),
        cmocka_unit_test(test_torch_server_refuses_lengths_before_their_bytes),
        cmocka_unit_test(test_torch_server_bounds_a_request_in_all),
        cmocka_unit_test(test_torch_server_takes_what_is_at_the_limit),
        cmocka_unit_test(test_torch_server_adds_as_strtoll_reads),
        cmocka_unit_test(test_torch_server_serves_others_while_one_request_is_half_sent),
        cmocka_unit_test(test_torch_server_answers_ahead_of_a_pending_wait),
        cmocka_unit_test(test_torch_server_places_the_end_of_a_wait_where_it_happened),
        cmocka_unit_test(test_torch_server_never_sends_a_stray_byte_to_generation_1),
        cmocka_unit_test(test_torch_server_replaces_a_pending_wait_by_a_second_one),
        cmocka_unit_test(test_torch_server_counts_a_key_that_came_and_went),
        cmocka_unit_test(test_torch_server_compares_as_pytorch_does),
        cmocka_unit_test(test_torch_server_opens_a_barrier_when_all_have_come),
        cmocka_unit_test(test_torch_server_cancels_a_barrier),
        cmocka_unit_test(test_torch_server_tells_watchers_what_pytorch_tells),
        cmocka_unit_test(test_torch_server_survives_a_dead_watcher),
        cmocka_unit_test(test_torch_server_drops_a_watcher_that_does_not_read),
        cmocka_unit_test(test_torch_server_limits_watches),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

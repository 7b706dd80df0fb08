/* What every stream machine must hold to, asked of the server side of PyTorch's protocol. */
#include <stddef.h>
#include <stdint.h>

#include "failheap.h"
#include "torch_requests.h"

static void test_torch_server_knows_its_own_first_bytes(void **state)
{
    (void)state;
    assert_int_equal(mu_torch_server_sniff(RIG_NOTHING), MUSTER_EAGAIN);
    assert_int_equal(mu_torch_server_sniff(MU_SPAN_LIT("\0")), 1);
    assert_int_equal(mu_torch_server_sniff(MU_SPAN_LIT("\22")), 1);
    assert_int_equal(mu_torch_server_sniff(MU_SPAN_LIT("\23")), 0);
    assert_int_equal(mu_torch_server_sniff(MU_SPAN_LIT("GET / HTTP/1.1")), 0);
}

static void test_torch_server_takes_nothing_while_answers_pile_up(void **state)
{
    struct mu_span get;
    struct rig r;

    (void)state;
    open_2(&r);
    r.limits.output_bytes_high = 100;
    rig_say(&r, 0, SET("/k", "0123456789012345678901234567890123456789"));
    r.conns[0].deaf = true;
    get = GET("/k");
    for (int i = 0; i < 3; i++) {
        rig_say(&r, 0, get);
    }
    assert_int_equal(r.conns[0].t.out.len, 144);
    assert_int_equal(rig_feed(&r, 0, get), 0);
    assert_int_equal(r.conns[0].err, 0);
    mu_torch_server_sent(&r.conns[0].t, 44);
    assert_int_equal(rig_feed(&r, 0, get), get.len);
    rig_fini(&r);
}

static void test_torch_server_refuses_an_answer_over_the_limit(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);
    r.limits.output_bytes_max = 60;
    rig_say(&r, 0, SET("/k", "0123456789012345678901234567890123456789"));
    rig_ask(&r, 0, GET("/k"), rig_bytes("s", "0123456789012345678901234567890123456789"));
    rig_refuse(&r, 0, rig_bytes("bnss", MU_TORCH_MULTI_GET, N(2), "/k", "/k"), MUSTER_ELIMIT);
    assert_string_equal(mu_torch_server_errmsg(&r.conns[0].t),
                        "the answer to MULTI_GET is over the limit of 60 bytes");
    rig_say(&r, 1, SET("/a-key-long-enough-to-break-the-limit-with-a-few-more", ""));
    rig_refuse(&r, 1, BYTE(MU_TORCH_LIST_KEYS), MUSTER_ELIMIT);
    rig_fini(&r);
}

/* The whole repertoire as one stream, for the properties below. */
static void all_requests(struct mu_buf *b)
{
    mu_buf_init(b, 1 << 20);
#define ADD_TO(s) assert_int_equal(mu_buf_append(b, s), 0)
    ADD_TO(rig_bytes("bwbw", 0, MU_TORCH_MAGIC, MU_TORCH_PING, 7u));
    ADD_TO(SET("/k", "v"));
    ADD_TO(SET("", ""));
    ADD_TO(GET("/k"));
    ADD_TO(CAS("/k", "v", "w"));
    ADD_TO(rig_bytes("bsn", MU_TORCH_ADD, "/n", N(-5)));
    ADD_TO(rig_bytes("bnss", MU_TORCH_CHECK, N(2), "/k", "/n"));
    ADD_TO(rig_bytes("bnss", MU_TORCH_WAIT, N(2), "/k", "/n"));
    ADD_TO(BYTE(MU_TORCH_GETNUMKEYS));
    ADD_TO(rig_bytes("bs", MU_TORCH_DELETE_KEY, "/n"));
    ADD_TO(rig_bytes("bss", MU_TORCH_APPEND, "/k", "more"));
    ADD_TO(rig_bytes("bnssss", MU_TORCH_MULTI_SET, N(2), "/a", "1", "/b", "2"));
    ADD_TO(rig_bytes("bnsss", MU_TORCH_MULTI_GET, N(3), "/b", "/a", "/k"));
    ADD_TO(rig_bytes("bn", MU_TORCH_MULTI_GET, N(0)));
    ADD_TO(rig_bytes("bn", MU_TORCH_MULTI_SET, N(0)));
    ADD_TO(WAIT1("/later"));
    ADD_TO(BYTE(MU_TORCH_CANCEL_WAIT));
    ADD_TO(WAIT1("/later"));
    ADD_TO(PUSH("/q", "e"));
    ADD_TO(rig_bytes("bs", MU_TORCH_QUEUE_LEN, "/q"));
    ADD_TO(rig_bytes("bs", MU_TORCH_QUEUE_POP, "/q"));
    ADD_TO(SET("/later", "x"));
    ADD_TO(BYTE(MU_TORCH_LIST_KEYS));
    ADD_TO(BARRIER("/bar", 1));
    ADD_TO(BARRIER("/bar", 3));
    ADD_TO(BARRIER("/bar", 3));
    ADD_TO(rig_bytes("bw", MU_TORCH_PING, 8u));
#undef ADD_TO
}

static void all_requests_1(struct mu_buf *b)
{
    mu_buf_init(b, 1 << 20);
#define ADD_TO(s) assert_int_equal(mu_buf_append(b, s), 0)
    ADD_TO(SET_1("/k", "v"));
    ADD_TO(GET_1("/k"));
    ADD_TO(rig_bytes("bsss", 1, "/k", "v", "w"));
    ADD_TO(rig_bytes("bsn", 3, "init/", N(1)));
    ADD_TO(rig_bytes("bnss", 4, N(2), "/k", "/n"));
    ADD_TO(WAIT_1("/k"));
    ADD_TO(BYTE(6));
    ADD_TO(rig_bytes("bs", 8, "/n"));
    ADD_TO(rig_bytes("bss", 9, "/k", "more"));
    ADD_TO(rig_bytes("bnssss", 11, N(2), "/a", "1", "/b", "2"));
    ADD_TO(rig_bytes("bnss", 10, N(2), "/b", "/a"));
    ADD_TO(WAIT_1("/never"));
    ADD_TO(BYTE(12));
    ADD_TO(WATCH_1("/other"));
    ADD_TO(BYTE(6));
#undef ADD_TO
}

static void check_splits(struct mu_span all)
{
    struct mu_buf whole;

    mu_buf_init(&whole, 1 << 20);
    for (uint64_t seed = 0; seed < 60; seed++) {
        struct rig r;

        rig_init(&r, seed == 0 ? RIG_WHOLE : seed == 1 ? RIG_BYTES : RIG_RANDOM, seed);
        rig_say(&r, 0, all);
        if (seed == 0) {
            assert_int_equal(mu_buf_append(&whole, mu_buf_span(&r.conns[0].got)), 0);
            assert_true(whole.len > 30);
        }
        rig_expect(&r, 0, mu_buf_span(&whole));
        assert_int_equal(r.conns[0].t.in.cap + r.conns[0].t.out.cap, 0);
        rig_fini(&r);
    }
    mu_buf_fini(&whole);
}

static void test_torch_server_answers_the_same_however_input_is_cut(void **state)
{
    struct mu_buf all;

    (void)state;
    all_requests(&all);
    check_splits(mu_buf_span(&all));
    mu_buf_fini(&all);
    all_requests_1(&all);
    check_splits(mu_buf_span(&all));
    mu_buf_fini(&all);
}

static void test_torch_server_answers_the_same_however_output_is_drained(void **state)
{
    struct mu_buf all;
    struct mu_buf got;
    struct rig whole;
    struct rig r;
    size_t done = 0;

    (void)state;
    all_requests(&all);
    rig_init(&whole, RIG_WHOLE, 0);
    rig_say(&whole, 0, mu_buf_span(&all));

    rig_init(&r, RIG_WHOLE, 0);
    r.limits.output_bytes_high = 3;
    r.conns[0].deaf = true;
    mu_buf_init(&got, 1 << 20);
    while (done < all.len || r.conns[0].t.out.len != 0) {
        done += rig_feed(&r, 0, mu_span_skip(mu_buf_span(&all), done));
        assert_int_equal(r.conns[0].err, 0);
        if (r.conns[0].t.out.len != 0) {
            struct mu_span out;

            assert_int_equal(mu_torch_server_output(&r.conns[0].t, &out, 1), 1);
            assert_int_equal(mu_buf_append(&got, mu_span(out.data, 1)), 0);
            mu_torch_server_sent(&r.conns[0].t, 1);
        }
    }
    rig_expect(&whole, 0, mu_buf_span(&got));
    mu_buf_fini(&got);
    rig_fini(&r);
    rig_fini(&whole);
    mu_buf_fini(&all);
}

static void test_torch_server_is_safe_from_garbage(void **state)
{
    struct mu_prng prng;

    (void)state;
    mu_prng_seed(&prng, 5);
    for (int round = 0; round < 2000; round++) {
        uint8_t junk[200];
        struct rig r;
        size_t n = 1 + (size_t)mu_prng_below(&prng, sizeof(junk));

        rig_init(&r, RIG_RANDOM, (uint64_t)round);
        if (round % 2 == 0) {
            rig_greet(&r, 0);
        }
        for (size_t i = 0; i < n; i++) {
            /* Mostly small numbers, so that lengths are sometimes right. */
            junk[i] = (uint8_t)(mu_prng_chance(&prng, 800000) ? mu_prng_below(&prng, 3)
                                                              : mu_prng_below(&prng, 256));
        }
        junk[0] = (uint8_t)mu_prng_below(&prng, 20);
        (void)rig_feed(&r, 0, mu_span(junk, n));
        assert_true(mu_torch_server_memory(&r.conns[0].t) < 64 * 1024);
        if (r.conns[0].err == 0) {
            rig_ask(&r, 1, SET_1("/x", ""), RIG_NOTHING);
        }
        rig_fini(&r);
    }
}

/* A stream in which each request takes few bytes at a time costs no more than its bytes. */
static void test_torch_server_reads_a_dribble_once(void **state)
{
    enum { KEYS = 131072 };
    struct mu_buf b;
    struct rig r;

    (void)state;
    open_2(&r);
    r.split = RIG_BYTES;
    mu_buf_init(&b, 8 << 20);
    assert_int_equal(mu_buf_reserve(&b, 9 + KEYS * 10), 0);
    mu_buf_put_u8(&b, MU_TORCH_WAIT);
    mu_buf_put_u64(&b, KEYS);
    for (size_t i = 0; i < KEYS; i++) {
        mu_buf_put_u64(&b, 2);
        mu_buf_put_u16(&b, (uint16_t)i);
    }
    /*
     * Were it scanned from the start for each byte, this would be some 10^11 steps, and the test
     * would not end within its time. The machine is called once for each byte; what it looks at in
     * each call is bounded because scan_offset only moves forward.
     */
    for (size_t i = 0; i < b.len; i++) {
        size_t before = r.conns[0].t.scan_offset;
        size_t used;

        assert_int_equal(mu_torch_server_recv(&r.conns[0].t, &r.ks, mu_span(b.data + i, 1), &used),
                         0);
        assert_int_equal(used, 1);
        if (i + 1 < b.len) {
            assert_in_range(r.conns[0].t.scan_offset, before, before + 10);
        }
    }
    assert_int_equal(r.ks.wait_count, 1);
    assert_int_equal(r.conns[0].t.in.cap, 0);
    mu_buf_fini(&b);
    rig_fini(&r);
}

static void test_torch_server_holds_nothing_while_idle(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);
    rig_say(&r, 0, SET("/k", "v"));
    rig_ask(&r, 0, GET("/k"), rig_bytes("s", "v"));
    assert_int_equal(mu_torch_server_memory(&r.conns[0].t), 0);
    assert_true(sizeof(struct mu_torch_server) <= 400);
    rig_fini(&r);
}

static void test_torch_server_leaves_nothing_registered_behind(void **state)
{
    struct rig r;

    (void)state;
    rig_init(&r, RIG_WHOLE, 0);
    rig_greet(&r, 0);
    rig_say(&r, 0, WAIT1("/k"));
    rig_say(&r, 1, WATCH_1("/k"));
    rig_close(&r, 0);
    rig_close(&r, 1);
    rig_open(&r, 0);
    rig_open(&r, 1);
    assert_int_equal(r.ks.wait_count + r.ks.watch_count, 0);
    rig_say(&r, 2, SET_1("/k", "v"));
    rig_fini(&r);
}

/* Each allocation fails in turn: an error or success, no leak, and the keyspace stays sound. */
static void test_torch_server_survives_a_failing_heap(void **state)
{
    struct mu_buf all[2];

    (void)state;
    all_requests(&all[0]);
    all_requests_1(&all[1]);
    for (size_t k = 0; k < 2; k++) {
        for (long nth = 0;; nth++) {
            struct rig r;
            bool fired;

            rig_init(&r, nth % 2 == 0 ? RIG_WHOLE : RIG_RANDOM, (uint64_t)nth);
            r.conns[0].deaf = true;
            failheap_arm(nth);
            (void)rig_feed(&r, 0, mu_buf_span(&all[k]));
            fired = failheap_fired();
            failheap_disarm();
            if (fired) {
                /* What only speeds things up may fail unseen; all else is said. */
                assert_true(r.conns[0].err == MUSTER_ENOMEM || r.conns[0].err == 0);
                assert_true(r.conns[0].err == 0 ||
                            mu_torch_server_errmsg(&r.conns[0].t)[0] != '\0');
            } else {
                assert_int_equal(r.conns[0].err, 0);
            }
            rig_say(&r, 1, SET_1("/still", "here"));
            rig_ask(&r, 1, GET_1("/still"), rig_bytes("s", "here"));
            rig_fini(&r);
            if (!fired) {
                assert_true(nth > 10);
                break;
            }
        }
        mu_buf_fini(&all[k]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torch_server_knows_its_own_first_bytes),
        cmocka_unit_test(test_torch_server_takes_nothing_while_answers_pile_up),
        cmocka_unit_test(test_torch_server_refuses_an_answer_over_the_limit),
        cmocka_unit_test(test_torch_server_answers_the_same_however_input_is_cut),
        cmocka_unit_test(test_torch_server_answers_the_same_however_output_is_drained),
        cmocka_unit_test(test_torch_server_is_safe_from_garbage),
        cmocka_unit_test(test_torch_server_reads_a_dribble_once),
        cmocka_unit_test(test_torch_server_holds_nothing_while_idle),
        cmocka_unit_test(test_torch_server_leaves_nothing_registered_behind),
        cmocka_unit_test(test_torch_server_survives_a_failing_heap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

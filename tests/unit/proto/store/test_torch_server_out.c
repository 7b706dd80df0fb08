/* Large values in answers: held where they are, and told as they were when they were asked for. */
#include <stddef.h>
#include <stdint.h>

#include "failheap.h"
#include "proto/store/torch_server_private.h"
#include "torch_requests.h"

#define LARGE ((size_t)100000)

/* A request of generation 2 that writes `len` bytes of `fill`. */
static void write_value(struct rig *r, size_t i, enum mu_torch_op op, const char *key, uint8_t fill,
                        size_t len)
{
    struct mu_span head = rig_bytes("bsn", op, key, N(len));
    uint8_t *request = malloc(head.len + len);

    memcpy(request, head.data, head.len);
    memset(request + head.len, fill, len);
    rig_say(r, i, mu_span(request, head.len + len));
    free(request);
}

/* Takes `n` bytes of the output, at most, as a slow reader does. */
static void take(struct rig_conn *c, size_t n)
{
    struct mu_span spans[3];
    size_t count = mu_torch_server_output(&c->t, spans, 3);
    size_t taken = 0;

    for (size_t i = 0; i < count; i++) {
        size_t part = spans[i].len < n - taken ? spans[i].len : n - taken;

        assert_true(spans[i].len != 0);
        assert_int_equal(mu_buf_append(&c->got, mu_span(spans[i].data, part)), 0);
        taken += part;
    }
    mu_torch_server_sent(&c->t, taken);
}

/* The connection has answered with `count` values of `len` times `fill`, and nothing else. */
static void expect_values(struct rig_conn *c, size_t count, uint8_t fill, size_t len)
{
    struct mu_span got = mu_buf_span(&c->got);

    assert_int_equal(got.len, count * (8 + len));
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(mu_get_u64(got.data), len);
        for (size_t k = 0; k < len; k++) {
            assert_int_equal(got.data[8 + k], fill);
        }
        got = mu_span_skip(got, 8 + len);
    }
    mu_buf_reset(&c->got);
}

static void test_readers_of_a_large_value_share_it(void **state)
{
    size_t stored;
    struct rig r;

    (void)state;
    open_2(&r);
    write_value(&r, 0, MU_TORCH_SET, "/k", 'a', LARGE);
    stored = r.ks.memory_bytes;
    for (size_t i = 0; i < RIG_CONNS; i++) {
        r.conns[i].deaf = true;
        rig_say(&r, i, rig_bytes("bnsss", MU_TORCH_MULTI_GET, N(3), "/k", "/k", "/k"));
        assert_int_equal(mu_torch_server_output_len(&r.conns[i].t), 3 * (8 + LARGE));
        assert_true(mu_torch_server_memory(&r.conns[i].t) < 4096);
    }
    assert_int_equal(r.ks.memory_bytes, stored);
    assert_int_equal(r.ks.held_bytes, 0);
    for (size_t i = 0; i < RIG_CONNS; i++) {
        while (mu_torch_server_output_len(&r.conns[i].t) != 0) {
            take(&r.conns[i], 777 + i);
        }
        expect_values(&r.conns[i], 3, 'a', LARGE);
        assert_int_equal(mu_torch_server_memory(&r.conns[i].t), 0);
    }
    rig_fini(&r);
}

/* Whatever becomes of a value, an answer that was given is told as it was given. */
static void test_an_answer_stays_as_it_was_given(void **state)
{
    static const enum mu_torch_op ops[] = {MU_TORCH_SET, MU_TORCH_APPEND, MU_TORCH_DELETE_KEY};
    static const size_t lens[] = {1, LARGE / 8, LARGE, LARGE + LARGE / 2};

    (void)state;
    for (size_t i = 0; i < 12; i++) {
        enum mu_torch_op op = ops[i % 3];
        struct rig r;

        open_2(&r);
        write_value(&r, 0, MU_TORCH_SET, "/k", 'a', LARGE);
        r.conns[1].deaf = true;
        rig_say(&r, 1, GET("/k"));
        take(&r.conns[1], 100);
        if (op == MU_TORCH_DELETE_KEY) {
            rig_ask(&r, 0, rig_bytes("bs", op, "/k"), I64(1));
        } else {
            write_value(&r, 0, op, "/k", 'b', lens[i / 3]);
        }
        assert_int_equal(r.ks.held_bytes > LARGE, op == MU_TORCH_DELETE_KEY || op == MU_TORCH_SET ||
                                                      r.ks.memory_bytes > 2 * LARGE);
        while (mu_torch_server_output_len(&r.conns[1].t) != 0) {
            take(&r.conns[1], 5000);
        }
        expect_values(&r.conns[1], 1, 'a', LARGE);
        assert_int_equal(r.ks.held_bytes, 0);
        rig_fini(&r);
    }
}

static void test_compare_set_lends_what_is_there(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);
    write_value(&r, 0, MU_TORCH_SET, "/k", 'a', LARGE);
    r.conns[0].deaf = true;
    rig_say(&r, 0, CAS("/k", "no", "new"));
    assert_true(mu_torch_server_memory(&r.conns[0].t) < 4096);
    r.conns[0].deaf = false;
    rig_drain(&r.conns[0]);
    expect_values(&r.conns[0], 1, 'a', LARGE);
    rig_fini(&r);
}

/* A connection that ends lets go of what it had not sent. */
static void test_a_connection_that_ends_holds_nothing(void **state)
{
    struct rig r;

    (void)state;
    open_2(&r);
    write_value(&r, 0, MU_TORCH_SET, "/k", 'a', LARGE);
    r.conns[1].deaf = true;
    rig_say(&r, 1, GET("/k"));
    rig_ask(&r, 0, rig_bytes("bs", MU_TORCH_DELETE_KEY, "/k"), I64(1));
    assert_true(r.ks.held_bytes > LARGE);
    rig_close(&r, 1);
    rig_open(&r, 1);
    assert_int_equal(r.ks.held_bytes, 0);
    assert_int_equal(r.ks.memory_bytes, 0);
    rig_fini(&r);
}

/* Where there is no memory, all of an answer is given or none of it. */
static void test_answers_with_large_values_survive_a_failing_heap(void **state)
{
    bool fired = true;

    (void)state;
    for (long n = 0; fired; n++) {
        struct mu_span ask = rig_bytes("bnss", MU_TORCH_MULTI_GET, N(2), "/k", "/k");
        size_t used = 0;
        struct rig r;

        open_2(&r);
        write_value(&r, 0, MU_TORCH_SET, "/k", 'a', LARGE);
        r.conns[1].deaf = true;
        failheap_arm(n);
        r.conns[1].err = mu_torch_server_recv(&r.conns[1].t, &r.ks, ask, &used);
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(mu_torch_server_output_len(&r.conns[1].t),
                         r.conns[1].err == 0 ? 2 * (8 + LARGE) : 0);
        rig_fini(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_readers_of_a_large_value_share_it),
        cmocka_unit_test(test_an_answer_stays_as_it_was_given),
        cmocka_unit_test(test_compare_set_lends_what_is_there),
        cmocka_unit_test(test_a_connection_that_ends_holds_nothing),
        cmocka_unit_test(test_answers_with_large_values_survive_a_failing_heap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

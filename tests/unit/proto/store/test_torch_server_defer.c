#include "proto/store/torch_server.h"

#include <string.h>

#include "codec/store/torch_wire.h"
#include "core/buf.h"
#include "unit.h"

struct rig {
    struct mu_torch_limits limits;
    struct mu_torch_server t;
    struct mu_buf in;
};

static void set_up(struct rig *r, bool second)
{
    *r = (struct rig){.limits = mu_torch_limits_defaults()};
    mu_torch_server_init(&r->t, &r->limits, NULL);
    mu_buf_init(&r->in, 1 << 20);
    assert_int_equal(mu_buf_reserve(&r->in, 1 << 16), 0);
    if (second) {
        mu_buf_put_u8(&r->in, 0);
        mu_buf_put_u32(&r->in, MU_TORCH_MAGIC);
    }
}

static void tear_down(struct rig *r)
{
    mu_torch_server_fini(&r->t, NULL);
    mu_buf_fini(&r->in);
}

static void put_part(struct rig *r, const char *text)
{
    mu_buf_put_u64(&r->in, strlen(text));
    mu_buf_put(&r->in, mu_span_str(text));
}

static void put_set(struct rig *r, const char *key, const char *value)
{
    mu_buf_put_u8(&r->in, MU_TORCH_SET);
    put_part(r, key);
    put_part(r, value);
}

static void put_key(struct rig *r, enum mu_torch_op op, const char *key)
{
    mu_buf_put_u8(&r->in, (uint8_t)op);
    put_part(r, key);
}

static void put_wait(struct rig *r, const char *key)
{
    mu_buf_put_u8(&r->in, MU_TORCH_WAIT);
    mu_buf_put_u64(&r->in, 1);
    put_part(r, key);
}

static void put_ping(struct rig *r, uint32_t nonce)
{
    mu_buf_put_u8(&r->in, MU_TORCH_PING);
    mu_buf_put_u32(&r->in, nonce);
}

static void feed(struct rig *r, size_t piece)
{
    while (r->in.len != 0) {
        size_t n = r->in.len < piece ? r->in.len : piece;
        size_t used;

        assert_int_equal(
            mu_torch_server_recv(&r->t, NULL, mu_span(mu_buf_span(&r->in).data, n), &used), 0);
        assert_int_equal(used, n);
        mu_buf_consume(&r->in, used);
    }
}

static struct mu_torch_request *take(struct rig *r, enum mu_store_verb verb, const char *key)
{
    struct mu_torch_request *q = mu_torch_server_next_request(&r->t);

    assert_non_null(q);
    assert_int_equal(q->request.verb, verb);
    assert_span_text(q->request.keys[0], key);
    return q;
}

static void answer(struct rig *r, struct mu_torch_request *q, const char *value)
{
    struct mu_span span = mu_span_str(value);
    struct mu_store_reply reply = {.values = &span, .value_count = 1};

    assert_int_equal(mu_torch_server_answer(&r->t, q, 0, &reply, NULL), 0);
}

/* The answers so far, which are then sent. */
static void assert_output(struct rig *r, const void *bytes, size_t len)
{
    struct mu_span out;

    assert_int_equal(mu_torch_server_output_len(&r->t), len);
    (void)mu_torch_server_output(&r->t, &out, 1);
    if (len != 0) {
        assert_memory_equal(out.data, bytes, len);
        mu_torch_server_sent(&r->t, len);
    }
}

static void test_requests_are_taken_apart_however_the_bytes_are_cut(void **state)
{
    (void)state;
    for (size_t piece = 1; piece < 100; piece += piece == 1 ? 6 : 31) {
        struct rig r;
        struct mu_torch_request *q;

        set_up(&r, true);
        put_set(&r, "/k", "v");
        put_key(&r, MU_TORCH_GET, "/k");
        feed(&r, piece);
        q = take(&r, MU_STORE_SET, "/k");
        assert_span_text(q->request.values[0], "v");
        answer(&r, q, "");
        q = take(&r, MU_STORE_GET, "/k");
        assert_null(mu_torch_server_next_request(&r.t));
        assert_output(&r, "", 0);
        answer(&r, q, "v");
        assert_output(&r, "\1\0\0\0\0\0\0\0v", 9);
        tear_down(&r);
    }
}

static void test_a_ping_has_its_turn(void **state)
{
    struct rig r;
    struct mu_torch_request *q;

    (void)state;
    set_up(&r, true);
    put_key(&r, MU_TORCH_GET, "/k");
    put_ping(&r, 0x01020304);
    feed(&r, 1000);
    q = take(&r, MU_STORE_GET, "/k");
    assert_output(&r, "", 0);
    answer(&r, q, "");
    assert_output(&r, "\0\0\0\0\0\0\0\0\4\3\2\1", 12);
    tear_down(&r);
}

static void test_a_cancelled_wait_is_dropped_and_said_so(void **state)
{
    struct rig r;
    struct mu_torch_request *q;

    (void)state;
    set_up(&r, true);
    put_wait(&r, "/k");
    feed(&r, 1000);
    q = take(&r, MU_STORE_WAIT, "/k");
    assert_null(mu_torch_server_next_dropped(&r.t));
    mu_buf_put_u8(&r.in, MU_TORCH_CANCEL_WAIT);
    feed(&r, 1000);
    assert_output(&r, "\1", 1);
    assert_ptr_equal(mu_torch_server_next_dropped(&r.t), q);
    mu_torch_request_free(q);
    assert_int_equal(r.t.deferred_count, 0);
    tear_down(&r);
}

/* PyTorch's client cancels a barrier that has timed out, and waits for the answer. */
static void test_a_cancelled_barrier_is_dropped_and_said_so(void **state)
{
    struct rig r;
    struct mu_torch_request *first;
    struct mu_torch_request *second;

    (void)state;
    set_up(&r, true);
    put_key(&r, MU_TORCH_BARRIER, "/b");
    mu_buf_put_u64(&r.in, 2);
    feed(&r, 1000);
    first = take(&r, MU_STORE_BARRIER, "/b");
    put_ping(&r, 0x01020304);
    feed(&r, 1000);
    assert_output(&r, "\4\3\2\1", 4); /* it does not wait for the barrier */
    put_key(&r, MU_TORCH_BARRIER, "/c");
    mu_buf_put_u64(&r.in, 2);
    feed(&r, 1000);
    assert_ptr_equal(mu_torch_server_next_dropped(&r.t), first);
    mu_torch_request_free(first);
    second = take(&r, MU_STORE_BARRIER, "/c");
    mu_buf_put_u8(&r.in, MU_TORCH_CANCEL_WAIT);
    feed(&r, 1000);
    assert_output(&r, "\1", 1);
    assert_ptr_equal(mu_torch_server_next_dropped(&r.t), second);
    mu_torch_request_free(second);
    assert_int_equal(r.t.deferred_count, 0);
    tear_down(&r);
}

static void test_the_first_generation_gives_a_wait_up_in_silence(void **state)
{
    struct rig r;
    struct mu_torch_request *wait;
    struct mu_torch_request *q;

    (void)state;
    set_up(&r, false);
    mu_buf_put_u8(&r.in, 5); /* WAIT of generation 1 */
    mu_buf_put_u64(&r.in, 1);
    put_part(&r, "/k");
    feed(&r, 1000);
    wait = take(&r, MU_STORE_WAIT, "/k");
    mu_buf_put_u8(&r.in, 2); /* GET */
    put_part(&r, "/k");
    feed(&r, 1000);
    assert_ptr_equal(mu_torch_server_next_dropped(&r.t), wait);
    mu_torch_request_free(wait);
    q = take(&r, MU_STORE_GET, "/k");
    assert_int_equal(mu_torch_server_answer(&r.t, q, MUSTER_ENOENT, NULL, "no such key"),
                     MUSTER_ENOENT);
    assert_output(&r, "", 0);
    tear_down(&r);
}

static void test_an_absent_value_is_empty_in_the_second_generation(void **state)
{
    struct rig r;

    (void)state;
    set_up(&r, true);
    put_key(&r, MU_TORCH_GET, "/k");
    put_key(&r, MU_TORCH_QUEUE_POP, "/q");
    feed(&r, 1000);
    assert_int_equal(mu_torch_server_answer(&r.t, take(&r, MU_STORE_GET, "/k"), MUSTER_ENOENT, NULL,
                                            "no such key"),
                     0);
    assert_int_equal(mu_torch_server_answer(&r.t, take(&r, MU_STORE_QUEUE_POP, "/q"), MUSTER_ENOENT,
                                            NULL, "empty"),
                     0);
    assert_output(&r, "\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0", 16);
    tear_down(&r);
}

static void test_no_more_are_read_than_may_wait(void **state)
{
    struct rig r;
    struct mu_torch_request *q;
    size_t used;

    (void)state;
    set_up(&r, true);
    feed(&r, 1000);
    for (size_t i = 0; i < MU_TORCH_DEFERRED_MAX + 1; i++) {
        put_key(&r, MU_TORCH_QUEUE_LEN, "/q");
    }
    assert_int_equal(mu_torch_server_recv(&r.t, NULL, mu_buf_span(&r.in), &used), 0);
    assert_true(used < r.in.len);
    assert_true(mu_torch_server_is_full(&r.t));
    mu_buf_consume(&r.in, used);
    q = take(&r, MU_STORE_QUEUE_LEN, "/q");
    answer(&r, q, "");
    assert_false(mu_torch_server_is_full(&r.t));
    feed(&r, 1000);
    tear_down(&r);
}

static void test_who_is_gone_leaves_requests_that_can_be_freed(void **state)
{
    struct rig r;
    struct mu_torch_request *q;

    (void)state;
    set_up(&r, true);
    put_set(&r, "/k", "v");
    put_set(&r, "/l", "v");
    feed(&r, 1000);
    q = take(&r, MU_STORE_SET, "/k");
    tear_down(&r);
    assert_null(q->server);
    mu_torch_request_free(q);
}

/* What somebody executes may outlive the connection, also when it is owed no answer: a WAIT that
 * was dropped and cannot be stopped at once, and a watch. */
static void test_a_connection_that_is_gone_is_not_touched_by_what_outlives_it(void **state)
{
    for (int watch = 0; watch < 2; watch++) {
        struct mu_store_reply none = {0};
        struct mu_torch_request *q;
        struct rig r;

        (void)state;
        set_up(&r, !watch);
        if (watch) {
            mu_buf_put_u8(&r.in, 7); /* WATCH_KEY of generation 1 */
            put_part(&r, "/k");
            feed(&r, 1000);
            q = take(&r, MU_STORE_WATCH, "/k");
            assert_int_equal(mu_torch_server_answer(&r.t, q, 0, &none, NULL), 0);
        } else {
            put_wait(&r, "/k");
            feed(&r, 1000);
            q = take(&r, MU_STORE_WAIT, "/k");
            mu_buf_put_u8(&r.in, MU_TORCH_CANCEL_WAIT);
            feed(&r, 1000);
            assert_ptr_equal(mu_torch_server_next_dropped(&r.t), q);
            assert_null(mu_torch_server_next_dropped(&r.t));
        }
        assert_int_equal(r.t.deferred_count, 1);
        tear_down(&r);
        assert_null(q->server);
        mu_torch_request_free(q);
        assert_int_equal(r.t.deferred_count, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_requests_are_taken_apart_however_the_bytes_are_cut),
        cmocka_unit_test(test_a_ping_has_its_turn),
        cmocka_unit_test(test_a_cancelled_wait_is_dropped_and_said_so),
        cmocka_unit_test(test_a_cancelled_barrier_is_dropped_and_said_so),
        cmocka_unit_test(test_the_first_generation_gives_a_wait_up_in_silence),
        cmocka_unit_test(test_an_absent_value_is_empty_in_the_second_generation),
        cmocka_unit_test(test_no_more_are_read_than_may_wait),
        cmocka_unit_test(test_who_is_gone_leaves_requests_that_can_be_freed),
        cmocka_unit_test(test_a_connection_that_is_gone_is_not_touched_by_what_outlives_it),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

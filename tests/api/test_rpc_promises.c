/* What the headers of RPC and references promise and calls do not show by themselves: what the
 * timeouts mean, what may be done on the runtime's thread, texts and devices on every way. */
#include "rpc_two_rig.h"

#define LONG_TEXT 1024

static char long_text[LONG_TEXT + 100];

/* --- handlers --------------------------------------------------------------------------------- */

static void fail_at_length(muster_rpc_call_in *call, void *context)
{
    (void)context;
    muster_rpc_fail(call, MUSTER_EREMOTE, long_text);
}

static void fail_oddly(muster_rpc_call_in *call, void *context)
{
    (void)context;
    muster_rpc_fail(call, 7, NULL);
}

static void never(muster_rpc_call_in *call, void *context)
{
    (void)context;
    (void)muster_rpc_in_wait_canceled(call, 20000);
    muster_rpc_fail(call, MUSTER_ECANCELED, "canceled");
}

/* Answers with the device that the part came on, in text, and the part itself. */
static void which_device(muster_rpc_call_in *call, void *context)
{
    struct muster_rpc_part parts[2] = {{.device = MUSTER_RPC_CPU}, muster_rpc_in_part(call, 0)};
    char text[16];

    (void)context;
    (void)snprintf(text, sizeof(text), "%d", (int)parts[1].device);
    parts[0].data = muster_str(text);
    muster_rpc_reply(call, parts, 2);
}

static int wait_here;

static void wait_on_the_loop(muster_rpc_call_in *call, void *context)
{
    (void)context;
    wait_here = muster_rpc_in_wait_canceled(call, 10000);
    muster_rpc_reply(call, NULL, 0);
}

/* Sends back what comes, until it ends. */
static int echo_all(muster_rpc_stream *stream, void *context)
{
    const struct muster_rpc_part *parts;
    size_t count;
    int n;

    (void)context;
    while ((n = muster_rpc_stream_recv(stream, &parts, &count, MUSTER_RPC_FOREVER)) == 1) {
        n = muster_rpc_stream_send(stream, parts, count, MUSTER_RPC_FOREVER);
        if (n != 0) {
            return n;
        }
    }
    return n;
}

static int open_serving(void **state)
{
    (void)open_two(state);
    memset(long_text, 'x', sizeof(long_text) - 1);
    assert_int_equal(muster_rpc_register(b, "t::T.fail", fail_at_length, NULL, 0), 0);
    assert_int_equal(muster_rpc_register(b, "t::T.odd", fail_oddly, NULL, 0), 0);
    assert_int_equal(muster_rpc_register(b, "t::T.never", never, NULL, MUSTER_RPC_BLOCKS), 0);
    assert_int_equal(muster_rpc_register(b, "t::T.device", which_device, NULL, 0), 0);
    assert_int_equal(muster_rpc_register(b, "t::T.loop", wait_on_the_loop, NULL, 0), 0);
    assert_int_equal(muster_rpc_register_stream(b, "t::T.stream", echo_all, NULL), 0);
    return 0;
}

/* --- errors and timeouts ---------------------------------------------------------------------- */

static void test_rpc_text_of_a_failure_comes_whole_up_to_its_bound(void **state)
{
    struct muster_rpc_request q = {.to = "b", .method = "t::T.fail", .timeout_ms = 20000};
    muster_rpc_future *future = NULL;
    const char *text;

    (void)state;
    assert_int_equal(muster_rpc_call(a, &q, &future), 0);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_RPC_FOREVER), MUSTER_EREMOTE);
    text = muster_rpc_future_errmsg(future);
    assert_non_null(strstr(text, "t::T.fail to b: "));
    assert_int_equal(strspn(strchr(text, 'x'), "x"), LONG_TEXT);
    muster_rpc_future_free(future);
    assert_int_equal(call(a, "b", "t::T.odd"), MUSTER_EREMOTE); /* No code: it is the handler's. */
}

static void test_rpc_timeout_of_the_agent_counts_for_later_calls(void **state)
{
    struct muster_rpc_request q = {
        .to = "b", .method = "t::T.never", .timeout_ms = MUSTER_TIMEOUT_DEFAULT};
    muster_rpc_future *before = NULL;
    muster_rpc_future *after = NULL;

    (void)state;
    assert_int_equal(muster_rpc_timeout(a), 60000);
    assert_int_equal(muster_rpc_call(a, &q, &before), 0);
    muster_rpc_set_timeout(a, 50);
    assert_int_equal(muster_rpc_timeout(a), 50);
    assert_int_equal(muster_rpc_call(a, &q, &after), 0);
    assert_int_equal(muster_rpc_future_wait(after, MUSTER_RPC_FOREVER), MUSTER_ETIMEDOUT);
    assert_int_equal(muster_rpc_future_kind(after), MUSTER_RPC_TIMEOUT);
    /* Not to have ended is a timeout as well, and 0 does not wait. */
    assert_int_equal(muster_rpc_future_wait(before, 0), MUSTER_ETIMEDOUT);
    assert_false(muster_rpc_future_ended(before));
    assert_int_equal(muster_rpc_future_wait(before, 20), MUSTER_ETIMEDOUT);
    muster_rpc_future_cancel(before);
    assert_int_equal(muster_rpc_future_wait(before, MUSTER_RPC_FOREVER), MUSTER_ECANCELED);
    assert_true(muster_rpc_future_ended(before));
    muster_rpc_future_cancel(before);
    muster_rpc_future_free(before);
    muster_rpc_future_free(after);
    q.timeout_ms = -2;
    assert_int_equal(muster_rpc_call(a, &q, &after), MUSTER_EINVAL);
    q.timeout_ms = 100;
    q.flags = 8;
    assert_int_equal(muster_rpc_call(a, &q, &after), MUSTER_EINVAL);
}

static int from_callback[4];

static void wait_in_callback(muster_rpc_future *future, void *context)
{
    struct muster_rpc_request q = {.to = "b", .method = "t::T.echo", .timeout_ms = 1000};
    muster_rpc_future *other = NULL;

    from_callback[0] = muster_rpc_future_wait(future, MUSTER_RPC_FOREVER);
    from_callback[1] = muster_rpc_sync(a, &q, &other);
    from_callback[2] = muster_rpc_future_wait(future, 0); /* It does not wait. */
    from_callback[3] = 1;
    *(atomic_bool *)context = true;
}

static void test_rpc_waiting_on_the_runtimes_thread_is_refused(void **state)
{
    atomic_bool done = false;
    struct muster_rpc_request q = {.to = "b",
                                   .method = "t::T.echo",
                                   .timeout_ms = 20000,
                                   .done = wait_in_callback,
                                   .context = &done};
    muster_rpc_future *future = NULL;

    (void)state;
    assert_int_equal(muster_rpc_call(a, &q, &future), 0);
    while (!atomic_load(&done)) {
        (void)sched_yield();
    }
    assert_int_equal(from_callback[0], MUSTER_EINVAL);
    assert_int_equal(from_callback[1], MUSTER_EINVAL);
    assert_int_equal(from_callback[2], 0);
    muster_rpc_future_free(future);
    assert_int_equal(call(a, "b", "t::T.loop"), 0);
    assert_int_equal(wait_here, MUSTER_EINVAL);
}

/* --- devices ---------------------------------------------------------------------------------- */

static void test_rpc_devices_are_mapped_in_streams_too(void **state)
{
    static const struct muster_rpc_device_pair pair = {3, 8};
    struct muster_rpc_part part = {muster_str("x"), 3};
    struct muster_rpc_part unmapped = {muster_str("x"), 4};
    struct muster_rpc_request q = {
        .to = "b", .method = "t::T.stream", .parts = &part, .part_count = 1, .timeout_ms = 20000};
    const struct muster_rpc_part *parts = NULL;
    muster_rpc_stream *stream = NULL;
    size_t count = 0;

    (void)state;
    assert_int_equal(muster_rpc_set_device_map(a, "b", &pair, 1), 0);
    assert_int_equal(muster_rpc_stream_open(a, &q, &stream), 0);
    assert_int_equal(muster_rpc_stream_recv(stream, &parts, &count, 20000), 1);
    assert_int_equal(parts[0].device, 3);
    assert_int_equal(muster_rpc_stream_send(stream, &unmapped, 1, 20000), MUSTER_EINVAL);
    assert_int_equal(muster_rpc_stream_send(stream, &part, 1, 20000), 0);
    assert_int_equal(muster_rpc_stream_recv(stream, &parts, &count, 20000), 1);
    assert_int_equal(parts[0].device, 3);
    assert_int_equal(muster_rpc_stream_recv(stream, &parts, &count, 0), MUSTER_ETIMEDOUT);
    assert_int_equal(muster_rpc_stream_end(stream), 0);
    assert_int_equal(muster_rpc_stream_send(stream, &part, 1, 20000), MUSTER_ECLOSED);
    assert_int_equal(muster_rpc_stream_recv(stream, &parts, &count, 20000), 0);
    muster_rpc_stream_close(stream);
    q.parts = &unmapped;
    assert_int_equal(muster_rpc_stream_open(a, &q, &stream), MUSTER_EINVAL);
}

static void test_rpc_streams_are_opened_by_id_too(void **state)
{
    struct muster_rpc_part part = {muster_str("x"), MUSTER_RPC_CPU};
    struct muster_rpc_request q = {
        .to_id = 1, .method = "t::T.stream", .parts = &part, .part_count = 1, .timeout_ms = 20000};
    const struct muster_rpc_part *parts = NULL;
    muster_rpc_stream *stream = NULL;
    size_t count = 0;

    (void)state;
    assert_int_equal(muster_rpc_stream_open(a, &q, &stream), 0);
    assert_int_equal(muster_rpc_stream_recv(stream, &parts, &count, 20000), 1);
    muster_rpc_stream_close(stream);
    /* A worker that is not known is an error of the stream, as it is of a call. */
    q.to_id = 7;
    assert_int_equal(muster_rpc_stream_open(a, &q, &stream), 0);
    assert_int_equal(muster_rpc_stream_recv(stream, &parts, &count, 20000), MUSTER_EWORKER);
    assert_non_null(strstr(muster_errmsg(), "7"));
    muster_rpc_stream_close(stream);
}

static void test_rref_is_made_of_parts_on_devices_by_name_and_by_id(void **state)
{
    static const struct muster_rpc_device_pair pair = {3, 8};
    struct muster_rpc_part part = {muster_str("x"), 3};
    struct muster_rpc_request q = {
        .method = "t::T.device", .parts = &part, .part_count = 1, .timeout_ms = 20000};
    static const char *const to[] = {"b", NULL};

    (void)state;
    assert_int_equal(muster_rpc_set_device_map(a, "b", &pair, 1), 0);
    q.to_id = 1;
    for (int i = 0; i < 2; i++) {
        muster_rref *rref = NULL;
        muster_rpc_future *future = NULL;

        q.to = to[i];
        if (muster_rref_remote(a, &q, &rref) != 0) {
            fail_msg("%s: %s", to[i] == NULL ? "by id" : to[i], muster_errmsg());
        }
        assert_int_equal(muster_rref_wait_confirmed(rref, MUSTER_RPC_FOREVER), 0);
        assert_int_equal(muster_rref_wait_confirmed(rref, 0), 0);
        assert_int_equal(muster_rref_to_here(rref, MUSTER_TIMEOUT_DEFAULT, &future), 0);
        assert_memory_equal(muster_rpc_future_part(future, 0).data.data, "8", 1);
        assert_int_equal(muster_rpc_future_part(future, 1).device, 3);
        muster_rpc_future_free(future);
        muster_rref_free(rref);
    }
    q.to = "nobody";
    part.device = MUSTER_RPC_CPU;
    assert_int_equal(muster_rref_remote(a, &q, &(muster_rref *){NULL}), MUSTER_EWORKER);
}

#define SERVING(test) cmocka_unit_test_setup_teardown(test, open_serving, close_two)

int main(void)
{
    const struct CMUnitTest tests[] = {
        SERVING(test_rpc_text_of_a_failure_comes_whole_up_to_its_bound),
        SERVING(test_rpc_timeout_of_the_agent_counts_for_later_calls),
        SERVING(test_rpc_waiting_on_the_runtimes_thread_is_refused),
        SERVING(test_rpc_devices_are_mapped_in_streams_too),
        SERVING(test_rpc_streams_are_opened_by_id_too),
        SERVING(test_rref_is_made_of_parts_on_devices_by_name_and_by_id),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

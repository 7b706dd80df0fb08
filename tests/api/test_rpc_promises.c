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
    while ((n = muster_rpc_stream_recv(stream, &parts, &count, MUSTER_TIMEOUT_NEVER)) == 1) {
        n = muster_rpc_stream_send(stream, parts, count, MUSTER_TIMEOUT_NEVER);
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
    struct muster_rpc_request q = {.size = sizeof(struct muster_rpc_request),
                                   .to = "b",
                                   .method = "t::T.fail",
                                   .timeout_ms = 20000};
    muster_rpc_future *future = NULL;
    const char *text;

    (void)state;
    assert_int_equal(muster_rpc_call(a, &q, &future), 0);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), MUSTER_EREMOTE);
    text = muster_rpc_future_errmsg(future);
    assert_non_null(strstr(text, "t::T.fail to b: "));
    assert_int_equal(strspn(strchr(text, 'x'), "x"), LONG_TEXT);
    muster_rpc_future_free(future);
    assert_int_equal(call(a, "b", "t::T.odd"), MUSTER_EREMOTE); /* No code: it is the handler's. */
}

static void test_rpc_timeout_of_the_agent_counts_for_later_calls(void **state)
{
    struct muster_rpc_request q = {.size = sizeof(struct muster_rpc_request),
                                   .to = "b",
                                   .method = "t::T.never",
                                   .timeout_ms = MUSTER_TIMEOUT_DEFAULT};
    muster_rpc_future *before = NULL;
    muster_rpc_future *after = NULL;

    (void)state;
    assert_int_equal(muster_rpc_timeout(a), 60000);
    assert_int_equal(muster_rpc_call(a, &q, &before), 0);
    muster_rpc_set_timeout(a, 50);
    assert_int_equal(muster_rpc_timeout(a), 50);
    assert_int_equal(muster_rpc_call(a, &q, &after), 0);
    assert_int_equal(muster_rpc_future_wait(after, MUSTER_TIMEOUT_NEVER), MUSTER_ETIMEDOUT);
    assert_int_equal(muster_rpc_future_kind(after), MUSTER_RPC_TIMEOUT);
    /* Not to have ended is a timeout as well, and 0 does not wait. */
    assert_int_equal(muster_rpc_future_wait(before, 0), MUSTER_ETIMEDOUT);
    assert_false(muster_rpc_future_ended(before));
    assert_int_equal(muster_rpc_future_wait(before, 20), MUSTER_ETIMEDOUT);
    muster_rpc_future_cancel(before);
    assert_int_equal(muster_rpc_future_wait(before, MUSTER_TIMEOUT_NEVER), MUSTER_ECANCELED);
    assert_true(muster_rpc_future_ended(before));
    muster_rpc_future_cancel(before);
    muster_rpc_future_free(before);
    muster_rpc_future_free(after);
    q.timeout_ms = -3;
    assert_int_equal(muster_rpc_call(a, &q, &after), MUSTER_EINVAL);
    q.timeout_ms = 100;
    q.flags = 8;
    assert_int_equal(muster_rpc_call(a, &q, &after), MUSTER_EINVAL);
}

static int from_callback[4];

static void wait_in_callback(muster_rpc_future *future, void *context)
{
    struct muster_rpc_request q = {.size = sizeof(struct muster_rpc_request),
                                   .to = "b",
                                   .method = "t::T.echo",
                                   .timeout_ms = 1000};
    muster_rpc_future *other = NULL;

    from_callback[0] = muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER);
    from_callback[1] = muster_rpc_sync(a, &q, &other);
    from_callback[2] = muster_rpc_future_wait(future, 0); /* It does not wait. */
    from_callback[3] = 1;
    *(atomic_bool *)context = true;
}

static void test_rpc_waiting_on_the_runtimes_thread_is_refused(void **state)
{
    atomic_bool done = false;
    struct muster_rpc_request q = {.size = sizeof(struct muster_rpc_request),
                                   .to = "b",
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
    struct muster_rpc_request q = {.size = sizeof(struct muster_rpc_request),
                                   .to = "b",
                                   .method = "t::T.stream",
                                   .parts = &part,
                                   .part_count = 1,
                                   .timeout_ms = 20000};
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
    struct muster_rpc_request q = {.size = sizeof(struct muster_rpc_request),
                                   .to_id = 1,
                                   .method = "t::T.stream",
                                   .parts = &part,
                                   .part_count = 1,
                                   .timeout_ms = 20000};
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
    struct muster_rpc_request q = {.size = sizeof(struct muster_rpc_request),
                                   .method = "t::T.device",
                                   .parts = &part,
                                   .part_count = 1,
                                   .timeout_ms = 20000};
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
        assert_int_equal(muster_rref_wait_confirmed(rref, MUSTER_TIMEOUT_NEVER), 0);
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

/* --- being canceled, and being let go of ------------------------------------------------------ */

static struct {
    atomic_int running;
    atomic_int told; /* by muster_rpc_in_on_cancel() */
    atomic_int late; /* told at once, since it had been canceled */
    atomic_int ended;
    int waited;
    int why;
    int late_at_once;
    char method[64];
} seen; /* but for the counts, to be read when it has ended */

static void count_told(muster_rpc_call_in *call, void *context)
{
    (void)call;
    (void)atomic_fetch_add((atomic_int *)context, 1);
}

static void answer_when_canceled(muster_rpc_call_in *call, void *context)
{
    (void)context;
    (void)snprintf(seen.method, sizeof(seen.method), "%s", muster_rpc_in_method(call));
    muster_rpc_in_on_cancel(call, count_told, &seen.told);
    atomic_store(&seen.running, 1);
    seen.waited = muster_rpc_in_wait_canceled(call, 20000);
    seen.why = muster_rpc_in_canceled(call);
    while (atomic_load(&seen.told) == 0) {
        (void)sched_yield(); /* It is, on the runtime's thread. */
    }
    muster_rpc_in_on_cancel(call, count_told, &seen.late);
    seen.late_at_once = atomic_load(&seen.late);
    muster_rpc_fail(call, MUSTER_ECANCELED, "canceled");
    atomic_store(&seen.ended, 1);
}

static void await_one(atomic_int *n)
{
    while (atomic_load(n) == 0) {
        (void)sched_yield();
    }
}

static void test_rpc_handler_is_told_of_a_cancel_then_and_afterwards(void **state)
{
    struct muster_rpc_request q = {.size = sizeof(struct muster_rpc_request),
                                   .to = "b",
                                   .method = "t::T.told",
                                   .timeout_ms = 20000};
    muster_rpc_future *future = NULL;

    (void)state;
    assert_int_equal(
        muster_rpc_register(b, "t::T.told", answer_when_canceled, NULL, MUSTER_RPC_BLOCKS), 0);
    assert_int_equal(muster_rpc_call(a, &q, &future), 0);
    await_one(&seen.running);
    muster_rpc_future_cancel(future);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), MUSTER_ECANCELED);
    assert_int_equal(muster_rpc_future_kind(future), MUSTER_RPC_CANCELED);
    muster_rpc_future_free(future);
    await_one(&seen.ended);
    assert_string_equal(seen.method, "t::T.told");
    assert_int_equal(seen.waited, 0);
    assert_int_equal(seen.why, MUSTER_ECANCELED);
    assert_int_equal(atomic_load(&seen.told), 1);
    assert_int_equal(seen.late_at_once, 1);
}

/* --- agents ----------------------------------------------------------------------------------- */

static void test_rpc_defaults_are_those_of_the_header(void **state)
{
    struct muster_rpc_config config = muster_rpc_config_defaults();
    struct muster_rpc_retry retry = muster_rpc_retry_defaults();

    (void)state;
    assert_int_equal(config.id, -1);
    assert_non_null(config.listen);
    assert_int_equal(config.timeout_ms, 60000);
    assert_int_equal(config.threads, 16);
    assert_int_equal(config.connect_timeout_ms, 10000);
    assert_int_equal(config.reconnect_timeout_ms, 5000);
    assert_int_equal(config.message_bytes_max, (size_t)1 << 30);
    assert_int_equal(config.retry_budget_percent, 0);
    assert_false(config.tcp_only);
    assert_int_equal(retry.retries_max, 5);
    assert_int_equal(retry.duration_ms, 1000);
    assert_true(retry.backoff == 1.5);
    assert_true(retry.jitter == 0);
    assert_string_equal(muster_version(), MUSTER_VERSION);
}

static void test_rpc_worker_without_an_address_is_called_when_it_has_called(void **state)
{
    muster_rpc_agent *shy = start_agent("shy", 5, NULL);

    (void)state;
    assert_int_equal(muster_rpc_add_worker(shy, "a", 0, muster_rpc_address(a)), 0);
    assert_int_equal(muster_rpc_add_worker(a, "shy", 5, NULL), 0);
    assert_int_equal(call(a, "shy", "t::T.echo"), MUSTER_ECONN);
    assert_non_null(strstr(muster_errmsg(), "shy"));
    assert_int_equal(call(shy, "a", "t::T.echo"), 0);
    assert_int_equal(call(a, "shy", "t::T.echo"), 0);
    muster_rpc_shutdown(shy);
    assert_int_equal(call(a, "shy", "t::T.echo"), MUSTER_ECONN);
}

static void test_rpc_agent_that_does_not_listen_calls_and_joins_nothing(void **state)
{
    struct muster_rdzv_info round = {.world_size = 1};
    muster_rpc_agent *guest = start_agent("guest", -1, NULL);
    muster_rpc_agent *mute = start_agent("mute", 0, NULL);
    muster_rref *rref = NULL;
    muster_store *store = NULL;

    (void)state;
    assert_int_equal(muster_store_open(rt, "hash:", NULL, &store), 0);
    assert_string_equal(muster_rpc_address(guest), "");
    assert_string_equal(muster_rpc_name(guest), "guest");
    assert_int_equal(muster_rpc_id(guest), -1);
    assert_int_equal(muster_rpc_add_worker(guest, "b", 1, muster_rpc_address(b)), 0);
    assert_int_equal(call(guest, "b", "t::T.echo"), 0);
    assert_int_equal(call(a, "guest", "t::T.echo"), MUSTER_EWORKER);
    assert_int_equal(muster_rref_new(guest, NULL, 0, &rref), MUSTER_EINVAL);
    assert_int_equal(muster_rpc_join_group(mute, store, "g", 1, 1000), MUSTER_EINVAL);
    assert_int_equal(muster_rpc_follow_round(a, &round, 1000), MUSTER_EINVAL);
    assert_non_null(strstr(muster_errmsg(), "store"));
    round.store = store;
    assert_int_equal(muster_rpc_follow_round(mute, &round, 1000), MUSTER_EINVAL);
    assert_int_equal(muster_rpc_add_worker(a, "a b", 5, ""), MUSTER_EINVAL);
    assert_int_equal(muster_rpc_add_worker(a, "c", -1, ""), MUSTER_EINVAL);
    assert_int_equal(muster_rpc_add_worker(a, "c", 5, "nonsense"), MUSTER_EURL);
    assert_int_equal(muster_rpc_add_worker(a, "c", 5, "h:1,h:2"), MUSTER_EURL);
    muster_store_close(store);
    muster_rpc_shutdown(mute);
    muster_rpc_shutdown(guest);
    muster_rpc_shutdown(NULL);
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
        SERVING(test_rpc_handler_is_told_of_a_cancel_then_and_afterwards),
        SERVING(test_rpc_defaults_are_those_of_the_header),
        SERVING(test_rpc_worker_without_an_address_is_called_when_it_has_called),
        SERVING(test_rpc_agent_that_does_not_listen_calls_and_joins_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The public RPC agent: real threads, real sockets, two to four workers in one process. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <muster/muster.h>
#include <muster/rpc.h>

#define LONG_BYTES ((size_t)64 << 20)

struct pair {
    muster_runtime *rt[2];
    muster_rpc_agent *agent[2];
    atomic_int runs;
    atomic_int failures_left;
    atomic_int canceled;
};

/* --- handlers --------------------------------------------------------------------------------- */

static void echo(muster_rpc_call_in *call, void *context)
{
    struct muster_rpc_part parts[8];
    size_t count = muster_rpc_in_part_count(call);

    (void)context;
    assert_true(count <= 8);
    for (size_t i = 0; i < count; i++) {
        parts[i] = muster_rpc_in_part(call, i);
    }
    muster_rpc_reply(call, parts, count);
}

static void fail_always(muster_rpc_call_in *call, void *context)
{
    (void)context;
    muster_rpc_fail(call, MUSTER_EREMOTE, "the disk is full");
}

/* Fails as often as it is told to, then answers. */
static void fail_some(muster_rpc_call_in *call, void *context)
{
    struct pair *p = context;

    (void)atomic_fetch_add(&p->runs, 1);
    if (atomic_fetch_sub(&p->failures_left, 1) > 0) {
        muster_rpc_fail(call, MUSTER_EREMOTE, "not yet");
    } else {
        muster_rpc_reply(call, NULL, 0);
    }
}

static void sleep_until_canceled(muster_rpc_call_in *call, void *context)
{
    struct pair *p = context;
    int64_t left = muster_rpc_in_time_left(call);

    assert_true(left >= -1 && left <= 60000);
    if (muster_rpc_in_wait_canceled(call, 20000) == 0) {
        (void)atomic_fetch_add(&p->canceled, 1);
        muster_rpc_fail(call, muster_rpc_in_canceled(call), "canceled");
    } else {
        muster_rpc_reply(call, NULL, 0);
    }
}

static void on_future(muster_rpc_future *future, void *context)
{
    muster_rpc_call_in *call = context;

    if (muster_rpc_future_status(future) == 0) {
        struct muster_rpc_part part = muster_rpc_future_part(future, 0);

        muster_rpc_reply(call, &part, 1);
    } else {
        muster_rpc_fail(call, MUSTER_EREMOTE, muster_rpc_future_errmsg(future));
    }
    muster_rpc_future_free(future);
}

/* Calls back whoever calls it, and answers when that has answered. */
static void bounce(muster_rpc_call_in *call, void *context)
{
    struct muster_rpc_part part = muster_rpc_in_part(call, 0);
    struct muster_rpc_request q = {
        .size = sizeof(struct muster_rpc_request),
        .to = muster_rpc_in_caller(call),
        .method = "t::T.echo",
        .parts = &part,
        .part_count = 1,
        .timeout_ms = MUSTER_TIMEOUT_DEFAULT,
        .done = on_future,
        .context = call,
    };
    muster_rpc_future *future;

    assert_int_equal(muster_rpc_call(context, &q, &future), 0);
}

/* --- the rig ---------------------------------------------------------------------------------- */

static void serve(struct pair *p, muster_rpc_agent *a)
{
    assert_int_equal(muster_rpc_register(a, "t::T.echo", echo, NULL, 0), 0);
    assert_int_equal(muster_rpc_register(a, "t::T.echo_on_thread", echo, NULL, MUSTER_RPC_BLOCKS),
                     0);
    assert_int_equal(muster_rpc_register(a, "t::T.fail", fail_always, NULL, 0), 0);
    assert_int_equal(muster_rpc_register(a, "t::T.fail_some", fail_some, p, 0), 0);
    assert_int_equal(
        muster_rpc_register(a, "t::T.sleep", sleep_until_canceled, p, MUSTER_RPC_BLOCKS), 0);
    assert_int_equal(muster_rpc_register(a, "t::T.bounce", bounce, a, 0), 0);
}

static void open_pair(struct pair *p)
{
    static const char *const names[] = {"a", "b"};

    memset(p, 0, sizeof(*p));
    for (int i = 0; i < 2; i++) {
        struct muster_rpc_config config = muster_rpc_config_defaults();

        assert_int_equal(muster_runtime_new(&p->rt[i]), 0);
        config.name = names[i];
        config.id = i;
        config.listen = "127.0.0.1:0";
        assert_int_equal(muster_rpc_start(p->rt[i], &config, &p->agent[i]), 0);
        serve(p, p->agent[i]);
    }
    for (int i = 0; i < 4; i++) {
        assert_int_equal(muster_rpc_add_worker(p->agent[i / 2], names[i % 2], i % 2,
                                               muster_rpc_address(p->agent[i % 2])),
                         0);
    }
}

static void close_pair(struct pair *p)
{
    for (int i = 0; i < 2; i++) {
        muster_rpc_shutdown(p->agent[i]);
        muster_runtime_free(p->rt[i]);
    }
}

static const struct muster_rpc_retry quick_retry = {
    .size = sizeof(struct muster_rpc_retry), .retries_max = 5, .duration_ms = 1, .backoff = 1.5};

static struct muster_rpc_request request(const char *to, const char *method)
{
    return (struct muster_rpc_request){
        .size = sizeof(struct muster_rpc_request),
        .to = to,
        .method = method,
        .timeout_ms = MUSTER_TIMEOUT_DEFAULT,
        .retry = &quick_retry,
    };
}

static muster_rpc_future *begin(muster_rpc_agent *a, const struct muster_rpc_request *q)
{
    muster_rpc_future *future = NULL;

    assert_int_equal(muster_rpc_call(a, q, &future), 0);
    return future;
}

static int call_status(muster_rpc_agent *a, const struct muster_rpc_request *q)
{
    muster_rpc_future *future = begin(a, q);
    int status = muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER);

    muster_rpc_future_free(future);
    return status;
}

/* --- calls ------------------------------------------------------------------------------------ */

static void test_rpc_parts_come_back_as_they_were_sent(void **state)
{
    struct muster_rpc_part parts[3] = {
        {muster_str("one"), -1}, {muster_str(""), -1}, {muster_str("three"), -1}};
    struct muster_rpc_request q = request("b", "t::T.echo");
    muster_rpc_future *future;
    struct pair p;

    (void)state;
    open_pair(&p);
    q.parts = parts;
    for (size_t n = 0; n <= 3; n++) {
        q.part_count = n;
        future = begin(p.agent[0], &q);
        assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), 0);
        assert_int_equal(muster_rpc_future_part_count(future), n);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(muster_rpc_future_part(future, i).data.len, parts[i].data.len);
        }
        if (n == 3) {
            assert_memory_equal(muster_rpc_future_part(future, 2).data.data, "three", 5);
        }
        muster_rpc_future_free(future);
    }
    /* By number, to oneself, on a thread, and back through the caller. */
    q.to = NULL;
    q.to_id = 1;
    assert_int_equal(call_status(p.agent[0], &q), 0);
    q.to_id = 0;
    assert_int_equal(call_status(p.agent[0], &q), 0);
    q.method = "t::T.echo_on_thread";
    assert_int_equal(call_status(p.agent[1], &q), 0);
    q.method = "t::T.bounce";
    assert_int_equal(call_status(p.agent[1], &q), 0);
    close_pair(&p);
}

static void test_rpc_errors_say_what_and_where(void **state)
{
    struct muster_rpc_retry bad = quick_retry;
    struct muster_rpc_request q = request("b", "t::T.fail");
    muster_rpc_future *future;
    struct pair p;

    (void)state;
    open_pair(&p);
    future = begin(p.agent[0], &q);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), MUSTER_EREMOTE);
    assert_int_equal(muster_rpc_future_kind(future), MUSTER_RPC_REMOTE);
    assert_string_equal(muster_rpc_future_errmsg(future), "t::T.fail to b: the disk is full");
    muster_rpc_future_free(future);
    q.method = "t::T.nobody";
    assert_int_equal(call_status(p.agent[0], &q), MUSTER_ENOMETHOD);
    q.to = "c";
    future = begin(p.agent[0], &q);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), MUSTER_EWORKER);
    assert_int_equal(muster_rpc_future_kind(future), MUSTER_RPC_REFUSED);
    muster_rpc_future_free(future);
    q.method = "not a method";
    assert_int_equal(muster_rpc_call(p.agent[0], &q, &future), MUSTER_EINVAL);
    q.method = "t::T.echo";
    q.flags = MUSTER_RPC_RETRY;
    bad.retries_max = -1;
    q.retry = &bad;
    assert_int_equal(muster_rpc_call(p.agent[0], &q, &future), MUSTER_EINVAL);
    close_pair(&p);
}

static void test_rpc_deadline_and_cancel_reach_the_handler(void **state)
{
    struct muster_rpc_request q = request("b", "t::T.sleep");
    muster_rpc_future *future;
    struct pair p;

    (void)state;
    open_pair(&p);
    q.timeout_ms = 50;
    future = begin(p.agent[0], &q);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), MUSTER_ETIMEDOUT);
    assert_int_equal(muster_rpc_future_kind(future), MUSTER_RPC_TIMEOUT);
    assert_non_null(strstr(muster_rpc_future_errmsg(future), "set timeout (50 ms)"));
    muster_rpc_future_free(future);
    q.timeout_ms = MUSTER_TIMEOUT_NEVER;
    future = begin(p.agent[0], &q);
    assert_int_equal(muster_rpc_future_wait(future, 20), MUSTER_ETIMEDOUT);
    assert_false(muster_rpc_future_ended(future));
    muster_rpc_future_cancel(future);
    muster_rpc_future_cancel(future);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), MUSTER_ECANCELED);
    muster_rpc_future_free(future);
    muster_rpc_set_timeout(p.agent[0], 30);
    q.timeout_ms = MUSTER_TIMEOUT_DEFAULT;
    assert_int_equal(call_status(p.agent[0], &q), MUSTER_ETIMEDOUT);
    /* Shutting down waits for the handlers, and all were told. */
    close_pair(&p);
    assert_int_equal(atomic_load(&p.canceled), 3);
}

static void test_rpc_64_mib_go_and_come_back(void **state)
{
    struct muster_rpc_request q = request("b", "t::T.echo");
    struct muster_rpc_part part = {.device = -1};
    uint8_t *data = malloc(LONG_BYTES);
    muster_rpc_future *future;
    struct pair p;

    (void)state;
    assert_non_null(data);
    for (size_t i = 0; i < LONG_BYTES; i++) {
        data[i] = (uint8_t)(i * 2654435761u >> 13);
    }
    open_pair(&p);
    part.data.data = data;
    part.data.len = LONG_BYTES;
    q.parts = &part;
    q.part_count = 1;
    q.flags = MUSTER_RPC_BORROW;
    future = begin(p.agent[0], &q);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), 0);
    part = muster_rpc_future_part(future, 0);
    assert_int_equal(part.data.len, LONG_BYTES);
    assert_int_equal(memcmp(part.data.data, data, LONG_BYTES), 0);
    muster_rpc_future_free(future);
    close_pair(&p);
    free(data);
}

static void count_then(muster_rpc_future *future, void *context)
{
    (void)future;
    (void)atomic_fetch_add((atomic_int *)context, 1);
}

static void test_rpc_then_is_called_before_and_after_the_end(void **state)
{
    struct muster_rpc_request q = request("b", "t::T.echo");
    muster_rpc_future *future;
    atomic_int told = 0;
    struct pair p;

    (void)state;
    open_pair(&p);
    q.done = count_then;
    q.context = &told;
    future = begin(p.agent[0], &q);
    assert_int_equal(muster_rpc_future_then(future, count_then, &told), 0);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), 0);
    assert_int_equal(muster_rpc_future_then(future, count_then, &told), 0);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), 0);
    assert_int_equal(atomic_load(&told), 3);
    muster_rpc_future_free(future);
    close_pair(&p);
}

/* --- retries ---------------------------------------------------------------------------------- */

static void test_rpc_retries_until_it_succeeds_or_is_exhausted(void **state)
{
    struct muster_rpc_request q = request("b", "t::T.fail_some");
    muster_rpc_future *future;
    struct pair p;

    (void)state;
    open_pair(&p);
    q.flags = MUSTER_RPC_RETRY;
    atomic_store(&p.failures_left, 3);
    assert_int_equal(call_status(p.agent[0], &q), 0);
    assert_int_equal(atomic_load(&p.runs), 4);
    atomic_store(&p.failures_left, 100);
    future = begin(p.agent[0], &q);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), MUSTER_EREMOTE);
    assert_non_null(strstr(muster_rpc_future_errmsg(future), "max retries (5)"));
    muster_rpc_future_free(future);
    assert_int_equal(atomic_load(&p.runs), 4 + 6);
    /* What the handler of a call that runs at most once answered is its answer. */
    q.flags = MUSTER_RPC_RETRY | MUSTER_RPC_ONCE;
    assert_int_equal(call_status(p.agent[0], &q), MUSTER_EREMOTE);
    assert_int_equal(atomic_load(&p.runs), 4 + 6 + 1);
    close_pair(&p);
}

static void test_rpc_shutdown_fails_what_waits_for_its_next_try(void **state)
{
    struct muster_rpc_retry slow = quick_retry;
    struct muster_rpc_request q = request("b", "t::T.fail");
    muster_rpc_future *retrying;
    muster_rpc_future *sleeping;
    struct pair p;

    (void)state;
    open_pair(&p);
    q.flags = MUSTER_RPC_RETRY;
    slow.duration_ms = 3600000;
    q.retry = &slow;
    retrying = begin(p.agent[0], &q);
    q = request("b", "t::T.sleep");
    sleeping = begin(p.agent[0], &q);
    q = request("b", "t::T.echo");
    assert_int_equal(call_status(p.agent[0], &q), 0); /* The one before has failed by now. */
    muster_rpc_shutdown(p.agent[0]);
    p.agent[0] = NULL;
    assert_int_equal(muster_rpc_future_wait(retrying, 0), MUSTER_ECLOSED);
    assert_int_equal(muster_rpc_future_kind(retrying), MUSTER_RPC_SHUT_DOWN);
    assert_non_null(strstr(muster_rpc_future_errmsg(retrying), "waited for its next try"));
    assert_int_equal(muster_rpc_future_wait(sleeping, 0), MUSTER_ECLOSED);
    muster_rpc_future_free(retrying);
    muster_rpc_future_free(sleeping);
    close_pair(&p);
}

static void test_rpc_worker_that_does_not_listen_is_named(void **state)
{
    struct muster_rpc_request q = request("c", "t::T.echo");
    struct muster_rpc_config config = muster_rpc_config_defaults();
    muster_rpc_agent *gone;
    muster_rpc_future *future;
    char address[128];
    struct pair p;

    (void)state;
    open_pair(&p);
    config.name = "c";
    config.id = 2;
    config.listen = "127.0.0.1:0";
    assert_int_equal(muster_rpc_start(p.rt[0], &config, &gone), 0);
    (void)snprintf(address, sizeof(address), "%s", muster_rpc_address(gone));
    muster_rpc_shutdown(gone);
    assert_int_equal(muster_rpc_add_worker(p.agent[0], "c", 2, address), 0);
    q.timeout_ms = 200;
    future = begin(p.agent[0], &q);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), MUSTER_ETIMEDOUT);
    assert_non_null(strstr(muster_rpc_future_errmsg(future), "to c:"));
    muster_rpc_future_free(future);
    /* Somebody else at that address is not taken for it. */
    assert_int_equal(muster_rpc_add_worker(p.agent[0], "d", 3, muster_rpc_address(p.agent[1])), 0);
    q.to = "d";
    assert_int_equal(call_status(p.agent[0], &q), MUSTER_EREFUSED);
    close_pair(&p);
}

/* --- streams ---------------------------------------------------------------------------------- */

static int echo_stream(muster_rpc_stream *stream, void *context)
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

/* Reads nothing until it is told to, or canceled. */
static int slow_stream(muster_rpc_stream *stream, void *context)
{
    const struct muster_rpc_part *parts;
    struct pair *p = context;
    size_t count;

    while (atomic_load(&p->failures_left) != 0) {
        if (muster_rpc_stream_send(stream, NULL, 0, 0) != 0) {
            (void)atomic_fetch_add(&p->canceled, 1);
            return MUSTER_ECANCELED;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    while (muster_rpc_stream_recv(stream, &parts, &count, MUSTER_TIMEOUT_NEVER) == 1) {
        (void)atomic_fetch_add(&p->runs, count == 1 ? (int)(parts[0].data.len >> 10) : 0);
    }
    return 0;
}

static int broken_stream(muster_rpc_stream *stream, void *context)
{
    (void)stream;
    (void)context;
    return MUSTER_ENOENT;
}

static void serve_streams(struct pair *p)
{
    for (int i = 0; i < 2; i++) {
        muster_rpc_agent *a = p->agent[i];

        assert_int_equal(muster_rpc_register_stream(a, "t::T.echoes", echo_stream, p), 0);
        assert_int_equal(muster_rpc_register_stream(a, "t::T.slow", slow_stream, p), 0);
        assert_int_equal(muster_rpc_register_stream(a, "t::T.broken", broken_stream, p), 0);
    }
}

static void test_rpc_stream_goes_both_ways_in_order(void **state)
{
    struct muster_rpc_request q = request("b", "t::T.echoes");
    struct muster_rpc_part part = {.device = -1};
    const struct muster_rpc_part *got;
    muster_rpc_stream *stream;
    size_t count;
    struct pair p;

    (void)state;
    open_pair(&p);
    serve_streams(&p);
    part.data = muster_str("first");
    q.parts = &part;
    q.part_count = 1;
    assert_int_equal(muster_rpc_stream_open(p.agent[0], &q, &stream), 0);
    for (int i = 0; i < 300; i++) {
        char text[32];

        (void)snprintf(text, sizeof(text), "message %d", i);
        part.data = muster_str(text);
        assert_int_equal(muster_rpc_stream_send(stream, &part, 1, 10000), 0);
    }
    assert_int_equal(muster_rpc_stream_end(stream), 0);
    for (int i = -1; i < 300; i++) {
        char text[32];

        (void)snprintf(text, sizeof(text), i < 0 ? "first" : "message %d", i);
        assert_int_equal(muster_rpc_stream_recv(stream, &got, &count, 10000), 1);
        assert_int_equal(count, 1);
        assert_int_equal(got[0].data.len, strlen(text));
        assert_memory_equal(got[0].data.data, text, strlen(text));
    }
    assert_int_equal(muster_rpc_stream_recv(stream, &got, &count, 10000), 0);
    part.data = muster_str("late");
    assert_int_equal(muster_rpc_stream_send(stream, &part, 1, 0), MUSTER_ECLOSED);
    muster_rpc_stream_close(stream);
    close_pair(&p);
}

static void test_rpc_stream_slow_reader_holds_back_the_sender(void **state)
{
    struct muster_rpc_request q = request("b", "t::T.slow");
    struct muster_rpc_part part = {.device = -1};
    const struct muster_rpc_part *got;
    muster_rpc_stream *stream;
    size_t length = (size_t)256 << 10;
    uint8_t *data = calloc(1, length);
    int sent = 0;
    size_t count;
    struct pair p;

    (void)state;
    open_pair(&p);
    serve_streams(&p);
    atomic_store(&p.failures_left, 1);
    assert_int_equal(muster_rpc_stream_open(p.agent[0], &q, &stream), 0);
    part.data.data = data;
    part.data.len = length;
    while (sent < 1000 && muster_rpc_stream_send(stream, &part, 1, 200) == 0) {
        sent++;
    }
    /* What is under way is bounded: 250 MiB did not fit. */
    assert_true(sent > 4 && sent < 200);
    atomic_store(&p.failures_left, 0);
    assert_int_equal(muster_rpc_stream_end(stream), 0);
    do {
        count = 0;
    } while (muster_rpc_stream_recv(stream, &got, &count, 20000) == 1);
    assert_int_equal(atomic_load(&p.runs), sent * 256);
    muster_rpc_stream_close(stream);
    close_pair(&p);
    free(data);
}

static void test_rpc_stream_ends_by_close_error_or_shutdown(void **state)
{
    struct muster_rpc_request q = request("b", "t::T.broken");
    const struct muster_rpc_part *got;
    muster_rpc_stream *stream;
    size_t count;
    struct pair p;

    (void)state;
    open_pair(&p);
    serve_streams(&p);
    assert_int_equal(muster_rpc_stream_open(p.agent[0], &q, &stream), 0);
    assert_int_equal(muster_rpc_stream_recv(stream, &got, &count, 10000), MUSTER_ENOENT);
    muster_rpc_stream_close(stream);
    q.method = "t::T.echo";
    assert_int_equal(muster_rpc_stream_open(p.agent[0], &q, &stream), 0);
    assert_int_equal(muster_rpc_stream_recv(stream, &got, &count, 10000), MUSTER_EINVAL);
    muster_rpc_stream_close(stream);
    q.to = "nobody";
    assert_int_equal(muster_rpc_stream_open(p.agent[0], &q, &stream), 0);
    assert_int_equal(muster_rpc_stream_recv(stream, &got, &count, 10000), MUSTER_EWORKER);
    muster_rpc_stream_close(stream);
    /* Its handler is told: it ends though it would wait for ever. */
    q.to = "b";
    q.method = "t::T.slow";
    atomic_store(&p.failures_left, 1);
    assert_int_equal(muster_rpc_stream_open(p.agent[0], &q, &stream), 0);
    assert_int_equal(muster_rpc_stream_recv(stream, &got, &count, 10000), 1);
    muster_rpc_stream_close(stream);
    assert_int_equal(muster_rpc_stream_open(p.agent[0], &q, &stream), 0);
    muster_rpc_stream_close(stream);
    q.method = "t::T.echoes";
    assert_int_equal(muster_rpc_stream_open(p.agent[0], &q, &stream), 0);
    assert_int_equal(muster_rpc_stream_recv(stream, &got, &count, 10000), 1);
    muster_rpc_shutdown(p.agent[0]);
    p.agent[0] = NULL;
    assert_int_equal(muster_rpc_stream_recv(stream, &got, &count, 10000), MUSTER_ECLOSED);
    muster_rpc_stream_close(stream);
    close_pair(&p);
    assert_true(atomic_load(&p.canceled) >= 1);
}

/* --- many threads ----------------------------------------------------------------------------- */

struct caller {
    struct pair *pair;
    int number;
    int failed;
};

static void *call_many(void *context)
{
    static const char *const methods[] = {"t::T.echo", "t::T.echo_on_thread", "t::T.bounce",
                                          "t::T.fail"};
    struct caller *c = context;

    for (int i = 0; i < 60; i++) {
        int from = (c->number + i) % 2;
        struct muster_rpc_request q = request(from == 0 ? "b" : "a", methods[i % 4]);
        char text[64];
        struct muster_rpc_part part = {.device = -1};
        muster_rpc_future *future = NULL;
        int status;

        (void)snprintf(text, sizeof(text), "call %d of %d", i, c->number);
        part.data = muster_str(text);
        q.parts = &part;
        q.part_count = 1;
        q.flags = i % 3 == 0 ? MUSTER_RPC_ONCE : 0;
        if (muster_rpc_call(c->pair->agent[from], &q, &future) != 0) {
            c->failed++;
            continue;
        }
        if (i % 10 == 9) {
            muster_rpc_future_cancel(future);
        }
        status = muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER);
        if (status == 0 &&
            (muster_rpc_future_part(future, 0).data.len != strlen(text) ||
             memcmp(muster_rpc_future_part(future, 0).data.data, text, strlen(text)) != 0)) {
            c->failed++;
        }
        if (status != 0 && status != MUSTER_ECANCELED &&
            !(i % 4 == 3 && status == MUSTER_EREMOTE)) {
            c->failed++;
        }
        muster_rpc_future_free(future);
    }
    return NULL;
}

static void test_rpc_calls_from_16_threads_both_ways(void **state)
{
    struct muster_rpc_metric metrics[128];
    struct caller callers[16];
    pthread_t threads[16];
    struct pair p;
    size_t count;

    (void)state;
    open_pair(&p);
    for (int i = 0; i < 16; i++) {
        callers[i] = (struct caller){.pair = &p, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, call_many, &callers[i]), 0);
    }
    for (int i = 0; i < 16; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(callers[i].failed, 0);
    }
    count = muster_rpc_metrics(p.agent[0], metrics, 128);
    assert_true(count > 10 && count <= 128);
    assert_string_equal(metrics[2].name, "agent.client_active_calls");
    assert_string_equal(metrics[2].value, "0");
    close_pair(&p);
}

/* --- groups ----------------------------------------------------------------------------------- */

#define GROUP 4

struct member {
    muster_runtime *rt;
    muster_rpc_agent *agent;
    const char *url;
    const char *name;
    const char *group;
    int id;
    int status;
    char text[256];
    atomic_int *left;
};

/* Joins, calls everybody, waits for everybody. */
static void *live(void *context)
{
    struct member *m = context;
    muster_store *store;

    m->status = muster_store_open(m->rt, m->url, NULL, &store);
    if (m->status != 0) {
        return NULL;
    }
    m->status = muster_rpc_join_group(m->agent, store, m->group, GROUP, 20000);
    (void)snprintf(m->text, sizeof(m->text), "%s", muster_errmsg());
    for (int i = 0; m->status == 0 && i < GROUP; i++) {
        struct muster_rpc_request q = request(NULL, "t::T.bounce");
        struct muster_rpc_part part = {muster_str("hello"), -1};

        q.to_id = i;
        q.parts = &part;
        q.part_count = 1;
        m->status = call_status(m->agent, &q);
    }
    if (m->status == 0) {
        m->status = muster_rpc_leave_group(m->agent, store, 20000);
        (void)atomic_fetch_add(m->left, 1);
    }
    muster_store_close(store);
    return NULL;
}

static void run_group(struct member *members, const char *const *names, const char *group)
{
    struct muster_server_config server_config = muster_server_config_defaults();
    pthread_t threads[GROUP];
    muster_server *server;
    muster_runtime *rt;
    atomic_int left = 0;
    char url[128];

    assert_int_equal(muster_runtime_new(&rt), 0);
    server_config.listen = "127.0.0.1:0";
    assert_int_equal(muster_server_start(rt, &server_config, &server), 0);
    (void)snprintf(url, sizeof(url), "tcp://%s", muster_server_address(server));
    for (int i = 0; i < GROUP; i++) {
        struct muster_rpc_config config = muster_rpc_config_defaults();

        members[i] = (struct member){
            .rt = rt, .url = url, .name = names[i], .group = group, .id = i, .left = &left};
        config.name = names[i];
        config.id = i;
        config.listen = "127.0.0.1:0";
        assert_int_equal(muster_rpc_start(rt, &config, &members[i].agent), 0);
        assert_int_equal(muster_rpc_register(members[i].agent, "t::T.echo", echo, NULL, 0), 0);
        assert_int_equal(
            muster_rpc_register(members[i].agent, "t::T.bounce", bounce, members[i].agent, 0), 0);
    }
    for (int i = 0; i < GROUP; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, live, &members[i]), 0);
    }
    for (int i = 0; i < GROUP; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    for (int i = 0; i < GROUP; i++) {
        muster_rpc_shutdown(members[i].agent);
    }
    muster_server_free(server);
    muster_runtime_free(rt);
}

static void test_rpc_group_forms_calls_and_leaves(void **state)
{
    static const char *const names[GROUP] = {"w0", "w1", "w2", "w3"};
    struct member members[GROUP];

    (void)state;
    run_group(members, names, "g");
    for (int i = 0; i < GROUP; i++) {
        assert_int_equal(members[i].status, 0);
        assert_int_equal(atomic_load(members[i].left), GROUP);
    }
}

static void test_rpc_group_refuses_a_name_that_is_there_twice(void **state)
{
    static const char *const names[GROUP] = {"w0", "twin", "w2", "twin"};
    struct member members[GROUP];

    (void)state;
    run_group(members, names, "g");
    for (int i = 0; i < GROUP; i++) {
        assert_int_equal(members[i].status, MUSTER_EEXIST);
        assert_non_null(strstr(members[i].text, "twin"));
    }
}

/* --- identity --------------------------------------------------------------------------------- */

static void test_rpc_names_and_ids_are_checked(void **state)
{
    static const char *const bad[] = {"", "a b", "a.b", "\xc3\xa4"};
    struct muster_rpc_config config = muster_rpc_config_defaults();
    struct muster_rpc_worker worker;
    muster_rpc_agent *agent;
    muster_runtime *rt;
    char name[130];
    struct pair p;

    (void)state;
    assert_int_equal(muster_runtime_new(&rt), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        config.name = bad[i];
        assert_int_equal(muster_rpc_start(rt, &config, &agent), MUSTER_EINVAL);
    }
    memset(name, 'x', sizeof(name));
    name[128] = '\0';
    config.name = name;
    assert_int_equal(muster_rpc_start(rt, &config, &agent), MUSTER_EINVAL);
    name[127] = '\0';
    config.id = 32768;
    assert_int_equal(muster_rpc_start(rt, &config, &agent), MUSTER_EINVAL);
    config.id = 32767;
    assert_int_equal(muster_rpc_start(rt, &config, &agent), 0);
    muster_rpc_shutdown(agent);
    muster_runtime_free(rt);
    open_pair(&p);
    assert_int_equal(muster_rpc_worker_info(p.agent[0], "b", 0, &worker), 0);
    assert_int_equal(worker.id, 1);
    assert_int_equal(muster_rpc_worker_info(p.agent[0], NULL, 0, &worker), 0);
    assert_string_equal(worker.name, "a");
    assert_int_equal(muster_rpc_worker_info(p.agent[0], "z", 0, &worker), MUSTER_EWORKER);
    assert_int_equal(muster_rpc_add_worker(p.agent[0], "z", 1, ""), MUSTER_EEXIST);
    assert_int_equal(muster_rpc_add_worker(p.agent[0], "b", 7, ""), MUSTER_EEXIST);
    assert_int_equal(muster_rpc_workers(p.agent[0], &worker, 1), 2);
    assert_int_equal(muster_rpc_remove_worker(p.agent[0], "b"), 0);
    assert_int_equal(muster_rpc_remove_worker(p.agent[0], "b"), MUSTER_EWORKER);
    close_pair(&p);
}

static void test_rpc_current_agent_is_set_once(void **state)
{
    muster_rpc_agent *agent = NULL;
    struct pair p;

    (void)state;
    open_pair(&p);
    assert_int_equal(muster_rpc_current(&agent), MUSTER_ENOENT);
    assert_int_equal(muster_rpc_set_current(NULL), MUSTER_ENOENT);
    assert_int_equal(muster_rpc_set_current(p.agent[0]), 0);
    assert_int_equal(muster_rpc_set_current(p.agent[1]), MUSTER_EEXIST);
    assert_int_equal(muster_rpc_current(&agent), 0);
    assert_ptr_equal(agent, p.agent[0]);
    assert_int_equal(muster_rpc_set_current(NULL), 0);
    close_pair(&p);
}

static void test_rpc_devices_are_mapped_there_and_back(void **state)
{
    static const struct muster_rpc_device_pair twice[] = {{0, 5}, {1, 5}};
    static const struct muster_rpc_device_pair pairs[] = {{0, 5}, {1, 6}};
    struct muster_rpc_part parts[2] = {{muster_str("x"), 1}, {muster_str("y"), -1}};
    struct muster_rpc_request q = request("b", "t::T.echo");
    muster_rpc_future *future;
    struct pair p;

    (void)state;
    open_pair(&p);
    q.parts = parts;
    q.part_count = 2;
    assert_int_equal(call_status(p.agent[0], &q), MUSTER_EINVAL);
    assert_int_equal(muster_rpc_set_device_map(p.agent[0], "b", twice, 2), MUSTER_EEXIST);
    assert_int_equal(muster_rpc_set_device_map(p.agent[0], "b", pairs, 2), 0);
    future = begin(p.agent[0], &q);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), 0);
    assert_int_equal(muster_rpc_future_part(future, 0).device, 1);
    assert_int_equal(muster_rpc_future_part(future, 1).device, -1);
    muster_rpc_future_free(future);
    close_pair(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc_parts_come_back_as_they_were_sent),
        cmocka_unit_test(test_rpc_errors_say_what_and_where),
        cmocka_unit_test(test_rpc_deadline_and_cancel_reach_the_handler),
        cmocka_unit_test(test_rpc_64_mib_go_and_come_back),
        cmocka_unit_test(test_rpc_then_is_called_before_and_after_the_end),
        cmocka_unit_test(test_rpc_retries_until_it_succeeds_or_is_exhausted),
        cmocka_unit_test(test_rpc_shutdown_fails_what_waits_for_its_next_try),
        cmocka_unit_test(test_rpc_worker_that_does_not_listen_is_named),
        cmocka_unit_test(test_rpc_stream_goes_both_ways_in_order),
        cmocka_unit_test(test_rpc_stream_slow_reader_holds_back_the_sender),
        cmocka_unit_test(test_rpc_stream_ends_by_close_error_or_shutdown),
        cmocka_unit_test(test_rpc_calls_from_16_threads_both_ways),
        cmocka_unit_test(test_rpc_group_forms_calls_and_leaves),
        cmocka_unit_test(test_rpc_group_refuses_a_name_that_is_there_twice),
        cmocka_unit_test(test_rpc_names_and_ids_are_checked),
        cmocka_unit_test(test_rpc_current_agent_is_set_once),
        cmocka_unit_test(test_rpc_devices_are_mapped_there_and_back),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

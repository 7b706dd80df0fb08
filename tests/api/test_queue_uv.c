/*
 * A queue in an event loop that is not ours: a libuv loop of the test's own watches the descriptor,
 * makes operations and calls, and serves calls, all on its one thread and without a callback of
 * the library.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <muster/muster.h>
#include <uv.h>

#define CALLS 500

struct program {
    uv_loop_t loop;
    uv_poll_t poll;
    muster_runtime *rt;
    muster_store *store;
    muster_rpc_agent *agent;
    muster_queue *queue;
    pthread_t thread;
    muster_op *watch;
    int served;
    int answered;
    int written;
    int changes;
    int strangers; /* events on another thread, or of a kind that cannot be */
};

static void begin_call(struct program *p)
{
    struct muster_rpc_request q = muster_rpc_request_defaults();
    muster_rpc_future *future;

    q.to = "self";
    q.method = "t::T.serve";
    q.queue = p->queue;
    p->strangers += muster_rpc_call(p->agent, &q, &future) != 0;
}

static void begin_set(struct program *p)
{
    struct muster_store_request q = muster_store_request_defaults();
    struct muster_bytes key = muster_str("k");
    struct muster_bytes value = muster_str("v");
    muster_op *op;

    q.verb = MUSTER_STORE_SET;
    q.keys = &key;
    q.key_count = 1;
    q.values = &value;
    q.value_count = 1;
    q.queue = p->queue;
    p->strangers += muster_store_submit(p->store, &q, &op) != 0;
}

static void end_if_done(struct program *p)
{
    if (p->answered == CALLS && p->written == CALLS && p->changes == CALLS) {
        uv_close((uv_handle_t *)&p->poll, NULL);
    }
}

static void handle(struct program *p, const struct muster_queued *event)
{
    struct muster_change change;

    switch (event->kind) {
    case MUSTER_QUEUED_CALL:
        p->served++;
        muster_rpc_reply(event->object, NULL, 0);
        break;
    case MUSTER_QUEUED_FUTURE:
        p->strangers += muster_rpc_future_status(event->object) != 0;
        muster_rpc_future_free(event->object);
        p->answered++;
        begin_set(p);
        break;
    case MUSTER_QUEUED_OP:
        p->strangers += muster_op_status(event->object) != 0;
        muster_op_free(event->object);
        if (++p->written < CALLS) {
            begin_call(p);
        }
        break;
    case MUSTER_QUEUED_CHANGE:
        p->strangers += event->object != p->watch;
        while (muster_op_change_next(event->object, &change) == 1) {
            p->changes++;
        }
        break;
    case MUSTER_QUEUED_AVERAGED:
    case MUSTER_QUEUED_LOADED:
        p->strangers++;
        break;
    }
}

static void on_readable(uv_poll_t *poll, int status, int what)
{
    struct program *p = poll->data;
    struct muster_queued events[8];
    size_t count;

    p->strangers += status != 0 || (what & UV_READABLE) == 0;
    p->strangers += pthread_equal(pthread_self(), p->thread) == 0;
    while ((count = muster_queue_take(p->queue, events, 8)) > 0) {
        for (size_t i = 0; i < count; i++) {
            handle(p, &events[i]);
        }
    }
    end_if_done(p);
}

static void open_program(struct program *p)
{
    struct muster_rpc_config config = muster_rpc_config_defaults();
    struct muster_store_request q = muster_store_request_defaults();
    struct muster_bytes key = muster_str("k");

    p->thread = pthread_self();
    assert_int_equal(muster_runtime_new(&p->rt), 0);
    assert_int_equal(muster_queue_new(p->rt, &p->queue), 0);
    assert_int_equal(muster_store_open(p->rt, "hash:", NULL, &p->store), 0);
    config.name = "self";
    config.id = 0;
    config.listen = "127.0.0.1:0";
    assert_int_equal(muster_rpc_start(p->rt, &config, &p->agent), 0);
    assert_int_equal(muster_rpc_add_worker(p->agent, "self", 0, muster_rpc_address(p->agent)), 0);
    assert_int_equal(muster_rpc_register_queue(p->agent, "t::T.serve", p->queue, NULL), 0);
    q.verb = MUSTER_STORE_WATCH;
    q.keys = &key;
    q.key_count = 1;
    q.queue = p->queue;
    assert_int_equal(muster_store_submit(p->store, &q, &p->watch), 0);
}

static void test_queue_is_driven_by_a_loop_of_libuv(void **state)
{
    struct program p = {0};

    (void)state;
    open_program(&p);
    assert_int_equal(uv_loop_init(&p.loop), 0);
    assert_int_equal(uv_poll_init(&p.loop, &p.poll, muster_queue_fd(p.queue)), 0);
    p.poll.data = &p;
    assert_int_equal(uv_poll_start(&p.poll, UV_READABLE, on_readable), 0);
    begin_call(&p);
    assert_int_equal(uv_run(&p.loop, UV_RUN_DEFAULT), 0);
    assert_int_equal(uv_loop_close(&p.loop), 0);
    assert_int_equal(p.served, CALLS);
    assert_int_equal(p.answered, CALLS);
    assert_int_equal(p.written, CALLS);
    assert_int_equal(p.changes, CALLS);
    assert_int_equal(p.strangers, 0);
    muster_op_free(p.watch);
    muster_rpc_shutdown(p.agent);
    muster_store_close(p.store);
    muster_queue_free(p.queue);
    muster_runtime_free(p.rt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_queue_is_driven_by_a_loop_of_libuv),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

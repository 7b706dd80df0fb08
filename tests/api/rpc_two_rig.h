/* Two workers of one runtime that know each other. Real threads, real sockets. */
#ifndef MU_TEST_RPC_TWO_RIG_H
#define MU_TEST_RPC_TWO_RIG_H

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <muster/muster.h>

static muster_runtime *rt;
static muster_rpc_agent *a;
static muster_rpc_agent *b;

static inline void echo(muster_rpc_call_in *call, void *context)
{
    struct muster_rpc_part part = muster_rpc_in_part(call, 0);

    (void)context;
    muster_rpc_reply(call, &part, 1);
}

static inline muster_rpc_agent *start_agent(const char *name, int32_t id, const char *listen)
{
    struct muster_rpc_config config = muster_rpc_config_defaults();
    muster_rpc_agent *agent = NULL;

    config.name = name;
    config.id = id;
    config.listen = listen;
    if (muster_rpc_start(rt, &config, &agent) != 0) {
        fail_msg("%s: %s", name, muster_errmsg());
    }
    assert_int_equal(muster_rpc_register(agent, "t::T.echo", echo, NULL, 0), 0);
    return agent;
}

static inline int open_two(void **state)
{
    (void)state;
    assert_int_equal(muster_runtime_new(&rt), 0);
    a = start_agent("a", 0, "127.0.0.1:0");
    b = start_agent("b", 1, "127.0.0.1:0");
    assert_int_equal(muster_rpc_add_worker(a, "b", 1, muster_rpc_address(b)), 0);
    assert_int_equal(muster_rpc_add_worker(b, "a", 0, muster_rpc_address(a)), 0);
    return 0;
}

static inline int close_two(void **state)
{
    (void)state;
    muster_rpc_shutdown(a);
    muster_rpc_shutdown(b);
    muster_runtime_free(rt);
    return 0;
}

static inline int call(muster_rpc_agent *agent, const char *to, const char *method)
{
    struct muster_rpc_part part = {muster_str("x"), MUSTER_RPC_CPU};
    struct muster_rpc_request q = {.size = sizeof(struct muster_rpc_request),
                                   .to = to,
                                   .method = method,
                                   .parts = &part,
                                   .part_count = 1,
                                   .timeout_ms = 20000};
    muster_rpc_future *future = NULL;
    int err = muster_rpc_sync(agent, &q, &future);

    muster_rpc_future_free(future);
    return err;
}

#endif

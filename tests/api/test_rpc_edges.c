/* What the header of RPC says of its edges: bad names, the agent of the process after its end,
 * workers that have said goodbye. Real threads, real sockets. */
#include <pthread.h>
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

static void echo(muster_rpc_call_in *call, void *context)
{
    struct muster_rpc_part part = muster_rpc_in_part(call, 0);

    (void)context;
    muster_rpc_reply(call, &part, 1);
}

static muster_rpc_agent *start_agent(const char *name, int32_t id, const char *listen)
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

static int open_two(void **state)
{
    (void)state;
    assert_int_equal(muster_runtime_new(&rt), 0);
    a = start_agent("a", 0, "127.0.0.1:0");
    b = start_agent("b", 1, "127.0.0.1:0");
    assert_int_equal(muster_rpc_add_worker(a, "b", 1, muster_rpc_address(b)), 0);
    assert_int_equal(muster_rpc_add_worker(b, "a", 0, muster_rpc_address(a)), 0);
    return 0;
}

static int close_two(void **state)
{
    (void)state;
    muster_rpc_shutdown(a);
    muster_rpc_shutdown(b);
    muster_runtime_free(rt);
    return 0;
}

/* --- the agent of the process ----------------------------------------------------------------- */

static void test_rpc_current_agent_is_none_after_its_shutdown(void **state)
{
    muster_rpc_agent *current = NULL;

    (void)state;
    assert_int_equal(muster_rpc_set_current(a), 0);
    muster_rpc_shutdown(b);
    b = NULL;
    assert_int_equal(muster_rpc_current(&current), 0);
    assert_ptr_equal(current, a);
    muster_rpc_shutdown(a);
    a = NULL;
    current = NULL;
    assert_int_equal(muster_rpc_current(&current), MUSTER_ENOENT);
    assert_null(current);
    assert_int_equal(muster_rpc_set_current(NULL), MUSTER_ENOENT);
}

#define WITH_TWO(test) cmocka_unit_test_setup_teardown(test, open_two, close_two)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_TWO(test_rpc_current_agent_is_none_after_its_shutdown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What the header of RPC says of its edges: bad names, the agent of the process after its end,
 * workers that have said goodbye, devices. */
#include "rpc_two_rig.h"

static int take_all(muster_rpc_stream *stream, void *context)
{
    const struct muster_rpc_part *parts;
    size_t count;
    int n;

    (void)context;
    do {
        n = muster_rpc_stream_recv(stream, &parts, &count, 20000);
    } while (n == 1);
    return n;
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

/* --- names of methods ------------------------------------------------------------------------- */

static void test_rpc_method_is_a_namespace_a_service_and_a_method(void **state)
{
    static const char *const bad[] = {
        "add",     "",  "t::add", "T.add",    "t::T.",    "t::.add",
        "::T.add", ".", "::.",    "t::T.a b", "t.T::add", "t::T.\xc3",
    };
    char name[300] = "t::T.";
    struct muster_rpc_request q = {
        .size = sizeof(struct muster_rpc_request), .to = "b", .timeout_ms = 1000};
    muster_rpc_stream *stream = NULL;
    muster_rpc_future *future = NULL;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (muster_rpc_register(a, bad[i], echo, NULL, 0) != MUSTER_EINVAL ||
            muster_rpc_register_stream(a, bad[i], take_all, NULL) != MUSTER_EINVAL) {
            fail_msg("\"%s\" was taken", bad[i]);
        }
        q.method = bad[i];
        assert_int_equal(muster_rpc_call(a, &q, &future), MUSTER_EINVAL);
        assert_int_equal(muster_rpc_stream_open(a, &q, &stream), MUSTER_EINVAL);
        assert_non_null(strstr(muster_errmsg(), "namespace::Service.method"));
    }
    assert_int_equal(muster_rpc_register(a, NULL, echo, NULL, 0), MUSTER_EINVAL);
    memset(name + 5, 'x', 251);
    assert_int_equal(muster_rpc_register(a, name, echo, NULL, 0), MUSTER_EINVAL);
    name[255] = '\0';
    assert_int_equal(muster_rpc_register(a, name, echo, NULL, 0), 0);
    assert_int_equal(muster_rpc_register(a, name, echo, NULL, 0), MUSTER_EEXIST);
    assert_int_equal(muster_rpc_register_stream(a, name, take_all, NULL), MUSTER_EEXIST);
    assert_int_equal(muster_rpc_register(a, "x::y::Z.w", echo, NULL, 0), 0);
    assert_int_equal(muster_rpc_register(a, "t::T.bad_flags", echo, NULL, 2), MUSTER_EINVAL);
    assert_int_equal(muster_rpc_register(a, "t::T.nothing", NULL, NULL, 0), MUSTER_EINVAL);
    assert_int_equal(call(b, "a", name), 0);
    assert_int_equal(call(b, "a", "x::y::Z.w"), 0);
    assert_int_equal(call(b, "a", "x::y::Z.v"), MUSTER_ENOMETHOD);
}

/* --- workers that are gone -------------------------------------------------------------------- */

static int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* A call to a worker that nobody takes; the timeout of a connection is 10 s. */
static void check_gone(const char *to)
{
    struct muster_rpc_request q = {.size = sizeof(struct muster_rpc_request),
                                   .to = to,
                                   .method = "t::T.echo",
                                   .timeout_ms = 60000};
    int64_t begun = now_ms();
    muster_rpc_future *future = NULL;

    assert_int_equal(muster_rpc_call(a, &q, &future), 0);
    assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), MUSTER_ECLOSED);
    assert_int_equal(muster_rpc_future_kind(future), MUSTER_RPC_SHUT_DOWN);
    if (strstr(muster_rpc_future_errmsg(future), "goodbye") == NULL) {
        fail_msg("it does not say why: %s", muster_rpc_future_errmsg(future));
    }
    muster_rpc_future_free(future);
    assert_true(now_ms() - begun < 5000);
}

static void check_goodbye(muster_rpc_agent *first, const char *to)
{
    char address[128];

    assert_int_equal(call(first, to, "t::T.echo"), 0); /* It dials. */
    (void)snprintf(address, sizeof(address), "%s", muster_rpc_address(b));
    muster_rpc_shutdown(b);
    b = NULL;
    for (int i = 0; i < 3; i++) {
        check_gone("b");
    }
    /* One that is started anew is found. */
    b = start_agent("b", 1, address);
    assert_int_equal(call(a, "b", "t::T.echo"), 0);
    muster_rpc_shutdown(b);
    b = NULL;
    check_gone("b");
}

static void test_rpc_call_to_one_that_said_goodbye_fails_at_once(void **state)
{
    (void)state;
    check_goodbye(a, "b");
}

static void test_rpc_call_to_one_that_dialled_and_said_goodbye_fails_at_once(void **state)
{
    (void)state;
    check_goodbye(b, "a");
}

/* --- devices ---------------------------------------------------------------------------------- */

static void test_rpc_memory_is_no_device_that_can_be_mapped(void **state)
{
    static const struct muster_rpc_device_pair bad[] = {{0, -1}, {-1, 0}, {-1, -1}, {0, -7}};
    static const struct muster_rpc_device_pair good = {0, 3};
    struct muster_rpc_device_pair got = {0};

    (void)state;
    assert_int_equal(muster_rpc_set_device_map(a, "b", &good, 1), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(muster_rpc_set_device_map(a, "b", &bad[i], 1), MUSTER_EINVAL);
    }
    assert_int_equal(muster_rpc_set_device_map(a, "", &good, 1), MUSTER_EINVAL);
    /* What was refused has changed nothing; what is on a device goes there and comes back. */
    assert_int_equal(muster_rpc_device_map(a, "b", &got, 1), 1);
    assert_int_equal(got.remote, 3);
    assert_int_equal(muster_rpc_set_device_map(a, "b", NULL, 0), 0);
    assert_int_equal(muster_rpc_device_map(a, "b", &got, 1), 0);
}

static void test_rpc_devices_are_those_set_or_those_mapped(void **state)
{
    static const struct muster_rpc_device_pair to_b[] = {{5, 0}, {2, 1}};
    static const struct muster_rpc_device_pair to_c[] = {{2, 9}, {4, 8}};
    static const int32_t devices[] = {7, 1};
    static const int32_t twice[] = {1, 1};
    static const int32_t negative[] = {0, -1};
    int32_t got[4] = {0};

    (void)state;
    assert_int_equal(muster_rpc_devices(a, got, 4), 0);
    assert_int_equal(muster_rpc_set_device_map(a, "b", to_b, 2), 0);
    assert_int_equal(muster_rpc_set_device_map(a, "c", to_c, 2), 0);
    assert_int_equal(muster_rpc_devices(a, got, 2), 3);
    assert_int_equal(got[0], 2);
    assert_int_equal(got[1], 4);
    assert_int_equal(got[2], 0);
    assert_int_equal(muster_rpc_set_devices(a, twice, 2), MUSTER_EEXIST);
    assert_int_equal(muster_rpc_set_devices(a, negative, 2), MUSTER_EINVAL);
    assert_int_equal(muster_rpc_set_devices(a, devices, 2), 0);
    assert_int_equal(muster_rpc_devices(a, got, 4), 2);
    assert_int_equal(got[0], 1);
    assert_int_equal(got[1], 7);
    assert_int_equal(muster_rpc_set_devices(a, NULL, 0), 0);
    assert_int_equal(muster_rpc_devices(a, NULL, 0), 3);
}

#define WITH_TWO(test) cmocka_unit_test_setup_teardown(test, open_two, close_two)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_TWO(test_rpc_current_agent_is_none_after_its_shutdown),
        WITH_TWO(test_rpc_method_is_a_namespace_a_service_and_a_method),
        WITH_TWO(test_rpc_call_to_one_that_said_goodbye_fails_at_once),
        WITH_TWO(test_rpc_call_to_one_that_dialled_and_said_goodbye_fails_at_once),
        WITH_TWO(test_rpc_memory_is_no_device_that_can_be_mapped),
        WITH_TWO(test_rpc_devices_are_those_set_or_those_mapped),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

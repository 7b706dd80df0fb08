/* What a worker is started with. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/alloc.h"
#include "failheap.h"
#include "service/agent/env.h"

static const char *const around[] = {
    "HOME=/root", "RANK=99", "PATH=/bin", "EMPTY=", "MUSTER_NOTIFY_FD=9", "MUSTER_VAULTS=9", NULL};

/* Agent 1 of two, with two workers each. */
static struct mu_agent_env sample(void)
{
    return (struct mu_agent_env){
        .inherited = around,
        .role = "default",
        .run_id = "job7",
        .workers = 2,
        .restarts_max = 3,
        .restart_count = 1,
        .round = 5,
        .group_rank = 1,
        .group_world = 2,
        .ranks = {2, 4, 2, 4},
        .master_addr = "node0",
        .master_port = 36717,
        .use_agent_store = true,
        .signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        .grace_ms = 30000,
        .notify_fd = 3,
    };
}

static const char *const *build(const struct mu_agent_env *e, uint32_t local_rank)
{
    const char *const *envp = NULL;
    struct mu_errmsg msg;

    assert_int_equal(mu_agent_env_build(e, local_rank, "/logs/0/error.json", &envp, &msg), 0);
    return envp;
}

static void assert_variable(const char *const *envp, const char *name, const char *expected)
{
    const char *value = mu_agent_env_get(envp, name);

    if (expected == NULL ? value != NULL : value == NULL || strcmp(value, expected) != 0) {
        fail_msg("%s is \"%s\", not \"%s\"", name, value == NULL ? "(unset)" : value,
                 expected == NULL ? "(unset)" : expected);
    }
}

static void free_list(const char *const *list)
{
    mu_free((void *)(uintptr_t)list);
}

static void test_agent_env_has_all_that_torchrun_gives(void **state)
{
    static const struct {
        const char *name, *value;
    } expected[] = {
        {"LOCAL_RANK", "1"},
        {"RANK", "3"},
        {"GROUP_RANK", "1"},
        {"ROLE_RANK", "3"},
        {"ROLE_NAME", "default"},
        {"LOCAL_WORLD_SIZE", "2"},
        {"WORLD_SIZE", "4"},
        {"GROUP_WORLD_SIZE", "2"},
        {"ROLE_WORLD_SIZE", "4"},
        {"MASTER_ADDR", "node0"},
        {"MASTER_PORT", "36717"},
        {"TORCHELASTIC_RESTART_COUNT", "1"},
        {"TORCHELASTIC_MAX_RESTARTS", "3"},
        {"TORCHELASTIC_RUN_ID", "job7"},
        {"TORCHELASTIC_USE_AGENT_STORE", "True"},
        {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
        {"TORCHELASTIC_SIGNALS_TO_HANDLE", "SIGTERM,SIGINT,SIGHUP,SIGQUIT"},
        {"TORCHELASTIC_ERROR_FILE", "/logs/0/error.json"},
        {"OMP_NUM_THREADS", "1"},
        {"MUSTER_ROUND", "5"},
        {"MUSTER_GRACE", "30"},
        {"MUSTER_NOTIFY_FD", "3"},
        {"PYTHONFAULTHANDLER", "1"},
        {"HOME", "/root"},
        {"PATH", "/bin"},
        {"EMPTY", ""},
    };
    struct mu_agent_env e = sample();
    const char *const *envp = build(&e, 1);
    size_t count = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        assert_variable(envp, expected[i].name, expected[i].value);
    }
    while (envp[count] != NULL) {
        count++;
    }
    assert_int_equal(count, sizeof(expected) / sizeof(expected[0])); /* and nothing twice */
    free_list(envp);
    e.vaults = "1,1000";
    envp = build(&e, 1);
    assert_variable(envp, "MUSTER_VAULTS", "1,1000");
    free_list(envp);
}

static void test_agent_env_keeps_what_the_user_has_set(void **state)
{
    static const char *const set[] = {"OMP_NUM_THREADS=8", "NCCL_ASYNC_ERROR_HANDLING=0",
                                      "TORCH_NCCL_ASYNC_ERROR_HANDLING=3", NULL};
    struct mu_agent_env e = sample();
    const char *const *envp;

    (void)state;
    e.inherited = set;
    e.use_agent_store = false;
    e.notify_fd = -1;
    e.grace_ms = 250;
    envp = build(&e, 0);
    assert_variable(envp, "OMP_NUM_THREADS", "8");
    assert_variable(envp, "NCCL_ASYNC_ERROR_HANDLING", "0");
    assert_variable(envp, "TORCH_NCCL_ASYNC_ERROR_HANDLING", "3");
    assert_variable(envp, "TORCHELASTIC_USE_AGENT_STORE", "False");
    assert_variable(envp, "MUSTER_NOTIFY_FD", NULL);
    assert_variable(envp, "MUSTER_GRACE", "0.25");
    free_list(envp);
}

static void test_agent_env_has_flight_recorders_listen(void **state)
{
    static const char *const others[] = {"TORCH_FR_BUFFER_SIZE=50",
                                         "TORCH_FR_DUMP_TEMP_FILE=/x/d",
                                         "TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/x/p",
                                         "TORCH_NCCL_DUMP_ON_TIMEOUT=0",
                                         "PYTHONFAULTHANDLER=",
                                         NULL};
    static const char *const older[] = {"TORCH_NCCL_TRACE_BUFFER_SIZE=7", NULL};
    static const char *const none[] = {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE=", NULL};
    struct mu_agent_env e = sample();
    struct mu_agent_env_flight flight;
    const char *const *envp;

    (void)state;
    e.flight = "/tmp/f-";
    envp = build(&e, 1);
    assert_variable(envp, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "/tmp/f-");
    assert_variable(envp, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "/tmp/f-");
    assert_variable(envp, "TORCH_NCCL_TRACE_BUFFER_SIZE", "2000");
    assert_variable(envp, "TORCH_NCCL_DUMP_ON_TIMEOUT", "1");
    free_list(envp);
    flight = mu_agent_env_flight(e.inherited, e.flight);
    assert_string_equal(flight.pipe, "/tmp/f-");
    assert_null(flight.dumps[0]);
    assert_string_equal(flight.dumps[1], "/tmp/f-");

    e.flight_renamed = true;
    envp = build(&e, 1);
    assert_variable(envp, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "/tmp/f-");
    assert_variable(envp, "TORCH_FR_DUMP_TEMP_FILE", "/tmp/f-");
    assert_variable(envp, "TORCH_FR_BUFFER_SIZE", "2000");
    assert_variable(envp, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", NULL);
    assert_variable(envp, "TORCH_NCCL_TRACE_BUFFER_SIZE", NULL);
    free_list(envp);
    e.inherited = older;
    envp = build(&e, 1);
    assert_variable(envp, "TORCH_NCCL_TRACE_BUFFER_SIZE", "7");
    assert_variable(envp, "TORCH_FR_BUFFER_SIZE", NULL);
    free_list(envp);
    e.flight_renamed = false;

    e.inherited = others; /* under the names of later versions */
    envp = build(&e, 1);
    assert_variable(envp, "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "/x/p");
    assert_variable(envp, "TORCH_NCCL_DEBUG_INFO_TEMP_FILE", NULL);
    assert_variable(envp, "TORCH_FR_DUMP_TEMP_FILE", "/x/d");
    assert_variable(envp, "TORCH_NCCL_TRACE_BUFFER_SIZE", NULL);
    assert_variable(envp, "TORCH_NCCL_DUMP_ON_TIMEOUT", "0");
    assert_variable(envp, "PYTHONFAULTHANDLER", "");
    free_list(envp);
    flight = mu_agent_env_flight(e.inherited, e.flight);
    assert_string_equal(flight.pipe, "/x/p");
    assert_string_equal(flight.dumps[0], "/x/d");

    e.inherited = none; /* an empty path turns it off, as in PyTorch */
    envp = build(&e, 1);
    assert_variable(envp, "TORCH_NCCL_TRACE_BUFFER_SIZE", NULL);
    free_list(envp);
    assert_null(mu_agent_env_flight(e.inherited, e.flight).pipe);
    assert_null(mu_agent_env_flight(others, NULL).pipe);
}

static void test_agent_env_limits_threads_only_where_workers_share_a_node(void **state)
{
    struct mu_agent_env e = sample();
    const char *const *envp;

    (void)state;
    e.workers = 1;
    envp = build(&e, 0);
    assert_variable(envp, "OMP_NUM_THREADS", NULL);
    free_list(envp);
}

static void test_agent_env_grace_is_short_and_exact(void **state)
{
    static const struct {
        uint64_t ms;
        const char *text;
    } cases[] = {{0, "0"}, {1, "0.001"}, {10000, "10"}, {1500, "1.5"}, {100000, "100"}};
    struct mu_agent_env e = sample();

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const char *const *envp;

        e.grace_ms = cases[i].ms;
        envp = build(&e, 0);
        assert_variable(envp, "MUSTER_GRACE", cases[i].text);
        free_list(envp);
    }
}

static void test_agent_env_virtual_local_rank_shows_one_device_each(void **state)
{
    static const char *const listed[] = {"CUDA_VISIBLE_DEVICES=4, 6 ,GPU-1", NULL};
    static const char *const devices[] = {"4", "6", "GPU-1"};
    struct mu_agent_env e = sample();
    const char *const *envp;
    struct mu_errmsg msg;

    (void)state;
    e.workers = 3;
    e.virtual_local_rank = true;
    e.inherited = listed;
    for (uint32_t i = 0; i < 3; i++) {
        envp = build(&e, i);
        assert_variable(envp, "LOCAL_RANK", "0");
        assert_variable(envp, "CUDA_VISIBLE_DEVICES", devices[i]);
        assert_variable(envp, "LOCAL_WORLD_SIZE", "3");
        free_list(envp);
    }
    assert_int_equal(mu_agent_env_build(&e, 3, "", &envp, &msg), MUSTER_EINVAL);
    assert_string_equal(msg.text, "CUDA_VISIBLE_DEVICES names 3 devices, but worker 3 needs one of "
                                  "its own (--virtual-local-rank)");
    e.inherited = around;
    envp = build(&e, 2);
    assert_variable(envp, "CUDA_VISIBLE_DEVICES", "2");
    free_list(envp);
}

static void test_agent_argv_replaces_the_local_rank_as_a_template(void **state)
{
    static const char *const argv[] = {"python$$",
                                       "--rank=${local_rank}",
                                       "$local_rank",
                                       "$local_rank_2",
                                       "${local_rank",
                                       "$${local_rank}",
                                       "a$b$",
                                       "${other} $$ $",
                                       "",
                                       "${local_rank}${local_rank}x",
                                       "$local_rank.log",
                                       NULL};
    static const char *const expected[] = {
        "python$$", "--rank=12",    "12", "$local_rank_2", "${local_rank", "${local_rank}",
        "a$b$",     "${other} $ $", "",   "1212x",         "12.log",       NULL};
    const char *const *args;

    (void)state;
    assert_int_equal(mu_agent_argv_build(argv, 12, &args), 0);
    for (size_t i = 0; expected[i] != NULL; i++) {
        assert_string_equal(args[i], expected[i]);
    }
    assert_null(args[11]);
    free_list(args);
}

static void test_agent_env_without_memory_fails_and_leaves_nothing(void **state)
{
    struct mu_agent_env e = sample();
    const char *const *list;
    struct mu_errmsg msg;
    bool fired = true;

    (void)state;
    for (long nth = 0; fired; nth++) {
        int err;

        failheap_arm(nth);
        err = mu_agent_env_build(&e, 0, "x", &list, &msg);
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
        if (err == 0) {
            free_list(list);
        }
    }
    fired = true;
    for (long nth = 0; fired; nth++) {
        int err;

        failheap_arm(nth);
        err = mu_agent_argv_build(around, 0, &list);
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
        if (err == 0) {
            free_list(list);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agent_env_has_all_that_torchrun_gives),
        cmocka_unit_test(test_agent_env_keeps_what_the_user_has_set),
        cmocka_unit_test(test_agent_env_has_flight_recorders_listen),
        cmocka_unit_test(test_agent_env_limits_threads_only_where_workers_share_a_node),
        cmocka_unit_test(test_agent_env_grace_is_short_and_exact),
        cmocka_unit_test(test_agent_env_virtual_local_rank_shows_one_device_each),
        cmocka_unit_test(test_agent_argv_replaces_the_local_rank_as_a_template),
        cmocka_unit_test(test_agent_env_without_memory_fails_and_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * Every struct that begins with its size, as programs of other versions have it: a shorter one, a
 * longer one, and one whose size nobody wrote. Each is given to a function that takes it.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <muster/muster.h>

#define EXTRA   64   /* bytes that a later version has beyond ours */
#define GARBAGE 0xa5 /* what a program has behind a shorter struct */

static muster_runtime *rt;
static muster_store *store;
static muster_rpc_agent *agent;
static muster_state *swarm;
static muster_progress *progress;
static muster_average *average;
static muster_rdzv *closed_run;

/* --- what is asked of a struct ---------------------------------------------------------------- */

/*
 * Each fills in what is needed, within the bytes that the shorter struct has, and gives it to a
 * function. If the library read the garbage behind those bytes, that would be refused or crash.
 */

static int use_lock(void *it)
{
    struct muster_runtime_config config = muster_runtime_config_defaults();
    muster_runtime *other;
    int err;

    config.lock = it;
    err = muster_runtime_new_with(&config, &other);
    if (err == 0) {
        muster_runtime_free(other);
    }
    return err;
}

static int use_runtime_config(void *it)
{
    muster_runtime *other;
    int err = muster_runtime_new_with(it, &other);

    if (err == 0) {
        muster_runtime_free(other);
    }
    return err;
}

static int use_store_config(void *it)
{
    struct muster_store_config *config = it;
    muster_store *opened;
    int err;

    config->timeout_ms = 1234;
    err = muster_store_open(rt, "hash:", config, &opened);
    if (err == 0) {
        assert_int_equal(muster_store_timeout(opened), 1234);
        muster_store_close(opened);
    }
    return err;
}

static int use_store_request(void *it)
{
    struct muster_store_request *request = it;
    muster_op *op;
    int err;

    request->verb = MUSTER_STORE_NUM_KEYS;
    request->flags = 0;
    err = muster_store_submit(store, request, &op);
    if (err == 0) {
        err = muster_op_wait(op);
        muster_op_free(op);
    }
    return err;
}

static int use_server_config(void *it)
{
    struct muster_server_config *config = it;
    muster_server *server;
    int err;

    config->listen = "127.0.0.1:0";
    err = muster_server_start(rt, config, &server);
    if (err == 0) {
        muster_server_free(server);
    }
    return err;
}

static int use_rdzv_params(void *it)
{
    struct muster_rdzv_params *params = it;
    int64_t number;
    bool yes;
    int err;

    params->endpoint = "127.0.0.1:29400";
    params->run_id = "job";
    err = muster_rdzv_params_check(params);
    /* The rest of those that take parameters. */
    assert_int_equal(muster_rdzv_config_int(params, "n", 7, &number), err);
    assert_int_equal(muster_rdzv_config_bool(params, "b", true, &yes), err);
    assert_true(muster_rdzv_config_text(params, "t", "x").len == 1);
    params->backend = "no such backend";
    assert_int_equal(muster_rdzv_open(rt, params, &(muster_rdzv *){NULL}),
                     err == 0 ? MUSTER_ENOENT : err);
    params->backend = "muster";
    return err != 0 ? muster_rdzv_params_check(params) : 0; /* for its text */
}

static int use_rdzv_ops(void *it)
{
    muster_rdzv *rdzv;

    return muster_rdzv_new("mine", "job", it, NULL, &rdzv);
}

static int use_rpc_config(void *it)
{
    struct muster_rpc_config *config = it;
    muster_rpc_agent *started;
    int err;

    config->name = "short";
    config->id = 3;
    err = muster_rpc_start(rt, config, &started);
    if (err == 0) {
        assert_int_equal(muster_rpc_timeout(started), 60000);
        assert_non_null(strstr(muster_rpc_address(started), "127.0.0.1:"));
        muster_rpc_shutdown(started);
    }
    return err;
}

static int use_rpc_request(void *it)
{
    struct muster_rpc_request *request = it;
    muster_rpc_future *future = NULL;
    muster_rpc_stream *stream = NULL;
    muster_rref *rref = NULL;
    int err;

    request->to = "nobody";
    request->to_id = -1;
    request->method = "t::T.none";
    err = muster_rpc_call(agent, request, &future);
    if (err == 0) {
        assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), MUSTER_EWORKER);
        muster_rpc_future_free(future);
    } else {
        assert_int_equal(muster_rref_remote(agent, request, &rref), err);
    }
    assert_int_equal(muster_rpc_stream_open(agent, request, &stream), err);
    muster_rpc_stream_close(stream);
    return err;
}

static int use_rpc_retry(void *it)
{
    struct muster_rpc_request request = muster_rpc_request_defaults();
    struct muster_rpc_retry *retry = it;
    muster_rpc_future *future;
    int err;

    retry->retries_max = 1;
    request.to = "nobody";
    request.method = "t::T.none";
    request.flags = MUSTER_RPC_RETRY;
    request.retry = retry;
    err = muster_rpc_call(agent, &request, &future);
    if (err == 0) {
        assert_int_equal(muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER), MUSTER_EWORKER);
        muster_rpc_future_free(future);
    }
    return err;
}

static int use_rpc_following(void *it)
{
    return muster_rpc_follow(agent, closed_run, it);
}

static int use_state_config(void *it)
{
    struct muster_state_config *config = it;
    muster_state *opened;
    int err;

    config->listen = "127.0.0.1:0";
    err = muster_state_open(rt, config, &opened);
    if (err == 0) {
        muster_state_close(opened);
    }
    return err;
}

static int use_state_source(void *it)
{
    struct muster_state_source *source = it;

    source->prefix = "a.prefix.with.dots"; /* which a swarm refuses */
    return muster_state_share_file(swarm, "/nonexistent/file", source);
}

static int use_state_request(void *it)
{
    struct muster_state_request *request = it;
    int err;

    request->prefix = "";
    err = muster_state_list(rt, request, NULL, 0);
    if (err == MUSTER_EINVAL) {
        assert_int_equal(muster_state_load(rt, request, NULL), err);
        assert_int_equal(muster_progress_catch_up(progress, NULL, request, NULL), err);
    }
    return err;
}

static int use_state_keep_request(void *it)
{
    return muster_state_keep(it);
}

static int use_average_config(void *it)
{
    static const uint64_t shape[] = {2};
    static float values[2];
    static struct muster_tensor tensor = {
        .name = "t", .dtype = MUSTER_DTYPE_F32, .rank = 1, .shape = shape, .data = values};
    struct muster_average_config *config = it;
    muster_average *opened;
    int err;

    config->prefix = "sized";
    config->tensors = &tensor;
    config->tensor_count = 1;
    err = muster_average_open(rt, config, &opened);
    if (err == 0) {
        muster_average_close(opened);
    }
    return err;
}

static int use_average_request(void *it)
{
    struct muster_average_request *request = it;
    int err;

    request->weight = 2;
    err = muster_average_begin(average, request);
    if (err == 0) {
        muster_average_cancel(average);
        assert_int_equal(muster_average_end(average, NULL), MUSTER_ECANCELED);
    }
    return err;
}

static int use_progress_config(void *it)
{
    struct muster_progress_config *config = it;

    config->run = "run";
    config->batch = 100;
    return muster_progress_open(swarm, config, &(muster_progress *){NULL});
}

static int use_progress_hooks(void *it)
{
    struct muster_state_request request = muster_state_request_defaults();
    struct muster_progress_hooks *hooks = it;

    hooks->join_round_with_zero_weight = NULL;
    request.prefix = NULL; /* so the load is refused after the hooks */
    return muster_progress_catch_up(progress, hooks, &request, NULL);
}

/* --- the table -------------------------------------------------------------------------------- */

/* A function that is known by a pointer to its own struct, called with one to any. */
#define INIT(name)                                                                                 \
    static void init_##name(void *it, size_t size)                                                 \
    {                                                                                              \
        muster_##name##_init(it, size);                                                            \
    }
#define SIZED(X)                                                                                   \
    X(lock, cert, 0, NULL)                                                                         \
    X(runtime_config, lock, 0, NULL)                                                               \
    X(store_config, connect_timeout_ms, 0, NULL)                                                   \
    X(store_request, keys, 0, NULL)                                                                \
    X(server_config, data_dir, 0, NULL)                                                            \
    X(rdzv_params, nodes_min, 0, NULL)                                                             \
    X(rdzv_ops, set_closed, MUSTER_EINVAL, "all ops")                                              \
    X(rpc_config, listen, 0, NULL)                                                                 \
    X(rpc_request, parts, 0, NULL)                                                                 \
    X(rpc_retry, duration_ms, 0, NULL)                                                             \
    X(rpc_following, context, 0, NULL)                                                             \
    X(state_config, key, 0, NULL)                                                                  \
    X(state_source, epoch, MUSTER_ENOENT_OF_SYSTEM, "/nonexistent/file")                           \
    X(state_request, donors, 0, NULL)                                                              \
    X(state_keep_request, metadata, MUSTER_ENOTSUP, "nothing keeps states here")                   \
    X(average_config, described, 0, NULL)                                                          \
    X(average_request, timeout_ms, 0, NULL)                                                        \
    X(progress_config, epoch, MUSTER_EBUSY, "")                                                    \
    X(progress_hooks, await_pending_updates, MUSTER_EINVAL, "prefix")
#define MUSTER_ENOENT_OF_SYSTEM (-2)

#define INIT_OF(name, ...) INIT(name)
SIZED(INIT_OF)

static const struct sized {
    const char *name;
    size_t size;
    size_t shorter; /* where the first field is that a shorter struct lacks */
    void (*init)(void *it, size_t size);
    int (*use)(void *it);
    int status;        /* what using it returns, ... */
    const char *words; /* ... and says */
} all[] = {
#define ROW(name, lacks, status, words)                                                            \
    {"muster_" #name,                                                                              \
     sizeof(struct muster_##name),                                                                 \
     offsetof(struct muster_##name, lacks),                                                        \
     init_##name,                                                                                  \
     use_##name,                                                                                   \
     status,                                                                                       \
     words},
    SIZED(ROW)};

/* Uses the struct, which must work as it does with our own size. */
static void must_work(const struct sized *s, void *it, const char *what)
{
    int err = s->use(it);

    if (err != s->status || (s->words != NULL && strstr(muster_errmsg(), s->words) == NULL)) {
        fail_msg("%s, %s: %d, %s", s->name, what, err, err == 0 ? "" : muster_errmsg());
    }
}

/* Uses the struct, which must be refused with its name and these words. */
static void must_be_refused(const struct sized *s, void *it, const char *words)
{
    int err = s->use(it);

    if (err != MUSTER_EINVAL || strstr(muster_errmsg(), words) == NULL ||
        strstr(muster_errmsg(), s->name) == NULL) {
        fail_msg("%s, which should be refused with \"%s\": %d, %s", s->name, words, err,
                 err == 0 ? "" : muster_errmsg());
    }
}

#define EACH(s) for (const struct sized *s = all; s < all + sizeof(all) / sizeof(all[0]); s++)

/* A struct in a place of its own, with garbage behind it; freed with free(). */
static void *make(const struct sized *s, size_t size)
{
    char *it = malloc(s->size + EXTRA);

    assert_non_null(it);
    memset(it, GARBAGE, s->size + EXTRA);
    s->init(it, size);
    return it;
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_sized_defaults_fill_all_and_nothing_beyond(void **state)
{
    (void)state;
    EACH(s)
    {
        for (size_t size = 0; size <= s->size + EXTRA; size++) {
            unsigned char *it = make(s, size);
            size_t told;

            for (size_t i = size; i < s->size + EXTRA; i++) {
                assert_int_equal(it[i], GARBAGE);
            }
            for (size_t i = s->size; i < size; i++) {
                assert_int_equal(it[i], 0);
            }
            memcpy(&told, it, sizeof(told));
            if (size >= sizeof(told)) {
                assert_int_equal(told, size);
            }
            free(it);
        }
    }
}

static void test_sized_struct_of_this_version_works(void **state)
{
    (void)state;
    EACH(s)
    {
        void *it = make(s, s->size);

        must_work(s, it, "as it is");
        free(it);
    }
}

static void test_sized_shorter_struct_has_the_defaults_for_the_rest(void **state)
{
    (void)state;
    EACH(s)
    {
        void *it = make(s, s->shorter);

        /* One has a single field, and no struct is without any. */
        if (s->shorter > sizeof(size_t)) {
            void *exact = malloc(s->shorter); /* so that a sanitizer sees who reads on */

            must_work(s, it, "shorter");
            assert_non_null(exact);
            memcpy(exact, it, s->shorter);
            must_work(s, exact, "shorter");
            free(exact);
        }
        free(it);
    }
}

static void test_sized_longer_struct_works_if_the_rest_is_zero(void **state)
{
    (void)state;
    EACH(s)
    {
        char *it = make(s, s->size + EXTRA);

        must_work(s, it, "longer");
        it[s->size + EXTRA - 1] = 1;
        must_be_refused(s, it, "newer version of the library");
        it[s->size + EXTRA - 1] = 0;
        it[s->size] = 1;
        must_be_refused(s, it, "newer version of the library");
        free(it);
    }
}

static void test_sized_struct_without_its_size_is_refused(void **state)
{
    static const size_t sizes[] = {0, 1, sizeof(size_t), 2 * sizeof(size_t) - 1, 4097, SIZE_MAX};
    char remedy[96];

    (void)state;
    EACH(s)
    {
        char *it = make(s, s->size);

        (void)snprintf(remedy, sizeof(remedy), "make it with %s_defaults()", s->name);
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            memcpy(it, &sizes[i], sizeof(sizes[i]));
            must_be_refused(s, it, remedy);
        }
        free(it);
    }
}

static void test_sized_struct_that_is_missing_is_refused(void **state)
{
    muster_op *op;
    muster_rpc_future *future;

    (void)state;
    assert_int_equal(muster_store_submit(store, NULL, &op), MUSTER_EINVAL);
    assert_non_null(strstr(muster_errmsg(), "muster_store_request_defaults()"));
    assert_int_equal(muster_rpc_call(agent, NULL, &future), MUSTER_EINVAL);
    assert_non_null(strstr(muster_errmsg(), "muster_rpc_request_defaults()"));
}

static void test_sized_defaults_are_those_that_the_headers_tell(void **state)
{
    (void)state;
    assert_int_equal(muster_store_config_defaults().timeout_ms, 300000);
    assert_int_equal(muster_store_config_defaults().connect_timeout_ms, 300000);
    assert_int_equal(muster_store_request_defaults().timeout_ms, MUSTER_TIMEOUT_DEFAULT);
    assert_string_equal(muster_rdzv_params_defaults().backend, "muster");
    assert_int_equal(muster_rdzv_params_defaults().nodes_min, 1);
    assert_int_equal(muster_rdzv_params_defaults().nodes_max, 1);
    assert_int_equal(muster_rpc_config_defaults().id, -1);
    assert_int_equal(muster_rpc_config_defaults().connect_timeout_ms, 10000);
    assert_int_equal(muster_rpc_config_defaults().reconnect_timeout_ms, 5000);
    assert_int_equal(muster_rpc_request_defaults().to_id, -1);
    assert_int_equal(muster_rpc_request_defaults().timeout_ms, MUSTER_TIMEOUT_DEFAULT);
    assert_int_equal(muster_rpc_retry_defaults().retries_max, 5);
    assert_int_equal(muster_rpc_following_defaults().timeout_ms, MUSTER_TIMEOUT_NEVER);
    assert_int_equal(muster_state_request_defaults().timeout_ms, 600000);
    assert_string_equal(muster_state_request_defaults().prefix, "");
    assert_int_equal(muster_progress_config_defaults().look_ms, 10000);
    assert_int_equal(muster_average_config_defaults().part_bytes, 524288);
    assert_int_equal(muster_average_config_defaults().size_min, 2);
    assert_int_equal(muster_average_config_defaults().matchmaking_ms, 5000);
    assert_int_equal(muster_average_config_defaults().request_ms, 3000);
    assert_int_equal(muster_average_config_defaults().sender_ms, 15000);
    assert_int_equal(muster_average_config_defaults().reducer_ms, 30000);
    assert_int_equal(muster_average_config_defaults().reduce_ms, 60000);
    assert_int_equal(muster_average_request_defaults().timeout_ms, 120000);
}

static void test_sized_reserved_bytes_of_a_tensor_are_refused(void **state)
{
    struct muster_state_source source = muster_state_source_defaults();
    uint64_t number = 0;
    struct muster_tensor tensor = {.name = "t", .dtype = MUSTER_DTYPE_U64, .data = &number};

    (void)state;
    source.prefix = "reserved";
    source.tensors = &tensor;
    source.tensor_count = 1;
    for (size_t i = 0; i < 2; i++) {
        tensor.reserved[i] = &number;
        assert_int_equal(muster_state_share(swarm, &source), MUSTER_EINVAL);
        assert_non_null(strstr(muster_errmsg(), "reserved"));
        tensor.reserved[i] = NULL;
    }
    assert_int_equal(muster_state_share(swarm, &source), 0);
    assert_int_equal(muster_state_unshare(swarm, "reserved", 0), 0);
}

/* --- what they need --------------------------------------------------------------------------- */

static int next_is_closed(void *context, struct muster_rdzv_info *ret_info)
{
    (void)context;
    (void)ret_info;
    return MUSTER_ERDZV_CLOSED;
}

static int is_closed(void *context, bool *ret_closed)
{
    (void)context;
    *ret_closed = true;
    return 0;
}

static int set_closed(void *context)
{
    (void)context;
    return 0;
}

static int nobody_waits(void *context, uint32_t *ret_count)
{
    (void)context;
    *ret_count = 0;
    return 0;
}

static bool shut_down(void *context)
{
    (void)context;
    return true;
}

static void close_run(void *context)
{
    (void)context;
}

static int open_all(void **state)
{
    struct muster_rpc_config rpc = muster_rpc_config_defaults();
    struct muster_state_config config = muster_state_config_defaults();
    struct muster_progress_config track = muster_progress_config_defaults();
    struct muster_rdzv_ops ops = muster_rdzv_ops_defaults();
    struct muster_average_config mean = muster_average_config_defaults();
    static float value;

    (void)state;
    assert_int_equal(muster_runtime_new(&rt), 0);
    assert_int_equal(muster_store_open(rt, "hash:", NULL, &store), 0);
    rpc.name = "worker";
    rpc.id = 0;
    rpc.listen = NULL;
    assert_int_equal(muster_rpc_start(rt, &rpc, &agent), 0);
    config.listen = "/ip4/127.0.0.1/tcp/0";
    config.key = "";
    config.dht = (const char *const[]){NULL};
    assert_int_equal(muster_state_open(rt, &config, &swarm), 0);
    track.run = "run";
    track.batch = 100;
    assert_int_equal(muster_progress_open(swarm, &track, &progress), 0);
    mean.prefix = "mean";
    mean.tensors = &(struct muster_tensor){.name = "t", .dtype = MUSTER_DTYPE_F32, .data = &value};
    mean.tensor_count = 1;
    mean.through = swarm;
    assert_int_equal(muster_average_open(rt, &mean, &average), 0);
    ops.next = next_is_closed;
    ops.is_closed = is_closed;
    ops.set_closed = set_closed;
    ops.num_nodes_waiting = nobody_waits;
    ops.shutdown = shut_down;
    ops.close = close_run;
    assert_int_equal(muster_rdzv_new("mine", "job", &ops, NULL, &closed_run), 0);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    muster_rdzv_close(closed_run);
    muster_progress_close(progress);
    muster_average_close(average);
    muster_state_close(swarm);
    muster_rpc_shutdown(agent);
    muster_store_close(store);
    muster_runtime_free(rt);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sized_defaults_fill_all_and_nothing_beyond),
        cmocka_unit_test(test_sized_struct_of_this_version_works),
        cmocka_unit_test(test_sized_shorter_struct_has_the_defaults_for_the_rest),
        cmocka_unit_test(test_sized_longer_struct_works_if_the_rest_is_zero),
        cmocka_unit_test(test_sized_struct_without_its_size_is_refused),
        cmocka_unit_test(test_sized_struct_that_is_missing_is_refused),
        cmocka_unit_test(test_sized_defaults_are_those_that_the_headers_tell),
        cmocka_unit_test(test_sized_reserved_bytes_of_a_tensor_are_refused),
    };

    return cmocka_run_group_tests(tests, open_all, close_all);
}

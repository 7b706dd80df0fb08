/* Groups of workers through a store: who may join, who is missing, what stays behind. Real threads,
 * real sockets, a server for each test. */
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

#define WORKERS 4

struct member {
    muster_rpc_agent *agent;
    muster_store *store;
    const char *group;
    uint32_t world;
    int64_t timeout_ms;
    int status;
    char text[256];
    pthread_t thread;
};

static muster_runtime *rt;
static muster_server *server;
static muster_store *looking; /* the test's own */
static struct member m[WORKERS];

static int open_server(void **state)
{
    struct muster_server_config config = muster_server_config_defaults();
    char url[128];

    (void)state;
    assert_int_equal(muster_runtime_new(&rt), 0);
    config.listen = "127.0.0.1:0";
    assert_int_equal(muster_server_start(rt, &config, &server), 0);
    (void)snprintf(url, sizeof(url), "tcp://%s", muster_server_address(server));
    assert_int_equal(muster_store_open(rt, url, NULL, &looking), 0);
    for (int i = 0; i < WORKERS; i++) {
        m[i] = (struct member){.group = "g", .world = WORKERS, .timeout_ms = 60000};
        assert_int_equal(muster_store_open(rt, url, NULL, &m[i].store), 0);
    }
    return 0;
}

static int close_server(void **state)
{
    (void)state;
    for (int i = 0; i < WORKERS; i++) {
        muster_rpc_shutdown(m[i].agent);
        muster_store_close(m[i].store);
    }
    muster_store_close(looking);
    muster_server_free(server);
    muster_runtime_free(rt);
    return 0;
}

static void start(struct member *w, const char *name, int32_t id)
{
    struct muster_rpc_config config = muster_rpc_config_defaults();

    config.name = name;
    config.id = id;
    config.listen = "127.0.0.1:0";
    assert_int_equal(muster_rpc_start(rt, &config, &w->agent), 0);
}

static void start_all(void)
{
    static const char *const names[WORKERS] = {"w0", "w1", "w2", "w3"};

    for (int i = 0; i < WORKERS; i++) {
        start(&m[i], names[i], i);
    }
}

static void *join(void *context)
{
    struct member *w = context;

    w->status = muster_rpc_join_group(w->agent, w->store, w->group, w->world, w->timeout_ms);
    (void)snprintf(w->text, sizeof(w->text), "%s", w->status == 0 ? "" : muster_errmsg());
    return NULL;
}

static void begin(struct member *w, void *(*run)(void *context))
{
    assert_int_equal(pthread_create(&w->thread, NULL, run, w), 0);
}

static void await(struct member *w)
{
    assert_int_equal(pthread_join(w->thread, NULL), 0);
}

static void join_all(void)
{
    for (int i = 0; i < WORKERS; i++) {
        begin(&m[i], join);
    }
    for (int i = 0; i < WORKERS; i++) {
        await(&m[i]);
        if (m[i].status != 0) {
            fail_msg("worker %d: %s", i, m[i].text);
        }
    }
}

static void says(const struct member *w, int status, const char *part)
{
    if (w->status != status || strstr(w->text, part) == NULL) {
        fail_msg("%s: %d, and not %d with \"%s\": %s", muster_rpc_name(w->agent), w->status, status,
                 part, w->text);
    }
}

static int64_t keys_left(void)
{
    int64_t count = -1;

    assert_int_equal(muster_store_num_keys(looking, &count, 20000), 0);
    return count;
}

static int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* --- joining ---------------------------------------------------------------------------------- */

static void test_rpc_two_workers_with_one_id_are_both_told_at_once(void **state)
{
    int64_t begun = now_ms();

    (void)state;
    start(&m[0], "first", 0);
    start(&m[1], "second", 0);
    start(&m[2], "third", 2);
    for (int i = 0; i < 3; i++) {
        m[i].world = 3;
        begin(&m[i], join);
    }
    for (int i = 0; i < 3; i++) {
        await(&m[i]);
        says(&m[i], MUSTER_EEXIST, "the id 0");
        assert_non_null(strstr(m[i].text, "first"));
        assert_non_null(strstr(m[i].text, "second"));
    }
    assert_true(now_ms() - begun < 30000); /* The timeout is 60 s. */
    assert_int_equal(muster_rpc_workers(m[0].agent, NULL, 0), 0);
}

static void test_rpc_late_worker_with_an_id_that_is_taken_harms_nobody(void **state)
{
    (void)state;
    start_all();
    join_all();
    muster_rpc_shutdown(m[3].agent);
    start(&m[3], "late", 1);
    (void)join(&m[3]);
    says(&m[3], MUSTER_EEXIST, "w1");
    assert_int_equal(muster_rpc_workers(m[0].agent, NULL, 0), WORKERS);
}

static void test_rpc_join_names_the_ids_that_are_missing(void **state)
{
    (void)state;
    start(&m[0], "w0", 0);
    start(&m[2], "w2", 2);
    m[0].timeout_ms = m[2].timeout_ms = 300;
    begin(&m[0], join);
    begin(&m[2], join);
    await(&m[0]);
    await(&m[2]);
    says(&m[0], MUSTER_ETIMEDOUT, "1 3");
    says(&m[2], MUSTER_ETIMEDOUT, "1 3");
    /* They may come again, to the places that they have. */
    assert_int_equal(keys_left(), 2);
    start(&m[1], "w1", 1);
    start(&m[3], "w3", 3);
    m[0].timeout_ms = m[2].timeout_ms = 60000;
    join_all();
}

static void test_rpc_join_checks_what_it_is_given(void **state)
{
    char group[130];

    (void)state;
    start(&m[0], "w0", 2);
    m[0].world = 2;
    (void)join(&m[0]);
    says(&m[0], MUSTER_EINVAL, "id");
    m[0].world = 4;
    m[0].group = "";
    (void)join(&m[0]);
    says(&m[0], MUSTER_EINVAL, "name");
    memset(group, 'g', 129);
    group[129] = '\0';
    m[0].group = group;
    (void)join(&m[0]);
    says(&m[0], MUSTER_EINVAL, "name");
    m[0].group = "g";
    m[0].timeout_ms = -2;
    (void)join(&m[0]);
    says(&m[0], MUSTER_EINVAL, "timeout");
    assert_int_equal(keys_left(), 0);
}

/* --- devices ---------------------------------------------------------------------------------- */

static void map(int from, const char *to, int32_t local, int32_t remote)
{
    struct muster_rpc_device_pair pair = {local, remote};

    assert_int_equal(muster_rpc_set_device_map(m[from].agent, to, &pair, 1), 0);
}

/* Everybody is told the same. */
static void nobody_joins(const char *first, const char *second)
{
    for (int i = 0; i < WORKERS; i++) {
        begin(&m[i], join);
    }
    for (int i = 0; i < WORKERS; i++) {
        await(&m[i]);
        says(&m[i], MUSTER_EINVAL, first);
        says(&m[i], MUSTER_EINVAL, second);
        assert_int_equal(muster_rpc_workers(m[i].agent, NULL, 0), 0);
    }
}

static void test_rpc_map_to_a_worker_that_is_not_there_is_refused_at_join(void **state)
{
    (void)state;
    start_all();
    map(2, "w7", 0, 0);
    nobody_joins("w2", "w7");
}

static void test_rpc_map_to_a_device_that_is_not_there_is_refused_at_join(void **state)
{
    static const int32_t two[] = {0, 1};

    (void)state;
    start_all();
    assert_int_equal(muster_rpc_set_devices(m[3].agent, two, 2), 0);
    map(0, "w3", 5, 1);
    map(1, "w3", 0, 2);
    nobody_joins("w1", "device 2");
}

static void test_rpc_map_from_a_device_that_is_not_there_is_refused_at_join(void **state)
{
    static const int32_t two[] = {0, 1};

    (void)state;
    start_all();
    assert_int_equal(muster_rpc_set_devices(m[0].agent, two, 2), 0);
    map(0, "w3", 5, 1);
    nobody_joins("w0", "device 5");
}

static void test_rpc_maps_of_others_tell_which_devices_we_have(void **state)
{
    int32_t got[4] = {0};

    (void)state;
    start_all();
    map(0, "w3", 1, 6);
    map(1, "w3", 1, 2);
    map(3, "w0", 4, 1);
    map(3, "w3", 9, 9); /* One's own are one's own. */
    assert_int_equal(muster_rpc_devices(m[3].agent, got, 4), 2);
    join_all();
    assert_int_equal(muster_rpc_devices(m[3].agent, got, 4), 4);
    assert_int_equal(got[0], 2);
    assert_int_equal(got[1], 4);
    assert_int_equal(got[2], 6);
    assert_int_equal(got[3], 9);
    assert_int_equal(muster_rpc_devices(m[2].agent, got, 4), 0);
}

#define WITH_SERVER(test) cmocka_unit_test_setup_teardown(test, open_server, close_server)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_SERVER(test_rpc_two_workers_with_one_id_are_both_told_at_once),
        WITH_SERVER(test_rpc_late_worker_with_an_id_that_is_taken_harms_nobody),
        WITH_SERVER(test_rpc_join_names_the_ids_that_are_missing),
        WITH_SERVER(test_rpc_join_checks_what_it_is_given),
        WITH_SERVER(test_rpc_map_to_a_worker_that_is_not_there_is_refused_at_join),
        WITH_SERVER(test_rpc_map_to_a_device_that_is_not_there_is_refused_at_join),
        WITH_SERVER(test_rpc_map_from_a_device_that_is_not_there_is_refused_at_join),
        WITH_SERVER(test_rpc_maps_of_others_tell_which_devices_we_have),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

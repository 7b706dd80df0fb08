/* Groups of workers through a store: who may join, who is missing, whose devices they name. */
#include "rpc_group_rig.h"

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
    m[0].timeout_ms = m[2].timeout_ms = 1500;
    begin(&m[0], join);
    begin(&m[2], join);
    await(&m[0]);
    await(&m[2]);
    says(&m[0], MUSTER_ETIMEDOUT, "1 3");
    says(&m[2], MUSTER_ETIMEDOUT, "1 3");
    /* The store's timeout is the default. */
    muster_store_set_timeout(m[0].store, 100);
    m[0].timeout_ms = MUSTER_TIMEOUT_DEFAULT;
    (void)join(&m[0]);
    says(&m[0], MUSTER_ETIMEDOUT, "1 3");
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
    m[0].timeout_ms = -3;
    (void)join(&m[0]);
    says(&m[0], MUSTER_EINVAL, "timeout");
    assert_int_equal(keys_left(), 0);
}

static void *live(void *context)
{
    struct member *w = context;

    (void)join(w);
    w->status = w->status != 0 ? w->status : muster_rpc_leave_group(w->agent, w->store, 60000);
    return NULL;
}

static void test_rpc_group_is_joined_and_left_through_any_store(void **state)
{
    char path[] = "/tmp/muster-rpc-group-XXXXXX";
    char urls[3][128] = {"hash:", "", "hash:?prefix=some"};
    int fd = mkstemp(path);

    (void)state;
    assert_true(fd >= 0);
    (void)snprintf(urls[1], sizeof(urls[1]), "file://%s", path);
    start(&m[0], "w0", 0);
    start(&m[1], "w1", 1);
    for (int i = 0; i < 3; i++) {
        muster_store *store = NULL;
        muster_store *kept[2] = {m[0].store, m[1].store};
        int64_t keys = -1;

        assert_int_equal(muster_store_open(rt, urls[i], NULL, &store), 0);
        for (int k = 0; k < 2; k++) {
            m[k].store = store;
            m[k].world = 2;
            begin(&m[k], live);
        }
        for (int k = 0; k < 2; k++) {
            await(&m[k]);
            m[k].store = kept[k];
            if (m[k].status != 0) {
                fail_msg("%s: %d %s", urls[i], m[k].status, m[k].text);
            }
        }
        assert_int_equal(muster_store_num_keys(store, &keys, 20000), 0);
        assert_int_equal(keys, 0);
        muster_store_close(store);
    }
    (void)close(fd);
    (void)unlink(path);
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
        WITH_SERVER(test_rpc_group_is_joined_and_left_through_any_store),
        WITH_SERVER(test_rpc_map_to_a_worker_that_is_not_there_is_refused_at_join),
        WITH_SERVER(test_rpc_map_to_a_device_that_is_not_there_is_refused_at_join),
        WITH_SERVER(test_rpc_map_from_a_device_that_is_not_there_is_refused_at_join),
        WITH_SERVER(test_rpc_maps_of_others_tell_which_devices_we_have),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

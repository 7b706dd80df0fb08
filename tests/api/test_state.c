/* States from peers: sharing and loading, with two runtimes in one process. */
#include "state_rig.h"

#include <stdatomic.h>
#include <unistd.h>

static muster_runtime *giver;
static muster_runtime *taker;

static int set_up(void **state)
{
    (void)state;
    return muster_runtime_new(&giver) != 0 || muster_runtime_new(&taker) != 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    muster_runtime_free(giver);
    muster_runtime_free(taker);
    return 0;
}

static struct muster_state_config local(void)
{
    struct muster_state_config config = muster_state_config_defaults();

    config.listen = "127.0.0.1:0";
    return config;
}

static struct muster_state_request from(const char *const *donors, size_t count)
{
    struct muster_state_request r = muster_state_request_defaults();

    r.prefix = "job";
    r.donors = donors;
    r.donor_count = count;
    r.timeout_ms = 30000;
    return r;
}

static void must(int err)
{
    if (err != 0) {
        fail_msg("%s\n%s", muster_errmsg(), muster_state_report());
    }
}

static void test_state_is_loaded_into_new_memory(void **state)
{
    struct muster_state_config config = local();
    struct muster_state_request r;
    const char *addr;
    struct model m;
    muster_state *donor;
    muster_state_copy *copy;

    (void)state;
    model_make(&m, 8, 1);
    donor = donor_open(giver, &config, &m, 12);
    addr = muster_state_address(donor);
    assert_string_equal(muster_state_transport(donor), "plain");
    r = from(&addr, 1);
    must(muster_state_load(taker, &r, &copy));
    copy_assert_same(copy, &m);
    assert_int_equal(muster_state_copy_info(copy)->epoch, 12);
    assert_int_equal(muster_state_copy_info(copy)->step, 7);
    assert_int_equal(muster_state_copy_info(copy)->bytes, model_bytes(&m));
    assert_int_equal(muster_state_copy_metadata(copy).len, 13);
    assert_int_equal(muster_state_copy_progress(copy)->bytes, model_bytes(&m));
    muster_state_copy_free(copy);
    muster_state_close(donor);
    model_free(&m);
}

static void test_state_is_loaded_in_place(void **state)
{
    struct muster_state_config config = local();
    struct muster_state_request r;
    const char *addr;
    struct model m;
    struct model mine;
    muster_state *donor;

    (void)state;
    model_make(&m, 5, 1);
    model_make(&mine, 5, 2);
    donor = donor_open(giver, &config, &m, 1);
    addr = muster_state_address(donor);
    r = from(&addr, 1);
    r.tensors = mine.tensors;
    r.tensor_count = 3;
    must(muster_state_load(taker, &r, NULL));
    model_assert_same(&m, &mine);
    muster_state_close(donor);
    model_free(&m);
    model_free(&mine);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(test_state_is_loaded_into_new_memory),
        CASE(test_state_is_loaded_in_place),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

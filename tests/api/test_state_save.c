/* States and files of our own, and how large a state may be that others offer. */
#include "state_rig.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

static muster_runtime *rt;
static char directory[64];
static char path[96];

static int set_up(void **state)
{
    (void)state;
    (void)snprintf(directory, sizeof(directory), "/tmp/muster-test-XXXXXX");
    if (mkdtemp(directory) == NULL) {
        return -1;
    }
    (void)snprintf(path, sizeof(path), "%s/model.safetensors", directory);
    return muster_runtime_new(&rt) != 0 ? -1 : 0;
}

static int tear_down(void **state)
{
    (void)state;
    rig_close_all();
    muster_runtime_free(rt);
    (void)unlink(path);
    (void)rmdir(directory);
    return 0;
}

static void must(int err)
{
    if (err != 0) {
        fail_msg("%s", muster_errmsg());
    }
}

static void test_what_was_saved_is_read_again(void **state)
{
    struct muster_bytes metadata = {"\x81\xa1x\x07", 4};
    struct model m;
    struct model mine;
    struct stat st;
    char beside[128];

    (void)state;
    model_make(&m, 2, 1);
    model_make(&mine, 2, 2);
    must(muster_state_save(path, mine.tensors, 3, (struct muster_bytes){0}));
    must(muster_state_save(path, m.tensors, 3, metadata)); /* over the other */
    must(muster_state_read(path, mine.tensors, 3));
    model_assert_same(&m, &mine);
    (void)snprintf(beside, sizeof(beside), "%s.save", path);
    assert_int_equal(stat(beside, &st), -1);
    assert_int_equal(stat(path, &st), 0);
    assert_true((uint64_t)st.st_size > model_bytes(&m));
    model_free(&m);
    model_free(&mine);
}

static void test_file_of_another_model_is_refused_before_anything_is_written(void **state)
{
    struct model m;
    struct model mine;
    struct model kept;

    (void)state;
    model_make(&m, 1, 1);
    model_make(&mine, 1, 2);
    model_make(&kept, 1, 2);
    must(muster_state_save(path, m.tensors, 3, (struct muster_bytes){0}));
    mine.tensors[2].name = "head.bia5";
    assert_int_equal(muster_state_read(path, mine.tensors, 3), MUSTER_EINVAL);
    assert_non_null(strstr(muster_errmsg(), "head.bia5"));
    mine.tensors[2].name = kept.tensors[2].name;
    assert_int_equal(muster_state_read(path, mine.tensors, 2), MUSTER_EINVAL);
    model_assert_same(&mine, &kept);
    assert_int_equal(truncate(path, 100), 0);
    assert_int_equal(muster_state_read(path, mine.tensors, 3), MUSTER_ECORRUPT);
    assert_int_equal(unlink(path), 0);
    assert_true(muster_state_read(path, mine.tensors, 3) < 0);
    model_assert_same(&mine, &kept);
    model_free(&m);
    model_free(&mine);
    model_free(&kept);
}

static void test_save_that_fails_leaves_the_old_file(void **state)
{
    struct muster_tensor twice[2];
    struct model m;
    struct model mine;

    (void)state;
    model_make(&m, 1, 1);
    model_make(&mine, 1, 2);
    must(muster_state_save(path, m.tensors, 3, (struct muster_bytes){0}));
    twice[0] = twice[1] = mine.tensors[0];
    assert_int_equal(muster_state_save(path, twice, 2, (struct muster_bytes){0}), MUSTER_EEXIST);
    assert_true(muster_state_save("/nowhere/at/all", mine.tensors, 3, (struct muster_bytes){0}) <
                0);
    must(muster_state_read(path, mine.tensors, 3));
    model_assert_same(&m, &mine);
    model_free(&m);
    model_free(&mine);
}

/* A limit on files is met where a full disk is. */
static void test_save_without_room_leaves_nothing_behind(void **state)
{
    struct rlimit all;
    struct rlimit small;
    struct model m;
    struct stat st;
    char beside[128];

    (void)state;
    model_make(&m, 1, 1);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &all), 0);
    small = (struct rlimit){.rlim_cur = 64, .rlim_max = all.rlim_max};
    assert_true(signal(SIGXFSZ, SIG_IGN) != SIG_ERR);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    assert_int_not_equal(muster_state_save(path, m.tensors, 3, (struct muster_bytes){0}), 0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &all), 0);
    (void)snprintf(beside, sizeof(beside), "%s.save", path);
    assert_int_equal(stat(beside, &st), -1);
    model_free(&m);
}

static void test_what_was_saved_is_shared_with_its_metadata(void **state)
{
    struct muster_state_config config = muster_state_config_defaults();
    struct muster_state_request r = muster_state_request_defaults();
    struct muster_bytes metadata = {"\x81\xa1x\x07", 4};
    struct muster_bytes got;
    muster_state_copy *copy;
    muster_state *donor;
    const char *addr;
    struct model m;

    (void)state;
    model_make(&m, 1, 1);
    must(muster_state_save(path, m.tensors, 3, metadata));
    config.listen = "127.0.0.1:0";
    must(muster_state_open(rt, &config, &donor));
    must(muster_state_share_file(donor, path,
                                 &(struct muster_state_source){
                                     .size = sizeof(struct muster_state_source), .prefix = "job"}));
    addr = muster_state_address(donor);
    r.donors = &addr;
    r.donor_count = 1;
    must(muster_state_load(rt, &r, &copy));
    copy_assert_same(copy, &m);
    got = muster_state_copy_metadata(copy);
    assert_int_equal(got.len, metadata.len);
    assert_memory_equal(got.data, metadata.data, metadata.len);
    muster_state_copy_free(copy);
    muster_state_close(donor);
    model_free(&m);
}

static void test_state_that_is_too_large_is_refused(void **state)
{
    struct muster_state_config config = muster_state_config_defaults();
    struct muster_state_request r = muster_state_request_defaults();
    muster_state_copy *copy;
    muster_state *donor;
    const char *addr;
    struct stat st;
    struct model m;
    char part[128];

    (void)state;
    model_make(&m, 1, 1);
    config.listen = "127.0.0.1:0";
    donor = donor_open(rt, &config, &m, 1);
    addr = muster_state_address(donor);
    r.donors = &addr;
    r.donor_count = 1;
    r.bytes_max = model_bytes(&m) - 1;
    assert_int_equal(muster_state_load(rt, &r, &copy), MUSTER_ELIMIT);
    assert_non_null(strstr(muster_errmsg(), "more than the maximum"));
    r.tensors = m.tensors;
    r.tensor_count = 3;
    assert_int_equal(muster_state_load(rt, &r, NULL), MUSTER_ELIMIT);
    r.tensor_count = 0;
    r.file = path;
    assert_int_equal(muster_state_load(rt, &r, &copy), MUSTER_ELIMIT);
    (void)snprintf(part, sizeof(part), "%s.part", path);
    assert_int_equal(stat(part, &st), -1);
    r.file = NULL;
    r.bytes_max++;
    must(muster_state_load(rt, &r, &copy));
    copy_assert_same(copy, &m);
    muster_state_copy_free(copy);
    muster_state_close(donor);
    model_free(&m);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_what_was_saved_is_read_again),
        CASE(test_file_of_another_model_is_refused_before_anything_is_written),
        CASE(test_save_that_fails_leaves_the_old_file),
        CASE(test_save_without_room_leaves_nothing_behind),
        CASE(test_what_was_saved_is_shared_with_its_metadata),
        CASE(test_state_that_is_too_large_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

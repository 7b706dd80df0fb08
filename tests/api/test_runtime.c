/* What runtime.h says of a runtime that cannot be: which error for which fault of its lock, with a
 * text that names the thing; and that nothing is begun then. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <muster/muster.h>

static char dir[64];
static char path[128];

static int make_dir(void **state)
{
    (void)state;
    (void)snprintf(dir, sizeof(dir), "/tmp/muster-runtime-XXXXXX");
    return mkdtemp(dir) == NULL ? -1 : 0;
}

static int remove_dir(void **state)
{
    (void)state;
    (void)unlink(path);
    return rmdir(dir);
}

static void write_file(const char *text, mode_t mode)
{
    FILE *file;

    (void)snprintf(path, sizeof(path), "%s/file", dir);
    (void)unlink(path);
    file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
    assert_int_equal(chmod(path, mode), 0);
}

static int start(const struct muster_lock *lock)
{
    struct muster_runtime_config config = muster_runtime_config_defaults();
    muster_runtime *rt = NULL;
    int err;

    config.lock = lock;
    err = muster_runtime_new_with(&config, &rt);
    if (err != 0) {
        assert_null(rt);
        assert_true(muster_errmsg()[0] != '\0');
    }
    muster_runtime_free(rt);
    return err;
}

static void test_runtime_says_what_is_wrong_with_its_token(void **state)
{
    struct muster_lock lock = {.size = sizeof(struct muster_lock), .token_file = path};

    (void)state;
    write_file("0123456789abcdef0123456789abcdef\n", 0600);
    assert_int_equal(start(&lock), 0);
    write_file("0123456789abcde\n", 0600); /* one byte less than 16 */
    assert_int_equal(start(&lock), MUSTER_EINVAL);
    assert_non_null(strstr(muster_errmsg(), path));
    write_file("0123456789abcdef0123456789abcdef\n", 0604); /* readable by everybody */
    assert_int_equal(start(&lock), MUSTER_EINVAL);
    assert_non_null(strstr(muster_errmsg(), path));
    (void)unlink(path);
    assert_int_equal(start(&lock), -ENOENT);
    assert_non_null(strstr(muster_errmsg(), path));
}

static void test_runtime_says_what_is_wrong_with_its_certificates(void **state)
{
    struct muster_lock lock = {
        .size = sizeof(struct muster_lock), .cert = path, .key = path, .ca = path};

    (void)state;
    write_file("no certificate\n", 0600);
    assert_int_equal(start(&lock), MUSTER_ETLS);
    assert_non_null(strstr(muster_errmsg(), path));
    lock.key = NULL; /* All three, or none. */
    assert_int_equal(start(&lock), MUSTER_EINVAL);
    lock.key = path;
    lock.token_file = path; /* One credential, not two. */
    assert_int_equal(start(&lock), MUSTER_EINVAL);
}

static void test_runtime_says_what_is_wrong_with_its_ranges(void **state)
{
    const char *ranges[] = {"10.0.0.0/8", "10.0.0.0/99"};
    struct muster_lock lock = {
        .size = sizeof(struct muster_lock), .allow = ranges, .allow_count = 1};

    (void)state;
    assert_int_equal(start(&lock), 0);
    lock.allow_count = 2;
    assert_int_equal(start(&lock), MUSTER_EINVAL);
    assert_non_null(strstr(muster_errmsg(), "10.0.0.0/99"));
}

static void test_runtime_needs_a_place_and_can_be_none(void **state)
{
    (void)state;
    assert_int_equal(muster_runtime_new(NULL), MUSTER_EINVAL);
    muster_runtime_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runtime_says_what_is_wrong_with_its_token),
        cmocka_unit_test(test_runtime_says_what_is_wrong_with_its_certificates),
        cmocka_unit_test(test_runtime_says_what_is_wrong_with_its_ranges),
        cmocka_unit_test(test_runtime_needs_a_place_and_can_be_none),
    };

    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}

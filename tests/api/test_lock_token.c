/* The job's token: whose file it may be, and which tokens could be guessed. */
#include "api/lock.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "skipped.h"
#include "transport/tls_make.h"
#include "unit.h"

#define GOOD "Zx8Qv2LmT0aYc7Rk5NwE"

static char path[] = "/tmp/muster-test-XXXXXX";

static void write_token(const char *token)
{
    FILE *file = fopen(path, "w");

    assert_non_null(file);
    assert_true(fprintf(file, "%s\n", token) > 0);
    assert_int_equal(fclose(file), 0);
}

/* What is said: of an error, or of what is taken all the same. */
static struct mu_errmsg said;

static int read_it(mode_t mode)
{
    struct mu_errmsg note = {{0}};
    char token[MU_LOCK_TOKEN_CAP];
    int err;

    assert_int_equal(chmod(path, mode), 0);
    said.text[0] = '\0';
    err = mu_lock_read_token(path, token, &note, &said);
    if (err == 0) {
        said = note;
    }
    return err;
}

static void test_token_is_its_owners(void **state)
{
    (void)state;
    write_token(GOOD);
    assert_int_equal(read_it(0600), 0);
    assert_string_equal(said.text, "");
    assert_int_equal(read_it(0400), 0);
    assert_string_equal(said.text, "");
    for (mode_t other = 1; other < 8; other++) {
        assert_int_equal(read_it(0600 | other), MUSTER_EINVAL);
        assert_non_null(strstr(said.text, "chmod 600"));
    }
}

static void test_token_that_root_gives_a_group_is_taken_and_said(void **state)
{
    (void)state;
    write_token(GOOD);
    if (geteuid() != 0) {
        skip_saying("a file of root's needs root");
    }
    assert_int_equal(chown(path, 0, 2000), 0);
    assert_int_equal(read_it(0440), 0);
    assert_non_null(strstr(said.text, "the group 2000 can read"));
    assert_int_equal(read_it(0640), 0);
    assert_int_equal(read_it(0460), MUSTER_EINVAL);
    assert_int_equal(read_it(0660), MUSTER_EINVAL);
    assert_int_equal(read_it(0444), MUSTER_EINVAL);
    assert_int_equal(read_it(0441), MUSTER_EINVAL);
    /* Another's is not what a Secret is: its owner can mend it. */
    assert_int_equal(chown(path, 2001, 2000), 0);
    assert_int_equal(read_it(0440), MUSTER_EINVAL);
    assert_int_equal(chown(path, 0, 0), 0);
}

static void test_token_that_could_be_guessed_is_warned_of(void **state)
{
    static const char *const weak[] = {
        "correct-horse-battery-staple",
        "passwordpassword",
        "1234567890123456",
        "aaaaaaaaaaaaaaaa",
        "abcdefghijklmnopqrstuvwxyz",
        "training-job-2026",
        "my-secret-token-1",
        "deadbeefdeadbeef",
        "9999999999999999999999999999",
    };

    (void)state;
    for (size_t i = 0; i < sizeof(weak) / sizeof(weak[0]); i++) {
        write_token(weak[i]);
        assert_int_equal(read_it(0600), 0);
        if (strstr(said.text, "muster keygen token") == NULL) {
            fail_msg("%s: %u bits", weak[i], mu_lock_token_bits(weak[i]));
        }
        assert_null(strstr(said.text, weak[i]));
    }
}

static void test_random_token_is_not_warned_of(void **state)
{
    static const char *const others[] = {
        GOOD,
        "f3a90c17be2d48650b9e7d31c2f48a06",     /* openssl rand -hex 16 */
        "0b1c9f6e-4d2a-47f3-9a58-c6e1d7b3f024", /* a UUID */
        "q7!Lz@2vK#9xTf4&",
    };
    char token[MU_TLS_TOKEN_CAP];

    (void)state;
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        write_token(others[i]);
        assert_int_equal(read_it(0600), 0);
        assert_string_equal(said.text, "");
    }
    for (int i = 0; i < 10000; i++) {
        assert_true(mu_tls_make_token(token));
        assert_true(mu_lock_token_bits(token) >= 70); /* fewer would be warned of */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_token_is_its_owners),
        cmocka_unit_test(test_token_that_root_gives_a_group_is_taken_and_said),
        cmocka_unit_test(test_token_that_could_be_guessed_is_warned_of),
        cmocka_unit_test(test_random_token_is_not_warned_of),
    };
    int fd = mkstemp(path);
    int failed;

    if (fd < 0) {
        return 1;
    }
    (void)close(fd);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)unlink(path);
    return skipped_or(failed);
}

/*
 * Goal: what was committed is there after a restart, all of it or nothing; a full disk, another
 * process and a kill lose nothing and are told of. Method: real files in a directory of their own.
 */
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "failheap.h"
#include "lmdb_fixture.h"
#include "skipped.h"

static void assert_loads(struct mu_disk *disk, const char *text, uint64_t revision)
{
    struct mu_errmsg msg = {0};
    struct found f = {0};
    uint64_t got = 99;
    int rc = disk->ops->load(disk, note, &f, &got, &msg);

    if (rc != 0) {
        fail_msg("load: %s", msg.text);
    }
    assert_string_equal(f.text, text);
    assert_int_equal(got, revision);
}

static void test_new_disk_is_empty_and_made_with_its_directory(void **state)
{
    struct mu_disk *disk = open_disk(MAP);
    struct stat st;

    (void)state;
    assert_loads(disk, "", 0);
    disk->ops->close(disk);
    assert_int_equal(stat(dir, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0700);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    /* Sparse: what it says it has and what it takes are different things. */
    assert_true(st.st_blocks * 512 < 65536);
    disk = open_disk(MAP);
    assert_loads(disk, "", 0);
    disk->ops->close(disk);
}

static void test_committed_records_are_there_after_reopening(void **state)
{
    struct mu_disk *disk = open_disk(MAP);

    (void)state;
    journal_start();
    journal_put(1, 1, "a", "x", 1);
    journal_put(2, 3, "q", "one", 3);
    journal_put(2, 2, "q", "zero", 4);
    journal_put(1, 4, "", "", 0);
    commit(disk, 7);
    assert_loads(disk, "1:a=x 2:q<zero 3:q<one 4:= ", 7);
    disk->ops->close(disk);

    disk = open_disk(MAP);
    assert_loads(disk, "1:a=x 2:q<zero 3:q<one 4:= ", 7);
    journal_start();
    journal_put(3, 2, "", NULL, 0);
    journal_put(1, 1, "a", "y", 1);
    journal_put(3, 77, "", NULL, 0); /* was never there */
    commit(disk, 9);
    disk->ops->close(disk);

    disk = open_disk(MAP);
    assert_loads(disk, "1:a=y 3:q<one 4:= ", 9);
    journal_start();
    commit(disk, 10);
    assert_loads(disk, "1:a=y 3:q<one 4:= ", 10);
    disk->ops->close(disk);
}

static void test_last_word_on_a_number_counts(void **state)
{
    struct mu_disk *disk = open_disk(MAP);

    (void)state;
    journal_start();
    journal_put(1, 5, "e", "1", 1);
    journal_put(1, 2, "b", "1", 1);
    journal_put(3, 5, "", NULL, 0);
    journal_put(1, 2, "b", "2", 1);
    journal_put(3, 1, "", NULL, 0);
    journal_put(1, 1, "a", "1", 1);
    commit(disk, 1);
    assert_loads(disk, "1:a=1 2:b=2 ", 1);
    disk->ops->close(disk);
}

static void test_load_stops_where_it_is_told_to(void **state)
{
    struct mu_disk *disk = open_disk(MAP);
    struct mu_errmsg msg = {0};
    struct found f = {.fail_at = 2};
    uint64_t revision = 99;

    (void)state;
    journal_start();
    for (uint64_t i = 1; i <= 4; i++) {
        journal_put(1, i, "k", "v", 1);
    }
    commit(disk, 4);
    assert_int_equal(disk->ops->load(disk, note, &f, &revision, &msg), MUSTER_EFULL);
    assert_int_equal(f.count, 2);
    assert_int_equal(revision, 99);
    disk->ops->close(disk);
}

static void test_big_values_survive_and_the_map_grows(void **state)
{
    size_t len = (size_t)40 << 20;
    char *big = malloc(len);
    struct mu_disk *disk = open_disk(MAP);
    char expected[64];

    (void)state;
    assert_non_null(big);
    memset(big, 'b', len);
    /* The first map has room for one of them, not for three. */
    for (uint64_t i = 1; i <= 3; i++) {
        journal_start();
        journal_put(1, i, "big", big, len);
        commit(disk, i);
    }
    free(big);
    disk->ops->close(disk);
    disk = open_disk(MAP);
    (void)snprintf(expected, sizeof(expected), "1:big=%zu 2:big=%zu 3:big=%zu ", len, len, len);
    assert_loads(disk, expected, 3);
    journal_start();
    for (uint64_t i = 1; i <= 3; i++) {
        journal_put(3, i, "", NULL, 0);
    }
    commit(disk, 4);
    disk->ops->close(disk);
    disk = open_disk(MAP);
    assert_loads(disk, "", 4);
    disk->ops->close(disk);
}

static void test_disk_says_when_its_limit_is_reached(void **state)
{
    struct mu_disk *disk = open_disk((size_t)2 << 20);
    struct mu_errmsg msg = {0};
    static char big[3 << 20];

    (void)state;
    journal_start();
    journal_put(1, 1, "a", "x", 1);
    commit(disk, 1);
    journal_start();
    journal_put(1, 1, "a", "y", 1);
    journal_put(1, 2, "big", big, sizeof(big));
    assert_int_equal(disk->ops->commit(disk, mu_buf_span(&journal), 2, &msg), MUSTER_EFULL);
    assert_non_null(strstr(msg.text, "limit of 2097152 bytes"));
    assert_non_null(strstr(msg.text, dir));
    /* Nothing of it was taken, and what fits still is. */
    journal_start();
    journal_put(1, 3, "c", "z", 1);
    commit(disk, 3);
    disk->ops->close(disk);

    disk = open_disk(MAP);
    assert_loads(disk, "1:a=x 3:c=z ", 3);
    disk->ops->close(disk);
}

static void test_senseless_journal_is_refused(void **state)
{
    static const uint8_t pieces[][9] = {
        {4, 1, 0, 0, 0, 0, 0, 0, 0}, /* no such operation */
        {3, 0, 0, 0, 0, 0, 0, 0, 0}, /* no such number */
        {1, 1, 0, 0, 0, 0, 0, 0, 0}, /* cut off */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(pieces) / sizeof(pieces[0]); i++) {
        struct mu_disk *disk = open_disk(MAP);
        struct mu_errmsg msg = {0};

        assert_int_equal(disk->ops->commit(disk, mu_span(pieces[i], 9), 1, &msg), MUSTER_EINVAL);
        disk->ops->close(disk);
    }
}

static void test_second_opener_is_told_who_has_it(void **state)
{
    struct mu_disk *disk = open_disk(MAP);
    struct mu_disk *second = NULL;
    struct mu_errmsg msg = {0};
    char pid[32];

    (void)state;
    assert_int_equal(mu_lmdb_disk_open(dir, MAP, &second, &msg), MUSTER_EBUSY);
    (void)snprintf(pid, sizeof(pid), "process %ld", (long)getpid());
    assert_non_null(strstr(msg.text, pid));
    assert_non_null(strstr(msg.text, dir));
    assert_null(second);
    disk->ops->close(disk);
    disk = open_disk(MAP);
    disk->ops->close(disk);
}

static void test_directory_that_cannot_be_is_told_of(void **state)
{
    struct mu_disk *disk = NULL;
    struct mu_errmsg msg = {0};
    char path[300];
    int fd = open(dir, O_CREAT | O_WRONLY, 0600);

    (void)state;
    assert_int_equal(mu_lmdb_disk_open(dir, MAP, &disk, &msg), MUSTER_EDISK);
    assert_non_null(strstr(msg.text, dir));
    (void)close(fd);
    (void)snprintf(path, sizeof(path), "%s/no/such/parent", base);
    assert_int_equal(mu_lmdb_disk_open(path, MAP, &disk, &msg), MUSTER_EDISK);
    assert_non_null(strstr(msg.text, "No such file"));
    /* A path too long for the text is cut at its front; the remedy stays. */
    memset(path, 'p', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    assert_int_equal(mu_lmdb_disk_open(path, MAP, &disk, &msg), MUSTER_EDISK);
    assert_non_null(strstr(msg.text, "start again"));
}

static void test_random_history_is_sound_after_every_commit(void **state)
{
    struct mu_disk *disk = open_disk(MAP);
    static char value[20000];
    static size_t lens[400]; /* of the value, plus one; 0: no record */
    struct mu_prng prng;

    (void)state;
    mu_prng_seed(&prng, 11);
    memset(value, 'r', sizeof(value));
    for (uint64_t round = 1; round <= 120; round++) {
        size_t live = 0;
        struct mu_errmsg msg = {0};
        struct found f;

        journal_start();
        for (uint64_t n = mu_prng_below(&prng, 60); n > 0; n--) {
            uint64_t number = 1 + mu_prng_below(&prng, 399);
            bool put = round < 60 ? mu_prng_below(&prng, 3) != 0 : mu_prng_below(&prng, 4) == 0;
            size_t len = mu_prng_below(&prng, 8) == 0 ? mu_prng_below(&prng, sizeof(value))
                                                      : mu_prng_below(&prng, 200);

            journal_put(put ? 1 : 3, number, "k", value, len);
            lens[number] = put ? len + 1 : 0;
        }
        commit(disk, round);
        disk->ops->close(disk);
        if (try_load(&f, &msg) != 0) {
            fail_msg("round %d: %s", (int)round, msg.text);
        }
        for (size_t i = 0; i < 400; i++) {
            live += lens[i] != 0;
        }
        assert_int_equal(f.count, live);
        disk = open_disk(MAP);
    }
    disk->ops->close(disk);
}

/* Full disks. */

static void commit_until_full(const char *words)
{
    struct mu_disk *disk = open_disk(MAP);
    struct mu_errmsg msg = {0};
    static char value[300000];
    uint64_t done = 0;
    char expected[4096] = "";
    size_t len = 0;

    for (int rc = 0; rc == 0 && done < 100;) {
        journal_start();
        journal_put(1, done + 1, "k", value, sizeof(value));
        rc = disk->ops->commit(disk, mu_buf_span(&journal), done + 1, &msg);
        if (rc == 0) {
            done++;
            len +=
                (size_t)snprintf(expected + len, sizeof(expected) - len, "%d:k=300000 ", (int)done);
        } else {
            assert_int_equal(rc, MUSTER_EFULL);
        }
    }
    assert_in_range(done, 1, 99);
    assert_non_null(strstr(msg.text, dir));
    assert_non_null(strstr(msg.text, words));
    assert_non_null(strstr(msg.text, "free space there"));
    disk->ops->close(disk);

    disk = open_disk(MAP);
    assert_loads(disk, expected, done);
    disk->ops->close(disk);
}

static void test_file_size_limit_is_told_of_and_loses_nothing(void **state)
{
    struct rlimit old;
    struct rlimit small;

    (void)state;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    small = old;
    small.rlim_cur = 6 << 20;
    (void)signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    commit_until_full("takes no more changes (File too large)");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    (void)signal(SIGXFSZ, SIG_DFL);
}

/* Whoever is not root may be it in a namespace of his own, where the system lets him; there he may
 * mount. Files stay his, as the number of the user does. */
static void gain_a_namespace(void)
{
    static const char *const paths[] = {"/proc/self/setgroups", "/proc/self/uid_map",
                                        "/proc/self/gid_map"};
    char texts[3][64] = {"deny"};

    (void)snprintf(texts[1], sizeof(texts[1]), "%u %u 1", geteuid(), geteuid());
    (void)snprintf(texts[2], sizeof(texts[2]), "%u %u 1", getegid(), getegid());
    if (geteuid() == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) {
        return;
    }
    for (int i = 0; i < 3; i++) {
        int fd = open(paths[i], O_WRONLY | O_CLOEXEC);

        if (fd < 0 || write(fd, texts[i], strlen(texts[i])) < 0) {
            print_message("%s cannot be written; the namespace is of little use\n", paths[i]);
        }
        (void)close(fd);
    }
}

static void test_full_disk_is_told_of_and_loses_nothing(void **state)
{
    char mount_at[100];
    int mount_fd;

    (void)state;
    (void)snprintf(mount_at, sizeof(mount_at), "%s/tmpfs", base);
    assert_int_equal(mkdir(mount_at, 0700), 0);
    if (mount("muster-test", mount_at, "tmpfs", 0, "size=4m") != 0) {
        skip_saying("no file system can be mounted here");
    }
    /* Out of sight at once and gone when nothing uses it, however the test ends. */
    mount_fd = open(mount_at, O_RDONLY | O_DIRECTORY);
    assert_true(mount_fd >= 0);
    assert_int_equal(umount2(mount_at, MNT_DETACH), 0);
    (void)snprintf(dir, sizeof(dir), "/proc/self/fd/%d/data", mount_fd);
    commit_until_full("takes no more changes (No space left on device)");
    (void)close(mount_fd);
}

static void test_disk_survives_failing_allocations(void **state)
{
    bool fired = true;

    (void)state;
    for (long nth = 0; fired; nth++) {
        struct mu_disk *disk = NULL;
        struct mu_errmsg msg = {0};
        int rc;

        journal_start();
        journal_put(1, 1, "a", "x", 1);
        failheap_arm(nth);
        rc = mu_lmdb_disk_open(dir, MAP, &disk, &msg);
        if (rc == 0) {
            rc = disk->ops->commit(disk, mu_buf_span(&journal), 1, &msg);
            disk->ops->close(disk);
        }
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(rc, fired ? MUSTER_ENOMEM : 0);
    }
}

static void test_killed_process_loses_nothing_it_acknowledged(void **state)
{
    (void)state;
    for (int round = 0; round < 20; round++) {
        struct mu_errmsg msg = {0};
        struct found f;
        uint64_t last = 0;
        int pipes[2];
        pid_t child;
        int status;

        assert_int_equal(pipe(pipes), 0);
        child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            struct mu_disk *disk = open_disk(MAP);

            (void)close(pipes[0]);
            for (uint64_t i = 1;; i++) {
                journal_start();
                journal_put(1, i, "k", &i, sizeof(i));
                commit(disk, i);
                if (write(pipes[1], &i, sizeof(i)) != sizeof(i)) {
                    _exit(1);
                }
            }
        }
        (void)close(pipes[1]);
        /* After some acknowledgements, a different number each time. */
        for (int i = 0; i < 1 + round; i++) {
            assert_int_equal(read(pipes[0], &last, sizeof(last)), sizeof(last));
        }
        assert_int_equal(kill(child, SIGKILL), 0);
        assert_int_equal(waitpid(child, &status, 0), child);
        while (read(pipes[0], &last, sizeof(last)) == sizeof(last)) {
        }
        (void)close(pipes[0]);
        if (try_load(&f, &msg) != 0) {
            fail_msg("round %d: %s", round, msg.text);
        }
        assert_true(f.last >= last);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_new_disk_is_empty_and_made_with_its_directory, set_up),
        cmocka_unit_test_setup(test_committed_records_are_there_after_reopening, set_up),
        cmocka_unit_test_setup(test_last_word_on_a_number_counts, set_up),
        cmocka_unit_test_setup(test_load_stops_where_it_is_told_to, set_up),
        cmocka_unit_test_setup(test_big_values_survive_and_the_map_grows, set_up),
        cmocka_unit_test_setup(test_disk_says_when_its_limit_is_reached, set_up),
        cmocka_unit_test_setup(test_senseless_journal_is_refused, set_up),
        cmocka_unit_test_setup(test_second_opener_is_told_who_has_it, set_up),
        cmocka_unit_test_setup(test_directory_that_cannot_be_is_told_of, set_up),
        cmocka_unit_test_setup(test_random_history_is_sound_after_every_commit, set_up),
        cmocka_unit_test_setup(test_file_size_limit_is_told_of_and_loses_nothing, set_up),
        cmocka_unit_test_setup(test_full_disk_is_told_of_and_loses_nothing, set_up),
        cmocka_unit_test_setup(test_disk_survives_failing_allocations, set_up),
        cmocka_unit_test_setup(test_killed_process_loses_nothing_it_acknowledged, set_up),
    };

    gain_a_namespace();
    return skipped_or(lmdb_run("lmdb_disk", tests, sizeof(tests) / sizeof(tests[0])));
}

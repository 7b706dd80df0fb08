/*
 * Goal: what was committed is there after a restart, all of it or nothing; a damaged file is told
 * of and never served, and never takes the process down. Method: real files in a directory of
 * their own, with bytes changed behind the disk's back.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/prng.h"
#include "failheap.h"
#include "transport/lmdb_disk.h"

#define MAP ((size_t)256 << 20)

static char base[64]; /* everything is in here */
static char dir[128]; /* the data directory, new for each test */
static char file[256];

static int set_up(void **state)
{
    static int number;

    (void)state;
    (void)snprintf(dir, sizeof(dir), "%s/%d", base, number++);
    (void)snprintf(file, sizeof(file), "%s/muster.mdb", dir);
    return 0;
}

/* A piece of journal under construction. */
static struct mu_buf journal;

static void journal_start(void)
{
    mu_buf_fini(&journal);
    mu_buf_init(&journal, SIZE_MAX);
}

static void journal_put(uint8_t op, uint64_t number, const char *key, const void *value, size_t len)
{
    assert_int_equal(mu_buf_reserve(&journal, 21 + strlen(key) + len), 0);
    mu_buf_put_u8(&journal, op);
    mu_buf_put_u64(&journal, number);
    if (op != 3) {
        mu_buf_put_u32(&journal, (uint32_t)strlen(key));
        mu_buf_put_u64(&journal, len);
        mu_buf_put(&journal, mu_span_str(key));
        mu_buf_put(&journal, mu_span(value, len));
    }
}

/* What a load finds, as text: "1:a=x 2:q<y ". Long values are told by their length. */
struct found {
    char text[4096];
    size_t len;
    size_t count;
    uint64_t last;
    int fail_at; /* returns an error at this record */
};

static int note(void *context, uint8_t op, uint64_t number, struct mu_span key,
                struct mu_span value)
{
    struct found *f = context;
    int n;

    assert_true(number > f->last);
    f->last = number;
    f->count++;
    if (f->fail_at != 0 && f->count == (size_t)f->fail_at) {
        return MUSTER_EFULL;
    }
    n = value.len > 20
            ? snprintf(f->text + f->len, sizeof(f->text) - f->len, "%d:%.*s%c%zu ", (int)number,
                       (int)key.len, (const char *)key.data, op == 1 ? '=' : '<', value.len)
            : snprintf(f->text + f->len, sizeof(f->text) - f->len, "%d:%.*s%c%.*s ", (int)number,
                       (int)key.len, (const char *)key.data, op == 1 ? '=' : '<', (int)value.len,
                       (const char *)value.data);
    if (f->len + (size_t)n < sizeof(f->text)) {
        f->len += (size_t)n;
    }
    return 0;
}

static struct mu_disk *open_disk(size_t map)
{
    struct mu_errmsg msg = {0};
    struct mu_disk *disk = NULL;
    int rc = mu_lmdb_disk_open(dir, map, &disk, &msg);

    if (rc != 0) {
        fail_msg("open: %s", msg.text);
    }
    return disk;
}

static void commit(struct mu_disk *disk, uint64_t revision)
{
    struct mu_errmsg msg = {0};
    int rc = disk->ops->commit(disk, mu_buf_span(&journal), revision, &msg);

    if (rc != 0) {
        fail_msg("commit: %s", msg.text);
    }
}

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
    assert_int_equal(disk->ops->commit(disk, mu_buf_span(&journal), 2, &msg), MUSTER_EDISK);
    assert_non_null(strstr(msg.text, "limit of 2097152 bytes"));
    assert_non_null(strstr(msg.text, dir));
    /* It has failed: nothing more is taken, and it says so. */
    journal_start();
    assert_int_equal(disk->ops->commit(disk, mu_buf_span(&journal), 3, &msg), MUSTER_EDISK);
    disk->ops->close(disk);

    disk = open_disk(MAP);
    assert_loads(disk, "1:a=x ", 1);
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

/* Damage. */

/* Many small records, some long ones, a list of free pages, and a tree of two levels. */
static void make_history(void)
{
    struct mu_disk *disk = open_disk(MAP);
    static char value[9000];

    memset(value, 'v', sizeof(value));
    for (uint64_t round = 0; round < 6; round++) {
        journal_start();
        for (uint64_t i = 1; i <= 150; i++) {
            if (i % 7 == round) {
                journal_put(3, i, "", NULL, 0);
            } else {
                journal_put(i % 5 == 0 ? 2 : 1, i, "key", value, i % 50 == 0 ? 9000 : 40 + round);
            }
        }
        commit(disk, round + 1);
    }
    disk->ops->close(disk);
}

static uint8_t *read_file(size_t *ret_len)
{
    FILE *f = fopen(file, "rb");
    uint8_t *bytes;

    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    *ret_len = (size_t)ftell(f);
    rewind(f);
    bytes = malloc(*ret_len);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, *ret_len, f), *ret_len);
    (void)fclose(f);
    return bytes;
}

static void write_file(const void *bytes, size_t len)
{
    int fd = open(file, O_CREAT | O_TRUNC | O_WRONLY, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, len), len);
    (void)close(fd);
}

static void poke(size_t at, uint8_t byte)
{
    int fd = open(file, O_WRONLY);

    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)at), 1);
    (void)close(fd);
}

/* Opens and loads. The code, and a digest of what was loaded. */
static int try_load(struct found *f, struct mu_errmsg *msg)
{
    struct mu_disk *disk = NULL;
    uint64_t revision;
    int rc = mu_lmdb_disk_open(dir, MAP, &disk, msg);

    *f = (struct found){0};
    if (rc == 0) {
        rc = disk->ops->load(disk, note, f, &revision, msg);
        disk->ops->close(disk);
    }
    return rc;
}

static void assert_corrupt(const char *what)
{
    struct mu_errmsg msg = {0};
    struct found f;
    int rc = try_load(&f, &msg);

    if (rc != MUSTER_ECORRUPT) {
        fail_msg("%s: %s %s", what, muster_errname(rc), msg.text);
    }
    assert_non_null(strstr(msg.text, dir));
    assert_non_null(strstr(msg.text, "restore it"));
}

static void test_what_is_no_store_is_told_of(void **state)
{
    char junk[10000];

    (void)state;
    memset(junk, 'j', sizeof(junk));
    assert_int_equal(mkdir(dir, 0700), 0);
    write_file(junk, 0);
    assert_corrupt("an empty file");
    write_file(junk, 10);
    assert_corrupt("a short file");
    write_file(junk, sizeof(junk));
    assert_corrupt("a file of something else");
    memset(junk, 0, sizeof(junk));
    write_file(junk, sizeof(junk));
    assert_corrupt("a file of zeroes");
}

static void test_truncated_file_is_told_of_wherever_it_was_cut(void **state)
{
    size_t len;
    uint8_t *bytes;
    size_t cut;

    (void)state;
    make_history();
    bytes = read_file(&len);
    /* The file is longer than what is in use; cut it within that. */
    for (cut = len; cut > 0 && bytes[cut - 1] == 0; cut--) {
    }
    cut = cut / 4096 * 4096;
    assert_true(cut > 20 * 4096);
    for (; cut > 0; cut -= 4096) {
        write_file(bytes, cut);
        assert_corrupt("a file cut at a page");
        write_file(bytes, cut - 100);
        assert_corrupt("a file cut within a page");
    }
    free(bytes);
}

static void test_flipped_byte_in_a_record_is_told_of(void **state)
{
    struct mu_disk *disk = open_disk(MAP);
    struct mu_errmsg msg = {0};
    struct found f;
    uint8_t *bytes;
    uint8_t *at;
    size_t len;

    (void)state;
    journal_start();
    journal_put(1, 1, "needle", "haystack", 8);
    commit(disk, 1);
    disk->ops->close(disk);
    bytes = read_file(&len);
    at = memmem(bytes, len, "haystack", 8);
    assert_non_null(at);
    poke((size_t)(at - bytes), 'H');
    assert_int_equal(try_load(&f, &msg), MUSTER_ECORRUPT);
    assert_non_null(strstr(msg.text, "record 1"));
    assert_int_equal(f.count, 0);
    poke((size_t)(at - bytes), 'h');
    assert_int_equal(try_load(&f, &msg), 0);
    free(bytes);
}

/* Damages one bit: it is told of, or it was of no consequence and all is there. */
static bool flip(const uint8_t *bytes, size_t at, uint8_t bit, const struct found *whole)
{
    struct mu_errmsg msg = {0};
    struct found f;
    int rc;

    poke(at, bytes[at] ^ bit);
    rc = try_load(&f, &msg);
    if (rc == 0 && (f.count != whole->count || strcmp(f.text, whole->text) != 0)) {
        fail_msg("byte %zu, bit %u: something else was served", at, bit);
    }
    if (rc != 0 && rc != MUSTER_ECORRUPT) {
        fail_msg("byte %zu, bit %u: %s", at, bit, msg.text);
    }
    poke(at, bytes[at]);
    return rc != 0;
}

static void test_no_flipped_bit_is_served_or_fatal(void **state)
{
    struct mu_errmsg msg = {0};
    struct found whole;
    uint8_t *bytes;
    uint8_t *after;
    size_t len;
    size_t used;
    size_t told = 0;
    struct mu_prng prng;

    (void)state;
    make_history();
    assert_int_equal(try_load(&whole, &msg), 0);
    bytes = read_file(&len);
    for (used = len; used > 0 && bytes[used - 1] == 0; used--) {
    }
    mu_prng_seed(&prng, 7);
    for (size_t at = 0; at < 152 * 8; at++) {
        told += flip(bytes, at / 8, (uint8_t)(1u << (at % 8)), &whole);
        told += flip(bytes, 4096 + at / 8, (uint8_t)(1u << (at % 8)), &whole);
    }
    for (size_t page = 2; page * 4096 < used; page++) {
        for (size_t i = 0; i < 60; i++) {
            /* The head of a page and its list of nodes is where it hurts. */
            size_t at = page * 4096 + (i < 24 ? i : (size_t)mu_prng_below(&prng, 4096));

            told += flip(bytes, at, (uint8_t)(1u << mu_prng_below(&prng, 8)), &whole);
        }
    }
    assert_true(told > 500);
    /* Looking does not write. */
    after = read_file(&used);
    assert_int_equal(used, len);
    assert_memory_equal(bytes, after, len);
    free(bytes);
    free(after);
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
            assert_int_equal(rc, MUSTER_EDISK);
        }
    }
    assert_in_range(done, 1, 99);
    assert_non_null(strstr(msg.text, dir));
    assert_non_null(strstr(msg.text, words));
    assert_non_null(strstr(msg.text, "nothing acknowledged was lost"));
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
    commit_until_full("full (File too large)");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    (void)signal(SIGXFSZ, SIG_DFL);
}

static void test_full_disk_is_told_of_and_loses_nothing(void **state)
{
    char mount_at[100];
    int mount_fd;

    (void)state;
    (void)snprintf(mount_at, sizeof(mount_at), "%s/tmpfs", base);
    assert_int_equal(mkdir(mount_at, 0700), 0);
    if (mount("muster-test", mount_at, "tmpfs", 0, "size=4m") != 0) {
        skip(); /* not root, or not allowed to */
    }
    /* Out of sight at once and gone when nothing uses it, however the test ends. */
    mount_fd = open(mount_at, O_RDONLY | O_DIRECTORY);
    assert_true(mount_fd >= 0);
    assert_int_equal(umount2(mount_at, MNT_DETACH), 0);
    (void)snprintf(dir, sizeof(dir), "/proc/self/fd/%d/data", mount_fd);
    commit_until_full("full (No space left on device)");
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
        cmocka_unit_test_setup(test_what_is_no_store_is_told_of, set_up),
        cmocka_unit_test_setup(test_truncated_file_is_told_of_wherever_it_was_cut, set_up),
        cmocka_unit_test_setup(test_flipped_byte_in_a_record_is_told_of, set_up),
        cmocka_unit_test_setup(test_no_flipped_bit_is_served_or_fatal, set_up),
        cmocka_unit_test_setup(test_random_history_is_sound_after_every_commit, set_up),
        cmocka_unit_test_setup(test_file_size_limit_is_told_of_and_loses_nothing, set_up),
        cmocka_unit_test_setup(test_full_disk_is_told_of_and_loses_nothing, set_up),
        cmocka_unit_test_setup(test_disk_survives_failing_allocations, set_up),
        cmocka_unit_test_setup(test_killed_process_loses_nothing_it_acknowledged, set_up),
    };
    struct statvfs st;
    char command[128];
    bool in_memory;
    int failed;

    /* In memory if there is room: a sync costs nothing there, and no test pulls the plug. */
    in_memory = statvfs("/dev/shm", &st) == 0 && access("/dev/shm", W_OK) == 0 &&
                (uint64_t)st.f_bavail * st.f_frsize > (uint64_t)512 << 20;
    (void)snprintf(base, sizeof(base), "%s/muster-test-XXXXXX", in_memory ? "/dev/shm" : "/tmp");
    if (mkdtemp(base) == NULL) {
        return 1;
    }
    failed = cmocka_run_group_tests_name("lmdb_disk", tests, NULL, NULL);
    mu_buf_fini(&journal);
    (void)snprintf(command, sizeof(command), "rm -rf %s", base);
    return system(command) == 0 ? failed : 1;
}

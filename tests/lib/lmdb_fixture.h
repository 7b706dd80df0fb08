/* What the tests of the LMDB disk share: a directory for each, journals, and what a load finds. */
#ifndef MU_TEST_LMDB_FIXTURE_H
#define MU_TEST_LMDB_FIXTURE_H

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "core/buf.h"
#include "core/prng.h"
#include "transport/lmdb_disk.h"

#define MAP ((size_t)256 << 20)

static char base[64]; /* everything is in here */
static char dir[128]; /* the data directory, new for each test */
static char file[256];

static inline int set_up(void **state)
{
    static int number;

    (void)state;
    (void)snprintf(dir, sizeof(dir), "%s/%d", base, number++);
    (void)snprintf(file, sizeof(file), "%s/muster.mdb", dir);
    return 0;
}

/* A piece of journal under construction. */
static struct mu_buf journal;

static inline void journal_start(void)
{
    mu_buf_fini(&journal);
    mu_buf_init(&journal, SIZE_MAX);
}

static inline void journal_put(uint8_t op, uint64_t number, const char *key, const void *value,
                               size_t len)
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

static inline int note(void *context, uint8_t op, uint64_t number, struct mu_span key,
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

static inline struct mu_disk *open_disk(size_t map)
{
    struct mu_errmsg msg = {0};
    struct mu_disk *disk = NULL;
    int rc = mu_lmdb_disk_open(dir, map, &disk, &msg);

    if (rc != 0) {
        fail_msg("open: %s", msg.text);
    }
    return disk;
}

static inline void commit(struct mu_disk *disk, uint64_t revision)
{
    struct mu_errmsg msg = {0};
    int rc = disk->ops->commit(disk, mu_buf_span(&journal), revision, &msg);

    if (rc != 0) {
        fail_msg("commit: %s", msg.text);
    }
}

/* Opens and loads. The code, and a digest of what was loaded. */
static inline int try_load(struct found *f, struct mu_errmsg *msg)
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

/** Runs the tests in a directory of their own. */
static inline int lmdb_run(const char *name, const struct CMUnitTest *tests, size_t count)
{
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
    failed = _cmocka_run_group_tests(name, tests, count, NULL, NULL);
    mu_buf_fini(&journal);
    (void)snprintf(command, sizeof(command), "rm -rf %s", base);
    return system(command) == 0 ? failed : 1;
}

#endif

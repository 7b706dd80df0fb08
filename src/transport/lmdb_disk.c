/*
 * One file, DIR/muster.mdb, one unnamed tree with integer keys; lmdb_record.h says what is in it.
 *
 * DIR/lock is flock()ed for as long as the disk is open and holds the pid of the process. So LMDB's
 * own locks, which need shared memory and can become stale, are not used.
 */
#include "transport/lmdb_disk.h"

#include <errno.h>
#include <fcntl.h>
#include <lmdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/list.h"
#include "transport/lmdb_check.h"
#include "transport/lmdb_record.h"

#define DATA_NAME      "muster.mdb"
#define NEW_NAME       "muster.mdb.new"
#define LOCK_NAME      "lock"
#define MAP_FIRST      ((size_t)64 << 20)
#define FILE_STEP      ((size_t)1 << 20)
#define SHOWN_PATH_MAX 90u

struct lmdb_disk {
    struct mu_disk disk;
    MDB_env *env;
    MDB_dbi dbi;
    int lock_fd;
    size_t map_bytes;
    size_t map_max;
    size_t file_bytes; /* the file is at least this long */
    bool failed;
    char dir[SHOWN_PATH_MAX + 4]; /* for texts: the end of a long path */
};

/* Texts of errors. */

static void show_path(char *out, size_t cap, const char *path)
{
    size_t len = strlen(path);

    (void)snprintf(out, cap, "%s%s", len > SHOWN_PATH_MAX ? "..." : "",
                   len > SHOWN_PATH_MAX ? path + len - SHOWN_PATH_MAX : path);
}

/* Whether there is no room, or for now no permission, to write: what is stored stays as it is. */
static bool is_room_missing(int rc)
{
    return rc == ENOSPC || rc == EDQUOT || rc == EFBIG || rc == EROFS || rc == MDB_MAP_FULL;
}

/* The text of a commit that found no room: it can be tried again. */
static int full_error(const struct lmdb_disk *d, int rc, struct mu_errmsg *msg)
{
    if (rc == MDB_MAP_FULL) {
        return mu_err(msg, MUSTER_EFULL,
                      "data directory %s has reached its limit of %zu bytes and takes no more "
                      "changes: raise the limit and start again",
                      d->dir, d->map_max);
    }
    return mu_err(msg, MUSTER_EFULL, "data directory %s takes no more changes (%s): %s", d->dir,
                  strerror(rc), rc == EROFS ? "mount it for writing" : "free space there");
}

/* Makes a text of what LMDB or the system said, with what to do about it. */
static int disk_error(const struct lmdb_disk *d, int rc, const char *doing, struct mu_errmsg *msg)
{
    if (rc == ENOMEM) {
        return mu_err(msg, MUSTER_ENOMEM, "data directory %s: out of memory", d->dir);
    }
    if (rc == ENOSPC || rc == EDQUOT || rc == EFBIG) {
        return mu_err(msg, MUSTER_EDISK,
                      "data directory %s is full (%s): free space there and start again; nothing "
                      "acknowledged was lost",
                      d->dir, strerror(rc));
    }
    if (rc == MDB_MAP_FULL) {
        return mu_err(msg, MUSTER_EDISK,
                      "data directory %s has reached its limit of %zu bytes: raise the limit and "
                      "start again; nothing acknowledged was lost",
                      d->dir, d->map_max);
    }
    if (rc == MDB_CORRUPTED || rc == MDB_PAGE_NOTFOUND || rc == MDB_INVALID ||
        rc == MDB_VERSION_MISMATCH || rc == MDB_BAD_VALSIZE || rc == MDB_INCOMPATIBLE) {
        return mu_err(msg, MUSTER_ECORRUPT,
                      "data directory %s: " DATA_NAME
                      " is damaged (%s): restore it from a copy, or "
                      "move it away to start empty",
                      d->dir, mdb_strerror(rc));
    }
    return mu_err(msg, MUSTER_EDISK, "data directory %s: cannot %s (%s): fix that and start again",
                  d->dir, doing, mdb_strerror(rc));
}

static int corrupt(const struct lmdb_disk *d, struct mu_errmsg *msg, const char *what,
                   uint64_t number)
{
    return mu_err(msg, MUSTER_ECORRUPT,
                  "data directory %s: " DATA_NAME
                  " is damaged (record %llu: %s): restore it from a "
                  "copy, or move it away to start empty",
                  d->dir, (unsigned long long)number, what);
}

/* Loading. */

/* Loads one entry: the head's revision goes to `ret_revision`, a record to `each`. */
static int load_one(struct lmdb_disk *d, const MDB_val *key, const MDB_val *value,
                    mu_disk_each *each, void *context, uint64_t *ret_revision,
                    struct mu_errmsg *msg)
{
    struct mu_span s = mu_span(value->mv_data, value->mv_size);
    struct mu_lmdb_change c;
    const char *wrong;
    uint64_t number;
    uint64_t txn; /* lmdb_check.c has checked it */
    uint32_t format;

    if (key->mv_size != sizeof(number)) {
        return corrupt(d, msg, "its number is malformed", 0);
    }
    memcpy(&number, key->mv_data, sizeof(number));
    if (number != MU_LMDB_HEAD_NUMBER) {
        wrong = mu_lmdb_record_get(number, s, &c);
        if (wrong != NULL) {
            return corrupt(d, msg, wrong, number);
        }
        return each == NULL ? 0 : each(context, c.op, number, c.key, c.value);
    }
    if (!mu_lmdb_head_get(s, &format, ret_revision, &txn)) {
        return corrupt(d, msg, "not the head of a store", number);
    }
    if (format != MU_LMDB_FORMAT) {
        return mu_err(msg, MUSTER_EDISK,
                      "data directory %s has format %u, and this program knows format %u: use "
                      "the program that wrote it",
                      d->dir, format, MU_LMDB_FORMAT);
    }
    return 0;
}

/* Loads all entries in order; without `each` only the first, which is the head. */
static int load_all(struct lmdb_disk *d, MDB_cursor *cursor, mu_disk_each *each, void *context,
                    uint64_t *ret_revision, struct mu_errmsg *msg)
{
    MDB_val key;
    MDB_val value;
    uint64_t revision = UINT64_MAX;
    int rc;

    while ((rc = mdb_cursor_get(cursor, &key, &value, MDB_NEXT)) == 0) {
        int err = load_one(d, &key, &value, each, context, &revision, msg);

        if (err != 0) {
            return err;
        }
        if (each == NULL) {
            break;
        }
    }
    if (rc != 0 && rc != MDB_NOTFOUND) {
        return disk_error(d, rc, "read it", msg);
    }
    if (revision == UINT64_MAX) {
        return corrupt(d, msg, "the head of the store is missing", MU_LMDB_HEAD_NUMBER);
    }
    *ret_revision = revision;
    return 0;
}

static int disk_load(struct mu_disk *disk, mu_disk_each *each, void *context,
                     uint64_t *ret_revision, struct mu_errmsg *msg)
{
    struct lmdb_disk *d = MU_CONTAINER_OF(disk, struct lmdb_disk, disk);
    MDB_txn *txn;
    MDB_cursor *cursor;
    int rc = mdb_txn_begin(d->env, NULL, MDB_RDONLY, &txn);

    if (rc != 0) {
        return disk_error(d, rc, "read it", msg);
    }
    rc = mdb_cursor_open(txn, d->dbi, &cursor);
    if (rc != 0) {
        rc = disk_error(d, rc, "read it", msg);
    } else {
        rc = load_all(d, cursor, each, context, ret_revision, msg);
        mdb_cursor_close(cursor);
    }
    mdb_txn_abort(txn);
    return rc;
}

/* Committing. */

static int apply_change(struct lmdb_disk *d, MDB_txn *txn, struct mu_lmdb_change *c)
{
    MDB_val key = {sizeof(c->number), &c->number};
    MDB_val value = {mu_lmdb_record_len(c), NULL};
    int rc;

    if (c->op == MU_LMDB_DELETE) {
        rc = mdb_del(txn, d->dbi, &key, NULL);
        return rc == MDB_NOTFOUND ? 0 : rc;
    }
    rc = mdb_put(txn, d->dbi, &key, &value, MDB_RESERVE);
    if (rc == 0) {
        mu_lmdb_record_put(value.mv_data, c);
    }
    return rc;
}

static int put_revision(struct lmdb_disk *d, MDB_txn *txn, uint64_t revision)
{
    uint64_t number = MU_LMDB_HEAD_NUMBER;
    uint8_t head[MU_LMDB_HEAD_BYTES];
    MDB_val key = {sizeof(number), &number};
    MDB_val value = {sizeof(head), head};

    mu_lmdb_head_put(head, revision, mdb_txn_id(txn));
    return mdb_put(txn, d->dbi, &key, &value, 0);
}

/*
 * Makes the file long enough for all pages that a transaction can add. LMDB may count pages at the
 * end that it never writes, so a sound file could be shorter than it says, and one that was cut off
 * could not be told from it. The sync within the commit makes the length durable before the commit
 * is. The file is sparse; this takes no space.
 */
static int extend_file(struct lmdb_disk *d, const struct mu_lmdb_change *changes, size_t count)
{
    MDB_envinfo info;
    MDB_stat stat;
    uint64_t pages;
    uint64_t bytes;
    mdb_filehandle_t fd;
    int rc = mdb_env_stat(d->env, &stat);

    if (rc != 0 || (rc = mdb_env_info(d->env, &info)) != 0 ||
        (rc = mdb_env_get_fd(d->env, &fd)) != 0) {
        return rc;
    }
    /* A change touches the pages on its way down and may split each of them; the list of free pages
     * grows by a five-hundredth of what is freed. This is a multiple of what all that can reach. */
    pages = info.me_last_pgno + 1 + info.me_last_pgno / 64 + 256 +
            4 * (uint64_t)(stat.ms_depth + 3) * (count + 1);
    for (size_t i = 0; i < count; i++) {
        pages += (changes[i].key.len + changes[i].value.len) / stat.ms_psize * 2;
    }
    bytes = (pages * stat.ms_psize + FILE_STEP - 1) / FILE_STEP * FILE_STEP;
    bytes = bytes < d->map_bytes ? bytes : d->map_bytes;
    if (bytes <= d->file_bytes) {
        return 0;
    }
    if (ftruncate(fd, (off_t)bytes) != 0) {
        return errno;
    }
    d->file_bytes = (size_t)bytes;
    return 0;
}

static int commit_once(struct lmdb_disk *d, struct mu_lmdb_change *changes, size_t count,
                       uint64_t revision)
{
    MDB_txn *txn;
    int rc = extend_file(d, changes, count);

    if (rc == 0) {
        rc = mdb_txn_begin(d->env, NULL, 0, &txn);
    }
    if (rc != 0) {
        return rc;
    }
    for (size_t i = 0; rc == 0 && i < count; i++) {
        rc = apply_change(d, txn, &changes[i]);
    }
    if (rc == 0) {
        rc = put_revision(d, txn, revision);
    }
    if (rc != 0) {
        mdb_txn_abort(txn);
        return rc;
    }
    return mdb_txn_commit(txn);
}

static int grow_map(struct lmdb_disk *d)
{
    size_t want = d->map_bytes > d->map_max / 2 ? d->map_max : d->map_bytes * 2;
    int rc;

    if (want <= d->map_bytes) {
        return MDB_MAP_FULL;
    }
    rc = mdb_env_set_mapsize(d->env, want);
    if (rc == 0) {
        d->map_bytes = want;
    }
    return rc;
}

/* LMDB calls a short write an I/O error, whatever the cause. */
static bool is_full(struct lmdb_disk *d, size_t wanted)
{
    mdb_filehandle_t fd;
    struct statvfs st;

    return mdb_env_get_fd(d->env, &fd) == 0 && fstatvfs(fd, &st) == 0 &&
           st.f_bavail < (2 * (uint64_t)wanted + FILE_STEP) / st.f_frsize;
}

static int disk_commit(struct mu_disk *disk, struct mu_span journal, uint64_t revision,
                       struct mu_errmsg *msg)
{
    struct lmdb_disk *d = MU_CONTAINER_OF(disk, struct lmdb_disk, disk);
    struct mu_lmdb_change *changes = NULL;
    size_t count = 0;
    int rc;

    if (d->failed) {
        return mu_err(msg, MUSTER_EDISK, "data directory %s has failed before: start again",
                      d->dir);
    }
    d->failed = true;
    rc = mu_lmdb_journal_sort(journal, &changes, &count);
    if (rc != 0) {
        return mu_err(msg, rc, "data directory %s: cannot read a piece of journal: %s", d->dir,
                      muster_strerror(rc));
    }
    while ((rc = commit_once(d, changes, count, revision)) == MDB_MAP_FULL) {
        rc = grow_map(d);
        if (rc != 0) {
            break;
        }
    }
    mu_free(changes);
    if (rc == EIO && is_full(d, journal.len)) {
        rc = ENOSPC;
    }
    if (is_room_missing(rc)) {
        d->failed = false;
        return full_error(d, rc, msg);
    }
    if (rc != 0) {
        return disk_error(d, rc, "write to it", msg);
    }
    d->failed = false;
    return 0;
}

/* Opening and closing. */

static void disk_close(struct mu_disk *disk)
{
    struct lmdb_disk *d = MU_CONTAINER_OF(disk, struct lmdb_disk, disk);

    if (d->env != NULL) {
        mdb_env_close(d->env);
    }
    if (d->lock_fd >= 0) {
        (void)close(d->lock_fd);
    }
    mu_free(d);
}

static const struct mu_disk_ops ops = {
    .load = disk_load,
    .commit = disk_commit,
    .close = disk_close,
};

/* The pid that is in the lock file, 0 if it cannot be read. */
static long read_pid(int fd)
{
    char text[24] = "";
    ssize_t n = pread(fd, text, sizeof(text) - 1, 0);

    return n <= 0 ? 0 : strtol(text, NULL, 10);
}

static int take_lock(struct lmdb_disk *d, int dir_fd, struct mu_errmsg *msg)
{
    char text[24];
    int len = snprintf(text, sizeof(text), "%ld\n", (long)getpid());

    d->lock_fd = openat(dir_fd, LOCK_NAME, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (d->lock_fd < 0) {
        return disk_error(d, errno, "open its lock file", msg);
    }
    if (flock(d->lock_fd, LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK) {
            return disk_error(d, errno, "lock it", msg);
        }
        return mu_err(msg, MUSTER_EBUSY,
                      "data directory %s is in use by process %ld: stop it, or use another "
                      "directory",
                      d->dir, read_pid(d->lock_fd));
    }
    /* Only for the text above: the lock holds without the pid. */
    if (ftruncate(d->lock_fd, 0) == 0) {
        (void)!pwrite(d->lock_fd, text, (size_t)len, 0);
    }
    return 0;
}

/* Opens LMDB on DIR/`name`. An errno or LMDB's code. */
static int open_env(struct lmdb_disk *d, const char *dir, const char *name)
{
    size_t cap = strlen(dir) + strlen(name) + 2;
    char *path = mu_malloc(cap);
    mdb_filehandle_t fd;
    MDB_txn *txn;
    int rc;

    if (path == NULL) {
        return ENOMEM;
    }
    (void)snprintf(path, cap, "%s/%s", dir, name);
    rc = mdb_env_create(&d->env);
    if (rc == 0) {
        rc = mdb_env_set_mapsize(d->env, d->map_bytes);
    }
    if (rc == 0) {
        rc = mdb_env_open(d->env, path, MDB_NOSUBDIR | MDB_NOLOCK, 0600);
    }
    if (rc == 0 && (rc = mdb_env_get_fd(d->env, &fd)) == 0) {
        /* LMDB does not set it on this one. */
        (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
        rc = mdb_txn_begin(d->env, NULL, 0, &txn);
    }
    if (rc == 0) {
        rc = mdb_dbi_open(txn, NULL, MDB_INTEGERKEY | MDB_CREATE, &d->dbi);
        if (rc == 0) {
            rc = mdb_txn_commit(txn);
        } else {
            mdb_txn_abort(txn);
        }
    }
    mu_free(path);
    return rc;
}

/* Makes an empty store under another name, then renames it: the file is always whole. */
static int make_new(struct lmdb_disk *d, const char *dir, int dir_fd)
{
    int rc;

    (void)unlinkat(dir_fd, NEW_NAME, 0);
    rc = open_env(d, dir, NEW_NAME);
    if (rc == 0) {
        rc = commit_once(d, NULL, 0, 0);
    }
    if (d->env != NULL) {
        mdb_env_close(d->env);
        d->env = NULL;
    }
    if (rc == 0 && (renameat(dir_fd, NEW_NAME, dir_fd, DATA_NAME) != 0 || fsync(dir_fd) != 0)) {
        rc = errno;
    }
    if (rc == 0) {
        /* The directory itself may be new. If its parent cannot be opened, it is not. */
        int above = openat(dir_fd, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);

        if (above >= 0) {
            rc = fsync(above) == 0 ? 0 : errno;
            (void)close(above);
        }
    }
    return rc;
}

static int check_file(struct lmdb_disk *d, int dir_fd, struct mu_errmsg *msg)
{
    int fd = openat(dir_fd, DATA_NAME, O_RDWR | O_CLOEXEC);
    struct mu_errmsg why = {0};
    struct stat st;
    int rc;

    if (fd < 0 || fstat(fd, &st) != 0) {
        rc = disk_error(d, errno, "open " DATA_NAME, msg);
    } else {
        d->file_bytes = (size_t)st.st_size;
        rc = mu_lmdb_check(fd, &why);
        if (rc == MUSTER_ECORRUPT) {
            (void)mu_err(msg, rc,
                         "data directory %s: " DATA_NAME " is damaged (%s): restore it from a "
                         "copy, or move it away to start empty",
                         d->dir, why.text);
        } else if (rc != 0) {
            (void)mu_err(msg, rc, "data directory %s: " DATA_NAME ": %s", d->dir, why.text);
        }
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return rc;
}

static int open_data(struct lmdb_disk *d, const char *dir, int dir_fd, struct mu_errmsg *msg)
{
    uint64_t revision;
    int rc;

    if (faccessat(dir_fd, DATA_NAME, F_OK, 0) != 0 && errno == ENOENT) {
        rc = make_new(d, dir, dir_fd);
        if (rc != 0) {
            return disk_error(d, rc, "make " DATA_NAME " in it", msg);
        }
    }
    rc = check_file(d, dir_fd, msg);
    if (rc != 0) {
        return rc;
    }
    /* What is stored is read even if the limit was lowered since. */
    d->map_max = d->map_max < d->file_bytes ? d->file_bytes : d->map_max;
    d->map_bytes = d->map_bytes < d->file_bytes ? d->file_bytes : d->map_bytes;
    rc = open_env(d, dir, DATA_NAME);
    if (rc != 0) {
        return disk_error(d, rc, "open " DATA_NAME, msg);
    }
    return disk_load(&d->disk, NULL, NULL, &revision, msg);
}

int mu_lmdb_disk_open(const char *dir, size_t map_bytes, struct mu_disk **ret_disk,
                      struct mu_errmsg *reterr_msg)
{
    struct lmdb_disk *d = mu_calloc(1, sizeof(*d));
    int dir_fd = -1;
    int rc;

    if (d == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    d->disk.ops = &ops;
    d->lock_fd = -1;
    d->map_max = map_bytes < FILE_STEP ? FILE_STEP : map_bytes / FILE_STEP * FILE_STEP;
    d->map_bytes = d->map_max < MAP_FIRST ? d->map_max : MAP_FIRST;
    show_path(d->dir, sizeof(d->dir), dir);
    if (mkdir(dir, 0700) != 0 && errno != EEXIST) {
        rc = disk_error(d, errno, "make it", reterr_msg);
    } else if ((dir_fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC)) < 0) {
        rc = disk_error(d, errno, "open it", reterr_msg);
    } else {
        rc = take_lock(d, dir_fd, reterr_msg);
        if (rc == 0) {
            rc = open_data(d, dir, dir_fd, reterr_msg);
        }
        (void)close(dir_fd);
    }
    if (rc != 0) {
        disk_close(&d->disk);
        return rc;
    }
    *ret_disk = &d->disk;
    return 0;
}

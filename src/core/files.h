/*
 * What a service may ask of the file system and of the terminal: directories of logs, files to
 * write, small files to read, our own standard output. transport/uv_files.c has the real one, tests
 * have one in memory.
 *
 * Calls on directories and regular files are plain system calls: they wait for the disk, so that a
 * worker's last line is not lost when everything dies. A console never waits: it takes what it can
 * and says when there is room.
 */
#ifndef MU_FILES_H
#define MU_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/child.h"
#include "core/err.h"
#include "core/span.h"

struct mu_files;
struct mu_sink;

/* A place to write bytes to. */
struct mu_sink_ops {
    /**
     * Writes what can be written now and says how much. If that is not all, `writable` follows. A
     * sink that failed (a full disk, a closed pipe) takes everything and keeps the reason in
     * `error`. `data` is borrowed for the call.
     */
    void (*write)(struct mu_sink *sink, struct mu_span data, size_t *ret_taken);
    /** The last call; everything that was taken was written. */
    void (*close)(struct mu_sink *sink);
};

struct mu_sink {
    const struct mu_sink_ops *ops;
    void (*writable)(struct mu_sink *sink); /* the user's; on a later turn. NULL: never asked for */
    void *user;                             /* the user's */
    int error;                              /* 0, or why nothing is written any more */
};

struct mu_files_ops {
    /** Makes a directory and those above it; an existing one is fine. A negated errno. */
    int (*make_dir)(struct mu_files *files, const char *path, struct mu_errmsg *reterr_msg);
    /**
     * Makes a new directory: `path` with six characters appended. Writes its name into `ret`, of
     * `cap` bytes. A negated errno, MUSTER_ELIMIT if the name does not fit.
     */
    int (*make_unique_dir)(struct mu_files *files, const char *path, char *ret, size_t cap,
                           struct mu_errmsg *reterr_msg);
    /** Removes a directory and everything in it; links are not followed. A missing one is fine. */
    int (*remove_dir)(struct mu_files *files, const char *path, struct mu_errmsg *reterr_msg);
    /**
     * Removes the empty directories in `path`, and `path` itself if it is empty then; links are not
     * followed.
     */
    void (*prune_dir)(struct mu_files *files, const char *path);
    /** Opens a file to write from its start on, emptied. MUSTER_ENOMEM, or a negated errno. */
    int (*create)(struct mu_files *files, const char *path, struct mu_sink **ret_sink,
                  struct mu_errmsg *reterr_msg);
    /** Reads the end of a file: at most `cap` bytes. -ENOENT, or another negated errno. */
    int (*read_end)(struct mu_files *files, const char *path, uint8_t *buf, size_t cap,
                    size_t *ret_len, struct mu_errmsg *reterr_msg);
    /**
     * Our standard output or error. When both are one terminal, pipe or file they are one sink, so
     * that neither cuts a line of the other in two; it is closed once for each.
     */
    int (*console)(struct mu_files *files, enum mu_stream stream, struct mu_sink **ret_sink,
                   struct mu_errmsg *reterr_msg);
    /** Frees it; all its sinks must have been closed. */
    void (*close)(struct mu_files *files);
};

struct mu_files {
    const struct mu_files_ops *ops;
};

#endif

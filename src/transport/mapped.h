/*
 * Files and memory whose pages can be sent without being read. A mapping is memory like any other
 * for the code that sends it: mu_env_sendv() of the libuv environment finds that a span lies in a
 * mapping and lets the kernel send the pages of the file (sendfile), so that no byte is copied
 * here. To processes on this host it is sent like any memory, which takes a third less processor
 * time than sending single pages.
 *
 *     mu_mapped_open(path, &m, &msg);        a file to be read
 *     mu_mapped_create(path, len, &m, &msg); a file to be filled
 *     mu_mapped_create_ahead(...);           the same, for those who populate it before they write
 *     mu_mapped_begin(path, &m, &msg);       a file to be filled, of a length that is not known yet
 *     mu_mapped_memory(len, &m, &msg);       memory with no name in the file system
 *     ... send spans of m->data ...
 *     mu_mapped_close(m);
 *
 * Other programs may cut a file short while it is mapped, and a process that then reads such memory
 * is killed (SIGBUS). So the environment never reads spans of a mapping: where the kernel finds no
 * bytes, the connection ends with -EIO. Code that does not own the file reads it with
 * mu_mapped_read().
 *
 * All functions may be called from any thread.
 */
#ifndef MU_MAPPED_H
#define MU_MAPPED_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/err.h"
#include "core/list.h"
#include "core/span.h"

struct mu_mapped {
    uint8_t *data; /* writable if the file is */
    size_t len;
    /* private from here */
    int fd;
    uint64_t sent; /* to the disk, of a file of mu_mapped_begin() */
    struct mu_list link;
};

/** Maps a whole ordinary file. A negated errno, MUSTER_EINVAL (not an ordinary file),
 * MUSTER_ENOMEM. An empty file has no `data`. */
int mu_mapped_open(const char *path, struct mu_mapped **ret, struct mu_errmsg *reterr_msg);
/**
 * Maps a file of `len` bytes to be filled, new or existing; what it holds stays. Its room on the
 * disk is reserved now (-ENOSPC), if the file system can do that. The file is locked: -EWOULDBLOCK
 * means that another process fills it. Links are not followed (-ELOOP), and an existing file must
 * be ours and have no other name (-EPERM). Errors as mu_mapped_open().
 */
int mu_mapped_create(const char *path, size_t len, struct mu_mapped **ret,
                     struct mu_errmsg *reterr_msg);
/**
 * The same for those who call mu_mapped_populate() for each range before they write to it. A file
 * system in memory is not asked for all of its room here: that takes as long as writing the file.
 */
int mu_mapped_create_ahead(const char *path, size_t len, struct mu_mapped **ret,
                           struct mu_errmsg *reterr_msg);
/**
 * Opens a file to be filled, new or existing, that is as long as what is written into it; what it
 * holds stays. It has no `data` before mu_mapped_end(). Locks, links and errors as
 * mu_mapped_create().
 */
int mu_mapped_begin(const char *path, struct mu_mapped **ret, struct mu_errmsg *reterr_msg);
/** Writes into such a file, and lets the disk begin. A negated errno. */
int mu_mapped_write(struct mu_mapped *m, uint64_t offset, const void *bytes, size_t len);
/** The file is as long as this: maps it. A negated errno. */
int mu_mapped_end(struct mu_mapped *m, size_t len);
/** Zeroed memory. MUSTER_ENOMEM, or a negated errno. */
int mu_mapped_memory(size_t len, struct mu_mapped **ret, struct mu_errmsg *reterr_msg);
/**
 * Makes memory ready to be written to, mapped or not: takes all of its pages now, many at a time,
 * in less time than they would take one by one as they are written to. It blocks. What it holds
 * stays. -ENOSPC: the file system has no room for it; MUSTER_ENOMEM; MUSTER_ENOTSUP: this kernel
 * cannot do that.
 */
int mu_mapped_populate(void *data, size_t len);
/** No span of it may still be waiting to be sent. NULL is fine. */
void mu_mapped_close(struct mu_mapped *m);
/** Reads without touching the mapping: all of it, or MUSTER_EDISK (cut short), a negated errno. */
int mu_mapped_read(const struct mu_mapped *m, uint64_t offset, void *buf, size_t len);
/** Where bytes that were ever written begin, from `offset` on; `len` of the mapping if there are no
 * such bytes. `offset` if the file system cannot tell. */
uint64_t mu_mapped_next_data(const struct mu_mapped *m, uint64_t offset);
/** Syncs what was written so far to the disk. A negated errno. */
int mu_mapped_sync(const struct mu_mapped *m);

/* For the environment. */

/** For tests: pages are sent to this host, too. */
extern bool mu_mapped_even_near;
/** Whether the span lies in a mapping. */
bool mu_mapped_has(struct mu_span span);
/**
 * Sends what the socket takes of a span that lies in a mapping. Returns how
 * much, or a negated errno: -EIO when the file has become too short, -ENOENT when the span lies in
 * no mapping. Raises no SIGPIPE.
 */
ssize_t mu_mapped_send(int fd, struct mu_span span);

#endif

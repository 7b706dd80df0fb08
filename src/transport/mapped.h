/*
 * Files and memory whose pages can be sent without being looked at. A mapping is memory like any
 * other to whoever sends it: mu_env_sendv() of the libuv environment finds that a span lies in one
 * and has the kernel send the pages of the file (sendfile), so that no byte of it is copied here.
 * To processes of this host it is sent as any memory is, which takes a third less of the processor
 * than the pages do one by one.
 *
 *     mu_mapped_open(path, &m, &msg);        a file to be read
 *     mu_mapped_create(path, len, &m, &msg); a file to be filled
 *     mu_mapped_memory(len, &m, &msg);       memory with no name in the file system
 *     ... send spans of m->data ...
 *     mu_mapped_close(m);
 *
 * A file may be cut short by others while it is mapped, and who reads such memory then is killed
 * (SIGBUS). So spans of a mapping are never read by the environment: where the kernel finds no
 * bytes, the connection ends with -EIO. Users who do not own the file read it with
 * mu_mapped_read().
 *
 * From any thread.
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
    uint8_t *data; /* writable where the file is */
    size_t len;
    /* private from here */
    int fd;
    struct mu_list link;
};

/** An ordinary file, whole. A negated errno, MUSTER_EINVAL (no ordinary file), MUSTER_ENOMEM. An
 * empty file has no `data`. */
int mu_mapped_open(const char *path, struct mu_mapped **ret, struct mu_errmsg *reterr_msg);
/**
 * A file of `len` bytes to be filled, there or not; what it holds stays. Room for it on the disk is
 * taken now (-ENOSPC), where the file system can do that. It is locked: -EWOULDBLOCK says that
 * another process fills it. Links are not followed (-ELOOP), and one that was there before is ours,
 * by no other name (-EPERM). Errors as mu_mapped_open().
 */
int mu_mapped_create(const char *path, size_t len, struct mu_mapped **ret,
                     struct mu_errmsg *reterr_msg);
/** Zeroed memory. MUSTER_ENOMEM, or a negated errno. */
int mu_mapped_memory(size_t len, struct mu_mapped **ret, struct mu_errmsg *reterr_msg);
/** Nothing of it may be about to be sent. NULL is fine. */
void mu_mapped_close(struct mu_mapped *m);
/** Reads without touching the mapping: all of it, or MUSTER_EDISK (cut short), a negated errno. */
int mu_mapped_read(const struct mu_mapped *m, uint64_t offset, void *buf, size_t len);
/** Where bytes that were ever written begin, from `offset` on; `len` of the mapping if there are
 * none. A file system that cannot tell says `offset`. */
uint64_t mu_mapped_next_data(const struct mu_mapped *m, uint64_t offset);
/** Has what was written so far reach the disk. A negated errno. */
int mu_mapped_sync(const struct mu_mapped *m);

/* For the environment. */

/** For tests: the pages are sent to this host, too. */
extern bool mu_mapped_even_near;
/** Whether the span lies in a mapping. */
bool mu_mapped_has(struct mu_span span);
/**
 * Sends what the socket takes of a span that lies in a mapping. Returns how
 * much, or a negated errno: -EIO when the file is too short by now, -ENOENT when the span lies in
 * none. Raises no SIGPIPE.
 */
ssize_t mu_mapped_send(int fd, struct mu_span span);

#endif

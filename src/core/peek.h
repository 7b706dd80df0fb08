/*
 * What can be seen of another process of this machine without touching it: it is not stopped, not
 * traced, and nothing in it changes; but for `poke`, which does what the process asks for by
 * listening. transport/proc_peek.c has the real one; on a simulated machine, the scenario says what
 * can be seen.
 *
 * Each call may wait for the disk or the kernel, so it belongs on a thread of its own (the verb
 * `work`). Different threads may look at different processes at the same time; what `open` returns
 * belongs to one of them.
 */
#ifndef MU_PEEK_H
#define MU_PEEK_H

#include <stddef.h>
#include <stdint.h>

struct mu_peek_process;

/* All return 0 or a negated errno; -ESRCH: there is no such process (any more). */
struct mu_peek {
    int (*open)(int64_t pid, struct mu_peek_process **ret);
    /** NULL is fine. */
    void (*close)(struct mu_peek_process *p);
    /** 0: the process that was opened is still there, and no other one has got its number. */
    int (*same)(struct mu_peek_process *p);
    /** Copies memory. -EPERM: we may not look; -EFAULT: not all of it is there. */
    int (*read)(struct mu_peek_process *p, uint64_t addr, void *to, size_t len);
    /** Where its program is, as it sees the file system; not terminated. */
    int (*exe)(struct mu_peek_process *p, char *buf, size_t cap, size_t *ret_len);
    /** Its threads, in the order of their numbers; of more than `cap`, the first. */
    int (*threads)(struct mu_peek_process *p, uint64_t *tids, size_t cap, size_t *ret_count);
    /** Reads a file of /proc/PID (`tid` 0) or /proc/PID/task/TID from `offset` on; an empty piece
     * is the end. One that is longer than `cap` is read piece by piece, with no other call of this
     * kind between. */
    int (*text)(struct mu_peek_process *p, uint64_t tid, const char *name, uint64_t offset,
                char *buf, size_t cap, size_t *ret_len);
    /** Reads a file of /proc itself from its beginning, as much as fits: what is known of the whole
     * machine. */
    int (*machine)(const char *name, char *buf, size_t cap, size_t *ret_len);
    /** Opens a file by the path that it has for the process, or its program (NULL), and closes the
     * one before. -EIO: it is not a plain file. */
    int (*open_file)(struct mu_peek_process *p, const char *path);
    /** How long that file is, and a number that differs once somebody has written to it. */
    int (*file_state)(struct mu_peek_process *p, uint64_t *ret_len, uint64_t *ret_mark);
    /** Reads from that file. -EIO: it is shorter. */
    int (*read_file)(struct mu_peek_process *p, uint64_t offset, void *to, size_t len);
    /** Writes a byte to a named pipe, by the path that it has for the process, without waiting.
     * -ENXIO: nobody reads from it; -ENOENT; -EIO: it is not a pipe, or another user's. */
    int (*poke)(struct mu_peek_process *p, const char *path);
};

#endif

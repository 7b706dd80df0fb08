/*
 * All processes, read from /proc. Both we and our watcher use this; the watcher is forked from a
 * process with threads and may touch nothing that takes a lock, so nothing here allocates, formats,
 * or calls into libc beyond system calls and memory functions.
 */
#ifndef MU_PROC_TABLE_H
#define MU_PROC_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* What getdents64() fills in. */
struct mu_dirent {
    uint64_t ino;
    int64_t off;
    uint16_t len;
    uint8_t type;
    char name[];
};

struct mu_proc {
    pid_t pid;
    pid_t ppid;
    pid_t pgid;
    pid_t sid;
    uint64_t start;   /* since boot, in ticks: together with the pid it identifies a process */
    uint64_t env_len; /* bytes of the environment that it was started with */
    bool env_known;   /* false: it is becoming another program, or ending */
    bool dead;        /* a zombie, with no thread left */
    bool kernel;      /* a thread of the kernel */
    void *owner;      /* for the caller's use; NULL after reading */
};

struct mu_proc_table {
    struct mu_proc *procs; /* in ascending order of pid, if `sorted` */
    size_t count;
    size_t cap;
    bool sorted;
};

/** Reserves room for as many processes as there can be; memory is used only while the table holds
 * something. A negated errno. */
int mu_proc_table_init(struct mu_proc_table *t);
void mu_proc_table_fini(struct mu_proc_table *t);
/** Reads all of /proc. A negated errno; the table is empty then. */
int mu_proc_table_read(struct mu_proc_table *t);
/** Gives the memory back. */
void mu_proc_table_clear(struct mu_proc_table *t);
struct mu_proc *mu_proc_table_find(const struct mu_proc_table *t, pid_t pid);

/** One process. -ESRCH, or another negated errno. */
int mu_proc_read(pid_t pid, struct mu_proc *ret);

/* How long a mark in an environment may be. */
#define MU_PROC_MARK_MAX 512

/**
 * The value of the variable `name` that the process was started with, cut at MU_PROC_MARK_MAX - 1.
 * -ENOENT if it has no such variable or it cannot be read. -EAGAIN if that is unknown now: in the
 * middle of an exec a process has no environment, and gets another one; so look again.
 */
int mu_proc_variable(const struct mu_proc *proc, const char *name, char ret[MU_PROC_MARK_MAX]);
/** The number after `text` in the path of the process's cgroup (v2); false: there is none. */
bool mu_proc_cgroup_number(pid_t pid, const char *text, uint64_t *ret);

/** Signals exactly that process, never another one that got its pid meanwhile. A negated errno. */
int mu_proc_signal(const struct mu_proc *proc, int signal);

/** Writes `dir`/`number`/`file` (`file` may be NULL) into `buf`; false if it does not fit. */
bool mu_proc_path(char *buf, size_t cap, const char *dir, uint64_t number, const char *file);

/* The system calls that C libraries do not all have. Negated errnos. */
int mu_pidfd_open(pid_t pid);
int mu_pidfd_signal(int fd, int signal);

#endif

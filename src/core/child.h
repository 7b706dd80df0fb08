/*
 * Child processes, as the environment provides them (core/env.h: spawn, child_signal, child_resume,
 * child_leave, standbys_open, standbys_want, standbys_close).
 *
 *     child.on = &events;
 *     mu_env_spawn(env, &child, &what)
 *       started(child, 0)            the program runs; or a negative code, and it never did
 *       output(child, stream, ...)   bytes of a piped stream; an empty span is its end
 *       exited(child, 3)             the process has ended and was reaped
 *       output(child, stream, ...)   what its descendants still write
 *       gone(child)                  the last callback: no process of its family is left
 *
 * The family of a child is the process itself, its process group, and all its descendants, whatever
 * sessions and groups they moved into and whichever of their parents have died. The environment
 * takes orphans in (it makes this process a subreaper), so it finds and reaps them. It recognises
 * members by descent, by session and group, by a cgroup of their own if one can be made, and by the
 * variable MU_CHILD_MARK in their environment. A process that gave up all of these while its
 * parents died cannot be told from one of another family: it counts as a stray, and strays go with
 * the last child (they are killed with it, and its `gone` waits for them). Where orphans of no
 * family come to us as well (as pid 1, or if this process had children before the first spawn)
 * there are no strays: a process that we do not recognise is reaped and left alone.
 *
 * No child outlives us. When this process dies, in whatever way, the kernel sends `death_signal` to
 * the children, and a watcher (a small process of our own, started with the first child) kills what
 * is left of the families, then ends. The thread that spawns must live as long as its children,
 * because the kernel treats its end as ours. Without a cgroup, the watcher cannot reach strays.
 */
#ifndef MU_CHILD_H
#define MU_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "core/span.h"
#include "core/vault.h"

struct mu_child;
struct mu_conn;
struct mu_env;

/** Added to the child's environment: a text that only its family has. */
#define MU_CHILD_MARK "MUSTER_CHILD"
/** The descriptor of the child's end of `channel`. */
#define MU_CHILD_CHANNEL_FD 3
/** How many vaults a child can have, and the descriptor of the first: so high that no program has
 * put anything there when a standby becomes a worker. */
#define MU_CHILD_VAULTS_MAX 4
#define MU_CHILD_VAULT_FD   1000
/** How many standbys of one zygote may wait. */
#define MU_STANDBYS_MAX 4096

/* The numbers are the descriptors in the child. */
enum mu_stream {
    MU_STDIN = 0,
    MU_STDOUT = 1,
    MU_STDERR = 2,
};

/* Where a stream of the child leads. */
enum mu_spawn_to {
    MU_SPAWN_NULL = 0,    /* the null device */
    MU_SPAWN_INHERIT,     /* where ours leads */
    MU_SPAWN_FILE,        /* `path`: read it, or write to it from its start on, emptied */
    MU_SPAWN_FILE_APPEND, /* `path`: append; not for stdin */
    MU_SPAWN_PIPE,        /* to us, as `output`; not for stdin */
};

struct mu_spawn_stream {
    enum mu_spawn_to to;
    const char *path;
};

/* A set of CPUs, in the form of the kernel's: bit N%64 of word N/64 is CPU N. */
#define MU_CPUS_MAX 4096
struct mu_cpus {
    uint64_t bits[MU_CPUS_MAX / 64];
};

struct mu_standbys;

/* What to start. Everything in it is borrowed for the call. */
struct mu_spawn {
    const char *const *argv; /* up to a NULL; argv[0] without a slash is sought in envp's PATH */
    const char *const *envp; /* up to a NULL; the whole environment, MU_CHILD_MARK is added */
    const char *cwd;         /* or NULL: ours */
    struct mu_spawn_stream streams[3]; /* by enum mu_stream */
    int death_signal;                  /* sent by the kernel when we die; 0: SIGKILL */
    const struct mu_cpus *cpus;        /* on which it and its children run; NULL: as we. The
                                          simulator has no CPUs */
    bool sentinel; /* `dying` is called: the program gets one more, very high descriptor */
    /**
     * NULL, or a connection to the child, whose end of it is descriptor MU_CHILD_CHANNEL_FD. It is
     * a connection like any other, open from the start (`open` is not called), with a life of its
     * own: it may end before or after the child, and its owner closes it. If spawn returns an
     * error, the connection was not touched. The simulator has no channels: MUSTER_ENOTSUP.
     */
    struct mu_conn *channel;
    /**
     * Vaults of the child, or NULL: number i is its descriptor MU_CHILD_VAULT_FD + i, unless the
     * limit of descriptors is below that; then it gets none. A zygote has none.
     */
    const struct mu_vault *vaults[MU_CHILD_VAULTS_MAX];
    /**
     * NULL, or standbys: one of those that wait becomes the child, instead of a new process. The
     * command must be the one that they were made for; only the last words of argv may differ. If
     * spawn returns an error, MUSTER_EAGAIN for none that waits, it can be called again without.
     */
    struct mu_standbys *from;
};

struct mu_child_events {
    /**
     * The first callback. 0: the program runs, child->pid is known. A negated errno: it does not
     * run, child->error says which step failed ("exec 'x': No such file or directory"), and only
     * `gone` follows.
     */
    void (*started)(struct mu_child *child, int status);
    /**
     * Bytes of a stream with MU_SPAWN_PIPE; an empty span is the stream's end, which always comes
     * once the program runs. Returns how many bytes were used. If not all were, the environment
     * keeps the rest and reads no more of this stream until mu_env_child_resume(), which delivers
     * the rest again. The span is valid until the callback returns. Not called when no stream is a
     * pipe.
     */
    size_t (*output)(struct mu_child *child, enum mu_stream stream, struct mu_span in);
    /**
     * With `sentinel`: the process is about to end, or has closed all it had open. It is a hint,
     * not a proof. The kernel closes the highest descriptor first, so this comes before the other
     * end of any of the process's connections can see it closed, unless children of the process
     * have that descriptor as well. At most once, before `exited`. May be NULL; the simulator never
     * calls it.
     */
    void (*dying)(struct mu_child *child);
    /**
     * The process has ended: its exit code, or the negated number of the signal that ended it. What
     * it had written to its pipes was delivered before, unless a stream is paused. Its descendants
     * may live on; only the owner stops them, with mu_env_child_signal().
     */
    void (*exited)(struct mu_child *child, int status);
    /**
     * The last callback, once for each spawn that returned 0: no process of the family is left,
     * every stream has ended. It waits for a stream that is paused. The memory is the owner's
     * again.
     */
    void (*gone)(struct mu_child *child);
};

struct mu_child {
    const struct mu_child_events *on; /* set before spawn */
    struct mu_env *env;               /* set by the environment, as all that follows */
    int64_t pid;                      /* valid from `started` on; after `exited` another process may
                                         have it */
    struct mu_errmsg error;           /* why it did not start */
    void *impl;
};

/*
 * Standbys: processes that have done the slow part of a program's start and wait to become a child
 * (`from` in struct mu_spawn). They are forked by another process, the zygote, which the verb
 * standbys_open starts: a program that knows what to do with the socket that is its descriptor
 * MU_CHILD_CHANNEL_FD (docs/warm.md).
 *
 *     standbys.on = &events;
 *     mu_env_standbys_open(env, &standbys, &what)
 *     mu_env_standbys_want(env, &standbys, 4)
 *       changed(standbys)              standbys->waiting is another number
 *     what.from = &standbys; mu_env_spawn(env, &child, &what)
 *     mu_env_standbys_close(env, &standbys)
 *       ended(standbys, NULL)          the last callback; also without a close, with the reason
 *
 * A standby that became a child is not bound to the others any more. The rest ends with the zygote.
 */
struct mu_standbys_events {
    /** More of them wait than before, or one has died. */
    void (*changed)(struct mu_standbys *standbys);
    /** There are none any more, and the memory is the owner's again. `why` is NULL after a close;
     * otherwise it says what the zygote refused or how it ended, until the callback returns. */
    void (*ended)(struct mu_standbys *standbys, bool refused, const char *why);
};

struct mu_standbys {
    const struct mu_standbys_events *on; /* set before open */
    struct mu_env *env;                  /* set by the environment, as all that follows */
    uint32_t waiting;                    /* how many can become children now */
    void *impl;
};

/* Which processes a signal is for. */
enum mu_child_scope {
    MU_CHILD_SELF = 1, /* the process that was started */
    MU_CHILD_GROUP,    /* the process group it leads */
    MU_CHILD_FAMILY,   /* every process of its family */
};

#endif

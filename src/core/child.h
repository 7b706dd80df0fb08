/*
 * Child processes, as the environment gives them (core/env.h: spawn, child_signal, child_resume,
 * child_leave).
 *
 *     child.on = &events;
 *     mu_env_spawn(env, &child, &what)
 *       started(child, 0)            the program runs; or a negative code, and it never did
 *       output(child, stream, ...)   bytes of a piped stream; an empty span is its end
 *       exited(child, 3)             the process has ended and was reaped
 *       output(child, stream, ...)   what its descendants still write
 *       gone(child)                  the last callback: nobody of its family is left
 *
 * The family of a child are the process itself, its process group, and all that descend from it,
 * whatever sessions and groups they put themselves into and whoever of their parents has died. The
 * environment takes orphans in (it makes this process a subreaper), so it finds and reaps them. It
 * tells members by descent, by session and group, by a cgroup of their own where one can be made,
 * and by the variable MU_CHILD_MARK in their environment. A process that gave up all of these while
 * its parents died cannot be told from one of a brother's: it counts as a stray, and strays go with
 * the last child there is (they are killed with it, and its `gone` waits for them). Where orphans
 * that are no family's come to us as well (as pid 1, or if this process had children before the
 * first spawn) there are no strays: who cannot be told to be ours is reaped and left alone.
 *
 * Nobody outlives us. When this process dies, in whichever way, children get `death_signal` from
 * the kernel, and a watcher (a small process of our own, there from the first child on) kills what
 * is left of the families, then ends. The thread that spawns must live as long as its children, for
 * the kernel counts its end as ours. Without a cgroup, a stray whose death is ours to arrange is
 * out of the watcher's reach.
 */
#ifndef MU_CHILD_H
#define MU_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "core/span.h"

struct mu_child;
struct mu_conn;
struct mu_env;

/** Added to the child's environment: a text that is its family's alone. */
#define MU_CHILD_MARK "MUSTER_CHILD"
/** The descriptor of the child's end of `channel`. */
#define MU_CHILD_CHANNEL_FD 3

/* The numbers are the descriptors in the child. */
enum mu_stream {
    MU_STDIN = 0,
    MU_STDOUT = 1,
    MU_STDERR = 2,
};

/* Where a stream of the child leads. */
enum mu_spawn_to {
    MU_SPAWN_NULL = 0,    /* the null device */
    MU_SPAWN_INHERIT,     /* wherever ours leads */
    MU_SPAWN_FILE,        /* `path`: read it, or write to it from its start on, emptied */
    MU_SPAWN_FILE_APPEND, /* `path`: write behind what is there; not for stdin */
    MU_SPAWN_PIPE,        /* to us, as `output`; not for stdin */
};

struct mu_spawn_stream {
    enum mu_spawn_to to;
    const char *path;
};

/* What to start. All of it is borrowed for the call. */
struct mu_spawn {
    const char *const *argv; /* up to a NULL; argv[0] without a slash is sought in envp's PATH */
    const char *const *envp; /* up to a NULL; the whole environment, MU_CHILD_MARK is added */
    const char *cwd;         /* or NULL: ours */
    struct mu_spawn_stream streams[3]; /* by enum mu_stream */
    int death_signal;                  /* from the kernel, when we die; 0: SIGKILL */
    bool sentinel; /* `dying` is told: the program has one more descriptor, as high as can be */
    /**
     * Or NULL: a connection to the child, whose end of it is descriptor MU_CHILD_CHANNEL_FD. It is
     * a connection as any other, open from the start (`open` is not called), with a life of its
     * own: it may end before or after the child, and is closed by its owner. When spawn fails at
     * once it was never touched. The simulator knows none: MUSTER_ENOTSUP.
     */
    struct mu_conn *channel;
};

struct mu_child_events {
    /**
     * The first callback. 0: the program runs, child->pid is known. A negated errno: it does not,
     * child->error says what failed on what ("exec 'x': No such file or directory"), and `gone`
     * comes next, nothing else.
     */
    void (*started)(struct mu_child *child, int status);
    /**
     * Bytes of a stream with MU_SPAWN_PIPE; an empty span is the end of it, which always comes once
     * the program runs. Returns how many were used. With less than all of them the environment
     * keeps the rest and reads no more of this stream until mu_env_child_resume(), which delivers
     * the rest again. The span is lent until the callback returns. Not called when no stream is a
     * pipe.
     */
    size_t (*output)(struct mu_child *child, enum mu_stream stream, struct mu_span in);
    /**
     * With `sentinel`: the process is about to end, or has closed all it had open. It is a sign,
     * and not a sure one. The kernel lets go of the highest descriptor first, so this comes before
     * any peer of the process can see that its connection is closed; unless children of the process
     * have that descriptor as well. At most once, before `exited`. May be NULL; the simulator never
     * calls it.
     */
    void (*dying)(struct mu_child *child);
    /**
     * The process has ended: its exit code, or the negated number of the signal that ended it. What
     * it had written to its pipes was delivered before, unless a stream rests. Its descendants may
     * live on; nobody stops them but the owner, with mu_env_child_signal().
     */
    void (*exited)(struct mu_child *child, int status);
    /**
     * The last callback, once for each spawn that returned 0: no process of the family is left,
     * every stream has ended. It waits for a stream that rests. The memory is the owner's again.
     */
    void (*gone)(struct mu_child *child);
};

struct mu_child {
    const struct mu_child_events *on; /* set before spawn */
    struct mu_env *env;               /* set by the environment, as all that follows */
    int64_t pid;                      /* since `started`; it may be another's after `exited` */
    struct mu_errmsg error;           /* why it did not start */
    void *impl;
};

/* Whom a signal is for. */
enum mu_child_scope {
    MU_CHILD_SELF = 1, /* the process that was started */
    MU_CHILD_GROUP,    /* the process group it leads */
    MU_CHILD_FAMILY,   /* every process of its family */
};

#endif

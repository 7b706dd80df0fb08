/*
 * What the files behind the verb `spawn` share.
 *
 *   uv_child.c      the verb: a child's pipes, its exit, its callbacks
 *   uv_standby.c    standbys, and how one becomes a child
 *   uv_family.c     families: finding, signalling and reaping descendants
 *   child_exec.c    between fork and exec
 *   child_watch.c   the watcher, which outlives us by a moment
 *   child_cgroup.c  a cgroup for each child, where the system allows it
 *   proc_table.c    the processes in /proc
 */
#ifndef MU_CHILD_INTERNAL_H
#define MU_CHILD_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/child.h"
#include "transport/proc_table.h"
#include "transport/uv_internal.h"

/* The name of our families: MU_CHILD_MARK is "<id>.<number>", after the mark of the family to which
 * we belong ourselves and a slash. */
#define MU_FAMILY_ID_LEN 16

/* --- child_cgroup.c: nothing here allocates; the watcher uses it too -------------------------- */

#define MU_CGROUP_PATH_MAX 1024

struct mu_cgroup {
    char base[MU_CGROUP_PATH_MAX]; /* the directory of our own cgroup; empty: unusable */
    char id[MU_FAMILY_ID_LEN + 1];
};

/** Finds our own cgroup; mu_cgroup_make() finds out whether it can be used. */
void mu_cgroup_find(struct mu_cgroup *g, const char *id);
/** Makes the cgroup of child `number`: the descriptor of its cgroup.procs, or a negated errno. */
int mu_cgroup_make(struct mu_cgroup *g, uint64_t number);
/** Kills every process in it, at once. A negated errno. */
int mu_cgroup_kill(const struct mu_cgroup *g, uint64_t number);
/** 0 if no process lives in it, -EBUSY if one does, or another negated errno. */
int mu_cgroup_look(const struct mu_cgroup *g, uint64_t number);
/** Removes it. A negated errno: a process is in it. */
int mu_cgroup_remove(const struct mu_cgroup *g, uint64_t number);
/** Calls `each` for every existing cgroup of a child; returns how many it failed for. */
size_t mu_cgroup_each(const struct mu_cgroup *g,
                      int (*each)(const struct mu_cgroup *g, uint64_t number));

/* --- child_exec.c ----------------------------------------------------------------------------- */

/* What the child reports when it could not become the program; the text it is about follows. */
struct mu_exec_failure {
    int32_t step; /* enum mu_exec_step */
    int32_t error;
};

#define MU_EXEC_SUBJECT_MAX 200

/* Everything that the child needs, made before the fork. */
struct mu_exec_plan {
    const struct mu_spawn *what;
    char **envp;
    char **candidates; /* paths to try, up to a NULL */
    void *memory;      /* the memory of envp and candidates */
    int pipes[3];      /* the child's end of a piped stream, or -1 */
    int channel;       /* its end, or -1 */
    int sentinel;      /* its end, or -1 */
    int cgroup;        /* cgroup.procs, or -1 */
    int report;        /* where failures are reported */
    pid_t parent;
};

/** Fills envp and candidates. MUSTER_EINVAL, MUSTER_ENOMEM. */
int mu_exec_plan_make(struct mu_exec_plan *plan, const struct mu_spawn *what, const char *mark);
void mu_exec_plan_free(struct mu_exec_plan *plan);
/** Runs in the child, with all signals blocked. */
_Noreturn void mu_exec_run(const struct mu_exec_plan *plan);
/** Says what failed, from what the child reported. Returns the code. */
int mu_exec_explain(struct mu_errmsg *msg, const void *report, size_t len);

/** In a fresh child: sets signals as at the start of a program, with no signal blocked. */
void mu_exec_reset_signals(void);
/** Makes exec close every descriptor from `first` on, or closes them at once. */
void mu_exec_close_from(unsigned first, bool now);

/* --- child_watch.c ---------------------------------------------------------------------------- */

struct mu_watch {
    pid_t pid; /* 0: there is no watcher */
    int fd;
};

/** Starts the watcher. A negated errno. */
int mu_watch_start(struct mu_watch *w, const struct mu_cgroup *g);
/** Tells it of a child that was forked, or is gone. A lost message is harmless. */
void mu_watch_tell(struct mu_watch *w, pid_t pid, bool here);
/** It kills everything then, unless it is told another time before. MU_MONO_NEVER: not at all. A
 * lost message is harmless if others follow. */
void mu_watch_until(struct mu_watch *w, mu_mono_t until);
/** Ends it, and waits for its end. It kills nothing then. */
void mu_watch_stop(struct mu_watch *w);
/** Leaves the remaining processes to it: it kills them after that time, and ends by itself. */
void mu_watch_leave(struct mu_watch *w, uint64_t grace_ms);

/* --- uv_family.c ------------------------------------------------------------------------------ */

struct mu_uv_child;

struct mu_uv_families {
    struct mu_uv_env *uv;
    uv_signal_t chld;
    struct mu_uv_later later; /* a survey is due */
    struct mu_timer timer;    /* the next survey of processes that are being killed */
    struct mu_list children;  /* struct mu_uv_child, the youngest last */
    struct mu_proc_table table;
    struct mu_cgroup cgroup;
    struct mu_watch watch;
    uint64_t number; /* the number of the next child */
    uint64_t rest_ms;
    unsigned unsure_surveys; /* unsure ones in a row */
    bool unsure;             /* the last survey met a process in the middle of an exec */
    bool was_subreaper;
    bool exclusive; /* all orphans that come to us belong to our families: there can be strays */
};

/** The families of this loop, made with the first child. A negated errno, MUSTER_ENOMEM. */
int mu_uv_families_get(struct mu_uv_env *uv, struct mu_uv_families **ret);
/** At the end of the loop, when all children are gone or left; its handle is closing then. */
void mu_uv_families_stop(struct mu_uv_env *uv);
void mu_uv_families_free(struct mu_uv_env *uv);
void mu_uv_children_until(struct mu_env *env, mu_mono_t until);
/** Looks for what is left, on the next turn. */
void mu_uv_families_survey_soon(struct mu_uv_families *f);
/** Sends a signal to every process of a family. -ESRCH if there is no process. */
int mu_uv_family_signal(struct mu_uv_child *c, int signal, bool group_only);

/* --- uv_child.c ------------------------------------------------------------------------------- */

struct mu_uv_pipe {
    uv_poll_t poll;
    struct mu_uv_child *owner;
    struct mu_uv_later later;
    struct mu_buf stash; /* read, not yet used by `output` */
    int fd;              /* -1: not a pipe, or closed */
    enum mu_stream stream;
    bool in_output;
    bool paused;
    bool resume;
    bool ended; /* the owner was told; true if it never was a pipe */
};

struct mu_uv_child {
    struct mu_list link; /* of families->children */
    struct mu_uv_families *families;
    struct mu_child *child;
    struct mu_child nobody;     /* stands in for `child` when its owner let go */
    struct mu_timer kill_timer; /* then kills what is still there */
    mu_mono_t kill_at;
    bool left;
    uint64_t number;
    pid_t pid;
    int report; /* reports how the exec went; -1 once it was read */
    int pidfd;  /* -1: there is none, SIGCHLD tells */
    uv_poll_t report_poll;
    uv_poll_t pidfd_poll;
    int sentinel; /* -1: there is none, or it has ended */
    uv_poll_t sentinel_poll;
    struct mu_uv_pipe pipes[2]; /* stdout, stderr */
    struct mu_uv_later later;   /* due to check whether everything is over */
    unsigned handles;           /* libuv handles that are not closed yet */
    bool started;               /* it runs, or ran */
    bool failed;                /* it never ran */
    bool reaped;
    bool exited; /* the owner was told, or there is nothing to tell */
    bool killing;
    bool aside; /* a zygote: strays are not its own */
    bool cgroup;
    uint8_t empty_surveys; /* in a row: nobody was left */
    bool finishing;
    size_t alive; /* processes alive in the last survey */
    int status;
};

int mu_uv_spawn(struct mu_env *env, struct mu_child *child, const struct mu_spawn *what);
int mu_uv_child_signal(struct mu_env *env, struct mu_child *child, int signal,
                       enum mu_child_scope scope);
void mu_uv_child_resume(struct mu_env *env, struct mu_child *child, enum mu_stream stream);
void mu_uv_child_leave(struct mu_env *env, struct mu_child *child, int signal, uint64_t grace_ms);
/** Starts a zygote, whose MU_CHILD_CHANNEL_FD is `socket`. */
int mu_uv_spawn_zygote(struct mu_env *env, struct mu_child *child, const struct mu_spawn *what,
                       int socket);
/** The loop ends before the family of a child whose owner let go: drops it. */
void mu_uv_child_drop(struct mu_uv_child *c);
/** Reaps the process if it has ended, and reports it. Not from within a verb. */
void mu_uv_child_look(struct mu_uv_child *c);
/** Two surveys found no process of its family: reports the end on a later turn. */
void mu_uv_child_end_soon(struct mu_uv_child *c);

/* --- uv_standby.c ----------------------------------------------------------------------------- */

int mu_uv_standbys_open(struct mu_env *env, struct mu_standbys *standbys,
                        const struct mu_spawn *what);
void mu_uv_standbys_want(struct mu_env *env, struct mu_standbys *standbys, uint32_t count);
void mu_uv_standbys_close(struct mu_env *env, struct mu_standbys *standbys);
/** Makes one of them the child of this plan. MUSTER_EAGAIN if none waits, MUSTER_ENOMEM, or a
 * negated errno. */
int mu_uv_standby_take(struct mu_standbys *standbys, const struct mu_exec_plan *plan,
                       pid_t *ret_pid);

#endif

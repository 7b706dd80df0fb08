/*
 * Child processes in the simulator. A program is a script: the words that tests/lib/zoo.c
 * understands, in its arguments, so that one test runs over both. Which script a program has is
 * asked of the scenario; without one, "zoo" (by any path) has its arguments, and there is no other.
 *
 *     out=TEXT err=TEXT part=TEXT flood=LINES sleep=MS exit=CODE raise=SIGNAL ignore=SIGNAL
 *     child=MS daemon=MS
 *
 * A signal that is neither ignored nor SIGSTOP, SIGCONT or SIGCHLD ends a process. Descendants
 * ignore SIGTERM. When their agent is killed, children die within a millisecond (the kernel's death
 * signal), descendants within MU_SIM_WATCH_NS (the watcher); when its host loses power, at once.
 */
#ifndef MU_SIM_CHILD_H
#define MU_SIM_CHILD_H

#include "sim.h"

#define MU_SIM_WATCH_NS (50 * MU_NS_PER_MS)

/**
 * Says what a program does: a list of words up to a NULL, lent until it is called again, or a
 * negated errno, with which it does not start.
 */
typedef int mu_sim_exec(void *arg, struct mu_sim_host *host, const struct mu_spawn *what,
                        const char *const **ret_script);

void mu_sim_set_exec(struct mu_sim *sim, mu_sim_exec *exec, void *arg);

/* A living process, for checkers. */
struct mu_sim_process {
    int64_t pid;
    int64_t leader; /* the pid of the child that it descends from, or its own */
    struct mu_sim_host *host;
    struct mu_sim_proc *agent; /* who started it; NULL when that is dead, or has left it */
    bool left;                 /* by mu_env_child_leave(): it may live until its grace has passed */
    const char *const *argv;   /* what its child was started with */
    const char *const *envp;
};

/** Calls `visit` for each process that lives, those first that were started first. */
void mu_sim_each_process(struct mu_sim *sim,
                         void (*visit)(void *arg, const struct mu_sim_process *process), void *arg);
/** Signals a process from outside, as an operator would; false if there is none. */
bool mu_sim_process_signal(struct mu_sim *sim, int64_t pid, int signal);
/** The value of a variable, or NULL. */
const char *mu_sim_process_variable(const struct mu_sim_process *process, const char *name);

#endif

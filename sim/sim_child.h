/*
 * Child processes in the simulator. A program is a script: the words that tests/lib/zoo.c
 * understands, in its arguments, so that one test runs over both. The scenario chooses the script
 * of a program; otherwise, "zoo" (by any path) runs its arguments, and there is no other program.
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
 * Returns what a program does: a list of words up to a NULL, lent until the next call, or a negated
 * errno, with which it fails to start.
 */
typedef int mu_sim_exec(void *arg, struct mu_sim_host *host, const struct mu_spawn *what,
                        const char *const **ret_script);

void mu_sim_set_exec(struct mu_sim *sim, mu_sim_exec *exec, void *arg);

/* A living process, for checkers. */
struct mu_sim_process {
    int64_t pid;
    int64_t leader; /* the pid of the child that it descends from, or its own */
    struct mu_sim_host *host;
    struct mu_sim_proc *agent; /* the process that started it; NULL when that is dead, or has left
                                  it */
    bool left;                 /* left by mu_env_child_leave(): it may live until its grace has
                                  passed */
    const char *const *argv;   /* the arguments of its child */
    const char *const *envp;
};

/** Calls `visit` for each living process, in the order of their start. */
void mu_sim_each_process(struct mu_sim *sim,
                         void (*visit)(void *arg, const struct mu_sim_process *process), void *arg);
/** Signals a process from outside, as an operator would; false if there is no such process. */
bool mu_sim_process_signal(struct mu_sim *sim, int64_t pid, int signal);
/** Returns the value of an environment variable, or NULL. */
const char *mu_sim_process_variable(const struct mu_sim_process *process, const char *name);

#endif

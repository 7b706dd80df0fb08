/*
 * Takes the stacks of a process of this machine: which threads it has, where each is in the kernel,
 * and, if it runs Python, in which functions. The process is neither stopped nor changed.
 *
 *     take.pid = 4711;
 *     take.head = (struct mu_stacks_report){.rank = 3, ...};
 *     take.done = on_done;
 *     mu_stacks_take(env, &take);        on_done follows, with take.err and take.report
 *     mu_stacks_take_fini(&take);
 *
 * All of it happens on a thread of the environment's pool; a process with hostile memory costs
 * bounded time there (proto/stacks/python.h). Of a process that may not be looked into, or that is
 * not Python, the report has the threads as far as the kernel shows them, and the note says why
 * there is no more. A thread whose frames change while they are read is read again a few times;
 * after that its report is marked as torn.
 */
#ifndef MU_STACKS_TAKE_H
#define MU_STACKS_TAKE_H

#include "codec/stacks/report.h"
#include "core/env.h"
#include "core/err.h"

struct mu_stacks_look;

struct mu_stacks_take {
    /* set before */
    int64_t pid;
    struct mu_stacks_report head; /* node, rank, local_rank, round; its spans last until `done` */
    bool family; /* if it is not Python, but one of its descendants is, the report is of that one */
    void (*done)(struct mu_stacks_take *take);
    /* set when `done` is called */
    int err; /* MUSTER_ENOENT: there is no such process (any more); MUSTER_ENOMEM */
    struct mu_errmsg why;
    struct mu_buf report; /* encoded */
    /* private */
    struct mu_work work;
    struct mu_stacks_look *look;
};

/** Begins; `done` follows. MUSTER_ENOTSUP: this environment shows no processes; MUSTER_ENOMEM. */
int mu_stacks_take(struct mu_env *env, struct mu_stacks_take *take);
/** After `done`, or a take that did not begin. */
void mu_stacks_take_fini(struct mu_stacks_take *take);

#endif

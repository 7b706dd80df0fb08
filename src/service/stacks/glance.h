/*
 * Glances at the workers of a node for the pacer (proto/stacks/straggle.h): whether each waits for
 * other ranks or works, and for how long it could have run while others had its CPU.
 *
 *     mu_stacks_glancer_init(&g, peek, count);
 *     g.workers[i].pid = 4711;
 *     on a thread that may block: mu_stacks_glancer_run(&g);
 *     ... g.workers[i].look
 *     mu_stacks_glancer_fini(&g);
 *
 * A glance is the innermost frame of the main thread, a read of /proc/PID/schedstat, and, in some
 * functions, one of /proc/PID/syscall. To find the thread, and to see servers and debuggers, whose
 * ranks are not seen then, a whole look is taken every MU_STACKS_GLANCE_RUNS runs. A worker that is
 * not Python may be a script that has started it: then its first child is looked at instead.
 * Only one thread may use a glancer at a time, but it need not be the same one.
 */
#ifndef MU_STACKS_GLANCE_H
#define MU_STACKS_GLANCE_H

#include "core/peek.h"
#include "proto/stacks/straggle.h"
#include "service/stacks/look.h"

#define MU_STACKS_GLANCE_RUNS 30

struct mu_stacks_glanced {
    int64_t pid;               /* set before a run; 0: there is none */
    struct mu_pacer_look look; /* set by a run, but for `marks` */
    /* private */
    const struct mu_peek *peek;
    struct mu_peek_process *process; /* `seen`, or NULL */
    int64_t worker;                  /* whose these are: */
    int64_t seen;                    /* the process that is looked at */
    struct mu_stacks_known known;
    struct mu_python python; /* if `found`, and its main thread: */
    struct mu_python_thread main;
    bool found;
    bool asks;     /* it waits for requests or for a person */
    uint32_t runs; /* since it was looked at */
};

struct mu_stacks_glancer {
    const struct mu_peek *peek;
    struct mu_stacks_glanced *workers;
    uint32_t count;
    /* private */
    struct mu_stacks_look *look; /* or NULL: nobody has looked yet */
    struct mu_buf report;
    struct mu_python_stack *top;
};

/** MUSTER_ENOMEM. */
int mu_stacks_glancer_init(struct mu_stacks_glancer *g, const struct mu_peek *peek, uint32_t count);
/** Zeros are fine. */
void mu_stacks_glancer_fini(struct mu_stacks_glancer *g);
/** Glances at all workers. Blocks for well below a millisecond each, or for long if the disk is
 * slow. */
void mu_stacks_glancer_run(struct mu_stacks_glancer *g);

#endif

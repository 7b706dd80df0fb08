/*
 * Samples the workers of a node for the hang watchdog (proto/stacks/watchdog.h): CPU time, bytes,
 * states, and now and then where the main thread is.
 *
 *     mu_stacks_sampler_init(&s, peek, count);
 *     s.workers[i].pid = 4711;  s.workers[i].wants_place = ...;
 *     on a thread that may block: mu_stacks_sampler_run(&s);
 *     ... s.workers[i].sample, s.node
 *     mu_stacks_sampler_fini(&s);
 *
 * A run looks at a worker's descendants only if the worker itself uses no CPU time: one that
 * computes moves anyway. Which they are is found out again every MU_STACKS_FAMILY_RUNS runs. So a
 * worker costs three or four short reads from /proc, and one that is silent a few dozen now and
 * then.
 * Only one thread may use a sampler at a time, but it need not be the same one.
 */
#ifndef MU_STACKS_SAMPLE_H
#define MU_STACKS_SAMPLE_H

#include "codec/stacks/report.h"
#include "core/peek.h"
#include "proto/stacks/watchdog.h"
#include "service/stacks/family.h"
#include "service/stacks/look.h"

#define MU_STACKS_FAMILY_RUNS 5
#define MU_STACKS_NOBODY      UINT32_MAX

struct mu_stacks_sampled {
    /* set before a run */
    int64_t pid; /* 0: there is none */
    bool wants_place;
    /* set by a run; `output_bytes`, `store_ops`, `marks` and `step` are not */
    struct mu_watchdog_sample sample;
    /* private */
    struct mu_peek_process *process; /* of `opened`, or NULL */
    int64_t opened;
    int64_t seen; /* the process that was looked at, and where its interpreter is */
    struct mu_stacks_known known;
    uint64_t own_ns;
    uint64_t family_ns;
    uint64_t family_bytes;
    uint32_t runs; /* since the family was found out */
    bool frozen;   /* as of then */
    uint32_t family_count;
    int64_t family[MU_STACKS_FAMILY_MAX];
};

struct mu_stacks_sampler {
    const struct mu_peek *peek;
    uint64_t busy_ns; /* CPU time between two runs from which on descendants are not looked at */
    struct mu_stacks_sampled *workers;
    uint32_t count;
    struct mu_watchdog_node node; /* set by a run */
    _Atomic uint32_t looking; /* the worker whose stack is being read; MU_STACKS_NOBODY: none. Any
                                 thread may ask: the kernel may hold up whoever reads memory */
    /* private */
    struct mu_stacks_look *look; /* or NULL: nobody has looked yet */
    struct mu_buf whole;
    char text[16 << 10];
};

/** MUSTER_ENOMEM. */
int mu_stacks_sampler_init(struct mu_stacks_sampler *s, const struct mu_peek *peek, uint32_t count);
/** Other workers have taken the places of the last ones: what was known of those is forgotten. */
void mu_stacks_sampler_reset(struct mu_stacks_sampler *s);
/** After a reset, or with all workers gone; zeros are fine. */
void mu_stacks_sampler_fini(struct mu_stacks_sampler *s);
/** Samples all workers. Blocks for a few milliseconds, or for long if the disk is slow, or for ever
 * if the memory of a worker whose place is wanted is another program's to give out. */
void mu_stacks_sampler_run(struct mu_stacks_sampler *s);

#endif

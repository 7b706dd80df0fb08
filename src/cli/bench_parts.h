/*
 * Processes among which a benchmark divides its clients, so that none of them is too busy to keep
 * its connections. The parent tells all of them when to begin a stage, and waits until all have
 * passed it.
 *
 *     bench_parts_start(&parts, count, run, context);   forks; run(context, index, &part)
 *     bench_parts_stage(&parts, patience, &late);       in the parent: 0, or an exit code
 *     bench_part_listen(part, uv, on_go, context);      in a part: on_go() for each stage
 *     bench_part_passed(part, 0);                       ... and its answer
 */
#ifndef MU_BENCH_PARTS_H
#define MU_BENCH_PARTS_H

#include <stdatomic.h>
#include <stdint.h>
#include <sys/types.h>

#include "transport/uv_env.h"

struct bench_part {
    pid_t pid;
    int ask;    /* a byte for each stage */
    int answer; /* struct bench_part_answer */
    /* In the part's own process. */
    struct mu_uv_env *uv;
    struct mu_post post;
    void (*go)(void *context);
    void *context;
};

struct bench_parts {
    struct bench_part *all;
    uint64_t count;
};

/** Forks `count` processes; call it before there are threads. A process ends with what `run`
 * returns. Returns 0, or an exit code after it has printed the error. */
int bench_parts_start(struct bench_parts *p, uint64_t count,
                      int (*run)(void *context, uint64_t index, struct bench_part *part),
                      void *context);
/** Lets all begin a stage and waits until all have passed it, at `*ret_at` by the monotonic clock.
 * Returns 0, or the exit code of the part that has failed, which has printed why. */
int bench_parts_stage(struct bench_parts *p, double *ret_at);
/** Ends the processes. */
void bench_parts_stop(struct bench_parts *p);

/** From now on `go` is called on the loop for each stage. The process ends when its parent has
 * gone. Returns 0 or an exit code. */
int bench_part_listen(struct bench_part *part, struct mu_uv_env *uv, void (*go)(void *context),
                      void *context);
/** This part has passed a stage at this time, or cannot. */
void bench_part_passed(struct bench_part *part, int code, double at);

#endif

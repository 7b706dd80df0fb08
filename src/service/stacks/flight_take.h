/*
 * Takes the dumps of the flight recorders of this machine's workers: a byte to the named pipe of
 * each makes PyTorch write a dump, within a second or so; the dumps are read when they are there,
 * and shortened (codec/stacks/flight.h).
 *
 *     take.config = (struct mu_flight_take_config){.env = env, .timeout_ms = 1500, ...};
 *     take.workers = ..., take.count = 8;        each with pid, rank, pipe and dumps
 *     mu_flight_take_start(&take);
 *     ... done(take): workers[i].brief, or workers[i].note
 *     mu_flight_take_fini(&take);
 *
 * What may block happens on a thread of the environment's pool, for one worker after the other. A
 * worker that has put something else in the place of its pipe or its dump, or that never writes
 * one, costs the time that there is and gets a note. Files are seen as the worker sees them, so it
 * may be in a container.
 */
#ifndef MU_FLIGHT_TAKE_H
#define MU_FLIGHT_TAKE_H

#include "core/buf.h"
#include "core/env.h"

#define MU_FLIGHT_PATH_MAX  1024
#define MU_FLIGHT_POLL_MS   100
#define MU_FLIGHT_BRIEF_MAX ((size_t)64 << 10) /* bytes of a dump once it is shortened */

struct mu_flight_take;

struct mu_flight_take_worker {
    /* set before */
    int64_t pid; /* 0: it does not run */
    uint32_t rank;
    /* set after */
    struct mu_buf brief; /* empty: there is none, and */
    char note[160];      /* this says why; "": it does not listen, or is gone and nobody does */
    /* private */
    uint64_t marks[2]; /* of its dumps, before */
    bool settled;
    bool gone;
};

struct mu_flight_take_config {
    struct mu_env *env;
    const char *pipe;     /* its path is this, the rank, and ".pipe" */
    const char *dumps[2]; /* their paths are this and the rank: the newer one counts. Or NULL */
    uint32_t timeout_ms;
    size_t brief_max; /* of each, at most MU_FLIGHT_BRIEF_MAX */
    void (*done)(struct mu_flight_take *take);
};

struct mu_flight_take {
    struct mu_flight_take_config config;
    struct mu_flight_take_worker *workers;
    uint32_t count;
    uint32_t asked; /* set after: how many listened, and may have begun to write */
    /* private */
    struct mu_work work;
    struct mu_timer timer;
    mu_mono_t deadline;
    bool busy; /* a thread is at it */
    bool over; /* `done` was called, or must not be */
};

/** Begins; `done` follows, on a later turn. MUSTER_ENOTSUP: this environment shows no processes. */
int mu_flight_take_start(struct mu_flight_take *take);
/** Soon: `done`, with what there is. */
void mu_flight_take_hurry(struct mu_flight_take *take);
/** After `done`, or a take that did not begin; zeros are fine. `workers` is not freed. */
void mu_flight_take_fini(struct mu_flight_take *take);

#endif

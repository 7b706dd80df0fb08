/*
 * The hang watchdog of an agent: it samples the workers (service/stacks/sample.h), says what
 * becomes of that (proto/stacks/watchdog.h), and tells the agents of a run when the run hangs.
 *
 * A run that moves costs its store nothing. An agent whose workers have all stood still for the
 * hang time writes their pulses to the store of the round, now and then again, and once more when
 * they move:
 *
 *     muster/pulse/NODE     the pulses of a node's workers (codec/stacks/pulse.h)
 *
 * The agent of node 0 reads them only while its own workers stand still as well. It judges. If the
 * run hangs, it asks all agents for the stacks of their workers (service/agent/stacks.h), and
 * writes what there is to say to MU_AGENT_HANG_KEY (codec/agent/hang.h), where the others look for
 * it while their workers stand still. The agent of the worker that is missing does what the action
 * asks for.
 *
 * If too many workers compute to tell whether the run hangs, as they do while they wait for their
 * GPUs, it asks as well, but seldom. If the flight recorders then have ranks in different
 * collectives, or in one with different sizes, and say the same a while later, the run hangs.
 *
 * The kernel can hold up whoever reads a worker's memory, for as long as the worker likes. So a
 * sample that does not come is not waited for: another thread takes the next ones, and leaves out
 * the stack of the worker at which the first is stuck.
 *
 * watchdog.c has the samples, hang.c what agents say to each other, hang_flight.c what flight
 * recorders add to that.
 */
#ifndef MU_AGENT_WATCHDOG_H
#define MU_AGENT_WATCHDOG_H

#include "codec/agent/hang.h"
#include "core/env.h"
#include "proto/stacks/flight_gather.h"
#include "proto/stacks/group.h"
#include "proto/stacks/watchdog.h"
#include "service/agent/stacks.h"
#include "service/stacks/sample.h"
#include "service/store/store.h"

#define MU_AGENT_HANG_KEY  "muster/hang"
#define MU_AGENT_PULSE_KEY "muster/pulse/" /* and the node's rank */

struct mu_agent_service;
struct mu_agent_round;

/* An operation on the round's store; it belongs to the round. */
struct mu_agent_hang_op {
    struct mu_store_op op;
    bool busy;
    void (*then)(struct mu_agent_round *r, struct mu_store_op *op);
    struct mu_span *spans; /* keys, then values; owned */
    struct mu_buf bytes;   /* what they point to */
};

/* Samples the workers on a thread of the pool. */
struct mu_agent_sampler {
    struct mu_agent_service *s;
    struct mu_work work;
    struct mu_stacks_sampler sampler;
    bool busy;
};

struct mu_agent_watchdog {
    bool on;        /* hangs are looked for, and can be */
    bool sampling;  /* the workers of `generation` are watched */
    bool begin_due; /* other workers run by now */
    uint64_t generation;
    uint64_t hang_ms;
    struct mu_timer timer;
    struct mu_watchdog machine;
    struct mu_agent_sampler samplings[2]; /* the second is used while the first does not return */
    struct mu_agent_sampler *last;        /* the one that was begun last */
    struct mu_watchdog_sample *samples;
    mu_mono_t moved_at;        /* when all workers had ended, or any still ran */
    mu_mono_t disturbed_until; /* we have made workers do something */
    bool still;                /* all of our workers stand still, for as long as a hang takes */

    /* hang.c */
    bool said_still;   /* by the store, we are */
    bool saying_still; /* by what is being written */
    mu_mono_t said_at;
    mu_mono_t read_at;
    struct mu_watchdog_run run; /* node 0 */
    struct mu_pulse *pulses;    /* node 0: of all ranks, as of the last reading */
    uint32_t *missing;
    uint32_t *nodes; /* node 0: by rank, the node that it is on; UINT32_MAX: not known */
    uint32_t pulse_count;
    uint32_t world;
    struct mu_watchdog_verdict verdict;
    struct mu_stacks_ask ask;
    bool asking;
    bool suspects;         /* a run that may compute as well: only its flight recorders can tell */
    mu_mono_t suspect_due; /* when they are asked next, at the earliest */
    char *suspicion;       /* what they said when they were asked last; NULL: nothing */
    struct mu_groups groups; /* while `asking` */
    struct mu_flights flights;
    char missing_node[64];
    uint64_t number; /* of hangs in this round that were told */
    bool tell_due;   /* MU_AGENT_HANG_KEY is to be written: */
    struct mu_buf tell_text;
    struct mu_hang told; /* the last one that we heard of */
    bool has_told;
    mu_mono_t over_at;          /* told.over: since then */
    struct mu_timer kill_timer; /* armed while workers that hang are given time to say where */
};

/* watchdog.c */
/** Without memory there is no watchdog. */
void mu_agent_watchdog_init(struct mu_agent_service *s);
/** All workers of a generation run. */
void mu_agent_watchdog_begin(struct mu_agent_service *s);
/** They are not watched any more. */
void mu_agent_watchdog_stop(struct mu_agent_service *s);
/** Returns whether no thread samples; mu_agent_settle() is called when none does. */
bool mu_agent_watchdog_idle(struct mu_agent_service *s);
void mu_agent_watchdog_fini(struct mu_agent_service *s);
/** The local rank of a worker at which a look has not come back; MU_STACKS_NOBODY: of none. */
uint32_t mu_agent_watchdog_stuck(struct mu_agent_service *s);
/** Whether looks at two workers have not come back: then nobody is looked at. */
bool mu_agent_watchdog_blind(struct mu_agent_service *s);
/** For so long, and until a sample comes after that, workers do what we have asked them to. */
void mu_agent_watchdog_disturb(struct mu_agent_service *s, uint64_t ms);
/** They have not, after all. */
void mu_agent_watchdog_calm(struct mu_agent_service *s);
/** How long a time that is a part of the hang time is, but never shorter than an interval. */
uint64_t mu_agent_watchdog_part_ns(const struct mu_agent_watchdog *d, uint64_t parts);

/* hang.c */
void mu_agent_hang_init(struct mu_agent_service *s);
/** After each sample. */
void mu_agent_hang_turn(struct mu_agent_service *s);
/** Other workers run now: what was said of the last ones is forgotten. */
void mu_agent_hang_reset(struct mu_agent_service *s);
/** What the flight recorders that were just asked say of a suspect. Returns whether it hangs. */
bool mu_agent_hang_confirm(struct mu_agent_service *s);
/** If places do not tell who is missing, the flight recorders may: changes the verdict. */
void mu_agent_hang_name(struct mu_agent_watchdog *d);
/** A hang is news for the verdict only if it was not over long before the end. */
void mu_agent_hang_end(struct mu_agent_service *s);

#endif

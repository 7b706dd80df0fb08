/*
 * Stragglers of a run: an agent glances at its workers about ten times in a span
 * (service/stacks/glance.h), and after each span tells the others what came of it, through the
 * round's store:
 *
 *     muster/pace/NODE      the paces of a node's workers (codec/stacks/pace.h)
 *     muster/stragglers     who keeps the others waiting: written by node 0, and read by the others
 *
 * The agent of node 0 reads the paces of all nodes with one operation, and judges
 * (proto/stacks/straggle.h). So in each span a node costs its store one write of 16 bytes a worker
 * and one short read, and all nodes together one read of what they wrote. Nothing is judged as long
 * as one node has not written: PyTorch's agents never do.
 */
#ifndef MU_AGENT_STRAGGLE_H
#define MU_AGENT_STRAGGLE_H

#include "core/env.h"
#include "proto/stacks/straggle.h"
#include "service/stacks/glance.h"
#include "service/store/store.h"

#define MU_AGENT_PACE_KEY       "muster/pace/" /* and the node's rank */
#define MU_AGENT_STRAGGLERS_KEY "muster/stragglers"

struct mu_agent_service;
struct mu_agent_round;

/* An operation on the round's store; it belongs to the round. */
struct mu_agent_pace_op {
    struct mu_store_op op;
    bool busy;
    void (*then)(struct mu_agent_round *r, struct mu_store_op *op);
    struct mu_span *keys; /* owned */
    struct mu_span value;
    struct mu_buf bytes; /* what they point to */
};

struct mu_agent_straggle {
    bool on;
    bool looking;   /* the workers of the generation are looked at */
    bool busy;      /* a thread looks */
    bool begin_due; /* other workers run by now */
    struct mu_timer timer;
    struct mu_work work;
    struct mu_pacer pacer;
    struct mu_stacks_glancer glancer;
    struct mu_pacer_look *looks;
    struct mu_pace *paces; /* of the last MU_STRAGGLE_SHORT spans: a ring of `workers` each */
    uint64_t span_count;
    struct mu_straggle_rank *workers; /* how they did */
    struct mu_stragglers told;        /* what we have said */

    /* node 0 */
    struct mu_straggle run;
    uint32_t *heard; /* of each node: the span that was taken, plus one */
};

/** Without memory nobody looks. */
void mu_agent_straggle_init(struct mu_agent_service *s);
/** All workers of a generation run. */
void mu_agent_straggle_begin(struct mu_agent_service *s);
/** They are not looked at any more. */
void mu_agent_straggle_stop(struct mu_agent_service *s);
/** Returns whether no thread looks; mu_agent_settle() is called when none does. */
bool mu_agent_straggle_idle(struct mu_agent_service *s);
void mu_agent_straggle_fini(struct mu_agent_service *s);
void mu_agent_pace_op_fini(struct mu_agent_pace_op *io);

#endif

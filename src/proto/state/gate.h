/*
 * A donor's gate: how many newcomers download at a time, and how much is sent in a second. A
 * decision machine.
 *
 * A slot is taken for each stream and given back when it ends; a newcomer that finds no slot is
 * told when to come again. Sending is paced by a bucket of tokens that may go below zero by one
 * chunk: a chunk goes when the bucket is not empty. Streams that have something to send queue up
 * with a turn; each gets one chunk in turn, so that no stream waits behind another's whole
 * download.
 */
#ifndef MU_STATE_GATE_H
#define MU_STATE_GATE_H

#include "core/list.h"
#include "core/time.h"

struct mu_state_gate_config {
    uint32_t slots;       /* streams at a time. 16 */
    uint64_t bytes_per_s; /* of all streams together; 0: no limit */
    uint64_t burst_bytes; /* how much may be sent at once after a rest. If 0: a quarter of a
                             second's worth, and at least a chunk */
    uint32_t retry_ms;    /* when the first newcomer that finds no slot may come again. 250 */
};

/** The defaults named above. */
struct mu_state_gate_config mu_state_gate_config_defaults(void);

/* One stream's place in the queue; embedded by its owner. */
struct mu_state_turn {
    struct mu_list link;
    size_t bytes; /* how much it waits to send */
};

struct mu_state_gate {
    struct mu_state_gate_config config;
    uint32_t taken;   /* slots that are taken */
    uint32_t refused; /* refusals since a slot was last given back */
    int64_t tokens;   /* bytes */
    uint64_t carry;   /* fraction of a byte, in 1/1,000,000,000 */
    mu_mono_t filled; /* until when the tokens are counted */
    struct mu_list queue;
};

/** Takes no memory. */
void mu_state_gate_init(struct mu_state_gate *g, const struct mu_state_gate_config *config,
                        mu_mono_t now);
/** Sets new limits; streams that have a slot keep it. */
void mu_state_gate_configure(struct mu_state_gate *g, const struct mu_state_gate_config *config,
                             mu_mono_t now);

/**
 * Takes a slot. MUSTER_EBUSY: no slot is free, and `*ret_retry_ms` is when to come again; the times
 * are spread out.
 */
int mu_state_gate_enter(struct mu_state_gate *g, uint32_t *ret_retry_ms);
/** Gives a slot back. */
void mu_state_gate_leave(struct mu_state_gate *g);

void mu_state_turn_init(struct mu_state_turn *turn);
/** Queues a turn to send `bytes`; a turn that waits already keeps its place and waits for these
 * now. */
void mu_state_gate_wait(struct mu_state_gate *g, struct mu_state_turn *turn, size_t bytes);
/** Removes a turn from the queue; does nothing if it is not in it. */
void mu_state_gate_unwait(struct mu_state_turn *turn);
/** Takes the turn that may send its bytes now from the queue and charges it; NULL: no turn now. */
struct mu_state_turn *mu_state_gate_next(struct mu_state_gate *g, mu_mono_t now);
/** Gives back what was charged for bytes that were not sent after all. */
void mu_state_gate_refund(struct mu_state_gate *g, size_t bytes);
/** Returns when to ask mu_state_gate_next() again: MU_MONO_NEVER while no turn waits. */
mu_mono_t mu_state_gate_deadline(const struct mu_state_gate *g);

#endif

/*
 * A donor's door: how many download at a time, and how much leaves in a second. A decision machine.
 *
 * A slot is taken for each stream and given back when it ends; who finds none is told when to come
 * again. What leaves is paced by a bucket of tokens that may go below zero by one chunk: a chunk
 * goes when there is more than nothing in it. Streams that have something to send queue up with a
 * turn; each gets one chunk in turn, so that nobody waits behind another's whole download.
 */
#ifndef MU_STATE_GATE_H
#define MU_STATE_GATE_H

#include "core/list.h"
#include "core/time.h"

struct mu_state_gate_config {
    uint32_t slots;       /* streams at a time. 16 */
    uint64_t bytes_per_s; /* of all together; 0: no limit */
    uint64_t burst_bytes; /* what may leave at once after a rest. A quarter of a second's worth,
                             and a chunk at least, if 0 */
    uint32_t retry_ms;    /* when the first who finds no slot may come again. 250 */
};

/** The defaults named above. */
struct mu_state_gate_config mu_state_gate_config_defaults(void);

/* One stream's place in the queue; embedded by its owner. */
struct mu_state_turn {
    struct mu_list link;
    size_t bytes; /* that it waits to send */
};

struct mu_state_gate {
    struct mu_state_gate_config config;
    uint32_t taken;   /* slots */
    uint32_t refused; /* since one was last given back */
    int64_t tokens;   /* bytes */
    uint64_t carry;   /* of a byte, in 1/1,000,000,000 */
    mu_mono_t filled; /* until when the tokens are counted */
    struct mu_list queue;
};

/** Takes no memory. */
void mu_state_gate_init(struct mu_state_gate *g, const struct mu_state_gate_config *config,
                        mu_mono_t now);
/** From now on these limits; who has a slot keeps it. */
void mu_state_gate_configure(struct mu_state_gate *g, const struct mu_state_gate_config *config,
                             mu_mono_t now);

/**
 * Takes a slot. MUSTER_EBUSY: there is none, and `*ret_retry_ms` is when to come again; those who
 * are sent away are spread over time.
 */
int mu_state_gate_enter(struct mu_state_gate *g, uint32_t *ret_retry_ms);
/** Gives a slot back. */
void mu_state_gate_leave(struct mu_state_gate *g);

void mu_state_turn_init(struct mu_state_turn *turn);
/** Queues up to send `bytes`; a turn that waits already waits for these now, where it is. */
void mu_state_gate_wait(struct mu_state_gate *g, struct mu_state_turn *turn, size_t bytes);
/** Leaves the queue; one that is not in it is left alone. */
void mu_state_gate_unwait(struct mu_state_turn *turn);
/** The turn that may send its bytes now, out of the queue and charged; NULL: nobody, now. */
struct mu_state_turn *mu_state_gate_next(struct mu_state_gate *g, mu_mono_t now);
/** Gives back what was charged for bytes that did not leave after all. */
void mu_state_gate_refund(struct mu_state_gate *g, size_t bytes);
/** When to ask mu_state_gate_next() again: MU_MONO_NEVER while nobody waits. */
mu_mono_t mu_state_gate_deadline(const struct mu_state_gate *g);

#endif

/*
 * The pulse of a worker: what its agent last saw it do, in a few numbers. Agents send each other
 * the pulses of their workers, so that one of them can tell whether a whole run stands still.
 *
 *     version          1 byte
 *     bytes a pulse    1 byte, at least MU_PULSE_SIZE
 *     count            4 bytes
 *     pulses           rank (4), state (1), stance (1), nothing (2), then still_ms, fixed_ms, place
 *                      and step (8 each)
 *
 * Integers are little-endian. A later version may append fields to a pulse, and a reader skips what
 * it does not know.
 */
#ifndef MU_PULSE_H
#define MU_PULSE_H

#include "core/buf.h"
#include "core/span.h"

#define MU_PULSE_SIZE 40
#define MU_PULSES_MAX 65536 /* workers of one message */

/* proto/stacks/watchdog.h has the diagram. */
enum mu_pulse_state {
    MU_PULSE_FRESH = 1, /* it has just been started: nothing is known yet */
    MU_PULSE_BUSY,      /* something moved since the last look */
    MU_PULSE_WAITING,   /* nothing moved, for a short time */
    MU_PULSE_SILENT,    /* nothing moved, for longer than that */
    MU_PULSE_STOPPED,   /* by a signal */
    MU_PULSE_TRACED,    /* a debugger holds it */
    MU_PULSE_ENDED,     /* the process is gone */
};

/* What its main thread waits for, by its stack. */
enum mu_pulse_stance {
    MU_STANCE_UNKNOWN = 0, /* nobody looked, or it is something else: a lock, a sleep, a queue */
    MU_STANCE_OTHERS,      /* other ranks: a collective, a barrier, a key of the store */
    MU_STANCE_REQUESTS,    /* to be asked: the loop of a server */
    MU_STANCE_PERSON,      /* somebody at a debugger or a prompt */
    MU_STANCE_PERHAPS,     /* a backward pass, DDP, FSDP, its GPU: these may wait for others */
};

struct mu_pulse {
    uint32_t rank;
    enum mu_pulse_state state;
    enum mu_pulse_stance stance;
    uint64_t still_ms; /* since anything moved */
    uint64_t fixed_ms; /* since anything but the CPU time moved, at the same place all the while */
    uint64_t place;    /* a digest of the main thread's stack; 0: not known */
    uint64_t step;     /* the last that it reported; 0: none */
};

/** Appends a message with `count` pulses. MUSTER_ELIMIT, MUSTER_ENOMEM: nothing changed. */
int mu_pulse_encode(struct mu_buf *out, const struct mu_pulse *pulses, size_t count);

/** Checks a message and says how many pulses it has. MUSTER_EPROTO, MUSTER_ELIMIT. */
int mu_pulse_count(struct mu_span in, size_t *ret_count);
/** Pulse `i` of a message that mu_pulse_count() has accepted; `i` is below that. */
struct mu_pulse mu_pulse_at(struct mu_span in, size_t i);

#endif

/*
 * The failure of one worker, as agents tell each other of it: a JSON object. Pure.
 *
 *     {"host": "node3", "rank": 5, "local_rank": 1, "exit_code": -9, ...}
 *
 * And what a worker itself leaves behind in its error file, in either of PyTorch's shapes:
 *
 *     {"message": {"message": "ValueError: boom",
 *                  "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1794736770"}}}
 *     {"message": "text", "timestamp": 123}
 *
 * Texts are bounded, and cut where they are longer: the tail of a worker's output at its front, all
 * others at their end, never inside a character.
 */
#ifndef MU_FAILURE_H
#define MU_FAILURE_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/span.h"

#define MU_FAILURE_HOST_MAX      255
#define MU_FAILURE_MESSAGE_MAX   4096
#define MU_FAILURE_TRACEBACK_MAX 32768
#define MU_FAILURE_TAIL_MAX      16384 /* of the 64 KiB that its agent has */
#define MU_FAILURE_BYTES_MAX     (1u << 20)

/* Texts are owned, see mu_failure_fini(), and never NULL after a decode or copy. */
struct mu_failure {
    char *host;
    uint32_t group_rank; /* of the agent */
    uint32_t rank;
    uint32_t local_rank;
    int64_t pid;
    int exit_code; /* n, or -signal */
    uint64_t round;
    uint32_t restart_count;
    uint64_t ticket;     /* its place in the server's order of signs of failing; 0: unknown */
    bool effect;         /* it speaks of a peer or connection that was lost */
    int64_t time_s;      /* epoch; by the worker's error file, or else by its agent */
    bool has_error_file; /* the two below come from it */
    char *message;       /* "" if there is none */
    char *traceback;
    char *tail; /* the last that it wrote */
};

void mu_failure_fini(struct mu_failure *f);

/**
 * Of two failures the one with the lower number was first. Who complains of a lost peer was not, if
 * anybody in that round failed without complaining: those come behind all others.
 */
uint64_t mu_failure_order(uint64_t ticket, bool effect);
/** Whether the last words of a worker, from its last exception on, are about a lost peer. */
bool mu_failure_is_effect(struct mu_span tail);

/** Appends it. MUSTER_ENOMEM, MUSTER_ELIMIT. Bytes that are not UTF-8 become U+FFFD. */
int mu_failure_encode(struct mu_buf *out, const struct mu_failure *f);
/** MUSTER_EPROTO: it is no such object; MUSTER_ENOMEM. What is unknown in it is passed over. */
int mu_failure_decode(struct mu_span in, struct mu_failure *ret_failure);

/**
 * Takes message, traceback and time over from the text of an error file. MUSTER_EPROTO: it is no
 * JSON object, and nothing has changed; MUSTER_ENOMEM likewise.
 */
int mu_failure_read_error_file(struct mu_failure *f, struct mu_span text);

/** Such as "SIGKILL"; "signal 40" has no name: NULL. Static. */
const char *mu_signal_name(int number);

/* --- for whoever writes JSON ------------------------------------------------------------------ */

/** Appends a JSON string: quoted, what is not UTF-8 replaced. */
int mu_failure_put_text(struct mu_buf *out, struct mu_span text);
/** Appends text as it is. */
int mu_failure_put(struct mu_buf *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif

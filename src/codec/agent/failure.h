/*
 * The failure of one worker, as agents report it to each other: a JSON object. Pure.
 *
 *     {"host": "node3", "rank": 5, "local_rank": 1, "exit_code": -9, ...}
 *
 * It also reads what a worker itself leaves in its error file, in either of PyTorch's shapes:
 *
 *     {"message": {"message": "ValueError: boom",
 *                  "extraInfo": {"py_callstack": "Traceback ...", "timestamp": "1794736770"}}}
 *     {"message": "text", "timestamp": 123}
 *
 * Texts are bounded, and longer ones are cut: the tail of a worker's output at its front, all
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
#define MU_FAILURE_CAUSE_MAX     1023
#define MU_FAILURE_LOGS_MAX      8191 /* two paths */
#define MU_FAILURE_TRACEBACK_MAX 32768
#define MU_FAILURE_TAIL_MAX      16384 /* of the 64 KiB that its agent keeps */
#define MU_FAILURE_BYTES_MAX     (1u << 20)
#define MU_FAILURE_LINES         12
#define MU_FAILURE_LINES_BYTES   2048

/* It owns its texts (see mu_failure_fini()), which are never NULL after a decode or copy. */
struct mu_failure {
    char *host;
    uint32_t group_rank; /* of the agent */
    uint32_t rank;
    uint32_t local_rank;
    int64_t pid;
    int exit_code; /* the exit status, or -signal */
    uint64_t round;
    uint32_t restart_count;
    uint64_t ticket;     /* its place in the server's order of signs of failure; 0: unknown */
    bool effect;         /* it complains of a lost peer or connection */
    int64_t time_s;      /* since 1970; from the worker's error file, or else from its agent */
    bool has_error_file; /* the two below come from it */
    char *message;       /* "" if there is none */
    char *traceback;
    char *tail;  /* the end of its output */
    char *cause; /* what its machine knows beyond the exit code, in a sentence; "" */
    char *logs;  /* the files with its output, with ", " between them; "" */
};

void mu_failure_fini(struct mu_failure *f);

/**
 * Of two failures the one with the lower number was first. Failures that complain of a lost peer
 * come after all others: they were not first if any worker of that round failed without such a
 * complaint.
 */
uint64_t mu_failure_order(uint64_t ticket, bool effect);
/** Whether the last words of a worker, from its last exception on, are about a lost peer. */
bool mu_failure_is_effect(struct mu_span tail);

/** Appends it. MUSTER_ENOMEM, MUSTER_ELIMIT. Bytes that are not UTF-8 become U+FFFD. */
int mu_failure_encode(struct mu_buf *out, const struct mu_failure *f);
/**
 * Appends what people look for first, as an object: who failed, where and how, and in `last_lines`
 * the last MU_FAILURE_LINES lines of its traceback or output. Errors as mu_failure_encode().
 */
int mu_failure_brief(struct mu_buf *out, const struct mu_failure *f);
/** MUSTER_EPROTO: it is not such an object; MUSTER_ENOMEM. Unknown members are skipped. */
int mu_failure_decode(struct mu_span in, struct mu_failure *ret_failure);

/**
 * Takes message, traceback and time from the text of an error file. MUSTER_EPROTO: it is not a JSON
 * object; MUSTER_ENOMEM. On an error nothing has changed.
 */
int mu_failure_read_error_file(struct mu_failure *f, struct mu_span text);

/** The name of a signal, such as "SIGKILL"; NULL for one without a name, such as 40. Static. */
const char *mu_signal_name(int number);

/* --- to write JSON ---------------------------------------------------------------------------- */

/** Appends a JSON string: quoted, with U+FFFD for bytes that are not UTF-8. */
int mu_failure_put_text(struct mu_buf *out, struct mu_span text);
/** Appends text as it is. */
int mu_failure_put(struct mu_buf *out, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif

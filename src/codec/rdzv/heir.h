/*
 * What the nodes of a native run tell each other so that another of them can host it when the host
 * is lost: the parts of join, PREPARE and READY (codec/rdzv/msg.h) that are about that, and the
 * call `promise`. docs/native-wire.md specifies the bytes, proto/rdzv/succession.h what is done
 * with them.
 *
 *     promise  ASK: a node that has lost the host asks another one to host the run, and says what
 *              it would promise, or promises. The reply, an *answer*, comes when it is decided.
 *              PROBE: a host asks whether there is a better one. The reply comes at once.
 *     host     Where is the host of a run? A question (codec/rdzv/msg.h), answered with HOST:PORT.
 *
 * Spans that decoders return point into the input. Decoders refuse what they do not understand
 * (MUSTER_EPROTO), except that they ignore bytes after the known fields of a version.
 */
#ifndef MU_RDZV_HEIR_H
#define MU_RDZV_HEIR_H

#include <stdbool.h>
#include <stdint.h>

#include "codec/rdzv/msg.h"

#define MU_RDZV_METHOD_PROMISE "muster::Rendezvous.promise"
#define MU_RDZV_METHOD_HOST    "muster::Rendezvous.host"

#define MU_RDZV_LINE_MAX            160 /* places in the line of succession */
#define MU_RDZV_LINE_BYTES_MAX      (MU_RDZV_LINE_MAX * 2 * (1 + MU_RDZV_NAME_LEN_MAX))
#define MU_RDZV_LEGACY_MAX          16384
#define MU_RDZV_LEGACY_EXCLUDED_MAX 14848
#define MU_RDZV_VIEW_BYTES                                                                         \
    (2 * 8 + 4 + (2 * MU_RDZV_ELECTORATES_MAX + 1) * MU_RDZV_ELECTORATE_BYTES)

/* A place in the line of succession. */
struct mu_rdzv_heir {
    struct mu_span node; /* "": not known, a named endpoint */
    struct mu_span addr; /* HOST:PORT */
};

/* The run's small state, which the next host goes on from. */
struct mu_rdzv_legacy {
    uint64_t term; /* as the host of this term had it before this round; newer: a higher version */
    uint64_t round;
    uint64_t version;
    uint64_t incarnation;
    uint32_t restarts;      /* that were spent */
    uint64_t losses_for_ms; /* how long until all losses so far are forgotten */
    bool closed;
    uint32_t members;   /* how many nodes there were, spares and waiting ones included */
    uint32_t nodes_min; /* what the first node set, from here */
    uint32_t nodes_max;
    uint32_t members_max;
    uint32_t restarts_max;
    uint32_t losses_max;
    uint64_t losses_ms;
    uint64_t last_call_ms;
    uint64_t upscale_delay_ms;
    uint32_t exclude_after;
    uint64_t exclude_within_ms;
    uint64_t exclude_for_ms;
    struct mu_span host; /* its name, topology key and rank; "": it has none */
    struct mu_span topology;
    uint32_t rank;
    struct mu_span excluded; /* which nodes, at most MU_RDZV_LEGACY_EXCLUDED_MAX; read with
                                mu_rdzv_exclusion_next() */
};

enum mu_rdzv_promise_kind {
    MU_RDZV_PROMISE_ASK = 1,
    MU_RDZV_PROMISE_PROBE,
};

struct mu_rdzv_promise {
    enum mu_rdzv_promise_kind kind;
    struct mu_span run_id;
    struct mu_span node;    /* the caller's name */
    uint64_t term;          /* ASK: promised herewith, 0: nothing yet; PROBE: that it hosts */
    uint64_t round;         /* PROBE */
    struct mu_span addr;    /* PROBE: where */
    uint64_t promised;      /* ASK, from here: the highest term that it has promised or followed */
    uint32_t stopped_in_ms; /* by then the host must have stopped its workers; 0: it has */
    struct mu_span lost;    /* the name of that host; "": not known */
    struct mu_rdzv_view view;
    struct mu_span legacy; /* a struct mu_rdzv_legacy, or "" */
};

enum mu_rdzv_answer_kind {
    MU_RDZV_ANSWER_RAISE = 1, /* promise `term` */
    MU_RDZV_ANSWER_FOLLOW,    /* `addr` hosts `term` */
    MU_RDZV_ANSWER_FORGET,    /* likewise, and forget all that was promised */
    MU_RDZV_ANSWER_PROBED,    /* to a PROBE: likewise, as of `round`; term 0: it knows no better */
};

struct mu_rdzv_answer {
    enum mu_rdzv_answer_kind kind;
    uint64_t term;
    uint64_t round;
    struct mu_span addr;
};

int mu_rdzv_heir_encode(struct mu_buf *out, const struct mu_rdzv_heir *heir);
/** Takes the next one off `*line`. 0; MUSTER_ENOENT: there are no more; MUSTER_EPROTO. */
int mu_rdzv_heir_next(struct mu_span *line, struct mu_rdzv_heir *ret_heir);
/** Whether it is a line of at most MU_RDZV_LINE_MAX. */
bool mu_rdzv_line_fits(struct mu_span line);

int mu_rdzv_legacy_encode(struct mu_buf *out, const struct mu_rdzv_legacy *legacy);
int mu_rdzv_legacy_decode(struct mu_span in, struct mu_rdzv_legacy *ret_legacy);

int mu_rdzv_promise_encode(struct mu_buf *out, const struct mu_rdzv_promise *promise);
int mu_rdzv_promise_decode(struct mu_span in, struct mu_rdzv_promise *ret_promise);

int mu_rdzv_answer_encode(struct mu_buf *out, const struct mu_rdzv_answer *answer);
int mu_rdzv_answer_decode(struct mu_span in, struct mu_rdzv_answer *ret_answer);

#endif

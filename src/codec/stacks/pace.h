/*
 * The pace of a worker: what its agent saw it do in the last span of seconds, in a few numbers. An
 * agent sends the paces of its workers to the one that decides, which answers all of them with a
 * list of stragglers (proto/stacks/straggle.h).
 *
 * Paces of a node:
 *
 *     version          1 byte
 *     bytes a pace     1 byte, at least MU_PACE_SIZE
 *     span             4 bytes: the sender counts its spans
 *     count            4 bytes
 *     node             its length (1 byte), then its name
 *     paces            rank (4), looks (2), waits (2), turns (2), delay_permille (2), marks (4)
 *
 * Stragglers:
 *
 *     version          1 byte
 *     typical_permille 2 bytes
 *     count            1 byte
 *     stragglers       rank (4), rank_count (4), kept_permille (2), delay_permille (2), then node
 *                      and text, each after its length (2)
 *
 * Integers are little-endian. A later version may append fields to a pace, and a reader skips what
 * it does not know. Names and texts come from outside: who prints them makes them printable.
 */
#ifndef MU_PACE_H
#define MU_PACE_H

#include "core/buf.h"
#include "core/span.h"

#define MU_PACE_SIZE          16
#define MU_PACES_MAX          4096 /* workers of one node */
#define MU_PACE_NODE_MAX      63
#define MU_STRAGGLERS_MAX     16 /* that are named at a time */
#define MU_STRAGGLER_TEXT_MAX 511

struct mu_pace {
    uint32_t rank;
    uint16_t looks;          /* that showed what it did */
    uint16_t waits;          /* of them: it waited for other ranks */
    uint16_t turns;          /* how often it was seen to go on after a wait */
    uint16_t delay_permille; /* of the span: it could have run, and others had the CPU */
    uint32_t marks;          /* of progress */
};

struct mu_paces {
    uint32_t span;
    struct mu_span node;
    size_t count;
    struct mu_span bytes; /* of the paces: */
    size_t stride;
};

/* Somebody who keeps the others waiting. */
struct mu_straggler {
    uint32_t rank;       /* the first of its ranks */
    uint32_t rank_count; /* 1: a rank; more: a node */
    uint16_t kept_permille;
    uint16_t delay_permille;
    char node[MU_PACE_NODE_MAX + 1];
    char text[MU_STRAGGLER_TEXT_MAX + 1]; /* one sentence without a full stop */
};

struct mu_stragglers {
    uint16_t typical_permille; /* for how much of the time a rank waits, as most do */
    size_t count;
    struct mu_straggler list[MU_STRAGGLERS_MAX];
};

/** Appends a message; of a longer name the beginning. MUSTER_ELIMIT, MUSTER_ENOMEM: nothing
 * changed. */
int mu_paces_encode(struct mu_buf *out, uint32_t span, struct mu_span node,
                    const struct mu_pace *paces, size_t count);
/** Checks a message; the result borrows from it. MUSTER_EPROTO, MUSTER_ELIMIT. */
int mu_paces_decode(struct mu_span in, struct mu_paces *ret_paces);
/** Pace `i`, which is below `count`. */
struct mu_pace mu_paces_at(const struct mu_paces *paces, size_t i);

/** MUSTER_ELIMIT, MUSTER_ENOMEM: nothing changed. */
int mu_stragglers_encode(struct mu_buf *out, const struct mu_stragglers *list);
/** MUSTER_EPROTO, MUSTER_ELIMIT. */
int mu_stragglers_decode(struct mu_span in, struct mu_stragglers *ret_list);
/** Whether both are the same rank or node. */
bool mu_straggler_is(const struct mu_straggler *a, const struct mu_straggler *b);

#endif

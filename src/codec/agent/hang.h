/*
 * What the agent that watches a run tells the others when the run hangs: a JSON object. Pure.
 *
 *     {"hang": 1, "over": false, "since": 1794736770, "still_ms": 61000, "missing": "3",
 *      "missing_count": 1, "split": false, "blamed": 3, "action": "tell", "text": "...",
 *      "stacks": "..."}
 *
 * Texts are bounded, and longer ones are cut at their end, never inside a character.
 */
#ifndef MU_HANG_H
#define MU_HANG_H

#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/span.h"

#define MU_HANG_MISSING_MAX 255
#define MU_HANG_TEXT_MAX    900           /* fits into a line of the log */
#define MU_HANG_STACKS_MAX  (64u << 10)   /* a page is much shorter */
#define MU_HANG_BYTES_MAX   (1024u << 10) /* encoded: each byte of a text may need six */

enum mu_hang_action {
    MU_HANG_TELL = 1,
    MU_HANG_STACKS,  /* tell, and print the stacks */
    MU_HANG_RESTART, /* and end the worker that is missing, which costs a restart */
    MU_HANG_EXCLUDE, /* and exclude its node from the run */
};

/** "tell", "stacks", "restart" or "exclude". Static. */
const char *mu_hang_action_name(enum mu_hang_action action);
/** False: there is no such action. */
bool mu_hang_action_of(struct mu_span name, enum mu_hang_action *ret_action);

/* It owns its texts (see mu_hang_fini()), which are never NULL after a decode. */
struct mu_hang {
    uint64_t number;        /* of the hangs of a round, from 1 */
    bool over;              /* the run moves again */
    int64_t since_s;        /* since 1970: when it stopped moving */
    uint64_t still_ms;      /* for how long it had not moved when this was written */
    uint32_t missing_count; /* 0: all ranks are in one place, or each in another */
    bool split;             /* who is missing is a guess */
    uint32_t blamed;        /* the rank whose worker is ended, where that is the action */
    enum mu_hang_action action;
    char *missing; /* ranks, as in "0-2,5" */
    char *text;    /* all of it in one sentence */
    char *stacks;  /* the stacks of all ranks on a page, with line ends; may be "" */
};

void mu_hang_fini(struct mu_hang *h);
/** Appends it. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int mu_hang_encode(struct mu_buf *out, const struct mu_hang *h);
/** MUSTER_EPROTO: it is not such an object; MUSTER_ENOMEM. Unknown members are skipped. */
int mu_hang_decode(struct mu_span in, struct mu_hang *ret_hang);

#endif

/*
 * Checker: watches. The test records every change at the moment the server makes it, by the life of
 * the server, and everything that each watch told. A watch runs within one life of the server. What
 * it told must be an unbroken run of that life's changes to what it watches, in order and without
 * repetition; if it should begin with the present keys, it must begin with exactly these, as of one
 * revision. A watch that still ran at the end must have told all changes but the latest.
 */
#ifndef MU_SIM_WATCH_H
#define MU_SIM_WATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/store/op.h"
#include "core/err.h"

#define WATCH_KEY_MAX 24

/* A change, or with kind 0 what the server began its life with. */
struct watch_change {
    char key[WATCH_KEY_MAX];
    int kind;
    uint64_t revision;
    uint64_t hash; /* of the value */
    uint64_t at_ns;
    uint64_t kept; /* watches: the revision that the disk had when it was told; recorded ones: 0 */
};

struct watch_list {
    struct watch_change *changes;
    size_t count;
    size_t cap;
};

struct watch_life {
    uint64_t first; /* its revision at the start */
    struct watch_list changes;
};

/* One watch, from its beginning to its end. */
struct watch_run {
    char pattern[WATCH_KEY_MAX];
    bool prefix;
    bool current;
    uint32_t life_min; /* the lives it can have run in */
    uint32_t life_max;
    bool ended;       /* it reported its end, or its client died */
    uint64_t live_ns; /* not ended: when it was last known to run */
    struct watch_list told;
};

struct watch_history {
    struct watch_life *lives; /* number n is at n - 1 */
    size_t life_count;
    size_t life_cap;
    struct watch_run *runs;
    size_t run_count;
    size_t run_cap;
};

void watch_fini(struct watch_history *h);
/** A life of the server begins. */
void watch_life_begins(struct watch_history *h, uint64_t revision);
/** Something it began with (kind 0), or a change in it. */
void watch_note(struct watch_history *h, const struct mu_change *change, int kind, uint64_t now_ns);
/** A watch begins; returns its number. `life` is the server's, or the last it had. */
size_t watch_begin(struct watch_history *h, const char *pattern, bool prefix, bool current,
                   uint32_t life);
/** The watch told a change, while the disk had this revision (UINT64_MAX: it does not matter). */
void watch_told(struct watch_history *h, size_t run, const struct mu_change *change, uint64_t kept,
                uint64_t now_ns);
/** Checks everything. MUSTER_ECORRUPT with a message. A watch that still runs owes what was
 * recorded `slack_ns` before. */
int watch_check(struct watch_history *h, uint64_t slack_ns, struct mu_errmsg *reterr_msg);

#endif

/*
 * What the files of the download's scheduler share.
 *
 *     fetch.c         life, time, events, the end
 *     fetch_donor.c   donors: adding, resting, removal, reports
 *     fetch_pick.c    which donor to ask for which chunk
 *     fetch_chunk.c   answers
 *     fetch_bits.c    which chunks a donor has
 */
#ifndef MU_STATE_FETCH_INTERNAL_H
#define MU_STATE_FETCH_INTERNAL_H

#include <muster/error.h>

#include "codec/state/msg.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "proto/state/fetch.h"

/*
 * A chunk that a donor was asked for. It is live until it is answered or released; a revoked one is
 * not live, and only waits for the answer that still comes. Each chunk has at most two asks that
 * are live or being hashed, one of them without a spare.
 */
struct mu_state_ask {
    struct mu_list link;     /* unused, owed, hashing */
    struct mu_list by_donor; /* donor->owes while it is owed */
    uint32_t donor;
    uint32_t chunk;
    uint32_t spare;
    bool revoked;
    mu_mono_t at; /* when it was asked */
};

struct mu_state_donor {
    uint32_t index;
    enum mu_state_donor_state state;
    char name[MU_STATE_DONOR_NAME_MAX + 1];

    bool full;     /* it has all chunks */
    uint8_t *bits; /* else bits of those that it has; NULL: not told yet */
    bool counted;  /* these bits are in the rarity */
    bool paused;   /* cannot be asked at the moment */
    uint32_t cursor;
    uint32_t part; /* our part of `parts`; 0: not known */
    uint32_t parts;
    mu_mono_t have_at; /* when to ask which chunks it has */

    struct mu_list owes; /* asks, in their order */
    uint32_t in_flight;
    uint64_t head_bytes; /* how much of the first answer has come */
    mu_mono_t heard;
    mu_mono_t open_at; /* while it rests: when to open it again */
    uint32_t tries;    /* tries in a row without a chunk */
    uint32_t misses;   /* chunks in a row that it should have had */

    uint64_t bytes_per_s;
    uint64_t latency_ns; /* shortest time to an answer; UINT64_MAX: not known */
    mu_mono_t idle;      /* since when it owes nothing, if it owes nothing */
    mu_mono_t mark;      /* since when `mark_bytes` came */
    uint64_t mark_bytes;

    uint64_t bytes;
    uint64_t half_bytes;
    uint32_t chunks;
    uint32_t duplicates;
    uint32_t bad;
    uint32_t absent;
    uint32_t losses;
    uint32_t half;
    int status;
    struct mu_errmsg msg;
};

static inline bool mu_state_fetch_runs(const struct mu_state_fetch *f)
{
    return f->status == MU_STATE_FETCH_RUNNING;
}

static inline uint32_t mu_state_fetch_len(const struct mu_state_fetch *f, uint32_t chunk)
{
    return chunk + 1 == f->config.chunks ? f->config.last_bytes : f->config.chunk_bytes;
}

/** Returns whether a ready donor has the chunk. */
static inline bool mu_state_donor_has(const struct mu_state_donor *d, uint32_t chunk)
{
    return d->full || (d->bits != NULL && mu_state_bit(d->bits, chunk));
}

/* --- fetch.c ------------------------------------------------ */

void mu_state_fetch_push(struct mu_state_fetch *f, const struct mu_state_fetch_event *event);
/** Fails the download; mu_err(&f->msg, ...) has set the text before. */
void mu_state_fetch_fail(struct mu_state_fetch *f, int status);
void mu_state_fetch_finish(struct mu_state_fetch *f);
/** Ends the download if no donor is left and no other will come. */
void mu_state_fetch_check_hope(struct mu_state_fetch *f);

/* --- fetch_donor.c ------------------------------------------ */

/** Releases everything that the donor owes. */
void mu_state_donor_release(struct mu_state_fetch *f, struct mu_state_donor *d);
/** The same as lost, and tells the driver to end the stream. d->msg has the text before. */
void mu_state_donor_drop(struct mu_state_fetch *f, mu_mono_t now, struct mu_state_donor *d,
                         int status);
void mu_state_donor_ban(struct mu_state_fetch *f, struct mu_state_donor *d, uint32_t chunk);
void mu_state_donor_tick(struct mu_state_fetch *f, mu_mono_t now, struct mu_state_donor *d);
mu_mono_t mu_state_donor_deadline(const struct mu_state_fetch *f, const struct mu_state_donor *d);

/* --- fetch_pick.c ------------------------------------------- */

/** Finds another ask for the same chunk that is live or being hashed, or NULL. */
struct mu_state_ask *mu_state_ask_twin(struct mu_state_fetch *f, const struct mu_state_ask *ask);
/** Releases an ask that was live or being hashed: the chunk is available again unless its twin has
 * it, its spare is free, and so is the ask. The ask is on no list but `link`. */
void mu_state_ask_let_go(struct mu_state_fetch *f, struct mu_state_ask *ask);
/** Frees an ask and its spare, and leaves the chunk alone. */
void mu_state_ask_free(struct mu_state_fetch *f, struct mu_state_ask *ask);

/* --- fetch_bits.c ------------------------------------------- */

/** Returns the bytes of a bitmap here: whole words of 64 bits. */
size_t mu_state_words_len(uint32_t chunks);
/** Counts the bits of this donor in the rarity of the chunks, or takes them out again. */
void mu_state_donor_count(struct mu_state_fetch *f, struct mu_state_donor *d, bool counted);
/** The donor turned out not to have the chunk. MUSTER_ENOMEM. */
int mu_state_donor_lacks(struct mu_state_fetch *f, struct mu_state_donor *d, uint32_t chunk);
/** Finds the first unclaimed chunk from `from` on, without wrapping, that the donor has; false:
 * there is none. */
bool mu_state_fetch_scan(const struct mu_state_fetch *f, const struct mu_state_donor *d,
                         uint32_t from, uint32_t *ret_chunk);
/** Finds the first unclaimed chunk of [from, to) that the donor has and no incomplete donor has;
 * false: there is none. */
bool mu_state_fetch_scan_rare(const struct mu_state_fetch *f, const struct mu_state_donor *d,
                              uint32_t from, uint32_t to, uint32_t *ret_chunk);

#endif

/*
 * What the files of the download's scheduler share.
 *
 *     fetch.c         life, time, events, the end
 *     fetch_donor.c   donors that come, rest, go, and what they did
 *     fetch_pick.c    whom to ask for what
 *     fetch_chunk.c   answers
 *     fetch_bits.c    which chunks somebody has
 */
#ifndef MU_STATE_FETCH_INTERNAL_H
#define MU_STATE_FETCH_INTERNAL_H

#include <muster/error.h>

#include "codec/state/msg.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "proto/state/fetch.h"

/*
 * A chunk that a donor was asked for. It is live until it was answered or let go; a revoked one is
 * not, and only waits for the answer that still comes. Of a chunk there are at most two that are
 * live or being hashed, one of them without a spare.
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
    uint8_t *bits; /* else those that it has; NULL: not told yet */
    bool counted;  /* these bits are in the rarity */
    bool paused;   /* cannot be asked at the moment */
    uint32_t cursor;
    uint32_t part; /* ours of `parts`, 0: not known */
    uint32_t parts;
    mu_mono_t have_at; /* when to ask what it has */

    struct mu_list owes; /* asks, in their order */
    uint32_t in_flight;
    uint64_t head_bytes; /* of the answer to the first, that came already */
    mu_mono_t heard;
    mu_mono_t open_at; /* while it rests */
    uint32_t tries;    /* in a row without a chunk */
    uint32_t misses;   /* chunks in a row that it should have had */

    uint64_t bytes_per_s;
    uint64_t latency_ns; /* of an answer at its quickest; UINT64_MAX: not known */
    mu_mono_t idle;      /* since when it owes nothing, if it does not */
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

/** Whether a donor that is ready has it. */
static inline bool mu_state_donor_has(const struct mu_state_donor *d, uint32_t chunk)
{
    return d->full || (d->bits != NULL && mu_state_bit(d->bits, chunk));
}

/* --- fetch.c ------------------------------------------------ */

void mu_state_fetch_push(struct mu_state_fetch *f, const struct mu_state_fetch_event *event);
/** It failed; the text is set by mu_err(&f->msg, ...) before. */
void mu_state_fetch_fail(struct mu_state_fetch *f, int status);
void mu_state_fetch_finish(struct mu_state_fetch *f);
/** Ends it if nobody is left and nobody will come. */
void mu_state_fetch_check_hope(struct mu_state_fetch *f);

/* --- fetch_donor.c ------------------------------------------ */

/** All that it owes is let go. */
void mu_state_donor_release(struct mu_state_fetch *f, struct mu_state_donor *d);
/** As lost, and the driver is told to end its stream. The text is set in d->msg before. */
void mu_state_donor_drop(struct mu_state_fetch *f, mu_mono_t now, struct mu_state_donor *d,
                         int status);
void mu_state_donor_ban(struct mu_state_fetch *f, struct mu_state_donor *d, uint32_t chunk);
void mu_state_donor_tick(struct mu_state_fetch *f, mu_mono_t now, struct mu_state_donor *d);
mu_mono_t mu_state_donor_deadline(const struct mu_state_fetch *f, const struct mu_state_donor *d);

/* --- fetch_pick.c ------------------------------------------- */

/** Another ask for the same chunk that is live or being hashed, or NULL. */
struct mu_state_ask *mu_state_ask_twin(struct mu_state_fetch *f, const struct mu_state_ask *ask);
/** An ask that was live or being hashed is not any more: the chunk is to be had unless its twin
 * has it, its spare is free, and so is the ask. It is on no list but `link`. */
void mu_state_ask_let_go(struct mu_state_fetch *f, struct mu_state_ask *ask);
/** Frees an ask and its spare, whatever becomes of the chunk. */
void mu_state_ask_free(struct mu_state_fetch *f, struct mu_state_ask *ask);

/* --- fetch_bits.c ------------------------------------------- */

/** Bytes of a bitmap here: whole words of 64 bits. */
size_t mu_state_words_len(uint32_t chunks);
/** The bits of this donor are counted in the rarity of the chunks, or are not any more. */
void mu_state_donor_count(struct mu_state_fetch *f, struct mu_state_donor *d, bool counted);
/** It turned out not to have it. MUSTER_ENOMEM. */
int mu_state_donor_lacks(struct mu_state_fetch *f, struct mu_state_donor *d, uint32_t chunk);
/** The first unclaimed chunk from `from` on, not wrapping, that the donor has; false: none. */
bool mu_state_fetch_scan(const struct mu_state_fetch *f, const struct mu_state_donor *d,
                         uint32_t from, uint32_t *ret_chunk);
/** The first unclaimed chunk of [from, to) that the donor has, and none of those who have not all;
 * false: none. */
bool mu_state_fetch_scan_rare(const struct mu_state_fetch *f, const struct mu_state_donor *d,
                              uint32_t from, uint32_t to, uint32_t *ret_chunk);

#endif

/*
 * One download of a state from many donors: who is asked for which chunk, when it is asked of
 * somebody else, and when it is over. A decision machine: it sees chunk numbers and times, never
 * bytes. docs/state.md, section "How a download goes".
 *
 *     driver: a donor turns up                 mu_state_fetch_add()    -> event OPEN
 *             opens a stream to it             mu_state_fetch_ready(), _have()
 *             while it has room                mu_state_fetch_next()   -> ask this donor
 *             bytes of an answer came          mu_state_fetch_heard()
 *             an answer is whole               mu_state_fetch_received() -> hash it, or drop it
 *             it was hashed                    mu_state_fetch_verified() -> event HAVE, or BAN
 *             the donor answers "not here"     mu_state_fetch_absent()
 *             the stream ended                 mu_state_fetch_lost(), _busy()
 *
 * After every call, and before mu_state_fetch_next(), the driver pulls all events and does what
 * they say; then it re-arms its timer at mu_state_fetch_deadline(). What the events say has
 * happened already as far as the machine is concerned.
 *
 * Where the bytes land. An ask without a spare lands in the chunk's own place; of these there is
 * one at a time for each chunk. When nothing unasked is left for a donor that could do more, it is
 * asked for the oldest chunk that another one owes, with a spare: a side buffer with that number,
 * which is the ask's until its REVOKE, its HAVE, or the call that let go of it. A donor answers in
 * the order in which it was asked; answers to asks that were revoked still come, and are reported
 * as all are.
 *
 *     donor:  OPENING --ready--> READY --lost, busy, DROP--> RESTING --its time, OPEN--> OPENING
 *             OPENING, READY --lost for good, or too often--> GIVEN_UP
 *             any --a chunk that is not what it should be--> BANNED
 *
 * What is verified is never asked again. A donor that is lost costs the chunk that was half there;
 * what had been received whole is kept, and is worth as much after its donor has gone.
 */
#ifndef MU_STATE_FETCH_H
#define MU_STATE_FETCH_H

#include "core/buf.h"
#include "core/err.h"
#include "core/list.h"
#include "core/prng.h"
#include "core/span.h"
#include "core/time.h"
#include "core/trace.h"

#define MU_STATE_DONOR_NAME_MAX 127 /* bytes of a donor's name; more is cut */
#define MU_STATE_NO_SPARE       UINT32_MAX

struct mu_state_fetch_config {
    uint32_t chunks;      /* 0: there is nothing to do */
    uint32_t chunk_bytes; /* of all but the last */
    uint32_t last_bytes;  /* of the last */
    uint64_t seed;
    mu_mono_t deadline; /* MU_MONO_NEVER: none */
    uint32_t idle_ms;   /* without a chunk from anybody: it fails. 0: no such limit. 30 s */
    uint32_t stall_ms;  /* a donor that owes, or is being opened, and says nothing for so long is
                           dropped. 5 s */
    uint32_t have_ms;   /* how often a donor that has not all is asked what it has. 200 ms */
    uint32_t rest_ms;   /* a donor that was lost is tried again after this, then twice... 250 ms */
    uint32_t rest_ms_max;   /* ... up to this, each a quarter more or less. 5 s */
    uint32_t tries;         /* in a row without a chunk, then it is given up. 6 */
    uint32_t in_flight_max; /* asks that one donor owes. 32 */
    uint32_t asks_max;      /* asks that all owe or that are being hashed. 256 */
    uint32_t spares;        /* side buffers. 8 */
    uint32_t donors_max;    /* 256, those that were given up among them */
    const uint8_t *have;    /* a bit for each chunk that is there already, or NULL; borrowed for
                                mu_state_fetch_init() */
    struct mu_trace trace;
};

/** The defaults named above; chunks, their lengths, seed and deadline are the caller's to set. */
struct mu_state_fetch_config mu_state_fetch_config_defaults(void);

enum mu_state_donor_state {
    MU_STATE_DONOR_OPENING = 1,
    MU_STATE_DONOR_READY,
    MU_STATE_DONOR_RESTING,
    MU_STATE_DONOR_GIVEN_UP,
    MU_STATE_DONOR_BANNED,
};

enum mu_state_fetch_status {
    MU_STATE_FETCH_RUNNING = 1,
    MU_STATE_FETCH_DONE,
    MU_STATE_FETCH_FAILED,
};

enum mu_state_fetch_event_type {
    /* Open a stream to `donor`; ready, busy or lost follows. */
    MU_STATE_FETCH_EV_OPEN = 1,
    /* Ask `donor` which chunks it has; mu_state_fetch_have() follows, or nothing. */
    MU_STATE_FETCH_EV_ASK_HAVE,
    /* `donor` is not to land `chunk` (in the side buffer `spare`, if it has one) any more. */
    MU_STATE_FETCH_EV_REVOKE,
    /* `chunk` is verified. With a `spare`: copy that side buffer into place, it is free then. */
    MU_STATE_FETCH_EV_HAVE,
    /* End the stream to `donor`, take back all it lands; it may be opened again. `text` why. */
    MU_STATE_FETCH_EV_DROP,
    /* The same, for good: `chunk` of its was not what the manifest says. */
    MU_STATE_FETCH_EV_BAN,
    /* It is over: `status` is 0 or the error, `text` in words. The last event. */
    MU_STATE_FETCH_EV_END,
};

struct mu_state_fetch_event {
    enum mu_state_fetch_event_type type;
    uint32_t donor;
    uint32_t chunk;
    uint32_t spare; /* MU_STATE_NO_SPARE: none */
    int status;
    const char *text; /* lent until the next call that is not const; never NULL */
};

struct mu_state_ask_request {
    uint32_t donor;
    uint32_t chunk;
    uint32_t spare; /* MU_STATE_NO_SPARE: it lands in its place */
};

enum mu_state_fetch_verdict {
    MU_STATE_FETCH_VERIFY = 1, /* hash it where it is, then mu_state_fetch_verified() */
    MU_STATE_FETCH_DISCARD,    /* nobody wants it any more; a spare of its is free */
    MU_STATE_FETCH_NOT_ASKED,  /* that is not what it owes next: a violation, treat it as lost */
};

/* What one donor did. */
struct mu_state_donor_account {
    const char *name;
    enum mu_state_donor_state state;
    bool full;            /* it has all chunks, as far as it said */
    uint32_t in_flight;   /* asks that it owes */
    uint64_t bytes;       /* of chunks from it that were kept */
    uint32_t chunks;      /* that were kept */
    uint32_t duplicates;  /* that came, and another one had been quicker */
    uint32_t bad;         /* that were not what the manifest says */
    uint32_t absent;      /* that it turned out not to have */
    uint32_t losses;      /* times that it was lost, stalled or sent us away */
    uint32_t half;        /* chunks that were half there then */
    uint64_t half_bytes;  /* and how much of them that was */
    uint64_t bytes_per_s; /* as measured last; 0: not yet */
    int status;           /* of its last trouble, 0: none */
    const char *text;     /* the same in words, "" if none */
};

struct mu_state_fetch;

/* --- life --------------------------------------------------------- */

/** MUSTER_EINVAL: lengths or limits that cannot be; MUSTER_ENOMEM. A download that has all chunks
 * already is done at once. */
int mu_state_fetch_init(struct mu_state_fetch *f, const struct mu_state_fetch_config *config,
                        mu_mono_t now);
/** Also of a zeroed one. */
void mu_state_fetch_fini(struct mu_state_fetch *f);

/* --- donors ------------------------------------------------------- */

/**
 * Somebody who has the state, or some of it. It has nothing until mu_state_fetch_have() says so.
 * MUSTER_ELIMIT: donors_max; MUSTER_ENOMEM; MUSTER_ECLOSED: it is over.
 */
int mu_state_fetch_add(struct mu_state_fetch *f, mu_mono_t now, struct mu_span name,
                       uint32_t *ret_donor);
/** Whether others may still be added: while that is so, having no donor is no failure by itself.
 * True at first. */
void mu_state_fetch_expect(struct mu_state_fetch *f, mu_mono_t now, bool more);
/** Its stream is open; it owes nothing. */
void mu_state_fetch_ready(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor);
/**
 * What it has: `bits` with a bit for each chunk, borrowed; NULL: all. What it was said to have
 * before is forgotten. MUSTER_ENOMEM: nothing changed.
 */
int mu_state_fetch_have(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor,
                        const uint8_t *bits);
/**
 * Of `parts` who load from this donor at the same time we are number `part`: of what only those
 * have who have all, our part of the state is asked of it first, so that it need not give the same
 * to several who could pass it on. `parts` 0: nothing is known of that.
 */
void mu_state_fetch_part(struct mu_state_fetch *f, uint32_t donor, uint32_t part, uint32_t parts);
/**
 * Its stream ended, or could not be opened. What it owes is asked of others; the landings are the
 * driver's to take back before it pulls further. Tried again after a rest, unless `status` says
 * that this is of no use: MUSTER_ENOENT (it has not got that state any more), MUSTER_ENOMETHOD,
 * MUSTER_EPROTO, MUSTER_ELIMIT, MUSTER_ENOTSUP, MUSTER_EREFUSED, MUSTER_EVERSION, MUSTER_ECORRUPT,
 * MUSTER_ESIGNATURE, MUSTER_EPEERID, MUSTER_EPEERDENIED.
 */
void mu_state_fetch_lost(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor, int status,
                         const char *text);
/** As lost: it had no slot, and said when to come again. That is not counted as a try. */
void mu_state_fetch_busy(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor,
                         uint32_t retry_ms);

/* --- chunks ------------------------------------------------------- */

/** Whom to ask for what, now. False: nothing, until something happens. */
bool mu_state_fetch_next(struct mu_state_fetch *f, mu_mono_t now, struct mu_state_ask_request *ret);
/** The request that mu_state_fetch_next() gave last could not be made: as if it was not given. Not
 * a reason to end the stream. The donor is given none until something comes from it, or the next
 * mu_state_fetch_resume() of it. */
void mu_state_fetch_refuse(struct mu_state_fetch *f, const struct mu_state_ask_request *request);
/** The donor can be asked again. */
void mu_state_fetch_resume(struct mu_state_fetch *f, uint32_t donor);
/** What this donor owes next, so where the next answer should land; `*ret_revoked`: nowhere. False:
 * it owes nothing. */
bool mu_state_fetch_owes(const struct mu_state_fetch *f, uint32_t donor,
                         struct mu_state_ask_request *ret, bool *ret_revoked);
/** So many bytes of an answer, the next that it owes, came from this donor: it is alive. */
void mu_state_fetch_heard(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor, size_t bytes);
/** The answer to what it owes next is whole, and is this chunk. */
enum mu_state_fetch_verdict mu_state_fetch_received(struct mu_state_fetch *f, mu_mono_t now,
                                                    uint32_t donor, uint32_t chunk);
/** The answer to what it owes next is that it has not got it. False: that is not what it owes. */
bool mu_state_fetch_absent(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor, uint32_t chunk);
/** What was received was hashed; `ok`: it is what the manifest says. Also of a donor that is gone
 * and of a download that is over (then nothing comes of it). */
void mu_state_fetch_verified(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor,
                             uint32_t chunk, bool ok);

/* --- time --------------------------------------------------------- */

void mu_state_fetch_tick(struct mu_state_fetch *f, mu_mono_t now);
/** When to tick next; at once while events wait. */
mu_mono_t mu_state_fetch_deadline(const struct mu_state_fetch *f);
/** We were away for `ns` that end now: nobody's silence in that time counts. The overall deadline
 * stays where it is. */
void mu_state_fetch_away(struct mu_state_fetch *f, uint64_t ns);
/** Ends it: event END with MUSTER_ECANCELED. */
void mu_state_fetch_cancel(struct mu_state_fetch *f);

/* --- out ---------------------------------------------------------- */

bool mu_state_fetch_next_event(struct mu_state_fetch *f, struct mu_state_fetch_event *ret);
enum mu_state_fetch_status mu_state_fetch_status(const struct mu_state_fetch *f);
/** Of a download that failed. "" otherwise. */
const char *mu_state_fetch_errmsg(const struct mu_state_fetch *f);
/** The bits of the chunks that are verified; the driver serves others from these, and keeps them
 * for a resume, once it has pulled the events. */
const uint8_t *mu_state_fetch_bits(const struct mu_state_fetch *f);
/** How many chunks and bytes are verified. */
uint32_t mu_state_fetch_chunks_done(const struct mu_state_fetch *f);
uint64_t mu_state_fetch_bytes_done(const struct mu_state_fetch *f);
/** How much was received for nothing: duplicates, bad chunks, halves. */
uint64_t mu_state_fetch_bytes_wasted(const struct mu_state_fetch *f);
size_t mu_state_fetch_donor_count(const struct mu_state_fetch *f);
/** Of a donor that there is; the texts are lent until the next call that is not const. */
void mu_state_fetch_account(const struct mu_state_fetch *f, uint32_t donor,
                            struct mu_state_donor_account *ret);
/**
 * Appends what each donor did, a line for each: "10.0.0.7:7777: 31 chunks, 31.0 MiB, 1 bad; banned:
 * chunk 7 is not what the manifest says". MUSTER_ELIMIT, MUSTER_ENOMEM: some of it is missing.
 */
int mu_state_fetch_report(const struct mu_state_fetch *f, struct mu_buf *out);

/* --- inside ------------------------------------------------------- */

struct mu_state_ask;
struct mu_state_donor;

/* Callers embed it and look at nothing inside. */
struct mu_state_fetch {
    struct mu_state_fetch_config config;
    struct mu_prng prng;
    enum mu_state_fetch_status status;
    bool more; /* donors may still be added */
    int error;
    struct mu_errmsg msg;

    uint8_t *have;    /* verified */
    uint8_t *claimed; /* owed in its place, being hashed, or verified: not to be asked plainly */
    uint16_t *rarity; /* of each chunk: donors that are ready and have it but not all */
    uint8_t *spread;  /* the bits of those with at least one */
    uint32_t done;
    uint32_t unclaimed;
    uint64_t bytes_wasted;
    mu_mono_t progress; /* when the last chunk was verified */

    struct mu_state_donor **donors; /* donors_max of them, in use donor_count */
    uint32_t donor_count;

    struct mu_state_ask *asks; /* asks_max of them */
    struct mu_list unused;     /* of them */
    struct mu_list owed;       /* by all donors, the oldest first */
    struct mu_list hashing;
    uint32_t *spares; /* a stack of those that are free */
    uint32_t spares_free;

    struct mu_state_fetch_event *events; /* a ring */
    uint32_t event_cap;
    uint32_t event_head;
    uint32_t event_count;
};

#endif

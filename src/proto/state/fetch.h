/*
 * One download of a state from many donors: which donor is asked for which chunk, when another
 * donor is asked, and when the download is over. A decision machine: it sees chunk numbers and
 * times, never bytes. See docs/state.md, section "How a download goes".
 *
 *     driver: a donor is found                 mu_state_fetch_add()    -> event OPEN
 *             opens a stream to it             mu_state_fetch_ready(), _have()
 *             while it has room                mu_state_fetch_next()   -> ask this donor
 *             bytes of an answer came          mu_state_fetch_heard()
 *             an answer is complete               mu_state_fetch_received() -> hash it, or drop it
 *             it was hashed                    mu_state_fetch_verified() -> event HAVE, or BAN
 *             the donor answers "not here"     mu_state_fetch_absent()
 *             the stream ended                 mu_state_fetch_lost(), _busy()
 *
 * After every call, and before mu_state_fetch_next(), the driver pulls all events and does what
 * they say; then it re-arms its timer at mu_state_fetch_deadline(). For the machine, what the
 * events say has happened already.
 *
 * Where the bytes land. An ask without a spare lands in the chunk's own place; each chunk has one
 * such ask at a time. When no unasked chunk is left for a donor that could do more, it is asked for
 * the oldest chunk that another donor owes, with a spare: a side buffer with that number, which
 * belongs to the ask until its REVOKE, its HAVE, or the call that released it. A donor answers in
 * the order in which it was asked; answers to revoked asks still come, and are reported like all
 * others.
 *
 *     donor:  OPENING --ready--> READY --lost, busy, DROP--> RESTING --its time, OPEN--> OPENING
 *             OPENING, READY --lost for good, or too often--> GIVEN_UP
 *             any --a chunk that is not what it should be--> BANNED
 *
 * A verified chunk is never asked for again. A donor that is lost costs the chunk that was half
 * received; complete chunks are kept after their donor has gone.
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
    mu_mono_t deadline; /* MU_MONO_NEVER: no deadline */
    uint32_t idle_ms;   /* the download fails after this long without a chunk. 0: no limit. 30 s */
    uint32_t stall_ms;  /* a donor that owes, or is being opened, and is silent for this long is
                           dropped. 5 s */
    uint32_t have_ms;   /* how often an incomplete donor is asked what it has. 200 ms */
    uint32_t rest_ms;   /* rest before a lost donor is tried again; doubles each time. 250 ms */
    uint32_t rest_ms_max;   /* the longest rest; each is a quarter more or less. 5 s */
    uint32_t tries;         /* tries in a row without a chunk before a donor is given up. 6 */
    uint32_t in_flight_max; /* asks that one donor owes. 32 */
    uint32_t asks_max;      /* asks that all donors owe or that are being hashed. 256 */
    uint32_t spares;        /* side buffers. 8 */
    uint32_t donors_max;    /* 256, including those that were given up */
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
    /* `donor` must not land `chunk` (in the side buffer `spare`, if it has one) any more. */
    MU_STATE_FETCH_EV_REVOKE,
    /* `chunk` is verified. With a `spare`: copy that side buffer into place; then it is free. */
    MU_STATE_FETCH_EV_HAVE,
    /* End the stream to `donor` and take back all its landings; it may be opened again. `text` is
     * the reason. */
    MU_STATE_FETCH_EV_DROP,
    /* The same, for good: its `chunk` was not what the manifest says. */
    MU_STATE_FETCH_EV_BAN,
    /* The download is over: `status` is 0 or the error, `text` describes it. The last event. */
    MU_STATE_FETCH_EV_END,
};

struct mu_state_fetch_event {
    enum mu_state_fetch_event_type type;
    uint32_t donor;
    uint32_t chunk;
    uint32_t spare; /* or MU_STATE_NO_SPARE */
    int status;
    const char *text; /* lent until the next call that is not const; never NULL */
};

struct mu_state_ask_request {
    uint32_t donor;
    uint32_t chunk;
    uint32_t spare; /* MU_STATE_NO_SPARE: it lands in the chunk's own place */
};

enum mu_state_fetch_verdict {
    MU_STATE_FETCH_VERIFY = 1, /* hash it where it is, then mu_state_fetch_verified() */
    MU_STATE_FETCH_DISCARD,    /* it is not needed any more; its spare is free */
    MU_STATE_FETCH_NOT_ASKED,  /* the donor does not owe this next: a violation, treat the donor as
                                  lost */
};

/* What one donor did. */
struct mu_state_donor_account {
    const char *name;
    enum mu_state_donor_state state;
    bool full;            /* it says that it has all chunks */
    uint32_t in_flight;   /* asks that it owes */
    uint64_t bytes;       /* of chunks from it that were kept */
    uint32_t chunks;      /* chunks that were kept */
    uint32_t duplicates;  /* chunks that another donor had sent before */
    uint32_t bad;         /* chunks that were not what the manifest says */
    uint32_t absent;      /* chunks that it turned out not to have */
    uint32_t losses;      /* times that it was lost, stalled or had no slot */
    uint32_t half;        /* chunks that were half received then */
    uint64_t half_bytes;  /* how many bytes of them had come */
    uint64_t bytes_per_s; /* as measured last; 0: not yet */
    int status;           /* of its last failure; 0: no failure */
    const char *text;     /* its text; "" if there was no failure */
};

struct mu_state_fetch;

/* --- life --------------------------------------------------------- */

/** MUSTER_EINVAL: impossible lengths or limits; MUSTER_ENOMEM. A download that has all chunks
 * already is done at once. */
int mu_state_fetch_init(struct mu_state_fetch *f, const struct mu_state_fetch_config *config,
                        mu_mono_t now);
/** Also for a zeroed download. */
void mu_state_fetch_fini(struct mu_state_fetch *f);

/* --- donors ------------------------------------------------------- */

/**
 * Adds a donor that has the state, or some of it. It has nothing until mu_state_fetch_have() says
 * so. MUSTER_ELIMIT: donors_max; MUSTER_ENOMEM; MUSTER_ECLOSED: it is over.
 */
int mu_state_fetch_add(struct mu_state_fetch *f, mu_mono_t now, struct mu_span name,
                       uint32_t *ret_donor);
/** Sets whether other donors may still be added: while they may, having no donor is not a failure.
 * True at first. */
void mu_state_fetch_expect(struct mu_state_fetch *f, mu_mono_t now, bool more);
/** The donor's stream is open; it owes nothing. */
void mu_state_fetch_ready(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor);
/**
 * Sets what the donor has: `bits` with a bit for each chunk, borrowed; NULL: all. It replaces what
 * was set before. MUSTER_ENOMEM: nothing changed.
 */
int mu_state_fetch_have(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor,
                        const uint8_t *bits);
/**
 * `parts` newcomers load from this donor at the same time, and we are number `part`. Of the chunks
 * that only complete donors have, we ask this donor for our part of the state first, so that it
 * need not send the same chunk to several newcomers that could pass it on. `parts` 0: not known.
 */
void mu_state_fetch_part(struct mu_state_fetch *f, uint32_t donor, uint32_t part, uint32_t parts);
/**
 * The donor's stream ended, or could not be opened. Other donors are asked for what it owes; the
 * driver takes back the landings before it pulls further. It is tried again after a rest, unless
 * `status` says that this is useless: MUSTER_ENOENT (it does not have that state any more),
 * MUSTER_ENOMETHOD, MUSTER_EPROTO, MUSTER_ELIMIT, MUSTER_ENOTSUP, MUSTER_EREFUSED, MUSTER_EVERSION,
 * MUSTER_ECORRUPT, MUSTER_ESIGNATURE, MUSTER_EPEERID, MUSTER_EPEERDENIED.
 */
void mu_state_fetch_lost(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor, int status,
                         const char *text);
/** The same as lost: the donor had no slot, and said when to come again. This does not count as a
 * try. */
void mu_state_fetch_busy(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor,
                         uint32_t retry_ms);

/* --- chunks ------------------------------------------------------- */

/** Chooses the next ask. False: there is nothing to ask for until something happens. */
bool mu_state_fetch_next(struct mu_state_fetch *f, mu_mono_t now, struct mu_state_ask_request *ret);
/** The last request of mu_state_fetch_next() could not be made and counts as not given. This is not
 * a reason to end the stream. The donor gets no request until something comes from it, or until
 * mu_state_fetch_resume(). */
void mu_state_fetch_refuse(struct mu_state_fetch *f, const struct mu_state_ask_request *request);
/** The donor can be asked again. */
void mu_state_fetch_resume(struct mu_state_fetch *f, uint32_t donor);
/** Returns what this donor owes next, so where the next answer should land; `*ret_revoked`:
 * nowhere. False: it owes nothing. */
bool mu_state_fetch_owes(const struct mu_state_fetch *f, uint32_t donor,
                         struct mu_state_ask_request *ret, bool *ret_revoked);
/** This many bytes of the next answer came from this donor: it is alive. */
void mu_state_fetch_heard(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor, size_t bytes);
/** The next answer that it owes is complete, and is this chunk. */
enum mu_state_fetch_verdict mu_state_fetch_received(struct mu_state_fetch *f, mu_mono_t now,
                                                    uint32_t donor, uint32_t chunk);
/** The donor answers that it does not have the next chunk that it owes. False: it does not owe that
 * chunk next. */
bool mu_state_fetch_absent(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor, uint32_t chunk);
/** A received chunk was hashed; `ok`: it is what the manifest says. Also call it if the donor is
 * gone, and if the download is over (then it has no effect). */
void mu_state_fetch_verified(struct mu_state_fetch *f, mu_mono_t now, uint32_t donor,
                             uint32_t chunk, bool ok);

/* --- time --------------------------------------------------------- */

void mu_state_fetch_tick(struct mu_state_fetch *f, mu_mono_t now);
/** Returns when to tick next; at once while events wait. */
mu_mono_t mu_state_fetch_deadline(const struct mu_state_fetch *f);
/** We were away for the last `ns`: no donor's silence in that time counts. The overall deadline
 * stays where it is. */
void mu_state_fetch_away(struct mu_state_fetch *f, uint64_t ns);
/** Ends the download: event END with MUSTER_ECANCELED. */
void mu_state_fetch_cancel(struct mu_state_fetch *f);

/* --- out ---------------------------------------------------------- */

bool mu_state_fetch_next_event(struct mu_state_fetch *f, struct mu_state_fetch_event *ret);
enum mu_state_fetch_status mu_state_fetch_status(const struct mu_state_fetch *f);
/** Returns why a download failed; "" otherwise. */
const char *mu_state_fetch_errmsg(const struct mu_state_fetch *f);
/** Returns the bits of the verified chunks; once it has pulled the events, the driver serves others
 * from these and keeps them for a resume. */
const uint8_t *mu_state_fetch_bits(const struct mu_state_fetch *f);
/** Return how many chunks and bytes are verified. */
uint32_t mu_state_fetch_chunks_done(const struct mu_state_fetch *f);
uint64_t mu_state_fetch_bytes_done(const struct mu_state_fetch *f);
/** Returns how much was received for nothing: duplicates, bad chunks, halves. */
uint64_t mu_state_fetch_bytes_wasted(const struct mu_state_fetch *f);
size_t mu_state_fetch_donor_count(const struct mu_state_fetch *f);
/** Describes an existing donor; the texts are lent until the next call that is not const. */
void mu_state_fetch_account(const struct mu_state_fetch *f, uint32_t donor,
                            struct mu_state_donor_account *ret);
/**
 * Appends what each donor did, one line for each: "10.0.0.7:7777: 31 chunks, 31.0 MiB, 1 bad;
 * banned: chunk 7 is not what the manifest says". MUSTER_ELIMIT, MUSTER_ENOMEM: some of it is
 * missing.
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
    uint8_t *claimed; /* owed in its place, being hashed, or verified: not to be asked for without a
                         spare */
    uint16_t *rarity; /* for each chunk: how many ready, incomplete donors have it */
    uint8_t *spread;  /* bits of the chunks with at least one such donor */
    uint32_t done;
    uint32_t unclaimed;
    uint64_t bytes_wasted;
    mu_mono_t progress; /* when the last chunk was verified */

    struct mu_state_donor **donors; /* donors_max of them, donor_count in use */
    uint32_t donor_count;

    struct mu_state_ask *asks; /* asks_max of them */
    struct mu_list unused;     /* unused asks */
    struct mu_list owed;       /* by all donors, oldest first */
    struct mu_list hashing;
    uint32_t *spares; /* a stack of the free ones */
    uint32_t spares_free;

    struct mu_state_fetch_event *events; /* a ring */
    uint32_t event_cap;
    uint32_t event_head;
    uint32_t event_count;
};

#endif

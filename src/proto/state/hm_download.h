/*
 * Loads a state from hivemind's peers: which donor is asked, how long to wait for it, and what
 * happens when it fails. A decision machine; service/state/hm_load.h drives it.
 *
 *     FIND                               look `<prefix>.all_averagers` up in the DHT
 *     mu_hm_download_found(d, now, ...)  what was found
 *     OPEN, with a number                call rpc_download_state of that peer
 *     mu_hm_download_item(d, now, number, message)
 *     mu_hm_download_closed(d, now, number, status, text)
 *     DROP, with a number                that call is no longer needed
 *     ENDED                              mu_hm_download_status(); mu_hm_download_take()
 *
 * Donors are asked one after the other, those with the greatest priority first and equals at
 * random, ourselves left out. A donor has `idle_ms` for each message, including the first; all
 * donors together have `total_ms`. What a donor sends is checked as it comes
 * (codec/state/hm_state.h); any error ends that donor's turn, and nothing of what it sent counts.
 * With `epoch_min`, a donor whose state is older has failed as well.
 *
 * Donors claim their own priorities: those that are not finite are ignored, and a high one buys no
 * more than the first turn.
 */
#ifndef MU_HM_DOWNLOAD_H
#define MU_HM_DOWNLOAD_H

#include "codec/dht/id.h"
#include "codec/state/hm_state.h"
#include "codec/peer/id.h"
#include "core/prng.h"
#include "core/time.h"

/** Writes the DHT key of the donors: `<prefix>.all_averagers`. MUSTER_EINVAL: no prefix, or one
 * with a dot; MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_hm_all_averagers(const char *prefix, struct mu_dht_id *ret);
/**
 * Writes the name of the handler: "R_state_averager::TrainingStateAverager.rpc_download_state".
 * `averager` is the name of the class in Python, which is the same for all donors. MUSTER_ELIMIT:
 * it is longer than `cap`.
 */
int mu_hm_handler_name(char *buf, size_t cap, const char *prefix, const char *averager);

struct mu_dht_entry;

/** Returns whether an entry under that key names a donor: the bytes of a peer id, a
 * finite number, and not expired at `now`, seconds since 1970. */
bool mu_hm_donor_entry(const struct mu_dht_entry *entry, double now, struct mu_peer_id *ret_peer,
                       double *ret_priority);

struct mu_hm_download_config {
    struct mu_peer_id self;
    struct mu_hm_assembler_config state;
    uint32_t idle_ms;    /* 15 s */
    uint32_t total_ms;   /* 600 s */
    uint32_t donors_max; /* donors that get a turn. 64 */
    bool epoch_wanted;   /* the metadata must tell an epoch */
    uint64_t epoch_min;  /* which must be at least this */
    uint64_t seed;
};

enum mu_hm_download_event_type {
    MU_HM_DOWNLOAD_FIND = 1,
    MU_HM_DOWNLOAD_OPEN,
    MU_HM_DOWNLOAD_DROP,
    MU_HM_DOWNLOAD_ENDED,
};

struct mu_hm_download_event {
    enum mu_hm_download_event_type type;
    uint64_t number;        /* OPEN, DROP: the call's */
    struct mu_peer_id peer; /* OPEN */
};

/* A donor, and what it did. */
struct mu_hm_donor_report {
    struct mu_peer_id peer;
    double priority;
    int status; /* 1: not asked yet; 0: the state is from it */
    uint64_t messages;
    uint64_t bytes;
    struct mu_errmsg text;
};

struct mu_hm_download {
    /* Read only. */
    size_t donor_count;
    struct mu_hm_donor_report *donors; /* in the order of their turns */
    /* private */
    struct mu_hm_download_config config;
    struct mu_prng prng;
    struct mu_hm_assembler assembler;
    struct mu_hm_loaded loaded;
    size_t turn;
    uint64_t number;  /* of the call in progress; 0: no call */
    uint64_t numbers; /* numbers that were given out */
    uint64_t drop;
    mu_mono_t idle;
    mu_mono_t total;
    bool want_find, want_open, want_end;
    bool finding, ended, taken;
    int status;
    struct mu_errmsg text;
};

struct mu_hm_download_config mu_hm_download_config_defaults(void);
/** Begins the download: FIND follows. */
void mu_hm_download_init(struct mu_hm_download *d, const struct mu_hm_download_config *config,
                         struct mu_now now);
void mu_hm_download_fini(struct mu_hm_download *d);

/* --- in --------------------------------------------------------------------------------------- */

/** Takes the result of FIND: a dictionary (codec/dht/dict.h), or nothing. `status` below zero: the
 * lookup failed. */
void mu_hm_download_found(struct mu_hm_download *d, struct mu_now now, int status,
                          struct mu_span dictionary);
/** Items and ends of a call that is dropped or over are ignored. With `pass_on`,
 * `d->assembler.piece` has the item's bytes then. */
void mu_hm_download_item(struct mu_hm_download *d, struct mu_now now, uint64_t number,
                         struct mu_span message);
/** The call has ended, with status 0 if it ended in order. */
void mu_hm_download_closed(struct mu_hm_download *d, struct mu_now now, uint64_t number, int status,
                           const char *text);
void mu_hm_download_tick(struct mu_hm_download *d, struct mu_now now);
/** Cancels the download: ENDED follows, with MUSTER_ECANCELED. */
void mu_hm_download_cancel(struct mu_hm_download *d);
/** Ends the download for a reason of our own, such as a full disk: ENDED follows, with `status`. */
void mu_hm_download_fail(struct mu_hm_download *d, int status, const char *text);

/* --- out -------------------------------------------------------------------------------------- */

bool mu_hm_download_next_event(struct mu_hm_download *d, struct mu_hm_download_event *ret);
mu_mono_t mu_hm_download_deadline(const struct mu_hm_download *d);
/**
 * Returns the result after ENDED. 0; MUSTER_ENOENT: no other peer shares a state; MUSTER_ETIMEDOUT:
 * `total_ms` is over; MUSTER_ECANCELED; or the error of the last donor or of FIND.
 */
int mu_hm_download_status(const struct mu_hm_download *d);
/** Returns one sentence for the status. */
const char *mu_hm_download_text(const struct mu_hm_download *d);
/** Appends what each donor did, one line each, to find out why a download failed. MUSTER_ELIMIT,
 * MUSTER_ENOMEM. */
int mu_hm_download_report(const struct mu_hm_download *d, struct mu_buf *out);
/** After ENDED with 0, once: returns the state, which the caller owns then, and its donor. */
void mu_hm_download_take(struct mu_hm_download *d, struct mu_hm_loaded *ret,
                         struct mu_peer_id *ret_from);
/** Returns the donor whose turn it is; NULL: there is none. */
const struct mu_hm_donor_report *mu_hm_download_current(const struct mu_hm_download *d);

#endif

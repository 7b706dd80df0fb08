/*
 * The progress of a swarm of hivemind trainers, and our own: hivemind's progress tracker as a
 * decision machine. Trainers count samples towards a batch that all of them fill together; when it
 * is full, the epoch ends. Each trainer stores its own signed record in the DHT under `<run
 * id>_progress`, and reads those of the others now and then.
 *
 *     mu_progress_report(p, now, epoch, samples)   after each step of the trainer
 *     mu_progress_deadline(p)                      when to ask again:
 *       mu_progress_store_due(p, now)              store mu_progress_record(), for 60 s
 *       mu_progress_fetch_due(p, now)              get the key, latest, then mu_progress_fetched()
 *     mu_progress_ready(p, now)                    the epoch may end: the trainer takes its step
 *     mu_progress_needs_state(p)                   we are behind: load a state from a peer
 *     mu_progress_enter(p, now, &hooks) ... load ... mu_progress_leave(p, now, status, epoch)
 *
 * When a state is needed. Once for each epoch of ours, after the first fetch in it, our epoch must
 * be the swarm's. At other times, being behind by `tolerance` is common (a step late), and only
 * more than that needs a state.
 *
 * One fake record. In hivemind, one record with a huge epoch makes every trainer drop its gradients
 * and look for a state that does not exist. Here
 *  - an epoch is believed if as many as `witnesses` records of others are there, or ahead of it, or
 *    no more than `tolerance` behind; if fewer others have records, all of them must be. A record
 *    that is further ahead is a suspect: it counts for nothing until others follow it.
 *  - a claim that no donor could fulfil is not believed again soon: after a load that failed, or
 *    gave an earlier epoch, epochs that are further ahead than `tolerance` of what we have then are
 *    suspect for `doubt_ms`, however many claim them.
 * As many fakes as `witnesses` can still claim a wrong epoch; then the second rule limits the cost
 * to one load in each `doubt_ms`.
 */
#ifndef MU_PROGRESS_H
#define MU_PROGRESS_H

#include <stdbool.h>

#include "codec/peer/id.h"
#include "core/buf.h"
#include "core/time.h"

#define MU_PROGRESS_WITNESSES_MAX 16

/* What a trainer reports about itself. */
struct mu_progress_record {
    struct mu_span peer; /* the bytes of its peer id; lent when decoded */
    uint64_t epoch;
    uint64_t samples;          /* towards the epoch's end */
    double samples_per_second; /* not below zero */
    double time;               /* seconds since 1970 */
    bool client;
};

/** Appends the value as the others expect it: a MessagePack map. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_progress_record_encode(const struct mu_progress_record *r, struct mu_buf *out);
/**
 * Types are as strict as hivemind's schema: numbers that count are integers, the others floats.
 * MUSTER_EPROTO; MUSTER_ENOENT: nil, which means that the trainer has left.
 */
int mu_progress_record_decode(struct mu_span value, struct mu_progress_record *ret);

struct mu_progress_config {
    struct mu_peer_id self;
    bool client;
    uint64_t target_batch_size; /* samples in an epoch; not 0 */
    uint32_t fetch_min_ms;      /* between two fetches. 500 */
    uint32_t fetch_max_ms;      /* 10 s */
    uint32_t fetch_alone_ms;    /* between two fetches while no other trainer is there. 3 s */
    uint32_t expiration_ms;     /* lifetime of our record, which is stored again after half of it.
                                   60 s */
    uint32_t doubt_ms;          /* 60 s */
    uint64_t tolerance;         /* epochs. 1 */
    uint32_t witnesses;         /* 2; at most MU_PROGRESS_WITNESSES_MAX */
    double drift_peers;         /* how many trainers may join between two epochs: this many, 3, */
    double drift_rate;          /* or this part of those that are there. 0.2 */
    double alpha;               /* weight of the moving average of our speed. 0.1 */
};

/* The swarm at the last fetch. */
struct mu_progress_swarm {
    uint64_t epoch;
    uint64_t samples;
    double estimated_samples; /* extrapolated to now */
    double samples_per_second;
    double eta; /* when the epoch ends: seconds since 1970; infinite: not known */
    size_t peers;
    size_t clients;
    size_t suspects;
    size_t bad; /* records that could not be read */
};

struct mu_progress {
    /* Read only. */
    struct mu_progress_swarm swarm;
    uint64_t epoch; /* ours */
    uint64_t samples;
    double samples_per_second;
    /* private */
    struct mu_progress_config config;
    double ema;
    uint64_t ema_updates;
    mu_mono_t ema_since;
    mu_mono_t next_fetch;
    mu_mono_t next_store;
    mu_mono_t doubt_until;
    bool store_wanted;
    bool active; /* has samples of a recent epoch */
    uint64_t active_epoch;
    bool fetching;
    bool fetched;      /* there was a fetch in this epoch of ours */
    bool exact_wanted; /* the one exact comparison of this epoch was not made yet */
    bool paused;
    int entering;
};

struct mu_progress_config mu_progress_config_defaults(void);
/** The first fetch is due at once. */
void mu_progress_init(struct mu_progress *p, const struct mu_progress_config *config,
                      struct mu_now now);

/* --- our own progress ------------------------------------------------------------------------- */

/** We have this many samples of that epoch by now; fewer than before: samples were discarded. */
void mu_progress_report(struct mu_progress *p, struct mu_now now, uint64_t epoch, uint64_t samples);
/** The trainer has taken its step and begins that epoch, without samples. */
void mu_progress_update_epoch(struct mu_progress *p, struct mu_now now, uint64_t epoch);
/** While paused, fetched records are ignored, and the time does not count for our speed. */
void mu_progress_pause(struct mu_progress *p);
void mu_progress_resume(struct mu_progress *p, struct mu_now now);
/** Returns whether the epoch may end: it has ended for others, or the batch is full, or should be
 * by now. */
bool mu_progress_ready(const struct mu_progress *p, struct mu_now now);

/* --- what the driver does --------------------------------------------------------------------- */

/** Returns when the first of the two below becomes due. */
mu_mono_t mu_progress_deadline(const struct mu_progress *p);
/** Returns true once each time our record must be stored. A trainer that has no samples, or is out
 * of sync, stores nothing. */
bool mu_progress_store_due(struct mu_progress *p, struct mu_now now);
/** Returns the record to store for `expiration_ms`; the peer is lent. */
struct mu_progress_record mu_progress_record(const struct mu_progress *p, struct mu_now now);
/** Returns true once each time a fetch is due; mu_progress_fetched() must follow. */
bool mu_progress_fetch_due(struct mu_progress *p, struct mu_now now);
/** Takes the result of a fetch: a dictionary (codec/dht/dict.h) of records without their
 * signatures, or nothing; status below zero: it could not be read, and what is known stays. */
void mu_progress_fetched(struct mu_progress *p, struct mu_now now, int status,
                         struct mu_span dictionary);

/* --- loading a state -------------------------------------------------------------------------- */

/** Returns whether we are too far behind to continue. The comparison for equality is made once. */
bool mu_progress_needs_state(struct mu_progress *p);

/*
 * What the caller must do before a state is loaded. Each hook returns 0 when it is done,
 * MUSTER_EAGAIN when it is in progress (mu_progress_enter() is called again when it may be done),
 * or an error. NULL: there is nothing to do.
 */
struct mu_progress_hooks {
    /** A round of averaging is scheduled: join it, with weight zero, instead of leaving the others
     * waiting. If it fails, it is given up. */
    int (*join_round_with_zero_weight)(void *context);
    /** Wait for our steps and averages in progress, because they change what is about to be
     * loaded. */
    int (*await_pending_updates)(void *context);
    void *context;
};

/**
 * Runs the hooks, in that order, and then pauses. 0: now load; MUSTER_EAGAIN; or the error of
 * await_pending_updates(), and nothing is paused.
 */
int mu_progress_enter(struct mu_progress *p, const struct mu_progress_hooks *hooks);
/**
 * The load has ended; `epoch`, if `status` is 0, is that of the state. Resumes. A state that is
 * `tolerance` behind counts as that of the swarm's epoch: its step is accepted as missed. Returns
 * the epoch that is ours from now on.
 */
uint64_t mu_progress_leave(struct mu_progress *p, struct mu_now now, int status, uint64_t epoch);

#endif

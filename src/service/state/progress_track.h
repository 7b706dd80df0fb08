/*
 * Keeps a trainer's record in the DHT of a swarm and reads those of the others: drives
 * proto/state/progress.h. On the loop's thread.
 *
 *     mu_progress_track_start(&config, &track, &msg);
 *     mu_progress_track_report(track, epoch, samples);
 *     mu_progress_track_stop(track);       withdraws the record; stopped() follows
 *
 * Records are signed with a key of the trainer's own, as hivemind's are: one for each swarm.
 */
#ifndef MU_PROGRESS_TRACK_H
#define MU_PROGRESS_TRACK_H

#include "proto/state/progress.h"
#include "service/state/swarm.h"

struct mu_progress_track;

struct mu_progress_track_config {
    struct mu_state_swarm *swarm;       /* borrowed until `stopped`, as the next */
    const struct mu_identity *owner;    /* an RSA key */
    const char *run;                    /* records are under "RUN_progress" */
    struct mu_progress_config progress; /* `self` is filled in */
    uint32_t goodbye_ms;                /* for the last write. 3 s */
    /** The last callback; the track is freed after it. */
    void (*stopped)(void *context);
    void *context;
};

struct mu_progress_track_config mu_progress_track_config_defaults(void);

/** MUSTER_EBUSY: the swarm has a track already; MUSTER_EINVAL, MUSTER_ENOMEM. */
int mu_progress_track_start(const struct mu_progress_track_config *config,
                            struct mu_progress_track **ret, struct mu_errmsg *reterr_msg);
/** What is known of the swarm and of ourselves: the first members of the struct are public. */
const struct mu_progress *mu_progress_track_view(const struct mu_progress_track *t);
/* See proto/state/progress.h for each; pauses are counted. */
void mu_progress_track_report(struct mu_progress_track *t, uint64_t epoch, uint64_t samples);
void mu_progress_track_update_epoch(struct mu_progress_track *t, uint64_t epoch);
void mu_progress_track_pause(struct mu_progress_track *t);
void mu_progress_track_resume(struct mu_progress_track *t);
bool mu_progress_track_ready(struct mu_progress_track *t);
bool mu_progress_track_needs_state(struct mu_progress_track *t);
int mu_progress_track_enter(struct mu_progress_track *t, const struct mu_progress_hooks *hooks);
void mu_progress_track_leave(struct mu_progress_track *t, int status, uint64_t epoch);
/** Replaces the `stopped` callback of the config. */
void mu_progress_track_on_stopped(struct mu_progress_track *t, void (*stopped)(void *context),
                                  void *context);
void mu_progress_track_stop(struct mu_progress_track *t);

struct mu_progress_track_stats {
    uint64_t stored;  /* records that a node took, */
    uint64_t unheard; /* and that no node took */
    uint64_t fetched;
};

void mu_progress_track_stats(const struct mu_progress_track *t,
                             struct mu_progress_track_stats *ret);

#endif

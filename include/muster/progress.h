/*
 * How far a trainer is, how far the swarm is, and what to do when it is ahead.
 *
 * Trainers of one run count samples towards a batch that all of them fill together; when it is full
 * an epoch ends. Each tells in the swarm's DHT how many samples it has (hivemind's trainers do the
 * same, under the same key, and are counted like others), and looks now and then at what the others
 * tell:
 *
 *     struct muster_progress_config config = muster_progress_config_defaults();
 *     config.run = "albert";
 *     config.batch = 4096;
 *     muster_progress_open(state, &config, &progress);       a muster_state that is in a swarm
 *     for (;;) {
 *         if (muster_progress_needs_state(progress)) {
 *             muster_progress_catch_up(progress, &hooks, &request, &copy);
 *             set_learning_rate_from(muster_state_copy_metadata(copy));
 *             continue;                                       gradients of before are of no use
 *         }
 *         samples += take_gradients();
 *         muster_progress_report(progress, epoch, samples);
 *         if (muster_progress_ready(progress)) {
 *             step();
 *             muster_progress_enter_epoch(progress, ++epoch);
 *             share the new state, with the epoch as its priority
 *             samples = 0;
 *         }
 *     }
 *
 * What a trainer has to go on with beside its tensors, such as the position of its learning-rate
 * schedule, travels in the metadata of its state: docs/state.md, "Around a download".
 *
 * A record of somebody's who claims a far epoch is believed only when others confirm it, and not
 * again for a minute if no donor could make it good.
 *
 * All functions may be called from any thread.
 */
#ifndef MUSTER_PROGRESS_H
#define MUSTER_PROGRESS_H

#include <muster/state.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct muster_progress muster_progress;

/* Text is copied. */
struct muster_progress_config {
    const char *run;    /* its name: records are under "RUN_progress" */
    uint64_t batch;     /* samples of an epoch, of all trainers together; not 0 */
    uint64_t epoch;     /* ours, to begin with. 0 */
    uint64_t tolerance; /* epochs that we may be behind without needing a state. 1 */
    bool client;        /* others do not come to us */
    const char *owner;  /* the file of an RSA key that signs our record. NULL: one for this process,
                           which takes a good part of a second to make */
    uint32_t look_ms;   /* how long not to look at the others at most. 10,000 */
};

MUSTER_EXPORT struct muster_progress_config muster_progress_config_defaults(void);

/** Needs a state that is in a swarm, outlives this, and has but one of these. MUSTER_EINVAL,
 * MUSTER_EBUSY (it has one), MUSTER_ENOMEM, errors of the key's file. */
MUSTER_EXPORT int muster_progress_open(muster_state *state,
                                       const struct muster_progress_config *config,
                                       muster_progress **ret_progress);
/** Says goodbye: we do not count any more. NULL is fine. Not on the runtime's own thread. */
MUSTER_EXPORT void muster_progress_close(muster_progress *progress);

/** So many samples of that epoch by now; fewer than before: they were thrown away. */
MUSTER_EXPORT void muster_progress_report(muster_progress *progress, uint64_t epoch,
                                          uint64_t samples);
/** The trainer has taken its step and begins that epoch, without samples. */
MUSTER_EXPORT void muster_progress_enter_epoch(muster_progress *progress, uint64_t epoch);
/** While paused nothing of what the others say is taken, and the time does not count for our speed.
 * Resumed as often as paused. */
MUSTER_EXPORT void muster_progress_pause(muster_progress *progress);
MUSTER_EXPORT void muster_progress_resume(muster_progress *progress);

/** Whether the epoch may end: it has for others, or the batch is full, or should be by now. */
MUSTER_EXPORT bool muster_progress_ready(muster_progress *progress);
/** Whether we are too far behind to go on: by more than the tolerance, or, once in each epoch when
 * the others were looked at, at all. True is to be followed by muster_progress_catch_up(). */
MUSTER_EXPORT bool muster_progress_needs_state(muster_progress *progress);

struct muster_progress_view {
    uint64_t epoch; /* ours */
    uint64_t samples;
    double samples_per_second;
    uint64_t swarm_epoch; /* as of the last look */
    uint64_t swarm_samples;
    double swarm_samples_per_second;
    double eta_seconds; /* until the epoch ends; infinite: not known */
    uint64_t peers;     /* that tell of themselves, we included */
    uint64_t clients;   /* of these */
    uint64_t suspects;  /* whose claims are not believed */
    uint64_t looks;     /* at the others, so far */
};

/** How far we are, and the others as of the last look. */
MUSTER_EXPORT void muster_progress_get(muster_progress *progress, struct muster_progress_view *ret);

/*
 * What has to be done before a state is loaded, by those who know how, on the caller's thread and
 * in this order. NULL: there is nothing to do.
 */
struct muster_progress_hooks {
    /** A round of averaging is scheduled: join it, with weight zero, instead of leaving the others
     * waiting. Returns when it is over; if it fails, let go of it: an error is only logged. */
    int (*join_round_with_zero_weight)(void *context);
    /** Steps and averages that are under way would change what is about to be loaded: returns when
     * they are done. An error ends muster_progress_catch_up() with it. */
    int (*await_pending_updates)(void *context);
    void *context;
};

/**
 * Runs the hooks (may be NULL), pauses, loads the state of the request, and resumes at its epoch. A
 * state that is behind by no more than the tolerance is taken as the swarm's: the step is missed.
 * Without `through` in the request it is loaded through our own state. Errors as
 * muster_state_load(); then our epoch is what it was, and claims that nobody made good are doubted
 * for a minute. The new epoch is in muster_progress_get().
 */
MUSTER_EXPORT int muster_progress_catch_up(muster_progress *progress,
                                           const struct muster_progress_hooks *hooks,
                                           const struct muster_state_request *request,
                                           muster_state_copy **ret_copy);

#ifdef __cplusplus
}
#endif

#endif

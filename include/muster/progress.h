/*
 * Progress: how far a trainer is, how far the swarm is, and what to do when the swarm is ahead.
 *
 * Trainers of one run count samples towards a batch that all of them fill together; when it is full
 * an epoch ends. Each trainer publishes in the swarm's DHT how many samples it has (hivemind's
 * trainers do the same, under the same key, and are counted like the others), and reads from time
 * to time what the others published:
 *
 *     struct muster_progress_config config = muster_progress_config_defaults();
 *     config.run = "albert";
 *     config.batch = 4096;
 *     muster_progress_open(state, &config, &progress);       a muster_state that is in a swarm
 *     for (;;) {
 *         if (muster_progress_needs_state(progress)) {
 *             muster_progress_catch_up(progress, &hooks, &request, &copy);
 *             set_learning_rate_from(muster_state_copy_metadata(copy));
 *             continue;                                       earlier gradients are of no use
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
 * What a trainer needs beside its tensors to go on, such as the position in its learning-rate
 * schedule, travels in the metadata of its state: docs/state.md, "Around a download".
 *
 * A record that claims a far epoch is believed only when other trainers confirm it. If no donor has
 * a state of that epoch, the claim is ignored for a minute.
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
    size_t size;        /* set by the defaults */
    const char *run;    /* the run's name: records are under "RUN_progress" */
    uint64_t batch;     /* samples in an epoch, from all trainers together; not 0 */
    uint64_t epoch;     /* our first epoch. 0 */
    uint64_t tolerance; /* how many epochs we may be behind without needing a state. 1 */
    bool client;        /* others cannot connect to us */
    const char *owner;  /* the file of an RSA key that signs our record. NULL: a key for this
                           process only, which takes a good part of a second to make */
    uint32_t look_ms;   /* the longest time between two looks at the others. 10,000 */
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_progress_config_init(struct muster_progress_config *ret, size_t size);
/** The struct with the defaults. */
static inline struct muster_progress_config muster_progress_config_defaults(void)
{
    struct muster_progress_config it;

    muster_progress_config_init(&it, sizeof(it));
    return it;
}

/** Needs a state that is in a swarm, outlives the progress, and has no other one. MUSTER_EINVAL,
 * MUSTER_EBUSY (the state has one already), MUSTER_ENOMEM, errors of the key's file. */
MUSTER_EXPORT int muster_progress_open(muster_state *state,
                                       const struct muster_progress_config *config,
                                       muster_progress **ret_progress);
/** Withdraws our record, so that the others no longer count us. NULL is fine. Not on the runtime's
 * own thread. */
MUSTER_EXPORT void muster_progress_close(muster_progress *progress);

/** Reports how many samples of `epoch` we have by now. Fewer than before: some were thrown away. */
MUSTER_EXPORT void muster_progress_report(muster_progress *progress, uint64_t epoch,
                                          uint64_t samples);
/** Says that the trainer has taken its step and begins `epoch` with no samples. */
MUSTER_EXPORT void muster_progress_enter_epoch(muster_progress *progress, uint64_t epoch);
/** While paused, we ignore what the others publish, and the time does not count towards our speed.
 * Resume as often as you paused. */
MUSTER_EXPORT void muster_progress_pause(muster_progress *progress);
MUSTER_EXPORT void muster_progress_resume(muster_progress *progress);

/** Whether the epoch may end: it ended for others, or the batch is full, or should be by now. */
MUSTER_EXPORT bool muster_progress_ready(muster_progress *progress);
/** Whether we are too far behind to go on: by more than the tolerance, or, once in each epoch after
 * a look at the others, by any number of epochs. When true, call muster_progress_catch_up(). */
MUSTER_EXPORT bool muster_progress_needs_state(muster_progress *progress);

struct muster_progress_view {
    uint64_t epoch; /* ours */
    uint64_t samples;
    double samples_per_second;
    uint64_t swarm_epoch; /* as of the last look */
    uint64_t swarm_samples;
    double swarm_samples_per_second;
    double eta_seconds; /* until the epoch ends; infinite: not known */
    uint64_t peers;     /* peers that publish a record, including us */
    uint64_t clients;   /* how many of these are clients */
    uint64_t suspects;  /* peers whose claims are not believed */
    uint64_t looks;     /* how often we have looked at the others */
};

/** How far we are, and the others as of the last look. */
MUSTER_EXPORT void muster_progress_get(muster_progress *progress, struct muster_progress_view *ret);

/*
 * What the program must do before a state is loaded. The hooks run on the caller's thread, in this
 * order. NULL: there is nothing to do.
 */
struct muster_progress_hooks {
    size_t size; /* set by the defaults */
    /** A round of averaging is scheduled: join it, with weight zero, instead of leaving the others
     * waiting. Returns when the round is over, or has failed and was abandoned; an error is only
     * logged. */
    int (*join_round_with_zero_weight)(void *context);
    /** Returns when the steps and averages under way are done: they would change what is about to
     * be loaded. muster_progress_catch_up() ends with the error that this returns. */
    int (*await_pending_updates)(void *context);
    void *context;
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_progress_hooks_init(struct muster_progress_hooks *ret, size_t size);
/** The struct with the defaults. */
static inline struct muster_progress_hooks muster_progress_hooks_defaults(void)
{
    struct muster_progress_hooks it;

    muster_progress_hooks_init(&it, sizeof(it));
    return it;
}

/**
 * Runs the hooks (may be NULL), pauses, loads the state of the request, and resumes at its epoch. A
 * state that is behind by no more than the tolerance counts as the swarm's: we miss that step.
 * Without `through` in the request, our own state serves as `through`. Errors as
 * muster_state_load(); our epoch is then unchanged, and claims of epochs that no donor had are
 * doubted for a minute. muster_progress_get() tells the new epoch.
 */
MUSTER_EXPORT int muster_progress_catch_up(muster_progress *progress,
                                           const struct muster_progress_hooks *hooks,
                                           const struct muster_state_request *request,
                                           muster_state_copy **ret_copy);

#ifdef __cplusplus
}
#endif

#endif

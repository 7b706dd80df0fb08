/*
 * What the files of the machine share: etcd.c (lanes, steps, time), etcd_join.c (into a round),
 * etcd_round.c (waiting for a round to end, being in one, keep-alives, closing).
 */
#ifndef MU_RDZV_ETCD_INTERNAL_H
#define MU_RDZV_ETCD_INTERNAL_H

#include "proto/rdzv/etcd.h"

#define MU_RETCD_REST_MS   1000u /* PyTorch's pause before it begins again */
#define MU_RETCD_JITTER_MS 100u  /* and its longest pause before a compare-and-swap */

/* A phase: `begin` sends a request or arms the lane's timer, `take` handles the answer. */
struct mu_retcd_act {
    const char *name;
    void (*begin)(struct mu_retcd *m);
    void (*take)(struct mu_retcd *m, const struct mu_retcd_event *event);
};

/* The phases of each file; the others are empty. */
extern const struct mu_retcd_act mu_retcd_join_acts[MU_RETCD_PHASES];
extern const struct mu_retcd_act mu_retcd_round_acts[MU_RETCD_PHASES];

/* etcd.c */
void mu_retcd_enter(struct mu_retcd *m, enum mu_retcd_phase phase);
/** Begins an attempt: PyTorch's RetryImmediately. */
void mu_retcd_again(struct mu_retcd *m);
/** The same after a second: RetryableFailure, and everything unforeseen. */
void mu_retcd_rest(struct mu_retcd *m, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** The same after a short random pause: PyTorch would rest here, but something has just happened
 * that is worth a try, and all waiting nodes have seen it. */
void mu_retcd_soon(struct mu_retcd *m, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void mu_retcd_fail(struct mu_retcd *m, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void mu_retcd_note(struct mu_retcd *m, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
void mu_retcd_pause(struct mu_retcd *m, enum mu_retcd_lane_id lane, uint64_t ms);
void mu_retcd_jitter(struct mu_retcd *m, enum mu_retcd_lane_id lane);

/** Sets the path, below the run's directory, of a lane's next request. */
int mu_retcd_key(struct mu_retcd *m, enum mu_retcd_lane_id lane, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** Sends a request with the key and, where the verb has them, value and prev of the lane. If `err`,
 * the result of making them, is not 0, the lane rests. */
void mu_retcd_ask(struct mu_retcd *m, enum mu_retcd_lane_id lane, int err,
                  struct mu_retcd_request request);
/** Forgets the request that is in progress. */
void mu_retcd_drop(struct mu_retcd *m, enum mu_retcd_lane_id lane);
/** Sends GET of active_version. */
void mu_retcd_ask_state(struct mu_retcd *m, enum mu_retcd_lane_id lane);
/** Sends WATCH of it after `index`, or of the whole rendezvous. */
void mu_retcd_ask_watch(struct mu_retcd *m, bool recursive, uint64_t timeout_ms);
/** Sends SWAP of it against m->text, on MAIN. `edit` NULL: the same text. */
void mu_retcd_ask_swap(struct mu_retcd *m, const struct mu_retcd_edit *edit, int64_t ttl_s);

/** Returns the code of a refusal; 0: it was done; -1: there was no answer. m->why has the text. */
int64_t mu_retcd_code(struct mu_retcd *m, const struct mu_retcd_event *event);
/** Reads the state in an answer. Returns 0; 1: there is no state; negative: it cannot be read. */
int mu_retcd_take_state(struct mu_retcd *m, const struct mu_retcd_event *event);
bool mu_retcd_is(const struct mu_retcd *m, enum mu_retcd_status status);

/* etcd_round.c */
void mu_retcd_lease_start(struct mu_retcd *m);
void mu_retcd_lease_stop(struct mu_retcd *m);
void mu_retcd_lease_begin(struct mu_retcd *m);
void mu_retcd_lease_take(struct mu_retcd *m, const struct mu_retcd_event *event);
void mu_retcd_run_start(struct mu_retcd *m);
void mu_retcd_run_begin(struct mu_retcd *m);
void mu_retcd_run_take(struct mu_retcd *m, const struct mu_retcd_event *event);
void mu_retcd_close_begin(struct mu_retcd *m);
void mu_retcd_close_wake(struct mu_retcd *m);
void mu_retcd_close_take(struct mu_retcd *m, const struct mu_retcd_event *event);
/** The run is closed: ends a join, and tells the user. */
void mu_retcd_learn_closed(struct mu_retcd *m);

#endif

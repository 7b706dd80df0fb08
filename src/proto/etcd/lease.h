/*
 * The holder of a lease of etcd: asks for it, keeps it alive three times within its time, and
 * notices that it is lost. A decision machine: service/etcd/lease.c drives it and makes its calls.
 *
 *     mu_etcd_holder_start(h, id, ttl_s, now)
 *     while ((action = mu_etcd_holder_next(h)) != 0) ...   then, and after every other function:
 *         SEND       post `body` to `path`, for `timeout_ms`. Twice is as once
 *         CANCEL     end that call, mu_etcd_holder_done() follows
 *         GRANTED    tell the owner
 *         END        the last action: tell the owner that it is lost, with `verdict` and its words
 *                    in `errmsg`, or, if `stopping`, that it has stopped
 *     mu_etcd_holder_done(h, &answer, sent, now)   the call has ended
 *     mu_etcd_holder_stop(h, revoke, now)          the owner does not want it any more
 *     mu_etcd_holder_close(h, now)                 the client goes
 *     mu_etcd_holder_tick(h, now)                  it is `wake`
 *
 *     IDLE      --start-->                    GRANTING   SEND
 *     GRANTING  --granted-->                  KEPT       GRANTED
 *     GRANTING  --it is there already-->      KEEPING    SEND; GRANTED follows once it is kept
 *     KEPT      --a third of its time-->      KEEPING    SEND
 *     KEEPING   --kept-->                     KEPT
 *     KEEPING   --no answer-->                KEEPING    SEND, while there is time; without memory
 *                                                        KEPT for a moment
 *     GRANTING, KEEPING --refused-->          ENDING
 *     KEPT      --its time is over, close-->  ENDING
 *     any call  --its time is over, close-->  CANCELING  CANCEL
 *     KEPT      --stop, revoke-->             REVOKING   SEND
 *     GRANTING, KEEPING --stop, revoke-->     LEAVING    CANCEL
 *     LEAVING   --the call has ended-->       REVOKING   SEND; if it was closed, IDLE and END
 *     KEPT      --stop-->                     ENDING
 *     GRANTING, KEEPING --stop-->             CANCELING  CANCEL
 *     REVOKING, CANCELING --the call has ended-->  IDLE  END
 *     ENDING    --tick-->                     IDLE       END
 *
 * We choose the lease's number, so that asking for it twice is as once: the second time etcd says
 * that there is one already. The lease counts as lost when etcd says so, or when its time has
 * passed since the last call that etcd answered went out; so never later than etcd itself, whose
 * count begins when that call arrives.
 */
#ifndef MU_ETCD_HOLDER_H
#define MU_ETCD_HOLDER_H

#include "core/time.h"
#include "proto/etcd/judge.h"

enum mu_etcd_holder_state {
    MU_ETCD_HOLDER_IDLE = 0,
    MU_ETCD_HOLDER_GRANTING,
    MU_ETCD_HOLDER_KEPT,
    MU_ETCD_HOLDER_KEEPING,
    MU_ETCD_HOLDER_LEAVING,
    MU_ETCD_HOLDER_REVOKING,
    MU_ETCD_HOLDER_CANCELING,
    MU_ETCD_HOLDER_ENDING,
};

enum mu_etcd_holder_action {
    MU_ETCD_HOLDER_SEND = 1,
    MU_ETCD_HOLDER_CANCEL,
    MU_ETCD_HOLDER_GRANTED,
    MU_ETCD_HOLDER_END,
};

/* It holds no memory. Drivers read the first members. */
struct mu_etcd_holder {
    enum mu_etcd_holder_state state;
    int64_t id;
    int64_t ttl_s;       /* wanted; then what the server gave */
    const char *path;    /* SEND */
    char body[96];       /* SEND; stays until that call has ended */
    uint32_t timeout_ms; /* SEND; 0: never */
    mu_mono_t wake;      /* when to tick; MU_MONO_NEVER: not */
    bool stopping;       /* END */
    int verdict;
    struct mu_errmsg errmsg;

    enum mu_etcd_holder_action due;
    mu_mono_t kept;   /* when the last call that was answered went out */
    bool was_granted; /* the owner knows */
};

/** The holder must be IDLE. `id` is a random number above 0, `ttl_s` at least 1. */
void mu_etcd_holder_start(struct mu_etcd_holder *h, int64_t id, int64_t ttl_s, mu_mono_t now);
/** `sent`: when the last try of the call went out. */
void mu_etcd_holder_done(struct mu_etcd_holder *h, const struct mu_etcd_answer *a, mu_mono_t sent,
                         mu_mono_t now);
/** `revoke`: also at the server, which is tried for a second. */
void mu_etcd_holder_stop(struct mu_etcd_holder *h, bool revoke, mu_mono_t now);
/** END follows with MUSTER_ECLOSED, unless it ends otherwise first. */
void mu_etcd_holder_close(struct mu_etcd_holder *h, mu_mono_t now);
void mu_etcd_holder_tick(struct mu_etcd_holder *h, mu_mono_t now);
/** What to do now; 0: nothing, until something happens. */
enum mu_etcd_holder_action mu_etcd_holder_next(struct mu_etcd_holder *h);

#endif

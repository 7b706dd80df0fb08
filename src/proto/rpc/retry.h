/*
 * Decides when a call that failed is tried again. A pure machine: it keeps due times, its owner
 * sends.
 *
 *     mu_rpc_retry_begin(&retry, &options)
 *     mu_rpc_retry_sent(&set, &retry, now)        before each send
 *     mu_rpc_retry_failed(&set, &retry, ...)      WAIT: mu_rpc_retry_next() returns it when due
 *
 * The formula is that of PyTorch's RpcAgent. When an attempt is sent, the time of the next one is
 * decided:
 *
 *     at the first send        now + duration
 *     at retry n, from 1 on    now + duration * backoff^(n-1)
 *
 * so that with the defaults, if everything fails at once, six sends have gaps of 1.0, 1.0, 1.5,
 * 2.25 and 3.375 s; a failure that took longer than its gap is followed by the next send at once.
 * Gaps and due times are cut to whole milliseconds. Jitter shortens a gap by a random part of it;
 * it is off by default.
 *
 * A budget limits the retries to one worker, so that a worker in trouble does not get six times as
 * many calls as a healthy one: each call earns a part of a retry, each retry costs a whole one.
 */
#ifndef MU_RPC_RETRY_H
#define MU_RPC_RETRY_H

#include "core/err.h"
#include "core/heap.h"
#include "core/list.h"
#include "core/prng.h"
#include "core/time.h"

struct mu_rpc_retry_options {
    int32_t retries_max; /* 5 */
    int64_t duration_ms; /* 1000 */
    double backoff;      /* 1.5; at least 1 */
    double jitter;       /* 0 to 1: by how much a gap may be shortened. 0 */
};

struct mu_rpc_retry_options mu_rpc_retry_options_defaults(void);
/** MUSTER_EINVAL: a number is negative or out of range; the text says which. */
int mu_rpc_retry_check(const struct mu_rpc_retry_options *o, struct mu_errmsg *reterr_msg);

/* Counted in thousandths of a retry. */
struct mu_rpc_budget {
    uint32_t earn; /* earned by each call; 0: no limit */
    uint32_t most;
    uint32_t have;
};

/** The budget begins full. `percent` 0: no limit. */
void mu_rpc_budget_init(struct mu_rpc_budget *b, uint32_t percent, uint32_t burst);
/** A call was begun: earns its part. */
void mu_rpc_budget_earn(struct mu_rpc_budget *b);

struct mu_rpc_retry {
    struct mu_rpc_retry_options options;
    struct mu_heap_node due;
    uint32_t count;  /* retries that were sent */
    bool sent;       /* it was sent at least once */
    mu_mono_t again; /* when the next attempt would follow */
};

/* All retries that wait. */
struct mu_rpc_retry_set {
    struct mu_heap due;
    struct mu_prng prng;
    size_t waiting;
    bool stopped;
};

enum mu_rpc_retry_verdict {
    MU_RPC_RETRY_WAIT = 1,  /* it is in the set */
    MU_RPC_RETRY_FINAL,     /* an error that another try does not help */
    MU_RPC_RETRY_EXHAUSTED, /* it had all its tries */
    MU_RPC_RETRY_BUDGET,    /* too many retries to that worker */
    MU_RPC_RETRY_STOPPED,   /* the agent is not running any more */
};

void mu_rpc_retry_set_init(struct mu_rpc_retry_set *s, uint64_t seed);
void mu_rpc_retry_begin(struct mu_rpc_retry *r, const struct mu_rpc_retry_options *options);
/** An attempt is about to be sent. */
void mu_rpc_retry_sent(struct mu_rpc_retry_set *s, struct mu_rpc_retry *r, mu_mono_t now);
/** An attempt has failed. `budget` may be NULL. */
enum mu_rpc_retry_verdict mu_rpc_retry_failed(struct mu_rpc_retry_set *s, struct mu_rpc_retry *r,
                                              struct mu_rpc_budget *budget, bool retryable);
/** Removes a retry that is canceled or out of time. Harmless if it does not wait. */
void mu_rpc_retry_drop(struct mu_rpc_retry_set *s, struct mu_rpc_retry *r);
/** Takes a retry that must be sent now, earliest first; NULL: nothing is due. */
struct mu_rpc_retry *mu_rpc_retry_next(struct mu_rpc_retry_set *s, mu_mono_t now);
mu_mono_t mu_rpc_retry_deadline(const struct mu_rpc_retry_set *s);
/** From now on nothing waits. mu_rpc_retry_flush() returns the retries that did; NULL: there are no
 * more. */
void mu_rpc_retry_stop(struct mu_rpc_retry_set *s);
struct mu_rpc_retry *mu_rpc_retry_flush(struct mu_rpc_retry_set *s);

#endif

/*
 * A member of hivemind's groups, on the loop's thread: it finds peers that average the same tensors
 * (proto/average/matchmaker.h) and averages with them (proto/average/reduce.h), in place. It is a
 * service, which runs on libuv and in the simulator. docs/averaging.md has the picture.
 *
 *     mu_averager_start(&config, &averager, &msg);      serves rpc_join_group, rpc_aggregate_part
 *     mu_averager_step(averager, &step);                step.done() follows, once
 *     mu_averager_cancel(averager);                     it ends with MUSTER_ECANCELED
 *     mu_averager_stop(averager);                       stopped() follows; then it is gone
 *
 * It stands on the calls of a peer host and on a node of the DHT, which may serve others as well:
 * mu_state_swarm has both, so one peer shares its state and averages, as hivemind's trainers do.
 *
 * Values. The tensors' bytes belong to the averager from mu_averager_step() until `done`. They are
 * read when the group is known, and each part is written when its average has come; a part without
 * one keeps what it was. Sums are computed on the loop's thread.
 *
 * Others. What a member does wrong costs it its own place in the round, never the round. Calls that
 * come before our own group is known wait for it. Answers that others have not read when our round
 * ends are still sent to them, also during mu_averager_stop(), for up to `linger_ms`.
 */
#ifndef MU_AVERAGER_H
#define MU_AVERAGER_H

#include "codec/average/divide.h"
#include "codec/average/native_msg.h"
#include "codec/average/quant.h"
#include "codec/bin/tensor.h"
#include "proto/average/matchmaker.h"
#include "proto/average/reduce.h"
#include "service/dht/dht.h"
#include "service/peer/call.h"

#define MU_AVERAGER_WHY 320 /* of a text that says why; it may name a relay's address */

/* Of the prefix, for the buckets of those that speak the native wire. */
#define MU_AVERAGER_NATIVE_SUFFIX "_native"

struct mu_averager;

struct mu_averager_config {
    struct mu_peer_host *host; /* borrowed until `stopped`, like all pointers here */
    struct mu_peer_calls *calls;
    struct mu_dht_service *dht;
    const char *prefix;             /* without a dot */
    const char *averager;           /* the class of all members in Python */
    const struct mu_layout *layout; /* floats; at least one tensor */
    uint8_t *const *data;           /* of each tensor */
    const enum mu_dtype *told;      /* as in struct mu_avg_tensor, of each tensor. NULL: its own */
    bool native;         /* on our own wire (proto/average/native.h), where no shard is lost */
    enum mu_quant quant; /* on that wire; 0: float32 */
    enum mu_hm_compression compression; /* on hivemind's */
    uint64_t part_bytes;                /* the same at all members. MU_AVG_PART_BYTES */
    uint32_t power_rank; /* on hivemind's wire: of PowerSGD; 0: the tensors are averaged whole */
    double power_ratio;  /* how much of a tensor it has to save at least. 0.5 */
    enum mu_avg_mode mode;
    const char *bits;        /* of the first bucket; "" for one bucket. */
    uint32_t target_size;    /* a group of that size begins at once. 0: none */
    uint32_t size_min;       /* 2 */
    uint32_t matchmaking_ms; /* how far ahead a group is planned. 5 s */
    uint32_t request_ms;     /* for an answer to a request to join. 3 s */
    uint32_t sender_ms;      /* as in struct mu_reduce_config */
    uint32_t reducer_ms;
    uint32_t reduce_ms;        /* for the whole all-reduce. 60 s */
    uint32_t linger_ms;        /* for others to read our last answers. 5 s */
    uint32_t streams_max;      /* of other peers at a time. 1,024 */
    uint32_t streams_peer_max; /* of one peer. 8 */
    /** The last callback. */
    void (*stopped)(void *context);
    void *context;
};

/* What became of a member of the group, ourselves included. */
struct mu_averager_member {
    struct mu_peer_id peer;
    enum mu_avg_mode mode;
    bool counted; /* on the native wire: its values are in the average */
    bool weighed; /* its weight is known: we own parts, and it has sent some */
    double weight;
    uint32_t sent;       /* of our parts: it has sent so many, */
    uint32_t owed;       /* of so many */
    uint32_t results;    /* of its own parts: it has sent so many results, */
    uint32_t owns;       /* of so many */
    const char *why;     /* it failed; NULL: it did not. Lent */
    struct mu_span user; /* what it told all others: one MessagePack value. Lent */
};

struct mu_averager_result {
    int status;       /* 0, even if members failed; MUSTER_ETIMEDOUT, MUSTER_ECANCELED, others */
    const char *text; /* one sentence for the status; lent */
    const char *key;  /* of the bucket; lent */
    uint8_t group_id[MU_AVG_GROUP_ID_LEN];
    size_t member_count;                      /* 0: there was no group */
    const struct mu_averager_member *members; /* in the order of the group; lent */
    uint32_t position;
    bool leading;
    uint32_t parts;                      /* of the vector */
    uint32_t parts_local;                /* of them, so many have kept our own values */
    uint64_t bytes_sent, bytes_received; /* of parts and results */
    uint64_t matchmaking_ms, reduce_ms;
    bool has_digest;                      /* on the native wire, after success */
    uint8_t digest[MU_NATIVE_DIGEST_LEN]; /* SHA-256 of the averaged vector, as float32 */
};

struct mu_averager_step {
    double weight;
    uint64_t timeout_ms; /* for all of it; 0: none. At least half of it is for the search, and the
                            rest, up to reduce_ms, for the all-reduce */
    struct mu_span user; /* told to all members: one MessagePack value; empty: nil. Lent */
    /** The end, once, on a later turn. The result is lent. May begin the next step, or stop. */
    void (*done)(struct mu_averager_step *step, const struct mu_averager_result *result);
};

enum mu_averager_phase {
    MU_AVERAGER_IDLE = 0,
    MU_AVERAGER_SEARCHING,
    MU_AVERAGER_FOLLOWING,
    MU_AVERAGER_REDUCING,
};

/* How far a step is. */
struct mu_averager_look {
    enum mu_averager_phase phase;
    const char *key;                   /* of the bucket */
    uint32_t candidates;               /* others that were in the bucket when it was last read */
    uint32_t followers;                /* others that wait for us to begin */
    struct mu_peer_id leader;          /* FOLLOWING: whom we wait for */
    struct mu_peer_id refused;         /* who refused us last; its length 0: nobody */
    enum mu_avg_code refusal;          /* and what it said; MU_AVG_NO_CODE: it was not reached */
    char refused_why[MU_AVERAGER_WHY]; /* NO_CODE: why not */
    uint32_t parts, parts_done;        /* REDUCING: of the vector; with a result */
};

struct mu_averager_config mu_averager_config_defaults(void);

/** MUSTER_EINVAL (a prefix, bits, sizes or times that cannot be), MUSTER_ENOTSUP (a tensor that
 * cannot be averaged, or not with that encoding), MUSTER_EEXIST (there is such an averager on this
 * host already), MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_averager_start(const struct mu_averager_config *config, struct mu_averager **ret,
                      struct mu_errmsg *reterr_msg);
/** Ends a step with MUSTER_ECANCELED. */
void mu_averager_stop(struct mu_averager *a);
/** MUSTER_EBUSY: there is a step already; MUSTER_EINVAL (the weight); MUSTER_ENOMEM. `done` will
 * not come. */
int mu_averager_step(struct mu_averager *a, struct mu_averager_step *step,
                     struct mu_errmsg *reterr_msg);
/** Ends the step, if there is one. */
void mu_averager_cancel(struct mu_averager *a);
void mu_averager_look(const struct mu_averager *a, struct mu_averager_look *ret);
/** Who we are. */
const struct mu_peer_id *mu_averager_self(const struct mu_averager *a);
/** Whether all values can be added with their weight (mu_avg_can_add()): others ban members that
 * send others. From any thread between steps; `*ret_tensor` is the first with one that cannot. */
bool mu_averager_can_add(const struct mu_layout *layout, uint8_t *const *data, double weight,
                         size_t *ret_tensor);
/** A sentence about a code that a leader answers. */
const char *mu_averager_refusal(enum mu_avg_code code);

#endif

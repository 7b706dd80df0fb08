/*
 * Averaging: peers that train apart average their tensors now and then. A member of the groups of
 * hivemind's averagers, on their wire: other members may be this library's or hivemind's own. Or,
 * with `wire` "native", of groups of this library alone, on a wire that loses nothing when a member
 * dies.
 *
 *     const char *swarm[] = {"/ip4/10.0.0.1/tcp/31337/p2p/12D3KooW..."};
 *     const char *swarm_peers[] = {"12D3KooW..."};
 *     struct muster_average_config config = muster_average_config_defaults();
 *     config.prefix = "run7_params";           the same at all members
 *     config.tensors = tensors;                averaged in place
 *     config.tensor_count = n;
 *     config.listen = "/ip4/0.0.0.0/tcp/0";
 *     config.allow = swarm_peers;              who may connect; or the runtime is insecure
 *     config.allow_count = 1;
 *     config.dht = swarm;
 *     config.dht_count = 1;
 *     muster_average_open(rt, &config, &average);
 *
 *     after some training, again and again
 *     if (muster_average_step(average, (double)samples, 60000, &result) != 0)
 *         complain(muster_errmsg());           nobody came, or the group took too long
 *     muster_average_result_free(result);
 *
 * What a step does. It finds other peers that look for a group under the prefix at the same time
 * and have tensors of the same shapes and types: whoever wants to begin first leads, and the others
 * join it, until the group has `target_size` members or the time has come. Then each member
 * averages its share of the vector for all, and everybody gets the whole average, weighted by what
 * each said.
 *
 * What holds afterwards. With 0, every part of the vector holds the average of those members that
 * delivered it, or, if the member that owned the part was lost, our own values as before: how many
 * parts these are is `parts_local`. With an error, parts that had come are averaged and others are
 * not; if there was no group, nothing was touched. With an encoding other than "NONE", averages of
 * members differ by what the encoding loses. docs/averaging.md says more.
 *
 * On the native wire, with 0 every part is the average of exactly those members that were counted
 * (muster_average_result_counted()), and all members that end with 0 hold the same bits
 * (muster_average_result_digest()). With an error nothing was touched. MUSTER_ECONN means that too
 * many members were lost to know whether the others have gone on: load a state from one of them.
 *
 * The tensors' memory belongs to the library during a step: do not write to it, and do not use what
 * is read there.
 *
 * All functions may be called from any thread. Functions that wait return MUSTER_EINVAL on the
 * runtime's own thread.
 */
#ifndef MUSTER_AVERAGE_H
#define MUSTER_AVERAGE_H

#include <muster/queue.h>
#include <muster/state.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct muster_average muster_average;

/* What a member does. */
enum muster_average_mode {
    MUSTER_AVERAGE_NODE = 0,   /* has values, and averages a share of the vector for all */
    MUSTER_AVERAGE_CLIENT = 1, /* has values; others cannot call it, so it averages nothing */
    MUSTER_AVERAGE_AUX = 2,    /* averages a share for all; its own values count nothing */
};

/* Text, shapes and arrays are copied; the tensors' bytes are not. */
struct muster_average_config {
    size_t size;                         /* set by the defaults */
    const char *prefix;                  /* the name of what is averaged; without a dot */
    const struct muster_tensor *tensors; /* F32, F16, BF16 or F64; at least one; no two share
                                            memory */
    size_t tensor_count;
    const enum muster_dtype *described; /* of each tensor, the type by which hivemind counts the
                                           values of a part: with a "TrainingStateAverager" that of
                                           the model's parameter. NULL: the tensor's own */
    const char *averager; /* the class of all members in Python: "DecentralizedAverager",
                              "GradientAverager", "PowerSGDGradientAverager" (with `power_rank`),
                              "TrainingStateAverager" or one of yours. NULL:
                              "DecentralizedAverager". Not on the native wire */
    const char *encoding; /* of parts on their way, the same at all members: "NONE", "FLOAT16",
                              "MEANSTD_16BIT", "QUANTILE_8BIT", "UNIFORM_8BIT", "BLOCKWISE_8BIT";
                              on the native wire "NONE" (float32), "INT8" or "FP8". NULL: "NONE" */
    uint64_t part_bytes;  /* of a part, the same at all members. 524,288, hivemind's */
    enum muster_average_mode mode;
    uint32_t target_size;    /* a group of that size begins at once. 0: when its time has come */
    uint32_t size_min;       /* with fewer members there is no group. 2 */
    const char *group_bits;  /* of our first bucket, such as "01": peers meet in buckets, and go to
                               others after each step, which mixes them. NULL: one for all */
    uint32_t matchmaking_ms; /* how long a group waits for others. 5,000 */
    uint32_t request_ms;     /* for a leader to answer; less than matchmaking_ms. 3,000 */
    uint32_t sender_ms;      /* for the next part of a member; then it is left out. On the native
                                wire, for any sign of life of it. 15,000 */
    uint32_t reducer_ms;     /* for the next average of a member; then its share stays ours. Not on
                                the native wire. 30,000 */
    uint32_t reduce_ms;      /* for all of it, once there is a group; on the native wire, half of it
                                is for all to deliver their values. 60,000 */
    /* As whom, and through whom, as in muster_state_config. */
    muster_state *through; /* as the peer of this state, which must have a `dht` and outlive this:
                              one peer shares its state and averages. Then the rest is not looked
                              at. Or NULL */
    const char *key;       /* "": a key for this process only, the default */
    const char *listen;    /* a multiaddr. NULL: nowhere, for a client. Default:
                              "/ip4/127.0.0.1/tcp/0" */
    const char *advertise;
    const char *const *allow;
    size_t allow_count;
    const char *const *dht; /* multiaddrs of nodes of the swarm's DHT */
    size_t dht_count;       /* 0: this is the first node of a new DHT */
    const char *wire; /* "hivemind", or "native": a wire of muster's own, which loses nothing when a
                         member dies. The same at all members: those of different wires never meet.
                         NULL: "hivemind" */
    uint32_t power_rank; /* on hivemind's wire: PowerSGD of that rank, 1 to 64. Tensors with more
                            than one axis are averaged as two thin matrices, and what these do not
                            carry is kept for the next step. Then `averager` is by default
                            "PowerSGDGradientAverager". 0: tensors are averaged whole */
    double power_ratio;  /* with power_rank: a tensor of which less than this share would be saved
                            is averaged whole. 0.5 */
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_average_config_init(struct muster_average_config *ret, size_t size);
/** The struct with the defaults. */
static inline struct muster_average_config muster_average_config_defaults(void)
{
    struct muster_average_config it;

    muster_average_config_init(&it, sizeof(it));
    return it;
}

/**
 * Listens, and joins the DHT; nothing is averaged yet. MUSTER_EINVAL (a prefix with a dot, sizes or
 * times that cannot be, a key, an id), MUSTER_ENOTSUP (a tensor cannot be averaged, or not with
 * that encoding), MUSTER_EEXIST (`through` averages under this prefix already), MUSTER_ELOCKED,
 * MUSTER_EADDR, MUSTER_EURL, MUSTER_EDHT_NOBODY and others as muster_state_open(), MUSTER_ENOMEM.
 */
MUSTER_EXPORT int muster_average_open(muster_runtime *runtime,
                                      const struct muster_average_config *config,
                                      muster_average **ret_average);
/** Ends a step that is under way (MUSTER_ECANCELED). Waits a few seconds at most for others to read
 * the averages that they still need from here. NULL is fine. */
MUSTER_EXPORT void muster_average_close(muster_average *average);
/** The multiaddr that others dial, with our peer id; "" if it does not listen. */
MUSTER_EXPORT const char *muster_average_address(const muster_average *average);
/** Our peer id. */
MUSTER_EXPORT const char *muster_average_peer(const muster_average *average);

/* --- a step ----------------------------------------------------------------------------------- */

/* A member of the group, and what came of it. */
struct muster_average_member {
    char peer[64]; /* its id */
    enum muster_average_mode mode;
    double weight;    /* as it told us with its parts; below zero: it told us nothing, because we
                         average no share, or because it sent nothing */
    uint32_t sent;    /* parts of our share that it has sent, */
    uint32_t owed;    /* of so many */
    uint32_t results; /* averages of its own share that it has sent us, */
    uint32_t owns;    /* of so many */
    char why[224];    /* why it failed; "": it did not */
    struct muster_bytes gather; /* what it told all others: one msgpack value */
    uint64_t reserved[4];
};

struct muster_average_result {
    char key[256];     /* of the bucket in which the group was sought */
    char group_id[48]; /* in hex; "": there was no group */
    size_t member_count;
    const struct muster_average_member *members; /* in the order of the group; we are among them */
    uint32_t position;                           /* ours */
    bool led;                                    /* we led it */
    uint32_t parts;                              /* of the vector */
    uint32_t parts_local;                        /* of them, so many keep our own values */
    uint64_t bytes_sent;
    uint64_t bytes_received;
    uint64_t matchmaking_ms; /* until there was a group, or none */
    uint64_t reduce_ms;
};

/** NULL is fine. */
MUSTER_EXPORT void muster_average_result_free(struct muster_average_result *result);
/** Returns whether the values of member number `i` are in the average. On hivemind's wire, where
 * each part may be the average of others, false. */
MUSTER_EXPORT bool muster_average_result_counted(const struct muster_average_result *result,
                                                 size_t i);
/** Returns the SHA-256 of the averaged vector as float32, in hex: after success on the native wire,
 * the same at all members. Otherwise "". Valid as long as the result. */
MUSTER_EXPORT const char *muster_average_result_digest(const struct muster_average_result *result);

/* Text is copied. */
struct muster_average_request {
    size_t size;   /* set by the defaults */
    double weight; /* of our values, such as the number of samples behind them: 0 to 2^40. 1 */
    int64_t
        timeout_ms; /* for all of it. At least half of it is spent on finding a group. 120,000 */
    struct muster_bytes
        gather; /* told to all members: one msgpack value, up to 64 KiB. Empty: nil */
    muster_queue
        *queue; /* with muster_average_begin(): the averager is put into this queue when the
                             step has ended (MUSTER_QUEUED_AVERAGED), with `context` */
    void *context;
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_average_request_init(struct muster_average_request *ret, size_t size);
/** The struct with the defaults. */
static inline struct muster_average_request muster_average_request_defaults(void)
{
    struct muster_average_request it;

    muster_average_request_init(&it, sizeof(it));
    return it;
}

/**
 * Averages with whoever comes. `ret_result` may be NULL; otherwise it gets the result, also of a
 * step that failed after it had begun, or NULL. Members that failed are no error: the result names
 * them. MUSTER_ETIMEDOUT: no group in time, or the group took too long; MUSTER_EINVAL: a weight
 * that cannot be, or a tensor with a value that is not finite, which others refuse; MUSTER_EBUSY: a
 * step is under way; MUSTER_ENOTSUP: a member tells its bandwidth, by which shares cannot be
 * computed; MUSTER_ECANCELED, MUSTER_ENOMEM. On the native wire also MUSTER_ECONN: no quorum of the
 * group can be reached; MUSTER_ECORRUPT: members computed different bits; and MUSTER_EINVAL: there
 * is no finite average, or all weights are zero.
 */
MUSTER_EXPORT int muster_average_step(muster_average *average, double weight, int64_t timeout_ms,
                                      struct muster_average_result **ret_result);
/** As muster_average_step(), in two steps: this returns at once. `request` NULL: the defaults. */
MUSTER_EXPORT int muster_average_begin(muster_average *average,
                                       const struct muster_average_request *request);
/** Waits for the step's end, for up to `timeout_ms` (MUSTER_ETIMEDOUT); 0 asks without waiting. It
 * does not return the step's result: muster_average_end() does. MUSTER_ENOENT: there is no step. */
MUSTER_EXPORT int muster_average_wait(muster_average *average, int64_t timeout_ms);
/** Ends the step, with MUSTER_ECANCELED. Harmless when there is none. */
MUSTER_EXPORT void muster_average_cancel(muster_average *average);
/** Waits for the step's end and returns its result, as muster_average_step() does. MUSTER_ENOENT:
 * there is no step. */
MUSTER_EXPORT int muster_average_end(muster_average *average,
                                     struct muster_average_result **ret_result);

enum muster_average_phase {
    MUSTER_AVERAGE_IDLE = 0,
    MUSTER_AVERAGE_SEARCHING, /* for a group */
    MUSTER_AVERAGE_FOLLOWING, /* waits for its leader to begin */
    MUSTER_AVERAGE_REDUCING,
};

/* What a step waits for. */
struct muster_average_look {
    enum muster_average_phase phase;
    char key[256];       /* of the bucket */
    uint32_t others;     /* SEARCHING: that look for a group there too */
    uint32_t followers;  /* SEARCHING: that wait for us to begin */
    char leader[64];     /* FOLLOWING: its id */
    char refused_by[64]; /* the peer that refused us last, or was not reached; "": none did */
    char refusal[128];   /* why */
    uint32_t parts;      /* REDUCING */
    uint32_t parts_done;
    uint64_t reserved[4];
};

/** Says what a step that is under way waits for. */
MUSTER_EXPORT void muster_average_look(muster_average *average,
                                       struct muster_average_look *ret_look);

#ifdef __cplusplus
}
#endif

#endif

/*
 * The public RPC agent from inside: what other threads see, and the door to the agent on the loop.
 *
 *     rpc.c         life, workers, the current agent, metrics
 *     rpc_devices.c devices, and the maps to other workers' devices
 *     rpc_call.c    how calls begin
 *     rpc_future.c  and end, as futures (rpc_future.h)
 *     rpc_serve.c   handlers, the threads they may block on (rpc_serve.h)
 *     rpc_in.c      a call that came in, as its handler sees it
 *     rpc_stream.c  streams, both ends
 *     rpc_pool.c    memory for long messages
 *     rpc_member.c  what a worker says of itself in a group
 *     rpc_group.c   names and addresses of all, through a store
 *     rpc_leave.c   leaving the group, when nothing is under way any more
 *     rpc_collect.c objects of the whole group
 *     rpc_follow.c  the group of a rendezvous, round after round
 *     rref.c        remote references
 */
#ifndef MU_API_RPC_H
#define MU_API_RPC_H

#include <stdatomic.h>

#include <muster/rpc.h>

#include "api/api.h"
#include "service/rpc/agent.h"
#include "service/rpc/gather.h"
#include "service/rpc/members.h"
#include "service/rpc/rref_agent.h"

struct mu_rpc_device_map {
    struct mu_list link; /* agent->maps */
    size_t count;
    char worker[MU_RPC_WORKER_MAX + 1];
    struct muster_rpc_device_pair pairs[];
};

/* The group that an agent is in. */
struct mu_rpc_group {
    char *name;  /* NULL: in no group */
    char *place; /* the URL of its store if it is a round's group; else "" */
    uint32_t size;
    uint32_t rank;        /* the agent's */
    uint32_t leave_round; /* the round it had reached when leaving failed */
    uint64_t leave_ended;
    bool leave_again;
};

struct muster_rpc_agent {
    muster_runtime *rt;
    struct mu_rpc_agent *agent; /* the loop's */
    char name[MU_RPC_WORKER_MAX + 1];
    _Atomic int32_t id; /* changes when a round is followed */
    bool tcp_only;
    char address[MU_ADDR_HOST_MAX + 16];
    char published[MU_ADDR_HOST_MAX + 16 + 64]; /* the address, and a unix socket for this host */
    _Atomic uint32_t timeout_ms;
    uint32_t threads_max;
    struct mu_list handlers; /* the loop's: struct mu_rpc_method */
    struct mu_rpc_pool *pool;
    struct mu_timer pool_timer; /* the loop's */
    struct mu_rref_agent *rrefs;
    struct mu_rpc_gather *gather;
    struct mu_list rref_handles; /* the loop's: struct muster_rref */

    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool stopped;
    int32_t *devices; /* the devices that were set, ascending */
    size_t device_count;
    struct mu_list maps; /* struct mu_rpc_device_map */
    struct mu_buf named; /* u32 each: our devices that the maps of others name */
    /* The threads for handlers that block. */
    pthread_cond_t work;
    struct mu_list queue; /* struct mu_rpc_job */
    pthread_t *threads;
    uint32_t thread_count;
    uint32_t idle_count;
    size_t queued;
    bool closing;
    uint64_t queue_us[MU_RPC_BUCKETS]; /* how long calls waited for a thread */
    atomic_bool profiling;
    struct mu_list tags; /* tags of gathers and broadcasts that are under way here */
    struct mu_rpc_group group;
    bool leaving; /* the agent is leaving: the group must not change */
};

/* A function that runs on the loop's thread while the caller waits, or at once if it is on it. */
struct mu_rpc_door {
    struct mu_door door;
    muster_rpc_agent *agent;
};

void mu_rpc_pass(muster_rpc_agent *a, struct mu_rpc_door *d, void (*run)(struct mu_door *door));

/* --- rpc_pool.c ------------------------------------------------------------------------------- */

/* Memory of long messages, for reuse. Safe on any thread. */
struct mu_rpc_pool;
/** NULL: there is no memory. */
struct mu_rpc_pool *mu_rpc_pool_new(void);
struct mu_rpc_pool *mu_rpc_pool_ref(struct mu_rpc_pool *p);
void mu_rpc_pool_drop(struct mu_rpc_pool *p);
/** Returns an empty buffer: one that was kept, with room for `len` bytes, or a new one with room
 * for `least`. If memory is short, it has no room yet. The caller sets its maximum. */
struct mu_buf mu_rpc_pool_take(struct mu_rpc_pool *p, size_t len, size_t least);
/** Keeps or frees what is in `buf`, which is empty afterwards. `p` may be NULL. */
void mu_rpc_pool_give(struct mu_rpc_pool *p, struct mu_buf *buf);
/** Frees what was not used since the last look; returns whether another look is worthwhile. */
bool mu_rpc_pool_look(struct mu_rpc_pool *p);

/* --- rpc_serve.c ------------------------------------------------------------------------------ */

/* A job for a thread that may block. */
struct mu_rpc_job {
    struct mu_list link;
    void (*run)(struct mu_rpc_job *job);
};

/** Gives a job to a thread; false: there is no thread, and none can be started. */
bool mu_rpc_enqueue(muster_rpc_agent *a, struct mu_rpc_job *job);
/** A method that is served; embedded, and freed with the agent. */
struct mu_rpc_method {
    struct mu_rpc_handler base;
    struct mu_list link; /* agent->handlers */
    muster_rpc_agent *agent;
};

/** MUSTER_EINVAL, with a text kept for muster_errmsg(): it is not namespace::Service.method. */
int mu_rpc_check_method(const char *method);
/**
 * Makes a method of `size` bytes, all zero except for its name, which is checked and copied. Errors
 * as mu_rpc_check_method(), MUSTER_ENOMEM.
 */
int mu_rpc_method_new(const char *name, size_t size, struct mu_rpc_method **ret);
/** Takes ownership of `m`, the start of an allocation; its method is set. Frees it on an error. */
int mu_rpc_serve_method(muster_rpc_agent *a, struct mu_rpc_method *m);

/** The profiles of the methods, if profiling is on. */
size_t mu_rpc_profiles(muster_rpc_agent *a, struct muster_rpc_profile *ret, size_t cap);
void mu_rpc_profiles_reset(muster_rpc_agent *a);
/** Ends the threads; nothing may be queued any more. */
void mu_rpc_threads_end(muster_rpc_agent *a);
void mu_rpc_handlers_free(muster_rpc_agent *a);

/** Appends a message of these parts. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_rpc_encode_parts(struct mu_buf *out, const struct muster_rpc_part *parts, size_t count);

/* --- rpc_call.c ------------------------------------------------------------------------------- */

/* A caller's request that was checked. Its texts and parts are still the caller's. */
struct mu_rpc_request {
    struct muster_rpc_request q;
    struct mu_rpc_retry_options retry;
    uint32_t timeout_ms; /* as the services have it */
};

/** Takes a request of a call or a remote reference. MUSTER_EINVAL, and its text is kept. */
int mu_rpc_take_request(const muster_rpc_agent *a, const struct muster_rpc_request *request,
                        struct mu_rpc_request *ret);
/** As muster_rpc_call(). On the loop, before the callbacks, the call's end calls `over` (may be
 * NULL), even if the user has freed the future. */
int mu_rpc_call_over(muster_rpc_agent *a, const struct muster_rpc_request *request,
                     void (*over)(void *context), void *context, muster_rpc_future **ret_future);
/** Waits for the future's end. An error frees it, and its text is kept. */
int mu_rpc_future_await(muster_rpc_future *f, muster_rpc_future **ret_future);
/** Makes a future that mu_rref_agent_fetch() begins on the loop. Errors as muster_rpc_call(). */
int mu_rpc_future_for_fetch(muster_rpc_agent *a, const struct muster_rpc_request *request,
                            muster_rpc_future **ret_future, struct mu_rref_fetch **ret_fetch);

/* --- rpc_member.c ----------------------------------------------------------------------------- */

/** Encodes what the agent tells the group about itself. MUSTER_ENOMEM. */
int mu_rpc_member_encode(muster_rpc_agent *a, struct mu_buf *out);
/** Keeps which of our devices the members' maps name. MUSTER_ENOMEM, and its text is kept. */
int mu_rpc_members_name_devices(muster_rpc_agent *a, const struct mu_rpc_member *members,
                                size_t count);

/* --- rpc_group.c ------------------------------------------------------------------------------ */

#define MU_RPC_GROUP_KEY_MAX 320
#define MU_RPC_NO_END        INT64_MAX

/* Keys of a group that differ in the number at their end. */
struct mu_rpc_keys {
    char (*text)[MU_RPC_GROUP_KEY_MAX];
    struct muster_bytes *keys;
    size_t count;
};

/** All of these keep the texts of errors. */
int mu_rpc_keys_make(struct mu_rpc_keys *k, const char *group, const char *what, uint32_t count);
void mu_rpc_keys_free(struct mu_rpc_keys *k);
/** Waits until all keys exist, and reads them. */
int mu_rpc_keys_read(muster_store *store, const struct mu_rpc_keys *k, int64_t until,
                     struct muster_values *ret);
/** The numbers of up to `cap` keys that do not exist; also 0 if the store does not say. */
size_t mu_rpc_keys_missing(muster_store *store, const struct mu_rpc_keys *k, uint32_t *ret_ids,
                           size_t cap);
/** The end of a timeout, on the threads' clock; the store's timeout by default. MUSTER_EINVAL (the
 * number, or the runtime's thread). */
int mu_rpc_until(const muster_rpc_agent *a, const muster_store *store, int64_t timeout_ms,
                 int64_t *ret_until);
/** The time left until then, as a timeout for the store; at least 1 ms. */
int64_t mu_rpc_left(int64_t until);
/* The world of a group. */
struct mu_rpc_world {
    const char *group;
    const char *place; /* the URL of a round's store, or "" */
    uint32_t size;
    uint32_t rank;  /* our rank */
    bool all_there; /* there are no other workers; device maps may name only these */
};

/**
 * Tells a group that our rank is this agent's, and learns the workers of the other ranks; freed
 * with mu_free().
 */
int mu_rpc_exchange(muster_rpc_agent *a, muster_store *store, const struct mu_rpc_world *world,
                    int64_t timeout_ms, struct mu_rpc_member **ret_members);

/* --- rpc_leave.c ------------------------------------------------------------------------------ */

/** Sets the group that muster_rpc_leave_group() leaves. MUSTER_EBUSY (it is leaving one),
 * MUSTER_ENOMEM; the text is kept. */
int mu_rpc_set_group(muster_rpc_agent *a, const struct mu_rpc_world *world);
bool mu_rpc_is_in_group(muster_rpc_agent *a, const struct mu_rpc_world *world);

/* --- rpc_devices.c ---------------------------------------------------------------------------- */

/**
 * The worker's device that one of ours is mapped to, or (`back`) the other way. MUSTER_EINVAL: it
 * is not mapped.
 */
int mu_rpc_map_device(muster_rpc_agent *a, const char *worker, int32_t device, bool back,
                      int32_t *ret_device);
/** The same with a given map, which may be NULL: it maps nothing. */
int mu_rpc_map_with(const struct mu_rpc_device_map *map, int32_t device, bool back,
                    int32_t *ret_device);
/** A copy of the map to a worker, which the caller frees; NULL: there is no map. MUSTER_ENOMEM. */
int mu_rpc_copy_map(muster_rpc_agent *a, const char *worker, struct mu_rpc_device_map **ret_map);
void mu_rpc_devices_free(muster_rpc_agent *a);

/* --- rref.c ----------------------------------------------------------------------------------- */

/** The agent ends: its references are dead. On the loop. */
void mu_rrefs_orphan(muster_rpc_agent *a);

/* --- rpc.c ------------------------------------------------------------------------------------ */

/**
 * Parses "ADDRESS" or "ADDRESS,unix:NAME", of which the second is for workers on the same host;
 * with `tcp_only` it is left out (kind 0). MUSTER_EURL.
 */
int mu_rpc_parse_address(const muster_rpc_agent *a, const char *text, struct mu_addr *ret,
                         struct mu_addr *ret_near, struct mu_errmsg *reterr_msg);

#endif

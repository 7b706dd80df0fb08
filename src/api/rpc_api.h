/*
 * The public RPC agent from inside: what other threads see, and the door to the agent of the loop.
 *
 *     rpc.c         life, workers, the current agent, metrics
 *     rpc_future.c  calls and their futures
 *     rpc_serve.c   handlers, the threads they may block on
 *     rpc_stream.c  streams, both ends
 *     rpc_pool.c    memory for long messages
 *     rpc_group.c   names, addresses and the last call of all, through a store
 */
#ifndef MU_API_RPC_H
#define MU_API_RPC_H

#include <stdatomic.h>

#include <muster/rpc.h>

#include "api/api.h"
#include "service/rpc_agent.h"
#include "transport/tls_env.h"

struct mu_rpc_devices {
    struct mu_list link; /* agent->devices */
    size_t count;
    char worker[MU_RPC_WORKER_MAX + 1];
    struct muster_rpc_device_pair pairs[];
};

struct muster_rpc_agent {
    muster_runtime *rt;
    struct mu_rpc_agent *agent; /* the loop's */
    struct mu_tls_env *tls;     /* NULL: plain */
    char name[MU_RPC_WORKER_MAX + 1];
    int32_t id;
    bool tcp_only;
    char address[MU_ADDR_HOST_MAX + 16];
    char published[MU_ADDR_HOST_MAX + 16 + 64]; /* the same, and a unix socket for this host */
    _Atomic uint32_t timeout_ms;
    uint32_t threads_max;
    struct mu_list handlers; /* the loop's: struct mu_rpc_method */
    struct mu_rpc_pool *pool;
    struct mu_timer pool_timer; /* the loop's */

    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool stopped;
    struct mu_list devices; /* struct mu_rpc_devices */
    /* The threads for handlers that block. */
    pthread_cond_t work;
    struct mu_list queue; /* struct mu_rpc_job */
    pthread_t *threads;
    uint32_t thread_count;
    uint32_t idle_count;
    size_t queued;
    bool closing;
    /* The group. */
    char *group;
    uint32_t world_size;
};

/* A function that runs on the loop's thread while the caller waits, or at once if it is on it. */
struct mu_rpc_door {
    struct mu_door door;
    muster_rpc_agent *agent;
};

void mu_rpc_pass(muster_rpc_agent *a, struct mu_rpc_door *d, void (*run)(struct mu_door *door));

/* --- rpc_pool.c ------------------------------------------------------------------------------- */

/* Memory of long messages that is used again. Any thread. */
struct mu_rpc_pool;
/** NULL: no memory. */
struct mu_rpc_pool *mu_rpc_pool_new(void);
struct mu_rpc_pool *mu_rpc_pool_ref(struct mu_rpc_pool *p);
void mu_rpc_pool_drop(struct mu_rpc_pool *p);
/** An empty buffer: one that was kept, with room for `len` bytes, or a new one for `least`. Without
 * memory: no memory. The caller sets its maximum. */
struct mu_buf mu_rpc_pool_take(struct mu_rpc_pool *p, size_t len, size_t least);
/** Keeps or frees what is in `buf`, which is empty afterwards. `p` may be NULL. */
void mu_rpc_pool_give(struct mu_rpc_pool *p, struct mu_buf *buf);
/** Frees what was not asked for since the last look; whether another look is worth it. */
bool mu_rpc_pool_look(struct mu_rpc_pool *p);

/* --- rpc_serve.c ------------------------------------------------------------------------------ */

/* Something for a thread that may block. */
struct mu_rpc_job {
    struct mu_list link;
    void (*run)(struct mu_rpc_job *job);
};

/** Gives a job to a thread; false: there is none, and none can be had. */
bool mu_rpc_enqueue(muster_rpc_agent *a, struct mu_rpc_job *job);
/** Until when to wait, on the clock of the conditions. */
struct timespec mu_rpc_wait_until(int64_t timeout_ms);
/** A method that is served; embedded, and freed with the agent. */
struct mu_rpc_method {
    struct mu_rpc_handler base;
    struct mu_list link; /* agent->handlers */
    muster_rpc_agent *agent;
};

/** Takes over `m`, which begins its allocation; its method is set. On an error it is freed. */
int mu_rpc_serve_method(muster_rpc_agent *a, struct mu_rpc_method *m);

/** Ends the threads; nothing is queued any more. */
void mu_rpc_threads_end(muster_rpc_agent *a);
void mu_rpc_handlers_free(muster_rpc_agent *a);

/* --- rpc.c ------------------------------------------------------------------------------------ */

/**
 * The device of the worker's that one of ours is mapped to, or (`back`) the other way.
 * MUSTER_EINVAL: none.
 */
int mu_rpc_map_device(muster_rpc_agent *a, const char *worker, int32_t device, bool back,
                      int32_t *ret_device);
/** Calls begun and ended here, of ours and of others. */
void mu_rpc_activity(muster_rpc_agent *a, uint64_t *ret_begun, uint64_t *ret_ended);

#endif

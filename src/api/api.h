/*
 * The public API's own: the runtime's thread, the door into it, and the text of the last error.
 * api/ is where threads meet: everything below it runs on the loop's thread only.
 */
#ifndef MU_API_H
#define MU_API_H

#include <pthread.h>
#include <time.h>

#include <muster/muster.h>

#include "api/lock.h"
#include "core/env.h"
#include "core/err.h"
#include "transport/uv_env.h"

struct muster_runtime {
    struct mu_uv_env *uv;
    struct mu_env *raw;      /* without the lock: for libp2p, HTTP, and TLS of one's own */
    struct mu_locked locked; /* the job's lock around it, */
    struct mu_env *env;      /* and what everything is opened in */
    pthread_t thread;
};

/** Whether the caller is on the runtime's thread, where waiting would wait for ever. */
static inline bool mu_runtime_is_mine(const muster_runtime *rt)
{
    return pthread_equal(pthread_self(), rt->thread) != 0;
}

/** The same for a function that waits and has no way to say so: `what` is logged. */
bool mu_runtime_would_wait(const muster_runtime *rt, const char *what);

/* A function that runs on the loop's thread while the caller waits. */
struct mu_door {
    struct mu_post post;
    void (*run)(struct mu_door *door);
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool open;
};

/** Has `run` called on the loop's thread and waits until mu_door_open() was called for it. */
void mu_door_pass(muster_runtime *rt, struct mu_door *door, void (*run)(struct mu_door *door));
/** The same from any thread: on the loop's own, `run` is called at once, and opens the door. */
void mu_door_pass_anywhere(muster_runtime *rt, struct mu_door *door,
                           void (*run)(struct mu_door *door));
/** Lets the waiting caller go on; `door` is its memory and gone after this. */
void mu_door_open(struct mu_door *door);
/** Until when a thread is to wait, on the clock of its conditions. */
struct timespec mu_wait_until(int64_t timeout_ms);

/** Keeps the text for muster_errmsg() and returns `code`. */
int mu_api_error(int code, const char *text);
/** Keeps a text for muster_errmsg() that goes with a success. */
void mu_api_say(const char *text);

#endif

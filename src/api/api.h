/*
 * What the files of the public API share: the runtime's thread, the door into it, and the text of
 * the last error. Threads meet in api/: everything below it runs on the loop's thread only.
 */
#ifndef MU_API_H
#define MU_API_H

#include <pthread.h>
#include <time.h>

#include <muster/muster.h>

#include "api/args.h"
#include "api/lock.h"
#include "api/runtime_end.h"
#include "core/env.h"
#include "core/err.h"
#include "transport/uv_env.h"

struct muster_runtime {
    struct mu_uv_env *uv;
    struct mu_env *raw;      /* without the lock: for libp2p, HTTP, and other TLS */
    struct mu_locked locked; /* the job's lock around it */
    struct mu_env *env;      /* the locked environment, in which everything is opened */
    pthread_t thread;
    struct mu_runtime_end end; /* at the process's end */
};

/** Whether the caller is on the runtime's thread, where a wait would never end. */
static inline bool mu_runtime_is_mine(const muster_runtime *rt)
{
    return pthread_equal(pthread_self(), rt->thread) != 0;
}

/** The same for a function that waits and cannot return an error: logs `what`. */
bool mu_runtime_would_wait(const muster_runtime *rt, const char *what);

/* A function that runs on the loop's thread while the caller waits. */
struct mu_door {
    struct mu_post post;
    void (*run)(struct mu_door *door);
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool open;
};

/** Calls `run` on the loop's thread and waits for mu_door_open(). */
void mu_door_pass(muster_runtime *rt, struct mu_door *door, void (*run)(struct mu_door *door));
/** The same from any thread: on the loop's own, it calls `run` at once, which opens the door. */
void mu_door_pass_anywhere(muster_runtime *rt, struct mu_door *door,
                           void (*run)(struct mu_door *door));
/** Lets the waiting caller go on; `door` is the caller's memory and gone after this. */
void mu_door_open(struct mu_door *door);
/** The end of a timeout, on the clock of the threads' conditions. */
struct timespec mu_wait_until(int64_t timeout_ms);

/** Keeps the text for muster_errmsg() and returns `code`. */
int mu_api_error(int code, const char *text);
/** Keeps a text for muster_errmsg() that goes with a success. */
void mu_api_say(const char *text);

#endif

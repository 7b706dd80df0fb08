#include "api/runtime_end.h"

#include <stdlib.h>

#include "api/api.h"
#include "service/lock/tls.h"

/* A thread comes to rest within a turn of its loop. One that does not has a callback that waits,
 * perhaps for the thread that called exit(). */
#define PATIENCE_MS 1000

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t rested;
static struct mu_list runtimes = {&runtimes, &runtimes}; /* by `end.link` */

static void rest(struct mu_post *post)
{
    muster_runtime *rt = MU_CONTAINER_OF(post, struct muster_runtime, end.post);

    (void)pthread_mutex_lock(&lock);
    rt->end.rests = true;
    (void)pthread_cond_signal(&rested);
    (void)pthread_mutex_unlock(&lock);
    mu_uv_env_rest(rt->uv);
}

static bool all_rest(void)
{
    MU_LIST_FOREACH (it, &runtimes) {
        if (!MU_CONTAINER_OF(it, struct muster_runtime, end.link)->end.rests) {
            return false;
        }
    }
    return true;
}

static void rest_all(void)
{
    struct timespec until = mu_wait_until(PATIENCE_MS);
    int err = 0;

    (void)pthread_mutex_lock(&lock);
    MU_LIST_FOREACH (it, &runtimes) {
        muster_runtime *rt = MU_CONTAINER_OF(it, struct muster_runtime, end.link);

        if (!mu_runtime_is_mine(rt)) {
            rt->end.rests = false;
            mu_uv_env_post(rt->uv, &rt->end.post);
        }
    }
    while (err == 0 && !all_rest()) { /* other threads may free theirs meanwhile */
        err = pthread_cond_timedwait(&rested, &lock, &until);
    }
    (void)pthread_mutex_unlock(&lock);
}

static void make_condition(void)
{
    pthread_condattr_t attr;

    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&rested, &attr);
    (void)pthread_condattr_destroy(&attr);
}

/* A child has the memory of its parent's runtimes, but not their threads. */
static void forget_all(void)
{
    (void)pthread_mutex_init(&lock, NULL);
    make_condition();
    mu_list_init(&runtimes);
}

static void prepare(void)
{
    make_condition();
    mu_tls_begin();
    (void)pthread_atfork(NULL, NULL, forget_all);
    (void)atexit(rest_all);
}

void mu_runtime_end_watch(muster_runtime *rt)
{
    (void)pthread_once(&once, prepare);
    rt->end.post.run = rest;
    rt->end.rests = true;
    (void)pthread_mutex_lock(&lock);
    mu_list_push(&runtimes, &rt->end.link);
    (void)pthread_mutex_unlock(&lock);
}

void mu_runtime_end_forget(muster_runtime *rt)
{
    (void)pthread_mutex_lock(&lock);
    mu_list_remove(&rt->end.link);
    (void)pthread_mutex_unlock(&lock);
}

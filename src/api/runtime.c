#include "api/api.h"

#include <stdio.h>

#include "core/alloc.h"
#include "service/base/log.h"

static _Thread_local struct mu_errmsg last_error;

const char *muster_errmsg(void)
{
    return last_error.text;
}

int mu_api_error(int code, const char *text)
{
    if (code != 0) {
        (void)mu_err(&last_error, code, "%s",
                     text != NULL && text[0] != '\0' ? text : muster_strerror(code));
    }
    return code;
}

void mu_api_say(const char *text)
{
    (void)mu_err(&last_error, 0, "%s", text);
}

const char *muster_version(void)
{
    return MUSTER_VERSION;
}

void muster_value_free(struct muster_value *value)
{
    mu_free(value->data);
    *value = (struct muster_value){0};
}

void muster_values_free(struct muster_values *values)
{
    for (size_t i = 0; i < values->count; i++) {
        muster_value_free(&values->items[i]);
    }
    mu_free(values->items);
    *values = (struct muster_values){0};
}

/* --- the door --------------------------------------------------------------------------------- */

static void run_door(struct mu_post *post)
{
    struct mu_door *door = MU_CONTAINER_OF(post, struct mu_door, post);

    door->run(door);
}

void mu_door_pass(muster_runtime *rt, struct mu_door *door, void (*run)(struct mu_door *door))
{
    door->run = run;
    door->post.run = run_door;
    door->open = false;
    (void)pthread_mutex_init(&door->lock, NULL);
    (void)pthread_cond_init(&door->cond, NULL);
    mu_uv_env_post(rt->uv, &door->post);
    (void)pthread_mutex_lock(&door->lock);
    while (!door->open) {
        (void)pthread_cond_wait(&door->cond, &door->lock);
    }
    (void)pthread_mutex_unlock(&door->lock);
    (void)pthread_cond_destroy(&door->cond);
    (void)pthread_mutex_destroy(&door->lock);
}

void mu_door_pass_anywhere(muster_runtime *rt, struct mu_door *door,
                           void (*run)(struct mu_door *door))
{
    if (mu_runtime_is_mine(rt)) {
        (void)pthread_mutex_init(&door->lock, NULL);
        (void)pthread_cond_init(&door->cond, NULL);
        run(door);
        (void)pthread_cond_destroy(&door->cond);
        (void)pthread_mutex_destroy(&door->lock);
    } else {
        mu_door_pass(rt, door, run);
    }
}

struct timespec mu_wait_until(int64_t timeout_ms)
{
    struct timespec at;

    (void)clock_gettime(CLOCK_MONOTONIC, &at); /* tidy: a thread's own wait, not the loop's */
    at.tv_sec += (time_t)(timeout_ms / 1000);
    at.tv_nsec += (long)(timeout_ms % 1000) * 1000000;
    if (at.tv_nsec >= 1000000000) {
        at.tv_sec++;
        at.tv_nsec -= 1000000000;
    }
    return at;
}

void mu_door_open(struct mu_door *door)
{
    (void)pthread_mutex_lock(&door->lock);
    door->open = true;
    (void)pthread_cond_signal(&door->cond);
    (void)pthread_mutex_unlock(&door->lock);
}

bool mu_runtime_would_wait(const muster_runtime *rt, const char *what)
{
    if (!mu_runtime_is_mine(rt)) {
        return false;
    }
    mu_log(MUSTER_LOG_ERROR, "RUNTIME-CALL-REFUSED",
           "call=%s why=\"it waits, and was called on the runtime's thread\" "
           "remedy=\"call it on a thread of your own\"",
           what);
    return true;
}

/* --- the runtime ------------------------------------------------------------------------------ */

static void *run_loop(void *context)
{
    muster_runtime *rt = context;

    mu_uv_env_run(rt->uv);
    return NULL;
}

void muster_runtime_config_init(struct muster_runtime_config *ret, size_t size)
{
    struct muster_runtime_config ours = {.lock = NULL};

    mu_api_give(ret, size, &ours, sizeof(ours));
}

int muster_runtime_new(muster_runtime **ret_runtime)
{
    struct muster_runtime_config config = muster_runtime_config_defaults();

    return muster_runtime_new_with(&config, ret_runtime);
}

/* The lock of the config; `ret` NULL: it comes from the environment. */
static int take_lock(const struct muster_runtime_config *given, struct muster_lock *lock,
                     const struct muster_lock **ret)
{
    struct muster_runtime_config config;
    int err = MU_API_TAKE(runtime_config, &config, given);

    if (err == 0 && config.lock != NULL) {
        err = MU_API_TAKE(lock, lock, config.lock);
    }
    *ret = config.lock == NULL ? NULL : lock;
    return err;
}

int muster_runtime_new_with(const struct muster_runtime_config *config,
                            muster_runtime **ret_runtime)
{
    struct mu_errmsg msg = {0};
    const struct muster_lock *lock;
    struct muster_lock own;
    muster_runtime *rt;
    int err;

    if (ret_runtime == NULL) {
        return mu_api_error(MUSTER_EINVAL,
                            "muster_runtime_new: the place for the result is missing");
    }
    err = take_lock(config, &own, &lock);
    if (err != 0) {
        return err;
    }
    rt = mu_calloc(1, sizeof(*rt));
    if (rt == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    err = mu_uv_env_new(&rt->uv);
    if (err != 0) {
        mu_free(rt);
        return mu_api_error(err, NULL);
    }
    rt->raw = mu_uv_env_env(rt->uv);
    err = mu_locked_open(&rt->locked, rt->raw, lock, &msg);
    if (err == 0) {
        rt->env = rt->locked.env;
        err = -pthread_create(&rt->thread, NULL, run_loop, rt);
    }
    if (err != 0) {
        mu_locked_close(&rt->locked, rt->uv);
        mu_uv_env_free(rt->uv);
        mu_free(rt);
        return mu_api_error(err, msg.text);
    }
    mu_runtime_end_watch(rt);
    *ret_runtime = rt;
    return 0;
}

struct stop_door {
    struct mu_door door;
    muster_runtime *rt;
};

static void stop_loop(struct mu_door *door)
{
    struct stop_door *d = MU_CONTAINER_OF(door, struct stop_door, door);

    mu_uv_env_stop(d->rt->uv);
    mu_door_open(door);
}

void muster_runtime_free(muster_runtime *rt)
{
    struct stop_door d = {.rt = rt};

    if (rt == NULL || mu_runtime_would_wait(rt, "muster_runtime_free")) {
        return;
    }
    mu_runtime_end_forget(rt);
    mu_door_pass(rt, &d.door, stop_loop);
    (void)pthread_join(rt->thread, NULL);
    mu_locked_close(&rt->locked, rt->uv);
    mu_uv_env_free(rt->uv);
    mu_free(rt);
}

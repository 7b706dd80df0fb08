#include "transport/uv_env.h"

#include <sched.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/err.h"
#include "transport/child_internal.h"
#include "transport/memory_limit.h"
#include "transport/paths.h"
#include "transport/health.h"
#include "transport/proc_peek.h"
#include "transport/uv_internal.h"
#include "transport/vault.h"

/* Moves everything from `from` to `to`, which is not yet a list. */
static void take_all(struct mu_list *from, struct mu_list *to)
{
    mu_list_init(to);
    if (mu_list_empty(from)) {
        return;
    }
    *to = *from;
    to->next->prev = to;
    to->prev->next = to;
    mu_list_init(from);
}

/* Time. One sample serves for everything between two sleeps of the loop, except that bytes which
 * were read are never newer than the time that is told with them: this process may have been
 * stopped in between, and who answers from memory for a limited time relies on it. */

static uint64_t read_clock(clockid_t id)
{
    struct timespec ts;

    (void)clock_gettime(id, &ts);
    return (uint64_t)ts.tv_sec * MU_NS_PER_S + (uint64_t)ts.tv_nsec;
}

static struct mu_now env_now(struct mu_env *env)
{
    struct mu_uv_env *uv = mu_uv_of(env);

    if (!uv->now_valid) {
        uv->now.mono.ns = read_clock(CLOCK_MONOTONIC);
        uv->now.wall.ns = read_clock(CLOCK_REALTIME);
        uv->now_valid = true;
    }
    return uv->now;
}

static void on_prepare(uv_prepare_t *prepare)
{
    ((struct mu_uv_env *)prepare->data)->now_valid = false;
}

/* libuv first runs what is due and then sleeps, even if it did something before. A caller that runs
 * single turns wants to see the result. */
static void end_turn(struct mu_uv_env *uv)
{
    if (uv->turning) {
        uv_stop(&uv->loop); /* it looks at the sockets, but does not sleep */
    }
}

/* What is due on the next turn. */

static void on_idle(uv_idle_t *idle)
{
    struct mu_uv_env *uv = idle->data;
    struct mu_list now;
    struct mu_list *it;

    end_turn(uv);
    uv->now_valid = false;
    take_all(&uv->laters, &now);
    while ((it = mu_list_pop(&now)) != NULL) {
        struct mu_uv_later *later = MU_CONTAINER_OF(it, struct mu_uv_later, link);

        later->run(later);
    }
    if (mu_list_empty(&uv->laters)) {
        (void)uv_idle_stop(idle);
    }
}

void mu_uv_later_add(struct mu_uv_env *uv, struct mu_uv_later *later)
{
    if (!mu_list_empty(&later->link)) {
        return;
    }
    mu_list_push(&uv->laters, &later->link);
    (void)uv_idle_start(&uv->idle, on_idle);
}

/* Timers: one alarm for the earliest of them. */

static void on_alarm(uv_timer_t *alarm);

static void set_alarm(struct mu_uv_env *uv)
{
    mu_mono_t at = mu_heap_deadline(&uv->timers);
    uint64_t loop_ms = uv_now(&uv->loop);
    uint64_t ms;

    if (at.ns == UINT64_MAX) {
        return;
    }
    if (mu_mono_reached(at, env_now(&uv->env).mono)) {
        /* Not by an alarm of zero: libuv would run it before it looks at the sockets again. */
        mu_uv_later_add(uv, &uv->timers_due);
        return;
    }
    /* libuv's clock is the same one, in whole milliseconds and never ahead of it. An alarm for an
     * earlier time stays: it does nothing but set the next one. */
    ms = (at.ns - 1) / MU_NS_PER_MS + 1;
    if (ms < uv->alarm_ms) {
        uv->alarm_ms = ms;
        (void)uv_timer_start(&uv->alarm, on_alarm, ms > loop_ms ? ms - loop_ms : 0, 0);
    }
}

static void fire_timers(struct mu_uv_env *uv)
{
    uint64_t last = uv->timers.seq;
    struct mu_heap_node *node;
    mu_mono_t now;

    uv->now_valid = false;
    now = env_now(&uv->env).mono;
    /* A timer that is armed meanwhile is armed for `now` at the earliest and comes after all that
     * are due: it waits for the next turn, however often a callback arms itself again. */
    while ((node = mu_heap_min(&uv->timers)) != NULL && node->seq <= last &&
           mu_heap_pop_due(&uv->timers, now) != NULL) {
        struct mu_timer *timer = MU_CONTAINER_OF(node, struct mu_timer, node);

        timer->fire(timer);
    }
    set_alarm(uv);
}

static void on_alarm(uv_timer_t *alarm)
{
    struct mu_uv_env *uv = alarm->data;

    end_turn(uv);
    uv->alarm_ms = UINT64_MAX;
    fire_timers(uv);
}

static void on_timers_due(struct mu_uv_later *later)
{
    fire_timers(MU_CONTAINER_OF(later, struct mu_uv_env, timers_due));
}

static void env_timer_arm(struct mu_env *env, struct mu_timer *timer, mu_mono_t at)
{
    struct mu_uv_env *uv = mu_uv_of(env);
    mu_mono_t now;

    mu_heap_remove(&uv->timers, &timer->node);
    if (at.ns == UINT64_MAX) {
        return;
    }
    now = env_now(env).mono;
    mu_heap_insert(&uv->timers, &timer->node, mu_mono_before(at, now) ? now : at);
    if (mu_heap_min(&uv->timers) == &timer->node) {
        set_alarm(uv);
    }
}

static uint64_t env_memory(struct mu_env *env)
{
    (void)env;
    return mu_memory_limit();
}

static void env_self(struct mu_env *env, struct mu_self *ret_self)
{
    static const char nameless[] = "localhost";
    size_t last = sizeof(ret_self->host) - 1;

    (void)env;
    *ret_self = (struct mu_self){.pid = getpid()};
    if (gethostname(ret_self->host, last) != 0 || ret_self->host[0] == '\0') {
        memcpy(ret_self->host, nameless, sizeof(nameless));
    }
    ret_self->host[last] = '\0';
}

static const struct mu_paths *env_paths(struct mu_env *env)
{
    (void)env;
    return &mu_paths_real;
}

static const struct mu_vaults *env_vaults(struct mu_env *env)
{
    (void)env;
    return &mu_vaults_real;
}

static const struct mu_peek *env_peek(struct mu_env *env)
{
    (void)env;
    return &mu_peek_real;
}

static const struct mu_health_source *env_health(struct mu_env *env)
{
    (void)env;
    return &mu_health_real;
}

static void env_entropy(struct mu_env *env, void *buf, size_t len)
{
    (void)env;
    /* Without entropy there are no keys, and nothing that asked for them may go on. */
    MU_ASSERT(uv_random(NULL, NULL, buf, len, 0, NULL) == 0);
}

/* Work. */

static void on_work_run(uv_work_t *req)
{
    struct mu_work *work = req->data;

    work->run(work);
}

static void on_work_done(uv_work_t *req, int status)
{
    struct mu_work *work = req->data;

    (void)status; /* it is never canceled */
    mu_uv_of(work->env)->live--;
    work->impl = NULL;
    mu_free(req);
    work->done(work);
}

static int env_work(struct mu_env *env, struct mu_work *work)
{
    struct mu_uv_env *uv = mu_uv_of(env);
    uv_work_t *req = mu_malloc(sizeof(*req));

    if (req == NULL) {
        return MUSTER_ENOMEM;
    }
    work->env = env;
    work->impl = req;
    req->data = work;
    MU_ASSERT(uv_queue_work(&uv->loop, req, on_work_run, on_work_done) == 0);
    uv->live++;
    return 0;
}

/* Messages from other threads. */

static void on_async(uv_async_t *async)
{
    struct mu_uv_env *uv = async->data;
    struct mu_list posts;
    struct mu_list *it;

    uv_mutex_lock(&uv->posts_lock);
    take_all(&uv->posts, &posts);
    uv_mutex_unlock(&uv->posts_lock);
    while ((it = mu_list_pop(&posts)) != NULL) {
        struct mu_post *post = MU_CONTAINER_OF(it, struct mu_post, link);

        post->run(post);
    }
}

void mu_uv_env_post(struct mu_uv_env *uv, struct mu_post *post)
{
    bool first;

    /* Once the loop has seen the message, it may be stopped: mu_uv_env_free() waits for the threads
     * that are still here. It does not use the lock, on which the loop would wake up only to
     * wait. */
    (void)atomic_fetch_add(&uv->posting, 1);
    uv_mutex_lock(&uv->posts_lock);
    first = mu_list_empty(&uv->posts);
    mu_list_push(&uv->posts, &post->link);
    uv_mutex_unlock(&uv->posts_lock);
    if (first) {
        uv_cond_signal(&uv->posts_cond);
        MU_ASSERT(uv_async_send(&uv->async) == 0);
    }
    (void)atomic_fetch_sub(&uv->posting, 1);
}

void mu_uv_env_rest(struct mu_uv_env *uv)
{
    uv_mutex_lock(&uv->posts_lock);
    while (mu_list_empty(&uv->posts)) {
        uv_cond_wait(&uv->posts_cond, &uv->posts_lock);
    }
    uv_mutex_unlock(&uv->posts_lock);
}

/* The loop. */

static const struct mu_env_ops ops = {
    .now = env_now,
    .entropy = env_entropy,
    .memory = env_memory,
    .self = env_self,
    .paths = env_paths,
    .vaults = env_vaults,
    .peek = env_peek,
    .health = env_health,
    .timer_arm = env_timer_arm,
    .dial = mu_uv_dial,
    .listen = mu_uv_listen,
    .unlisten = mu_uv_unlisten,
    .sendv = mu_uv_conn_sendv,
    .resume = mu_uv_conn_resume,
    .finish = mu_uv_conn_finish,
    .close = mu_uv_conn_close,
    .peer = mu_uv_conn_peer,
    .work = env_work,
    .http = mu_uv_http,
    .http_resume = mu_uv_http_resume,
    .http_cancel = mu_uv_http_cancel,
    .spawn = mu_uv_spawn,
    .child_signal = mu_uv_child_signal,
    .child_resume = mu_uv_child_resume,
    .child_leave = mu_uv_child_leave,
    .children_until = mu_uv_children_until,
    .standbys_open = mu_uv_standbys_open,
    .standbys_want = mu_uv_standbys_want,
    .standbys_close = mu_uv_standbys_close,
};

static int start_handles(struct mu_uv_env *uv)
{
    int rc = uv_async_init(&uv->loop, &uv->async, on_async);

    if (rc != 0) {
        return rc;
    }
    MU_ASSERT(uv_prepare_init(&uv->loop, &uv->prepare) == 0);
    MU_ASSERT(uv_idle_init(&uv->loop, &uv->idle) == 0);
    MU_ASSERT(uv_timer_init(&uv->loop, &uv->alarm) == 0);
    uv->async.data = uv->prepare.data = uv->idle.data = uv->alarm.data = uv;
    MU_ASSERT(uv_prepare_start(&uv->prepare, on_prepare) == 0);
    return 0;
}

int mu_uv_env_new(struct mu_uv_env **ret)
{
    struct mu_uv_env *uv = mu_calloc(1, sizeof(*uv));
    int rc;

    if (uv == NULL) {
        return MUSTER_ENOMEM;
    }
    uv->env.ops = &ops;
    uv->alarm_ms = UINT64_MAX;
    uv->children_until = MU_MONO_NEVER;
    mu_heap_init(&uv->timers);
    mu_list_init(&uv->laters);
    mu_list_init(&uv->lingering);
    mu_list_init(&uv->posts);
    mu_list_init(&uv->timers_due.link);
    uv->timers_due.run = on_timers_due;
    uv->in = mu_malloc(MU_UV_CONN_READ_MAX);
    if (uv->in == NULL) {
        rc = MUSTER_ENOMEM;
        goto fail;
    }
    rc = uv_mutex_init(&uv->posts_lock);
    if (rc != 0) {
        goto fail;
    }
    rc = uv_cond_init(&uv->posts_cond);
    if (rc != 0) {
        goto fail_mutex;
    }
    rc = uv_loop_init(&uv->loop);
    if (rc != 0) {
        goto fail_cond;
    }
    rc = start_handles(uv);
    if (rc != 0) {
        goto fail_loop;
    }
    *ret = uv;
    return 0;

fail_loop:
    (void)uv_run(&uv->loop, UV_RUN_NOWAIT);
    (void)uv_loop_close(&uv->loop);
fail_cond:
    uv_cond_destroy(&uv->posts_cond);
fail_mutex:
    uv_mutex_destroy(&uv->posts_lock);
fail:
    mu_free(uv->in);
    mu_free(uv);
    return rc == UV_ENOMEM ? MUSTER_ENOMEM : rc;
}

void mu_uv_env_free(struct mu_uv_env *uv)
{
    if (uv == NULL) {
        return;
    }
    MU_ASSERT(uv->live == 0);
    mu_uv_conn_drop_lingering(uv);
    mu_uv_http_free(uv);
    mu_uv_families_stop(uv);
    /* A last message may still be on its way out of mu_uv_env_post(). */
    while (atomic_load(&uv->posting) != 0) {
        (void)sched_yield();
    }
    uv_close((uv_handle_t *)&uv->async, NULL);
    uv_close((uv_handle_t *)&uv->prepare, NULL);
    uv_close((uv_handle_t *)&uv->idle, NULL);
    uv_close((uv_handle_t *)&uv->alarm, NULL);
    while (uv_run(&uv->loop, UV_RUN_DEFAULT) != 0) {
    }
    MU_ASSERT(uv_loop_close(&uv->loop) == 0);
    mu_uv_families_free(uv);
    uv_cond_destroy(&uv->posts_cond);
    uv_mutex_destroy(&uv->posts_lock);
    mu_free(uv->in);
    mu_free(uv);
}

struct mu_env *mu_uv_env_env(struct mu_uv_env *uv)
{
    return &uv->env;
}

void mu_uv_env_run(struct mu_uv_env *uv)
{
    (void)uv_run(&uv->loop, UV_RUN_DEFAULT);
}

void mu_uv_env_turn(struct mu_uv_env *uv)
{
    uv->turning = true;
    (void)uv_run(&uv->loop, UV_RUN_ONCE);
    uv->turning = false;
}

void mu_uv_env_use_cgroups(struct mu_uv_env *uv, bool use)
{
    uv->no_cgroups = !use;
}

void mu_uv_env_stop(struct mu_uv_env *uv)
{
    uv_stop(&uv->loop);
}

/* Returns how many there were. */
static int each_number(void (*use)(void *context, const char *ip), void *context, bool here,
                       bool far)
{
    uv_interface_address_t *list;
    char ip[INET6_ADDRSTRLEN];
    int used = 0;
    int count;

    if (uv_interface_addresses(&list, &count) != 0) {
        return 0;
    }
    for (int i = 0; i < count; i++) {
        bool v4 = list[i].address.address4.sin_family == AF_INET;

        if ((!v4 && IN6_IS_ADDR_LINKLOCAL(&list[i].address.address6.sin6_addr)) ||
            !(list[i].is_internal ? here : far)) {
            continue;
        }
        if ((v4 ? uv_ip4_name(&list[i].address.address4, ip, sizeof(ip))
                : uv_ip6_name(&list[i].address.address6, ip, sizeof(ip))) == 0) {
            use(context, ip);
            used++;
        }
    }
    uv_free_interface_addresses(list, count);
    return used;
}

void mu_uv_env_each_number(void (*use)(void *context, const char *ip), void *context)
{
    (void)each_number(use, context, true, true);
}

void mu_uv_env_each_far_number(void (*use)(void *context, const char *ip), void *context)
{
    if (each_number(use, context, false, true) == 0) {
        (void)each_number(use, context, true, false);
    }
}

/* The threads that look at this machine's health: one for GPUs, one that waits for their errors,
 * and one for the rest. None of them is waited for. */
#include "transport/health.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "core/time.h"
#include "transport/health_internal.h"

#define XID_WAIT_MS 600000 /* in one call of the driver; an error ends it at once */

struct part {
    struct mu_health_probe *probe;
    void *(*run)(void *part);
    uint64_t asked; /* looks that somebody waits for */
    uint64_t looks;
    uint64_t busy_since; /* 0: it looks at nothing */
    const char *what;
};

struct mu_health_probe {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t wake;
    unsigned users; /* the owner, and threads: the last one frees it */
    bool closed;
    uint64_t version;
    uint32_t interval_ms;
    char *root;
    char *log_dir;
    struct part gpu;
    struct part host;
    struct mu_health seen;
    uint64_t xid_at[MU_HEALTH_XIDS_MAX];
    struct mu_nvml *nvml; /* of the threads for GPUs */
};

static uint64_t now_ns(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * MU_NS_PER_S + (uint64_t)t.tv_nsec;
}

static void release(struct mu_health_probe *p)
{
    bool last;

    (void)pthread_mutex_lock(&p->lock);
    last = --p->users == 0;
    (void)pthread_mutex_unlock(&p->lock);
    if (last) {
        mu_nvml_close(p->nvml); /* by a thread of the probe, if there is a driver at all */
        (void)pthread_cond_destroy(&p->wake);
        (void)pthread_mutex_destroy(&p->lock);
        mu_free(p->root);
        mu_free(p->log_dir);
        mu_free(p);
    }
}

/* --- a thread --------------------------------------------------------------------------------- */

static void on_says(void *context, const char *what)
{
    struct part *part = context;

    (void)pthread_mutex_lock(&part->probe->lock);
    part->what = what;
    (void)pthread_mutex_unlock(&part->probe->lock);
}

/* Waits until a look is due. Returns how many were asked for by then; `ret_asked`: whether this one
 * was. UINT64_MAX: there is nobody left to look for. */
static uint64_t await_turn(struct part *part, bool *ret_asked)
{
    struct mu_health_probe *p = part->probe;
    uint64_t due = p->interval_ms == 0 ? UINT64_MAX : now_ns() + p->interval_ms * MU_NS_PER_MS;
    uint64_t asked;

    (void)pthread_mutex_lock(&p->lock);
    part->busy_since = 0;
    while (!p->closed && part->asked <= part->looks && now_ns() < due) {
        const struct timespec at = {.tv_sec = (time_t)(due / MU_NS_PER_S),
                                    .tv_nsec = (long)(due % MU_NS_PER_S)};

        if (due == UINT64_MAX) {
            (void)pthread_cond_wait(&p->wake, &p->lock);
        } else {
            (void)pthread_cond_timedwait(&p->wake, &p->lock, &at);
        }
    }
    *ret_asked = part->asked > part->looks;
    asked = p->closed ? UINT64_MAX : part->asked;
    part->busy_since = now_ns();
    (void)pthread_mutex_unlock(&p->lock);
    return asked;
}

/* Counts a look that has ended; with the lock. */
static void count_look(struct part *part, uint64_t asked)
{
    part->looks = part->looks + 1 < asked ? asked : part->looks + 1;
    part->asked = part->asked < part->looks ? part->looks : part->asked;
    part->busy_since = 0;
    part->probe->version++;
}

/* --- GPUs ------------------------------------------------------------------------------------- */

static void keep_gpus(struct part *part, const struct mu_health *h, uint64_t asked)
{
    struct mu_health *seen = &part->probe->seen;

    (void)pthread_mutex_lock(&part->probe->lock);
    seen->gpu_state = h->gpu_state;
    memcpy(seen->gpu_text, h->gpu_text, sizeof(seen->gpu_text));
    memcpy(seen->driver, h->driver, sizeof(seen->driver));
    seen->gpu_count = h->gpu_count;
    memcpy(seen->gpus, h->gpus, sizeof(seen->gpus));
    count_look(part, asked);
    (void)pthread_mutex_unlock(&part->probe->lock);
}

static void keep_xid(struct mu_health_probe *p, uint32_t gpu, uint32_t number)
{
    size_t i;

    (void)pthread_mutex_lock(&p->lock);
    i = p->seen.xid_count++ % MU_HEALTH_XIDS_MAX;
    p->seen.xids[i] =
        (struct mu_health_xid){.order = p->seen.xid_count, .gpu = gpu, .number = number};
    p->xid_at[i] = now_ns();
    p->version++;
    (void)pthread_mutex_unlock(&p->lock);
}

static void *run_xids(void *context)
{
    struct mu_health_probe *p = context;
    bool open = true;

    while (open) {
        uint32_t gpu = 0;
        uint32_t number = 0;
        int err = mu_nvml_await(p->nvml, XID_WAIT_MS, &gpu, &number);

        if (err == 0) {
            keep_xid(p, gpu, number);
        }
        (void)pthread_mutex_lock(&p->lock);
        open = !p->closed && err != -EIO; /* a driver that cannot wait would be asked in a loop */
        (void)pthread_mutex_unlock(&p->lock);
    }
    release(p);
    return NULL;
}

static int start_thread(struct mu_health_probe *p, void *(*run)(void *context), void *context)
{
    pthread_attr_t detached;
    pthread_t thread;
    int err;

    (void)pthread_mutex_lock(&p->lock);
    p->users++;
    (void)pthread_mutex_unlock(&p->lock);
    (void)pthread_attr_init(&detached);
    (void)pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
    err = pthread_create(&thread, &detached, run, context);
    (void)pthread_attr_destroy(&detached);
    if (err != 0) {
        release(p);
    }
    return -err;
}

static void *run_gpus(void *context)
{
    struct part *part = context;
    struct mu_health_probe *p = part->probe;
    struct mu_health *own = mu_calloc(1, sizeof(*own));
    bool holders = true;
    uint64_t asked = 0;

    if (own != NULL) {
        p->nvml = mu_nvml_open(own, on_says, part);
        while (p->nvml != NULL && asked != UINT64_MAX) {
            bool first = own->gpu_state == MU_HEALTH_GPUS_UNKNOWN;

            mu_nvml_look(p->nvml, holders, own);
            keep_gpus(part, own, asked);
            if (first && mu_nvml_listen(p->nvml) && start_thread(p, run_xids, p) == 0) {
                (void)pthread_mutex_lock(&p->lock);
                p->seen.has_xids = true;
                (void)pthread_mutex_unlock(&p->lock);
            }
            asked = await_turn(part, &holders);
        }
        if (p->nvml == NULL) { /* and there will be none: what was asked for is known */
            keep_gpus(part, own, UINT64_MAX);
        }
    }
    mu_free(own);
    release(p);
    return NULL;
}

/* --- the rest --------------------------------------------------------------------------------- */

static void keep_host(struct part *part, const struct mu_health *h, uint64_t asked)
{
    struct mu_health_probe *p = part->probe;
    struct mu_health gpus;

    (void)pthread_mutex_lock(&p->lock);
    gpus = p->seen;
    p->seen = *h;
    p->seen.gpu_state = gpus.gpu_state;
    memcpy(p->seen.gpu_text, gpus.gpu_text, sizeof(gpus.gpu_text));
    memcpy(p->seen.driver, gpus.driver, sizeof(gpus.driver));
    p->seen.gpu_count = gpus.gpu_count;
    memcpy(p->seen.gpus, gpus.gpus, sizeof(gpus.gpus));
    p->seen.has_xids = gpus.has_xids;
    p->seen.xid_count = gpus.xid_count;
    memcpy(p->seen.xids, gpus.xids, sizeof(gpus.xids));
    count_look(part, asked);
    (void)pthread_mutex_unlock(&p->lock);
}

static void *run_host(void *context)
{
    struct part *part = context;
    struct mu_health_probe *p = part->probe;
    struct mu_health *own = mu_malloc(sizeof(*own));
    uint64_t asked = 0;
    bool waited;

    while (own != NULL && asked != UINT64_MAX) {
        memset(own, 0, sizeof(*own));
        mu_health_host_look(p->root, p->log_dir, on_says, part, own);
        keep_host(part, own, asked);
        asked = await_turn(part, &waited);
    }
    mu_free(own);
    release(p);
    return NULL;
}

/* --- for the owner ---------------------------------------------------------------------------- */

static void probe_close(struct mu_health_probe *p)
{
    if (p != NULL) {
        (void)pthread_mutex_lock(&p->lock);
        p->closed = true;
        (void)pthread_cond_broadcast(&p->wake);
        (void)pthread_mutex_unlock(&p->lock);
        release(p);
    }
}

static int probe_open(struct mu_env *env, const struct mu_health_config *config,
                      struct mu_health_probe **ret_probe)
{
    struct mu_health_probe *p = mu_calloc(1, sizeof(*p));
    const char *log_dir = config->log_dir == NULL ? "" : config->log_dir;
    pthread_condattr_t attributes;
    int err;

    (void)env;
    if (p == NULL) {
        return MUSTER_ENOMEM;
    }
    (void)pthread_mutex_init(&p->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&p->wake, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    p->users = 1;
    p->interval_ms = config->interval_ms;
    p->root = mu_strndup(config->root, strlen(config->root));
    p->log_dir = mu_strndup(log_dir, strlen(log_dir));
    p->gpu =
        (struct part){.probe = p, .asked = 1, .busy_since = now_ns(), .what = "the GPU driver"};
    p->host = (struct part){.probe = p, .asked = 1, .busy_since = now_ns(), .what = "/proc"};
    err =
        p->root == NULL || p->log_dir == NULL ? MUSTER_ENOMEM : start_thread(p, run_gpus, &p->gpu);
    if (err == 0) {
        err = start_thread(p, run_host, &p->host);
    }
    if (err != 0) {
        probe_close(p);
        return err;
    }
    *ret_probe = p;
    return 0;
}

static uint64_t busy_ms(const struct part *part, uint64_t now)
{
    return part->busy_since == 0 || now < part->busy_since
               ? 0
               : (now - part->busy_since) / MU_NS_PER_MS;
}

static void probe_read(struct mu_health_probe *p, struct mu_health *ret)
{
    uint64_t now = now_ns();
    uint64_t count;
    uint64_t first;

    (void)pthread_mutex_lock(&p->lock);
    *ret = p->seen;
    ret->gpu_looks = p->gpu.looks;
    ret->host_looks = p->host.looks;
    ret->gpu_asked = p->gpu.asked;
    ret->host_asked = p->host.asked;
    ret->gpu_busy_ms = busy_ms(&p->gpu, now);
    ret->host_busy_ms = busy_ms(&p->host, now);
    ret->gpu_what = p->gpu.what;
    ret->host_what = p->host.what;
    count = p->seen.xid_count;
    first = count < MU_HEALTH_XIDS_MAX ? 0 : count - MU_HEALTH_XIDS_MAX;
    for (uint64_t i = first; i < count; i++) {
        struct mu_health_xid *x = &ret->xids[i - first];
        uint64_t at = p->xid_at[i % MU_HEALTH_XIDS_MAX];

        *x = p->seen.xids[i % MU_HEALTH_XIDS_MAX];
        x->age_ms = now < at ? 0 : (now - at) / MU_NS_PER_MS;
    }
    (void)pthread_mutex_unlock(&p->lock);
}

static uint64_t probe_version(struct mu_health_probe *p)
{
    uint64_t version;

    (void)pthread_mutex_lock(&p->lock);
    version = p->version;
    (void)pthread_mutex_unlock(&p->lock);
    return version;
}

static void ask_part(struct part *part)
{
    /* One that is under way may have begun before what the owner wants to see. */
    uint64_t next = part->looks + (part->busy_since == 0 ? 1 : 2);

    part->asked = part->looks == UINT64_MAX ? part->asked : part->asked < next ? next : part->asked;
}

static void probe_ask(struct mu_health_probe *p)
{
    (void)pthread_mutex_lock(&p->lock);
    ask_part(&p->gpu);
    ask_part(&p->host);
    (void)pthread_cond_broadcast(&p->wake);
    (void)pthread_mutex_unlock(&p->lock);
}

const struct mu_health_source mu_health_real = {
    .open = probe_open,
    .read = probe_read,
    .version = probe_version,
    .ask = probe_ask,
    .close = probe_close,
};

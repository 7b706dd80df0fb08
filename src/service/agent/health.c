#include "service/agent/health.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "service/agent/agent_internal.h"
#include "service/agent/env.h"

#define LOOK_MS       10000  /* between two looks of the probe */
#define NEWS_MS       2000   /* until what the probe has seen is told */
#define FIRST_NEWS_MS 500    /* likewise, at first */
#define AGAIN_MS      600000 /* until what comes and goes is told again */
#define RECENT_MS     60000  /* before a failure: an older error was about something else */
#define POLL_MS       1      /* of a check: at first, */
#define POLL_SLOW_MS  50     /* and later */
#define ASK_MS        500    /* while memory is held */
#define HOST_MS       2000   /* for the disk and /sys: nobody is kept out because they hang */
#define SAY_MS        1000   /* until a check says what it waits for */
#define SAY_AGAIN_MS  10000

static uint64_t since_ms(const struct mu_agent_service *s, mu_mono_t at)
{
    return mu_mono_since(at, mu_env_now(s->env).mono) / MU_NS_PER_MS;
}

/* --- what is new ------------------------------------------------------------------------------ */

static void tell(struct mu_agent_service *s, const struct mu_health_finding *f)
{
    if (f->level == MU_HEALTH_FAULT && s->health.checking) {
        /* It is the reason why the node is kept out, and said as that. */
    } else if (f->remedy[0] != '\0') {
        mu_agent_log(s, "%s; %s", f->text, f->remedy);
    } else {
        mu_agent_log(s, "%s", f->text);
    }
    if (s->events.health != NULL) {
        s->events.health(s->events.context, &s->health.found, f);
    }
}

static struct mu_agent_health_note *find_told(struct mu_agent_health *h,
                                              const struct mu_health_finding *f)
{
    for (size_t i = 0; i < h->told_count; i++) {
        if (h->told[i].finding.kind == f->kind &&
            strcmp(h->told[i].finding.subject, f->subject) == 0) {
            return &h->told[i];
        }
    }
    return NULL;
}

/* A place for what was not told before: that of something that is over, once all are taken. */
static struct mu_agent_health_note *new_note(struct mu_agent_health *h)
{
    struct mu_agent_health_note *t = NULL;

    if (h->told_count < MU_HEALTH_FINDINGS_MAX) {
        t = &h->told[h->told_count++];
    }
    for (size_t i = 0; t == NULL && i < h->told_count; i++) {
        t = h->told[i].holds ? NULL : &h->told[i];
    }
    if (t != NULL) {
        t->at = (mu_mono_t){0};
        t->holds = false;
    }
    return t;
}

static void take_finding(struct mu_agent_service *s, const struct mu_health_finding *f)
{
    struct mu_agent_health *h = &s->health;
    struct mu_agent_health_note *t = find_told(h, f);
    bool held = t != NULL && t->holds;

    if (t == NULL) {
        t = new_note(h);
    }
    if (t == NULL) {
        return;
    }
    t->finding = *f;
    t->holds = true;
    if (!held && (t->at.ns == 0 || since_ms(s, t->at) >= AGAIN_MS)) {
        t->at = mu_env_now(s->env).mono;
        tell(s, f);
    }
}

static void take_xid(struct mu_agent_service *s, const struct mu_health_xid *x)
{
    struct mu_agent_health *h = &s->health;
    const char *name = mu_health_xid_name(x->number);
    mu_mono_t now = mu_env_now(s->env).mono;
    struct mu_health_finding f = {
        .level = MU_HEALTH_WARN, .kind = MU_HEALTH_XID, .gpu = (int)x->gpu};

    h->xids[(x->order - 1) % MU_AGENT_HEALTH_XIDS] = (struct mu_agent_health_xid){
        .gpu = x->gpu,
        .number = x->number,
        .at = {now.ns < x->age_ms * MU_NS_PER_MS ? 0 : now.ns - x->age_ms * MU_NS_PER_MS},
    };
    h->xid_count = x->order;
    (void)snprintf(f.subject, sizeof(f.subject), "GPU %u", x->gpu);
    (void)snprintf(f.text, sizeof(f.text), "GPU %u reported Xid %u%s%s%s", x->gpu, x->number,
                   name == NULL ? "" : " (", name == NULL ? "" : name, name == NULL ? "" : ")");
    tell(s, &f);
}

/* The GPUs and the rest are looked at by two threads, and either may be first. */
static void take_first(struct mu_agent_health *h)
{
    if (!h->has_host && h->now.host_looks != 0) {
        h->has_host = true;
        h->first.port_count = h->now.port_count;
        memcpy(h->first.ports, h->now.ports, sizeof(h->first.ports));
    }
    if (!h->has_gpus && h->now.gpu_looks != 0) {
        h->has_gpus = true;
        h->first.gpu_count = h->now.gpu_count;
        memcpy(h->first.gpus, h->now.gpus, sizeof(h->first.gpus));
        h->gpus = mu_health_gpus_of(&h->now, h->visible);
    }
}

static void take_news(struct mu_agent_service *s)
{
    struct mu_agent_health *h = &s->health;
    uint64_t kept;

    h->source->read(h->probe, &h->now);
    take_first(h);
    kept = h->now.xid_count < MU_HEALTH_XIDS_MAX ? h->now.xid_count : MU_HEALTH_XIDS_MAX;
    mu_health_judge(&h->now, &h->first, h->gpus, &h->found);
    for (uint64_t i = 0; i < kept; i++) {
        if (h->now.xids[i].order > h->xid_count) {
            take_xid(s, &h->now.xids[i]);
        }
    }
    for (size_t i = 0; i < h->told_count; i++) {
        struct mu_agent_health_note *t = &h->told[i];
        bool holds = false;

        for (size_t k = 0; k < h->found.count; k++) {
            holds |= h->found.items[k].kind == t->finding.kind &&
                     strcmp(h->found.items[k].subject, t->finding.subject) == 0;
        }
        if (t->holds && !holds && s->events.health != NULL) {
            s->events.health(s->events.context, &h->found, NULL);
        }
        t->holds = holds;
    }
    for (size_t i = 0; i < h->found.count; i++) {
        const struct mu_health_finding *f = &h->found.items[i];
        /* Memory of the dead is waited for, and told by the check; workers have theirs. */
        bool expected =
            f->kind == MU_HEALTH_GPU_HELD || (f->kind == MU_HEALTH_GPU_USED && s->generation != 0);

        if (f->level >= MU_HEALTH_WARN && !expected) {
            take_finding(s, f);
        }
    }
}

static void arm(struct mu_agent_service *s)
{
    uint64_t ms = s->health.has_gpus && s->health.has_host ? NEWS_MS : FIRST_NEWS_MS;

    mu_env_timer_arm(s->env, &s->health.timer, mu_mono_add_ms(mu_env_now(s->env).mono, ms));
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_agent_service *s = MU_CONTAINER_OF(timer, struct mu_agent_service, health.timer);

    take_news(s);
    arm(s);
}

/* --- the check -------------------------------------------------------------------------------- */

static void end_check(struct mu_agent_service *s, const struct mu_health_finding *f)
{
    char text[sizeof(f->text) + sizeof(f->remedy) + 4] = "";

    s->health.checking = false;
    s->health.checked = true;
    if (f != NULL) {
        (void)snprintf(text, sizeof(text), "%s; %s", f->text, f->remedy);
    }
    mu_agent_check_health(s, text);
}

/* The first fault; what may pass by itself comes last. */
static const struct mu_health_finding *find_fault(const struct mu_health_findings *found)
{
    const struct mu_health_finding *fault = NULL;

    for (size_t i = 0; i < found->count; i++) {
        const struct mu_health_finding *f = &found->items[i];

        if (f->level == MU_HEALTH_FAULT && (fault == NULL || fault->kind == MU_HEALTH_GPU_HELD)) {
            fault = f;
        }
    }
    return fault;
}

static void say(struct mu_agent_service *s, const char *what)
{
    struct mu_agent_health *h = &s->health;

    if (since_ms(s, h->check_since) >= SAY_MS && since_ms(s, h->said_at) >= SAY_AGAIN_MS) {
        h->said_at = mu_env_now(s->env).mono;
        mu_agent_log(s, "this node waits before it joins: %s", what);
    }
}

static void wait_ms(struct mu_agent_service *s, uint64_t ms)
{
    mu_env_timer_arm(s->env, &s->health.check_timer, mu_mono_add_ms(mu_env_now(s->env).mono, ms));
}

/* Whether all is there that was asked for, or will not come. */
static bool has_looked(struct mu_agent_service *s)
{
    struct mu_agent_health *h = &s->health;
    uint64_t waited_ms = since_ms(s, h->check_since);
    bool host = h->now.host_looks >= h->now.host_asked || waited_ms >= HOST_MS;

    if (h->gpus == 0) {
        return host;
    }
    if (!h->checked) {
        return h->now.gpu_looks != 0 || waited_ms >= MU_AGENT_HEALTH_FIRST_MS;
    }
    return host &&
           (h->now.gpu_looks >= h->now.gpu_asked || h->now.gpu_busy_ms >= MU_HEALTH_SILENT_MS);
}

static void step_check(struct mu_agent_service *s)
{
    struct mu_agent_health *h = &s->health;
    const struct mu_health_finding *fault;

    h->source->read(h->probe, &h->now);
    if (!has_looked(s)) {
        say(s, h->now.gpu_looks < h->now.gpu_asked ? h->now.gpu_what : h->now.host_what);
        wait_ms(s, since_ms(s, h->check_since) < POLL_SLOW_MS ? POLL_MS : POLL_SLOW_MS);
        return;
    }
    if (!h->checked && h->now.gpu_looks == 0 && h->gpus != 0) {
        mu_agent_log(s, "the GPU driver takes long to start: this node joins without its word");
    }
    take_news(s);
    fault = find_fault(&h->found);
    if (fault != NULL && fault->kind == MU_HEALTH_GPU_HELD &&
        since_ms(s, h->check_since) < MU_AGENT_HEALTH_HELD_MS) {
        say(s, fault->text);
        h->source->ask(h->probe);
        wait_ms(s, ASK_MS);
        return;
    }
    end_check(s, fault);
}

static void on_check_timer(struct mu_timer *timer)
{
    step_check(MU_CONTAINER_OF(timer, struct mu_agent_service, health.check_timer));
}

bool mu_agent_health_check(struct mu_agent_service *s)
{
    struct mu_agent_health *h = &s->health;

    if (h->probe == NULL || s->config.health != MU_AGENT_HEALTH_ON) {
        return false;
    }
    if (h->checked) { /* the first look began with the agent */
        h->source->ask(h->probe);
    }
    h->checking = true;
    h->check_since = mu_env_now(s->env).mono;
    h->said_at = (mu_mono_t){0};
    step_check(s);
    return true;
}

void mu_agent_health_check_stop(struct mu_agent_service *s)
{
    s->health.checking = false;
    mu_env_timer_arm(s->env, &s->health.check_timer, MU_MONO_NEVER);
}

/* --- the cause of a failure ------------------------------------------------------------------- */

/* The first recent error of the worker's GPU; of any GPU, if there is none, or it is not known. */
static const struct mu_agent_health_xid *find_xid(struct mu_agent_service *s, int gpu)
{
    struct mu_agent_health *h = &s->health;
    uint64_t first = h->xid_count < MU_AGENT_HEALTH_XIDS ? 0 : h->xid_count - MU_AGENT_HEALTH_XIDS;
    const struct mu_agent_health_xid *found = NULL;

    for (uint64_t i = first; i < h->xid_count; i++) {
        const struct mu_agent_health_xid *x = &h->xids[i % MU_AGENT_HEALTH_XIDS];

        if (x->number != 0 && since_ms(s, x->at) <= RECENT_MS &&
            (found == NULL || ((int)x->gpu == gpu && (int)found->gpu != gpu))) {
            found = x;
        }
    }
    return found;
}

/* What is wrong now: with the worker's GPU, with another one or a port, or with what the signal
 * that ended it is about. */
static const struct mu_health_finding *find_reason(const struct mu_agent_health *h, int gpu,
                                                   int exit_code)
{
    const struct mu_health_finding *reason = NULL;

    for (size_t i = 0; i < h->found.count; i++) {
        const struct mu_health_finding *f = &h->found.items[i];

        if (f->kind == MU_HEALTH_SHM && exit_code == -SIGBUS) {
            return f; /* what is written to memory that cannot be had */
        }
        if ((f->level == MU_HEALTH_FAULT || f->kind == MU_HEALTH_GPU_ECC) &&
            (reason == NULL || (f->gpu == gpu && reason->gpu != gpu))) {
            reason = f;
        }
    }
    return reason;
}

static void append(char *cause, size_t cap, const char *text)
{
    size_t len = strlen(cause);

    (void)snprintf(cause + len, cap - len, "%s%s", len == 0 ? "" : "; ", text);
}

void mu_agent_health_cause(struct mu_agent_service *s, const struct mu_agent_worker *w, char *cause,
                           size_t cap)
{
    struct mu_agent_health *h = &s->health;
    const struct mu_agent_health_xid *x;
    const struct mu_health_finding *reason;
    char whose[40] = "";
    char text[sizeof(reason->text) + sizeof(whose)];
    int gpu;

    if (h->probe == NULL) {
        return;
    }
    take_news(s);
    gpu = mu_health_gpu_of(&h->now, h->visible, w->local_rank);
    x = find_xid(s, gpu);
    reason = x == NULL ? find_reason(h, gpu, w->end.exit_code) : NULL;
    if (gpu >= 0 && ((x != NULL && (int)x->gpu == gpu) || (reason != NULL && reason->gpu == gpu))) {
        (void)snprintf(whose, sizeof(whose), "rank %u's ", w->end.rank);
    }
    if (x != NULL) {
        const char *name = mu_health_xid_name(x->number);

        (void)snprintf(text, sizeof(text), "%sGPU %u%s reported Xid %u%s%s%s %llu s before", whose,
                       x->gpu, whose[0] == '\0' ? " of this node" : "", x->number,
                       name == NULL ? "" : " (", name == NULL ? "" : name, name == NULL ? "" : ")",
                       (unsigned long long)since_ms(s, x->at) / 1000);
        append(cause, cap, text);
    } else if (reason != NULL) {
        (void)snprintf(text, sizeof(text), "%s%s", whose, reason->text);
        append(cause, cap, text);
    }
}

/* --- life ------------------------------------------------------------------------------------- */

void mu_agent_health_init(struct mu_agent_service *s)
{
    const struct mu_health_config config = {
        .root = "", .log_dir = s->config.log_dir, .interval_ms = LOOK_MS};
    struct mu_agent_health *h = &s->health;

    mu_timer_init(&h->timer, on_timer);
    mu_timer_init(&h->check_timer, on_check_timer);
    h->source = mu_env_health(s->env);
    h->visible = mu_agent_env_get(s->config.inherited, "CUDA_VISIBLE_DEVICES");
    h->gpus = h->visible != NULL && h->visible[0] == '\0' ? 0 : UINT32_MAX;
    if (s->config.health == MU_AGENT_HEALTH_OFF || h->source == NULL ||
        h->source->open(s->env, &config, &h->probe) != 0) {
        h->probe = NULL;
        return;
    }
    arm(s);
}

void mu_agent_health_fini(struct mu_agent_service *s)
{
    struct mu_agent_health *h = &s->health;

    mu_env_timer_arm(s->env, &h->timer, MU_MONO_NEVER);
    mu_env_timer_arm(s->env, &h->check_timer, MU_MONO_NEVER);
    if (h->probe != NULL) {
        h->source->close(h->probe);
    }
}

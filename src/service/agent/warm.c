/* Standbys: keeping as many as there are workers, and saying so when that fails. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "service/agent/agent_internal.h"
#include "service/agent/env.h"

#define WHOLE_ENV_MAX ((size_t)100 * 1024) /* of a variable; Linux takes up to 128 KiB */

static void arm(struct mu_agent_service *s)
{
    mu_env_timer_arm(s->env, &s->warm_timer, mu_warm_deadline(&s->warm));
}

/* --- the environment of the zygote ------------------------------------------------------------ */

/* Joins the variables in one more, from which the zygote learns what a wrapper around the
 * interpreter has changed. NULL: it would be too long for a variable, and is left out. */
static const char *join(struct mu_buf *out, const char *const *variables)
{
    int err = mu_buf_append(out, mu_span_str("MUSTER_WARM_ENV="));

    for (const char *const *v = variables; err == 0 && *v != NULL; v++) {
        err = mu_buf_append(out, mu_span_str(v == variables ? "" : "\1"));
        err = err != 0 ? err : mu_buf_append(out, mu_span_str(*v));
    }
    err = err != 0 ? err : mu_buf_append(out, mu_span("", 1));
    return err != 0 ? NULL : (const char *)mu_buf_span(out).data;
}

/* What all workers inherit: nothing of a round, which is not known yet. Modules read
 * OMP_NUM_THREADS when they are imported, and Python PYTHONFAULTHANDLER when it starts, so both are
 * what workers will get. */
static int build_env(struct mu_agent_service *s)
{
    const char *const *inherited = s->config.inherited;
    size_t count = 0;

    if (s->warm_envp != NULL) {
        return 0;
    }
    while (inherited[count] != NULL) {
        count++;
    }
    s->warm_envp = mu_calloc(count + 4, sizeof(*s->warm_envp));
    if (s->warm_envp == NULL) {
        return MUSTER_ENOMEM;
    }
    memcpy((void *)s->warm_envp, inherited, count * sizeof(*inherited));
    if (s->config.policy.workers > 1 && mu_agent_env_get(inherited, "OMP_NUM_THREADS") == NULL) {
        s->warm_envp[count++] = "OMP_NUM_THREADS=1";
    }
    if (mu_agent_env_get(inherited, "PYTHONFAULTHANDLER") == NULL) {
        s->warm_envp[count++] = "PYTHONFAULTHANDLER=1";
    }
    s->warm_envp[count] = join(&s->warm_env, s->warm_envp);
    return 0;
}

/* --- what is told ----------------------------------------------------------------------------- */

static void take_end(struct mu_agent_service *s, bool refused, const char *why)
{
    uint64_t ms;

    s->warm_told = false;
    s->warm_waited = 0;
    if (mu_warm_ended(&s->warm, refused, mu_env_now(s->env).mono, &ms)) {
        mu_agent_log(s,
                     "--warm: the process that keeps standbys ended (%s); another one starts "
                     "in %llu s, and workers start plainly until then",
                     why, (unsigned long long)(ms / 1000));
    } else {
        mu_agent_log(s, "--warm: workers start plainly from now on: %s", why);
    }
    arm(s);
}

static void on_changed(struct mu_standbys *standbys)
{
    struct mu_agent_service *s = MU_CONTAINER_OF(standbys, struct mu_agent_service, standbys);

    if (standbys->waiting < s->warm_waited) {
        mu_warm_lost(&s->warm, mu_env_now(s->env).mono);
        arm(s);
    }
    s->warm_waited = standbys->waiting;
    if (standbys->waiting == s->config.policy.workers && !s->warm_told) {
        s->warm_told = true;
        mu_agent_log(s, "--warm: %u standbys wait", standbys->waiting);
    }
}

static void on_ended(struct mu_standbys *standbys, bool refused, const char *why)
{
    struct mu_agent_service *s = MU_CONTAINER_OF(standbys, struct mu_agent_service, standbys);

    if (why == NULL) {
        s->warm.open = false;
        mu_agent_settle(s);
    } else {
        take_end(s, refused, why);
    }
}

static const struct mu_standbys_events standbys_events = {.changed = on_changed, .ended = on_ended};

static int open_standbys(struct mu_agent_service *s)
{
    struct mu_spawn what = {.argv = s->config.zygote, .streams = {{.to = MU_SPAWN_INHERIT}}};
    int err = build_env(s);

    if (err == 0) {
        what.envp = s->warm_envp;
        s->standbys = (struct mu_standbys){.on = &standbys_events};
        err = mu_env_standbys_open(s->env, &s->standbys, &what);
    }
    return err;
}

static void act(struct mu_agent_service *s)
{
    int err;

    switch (mu_warm_next(&s->warm, mu_env_now(s->env).mono)) {
    case MU_WARM_NOTHING:
        break;
    case MU_WARM_OPEN:
        err = open_standbys(s);
        if (err != 0) {
            take_end(s, false, muster_strerror(err));
            break;
        }
        mu_env_standbys_want(s->env, &s->standbys, s->config.policy.workers);
        break;
    case MU_WARM_FILL:
        mu_env_standbys_want(s->env, &s->standbys, s->config.policy.workers);
        break;
    }
    arm(s);
}

static void on_timer(struct mu_timer *timer)
{
    act(MU_CONTAINER_OF(timer, struct mu_agent_service, warm_timer));
}

/* --- what the others ask ---------------------------------------------------------------------- */

struct mu_standbys *mu_agent_warm_standbys(struct mu_agent_service *s)
{
    return s->warm.open && s->standbys.waiting > 0 ? &s->standbys : NULL;
}

void mu_agent_warm_used(struct mu_agent_service *s)
{
    uint32_t workers = s->config.policy.workers;
    uint32_t warm = 0;

    for (uint32_t i = 0; i < workers; i++) {
        warm += s->workers[i].warm;
    }
    if (s->warm.wanted && s->ran && warm < workers) {
        mu_agent_log(s, "--warm: no standby was ready for %u of %u workers, which start plainly",
                     workers - warm, workers);
    }
    s->ran = true;
    s->warm_waited = s->warm.open ? s->standbys.waiting : 0;
}

void mu_agent_warm_running(struct mu_agent_service *s)
{
    mu_warm_used(&s->warm, s->workers[0].warm, mu_env_now(s->env).mono);
    arm(s);
}

void mu_agent_warm_refused(struct mu_agent_service *s, uint32_t local_rank, const char *why)
{
    mu_agent_log(s, "--warm: local rank %u starts plainly: %s", local_rank, why);
}

/* --- life ------------------------------------------------------------------------------------- */

void mu_agent_warm_init(struct mu_agent_service *s)
{
    mu_timer_init(&s->warm_timer, on_timer);
    mu_buf_init(&s->warm_env, WHOLE_ENV_MAX);
}

void mu_agent_warm_start(struct mu_agent_service *s)
{
    if (s->config.zygote != NULL) {
        mu_warm_init(&s->warm, mu_env_now(s->env).mono);
        act(s);
    }
}

bool mu_agent_warm_end(struct mu_agent_service *s)
{
    mu_warm_stop(&s->warm);
    arm(s);
    if (s->warm.open) {
        mu_env_standbys_close(s->env, &s->standbys);
    }
    return !s->warm.open;
}

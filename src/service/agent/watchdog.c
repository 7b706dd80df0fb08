/* The hang watchdog's samples of our own workers. */
#include "service/agent/watchdog.h"

#include "core/alloc.h"
#include "service/agent/agent_internal.h"

/* A hang time of a minute is sampled every three seconds: what matters is the sum of many. */
#define INTERVALS       20
#define INTERVAL_MIN_MS UINT64_C(250)
#define INTERVAL_MAX_MS UINT64_C(5000)
#define QUIET_PARTS     4 /* stacks are looked at four times in a hang time */

static uint64_t interval_ms(uint64_t hang_ms)
{
    uint64_t ms = hang_ms / INTERVALS;

    return ms < INTERVAL_MIN_MS ? INTERVAL_MIN_MS : ms > INTERVAL_MAX_MS ? INTERVAL_MAX_MS : ms;
}

uint64_t mu_agent_watchdog_part_ns(const struct mu_agent_watchdog *d, uint64_t parts)
{
    uint64_t ns = d->hang_ms * MU_NS_PER_MS / parts;
    uint64_t least = interval_ms(d->hang_ms) * MU_NS_PER_MS;

    return ns < least ? least : ns;
}

static void arm(struct mu_agent_service *s)
{
    mu_env_timer_arm(s->env, &s->watchdog.timer,
                     mu_mono_add_ms(mu_env_now(s->env).mono, interval_ms(s->watchdog.hang_ms)));
}

/* --- what our workers come to ----------------------------------------------------------------- */

/* Whether a worker is no sign that the run moves. */
static bool is_still(const struct mu_pulse *p, uint64_t hang_ms)
{
    switch (p->state) {
    case MU_PULSE_FRESH:
    case MU_PULSE_TRACED:
        return false;
    case MU_PULSE_ENDED:
        return true;
    case MU_PULSE_STOPPED:
        return p->still_ms >= hang_ms;
    case MU_PULSE_BUSY:
    case MU_PULSE_WAITING:
    case MU_PULSE_SILENT:
        break;
    }
    return p->stance == MU_STANCE_REQUESTS ||
           (p->stance != MU_STANCE_PERSON && (p->still_ms >= hang_ms || p->fixed_ms >= hang_ms));
}

static bool are_still(struct mu_agent_service *s)
{
    struct mu_agent_watchdog *d = &s->watchdog;
    mu_mono_t now = mu_env_now(s->env).mono;
    bool alive = false;
    bool still = true;

    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        struct mu_pulse p = mu_watchdog_pulse(&d->machine, i);

        alive |= p.state != MU_PULSE_ENDED;
        still &= is_still(&p, d->hang_ms);
    }
    if (alive) {
        d->moved_at = now;
    }
    return still && (alive || mu_mono_since(d->moved_at, now) >= d->hang_ms * MU_NS_PER_MS);
}

/* --- samples ---------------------------------------------------------------------------------- */

/* What the agent knows itself. */
static void take_samples(struct mu_agent_service *s)
{
    struct mu_agent_watchdog *d = &s->watchdog;

    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        const struct mu_agent_worker *w = &s->workers[i];

        d->samples[i] = d->sampler.workers[i].sample;
        d->samples[i].output_bytes = w->output_bytes;
        d->samples[i].marks = w->mark_count;
        d->samples[i].step = w->has_step ? w->step : 0;
        d->samples[i].ended |= w->end.exited;
    }
    mu_watchdog_sample(&d->machine, mu_env_now(s->env).mono, &d->sampler.node, d->samples);
    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        if (mu_watchdog_pulse(&d->machine, i).place == 0) {
            mu_buf_reset(&d->sampler.workers[i].report); /* it has gone on since */
        }
    }
}

static void on_run(struct mu_work *work)
{
    mu_stacks_sampler_run(
        &MU_CONTAINER_OF(work, struct mu_agent_service, watchdog.work)->watchdog.sampler);
}

static void on_done(struct mu_work *work)
{
    struct mu_agent_service *s = MU_CONTAINER_OF(work, struct mu_agent_service, watchdog.work);
    struct mu_agent_watchdog *d = &s->watchdog;

    d->busy = false;
    if (d->begin_due) {
        mu_agent_watchdog_begin(s);
    } else if (d->sampling) {
        take_samples(s);
        d->still = are_still(s);
        arm(s);
        mu_agent_hang_turn(s);
    }
    mu_agent_settle(s);
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_agent_service *s = MU_CONTAINER_OF(timer, struct mu_agent_service, watchdog.timer);
    struct mu_agent_watchdog *d = &s->watchdog;

    if (d->busy || !d->sampling) {
        return;
    }
    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        const struct mu_agent_worker *w = &s->workers[i];

        d->sampler.workers[i].pid = w->end.exited ? 0 : w->end.pid;
        d->sampler.workers[i].wants_place = mu_watchdog_wants_place(&d->machine, i);
    }
    d->work = (struct mu_work){.run = on_run, .done = on_done};
    d->busy = mu_env_work(s->env, &d->work) == 0;
    if (!d->busy) {
        arm(s);
    }
}

/* --- life ------------------------------------------------------------------------------------- */

static int start_machine(struct mu_agent_service *s)
{
    struct mu_agent_watchdog *d = &s->watchdog;
    struct mu_watchdog_config config;

    mu_watchdog_fini(&d->machine);
    mu_watchdog_defaults(&config);
    config.workers = s->config.policy.workers;
    config.interval_ns = interval_ms(d->hang_ms) * MU_NS_PER_MS;
    config.quiet_ns = mu_agent_watchdog_part_ns(d, QUIET_PARTS);
    d->sampler.busy_ns = config.interval_ns / 1000 * config.busy_permille;
    return mu_watchdog_init(&d->machine, &config);
}

void mu_agent_watchdog_init(struct mu_agent_service *s)
{
    struct mu_agent_watchdog *d = &s->watchdog;
    const struct mu_peek *peek = mu_env_peek(s->env);
    uint32_t workers = s->config.policy.workers;

    mu_timer_init(&d->timer, on_timer);
    mu_buf_init(&d->tell_text, MU_HANG_BYTES_MAX);
    d->hang_ms = s->config.hang_ms;
    if (d->hang_ms == 0 || peek == NULL) {
        return;
    }
    d->samples = mu_calloc(workers, sizeof(*d->samples));
    d->on = d->samples != NULL && mu_stacks_sampler_init(&d->sampler, peek, workers) == 0;
}

/* A worker's report says whose it is. */
static void name_workers(struct mu_agent_service *s)
{
    const char *node = s->config.host != NULL ? s->config.host : s->rdzv->node;

    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        struct mu_stacks_sampled *w = &s->watchdog.sampler.workers[i];

        mu_watchdog_start(&s->watchdog.machine, i, s->attempt.ranks.base + i);
        w->head = (struct mu_stacks_report){.node = mu_span_str(node),
                                            .rank = s->attempt.ranks.base + i,
                                            .local_rank = i,
                                            .round = s->attempt.round};
    }
}

void mu_agent_watchdog_begin(struct mu_agent_service *s)
{
    struct mu_agent_watchdog *d = &s->watchdog;

    if (!d->on) {
        return;
    }
    d->sampling = false;
    d->begin_due = d->busy;
    if (d->begin_due || s->generation == 0) {
        d->begin_due = d->busy;
        return;
    }
    mu_stacks_sampler_reset(&d->sampler);
    if (start_machine(s) != 0) {
        return;
    }
    name_workers(s);
    d->sampling = true;
    d->still = false;
    d->moved_at = mu_env_now(s->env).mono;
    mu_agent_hang_reset(s);
    arm(s);
}

void mu_agent_watchdog_stop(struct mu_agent_service *s)
{
    s->watchdog.sampling = false;
    s->watchdog.begin_due = false;
    mu_env_timer_arm(s->env, &s->watchdog.timer, MU_MONO_NEVER);
}

bool mu_agent_watchdog_idle(struct mu_agent_service *s)
{
    mu_agent_watchdog_stop(s);
    return !s->watchdog.busy;
}

void mu_agent_watchdog_fini(struct mu_agent_service *s)
{
    struct mu_agent_watchdog *d = &s->watchdog;

    mu_env_timer_arm(s->env, &d->timer, MU_MONO_NEVER);
    mu_agent_hang_reset(s);
    mu_watchdog_fini(&d->machine);
    if (d->on) {
        mu_stacks_sampler_fini(&d->sampler);
    }
    mu_buf_fini(&d->tell_text);
    mu_free(d->samples);
    mu_free(d->pulses);
    mu_free(d->missing);
}

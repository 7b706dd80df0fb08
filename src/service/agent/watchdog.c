/* The hang watchdog's samples of our own workers. */
#include "service/agent/watchdog.h"

#include "core/alloc.h"
#include "service/agent/agent_internal.h"

/* A hang time of a minute is sampled every three seconds: what matters is the sum of many. */
#define INTERVALS       20
#define INTERVAL_MIN_MS UINT64_C(250)
#define INTERVAL_MAX_MS UINT64_C(5000)
#define QUIET_PARTS     4              /* stacks are looked at four times in a hang time */
#define LEND_TIMES      5              /* others' traffic hides a hang for so many hang times */
#define LATE_MS         UINT64_C(2000) /* beyond an interval: then a sample does not come */

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

static void arm(struct mu_agent_service *s, uint64_t more_ms)
{
    mu_env_timer_arm(
        s->env, &s->watchdog.timer,
        mu_mono_add_ms(mu_env_now(s->env).mono, interval_ms(s->watchdog.hang_ms) + more_ms));
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
static void take_samples(struct mu_agent_service *s, const struct mu_stacks_sampler *sampler)
{
    struct mu_agent_watchdog *d = &s->watchdog;

    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        const struct mu_agent_worker *w = &s->workers[i];

        d->samples[i] = sampler->workers[i].sample;
        d->samples[i].output_bytes = w->output_bytes;
        d->samples[i].marks = w->mark_count;
        d->samples[i].step = w->has_step ? w->step : 0;
        d->samples[i].ended |= w->end.exited;
    }
    if (s->round != NULL && s->round->bootstrap != NULL) {
        /* A worker of any node: which one is not known, and one that moves is enough. */
        d->samples[0].store_ops = mu_rdzv_bootstrap_changes(s->round->bootstrap);
    }
    if (mu_mono_before(mu_env_now(s->env).mono, d->disturbed_until)) {
        mu_watchdog_disturb(&d->machine);
    }
    mu_watchdog_sample(&d->machine, mu_env_now(s->env).mono, &sampler->node, d->samples);
}

static bool is_busy(const struct mu_agent_watchdog *d)
{
    return d->samplings[0].busy || d->samplings[1].busy;
}

static void on_run(struct mu_work *work)
{
    mu_stacks_sampler_run(&MU_CONTAINER_OF(work, struct mu_agent_sampler, work)->sampler);
}

static void on_done(struct mu_work *work)
{
    struct mu_agent_sampler *g = MU_CONTAINER_OF(work, struct mu_agent_sampler, work);
    struct mu_agent_service *s = g->s;
    struct mu_agent_watchdog *d = &s->watchdog;

    g->busy = false;
    if (d->begin_due) {
        mu_agent_watchdog_begin(s);
    } else if (d->sampling && g == d->last) {
        take_samples(s, &g->sampler);
        d->still = are_still(s);
        arm(s, 0);
        mu_agent_hang_turn(s);
    }
    mu_agent_settle(s);
}

uint32_t mu_agent_watchdog_stuck(struct mu_agent_service *s)
{
    const struct mu_agent_watchdog *d = &s->watchdog;

    return d->samplings[0].busy && d->last == &d->samplings[1] ? d->samplings[0].sampler.looking
                                                               : MU_STACKS_NOBODY;
}

bool mu_agent_watchdog_blind(struct mu_agent_service *s)
{
    return s->watchdog.samplings[0].busy && s->watchdog.samplings[1].busy;
}

/* Begins a sample; if an earlier one has not come back, with the other sampler. That one looks at
 * stacks only if nobody else does: all of them together must not take up the pool. */
static void begin_sample(struct mu_agent_service *s, struct mu_agent_sampler *g)
{
    struct mu_agent_watchdog *d = &s->watchdog;
    bool second = g == &d->samplings[1];
    uint32_t stuck;

    d->last = g;
    stuck = mu_agent_watchdog_stuck(s);
    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        const struct mu_agent_worker *w = &s->workers[i];

        g->sampler.workers[i].pid = w->end.exited ? 0 : w->end.pid;
        g->sampler.workers[i].wants_place =
            mu_watchdog_wants_place(&d->machine, i) && i != stuck && !(second && s->look != NULL);
    }
    g->work = (struct mu_work){.run = on_run, .done = on_done};
    g->busy = mu_env_work(s->env, &g->work) == 0;
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_agent_service *s = MU_CONTAINER_OF(timer, struct mu_agent_service, watchdog.timer);
    struct mu_agent_watchdog *d = &s->watchdog;
    struct mu_agent_sampler *g = &d->samplings[d->samplings[0].busy ? 1 : 0];

    if (!d->sampling) {
        return;
    }
    if (!g->busy) {
        begin_sample(s, g);
    }
    arm(s, g->busy ? LATE_MS : 0);
}

void mu_agent_watchdog_disturb(struct mu_agent_service *s, uint64_t ms)
{
    struct mu_agent_watchdog *d = &s->watchdog;
    mu_mono_t until = mu_mono_add_ms(mu_env_now(s->env).mono, ms + 2 * interval_ms(d->hang_ms));

    if (mu_mono_before(d->disturbed_until, until)) {
        d->disturbed_until = until;
    }
}

void mu_agent_watchdog_calm(struct mu_agent_service *s)
{
    s->watchdog.disturbed_until = mu_env_now(s->env).mono;
}

/* --- life ------------------------------------------------------------------------------------- */

static int start_machine(struct mu_agent_service *s)
{
    struct mu_agent_watchdog *d = &s->watchdog;
    struct mu_watchdog_config config;

    mu_watchdog_fini(&d->machine);
    mu_watchdog_defaults(&config);
    config.workers = s->config.policy.workers;
    config.marked = s->config.marked;
    config.interval_ns = interval_ms(d->hang_ms) * MU_NS_PER_MS;
    config.quiet_ns = mu_agent_watchdog_part_ns(d, QUIET_PARTS);
    config.hang_ns = d->hang_ms * MU_NS_PER_MS;
    config.lend_ns = LEND_TIMES * d->hang_ms * MU_NS_PER_MS;
    for (int i = 0; i < 2; i++) {
        d->samplings[i].sampler.busy_ns = config.interval_ns / 1000 * config.busy_permille;
    }
    return mu_watchdog_init(&d->machine, &config);
}

void mu_agent_watchdog_init(struct mu_agent_service *s)
{
    struct mu_agent_watchdog *d = &s->watchdog;
    const struct mu_peek *peek = mu_env_peek(s->env);
    uint32_t workers = s->config.policy.workers;

    mu_timer_init(&d->timer, on_timer);
    mu_agent_hang_init(s);
    mu_buf_init(&d->tell_text, MU_HANG_BYTES_MAX);
    d->hang_ms = s->config.hang_ms;
    if (d->hang_ms == 0 || peek == NULL) {
        return;
    }
    d->samples = mu_calloc(workers, sizeof(*d->samples));
    d->on = d->samples != NULL;
    for (int i = 0; i < 2; i++) {
        d->samplings[i].s = s;
        d->on = mu_stacks_sampler_init(&d->samplings[i].sampler, peek, workers) == 0 && d->on;
    }
}

void mu_agent_watchdog_begin(struct mu_agent_service *s)
{
    struct mu_agent_watchdog *d = &s->watchdog;

    if (!d->on) {
        return;
    }
    d->sampling = false;
    d->begin_due = is_busy(d);
    if (d->begin_due || s->generation == 0) {
        return;
    }
    mu_stacks_sampler_reset(&d->samplings[0].sampler);
    mu_stacks_sampler_reset(&d->samplings[1].sampler);
    if (start_machine(s) != 0) {
        return;
    }
    for (uint32_t i = 0; i < s->config.policy.workers; i++) {
        mu_watchdog_start(&d->machine, i, s->attempt.ranks.base + i);
    }
    d->sampling = true;
    d->still = false;
    d->moved_at = mu_env_now(s->env).mono;
    mu_agent_hang_reset(s);
    arm(s, 0);
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
    return !is_busy(&s->watchdog);
}

void mu_agent_watchdog_fini(struct mu_agent_service *s)
{
    struct mu_agent_watchdog *d = &s->watchdog;

    mu_env_timer_arm(s->env, &d->timer, MU_MONO_NEVER);
    mu_agent_hang_reset(s);
    mu_watchdog_fini(&d->machine);
    mu_stacks_sampler_fini(&d->samplings[0].sampler);
    mu_stacks_sampler_fini(&d->samplings[1].sampler);
    mu_buf_fini(&d->tell_text);
    mu_free(d->samples);
    mu_free(d->pulses);
    mu_free(d->missing);
    mu_free(d->nodes);
}

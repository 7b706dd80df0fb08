#include "proto/stacks/watchdog.h"

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"

#define LATE_INTERVALS 2

void mu_watchdog_defaults(struct mu_watchdog_config *config)
{
    *config = (struct mu_watchdog_config){.interval_ns = MU_NS_PER_S,
                                          .quiet_ns = 5 * MU_NS_PER_S,
                                          .busy_permille = 50,
                                          .io_floor = 4096,
                                          .net_floor = 256 << 10,
                                          .hang_ns = 60 * MU_NS_PER_S,
                                          .lend_ns = 300 * MU_NS_PER_S,
                                          .workers = 1};
}

int mu_watchdog_init(struct mu_watchdog *w, const struct mu_watchdog_config *config)
{
    *w = (struct mu_watchdog){.config = *config};
    if (config->workers == 0 || config->workers > MU_WATCHDOG_WORKERS_MAX ||
        config->interval_ns == 0 || config->interval_ns > UINT64_MAX / LATE_INTERVALS) {
        return MUSTER_EINVAL;
    }
    w->workers = mu_calloc(config->workers, sizeof(*w->workers));
    if (w->workers == NULL) {
        return MUSTER_ENOMEM;
    }
    for (uint32_t i = 0; i < config->workers; i++) {
        w->workers[i].state = MU_PULSE_ENDED;
    }
    return 0;
}

void mu_watchdog_fini(struct mu_watchdog *w)
{
    mu_free(w->workers);
    w->workers = NULL;
}

void mu_watchdog_start(struct mu_watchdog *w, uint32_t worker, uint32_t rank)
{
    MU_ASSERT(worker < w->config.workers);
    w->workers[worker] = (struct mu_watchdog_worker){.rank = rank, .state = MU_PULSE_FRESH};
}

/* Whether a number has grown by so much a second, or shrunk: then it is another process's. */
static bool has_moved(uint64_t last, uint64_t now, uint64_t per_second, uint64_t ns)
{
    if (now <= last) {
        return now < last;
    }
    return (double)(now - last) * (double)MU_NS_PER_S >= (double)per_second * (double)ns;
}

/* What counts of the time since the last sample. If this one is late, we were paused, and perhaps
 * the workers were as well. */
static uint64_t count_time(struct mu_watchdog *w, uint64_t ns)
{
    uint64_t most = LATE_INTERVALS * w->config.interval_ns;
    bool was_late = w->late;

    w->late = ns > most;
    if (!w->late) {
        return ns;
    }
    return was_late ? most : 0;
}

struct step {
    const struct mu_watchdog_node *node;
    uint64_t ns;      /* since the last sample */
    uint64_t counted; /* of them */
};

static bool has_burnt(const struct mu_watchdog *w, uint64_t last, uint64_t now,
                      const struct step *t)
{
    return has_moved(last, now, w->config.busy_permille * (MU_NS_PER_S / UINT64_C(1000)), t->ns);
}

/* What the worker shows by itself, but for CPU time, which a wait can burn. */
static bool moves_itself(const struct mu_watchdog *w, const struct mu_watchdog_worker *k,
                         const struct mu_watchdog_sample *s, const struct step *t)
{
    if (s->store_ops != k->last.store_ops || s->marks != k->last.marks) {
        return true;
    }
    if ((!w->config.marked || s->marks == 0) && s->output_bytes != k->last.output_bytes) {
        return true; /* before its first mark, it may be one whose marks are never found */
    }
    if (s->memory_bytes > k->memory_high &&
        has_moved(k->memory_high, s->memory_bytes, w->config.net_floor, t->ns)) {
        return true;
    }
    if (has_moved(k->last.io_bytes, s->io_bytes, w->config.io_floor, t->ns)) {
        return true;
    }
    if (k->stance != MU_STANCE_OTHERS && has_burnt(w, k->last.family_ns, s->family_ns, t)) {
        return true;
    }
    return s->on_disk && has_moved(w->node.disk_bytes, t->node->disk_bytes, 1, t->ns);
}

/* Whether bytes on the network may be this worker's. */
static bool may_receive(const struct mu_watchdog *w, const struct mu_watchdog_worker *k,
                        const struct mu_watchdog_sample *s, const struct step *t)
{
    return !s->stopped && k->stance != MU_STANCE_OTHERS && k->still_ns < w->config.hang_ns &&
           k->lent_ns < w->config.lend_ns &&
           has_moved(w->node.net_bytes, t->node->net_bytes, w->config.net_floor, t->ns);
}

/* Takes what a look at the stack has shown. Returns whether that is another place than before: then
 * the thread has gone on, with however little CPU time. */
static bool take_place(struct mu_watchdog_worker *k, const struct mu_watchdog_sample *s)
{
    bool other = s->place != 0 && k->place != 0 && s->place != k->place;

    if (s->place != 0) {
        k->place = s->place;
        k->stance = s->stance;
    }
    return other;
}

static enum mu_pulse_state state_of(const struct mu_watchdog *w, const struct mu_watchdog_worker *k,
                                    const struct mu_watchdog_sample *s)
{
    if (s->traced) {
        return MU_PULSE_TRACED;
    }
    if (s->stopped) {
        return MU_PULSE_STOPPED;
    }
    if (k->still_ns == 0) {
        return MU_PULSE_BUSY;
    }
    return k->still_ns < w->config.quiet_ns ? MU_PULSE_WAITING : MU_PULSE_SILENT;
}

static void sample_worker(struct mu_watchdog *w, struct mu_watchdog_worker *k,
                          const struct mu_watchdog_sample *s, const struct step *t)
{
    bool itself = k->sampled && moves_itself(w, k, s, t);
    bool receives = k->sampled && !itself && may_receive(w, k, s, t);
    bool outside = itself || receives;
    bool first = !k->sampled;
    bool other_place;
    bool computes;
    bool blind;

    if (s->ended || k->state == MU_PULSE_ENDED) {
        k->state = MU_PULSE_ENDED;
        return;
    }
    if (s->unseen) {
        *k = (struct mu_watchdog_worker){.rank = k->rank, .state = MU_PULSE_FRESH};
        return;
    }
    k->burns = !first && (has_burnt(w, k->last.cpu_ns, s->cpu_ns, t) ||
                          has_burnt(w, k->last.family_ns, s->family_ns, t));
    other_place = take_place(k, s);
    k->unseen_ns = s->place != 0 ? 0 : k->unseen_ns + t->counted;
    k->last = *s;
    k->memory_high = s->memory_bytes > k->memory_high ? s->memory_bytes : k->memory_high;
    k->sampled = true;
    if (first) {
        return;
    }
    /* A look that fails says nothing of a worker that stood still at the one before. */
    blind = s->place == 0 && (k->still_ns == 0 || k->unseen_ns >= w->config.quiet_ns);
    computes = k->burns && (k->stance != MU_STANCE_OTHERS || blind);
    if (outside && s->place == 0) {
        /* It has gone on, so where it was is no longer where it is. */
        k->place = 0;
        k->stance = MU_STANCE_UNKNOWN;
    }
    if (itself || other_place || s->traced || computes) {
        k->lent_ns = 0;
    } else if (receives) {
        k->lent_ns += t->counted;
    }
    if (outside || other_place || s->traced || computes) {
        k->still_ns = 0;
    } else {
        k->still_ns += t->counted;
    }
    if (outside || other_place || s->traced || k->place == 0 ||
        (k->burns && k->unseen_ns >= w->config.quiet_ns)) {
        k->fixed_ns = 0;
    } else {
        k->fixed_ns += t->counted;
    }
    k->state = state_of(w, k, s);
}

void mu_watchdog_disturb(struct mu_watchdog *w)
{
    w->disturbed = true;
}

/* All that is believed of such a sample is who has ended. */
static void begin_anew(struct mu_watchdog_worker *k, const struct mu_watchdog_sample *s)
{
    if (s->ended) {
        k->state = MU_PULSE_ENDED;
    } else if (k->sampled) {
        k->last = *s;
        k->memory_high = s->memory_bytes > k->memory_high ? s->memory_bytes : k->memory_high;
    }
}

void mu_watchdog_sample(struct mu_watchdog *w, mu_mono_t now, const struct mu_watchdog_node *node,
                        const struct mu_watchdog_sample *samples)
{
    uint64_t ns = w->sampled ? mu_mono_since(w->sampled_at, now) : 0;
    struct step t = {.node = node, .ns = ns, .counted = count_time(w, ns)};

    for (uint32_t i = 0; i < w->config.workers; i++) {
        if (w->disturbed) {
            begin_anew(&w->workers[i], &samples[i]);
        } else {
            sample_worker(w, &w->workers[i], &samples[i], &t);
        }
    }
    w->disturbed = false;
    w->node = *node;
    w->sampled_at = now;
    w->sampled = true;
}

bool mu_watchdog_wants_place(const struct mu_watchdog *w, uint32_t worker)
{
    const struct mu_watchdog_worker *k = &w->workers[worker];

    switch (k->state) {
    case MU_PULSE_BUSY:
    case MU_PULSE_STOPPED:
        return k->unseen_ns + w->config.interval_ns >= w->config.quiet_ns;
    case MU_PULSE_WAITING:
    case MU_PULSE_SILENT:
        return k->burns || k->place == 0 ||
               k->unseen_ns + w->config.interval_ns >= w->config.quiet_ns;
    case MU_PULSE_FRESH:
    case MU_PULSE_TRACED:
    case MU_PULSE_ENDED:
        break;
    }
    return false;
}

struct mu_pulse mu_watchdog_pulse(const struct mu_watchdog *w, uint32_t worker)
{
    const struct mu_watchdog_worker *k = &w->workers[worker];

    return (struct mu_pulse){.rank = k->rank,
                             .state = k->state,
                             .stance = k->stance,
                             .still_ms = k->still_ns / MU_NS_PER_MS,
                             .fixed_ms = k->fixed_ns / MU_NS_PER_MS,
                             .place = k->place,
                             .step = k->last.step};
}

#include "proto/agent/warm.h"

void mu_warm_init(struct mu_warm *w, mu_mono_t now)
{
    *w = (struct mu_warm){.wanted = true, .at = now};
}

enum mu_warm_action mu_warm_next(struct mu_warm *w, mu_mono_t now)
{
    bool was_open = w->open;

    if (!w->wanted || !mu_mono_reached(w->at, now)) {
        return MU_WARM_NOTHING;
    }
    w->at = MU_MONO_NEVER;
    w->open = true;
    return was_open ? MU_WARM_FILL : MU_WARM_OPEN;
}

mu_mono_t mu_warm_deadline(const struct mu_warm *w)
{
    return w->wanted ? w->at : MU_MONO_NEVER;
}

/* Sooner than it would have come otherwise. */
static void act_in(struct mu_warm *w, mu_mono_t now, uint64_t ms)
{
    mu_mono_t at = mu_mono_add_ms(now, ms);

    if (mu_mono_before(at, w->at)) {
        w->at = at;
    }
}

void mu_warm_used(struct mu_warm *w, bool warm, mu_mono_t now)
{
    if (warm) {
        w->deaths = 0;
    }
    if (w->open) {
        act_in(w, now, MU_WARM_REST_MS);
    }
}

void mu_warm_lost(struct mu_warm *w, mu_mono_t now)
{
    if (w->open) {
        act_in(w, now, MU_WARM_RETRY_MS);
    }
}

bool mu_warm_ended(struct mu_warm *w, bool refused, mu_mono_t now, uint64_t *ret_ms)
{
    uint64_t ms = MU_WARM_RETRY_MS;

    for (unsigned i = 0; i < w->deaths; i++) {
        ms *= 4;
    }
    w->open = false;
    w->deaths += 1;
    if (refused || w->deaths >= MU_WARM_DEATHS_MAX) {
        w->wanted = false;
    }
    w->at = mu_mono_add_ms(now, ms);
    *ret_ms = ms;
    return w->wanted;
}

void mu_warm_stop(struct mu_warm *w)
{
    w->wanted = false;
}

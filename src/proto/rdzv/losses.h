/*
 * How often a run may lose nodes. Losing a node is no failure of the run; but a node that dies as
 * soon as it has started, and is started again, would keep the run busy for ever. So losses are
 * counted against a bound, `--max-losses N/TIME`:
 *
 *     mu_mono_t until = {0};
 *     if (!mu_losses_add(&until, &bound, now)) { one too many: the run ends }
 *
 * N losses may come at once. Each is forgotten in its turn, one every SECONDS/N, so that the whole
 * state is one time: when all of them are forgotten.
 */
#ifndef MU_RDZV_LOSSES_H
#define MU_RDZV_LOSSES_H

#include "core/time.h"

struct mu_losses {
    uint32_t max;
    uint64_t window_ms; /* 0: no bound */
};

/* 100 in an hour. A fleet of thousands of nodes loses a few in an hour, and a rack that goes at
 * once ends one round or two; an agent that dies whenever its workers begin is lost every few
 * seconds. */
#define MU_LOSSES_DEFAULT ((struct mu_losses){.max = 100, .window_ms = 3600000})

/** A node was lost. Returns whether that is within the bound. */
static inline bool mu_losses_add(mu_mono_t *until, const struct mu_losses *bound, mu_mono_t now)
{
    mu_mono_t from = mu_mono_before(*until, now) ? now : *until;
    uint64_t each_ns;

    if (bound->window_ms == 0) {
        return true;
    }
    each_ns =
        bound->max == 0 ? 0 : mu_mono_add_ms((mu_mono_t){0}, bound->window_ms).ns / bound->max;
    if (bound->max == 0 || mu_mono_since(now, from) > each_ns * (bound->max - 1)) {
        return false;
    }
    *until = mu_mono_add_ns(from, each_ns);
    return true;
}

#endif

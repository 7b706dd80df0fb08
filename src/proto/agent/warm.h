/*
 * Whether and when an agent keeps standbys (core/child.h) for its workers. Pure: facts in, times
 * and decisions out.
 *
 *     mu_warm_init(&warm, now)
 *     mu_warm_next(&warm, now)      what to do now; asked again at mu_warm_deadline()
 *     mu_warm_ended(&warm, ...)     the zygote ended by itself
 *
 * A zygote that refuses, because an import fails or for another reason that it gives, is not asked
 * again. One that dies is started again after a second, then ever later, and not after it has died
 * MU_WARM_DEATHS_MAX times without having been of use. Whatever becomes of it, workers start.
 */
#ifndef MU_WARM_H
#define MU_WARM_H

#include <stdbool.h>

#include "core/time.h"

#define MU_WARM_DEATHS_MAX 5
/** From the start of workers to that of the next standbys: what they do first is done then. */
#define MU_WARM_REST_MS 500
/** Until a zygote or a standby that died is replaced, for the first time; then four times that. */
#define MU_WARM_RETRY_MS 1000

enum mu_warm_action {
    MU_WARM_NOTHING = 0,
    MU_WARM_OPEN, /* start a zygote, and ask it for standbys; mu_warm_opened() follows */
    MU_WARM_FILL, /* ask for standbys */
};

struct mu_warm {
    bool wanted; /* false: never, or not any more */
    bool open;   /* there is a zygote */
    unsigned deaths;
    mu_mono_t at; /* of the next action */
};

void mu_warm_init(struct mu_warm *w, mu_mono_t now);
/** The action is carried out by the caller, and not named again. */
enum mu_warm_action mu_warm_next(struct mu_warm *w, mu_mono_t now);
mu_mono_t mu_warm_deadline(const struct mu_warm *w);
/** Workers that were standbys run, or (false) others: the places of standbys are empty. */
void mu_warm_used(struct mu_warm *w, bool warm, mu_mono_t now);
/** A standby died while it waited. */
void mu_warm_lost(struct mu_warm *w, mu_mono_t now);
/** The zygote ended, or could not be started. Returns whether it will be tried again, and when. */
bool mu_warm_ended(struct mu_warm *w, bool refused, mu_mono_t now, uint64_t *ret_ms);
/** The agent's work is done. */
void mu_warm_stop(struct mu_warm *w);

#endif

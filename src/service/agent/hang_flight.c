/* What the flight recorders say of a run that hangs, or may; see watchdog.h. */
#include <string.h>

#include "core/alloc.h"
#include "service/agent/agent_internal.h"

#define ONCE_MORE_PARTS 2           /* a suspicion is looked at again after half a hang time, */
#define SUSPECT_TIMES   UINT64_C(5) /* and a suspect without one after five of them */

static bool are_ranks(const struct mu_agent_watchdog *d, const uint32_t *ranks, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (ranks[i] >= d->world) {
            return false;
        }
    }
    return true;
}

/* If places do not tell who is missing, because all ranks are in the same one or there are as many
 * places as ranks, the flight recorders may. */
void mu_agent_hang_name(struct mu_agent_watchdog *d)
{
    struct mu_watchdog_verdict *v = &d->verdict;
    struct mu_flight_compare c;

    if (v->missing_count != 0 && !v->split) {
        return;
    }
    mu_flight_compare_init(&c);
    if (d->flights.count != 0 && mu_flights_compare(&d->flights, &c) == 0 && c.finding_count != 0 &&
        c.findings[0].fault <= MU_FLIGHT_OTHER_TYPES && c.findings[0].count < d->world &&
        are_ranks(d, c.ranks + c.findings[0].first, c.findings[0].count)) {
        v->split = false;
        v->missing_count = c.findings[0].count;
        for (uint32_t i = 0; i < v->missing_count; i++) {
            d->missing[i] = c.ranks[c.findings[0].first + i];
        }
    }
    mu_flight_compare_fini(&c);
}

/* Dumps are not taken at one moment, so what they say counts only if they say it twice. */
bool mu_agent_hang_confirm(struct mu_agent_service *s)
{
    struct mu_agent_watchdog *d = &s->watchdog;
    uint64_t pause_ms = SUSPECT_TIMES * d->hang_ms;
    struct mu_flight_compare c;
    char *said = NULL;
    bool same;

    mu_flight_compare_init(&c);
    if (d->flights.count != 0 && mu_flights_compare(&d->flights, &c) == 0 &&
        mu_flight_is_certain(&c, d->world)) {
        said = mu_strndup(c.findings[0].text, strlen(c.findings[0].text));
        pause_ms = d->hang_ms / ONCE_MORE_PARTS;
    }
    same = said != NULL && d->suspicion != NULL && strcmp(said, d->suspicion) == 0;
    mu_flight_compare_fini(&c);
    mu_free(d->suspicion);
    d->suspicion = said;
    d->suspect_due = mu_mono_add_ms(mu_env_now(s->env).mono, pause_ms);
    if (same) {
        mu_watchdog_run_confirm(&d->run, d->verdict.still_ms);
    }
    return same;
}

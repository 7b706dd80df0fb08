/*
 * Steps of training, as workers report them on their channels: how long each took. Now and then a
 * node leaves its last step in the round's store, where a server of the store finds it for its
 * status page; nothing depends on that, so a write that fails is not repeated.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "service/agent/agent_internal.h"

#define TELL_NS (2 * MU_NS_PER_S) /* often enough for people */

static void on_told(struct mu_store_op *op)
{
    struct mu_agent_round *r = MU_CONTAINER_OF(op, struct mu_agent_round, step_op);

    r->step_busy = false;
    if (r->closing) {
        mu_agent_round_settle(r);
    }
}

static void tell(struct mu_agent_round *r, uint64_t step, uint64_t ns)
{
    mu_mono_t now = mu_env_now(r->s->env).mono;
    int key_len;
    int value_len;

    if (r->step_busy || (r->step_told && mu_mono_since(r->step_at, now) < TELL_NS)) {
        return;
    }
    r->step_told = true;
    r->step_at = now;
    r->step_busy = true;
    key_len = snprintf(r->step_name, sizeof(r->step_name), MU_AGENT_STEP_KEY "%" PRIu32, r->rank);
    value_len =
        snprintf(r->step_text, sizeof(r->step_text), "%" PRIu64 " %" PRIu64, step, ns / 1000);
    r->step_key = mu_span(r->step_name, (size_t)key_len);
    r->step_value = mu_span(r->step_text, (size_t)value_len);
    r->step_op = (struct mu_store_op){
        .request = {.verb = MU_STORE_SET,
                    .keys = &r->step_key,
                    .key_count = 1,
                    .values = &r->step_value,
                    .value_count = 1},
        .timeout_ms = r->s->config.verdict_ms,
        .done = on_told,
    };
    mu_store_submit(r->stores.store, &r->step_op);
}

/* Steps that a worker does not report are part of the next one that it does. */
static void take(struct mu_agent_worker *w, uint64_t step)
{
    const struct mu_agent_service_events *events = &w->s->events;
    struct mu_agent_round *r = w->s->round;
    mu_mono_t now = mu_env_now(w->s->env).mono;
    uint64_t ns =
        w->has_step && step > w->step ? mu_mono_since(w->step_at, now) / (step - w->step) : 0;

    w->has_step = true;
    w->step = step;
    w->mark_count++;
    w->step_at = now;
    if (events->step != NULL) {
        events->step(events->context, w->local_rank, step, ns);
    }
    if (ns != 0 && r != NULL && !r->closing && r->store_open &&
        (!r->step_told || r->step_worker == w->local_rank)) {
        r->step_worker = w->local_rank;
        tell(r, step, ns);
    }
}

void mu_agent_step_take(struct mu_agent_worker *w, const char *digits)
{
    uint64_t step = 0;

    for (const char *at = digits; *at != '\0'; at++) {
        if (*at < '0' || *at > '9' || at - digits > 17) {
            return; /* no word of ours */
        }
        step = step * 10 + (uint64_t)(*at - '0');
    }
    if (*digits != '\0') {
        take(w, step);
    }
}

/* Marks without a number are counted. */
void mu_agent_service_mark(struct mu_agent_service *s, uint32_t local_rank, const uint64_t *step)
{
    if (local_rank < s->config.policy.workers) {
        struct mu_agent_worker *w = &s->workers[local_rank];

        take(w, step != NULL ? *step : w->mark_count + 1);
    }
}

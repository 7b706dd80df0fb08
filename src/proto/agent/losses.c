/* What the failure of workers comes to when other nodes may be lost. */
#include "proto/agent/agent_internal.h"

#include <stdio.h>

#include "codec/agent/failure.h"

void mu_agent_say_how_it_ended(struct mu_agent *a, struct mu_agent_update *u, const char *then)
{
    const char *name = mu_signal_name(-a->exit_code);
    char how[48];

    if (name != NULL) {
        (void)snprintf(how, sizeof(how), "was ended by %s", name);
    } else {
        (void)snprintf(how, sizeof(how), "%s %d",
                       a->exit_code < 0 ? "was ended by signal" : "exited with",
                       a->exit_code < 0 ? -a->exit_code : a->exit_code);
    }
    MU_AGENT_SAY(a, u, "rank %u (local rank %u) %s%s", a->base + a->first_rank, a->first_rank, how,
                 then);
}

void mu_agent_doubt(struct mu_agent *a, struct mu_agent_update *u)
{
    char then[100];

    a->doubts = true;
    a->sure_at = mu_mono_add_ms(a->now, a->doubt_ms);
    (void)snprintf(then, sizeof(then),
                   "; no restart is left, unless a node was lost: looking for up to %llu s",
                   (unsigned long long)((a->doubt_ms + 999) / 1000));
    mu_agent_say_how_it_ended(a, u, then);
    u->flags |= MU_AGENT_DO_DOUBT;
    u->round = a->round;
    mu_agent_stop(a, u, a->config.stop_signal);
}

void mu_agent_be_sure(struct mu_agent *a, struct mu_agent_update *u)
{
    a->doubts = false;
    mu_agent_say_how_it_ended(a, u, a->closed ? "; the run is closed" : MU_AGENT_NO_RESTART);
    mu_agent_end(a, u, MU_AGENT_FAILED, 0, MU_AGENT_CLOSING);
}

bool mu_agent_loses_too_many(struct mu_agent *a, const struct mu_agent_event *e,
                             struct mu_agent_update *u)
{
    if (a->restarts_left != MU_AGENT_NOT_KEPT || a->outcome != 0 ||
        mu_losses_add(&a->losses_until, &a->config.losses, a->now)) {
        return false;
    }
    a->doubts = false;
    MU_AGENT_SAY(a, u, "%s%snodes were lost more than %u times within %llu s (--max-losses)",
                 e->text == NULL ? "" : e->text, e->text == NULL ? "" : "; ", a->config.losses.max,
                 (unsigned long long)(a->config.losses.window_ms / 1000));
    mu_agent_end(a, u, MU_AGENT_FAILED, 0, MU_AGENT_CLOSING);
    return true;
}

void mu_agent_forgive(struct mu_agent *a, const struct mu_agent_event *e, struct mu_agent_update *u)
{
    if (a->doubts) {
        a->doubts = false;
        MU_AGENT_SAY(a, u, "%s; this ended the workers, which start again in the next round",
                     e->text != NULL ? e->text : "a node was lost");
    }
}

/* What keeps this node out of the rendezvous: a check that fails, or the run, which excludes it. */
#include "proto/agent/agent_internal.h"

void mu_agent_enter(struct mu_agent *a, struct mu_agent_update *u)
{
    if (a->unchecked) {
        mu_agent_move(a, MU_AGENT_IS_CHECKING);
        u->flags |= MU_AGENT_DO_CHECK;
    } else if (a->in_round) {
        mu_agent_exchange(a, u);
    } else {
        mu_agent_move(a, MU_AGENT_IS_JOINING);
        if (!a->joining) {
            mu_agent_join(a, u);
        }
    }
}

void mu_agent_keep_out(struct mu_agent *a, uint64_t pause_ms)
{
    mu_agent_move(a, MU_AGENT_IS_KEPT_OUT);
    a->deadline = mu_mono_add_ms(a->now, pause_ms);
}

void mu_agent_take_checked(struct mu_agent *a, const struct mu_agent_event *e,
                           struct mu_agent_update *u)
{
    uint64_t pause_ms = a->pause_ms == 0 ? a->config.check_pause_ms : 2 * a->pause_ms;

    if (e->exit_code == 0) {
        if (a->pause_ms != 0) {
            MU_AGENT_SAY(a, u, "the check of this node has passed");
        }
        a->pause_ms = 0;
        a->unchecked = false;
        mu_agent_enter(a, u);
        return;
    }
    a->pause_ms = pause_ms < a->config.check_pause_max_ms ? pause_ms : a->config.check_pause_max_ms;
    MU_AGENT_SAY(a, u, "this node is kept out by its check: %s; the next check is in %llu s",
                 e->text == NULL || e->text[0] == '\0' ? "it says nothing" : e->text,
                 (unsigned long long)(a->pause_ms / 1000));
    mu_agent_leave(a, u);
    mu_agent_keep_out(a, a->pause_ms);
}

void mu_agent_take_excluded(struct mu_agent *a, const struct mu_agent_event *e,
                            struct mu_agent_update *u)
{
    a->excluded = true;
    if (a->excluded_said.ns == MU_MONO_NEVER.ns ||
        mu_mono_reached(mu_mono_add_ms(a->excluded_said, a->config.excluded_say_ms), a->now)) {
        a->excluded_said = a->now;
        MU_AGENT_SAY(a, u, "%s; waiting", e->text != NULL ? e->text : "this node is excluded");
    }
    if (!a->alive) {
        mu_agent_keep_out(a, a->config.excluded_ms);
    } else if (a->state != MU_AGENT_IS_STOPPING) {
        mu_agent_stop(a, u, a->config.stop_signal);
    }
}

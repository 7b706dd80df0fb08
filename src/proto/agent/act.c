#include "core/assert.h"
#include "proto/agent/agent_internal.h"

#define BIT(state) (1u << (state))

/* The states that each state may lead to. */
static const unsigned allowed[] = {
    [MU_AGENT_IS_IDLE] =
        BIT(MU_AGENT_IS_JOINING) | BIT(MU_AGENT_IS_CHECKING) | BIT(MU_AGENT_IS_ENDED),
    [MU_AGENT_IS_JOINING] =
        BIT(MU_AGENT_IS_EXCHANGING) | BIT(MU_AGENT_IS_KEPT_OUT) | BIT(MU_AGENT_IS_ENDED),
    [MU_AGENT_IS_EXCHANGING] = BIT(MU_AGENT_IS_JOINING) | BIT(MU_AGENT_IS_STARTING) |
                               BIT(MU_AGENT_IS_KEPT_OUT) | BIT(MU_AGENT_IS_ENDED),
    [MU_AGENT_IS_STARTING] =
        BIT(MU_AGENT_IS_RUNNING) | BIT(MU_AGENT_IS_STOPPING) | BIT(MU_AGENT_IS_BARRIER),
    [MU_AGENT_IS_RUNNING] =
        BIT(MU_AGENT_IS_SAVING) | BIT(MU_AGENT_IS_STOPPING) | BIT(MU_AGENT_IS_BARRIER),
    [MU_AGENT_IS_SAVING] = BIT(MU_AGENT_IS_STOPPING),
    [MU_AGENT_IS_STOPPING] = BIT(MU_AGENT_IS_JOINING) | BIT(MU_AGENT_IS_EXCHANGING) |
                             BIT(MU_AGENT_IS_DOUBTING) | BIT(MU_AGENT_IS_CHECKING) |
                             BIT(MU_AGENT_IS_KEPT_OUT) | BIT(MU_AGENT_IS_ENDED),
    [MU_AGENT_IS_DOUBTING] = BIT(MU_AGENT_IS_JOINING) | BIT(MU_AGENT_IS_CHECKING) |
                             BIT(MU_AGENT_IS_KEPT_OUT) | BIT(MU_AGENT_IS_ENDED),
    [MU_AGENT_IS_CHECKING] = BIT(MU_AGENT_IS_JOINING) | BIT(MU_AGENT_IS_EXCHANGING) |
                             BIT(MU_AGENT_IS_KEPT_OUT) | BIT(MU_AGENT_IS_ENDED),
    [MU_AGENT_IS_KEPT_OUT] =
        BIT(MU_AGENT_IS_JOINING) | BIT(MU_AGENT_IS_CHECKING) | BIT(MU_AGENT_IS_ENDED),
    [MU_AGENT_IS_BARRIER] = BIT(MU_AGENT_IS_STOPPING) | BIT(MU_AGENT_IS_ENDED),
    [MU_AGENT_IS_ENDED] = 0,
};

void mu_agent_move(struct mu_agent *a, enum mu_agent_state to)
{
    MU_ASSERT((allowed[a->state] & BIT(to)) != 0);
    mu_trace(&a->config.trace, "agent.state", (uint64_t)a->state, (uint64_t)to);
    a->state = to;
    a->deadline = MU_MONO_NEVER;
}

/* --- the rendezvous ------------------------------------------------------------------------- */

void mu_agent_join(struct mu_agent *a, struct mu_agent_update *u)
{
    u->flags |= MU_AGENT_DO_JOIN;
    a->joining = true;
    a->in_round = false;
}

void mu_agent_leave(struct mu_agent *a, struct mu_agent_update *u)
{
    if (!a->joining && !a->in_round) {
        return;
    }
    u->flags |= MU_AGENT_DO_LEAVE;
    a->joining = false;
    a->in_round = false;
}

void mu_agent_close(struct mu_agent *a, struct mu_agent_update *u)
{
    if (!a->closed) {
        u->flags |= MU_AGENT_DO_CLOSE;
        a->closed = true;
    }
}

void mu_agent_exchange(struct mu_agent *a, struct mu_agent_update *u)
{
    mu_agent_move(a, MU_AGENT_IS_EXCHANGING);
    u->flags |= MU_AGENT_DO_EXCHANGE;
    u->round = a->round;
    a->deadline = mu_mono_add_ms(a->now, a->config.exchange_ms);
}

/* --- stopping ------------------------------------------------------------------------------- */

void mu_agent_stop(struct mu_agent *a, struct mu_agent_update *u, int signal)
{
    u->flags |= MU_AGENT_DO_SIGNAL;
    u->generation = a->generation;
    u->signal = signal;
    if (a->state == MU_AGENT_IS_STOPPING) {
        return;
    }
    mu_agent_move(a, MU_AGENT_IS_STOPPING);
    a->stop = MU_AGENT_STOP_SIGNALLED;
    a->deadline = mu_mono_min(mu_mono_add_ms(a->now, a->config.grace_ms), a->by);
    if (mu_mono_reached(a->by, a->now)) {
        mu_agent_kill(a, u);
    }
}

void mu_agent_kill(struct mu_agent *a, struct mu_agent_update *u)
{
    u->flags |= MU_AGENT_DO_KILL;
    u->generation = a->generation;
    a->stop = MU_AGENT_STOP_KILLED;
    a->deadline = mu_mono_add_ms(a->now, a->config.kill_ms);
}

/* --- the end -------------------------------------------------------------------------------- */

static void finish(struct mu_agent *a, struct mu_agent_update *u)
{
    mu_agent_move(a, MU_AGENT_IS_ENDED);
    u->flags |= MU_AGENT_ENDED;
    u->outcome = a->outcome;
    u->code = a->code;
    u->first_rank = a->first_rank;
    u->exit_code = a->exit_code;
    u->text = a->why.text;
}

void mu_agent_proceed(struct mu_agent *a, struct mu_agent_update *u)
{
    a->alive = false;
    if (a->outcome != 0) {
        finish(a, u);
    } else if (a->doubts) {
        mu_agent_move(a, MU_AGENT_IS_DOUBTING);
        a->deadline = a->sure_at;
    } else if (a->excluded) {
        mu_agent_keep_out(a, a->config.excluded_ms);
    } else {
        MU_ASSERT(a->in_round || a->joining);
        mu_agent_enter(a, u);
    }
}

/* Tells the rendezvous before the workers are gone, so that the other nodes need not wait for
 * them. */
static void say_goodbye(struct mu_agent *a, struct mu_agent_update *u,
                        enum mu_agent_goodbye goodbye)
{
    switch (goodbye) {
    case MU_AGENT_QUIETLY:
        break;
    case MU_AGENT_LEAVING:
        mu_agent_leave(a, u);
        break;
    case MU_AGENT_CLOSING:
        mu_agent_leave(a, u);
        mu_agent_close(a, u);
        break;
    }
}

void mu_agent_end(struct mu_agent *a, struct mu_agent_update *u, enum mu_agent_outcome outcome,
                  int code, enum mu_agent_goodbye goodbye)
{
    a->outcome = outcome;
    a->code = code;
    a->why = a->line;
    say_goodbye(a, u, goodbye);
    if (!a->alive || (outcome == MU_AGENT_SUCCEEDED && a->exited == a->config.workers)) {
        /* Processes that successful workers leave behind are not a reason to wait. */
        finish(a, u);
    } else if (a->state != MU_AGENT_IS_SAVING && a->state != MU_AGENT_IS_STOPPING) {
        mu_agent_stop(a, u, a->config.stop_signal);
    }
}

#include "proto/agent/agent.h"

#include <stdio.h>
#include <string.h>

#include "core/assert.h"
#include "proto/agent/agent_internal.h"

/* --- life ----------------------------------------------------------------------------------- */

struct mu_agent_config mu_agent_config_defaults(void)
{
    return (struct mu_agent_config){
        .losses = MU_LOSSES_DEFAULT,
        .grace_ms = 30000,
        .kill_ms = 10000,
        .exchange_ms = 300000,
        .exit_barrier_ms = 300000,
        .straggler_ms = 30000,
        .check_pause_ms = 5000,
        .check_pause_max_ms = 300000,
        .excluded_ms = 2000,
        .excluded_say_ms = 60000,
        .exchange_tries_max = 3,
        .stop_signal = 15,
    };
}

int mu_agent_init(struct mu_agent *a, const struct mu_agent_config *config,
                  struct mu_errmsg *reterr_msg)
{
    if (config->workers == 0 || config->workers > MU_AGENT_WORKERS_MAX) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "there can be 1 to %d workers, not %u",
                      MU_AGENT_WORKERS_MAX, config->workers);
    }
    if (config->stop_signal < 1 || config->stop_signal > MU_AGENT_SIGNAL_MAX) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "no signal has the number %d",
                      config->stop_signal);
    }
    for (size_t i = 0; i <= MU_AGENT_SIGNAL_MAX; i++) {
        if (config->signal_map[i] > MU_AGENT_SIGNAL_MAX) {
            return mu_err(reterr_msg, MUSTER_EINVAL, "no signal has the number %u",
                          config->signal_map[i]);
        }
    }
    *a = (struct mu_agent){
        .config = *config,
        .state = MU_AGENT_IS_IDLE,
        .deadline = MU_MONO_NEVER,
        .by = MU_MONO_NEVER,
        .restarts_left = MU_AGENT_NOT_KEPT,
        .first_rank = MU_AGENT_NO_RANK,
        .unchecked = config->check,
        .excluded_said = MU_MONO_NEVER,
    };
    return 0;
}

mu_mono_t mu_agent_deadline(const struct mu_agent *a)
{
    return a->deadline;
}

uint32_t mu_agent_restarts_left(const struct mu_agent *a)
{
    return a->restarts_left != MU_AGENT_NOT_KEPT ? a->restarts_left
                                                 : a->config.restarts_max - a->restarts_used;
}

bool mu_agent_has_failed(const struct mu_agent *a)
{
    return a->outcome == MU_AGENT_FAILED || a->doubts ||
           (a->outcome == 0 && a->restarts_left == 0 &&
            (a->first_rank != MU_AGENT_NO_RANK || a->others_failed));
}

/* --- small questions and acts --------------------------------------------------------------- */

static bool has_exited(const struct mu_agent *a, uint32_t rank)
{
    return (a->exited_bits[rank / 64] >> (rank % 64) & 1) != 0;
}

static const char *words(const struct mu_agent_event *e)
{
    return e->text != NULL && e->text[0] != '\0' ? e->text : muster_strerror(e->code);
}

/* The round is over or the run has failed: maps the rendezvous' code to an outcome. */
static enum mu_agent_outcome outcome_of(int code)
{
    return code == MUSTER_ERDZV_GRACEFUL   ? MU_AGENT_GRACEFUL
           : code == MUSTER_ERDZV_RESTARTS ? MU_AGENT_FAILED
           : code == MUSTER_ERDZV_LOSSES   ? MU_AGENT_FAILED
                                           : MU_AGENT_ERROR;
}

static void start_workers(struct mu_agent *a, struct mu_agent_update *u)
{
    uint32_t left = mu_agent_restarts_left(a);

    MU_ASSERT(!a->alive);
    mu_agent_move(a, MU_AGENT_IS_STARTING);
    a->generation += 1;
    a->alive = true;
    a->spawned = false;
    a->stop = MU_AGENT_STOP_NO;
    a->by = MU_MONO_NEVER;
    a->exited = 0;
    memset(a->exited_bits, 0, sizeof a->exited_bits);
    a->first_rank = MU_AGENT_NO_RANK;
    a->exit_code = 0;
    a->exchange_failures = 0;
    u->flags |= MU_AGENT_DO_SPAWN;
    u->generation = a->generation;
    u->restart_count = left < a->config.restarts_max ? a->config.restarts_max - left : 0;
}

static void enter_barrier(struct mu_agent *a, struct mu_agent_update *u)
{
    mu_agent_move(a, MU_AGENT_IS_BARRIER);
    a->deadline = mu_mono_add_ms(a->now, a->config.exit_barrier_ms);
    if (a->closed && !a->host) {
        a->deadline = mu_mono_min(a->deadline, mu_mono_add_ms(a->now, a->config.grace_ms));
    }
    u->flags |= MU_AGENT_DO_BARRIER;
    u->round = a->round;
    MU_AGENT_SAY(a, u, "the workers of this node have succeeded; waiting for the other nodes");
}

/* Closes the run unless the others go on in another round. */
static void end_barrier(struct mu_agent *a, struct mu_agent_update *u)
{
    bool goes_on = !a->in_round;

    mu_agent_end(a, u, MU_AGENT_SUCCEEDED, 0, MU_AGENT_QUIETLY);
    if (!goes_on) {
        mu_agent_close(a, u);
    }
}

static void exchange_failed(struct mu_agent *a, struct mu_agent_update *u, int code,
                            const char *why)
{
    a->exchange_failures += 1;
    /* A refused credential stays refused, however often it is tried. */
    if (code == MUSTER_ELOCKED || a->exchange_failures >= a->config.exchange_tries_max) {
        MU_AGENT_SAY(a, u, "the ranks of round %llu could not be exchanged: %s",
                     (unsigned long long)a->round, why);
        mu_agent_end(a, u, MU_AGENT_ERROR, code, MU_AGENT_CLOSING);
        return;
    }
    mu_agent_move(a, MU_AGENT_IS_JOINING);
    mu_agent_join(a, u);
    MU_AGENT_SAY(a, u, "the ranks of round %llu could not be exchanged: %s; joining again",
                 (unsigned long long)a->round, why);
}

/* --- workers -------------------------------------------------------------------------------- */

/* One of our workers has failed in a round that is not over. A backend that keeps the restart
 * budget decides what that costs, and so whether it is the end: it knows which nodes were lost. */
static void fail(struct mu_agent *a, const struct mu_agent_event *e, struct mu_agent_update *u)
{
    uint32_t left = mu_agent_restarts_left(a);
    bool kept = a->restarts_left != MU_AGENT_NOT_KEPT;
    char then[64] = "";

    a->first_rank = e->local_rank;
    a->exit_code = e->exit_code;
    a->unchecked = a->config.check;
    u->flags |= MU_AGENT_DO_REPORT;
    u->generation = a->generation;
    u->first_rank = e->local_rank;
    u->exit_code = e->exit_code;
    if (!a->closed && left == 0 && !kept && a->doubt_ms != 0) {
        mu_agent_doubt(a, u);
        return;
    }
    if (a->closed || (left == 0 && !kept)) {
        mu_agent_say_how_it_ended(a, u, a->closed ? "; the run is closed" : MU_AGENT_NO_RESTART);
        mu_agent_end(a, u, MU_AGENT_FAILED, 0, MU_AGENT_CLOSING);
        return;
    }
    if (!kept) {
        a->restarts_used += 1;
        a->charged = true;
    }
    if (left != 0) {
        (void)snprintf(then, sizeof(then), "; restarting all, %u of %u restarts left", left - 1,
                       a->config.restarts_max);
    }
    mu_agent_say_how_it_ended(a, u, then);
    mu_agent_join(a, u);
    u->failed = true;
    mu_agent_stop(a, u, a->config.stop_signal);
}

/* Some workers have succeeded and others still run: those are named if it stays so. */
static void watch_stragglers(struct mu_agent *a)
{
    if (a->state == MU_AGENT_IS_RUNNING && a->exited != 0) {
        a->deadline = mu_mono_add_ms(a->now, a->config.straggler_ms);
    }
}

static void name_stragglers(struct mu_agent *a, struct mu_agent_update *u)
{
    uint32_t first = 0;

    while (has_exited(a, first)) {
        first++;
    }
    a->deadline = MU_MONO_NEVER;
    MU_AGENT_SAY(a, u,
                 "%u of %u workers still run %llu s after the last one ended; rank %u (local rank "
                 "%u) is %s",
                 a->config.workers - a->exited, a->config.workers,
                 (unsigned long long)(a->config.straggler_ms / 1000), a->base + first, first,
                 a->exited + 1 == a->config.workers ? "the one" : "one of them");
}

static void take_exit(struct mu_agent *a, const struct mu_agent_event *e, struct mu_agent_update *u)
{
    a->exited_bits[e->local_rank / 64] |= UINT64_C(1) << (e->local_rank % 64);
    a->exited += 1;
    mu_trace(&a->config.trace, "agent.exited", e->local_rank, (uint64_t)(int64_t)e->exit_code);
    switch (a->state) {
    case MU_AGENT_IS_STARTING:
    case MU_AGENT_IS_RUNNING:
        if (e->exit_code != 0) {
            fail(a, e, u);
        } else if (a->exited == a->config.workers) {
            enter_barrier(a, u);
        } else {
            watch_stragglers(a);
        }
        break;
    case MU_AGENT_IS_SAVING:
        if (a->exited == a->config.workers) {
            mu_agent_stop(a, u, a->config.stop_signal);
        }
        break;
    case MU_AGENT_IS_STOPPING:
    case MU_AGENT_IS_DOUBTING:
    case MU_AGENT_IS_BARRIER:
    case MU_AGENT_IS_CHECKING:
    case MU_AGENT_IS_KEPT_OUT:
    case MU_AGENT_IS_IDLE:
    case MU_AGENT_IS_JOINING:
    case MU_AGENT_IS_EXCHANGING:
    case MU_AGENT_IS_ENDED:
        break;
    }
}

static void take_spawn_failed(struct mu_agent *a, const struct mu_agent_event *e,
                              struct mu_agent_update *u)
{
    if (a->state != MU_AGENT_IS_STARTING) {
        return;
    }
    MU_AGENT_SAY(a, u, "rank %u (local rank %u) could not be started: %s", a->base + e->local_rank,
                 e->local_rank, words(e));
    mu_agent_end(a, u, MU_AGENT_ERROR, e->code, MU_AGENT_CLOSING);
}

static void take_gone(struct mu_agent *a, struct mu_agent_update *u)
{
    if (a->state == MU_AGENT_IS_STOPPING) {
        mu_agent_proceed(a, u);
    } else {
        a->alive = false;
    }
}

/* --- the rendezvous ------------------------------------------------------------------------- */

static void take_assigned(struct mu_agent *a, const struct mu_agent_event *e,
                          struct mu_agent_update *u)
{
    bool echoed;

    if (!a->joining) {
        return;
    }
    a->joining = false;
    a->in_round = true;
    a->round = e->round;
    a->restarts_left = e->restarts_left;
    a->host = e->host;
    a->doubt_ms = e->doubt_ms;
    echoed = a->charged && e->fewer;
    a->charged = false;
    a->excluded = false;
    a->excluded_said = MU_MONO_NEVER;
    a->first_rank = MU_AGENT_NO_RANK;
    a->others_failed = false;
    if (echoed) {
        a->restarts_used -= 1;
        if (mu_agent_loses_too_many(a, e, u)) {
            return;
        }
    }
    if (a->state == MU_AGENT_IS_JOINING) {
        mu_agent_exchange(a, u);
    }
}

/* While RUNNING or before: the workers must stop, and start again in the next round. */
static void lose_round(struct mu_agent *a, const struct mu_agent_event *e,
                       struct mu_agent_update *u)
{
    bool save =
        a->state == MU_AGENT_IS_RUNNING && a->config.change_ms != 0 && a->by.ns == MU_MONO_NEVER.ns;
    bool last = e->failed && a->restarts_left == 0; /* of a budget that the backend keeps */

    if (a->closed) {
        MU_AGENT_SAY(a, u, "%s, and the run is closed", words(e));
        mu_agent_end(a, u, MU_AGENT_ERROR, MUSTER_ERDZV_CLOSED, MU_AGENT_LEAVING);
        return;
    }
    mu_agent_join(a, u);
    MU_AGENT_SAY(a, u, "%s; %s", words(e),
                 last ? "no restart is left, unless a node was lost"
                      : "restarting the workers in the next round");
    if (save) {
        mu_agent_move(a, MU_AGENT_IS_SAVING);
        a->deadline = mu_mono_add_ms(a->now, a->config.change_ms);
        u->flags |= MU_AGENT_DO_WARN;
        u->generation = a->generation;
        u->within_ms = a->config.change_ms;
    } else {
        mu_agent_stop(a, u, a->config.stop_signal);
    }
}

static void take_round_ended(struct mu_agent *a, const struct mu_agent_event *e,
                             struct mu_agent_update *u)
{
    if (!a->in_round || e->round != a->round ||
        (e->lost && a->state != MU_AGENT_IS_BARRIER && mu_agent_loses_too_many(a, e, u))) {
        return;
    }
    a->others_failed = e->failed;
    switch (a->state) {
    case MU_AGENT_IS_EXCHANGING:
        mu_agent_move(a, MU_AGENT_IS_JOINING);
        mu_agent_join(a, u);
        MU_AGENT_SAY(a, u, "%s; joining again", words(e));
        break;
    case MU_AGENT_IS_STARTING:
    case MU_AGENT_IS_RUNNING:
        lose_round(a, e, u);
        break;
    case MU_AGENT_IS_SAVING:
    case MU_AGENT_IS_STOPPING:
        a->in_round = false;
        if (a->outcome == 0) {
            mu_agent_join(a, u);
            mu_agent_forgive(a, e, u);
        }
        break;
    case MU_AGENT_IS_DOUBTING:
        mu_agent_join(a, u);
        mu_agent_enter(a, u);
        mu_agent_forgive(a, e, u);
        break;
    case MU_AGENT_IS_CHECKING:
        mu_agent_join(a, u);
        break;
    case MU_AGENT_IS_BARRIER:
        mu_agent_leave(a, u);
        MU_AGENT_SAY(a, u, "all workers have succeeded (%s meanwhile)%s", words(e),
                     a->host ? "; hosting until the other nodes are gone" : "");
        if (!a->host) {
            end_barrier(a, u);
        }
        break;
    case MU_AGENT_IS_KEPT_OUT:
    case MU_AGENT_IS_IDLE:
    case MU_AGENT_IS_JOINING:
    case MU_AGENT_IS_ENDED:
        break;
    }
}

/* Workers that are being stopped or are saving get less time; workers that run are stopped with the
 * round. An agent that only waits in the exit barrier waits a while longer, because the server may
 * be back. */
static void take_cut_off(struct mu_agent *a, const struct mu_agent_event *e,
                         struct mu_agent_update *u)
{
    if (a->state == MU_AGENT_IS_BARRIER) {
        a->deadline = mu_mono_min(a->deadline, mu_mono_add_ms(a->now, a->config.grace_ms));
        return;
    }
    if (!a->alive) {
        return;
    }
    a->by = e->by;
    if (a->state == MU_AGENT_IS_SAVING) {
        mu_agent_stop(a, u, a->config.stop_signal);
    } else if (a->state == MU_AGENT_IS_STOPPING && a->stop == MU_AGENT_STOP_SIGNALLED) {
        a->deadline = mu_mono_min(a->deadline, a->by);
        if (mu_mono_reached(a->by, a->now)) {
            mu_agent_kill(a, u);
        }
    }
}

static void take_closed(struct mu_agent *a, struct mu_agent_update *u)
{
    a->closed = true;
    switch (a->state) {
    case MU_AGENT_IS_STARTING:
    case MU_AGENT_IS_RUNNING:
        MU_AGENT_SAY(a, u, "the run was closed; the workers go on until they end");
        break;
    case MU_AGENT_IS_JOINING:
    case MU_AGENT_IS_EXCHANGING:
    case MU_AGENT_IS_SAVING:
    case MU_AGENT_IS_STOPPING:
    case MU_AGENT_IS_DOUBTING:
    case MU_AGENT_IS_CHECKING:
    case MU_AGENT_IS_KEPT_OUT:
        if (a->doubts) {
            mu_agent_be_sure(a, u); /* It was closed because of a failure that nobody doubts. */
        } else if (a->outcome == 0) {
            MU_AGENT_SAY(a, u, "the run was closed before the next round");
            mu_agent_end(a, u, MU_AGENT_ERROR, MUSTER_ERDZV_CLOSED, MU_AGENT_LEAVING);
        }
        break;
    case MU_AGENT_IS_BARRIER:
        if (a->host && !a->in_round) {
            MU_AGENT_SAY(a, u, "all workers have succeeded");
            end_barrier(a, u);
        } else if (!a->host) {
            a->deadline = mu_mono_min(a->deadline, mu_mono_add_ms(a->now, a->config.grace_ms));
        }
        break;
    case MU_AGENT_IS_IDLE:
    case MU_AGENT_IS_ENDED:
        break;
    }
}

static void take_rdzv_failed(struct mu_agent *a, const struct mu_agent_event *e,
                             struct mu_agent_update *u)
{
    if (e->code == MUSTER_ERDZV_CLOSED &&
        (a->state == MU_AGENT_IS_STARTING || a->state == MU_AGENT_IS_RUNNING)) {
        take_closed(a, u);
        return;
    }
    a->joining = false;
    a->in_round = false;
    if (e->code == MUSTER_ERDZV_EXCLUDED && a->outcome == 0 && !a->config.excluded_ends &&
        a->state != MU_AGENT_IS_BARRIER) {
        a->doubts = false;
        mu_agent_take_excluded(a, e, u);
        return;
    }
    a->closed = a->closed || e->code == MUSTER_ERDZV_CLOSED || e->code == MUSTER_ERDZV_RESTARTS ||
                e->code == MUSTER_ERDZV_LOSSES;
    if (a->doubts && e->code == MUSTER_ERDZV_CLOSED) {
        mu_agent_be_sure(a, u);
        return;
    }
    a->doubts = false;
    switch (a->state) {
    case MU_AGENT_IS_JOINING:
    case MU_AGENT_IS_EXCHANGING:
    case MU_AGENT_IS_STARTING:
    case MU_AGENT_IS_RUNNING:
    case MU_AGENT_IS_SAVING:
    case MU_AGENT_IS_STOPPING:
    case MU_AGENT_IS_DOUBTING:
    case MU_AGENT_IS_CHECKING:
    case MU_AGENT_IS_KEPT_OUT:
        if (a->outcome == 0) {
            enum mu_agent_outcome outcome = a->excluded && e->code == MUSTER_ERDZV_CLOSED
                                                ? MU_AGENT_GRACEFUL
                                                : outcome_of(e->code);

            if (e->code == MUSTER_ERDZV_RESTARTS && a->first_rank != MU_AGENT_NO_RANK &&
                a->restarts_left == 0) {
                mu_agent_say_how_it_ended(a, u, MU_AGENT_NO_RESTART);
            } else {
                MU_AGENT_SAY(a, u, "%s", words(e));
            }
            mu_agent_end(a, u, outcome, outcome == MU_AGENT_ERROR ? e->code : 0, MU_AGENT_QUIETLY);
        }
        break;
    case MU_AGENT_IS_BARRIER:
        MU_AGENT_SAY(a, u, "all workers have succeeded (%s meanwhile)", words(e));
        end_barrier(a, u);
        break;
    case MU_AGENT_IS_IDLE:
    case MU_AGENT_IS_ENDED:
        break;
    }
}

static void take_barrier_done(struct mu_agent *a, const struct mu_agent_event *e,
                              struct mu_agent_update *u)
{
    if (e->code == 0) {
        MU_AGENT_SAY(a, u, "all workers of all nodes have succeeded");
    } else {
        MU_AGENT_SAY(a, u, "all workers have succeeded; not all other nodes have said so: %s",
                     words(e));
    }
    end_barrier(a, u);
}

bool mu_agent_hosts_only(const struct mu_agent *a)
{
    return a->state == MU_AGENT_IS_BARRIER && a->host && !a->in_round;
}

/* --- signals, time -------------------------------------------------------------------------- */

static void take_signal(struct mu_agent *a, const struct mu_agent_event *e,
                        struct mu_agent_update *u)
{
    int mapped = a->config.signal_map[e->signal];
    int signal = mapped != 0 ? mapped : e->signal;

    a->signals += 1;
    if (a->state == MU_AGENT_IS_STOPPING && a->signals > 1) {
        if (a->stop != MU_AGENT_STOP_KILLED) {
            MU_AGENT_SAY(a, u, "signal %d, the second; killing the workers", e->signal);
            mu_agent_kill(a, u);
        }
        return;
    }
    MU_AGENT_SAY(a, u, "stopped by signal %d", e->signal);
    if (a->outcome == 0) {
        a->outcome = MU_AGENT_STOPPED;
        a->doubts = false;
        a->why = a->line;
        mu_agent_leave(a, u);
    }
    if (a->alive) {
        mu_agent_stop(a, u, signal);
    } else {
        mu_agent_proceed(a, u);
    }
}

static void take_stop_timeout(struct mu_agent *a, struct mu_agent_update *u)
{
    if (a->stop != MU_AGENT_STOP_KILLED && mu_mono_reached(a->by, a->now)) {
        MU_AGENT_SAY(a, u, "the workers have not ended, and the others may go on; killing them");
        mu_agent_kill(a, u);
        return;
    }
    if (a->stop != MU_AGENT_STOP_KILLED) {
        MU_AGENT_SAY(a, u, "the workers did not end within %llu s; killing them",
                     (unsigned long long)(a->config.grace_ms / 1000));
        mu_agent_kill(a, u);
        return;
    }
    /* The agent cannot start workers beside these, and cannot wait for ever. */
    a->alive = false;
    if (a->outcome == 0) {
        MU_AGENT_SAY(a, u, "a process of the workers cannot be killed");
        mu_agent_end(a, u, MU_AGENT_ERROR, MUSTER_ETIMEDOUT, MU_AGENT_CLOSING);
    } else {
        mu_err_prefix(&a->why, "a process of the workers cannot be killed");
        mu_agent_proceed(a, u);
    }
}

static void take_timeout(struct mu_agent *a, struct mu_agent_update *u)
{
    struct mu_agent_event late = {.code = MUSTER_ETIMEDOUT};

    if (!mu_mono_reached(a->deadline, a->now)) {
        return;
    }
    switch (a->state) {
    case MU_AGENT_IS_EXCHANGING:
        exchange_failed(a, u, late.code, words(&late));
        break;
    case MU_AGENT_IS_SAVING:
        mu_agent_stop(a, u, a->config.stop_signal);
        break;
    case MU_AGENT_IS_STOPPING:
        take_stop_timeout(a, u);
        break;
    case MU_AGENT_IS_DOUBTING:
        mu_agent_be_sure(a, u);
        break;
    case MU_AGENT_IS_BARRIER:
        take_barrier_done(a, &late, u);
        break;
    case MU_AGENT_IS_RUNNING:
        name_stragglers(a, u);
        break;
    case MU_AGENT_IS_KEPT_OUT:
        mu_agent_enter(a, u);
        break;
    case MU_AGENT_IS_CHECKING:
    case MU_AGENT_IS_IDLE:
    case MU_AGENT_IS_JOINING:
    case MU_AGENT_IS_STARTING:
    case MU_AGENT_IS_ENDED:
        break;
    }
}

/* --- a step --------------------------------------------------------------------------------- */

/* Whether a driver that keeps its duties never sends this event. */
static int check(const struct mu_agent *a, const struct mu_agent_event *e)
{
    bool ours = e->generation == a->generation && a->alive;

    switch (e->type) {
    case MU_AGENT_START:
        return a->state == MU_AGENT_IS_IDLE ? 0 : MUSTER_EINVAL;
    case MU_AGENT_EXITED:
        if (e->generation == 0 || e->generation > a->generation ||
            e->local_rank >= a->config.workers || e->exit_code < -MU_AGENT_SIGNAL_MAX) {
            return MUSTER_EINVAL;
        }
        if (e->generation == a->generation && has_exited(a, e->local_rank)) {
            return MUSTER_EINVAL;
        }
        return 0;
    case MU_AGENT_GROUP_GONE:
        if (ours &&
            (a->state == MU_AGENT_IS_STARTING || (a->spawned && a->exited != a->config.workers))) {
            return MUSTER_EINVAL;
        }
        return 0;
    case MU_AGENT_SIGNAL:
        return e->signal >= 1 && e->signal <= MU_AGENT_SIGNAL_MAX ? 0 : MUSTER_EINVAL;
    case MU_AGENT_ASSIGNED:
    case MU_AGENT_READY:
    case MU_AGENT_NOT_READY:
    case MU_AGENT_SPAWNED:
    case MU_AGENT_SPAWN_FAILED:
    case MU_AGENT_CUT_OFF:
    case MU_AGENT_ROUND_ENDED:
    case MU_AGENT_SURE:
    case MU_AGENT_SAVED:
    case MU_AGENT_RDZV_FAILED:
    case MU_AGENT_RDZV_CLOSED:
    case MU_AGENT_ALONE:
    case MU_AGENT_BARRIER_DONE:
    case MU_AGENT_CHECKED:
    case MU_AGENT_TIMEOUT:
        return 0;
    }
    return MUSTER_EINVAL;
}

/* Whether the event is about another round or generation, or answers a question that is no longer
 * asked. */
static bool is_stale(const struct mu_agent *a, const struct mu_agent_event *e)
{
    if (a->state == MU_AGENT_IS_ENDED) {
        return true;
    }
    switch (e->type) {
    case MU_AGENT_READY:
    case MU_AGENT_NOT_READY:
        return a->state != MU_AGENT_IS_EXCHANGING || e->round != a->round;
    case MU_AGENT_BARRIER_DONE:
        return a->state != MU_AGENT_IS_BARRIER || e->round != a->round;
    case MU_AGENT_SURE:
        return !a->doubts || e->round != a->round;
    case MU_AGENT_CHECKED:
        return a->state != MU_AGENT_IS_CHECKING;
    case MU_AGENT_ALONE:
        return !mu_agent_hosts_only(a);
    case MU_AGENT_SAVED:
        return a->state != MU_AGENT_IS_SAVING || e->generation != a->generation;
    case MU_AGENT_SPAWNED:
    case MU_AGENT_SPAWN_FAILED:
    case MU_AGENT_EXITED:
    case MU_AGENT_GROUP_GONE:
        return e->generation != a->generation || !a->alive;
    case MU_AGENT_START:
    case MU_AGENT_ASSIGNED:
    case MU_AGENT_CUT_OFF:
    case MU_AGENT_ROUND_ENDED:
    case MU_AGENT_RDZV_FAILED:
    case MU_AGENT_RDZV_CLOSED:
    case MU_AGENT_SIGNAL:
    case MU_AGENT_TIMEOUT:
        return false;
    }
    return true;
}

static void take(struct mu_agent *a, const struct mu_agent_event *e, struct mu_agent_update *u)
{
    switch (e->type) {
    case MU_AGENT_START:
        mu_agent_enter(a, u);
        break;
    case MU_AGENT_CHECKED:
        mu_agent_take_checked(a, e, u);
        break;
    case MU_AGENT_ASSIGNED:
        take_assigned(a, e, u);
        break;
    case MU_AGENT_READY:
        a->base = e->base;
        start_workers(a, u);
        break;
    case MU_AGENT_NOT_READY:
        exchange_failed(a, u, e->code, words(e));
        break;
    case MU_AGENT_SPAWNED:
        a->spawned = true;
        if (a->state == MU_AGENT_IS_STARTING) {
            mu_agent_move(a, MU_AGENT_IS_RUNNING);
            watch_stragglers(a);
        }
        break;
    case MU_AGENT_SPAWN_FAILED:
        take_spawn_failed(a, e, u);
        break;
    case MU_AGENT_EXITED:
        take_exit(a, e, u);
        break;
    case MU_AGENT_GROUP_GONE:
        take_gone(a, u);
        break;
    case MU_AGENT_CUT_OFF:
        take_cut_off(a, e, u);
        break;
    case MU_AGENT_ROUND_ENDED:
        take_round_ended(a, e, u);
        break;
    case MU_AGENT_SURE:
        mu_agent_be_sure(a, u);
        break;
    case MU_AGENT_SAVED:
        mu_agent_stop(a, u, a->config.stop_signal);
        break;
    case MU_AGENT_RDZV_FAILED:
        take_rdzv_failed(a, e, u);
        break;
    case MU_AGENT_RDZV_CLOSED:
        take_closed(a, u);
        break;
    case MU_AGENT_BARRIER_DONE:
        take_barrier_done(a, e, u);
        break;
    case MU_AGENT_ALONE:
        MU_AGENT_SAY(a, u, "all workers have succeeded, and the other nodes are gone");
        end_barrier(a, u);
        break;
    case MU_AGENT_SIGNAL:
        take_signal(a, e, u);
        break;
    case MU_AGENT_TIMEOUT:
        take_timeout(a, u);
        break;
    }
}

int mu_agent_step(struct mu_agent *a, const struct mu_agent_event *event,
                  struct mu_agent_update *ret_update)
{
    struct mu_agent_update update = {.first_rank = MU_AGENT_NO_RANK};
    int err = check(a, event);

    if (err != 0) {
        return err;
    }
    a->now = event->now.mono;
    if (!is_stale(a, event)) {
        take(a, event, &update);
    }
    update.deadline = a->deadline;
    *ret_update = update;
    return 0;
}

/*
 * A world for the agent's policy, from a seed: workers that run, fail, ignore signals, leave
 * children behind, cannot be killed; a rendezvous that assigns late or early, ends rounds, fails,
 * is closed; exchanges, barriers and saves that are slow, fail or never answer; signals; stale and
 * repeated news. After some time it calms down, and then everything has to end.
 *
 * It is the driver and the judge: what is true of the processes is known here, and each step of
 * the machine is held against it. The first broken promise stays in `w->fault`.
 */
#ifndef MU_AGENT_WORLD_H
#define MU_AGENT_WORLD_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "core/prng.h"
#include "proto/agent/agent.h"

#define WORLD_WORKERS  4
#define WORLD_PROCS    (WORLD_WORKERS * 3) /* each with up to two children */
#define WORLD_NEWS     512
#define WORLD_CALM_MS  200000
#define WORLD_END_MS   1400000
#define WORLD_STEP_MAX 20000

/* What is wrong with the world, so that the judge can show what it sees. */
enum world_plant {
    WORLD_SOUND = 0,
    WORLD_EARLY_GONE,     /* the driver forgets the children of workers */
    WORLD_NO_BUDGET,      /* the machine forgets restarts */
    WORLD_DEAF,           /* the driver does not watch the time */
    WORLD_REAPS_TWICE,    /* the machine forgets who has exited */
    WORLD_CLOSING_SIGNAL, /* a signal closes the run for everybody */
    WORLD_WISHFUL,        /* the driver takes every exit for a good one */
    WORLD_LAST_BLAMED,    /* the machine names the last failure, not the first */
    WORLD_HASTY,          /* the machine takes an early rank for a sign to start */
    WORLD_PLANTS,
};

enum world_news {
    NEWS_EVENT = 1, /* give `event` as it is */
    NEWS_DIES,      /* process `proc` ends with `event.exit_code` */
    NEWS_SPAWN,     /* the next worker is started */
    NEWS_ASSIGN,
    NEWS_ROUND_ENDS,
    NEWS_SURE,
    NEWS_RDZV_FAILS,
    NEWS_RDZV_CLOSES,
    NEWS_AGENT_SIGNALLED,
    NEWS_STALE,
};

struct world_item {
    uint64_t at_ms;
    uint64_t seq; /* 0: free */
    enum world_news what;
    uint32_t proc;
    uint64_t serial; /* of the join, process, spawn that it is about */
    struct mu_agent_event event;
};

struct world_proc {
    bool alive;
    bool stubborn;   /* ignores everything but KILL */
    bool unkillable; /* and that as well */
    uint64_t serial;
};

struct world {
    struct mu_prng prng;
    enum world_plant plant;
    bool loud;
    struct mu_agent agent;
    struct mu_agent_config config;
    uint64_t now_ms;
    uint64_t seq, serial;
    struct world_item news[WORLD_NEWS];

    /* the rendezvous */
    bool joining, in_round, over; /* over: closed or failed */
    bool kept, host;
    uint64_t doubt_ms; /* 0: no failure is in doubt */
    uint64_t doubt_by; /* the failure of this round is, until then; 0: it is not */
    uint64_t join_serial, round_next, round;
    uint32_t left;

    /* the processes of the last generation: worker i is proc i, its children come behind */
    uint64_t generation, spawn_serial;
    struct world_proc procs[WORLD_PROCS];
    uint32_t started; /* workers */
    bool spawning, gone_told;
    int codes[WORLD_WORKERS]; /* of the exits */
    bool exit_told[WORLD_WORKERS];
    bool disturbed; /* it was signalled, or its round ended: no exit counts */
    uint32_t first_rank;
    int first_code;

    /* the agent's past */
    uint32_t restarts_after_failure;
    bool failed_here, may_echo, hopeless, any_signal, close_said, ended;
    enum mu_agent_outcome outcome;
    uint64_t stop_since;
    uint64_t cut_by, cut_generation; /* by when that one must be dead; 0: none */
    unsigned steps;
    char fault[300];

    /* What the seed makes likely, in ppm. */
    uint32_t fails, stubborn, unkillable, children, mute, rdzv_fails, closes, ends, signals, early;
};

static inline uint64_t world_pick(struct world *w, uint64_t bound)
{
    return mu_prng_below(&w->prng, bound);
}

static inline bool world_chance(struct world *w, uint32_t ppm)
{
    return w->now_ms < WORLD_CALM_MS && mu_prng_chance(&w->prng, ppm);
}

#define WORLD_FAULT(w, ...)                                                                        \
    do {                                                                                           \
        if ((w)->fault[0] == '\0') {                                                               \
            (void)snprintf((w)->fault, sizeof((w)->fault), __VA_ARGS__);                           \
        }                                                                                          \
    } while (0)

static inline void world_tell(struct world *w, struct mu_agent_event event);

static inline struct world_item *world_add(struct world *w, uint64_t in_ms, enum world_news what)
{
    for (size_t i = 0; i < WORLD_NEWS; i++) {
        if (w->news[i].seq == 0) {
            w->news[i] =
                (struct world_item){.at_ms = w->now_ms + in_ms, .seq = ++w->seq, .what = what};
            return &w->news[i];
        }
    }
    WORLD_FAULT(w, "too much news for the world");
    return &w->news[0];
}

static inline void world_answer(struct world *w, uint64_t in_ms, struct mu_agent_event event)
{
    world_add(w, in_ms, NEWS_EVENT)->event = event;
}

/* --- processes ------------------------------------------------------------------------------- */

static inline void world_dies_in(struct world *w, uint32_t proc, uint64_t in_ms, int code)
{
    struct world_item *item = world_add(w, in_ms, NEWS_DIES);

    item->proc = proc;
    item->serial = w->procs[proc].serial;
    item->event.exit_code = code;
}

static inline uint32_t world_alive(const struct world *w, bool leaders_only)
{
    uint32_t count = 0;

    for (uint32_t i = 0; i < (leaders_only ? WORLD_WORKERS : WORLD_PROCS); i++) {
        count += w->procs[i].alive;
    }
    return count;
}

static inline void world_maybe_gone(struct world *w)
{
    bool leaders_only = w->plant == WORLD_EARLY_GONE;

    if (w->generation == 0 || w->gone_told || w->spawning || world_alive(w, leaders_only) != 0) {
        return;
    }
    w->gone_told = true;
    world_answer(w, world_pick(w, 20),
                 (struct mu_agent_event){.type = MU_AGENT_GROUP_GONE, .generation = w->generation});
}

static inline void world_start(struct world *w, uint32_t proc)
{
    w->procs[proc] = (struct world_proc){
        .alive = true,
        .stubborn = world_chance(w, w->stubborn),
        .unkillable = world_chance(w, w->unkillable),
        .serial = ++w->serial,
    };
}

/* Worker by worker; the driver is asked to stop, or one cannot be started. */
static inline void world_spawn_next(struct world *w)
{
    struct mu_agent_event event = {.generation = w->generation, .local_rank = w->started};
    uint32_t rank = w->started;

    if (world_chance(w, 5000)) {
        w->spawning = false;
        event.type = MU_AGENT_SPAWN_FAILED;
        event.code = MUSTER_ENOENT;
        world_answer(w, 0, event);
        world_maybe_gone(w);
        return;
    }
    world_start(w, rank);
    if (world_chance(w, w->fails)) {
        world_dies_in(w, rank, world_pick(w, 20000), (int)world_pick(w, 40) - 20);
    } else {
        world_dies_in(w, rank, 5000 + world_pick(w, 60000), 0);
    }
    for (uint32_t i = 0; i < 2; i++) {
        if (world_chance(w, w->children)) {
            uint32_t child = WORLD_WORKERS + rank * 2 + i;

            world_start(w, child);
            world_dies_in(w, child, world_pick(w, 200000), 0);
        }
    }
    w->started += 1;
    if (w->started < w->config.workers) {
        world_add(w, world_pick(w, 3), NEWS_SPAWN)->serial = w->spawn_serial;
        return;
    }
    w->spawning = false;
    event.type = MU_AGENT_SPAWNED;
    world_answer(w, world_pick(w, 2), event);
}

static inline void world_signal(struct world *w, bool kill, int signal)
{
    if (w->spawning) {
        w->spawning = false;
        w->spawn_serial = 0;
        world_maybe_gone(w);
    }
    w->disturbed = true;
    for (uint32_t i = 0; i < WORLD_PROCS; i++) {
        struct world_proc *p = &w->procs[i];

        if (p->alive && (kill ? !p->unkillable : !p->stubborn && !p->unkillable)) {
            world_dies_in(w, i, kill ? world_pick(w, 5) : world_pick(w, 3000),
                          kill                      ? -9
                          : world_chance(w, 300000) ? (int)world_pick(w, 3)
                                                    : -signal);
        }
    }
}

static inline void world_die(struct world *w, const struct world_item *item)
{
    struct mu_agent_event event = {.type = MU_AGENT_EXITED,
                                   .generation = w->generation,
                                   .local_rank = item->proc,
                                   .exit_code = item->event.exit_code};
    struct world_proc *p = &w->procs[item->proc];

    if (!p->alive || p->serial != item->serial) {
        return;
    }
    p->alive = false;
    if (item->proc < WORLD_WORKERS) {
        w->codes[item->proc] = event.exit_code;
        w->exit_told[item->proc] = true;
        if (event.exit_code != 0 && !w->disturbed && w->first_rank == MU_AGENT_NO_RANK) {
            w->first_rank = event.local_rank;
            w->first_code = event.exit_code;
        }
        if (w->plant == WORLD_WISHFUL) {
            event.exit_code = 0;
        }
        world_tell(w, event);
    }
    world_maybe_gone(w);
}

/* --- the judge ------------------------------------------------------------------------------- */

static inline void world_judge_spawn(struct world *w, const struct mu_agent_update *u)
{
    if (world_alive(w, false) != 0) {
        WORLD_FAULT(w, "two generations alive: %u of %llu beside %llu", world_alive(w, false),
                    (unsigned long long)w->generation, (unsigned long long)u->generation);
    }
    if (u->generation != w->generation + 1) {
        WORLD_FAULT(w, "generation %llu after %llu", (unsigned long long)u->generation,
                    (unsigned long long)w->generation);
    }
    if (!w->in_round) {
        WORLD_FAULT(w, "started outside of a round");
    }
    if (w->hopeless) {
        WORLD_FAULT(w, "started again though no restart was left");
    }
    if (w->failed_here && !w->kept) {
        w->restarts_after_failure += 1;
    }
    if (!w->kept && w->restarts_after_failure > w->config.restarts_max) {
        WORLD_FAULT(w, "%u restarts of %u", w->restarts_after_failure, w->config.restarts_max);
    }
    if (!w->kept && u->restart_count != w->restarts_after_failure) {
        WORLD_FAULT(w, "restart %u is told as %u", w->restarts_after_failure, u->restart_count);
    }
}

static inline void world_judge_end(struct world *w, const struct mu_agent_update *u)
{
    uint32_t good = 0;

    w->ended = true;
    w->outcome = u->outcome;
    for (uint32_t i = 0; i < w->config.workers; i++) {
        good += w->exit_told[i] && w->codes[i] == 0;
    }
    /* What workers leave behind does not delay success. */
    for (uint32_t i = 0; i < (u->outcome == MU_AGENT_SUCCEEDED ? WORLD_WORKERS : WORLD_PROCS);
         i++) {
        if (w->procs[i].alive && !w->procs[i].unkillable) {
            WORLD_FAULT(w, "ended, and a process is left");
        }
    }
    if (u->outcome == MU_AGENT_SUCCEEDED && good != w->config.workers) {
        WORLD_FAULT(w, "success with %u of %u", good, w->config.workers);
    }
    if (u->outcome == MU_AGENT_STOPPED && (w->close_said || !w->any_signal)) {
        WORLD_FAULT(w, "stopped by %s, and closed the run", w->any_signal ? "a signal" : "nobody");
    }
    if (u->outcome == MU_AGENT_FAILED && w->doubt_by > w->now_ms && w->in_round && !w->over) {
        WORLD_FAULT(w, "failed while it was in doubt");
    }
    if (u->outcome == MU_AGENT_FAILED && !w->over) {
        WORLD_FAULT(w, "failed, and the run is still open");
    }
    if (u->outcome == MU_AGENT_FAILED && u->first_rank != w->first_rank) {
        WORLD_FAULT(w, "failed because of %u, not of %u", u->first_rank, w->first_rank);
    }
    if (u->text == NULL || u->text[0] == '\0') {
        WORLD_FAULT(w, "ended without a word");
    }
}

static inline void world_judge_deadline(struct world *w)
{
    const struct mu_agent *a = &w->agent;
    bool bounded = a->state == MU_AGENT_IS_EXCHANGING || a->state == MU_AGENT_IS_SAVING ||
                   a->state == MU_AGENT_IS_STOPPING || a->state == MU_AGENT_IS_DOUBTING ||
                   a->state == MU_AGENT_IS_BARRIER;
    bool partly = a->state == MU_AGENT_IS_RUNNING && a->exited != 0; /* who is left is named once */
    uint64_t stop_ms = a->config.grace_ms + a->config.kill_ms;

    if (!partly && bounded == (mu_agent_deadline(a).ns == MU_MONO_NEVER.ns)) {
        WORLD_FAULT(w, "%s a deadline while %s", bounded ? "without" : "with",
                    mu_agent_state_name(a->state));
    }
    if (a->state != MU_AGENT_IS_STOPPING) {
        w->stop_since = UINT64_MAX;
    } else if (w->stop_since == UINT64_MAX) {
        w->stop_since = w->now_ms;
    } else if (w->now_ms > w->stop_since + stop_ms) {
        WORLD_FAULT(w, "stopping for more than %llu ms", (unsigned long long)stop_ms);
    }
}

static inline void world_judge(struct world *w, const struct mu_agent_update *u)
{
    if (w->ended && u->flags != 0) {
        WORLD_FAULT(w, "does 0x%x after its end", u->flags);
    }
    if ((u->flags & (MU_AGENT_DO_SIGNAL | MU_AGENT_DO_KILL)) != 0 &&
        (u->generation != w->generation || w->generation == 0)) {
        WORLD_FAULT(w, "signals generation %llu", (unsigned long long)u->generation);
    }
    if ((u->flags & MU_AGENT_DO_REPORT) != 0) {
        if (u->first_rank != w->first_rank || u->exit_code != w->first_code) {
            WORLD_FAULT(w, "blames %u (%d), not %u (%d)", u->first_rank, u->exit_code,
                        w->first_rank, w->first_code);
        }
        w->failed_here = w->may_echo = true;
        w->hopeless = w->kept && w->left == 0;
    }
    if ((u->flags & (MU_AGENT_DO_EXCHANGE | MU_AGENT_DO_BARRIER)) != 0 && u->round != w->round) {
        WORLD_FAULT(w, "meets in round %llu", (unsigned long long)u->round);
    }
    if ((u->flags & MU_AGENT_DO_SPAWN) != 0) {
        world_judge_spawn(w, u);
    }
}

/* --- the driver ------------------------------------------------------------------------------ */

static inline void world_answer_join(struct world *w)
{
    struct world_item *item;

    w->joining = true;
    w->in_round = false;
    item = world_add(w, world_chance(w, w->early) ? 0 : world_pick(w, 5000), NEWS_ASSIGN);
    item->serial = w->join_serial = ++w->serial;
}

static inline void world_carry_out_rdzv(struct world *w, const struct mu_agent_update *u)
{
    if ((u->flags & MU_AGENT_DO_JOIN) != 0) {
        if (w->kept && w->failed_here && w->in_round && !w->over) {
            if (w->left == 0) {
                w->over = true;
            } else {
                w->left -= 1;
            }
        }
        world_answer_join(w);
    }
    if ((u->flags & MU_AGENT_DO_LEAVE) != 0) {
        w->joining = false;
        w->in_round = false;
    }
    if ((u->flags & MU_AGENT_DO_CLOSE) != 0) {
        w->close_said = true;
        w->over = true;
        world_add(w, world_pick(w, 50), NEWS_RDZV_CLOSES);
    }
}

static inline void world_carry_out_meeting(struct world *w, const struct mu_agent_update *u)
{
    if ((u->flags & MU_AGENT_DO_EXCHANGE) != 0 && !world_chance(w, w->mute)) {
        bool bad = world_chance(w, w->rdzv_fails);

        world_answer(w, world_pick(w, 500),
                     (struct mu_agent_event){.type = bad ? MU_AGENT_NOT_READY : MU_AGENT_READY,
                                             .round = u->round,
                                             .code = bad ? MUSTER_ECONN : 0});
    }
    if ((u->flags & MU_AGENT_DO_BARRIER) != 0 && !world_chance(w, w->mute)) {
        world_answer(w, world_pick(w, 20000),
                     (struct mu_agent_event){.type = MU_AGENT_BARRIER_DONE, .round = u->round});
    }
    if ((u->flags & MU_AGENT_DO_DOUBT) != 0) {
        w->doubt_by = w->now_ms + w->doubt_ms;
        if (!world_chance(w, w->mute)) {
            world_add(w, world_pick(w, 2 * w->doubt_ms), NEWS_SURE)->event.round = u->round;
        }
    }
    if ((u->flags & MU_AGENT_DO_WARN) != 0 && !world_chance(w, w->mute)) {
        world_answer(w, world_pick(w, 6000),
                     (struct mu_agent_event){.type = MU_AGENT_SAVED, .generation = u->generation});
    }
}

static inline void world_carry_out_spawn(struct world *w, const struct mu_agent_update *u)
{
    w->generation = u->generation;
    w->started = 0;
    w->spawning = true;
    w->gone_told = false;
    w->disturbed = false;
    w->failed_here = false;
    w->first_rank = MU_AGENT_NO_RANK;
    w->first_code = 0;
    memset(w->codes, 0, sizeof(w->codes));
    memset(w->exit_told, 0, sizeof(w->exit_told));
    memset(w->procs, 0, sizeof(w->procs));
    world_add(w, 0, NEWS_SPAWN)->serial = w->spawn_serial = ++w->serial;
}

static inline void world_tamper(struct world *w, struct mu_agent_update *u)
{
    struct mu_agent *a = &w->agent;

    switch (w->plant) {
    case WORLD_NO_BUDGET:
        a->restarts_used = 0;
        break;
    case WORLD_REAPS_TWICE:
        memset(a->exited_bits, 0, sizeof(a->exited_bits));
        break;
    case WORLD_CLOSING_SIGNAL:
        if (a->outcome == MU_AGENT_STOPPED && !w->ended) {
            u->flags |= MU_AGENT_DO_CLOSE;
        }
        break;
    case WORLD_HASTY:
        if (a->state == MU_AGENT_IS_STOPPING && a->in_round && a->outcome == 0) {
            a->state = MU_AGENT_IS_EXCHANGING;
            a->alive = false;
            u->flags |= MU_AGENT_DO_EXCHANGE;
            u->round = a->round;
        }
        break;
    case WORLD_SOUND:
    case WORLD_EARLY_GONE:
    case WORLD_DEAF:
    case WORLD_WISHFUL:
    case WORLD_LAST_BLAMED:
    case WORLD_PLANTS:
        break;
    }
}

/* Gives an event to the machine, judges what it says and carries it out. */
static inline void world_tell(struct world *w, struct mu_agent_event event)
{
    struct mu_agent_update u = {0};
    int err;

    event.now.mono.ns = w->now_ms * MU_NS_PER_MS;
    err = mu_agent_step(&w->agent, &event, &u);
    w->steps += 1;
    if (err != 0) {
        WORLD_FAULT(w, "%s is refused while %s", mu_agent_event_name(event.type),
                    mu_agent_state_name(w->agent.state));
        return;
    }
    if (w->plant == WORLD_LAST_BLAMED && event.type == MU_AGENT_EXITED && event.exit_code != 0) {
        w->agent.first_rank = event.local_rank;
    }
    world_tamper(w, &u);
    if (w->loud) {
        printf("%8llu %-12s round %llu gen %llu rank %u code %d -> 0x%03x %s %s\n",
               (unsigned long long)w->now_ms, mu_agent_event_name(event.type),
               (unsigned long long)event.round, (unsigned long long)event.generation,
               event.local_rank, event.exit_code, u.flags, mu_agent_state_name(w->agent.state),
               u.text == NULL ? "" : u.text);
    }
    world_judge(w, &u);
    if ((u.flags & (MU_AGENT_DO_SIGNAL | MU_AGENT_DO_KILL)) != 0) {
        world_signal(w, (u.flags & MU_AGENT_DO_KILL) != 0, u.signal);
    }
    world_carry_out_rdzv(w, &u);
    if ((u.flags & MU_AGENT_DO_SPAWN) != 0) {
        world_carry_out_spawn(w, &u);
    }
    world_carry_out_meeting(w, &u);
    if ((u.flags & MU_AGENT_ENDED) != 0) {
        world_judge_end(w, &u);
    }
    world_judge_deadline(w);
}

/* --- what happens ---------------------------------------------------------------------------- */

static inline void world_rdzv_fails(struct world *w, int code)
{
    if (!w->joining && !w->in_round) {
        return;
    }
    w->joining = false;
    w->in_round = false;
    w->disturbed = true;
    w->over = w->over || code == MUSTER_ERDZV_RESTARTS || code == MUSTER_ERDZV_CLOSED;
    world_tell(w, (struct mu_agent_event){.type = MU_AGENT_RDZV_FAILED, .code = code});
}

static inline void world_assign(struct world *w, const struct world_item *item)
{
    static const int codes[] = {MUSTER_ERDZV_TIMEOUT, MUSTER_ERDZV_CONN, MUSTER_ERDZV_GRACEFUL};
    bool fewer;

    if (!w->joining || item->serial != w->join_serial) {
        return;
    }
    if (w->over) {
        world_rdzv_fails(w, w->kept && w->hopeless ? MUSTER_ERDZV_RESTARTS : MUSTER_ERDZV_CLOSED);
        return;
    }
    if (world_chance(w, w->rdzv_fails / 4)) {
        world_rdzv_fails(w, codes[world_pick(w, 3)]);
        return;
    }
    w->joining = false;
    w->in_round = true;
    w->round = w->round_next;
    w->round_next += 1 + world_pick(w, 2);
    w->doubt_by = 0;
    fewer = world_pick(w, 4) == 0;
    if (fewer && w->may_echo) {
        w->failed_here = false; /* It was the echo of a loss. */
    }
    w->may_echo = false;
    w->first_rank = MU_AGENT_NO_RANK; /* The run has recovered from that failure. */
    world_tell(w, (struct mu_agent_event){.type = MU_AGENT_ASSIGNED,
                                          .round = w->round,
                                          .restarts_left = w->kept ? w->left : MU_AGENT_NOT_KEPT,
                                          .doubt_ms = w->kept ? 0 : w->doubt_ms,
                                          .fewer = fewer,
                                          .host = w->host});
}

/* Nobody answers, and the others will not wait for ever; or it is past that already. */
static inline void world_cut_off(struct world *w)
{
    uint64_t late = world_pick(w, 500);

    w->cut_by = w->now_ms + world_pick(w, 3000);
    w->cut_by = w->cut_by > late ? w->cut_by - late : 0;
    w->cut_generation = w->generation;
    world_tell(w,
               (struct mu_agent_event){.type = MU_AGENT_CUT_OFF, .by = {w->cut_by * MU_NS_PER_MS}});
}

static inline void world_check_cut(struct world *w)
{
    const struct mu_agent *a = &w->agent;

    if (w->cut_generation != 0 && w->cut_generation == a->generation && a->alive &&
        w->now_ms > w->cut_by && a->stop != MU_AGENT_STOP_KILLED &&
        a->exited != a->config.workers) {
        WORLD_FAULT(w, "lets workers outlive a fence");
    }
}

static inline void world_round_ends(struct world *w)
{
    if (w->in_round) {
        if (world_pick(w, 4) == 0) {
            world_cut_off(w);
        }
        w->in_round = false;
        w->disturbed = true;
        if (w->doubt_by != 0) {
            w->failed_here = false;
        }
        world_tell(w, (struct mu_agent_event){.type = MU_AGENT_ROUND_ENDED,
                                              .round = w->round,
                                              .lost = world_pick(w, 2) == 0,
                                              .text = "a member was lost"});
        if (!w->joining && w->agent.joining) {
            WORLD_FAULT(w, "joins in secret");
        }
    }
}

/* What was true once, or is told again. */
static inline void world_stale(struct world *w)
{
    struct mu_agent_event e = {.type = 1 + (enum mu_agent_event_type)world_pick(w, 18),
                               .round = w->round - 1,
                               .generation = w->generation - 1,
                               .restarts_left = MU_AGENT_NOT_KEPT,
                               .signal = 15};
    struct mu_agent before = w->agent;
    struct mu_agent_update u;
    uint32_t rank = (uint32_t)world_pick(w, w->config.workers);

    if (e.type == MU_AGENT_EXITED && w->generation != 0 && w->exit_told[rank] && !w->ended) {
        e.generation = w->generation;
        e.local_rank = rank;
        e.now.mono.ns = w->now_ms * MU_NS_PER_MS;
        if (mu_agent_step(&w->agent, &e, &u) != MUSTER_EINVAL ||
            memcmp(&before, &w->agent, sizeof(before)) != 0) {
            WORLD_FAULT(w, "worker %u is reaped twice", rank);
        }
        return;
    }
    if (e.type == MU_AGENT_TIMEOUT || w->generation < 2 || w->round < 1 ||
        e.type == MU_AGENT_RDZV_FAILED || e.type == MU_AGENT_RDZV_CLOSED ||
        e.type == MU_AGENT_SIGNAL || e.type == MU_AGENT_START || e.type == MU_AGENT_CUT_OFF ||
        (e.type == MU_AGENT_ALONE && mu_agent_hosts_only(&w->agent)) ||
        (e.type == MU_AGENT_ASSIGNED && w->joining)) {
        return;
    }
    e.now.mono.ns = w->now_ms * MU_NS_PER_MS;
    if (mu_agent_step(&w->agent, &e, &u) != 0 || u.flags != 0) {
        WORLD_FAULT(w, "takes a stale %s to heart", mu_agent_event_name(e.type));
    }
}

static inline void world_happens(struct world *w, const struct world_item *item)
{
    switch (item->what) {
    case NEWS_EVENT:
        world_tell(w, item->event);
        break;
    case NEWS_DIES:
        world_die(w, item);
        break;
    case NEWS_SPAWN:
        if (w->spawning && item->serial == w->spawn_serial) {
            world_spawn_next(w);
        }
        break;
    case NEWS_ASSIGN:
        world_assign(w, item);
        break;
    case NEWS_ROUND_ENDS:
        world_round_ends(w);
        break;
    case NEWS_SURE:
        if (w->in_round && item->event.round == w->round) {
            w->doubt_by = 0;
        }
        world_tell(w, (struct mu_agent_event){.type = MU_AGENT_SURE, .round = item->event.round});
        break;
    case NEWS_RDZV_FAILS:
        world_rdzv_fails(w, MUSTER_ERDZV_CONN);
        break;
    case NEWS_RDZV_CLOSES:
        w->over = true;
        if (w->joining) {
            world_rdzv_fails(w, MUSTER_ERDZV_CLOSED);
        }
        world_tell(w, (struct mu_agent_event){.type = MU_AGENT_RDZV_CLOSED});
        break;
    case NEWS_AGENT_SIGNALLED:
        w->any_signal = true;
        world_tell(w, (struct mu_agent_event){.type = MU_AGENT_SIGNAL,
                                              .signal = 1 + (int)world_pick(w, 30)});
        break;
    case NEWS_STALE:
        world_stale(w);
        break;
    }
}

/* --- a run ----------------------------------------------------------------------------------- */

/* One in four of the likelihoods is nothing: what only shows without the rest must show too. */
static inline uint32_t world_likely(struct world *w, uint32_t ppm)
{
    return world_pick(w, 4) == 0 ? 0 : (uint32_t)world_pick(w, ppm);
}

static inline void world_init(struct world *w, uint64_t seed, enum world_plant plant)
{
    struct mu_errmsg msg;

    memset(w, 0, sizeof(*w));
    mu_prng_seed(&w->prng, seed);
    w->plant = plant;
    w->config = mu_agent_config_defaults();
    w->config.workers = 1 + (uint32_t)world_pick(w, WORLD_WORKERS);
    w->config.restarts_max = (uint32_t)world_pick(w, 4);
    w->config.grace_ms = world_pick(w, 3) == 0 ? 0 : world_pick(w, 10000);
    w->config.kill_ms = 100 + world_pick(w, 5000);
    w->config.change_ms = world_pick(w, 2) == 0 ? 0 : world_pick(w, 8000);
    w->config.exchange_ms = 1000 + world_pick(w, 20000);
    w->config.exit_barrier_ms = 1000 + world_pick(w, 300000);
    w->kept = world_pick(w, 2) == 0;
    if (world_pick(w, 4) == 0) {
        w->config.losses =
            (struct mu_losses){.max = 1 + (uint32_t)world_pick(w, 3), .window_ms = 60000};
    }
    w->doubt_ms = world_pick(w, 2) == 0 ? 0 : 1 + world_pick(w, 20000);
    w->host = world_pick(w, 2) == 0;
    w->left = w->config.restarts_max;
    w->fails = world_likely(w, 600000);
    w->stubborn = world_likely(w, 500000);
    w->unkillable = world_pick(w, 8) == 0 ? world_likely(w, 100000) : 0;
    w->children = world_likely(w, 500000);
    w->mute = world_likely(w, 300000);
    w->rdzv_fails = world_likely(w, 400000);
    w->closes = world_pick(w, 4) == 0 ? 1000000 : 0;
    w->ends = world_likely(w, 12);
    w->signals = world_pick(w, 3) == 0 ? 4 : 0;
    w->early = world_likely(w, 1000000);
    w->first_rank = MU_AGENT_NO_RANK;
    w->stop_since = UINT64_MAX;
    if (mu_agent_init(&w->agent, &w->config, &msg) != 0) {
        WORLD_FAULT(w, "%.200s", msg.text);
    }
    for (uint64_t i = 0; i < w->ends; i++) {
        world_add(w, world_pick(w, WORLD_CALM_MS), NEWS_ROUND_ENDS);
    }
    for (uint64_t i = 0; w->signals != 0 && i < 1 + world_pick(w, w->signals); i++) {
        world_add(w, world_pick(w, WORLD_CALM_MS), NEWS_AGENT_SIGNALLED);
    }
    for (uint64_t i = 0; i < 40; i++) {
        world_add(w, world_pick(w, WORLD_CALM_MS), NEWS_STALE);
    }
    if (world_chance(w, w->closes)) {
        world_add(w, world_pick(w, WORLD_CALM_MS), NEWS_RDZV_CLOSES);
    }
    if (world_pick(w, 8) == 0) {
        world_add(w, world_pick(w, WORLD_CALM_MS), NEWS_RDZV_FAILS);
    }
}

static inline struct world_item *world_next(struct world *w)
{
    struct world_item *first = NULL;

    for (size_t i = 0; i < WORLD_NEWS; i++) {
        struct world_item *item = &w->news[i];

        if (item->seq != 0 && (first == NULL || item->at_ms < first->at_ms ||
                               (item->at_ms == first->at_ms && item->seq < first->seq))) {
            first = item;
        }
    }
    return first;
}

/** Runs it to its end. `w->fault` is empty if every promise was kept. */
static inline void world_run(struct world *w)
{
    world_tell(w, (struct mu_agent_event){.type = MU_AGENT_START});
    while (w->fault[0] == '\0') {
        struct world_item *next = world_next(w);
        uint64_t due = mu_agent_deadline(&w->agent).ns;
        uint64_t due_ms = due == UINT64_MAX ? UINT64_MAX : due / MU_NS_PER_MS;

        if (w->plant == WORLD_DEAF) {
            due_ms = UINT64_MAX;
        }
        if (due_ms != UINT64_MAX && (next == NULL || due_ms <= next->at_ms)) {
            w->now_ms = due_ms > w->now_ms ? due_ms : w->now_ms;
            world_tell(w, (struct mu_agent_event){.type = MU_AGENT_TIMEOUT});
        } else if (next != NULL) {
            struct world_item item = *next;

            next->seq = 0;
            w->now_ms = item.at_ms > w->now_ms ? item.at_ms : w->now_ms;
            world_happens(w, &item);
        } else {
            break;
        }
        world_check_cut(w);
        if (w->steps > WORLD_STEP_MAX || w->now_ms > WORLD_END_MS) {
            WORLD_FAULT(w, "still %s after %llu s", mu_agent_state_name(w->agent.state),
                        (unsigned long long)w->now_ms / 1000);
        }
    }
    if (!w->ended) {
        WORLD_FAULT(w, "nothing is left to happen while %s", mu_agent_state_name(w->agent.state));
    }
}

#endif

/* When the node looks again, gives up, or tries once more. */
#include "proto/rdzv/node_internal.h"

/* The time between the warning and giving up. */
#define LAST_CHANCE_MS 1000
/* How many writes may be lost in a row before the number of nodes counts as a bad guess. */
#define LOSSES_TO_DOUBT 4
/* One node's turn takes a read, a write, and as long again while the others leave it alone. */
#define TURN_ANSWERS 3
/* The heartbeats of N nodes cause N reads by each node; the reads may be spread over this time. */
#define MEMBER_READ_MS_PER_NODE 10
/* The least time that an answer counts as: within a host, timers are no finer. */
#define ANSWER_NS_MIN (MU_NS_PER_MS / 4)
/* The least time to the next wake-up, whatever clocks say, so that no two decisions share an
 * instant. */
#define SLEEP_NS_MIN (1 * MU_NS_PER_MS)

/* Returns a nanosecond after our wall clock shows `at` plus a time, if the clock is not set
 * meanwhile. */
static mu_mono_t after_wall(const struct mu_rdzv *r, mu_wall_t at, uint64_t plus_ms)
{
    /* Adds nanoseconds and saturates. */
    uint64_t target = mu_mono_add_ms((mu_mono_t){at.ns}, plus_ms).ns;
    uint64_t wall = r->v.now.wall.ns;

    return mu_mono_add_ns(r->v.now.mono, target > wall ? target - wall + 1 : 1);
}

static mu_mono_t random_within(struct mu_rdzv *r, uint64_t window_ns)
{
    return mu_mono_add_ns(r->v.now.mono,
                          window_ns == 0 ? 0 : mu_prng_below(&r->v.prng, window_ns + 1));
}

/* Returns a time that grows with a number of nodes, up to the time between polls. */
static uint64_t spread_over(const struct mu_rdzv *r, size_t nodes)
{
    uint64_t most = r->config.poll_ms * MU_NS_PER_MS;
    uint64_t ns = nodes * (uint64_t)r->config.spread_us_per_node * 1000;

    return ns < most ? ns : most;
}

/* The estimate falls quickly and rises slowly: the time of hundreds of requests at once is not the
 * time of one. */
void mu_rdzv_node_took(struct mu_rdzv *r, uint64_t ns)
{
    uint64_t most = r->v.answer_ns < ANSWER_NS_MIN ? ANSWER_NS_MIN : 2 * r->v.answer_ns;

    r->v.answer_ns = ns < most ? ns : most;
}

/* A guess until it was measured. */
static uint64_t pace_of(const struct mu_rdzv_vars *v)
{
    uint64_t answer = v->answer_ns > ANSWER_NS_MIN ? v->answer_ns : ANSWER_NS_MIN;

    return v->pace_ns != 0 ? v->pace_ns : TURN_ANSWERS * answer;
}

void mu_rdzv_node_measure_pace(struct mu_rdzv *r)
{
    struct mu_rdzv_vars *v = &r->v;
    size_t count = mu_rdzv_participants(&r->state);

    if (r->state.round == v->paced_round && count == v->paced_count) {
        return; /* The measurement continues. */
    }
    if (r->state.round == v->paced_round && count > v->paced_count) {
        uint64_t most = 2 * pace_of(v);
        uint64_t pace = mu_mono_since(v->paced_at, v->now.mono) / (count - v->paced_count);

        v->pace_ns = pace < most ? pace : most;
    } else {
        v->pace_ns = 0;
    }
    v->paced_at = v->now.mono;
    v->paced_count = count;
    v->paced_round = r->state.round;
}

/* Returns the time that so many nodes will need to write, one after the other. */
static uint64_t time_for(const struct mu_rdzv *r, size_t nodes)
{
    uint64_t most = r->config.settings.keep_alive_interval_ms * MU_NS_PER_MS;
    uint64_t pace = pace_of(&r->v);

    return pace > most / (nodes + 1) ? most : pace * nodes;
}

/*
 * Returns how many nodes may be trying to write: those that the round still has room for, and those
 * whose heartbeat is due. Nodes that joined in the same second have their heartbeats in the same
 * second.
 */
static size_t contenders(const struct mu_rdzv *r)
{
    const struct mu_rdzv_state *s = &r->state;
    size_t count = mu_rdzv_participants(s);
    size_t max = r->config.settings.max_nodes;
    size_t due = 0;

    for (size_t i = 0; i < s->member_count; i++) {
        due +=
            s->members[i].has_heartbeat && mu_mono_add_ms((mu_mono_t){s->members[i].heartbeat.ns},
                                                          r->config.settings.keep_alive_interval_ms)
                                                   .ns <= r->v.now.wall.ns;
    }
    return due + (s->complete || count >= max ? 0 : max - count);
}

/*
 * Without push, PyTorch's rule holds: a state that is less than a second old is not read again.
 * With push, a state is good until the watch fires. Heartbeats also refresh it; the limit is for a
 * node that has no heartbeat to send and whose watch was lost.
 */
static uint64_t cache_ms(const struct mu_rdzv *r)
{
    return r->config.push ? 2 * r->config.settings.keep_alive_interval_ms : r->config.poll_ms;
}

bool mu_rdzv_node_is_fresh(const struct mu_rdzv *r)
{
    const struct mu_rdzv_vars *v = &r->v;

    if (!v->known || (v->stale && mu_mono_reached(v->read_at, v->now.mono))) {
        return false;
    }
    return mu_mono_before(v->now.mono, mu_mono_add_ms(v->synced_at, cache_ms(r)));
}

/* Returns the next moment at which the same state asks for something else. */
static mu_mono_t next_turn(struct mu_rdzv *r)
{
    const struct mu_rdzv_settings *set = &r->config.settings;
    const struct mu_rdzv_state *s = &r->state;
    const struct mu_rdzv_member *me = mu_rdzv_state_find(s, &r->node);
    uint64_t dead_after = mu_rdzv_dead_after_ms(set);
    mu_mono_t turn = MU_MONO_NEVER;

    for (size_t i = 0; i < s->member_count; i++) {
        const struct mu_rdzv_member *m = &s->members[i];

        if (m->has_heartbeat) {
            turn = mu_mono_min(turn, after_wall(r, m->heartbeat, dead_after));
        }
    }
    if (me != NULL && me->has_heartbeat) {
        turn = mu_mono_min(turn, after_wall(r, me->heartbeat, set->keep_alive_interval_ms));
    }
    if (r->v.phase != MU_RDZV_JOINING) {
        return turn;
    }
    if (!mu_mono_before(r->v.op_deadline, r->v.now.mono)) {
        turn = mu_mono_min(turn, mu_mono_add_ns(r->v.op_deadline, 1));
    }
    if (me != NULL && me->participant && !s->complete && s->has_deadline) {
        /* The last call ends at the same moment for all nodes, and one write is enough. */
        uint64_t late =
            mu_mono_since(r->v.now.mono, random_within(r, spread_over(r, s->member_count)));

        turn = mu_mono_min(turn, mu_mono_add_ns(after_wall(r, s->deadline, 0), late));
    }
    return turn;
}

mu_mono_t mu_rdzv_node_next_look(struct mu_rdzv *r)
{
    const struct mu_rdzv_vars *v = &r->v;
    mu_mono_t look;

    if (r->config.push) {
        look = mu_mono_add_ms(v->synced_at, cache_ms(r));
    } else {
        look = mu_mono_add_ms(v->now.mono, r->config.poll_ms);
    }
    look = mu_mono_min(look, next_turn(r));
    if (mu_mono_before(look, mu_mono_add_ns(v->now.mono, SLEEP_NS_MIN))) {
        look = mu_mono_add_ns(v->now.mono, SLEEP_NS_MIN);
    }
    return look;
}

static bool is_spare(const struct mu_rdzv *r)
{
    const struct mu_rdzv_member *me = r->v.known ? mu_rdzv_state_find(&r->state, &r->node) : NULL;

    return me != NULL && me->spare;
}

mu_mono_t mu_rdzv_node_patience(const struct mu_rdzv *r, unsigned ops)
{
    const struct mu_rdzv_vars *v = &r->v;
    /* A node that cannot renew its heartbeat for so long counts as lost for the others. */
    mu_mono_t touch = mu_mono_add_ms(v->synced_at, mu_rdzv_dead_after_ms(&r->config.settings));
    mu_mono_t end = MU_MONO_NEVER;

    if ((ops & MU_RDZV_OP_MEMBER) != 0) {
        end = mu_mono_min(end, touch);
    }
    if ((ops & (MU_RDZV_OP_JOIN | MU_RDZV_OP_LEAVE)) != 0) {
        mu_mono_t op = mu_mono_add_ms(v->op_deadline, MU_RDZV_ROLLBACK_MS);

        /* A spare has no deadline. */
        end = mu_mono_min(end, v->phase == MU_RDZV_JOINING && is_spare(r) ? touch : op);
    }
    if ((ops & MU_RDZV_OP_CLOSE) != 0) {
        end = mu_mono_min(end, mu_mono_add_ms(v->close_deadline, MU_RDZV_ROLLBACK_MS));
    }
    if ((ops & MU_RDZV_OP_LOOK) != 0) {
        end = mu_mono_min(end, v->look_deadline);
    }
    if (v->reading || v->writing) {
        /* If our own process was suspended, a request that went out since still has its time. */
        mu_mono_t fair = mu_mono_add_ms(v->asked_at, r->config.settings.heartbeat_timeout_ms);

        if (v->warned) {
            fair = mu_mono_add_ms(v->warned_at, LAST_CHANCE_MS);
        }
        end = mu_mono_before(end, fair) ? fair : end;
    }
    return end;
}

/* Returns `base_ms` doubled `times` times, up to a ceiling. */
static uint64_t doubled_ns(uint64_t base_ms, uint32_t times, uint64_t max_ms)
{
    uint64_t ms = base_ms;

    for (uint32_t i = 0; i < times && ms < max_ms; i++) {
        ms *= 2;
    }
    return (ms < max_ms ? ms : max_ms) * MU_NS_PER_MS;
}

/*
 * A write is lost if another one got in since the state was read, so it does not help to try more
 * often than the backend can answer. That rate is unknown, but all nodes can see how fast the round
 * fills. A node that tries at random within half of the remaining time tries twice as often as a
 * node gets in. If the backend can do more, the round fills faster, and all try more often; if it
 * cannot, half of the tries are lost and the rate stays.
 *
 * If writes are lost again and again, doubling finds the right rate.
 */
mu_mono_t mu_rdzv_node_backoff(struct mu_rdzv *r)
{
    uint32_t losses = r->v.losses;
    uint64_t guess = time_for(r, contenders(r)) / 2;
    uint64_t ns;

    if (guess != 0) {
        losses = losses > LOSSES_TO_DOUBT ? losses - LOSSES_TO_DOUBT : 0;
    }
    ns = doubled_ns(r->config.backoff_ms_min, losses == 0 ? 0 : losses - 1,
                    r->config.backoff_ms_max);
    return random_within(r, ns > guess ? ns : guess);
}

mu_mono_t mu_rdzv_node_retry(struct mu_rdzv *r)
{
    uint32_t times = r->v.failures == 0 ? 0 : r->v.failures - 1;
    uint64_t ns = doubled_ns(r->config.retry_ms, times, r->config.poll_ms);

    /* At least half of it, because haste does not help a backend that is down. */
    return mu_mono_add_ns(random_within(r, ns / 2), ns / 2);
}

/*
 * All read after a change, so their reads are spread over a time that grows with their number. A
 * participant of a round that is far from its minimum has even less reason to read: it can sleep
 * through most of the time that the others will need.
 */
mu_mono_t mu_rdzv_node_spread(struct mu_rdzv *r)
{
    size_t count = mu_rdzv_participants(&r->state);
    size_t min = r->config.settings.min_nodes;
    size_t missing = r->state.complete || count >= min ? 0 : min - count;
    mu_mono_t at = random_within(r, spread_over(r, r->state.member_count));

    return mu_mono_add_ns(at, time_for(r, missing) / 4 * 3);
}

mu_mono_t mu_rdzv_node_next_member_read(const struct mu_rdzv *r)
{
    uint64_t ms = r->state.member_count * MEMBER_READ_MS_PER_NODE;

    return mu_mono_add_ms(r->v.synced_at, ms < r->config.poll_ms ? ms : r->config.poll_ms);
}

#include "proto/rdzv/rules.h"

#include <string.h>

#define NS_PER_US UINT64_C(1000)

/* --- settings ---------------------------------------------------- */

struct mu_rdzv_settings mu_rdzv_settings_defaults(void)
{
    return (struct mu_rdzv_settings){
        .keep_alive_interval_ms = 5000,
        .keep_alive_max_attempt = 3,
        .join_timeout_ms = 600000,
        .last_call_timeout_ms = 30000,
        .close_timeout_ms = 30000,
        .heartbeat_timeout_ms = 5000,
        .skew_ms_max = 5000,
        .generation = MU_RDZV_GENERATION_2,
    };
}

int mu_rdzv_settings_check(const struct mu_rdzv_settings *settings, struct mu_errmsg *reterr_msg)
{
    const struct {
        const char *name;
        uint64_t ms;
    } times[] = {
        {"keep-alive interval", settings->keep_alive_interval_ms},
        {"join timeout", settings->join_timeout_ms},
        {"last call timeout", settings->last_call_timeout_ms},
        {"close timeout", settings->close_timeout_ms},
        {"heartbeat timeout", settings->heartbeat_timeout_ms},
    };

    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        if (times[i].ms == 0 || times[i].ms > MU_RDZV_TIMEOUT_MS_MAX) {
            return mu_err(reterr_msg, MUSTER_EINVAL,
                          "the %s (%llu ms) must be positive and at "
                          "most a year",
                          times[i].name, (unsigned long long)times[i].ms);
        }
    }
    if (settings->keep_alive_max_attempt == 0 ||
        mu_rdzv_dead_after_ms(settings) > MU_RDZV_TIMEOUT_MS_MAX) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "the keep-alive attempts (%u) must be positive, and times the interval at "
                      "most a year",
                      (unsigned)settings->keep_alive_max_attempt);
    }
    if (settings->min_nodes < 1) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "the minimum number of nodes (%zu) must be greater than zero",
                      settings->min_nodes);
    }
    if (settings->max_nodes < settings->min_nodes || settings->max_nodes > MU_RDZV_MEMBERS_MAX) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "the maximum number of nodes (%zu) must be from the minimum (%zu) to %d",
                      settings->max_nodes, settings->min_nodes, MU_RDZV_MEMBERS_MAX);
    }
    return 0;
}

uint64_t mu_rdzv_dead_after_ms(const struct mu_rdzv_settings *settings)
{
    /* Both are below 2^35 and 2^32 once checked; unchecked ones saturate. */
    uint64_t interval = settings->keep_alive_interval_ms;
    uint64_t attempts = settings->keep_alive_max_attempt;

    return attempts != 0 && interval > UINT64_MAX / attempts ? UINT64_MAX : interval * attempts;
}

/* --- wall clocks -------------------------------------------------- */

static mu_wall_t wall_add_ms(mu_wall_t t, uint64_t ms)
{
    uint64_t ns = ms > UINT64_MAX / MU_NS_PER_MS ? UINT64_MAX : ms * MU_NS_PER_MS;

    return (mu_wall_t){t.ns > UINT64_MAX - ns ? UINT64_MAX : t.ns + ns};
}

/* Rounds a time to what the wire keeps, so that we hold what others read. */
static mu_wall_t cut_to_us(mu_wall_t t)
{
    return (mu_wall_t){t.ns - t.ns % NS_PER_US};
}

/* --- counting ----------------------------------------------------- */

size_t mu_rdzv_participants(const struct mu_rdzv_state *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->member_count; i++) {
        n += s->members[i].participant;
    }
    return n;
}

size_t mu_rdzv_waiting(const struct mu_rdzv_state *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->member_count; i++) {
        n += s->members[i].waiting;
    }
    return n;
}

size_t mu_rdzv_spares(const struct mu_rdzv_state *s)
{
    size_t n = 0;

    for (size_t i = 0; i < s->member_count; i++) {
        n += s->members[i].spare;
    }
    return n;
}

/* --- the seal (ours) ---------------------------------------------- */

/*
 * The field `deadline` is read only while a round is not complete, and is set again when the next
 * one has its minimum. PyTorch empties it on completion; we put the second of the completion there
 * and, as its microseconds, the number of participants. PyTorch's agents carry it along.
 */
static void seal(struct mu_rdzv_state *s, size_t world, mu_wall_t now)
{
    s->has_deadline = true;
    s->deadline = (mu_wall_t){now.ns - now.ns % MU_NS_PER_S + world * NS_PER_US};
}

static size_t sealed_world(const struct mu_rdzv_state *s)
{
    return s->complete && s->has_deadline ? (size_t)(s->deadline.ns % MU_NS_PER_S / NS_PER_US) : 0;
}

bool mu_rdzv_intact(const struct mu_rdzv_state *s)
{
    uint64_t seen[MU_RDZV_MEMBERS_MAX / 64 + 1];
    size_t n = mu_rdzv_participants(s);
    size_t sealed = sealed_world(s);

    if (!s->complete || n == 0 || n > MU_RDZV_MEMBERS_MAX || (sealed != 0 && sealed != n)) {
        return false;
    }
    /* n different ranks below n are all of them. Another node may have written anything. */
    memset(seen, 0, (n / 64 + 1) * sizeof(seen[0]));
    for (size_t i = 0; i < s->member_count; i++) {
        const struct mu_rdzv_member *m = &s->members[i];
        uint64_t rank = (uint64_t)m->rank;

        if (m->participant) {
            if (rank >= n || (seen[rank / 64] >> (rank % 64) & 1) != 0) {
                return false;
            }
            seen[rank / 64] |= UINT64_C(1) << (rank % 64);
        }
    }
    return true;
}

/* --- decisions ---------------------------------------------------- */

/* Row 15, and the whole of keep-alive. For a node that is not in the state no heartbeat is ever
 * due, so that a node that was expelled does not come back by a heartbeat. */
static bool heartbeat_is_due(const struct mu_rdzv_ask *ask, const struct mu_rdzv_member *me)
{
    return me != NULL && me->has_heartbeat &&
           wall_add_ms(me->heartbeat, ask->settings->keep_alive_interval_ms).ns <= ask->now.wall.ns;
}

static bool timed_out(const struct mu_rdzv_ask *ask)
{
    return mu_mono_before(ask->deadline, ask->now.mono);
}

/* Rows 6 to 8: the deadline has passed. The node has a short time to remove itself; if that fails,
 * its heartbeat expires all the same. */
static enum mu_rdzv_action decide_after_deadline(const struct mu_rdzv_ask *ask,
                                                 const struct mu_rdzv_member *me)
{
    mu_mono_t give_up = mu_mono_add_ms(ask->deadline, MU_RDZV_ROLLBACK_MS);

    if (ask->now.mono.ns <= give_up.ns && me != NULL) {
        if (me->participant) {
            return MU_RDZV_ACT_REMOVE_FROM_PARTICIPANTS; /* 6 */
        }
        if (me->waiting) {
            return MU_RDZV_ACT_REMOVE_FROM_WAIT_LIST; /* 7 */
        }
    }
    return MU_RDZV_ACT_ERROR_TIMEOUT; /* 8 */
}

enum mu_rdzv_action mu_rdzv_decide_join(const struct mu_rdzv_ask *ask)
{
    const struct mu_rdzv_state *s = ask->state;
    const struct mu_rdzv_settings *set = ask->settings;
    const struct mu_rdzv_member *me = mu_rdzv_state_find(s, ask->node);
    bool participant = me != NULL && me->participant;
    bool waiting = me != NULL && me->waiting;
    bool has_spares = set->generation != MU_RDZV_GENERATION_1;
    bool spare = has_spares && me != NULL && me->spare;
    size_t count = mu_rdzv_participants(s);

    if (s->closed) {
        return spare ? MU_RDZV_ACT_ERROR_GRACEFUL : MU_RDZV_ACT_ERROR_CLOSED; /* 1, 2 */
    }
    if (spare) {
        if (count != set->max_nodes) {
            return MU_RDZV_ACT_REMOVE_FROM_REDUNDANCY_LIST; /* 4 */
        }
        /* A spare waits without a deadline. */
        return heartbeat_is_due(ask, me) ? MU_RDZV_ACT_KEEP_ALIVE : MU_RDZV_ACT_SYNC; /* 3 */
    }
    if (s->complete && participant) {
        if (mu_rdzv_intact(s)) {
            return MU_RDZV_ACT_FINISH; /* 5 */
        }
        /* Ours: a node left before we learnt of the round. The others were promised a larger world,
         * so no node will meet us in what is left: we leave it and join the next one. */
        if (!timed_out(ask)) {
            return MU_RDZV_ACT_REMOVE_FROM_PARTICIPANTS;
        }
    }
    if (timed_out(ask)) {
        return decide_after_deadline(ask, me); /* 6, 7, 8 */
    }
    if (s->complete) {
        if (count >= set->max_nodes && has_spares) {
            return MU_RDZV_ACT_ADD_TO_REDUNDANCY_LIST; /* 10; ours: from the wait list as well */
        }
        if (count >= set->max_nodes && waiting) {
            return MU_RDZV_ACT_REMOVE_FROM_WAIT_LIST; /* ours, because there is no redundancy
                                                         list */
        }
        if (count < set->max_nodes && !waiting) {
            return MU_RDZV_ACT_ADD_TO_WAIT_LIST; /* 9 */
        }
        /* 11 */
    } else if (participant) {
        if (count >= set->min_nodes && count <= set->max_nodes && s->has_deadline &&
            s->deadline.ns < ask->now.wall.ns) {
            return MU_RDZV_ACT_MARK_COMPLETE; /* 12; 1.13 crashes if there is no deadline */
        }
        /* 13 */
    } else {
        return MU_RDZV_ACT_ADD_TO_PARTICIPANTS; /* 14 */
    }
    return heartbeat_is_due(ask, me) ? MU_RDZV_ACT_KEEP_ALIVE : MU_RDZV_ACT_SYNC; /* 15, 16 */
}

enum mu_rdzv_action mu_rdzv_decide_exit(const struct mu_rdzv_ask *ask)
{
    const struct mu_rdzv_member *me = mu_rdzv_state_find(ask->state, ask->node);

    if (me == NULL || !me->participant) {
        return MU_RDZV_ACT_FINISH;
    }
    return timed_out(ask) ? MU_RDZV_ACT_ERROR_TIMEOUT : MU_RDZV_ACT_REMOVE_FROM_PARTICIPANTS;
}

enum mu_rdzv_action mu_rdzv_decide_leave(const struct mu_rdzv_ask *ask)
{
    const struct mu_rdzv_member *me = mu_rdzv_state_find(ask->state, ask->node);

    if (me == NULL || !(me->participant || me->waiting || me->spare)) {
        return MU_RDZV_ACT_FINISH;
    }
    if (timed_out(ask)) {
        return MU_RDZV_ACT_ERROR_TIMEOUT;
    }
    if (me->participant) {
        return MU_RDZV_ACT_REMOVE_FROM_PARTICIPANTS;
    }
    return me->waiting ? MU_RDZV_ACT_REMOVE_FROM_WAIT_LIST
                       : MU_RDZV_ACT_REMOVE_FROM_REDUNDANCY_LIST;
}

enum mu_rdzv_action mu_rdzv_decide_close(const struct mu_rdzv_ask *ask)
{
    if (ask->state->closed) {
        return MU_RDZV_ACT_FINISH;
    }
    return timed_out(ask) ? MU_RDZV_ACT_ERROR_TIMEOUT : MU_RDZV_ACT_MARK_CLOSED;
}

enum mu_rdzv_action mu_rdzv_decide_keep_alive(const struct mu_rdzv_ask *ask)
{
    if (!heartbeat_is_due(ask, mu_rdzv_state_find(ask->state, ask->node))) {
        return MU_RDZV_ACT_FINISH;
    }
    return timed_out(ask) ? MU_RDZV_ACT_ERROR_TIMEOUT : MU_RDZV_ACT_KEEP_ALIVE;
}

/* --- what actions do ---------------------------------------------- */

bool mu_rdzv_action_writes(enum mu_rdzv_action action)
{
    return action <= MU_RDZV_ACT_MARK_CLOSED;
}

const char *mu_rdzv_action_name(enum mu_rdzv_action action)
{
    static const char *const names[] = {
        [MU_RDZV_ACT_KEEP_ALIVE] = "KEEP_ALIVE",
        [MU_RDZV_ACT_ADD_TO_PARTICIPANTS] = "ADD_TO_PARTICIPANTS",
        [MU_RDZV_ACT_ADD_TO_WAIT_LIST] = "ADD_TO_WAIT_LIST",
        [MU_RDZV_ACT_ADD_TO_REDUNDANCY_LIST] = "ADD_TO_REDUNDANCY_LIST",
        [MU_RDZV_ACT_REMOVE_FROM_PARTICIPANTS] = "REMOVE_FROM_PARTICIPANTS",
        [MU_RDZV_ACT_REMOVE_FROM_WAIT_LIST] = "REMOVE_FROM_WAIT_LIST",
        [MU_RDZV_ACT_REMOVE_FROM_REDUNDANCY_LIST] = "REMOVE_FROM_REDUNDANCY_LIST",
        [MU_RDZV_ACT_MARK_COMPLETE] = "MARK_RENDEZVOUS_COMPLETE",
        [MU_RDZV_ACT_MARK_CLOSED] = "MARK_RENDEZVOUS_CLOSED",
        [MU_RDZV_ACT_SYNC] = "SYNC",
        [MU_RDZV_ACT_ERROR_CLOSED] = "ERROR_CLOSED",
        [MU_RDZV_ACT_ERROR_TIMEOUT] = "ERROR_TIMEOUT",
        [MU_RDZV_ACT_FINISH] = "FINISH",
        [MU_RDZV_ACT_ERROR_GRACEFUL] = "ERROR_GRACEFUL",
    };

    return names[action];
}

static void beat(struct mu_rdzv_member *m, mu_wall_t now)
{
    m->has_heartbeat = true;
    m->heartbeat = cut_to_us(now);
}

/* Action 8: ranks in the order of the nodes. */
static void complete(struct mu_rdzv_state *s, mu_wall_t now)
{
    size_t world = 0;

    for (size_t i = 0; i < s->member_count; i++) {
        struct mu_rdzv_member *m = &s->members[s->order[i]];

        if (m->participant) {
            m->rank = (int64_t)world++;
        }
    }
    s->complete = true;
    seal(s, world, now);
}

static int add_to_participants(struct mu_rdzv_state *s, const struct mu_rdzv_node *node,
                               const struct mu_rdzv_settings *settings, mu_wall_t now)
{
    struct mu_rdzv_member *me;
    size_t count;
    int err = mu_rdzv_state_add(s, node, &me);

    if (err != 0) {
        return err;
    }
    me->waiting = false;
    me->participant = true;
    me->rank = 0; /* until the round is complete */
    beat(me, now);
    count = mu_rdzv_participants(s);
    if (count == settings->min_nodes) {
        s->has_deadline = true;
        s->deadline = cut_to_us(wall_add_ms(now, settings->last_call_timeout_ms));
    }
    if (count == settings->max_nodes) {
        complete(s, now);
    }
    return 0;
}

static int add_to_list(struct mu_rdzv_state *s, const struct mu_rdzv_node *node, bool spare,
                       mu_wall_t now)
{
    struct mu_rdzv_member *me;
    int err = mu_rdzv_state_add(s, node, &me);

    if (err != 0) {
        return err;
    }
    me->spare = spare;
    me->waiting = !spare;
    beat(me, now);
    return 0;
}

/* Updates the state after participants were removed, by their own wish or by sanitising. */
static void close_ranks(struct mu_rdzv_state *s, const struct mu_rdzv_settings *settings)
{
    size_t count = mu_rdzv_participants(s);

    if (s->complete) {
        if (count == 0) {
            s->complete = false;
            s->has_deadline = false; /* the seal goes with its round */
            s->round += s->round < MU_RDZV_ROUND_MAX;
        }
    } else if (count < settings->min_nodes) {
        s->has_deadline = false;
    }
}

static void remove_node(struct mu_rdzv_state *s, const struct mu_rdzv_node *node,
                        enum mu_rdzv_action action, const struct mu_rdzv_settings *settings)
{
    struct mu_rdzv_member *me = mu_rdzv_state_find(s, node);

    if (me == NULL) {
        return;
    }
    me->has_heartbeat = false;
    if (action == MU_RDZV_ACT_REMOVE_FROM_PARTICIPANTS) {
        me->participant = false;
        close_ranks(s, settings);
    } else if (action == MU_RDZV_ACT_REMOVE_FROM_WAIT_LIST) {
        me->waiting = false;
    } else {
        me->spare = false;
    }
    mu_rdzv_state_compact(s);
}

static int keep_alive(struct mu_rdzv_state *s, const struct mu_rdzv_node *node, mu_wall_t now)
{
    struct mu_rdzv_member *me;
    int err = mu_rdzv_state_add(s, node, &me);

    if (err == 0) {
        beat(me, now);
    }
    return err;
}

int mu_rdzv_apply(struct mu_rdzv_state *s, enum mu_rdzv_action action,
                  const struct mu_rdzv_node *node, const struct mu_rdzv_settings *settings,
                  mu_wall_t now)
{
    switch (action) {
    case MU_RDZV_ACT_KEEP_ALIVE:
        return keep_alive(s, node, now);
    case MU_RDZV_ACT_ADD_TO_PARTICIPANTS:
        return add_to_participants(s, node, settings, now);
    case MU_RDZV_ACT_ADD_TO_WAIT_LIST:
        return add_to_list(s, node, false, now);
    case MU_RDZV_ACT_ADD_TO_REDUNDANCY_LIST:
        return add_to_list(s, node, true, now);
    case MU_RDZV_ACT_REMOVE_FROM_PARTICIPANTS:
    case MU_RDZV_ACT_REMOVE_FROM_WAIT_LIST:
    case MU_RDZV_ACT_REMOVE_FROM_REDUNDANCY_LIST:
        remove_node(s, node, action, settings);
        return 0;
    case MU_RDZV_ACT_MARK_COMPLETE:
        complete(s, now);
        return 0;
    case MU_RDZV_ACT_MARK_CLOSED:
        s->closed = true;
        return 0;
    case MU_RDZV_ACT_SYNC:
    case MU_RDZV_ACT_ERROR_CLOSED:
    case MU_RDZV_ACT_ERROR_TIMEOUT:
    case MU_RDZV_ACT_FINISH:
    case MU_RDZV_ACT_ERROR_GRACEFUL:
        return 0;
    }
    return MUSTER_EINVAL; /* no such action */
}

/* --- the silent and the skewed ------------------------------------ */

/* Removes a member from everything; compaction follows. Returns whether it was a participant. */
static bool erase(struct mu_rdzv_member *m)
{
    bool participant = m->participant;

    m->participant = m->waiting = m->spare = m->has_heartbeat = false;
    return participant;
}

static void finish_dropping(struct mu_rdzv_state *s, size_t dropped, bool participant_removed,
                            const struct mu_rdzv_settings *settings)
{
    if (participant_removed) {
        close_ranks(s, settings);
    }
    if (dropped != 0) {
        mu_rdzv_state_compact(s);
    }
}

size_t mu_rdzv_expel(struct mu_rdzv_state *s, const bool *dead,
                     const struct mu_rdzv_settings *settings)
{
    bool participant_removed = false;
    size_t dropped = 0;

    for (size_t i = 0; i < s->member_count; i++) {
        if (dead[i]) {
            participant_removed = erase(&s->members[i]) || participant_removed;
            dropped++;
        }
    }
    finish_dropping(s, dropped, participant_removed, settings);
    return dropped;
}

size_t mu_rdzv_sanitise(struct mu_rdzv_state *s, const struct mu_rdzv_settings *settings,
                        mu_wall_t now)
{
    uint64_t dead_after = mu_rdzv_dead_after_ms(settings);
    bool participant_removed = false;
    size_t dropped = 0;

    for (size_t i = 0; i < s->member_count; i++) {
        struct mu_rdzv_member *m = &s->members[i];

        if (m->has_heartbeat && wall_add_ms(m->heartbeat, dead_after).ns < now.ns) {
            participant_removed = erase(m) || participant_removed;
            dropped++;
        }
    }
    finish_dropping(s, dropped, participant_removed, settings);
    return dropped;
}

uint64_t mu_rdzv_skew(const struct mu_rdzv_state *s, const struct mu_rdzv_node *node,
                      const struct mu_rdzv_settings *settings, mu_wall_t now,
                      const struct mu_rdzv_member **ret_member)
{
    mu_wall_t furthest = wall_add_ms(now, settings->skew_ms_max);
    const struct mu_rdzv_member *whose = NULL;

    for (size_t i = 0; i < s->member_count; i++) {
        const struct mu_rdzv_member *m = &s->members[i];

        if (m->has_heartbeat && m->heartbeat.ns > furthest.ns &&
            !mu_rdzv_node_equal(&m->node, node)) {
            furthest = m->heartbeat;
            whose = m;
        }
    }
    if (whose == NULL) {
        return 0;
    }
    *ret_member = whose;
    return (furthest.ns - now.ns) / MU_NS_PER_MS;
}

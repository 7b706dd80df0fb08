#include "proto/rdzv/leader.h"

#include "core/alloc.h"

/* Times play no part here: nothing is due, and nothing has run out. */
static struct mu_rdzv_ask ask_for(const struct mu_rdzv_state *s, const struct mu_rdzv_node *node,
                                  const struct mu_rdzv_settings *settings)
{
    return (struct mu_rdzv_ask){
        .state = s, .node = node, .settings = settings, .deadline = MU_MONO_NEVER};
}

static int act(struct mu_rdzv_state *s, enum mu_rdzv_action action, const struct mu_rdzv_node *node,
               const struct mu_rdzv_settings *settings, int64_t born)
{
    struct mu_rdzv_member *m;
    int err = mu_rdzv_apply(s, action, node, settings, (mu_wall_t){0});

    if (err != 0) {
        return err;
    }
    m = mu_rdzv_state_find(s, node);
    if (m != NULL) {
        m->born = born;
        m->has_heartbeat = false; /* Its key shows that it is alive. */
    }
    return 0;
}

/* --- 1: liveness ------------------------------------------------------------------------------ */

static int drop_dead(struct mu_rdzv_state *s, const struct mu_rdzv_entry *const *entries,
                     size_t count, const struct mu_rdzv_settings *settings,
                     struct mu_rdzv_leader_result *ret)
{
    bool *dead;
    size_t participants = mu_rdzv_participants(s);

    if (s->member_count == 0) {
        return 0;
    }
    dead = mu_malloc(s->member_count * sizeof(*dead));
    if (dead == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < s->member_count; i++) {
        dead[i] = true;
    }
    for (size_t i = 0; i < count; i++) {
        const struct mu_rdzv_member *m = mu_rdzv_state_find(s, &entries[i]->node);

        if (m != NULL && m->born == entries[i]->born) {
            dead[m - s->members] = false;
        }
    }
    if (mu_rdzv_expel(s, dead, settings) != 0) {
        ret->changed = true;
        ret->urgent = ret->urgent || mu_rdzv_participants(s) != participants;
    }
    mu_free(dead);
    return 0;
}

/* --- 2: wishes -------------------------------------------------------------------------------- */

static bool adds(enum mu_rdzv_action action)
{
    return action == MU_RDZV_ACT_ADD_TO_PARTICIPANTS || action == MU_RDZV_ACT_ADD_TO_WAIT_LIST ||
           action == MU_RDZV_ACT_ADD_TO_REDUNDANCY_LIST;
}

/* Decides what the node would do itself if it saw this state. */
static int let_in(struct mu_rdzv_state *s, const struct mu_rdzv_entry *e,
                  const struct mu_rdzv_settings *settings)
{
    struct mu_rdzv_ask q = ask_for(s, &e->node, settings);
    enum mu_rdzv_action action = mu_rdzv_decide_join(&q);

    return adds(action) ? act(s, action, &e->node, settings, e->born) : 0;
}

static int let_out(struct mu_rdzv_state *s, const struct mu_rdzv_entry *e,
                   const struct mu_rdzv_settings *settings)
{
    const struct mu_rdzv_member *m = mu_rdzv_state_find(s, &e->node);
    enum mu_rdzv_action action = MU_RDZV_ACT_SYNC;

    if (e->wish == MU_RDZV_WISH_UNSPARE && m != NULL && m->spare) {
        action = MU_RDZV_ACT_REMOVE_FROM_REDUNDANCY_LIST;
    } else if (e->wish == MU_RDZV_WISH_OUT && m != NULL && m->participant) {
        action = MU_RDZV_ACT_REMOVE_FROM_PARTICIPANTS;
    } else if (e->wish == MU_RDZV_WISH_OUT && m != NULL && m->waiting) {
        action = MU_RDZV_ACT_REMOVE_FROM_WAIT_LIST;
    }
    return act(s, action, &e->node, settings, e->born);
}

/* A member that is an earlier life of the same node has ended. */
static int end_earlier_life(struct mu_rdzv_state *s, const struct mu_rdzv_entry *e,
                            const struct mu_rdzv_settings *settings)
{
    static const enum mu_rdzv_action ends[] = {MU_RDZV_ACT_REMOVE_FROM_PARTICIPANTS,
                                               MU_RDZV_ACT_REMOVE_FROM_WAIT_LIST,
                                               MU_RDZV_ACT_REMOVE_FROM_REDUNDANCY_LIST};
    int err = 0;

    for (size_t i = 0; err == 0 && i < sizeof(ends) / sizeof(ends[0]); i++) {
        const struct mu_rdzv_member *m = mu_rdzv_state_find(s, &e->node);

        if (m == NULL || m->born == e->born) {
            break;
        }
        err = mu_rdzv_apply(s, ends[i], &e->node, settings, (mu_wall_t){0});
    }
    return err;
}

static int consider(struct mu_rdzv_state *s, const struct mu_rdzv_entry *e,
                    const struct mu_rdzv_settings *settings)
{
    const struct mu_rdzv_member *m = mu_rdzv_state_find(s, &e->node);
    int err = 0;

    if (m != NULL && m->born > e->born) {
        return 0; /* The node has started again since. */
    }
    if (m != NULL && m->born < e->born) {
        err = end_earlier_life(s, e, settings);
    }
    if (err != 0) {
        return err;
    }
    return e->wish == MU_RDZV_WISH_JOIN ? let_in(s, e, settings) : let_out(s, e, settings);
}

/* --- 3, 4: the round -------------------------------------------------------------------------- */

static int let_waiting_in(struct mu_rdzv_state *s, const struct mu_rdzv_settings *settings,
                          struct mu_rdzv_leader_result *ret)
{
    int err = 0;

    for (size_t i = 0; err == 0 && i < s->member_count && !s->complete && !s->closed; i++) {
        const struct mu_rdzv_member *m = &s->members[i];

        if (m->waiting) {
            err = act(s, MU_RDZV_ACT_ADD_TO_PARTICIPANTS, &m->node, settings, m->born);
            ret->changed = true;
        }
    }
    return err;
}

/* Nodes of other settings may have left a state that ours do not make. */
static void mend_last_call(struct mu_rdzv_state *s, const struct mu_rdzv_settings *settings,
                           struct mu_rdzv_leader_result *ret)
{
    if (s->complete) {
        return;
    }
    if (!s->has_deadline && mu_rdzv_participants(s) >= settings->min_nodes) {
        s->has_deadline = true;
        ret->changed = true;
    }
    s->deadline.ns = s->has_deadline ? UINT64_MAX : 0;
}

static int run_round(struct mu_rdzv_state *s, const struct mu_rdzv_settings *settings,
                     bool last_call_over, struct mu_rdzv_leader_result *ret)
{
    size_t count;
    int err = let_waiting_in(s, settings, ret);

    if (err != 0) {
        return err;
    }
    mend_last_call(s, settings, ret);
    count = mu_rdzv_participants(s);
    if (!s->complete && !s->closed && s->has_deadline && last_call_over &&
        count >= settings->min_nodes && count <= settings->max_nodes) {
        ret->changed = true;
        return mu_rdzv_apply(s, MU_RDZV_ACT_MARK_COMPLETE, NULL, settings, (mu_wall_t){0});
    }
    return 0;
}

int mu_rdzv_leader_step(struct mu_rdzv_state *s, int64_t *seen,
                        const struct mu_rdzv_entry *const *entries, size_t count,
                        const struct mu_rdzv_settings *settings, bool last_call_over,
                        struct mu_rdzv_leader_result *ret)
{
    bool was_complete = s->complete;
    size_t participants;
    int err;

    *ret = (struct mu_rdzv_leader_result){0};
    err = drop_dead(s, entries, count, settings, ret);
    participants = mu_rdzv_participants(s);
    for (size_t i = 0; err == 0 && i < count; i++) {
        if (entries[i]->revision > *seen) {
            err = consider(s, entries[i], settings);
            *seen = entries[i]->revision;
            ret->changed = true;
        }
    }
    ret->urgent = ret->urgent || (was_complete && mu_rdzv_participants(s) != participants);
    if (err == 0) {
        err = run_round(s, settings, last_call_over, ret);
    }
    ret->urgent = ret->urgent || (s->complete && !was_complete);
    return err;
}

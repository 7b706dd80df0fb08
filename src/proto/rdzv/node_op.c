/* What the node does with a state: it asks the rules, carries out what they say, and tells the
 * result. */
#include "core/alloc.h"
#include "proto/rdzv/node_internal.h"

/* When writers take turns, a write is lost at most twice: to learn of the contention, and to learn
 * the state. Further losses are caused by writers that do not take turns. */
#define TURN_LOSSES_MAX 6

#define REPORTS (MU_RDZV_ASSIGNED | MU_RDZV_ENDED | MU_RDZV_FAILED)

unsigned mu_rdzv_node_ops(const struct mu_rdzv *r)
{
    unsigned ops = 0;

    switch (r->v.phase) {
    case MU_RDZV_IDLE:
        break;
    case MU_RDZV_EXITING:
    case MU_RDZV_JOINING:
        ops = MU_RDZV_OP_JOIN;
        break;
    case MU_RDZV_MEMBER:
        ops = MU_RDZV_OP_MEMBER;
        break;
    case MU_RDZV_LEAVING:
        ops = MU_RDZV_OP_LEAVE;
        break;
    }
    return ops | (r->v.closing ? MU_RDZV_OP_CLOSE : 0u) | (r->v.looking ? MU_RDZV_OP_LOOK : 0u);
}

enum mu_rdzv_dialect mu_rdzv_node_dialect(const struct mu_rdzv *r)
{
    return r->v.dialect != MU_RDZV_DIALECT_UNKNOWN ? r->v.dialect : r->config.dialect;
}

struct mu_rdzv_settings mu_rdzv_node_settings(const struct mu_rdzv *r)
{
    struct mu_rdzv_settings set = r->config.settings;

    set.generation = mu_rdzv_node_dialect(r) == MU_RDZV_DIALECT_1_13 ? MU_RDZV_GENERATION_1
                                                                     : MU_RDZV_GENERATION_2;
    return set;
}

void mu_rdzv_node_fail(struct mu_rdzv *r, struct mu_rdzv_update *up, unsigned ops, int code)
{
    struct mu_rdzv_vars *v = &r->v;

    ops &= mu_rdzv_node_ops(r);
    if (ops == 0) {
        return;
    }
    if ((ops & (MU_RDZV_OP_JOIN | MU_RDZV_OP_LEAVE | MU_RDZV_OP_MEMBER)) != 0) {
        v->phase = MU_RDZV_IDLE;
    }
    v->closing = v->closing && (ops & MU_RDZV_OP_CLOSE) == 0;
    v->looking = v->looking && (ops & MU_RDZV_OP_LOOK) == 0;
    up->flags |= MU_RDZV_FAILED;
    up->failed = ops;
    up->code = code;
    up->text = v->why.text;
}

static struct mu_rdzv_ask ask(const struct mu_rdzv *r, const struct mu_rdzv_settings *set,
                              mu_mono_t deadline)
{
    return (struct mu_rdzv_ask){
        .state = &r->state,
        .node = &r->node,
        .settings = set,
        .now = r->v.now,
        .deadline = deadline,
    };
}

/* --- requests ----------------------------------------------------- */

static void begin_request(struct mu_rdzv *r, struct mu_rdzv_update *up)
{
    struct mu_rdzv_vars *v = &r->v;

    v->asked_at = v->now.mono;
    v->warned = false;
    v->held = false;
    v->stale = false; /* its answer will be newer than any watch so far */
    v->watch_hash = 0;
    up->request = ++v->request;
}

static void begin_read(struct mu_rdzv *r, struct mu_rdzv_update *up)
{
    begin_request(r, up);
    r->v.reading = true;
    r->stats.reads++;
    up->flags |= MU_RDZV_DO_READ;
}

static int begin_write(struct mu_rdzv *r, struct mu_rdzv_update *up,
                       const struct mu_rdzv_settings *set, enum mu_rdzv_action action)
{
    struct mu_rdzv_vars *v = &r->v;
    int err = r->config.plain ? 0 : mu_rdzv_state_copy(&r->next, &r->state);

    mu_buf_reset(&r->out);
    if (err == 0 && !r->config.plain) {
        err = mu_rdzv_apply(&r->next, action, &r->node, set, v->now.wall);
    }
    if (err == 0 && !r->config.plain) {
        err = mu_rdzv_state_encode(&r->out, &r->next, mu_rdzv_node_dialect(r));
    }
    if (err == MUSTER_ELIMIT) {
        (void)mu_err(&v->why, 0,
                     "the state of the rendezvous is at its limit: %zu nodes in %zu bytes",
                     r->next.member_count, r->out.len);
        mu_rdzv_node_fail(r, up, mu_rdzv_node_ops(r), MUSTER_ERDZV_STATE);
        return 0;
    }
    if (err != 0) {
        return err;
    }
    begin_request(r, up);
    v->writing = true;
    v->backed_off = false;
    v->read_again = false;
    r->stats.writes++;
    mu_trace(&r->config.trace, "rdzv.act", (uint64_t)action, (uint64_t)r->state.round);
    up->flags |= MU_RDZV_DO_WRITE;
    up->action = action;
    up->bytes = mu_buf_span(&r->out);
    up->has_token = v->has_token;
    up->token = v->has_token ? mu_buf_span(&r->token) : (struct mu_span){0};
    return 0;
}

/* Writes the result of the action, unless it is known that the write would be lost. */
static int write_action(struct mu_rdzv *r, struct mu_rdzv_update *up,
                        const struct mu_rdzv_settings *set, enum mu_rdzv_action action)
{
    struct mu_rdzv_vars *v = &r->v;

    if (r->config.turns && v->losses > 0 && v->losses < TURN_LOSSES_MAX) {
        return begin_write(r, up, set, action);
    }
    if (v->losses > 0 && !v->backed_off) {
        v->backed_off = true;
        v->held = true;
        v->wake = mu_rdzv_node_backoff(r);
        mu_trace(&r->config.trace, "rdzv.backoff", v->losses,
                 mu_mono_since(v->now.mono, v->wake) / 1000);
        if (!r->config.push) {
            /* Others will have written meanwhile, and no watch would tell us. */
            v->stale = true;
            v->read_at = v->wake;
        }
        return 0;
    }
    if (v->stale && !v->read_again) {
        /* This happens only once: if others write all the time, the watch always has something
         * newer. */
        v->read_again = true;
        begin_read(r, up);
        return 0;
    }
    return begin_write(r, up, set, action);
}

static void sleep_until_next_look(struct mu_rdzv *r)
{
    struct mu_rdzv_vars *v = &r->v;

    v->wake = mu_rdzv_node_next_look(r);
    v->held = false;
    v->losses = 0;
    v->backed_off = false;
    v->read_again = false;
}

/* --- operations --------------------------------------------------- */

static void tell_closed(struct mu_rdzv *r, struct mu_rdzv_update *up)
{
    if (!r->v.closed_said) {
        r->v.closed_said = true;
        up->flags |= MU_RDZV_CLOSED;
    }
}

static int act_close(struct mu_rdzv *r, struct mu_rdzv_update *up,
                     const struct mu_rdzv_settings *set, bool *more)
{
    struct mu_rdzv_ask q = ask(r, set, r->v.close_deadline);
    enum mu_rdzv_action action = mu_rdzv_decide_close(&q);

    if (action == MU_RDZV_ACT_FINISH) {
        r->v.closing = false;
        r->v.closed_said = true;
        up->flags |= MU_RDZV_CLOSED; /* our own close has succeeded */
        return 0;
    }
    if (action == MU_RDZV_ACT_ERROR_TIMEOUT) {
        mu_rdzv_node_say_timeout(r, "the rendezvous could not be closed", set->close_timeout_ms);
        mu_rdzv_node_fail(r, up, MU_RDZV_OP_CLOSE, MUSTER_ERDZV_TIMEOUT);
        return 0;
    }
    *more = false;
    return write_action(r, up, set, action);
}

static int act_exit(struct mu_rdzv *r, struct mu_rdzv_update *up,
                    const struct mu_rdzv_settings *set, bool *more)
{
    struct mu_rdzv_ask q = ask(r, set, r->v.op_deadline);
    enum mu_rdzv_action action = mu_rdzv_decide_exit(&q);

    if (action == MU_RDZV_ACT_FINISH) {
        r->v.phase = MU_RDZV_JOINING;
        return 0;
    }
    if (action == MU_RDZV_ACT_ERROR_TIMEOUT) {
        mu_rdzv_node_say_timeout(r, "the node could not leave its old round", set->join_timeout_ms);
        mu_rdzv_node_fail(r, up, MU_RDZV_OP_JOIN, MUSTER_ERDZV_TIMEOUT);
        return 0;
    }
    *more = false;
    return write_action(r, up, set, action);
}

/* Row 5: the round is complete and we are in it. */
static int assign(struct mu_rdzv *r, struct mu_rdzv_update *up)
{
    struct mu_rdzv_vars *v = &r->v;
    size_t world = mu_rdzv_participants(&r->state);
    int err;

    if (world > r->member_cap) {
        const struct mu_rdzv_node **members = mu_realloc(r->members, world * sizeof(r->members[0]));

        if (members == NULL) {
            return MUSTER_ENOMEM;
        }
        r->members = members;
        r->member_cap = world;
    }
    err = mu_rdzv_state_copy(&r->roster, &r->state);
    if (err != 0) {
        return err;
    }
    for (size_t i = 0; i < r->roster.member_count; i++) {
        const struct mu_rdzv_member *m = &r->roster.members[i];

        if (m->participant) {
            r->members[m->rank] = &m->node; /* the round is intact: below `world`, each once */
        }
    }
    v->phase = MU_RDZV_MEMBER;
    v->round = r->state.round;
    v->left = world;
    v->waiting = 0;
    v->beat_deadline = MU_MONO_NEVER;
    up->flags |= MU_RDZV_ASSIGNED;
    up->rank = mu_rdzv_state_find(&r->state, &r->node)->rank;
    up->world = world;
    up->round = v->round;
    up->members = r->members;
    return 0;
}

/* The text for a join that ran out of time is made before the node removes itself from the
 * state. */
static void say_why_late(struct mu_rdzv *r)
{
    if (!r->v.why_said) {
        r->v.why_said = true;
        mu_rdzv_node_say_join_timeout(r);
    }
}

static int act_join(struct mu_rdzv *r, struct mu_rdzv_update *up,
                    const struct mu_rdzv_settings *set, bool *more)
{
    struct mu_rdzv_vars *v = &r->v;
    struct mu_rdzv_ask q = ask(r, set, v->op_deadline);
    enum mu_rdzv_action action = mu_rdzv_decide_join(&q);

    if (action == MU_RDZV_ACT_FINISH && r->state.round == v->round) {
        /* We have given this one up, and are in it still: for a moment our clock was so far ahead
         * that we took ourselves for dead, and for out of it. */
        v->phase = MU_RDZV_EXITING;
        return 0;
    }
    if (action == MU_RDZV_ACT_FINISH) {
        return assign(r, up);
    }
    if (action == MU_RDZV_ACT_ERROR_CLOSED || action == MU_RDZV_ACT_ERROR_GRACEFUL) {
        tell_closed(r, up);
        mu_rdzv_node_say_closed(r);
        mu_rdzv_node_fail(r, up, MU_RDZV_OP_JOIN,
                          action == MU_RDZV_ACT_ERROR_CLOSED ? MUSTER_ERDZV_CLOSED
                                                             : MUSTER_ERDZV_GRACEFUL);
        return 0;
    }
    if (action == MU_RDZV_ACT_ERROR_TIMEOUT) {
        say_why_late(r);
        mu_rdzv_node_fail(r, up, MU_RDZV_OP_JOIN, MUSTER_ERDZV_TIMEOUT);
        return 0;
    }
    *more = false;
    if (action == MU_RDZV_ACT_SYNC) {
        sleep_until_next_look(r);
        return 0;
    }
    if (mu_mono_before(v->op_deadline, v->now.mono) && action != MU_RDZV_ACT_KEEP_ALIVE &&
        action != MU_RDZV_ACT_REMOVE_FROM_REDUNDANCY_LIST) {
        say_why_late(r); /* rows 6 and 7 */
    }
    if (action == MU_RDZV_ACT_REMOVE_FROM_REDUNDANCY_LIST) {
        v->op_deadline = mu_mono_add_ms(v->now.mono, set->join_timeout_ms);
    }
    return write_action(r, up, set, action);
}

static void tell_changes(struct mu_rdzv *r, struct mu_rdzv_update *up)
{
    struct mu_rdzv_vars *v = &r->v;
    size_t left = mu_rdzv_participants(&r->state);
    /* A node that waits for a seat in a full round must not make the others give up theirs: all
     * would compete again, and again one would be left over. */
    size_t waiting = left < r->config.settings.max_nodes ? mu_rdzv_waiting(&r->state) : 0;

    if (left != v->left) {
        v->left = left;
        up->flags |= MU_RDZV_LOST;
        up->left = left;
    }
    if (waiting != v->waiting) {
        v->waiting = waiting;
        up->flags |= MU_RDZV_WAITING;
        up->waiting = waiting;
    }
    if (r->state.closed) {
        tell_closed(r, up);
    }
}

static int act_member(struct mu_rdzv *r, struct mu_rdzv_update *up,
                      const struct mu_rdzv_settings *set, bool *more)
{
    struct mu_rdzv_vars *v = &r->v;
    const struct mu_rdzv_member *me = mu_rdzv_state_find(&r->state, &r->node);
    struct mu_rdzv_ask q;
    enum mu_rdzv_action action;

    if (me == NULL || !me->participant || !r->state.complete || r->state.round != v->round) {
        v->phase = MU_RDZV_IDLE;
        up->flags |= MU_RDZV_ENDED;
        up->end = MU_RDZV_END_DROPPED;
        return 0;
    }
    tell_changes(r, up);
    if (v->beat_deadline.ns == MU_MONO_NEVER.ns) {
        v->beat_deadline = mu_mono_add_ms(v->now.mono, set->heartbeat_timeout_ms);
    }
    q = ask(r, set, v->beat_deadline);
    action = mu_rdzv_decide_keep_alive(&q);
    if (action == MU_RDZV_ACT_ERROR_TIMEOUT) {
        /* PyTorch logs this and tries again; so do we, until the others drop us. */
        mu_trace(&r->config.trace, "rdzv.keep_alive_late", v->losses, 0);
        v->beat_deadline = MU_MONO_NEVER;
        return 0;
    }
    *more = false;
    if (action == MU_RDZV_ACT_FINISH) {
        v->beat_deadline = MU_MONO_NEVER;
        sleep_until_next_look(r);
        return 0;
    }
    return write_action(r, up, set, action);
}

static int act_leave(struct mu_rdzv *r, struct mu_rdzv_update *up,
                     const struct mu_rdzv_settings *set, bool *more)
{
    struct mu_rdzv_ask q = ask(r, set, r->v.op_deadline);
    enum mu_rdzv_action action = mu_rdzv_decide_leave(&q);

    if (action == MU_RDZV_ACT_FINISH) {
        r->v.phase = MU_RDZV_IDLE;
        up->flags |= MU_RDZV_ENDED;
        up->end = MU_RDZV_END_LEFT;
        return 0;
    }
    if (action == MU_RDZV_ACT_ERROR_TIMEOUT) {
        mu_rdzv_node_say_timeout(r, "the node could not leave", set->close_timeout_ms);
        mu_rdzv_node_fail(r, up, MU_RDZV_OP_LEAVE, MUSTER_ERDZV_TIMEOUT);
        return 0;
    }
    *more = false;
    return write_action(r, up, set, action);
}

/* --- the loop ----------------------------------------------------- */

static void tell_skew(struct mu_rdzv *r, struct mu_rdzv_update *up,
                      const struct mu_rdzv_settings *set)
{
    const struct mu_rdzv_member *whose;
    uint64_t ms;

    if (r->v.skew_said) {
        return;
    }
    ms = mu_rdzv_skew(&r->state, &r->node, set, r->v.now.wall, &whose);
    if (ms != 0) {
        r->v.skew_said = true;
        r->stats.skewed++;
        mu_trace(&r->config.trace, "rdzv.skew", ms, (uint64_t)whose->node.pid);
        up->flags |= MU_RDZV_SKEWED;
        up->skew_ms = ms;
        up->skewed = &whose->node;
    }
}

/* Makes one decision on a fresh state. `*more` is cleared when there is something to wait for. */
static int act(struct mu_rdzv *r, struct mu_rdzv_update *up, bool *more)
{
    struct mu_rdzv_settings set = mu_rdzv_node_settings(r);
    size_t dropped = mu_rdzv_sanitise(&r->state, &set, r->v.now.wall);

    if (dropped != 0) {
        r->stats.dropped += dropped;
        mu_trace(&r->config.trace, "rdzv.dropped", dropped, mu_rdzv_participants(&r->state));
    }
    tell_skew(r, up, &set);
    if (r->v.looking) {
        r->v.looking = false;
        up->flags |= MU_RDZV_SEEN;
    }
    if (r->v.closing) {
        return act_close(r, up, &set, more);
    }
    switch (r->v.phase) {
    case MU_RDZV_IDLE:
        return 0;
    case MU_RDZV_EXITING:
        return act_exit(r, up, &set, more);
    case MU_RDZV_JOINING:
        return act_join(r, up, &set, more);
    case MU_RDZV_MEMBER:
        return act_member(r, up, &set, more);
    case MU_RDZV_LEAVING:
        return act_leave(r, up, &set, more);
    }
    return 0;
}

/* Ends operations that have waited long enough for a backend that is silent or fails again and
 * again. */
static bool give_up(struct mu_rdzv *r, struct mu_rdzv_update *up, unsigned ops)
{
    struct mu_rdzv_vars *v = &r->v;
    unsigned late = 0;

    for (unsigned op = 1; op <= ops; op <<= 1) {
        if ((ops & op) != 0 && mu_mono_reached(mu_rdzv_node_patience(r, op), v->now.mono)) {
            late |= op;
        }
    }
    if (late == 0) {
        return false;
    }
    if ((v->reading || v->writing) && !v->warned) {
        /* If our own process was suspended, the answer may be there already, behind this event. */
        v->warned = true;
        v->warned_at = v->now.mono;
        return false;
    }
    if (v->reading || v->writing) {
        mu_rdzv_node_say_timeout(r, "the backend did not answer",
                                 mu_mono_since(v->asked_at, v->now.mono) / MU_NS_PER_MS);
        /* Whether the write went through is unknown. */
        v->reading = v->writing = false;
        v->stale = true;
        v->read_at = v->now.mono;
    }
    mu_rdzv_node_fail(r, up, late, MUSTER_ERDZV_CONN);
    return true;
}

static bool must_wait(const struct mu_rdzv_vars *v)
{
    bool woken = !v->held && v->stale && mu_mono_reached(v->read_at, v->now.mono);

    return mu_mono_before(v->now.mono, v->wake) && !woken;
}

int mu_rdzv_node_run(struct mu_rdzv *r, struct mu_rdzv_update *up)
{
    struct mu_rdzv_vars *v = &r->v;
    bool more = true;

    /* Each step tells one piece of news, so that nothing can fail once it is told. */
    while (more && (up->flags & REPORTS) == 0) {
        unsigned ops = mu_rdzv_node_ops(r);
        bool asking = v->reading || v->writing;
        int err;

        if (ops == 0 || ((asking || v->failures != 0) && give_up(r, up, ops)) || asking ||
            must_wait(v)) {
            break;
        }
        if (!mu_rdzv_node_is_fresh(r)) {
            begin_read(r, up);
            break;
        }
        err = act(r, up, &more);
        if (err != 0) {
            return err;
        }
    }
    if ((up->flags & REPORTS) != 0) {
        v->wake = v->now.mono;
        v->held = false;
    }
    return 0;
}

/*
 * Members: each is a call of `join`, from its beginning to its reply. The room decides; here is
 * what it takes to tell them.
 */
#include "service/server/rdzv_hub_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"

static const struct mu_rpc_served_ops member_ops;

static mu_mono_t mono(const struct mu_rdzv_member *m)
{
    return mu_env_now(m->run->hub->env).mono;
}

void mu_rdzv_member_free(struct mu_rdzv_member *m)
{
    mu_rdzv_lead_out(m, false); /* unless it is known to have left */
    mu_heap_remove(&m->run->timeouts, &m->timeout);
    mu_list_remove(&m->spare);
    mu_list_remove(&m->starved);
    mu_rpc_served_remove(&m->base);
    (*m->joins)--;
    m->run->hub->members--;
    mu_free(m);
}

void mu_rdzv_member_arm(struct mu_rdzv_member *m)
{
    mu_heap_remove(&m->run->timeouts, &m->timeout);
    if (m->join_timeout_ms != 0) {
        mu_heap_insert(&m->run->timeouts, &m->timeout, mu_mono_add_ms(mono(m), m->join_timeout_ms));
    }
}

void mu_rdzv_member_dismiss(struct mu_rdzv_member *m, int status, const char *why)
{
    MU_ASSERT(m->room.state == MU_ROOM_OUT);
    mu_rpc_session_reply(m->base.session, m->base.id, status, mu_span_str(why));
    mu_rdzv_member_free(m);
}

/* --- what it is told -------------------------------------------------------------------------- */

int mu_rdzv_member_send(struct mu_rpc_session *session, uint64_t id, struct mu_buf *out,
                        const struct mu_rdzv_notice *notice)
{
    int err;

    mu_buf_reset(out);
    err = mu_rdzv_notice_encode(out, notice);
    if (err == 0) {
        err = mu_rpc_session_item(session, id, mu_buf_span(out));
    }
    mu_buf_trim(out, 1 << 20);
    return err;
}

static int send_notice(struct mu_rdzv_member *m, const struct mu_rdzv_notice *notice)
{
    int err = mu_rdzv_member_send(m->base.session, m->base.id, m->run->hub->on.scratch, notice);

    if (err == 0) {
        m->run->hub->notices++;
    }
    return err;
}

static int send_entered(struct mu_rdzv_member *m)
{
    struct mu_rdzv_notice msg = {
        .kind = MU_RDZV_NOTICE_ENTERED,
        .incarnation = m->run->room.incarnation,
        .round = m->run->room.round,
        .place = m->entered,
    };

    if (m->peer != NULL && !m->peer->old) {
        mu_rdzv_lead_notice(m->run->lead, &msg);
    }
    return send_notice(m, &msg);
}

static int send_ended(struct mu_rdzv_member *m)
{
    struct mu_rdzv_notice msg = {
        .kind = MU_RDZV_NOTICE_ENDED,
        .incarnation = m->ended.incarnation,
        .round = m->ended.round,
        .reason = (uint32_t)m->ended.reason,
        .has_who = m->ended.who != NULL,
        .who = m->ended.who == NULL ? (struct mu_span){0} : mu_span_str(m->ended.who),
        .who_rank = m->ended.who_rank,
    };

    return send_notice(m, &msg);
}

static void copy_electorate(struct mu_rdzv_electorate *to, const struct mu_electorate *from)
{
    *to = (struct mu_rdzv_electorate){.term = from->term,
                                      .round = from->round,
                                      .world = from->world,
                                      .rank = UINT32_MAX,
                                      .incarnation = from->incarnation};
}

static int send_prepare(struct mu_rdzv_member *m)
{
    const struct mu_succession_prepare *p = &m->prepare;
    struct mu_rdzv_notice msg = {
        .kind = MU_RDZV_NOTICE_PREPARE,
        .incarnation = m->run->room.incarnation,
        .round = p->round.round,
        .rank = p->round.rank,
        .world = p->round.world,
        .step = (uint32_t)p->step,
        .base_count = p->base_count,
    };

    if (m->peer->said < MU_SUCCESSION_TOLD) {
        mu_rdzv_lead_notice(m->run->lead, &msg); /* It has had the line and the legacy else. */
    }
    msg.term = p->term;
    for (uint32_t i = 0; i < p->base_count; i++) {
        copy_electorate(&msg.bases[i], &p->bases[i]);
    }
    return send_notice(m, &msg);
}

static bool wants_members(const struct mu_rdzv_member *m)
{
    return (m->flags & MU_RDZV_JOIN_MEMBERS) != 0 ||
           ((m->flags & MU_RDZV_JOIN_FEW) != 0 && m->assigned.world <= MU_RDZV_FEW);
}

/* Whether it is told where a list is that is too long for every assignment, and can ask there. */
static bool takes_list(const struct mu_rdzv_member *m)
{
    const uint32_t both = MU_RDZV_JOIN_MEMBERS | MU_RDZV_JOIN_FEW;

    return (m->flags & both) == both && m->assigned.world > MU_RDZV_FEW &&
           !m->run->hub->on.keys_elsewhere;
}

static int send_assigned(struct mu_rdzv_member *m)
{
    struct mu_rdzv_notice msg = {
        .kind = MU_RDZV_NOTICE_ASSIGNED,
        .incarnation = m->assigned.incarnation,
        .round = m->assigned.round,
        .rank = m->assigned.rank,
        .world = m->assigned.world,
        .restarts_left = m->assigned.restarts_left,
    };
    int err = 0;

    /* A store that is full has no room for the list: it is told as to older nodes. */
    if (takes_list(m) && mu_rdzv_run_list(m->run, &msg.list) == 0) {
        return send_notice(m, &msg);
    }
    msg.list.len = 0;
    if (wants_members(m)) {
        /* The round is the one that runs, or its end would have taken the assignment back. */
        err = mu_rdzv_run_members(m->run, &msg.members);
    }
    if (err == 0) {
        err = send_notice(m, &msg);
    }
    if (err == MUSTER_ELIMIT) {
        msg.members.len = 0; /* Longer than its frames may be: it must do without. */
        err = send_notice(m, &msg);
    }
    return err;
}

static int send_waiters(struct mu_rdzv_member *m)
{
    struct mu_rdzv_notice msg = {
        .kind = MU_RDZV_NOTICE_WAITERS,
        .incarnation = m->waiters.incarnation,
        .round = m->waiters.round,
        .waiters = m->waiters.waiters,
    };

    return send_notice(m, &msg);
}

/* The first of what it is owed; MUSTER_ENOENT: nothing. */
static int send_next(struct mu_rdzv_member *m)
{
    int err = MUSTER_ENOENT;

    if (m->entered != 0) {
        err = send_entered(m);
        m->entered = err == 0 ? 0 : m->entered;
    } else if (m->owed_ended) {
        err = send_ended(m);
        m->owed_ended = err != 0;
    } else if (m->owed_prepare) {
        err = send_prepare(m);
        m->owed_prepare = err != 0;
    } else if (m->owed_assigned && (m->run->lead == NULL || !m->run->lead->held)) {
        err = send_assigned(m);
        m->owed_assigned = err != 0;
    } else if (m->owed_waiters) {
        err = send_waiters(m);
        m->owed_waiters = err != 0;
    }
    return err;
}

void mu_rdzv_member_push(struct mu_rdzv_member *m)
{
    int err;

    do {
        err = send_next(m);
    } while (err == 0);
    /* Without credit `credit` follows, after the end of the call `cancel`; memory is looked for. */
    if (err == MUSTER_ENOMEM && mu_list_empty(&m->starved)) {
        mu_list_push(&m->run->hub->starved, &m->starved);
    }
}

static void note_ended(struct mu_rdzv_member *m, const struct mu_room_notice *notice)
{
    mu_rdzv_member_arm(m);
    m->owed_waiters = m->owed_prepare = false;
    if (m->owed_assigned) {
        m->owed_assigned = false; /* It never heard of the round. */
        return;
    }
    m->owed_ended = true;
    m->ended = *notice;
    if (notice->who != NULL) {
        memcpy(m->ended_who, notice->who, strlen(notice->who) + 1);
        m->ended.who = m->ended_who;
    }
}

/* The last word, for which the member is out of the room already. */
static void tell_over(struct mu_rdzv_member *m, const struct mu_room_notice *notice)
{
    int status = notice->kind == MU_ROOM_CLOSED ? MUSTER_ERDZV_CLOSED
                 : m->run->room.too_many_losses ? MUSTER_ERDZV_LOSSES
                                                : MUSTER_ERDZV_RESTARTS;
    char why[MU_RDZV_WHY_MAX];

    mu_room_explain(&m->run->room, why, sizeof(why));
    mu_rdzv_member_dismiss(m, notice->was == MU_ROOM_SPARE ? MUSTER_ERDZV_GRACEFUL : status, why);
}

void mu_rdzv_member_tell(struct mu_rdzv_member *m, const struct mu_room_notice *notice)
{
    struct mu_errmsg why;

    switch (notice->kind) {
    case MU_ROOM_ASSIGNED:
        mu_heap_remove(&m->run->timeouts, &m->timeout);
        m->owed_assigned = true;
        m->assigned = *notice;
        break;
    case MU_ROOM_ENDED:
        note_ended(m, notice);
        break;
    case MU_ROOM_WAITERS:
        m->owed_waiters = true;
        m->waiters = *notice;
        break;
    case MU_ROOM_CLOSED:
    case MU_ROOM_FAILED:
        tell_over(m, notice);
        return;
    case MU_ROOM_EXCLUDED:
        mu_room_explain_exclusion(&m->run->room, mono(m), &m->room, &why);
        mu_rdzv_member_dismiss(m, MUSTER_ERDZV_EXCLUDED, why.text);
        return;
    }
    mu_rdzv_member_push(m);
}

/* --- what it says ----------------------------------------------------------------------------- */

static struct mu_rdzv_member *member_of(struct mu_rpc_served *base)
{
    return MU_CONTAINER_OF(base, struct mu_rdzv_member, base);
}

static void member_credit(struct mu_rpc_served *base)
{
    mu_rdzv_member_push(member_of(base));
}

static bool is_out_of_reach(const struct mu_rdzv_member *m, mu_mono_t now)
{
    const struct mu_rpc *rpc = &m->base.session->rpc;

    return !mu_rpc_linked(rpc) ||
           mu_mono_since(mu_rpc_last_heard(rpc), now) > mu_rpc_kept_ms(rpc) * MU_NS_PER_MS / 2;
}

/* How long after it was heard last a member that says nothing is lost. */
static uint64_t silence_ms(const struct mu_rpc *rpc)
{
    return (rpc->dead_ms > rpc->grace_ms ? rpc->dead_ms : rpc->grace_ms) + MU_RDZV_LATE_MS;
}

/* When a member that is out of reach is lost, if it does not come back. */
static mu_mono_t lost_by(const struct mu_rdzv_member *m)
{
    const struct mu_rpc *rpc = &m->base.session->rpc;

    return mu_rpc_linked(rpc) ? mu_mono_add_ms(mu_rpc_last_heard(rpc), silence_ms(rpc))
                              : mu_mono_add_ms(mu_rpc_grace_deadline(rpc), MU_RDZV_LATE_MS);
}

/* Whether the member was there after workers had failed: their failure was not the echo of its
 * loss. That we did not listen for a while, and forgave its silence, is no sign of life. */
static bool was_received(const struct mu_rdzv_member *m)
{
    mu_mono_t since = mu_mono_add_ms(m->run->failed_at, MU_RDZV_ECHO_MS);

    return !mu_mono_before(mu_rpc_last_received(&m->base.session->rpc), since);
}

static bool was_heard(const struct mu_rdzv_member *m)
{
    return mu_rpc_linked(&m->base.session->rpc) && was_received(m);
}

bool mu_rdzv_run_heard_all(const struct mu_rdzv_run *run)
{
    MU_LIST_FOREACH (it, &run->room.in[MU_ROOM_GATHERING].members) {
        const struct mu_rdzv_member *m = mu_rdzv_member_of(it);

        if (m->room.has_rank && !was_heard(m)) {
            return false;
        }
    }
    return true;
}

void mu_rdzv_run_doubt(struct mu_rdzv_run *run)
{
    mu_mono_t soon = mu_mono_add_ms(mu_env_now(run->hub->env).mono, MU_RDZV_LATE_MS);

    if (!run->room.undecided) {
        return;
    }
    MU_LIST_FOREACH (it, &run->room.in[MU_ROOM_GATHERING].members) {
        const struct mu_rdzv_member *m = mu_rdzv_member_of(it);

        if (m->room.has_rank && !was_heard(m)) {
            mu_room_doubt_on(&run->room, mu_mono_before(soon, lost_by(m)) ? lost_by(m) : soon);
        }
    }
}

/* It may still run workers, and has so long to find out that nobody counts on it any more. */
static void lose(struct mu_rdzv_member *m)
{
    struct mu_room *room = &m->run->room;
    mu_mono_t now = mono(m);

    mu_rdzv_run_doubt(m->run);
    if (m->room.has_rank && !was_received(m)) {
        /* It is late that we notice it: the failures were the echo of this. */
        mu_room_doubt_on(room, mu_mono_add_ms(now, MU_RDZV_LATE_MS));
    }
    if (m->room.has_rank) {
        mu_room_hold(room, now, mu_rpc_forsaken_at(&m->base.session->rpc));
    }
    m->run->hub->losses++;
    mu_rdzv_run_mark(m->run, MU_STATUS_LOST, m->run->room.round, 1, m->room.name);
    mu_room_lost(room, now, &m->room);
}

static void leave(struct mu_rdzv_member *m)
{
    mu_rdzv_run_doubt(m->run);
    mu_rdzv_run_mark(m->run, MU_STATUS_LEFT, m->run->room.round, 1, m->room.name);
    mu_room_leave(&m->run->room, mono(m), &m->room);
}

/* Its workers failed. If another one of the round is out of reach, that is why, as far as anybody
 * knows: workers end when they lose a peer, mostly before its loss is noticed. And if one is lost
 * that seems to be in reach, it will be out of reach soon. */
static void fail(struct mu_rdzv_member *m, uint64_t round)
{
    struct mu_room *room = &m->run->room;
    mu_mono_t now = mono(m);
    mu_mono_t sure = now;

    MU_LIST_FOREACH (it, &room->in[MU_ROOM_RUNNING].members) {
        struct mu_rdzv_member *other = mu_rdzv_member_of(it);
        uint64_t ms = MU_RDZV_ECHO_MS + silence_ms(&other->base.session->rpc);
        mu_mono_t by = mu_mono_add_ms(now, ms);

        if (m->room.state == MU_ROOM_RUNNING && is_out_of_reach(other, now)) {
            mu_room_hold(room, now, lost_by(other)); /* The next round is not for it. */
            mu_room_stop(room, now, &other->room, round);
            return;
        }
        sure = mu_mono_before(sure, by) ? by : sure;
    }
    if (m->room.state == MU_ROOM_RUNNING && room->in[MU_ROOM_RUNNING].count > 1) {
        m->run->failed_at = now;
        mu_room_doubt(room, now, sure);
    }
    mu_room_fail(room, now, &m->room, round);
}

static void be_ready(struct mu_rdzv_member *m, struct mu_span payload)
{
    struct mu_rdzv_ready ready;

    if (mu_rdzv_ready_decode(payload, &ready) == 0 && m->peer != NULL) {
        mu_rdzv_lead_ready(m, &ready);
    }
}

static void member_item(struct mu_rpc_served *base, struct mu_span payload)
{
    struct mu_rdzv_member *m = member_of(base);
    enum mu_rdzv_say what;
    uint64_t round;

    mu_rdzv_run_touch(m->run);
    mu_rdzv_run_doubt(m->run);
    if (mu_rdzv_say_decode(payload, &what, &round) != 0) {
        lose(m);
        mu_rdzv_member_dismiss(m, MUSTER_EPROTO, "malformed word of a member");
    } else if (what == MU_RDZV_SAY_FAILED) {
        fail(m, round);
    } else if (what == MU_RDZV_SAY_DONE) {
        mu_room_finish(&m->room);
    } else if (what == MU_RDZV_SAY_READY) {
        be_ready(m, payload);
    } else {
        mu_room_stop(&m->run->room, mono(m), &m->room, round);
    }
}

static void member_end(struct mu_rpc_served *base)
{
    struct mu_rdzv_member *m = member_of(base);

    mu_rdzv_run_touch(m->run);
    mu_rdzv_lead_out(m, true);
    leave(m);
    mu_rdzv_member_dismiss(m, 0, "");
}

static void member_cancel(struct mu_rpc_served *base, int why)
{
    struct mu_rdzv_member *m = member_of(base);
    char text[MU_RDZV_WHY_MAX];

    mu_rdzv_run_touch(m->run);
    if (why == MUSTER_ETIMEDOUT) {
        mu_room_explain(&m->run->room, text, sizeof(text));
    } else {
        (void)snprintf(text, sizeof(text), "%s", muster_strerror(why));
    }
    if (why == MUSTER_ESESSION) {
        /* Its client begins anew, and does not know that it was in. */
        lose(m);
    } else {
        leave(m);
    }
    mu_rdzv_member_dismiss(m, why, text);
}

/* Its session is over. */
static void member_free(struct mu_rpc_served *base)
{
    struct mu_rdzv_member *m = member_of(base);

    mu_rdzv_run_touch(m->run);
    if (base->session->goodbye) {
        leave(m);
    } else {
        lose(m);
    }
    mu_rdzv_member_free(m);
}

static const struct mu_rpc_served_ops member_ops = {
    .cancel = member_cancel,
    .credit = member_credit,
    .item = member_item,
    .end = member_end,
    .free = member_free,
};

/* --- joining ---------------------------------------------------------------------------------- */

static bool is_text(struct mu_span text)
{
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] < 0x20 || text.data[i] == 0x7f) {
            return false;
        }
    }
    return true;
}

/* What the room does not look at, or not before a run would be opened for it. */
static int check_join(const struct mu_rdzv_hub *hub, size_t joins, const struct mu_rdzv_join *join,
                      struct mu_errmsg *reterr_msg)
{
    if (join->run_id.len == 0 || !is_text(join->run_id)) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "a run's id must have 1 to %d bytes without control characters",
                      MU_RDZV_NAME_LEN_MAX);
    }
    if (join->node.len == 0 || !is_text(join->node)) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "a node's name must have 1 to %d bytes without control characters",
                      MU_RDZV_NAME_LEN_MAX);
    }
    if (!is_text(join->topology) || !is_text(join->addr) || !is_text(join->page) ||
        !is_text(join->machine) || !is_text(join->heir)) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "a topology key, an address or a machine's id may have no control "
                      "characters");
    }
    if (joins >= hub->config.joins_max) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "this session has %zu members already", joins);
    }
    return 0;
}

static void put_text(char *to, struct mu_span text)
{
    if (text.len != 0) {
        memcpy(to, text.data, text.len);
    }
    to[text.len] = '\0';
}

/* A member that is in its session's table, and in no room yet. */
static int new_member(struct mu_rpc_session *session, size_t *joins, uint64_t id,
                      const struct mu_rdzv_join *join, struct mu_rdzv_run *run,
                      struct mu_rdzv_member **ret_member)
{
    struct mu_rdzv_member *m = mu_calloc(1, sizeof(*m));

    if (m == NULL) {
        return MUSTER_ENOMEM;
    }
    if (mu_rpc_served_add(&m->base, &member_ops, session, id) != 0) {
        mu_free(m);
        return MUSTER_ENOMEM;
    }
    m->run = run;
    m->room.owner = m;
    m->room.target = join->target;
    put_text(m->room.name, join->node);
    put_text(m->room.topology, join->topology);
    put_text(m->room.machine, join->machine);
    put_text(m->addr, join->addr);
    put_text(m->page, join->page);
    put_text(m->heir, join->heir);
    m->join_timeout_ms = join->join_timeout_ms;
    m->flags = join->flags;
    mu_list_init(&m->spare);
    mu_list_init(&m->starved);
    m->joins = joins;
    (*joins)++;
    run->hub->members++;
    *ret_member = m;
    return 0;
}

/*
 * A node has come back before its old session was known to be over: that one is over now. Its place
 * may be the last loss that was free.
 */
static int displace(struct mu_rdzv_run *run, struct mu_rdzv_member *m, struct mu_errmsg *reterr_msg)
{
    struct mu_room_member *old = mu_room_find(&run->room, mu_span_str(m->room.name));

    MU_ASSERT(old != NULL);
    if (((struct mu_rdzv_member *)old->owner)->base.session == m->base.session) {
        mu_room_lost(&run->room, mono(m), old); /* It knows, and asks anew. */
    } else {
        lose(old->owner);
    }
    mu_rdzv_member_dismiss(old->owner, MUSTER_ERDZV_LOST,
                           "another came under the name of this node and took its place");
    if (run->room.state == MU_ROOM_IS_FAILED) {
        mu_room_explain(&run->room, reterr_msg->text, sizeof(reterr_msg->text));
        return run->room.too_many_losses ? MUSTER_ERDZV_LOSSES : MUSTER_ERDZV_RESTARTS;
    }
    return 0;
}

/* In words, if it cannot. */
static int enter_room(struct mu_rdzv_member *m, const struct mu_rdzv_join *join,
                      struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_run *run = m->run;
    int err;

    mu_rdzv_run_doubt(run);
    err = mu_room_join(&run->room, mono(m), &m->room, join->nodes_min, join->nodes_max, reterr_msg);
    if (err == MUSTER_EEXIST) {
        err = displace(run, m, reterr_msg);
        if (err == 0) {
            err = mu_room_join(&run->room, mono(m), &m->room, join->nodes_min, join->nodes_max,
                               reterr_msg);
        }
    }
    return err == MUSTER_ECLOSED ? MUSTER_ERDZV_CLOSED : err;
}

/* A member of another server's run: that one has not told us who was in it, and this one has. */
static void take_over(struct mu_rdzv_member *m, const struct mu_rdzv_join *join)
{
    const struct mu_rpc *rpc = &m->base.session->rpc;
    struct mu_room *room = &m->run->room;

    if (join->incarnation == 0 || join->incarnation == room->incarnation) {
        return;
    }
    mu_room_hold(room, mono(m), mu_mono_add_ms(m->run->hub->started, mu_rpc_kept_ms(rpc)));
    if ((join->flags & MU_RDZV_JOIN_SPENT) != 0) {
        mu_room_inherit(room, join->spent);
    }
}

static int start_member(struct mu_rdzv_hub *hub, struct mu_rpc_session *session, size_t *joins,
                        uint64_t id, const struct mu_rdzv_join *join, struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_member *m;
    struct mu_rdzv_run *run;
    int err = check_join(hub, *joins, join, reterr_msg);

    if (err == 0) {
        err = mu_rdzv_run_get(hub, join, &run, reterr_msg);
    }
    if (err != 0) {
        return err;
    }
    mu_rdzv_run_touch(run);
    if (new_member(session, joins, id, join, run, &m) != 0) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "no memory for another member");
    }
    take_over(m, join);
    err = mu_rdzv_lead_in(m, join);
    err = err != 0 ? mu_err(reterr_msg, err, "no memory for another member")
                   : enter_room(m, join, reterr_msg);
    if (err != 0) {
        hub->refused += err == MUSTER_ERDZV_EXCLUDED;
        mu_rdzv_member_free(m);
        return err;
    }
    mu_rdzv_lead_entered(m);
    hub->joins++;
    mu_rdzv_run_mark(run, MU_STATUS_JOINED, run->room.round, 1, m->room.name);
    /* A round that this join completed is told next: when it entered, it had no rank. */
    m->entered = m->room.state == MU_ROOM_RUNNING || run->room.succeeds ? MU_RDZV_PLACE_GATHERING
                                                                        : (uint32_t)m->room.state;
    if (m->room.state == MU_ROOM_SPARE) {
        mu_list_push(&run->spares, &m->spare);
    } else {
        mu_rdzv_member_arm(m);
    }
    mu_rdzv_member_push(m);
    return 0;
}

void mu_rdzv_member_start(struct mu_rdzv_hub *hub, struct mu_rpc_session *session, size_t *joins,
                          const struct mu_rpc_event *event)
{
    struct mu_rdzv_join join;
    struct mu_errmsg why;
    int err = mu_rdzv_join_decode(event->payload, &join);

    if (err != 0) {
        (void)mu_err(&why, err, "malformed join");
    } else if (mu_rdzv_lead_is(hub, join.run_id) && !hub->lead->hosting) {
        mu_rdzv_lead_park(hub, session, joins, event, &join);
    } else {
        err = start_member(hub, session, joins, event->id, &join, &why);
    }
    if (err != 0) {
        mu_rpc_session_reply(session, event->id, err, mu_span_str(why.text));
    }
}

#include "proto/rdzv/member.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/assert.h"
#include "proto/rdzv/room.h"

#define LEAVE_MS  2000 /* until a leave is over without the server's word */
#define ANSWER_MS 5000 /* how much longer than the server a joining node waits */
#define RETRY_MS  10   /* until something that found no memory is tried again */

#define NOTICE_OF 6   /* of the time: for workers to end after the stop signal */
#define MARGIN_OF 10  /* of the time: for a kill to be carried out, and clocks that are not alike */
#define LATE_MS   50  /* A look that comes so much later was ours to miss. */
#define LISTEN_MS 100 /* after that: for answers that have come meanwhile */
#define ABSENT_OF 30  /* of the time: for a kill to be carried out by another process */
#define AGAIN_OF  30  /* of the time: how often we look whether we are in touch again */

static bool is_never(mu_mono_t at)
{
    return at.ns == MU_MONO_NEVER.ns;
}

static struct mu_member_action *push(struct mu_member *m, enum mu_member_action_type type)
{
    struct mu_member_action *a;

    MU_ASSERT(m->action_count < MU_MEMBER_ACTIONS);
    a = &m->actions[m->action_count++];
    *a = (struct mu_member_action){.type = type};
    return a;
}

static void push_failure(struct mu_member *m, enum mu_member_action_type type, int status,
                         const char *text)
{
    struct mu_member_action *a = push(m, type);

    a->status = mu_err(&a->text, status, "%s", text);
}

static void arm_join(struct mu_member *m, mu_mono_t now)
{
    if (m->config.join_timeout_ms != 0) {
        m->user_at = mu_mono_add_ms(now, m->config.join_timeout_ms);
        m->extended = false;
    }
}

/* --- the fence -------------------------------------------------------------------------------- */

static void refresh(struct mu_member *m, mu_mono_t now)
{
    mu_mono_t heard = m->link.confirmed;

    if (m->call == MU_MEMBER_CALL_ENTERED || m->call == MU_MEMBER_CALL_SPARE) {
        m->kept_ns = m->link.kept_ms * MU_NS_PER_MS;
        m->counted_on = m->link.hosting                       ? now
                        : mu_mono_before(heard, m->join_said) ? m->join_said
                                                              : heard;
    }
}

/* When what was begun must be stopped. */
static mu_mono_t warn_at(const struct mu_member *m)
{
    return mu_mono_add_ns(m->counted_on,
                          m->kept_ns - m->kept_ns / MARGIN_OF - m->kept_ns / NOTICE_OF);
}

/* Whether what the server has said may be about a time in which it still counted on us. */
static bool is_cut_off(struct mu_member *m, mu_mono_t now)
{
    refresh(m, now);
    return mu_mono_reached(warn_at(m), now);
}

/* What was confirmed, or changed: looks whether we are counted on, and when to look again. */
static void look_at_fence(struct mu_member *m, mu_mono_t now)
{
    mu_mono_t by;

    refresh(m, now);
    if (is_never(m->counted_on) || m->user == MU_MEMBER_LEAVING) {
        m->fence_at = MU_MONO_NEVER;
        return;
    }
    by = mu_mono_add_ns(m->counted_on, m->kept_ns - m->kept_ns / MARGIN_OF);
    if (!mu_mono_reached(warn_at(m), now)) {
        m->fence_at = warn_at(m);
        if (m->call == MU_MEMBER_CALL_SPARE && !is_never(m->cut_off)) {
            m->user_at = MU_MONO_NEVER;
        }
        m->cut_off = MU_MONO_NEVER;
        if (m->held == MU_MEMBER_HELD_BACK && m->user == MU_MEMBER_JOINING) {
            m->held = MU_MEMBER_HELD_DUE;
        }
    } else if (!mu_mono_reached(by, now) && mu_mono_reached(m->fence_at, now) &&
               mu_mono_since(m->fence_at, now) > LATE_MS * MU_NS_PER_MS) {
        /* We were away ourselves: what has come meanwhile is heard first. */
        m->fence_at = mu_mono_min(mu_mono_add_ms(now, LISTEN_MS), by);
    } else {
        m->fence_at = mu_mono_add_ns(now, m->kept_ns / AGAIN_OF + 1); /* Are we in touch again? */
        if (m->cut_off.ns != m->counted_on.ns) {
            m->cut_off = m->counted_on;
            push(m, MU_MEMBER_CUT_OFF)->by = by;
            if (m->call == MU_MEMBER_CALL_SPARE && m->user == MU_MEMBER_JOINING) {
                arm_join(m, now); /* It may be not even that any more. */
            }
        }
    }
}

mu_mono_t mu_member_counted_until(struct mu_member *m, mu_mono_t now)
{
    refresh(m, now);
    if (is_never(m->counted_on) || m->link.hosting || m->user == MU_MEMBER_LEAVING) {
        return MU_MONO_NEVER;
    }
    return mu_mono_add_ns(m->counted_on, m->kept_ns - m->kept_ns / ABSENT_OF);
}

/* --- the ends --------------------------------------------------------------------------------- */

static void forget_call(struct mu_member *m)
{
    m->call = MU_MEMBER_CALL_NONE;
    m->say = 0;
    m->held = MU_MEMBER_HELD_NONE;
}

/* We are out, and the server is told so if it does not know. */
static void get_out(struct mu_member *m)
{
    if (m->call != MU_MEMBER_CALL_NONE) {
        push(m, MU_MEMBER_CANCEL);
    }
    forget_call(m);
    m->user = MU_MEMBER_OUT;
    m->unreached = 0;
    m->user_at = m->counted_on = m->cut_off = m->fence_at = MU_MONO_NEVER;
}

static void end_leave(struct mu_member *m)
{
    get_out(m);
    push(m, MU_MEMBER_LEFT);
}

/* A node that wants out gets that, whatever the reason. */
static void fail(struct mu_member *m, int status, const char *text)
{
    if (m->user == MU_MEMBER_LEAVING) {
        end_leave(m);
        return;
    }
    get_out(m);
    push_failure(m, MU_MEMBER_FAILED, status, text);
}

/* A node that joins learns it as a failure, and every node as an event. */
static void end_run(struct mu_member *m, int status, const char *text)
{
    if (m->user == MU_MEMBER_LEAVING || m->user == MU_MEMBER_JOINING) {
        fail(m, status, text);
    } else {
        get_out(m);
    }
    m->run = MU_MEMBER_RUN_CLOSED;
    m->close_at = MU_MONO_NEVER;
    push(m, MU_MEMBER_CLOSED);
}

static void fail_close(struct mu_member *m, int status, const char *text)
{
    m->run = MU_MEMBER_RUN_OPEN;
    m->close_at = MU_MONO_NEVER;
    push_failure(m, MU_MEMBER_CLOSE_FAILED, status, text);
}

/* The round is over for this node, as far as it knows. */
static void drop_round(struct mu_member *m, const char *why)
{
    struct mu_member_action *a = push(m, MU_MEMBER_ENDED);

    m->user = MU_MEMBER_BETWEEN;
    (void)mu_err(&a->text, 0, "round %" PRIu64 " is over for this node: %s", m->round, why);
}

/* The server does not know us any more, or cannot be asked. A node that is still gathering just
 * joins again. */
static void drop(struct mu_member *m, mu_mono_t now, const char *why)
{
    refresh(m, now); /* What was begun is still to be stopped in time. */
    forget_call(m);
    if (m->user == MU_MEMBER_LEAVING) {
        end_leave(m);
    } else if (m->user == MU_MEMBER_IN) {
        drop_round(m, why);
    } else if (m->user == MU_MEMBER_JOINING && is_never(m->user_at)) {
        arm_join(m, now); /* It was spare, and is not even that any more. */
    }
}

/* --- the user --------------------------------------------------------------------------------- */

bool mu_member_join(struct mu_member *m, mu_mono_t now, bool blameless)
{
    if (m->user == MU_MEMBER_JOINING || m->user == MU_MEMBER_LEAVING) {
        return false;
    }
    refresh(m, now);
    if (m->user == MU_MEMBER_IN) {
        /* After half of the time, others may have lost us, and our workers failed of that. */
        bool in_doubt = mu_mono_since(m->counted_on, now) > m->kept_ns / 2;

        m->say = blameless || in_doubt ? MU_RDZV_SAY_STOPPED : MU_RDZV_SAY_FAILED;
    }
    m->user = MU_MEMBER_JOINING;
    arm_join(m, now);
    if (m->held != MU_MEMBER_HELD_NONE) {
        m->held = MU_MEMBER_HELD_DUE;
    }
    return m->run != MU_MEMBER_RUN_CLOSED;
}

void mu_member_finish(struct mu_member *m)
{
    if (m->user == MU_MEMBER_IN || m->user == MU_MEMBER_BETWEEN) {
        m->say = MU_RDZV_SAY_DONE;
    }
}

void mu_member_leave(struct mu_member *m, mu_mono_t now)
{
    if (m->user != MU_MEMBER_LEAVING) {
        m->user = MU_MEMBER_LEAVING;
        m->user_at = mu_mono_add_ms(now, LEAVE_MS);
    }
}

bool mu_member_close(struct mu_member *m, mu_mono_t now)
{
    if (m->run != MU_MEMBER_RUN_OPEN) {
        return false;
    }
    m->run = MU_MEMBER_RUN_WANTED;
    m->close_at = mu_mono_add_ms(now, MU_MEMBER_CLOSE_MS);
    return true;
}

void mu_member_cut(struct mu_member *m, mu_mono_t now)
{
    uint64_t ms = mu_mono_since(m->counted_on, now) / MU_NS_PER_MS;
    struct mu_errmsg why;

    if (m->user == MU_MEMBER_IN) {
        m->say = MU_RDZV_SAY_STOPPED;
        (void)mu_err(&why, 0, "%.120s has not answered for %" PRIu64 ".%" PRIu64 " s",
                     m->config.address, ms / 1000, ms % 1000 / 100);
        drop_round(m, why.text);
    }
}

/* --- the server ------------------------------------------------------------------------------- */

static void explain_end(struct mu_errmsg *text, const struct mu_rdzv_notice *notice,
                        const char *who)
{
    static const struct {
        const char *before;
        const char *after; /* the member because of which; NULL: there is none */
    } words[] = {
        {"", NULL},
        [MU_ROOM_END_LOST] = {": ", " was lost"},
        [MU_ROOM_END_LEFT] = {": ", " left"},
        [MU_ROOM_END_UPSCALE] = {": late nodes are let in", NULL},
        [MU_ROOM_END_FAILED] = {": the workers of ", " failed"},
    };
    bool named = words[notice->reason].after != NULL;

    (void)mu_err(text, 0, "round %" PRIu64 " is over%s%.120s%s", notice->round,
                 words[notice->reason].before, named ? who : "",
                 named ? words[notice->reason].after : "");
}

static void take_end(struct mu_member *m, const struct mu_rdzv_notice *notice)
{
    struct mu_member_action *a;

    if (m->held != MU_MEMBER_HELD_NONE && m->held_round == notice->round) {
        m->held = MU_MEMBER_HELD_NONE; /* It came and went while the user was away. */
        return;
    }
    if (m->user != MU_MEMBER_IN || m->round != notice->round) {
        return; /* The user has ended it already. */
    }
    m->user = MU_MEMBER_BETWEEN;
    a = push(m, MU_MEMBER_ENDED);
    a->reason = notice->reason;
    a->has_who = notice->has_who;
    a->who_rank = notice->who_rank;
    (void)snprintf(a->who, sizeof(a->who), "%.*s", (int)notice->who.len,
                   (const char *)notice->who.data);
    explain_end(&a->text, notice, a->has_who ? a->who : "a member");
}

static void assign(struct mu_member *m, uint64_t round)
{
    m->user = MU_MEMBER_IN;
    m->call = MU_MEMBER_CALL_ENTERED;
    m->round = round;
    m->say = 0; /* The round of which it was is over without our word. */
    m->held = MU_MEMBER_HELD_NONE;
    m->user_at = MU_MONO_NEVER;
    push(m, MU_MEMBER_ASSIGNED);
}

static void take_assignment(struct mu_member *m, mu_mono_t now, const struct mu_rdzv_notice *notice)
{
    bool joining = m->user == MU_MEMBER_JOINING;

    if (m->config.restarts_max != UINT32_MAX && notice->restarts_left <= m->config.restarts_max) {
        m->spent = m->config.restarts_max - notice->restarts_left;
    }
    if (m->user == MU_MEMBER_BETWEEN || (joining && is_cut_off(m, now))) {
        m->held = MU_MEMBER_HELD_BACK; /* It may have been on its way for as long. */
        m->held_round = notice->round;
    } else if (joining && (m->say == 0 || notice->round != m->round)) {
        assign(m, notice->round);
    } else {
        fail(m, MUSTER_ERDZV_STATE, "the server assigned a round within a round");
    }
}

void mu_member_notice(struct mu_member *m, mu_mono_t now, const struct mu_rdzv_notice *notice)
{
    if (m->call == MU_MEMBER_CALL_NONE || m->user == MU_MEMBER_LEAVING) {
        return;
    }
    m->incarnation = notice->incarnation;
    if (m->call == MU_MEMBER_CALL_ASKED || notice->kind == MU_RDZV_NOTICE_ENTERED) {
        m->call = m->call == MU_MEMBER_CALL_ASKED ? MU_MEMBER_CALL_ENTERED : m->call;
        look_at_fence(m, now); /* The server counts on us since we joined. */
    }
    switch (notice->kind) {
    case MU_RDZV_NOTICE_ENTERED:
        m->call = MU_MEMBER_CALL_ENTERED;
        if (notice->place == MU_RDZV_PLACE_SPARE) {
            /* It waits for as long as the round is full, and the server begins to count when it is
             * promoted. */
            m->call = MU_MEMBER_CALL_SPARE;
            m->user_at = MU_MONO_NEVER;
        }
        break;
    case MU_RDZV_NOTICE_ASSIGNED:
        take_assignment(m, now, notice);
        break;
    case MU_RDZV_NOTICE_ENDED:
        take_end(m, notice);
        break;
    case MU_RDZV_NOTICE_WAITERS:
        if (m->user == MU_MEMBER_IN) {
            push(m, MU_MEMBER_WAITING)->count = notice->waiters;
        }
        break;
    case MU_RDZV_NOTICE_PREPARE: /* the driver's */
    case MU_RDZV_NOTICE_MOVED:
        break;
    }
}

void mu_member_answered(struct mu_member *m, mu_mono_t now, int status, const char *text)
{
    if (m->call == MU_MEMBER_CALL_NONE) {
        return;
    }
    if (status == MUSTER_ESESSION) {
        drop(m, now, "the server has gone on without it, or was started anew");
        return;
    }
    refresh(m, now);
    forget_call(m);
    if (status == MUSTER_ERDZV_CLOSED || status == MUSTER_ERDZV_GRACEFUL) {
        end_run(m, status, text);
    } else if (status == MUSTER_ENOMETHOD) {
        fail(m, MUSTER_ERDZV_CONN, "the server there knows no rendezvous: it is too old");
    } else if (m->user != MU_MEMBER_BETWEEN || status != MUSTER_ERDZV_TIMEOUT) {
        fail(m, status != 0 ? status : MUSTER_ERDZV_LOST, text);
    } /* Otherwise the user is not back yet, and joins anew when it is. */
}

void mu_member_close_answered(struct mu_member *m, int status, const char *text)
{
    if (m->run != MU_MEMBER_RUN_ASKED) {
        return; /* The run is closed, and it was told so otherwise. */
    }
    if (status == MUSTER_ESESSION) {
        m->run = MU_MEMBER_RUN_WANTED;
    } else if (status == 0 || status == MUSTER_ERDZV_CLOSED || status == MUSTER_ENOENT) {
        end_run(m, MUSTER_ERDZV_CLOSED, "the run is closed");
    } else {
        fail_close(m, status == MUSTER_ETIMEDOUT ? MUSTER_ERDZV_TIMEOUT : status, text);
    }
}

void mu_member_broken(struct mu_member *m, int status, const char *text)
{
    if (m->call != MU_MEMBER_CALL_NONE) {
        fail(m, status, text);
    }
}

void mu_member_lost(struct mu_member *m, mu_mono_t now, const char *why)
{
    drop(m, now, why);
    m->run = m->run == MU_MEMBER_RUN_ASKED ? MU_MEMBER_RUN_WANTED : m->run;
}

void mu_member_unreached(struct mu_member *m, mu_mono_t now, int status, const char *text)
{
    mu_member_lost(m, now, text);
    m->unreached = mu_err(&m->unreached_text, status, "%s", text);
}

bool mu_member_say(const struct mu_member *m, enum mu_member_word *ret_word)
{
    bool out = m->call == MU_MEMBER_CALL_NONE;

    *ret_word = m->unreached != 0 || m->run == MU_MEMBER_RUN_CLOSED ? 0
                : m->user == MU_MEMBER_JOINING && out               ? MU_MEMBER_CALL_JOIN
                : m->say != 0 && !out                               ? MU_MEMBER_SAY
                : m->user == MU_MEMBER_LEAVING && !out && m->call != MU_MEMBER_CALL_ENDING
                    ? MU_MEMBER_END_CALL
                : m->run == MU_MEMBER_RUN_WANTED ? MU_MEMBER_CALL_CLOSE
                                                 : 0;
    return *ret_word != 0;
}

void mu_member_said(struct mu_member *m, mu_mono_t now, enum mu_member_word word, int err)
{
    if (err == MUSTER_ENOMEM) {
        m->retry_at = mu_mono_add_ms(now, RETRY_MS);
    }
    if (err != 0) {
        return;
    }
    switch (word) {
    case MU_MEMBER_CALL_JOIN:
        m->call = MU_MEMBER_CALL_ASKED;
        m->join_said = now;
        break;
    case MU_MEMBER_SAY:
        m->say = 0;
        break;
    case MU_MEMBER_END_CALL:
        m->call = MU_MEMBER_CALL_ENDING;
        break;
    case MU_MEMBER_CALL_CLOSE:
        m->run = MU_MEMBER_RUN_ASKED;
        break;
    }
}

/* --- time ------------------------------------------------------------------------------------- */

static void join_is_late(struct mu_member *m, mu_mono_t now)
{
    double seconds = (double)m->config.join_timeout_ms / 1000;
    struct mu_errmsg text;

    if (m->link.linked && !m->extended) {
        /* The server counts from when it heard of us, and can say which nodes are missing. */
        m->extended = true;
        m->user_at = mu_mono_add_ms(mu_mono_add_ms(now, m->config.join_timeout_ms), ANSWER_MS);
    } else if (m->link.linked) {
        (void)mu_err(&text, 0, "timed out after %g s: no round, and %.100s does not say why",
                     seconds, m->config.address);
        fail(m, MUSTER_ERDZV_TIMEOUT, text.text);
    } else {
        (void)mu_err(
            &text, 0,
            "timed out after %g s: cannot connect to %.100s: %s; is a server running there?",
            seconds, m->config.address,
            muster_strerror(m->link.error != 0 ? m->link.error : MUSTER_ETIMEDOUT));
        fail(m, MUSTER_ERDZV_CONN, text.text);
    }
}

static void close_is_late(struct mu_member *m)
{
    struct mu_errmsg text;

    (void)mu_err(&text, 0, "%.120s %s within %d s", m->config.address,
                 m->link.linked ? "did not answer a close" : "could not be connected to",
                 MU_MEMBER_CLOSE_MS / 1000);
    fail_close(m, m->link.linked ? MUSTER_ERDZV_TIMEOUT : MUSTER_ERDZV_CONN, text.text);
}

/* What was asked for while there is no session. */
static void fail_unreached(struct mu_member *m)
{
    int status = m->unreached;

    m->unreached = 0;
    if (m->run == MU_MEMBER_RUN_WANTED) {
        fail_close(m, status, m->unreached_text.text);
    }
    if (m->user == MU_MEMBER_JOINING || m->user == MU_MEMBER_LEAVING) {
        fail(m, status, m->unreached_text.text);
    }
}

/* Whether there is something to do that waits for no time. */
static bool is_due(const struct mu_member *m)
{
    return m->action_count != 0 || m->unreached != 0 || m->held == MU_MEMBER_HELD_DUE ||
           (m->user == MU_MEMBER_JOINING && m->run == MU_MEMBER_RUN_CLOSED) ||
           (m->user == MU_MEMBER_LEAVING && m->call == MU_MEMBER_CALL_NONE);
}

static void do_due(struct mu_member *m, mu_mono_t now)
{
    if (m->user == MU_MEMBER_JOINING && m->run == MU_MEMBER_RUN_CLOSED) {
        fail(m, MUSTER_ERDZV_CLOSED, "the run is closed");
    } else if (m->unreached != 0) {
        fail_unreached(m);
    } else if (m->user == MU_MEMBER_LEAVING && m->call == MU_MEMBER_CALL_NONE) {
        end_leave(m);
    } else if (m->held == MU_MEMBER_HELD_DUE) {
        m->held = MU_MEMBER_HELD_BACK;
        if (m->user == MU_MEMBER_JOINING && !is_cut_off(m, now)) {
            assign(m, m->held_round);
        }
    }
}

mu_mono_t mu_member_deadline(const struct mu_member *m)
{
    return is_due(m) ? (mu_mono_t){0}
                     : mu_mono_min(mu_mono_min(m->user_at, m->close_at),
                                   mu_mono_min(m->retry_at, m->fence_at));
}

void mu_member_tick(struct mu_member *m, mu_mono_t now)
{
    do_due(m, now);
    if (mu_mono_reached(m->retry_at, now)) {
        m->retry_at = MU_MONO_NEVER;
    }
    if (mu_mono_reached(m->fence_at, now)) {
        look_at_fence(m, now);
    }
    if (mu_mono_reached(m->user_at, now) && m->user == MU_MEMBER_JOINING) {
        join_is_late(m, now);
    } else if (mu_mono_reached(m->user_at, now)) {
        end_leave(m);
    }
    if (mu_mono_reached(m->close_at, now)) {
        close_is_late(m);
    }
}

bool mu_member_next(struct mu_member *m, struct mu_member_action *ret)
{
    if (m->action_count == 0) {
        return false;
    }
    *ret = m->actions[0];
    m->action_count--;
    memmove(&m->actions[0], &m->actions[1], m->action_count * sizeof(m->actions[0]));
    return true;
}

void mu_member_init(struct mu_member *m, const struct mu_member_config *config)
{
    *m = (struct mu_member){.config = *config};
    m->user_at = m->close_at = m->retry_at = MU_MONO_NEVER;
    m->counted_on = m->cut_off = m->fence_at = MU_MONO_NEVER;
}

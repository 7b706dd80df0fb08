/* The native backend's ear: notices and replies of the server, and what its user is told. */
#include "service/rdzv/muster.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"

/* --- telling the user ------------------------------------------------------------------------- */

/* It is out, and the server is told so if it does not know. */
static void get_out(struct mu_rdzv_muster *n)
{
    if (n->call != 0) {
        (void)mu_rpc_client_cancel(&n->rpc, n->call);
    }
    n->call = 0;
    n->state = MU_RDZV_OUT;
    n->rank = -1;
    n->say = 0;
    n->say_end = n->leaving = false;
    mu_rdzv_muster_unfence(n);
    n->join_deadline = n->leave_deadline = MU_MONO_NEVER;
    n->soon &= ~(unsigned)(MU_RDZV_SOON_FAIL | MU_RDZV_SOON_LEFT | MU_RDZV_SOON_HELD);
    mu_buf_reset(&n->held);
}

void mu_rdzv_muster_tell_failed(struct mu_rdzv_muster *n, int status, const char *text)
{
    struct mu_errmsg copy; /* `text` may be lent by what ends now */

    (void)mu_err(&copy, status, "%s", text);
    get_out(n);
    mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_FAILED, -1, "muster.failed", "%s", copy.text);
    mu_rdzv_muster_rearm(n);
    if (!n->freeing) {
        n->base.events.failed(n->base.events.context, status, copy.text);
    }
}

/* The run is closed: whoever joins learns it as a failure, and everybody as an event. A leave that
 * is under way has come about. */
void mu_rdzv_muster_tell_closed(struct mu_rdzv_muster *n, int status, const char *text)
{
    bool joining = n->state == MU_RDZV_JOINING;
    bool leaving = n->leaving;

    n->closed = true;
    n->closing = false;
    n->close_deadline = MU_MONO_NEVER;
    if (leaving) {
        mu_rdzv_muster_tell_left(n);
    } else if (joining) {
        mu_rdzv_muster_tell_failed(n, status, text);
    } else {
        get_out(n);
        mu_rdzv_muster_rearm(n);
    }
    if (!n->closed_told && !n->freeing) {
        n->closed_told = true;
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_SUCCEEDED, -1, "muster.closed",
                               "the run is closed");
        n->base.events.closed(n->base.events.context);
    }
}

void mu_rdzv_muster_tell_left(struct mu_rdzv_muster *n)
{
    get_out(n);
    mu_rdzv_muster_rearm(n);
    mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_SUCCEEDED, -1, "muster.left",
                           "left the rendezvous");
    if (!n->freeing) {
        n->base.events.left(n->base.events.context);
    }
}

void mu_rdzv_muster_tell_close_failed(struct mu_rdzv_muster *n, int status, const char *text)
{
    n->closing = false;
    n->close_call = 0;
    n->close_deadline = MU_MONO_NEVER;
    mu_rdzv_muster_rearm(n);
    if (!n->freeing) {
        n->base.events.close_failed(n->base.events.context, status, text);
    }
}

static void tell_ended(struct mu_rdzv_muster *n, enum mu_rdzv_end_reason reason, const char *who,
                       uint32_t who_rank, const char *text)
{
    struct mu_rdzv_ending ending = {
        .round = n->round, .reason = reason, .who = who, .who_rank = who_rank, .text = text};

    n->state = MU_RDZV_BETWEEN;
    mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_RUNNING, n->rank, "muster.ended", "%s", text);
    if (!n->freeing) {
        n->base.events.ended(n->base.events.context, &ending);
    }
}

void mu_rdzv_muster_tell_assigned(struct mu_rdzv_muster *n, const struct mu_rdzv_notice *notice)
{
    char url[MU_RDZV_STORE_URL_CAP];
    struct mu_rdzv_peer *peers = NULL;
    struct mu_rdzv_assignment a = {
        .incarnation = notice->incarnation,
        .round = notice->round,
        .rank = notice->rank,
        .world = notice->world,
        .restarts_left = notice->restarts_left,
        .store = mu_rdzv_store_url(url, &n->endpoint, n->base.run_id, notice->incarnation,
                                   notice->round),
    };

    if (notice->members.len != 0) {
        int err = mu_rdzv_peers_decode(notice->members, notice->world, &peers);

        if (err != 0) {
            mu_rdzv_muster_tell_failed(n, err == MUSTER_ENOMEM ? err : MUSTER_ERDZV_STATE,
                                       err == MUSTER_ENOMEM
                                           ? "out of memory for the list of members"
                                           : "the server's list of members is malformed");
            return;
        }
        a.members = peers;
        a.member_count = notice->world;
    }
    n->state = MU_RDZV_IN;
    n->spare = false;
    n->round = notice->round;
    n->rank = notice->rank;
    n->join_deadline = MU_MONO_NEVER;
    mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_SUCCEEDED, n->rank, "muster.assigned",
                           "round %" PRIu64 ": rank %" PRIu32 " of %" PRIu32, a.round, a.rank,
                           a.world);
    if (!n->freeing) {
        n->base.events.assigned(n->base.events.context, &a);
    }
    mu_free(peers);
}

/* --- what the server says --------------------------------------------------------------------- */

static void explain_end(char *text, size_t cap, const struct mu_rdzv_notice *notice,
                        const char *who)
{
    switch ((enum mu_rdzv_end_reason)notice->reason) {
    case MU_RDZV_ENDED_LOST:
        (void)snprintf(text, cap, "round %" PRIu64 " is over: %.120s was lost", notice->round, who);
        return;
    case MU_RDZV_ENDED_LEFT:
        (void)snprintf(text, cap, "round %" PRIu64 " is over: %.120s left", notice->round, who);
        return;
    case MU_RDZV_ENDED_FAILED:
        (void)snprintf(text, cap, "round %" PRIu64 " is over: the workers of %.120s failed",
                       notice->round, who);
        return;
    case MU_RDZV_ENDED_UPSCALE:
        (void)snprintf(text, cap, "round %" PRIu64 " is over: late-comers are let in",
                       notice->round);
        return;
    case MU_RDZV_ENDED_DROPPED:
        break;
    }
    (void)snprintf(text, cap, "round %" PRIu64 " is over", notice->round);
}

static void on_ended(struct mu_rdzv_muster *n, const struct mu_rdzv_notice *notice)
{
    char who[MU_RDZV_NAME_LEN_MAX + 1];
    struct mu_errmsg text;

    if (n->held.len != 0 && n->held_round == notice->round) {
        mu_buf_reset(&n->held); /* It came and went while the user was away. */
        n->soon &= ~(unsigned)MU_RDZV_SOON_HELD;
        return;
    }
    if (n->state != MU_RDZV_IN || n->round != notice->round) {
        return; /* The user has ended it already. */
    }
    (void)snprintf(who, sizeof(who), "%.*s", (int)notice->who.len, (const char *)notice->who.data);
    explain_end(text.text, sizeof(text.text), notice, notice->has_who ? who : "a member");
    tell_ended(n, (enum mu_rdzv_end_reason)notice->reason, notice->has_who ? who : NULL,
               notice->who_rank, text.text);
}

static void hold(struct mu_rdzv_muster *n, const struct mu_rdzv_notice *notice,
                 struct mu_span payload)
{
    mu_buf_reset(&n->held);
    if (mu_buf_append(&n->held, payload) != 0) {
        mu_rdzv_muster_tell_failed(n, MUSTER_ENOMEM, "out of memory for an assignment");
        return;
    }
    n->held_round = notice->round;
}

static void on_notice(struct mu_rdzv_muster *n, struct mu_span payload)
{
    struct mu_rdzv_notice notice;

    if (mu_rdzv_notice_decode(payload, &notice) != 0) {
        mu_rdzv_muster_tell_failed(n, MUSTER_ERDZV_STATE,
                                   "the server said something that cannot be understood");
        return;
    }
    n->incarnation = notice.incarnation;
    if (notice.kind == MU_RDZV_NOTICE_ASSIGNED && n->config.restarts_max != UINT32_MAX &&
        notice.restarts_left <= n->config.restarts_max) {
        n->spent = n->config.restarts_max - notice.restarts_left;
    }
    switch (notice.kind) {
    case MU_RDZV_NOTICE_ENTERED:
        n->entered = true;
        mu_rdzv_muster_fence(n);
        n->spare = notice.place == MU_RDZV_PLACE_SPARE;
        if (n->spare) {
            /* It waits for as long as the round is full, and the server begins to count when it is
             * promoted. */
            n->join_deadline = MU_MONO_NEVER;
            mu_rdzv_muster_rearm(n);
        }
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_RUNNING, -1, "muster.entered", "%s",
                               notice.place == MU_RDZV_PLACE_GATHERING ? "a round is being formed"
                               : notice.place == MU_RDZV_PLACE_SPARE
                                   ? "a round runs and is full: this node is spare"
                                   : "a round runs: waiting for the next one");
        break;
    case MU_RDZV_NOTICE_ASSIGNED:
        if (n->state == MU_RDZV_BETWEEN ||
            (n->state == MU_RDZV_JOINING && mu_rdzv_muster_is_cut_off(n))) {
            hold(n, &notice, payload); /* It may have been on its way for as long. */
        } else if (n->state == MU_RDZV_JOINING && n->say == 0) {
            mu_rdzv_muster_tell_assigned(n, &notice);
        } else if (n->state == MU_RDZV_JOINING && notice.round != n->round) {
            n->say = 0; /* The round of which it is is over without our word. */
            mu_rdzv_muster_tell_assigned(n, &notice);
        } else {
            mu_rdzv_muster_tell_failed(n, MUSTER_ERDZV_STATE,
                                       "the server assigned a round within a round");
        }
        break;
    case MU_RDZV_NOTICE_ENDED:
        on_ended(n, &notice);
        break;
    case MU_RDZV_NOTICE_WAITERS:
        if (n->state == MU_RDZV_IN && !n->freeing) {
            n->base.events.waiting(n->base.events.context, notice.waiters);
        }
        break;
    }
}

void mu_rdzv_muster_item(void *context, uint64_t id, struct mu_span payload)
{
    struct mu_rdzv_muster *n = context;

    if (id == n->call && !n->leaving && !n->freeing) {
        on_notice(n, payload);
    }
}

void mu_rdzv_muster_tell_dropped(struct mu_rdzv_muster *n, const char *why)
{
    struct mu_errmsg text;

    (void)mu_err(&text, 0, "round %" PRIu64 " is over for this node: %s", n->round, why);
    tell_ended(n, MU_RDZV_ENDED_DROPPED, NULL, 0, text.text);
}

/* The server does not know us any more, or cannot be asked: we were held for dead, or it was
 * started anew. Whoever is still gathering just joins again. */
void mu_rdzv_muster_dropped(struct mu_rdzv_muster *n, const char *why)
{
    mu_rdzv_muster_forsaken(n);
    n->call = 0;
    n->say = 0;
    mu_buf_reset(&n->held);
    if (n->leaving) {
        mu_rdzv_muster_tell_left(n);
    } else if (n->state == MU_RDZV_IN) {
        mu_rdzv_muster_tell_dropped(n, why);
    } else if (n->state == MU_RDZV_JOINING && n->join_deadline.ns == MU_MONO_NEVER.ns) {
        mu_rdzv_muster_arm_join(n); /* It was spare, and is not even that any more. */
    }
}

static void on_join_reply(struct mu_rdzv_muster *n, int status, const char *text)
{
    if (status == MUSTER_ESESSION) {
        mu_rdzv_muster_dropped(n, "the server has gone on without it, or was started anew");
        return;
    }
    mu_rdzv_muster_forsaken(n);
    n->call = 0;
    switch (status) {
    case MUSTER_ERDZV_CLOSED:
    case MUSTER_ERDZV_GRACEFUL:
        mu_rdzv_muster_tell_closed(n, status, text);
        return;
    case MUSTER_ENOMETHOD:
        mu_rdzv_muster_tell_failed(n, MUSTER_ERDZV_CONN,
                                   "the server there knows no rendezvous: it is too old");
        return;
    default:
        break;
    }
    if (n->leaving) {
        mu_rdzv_muster_tell_left(n);
    } else if (n->state == MU_RDZV_BETWEEN && status == MUSTER_ERDZV_TIMEOUT) {
        mu_buf_reset(&n->held); /* The user is not back yet, and joins anew when it is. */
    } else {
        mu_rdzv_muster_tell_failed(n, status != 0 ? status : MUSTER_ERDZV_LOST, text);
    }
}

static void on_close_reply(struct mu_rdzv_muster *n, int status, const char *text)
{
    n->close_call = 0;
    if (!n->closing) {
        return; /* The run is closed, and it was told so otherwise. */
    }
    if (status == MUSTER_ESESSION) {
        mu_rdzv_muster_retry_later(n); /* A close can be said twice. */
    } else if (status == 0 || status == MUSTER_ERDZV_CLOSED || status == MUSTER_ENOENT) {
        mu_rdzv_muster_tell_closed(n, MUSTER_ERDZV_CLOSED, "the run is closed");
    } else {
        mu_rdzv_muster_tell_close_failed(
            n, status == MUSTER_ETIMEDOUT ? MUSTER_ERDZV_TIMEOUT : status, text);
    }
}

void mu_rdzv_muster_reply(void *context, uint64_t id, int status, struct mu_span payload)
{
    struct mu_rdzv_muster *n = context;
    struct mu_errmsg text;

    (void)snprintf(text.text, sizeof(text.text), "%.*s",
                   (int)(payload.len < MU_ERRMSG_CAP ? payload.len : MU_ERRMSG_CAP),
                   (const char *)payload.data);
    if (text.text[0] == '\0') {
        (void)mu_err(&text, status, "%s", muster_strerror(status));
    }
    if (n->freeing || id == 0) {
        return;
    }
    if (id == n->call) {
        on_join_reply(n, status, text.text);
    } else if (id == n->close_call) {
        on_close_reply(n, status, text.text);
    } else if (id == n->explain_call) {
        mu_rdzv_muster_explain_reply(n, status, text.text);
    }
}

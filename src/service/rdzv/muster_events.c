/* The native backend's ear: notices and replies of the server, and what its user is told. */
#include "service/rdzv/muster.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/alloc.h"
#include "service/rdzv/succession.h"

static mu_mono_t mono(struct mu_rdzv_muster *n)
{
    return mu_env_now(n->base.env).mono;
}

/* --- telling the user ------------------------------------------------------------------------- */

/* False: the user has freed the node meanwhile, and is told nothing more. */
static bool record(struct mu_rdzv_muster *n, enum mu_rdzv_record_state state, int64_t rank,
                   const char *name, const char *text)
{
    mu_rdzv_handler_record(&n->base, state, rank, name, "%s", text);
    return !n->freeing;
}

void mu_rdzv_muster_tell_assigned(struct mu_rdzv_muster *n, struct mu_span payload,
                                  struct mu_span members)
{
    char url[MU_RDZV_STORE_URL_CAP];
    struct mu_rdzv_peer *peers = NULL;
    struct mu_rdzv_assignment a;
    struct mu_rdzv_notice notice;
    int err = mu_rdzv_notice_decode(payload, &notice);

    members = err == 0 && notice.members.len != 0 ? notice.members : members;
    if (err == 0 && members.len != 0) {
        err = mu_rdzv_peers_decode(members, notice.world, &peers);
    }
    if (err != 0) {
        bool starved = err == MUSTER_ENOMEM;

        mu_member_broken(&n->member, starved ? err : MUSTER_ERDZV_STATE,
                         starved ? "out of memory for the list of members"
                                 : "the server's list of members is malformed");
        return;
    }
    a = (struct mu_rdzv_assignment){
        .incarnation = notice.incarnation,
        .round = notice.round,
        .rank = notice.rank,
        .world = notice.world,
        .restarts_left = notice.restarts_left,
        .member_count = peers != NULL ? notice.world : 0,
        .members = peers,
        .store =
            mu_rdzv_store_url(url, &n->endpoint, n->base.run_id, notice.incarnation, notice.round),
    };
    n->rank = notice.rank;
    mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_SUCCEEDED, n->rank, "muster.assigned",
                           "round %" PRIu64 ": rank %" PRIu32 " of %" PRIu32, a.round, a.rank,
                           a.world);
    if (!n->freeing) {
        n->base.events.assigned(n->base.events.context, &a);
    }
    mu_free(peers);
    mu_buf_fini(&n->held);
}

/* Tells an assignment, now or when the list of its members is there. */
static void take_assigned(struct mu_rdzv_muster *n)
{
    struct mu_span payload = n->lent.len != 0 ? n->lent : mu_buf_span(&n->held);
    struct mu_rdzv_notice notice;
    int err = 0;

    if (mu_rdzv_notice_decode(payload, &notice) != 0 || notice.list.len == 0) {
        mu_rdzv_muster_tell_assigned(n, payload, (struct mu_span){0});
        return;
    }
    if (n->lent.len != 0) {
        mu_buf_reset(&n->held);
        err = mu_buf_append(&n->held, n->lent);
    }
    if (err == 0) {
        mu_rdzv_list_begin(n);
    } else {
        mu_member_broken(&n->member, err, "out of memory for an assignment");
    }
}

/* What comes after an assignment is told after it, and ends the wait for its list. */
static bool comes_after(struct mu_rdzv_muster *n, const struct mu_member_action *action)
{
    switch (action->type) {
    case MU_MEMBER_WAITING:
        n->list.waiting = n->list.active;
        n->list.waiters = action->count;
        return n->list.active;
    case MU_MEMBER_ASSIGNED:
    case MU_MEMBER_ENDED:
    case MU_MEMBER_CUT_OFF:
    case MU_MEMBER_FAILED:
        if (mu_rdzv_list_drop(n)) {
            mu_rdzv_muster_tell_assigned(n, mu_buf_span(&n->held), (struct mu_span){0});
        }
        return n->freeing;
    case MU_MEMBER_LEFT:
        (void)mu_rdzv_list_drop(n);
        return false;
    case MU_MEMBER_CANCEL:
    case MU_MEMBER_CLOSED:
    case MU_MEMBER_CLOSE_FAILED:
        return false;
    }
    return false;
}

static void tell_ended(struct mu_rdzv_muster *n, const struct mu_member_action *action)
{
    struct mu_rdzv_ending ending = {
        .round = n->member.round,
        .reason =
            action->reason != 0 ? (enum mu_rdzv_end_reason)action->reason : MU_RDZV_ENDED_DROPPED,
        .who = action->has_who ? action->who : NULL,
        .who_rank = action->who_rank,
        .text = action->text.text,
        .host_gone = n->heir != NULL && n->heir->lost,
    };

    if (record(n, MU_RDZV_RECORD_RUNNING, n->rank, "muster.ended", action->text.text)) {
        n->base.events.ended(n->base.events.context, &ending);
    }
}

static void be_out(struct mu_rdzv_muster *n)
{
    if (n->heir != NULL) {
        mu_rdzv_succession_left(n->heir);
    }
}

void mu_rdzv_muster_act(struct mu_rdzv_muster *n, const struct mu_member_action *action)
{
    const struct mu_rdzv_events *events = &n->base.events;

    if (comes_after(n, action)) {
        return;
    }
    switch (action->type) {
    case MU_MEMBER_CANCEL:
        (void)mu_rpc_client_cancel(&n->rpc, n->call);
        n->call = 0;
        break;
    case MU_MEMBER_ASSIGNED:
        n->stays = false;
        take_assigned(n);
        break;
    case MU_MEMBER_ENDED:
        tell_ended(n, action);
        break;
    case MU_MEMBER_WAITING:
        events->waiting(events->context, action->count);
        break;
    case MU_MEMBER_CUT_OFF:
        n->stays = events->cut_off != NULL && events->cut_off(events->context, action->by);
        if (!n->stays) {
            mu_member_cut(&n->member, mono(n));
        }
        break;
    case MU_MEMBER_FAILED:
        if (mu_rdzv_is_over(action->status)) {
            be_out(n); /* Else it may come back, and is bound by what it has promised. */
        }
        if (record(n, MU_RDZV_RECORD_FAILED, -1, "muster.failed", action->text.text)) {
            events->failed(events->context, action->status, action->text.text);
        }
        break;
    case MU_MEMBER_LEFT:
        be_out(n);
        if (record(n, MU_RDZV_RECORD_SUCCEEDED, -1, "muster.left", "left the rendezvous")) {
            events->left(events->context);
        }
        break;
    case MU_MEMBER_CLOSED:
        if (record(n, MU_RDZV_RECORD_SUCCEEDED, -1, "muster.closed", "the run is closed")) {
            events->closed(events->context);
        }
        break;
    case MU_MEMBER_CLOSE_FAILED:
        n->close_call = 0;
        events->close_failed(events->context, action->status, action->text.text);
        break;
    }
}

/* --- what the server says --------------------------------------------------------------------- */

static void on_notice(struct mu_rdzv_muster *n, struct mu_span payload)
{
    struct mu_member *m = mu_rdzv_muster_member(n);
    struct mu_rdzv_notice notice;

    if (mu_rdzv_notice_decode(payload, &notice) != 0) {
        mu_member_broken(m, MUSTER_ERDZV_STATE,
                         "the server said something that cannot be understood");
        return;
    }
    if (n->heir != NULL && mu_rdzv_succession_notice(n->heir, &notice)) {
        return;
    }
    mu_member_notice(m, mono(n), &notice);
    if (notice.kind == MU_RDZV_NOTICE_ASSIGNED && m->held != MU_MEMBER_HELD_NONE) {
        mu_buf_reset(&n->held);
        if (mu_buf_append(&n->held, payload) != 0) {
            mu_member_broken(m, MUSTER_ENOMEM, "out of memory for an assignment");
        }
    }
    if (notice.kind == MU_RDZV_NOTICE_ENTERED) {
        (void)record(n, MU_RDZV_RECORD_RUNNING, -1, "muster.entered",
                     notice.place == MU_RDZV_PLACE_GATHERING ? "a round is being formed"
                     : notice.place == MU_RDZV_PLACE_SPARE
                         ? "a round runs and is full: this node is spare"
                         : "a round runs: waiting for the next one");
    }
}

void mu_rdzv_muster_item(void *context, uint64_t id, struct mu_span payload)
{
    struct mu_rdzv_muster *n = context;

    if (id == n->call && n->member.user != MU_MEMBER_LEAVING && !n->freeing) {
        n->lent = payload;
        on_notice(n, payload);
        mu_rdzv_muster_run(n);
        n->lent = mu_span(NULL, 0);
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
    if (n->freeing || id == 0 || mu_rdzv_list_reply(n, id, status, payload)) {
        return;
    }
    if (id == n->call) {
        n->call = 0;
        if (status == MUSTER_EPROTO && n->heir != NULL && mu_rdzv_succession_refused(n->heir)) {
            status = MUSTER_ESESSION; /* It is asked again, in words that it knows. */
        } else if (status == MUSTER_ESESSION && n->heir != NULL &&
                   mu_rdzv_succession_forgotten(n->heir)) {
            return;
        }
        mu_member_answered(mu_rdzv_muster_member(n), mono(n), status, text.text);
    } else if (id == n->close_call) {
        n->close_call = 0;
        mu_member_close_answered(&n->member, status, text.text);
    } else if (id == n->explain_call) {
        mu_rdzv_muster_explain_reply(n, status, payload);
    }
    mu_rdzv_muster_run(n);
}

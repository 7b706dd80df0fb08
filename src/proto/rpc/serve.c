/* The other end's calls. */
#include "proto/rpc/rpc_internal.h"

bool mu_rpc_can_hand_out(const struct mu_rpc *r)
{
    return r->serving < r->config.calls_max && !mu_rpc_is_crowded(r);
}

void mu_rpc_drop_held(struct mu_rpc *r, struct mu_rpc_entry *e)
{
    if (e->held.data == NULL) {
        return;
    }
    r->held_bytes -= e->held.cap;
    /* An event may lend these bytes, unless what it lends was taken over already. */
    if (r->lent.data == NULL) {
        r->lent = e->held;
    } else {
        mu_buf_fini(&e->held);
    }
    mu_buf_init(&e->held, r->lent.max);
    e->held_read = 0;
}

/* Keeps the current frame until its call is handed out. */
static int hold(struct mu_rpc *r, struct mu_rpc_entry *e, struct mu_span payload)
{
    size_t cap = e->held.cap;
    int err = mu_buf_reserve(&e->held, MU_RPC_HEADER + payload.len);

    if (err != 0) {
        return err;
    }
    mu_buf_put(&e->held, mu_span(r->head, MU_RPC_HEADER));
    mu_buf_put(&e->held, payload);
    r->held_bytes += e->held.cap - cap;
    return 0;
}

static int check_window(struct mu_rpc *r)
{
    struct mu_errmsg e;

    if (r->peer_spent >= r->peer_limit) {
        return mu_rpc_violate(r,
                              mu_err(&e, MUSTER_EWINDOW, "%s after %llu bytes, %llu were granted",
                                     mu_rpc_frame_name(r->header.type),
                                     (unsigned long long)r->peer_spent,
                                     (unsigned long long)r->peer_limit),
                              &e);
    }
    return 0;
}

int mu_rpc_on_call(struct mu_rpc *r, struct mu_span payload)
{
    bool at_once = mu_list_empty(&r->queue) && mu_rpc_can_hand_out(r);
    uint64_t cost = MU_RPC_HEADER + payload.len;
    struct mu_rpc_call_body body;
    struct mu_rpc_entry *e;
    struct mu_errmsg msg;
    int err;

    if (r->header.id != r->peer_next || mu_rpc_call_decode(payload, &body) != 0) {
        return mu_rpc_violate(r,
                              mu_err(&msg, MUSTER_EPROTO, "malformed CALL %llu (next is %llu)",
                                     (unsigned long long)r->header.id,
                                     (unsigned long long)r->peer_next),
                              &msg);
    }
    err = check_window(r);
    if (err != 0) {
        return err;
    }
    e = mu_rpc_entry_new(r, r->header.id + r->peer_base, at_once ? MU_RPC_SERVED : MU_RPC_QUEUED);
    if (e == NULL) {
        return MUSTER_ENOMEM;
    }
    r->serving += at_once ? 1 : 0;
    err = at_once ? 0 : hold(r, e, payload);
    if (err != 0) {
        mu_rpc_entry_drop(r, e);
        return err;
    }
    r->peer_next += 2;
    r->peer_spent += cost;
    e->limit = body.item_credit;
    if (body.timeout_ms != 0) {
        e->deadline = mu_mono_add_ms(r->now.mono, body.timeout_ms);
        mu_heap_insert(&r->timers, &e->timer, e->deadline);
    }
    if (!at_once) {
        e->owed = cost;
        mu_list_push(&r->queue, &e->due);
        return 0;
    }
    r->peer_done += cost;
    mu_rpc_tell(r, (struct mu_rpc_event){.type = MU_RPC_EV_CALL,
                                         .id = e->id,
                                         .flags = body.flags,
                                         .deadline = e->deadline,
                                         .method = body.method,
                                         .payload = body.payload});
    return 0;
}

/* Finds the call of an ITEM or END; NULL: the call takes no more. */
static int find_listening(struct mu_rpc *r, struct mu_rpc_entry **ret)
{
    struct mu_rpc_entry *e;
    struct mu_errmsg msg;
    int err = mu_rpc_find_wire(r, r->header.id, false, &e);

    if (err != 0) {
        return err;
    }
    if (e != NULL && (e->ended || e->caller_cancelled)) {
        return mu_rpc_violate(r,
                              mu_err(&msg, MUSTER_EPROTO, "%s for call %llu behind its %s",
                                     mu_rpc_frame_name(r->header.type),
                                     (unsigned long long)r->header.id, e->ended ? "END" : "CANCEL"),
                              &msg);
    }
    *ret = e;
    return 0;
}

int mu_rpc_on_peer_item(struct mu_rpc *r, struct mu_span payload)
{
    uint64_t cost = MU_RPC_HEADER + payload.len;
    struct mu_rpc_entry *e;
    int err = find_listening(r, &e);

    if (err == 0) {
        err = check_window(r);
    }
    if (err != 0) {
        return err;
    }
    if (e == NULL || e->cancelled) {
        r->peer_spent += cost;
        r->peer_done += cost;
        return 0;
    }
    /* Frames that a call still holds after it was handed out are pulled before recv takes
     * anything. */
    if (e->state == MU_RPC_QUEUED) {
        err = hold(r, e, payload);
        if (err != 0) {
            return err;
        }
        r->peer_spent += cost;
        e->owed += cost;
        return 0;
    }
    r->peer_spent += cost;
    r->peer_done += MU_RPC_HEADER;
    e->owed += payload.len;
    e->unconsumed += payload.len;
    mu_rpc_tell(
        r, (struct mu_rpc_event){
               .type = MU_RPC_EV_ITEM, .id = e->id, .deadline = MU_MONO_NEVER, .payload = payload});
    return 0;
}

int mu_rpc_on_end(struct mu_rpc *r)
{
    struct mu_rpc_entry *e;
    int err = find_listening(r, &e);

    if (err != 0 || e == NULL) {
        return err;
    }
    if (e->state == MU_RPC_QUEUED) {
        err = hold(r, e, (struct mu_span){0});
        if (err != 0) {
            return err;
        }
    } else if (!e->cancelled) {
        mu_rpc_tell(r, (struct mu_rpc_event){.type = MU_RPC_EV_END, .id = e->id});
    }
    mu_rpc_unland(r, e); /* What comes now is a violation, and has no place. */
    e->ended = true;
    return 0;
}

void mu_rpc_cancel_served(struct mu_rpc *r, struct mu_rpc_entry *e, int status)
{
    mu_heap_remove(&r->timers, &e->timer);
    if (e->failed) {
        return; /* The callee has ended it already. */
    }
    mu_list_remove(&e->stall);
    e->stalled = false;
    mu_rpc_unland(r, e);
    mu_rpc_drop_held(r, e);
    /* Credit for what it held is given back; what was told and not consumed comes back with the
     * reply. */
    r->peer_done += e->owed - e->unconsumed;
    e->owed = e->unconsumed;
    if (e->cancelled) {
        return;
    }
    e->cancelled = true;
    e->status = status;
    mu_rpc_make_due(r, e, MU_RPC_DUE_CANCEL);
    e->pending = MU_RPC_DUE_CANCEL;
}

int mu_rpc_on_cancel(struct mu_rpc *r)
{
    struct mu_rpc_entry *e;
    struct mu_errmsg msg;
    int err = mu_rpc_find_wire(r, r->header.id, false, &e);

    if (err != 0 || e == NULL) {
        return err;
    }
    if (e->caller_cancelled) {
        return mu_rpc_violate(r,
                              mu_err(&msg, MUSTER_EPROTO, "call %llu is cancelled twice",
                                     (unsigned long long)r->header.id),
                              &msg);
    }
    if (e->state == MU_RPC_QUEUED) {
        err = mu_rpc_reserve(r, MU_RPC_OWN_REPLY);
        if (err == 0) {
            mu_rpc_reply_queued(r, e, MUSTER_ECANCELED);
        }
        return err;
    }
    e->caller_cancelled = true;
    mu_rpc_cancel_served(r, e, MUSTER_ECANCELED);
    return 0;
}

/* --- replying ----------------------------------------------------- */

static void put_reply(struct mu_rpc *r, const struct mu_rpc_entry *e, const struct mu_rpc_status *s)
{
    size_t at = mu_rpc_begin(r, MU_RPC_REPLY, mu_rpc_wire_id(r, e));

    (void)mu_rpc_status_encode(&r->out, s); /* there is room */
    mu_rpc_finish(r, at);
}

void mu_rpc_reply_queued(struct mu_rpc *r, struct mu_rpc_entry *e, int status)
{
    struct mu_rpc_status s = {.status = status,
                              .payload = MU_SPAN_LIT("the call waited too long to begin")};

    put_reply(r, e, &s);
    mu_rpc_entry_drop(r, e);
}

int mu_rpc_reply(struct mu_rpc *r, struct mu_now now, uint64_t id, int status,
                 struct mu_span payload)
{
    struct mu_rpc_status s = {.status = status, .payload = payload};
    struct mu_rpc_entry *e;
    int err;

    mu_rpc_enter(r, now);
    e = mu_rpc_find(r, id);
    if (e == NULL || e->failed || (e->state != MU_RPC_SERVED && e->state != MU_RPC_ORPHAN)) {
        return MUSTER_ENOENT;
    }
    if (status > 0) {
        return MUSTER_EINVAL;
    }
    if (e->state == MU_RPC_SERVED) {
        size_t len = 4 + payload.len;

        if (status != 0 && payload.len > MU_RPC_MESSAGE_MAX) {
            len = 4 + MU_RPC_MESSAGE_MAX;
        }
        if (status == 0 && (len > r->peer_frame_max ||
                            r->kept_bytes + MU_RPC_HEADER + len > r->config.output_bytes_max)) {
            return MUSTER_ELIMIT;
        }
        err = mu_rpc_reserve(r, len);
        if (err != 0) {
            return err;
        }
        put_reply(r, e, &s);
    }
    mu_rpc_entry_drop(r, e);
    mu_rpc_settle(r);
    return 0;
}

int mu_rpc_reply_lent(struct mu_rpc *r, struct mu_now now, uint64_t id, struct mu_rpc_lent *lent)
{
    size_t len = mu_span_total(lent->spans, lent->count);
    struct mu_rpc_entry *e;

    mu_rpc_enter(r, now);
    e = mu_rpc_find(r, id);
    if (e == NULL || e->failed || (e->state != MU_RPC_SERVED && e->state != MU_RPC_ORPHAN)) {
        return MUSTER_ENOENT;
    }
    if (e->state == MU_RPC_SERVED) {
        int err = 4 + len > r->peer_frame_max ||
                          r->kept_bytes + MU_RPC_HEADER + 4 + len > r->config.output_bytes_max
                      ? MUSTER_ELIMIT
                      : mu_rpc_put_reply_lent(r, e, lent, len);

        if (err != 0) {
            return err;
        }
    } else {
        lent->release(lent);
    }
    mu_rpc_entry_drop(r, e);
    mu_rpc_settle(r);
    return 0;
}

/* --- calls that found no memory ----------------------------------- */

void mu_rpc_fail(struct mu_rpc *r, struct mu_now now, uint64_t id, int status)
{
    struct mu_rpc_entry *e;

    mu_rpc_enter(r, now);
    e = mu_rpc_find(r, id);
    if (e == NULL || e->failed || (e->state != MU_RPC_SERVED && e->state != MU_RPC_ORPHAN)) {
        return;
    }
    if (e->state == MU_RPC_ORPHAN) {
        mu_rpc_entry_drop(r, e);
        return;
    }
    /* Events that wait for its callee do not matter any more. */
    mu_heap_remove(&r->timers, &e->timer);
    mu_list_remove(&e->due);
    mu_list_remove(&e->stall);
    e->pending = 0;
    e->stalled = false;
    mu_rpc_unland(r, e);
    mu_rpc_drop_held(r, e);
    e->failed = true;
    e->cancelled = true; /* so that later frames for it are dropped */
    e->status = status;
    mu_list_push(&r->failed, &e->stall);
    mu_rpc_settle(r);
}

void mu_rpc_reply_failed(struct mu_rpc *r)
{
    r->fail_at = MU_MONO_NEVER;
    while (!mu_list_empty(&r->failed)) {
        struct mu_rpc_entry *e = MU_CONTAINER_OF(r->failed.next, struct mu_rpc_entry, stall);
        struct mu_rpc_status s = {
            .status = e->status,
            .payload = MU_SPAN_LIT("no memory for the answer: it may have happened"),
        };

        if (mu_rpc_reserve(r, MU_RPC_OWN_REPLY) != 0) {
            r->fail_at = mu_mono_add_ms(r->now.mono, MU_RPC_FAIL_MS);
            return;
        }
        put_reply(r, e, &s);
        mu_rpc_entry_drop(r, e);
    }
}

/* Events, pulled one at a time. */
#include "proto/rpc/rpc_internal.h"

void mu_rpc_tell(struct mu_rpc *r, struct mu_rpc_event event)
{
    r->event = event;
    r->has_event = true;
}

bool mu_rpc_has_event(const struct mu_rpc *r)
{
    return r->has_event || r->dead_event || r->credit_event || !mu_list_empty(&r->due) ||
           (!mu_list_empty(&r->queue) && mu_rpc_can_hand_out(r));
}

/* Takes the next frame that a call holds. Frames were checked when they came. */
static struct mu_span next_held(struct mu_rpc *r, struct mu_rpc_entry *e, struct mu_rpc_header *h)
{
    struct mu_span rest = mu_span_skip(mu_buf_span(&e->held), e->held_read);
    struct mu_span payload;

    (void)mu_rpc_header_decode(rest.data, h);
    payload = mu_span(rest.data + MU_RPC_HEADER, h->len);
    e->held_read += MU_RPC_HEADER + payload.len;
    if (e->held_read == e->held.len) {
        e->pending &= (uint8_t)~MU_RPC_DUE_HELD;
        mu_rpc_drop_held(r, e); /* they become `lent`: the bytes stay where they are */
    } else {
        e->pending |= MU_RPC_DUE_HELD;
    }
    return payload;
}

/* Hands out the call that has waited the longest. */
static struct mu_rpc_event hand_out(struct mu_rpc *r)
{
    struct mu_rpc_entry *e = MU_CONTAINER_OF(mu_list_pop(&r->queue), struct mu_rpc_entry, due);
    struct mu_rpc_call_body body = {0};
    struct mu_rpc_header h;
    struct mu_span payload = next_held(r, e, &h);

    (void)mu_rpc_call_decode(payload, &body);
    e->state = MU_RPC_SERVED;
    r->serving++;
    e->owed -= MU_RPC_HEADER + payload.len;
    r->peer_done += MU_RPC_HEADER + payload.len;
    if (e->pending != 0) {
        mu_list_push(&r->due, &e->due);
    }
    return (struct mu_rpc_event){.type = MU_RPC_EV_CALL,
                                 .id = e->id,
                                 .flags = body.flags,
                                 .deadline = e->deadline,
                                 .method = body.method,
                                 .payload = body.payload};
}

static struct mu_rpc_event tell_held(struct mu_rpc *r, struct mu_rpc_entry *e)
{
    struct mu_rpc_event event = {.type = MU_RPC_EV_END, .id = e->id};
    struct mu_rpc_header h;
    struct mu_span payload = next_held(r, e, &h);

    if (h.type == MU_RPC_ITEM) {
        event.type = MU_RPC_EV_ITEM;
        event.payload = payload;
        e->owed -= MU_RPC_HEADER;
        e->unconsumed += payload.len;
        r->peer_done += MU_RPC_HEADER;
    }
    return event;
}

/* Takes an event of the first call that has one. */
static struct mu_rpc_event tell_due(struct mu_rpc *r)
{
    struct mu_rpc_entry *e = MU_CONTAINER_OF(r->due.next, struct mu_rpc_entry, due);
    struct mu_rpc_event event = {.id = e->id, .deadline = MU_MONO_NEVER};

    if ((e->pending & MU_RPC_DUE_HELD) != 0) {
        event = tell_held(r, e);
    } else if ((e->pending & MU_RPC_DUE_CREDIT) != 0) {
        e->pending &= (uint8_t)~MU_RPC_DUE_CREDIT;
        event.type = MU_RPC_EV_CREDIT;
    } else if ((e->pending & MU_RPC_DUE_CANCEL) != 0) {
        e->pending &= (uint8_t)~MU_RPC_DUE_CANCEL;
        event.type = MU_RPC_EV_CANCEL;
        event.status = e->status;
    } else {
        e->pending = 0;
        event.type = MU_RPC_EV_REPLY;
        event.status = e->status;
        event.payload = mu_span_str(muster_strerror(e->status));
        mu_rpc_entry_drop(r, e);
        return event;
    }
    if (e->pending == 0) {
        mu_list_remove(&e->due);
    }
    return event;
}

bool mu_rpc_next_event(struct mu_rpc *r, struct mu_rpc_event *ret_event)
{
    mu_buf_fini(&r->lent);
    if (r->has_event) {
        r->has_event = false;
        *ret_event = r->event;
        return true;
    }
    if (r->dead_event) {
        r->dead_event = false;
        *ret_event = (struct mu_rpc_event){.type = MU_RPC_EV_LINK_DEAD};
        return true;
    }
    if (r->credit_event) {
        r->credit_event = false;
        *ret_event = (struct mu_rpc_event){.type = MU_RPC_EV_CREDIT};
        return true;
    }
    if (!mu_list_empty(&r->due)) {
        *ret_event = tell_due(r);
    } else if (!mu_list_empty(&r->queue) && mu_rpc_can_hand_out(r)) {
        *ret_event = hand_out(r);
    } else {
        return false;
    }
    mu_rpc_settle(r);
    return true;
}

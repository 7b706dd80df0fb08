/* The table of calls, and our own calls. */
#include "proto/rpc/rpc_internal.h"

#include "core/alloc.h"

uint64_t mu_rpc_own_first(const struct mu_rpc *r)
{
    return r->config.role == MU_RPC_CLIENT ? 1 : 2;
}

uint64_t mu_rpc_peer_first(const struct mu_rpc *r)
{
    return r->config.role == MU_RPC_CLIENT ? 2 : 1;
}

static bool is_own(const struct mu_rpc *r, uint64_t id)
{
    return (id & 1) == (mu_rpc_own_first(r) & 1);
}

uint64_t mu_rpc_wire_id(const struct mu_rpc *r, const struct mu_rpc_entry *e)
{
    return e->id - (is_own(r, e->id) ? r->own_base : r->peer_base);
}

struct mu_rpc_entry *mu_rpc_find(const struct mu_rpc *r, uint64_t id)
{
    struct mu_map_node *node = mu_map_find(&r->calls, mu_span(&id, sizeof(id)));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_rpc_entry, node);
}

int mu_rpc_find_wire(struct mu_rpc *r, uint64_t wire_id, bool own, struct mu_rpc_entry **ret)
{
    uint64_t next = own ? r->own_next - r->own_base : r->peer_next;
    struct mu_errmsg e;

    /* Ids are given out in order: an id below the next one that is not in the table has ended. */
    if (is_own(r, wire_id) != own || wire_id >= next) {
        return mu_rpc_violate(r,
                              mu_err(&e, MUSTER_EPROTO, "%s for call %llu, which never existed",
                                     mu_rpc_frame_name(r->header.type),
                                     (unsigned long long)wire_id),
                              &e);
    }
    *ret = mu_rpc_find(r, wire_id + (own ? r->own_base : r->peer_base));
    return 0;
}

/* --- records ----------------------------------------------------- */

struct mu_rpc_entry *mu_rpc_entry_new(struct mu_rpc *r, uint64_t id, enum mu_rpc_call_state state)
{
    struct mu_list *spare = mu_list_pop(&r->spare);
    struct mu_rpc_entry *e;

    if (spare != NULL) {
        e = MU_CONTAINER_OF(spare, struct mu_rpc_entry, due);
        r->spare_count--;
    } else {
        e = mu_malloc(sizeof(*e));
        if (e == NULL) {
            return NULL;
        }
    }
    *e = (struct mu_rpc_entry){.id = id, .state = state, .deadline = MU_MONO_NEVER};
    mu_list_init(&e->all);
    mu_list_init(&e->due);
    mu_list_init(&e->stall);
    mu_heap_node_init(&e->timer);
    mu_buf_init(&e->held, SIZE_MAX / 4);
    if (mu_map_insert(&r->calls, &e->node, mu_span(&e->id, sizeof(e->id))) != 0) {
        mu_free(e);
        return NULL;
    }
    if (state == MU_RPC_OUT) {
        mu_list_push(&r->calls_out, &e->all);
        r->out_count++;
    } else {
        mu_list_push(&r->calls_in, &e->all);
        r->in_count++;
    }
    return e;
}

/* The call leaves the table: no frame and no user can name it any more. */
static void forget(struct mu_rpc *r, struct mu_rpc_entry *e)
{
    mu_rpc_unland(r, e);
    mu_map_remove(&r->calls, &e->node);
    mu_list_remove(&e->all);
    mu_list_remove(&e->stall);
    mu_heap_remove(&r->timers, &e->timer);
    if (e->state == MU_RPC_OUT) {
        r->out_count--;
    } else {
        r->in_count--;
        r->serving -= e->state != MU_RPC_QUEUED ? 1 : 0;
        r->peer_done += e->owed;
        mu_rpc_drop_held(r, e);
    }
}

void mu_rpc_entry_drop(struct mu_rpc *r, struct mu_rpc_entry *e)
{
    if (e->state != MU_RPC_ENDED) {
        forget(r, e);
    }
    mu_list_remove(&e->due);
    if (r->spare_count < MU_RPC_KEEP_CALLS) {
        mu_list_push(&r->spare, &e->due);
        r->spare_count++;
    } else {
        mu_free(e);
    }
}

void mu_rpc_make_due(struct mu_rpc *r, struct mu_rpc_entry *e, unsigned bits)
{
    if (e->pending == 0) {
        mu_list_push(&r->due, &e->due);
    }
    e->pending |= (uint8_t)bits;
}

void mu_rpc_end_own(struct mu_rpc *r, struct mu_rpc_entry *e, int status)
{
    forget(r, e);
    e->state = MU_RPC_ENDED;
    e->status = status;
    mu_rpc_make_due(r, e, MU_RPC_DUE_REPLY);
    e->pending = MU_RPC_DUE_REPLY; /* and nothing else */
}

void mu_rpc_end_all(struct mu_rpc *r, int status)
{
    r->fail_at = MU_MONO_NEVER;
    MU_LIST_FOREACH_SAFE (it, tmp, &r->calls_out) {
        mu_rpc_end_own(r, MU_CONTAINER_OF(it, struct mu_rpc_entry, all), status);
    }
    MU_LIST_FOREACH_SAFE (it, tmp, &r->calls_in) {
        struct mu_rpc_entry *e = MU_CONTAINER_OF(it, struct mu_rpc_entry, all);

        if (e->state == MU_RPC_QUEUED || e->failed) {
            mu_rpc_entry_drop(r, e);
        } else if (e->state == MU_RPC_SERVED) {
            mu_rpc_cancel_served(r, e, MUSTER_ESESSION);
            e->state = MU_RPC_ORPHAN;
            e->owed = 0; /* the window is gone */
        }
    }
}

/* --- calling ----------------------------------------------------- */

/* Returns 0 if a CALL or an ITEM of a call of ours with this much payload may be written. */
static int may_spend(const struct mu_rpc *r, size_t len)
{
    if (len > r->peer_frame_max) {
        return r->terms_known ? MUSTER_ELIMIT : MUSTER_EAGAIN;
    }
    if (r->own_spent >= r->own_limit || mu_rpc_is_crowded(r)) {
        return MUSTER_EAGAIN;
    }
    return r->kept_bytes + MU_RPC_HEADER + len > r->config.output_bytes_max
               ? (r->kept_bytes == 0 ? MUSTER_ELIMIT : MUSTER_EAGAIN)
               : 0;
}

int mu_rpc_call(struct mu_rpc *r, struct mu_now now, struct mu_span method, struct mu_span payload,
                uint32_t timeout_ms, uint32_t flags, uint64_t *ret_id)
{
    struct mu_rpc_call_body body = {.timeout_ms = timeout_ms,
                                    .flags = flags,
                                    .item_credit = r->item_window,
                                    .method = method,
                                    .payload = payload};
    size_t len = MU_RPC_CALL_HEAD + method.len + payload.len;
    struct mu_rpc_entry *e;
    size_t at;
    int err = mu_rpc_usable(r);

    if (err != 0) {
        return err;
    }
    mu_rpc_enter(r, now);
    if (!mu_rpc_is_method(method)) {
        return MUSTER_EINVAL;
    }
    err = may_spend(r, len);
    if (err != 0) {
        r->call_stalled = r->call_stalled || err == MUSTER_EAGAIN;
        return err;
    }
    err = mu_rpc_reserve(r, len);
    if (err != 0) {
        return err;
    }
    e = mu_rpc_entry_new(r, r->own_next, MU_RPC_OUT);
    if (e == NULL) {
        return MUSTER_ENOMEM;
    }
    r->own_next += 2;
    r->own_spent += MU_RPC_HEADER + len;
    e->limit = body.item_credit;
    e->mark = (struct mu_rpc_mark){0, now.mono};
    at = mu_rpc_begin(r, MU_RPC_CALL, mu_rpc_wire_id(r, e));
    (void)mu_rpc_call_encode(&r->out, &body); /* there is room, and the method is valid */
    mu_rpc_finish(r, at);
    if (timeout_ms != 0) {
        e->deadline = mu_mono_add_ms(now.mono, (uint64_t)timeout_ms + MU_RPC_REPLY_MARGIN_MS);
        mu_heap_insert(&r->timers, &e->timer, e->deadline);
    }
    *ret_id = e->id;
    return 0;
}

/* Finds a call of ours that has not ended. MUSTER_ENOENT. */
static int enter_call(struct mu_rpc *r, struct mu_now now, uint64_t id, struct mu_rpc_entry **ret)
{
    int err = mu_rpc_usable(r);

    if (err != 0) {
        return err;
    }
    mu_rpc_enter(r, now);
    *ret = mu_rpc_find(r, id);
    return *ret == NULL || (*ret)->state != MU_RPC_OUT ? MUSTER_ENOENT : 0;
}

int mu_rpc_cancel(struct mu_rpc *r, struct mu_now now, uint64_t id)
{
    struct mu_rpc_entry *e;
    int err = enter_call(r, now, id, &e);

    if (err != 0) {
        return err;
    }
    err = mu_rpc_reserve(r, 0);
    if (err != 0) {
        return err;
    }
    mu_rpc_put(r, MU_RPC_CANCEL, mu_rpc_wire_id(r, e), (struct mu_span){0});
    mu_rpc_end_own(r, e, MUSTER_ECANCELED);
    return 0;
}

int mu_rpc_end(struct mu_rpc *r, struct mu_now now, uint64_t id)
{
    struct mu_rpc_entry *e;
    int err = enter_call(r, now, id, &e);

    if (err != 0) {
        return err;
    }
    if (e->ended) {
        return MUSTER_EINVAL;
    }
    err = mu_rpc_reserve(r, 0);
    if (err != 0) {
        return err;
    }
    mu_rpc_put(r, MU_RPC_END, mu_rpc_wire_id(r, e), (struct mu_span){0});
    e->ended = true;
    return 0;
}

/* --- items out, either way ---------------------------------------- */

static int item_to_callee(struct mu_rpc *r, struct mu_rpc_entry *e, size_t len)
{
    int err;

    if (e->ended) {
        return MUSTER_EINVAL;
    }
    err = may_spend(r, len);
    if (err == MUSTER_EAGAIN) {
        mu_list_remove(&e->stall);
        mu_list_push(&r->stalled_out, &e->stall);
    }
    return err;
}

static int item_to_caller(struct mu_rpc *r, struct mu_rpc_entry *e, size_t len)
{
    if (e->cancelled) {
        return MUSTER_ECANCELED;
    }
    if (len > r->peer_frame_max) {
        return MUSTER_ELIMIT;
    }
    if (e->spent >= e->limit) {
        e->stalled = true;
        return MUSTER_EAGAIN;
    }
    if (mu_rpc_is_crowded(r) || r->kept_bytes + MU_RPC_HEADER + len > r->config.output_bytes_max) {
        mu_list_remove(&e->stall);
        mu_list_push(&r->stalled_in, &e->stall);
        return MUSTER_EAGAIN;
    }
    return 0;
}

/* Finds a call that the other end knows. MUSTER_ENOENT, or the error that ended the session. */
static int find_begun(struct mu_rpc *r, struct mu_now now, uint64_t id, struct mu_rpc_entry **ret)
{
    int err = mu_rpc_usable(r);

    if (err != 0) {
        return err;
    }
    mu_rpc_enter(r, now);
    *ret = mu_rpc_find(r, id);
    return *ret == NULL || (*ret)->state == MU_RPC_QUEUED ? MUSTER_ENOENT : 0;
}

static int put_item(struct mu_rpc *r, struct mu_now now, uint64_t id, struct mu_span payload,
                    bool lent, struct mu_rpc_blob *blob)
{
    struct mu_rpc_entry *e;
    int err = find_begun(r, now, id, &e);

    if (err != 0) {
        return err;
    }
    err = e->state == MU_RPC_OUT ? item_to_callee(r, e, payload.len)
                                 : item_to_caller(r, e, payload.len);
    if (err == 0 && lent) {
        err = mu_rpc_put_lent(r, e, payload, blob);
    } else if (err == 0) {
        err = mu_rpc_reserve(r, payload.len);
        if (err == 0) {
            mu_rpc_put(r, MU_RPC_ITEM, mu_rpc_wire_id(r, e), payload);
        }
    }
    if (err != 0) {
        return err;
    }
    if (e->state == MU_RPC_OUT) {
        r->own_spent += MU_RPC_HEADER + payload.len;
    } else {
        e->spent += MU_RPC_HEADER + payload.len;
    }
    return 0;
}

int mu_rpc_item(struct mu_rpc *r, struct mu_now now, uint64_t id, struct mu_span payload)
{
    return put_item(r, now, id, payload, false, NULL);
}

int mu_rpc_item_lent(struct mu_rpc *r, struct mu_now now, uint64_t id, struct mu_span payload,
                     struct mu_rpc_blob *blob)
{
    return put_item(r, now, id, payload, payload.len >= MU_RPC_LEND_MIN, blob);
}

/* --- frames about our calls --------------------------------------- */

int mu_rpc_on_reply(struct mu_rpc *r, struct mu_span payload)
{
    struct mu_rpc_status s;
    struct mu_rpc_entry *e;
    struct mu_errmsg msg;
    int err = mu_rpc_find_wire(r, r->header.id, true, &e);

    if (err != 0) {
        return err;
    }
    if (mu_rpc_status_decode(payload, &s) != 0) {
        return mu_rpc_violate(r, mu_err(&msg, MUSTER_EPROTO, "malformed REPLY"), &msg);
    }
    if (e != NULL) {
        mu_rpc_tell(r, (struct mu_rpc_event){.type = MU_RPC_EV_REPLY,
                                             .id = e->id,
                                             .status = s.status,
                                             .deadline = MU_MONO_NEVER,
                                             .payload = s.payload});
        mu_rpc_entry_drop(r, e);
    }
    return 0;
}

/* Grants items to the callee by halves of the window; a grant that finds no memory is owed. */
static void grant_items(struct mu_rpc *r, struct mu_rpc_entry *e)
{
    uint64_t limit = e->done + r->item_window;
    uint8_t total[8];

    /* The window of all calls may have grown since this call's was given. */
    if (limit - e->limit < (r->item_window + 1) / 2) {
        return;
    }
    if (mu_rpc_reserve(r, sizeof(total)) != 0) {
        r->items_owed = true;
        return;
    }
    mu_rpc_widen(r, &r->item_window, r->config.item_window_bytes_max, &e->mark, e->done);
    limit = e->done + r->item_window;
    mu_put_u64(total, limit);
    mu_rpc_put(r, MU_RPC_CREDIT, mu_rpc_wire_id(r, e), mu_span(total, sizeof(total)));
    mu_rpc_ask(r, r->out_next);
    e->limit = limit;
}

void mu_rpc_grant_owed(struct mu_rpc *r)
{
    if (!r->items_owed) {
        return;
    }
    r->items_owed = false;
    MU_LIST_FOREACH (it, &r->calls_out) {
        grant_items(r, MU_CONTAINER_OF(it, struct mu_rpc_entry, all));
    }
}

int mu_rpc_on_own_item(struct mu_rpc *r, struct mu_span payload)
{
    struct mu_rpc_entry *e;
    struct mu_errmsg msg;
    int err = mu_rpc_find_wire(r, r->header.id, true, &e);

    if (err != 0 || e == NULL) {
        return err;
    }
    if (e->spent >= e->limit) {
        return mu_rpc_violate(r,
                              mu_err(&msg, MUSTER_EWINDOW, "ITEM for call %llu without credit",
                                     (unsigned long long)r->header.id),
                              &msg);
    }
    e->spent += MU_RPC_HEADER + payload.len;
    e->done += MU_RPC_HEADER;
    e->unconsumed += payload.len;
    grant_items(r, e);
    mu_rpc_tell(
        r, (struct mu_rpc_event){
               .type = MU_RPC_EV_ITEM, .id = e->id, .deadline = MU_MONO_NEVER, .payload = payload});
    return 0;
}

int mu_rpc_consumed(struct mu_rpc *r, struct mu_now now, uint64_t id, size_t n)
{
    struct mu_rpc_entry *e;
    int err = find_begun(r, now, id, &e);

    if (err != 0) {
        return err;
    }
    if (n > e->unconsumed) {
        return MUSTER_EINVAL;
    }
    e->unconsumed -= n;
    if (e->state == MU_RPC_OUT) {
        e->done += n;
        grant_items(r, e);
    } else if (e->state == MU_RPC_SERVED) {
        e->owed -= n;
        r->peer_done += n;
    }
    mu_rpc_settle(r);
    return 0;
}

/* Credit only grows: a total that is not above the known one says nothing new. */
int mu_rpc_on_credit(struct mu_rpc *r, struct mu_span payload)
{
    uint64_t total = mu_get_u64(payload.data);
    struct mu_rpc_entry *e;
    int err;

    if (r->header.id == 0) {
        r->own_limit = total > r->own_limit ? total : r->own_limit;
        return 0;
    }
    err = mu_rpc_find_wire(r, r->header.id, false, &e);
    if (err != 0 || e == NULL) {
        return err;
    }
    e->limit = total > e->limit ? total : e->limit;
    if (e->stalled && e->spent < e->limit) {
        e->stalled = false;
        mu_rpc_make_due(r, e, MU_RPC_DUE_CREDIT);
    }
    return 0;
}

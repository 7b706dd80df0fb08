/* Payloads that are not copied: sent from the caller's memory, and received straight into it. */
#include "core/alloc.h"
#include "proto/rpc/rpc_internal.h"

/* --- blobs -------------------------------------------------------- */

struct mu_rpc_blob *mu_rpc_blob_new(struct mu_buf *buf)
{
    struct mu_rpc_blob *blob = mu_malloc(sizeof(*blob));

    if (blob != NULL) {
        *blob = (struct mu_rpc_blob){.refs = 1, .buf = *buf};
        mu_list_init(&blob->link);
        mu_buf_init(buf, buf->max);
    }
    return blob;
}

void mu_rpc_blob_drop(struct mu_rpc_blob *blob)
{
    if (blob != NULL && --blob->refs == 0) {
        mu_list_remove(&blob->link);
        mu_buf_fini(&blob->buf);
        mu_free(blob);
    }
}

/* --- out ---------------------------------------------------------- */

struct mu_rpc_loan *mu_rpc_loan_at(const struct mu_rpc *r, struct mu_list *it)
{
    return it == &r->loans ? NULL : MU_CONTAINER_OF(it, struct mu_rpc_loan, link);
}

void mu_rpc_loan_drop(struct mu_rpc *r, struct mu_rpc_loan *loan)
{
    if (r->loan_due == &loan->link) {
        r->loan_due = loan->link.next;
    }
    r->loan_memory -= sizeof(*loan) + (loan->copy != NULL ? loan->data.len : 0) +
                      (loan->lent != NULL ? loan->lent->memory : 0);
    mu_list_remove(&loan->link);
    if (loan->lent != NULL) {
        loan->lent->release(loan->lent);
    }
    mu_rpc_blob_drop(loan->blob);
    mu_free(loan->copy);
    mu_free(loan);
}

void mu_rpc_loans_drop(struct mu_rpc *r)
{
    while (!mu_list_empty(&r->loans)) {
        mu_rpc_loan_drop(r, mu_rpc_loan_at(r, r->loans.next));
    }
}

/* Ends the frame that was begun at `at` with a loan. */
static void put_loan(struct mu_rpc *r, struct mu_rpc_loan *loan, size_t at)
{
    loan->at = r->out_at + r->out.len;
    mu_list_push(&r->loans, &loan->link);
    if (r->loan_due == &r->loans) {
        r->loan_due = &loan->link;
    }
    r->loan_memory += sizeof(*loan) + (loan->lent != NULL ? loan->lent->memory : 0);
    mu_rpc_finish_lent(r, at, loan->data.len);
}

int mu_rpc_put_lent(struct mu_rpc *r, const struct mu_rpc_entry *e, struct mu_span payload,
                    struct mu_rpc_blob *blob)
{
    struct mu_rpc_loan *loan = mu_malloc(sizeof(*loan));
    int err = loan == NULL ? MUSTER_ENOMEM : mu_rpc_reserve(r, 0);

    if (err != 0) {
        mu_free(loan);
        return err;
    }
    *loan = (struct mu_rpc_loan){.id = e->id, .data = payload, .blob = blob};
    if (blob != NULL) {
        blob->refs++;
    }
    put_loan(r, loan, mu_rpc_begin(r, MU_RPC_ITEM, mu_rpc_wire_id(r, e)));
    return 0;
}

int mu_rpc_put_reply_lent(struct mu_rpc *r, const struct mu_rpc_entry *e, struct mu_rpc_lent *lent,
                          size_t len)
{
    struct mu_rpc_loan *loan = mu_malloc(sizeof(*loan));
    int err = loan == NULL ? MUSTER_ENOMEM : mu_rpc_reserve(r, 4);
    size_t at;

    if (err != 0) {
        mu_free(loan);
        return err;
    }
    *loan = (struct mu_rpc_loan){.id = e->id, .data = {NULL, len}, .lent = lent};
    at = mu_rpc_begin(r, MU_RPC_REPLY, mu_rpc_wire_id(r, e));
    mu_buf_put_u32(&r->out, 0); /* the status */
    put_loan(r, loan, at);
    return 0;
}

/* There is no memory for what must be kept. Not even the frame that was begun can be sent to its
 * end: the link ends within it. */
static void break_session(struct mu_rpc *r)
{
    mu_trace(&r->config.trace, "rpc.broken", r->kept_bytes, 0);
    r->poison = MUSTER_ESESSION;
    r->closed = true;
    mu_rpc_end_all(r, MUSTER_ESESSION);
    mu_rpc_loans_drop(r);
    mu_buf_reset(&r->out);
    mu_buf_reset(&r->ctl);
    r->kept_bytes = 0;
    mu_rpc_rewind(r);
    if (r->link != MU_RPC_LINK_NONE) {
        r->link = MU_RPC_LINK_OVER;
    }
}

void mu_rpc_revoke(struct mu_rpc *r, uint64_t id)
{
    MU_LIST_FOREACH (it, &r->loans) {
        struct mu_rpc_loan *loan = MU_CONTAINER_OF(it, struct mu_rpc_loan, link);

        if (loan->id != id || loan->blob != NULL || loan->copy != NULL || loan->lent != NULL) {
            continue;
        }
        loan->copy = mu_malloc(loan->data.len);
        if (loan->copy == NULL) {
            break_session(r);
            return;
        }
        memcpy(loan->copy, loan->data.data, loan->data.len);
        loan->data.data = loan->copy;
        r->loan_memory += loan->data.len;
    }
}

/* --- in ----------------------------------------------------------- */

int mu_rpc_land(struct mu_rpc *r, uint64_t id, struct mu_space room)
{
    struct mu_rpc_entry *e = mu_rpc_find(r, id);

    if (e == NULL || e->state == MU_RPC_QUEUED) {
        return MUSTER_ENOENT;
    }
    mu_rpc_unland(r, e);
    e->land = room;
    return 0;
}

void mu_rpc_unland(struct mu_rpc *r, struct mu_rpc_entry *e)
{
    e->land = (struct mu_space){0};
    if (r->land_of == e) {
        r->land_of = NULL;
        r->land_to = NULL;
        r->land_lost = true;
    }
}

void mu_rpc_begin_landing(struct mu_rpc *r)
{
    bool own = (r->header.id & 1) == (mu_rpc_own_first(r) & 1);
    struct mu_rpc_entry *e;

    if (r->header.type != MU_RPC_ITEM || r->header.len < MU_RPC_LAND_MIN) {
        return;
    }
    e = mu_rpc_find(r, r->header.id + (own ? r->own_base : r->peer_base));
    if (e != NULL && e->land.len >= r->header.len) {
        r->land_of = e;
        r->land_to = e->land.data;
        e->land = (struct mu_space){0};
    }
}

void mu_rpc_end_frame(struct mu_rpc *r)
{
    r->head_len = 0;
    r->head_read = false;
    r->land_of = NULL;
    r->land_to = NULL;
    r->land_lost = false;
    r->landed = 0;
}

size_t mu_rpc_arriving(const struct mu_rpc *r)
{
    if (!r->head_read) {
        return 0;
    }
    return r->land_to != NULL || r->land_lost ? r->landed : r->in.len;
}

struct mu_space mu_rpc_room(struct mu_rpc *r)
{
    size_t left;

    if (!r->head_read || r->poison != 0 || r->land_lost || mu_rpc_has_event(r) ||
        r->link == MU_RPC_LINK_NONE || r->link == MU_RPC_LINK_OVER) {
        return (struct mu_space){0};
    }
    if (r->land_to != NULL) {
        return (struct mu_space){r->land_to + r->landed, r->header.len - r->landed};
    }
    left = r->header.len - r->in.len;
    if (left < MU_RPC_LAND_MIN) {
        return (struct mu_space){0};
    }
    /* The buffer at most doubles what has come: a length alone is not a reason to take memory. */
    if (left > r->in.len && left > MU_RPC_KEEP_BYTES) {
        left = r->in.len > MU_RPC_KEEP_BYTES ? r->in.len : MU_RPC_KEEP_BYTES;
    }
    if (mu_buf_reserve(&r->in, left) != 0) {
        return (struct mu_space){0};
    }
    return (struct mu_space){r->in.data + r->in.head + r->in.len, left};
}

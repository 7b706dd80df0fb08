/* Operations without a key of their own: counting, listing, leases. */
#include "core/alloc.h"
#include "service/store/etcd.h"

static struct mu_setcd_op *op_of(struct mu_etcd_call *call)
{
    return MU_CONTAINER_OF(call, struct mu_setcd_op, call);
}

/* --- counts and lists ------------------------------------------------------------------------- */

void mu_setcd_on_counted(struct mu_etcd_call *call)
{
    struct mu_setcd_op *e = op_of(call);

    if (!mu_setcd_call_failed(e)) {
        mu_setcd_answer(e, call->reply->results[0].count, NULL, 0);
    }
}

static void on_listed(struct mu_etcd_call *call)
{
    struct mu_setcd_op *e = op_of(call);
    size_t skip = e->s->prefix_len + 3;
    const struct mu_etcd_result *found;
    struct mu_span *keys;

    if (mu_setcd_call_failed(e)) {
        return;
    }
    found = &call->reply->results[0];
    keys = mu_malloc((found->kv_count + 1) * sizeof(*keys));
    if (keys == NULL) {
        mu_setcd_finish(e, MUSTER_ENOMEM, NULL);
        return;
    }
    for (size_t i = 0; i < found->kv_count; i++) {
        keys[i] = found->kvs[i].key.len < skip ? (struct mu_span){0}
                                               : mu_span_skip(found->kvs[i].key, skip);
    }
    mu_setcd_answer(e, (int64_t)found->kv_count, keys, found->kv_count);
    mu_free(keys);
}

/* Lists all keys, or those that begin with a prefix. */
int mu_setcd_list(struct mu_setcd_op *e, bool count)
{
    struct mu_span from = {0};
    struct mu_etcd_op op = {.kind = MU_ETCD_RANGE, .count_only = count, .keys_only = !count};
    int err = mu_buf_append(&e->held, mu_span(e->s->prefix, e->s->prefix_len));

    if (err == 0) {
        err = mu_buf_append(&e->held, MU_SPAN_LIT("/k/"));
    }
    if (err == 0 && e->op->request.key_count > 0) {
        err = mu_buf_append(&e->held, e->op->request.keys[0]);
    }
    if (err == 0) {
        from = mu_buf_span(&e->held);
        err = mu_etcd_prefix_end(&e->watch_end, from);
    }
    if (err != 0) {
        return err;
    }
    op.key = from;
    op.end = mu_buf_span(&e->watch_end);
    return mu_setcd_range(e, &op, count ? mu_setcd_on_counted : on_listed);
}

/* --- leases ----------------------------------------------------------------------------------- */

static void on_lease(struct mu_etcd_call *call)
{
    struct mu_setcd_op *e = op_of(call);
    bool grant = e->op->request.verb == MU_STORE_LEASE_GRANT;
    bool again = call->grpc_code == MU_ETCD_PRECONDITION && grant;

    if (!again && mu_setcd_call_failed(e)) {
        return;
    }
    if (e->ending != 0) {
        (void)mu_setcd_call_failed(e);
    } else if (grant) {
        mu_setcd_answer(e, e->number, NULL, 0);
    } else if (call->reply->ttl_s <= 0) {
        mu_setcd_finish(e, MUSTER_ENOENT, "etcd does not have this lease, or no longer has it");
    } else {
        mu_setcd_answer(e, call->reply->ttl_s * 1000, NULL, 0);
    }
}

static void on_lease_revoked(struct mu_etcd_call *call)
{
    struct mu_setcd_op *e = op_of(call);

    if (e->ending == 0 && call->status == MUSTER_ENOENT && call->unknown) {
        mu_setcd_answer(e, e->number, NULL, 0); /* an earlier try has done it */
    } else if (!mu_setcd_call_failed(e)) {
        mu_setcd_answer(e, e->number, NULL, 0);
    }
}

static void on_lease_counted(struct mu_etcd_call *call)
{
    struct mu_setcd_op *e = op_of(call);
    int err;

    if (mu_setcd_call_failed(e)) {
        return;
    }
    if (call->reply->ttl_s < 0) {
        mu_setcd_finish(e, MUSTER_ENOENT, "etcd does not have this lease, or no longer has it");
        return;
    }
    e->number = (int64_t)call->reply->lease_keys;
    mu_buf_reset(&e->body);
    err = mu_etcd_encode_lease(&e->body, (int64_t)e->op->request.lease, false);
    if (err != 0) {
        mu_setcd_finish(e, err, NULL);
        return;
    }
    mu_setcd_send(e, "/v3/lease/revoke", on_lease_revoked);
}

int mu_setcd_lease(struct mu_setcd_op *e)
{
    const struct mu_store_request *q = &e->op->request;
    uint64_t id;
    int err;

    if (q->verb == MU_STORE_LEASE_GRANT) {
        if (q->number <= 0 || q->number > INT32_MAX * INT64_C(1000)) {
            return MUSTER_EINVAL;
        }
        mu_env_entropy(e->s->base.env, &id, sizeof(id));
        e->number = (int64_t)(id >> 2 | 1); /* our choice: twice is harmless */
        err = mu_etcd_encode_grant(&e->body, (q->number + 999) / 1000, e->number);
        if (err == 0) {
            mu_setcd_send(e, "/v3/lease/grant", on_lease);
        }
        return err;
    }
    err = mu_etcd_encode_lease(&e->body, (int64_t)q->lease, q->verb == MU_STORE_LEASE_REVOKE);
    if (err == 0 && q->verb == MU_STORE_LEASE_KEEP) {
        mu_setcd_send(e, "/v3/lease/keepalive", on_lease);
    } else if (err == 0) {
        mu_setcd_send(e, "/v3/lease/timetolive", on_lease_counted);
    }
    return err;
}

/*
 * A node's life on etcd: its lease, and the key with its wish.
 *
 *     NO_LEASE ──► STARTING ──► KEPT ──► NO_LEASE (lost)       close: ──► STOPPING ──► NO_LEASE
 *
 * Only we write our key, and each time we compare it with what we know of it: so a write whose
 * answer got lost is neither lost nor done twice, and no write comes after a later one.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "codec/rdzv/leased.h"
#include "service/rdzv/register_v3.h"

static void write_wish(struct mu_rdzv_v3_register *c);

static bool is_wanted(const struct mu_rdzv_v3_register *c)
{
    return !c->closing && c->base.want == MU_RDZV_REGISTER_WRITE && !c->close_wanted &&
           c->wish_revision == 0;
}

static void end_life(struct mu_rdzv_v3_register *c)
{
    bool lived = c->born != 0;

    c->lease_state = MU_RDZV_V3_NO_LEASE;
    c->born = c->own_mod = 0;
    /* The written wish has gone with its key. */
    c->wish_revision = 0;
    if (c->closing) {
        mu_rdzv_v3_check_closed(c);
        return;
    }
    mu_rdzv_v3_leader_run(c);
    if (lived) {
        c->fell = true;
        mu_rdzv_v3_tell(c, true);
    }
}

/* --- the lease -------------------------------------------------------------------------------- */

static struct mu_rdzv_v3_register *register_of_lease(struct mu_etcd_lease *lease)
{
    return MU_CONTAINER_OF(lease, struct mu_rdzv_v3_register, lease);
}

static void on_granted(struct mu_etcd_lease *lease)
{
    struct mu_rdzv_v3_register *c = register_of_lease(lease);

    c->lease_state = MU_RDZV_V3_KEPT;
    (void)snprintf(c->own_key, sizeof(c->own_key), "%s%016" PRIx64, c->nodes_key,
                   (uint64_t)lease->id);
    if (is_wanted(c)) {
        write_wish(c);
    }
}

static void on_lost(struct mu_etcd_lease *lease, int status)
{
    struct mu_rdzv_v3_register *c = register_of_lease(lease);
    bool waited = c->base.want == MU_RDZV_REGISTER_WRITE && !c->close_wanted && !c->closing;
    struct mu_errmsg msg = lease->errmsg;

    end_life(c);
    if (waited) {
        mu_rdzv_register_fail(&c->base, status == MUSTER_ENOENT ? MUSTER_ECONN : status, msg.text,
                              mu_rdzv_register_is_transient(status));
    }
}

/* We are closing; or our key was gone, and another life begins if there is a wish. */
static void on_stopped(struct mu_etcd_lease *lease)
{
    struct mu_rdzv_v3_register *c = register_of_lease(lease);
    bool closing = c->closing;

    end_life(c); /* the register may be gone after this */
    if (!closing && is_wanted(c)) {
        mu_rdzv_v3_wish(c);
    }
}

static void start_lease(struct mu_rdzv_v3_register *c)
{
    c->lease = (struct mu_etcd_lease){
        .ttl_s = c->lease_ttl_s,
        .granted = on_granted,
        .lost = on_lost,
        .stopped = on_stopped,
    };
    c->lease_state = MU_RDZV_V3_STARTING;
    mu_etcd_lease_start(c->etcd, &c->lease);
}

bool mu_rdzv_v3_die(struct mu_rdzv_v3_register *c)
{
    if (c->lease_state == MU_RDZV_V3_NO_LEASE) {
        return false;
    }
    if (c->lease_state != MU_RDZV_V3_STOPPING) {
        c->lease_state = MU_RDZV_V3_STOPPING;
        mu_etcd_lease_stop(&c->lease, true);
    }
    return true;
}

/* etcd does not know the lease any more, so we need not give it back. */
static void drop_lease(struct mu_rdzv_v3_register *c)
{
    c->lease_state = MU_RDZV_V3_STOPPING;
    mu_etcd_lease_stop(&c->lease, false);
}

/* --- the wish --------------------------------------------------------------------------------- */

/* Notes that our key has this value since that revision. */
static void take_written(struct mu_rdzv_v3_register *c, int64_t created, int64_t revision)
{
    c->own_mod = revision;
    c->born = created;
    if (is_wanted(c)) {
        c->wish_revision = revision;
    }
    mu_rdzv_v3_leader_run(c);
    mu_rdzv_v3_tell(c, true); /* now we know ourselves in the state */
}

static void take_put(struct mu_rdzv_v3_register *c, int64_t revision)
{
    int64_t created = c->born != 0 ? c->born : revision;

    if (c->put_number == c->wish_number) {
        take_written(c, created, revision);
        return;
    }
    c->born = created;
    c->own_mod = revision;
    mu_rdzv_v3_leader_run(c);
    if (is_wanted(c)) {
        write_wish(c); /* another wish has replaced it */
    }
}

/* The key was not as we knew it. It is ours all the same: an answer got lost. */
static void take_found(struct mu_rdzv_v3_register *c, const struct mu_etcd_reply *reply)
{
    const struct mu_etcd_result *found = reply->result_count != 0 ? &reply->results[0] : NULL;

    if (found == NULL || found->kv_count == 0) {
        drop_lease(c); /* the lease's key is gone */
        return;
    }
    c->born = found->kvs[0].create_revision;
    if (mu_span_eq(found->kvs[0].value, mu_buf_span(&c->put_value))) {
        take_put(c, found->kvs[0].mod_revision);
        return;
    }
    c->own_mod = found->kvs[0].mod_revision;
    if (is_wanted(c)) {
        write_wish(c);
    }
}

static void on_put(struct mu_etcd_call *call)
{
    struct mu_rdzv_v3_register *c = MU_CONTAINER_OF(call, struct mu_rdzv_v3_register, put);
    struct mu_errmsg msg = call->errmsg;

    if (c->closing || c->lease_state != MU_RDZV_V3_KEPT) {
        return;
    }
    if (c->put_lease != c->lease.id) {
        if (is_wanted(c)) {
            write_wish(c); /* that was the wish of another life */
        }
    } else if (call->status == 0 && call->reply->succeeded) {
        if (c->born == 0 && call->reply->result_count == 2) {
            c->born = call->reply->revision;
            mu_rdzv_v3_leader_born(c, &call->reply->results[1]);
        }
        take_put(c, call->reply->revision);
    } else if (call->status == 0) {
        take_found(c, call->reply);
    } else if (call->status == MUSTER_ENOENT) {
        drop_lease(c);
    } else if (is_wanted(c)) {
        mu_rdzv_register_fail(&c->base, call->status, msg.text,
                              mu_rdzv_register_is_transient(call->status));
    }
}

static void write_wish(struct mu_rdzv_v3_register *c)
{
    struct mu_span key = mu_span_str(c->own_key);
    const struct mu_etcd_compare compare = {
        .key = key, .target = MU_ETCD_MOD, .number = c->own_mod};
    struct mu_etcd_op ops[] = {
        {.kind = MU_ETCD_PUT, .key = key, .lease = c->lease.id},
        {.kind = MU_ETCD_RANGE,
         .key = mu_span_str(c->nodes_key),
         .end = mu_span_str(c->nodes_end),
         .limit = 2,
         .keys_only = true,
         .by_creation = true,
         .newest_first = true},
    };
    const struct mu_etcd_op get = {.kind = MU_ETCD_RANGE, .key = key};
    const struct mu_etcd_txn txn = {
        .compares = &compare,
        .compare_count = 1,
        .success = ops,
        .success_count = c->own_mod == 0 ? 2 : 1,
        .failure = &get,
        .failure_count = 1,
    };
    int err;

    if (mu_etcd_call_active(&c->put)) {
        return; /* its end goes on with the newest wish */
    }
    mu_buf_reset(&c->put_value);
    mu_buf_reset(&c->put_body);
    err = mu_rdzv_wish_encode(&c->put_value, &c->node, c->wish, c->wish_number);
    ops[0].value = mu_buf_span(&c->put_value);
    err = err != 0 ? err : mu_etcd_encode_txn(&c->put_body, &txn);
    if (err != 0) {
        c->failed = err;
        mu_rdzv_v3_tell(c, false);
        return;
    }
    c->put_lease = c->lease.id;
    c->put_number = c->wish_number;
    c->put = (struct mu_etcd_call){
        .path = "/v3/kv/txn",
        .body = mu_buf_span(&c->put_body),
        .repeat = true,
        .done = on_put,
    };
    mu_etcd_submit(c->etcd, &c->put);
}

void mu_rdzv_v3_wish(struct mu_rdzv_v3_register *c)
{
    if (c->lease_state == MU_RDZV_V3_NO_LEASE) {
        start_lease(c);
    } else if (c->lease_state == MU_RDZV_V3_KEPT) {
        write_wish(c);
    }
}

/*
 * A gateway's own gateways. What it holds of the other server it may let them hold, for less time
 * than it may itself, and it asks them back before it gives a key back (proto/store/holds.h is used
 * here as at the server that has the keys; the calls are in hold_calls.c).
 *
 *     fetch      answered from the gateway's memory, or by a call that its clients share; what it
 *                holds then, they hold
 *     recall     the keys are asked back here first, then given back
 *     change     waits here until no other of our gateways holds its keys, then is passed on
 *
 * The other server is told beforehand (`lend`): from then on, the end of our session does not end
 * what we hold, since others may answer for it until their leases are over.
 */
#include "service/server/gateway_hold.h"
#include "service/server/server_internal.h"

#include "codec/store/hold.h"
#include "core/alloc.h"

/* A fetch of one of our gateways. */
struct lent_fetch {
    struct mu_rpc_served base;
    struct mu_gateway_op op;
    struct mu_store_server *server;
    mu_mono_t asked; /* when it came */
    bool left;       /* nobody wants the answer */
    struct mu_span *keys;
    size_t count;
    struct mu_store_request request; /* that stands for it */
    struct mu_span payload;
    uint8_t bytes[];
};

/* Keys that the other server wants back. */
struct recall {
    struct mu_list link; /* server->recalling */
    struct mu_ks_owner owner;
    struct mu_hold_writer writer;
    struct mu_store_server *server;
    struct mu_span *keys;
    size_t count;
    struct mu_span payload;
    uint8_t bytes[];
};

static struct mu_gateway_hold *hold_of(const struct mu_store_server *s)
{
    return mu_gateway_hold(s->backing);
}

/* A lease is one for all keys. What was lent before our session with the other server was replaced
 * is not ours any more: it is over with the lease it was lent for, which is not renewed. */
mu_mono_t mu_store_lend_until(struct mu_store_session *session)
{
    struct mu_store_server *s = session->server;
    mu_mono_t now = mu_env_now(s->env).mono;

    if (session->era != hold_of(s)->era) {
        if (!mu_holds_nothing(session->holder, now)) {
            return (mu_mono_t){0};
        }
        session->era = hold_of(s)->era;
    }
    return mu_gateway_hold_until(hold_of(s));
}

/* --- fetches ---------------------------------------------------------------------------------- */

static void free_fetch(struct lent_fetch *f)
{
    mu_free(f->keys);
    mu_free(f);
}

/* Takes the call off its session. */
static void leave_fetch(struct mu_rpc_served *base)
{
    struct lent_fetch *f = MU_CONTAINER_OF(base, struct lent_fetch, base);

    mu_rpc_served_remove(base);
    if (mu_gateway_cancel(f->server->backing, &f->op)) {
        free_fetch(f);
    } else {
        f->left = true;
    }
}

static void cancel_fetch(struct mu_rpc_served *base, int why)
{
    struct mu_rpc_session *session = base->session;
    uint64_t id = base->id;

    leave_fetch(base);
    mu_rpc_session_reply(session, id, why, mu_span_str(muster_strerror(why)));
}

static const struct mu_rpc_served_ops fetch_ops = {
    .cancel = cancel_fetch,
    .free = leave_fetch,
};

/* What is known of a key: what we hold, which is lent on, or what the call has brought. */
static struct mu_found find_key(struct lent_fetch *f, struct mu_holder *holder, size_t i,
                                const struct mu_found *brought, size_t *bytes)
{
    struct mu_store_server *s = f->server;
    mu_mono_t now = mu_env_now(s->env).mono;
    struct mu_found found;
    bool held = mu_cache_peek(&hold_of(s)->cache, now, f->keys[i], &found);

    if (!held) {
        found = brought[i];
    }
    found.state &= ~MU_FOUND_HELD;
    if ((found.state & MU_FOUND_VALUE) != 0 && *bytes + found.value.len > MU_FOUND_BYTES_MAX) {
        return (struct mu_found){.state = (found.state & ~MU_FOUND_VALUE) | MU_FOUND_LARGE};
    }
    *bytes += found.value.len;
    if (held && holder != NULL && mu_gateway_hold_lends(hold_of(s), f->keys[i]) &&
        mu_holds_grant(&s->holds, holder, now, f->keys[i])) {
        found.state |= MU_FOUND_HELD;
    }
    return found;
}

static int encode_answer(struct lent_fetch *f, struct mu_store_session *session, uint32_t lease_ms,
                         struct mu_buf *out)
{
    const struct mu_store_reply *reply = &f->op.base.reply;
    struct mu_found *found = mu_calloc(f->count + 1, sizeof(*found));
    struct mu_found *brought = NULL;
    uint32_t ours = 0;
    size_t count = 0;
    size_t bytes = 0;
    int err = found == NULL ? MUSTER_ENOMEM : 0;

    if (err == 0 && reply->value_count == 1) {
        err = mu_found_decode(reply->values[0], &ours, &brought, &count);
        err = err == 0 && count != f->count ? MUSTER_EPROTO : err;
    }
    for (size_t i = 0; err == 0 && i < f->count; i++) {
        struct mu_found known;

        if (brought == NULL &&
            !mu_cache_peek(&hold_of(f->server)->cache, mu_env_now(f->server->env).mono, f->keys[i],
                           &known)) {
            err = MUSTER_EAGAIN; /* it was there a moment ago */
            break;
        }
        found[i] = find_key(f, session->holder, i, brought, &bytes);
    }
    err = err == 0 ? mu_found_encode(out, lease_ms, found, f->count) : err;
    mu_free(found);
    mu_free(brought);
    return err;
}

static void on_fetched(struct mu_gateway_op *op);

static void submit(struct lent_fetch *f)
{
    f->op =
        (struct mu_gateway_op){.base.request = f->request, .fetch = f->payload, .done = on_fetched};
    mu_gateway_submit(f->server->backing, NULL, &f->op);
}

static void on_fetched(struct mu_gateway_op *op)
{
    struct lent_fetch *f = MU_CONTAINER_OF(op, struct lent_fetch, op);
    struct mu_store_server *s = f->server;
    struct mu_store_session *session;
    int err = op->base.status;

    if (f->left) {
        free_fetch(f);
        return;
    }
    session = mu_store_session_of(&f->base);
    mu_buf_reset(&s->scratch);
    if (err == 0) {
        err = encode_answer(f, session, mu_store_holds_renew(session, f->asked), &s->scratch);
    }
    if (err == MUSTER_EAGAIN) {
        submit(f);
        return;
    }
    if (err == 0) {
        mu_rpc_session_reply(&session->base, f->base.id, 0, mu_buf_span(&s->scratch));
    } else {
        const char *text = op->base.errmsg.text;

        mu_rpc_session_reply(&session->base, f->base.id, err,
                             mu_span_str(text[0] != '\0' ? text : muster_strerror(err)));
    }
    mu_buf_trim(&s->scratch, 1 << 20);
    mu_rpc_served_remove(&f->base);
    free_fetch(f);
}

void mu_store_lend_fetch(struct mu_store_session *session, uint64_t id, struct mu_span payload)
{
    struct lent_fetch *f = mu_calloc(1, sizeof(*f) + payload.len);
    uint32_t flags = 0;
    int err = MUSTER_ENOMEM;

    if (f != NULL) {
        f->server = session->server;
        f->asked = mu_env_now(session->server->env).mono;
        memcpy(f->bytes, payload.data, payload.len);
        err = mu_fetch_decode(mu_span(f->bytes, payload.len), &flags, &f->keys, &f->count);
    }
    if (err == 0) {
        err = mu_rpc_served_add(&f->base, &fetch_ops, &session->base, id);
    }
    if (err != 0) {
        if (f != NULL) {
            free_fetch(f);
        }
        mu_rpc_session_reply(&session->base, id, err, mu_span_str(muster_strerror(err)));
        return;
    }
    f->request = (struct mu_store_request){
        .verb = (flags & MU_FETCH_WAIT) != 0 ? MU_STORE_WAIT : MU_STORE_CHECK,
        .flags = (flags & MU_FETCH_IN_TURN) != 0 ? MU_STORE_IN_TURN : 0,
        .keys = f->keys,
        .key_count = f->count,
    };
    f->payload = mu_span(f->bytes, payload.len);
    submit(f);
}

/* --- keys that the other server wants back ---------------------------------------------------- */

static void free_recall(struct recall *r)
{
    mu_holds_withdraw(&r->server->holds, &r->writer);
    mu_list_remove(&r->link);
    mu_free(r->keys);
    mu_free(r);
}

/* Gives the keys back once no gateway of ours holds them. Without memory to wait for that, they are
 * not given back, and our lease ends. */
static void recall_unheld(struct mu_ks_owner *owner)
{
    struct recall *r = MU_CONTAINER_OF(owner, struct recall, owner);
    struct mu_store_server *s = r->server;
    int may = mu_holds_ask(&s->holds, &r->writer, NULL, mu_env_now(s->env).mono, r->keys, r->count);

    if (may == 0) {
        return;
    }
    if (may == 1) {
        mu_gateway_hold_give_back(hold_of(s), r->payload);
    }
    free_recall(r);
}

bool mu_store_lend_recalled(void *server, struct mu_span payload)
{
    struct mu_store_server *s = server;
    struct recall *r;

    if (s->holds.count == 0) {
        return false;
    }
    r = mu_calloc(1, sizeof(*r) + payload.len);
    if (r == NULL) {
        return true; /* our lease will be over */
    }
    memcpy(r->bytes, payload.data, payload.len);
    r->payload = mu_span(r->bytes, payload.len);
    r->server = s;
    r->owner.unheld = recall_unheld;
    r->writer.owner = &r->owner;
    mu_list_init(&r->link);
    mu_list_push(&s->recalling, &r->link);
    if (mu_hold_keys_decode(r->payload, &r->keys, &r->count) != 0) {
        free_recall(r);
        return true;
    }
    recall_unheld(&r->owner);
    return true;
}

void mu_store_lend_fini(struct mu_store_server *s)
{
    while (!mu_list_empty(&s->recalling)) {
        free_recall(MU_CONTAINER_OF(s->recalling.next, struct recall, link));
    }
}

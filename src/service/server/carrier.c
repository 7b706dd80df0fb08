/*
 * A gateway as a relay: connections that begin with MU_CARRY_MAGIC are carried to the other server
 * (wire/carry.h), each as one call of a session that this gateway has for that. It passes bytes on
 * and knows nothing of them.
 *
 * What the child sends becomes items, while the call has credit; otherwise its connection is not
 * read on. What the server sends is granted anew as the child takes it. So neither end can make the
 * relay keep more than the windows of the calls.
 */
#include "service/server/server_internal.h"

#include <string.h>

#include "core/alloc.h"
#include "service/base/log.h"
#include "service/wire/carry.h"
#include "service/wire/rpc_client.h"

#define CONNECT_MS   5000
#define RECONNECT_MS 3000

struct mu_store_carrier {
    struct mu_store_server *server;
    struct mu_rpc_client client;
    struct mu_map calls;  /* struct mu_store_carried by id */
    struct mu_list waits; /* those that have no call yet */
    bool ready;
    bool closing;
};

/* A connection that is carried. */
struct mu_store_carried {
    struct mu_map_node by_id;
    struct mu_list link; /* carrier->waits */
    struct mu_store_carrier *carrier;
    struct mu_store_conn *conn;
    uint64_t id;  /* 0: no call yet */
    size_t magic; /* bytes of it that have come */
    bool over;    /* the server has closed */
    struct mu_buf out;
};

static struct mu_store_carried *find(struct mu_store_carrier *r, uint64_t id)
{
    struct mu_map_node *node = mu_map_find(&r->calls, mu_span(&id, sizeof(id)));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_store_carried, by_id);
}

static void resume(struct mu_store_carried *x)
{
    mu_rpc_conn_resume(&x->conn->base);
}

/* --- what the other server says --------------------------------------------------------------- */

static void take_item(struct mu_store_carrier *r, const struct mu_rpc_event *event)
{
    struct mu_store_carried *x = find(r, event->id);

    if (x == NULL) {
        (void)mu_rpc_consumed(&r->client.rpc, mu_env_now(r->server->env), event->id,
                              event->payload.len);
    } else if (mu_buf_append(&x->out, event->payload) != 0) {
        mu_rpc_conn_close(&x->conn->base, true);
    } else {
        mu_rpc_conn_touch(&x->conn->base);
    }
}

static void end_call(struct mu_store_carrier *r, const struct mu_rpc_event *event)
{
    struct mu_store_carried *x = find(r, event->id);

    if (x == NULL) {
        return;
    }
    mu_map_remove(&r->calls, &x->by_id);
    x->id = 0;
    x->over = true;
    if (event->status != 0) {
        mu_rpc_conn_close(&x->conn->base, true);
    } else if (x->out.len == 0) {
        mu_rpc_conn_close(&x->conn->base, false);
    }
}

static void on_event(void *context, const struct mu_rpc_event *event)
{
    struct mu_store_carrier *r = context;
    struct mu_store_carried *x;

    switch (event->type) {
    case MU_RPC_EV_ITEM:
        take_item(r, event);
        break;
    case MU_RPC_EV_REPLY:
        end_call(r, event);
        break;
    case MU_RPC_EV_CREDIT:
        x = find(r, event->id);
        if (x != NULL) {
            resume(x);
        }
        break;
    case MU_RPC_EV_CALL:
    case MU_RPC_EV_END:
    case MU_RPC_EV_CANCEL:
    case MU_RPC_EV_LINK_DEAD:
    case MU_RPC_EV_DRAIN:
    case MU_RPC_EV_BYE:
    case MU_RPC_EV_WELCOMED:
    case MU_RPC_EV_REFUSED:
        break;
    }
}

/* --- the session ------------------------------------------------------------------------------ */

/* Whoever is carried tries another way. */
static void drop_all(struct mu_store_carrier *r)
{
    struct mu_map_node *node;

    while ((node = mu_map_next(&r->calls, NULL)) != NULL) {
        mu_rpc_conn_close(&MU_CONTAINER_OF(node, struct mu_store_carried, by_id)->conn->base, true);
    }
    while (!mu_list_empty(&r->waits)) {
        mu_rpc_conn_close(
            &MU_CONTAINER_OF(r->waits.next, struct mu_store_carried, link)->conn->base, true);
    }
}

static void start_all(struct mu_store_carrier *r)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &r->waits) {
        resume(MU_CONTAINER_OF(it, struct mu_store_carried, link));
    }
}

static void on_ready(void *context)
{
    struct mu_store_carrier *r = context;

    r->ready = true;
    start_all(r);
}

static void give_up(struct mu_store_carrier *r)
{
    drop_all(r);
    if (!r->closing) {
        r->closing = true;
        mu_rpc_client_close(&r->client);
    }
    mu_rpc_server_end_turn(&r->server->wire);
}

static void on_mismatch(void *context, bool silent)
{
    (void)silent;
    give_up(context);
}

static void on_failed(void *context, int status, const char *text)
{
    struct mu_store_carrier *r = context;

    mu_log(MUSTER_LOG_INFO, "CARRIER-FAILED", "status=%s why=\"%s\"", muster_errname(status), text);
    give_up(r);
}

static void on_gave_up(void *context, int status, const char *text)
{
    (void)status;
    (void)text;
    drop_all(context);
}

static void on_turn_ended(void *context)
{
    struct mu_store_carrier *r = context;

    start_all(r);
    mu_rpc_server_end_turn(&r->server->wire);
}

static void on_closed(void *context)
{
    struct mu_store_carrier *r = context;
    struct mu_store_server *s = r->server;

    drop_all(r);
    s->carrier = NULL;
    mu_map_fini(&r->calls);
    mu_free(r);
    mu_rpc_server_end_turn(&s->wire);
}

static struct mu_store_carrier *open_carrier(struct mu_store_server *s)
{
    struct mu_store_carrier *r = mu_calloc(1, sizeof(*r));
    const struct mu_rpc_client_config config = {
        .addr = *mu_gateway_addr(s->backing),
        .name = "relay",
        .connect_ms = CONNECT_MS,
        .reconnect_ms = RECONNECT_MS,
        .greetings = 1,
        .probe_ms = CONNECT_MS,
    };
    const struct mu_rpc_client_events events = {
        .ready = on_ready,
        .mismatch = on_mismatch,
        .failed = on_failed,
        .gave_up = on_gave_up,
        .event = on_event,
        .turn_ended = on_turn_ended,
        .closed = on_closed,
        .context = r,
    };

    if (r == NULL) {
        return NULL;
    }
    r->server = s;
    mu_map_init(&r->calls, s->config.keyspace.seed);
    mu_list_init(&r->waits);
    if (mu_rpc_client_init(&r->client, s->env, &config, &events) != 0) {
        mu_free(r);
        return NULL;
    }
    s->carrier = r;
    return r;
}

bool mu_store_carrier_close(struct mu_store_server *s)
{
    if (s->carrier != NULL && !s->carrier->closing) {
        s->carrier->closing = true;
        mu_rpc_client_close(&s->carrier->client);
    }
    return s->carrier == NULL;
}

size_t mu_store_carrier_count(const struct mu_store_server *s)
{
    return s->carrier == NULL ? 0 : s->carrier->calls.count;
}

/* --- connections ------------------------------------------------------------------------------ */

bool mu_store_carry_sniff(struct mu_span in)
{
    return in.len != 0 && in.data[0] == (uint8_t)MU_CARRY_MAGIC[0];
}

const char *mu_store_carry_begin(struct mu_store_conn *c)
{
    struct mu_store_server *s = c->server;
    struct mu_store_carrier *r = s->carrier;
    struct mu_store_carried *x;

    if (s->backing == NULL || mu_gateway_addr(s->backing) == NULL) {
        return "it wants to be carried to another server, and this one is no gateway";
    }
    if (mu_env_trust(s->env, &c->base.base) != MU_TRUST_OPEN) {
        return "it wants to be carried to another server without the job's credential";
    }
    r = r == NULL ? open_carrier(s) : r;
    x = r == NULL || r->closing ? NULL : mu_calloc(1, sizeof(*x));
    if (x == NULL) {
        return "there is no connection to the server that it wants to be carried to";
    }
    x->carrier = r;
    x->conn = c;
    mu_buf_init(&x->out, (size_t)64 << 20);
    mu_list_init(&x->link);
    mu_list_push(&r->waits, &x->link);
    c->carried = x;
    return NULL;
}

/* Begins the call. 0; MUSTER_EAGAIN: not now. */
static int begin_call(struct mu_store_carried *x)
{
    struct mu_store_carrier *r = x->carrier;
    int err = r->ready ? mu_rpc_client_call(&r->client, MU_SPAN_LIT(MU_CARRY_METHOD),
                                            (struct mu_span){0}, 0, &x->id)
                       : MUSTER_EAGAIN;

    if (err == 0) {
        mu_list_remove(&x->link);
        err = mu_map_insert(&r->calls, &x->by_id, mu_span(&x->id, sizeof(x->id)));
        if (err != 0) {
            (void)mu_rpc_client_cancel(&r->client, x->id);
            x->id = 0;
        }
    }
    return err;
}

size_t mu_store_carry_input(struct mu_store_conn *c, struct mu_span in)
{
    struct mu_store_carried *x = c->carried;
    size_t used = 0;
    int err = 0;

    while (x->magic < MU_CARRY_MAGIC_LEN && used < in.len) {
        if (in.data[used++] != (uint8_t)MU_CARRY_MAGIC[x->magic++]) {
            mu_rpc_conn_drop(&c->base, "the first bytes belong to no protocol the store speaks");
            return in.len;
        }
    }
    if (x->over) {
        return in.len;
    }
    if (x->id == 0) {
        err = begin_call(x);
    }
    while (err == 0 && used < in.len) {
        struct mu_span part = mu_span_skip(in, used);

        part.len = part.len < MU_CARRY_ITEM_MAX ? part.len : MU_CARRY_ITEM_MAX;
        err = mu_rpc_client_item(&x->carrier->client, x->id, part);
        used += err == 0 ? part.len : 0;
    }
    if (err != 0 && err != MUSTER_EAGAIN) {
        mu_rpc_conn_close(&c->base, true);
        return in.len;
    }
    return used;
}

size_t mu_store_carry_output_len(const struct mu_store_conn *c)
{
    return c->carried->out.len;
}

size_t mu_store_carry_output(const struct mu_store_conn *c, struct mu_span *spans, size_t cap)
{
    if (cap == 0 || c->carried->out.len == 0) {
        return 0;
    }
    spans[0] = mu_buf_span(&c->carried->out);
    return 1;
}

void mu_store_carry_sent(struct mu_store_conn *c, size_t n)
{
    struct mu_store_carried *x = c->carried;

    mu_buf_consume(&x->out, n);
    if (x->id != 0) {
        (void)mu_rpc_consumed(&x->carrier->client.rpc, mu_env_now(c->server->env), x->id, n);
        mu_rpc_client_run_soon(&x->carrier->client);
    }
}

bool mu_store_carry_is_over(const struct mu_store_conn *c)
{
    return c->carried->over && c->carried->out.len == 0;
}

void mu_store_carry_eof(struct mu_store_conn *c)
{
    if (c->carried->id != 0) {
        (void)mu_rpc_client_end(&c->carried->carrier->client, c->carried->id);
    }
}

void mu_store_carry_release(struct mu_store_conn *c)
{
    struct mu_store_carried *x = c->carried;

    if (x->id != 0) {
        mu_map_remove(&x->carrier->calls, &x->by_id);
        (void)mu_rpc_client_cancel(&x->carrier->client, x->id);
    }
    mu_list_remove(&x->link);
    mu_buf_fini(&x->out);
    mu_free(x);
    c->carried = NULL;
}

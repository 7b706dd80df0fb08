/*
 * The server on this node's loopback, one for each round, for workers that do not go to their store
 * themselves.
 *
 * With etcd as the backing, all servers of a round have the same prefix, which rank 0 draws and
 * publishes in the round's store, so that nothing of an earlier round, or of an earlier run of the
 * same name, is ever seen.
 *
 * Under a credential, a node lets in only those that have it, and workers do not; so the server of
 * a node is a gateway to that of rank 0, over one connection.
 *
 * In a large round some of these are relays (proto/agent/relays.h): they listen on their node's
 * address as well, and publish that in the round's store, where the others of their group, and of
 * the groups before, wait for it. Who finds none goes to rank 0 by itself.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "proto/agent/relays.h"
#include "service/agent/agent_internal.h"
#include "service/server/server.h"

#define NAME_KEY  "muster/backing"
#define URL_CAP   4096
#define RELAY_KEY "muster/relay/"
/* For how long the addresses of relays are waited for. */
#define RELAYS_MS 5000
/* The workers are gone when a round's gateway goes, so a longer wait is not worth it. */
#define DRAIN_MS 200

struct mu_agent_gateway {
    struct mu_agent_round *round;
    struct mu_store_op op;
    struct mu_span key;
    struct mu_span value;
    char name[24];
    /* To another node. */
    struct mu_addr remote;
    struct mu_relays relays;
    struct mu_span relay_keys[MU_RELAYS_TRIED];
    char relay_texts[MU_RELAYS_TRIED][32];
    char relay_addr[MU_ADDR_HOST_MAX + 16]; /* ours, if we are one */
    char via[MU_RELAYS_TRIED * (MU_ADDR_HOST_MAX + 17) + 1];
    bool asking;
    bool closing;
    struct mu_store_server *server;
};

static void settle(struct mu_agent_gateway *b)
{
    struct mu_agent_round *r = b->round;

    if (!b->closing || b->asking || b->server != NULL) {
        return;
    }
    r->gateway = NULL;
    mu_free(b);
    mu_agent_round_settle(r);
}

/* Comes on a later turn than its last callback. */
static void on_server_stopped(void *context, int status, const char *why)
{
    struct mu_agent_gateway *b = context;

    (void)status;
    (void)why;
    mu_env_timer_arm(b->round->s->env, &b->round->backing_timer, mu_env_now(b->round->s->env).mono);
}

static void on_server_gone(struct mu_timer *timer)
{
    struct mu_agent_round *r = MU_CONTAINER_OF(timer, struct mu_agent_round, backing_timer);
    struct mu_agent_gateway *b = r->gateway;

    mu_store_server_free(b->server);
    b->server = NULL;
    if (b->closing) {
        settle(b);
    } else {
        mu_agent_round_not_ready(r, MUSTER_ECLOSED, "the server of the workers' store has stopped");
    }
}

/* Makes the URL with the run and the round behind its path. False: it is too long. */
static bool make_url(const struct mu_agent_gateway *b, char *out, size_t cap)
{
    const char *url = b->round->s->config.backing;
    const char *run = b->round->s->rdzv->run_id;
    size_t head = strcspn(url, "?");
    size_t n;

    while (head > 0 && url[head - 1] == '/') {
        head--;
    }
    n = (size_t)snprintf(out, cap, "%.*s/", (int)head, url);
    for (const char *c = run; *c != '\0' && n + 4 < cap; c++) {
        bool plain = (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') ||
                     (*c >= '0' && *c <= '9') || *c == '-' || *c == '_' || *c == '.';

        n += (size_t)snprintf(out + n, cap - n, plain ? "%c" : "%%%02X", (unsigned char)*c);
    }
    if (n >= cap) {
        return false;
    }
    n += (size_t)snprintf(out + n, cap - n, "/%s%s", b->name, url + strcspn(url, "?"));
    return n < cap;
}

static struct mu_store_server_config make_config(struct mu_agent_gateway *b)
{
    struct mu_store_server_config config = mu_store_server_config_defaults();

    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .host = "127.0.0.1"};
    config.stopped = on_server_stopped;
    config.context = b;
    return config;
}

static void serve(struct mu_agent_gateway *b)
{
    struct mu_agent_round *r = b->round;
    char url[URL_CAP];
    struct mu_store_server_config config = make_config(b);
    struct mu_errmsg msg = {{0}};
    int err;

    config.backing = url;
    config.backing_ends = r->rank == 0;
    err = make_url(b, url, sizeof(url))
              ? mu_store_server_start(r->s->env, &config, &b->server, &msg)
              : mu_err(&msg, MUSTER_EURL, "the URL of --store-backing is too long");
    if (err != 0) {
        mu_agent_round_not_ready(r, err, msg.text);
        return;
    }
    mu_agent_log(r->s, "workers' store: in etcd; every node serves it at 127.0.0.1:%u",
                 (unsigned)mu_store_server_addr(b->server)->port);
    mu_agent_round_master(r, "127.0.0.1", mu_store_server_addr(b->server)->port);
}

static void on_named(struct mu_store_op *op)
{
    struct mu_agent_gateway *b = MU_CONTAINER_OF(op, struct mu_agent_gateway, op);
    const struct mu_store_reply *reply = &op->reply;

    b->asking = false;
    if (b->closing) {
        settle(b);
        return;
    }
    if (op->status == 0 && b->round->rank != 0) {
        size_t len = reply->value_count == 1 ? reply->values[0].len : 0;

        if (len == 0 || len >= sizeof(b->name)) {
            mu_agent_round_not_ready(b->round, MUSTER_EPROTO,
                                     "rank 0 has not published where the workers' store is");
            return;
        }
        memcpy(b->name, reply->values[0].data, len);
    }
    if (op->status != 0) {
        mu_agent_round_not_ready(b->round, op->status, op->errmsg.text);
    } else {
        serve(b);
    }
}

static struct mu_agent_gateway *make(struct mu_agent_round *r)
{
    struct mu_agent_gateway *b = mu_calloc(1, sizeof(*b));

    if (b != NULL) {
        b->round = r;
        r->gateway = b;
        mu_timer_init(&r->backing_timer, on_server_gone);
    }
    return b;
}

/* --- to another node -------------------------------------------------------------------------- */

static int start_to_node(struct mu_agent_gateway *b, struct mu_errmsg *reterr_msg)
{
    struct mu_agent_round *r = b->round;
    struct mu_store_server_config config = make_config(b);
    char at[MU_ADDR_HOST_MAX + 16];
    char url[URL_CAP];
    int err;

    (void)snprintf(url, sizeof(url), "tcp://%s?connect=%" PRIu32 "&hold=%s%s%s",
                   mu_addr_format(&b->remote, at, sizeof(at)), r->s->config.store_ms,
                   r->s->config.holds ? "yes" : "no", b->via[0] == '\0' ? "" : "&via=", b->via);
    config.backing = url;
    config.drain_ms = DRAIN_MS;
    err = mu_store_server_start(r->s->env, &config, &b->server, reterr_msg);
    if (err == 0) {
        mu_agent_log(r->s, "workers' store: at %s%s%.300s; workers reach it through 127.0.0.1:%u",
                     at, b->via[0] == '\0' ? "" : ", by the relays ", b->via,
                     (unsigned)mu_store_server_addr(b->server)->port);
    }
    return err;
}

static void on_published(struct mu_store_op *op)
{
    struct mu_agent_gateway *b = MU_CONTAINER_OF(op, struct mu_agent_gateway, op);

    b->asking = false;
    settle(b);
}

/* Others may come by us. If not, they go to the store by themselves. */
static void be_relay(struct mu_agent_gateway *b)
{
    struct mu_agent_round *r = b->round;
    struct mu_addr own = {.kind = MU_ADDR_TCP};
    struct mu_errmsg msg = {{0}};

    (void)snprintf(own.host, sizeof(own.host), "%s", r->s->rdzv->addr);
    if (mu_rdzv_place(r->s->env, &own) != 0) {
        (void)snprintf(own.host, sizeof(own.host), "::");
    }
    own.port = 0;
    if (mu_store_server_listen(b->server, &own, &msg) != 0) {
        mu_agent_log(r->s, "workers' store: this node is no relay: %s", msg.text);
        return;
    }
    (void)snprintf(own.host, sizeof(own.host), "%s", r->s->rdzv->addr);
    b->value = mu_span_str(mu_addr_format(&own, b->relay_addr, sizeof(b->relay_addr)));
    mu_agent_log(r->s, "workers' store: this node is a relay, at %s", b->relay_addr);
    (void)snprintf(b->relay_texts[0], sizeof(b->relay_texts[0]), RELAY_KEY "%" PRIu32,
                   mu_relays_group(&b->relays, r->rank));
    b->key = mu_span_str(b->relay_texts[0]);
    b->op = (struct mu_store_op){.request = {.verb = MU_STORE_SET,
                                             .keys = &b->key,
                                             .key_count = 1,
                                             .values = &b->value,
                                             .value_count = 1},
                                 .timeout_ms = r->s->config.store_ms,
                                 .done = on_published};
    b->asking = true;
    mu_store_submit(r->stores.store, &b->op);
}

/* Notes a relay's address, if it is one. */
static void add_relay(struct mu_agent_gateway *b, struct mu_span text)
{
    char one[MU_ADDR_HOST_MAX + 16];
    struct mu_addr addr;
    struct mu_errmsg msg;
    size_t n = strlen(b->via);

    if (text.len == 0 || text.len >= sizeof(one)) {
        return;
    }
    (void)snprintf(one, sizeof(one), "%.*s", (int)text.len, (const char *)text.data);
    if (mu_addr_parse(one, 0, &addr, &msg) == 0 && addr.kind == MU_ADDR_TCP && addr.port != 0) {
        (void)mu_addr_format(&addr, one, sizeof(one));
        (void)snprintf(b->via + n, sizeof(b->via) - n, "%s%s", n == 0 ? "" : ",", one);
    }
}

static void on_relays(struct mu_store_op *op)
{
    struct mu_agent_gateway *b = MU_CONTAINER_OF(op, struct mu_agent_gateway, op);
    struct mu_agent_round *r = b->round;
    struct mu_errmsg msg = {{0}};
    int err;

    b->asking = false;
    if (b->closing) {
        settle(b);
        return;
    }
    if (op->status != 0) {
        mu_agent_log(r->s, "workers' store: no relay has said where it is: %s", op->errmsg.text);
    }
    for (size_t i = 0; op->status == 0 && i < op->reply.value_count; i++) {
        add_relay(b, op->reply.values[i]);
    }
    err = start_to_node(b, &msg);
    if (err != 0) {
        mu_agent_round_not_ready(r, err, msg.text);
    } else {
        mu_agent_round_master(r, "127.0.0.1", mu_store_server_addr(b->server)->port);
    }
}

static void ask_relays(struct mu_agent_gateway *b, const uint32_t *groups, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        (void)snprintf(b->relay_texts[i], sizeof(b->relay_texts[i]), RELAY_KEY "%" PRIu32,
                       groups[i]);
        b->relay_keys[i] = mu_span_str(b->relay_texts[i]);
    }
    b->op = (struct mu_store_op){
        .request = {.verb = MU_STORE_MULTI_GET, .keys = b->relay_keys, .key_count = count},
        .timeout_ms = RELAYS_MS,
        .done = on_relays};
    b->asking = true;
    mu_store_submit(b->round->stores.store, &b->op);
}

int mu_agent_gateway_to_node(struct mu_agent_round *r, const char *host, uint16_t port,
                             struct mu_errmsg *reterr_msg)
{
    struct mu_agent_gateway *b = make(r);
    uint32_t groups[MU_RELAYS_TRIED];
    size_t count;
    int err;

    if (b == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    b->remote = (struct mu_addr){.kind = MU_ADDR_TCP, .port = port};
    (void)snprintf(b->remote.host, sizeof(b->remote.host), "%s", host);
    b->relays = mu_relays_of(r->s->config.holds ? r->s->config.relays : MU_RELAYS_OFF, r->world);
    count = mu_relays_for(&b->relays, r->rank, groups);
    if (count != 0) {
        ask_relays(b, groups, count);
        return 0;
    }
    err = start_to_node(b, reterr_msg);
    if (err != 0) {
        r->gateway = NULL;
        mu_free(b);
        return err;
    }
    if (mu_relays_is_one(&b->relays, r->rank)) {
        be_relay(b);
    }
    mu_agent_round_master(r, "127.0.0.1", mu_store_server_addr(b->server)->port);
    return 0;
}

/* --- to etcd ---------------------------------------------------------------------------------- */

int mu_agent_gateway_to_etcd(struct mu_agent_round *r, struct mu_errmsg *reterr_msg)
{
    struct mu_agent_gateway *b = make(r);
    uint64_t drawn;

    if (b == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    b->key = MU_SPAN_LIT(NAME_KEY);
    b->op = (struct mu_store_op){
        .request = {.verb = MU_STORE_GET, .keys = &b->key, .key_count = 1},
        .timeout_ms = r->s->config.store_ms,
        .done = on_named,
    };
    if (r->rank == 0) {
        mu_env_entropy(r->s->env, &drawn, sizeof(drawn));
        (void)snprintf(b->name, sizeof(b->name), "%016" PRIx64, drawn);
        b->value = mu_span_str(b->name);
        b->op.request.verb = MU_STORE_SET;
        b->op.request.values = &b->value;
        b->op.request.value_count = 1;
    }
    b->asking = true;
    mu_store_submit(r->stores.store, &b->op);
    return 0;
}

const struct mu_store_server *mu_agent_gateway_server(const struct mu_agent_gateway *b)
{
    return b->server;
}

void mu_agent_gateway_end(struct mu_agent_gateway *b)
{
    if (b->closing) {
        return;
    }
    b->closing = true;
    if (b->asking) {
        mu_store_cancel(&b->op);
    }
    if (b->server != NULL) {
        mu_store_server_drain(b->server);
        mu_agent_guard(b->round->s, mu_store_server_addr(b->server));
    }
    settle(b);
}

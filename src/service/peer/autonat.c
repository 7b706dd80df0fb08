#include "service/peer/autonat.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "codec/peer/multiaddr.h"
#include "codec/peer/relay_msg.h"
#include "core/alloc.h"

#define PORTS_MAX  4  /* that are dialled for one request */
#define BACKS_MAX  30 /* requests that are served at once, and in a minute, */
#define PEER_MAX   3  /* and those of one peer */
#define MINUTE_MS  60000
#define SERVE_MS   60000 /* for a request, from its first byte to the last of the answer */
#define ASKS_MAX   3     /* peers that are asked */
#define ASK_MS     30000 /* for their answer */
#define ADDRS_MAX  16    /* of ours, in a request */
#define REASON_MAX 200   /* bytes of an answer's text */
#define PB_ROOM    (MU_AUTONAT_MSG_MAX + 2)

static const struct mu_span own_name = {(const uint8_t *)MU_AUTONAT_NAME,
                                        sizeof(MU_AUTONAT_NAME) - 1};

struct back;

/* A dial to one port of the peer that asks. */
struct probe {
    struct mu_peer_connect connect;
    struct back *back;
    struct mu_buf addr;
    bool active;
};

/* A request of a peer to be dialled back. */
struct back {
    struct mu_list link; /* autonat->backs */
    struct mu_peer_autonat *autonat;
    struct mu_host_stream stream;
    struct mu_peer_id peer;
    struct mu_relay_in in;
    struct mu_buf out;
    struct mu_timer timer;
    struct probe probes[PORTS_MAX];
    size_t active;
    bool heard; /* the request was read */
};

/* A request of ours. */
struct ask {
    struct mu_peer_autonat *autonat;
    struct mu_host_stream stream;
    struct mu_peer_id peer;
    struct mu_relay_in in;
    struct mu_buf out;
    struct mu_timer timer;
    bool over; /* there was an answer, or will be none */
};

/* When a peer was dialled back. */
struct recent {
    struct mu_peer_id peer;
    mu_mono_t at;
};

struct mu_peer_autonat {
    struct mu_peer_host *host;
    struct mu_env *env;
    struct mu_peer_autonat_config config;
    struct mu_peer_handler handler;
    struct mu_peer_watch watch;
    struct mu_list backs;
    size_t back_count;
    struct recent recent[BACKS_MAX]; /* a ring; `next` is the oldest */
    size_t next;
    struct ask asks[ASKS_MAX];
    size_t ask_count;
    bool reached;
};

static void arm(struct mu_peer_autonat *a, struct mu_timer *timer, uint32_t ms)
{
    mu_env_timer_arm(a->env, timer, mu_mono_add_ms(mu_env_now(a->env).mono, ms));
}

/* --- dialling others back --------------------------------------------------------------------- */

static void drop_probes(struct back *b)
{
    for (size_t i = 0; i < PORTS_MAX; i++) {
        if (b->probes[i].active) {
            b->probes[i].active = false;
            mu_peer_host_connect_cancel(&b->probes[i].connect);
        }
    }
    b->active = 0;
}

static void free_back(struct back *b)
{
    drop_probes(b);
    mu_env_timer_arm(b->autonat->env, &b->timer, MU_MONO_NEVER);
    mu_host_stream_reset(&b->stream);
    for (size_t i = 0; i < PORTS_MAX; i++) {
        mu_buf_fini(&b->probes[i].addr);
    }
    mu_relay_in_fini(&b->in);
    mu_buf_fini(&b->out);
    mu_list_remove(&b->link);
    b->autonat->back_count--;
    mu_free(b);
}

static void flush(struct mu_host_stream *s, struct mu_buf *out)
{
    if (out->len != 0) {
        mu_buf_consume(out, mu_host_stream_write(s, mu_buf_span(out)));
    }
}

static void answer(struct back *b, enum mu_autonat_status status, const char *text,
                   struct mu_span addr)
{
    struct mu_span reason = mu_span_str(text);

    reason.len = reason.len > REASON_MAX ? REASON_MAX : reason.len;
    if (mu_autonat_answer(status, reason, addr, &b->out) != 0) {
        free_back(b);
        return;
    }
    drop_probes(b);
    flush(&b->stream, &b->out);
    if (b->out.len == 0) {
        mu_host_stream_end(&b->stream);
    }
}

static void on_probed(struct mu_peer_connect *connect, int status, const char *text)
{
    struct probe *p = MU_CONTAINER_OF(connect, struct probe, connect);
    struct back *b = p->back;
    struct mu_span none = {0};

    p->active = false;
    b->active--;
    if (status == 0 && mu_peer_id_eq(&connect->peer, &b->peer)) {
        answer(b, MU_AUTONAT_OK, "", mu_buf_span(&p->addr));
    } else if (b->active == 0) {
        answer(b, MU_AUTONAT_DIAL_ERROR, status == 0 ? "another peer answers there" : text, none);
    }
}

/* Whether this peer may be dialled now; if so, it counts. */
static bool may_dial(struct mu_peer_autonat *a, const struct mu_peer_id *peer)
{
    mu_mono_t now = mu_env_now(a->env).mono;
    struct recent *oldest = &a->recent[a->next];
    size_t count = 0;

    for (size_t i = 0; i < BACKS_MAX; i++) {
        const struct recent *r = &a->recent[i];

        if (r->peer.len != 0 && !mu_mono_reached(mu_mono_add_ms(r->at, MINUTE_MS), now)) {
            if (r == oldest) {
                return false;
            }
            count += mu_peer_id_eq(&r->peer, peer) ? 1 : 0;
        }
    }
    if (count >= PEER_MAX) {
        return false;
    }
    *oldest = (struct recent){.peer = *peer, .at = now};
    a->next = (a->next + 1) % BACKS_MAX;
    return true;
}

/* Dials the peer at that port of the address under which we see it. */
static int start_probe(struct back *b, struct mu_addr *to, uint16_t port)
{
    struct probe *p = &b->probes[b->active];
    struct mu_errmsg msg;
    int err;

    to->port = port;
    mu_buf_reset(&p->addr);
    err = mu_multiaddr_from(&p->addr, to, &msg);
    if (err != 0) {
        return err;
    }
    p->connect = (struct mu_peer_connect){.addr = mu_buf_span(&p->addr), .done = on_probed};
    p->active = true;
    b->active++;
    mu_peer_host_connect(b->autonat->host, &p->connect);
    return 0;
}

/* The dial must not go elsewhere than to the peer that asks, whatever it names: so the IP address
 * is that of its connection, and only the ports are its own. */
static void dial_back(struct back *b, struct mu_span addrs)
{
    struct mu_span none = {0};
    struct mu_errmsg msg;
    uint16_t ports[PORTS_MAX];
    char seen[80];
    struct mu_span addr;
    struct mu_addr from;
    struct mu_addr to;
    size_t count = 0;

    mu_peer_host_remote(b->autonat->host, &b->peer, seen, sizeof(seen));
    if (mu_host_stream_limited(&b->stream) || mu_addr_parse(seen, 0, &from, &msg) != 0 ||
        from.kind != MU_ADDR_TCP) {
        answer(b, MU_AUTONAT_DIAL_REFUSED, "the peer's own address is not known", none);
        return;
    }
    while (count < PORTS_MAX && mu_autonat_next_addr(&addrs, &addr)) {
        bool known = mu_multiaddr_dial(addr, &to, NULL) != 0 || to.kind != MU_ADDR_TCP;

        for (size_t i = 0; i < count; i++) {
            known = known || ports[i] == to.port;
        }
        if (!known) {
            ports[count++] = to.port;
        }
    }
    if (count == 0) {
        answer(b, MU_AUTONAT_DIAL_REFUSED, "no dialable addresses", none);
    } else if (!may_dial(b->autonat, &b->peer)) {
        answer(b, MU_AUTONAT_DIAL_REFUSED, "too many dials", none);
    } else {
        for (size_t i = 0; i < count; i++) {
            (void)start_probe(b, &from, ports[i]);
        }
        if (b->active == 0) {
            answer(b, MU_AUTONAT_INTERNAL_ERROR, "out of memory", none);
        }
    }
}

static void back_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct back *b = MU_CONTAINER_OF(s, struct back, stream);
    struct mu_span none = {0};
    struct mu_autonat_msg msg;
    struct mu_span whole;
    size_t used;
    int err;

    mu_host_stream_consumed(s, bytes.len);
    if (b->heard) {
        return;
    }
    err = mu_relay_in_recv(&b->in, bytes, &used, &whole);
    if (err == 0) {
        return;
    }
    b->heard = true;
    if (err < 0 || mu_autonat_msg_decode(whole, &msg) != 0 || msg.response ||
        (msg.peer.len != 0 && !mu_span_eq(msg.peer, mu_peer_id_span(&b->peer)))) {
        answer(b, MU_AUTONAT_BAD_REQUEST, "the request cannot be read", none);
    } else {
        dial_back(b, msg.addrs);
    }
}

static void back_writable(struct mu_host_stream *s)
{
    struct back *b = MU_CONTAINER_OF(s, struct back, stream);

    if (b->out.len != 0) {
        flush(s, &b->out);
        if (b->out.len == 0) {
            mu_host_stream_end(s);
        }
    }
}

static void back_ended(struct mu_host_stream *s, int status, const char *text)
{
    (void)status;
    (void)text;
    free_back(MU_CONTAINER_OF(s, struct back, stream));
}

static const struct mu_host_stream_events back_events = {
    .data = back_data,
    .writable = back_writable,
    .ended = back_ended,
};

static void on_back_timer(struct mu_timer *timer)
{
    free_back(MU_CONTAINER_OF(timer, struct back, timer));
}

static struct mu_host_stream *on_opened(struct mu_peer_handler *handler,
                                        const struct mu_peer_id *peer, struct mu_span name)
{
    struct mu_peer_autonat *a = MU_CONTAINER_OF(handler, struct mu_peer_autonat, handler);
    size_t count = 0;
    struct back *b;

    (void)name;
    MU_LIST_FOREACH (it, &a->backs) {
        count += mu_peer_id_eq(&MU_CONTAINER_OF(it, struct back, link)->peer, peer) ? 1 : 0;
    }
    b = count >= PEER_MAX || a->back_count >= BACKS_MAX ? NULL : mu_calloc(1, sizeof(*b));
    if (b == NULL) {
        return NULL;
    }
    b->autonat = a;
    b->peer = *peer;
    b->stream.on = &back_events;
    mu_relay_in_init(&b->in);
    mu_buf_init(&b->out, PB_ROOM);
    mu_timer_init(&b->timer, on_back_timer);
    for (size_t i = 0; i < PORTS_MAX; i++) {
        b->probes[i].back = b;
        mu_buf_init(&b->probes[i].addr, MU_MULTIADDR_MAX);
    }
    mu_list_push(&a->backs, &b->link);
    a->back_count++;
    arm(a, &b->timer, SERVE_MS);
    return &b->stream;
}

/* --- asking others ---------------------------------------------------------------------------- */

static void end_ask(struct ask *k)
{
    if (!k->over) {
        k->over = true;
        mu_env_timer_arm(k->autonat->env, &k->timer, MU_MONO_NEVER);
        mu_host_stream_reset(&k->stream);
        mu_relay_in_fini(&k->in);
        mu_buf_fini(&k->out);
    }
}

/* Some peers say that a dial has failed when they did not try: to private addresses, mostly. */
static bool was_tried(struct mu_span text)
{
    return !mu_span_eq(text, MU_SPAN_LIT("no dialable addresses")) &&
           !mu_span_eq(text, MU_SPAN_LIT("refusing to dial peer with blocked observed address"));
}

static void take_answer(struct ask *k, const struct mu_autonat_msg *msg)
{
    struct mu_peer_autonat *a = k->autonat;
    char text[REASON_MAX + 1] = "";

    if (a->reached) {
        return;
    }
    if (msg->status == MU_AUTONAT_OK) {
        a->reached = true;
        a->config.told(a->config.context, &k->peer, true, "");
    } else if (msg->status == MU_AUTONAT_DIAL_ERROR && was_tried(msg->text)) {
        (void)snprintf(text, sizeof(text), "%.*s", (int)msg->text.len,
                       (const char *)msg->text.data);
        a->config.told(a->config.context, &k->peer, false, text);
    }
}

static void ask_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct ask *k = MU_CONTAINER_OF(s, struct ask, stream);
    struct mu_autonat_msg msg;
    struct mu_span whole;
    size_t used;
    int err;

    mu_host_stream_consumed(s, bytes.len);
    err = mu_relay_in_recv(&k->in, bytes, &used, &whole);
    if (err == 1 && mu_autonat_msg_decode(whole, &msg) == 0 && msg.response) {
        take_answer(k, &msg);
    }
    if (err != 0) {
        end_ask(k);
    }
}

static void ask_writable(struct mu_host_stream *s)
{
    struct ask *k = MU_CONTAINER_OF(s, struct ask, stream);

    flush(s, &k->out);
}

static void ask_ready(struct mu_host_stream *s, struct mu_span name)
{
    (void)name;
    ask_writable(s);
}

static void ask_ended(struct mu_host_stream *s, int status, const char *text)
{
    (void)status;
    (void)text;
    end_ask(MU_CONTAINER_OF(s, struct ask, stream));
}

static const struct mu_host_stream_events ask_events = {
    .ready = ask_ready,
    .data = ask_data,
    .writable = ask_writable,
    .ended = ask_ended,
};

static void on_ask_timer(struct mu_timer *timer)
{
    end_ask(MU_CONTAINER_OF(timer, struct ask, timer));
}

/* Our addresses, without those through relays. */
static size_t list_addrs(const struct mu_peer_host *host, struct mu_span addrs[ADDRS_MAX])
{
    struct mu_addr unused;
    struct mu_span addr;
    size_t count = 0;

    for (size_t i = 0; count < ADDRS_MAX && (addr = mu_peer_host_announced(host, i)).len != 0;
         i++) {
        if (mu_multiaddr_dial(addr, &unused, NULL) == 0) {
            addrs[count++] = addr;
        }
    }
    return count;
}

static bool was_asked(const struct mu_peer_autonat *a, const struct mu_peer_id *peer)
{
    for (size_t i = 0; i < a->ask_count; i++) {
        if (mu_peer_id_eq(&a->asks[i].peer, peer)) {
            return true;
        }
    }
    return false;
}

static void on_identified(struct mu_peer_watch *watch, const struct mu_peer_id *peer)
{
    struct mu_peer_autonat *a = MU_CONTAINER_OF(watch, struct mu_peer_autonat, watch);
    struct mu_span addrs[ADDRS_MAX];
    size_t count = list_addrs(a->host, addrs);
    struct ask *k = &a->asks[a->ask_count];

    if (a->reached || a->ask_count == ASKS_MAX || count == 0 || was_asked(a, peer) ||
        mu_peer_host_limited(a->host, peer) ||
        !mu_peer_host_speaks(a->host, peer, MU_AUTONAT_NAME)) {
        return;
    }
    *k = (struct ask){.autonat = a, .peer = *peer, .stream.on = &ask_events};
    mu_relay_in_init(&k->in);
    mu_buf_init(&k->out, PB_ROOM);
    mu_timer_init(&k->timer, on_ask_timer);
    a->ask_count++;
    if (mu_autonat_ask(mu_peer_host_id(a->host), addrs, count, &k->out) != 0) {
        end_ask(k);
        return;
    }
    arm(a, &k->timer, ASK_MS);
    mu_host_stream_open(a->host, &k->stream, peer, &own_name, 1);
}

/* --- life ------------------------------------------------------------------------------------- */

int mu_peer_autonat_start(struct mu_peer_host *host, const struct mu_peer_autonat_config *config,
                          struct mu_peer_autonat **ret)
{
    struct mu_peer_autonat *a = mu_calloc(1, sizeof(*a));
    int err;

    if (a == NULL) {
        return MUSTER_ENOMEM;
    }
    a->host = host;
    a->env = mu_peer_host_env(host);
    a->config = *config;
    mu_list_init(&a->backs);
    a->handler = (struct mu_peer_handler){.name = MU_AUTONAT_NAME, .opened = on_opened};
    err = mu_peer_host_serve(host, &a->handler);
    if (err != 0) {
        mu_free(a);
        return err;
    }
    mu_list_init(&a->watch.link);
    if (config->told != NULL) {
        a->watch.identified = on_identified;
        mu_peer_host_watch(host, &a->watch);
    }
    *ret = a;
    return 0;
}

void mu_peer_autonat_free(struct mu_peer_autonat *a)
{
    if (a == NULL) {
        return;
    }
    mu_peer_host_unserve(&a->handler);
    mu_peer_host_unwatch(&a->watch);
    MU_LIST_FOREACH_SAFE (it, tmp, &a->backs) {
        free_back(MU_CONTAINER_OF(it, struct back, link));
    }
    for (size_t i = 0; i < a->ask_count; i++) {
        end_ask(&a->asks[i]);
    }
    mu_free(a);
}

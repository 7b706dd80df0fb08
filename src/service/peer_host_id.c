/* What peers say of themselves (identify and its push), and ping. */
#include "service/peer_host_internal.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/log.h"

enum {
    PINGS_MAX = 2,            /* streams of one connection's peer */
    ECHO_BYTES_MAX = 1 << 16, /* that were not taken back yet */
    SAY_BYTES_MAX = (MU_IDENTIFY_MESSAGE_MAX + 2) * MU_IDENTIFY_MESSAGES_MAX,
};

static const struct mu_span identify_name[] = {
    {(const uint8_t *)MU_PEER_IDENTIFY_NAME, sizeof(MU_PEER_IDENTIFY_NAME) - 1}};
static const struct mu_span push_name[] = {
    {(const uint8_t *)MU_PEER_PUSH_NAME, sizeof(MU_PEER_PUSH_NAME) - 1}};
static const struct mu_span ping_name[] = {
    {(const uint8_t *)MU_PEER_PING_NAME, sizeof(MU_PEER_PING_NAME) - 1}};

/* --- to listen -------------------------------------------------------------------------------- */

struct hearing {
    struct mu_host_stream stream;
    struct mu_identify_in in;
    bool push;
};

static int append_name(struct mu_buf *out, struct mu_span name)
{
    int err = mu_buf_reserve(out, 2 + name.len);

    if (err == 0) {
        mu_buf_put_u16(out, (uint16_t)name.len);
        mu_buf_put(out, name);
    }
    return err;
}

static void learn_addrs(struct mu_host_peer *peer, const struct mu_identify *id)
{
    struct mu_span walk = id->all;
    struct mu_span addr;

    while (mu_identify_next_addr(&walk, &addr)) {
        /* One of another kind, or of somebody else, is of no use. */
        (void)mu_peer_host_add_addr(peer->host, &peer->id, addr);
    }
}

static void learn_protocols(struct mu_host_peer *peer, const struct mu_identify *id)
{
    struct mu_span walk = id->all;
    struct mu_span name;

    mu_buf_reset(&peer->protocols);
    while (mu_identify_next_protocol(&walk, &name)) {
        if (append_name(&peer->protocols, name) != 0) {
            break;
        }
    }
}

/* A number of ours, as a part of a multiaddr. */
static int add_number(struct mu_peer_host *h, struct mu_span ip)
{
    int err;

    for (size_t i = 0; i < MU_HOST_SEEN_MAX; i++) {
        if (mu_span_eq(mu_buf_span(&h->seen[i]), ip)) {
            return 0;
        }
    }
    mu_buf_reset(&h->seen[h->seen_next]);
    err = mu_buf_append(&h->seen[h->seen_next], ip);
    if (err != 0) {
        return err;
    }
    h->seen_next = (h->seen_next + 1) % MU_HOST_SEEN_MAX;
    MU_LIST_FOREACH (it, &h->listeners) {
        if (MU_CONTAINER_OF(it, struct mu_host_listener, link)->wild) {
            mu_host_readdress(h);
            break;
        }
    }
    return 0;
}

int mu_peer_host_add_number(struct mu_peer_host *h, const char *ip)
{
    struct mu_errmsg msg;
    struct mu_buf part;
    char text[80];
    int err;

    (void)snprintf(text, sizeof(text), "/%s/%.60s", strchr(ip, ':') == NULL ? "ip4" : "ip6", ip);
    mu_buf_init(&part, MU_MULTIADDR_MAX);
    err = mu_multiaddr_parse(&part, text, &msg);
    if (err == 0) {
        err = add_number(h, mu_buf_span(&part));
    }
    mu_buf_fini(&part);
    return err;
}

/* How we are seen: of use where we listen everywhere and know of no number. */
static void learn_observed(struct mu_host_conn *c, struct mu_span addr)
{
    struct mu_peer_host *h = c->host;
    struct mu_span rest = addr;
    struct mu_multiaddr_part part;

    /* One word of each peer that we chose to dial: who dials us could tell us anything, and who is
     * reached through a relay sees the relay. */
    if (c->observed || !c->dialled || c->limited || mu_multiaddr_next(&rest, &part) != 1 ||
        (part.code != MU_MA_IP4 && part.code != MU_MA_IP6)) {
        return;
    }
    c->observed = true;
    (void)add_number(h, mu_span(addr.data, addr.len - rest.len));
}

static void take_identify(struct mu_host_conn *c, struct hearing *hear)
{
    struct mu_peer_host *h = c->host;
    struct mu_host_peer *peer = c->peer;
    struct mu_peer_id of_key;
    struct mu_identify id;
    struct mu_span bytes;
    int err = mu_identify_in_end(&hear->in, &bytes);

    if (err == 0) {
        err = mu_identify_decode(bytes, &id);
    }
    if (err == 0 && id.public_key.data != NULL &&
        (mu_public_key_peer(id.public_key, &of_key) != 0 || !mu_peer_id_eq(&of_key, &peer->id))) {
        err = MUSTER_EPEERID;
    }
    if (err != 0) {
        h->stats.violations++;
        h->stats.last_failure = err;
        mu_log(MUSTER_LOG_INFO, "PEER-IDENTIFY-BAD", "why=\"%s\"", muster_strerror(err));
        return;
    }
    learn_addrs(peer, &id);
    if (!hear->push || id.protocol_count != 0) {
        learn_protocols(peer, &id);
    }
    if (id.agent_version.data != NULL) {
        char quoted[sizeof(peer->agent) + 2];

        (void)mu_span_quote(quoted, sizeof(quoted), id.agent_version);
        (void)snprintf(peer->agent, sizeof(peer->agent), "%.*s", (int)strcspn(quoted + 1, "\""),
                       quoted + 1);
    }
    learn_observed(c, id.observed_addr);
    peer->identified = true;
    MU_LIST_FOREACH_SAFE (it, tmp, &h->watches) {
        struct mu_peer_watch *w = MU_CONTAINER_OF(it, struct mu_peer_watch, link);

        if (w->identified != NULL) {
            w->identified(w, &peer->id);
        }
    }
}

static void hear_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct hearing *hear = MU_CONTAINER_OF(s, struct hearing, stream);

    mu_host_stream_consumed(s, bytes.len);
    /* What is wrong with it is found at its end. */
    (void)mu_identify_in_recv(&hear->in, bytes);
}

static void hear_eof(struct mu_host_stream *s)
{
    struct hearing *hear = MU_CONTAINER_OF(s, struct hearing, stream);
    struct mu_host_conn *c = s->conn;

    mu_host_stream_end(s);
    if (c != NULL && c->peer != NULL) {
        take_identify(c, hear);
    }
}

static void hear_ended(struct mu_host_stream *s, int status, const char *text)
{
    struct hearing *hear = MU_CONTAINER_OF(s, struct hearing, stream);

    (void)status;
    (void)text;
    mu_identify_in_fini(&hear->in);
    mu_free(hear);
}

static const struct mu_host_stream_events hear_events = {
    .data = hear_data,
    .eof = hear_eof,
    .ended = hear_ended,
};

static struct hearing *new_hearing(bool push)
{
    struct hearing *hear = mu_calloc(1, sizeof(*hear));

    if (hear != NULL) {
        hear->stream.on = &hear_events;
        hear->push = push;
        mu_identify_in_init(&hear->in);
    }
    return hear;
}

void mu_host_identify(struct mu_host_conn *c)
{
    struct hearing *hear = new_hearing(false);

    if (hear != NULL) {
        mu_host_stream_open_on(c, &hear->stream, identify_name, 1);
    }
}

static struct mu_host_stream *push_opened(struct mu_peer_handler *handler,
                                          const struct mu_peer_id *peer, struct mu_span name)
{
    struct hearing *hear = new_hearing(true);

    (void)handler;
    (void)peer;
    (void)name;
    return hear == NULL ? NULL : &hear->stream;
}

/* --- to say ----------------------------------------------------------------------------------- */

struct saying {
    struct mu_host_stream stream;
    struct mu_buf out;
};

static void append_observed(struct mu_host_conn *c, struct mu_buf *out)
{
    char text[MU_ADDR_HOST_MAX + 16];
    struct mu_addr addr;
    struct mu_errmsg msg;

    mu_env_peer(mu_host_conn_env(c), &c->base, text, sizeof(text));
    if (mu_addr_parse(text, 0, &addr, &msg) == 0 && addr.kind == MU_ADDR_TCP) {
        (void)mu_multiaddr_from(out, &addr, &msg);
    }
}

static int compose(struct mu_host_conn *c, struct mu_buf *out)
{
    struct mu_peer_host *h = c->host;
    struct mu_identify_out say = {
        .public_key = mu_buf_span(&h->config.identity->public_key),
        .protocol_version = MU_SPAN_LIT("ipfs/0.1.0"),
        .agent_version = mu_span_str(h->config.agent),
    };
    size_t names_max = h->handlers.count;
    struct mu_span *names = mu_calloc(names_max + 1, sizeof(*names));
    struct mu_span addrs[MU_IDENTIFY_ADDRS_MAX];
    struct mu_buf observed;
    int err;

    if (names == NULL) {
        return MUSTER_ENOMEM;
    }
    mu_buf_init(&observed, MU_MULTIADDR_MAX);
    append_observed(c, &observed);
    MU_LIST_FOREACH (it, &h->handler_list) {
        names[say.protocol_count++] =
            mu_span_str(MU_CONTAINER_OF(it, struct mu_peer_handler, link)->name);
    }
    MU_LIST_FOREACH (it, &h->told) {
        const struct mu_host_addr *a = MU_CONTAINER_OF(it, struct mu_host_addr, link);

        if (say.addr_count < MU_IDENTIFY_ADDRS_MAX) {
            addrs[say.addr_count++] = mu_span(a->bytes, a->len);
        }
    }
    say.protocols = names;
    say.addrs = addrs;
    say.observed_addr = mu_buf_span(&observed);
    err = mu_identify_encode(&say, out);
    mu_buf_fini(&observed);
    mu_free(names);
    return err;
}

static void say_more(struct mu_host_stream *s)
{
    struct saying *say = MU_CONTAINER_OF(s, struct saying, stream);

    if (say->out.len == 0 && compose(s->conn, &say->out) != 0) {
        mu_host_stream_reset(s);
        s->on->ended(s, MUSTER_ENOMEM, "");
        return;
    }
    mu_buf_consume(&say->out, mu_host_stream_write(s, mu_buf_span(&say->out)));
    if (say->out.len == 0) {
        mu_host_stream_end(s);
    }
}

static void say_ready(struct mu_host_stream *s, struct mu_span name)
{
    (void)name;
    say_more(s);
}

static void say_data(struct mu_host_stream *s, struct mu_span bytes)
{
    mu_host_stream_consumed(s, bytes.len); /* There is nothing to be said to us here. */
}

static void say_eof(struct mu_host_stream *s)
{
    (void)s;
}

static void say_ended(struct mu_host_stream *s, int status, const char *text)
{
    struct saying *say = MU_CONTAINER_OF(s, struct saying, stream);

    (void)status;
    (void)text;
    mu_buf_fini(&say->out);
    mu_free(say);
}

static const struct mu_host_stream_events answer_events = {
    .data = say_data,
    .eof = say_eof,
    .writable = say_more,
    .ended = say_ended,
};

static const struct mu_host_stream_events push_events = {
    .ready = say_ready,
    .data = say_data,
    .eof = say_eof,
    .writable = say_more,
    .ended = say_ended,
};

static struct saying *new_saying(const struct mu_host_stream_events *on)
{
    struct saying *say = mu_calloc(1, sizeof(*say));

    if (say != NULL) {
        say->stream.on = on;
        mu_buf_init(&say->out, SAY_BYTES_MAX);
    }
    return say;
}

static struct mu_host_stream *identify_opened(struct mu_peer_handler *handler,
                                              const struct mu_peer_id *peer, struct mu_span name)
{
    struct saying *say = new_saying(&answer_events);

    (void)handler;
    (void)peer;
    (void)name;
    return say == NULL ? NULL : &say->stream;
}

void mu_host_push(struct mu_peer_host *h)
{
    h->push = false;
    if (h->stopping || h->config.no_identify) {
        return;
    }
    MU_LIST_FOREACH (it, &h->conns) {
        struct mu_host_conn *c = MU_CONTAINER_OF(it, struct mu_host_conn, link);
        struct saying *say;

        /* Others have not heard what was before, or are on their way out. */
        if (c->peer == NULL || !c->peer->identified || mu_host_peer_best(c->peer) != c ||
            !mu_peer_host_speaks(h, &c->peer->id, MU_PEER_PUSH_NAME)) {
            continue;
        }
        say = new_saying(&push_events);
        if (say != NULL) {
            mu_host_stream_open_on(c, &say->stream, push_name, 1);
        }
    }
}

/* --- ping ------------------------------------------------------------------------------------- */

struct echo {
    struct mu_host_stream stream;
    struct mu_host_conn *conn;
    struct mu_buf held;
};

static void echo_more(struct mu_host_stream *s)
{
    struct echo *echo = MU_CONTAINER_OF(s, struct echo, stream);
    size_t taken = mu_host_stream_write(s, mu_buf_span(&echo->held));

    mu_buf_consume(&echo->held, taken);
    mu_host_stream_consumed(s, taken);
    if (echo->held.len == 0 && s->remote_end) {
        mu_host_stream_end(s);
    }
}

static void echo_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct echo *echo = MU_CONTAINER_OF(s, struct echo, stream);

    if (mu_buf_append(&echo->held, bytes) != 0) {
        mu_host_stream_reset(s);
        s->on->ended(s, MUSTER_ELIMIT, "");
        return;
    }
    echo_more(s);
}

static void echo_ended(struct mu_host_stream *s, int status, const char *text)
{
    struct echo *echo = MU_CONTAINER_OF(s, struct echo, stream);

    (void)status;
    (void)text;
    if (echo->conn != NULL) {
        echo->conn->pings--;
    }
    mu_buf_fini(&echo->held);
    mu_free(echo);
}

static void echo_begin(struct mu_host_stream *s)
{
    struct echo *echo = MU_CONTAINER_OF(s, struct echo, stream);

    if (echo->conn == NULL) {
        /* A stream ends before its connection goes, so that this stays good. */
        echo->conn = s->conn;
        if (echo->conn->pings++ >= PINGS_MAX) {
            s->host->stats.streams_refused++;
            mu_host_stream_reset(s);
            s->on->ended(s, MUSTER_ELIMIT, "");
            return;
        }
    }
    echo_more(s);
}

static const struct mu_host_stream_events echo_events = {
    .data = echo_data,
    .eof = echo_more,
    .writable = echo_begin,
    .ended = echo_ended,
};

static struct mu_host_stream *ping_opened(struct mu_peer_handler *handler,
                                          const struct mu_peer_id *peer, struct mu_span name)
{
    struct echo *echo = mu_calloc(1, sizeof(*echo));

    (void)handler;
    (void)peer;
    (void)name;
    if (echo == NULL) {
        return NULL;
    }
    echo->stream.on = &echo_events;
    mu_buf_init(&echo->held, ECHO_BYTES_MAX);
    return &echo->stream;
}

static void end_ping(struct mu_peer_ping *ping, int status, const char *text, uint64_t rtt_ns)
{
    mu_env_timer_arm(ping->stream.host->env, &ping->timer, MU_MONO_NEVER);
    ping->done(ping, status, text, rtt_ns);
}

static void ping_more(struct mu_host_stream *s)
{
    struct mu_peer_ping *ping = MU_CONTAINER_OF(s, struct mu_peer_ping, stream);

    if (s->state == MU_HOST_STREAM_OPEN) {
        ping->sent += mu_host_stream_write(
            s, mu_span(ping->bytes + ping->sent, sizeof(ping->bytes) - ping->sent));
    }
}

static void ping_ready(struct mu_host_stream *s, struct mu_span name)
{
    struct mu_peer_ping *ping = MU_CONTAINER_OF(s, struct mu_peer_ping, stream);

    (void)name;
    ping->at = mu_env_now(s->host->env).mono;
    ping_more(s);
}

static void ping_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct mu_peer_ping *ping = MU_CONTAINER_OF(s, struct mu_peer_ping, stream);
    uint64_t rtt_ns = mu_mono_since(ping->at, mu_env_now(s->host->env).mono);

    mu_host_stream_consumed(s, bytes.len);
    if (bytes.len > ping->sent - ping->got ||
        memcmp(bytes.data, ping->bytes + ping->got, bytes.len) != 0) {
        mu_host_stream_reset(s);
        end_ping(ping, MUSTER_EPROTO, "the answer is another than what was sent", 0);
        return;
    }
    ping->got += bytes.len;
    if (ping->got == sizeof(ping->bytes)) {
        ping->rtt_ns = rtt_ns;
        mu_host_stream_end(s); /* And the rest in peace: `ended` follows. */
    }
}

static void ping_eof(struct mu_host_stream *s)
{
    mu_host_stream_end(s);
}

static void ping_ended(struct mu_host_stream *s, int status, const char *text)
{
    struct mu_peer_ping *ping = MU_CONTAINER_OF(s, struct mu_peer_ping, stream);

    if (ping->got == sizeof(ping->bytes)) {
        end_ping(ping, 0, "", ping->rtt_ns);
    } else {
        end_ping(ping, status != 0 ? status : MUSTER_ECLOSED,
                 status != 0 ? text : "the peer did not answer", 0);
    }
}

static const struct mu_host_stream_events ping_events = {
    .ready = ping_ready,
    .data = ping_data,
    .eof = ping_eof,
    .writable = ping_more,
    .ended = ping_ended,
};

static void on_ping_timer(struct mu_timer *timer)
{
    struct mu_peer_ping *ping = MU_CONTAINER_OF(timer, struct mu_peer_ping, timer);
    struct mu_peer_host *h = ping->stream.host;

    mu_host_enter(h);
    mu_host_stream_reset(&ping->stream);
    if (ping->got == sizeof(ping->bytes)) {
        ping->done(ping, 0, "", ping->rtt_ns);
    } else {
        ping->done(ping, MUSTER_ETIMEDOUT, "no answer in time", 0);
    }
    mu_host_leave(h);
}

void mu_peer_host_ping(struct mu_peer_host *h, struct mu_peer_ping *ping)
{
    ping->stream = (struct mu_host_stream){.on = &ping_events};
    ping->sent = 0;
    ping->got = 0;
    mu_timer_init(&ping->timer, on_ping_timer);
    mu_env_entropy(h->env, ping->bytes, sizeof(ping->bytes));
    mu_host_stream_open(h, &ping->stream, &ping->peer, ping_name, 1);
    if (ping->timeout_ms != 0) {
        mu_env_timer_arm(h->env, &ping->timer,
                         mu_mono_add_ms(mu_env_now(h->env).mono, ping->timeout_ms));
    }
}

void mu_peer_host_ping_cancel(struct mu_peer_ping *ping)
{
    if (ping->stream.host != NULL) {
        mu_env_timer_arm(ping->stream.host->env, &ping->timer, MU_MONO_NEVER);
        mu_host_stream_reset(&ping->stream);
    }
}

/* ---------------------------------------------------------------------------------------------- */

int mu_host_id_init(struct mu_peer_host *h)
{
    int err;

    h->identify_handler =
        (struct mu_peer_handler){.name = MU_PEER_IDENTIFY_NAME, .opened = identify_opened};
    h->push_handler = (struct mu_peer_handler){.name = MU_PEER_PUSH_NAME, .opened = push_opened};
    h->ping_handler = (struct mu_peer_handler){.name = MU_PEER_PING_NAME, .opened = ping_opened};
    if (h->config.no_identify) {
        return mu_peer_host_serve(h, &h->ping_handler);
    }
    err = mu_peer_host_serve(h, &h->identify_handler);
    if (err == 0) {
        err = mu_peer_host_serve(h, &h->push_handler);
    }
    return err == 0 ? mu_peer_host_serve(h, &h->ping_handler) : err;
}

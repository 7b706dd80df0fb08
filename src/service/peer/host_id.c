/* Identify and its push: what peers say about themselves. */
#include "service/peer/host_internal.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "crypto/peer_record.h"
#include "service/base/log.h"

enum {
    TRIES_MAX = 6, /* of an exchange that fails, each four times as late as the one before */
    AGAIN_MS = 10,
    RECORD_BYTES_MAX = MU_IDENTIFY_MESSAGE_MAX - 8, /* so that it fits into one message */
    SAY_BYTES_MAX = (MU_IDENTIFY_MESSAGE_MAX + 2) * MU_IDENTIFY_MESSAGES_MAX,
};

static const struct mu_span identify_name[] = {
    {(const uint8_t *)MU_PEER_IDENTIFY_NAME, sizeof(MU_PEER_IDENTIFY_NAME) - 1}};
static const struct mu_span push_name[] = {
    {(const uint8_t *)MU_PEER_PUSH_NAME, sizeof(MU_PEER_PUSH_NAME) - 1}};

/* --- trying again ----------------------------------------------------------------------------- */

/* Without this, nothing would be asked or said again as long as the connection lasts. */
static void try_again(struct mu_host_conn *c, struct mu_host_retry *retry)
{
    if (retry->tries < TRIES_MAX) {
        uint64_t ms = (uint64_t)AGAIN_MS << 2 * retry->tries;

        retry->at = mu_mono_add_ms(mu_env_now(c->host->env).mono, ms);
        retry->tries++;
        mu_host_conn_touch(c);
    }
}

/* The stream's connection may be gone, or not in use any more. */
static struct mu_host_conn *find_conn(const struct mu_host_stream *s)
{
    struct mu_host_peer *peer = mu_host_peer_find(s->host, &s->peer);

    return peer == NULL ? NULL : mu_host_peer_best(peer);
}

static void push_on(struct mu_host_conn *c);

/* --- receiving -------------------------------------------------------------------------------- */

struct hearing {
    struct mu_host_stream stream;
    struct mu_identify_in in;
    bool push;
    bool starved; /* a part is missing for lack of memory */
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

/* An address of another kind, or of another peer, is of no use. An address of this host is only
 * believed from peers on this host: others could make us dial what only we can reach. */
static int add_addr(struct mu_host_peer *peer, struct mu_span addr, bool near, int err)
{
    if (!near && mu_multiaddr_is_local(addr)) {
        return err;
    }
    return mu_peer_host_add_addr(peer->host, &peer->id, addr) == MUSTER_ENOMEM ? MUSTER_ENOMEM
                                                                               : err;
}

/* If there are signed addresses, only these count. A record of another kind is none: rust-libp2p
 * has its own. */
static int learn_addrs(struct mu_host_peer *peer, const struct mu_identify *id, bool near)
{
    struct mu_span walk = id->all;
    struct mu_peer_record record;
    struct mu_span addr;
    int err = MUSTER_ENOENT;

    if (id->signed_record.data != NULL) {
        err = mu_peer_record_open(id->signed_record, &record);
    }
    if (err == MUSTER_ENOENT) {
        err = 0;
        while (mu_identify_next_addr(&walk, &addr)) {
            err = add_addr(peer, addr, near, err);
        }
        return err;
    }
    if (err == 0 && !mu_peer_id_eq(&record.peer, &peer->id)) {
        err = MUSTER_EPEERID;
    }
    if (err != 0) {
        return err;
    }
    if (record.seq >= peer->record_seq) {
        peer->record_seq = record.seq;
        while (mu_peer_record_next_addr(&record.addrs, &addr)) {
            err = add_addr(peer, addr, near, err);
        }
    }
    return err;
}

static int learn_protocols(struct mu_host_peer *peer, const struct mu_identify *id)
{
    struct mu_span walk = id->all;
    struct mu_span name;
    int err = 0;

    mu_buf_reset(&peer->protocols);
    while (err == 0 && mu_identify_next_protocol(&walk, &name)) {
        err = append_name(&peer->protocols, name);
    }
    return err == MUSTER_ENOMEM ? err : 0; /* what does not fit is not kept */
}

/* Adds an IP address of ours, as a part of a multiaddr. */
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

/* Learns under which address we are seen: useful where we listen everywhere and know no IP
 * address. */
static void learn_observed(struct mu_host_conn *c, struct mu_span addr)
{
    struct mu_peer_host *h = c->host;
    struct mu_span rest = addr;
    struct mu_multiaddr_part part;

    /* Only peers that we dialled are believed, once each: a peer that dials us could say anything,
     * and one behind a relay sees the relay's address. */
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
    int err = hear->starved ? MUSTER_ENOMEM : mu_identify_in_end(&hear->in, &bytes);

    if (err == 0) {
        err = mu_identify_decode(bytes, &id);
    }
    if (err == 0 && id.public_key.data != NULL &&
        (mu_public_key_peer(id.public_key, &of_key) != 0 || !mu_peer_id_eq(&of_key, &peer->id))) {
        err = MUSTER_EPEERID;
    }
    if (err == 0) {
        err = learn_addrs(peer, &id, mu_host_conn_is_near(c));
    }
    if (err == 0 && (!hear->push || id.protocol_count != 0)) {
        err = learn_protocols(peer, &id);
    }
    if (err != 0) {
        h->stats.violations += err != MUSTER_ENOMEM ? 1 : 0;
        h->stats.last_failure = err;
        mu_log(MUSTER_LOG_INFO, "PEER-IDENTIFY-BAD", "why=\"%s\"", muster_strerror(err));
        if (err == MUSTER_ENOMEM) {
            try_again(c, &c->ask); /* after a push as well: the answer includes what has changed */
        }
        return;
    }
    c->ask.tries = 0;
    if (id.agent_version.data != NULL) {
        char quoted[sizeof(peer->agent) + 2];

        (void)mu_span_quote(quoted, sizeof(quoted), id.agent_version);
        (void)snprintf(peer->agent, sizeof(peer->agent), "%.*s", (int)strcspn(quoted + 1, "\""),
                       quoted + 1);
    }
    learn_observed(c, id.observed_addr);
    peer->identified = true;
    MU_LIST_FOREACH (it, &peer->conns) {
        struct mu_host_conn *of_peer = MU_CONTAINER_OF(it, struct mu_host_conn, of_peer);

        if (of_peer->stale) {
            push_on(of_peer);
        }
    }
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
    /* Other errors show at the end. */
    hear->starved = mu_identify_in_recv(&hear->in, bytes) == MUSTER_ENOMEM || hear->starved;
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
    struct mu_host_conn *c = status == 0 || hear->push ? NULL : find_conn(s);

    (void)text;
    if (c != NULL && !c->peer->identified) {
        try_again(c, &c->ask);
    }
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
    } else {
        try_again(c, &c->ask);
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

/* --- sending ---------------------------------------------------------------------------------- */

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

/* Returns our signed addresses; empty if there is nothing to sign, or no room for it. They are
 * signed once for each change: the sequence number is the time, so that it grows over restarts. */
static struct mu_span own_record(struct mu_peer_host *h, const struct mu_span *addrs, size_t count)
{
    uint64_t now_ns = mu_env_now(h->env).wall.ns;

    if (h->record.len == 0 && count != 0) {
        h->record_seq = now_ns > h->record_seq ? now_ns : h->record_seq + 1;
        if (mu_peer_record_seal(h->config.identity, h->record_seq, addrs, count, &h->record) != 0) {
            mu_buf_reset(&h->record);
        }
    }
    return h->record.len == 0 || h->record.len > RECORD_BYTES_MAX ? (struct mu_span){0}
                                                                  : mu_buf_span(&h->record);
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
    say.signed_record = own_record(h, addrs, say.addr_count);
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
    mu_host_stream_consumed(s, bytes.len); /* the peer has nothing to send here */
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

static void push_ended(struct mu_host_stream *s, int status, const char *text)
{
    struct mu_host_conn *c = status == 0 ? NULL : find_conn(s);

    if (c != NULL) {
        try_again(c, &c->push);
    }
    say_ended(s, status, text);
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
    .ended = push_ended,
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

static void push_on(struct mu_host_conn *c)
{
    struct mu_peer_host *h = c->host;
    struct saying *say;

    /* The others have not heard the old state either, or are ending. */
    c->stale = c->peer != NULL && !c->peer->identified;
    if (c->peer == NULL || c->stale || mu_host_peer_best(c->peer) != c ||
        !mu_peer_host_speaks(h, &c->peer->id, MU_PEER_PUSH_NAME)) {
        return;
    }
    say = new_saying(&push_events);
    if (say != NULL) {
        mu_host_stream_open_on(c, &say->stream, push_name, 1);
    } else {
        try_again(c, &c->push);
    }
}

void mu_host_push(struct mu_peer_host *h)
{
    h->push = false;
    if (h->stopping || h->config.no_identify) {
        return;
    }
    MU_LIST_FOREACH (it, &h->conns) {
        struct mu_host_conn *c = MU_CONTAINER_OF(it, struct mu_host_conn, link);

        c->push = (struct mu_host_retry){.at = MU_MONO_NEVER};
        push_on(c);
    }
}

void mu_host_identify_again(struct mu_host_conn *c)
{
    mu_mono_t now = mu_env_now(c->host->env).mono;
    bool over = c->over || c->peer == NULL || c->host->stopping;

    if (mu_mono_reached(c->ask.at, now)) {
        c->ask.at = MU_MONO_NEVER;
        if (!over) {
            mu_host_identify(c);
        }
    }
    if (mu_mono_reached(c->push.at, now)) {
        c->push.at = MU_MONO_NEVER;
        if (!over) {
            push_on(c);
        }
    }
}

/* ---------------------------------------------------------------------------------------------- */

void mu_host_id_fini(struct mu_peer_host *h)
{
    mu_buf_fini(&h->record);
}

int mu_host_id_init(struct mu_peer_host *h)
{
    int err;

    h->identify_handler =
        (struct mu_peer_handler){.name = MU_PEER_IDENTIFY_NAME, .opened = identify_opened};
    h->push_handler = (struct mu_peer_handler){.name = MU_PEER_PUSH_NAME, .opened = push_opened};
    mu_buf_init(&h->record, MU_PEER_RECORD_MAX);
    if (h->config.no_identify) {
        return 0;
    }
    err = mu_peer_host_serve(h, &h->identify_handler);
    return err == 0 ? mu_peer_host_serve(h, &h->push_handler) : err;
}

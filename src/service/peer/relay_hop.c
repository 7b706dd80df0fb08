/*
 * Being a relay. There is one struct hop for each stream on which a peer asks something:
 *
 *     READING -- RESERVE --> ANSWERING                       the answer goes out; the end
 *        '------ CONNECT --> STOPPING -- yes --> OPEN        bytes pass, until an end or a limit
 *                               '------- no ---> ANSWERING
 *
 * Bytes that pass through an open circuit are held only while the receiving end takes no more;
 * meanwhile the sending end gets no more window.
 */
#include "service/peer/relay_internal.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "codec/peer/multiaddr.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "crypto/relay_voucher.h"
#include "service/base/log.h"

#define ASKING_MS  30000 /* until a request is there */
#define ANSWER_MS  10000 /* until an answer was read */
#define ASKING_MAX 32    /* requests of one peer at once */
#define ADDRS_MAX  16    /* of ours, in an answer */

static const struct mu_span stop_name = {(const uint8_t *)MU_RELAY_STOP_NAME,
                                         sizeof(MU_RELAY_STOP_NAME) - 1};

enum hop_state {
    HOP_READING = 1,
    HOP_ANSWERING,
    HOP_STOPPING,
    HOP_OPEN,
};

/* One end of a circuit. */
struct hop_end {
    struct mu_host_stream stream;
    struct mu_buf held; /* bytes from it that the other end has not taken; the window bounds it */
    bool on;            /* the stream is open */
    bool eof;
};

struct hop {
    struct mu_list link; /* relay->hops */
    struct mu_peer_relay *relay;
    enum hop_state state;
    struct hop_end end[2]; /* the peer that asks, and the wanted peer */
    struct mu_relay_in in;
    struct mu_buf out; /* our message: to end[1] in STOPPING, else to end[0] */
    struct mu_timer timer;
    struct mu_relay_circuit circuit; /* from STOPPING on */
};

static void arm(struct hop *hop, mu_mono_t at)
{
    mu_env_timer_arm(hop->relay->env, &hop->timer, at);
}

static mu_mono_t in_ms(const struct hop *hop, uint32_t ms)
{
    return mu_mono_add_ms(mu_env_now(hop->relay->env).mono, ms);
}

static void drop_end(struct hop_end *end)
{
    if (end->on) {
        end->on = false;
        mu_host_stream_reset(&end->stream);
    }
}

static void end_circuit(struct hop *hop)
{
    hop->relay->stats.bytes += hop->circuit.passed[0] + hop->circuit.passed[1];
    hop->circuit.passed[0] = hop->circuit.passed[1] = 0;
    mu_relay_circuit_end(&hop->circuit);
}

static void free_hop(struct hop *hop)
{
    arm(hop, MU_MONO_NEVER);
    end_circuit(hop);
    for (size_t i = 0; i < 2; i++) {
        drop_end(&hop->end[i]);
        mu_buf_fini(&hop->end[i].held);
    }
    mu_relay_in_fini(&hop->in);
    mu_buf_fini(&hop->out);
    mu_list_remove(&hop->link);
    hop->relay->hop_count--;
    mu_free(hop);
}

/* --- answers ---------------------------------------------------------------------------------- */

static void flush_answer(struct hop *hop)
{
    struct mu_host_stream *to = &hop->end[0].stream;

    mu_buf_consume(&hop->out, mu_host_stream_write(to, mu_buf_span(&hop->out)));
    if (hop->out.len == 0) {
        mu_host_stream_end(to);
    }
}

/* Sends the final answer to the peer that asked. */
static void answer(struct hop *hop, const struct mu_relay_out *say)
{
    end_circuit(hop);
    drop_end(&hop->end[1]);
    hop->state = HOP_ANSWERING;
    mu_host_stream_consumed(&hop->end[0].stream, hop->end[0].held.len);
    mu_buf_reset(&hop->end[0].held);
    mu_buf_reset(&hop->out);
    if (mu_relay_msg_encode(MU_RELAY_HOP, say, &hop->out) != 0) {
        free_hop(hop);
        return;
    }
    arm(hop, in_ms(hop, ANSWER_MS));
    flush_answer(hop);
}

static void refuse(struct hop *hop, enum mu_relay_status status)
{
    const struct mu_relay_out say = {.type = MU_RELAY_STATUS, .status = status};

    hop->relay->stats.connect_refused++;
    mu_log(MUSTER_LOG_DEBUG, "RELAY-REFUSED", "status=%d", (int)status);
    answer(hop, &say);
}

/* --- reservations ----------------------------------------------------------------------------- */

static void keep_time(struct mu_peer_relay *relay)
{
    mu_env_timer_arm(relay->env, &relay->hop_timer, mu_relay_hop_deadline(&relay->hop));
}

/* Lists our addresses with our id, in one buffer. Returns how many. */
static size_t list_addrs(const struct mu_peer_relay *relay, struct mu_buf *room,
                         struct mu_span addrs[ADDRS_MAX])
{
    struct mu_span id = mu_peer_id_span(mu_peer_host_id(relay->host));
    size_t at[ADDRS_MAX + 1] = {0};
    struct mu_span addr;
    size_t n = 0;

    for (size_t i = 0; n < ADDRS_MAX && (addr = mu_peer_host_announced(relay->host, i)).len != 0;
         i++) {
        struct mu_addr unused;

        /* An address of ours through another relay is of no use to others. */
        if (mu_multiaddr_dial(addr, &unused, NULL) == 0 && mu_buf_append(room, addr) == 0 &&
            mu_uvarint_append(room, MU_MA_P2P) == 0 && mu_uvarint_append(room, id.len) == 0 &&
            mu_buf_append(room, id) == 0) {
            at[++n] = room->len;
        }
    }
    for (size_t i = 0; i < n; i++) {
        addrs[i] = mu_span(mu_buf_span(room).data + at[i], at[i + 1] - at[i]);
    }
    return n;
}

static void answer_reserved(struct hop *hop, uint64_t expire_s)
{
    struct mu_peer_relay *relay = hop->relay;
    struct mu_relay_out say = {.type = MU_RELAY_STATUS,
                               .status = MU_RELAY_OK,
                               .expire_s = expire_s,
                               .limit = relay->config.hop_terms.limit};
    struct mu_span addrs[ADDRS_MAX];
    struct mu_buf room;
    struct mu_buf voucher;

    mu_buf_init(&room, (size_t)ADDRS_MAX * (MU_MULTIADDR_MAX + MU_PEER_ID_MAX + 8));
    mu_buf_init(&voucher, MU_RELAY_VOUCHER_MAX);
    say.addr_count = list_addrs(relay, &room, addrs);
    say.addrs = addrs;
    /* A reservation without a voucher is valid as well. */
    if (mu_relay_voucher_seal(mu_peer_host_identity(relay->host), &hop->end[0].stream.peer,
                              expire_s, &voucher) == 0) {
        say.voucher = mu_buf_span(&voucher);
    }
    answer(hop, &say);
    mu_buf_fini(&room);
    mu_buf_fini(&voucher);
}

static void take_reserve(struct hop *hop)
{
    struct mu_peer_relay *relay = hop->relay;
    const struct mu_host_stream *s = &hop->end[0].stream;
    size_t before = mu_relay_hop_count(&relay->hop);
    enum mu_relay_status status;
    uint64_t expire_s = 0;
    char ip[MU_ADDR_HOST_MAX + 16];
    char *port;

    mu_peer_host_remote(relay->host, &s->peer, ip, sizeof(ip));
    port = strrchr(ip, ':');
    if (port != NULL) {
        *port = '\0';
    }
    status = mu_relay_hop_reserve(&relay->hop, mu_env_now(relay->env), &s->peer, mu_span_str(ip),
                                  mu_host_stream_limited(s), &expire_s);
    if (status != MU_RELAY_OK) {
        const struct mu_relay_out say = {.type = MU_RELAY_STATUS, .status = status};

        relay->stats.reserve_refused++;
        answer(hop, &say);
        return;
    }
    relay->stats.reserved++;
    if (mu_relay_hop_count(&relay->hop) > before) {
        char id[MU_PEER_ID_TEXT_MAX];

        (void)mu_peer_host_keep(relay->host, &s->peer, true);
        mu_log(MUSTER_LOG_INFO, "RELAY-RESERVED", "peer=%s from=%s",
               mu_peer_id_format(&s->peer, id), ip);
    }
    keep_time(relay);
    answer_reserved(hop, expire_s);
}

void mu_relay_hop_gone(struct mu_peer_relay *relay, const struct mu_peer_id *peer)
{
    size_t before = mu_relay_hop_count(&relay->hop);

    mu_relay_hop_forget(&relay->hop, peer);
    if (mu_relay_hop_count(&relay->hop) < before) {
        (void)mu_peer_host_keep(relay->host, peer, false);
        keep_time(relay);
    }
}

static void on_hop_timer(struct mu_timer *timer)
{
    struct mu_peer_relay *relay = MU_CONTAINER_OF(timer, struct mu_peer_relay, hop_timer);
    struct mu_peer_id peer;

    while (mu_relay_hop_expire(&relay->hop, mu_env_now(relay->env).mono, &peer)) {
        (void)mu_peer_host_keep(relay->host, &peer, false);
    }
    keep_time(relay);
}

/* --- passing bytes on ------------------------------------------------------------------------- */

/* Passes on what is held, and the end after it. */
static void pass_on(struct hop *hop, unsigned way)
{
    struct hop_end *from = &hop->end[way];
    struct hop_end *to = &hop->end[1 - way];

    if (hop->state != HOP_OPEN || !to->on || (way == 1 && hop->out.len != 0)) {
        return;
    }
    if (from->held.len != 0) {
        size_t taken = mu_host_stream_write(&to->stream, mu_buf_span(&from->held));

        mu_buf_consume(&from->held, taken);
        mu_buf_trim(&from->held, 0);
        mu_host_stream_consumed(&from->stream, taken);
    }
    if (from->held.len == 0 && from->eof) {
        mu_host_stream_end(&to->stream);
    }
}

static void take_bytes(struct hop *hop, unsigned way, struct mu_span bytes)
{
    struct hop_end *from = &hop->end[way];
    struct hop_end *to = &hop->end[1 - way];
    size_t n = mu_relay_circuit_pass(&hop->circuit, way, bytes.len);
    bool spent = n < bytes.len;
    size_t taken = 0;

    bytes.len = n;
    if (hop->state == HOP_OPEN && from->held.len == 0 && to->on &&
        (way == 0 || hop->out.len == 0)) {
        taken = mu_host_stream_write(&to->stream, bytes);
        mu_host_stream_consumed(&from->stream, taken);
    }
    if (spent || (taken < n && mu_buf_append(&from->held, mu_span_skip(bytes, taken)) != 0)) {
        mu_log(MUSTER_LOG_DEBUG, "RELAY-SPENT", "way=%u", way);
        free_hop(hop);
    }
}

static void open_circuit(struct hop *hop)
{
    const struct mu_relay_out say = {.type = MU_RELAY_STATUS,
                                     .status = MU_RELAY_OK,
                                     .limit = hop->relay->config.hop_terms.limit};
    struct mu_host_stream *to = &hop->end[0].stream;

    mu_buf_reset(&hop->out);
    if (mu_relay_msg_encode(MU_RELAY_HOP, &say, &hop->out) != 0) {
        free_hop(hop);
        return;
    }
    hop->state = HOP_OPEN;
    hop->relay->stats.connected++;
    mu_relay_circuit_open(&hop->circuit, mu_env_now(hop->relay->env).mono);
    arm(hop, hop->circuit.ends_at);
    mu_buf_consume(&hop->out, mu_host_stream_write(to, mu_buf_span(&hop->out)));
    pass_on(hop, 0);
}

/* --- streams ---------------------------------------------------------------------------------- */

static void take_connect(struct hop *hop, const struct mu_peer_id *to)
{
    struct mu_peer_relay *relay = hop->relay;
    const struct mu_host_stream *s = &hop->end[0].stream;
    const struct mu_relay_out say = {
        .type = MU_RELAY_CONNECT, .peer = &s->peer, .limit = relay->config.hop_terms.limit};
    enum mu_relay_status status =
        mu_relay_hop_connect(&relay->hop, mu_env_now(relay->env).mono, &s->peer, to,
                             mu_host_stream_limited(s), &hop->circuit);

    if (status != MU_RELAY_OK) {
        refuse(hop, status);
        return;
    }
    mu_buf_reset(&hop->out);
    if (!mu_peer_host_connected(relay->host, to) ||
        mu_relay_msg_encode(MU_RELAY_STOP, &say, &hop->out) != 0) {
        refuse(hop, MU_RELAY_CONNECTION_FAILED);
        return;
    }
    hop->state = HOP_STOPPING;
    arm(hop, hop->circuit.ends_at);
    mu_relay_in_fini(&hop->in);
    mu_relay_in_init(&hop->in);
    hop->end[1].on = true;
    mu_host_stream_open(relay->host, &hop->end[1].stream, to, &stop_name, 1);
}

static void take_question(struct hop *hop, struct mu_span bytes)
{
    struct mu_relay_msg msg;

    if (mu_relay_msg_decode(MU_RELAY_HOP, bytes, &msg) != 0) {
        refuse(hop, MU_RELAY_MALFORMED_MESSAGE);
        return;
    }
    switch (msg.type) {
    case MU_RELAY_RESERVE:
        take_reserve(hop);
        break;
    case MU_RELAY_CONNECT:
        take_connect(hop, &msg.peer);
        break;
    case MU_RELAY_STATUS:
        refuse(hop, MU_RELAY_UNEXPECTED_MESSAGE);
        break;
    }
}

/* Takes the bytes after a request: for the other end, or to be dropped. */
static void take_more(struct hop *hop, struct mu_span bytes)
{
    if (hop->state == HOP_ANSWERING) {
        mu_host_stream_consumed(&hop->end[0].stream, bytes.len);
    } else {
        take_bytes(hop, 0, bytes);
    }
}

static void on_from_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct hop *hop = MU_CONTAINER_OF(s, struct hop, end[0].stream);
    struct mu_span msg;
    size_t used = 0;
    int err;

    if (hop->state != HOP_READING) {
        take_more(hop, bytes);
        return;
    }
    err = mu_relay_in_recv(&hop->in, bytes, &used, &msg);
    mu_host_stream_consumed(s, err < 0 ? bytes.len : used);
    if (err < 0) {
        refuse(hop, MU_RELAY_MALFORMED_MESSAGE);
        return;
    }
    if (err == 1) {
        struct mu_peer_relay *relay = hop->relay;
        size_t before = relay->hop_count;

        take_question(hop, msg);
        /* If memory ran out, the hop may be gone. */
        if (used < bytes.len && relay->hop_count == before) {
            take_more(hop, mu_span_skip(bytes, used));
        }
    }
}

static void on_from_writable(struct mu_host_stream *s)
{
    struct hop *hop = MU_CONTAINER_OF(s, struct hop, end[0].stream);

    if (hop->state == HOP_ANSWERING) {
        flush_answer(hop);
    } else if (hop->state == HOP_OPEN) {
        if (hop->out.len != 0) {
            mu_buf_consume(&hop->out, mu_host_stream_write(s, mu_buf_span(&hop->out)));
        }
        pass_on(hop, 1);
    }
}

static void on_from_eof(struct mu_host_stream *s)
{
    struct hop *hop = MU_CONTAINER_OF(s, struct hop, end[0].stream);

    hop->end[0].eof = true;
    if (hop->state == HOP_READING) {
        free_hop(hop); /* it has asked nothing */
    } else {
        pass_on(hop, 0);
    }
}

/* An end is gone. If it ended properly, the other may still have bytes to take. */
static void lose_end(struct hop *hop, unsigned way, int status)
{
    hop->end[way].on = false;
    if (status != 0 || hop->state != HOP_OPEN || !hop->end[1 - way].on) {
        free_hop(hop);
    }
}

static void on_from_ended(struct mu_host_stream *s, int status, const char *text)
{
    (void)text;
    lose_end(MU_CONTAINER_OF(s, struct hop, end[0].stream), 0, status);
}

static const struct mu_host_stream_events from_events = {
    .data = on_from_data,
    .eof = on_from_eof,
    .writable = on_from_writable,
    .ended = on_from_ended,
};

/* --- the stream to the wanted peer ------------------------------------------------------------ */

static void on_to_writable(struct mu_host_stream *s)
{
    struct hop *hop = MU_CONTAINER_OF(s, struct hop, end[1].stream);

    if (hop->state == HOP_STOPPING) {
        mu_buf_consume(&hop->out, mu_host_stream_write(s, mu_buf_span(&hop->out)));
    } else {
        pass_on(hop, 0);
    }
}

static void on_to_ready(struct mu_host_stream *s, struct mu_span name)
{
    (void)name;
    on_to_writable(s);
}

static void on_to_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct hop *hop = MU_CONTAINER_OF(s, struct hop, end[1].stream);
    struct mu_peer_relay *relay = hop->relay;
    size_t before = relay->hop_count;
    struct mu_relay_msg msg;
    struct mu_span words;
    size_t used = 0;
    int err;

    if (hop->state == HOP_OPEN) {
        take_bytes(hop, 1, bytes);
        return;
    }
    err = mu_relay_in_recv(&hop->in, bytes, &used, &words);
    if (err == 0) {
        mu_host_stream_consumed(s, used);
        return;
    }
    if (err < 0 || mu_relay_msg_decode(MU_RELAY_STOP, words, &msg) != 0 ||
        msg.type != MU_RELAY_STATUS || msg.status != MU_RELAY_OK) {
        refuse(hop, MU_RELAY_CONNECTION_FAILED);
        return;
    }
    mu_host_stream_consumed(s, used);
    open_circuit(hop);
    if (used < bytes.len && relay->hop_count == before) {
        take_bytes(hop, 1, mu_span_skip(bytes, used));
    }
}

static void on_to_eof(struct mu_host_stream *s)
{
    struct hop *hop = MU_CONTAINER_OF(s, struct hop, end[1].stream);

    hop->end[1].eof = true;
    if (hop->state == HOP_STOPPING) {
        refuse(hop, MU_RELAY_CONNECTION_FAILED);
    } else {
        pass_on(hop, 1);
    }
}

static void on_to_ended(struct mu_host_stream *s, int status, const char *text)
{
    struct hop *hop = MU_CONTAINER_OF(s, struct hop, end[1].stream);

    (void)text;
    if (hop->state == HOP_STOPPING) {
        hop->end[1].on = false;
        refuse(hop, MU_RELAY_CONNECTION_FAILED);
    } else {
        lose_end(hop, 1, status);
    }
}

static const struct mu_host_stream_events to_events = {
    .ready = on_to_ready,
    .data = on_to_data,
    .eof = on_to_eof,
    .writable = on_to_writable,
    .ended = on_to_ended,
};

/* --- life ------------------------------------------------------------------------------------- */

static void on_timer(struct mu_timer *timer)
{
    struct hop *hop = MU_CONTAINER_OF(timer, struct hop, timer);

    if (hop->state == HOP_STOPPING) {
        refuse(hop, MU_RELAY_CONNECTION_FAILED);
    } else {
        free_hop(hop); /* its time is up */
    }
}

/* Whether the peer may open one more request: those under way, and silent ones, are bounded. */
static bool may_ask(const struct mu_peer_relay *relay, const struct mu_peer_id *peer)
{
    uint32_t n = 0;

    MU_LIST_FOREACH (it, &relay->hops) {
        const struct hop *hop = MU_CONTAINER_OF(it, struct hop, link);

        n += hop->state != HOP_OPEN && mu_peer_id_eq(&hop->end[0].stream.peer, peer) ? 1 : 0;
    }
    return n < ASKING_MAX;
}

static struct mu_host_stream *hop_opened(struct mu_peer_handler *handler,
                                         const struct mu_peer_id *peer, struct mu_span name)
{
    struct mu_peer_relay *relay = MU_CONTAINER_OF(handler, struct mu_peer_relay, hop_handler);
    struct hop *hop = may_ask(relay, peer) ? mu_calloc(1, sizeof(*hop)) : NULL;

    (void)name;
    if (hop == NULL) {
        return NULL;
    }
    hop->relay = relay;
    hop->state = HOP_READING;
    hop->end[0].stream.on = &from_events;
    hop->end[0].stream.peer = *peer;
    hop->end[1].stream.on = &to_events;
    hop->end[0].on = true;
    for (size_t i = 0; i < 2; i++) {
        mu_buf_init(&hop->end[i].held, SIZE_MAX / 4);
    }
    mu_relay_in_init(&hop->in);
    mu_buf_init(&hop->out, MU_RELAY_MSG_MAX + 2);
    mu_timer_init(&hop->timer, on_timer);
    mu_list_push(&relay->hops, &hop->link);
    relay->hop_count++;
    arm(hop, in_ms(hop, ASKING_MS));
    return &hop->end[0].stream;
}

int mu_relay_hop_serve(struct mu_peer_relay *relay)
{
    struct mu_relay_hop_config config = relay->config.hop_terms;

    config.seed = mu_prng_u64(&relay->prng);
    mu_relay_hop_init(&relay->hop, &config);
    mu_timer_init(&relay->hop_timer, on_hop_timer);
    if (!relay->config.hop) {
        return 0;
    }
    relay->hop_handler = (struct mu_peer_handler){.name = MU_RELAY_HOP_NAME, .opened = hop_opened};
    return mu_peer_host_serve(relay->host, &relay->hop_handler);
}

void mu_relay_hop_unserve(struct mu_peer_relay *relay)
{
    struct mu_peer_id peer;

    mu_peer_host_unserve(&relay->hop_handler);
    MU_LIST_FOREACH_SAFE (it, tmp, &relay->hops) {
        free_hop(MU_CONTAINER_OF(it, struct hop, link));
    }
    while (mu_relay_hop_expire(&relay->hop, (mu_mono_t){UINT64_MAX - 1}, &peer)) {
        (void)mu_peer_host_keep(relay->host, &peer, false);
    }
    mu_env_timer_arm(relay->env, &relay->hop_timer, MU_MONO_NEVER);
    mu_relay_hop_fini(&relay->hop);
}

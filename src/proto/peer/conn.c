#include "proto/peer/conn.h"

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "proto/peer/conn_internal.h"

enum {
    /* The limit of sealed bytes that were not sent: what may be kept for sending, and room for the
     * frame that exceeds it and for messages other than data. */
    SEALED_BYTES_OVER = 128 * 1024,
    /* Memory may be available again. */
    STARVED_MS = 10,
    /* How much memory a buffer keeps when the connection is idle. */
    IDLE_BYTES_MAX = 4096,
};

/* --- life ------------------------------------------------------------------------------------- */

struct mu_peer_conn_config mu_peer_conn_config_defaults(void)
{
    struct mu_peer_conn_config config = {
        .handshake_ms = 15000,
        .negotiate_ms = 15000,
        .streams_max = 1024,
        .yamux = mu_yamux_config_defaults(),
    };

    config.yamux.output_bytes_max = 512 * 1024;
    return config;
}

int mu_peer_conn_init(struct mu_peer_conn *c, const struct mu_peer_conn_config *config,
                      mu_mono_t now)
{
    bool dialler = config->role == MU_PEER_DIALLER;
    struct mu_yamux_config yamux = config->yamux;
    int err;

    yamux.role = dialler ? MU_YAMUX_DIALLER : MU_YAMUX_LISTENER;
    yamux.seed = config->seed;
    yamux.streams_max = config->streams_max;
    if (config->identity == NULL || config->streams_max == 0) {
        return MUSTER_EINVAL;
    }
    *c = (struct mu_peer_conn){.config = *config, .stage = MU_PEER_RAW, .now = now};
    err = mu_yamux_init(&c->yamux, &yamux, now);
    if (err != 0) {
        return err;
    }
    c->handshake_at = mu_mono_add_ms(now, config->handshake_ms);
    mu_map_init(&c->streams, config->seed);
    mu_list_init(&c->queued);
    mu_list_init(&c->negotiating);
    mu_list_init(&c->attention);
    mu_mss_init(&c->raw, dialler ? MU_MSS_INITIATOR : MU_MSS_RESPONDER);
    mu_mss_init(&c->muxer, dialler ? MU_MSS_INITIATOR : MU_MSS_RESPONDER);
    if (dialler) {
        err = mu_mss_propose(&c->raw, MU_SPAN_LIT(MU_PEER_SECURITY_NAME));
    }
    if (err != 0) {
        mu_peer_conn_fini(c);
    }
    return err;
}

void mu_peer_conn_fini(struct mu_peer_conn *c)
{
    struct mu_map_node *node;

    while ((node = mu_map_next(&c->streams, NULL)) != NULL) {
        mu_peer_release(c, MU_CONTAINER_OF(node, struct mu_peer_stream, by_id));
    }
    mu_map_fini(&c->streams);
    mu_mss_fini(&c->raw);
    mu_mss_fini(&c->muxer);
    mu_noise_fini(&c->noise);
    mu_yamux_fini(&c->yamux);
    explicit_bzero(&c->config, sizeof(c->config));
}

static void end_all(struct mu_peer_conn *c, int err)
{
    c->stage = MU_PEER_OVER;
    c->err = err;
    c->over_event = true;
    c->lent = (struct mu_span){0};
    explicit_bzero(c->config.secret_static, sizeof(c->config.secret_static));
    explicit_bzero(c->config.secret_ephemeral, sizeof(c->config.secret_ephemeral));
}

void mu_peer_fail(struct mu_peer_conn *c, int err, const char *text, const char *detail)
{
    if (c->stage == MU_PEER_OVER) {
        return;
    }
    (void)mu_err(&c->why, err, "%s%s%s", text, detail[0] == '\0' ? "" : ": ", detail);
    end_all(c, err);
}

void mu_peer_conn_close(struct mu_peer_conn *c)
{
    if (c->stage == MU_PEER_OVER) {
        return;
    }
    if (c->stage == MU_PEER_OPEN) {
        (void)mu_yamux_go_away(&c->yamux, MU_YAMUX_NORMAL);
    }
    end_all(c, 0);
}

int mu_peer_conn_drain(struct mu_peer_conn *c, mu_mono_t now)
{
    return c->stage == MU_PEER_OPEN ? mu_yamux_drain(&c->yamux, now) : MUSTER_EAGAIN;
}

bool mu_peer_conn_drained(const struct mu_peer_conn *c)
{
    return c->stage == MU_PEER_OPEN && mu_yamux_drained(&c->yamux);
}

/* --- the handshake ---------------------------------------------------------------------------- */

static int start_noise(struct mu_peer_conn *c)
{
    struct mu_noise_config config = {
        .role = c->config.role == MU_PEER_DIALLER ? MU_NOISE_DIALLER : MU_NOISE_LISTENER,
        .identity = c->config.identity,
        .expected = c->config.expected,
        .muxer = c->config.muxer_late ? NULL : MU_PEER_MUXER_NAME,
        .output_bytes_max = (size_t)c->config.yamux.output_bytes_max + SEALED_BYTES_OVER,
    };
    int err;

    memcpy(config.secret_static, c->config.secret_static, sizeof(config.secret_static));
    memcpy(config.secret_ephemeral, c->config.secret_ephemeral, sizeof(config.secret_ephemeral));
    err = mu_noise_init(&c->noise, &config);
    explicit_bzero(&config, sizeof(config));
    if (err == 0) {
        c->stage = MU_PEER_NOISE;
    }
    return err;
}

/* Advances a negotiation for one name, on the bare connection or within the encrypted one. 1: it is
 * agreed; 0: not yet; MUSTER_ENOMEM. It may also have failed. */
static int negotiate(struct mu_peer_conn *c, struct mu_mss *m, const char *name)
{
    struct mu_mss_event e;
    int err = 0;

    while (mu_mss_next_event(m, &e)) {
        if (e.type == MU_MSS_EV_REFUSED) {
            mu_peer_fail(c, MUSTER_EVERSION, "the peer does not speak", name);
        }
    }
    if (m->state == MU_MSS_ASKED) {
        err = mu_span_eq(mu_mss_name(m), mu_span_str(name)) ? mu_mss_accept(m) : mu_mss_refuse(m);
    }
    return err == 0 && m->state == MU_MSS_AGREED ? 1 : err;
}

static int recv_raw(struct mu_peer_conn *c, struct mu_span in, size_t *ret_used)
{
    int err = mu_mss_recv(&c->raw, in, ret_used);

    if (err != 0 && err != MUSTER_ENOMEM) {
        mu_peer_fail(c, err, "security", mu_mss_errmsg(&c->raw));
        return 0;
    }
    if (err == 0) {
        err = negotiate(c, &c->raw, MU_PEER_SECURITY_NAME);
    }
    return err == 1 ? start_noise(c) : err;
}

static int recv_noise(struct mu_peer_conn *c, struct mu_span in, size_t *ret_used)
{
    int err = mu_noise_recv(&c->noise, in, ret_used);

    if (err != 0 && err != MUSTER_ENOMEM) {
        mu_peer_fail(c, err, c->stage == MU_PEER_NOISE ? "handshake" : "noise",
                     mu_noise_errmsg(&c->noise));
        return 0;
    }
    if (err == 0 && c->stage == MU_PEER_NOISE && mu_noise_done(&c->noise)) {
        if (!c->noise.muxer_agreed && c->config.role == MU_PEER_DIALLER &&
            c->muxer.proposals == 0) {
            err = mu_mss_propose(&c->muxer, MU_SPAN_LIT(MU_PEER_MUXER_NAME));
        }
        if (err == 0) {
            c->stage = c->noise.muxer_agreed ? MU_PEER_OPEN : MU_PEER_MUXER;
            c->secured_event = true;
        }
    }
    return err;
}

/* The handshake is over, but the next step found no memory. */
static bool is_behind(const struct mu_peer_conn *c)
{
    return (c->stage == MU_PEER_RAW &&
            (c->raw.state == MU_MSS_ASKED || c->raw.state == MU_MSS_AGREED)) ||
           (c->stage == MU_PEER_NOISE && mu_noise_done(&c->noise));
}

static int recv_some(struct mu_peer_conn *c, struct mu_span in, size_t *ret_used)
{
    switch (c->stage) {
    case MU_PEER_RAW:
        return recv_raw(c, in, ret_used);
    case MU_PEER_NOISE:
        return recv_noise(c, in, ret_used);
    case MU_PEER_MUXER:
    case MU_PEER_OPEN:
        /* Earlier bytes must be handled first, because data of them may still be lent. */
        return mu_noise_plain(&c->noise).len != 0 || c->lent.len != 0 ? 0
                                                                      : recv_noise(c, in, ret_used);
    case MU_PEER_OVER:
        break;
    }
    return 0;
}

int mu_peer_conn_recv(struct mu_peer_conn *c, mu_mono_t now, struct mu_span in, size_t *ret_used)
{
    enum mu_peer_stage before;
    size_t used = 0;
    size_t taken;
    int err = 0;

    c->now = now;
    *ret_used = 0;
    if (c->stage == MU_PEER_OVER) {
        return c->err != 0 ? c->err : MUSTER_ECLOSED;
    }
    if (c->starved) {
        c->starved = false;
        return MUSTER_ENOMEM;
    }
    do {
        before = c->stage;
        taken = 0;
        err = recv_some(c, mu_span_skip(in, used), &taken);
        used += taken;
    } while (err == 0 && (taken != 0 || c->stage != before) && used < in.len);
    *ret_used = used;
    return used != 0 ? 0 : err;
}

void mu_peer_conn_eof(struct mu_peer_conn *c, mu_mono_t now)
{
    c->now = now;
    c->eof = true;
}

/* --- events ----------------------------------------------------------------------------------- */

/* Passes decrypted bytes on. True: there is an event. */
static bool feed_plain(struct mu_peer_conn *c)
{
    enum mu_peer_stage before = c->stage;
    struct mu_span plain;
    size_t used = 0;
    int err = 0;

    if (c->stage != MU_PEER_MUXER && c->stage != MU_PEER_OPEN) {
        if (is_behind(c)) {
            err = recv_some(c, (struct mu_span){0}, &used);
            c->starved = c->starved || err == MUSTER_ENOMEM;
        }
        return false;
    }
    plain = mu_noise_plain(&c->noise);
    if (c->stage == MU_PEER_OPEN) {
        err = mu_yamux_recv(&c->yamux, c->now, plain, &used);
        if (err != 0 && err != MUSTER_ENOMEM) {
            mu_peer_fail(c, err, "yamux", mu_yamux_errmsg(&c->yamux));
        }
    } else {
        err = mu_mss_recv(&c->muxer, plain, &used);
        if (err != 0 && err != MUSTER_ENOMEM) {
            mu_peer_fail(c, err, "muxer", mu_mss_errmsg(&c->muxer));
        } else if (err == 0) {
            err = negotiate(c, &c->muxer, MU_PEER_MUXER_NAME);
            c->stage = err == 1 ? MU_PEER_OPEN : c->stage;
        }
    }
    mu_noise_consume(&c->noise, used);
    c->starved = c->starved || err == MUSTER_ENOMEM;
    return used != 0 || c->stage != before;
}

/* The wire is gone, and all of its events were told. */
static void end_at_eof(struct mu_peer_conn *c)
{
    if (c->stage != MU_PEER_OPEN) {
        mu_peer_fail(c, MUSTER_ECONN, "the peer hung up during the handshake", "");
    } else if (c->streams.count == 0 || (c->yamux.refused && c->yamux.away_code == 0)) {
        end_all(c, 0);
    } else {
        mu_peer_fail(c, MUSTER_ECONN, "the peer hung up", "");
    }
}

static bool tell_over(struct mu_peer_conn *c, struct mu_peer_event *ret)
{
    struct mu_map_node *node;

    while ((node = mu_map_next(&c->streams, NULL)) != NULL) {
        struct mu_peer_stream *s = MU_CONTAINER_OF(node, struct mu_peer_stream, by_id);
        bool ready = s->state == MU_PEER_STREAM_OPEN;
        bool tell = ready || s->ours;

        *ret = (struct mu_peer_event){
            .type = ready ? MU_PEER_EV_RESET : MU_PEER_EV_STREAM_READY,
            .id = s->id,
            .err = s->err != 0   ? s->err
                   : c->err != 0 ? c->err
                                 : MUSTER_ECLOSED,
        };
        mu_peer_release(c, s);
        if (tell) {
            return true;
        }
    }
    if (c->over_event) {
        c->over_event = false;
        *ret = (struct mu_peer_event){.type = c->err == 0 ? MU_PEER_EV_CLOSED : MU_PEER_EV_FAILED,
                                      .err = c->err};
        return true;
    }
    return false;
}

bool mu_peer_conn_next_event(struct mu_peer_conn *c, struct mu_peer_event *ret_event)
{
    struct mu_yamux_event e;

    c->starved = c->stage == MU_PEER_OPEN && mu_yamux_say_resets(&c->yamux) != 0;
    mu_peer_refuse_asked(c);
    for (;;) {
        if (c->secured_event) {
            c->secured_event = false;
            *ret_event = (struct mu_peer_event){.type = MU_PEER_EV_SECURED};
            return true;
        }
        if (c->stage == MU_PEER_OVER) {
            return tell_over(c, ret_event);
        }
        if (mu_peer_attend(c, ret_event) || mu_peer_take_lent(c, ret_event)) {
            return true;
        }
        if (c->starved) {
            return false;
        }
        if (mu_yamux_next_event(&c->yamux, &e)) {
            if (mu_peer_take_yamux(c, &e, ret_event)) {
                return true;
            }
            continue;
        }
        if (c->stage == MU_PEER_OPEN && mu_peer_open_queued(c)) {
            continue;
        }
        if (!feed_plain(c) && !c->secured_event && c->lent.len == 0 &&
            mu_list_empty(&c->attention)) {
            if (!c->eof || c->starved || c->stage == MU_PEER_OVER) {
                return false;
            }
            end_at_eof(c);
        }
    }
}

/* --- out, and time ---------------------------------------------------------------------------- */

bool mu_peer_seal(struct mu_peer_conn *c)
{
    bool by_mss = mu_mss_output(&c->muxer).len != 0;
    struct mu_span plain = by_mss ? mu_mss_output(&c->muxer) : mu_yamux_output(&c->yamux);
    size_t taken;
    int err;

    if (plain.len == 0) {
        return true;
    }
    err = mu_noise_send(&c->noise, plain, &taken);
    if (err == MUSTER_ENOMEM) {
        c->starved = true;
    } else if (err != 0) {
        mu_peer_fail(c, err, "noise", "no message can be sent any more");
    } else if (by_mss) {
        mu_mss_sent(&c->muxer, taken);
    } else {
        mu_yamux_sent(&c->yamux, taken);
    }
    mu_yamux_set_behind(&c->yamux, mu_noise_output(&c->noise).len);
    return mu_mss_output(&c->muxer).len == 0 && mu_yamux_output(&c->yamux).len == 0;
}

struct mu_span mu_peer_conn_output(struct mu_peer_conn *c)
{
    if (mu_mss_output(&c->raw).len != 0) {
        return mu_mss_output(&c->raw);
    }
    /* Everything written since becomes one message, after what is sealed already. */
    if (mu_noise_done(&c->noise) && c->noise.poison == 0) {
        (void)mu_peer_seal(c);
    }
    return mu_noise_output(&c->noise);
}

void mu_peer_conn_sent(struct mu_peer_conn *c, size_t len)
{
    if (mu_mss_output(&c->raw).len != 0) {
        mu_mss_sent(&c->raw, len);
    } else {
        mu_noise_sent(&c->noise, len);
        mu_yamux_set_behind(&c->yamux, mu_noise_output(&c->noise).len);
    }
}

bool mu_peer_conn_done(struct mu_peer_conn *c)
{
    if (c->stage != MU_PEER_OVER) {
        return false;
    }
    /* What could not be sealed for lack of memory must still be sent. */
    return c->eof || (mu_peer_conn_output(c).len == 0 && !c->starved);
}

mu_mono_t mu_peer_conn_deadline(const struct mu_peer_conn *c)
{
    mu_mono_t at = c->handshake_at;

    if (c->stage == MU_PEER_OVER) {
        at = MU_MONO_NEVER;
    } else if (c->stage == MU_PEER_OPEN) {
        at = mu_yamux_deadline(&c->yamux);
        if (!mu_list_empty(&c->negotiating)) {
            at = mu_mono_min(
                at, MU_CONTAINER_OF(c->negotiating.next, struct mu_peer_stream, link)->deadline);
        }
    }
    return c->starved ? mu_mono_min(at, mu_mono_add_ms(c->now, STARVED_MS)) : at;
}

void mu_peer_conn_tick(struct mu_peer_conn *c, mu_mono_t now)
{
    c->now = now;
    c->starved = false;
    if (c->stage == MU_PEER_OVER) {
        return;
    }
    if (c->stage != MU_PEER_OPEN) {
        if (mu_mono_reached(c->handshake_at, now)) {
            mu_peer_fail(c, MUSTER_ETIMEDOUT, "the handshake took too long", "");
        }
        return;
    }
    c->starved = mu_yamux_tick(&c->yamux, now) != 0;
    mu_peer_expire(c);
    if (c->lent.len == 0 && mu_noise_plain(&c->noise).len == 0) {
        mu_buf_trim(&c->noise.plain, IDLE_BYTES_MAX);
        mu_buf_trim(&c->noise.in, IDLE_BYTES_MAX);
        mu_buf_trim(&c->noise.out, IDLE_BYTES_MAX);
        mu_buf_trim(&c->yamux.out, IDLE_BYTES_MAX);
    }
}

const struct mu_peer_id *mu_peer_conn_peer(const struct mu_peer_conn *c)
{
    return &c->noise.remote;
}

uint64_t mu_peer_conn_grown(const struct mu_peer_conn *c)
{
    return c->yamux.grown;
}

void mu_peer_conn_limit_growth(struct mu_peer_conn *c, uint64_t more)
{
    uint64_t max = c->config.yamux.grown_bytes_max;
    uint64_t room = max > c->yamux.grown ? max - c->yamux.grown : 0;

    c->yamux.config.grown_bytes_max = c->yamux.grown + (more < room ? more : room);
}

uint64_t mu_peer_conn_rtt_ns(const struct mu_peer_conn *c)
{
    return c->yamux.rtt_ns;
}

size_t mu_peer_conn_count(const struct mu_peer_conn *c)
{
    return c->streams.count;
}

const char *mu_peer_conn_errmsg(const struct mu_peer_conn *c)
{
    return c->why.text;
}

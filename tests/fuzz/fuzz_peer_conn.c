/*
 * A whole connection to a peer. The first byte says which side we are, whether the muxer is agreed
 * on late, and whether the other side has shaken hands properly before it turns hostile; then
 * steps, each a byte that says what happens and a value: bytes on the wire, bytes said in secret,
 * and all that can be done with streams. Whatever happens, no data comes before the handshake,
 * nothing comes behind the end, and every stream is accounted for.
 */
#include <stdint.h>
#include <stdlib.h>

#include "core/assert.h"
#include "core/reader.h"
#include "peer_side.h"

enum { IDS = 64 };

enum step {
    SAY, /* in secret */
    FEED,
    OPEN,
    WRITE,
    END,
    RESET,
    CONSUME,
    SEND,
    TICK,
    CLOSE,
    CUT,
    STEPS,
};

struct run {
    struct peer_side us;
    struct peer_side them;
    bool secret; /* they can speak in secret */
    bool secured;
    bool over;
    mu_mono_t now;
    size_t unread[IDS];
};

static void take_events(struct run *r)
{
    struct mu_peer_conn *c = &r->us.conn;
    struct mu_peer_event e;

    while (mu_peer_conn_next_event(c, &e)) {
        MU_ASSERT(!r->over);
        r->secured = r->secured || e.type == MU_PEER_EV_SECURED;
        MU_ASSERT(r->secured || e.type == MU_PEER_EV_FAILED || e.type == MU_PEER_EV_CLOSED ||
                  (e.type == MU_PEER_EV_STREAM_READY && e.err != 0));
        if (e.type == MU_PEER_EV_STREAM_OPENED && e.name.len % 3 != 0) {
            MU_ASSERT((e.name.len % 3 == 1 ? mu_peer_conn_accept(c, e.id)
                                           : mu_peer_conn_refuse(c, e.id)) == 0);
        }
        if (e.type == MU_PEER_EV_DATA && e.id < IDS) {
            r->unread[e.id] += e.data.len;
        }
        r->over = e.type == MU_PEER_EV_CLOSED || e.type == MU_PEER_EV_FAILED;
    }
    MU_ASSERT(c->opened - c->closed == mu_peer_conn_count(c));
    MU_ASSERT(!r->over || mu_peer_conn_count(c) == 0);
    MU_ASSERT(!r->over || mu_peer_conn_deadline(c).ns == MU_MONO_NEVER.ns);
}

static void feed(struct run *r, struct mu_span in)
{
    while (in.len != 0) {
        size_t used;
        int err = mu_peer_conn_recv(&r->us.conn, r->now, in, &used);

        take_events(r);
        in = mu_span_skip(in, used);
        if (err != 0 || used == 0) {
            break;
        }
    }
}

static void say(struct run *r, struct mu_span in)
{
    size_t taken;

    if (r->secret && mu_noise_send(&r->them.conn.noise, in, &taken) == 0) {
        feed(r, mu_noise_output(&r->them.conn.noise));
        mu_noise_sent(&r->them.conn.noise, mu_noise_output(&r->them.conn.noise).len);
    } else if (!r->secret) {
        feed(r, in);
    }
}

/* Both do as they should, until the muxer's turn. */
static void shake_hands(struct run *r)
{
    for (int i = 0; i < 6; i++) {
        (void)peer_carry(&r->us, &r->them, r->now);
        (void)peer_carry(&r->them, &r->us, r->now);
        if (i < 3) {
            take_events(r);
        }
    }
    r->secret = mu_noise_done(&r->them.conn.noise);
}

static void take_step(struct run *r, enum step step, uint8_t value, struct mu_reader *in)
{
    static const uint8_t zeroes[1 << 16];
    const struct mu_span names[] = {MU_SPAN_LIT("/echo/1"), MU_SPAN_LIT("/other")};
    struct mu_peer_conn *c = &r->us.conn;
    uint32_t id = value % IDS;
    size_t len = value < in->rest.len ? value : in->rest.len;
    size_t taken;

    switch (step) {
    case SAY:
        say(r, mu_read_bytes(in, len));
        break;
    case FEED:
        feed(r, mu_read_bytes(in, len));
        break;
    case OPEN:
        (void)mu_peer_conn_open(c, r->now, names, value % 2 + 1, &id);
        break;
    case WRITE:
        (void)mu_peer_conn_write(c, id, mu_span(zeroes, sizeof(zeroes) >> value / IDS * 4), &taken);
        break;
    case END:
        (void)mu_peer_conn_end(c, id);
        break;
    case RESET:
        mu_peer_conn_reset(c, id);
        break;
    case CONSUME:
        mu_peer_conn_consumed(c, r->now, id, r->unread[id]);
        r->unread[id] = 0;
        break;
    case SEND:
        taken = mu_peer_conn_output(c).len;
        mu_peer_conn_sent(c, value == 255 || taken < value ? taken : value);
        break;
    case TICK:
        r->now = mu_mono_add_ms(r->now, (uint64_t)value * 100);
        mu_peer_conn_tick(c, r->now);
        break;
    case CLOSE:
        mu_peer_conn_close(c);
        break;
    case CUT:
        mu_peer_conn_eof(c, r->now);
        break;
    case STEPS:
        break;
    }
    take_events(r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_reader in = mu_reader(mu_span(data, size));
    struct run r = {.now = {MU_NS_PER_S}};
    uint8_t how = mu_read_u8(&in);
    struct mu_peer_conn_config us =
        peer_side_config(how % 2 == 0 ? MU_PEER_DIALLER : MU_PEER_LISTENER);
    struct mu_peer_conn_config them =
        peer_side_config(how % 2 == 0 ? MU_PEER_LISTENER : MU_PEER_DIALLER);

    us.streams_max = 16;
    us.yamux.output_bytes_max = 2 * MU_YAMUX_DATA_MAX;
    us.yamux.unacked_max = 4;
    them.muxer_late = (how & 2) != 0;
    MU_ASSERT(peer_side_init(&r.us, us, r.now) == 0);
    MU_ASSERT(peer_side_init(&r.them, them, r.now) == 0);
    if ((how & 4) != 0) {
        shake_hands(&r);
    }
    while (in.rest.len != 0) {
        enum step step = mu_read_u8(&in) % STEPS;

        take_step(&r, step, mu_read_u8(&in), &in);
        MU_ASSERT(mu_peer_conn_count(&r.us.conn) <= 2 * us.streams_max);
        MU_ASSERT(r.us.conn.yamux.out.len <= us.yamux.output_bytes_max + (1 << 19));
    }
    peer_side_fini(&r.us);
    peer_side_fini(&r.them);
    return 0;
}

/*
 * A stream joined to a client's socket under events in any order, made of the input. The client
 * hears the head and then what the peer says, in order and nothing else; the peer is given back
 * what the client has taken, once; each side ends once, after all before it; after the end nothing
 * comes.
 */
#include <string.h>

#include "core/assert.h"
#include "core/reader.h"
#include "proto/p2pd/pipe.h"

#define HEAD   10
#define WINDOW 500

static struct world {
    struct mu_p2pd_pipe p;
    bool open;    /* the socket */
    bool blocked; /* it has taken less than all */
    bool over;    /* CLOSE or ABORT */
    bool peer_ended;
    bool gone; /* the stream */
    bool client_ended;
    bool ended;      /* END */
    bool finished;   /* FINISH */
    bool held;       /* the client is not read from */
    size_t takes;    /* of what is sent */
    size_t heard;    /* of the peer */
    size_t sent;     /* to the client, the head included */
    size_t consumed; /* that the peer was given back */
} w;

static uint8_t byte_at(size_t n)
{
    return (uint8_t)(n * 7 + n / 251);
}

static void send_some(struct mu_span bytes)
{
    size_t n = bytes.len < w.takes ? bytes.len : w.takes;

    MU_ASSERT(w.open && !w.blocked && bytes.len != 0 && !w.finished);
    for (size_t i = 0; i < n; i++) {
        MU_ASSERT(bytes.data[i] == byte_at(w.sent + i));
    }
    w.takes -= n;
    w.sent += n;
    w.blocked = n < bytes.len;
    mu_p2pd_pipe_sent(&w.p, n);
}

static void pump(void)
{
    struct mu_p2pd_pipe_action a;

    while (mu_p2pd_pipe_next(&w.p, &a)) {
        MU_ASSERT(!w.over);
        switch (a.type) {
        case MU_P2PD_PIPE_SEND:
            send_some(a.bytes);
            break;
        case MU_P2PD_PIPE_CONSUMED:
            MU_ASSERT(!w.gone && a.len != 0);
            w.consumed += a.len;
            break;
        case MU_P2PD_PIPE_END:
            MU_ASSERT(w.client_ended && !w.ended && !w.gone);
            w.ended = true;
            break;
        case MU_P2PD_PIPE_RESUME:
            MU_ASSERT(w.held);
            w.held = false;
            break;
        case MU_P2PD_PIPE_FINISH:
            MU_ASSERT(w.peer_ended && !w.gone && !w.finished && w.sent == HEAD + w.heard);
            w.finished = true;
            break;
        case MU_P2PD_PIPE_CLOSE:
            MU_ASSERT(w.gone && w.sent == HEAD + w.heard);
            w.over = true;
            break;
        case MU_P2PD_PIPE_ABORT:
            w.over = true;
            break;
        }
    }
}

static void check(void)
{
    MU_ASSERT(w.sent <= HEAD + w.heard);
    MU_ASSERT(w.over || w.gone || w.consumed == (w.sent < HEAD ? 0 : w.sent - HEAD));
    MU_ASSERT(w.over || w.p.kept.len == HEAD + w.heard - w.sent);
    MU_ASSERT(w.over || w.ended == (w.client_ended && !w.gone) || w.gone);
    MU_ASSERT(w.over || !w.held || !w.gone);
    MU_ASSERT(w.over || !w.gone || !w.open || w.sent != HEAD + w.heard);
}

static void peer_says(size_t len)
{
    uint8_t bytes[WINDOW + 16];
    size_t room = WINDOW - (w.heard - w.consumed);

    /* A peer that says more than it may is seen in ABORT. */
    len = len < room + 4 ? len : room + 4;
    for (size_t i = 0; i < len; i++) {
        bytes[i] = byte_at(HEAD + w.heard + i);
    }
    w.heard += len;
    mu_p2pd_pipe_heard(&w.p, mu_span(bytes, len));
    pump();
    mu_p2pd_pipe_keep(&w.p);
}

static void client_says(size_t len, size_t takes)
{
    size_t taken = w.gone ? 0 : len < takes ? len : takes;
    size_t dealt = mu_p2pd_pipe_up(&w.p, len, taken);

    MU_ASSERT(dealt == (w.gone ? len : taken));
    w.held = dealt < len;
}

static void take_event(uint8_t what, size_t n)
{
    if (what % 8 == 0) {
        w.open = true;
        w.blocked = false;
        w.takes = n;
        mu_p2pd_pipe_ready(&w.p);
    } else if (what % 8 <= 2 && !w.peer_ended && !w.gone) {
        peer_says(n);
    } else if (what % 8 == 3 && !w.client_ended && !w.held) {
        client_says(n, (size_t)(what >> 3) * 8);
    } else if (what % 8 == 4) {
        mu_p2pd_pipe_writable(&w.p);
    } else if (what == 5 && !w.gone) {
        w.peer_ended = true;
        mu_p2pd_pipe_peer_ended(&w.p);
    } else if (what == 6 && !w.gone) {
        w.gone = true;
        w.peer_ended = true;
        mu_p2pd_pipe_gone(&w.p);
    } else if (what == 7 && !w.held && !w.client_ended) {
        w.client_ended = true;
        mu_p2pd_pipe_client_ended(&w.p);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_reader r = mu_reader(mu_span(data, size));
    uint8_t head[HEAD];

    memset(&w, 0, sizeof(w));
    for (size_t i = 0; i < HEAD; i++) {
        head[i] = byte_at(i);
    }
    mu_p2pd_pipe_init(&w.p, HEAD + WINDOW);
    MU_ASSERT(mu_p2pd_pipe_head(&w.p, mu_span(head, HEAD)) == 0);
    while (!w.over && r.rest.len >= 2) {
        uint8_t what = mu_read_u8(&r);

        take_event(what, (size_t)mu_read_u8(&r) * 4);
        pump();
        check();
    }
    /* The stream ends and the client reads: that is the end. */
    if (!w.gone) {
        take_event(6, 0);
    }
    take_event(0, 1 << 20);
    pump();
    MU_ASSERT(w.over);
    mu_p2pd_pipe_fini(&w.p);
    return 0;
}

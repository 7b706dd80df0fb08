/*
 * What comes to a relay on streams, in pieces as long as the first byte says, or whole: the same
 * messages, or the same error. What they ask is decided, by few peers under narrow limits, and the
 * relay's counts hold.
 */
#include <stdint.h>

#include "core/assert.h"
#include "proto/peer/relay.h"

#define CIRCUITS 8

struct world {
    struct mu_relay_hop hop;
    struct mu_relay_circuit circuits[CIRCUITS];
    struct mu_now now;
    unsigned asked;
};

/* Who asks: one of four, in turn. */
static struct mu_peer_id peer(unsigned n)
{
    return (struct mu_peer_id){.len = 34, .bytes = {0x12, 0x20, (uint8_t)(n % 4)}};
}

static void decide(struct world *w, const struct mu_relay_msg *msg)
{
    struct mu_peer_id from = peer(w->asked++);
    struct mu_relay_circuit *c = &w->circuits[w->asked % CIRCUITS];
    struct mu_peer_id gone;
    uint64_t expire_s;

    w->now.mono.ns += (msg->status + 1) * MU_NS_PER_MS;
    while (mu_relay_hop_expire(&w->hop, w->now.mono, &gone)) {
        MU_ASSERT(!mu_relay_hop_reserved(&w->hop, w->now.mono, &gone));
    }
    if (msg->type == MU_RELAY_RESERVE) {
        if (mu_relay_hop_reserve(&w->hop, w->now, &from, MU_SPAN_LIT("ip"), msg->limited,
                                 &expire_s) == MU_RELAY_OK) {
            MU_ASSERT(mu_relay_hop_reserved(&w->hop, w->now.mono, &from));
        }
    } else if (msg->type == MU_RELAY_CONNECT) {
        mu_relay_circuit_end(c);
        if (mu_relay_hop_connect(&w->hop, w->now.mono, &from, &msg->peer, false, c) ==
            MU_RELAY_OK) {
            MU_ASSERT(mu_relay_hop_reserved(&w->hop, w->now.mono, &msg->peer));
            mu_relay_circuit_open(c, w->now.mono);
            MU_ASSERT(mu_relay_circuit_pass(c, 0, 60) == 60 &&
                      mu_relay_circuit_pass(c, 0, 60) == 40);
        }
    } else {
        mu_relay_hop_forget(&w->hop, &from);
    }
    MU_ASSERT(mu_relay_hop_count(&w->hop) <= 3 && w->hop.circuit_count <= 4);
}

static int read_all(struct mu_span bytes, size_t step, struct world *w, struct mu_buf *ret)
{
    struct mu_relay_in in;
    int err = 0;

    mu_relay_in_init(&in);
    while (bytes.len != 0 && err >= 0) {
        struct mu_span piece = mu_span(bytes.data, bytes.len < step ? bytes.len : step);
        struct mu_relay_msg msg;
        struct mu_span body;
        size_t used = 0;

        err = mu_relay_in_recv(&in, piece, &used, &body);
        if (err == 1) {
            MU_ASSERT(body.len != 0 && body.len <= MU_RELAY_MSG_MAX);
            MU_ASSERT(mu_uvarint_append(ret, body.len) == 0 && mu_buf_append(ret, body) == 0);
            if (w != NULL && mu_relay_msg_decode(MU_RELAY_HOP, body, &msg) == 0) {
                decide(w, &msg);
            }
        }
        MU_ASSERT(err < 0 || (used != 0 && used <= piece.len));
        bytes = mu_span_skip(bytes, err < 0 ? 0 : used);
    }
    mu_relay_in_fini(&in);
    return err < 0 ? err : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_relay_hop_config terms = mu_relay_hop_config_defaults();
    struct world w = {0};
    struct mu_buf whole;
    struct mu_buf pieces;

    if (size < 1 || size > 65536) {
        return 0;
    }
    terms.reservations_max = 3;
    terms.reservation_ms = 1000;
    terms.circuits_max = 4;
    terms.circuits_peer_max = 2;
    terms.limit.data_bytes = 100;
    mu_relay_hop_init(&w.hop, &terms);
    mu_buf_init(&whole, 1 << 20);
    mu_buf_init(&pieces, 1 << 20);
    MU_ASSERT(read_all(mu_span(data + 1, size - 1), size, &w, &whole) ==
              read_all(mu_span(data + 1, size - 1), data[0] % 32 + 1, NULL, &pieces));
    MU_ASSERT(mu_span_eq(mu_buf_span(&whole), mu_buf_span(&pieces)));
    for (size_t i = 0; i < CIRCUITS; i++) {
        mu_relay_circuit_end(&w.circuits[i]);
    }
    MU_ASSERT(w.hop.circuit_count == 0);
    mu_relay_hop_fini(&w.hop);
    mu_buf_fini(&whole);
    mu_buf_fini(&pieces);
    return 0;
}

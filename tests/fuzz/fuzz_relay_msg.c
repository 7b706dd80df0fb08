/*
 * A message of a relay, of the side that the first byte says: what can be read can be said again
 * and is then read the same. Whatever it holds for a voucher is tried as one.
 */
#include <stdint.h>

#include "core/assert.h"
#include "crypto/relay_voucher.h"

#define ADDRS_MAX 64

static void say_again(enum mu_relay_side side, const struct mu_relay_msg *msg)
{
    struct mu_span addrs[ADDRS_MAX];
    struct mu_relay_out say = {
        .type = msg->type,
        .peer = msg->peer.len != 0 ? &msg->peer : NULL,
        .expire_s = msg->expire_s,
        .addrs = addrs,
        .voucher = msg->voucher,
        .limit = msg->limit,
        .status = (enum mu_relay_status)msg->status,
    };
    struct mu_span walk = msg->addrs;
    struct mu_relay_msg again;
    struct mu_relay_in in;
    struct mu_span bytes;
    struct mu_buf out;
    size_t used = 0;

    while (say.addr_count < ADDRS_MAX && mu_relay_next_addr(&walk, &addrs[say.addr_count])) {
        say.addr_count++;
    }
    mu_buf_init(&out, MU_RELAY_MSG_MAX + 2);
    mu_relay_in_init(&in);
    if (mu_relay_msg_encode(side, &say, &out) == 0) {
        MU_ASSERT(mu_relay_in_recv(&in, mu_buf_span(&out), &used, &bytes) == 1 && used == out.len);
        MU_ASSERT(mu_relay_msg_decode(side, bytes, &again) == 0);
        MU_ASSERT(again.type == msg->type && again.status == msg->status);
        MU_ASSERT(mu_peer_id_eq(&again.peer, &msg->peer));
        MU_ASSERT(again.limit.duration_s == msg->limit.duration_s);
        MU_ASSERT(again.limit.data_bytes == msg->limit.data_bytes);
        if (msg->expire_s != 0) {
            MU_ASSERT(again.reserved && again.expire_s == msg->expire_s);
            MU_ASSERT(mu_span_eq(again.voucher, msg->voucher));
            for (size_t i = 0; i < say.addr_count; i++) {
                MU_ASSERT(mu_relay_next_addr(&again.addrs, &walk) && mu_span_eq(walk, addrs[i]));
            }
        }
    }
    mu_relay_in_fini(&in);
    mu_buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_relay_voucher voucher;
    struct mu_relay_msg msg;
    enum mu_relay_side side;

    if (size == 0) {
        return 0;
    }
    side = data[0] % 2 == 0 ? MU_RELAY_HOP : MU_RELAY_STOP;
    (void)mu_relay_voucher_decode(mu_span(data + 1, size - 1), &voucher);
    (void)mu_relay_voucher_open(mu_span(data + 1, size - 1), &voucher);
    if (mu_relay_msg_decode(side, mu_span(data + 1, size - 1), &msg) == 0) {
        MU_ASSERT(mu_relay_status_text(msg.status)[0] != '\0');
        (void)mu_relay_voucher_open(msg.voucher, &voucher);
        say_again(side, &msg);
    }
    return 0;
}

/* A message of AutoNAT: what can be read can be said again and is then read the same. */
#include <stdint.h>

#include "codec/peer/autonat_msg.h"
#include "codec/peer/relay_msg.h"
#include "core/assert.h"

#define ADDRS_MAX 64

static int say_again(const struct mu_autonat_msg *msg, struct mu_buf *out)
{
    struct mu_span addrs[ADDRS_MAX];
    struct mu_span walk = msg->addrs;
    struct mu_peer_id id;
    size_t count = 0;

    if (msg->response) {
        return mu_autonat_answer((enum mu_autonat_status)msg->status, msg->text, msg->addr, out);
    }
    while (count < ADDRS_MAX && mu_autonat_next_addr(&walk, &addrs[count])) {
        count++;
    }
    return mu_peer_id_from_bytes(&id, msg->peer) != 0 ? -1 : mu_autonat_ask(&id, addrs, count, out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_autonat_msg msg;
    struct mu_autonat_msg again;
    struct mu_relay_in in;
    struct mu_span bytes;
    struct mu_buf out;
    size_t used = 0;

    if (mu_autonat_msg_decode(mu_span(data, size), &msg) != 0) {
        return 0;
    }
    mu_buf_init(&out, MU_AUTONAT_MSG_MAX + 2);
    mu_relay_in_init(&in);
    if (say_again(&msg, &out) == 0) {
        MU_ASSERT(mu_relay_in_recv(&in, mu_buf_span(&out), &used, &bytes) == 1 && used == out.len);
        MU_ASSERT(mu_autonat_msg_decode(bytes, &again) == 0);
        MU_ASSERT(again.response == msg.response && mu_span_eq(again.peer, msg.peer));
        if (msg.response) {
            MU_ASSERT(again.status == msg.status && mu_span_eq(again.text, msg.text));
            MU_ASSERT(mu_span_eq(again.addr, msg.addr));
        }
    }
    mu_relay_in_fini(&in);
    mu_buf_fini(&out);
    return 0;
}

/* Messages of peer routing: what peers they name, and that those can be written again. */
#include <stdint.h>

#include "codec/peer/kad_msg.h"
#include "core/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_kad_msg msg;
    struct mu_kad_peer peer;
    struct mu_kad_answer answer;
    struct mu_buf out;
    size_t kept = 0;
    size_t again = 0;
    size_t head = 0;

    if (size > MU_KAD_MSG_MAX / 4 || mu_kad_msg_decode(mu_span(data, size), &msg) != 0) {
        return 0;
    }
    mu_buf_init(&out, 2 * (size_t)MU_KAD_MSG_MAX);
    mu_kad_answer_init(&answer);
    while (mu_kad_next_peer(&msg.closer, &peer)) {
        struct mu_span addr;
        bool any = false;

        mu_kad_answer_peer(&answer, &peer.id);
        while (mu_kad_next_addr(&peer.addrs, &addr)) {
            mu_kad_answer_addr(&answer, addr);
            any = true;
        }
        mu_kad_answer_peer_done(&answer, MU_KAD_NOT_CONNECTED);
        kept += any ? 1 : 0;
    }
    if (mu_kad_answer_seal(&answer, MU_KAD_FIND_NODE, &out) == 0) {
        while ((out.data[out.head + head++] & 0x80) != 0) {
        }
        MU_ASSERT(mu_kad_msg_decode(mu_span_skip(mu_buf_span(&out), head), &msg) == 0);
        while (mu_kad_next_peer(&msg.closer, &peer)) {
            again++;
        }
        MU_ASSERT(again == kept);
    }
    mu_kad_answer_fini(&answer);
    mu_buf_fini(&out);
    return 0;
}

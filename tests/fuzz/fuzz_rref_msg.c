/* Messages, answers and tokens of remote references: what is read is written again the same. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "codec/rpc/rref_msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_span in = mu_span(data, size);
    struct mu_rref_answer answer;
    struct mu_rref_token token;
    struct mu_rref_msg msg;
    uint8_t out[MU_RREF_TOKEN_MAX];

    if (mu_rref_token_decode(in, &token) == 0 &&
        (mu_rref_token_encode(out, &token) != size || memcmp(out, data, size) != 0)) {
        abort();
    }
    if (mu_rref_answer_decode(in, &answer) == 0) {
        mu_rref_answer_encode(out, &answer);
        if (memcmp(out, data, MU_RREF_ANSWER_LEN) != 0) {
            abort();
        }
    }
    if (mu_rref_msg_decode(&in, &msg) == 0) {
        mu_rref_msg_encode(out, &msg);
        if (in.len != size - MU_RREF_MSG_LEN || memcmp(out, data, MU_RREF_MSG_LEN) != 0) {
            abort();
        }
    }
    return 0;
}

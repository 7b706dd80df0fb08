/* Messages of the native mode. What can be decoded is encoded again, to the same bytes. */
#include <stdlib.h>

#include "codec/average/native_msg.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_native_msg msg;
    struct mu_buf out;

    mu_buf_init(&out, (size_t)32 << 20);
    if (mu_native_msg_decode(mu_span(data, size), &msg) == 0 &&
        (mu_native_msg_encode(&msg, &out) != 0 ||
         !mu_span_eq(mu_buf_span(&out), mu_span(data, size)))) {
        abort();
    }
    mu_buf_fini(&out);
    return 0;
}

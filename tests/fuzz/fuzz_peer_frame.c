/* Calls between peers: what can be read can be said again and is then read the
 * same; what is cut off is never more than not there yet. */
#include <stdint.h>
#include <stdlib.h>

#include "codec/peer/frame.h"
#include "core/assert.h"

static void read_call(struct mu_span in)
{
    struct mu_call_frame f;
    struct mu_call_frame again;
    struct mu_buf out;
    size_t used;

    if (mu_call_frame_decode(in, &f, &used) != 1) {
        return;
    }
    MU_ASSERT(used <= in.len);
    mu_buf_init(&out, 2 * in.len + 64);
    MU_ASSERT(mu_call_frame_encode(&out, &f) == 0);
    MU_ASSERT(mu_call_frame_decode(mu_buf_span(&out), &again, &used) == 1 && used == out.len);
    MU_ASSERT(again.kind == f.kind && mu_span_eq(again.id, f.id) && mu_span_eq(again.data, f.data));
    mu_buf_fini(&out);
}

static void read_item(struct mu_span in)
{
    struct mu_span text;
    uint8_t marker;
    uint64_t len;

    if (mu_item_head_decode(in, &marker, &len) == 1 && len <= in.len - MU_ITEM_HEAD_LEN) {
        struct mu_span message = mu_span(in.data + MU_ITEM_HEAD_LEN, (size_t)len);

        if (marker == MU_ITEM_MARKER_ERROR) {
            (void)mu_item_error_decode(message, &text);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size == 0) {
        return 0;
    }
    if (data[0] % 2 == 0) {
        read_call(mu_span(data + 1, size - 1));
    } else {
        read_item(mu_span(data + 1, size - 1));
    }
    return 0;
}

/* The head of a safetensors file; what is accepted is written again and must mean the same. */
#include <stdlib.h>

#include "codec/bin/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_layout layout;
    struct mu_layout again;
    struct mu_buf out;
    struct mu_errmsg msg;
    size_t len;

    if (size < 16 || mu_safetensors_length(data, size, &len, &msg) != 0) {
        return 0;
    }
    mu_layout_init(&layout);
    mu_layout_init(&again);
    mu_buf_init(&out, (size_t)1 << 24);
    if (mu_safetensors_parse(mu_span(data + 8, len), size - 8 - len, &layout, NULL, &msg) == 0) {
        if (mu_safetensors_write(&layout, mu_span(NULL, 0), &out) != 0 ||
            mu_safetensors_parse(mu_span_skip(mu_buf_span(&out), 8), layout.bytes, &again, NULL,
                                 &msg) != 0 ||
            mu_layout_check(&layout, &again, &msg) != 0) {
            abort();
        }
    }
    mu_layout_fini(&layout);
    mu_layout_fini(&again);
    mu_buf_fini(&out);
    return 0;
}

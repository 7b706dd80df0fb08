/* The metadata of a hivemind trainer, beside three tensors: what is refused is refused in words. */
#include <stdint.h>

#include "codec/state/hm_trainer.h"
#include "core/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"tensor.0", "tensor.1", "tensor.2"};
    const uint64_t shape[] = {2};
    struct mu_errmsg why = {{0}};
    struct mu_layout layout;
    uint64_t epoch = 0;
    int err;

    mu_layout_init(&layout);
    for (size_t i = 0; i < 3; i++) {
        if (mu_layout_add(&layout, mu_span_str(names[i]), MU_DTYPE_F32, shape, 1) != 0) {
            mu_layout_fini(&layout);
            return 0;
        }
    }
    err = mu_hm_trainer_check(mu_span(data, size), &layout, &epoch, &why);
    MU_ASSERT((err == 0) == (why.text[0] == '\0'));
    mu_layout_fini(&layout);
    return 0;
}

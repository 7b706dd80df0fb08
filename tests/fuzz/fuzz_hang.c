/* What agents find in the store about a hang: any bytes at all. */
#include <string.h>

#include "codec/agent/hang.h"
#include "core/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_hang h;
    struct mu_hang again;
    struct mu_buf out;

    if (mu_hang_decode(mu_span(data, size), &h) != 0) {
        return 0;
    }
    /* What is understood is the same when it is said again. */
    mu_buf_init(&out, MU_HANG_BYTES_MAX);
    MU_ASSERT(mu_hang_encode(&out, &h) == 0);
    MU_ASSERT(mu_hang_decode(mu_buf_span(&out), &again) == 0);
    MU_ASSERT(h.number == again.number && h.over == again.over && h.since_s == again.since_s);
    MU_ASSERT(h.still_ms == again.still_ms && h.missing_count == again.missing_count);
    MU_ASSERT(h.split == again.split && h.blamed == again.blamed && h.action == again.action);
    MU_ASSERT(strcmp(h.missing, again.missing) == 0 && strcmp(h.text, again.text) == 0);
    MU_ASSERT(strcmp(h.stacks, again.stacks) == 0);
    mu_buf_fini(&out);
    mu_hang_fini(&h);
    mu_hang_fini(&again);
    return 0;
}

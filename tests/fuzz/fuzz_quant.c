/*
 * Values in int8 and fp8: u8 kind, u8 block, and bytes. As an encoding they are decoded; what comes
 * out is finite and can be encoded again. As values they are encoded, or refused if one is not
 * finite, and what was encoded can be decoded.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "codec/average/quant.h"

#define COUNT_MAX 4096

static void require(bool good)
{
    if (!good) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static float values[COUNT_MAX];
    static float residuals[COUNT_MAX];
    static uint8_t out[COUNT_MAX * 2];
    enum mu_quant kind;
    uint32_t block;
    size_t count;

    if (size < 2 || size > COUNT_MAX) {
        return 0;
    }
    kind = data[0] % 2 == 0 ? MU_QUANT_INT8 : MU_QUANT_FP8;
    block = data[1];
    data += 2;
    size -= 2;
    for (count = 0; count < size && mu_quant_len(block, count) != size; count++) {
    }
    if (mu_quant_decode(kind, block, mu_span(data, size), values, count) == 0) {
        for (size_t i = 0; i < count; i++) {
            require(values[i] - values[i] == 0);
        }
        require(mu_quant_encode(kind, block, values, NULL, count, out) == 0);
    }
    count = size / 4;
    memcpy(values, data, count * 4);
    memset(residuals, 0, sizeof(residuals));
    if (mu_quant_encode(kind, block, values, residuals, count, out) == 0) {
        require(mu_quant_decode(kind, block, mu_span(out, mu_quant_len(block, count)), values,
                                count) == 0);
    }
    return 0;
}

#include "codec/text/base58.h"

#include <muster/error.h>

#include "core/assert.h"

static const char alphabet[] = "123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";

size_t mu_base58_encode(char ret_text[MU_BASE58_TEXT_MAX + 1], struct mu_span in)
{
    uint8_t digits[MU_BASE58_TEXT_MAX] = {0}; /* the least significant first */
    size_t count = 0;
    size_t zeroes = 0;
    size_t len = 0;

    MU_ASSERT(in.len <= MU_BASE58_BYTES_MAX);
    while (zeroes < in.len && in.data[zeroes] == 0) {
        zeroes++;
    }
    for (size_t i = zeroes; i < in.len; i++) {
        unsigned carry = in.data[i];

        for (size_t j = 0; j < count || carry != 0; j++) {
            carry += (j < count ? digits[j] : 0u) * 256u;
            digits[j] = (uint8_t)(carry % 58);
            carry /= 58;
            count = j >= count ? j + 1 : count;
        }
    }
    for (; len < zeroes; len++) {
        ret_text[len] = alphabet[0];
    }
    while (count > 0) {
        ret_text[len++] = alphabet[digits[--count]];
    }
    ret_text[len] = '\0';
    return len;
}

int mu_base58_decode(uint8_t ret_bytes[MU_BASE58_BYTES_MAX], size_t *ret_len, struct mu_span text)
{
    uint8_t bytes[MU_BASE58_BYTES_MAX] = {0}; /* the least significant first */
    size_t count = 0;
    size_t zeroes = 0;

    while (zeroes < text.len && text.data[zeroes] == (uint8_t)alphabet[0]) {
        zeroes++;
    }
    for (size_t i = zeroes; i < text.len; i++) {
        const char *at = text.data[i] == 0 ? NULL : strchr(alphabet, text.data[i]);
        unsigned carry;

        if (at == NULL) {
            return MUSTER_EINVAL;
        }
        carry = (unsigned)(at - alphabet);
        for (size_t j = 0; j < count || carry != 0; j++) {
            if (j == MU_BASE58_BYTES_MAX) {
                return MUSTER_EINVAL;
            }
            carry += (j < count ? bytes[j] : 0u) * 58u;
            bytes[j] = (uint8_t)carry;
            carry >>= 8;
            count = j >= count ? j + 1 : count;
        }
    }
    if (zeroes + count > MU_BASE58_BYTES_MAX) {
        return MUSTER_EINVAL;
    }
    memset(ret_bytes, 0, zeroes);
    for (size_t i = 0; i < count; i++) {
        ret_bytes[zeroes + i] = bytes[count - 1 - i];
    }
    *ret_len = zeroes + count;
    return 0;
}

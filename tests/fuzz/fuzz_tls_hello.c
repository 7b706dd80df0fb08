/* Hellos of TLS, which may come in pieces: more bytes never make a verdict another one. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <muster/error.h>

#include "codec/lock/tls_hello.h"
#include "core/assert.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    int all = mu_tls_hello_scan(mu_span(data, size));

    MU_ASSERT(all == 0 || all == 1 || all == MUSTER_ECORRUPT);
    for (size_t i = 0; i < 8; i++) {
        size_t len = size * i / 8;
        uint8_t *part = malloc(len + 1); /* of its own, so that a sanitizer sees a byte too far */
        int some;

        MU_ASSERT(part != NULL);
        memcpy(part + 1, data, len);
        some = mu_tls_hello_scan(mu_span(part + 1, len));
        MU_ASSERT(some == 0 || some == all);
        free(part);
    }
    /* Who keeps as much as is taken learns by then what it is. */
    MU_ASSERT(all != 0 || size <= MU_TLS_HELLO_MAX + 4);
    return 0;
}

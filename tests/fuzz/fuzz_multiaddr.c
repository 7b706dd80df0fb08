/*
 * Addresses of peers: the first byte says whether what follows is text or bytes. Whatever is taken
 * comes back the same by way of the other form.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "codec/peer/multiaddr.h"
#include "core/assert.h"

static void try_bytes(struct mu_span in)
{
    char text[4 * MU_MULTIADDR_TEXT_MAX];
    struct mu_errmsg msg;
    struct mu_buf back;
    struct mu_buf again;
    struct mu_addr addr;
    struct mu_peer_id peer;

    (void)mu_multiaddr_dial(in, &addr, &peer);
    (void)mu_multiaddr_format(in, text, sizeof(text));
    MU_ASSERT(strlen(text) < sizeof(text));
    if (mu_multiaddr_check(in) != 0 || strlen(text) > MU_MULTIADDR_TEXT_MAX) {
        return;
    }
    mu_buf_init(&back, MU_MULTIADDR_MAX);
    mu_buf_init(&again, MU_MULTIADDR_MAX);
    /* A peer written as a CID becomes shorter, and a path may swallow what followed; after that
     * nothing changes any more. */
    if (mu_multiaddr_parse(&back, text, &msg) == 0) {
        (void)mu_multiaddr_format(mu_buf_span(&back), text, sizeof(text));
        MU_ASSERT(mu_multiaddr_parse(&again, text, &msg) == 0);
        MU_ASSERT(mu_span_eq(mu_buf_span(&back), mu_buf_span(&again)));
    }
    mu_buf_fini(&back);
    mu_buf_fini(&again);
}

static void try_text(const char *text)
{
    struct mu_errmsg msg = {{0}};
    struct mu_buf out;

    mu_buf_init(&out, MU_MULTIADDR_MAX);
    if (mu_multiaddr_parse(&out, text, &msg) == 0) {
        MU_ASSERT(mu_multiaddr_check(mu_buf_span(&out)) == 0);
        try_bytes(mu_buf_span(&out));
    } else {
        MU_ASSERT(out.len == 0 && msg.text[0] != '\0');
    }
    mu_buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text;

    if (size == 0) {
        return 0;
    }
    if (data[0] % 2 == 0) {
        try_bytes(mu_span(data + 1, size - 1));
        return 0;
    }
    text = malloc(size);
    memcpy(text, data + 1, size - 1);
    text[size - 1] = '\0';
    try_text(text);
    free(text);
    return 0;
}

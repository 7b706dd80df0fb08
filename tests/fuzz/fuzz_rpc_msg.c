/*
 * Messages, keys and cards of the RPC agent. The first byte chooses which; what is read must be
 * within what came, and be written again as the same bytes.
 */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "codec/rpc/msg.h"
#include "core/alloc.h"

static void check(bool condition)
{
    if (!condition) {
        abort();
    }
}

static void fuzz_message(struct mu_span in)
{
    struct mu_rpc_part *parts = NULL;
    size_t count = 0;
    struct mu_buf out;

    if (mu_rpc_msg_decode(in, &parts, &count) != 0) {
        return;
    }
    mu_buf_init(&out, SIZE_MAX / 4);
    check(mu_rpc_msg_head(&out, parts, count) == 0);
    for (size_t i = 0; i < count; i++) {
        check(mu_buf_append(&out, parts[i].data) == 0);
    }
    /* One part in memory has two ways to be written. */
    check(mu_span_eq(mu_buf_span(&out), in) || (in.data[0] == 1 && count == 1));
    mu_buf_fini(&out);
    mu_free(parts);
}

static void fuzz_key(struct mu_span in)
{
    struct mu_span rest = in;
    struct mu_rpc_key key;
    struct mu_buf out;

    if (mu_rpc_key_decode(&rest, &key) != 0) {
        return;
    }
    mu_buf_init(&out, SIZE_MAX / 4);
    check(mu_rpc_key_encode(&out, &key) == 0 && mu_buf_append(&out, rest) == 0);
    check(mu_span_eq(mu_buf_span(&out), in));
    mu_buf_fini(&out);
}

static void fuzz_card(struct mu_span in)
{
    struct mu_rpc_card card;
    struct mu_buf out;

    if (mu_rpc_card_decode(in, &card) != 0) {
        return;
    }
    mu_buf_init(&out, SIZE_MAX / 4);
    check(mu_rpc_card_encode(&out, &card) == 0);
    check(mu_span_eq(mu_buf_span(&out), in));
    mu_buf_fini(&out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_span in;

    if (size == 0) {
        return 0;
    }
    in = mu_span(data + 1, size - 1);
    switch (data[0] % 3) {
    case 0:
        fuzz_message(in);
        break;
    case 1:
        fuzz_key(in);
        break;
    case 2:
        fuzz_card(in);
        break;
    }
    return 0;
}

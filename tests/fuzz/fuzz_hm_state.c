/*
 * The stream of a state: messages, each with its length as a u16 before it. A state that is taken
 * is sent again, without losing anything, and taken again. Passed on, its bytes are the same.
 */
#include <stdlib.h>

#include "codec/state/hm_state.h"

static void send_again(const struct mu_hm_loaded *first)
{
    struct mu_hm_assembler_config limits = mu_hm_assembler_config_defaults();
    struct mu_span *values = calloc(first->layout.count, sizeof(*values));
    struct mu_hm_state_config config = {.layout = &first->layout,
                                        .values = values,
                                        .metadata = mu_buf_span(&first->metadata),
                                        .bfloat16_raw = true};
    struct mu_hm_assembler a;
    struct mu_hm_loaded second;
    struct mu_hm_chunker c;
    struct mu_hm_state s;
    struct mu_errmsg msg;
    struct mu_buf message;

    for (size_t i = 0; i < first->layout.count; i++) {
        values[i] = mu_hm_loaded_value(first, i);
    }
    if (mu_hm_state_init(&s, &config, &msg) != 0) {
        free(values); /* metadata that is no MessagePack */
        return;
    }
    limits.expected = &first->layout;
    mu_hm_assembler_init(&a, &limits);
    mu_hm_chunker_init(&c, &s);
    mu_buf_init(&message, (size_t)1 << 24);
    while (mu_hm_chunker_next(&c, &message) == 1) {
        if (mu_hm_assembler_take(&a, mu_buf_span(&message), &msg) != 0) {
            abort();
        }
        mu_buf_reset(&message);
    }
    if (mu_hm_assembler_end(&a, &second, &msg) != 0 ||
        !mu_span_eq(mu_buf_span(&first->metadata), mu_buf_span(&second.metadata))) {
        abort();
    }
    for (size_t i = 0; i < first->layout.count; i++) {
        if (!mu_span_eq(values[i], mu_hm_loaded_value(&second, i))) {
            abort();
        }
    }
    mu_buf_fini(&message);
    mu_hm_loaded_fini(&second);
    mu_hm_assembler_fini(&a);
    mu_hm_state_fini(&s);
    free(values);
}

static void check_passed(const struct mu_hm_loaded *kept, struct mu_span bytes)
{
    for (size_t i = 0; i < kept->layout.count; i++) {
        struct mu_span value = mu_hm_loaded_value(kept, i);

        if (value.len > bytes.len || !mu_span_eq(value, mu_span(bytes.data, value.len))) {
            abort();
        }
        bytes = mu_span_skip(bytes, value.len);
    }
    if (bytes.len != 0) {
        abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_hm_assembler_config config = mu_hm_assembler_config_defaults();
    struct mu_hm_assembler a;
    struct mu_hm_assembler passed;
    struct mu_hm_loaded loaded;
    struct mu_errmsg msg;
    struct mu_span in = mu_span(data, size);
    struct mu_buf bytes;
    uint64_t epoch;

    config.bytes_max = 1 << 20;
    config.tensors_max = 64;
    config.metadata_len_max = 4096;
    mu_hm_assembler_init(&a, &config);
    config.pass_on = true;
    mu_hm_assembler_init(&passed, &config);
    mu_buf_init(&bytes, (size_t)1 << 24);
    while (in.len >= 2) {
        size_t len = mu_get_u16(in.data);

        in = mu_span_skip(in, 2);
        len = len < in.len ? len : in.len;
        if (mu_hm_assembler_take(&a, mu_span(in.data, len), &msg) !=
            mu_hm_assembler_take(&passed, mu_span(in.data, len), &msg)) {
            abort();
        }
        if (passed.piece.bytes.len != 0 &&
            (passed.piece.offset != bytes.len || mu_buf_append(&bytes, passed.piece.bytes) != 0)) {
            abort();
        }
        in = mu_span_skip(in, len);
    }
    if (mu_hm_assembler_end(&a, &loaded, &msg) == 0) {
        (void)mu_hm_metadata_epoch(mu_buf_span(&loaded.metadata), &epoch);
        check_passed(&loaded, mu_buf_span(&bytes));
        send_again(&loaded);
        mu_hm_loaded_fini(&loaded);
    }
    mu_hm_assembler_fini(&a);
    mu_hm_assembler_fini(&passed);
    mu_buf_fini(&bytes);
    return 0;
}

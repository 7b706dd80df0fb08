/* A state on hivemind's wire: what a donor sends, and what a client makes of it. */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include "codec/state/hm_state.h"
#include "codec/bin/pb.h"
#include "core/alloc.h"
#include "core/prng.h"
#include "failheap.h"
#include "hex.h"

#define EPOCH_5                                                                                    \
    "\x81\xa5"                                                                                     \
    "epoch\x05"
#define MESSAGES_MAX  64
#define MESSAGE_BYTES 70000

/* A donor's tensors, and the messages that they become. */
struct donor {
    struct mu_layout layout;
    struct mu_span values[8];
    uint8_t *memory[8];
    struct mu_buf messages[MESSAGES_MAX];
    size_t count;
};

static void add_tensor(struct donor *d, const char *name, enum mu_dtype dtype, uint64_t a,
                       uint64_t b)
{
    uint64_t shape[] = {a, b};
    size_t i = d->layout.count;
    size_t len;

    assert_int_equal(mu_layout_add(&d->layout, mu_span_str(name), dtype, shape,
                                   a == 0   ? 0
                                   : b == 0 ? 1
                                            : 2),
                     0);
    len = (size_t)d->layout.tensors[i].len;
    d->memory[i] = malloc(len + 1);
    for (size_t k = 0; k < len; k++) {
        d->memory[i][k] = (uint8_t)(k * 7 + k / 251);
    }
    d->values[i] = mu_span(d->memory[i], len);
}

/* Fills a tensor of floats with small numbers. */
static void fill_floats(struct donor *d, size_t i)
{
    for (size_t k = 0; k < d->values[i].len / 4; k++) {
        float x = (float)(k % 16) / 4;

        memcpy(d->memory[i] + 4 * k, &x, 4);
    }
}

static void cut_as(struct donor *d, enum mu_hm_compression compression, bool raw)
{
    struct mu_hm_state_config config = {.layout = &d->layout,
                                        .values = d->values,
                                        .metadata = MU_SPAN_LIT(EPOCH_5),
                                        .compression = compression,
                                        .bfloat16_raw = raw};
    struct mu_hm_state s;
    struct mu_hm_chunker c;
    struct mu_errmsg msg;
    int got;

    assert_int_equal(mu_hm_state_init(&s, &config, &msg), 0);
    mu_hm_chunker_init(&c, &s);
    do {
        assert_true(d->count < MESSAGES_MAX);
        mu_buf_init(&d->messages[d->count], MESSAGE_BYTES);
        got = mu_hm_chunker_next(&c, &d->messages[d->count]);
        d->count += got == 1;
    } while (got == 1);
    assert_int_equal(got, 0);
    assert_int_equal(d->count, mu_hm_state_messages(&s));
    mu_hm_state_fini(&s);
}

static void cut(struct donor *d, enum mu_hm_compression compression)
{
    cut_as(d, compression, false);
}

static void open_donor(struct donor *d)
{
    memset(d, 0, sizeof(*d));
    mu_layout_init(&d->layout);
    add_tensor(d, "w", MU_DTYPE_F32, 200, 150); /* two chunks */
    fill_floats(d, 0);
    add_tensor(d, "step", MU_DTYPE_I64, 0, 0);
    add_tensor(d, "b", MU_DTYPE_BF16, 40000, 0); /* two chunks as float32 */
    add_tensor(d, "mask", MU_DTYPE_BOOL, 3, 0);
}

static void close_donor(struct donor *d)
{
    for (size_t i = 0; i < d->layout.count; i++) {
        free(d->memory[i]);
    }
    for (size_t i = 0; i < d->count; i++) {
        mu_buf_fini(&d->messages[i]);
    }
    mu_layout_fini(&d->layout);
}

static void begin(struct mu_hm_assembler *a, const struct mu_layout *expected)
{
    struct mu_hm_assembler_config config = mu_hm_assembler_config_defaults();

    config.expected = expected;
    mu_hm_assembler_init(a, &config);
}

static int take(struct mu_hm_assembler *a, const char *hex, struct mu_errmsg *msg)
{
    uint8_t bytes[512];

    return mu_hm_assembler_take(a, mu_span(bytes, hex_decode(bytes, sizeof(bytes), hex)), msg);
}

/* --- vectors ---------------------------------------------------------------------------------- */

#define FIRST                                                                                      \
    "0a0881a565706f636805 1221 0a100000803f000000c00000003f00004040 12020202 "                     \
    "2207666c6f61743332 3001"

static void test_hm_state_vector_of_the_first_message(void **state)
{
    static const float values[] = {1, -2, .5f, 3};
    struct donor d = {0};
    struct mu_hm_assembler a;
    struct mu_hm_loaded loaded;
    struct mu_errmsg msg;
    uint8_t wanted[64];
    size_t len = hex_decode(wanted, sizeof(wanted), FIRST);

    (void)state;
    mu_layout_init(&d.layout);
    add_tensor(&d, "w", MU_DTYPE_F32, 2, 2);
    memcpy(d.memory[0], values, sizeof(values));
    cut(&d, MU_HM_NONE);
    assert_int_equal(d.count, 1);
    assert_int_equal(d.messages[0].len, len);
    assert_memory_equal(mu_buf_span(&d.messages[0]).data, wanted, len);

    begin(&a, NULL);
    assert_int_equal(take(&a, FIRST, &msg), 0);
    assert_int_equal(mu_hm_assembler_end(&a, &loaded, &msg), 0);
    assert_int_equal(loaded.layout.count, 1);
    assert_memory_equal(mu_hm_loaded_value(&loaded, 0).data, values, sizeof(values));
    assert_span_text(mu_buf_span(&loaded.metadata), EPOCH_5);
    mu_hm_loaded_fini(&loaded);
    mu_hm_assembler_fini(&a);
    close_donor(&d);
}

static void test_hm_state_vector_of_chunks(void **state)
{
    struct donor d = {0};
    struct mu_hm_part part;

    (void)state;
    mu_layout_init(&d.layout);
    add_tensor(&d, "w", MU_DTYPE_F32, 20000, 0);
    cut(&d, MU_HM_NONE);
    assert_int_equal(d.count, 2);
    assert_int_equal(mu_hm_part_decode(mu_buf_span(&d.messages[0]), &part), 0);
    assert_true(part.chunks == 2 && part.rank == 1 && part.shape[0] == 20000);
    assert_span_text(part.dtype, "float32");
    assert_int_equal(part.buffer.len, 65536);
    assert_int_equal(mu_hm_part_decode(mu_buf_span(&d.messages[1]), &part), 0);
    assert_true(part.chunks == 0 && part.rank == 0 && part.dtype.len == 0 && part.tensor);
    assert_int_equal(part.buffer.len, 14464);
    assert_int_equal(part.metadata.len, 0);
    close_donor(&d);
}

/* --- there and back --------------------------------------------------------------------------- */

static void check_loaded(const struct donor *d, const struct mu_hm_loaded *l, bool exact)
{
    struct mu_errmsg msg;

    assert_int_equal(mu_layout_check(&d->layout, &l->layout, &msg), 0);
    assert_span_text(mu_buf_span(&l->metadata), EPOCH_5);
    for (size_t i = 0; i < d->layout.count; i++) {
        if (exact || d->layout.tensors[i].dtype == MU_DTYPE_I64) {
            assert_memory_equal(mu_hm_loaded_value(l, i).data, d->memory[i], d->values[i].len);
        }
    }
}

static void test_hm_state_comes_over_whole_in_every_encoding(void **state)
{
    (void)state;
    for (int c = 0; c <= MU_HM_COMPRESSION_LAST; c++) {
        struct mu_hm_assembler a;
        struct mu_hm_loaded loaded;
        struct mu_errmsg msg;
        struct donor d;

        open_donor(&d);
        cut(&d, (enum mu_hm_compression)c);
        begin(&a, &d.layout);
        for (size_t i = 0; i < d.count; i++) {
            assert_int_equal(mu_hm_assembler_take(&a, mu_buf_span(&d.messages[i]), &msg), 0);
        }
        assert_int_equal(mu_hm_assembler_end(&a, &loaded, &msg), 0);
        check_loaded(&d, &loaded, c == MU_HM_NONE || c == MU_HM_FLOAT16);
        mu_hm_loaded_fini(&loaded);
        mu_hm_assembler_fini(&a);
        close_donor(&d);
    }
}

/* Takes a donor's messages twice, to keep and to pass on: passed on, the bytes come in order, are
 * the same, and none are kept. Returns the length of the longest piece. */
static size_t check_passed_on(struct donor *d)
{
    struct mu_hm_assembler_config config = mu_hm_assembler_config_defaults();
    struct mu_hm_assembler kept;
    struct mu_hm_assembler passed;
    struct mu_hm_loaded whole;
    struct mu_hm_loaded loaded;
    struct mu_errmsg msg;
    struct mu_buf bytes;
    size_t longest = 0;

    begin(&kept, NULL);
    config.pass_on = true;
    mu_hm_assembler_init(&passed, &config);
    mu_buf_init(&bytes, 1 << 24);
    for (size_t i = 0; i < d->count; i++) {
        struct mu_span message = mu_buf_span(&d->messages[i]);

        assert_int_equal(mu_hm_assembler_take(&kept, message, &msg), 0);
        assert_int_equal(mu_hm_assembler_take(&passed, message, &msg), 0);
        if (passed.piece.bytes.len != 0) {
            assert_int_equal(passed.piece.offset, bytes.len);
            assert_int_equal(mu_buf_append(&bytes, passed.piece.bytes), 0);
            longest = passed.piece.bytes.len > longest ? passed.piece.bytes.len : longest;
        }
    }
    assert_int_equal(mu_hm_assembler_end(&kept, &whole, &msg), 0);
    assert_int_equal(mu_hm_assembler_end(&passed, &loaded, &msg), 0);
    assert_null(loaded.values);
    assert_int_equal(bytes.len, loaded.layout.bytes);
    assert_int_equal(mu_layout_check(&whole.layout, &loaded.layout, &msg), 0);
    for (size_t i = 0; i < whole.layout.count; i++) {
        assert_memory_equal(mu_buf_span(&bytes).data + whole.layout.tensors[i].offset,
                            mu_hm_loaded_value(&whole, i).data, whole.layout.tensors[i].len);
    }
    mu_buf_fini(&bytes);
    mu_hm_loaded_fini(&whole);
    mu_hm_loaded_fini(&loaded);
    mu_hm_assembler_fini(&kept);
    mu_hm_assembler_fini(&passed);
    return longest;
}

static void test_hm_state_is_passed_on_as_it_comes(void **state)
{
    (void)state;
    for (int c = 0; c <= MU_HM_COMPRESSION_LAST; c++) {
        struct donor d;

        open_donor(&d);
        cut(&d, (enum mu_hm_compression)c);
        (void)check_passed_on(&d);
        close_donor(&d);
    }
}

/* A further chunk of a tensor. */
static void put_chunk(struct mu_buf *out, struct mu_span buffer)
{
    struct mu_pb_out inner;
    struct mu_pb_out outer;
    struct mu_buf tensor;

    mu_buf_init(&tensor, MESSAGE_BYTES);
    mu_buf_init(out, MESSAGE_BYTES);
    inner = mu_pb_out(&tensor);
    mu_pb_put_bytes(&inner, 1, buffer);
    outer = mu_pb_out(out);
    mu_pb_put_bytes(&outer, 2, mu_buf_span(&tensor));
    assert_int_equal(inner.err + outer.err, 0);
    mu_buf_fini(&tensor);
}

/* Moves a byte from the second chunk to the third, so that an element lies in both. */
static void shift_a_byte(struct donor *d)
{
    struct mu_hm_part second;
    struct mu_hm_part third;
    struct mu_buf messages[2];
    struct mu_buf longer;

    assert_int_equal(mu_hm_part_decode(mu_buf_span(&d->messages[1]), &second), 0);
    assert_int_equal(mu_hm_part_decode(mu_buf_span(&d->messages[2]), &third), 0);
    mu_buf_init(&longer, MESSAGE_BYTES);
    assert_int_equal(mu_buf_append(&longer, mu_span_skip(second.buffer, second.buffer.len - 1)), 0);
    assert_int_equal(mu_buf_append(&longer, third.buffer), 0);
    put_chunk(&messages[0], mu_span(second.buffer.data, second.buffer.len - 1));
    put_chunk(&messages[1], mu_buf_span(&longer));
    mu_buf_fini(&longer);
    for (size_t i = 0; i < 2; i++) {
        mu_buf_fini(&d->messages[i + 1]);
        d->messages[i + 1] = messages[i];
    }
}

/* What is decoded element by element does not wait for the rest of its tensor. */
static void test_hm_state_is_decoded_as_it_comes(void **state)
{
    static const struct {
        enum mu_dtype dtype;
        enum mu_hm_compression compression;
        bool raw;
        size_t longest;
    } cases[] = {
        {MU_DTYPE_BF16, MU_HM_NONE, false, MU_HM_CHUNK / 2},
        {MU_DTYPE_BF16, MU_HM_NONE, true, MU_HM_CHUNK},
        {MU_DTYPE_F16, MU_HM_FLOAT16, false, MU_HM_CHUNK},
        {MU_DTYPE_F32, MU_HM_FLOAT16, false, MU_HM_CHUNK * 2},
        {MU_DTYPE_F64, MU_HM_FLOAT16, false, MU_HM_CHUNK * 4},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int shifted = 0; shifted < 2; shifted++) {
            struct donor d;

            memset(&d, 0, sizeof(d));
            mu_layout_init(&d.layout);
            add_tensor(&d, "w", cases[i].dtype, 500, 150);
            cut_as(&d, cases[i].compression, cases[i].raw);
            assert_in_range(d.count, 3, 5);
            if (shifted != 0) {
                shift_a_byte(&d);
            }
            assert_in_range(check_passed_on(&d), 1, cases[i].longest + 16);
            close_donor(&d);
        }
    }
}

/* Chunks that do not make up the tensor are found at the latest with the last. */
static void test_hm_state_elements_are_counted(void **state)
{
    struct mu_hm_assembler_config config = mu_hm_assembler_config_defaults();
    struct mu_hm_assembler a;
    struct mu_errmsg msg;
    struct mu_buf chunk;
    struct donor d;

    (void)state;
    memset(&d, 0, sizeof(d));
    mu_layout_init(&d.layout);
    add_tensor(&d, "w", MU_DTYPE_BF16, 40000, 0); /* three chunks as float32 */
    cut(&d, MU_HM_NONE);
    config.pass_on = true;
    for (size_t len = 1; len < 65536; len += 65534) { /* too few bytes, and too many */
        mu_hm_assembler_init(&a, &config);
        assert_int_equal(mu_hm_assembler_take(&a, mu_buf_span(&d.messages[0]), &msg), 0);
        assert_int_equal(mu_hm_assembler_take(&a, mu_buf_span(&d.messages[1]), &msg), 0);
        put_chunk(&chunk, mu_span(d.memory[0], len));
        assert_int_equal(mu_hm_assembler_take(&a, mu_buf_span(&chunk), &msg), MUSTER_EPROTO);
        assert_int_equal(a.piece.bytes.len, 0);
        mu_buf_fini(&chunk);
        mu_hm_assembler_fini(&a);
    }
    close_donor(&d);
}

/* Of a message that is wrong nothing is passed on; nor is a tensor held that is too long. */
static void test_hm_state_passes_nothing_wrong_on(void **state)
{
    struct mu_hm_assembler_config config = mu_hm_assembler_config_defaults();
    struct mu_hm_assembler a;
    struct mu_errmsg msg;
    struct donor d;

    (void)state;
    open_donor(&d);
    cut(&d, MU_HM_NONE);
    config.pass_on = true;
    mu_hm_assembler_init(&a, &config);
    assert_int_equal(mu_hm_assembler_take(&a, mu_buf_span(&d.messages[0]), &msg), 0);
    assert_int_equal(a.piece.bytes.len, MU_HM_CHUNK);
    assert_int_equal(mu_hm_assembler_take(&a, mu_buf_span(&d.messages[2]), &msg), MUSTER_EPROTO);
    assert_int_equal(a.piece.bytes.len, 0);
    mu_hm_assembler_fini(&a);

    close_donor(&d);

    open_donor(&d);
    cut(&d, MU_HM_BLOCKWISE_8BIT);
    config.encoded_max = 10000; /* less than the first tensor's 30,000 indices */
    mu_hm_assembler_init(&a, &config);
    assert_int_equal(mu_hm_assembler_take(&a, mu_buf_span(&d.messages[0]), &msg), MUSTER_ELIMIT);
    assert_non_null(strstr(msg.text, "tensor 0"));
    mu_hm_assembler_fini(&a);
    close_donor(&d);
}

/* Wherever it ends, it is said that something is missing, and nothing is given out. */
static void test_hm_state_that_ends_early_is_no_state(void **state)
{
    struct mu_hm_assembler a;
    struct mu_hm_loaded loaded;
    struct mu_errmsg msg;
    struct donor d;

    (void)state;
    open_donor(&d);
    cut(&d, MU_HM_NONE);
    assert_int_equal(d.count, 2 + 1 + 3 + 1);
    for (size_t n = 0; n < d.count; n++) {
        static const char *const words[] = {
            "does not share",
            "tensor 0, 'w' has 1 of 2",
            "without tensor 1, 'step'",
            "without tensor 2, 'b'",
            "tensor 2, 'b' has 1 of 3",
            "tensor 2, 'b' has 2 of 3",
            "3 of 4 tensors, without tensor 3, 'mask'",
        };
        char text[sizeof(msg.text)];

        begin(&a, &d.layout);
        for (size_t i = 0; i < n; i++) {
            assert_int_equal(mu_hm_assembler_take(&a, mu_buf_span(&d.messages[i]), &msg), 0);
        }
        assert_int_equal(mu_hm_assembler_end(&a, &loaded, &msg),
                         n == 0 ? MUSTER_EREFUSED : MUSTER_EPROTO);
        for (size_t i = 0; i < sizeof(text); i++) {
            text[i] = msg.text[i] == '"' ? '\'' : msg.text[i];
        }
        if (strstr(text, words[n]) == NULL) {
            fail_msg("%zu messages: %s", n, text);
        }
        mu_hm_assembler_fini(&a);
    }
    close_donor(&d);
}

static void test_hm_state_without_an_expected_layout_counts_chunks(void **state)
{
    struct mu_hm_assembler a;
    struct mu_hm_loaded loaded;
    struct mu_errmsg msg;
    struct donor d;

    (void)state;
    open_donor(&d);
    cut(&d, MU_HM_NONE);
    begin(&a, NULL);
    assert_int_equal(mu_hm_assembler_take(&a, mu_buf_span(&d.messages[0]), &msg), 0);
    /* The second chunk is lost: the next tensor comes too early. */
    assert_int_equal(mu_hm_assembler_take(&a, mu_buf_span(&d.messages[2]), &msg), MUSTER_EPROTO);
    assert_non_null(strstr(msg.text, "1 of 2 chunks"));
    /* It stays so. */
    assert_int_equal(mu_hm_assembler_take(&a, mu_buf_span(&d.messages[1]), &msg), MUSTER_EPROTO);
    assert_int_equal(mu_hm_assembler_end(&a, &loaded, &msg), MUSTER_EPROTO);
    mu_hm_assembler_fini(&a);
    close_donor(&d);
}

/* What one donor has sent is gone when the next begins, its metadata too. */
static void test_hm_state_keeps_nothing_of_a_donor_that_failed(void **state)
{
    struct mu_hm_assembler a;
    struct mu_hm_loaded loaded;
    struct mu_errmsg msg;
    struct donor d;

    (void)state;
    open_donor(&d);
    cut(&d, MU_HM_NONE);
    begin(&a, NULL);
    assert_int_equal(mu_hm_assembler_take(&a, mu_buf_span(&d.messages[0]), &msg), 0);
    mu_hm_assembler_reset(&a);
    assert_int_equal(mu_hm_assembler_end(&a, &loaded, &msg), MUSTER_EREFUSED);
    assert_int_equal(mu_hm_assembler_take(&a, mu_buf_span(&d.messages[2]), &msg), 0);
    assert_int_equal(mu_hm_assembler_end(&a, &loaded, &msg), MUSTER_EPROTO);
    assert_non_null(strstr(msg.text, "no metadata"));
    mu_hm_assembler_fini(&a);
    close_donor(&d);
}

/* --- what is not believed --------------------------------------------------------------------- */

static void test_hm_state_refuses_messages_that_cannot_be(void **state)
{
    static const struct {
        const char *hex;
        int err;
        const char *words;
    } cases[] = {
        {"0a", MUSTER_EPROTO, "message 1"},
        {"1003", MUSTER_EPROTO, ""},
        {"12030a0161", MUSTER_EPROTO, "belongs to no tensor"},
        {"1200", MUSTER_EPROTO, "belongs to no tensor"},
        /* An unknown type; a type of safetensors that PyTorch has not. */
        {"1205 2203 666f6f", MUSTER_ENOTSUP, "foo"},
        {"1204 2202 4634", MUSTER_ENOTSUP, "F4"},
        /* uint8 [1], by compression 9. */
        {"1211 0a0107 120101 2205 75696e7438 2809 3001", MUSTER_ENOTSUP, "encoding 9"},
        /* uint8 as FLOAT16. */
        {"1211 0a0107 120101 2205 75696e7438 2802 3001", MUSTER_ENOTSUP, "U8 as FLOAT16"},
        /* uint8 [2], one byte in one chunk; then three bytes; then bytes, but no chunks. */
        {"120f 0a0107 120102 2205 75696e7438 3001", MUSTER_EPROTO, "1 bytes where"},
        {"1211 0a03070707 120102 2205 75696e7438 3001", MUSTER_EPROTO, "more than the 2 bytes"},
        {"120d 0a0107 120101 2205 75696e7438", MUSTER_EPROTO, "1 bytes in 0 chunks"},
        {"1218 0a0107 120101 2205 75696e7438 30ffffffffffffffffff01", MUSTER_EPROTO, "chunks"},
        /* A dimension of 2^32. */
        {"1213 0a0107 1205 8080808010 2205 75696e7438 3001", MUSTER_EPROTO, ""},
        /* 2^31 times 2^31 times 8. */
        {"1216 0a0107 120b 8080808008808080800808 2204 626f6f6c", MUSTER_EPROTO,
         "impossibly large"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_hm_assembler a;
        struct mu_errmsg msg = {0};
        int err;

        begin(&a, NULL);
        err = take(&a, cases[i].hex, &msg);
        if (err != cases[i].err || strstr(msg.text, cases[i].words) == NULL ||
            msg.text[0] == '\0') {
            fail_msg("case %zu: %d %s", i, err, msg.text);
        }
        mu_hm_assembler_fini(&a);
    }
}

static void test_hm_state_checks_what_was_expected_before_the_bytes(void **state)
{
    struct mu_hm_assembler a;
    struct mu_layout expected;
    struct mu_errmsg msg;
    uint64_t shape[] = {2, 3};

    (void)state;
    mu_layout_init(&expected);
    assert_int_equal(mu_layout_add(&expected, MU_SPAN_LIT("w"), MU_DTYPE_F32, shape, 2), 0);
    begin(&a, &expected);
    assert_int_equal(take(&a, FIRST, &msg), MUSTER_EINVAL);
    assert_string_equal(msg.text, "tensor 0, \"w\" is F32[2,2], but F32[2,3] was expected");
    mu_hm_assembler_fini(&a);
    mu_layout_fini(&expected);
    /* One too many. */
    shape[1] = 2;
    assert_int_equal(mu_layout_add(&expected, MU_SPAN_LIT("w"), MU_DTYPE_F32, shape, 2), 0);
    begin(&a, &expected);
    assert_int_equal(take(&a, FIRST, &msg), 0);
    assert_int_equal(take(&a, FIRST, &msg), MUSTER_EINVAL);
    assert_non_null(strstr(msg.text, "more tensors than the 1"));
    mu_hm_assembler_fini(&a);
    mu_layout_fini(&expected);
}

static void test_hm_state_has_limits(void **state)
{
    struct mu_hm_assembler_config config = mu_hm_assembler_config_defaults();
    struct mu_hm_assembler a;
    struct mu_errmsg msg;

    (void)state;
    config.bytes_max = 31;
    config.tensors_max = 1;
    mu_hm_assembler_init(&a, &config);
    assert_int_equal(take(&a, FIRST, &msg), 0);
    assert_int_equal(take(&a, FIRST, &msg), MUSTER_ELIMIT);
    mu_hm_assembler_reset(&a);
    a.config.tensors_max = 2;
    assert_int_equal(take(&a, FIRST, &msg), 0);
    assert_int_equal(take(&a, FIRST, &msg), MUSTER_ELIMIT);
    assert_non_null(strstr(msg.text, "31 bytes"));
    mu_hm_assembler_fini(&a);
    config.metadata_len_max = 7;
    mu_hm_assembler_init(&a, &config);
    assert_int_equal(take(&a, FIRST, &msg), MUSTER_ELIMIT);
    mu_hm_assembler_fini(&a);
    /* float16 [2^32 - 1, 0] as MEANSTD_16BIT: nothing, with 32 GiB about it. */
    mu_hm_assembler_init(&a, &config);
    assert_int_equal(take(&a, "1213 1206 ffffffff0f00 2207 666c6f61743136 2801", &msg),
                     MUSTER_ELIMIT);
    mu_hm_assembler_fini(&a);
}

static void test_hm_state_metadata_alone_is_no_state(void **state)
{
    struct mu_hm_assembler a;
    struct mu_hm_loaded loaded;
    struct mu_errmsg msg;

    (void)state;
    begin(&a, NULL);
    assert_int_equal(take(&a, "0a0881a565706f636805", &msg), 0);
    assert_int_equal(mu_hm_assembler_end(&a, &loaded, &msg), MUSTER_EPROTO);
    assert_non_null(strstr(msg.text, "metadata, but no tensor"));
    mu_hm_assembler_fini(&a);
}

static void test_hm_state_metadata_tells_an_epoch(void **state)
{
    uint64_t epoch = 0;

    (void)state;
    assert_int_equal(mu_hm_metadata_epoch(MU_SPAN_LIT(EPOCH_5), &epoch), 0);
    assert_int_equal(epoch, 5);
    assert_int_equal(mu_hm_metadata_epoch(MU_SPAN_LIT("\x82\xa1"
                                                      "a\x93\x01\x02\x03\xa5"
                                                      "epoch\xcd\x0f\x5d"),
                                          &epoch),
                     0);
    assert_int_equal(epoch, 3933);
    /* None, none that is a number, no map, and one that is cut off. */
    assert_int_equal(mu_hm_metadata_epoch(MU_SPAN_LIT("\x80"), &epoch), MUSTER_ENOENT);
    assert_int_equal(mu_hm_metadata_epoch(MU_SPAN_LIT("\x81\xa5"
                                                      "epoch\xff"),
                                          &epoch),
                     MUSTER_ENOENT);
    assert_int_equal(mu_hm_metadata_epoch(MU_SPAN_LIT("\x05"), &epoch), MUSTER_EPROTO);
    assert_int_equal(mu_hm_metadata_epoch(MU_SPAN_LIT("\x81\xa5"
                                                      "epoch"),
                                          &epoch),
                     MUSTER_EPROTO);
    assert_int_equal(epoch, 3933);
}

static void test_hm_state_metadata_is_made_to_tell_an_epoch(void **state)
{
    struct mu_buf out;
    uint64_t epoch;

    (void)state;
    mu_buf_init(&out, 64);
    assert_int_equal(mu_hm_metadata_tell_epoch((struct mu_span){0}, 300, &out), 0);
    assert_int_equal(mu_hm_metadata_epoch(mu_buf_span(&out), &epoch), 0);
    assert_int_equal(epoch, 300);
    mu_buf_reset(&out);
    assert_int_equal(mu_hm_metadata_tell_epoch(MU_SPAN_LIT("\x81\xa2lr\x07"), 6, &out), 0);
    assert_true(mu_span_eq(mu_buf_span(&out), MU_SPAN_LIT("\x82\xa5"
                                                          "epoch\x06\xa2lr\x07")));
    mu_buf_reset(&out);
    assert_int_equal(mu_hm_metadata_tell_epoch(MU_SPAN_LIT(EPOCH_5), 6, &out), 0);
    assert_true(mu_span_eq(mu_buf_span(&out), MU_SPAN_LIT(EPOCH_5)));
    mu_buf_reset(&out);
    assert_int_equal(mu_hm_metadata_tell_epoch(MU_SPAN_LIT("\x05"), 6, &out), 0);
    assert_true(mu_span_eq(mu_buf_span(&out), MU_SPAN_LIT("\x05")));
    assert_int_equal(mu_hm_metadata_tell_epoch(MU_SPAN_LIT("\x81\xa2l"), 6, &out), MUSTER_EPROTO);
    mu_buf_fini(&out);
}

static void test_hm_state_that_nobody_could_read_is_not_offered(void **state)
{
    struct mu_hm_state_config config = {.metadata = MU_SPAN_LIT(EPOCH_5)};
    struct mu_hm_state s;
    struct mu_errmsg msg;
    struct donor d;

    (void)state;
    open_donor(&d);
    config.layout = &d.layout;
    config.values = d.values;
    config.metadata = (struct mu_span){0};
    assert_int_equal(mu_hm_state_init(&s, &config, &msg), MUSTER_EINVAL);
    config.metadata = MU_SPAN_LIT(EPOCH_5);
    d.values[1].len--;
    assert_int_equal(mu_hm_state_init(&s, &config, &msg), MUSTER_EINVAL);
    assert_non_null(strstr(msg.text, "step"));
    close_donor(&d);
    config.layout = &d.layout;
    assert_int_equal(mu_hm_state_init(&s, &config, &msg), MUSTER_EINVAL);
    assert_int_equal(mu_hm_request_decode(mu_span(NULL, 0)), 0);
    assert_int_equal(mu_hm_request_decode(MU_SPAN_LIT("\x0a")), MUSTER_EPROTO);
}

/* Bytes changed anywhere give an error or a state, and never more memory than the limit. */
static void test_hm_state_survives_garbage(void **state)
{
    struct mu_prng p;
    struct donor d;

    (void)state;
    mu_prng_seed(&p, 88);
    open_donor(&d);
    cut(&d, MU_HM_UNIFORM_8BIT);
    for (int round = 0; round < 3000; round++) {
        struct mu_hm_assembler_config config = mu_hm_assembler_config_defaults();
        struct mu_hm_assembler a;
        struct mu_hm_loaded loaded;
        struct mu_errmsg msg;
        size_t wrong = mu_prng_below(&p, d.count);

        config.bytes_max = 1 << 20;
        mu_hm_assembler_init(&a, &config);
        for (size_t i = 0; i < d.count; i++) {
            struct mu_span whole = mu_buf_span(&d.messages[i]);
            struct mu_buf copy;

            mu_buf_init(&copy, MESSAGE_BYTES);
            assert_int_equal(mu_buf_append(&copy, whole), 0);
            if (i == wrong) {
                size_t near = mu_prng_below(&p, whole.len < 64 ? whole.len : 64);

                copy.data[copy.head + (mu_prng_chance(&p, 500000) ? near : whole.len - 1 - near)] ^=
                    (uint8_t)(1u << mu_prng_below(&p, 8));
            }
            (void)mu_hm_assembler_take(&a, mu_buf_span(&copy), &msg);
            mu_buf_fini(&copy);
        }
        if (mu_hm_assembler_end(&a, &loaded, &msg) == 0) {
            mu_hm_loaded_fini(&loaded);
        }
        mu_hm_assembler_fini(&a);
    }
    close_donor(&d);
}

static void test_hm_state_survives_a_failing_heap(void **state)
{
    bool fired = true;

    (void)state;
    for (long nth = 0; fired; nth++) {
        struct mu_hm_state_config config = {.metadata = MU_SPAN_LIT(EPOCH_5),
                                            .compression = MU_HM_QUANTILE_8BIT};
        struct mu_hm_state s = {0};
        struct mu_hm_chunker c;
        struct mu_hm_assembler a;
        struct mu_hm_loaded loaded;
        struct mu_errmsg msg;
        struct mu_buf message;
        struct donor d;
        int err;

        open_donor(&d);
        config.layout = &d.layout;
        config.values = d.values;
        begin(&a, &d.layout);
        mu_buf_init(&message, MESSAGE_BYTES);
        failheap_arm(nth);
        err = mu_hm_state_init(&s, &config, &msg);
        if (err == 0) {
            mu_hm_chunker_init(&c, &s);
            while ((err = mu_hm_chunker_next(&c, &message)) == 1) {
                err = mu_hm_assembler_take(&a, mu_buf_span(&message), &msg);
                if (err != 0) {
                    break;
                }
                mu_buf_fini(&message);
                mu_buf_init(&message, MESSAGE_BYTES);
            }
            mu_hm_state_fini(&s);
        }
        if (err == 0) {
            err = mu_hm_assembler_end(&a, &loaded, &msg);
        }
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
        if (err == 0) {
            mu_hm_loaded_fini(&loaded);
        }
        mu_hm_assembler_fini(&a);
        mu_buf_fini(&message);
        close_donor(&d);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hm_state_vector_of_the_first_message),
        cmocka_unit_test(test_hm_state_vector_of_chunks),
        cmocka_unit_test(test_hm_state_comes_over_whole_in_every_encoding),
        cmocka_unit_test(test_hm_state_is_passed_on_as_it_comes),
        cmocka_unit_test(test_hm_state_is_decoded_as_it_comes),
        cmocka_unit_test(test_hm_state_elements_are_counted),
        cmocka_unit_test(test_hm_state_passes_nothing_wrong_on),
        cmocka_unit_test(test_hm_state_that_ends_early_is_no_state),
        cmocka_unit_test(test_hm_state_without_an_expected_layout_counts_chunks),
        cmocka_unit_test(test_hm_state_keeps_nothing_of_a_donor_that_failed),
        cmocka_unit_test(test_hm_state_refuses_messages_that_cannot_be),
        cmocka_unit_test(test_hm_state_checks_what_was_expected_before_the_bytes),
        cmocka_unit_test(test_hm_state_has_limits),
        cmocka_unit_test(test_hm_state_metadata_alone_is_no_state),
        cmocka_unit_test(test_hm_state_metadata_tells_an_epoch),
        cmocka_unit_test(test_hm_state_metadata_is_made_to_tell_an_epoch),
        cmocka_unit_test(test_hm_state_that_nobody_could_read_is_not_offered),
        cmocka_unit_test(test_hm_state_survives_garbage),
        cmocka_unit_test(test_hm_state_survives_a_failing_heap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

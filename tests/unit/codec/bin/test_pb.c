/* Protocol buffers: bytes of known messages, every cut of them, and what is refused. */
#include "unit.h"

#include <muster/error.h>

#include "codec/bin/pb.h"
#include "codec/bin/uvarint.h"
#include "failheap.h"
#include "hex.h"

static void test_pb_writes_the_bytes_of_the_format(void **unused)
{
    static const char want[] = "0896 01"
                               "1203 616263"
                               "1a00"
                               "21 0000600aea8dd841"
                               "f8ffffff0f 01";
    struct mu_buf buf;
    struct mu_pb_out out;
    uint8_t bytes[64];
    size_t len = hex_decode(bytes, sizeof(bytes), want);

    (void)unused;
    mu_buf_init(&buf, 64);
    out = mu_pb_out(&buf);
    mu_pb_put_varint(&out, 1, 150);
    mu_pb_put_bytes(&out, 2, MU_SPAN_LIT("abc"));
    mu_pb_put_bytes(&out, 3, (struct mu_span){0});
    mu_pb_put_double(&out, 4, 1647814697.5);
    mu_pb_put_varint(&out, 0x1fffffff, 1);
    assert_int_equal(out.err, 0);
    assert_int_equal(buf.len, len);
    assert_memory_equal(mu_buf_span(&buf).data, bytes, len);
    assert_int_equal(mu_pb_bytes_len(2, 3), 5);
    mu_buf_fini(&buf);
}

static void test_pb_reads_every_kind_of_field(void **unused)
{
    uint8_t bytes[64];
    size_t len = hex_decode(bytes, sizeof(bytes),
                            "08ffffffffffffffffff01 1203616263 210000600aea8dd841 2d04030201");
    struct mu_span in = mu_span(bytes, len);
    struct mu_pb_field f;

    (void)unused;
    assert_int_equal(mu_pb_next(&in, &f), 1);
    assert_true(f.number == 1 && f.type == MU_PB_VARINT && f.value == UINT64_MAX);
    assert_int_equal(mu_pb_next(&in, &f), 1);
    assert_true(f.number == 2 && f.type == MU_PB_BYTES);
    assert_span_text(f.bytes, "abc");
    assert_int_equal(mu_pb_next(&in, &f), 1);
    assert_true(f.number == 4 && f.type == MU_PB_FIXED64);
    assert_true(mu_pb_double(&f) == 1647814697.5);
    assert_int_equal(mu_pb_next(&in, &f), 1);
    assert_true(f.number == 5 && f.type == MU_PB_FIXED32 && f.value == 0x01020304);
    assert_int_equal(mu_pb_next(&in, &f), 0);
}

/* Meets NUMBER_MAX of codec/bin/pb.c, and VARINT_LEN_MAX of codec/bin/pb.c. */
static void test_pb_reads_numbers_up_to_their_end(void **unused)
{
    static const struct {
        const char *hex;
        int want;
    } cases[] = {
        {"f8ffffff0f 01", 1},                       /* field 2^29 - 1 */
        {"808080 8010 01", MUSTER_EPROTO},          /* field 2^29 */
        {"08 ffffffffffffffffff01", 1},             /* 2^64 - 1, in ten bytes */
        {"08 ffffffffffffffffff02", MUSTER_EPROTO}, /* more */
        {"08 8080808080808080808000", MUSTER_EPROTO},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t bytes[32];
        struct mu_span in = mu_span(bytes, hex_decode(bytes, sizeof(bytes), cases[i].hex));
        struct mu_pb_field f;

        assert_int_equal(mu_pb_next(&in, &f), cases[i].want);
    }
}

static void test_pb_refuses_what_is_cut_off_or_unknown(void **unused)
{
    static const char *const texts[] = {
        "08",                       /* no value */
        "0880",                     /* half of one */
        "08ffffffffffffffffffff01", /* more than 64 bits */
        "08ffffffffffffffffff02",
        "1203 6162",     /* a byte short */
        "12ffffffff0f",  /* far beyond the end */
        "21 0000000000", /* half a double */
        "2d 000000",
        "00 00", /* field number zero */
        "0b",    /* a group */
        "0c",
        "0e", /* no such type */
        "0f",
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        uint8_t bytes[32];
        size_t len = hex_decode(bytes, sizeof(bytes), texts[i]);
        struct mu_span in = mu_span(bytes, len);
        struct mu_pb_field f;

        assert_int_equal(mu_pb_next(&in, &f), MUSTER_EPROTO);
        assert_int_equal(in.len, len);
    }
}

static void test_pb_keeps_the_first_error_of_a_message(void **unused)
{
    struct mu_buf buf;
    struct mu_pb_out out;

    (void)unused;
    mu_buf_init(&buf, 4);
    out = mu_pb_out(&buf);
    mu_pb_put_bytes(&out, 1, MU_SPAN_LIT("abc"));
    assert_int_equal(out.err, MUSTER_ELIMIT);
    mu_pb_put_varint(&out, 2, 1);
    assert_int_equal(out.err, MUSTER_ELIMIT);
    mu_buf_fini(&buf);

    mu_buf_init(&buf, 64);
    out = mu_pb_out(&buf);
    failheap_arm(0);
    mu_pb_put_varint(&out, 2, 1);
    failheap_disarm();
    assert_int_equal(out.err, MUSTER_ENOMEM);
    mu_buf_fini(&buf);
}

static void test_uvarint_is_so_long_and_no_longer(void **state)
{
    uint8_t bytes[10];
    uint64_t value;
    size_t len;

    (void)state;
    assert_int_equal(mu_uvarint_put(bytes, MU_UVARINT_MAX), MU_UVARINT_LEN_MAX);
    assert_int_equal(mu_uvarint_get(mu_span(bytes, MU_UVARINT_LEN_MAX), &len, &value), 0);
    assert_int_equal(len, MU_UVARINT_LEN_MAX);
    assert_true(value == MU_UVARINT_MAX);
    assert_int_equal(mu_uvarint_put(bytes, MU_UVARINT_MAX + 1), MU_UVARINT_LEN_MAX + 1);
    assert_int_equal(mu_uvarint_get(mu_span(bytes, sizeof(bytes)), &len, &value), MUSTER_EPROTO);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pb_writes_the_bytes_of_the_format),
        cmocka_unit_test(test_pb_reads_every_kind_of_field),
        cmocka_unit_test(test_pb_reads_numbers_up_to_their_end),
        cmocka_unit_test(test_pb_refuses_what_is_cut_off_or_unknown),
        cmocka_unit_test(test_pb_keeps_the_first_error_of_a_message),
        cmocka_unit_test(test_uvarint_is_so_long_and_no_longer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

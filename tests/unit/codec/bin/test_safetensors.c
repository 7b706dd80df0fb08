#include "codec/bin/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "core/alloc.h"
#include "failheap.h"

static int parse(const char *json, uint64_t data_len, struct mu_layout *l, struct mu_errmsg *msg)
{
    mu_layout_init(l);
    return mu_safetensors_parse(mu_span_str(json), data_len, l, NULL, msg);
}

/* A whole file, by hand: 8 bytes of length, 64 of JSON with its padding, 16 of data. */
static void test_file_is_read_and_written_to_the_byte(void **state)
{
    static const char head[] = "\x40\0\0\0\0\0\0\0"
                               "{\"w\":{\"dtype\":\"F32\",\"shape\":[2,2],"
                               "\"data_offsets\":[0,16]}}       ";
    struct mu_layout l;
    struct mu_errmsg msg;
    struct mu_buf out;
    size_t len;

    (void)state;
    assert_int_equal(sizeof(head) - 1, 72);
    assert_int_equal(mu_safetensors_length((const uint8_t *)head, 72 + 16, &len, &msg), 0);
    assert_int_equal(len, 64);
    mu_layout_init(&l);
    assert_int_equal(mu_safetensors_parse(mu_span(head + 8, len), 16, &l, NULL, &msg), 0);
    assert_int_equal(l.count, 1);
    assert_int_equal(l.bytes, 16);
    assert_int_equal(l.tensors[0].dtype, MU_DTYPE_F32);
    assert_int_equal(l.tensors[0].rank, 2);
    assert_int_equal(mu_layout_shape(&l, 0)[1], 2);
    assert_int_equal(mu_layout_elements(&l, 0), 4);

    mu_buf_init(&out, 1000);
    assert_int_equal(mu_safetensors_write(&l, mu_span(NULL, 0), &out), 0);
    assert_int_equal(out.len, 72);
    assert_memory_equal(mu_buf_span(&out).data, head, 72);
    mu_buf_fini(&out);
    mu_layout_fini(&l);
}

static void test_every_dtype_goes_round(void **state)
{
    static const uint64_t shape[] = {3, 8};
    struct mu_layout l;
    struct mu_layout back;
    struct mu_errmsg msg;
    struct mu_buf out;

    (void)state;
    mu_layout_init(&l);
    mu_layout_init(&back);
    mu_buf_init(&out, 100000);
    for (int i = MU_DTYPE_BOOL; i <= MU_DTYPE_LAST; i++) {
        const char *name = mu_dtype_name((enum mu_dtype)i);
        const char *torch = mu_dtype_torch_name((enum mu_dtype)i);

        assert_int_equal(mu_dtype_parse(mu_span_str(name)), i);
        assert_true(torch == NULL || mu_dtype_parse(mu_span_str(torch)) == (enum mu_dtype)i);
        assert_int_equal(mu_layout_add(&l, mu_span_str(name), (enum mu_dtype)i, shape, 2), 0);
        assert_int_equal(l.tensors[l.count - 1].len, 24 * mu_dtype_bits((enum mu_dtype)i) / 8);
        assert_int_equal(mu_layout_elements(&l, l.count - 1), 24);
    }
    assert_int_equal(mu_safetensors_write(&l, MU_SPAN_LIT("{\"epoch\":\"5\"}"), &out), 0);
    assert_int_equal(out.len % 8, 0);
    assert_int_equal(
        mu_safetensors_parse(mu_span_skip(mu_buf_span(&out), 8), l.bytes, &back, NULL, &msg), 0);
    assert_int_equal(mu_layout_check(&l, &back, &msg), 0);
    mu_layout_fini(&l);
    mu_layout_fini(&back);
    mu_buf_fini(&out);
}

static void test_names_with_escapes_scalars_and_empty_tensors_go_round(void **state)
{
    static const uint64_t none[] = {0, 7};
    struct mu_layout l;
    struct mu_layout back;
    struct mu_errmsg msg;
    struct mu_buf out;
    struct mu_buf metadata;

    (void)state;
    mu_layout_init(&l);
    mu_layout_init(&back);
    mu_buf_init(&out, 100000);
    mu_buf_init(&metadata, 1000);
    assert_int_equal(mu_layout_add(&l, MU_SPAN_LIT("a\"b\\\n\x01 \xc3\xa9"), MU_DTYPE_I64, NULL, 0),
                     0);
    assert_int_equal(mu_layout_add(&l, MU_SPAN_LIT(""), MU_DTYPE_BF16, none, 2), 0);
    assert_int_equal(mu_safetensors_write(&l, MU_SPAN_LIT("{\"k\":\"v\"}"), &out), 0);
    assert_int_equal(
        mu_safetensors_parse(mu_span_skip(mu_buf_span(&out), 8), 8, &back, &metadata, &msg), 0);
    assert_int_equal(mu_layout_check(&l, &back, &msg), 0);
    assert_true(mu_span_eq(mu_buf_span(&metadata), MU_SPAN_LIT("{\"k\":\"v\"}")));
    mu_layout_fini(&l);
    mu_layout_fini(&back);
    mu_buf_fini(&out);
    mu_buf_fini(&metadata);
}

static void test_tensors_come_in_the_order_of_their_bytes(void **state)
{
    struct mu_layout l;
    struct mu_errmsg msg;

    (void)state;
    assert_int_equal(parse("{\"b\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[1,3]},"
                           " \"a\":{\"shape\":[1],\"data_offsets\":[0,1],\"dtype\":\"I8\"}}",
                           3, &l, &msg),
                     0);
    assert_true(mu_span_eq(mu_layout_name(&l, 0), MU_SPAN_LIT("a")));
    assert_true(mu_span_eq(mu_layout_name(&l, 1), MU_SPAN_LIT("b")));
    assert_int_equal(l.tensors[1].offset, 1);
    mu_layout_fini(&l);
}

#define T(name, dtype, shape, begin, end)                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end   \
    "]}"

static void test_what_the_format_does_not_allow_is_refused_by_name(void **state)
{
    static const struct {
        const char *json;
        uint64_t len;
        int code;
        const char *text;
    } cases[] = {
        {"", 0, MUSTER_ECORRUPT, "not a JSON object"},
        {"[]", 0, MUSTER_ECORRUPT, "not a JSON object"},
        {" {}", 0, MUSTER_ECORRUPT, "not a JSON object"},
        {"{", 0, MUSTER_ECORRUPT, "not a JSON object"},
        {"{\"a\":1}", 0, MUSTER_ECORRUPT, "\"a\": it has no dtype"},
        {"{" T("a", "F33", "[]", "0", "4") "}", 4, MUSTER_ENOTSUP, "dtype is unknown"},
        {"{" T("a", "F32", "3", "0", "4") "}", 4, MUSTER_ECORRUPT, "no shape"},
        {"{" T("a", "F32", "[-1]", "0", "4") "}", 4, MUSTER_ECORRUPT, "shape is invalid"},
        {"{" T("a", "F32", "[\"1\"]", "0", "4") "}", 4, MUSTER_ECORRUPT, "shape is invalid"},
        {"{" T("a", "F32", "[1]", "4", "0") "}", 4, MUSTER_ECORRUPT, "data_offsets"},
        {"{" T("a", "F32", "[1]", "0", "4,4") "}", 4, MUSTER_ECORRUPT, "data_offsets"},
        {"{" T("a", "F32", "[2]", "0", "4") "}", 4, MUSTER_ECORRUPT, "does not match its dtype"},
        {"{" T("a", "F32", "[1]", "0", "4") "}", 5, MUSTER_ECORRUPT, "file has 5"},
        {"{" T("a", "F32", "[1]", "4", "8") "}", 8, MUSTER_ECORRUPT, "gap"},
        {"{" T("a", "F32", "[1]", "0", "4") "," T("b", "F32", "[1]", "2", "6") "}", 6,
         MUSTER_ECORRUPT, "of another tensor"},
        {"{" T("a", "F32", "[1]", "0", "4") "," T("a", "F32", "[1]", "4", "8") "}", 8,
         MUSTER_ECORRUPT, "twice"},
        {"{" T("a", "F32", "[1]", "0", "4") "," T("\\u0061", "F32", "[1]", "4", "8") "}", 8,
         MUSTER_ECORRUPT, "twice"},
        {"{" T("a", "F4", "[3]", "0", "1") "}", 1, MUSTER_ECORRUPT, "make whole bytes"},
        {"{" T("a", "F64", "[4611686018427387904,8]", "0", "0") "}", 0, MUSTER_ECORRUPT,
         "make whole bytes"},
        {"{" T("a", "F64", "[9223372036854775807,9223372036854775807,9223372036854775807]", "0",
               "8") "}",
         8, MUSTER_ECORRUPT, "make whole bytes"},
        {"{\"__metadata__\":{\"a\":1}}", 0, MUSTER_ECORRUPT, "more than strings"},
        {"{\"__metadata__\":[]}", 0, MUSTER_ECORRUPT, "not an object"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_layout l;
        struct mu_errmsg msg;

        assert_int_equal(parse(cases[i].json, cases[i].len, &l, &msg), cases[i].code);
        if (strstr(msg.text, cases[i].text) == NULL) {
            fail_msg("%s: \"%s\"", cases[i].json, msg.text);
        }
        mu_layout_fini(&l);
    }
}

static void test_hostile_lengths_are_refused_before_memory_is_taken(void **state)
{
    uint8_t prefix[8];
    struct mu_errmsg msg;
    size_t len;

    (void)state;
    mu_put_u64(prefix, UINT64_MAX);
    assert_int_equal(mu_safetensors_length(prefix, UINT64_MAX, &len, &msg), MUSTER_ECORRUPT);
    mu_put_u64(prefix, 100000001);
    assert_int_equal(mu_safetensors_length(prefix, UINT64_MAX, &len, &msg), MUSTER_ECORRUPT);
    mu_put_u64(prefix, 100);
    assert_int_equal(mu_safetensors_length(prefix, 107, &len, &msg), MUSTER_ECORRUPT);
    assert_int_equal(mu_safetensors_length(prefix, 108, &len, &msg), 0);
    mu_put_u64(prefix, 0);
    assert_int_equal(mu_safetensors_length(prefix, 3, &len, &msg), MUSTER_ECORRUPT);
}

static void test_a_hundred_thousand_tensors(void **state)
{
    static const uint64_t shape[] = {3};
    struct mu_layout l;
    struct mu_layout back;
    struct mu_errmsg msg;
    struct mu_buf out;

    (void)state;
    mu_layout_init(&l);
    mu_layout_init(&back);
    mu_buf_init(&out, 50000000);
    for (int i = 0; i < 100000; i++) {
        char name[32];

        (void)snprintf(name, sizeof(name), "layer.%d.weight", i);
        assert_int_equal(mu_layout_add(&l, mu_span_str(name), MU_DTYPE_F16, shape, 1), 0);
    }
    assert_int_equal(mu_safetensors_write(&l, mu_span(NULL, 0), &out), 0);
    assert_int_equal(
        mu_safetensors_parse(mu_span_skip(mu_buf_span(&out), 8), 600000, &back, NULL, &msg), 0);
    assert_int_equal(mu_layout_check(&l, &back, &msg), 0);
    mu_layout_fini(&l);
    mu_layout_fini(&back);
    mu_buf_fini(&out);
}

static void test_layouts_that_differ_are_told_apart_in_words(void **state)
{
    static const uint64_t shape[] = {2, 3};
    struct mu_layout a;
    struct mu_layout b;
    struct mu_errmsg msg;

    (void)state;
    mu_layout_init(&a);
    mu_layout_init(&b);
    assert_int_equal(mu_layout_add(&a, MU_SPAN_LIT("w"), MU_DTYPE_F32, shape, 2), 0);
    assert_int_equal(mu_layout_check(&a, &b, &msg), MUSTER_EINVAL);
    assert_string_equal(msg.text, "there are 0 tensors, but 1 were expected: \"w\" is missing");
    assert_int_equal(mu_layout_check(&b, &a, &msg), MUSTER_EINVAL);
    assert_string_equal(msg.text,
                        "there are 1 tensors, but 0 were expected: \"w\" is one too many");
    assert_int_equal(mu_layout_add(&b, MU_SPAN_LIT("w"), MU_DTYPE_F32, shape, 1), 0);
    assert_int_equal(mu_layout_check(&a, &b, &msg), MUSTER_EINVAL);
    assert_string_equal(msg.text, "tensor \"w\" is F32[2], but F32[2,3] was expected");
    mu_layout_fini(&b);
    assert_int_equal(mu_layout_add(&b, MU_SPAN_LIT("v"), MU_DTYPE_F32, shape, 2), 0);
    assert_int_equal(mu_layout_check(&a, &b, &msg), MUSTER_EINVAL);
    assert_string_equal(msg.text, "tensor 0 is \"v\", but \"w\" was expected");
    mu_layout_fini(&a);
    mu_layout_fini(&b);
}

static void test_every_allocation_may_fail(void **state)
{
    static const char json[] =
        "{" T("a\\n", "F32", "[1]", "0", "4") "," T("b", "F32", "[1]", "4", "8") "}";
    struct mu_layout l;
    struct mu_errmsg msg;
    struct mu_buf out;

    (void)state;
    for (long nth = 0;; nth++) {
        int err;

        mu_layout_init(&l);
        mu_buf_init(&out, 1000);
        failheap_arm(nth);
        err = mu_safetensors_parse(mu_span_str(json), 8, &l, NULL, &msg);
        if (err == 0) {
            err = mu_safetensors_write(&l, mu_span(NULL, 0), &out);
            assert_true(err == 0 || out.len == 0);
        }
        failheap_disarm();
        mu_layout_fini(&l);
        mu_buf_fini(&out);
        if (err == 0) {
            break;
        }
        assert_int_equal(err, MUSTER_ENOMEM);
        assert_true(nth < 100);
    }
}

static void test_safetensors_head_is_so_long(void **state)
{
    uint8_t prefix[MU_SAFETENSORS_PREFIX_LEN];
    struct mu_errmsg msg;
    size_t len = 0;

    (void)state;
    mu_put_u64(prefix, MU_SAFETENSORS_HEADER_MAX);
    assert_int_equal(mu_safetensors_length(prefix, UINT64_MAX, &len, &msg), 0);
    assert_int_equal(len, MU_SAFETENSORS_HEADER_MAX);
    mu_put_u64(prefix, MU_SAFETENSORS_HEADER_MAX + 1);
    assert_int_equal(mu_safetensors_length(prefix, UINT64_MAX, &len, &msg), MUSTER_ECORRUPT);
    assert_non_null(strstr(msg.text, "100000001 bytes"));
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file_is_read_and_written_to_the_byte),
        cmocka_unit_test(test_every_dtype_goes_round),
        cmocka_unit_test(test_names_with_escapes_scalars_and_empty_tensors_go_round),
        cmocka_unit_test(test_tensors_come_in_the_order_of_their_bytes),
        cmocka_unit_test(test_what_the_format_does_not_allow_is_refused_by_name),
        cmocka_unit_test(test_hostile_lengths_are_refused_before_memory_is_taken),
        cmocka_unit_test(test_a_hundred_thousand_tensors),
        cmocka_unit_test(test_layouts_that_differ_are_told_apart_in_words),
        cmocka_unit_test(test_every_allocation_may_fail),
        cmocka_unit_test(test_safetensors_head_is_so_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

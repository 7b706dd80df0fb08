/* Heads of safetensors files in manifests, and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "service/state/file.h"

/* The head of a file with this JSON. */
static void make_head(struct mu_buf *out, const char *json)
{
    uint8_t len[8];

    mu_put_u64(len, strlen(json));
    mu_buf_init(out, 1 << 20);
    assert_int_equal(mu_buf_append(out, mu_span(len, 8)), 0);
    assert_int_equal(mu_buf_append(out, mu_span_str(json)), 0);
}

/* What a head becomes when its state is written again must be that head. */
static void assert_returns(const char *json, uint64_t data_len, size_t tensors)
{
    struct mu_state_manifest m;
    struct mu_errmsg msg;
    struct mu_buf head;
    struct mu_buf again;
    size_t len = 0;

    make_head(&head, json);
    mu_buf_init(&again, 1 << 20);
    mu_state_manifest_init(&m);
    assert_int_equal(mu_state_file_head_len(mu_span(head.data, 8), head.len + data_len, &len, &msg),
                     0);
    assert_int_equal(len, head.len);
    assert_int_equal(
        mu_state_file_parse(mu_buf_span(&head), head.len + data_len, &m.layout, &m.metadata, &msg),
        0);
    assert_int_equal(m.layout.count, tensors);
    assert_int_equal(m.layout.bytes, data_len);
    assert_int_equal(mu_state_file_head(&m, &again), 0);
    assert_true(mu_span_eq(mu_buf_span(&again), mu_buf_span(&head)));
    mu_state_manifest_fini(&m);
    mu_buf_fini(&head);
    mu_buf_fini(&again);
}

static void test_head_returns_as_it_was_however_it_was_written(void **state)
{
    (void)state;
    /* Compact and in order, as we write it: only the text travels. */
    assert_returns("{\"__metadata__\":{\"format\":\"pt\"},\"a\":{\"dtype\":\"F32\",\"shape\":[2],"
                   "\"data_offsets\":[0,8]}}",
                   8, 1);
    /* With blanks, another order of the members, and tensors out of order. */
    assert_returns("{ \"b\": {\"shape\": [1], \"dtype\": \"U8\", \"data_offsets\": [8, 9]},\n"
                   "  \"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]},\n"
                   "  \"__metadata__\": {\"z\": \"1\", \"y\": \"\\u00e9\"} }   ",
                   9, 2);
    assert_returns("{}", 0, 0);
}

static void test_other_metadata_is_kept_in_the_file(void **state)
{
    static const uint8_t msgpack[] = {0x81, 0xa2, 'l',  'r',  0xcb, 0x3f, 0x50,
                                      0x62, 0x4d, 0xd2, 0xf1, 0xa9, 0xfc};
    const uint64_t shape = 3;
    struct mu_state_manifest m;
    struct mu_layout layout;
    struct mu_errmsg msg;
    struct mu_buf head;
    struct mu_buf metadata;

    (void)state;
    mu_state_manifest_init(&m);
    mu_layout_init(&layout);
    mu_buf_init(&head, 1 << 20);
    mu_buf_init(&metadata, 1 << 20);
    assert_int_equal(mu_layout_add(&m.layout, mu_span_str("w"), MU_DTYPE_F64, &shape, 1), 0);
    assert_int_equal(mu_buf_append(&m.metadata, mu_span(msgpack, sizeof(msgpack))), 0);
    assert_int_equal(mu_state_file_head(&m, &head), 0);
    assert_int_equal(
        mu_state_file_parse(mu_buf_span(&head), head.len + 24, &layout, &metadata, &msg), 0);
    assert_true(mu_span_eq(mu_buf_span(&metadata), mu_span(msgpack, sizeof(msgpack))));
    mu_state_manifest_fini(&m);
    mu_layout_fini(&layout);
    mu_buf_fini(&head);
    mu_buf_fini(&metadata);
}

/* The head of a state that comes from no file is as long as could be told before its tensors were
 * known, if they are not too many; and it is read as what it is, with the room or without. */
static void test_head_is_as_long_as_was_reserved(void **state)
{
    const uint64_t shape = 3;
    struct mu_state_manifest m;
    struct mu_layout layout;
    struct mu_errmsg msg;
    struct mu_buf head;
    struct mu_buf metadata;
    char name[16];

    (void)state;
    mu_state_manifest_init(&m);
    mu_buf_init(&head, 1 << 20);
    mu_buf_init(&metadata, 1 << 20);
    assert_int_equal(mu_buf_append(&m.metadata, mu_span("\x81\xa2lr\x05", 5)), 0);
    for (size_t i = 0; i < 1200; i++) {
        size_t reserved = mu_state_file_reserve(5);

        (void)snprintf(name, sizeof(name), "tensor.%zu", i);
        assert_int_equal(mu_layout_add(&m.layout, mu_span_str(name), MU_DTYPE_U8, &shape, 1), 0);
        if (i % 50 != 0) {
            continue;
        }
        mu_buf_reset(&head);
        assert_int_equal(mu_state_file_head(&m, &head), 0);
        assert_true(head.len == reserved || (head.len > reserved && i >= 600));
        mu_layout_init(&layout);
        mu_buf_reset(&metadata);
        assert_int_equal(mu_state_file_parse(mu_buf_span(&head), head.len + 3 * (i + 1), &layout,
                                             &metadata, &msg),
                         0);
        assert_true(mu_span_eq(mu_buf_span(&metadata), mu_buf_span(&m.metadata)));
        assert_int_equal(layout.count, i + 1);
        mu_layout_fini(&layout);
    }
    mu_buf_fini(&head);

    mu_buf_init(&head, 1 << 20);
    assert_int_equal(
        mu_safetensors_write(&m.layout, MU_SPAN_LIT("{\"muster_metadata\":\"gaJscgU=\"}"), &head),
        0);
    mu_layout_init(&layout);
    mu_buf_reset(&metadata);
    assert_int_equal(mu_state_file_parse(mu_buf_span(&head), head.len + m.layout.bytes, &layout,
                                         &metadata, &msg),
                     0);
    assert_true(mu_span_eq(mu_buf_span(&metadata), mu_buf_span(&m.metadata)));
    mu_layout_fini(&layout);
    mu_state_manifest_fini(&m);
    mu_buf_fini(&head);
    mu_buf_fini(&metadata);
}

/* A head that came with a state is the donor's word: it must describe that state. */
static void test_head_of_another_layout_is_not_written(void **state)
{
    const uint64_t shape = 2;
    struct mu_state_manifest m;
    struct mu_layout layout;
    struct mu_errmsg msg;
    struct mu_buf head;
    struct mu_buf again;

    (void)state;
    mu_state_manifest_init(&m);
    mu_layout_init(&layout);
    mu_buf_init(&again, 1 << 20);
    make_head(&head, "{ \"a\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [0, 8]}}");
    assert_int_equal(
        mu_state_file_parse(mu_buf_span(&head), head.len + 8, &layout, &m.metadata, &msg), 0);
    assert_int_equal(mu_layout_add(&m.layout, mu_span_str("a"), MU_DTYPE_I32, &shape, 1), 0);
    assert_int_equal(mu_state_file_head(&m, &again), 0);
    assert_false(mu_span_eq(mu_buf_span(&again), mu_buf_span(&head)));
    mu_layout_fini(&layout);
    mu_layout_init(&layout);
    mu_buf_reset(&m.metadata);
    assert_int_equal(
        mu_state_file_parse(mu_buf_span(&again), again.len + 8, &layout, &m.metadata, &msg), 0);
    assert_int_equal(layout.tensors[0].dtype, MU_DTYPE_I32);
    mu_state_manifest_fini(&m);
    mu_layout_fini(&layout);
    mu_buf_fini(&head);
    mu_buf_fini(&again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_head_returns_as_it_was_however_it_was_written),
        cmocka_unit_test(test_other_metadata_is_kept_in_the_file),
        cmocka_unit_test(test_head_is_as_long_as_was_reserved),
        cmocka_unit_test(test_head_of_another_layout_is_not_written),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

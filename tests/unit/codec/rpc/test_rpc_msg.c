#include "unit.h"

#include <muster/error.h>

#include "codec/rpc/msg.h"
#include "core/alloc.h"
#include "core/prng.h"
#include "failheap.h"

static void encode(struct mu_buf *out, const struct mu_rpc_part *parts, size_t count)
{
    assert_int_equal(mu_rpc_msg_head(out, parts, count), 0);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(mu_buf_append(out, parts[i].data), 0);
    }
}

static void test_rpc_msg_parts_survive_the_way(void **state)
{
    struct mu_rpc_part parts[5] = {{MU_SPAN_LIT("one"), -1},
                                   {MU_SPAN_LIT(""), 0},
                                   {MU_SPAN_LIT("three"), INT32_MAX},
                                   {MU_SPAN_LIT(""), INT32_MIN},
                                   {MU_SPAN_LIT("5"), -1}};

    (void)state;
    for (size_t n = 0; n <= 5; n++) {
        struct mu_rpc_part *got = NULL;
        size_t count = 99;
        struct mu_buf buf;

        mu_buf_init(&buf, SIZE_MAX);
        encode(&buf, parts, n);
        assert_int_equal(mu_rpc_msg_decode(mu_buf_span(&buf), &got, &count), 0);
        assert_int_equal(count, n);
        for (size_t i = 0; i < n; i++) {
            assert_true(mu_span_eq(got[i].data, parts[i].data));
            assert_int_equal(got[i].device, parts[i].device);
        }
        mu_free(got);
        mu_buf_fini(&buf);
    }
}

static void test_rpc_msg_one_part_in_memory_costs_one_byte(void **state)
{
    struct mu_rpc_part part = {MU_SPAN_LIT("hi"), -1};
    struct mu_buf buf;

    (void)state;
    mu_buf_init(&buf, SIZE_MAX);
    encode(&buf, &part, 1);
    assert_int_equal(buf.len, 3);
    mu_buf_fini(&buf);
}

static void test_rpc_msg_refuses_every_other_length(void **state)
{
    struct mu_rpc_part parts[2] = {{MU_SPAN_LIT("abc"), -1}, {MU_SPAN_LIT("de"), 4}};
    struct mu_rpc_part *got = NULL;
    struct mu_buf buf;
    size_t count;

    (void)state;
    mu_buf_init(&buf, SIZE_MAX);
    encode(&buf, parts, 2);
    for (size_t n = 0; n < buf.len; n++) {
        struct mu_span cut = mu_buf_span(&buf);

        cut.len = n;
        assert_int_equal(mu_rpc_msg_decode(cut, &got, &count), MUSTER_EPROTO);
    }
    assert_int_equal(mu_buf_append(&buf, MU_SPAN_LIT("x")), 0);
    assert_int_equal(mu_rpc_msg_decode(mu_buf_span(&buf), &got, &count), MUSTER_EPROTO);
    mu_buf_fini(&buf);
}

static void test_rpc_msg_hostile_lengths_take_no_memory(void **state)
{
    /* 65535 parts, of which there is no table; and one part of nearly everything. */
    static const uint8_t many[] = {1, 0xff, 0xff};
    static const uint8_t big[] = {1,    1,    0,    0xff, 0xff, 0xff, 0xff, 0xff,
                                  0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0xff};
    struct mu_rpc_part *got = NULL;
    size_t count;

    (void)state;
    failheap_arm(0);
    assert_int_equal(mu_rpc_msg_decode(mu_span(many, sizeof(many)), &got, &count), MUSTER_EPROTO);
    assert_false(failheap_fired());
    failheap_disarm();
    assert_int_equal(mu_rpc_msg_decode(mu_span(big, sizeof(big)), &got, &count), MUSTER_EPROTO);
    failheap_arm(0);
    assert_int_equal(mu_rpc_msg_decode(MU_SPAN_LIT("\0x"), &got, &count), MUSTER_ENOMEM);
    failheap_disarm();
}

static void test_rpc_msg_garbage_is_refused_or_read_whole(void **state)
{
    struct mu_prng prng;

    (void)state;
    mu_prng_seed(&prng, 7);
    for (int i = 0; i < 20000; i++) {
        uint8_t bytes[64];
        size_t len = mu_prng_below(&prng, sizeof(bytes));
        struct mu_rpc_part *got = NULL;
        size_t count = 0;
        size_t sum = 0;

        for (size_t k = 0; k < len; k++) {
            bytes[k] = (uint8_t)(mu_prng_chance(&prng, 600000) ? mu_prng_below(&prng, 3)
                                                               : mu_prng_u64(&prng));
        }
        if (mu_rpc_msg_decode(mu_span(bytes, len), &got, &count) == 0) {
            for (size_t k = 0; k < count; k++) {
                sum += got[k].data.len;
            }
            assert_int_equal(sum + (bytes[0] == 0 ? 1 : 3 + 12 * count), len);
            mu_free(got);
        }
    }
}

static void test_rpc_key_and_card_survive_the_way(void **state)
{
    struct mu_rpc_key key = {.caller = {1, 2, 3}, .seq = 77, .floor = 70, .again = true};
    struct mu_rpc_card card = {.id = 32767, .incarnation = {9}, .meant = MU_SPAN_LIT("worker7")};
    struct mu_rpc_key key_got = {0};
    struct mu_rpc_card card_got;
    struct mu_span in;
    struct mu_buf buf;

    (void)state;
    mu_buf_init(&buf, SIZE_MAX);
    assert_int_equal(mu_rpc_key_encode(&buf, &key), 0);
    assert_int_equal(buf.len, MU_RPC_KEY_LEN);
    assert_int_equal(mu_buf_append(&buf, MU_SPAN_LIT("rest")), 0);
    in = mu_buf_span(&buf);
    assert_int_equal(mu_rpc_key_decode(&in, &key_got), 0);
    assert_span_text(in, "rest");
    assert_memory_equal(key_got.caller, key.caller, 16);
    assert_int_equal(key_got.seq, 77);
    assert_int_equal(key_got.floor, 70);
    assert_true(key_got.again);
    in = mu_span(buf.data, MU_RPC_KEY_LEN - 1);
    assert_int_equal(mu_rpc_key_decode(&in, &key_got), MUSTER_EPROTO);
    mu_buf_reset(&buf);
    assert_int_equal(mu_rpc_card_encode(&buf, &card), 0);
    assert_int_equal(mu_rpc_card_decode(mu_buf_span(&buf), &card_got), 0);
    assert_int_equal(card_got.id, 32767);
    assert_span_text(card_got.meant, "worker7");
    for (size_t n = 0; n < buf.len; n++) {
        assert_int_equal(mu_rpc_card_decode(mu_span(buf.data, n), &card_got), MUSTER_EPROTO);
    }
    buf.data[7] = 0x80; /* an id above 32767 */
    assert_int_equal(mu_rpc_card_decode(mu_buf_span(&buf), &card_got), MUSTER_EPROTO);
    mu_buf_fini(&buf);
}

static void test_rpc_worker_names_follow_the_rule(void **state)
{
    char name[129];

    (void)state;
    memset(name, 'x', sizeof(name));
    assert_true(mu_rpc_worker_name_ok(mu_span(name, 127)));
    assert_false(mu_rpc_worker_name_ok(mu_span(name, 128)));
    assert_false(mu_rpc_worker_name_ok(mu_span(name, 0)));
    for (int c = 0; c < 256; c++) {
        char one = (char)c;
        bool good = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '-' || c == '_' || c == ':';

        assert_int_equal(mu_rpc_worker_name_ok(mu_span(&one, 1)), good);
    }
}

static void test_rpc_msg_has_so_many_parts(void **state)
{
    struct mu_rpc_part *parts = mu_calloc(MU_RPC_PARTS_MAX + 1, sizeof(*parts));
    struct mu_rpc_part *got;
    struct mu_buf out;
    size_t count;

    (void)state;
    mu_buf_init(&out, 1 << 20);
    assert_int_equal(mu_rpc_msg_head(&out, parts, MU_RPC_PARTS_MAX + 1), MUSTER_ELIMIT);
    assert_int_equal(out.len, 0);
    assert_int_equal(mu_rpc_msg_head(&out, parts, MU_RPC_PARTS_MAX), 0);
    assert_int_equal(mu_rpc_msg_decode(mu_buf_span(&out), &got, &count), 0);
    assert_int_equal(count, MU_RPC_PARTS_MAX);
    mu_free(got);
    mu_free(parts);
    mu_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc_msg_parts_survive_the_way),
        cmocka_unit_test(test_rpc_msg_one_part_in_memory_costs_one_byte),
        cmocka_unit_test(test_rpc_msg_refuses_every_other_length),
        cmocka_unit_test(test_rpc_msg_hostile_lengths_take_no_memory),
        cmocka_unit_test(test_rpc_msg_garbage_is_refused_or_read_whole),
        cmocka_unit_test(test_rpc_key_and_card_survive_the_way),
        cmocka_unit_test(test_rpc_worker_names_follow_the_rule),
        cmocka_unit_test(test_rpc_msg_has_so_many_parts),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

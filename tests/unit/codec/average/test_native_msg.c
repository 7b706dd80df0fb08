/* Messages of the native mode: each as it is, too short, too long, and with what it may not say. */
#include <stdlib.h>

#include "unit.h"

#include "codec/average/native_msg.h"

static struct mu_native_msg sample(enum mu_native_type type)
{
    struct mu_native_msg m = {.type = type,
                              .ballot = 9,
                              .sum = 4,
                              .part = 77,
                              .shard = 3,
                              .weight = 2.5,
                              .mask = 0x8000000000000001,
                              .set = {.members = 0x13, .weights = {[0] = 1, [1] = 0, [4] = 8.25}},
                              .why = MU_NATIVE_WHY_VALUE,
                              .one = 5,
                              .other = 63};

    memset(m.digest, 0xab, sizeof(m.digest));
    if (type == MU_NATIVE_PART || type == MU_NATIVE_AVERAGE) {
        m.values = MU_SPAN_LIT("values");
    }
    if (type == MU_NATIVE_PROMISE) {
        m.proposed = m.accepted = m.whole = m.final = true;
        m.proposed_at = 7;
        m.accepted_at = 6;
    }
    m.bound = type == MU_NATIVE_PROPOSE;
    m.hello = (struct mu_native_hello){.version = 1, .round = 5, .position = 2, .members = 4};
    return m;
}

static void each_is_read_as_it_was_written(void **state)
{
    (void)state;
    for (int type = 1; type <= MU_NATIVE_TYPE_LAST; type++) {
        struct mu_native_msg m = sample((enum mu_native_type)type);
        struct mu_native_msg back;
        struct mu_buf out;
        struct mu_buf again;

        mu_buf_init(&out, 1 << 16);
        mu_buf_init(&again, 1 << 16);
        assert_int_equal(mu_native_msg_encode(&m, &out), 0);
        assert_int_equal(mu_native_msg_decode(mu_buf_span(&out), &back), 0);
        assert_int_equal(back.type, type);
        assert_int_equal(mu_native_msg_encode(&back, &again), 0);
        assert_true(mu_span_eq(mu_buf_span(&out), mu_buf_span(&again)));
        for (size_t len = 0; len < out.len; len++) {
            struct mu_span cut = mu_span(mu_buf_span(&out).data, len);
            bool values = type == MU_NATIVE_PART || type == MU_NATIVE_AVERAGE;

            if (!values || len < out.len - 6) {
                assert_int_equal(mu_native_msg_decode(cut, &back), MUSTER_EPROTO);
            }
        }
        if (type != MU_NATIVE_PART && type != MU_NATIVE_AVERAGE) {
            assert_int_equal(mu_buf_append(&out, MU_SPAN_LIT("x")), 0);
            assert_int_equal(mu_native_msg_decode(mu_buf_span(&out), &back), MUSTER_EPROTO);
        }
        mu_buf_fini(&out);
        mu_buf_fini(&again);
    }
}

static int decode(const void *bytes, size_t len)
{
    struct mu_native_msg m;

    return mu_native_msg_decode(mu_span(bytes, len), &m);
}

static void what_it_may_not_say(void **state)
{
    static const uint8_t nan_weight[] = {MU_NATIVE_PART, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xf8, 0x7f};
    static const uint8_t below_zero[] = {MU_NATIVE_PART, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xf0, 0xbf};
    static const uint8_t minus_zero[] = {MU_NATIVE_PART, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80};
    static const uint8_t too_heavy[] = {MU_NATIVE_PART, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0x70, 0x42};
    static const uint8_t accepted_only[] = {
        MU_NATIVE_PROMISE, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0};
    static const uint8_t later_sum[] = {MU_NATIVE_ACCEPT, 1, 0, 0, 0, 2, 0, 0, 0};
    static const uint8_t far_shard[] = {MU_NATIVE_HAVE, 64, 0, 0, 0, 0, 0, 0, 0, 0};
    static const uint8_t no_why[] = {MU_NATIVE_FAIL, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    uint8_t accept[41] = {0};

    (void)state;
    assert_int_equal(decode("", 0), MUSTER_EPROTO);
    assert_int_equal(decode("\x11", 1), MUSTER_EPROTO);
    assert_int_equal(decode("\0", 1), MUSTER_EPROTO);
    assert_int_equal(decode(nan_weight, sizeof(nan_weight)), MUSTER_EPROTO);
    assert_int_equal(decode(below_zero, sizeof(below_zero)), MUSTER_EPROTO);
    assert_int_equal(decode(minus_zero, sizeof(minus_zero)), MUSTER_EPROTO);
    assert_int_equal(decode(too_heavy, sizeof(too_heavy)), MUSTER_EPROTO);
    assert_int_equal(decode(accepted_only, sizeof(accepted_only)), MUSTER_EPROTO);
    assert_int_equal(decode(far_shard, sizeof(far_shard)), MUSTER_EPROTO);
    assert_int_equal(decode(no_why, sizeof(no_why)), MUSTER_EPROTO);
    memcpy(accept, later_sum, sizeof(later_sum));
    assert_int_equal(decode(accept, sizeof(accept)), MUSTER_EPROTO);
    accept[1] = 2;
    assert_int_equal(decode(accept, sizeof(accept)), 0);
}

static void a_hello_has_a_place_in_its_group(void **state)
{
    struct mu_native_msg m = sample(MU_NATIVE_HELLO);
    struct mu_buf out;

    (void)state;
    mu_buf_init(&out, 4096);
    m.hello.position = m.hello.members;
    assert_int_equal(mu_native_msg_encode(&m, &out), 0);
    assert_int_equal(mu_native_msg_decode(mu_buf_span(&out), &m), MUSTER_EPROTO);
    mu_buf_reset(&out);
    m = sample(MU_NATIVE_HELLO);
    m.hello.members = MU_NATIVE_MEMBERS_MAX + 1;
    assert_int_equal(mu_native_msg_encode(&m, &out), 0);
    assert_int_equal(mu_native_msg_decode(mu_buf_span(&out), &m), MUSTER_EPROTO);
    mu_buf_fini(&out);
}

static void a_part_has_a_limit(void **state)
{
    struct mu_native_msg m = sample(MU_NATIVE_AVERAGE);
    uint8_t *bytes = calloc(1, MU_AVG_PART_BYTES_MAX + 10);
    struct mu_buf out;

    (void)state;
    mu_buf_init(&out, MU_AVG_PART_BYTES_MAX + 4096);
    bytes[0] = MU_NATIVE_AVERAGE;
    assert_int_equal(mu_native_msg_decode(mu_span(bytes, MU_AVG_PART_BYTES_MAX + 9), &m), 0);
    assert_int_equal(mu_native_msg_decode(mu_span(bytes, MU_AVG_PART_BYTES_MAX + 10), &m),
                     MUSTER_ELIMIT);
    m.values = mu_span(bytes, MU_AVG_PART_BYTES_MAX + 1);
    assert_int_equal(mu_native_msg_encode(&m, &out), MUSTER_ELIMIT);
    free(bytes);
    mu_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_read_as_it_was_written),
        cmocka_unit_test(what_it_may_not_say),
        cmocka_unit_test(a_hello_has_a_place_in_its_group),
        cmocka_unit_test(a_part_has_a_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The frames' codec: what is written is read again, and nothing else is read. */
#include "unit.h"

#include <stdlib.h>

#include <muster/error.h>

#include "codec/rpc/frame.h"

static struct mu_rpc_hello good_hello(void)
{
    struct mu_rpc_hello h = {.version_min = 1,
                             .version_max = 1,
                             .life = 0x01020304,
                             .calls_credit = UINT64_C(0x1122334455667788),
                             .frame_bytes_max = 0x7fffffff,
                             .grace_ms = 1,
                             .beat_ms = 2,
                             .dead_ms = 3,
                             .name = MU_SPAN_LIT("name"),
                             .credential = MU_SPAN_LIT("secret")};

    memset(h.session, 0xab, sizeof(h.session));
    return h;
}

/* Decodes a copy of the exact size, so that a sanitizer sees a read behind the end. */
static int decode_hello(struct mu_span in, struct mu_rpc_hello *ret)
{
    uint8_t *copy = malloc(in.len + (in.len == 0));
    int err;

    assert_non_null(copy);
    memcpy(copy, in.data, in.len);
    err = mu_rpc_hello_decode(mu_span(copy, in.len), ret);
    free(copy);
    return err;
}

static void test_rpc_header_round_trips(void **state)
{
    struct mu_rpc_header in = {.len = 0xfedcba98,
                               .type = MU_RPC_CREDIT,
                               .ack = UINT64_C(0x0102030405060708),
                               .id = UINT64_MAX};
    struct mu_rpc_header out;
    uint8_t bytes[MU_RPC_HEADER];

    (void)state;
    mu_rpc_header_encode(bytes, &in);
    assert_int_equal(mu_rpc_header_decode(bytes, &out), 0);
    assert_int_equal(out.len, in.len);
    assert_int_equal(out.type, in.type);
    assert_int_equal(out.ack, in.ack);
    assert_int_equal(out.id, in.id);
}

static void test_rpc_header_with_an_unknown_type_or_flags_is_refused(void **state)
{
    struct mu_rpc_header h = {.type = MU_RPC_PING};
    uint8_t bytes[MU_RPC_HEADER];
    unsigned known = 0;

    (void)state;
    for (size_t i = 5; i < 8; i++) {
        mu_rpc_header_encode(bytes, &h);
        bytes[i] = 1;
        assert_int_equal(mu_rpc_header_decode(bytes, &h), MUSTER_EPROTO);
    }
    for (unsigned type = 0; type < 256; type++) {
        mu_rpc_header_encode(bytes, &(struct mu_rpc_header){.type = (uint8_t)type});
        known += mu_rpc_header_decode(bytes, &h) == 0 ? 1 : 0;
    }
    assert_int_equal(known, 14);
    assert_true(mu_rpc_is_sequenced(MU_RPC_CALL));
    assert_true(mu_rpc_is_sequenced(MU_RPC_CREDIT));
    assert_false(mu_rpc_is_sequenced(MU_RPC_BYE));
    assert_false(mu_rpc_is_sequenced(0));
    assert_string_equal(mu_rpc_frame_name(MU_RPC_ITEM), "ITEM");
    assert_string_equal(mu_rpc_frame_name(255), "unknown");
}

static void test_rpc_hello_round_trips_and_every_shorter_one_is_refused(void **state)
{
    struct mu_rpc_hello in = good_hello();
    struct mu_rpc_hello out;
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 8192);
    assert_int_equal(mu_rpc_hello_encode(&b, &in), 0);
    assert_int_equal(mu_rpc_hello_decode(mu_buf_span(&b), &out), 0);
    assert_int_equal(out.life, in.life);
    assert_int_equal(out.calls_credit, in.calls_credit);
    assert_int_equal(out.frame_bytes_max, in.frame_bytes_max);
    assert_int_equal(out.grace_ms, 1);
    assert_int_equal(out.beat_ms, 2);
    assert_int_equal(out.dead_ms, 3);
    assert_memory_equal(out.session, in.session, sizeof(in.session));
    assert_span_text(out.name, "name");
    assert_span_text(out.credential, "secret");
    for (size_t n = 0; n < b.len; n++) {
        assert_int_equal(decode_hello(mu_span(mu_buf_span(&b).data, n), &out), MUSTER_EPROTO);
    }
    assert_int_equal(mu_buf_append(&b, MU_SPAN_LIT("x")), 0);
    assert_int_equal(decode_hello(mu_buf_span(&b), &out), MUSTER_EPROTO);
    mu_buf_fini(&b);
}

/* What makes a later version possible: it may say more, and it is told if it has no common word. */
static void test_rpc_hello_of_a_later_version_is_understood_or_told_so(void **state)
{
    struct mu_rpc_hello in = good_hello();
    struct mu_rpc_hello out;
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 8192);
    in.version_max = 3;
    assert_int_equal(mu_rpc_hello_encode(&b, &in), 0);
    assert_int_equal(mu_buf_append(&b, MU_SPAN_LIT("what version 3 adds")), 0);
    assert_int_equal(decode_hello(mu_buf_span(&b), &out), 0);
    assert_int_equal(decode_hello(MU_SPAN_LIT("\2\0\3\0anything"), &out), MUSTER_EVERSION);
    assert_int_equal(decode_hello(MU_SPAN_LIT("\0\0\0\0"), &out), MUSTER_EVERSION);
    assert_int_equal(decode_hello(MU_SPAN_LIT("\2\0\1\0"), &out), MUSTER_EPROTO);
    mu_buf_fini(&b);
}

static void test_rpc_hello_below_the_least_terms_is_refused(void **state)
{
    struct mu_rpc_hello in = good_hello();
    struct mu_rpc_hello out;
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 8192);
    in.calls_credit = MU_RPC_CREDIT_MIN - 1;
    assert_int_equal(mu_rpc_hello_encode(&b, &in), 0);
    assert_int_equal(decode_hello(mu_buf_span(&b), &out), MUSTER_EPROTO);
    mu_buf_reset(&b);
    in = good_hello();
    in.frame_bytes_max = MU_RPC_FRAME_MIN - 1;
    assert_int_equal(mu_rpc_hello_encode(&b, &in), 0);
    assert_int_equal(decode_hello(mu_buf_span(&b), &out), MUSTER_EPROTO);
    mu_buf_fini(&b);
}

static void test_rpc_hello_with_a_long_name_or_credential_is_refused(void **state)
{
    static const uint8_t text[MU_RPC_CREDENTIAL_MAX + 1];
    struct mu_rpc_hello in = good_hello();
    struct mu_rpc_hello out;
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 16384);
    in.name = mu_span(text, MU_RPC_NAME_MAX + 1);
    assert_int_equal(mu_rpc_hello_encode(&b, &in), MUSTER_ELIMIT);
    in.name = mu_span(text, MU_RPC_NAME_MAX);
    in.credential = mu_span(text, MU_RPC_CREDENTIAL_MAX + 1);
    assert_int_equal(mu_rpc_hello_encode(&b, &in), MUSTER_ELIMIT);
    in.credential = mu_span(text, MU_RPC_CREDENTIAL_MAX);
    assert_int_equal(mu_rpc_hello_encode(&b, &in), 0);
    assert_true(b.len <= MU_RPC_HELLO_MAX);
    assert_int_equal(mu_rpc_hello_decode(mu_buf_span(&b), &out), 0);
    assert_int_equal(out.credential.len, MU_RPC_CREDENTIAL_MAX);
    /* The same, with the name's length one higher than it may be. */
    mu_put_u16(b.data + b.head + 48, MU_RPC_NAME_MAX + 1);
    assert_int_equal(mu_rpc_hello_decode(mu_buf_span(&b), &out), MUSTER_EPROTO);
    mu_buf_fini(&b);
}

static void test_rpc_welcome_round_trips_and_bad_ones_are_refused(void **state)
{
    const struct {
        size_t at;
        uint8_t value;
    } faults[] = {{0, 2}, {2, 2}, {3, 1}, {6, 0}, {14, 0}, {20, 49}, {24, 1}, {27, 1}};
    struct mu_rpc_welcome in = {.version = 1,
                                .resumed = true,
                                .calls_credit = MU_RPC_CREDIT_MIN,
                                .frame_bytes_max = MU_RPC_FRAME_MIN,
                                .grace_ms = 7,
                                .beat_ms = 50,
                                .dead_ms = 100,
                                .name = MU_SPAN_LIT("server")};
    struct mu_rpc_welcome out;
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 8192);
    memset(in.incarnation, 0xcd, sizeof(in.incarnation));
    assert_int_equal(mu_rpc_welcome_encode(&b, &in), 0);
    assert_int_equal(mu_rpc_welcome_decode(mu_buf_span(&b), &out), 0);
    assert_true(out.resumed);
    assert_int_equal(out.grace_ms, 7);
    assert_int_equal(out.beat_ms, 50);
    assert_int_equal(out.dead_ms, 100);
    assert_span_text(out.name, "server");
    assert_memory_equal(out.incarnation, in.incarnation, sizeof(in.incarnation));
    for (size_t n = 0; n < b.len; n++) {
        assert_int_equal(mu_rpc_welcome_decode(mu_span(mu_buf_span(&b).data, n), &out),
                         MUSTER_EPROTO);
    }
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        uint8_t *at = b.data + b.head + faults[i].at;
        uint8_t was = *at;

        *at = faults[i].value;
        if (mu_rpc_welcome_decode(mu_buf_span(&b), &out) != MUSTER_EPROTO) {
            fail_msg("a WELCOME with %u at %zu is taken", faults[i].value, faults[i].at);
        }
        *at = was;
    }
    mu_buf_fini(&b);
}

static void test_rpc_status_cuts_an_errors_text_between_characters(void **state)
{
    uint8_t text[MU_RPC_MESSAGE_MAX + 10];
    struct mu_rpc_status out;
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 8192);
    memset(text, 'a', sizeof(text));
    /* A character of three bytes, of which the limit would leave two. */
    memcpy(text + MU_RPC_MESSAGE_MAX - 2, "\xe2\x82\xac", 3);
    assert_int_equal(
        mu_rpc_status_encode(&b, &(struct mu_rpc_status){.status = MUSTER_EINVAL,
                                                         .payload = mu_span(text, sizeof(text))}),
        0);
    assert_int_equal(mu_rpc_status_decode(mu_buf_span(&b), &out), 0);
    assert_int_equal(out.status, MUSTER_EINVAL);
    assert_int_equal(out.payload.len, MU_RPC_MESSAGE_MAX - 2);
    mu_buf_reset(&b);
    /* A payload is not a text. */
    assert_int_equal(
        mu_rpc_status_encode(&b, &(struct mu_rpc_status){.payload = mu_span(text, sizeof(text))}),
        0);
    assert_int_equal(mu_rpc_status_decode(mu_buf_span(&b), &out), 0);
    assert_int_equal(out.payload.len, sizeof(text));
    mu_buf_fini(&b);
    assert_int_equal(mu_rpc_status_decode(MU_SPAN_LIT("\1\0\0\0"), &out), MUSTER_EPROTO);
    assert_int_equal(mu_rpc_status_decode(MU_SPAN_LIT("\0\0\0"), &out), MUSTER_EPROTO);
}

static void test_rpc_call_round_trips_and_bad_methods_are_refused(void **state)
{
    struct mu_rpc_call_body in = {.timeout_ms = 1,
                                  .flags = 2,
                                  .item_credit = 3,
                                  .method = MU_SPAN_LIT("n::S.m"),
                                  .payload = MU_SPAN_LIT("payload")};
    struct mu_rpc_call_body out;
    uint8_t longest[MU_RPC_METHOD_MAX + 1];
    struct mu_buf b;

    (void)state;
    mu_buf_init(&b, 8192);
    assert_int_equal(mu_rpc_call_encode(&b, &in), 0);
    assert_int_equal(b.len, MU_RPC_CALL_HEAD + 6 + 7);
    assert_int_equal(mu_rpc_call_decode(mu_buf_span(&b), &out), 0);
    assert_int_equal(out.timeout_ms, 1);
    assert_int_equal(out.flags, 2);
    assert_int_equal(out.item_credit, 3);
    assert_span_text(out.method, "n::S.m");
    assert_span_text(out.payload, "payload");
    for (size_t n = 0; n < MU_RPC_CALL_HEAD + 6; n++) {
        assert_int_equal(mu_rpc_call_decode(mu_span(mu_buf_span(&b).data, n), &out), MUSTER_EPROTO);
    }
    b.data[b.head + MU_RPC_CALL_HEAD] = ' ';
    assert_int_equal(mu_rpc_call_decode(mu_buf_span(&b), &out), MUSTER_EPROTO);
    memset(longest, 'm', sizeof(longest));
    in.method = mu_span(longest, MU_RPC_METHOD_MAX);
    assert_int_equal(mu_rpc_call_encode(&b, &in), 0);
    in.method = mu_span(longest, MU_RPC_METHOD_MAX + 1);
    assert_int_equal(mu_rpc_call_encode(&b, &in), MUSTER_ELIMIT);
    assert_false(mu_rpc_is_method(MU_SPAN_LIT("tab\t")));
    assert_false(mu_rpc_is_method(MU_SPAN_LIT("\x7f")));
    mu_buf_fini(&b);
}

static void test_rpc_welcome_says_a_silence_that_is_so_long(void **state)
{
    struct mu_rpc_welcome in = {.version = MU_RPC_VERSION,
                                .calls_credit = MU_RPC_CREDIT_MIN,
                                .frame_bytes_max = MU_RPC_FRAME_MIN,
                                .beat_ms = MU_RPC_BEAT_MS_MIN,
                                .name = MU_SPAN_LIT("server")};
    struct mu_rpc_welcome out;

    (void)state;
    for (uint32_t more = 0; more < 2; more++) {
        struct mu_buf b;

        mu_buf_init(&b, 8192);
        in.dead_ms = MU_RPC_DEAD_MS_MAX + more;
        assert_int_equal(mu_rpc_welcome_encode(&b, &in), 0);
        assert_int_equal(mu_rpc_welcome_decode(mu_buf_span(&b), &out),
                         more == 0 ? 0 : MUSTER_EPROTO);
        mu_buf_fini(&b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc_header_round_trips),
        cmocka_unit_test(test_rpc_header_with_an_unknown_type_or_flags_is_refused),
        cmocka_unit_test(test_rpc_hello_round_trips_and_every_shorter_one_is_refused),
        cmocka_unit_test(test_rpc_hello_of_a_later_version_is_understood_or_told_so),
        cmocka_unit_test(test_rpc_hello_below_the_least_terms_is_refused),
        cmocka_unit_test(test_rpc_hello_with_a_long_name_or_credential_is_refused),
        cmocka_unit_test(test_rpc_welcome_round_trips_and_bad_ones_are_refused),
        cmocka_unit_test(test_rpc_status_cuts_an_errors_text_between_characters),
        cmocka_unit_test(test_rpc_call_round_trips_and_bad_methods_are_refused),
        cmocka_unit_test(test_rpc_welcome_says_a_silence_that_is_so_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What clients and daemons say: the bytes of the protocol's description, and what is no such. */
#include "unit.h"

#include <stdio.h>

#include <muster/error.h>

#include "call_bytes.h"
#include "codec/peer/p2pd_msg.h"
#include "codec/bin/uvarint.h"
#include "failheap.h"

/* What is in the buffer, which is empty then. */
static void assert_written(const char *want)
{
    uint8_t bytes[512];
    size_t len = hex_decode(bytes, sizeof(bytes), want);

    assert_int_equal(buf.len, len);
    assert_memory_equal(mu_buf_span(&buf).data, bytes, len);
    mu_buf_reset(&buf);
}

/* The message without its length. */
static struct mu_span body(int slot, const char *text)
{
    struct mu_span all = hex(slot, text);
    uint64_t len = 0;
    size_t head = 0;

    assert_int_equal(mu_uvarint_get(all, &head, &len), 0);
    assert_int_equal(all.len - head, len);
    return mu_span_skip(all, head);
}

/* --- requests --------------------------------------------------------------------------------- */

static void test_p2pd_msg_identify_is_as_described(void **unused)
{
    struct mu_span addr = hex(0, "047f000001060fa1");
    struct mu_p2pd_peer self = {hex(1, PEER_L), &addr, 1};
    struct mu_p2pd_request r;

    (void)unused;
    assert_int_equal(mu_p2pd_request_decode(body(2, "020800"), &r), 0);
    assert_int_equal(r.type, MU_P2PD_IDENTIFY);
    assert_int_equal(mu_p2pd_put_identify(&buf, &self), 0);
    assert_written("360800"
                   "22320a26" PEER_L "1208047f000001060fa1");
}

static void test_p2pd_msg_error_and_ok_are_as_described(void **unused)
{
    (void)unused;
    assert_int_equal(mu_p2pd_put_error(&buf, "x"), 0);
    assert_written("07080112030a0178");
    assert_int_equal(mu_p2pd_put_ok(&buf), 0);
    assert_written("020800");
}

static void test_p2pd_msg_upgrade_has_no_parameters(void **unused)
{
    struct mu_p2pd_request r;

    (void)unused;
    assert_int_equal(mu_p2pd_request_decode(body(0, "020809"), &r), 0);
    assert_int_equal(r.type, MU_P2PD_UPGRADE);
    assert_false(r.given);
}

static void test_p2pd_msg_stream_handler_is_as_described(void **unused)
{
    const char *text = "220803221e0a0e90030b2f746d702f632e736f636b120a613a3a422e7270635f631800";
    struct mu_p2pd_request r;
    struct mu_span walk;
    struct mu_span name;

    (void)unused;
    assert_int_equal(mu_p2pd_request_decode(body(0, text), &r), 0);
    assert_int_equal(r.type, MU_P2PD_STREAM_HANDLER);
    assert_true(mu_span_eq(r.addr, hex(1, "90030b2f746d702f632e736f636b")));
    assert_false(r.balanced);
    walk = r.all;
    assert_true(mu_p2pd_next_name(&r, &walk, &name));
    assert_true(mu_span_eq(name, mu_span_str("a::B.rpc_c")));
    assert_false(mu_p2pd_next_name(&r, &walk, &name));

    assert_int_equal(mu_p2pd_request_encode(&buf, &r, mu_span_str("a::B.rpc_c")), 0);
    assert_written(text);
}

static void test_p2pd_msg_connect_may_have_several_addresses(void **unused)
{
    struct mu_p2pd_request r;
    struct mu_span walk;
    struct mu_span addr;

    (void)unused;
    assert_int_equal(mu_p2pd_request_decode(hex(0, "0801"
                                                   "120b0a01aa"
                                                   "1201bb1201cc1805"),
                                            &r),
                     0);
    walk = r.all;
    assert_true(mu_span_eq(r.peer, hex(1, "aa")));
    assert_int_equal(r.timeout_s, 5);
    assert_true(mu_p2pd_next_addr(&r, &walk, &addr));
    assert_true(mu_span_eq(addr, hex(1, "bb")));
    assert_true(mu_p2pd_next_addr(&r, &walk, &addr));
    assert_true(mu_span_eq(addr, hex(1, "cc")));
    assert_false(mu_p2pd_next_addr(&r, &walk, &addr));
}

static void test_p2pd_msg_request_without_what_it_must_have_is_refused(void **unused)
{
    static const char *const bad[] = {
        "",             /* no type */
        "1203010203",   /* nor here */
        "080b",         /* a type that there is none of */
        "0801120412",   /* cut off */
        "080112021805", /* to connect, with no peer */
        "08032205180a", /* a handler that is cut off */
        "0803220412017a1800",
        "0807"
        "3a00", /* whom to disconnect */
        "0804"
        "2a00", /* a question for the DHT that is none */
        "08018b",
    };
    struct mu_p2pd_request r;

    (void)unused;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (mu_p2pd_request_decode(hex(0, bad[i]), &r) != MUSTER_EPROTO) {
            fail_msg("\"%s\" was read", bad[i]);
        }
    }
}

static void test_p2pd_msg_parameters_that_are_left_out_are_told(void **unused)
{
    struct mu_p2pd_request r;

    (void)unused;
    for (uint8_t type = 0; type <= MU_P2PD_TYPE_MAX; type++) {
        uint8_t bytes[2] = {8, type};

        assert_int_equal(mu_p2pd_request_decode(mu_span(bytes, 2), &r), 0);
        assert_int_equal(r.type, type);
        assert_false(r.given);
    }
}

/* --- responses -------------------------------------------------------------------------------- */

static void test_p2pd_msg_stream_info_comes_back(void **unused)
{
    struct mu_p2pd_stream_info info = {hex(0, PEER_D), hex(1, "047f000001060fa1"),
                                       mu_span_str("a.b")};
    struct mu_p2pd_stream_info again;
    struct mu_p2pd_response r;

    (void)unused;
    assert_int_equal(mu_p2pd_put_stream_info(&buf, &info), 0);
    assert_int_equal(mu_p2pd_stream_info_decode(mu_span_skip(mu_buf_span(&buf), 1), &again), 0);
    assert_true(mu_span_eq(again.peer, info.peer));
    assert_true(mu_span_eq(again.addr, info.addr));
    assert_true(mu_span_eq(again.name, info.name));
    mu_buf_reset(&buf);

    assert_int_equal(mu_p2pd_put_stream(&buf, &info), 0);
    assert_int_equal(mu_p2pd_response_decode(mu_span_skip(mu_buf_span(&buf), 1), &r), 0);
    assert_true(r.ok);
    assert_true(mu_span_eq(r.peer, info.peer));
    assert_true(mu_span_eq(r.name, info.name));
    assert_int_equal(mu_p2pd_stream_info_decode(hex(2, "0a01aa1a0162"), &again), MUSTER_EPROTO);
}

static void test_p2pd_msg_peers_are_listed(void **unused)
{
    struct mu_span addr = hex(0, "bb");
    struct mu_p2pd_peer peers[2] = {{hex(1, "a1"), &addr, 1}, {hex(2, "a2"), NULL, 0}};
    struct mu_p2pd_response r;

    (void)unused;
    assert_int_equal(mu_p2pd_put_peers(&buf, peers, 2), 0);
    assert_int_equal(mu_p2pd_response_decode(mu_span_skip(mu_buf_span(&buf), 1), &r), 0);
    assert_int_equal(r.peers, 2);
    assert_written("0f080032060a01a11201bb32030a01a2");
}

static void test_p2pd_msg_dht_answers_are_wrapped_or_bare(void **unused)
{
    (void)unused;
    assert_int_equal(mu_p2pd_put_dht(&buf, false, MU_P2PD_DHT_BEGIN, NULL, (struct mu_span){0}), 0);
    assert_written("0608002a020800");
    assert_int_equal(mu_p2pd_put_dht(&buf, true, MU_P2PD_DHT_VALUE, NULL, hex(0, "abcd")), 0);
    assert_written("0608011a02abcd");
    assert_int_equal(mu_p2pd_put_dht(&buf, true, MU_P2PD_DHT_END, NULL, (struct mu_span){0}), 0);
    assert_written("020802");
}

/* --- calls ------------------------------------------------------------------------------------ */

static void assert_call(const struct mu_p2pd_call *call, const char *want)
{
    assert_int_equal(mu_p2pd_call_encode(&buf, call), 0);
    assert_int_equal(buf.len, mu_p2pd_call_len(call));
    assert_written(want);
}

static void test_p2pd_msg_calls_are_as_described(void **unused)
{
    struct mu_span id = hex(0, ID);
    struct mu_p2pd_call call = {.kind = MU_P2PD_ADD_UNARY, .id = id, .name = hex(1, PING)};

    (void)unused;
    assert_call(&call, "2c0a10" ID "12180a14" PING "1000");
    call.kind = MU_P2PD_NOTHING;
    assert_call(&call, "120a10" ID);
    call.kind = MU_P2PD_CALL_UNARY;
    call.peer = hex(2, PEER_L);
    call.data = hex(3, "12160a14" N01 "1801");
    assert_call(&call, "6e0a10" ID "1a5a0a26" PEER_L "1214" PING "1a1a12160a14" N01 "1801");
    call.kind = MU_P2PD_REQUEST;
    call.peer = hex(2, PEER_D);
    assert_call(&call, "6e0a10" ID "1a5a0a26" PEER_D "1214" PING "1a1a12160a14" N01 "1801");
    call.kind = MU_P2PD_UNARY_RESPONSE;
    call.body = hex(3, "0a2312160a14" N02 "210000600aea8dd8412801");
    assert_call(&call, "390a10" ID "22250a2312160a14" N02 "210000600aea8dd8412801");
    call.kind = MU_P2PD_CALL_RESPONSE;
    assert_call(&call, "390a10" ID "12250a2312160a14" N02 "210000600aea8dd8412801");
    call.kind = MU_P2PD_CANCEL;
    assert_call(&call, "140a10" ID "2a00");
    call.kind = MU_P2PD_DAEMON_ERROR;
    call.data = mu_span_str("x");
    assert_call(&call, "170a10" ID "22030a0178");
}

static void test_p2pd_msg_calls_are_read(void **unused)
{
    struct mu_p2pd_call call;
    struct mu_span data;

    (void)unused;
    assert_int_equal(mu_p2pd_call_decode(body(0, "2c0a10" ID "12180a14" PING "1001"), &call), 0);
    assert_int_equal(call.kind, MU_P2PD_ADD_UNARY);
    assert_true(call.balanced);
    assert_true(mu_span_eq(call.name, mu_span_str("DHTProtocol.rpc_ping")));
    assert_int_equal(
        mu_p2pd_call_decode(
            body(0, "6e0a10" ID "1a5a0a26" PEER_L "1214" PING "1a1a12160a14" N01 "1801"), &call),
        0);
    assert_int_equal(call.kind, MU_P2PD_CALL_UNARY);
    assert_true(mu_span_eq(call.peer, hex(1, PEER_L)));
    assert_int_equal(call.data.len, 26);
    assert_int_equal(mu_p2pd_call_decode(body(0, "140a10" ID "2a00"), &call), 0);
    assert_int_equal(call.kind, MU_P2PD_CANCEL);
    assert_int_equal(mu_p2pd_call_decode(body(0, "170a10" ID "32030a0178"), &call), 0);
    assert_int_equal(call.kind, MU_P2PD_REMOVE_UNARY);

    assert_int_equal(mu_p2pd_answer_decode(body(0, "170a10" ID "22030a0178"), &call), 0);
    assert_int_equal(call.kind, MU_P2PD_DAEMON_ERROR);
    assert_true(mu_span_eq(call.data, mu_span_str("x")));
    assert_int_equal(mu_p2pd_answer_decode(body(0, "120a10" ID), &call), 0);
    assert_int_equal(call.kind, MU_P2PD_NOTHING);
    assert_int_equal(mu_p2pd_answer_decode(body(0, "170a10" ID "12030a0178"), &call), 0);
    assert_true(mu_p2pd_body_decode(call.body, &data));
    assert_true(mu_span_eq(data, mu_span_str("x")));
    assert_int_equal(mu_p2pd_answer_decode(body(0, "170a10" ID "1203120178"), &call), 0);
    assert_false(mu_p2pd_body_decode(call.body, &data));
    assert_true(mu_span_eq(data, mu_span_str("x")));
}

static void test_p2pd_msg_of_two_messages_in_a_call_the_last_counts(void **unused)
{
    struct mu_p2pd_call call;

    (void)unused;
    assert_int_equal(mu_p2pd_call_decode(hex(0, "12080a046e616d651001"
                                                "2a00"
                                                "0a10" ID),
                                         &call),
                     0);
    assert_int_equal(call.kind, MU_P2PD_CANCEL);
    assert_int_equal(call.name.len, 0);
    assert_false(call.balanced);
    assert_int_equal(call.id.len, MU_P2PD_CALL_ID_LEN);
}

static void test_p2pd_msg_calls_that_cannot_be_read_are_refused(void **unused)
{
    static const char *const bad[] = {
        "",
        "2a00",                               /* no id */
        "0a0f000102030405060708090a0b0c0d0e", /* a short one */
        "0a10" ID "1200",                     /* a handler for nothing */
        "0a10" ID "1a030a01aa",               /* a call of nothing */
        "0a10" ID "1a060a01aa1201bb",         /* without data */
        "0a10" ID "22020a05",                 /* cut off */
        "0a10" ID "2a",
    };
    struct mu_p2pd_call call;

    (void)unused;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (mu_p2pd_call_decode(hex(0, bad[i]), &call) != MUSTER_EPROTO) {
            fail_msg("\"%s\" was read", bad[i]);
        }
    }
}

static void test_p2pd_msg_without_memory_nothing_is_written(void **unused)
{
    struct mu_span addr = hex(0, "bb");
    struct mu_p2pd_peer peer = {hex(1, "a1"), &addr, 1};
    struct mu_p2pd_stream_info info = {peer.id, addr, mu_span_str("n")};
    struct mu_p2pd_request r = {.type = MU_P2PD_CONNECT, .peer = peer.id, .addr = addr};
    bool fired = true;

    (void)unused;
    for (long nth = 0; fired; nth++) {
        int errs[6];

        mu_buf_fini(&buf);
        failheap_arm(nth);
        errs[0] = mu_p2pd_put_identify(&buf, &peer);
        errs[1] = mu_p2pd_put_peers(&buf, &peer, 1);
        errs[2] = mu_p2pd_put_stream(&buf, &info);
        errs[3] = mu_p2pd_put_dht(&buf, false, MU_P2PD_DHT_VALUE, &peer, addr);
        errs[4] = mu_p2pd_request_encode(&buf, &r, (struct mu_span){0});
        errs[5] = mu_p2pd_put_error(&buf, "why");
        fired = failheap_fired();
        failheap_disarm();
        for (size_t i = 0; i < 6; i++) {
            assert_true(errs[i] == 0 || (fired && errs[i] == MUSTER_ENOMEM));
        }
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_p2pd_msg_identify_is_as_described),
        TEST(test_p2pd_msg_error_and_ok_are_as_described),
        TEST(test_p2pd_msg_upgrade_has_no_parameters),
        TEST(test_p2pd_msg_stream_handler_is_as_described),
        TEST(test_p2pd_msg_connect_may_have_several_addresses),
        TEST(test_p2pd_msg_request_without_what_it_must_have_is_refused),
        TEST(test_p2pd_msg_parameters_that_are_left_out_are_told),
        TEST(test_p2pd_msg_stream_info_comes_back),
        TEST(test_p2pd_msg_peers_are_listed),
        TEST(test_p2pd_msg_dht_answers_are_wrapped_or_bare),
        TEST(test_p2pd_msg_calls_are_as_described),
        TEST(test_p2pd_msg_calls_are_read),
        TEST(test_p2pd_msg_of_two_messages_in_a_call_the_last_counts),
        TEST(test_p2pd_msg_calls_that_cannot_be_read_are_refused),
        TEST(test_p2pd_msg_without_memory_nothing_is_written),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* The DHT's messages: bytes that hivemind makes, both ways, and what is refused. */
#include "unit.h"

#include <muster/error.h>

#include "codec/dht/dict.h"
#include "codec/dht/msg.h"
#include "codec/bin/msgpack.h"
#include "failheap.h"
#include "hex.h"
#include "proto/dht/node.h"

#define TWENTY_01 "0101010101010101010101010101010101010101"
#define TWENTY_02 "0202020202020202020202020202020202020202"
#define PEER_11   "12201111111111111111111111111111111111111111111111111111111111111111"
#define PEER_22   "12202222222222222222222222222222222222222222222222222222222222222222"

static struct mu_buf buf;

static int set_up(void **unused)
{
    (void)unused;
    mu_buf_init(&buf, 1 << 20);
    return 0;
}

static int tear_down(void **unused)
{
    (void)unused;
    mu_buf_fini(&buf);
    return 0;
}

static void assert_buf(const char *hex)
{
    uint8_t want[512];
    size_t len = hex_decode(want, sizeof(want), hex);

    assert_int_equal(buf.len, len);
    assert_memory_equal(mu_buf_span(&buf).data, want, len);
}

static struct mu_dht_head head_of(uint8_t byte)
{
    struct mu_dht_head head = {.has_node = true};

    memset(head.node.bytes, byte, MU_DHT_ID_LEN);
    return head;
}

static void test_dht_ids_of_keys_are_those_of_hivemind(void **unused)
{
    static const struct {
        const char *text;
        const char *id;
    } cases[] = {
        {"albert_state_averager.all_averagers", "b5b9c852e775fe82eba1b7d3e048d3df6d3c13c4"},
        {"albert_progress", "31c5664fac2c91c3923edf3e86480f55130b9703"},
        {"albert_state_averager.0b", "ef125e7bc95f32e3f462abc5643791136961fd52"},
        {"", "c7da1ff95a25c353f1319604703e8bfd287ee1a1"},
        {"k", "890c7ff59e0ac51d94b4792f16e909651a34ab12"},
    };
    uint8_t want[MU_DHT_ID_LEN];
    struct mu_dht_id id;

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        hex_decode(want, sizeof(want), cases[i].id);
        assert_int_equal(mu_dht_key_text(mu_span_str(cases[i].text), &id), 0);
        assert_memory_equal(id.bytes, want, MU_DHT_ID_LEN);
    }
    hex_decode(want, sizeof(want), "ce15802a8c5e8e9db0ffaf10130ef265296e9ea4");
    id = mu_dht_key(MU_SPAN_LIT("raw"));
    assert_memory_equal(id.bytes, want, MU_DHT_ID_LEN);
}

static void test_dht_ping_is_that_of_hivemind(void **unused)
{
    struct mu_dht_ping ping = {.head = head_of(1), .validate = true};
    struct mu_dht_ping_reply reply = {
        .head = head_of(2), .dht_time = 1647814697.5, .available = true};
    struct mu_dht_ping back;
    struct mu_dht_ping_reply reply_back;

    (void)unused;
    assert_int_equal(mu_dht_ping_encode(&buf, &ping), 0);
    assert_buf("12160a14" TWENTY_01 "1801");
    assert_int_equal(mu_dht_ping_decode(mu_buf_span(&buf), &back), 0);
    assert_true(back.validate && back.head.has_node);
    assert_true(mu_dht_id_eq(&back.head.node, &ping.head.node));
    mu_buf_reset(&buf);
    assert_int_equal(mu_dht_ping_reply_encode(&buf, &reply), 0);
    assert_buf("12160a14" TWENTY_02 "210000600aea8dd8412801");
    assert_int_equal(mu_dht_ping_reply_decode(mu_buf_span(&buf), &reply_back), 0);
    assert_true(reply_back.available && reply_back.dht_time == 1647814697.5);
    assert_true(mu_dht_id_eq(&reply_back.head.node, &reply.head.node));
}

static void test_dht_store_of_a_subkey_is_that_of_hivemind(void **unused)
{
    struct mu_dht_head head = head_of(1);
    uint8_t tag[64];
    uint8_t value[16];
    struct mu_dht_item item = {
        .tag = mu_span(tag, hex_decode(tag, sizeof(tag), "c422" PEER_11)),
        .value = mu_span(value, hex_decode(value, sizeof(value), "cb40aeba0000000000")),
        .expiration = 1647814697.5,
    };
    struct mu_dht_item back;
    struct mu_dht_store store;

    (void)unused;
    hex_decode(item.key.bytes, MU_DHT_ID_LEN, "b5b9c852e775fe82eba1b7d3e048d3df6d3c13c4");
    assert_int_equal(mu_dht_store_encode(&buf, &head, &item, 1), 0);
    assert_buf("1214b5b9c852e775fe82eba1b7d3e048d3df6d3c13c4 1a24c422" PEER_11
               "2209cb40aeba0000000000 2a080000600aea8dd841 320100 3a160a14" TWENTY_01);
    assert_int_equal(mu_dht_store_decode(mu_buf_span(&buf), &store), 0);
    assert_int_equal(store.count, 1);
    assert_true(mu_dht_store_next(&store, &back));
    assert_true(mu_dht_id_eq(&back.key, &item.key) && mu_span_eq(back.tag, item.tag) &&
                mu_span_eq(back.value, item.value) && back.expiration == item.expiration &&
                !back.in_cache);
    assert_false(mu_dht_store_next(&store, &back));
}

static void test_dht_store_of_a_client_is_that_of_hivemind(void **unused)
{
    struct mu_dht_head head = {0};
    struct mu_dht_item item = {.tag = MU_DHT_TAG_REGULAR,
                               .value = MU_SPAN_LIT("\xa1v"),
                               .expiration = 1647814697.5,
                               .in_cache = true};
    struct mu_dht_store store;

    (void)unused;
    assert_int_equal(mu_dht_key_text(MU_SPAN_LIT("k"), &item.key), 0);
    assert_int_equal(mu_dht_store_encode(&buf, &head, &item, 1), 0);
    assert_buf("1214890c7ff59e0ac51d94b4792f16e909651a34ab12 1a01c0 2202a176 2a080000600aea8dd841"
               "320101 3a00");
    assert_int_equal(mu_dht_store_decode(mu_buf_span(&buf), &store), 0);
    assert_false(store.head.has_node);
}

static void test_dht_dictionary_is_that_of_hivemind(void **unused)
{
    uint8_t a[64];
    uint8_t b[64];
    uint8_t value[16];
    struct mu_dht_entry entries[] = {
        {mu_span(a, hex_decode(a, sizeof(a), "c422" PEER_11)),
         mu_span(value, hex_decode(value, sizeof(value), "cb40aeba0000000000")), 1647814697.5},
        {mu_span(b, hex_decode(b, sizeof(b), "c422" PEER_22)), MU_SPAN_LIT("\xc0"), 1647814700.25},
    };
    size_t bytes = mu_dht_entry_len(&entries[0]) + mu_dht_entry_len(&entries[1]);
    struct mu_dht_dict dict;
    struct mu_dht_entry e;

    (void)unused;
    assert_int_equal(mu_dht_dict_begin(&buf, 1647814700.25, 2, bytes), 0);
    assert_int_equal(mu_dht_dict_put(&buf, &entries[0]), 0);
    assert_int_equal(mu_dht_dict_put(&buf, &entries[1]), 0);
    assert_buf("c77e50 93 cb7ff0000000000000 cb41d88dea0b100000 92 93 c422" PEER_11
               "c409cb40aeba0000000000 cb41d88dea0a600000 93 c422" PEER_22
               "c401c0 cb41d88dea0b100000");
    assert_int_equal(mu_dht_dict_len(2, bytes), buf.len);
    assert_int_equal(mu_dht_dict_decode(mu_buf_span(&buf), &dict), 0);
    assert_int_equal(dict.count, 2);
    assert_true(dict.latest == 1647814700.25);
    for (int i = 0; i < 2; i++) {
        assert_true(mu_dht_dict_next(&dict, &e));
        assert_true(mu_span_eq(e.subkey, entries[i].subkey));
        assert_true(mu_span_eq(e.value, entries[i].value));
        assert_true(e.expiration == entries[i].expiration);
    }
    assert_false(mu_dht_dict_next(&dict, &e));
    for (size_t cut = 0; cut < buf.len; cut++) {
        assert_int_equal(mu_dht_dict_decode(mu_span(mu_buf_span(&buf).data, cut), &dict),
                         MUSTER_EPROTO);
    }
}

static void test_dht_find_goes_there_and_back(void **unused)
{
    struct mu_dht_head head = head_of(9);
    struct mu_dht_neighbour near[3] = {0};
    struct mu_dht_finding findings[] = {
        {.type = MU_DHT_FOUND_DICTIONARY,
         .value = MU_SPAN_LIT("xyz"),
         .expiration = 12.5,
         .near = near,
         .near_count = 3},
        {.type = MU_DHT_NOT_FOUND},
        {.type = MU_DHT_FOUND_REGULAR,
         .value = MU_SPAN_LIT(""),
         .expiration = 1,
         .near = near,
         .near_count = 1},
    };
    uint8_t peer[64];
    size_t len = hex_decode(peer, sizeof(peer), PEER_11);
    struct mu_dht_find_reply reply;

    (void)unused;
    for (uint8_t i = 0; i < 3; i++) {
        memset(near[i].node.bytes, i + 1, MU_DHT_ID_LEN);
        peer[5] = i;
        assert_int_equal(mu_peer_id_from_bytes(&near[i].peer, mu_span(peer, len)), 0);
    }
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mu_dht_finding_encode(&buf, &findings[i]), 0);
    }
    assert_int_equal(mu_dht_find_reply_end(&buf, &head), 0);
    assert_int_equal(mu_dht_find_reply_decode(mu_buf_span(&buf), &reply), 0);
    assert_int_equal(reply.count, 3);
    assert_true(mu_dht_id_eq(&reply.head.node, &head.node));
    for (int i = 0; i < 3; i++) {
        struct mu_dht_neighbour n;
        struct mu_dht_found found;

        assert_true(mu_dht_find_reply_next(&reply, &found));
        assert_int_equal(found.type, findings[i].type);
        assert_true(mu_span_eq(found.value, findings[i].value));
        assert_true(found.expiration == findings[i].expiration);
        assert_int_equal(found.near_count, findings[i].near_count);
        for (size_t j = 0; j < findings[i].near_count; j++) {
            assert_true(mu_dht_found_next(&found, &n));
            assert_true(mu_dht_id_eq(&n.node, &near[j].node));
            assert_true(mu_peer_id_eq(&n.peer, &near[j].peer));
        }
        assert_false(mu_dht_found_next(&found, &n));
    }
}

static void test_dht_messages_that_do_not_fit_together_are_refused(void **unused)
{
    static const char *const stores[] = {
        "1214" TWENTY_01, /* a key without a value */
        "1213"
        "01010101010101010101010101010101010101",                  /* an id of 19 bytes */
        "1214" TWENTY_01 "1a01c0 2200 2a07 00000000000000 320100", /* seven bytes of a double */
        "1214" TWENTY_01 "1a01c0 2200 2a08 0000000000000000 320200 00", /* two flags, one key */
        "3a030a0101",                                                   /* a node id of one byte */
        "10 01",                                                        /* a key that is a number */
    };
    struct mu_dht_find_reply reply;
    struct mu_dht_store store;
    uint8_t bytes[128];
    size_t len;

    (void)unused;
    for (size_t i = 0; i < sizeof(stores) / sizeof(stores[0]); i++) {
        len = hex_decode(bytes, sizeof(bytes), stores[i]);
        assert_int_equal(mu_dht_store_decode(mu_span(bytes, len), &store), MUSTER_EPROTO);
    }
    len = hex_decode(bytes, sizeof(bytes), "1216 2214" TWENTY_01); /* a node without its peer */
    assert_int_equal(mu_dht_find_reply_decode(mu_span(bytes, len), &reply), MUSTER_EPROTO);
    len = hex_decode(bytes, sizeof(bytes), "1202 0803"); /* a kind of result that there is not */
    assert_int_equal(mu_dht_find_reply_decode(mu_span(bytes, len), &reply), MUSTER_EPROTO);
}

static void test_dht_numbers_may_be_packed_or_not(void **unused)
{
    uint8_t bytes[128];
    size_t len = hex_decode(bytes, sizeof(bytes),
                            "1214" TWENTY_01 "1214" TWENTY_02 "1a01c0 1a01c0 2200 2200"
                            "29 0000600aea8dd841 2a08 0000600aea8dd841 3001 320100");
    struct mu_dht_store store;
    struct mu_dht_item item;

    (void)unused;
    assert_int_equal(mu_dht_store_decode(mu_span(bytes, len), &store), 0);
    assert_int_equal(store.count, 2);
    assert_true(mu_dht_store_next(&store, &item) && item.in_cache &&
                item.expiration == 1647814697.5);
    assert_true(mu_dht_store_next(&store, &item) && !item.in_cache &&
                item.expiration == 1647814697.5);
}

static void test_dht_wrapper_can_be_put_on_and_taken_off(void **unused)
{
    struct mu_dht_auth auth = {.token = MU_SPAN_LIT("token"),
                               .service_key = MU_SPAN_LIT("key"),
                               .time = 2.5,
                               .nonce = MU_SPAN_LIT("12345678"),
                               .signature = MU_SPAN_LIT("sig")};
    struct mu_dht_ping ping = {.head = head_of(1)};
    struct mu_dht_auth back;
    struct mu_span found;
    struct mu_buf wrapper;
    struct mu_buf whole;

    (void)unused;
    mu_buf_init(&wrapper, 256);
    mu_buf_init(&whole, 256);
    assert_int_equal(mu_dht_auth_encode(&wrapper, &auth), 0);
    assert_int_equal(mu_dht_ping_encode(&buf, &ping), 0);
    assert_int_equal(mu_dht_auth_replace(&whole, mu_buf_span(&buf), mu_buf_span(&wrapper)), 0);
    assert_int_equal(mu_dht_auth_find(mu_buf_span(&whole), &found), 0);
    assert_true(mu_span_eq(found, mu_buf_span(&wrapper)));
    assert_int_equal(mu_dht_auth_decode(found, &back), 0);
    assert_true(mu_span_eq(back.token, auth.token) && back.time == 2.5 &&
                mu_span_eq(back.nonce, auth.nonce) && mu_span_eq(back.signature, auth.signature) &&
                mu_span_eq(back.service_key, auth.service_key));
    assert_int_equal(mu_dht_ping_decode(mu_buf_span(&whole), &ping), 0);
    assert_true(mu_span_eq(ping.head.auth, found) && ping.head.has_node);
    mu_buf_fini(&wrapper);
    mu_buf_fini(&whole);
}

#define T(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        T(test_dht_ids_of_keys_are_those_of_hivemind),
        T(test_dht_ping_is_that_of_hivemind),
        T(test_dht_store_of_a_subkey_is_that_of_hivemind),
        T(test_dht_store_of_a_client_is_that_of_hivemind),
        T(test_dht_dictionary_is_that_of_hivemind),
        T(test_dht_find_goes_there_and_back),
        T(test_dht_messages_that_do_not_fit_together_are_refused),
        T(test_dht_numbers_may_be_packed_or_not),
        T(test_dht_wrapper_can_be_put_on_and_taken_off),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

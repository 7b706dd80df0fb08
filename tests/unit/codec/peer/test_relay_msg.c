/* The messages of relays: the bytes that js-libp2p writes, both ways; every cut, and what cannot be
 * read. */
#include "unit.h"

#include <muster/error.h>

#include "codec/peer/multiaddr.h"
#include "codec/peer/relay_msg.h"
#include "core/prng.h"
#include "crypto/relay_voucher.h"
#include "failheap.h"
#include "hex.h"

#define PEER_A "0024080112208a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"
#define PEER_B "0024080112208139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394"
#define EXPIRE 1900000000
#define VOUCHER                                                                                    \
    "0a24080112208a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c120203021a560a2"  \
    "6" PEER_A "1226" PEER_B                                                                       \
    "1880e6fe89072a402f78fdeb414eba5b2e1f2970937b919a9d7d27d65d66bcf4a385dd9e"                     \
    "760eb3e1e31e3af6da6b55b0cd7114c0c14ba21486a9aebeed000400f7602c744fd80304"

static struct mu_peer_id id_of(const char *hex)
{
    uint8_t bytes[MU_PEER_ID_MAX];
    struct mu_peer_id id;

    assert_int_equal(
        mu_peer_id_from_bytes(&id, mu_span(bytes, hex_decode(bytes, sizeof(bytes), hex))), 0);
    return id;
}

/* Encodes to the bytes of the hex with their length before them, and gives them back decoded. */
static struct mu_relay_msg assert_bytes(enum mu_relay_side side, const struct mu_relay_out *say,
                                        const char *hex)
{
    static uint8_t want[512];
    size_t len = hex_decode(want + 1, sizeof(want) - 1, hex);
    struct mu_relay_msg msg;
    struct mu_buf out;

    assert_true(len < 128);
    want[0] = (uint8_t)len;
    mu_buf_init(&out, 1024);
    assert_int_equal(mu_relay_msg_encode(side, say, &out), 0);
    assert_int_equal(out.len, len + 1);
    assert_memory_equal(mu_buf_span(&out).data, want, len + 1);
    mu_buf_fini(&out);
    assert_int_equal(mu_relay_msg_decode(side, mu_span(want + 1, len), &msg), 0);
    assert_int_equal(msg.type, say->type);
    assert_int_equal(msg.status, say->status);
    return msg;
}

static void test_relay_hop_messages_are_those_of_js(void **unused)
{
    struct mu_peer_id b = id_of(PEER_B);
    uint8_t addr[] = {0x04, 127, 0, 0, 1, 0x06, 0x0f, 0xa1};
    struct mu_span addrs[] = {mu_span(addr, sizeof(addr))};
    struct mu_relay_out say = {.type = MU_RELAY_RESERVE};
    struct mu_relay_msg msg;
    struct mu_span got;

    (void)unused;
    msg = assert_bytes(MU_RELAY_HOP, &say, "0800");
    assert_true(!msg.reserved && !msg.limited && msg.peer.len == 0);
    say = (struct mu_relay_out){.type = MU_RELAY_CONNECT, .peer = &b};
    msg = assert_bytes(MU_RELAY_HOP, &say, "080112280a26" PEER_B);
    assert_true(mu_peer_id_eq(&msg.peer, &b));
    say = (struct mu_relay_out){.type = MU_RELAY_STATUS, .status = MU_RELAY_NO_RESERVATION};
    (void)assert_bytes(MU_RELAY_HOP, &say, "080228cc01");
    say = (struct mu_relay_out){.type = MU_RELAY_STATUS,
                                .status = MU_RELAY_OK,
                                .expire_s = EXPIRE,
                                .addrs = addrs,
                                .addr_count = 1,
                                .voucher = MU_SPAN_LIT("\x01\x02\x03"),
                                .limit = {1800, (uint64_t)1 << 32}};
    msg = assert_bytes(MU_RELAY_HOP, &say,
                       "08021a150880e6fe89071208047f000001060fa11a03010203220908880e108080808010"
                       "2864");
    assert_true(msg.reserved && msg.limited);
    assert_int_equal(msg.expire_s, EXPIRE);
    assert_int_equal(msg.limit.duration_s, 1800);
    assert_int_equal(msg.limit.data_bytes, (uint64_t)1 << 32);
    assert_int_equal(msg.voucher.len, 3);
    assert_true(mu_relay_next_addr(&msg.addrs, &got));
    assert_true(mu_span_eq(got, addrs[0]));
    assert_false(mu_relay_next_addr(&msg.addrs, &got));
}

static void test_relay_stop_messages_are_those_of_js(void **unused)
{
    struct mu_peer_id b = id_of(PEER_B);
    struct mu_relay_out say = {
        .type = MU_RELAY_CONNECT, .peer = &b, .limit = {.duration_s = 120, .data_bytes = 131072}};
    struct mu_relay_msg msg;

    (void)unused;
    msg = assert_bytes(MU_RELAY_STOP, &say, "080012280a26" PEER_B "1a06087810808008");
    assert_true(mu_peer_id_eq(&msg.peer, &b) && msg.limited);
    assert_int_equal(msg.limit.duration_s, 120);
    assert_int_equal(msg.limit.data_bytes, 131072);
    say = (struct mu_relay_out){.type = MU_RELAY_STATUS, .status = MU_RELAY_OK};
    (void)assert_bytes(MU_RELAY_STOP, &say, "08012064");
}

static void test_relay_messages_that_cannot_be_are_refused(void **unused)
{
    static const struct {
        enum mu_relay_side side;
        const char *hex;
    } bad[] = {
        {MU_RELAY_HOP, ""},      /* no type */
        {MU_RELAY_HOP, "2864"},  /* likewise */
        {MU_RELAY_HOP, "0803"},  /* one that there is none of */
        {MU_RELAY_STOP, "0802"}, /* likewise, on this side */
        {MU_RELAY_HOP, "08ffffffffffffffffff01"},
        {MU_RELAY_HOP, "0801"},             /* to nobody */
        {MU_RELAY_HOP, "08011200"},         /* to nobody */
        {MU_RELAY_HOP, "080112040a020001"}, /* to what is no peer */
        {MU_RELAY_STOP, "0800"},            /* from nobody */
        {MU_RELAY_HOP, "08001a05"},         /* cut off */
        {MU_RELAY_HOP, "08021a020aff"},     /* cut off within */
        {MU_RELAY_HOP, "080222020aff"},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint8_t bytes[64];
        struct mu_relay_msg msg = {.status = 77};
        size_t len = hex_decode(bytes, sizeof(bytes), bad[i].hex);

        if (mu_relay_msg_decode(bad[i].side, mu_span(bytes, len), &msg) != MUSTER_EPROTO) {
            fail_msg("%s was read", bad[i].hex);
        }
        assert_int_equal(msg.status, 77);
    }
}

static void test_relay_message_that_is_too_long_is_not_written(void **unused)
{
    static uint8_t big[MU_RELAY_MSG_MAX];
    struct mu_relay_out say = {
        .type = MU_RELAY_STATUS, .expire_s = 1, .voucher = mu_span(big, sizeof(big))};
    struct mu_buf out;

    (void)unused;
    mu_buf_init(&out, 10000);
    assert_int_equal(mu_relay_msg_encode(MU_RELAY_HOP, &say, &out), MUSTER_ELIMIT);
    assert_int_equal(out.len, 0);
    mu_buf_fini(&out);
}

/* Feeds all in pieces of at most `chunk`; collects the messages, each behind a bar. */
static int feed(struct mu_relay_in *in, struct mu_span bytes, size_t chunk, struct mu_buf *out)
{
    while (bytes.len != 0) {
        struct mu_span piece = mu_span(bytes.data, bytes.len < chunk ? bytes.len : chunk);
        struct mu_span msg;
        size_t used = 0;
        int err = mu_relay_in_recv(in, piece, &used, &msg);

        if (err < 0) {
            return err;
        }
        assert_true(used > 0 && used <= piece.len);
        if (err == 1) {
            assert_int_equal(mu_buf_append(out, MU_SPAN_LIT("|")), 0);
            assert_int_equal(mu_buf_append(out, msg), 0);
        }
        bytes = mu_span_skip(bytes, used);
    }
    return 0;
}

static void test_relay_in_takes_messages_however_they_are_cut(void **unused)
{
    static uint8_t bytes[6000];
    struct mu_buf all;
    size_t len = 0;

    (void)unused;
    mu_buf_init(&all, 20000);
    len += hex_decode(bytes, sizeof(bytes), "020800 04080220641e");
    memset(bytes + len, 'x', 30);
    len += 30;
    bytes[len++] = 0x80; /* as long as one may be */
    bytes[len++] = 0x20;
    memset(bytes + len, 'y', MU_RELAY_MSG_MAX);
    len += MU_RELAY_MSG_MAX;
    for (size_t chunk = 1; chunk < sizeof(bytes); chunk = chunk < 70 ? chunk + 1 : chunk * 3) {
        struct mu_relay_in in;
        struct mu_buf out;

        mu_buf_init(&out, 20000);
        mu_relay_in_init(&in);
        assert_int_equal(feed(&in, mu_span(bytes, len), chunk, &out), 0);
        assert_int_equal(out.len, 4 + 2 + 4 + 30 + MU_RELAY_MSG_MAX);
        if (chunk == 1) {
            assert_int_equal(mu_buf_append(&all, mu_buf_span(&out)), 0);
        }
        assert_true(mu_span_eq(mu_buf_span(&all), mu_buf_span(&out)));
        mu_relay_in_fini(&in);
        mu_buf_fini(&out);
    }
    mu_buf_fini(&all);
}

static void test_relay_in_leaves_what_is_behind_the_message(void **unused)
{
    struct mu_relay_in in;
    struct mu_span msg;
    size_t used = 0;

    (void)unused;
    mu_relay_in_init(&in);
    assert_int_equal(mu_relay_in_recv(&in, MU_SPAN_LIT("\x02\x08\x01hello"), &used, &msg), 1);
    assert_int_equal(used, 3);
    assert_true(mu_span_eq(msg, MU_SPAN_LIT("\x08\x01")));
    mu_relay_in_fini(&in);
}

static void test_relay_in_is_poisoned_by_what_cannot_be(void **unused)
{
    static const struct {
        const char *hex;
        int err;
    } bad[] = {{"00", MUSTER_EPROTO},
               {"8120", MUSTER_ELIMIT},
               {"ffff", MUSTER_ELIMIT},
               {"8000", MUSTER_EPROTO}};

    (void)unused;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct mu_relay_in in;
        struct mu_span msg;
        uint8_t bytes[8];
        size_t len = hex_decode(bytes, sizeof(bytes), bad[i].hex);
        size_t used;

        mu_relay_in_init(&in);
        assert_int_equal(mu_relay_in_recv(&in, mu_span(bytes, len), &used, &msg), bad[i].err);
        assert_int_equal(mu_relay_in_recv(&in, MU_SPAN_LIT("\x02\x08\x01"), &used, &msg),
                         bad[i].err);
        mu_relay_in_fini(&in);
    }
}

static void test_relay_in_takes_nothing_without_memory(void **unused)
{
    struct mu_relay_in in;
    struct mu_span msg;
    size_t used = 77;

    (void)unused;
    mu_relay_in_init(&in);
    failheap_arm(0);
    assert_int_equal(mu_relay_in_recv(&in, MU_SPAN_LIT("\x02\x08\x01"), &used, &msg),
                     MUSTER_ENOMEM);
    failheap_disarm();
    assert_int_equal(used, 77);
    assert_int_equal(mu_relay_in_recv(&in, MU_SPAN_LIT("\x02\x08\x01"), &used, &msg), 1);
    mu_relay_in_fini(&in);
}

static void test_relay_in_survives_garbage(void **unused)
{
    struct mu_prng prng;

    (void)unused;
    mu_prng_seed(&prng, 4);
    for (int round = 0; round < 2000; round++) {
        uint8_t bytes[200];
        struct mu_relay_in in;
        struct mu_buf out;

        for (size_t i = 0; i < sizeof(bytes); i++) {
            bytes[i] = (uint8_t)mu_prng_below(&prng, round % 2 == 0 ? 256 : 24);
        }
        mu_buf_init(&out, 1000);
        mu_relay_in_init(&in);
        if (feed(&in, mu_span(bytes, sizeof(bytes)), 1 + (size_t)mu_prng_below(&prng, 50), &out) ==
            0) {
            struct mu_relay_msg msg;

            (void)mu_relay_msg_decode(MU_RELAY_HOP, mu_buf_span(&out), &msg);
        }
        mu_relay_in_fini(&in);
        mu_buf_fini(&out);
    }
}

static void test_relay_voucher_of_js_is_good(void **unused)
{
    uint8_t bytes[512];
    size_t len = hex_decode(bytes, sizeof(bytes), VOUCHER);
    struct mu_peer_id a = id_of(PEER_A);
    struct mu_peer_id b = id_of(PEER_B);
    struct mu_relay_voucher voucher;
    struct mu_identity identity;
    uint8_t seed[MU_IDENTITY_SEED_LEN];
    struct mu_buf out;

    (void)unused;
    assert_int_equal(mu_relay_voucher_open(mu_span(bytes, len), &voucher), 0);
    assert_true(mu_peer_id_eq(&voucher.relay, &a) && mu_peer_id_eq(&voucher.peer, &b));
    assert_int_equal(voucher.expire_s, EXPIRE);
    /* And what we seal is the same: Ed25519 signs without chance. */
    memset(seed, 1, sizeof(seed));
    assert_int_equal(mu_identity_from_seed(&identity, seed), 0);
    mu_buf_init(&out, MU_RELAY_VOUCHER_MAX);
    assert_int_equal(mu_relay_voucher_seal(&identity, &b, EXPIRE, &out), 0);
    assert_int_equal(out.len, len);
    assert_memory_equal(mu_buf_span(&out).data, bytes, len);
    mu_buf_fini(&out);
    mu_identity_fini(&identity);
}

static void test_relay_voucher_with_any_bit_turned_is_not(void **unused)
{
    uint8_t bytes[512];
    size_t len = hex_decode(bytes, sizeof(bytes), VOUCHER);
    struct mu_relay_voucher voucher;

    (void)unused;
    for (size_t i = 0; i < len; i++) {
        bytes[i] ^= 1;
        assert_int_not_equal(mu_relay_voucher_open(mu_span(bytes, len), &voucher), 0);
        bytes[i] ^= 1;
        assert_int_not_equal(mu_relay_voucher_open(mu_span(bytes, i), &voucher), 0);
    }
    assert_int_equal(mu_relay_voucher_open(mu_span(bytes, len), &voucher), 0);
}

static void test_relay_voucher_of_another_relay_is_not(void **unused)
{
    struct mu_relay_voucher voucher = {id_of(PEER_B), id_of(PEER_A), EXPIRE};
    struct mu_identity identity;
    uint8_t seed[MU_IDENTITY_SEED_LEN];
    struct mu_buf payload;
    struct mu_buf out;

    (void)unused;
    /* Sealed in the name of A, and says that it is B's. */
    memset(seed, 1, sizeof(seed));
    assert_int_equal(mu_identity_from_seed(&identity, seed), 0);
    identity.id = voucher.relay;
    mu_buf_init(&payload, 1000);
    mu_buf_init(&out, MU_RELAY_VOUCHER_MAX);
    assert_int_equal(mu_relay_voucher_seal(&identity, &voucher.peer, EXPIRE, &out), 0);
    assert_int_equal(mu_relay_voucher_open(mu_buf_span(&out), &voucher), MUSTER_EPEERID);
    mu_buf_fini(&out);
    mu_buf_fini(&payload);
    mu_identity_fini(&identity);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_relay_hop_messages_are_those_of_js),
        cmocka_unit_test(test_relay_stop_messages_are_those_of_js),
        cmocka_unit_test(test_relay_messages_that_cannot_be_are_refused),
        cmocka_unit_test(test_relay_message_that_is_too_long_is_not_written),
        cmocka_unit_test(test_relay_in_takes_messages_however_they_are_cut),
        cmocka_unit_test(test_relay_in_leaves_what_is_behind_the_message),
        cmocka_unit_test(test_relay_in_is_poisoned_by_what_cannot_be),
        cmocka_unit_test(test_relay_in_takes_nothing_without_memory),
        cmocka_unit_test(test_relay_in_survives_garbage),
        cmocka_unit_test(test_relay_voucher_of_js_is_good),
        cmocka_unit_test(test_relay_voucher_with_any_bit_turned_is_not),
        cmocka_unit_test(test_relay_voucher_of_another_relay_is_not),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

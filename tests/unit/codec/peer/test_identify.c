/* What peers say of themselves: one message, many, in pieces, too much; and signed records. */
#include "unit.h"

#include <muster/error.h>

#include "codec/peer/identify.h"
#include "codec/bin/pb.h"
#include "codec/bin/uvarint.h"
#include "crypto/peer_record.h"
#include "failheap.h"
#include "hex.h"

/* publicKey, two listenAddrs (the second of a kind nobody knows), two protocols, observedAddr,
 * protocolVersion, agentVersion, and a field that is not known. */
static const char message[] =
    "60"
    "0a24080112208a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"
    "1208047f000001060fa1 1203ffff7f"
    "1a022f61 1a032f6262 2208047f000001060fa2 2a0a697066732f302e312e30"
    "320870327064 2f302e31 4801";

static void read_hex(struct mu_identify_in *in, const char *hex, size_t step)
{
    static uint8_t bytes[1024];
    size_t len = hex_decode(bytes, sizeof(bytes), hex);

    for (size_t at = 0; at < len; at += step) {
        assert_int_equal(
            mu_identify_in_recv(in, mu_span(bytes + at, len - at < step ? len - at : step)), 0);
    }
}

static void test_identify_reads_what_peers_say(void **unused)
{
    (void)unused;
    for (size_t step = 1; step < 110; step += 9) {
        struct mu_identify_in in;
        struct mu_identify id;
        struct mu_span bytes;
        struct mu_span walk;
        struct mu_span found = {0};

        mu_identify_in_init(&in);
        read_hex(&in, message, step);
        assert_int_equal(mu_identify_in_end(&in, &bytes), 0);
        assert_int_equal(mu_identify_decode(bytes, &id), 0);
        assert_int_equal(id.public_key.len, 36);
        assert_span_text(id.agent_version, "p2pd/0.1");
        assert_span_text(id.protocol_version, "ipfs/0.1.0");
        assert_int_equal(id.observed_addr.len, 8);
        assert_null(id.signed_record.data);
        assert_int_equal(id.addr_count, 1);
        assert_int_equal(id.protocol_count, 2);
        walk = id.all;
        assert_true(mu_identify_next_addr(&walk, &found));
        assert_int_equal(found.len, 8);
        assert_false(mu_identify_next_addr(&walk, &found));
        walk = id.all;
        assert_true(mu_identify_next_protocol(&walk, &found));
        assert_span_text(found, "/a");
        assert_true(mu_identify_next_protocol(&walk, &found));
        assert_span_text(found, "/bb");
        assert_false(mu_identify_next_protocol(&walk, &found));
        mu_identify_in_fini(&in);
    }
}

/* Lists add up, and of the rest the last counts. */
static void test_identify_messages_are_one(void **unused)
{
    struct mu_identify_in in;
    struct mu_identify id;
    struct mu_span bytes;

    (void)unused;
    mu_identify_in_init(&in);
    read_hex(&in, "08 1a022f61 32026161 04 1a022f62 00 04 32026262", 3);
    assert_int_equal(mu_identify_in_end(&in, &bytes), 0);
    assert_int_equal(mu_identify_decode(bytes, &id), 0);
    assert_int_equal(id.protocol_count, 2);
    assert_span_text(id.agent_version, "bb");
    assert_null(id.public_key.data);
    mu_identify_in_fini(&in);
}

static void test_identify_refuses_what_is_cut_off_or_too_much(void **unused)
{
    static const struct {
        const char *hex;
        int recv_err;
        int end_err;
    } cases[] = {
        {"", 0, MUSTER_EPROTO},
        {"04 1a022f", 0, MUSTER_EPROTO},
        {"80", 0, MUSTER_EPROTO},
        {"8000", MUSTER_EPROTO, MUSTER_EPROTO},
        {"8140", MUSTER_ELIMIT, MUSTER_ELIMIT},
        {"ffffffffffffffff7f", MUSTER_ELIMIT, MUSTER_ELIMIT},
        {"00000000000000000000", 0, 0},
        {"0000000000000000000000", MUSTER_ELIMIT, MUSTER_ELIMIT},
    };
    struct mu_identify id;
    uint8_t bytes[4 * 2200];
    size_t len = 0;

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_identify_in in;
        struct mu_span all;
        size_t used = hex_decode(bytes, sizeof(bytes), cases[i].hex);

        mu_identify_in_init(&in);
        assert_int_equal(mu_identify_in_recv(&in, mu_span(bytes, used)), cases[i].recv_err);
        assert_int_equal(mu_identify_in_end(&in, &all), cases[i].end_err);
        if (cases[i].recv_err != 0) {
            assert_int_equal(mu_identify_in_recv(&in, mu_span(bytes, 1)), cases[i].recv_err);
        }
        mu_identify_in_fini(&in);
    }
    assert_int_equal(mu_identify_decode(MU_SPAN_LIT("\x1a\x05/a"), &id), MUSTER_EPROTO);
    for (int i = 0; i <= MU_IDENTIFY_PROTOCOLS_MAX; i++) {
        assert_int_equal(mu_identify_decode(mu_span(bytes, len), &id), 0);
        memcpy(bytes + len, "\x1a\x02/a", 4);
        len += 4;
    }
    assert_int_equal(mu_identify_decode(mu_span(bytes, len), &id), MUSTER_ELIMIT);
    memset(bytes, 'x', 1100);
    memcpy(bytes, "\x1a\x80\x08", 3);
    assert_int_equal(mu_identify_decode(mu_span(bytes, 3 + 1024), &id), MUSTER_ELIMIT);
    memcpy(bytes, "\x1a\xff\x07", 3);
    assert_int_equal(mu_identify_decode(mu_span(bytes, 3 + 1023), &id), 0);
}

static void test_identify_comes_back_as_it_was_said(void **unused)
{
    enum { NAMES = 1500 };
    static char texts[NAMES][40];
    static struct mu_span names[NAMES];
    const struct mu_span addr = MU_SPAN_LIT("\x04\x7f\0\0\x01\x06\x0f\xa1");
    struct mu_identify_out say = {
        .public_key = MU_SPAN_LIT("key"),
        .addrs = &addr,
        .addr_count = 1,
        .protocols = names,
        .agent_version = MU_SPAN_LIT("muster"),
    };

    (void)unused;
    for (size_t i = 0; i < NAMES; i++) {
        (void)snprintf(texts[i], sizeof(texts[i]), "/a/protocol/with/a/long/name/%zu", i);
        names[i] = mu_span_str(texts[i]);
    }
    for (size_t count = 0; count <= NAMES; count += 250) {
        struct mu_identify_in in;
        struct mu_identify id;
        struct mu_span bytes;
        struct mu_span walk;
        struct mu_span name = {0};
        struct mu_buf out;

        mu_buf_init(&out, 1 << 20);
        mu_identify_in_init(&in);
        say.protocol_count = count;
        assert_int_equal(mu_identify_encode(&say, &out), 0);
        assert_int_equal(mu_identify_in_recv(&in, mu_buf_span(&out)), 0);
        assert_true(count < 250 ? in.messages == 1 : in.messages > 1);
        assert_int_equal(mu_identify_in_end(&in, &bytes), 0);
        assert_int_equal(mu_identify_decode(bytes, &id), 0);
        assert_span_text(id.public_key, "key");
        assert_span_text(id.agent_version, "muster");
        assert_int_equal(id.addr_count, 1);
        walk = id.all;
        for (size_t i = 0; i < count; i++) {
            assert_true(mu_identify_next_protocol(&walk, &name));
            assert_true(mu_span_eq(name, names[i]));
        }
        assert_false(mu_identify_next_protocol(&walk, &name));
        mu_identify_in_fini(&in);
        mu_buf_fini(&out);
    }
    {
        struct mu_span many[3 * NAMES];
        struct mu_buf out;

        for (size_t i = 0; i < 3 * NAMES; i++) {
            many[i] = names[i % NAMES];
        }
        mu_buf_init(&out, 1 << 20);
        say.protocols = many;
        say.protocol_count = 3 * NAMES;
        assert_int_equal(mu_identify_encode(&say, &out), MUSTER_ELIMIT);
        mu_buf_fini(&out);
    }
}

static void test_identify_survives_a_failing_heap(void **unused)
{
    uint8_t bytes[256];
    struct mu_span in_bytes = mu_span(bytes, hex_decode(bytes, sizeof(bytes), message));
    bool fired = true;

    (void)unused;
    for (long nth = 0; fired; nth++) {
        struct mu_identify_in in;
        struct mu_span all;
        int err;

        mu_identify_in_init(&in);
        failheap_arm(nth);
        err = mu_identify_in_recv(&in, mu_span(bytes, 50));
        if (err != 0) {
            assert_int_equal(err, MUSTER_ENOMEM);
            failheap_disarm();
            assert_int_equal(mu_identify_in_recv(&in, mu_span(bytes, 50)), 0);
        }
        err = mu_identify_in_recv(&in, mu_span_skip(in_bytes, 50));
        fired = failheap_fired();
        failheap_disarm();
        if (err != 0) {
            assert_int_equal(mu_identify_in_recv(&in, mu_span_skip(in_bytes, 50)), 0);
        }
        assert_int_equal(mu_identify_in_end(&in, &all), 0);
        assert_int_equal(all.len, in_bytes.len - 1);
        mu_identify_in_fini(&in);
    }
}

static void test_peer_record_is_only_the_signer_s(void **unused)
{
    const struct mu_span addrs[] = {MU_SPAN_LIT("\x04\x7f\0\0\x01\x06\x0f\xa1"),
                                    MU_SPAN_LIT("\x04\x7f\0\0\x01\x06\x0f\xa2")};
    uint8_t seed[MU_IDENTITY_SEED_LEN] = {7};
    struct mu_identity who;
    struct mu_identity other;
    struct mu_peer_record record;
    struct mu_span walk;
    struct mu_span addr = {0};
    struct mu_buf envelope;
    struct mu_peer_id id;

    (void)unused;
    assert_int_equal(mu_identity_from_seed(&who, seed), 0);
    seed[0] = 8;
    assert_int_equal(mu_identity_from_seed(&other, seed), 0);
    mu_buf_init(&envelope, MU_PEER_RECORD_MAX);
    assert_int_equal(mu_peer_record_seal(&who, 42, addrs, 2, &envelope), 0);
    assert_int_equal(mu_peer_record_open(mu_buf_span(&envelope), &record), 0);
    assert_true(mu_peer_id_eq(&record.peer, &who.id));
    assert_int_equal(record.seq, 42);
    walk = record.addrs;
    assert_true(mu_peer_record_next_addr(&walk, &addr));
    assert_true(mu_span_eq(addr, addrs[0]));
    assert_true(mu_peer_record_next_addr(&walk, &addr));
    assert_true(mu_span_eq(addr, addrs[1]));
    assert_false(mu_peer_record_next_addr(&walk, &addr));

    /* Whichever bit is changed, it is not taken. */
    for (size_t bit = 0; bit < envelope.len * 8; bit += 5) {
        int err;

        envelope.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        err = mu_peer_record_open(mu_buf_span(&envelope), &record);
        assert_true(err == MUSTER_EPROTO || err == MUSTER_ESIGNATURE || err == MUSTER_ENOTSUP ||
                    err == MUSTER_ENOENT);
        envelope.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    /* One who signs for another. */
    id = who.id;
    who.id = other.id;
    mu_buf_reset(&envelope);
    assert_int_equal(mu_peer_record_seal(&who, 43, addrs, 2, &envelope), 0);
    assert_int_equal(mu_peer_record_open(mu_buf_span(&envelope), &record), MUSTER_EPEERID);
    who.id = id;
    mu_buf_fini(&envelope);
    mu_identity_fini(&who);
    mu_identity_fini(&other);
}

/* --- limits ----------------------------------------------------------------------------------- */

/* A stream that says that messages of these lengths come, and brings them. */
static int read_messages(size_t count, size_t len)
{
    static const uint8_t zeros[MU_IDENTIFY_MESSAGE_MAX + 1];
    struct mu_identify_in in;
    int err = 0;

    mu_identify_in_init(&in);
    for (size_t i = 0; i < count && err == 0; i++) {
        uint8_t head[10];

        err = mu_identify_in_recv(&in, mu_span(head, mu_uvarint_put(head, len)));
        err = err != 0 ? err : mu_identify_in_recv(&in, mu_span(zeros, len));
    }
    mu_identify_in_fini(&in);
    return err;
}

static void test_identify_messages_are_so_many_and_so_long(void **unused)
{
    (void)unused;
    assert_int_equal(read_messages(MU_IDENTIFY_MESSAGES_MAX, MU_IDENTIFY_MESSAGE_MAX), 0);
    assert_int_equal(read_messages(MU_IDENTIFY_MESSAGES_MAX + 1, 1), MUSTER_ELIMIT);
    assert_int_equal(read_messages(1, MU_IDENTIFY_MESSAGE_MAX + 1), MUSTER_ELIMIT);
}

static void test_identify_texts_are_so_long(void **unused)
{
    static const struct {
        uint32_t number;
        size_t max;
    } fields[] = {
        {3, MU_IDENTIFY_NAME_MAX}, {5, MU_IDENTIFY_VERSION_MAX}, {6, MU_IDENTIFY_VERSION_MAX}};
    static const uint8_t text[MU_IDENTIFY_NAME_MAX + 1];

    (void)unused;
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        for (size_t more = 0; more < 2; more++) {
            struct mu_identify id;
            struct mu_pb_out pb;
            struct mu_buf out;

            mu_buf_init(&out, 4096);
            pb = mu_pb_out(&out);
            mu_pb_put_bytes(&pb, fields[i].number, mu_span(text, fields[i].max + more));
            assert_int_equal(mu_identify_decode(mu_buf_span(&out), &id),
                             more == 0 ? 0 : MUSTER_ELIMIT);
            mu_buf_fini(&out);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identify_reads_what_peers_say),
        cmocka_unit_test(test_identify_messages_are_one),
        cmocka_unit_test(test_identify_refuses_what_is_cut_off_or_too_much),
        cmocka_unit_test(test_identify_comes_back_as_it_was_said),
        cmocka_unit_test(test_identify_survives_a_failing_heap),
        cmocka_unit_test(test_peer_record_is_only_the_signer_s),
        cmocka_unit_test(test_identify_messages_are_so_many_and_so_long),
        cmocka_unit_test(test_identify_texts_are_so_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

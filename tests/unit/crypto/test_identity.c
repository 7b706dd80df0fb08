/* Identities: libp2p's vectors, key files there and back, signatures that hold and that do not. */
#include "unit.h"

#include <muster/error.h>

#include "codec/bin/pb.h"
#include "crypto/envelope.h"
#include "crypto/hash.h"
#include "crypto/identity.h"
#include "hex.h"

static void test_identity_of_a_seed_has_the_id_of_the_vectors(void **unused)
{
    static const struct {
        uint8_t byte;
        const char *public_key;
        const char *id;
    } cases[] = {
        {1, "080112208a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c",
         "12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"},
        {2, "080112208139770ea87d175f56a35466c34c7ecccb8d8a91b4ee37a25df60f5b8fc9b394",
         "12D3KooWJWoaqZhDaoEFshF7Rh1bpY9ohihFhzcW6d69Lr2NASuq"},
    };

    (void)unused;
    for (size_t i = 0; i < 2; i++) {
        struct mu_identity identity;
        char text[MU_PEER_ID_TEXT_MAX];
        uint8_t want[64];
        size_t len = hex_decode(want, sizeof(want), cases[i].public_key);
        uint8_t seed[32];

        memset(seed, cases[i].byte, sizeof(seed));
        assert_int_equal(mu_identity_from_seed(&identity, seed), 0);
        assert_int_equal(identity.public_key.len, len);
        assert_memory_equal(mu_buf_span(&identity.public_key).data, want, len);
        assert_string_equal(mu_peer_id_format(&identity.id, text), cases[i].id);
        mu_identity_fini(&identity);
    }
}

/* The private key's file, and what identities sign in the handshake of the vectors. */
static void test_identity_of_a_seed_has_the_file_and_signatures_of_the_vectors(void **unused)
{
    static const struct {
        uint8_t byte;
        const char *noise_key;
        const char *signature;
    } cases[] = {
        {1, "5dfedd3b6bd47f6fa28ee15d969d5bb0ea53774d488bdaf9df1c6e0124b3ef22",
         "cfb88e685664cc7c0737087db6b15f1244090f930750c235eae4fa48010153c4"
         "8741b62fd21652ea98d9917258f3410c41d0c9011a66b7b4734d189a0614560d"},
        {2, "ac01b2209e86354fb853237b5de0f4fab13c7fcbf433a61c019369617fecf10b",
         "562c20ab970afbb7d5b4e9fdca7fafc8f43b850889cf48ae36d6b153a94b189f"
         "854c1574e906e16b0650fd2500c376f0f36da9ece49e530c9850f6c401df5004"},
    };
    uint8_t want[128];
    size_t len;

    (void)unused;
    for (size_t i = 0; i < 2; i++) {
        uint8_t message[24 + 32] = "noise-libp2p-static-key:";
        struct mu_identity identity;
        struct mu_buf out;
        uint8_t seed[32];

        memset(seed, cases[i].byte, sizeof(seed));
        assert_int_equal(mu_identity_from_seed(&identity, seed), 0);
        mu_buf_init(&out, 4096);
        assert_int_equal(hex_decode(message + 24, 32, cases[i].noise_key), 32);
        assert_int_equal(mu_identity_sign(&identity, mu_span(message, sizeof(message)), &out), 0);
        len = hex_decode(want, sizeof(want), cases[i].signature);
        assert_int_equal(out.len, len);
        assert_memory_equal(mu_buf_span(&out).data, want, len);
        if (i == 0) {
            mu_buf_reset(&out);
            assert_int_equal(mu_identity_encode(&identity, &out), 0);
            len = hex_decode(want, sizeof(want),
                             "08011240"
                             "0101010101010101010101010101010101010101010101010101010101010101"
                             "8a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c");
            assert_int_equal(out.len, len);
            assert_memory_equal(mu_buf_span(&out).data, want, len);
        }
        mu_buf_fini(&out);
        mu_identity_fini(&identity);
    }
}

static void test_public_key_of_other_kinds_has_its_id(void **unused)
{
    uint8_t key[64];
    size_t len =
        hex_decode(key, sizeof(key),
                   "08021221037777e994e452c21604f91de093ce415f5432f701dd8cd1a7a6fea0e630bfca99");
    struct mu_peer_id id;
    char text[MU_PEER_ID_TEXT_MAX];

    (void)unused;
    assert_int_equal(mu_public_key_peer(mu_span(key, len), &id), 0);
    assert_string_equal(mu_peer_id_format(&id, text),
                        "16Uiu2HAmLhLvBoYaoZfaMUKuibM6ac163GwKY74c5kiSLg5KvLpY");
    assert_int_equal(mu_public_key_verify(mu_span(key, len), MU_SPAN_LIT("x"), MU_SPAN_LIT("y")),
                     MUSTER_ENOTSUP);
}

static void check_round_trip(const struct mu_identity *identity)
{
    struct mu_errmsg msg = {""};
    struct mu_identity back;
    struct mu_buf file;
    struct mu_buf signature;
    struct mu_span key = mu_buf_span(&identity->public_key);

    mu_buf_init(&file, MU_IDENTITY_FILE_MAX);
    mu_buf_init(&signature, MU_IDENTITY_SIG_LEN_MAX);
    assert_int_equal(mu_identity_encode(identity, &file), 0);
    assert_int_equal(mu_identity_decode(&back, mu_buf_span(&file), &msg), 0);
    assert_true(mu_peer_id_eq(&back.id, &identity->id));
    assert_int_equal(mu_identity_sign(&back, MU_SPAN_LIT("message"), &signature), 0);
    assert_int_equal(mu_public_key_verify(key, MU_SPAN_LIT("message"), mu_buf_span(&signature)), 0);
    assert_int_equal(mu_public_key_verify(key, MU_SPAN_LIT("massage"), mu_buf_span(&signature)),
                     MUSTER_ECORRUPT);
    signature.data[signature.head] ^= 1;
    assert_int_equal(mu_public_key_verify(key, MU_SPAN_LIT("message"), mu_buf_span(&signature)),
                     MUSTER_ECORRUPT);
    /* A file that is cut off anywhere is refused in words. */
    for (size_t cut = 0; cut < file.len; cut += 11) {
        struct mu_identity none;

        msg.text[0] = '\0';
        assert_int_equal(mu_identity_decode(&none, mu_span(mu_buf_span(&file).data, cut), &msg),
                         MUSTER_EINVAL);
        assert_int_not_equal(msg.text[0], '\0');
    }
    mu_identity_fini(&back);
    mu_buf_fini(&file);
    mu_buf_fini(&signature);
}

static void test_identity_comes_back_from_its_file(void **unused)
{
    uint8_t seed[32] = {42};
    struct mu_identity identity;

    (void)unused;
    assert_int_equal(mu_identity_from_seed(&identity, seed), 0);
    check_round_trip(&identity);
    mu_identity_fini(&identity);
    assert_int_equal(mu_identity_generate_rsa(&identity, 2048), 0);
    assert_int_equal(identity.id.len, 34);
    check_round_trip(&identity);
    mu_identity_fini(&identity);
    assert_int_equal(mu_identity_generate_rsa(&identity, 1024), MUSTER_EINVAL);
}

static void test_identity_refuses_halves_that_do_not_fit(void **unused)
{
    uint8_t file[68] = {0x08, 0x01, 0x12, 0x40, 7};
    struct mu_identity identity;
    struct mu_errmsg msg;

    (void)unused;
    assert_int_equal(mu_identity_decode(&identity, mu_span(file, sizeof(file)), &msg),
                     MUSTER_EINVAL);
    assert_non_null(strstr(msg.text, "public half"));
}

static void test_hmac_has_the_values_of_the_standard(void **unused)
{
    uint8_t mac[32];
    uint8_t want[32];

    (void)unused;
    mu_hmac_sha256(mac, MU_SPAN_LIT("Jefe"), MU_SPAN_LIT("what do ya want "),
                   MU_SPAN_LIT("for nothing?"));
    (void)hex_decode(want, sizeof(want),
                     "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
    assert_memory_equal(mac, want, 32);
    mu_sha1(mac, MU_SPAN_LIT("\xa0"));
    (void)hex_decode(want, sizeof(want), "c7da1ff95a25c353f1319604703e8bfd287ee1a1");
    assert_memory_equal(mac, want, MU_SHA1_LEN);
}

/* --- limits ----------------------------------------------------------------------------------- */

/* A protocol buffer of so many bytes: an Ed25519 key, padded with a field that nobody knows. */
static void put_padded_key(const struct mu_identity *identity, size_t len, struct mu_buf *out)
{
    struct mu_pb_out pb = mu_pb_out(out);
    size_t pad = len - identity->public_key.len - 3; /* its head has three bytes */

    assert_int_equal(mu_buf_append(out, mu_buf_span(&identity->public_key)), 0);
    mu_pb_put_head(&pb, 15, pad);
    assert_int_equal(pb.err, 0);
    assert_int_equal(mu_buf_reserve(out, pad), 0);
    for (size_t i = 0; i < pad; i++) {
        mu_buf_put_u8(out, 0);
    }
    assert_int_equal(out->len, len);
}

static void test_public_key_is_so_long(void **unused)
{
    uint8_t seed[MU_IDENTITY_SEED_LEN] = {5};
    struct mu_identity identity;
    struct mu_peer_id id;
    struct mu_buf key;

    (void)unused;
    assert_int_equal(mu_identity_from_seed(&identity, seed), 0);
    mu_buf_init(&key, (size_t)2 * MU_PUBLIC_KEY_LEN_MAX);
    put_padded_key(&identity, MU_PUBLIC_KEY_LEN_MAX, &key);
    assert_int_equal(mu_public_key_peer(mu_buf_span(&key), &id), 0);
    assert_int_equal(mu_public_key_verify(mu_buf_span(&key), MU_SPAN_LIT("m"), MU_SPAN_LIT("s")),
                     MUSTER_ECORRUPT);
    mu_buf_reset(&key);
    put_padded_key(&identity, MU_PUBLIC_KEY_LEN_MAX + 1, &key);
    assert_int_equal(mu_public_key_peer(mu_buf_span(&key), &id), MUSTER_EINVAL);
    assert_int_equal(mu_public_key_verify(mu_buf_span(&key), MU_SPAN_LIT("m"), MU_SPAN_LIT("s")),
                     MUSTER_EINVAL);
    mu_buf_fini(&key);
    mu_identity_fini(&identity);
}

static void test_envelope_is_so_long(void **unused)
{
    static const uint8_t zeroes[MU_ENVELOPE_MAX];
    struct mu_span domain = MU_SPAN_LIT("domain");
    struct mu_span type = MU_SPAN_LIT("type");
    uint8_t seed[MU_IDENTITY_SEED_LEN] = {6};
    struct mu_identity identity;
    struct mu_peer_id signer;
    struct mu_span payload;
    struct mu_buf out;
    size_t around;

    (void)unused;
    assert_int_equal(mu_identity_from_seed(&identity, seed), 0);
    mu_buf_init(&out, (size_t)2 * MU_ENVELOPE_MAX);
    assert_int_equal(mu_envelope_seal(&identity, domain, type, mu_span(zeroes, 8000), &out), 0);
    around = out.len - 8000;
    for (size_t more = 0; more < 2; more++) {
        size_t len = MU_ENVELOPE_MAX - around + more;

        mu_buf_reset(&out);
        assert_int_equal(mu_envelope_seal(&identity, domain, type, mu_span(zeroes, len), &out), 0);
        assert_int_equal(out.len, MU_ENVELOPE_MAX + more);
        assert_int_equal(mu_envelope_open(mu_buf_span(&out), domain, type, &payload, &signer),
                         more == 0 ? 0 : MUSTER_EPROTO);
    }
    mu_buf_fini(&out);
    mu_identity_fini(&identity);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identity_of_a_seed_has_the_id_of_the_vectors),
        cmocka_unit_test(test_identity_of_a_seed_has_the_file_and_signatures_of_the_vectors),
        cmocka_unit_test(test_public_key_of_other_kinds_has_its_id),
        cmocka_unit_test(test_identity_comes_back_from_its_file),
        cmocka_unit_test(test_identity_refuses_halves_that_do_not_fit),
        cmocka_unit_test(test_hmac_has_the_values_of_the_standard),
        cmocka_unit_test(test_public_key_is_so_long),
        cmocka_unit_test(test_envelope_is_so_long),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

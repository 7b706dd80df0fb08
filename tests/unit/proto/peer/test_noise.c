/*
 * Noise: the transcript that libp2p's own implementations make of fixed keys, byte for byte as
 * dialler and as listener, and whoever tampers with it.
 */
#include "unit.h"

#include <muster/error.h>

#include "core/prng.h"
#include "failheap.h"
#include "hex.h"
#include "proto/peer/noise.h"

static const char message_a[] =
    "0020 f5b2d6e60f9477e310c2982daaa6c9136c108a1777c5947e448fa37d68174557";
static const char message_b[] =
    "00d8 50a61409b1ddd0325e9b16b700e719e9772c07000b1bd7786e907c653d20495d"
    "5093d7e10b3d84e13f4ec37ccd38eabe6faacc0b31ad3eb332522772dfdd2d8c5f0bd71fb7de0a79b7a56e5a61a952"
    "e8"
    "b2e23d63bf3b15d83b3b25d61cbc828beb1add4e871dc3ea5f03dae06d8267358ee43e331b29e5143d63c7ee42f84d"
    "49"
    "34dde875879a7e5ab7f833c69c84857096b1cfd6625705f7cdb443bb5a80aa1a348f83432e852f973892c5a851620c"
    "60"
    "b76fa10f5c5be8133c09c765f4e1b0c51bd38639fbe6632f41956fb3c6b8ac066b68d6c1097d1dc6";
static const char message_c[] =
    "00b8 "
    "b597d54e241ad08a1d50340a58651aa24ace9a624c637ea0b8953cd6f4830dd438c02cbaff7eb0665e47815fbb05e4"
    "8d"
    "f4244debc9be294712072eaa6e7b79ba30855b82f6823ab48a421ce1bdd092c0851154c662f42dced6bfe090cc3dbc"
    "bf"
    "21c7d2f7fad576e455e32f0208b69877b1892e6cc93df3ad3f59556eaaace20dbc85030355aea102ff6a9318ae9235"
    "e1"
    "f220f945a6255074a31acc69e0283182cffc6c111db862758cfd127708617528acad5ad6276e8733";
static const char handshake_hash[] =
    "b940a754b25dc047545bd99d64971a6fbff888318e5133b095d3cae268859b88";
/* What a yamux session says first, and its bytes. */
static const char ping_plain[] = "000200010000000000000000";
static const char ping_sealed[] = "001c 26d56dd5d361dec197aaff1ddf5cb48c0c6e8be2b394dd5af49644cc";
static const char open_plain[] = "000100010000000100000000";
static const char open_sealed[] = "001c cbdb9edf900685e0f975138d2d62043e04c58c8ae745486792b0eee0";
static const char pong_plain[] = "000200020000000000000000";
static const char pong_sealed[] = "001c 0c219baef7930748d835fa3d521c21f2fbf7dbe2ff3f3b5e4974dd4e";

#define LISTENER_ID "12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"
#define DIALLER_ID  "12D3KooWJWoaqZhDaoEFshF7Rh1bpY9ohihFhzcW6d69Lr2NASuq"

struct side {
    struct mu_identity identity;
    struct mu_noise noise;
};

static int side_init(struct side *s, enum mu_noise_role role, const char *expected)
{
    struct mu_noise_config config = {
        .role = role, .muxer = "/yamux/1.0.0", .output_bytes_max = 1 << 20};
    bool dialler = role == MU_NOISE_DIALLER;
    uint8_t seed[32];
    struct mu_errmsg msg;
    int err;

    memset(seed, dialler ? 2 : 1, sizeof(seed));
    memset(config.secret_static, dialler ? 4 : 3, sizeof(config.secret_static));
    memset(config.secret_ephemeral, dialler ? 6 : 5, sizeof(config.secret_ephemeral));
    err = mu_identity_from_seed(&s->identity, seed);
    if (err != 0) {
        return err;
    }
    config.identity = &s->identity;
    if (expected != NULL) {
        assert_int_equal(mu_peer_id_parse(&config.expected, expected, &msg), 0);
    }
    err = mu_noise_init(&s->noise, &config);
    if (err != 0) {
        mu_identity_fini(&s->identity);
    }
    return err;
}

static void side_fini(struct side *s)
{
    mu_noise_fini(&s->noise);
    mu_identity_fini(&s->identity);
}

/* Feeds hex text in pieces of `step` bytes. */
static int feed(struct side *s, const char *hex, size_t step)
{
    uint8_t bytes[1024];
    size_t len = hex_decode(bytes, sizeof(bytes), hex);

    for (size_t at = 0; at < len;) {
        size_t piece = len - at < step ? len - at : step;
        size_t used;
        int err = mu_noise_recv(&s->noise, mu_span(bytes + at, piece), &used);

        if (err != 0) {
            return err;
        }
        assert_int_equal(used, piece);
        at += piece;
    }
    return 0;
}

static void expect_output(struct side *s, const char *hex)
{
    uint8_t bytes[1024];
    size_t len = hex_decode(bytes, sizeof(bytes), hex);
    struct mu_span out = mu_noise_output(&s->noise);

    assert_int_equal(out.len, len);
    assert_memory_equal(out.data, bytes, len);
    mu_noise_sent(&s->noise, len);
}

static void expect_plain(struct side *s, const char *hex)
{
    uint8_t bytes[1024];
    size_t len = hex_decode(bytes, sizeof(bytes), hex);

    assert_int_equal(mu_noise_plain(&s->noise).len, len);
    assert_memory_equal(mu_noise_plain(&s->noise).data, bytes, len);
    mu_noise_consume(&s->noise, len);
}

static void say(struct side *s, const char *hex)
{
    uint8_t bytes[1024];
    size_t len = hex_decode(bytes, sizeof(bytes), hex);
    size_t taken;

    assert_int_equal(mu_noise_send(&s->noise, mu_span(bytes, len), &taken), 0);
    assert_int_equal(taken, len);
}

static void expect_done(struct side *s, const char *peer)
{
    char text[MU_PEER_ID_TEXT_MAX];
    uint8_t hash[32];

    assert_true(mu_noise_done(&s->noise));
    assert_true(s->noise.muxer_agreed);
    assert_string_equal(mu_peer_id_format(&s->noise.remote, text), peer);
    (void)hex_decode(hash, sizeof(hash), handshake_hash);
    assert_memory_equal(s->noise.hash, hash, sizeof(hash));
}

static void test_noise_dialler_speaks_the_transcript(void **unused)
{
    (void)unused;
    for (size_t step = 1; step < 300; step += 7) {
        struct side s;

        assert_int_equal(side_init(&s, MU_NOISE_DIALLER, LISTENER_ID), 0);
        expect_output(&s, message_a);
        assert_int_equal(feed(&s, message_b, step), 0);
        expect_output(&s, message_c);
        expect_done(&s, LISTENER_ID);
        say(&s, ping_plain);
        expect_output(&s, ping_sealed);
        say(&s, open_plain);
        expect_output(&s, open_sealed);
        assert_int_equal(feed(&s, pong_sealed, step), 0);
        expect_plain(&s, pong_plain);
        side_fini(&s);
    }
}

static void test_noise_listener_speaks_the_transcript(void **unused)
{
    (void)unused;
    for (size_t step = 1; step < 300; step += 7) {
        struct side s;

        assert_int_equal(side_init(&s, MU_NOISE_LISTENER, NULL), 0);
        assert_int_equal(feed(&s, message_a, step), 0);
        expect_output(&s, message_b);
        assert_int_equal(feed(&s, message_c, step), 0);
        expect_done(&s, DIALLER_ID);
        assert_int_equal(feed(&s, ping_sealed, step), 0);
        expect_plain(&s, ping_plain);
        assert_int_equal(feed(&s, open_sealed, step), 0);
        expect_plain(&s, open_plain);
        say(&s, pong_plain);
        expect_output(&s, pong_sealed);
        side_fini(&s);
    }
}

static void expect_hex(const uint8_t *got, const char *hex)
{
    uint8_t want[32];

    assert_int_equal(hex_decode(want, sizeof(want), hex), sizeof(want));
    assert_memory_equal(got, want, sizeof(want));
}

/* What the two compute between the messages. */
static void test_noise_has_the_values_of_the_transcript_on_the_way(void **unused)
{
    struct side d;
    struct side l;

    (void)unused;
    assert_int_equal(side_init(&l, MU_NOISE_LISTENER, NULL), 0);
    expect_hex(l.noise.hash, "f3d15e6108ed9556171207baa58f97d29a13c6be40595166066e2e0958dc002d");
    assert_int_equal(side_init(&d, MU_NOISE_DIALLER, LISTENER_ID), 0);
    expect_hex(d.noise.hash, "69d5054c86851d6971d5ac4314fac0efe2e24acff754efb1f6e2bd2aefd7ec9c");
    assert_int_equal(feed(&l, message_a, 1000), 0);
    expect_hex(l.noise.hash, "d585d403207173c148d52591ffd0c184c83a1cb7b065f7b59a6391b63aa3a829");
    expect_hex(l.noise.chain, "408c4f80f47febb2987d0a68ce378c2369e19b064ca6096cf1c71fad830ec16f");
    expect_hex(l.noise.key, "985a277c932267e5595b64c0c653f3cc319c558ce88c85757018a06211382d53");
    side_fini(&d);
    side_fini(&l);
}

static void test_noise_says_nothing_before_the_other_has_proved_itself(void **unused)
{
    struct side s;
    size_t taken = 1;

    (void)unused;
    assert_int_equal(side_init(&s, MU_NOISE_LISTENER, NULL), 0);
    assert_int_equal(mu_noise_send(&s.noise, MU_SPAN_LIT("x"), &taken), MUSTER_EAGAIN);
    assert_int_equal(taken, 0);
    assert_int_equal(feed(&s, message_a, 1000), 0);
    assert_int_equal(mu_noise_send(&s.noise, MU_SPAN_LIT("x"), &taken), MUSTER_EAGAIN);
    assert_false(mu_noise_done(&s.noise));
    side_fini(&s);
}

static void test_noise_refuses_another_peer_than_expected(void **unused)
{
    struct side s;

    (void)unused;
    assert_int_equal(side_init(&s, MU_NOISE_DIALLER, DIALLER_ID), 0);
    mu_noise_sent(&s.noise, mu_noise_output(&s.noise).len);
    assert_int_equal(feed(&s, message_b, 1000), MUSTER_EPEERID);
    assert_non_null(strstr(mu_noise_errmsg(&s.noise), LISTENER_ID));
    assert_int_equal(mu_noise_output(&s.noise).len, 0);
    assert_false(mu_noise_done(&s.noise));
    assert_int_equal(feed(&s, message_b, 1000), MUSTER_EPEERID);
    side_fini(&s);
}

/* Whichever bit of a message is changed, the handshake does not come about. */
static void test_noise_notices_every_changed_bit(void **unused)
{
    static const char *const messages[] = {message_b, message_c};

    (void)unused;
    for (size_t m = 0; m < 2; m++) {
        uint8_t bytes[512];
        size_t len = hex_decode(bytes, sizeof(bytes), messages[m]);

        for (size_t bit = 16; bit < len * 8; bit += 3) {
            struct side s;
            size_t used;
            int err;

            assert_int_equal(side_init(&s, m == 0 ? MU_NOISE_DIALLER : MU_NOISE_LISTENER, NULL), 0);
            if (m == 1) {
                assert_int_equal(feed(&s, message_a, 1000), 0);
            }
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            err = mu_noise_recv(&s.noise, mu_span(bytes, len), &used);
            bytes[bit / 8] ^= (uint8_t)(1 << bit % 8);
            assert_true(err == MUSTER_ECORRUPT || err == MUSTER_EPROTO);
            assert_false(mu_noise_done(&s.noise));
            side_fini(&s);
        }
    }
}

/* A listener with another static key than the one its identity signed. */
static void test_noise_refuses_a_signature_of_another_key(void **unused)
{
    struct side listener;
    struct side dialler;
    struct mu_buf signed_other;
    struct mu_identity forged;
    uint8_t seed[32] = {9};
    size_t used;

    (void)unused;
    mu_buf_init(&signed_other, 64);
    assert_int_equal(side_init(&listener, MU_NOISE_LISTENER, NULL), 0);
    assert_int_equal(side_init(&dialler, MU_NOISE_DIALLER, NULL), 0);
    assert_int_equal(mu_identity_from_seed(&forged, seed), 0);
    /* It signs with a key of its own, but shows the public key of another. */
    {
        struct mu_buf swap = forged.public_key;

        forged.public_key = listener.identity.public_key;
        listener.identity.public_key = swap;
        listener.noise.config.identity = &forged;
    }
    assert_int_equal(mu_noise_recv(&listener.noise, mu_noise_output(&dialler.noise), &used), 0);
    assert_int_equal(mu_noise_recv(&dialler.noise, mu_noise_output(&listener.noise), &used),
                     MUSTER_ESIGNATURE);
    side_fini(&listener);
    side_fini(&dialler);
    mu_identity_fini(&forged);
    mu_buf_fini(&signed_other);
}

/* Seals another payload into the listener's message B, in place of its own: the same identity, and
 * so many muxers of which the last is the right one. */
static size_t reseal_with_muxers(struct side *listener, uint8_t hash[32], size_t count,
                                 uint8_t *frame)
{
    enum { BEFORE = 2 + 32 + 48 }; /* the length, the ephemeral key, the sealed static one */
    static const uint8_t muxer[] = "\x12\x0c/yamux/1.0.0";
    static const uint8_t other[] = "\x12\x0c/other/1.0.0";
    uint8_t plain[4096];
    struct mu_span b = mu_noise_output(&listener->noise);
    size_t identity = b.len - BEFORE - MU_AEAD_TAG_LEN - 2 - 14; /* without the extensions */
    size_t len = identity;
    size_t list = count * 14;
    struct mu_aead aead;

    memcpy(frame, b.data, BEFORE);
    mu_sha256_pair(hash, mu_span(hash, 32), mu_span(frame + 2, 32));
    mu_sha256_pair(hash, mu_span(hash, 32), mu_span(frame + 2 + 32, 48));
    assert_int_equal(mu_aead_init(&aead, MU_AEAD_OPEN, listener->noise.key), 0);
    assert_int_equal(mu_aead_open(&aead, 0, mu_span(hash, 32), mu_span_skip(b, BEFORE), plain), 0);
    mu_aead_fini(&aead);
    assert_memory_equal(plain + identity + 2, muxer, 14);
    plain[len++] = 0x22;
    plain[len++] = (uint8_t)(0x80 | list);
    plain[len++] = (uint8_t)(list >> 7);
    for (size_t i = 0; i < count; i++) {
        memcpy(plain + len, i + 1 < count ? other : muxer, 14);
        len += 14;
    }
    assert_int_equal(mu_aead_init(&aead, MU_AEAD_SEAL, listener->noise.key), 0);
    assert_int_equal(mu_aead_seal(&aead, 0, mu_span(hash, 32), mu_span(plain, len), frame + BEFORE),
                     0);
    mu_aead_fini(&aead);
    len += BEFORE + MU_AEAD_TAG_LEN;
    frame[0] = (uint8_t)((len - 2) >> 8);
    frame[1] = (uint8_t)(len - 2);
    return len;
}

/* A peer that proposes more muxers than we read is no enemy: the muxer is agreed the slow way. */
static void test_noise_reads_so_many_muxers(void **unused)
{
    (void)unused;
    for (size_t more = 0; more < 2; more++) {
        struct side listener;
        struct side dialler;
        uint8_t frame[4096];
        uint8_t hash[32];
        size_t used;
        size_t len;

        assert_int_equal(side_init(&listener, MU_NOISE_LISTENER, NULL), 0);
        assert_int_equal(side_init(&dialler, MU_NOISE_DIALLER, NULL), 0);
        assert_int_equal(mu_noise_recv(&listener.noise, mu_noise_output(&dialler.noise), &used), 0);
        memcpy(hash, dialler.noise.hash, sizeof(hash));
        len = reseal_with_muxers(&listener, hash, MU_NOISE_MUXERS_MAX + more, frame);
        assert_int_equal(mu_noise_recv(&dialler.noise, mu_span(frame, len), &used), 0);
        assert_true(mu_noise_done(&dialler.noise));
        assert_int_equal(dialler.noise.muxer_agreed, more == 0);
        side_fini(&listener);
        side_fini(&dialler);
    }
}

static void join(struct side *listener, struct side *dialler)
{
    struct mu_noise *l = &listener->noise;
    struct mu_noise *d = &dialler->noise;
    size_t used;

    assert_int_equal(side_init(listener, MU_NOISE_LISTENER, NULL), 0);
    assert_int_equal(side_init(dialler, MU_NOISE_DIALLER, NULL), 0);
    assert_int_equal(mu_noise_recv(l, mu_noise_output(d), &used), 0);
    mu_noise_sent(d, used);
    assert_int_equal(mu_noise_recv(d, mu_noise_output(l), &used), 0);
    mu_noise_sent(l, used);
    assert_int_equal(mu_noise_recv(l, mu_noise_output(d), &used), 0);
    mu_noise_sent(d, used);
}

static void test_noise_carries_any_amount_in_any_pieces(void **unused)
{
    enum { TOTAL = 3 << 20 };
    struct side listener;
    struct side dialler;
    struct mu_prng rng;
    uint32_t sent = 0;
    uint32_t got = 0;

    (void)unused;
    mu_prng_seed(&rng, 11);
    join(&listener, &dialler);
    while (got < TOTAL) {
        uint8_t piece[100000];
        struct mu_span out;
        struct mu_span plain;
        size_t len = (size_t)mu_prng_below(&rng, sizeof(piece));
        size_t taken;
        size_t used;

        len = len < TOTAL - sent ? len : TOTAL - sent;
        for (size_t i = 0; i < len; i++) {
            piece[i] = (uint8_t)((sent + i) * 2654435761u >> 24);
        }
        assert_int_equal(mu_noise_send(&dialler.noise, mu_span(piece, len), &taken), 0);
        sent += (uint32_t)taken;
        out = mu_noise_output(&dialler.noise);
        out.len = (size_t)mu_prng_below(&rng, out.len + 1);
        assert_int_equal(mu_noise_recv(&listener.noise, out, &used), 0);
        mu_noise_sent(&dialler.noise, used);
        plain = mu_noise_plain(&listener.noise);
        for (size_t i = 0; i < plain.len; i++) {
            assert_int_equal(plain.data[i], (uint8_t)((got + i) * 2654435761u >> 24));
        }
        got += (uint32_t)plain.len;
        mu_noise_consume(&listener.noise, plain.len);
    }
    side_fini(&listener);
    side_fini(&dialler);
}

static void test_noise_makes_one_message_of_several_spans(void **unused)
{
    static uint8_t body[MU_NOISE_PLAIN_MAX - 5];
    const struct mu_span parts[] = {MU_SPAN_LIT("head:"), mu_span(body, sizeof(body))};
    struct side listener;
    struct side dialler;
    struct mu_span plain;
    size_t used;
    size_t len;

    (void)unused;
    memset(body, 'b', sizeof(body));
    assert_int_equal(side_init(&listener, MU_NOISE_LISTENER, NULL), 0);
    assert_int_equal(mu_noise_send_whole(&listener.noise, parts, 2), MUSTER_EAGAIN);
    side_fini(&listener);
    join(&listener, &dialler);
    assert_int_equal(mu_noise_send_whole(&dialler.noise, parts, 2), 0);
    assert_int_equal(mu_noise_output(&dialler.noise).len, 2 + MU_NOISE_FRAME_MAX);
    assert_memory_equal(mu_noise_output(&dialler.noise).data, "\xff\xff", 2);
    assert_int_equal(mu_noise_recv(&listener.noise, mu_noise_output(&dialler.noise), &used), 0);
    plain = mu_noise_plain(&listener.noise);
    assert_int_equal(plain.len, MU_NOISE_PLAIN_MAX);
    assert_memory_equal(plain.data, "head:", 5);
    assert_memory_equal(plain.data + 5, body, sizeof(body));
    mu_noise_consume(&listener.noise, plain.len);
    /* All of it or nothing: when there is no room, nothing has changed. */
    while (mu_noise_send_whole(&dialler.noise, parts, 2) == 0) {
        mu_noise_sent(&dialler.noise, used);
        used = 0;
    }
    len = mu_noise_output(&dialler.noise).len;
    assert_int_equal(mu_noise_send_whole(&dialler.noise, parts, 2), MUSTER_EAGAIN);
    assert_int_equal(mu_noise_output(&dialler.noise).len, len);
    assert_int_equal(len % (2 + MU_NOISE_FRAME_MAX), 0);
    while (mu_noise_output(&dialler.noise).len != 0) {
        assert_int_equal(mu_noise_recv(&listener.noise, mu_noise_output(&dialler.noise), &used), 0);
        mu_noise_sent(&dialler.noise, used);
        assert_int_equal(mu_noise_plain(&listener.noise).len % MU_NOISE_PLAIN_MAX, 0);
        mu_noise_consume(&listener.noise, mu_noise_plain(&listener.noise).len);
    }
    side_fini(&listener);
    side_fini(&dialler);
}

static void test_noise_notices_a_message_that_is_changed_repeated_or_left_out(void **unused)
{
    static const size_t orders[][2] = {{1, 1}, {0, 0}}; /* the second first; the first twice */

    (void)unused;
    for (size_t o = 0; o < 2; o++) {
        struct side listener;
        struct side dialler;
        uint8_t frames[2][32];
        size_t len = 2 + 1 + 16;
        size_t taken;
        size_t used;
        int err = 0;

        join(&listener, &dialler);
        for (size_t i = 0; i < 2; i++) {
            assert_int_equal(mu_noise_send(&dialler.noise, MU_SPAN_LIT("x"), &taken), 0);
            assert_int_equal(mu_noise_output(&dialler.noise).len, len);
            memcpy(frames[i], mu_noise_output(&dialler.noise).data, len);
            mu_noise_sent(&dialler.noise, len);
        }
        for (size_t i = 0; i < 2 && err == 0; i++) {
            err = mu_noise_recv(&listener.noise, mu_span(frames[orders[o][i]], len), &used);
        }
        assert_int_equal(err, MUSTER_ECORRUPT);
        side_fini(&listener);
        side_fini(&dialler);
    }
}

static void test_noise_survives_a_failing_heap(void **unused)
{
    bool fired = true;

    (void)unused;
    for (long nth = 0; fired; nth++) {
        struct side s;
        uint8_t bytes[512];
        size_t len = hex_decode(bytes, sizeof(bytes), message_b);
        size_t used;
        int err;

        failheap_arm(nth);
        err = side_init(&s, MU_NOISE_DIALLER, NULL);
        if (err == 0) {
            err = mu_noise_recv(&s.noise, mu_span(bytes, len), &used);
            fired = failheap_fired();
            failheap_disarm();
            if (err == MUSTER_ENOMEM) {
                /* Nothing has changed: with memory it goes on. */
                err = mu_noise_recv(&s.noise, mu_span(bytes + used, len - used), &used);
            }
            assert_int_equal(err, 0);
            mu_noise_sent(&s.noise, 34);
            expect_output(&s, message_c);
            side_fini(&s);
        } else {
            fired = failheap_fired();
            failheap_disarm();
            assert_int_equal(err, MUSTER_ENOMEM);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_noise_dialler_speaks_the_transcript),
        cmocka_unit_test(test_noise_listener_speaks_the_transcript),
        cmocka_unit_test(test_noise_has_the_values_of_the_transcript_on_the_way),
        cmocka_unit_test(test_noise_says_nothing_before_the_other_has_proved_itself),
        cmocka_unit_test(test_noise_refuses_another_peer_than_expected),
        cmocka_unit_test(test_noise_notices_every_changed_bit),
        cmocka_unit_test(test_noise_refuses_a_signature_of_another_key),
        cmocka_unit_test(test_noise_reads_so_many_muxers),
        cmocka_unit_test(test_noise_carries_any_amount_in_any_pieces),
        cmocka_unit_test(test_noise_makes_one_message_of_several_spans),
        cmocka_unit_test(test_noise_notices_a_message_that_is_changed_repeated_or_left_out),
        cmocka_unit_test(test_noise_survives_a_failing_heap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

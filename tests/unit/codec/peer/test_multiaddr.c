/* Addresses and names of peers: libp2p's own vectors both ways, and what is refused. */
#include "unit.h"

#include <stdio.h>

#include <muster/error.h>

#include "codec/text/base58.h"
#include "codec/text/ip.h"
#include "codec/peer/multiaddr.h"
#include "codec/bin/uvarint.h"
#include "core/prng.h"
#include "hex.h"

#define PEER_RSA     "QmeWwVBjrK1H8dYHxZyKvDngJiKG1FgKZwpFHemj2Lvqe4"
#define PEER_RSA_HEX "1220f05dc4dc4e17d93bff262bee2cef9b0cca6b5f061377bfbb4f0b7b369dc980bd"
#define PEER_ED      "12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5"
#define PEER_ED_HEX  "0024080112208a88e3dd7409f195fd52db2d3cba5d72ca6709bf1d94121bf3748801b40f6f5c"

static const char *const addrs[][2] = {
    {"/ip4/127.0.0.1/tcp/4001", "047f000001060fa1"},
    {"/ip4/1.2.3.4/udp/4001/quic-v1", "040102030491020fa1cd03"},
    {"/ip6/::1/tcp/80", "2900000000000000000000000000000001060050"},
    {"/dns4/example.com/tcp/443", "360b6578616d706c652e636f6d0601bb"},
    {"/unix/tmp/c.sock", "90030b2f746d702f632e736f636b"},
    {"/p2p/" PEER_RSA, "a50322" PEER_RSA_HEX},
    {"/ip4/127.0.0.1/tcp/4001/p2p/" PEER_ED, "047f000001060fa1a50326" PEER_ED_HEX},
    {"/ip4/1.2.3.4/tcp/4001/p2p/" PEER_RSA "/p2p-circuit/p2p/" PEER_ED,
     "0401020304060fa1a50322" PEER_RSA_HEX "a202a50326" PEER_ED_HEX},
};

static void test_multiaddr_has_the_bytes_of_the_vectors(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof(addrs) / sizeof(addrs[0]); i++) {
        struct mu_errmsg msg;
        struct mu_buf out;
        char text[MU_MULTIADDR_TEXT_MAX];
        uint8_t want[MU_MULTIADDR_MAX];
        size_t len = hex_decode(want, sizeof(want), addrs[i][1]);

        mu_buf_init(&out, MU_MULTIADDR_MAX);
        assert_int_equal(mu_multiaddr_parse(&out, addrs[i][0], &msg), 0);
        assert_int_equal(out.len, len);
        assert_memory_equal(mu_buf_span(&out).data, want, len);
        assert_int_equal(mu_multiaddr_check(mu_buf_span(&out)), 0);
        assert_string_equal(mu_multiaddr_format(mu_buf_span(&out), text, sizeof(text)),
                            addrs[i][0]);
        mu_buf_fini(&out);
    }
}

static int read_circuit(const char *text, struct mu_buf *out, struct mu_span *before,
                        struct mu_peer_id *relay, struct mu_peer_id *peer)
{
    struct mu_errmsg msg;

    mu_buf_reset(out);
    assert_int_equal(mu_multiaddr_parse(out, text, &msg), 0);
    return mu_multiaddr_circuit(mu_buf_span(out), before, relay, peer);
}

static void test_multiaddr_leads_through_a_relay(void **unused)
{
    static const char *const none[] = {"/ip4/1.2.3.4/tcp/1",
                                       "/ip4/1.2.3.4/tcp/1/p2p/" PEER_ED,
                                       "/p2p-circuit",
                                       "/ip4/1.2.3.4/tcp/1/p2p-circuit",
                                       "/ip4/1.2.3.4/tcp/1/p2p-circuit/p2p/" PEER_ED,
                                       "/p2p/" PEER_RSA "/p2p-circuit/p2p/" PEER_ED "/p2p-circuit",
                                       "/p2p/" PEER_RSA "/p2p-circuit/p2p-circuit",
                                       "/p2p/" PEER_RSA "/p2p-circuit/tcp/1",
                                       "/p2p/" PEER_RSA "/tcp/1/p2p-circuit",
                                       "/p2p/" PEER_RSA "/p2p-circuit/p2p/" PEER_ED
                                       "/p2p/" PEER_RSA};
    char text[MU_MULTIADDR_TEXT_MAX];
    char name[MU_PEER_ID_TEXT_MAX];
    struct mu_peer_id relay;
    struct mu_peer_id peer;
    struct mu_span before;
    struct mu_buf out;

    (void)unused;
    mu_buf_init(&out, MU_MULTIADDR_MAX);
    assert_int_equal(read_circuit("/ip4/1.2.3.4/tcp/1/p2p/" PEER_RSA "/p2p-circuit/p2p/" PEER_ED,
                                  &out, &before, &relay, &peer),
                     0);
    assert_string_equal(mu_multiaddr_format(before, text, sizeof(text)),
                        "/ip4/1.2.3.4/tcp/1/p2p/" PEER_RSA);
    assert_string_equal(mu_peer_id_format(&relay, name), PEER_RSA);
    assert_string_equal(mu_peer_id_format(&peer, name), PEER_ED);
    assert_int_equal(read_circuit("/p2p/" PEER_ED "/p2p-circuit", &out, &before, &relay, &peer), 0);
    assert_string_equal(mu_multiaddr_format(before, text, sizeof(text)), "/p2p/" PEER_ED);
    assert_int_equal(peer.len, 0);
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        if (read_circuit(none[i], &out, &before, &relay, &peer) != MUSTER_ENOTSUP) {
            fail_msg("%s", none[i]);
        }
    }
    assert_int_equal(mu_multiaddr_circuit(MU_SPAN_LIT("\x04\x01"), NULL, NULL, NULL),
                     MUSTER_EPROTO);
    mu_buf_fini(&out);
}

static void test_multiaddr_reads_a_peer_written_as_a_cid(void **unused)
{
    uint8_t bytes[64];
    char text[MU_MULTIADDR_TEXT_MAX];
    size_t len = hex_decode(bytes, sizeof(bytes), "a503280172" PEER_ED_HEX);

    (void)unused;
    assert_string_equal(mu_multiaddr_format(mu_span(bytes, len), text, sizeof(text)),
                        "/p2p/" PEER_ED);
}

static void test_multiaddr_refuses_what_it_cannot_read(void **unused)
{
    static const char *const texts[] = {
        "",
        "/",
        "ip4/1.2.3.4",
        "/ip4",
        "/ip4/",
        "/ip4/1.2.3",
        "/ip4/1.2.3.256",
        "/ip4/01.2.3.4",
        "/ip4/1.2.3.4/tcp",
        "/ip4/1.2.3.4/tcp/65536",
        "/ip4/1.2.3.4/tcp/x",
        "/ip4/1.2.3.4//tcp/1",
        "/ip6/:::1",
        "/ip6/1::2::3",
        "/ip6/1:2:3:4:5:6:7",
        "/ip6/1:2:3:4:5:6:7:8:9",
        "/ip6/12345::",
        "/ip6/1:",
        "/gopher/x",
        "/p2p/Qm",
        "/p2p/" PEER_RSA "x",
        "/unix",
        "/unix/",
        "/dns4/",
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        struct mu_errmsg msg = {""};
        struct mu_buf out;

        mu_buf_init(&out, MU_MULTIADDR_MAX);
        assert_int_equal(mu_multiaddr_parse(&out, texts[i], &msg), MUSTER_EINVAL);
        assert_int_not_equal(msg.text[0], '\0');
        assert_int_equal(out.len, 0);
        mu_buf_fini(&out);
    }
}

static void test_multiaddr_refuses_bytes_that_are_cut_off(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < sizeof(addrs) / sizeof(addrs[0]); i++) {
        uint8_t bytes[MU_MULTIADDR_MAX];
        size_t len = hex_decode(bytes, sizeof(bytes), addrs[i][1]);
        struct mu_span whole = mu_span(bytes, len);
        struct mu_multiaddr_part part;

        /* Cut inside its last part it cannot be read; between two parts it is a shorter one. */
        size_t last = 0;

        while (whole.len != 0) {
            last = len - whole.len;
            assert_int_equal(mu_multiaddr_next(&whole, &part), 1);
        }
        for (size_t cut = last + 1; cut < len; cut++) {
            assert_int_equal(mu_multiaddr_check(mu_span(bytes, cut)), MUSTER_EPROTO);
        }
    }
}

static void test_multiaddr_says_what_to_dial(void **unused)
{
    static const struct {
        const char *text;
        int err;
        const char *host; /* or a word of the refusal */
        uint16_t port;
    } cases[] = {
        {"/ip4/10.0.0.1/tcp/80", 0, "10.0.0.1", 80},
        {"/ip6/fe80::1/tcp/80/p2p/" PEER_ED, 0, "fe80::1", 80},
        {"/dns/node7/tcp/1", 0, "node7", 1},
        {"/unix/run/x", 0, "/run/x", 0},
        {"/ip4/10.0.0.1/udp/80/quic-v1", MUSTER_ENOTSUP, "QUIC", 0},
        {"/ip4/10.0.0.1/tcp/80/ws", MUSTER_ENOTSUP, "WebSockets", 0},
        {"/ip4/10.0.0.1/tcp/80/p2p/" PEER_ED "/p2p-circuit", MUSTER_ENOTSUP, "only TCP", 0},
        {"/p2p/" PEER_ED, MUSTER_ENOTSUP, "only TCP", 0},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_errmsg msg;
        struct mu_addr addr;
        struct mu_peer_id peer;
        struct mu_buf out;
        struct mu_buf back;
        char text[MU_MULTIADDR_TEXT_MAX];

        mu_buf_init(&out, MU_MULTIADDR_MAX);
        mu_buf_init(&back, MU_MULTIADDR_MAX);
        assert_int_equal(mu_multiaddr_parse(&out, cases[i].text, &msg), 0);
        assert_int_equal(mu_multiaddr_dial(mu_buf_span(&out), &addr, &peer), cases[i].err);
        if (cases[i].err == 0) {
            assert_string_equal(addr.host, cases[i].host);
            assert_int_equal(addr.port, cases[i].port);
            assert_int_equal(peer.len, strstr(cases[i].text, "/p2p/") == NULL ? 0 : 38);
            assert_int_equal(mu_multiaddr_from(&back, &addr, &msg), 0);
            mu_multiaddr_format(mu_buf_span(&back), text, sizeof(text));
            assert_int_equal(strncmp(text, cases[i].text, strlen(text)), 0);
        } else {
            assert_non_null(strstr(mu_multiaddr_refusal(mu_buf_span(&out)), cases[i].host));
        }
        mu_buf_fini(&out);
        mu_buf_fini(&back);
    }
}

static void test_multiaddr_knows_what_is_another_place_on_every_host(void **unused)
{
    static const struct {
        const char *text;
        bool local;
    } cases[] = {
        {"/ip4/127.3.2.1/tcp/1", true},
        {"/ip4/0.0.0.0/tcp/1", true},
        {"/ip4/169.254.169.254/tcp/80", true},
        {"/ip6/::1/tcp/1", true},
        {"/ip6/::/tcp/1", true},
        {"/ip6/::ffff:127.0.0.1/tcp/1", true},
        {"/ip6/fe80::1/tcp/1", true},
        {"/unix/tmp/x", true},
        {"/dns/localhost/tcp/1", true},
        {"/dns4/a.localhost/tcp/1", true},
        {"/ip4/128.0.0.1/tcp/1", false},
        {"/ip4/192.168.0.1/tcp/1", false},
        {"/ip6/fec0::1/tcp/1", false},
        {"/dns4/notlocalhost/tcp/1", false},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_errmsg msg;
        struct mu_buf addr;

        mu_buf_init(&addr, MU_MULTIADDR_MAX);
        assert_int_equal(mu_multiaddr_parse(&addr, cases[i].text, &msg), 0);
        assert_int_equal(mu_multiaddr_is_local(mu_buf_span(&addr)), cases[i].local);
        mu_buf_fini(&addr);
    }
}

static void test_peer_id_has_both_text_forms(void **unused)
{
    static const char *const cid =
        "bafzaajaiaejcahwr5d5ofrfbis4l5d6uwr57hu5tjodrypfm6yaq6dsc2r2pzyt6";
    static const char *const base58 = "12D3KooWBtg3aaRMjxwedh83aGiUkwSxDwUZkzuJcfaqUmo7R3pq";
    struct mu_peer_id a;
    struct mu_peer_id b;
    struct mu_errmsg msg;
    char text[MU_PEER_ID_TEXT_MAX];
    char cid_text[MU_PEER_ID_CID_MAX];
    uint8_t mh[64];

    (void)unused;
    assert_int_equal(mu_peer_id_parse(&a, cid, &msg), 0);
    assert_int_equal(mu_peer_id_parse(&b, base58, &msg), 0);
    assert_true(mu_peer_id_eq(&a, &b));
    assert_string_equal(mu_peer_id_format(&a, text), base58);
    assert_string_equal(mu_peer_id_format_cid(&a, cid_text), cid);
    /* Of an RSA key of 4096 bits. */
    assert_int_equal(mu_peer_id_parse(&a, "QmaeANgBs1DTSxWSrPPtobgQuxW8XTfsS4ydbK4rCHzqxG", &msg),
                     0);
    assert_int_equal(a.len, hex_decode(mh, sizeof(mh),
                                       "1220b6c8a8c0a3105fc27afca4fb1173791f038e4343fd56b7c67b61"
                                       "6dbc30a04ccd"));
    assert_memory_equal(a.bytes, mh, a.len);
    assert_int_equal(mu_peer_id_parse(&b, mu_peer_id_format_cid(&a, cid_text), &msg), 0);
    assert_true(mu_peer_id_eq(&a, &b));
    assert_int_equal(mu_peer_id_parse(&a, "bafz!", &msg), MUSTER_EINVAL);
    assert_int_equal(mu_peer_id_parse(&a, "", &msg), MUSTER_EINVAL);
    assert_int_equal(mu_peer_id_parse(&a, "0OIl", &msg), MUSTER_EINVAL);
}

static void test_base58_returns_what_it_was_given(void **unused)
{
    struct mu_prng rng;

    (void)unused;
    mu_prng_seed(&rng, 7);
    for (size_t round = 0; round < 2000; round++) {
        uint8_t in[MU_BASE58_BYTES_MAX];
        uint8_t back[MU_BASE58_BYTES_MAX];
        char text[MU_BASE58_TEXT_MAX + 1];
        size_t len = (size_t)mu_prng_below(&rng, sizeof(in) + 1);
        size_t zeroes = (size_t)mu_prng_below(&rng, len + 1);
        size_t back_len = 0;

        for (size_t i = 0; i < len; i++) {
            in[i] = i < zeroes ? 0 : (uint8_t)mu_prng_below(&rng, 256);
        }
        (void)mu_base58_encode(text, mu_span(in, len));
        assert_int_equal(mu_base58_decode(back, &back_len, mu_span_str(text)), 0);
        assert_int_equal(back_len, len);
        assert_memory_equal(back, in, len);
    }
}

static void test_ip6_is_written_in_its_shortest_form(void **unused)
{
    static const char *const pairs[][2] = {
        {"::", "::"},
        {"0:0:0:0:0:0:0:1", "::1"},
        {"2001:DB8:0:0:1:0:0:1", "2001:db8::1:0:0:1"},
        {"1:0:2:0:3:0:4:0", "1:0:2:0:3:0:4:0"},
        {"fe80::", "fe80::"},
        {"::ffff:1.2.3.4", "::ffff:102:304"},
        {"1:2:3:4:5:6:7:8", "1:2:3:4:5:6:7:8"},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        uint8_t bytes[16];
        char text[MU_IP_TEXT_MAX];

        assert_true(mu_ip6_parse(mu_span_str(pairs[i][0]), bytes));
        assert_string_equal(mu_ip6_format(bytes, text), pairs[i][1]);
    }
}

static void test_uvarint_takes_only_the_shortest_form(void **unused)
{
    static const uint8_t longer[] = {0x80, 0x00};
    static const uint8_t endless[] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01};
    uint64_t value;
    size_t len;

    (void)unused;
    assert_int_equal(mu_uvarint_get(mu_span(longer, 2), &len, &value), MUSTER_EPROTO);
    assert_int_equal(mu_uvarint_get(mu_span(endless, 10), &len, &value), MUSTER_EPROTO);
    assert_int_equal(mu_uvarint_get(mu_span(endless, 8), &len, &value), MUSTER_EAGAIN);
    for (unsigned bit = 0; bit < 63; bit++) {
        uint8_t bytes[10];
        size_t n = mu_uvarint_put(bytes, UINT64_C(1) << bit);

        assert_int_equal(mu_uvarint_get(mu_span(bytes, n), &len, &value), 0);
        assert_int_equal(len, n);
        assert_int_equal(n, mu_uvarint_len(UINT64_C(1) << bit));
        assert_true(value == UINT64_C(1) << bit);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_multiaddr_has_the_bytes_of_the_vectors),
        cmocka_unit_test(test_multiaddr_leads_through_a_relay),
        cmocka_unit_test(test_multiaddr_reads_a_peer_written_as_a_cid),
        cmocka_unit_test(test_multiaddr_refuses_what_it_cannot_read),
        cmocka_unit_test(test_multiaddr_refuses_bytes_that_are_cut_off),
        cmocka_unit_test(test_multiaddr_says_what_to_dial),
        cmocka_unit_test(test_multiaddr_knows_what_is_another_place_on_every_host),
        cmocka_unit_test(test_peer_id_has_both_text_forms),
        cmocka_unit_test(test_base58_returns_what_it_was_given),
        cmocka_unit_test(test_ip6_is_written_in_its_shortest_form),
        cmocka_unit_test(test_uvarint_takes_only_the_shortest_form),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

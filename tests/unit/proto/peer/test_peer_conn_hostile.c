/*
 * Peers that lie, tamper, downgrade, replay, flood or overrun, at each stage of a connection: each
 * is refused with its own error, and costs no more than the limits say. And a heap that fails.
 */
#include "unit.h"

#include <muster/error.h>

#include "core/prng.h"
#include "failheap.h"
#include "hex.h"
#include "peer_side.h"

#define HEADER "132f6d756c746973747265616d2f312e302e300a"
#define NOISE  "072f6e6f6973650a"
#define NA     "036e610a"

static mu_mono_t at_ms(uint64_t ms)
{
    return mu_mono_add_ms((mu_mono_t){MU_NS_PER_S}, ms);
}

static void start(struct peer_side *s, enum mu_peer_role role)
{
    assert_int_equal(peer_side_init(s, peer_side_config(role), at_ms(0)), 0);
}

static void feed(struct peer_side *s, struct mu_span in)
{
    size_t used;

    assert_int_equal(mu_peer_conn_recv(&s->conn, at_ms(0), in, &used), 0);
}

static void feed_hex(struct peer_side *s, const char *hex)
{
    static uint8_t bytes[2048];

    feed(s, mu_span(bytes, hex_decode(bytes, sizeof(bytes), hex)));
}

static void expect_failed(struct peer_side *s, int err, const char *text)
{
    struct mu_peer_event e = {0};

    while (mu_peer_conn_next_event(&s->conn, &e) && e.type != MU_PEER_EV_FAILED) {
        assert_true(e.type != MU_PEER_EV_DATA);
    }
    if (e.type != MU_PEER_EV_FAILED || e.err != err ||
        strstr(mu_peer_conn_errmsg(&s->conn), text) == NULL) {
        fail_msg("%d %s: '%s', not '%s'", e.type, muster_errname(e.err),
                 mu_peer_conn_errmsg(&s->conn), text);
    }
    assert_false(mu_peer_conn_next_event(&s->conn, &e));
    assert_int_equal(mu_peer_conn_count(&s->conn), 0);
    assert_int_equal(s->conn.opened, s->conn.closed);
}

static void drain(struct peer_side *s)
{
    struct mu_peer_event e;

    while (mu_peer_conn_next_event(&s->conn, &e)) {
        assert_true(e.type != MU_PEER_EV_FAILED);
    }
}

/* --- before anything is secret ---------------------------------------------------------------- */

static void test_peer_conn_refuses_to_be_downgraded(void **unused)
{
    /* /plaintext/2.0.0 */
    static const char plaintext[] = "112f706c61696e746578742f322e302e300a";
    struct peer_side s;
    struct mu_span out;

    (void)unused;
    start(&s, MU_PEER_LISTENER);
    feed_hex(&s, HEADER);
    feed_hex(&s, plaintext);
    /* What would follow in the clear is no more than a name that cannot be. */
    out = mu_peer_conn_output(&s.conn);
    assert_int_equal(out.len, 24);
    assert_memory_equal(out.data + 20, "\3na\n", 4);
    assert_int_equal(s.conn.stage, MU_PEER_RAW);
    feed_hex(&s, NOISE);
    assert_int_equal(s.conn.stage, MU_PEER_NOISE);
    peer_side_fini(&s);

    start(&s, MU_PEER_DIALLER);
    feed_hex(&s, HEADER NA);
    expect_failed(&s, MUSTER_EVERSION, "/noise");
    peer_side_fini(&s);

    start(&s, MU_PEER_DIALLER);
    feed_hex(&s, HEADER);
    feed_hex(&s, plaintext);
    expect_failed(&s, MUSTER_EPROTO, "another protocol");
    peer_side_fini(&s);
}

static void test_peer_conn_hostile_bytes_in_the_clear(void **unused)
{
    static const struct {
        enum mu_peer_role role;
        const char *hex;
        int err;
        const char *text;
    } cases[] = {
        /* "GET / HTTP/1.1": a message of 71 bytes. */
        {MU_PEER_LISTENER,
         "474554202f20485454502f312e310d0a474554202f20485454502f312e310d0a474554202f2048545450"
         "2f312e310d0a474554202f20485454502f312e310d0a474554202f20485454502f312e310d0a",
         MUSTER_EPROTO, "line end"},
        /* TLS. */
        {MU_PEER_LISTENER, "16030100c8010000c4030300112233445566778899aabbcc", MUSTER_EPROTO,
         "line end"},
        {MU_PEER_LISTENER, "ffffffffffffffffffff", MUSTER_EPROTO, "length"},
        {MU_PEER_LISTENER, HEADER "ffff03", MUSTER_ELIMIT, "1024"},
        {MU_PEER_DIALLER, NOISE, MUSTER_EPROTO, "does not speak"},
        {MU_PEER_LISTENER, HEADER NOISE "0000", MUSTER_EPROTO, "not a key"},
        {MU_PEER_LISTENER, HEADER NOISE "001f" HEADER "0011223344556677889900", MUSTER_EPROTO,
         "not a key"},
        /* A key that gives nothing away. */
        {MU_PEER_LISTENER,
         HEADER NOISE "0020"
                      "0000000000000000000000000000000000000000000000000000000000000000",
         MUSTER_EPROTO, "weak"},
        {MU_PEER_DIALLER, HEADER NOISE "0003616263", MUSTER_EPROTO, "too short"},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct peer_side s;

        start(&s, cases[i].role);
        feed_hex(&s, cases[i].hex);
        expect_failed(&s, cases[i].err, cases[i].text);
        peer_side_fini(&s);
    }
}

/* --- who it is -------------------------------------------------------------------------------- */

static void test_peer_conn_refuses_another_peer_than_was_meant(void **unused)
{
    struct mu_peer_conn_config config = peer_side_config(MU_PEER_DIALLER);
    struct peer_pair p;
    struct mu_errmsg msg;

    (void)unused;
    assert_int_equal(mu_peer_id_parse(&config.expected, PEER_DIALLER_ID, &msg), 0);
    assert_int_equal(peer_side_init(&p.d, config, at_ms(0)), 0);
    start(&p.l, MU_PEER_LISTENER);
    for (int i = 0; i < 4; i++) {
        (void)peer_carry(&p.d, &p.l, at_ms(0));
        drain(&p.l);
        (void)peer_carry(&p.l, &p.d, at_ms(0));
    }
    expect_failed(&p.d, MUSTER_EPEERID, PEER_LISTENER_ID);
    assert_int_equal(mu_peer_conn_output(&p.d.conn).len, 0);
    /* And so the other never learns who called. */
    mu_peer_conn_eof(&p.l.conn, at_ms(0));
    expect_failed(&p.l, MUSTER_ECONN, "during the handshake");
    assert_int_equal(mu_peer_conn_peer(&p.l.conn)->len, 0);
    peer_pair_fini(&p);
}

/* All that a dialler once said, said again to a listener whose keys of the day are others. */
static void test_peer_conn_refuses_a_handshake_of_another_day(void **unused)
{
    struct peer_pair p;
    struct peer_side other;
    struct mu_peer_conn_config config = peer_side_config(MU_PEER_LISTENER);
    struct mu_buf said;
    struct mu_peer_event e;
    size_t used;

    (void)unused;
    mu_buf_init(&said, 4096);
    start(&p.d, MU_PEER_DIALLER);
    start(&p.l, MU_PEER_LISTENER);
    while (p.l.conn.stage != MU_PEER_OPEN) {
        struct mu_span out = mu_peer_conn_output(&p.d.conn);

        assert_int_equal(mu_buf_append(&said, out), 0);
        feed(&p.l, out);
        mu_peer_conn_sent(&p.d.conn, out.len);
        (void)peer_carry(&p.l, &p.d, at_ms(0));
    }
    config.secret_ephemeral[0] ^= 0x10;
    assert_int_equal(peer_side_init(&other, config, at_ms(0)), 0);
    assert_int_equal(mu_peer_conn_recv(&other.conn, at_ms(0), mu_buf_span(&said), &used), 0);
    assert_true(mu_peer_conn_next_event(&other.conn, &e));
    assert_int_equal(e.type, MU_PEER_EV_FAILED);
    assert_int_equal(e.err, MUSTER_ECORRUPT);
    peer_side_fini(&other);
    peer_pair_fini(&p);
    mu_buf_fini(&said);
}

/* --- in secret -------------------------------------------------------------------------------- */

static void test_peer_conn_notices_what_is_changed_or_repeated(void **unused)
{
    (void)unused;
    for (int repeated = 0; repeated < 2; repeated++) {
        struct peer_pair p;
        uint8_t bytes[256];
        struct mu_span out;
        uint32_t id;
        size_t len;

        peer_pair_start(&p, false, at_ms(0));
        assert_int_equal(mu_peer_conn_open(&p.d.conn, at_ms(0), &MU_SPAN_LIT("/echo"), 1, &id), 0);
        out = mu_peer_conn_output(&p.d.conn);
        len = out.len;
        memcpy(bytes, out.data, len);
        if (repeated) {
            feed(&p.l, out);
            drain(&p.l);
        } else {
            bytes[len / 2] ^= 1;
        }
        feed(&p.l, mu_span(bytes, len));
        expect_failed(&p.l, MUSTER_ECORRUPT, "changed on its way");
        peer_pair_fini(&p);
    }
}

/* A peer that is who it says, and says what it must not: hex of yamux frames. */
static void say(struct peer_pair *p, const char *hex)
{
    uint8_t bytes[2048];
    size_t len = hex_decode(bytes, sizeof(bytes), hex);
    size_t taken;

    assert_int_equal(mu_noise_send(&p->d.conn.noise, mu_span(bytes, len), &taken), 0);
    assert_int_equal(taken, len);
    (void)peer_carry(&p->d, &p->l, at_ms(0));
}

static void test_peer_conn_violations_of_the_muxer_end_the_connection(void **unused)
{
    static const struct {
        const char *hex;
        int err;
        const char *text;
    } cases[] = {
        {"010000000000000100000000", MUSTER_EPROTO, "version"},
        {"000900000000000100000000", MUSTER_EPROTO, "kind"},
        {"000100010000000200000000", MUSTER_EPROTO, "id of ours"},
        {"000000010000000100040001", MUSTER_EWINDOW, "more than its window"},
        {"0000000100000001ffffffff", MUSTER_ELIMIT, "any window"},
        {"000100010000000100000000 000100010000000100000000", MUSTER_EPROTO, "twice"},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct peer_pair p;
        struct mu_peer_event e;

        peer_pair_start(&p, false, at_ms(0));
        say(&p, cases[i].hex);
        expect_failed(&p.l, cases[i].err, cases[i].text);
        /* It is told why, in secret, and then the connection can go. */
        assert_false(mu_peer_conn_done(&p.l.conn));
        (void)peer_carry(&p.l, &p.d, at_ms(0));
        assert_true(mu_peer_conn_done(&p.l.conn));
        assert_true(mu_peer_conn_next_event(&p.d.conn, &e));
        assert_int_equal(e.type, MU_PEER_EV_GO_AWAY);
        peer_pair_fini(&p);
    }
}

/* Of a stream whose name cannot be agreed on only the stream suffers. */
static void test_peer_conn_violations_of_a_name_end_the_stream(void **unused)
{
    static const char *const frames[] = {
        "000000010000000100000008" NOISE,                             /* no header */
        "000000010000000100000017" HEADER "ffff7f",                   /* too long a name */
        "000000010000000100000015" HEADER "00",                       /* an empty one */
        "000000010000000100000018" HEADER "036e6161",                 /* no line end */
        "000100010000000100000000 000100040000000100000000",          /* no word at all */
        "000000050000000100000014" HEADER,                            /* no name */
        "000000010000000100000014" HEADER "000100080000000100000000", /* changed its mind */
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(frames) / sizeof(frames[0]); i++) {
        struct peer_pair p;
        struct mu_peer_event e;

        peer_pair_start(&p, false, at_ms(0));
        say(&p, frames[i]);
        assert_false(mu_peer_conn_next_event(&p.l.conn, &e));
        assert_int_equal(mu_peer_conn_count(&p.l.conn), 0);
        assert_int_equal(mu_yamux_count(&p.l.conn.yamux), 0);
        assert_int_equal(p.l.conn.opened, 1);
        assert_int_equal(p.l.conn.stage, MU_PEER_OPEN);
        peer_pair_fini(&p);
    }
}

/* The answer to a proposal of ours. */
static void test_peer_conn_a_false_answer_ends_our_stream(void **unused)
{
    static const struct {
        const char *hex;
        int err;
    } cases[] = {
        {"000000000000000200000018" HEADER NA, MUSTER_EREFUSED},
        {"00000000000000020000001a" HEADER NA "7878", MUSTER_EREFUSED},
        {"00000000000000020000001c" HEADER NOISE, MUSTER_EPROTO},
        {"000000000000000200000008" NOISE, MUSTER_EPROTO},
        {"000000000000000200000017" HEADER "ffff7f", MUSTER_ELIMIT},
        {"000100040000000200000000", MUSTER_ECLOSED},
        {"000100080000000200000000", MUSTER_ECLOSED},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct peer_pair p;
        struct mu_peer_event e;
        uint32_t id;

        peer_pair_start(&p, false, at_ms(0));
        assert_int_equal(mu_peer_conn_open(&p.l.conn, at_ms(0), &MU_SPAN_LIT("/echo"), 1, &id), 0);
        say(&p, cases[i].hex);
        assert_true(mu_peer_conn_next_event(&p.l.conn, &e));
        assert_int_equal(e.type, MU_PEER_EV_STREAM_READY);
        assert_int_equal(e.id, id);
        assert_int_equal(e.err, cases[i].err);
        assert_false(mu_peer_conn_next_event(&p.l.conn, &e));
        assert_int_equal(mu_peer_conn_count(&p.l.conn), 0);
        assert_int_equal(mu_yamux_count(&p.l.conn.yamux), 0);
        peer_pair_fini(&p);
    }
}

static void test_peer_conn_hostile_bytes_for_the_muxer(void **unused)
{
    static const struct {
        const char *hex; /* behind the handshake, instead of the muxer's negotiation */
        int err;
        const char *text;
    } cases[] = {
        {"000200010000000000000000", MUSTER_EPROTO, "length"},
        {HEADER "00", MUSTER_EPROTO, "length"},
        {NOISE, MUSTER_EPROTO, "does not speak"},
    };

    (void)unused;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_peer_conn_config config = peer_side_config(MU_PEER_DIALLER);
        struct peer_pair p;

        config.muxer_late = true;
        assert_int_equal(peer_side_init(&p.d, config, at_ms(0)), 0);
        start(&p.l, MU_PEER_LISTENER);
        while (p.d.conn.stage != MU_PEER_MUXER) {
            (void)peer_carry(&p.d, &p.l, at_ms(0));
            drain(&p.l);
            (void)peer_carry(&p.l, &p.d, at_ms(0));
            drain(&p.d);
        }
        mu_mss_sent(&p.d.conn.muxer, mu_mss_output(&p.d.conn.muxer).len);
        say(&p, cases[i].hex);
        expect_failed(&p.l, cases[i].err, cases[i].text);
        peer_pair_fini(&p);
    }
    {
        struct mu_peer_conn_config config = peer_side_config(MU_PEER_DIALLER);
        struct peer_pair p;
        size_t taken;

        /* A listener that knows no such muxer. */
        config.muxer_late = true;
        assert_int_equal(peer_side_init(&p.d, config, at_ms(0)), 0);
        start(&p.l, MU_PEER_LISTENER);
        while (p.l.conn.stage != MU_PEER_MUXER) {
            (void)peer_carry(&p.d, &p.l, at_ms(0));
            (void)peer_carry(&p.l, &p.d, at_ms(0));
            drain(&p.d);
        }
        assert_int_equal(
            mu_noise_send(&p.l.conn.noise, MU_SPAN_LIT("\x13/multistream/1.0.0\n\3na\n"), &taken),
            0);
        (void)peer_carry(&p.l, &p.d, at_ms(0));
        expect_failed(&p.d, MUSTER_EVERSION, "/yamux/1.0.0");
        peer_pair_fini(&p);
    }
}

/* Streams and proposals without end, from a peer that reads nothing. */
static void test_peer_conn_a_flood_is_held_within_limits(void **unused)
{
    static struct peer_pair p;
    struct mu_peer_event e;
    uint32_t id = 1;
    int stuck = 0;

    (void)unused;
    peer_pair_start(&p, false, at_ms(0));
    for (int i = 0; i < 4000 && stuck < 3; i++) {
        uint8_t bytes[60 * 33];
        size_t len = 0;
        size_t taken;

        for (int k = 0; k < 60; k++, id += 2) {
            (void)hex_decode(bytes + len, 33, "000000010000000000000015" HEADER "7f");
            bytes[len + 6] = (uint8_t)(id >> 8);
            bytes[len + 5] = (uint8_t)(id >> 16);
            bytes[len + 7] = (uint8_t)id;
            len += 33;
        }
        assert_int_equal(mu_noise_send(&p.d.conn.noise, mu_span(bytes, len), &taken), 0);
        stuck = peer_carry(&p.d, &p.l, at_ms(0)) ? 0 : stuck + 1;
        while (mu_peer_conn_next_event(&p.l.conn, &e)) {
            fail_msg("event %d", (int)e.type);
        }
        assert_true(mu_peer_conn_count(&p.l.conn) <= p.l.conn.config.streams_max);
    }
    assert_int_equal(stuck, 3);
    assert_int_equal(mu_peer_conn_count(&p.l.conn), p.l.conn.config.streams_max);
    assert_true(p.l.conn.yamux.out.cap + p.l.conn.noise.out.cap + p.l.conn.noise.plain.cap +
                    p.l.conn.noise.in.cap <=
                2 << 20);
    /* They had their time. */
    mu_peer_conn_tick(&p.l.conn, at_ms(15000));
    assert_int_equal(mu_peer_conn_count(&p.l.conn), 0);
    peer_pair_fini(&p);
}

/* --- memory ----------------------------------------------------------------------------------- */

struct talk {
    struct peer_pair p;
    uint32_t id;
    bool wrote;
    size_t got;
    size_t back;
    int secured;
    int failed;
};

static void listen_to(struct talk *t, struct peer_side *s)
{
    struct mu_peer_event e;
    size_t taken;

    while (mu_peer_conn_next_event(&s->conn, &e)) {
        switch (e.type) {
        case MU_PEER_EV_SECURED:
            t->secured++;
            break;
        case MU_PEER_EV_STREAM_OPENED:
            if (mu_peer_conn_accept(&s->conn, e.id) == MUSTER_ENOMEM) {
                failheap_disarm();
                assert_int_equal(mu_peer_conn_accept(&s->conn, e.id), 0);
            }
            break;
        case MU_PEER_EV_DATA:
            if (s == &t->p.d) {
                t->back += e.data.len;
            } else {
                t->got += e.data.len;
                if (mu_peer_conn_write(&s->conn, e.id, e.data, &taken) == MUSTER_ENOMEM) {
                    failheap_disarm();
                    assert_int_equal(mu_peer_conn_write(&s->conn, e.id, e.data, &taken), 0);
                }
                assert_int_equal(taken, e.data.len);
            }
            mu_peer_conn_consumed(&s->conn, at_ms(0), e.id, e.data.len);
            break;
        case MU_PEER_EV_EOF:
            if (s == &t->p.l) {
                assert_int_equal(mu_peer_conn_end(&s->conn, e.id), 0);
            }
            break;
        case MU_PEER_EV_RESET:
            /* There was no memory for the stream itself. */
            t->failed++;
            break;
        case MU_PEER_EV_STREAM_READY:
            t->failed += e.err != 0 ? 1 : 0;
            break;
        case MU_PEER_EV_WRITABLE:
        case MU_PEER_EV_GO_AWAY:
        case MU_PEER_EV_CLOSED:
        case MU_PEER_EV_FAILED:
            break;
        }
    }
}

/* One turn of each side; whoever runs out of memory has it again from then on. */
static void turn(struct talk *t, struct peer_side *from, struct peer_side *to)
{
    struct mu_span out = mu_peer_conn_output(&from->conn);
    size_t used = 0;
    int err = mu_peer_conn_recv(&to->conn, at_ms(0), out, &used);

    if (err == MUSTER_ENOMEM) {
        failheap_disarm();
    } else {
        assert_int_equal(err, 0);
    }
    mu_peer_conn_sent(&from->conn, used);
    listen_to(t, to);
    if (to->conn.starved || from->conn.starved) {
        failheap_disarm();
    }
}

static void test_peer_conn_survives_a_failing_heap(void **unused)
{
    enum { LEN = 150 * 1000 };
    static uint8_t data[LEN];
    int refused = 0;
    long nth = 0;

    (void)unused;
    for (bool fired = true; fired; nth++) {
        struct mu_peer_conn_config config = peer_side_config(MU_PEER_DIALLER);
        struct talk t = {0};
        size_t written = 0;
        int err;

        config.muxer_late = nth % 2 == 0;
        failheap_arm(nth / 2);
        if (peer_side_init(&t.p.d, config, at_ms(0)) != 0) {
            failheap_disarm();
            continue;
        }
        if (peer_side_init(&t.p.l, peer_side_config(MU_PEER_LISTENER), at_ms(0)) != 0) {
            failheap_disarm();
            peer_side_fini(&t.p.d);
            continue;
        }
        for (int i = 0; i < 60; i++) {
            size_t taken = 0;

            if (t.id == 0) {
                err = mu_peer_conn_open(&t.p.d.conn, at_ms(0), &MU_SPAN_LIT("/echo"), 1, &t.id);
                if (err != 0) {
                    assert_int_equal(err, MUSTER_ENOMEM);
                    failheap_disarm();
                }
            } else if (written < LEN && t.failed == 0) {
                err = mu_peer_conn_write(&t.p.d.conn, t.id, mu_span(data + written, LEN - written),
                                         &taken);
                assert_true(err == 0 || err == MUSTER_ENOMEM || err == MUSTER_ENOENT);
                written += taken;
            } else if (t.failed == 0) {
                (void)mu_peer_conn_end(&t.p.d.conn, t.id);
            }
            turn(&t, &t.p.d, &t.p.l);
            turn(&t, &t.p.l, &t.p.d);
        }
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(t.secured, 2);
        assert_int_equal(t.p.d.conn.stage, MU_PEER_OPEN);
        assert_int_equal(t.p.l.conn.stage, MU_PEER_OPEN);
        if (t.failed == 0) {
            assert_int_equal(t.got, LEN);
            assert_int_equal(t.back, LEN);
        } else {
            refused++;
        }
        assert_int_equal(mu_peer_conn_count(&t.p.d.conn), 0);
        assert_int_equal(mu_peer_conn_count(&t.p.l.conn), 0);
        peer_pair_fini(&t.p);
    }
    assert_true(nth > 40 && refused < nth / 2);
}

/* What could not be said for want of memory is said once there is some. */
static void test_peer_conn_an_end_is_not_forgotten_for_want_of_memory(void **unused)
{
    struct peer_pair p;
    struct mu_peer_event e;
    uint32_t id;

    (void)unused;
    peer_pair_start(&p, false, at_ms(0));
    assert_int_equal(mu_peer_conn_open(&p.d.conn, at_ms(0), &MU_SPAN_LIT("/echo"), 1, &id), 0);
    (void)peer_carry(&p.d, &p.l, at_ms(0));
    mu_buf_fini(&p.d.conn.yamux.out);
    failheap_arm(0);
    assert_int_equal(mu_peer_conn_end(&p.d.conn, id), 0);
    assert_false(mu_peer_conn_next_event(&p.d.conn, &e));
    assert_int_equal(mu_peer_conn_deadline(&p.d.conn).ns, at_ms(0).ns); /* of the first ping */
    mu_peer_conn_tick(&p.d.conn, at_ms(0));
    assert_false(mu_peer_conn_next_event(&p.d.conn, &e));
    assert_true(p.d.conn.starved);
    failheap_disarm();
    assert_false(mu_peer_conn_next_event(&p.d.conn, &e));
    assert_true(mu_peer_conn_next_event(&p.l.conn, &e));
    assert_int_equal(e.type, MU_PEER_EV_STREAM_OPENED);
    assert_int_equal(mu_peer_conn_accept(&p.l.conn, id), 0);
    assert_false(mu_peer_conn_next_event(&p.l.conn, &e));
    (void)peer_carry(&p.d, &p.l, at_ms(0));
    assert_true(mu_peer_conn_next_event(&p.l.conn, &e));
    assert_int_equal(e.type, MU_PEER_EV_EOF);
    peer_pair_fini(&p);
}

/* Nor is a reset: whoever waits for an answer on the stream would wait for ever. */
static void test_peer_conn_a_reset_is_not_forgotten_for_want_of_memory(void **unused)
{
    struct peer_pair p;
    struct mu_peer_event e;
    uint32_t id;

    (void)unused;
    peer_pair_start(&p, false, at_ms(0));
    assert_int_equal(mu_peer_conn_open(&p.d.conn, at_ms(0), &MU_SPAN_LIT("/echo"), 1, &id), 0);
    (void)peer_carry(&p.d, &p.l, at_ms(0));
    assert_true(mu_peer_conn_next_event(&p.l.conn, &e));
    assert_int_equal(e.type, MU_PEER_EV_STREAM_OPENED);
    assert_int_equal(mu_peer_conn_accept(&p.l.conn, id), 0);
    assert_false(mu_peer_conn_next_event(&p.l.conn, &e));
    (void)peer_carry(&p.l, &p.d, at_ms(0));
    assert_true(mu_peer_conn_next_event(&p.d.conn, &e));
    assert_int_equal(e.type, MU_PEER_EV_STREAM_READY);
    assert_false(mu_peer_conn_next_event(&p.d.conn, &e));
    mu_peer_conn_tick(&p.l.conn, at_ms(0)); /* its first ping */
    (void)peer_carry(&p.l, &p.d, at_ms(0));
    assert_false(mu_peer_conn_next_event(&p.d.conn, &e));
    mu_buf_trim(&p.l.conn.yamux.out, 0);
    failheap_arm(0);
    mu_peer_conn_reset(&p.l.conn, id);
    assert_int_equal(mu_peer_conn_count(&p.l.conn), 0);
    assert_false(mu_peer_conn_next_event(&p.l.conn, &e));
    /* It asks to be called soon, as often as it takes. */
    assert_int_equal(mu_peer_conn_deadline(&p.l.conn).ns, at_ms(10).ns);
    mu_peer_conn_tick(&p.l.conn, at_ms(10));
    assert_false(mu_peer_conn_next_event(&p.l.conn, &e));
    assert_int_equal(mu_peer_conn_deadline(&p.l.conn).ns, at_ms(20).ns);
    failheap_disarm();
    mu_peer_conn_tick(&p.l.conn, at_ms(20));
    assert_false(mu_peer_conn_next_event(&p.l.conn, &e));
    assert_true(mu_mono_before(at_ms(1000), mu_peer_conn_deadline(&p.l.conn)));
    (void)peer_carry(&p.l, &p.d, at_ms(20));
    assert_true(mu_peer_conn_next_event(&p.d.conn, &e));
    assert_int_equal(e.type, MU_PEER_EV_RESET);
    assert_int_equal(e.id, id);
    peer_pair_fini(&p);
}

/* Nor are last words: the connection is not done with before they are out. */
static void test_peer_conn_last_words_wait_for_memory(void **unused)
{
    struct peer_pair p;
    struct mu_peer_event e;
    uint32_t id;
    size_t taken;

    (void)unused;
    peer_pair_start(&p, false, at_ms(0));
    assert_int_equal(mu_peer_conn_open(&p.d.conn, at_ms(0), &MU_SPAN_LIT("/echo"), 1, &id), 0);
    assert_int_equal(mu_peer_conn_write(&p.d.conn, id, MU_SPAN_LIT("last words"), &taken), 0);
    assert_int_equal(taken, 10);
    mu_buf_trim(&p.d.conn.noise.out, 0);
    failheap_arm(0);
    mu_peer_conn_close(&p.d.conn);
    while (mu_peer_conn_next_event(&p.d.conn, &e)) {
    }
    assert_int_equal(mu_peer_conn_output(&p.d.conn).len, 0);
    assert_false(mu_peer_conn_done(&p.d.conn));
    assert_int_equal(mu_peer_conn_deadline(&p.d.conn).ns, at_ms(10).ns);
    failheap_disarm();
    mu_peer_conn_tick(&p.d.conn, at_ms(10));
    assert_false(mu_peer_conn_done(&p.d.conn));
    (void)peer_carry(&p.d, &p.l, at_ms(10));
    assert_true(mu_peer_conn_done(&p.d.conn));
    assert_int_equal(mu_peer_conn_deadline(&p.d.conn).ns, MU_MONO_NEVER.ns);
    assert_true(mu_peer_conn_next_event(&p.l.conn, &e));
    assert_int_equal(e.type, MU_PEER_EV_STREAM_OPENED);
    assert_int_equal(mu_peer_conn_accept(&p.l.conn, id), 0);
    assert_true(mu_peer_conn_next_event(&p.l.conn, &e));
    assert_int_equal(e.type, MU_PEER_EV_DATA);
    assert_int_equal(e.data.len, 10);
    peer_pair_fini(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peer_conn_refuses_to_be_downgraded),
        cmocka_unit_test(test_peer_conn_hostile_bytes_in_the_clear),
        cmocka_unit_test(test_peer_conn_refuses_another_peer_than_was_meant),
        cmocka_unit_test(test_peer_conn_refuses_a_handshake_of_another_day),
        cmocka_unit_test(test_peer_conn_notices_what_is_changed_or_repeated),
        cmocka_unit_test(test_peer_conn_violations_of_the_muxer_end_the_connection),
        cmocka_unit_test(test_peer_conn_violations_of_a_name_end_the_stream),
        cmocka_unit_test(test_peer_conn_a_false_answer_ends_our_stream),
        cmocka_unit_test(test_peer_conn_hostile_bytes_for_the_muxer),
        cmocka_unit_test(test_peer_conn_a_flood_is_held_within_limits),
        cmocka_unit_test(test_peer_conn_survives_a_failing_heap),
        cmocka_unit_test(test_peer_conn_an_end_is_not_forgotten_for_want_of_memory),
        cmocka_unit_test(test_peer_conn_a_reset_is_not_forgotten_for_want_of_memory),
        cmocka_unit_test(test_peer_conn_last_words_wait_for_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

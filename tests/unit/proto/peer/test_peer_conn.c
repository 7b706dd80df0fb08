/*
 * A connection to a peer, one end at a time: the published transcript as dialler and as listener,
 * streams and their names, how it ends, and whoever tarries.
 */
#include "unit.h"

#include <muster/error.h>

#include "hex.h"
#include "peer_side.h"
#include "proto/peer/conn_internal.h"
#include "proto/peer/yamux_internal.h"

#define HEADER "132f6d756c746973747265616d2f312e302e300a"
#define NOISE  "072f6e6f6973650a"
static const char message_a[] =
    "0020 f5b2d6e60f9477e310c2982daaa6c9136c108a1777c5947e448fa37d68174557";
static const char message_b[] =
    "00d850a61409b1ddd0325e9b16b700e719e9772c07000b1bd7786e907c653d20495d"
    "5093d7e10b3d84e13f4ec37ccd38eabe6faacc0b31ad3eb332522772dfdd2d8c5f0bd71fb7de0a79b7a56e5a"
    "61a952e8b2e23d63bf3b15d83b3b25d61cbc828beb1add4e871dc3ea5f03dae06d8267358ee43e331b29e514"
    "3d63c7ee42f84d4934dde875879a7e5ab7f833c69c84857096b1cfd6625705f7cdb443bb5a80aa1a348f8343"
    "2e852f973892c5a851620c60b76fa10f5c5be8133c09c765f4e1b0c51bd38639fbe6632f41956fb3c6b8ac06"
    "6b68d6c1097d1dc6";
static const char message_c[] =
    "00b8b597d54e241ad08a1d50340a58651aa24ace9a624c637ea0b8953cd6f4830dd438c02cbaff7eb0665e47"
    "815fbb05e48df4244debc9be294712072eaa6e7b79ba30855b82f6823ab48a421ce1bdd092c0851154c662f4"
    "2dced6bfe090cc3dbcbf21c7d2f7fad576e455e32f0208b69877b1892e6cc93df3ad3f59556eaaace20dbc85"
    "030355aea102ff6a9318ae9235e1f220f945a6255074a31acc69e0283182cffc6c111db862758cfd12770861"
    "7528acad5ad6276e8733";
static const char ping_sealed[] = "001c 26d56dd5d361dec197aaff1ddf5cb48c0c6e8be2b394dd5af49644cc";
static const char open_sealed[] = "001c cbdb9edf900685e0f975138d2d62043e04c58c8ae745486792b0eee0";
static const char pong_sealed[] = "001c 0c219baef7930748d835fa3d521c21f2fbf7dbe2ff3f3b5e4974dd4e";

static mu_mono_t at_ms(uint64_t ms)
{
    return mu_mono_add_ms((mu_mono_t){MU_NS_PER_S}, ms);
}

static void start(struct peer_side *s, enum mu_peer_role role)
{
    assert_int_equal(peer_side_init(s, peer_side_config(role), at_ms(0)), 0);
}

static void expect_output(struct peer_side *s, const char *hex)
{
    uint8_t bytes[1024];
    size_t len = hex_decode(bytes, sizeof(bytes), hex);

    for (size_t at = 0; at < len;) {
        struct mu_span out = mu_peer_conn_output(&s->conn);

        assert_in_range(out.len, 1, len - at);
        assert_memory_equal(out.data, bytes + at, out.len);
        mu_peer_conn_sent(&s->conn, out.len);
        at += out.len;
    }
    assert_int_equal(mu_peer_conn_output(&s->conn).len, 0);
}

static struct mu_peer_event expect_event(struct peer_side *s, enum mu_peer_event_type type,
                                         uint32_t id)
{
    struct mu_peer_event e = {0};

    assert_true(mu_peer_conn_next_event(&s->conn, &e));
    assert_int_equal(e.type, type);
    assert_int_equal(e.id, id);
    return e;
}

static void expect_no_event(struct peer_side *s)
{
    struct mu_peer_event e;

    assert_false(mu_peer_conn_next_event(&s->conn, &e));
}

/* All of it must be taken, without an event on the way but what the last byte brings. */
static void feed(struct peer_side *s, const char *hex, size_t step)
{
    static uint8_t bytes[1024];
    size_t len = hex_decode(bytes, sizeof(bytes), hex);

    for (size_t at = 0; at < len;) {
        size_t piece = len - at < step ? len - at : step;
        size_t used;

        assert_int_equal(mu_peer_conn_recv(&s->conn, at_ms(0), mu_span(bytes + at, piece), &used),
                         0);
        assert_int_equal(used, piece);
        at += piece;
        if (at < len) {
            expect_no_event(s);
        }
    }
}

static void expect_failed(struct peer_side *s, int err, const char *text)
{
    struct mu_peer_event e = expect_event(s, MU_PEER_EV_FAILED, 0);
    size_t used = 1;

    assert_int_equal(e.err, err);
    if (strstr(mu_peer_conn_errmsg(&s->conn), text) == NULL) {
        fail_msg("'%s' does not say '%s'", mu_peer_conn_errmsg(&s->conn), text);
    }
    expect_no_event(s);
    assert_int_equal(mu_peer_conn_recv(&s->conn, at_ms(0), MU_SPAN_LIT("x"), &used), err);
    assert_int_equal(used, 0);
    assert_int_equal(mu_peer_conn_deadline(&s->conn).ns, MU_MONO_NEVER.ns);
    assert_int_equal(mu_peer_conn_open(&s->conn, at_ms(0), &MU_SPAN_LIT("/x"), 1, &(uint32_t){0}),
                     MUSTER_ECLOSED);
    assert_int_equal(s->conn.opened, s->conn.closed);
}

/* --- the transcript --------------------------------------------------------------------------- */

/* Two peers that have shaken hands: made for each test. */
static struct peer_pair pair;

static int set_up(void **unused)
{
    (void)unused;
    peer_pair_start(&pair, false, at_ms(0));
    return 0;
}

static int tear_down(void **unused)
{
    (void)unused;
    peer_pair_fini(&pair);
    return 0;
}

static void test_peer_conn_dialler_speaks_the_transcript(void **unused)
{
    (void)unused;
    for (size_t step = 1; step < 300; step += 13) {
        struct peer_side s;
        char text[MU_PEER_ID_TEXT_MAX];
        uint32_t id;

        start(&s, MU_PEER_DIALLER);
        expect_output(&s, HEADER NOISE);
        feed(&s, HEADER NOISE, step);
        expect_no_event(&s);
        expect_output(&s, message_a);
        assert_int_equal(mu_peer_conn_peer(&s.conn)->len, 0);
        feed(&s, message_b, step);
        (void)expect_event(&s, MU_PEER_EV_SECURED, 0);
        assert_string_equal(mu_peer_id_format(mu_peer_conn_peer(&s.conn), text), PEER_LISTENER_ID);
        expect_output(&s, message_c);
        assert_int_equal(mu_peer_conn_deadline(&s.conn).ns, at_ms(0).ns);
        mu_peer_conn_tick(&s.conn, at_ms(0));
        expect_output(&s, ping_sealed);
        /* The transcript opens a stream before it says what for. */
        assert_int_equal(mu_yamux_open(&s.conn.yamux, at_ms(0), &id), 0);
        assert_int_equal(id, 1);
        expect_output(&s, open_sealed);
        feed(&s, pong_sealed, step);
        expect_no_event(&s);
        assert_true(s.conn.yamux.rtt_ns != 0);
        peer_side_fini(&s);
    }
}

static void test_peer_conn_listener_speaks_the_transcript(void **unused)
{
    (void)unused;
    for (size_t step = 1; step < 300; step += 13) {
        struct peer_side s;
        char text[MU_PEER_ID_TEXT_MAX];

        start(&s, MU_PEER_LISTENER);
        expect_output(&s, "");
        feed(&s, HEADER NOISE, step);
        expect_no_event(&s);
        expect_output(&s, HEADER NOISE);
        feed(&s, message_a, step);
        expect_no_event(&s);
        expect_output(&s, message_b);
        feed(&s, message_c, step);
        (void)expect_event(&s, MU_PEER_EV_SECURED, 0);
        assert_string_equal(mu_peer_id_format(mu_peer_conn_peer(&s.conn), text), PEER_DIALLER_ID);
        feed(&s, ping_sealed, step);
        expect_no_event(&s);
        expect_output(&s, pong_sealed);
        feed(&s, open_sealed, step);
        expect_no_event(&s);
        assert_int_equal(mu_peer_conn_count(&s.conn), 1);
        peer_side_fini(&s);
    }
}

/* --- two of them ------------------------------------------------------------------------------ */

static uint32_t open_one(struct peer_side *s, const char *name)
{
    struct mu_span span = mu_span_str(name);
    uint32_t id;

    assert_int_equal(mu_peer_conn_open(&s->conn, at_ms(0), &span, 1, &id), 0);
    return id;
}

static void expect_write(struct peer_side *s, uint32_t id, const char *text, size_t want)
{
    size_t taken;

    assert_int_equal(mu_peer_conn_write(&s->conn, id, mu_span_str(text), &taken), 0);
    assert_int_equal(taken, want);
}

static void test_peer_conn_agrees_on_the_muxer_behind_the_handshake_too(void **unused)
{
    struct peer_pair p;

    (void)unused;
    peer_pair_start(&p, true, at_ms(0));
    assert_false(p.d.conn.noise.muxer_agreed);
    assert_false(p.l.conn.noise.muxer_agreed);
    assert_int_equal(p.d.conn.muxer.state, MU_MSS_AGREED);
    peer_pair_fini(&p);
}

/* What is written at once comes right behind the name, and behind the consent. */
static void test_peer_conn_payload_rides_with_the_proposal(void **unused)
{
    struct mu_peer_event e;
    uint32_t id;

    (void)unused;
    id = open_one(&pair.d, "/echo");
    expect_write(&pair.d, id, "hello", 5);
    assert_int_equal(mu_peer_conn_end(&pair.d.conn, id), 0);
    assert_int_equal(mu_peer_conn_end(&pair.d.conn, id), 0);
    assert_int_equal(mu_peer_conn_write(&pair.d.conn, id, MU_SPAN_LIT("x"), &(size_t){0}),
                     MUSTER_EINVAL);
    assert_true(peer_carry(&pair.d, &pair.l, at_ms(0)));
    e = expect_event(&pair.l, MU_PEER_EV_STREAM_OPENED, id);
    assert_span_text(e.name, "/echo");
    assert_int_equal(mu_peer_conn_write(&pair.l.conn, id, MU_SPAN_LIT("x"), &(size_t){0}),
                     MUSTER_ENOENT);
    assert_int_equal(mu_peer_conn_accept(&pair.l.conn, id), 0);
    assert_int_equal(mu_peer_conn_accept(&pair.l.conn, id), MUSTER_ENOENT);
    assert_span_text(e.name, "/echo");
    e = expect_event(&pair.l, MU_PEER_EV_DATA, id);
    assert_span_text(e.data, "hello");
    expect_write(&pair.l, id, "HELLO", 5);
    mu_peer_conn_consumed(&pair.l.conn, at_ms(0), id, 5);
    (void)expect_event(&pair.l, MU_PEER_EV_EOF, id);
    assert_int_equal(mu_peer_conn_count(&pair.l.conn), 1);
    assert_int_equal(mu_peer_conn_end(&pair.l.conn, id), 0);
    assert_int_equal(mu_peer_conn_count(&pair.l.conn), 0);

    assert_true(peer_carry(&pair.l, &pair.d, at_ms(0)));
    e = expect_event(&pair.d, MU_PEER_EV_STREAM_READY, id);
    assert_int_equal(e.err, 0);
    assert_span_text(e.name, "/echo");
    assert_span_text(expect_event(&pair.d, MU_PEER_EV_DATA, id).data, "HELLO");
    (void)expect_event(&pair.d, MU_PEER_EV_EOF, id);
    expect_no_event(&pair.d);
    assert_int_equal(mu_peer_conn_count(&pair.d.conn), 0);
}

/* What the name took is given back: memory here, and the window to the peer. */
static void test_peer_conn_nothing_of_a_negotiation_is_kept(void **unused)
{
    uint32_t id;

    (void)unused;
    id = open_one(&pair.d, "/echo");
    (void)peer_carry(&pair.d, &pair.l, at_ms(0));
    (void)expect_event(&pair.l, MU_PEER_EV_STREAM_OPENED, id);
    assert_int_equal(mu_peer_conn_accept(&pair.l.conn, id), 0);
    expect_no_event(&pair.l);
    (void)peer_carry(&pair.l, &pair.d, at_ms(0));
    (void)expect_event(&pair.d, MU_PEER_EV_STREAM_READY, id);
    expect_no_event(&pair.d);
    assert_null(mu_peer_find(&pair.l.conn, id)->mss);
    assert_null(mu_peer_find(&pair.d.conn, id)->mss);
    assert_int_equal(mu_yamux_find(&pair.l.conn.yamux, id)->unconsumed, 0);
    assert_int_equal(mu_yamux_find(&pair.d.conn.yamux, id)->unconsumed, 0);
}

/* Data that is lent stays where it is until all events are told. */
static void test_peer_conn_takes_nothing_while_events_wait(void **unused)
{
    struct mu_peer_event e;
    struct mu_span out;
    uint32_t id;
    size_t used = 1;

    (void)unused;
    id = open_one(&pair.d, "/echo");
    expect_write(&pair.d, id, "hello", 5);
    (void)peer_carry(&pair.d, &pair.l, at_ms(0));
    (void)expect_event(&pair.l, MU_PEER_EV_STREAM_OPENED, id);
    assert_int_equal(mu_peer_conn_accept(&pair.l.conn, id), 0);
    expect_write(&pair.d, id, "more", 4);
    out = mu_peer_conn_output(&pair.d.conn);
    assert_int_equal(mu_peer_conn_recv(&pair.l.conn, at_ms(0), out, &used), 0);
    assert_int_equal(used, 0);
    e = expect_event(&pair.l, MU_PEER_EV_DATA, id);
    assert_span_text(e.data, "hello");
    expect_no_event(&pair.l);
    assert_span_text(e.data, "hello");
    (void)peer_carry(&pair.d, &pair.l, at_ms(0));
    assert_span_text(expect_event(&pair.l, MU_PEER_EV_DATA, id).data, "more");
}

static void test_peer_conn_tries_names_in_order(void **unused)
{
    const struct mu_span names[] = {MU_SPAN_LIT("/c"), MU_SPAN_LIT("/b"), MU_SPAN_LIT("/a")};
    struct mu_peer_event e;
    uint32_t id;

    (void)unused;
    assert_int_equal(mu_peer_conn_open(&pair.l.conn, at_ms(0), names, 3, &id), 0);
    assert_int_equal(id, 2);
    /* There is more than one name: nothing can be sent along. */
    expect_write(&pair.l, id, "hello", 0);
    (void)peer_carry(&pair.l, &pair.d, at_ms(0));
    assert_span_text(expect_event(&pair.d, MU_PEER_EV_STREAM_OPENED, id).name, "/c");
    expect_no_event(&pair.d); /* not answered: refused */
    (void)peer_carry(&pair.d, &pair.l, at_ms(0));
    expect_no_event(&pair.l);
    (void)peer_carry(&pair.l, &pair.d, at_ms(0));
    assert_span_text(expect_event(&pair.d, MU_PEER_EV_STREAM_OPENED, id).name, "/b");
    assert_int_equal(mu_peer_conn_accept(&pair.d.conn, id), 0);
    expect_no_event(&pair.d);
    (void)peer_carry(&pair.d, &pair.l, at_ms(0));
    e = expect_event(&pair.l, MU_PEER_EV_STREAM_READY, id);
    assert_span_text(e.name, "/b");
    (void)expect_event(&pair.l, MU_PEER_EV_WRITABLE, id);
    expect_write(&pair.l, id, "hello", 5);
    expect_no_event(&pair.l);
    (void)peer_carry(&pair.l, &pair.d, at_ms(0));
    assert_span_text(expect_event(&pair.d, MU_PEER_EV_DATA, id).data, "hello");
}

static void test_peer_conn_a_name_that_nobody_knows_is_refused(void **unused)
{
    uint32_t id;

    (void)unused;
    id = open_one(&pair.d, "/unknown");
    expect_write(&pair.d, id, "hello", 5);
    (void)peer_carry(&pair.d, &pair.l, at_ms(0));
    (void)expect_event(&pair.l, MU_PEER_EV_STREAM_OPENED, id);
    assert_int_equal(mu_peer_conn_refuse(&pair.l.conn, id), 0);
    /* "hello" is no proposal, but a violation of the negotiation: the stream is gone. */
    expect_no_event(&pair.l);
    (void)peer_carry(&pair.l, &pair.d, at_ms(0));
    assert_int_equal(expect_event(&pair.d, MU_PEER_EV_STREAM_READY, id).err, MUSTER_EREFUSED);
    expect_no_event(&pair.d);
    assert_int_equal(mu_peer_conn_count(&pair.d.conn), 0);
    (void)peer_carry(&pair.d, &pair.l, at_ms(0));
    expect_no_event(&pair.l);
    assert_int_equal(mu_peer_conn_count(&pair.l.conn), 0);
    /* The connection has not suffered. */
    id = open_one(&pair.d, "/known");
    (void)peer_carry(&pair.d, &pair.l, at_ms(0));
    (void)expect_event(&pair.l, MU_PEER_EV_STREAM_OPENED, id);
}

static void test_peer_conn_streams_opened_early_wait_for_the_handshake(void **unused)
{
    struct peer_pair p;
    struct mu_peer_event e;
    uint32_t id;
    int opened = 0;

    (void)unused;
    start(&p.d, MU_PEER_DIALLER);
    start(&p.l, MU_PEER_LISTENER);
    id = open_one(&p.d, "/echo");
    expect_write(&p.d, id, "too early", 0);
    assert_int_equal(open_one(&p.l, "/echo"), 2);
    for (int i = 0; i < 10; i++) {
        /* Nothing of it is on the wire before both have proved themselves. */
        assert_true(p.d.conn.stage == MU_PEER_OPEN || p.d.conn.yamux.out.len == 0);
        (void)peer_carry(&p.d, &p.l, at_ms(0));
        while (mu_peer_conn_next_event(&p.l.conn, &e)) {
            if (e.type == MU_PEER_EV_STREAM_OPENED) {
                opened++;
                assert_int_equal(mu_peer_conn_accept(&p.l.conn, e.id), 0);
            }
        }
        (void)peer_carry(&p.l, &p.d, at_ms(0));
        while (mu_peer_conn_next_event(&p.d.conn, &e)) {
            if (e.type == MU_PEER_EV_WRITABLE) {
                expect_write(&p.d, e.id, "in time", 7);
            }
        }
    }
    assert_int_equal(opened, 1);
    peer_pair_fini(&p);
}

static void test_peer_conn_more_streams_than_the_peer_has_accepted_wait(void **unused)
{
    static struct peer_pair p;
    struct mu_peer_event e;
    uint32_t ready = 0;

    (void)unused;
    peer_pair_start(&p, false, at_ms(0));
    for (uint32_t i = 0; i < 500; i++) {
        assert_int_equal(open_one(&p.d, "/echo"), 2 * i + 1);
    }
    assert_int_equal(mu_yamux_count(&p.d.conn.yamux), 256);
    for (int i = 0; i < 10; i++) {
        (void)peer_carry(&p.d, &p.l, at_ms(0));
        while (mu_peer_conn_next_event(&p.l.conn, &e)) {
            assert_int_equal(e.type, MU_PEER_EV_STREAM_OPENED);
            assert_int_equal(mu_peer_conn_accept(&p.l.conn, e.id), 0);
        }
        (void)peer_carry(&p.l, &p.d, at_ms(0));
        while (mu_peer_conn_next_event(&p.d.conn, &e)) {
            assert_int_equal(e.type, MU_PEER_EV_STREAM_READY);
            assert_int_equal(e.err, 0);
            ready++;
        }
    }
    assert_int_equal(ready, 500);
    assert_int_equal(mu_peer_conn_count(&p.l.conn), 500);
    /* Names are agreed on and what that took is given back. */
    assert_true(mu_list_empty(&p.d.conn.negotiating) && mu_list_empty(&p.l.conn.negotiating));
    peer_pair_fini(&p);
}

static void test_peer_conn_opens_no_more_than_its_limit(void **unused)
{
    struct peer_side s;
    struct mu_peer_conn_config config = peer_side_config(MU_PEER_DIALLER);
    const struct mu_span bad = MU_SPAN_LIT("/two\nlines");
    uint32_t id;

    (void)unused;
    config.streams_max = 2;
    assert_int_equal(peer_side_init(&s, config, at_ms(0)), 0);
    assert_int_equal(mu_peer_conn_open(&s.conn, at_ms(0), NULL, 0, &id), MUSTER_EINVAL);
    assert_int_equal(mu_peer_conn_open(&s.conn, at_ms(0), &bad, 1, &id), MUSTER_EINVAL);
    id = open_one(&s, "/a");
    (void)open_one(&s, "/a");
    assert_int_equal(mu_peer_conn_open(&s.conn, at_ms(0), &MU_SPAN_LIT("/a"), 1, &(uint32_t){0}),
                     MUSTER_ELIMIT);
    mu_peer_conn_reset(&s.conn, id);
    mu_peer_conn_reset(&s.conn, id);
    (void)open_one(&s, "/a");
    peer_side_fini(&s);
}

/* --- how it ends ------------------------------------------------------------------------------ */

static void test_peer_conn_closes_with_a_word_of_farewell(void **unused)
{
    uint32_t id;

    (void)unused;
    id = open_one(&pair.d, "/echo");
    expect_write(&pair.d, id, "last words", 10);
    mu_peer_conn_close(&pair.d.conn);
    mu_peer_conn_close(&pair.d.conn);
    assert_int_equal(expect_event(&pair.d, MU_PEER_EV_STREAM_READY, id).err, MUSTER_ECLOSED);
    (void)expect_event(&pair.d, MU_PEER_EV_CLOSED, 0);
    expect_no_event(&pair.d);
    assert_false(mu_peer_conn_done(&pair.d.conn));
    (void)peer_carry(&pair.d, &pair.l, at_ms(0));
    assert_true(mu_peer_conn_done(&pair.d.conn));
    (void)expect_event(&pair.l, MU_PEER_EV_STREAM_OPENED, id);
    assert_int_equal(mu_peer_conn_accept(&pair.l.conn, id), 0);
    assert_span_text(expect_event(&pair.l, MU_PEER_EV_DATA, id).data, "last words");
    (void)expect_event(&pair.l, MU_PEER_EV_GO_AWAY, 0);
    assert_int_equal(mu_peer_conn_open(&pair.l.conn, at_ms(0), &MU_SPAN_LIT("/x"), 1, &id),
                     MUSTER_ECLOSED);
    mu_peer_conn_eof(&pair.l.conn, at_ms(0));
    (void)expect_event(&pair.l, MU_PEER_EV_RESET, id);
    (void)expect_event(&pair.l, MU_PEER_EV_CLOSED, 0);
    expect_no_event(&pair.l);
    assert_true(mu_peer_conn_done(&pair.l.conn));
}

/* A stream of which nothing was told has no end to be told either. */
static void test_peer_conn_close_is_silent_about_what_nobody_knows(void **unused)
{
    uint32_t id;

    (void)unused;
    assert_int_equal(mu_yamux_open(&pair.d.conn.yamux, at_ms(0), &id), 0);
    (void)peer_carry(&pair.d, &pair.l, at_ms(0));
    expect_no_event(&pair.l);
    assert_int_equal(mu_peer_conn_count(&pair.l.conn), 1);
    mu_peer_conn_close(&pair.l.conn);
    (void)expect_event(&pair.l, MU_PEER_EV_CLOSED, 0);
    assert_int_equal(mu_peer_conn_count(&pair.l.conn), 0);
}

/* Streams that wait to be opened hear of it as well. */
static void test_peer_conn_queued_streams_learn_that_the_peer_takes_no_more(void **unused)
{
    uint32_t id;

    (void)unused;
    pair.d.conn.yamux.config.unacked_max = 0;
    id = open_one(&pair.d, "/echo");
    assert_int_equal(mu_yamux_go_away(&pair.l.conn.yamux, MU_YAMUX_NORMAL), 0);
    (void)peer_carry(&pair.l, &pair.d, at_ms(0));
    (void)expect_event(&pair.d, MU_PEER_EV_GO_AWAY, 0);
    assert_int_equal(expect_event(&pair.d, MU_PEER_EV_STREAM_READY, id).err, MUSTER_ECLOSED);
    expect_no_event(&pair.d);
}

static void test_peer_conn_what_came_before_the_end_is_told_first(void **unused)
{
    uint32_t id;

    (void)unused;
    id = open_one(&pair.d, "/echo");
    expect_write(&pair.d, id, "hello", 5);
    (void)peer_carry(&pair.d, &pair.l, at_ms(0));
    mu_peer_conn_eof(&pair.l.conn, at_ms(0));
    (void)expect_event(&pair.l, MU_PEER_EV_STREAM_OPENED, id);
    assert_int_equal(mu_peer_conn_accept(&pair.l.conn, id), 0);
    (void)expect_event(&pair.l, MU_PEER_EV_DATA, id);
    assert_int_equal(expect_event(&pair.l, MU_PEER_EV_RESET, id).err, MUSTER_ECONN);
    expect_failed(&pair.l, MUSTER_ECONN, "hung up");
    /* Without streams nobody is the worse for it. */
    mu_peer_conn_reset(&pair.d.conn, id);
    mu_peer_conn_eof(&pair.d.conn, at_ms(0));
    (void)expect_event(&pair.d, MU_PEER_EV_CLOSED, 0);
}

static void test_peer_conn_reset_is_told_to_the_other(void **unused)
{
    struct mu_peer_event e;
    uint32_t id;

    (void)unused;
    id = open_one(&pair.d, "/echo");
    (void)peer_carry(&pair.d, &pair.l, at_ms(0));
    (void)expect_event(&pair.l, MU_PEER_EV_STREAM_OPENED, id);
    assert_int_equal(mu_peer_conn_accept(&pair.l.conn, id), 0);
    expect_no_event(&pair.l);
    mu_peer_conn_reset(&pair.d.conn, id);
    (void)peer_carry(&pair.d, &pair.l, at_ms(0));
    e = expect_event(&pair.l, MU_PEER_EV_RESET, id);
    assert_int_equal(e.err, MUSTER_ECLOSED);
    (void)peer_carry(&pair.l, &pair.d, at_ms(0));
    expect_no_event(&pair.d);
    assert_int_equal(mu_peer_conn_count(&pair.d.conn) + mu_peer_conn_count(&pair.l.conn), 0);
    assert_int_equal(mu_peer_conn_end(&pair.l.conn, id), MUSTER_ENOENT);
    mu_peer_conn_consumed(&pair.l.conn, at_ms(0), id, 5);
}

/* --- time ------------------------------------------------------------------------------------- */

static void test_peer_conn_a_handshake_has_its_time(void **unused)
{
    static const char *const so_far[] = {"", HEADER, HEADER NOISE};

    (void)unused;
    for (size_t i = 0; i < 3; i++) {
        struct peer_side s;

        start(&s, MU_PEER_LISTENER);
        feed(&s, so_far[i], 1000);
        assert_int_equal(mu_peer_conn_deadline(&s.conn).ns, at_ms(15000).ns);
        mu_peer_conn_tick(&s.conn, at_ms(14999));
        expect_no_event(&s);
        mu_peer_conn_tick(&s.conn, at_ms(15000));
        expect_failed(&s, MUSTER_ETIMEDOUT, "too long");
        peer_side_fini(&s);
    }
}

static void test_peer_conn_a_name_has_its_time(void **unused)
{
    uint32_t id;

    (void)unused;
    pair.d.conn.yamux.ping_at = MU_MONO_NEVER;
    pair.l.conn.yamux.ping_at = MU_MONO_NEVER;
    /* The listener has the stream, and never hears of the name. */
    assert_int_equal(mu_yamux_open(&pair.d.conn.yamux, at_ms(0), &id), 0);
    (void)peer_carry(&pair.d, &pair.l, at_ms(0));
    expect_no_event(&pair.l);
    id = open_one(&pair.d, "/echo");
    assert_int_equal(mu_peer_conn_count(&pair.l.conn), 1);
    assert_int_equal(mu_peer_conn_deadline(&pair.d.conn).ns, at_ms(15000).ns);
    assert_int_equal(mu_peer_conn_deadline(&pair.l.conn).ns, at_ms(15000).ns);
    mu_peer_conn_tick(&pair.d.conn, at_ms(14999));
    mu_peer_conn_tick(&pair.l.conn, at_ms(14999));
    expect_no_event(&pair.d);
    assert_int_equal(mu_peer_conn_count(&pair.l.conn), 1);
    mu_peer_conn_tick(&pair.d.conn, at_ms(15000));
    mu_peer_conn_tick(&pair.l.conn, at_ms(15000));
    assert_int_equal(expect_event(&pair.d, MU_PEER_EV_STREAM_READY, id).err, MUSTER_ETIMEDOUT);
    expect_no_event(&pair.l);
    assert_int_equal(mu_peer_conn_count(&pair.d.conn) + mu_peer_conn_count(&pair.l.conn), 0);
    assert_int_equal(pair.d.conn.stage, MU_PEER_OPEN);
}

static void test_peer_conn_a_peer_that_does_not_answer_is_given_up(void **unused)
{
    (void)unused;
    mu_peer_conn_tick(&pair.d.conn, at_ms(0));
    assert_int_equal(mu_peer_conn_deadline(&pair.d.conn).ns, at_ms(10000).ns);
    mu_peer_conn_tick(&pair.d.conn, at_ms(10000));
    expect_failed(&pair.d, MUSTER_ETIMEDOUT, "does not answer");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peer_conn_dialler_speaks_the_transcript),
        cmocka_unit_test(test_peer_conn_listener_speaks_the_transcript),
        cmocka_unit_test(test_peer_conn_agrees_on_the_muxer_behind_the_handshake_too),
        cmocka_unit_test_setup_teardown(test_peer_conn_payload_rides_with_the_proposal, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_peer_conn_nothing_of_a_negotiation_is_kept, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_peer_conn_takes_nothing_while_events_wait, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_peer_conn_tries_names_in_order, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_peer_conn_a_name_that_nobody_knows_is_refused, set_up,
                                        tear_down),
        cmocka_unit_test(test_peer_conn_streams_opened_early_wait_for_the_handshake),
        cmocka_unit_test(test_peer_conn_more_streams_than_the_peer_has_accepted_wait),
        cmocka_unit_test(test_peer_conn_opens_no_more_than_its_limit),
        cmocka_unit_test_setup_teardown(test_peer_conn_closes_with_a_word_of_farewell, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_peer_conn_close_is_silent_about_what_nobody_knows,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            test_peer_conn_queued_streams_learn_that_the_peer_takes_no_more, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_peer_conn_what_came_before_the_end_is_told_first,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_peer_conn_reset_is_told_to_the_other, set_up,
                                        tear_down),
        cmocka_unit_test(test_peer_conn_a_handshake_has_its_time),
        cmocka_unit_test_setup_teardown(test_peer_conn_a_name_has_its_time, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_peer_conn_a_peer_that_does_not_answer_is_given_up,
                                        set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

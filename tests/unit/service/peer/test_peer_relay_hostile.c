/* Peers that ask of a relay what they may not, and relays that lead nowhere: each is answered with
 * the status of the specification, and nothing is kept of it. */
#include "relay_rig.h"

static struct relay_rig r;

#define NODE(i) (&r.base.node[i])
#define ID(i)   (&r.base.node[i].identity.id)

/* --- a stream that says what it is told ------------------------------------------------------- */

struct raw {
    struct mu_host_stream stream;
    struct mu_peer_host *host;
    struct mu_peer_id to;
    struct mu_span name;
    enum mu_relay_side side;
    uint8_t out[6000];
    size_t out_len;
    size_t sent;
    struct mu_relay_in in;
    struct mu_relay_msg msg; /* what was answered */
    bool answered;
    bool on;
    int ended;
    int status;
};

static void raw_more(struct mu_host_stream *s)
{
    struct raw *raw = MU_CONTAINER_OF(s, struct raw, stream);

    raw->sent += mu_host_stream_write(s, mu_span(raw->out + raw->sent, raw->out_len - raw->sent));
}

static void raw_ready(struct mu_host_stream *s, struct mu_span name)
{
    (void)name;
    raw_more(s);
}

static void raw_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct raw *raw = MU_CONTAINER_OF(s, struct raw, stream);
    struct mu_span msg;
    size_t used;

    if (!raw->answered && mu_relay_in_recv(&raw->in, bytes, &used, &msg) == 1) {
        assert_int_equal(mu_relay_msg_decode(raw->side, msg, &raw->msg), 0);
        raw->answered = true;
    }
    mu_host_stream_consumed(s, bytes.len);
}

static void raw_eof(struct mu_host_stream *s)
{
    mu_host_stream_end(s);
}

static void raw_ended(struct mu_host_stream *s, int status, const char *text)
{
    struct raw *raw = MU_CONTAINER_OF(s, struct raw, stream);

    (void)text;
    raw->ended++;
    raw->status = status;
    raw->on = false;
    mu_relay_in_fini(&raw->in);
}

static const struct mu_host_stream_events raw_events = {
    .ready = raw_ready,
    .data = raw_data,
    .eof = raw_eof,
    .writable = raw_more,
    .ended = raw_ended,
};

static void raw_open_inside(void *arg)
{
    struct raw *raw = arg;

    mu_relay_in_init(&raw->in);
    mu_host_stream_open(raw->host, &raw->stream, &raw->to, &raw->name, 1);
}

static void raw_drop_inside(void *arg)
{
    struct raw *raw = arg;

    mu_host_stream_reset(&raw->stream);
    mu_relay_in_fini(&raw->in);
    raw->on = false;
}

/* Node `from` opens a stream to node `to` and says these bytes. */
static void raw_open(struct raw *raw, size_t from, size_t to, enum mu_relay_side side,
                     struct mu_span bytes)
{
    memset(raw, 0, sizeof(*raw));
    raw->stream.on = &raw_events;
    raw->host = NODE(from)->host;
    raw->to = *ID(to);
    raw->name = mu_span_str(side == MU_RELAY_HOP ? MU_RELAY_HOP_NAME : MU_RELAY_STOP_NAME);
    raw->side = side;
    raw->on = true;
    memcpy(raw->out, bytes.data, bytes.len);
    raw->out_len = bytes.len;
    mu_sim_call(NODE(from)->proc, raw_open_inside, raw);
}

static void raw_drop(struct raw *raw, size_t from)
{
    if (raw->on) {
        mu_sim_call(NODE(from)->proc, raw_drop_inside, raw);
    }
}

/* A message in bytes; lent until the next. */
static struct mu_span words(enum mu_relay_side side, enum mu_relay_type type,
                            const struct mu_peer_id *peer)
{
    static uint8_t bytes[256];
    const struct mu_relay_out say = {
        .type = type, .peer = peer, .status = type == MU_RELAY_STATUS ? MU_RELAY_OK : 0};
    struct mu_buf out;
    size_t len;

    mu_buf_init(&out, sizeof(bytes));
    assert_int_equal(mu_relay_msg_encode(side, &say, &out), 0);
    len = out.len;
    memcpy(bytes, mu_buf_span(&out).data, len);
    mu_buf_fini(&out);
    return mu_span(bytes, len);
}

/* Asks the relay, and says what it answers. */
static uint32_t ask(size_t from, size_t to, struct mu_span bytes)
{
    static struct raw raw;

    raw_open(&raw, from, to, MU_RELAY_HOP, bytes);
    rig_run(&r.base, 1000);
    raw_drop(&raw, from);
    rig_run(&r.base, 10);
    return raw.answered ? raw.msg.status : 0;
}

static void open_rig(size_t count)
{
    relay_rig_open(&r, count, NULL);
}

static void start(void)
{
    relay_rig_run_all(&r);
    for (size_t i = 1; i < r.base.count; i++) {
        rig_introduce(NODE(i), NODE(0));
    }
}

static void assert_nothing_left(void)
{
    assert_int_equal(relay_rig_stats(&r, 0).streams, 0);
    assert_int_equal(relay_rig_stats(&r, 0).circuits, 0);
}

/* --- reservations ----------------------------------------------------------------------------- */

static void test_relay_refuses_who_reserves_without_end(void **state)
{
    size_t refused = 0;
    size_t blocks = 0;

    (void)state;
    open_rig(2);
    start();
    for (int i = 0; i < 30; i++) {
        uint32_t status = ask(1, 0, words(MU_RELAY_HOP, MU_RELAY_RESERVE, NULL));

        assert_true(status == MU_RELAY_OK || status == MU_RELAY_RESERVATION_REFUSED);
        assert_int_equal(status == MU_RELAY_OK, i < 8);
        refused += status == MU_RELAY_RESERVATION_REFUSED ? 1 : 0;
        blocks = i == 0 ? mu_sim_proc_blocks(NODE(0)->proc) : blocks;
    }
    assert_int_equal(refused, 22);
    assert_int_equal(mu_sim_proc_blocks(NODE(0)->proc), blocks);
    assert_int_equal(relay_rig_stats(&r, 0).reservations, 1);
    assert_int_equal(relay_rig_stats(&r, 0).reserve_refused, 22);
    assert_nothing_left();
    relay_rig_close(&r);
}

static void test_relay_refuses_more_peers_than_it_has_places(void **state)
{
    (void)state;
    open_rig(6);
    r.config[0].hop_terms.reservations_max = 3;
    start();
    for (size_t i = 1; i < 6; i++) {
        assert_int_equal(ask(i, 0, words(MU_RELAY_HOP, MU_RELAY_RESERVE, NULL)),
                         i < 4 ? MU_RELAY_OK : MU_RELAY_RESERVATION_REFUSED);
    }
    assert_int_equal(relay_rig_stats(&r, 0).reservations, 3);
    /* One goes, and there is a place. */
    mu_sim_reset(NODE(0)->sim_host, NODE(1)->sim_host);
    rig_run(&r.base, 1000);
    assert_int_equal(relay_rig_stats(&r, 0).reservations, 2);
    assert_int_equal(ask(5, 0, words(MU_RELAY_HOP, MU_RELAY_RESERVE, NULL)), MU_RELAY_OK);
    relay_rig_close(&r);
}

static void test_relay_refuses_more_peers_of_one_address(void **state)
{
    struct rig_call call;

    (void)state;
    open_rig(3);
    r.config[0].hop_terms.reservations_ip_max = 0;
    start();
    assert_int_equal(ask(1, 0, words(MU_RELAY_HOP, MU_RELAY_RESERVE, NULL)),
                     MU_RELAY_RESERVATION_REFUSED);
    /* That does not hinder anything else. */
    rig_call(NODE(1), NODE(0), &call, 100);
    rig_run(&r.base, 1000);
    rig_assert_echoed(&call);
    assert_nothing_left();
    relay_rig_close(&r);
}

/* --- circuits --------------------------------------------------------------------------------- */

static void test_relay_leads_to_nobody_without_a_reservation(void **state)
{
    (void)state;
    open_rig(3);
    start();
    assert_int_equal(ask(1, 0, words(MU_RELAY_HOP, MU_RELAY_CONNECT, ID(2))),
                     MU_RELAY_NO_RESERVATION);
    assert_int_equal(ask(1, 0, words(MU_RELAY_HOP, MU_RELAY_CONNECT, ID(0))),
                     MU_RELAY_NO_RESERVATION);
    assert_int_equal(ask(1, 0, words(MU_RELAY_HOP, MU_RELAY_CONNECT, ID(1))),
                     MU_RELAY_PERMISSION_DENIED);
    assert_int_equal(relay_rig_stats(&r, 0).connect_refused, 3);
    assert_nothing_left();
    relay_rig_close(&r);
}

static void test_relay_refuses_a_flood_of_circuits(void **state)
{
    static struct raw raw[24];
    size_t led = 0;
    size_t refused = 0;
    size_t blocks;

    (void)state;
    open_rig(4);
    start();
    relay_rig_reserve(&r, 1, 0);
    rig_introduce(NODE(2), NODE(0));
    assert_int_equal(ask(2, 0, words(MU_RELAY_HOP, MU_RELAY_CONNECT, ID(3))),
                     MU_RELAY_NO_RESERVATION);
    blocks = mu_sim_proc_blocks(NODE(0)->proc);
    for (size_t i = 0; i < 24; i++) {
        raw_open(&raw[i], 2, 0, MU_RELAY_HOP, words(MU_RELAY_HOP, MU_RELAY_CONNECT, ID(1)));
    }
    rig_run(&r.base, 1000);
    for (size_t i = 0; i < 24; i++) {
        led += raw[i].answered && raw[i].msg.status == MU_RELAY_OK ? 1 : 0;
        refused += raw[i].answered && raw[i].msg.status == MU_RELAY_RESOURCE_LIMIT_EXCEEDED ? 1 : 0;
    }
    assert_int_equal(led, 16);
    assert_int_equal(refused, 8);
    assert_int_equal(relay_rig_stats(&r, 0).circuits, 16);
    /* And the peer behind it has as many connections on which nobody proves anything: they end. */
    assert_int_equal(rig_stats(NODE(1)).pending, 16);
    rig_run(&r.base, 30000);
    assert_int_equal(rig_stats(NODE(1)).pending, 0);
    rig_run(&r.base, 10000);
    for (size_t i = 0; i < 24; i++) {
        assert_int_equal(raw[i].ended, 1);
    }
    assert_nothing_left();
    assert_int_equal(mu_sim_proc_blocks(NODE(0)->proc), blocks);
    /* Others are served as before. */
    relay_rig_learn(&r, 3, 1, 0);
    {
        struct rig_call call;

        rig_call(NODE(3), NODE(1), &call, 1000);
        rig_run(&r.base, 3000);
        rig_assert_echoed(&call);
    }
    relay_rig_close(&r);
}

/* Meets ASKING_MAX of service/peer/relay_hop.c. */
static void test_relay_gives_up_on_who_says_nothing(void **state)
{
    static struct raw raw[40];
    size_t refused = 0;

    (void)state;
    open_rig(2);
    start();
    for (size_t i = 0; i < 40; i++) {
        raw_open(&raw[i], 1, 0, MU_RELAY_HOP, MU_SPAN_LIT("\x90")); /* And no more than that. */
    }
    rig_run(&r.base, 1000);
    for (size_t i = 0; i < 40; i++) {
        refused += raw[i].ended && raw[i].status == MUSTER_EREFUSED ? 1 : 0;
    }
    assert_int_equal(refused, 8);
    assert_int_equal(relay_rig_stats(&r, 0).streams, 32);
    rig_run(&r.base, 31000);
    for (size_t i = 0; i < 40; i++) {
        assert_int_equal(raw[i].ended, 1);
    }
    assert_nothing_left();
    relay_rig_close(&r);
}

static void test_relay_says_what_it_cannot_read(void **state)
{
    (void)state;
    open_rig(2);
    start();
    assert_int_equal(ask(1, 0, MU_SPAN_LIT("\x02\xff\xff")), MU_RELAY_MALFORMED_MESSAGE);
    assert_int_equal(ask(1, 0, MU_SPAN_LIT("\xff\xff\xff")), MU_RELAY_MALFORMED_MESSAGE);
    assert_int_equal(ask(1, 0, MU_SPAN_LIT("\x02\x08\x01")), MU_RELAY_MALFORMED_MESSAGE);
    assert_int_equal(ask(1, 0, words(MU_RELAY_HOP, MU_RELAY_STATUS, NULL)),
                     MU_RELAY_UNEXPECTED_MESSAGE);
    assert_nothing_left();
    relay_rig_close(&r);
}

static void test_relay_does_not_relay_who_is_relayed(void **state)
{
    struct rig_call call;

    (void)state;
    open_rig(4);
    r.config[1].hop = true; /* A relay that cannot be dialled either. */
    start();
    relay_rig_reserve(&r, 1, 0);
    rig_run(&r.base, 1000);
    relay_rig_learn(&r, 2, 1, 0);
    rig_call(NODE(2), NODE(1), &call, 10);
    rig_run(&r.base, 1000);
    rig_assert_echoed(&call);
    assert_int_equal(ask(2, 1, words(MU_RELAY_HOP, MU_RELAY_RESERVE, NULL)),
                     MU_RELAY_PERMISSION_DENIED);
    assert_int_equal(ask(2, 1, words(MU_RELAY_HOP, MU_RELAY_CONNECT, ID(3))),
                     MU_RELAY_PERMISSION_DENIED);
    assert_int_equal(relay_rig_stats(&r, 1).reservations, 0);
    relay_rig_close(&r);
}

/* --- relays that are none --------------------------------------------------------------------- */

static void test_relay_at_which_there_is_no_place_cannot_lead_here(void **state)
{
    struct raw raw;

    (void)state;
    open_rig(2);
    start();
    /* Node 1 acts as if node 0 had a place at it. */
    raw_open(&raw, 1, 0, MU_RELAY_STOP, words(MU_RELAY_STOP, MU_RELAY_CONNECT, ID(1)));
    rig_run(&r.base, 1000);
    assert_true(raw.answered);
    assert_int_equal(raw.msg.status, MU_RELAY_PERMISSION_DENIED);
    raw_open(&raw, 1, 0, MU_RELAY_STOP, MU_SPAN_LIT("\x01\xff"));
    rig_run(&r.base, 1000);
    assert_int_equal(raw.msg.status, MU_RELAY_MALFORMED_MESSAGE);
    raw_open(&raw, 1, 0, MU_RELAY_STOP, words(MU_RELAY_STOP, MU_RELAY_STATUS, NULL));
    rig_run(&r.base, 1000);
    assert_int_equal(raw.msg.status, MU_RELAY_UNEXPECTED_MESSAGE);
    /* And one that says nothing is not waited for. */
    raw_open(&raw, 1, 0, MU_RELAY_STOP, MU_SPAN_LIT("\x10"));
    rig_run(&r.base, 35000);
    assert_int_equal(raw.ended, 1);
    assert_false(raw.answered);
    assert_int_equal(relay_rig_stats(&r, 0).stopped, 0);
    relay_rig_close(&r);
}

static void test_relay_cannot_pass_somebody_off_as_another(void **state)
{
    struct raw raw;

    (void)state;
    open_rig(3);
    start();
    relay_rig_reserve(&r, 1, 0);
    rig_run(&r.base, 1000);
    /* Node 0 says that it leads node 2 to node 1; nobody can prove that. */
    raw_open(&raw, 0, 1, MU_RELAY_STOP, words(MU_RELAY_STOP, MU_RELAY_CONNECT, ID(2)));
    rig_run(&r.base, 1000);
    assert_int_equal(raw.msg.status, MU_RELAY_OK);
    assert_int_equal(rig_stats(NODE(1)).pending, 1);
    assert_false(mu_peer_host_connected(NODE(1)->host, ID(2)));
    rig_run(&r.base, 30000);
    assert_int_equal(rig_stats(NODE(1)).pending, 0);
    assert_int_equal(raw.ended, 1);
    relay_rig_close(&r);
}

/* Node 1 has places at node 0, which floods it, and at node 2. Node 3 is led to it by node 2. */
static void open_two_relays(void)
{
    open_rig(5);
    r.base.node[1].listens = true;
    r.base.node[2].listens = true;
    r.config[2].hop = true;
    r.base.node[1].config.pending_max = 16;
    start();
    relay_rig_reserve(&r, 1, 0);
    relay_rig_reserve(&r, 1, 2);
    rig_run(&r.base, 1000);
    assert_int_equal(relay_rig_stats(&r, 1).places, 2);
    relay_rig_learn(&r, 3, 1, 2);
}

static void assert_reached(size_t from)
{
    struct rig_call call;

    rig_call(NODE(from), NODE(1), &call, 1000);
    rig_run(&r.base, 3000);
    rig_assert_echoed(&call);
}

static void test_relay_that_leads_nobody_here_keeps_nobody_else_out(void **state)
{
    static struct raw raw[16];
    size_t led = 0;
    size_t refused = 0;

    (void)state;
    open_two_relays();
    for (size_t i = 0; i < 16; i++) {
        raw_open(&raw[i], 0, 1, MU_RELAY_STOP, words(MU_RELAY_STOP, MU_RELAY_CONNECT, ID(4)));
    }
    rig_run(&r.base, 1000);
    for (size_t i = 0; i < 16; i++) {
        led += raw[i].answered && raw[i].msg.status == MU_RELAY_OK ? 1 : 0;
        refused += raw[i].answered && raw[i].msg.status == MU_RELAY_RESOURCE_LIMIT_EXCEEDED ? 1 : 0;
    }
    /* A half of what there is, and of that its half. */
    assert_int_equal(led, 4);
    assert_int_equal(refused, 12);
    assert_int_equal(rig_stats(NODE(1)).pending, 4);
    assert_reached(3);
    rig_introduce(NODE(4), NODE(1));
    assert_reached(4);
    assert_int_equal(rig_stats(NODE(1)).turned_away, 0);
    /* What has come to nothing is its to use again. */
    rig_run(&r.base, 30000);
    assert_int_equal(rig_stats(NODE(1)).pending, 0);
    raw_open(&raw[0], 0, 1, MU_RELAY_STOP, words(MU_RELAY_STOP, MU_RELAY_CONNECT, ID(4)));
    rig_run(&r.base, 1000);
    assert_int_equal(raw[0].msg.status, MU_RELAY_OK);
    relay_rig_close(&r);
}

/* Meets SILENT_MAX of service/peer/circuit.c. */
static void test_relay_that_says_nothing_keeps_nobody_else_out(void **state)
{
    static struct raw raw[2][80];
    const size_t from[] = {0, 4}; /* a relay of ours, and a stranger */
    size_t refused = 0;

    (void)state;
    open_two_relays();
    rig_introduce(NODE(4), NODE(1));
    for (size_t i = 0; i < 160; i++) {
        raw_open(&raw[i % 2][i / 2], from[i % 2], 1, MU_RELAY_STOP, MU_SPAN_LIT("\x10"));
    }
    rig_run(&r.base, 1000);
    for (size_t i = 0; i < 160; i++) {
        refused += raw[i % 2][i / 2].ended == 1 ? 1 : 0;
    }
    assert_int_equal(refused, 2 * (80 - 16));
    assert_reached(3);
    rig_run(&r.base, 31000);
    for (size_t i = 0; i < 160; i++) {
        assert_int_equal(raw[i % 2][i / 2].ended, 1);
    }
    relay_rig_close(&r);
}

/* Meets STRANGERS_MAX of service/peer/circuit.c. */
static void test_relay_is_not_kept_out_by_many_strangers(void **state)
{
    static struct raw raw[RIG_NODES][16];
    size_t refused = 0;

    (void)state;
    open_rig(10);
    r.base.node[1].listens = true;
    start();
    relay_rig_reserve(&r, 1, 0);
    rig_run(&r.base, 1000);
    for (size_t i = 3; i < 10; i++) {
        rig_introduce(NODE(i), NODE(1));
        for (size_t k = 0; k < 16; k++) {
            raw_open(&raw[i][k], i, 1, MU_RELAY_STOP, MU_SPAN_LIT("\x10"));
        }
    }
    rig_run(&r.base, 1000);
    for (size_t i = 3; i < 10; i++) {
        for (size_t k = 0; k < 16; k++) {
            refused += raw[i][k].ended == 1 ? 1 : 0;
        }
    }
    assert_int_equal(refused, 7 * 16 - 64);
    relay_rig_learn(&r, 2, 1, 0);
    assert_reached(2);
    for (size_t i = 3; i < 10; i++) {
        for (size_t k = 0; k < 16; k++) {
            raw_drop(&raw[i][k], i);
        }
    }
    rig_run(&r.base, 100);
    /* Nothing of them is counted any more; and of those that speak nothing is, either. */
    for (size_t i = 0; i < 70; i++) {
        raw_open(&raw[3][0], 3, 1, MU_RELAY_STOP, words(MU_RELAY_STOP, MU_RELAY_CONNECT, ID(3)));
        rig_run(&r.base, 100);
        assert_int_equal(raw[3][0].msg.status, MU_RELAY_PERMISSION_DENIED);
        raw_drop(&raw[3][0], 3);
    }
    relay_rig_close(&r);
}

static void test_relay_that_is_none_is_not_asked_for_ever(void **state)
{
    (void)state;
    open_rig(3);
    r.base.node[1].listens = true;
    start();
    relay_rig_reserve(&r, 2, 1);
    rig_run(&r.base, 600000);
    assert_int_equal(relay_rig_stats(&r, 2).places, 0);
    assert_in_range(rig_stats(NODE(2)).streams_opened, 5, 20);
    relay_rig_close(&r);
}

/* What node 1 does with a STOP, where it has no service that would. */
struct mute {
    struct mu_peer_handler handler;
    struct raw raw;
};

static struct mute mute;

static struct mu_host_stream *mute_opened(struct mu_peer_handler *handler,
                                          const struct mu_peer_id *peer, struct mu_span name)
{
    (void)handler;
    (void)peer;
    (void)name;
    mu_relay_in_init(&mute.raw.in);
    mute.raw.stream.on = &raw_events;
    mute.raw.side = MU_RELAY_STOP;
    return &mute.raw.stream;
}

static void mute_serve(void *arg)
{
    (void)arg;
    mute.handler = (struct mu_peer_handler){.name = MU_RELAY_STOP_NAME, .opened = mute_opened};
    assert_int_equal(mu_peer_host_serve(NODE(1)->host, &mute.handler), 0);
}

static void test_relay_says_when_the_other_end_does_not_want(void **state)
{
    static const struct {
        const char *bytes;
        size_t len;
    } answers[] = {{"", 0}, {"\x05\x08\x01\x20\xca\x01", 6}, {"\x02\xff\xff", 3}, {"\x00", 1}};

    (void)state;
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        struct raw raw;

        open_rig(3);
        r.config[0].hop_terms.open_ms = 4000;
        start();
        relay_rig_leave(&r, 1);
        memset(&mute, 0, sizeof(mute));
        memcpy(mute.raw.out, answers[i].bytes, answers[i].len);
        mute.raw.out_len = answers[i].len;
        mu_sim_call(NODE(1)->proc, mute_serve, NULL);
        assert_int_equal(ask(1, 0, words(MU_RELAY_HOP, MU_RELAY_RESERVE, NULL)), MU_RELAY_OK);
        raw_open(&raw, 2, 0, MU_RELAY_HOP, words(MU_RELAY_HOP, MU_RELAY_CONNECT, ID(1)));
        rig_run(&r.base, 5000);
        assert_true(raw.answered);
        assert_int_equal(raw.msg.status, MU_RELAY_CONNECTION_FAILED);
        assert_int_equal(mute.raw.ended, 1);
        assert_nothing_left();
        relay_rig_close(&r);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_relay_refuses_who_reserves_without_end),
        cmocka_unit_test(test_relay_refuses_more_peers_than_it_has_places),
        cmocka_unit_test(test_relay_refuses_more_peers_of_one_address),
        cmocka_unit_test(test_relay_leads_to_nobody_without_a_reservation),
        cmocka_unit_test(test_relay_refuses_a_flood_of_circuits),
        cmocka_unit_test(test_relay_gives_up_on_who_says_nothing),
        cmocka_unit_test(test_relay_says_what_it_cannot_read),
        cmocka_unit_test(test_relay_does_not_relay_who_is_relayed),
        cmocka_unit_test(test_relay_at_which_there_is_no_place_cannot_lead_here),
        cmocka_unit_test(test_relay_cannot_pass_somebody_off_as_another),
        cmocka_unit_test(test_relay_that_leads_nobody_here_keeps_nobody_else_out),
        cmocka_unit_test(test_relay_that_says_nothing_keeps_nobody_else_out),
        cmocka_unit_test(test_relay_is_not_kept_out_by_many_strangers),
        cmocka_unit_test(test_relay_that_is_none_is_not_asked_for_ever),
        cmocka_unit_test(test_relay_says_when_the_other_end_does_not_want),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

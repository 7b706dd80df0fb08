/*
 * Links that break. Goal: whatever byte was the last to arrive, every call of either side is run
 * exactly once and answered exactly once. Method: one conversation is played once to learn how many
 * bytes it takes, then once for each of these bytes with the link cut behind it.
 */
#include "rpc_pair.h"

#define CALLS 6
#define ITEMS 3

struct story {
    uint64_t ids[CALLS];
    int replies[CALLS];
    int status[CALLS];
    uint64_t stream;
    unsigned stream_items;
    int stream_replies;
    bool stream_ended;
    uint64_t back; /* the server's call to the client */
    int back_replies;
    uint64_t sum;       /* what the server's handler added up */
    unsigned runs;      /* calls the server was given */
    unsigned back_runs; /* calls the client was given */
    unsigned welcomes;
    unsigned fresh;
};

static void answer_add(struct rpc_pair *p, const struct mu_rpc_event *ev)
{
    struct story *s = p->context;
    uint8_t sum[8];

    assert_int_equal(ev->payload.len, 8);
    s->runs++;
    s->sum += mu_get_u64(ev->payload.data);
    mu_put_u64(sum, s->sum);
    assert_int_equal(mu_rpc_reply(&p->server.rpc, p->now, ev->id, 0, mu_span(sum, sizeof(sum))), 0);
}

static void on_server(struct rpc_pair *p, const struct mu_rpc_event *ev)
{
    struct story *s = p->context;

    switch (ev->type) {
    case MU_RPC_EV_CALL:
        if (mu_span_eq(ev->method, MU_SPAN_LIT("t::T.add"))) {
            answer_add(p, ev);
        }
        break;
    case MU_RPC_EV_ITEM: /* of the stream: echoed */
        s->stream_items++;
        assert_int_equal(mu_rpc_item(&p->server.rpc, p->now, ev->id, ev->payload), 0);
        assert_int_equal(mu_rpc_consumed(&p->server.rpc, p->now, ev->id, ev->payload.len), 0);
        break;
    case MU_RPC_EV_END:
        s->stream_ended = true;
        assert_int_equal(mu_rpc_reply(&p->server.rpc, p->now, ev->id, 0, MU_SPAN_LIT("end")), 0);
        break;
    case MU_RPC_EV_CANCEL:
        assert_int_equal(ev->status, MUSTER_ESESSION);
        assert_int_equal(
            mu_rpc_reply(&p->server.rpc, p->now, ev->id, MUSTER_ESESSION, (struct mu_span){0}), 0);
        break;
    case MU_RPC_EV_REPLY:
        assert_int_equal(ev->id, s->back);
        s->back_replies++;
        break;
    case MU_RPC_EV_CREDIT:
        break;
    case MU_RPC_EV_WELCOMED:
    case MU_RPC_EV_REFUSED:
    case MU_RPC_EV_LINK_DEAD:
    case MU_RPC_EV_DRAIN:
    case MU_RPC_EV_BYE:
        fail_msg("the server saw event %d", ev->type);
    }
}

static void on_client(struct rpc_pair *p, const struct mu_rpc_event *ev)
{
    struct story *s = p->context;

    switch (ev->type) {
    case MU_RPC_EV_WELCOMED:
        s->welcomes++;
        s->fresh += ev->resumed ? 0 : 1;
        break;
    case MU_RPC_EV_REPLY:
        if (ev->id == s->stream) {
            s->stream_replies++;
        }
        for (size_t i = 0; i < CALLS; i++) {
            if (ev->id == s->ids[i]) {
                s->replies[i]++;
                s->status[i] = ev->status;
            }
        }
        break;
    case MU_RPC_EV_CALL:
        s->back_runs++;
        assert_int_equal(mu_rpc_reply(&p->client.rpc, p->now, ev->id, 0, ev->payload), 0);
        break;
    case MU_RPC_EV_ITEM:
        assert_int_equal(mu_rpc_consumed(&p->client.rpc, p->now, ev->id, ev->payload.len), 0);
        break;
    case MU_RPC_EV_CANCEL:
        assert_int_equal(ev->status, MUSTER_ESESSION);
        break;
    case MU_RPC_EV_CREDIT:
        break;
    case MU_RPC_EV_REFUSED:
    case MU_RPC_EV_END:
    case MU_RPC_EV_LINK_DEAD:
    case MU_RPC_EV_DRAIN:
    case MU_RPC_EV_BYE:
        fail_msg("the client saw event %d", ev->type);
    }
}

static void on_event(struct rpc_pair *p, struct rpc_end *at, const struct mu_rpc_event *ev)
{
    if (at == &p->server) {
        on_server(p, ev);
    } else {
        on_client(p, ev);
    }
}

static void say_everything(struct rpc_pair *p, struct story *s)
{
    uint8_t n[8];

    for (size_t i = 0; i < CALLS; i++) {
        mu_put_u64(n, i + 1);
        assert_int_equal(mu_rpc_call(&p->client.rpc, p->now, MU_SPAN_LIT("t::T.add"),
                                     mu_span(n, sizeof(n)), 0, 0, &s->ids[i]),
                         0);
    }
    assert_int_equal(mu_rpc_call(&p->client.rpc, p->now, MU_SPAN_LIT("t::T.stream"),
                                 (struct mu_span){0}, 60000, 0, &s->stream),
                     0);
    for (int i = 0; i < ITEMS; i++) {
        assert_int_equal(mu_rpc_item(&p->client.rpc, p->now, s->stream, MU_SPAN_LIT("item")), 0);
    }
    assert_int_equal(mu_rpc_end(&p->client.rpc, p->now, s->stream), 0);
    assert_int_equal(mu_rpc_call(&p->server.rpc, p->now, MU_SPAN_LIT("t::T.back"),
                                 MU_SPAN_LIT("hello"), 0, 0, &s->back),
                     0);
}

enum trouble {
    NONE = 0,
    RESTART,  /* the server forgets the session with the first link */
    NO_GRACE, /* sessions end with their links */
};

/* Plays the conversation with a cut behind byte `first`, and another `second` bytes later. */
static size_t play(size_t first, size_t second, size_t chunk, enum trouble trouble, struct story *s)
{
    struct mu_rpc_config client = mu_rpc_config_defaults();
    struct rpc_pair p;
    size_t bytes;

    *s = (struct story){0};
    client.grace_ms = trouble == NO_GRACE ? 0 : client.grace_ms;
    rpc_pair_init(&p, &client, NULL);
    p.context = s;
    p.on_event = on_event;
    p.send_chunk = chunk;
    p.recv_chunk = chunk == 0 ? 0 : 1 + chunk % 7;
    p.cut_after = first;
    say_everything(&p, s);
    for (int links = 0; links < 3 && !p.linked; links++) {
        assert_int_equal(rpc_pair_link(&p), 0);
        rpc_pair_pump(&p);
        if (links == 0 && second != 0) {
            p.cut_after = p.delivered + second;
        }
        if (links == 0 && trouble == RESTART && !p.linked) {
            rpc_pair_restart_server(&p);
        }
        assert_int_equal(p.refused_with, 0);
    }
    assert_true(p.linked);
    assert_int_equal(p.client.error, 0);
    assert_int_equal(p.server.error, 0);
    assert_int_equal(mu_rpc_calls_out(&p.client.rpc), 0);
    assert_int_equal(mu_rpc_calls_in(&p.client.rpc), 0);
    assert_int_equal(mu_rpc_calls_in(&p.server.rpc), 0);
    bytes = p.delivered;
    rpc_pair_fini(&p);
    return bytes;
}

static void check_exactly_once(const struct story *s, size_t first, size_t second)
{
    for (size_t i = 0; i < CALLS; i++) {
        if (s->replies[i] != 1 || s->status[i] != 0) {
            fail_msg("cut behind %zu and %zu: call %zu has %d replies, status %d", first, second, i,
                     s->replies[i], s->status[i]);
        }
    }
    assert_int_equal(s->runs, CALLS);
    assert_int_equal(s->sum, CALLS * (CALLS + 1) / 2);
    assert_int_equal(s->stream_items, ITEMS);
    assert_int_equal(s->stream_replies, 1);
    assert_true(s->stream_ended);
    assert_int_equal(s->back_runs, 1);
    assert_int_equal(s->back_replies, 1);
    /* A WELCOME that got lost is followed by another fresh one, which the client sees as its
     * first. */
    assert_int_equal(s->fresh, 1);
}

static void test_rpc_runs_each_call_once_whatever_byte_a_link_is_cut_behind(void **state)
{
    struct story s;
    size_t bytes = play(0, 0, 0, NONE, &s);

    (void)state;
    check_exactly_once(&s, 0, 0);
    for (size_t chunk = 0; chunk < 40; chunk += 19) {
        for (size_t cut = 1; cut < bytes; cut++) {
            (void)play(cut, 0, chunk, NONE, &s);
            check_exactly_once(&s, cut, 0);
        }
    }
}

static void test_rpc_runs_each_call_once_when_two_links_are_cut(void **state)
{
    struct story s;
    size_t bytes = play(0, 0, 0, NONE, &s);

    (void)state;
    for (size_t cut = 1; cut < bytes; cut += 11) {
        for (size_t second = 1; second < bytes; second += 17) {
            (void)play(cut, second, (cut + second) % 50, NONE, &s);
            check_exactly_once(&s, cut, second);
        }
    }
}

/*
 * A life that ends. Every call still ends exactly once; those that say 0 ran exactly once, and only
 * those that say that nobody knows may have run or not.
 */
static void check_the_truth_is_told(enum trouble trouble)
{
    struct story s;
    size_t bytes = play(0, 0, 0, NONE, &s);
    bool lost = false;

    for (size_t second = 0; second < bytes / 2; second += 211) {
        for (size_t cut = 1; cut < bytes; cut++) {
            unsigned good = 0;

            (void)play(cut, second, 17, trouble, &s);
            for (size_t i = 0; i < CALLS; i++) {
                assert_int_equal(s.replies[i], 1);
                assert_true(s.status[i] == 0 || s.status[i] == MUSTER_ESESSION);
                good += s.status[i] == 0 ? 1 : 0;
                lost = lost || s.status[i] != 0;
            }
            assert_int_equal(s.stream_replies, 1);
            assert_true(s.runs >= good && s.runs <= CALLS);
            assert_in_range(s.fresh, 1, 3);
        }
    }
    assert_true(lost);
}

static void test_rpc_tells_the_truth_when_the_server_forgot_the_session(void **state)
{
    (void)state;
    check_the_truth_is_told(RESTART);
}

static void test_rpc_tells_the_truth_when_sessions_end_with_their_links(void **state)
{
    (void)state;
    check_the_truth_is_told(NO_GRACE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc_runs_each_call_once_whatever_byte_a_link_is_cut_behind),
        cmocka_unit_test(test_rpc_runs_each_call_once_when_two_links_are_cut),
        cmocka_unit_test(test_rpc_tells_the_truth_when_the_server_forgot_the_session),
        cmocka_unit_test(test_rpc_tells_the_truth_when_sessions_end_with_their_links),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

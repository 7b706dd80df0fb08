/*
 * Calls, streams, credit, cancelling and deadlines over one link that holds. The link itself is
 * tested in test_rpc_link.c, its loss in test_rpc_cut.c, hostile bytes in test_rpc_robust.c.
 */
#include "rpc_pair.h"

#define LOG_MAX 256

/* What each end was told. A test that wants answers by itself takes them from the log. */
struct told {
    struct mu_rpc_event ev;
    bool at_server;
    uint8_t text[64]; /* the first bytes of the payload, which is only lent */
};

struct book {
    struct told log[LOG_MAX];
    size_t count;
    bool echo; /* the server answers each call with its payload */
};

static void write_down(struct rpc_pair *p, struct rpc_end *at, const struct mu_rpc_event *ev)
{
    struct book *b = p->context;
    struct told *t = &b->log[b->count];

    assert_true(b->count < LOG_MAX);
    b->count++;
    *t = (struct told){.ev = *ev, .at_server = at == &p->server};
    if (ev->payload.len != 0) {
        memcpy(t->text, ev->payload.data, ev->payload.len < 64 ? ev->payload.len : 64);
    }
    if (b->echo && ev->type == MU_RPC_EV_CALL) {
        assert_int_equal(mu_rpc_reply(&at->rpc, p->now, ev->id, 0, ev->payload), 0);
    }
}

static void start(struct rpc_pair *p, struct book *b, const struct mu_rpc_config *client,
                  const struct mu_rpc_config *server)
{
    *b = (struct book){0};
    rpc_pair_init(p, client, server);
    p->context = b;
    p->on_event = write_down;
    assert_int_equal(rpc_pair_link(p), 0);
    rpc_pair_pump(p);
    assert_true(mu_rpc_linked(&p->client.rpc));
    assert_true(mu_rpc_linked(&p->server.rpc));
    assert_int_equal(b->count, 1);
    assert_int_equal(b->log[0].ev.type, MU_RPC_EV_WELCOMED);
    b->count = 0;
}

static void finish(struct rpc_pair *p)
{
    assert_int_equal(p->client.error, 0);
    assert_int_equal(p->server.error, 0);
    rpc_pair_fini(p);
}

/* The ends of a link that holds, and what they were told: made for each test. */
static struct rpc_pair pair;
static struct book book;

static int set_up(void **state)
{
    (void)state;
    start(&pair, &book, NULL, NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    finish(&pair);
    return 0;
}

/* The same with other settings. */
static void start_anew(const struct mu_rpc_config *client, const struct mu_rpc_config *server)
{
    finish(&pair);
    start(&pair, &book, client, server);
}

/* The events of a type at one end, and the last of them. */
static size_t count_of(const struct book *b, bool at_server, enum mu_rpc_event_type type,
                       const struct told **ret_last)
{
    size_t n = 0;

    for (size_t i = 0; i < b->count; i++) {
        if (b->log[i].at_server == at_server && b->log[i].ev.type == type) {
            n++;
            if (ret_last != NULL) {
                *ret_last = &b->log[i];
            }
        }
    }
    return n;
}

static uint64_t call(struct rpc_pair *p, struct rpc_end *at, struct mu_span payload,
                     uint32_t timeout_ms)
{
    uint64_t id = 0;

    assert_int_equal(
        mu_rpc_call(&at->rpc, p->now, MU_SPAN_LIT("t::T.call"), payload, timeout_ms, 7, &id), 0);
    return id;
}

/* --- calls -------------------------------------------------------- */

static void test_rpc_carries_a_call_and_its_reply_both_ways(void **state)
{
    const struct told *t = NULL;
    uint64_t id;

    (void)state;
    book.echo = true;

    id = call(&pair, &pair.client, MU_SPAN_LIT("ping"), 1000);
    rpc_pair_pump(&pair);
    assert_int_equal(id, 1);
    assert_int_equal(count_of(&book, true, MU_RPC_EV_CALL, &t), 1);
    assert_int_equal(t->ev.id, id);
    assert_int_equal(t->ev.flags, 7);
    assert_int_equal(t->ev.deadline.ns, mu_mono_add_ms(pair.now.mono, 1000).ns);
    assert_int_equal(count_of(&book, false, MU_RPC_EV_REPLY, &t), 1);
    assert_int_equal(t->ev.status, 0);
    assert_memory_equal(t->text, "ping", 4);

    id = call(&pair, &pair.server, MU_SPAN_LIT("pong"), 0);
    rpc_pair_pump(&pair);
    assert_int_equal(id, 2);
    assert_int_equal(count_of(&book, false, MU_RPC_EV_CALL, &t), 1);
    assert_int_equal(t->ev.deadline.ns, MU_MONO_NEVER.ns);
    assert_int_equal(count_of(&book, true, MU_RPC_EV_REPLY, &t), 1);
    assert_memory_equal(t->text, "pong", 4);
}

static void test_rpc_carries_an_error_with_its_text(void **state)
{
    const struct told *t = NULL;
    uint64_t id;

    (void)state;
    id = call(&pair, &pair.client, (struct mu_span){0}, 0);
    rpc_pair_pump(&pair);
    assert_int_equal(mu_rpc_reply(&pair.server.rpc, pair.now, id, 5, (struct mu_span){0}),
                     MUSTER_EINVAL);
    assert_int_equal(
        mu_rpc_reply(&pair.server.rpc, pair.now, id, MUSTER_ENOMETHOD, MU_SPAN_LIT("no t::T.call")),
        0);
    assert_int_equal(mu_rpc_reply(&pair.server.rpc, pair.now, id, 0, (struct mu_span){0}),
                     MUSTER_ENOENT);
    rpc_pair_pump(&pair);
    assert_int_equal(count_of(&book, false, MU_RPC_EV_REPLY, &t), 1);
    assert_int_equal(t->ev.status, MUSTER_ENOMETHOD);
    assert_memory_equal(t->text, "no t::T.call", 12);
    assert_int_equal(mu_rpc_calls_out(&pair.client.rpc), 0);
    assert_int_equal(mu_rpc_calls_in(&pair.server.rpc), 0);
}

static void test_rpc_refuses_what_cannot_be_a_call(void **state)
{
    struct mu_rpc_config small = mu_rpc_config_defaults();
    static uint8_t big[70000];
    uint64_t id = 0;

    (void)state;
    small.frame_bytes_max = MU_RPC_FRAME_MIN;
    start_anew(NULL, &small);
    assert_int_equal(mu_rpc_call(&pair.client.rpc, pair.now, MU_SPAN_LIT("no blanks"),
                                 (struct mu_span){0}, 0, 0, &id),
                     MUSTER_EINVAL);
    assert_int_equal(mu_rpc_call(&pair.client.rpc, pair.now, (struct mu_span){0},
                                 (struct mu_span){0}, 0, 0, &id),
                     MUSTER_EINVAL);
    assert_int_equal(mu_rpc_call(&pair.client.rpc, pair.now, MU_SPAN_LIT("m"),
                                 mu_span(big, sizeof(big)), 0, 0, &id),
                     MUSTER_ELIMIT);
    assert_int_equal(id, 0);
    /* The longest that the peer takes. */
    assert_int_equal(mu_rpc_call(&pair.client.rpc, pair.now, MU_SPAN_LIT("m"),
                                 mu_span(big, MU_RPC_FRAME_MIN - MU_RPC_CALL_HEAD - 1), 0, 0, &id),
                     0);
    rpc_pair_pump(&pair);
    assert_int_equal(count_of(&book, true, MU_RPC_EV_CALL, NULL), 1);
}

static void test_rpc_reply_over_the_peers_limit_leaves_room_for_an_error(void **state)
{
    struct mu_rpc_config small = mu_rpc_config_defaults();
    static uint8_t big[70000];
    const struct told *t = NULL;
    uint64_t id;

    (void)state;
    small.frame_bytes_max = MU_RPC_FRAME_MIN;
    start_anew(&small, NULL);
    id = call(&pair, &pair.client, (struct mu_span){0}, 0);
    rpc_pair_pump(&pair);
    assert_int_equal(mu_rpc_reply(&pair.server.rpc, pair.now, id, 0, mu_span(big, sizeof(big))),
                     MUSTER_ELIMIT);
    assert_int_equal(
        mu_rpc_reply(&pair.server.rpc, pair.now, id, MUSTER_ELIMIT, mu_span(big, 5000)), 0);
    rpc_pair_pump(&pair);
    assert_int_equal(count_of(&book, false, MU_RPC_EV_REPLY, &t), 1);
    assert_int_equal(t->ev.payload.len, MU_RPC_MESSAGE_MAX);
}

/* --- streams ------------------------------------------------------ */

static void test_rpc_streams_items_both_ways_in_order(void **state)
{
    const struct told *t = NULL;
    uint64_t id;

    (void)state;
    id = call(&pair, &pair.client, (struct mu_span){0}, 0);
    assert_int_equal(mu_rpc_item(&pair.client.rpc, pair.now, id, MU_SPAN_LIT("up")), 0);
    assert_int_equal(mu_rpc_end(&pair.client.rpc, pair.now, id), 0);
    assert_int_equal(mu_rpc_end(&pair.client.rpc, pair.now, id), MUSTER_EINVAL);
    assert_int_equal(mu_rpc_item(&pair.client.rpc, pair.now, id, MU_SPAN_LIT("late")),
                     MUSTER_EINVAL);
    rpc_pair_pump(&pair);
    assert_int_equal(book.count, 3);
    assert_int_equal(book.log[0].ev.type, MU_RPC_EV_CALL);
    assert_int_equal(book.log[1].ev.type, MU_RPC_EV_ITEM);
    assert_int_equal(book.log[2].ev.type, MU_RPC_EV_END);

    assert_int_equal(mu_rpc_item(&pair.server.rpc, pair.now, id, MU_SPAN_LIT("one")), 0);
    assert_int_equal(mu_rpc_item(&pair.server.rpc, pair.now, id, MU_SPAN_LIT("two")), 0);
    assert_int_equal(mu_rpc_reply(&pair.server.rpc, pair.now, id, 0, (struct mu_span){0}), 0);
    assert_int_equal(mu_rpc_item(&pair.server.rpc, pair.now, id, MU_SPAN_LIT("x")), MUSTER_ENOENT);
    rpc_pair_pump(&pair);
    assert_int_equal(count_of(&book, false, MU_RPC_EV_ITEM, &t), 2);
    assert_memory_equal(t->text, "two", 3);
    assert_int_equal(book.log[book.count - 1].ev.type, MU_RPC_EV_REPLY);
}

/* --- credit ------------------------------------------------------- */

static void
test_rpc_callee_stops_at_the_items_credit_and_goes_on_when_they_are_consumed(void **state)
{
    struct mu_rpc_config client = mu_rpc_config_defaults();
    static uint8_t chunk[1000];
    struct rpc_pair p;
    struct book b;
    const struct told *t = NULL;
    uint64_t id;
    size_t sent = 0;

    (void)state;
    client.item_window_bytes = 3 * (sizeof(chunk) + MU_RPC_HEADER);
    start(&p, &b, &client, NULL);
    id = call(&p, &p.client, (struct mu_span){0}, 0);
    rpc_pair_pump(&p);
    while (mu_rpc_item(&p.server.rpc, p.now, id, mu_span(chunk, sizeof(chunk))) == 0) {
        sent++;
    }
    assert_int_equal(sent, 3);
    assert_int_equal(mu_rpc_item(&p.server.rpc, p.now, id, (struct mu_span){0}), MUSTER_EAGAIN);
    rpc_pair_pump(&p);
    assert_int_equal(count_of(&b, false, MU_RPC_EV_ITEM, NULL), 3);
    assert_int_equal(count_of(&b, true, MU_RPC_EV_CREDIT, NULL), 0);

    assert_int_equal(mu_rpc_consumed(&p.client.rpc, p.now, id, 3001), MUSTER_EINVAL);
    assert_int_equal(mu_rpc_consumed(&p.client.rpc, p.now, id, 3000), 0);
    rpc_pair_pump(&p);
    assert_int_equal(count_of(&b, true, MU_RPC_EV_CREDIT, &t), 1);
    assert_int_equal(t->ev.id, id);
    /* The frame that takes the credit below zero may be of any size. */
    while (mu_rpc_item(&p.server.rpc, p.now, id, mu_span(chunk, sizeof(chunk))) == 0) {
        sent++;
    }
    assert_int_equal(sent, 6);
    rpc_pair_pump(&p);
    finish(&p);
}

static void test_rpc_caller_stops_at_the_calls_credit_and_is_told_when_to_go_on(void **state)
{
    struct mu_rpc_config server = mu_rpc_config_defaults();
    static uint8_t chunk[16000];
    uint64_t id = 0;
    size_t made = 0;

    (void)state;
    server.call_window_bytes = MU_RPC_CREDIT_MIN;
    server.calls_max = 1; /* one is served, the others wait and use up the window */
    start_anew(NULL, &server);
    while (mu_rpc_call(&pair.client.rpc, pair.now, MU_SPAN_LIT("m"), mu_span(chunk, sizeof(chunk)),
                       0, 0, &id) == 0) {
        made++;
    }
    assert_int_equal(made, 5); /* four fit, the fifth goes below zero */
    rpc_pair_pump(&pair);
    assert_int_equal(count_of(&book, true, MU_RPC_EV_CALL, NULL), 1);
    assert_int_equal(mu_rpc_calls_in(&pair.server.rpc), 5);

    /* As they are answered, the others are handed out, and credit comes back by halves. */
    for (uint64_t answered = 1; answered <= 9; answered += 2) {
        assert_int_equal(mu_rpc_reply(&pair.server.rpc, pair.now, answered, 0, (struct mu_span){0}),
                         0);
        rpc_pair_pump(&pair);
    }
    assert_int_equal(count_of(&book, true, MU_RPC_EV_CALL, NULL), 5);
    assert_int_equal(count_of(&book, false, MU_RPC_EV_REPLY, NULL), 5);
    assert_int_equal(count_of(&book, false, MU_RPC_EV_CREDIT, NULL), 1);
    assert_int_equal(mu_rpc_call(&pair.client.rpc, pair.now, MU_SPAN_LIT("m"),
                                 mu_span(chunk, sizeof(chunk)), 0, 0, &id),
                     0);
}

static void
test_rpc_callers_items_share_the_calls_credit_and_give_it_back_at_the_reply(void **state)
{
    struct mu_rpc_config server = mu_rpc_config_defaults();
    static uint8_t chunk[16000];
    struct rpc_pair p;
    struct book b;
    const struct told *t = NULL;
    uint64_t id;
    size_t sent = 0;

    (void)state;
    server.call_window_bytes = MU_RPC_CREDIT_MIN;
    start(&p, &b, NULL, &server);
    id = call(&p, &p.client, (struct mu_span){0}, 0);
    while (mu_rpc_item(&p.client.rpc, p.now, id, mu_span(chunk, sizeof(chunk))) == 0) {
        sent++;
    }
    assert_int_equal(sent, 5);
    rpc_pair_pump(&p);
    assert_int_equal(count_of(&b, true, MU_RPC_EV_ITEM, NULL), 5);
    assert_int_equal(count_of(&b, false, MU_RPC_EV_CREDIT, NULL), 0);
    /* Replying without having consumed: the items are dealt with all the same. */
    assert_int_equal(mu_rpc_reply(&p.server.rpc, p.now, id, 0, (struct mu_span){0}), 0);
    rpc_pair_pump(&p);
    assert_int_equal(count_of(&b, false, MU_RPC_EV_REPLY, &t), 1);
    (void)call(&p, &p.client, (struct mu_span){0}, 0);
    finish(&p);
}

static void test_rpc_hands_out_no_calls_while_replies_wait_to_be_sent(void **state)
{
    struct mu_rpc_config server = mu_rpc_config_defaults();
    static uint8_t big[50000];
    struct mu_rpc_event ev;

    (void)state;
    server.output_bytes_high = 60000;
    start_anew(NULL, &server);
    for (int i = 0; i < 4; i++) {
        (void)call(&pair, &pair.client, (struct mu_span){0}, 0);
    }
    while (rpc_pair_send(&pair, &pair.client, &pair.server)) {
    }
    book.echo = false;
    while (rpc_pair_receive(&pair, &pair.server)) {
    }
    assert_int_equal(count_of(&book, true, MU_RPC_EV_CALL, NULL), 4);
    assert_int_equal(mu_rpc_reply(&pair.server.rpc, pair.now, 1, 0, mu_span(big, sizeof(big))), 0);
    assert_int_equal(mu_rpc_reply(&pair.server.rpc, pair.now, 3, 0, mu_span(big, sizeof(big))), 0);

    /* Nobody reads them: further calls are taken off the wire and wait. */
    (void)call(&pair, &pair.client, (struct mu_span){0}, 0);
    assert_int_equal(mu_rpc_item(&pair.client.rpc, pair.now, 9, MU_SPAN_LIT("held")), 0);
    assert_int_equal(mu_rpc_end(&pair.client.rpc, pair.now, 9), 0);
    while (rpc_pair_send(&pair, &pair.client, &pair.server)) {
    }
    while (rpc_pair_receive(&pair, &pair.server)) {
    }
    assert_int_equal(mu_rpc_calls_in(&pair.server.rpc), 3);
    assert_int_equal(pair.server.wire.len, 0);
    assert_false(mu_rpc_next_event(&pair.server.rpc, &ev));
    /* Nor is a stream fed: it is told when there is room. */
    assert_int_equal(mu_rpc_item(&pair.server.rpc, pair.now, 5, MU_SPAN_LIT("x")), MUSTER_EAGAIN);

    book.count = 0;
    rpc_pair_pump(&pair);
    assert_int_equal(count_of(&book, true, MU_RPC_EV_CREDIT, NULL), 1);
    assert_int_equal(count_of(&book, true, MU_RPC_EV_CALL, NULL), 1);
    assert_int_equal(count_of(&book, true, MU_RPC_EV_ITEM, NULL), 1);
    assert_int_equal(count_of(&book, true, MU_RPC_EV_END, NULL), 1);

    /* All that was spent comes back. */
    for (uint64_t id = 5; id <= 9; id += 2) {
        assert_int_equal(mu_rpc_reply(&pair.server.rpc, pair.now, id, 0, (struct mu_span){0}), 0);
    }
    assert_int_equal(pair.server.rpc.peer_done, pair.server.rpc.peer_spent);
}

/* --- cancel and deadlines ------------------------------------------ */

static void test_rpc_cancel_ends_the_call_at_once_and_tells_the_callee(void **state)
{
    const struct told *t = NULL;
    uint64_t id;

    (void)state;
    id = call(&pair, &pair.client, (struct mu_span){0}, 0);
    rpc_pair_pump(&pair);
    assert_int_equal(mu_rpc_cancel(&pair.client.rpc, pair.now, id), 0);
    assert_int_equal(mu_rpc_cancel(&pair.client.rpc, pair.now, id), MUSTER_ENOENT);
    rpc_pair_pump(&pair);
    assert_int_equal(count_of(&book, false, MU_RPC_EV_REPLY, &t), 1);
    assert_int_equal(t->ev.status, MUSTER_ECANCELED);
    assert_int_equal(count_of(&book, true, MU_RPC_EV_CANCEL, &t), 1);
    assert_int_equal(t->ev.status, MUSTER_ECANCELED);
    assert_int_equal(mu_rpc_item(&pair.server.rpc, pair.now, id, MU_SPAN_LIT("x")),
                     MUSTER_ECANCELED);
    /* The reply frees the call; at the caller it is one too many and is dropped. */
    assert_int_equal(mu_rpc_reply(&pair.server.rpc, pair.now, id, 0, MU_SPAN_LIT("too late")), 0);
    rpc_pair_pump(&pair);
    assert_int_equal(count_of(&book, false, MU_RPC_EV_REPLY, NULL), 1);
    assert_int_equal(mu_rpc_calls_in(&pair.server.rpc), 0);
}

static void test_rpc_cancel_that_crosses_the_reply_harms_nobody(void **state)
{
    const struct told *t = NULL;
    uint64_t id;

    (void)state;
    book.echo = true;
    id = call(&pair, &pair.client, MU_SPAN_LIT("x"), 0);
    while (rpc_pair_send(&pair, &pair.client, &pair.server)) {
    }
    (void)rpc_pair_receive(&pair, &pair.server); /* answered, and the answer is on its way */
    (void)rpc_pair_send(&pair, &pair.server, &pair.client);
    assert_int_equal(mu_rpc_cancel(&pair.client.rpc, pair.now, id), 0);
    rpc_pair_pump(&pair);
    assert_int_equal(count_of(&book, false, MU_RPC_EV_REPLY, &t), 1);
    assert_int_equal(t->ev.status, MUSTER_ECANCELED);
    assert_int_equal(count_of(&book, true, MU_RPC_EV_CANCEL, NULL), 0);
}

static void test_rpc_answers_a_cancelled_call_that_was_never_handed_out(void **state)
{
    struct mu_rpc_config server = mu_rpc_config_defaults();
    uint64_t second;

    (void)state;
    server.calls_max = 1;
    start_anew(NULL, &server);
    (void)call(&pair, &pair.client, (struct mu_span){0}, 0);
    second = call(&pair, &pair.client, (struct mu_span){0}, 0);
    rpc_pair_pump(&pair);
    assert_int_equal(mu_rpc_calls_in(&pair.server.rpc), 2);
    assert_int_equal(mu_rpc_reply(&pair.server.rpc, pair.now, second, 0, (struct mu_span){0}),
                     MUSTER_ENOENT);
    assert_int_equal(mu_rpc_cancel(&pair.client.rpc, pair.now, second), 0);
    rpc_pair_pump(&pair);
    assert_int_equal(mu_rpc_calls_in(&pair.server.rpc), 1);
    assert_int_equal(count_of(&book, true, MU_RPC_EV_CANCEL, NULL), 0);
    assert_int_equal(mu_rpc_reply(&pair.server.rpc, pair.now, 1, 0, (struct mu_span){0}), 0);
    rpc_pair_pump(&pair);
    assert_int_equal(count_of(&book, true, MU_RPC_EV_CALL, NULL), 1);
}

static void test_rpc_callee_is_told_of_the_deadline_first_and_its_answer_counts(void **state)
{
    const struct told *t = NULL;
    uint64_t id;

    (void)state;
    id = call(&pair, &pair.client, (struct mu_span){0}, 1000);
    rpc_pair_pump(&pair);
    rpc_pair_tick(&pair, 999);
    assert_int_equal(count_of(&book, true, MU_RPC_EV_CANCEL, NULL), 0);
    rpc_pair_tick(&pair, 1);
    assert_int_equal(count_of(&book, true, MU_RPC_EV_CANCEL, &t), 1);
    assert_int_equal(t->ev.status, MUSTER_ETIMEDOUT);
    assert_int_equal(count_of(&book, false, MU_RPC_EV_REPLY, NULL), 0);
    assert_int_equal(
        mu_rpc_reply(&pair.server.rpc, pair.now, id, MUSTER_ETIMEDOUT, MU_SPAN_LIT("key \"a\"")),
        0);
    rpc_pair_pump(&pair);
    assert_int_equal(count_of(&book, false, MU_RPC_EV_REPLY, &t), 1);
    assert_memory_equal(t->text, "key \"a\"", 7);
}

static void test_rpc_caller_gives_up_when_the_callee_says_nothing(void **state)
{
    const struct told *t = NULL;
    uint64_t id;

    (void)state;
    id = call(&pair, &pair.client, (struct mu_span){0}, 1000);
    rpc_pair_pump(&pair);
    assert_int_equal(mu_rpc_deadline(&pair.client.rpc).ns, mu_mono_add_ms(pair.now.mono, 1500).ns);
    rpc_pair_tick(&pair, 1499);
    assert_int_equal(count_of(&book, false, MU_RPC_EV_REPLY, NULL), 0);
    rpc_pair_tick(&pair, 1);
    assert_int_equal(count_of(&book, false, MU_RPC_EV_REPLY, &t), 1);
    assert_int_equal(t->ev.status, MUSTER_ETIMEDOUT);
    rpc_pair_pump(&pair); /* its CANCEL crosses the callee's reply */
    assert_int_equal(count_of(&book, true, MU_RPC_EV_CANCEL, NULL), 1);
    assert_int_equal(mu_rpc_reply(&pair.server.rpc, pair.now, id, 0, (struct mu_span){0}), 0);
    rpc_pair_pump(&pair);
    assert_int_equal(count_of(&book, false, MU_RPC_EV_REPLY, NULL), 1);
}

static void test_rpc_answers_a_queued_call_whose_deadline_passed(void **state)
{
    struct mu_rpc_config server = mu_rpc_config_defaults();
    const struct told *t = NULL;
    uint64_t second;

    (void)state;
    server.calls_max = 1;
    start_anew(NULL, &server);
    (void)call(&pair, &pair.client, (struct mu_span){0}, 0);
    second = call(&pair, &pair.client, (struct mu_span){0}, 100);
    rpc_pair_pump(&pair);
    rpc_pair_tick(&pair, 100);
    rpc_pair_pump(&pair);
    assert_int_equal(count_of(&book, false, MU_RPC_EV_REPLY, &t), 1);
    assert_int_equal(t->ev.id, second);
    assert_int_equal(t->ev.status, MUSTER_ETIMEDOUT);
    assert_int_equal(mu_rpc_calls_in(&pair.server.rpc), 1);
}

/* --- endings ------------------------------------------------------- */

static void test_rpc_close_says_bye_and_ends_what_is_out(void **state)
{
    const struct told *t = NULL;
    uint64_t id;

    (void)state;
    id = call(&pair, &pair.client, (struct mu_span){0}, 0);
    rpc_pair_pump(&pair);
    assert_int_equal(mu_rpc_close(&pair.client.rpc, pair.now), 0);
    assert_int_equal(mu_rpc_close(&pair.client.rpc, pair.now), 0);
    rpc_pair_pump(&pair);
    assert_int_equal(count_of(&book, false, MU_RPC_EV_REPLY, &t), 1);
    assert_int_equal(t->ev.status, MUSTER_ECLOSED);
    assert_int_equal(count_of(&book, true, MU_RPC_EV_BYE, NULL), 1);
    assert_int_equal(count_of(&book, true, MU_RPC_EV_CANCEL, &t), 1);
    assert_int_equal(t->ev.status, MUSTER_ESESSION);
    assert_int_equal(mu_rpc_reply(&pair.server.rpc, pair.now, id, 0, (struct mu_span){0}), 0);
    assert_int_equal(
        mu_rpc_call(&pair.client.rpc, pair.now, MU_SPAN_LIT("m"), (struct mu_span){0}, 0, 0, &id),
        MUSTER_ECLOSED);
    assert_int_equal(mu_rpc_dialled(&pair.client.rpc, pair.now), MUSTER_ECLOSED);
}

static void test_rpc_drain_reaches_the_peer_with_its_reason(void **state)
{
    const struct told *t = NULL;

    (void)state;
    assert_int_equal(mu_rpc_drain(&pair.server.rpc, pair.now, "upgrade"), 0);
    assert_int_equal(mu_rpc_drain(&pair.server.rpc, pair.now, "upgrade"), 0);
    rpc_pair_pump(&pair);
    assert_int_equal(count_of(&book, false, MU_RPC_EV_DRAIN, &t), 1);
    assert_int_equal(t->ev.status, MUSTER_EDRAIN);
    assert_memory_equal(t->text, "upgrade", 7);
}

static void test_rpc_frees_the_memory_of_an_idle_session(void **state)
{
    static uint8_t big[300000];

    (void)state;
    book.echo = true;
    (void)call(&pair, &pair.client, mu_span(big, sizeof(big)), 0);
    rpc_pair_pump(&pair);
    /* Only the client's timer runs: the server has nothing to do but to answer. */
    for (int i = 0; i < 3; i++) {
        rpc_pair_ms(&pair, 5000);
        assert_int_equal(mu_rpc_tick(&pair.client.rpc, pair.now), 0);
        rpc_pair_pump(&pair);
    }
    assert_true(mu_rpc_memory(&pair.client.rpc) < 2048);
    assert_true(mu_rpc_memory(&pair.server.rpc) < 2048);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_rpc_carries_a_call_and_its_reply_both_ways, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_carries_an_error_with_its_text, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_refuses_what_cannot_be_a_call, set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            test_rpc_reply_over_the_peers_limit_leaves_room_for_an_error, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_streams_items_both_ways_in_order, set_up,
                                        tear_down),
        cmocka_unit_test(
            test_rpc_callee_stops_at_the_items_credit_and_goes_on_when_they_are_consumed),
        cmocka_unit_test_setup_teardown(
            test_rpc_caller_stops_at_the_calls_credit_and_is_told_when_to_go_on, set_up, tear_down),
        cmocka_unit_test(
            test_rpc_callers_items_share_the_calls_credit_and_give_it_back_at_the_reply),
        cmocka_unit_test_setup_teardown(test_rpc_hands_out_no_calls_while_replies_wait_to_be_sent,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_cancel_ends_the_call_at_once_and_tells_the_callee,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_cancel_that_crosses_the_reply_harms_nobody, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_answers_a_cancelled_call_that_was_never_handed_out,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            test_rpc_callee_is_told_of_the_deadline_first_and_its_answer_counts, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_caller_gives_up_when_the_callee_says_nothing,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_answers_a_queued_call_whose_deadline_passed,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_close_says_bye_and_ends_what_is_out, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_drain_reaches_the_peer_with_its_reason, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_frees_the_memory_of_an_idle_session, set_up,
                                        tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

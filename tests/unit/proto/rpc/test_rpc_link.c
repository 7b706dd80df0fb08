/*
 * Links: greeting, the lives of a session, acknowledgement, keep-alive in virtual time. The pair's
 * wire is used where both ends matter, bytes made by hand where one end must misbehave.
 */
#include "rpc_pair.h"

struct seen {
    unsigned welcomed;
    unsigned resumed;
    unsigned refused;
    unsigned dead_client;
    unsigned dead_server;
    unsigned replies;
    unsigned cancels;
    unsigned calls;
    int status;
    uint64_t last_call;
    bool echo;
};

static void note(struct rpc_pair *p, struct rpc_end *at, const struct mu_rpc_event *ev)
{
    struct seen *s = p->context;

    switch (ev->type) {
    case MU_RPC_EV_WELCOMED:
        s->welcomed++;
        s->resumed += ev->resumed ? 1 : 0;
        break;
    case MU_RPC_EV_REFUSED:
        s->refused++;
        s->status = ev->status;
        break;
    case MU_RPC_EV_LINK_DEAD:
        s->dead_client += at == &p->client ? 1 : 0;
        s->dead_server += at == &p->server ? 1 : 0;
        break;
    case MU_RPC_EV_REPLY:
        s->replies++;
        s->status = ev->status;
        break;
    case MU_RPC_EV_CANCEL:
        s->cancels++;
        s->status = ev->status;
        break;
    case MU_RPC_EV_CALL:
        s->calls++;
        s->last_call = ev->id;
        if (s->echo) {
            assert_int_equal(mu_rpc_reply(&at->rpc, p->now, ev->id, 0, ev->payload), 0);
        }
        break;
    case MU_RPC_EV_ITEM:
    case MU_RPC_EV_END:
    case MU_RPC_EV_CREDIT:
    case MU_RPC_EV_DRAIN:
    case MU_RPC_EV_BYE:
        break;
    }
}

static void start(struct rpc_pair *p, struct seen *s, const struct mu_rpc_config *client,
                  const struct mu_rpc_config *server)
{
    *s = (struct seen){.echo = true};
    rpc_pair_init(p, client, server);
    p->context = s;
    p->on_event = note;
    assert_int_equal(rpc_pair_link(p), 0);
    rpc_pair_pump(p);
    assert_int_equal(s->welcomed, 1);
}

/* The ends of a link that holds, and what they were told: made for each test. */
static struct rpc_pair pair;
static struct seen seen;

static int set_up(void **state)
{
    (void)state;
    start(&pair, &seen, NULL, NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    rpc_pair_fini(&pair);
    return 0;
}

/* The same with other settings. */
static void start_anew(const struct mu_rpc_config *client, const struct mu_rpc_config *server)
{
    rpc_pair_fini(&pair);
    start(&pair, &seen, client, server);
}

static uint64_t call(struct rpc_pair *p)
{
    uint64_t id = 0;

    assert_int_equal(
        mu_rpc_call(&p->client.rpc, p->now, MU_SPAN_LIT("m"), MU_SPAN_LIT("x"), 0, 0, &id), 0);
    return id;
}

/* --- greeting ------------------------------------------------------ */

static void test_rpc_greet_tells_the_wire_by_its_first_bytes(void **state)
{
    (void)state;
    assert_int_equal(mu_rpc_greet_sniff((struct mu_span){0}), MUSTER_EAGAIN);
    assert_int_equal(mu_rpc_greet_sniff(MU_SPAN_LIT("MUSTER\r")), MUSTER_EAGAIN);
    assert_int_equal(mu_rpc_greet_sniff(MU_SPAN_LIT("MUSTER\r\nmore")), 1);
    assert_int_equal(mu_rpc_greet_sniff(MU_SPAN_LIT("N")), 0);
    assert_int_equal(mu_rpc_greet_sniff(MU_SPAN_LIT("MUSTER\n\n")), 0);
}

static void test_rpc_greet_takes_nothing_behind_the_hello_however_it_is_split(void **state)
{
    struct rpc_pair p;
    struct mu_rpc_hello hello;
    uint8_t bytes[256];
    size_t len;

    (void)state;
    rpc_pair_init(&p, NULL, NULL);
    assert_int_equal(rpc_pair_link(&p), 0);
    len = mu_rpc_output(&p.client.rpc).len;
    memcpy(bytes, mu_rpc_output(&p.client.rpc).data, len);
    memcpy(bytes + len, "behind", 6);
    for (size_t chunk = 1; chunk <= len + 6; chunk++) {
        struct mu_rpc_greet g;
        size_t at = 0;
        int err = MUSTER_EAGAIN;

        mu_rpc_greet_init(&g);
        while (err == MUSTER_EAGAIN) {
            size_t used = 0;
            size_t part = chunk < len + 6 - at ? chunk : len + 6 - at;

            err = mu_rpc_greet_recv(&g, mu_span(bytes + at, part), &used, &hello);
            at += used;
        }
        assert_int_equal(err, 0);
        assert_int_equal(at, len);
        assert_int_equal(hello.life, 0);
        assert_int_equal(hello.ack, 0);
        mu_rpc_greet_fini(&g);
    }
    rpc_pair_fini(&p);
}

static void test_rpc_greet_refuses_a_long_hello_before_it_is_there(void **state)
{
    struct mu_rpc_header h = {.len = MU_RPC_HELLO_MAX + 1, .type = MU_RPC_HELLO};
    uint8_t bytes[MU_RPC_MAGIC_LEN + MU_RPC_HEADER];
    struct mu_rpc_hello hello;
    struct mu_rpc_greet g;
    size_t used;

    (void)state;
    memcpy(bytes, MU_RPC_MAGIC, MU_RPC_MAGIC_LEN);
    mu_rpc_header_encode(bytes + MU_RPC_MAGIC_LEN, &h);
    mu_rpc_greet_init(&g);
    assert_int_equal(mu_rpc_greet_recv(&g, mu_span(bytes, sizeof(bytes)), &used, &hello),
                     MUSTER_EPROTO);
    mu_rpc_greet_fini(&g);
}

static void test_rpc_refusal_reaches_the_client_with_its_reason(void **state)
{
    struct seen s = {0};
    struct rpc_pair p;

    (void)state;
    rpc_pair_init(&p, NULL, NULL);
    p.context = &s;
    p.on_event = note;
    assert_int_equal(rpc_pair_link(&p), 0);
    assert_int_equal(mu_rpc_refuse(&p.client.wire, MUSTER_EREFUSED, "wrong credential"), 0);
    (void)rpc_pair_receive(&p, &p.client);
    assert_int_equal(s.refused, 1);
    assert_int_equal(s.status, MUSTER_EREFUSED);
    rpc_pair_fini(&p);
}

static void test_rpc_server_keeps_the_wishes_within_bounds(void **state)
{
    struct mu_rpc_config client = mu_rpc_config_defaults();

    (void)state;
    client.beat_ms = 1;
    client.dead_ms = 1;
    client.grace_ms = 3600000;
    start_anew(&client, NULL);
    assert_int_equal(pair.client.rpc.beat_ms, MU_RPC_BEAT_MS_MIN);
    assert_int_equal(pair.client.rpc.dead_ms, 2 * MU_RPC_BEAT_MS_MIN);
    assert_int_equal(pair.client.rpc.grace_ms, 10000);
    assert_int_equal(pair.server.rpc.beat_ms, MU_RPC_BEAT_MS_MIN);
}

static void test_rpc_calls_made_before_the_first_link_are_sent_with_it(void **state)
{
    struct seen s = {.echo = true};
    struct rpc_pair p;
    static uint8_t big[100000];
    uint64_t id;

    (void)state;
    rpc_pair_init(&p, NULL, NULL);
    p.context = &s;
    p.on_event = note;
    (void)call(&p);
    /* More than every server takes has to wait until this one has spoken. */
    assert_int_equal(
        mu_rpc_call(&p.client.rpc, p.now, MU_SPAN_LIT("m"), mu_span(big, sizeof(big)), 0, 0, &id),
        MUSTER_EAGAIN);
    assert_int_equal(mu_rpc_output(&p.client.rpc).len, 0);
    assert_int_equal(rpc_pair_link(&p), 0);
    rpc_pair_pump(&p);
    assert_int_equal(s.replies, 1);
    assert_int_equal(
        mu_rpc_call(&p.client.rpc, p.now, MU_SPAN_LIT("m"), mu_span(big, sizeof(big)), 0, 0, &id),
        0);
    rpc_pair_fini(&p);
}

/* --- lives ---------------------------------------------------------- */

static void test_rpc_resumes_after_a_cut_and_not_after_a_restart(void **state)
{
    (void)state;
    rpc_pair_cut(&pair);
    assert_int_equal(rpc_pair_link(&pair), 0);
    rpc_pair_pump(&pair);
    assert_int_equal(seen.resumed, 1);
    rpc_pair_cut(&pair);
    rpc_pair_restart_server(&pair);
    assert_int_equal(rpc_pair_link(&pair), 0);
    rpc_pair_pump(&pair);
    assert_int_equal(seen.welcomed, 3);
    assert_int_equal(seen.resumed, 1);
}

/* Ids of a new life do not collide with those a handler still has in its hands. */
static void test_rpc_orphans_of_a_lost_life_are_answered_into_nothing(void **state)
{
    uint64_t back;
    uint64_t orphan;

    (void)state;
    seen.echo = false;
    assert_int_equal(
        mu_rpc_call(&pair.server.rpc, pair.now, MU_SPAN_LIT("m"), MU_SPAN_LIT("x"), 0, 0, &back),
        0);
    rpc_pair_pump(&pair);
    assert_int_equal(seen.calls, 1);
    orphan = seen.last_call;
    rpc_pair_cut(&pair);
    rpc_pair_restart_server(&pair);
    assert_int_equal(rpc_pair_link(&pair), 0);
    rpc_pair_pump(&pair);
    assert_int_equal(seen.cancels, 1);
    assert_int_equal(seen.status, MUSTER_ESESSION);

    assert_int_equal(
        mu_rpc_call(&pair.server.rpc, pair.now, MU_SPAN_LIT("m"), MU_SPAN_LIT("x"), 0, 0, &back),
        0);
    rpc_pair_pump(&pair);
    assert_int_equal(seen.calls, 2);
    assert_int_not_equal(seen.last_call, orphan);
    assert_int_equal(mu_rpc_reply(&pair.client.rpc, pair.now, orphan, 0, MU_SPAN_LIT("wrong")), 0);
    rpc_pair_pump(&pair);
    assert_int_equal(seen.replies, 0);
    assert_int_equal(
        mu_rpc_reply(&pair.client.rpc, pair.now, seen.last_call, 0, MU_SPAN_LIT("right")), 0);
    rpc_pair_pump(&pair);
    assert_int_equal(seen.replies, 1);
    assert_int_equal(seen.status, 0);
}

/* A HELLO as a client in this life, that received `ack` frames, would send it. */
static struct mu_rpc_hello make_hello(uint32_t life, uint64_t ack)
{
    return (struct mu_rpc_hello){.version_min = 1,
                                 .version_max = 1,
                                 .life = life,
                                 .calls_credit = MU_RPC_CREDIT_MIN,
                                 .frame_bytes_max = MU_RPC_FRAME_MIN,
                                 .grace_ms = 1000,
                                 .ack = ack};
}

static void test_rpc_server_judges_which_life_a_hello_means(void **state)
{
    struct mu_rpc_hello hello = make_hello(0, 0);
    struct rpc_pair p;
    struct seen s;

    (void)state;
    start(&p, &s, NULL, NULL); /* life 1 */
    /* Nothing was exchanged: the WELCOME may have been lost. */
    assert_int_equal(mu_rpc_accepted(&p.server.rpc, p.now, &hello), 0);
    rpc_pair_cut(&p);
    assert_int_equal(rpc_pair_link(&p), 0);
    (void)call(&p);
    rpc_pair_pump(&p);
    assert_int_equal(s.replies, 1);
    /* Now it was: a second client, or a connection that was overtaken. */
    assert_int_equal(mu_rpc_accepted(&p.server.rpc, p.now, &hello), MUSTER_ESESSION);
    hello = make_hello(1, 2);
    assert_int_equal(mu_rpc_accepted(&p.server.rpc, p.now, &hello), MUSTER_EPROTO);
    hello = make_hello(UINT32_MAX, 0);
    assert_int_equal(mu_rpc_accepted(&p.server.rpc, p.now, &hello), MUSTER_EPROTO);
    hello = make_hello(1, 0);
    hello.version_min = hello.version_max = 2;
    assert_int_equal(mu_rpc_accepted(&p.server.rpc, p.now, &hello), MUSTER_EVERSION);
    /* None of this harmed the link that is up. */
    (void)call(&p);
    rpc_pair_pump(&p);
    assert_int_equal(s.replies, 2);
    assert_true(p.linked);
    /* Another server welcomed the client afresh in between: this life is over. */
    s.echo = false;
    (void)call(&p);
    rpc_pair_pump(&p);
    hello = make_hello(5, 9);
    assert_int_equal(mu_rpc_accepted(&p.server.rpc, p.now, &hello), 0);
    rpc_pair_events(&p, &p.server);
    assert_int_equal(s.cancels, 1);
    assert_int_equal(s.status, MUSTER_ESESSION);
    rpc_pair_fini(&p);
}

static void test_rpc_without_grace_keeps_nothing_and_ends_calls_with_the_link(void **state)
{
    struct mu_rpc_config client = mu_rpc_config_defaults();

    (void)state;
    client.grace_ms = 0;
    start_anew(&client, NULL);
    seen.echo = false;
    (void)call(&pair);
    rpc_pair_pump(&pair);
    assert_int_equal(pair.client.rpc.out.len, 0); /* sent is forgotten, without any ack */
    rpc_pair_cut(&pair);
    rpc_pair_events(&pair, &pair.client);
    assert_int_equal(seen.replies, 1);
    assert_int_equal(seen.status, MUSTER_ESESSION);
    assert_int_equal(mu_rpc_grace_deadline(&pair.server.rpc).ns, pair.now.mono.ns);
    /* What is called in between belongs to the life that comes. */
    seen.echo = true;
    (void)call(&pair);
    assert_int_equal(rpc_pair_link(&pair), 0);
    rpc_pair_pump(&pair);
    assert_int_equal(seen.welcomed, 2);
    assert_int_equal(seen.resumed, 0);
    assert_int_equal(seen.replies, 2);
    assert_int_equal(seen.status, 0);
}

static void test_rpc_server_names_the_end_of_the_grace(void **state)
{
    (void)state;
    assert_int_equal(mu_rpc_grace_deadline(&pair.server.rpc).ns, MU_MONO_NEVER.ns);
    rpc_pair_cut(&pair);
    assert_int_equal(mu_rpc_grace_deadline(&pair.server.rpc).ns,
                     mu_mono_add_ms(pair.now.mono, 10000).ns);
}

/* --- acknowledgement ------------------------------------------------ */

static void test_rpc_acknowledges_alone_when_it_has_nothing_to_say(void **state)
{
    uint64_t id;

    (void)state;
    seen.echo = false;
    id = call(&pair);
    rpc_pair_pump(&pair);
    for (int i = 0; i < 200; i++) {
        assert_int_equal(mu_rpc_item(&pair.server.rpc, pair.now, id, MU_SPAN_LIT("item")), 0);
        rpc_pair_pump(&pair);
        /* Never more than a frame over what the peer lets pass in silence. */
        assert_true(pair.server.rpc.out.len <= 66 * (MU_RPC_HEADER + 4));
    }
}

static void test_rpc_ping_carries_the_acknowledgement_of_the_last_frame(void **state)
{
    (void)state;
    (void)call(&pair);
    rpc_pair_pump(&pair);
    assert_true(pair.server.rpc.out.len != 0); /* the reply, which nobody has acknowledged */
    rpc_pair_tick(&pair, 5000);
    rpc_pair_pump(&pair);
    assert_int_equal(pair.server.rpc.out.len, 0);
    assert_int_equal(pair.client.rpc.out.len, 0);
}

/* --- keep-alive ------------------------------------------------------ */

static void test_rpc_idle_link_lives_by_its_beats(void **state)
{
    size_t bytes;

    (void)state;
    bytes = pair.delivered;
    for (int i = 0; i < 100; i++) {
        mu_mono_t at =
            mu_mono_min(mu_rpc_deadline(&pair.client.rpc), mu_rpc_deadline(&pair.server.rpc));

        assert_true(mu_mono_before(pair.now.mono, at));
        rpc_pair_tick(&pair, mu_mono_until_ms(at, pair.now.mono));
        rpc_pair_pump(&pair);
    }
    assert_int_equal(seen.dead_client + seen.dead_server, 0);
    /* Both PING at the same moment and both answer: at most four small frames a beat. */
    assert_true(pair.delivered - bytes <= 100 * 4 * 32);
}

static void test_rpc_silent_peer_is_dead_after_dead_ms_and_not_before(void **state)
{
    uint64_t began;

    (void)state;
    began = pair.now.mono.ns;
    while (seen.dead_client == 0) {
        mu_mono_t at = mu_rpc_deadline(&pair.client.rpc);

        assert_true(at.ns <= began + 15000 * MU_NS_PER_MS);
        pair.now.mono = at;
        assert_int_equal(mu_rpc_tick(&pair.client.rpc, pair.now), 0);
        rpc_pair_events(&pair, &pair.client);
    }
    assert_int_equal(pair.now.mono.ns, began + 15000 * MU_NS_PER_MS);
    /* Told once. */
    rpc_pair_ms(&pair, 5000);
    assert_int_equal(mu_rpc_tick(&pair.client.rpc, pair.now), 0);
    rpc_pair_events(&pair, &pair.client);
    assert_int_equal(seen.dead_client, 1);
}

static void test_rpc_unanswered_hello_is_a_dead_link(void **state)
{
    struct seen s = {0};
    struct rpc_pair p;

    (void)state;
    rpc_pair_init(&p, NULL, NULL);
    p.context = &s;
    p.on_event = note;
    assert_int_equal(rpc_pair_link(&p), 0);
    assert_int_equal(mu_rpc_deadline(&p.client.rpc).ns, mu_mono_add_ms(p.now.mono, 15000).ns);
    rpc_pair_tick(&p, 15000);
    assert_int_equal(s.dead_client, 1);
    rpc_pair_fini(&p);
}

/* The tilt rule: after a pause of our own the peer gets a full period again. */
static void test_rpc_pause_of_our_own_does_not_make_the_peer_dead(void **state)
{
    (void)state;
    rpc_pair_ms(&pair, 60000);
    assert_int_equal(mu_rpc_tick(&pair.client.rpc, pair.now), 0);
    rpc_pair_events(&pair, &pair.client);
    assert_int_equal(seen.dead_client, 0);
    /* The same when something else comes first after the pause. */
    rpc_pair_ms(&pair, 60000);
    (void)call(&pair);
    assert_int_equal(mu_rpc_tick(&pair.client.rpc, pair.now), 0);
    rpc_pair_events(&pair, &pair.client);
    assert_int_equal(seen.dead_client, 0);
    for (int i = 0; i < 3; i++) {
        rpc_pair_ms(&pair, 5000);
        assert_int_equal(mu_rpc_tick(&pair.client.rpc, pair.now), 0);
    }
    rpc_pair_events(&pair, &pair.client);
    assert_int_equal(seen.dead_client, 1);
}

static void test_rpc_wishes_down_to_the_shortest_beat_hold(void **state)
{
    struct mu_rpc_config client = mu_rpc_config_defaults();

    (void)state;
    client.beat_ms = 50;
    client.dead_ms = 130;
    client.grace_ms = 70;
    start_anew(&client, NULL);
    assert_int_equal(pair.server.rpc.beat_ms, 50);
    assert_int_equal(pair.server.rpc.dead_ms, 130);
    assert_int_equal(pair.server.rpc.grace_ms, 70);
    assert_int_equal(pair.client.rpc.beat_ms, 50);
    assert_int_equal(pair.client.rpc.dead_ms, 130);
    assert_int_equal(pair.client.rpc.grace_ms, 70);
}

static void test_rpc_end_of_stream_leaves_a_tiny_grace_and_a_reset_all_of_it(void **state)
{
    (void)state;
    mu_rpc_eof(&pair.server.rpc, pair.now, 25);
    assert_int_equal(mu_rpc_grace_deadline(&pair.server.rpc).ns,
                     mu_mono_add_ms(pair.now.mono, 25).ns);
    /* It came back all the same, and the next loss is judged by itself. */
    rpc_pair_cut(&pair);
    assert_int_equal(rpc_pair_link(&pair), 0);
    rpc_pair_pump(&pair);
    assert_int_equal(seen.resumed, 1);
    assert_int_equal(mu_rpc_grace_deadline(&pair.server.rpc).ns, MU_MONO_NEVER.ns);
    rpc_pair_cut(&pair);
    assert_int_equal(mu_rpc_grace_deadline(&pair.server.rpc).ns,
                     mu_mono_add_ms(pair.now.mono, 10000).ns);
}

static void test_rpc_end_of_stream_does_not_lengthen_a_shorter_grace(void **state)
{
    struct mu_rpc_config client = mu_rpc_config_defaults();

    (void)state;
    client.grace_ms = 10;
    start_anew(&client, NULL);
    mu_rpc_eof(&pair.server.rpc, pair.now, 25);
    assert_int_equal(mu_rpc_grace_deadline(&pair.server.rpc).ns,
                     mu_mono_add_ms(pair.now.mono, 10).ns);
}

/* The server's end waits for a peer that says nothing; true once that is found out. */
static bool wait_out_silence(struct rpc_pair *p, struct seen *s, uint64_t ms)
{
    for (uint64_t i = 0; i < ms && s->dead_server == 0; i++) {
        rpc_pair_ms(p, 1);
        assert_int_equal(mu_rpc_tick(&p->server.rpc, p->now), 0);
        rpc_pair_events(p, &p->server);
    }
    return s->dead_server != 0;
}

static void test_rpc_grace_of_a_silent_peer_counts_from_when_it_was_heard(void **state)
{
    struct mu_rpc_config client = mu_rpc_config_defaults();
    mu_mono_t heard;

    (void)state;
    client.beat_ms = 1000;
    client.dead_ms = 3000;
    client.grace_ms = 3000;
    start_anew(&client, NULL);
    heard = mu_rpc_last_heard(&pair.server.rpc);
    assert_true(wait_out_silence(&pair, &seen, 4000));
    assert_int_equal(pair.now.mono.ns, mu_mono_add_ms(heard, 3000).ns);
    mu_rpc_unlinked(&pair.server.rpc, pair.now);
    assert_true(mu_mono_reached(mu_rpc_grace_deadline(&pair.server.rpc), pair.now.mono));
}

/* What the server hears is its measure of us, and not what we hear. */
static void test_rpc_confirmed_is_when_that_was_said_which_was_answered(void **state)
{
    struct mu_rpc_config client = mu_rpc_config_defaults();
    mu_mono_t asked;

    (void)state;
    client.beat_ms = 1000;
    client.dead_ms = 3000;
    client.grace_ms = 2000;
    client.confirms = true;
    start_anew(&client, NULL);
    assert_int_equal(mu_rpc_kept_ms(&pair.client.rpc), 2000);
    /* A beat is asked for however much is said besides. */
    rpc_pair_ms(&pair, 999);
    (void)call(&pair);
    rpc_pair_pump(&pair);
    rpc_pair_ms(&pair, 1);
    asked = pair.now.mono;
    assert_int_equal(mu_rpc_tick(&pair.client.rpc, pair.now), 0);
    rpc_pair_pump(&pair);
    assert_int_equal(mu_rpc_confirmed(&pair.client.rpc).ns, asked.ns);
    assert_int_equal(mu_rpc_forsaken_at(&pair.server.rpc).ns, mu_mono_add_ms(asked, 2000).ns);
    /* One that is not answered says nothing, however much we hear. */
    rpc_pair_ms(&pair, 1000);
    assert_int_equal(mu_rpc_tick(&pair.client.rpc, pair.now), 0);
    assert_int_equal(mu_rpc_tick(&pair.server.rpc, pair.now), 0);
    (void)rpc_pair_send(&pair, &pair.server, &pair.client);
    (void)rpc_pair_receive(&pair, &pair.client);
    assert_int_equal(mu_rpc_last_heard(&pair.client.rpc).ns, pair.now.mono.ns);
    assert_int_equal(mu_rpc_confirmed(&pair.client.rpc).ns, asked.ns);
    /* A greeting that resumes is an answer; one that begins anew is none. */
    rpc_pair_cut(&pair);
    rpc_pair_ms(&pair, 100);
    asked = pair.now.mono;
    assert_int_equal(rpc_pair_link(&pair), 0);
    rpc_pair_pump(&pair);
    assert_int_equal(mu_rpc_confirmed(&pair.client.rpc).ns, asked.ns);
    rpc_pair_cut(&pair);
    rpc_pair_restart_server(&pair);
    rpc_pair_ms(&pair, 100);
    assert_int_equal(rpc_pair_link(&pair), 0);
    rpc_pair_pump(&pair);
    assert_true(mu_rpc_linked(&pair.client.rpc));
    assert_int_equal(mu_rpc_confirmed(&pair.client.rpc).ns, asked.ns);
}

/* Of a process that has ended, nothing is left to wait for. */
static void test_rpc_who_has_ended_is_forsaken_at_once(void **state)
{
    (void)state;
    assert_int_equal(mu_rpc_forsaken_at(&pair.server.rpc).ns,
                     mu_mono_add_ms(mu_rpc_last_heard(&pair.server.rpc), 10000).ns);
    mu_rpc_eof(&pair.server.rpc, pair.now, 25);
    assert_int_equal(mu_rpc_forsaken_at(&pair.server.rpc).ns, 0);
}

static void test_rpc_stall_of_a_beat_gives_everybody_a_whole_period(void **state)
{
    struct mu_rpc_config client = mu_rpc_config_defaults();
    mu_mono_t awake;

    (void)state;
    client.beat_ms = 1000;
    client.dead_ms = 3000;
    client.grace_ms = 500;
    start_anew(&client, NULL);
    assert_false(wait_out_silence(&pair, &seen, 1900));
    rpc_pair_ms(&pair, 1500); /* Our pause; the sum of both would be death. */
    awake = pair.now.mono;
    mu_rpc_stalled(&pair.server.rpc, pair.now, 1500 * MU_NS_PER_MS);
    assert_int_equal(mu_rpc_tick(&pair.server.rpc, pair.now), 0);
    rpc_pair_events(&pair, &pair.server);
    assert_int_equal(seen.dead_server, 0);
    assert_true(wait_out_silence(&pair, &seen, 4000));
    assert_int_equal(pair.now.mono.ns, mu_mono_add_ms(awake, 3000).ns);

    /* Likewise without a link. */
    rpc_pair_cut(&pair);
    assert_int_equal(rpc_pair_link(&pair), 0);
    rpc_pair_pump(&pair);
    rpc_pair_cut(&pair);
    rpc_pair_ms(&pair, 1500);
    mu_rpc_stalled(&pair.server.rpc, pair.now, 1400 * MU_NS_PER_MS);
    assert_int_equal(mu_rpc_grace_deadline(&pair.server.rpc).ns,
                     mu_mono_add_ms(pair.now.mono, 500).ns);
}

static void test_rpc_stall_below_a_beat_is_just_not_counted(void **state)
{
    struct mu_rpc_config client = mu_rpc_config_defaults();
    mu_mono_t heard;

    (void)state;
    client.beat_ms = 1000;
    client.dead_ms = 3000;
    start_anew(&client, NULL);
    heard = mu_rpc_last_heard(&pair.server.rpc);
    assert_false(wait_out_silence(&pair, &seen, 1000));
    rpc_pair_ms(&pair, 200);
    mu_rpc_stalled(&pair.server.rpc, pair.now, 200 * MU_NS_PER_MS);
    assert_true(wait_out_silence(&pair, &seen, 4000));
    assert_int_equal(pair.now.mono.ns, mu_mono_add_ms(heard, 3200).ns);
}

static void test_rpc_flood_of_pings_is_answered_in_bounded_memory(void **state)
{
    struct mu_rpc_header h = {.len = 8, .type = MU_RPC_PING};
    uint8_t ping[MU_RPC_HEADER + 8];
    struct mu_span out;

    (void)state;
    mu_rpc_header_encode(ping, &h);
    for (uint64_t i = 1; i <= 10000; i++) {
        size_t used;

        mu_put_u64(ping + MU_RPC_HEADER, i);
        assert_int_equal(
            mu_rpc_recv(&pair.server.rpc, pair.now, mu_span(ping, sizeof(ping)), &used), 0);
    }
    assert_true(mu_rpc_output(&pair.server.rpc).len < 128);
    /* The first was answered at once, the others with one answer, to the last. */
    mu_rpc_sent(&pair.server.rpc, mu_rpc_output(&pair.server.rpc).len);
    out = mu_rpc_output(&pair.server.rpc);
    assert_int_equal(out.len, sizeof(ping));
    assert_int_equal(out.data[4], MU_RPC_PONG);
    assert_int_equal(mu_get_u64(out.data + MU_RPC_HEADER), 10000);
}

/* A control frame goes between frames, never into one that was begun. */
static void test_rpc_control_frames_do_not_tear_a_frame_that_was_begun(void **state)
{
    static uint8_t big[50000];
    uint64_t id;

    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(mu_rpc_call(&pair.client.rpc, pair.now, MU_SPAN_LIT("m"),
                                     mu_span(big, sizeof(big)), 0, 0, &id),
                         0);
    }
    /* All frames at once, until something else has to be said. */
    assert_true(mu_rpc_output(&pair.client.rpc).len > 3 * sizeof(big));
    pair.send_chunk = 1000;
    (void)rpc_pair_send(&pair, &pair.client, &pair.server);
    rpc_pair_ms(&pair, 5000);
    assert_int_equal(mu_rpc_tick(&pair.client.rpc, pair.now), 0);
    assert_int_equal(mu_rpc_output(&pair.client.rpc).len,
                     MU_RPC_HEADER + MU_RPC_CALL_HEAD + 1 + sizeof(big) - 1000);
    rpc_pair_pump(&pair);
    assert_int_equal(seen.replies, 3);
    assert_int_equal(pair.server.error, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc_greet_tells_the_wire_by_its_first_bytes),
        cmocka_unit_test(test_rpc_greet_takes_nothing_behind_the_hello_however_it_is_split),
        cmocka_unit_test(test_rpc_greet_refuses_a_long_hello_before_it_is_there),
        cmocka_unit_test(test_rpc_refusal_reaches_the_client_with_its_reason),
        cmocka_unit_test_setup_teardown(test_rpc_server_keeps_the_wishes_within_bounds, set_up,
                                        tear_down),
        cmocka_unit_test(test_rpc_calls_made_before_the_first_link_are_sent_with_it),
        cmocka_unit_test_setup_teardown(test_rpc_resumes_after_a_cut_and_not_after_a_restart,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_orphans_of_a_lost_life_are_answered_into_nothing,
                                        set_up, tear_down),
        cmocka_unit_test(test_rpc_server_judges_which_life_a_hello_means),
        cmocka_unit_test_setup_teardown(
            test_rpc_without_grace_keeps_nothing_and_ends_calls_with_the_link, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_server_names_the_end_of_the_grace, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_acknowledges_alone_when_it_has_nothing_to_say,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_ping_carries_the_acknowledgement_of_the_last_frame,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_idle_link_lives_by_its_beats, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_silent_peer_is_dead_after_dead_ms_and_not_before,
                                        set_up, tear_down),
        cmocka_unit_test(test_rpc_unanswered_hello_is_a_dead_link),
        cmocka_unit_test_setup_teardown(test_rpc_pause_of_our_own_does_not_make_the_peer_dead,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_wishes_down_to_the_shortest_beat_hold, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(
            test_rpc_end_of_stream_leaves_a_tiny_grace_and_a_reset_all_of_it, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_end_of_stream_does_not_lengthen_a_shorter_grace,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            test_rpc_grace_of_a_silent_peer_counts_from_when_it_was_heard, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_confirmed_is_when_that_was_said_which_was_answered,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_who_has_ended_is_forsaken_at_once, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_stall_of_a_beat_gives_everybody_a_whole_period,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_stall_below_a_beat_is_just_not_counted, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_flood_of_pings_is_answered_in_bounded_memory,
                                        set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_rpc_control_frames_do_not_tear_a_frame_that_was_begun,
                                        set_up, tear_down),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

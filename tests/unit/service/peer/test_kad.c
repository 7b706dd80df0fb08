/* Finding peers of whom only the id is known: hosts in the simulator, and the messages. */
#include "service/peer/kad.h"

#include "codec/peer/kad_msg.h"
#include "hex.h"
#include "peer_rig.h"

#define NODES 12

struct kad_node {
    struct rig_node *node;
    struct mu_kad_config config;
    struct mu_kad *kad;
};

static void start_inside(void *arg)
{
    struct kad_node *k = arg;

    assert_int_equal(mu_kad_start(k->node->host, &k->config, &k->kad), 0);
}

static void stop_inside(void *arg)
{
    mu_kad_stop(((struct kad_node *)arg)->kad);
}

static void start_kad(struct kad_node *k, struct rig_node *node, bool client)
{
    k->node = node;
    k->config = mu_kad_config_defaults();
    k->config.client = client;
    mu_sim_call(node->proc, start_inside, k);
}

static void stop_kad(struct kad_node *k)
{
    mu_sim_call(k->node->proc, stop_inside, k);
}

static struct mu_kad_stats stats_of(const struct kad_node *k)
{
    struct mu_kad_stats stats;

    mu_kad_stats(k->kad, &stats);
    return stats;
}

/* `of` says hello to `who`, so that they know each other. */
static void meet(struct rig *r, struct rig_node *of, struct rig_node *who)
{
    struct rig_call call;

    rig_introduce(of, who);
    rig_call(of, who, &call, 1);
    rig_run(r, 2000);
    rig_assert_echoed(&call);
}

static void test_peer_is_found_through_one_that_knows_it(void **state)
{
    struct kad_node k[3];
    struct rig_call call;
    struct rig r;

    (void)state;
    rig_open(&r, 3, NULL);
    rig_run_all(&r);
    for (size_t i = 0; i < 3; i++) {
        start_kad(&k[i], &r.node[i], false);
    }
    meet(&r, &r.node[0], &r.node[2]);
    meet(&r, &r.node[1], &r.node[2]);
    /* a knows only the id of b. */
    rig_call(&r.node[0], &r.node[1], &call, 100000);
    rig_run(&r, 5000);
    rig_assert_echoed(&call);
    for (size_t i = 0; i < 3; i++) {
        stop_kad(&k[i]);
    }
    rig_close(&r);
}

static void test_peer_that_does_not_serve_is_found_too(void **state)
{
    struct kad_node k[3];
    struct rig_call call;
    struct rig r;

    (void)state;
    rig_open(&r, 3, NULL);
    rig_run_all(&r);
    start_kad(&k[0], &r.node[0], true);
    start_kad(&k[1], &r.node[1], true);
    start_kad(&k[2], &r.node[2], false);
    meet(&r, &r.node[0], &r.node[2]);
    meet(&r, &r.node[1], &r.node[2]);
    assert_int_equal(stats_of(&k[2]).table, 0);
    rig_call(&r.node[0], &r.node[1], &call, 1000);
    rig_run(&r, 5000);
    rig_assert_echoed(&call);
    assert_int_equal(stats_of(&k[0]).found, 1);
    for (size_t i = 0; i < 3; i++) {
        stop_kad(&k[i]);
    }
    rig_close(&r);
}

static void test_every_peer_of_a_chain_finds_every_other(void **state)
{
    struct kad_node k[NODES];
    struct rig_call call;
    struct rig r;

    (void)state;
    rig_open(&r, NODES, NULL);
    rig_run_all(&r);
    for (size_t i = 0; i < NODES; i++) {
        start_kad(&k[i], &r.node[i], false);
    }
    for (size_t i = 1; i < NODES; i++) {
        meet(&r, &r.node[i], &r.node[i - 1]);
    }
    for (size_t i = 0; i < NODES; i++) {
        for (size_t j = 0; j < NODES; j++) {
            if (i != j) {
                rig_call(&r.node[i], &r.node[j], &call, 10);
                rig_run(&r, 3000);
                rig_assert_echoed(&call);
            }
        }
    }
    for (size_t i = 0; i < NODES; i++) {
        stop_kad(&k[i]);
    }
    rig_close(&r);
}

static void test_peer_that_nobody_knows_is_not_found_and_that_is_said(void **state)
{
    struct kad_node k[2];
    struct rig_call call;
    struct rig r;

    (void)state;
    rig_open(&r, 3, NULL);
    rig_run_all(&r);
    start_kad(&k[0], &r.node[0], false);
    start_kad(&k[1], &r.node[1], false);
    meet(&r, &r.node[0], &r.node[1]);
    rig_call(&r.node[0], &r.node[2], &call, 10);
    rig_run(&r, 3000);
    assert_int_equal(call.ended, 1);
    assert_int_equal(call.status, MUSTER_ENOENT);
    assert_true(stats_of(&k[0]).searches >= 1);
    assert_int_equal(stats_of(&k[0]).found, 0);
    stop_kad(&k[0]);
    stop_kad(&k[1]);
    rig_close(&r);
}

static void test_search_goes_on_past_those_who_are_dead(void **state)
{
    struct kad_node k[5];
    struct rig_call call;
    struct rig r;

    (void)state;
    rig_open(&r, 5, NULL);
    rig_run_all(&r);
    for (size_t i = 0; i < 5; i++) {
        start_kad(&k[i], &r.node[i], false);
    }
    for (size_t i = 1; i < 4; i++) {
        meet(&r, &r.node[0], &r.node[i]);
    }
    meet(&r, &r.node[4], &r.node[3]);
    stop_kad(&k[1]);
    stop_kad(&k[2]);
    rig_stop_node(&r.node[1]);
    rig_stop_node(&r.node[2]);
    rig_run(&r, 1000);
    rig_call(&r.node[0], &r.node[4], &call, 10);
    rig_run(&r, 14000);
    rig_assert_echoed(&call);
    stop_kad(&k[0]);
    stop_kad(&k[3]);
    stop_kad(&k[4]);
    rig_close(&r);
}

static void test_stop_in_the_middle_of_a_search_leaves_nothing(void **state)
{
    struct kad_node k[3];
    struct rig_call call;
    struct rig r;

    (void)state;
    for (uint64_t ms = 0; ms < 8; ms++) {
        rig_open(&r, 3, NULL);
        rig_run_all(&r);
        for (size_t i = 0; i < 3; i++) {
            start_kad(&k[i], &r.node[i], false);
        }
        meet(&r, &r.node[0], &r.node[2]);
        meet(&r, &r.node[1], &r.node[2]);
        mu_peer_host_disconnect(r.node[0].host, &r.node[2].identity.id);
        rig_run(&r, 100);
        rig_call(&r.node[0], &r.node[1], &call, 10);
        rig_run(&r, ms);
        stop_kad(&k[0]);
        rig_run(&r, 20000);
        assert_int_equal(call.ended, 1);
        stop_kad(&k[1]);
        stop_kad(&k[2]);
        rig_close(&r);
    }
}

static void test_search_without_memory_ends_and_the_next_one_finds(void **state)
{
    struct kad_node k[3];
    struct rig_call call;
    struct rig r;
    bool more = true;

    (void)state;
    for (long nth = 0; more; nth++) {
        assert_in_range(nth, 0, 1000);
        rig_open(&r, 4, NULL);
        rig_run_all(&r);
        for (size_t i = 0; i < 3; i++) {
            start_kad(&k[i], &r.node[i], false);
        }
        meet(&r, &r.node[0], &r.node[2]);
        meet(&r, &r.node[1], &r.node[2]);
        rig_miss(nth);
        rig_call(&r.node[0], &r.node[3], &call, 10); /* which nobody knows */
        rig_run(&r, 16000);
        more = rig_missed();
        assert_int_equal(call.ended, 1);
        assert_int_not_equal(call.status, 0);
        mu_peer_host_disconnect(r.node[0].host, &r.node[2].identity.id);
        rig_run(&r, 100);
        meet(&r, &r.node[0], &r.node[2]); /* it may have been forgotten */
        rig_call(&r.node[0], &r.node[1], &call, 10);
        rig_run(&r, 16000);
        rig_assert_echoed(&call);
        for (size_t i = 0; i < 3; i++) {
            stop_kad(&k[i]);
        }
        rig_close(&r);
    }
}

/* One that answers whatever it is told to. */
struct liar {
    struct mu_peer_handler handler;
    struct mu_host_stream stream;
    struct mu_buf answer;
    size_t asked;
};

static void liar_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct liar *l = MU_CONTAINER_OF(s, struct liar, stream);

    mu_host_stream_consumed(s, bytes.len);
    if (l->asked++ == 0) {
        (void)mu_host_stream_write(s, mu_buf_span(&l->answer));
    }
}

static void liar_writable(struct mu_host_stream *s)
{
    (void)s;
}

static void liar_ended(struct mu_host_stream *s, int status, const char *text)
{
    (void)s;
    (void)status;
    (void)text;
}

static const struct mu_host_stream_events liar_events = {
    .data = liar_data, .eof = mu_host_stream_end, .writable = liar_writable, .ended = liar_ended};

static struct mu_host_stream *liar_opened(struct mu_peer_handler *handler,
                                          const struct mu_peer_id *peer, struct mu_span name)
{
    struct liar *l = MU_CONTAINER_OF(handler, struct liar, handler);

    (void)peer;
    (void)name;
    if (l->stream.state != MU_HOST_STREAM_NONE) {
        return NULL;
    }
    l->stream = (struct mu_host_stream){.on = &liar_events};
    return &l->stream;
}

static void liar_inside(void *arg)
{
    void **two = arg;

    assert_int_equal(
        mu_peer_host_serve(((struct rig_node *)two[0])->host, &((struct liar *)two[1])->handler),
        0);
}

static void test_answers_that_lie_cost_only_the_search(void **state)
{
    (void)state;
    for (int lie = 0; lie < 4; lie++) {
        struct liar l = {.handler = {.name = MU_KAD_NAME, .opened = liar_opened}};
        struct mu_kad_answer answer;
        struct kad_node k;
        struct rig_call call;
        struct mu_buf addr;
        struct mu_errmsg msg;
        struct rig r;

        rig_open(&r, 3, NULL);
        rig_run_all(&r);
        mu_buf_init(&l.answer, 1u << 20);
        mu_buf_init(&addr, 100);
        mu_kad_answer_init(&answer);
        assert_int_equal(mu_multiaddr_parse(&addr, "/dns4/b/tcp/4001", &msg), 0);
        if (lie == 0) { /* that the target is where the liar is */
            mu_kad_answer_peer(&answer, &r.node[2].identity.id);
            mu_kad_answer_addr(&answer, mu_buf_span(&addr));
            mu_kad_answer_peer_done(&answer, MU_KAD_CONNECTED);
        }
        for (int i = 0; lie == 1 && i < 400; i++) { /* many who do not exist */
            struct mu_identity who;
            uint8_t seed[MU_IDENTITY_SEED_LEN] = {(uint8_t)i, (uint8_t)(i >> 8), 9};

            assert_int_equal(mu_identity_from_seed(&who, seed), 0);
            mu_kad_answer_peer(&answer, &who.id);
            mu_kad_answer_addr(&answer, mu_buf_span(&addr));
            mu_kad_answer_peer_done(&answer, MU_KAD_CONNECTED);
            mu_identity_fini(&who);
        }
        if (lie == 2) {
            assert_int_equal(mu_buf_append(&l.answer, MU_SPAN_LIT("\xff\xff\xff\xff\x7f")), 0);
        } else if (lie == 3) {
            assert_int_equal(mu_buf_append(&l.answer, MU_SPAN_LIT("\x03\x08\x04\xff")), 0);
        } else {
            assert_int_equal(mu_kad_answer_seal(&answer, MU_KAD_FIND_NODE, &l.answer), 0);
        }
        mu_kad_answer_fini(&answer);
        mu_sim_call(r.node[1].proc, liar_inside, (void *[]){&r.node[1], &l});
        start_kad(&k, &r.node[0], false);
        meet(&r, &r.node[0], &r.node[1]);
        l.asked = 0;
        rig_call(&r.node[0], &r.node[2], &call, 10);
        rig_run(&r, 16000);
        assert_int_equal(call.ended, 1);
        assert_int_not_equal(call.status, 0);
        /* And the honest are reached as before. */
        rig_introduce(&r.node[0], &r.node[2]);
        rig_call(&r.node[0], &r.node[2], &call, 10);
        rig_run(&r, 16000);
        rig_assert_echoed(&call);
        assert_true(stats_of(&k).asked <= 64 * stats_of(&k).searches);
        stop_kad(&k);
        mu_buf_fini(&l.answer);
        mu_buf_fini(&addr);
        rig_close(&r);
    }
}

static void test_peer_that_takes_the_question_and_says_nothing_is_forgotten(void **state)
{
    struct liar l = {.handler = {.name = MU_KAD_NAME, .opened = liar_opened}};
    struct kad_node k;
    struct rig r;

    (void)state;
    rig_open(&r, 2, NULL);
    rig_run_all(&r);
    mu_buf_init(&l.answer, 0);
    mu_sim_call(r.node[1].proc, liar_inside, (void *[]){&r.node[1], &l});
    start_kad(&k, &r.node[0], false);
    meet(&r, &r.node[0], &r.node[1]); /* the first peer that we know is asked for ourselves */
    rig_run(&r, 7000);
    assert_int_equal(l.asked, 1);
    assert_int_equal(stats_of(&k).table, 1);
    rig_run(&r, 3000);
    assert_int_equal(stats_of(&k).asked, 1);
    assert_int_equal(stats_of(&k).answered, 0);
    assert_int_equal(stats_of(&k).table, 0);
    assert_int_equal(l.stream.state, MU_HOST_STREAM_NONE); /* its stream was reset */
    stop_kad(&k);
    mu_buf_fini(&l.answer);
    rig_close(&r);
}

/* --- those who ask and say nothing ------------------------------------------------------------ */

#define SILENT 10

/* Streams that a peer opens and leaves. */
struct silent {
    struct rig_node *from;
    const struct mu_peer_id *to;
    struct mu_span name;
    struct mu_host_stream streams[SILENT];
    bool over[SILENT];
};

static struct silent silent[RIG_NODES];

static void silent_data(struct mu_host_stream *s, struct mu_span in)
{
    (void)s;
    (void)in;
}

static void silent_ended(struct mu_host_stream *s, int status, const char *text)
{
    (void)status;
    (void)text;
    for (size_t n = 0; n < RIG_NODES; n++) {
        for (size_t i = 0; i < SILENT; i++) {
            silent[n].over[i] = silent[n].over[i] || s == &silent[n].streams[i];
        }
    }
}

static const struct mu_host_stream_events silent_events = {
    .ready = silent_data, .data = silent_data, .ended = silent_ended};

static void silent_inside(void *arg)
{
    struct silent *s = arg;

    for (size_t i = 0; i < SILENT; i++) {
        s->streams[i].on = &silent_events;
        mu_host_stream_open(s->from->host, &s->streams[i], s->to, &s->name, 1);
    }
}

/* Each of `count` peers opens streams to node 0 and asks nothing: how many of these are refused. */
static size_t count_refused(size_t count)
{
    struct kad_node k;
    size_t refused = 0;
    struct rig r;

    rig_open(&r, count + 1, NULL);
    rig_run_all(&r);
    start_kad(&k, &r.node[0], false);
    for (size_t n = 0; n < count; n++) {
        meet(&r, &r.node[n + 1], &r.node[0]);
        silent[n] = (struct silent){
            .from = &r.node[n + 1], .to = &r.node[0].identity.id, .name = MU_SPAN_LIT(MU_KAD_NAME)};
    }
    for (size_t n = 0; n < count; n++) {
        mu_sim_call(r.node[n + 1].proc, silent_inside, &silent[n]);
    }
    rig_run(&r, 1000);
    for (size_t n = 0; n < count; n++) {
        for (size_t i = 0; i < SILENT; i++) {
            refused += silent[n].over[i];
        }
    }
    stop_kad(&k);
    rig_close(&r);
    return refused;
}

/* Meets SERVING_PEER_MAX of service/peer/kad.c, and SERVING_MAX of service/peer/kad.c. */
static void test_peers_that_ask_nothing_have_so_many_streams(void **state)
{
    (void)state;
    assert_int_equal(count_refused(1), SILENT - 8);
    assert_int_equal(count_refused(33), 33 * SILENT - 256);
}

/* The vector: to find the peer whose seed is 32 times 02. */
static void test_message_is_as_others_write_it(void **state)
{
    static const char expected[] = "2a080412260024080112208139770ea87d175f56a35466c34c7ecccb8d8a91"
                                   "b4ee37a25df60f5b8fc9b394";
    uint8_t bytes[64];
    uint8_t seed[MU_IDENTITY_SEED_LEN];
    size_t len = hex_decode(bytes, sizeof(bytes), expected);
    struct mu_identity who;
    struct mu_kad_msg msg;
    struct mu_buf out;

    (void)state;
    memset(seed, 2, sizeof(seed));
    mu_buf_init(&out, 100);
    assert_int_equal(mu_identity_from_seed(&who, seed), 0);
    assert_int_equal(mu_kad_msg_encode(&out, MU_KAD_FIND_NODE, mu_peer_id_span(&who.id)), 0);
    assert_int_equal(out.len, len);
    assert_memory_equal(mu_buf_span(&out).data, bytes, len);
    assert_int_equal(mu_kad_msg_decode(mu_span_skip(mu_buf_span(&out), 1), &msg), 0);
    assert_int_equal(msg.type, MU_KAD_FIND_NODE);
    assert_true(mu_span_eq(msg.key, mu_peer_id_span(&who.id)));
    mu_identity_fini(&who);
    mu_buf_fini(&out);
}

/* --- limits ----------------------------------------------------------------------------------- */

/* Node 0 with these limits meets four others that serve. */
static void meet_four(struct rig *r, struct kad_node k[5], uint32_t table_max, uint32_t asked_max)
{
    rig_open(r, 6, NULL);
    rig_run_all(r);
    k[0] = (struct kad_node){.node = &r->node[0], .config = mu_kad_config_defaults()};
    k[0].config.table_max = table_max;
    k[0].config.asked_max = asked_max;
    mu_sim_call(r->node[0].proc, start_inside, &k[0]);
    for (size_t i = 1; i < 5; i++) {
        start_kad(&k[i], &r->node[i], false);
        meet(r, &r->node[0], &r->node[i]);
    }
}

/* How many are asked for a peer that nobody knows. */
static uint64_t ask_in_vain(struct rig *r, struct kad_node *k)
{
    struct mu_kad_stats before = stats_of(k);
    struct mu_kad_stats after;
    struct rig_call call;

    rig_call(&r->node[0], &r->node[5], &call, 10);
    rig_run(r, 5000);
    assert_int_equal(call.ended, 1);
    assert_int_equal(call.status, MUSTER_ENOENT);
    after = stats_of(k);
    assert_int_equal(after.searches - before.searches, 1);
    return after.asked - before.asked;
}

static void test_table_has_room_for_so_many(void **state)
{
    (void)state;
    for (uint32_t max = 3; max <= 5; max++) {
        struct kad_node k[5];
        struct rig r;

        meet_four(&r, k, max, 64);
        assert_int_equal(stats_of(&k[0]).table, max < 4 ? max : 4);
        for (size_t i = 0; i < 5; i++) {
            stop_kad(&k[i]);
        }
        rig_close(&r);
    }
}

static void test_search_asks_so_many_and_no_more(void **state)
{
    (void)state;
    for (uint32_t max = 3; max <= 5; max++) {
        struct kad_node k[5];
        struct rig r;

        meet_four(&r, k, 64, max);
        assert_int_equal(ask_in_vain(&r, &k[0]), max < 4 ? max : 4);
        for (size_t i = 0; i < 5; i++) {
            stop_kad(&k[i]);
        }
        rig_close(&r);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_message_is_as_others_write_it),
        cmocka_unit_test(test_peer_is_found_through_one_that_knows_it),
        cmocka_unit_test(test_peer_that_does_not_serve_is_found_too),
        cmocka_unit_test(test_every_peer_of_a_chain_finds_every_other),
        cmocka_unit_test(test_peer_that_nobody_knows_is_not_found_and_that_is_said),
        cmocka_unit_test(test_search_goes_on_past_those_who_are_dead),
        cmocka_unit_test(test_stop_in_the_middle_of_a_search_leaves_nothing),
        cmocka_unit_test(test_search_without_memory_ends_and_the_next_one_finds),
        cmocka_unit_test(test_answers_that_lie_cost_only_the_search),
        cmocka_unit_test(test_peer_that_takes_the_question_and_says_nothing_is_forgotten),
        cmocka_unit_test(test_peers_that_ask_nothing_have_so_many_streams),
        cmocka_unit_test(test_table_has_room_for_so_many),
        cmocka_unit_test(test_search_asks_so_many_and_no_more),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * Stragglers. Ranks of several nodes train in virtual time: each computes for as long as a story
 * says and waits until all have, and each node looks at its ranks as an agent does. The paces go
 * through their codec.
 */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "core/prng.h"
#include "failheap.h"
#include "proto/stacks/straggle.h"

#define RANKS_MOST 2048
#define NODES_MOST 256
#define MS         UINT64_C(1000000)
#define EVALUATES  UINT64_MAX

struct world;

/* What a rank does. */
struct story {
    uint32_t nodes;
    uint32_t local;
    uint64_t step_ms; /* for which a rank computes */
    uint64_t noise_ms;
    uint64_t comm_ms; /* for which all are in a collective */
    bool marks;
    /* How much longer a rank computes in the step that begins now. */
    uint64_t (*slow_ms)(const struct world *w, uint32_t rank);
};

struct world {
    const struct story *story;
    struct mu_pacer pacers[NODES_MOST];
    struct mu_straggle run;
    struct mu_prng prng;
    mu_mono_t now;
    mu_mono_t began; /* the step */
    mu_mono_t ends;
    mu_mono_t ready[RANKS_MOST];
    mu_mono_t look_at[NODES_MOST];
    uint64_t delay_ns[RANKS_MOST];
    uint64_t steps;
    uint64_t begin_ns;
    bool blind;              /* nobody can look */
    uint32_t unheard;        /* a node that is not heard from, plus one */
    uint32_t named, over;    /* how often */
    struct mu_straggler who; /* the last one */
};

static uint64_t seconds(const struct world *w)
{
    return (w->now.ns - w->begin_ns) / MU_NS_PER_S;
}

static uint32_t world_ranks(const struct world *w)
{
    return w->story->nodes * w->story->local;
}

static void next_step(struct world *w)
{
    uint64_t longest = 0;

    w->began = w->now;
    for (uint32_t r = 0; r < world_ranks(w); r++) {
        uint64_t ms = w->story->step_ms;

        if (w->story->noise_ms != 0) {
            ms += mu_prng_below(&w->prng, w->story->noise_ms);
        }
        if (w->story->slow_ms != NULL) {
            ms += w->story->slow_ms(w, r);
        }
        w->ready[r].ns = w->began.ns + ms * MS;
        longest = ms > longest ? ms : longest;
    }
    w->ends.ns = w->began.ns + (longest + w->story->comm_ms) * MS;
    w->steps++;
}

static void world_begin(struct world *w, const struct story *story, uint64_t seed)
{
    struct mu_pacer_config pacer;
    struct mu_straggle_config config;

    memset(w, 0, sizeof(*w));
    w->story = story;
    w->now.ns = w->begin_ns = 5000 * MU_NS_PER_S;
    mu_prng_seed(&w->prng, seed);
    mu_straggle_defaults(&config);
    config.nodes = story->nodes;
    config.world = world_ranks(w);
    assert_int_equal(mu_straggle_init(&w->run, &config), 0);
    for (uint32_t n = 0; n < story->nodes; n++) {
        mu_pacer_defaults(&pacer);
        pacer.workers = story->local;
        assert_int_equal(mu_pacer_init(&w->pacers[n], &pacer), 0);
        for (uint32_t i = 0; i < story->local; i++) {
            mu_pacer_start(&w->pacers[n], i, n * story->local + i);
        }
        w->look_at[n].ns = w->now.ns + mu_prng_below(&w->prng, MU_NS_PER_S);
    }
    next_step(w);
}

static void world_end(struct world *w)
{
    for (uint32_t n = 0; n < w->story->nodes; n++) {
        mu_pacer_fini(&w->pacers[n]);
    }
    mu_straggle_fini(&w->run);
}

static void look(struct world *w, uint32_t node)
{
    struct mu_pacer_look looks[RANKS_MOST];

    for (uint32_t i = 0; i < w->story->local; i++) {
        uint32_t rank = node * w->story->local + i;
        bool works = mu_mono_before(w->now, w->ready[rank]);

        looks[i] = (struct mu_pacer_look){
            .stance = w->blind ? MU_PACER_UNSEEN
                      : works  ? MU_PACER_WORKS
                               : MU_PACER_WAITS,
            .delay_ns = w->delay_ns[rank],
            .marks = w->story->marks ? w->steps : 0,
        };
    }
    mu_pacer_look(&w->pacers[node], w->now, looks);
    w->look_at[node].ns = w->now.ns + mu_pacer_gap_ns(&w->pacers[node]);
}

static void send_paces(struct world *w, uint32_t node, const struct mu_pace *paces)
{
    struct mu_paces got;
    struct mu_buf b;
    char name[16];

    (void)snprintf(name, sizeof(name), "node%u", node);
    mu_buf_init(&b, 128 << 10);
    assert_int_equal(
        mu_paces_encode(&b, w->pacers[node].span - 1, mu_span_str(name), paces, w->story->local),
        0);
    assert_int_equal(mu_paces_decode(mu_buf_span(&b), &got), 0);
    for (size_t i = 0; i < got.count && w->unheard != node + 1; i++) {
        struct mu_pace pace = mu_paces_at(&got, i);

        mu_straggle_add(&w->run, node, got.node, &pace);
    }
    mu_buf_fini(&b);
}

static void judge(struct world *w)
{
    struct mu_straggle_change change;

    mu_straggle_judge(&w->run);
    while (mu_straggle_next(&w->run, &change)) {
        w->named += change.word == MU_STRAGGLE_NAMED;
        w->over += change.word == MU_STRAGGLE_OVER;
        w->who = change.who;
    }
}

/* Lets time pass; every node's span is taken and judged each ten seconds. */
static void train(struct world *w, uint64_t for_s)
{
    uint64_t end = w->now.ns + for_s * MU_NS_PER_S;

    for (; w->now.ns < end; w->now.ns += 5 * MS) {
        if (w->now.ns % (10 * MU_NS_PER_S) == 0) {
            mu_straggle_begin(&w->run);
            for (uint32_t n = 0; n < w->story->nodes; n++) {
                struct mu_pace paces[RANKS_MOST];

                if (mu_pacer_take(&w->pacers[n], w->now, paces)) {
                    send_paces(w, n, paces);
                }
            }
            judge(w);
        }
        if (mu_mono_reached(w->ends, w->now)) {
            next_step(w);
        }
        for (uint32_t n = 0; n < w->story->nodes; n++) {
            if (mu_mono_reached(w->look_at[n], w->now)) {
                look(w, n);
            }
        }
    }
}

static void expect_nobody(const struct story *story, uint64_t for_s)
{
    static struct world w;

    for (uint64_t seed = 1; seed <= 30; seed++) {
        world_begin(&w, story, seed);
        train(&w, for_s);
        assert_int_equal(w.named, 0);
        assert_true(w.run.span > 10);
        world_end(&w);
    }
}

/* --- stories ---------------------------------------------------------------------------------- */

static uint64_t rank_5_is_slow(const struct world *w, uint32_t rank)
{
    (void)w;
    return rank == 5 ? 200 : 0;
}

static void test_slow_rank(void **state)
{
    static const struct story story = {.nodes = 2,
                                       .local = 4,
                                       .step_ms = 300,
                                       .noise_ms = 30,
                                       .comm_ms = 20,
                                       .slow_ms = rank_5_is_slow};
    static struct world w;

    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        world_begin(&w, &story, seed);
        train(&w, 170);
        assert_int_equal(w.named, 1);
        assert_int_equal(w.who.rank, 5);
        assert_int_equal(w.who.rank_count, 1);
        assert_string_equal(w.who.node, "node1");
        assert_in_range(w.who.kept_permille, 250, 600);
        assert_int_equal(w.over, 0);
        assert_true(mu_straggle_rank(&w.run, 5).known);
        assert_in_range(mu_straggle_rank(&w.run, 5).kept_permille, 250, 600);
        assert_in_range(mu_straggle_rank(&w.run, 4).kept_permille, 0, 200);
        assert_int_equal(mu_straggle_list(&w.run)->count, 1);
        world_end(&w);
    }
}

static void test_text(void **state)
{
    static const struct story story = {.nodes = 2,
                                       .local = 4,
                                       .step_ms = 500,
                                       .comm_ms = 1,
                                       .marks = true,
                                       .slow_ms = rank_5_is_slow};
    static struct world w;

    (void)state;
    world_begin(&w, &story, 1);
    for (int i = 0; i < 300 && w.named == 0; i++) {
        train(&w, 1);
        w.delay_ns[5] += 280 * MS;
    }
    assert_true(strncmp(w.who.text, "rank 5 on node1 keeps the others waiting: ", 42) == 0);
    assert_non_null(strstr(w.who.text, " % of the last "));
    assert_non_null(strstr(w.who.text, " s, in "));
    assert_non_null(strstr(w.who.text, " steps; it was the last in "));
    assert_non_null(strstr(w.who.text, " % of the time others had its CPU"));
    assert_in_range(w.who.delay_permille, 260, 300);
    world_end(&w);
}

static uint64_t node_1_is_slow(const struct world *w, uint32_t rank)
{
    return rank / w->story->local == 1 ? 200 : 0;
}

static void test_slow_node(void **state)
{
    static const struct story story = {.nodes = 2,
                                       .local = 4,
                                       .step_ms = 300,
                                       .noise_ms = 30,
                                       .comm_ms = 20,
                                       .slow_ms = node_1_is_slow};
    static struct world w;

    (void)state;
    for (uint64_t seed = 1; seed <= 20; seed++) {
        world_begin(&w, &story, seed);
        train(&w, 170);
        assert_int_equal(mu_straggle_list(&w.run)->count, 1);
        assert_int_equal(w.who.rank, 4);
        assert_int_equal(w.who.rank_count, 4);
        assert_string_equal(w.who.node, "node1");
        assert_int_equal(w.over, 0);
        world_end(&w);
    }
}

static uint64_t another_after_5_minutes(const struct world *w, uint32_t rank)
{
    return rank == (seconds(w) < 300 ? 2 : 6) ? 200 : 0;
}

static void test_slow_rank_that_changes(void **state)
{
    static const struct story story = {.nodes = 2,
                                       .local = 4,
                                       .step_ms = 300,
                                       .noise_ms = 30,
                                       .comm_ms = 20,
                                       .slow_ms = another_after_5_minutes};
    static struct world w;

    (void)state;
    world_begin(&w, &story, 1);
    train(&w, 290);
    assert_int_equal(w.named, 1);
    assert_int_equal(w.who.rank, 2);
    train(&w, 300);
    assert_int_equal(w.named, 2);
    assert_int_equal(w.over, 1);
    assert_int_equal(mu_straggle_list(&w.run)->count, 1);
    assert_int_equal(mu_straggle_list(&w.run)->list[0].rank, 6);
    world_end(&w);
}

static uint64_t slow_until_5_minutes(const struct world *w, uint32_t rank)
{
    return seconds(w) < 300 && rank == 5 ? 200 : 0;
}

static void test_over_is_said_once(void **state)
{
    static const struct story story = {.nodes = 2,
                                       .local = 4,
                                       .step_ms = 300,
                                       .noise_ms = 30,
                                       .comm_ms = 20,
                                       .slow_ms = slow_until_5_minutes};
    static struct world w;

    (void)state;
    world_begin(&w, &story, 1);
    train(&w, 300);
    assert_int_equal(w.named, 1);
    train(&w, 600);
    assert_int_equal(w.named, 1);
    assert_int_equal(w.over, 1);
    assert_string_equal(w.who.text, "rank 5 on node1 no longer keeps the others waiting");
    world_end(&w);
}

static uint64_t in_turns(const struct world *w, uint32_t rank)
{
    return rank == w->steps % world_ranks(w) ? 200 : 0;
}

static void test_slow_in_turns(void **state)
{
    static const struct story story = {
        .nodes = 2, .local = 4, .step_ms = 300, .comm_ms = 20, .slow_ms = in_turns};

    (void)state;
    expect_nobody(&story, 1200);
}

static void test_healthy(void **state)
{
    static const struct story even = {
        .nodes = 2, .local = 4, .step_ms = 300, .noise_ms = 60, .comm_ms = 50};
    static const struct story noisy = {
        .nodes = 4, .local = 8, .step_ms = 200, .noise_ms = 200, .comm_ms = 50};
    static const struct story in_step = {.nodes = 2, .local = 4, .step_ms = 500, .comm_ms = 500};
    static const struct story bound = {.nodes = 2, .local = 2, .step_ms = 50, .comm_ms = 900};

    (void)state;
    expect_nobody(&even, 1800);
    expect_nobody(&noisy, 1800);
    expect_nobody(&in_step, 1800);
    expect_nobody(&bound, 1800);
}

/* A pipeline of four stages with four replicas of each: one stage is slower by design. */
static uint64_t by_stage(const struct world *w, uint32_t rank)
{
    (void)w;
    return rank % 4 == 3 ? 150 : rank % 4 == 0 ? 50 : 0;
}

static void test_pipeline(void **state)
{
    static const struct story story = {
        .nodes = 4, .local = 4, .step_ms = 200, .comm_ms = 20, .slow_ms = by_stage};

    (void)state;
    expect_nobody(&story, 1200);
}

/* For a minute every ten minutes. */
static uint64_t rank_0_evaluates(const struct world *w, uint32_t rank)
{
    return rank == 0 && w->steps % 1500 == 1499 ? 60000 : 0;
}

static void test_a_long_wait_is_not_a_slow_rank(void **state)
{
    static const struct story story = {.nodes = 2,
                                       .local = 4,
                                       .step_ms = 300,
                                       .noise_ms = 30,
                                       .comm_ms = 50,
                                       .slow_ms = rank_0_evaluates};
    static const struct story marked = {.nodes = 2,
                                        .local = 4,
                                        .step_ms = 300,
                                        .noise_ms = 30,
                                        .comm_ms = 50,
                                        .marks = true,
                                        .slow_ms = rank_0_evaluates};

    (void)state;
    expect_nobody(&story, 3600);
    expect_nobody(&marked, 3600);
}

/* Rank 0 loads and broadcasts a model, and compiles longer than the others. */
static uint64_t rank_0_warms_up(const struct world *w, uint32_t rank)
{
    return w->steps == 1 ? (rank == 0 ? 90000 : 1000) : w->steps < 5 && rank == 0 ? 5000 : 0;
}

static void test_warm_up(void **state)
{
    static const struct story story = {.nodes = 2,
                                       .local = 4,
                                       .step_ms = 300,
                                       .noise_ms = 30,
                                       .comm_ms = 20,
                                       .slow_ms = rank_0_warms_up};

    (void)state;
    expect_nobody(&story, 600);
}

static void test_late_looks(void **state)
{
    static const struct story story = {.nodes = 2,
                                       .local = 4,
                                       .step_ms = 300,
                                       .noise_ms = 30,
                                       .comm_ms = 20,
                                       .slow_ms = rank_5_is_slow};
    static struct world w;
    struct mu_pace paces[8];

    (void)state;
    world_begin(&w, &story, 1);
    train(&w, 9);
    assert_true(w.pacers[0].workers[0].pace.looks > 5);
    w.now.ns += 5 * MU_NS_PER_S;
    look(&w, 0); /* this is 5 s late */
    assert_int_equal(w.pacers[0].workers[0].pace.looks, 0);
    assert_false(mu_pacer_take(&w.pacers[0], w.now, paces));
    w.now.ns += MU_NS_PER_S;
    look(&w, 0);
    assert_int_equal(w.pacers[0].workers[0].pace.looks, 1);
    assert_int_equal(w.pacers[0].workers[0].pace.turns, 0);
    world_end(&w);
}

static void test_starved_of_cpu(void **state)
{
    static const struct story story = {.nodes = 2,
                                       .local = 4,
                                       .step_ms = 300,
                                       .noise_ms = 30,
                                       .comm_ms = 20,
                                       .slow_ms = rank_5_is_slow};
    static struct world w;

    (void)state;
    world_begin(&w, &story, 1);
    for (int i = 0; i < 170; i++) {
        train(&w, 1);
        w.delay_ns[5] += 400 * MS;
    }
    assert_int_equal(w.named, 1);
    assert_int_equal(w.who.rank, 5);
    assert_in_range(w.who.delay_permille, 380, 420);
    assert_int_equal(mu_straggle_rank(&w.run, 4).delay_permille, 0);
    world_end(&w);
}

static void test_no_evidence(void **state)
{
    static const struct story story = {.nodes = 2,
                                       .local = 4,
                                       .step_ms = 300,
                                       .noise_ms = 30,
                                       .comm_ms = 20,
                                       .slow_ms = rank_5_is_slow};
    static struct world w;

    (void)state;
    world_begin(&w, &story, 1);
    w.blind = true;
    train(&w, 130);
    assert_int_equal(w.named, 0);
    assert_false(mu_straggle_rank(&w.run, 5).known);
    w.blind = false;
    w.unheard = 2; /* the node of the slow rank */
    train(&w, 400);
    assert_int_equal(w.named, 0);
    w.unheard = 0;
    train(&w, 400);
    assert_int_equal(w.named, 1);
    w.unheard = 2;
    train(&w, 400);
    assert_int_equal(w.over, 1); /* nobody knows of it any more */
    world_end(&w);
}

static uint64_t rank_777_is_slow(const struct world *w, uint32_t rank)
{
    (void)w;
    return rank == 777 ? 150 : 0;
}

/* Steps of 30 s, of which the others wait for 10. */
static uint64_t rank_5_is_slow_by_10_s(const struct world *w, uint32_t rank)
{
    (void)w;
    return rank == 5 ? 10000 : 0;
}

static void test_long_steps(void **state)
{
    static const struct story story = {.nodes = 2,
                                       .local = 4,
                                       .step_ms = 20000,
                                       .noise_ms = 1000,
                                       .comm_ms = 500,
                                       .slow_ms = rank_5_is_slow_by_10_s};
    static struct world w;

    (void)state;
    for (uint64_t seed = 1; seed <= 5; seed++) {
        world_begin(&w, &story, seed);
        train(&w, 1000);
        assert_int_equal(w.named, 1);
        assert_int_equal(w.who.rank, 5);
        world_end(&w);
    }
}

/* With many ranks some look late by chance, and only the right one is named. */
static void test_many_ranks(void **state)
{
    static const struct story story = {.nodes = 128,
                                       .local = 8,
                                       .step_ms = 300,
                                       .noise_ms = 50,
                                       .comm_ms = 20,
                                       .slow_ms = rank_777_is_slow};
    static struct world w;

    (void)state;
    world_begin(&w, &story, 1);
    train(&w, 600);
    assert_int_equal(w.named, 1);
    assert_int_equal(w.who.rank, 777);
    assert_string_equal(w.who.node, "node97");
    world_end(&w);
}

/* --- limits and errors ------------------------------------------------------------------------ */

static void test_configs(void **state)
{
    struct mu_pacer_config pacer;
    struct mu_straggle_config config;
    struct mu_pacer p;
    struct mu_straggle s;

    (void)state;
    mu_pacer_defaults(&pacer);
    pacer.workers = MU_PACES_MAX + 1;
    assert_int_equal(mu_pacer_init(&p, &pacer), MUSTER_EINVAL);
    pacer.workers = 0;
    assert_int_equal(mu_pacer_init(&p, &pacer), MUSTER_EINVAL);
    mu_straggle_defaults(&config);
    config.world = MU_STRAGGLE_RANKS_MAX + 1;
    assert_int_equal(mu_straggle_init(&s, &config), MUSTER_EINVAL);
    config.world = 4;
    config.nodes = 5;
    assert_int_equal(mu_straggle_init(&s, &config), MUSTER_EINVAL);
    config.nodes = 2;
    for (int i = 0; i < 6; i++) {
        failheap_arm(i);
        assert_int_equal(mu_straggle_init(&s, &config), MUSTER_ENOMEM);
        failheap_disarm();
    }
}

/* A run that makes fewer steps than that says nothing about its ranks. */
static void test_steps_min(void **state)
{
    static const struct story story = {.nodes = 2,
                                       .local = 4,
                                       .step_ms = 300,
                                       .comm_ms = 20,
                                       .marks = true,
                                       .slow_ms = rank_5_is_slow};
    static struct world w;

    (void)state;
    world_begin(&w, &story, 1);
    w.run.config.steps_min = 580; /* in five minutes it makes 577 */
    train(&w, 600);
    assert_int_equal(w.named, 0);
    w.run.config.steps_min = 100;
    train(&w, 10);
    assert_int_equal(w.named, 1);
    world_end(&w);
}

/* No more than MU_STRAGGLERS_MAX are named at a time, whatever the paces say. */
static void test_names_are_bounded(void **state)
{
    struct mu_straggle_config config;
    struct mu_straggle_change change;
    struct mu_straggle s;
    size_t named = 0;

    (void)state;
    mu_straggle_defaults(&config);
    config.world = 1024;
    config.nodes = 1024;
    assert_int_equal(mu_straggle_init(&s, &config), 0);
    for (int i = 0; i < 20; i++) {
        mu_straggle_begin(&s);
        for (uint32_t r = 0; r < 1024; r++) {
            struct mu_pace pace = {
                .rank = r, .looks = 20, .waits = r % 32 == 0 ? 0 : 10, .turns = 5};

            mu_straggle_add(&s, r, MU_SPAN_LIT("n"), &pace);
        }
        mu_straggle_judge(&s);
        while (mu_straggle_next(&s, &change)) {
            named++;
        }
    }
    assert_int_equal(mu_straggle_list(&s)->count, MU_STRAGGLERS_MAX);
    assert_int_equal(named, MU_STRAGGLERS_MAX);
    mu_straggle_fini(&s);
}

static void test_paces_codec(void **state)
{
    struct mu_pace pace = {.rank = 1, .looks = 10, .waits = 4, .turns = 2};
    struct mu_paces got;
    struct mu_buf b;
    char name[80];

    (void)state;
    memset(name, 'n', sizeof(name));
    mu_buf_init(&b, 1 << 20);
    assert_int_equal(mu_paces_encode(&b, 7, mu_span(name, sizeof(name)), &pace, 1), 0);
    assert_int_equal(mu_paces_decode(mu_buf_span(&b), &got), 0);
    assert_int_equal(got.span, 7);
    assert_int_equal(got.node.len, MU_PACE_NODE_MAX);
    assert_int_equal(mu_paces_at(&got, 0).waits, 4);
    for (size_t i = 0; i < b.len; i++) {
        assert_int_equal(mu_paces_decode(mu_span(b.data, i), &got), MUSTER_EPROTO);
    }
    mu_put_u32(b.data + 6, MU_PACES_MAX + 1);
    assert_int_equal(mu_paces_decode(mu_buf_span(&b), &got), MUSTER_ELIMIT);
    assert_int_equal(mu_paces_encode(&b, 7, MU_SPAN_LIT("n"), &pace, MU_PACES_MAX + 1),
                     MUSTER_ELIMIT);
    pace.waits = 11;
    mu_buf_reset(&b);
    assert_int_equal(mu_paces_encode(&b, 7, MU_SPAN_LIT("n"), &pace, 1), 0);
    assert_int_equal(mu_paces_decode(mu_buf_span(&b), &got), MUSTER_EPROTO);
    mu_buf_fini(&b);
}

static void test_stragglers_codec(void **state)
{
    static struct mu_stragglers list = {.typical_permille = 340, .count = MU_STRAGGLERS_MAX};
    static struct mu_stragglers got;
    struct mu_buf b;

    (void)state;
    for (uint32_t i = 0; i < MU_STRAGGLERS_MAX; i++) {
        list.list[i] = (struct mu_straggler){
            .rank = i, .rank_count = 1, .kept_permille = 340, .node = "node1"};
        memset(list.list[i].text, 't', MU_STRAGGLER_TEXT_MAX);
    }
    mu_buf_init(&b, 1 << 20);
    assert_int_equal(mu_stragglers_encode(&b, &list), 0);
    assert_int_equal(mu_stragglers_decode(mu_buf_span(&b), &got), 0);
    assert_memory_equal(&list, &got, sizeof(list));
    for (size_t i = 0; i < b.len; i++) {
        assert_int_equal(mu_stragglers_decode(mu_span(b.data, i), &got), MUSTER_EPROTO);
    }
    b.data[3]++;
    assert_int_equal(mu_stragglers_decode(mu_buf_span(&b), &got), MUSTER_ELIMIT);
    b.data[3]--;
    mu_put_u16(b.data + 4 + 12, MU_PACE_NODE_MAX + 1);
    assert_int_equal(mu_stragglers_decode(mu_buf_span(&b), &got), MUSTER_ELIMIT);
    list.count++;
    assert_int_equal(mu_stragglers_encode(&b, &list), MUSTER_ELIMIT);
    mu_buf_fini(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slow_rank),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_slow_node),
        cmocka_unit_test(test_slow_rank_that_changes),
        cmocka_unit_test(test_over_is_said_once),
        cmocka_unit_test(test_slow_in_turns),
        cmocka_unit_test(test_healthy),
        cmocka_unit_test(test_pipeline),
        cmocka_unit_test(test_a_long_wait_is_not_a_slow_rank),
        cmocka_unit_test(test_warm_up),
        cmocka_unit_test(test_late_looks),
        cmocka_unit_test(test_starved_of_cpu),
        cmocka_unit_test(test_no_evidence),
        cmocka_unit_test(test_long_steps),
        cmocka_unit_test(test_many_ranks),
        cmocka_unit_test(test_configs),
        cmocka_unit_test(test_steps_min),
        cmocka_unit_test(test_names_are_bounded),
        cmocka_unit_test(test_paces_codec),
        cmocka_unit_test(test_stragglers_codec),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Which kept version the workers of a round load. */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "failheap.h"
#include "proto/state/recall.h"

static struct mu_recall recall;

static struct mu_kept_head shard(uint64_t era, uint64_t step, uint32_t rank, uint32_t world)
{
    return (struct mu_kept_head){
        .version = {.era = era, .nonce = 7, .step = step}, .rank = rank, .world = world};
}

static struct mu_kept_head copy(uint64_t era, uint64_t step, uint32_t rank, uint32_t world)
{
    struct mu_kept_head head = shard(era, step, rank, world);

    head.replicated = true;
    return head;
}

static void take(uint32_t node, uint32_t workers, struct mu_kept_head *heads, size_t count)
{
    struct mu_kept_report report = {.workers = workers, .heads = heads, .head_count = count};

    assert_int_equal(mu_recall_take(&recall, node, &report), 0);
}

#define TAKE(node, workers, ...)                                                                   \
    take((node), (workers), (struct mu_kept_head[]){__VA_ARGS__},                                  \
         sizeof((struct mu_kept_head[]){__VA_ARGS__}) / sizeof(struct mu_kept_head))

static struct mu_kept_answer decide(void)
{
    struct mu_kept_answer answer;

    mu_recall_decide(&recall, 99, &answer);
    mu_recall_fini(&recall);
    assert_int_equal(answer.nonce, 99);
    return answer;
}

static void begin(uint32_t nodes)
{
    assert_int_equal(mu_recall_init(&recall, nodes), 0);
}

static void test_recall_nothing_kept(void **state)
{
    struct mu_kept_answer answer;

    (void)state;
    begin(2);
    take(0, 4, NULL, 0);
    take(1, 4, NULL, 0);
    answer = decide();
    assert_false(answer.found);
    assert_int_equal(answer.era, 1);
}

static void test_recall_newest_that_all_ranks_have(void **state)
{
    struct mu_kept_answer answer;

    (void)state;
    begin(2);
    TAKE(1, 2, shard(3, 10, 3, 4), shard(3, 20, 2, 4), shard(3, 20, 3, 4), shard(3, 10, 2, 4));
    TAKE(0, 2, shard(3, 30, 0, 4), shard(3, 20, 0, 4), shard(3, 20, 1, 4), shard(3, 30, 1, 4));
    answer = decide();
    assert_true(answer.found && !answer.replicated);
    assert_int_equal(answer.version.step, 20);
    assert_int_equal(answer.world, 4);
    assert_int_equal(answer.era, 4);
}

static void test_recall_later_attempt_is_newer(void **state)
{
    struct mu_kept_answer answer;

    (void)state;
    begin(1);
    TAKE(0, 1, shard(3, 100, 0, 1), shard(4, 96, 0, 1));
    answer = decide();
    assert_int_equal(answer.version.era, 4);
    assert_int_equal(answer.version.step, 96);
    assert_int_equal(answer.era, 5);
}

/* The same step of two attempts is not the same version. */
static void test_recall_does_not_mix_attempts(void **state)
{
    struct mu_kept_head other = shard(3, 20, 1, 2);

    (void)state;
    begin(2);
    TAKE(0, 1, shard(3, 20, 0, 2));
    TAKE(1, 1, shard(2, 20, 1, 2));
    assert_false(decide().found);
    other.version.nonce = 8;
    begin(2);
    TAKE(0, 1, shard(3, 20, 0, 2));
    take(1, 1, &other, 1);
    assert_false(decide().found);
}

/* A shard that is on another node than its rank is not there for that rank. */
static void test_recall_shards_are_where_their_ranks_are(void **state)
{
    (void)state;
    begin(2);
    TAKE(0, 1, shard(3, 20, 1, 2));
    TAKE(1, 1, shard(3, 20, 0, 2));
    assert_false(decide().found);
    /* Within a node they may have changed places, which is the agent's matter. */
    begin(1);
    TAKE(0, 2, shard(3, 20, 1, 2), shard(3, 20, 0, 2));
    assert_true(decide().found);
    /* A copy too many harms nobody. */
    begin(2);
    TAKE(0, 1, shard(3, 20, 0, 2), shard(3, 20, 1, 2), shard(3, 20, 0, 2));
    TAKE(1, 1, shard(3, 20, 0, 2), shard(3, 20, 1, 2));
    assert_true(decide().found);
}

static void test_recall_shards_fit_only_their_world(void **state)
{
    (void)state;
    begin(1);
    TAKE(0, 2, shard(3, 20, 0, 3), shard(3, 20, 1, 3));
    assert_false(decide().found);
    begin(1);
    TAKE(0, 3, shard(3, 20, 0, 2), shard(3, 20, 1, 2));
    assert_false(decide().found);
}

static void test_recall_any_copy_of_a_replicated_version_serves(void **state)
{
    struct mu_kept_answer answer;

    (void)state;
    begin(3);
    TAKE(0, 8, copy(3, 20, 16, 24));
    TAKE(1, 8, copy(3, 20, 0, 24), copy(3, 30, 0, 24));
    TAKE(2, 2, copy(3, 20, 8, 24));
    answer = decide();
    assert_true(answer.found && answer.replicated);
    assert_int_equal(answer.version.step, 20);
    begin(3);
    TAKE(0, 8, copy(3, 20, 16, 24));
    TAKE(1, 8, copy(3, 20, 0, 24));
    take(2, 8, NULL, 0);
    assert_false(decide().found);
}

/* Two kinds of one version are a mistake of the script: neither completes the other. */
static void test_recall_kinds_are_not_mixed(void **state)
{
    (void)state;
    begin(2);
    TAKE(0, 1, shard(3, 20, 0, 2));
    TAKE(1, 1, copy(3, 20, 1, 2));
    assert_false(decide().found);
}

static void test_recall_needs_all_reports(void **state)
{
    struct mu_kept_answer answer;

    (void)state;
    begin(2);
    assert_int_equal(mu_recall_missing(&recall), 2);
    TAKE(1, 1, copy(6, 20, 0, 2));
    assert_int_equal(mu_recall_missing(&recall), 1);
    answer = decide();
    assert_false(answer.found);
    assert_int_equal(answer.era, 7);
}

static void test_recall_era_has_an_end(void **state)
{
    struct mu_kept_answer answer;

    (void)state;
    begin(1);
    TAKE(0, 1, shard(UINT64_MAX, 20, 0, 1));
    answer = decide();
    assert_true(answer.found && answer.era == UINT64_MAX);
}

static void test_recall_has_limits(void **state)
{
    struct mu_kept_head head = shard(1, 2, 0, 1);
    struct mu_kept_report report = {.workers = 1, .heads = &head, .head_count = 1};

    (void)state;
    assert_int_equal(mu_recall_init(&recall, 0), MUSTER_ELIMIT);
    assert_int_equal(mu_recall_init(&recall, MU_RECALL_NODES_MAX + 1), MUSTER_ELIMIT);
    failheap_arm(0);
    assert_int_equal(mu_recall_init(&recall, 1), MUSTER_ENOMEM);
    failheap_disarm();
    begin(1);
    failheap_arm(0);
    assert_int_equal(mu_recall_take(&recall, 0, &report), MUSTER_ENOMEM);
    failheap_disarm();
    assert_int_equal(mu_recall_missing(&recall), 1);
    mu_recall_fini(&recall);
}

/* --- with copies ------------------------------------------------------------------------------ */

static void hold(uint32_t node, uint32_t copies, const char *topology, struct mu_kept_head *heads,
                 size_t count)
{
    struct mu_kept_holding h = {.copies = copies,
                                .addr = MU_SPAN_LIT("x:1"),
                                .topology = mu_span_str(topology),
                                .heads = heads,
                                .head_count = count};

    assert_int_equal(mu_recall_take_holding(&recall, node, &h), 0);
}

#define HOLD(node, ...)                                                                            \
    hold((node), 1, "", (struct mu_kept_head[]){__VA_ARGS__},                                      \
         sizeof((struct mu_kept_head[]){__VA_ARGS__}) / sizeof(struct mu_kept_head))

static struct mu_kept_plan plan(void)
{
    struct mu_kept_plan p;

    assert_int_equal(mu_recall_plan(&recall, 99, &p), 0);
    assert_int_equal(p.answer.nonce, 99);
    return p;
}

static void end(struct mu_kept_plan *p)
{
    mu_kept_plan_fini(p);
    mu_recall_fini(&recall);
}

/* Node 1 was lost and replaced. Its ranks' shards are on node 2. */
static void test_recall_plan_fetches_what_is_lost(void **state)
{
    struct mu_kept_plan p;

    (void)state;
    begin(3);
    TAKE(0, 2, shard(3, 20, 0, 6), shard(3, 20, 1, 6), shard(3, 30, 0, 6), shard(3, 30, 1, 6));
    take(1, 2, NULL, 0);
    TAKE(2, 2, shard(3, 20, 4, 6), shard(3, 20, 5, 6), shard(3, 30, 4, 6), shard(3, 30, 5, 6));
    HOLD(0, shard(3, 30, 4, 6), shard(3, 30, 5, 6));
    hold(1, 2, "", NULL, 0);
    HOLD(2, shard(3, 20, 2, 6), shard(3, 20, 3, 6), shard(3, 30, 2, 6));
    p = plan();
    assert_true(p.answer.found);
    assert_int_equal(p.answer.version.step, 20); /* of 30 a shard was still on its way */
    assert_int_equal(p.copies, 1);
    assert_int_equal(p.fetch_count, 2);
    assert_int_equal(p.fetches[0].rank, 2);
    assert_int_equal(p.fetches[0].node_count, 1);
    assert_int_equal(p.fetches[0].nodes[0], 2);
    assert_int_equal(p.fetches[1].rank, 3);
    mu_kept_plan_fini(&p);
    mu_recall_exclude(&recall, &(struct mu_kept_version){.era = 3, .nonce = 7, .step = 20});
    p = plan();
    assert_false(p.answer.found);
    assert_int_equal(p.fetch_count, 0);
    assert_int_equal(p.answer.era, 4);
    end(&p);
}

static void test_recall_plan_of_what_is_in_place(void **state)
{
    struct mu_kept_plan p;

    (void)state;
    begin(2);
    TAKE(0, 1, shard(3, 20, 0, 2));
    TAKE(1, 1, shard(3, 20, 1, 2));
    HOLD(0, shard(3, 20, 1, 2));
    HOLD(1, shard(3, 20, 0, 2));
    p = plan();
    assert_true(p.answer.found);
    assert_int_equal(p.fetch_count, 0);
    end(&p);
    /* Two nodes have changed places: each has the other's shard as a copy. */
    begin(2);
    TAKE(0, 1, shard(3, 20, 1, 2));
    TAKE(1, 1, shard(3, 20, 0, 2));
    HOLD(0, shard(3, 20, 0, 2));
    HOLD(1, shard(3, 20, 1, 2));
    p = plan();
    assert_true(p.answer.found);
    assert_int_equal(p.fetch_count, 0);
    end(&p);
    /* And without copies they fetch from each other. */
    begin(2);
    TAKE(0, 1, shard(3, 20, 1, 2));
    TAKE(1, 1, shard(3, 20, 0, 2));
    hold(0, 1, "", NULL, 0);
    hold(1, 1, "", NULL, 0);
    p = plan();
    assert_true(p.answer.found);
    assert_int_equal(p.fetch_count, 2);
    assert_int_equal(p.fetches[0].nodes[0], 1);
    assert_int_equal(p.fetches[1].nodes[0], 0);
    end(&p);
}

static void test_recall_plan_does_not_mix_attempts(void **state)
{
    struct mu_kept_head other = shard(3, 20, 1, 2);
    struct mu_kept_plan p;

    (void)state;
    other.version.nonce = 8;
    begin(2);
    TAKE(0, 1, shard(3, 20, 0, 2));
    take(1, 1, NULL, 0);
    HOLD(0, other, shard(2, 20, 1, 2));
    hold(1, 1, "", NULL, 0);
    p = plan();
    assert_false(p.answer.found);
    end(&p);
    /* Nor worlds. */
    begin(2);
    TAKE(0, 1, shard(3, 20, 0, 3));
    TAKE(1, 1, shard(3, 20, 1, 3));
    HOLD(0, shard(3, 20, 2, 3));
    hold(1, 1, "", NULL, 0);
    p = plan();
    assert_false(p.answer.found);
    end(&p);
}

static void test_recall_plan_of_a_replicated_version(void **state)
{
    struct mu_kept_plan p;

    (void)state;
    begin(4);
    take(0, 2, NULL, 0);
    TAKE(1, 2, copy(3, 20, 2, 8));
    take(2, 2, NULL, 0);
    TAKE(3, 2, copy(3, 20, 6, 8));
    for (uint32_t i = 0; i < 4; i++) {
        hold(i, 3, "", NULL, 0);
    }
    p = plan();
    assert_true(p.answer.found && p.answer.replicated);
    assert_int_equal(p.copies, 3);
    assert_int_equal(p.fetch_count, 2); /* one for each node */
    assert_int_equal(p.fetches[0].rank, 0);
    assert_int_equal(p.fetches[0].nodes[0], 1);
    assert_int_equal(p.fetches[1].rank, 4);
    assert_int_equal(p.fetches[1].nodes[0], 3);
    assert_int_equal(p.fetches[1].nodes[1], 1);
    end(&p);
}

static void test_recall_plan_names_keys(void **state)
{
    static const char *const racks[] = {"a", "a", "b", "", "a"};
    struct mu_kept_plan p;

    (void)state;
    begin(5);
    for (uint32_t i = 0; i < 5; i++) {
        take(i, 1, NULL, 0);
        hold(i, 1, racks[i], NULL, 0);
    }
    p = plan();
    assert_int_equal(p.part_count, 4);
    assert_int_equal(p.parts[0].nodes, 2);
    assert_int_equal(p.parts[3].key, p.parts[0].key);
    assert_int_not_equal(p.parts[1].key, p.parts[2].key);
    end(&p);
    /* With one key there is nothing to prefer. */
    begin(2);
    for (uint32_t i = 0; i < 2; i++) {
        take(i, 1, NULL, 0);
        hold(i, 1, "a", NULL, 0);
    }
    p = plan();
    assert_int_equal(p.part_count, 0);
    end(&p);
}

static void test_recall_plan_has_limits(void **state)
{
    struct mu_kept_plan p;
    char key[16];

    (void)state;
    /* MU_RECALL_KEYS_MAX */
    begin(MU_RECALL_KEYS_MAX + 2);
    for (uint32_t i = 0; i < MU_RECALL_KEYS_MAX + 2; i++) {
        (void)snprintf(key, sizeof(key), "%u", i);
        take(i, 1, NULL, 0);
        hold(i, 1, key, NULL, 0);
    }
    p = plan();
    assert_int_equal(p.part_count, 0);
    end(&p);
    /* MU_RECALL_RANKS_MAX: of more ranks, none fetches. */
    begin(257);
    for (uint32_t i = 0; i < 257; i++) {
        take(i, 4096, NULL, 0);
        HOLD(i, shard(3, 20, 0, 257 * 4096));
    }
    p = plan();
    assert_true((uint64_t)257 * 4096 > MU_RECALL_RANKS_MAX && !p.answer.found);
    end(&p);
    for (long i = 0; i < 3; i++) {
        begin(2);
        TAKE(0, 1, shard(3, 20, 0, 2));
        take(1, 1, NULL, 0);
        HOLD(0, shard(3, 20, 1, 2));
        hold(1, 1, "", NULL, 0);
        failheap_arm(i);
        assert_int_equal(mu_recall_plan(&recall, 1, &p), MUSTER_ENOMEM);
        failheap_disarm();
        mu_recall_fini(&recall);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recall_nothing_kept),
        cmocka_unit_test(test_recall_newest_that_all_ranks_have),
        cmocka_unit_test(test_recall_later_attempt_is_newer),
        cmocka_unit_test(test_recall_does_not_mix_attempts),
        cmocka_unit_test(test_recall_shards_are_where_their_ranks_are),
        cmocka_unit_test(test_recall_shards_fit_only_their_world),
        cmocka_unit_test(test_recall_any_copy_of_a_replicated_version_serves),
        cmocka_unit_test(test_recall_kinds_are_not_mixed),
        cmocka_unit_test(test_recall_needs_all_reports),
        cmocka_unit_test(test_recall_era_has_an_end),
        cmocka_unit_test(test_recall_has_limits),
        cmocka_unit_test(test_recall_plan_fetches_what_is_lost),
        cmocka_unit_test(test_recall_plan_of_what_is_in_place),
        cmocka_unit_test(test_recall_plan_does_not_mix_attempts),
        cmocka_unit_test(test_recall_plan_of_a_replicated_version),
        cmocka_unit_test(test_recall_plan_names_keys),
        cmocka_unit_test(test_recall_plan_has_limits),
    };

    return cmocka_run_group_tests_name("recall", tests, NULL, NULL);
}

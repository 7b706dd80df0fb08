/* What agents tell each other of copies of kept states. */
#include "unit.h"

#include <string.h>

#include "codec/state/kept_plan.h"
#include "core/alloc.h"
#include "failheap.h"

static struct mu_buf out;

static struct mu_kept_head example(uint32_t rank, uint64_t step)
{
    return (struct mu_kept_head){
        .version = {.era = 3, .nonce = 77, .step = step}, .rank = rank, .world = 4};
}

static void begin(void)
{
    mu_buf_init(&out, MU_KEPT_PLAN_BYTES_MAX);
}

/* Nothing that is cut short can be read, nor what has a byte too many. */
#define ASSERT_WHOLE_ONLY(decode, ret)                                                             \
    do {                                                                                           \
        for (size_t len = 0; len < out.len; len++) {                                               \
            assert_int_equal((decode)(mu_span(mu_buf_span(&out).data, len), (ret)),                \
                             MUSTER_EPROTO);                                                       \
        }                                                                                          \
        assert_int_equal(mu_buf_append(&out, MU_SPAN_LIT("x")), 0);                                \
        assert_int_equal((decode)(mu_buf_span(&out), (ret)), MUSTER_EPROTO);                       \
        out.len--;                                                                                 \
    } while (0)

static void test_holding_comes_back(void **state)
{
    struct mu_kept_head heads[2] = {example(2, 10), example(3, 20)};
    struct mu_kept_holding h = {.copies = 2,
                                .addr = MU_SPAN_LIT("10.0.0.1:4711"),
                                .topology = MU_SPAN_LIT("rack7"),
                                .heads = heads,
                                .head_count = 2};
    struct mu_kept_holding got;

    (void)state;
    begin();
    assert_int_equal(mu_kept_holding_encode(&h, &out), 0);
    ASSERT_WHOLE_ONLY(mu_kept_holding_decode, &got);
    assert_int_equal(mu_kept_holding_decode(mu_buf_span(&out), &got), 0);
    assert_int_equal(got.copies, 2);
    assert_true(mu_span_eq(got.addr, h.addr) && mu_span_eq(got.topology, h.topology));
    assert_int_equal(got.head_count, 2);
    assert_int_equal(got.heads[1].rank, 3);
    assert_int_equal(got.heads[1].version.step, 20);
    mu_free(got.heads);
    mu_buf_fini(&out);
}

static void test_holding_has_limits(void **state)
{
    struct mu_kept_head *heads = mu_calloc(MU_KEPT_HELD_MAX + 1, sizeof(*heads));
    char text[MU_KEPT_TEXT_MAX + 1] = {0};
    struct mu_kept_holding h = {.copies = MU_KEPT_COPIES_MAX,
                                .addr = mu_span(text, MU_KEPT_TEXT_MAX),
                                .topology = mu_span(text, MU_KEPT_TEXT_MAX),
                                .heads = heads,
                                .head_count = MU_KEPT_HELD_MAX};
    struct mu_kept_holding got;

    (void)state;
    for (size_t i = 0; i <= MU_KEPT_HELD_MAX; i++) {
        heads[i] = example(1, i);
    }
    begin();
    assert_int_equal(mu_kept_holding_encode(&h, &out), 0);
    assert_int_equal(out.len, MU_KEPT_HOLDING_BYTES_MAX);
    failheap_arm(0);
    assert_int_equal(mu_kept_holding_decode(mu_buf_span(&out), &got), MUSTER_ENOMEM);
    failheap_disarm();
    assert_int_equal(mu_kept_holding_decode(mu_buf_span(&out), &got), 0);
    mu_free(got.heads);
    h.head_count++;
    assert_int_equal(mu_kept_holding_encode(&h, &out), MUSTER_ELIMIT);
    h.head_count = 0;
    h.copies++;
    assert_int_equal(mu_kept_holding_encode(&h, &out), MUSTER_ELIMIT);
    h.copies = 1;
    h.addr = (struct mu_span){0};
    assert_int_equal(mu_kept_holding_encode(&h, &out), MUSTER_ELIMIT);
    mu_buf_fini(&out);
    mu_free(heads);
}

static struct mu_kept_answer found(void)
{
    return (struct mu_kept_answer){.era = 4,
                                   .nonce = 9,
                                   .found = true,
                                   .version = {.era = 3, .nonce = 77, .step = 20},
                                   .world = 4};
}

static void test_plan_comes_back(void **state)
{
    struct mu_kept_fetch fetches[2] = {
        {.rank = 1, .nodes = {2, 0, 3}, .node_count = MU_KEPT_SOURCES_MAX},
        {.rank = 3, .nodes = {0}, .node_count = 1}};
    struct mu_kept_part parts[2] = {{.nodes = 2, .key = 0}, {.nodes = 1, .key = 5}};
    struct mu_kept_plan plan = {.answer = found(),
                                .copies = 1,
                                .fetches = fetches,
                                .fetch_count = 2,
                                .parts = parts,
                                .part_count = 2};
    struct mu_kept_plan got;

    (void)state;
    begin();
    assert_int_equal(mu_kept_plan_encode(&plan, &out), 0);
    ASSERT_WHOLE_ONLY(mu_kept_plan_decode, &got);
    assert_int_equal(mu_kept_plan_decode(mu_buf_span(&out), &got), 0);
    assert_true(got.answer.found && got.answer.version.step == 20);
    assert_int_equal(got.copies, 1);
    assert_int_equal(got.fetch_count, 2);
    assert_int_equal(got.fetches[0].node_count, 3);
    assert_int_equal(got.fetches[0].nodes[2], 3);
    assert_int_equal(got.fetches[1].node_count, 1);
    assert_int_equal(got.part_count, 2);
    assert_int_equal(got.parts[1].key, 5);
    mu_kept_plan_fini(&got);
    for (long i = 0; i < 2; i++) {
        failheap_arm(i);
        assert_int_equal(mu_kept_plan_decode(mu_buf_span(&out), &got), MUSTER_ENOMEM);
        failheap_disarm();
    }
    mu_buf_fini(&out);
}

/* There is one way to write a plan, and none for what cannot be carried out. */
static void test_plan_that_cannot_be(void **state)
{
    static const struct mu_kept_fetch wrong[][2] = {
        {{.rank = 1, .nodes = {2}, .node_count = 1}, {.rank = 1, .nodes = {2}, .node_count = 1}},
        {{.rank = 2, .nodes = {2}, .node_count = 1}, {.rank = 1, .nodes = {2}, .node_count = 1}},
        {{.rank = 1, .nodes = {2, 2}, .node_count = 2}, {.rank = 2, .nodes = {2}, .node_count = 1}},
        {{.rank = 1, .node_count = 0}, {.rank = 2, .nodes = {2}, .node_count = 1}},
        {{.rank = 1, .nodes = {UINT32_MAX, 2}, .node_count = 2},
         {.rank = 2, .nodes = {2}, .node_count = 1}},
    };
    struct mu_kept_fetch fetches[2];
    struct mu_kept_plan plan = {.answer = found(), .fetches = fetches, .fetch_count = 2};
    struct mu_kept_plan got;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        memcpy(fetches, wrong[i], sizeof(fetches));
        begin();
        assert_int_equal(mu_kept_plan_encode(&plan, &out), 0);
        assert_int_equal(mu_kept_plan_decode(mu_buf_span(&out), &got), MUSTER_EPROTO);
        mu_buf_fini(&out);
    }
    plan.answer.found = false;
    plan.fetch_count = 1;
    begin();
    assert_int_equal(mu_kept_plan_encode(&plan, &out), 0);
    assert_int_equal(mu_kept_plan_decode(mu_buf_span(&out), &got), MUSTER_EPROTO);
    mu_buf_fini(&out);
}

static void test_plan_has_limits(void **state)
{
    struct mu_kept_fetch *fetches = mu_calloc(MU_KEPT_FETCHES_MAX + 1, sizeof(*fetches));
    struct mu_kept_part *parts = mu_calloc(MU_KEPT_PARTS_MAX + 1, sizeof(*parts));
    struct mu_kept_plan plan = {.answer = found(), .fetches = fetches, .parts = parts};
    struct mu_kept_plan got;

    (void)state;
    for (uint32_t i = 0; i <= MU_KEPT_FETCHES_MAX; i++) {
        fetches[i] = (struct mu_kept_fetch){.rank = i, .nodes = {1}, .node_count = 1};
        parts[i % (MU_KEPT_PARTS_MAX + 1)] = (struct mu_kept_part){.nodes = 1, .key = i};
    }
    plan.fetch_count = MU_KEPT_FETCHES_MAX;
    plan.part_count = MU_KEPT_PARTS_MAX;
    plan.copies = MU_KEPT_COPIES_MAX;
    begin();
    assert_int_equal(mu_kept_plan_encode(&plan, &out), 0);
    assert_int_equal(out.len, MU_KEPT_PLAN_BYTES_MAX);
    assert_int_equal(mu_kept_plan_decode(mu_buf_span(&out), &got), 0);
    mu_kept_plan_fini(&got);
    plan.copies++;
    assert_int_equal(mu_kept_plan_encode(&plan, &out), MUSTER_ELIMIT);
    plan.copies = 0;
    plan.fetch_count++;
    assert_int_equal(mu_kept_plan_encode(&plan, &out), MUSTER_ELIMIT);
    plan.fetch_count = 0;
    plan.part_count++;
    assert_int_equal(mu_kept_plan_encode(&plan, &out), MUSTER_ELIMIT);
    mu_buf_fini(&out);
    mu_free(fetches);
    mu_free(parts);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_holding_comes_back), cmocka_unit_test(test_holding_has_limits),
        cmocka_unit_test(test_plan_comes_back),    cmocka_unit_test(test_plan_that_cannot_be),
        cmocka_unit_test(test_plan_has_limits),
    };

    return cmocka_run_group_tests_name("kept_plan", tests, NULL, NULL);
}

/* What stands in a vault, and what agents and workers are told of it. */
#include "unit.h"

#include <string.h>

#include "codec/state/kept.h"
#include "core/alloc.h"
#include "failheap.h"

#define VAULT ((uint64_t)1 << 20)

static struct mu_kept_head example(uint64_t era, uint64_t step)
{
    return (struct mu_kept_head){.version = {.era = era, .nonce = 77, .step = step},
                                 .rank = 1,
                                 .world = 4,
                                 .bytes = VAULT - MU_KEPT_HEAD_BYTES};
}

static void test_kept_head_comes_back(void **state)
{
    struct mu_kept_head head = example(3, 400);
    struct mu_kept_head got;
    uint8_t bytes[MU_KEPT_HEAD_LEN];

    (void)state;
    for (int replicated = 0; replicated < 2; replicated++) {
        head.replicated = replicated != 0;
        mu_kept_head_encode(&head, bytes);
        assert_int_equal(mu_kept_head_decode(bytes, VAULT, &got), 0);
        assert_int_equal(mu_kept_version_cmp(&got.version, &head.version), 0);
        assert_int_equal(got.replicated, head.replicated);
        assert_int_equal(got.rank, 1);
        assert_int_equal(got.world, 4);
        assert_int_equal(got.bytes, head.bytes);
    }
}

/* The last word is written last: without it, and with any byte changed, nothing is there. */
static void test_kept_head_that_is_torn_is_none(void **state)
{
    struct mu_kept_head head = example(3, 400);
    struct mu_kept_head got;
    uint8_t bytes[MU_KEPT_HEAD_LEN] = {0};

    (void)state;
    assert_int_equal(mu_kept_head_decode(bytes, VAULT, &got), MUSTER_ENOENT);
    mu_kept_head_encode(&head, bytes);
    memset(bytes + MU_KEPT_HEAD_LEN - 8, 0, 8);
    assert_int_equal(mu_kept_head_decode(bytes, VAULT, &got), MUSTER_ENOENT);
    for (size_t i = 0; i < MU_KEPT_HEAD_LEN; i++) {
        mu_kept_head_encode(&head, bytes);
        bytes[i] ^= 0x10;
        assert_int_equal(mu_kept_head_decode(bytes, VAULT, &got), MUSTER_ENOENT);
    }
}

/* A worker may write a head with a right checksum that says what cannot be. */
static void test_kept_head_that_cannot_be_is_none(void **state)
{
    struct mu_kept_head got;
    struct mu_kept_head wrong[4] = {example(3, 1), example(3, 1), example(3, 1), example(3, 1)};
    uint8_t bytes[MU_KEPT_HEAD_LEN];

    (void)state;
    wrong[0].bytes++;
    wrong[1].bytes = UINT64_MAX;
    wrong[2].rank = 4;
    wrong[3].world = (uint32_t)INT32_MAX + 1; /* WORLD_MAX of codec/state/kept.c */
    for (size_t i = 0; i < 4; i++) {
        mu_kept_head_encode(&wrong[i], bytes);
        assert_int_equal(mu_kept_head_decode(bytes, VAULT, &got), MUSTER_ENOENT);
    }
    wrong[0] = example(3, 1);
    mu_kept_head_encode(&wrong[0], bytes);
    assert_int_equal(mu_kept_head_decode(bytes, MU_KEPT_HEAD_BYTES - 1, &got), MUSTER_ENOENT);
}

static void test_kept_newer_is_what_a_later_attempt_kept(void **state)
{
    struct mu_kept_version a = {.era = 2, .nonce = 5, .step = 9};
    struct mu_kept_version b = a;

    (void)state;
    assert_int_equal(mu_kept_version_cmp(&a, &b), 0);
    b.step = 10;
    assert_true(mu_kept_version_cmp(&a, &b) < 0);
    b = (struct mu_kept_version){.era = 3, .nonce = 1, .step = 2};
    assert_true(mu_kept_version_cmp(&a, &b) < 0);
    assert_true(mu_kept_version_cmp(&b, &a) > 0);
    b = (struct mu_kept_version){.era = 2, .nonce = 4, .step = 100};
    assert_true(mu_kept_version_cmp(&a, &b) > 0);
}

/* --- between agents --------------------------------------------------------------------------- */

static void test_kept_report_comes_back(void **state)
{
    struct mu_kept_head heads[3] = {example(1, 10), example(1, 11), example(2, 5)};
    struct mu_kept_report report = {.workers = 1, .heads = heads, .head_count = 3};
    struct mu_kept_report got;
    struct mu_buf out;

    (void)state;
    heads[1].replicated = true;
    mu_buf_init(&out, MU_KEPT_REPORT_BYTES_MAX);
    assert_int_equal(mu_kept_report_encode(&report, &out), 0);
    for (size_t len = 0; len < out.len; len++) {
        assert_int_equal(mu_kept_report_decode(mu_span(mu_buf_span(&out).data, len), &got),
                         MUSTER_EPROTO);
    }
    assert_int_equal(mu_kept_report_decode(mu_buf_span(&out), &got), 0);
    assert_int_equal(got.workers, 1);
    assert_int_equal(got.head_count, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(mu_kept_version_cmp(&got.heads[i].version, &heads[i].version), 0);
        assert_int_equal(got.heads[i].replicated, i == 1);
        assert_int_equal(got.heads[i].rank, 1);
    }
    mu_free(got.heads);
    mu_buf_fini(&out);
}

static void test_kept_report_has_limits(void **state)
{
    static struct mu_kept_head heads[MU_KEPT_HEADS_MAX + 1];
    struct mu_kept_report report = {.workers = MU_KEPT_WORKERS_MAX, .heads = heads};
    struct mu_kept_report got;
    struct mu_buf out;

    (void)state;
    for (size_t i = 0; i <= MU_KEPT_HEADS_MAX; i++) {
        heads[i] = example(1, i);
    }
    mu_buf_init(&out, MU_KEPT_REPORT_BYTES_MAX);
    report.head_count = MU_KEPT_HEADS_MAX + 1;
    assert_int_equal(mu_kept_report_encode(&report, &out), MUSTER_ELIMIT);
    report.head_count = MU_KEPT_HEADS_MAX;
    assert_int_equal(mu_kept_report_encode(&report, &out), 0);
    assert_int_equal(out.len, MU_KEPT_REPORT_BYTES_MAX);
    assert_int_equal(mu_kept_report_decode(mu_buf_span(&out), &got), 0);
    mu_free(got.heads);
    report.workers = MU_KEPT_WORKERS_MAX + 1;
    assert_int_equal(mu_kept_report_encode(&report, &out), MUSTER_ELIMIT);
    failheap_arm(0);
    assert_int_equal(mu_kept_report_decode(mu_buf_span(&out), &got), MUSTER_ENOMEM);
    failheap_disarm();
    mu_buf_fini(&out);
}

static void test_kept_answer_comes_back(void **state)
{
    struct mu_kept_answer answer = {.era = 4, .nonce = UINT64_MAX};
    struct mu_kept_answer got;
    uint8_t bytes[MU_KEPT_ANSWER_LEN + 1];

    (void)state;
    mu_kept_answer_encode(&answer, bytes);
    assert_int_equal(mu_kept_answer_decode(mu_span(bytes, MU_KEPT_ANSWER_LEN), &got), 0);
    assert_false(got.found);
    assert_int_equal(got.era, 4);
    answer.found = true;
    answer.version = example(3, 8).version;
    answer.world = 16;
    mu_kept_answer_encode(&answer, bytes);
    assert_int_equal(mu_kept_answer_decode(mu_span(bytes, MU_KEPT_ANSWER_LEN), &got), 0);
    assert_true(got.found && !got.replicated);
    assert_int_equal(got.version.step, 8);
    assert_int_equal(got.world, 16);
    assert_int_equal(mu_kept_answer_decode(mu_span(bytes, MU_KEPT_ANSWER_LEN + 1), &got),
                     MUSTER_EPROTO);
    answer.world = 0;
    mu_kept_answer_encode(&answer, bytes);
    assert_int_equal(mu_kept_answer_decode(mu_span(bytes, MU_KEPT_ANSWER_LEN), &got),
                     MUSTER_EPROTO);
}

/* --- to a worker ------------------------------------------------------------------------------ */

static void test_kept_terms_come_back(void **state)
{
    struct mu_kept_terms terms = {.fd = INT32_MAX,
                                  .bytes = INT64_MAX,
                                  .era = UINT64_MAX,
                                  .nonce = UINT64_MAX,
                                  .rank = INT32_MAX - 1,
                                  .world = INT32_MAX};
    struct mu_kept_terms got;
    char text[MU_KEPT_TERMS_LEN_MAX + 1];
    size_t len;

    (void)state;
    len = mu_kept_terms_encode(&terms, text);
    assert_int_equal(len, strlen(text));
    assert_int_equal(mu_kept_terms_decode(mu_span_str(text), &got), 0);
    assert_int_equal(got.fd, INT32_MAX);
    assert_false(got.found);
    terms.found = true;
    terms.replicated = true;
    terms.version = (struct mu_kept_version){UINT64_MAX, UINT64_MAX, UINT64_MAX};
    len = mu_kept_terms_encode(&terms, text);
    assert_int_equal(len, strlen(text));
    assert_int_equal(mu_kept_terms_decode(mu_span_str(text), &got), 0);
    assert_true(got.found && got.replicated);
    assert_true(got.version.step == UINT64_MAX && got.rank == INT32_MAX - 1);
}

static void test_kept_terms_refuse_anything_else(void **state)
{
    static const char *const wrong[] = {
        "",
        "1",
        "2,1000,65536,4,99,1,4",
        "1,1000,65536,4,99,4,4",
        "1,1000,65536,4,99,1,4,",
        "1,1000,65536,4,99,1,4,3",
        "1,1000,65536,4,99,1,4,3,77,400,2",
        "1,1000,65536,4,99,1,4,3,77,400,1,1",
        "1,1000,99999999999999999999,4,99,1,4",
        "1,-5,65536,4,99,1,4",
        "1,01000,65536,4,99,1,4",
        "1,1000 ,65536,4,99,1,4",
    };
    struct mu_kept_terms got;

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(mu_kept_terms_decode(mu_span_str(wrong[i]), &got), MUSTER_EPROTO);
    }
}

static void test_kept_oldest_leaves_what_may_be_loaded(void **state)
{
    struct mu_kept_terms terms = {.era = 5, .nonce = 77, .world = 4, .found = true};
    struct mu_kept_head heads[3] = {example(4, 95), example(4, 100), example(4, 90)};
    bool whole[3] = {true, true, true};

    (void)state;
    terms.version = heads[0].version;
    /* Of an attempt that is over, only what was loaded is of use, the newest of all or not. */
    assert_int_equal(mu_kept_oldest(heads, whole, &terms), 2);
    heads[2] = example(5, 96);
    assert_int_equal(mu_kept_oldest(heads, whole, &terms), 1);
    heads[1] = example(5, 97);
    assert_int_equal(mu_kept_oldest(heads, whole, &terms), 0);
    heads[0] = example(5, 98);
    assert_int_equal(mu_kept_oldest(heads, whole, &terms), 2);
    /* What is not whole comes first. */
    whole[1] = false;
    assert_int_equal(mu_kept_oldest(heads, whole, &terms), 1);
    /* If nothing was loaded, nothing of earlier attempts is of use. */
    whole[1] = true;
    heads[1] = example(4, 500);
    terms.found = false;
    assert_int_equal(mu_kept_oldest(heads, whole, &terms), 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kept_head_comes_back),
        cmocka_unit_test(test_kept_head_that_is_torn_is_none),
        cmocka_unit_test(test_kept_head_that_cannot_be_is_none),
        cmocka_unit_test(test_kept_newer_is_what_a_later_attempt_kept),
        cmocka_unit_test(test_kept_report_comes_back),
        cmocka_unit_test(test_kept_report_has_limits),
        cmocka_unit_test(test_kept_answer_comes_back),
        cmocka_unit_test(test_kept_terms_come_back),
        cmocka_unit_test(test_kept_terms_refuse_anything_else),
        cmocka_unit_test(test_kept_oldest_leaves_what_may_be_loaded),
    };

    return cmocka_run_group_tests_name("state_kept", tests, NULL, NULL);
}

/*
 * The checker checked: histories by hand that are linearizable and that are not, and random ones
 * against a search that tries every order.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "checkers/linear.h"
#include "core/prng.h"

static struct linear_history history;

static int set_up(void **state)
{
    (void)state;
    linear_init(&history);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    linear_fini(&history);
    return 0;
}

static uint32_t call(uint32_t client, enum linear_kind kind, int64_t number)
{
    return linear_invoke(&history,
                         &(struct linear_op){.kind = kind, .client = client, .number = number}, 0);
}

static uint32_t call_cas(uint32_t client, struct linear_value expected, int64_t desired)
{
    return linear_invoke(
        &history,
        &(struct linear_op){
            .kind = LINEAR_COMPARE_SET, .client = client, .number = desired, .expected = expected},
        0);
}

static void got(uint32_t op, int64_t number)
{
    linear_return(&history, op, &(struct linear_result){.value = {true, number}}, 0);
}

static void got_nothing(uint32_t op)
{
    linear_return(&history, op, &(struct linear_result){0}, 0);
}

static void said(uint32_t op, bool flag)
{
    linear_return(&history, op, &(struct linear_result){.flag = flag, .flag_known = true}, 0);
}

/* A whole operation, alone. */
static void do_set(uint32_t client, int64_t number)
{
    got_nothing(call(client, LINEAR_SET, number));
}

static void do_get(uint32_t client, int64_t number)
{
    got(call(client, LINEAR_GET, 0), number);
}

static void assert_verdict(enum linear_verdict expected)
{
    struct mu_errmsg msg = {0};
    enum linear_verdict verdict = linear_check(&history, &msg);

    if (verdict != expected) {
        linear_print(&history, 0, stderr);
        print_error("%s\n", msg.text);
    }
    assert_int_equal(verdict, expected);
}

/* --- accepted --------------------------------------------------------------------------------- */

static void test_linear_accepts_nothing_and_one_after_another(void **state)
{
    (void)state;
    assert_verdict(LINEAR_OK);

    got_nothing(call(1, LINEAR_GET, 0));
    do_set(1, 5);
    do_get(2, 5);
    got(call(1, LINEAR_ADD, 3), 8);
    got(call_cas(2, (struct linear_value){true, 8}, 1), 1);
    said(call(1, LINEAR_CHECK, 0), true);
    said(call(1, LINEAR_DELETE, 0), true);
    said(call(1, LINEAR_DELETE, 0), false);
    said(call(1, LINEAR_CHECK, 0), false);
    got(call(1, LINEAR_ADD, -2), -2);

    assert_verdict(LINEAR_OK);
}

static void test_linear_lets_a_read_see_either_side_of_a_write_in_flight(void **state)
{
    uint32_t set;

    (void)state;
    do_set(1, 1);
    set = call(1, LINEAR_SET, 2);
    do_get(2, 1);
    do_get(2, 1);
    do_get(3, 2);
    do_get(2, 2);
    got_nothing(set);

    assert_verdict(LINEAR_OK);
}

static void test_linear_orders_concurrent_adds_by_their_sums(void **state)
{
    uint32_t a = call(1, LINEAR_ADD, 1);
    uint32_t b = call(2, LINEAR_ADD, 1);
    uint32_t c = call(3, LINEAR_ADD, 1);

    (void)state;
    got(a, 3);
    got(b, 1);
    got(c, 2);

    assert_verdict(LINEAR_OK);
}

static void test_linear_lets_an_unknown_write_act_late_or_never(void **state)
{
    (void)state;
    do_set(1, 1);
    (void)call(2, LINEAR_SET, 2);
    do_get(1, 1);
    do_get(1, 1);
    assert_verdict(LINEAR_OK);

    do_get(1, 2);
    do_set(1, 3);
    do_get(3, 3);
    assert_verdict(LINEAR_OK);
}

static void test_linear_knows_compare_set_as_pytorch_answers_it(void **state)
{
    const struct linear_value none = {0};

    (void)state;
    /* Absent, and something was expected: the answer is what was expected. Nothing is written. */
    linear_return(&history, call_cas(1, (struct linear_value){true, 7}, 9),
                  &(struct linear_result){.value = {true, 7}, .flag = false, .flag_known = true},
                  0);
    got_nothing(call(1, LINEAR_GET, 0));
    got(call_cas(1, none, 4), 4);
    got(call_cas(2, none, 5), 4);
    do_get(1, 4);

    assert_verdict(LINEAR_OK);
}

static void test_linear_forgets_what_certainly_did_nothing(void **state)
{
    (void)state;
    do_set(1, 1);
    linear_drop(&history, call(2, LINEAR_SET, 2));
    do_get(1, 1);
    assert_verdict(LINEAR_OK);

    do_get(1, 2);
    assert_verdict(LINEAR_VIOLATION);
}

static void test_linear_checks_keys_apart(void **state)
{
    uint32_t op;

    (void)state;
    do_set(1, 1);
    op = linear_invoke(&history, &(struct linear_op){.kind = LINEAR_GET, .key = 1}, 0);
    got_nothing(op);
    assert_verdict(LINEAR_OK);

    op = linear_invoke(&history, &(struct linear_op){.kind = LINEAR_GET, .key = 1}, 0);
    got(op, 1);
    assert_verdict(LINEAR_VIOLATION);
}

/* --- rejected --------------------------------------------------------------------------------- */

static void test_linear_rejects_a_stale_read(void **state)
{
    (void)state;
    do_set(1, 1);
    do_set(1, 2);
    do_get(2, 1);

    assert_verdict(LINEAR_VIOLATION);
}

static void test_linear_rejects_reads_that_go_back(void **state)
{
    uint32_t set;

    (void)state;
    do_set(1, 1);
    set = call(1, LINEAR_SET, 2);
    do_get(2, 2);
    do_get(3, 1);
    got_nothing(set);

    assert_verdict(LINEAR_VIOLATION);
}

static void test_linear_rejects_a_lost_update(void **state)
{
    uint32_t a;
    uint32_t b;

    (void)state;
    a = call(1, LINEAR_ADD, 1);
    b = call(2, LINEAR_ADD, 1);
    got(a, 1);
    got(b, 1);

    assert_verdict(LINEAR_VIOLATION);
}

static void test_linear_rejects_an_acknowledged_write_that_is_gone(void **state)
{
    (void)state;
    do_set(1, 1);
    got_nothing(call(2, LINEAR_GET, 0));

    assert_verdict(LINEAR_VIOLATION);
}

static void test_linear_rejects_an_add_that_was_applied_twice(void **state)
{
    (void)state;
    got(call(1, LINEAR_ADD, 1), 1);
    (void)call(2, LINEAR_ADD, 1); /* unknown: once or not at all */
    do_get(1, 2);
    assert_verdict(LINEAR_OK);

    do_get(1, 3);
    assert_verdict(LINEAR_VIOLATION);
}

static void test_linear_rejects_two_winners_of_one_compare_set(void **state)
{
    const struct linear_value none = {0};
    uint32_t a = call_cas(1, none, 1);
    uint32_t b = call_cas(2, none, 2);

    (void)state;
    got(a, 1);
    got(b, 2);

    assert_verdict(LINEAR_VIOLATION);
}

static void test_linear_rejects_a_write_seen_before_it_was_made(void **state)
{
    (void)state;
    do_get(1, 2);
    (void)call(2, LINEAR_SET, 2);

    assert_verdict(LINEAR_VIOLATION);
}

static void test_linear_rejects_a_wait_that_ends_without_its_key(void **state)
{
    uint32_t wait = call(1, LINEAR_WAIT, 0);

    (void)state;
    do_set(2, 1);
    said(call(2, LINEAR_DELETE, 0), true);
    got_nothing(wait);
    assert_verdict(LINEAR_OK); /* it came and went meanwhile */

    got_nothing(call(1, LINEAR_WAIT, 0));
    assert_verdict(LINEAR_VIOLATION);
}

/* --- random ----------------------------------------------------------------------------------- */

#define SMALL 6u

/* A model apart from the checker's: what `op` answers on `state`, written into its result. */
static struct linear_result execute(const struct linear_op *op, struct linear_value *state)
{
    struct linear_result r = {.flag_known = true};

    switch (op->kind) {
    case LINEAR_GET:
        r.value = *state;
        break;
    case LINEAR_SET:
        *state = (struct linear_value){true, op->number};
        break;
    case LINEAR_ADD:
        *state = (struct linear_value){true, (state->present ? state->number : 0) + op->number};
        r.value = *state;
        break;
    case LINEAR_COMPARE_SET:
        if (state->present == op->expected.present &&
            (!state->present || state->number == op->expected.number)) {
            *state = (struct linear_value){true, op->number};
            r.flag = true;
        }
        r.value = state->present ? *state : op->expected;
        break;
    case LINEAR_DELETE:
        r.flag = state->present;
        *state = (struct linear_value){0};
        break;
    case LINEAR_CHECK:
    case LINEAR_WAIT:
        r.flag = state->present;
        break;
    }
    return r;
}

static bool equal(const struct linear_result *a, const struct linear_result *b)
{
    return a->flag == b->flag && a->value.present == b->value.present &&
           (!a->value.present || a->value.number == b->value.number);
}

/* Tries every order of every choice of unknown operations; `order` is filled from the front. */
static bool try_all(uint32_t used, struct linear_value state)
{
    bool complete = true;

    for (uint32_t i = 0; i < history.count; i++) {
        complete = complete && ((used >> i & 1) != 0 || history.ops[i].returned == 0);
    }
    if (complete) {
        return true;
    }
    for (uint32_t i = 0; i < history.count; i++) {
        const struct linear_op *op = &history.ops[i];
        struct linear_value next = state;
        struct linear_result r;
        bool may = (used >> i & 1) == 0;

        /* Nobody whose answer came before this call may be left behind. */
        for (uint32_t j = 0; j < history.count; j++) {
            may = may && ((used >> j & 1) != 0 || j == i || history.ops[j].returned == 0 ||
                          history.ops[j].returned > op->invoked);
        }
        if (!may) {
            continue;
        }
        r = execute(op, &next);
        if ((op->returned == 0 || equal(&r, &op->result)) && try_all(used | 1u << i, next)) {
            return true;
        }
    }
    return false;
}

/* A history of a real register with calls in flight, answers sometimes lost or falsified. */
static void make_history(struct mu_prng *prng)
{
    static const enum linear_kind kinds[] = {LINEAR_GET,         LINEAR_SET,    LINEAR_ADD,
                                             LINEAR_COMPARE_SET, LINEAR_DELETE, LINEAR_CHECK};
    struct linear_value state = {0};
    struct linear_result results[SMALL];
    bool executed[SMALL] = {0};
    bool answered[SMALL] = {0};

    for (uint32_t turn = 0; turn < 6 * SMALL; turn++) {
        uint32_t i = (uint32_t)mu_prng_below(prng, SMALL);

        if (i >= history.count && history.count < SMALL) {
            struct linear_op op = {.kind = kinds[mu_prng_below(prng, 6)],
                                   .client = (uint32_t)history.count,
                                   .number = (int64_t)mu_prng_below(prng, 3)};

            op.expected.present = mu_prng_below(prng, 2) == 0;
            op.expected.number = op.expected.present ? (int64_t)mu_prng_below(prng, 3) : 0;
            (void)linear_invoke(&history, &op, 0);
        } else if (i < history.count && !executed[i]) {
            executed[i] = true;
            results[i] = execute(&history.ops[i], &state);
            if (mu_prng_below(prng, 12) == 0) {
                results[i].value.number++;
                results[i].flag = !results[i].flag;
            }
        } else if (i < history.count && !answered[i] && mu_prng_below(prng, 5) != 0) {
            answered[i] = true;
            linear_return(&history, i, &results[i], 0);
        }
    }
}

static void test_linear_agrees_with_trying_every_order(void **state)
{
    struct mu_prng prng;
    size_t verdicts[2] = {0, 0};

    (void)state;
    mu_prng_seed(&prng, 1);
    for (int round = 0; round < 20000; round++) {
        struct mu_errmsg msg;
        bool fine;

        linear_fini(&history);
        make_history(&prng);
        /* What the checker does not look at, the slow way must not either. */
        for (size_t i = 0; i < history.count; i++) {
            struct linear_op *op = &history.ops[i];

            if (op->kind == LINEAR_SET) {
                op->result = (struct linear_result){.flag_known = true};
            } else if (op->kind == LINEAR_ADD) {
                op->result.flag = false;
                op->result.value.present = true;
            } else if (op->kind == LINEAR_GET) {
                op->result.flag = false;
            } else if (op->kind == LINEAR_CHECK || op->kind == LINEAR_DELETE) {
                op->result.value = (struct linear_value){0};
            }
        }
        fine = try_all(0, (struct linear_value){0});
        verdicts[fine ? 0 : 1]++;
        if ((linear_check(&history, &msg) == LINEAR_OK) != fine) {
            linear_print(&history, 0, stderr);
            fail_msg("round %d: the slow way says %s", round, fine ? "fine" : "violated");
        }
    }
    assert_true(verdicts[0] > 1000 && verdicts[1] > 1000);
}

static void test_linear_is_quick_with_sixty_operations_and_many_unknown(void **state)
{
    struct mu_prng prng;
    struct linear_value value = {0};

    (void)state;
    mu_prng_seed(&prng, 7);
    for (int i = 0; i < 60; i++) {
        uint32_t op = call((uint32_t)i % 5, i % 3 == 0 ? LINEAR_ADD : LINEAR_SET, i);
        struct linear_result r = execute(&history.ops[op], &value);

        if (i % 7 != 0) {
            linear_return(&history, op, &r, 0);
        }
        do_get(9, value.number);
    }

    assert_verdict(LINEAR_OK);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(test_linear_accepts_nothing_and_one_after_another),
        CASE(test_linear_lets_a_read_see_either_side_of_a_write_in_flight),
        CASE(test_linear_orders_concurrent_adds_by_their_sums),
        CASE(test_linear_lets_an_unknown_write_act_late_or_never),
        CASE(test_linear_knows_compare_set_as_pytorch_answers_it),
        CASE(test_linear_forgets_what_certainly_did_nothing),
        CASE(test_linear_checks_keys_apart),
        CASE(test_linear_rejects_a_stale_read),
        CASE(test_linear_rejects_reads_that_go_back),
        CASE(test_linear_rejects_a_lost_update),
        CASE(test_linear_rejects_an_acknowledged_write_that_is_gone),
        CASE(test_linear_rejects_an_add_that_was_applied_twice),
        CASE(test_linear_rejects_two_winners_of_one_compare_set),
        CASE(test_linear_rejects_a_write_seen_before_it_was_made),
        CASE(test_linear_rejects_a_wait_that_ends_without_its_key),
        CASE(test_linear_agrees_with_trying_every_order),
        CASE(test_linear_is_quick_with_sixty_operations_and_many_unknown),
    };

    return cmocka_run_group_tests_name("linear", tests, NULL, NULL);
}

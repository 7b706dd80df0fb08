/*
 * The checkers of appends, queues, watches and rounds: small histories by hand, those that must
 * pass and those that must not. Times are ticks.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "checkers/append.h"
#include "checkers/queue.h"
#include "checkers/rounds.h"
#include "checkers/watch.h"

static struct mu_errmsg msg;

static void assert_fault(int err, const char *words)
{
    assert_int_equal(err, MUSTER_ECORRUPT);
    if (strstr(msg.text, words) == NULL) {
        fail_msg("\"%s\" does not say \"%s\"", msg.text, words);
    }
}

/* --- append ----------------------------------------------------------------------------------- */

static struct append_log log_;

static void appends(int64_t token, uint64_t from, uint64_t to, size_t number)
{
    size_t op = append_invoke(&log_, token, from);

    if (to != 0) {
        append_return(&log_, op, number * APPEND_TOKEN_LEN, to);
    }
}

/* Reads the tokens that the digits of `tokens` name. */
static int reads(const char *tokens, uint64_t from, uint64_t to)
{
    char value[20 * APPEND_TOKEN_LEN + 1];
    size_t len = 0;

    for (; *tokens != '\0'; tokens++, len += APPEND_TOKEN_LEN) {
        append_format(*tokens - '0', value + len);
    }
    return append_read(&log_, mu_span(value, len), from, to, &msg);
}

static int start_append(void **state)
{
    (void)state;
    append_init(&log_);
    return 0;
}

static int end_append(void **state)
{
    (void)state;
    append_fini(&log_);
    return 0;
}

static void test_append_takes_any_order_of_what_overlaps(void **state)
{
    (void)state;
    appends(1, 1, 10, 2);
    appends(2, 2, 9, 1);
    appends(3, 3, 0, 0); /* unknown, and it happened */
    appends(4, 4, 0, 0); /* unknown, and it did not */
    assert_int_equal(reads("2", 5, 8), 0);
    assert_int_equal(reads("", 6, 7), 0);
    assert_int_equal(reads("213", 11, 12), 0);
    assert_int_equal(append_check(&log_, &msg), 0);
}

static void test_append_sees_a_value_that_changed_behind(void **state)
{
    (void)state;
    assert_int_equal(reads("12", 1, 2), 0);
    assert_fault(reads("21", 3, 4), "differ");
    assert_fault(append_read(&log_, MU_SPAN_LIT("000"), 5, 6, &msg), "half a token");
}

static void test_append_sees_what_was_lost_doubled_or_misplaced(void **state)
{
    static const struct {
        const char *value;
        uint64_t first_ends;
        size_t first_number;
        const char *words;
    } faults[] = {
        {"2", 3, 1, "not in what was read"},
        {"121", 3, 1, "twice"},
        {"21", 3, 1, "is number 2"},
        {"21", 3, 0, "found"}, /* 1 ended before 2 began */
    };

    (void)state;
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++) {
        append_fini(&log_);
        appends(1, 1, faults[i].first_ends, faults[i].first_number);
        appends(2, 4, 5, 0);
        assert_int_equal(reads(faults[i].value, 6, 7), 0);
        assert_fault(append_check(&log_, &msg), faults[i].words);
    }
}

static void test_append_sees_a_read_that_was_behind(void **state)
{
    (void)state;
    appends(1, 1, 2, 1);
    assert_int_equal(reads("", 3, 4), 0);
    assert_int_equal(reads("1", 5, 6), 0);
    assert_fault(append_check(&log_, &msg), "found 0");
}

/* --- queue ------------------------------------------------------------------------------------ */

static struct queue_history queue;

static void pushes(int64_t element, uint64_t from, uint64_t to)
{
    size_t op = queue_push(&queue, element, from);

    if (to != 0) {
        queue_pushed(&queue, op, to);
    }
}

static void pops(enum queue_outcome outcome, int64_t element, uint64_t from, uint64_t to)
{
    size_t op = queue_pop(&queue, from);

    if (outcome != QUEUE_UNKNOWN) {
        queue_popped(&queue, op, outcome, element, to);
    }
}

static int end_queue(void **state)
{
    (void)state;
    queue_fini(&queue);
    return 0;
}

static void test_queue_takes_what_real_time_allows(void **state)
{
    (void)state;
    pushes(1, 1, 5);
    pushes(2, 2, 4);
    pushes(3, 6, 0); /* unknown, and it happened */
    pushes(4, 7, 0); /* unknown, and it did not */
    pushes(5, 8, 9);
    pops(QUEUE_EMPTY, 0, 3, 10);
    pops(QUEUE_DONE, 2, 11, 12);
    pops(QUEUE_DONE, 1, 13, 14);
    pops(QUEUE_DONE, 3, 15, 16);
    pops(QUEUE_UNKNOWN, 0, 17, 0); /* it has 5 */
    pops(QUEUE_NOTHING, 0, 18, 19);
    pops(QUEUE_EMPTY, 0, 20, 21);
    assert_int_equal(queue_check(&queue, &msg), 0);
}

static void test_queue_sees_what_was_never_pushed_or_popped_twice(void **state)
{
    (void)state;
    pops(QUEUE_DONE, 1, 1, 2);
    pushes(1, 3, 4); /* too late */
    assert_fault(queue_check(&queue, &msg), "never pushed");
    queue_fini(&queue);
    pushes(1, 1, 2);
    pops(QUEUE_DONE, 1, 3, 4);
    pops(QUEUE_DONE, 1, 5, 6);
    assert_fault(queue_check(&queue, &msg), "popped twice");
}

static void test_queue_sees_who_was_overtaken(void **state)
{
    (void)state;
    pushes(1, 1, 2);
    pushes(2, 3, 4);
    pops(QUEUE_DONE, 2, 5, 6);
    pops(QUEUE_DONE, 1, 7, 8);
    assert_fault(queue_check(&queue, &msg), "1 was pushed before 2 and popped after it");
}

static void test_queue_sees_what_is_missing(void **state)
{
    (void)state;
    pushes(1, 1, 2);
    pushes(2, 3, 4);
    pops(QUEUE_UNKNOWN, 0, 5, 0);
    pops(QUEUE_NOTHING, 0, 6, 7);
    assert_fault(queue_check(&queue, &msg), "2 elements were acknowledged");
}

static void test_queue_sees_who_was_told_that_it_is_empty(void **state)
{
    (void)state;
    pushes(1, 1, 2);
    pops(QUEUE_EMPTY, 0, 3, 4);
    pops(QUEUE_DONE, 1, 5, 6);
    assert_fault(queue_check(&queue, &msg), "found nothing");
}

/* --- watch ------------------------------------------------------------------------------------ */

static struct watch_history history;

static struct mu_change change_of(const char *key, int kind, uint64_t revision)
{
    static char value[24];

    (void)snprintf(value, sizeof(value), "%llu", (unsigned long long)revision);
    return (struct mu_change){.kind = (enum mu_change_kind)kind,
                              .revision = revision,
                              .key = mu_span_str(key),
                              .value =
                                  kind >= MU_CHANGE_DELETED ? mu_span("", 0) : mu_span_str(value)};
}

/* The server makes a change; its value is its revision. */
static void happens(const char *key, int kind, uint64_t revision)
{
    struct mu_change c = change_of(key, kind, revision);

    watch_note(&history, &c, kind, revision * 1000);
}

static void told(size_t run, const char *key, int kind, uint64_t revision)
{
    struct mu_change c = change_of(key, kind, revision);

    watch_told(&history, run, &c, UINT64_MAX, 0);
}

/* As of `revision`, the key had been written last at `written`. */
static void shown(size_t run, const char *key, uint64_t written, uint64_t revision)
{
    struct mu_change c = change_of(key, MU_CHANGE_CREATED, written);

    c.revision = revision;
    watch_told(&history, run, &c, UINT64_MAX, 0);
}

/* a is created, b too, a updated, b deleted, a updated. */
static int start_watch(void **state)
{
    (void)state;
    watch_life_begins(&history, 0);
    happens("a", MU_CHANGE_CREATED, 1);
    happens("b", MU_CHANGE_CREATED, 2);
    happens("a", MU_CHANGE_UPDATED, 3);
    happens("b", MU_CHANGE_DELETED, 4);
    happens("a", MU_CHANGE_UPDATED, 5);
    return 0;
}

static int end_watch(void **state)
{
    (void)state;
    watch_fini(&history);
    return 0;
}

static void test_watch_takes_an_unbroken_run(void **state)
{
    size_t run = watch_begin(&history, "", true, false, 1);

    (void)state;
    told(run, "b", MU_CHANGE_CREATED, 2);
    told(run, "a", MU_CHANGE_UPDATED, 3);
    told(run, "b", MU_CHANGE_DELETED, 4);
    history.runs[run].ended = true;
    run = watch_begin(&history, "a", false, true, 1);
    shown(run, "a", 3, 4);
    told(run, "a", MU_CHANGE_UPDATED, 5);
    history.runs[run].live_ns = UINT64_MAX;
    run = watch_begin(&history, "c", true, true, 1);
    history.runs[run].live_ns = UINT64_MAX;
    assert_int_equal(watch_check(&history, 0, &msg), 0);
}

static void test_watch_may_belong_to_a_later_life_of_the_server(void **state)
{
    size_t run = watch_begin(&history, "", true, true, 1);
    struct mu_change kept = change_of("a", MU_CHANGE_CREATED, 3);

    (void)state;
    watch_life_begins(&history, 3);
    kept.revision = 3;
    watch_note(&history, &kept, 0, 0);
    happens("b", MU_CHANGE_CREATED, 4);
    shown(run, "a", 3, 3);
    told(run, "b", MU_CHANGE_CREATED, 4);
    history.runs[run].ended = true;
    assert_int_equal(watch_check(&history, 0, &msg), 0);
}

static void test_watch_sees_gaps_and_repetitions(void **state)
{
    size_t run = watch_begin(&history, "a", false, false, 1);

    (void)state;
    told(run, "a", MU_CHANGE_CREATED, 1);
    told(run, "a", MU_CHANGE_UPDATED, 5);
    history.runs[run].ended = true;
    assert_fault(watch_check(&history, 0, &msg), "skipped");
    history.runs[run].told.count = 1;
    told(run, "a", MU_CHANGE_CREATED, 1);
    assert_fault(watch_check(&history, 0, &msg), "skipped");
    history.runs[run].told.count = 0;
    told(run, "a", MU_CHANGE_UPDATED, 7);
    assert_fault(watch_check(&history, 0, &msg), "never was");
}

static void test_watch_sees_a_false_beginning(void **state)
{
    size_t run = watch_begin(&history, "", true, true, 1);

    (void)state;
    shown(run, "a", 3, 3);
    told(run, "b", MU_CHANGE_DELETED, 4);
    assert_fault(watch_check(&history, 0, &msg), "did not begin with what was there");
    history.runs[run].told.count = 0;
    shown(run, "a", 3, 4);
    shown(run, "b", 2, 4);
    history.runs[run].ended = true;
    assert_fault(watch_check(&history, 0, &msg), "more than was there");
    history.runs[run].told.count = 0;
    shown(run, "a", 3, 3); /* cut off before it came to b */
    assert_int_equal(watch_check(&history, 0, &msg), 0);
}

static void test_watch_sees_who_runs_on_and_tells_nothing(void **state)
{
    size_t run = watch_begin(&history, "a", false, true, 1);

    (void)state;
    history.runs[run].live_ns = 6000;
    assert_fault(watch_check(&history, 100, &msg), "never told");
    shown(run, "a", 3, 4);
    assert_fault(watch_check(&history, 100, &msg), "never told");
    assert_int_equal(watch_check(&history, 2000, &msg), 0); /* the last was just made */
    history.runs[run].ended = true;
    assert_int_equal(watch_check(&history, 100, &msg), 0);
}

static void test_watch_sees_what_was_told_before_it_was_on_disk(void **state)
{
    size_t run = watch_begin(&history, "a", false, false, 1);
    struct mu_change c = change_of("a", MU_CHANGE_UPDATED, 3);

    (void)state;
    watch_told(&history, run, &c, 2, 0);
    history.runs[run].ended = true;
    assert_fault(watch_check(&history, 0, &msg), "not on disk");
}

/* --- rounds ----------------------------------------------------------------------------------- */

static struct rounds rounds_;
static uint32_t life_;

/* The nodes of these stories are called by their numbers. A member is a digit of `members`. */
static int assigned(uint32_t node, uint64_t incarnation, uint64_t round, uint32_t rank,
                    const char *members)
{
    static char names[10][2];
    struct mu_rdzv_peer peers[10];
    char name[2] = {(char)('0' + node), '\0'};
    struct mu_rdzv_assignment a = {
        .incarnation = incarnation,
        .round = round,
        .rank = rank,
        .world = (uint32_t)strlen(members),
        .member_count = strlen(members),
        .members = peers,
        .store = "tcp://a",
    };

    for (size_t i = 0; i < a.member_count; i++) {
        names[i][0] = members[i];
        peers[i] = (struct mu_rdzv_peer){names[i], "addr"};
    }
    return rounds_assigned(&rounds_, node, name, life_, &a, &msg);
}

static int start_rounds(void **state)
{
    (void)state;
    rounds_init(&rounds_, 10);
    life_ = 0;
    return 0;
}

static int end_rounds(void **state)
{
    (void)state;
    rounds_fini(&rounds_);
    return 0;
}

static void test_rounds_takes_a_story_of_three_nodes(void **state)
{
    (void)state;
    assert_int_equal(assigned(0, 1, 0, 0, "012"), 0);
    assert_int_equal(assigned(1, 1, 0, 1, "012"), 0);
    assert_false(rounds_whole(&rounds_, rounds_only(&rounds_)));
    assert_int_equal(assigned(2, 1, 0, 2, "012"), 0);
    assert_true(rounds_whole(&rounds_, rounds_only(&rounds_)));
    rounds_fresh(&rounds_, 1, life_); /* it dies */
    assert_false(rounds_whole(&rounds_, rounds_only(&rounds_)));
    assert_int_equal(rounds_ended(&rounds_, 0, 0, &msg), 0);
    assert_int_equal(assigned(0, 1, 1, 0, "02"), 0);
    assert_int_equal(rounds_ended(&rounds_, 2, 0, &msg), 0); /* it learns of it later */
    assert_int_equal(assigned(2, 1, 1, 1, "02"), 0);
    rounds_fresh(&rounds_, 0, life_); /* another handler */
    assert_int_equal(assigned(0, 2, 0, 0, "0"), 0);
    assert_int_equal(rounds_of(&rounds_, 0)->incarnation, 2);
    assert_null(rounds_only(&rounds_));
    assert_null(rounds_of(&rounds_, 1));
}

static void test_rounds_sees_two_worlds_in_one_round(void **state)
{
    (void)state;
    assert_int_equal(assigned(0, 1, 0, 0, "012"), 0);
    assert_fault(assigned(1, 1, 0, 1, "01"), "another world size");
    assert_fault(assigned(1, 1, 0, 1, "013"), "other members");
    assert_int_equal(assigned(1, 1, 0, 1, "012"), 0);
}

static void test_rounds_sees_ranks_that_are_wrong(void **state)
{
    (void)state;
    assert_fault(assigned(0, 1, 0, 3, "012"), "not below");
    assert_fault(assigned(0, 1, 0, 1, "012"), "another one has its rank");
    assert_fault(assigned(0, 1, 0, 0, "011"), "twice");
    assert_int_equal(assigned(0, 1, 0, 0, "012"), 0);
    rounds_fresh(&rounds_, 0, life_);
    rounds_.nodes[0].ever = false;
    assert_fault(assigned(0, 1, 0, 0, "012"), "was told before");
}

static void test_rounds_sees_a_node_in_two_rounds(void **state)
{
    (void)state;
    assert_int_equal(assigned(0, 1, 0, 0, "01"), 0);
    assert_fault(assigned(0, 1, 1, 0, "01"), "two live rounds");
    assert_fault(rounds_ended(&rounds_, 0, 1, &msg), "in another one");
    assert_int_equal(rounds_ended(&rounds_, 0, 0, &msg), 0);
    assert_fault(rounds_ended(&rounds_, 0, 0, &msg), "in none");
}

static void test_rounds_sees_a_number_that_comes_again(void **state)
{
    (void)state;
    assert_int_equal(assigned(0, 1, 5, 0, "01"), 0);
    rounds_fresh(&rounds_, 0, life_);
    assert_fault(assigned(0, 1, 4, 0, "01"), "or a later one, before");
    assert_fault(assigned(0, 1, 5, 0, "01"), "or a later one, before");
    assert_int_equal(assigned(0, 1, 6, 0, "01"), 0);
}

static void test_rounds_lets_another_server_count_as_it_likes_but_not_again(void **state)
{
    (void)state;
    assert_int_equal(assigned(0, 7, 5, 0, "01"), 0);
    rounds_out(&rounds_, 0);
    life_ = 1;
    assert_fault(assigned(0, 7, 5, 0, "01"), "was told before");
    assert_int_equal(assigned(0, 6, 0, 0, "01"), 0);
}

static void test_rounds_sees_news_of_another_incarnation(void **state)
{
    (void)state;
    assert_int_equal(assigned(0, 2, 5, 0, "01"), 0);
    rounds_out(&rounds_, 0);
    assert_fault(assigned(0, 1, 9, 0, "01"), "another incarnation");
    assert_fault(assigned(0, 3, 0, 0, "01"), "another incarnation");
    rounds_fresh(&rounds_, 0, life_);
    assert_fault(assigned(0, 1, 9, 0, "01"), "or a later one, before");
    assert_int_equal(assigned(0, 3, 0, 0, "01"), 0);
}

int main(void)
{
#define APPEND_TEST(name) cmocka_unit_test_setup_teardown(name, start_append, end_append)
#define QUEUE_TEST(name)  cmocka_unit_test_teardown(name, end_queue)
#define WATCH_TEST(name)  cmocka_unit_test_setup_teardown(name, start_watch, end_watch)
#define ROUNDS_TEST(name) cmocka_unit_test_setup_teardown(name, start_rounds, end_rounds)
    const struct CMUnitTest tests[] = {
        APPEND_TEST(test_append_takes_any_order_of_what_overlaps),
        APPEND_TEST(test_append_sees_a_value_that_changed_behind),
        APPEND_TEST(test_append_sees_what_was_lost_doubled_or_misplaced),
        APPEND_TEST(test_append_sees_a_read_that_was_behind),
        QUEUE_TEST(test_queue_takes_what_real_time_allows),
        QUEUE_TEST(test_queue_sees_what_was_never_pushed_or_popped_twice),
        QUEUE_TEST(test_queue_sees_who_was_overtaken),
        QUEUE_TEST(test_queue_sees_what_is_missing),
        QUEUE_TEST(test_queue_sees_who_was_told_that_it_is_empty),
        ROUNDS_TEST(test_rounds_takes_a_story_of_three_nodes),
        ROUNDS_TEST(test_rounds_sees_two_worlds_in_one_round),
        ROUNDS_TEST(test_rounds_sees_ranks_that_are_wrong),
        ROUNDS_TEST(test_rounds_sees_a_node_in_two_rounds),
        ROUNDS_TEST(test_rounds_sees_a_number_that_comes_again),
        ROUNDS_TEST(test_rounds_lets_another_server_count_as_it_likes_but_not_again),
        ROUNDS_TEST(test_rounds_sees_news_of_another_incarnation),
        WATCH_TEST(test_watch_takes_an_unbroken_run),
        WATCH_TEST(test_watch_may_belong_to_a_later_life_of_the_server),
        WATCH_TEST(test_watch_sees_gaps_and_repetitions),
        WATCH_TEST(test_watch_sees_a_false_beginning),
        WATCH_TEST(test_watch_sees_who_runs_on_and_tells_nothing),
        WATCH_TEST(test_watch_sees_what_was_told_before_it_was_on_disk),
    };

    return cmocka_run_group_tests_name("checkers", tests, NULL, NULL);
}

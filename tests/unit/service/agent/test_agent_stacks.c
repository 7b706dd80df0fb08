/*
 * Questions for the stacks of a run. Against a store in this process, whose agents are written out
 * here: what is asked, and who has answered. Then two agents with real workers on one loop.
 */
#include "agent_seats.h"
#include "own_network.h"
#include "service/agent/stacks.h"
#include "skipped.h"

static struct mu_store *store;

/* One question, and what came of it. */
struct asked {
    struct mu_stacks_ask ask;
    unsigned answers;
    uint32_t workers; /* in all answers */
    uint32_t world;
    uint32_t reports;
    uint32_t running; /* reports with a thread */
    uint64_t ranks;   /* a bit each */
    bool done;
    int status;
    bool has[8];
};

static void on_answer(void *context, uint32_t node, const struct mu_stacks_answer *answer)
{
    struct asked *a = context;
    struct mu_span rest = answer->reports;
    struct mu_stacks_report report;

    assert_in_range(node, 0, a->ask.config.nodes - 1);
    a->answers++;
    a->workers += answer->workers;
    a->world = answer->world;
    while (mu_stacks_answer_next(&rest, &report) == 0) {
        a->reports++;
        a->ranks |= UINT64_C(1) << report.rank;
        a->running += report.thread_count != 0 ? 1 : 0;
        assert_int_not_equal(report.node.len, 0);
    }
}

static void on_done(struct mu_stacks_ask *ask, int status)
{
    struct asked *a = ask->config.context;

    assert_false(a->done);
    a->done = true;
    a->status = status;
    for (uint32_t i = 0; i < ask->config.nodes && i < 8; i++) {
        a->has[i] = mu_stacks_ask_has(ask, i);
    }
}

static struct mu_stacks_ask_config config_of(struct asked *a, uint32_t timeout_ms)
{
    *a = (struct asked){.answers = 0};
    return (struct mu_stacks_ask_config){.env = mu_uv_env_env(uv),
                                         .store = store,
                                         .nodes = 3,
                                         .timeout_ms = timeout_ms,
                                         .answer = on_answer,
                                         .done = on_done,
                                         .context = a};
}

static void wait_done(const struct asked *a)
{
    while (!a->done) {
        mu_uv_env_turn(uv);
    }
}

/* --- the store -------------------------------------------------------------------------------- */

static bool op_done;
static struct mu_buf op_value;
static int op_status;

static void on_op(struct mu_store_op *op)
{
    op_done = true;
    op_status = op->status;
    mu_buf_reset(&op_value);
    if (op->status == 0 && op->reply.value_count == 1) {
        assert_int_equal(mu_buf_append(&op_value, op->reply.values[0]), 0);
    }
}

/* An operation on one key; waits for it. */
static int64_t do_op(enum mu_store_verb verb, const char *name, const struct mu_span *value,
                     int64_t number)
{
    struct mu_span key = mu_span_str(name);
    struct mu_store_op op = {.request = {.verb = verb,
                                         .keys = &key,
                                         .key_count = 1,
                                         .values = value,
                                         .value_count = value == NULL ? 0 : 1,
                                         .number = number},
                             .timeout_ms = 10000,
                             .done = on_op};

    op_done = false;
    mu_store_submit(store, &op);
    while (!op_done) {
        mu_uv_env_turn(uv);
    }
    return op.reply.number;
}

/* The question, and how long flight recorders may take: less than who asks has time. */
static void assert_question(const char *key, const char *expected)
{
    struct mu_span text;

    (void)do_op(MU_STORE_GET, key, NULL, 0);
    assert_int_equal(op_status, 0);
    text = mu_buf_span(&op_value);
    assert_true(text.len > strlen(expected) && text.data[strlen(expected)] == ' ');
    assert_memory_equal(text.data, expected, strlen(expected));
}

/* Answers a question as a node without workers does. */
static void answer(uint64_t question, uint32_t node)
{
    const struct mu_stacks_answer head = {.node = mu_span_str("node"), .workers = 2, .world = 6};
    struct mu_stacks_answer_writer w;
    struct mu_span value;
    char key[48];

    assert_int_equal(mu_stacks_answer_begin(&w, &head, 1024), 0);
    value = mu_stacks_answer_end(&w);
    (void)snprintf(key, sizeof(key), MU_AGENT_STACKS_KEY "%llu/%u", (unsigned long long)question,
                   node);
    (void)do_op(MU_STORE_SET, key, &value, 0);
    mu_stacks_answer_fini(&w);
}

static int setup(void **state)
{
    (void)seats_setup(state);
    assert_int_equal(mu_store_hash_new(mu_uv_env_env(uv), &store), 0);
    mu_buf_init(&op_value, 1024);
    return 0;
}

static void on_closed(void *context)
{
    *(bool *)context = true;
}

static int teardown(void **state)
{
    bool closed = false;

    mu_store_close(store, on_closed, &closed);
    while (!closed) {
        mu_uv_env_turn(uv);
    }
    mu_buf_fini(&op_value);
    return seats_teardown(state);
}

/* --- asking ----------------------------------------------------------------------------------- */

static void test_agent_stacks_ask_hears_all_nodes(void **state)
{
    struct asked a;
    (void)state;

    a.ask.config = config_of(&a, 10000);
    mu_stacks_ask_start(&a.ask);
    assert_question(MU_AGENT_STACKS_ASK_KEY "/1", "main");
    for (uint32_t node = 0; node < 3; node++) {
        assert_false(a.done);
        answer(1, node);
    }
    wait_done(&a);
    assert_int_equal(a.status, 0);
    assert_int_equal(a.answers, 3);
    assert_int_equal(a.workers, 6);
    assert_int_equal(a.ask.answered, 3);
}

static void test_agent_stacks_ask_names_who_is_late(void **state)
{
    static const struct mu_span nonsense = {(const uint8_t *)"nonsense", 8};
    struct asked a;
    (void)state;

    a.ask.config = config_of(&a, 300);
    a.ask.config.all_threads = true;
    mu_stacks_ask_start(&a.ask);
    assert_question(MU_AGENT_STACKS_ASK_KEY "/1", "all");
    answer(1, 1);
    (void)do_op(MU_STORE_SET, MU_AGENT_STACKS_KEY "1/2", &nonsense, 0);
    wait_done(&a);
    assert_int_equal(a.status, 0);
    assert_int_equal(a.ask.answered, 1);
    assert_true(!a.has[0] && a.has[1] && !a.has[2]);
}

static void test_agent_stacks_ask_sets_a_question_that_was_lost(void **state)
{
    struct asked a;
    (void)state;

    /* Somebody has counted question 1, and was gone before it was set. */
    assert_int_equal(do_op(MU_STORE_ADD, MU_AGENT_STACKS_ASK_KEY, NULL, 1), 1);
    a.ask.config = config_of(&a, 10000);
    a.ask.config.nodes = 1;
    mu_stacks_ask_start(&a.ask);
    assert_question(MU_AGENT_STACKS_ASK_KEY "/1", "main");
    assert_question(MU_AGENT_STACKS_ASK_KEY "/2", "main");
    answer(2, 0);
    wait_done(&a);
    assert_int_equal(a.ask.answered, 1);
}

static void test_agent_stacks_ask_can_be_canceled_at_any_time(void **state)
{
    (void)state;

    /* While the counter, the question and the answers are waited for. */
    for (int turns = 0; turns < 3; turns++) {
        struct asked a;

        a.ask.config = config_of(&a, 10000);
        mu_stacks_ask_start(&a.ask);
        for (int i = 0; i < turns; i++) {
            mu_uv_env_turn(uv);
        }
        mu_stacks_ask_cancel(&a.ask);
        mu_stacks_ask_cancel(&a.ask);
        wait_done(&a);
        assert_int_equal(a.status, MUSTER_ECANCELED);
    }
}

static void test_agent_stacks_ask_says_what_is_wrong_with_the_store(void **state)
{
    static const struct mu_span nonsense = {(const uint8_t *)"nonsense", 8};
    struct asked a;
    (void)state;

    (void)do_op(MU_STORE_SET, MU_AGENT_STACKS_ASK_KEY, &nonsense, 0);
    a.ask.config = config_of(&a, 10000);
    mu_stacks_ask_start(&a.ask);
    wait_done(&a);
    assert_int_not_equal(a.status, 0);
    assert_int_not_equal(strlen(a.ask.errmsg.text), 0);
    assert_int_equal(a.ask.answered, 0);
    a.ask.config = config_of(&a, 10000);
    a.ask.config.nodes = MU_EXCHANGE_AGENTS_MAX + 1;
    mu_stacks_ask_start(&a.ask);
    wait_done(&a);
    assert_int_equal(a.status, MUSTER_EINVAL);
}

/* --- agents ----------------------------------------------------------------------------------- */

static void start_both(const char *script)
{
    for (int i = 0; i < 2; i++) {
        seat_start(seat_prepare(i, script, 2, 2, ""));
    }
    while (seats[0].starts == 0 || seats[1].starts == 0) {
        mu_uv_env_turn(uv);
    }
}

static void ask(struct seat *seat, struct asked *a, uint32_t timeout_ms)
{
    a->ask.config = config_of(a, timeout_ms);
    assert_int_equal(mu_agent_stacks_ask(seat->agent, &a->ask), 0);
}

/* Until an agent has seen so many questions, and waits for the next one. */
static void wait_rest(const struct seat *seat, uint64_t questions)
{
    const struct mu_agent_stacks *k = &seat->agent->round->stacks;

    while (k->state != MU_AGENT_STACKS_WAITS || k->seen != questions) {
        mu_uv_env_turn(uv);
    }
}

static void test_agent_stacks_of_all_workers_again_and_again(void **state)
{
    struct asked a;
    struct asked b;
    (void)state;

    start_both("exec sleep 1000");
    for (int i = 0; i < 2; i++) {
        ask(&seats[0], &a, 10000);
        ask(&seats[1], &b, 10000); /* at the same time */
        wait_done(&a);
        wait_done(&b);
        assert_int_equal(a.ask.answered, 2);
        assert_int_equal(a.reports, 4);
        assert_int_equal(a.ranks, 15);
        assert_int_equal(a.running, 4);
        assert_int_equal(a.world, 4);
        assert_int_equal(b.ranks, 15);
        wait_rest(&seats[0], 2 * (uint64_t)i + 2);
        wait_rest(&seats[1], 2 * (uint64_t)i + 2);
    }
    assert_string_equal(mu_agent_stacks_node(seats[0].agent, seats[0].agent->round->rank),
                        seats[0].agent->rdzv->node);
    assert_string_equal(mu_agent_stacks_node(seats[0].agent, AGENTS), "");
    for (int i = 0; i < 2; i++) {
        seat_stop(&seats[i]);
        seat_release(&seats[i]);
    }
}

static void test_agent_stacks_of_workers_that_have_ended(void **state)
{
    struct asked a;
    (void)state;

    start_both("[ $LOCAL_RANK = 0 ] || exec sleep 1000");
    while (seats[0].exits == 0 || seats[1].exits == 0) {
        mu_uv_env_turn(uv);
    }
    ask(&seats[0], &a, 10000);
    wait_done(&a);
    assert_int_equal(a.reports, 4);
    assert_int_equal(a.running, 2);
    for (int i = 0; i < 2; i++) {
        seat_stop(&seats[i]);
        seat_release(&seats[i]);
    }
}

static void test_agent_stacks_while_a_look_does_not_end(void **state)
{
    struct asked a;
    (void)state;

    start_both("exec sleep 1000");
    seats[0].agent->look = (struct mu_agent_look *)&seats[0]; /* a look that never ends */
    ask(&seats[0], &a, 10000);
    wait_done(&a);
    seats[0].agent->look = NULL;
    assert_int_equal(a.ask.answered, 2);
    assert_int_equal(a.reports, 4);
    assert_int_equal(a.running, 2); /* the other node's */
    for (int i = 0; i < 2; i++) {
        seat_stop(&seats[i]);
        seat_release(&seats[i]);
    }
}

/* Whether our answer to a question is in the store. */
static bool has_answered(const struct seat *seat, uint64_t question)
{
    char key[48];

    (void)snprintf(key, sizeof(key), MU_AGENT_STACKS_KEY "%llu/%u", (unsigned long long)question,
                   seat->agent->round->rank);
    return do_op(MU_STORE_CHECK, key, NULL, 0) == 1;
}

/* As if many asked at once: the last MU_AGENT_STACKS_SHARED_MAX of them get an answer. */
static void test_agent_stacks_of_many_questions_are_shared(void **state)
{
    const struct mu_span value = mu_span_str("main");
    struct mu_store *own = store;
    struct asked a;
    (void)state;

    start_both("exec sleep 1000");
    store = seats[0].agent->round->stores.store;
    assert_int_equal(do_op(MU_STORE_ADD, MU_AGENT_STACKS_ASK_KEY, NULL, 10), 10);
    (void)do_op(MU_STORE_SET, MU_AGENT_STACKS_ASK_KEY "/1", &value, 0);
    while (!has_answered(&seats[0], 10)) {
        /* the store answers at its own pace */
    }
    assert_true(has_answered(&seats[0], 10 - MU_AGENT_STACKS_SHARED_MAX + 1));
    assert_false(has_answered(&seats[0], 10 - MU_AGENT_STACKS_SHARED_MAX));
    ask(&seats[0], &a, 10000);
    wait_done(&a);
    assert_int_equal(a.ask.answered, 2);
    while (has_answered(&seats[0], 10 - MU_AGENT_STACKS_SHARED_MAX + 1)) {
        /* old answers go once there are new ones */
    }
    assert_true(has_answered(&seats[0], 11));
    store = own;
    for (int i = 0; i < 2; i++) {
        seat_stop(&seats[i]);
        seat_release(&seats[i]);
    }
}

static void test_agent_stacks_question_ends_with_the_round(void **state)
{
    struct asked a;
    struct asked b;
    (void)state;

    start_both("exec sleep 1000");
    ask(&seats[1], &a, 1000000);
    seat_stop(&seats[0]);
    seat_stop(&seats[1]);
    ask(&seats[1], &b, 1000000); /* its round is still there, and nobody answers any more */
    seat_release(&seats[0]);
    seat_release(&seats[1]);
    assert_true(a.done);
    assert_true(b.done);
}

static void test_agent_stacks_without_a_round_are_refused(void **state)
{
    struct asked a;
    (void)state;

    seat_start(seat_prepare(0, "exit 0", 2, 2, ""));
    a.ask.config = config_of(&a, 1000);
    assert_int_equal(mu_agent_stacks_ask(seats[0].agent, &a.ask), MUSTER_ENOENT);
    assert_string_equal(mu_agent_stacks_node(seats[0].agent, 0), "");
    seat_stop(&seats[0]);
    seat_release(&seats[0]);
    assert_false(a.done);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(test_agent_stacks_ask_hears_all_nodes),
        TEST(test_agent_stacks_ask_names_who_is_late),
        TEST(test_agent_stacks_ask_sets_a_question_that_was_lost),
        TEST(test_agent_stacks_ask_can_be_canceled_at_any_time),
        TEST(test_agent_stacks_ask_says_what_is_wrong_with_the_store),
        TEST(test_agent_stacks_of_all_workers_again_and_again),
        TEST(test_agent_stacks_of_workers_that_have_ended),
        TEST(test_agent_stacks_while_a_look_does_not_end),
        TEST(test_agent_stacks_of_many_questions_are_shared),
        TEST(test_agent_stacks_question_ends_with_the_round),
        TEST(test_agent_stacks_without_a_round_are_refused),
    };
#undef TEST

    (void)signal(SIGPIPE, SIG_IGN);
    (void)own_network();
    return skipped_or(cmocka_run_group_tests_name("agent_stacks", tests, NULL, NULL));
}

/* The search in libp2p's DHT: which peers it asks, in which order, its ends and its limits. */
#include "unit.h"

#include "kad_peers.h"

#define SELF      KAD_PEERS
#define ANSWER_MS 10000

static struct mu_kad_search search;
static uint64_t now_ms;

static mu_mono_t at(uint64_t ms)
{
    return (mu_mono_t){ms * MU_NS_PER_MS};
}

static struct mu_kad_search_config config_of(uint32_t nearest, uint32_t parallel, uint32_t asked)
{
    return (struct mu_kad_search_config){.self = kad_peer[SELF],
                                         .target = kad_peer[0],
                                         .nearest = nearest,
                                         .parallel = parallel,
                                         .asked_max = asked,
                                         .answer_ms = ANSWER_MS};
}

static void begin(uint32_t nearest, uint32_t parallel, uint32_t asked)
{
    struct mu_kad_search_config config = config_of(nearest, parallel, asked);

    now_ms = 1000;
    mu_kad_search_init(&search, &config);
}

/* Those from `first` to `last`, farthest first: the order in which they are added says nothing. */
static void add(unsigned first, unsigned last)
{
    for (unsigned n = last; n >= first; n--) {
        mu_kad_search_add(&search, &kad_peer[n]);
    }
}

static void expect_ask(unsigned n)
{
    struct mu_kad_action action;

    assert_true(mu_kad_search_next(&search, at(now_ms), &action));
    assert_int_equal(action.type, MU_KAD_ACTION_ASK);
    assert_int_equal(kad_number(&action.peer), n);
    assert_true(mu_kad_search_is_asking(&search, &kad_peer[n]));
}

static void expect_late(unsigned n)
{
    struct mu_kad_action action;

    assert_true(mu_kad_search_next(&search, at(now_ms), &action));
    assert_int_equal(action.type, MU_KAD_ACTION_LATE);
    assert_int_equal(kad_number(&action.peer), n);
    assert_false(mu_kad_search_is_asking(&search, &kad_peer[n]));
}

static void expect_nothing(void)
{
    struct mu_kad_action action;

    assert_false(mu_kad_search_next(&search, at(now_ms), &action));
}

static void expect_end(enum mu_kad_search_state state)
{
    struct mu_kad_action action;

    assert_true(mu_kad_search_next(&search, at(now_ms), &action));
    assert_int_equal(action.type, MU_KAD_ACTION_END);
    assert_int_equal(search.state, state);
    assert_int_equal(mu_kad_search_deadline(&search).ns, MU_MONO_NEVER.ns);
    now_ms += 10 * ANSWER_MS;
    expect_nothing();
    assert_int_equal(search.state, state);
}

/* Peer `n` answers with those from `first` to `last`; `first` 1 and `last` 0: with nobody. */
static void answer(unsigned n, unsigned first, unsigned last)
{
    mu_kad_search_answered(&search, &kad_peer[n], &kad_peer[first],
                           last < first ? 0 : last - first + 1);
}

static void lose(unsigned n)
{
    mu_kad_search_failed(&search, &kad_peer[n]);
}

/* --- order ------------------------------------------------------------------------------------ */

static void test_nearest_is_asked_first_and_as_many_as_may_at_once(void **state)
{
    (void)state;
    begin(20, 3, 64);
    add(10, 15);
    expect_ask(10);
    expect_ask(11);
    expect_ask(12);
    expect_nothing();
    answer(11, 4, 5);
    expect_ask(4);
    expect_nothing();
    lose(10);
    expect_ask(5);
    expect_nothing();
    assert_int_equal(search.asked, 5);
}

static void test_peer_is_asked_once_however_often_it_is_named(void **state)
{
    (void)state;
    begin(20, 2, 64);
    add(7, 8);
    add(7, 8);
    expect_ask(7);
    expect_ask(8);
    answer(7, 7, 8);
    answer(8, 7, 8);
    expect_end(MU_KAD_SEARCH_UNKNOWN);
    assert_int_equal(search.asked, 2);
}

static void test_only_the_nearest_that_live_are_asked(void **state)
{
    (void)state;
    begin(3, 1, 64);
    add(1, 6);
    expect_ask(1);
    answer(1, 1, 0);
    expect_ask(2);
    lose(2); /* makes room for 4 among the three nearest */
    expect_ask(3);
    answer(3, 1, 0);
    expect_ask(4);
    answer(4, 5, 6);
    expect_end(MU_KAD_SEARCH_UNKNOWN);
}

/* --- ends ------------------------------------------------------------------------------------- */

static void test_target_that_is_named_is_found(void **state)
{
    (void)state;
    begin(20, 2, 64);
    add(8, 9);
    expect_ask(8);
    expect_ask(9);
    answer(9, 0, 3);
    assert_false(mu_kad_search_is_asking(&search, &kad_peer[8]));
    expect_end(MU_KAD_SEARCH_FOUND);
    /* What comes afterwards changes nothing. */
    answer(8, 0, 0);
    lose(8);
    add(1, 3);
    mu_kad_search_stop(&search);
    expect_nothing();
    assert_int_equal(search.state, MU_KAD_SEARCH_FOUND);
}

static void test_without_a_peer_to_ask_it_ends_at_once(void **state)
{
    (void)state;
    begin(20, 10, 64);
    mu_kad_search_add(&search, &kad_peer[SELF]);
    mu_kad_search_add(&search, &kad_peer[0]);
    expect_end(MU_KAD_SEARCH_NOBODY);
}

static void test_it_gives_up_when_the_nearest_have_answered(void **state)
{
    (void)state;
    begin(20, 10, 64);
    add(1, 2);
    expect_ask(1);
    expect_ask(2);
    answer(1, 1, 0);
    expect_nothing(); /* the other one may know */
    answer(2, 1, 0);
    expect_end(MU_KAD_SEARCH_UNKNOWN);
}

static void test_it_gives_up_when_all_have_failed(void **state)
{
    (void)state;
    begin(20, 10, 64);
    add(1, 2);
    expect_ask(1);
    expect_ask(2);
    lose(2);
    lose(1);
    expect_end(MU_KAD_SEARCH_UNKNOWN);
    assert_int_equal(search.asked, 2);
}

static void test_it_is_spent_when_it_has_asked_as_many_as_it_may(void **state)
{
    (void)state;
    begin(20, 2, 3);
    add(1, 10);
    expect_ask(1);
    expect_ask(2);
    lose(1);
    expect_ask(3);
    lose(2);
    expect_nothing();
    lose(3);
    expect_end(MU_KAD_SEARCH_SPENT);
    assert_int_equal(search.asked, 3);
}

static void test_last_answer_that_may_be_asked_for_still_counts(void **state)
{
    (void)state;
    begin(20, 1, 1);
    add(1, 2);
    expect_ask(1);
    answer(1, 0, 0);
    expect_end(MU_KAD_SEARCH_FOUND);
    /* One that has asked all it may, and all there are, is not spent. */
    begin(20, 1, 1);
    add(1, 1);
    expect_ask(1);
    answer(1, 1, 0);
    expect_end(MU_KAD_SEARCH_UNKNOWN);
}

static void test_it_can_be_stopped_before_and_in_the_middle(void **state)
{
    (void)state;
    begin(20, 10, 64);
    add(1, 3);
    mu_kad_search_stop(&search);
    expect_end(MU_KAD_SEARCH_STOPPED);
    assert_int_equal(search.asked, 0);
    begin(20, 2, 64);
    add(1, 3);
    expect_ask(1);
    mu_kad_search_stop(&search);
    expect_end(MU_KAD_SEARCH_STOPPED);
}

static void test_search_for_ourselves_asks_the_nearest_and_never_finds(void **state)
{
    struct mu_kad_search_config config = config_of(20, 1, 64);

    (void)state;
    config.self = kad_peer[0];
    mu_kad_search_init(&search, &config);
    add(5, 5);
    expect_ask(5);
    answer(5, 0, 2); /* we are named too */
    expect_ask(1);
    answer(1, 0, 0);
    expect_ask(2);
    lose(2);
    expect_end(MU_KAD_SEARCH_UNKNOWN);
}

/* --- time ------------------------------------------------------------------------------------- */

static void test_peer_that_does_not_answer_in_time_is_late(void **state)
{
    (void)state;
    begin(20, 2, 64);
    assert_int_equal(mu_kad_search_deadline(&search).ns, MU_MONO_NEVER.ns);
    add(1, 4);
    expect_ask(1);
    now_ms += 300;
    expect_ask(2);
    assert_int_equal(mu_kad_search_deadline(&search).ns, at(1000 + ANSWER_MS).ns);
    now_ms = 1000 + ANSWER_MS - 1;
    expect_nothing();
    now_ms++;
    expect_late(1);
    expect_ask(3);
    expect_nothing();
    assert_int_equal(mu_kad_search_deadline(&search).ns, at(1300 + ANSWER_MS).ns);
    answer(1, 0, 0); /* too late */
    expect_nothing();
    assert_int_equal(search.state, MU_KAD_SEARCH_ASKING);
}

static void test_answer_counts_until_it_was_said_to_be_late(void **state)
{
    (void)state;
    begin(20, 2, 64);
    add(1, 2);
    expect_ask(1);
    expect_ask(2);
    now_ms += 2 * ANSWER_MS; /* we slept */
    answer(2, 0, 0);
    expect_end(MU_KAD_SEARCH_FOUND);
}

static void test_all_that_are_late_are_said_before_others_are_asked(void **state)
{
    (void)state;
    begin(20, 2, 64);
    add(1, 4);
    expect_ask(1);
    now_ms++;
    expect_ask(2);
    now_ms += 2 * ANSWER_MS;
    expect_late(1);
    expect_late(2);
    expect_ask(3);
    expect_ask(4);
    now_ms += ANSWER_MS;
    expect_late(3);
    expect_late(4);
    expect_end(MU_KAD_SEARCH_UNKNOWN);
}

static void test_oldest_ask_is_late_first_whatever_was_answered_before(void **state)
{
    (void)state;
    begin(20, 3, 64);
    add(1, 3);
    expect_ask(1);
    now_ms += 100;
    expect_ask(2);
    now_ms += 100;
    expect_ask(3);
    answer(1, 1, 0);
    assert_int_equal(mu_kad_search_deadline(&search).ns, at(1100 + ANSWER_MS).ns);
    now_ms = 1100 + ANSWER_MS;
    expect_late(2);
    expect_nothing();
    now_ms += 100;
    expect_late(3);
    expect_end(MU_KAD_SEARCH_UNKNOWN);
}

static void test_answer_time_without_end_never_comes(void **state)
{
    (void)state;
    begin(20, 1, 64);
    add(1, 1);
    now_ms = UINT64_MAX / MU_NS_PER_MS;
    expect_ask(1);
    assert_int_equal(mu_kad_search_deadline(&search).ns, MU_MONO_NEVER.ns);
    expect_nothing();
}

/* --- limits ----------------------------------------------------------------------------------- */

static void test_farthest_makes_room_and_its_answer_still_counts(void **state)
{
    (void)state;
    begin(KAD_PEERS, 1, KAD_PEERS);
    add(300, 300);
    expect_ask(300);
    add(1, 40);
    add(100, 100 + MU_KAD_CANDIDATES_MAX);
    assert_int_equal(search.count, MU_KAD_CANDIDATES_MAX);
    answer(300, 300, 310); /* it is not known any more, nor is what it names near enough */
    for (unsigned n = 1; n <= 40; n++) {
        expect_ask(n);
        lose(n);
    }
    for (unsigned n = 100; n < 100 + MU_KAD_CANDIDATES_MAX - 40; n++) {
        expect_ask(n);
        lose(n);
    }
    expect_end(MU_KAD_SEARCH_UNKNOWN);
    /* The same, and what it says leads on. */
    begin(20, 1, 64);
    add(300, 300);
    expect_ask(300);
    add(2, 1 + MU_KAD_CANDIDATES_MAX);
    answer(300, 1, 1);
    expect_ask(1);
    /* And if it fails. */
    begin(20, 1, 64);
    add(300, 300);
    expect_ask(300);
    add(1, MU_KAD_CANDIDATES_MAX);
    lose(300);
    expect_ask(1);
}

static void test_parallel_asks_have_a_limit_of_their_own(void **state)
{
    (void)state;
    begin(KAD_PEERS, KAD_PEERS, KAD_PEERS);
    add(1, MU_KAD_PARALLEL_MAX + 1);
    for (unsigned n = 1; n <= MU_KAD_PARALLEL_MAX; n++) {
        expect_ask(n);
    }
    expect_nothing();
    lose(MU_KAD_PARALLEL_MAX);
    expect_ask(MU_KAD_PARALLEL_MAX + 1);
}

static void test_terms_of_nothing_end_at_once(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        begin(20, i == 0 ? 0 : 10, i == 0 ? 64 : 0);
        add(1, 3);
        expect_end(MU_KAD_SEARCH_SPENT);
    }
    begin(0, 10, 64);
    add(1, 3);
    expect_end(MU_KAD_SEARCH_NOBODY);
}

/* --- hostile answers -------------------------------------------------------------------------- */

static void test_answers_that_nobody_asked_for_are_ignored(void **state)
{
    (void)state;
    begin(20, 1, 64);
    add(5, 6);
    answer(5, 0, 3); /* before it is asked */
    expect_ask(5);
    answer(6, 0, 3);
    answer(77, 0, 3);
    lose(77);
    lose(6);
    expect_nothing();
    answer(5, 1, 0);
    answer(5, 0, 3); /* twice */
    lose(5);
    expect_ask(6);
    answer(6, 1, 0);
    expect_end(MU_KAD_SEARCH_UNKNOWN);
}

static void test_only_so_many_of_one_answer_count(void **state)
{
    struct mu_peer_id named[MU_KAD_NAMED_MAX + 1];

    (void)state;
    begin(KAD_PEERS, 1, KAD_PEERS);
    add(300, 300);
    expect_ask(300);
    memcpy(named, &kad_peer[100], sizeof(named));
    named[MU_KAD_NAMED_MAX] = kad_peer[0];
    mu_kad_search_answered(&search, &kad_peer[300], named, MU_KAD_NAMED_MAX + 1);
    assert_int_equal(search.state, MU_KAD_SEARCH_ASKING);
    assert_int_equal(search.count, 1 + MU_KAD_NAMED_MAX);
    /* The last that counts does. */
    expect_ask(100);
    mu_kad_search_answered(&search, &kad_peer[100], &named[1], MU_KAD_NAMED_MAX);
    expect_end(MU_KAD_SEARCH_FOUND);
}

static void test_liar_with_ever_nearer_peers_costs_what_a_search_may(void **state)
{
    unsigned asks = 0;
    struct mu_kad_action action;

    (void)state;
    begin(20, 10, 64);
    add(KAD_PEERS - 10, KAD_PEERS - 1);
    while (mu_kad_search_next(&search, at(now_ms), &action) && action.type == MU_KAD_ACTION_ASK) {
        unsigned n = kad_number(&action.peer);

        asks++;
        assert_in_range(n, 1, KAD_PEERS - 1);
        /* Each names itself, us, and two that are nearer than it is; none answers in order. */
        mu_kad_search_answered(&search, &action.peer,
                               (struct mu_peer_id[]){kad_peer[n], kad_peer[SELF], kad_peer[n - 1],
                                                     kad_peer[n / 2 + 1]},
                               n > 1 ? 4 : 2);
        assert_true(search.count <= MU_KAD_CANDIDATES_MAX);
    }
    assert_int_equal(action.type, MU_KAD_ACTION_END);
    assert_true(asks <= 64);
    assert_int_equal(search.asked, asks);
}

static void test_silent_peers_cost_no_more_than_their_time(void **state)
{
    struct mu_kad_action action;
    unsigned asks = 0;

    (void)state;
    begin(20, 10, 64);
    add(1, 200);
    while (search.state == MU_KAD_SEARCH_ASKING) {
        while (mu_kad_search_next(&search, at(now_ms), &action)) {
            asks += action.type == MU_KAD_ACTION_ASK ? 1 : 0;
        }
        now_ms += ANSWER_MS;
    }
    assert_int_equal(search.state, MU_KAD_SEARCH_SPENT);
    assert_int_equal(asks, 64);
    assert_in_range(now_ms, 1000, 1000 + 9 * ANSWER_MS); /* 64 in tens, and a look at the end */
}

static int make_peers(void **state)
{
    (void)state;
    kad_make_peers();
    return 0;
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_nearest_is_asked_first_and_as_many_as_may_at_once),
        cmocka_unit_test(test_peer_is_asked_once_however_often_it_is_named),
        cmocka_unit_test(test_only_the_nearest_that_live_are_asked),
        cmocka_unit_test(test_target_that_is_named_is_found),
        cmocka_unit_test(test_without_a_peer_to_ask_it_ends_at_once),
        cmocka_unit_test(test_it_gives_up_when_the_nearest_have_answered),
        cmocka_unit_test(test_it_gives_up_when_all_have_failed),
        cmocka_unit_test(test_it_is_spent_when_it_has_asked_as_many_as_it_may),
        cmocka_unit_test(test_last_answer_that_may_be_asked_for_still_counts),
        cmocka_unit_test(test_it_can_be_stopped_before_and_in_the_middle),
        cmocka_unit_test(test_search_for_ourselves_asks_the_nearest_and_never_finds),
        cmocka_unit_test(test_peer_that_does_not_answer_in_time_is_late),
        cmocka_unit_test(test_answer_counts_until_it_was_said_to_be_late),
        cmocka_unit_test(test_all_that_are_late_are_said_before_others_are_asked),
        cmocka_unit_test(test_oldest_ask_is_late_first_whatever_was_answered_before),
        cmocka_unit_test(test_answer_time_without_end_never_comes),
        cmocka_unit_test(test_farthest_makes_room_and_its_answer_still_counts),
        cmocka_unit_test(test_parallel_asks_have_a_limit_of_their_own),
        cmocka_unit_test(test_terms_of_nothing_end_at_once),
        cmocka_unit_test(test_answers_that_nobody_asked_for_are_ignored),
        cmocka_unit_test(test_only_so_many_of_one_answer_count),
        cmocka_unit_test(test_liar_with_ever_nearer_peers_costs_what_a_search_may),
        cmocka_unit_test(test_silent_peers_cost_no_more_than_their_time),
    };

    return cmocka_run_group_tests(tests, make_peers, NULL);
}

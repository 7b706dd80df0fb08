/*
 * The walk along the line of succession: where a node is at home, whom it visits, and whom it
 * passes over.
 */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "proto/rdzv/succession_internal.h"

#define NONE MU_SUCCESSION_NO_RANK

static const struct mu_succession_heir heirs[] = {
    {"a", "a:1"}, {"b", "b:1"}, {"c", "c:1"}, {"d", "d:1"}, {"e", "e:1"}};
static const struct mu_succession_line line = {.count = 5, .heirs = heirs};

static struct mu_succession m;
static struct mu_succession_asker askers[2];
static mu_mono_t now;

/* --- the rig ---------------------------------------------------------------------------------- */

static void set_up_as(const char *name, const char *address)
{
    now = (mu_mono_t){MU_NS_PER_S};
    mu_succession_init(&m,
                       &(struct mu_succession_config){.name = name, .address = address, .seed = 1});
}

static void pull_all(void)
{
    while (mu_succession_next(&m, &(struct mu_succession_action){0})) {
    }
}

static void expect(enum mu_succession_action_type type, const char *address)
{
    struct mu_succession_action a;

    assert_true(mu_succession_next(&m, &a));
    assert_int_equal(a.type, type);
    assert_string_equal(a.address, address);
}

static void expect_nothing(void)
{
    struct mu_succession_action a;

    assert_false(mu_succession_next(&m, &a));
}

/* One of the three nodes of round 1. */
static struct mu_succession_view committed(uint32_t rank)
{
    return (struct mu_succession_view){.term = 1,
                                       .round = 1,
                                       .step = MU_SUCCESSION_COMMITTED,
                                       .count = 1,
                                       .may = {{.term = 1, .round = 1, .world = 3, .rank = rank}}};
}

static void ask(struct mu_succession_asker *asker, uint32_t rank)
{
    memset(asker, 0, sizeof(*asker));
    asker->ask.promised = 1;
    asker->ask.view = committed(rank);
    mu_succession_asked(&m, now, asker);
}

/* b of five, rank 1 of round 1, whose host was not one of the line. */
static void follow(void)
{
    set_up_as("b", "b:1");
    mu_succession_start(&m, now, &line, NONE);
    mu_succession_followed(&m, now, 1, "z:1");
    m.view = committed(1);
    pull_all();
}

/* --- the walk --------------------------------------------------------------------------------- */

/* Whom it visits; "": nobody. */
static const char *visited(void)
{
    return m.calls[!m.home_call].asking ? m.calls[!m.home_call].asked : "";
}

static const char *asked_at_home(void)
{
    return m.calls[m.home_call].asking ? m.calls[m.home_call].asked : "";
}

static void pass_time(void)
{
    assert_true(mu_mono_before(now, mu_succession_deadline(&m)));
    now = mu_succession_deadline(&m);
    mu_succession_tick(&m, now);
    pull_all();
}

static void test_walk_asks_at_home_all_the_time_and_visits_the_others_in_turn(void **state)
{
    const char *path[] = {"", "c:1", "d:1", "e:1", "c:1", "d:1"};

    (void)state;
    follow();
    mu_succession_lost(&m, now);
    for (size_t i = 0; i < sizeof(path) / sizeof(path[0]); i++) {
        assert_int_equal(m.state, MU_SUCCESSION_WALKING);
        assert_string_equal(asked_at_home(), "a:1");
        assert_string_equal(visited(), path[i]);
        pass_time();
    }
    assert_true(m.patience_ns <=
                MU_SUCCESSION_PATIENCE_MS * MU_NS_PER_MS * MU_SUCCESSION_PATIENCE_GROWTH);
}

static void test_walk_first_that_can_be_reached_again_is_home(void **state)
{
    (void)state;
    follow();
    mu_succession_lost(&m, now);
    mu_succession_unreached(&m, now, m.home_call);
    assert_int_equal(m.state, MU_SUCCESSION_STANDING); /* at b, its own place */
    while (strcmp(visited(), "a:1") != 0) {
        pass_time();
        assert_int_equal(m.state, MU_SUCCESSION_STANDING);
    }
    mu_succession_unreached(&m, now, !m.home_call); /* It cannot: it is passed over. */
    assert_int_equal(m.state, MU_SUCCESSION_STANDING);
    while (strcmp(visited(), "a:1") != 0) {
        pass_time();
    }
    pass_time(); /* It can. */
    assert_int_equal(m.state, MU_SUCCESSION_WALKING);
    assert_string_equal(asked_at_home(), "a:1");
    for (int i = 0; i < 9; i++) {
        pass_time();
        assert_string_equal(asked_at_home(), "a:1");
        assert_string_not_equal(visited(), "a:1");
    }
}

static void test_walk_visit_that_is_raised_is_the_only_ask(void **state)
{
    uint32_t call;

    (void)state;
    follow();
    mu_succession_lost(&m, now);
    pass_time();
    assert_string_equal(visited(), "c:1");
    call = !m.home_call;
    mu_succession_answered(&m, now, call,
                           &(struct mu_succession_answer){.kind = MU_SUCCESSION_RAISE, .term = 2});
    expect(MU_SUCCESSION_HANG_UP, "");
    expect(MU_SUCCESSION_ASK, "c:1");
    assert_int_equal(m.calls[call].term, 2);
    expect_nothing();
    ask(&askers[0], 0); /* Who has promised claims nothing. */
    ask(&askers[1], 2);
    assert_int_equal(m.promised, 2);
    pass_time(); /* It waited in vain. */
    assert_int_equal(m.promised, 3);
    assert_int_equal(m.state, MU_SUCCESSION_CLAIMING);
}

static void test_walk_passes_over_who_was_not_reached(void **state)
{
    char text[128];

    (void)state;
    set_up_as("z", "z:1");
    mu_succession_start(&m, now, &(struct mu_succession_line){.count = 2, .heirs = heirs}, NONE);
    expect(MU_SUCCESSION_ASK, "a:1");
    mu_succession_unreached(&m, now, m.home_call);
    expect(MU_SUCCESSION_ASK, "b:1");
    mu_succession_unreached(&m, now, m.home_call);
    expect_nothing(); /* Nobody is left for now. */
    mu_succession_explain(&m, text, sizeof(text));
    assert_string_equal(text, "none of the 2 nodes that could host the run can be reached");
    now = mu_succession_deadline(&m);
    mu_succession_tick(&m, now);
    expect(MU_SUCCESSION_ASK, "a:1");
}

static void test_walk_dead_entries_before_home_do_not_hide_it(void **state)
{
    static struct mu_succession_heir many[MU_SUCCESSION_ENDPOINTS_MAX];
    char addresses[MU_SUCCESSION_ENDPOINTS_MAX][8];
    const char *last = addresses[MU_SUCCESSION_ENDPOINTS_MAX - 1];

    (void)state;
    for (uint32_t i = 0; i < MU_SUCCESSION_ENDPOINTS_MAX; i++) {
        (void)snprintf(addresses[i], sizeof(addresses[i]), "x%u:1", i);
        many[i] = (struct mu_succession_heir){"x", addresses[i]};
    }
    set_up_as("z", "z:1");
    mu_succession_start(
        &m, now, &(struct mu_succession_line){.count = MU_SUCCESSION_ENDPOINTS_MAX, .heirs = many},
        NONE);
    for (uint32_t i = 0; i < 2 * MU_SUCCESSION_ENDPOINTS_MAX; i++) {
        now = mu_mono_add_ms(now, MU_SUCCESSION_REACH_MS);
        for (uint32_t k = 0; k < MU_SUCCESSION_CALLS; k++) {
            if (strcmp(m.calls[k].asked, last) != 0) {
                mu_succession_unreached(&m, now, k);
            }
        }
        mu_succession_tick(&m, now);
        pull_all();
    }
    assert_string_equal(asked_at_home(), last);
}

/* It stood where it had hosted, for those who know it there, and not at home. */
static void test_walk_of_a_host_that_has_stepped_down_leads_home(void **state)
{
    (void)state;
    follow();
    m.view.may[0].world = 5;
    mu_succession_lost(&m, now);
    mu_succession_insist(&m, now);
    assert_int_equal(m.state, MU_SUCCESSION_HOSTING);
    memset(&askers[0], 0, sizeof(askers[0]));
    askers[0].ask.promised = m.promised + 1;
    askers[0].ask.view = committed(2);
    askers[0].ask.view.may[0].world = 5;
    mu_succession_asked(&m, now, &askers[0]);
    assert_int_equal(m.state, MU_SUCCESSION_STANDING);
    pull_all();
    pass_time();
    assert_string_equal(asked_at_home(), "a:1");
}

static void test_walk_line_has_all_of_a_small_world_and_a_part_of_a_large(void **state)
{
    static struct mu_succession_heir many[MU_SUCCESSION_ENDPOINTS_MAX + MU_SUCCESSION_LINE_MAX];

    (void)state;
    assert_int_equal(mu_succession_line_len(MU_SUCCESSION_LINE_MAX), MU_SUCCESSION_LINE_MAX);
    assert_int_equal(mu_succession_line_rank(MU_SUCCESSION_LINE_MAX, 127), 127);
    assert_int_equal(mu_succession_line_len(MU_SUCCESSION_LINE_MAX + 1), MU_SUCCESSION_SPREAD);
    assert_int_equal(mu_succession_line_rank(65536, 31), 63488);
    for (size_t i = 0; i < sizeof(many) / sizeof(many[0]); i++) {
        many[i] = (struct mu_succession_heir){"x", "x:1"};
    }
    follow();
    mu_succession_set_line(
        &m, &(struct mu_succession_line){.count = sizeof(many) / sizeof(many[0]), .heirs = many});
    mu_succession_lost(&m, now);
    for (size_t i = 0; i < sizeof(many) / sizeof(many[0]); i++) {
        expect(MU_SUCCESSION_ASK, "x:1");
        mu_succession_unreached(&m, now, m.home_call);
    }
    expect_nothing();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_walk_asks_at_home_all_the_time_and_visits_the_others_in_turn),
        cmocka_unit_test(test_walk_first_that_can_be_reached_again_is_home),
        cmocka_unit_test(test_walk_visit_that_is_raised_is_the_only_ask),
        cmocka_unit_test(test_walk_passes_over_who_was_not_reached),
        cmocka_unit_test(test_walk_dead_entries_before_home_do_not_hide_it),
        cmocka_unit_test(test_walk_of_a_host_that_has_stepped_down_leads_home),
        cmocka_unit_test(test_walk_line_has_all_of_a_small_world_and_a_part_of_a_large),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * The machine of the succession, rule by rule and limit by limit. All interleavings of three nodes
 * are in tests/sim/test_succession.c, whole stories in tests/trace (succession-*.txt), and the way
 * along the line is in test_rdzv_succession_walk.c.
 */
#include "unit.h"

#include <stdio.h>
#include <string.h>

#include "proto/rdzv/succession_internal.h"

#define NONE  MU_SUCCESSION_NO_RANK
#define PEERS 9

static const struct mu_succession_heir heirs[] = {
    {"a", "a:1"}, {"b", "b:1"}, {"c", "c:1"}, {"d", "d:1"}, {"e", "e:1"}};
static const struct mu_succession_line line = {.count = 5, .heirs = heirs};

static struct mu_succession m;
static struct mu_succession_asker askers[PEERS];
static struct mu_succession_peer peers[PEERS];
static mu_mono_t now;

/* --- the rig ---------------------------------------------------------------------------------- */

static void set_up_as(const char *name, const char *address, enum mu_succession_mode mode)
{
    now = (mu_mono_t){MU_NS_PER_S};
    memset(askers, 0, sizeof(askers));
    memset(peers, 0, sizeof(peers));
    mu_succession_init(&m, &(struct mu_succession_config){
                               .name = name, .address = address, .mode = mode, .seed = 1});
}

static bool pull(enum mu_succession_action_type type, struct mu_succession_action *ret)
{
    while (mu_succession_next(&m, ret)) {
        if (ret->type == type) {
            return true;
        }
    }
    return false;
}

static void expect(enum mu_succession_action_type type, uint64_t term, const char *address)
{
    struct mu_succession_action a;

    assert_true(mu_succession_next(&m, &a));
    assert_int_equal(a.type, type);
    assert_int_equal(a.term, term);
    assert_string_equal(a.address, address);
}

static void expect_nothing(void)
{
    struct mu_succession_action a;

    assert_false(mu_succession_next(&m, &a));
}

static void expect_answer(enum mu_succession_answer_kind kind, uint64_t term, size_t who)
{
    struct mu_succession_asker *asker;
    struct mu_succession_answer answer;

    assert_true(mu_succession_next_answer(&m, &asker, &answer));
    assert_ptr_equal(asker, &askers[who]);
    assert_int_equal(answer.kind, kind);
    assert_int_equal(answer.term, term);
}

static struct mu_electorate electorate(uint64_t term, uint64_t round, uint32_t world, uint32_t rank)
{
    return (struct mu_electorate){.term = term, .round = round, .world = world, .rank = rank};
}

static struct mu_succession_view committed(uint64_t term, uint64_t round, uint32_t world,
                                           uint32_t rank)
{
    return (struct mu_succession_view){.term = term,
                                       .round = round,
                                       .step = MU_SUCCESSION_COMMITTED,
                                       .count = 1,
                                       .may = {electorate(term, round, world, rank)}};
}

static void ask(size_t who, uint64_t term, uint64_t promised, struct mu_succession_view view)
{
    memset(&askers[who], 0, sizeof(askers[who]));
    (void)snprintf(askers[who].name, sizeof(askers[who].name), "%s", heirs[who % 5].name);
    askers[who].ask.term = term;
    askers[who].ask.promised = promised;
    askers[who].ask.view = view;
    mu_succession_asked(&m, now, &askers[who]);
}

static void answer(enum mu_succession_answer_kind kind, uint64_t term, const char *address)
{
    mu_succession_answered(
        &m, now, m.home_call,
        &(struct mu_succession_answer){.kind = kind, .term = term, .address = address});
}

/* The only endpoint, which hosts term 1. */
static void host_alone(enum mu_succession_mode mode)
{
    set_up_as("a", "a:1", mode);
    mu_succession_start(&m, now, &(struct mu_succession_line){.count = 1, .heirs = heirs}, 0);
    expect(MU_SUCCESSION_HOST, 1, "");
    expect_nothing();
}

static void join(size_t who, struct mu_succession_view view)
{
    memset(&peers[who], 0, sizeof(peers[who]));
    (void)snprintf(peers[who].name, sizeof(peers[who].name), "n%zu", who);
    peers[who].view = view;
    mu_succession_peer_in(&m, now, &peers[who]);
}

static void begin(uint64_t round, uint32_t world)
{
    struct mu_errmsg msg;

    assert_int_equal(mu_succession_begin(&m, round, world, &msg), 0);
    for (uint32_t i = 0; i < world; i++) {
        mu_succession_seat(&m, &peers[i], i);
    }
    mu_succession_go(&m, now);
}

static void say(size_t who, enum mu_succession_step step)
{
    mu_succession_ready(&m, now, &peers[who], m.host_term, m.preparing.round, step);
}

static uint32_t count_prepares(enum mu_succession_step step)
{
    struct mu_succession_prepare prepare;
    struct mu_succession_peer *peer;
    uint32_t count = 0;

    while (mu_succession_next_prepare(&m, &peer, &prepare)) {
        assert_int_equal(prepare.step, step);
        count++;
    }
    return count;
}

/* A host of term 1 with a committed round 1 of `world` members. */
static void host_round(uint32_t world)
{
    struct mu_succession_action a;

    host_alone(MU_SUCCESSION_MAJORITY);
    for (uint32_t i = 0; i < world; i++) {
        join(i, i == 0 ? m.view : (struct mu_succession_view){0});
    }
    begin(1, world);
    for (uint32_t i = 0; i < world; i++) {
        say(i, MU_SUCCESSION_TOLD);
    }
    say(0, MU_SUCCESSION_BOUND);
    (void)count_prepares(MU_SUCCESSION_BOUND);
    assert_true(pull(MU_SUCCESSION_COMMIT, &a));
    assert_int_equal(a.round, 1);
}

/* A member of the round 1 of term 1, of `world`, that has lost its host; it stands. */
static void stand(uint32_t world)
{
    set_up_as("b", "b:1", MU_SUCCESSION_MAJORITY);
    mu_succession_start(&m, now, &line, NONE);
    mu_succession_followed(&m, now, 1, "a:1");
    m.view = committed(1, 1, world, 1);
    mu_succession_lost(&m, now); /* a:1, the first in the line, is not asked */
    assert_int_equal(m.state, MU_SUCCESSION_STANDING);
    while (mu_succession_next(&m, &(struct mu_succession_action){0})) {
    }
}

/* A member that follows the host of term 1, at z:1 and not in the line; it votes in round 1. */
static void follow(void)
{
    set_up_as("b", "b:1", MU_SUCCESSION_MAJORITY);
    mu_succession_start(&m, now, &line, NONE);
    expect(MU_SUCCESSION_ASK, 0, "a:1");
    answer(MU_SUCCESSION_FOLLOW_IT, 1, "z:1");
    expect(MU_SUCCESSION_FOLLOW, 1, "z:1");
    mu_succession_followed(&m, now, 1, "z:1");
    m.view = committed(1, 1, 3, 1);
    expect_nothing();
}

static struct mu_succession_prepare prepare_of(uint64_t term, uint64_t round,
                                               enum mu_succession_step step)
{
    return (struct mu_succession_prepare){.term = term,
                                          .step = step,
                                          .round = electorate(term, round, 2, 1),
                                          .base_count = 1,
                                          .bases = {electorate(1, 1, 3, NONE)}};
}

/* --- the voter -------------------------------------------------------------------------------- */

static void test_succession_only_endpoint_hosts_at_once(void **state)
{
    (void)state;
    host_alone(MU_SUCCESSION_MAJORITY);
    assert_int_equal(m.base_count, 1);
    assert_int_equal(m.bases[0].term, 0);
    assert_int_equal(m.first_round, 1);
}

static void test_succession_view_is_replaced_step_by_step_and_keeps_ranks(void **state)
{
    struct mu_succession_prepare p = prepare_of(1, 2, MU_SUCCESSION_TOLD);
    struct mu_succession_action a;

    (void)state;
    follow();
    mu_succession_prepare(&m, now, &p);
    assert_true(pull(MU_SUCCESSION_SAY_READY, &a));
    assert_int_equal(a.step, MU_SUCCESSION_TOLD);
    assert_int_equal(m.view.count, 1);
    assert_int_equal(m.view.may[0].rank, 1);
    assert_int_equal(m.view.told.round, 2);
    p.step = MU_SUCCESSION_BOUND;
    mu_succession_prepare(&m, now, &p);
    assert_true(pull(MU_SUCCESSION_SAY_READY, &a));
    assert_int_equal(a.step, MU_SUCCESSION_BOUND);
    assert_int_equal(m.view.count, 2);
    assert_int_equal(m.view.may[0].rank, 1);
    assert_int_equal(m.view.may[1].round, 2);
    mu_succession_prepare(&m, now, &p); /* said once */
    expect_nothing();
    mu_succession_assigned(&m, 1, 2);
    assert_int_equal(m.view.count, 1);
    assert_int_equal(m.view.may[0].round, 2);
    assert_int_equal(m.view.may[0].rank, 1);
    p = prepare_of(1, 2, MU_SUCCESSION_TOLD); /* It comes late. */
    mu_succession_prepare(&m, now, &p);
    expect_nothing();
    assert_int_equal(m.view.step, MU_SUCCESSION_COMMITTED);
}

/* Others may hold for possible what this node knows to be over. */
static void test_succession_remembers_its_rank_in_rounds_that_were_given_up(void **state)
{
    struct mu_electorate e = electorate(1, 2, 2, NONE);

    (void)state;
    follow();
    for (uint64_t round = 2; round < 2 + MU_SUCCESSION_PAST; round++) {
        struct mu_succession_prepare p = prepare_of(1, round, MU_SUCCESSION_TOLD);

        mu_succession_prepare(&m, now, &p);
        assert_int_equal(mu_succession_vote(&m.view, &e),
                         round < 1 + MU_SUCCESSION_PAST ? 1 : NONE);
        while (mu_succession_next(&m, &(struct mu_succession_action){0})) {
        }
    }
    assert_int_equal(m.view.past_count, MU_SUCCESSION_PAST);
}

static void test_succession_prepare_without_sense_is_ignored(void **state)
{
    struct mu_succession_prepare p = prepare_of(1, 2, MU_SUCCESSION_BOUND);
    struct mu_succession_view before;

    (void)state;
    follow();
    before = m.view;
    p.base_count = MU_SUCCESSION_CONFIGS; /* One more than fits beside the round itself. */
    mu_succession_prepare(&m, now, &p);
    p.base_count = 0;
    mu_succession_prepare(&m, now, &p);
    p = prepare_of(2, 2, MU_SUCCESSION_BOUND); /* not the term of our host */
    mu_succession_prepare(&m, now, &p);
    p = prepare_of(1, 2, MU_SUCCESSION_BOUND);
    p.round.rank = 2;
    mu_succession_prepare(&m, now, &p);
    p = prepare_of(1, 2, MU_SUCCESSION_COMMITTED);
    mu_succession_prepare(&m, now, &p);
    expect_nothing();
    assert_memory_equal(&before, &m.view, sizeof(before));
}

static void test_succession_ask_promises_nothing_until_raised_and_then_once(void **state)
{
    struct mu_succession_ask said;

    (void)state;
    follow();
    mu_succession_lost(&m, now);
    expect(MU_SUCCESSION_ASK, 0, "a:1");
    mu_succession_get_ask(&m, m.home_call, &said);
    assert_int_equal(said.term, 0);
    assert_int_equal(said.promised, 1);
    answer(MU_SUCCESSION_RAISE, 2, NULL);
    expect(MU_SUCCESSION_ASK, 2, "a:1");
    assert_int_equal(m.promised, 2);
    answer(MU_SUCCESSION_RAISE, 2, NULL); /* to the same: it may not have heard */
    expect(MU_SUCCESSION_ASK, 2, "a:1");
    mu_succession_unreached(&m, now, m.home_call);
    assert_int_equal(m.state, MU_SUCCESSION_STANDING);
    while (!m.calls[!m.home_call].asking || strcmp(m.calls[!m.home_call].asked, "c:1") != 0) {
        now = mu_succession_deadline(&m);
        mu_succession_tick(&m, now);
        while (mu_succession_next(&m, &(struct mu_succession_action){0})) {
        }
    }
    mu_succession_answered(
        &m, now, !m.home_call,
        &(struct mu_succession_answer){.kind = MU_SUCCESSION_RAISE, .term = 2}); /* another: no */
    expect(MU_SUCCESSION_ASK, 0, "c:1");
    mu_succession_answered(&m, now, !m.home_call,
                           &(struct mu_succession_answer){.kind = MU_SUCCESSION_RAISE, .term = 3});
    expect(MU_SUCCESSION_ASK, 3, "c:1");
}

static void test_succession_nothing_is_ready_below_a_promise(void **state)
{
    struct mu_succession_prepare p = prepare_of(1, 2, MU_SUCCESSION_TOLD);

    (void)state;
    follow();
    m.promised = 2;
    mu_succession_prepare(&m, now, &p);
    expect_nothing();
    assert_int_equal(m.view.round, 1);
    mu_succession_followed(&m, now, 1, "a:1");
    assert_int_equal(m.promised, 2);
}

static void test_succession_absurd_term_is_no_answer(void **state)
{
    (void)state;
    follow();
    mu_succession_lost(&m, now);
    expect(MU_SUCCESSION_ASK, 0, "a:1");
    answer(MU_SUCCESSION_RAISE, MU_SUCCESSION_TERM_MAX, NULL);
    assert_int_equal(m.promised, 1);
    assert_int_equal(m.state, MU_SUCCESSION_STANDING);
}

static void test_succession_forgets_only_when_told_by_a_lower_term(void **state)
{
    (void)state;
    follow();
    mu_succession_lost(&m, now);
    answer(MU_SUCCESSION_RAISE, 4, NULL);
    answer(MU_SUCCESSION_FORGET, 3, "e:1");
    assert_int_equal(m.promised, 0);
    assert_int_equal(m.view.count, 0);
    assert_int_equal(m.state, MU_SUCCESSION_TURNING);
    follow();
    mu_succession_lost(&m, now);
    answer(MU_SUCCESSION_FORGET, 3, "e:1");
    assert_int_equal(m.promised, 1);
    assert_int_equal(m.view.count, 1);
}

static void test_succession_asks_a_host_of_a_lower_term_itself(void **state)
{
    (void)state;
    follow();
    m.promised = 5;
    mu_succession_lost(&m, now);
    expect(MU_SUCCESSION_ASK, 0, "a:1");
    answer(MU_SUCCESSION_FOLLOW_IT, 3, "e:1");
    expect(MU_SUCCESSION_ASK, 0, "e:1");
    answer(MU_SUCCESSION_FOLLOW_IT, 3, "e:1"); /* That does not help: go on. */
    assert_int_equal(m.state, MU_SUCCESSION_STANDING);
}

/* --- the candidate ---------------------------------------------------------------------------- */

static void test_succession_needs_more_than_half(void **state)
{
    (void)state;
    stand(4);
    ask(2, 0, 1, committed(1, 1, 4, 2));
    assert_int_equal(m.state, MU_SUCCESSION_STANDING); /* two of four */
    ask(3, 0, 1, committed(1, 1, 4, 3));
    assert_int_equal(m.state, MU_SUCCESSION_CLAIMING);
    expect_answer(MU_SUCCESSION_RAISE, 2, 2);
    expect_answer(MU_SUCCESSION_RAISE, 2, 3);
    ask(2, 2, 2, committed(1, 1, 4, 2));
    assert_int_equal(m.state, MU_SUCCESSION_CLAIMING);
    ask(3, 2, 2, committed(1, 1, 4, 3));
    assert_int_equal(m.state, MU_SUCCESSION_HOSTING);
    expect(MU_SUCCESSION_HOST, 2, "");
    expect_answer(MU_SUCCESSION_FOLLOW_IT, 2, 2);
    expect_answer(MU_SUCCESSION_FOLLOW_IT, 2, 3);
    assert_int_equal(m.first_round, 2);
}

static void test_succession_promise_of_another_term_does_not_count(void **state)
{
    (void)state;
    stand(3);
    ask(2, 0, 6, committed(1, 1, 3, 2));
    expect_answer(MU_SUCCESSION_RAISE, 7, 2);
    ask(2, 6, 6, committed(1, 1, 3, 2));
    assert_int_equal(m.state, MU_SUCCESSION_CLAIMING);
    expect_answer(MU_SUCCESSION_RAISE, 7, 2);
}

static void test_succession_counts_a_voter_once(void **state)
{
    (void)state;
    stand(5);
    ask(2, 0, 1, committed(1, 1, 5, 2));
    ask(3, 0, 1, committed(1, 1, 5, 2)); /* the same rank again */
    ask(4, 0, 1, committed(1, 1, 5, 1)); /* our own */
    assert_int_equal(m.state, MU_SUCCESSION_STANDING);
    ask(5, 0, 1, committed(1, 1, 5, 4));
    assert_int_equal(m.state, MU_SUCCESSION_CLAIMING);
    for (size_t i = 2; i < 6; i++) {
        expect_answer(MU_SUCCESSION_RAISE, 2, i);
    }
    ask(2, 2, 2, committed(1, 1, 5, 2));
    ask(3, 2, 2, committed(1, 1, 5, 2));
    assert_int_equal(m.state, MU_SUCCESSION_CLAIMING);
    ask(5, 2, 2, committed(1, 1, 5, 4));
    assert_int_equal(m.state, MU_SUCCESSION_HOSTING);
}

/* We may be in the line by two names: as an endpoint, and as a member. Who asks at the one visits
 * the other, and hangs up there. */
static void test_succession_keeps_the_vote_of_an_ask_whose_double_has_hung_up(void **state)
{
    (void)state;
    stand(5);
    ask(2, 0, 1, committed(1, 1, 5, 2));
    ask(3, 0, 1, committed(1, 1, 5, 2));
    mu_succession_unasked(&m, &askers[3]);
    ask(4, 0, 1, committed(1, 1, 5, 4));
    assert_int_equal(m.state, MU_SUCCESSION_CLAIMING);
}

/* --- large elections -------------------------------------------------------------------------- */

#define LARGE 1001

static struct mu_succession_asker crowd[LARGE];

static void ask_large(uint32_t rank, uint64_t term, struct mu_succession_view view)
{
    memset(&crowd[rank], 0, sizeof(crowd[rank]));
    crowd[rank].ask.term = term;
    crowd[rank].ask.promised = term == 0 ? 1 : term;
    crowd[rank].ask.view = view;
    mu_succession_asked(&m, now, &crowd[rank]);
}

static uint32_t count_answers(enum mu_succession_answer_kind kind)
{
    struct mu_succession_asker *asker;
    struct mu_succession_answer got;
    uint32_t count = 0;

    while (mu_succession_next_answer(&m, &asker, &got)) {
        count += got.kind == kind;
    }
    return count;
}

static void test_succession_large_election_takes_just_as_many_as_it_needs(void **state)
{
    (void)state;
    stand(LARGE);
    ask_large(0, 0, committed(1, 1, LARGE, 0));
    for (uint32_t i = 2; i < 500; i++) {
        ask_large(i, 0, committed(1, 1, LARGE, i));
    }
    ask(0, 0, 1, committed(1, 1, LARGE, 7)); /* twice the same */
    assert_int_equal(m.state, MU_SUCCESSION_STANDING);
    ask_large(500, 0, committed(1, 1, LARGE, 500));
    assert_int_equal(m.state, MU_SUCCESSION_CLAIMING);
    assert_int_equal(count_answers(MU_SUCCESSION_RAISE), 501);
    for (uint32_t i = 501; i < LARGE; i++) {
        ask_large(i, 0, committed(1, 1, LARGE, i)); /* Who comes late is raised, too. */
        assert_int_equal(count_answers(MU_SUCCESSION_RAISE), 1);
    }
    for (uint32_t i = LARGE - 1; i > LARGE / 2; i--) {
        assert_int_equal(m.state, MU_SUCCESSION_CLAIMING);
        ask_large(i, 2, committed(1, 1, LARGE, i));
    }
    assert_int_equal(m.state, MU_SUCCESSION_HOSTING);
    assert_int_equal(count_answers(MU_SUCCESSION_FOLLOW_IT), LARGE / 2);
}

static void test_succession_large_election_counts_again_for_a_later_view(void **state)
{
    (void)state;
    stand(LARGE);
    ask_large(2, 0, committed(1, 1, LARGE, 2));
    ask_large(0, 0, committed(1, 2, 3, 0));
    assert_int_equal(m.state, MU_SUCCESSION_STANDING);
    ask_large(3, 0, committed(1, 2, 3, 1));
    assert_int_equal(m.state, MU_SUCCESSION_CLAIMING); /* Of three, not of a thousand. */
}

static void test_succession_large_election_counts_again_without_a_later_view(void **state)
{
    (void)state;
    stand(3);
    ask_large(0, 0, committed(1, 2, LARGE, 5));
    ask(2, 0, 1, committed(1, 1, 3, 2));
    assert_int_equal(m.state, MU_SUCCESSION_STANDING);
    mu_succession_unasked(&m, &crowd[0]);
    ask(3, 0, 1, committed(1, 1, 3, 0));
    assert_int_equal(m.state, MU_SUCCESSION_CLAIMING);
}

static void test_succession_world_has_a_limit(void **state)
{
    (void)state;
    stand(3);
    ask(2, 0, 1, committed(1, 2, MU_SUCCESSION_WORLD_MAX + 1, 2)); /* it counts for nothing */
    assert_int_equal(askers[2].ask.view.count, 0);
    ask(3, 0, 1, committed(1, 2, MU_SUCCESSION_WORLD_MAX, MU_SUCCESSION_WORLD_MAX - 1));
    assert_int_equal(askers[3].ask.view.count, 1);
    ask(4, 0, 1, committed(1, 2, MU_SUCCESSION_WORLD_MAX, 0));
    assert_int_equal(m.state, MU_SUCCESSION_STANDING);
}

static void test_succession_takes_the_latest_view_and_needs_all_its_electorates(void **state)
{
    struct mu_succession_view later = {.term = 1,
                                       .round = 2,
                                       .step = MU_SUCCESSION_BOUND,
                                       .count = 2,
                                       .may = {electorate(1, 1, 3, 2), electorate(1, 2, 4, 0)}};
    struct mu_succession_view told = {.term = 1,
                                      .round = 2,
                                      .step = MU_SUCCESSION_TOLD,
                                      .count = 1,
                                      .may = {electorate(1, 1, 3, NONE)},
                                      .told = electorate(1, 2, 4, 1)};

    (void)state;
    stand(3);
    ask(2, 0, 1, later);
    assert_int_equal(m.state, MU_SUCCESSION_STANDING); /* two of three, but one of four */
    ask(3, 0, 1, told);
    told.told.rank = 2;
    assert_int_equal(m.state, MU_SUCCESSION_STANDING);
    ask(4, 0, 1, told);
    assert_int_equal(m.state, MU_SUCCESSION_CLAIMING);
    later.term = 2;
    ask(2, 2, 2, later);
    assert_int_equal(m.state, MU_SUCCESSION_CLAIMING);
}

static void test_succession_takes_the_newest_legacy(void **state)
{
    (void)state;
    stand(3);
    assert_true(mu_succession_set_legacy(
        &m, &(struct mu_succession_legacy){.term = 1, .round = 1, .version = 9}));
    assert_false(mu_succession_set_legacy(
        &m, &(struct mu_succession_legacy){.term = 1, .round = 1, .version = 8}));
    assert_false(mu_succession_set_legacy(
        &m, &(struct mu_succession_legacy){
                .term = 3, .bytes = {(const uint8_t *)"", MU_SUCCESSION_LEGACY_MAX + 1}}));
    ask(2, 0, 1, committed(1, 1, 3, 2));
    expect_answer(MU_SUCCESSION_RAISE, 2, 2);
    memset(&askers[2], 0, sizeof(askers[2]));
    askers[2].ask = (struct mu_succession_ask){.term = 2,
                                               .promised = 2,
                                               .view = committed(1, 1, 3, 2),
                                               .legacy = {.term = 1, .round = 2, .version = 1}};
    mu_succession_asked(&m, now, &askers[2]);
    assert_int_equal(m.state, MU_SUCCESSION_HOSTING);
    assert_int_equal(m.heritage.round, 2);
}

static void test_succession_answers_once_it_has_heard_its_host(void **state)
{
    struct mu_succession_asker *asker;
    struct mu_succession_answer got;

    (void)state;
    follow();
    ask(2, 0, 1, committed(1, 1, 3, 2));
    expect(MU_SUCCESSION_CHECK, 0, "");
    assert_false(mu_succession_next_answer(&m, &asker, &got));
    mu_succession_heard(&m, now);
    expect_answer(MU_SUCCESSION_FOLLOW_IT, 1, 2);
    ask(2, 0, 1, committed(1, 1, 3, 2));
    mu_succession_lost(&m, now); /* now it has lost it, too, and has two of three */
    expect_answer(MU_SUCCESSION_RAISE, 2, 2);
}

static void test_succession_any_hosts_with_what_it_has(void **state)
{
    struct mu_succession_action a;

    (void)state;
    set_up_as("a", "a:1", MU_SUCCESSION_ANY);
    mu_succession_start(&m, now, &(struct mu_succession_line){.count = 3, .heirs = heirs}, 0);
    assert_int_equal(m.state, MU_SUCCESSION_STANDING);
    for (int i = 0; i < 20 && m.state != MU_SUCCESSION_HOSTING; i++) {
        now = mu_succession_deadline(&m);
        mu_succession_tick(&m, now);
    }
    assert_true(pull(MU_SUCCESSION_HOST, &a));
    assert_true(now.ns >= MU_NS_PER_S + MU_SUCCESSION_ANY_PATIENCES * MU_SUCCESSION_PATIENCE_MS *
                                            MU_NS_PER_MS);
    join(0, m.view);
    begin(1, 1);
    expect_nothing(); /* not before PREPARE was pulled */
    assert_int_equal(count_prepares(MU_SUCCESSION_BOUND), 1);
    assert_true(pull(MU_SUCCESSION_COMMIT, &a));
}

/* --- the host --------------------------------------------------------------------------------- */

static void test_succession_host_binds_when_all_are_told_and_commits_with_half(void **state)
{
    struct mu_succession_action a;

    (void)state;
    host_round(4);
    begin(2, 4);
    assert_int_equal(count_prepares(MU_SUCCESSION_TOLD), 4);
    for (size_t i = 0; i < 3; i++) {
        say(i, MU_SUCCESSION_TOLD);
    }
    say(0, MU_SUCCESSION_BOUND); /* That is not the step. */
    say(1, MU_SUCCESSION_BOUND);
    assert_int_equal(count_prepares(MU_SUCCESSION_BOUND), 0);
    say(3, MU_SUCCESSION_TOLD);
    assert_int_equal(count_prepares(MU_SUCCESSION_BOUND), 4);
    expect_nothing();
    say(0, MU_SUCCESSION_BOUND);
    expect_nothing();
    say(0, MU_SUCCESSION_BOUND);
    mu_succession_ready(&m, now, &peers[1], 1, 1, MU_SUCCESSION_BOUND); /* another round */
    expect_nothing();
    assert_true(mu_succession_waits(&m));
    say(1, MU_SUCCESSION_BOUND);
    assert_true(pull(MU_SUCCESSION_COMMIT, &a));
    assert_int_equal(a.round, 2);
    assert_false(mu_succession_waits(&m));
    assert_int_equal(m.bases[0].round, 2);
}

static void test_succession_host_of_two_goes_on_alone_and_of_three_waits(void **state)
{
    char text[256];
    struct mu_succession_action a;

    (void)state;
    host_round(2);
    mu_succession_peer_out(&m, now, &peers[1], false);
    begin(2, 1);
    say(0, MU_SUCCESSION_TOLD);
    say(0, MU_SUCCESSION_BOUND);
    assert_true(pull(MU_SUCCESSION_COMMIT, &a));
    host_round(3);
    mu_succession_peer_out(&m, now, &peers[1], false);
    mu_succession_peer_out(&m, now, &peers[2], false);
    begin(2, 1);
    say(0, MU_SUCCESSION_TOLD);
    say(0, MU_SUCCESSION_BOUND);
    expect_nothing();
    mu_succession_explain(&m, text, sizeof(text));
    assert_string_equal(text,
                        "1 of 3 nodes of round 1 are here, n1 and n2 are missing; the others may "
                        "have gone on without us, so this node waits for half of them "
                        "(--succession any goes on alone)");
    join(2, committed(1, 1, 3, 2)); /* One is back, and votes before it has a rank. */
    assert_int_equal(count_prepares(MU_SUCCESSION_BOUND), 2);
    say(2, MU_SUCCESSION_BOUND);
    assert_true(pull(MU_SUCCESSION_COMMIT, &a));
}

static void test_succession_who_left_in_good_order_or_is_old_stands_in_nobodys_way(void **state)
{
    struct mu_succession_action a;

    (void)state;
    host_round(3);
    mu_succession_peer_out(&m, now, &peers[1], true);
    mu_succession_peer_out(&m, now, &peers[2], false);
    begin(2, 1);
    say(0, MU_SUCCESSION_TOLD);
    say(0, MU_SUCCESSION_BOUND);
    assert_true(pull(MU_SUCCESSION_COMMIT, &a));
    host_round(3);
    peers[1].old = true;
    mu_succession_peer_out(&m, now, &peers[1], false);
    mu_succession_peer_out(&m, now, &peers[1], false); /* harmless */
    begin(2, 1);
    say(0, MU_SUCCESSION_TOLD);
    say(0, MU_SUCCESSION_BOUND);
    assert_true(pull(MU_SUCCESSION_COMMIT, &a));
}

static void test_succession_round_that_has_lost_a_member_does_not_begin(void **state)
{
    (void)state;
    host_round(3);
    begin(2, 3);
    for (size_t i = 0; i < 3; i++) {
        say(i, MU_SUCCESSION_TOLD);
    }
    say(0, MU_SUCCESSION_BOUND);
    mu_succession_peer_out(&m, now, &peers[1], true); /* It would be the second of three. */
    expect_nothing();
    assert_false(mu_succession_waits(&m));
}

static void test_succession_host_refuses_numbers_that_were_used(void **state)
{
    struct mu_errmsg msg;

    (void)state;
    host_round(2);
    assert_int_equal(mu_succession_begin(&m, 1, 2, &msg), MUSTER_EINVAL);
    assert_non_null(strstr(msg.text, "round 1"));
    assert_int_equal(mu_succession_begin(&m, 2, 0, &msg), MUSTER_EINVAL);
    begin(2, 2);
    mu_succession_abort(&m);
    assert_int_equal(mu_succession_begin(&m, 2, 2, &msg), MUSTER_EINVAL);
    m.base_count = MU_SUCCESSION_CONFIGS;
    assert_int_equal(mu_succession_begin(&m, 3, 2, &msg), MUSTER_ELIMIT);
    follow();
    assert_int_equal(mu_succession_begin(&m, 3, 2, &msg), MUSTER_ECLOSED);
}

static void test_succession_host_steps_down_for_a_voter_that_has_promised_more(void **state)
{
    (void)state;
    host_round(3);
    ask(4, 0, 0, (struct mu_succession_view){0}); /* a newcomer */
    expect_answer(MU_SUCCESSION_FOLLOW_IT, 1, 4);
    ask(4, 0, 7, committed(0, 0, 3, 1)); /* One of long ago: it has no vote here. */
    expect_answer(MU_SUCCESSION_FORGET, 1, 4);
    assert_int_equal(m.state, MU_SUCCESSION_HOSTING);
    m.view = committed(1, 1, 3, 0);
    ask(2, 0, 7, committed(1, 1, 3, 2));
    expect(MU_SUCCESSION_STEP_DOWN, 0, "");
    assert_int_equal(m.state, MU_SUCCESSION_CLAIMING);
    expect_answer(MU_SUCCESSION_RAISE, 8, 2);
    assert_true(mu_list_empty(&m.peers));
    mu_succession_peer_out(&m, now, &peers[0], false); /* harmless */
}

/* It knows that it did not commit the round; nobody else could. */
static void test_succession_host_that_steps_down_gives_its_round_up(void **state)
{
    struct mu_succession_prepare p;
    struct mu_succession_peer *peer;

    (void)state;
    host_round(3);
    m.view = committed(1, 1, 3, 0);
    mu_succession_peer_out(&m, now, &peers[1], false);
    mu_succession_peer_out(&m, now, &peers[2], false);
    begin(2, 1);
    say(0, MU_SUCCESSION_TOLD);
    while (mu_succession_next_prepare(&m, &peer, &p)) {
        mu_succession_prepare(&m, now, &p);
    }
    assert_int_equal(m.view.step, MU_SUCCESSION_BOUND);
    assert_int_equal(m.view.count, 2);
    mu_succession_better(&m, now, &(struct mu_succession_probe){3, 0, "b:1"});
    assert_int_equal(m.state, MU_SUCCESSION_TURNING);
    assert_int_equal(m.view.count, 1);
    assert_int_equal(m.view.may[0].round, 1);
    assert_int_equal(m.view.may[0].rank, 0);
    assert_int_equal(m.view.round, 3);
}

static void test_succession_host_that_was_started_anew_steps_down_for_the_old_run(void **state)
{
    (void)state;
    host_alone(MU_SUCCESSION_MAJORITY);
    ask(1, 0, 1, committed(1, 5, 3, 1));
    expect(MU_SUCCESSION_STEP_DOWN, 0, "");
    assert_int_equal(m.state, MU_SUCCESSION_STANDING);
    ask(2, 0, 1, committed(1, 5, 3, 2));
    expect_answer(MU_SUCCESSION_RAISE, 2, 1);
    host_alone(MU_SUCCESSION_MAJORITY);
    join(1, committed(1, 5, 3, 1));
    expect(MU_SUCCESSION_STEP_DOWN, 0, "");
}

static void test_succession_probes_settle_who_hosts(void **state)
{
    struct mu_succession_probe reply;

    (void)state;
    host_alone(MU_SUCCESSION_MAJORITY);
    mu_succession_probed(&m, now, &(struct mu_succession_probe){0, 0, "b:1"}, &reply);
    assert_int_equal(reply.term, 1);
    mu_succession_probed(&m, now, &(struct mu_succession_probe){1, 1, "b:1"}, &reply);
    assert_int_equal(reply.term, 1); /* The address decides. */
    assert_int_equal(m.state, MU_SUCCESSION_HOSTING);
    mu_succession_probed(&m, now, &(struct mu_succession_probe){1, 7, "b:1"}, &reply);
    assert_int_equal(reply.term, 0);
    expect(MU_SUCCESSION_STEP_DOWN, 1, "b:1");
    expect(MU_SUCCESSION_FOLLOW, 1, "b:1");
    follow();
    mu_succession_lost(&m, now);
    mu_succession_better(&m, now, &(struct mu_succession_probe){2, 0, "d:1"});
    assert_int_equal(m.state, MU_SUCCESSION_TURNING);
    assert_string_equal(m.host, "d:1");
}

static void test_succession_host_probes_the_endpoints_after_a_succession(void **state)
{
    struct mu_succession_action a;

    (void)state;
    host_alone(MU_SUCCESSION_MAJORITY);
    mu_succession_tick(&m, now);
    expect_nothing();
    assert_int_equal(mu_succession_deadline(&m).ns, UINT64_MAX);
    stand(3);
    ask(2, 0, 1, committed(1, 1, 3, 2));
    expect_answer(MU_SUCCESSION_RAISE, 2, 2);
    ask(2, 2, 2, committed(1, 1, 3, 2));
    for (int i = 0; i < 5; i++) {
        now = mu_succession_deadline(&m);
        mu_succession_tick(&m, now);
    }
    assert_true(pull(MU_SUCCESSION_PROBE, &a));
    assert_string_not_equal(a.address, "b:1");
}

/* A host that waits asks the whole line. Meets PROBE_MS_MIN of proto/rdzv/succession_host.c. */
static void test_succession_probes_are_a_tenth_of_a_second_apart_at_least(void **state)
{
    static struct mu_succession_heir many[MU_SUCCESSION_LINE_MAX];
    mu_mono_t before;

    (void)state;
    for (size_t i = 0; i < MU_SUCCESSION_LINE_MAX; i++) {
        many[i] = (struct mu_succession_heir){"x", "x:1"};
    }
    host_round(3);
    mu_succession_set_line(
        &m, &(struct mu_succession_line){.count = MU_SUCCESSION_LINE_MAX, .heirs = many});
    mu_succession_peer_out(&m, now, &peers[1], false);
    mu_succession_peer_out(&m, now, &peers[2], false);
    begin(2, 1);
    before = mu_succession_deadline(&m);
    mu_succession_tick(&m, before);
    expect(MU_SUCCESSION_PROBE, 0, "x:1");
    assert_int_equal(mu_succession_deadline(&m).ns - before.ns, 100 * MU_NS_PER_MS);
}

/* --- texts ------------------------------------------------------------------------------------ */

static void test_succession_says_who_is_missing(void **state)
{
    char text[512];
    char tiny[8];

    (void)state;
    stand(5);
    ask(0, 0, 1, committed(1, 1, 5, 0));
    mu_succession_explain(&m, text, sizeof(text));
    assert_string_equal(
        text, "waiting for promises: 2 of 5 nodes of round 1, c, d and e are missing; more than "
              "half of them must be here, and agents that were started anew do not count (if too "
              "many were, start this one anew, too; --succession any goes on with those who are "
              "here)");
    mu_succession_explain(&m, tiny, sizeof(tiny));
    assert_string_equal(tiny, "waiting");
    follow();
    mu_succession_explain(&m, text, sizeof(text));
    assert_string_equal(text, "");
}

static void test_succession_says_which_endpoints_are_missing(void **state)
{
    char text[512];

    (void)state;
    set_up_as("b", "b:1", MU_SUCCESSION_MAJORITY);
    mu_succession_start(&m, now, &line, 1);
    ask(4, 0, 0, committed(0, 0, 5, 3));
    mu_succession_explain(&m, text, sizeof(text));
    assert_string_equal(text, "asking a:1 to host the run");
    mu_succession_unreached(&m, now, m.home_call);
    mu_succession_explain(&m, text, sizeof(text));
    assert_string_equal(
        text, "waiting for promises: 2 of 5 named endpoints, a:1, c:1 and e:1 are missing");
}

static void test_succession_names_few_of_many_that_are_missing(void **state)
{
    char text[512];

    (void)state;
    host_round(PEERS);
    for (size_t i = 1; i < PEERS; i++) {
        mu_succession_peer_out(&m, now, &peers[i], false);
    }
    assert_int_equal(m.missing_count, MU_SUCCESSION_MISSING);
    begin(2, 1);
    mu_succession_explain(&m, text, sizeof(text));
    assert_string_equal(text, "waiting until all nodes of round 2 are ready, n0 is missing");
}

static void test_succession_cuts_names_that_are_too_long(void **state)
{
    char text[MU_SUCCESSION_NAME_MAX + 1];
    char from[MU_SUCCESSION_NAME_MAX + 10];

    (void)state;
    memset(from, 'x', sizeof(from));
    from[sizeof(from) - 1] = '\0';
    mu_succession_set(text, from);
    assert_int_equal(strlen(text), MU_SUCCESSION_NAME_MAX);
}

static void test_succession_who_has_left_says_so(void **state)
{
    (void)state;
    host_alone(MU_SUCCESSION_MAJORITY);
    m.state = MU_SUCCESSION_STANDING;
    ask(2, 0, 9, committed(7, 7, 9, 2));
    mu_succession_left(&m);
    expect_answer(MU_SUCCESSION_LEFT, 0, 2);
    ask(3, 0, 0, committed(1, 1, 3, 2));
    expect_answer(MU_SUCCESSION_LEFT, 0, 3);
    mu_succession_start(&m, now, &line, 0);
    ask(2, 0, 0, committed(1, 1, 3, 2)); /* It waits again. */
    assert_true(!mu_list_empty(&m.askers));
}

static void test_succession_left_forgets_all(void **state)
{
    (void)state;
    host_round(3);
    mu_succession_left(&m);
    assert_int_equal(m.state, MU_SUCCESSION_OUT);
    assert_int_equal(m.promised, 0);
    assert_int_equal(m.view.count, 0);
    assert_true(mu_list_empty(&m.peers));
    expect_nothing();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_succession_only_endpoint_hosts_at_once),
        cmocka_unit_test(test_succession_view_is_replaced_step_by_step_and_keeps_ranks),
        cmocka_unit_test(test_succession_remembers_its_rank_in_rounds_that_were_given_up),
        cmocka_unit_test(test_succession_prepare_without_sense_is_ignored),
        cmocka_unit_test(test_succession_ask_promises_nothing_until_raised_and_then_once),
        cmocka_unit_test(test_succession_nothing_is_ready_below_a_promise),
        cmocka_unit_test(test_succession_absurd_term_is_no_answer),
        cmocka_unit_test(test_succession_forgets_only_when_told_by_a_lower_term),
        cmocka_unit_test(test_succession_asks_a_host_of_a_lower_term_itself),
        cmocka_unit_test(test_succession_needs_more_than_half),
        cmocka_unit_test(test_succession_promise_of_another_term_does_not_count),
        cmocka_unit_test(test_succession_counts_a_voter_once),
        cmocka_unit_test(test_succession_keeps_the_vote_of_an_ask_whose_double_has_hung_up),
        cmocka_unit_test(test_succession_large_election_takes_just_as_many_as_it_needs),
        cmocka_unit_test(test_succession_large_election_counts_again_for_a_later_view),
        cmocka_unit_test(test_succession_large_election_counts_again_without_a_later_view),
        cmocka_unit_test(test_succession_world_has_a_limit),
        cmocka_unit_test(test_succession_takes_the_latest_view_and_needs_all_its_electorates),
        cmocka_unit_test(test_succession_takes_the_newest_legacy),
        cmocka_unit_test(test_succession_answers_once_it_has_heard_its_host),
        cmocka_unit_test(test_succession_any_hosts_with_what_it_has),
        cmocka_unit_test(test_succession_host_binds_when_all_are_told_and_commits_with_half),
        cmocka_unit_test(test_succession_host_of_two_goes_on_alone_and_of_three_waits),
        cmocka_unit_test(test_succession_who_left_in_good_order_or_is_old_stands_in_nobodys_way),
        cmocka_unit_test(test_succession_round_that_has_lost_a_member_does_not_begin),
        cmocka_unit_test(test_succession_host_refuses_numbers_that_were_used),
        cmocka_unit_test(test_succession_host_steps_down_for_a_voter_that_has_promised_more),
        cmocka_unit_test(test_succession_host_that_steps_down_gives_its_round_up),
        cmocka_unit_test(test_succession_host_that_was_started_anew_steps_down_for_the_old_run),
        cmocka_unit_test(test_succession_probes_settle_who_hosts),
        cmocka_unit_test(test_succession_host_probes_the_endpoints_after_a_succession),
        cmocka_unit_test(test_succession_probes_are_a_tenth_of_a_second_apart_at_least),
        cmocka_unit_test(test_succession_says_who_is_missing),
        cmocka_unit_test(test_succession_says_which_endpoints_are_missing),
        cmocka_unit_test(test_succession_names_few_of_many_that_are_missing),
        cmocka_unit_test(test_succession_cuts_names_that_are_too_long),
        cmocka_unit_test(test_succession_who_has_left_says_so),
        cmocka_unit_test(test_succession_left_forgets_all),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

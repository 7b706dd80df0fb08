/*
 * The room of a run as a whole: how it is closed and opened again, its budget of restarts, what it
 * says of who is missing, what it refuses, and what it costs.
 */
#include "unit.h"

#include "failheap.h"
#include "room_fixture.h"

static struct room_fixture f;

/* --- closing, reopening, the restart budget -------------------------------------------------- */

static void test_room_close_puts_everybody_out(void **state)
{
    struct mu_room_member *m;
    struct mu_room_notice n;

    (void)state;
    room_setup(&f, 2, 2);
    room_join(&f, "a");
    room_join(&f, "b");
    room_join(&f, "c");
    assert_false(mu_room_done(&f.room));

    mu_room_close(&f.room, f.now); /* The ranks were not told yet and are not any more. */
    assert_int_equal(room_member(&f, "a")->state, MU_ROOM_OUT);
    assert_int_equal(room_try_join(&f, "d"), MUSTER_ECLOSED);
    assert_string_equal(f.msg.text, "the run is closed");
    assert_true(mu_room_next_notice(&f.room, &m, &n));
    assert_string_equal(m->name, "a");
    assert_int_equal(n.kind, MU_ROOM_CLOSED);
    assert_int_equal(n.was, MU_ROOM_RUNNING);
    room_leave(&f, "b"); /* Its session is gone before it could be told. */
    assert_false(mu_room_done(&f.room));
    assert_true(mu_room_next_notice(&f.room, &m, &n));
    assert_string_equal(m->name, "c");
    assert_int_equal(n.was, MU_ROOM_SPARE);

    assert_true(mu_room_done(&f.room));
    mu_room_close(&f.room, f.now);
    room_lose(&f, "a");
    mu_room_fail(&f.room, f.now, room_member(&f, "a"), 0);
    room_pass(&f, 100000);
    assert_int_equal(mu_room_deadline(&f.room).ns, MU_MONO_NEVER.ns);
    room_expect(&f, "");
    room_teardown(&f);
}

static void test_room_closed_run_can_be_started_again_as_a_new_incarnation(void **state)
{
    struct mu_room_member *m;
    struct mu_room_notice n;

    (void)state;
    room_setup(&f, 1, 1);
    room_join(&f, "a");
    mu_room_close(&f.room, f.now);
    room_expect(&f, "a closed\n");

    mu_room_fini(&f.room);
    assert_int_equal(mu_room_init(&f.room, &f.config, 8), 0);
    room_join(&f, "a");

    assert_true(mu_room_next_notice(&f.room, &m, &n));
    assert_int_equal(n.kind, MU_ROOM_ASSIGNED);
    assert_int_equal(n.incarnation, 8);
    assert_int_equal(n.round, 0);
    room_teardown(&f);
}

static void test_room_restart_budget_is_kept_for_the_run(void **state)
{
    struct mu_room_member *m;
    struct mu_room_notice n;
    char text[128];

    (void)state;
    room_prepare(&f, 2, 2);
    f.config.restarts_max = 2;
    room_open(&f);
    room_join(&f, "a");
    room_join(&f, "b");
    room_join(&f, "spare");
    assert_true(mu_room_next_notice(&f.room, &m, &n));
    assert_int_equal(n.restarts_left, 2);
    room_expect(&f, "b assigned 0: 1/2\n");

    /* Whoever fails, the budget is the same; who is lost costs nothing. */
    mu_room_fail(&f.room, f.now, room_member(&f, "a"), 0);
    room_lose(&f, "b");
    assert_true(mu_room_next_notice(&f.room, &m, &n));
    assert_int_equal(n.kind, MU_ROOM_ENDED);
    assert_true(mu_room_next_notice(&f.room, &m, &n));
    assert_int_equal(n.kind, MU_ROOM_ASSIGNED);
    assert_int_equal(n.restarts_left, 1);
    room_join(&f, "c");
    room_expect(&f, "spare assigned 2: 1/2\n");

    mu_room_fail(&f.room, f.now, room_member(&f, "spare"), 2);
    mu_room_fail(&f.room, f.now, room_member(&f, "a"), 3);
    room_expect(&f, "a failed 3: failed a\nspare failed 3: failed a\nc failed 3: failed a\n");
    mu_room_explain(&f.room, text, sizeof(text));
    assert_string_equal(text, "the run has used up its 2 restarts; the last round ended because "
                              "a failed");
    assert_int_equal(room_try_join(&f, "d"), MUSTER_ECLOSED);
    assert_string_equal(f.msg.text, "the run has used up its 2 restarts");
    assert_true(mu_room_done(&f.room));
    room_teardown(&f);
}

/* Members that are lost again and again, faster than any job loses them. */
static void test_room_that_loses_members_without_end_fails(void **state)
{
    char text[256];

    (void)state;
    room_prepare(&f, 1, 2);
    f.config.losses = (struct mu_losses){.max = 3, .window_ms = 3000};
    room_open(&f);
    room_join(&f, "a");
    for (unsigned i = 0; i < 3; i++) {
        room_join(&f, "b");
        room_lose(&f, "b");
    }
    /* One more is free when its time has passed. */
    room_pass(&f, 1000);
    room_join(&f, "b");
    room_lose(&f, "b");
    assert_int_equal(f.room.state, MU_ROOM_IS_GATHERING);
    assert_int_equal(f.room.restarts, 0);
    room_join(&f, "b");
    room_leave(&f, "b"); /* That one was told to go. */
    assert_int_equal(f.room.state, MU_ROOM_IS_GATHERING);
    room_join(&f, "b");
    room_lose(&f, "b");
    assert_int_equal(f.room.state, MU_ROOM_IS_FAILED);
    mu_room_explain(&f.room, text, sizeof(text));
    assert_string_equal(text, "the run has lost nodes too often: more than 3 times within 3 s, the "
                              "bound of --max-losses; the last one was b");
    assert_int_equal(room_try_join(&f, "c"), MUSTER_ECLOSED);
    assert_string_equal(f.msg.text, "the run has lost nodes too often");
    room_teardown(&f);
}

/* A node is lost every hour, and comes back five minutes later. Each time the workers of another
 * one fail first, because they have lost their peer. */
static void test_room_of_two_weeks_with_a_loss_every_hour_ends_well(void **state)
{
    (void)state;
    room_prepare(&f, 1, 4);
    f.config.restarts_max = 0;
    f.config.losses = MU_LOSSES_DEFAULT;
    room_open(&f);
    room_join(&f, "a");
    room_join(&f, "b");
    room_join(&f, "c");
    room_join(&f, "d");
    for (unsigned hour = 0; hour < 14 * 24; hour++) {
        assert_int_equal(f.room.in[MU_ROOM_RUNNING].count, 4);
        mu_room_doubt(&f.room, f.now, mu_mono_add_ms(f.now, 3000));
        mu_room_fail(&f.room, f.now, room_member(&f, "a"), f.room.round);
        room_pass(&f, 2000);
        room_lose(&f, "d");
        room_pass(&f, 1000);
        assert_int_equal(f.room.in[MU_ROOM_RUNNING].count, 3);
        room_pass(&f, 300000 - 3000);
        room_join(&f, "d");
        room_pass(&f, 3300000);
    }
    assert_int_equal(f.room.restarts, 0);
    mu_room_close(&f.room, f.now); /* The work is done. */
    assert_int_equal(f.room.state, MU_ROOM_IS_CLOSED);
    room_teardown(&f);
}

/* --- the echo of a loss ---------------------------------------------------------------------- */

static void doubt_for(uint64_t ms)
{
    mu_room_doubt(&f.room, f.now, mu_mono_add_ms(f.now, ms));
}

static void open_pair(uint32_t restarts_max)
{
    room_prepare(&f, 1, 2);
    f.config.restarts_max = restarts_max;
    room_open(&f);
    room_join(&f, "a");
    room_join(&f, "b");
    room_expect(&f, "a assigned 0: 0/2\nb assigned 0: 1/2\n");
}

static void test_room_failure_in_doubt_ends_the_round_and_not_yet_the_run(void **state)
{
    (void)state;
    open_pair(0);
    doubt_for(3000);
    mu_room_fail(&f.room, f.now, room_member(&f, "a"), 0);
    room_expect(&f, "a ended 0: failed a\nb ended 0: failed a\n");
    assert_int_equal(mu_room_deadline(&f.room).ns, mu_mono_add_ms(f.now, 3000).ns);
    room_pass(&f, 2999);
    assert_int_equal(f.room.state, MU_ROOM_IS_GATHERING);
    room_pass(&f, 1);
    room_expect(&f, "a failed 0: failed a\nb failed 0: failed a\n");
    assert_int_equal(f.room.state, MU_ROOM_IS_FAILED);
    room_teardown(&f);
}

static void test_room_failure_is_the_echo_of_a_loss_that_is_noticed_later(void **state)
{
    (void)state;
    for (unsigned left = 0; left < 2; left++) {
        open_pair(0);
        doubt_for(3000);
        mu_room_fail(&f.room, f.now, room_member(&f, "a"), 0);
        room_pass(&f, 2999);
        (left != 0 ? room_leave : room_lose)(&f, "b");
        room_expect(&f, "a ended 0: failed a\na assigned 1: 0/1\n");
        room_teardown(&f);
    }
}

static void test_room_gives_back_the_restarts_that_were_echoes(void **state)
{
    (void)state;
    open_pair(2);
    doubt_for(3000);
    mu_room_fail(&f.room, f.now, room_member(&f, "a"), 0); /* It goes on at once. */
    room_expect(&f, "a ended 0: failed a\nb ended 0: failed a\n"
                    "a assigned 1: 0/2\nb assigned 1: 1/2\n");
    assert_int_equal(f.room.restarts, 1);
    room_pass(&f, 500);
    doubt_for(3000);
    mu_room_fail(&f.room, f.now, room_member(&f, "a"), 1);
    assert_int_equal(f.room.restarts, 2);
    room_lose(&f, "b");
    assert_int_equal(f.room.restarts, 0);
    room_teardown(&f);
}

static void test_room_failure_is_charged_when_nobody_was_lost_in_time(void **state)
{
    (void)state;
    open_pair(2);
    doubt_for(3000);
    mu_room_fail(&f.room, f.now, room_member(&f, "a"), 0);
    room_pass(&f, 3000);
    room_lose(&f, "b");
    assert_int_equal(f.room.restarts, 1);
    room_teardown(&f);
}

static void test_room_member_that_leaves_because_its_work_is_done_is_no_loss(void **state)
{
    (void)state;
    open_pair(0);
    doubt_for(3000);
    mu_room_fail(&f.room, f.now, room_member(&f, "a"), 0);
    mu_room_finish(room_member(&f, "b"));
    room_leave(&f, "b");
    room_pass(&f, 3000);
    assert_int_equal(f.room.state, MU_ROOM_IS_FAILED);
    room_teardown(&f);
}

static void test_room_that_is_sure_fails_at_once(void **state)
{
    (void)state;
    open_pair(0);
    doubt_for(3000);
    mu_room_fail(&f.room, f.now, room_member(&f, "a"), 0);
    room_join(&f, "c"); /* a newcomer, which says nothing of those that ran */
    room_lose(&f, "c");
    assert_true(f.room.undecided);
    room_pass(&f, 1100);
    mu_room_be_sure(&f.room, f.now);
    assert_int_equal(f.room.state, MU_ROOM_IS_FAILED);
    room_teardown(&f);
}

static void test_room_member_that_was_cut_off_explains_the_failure_of_another(void **state)
{
    (void)state;
    open_pair(0);
    doubt_for(3000);
    mu_room_fail(&f.room, f.now, room_member(&f, "a"), 0);
    room_pass(&f, 1000);
    mu_room_stop(&f.room, f.now, room_member(&f, "b"), 0);
    room_expect(&f, "a ended 0: failed a\nb ended 0: failed a\n"
                    "a assigned 1: 0/2\nb assigned 1: 1/2\n");
    room_teardown(&f);
}

/* Each loss is preceded by its echo: that is a loop, too. */
static void test_room_counts_losses_that_were_noticed_after_their_echo(void **state)
{
    (void)state;
    room_prepare(&f, 1, 2);
    f.config.losses = (struct mu_losses){.max = 2, .window_ms = 3600000};
    room_open(&f);
    room_join(&f, "a");
    for (unsigned i = 0; i < 3; i++) {
        assert_int_equal(f.room.state, i == 0 ? MU_ROOM_IS_GATHERING : MU_ROOM_IS_RUNNING);
        room_join(&f, "b");
        doubt_for(3000);
        mu_room_fail(&f.room, f.now, room_member(&f, "a"), f.room.round);
        room_lose(&f, "b");
        room_pass(&f, 5000);
    }
    assert_int_equal(f.room.state, MU_ROOM_IS_FAILED);
    room_teardown(&f);
}

/* --- the fence ------------------------------------------------------------------------------- */

static void test_room_that_is_held_begins_no_round(void **state)
{
    (void)state;
    room_setup(&f, 1, 2);
    room_join(&f, "a");
    room_join(&f, "b");
    room_expect(&f, "a assigned 0: 0/2\nb assigned 0: 1/2\n");

    mu_room_hold(&f.room, f.now, mu_mono_add_ms(f.now, 3000));
    mu_room_hold(&f.room, f.now, mu_mono_add_ms(f.now, 2000)); /* An earlier one says nothing. */
    room_lose(&f, "b");
    room_join(&f, "c");
    room_join(&f, "d"); /* There is no room for it: it waits as a spare. */
    assert_int_equal(room_member(&f, "d")->state, MU_ROOM_SPARE);
    room_pass(&f, 2999);
    room_expect(&f, "a ended 0: lost b\n");
    assert_int_equal(mu_room_deadline(&f.room).ns, mu_mono_add_ms(f.now, 1).ns);
    room_leave(&f, "c");
    assert_int_equal(room_member(&f, "d")->state, MU_ROOM_GATHERING);
    room_pass(&f, 1);
    room_expect(&f, "a assigned 1: 0/2\nd assigned 1: 1/2\n");
    room_teardown(&f);
}

/* Nodes whose server was stopped come back one by one: that is one event, and costs nothing. */
static void test_room_members_that_stopped_end_their_round_once(void **state)
{
    (void)state;
    room_prepare(&f, 2, 2);
    f.config.restarts_max = 0;
    room_open(&f);
    room_join(&f, "a");
    room_join(&f, "b");
    mu_room_stop(&f.room, f.now, room_member(&f, "a"), 0);
    mu_room_stop(&f.room, f.now, room_member(&f, "b"), 0);
    room_expect(&f, "a assigned 1: 0/2\nb assigned 1: 1/2\n");
    assert_int_equal(f.room.restarts, 0);
    room_teardown(&f);
}

/* --- a timeout says who is missing ----------------------------------------------------------- */

static void expect_explained(const char *text)
{
    char got[256];

    mu_room_explain(&f.room, got, sizeof(got));
    assert_string_equal(got, text);
}

static void test_room_timeout_says_which_nodes_are_missing(void **state)
{
    (void)state;
    room_setup(&f, 3, 3);
    expect_explained("0 of 3 nodes are here");
    room_join(&f, "a");
    room_join(&f, "b");
    expect_explained("2 of 3 nodes are here: a, b");
    room_join(&f, "c");
    expect_explained("round 0 runs with 3 nodes; 0 waiting, 0 spare");

    room_lose(&f, "b");
    room_lose(&f, "a");
    expect_explained("1 of 3 nodes are here; not back since round 0: a, b; here: c");
    room_join(&f, "b");
    expect_explained("2 of 3 nodes are here; not back since round 0: a; here: c, b");
    room_leave(&f, "c"); /* With grace: nobody waits for it. */
    expect_explained("1 of 3 nodes are here; not back since round 0: a; here: b");
    room_leave(&f, "b");
    expect_explained("0 of 3 nodes are here; not back since round 0: a");
    room_join(&f, "x");
    room_join(&f, "y");
    room_join(&f, "z");
    room_leave(&f, "z");
    expect_explained("2 of 3 nodes are here: x, y");
    mu_room_close(&f.room, f.now);
    expect_explained("the run is closed");
    room_teardown(&f);
}

static void test_room_explains_what_a_last_call_waits_for(void **state)
{
    (void)state;
    room_setup(&f, 2, 9);
    room_join(&f, "a");
    expect_explained("1 of at least 2 nodes are here: a");
    room_join(&f, "b");
    expect_explained("2 of at most 9 nodes are here, last call for more: a, b");
    room_join_target(&f, "c", 5);
    expect_explained("3 of 5 announced nodes are here, last call for the others: a, b, c");
    room_teardown(&f);
}

/* However long the names and short the text: it is terminated, and what was cut is counted. */
static void test_room_explanation_is_cut_in_whole_names(void **state)
{
    char name[MU_ROOM_NAME_MAX + 1];
    char text[800];

    (void)state;
    room_setup(&f, 16, 16);
    for (int i = 0; i < 15; i++) {
        memset(name, 'a' + i, MU_ROOM_NAME_MAX);
        name[MU_ROOM_NAME_MAX] = '\0';
        room_join(&f, name);
    }
    for (size_t cap = 1; cap < sizeof(text); cap++) {
        memset(text, '#', sizeof(text));
        mu_room_explain(&f.room, text, cap);
        assert_true(strlen(text) < cap);
        assert_int_equal(text[cap], '#');
        if (cap >= 304) {
            assert_non_null(strstr(text, cap >= 559 ? ", and 13 more" : ", and 14 more"));
        } else if (cap >= 60) {
            assert_string_equal(text, "15 of 16 nodes are here: 15 more");
        }
    }
    room_teardown(&f);
}

static void test_room_names_only_so_many_that_are_missing(void **state)
{
    enum { NODES = MU_ROOM_PLACES_MAX + 4 };
    static struct mu_room_member crowd[NODES];
    char name[8];

    (void)state;
    memset(crowd, 0, sizeof(crowd));
    room_setup(&f, NODES, NODES);
    for (int i = 0; i < NODES; i++) {
        (void)snprintf(crowd[i].name, sizeof(name), "n%d", i);
        assert_int_equal(mu_room_join(&f.room, f.now, &crowd[i], NODES, NODES, &f.msg), 0);
    }
    for (int i = NODES - 3; i >= 0; i--) {
        mu_room_lost(&f.room, f.now, &crowd[i]);
    }
    assert_int_equal(f.room.place_count, MU_ROOM_PLACES_MAX);
    expect_explained("2 of 20 nodes are here; not back since round 0: n2, n3, n4, n5, n6, n7, n8, "
                     "n9, n10, n11, n12, n13, n14, n15, n16, n17, and more; here: n18, n19");
    mu_room_lost(&f.room, f.now, &crowd[NODES - 1]);
    mu_room_lost(&f.room, f.now, &crowd[NODES - 2]);
    room_teardown(&f);
}

/* --- what is refused ------------------------------------------------------------------------- */

static void test_room_refuses_a_configuration_that_cannot_be_met(void **state)
{
    struct mu_room_config config = room_config(0, 4);

    (void)state;
    assert_int_equal(mu_room_init(&f.room, &config, 1), MUSTER_EINVAL);
    config = room_config(3, 2);
    assert_int_equal(mu_room_init(&f.room, &config, 1), MUSTER_EINVAL);
    config = room_config(1, 4);
    config.members_max = 3;
    assert_int_equal(mu_room_init(&f.room, &config, 1), MUSTER_EINVAL);
}

static void test_room_refuses_what_does_not_fit_in_words(void **state)
{
    struct mu_room_member m = {.name = "x"};

    (void)state;
    room_prepare(&f, 2, 3);
    f.config.members_max = 3;
    room_open(&f);

    assert_int_equal(mu_room_join(&f.room, f.now, &m, 2, 4, &f.msg), MUSTER_EINVAL);
    assert_string_equal(
        f.msg.text, "this run has --nnodes 2:3, and this node gives 2:4; give all nodes the same");
    assert_int_equal(mu_room_join(&f.room, f.now, &m, 1, 3, &f.msg), MUSTER_EINVAL);
    m.name[0] = '\0';
    assert_int_equal(mu_room_join(&f.room, f.now, &m, 2, 3, &f.msg), MUSTER_EINVAL);
    m.name[0] = '\n';
    assert_int_equal(mu_room_join(&f.room, f.now, &m, 2, 3, &f.msg), MUSTER_EINVAL);
    memset(m.name, 'x', sizeof(m.name));
    assert_int_equal(mu_room_join(&f.room, f.now, &m, 2, 3, &f.msg), MUSTER_EINVAL);
    assert_string_equal(f.msg.text,
                        "a node's name must have 1 to 255 bytes without control characters");
    m.name[MU_ROOM_NAME_MAX] = '\0';
    memset(m.topology, 'x', sizeof(m.topology));
    assert_int_equal(mu_room_join(&f.room, f.now, &m, 2, 3, &f.msg), MUSTER_EINVAL);
    assert_string_equal(f.msg.text,
                        "a topology key must have at most 255 bytes without control characters");
    m.topology[MU_ROOM_TOPOLOGY_MAX] = '\0';
    assert_int_equal(f.room.names.count, 0);

    assert_int_equal(mu_room_join(&f.room, f.now, &m, 2, 3, &f.msg), 0);
    room_join(&f, "a");
    room_join(&f, "b");
    assert_int_equal(room_try_join(&f, "c"), MUSTER_ELIMIT);
    assert_string_equal(f.msg.text, "the run has 3 members and takes no more");
    mu_room_leave(&f.room, f.now, &m);
    room_teardown(&f);
}

/* Only a join allocates. If it cannot, nothing has changed; all else goes on without memory. */
static void test_room_without_memory_refuses_a_join_and_goes_on(void **state)
{
    bool fired = true;

    (void)state;
    for (long nth = 0; fired; nth++) {
        char name[8];
        int joined = 0;

        room_setup(&f, 4, 12);
        failheap_arm(nth);
        for (int i = 0; i < 16; i++) {
            (void)snprintf(name, sizeof(name), "n%d", i);
            if (room_try_join(&f, name) == 0) {
                joined++;
            } else {
                assert_string_equal(f.msg.text, "no memory for another member");
                assert_int_equal(room_member(&f, name)->state, MU_ROOM_OUT);
            }
        }
        assert_int_equal(f.room.names.count, joined);
        /* The first table is all that a room needs. */
        assert_int_equal(joined, nth == 0 ? 0 : 16);
        room_lose(&f, "n3");
        room_pass(&f, 5000);
        room_leave(&f, "n5");
        mu_room_close(&f.room, f.now);
        fired = failheap_fired();
        failheap_disarm();
        room_teardown(&f);
    }
}

/* --- cost ------------------------------------------------------------------------------------ */

static struct mu_room_member *fill_room(struct mu_room *room, uint32_t n)
{
    struct mu_room_config config = room_config(1, n);
    struct mu_room_member *members = calloc(n, sizeof(*members));
    struct mu_errmsg msg;

    assert_non_null(members);
    assert_int_equal(mu_room_init(room, &config, 1), 0);
    for (uint32_t i = 0; i < n; i++) {
        /* Scattered, so that the order of arrival is not the order of ranks. */
        (void)snprintf(members[i].name, sizeof(members[i].name), "node%u", (i * 7919) % n);
        assert_int_equal(mu_room_join(room, (mu_mono_t){1}, &members[i], 1, n, &msg), 0);
    }
    return members;
}

static uint64_t pull_all(struct mu_room *room)
{
    struct mu_room_member *m;
    struct mu_room_notice n;
    uint64_t count = 0;

    while (mu_room_next_notice(room, &m, &n)) {
        count++;
    }
    return count;
}

/* A first round sorts everybody; a loss and the round after it cost a few steps for each. */
static void test_room_round_of_4000_costs_n_log_n_steps_and_n_notices(void **state)
{
    static const uint32_t sizes[] = {1000, 4000};
    static struct mu_room room;

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        uint32_t n = sizes[i];
        uint32_t log2_n = i == 0 ? 10 : 12;
        struct mu_room_member *members = fill_room(&room, n);
        uint64_t steps;

        assert_int_equal(pull_all(&room), n);
        assert_in_range(room.steps, n, (uint64_t)n * log2_n + 6 * n);
        for (uint32_t k = 0; k < n; k++) {
            assert_int_equal(members[k].rank, (k * 7919) % n);
        }

        steps = room.steps;
        mu_room_lost(&room, (mu_mono_t){2}, &members[n / 2]);
        mu_room_tick(&room, (mu_mono_t){2 * MU_NS_PER_S});
        assert_int_equal(room.round, 1);
        assert_int_equal(room.state, MU_ROOM_IS_RUNNING);
        assert_int_equal(pull_all(&room), 2 * (n - 1));
        assert_in_range(room.steps - steps, n, 8 * n);

        steps = room.steps;
        mu_room_close(&room, (mu_mono_t){3});
        assert_int_equal(pull_all(&room), n - 1);
        assert_in_range(room.steps - steps, n, 4 * n);
        mu_room_fini(&room);
        free(members);
    }
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_room_close_puts_everybody_out),
        cmocka_unit_test(test_room_closed_run_can_be_started_again_as_a_new_incarnation),
        cmocka_unit_test(test_room_restart_budget_is_kept_for_the_run),
        cmocka_unit_test(test_room_that_loses_members_without_end_fails),
        cmocka_unit_test(test_room_of_two_weeks_with_a_loss_every_hour_ends_well),
        cmocka_unit_test(test_room_failure_in_doubt_ends_the_round_and_not_yet_the_run),
        cmocka_unit_test(test_room_failure_is_the_echo_of_a_loss_that_is_noticed_later),
        cmocka_unit_test(test_room_gives_back_the_restarts_that_were_echoes),
        cmocka_unit_test(test_room_failure_is_charged_when_nobody_was_lost_in_time),
        cmocka_unit_test(test_room_member_that_leaves_because_its_work_is_done_is_no_loss),
        cmocka_unit_test(test_room_that_is_sure_fails_at_once),
        cmocka_unit_test(test_room_member_that_was_cut_off_explains_the_failure_of_another),
        cmocka_unit_test(test_room_counts_losses_that_were_noticed_after_their_echo),
        cmocka_unit_test(test_room_that_is_held_begins_no_round),
        cmocka_unit_test(test_room_members_that_stopped_end_their_round_once),
        cmocka_unit_test(test_room_timeout_says_which_nodes_are_missing),
        cmocka_unit_test(test_room_explains_what_a_last_call_waits_for),
        cmocka_unit_test(test_room_explanation_is_cut_in_whole_names),
        cmocka_unit_test(test_room_names_only_so_many_that_are_missing),
        cmocka_unit_test(test_room_refuses_a_configuration_that_cannot_be_met),
        cmocka_unit_test(test_room_refuses_what_does_not_fit_in_words),
        cmocka_unit_test(test_room_without_memory_refuses_a_join_and_goes_on),
        cmocka_unit_test(test_room_round_of_4000_costs_n_log_n_steps_and_n_notices),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

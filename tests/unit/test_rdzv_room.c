/*
 * The room, rule by rule. Each test tells a story: who comes and goes, and, as text, what everybody
 * is told of it. Nothing else may be told.
 */
#include "unit.h"

#include "failheap.h"
#include "room_fixture.h"

static struct room_fixture f;

/* --- forming a round ------------------------------------------------------------------------- */

static void test_room_nobody_waits_out_the_last_call_when_the_maximum_is_reached(void **state)
{
    (void)state;
    room_setup(&f, 2, 3);

    room_join(&f, "a");
    assert_int_equal(mu_room_deadline(&f.room).ns, MU_MONO_NEVER.ns);
    room_join(&f, "b");
    assert_int_equal(mu_room_deadline(&f.room).ns, f.now.ns + 1000 * MU_NS_PER_MS);
    room_expect(&f, "");
    room_join(&f, "c");

    room_expect(&f, "a assigned 0: 0/3\nb assigned 0: 1/3\nc assigned 0: 2/3\n");
    assert_int_equal(mu_room_deadline(&f.room).ns, MU_MONO_NEVER.ns);
    room_teardown(&f);
}

static void test_room_nobody_waits_out_the_last_call_when_an_announced_target_is_met(void **state)
{
    (void)state;
    room_setup(&f, 1, 100);

    room_join_target(&f, "a", 2);
    room_join_target(&f, "b", 3);
    room_expect(&f, ""); /* One of two targets is not met. */
    room_join(&f, "c");

    room_expect(&f, "a assigned 0: 0/3\nb assigned 0: 1/3\nc assigned 0: 2/3\n");
    room_teardown(&f);
}

/* Whoever announced the larger world is gone: what the others announced is met at once. */
static void test_room_target_of_a_member_that_is_gone_does_not_count(void **state)
{
    (void)state;
    room_setup(&f, 1, 100);

    room_join_target(&f, "a", 2);
    room_join_target(&f, "b", 90);
    room_join_target(&f, "c", 2);
    room_expect(&f, "");
    room_leave(&f, "b");

    room_expect(&f, "a assigned 0: 0/2\nc assigned 0: 1/2\n");
    room_teardown(&f);
}

static void test_room_target_below_the_minimum_does_not_form_a_round(void **state)
{
    (void)state;
    room_setup(&f, 3, 5);

    room_join_target(&f, "a", 1);
    room_join_target(&f, "b", 1);
    room_expect(&f, "");
    room_join_target(&f, "c", 1);

    room_expect(&f, "a assigned 0: 0/3\nb assigned 0: 1/3\nc assigned 0: 2/3\n");
    room_teardown(&f);
}

static void test_room_last_call_begins_with_the_minimum_and_then_forms_the_round(void **state)
{
    (void)state;
    room_setup(&f, 2, 4);

    room_join(&f, "a");
    room_pass(&f, 5000);
    room_join(&f, "b");
    room_pass(&f, 999);
    room_join(&f, "c"); /* It does not begin anew for those that come in it. */
    room_expect(&f, "");
    room_pass(&f, 1);

    room_expect(&f, "a assigned 0: 0/3\nb assigned 0: 1/3\nc assigned 0: 2/3\n");
    room_teardown(&f);
}

static void test_room_last_call_begins_anew_when_the_minimum_was_lost(void **state)
{
    (void)state;
    room_setup(&f, 2, 4);

    room_join(&f, "a");
    room_join(&f, "b");
    room_pass(&f, 900);
    room_lose(&f, "b");
    assert_int_equal(mu_room_deadline(&f.room).ns, MU_MONO_NEVER.ns);
    room_pass(&f, 5000);
    room_join(&f, "c");
    room_pass(&f, 999);
    room_expect(&f, "");
    room_pass(&f, 1);

    room_expect(&f, "a assigned 0: 0/2\nc assigned 0: 1/2\n");
    assert_int_equal(f.room.restarts, 0); /* No round was lost. */
    room_teardown(&f);
}

/* A server that was paused ticks late: the call that wakes it still counts the newcomer in. */
static void test_room_late_tick_is_harmless(void **state)
{
    (void)state;
    room_setup(&f, 2, 4);
    room_join(&f, "a");
    room_join(&f, "b");

    f.now = mu_mono_add_ms(f.now, 60000);
    room_join(&f, "c");

    room_expect(&f, "a assigned 0: 0/3\nb assigned 0: 1/3\nc assigned 0: 2/3\n");
    room_pass(&f, 0);
    room_pass(&f, 100000);
    room_expect(&f, "");
    room_teardown(&f);
}

/* --- ranks ----------------------------------------------------------------------------------- */

static void test_room_orders_by_topology_then_by_natural_name(void **state)
{
    (void)state;
    room_setup(&f, 6, 6);
    (void)snprintf(room_member(&f, "node10")->topology, 8, "rack2");
    (void)snprintf(room_member(&f, "node2")->topology, 8, "rack10");
    (void)snprintf(room_member(&f, "node9")->topology, 8, "rack2");
    (void)snprintf(room_member(&f, "node1")->topology, 8, "rack10");

    room_join(&f, "node2");
    room_join(&f, "node1");
    room_join(&f, "node10");
    room_join(&f, "z");
    room_join(&f, "node9");
    room_join(&f, "node007");

    room_expect(&f, "node007 assigned 0: 0/6\nz assigned 0: 1/6\n"
                    "node9 assigned 0: 2/6\nnode10 assigned 0: 3/6\n"
                    "node1 assigned 0: 4/6\nnode2 assigned 0: 5/6\n");
    room_teardown(&f);
}

static void test_room_survivors_keep_their_rank_and_newcomers_fill_the_gaps(void **state)
{
    (void)state;
    room_setup(&f, 2, 5);
    room_join(&f, "b");
    room_join(&f, "c");
    room_join(&f, "d");
    room_join(&f, "e");
    room_join(&f, "f");
    room_expect(&f, "b assigned 0: 0/5\nc assigned 0: 1/5\nd assigned 0: 2/5\n"
                    "e assigned 0: 3/5\nf assigned 0: 4/5\n");

    room_lose(&f, "b");
    room_lose(&f, "d");
    room_join(&f, "z");
    room_join(&f, "a");

    room_expect(&f, "c ended 0: lost b\ne ended 0: lost b\nf ended 0: lost b\n"
                    "a assigned 1: 0/5\nc assigned 1: 1/5\nz assigned 1: 2/5\n"
                    "e assigned 1: 3/5\nf assigned 1: 4/5\n");
    room_teardown(&f);
}

/* Four become three: the one whose rank is too high now takes the gap, the others stay. */
static void test_room_rank_beyond_the_smaller_world_moves_into_a_gap(void **state)
{
    (void)state;
    room_setup(&f, 2, 4);
    room_join(&f, "a");
    room_join(&f, "b");
    room_join(&f, "c");
    room_join(&f, "d");
    room_expect(&f, "a assigned 0: 0/4\nb assigned 0: 1/4\nc assigned 0: 2/4\nd assigned 0: 3/4\n");

    room_lose(&f, "b");
    room_pass(&f, 1000);

    room_expect(&f, "a ended 0: lost b\nc ended 0: lost b\nd ended 0: lost b\n"
                    "a assigned 1: 0/3\nd assigned 1: 1/3\nc assigned 1: 2/3\n");
    room_teardown(&f);
}

static void collect_names(void *context, const struct mu_room_member *member)
{
    char *text = context;
    size_t len = strlen(text);

    (void)snprintf(text + len, 64 - len, "%s=%u ", member->name, member->rank);
}

static void test_room_lists_the_members_of_the_round_by_rank(void **state)
{
    char text[64] = "";

    (void)state;
    room_setup(&f, 3, 3);
    room_join(&f, "c");
    room_join(&f, "a");
    mu_room_each_ranked(&f.room, collect_names, text);
    assert_string_equal(text, "");
    room_join(&f, "b");
    room_join(&f, "spare");

    mu_room_each_ranked(&f.room, collect_names, text);
    assert_string_equal(text, "a=0 b=1 c=2 ");
    room_teardown(&f);
}

/* --- the end of a round ---------------------------------------------------------------------- */

static void test_room_lost_member_ends_the_round_for_the_survivors_at_once(void **state)
{
    (void)state;
    room_setup(&f, 2, 3);
    room_join(&f, "a");
    room_join(&f, "b");
    room_join(&f, "c");
    room_expect(&f, "a assigned 0: 0/3\nb assigned 0: 1/3\nc assigned 0: 2/3\n");

    room_lose(&f, "b");
    room_expect(&f, "a ended 0: lost b\nc ended 0: lost b\n");

    /* Both are in the next one without asking; it gives others a short last call. */
    assert_int_equal(room_member(&f, "a")->state, MU_ROOM_GATHERING);
    assert_int_equal(room_member(&f, "c")->state, MU_ROOM_GATHERING);
    room_pass(&f, 249);
    room_expect(&f, "");
    room_pass(&f, 1);
    room_expect(&f, "a assigned 1: 0/2\nc assigned 1: 1/2\n");
    room_teardown(&f);
}

static void test_room_last_call_is_a_whole_one_again_when_a_loss_left_too_few(void **state)
{
    (void)state;
    room_setup(&f, 2, 3);
    room_join(&f, "a");
    room_join(&f, "b");
    room_pass(&f, 1000);
    room_expect(&f, "a assigned 0: 0/2\nb assigned 0: 1/2\n");

    room_lose(&f, "b");
    room_join(&f, "c");
    room_pass(&f, 999);
    room_expect(&f, "a ended 0: lost b\n");
    room_pass(&f, 1);
    room_expect(&f, "a assigned 1: 0/2\nc assigned 1: 1/2\n");
    room_teardown(&f);
}

static void test_room_last_call_that_never_ends_does_not_end_after_a_loss_either(void **state)
{
    (void)state;
    room_prepare(&f, 1, 2);
    f.config.last_call_ms = UINT64_MAX;
    room_open(&f);
    room_join(&f, "a");
    room_join(&f, "b");
    room_expect(&f, "a assigned 0: 0/2\nb assigned 0: 1/2\n");

    room_lose(&f, "b");
    assert_int_equal(mu_room_deadline(&f.room).ns, MU_MONO_NEVER.ns);
    room_join(&f, "c");
    room_expect(&f, "a ended 0: lost b\na assigned 1: 0/2\nc assigned 1: 1/2\n");
    room_teardown(&f);
}

static void test_room_leaving_ends_the_round_and_costs_no_restart(void **state)
{
    (void)state;
    room_prepare(&f, 1, 2);
    f.config.restarts_max = 0;
    room_open(&f);
    room_join(&f, "a");
    room_join(&f, "b");
    room_expect(&f, "a assigned 0: 0/2\nb assigned 0: 1/2\n");

    room_leave(&f, "a");
    room_pass(&f, 1000);

    room_expect(&f, "b ended 0: left a\nb assigned 1: 0/1\n");
    room_teardown(&f);
}

/* Below the minimum the gathering goes on, for as long as it takes. */
static void test_room_below_the_minimum_waits_for_enough(void **state)
{
    (void)state;
    room_setup(&f, 3, 3);
    room_join(&f, "a");
    room_join(&f, "b");
    room_join(&f, "c");
    room_expect(&f, "a assigned 0: 0/3\nb assigned 0: 1/3\nc assigned 0: 2/3\n");

    room_lose(&f, "a");
    room_lose(&f, "c");
    room_pass(&f, 3600 * 1000);
    room_expect(&f, "b ended 0: lost a\n");
    room_join(&f, "d");
    room_join(&f, "e");

    room_expect(&f, "d assigned 1: 0/3\nb assigned 1: 1/3\ne assigned 1: 2/3\n");
    room_teardown(&f);
}

/* Nobody may be told a rank while somebody else believes that the old round runs. */
static void test_room_two_worlds_never_exist_for_one_run(void **state)
{
    (void)state;
    room_setup(&f, 2, 2);
    room_join(&f, "a");
    room_join(&f, "b");
    room_join(&f, "spare");
    room_expect(&f, "a assigned 0: 0/2\nb assigned 0: 1/2\n");

    /* The spare takes its place in the same moment: end and rank are both pending. */
    room_lose(&f, "a");
    room_expect(&f, "b ended 0: lost a\nspare assigned 1: 0/2\nb assigned 1: 1/2\n");
    room_teardown(&f);
}

/* Of a round that began and ended before it was pulled, nothing is told; of the one that was told,
 * the end is, though its reason's name has been overwritten. */
static void test_room_notices_are_coalesced(void **state)
{
    (void)state;
    room_setup(&f, 2, 2);
    room_join(&f, "a");
    room_join(&f, "b");
    room_join(&f, "c");
    room_join(&f, "d");
    room_expect(&f, "a assigned 0: 0/2\nb assigned 0: 1/2\n");

    room_lose(&f, "a"); /* b and c run round 1, untold */
    room_lose(&f, "c"); /* b and d run round 2 */

    room_expect(&f, "b ended 0: lost\nd assigned 2: 0/2\nb assigned 2: 1/2\n");

    room_join(&f, "c");
    room_lose(&f, "d");
    room_leave(&f, "b"); /* Whoever is out hears nothing, not even what was pending. */
    room_expect(&f, "");
    room_teardown(&f);
}

static void test_room_failed_workers_end_the_round_and_their_member_stays(void **state)
{
    (void)state;
    room_setup(&f, 2, 2);
    room_join(&f, "a");
    room_join(&f, "b");
    room_expect(&f, "a assigned 0: 0/2\nb assigned 0: 1/2\n");

    mu_room_fail(&f.room, f.now, room_member(&f, "b"), 0);
    room_expect(&f, "a ended 0: failed b\nb ended 0: failed b\n"
                    "a assigned 1: 0/2\nb assigned 1: 1/2\n");

    /* a's workers fell with those of b; its word comes when the next round runs already. */
    mu_room_fail(&f.room, f.now, room_member(&f, "a"), 0);
    room_expect(&f, "");
    assert_int_equal(f.room.restarts, 1);
    room_teardown(&f);
}

/* --- late-comers ----------------------------------------------------------------------------- */

static void test_room_late_arrivals_are_batched_into_one_new_round(void **state)
{
    (void)state;
    room_setup(&f, 2, 6);
    room_join(&f, "a");
    room_join(&f, "b");
    room_pass(&f, 1000);
    room_expect(&f, "a assigned 0: 0/2\nb assigned 0: 1/2\n");

    room_join(&f, "c");
    room_expect(&f, "a waiters 0: 1\nb waiters 0: 1\n");
    assert_int_equal(mu_room_deadline(&f.room).ns, f.now.ns + 500 * MU_NS_PER_MS);
    room_pass(&f, 499);
    room_join(&f, "d");
    room_join(&f, "e");
    assert_int_equal(room_member(&f, "e")->state, MU_ROOM_WAITING);
    room_expect(&f, "");
    room_pass(&f, 1);

    room_expect(&f, "a ended 0: upscale\nb ended 0: upscale\n"
                    "a assigned 1: 0/5\nb assigned 1: 1/5\nc assigned 1: 2/5\n"
                    "d assigned 1: 3/5\ne assigned 1: 4/5\n");
    assert_int_equal(f.room.restarts, 0);
    room_teardown(&f);
}

static void test_room_late_arrivals_that_fill_the_room_are_let_in_at_once(void **state)
{
    (void)state;
    room_setup(&f, 1, 3);
    room_join(&f, "a");
    room_pass(&f, 1000);
    room_join(&f, "b");
    room_expect(&f, "a assigned 0: 0/1\na waiters 0: 1\n");

    room_join(&f, "c");

    room_expect(&f, "a ended 0: upscale\n"
                    "a assigned 1: 0/3\nb assigned 1: 1/3\nc assigned 1: 2/3\n");
    room_teardown(&f);
}

/* A target that the running round had missed is met by the one that comes back; one that it had met
 * says nothing about those that come later. */
static void test_room_late_arrival_that_meets_the_target_is_let_in_at_once(void **state)
{
    (void)state;
    room_setup(&f, 1, 9);
    room_join_target(&f, "a", 2);
    room_pass(&f, 1000);
    room_expect(&f, "a assigned 0: 0/1\n");

    room_join_target(&f, "b", 2);
    room_expect(&f, "a ended 0: upscale\na assigned 1: 0/2\nb assigned 1: 1/2\n");
    room_join(&f, "c");
    room_expect(&f, "a waiters 1: 1\nb waiters 1: 1\n");
    room_teardown(&f);
}

static void test_room_waiters_are_told_in_waves(void **state)
{
    (void)state;
    room_prepare(&f, 1, 16);
    f.config.upscale_delay_ms = UINT64_MAX;
    room_open(&f);
    room_join_target(&f, "a", 1);
    room_expect(&f, "a assigned 0: 0/1\n");

    room_join(&f, "b");
    room_expect(&f, "a waiters 0: 1\n");
    room_join(&f, "c");
    room_join(&f, "d");
    room_leave(&f, "b");
    room_expect(&f, "");
    assert_int_equal(mu_room_deadline(&f.room).ns, f.now.ns + 1000 * MU_NS_PER_MS);
    room_pass(&f, 1000);
    room_expect(&f, "a waiters 0: 2\n");
    assert_int_equal(mu_room_deadline(&f.room).ns, MU_MONO_NEVER.ns);
    room_leave(&f, "c");
    room_leave(&f, "d");
    room_pass(&f, 1000);
    room_expect(&f, "a waiters 0: 0\n");

    /* Pending and overtaken by the end of the round: not told. */
    room_join(&f, "b");
    room_pass(&f, 1000);
    room_lose(&f, "a");
    room_pass(&f, 1000);
    room_expect(&f, "b assigned 1: 0/1\n");
    room_teardown(&f);
}

/* The one that was waited for goes again: nobody is disturbed. */
static void test_room_late_arrival_that_leaves_ends_nothing(void **state)
{
    (void)state;
    room_setup(&f, 2, 4);
    room_join_target(&f, "a", 2);
    room_join_target(&f, "b", 2);
    room_join(&f, "c");
    room_pass(&f, 400);
    room_lose(&f, "c");
    room_pass(&f, 300);
    room_join(&f, "d");
    room_pass(&f, 499);
    room_expect(&f, "a assigned 0: 0/2\na waiters 0: 1\nb assigned 0: 1/2\nb waiters 0: 1\n");

    room_pass(&f, 1);

    room_expect(&f, "a ended 0: upscale\nb ended 0: upscale\n"
                    "a assigned 1: 0/3\nb assigned 1: 1/3\nd assigned 1: 2/3\n");
    assert_int_equal(f.room.restarts, 0);
    room_teardown(&f);
}

/* When a round ends anyway, whoever waits is in the same gathering as the survivors. */
static void test_room_waiters_are_in_the_gathering_after_a_loss(void **state)
{
    (void)state;
    room_setup(&f, 2, 4);
    room_join_target(&f, "a", 3);
    room_join_target(&f, "b", 3);
    room_join_target(&f, "c", 3);
    room_expect(&f, "a assigned 0: 0/3\nb assigned 0: 1/3\nc assigned 0: 2/3\n");
    f.room.config.upscale_delay_ms = UINT64_MAX;
    room_join(&f, "d");

    room_lose(&f, "a");

    room_expect(&f, "b ended 0: lost a\nc ended 0: lost a\n"
                    "d assigned 1: 0/3\nb assigned 1: 1/3\nc assigned 1: 2/3\n");
    room_teardown(&f);
}

static void test_room_spares_wait_connected_and_are_promoted_with_one_message(void **state)
{
    (void)state;
    room_setup(&f, 2, 2);
    room_join(&f, "a");
    room_join(&f, "b");
    room_join(&f, "z");
    room_join(&f, "y");
    room_join(&f, "x");
    room_expect(&f, "a assigned 0: 0/2\nb assigned 0: 1/2\n");
    assert_int_equal(room_member(&f, "z")->state, MU_ROOM_SPARE);
    room_pass(&f, 100000);
    room_expect(&f, "");

    room_lose(&f, "b"); /* The first one that came is the first to be promoted. */
    room_expect(&f, "a ended 0: lost b\na assigned 1: 0/2\nz assigned 1: 1/2\n");
    room_lose(&f, "y");
    room_expect(&f, "");
    room_lose(&f, "a");
    room_expect(&f, "z ended 1: lost a\nx assigned 2: 0/2\nz assigned 2: 1/2\n");
    room_teardown(&f);
}

/* A place among those that wait became free: the oldest spare has it. */
static void test_room_spare_takes_the_place_of_a_waiter_that_leaves(void **state)
{
    (void)state;
    room_prepare(&f, 1, 3);
    f.config.upscale_delay_ms = UINT64_MAX;
    room_open(&f);
    room_join_target(&f, "a", 1);
    room_join(&f, "b");
    room_join(&f, "c");
    room_join(&f, "d");
    room_join(&f, "e");
    assert_int_equal(room_member(&f, "c")->state, MU_ROOM_WAITING);
    assert_int_equal(room_member(&f, "d")->state, MU_ROOM_SPARE);

    room_leave(&f, "b");
    assert_int_equal(room_member(&f, "d")->state, MU_ROOM_WAITING);
    assert_int_equal(room_member(&f, "e")->state, MU_ROOM_SPARE);
    room_leave(&f, "a");

    room_expect(&f, "c assigned 1: 0/3\nd assigned 1: 1/3\ne assigned 1: 2/3\n");
    room_teardown(&f);
}

/* --- rejoining ------------------------------------------------------------------------------- */

/* The node comes back before its old session has ended. The caller ends that one first; then the
 * node has its old place, and everybody is in one world. */
static void test_room_fast_rejoin_never_hangs_or_splits_the_world(void **state)
{
    static struct mu_room_member again;

    (void)state;
    room_setup(&f, 2, 3);
    room_join_target(&f, "a", 3);
    room_join_target(&f, "b", 3);
    room_join_target(&f, "c", 3);
    room_expect(&f, "a assigned 0: 0/3\nb assigned 0: 1/3\nc assigned 0: 2/3\n");

    again = (struct mu_room_member){.name = "b", .target = 3};
    assert_int_equal(mu_room_join(&f.room, f.now, &again, 2, 3, &f.msg), MUSTER_EEXIST);
    assert_string_equal(f.msg.text, "a node of the name \"b\" is in already");
    room_expect(&f, "");
    mu_room_lost(&f.room, f.now, mu_room_find(&f.room, MU_SPAN_LIT("b")));
    assert_null(mu_room_find(&f.room, MU_SPAN_LIT("b")));
    assert_int_equal(mu_room_join(&f.room, f.now, &again, 2, 3, &f.msg), 0);

    room_expect(&f, "a ended 0: lost b\nc ended 0: lost b\n"
                    "a assigned 1: 0/3\nb assigned 1: 1/3\nc assigned 1: 2/3\n");
    mu_room_leave(&f.room, f.now, &again);
    room_teardown(&f);
}

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

    /* Whoever fails, the budget is the same. */
    mu_room_fail(&f.room, f.now, room_member(&f, "a"), 0);
    room_lose(&f, "b");
    assert_true(mu_room_next_notice(&f.room, &m, &n));
    assert_int_equal(n.kind, MU_ROOM_ENDED);
    assert_true(mu_room_next_notice(&f.room, &m, &n));
    assert_int_equal(n.kind, MU_ROOM_ASSIGNED);
    assert_int_equal(n.restarts_left, 0);
    room_join(&f, "c");
    room_expect(&f, "spare assigned 2: 1/2\n");

    room_lose(&f, "spare");
    room_expect(&f, "a failed 2: lost spare\nc failed 2: lost spare\n");
    mu_room_explain(&f.room, text, sizeof(text));
    assert_string_equal(text, "the run has used up its 2 restarts; the last round ended because "
                              "spare was lost");
    assert_int_equal(room_try_join(&f, "d"), MUSTER_ECLOSED);
    assert_string_equal(f.msg.text, "the run has used up its 2 restarts");
    assert_true(mu_room_done(&f.room));
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
    expect_explained("1 of 3 nodes are here; not back since round 0: b, a; here: c");
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
    char name[8];

    (void)state;
    room_setup(&f, 12, 12);
    for (int i = 0; i < 12; i++) {
        (void)snprintf(name, sizeof(name), "n%d", i);
        room_join(&f, name);
    }
    for (int i = 0; i < 10; i++) {
        (void)snprintf(name, sizeof(name), "n%d", i);
        room_lose(&f, name);
    }
    expect_explained("2 of 12 nodes are here; not back since round 0: n0, n1, n2, n3, n4, n5, n6, "
                     "n7, and more; here: n10, n11");
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
    assert_string_equal(f.msg.text, "this run is for 2 to 3 nodes, the node asked for 2 to 4");
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
    assert_string_equal(f.msg.text, "the run has 3 members, no more are taken");
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
        cmocka_unit_test(test_room_nobody_waits_out_the_last_call_when_the_maximum_is_reached),
        cmocka_unit_test(test_room_nobody_waits_out_the_last_call_when_an_announced_target_is_met),
        cmocka_unit_test(test_room_target_of_a_member_that_is_gone_does_not_count),
        cmocka_unit_test(test_room_target_below_the_minimum_does_not_form_a_round),
        cmocka_unit_test(test_room_last_call_begins_with_the_minimum_and_then_forms_the_round),
        cmocka_unit_test(test_room_last_call_begins_anew_when_the_minimum_was_lost),
        cmocka_unit_test(test_room_late_tick_is_harmless),
        cmocka_unit_test(test_room_orders_by_topology_then_by_natural_name),
        cmocka_unit_test(test_room_survivors_keep_their_rank_and_newcomers_fill_the_gaps),
        cmocka_unit_test(test_room_rank_beyond_the_smaller_world_moves_into_a_gap),
        cmocka_unit_test(test_room_lists_the_members_of_the_round_by_rank),
        cmocka_unit_test(test_room_lost_member_ends_the_round_for_the_survivors_at_once),
        cmocka_unit_test(test_room_last_call_is_a_whole_one_again_when_a_loss_left_too_few),
        cmocka_unit_test(test_room_last_call_that_never_ends_does_not_end_after_a_loss_either),
        cmocka_unit_test(test_room_leaving_ends_the_round_and_costs_no_restart),
        cmocka_unit_test(test_room_below_the_minimum_waits_for_enough),
        cmocka_unit_test(test_room_two_worlds_never_exist_for_one_run),
        cmocka_unit_test(test_room_notices_are_coalesced),
        cmocka_unit_test(test_room_failed_workers_end_the_round_and_their_member_stays),
        cmocka_unit_test(test_room_late_arrivals_are_batched_into_one_new_round),
        cmocka_unit_test(test_room_late_arrivals_that_fill_the_room_are_let_in_at_once),
        cmocka_unit_test(test_room_late_arrival_that_meets_the_target_is_let_in_at_once),
        cmocka_unit_test(test_room_waiters_are_told_in_waves),
        cmocka_unit_test(test_room_late_arrival_that_leaves_ends_nothing),
        cmocka_unit_test(test_room_waiters_are_in_the_gathering_after_a_loss),
        cmocka_unit_test(test_room_spares_wait_connected_and_are_promoted_with_one_message),
        cmocka_unit_test(test_room_spare_takes_the_place_of_a_waiter_that_leaves),
        cmocka_unit_test(test_room_fast_rejoin_never_hangs_or_splits_the_world),
        cmocka_unit_test(test_room_close_puts_everybody_out),
        cmocka_unit_test(test_room_closed_run_can_be_started_again_as_a_new_incarnation),
        cmocka_unit_test(test_room_restart_budget_is_kept_for_the_run),
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

/*
 * The room, rule by rule. Each test tells a story: who comes and goes, and, as text, what everybody
 * is told of it. Nothing else may be told. test_rdzv_room_run.c has what is not of a round.
 */
#include "unit.h"

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
    room_expect(&f, "");
    room_pass(&f, 1);

    room_expect(&f, "a assigned 0: 0/2\nb assigned 0: 1/2\n");
    room_teardown(&f);
}

static void test_room_last_call_is_renewed_by_each_node_that_comes_up_to_a_bound(void **state)
{
    char name[16];

    (void)state;
    room_setup(&f, 1, 100);
    room_join(&f, "a");
    room_pass(&f, 900);
    room_join(&f, "b");
    room_pass(&f, 900);
    assert_int_equal(f.room.state, MU_ROOM_IS_GATHERING);
    room_pass(&f, 100);
    assert_int_equal(f.room.in[MU_ROOM_RUNNING].count, 2);
    room_teardown(&f);

    /* They come without a pause: the round does not wait for the last of them. */
    room_setup(&f, 1, 100);
    for (unsigned i = 0; i < 20; i++) {
        (void)snprintf(name, sizeof(name), "n%u", i);
        room_join(&f, name);
        room_pass(&f, 999);
        if (f.room.state == MU_ROOM_IS_RUNNING) {
            assert_int_equal(f.room.in[MU_ROOM_RUNNING].count, MU_ROOM_LAST_CALLS + 1);
            break;
        }
    }
    assert_int_equal(f.room.state, MU_ROOM_IS_RUNNING);
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
    assert_string_equal(f.msg.text, "a node named \"b\" has already joined");
    room_expect(&f, "");
    mu_room_lost(&f.room, f.now, mu_room_find(&f.room, MU_SPAN_LIT("b")));
    assert_null(mu_room_find(&f.room, MU_SPAN_LIT("b")));
    assert_int_equal(mu_room_join(&f.room, f.now, &again, 2, 3, &f.msg), 0);

    room_expect(&f, "a ended 0: lost b\nc ended 0: lost b\n"
                    "a assigned 1: 0/3\nb assigned 1: 1/3\nc assigned 1: 2/3\n");
    mu_room_leave(&f.room, f.now, &again);
    room_teardown(&f);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_room_nobody_waits_out_the_last_call_when_the_maximum_is_reached),
        cmocka_unit_test(test_room_nobody_waits_out_the_last_call_when_an_announced_target_is_met),
        cmocka_unit_test(test_room_target_of_a_member_that_is_gone_does_not_count),
        cmocka_unit_test(test_room_target_below_the_minimum_does_not_form_a_round),
        cmocka_unit_test(test_room_last_call_begins_with_the_minimum_and_then_forms_the_round),
        cmocka_unit_test(test_room_last_call_is_renewed_by_each_node_that_comes_up_to_a_bound),
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
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

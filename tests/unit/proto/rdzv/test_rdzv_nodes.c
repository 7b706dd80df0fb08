/* Nodes of a rendezvous in company, over the register of rdzv_world.h in virtual time. */
#include "rdzv_world.h"

#include "failheap.h"

static struct world w;

static int setup(void **unused)
{
    (void)unused;
    world_init(&w);
    return 0;
}

static int teardown(void **unused)
{
    (void)unused;
    world_fini(&w);
    return 0;
}

static struct world_node *node(size_t index)
{
    return w.nodes[index];
}

static void size(size_t min, size_t max)
{
    w.config.settings.min_nodes = min;
    w.config.settings.max_nodes = max;
}

/* Adds nodes a, b, c, ... and lets them join in this order, a second apart. */
static void gather(size_t count)
{
    static const char *const names[] = {"a", "b", "c", "d", "e"};

    for (size_t i = 0; i < count; i++) {
        size_t n = world_add(&w, names[i]);

        world_join(&w, n);
        world_run(&w, w.now + WORLD_S);
    }
}

static void assert_assigned(size_t index, int64_t round, int64_t rank, const char *members)
{
    assert_true(node(index)->member);
    assert_string_equal(node(index)->members, members);
    assert_int_equal(node(index)->round, round);
    assert_int_equal(node(index)->rank, rank);
}

static void test_rdzv_two_nodes_meet(void **unused)
{
    (void)unused;
    gather(2);
    assert_assigned(0, 0, 0, "a b");
    assert_assigned(1, 0, 1, "a b");
    assert_true(node(0)->assigned_at < WORLD_S + 10 * WORLD_MS);
}

static void test_rdzv_ranks_follow_names_not_arrival(void **unused)
{
    (void)unused;
    world_join(&w, world_add(&w, "host-2"));
    world_join(&w, world_add(&w, "host-10"));
    world_run(&w, WORLD_S);
    assert_assigned(0, 0, 1, "host-10 host-2");
    assert_assigned(1, 0, 0, "host-10 host-2");
}

static void test_rdzv_last_call_ends_with_who_is_there(void **unused)
{
    (void)unused;
    size(2, 4);
    gather(3);
    world_run(&w, 29 * WORLD_S);
    assert_false(node(0)->member);
    world_run(&w, 32 * WORLD_S);
    for (size_t i = 0; i < 3; i++) {
        assert_assigned(i, 0, (int64_t)i, "a b c");
    }
}

static void test_rdzv_without_push_it_works_as_well(void **unused)
{
    (void)unused;
    size(2, 4);
    w.config.push = false;
    gather(3);
    world_run(&w, 33 * WORLD_S);
    for (size_t i = 0; i < 3; i++) {
        assert_assigned(i, 0, (int64_t)i, "a b c");
    }
    for (size_t i = 0; i < 3; i++) {
        node(i)->rejoin = true;
    }
    world_join(&w, world_add(&w, "d"));
    world_run(&w, 43 * WORLD_S);
    for (size_t i = 0; i < 4; i++) {
        assert_assigned(i, 1, (int64_t)i, "a b c d");
    }
}

static void test_rdzv_a_timeout_names_who_came_and_who_is_missing(void **unused)
{
    (void)unused;
    size(3, 3);
    gather(3);
    assert_assigned(2, 0, 2, "a b c");

    /* c dies, the others meet again and wait for it in vain. */
    world_crash(&w, 2);
    world_join(&w, 0);
    world_join(&w, 1);
    world_run(&w, 700 * WORLD_S);
    assert_int_equal(node(0)->code, MUSTER_ERDZV_TIMEOUT);
    assert_string_equal(node(0)->text, "timed out after 600 s: 2 of 3 nodes joined: \"a_1_0\", "
                                       "\"b_1_0\"; missing of the round before: \"c_1_0\"");
    assert_int_equal(node(1)->code, MUSTER_ERDZV_TIMEOUT);
}

static void test_rdzv_a_missed_deadline_is_rolled_back(void **unused)
{
    struct mu_rdzv_state s;
    enum mu_rdzv_dialect dialect;
    struct mu_errmsg msg;

    (void)unused;
    gather(1);
    world_run(&w, 601 * WORLD_S);
    assert_int_equal(node(0)->code, MUSTER_ERDZV_TIMEOUT);
    mu_rdzv_state_init(&s);
    assert_int_equal(mu_rdzv_state_decode(mu_span(w.bytes, w.len), &s, &dialect, &msg), 0);
    assert_int_equal(s.member_count, 0);
    mu_rdzv_state_fini(&s);
}

static void test_rdzv_a_latecomer_waits_and_all_meet_in_the_next_round(void **unused)
{
    (void)unused;
    size(2, 3);
    gather(2);
    world_run(&w, 40 * WORLD_S);
    assert_assigned(0, 0, 0, "a b");
    world_forget(&w);

    world_join(&w, world_add(&w, "c"));
    world_run(&w, 43 * WORLD_S);
    assert_true((node(0)->told & MU_RDZV_WAITING) != 0);
    assert_int_equal(node(0)->waiting, 1);
    assert_false(node(2)->member);

    world_join(&w, 0);
    world_join(&w, 1);
    world_run(&w, 44 * WORLD_S);
    for (size_t i = 0; i < 3; i++) {
        assert_assigned(i, 1, (int64_t)i, "a b c");
    }
}

static void test_rdzv_a_spare_waits_past_its_deadline_and_ends_gracefully(void **unused)
{
    (void)unused;
    gather(3);
    world_run(&w, 900 * WORLD_S);
    node(2)->cut = true; /* a short cut does no harm, though its deadline has long passed */
    world_run(&w, 905 * WORLD_S);
    node(2)->cut = false;
    world_run(&w, 1000 * WORLD_S);
    assert_true(node(0)->member);
    assert_int_equal(node(0)->waiting, 0);
    assert_int_equal(node(2)->r.v.phase, MU_RDZV_JOINING);

    world_wish(&w, 0, MU_RDZV_CLOSE);
    world_run(&w, 1000 * WORLD_S + 20 * WORLD_MS);
    assert_int_equal(node(2)->code, MUSTER_ERDZV_GRACEFUL);
    assert_true((node(0)->told & MU_RDZV_CLOSED) != 0);
    world_run(&w, 1002 * WORLD_S); /* members look once a second */
    assert_true((node(1)->told & MU_RDZV_CLOSED) != 0);
}

static void test_rdzv_a_spare_takes_the_place_of_the_dead(void **unused)
{
    (void)unused;
    gather(3);
    world_run(&w, 700 * WORLD_S);
    node(0)->rejoin = true;
    world_crash(&w, 1);
    world_run(&w, 730 * WORLD_S);
    assert_assigned(0, 1, 0, "a c");
    assert_assigned(2, 1, 1, "a c");
}

static void test_rdzv_three_settle_on_two_seats(void **unused)
{
    uint64_t rounds = 0;

    (void)unused;
    for (size_t i = 0; i < 3; i++) {
        static const char *const names[] = {"a", "b", "c"};

        node(world_add(&w, names[i]))->rejoin = true;
    }
    for (int i = 0; i < 20; i++) {
        /* One of them has a reason of its own to join again; each time all three compete. */
        size_t who = (size_t)i % 3;

        if (node(who)->r.v.phase == MU_RDZV_IDLE || node(who)->member) {
            node(who)->member = false;
            world_join(&w, who);
        }
        world_run(&w, w.now + 3 * WORLD_S);
    }
    world_forget(&w);
    world_run(&w, w.now + 100 * WORLD_S);
    for (size_t i = 0; i < 3; i++) {
        assert_true((node(i)->told & (MU_RDZV_ASSIGNED | MU_RDZV_ENDED | MU_RDZV_FAILED)) == 0);
        rounds = (uint64_t)node(i)->round > rounds ? (uint64_t)node(i)->round : rounds;
    }
    assert_in_range(rounds, 8, 25);
}

static void test_rdzv_generation_1_knows_no_spares(void **unused)
{
    (void)unused;
    w.config.dialect = MU_RDZV_DIALECT_1_13;
    w.config.settings.join_timeout_ms = 3000;
    gather(2);
    assert_assigned(1, 0, 1, "a b");

    world_join(&w, world_add(&w, "c"));
    world_run(&w, 5100 * WORLD_MS);
    assert_int_equal(node(2)->code, MUSTER_ERDZV_TIMEOUT);
    assert_string_equal(node(2)->text, "timed out after 3 s: round 0 had no room, with 2 of 2 "
                                       "nodes in it: "
                                       "\"a_1_0\", \"b_1_0\"");
    assert_int_equal(node(2)->r.stats.writes, 0);
}

static void test_rdzv_a_closed_run_takes_nobody(void **unused)
{
    (void)unused;
    gather(1);
    world_wish(&w, world_add(&w, "z"), MU_RDZV_CLOSE);
    world_run(&w, 2 * WORLD_S);
    assert_true((node(1)->told & MU_RDZV_CLOSED) != 0);
    assert_int_equal(node(0)->code, MUSTER_ERDZV_CLOSED);

    world_forget(&w);
    world_join(&w, 1);
    world_wish(&w, 1, MU_RDZV_CLOSE); /* twice is fine */
    world_run(&w, 3 * WORLD_S);
    assert_int_equal(node(1)->code, MUSTER_ERDZV_CLOSED);
    assert_true((node(1)->told & MU_RDZV_CLOSED) != 0);
}

static void test_rdzv_a_dead_member_is_lost_to_the_others(void **unused)
{
    (void)unused;
    size(3, 3);
    gather(3);
    world_run(&w, 100 * WORLD_S);
    world_forget(&w);
    world_crash(&w, 1);
    world_run(&w, 110 * WORLD_S);
    assert_true((node(0)->told & MU_RDZV_LOST) == 0);
    world_run(&w, 117 * WORLD_S);
    assert_true((node(0)->told & MU_RDZV_LOST) != 0);
    assert_int_equal(node(0)->left, 2);
    assert_int_equal(node(2)->left, 2);
    assert_true(node(0)->member);
}

static void test_rdzv_who_was_stopped_learns_that_it_is_out_and_can_join_again(void **unused)
{
    (void)unused;
    size(2, 3);
    gather(3);
    for (size_t i = 0; i < 3; i++) {
        node(i)->rejoin = true;
    }
    world_run(&w, 50 * WORLD_S);
    world_pause(&w, 1, true);
    world_run(&w, 110 * WORLD_S);
    assert_assigned(0, 1, 0, "a c");
    assert_int_equal(node(1)->round, 0);

    world_pause(&w, 1, false);
    world_run(&w, 112 * WORLD_S);
    for (size_t i = 0; i < 3; i++) {
        assert_assigned(i, 2, (int64_t)i, "a b c");
    }
}

static void test_rdzv_who_reads_late_does_not_believe_in_a_smaller_world(void **unused)
{
    (void)unused;
    size(3, 3);
    gather(2);
    world_pause(&w, 0, true); /* while c completes the round, is assigned, and leaves at once */
    world_join(&w, world_add(&w, "c"));
    world_run(&w, w.now + 10 * WORLD_MS);
    assert_assigned(2, 0, 2, "a b c");
    assert_assigned(1, 0, 1, "a b c");
    world_wish(&w, 2, MU_RDZV_LEAVE);
    world_run(&w, w.now + 10 * WORLD_MS);

    world_pause(&w, 0, false);
    world_run(&w, w.now + 100 * WORLD_MS);
    assert_false(node(0)->member); /* PyTorch: rank 0 of 2, while b has rank 1 of 3 */
    world_run(&w, w.now + 2 * WORLD_S);
    assert_int_equal(node(1)->waiting, 1);
}

static void test_rdzv_leaving_takes_itself_off_every_list(void **unused)
{
    struct mu_rdzv_state s;
    enum mu_rdzv_dialect dialect;
    struct mu_errmsg msg;

    (void)unused;
    size(2, 3);
    gather(2);
    world_run(&w, 40 * WORLD_S);
    world_join(&w, world_add(&w, "c"));
    world_run(&w, 41 * WORLD_S);
    world_wish(&w, 2, MU_RDZV_LEAVE); /* from the wait list */
    world_run(&w, 42 * WORLD_S);
    world_wish(&w, 1, MU_RDZV_LEAVE); /* from the round */
    world_run(&w, 44 * WORLD_S);
    assert_true((node(2)->told & MU_RDZV_ENDED) != 0);
    assert_true((node(1)->told & MU_RDZV_ENDED) != 0);
    assert_int_equal(node(0)->waiting, 0);
    assert_int_equal(node(0)->left, 1);

    world_wish(&w, 0, MU_RDZV_LEAVE);
    world_run(&w, 45 * WORLD_S);
    mu_rdzv_state_init(&s);
    assert_int_equal(mu_rdzv_state_decode(mu_span(w.bytes, w.len), &s, &dialect, &msg), 0);
    assert_int_equal(s.member_count, 0);
    assert_int_equal(s.round, 1);
    mu_rdzv_state_fini(&s);
}

static void test_rdzv_a_member_out_of_touch_for_too_long_is_none_any_more(void **unused)
{
    (void)unused;
    gather(2);
    world_run(&w, 20 * WORLD_S);
    node(0)->cut = true;
    world_run(&w, 29 * WORLD_S); /* 15 s from when it last heard of the register */
    assert_true(node(0)->member);
    world_run(&w, 36 * WORLD_S);
    assert_false(node(0)->member);
    assert_int_equal(node(0)->code, MUSTER_ERDZV_CONN);

    /* A short cut does no harm. */
    node(1)->cut = true;
    world_run(&w, 44 * WORLD_S);
    node(1)->cut = false;
    world_run(&w, 100 * WORLD_S);
    assert_true(node(1)->member);
}

static void test_rdzv_a_state_that_was_lost_is_begun_behind_its_rounds(void **unused)
{
    (void)unused;
    gather(2);
    node(0)->rejoin = node(1)->rejoin = true;
    world_run(&w, 10 * WORLD_S);
    w.present = false; /* the store was started anew, with nothing in it */
    world_run(&w, 20 * WORLD_S);
    assert_assigned(0, 1, 0, "a b");
    assert_assigned(1, 1, 1, "a b");
}

static void test_rdzv_a_clock_that_is_ahead_is_told_of(void **unused)
{
    (void)unused;
    world_add(&w, "a");
    world_add(&w, "b");
    node(1)->skew_ns = 7 * (int64_t)WORLD_S;
    world_join(&w, 1);
    world_run(&w, WORLD_S);
    world_join(&w, 0);
    world_run(&w, 2 * WORLD_S);
    assert_true((node(0)->told & MU_RDZV_SKEWED) != 0);
    assert_true((node(1)->told & MU_RDZV_SKEWED) == 0);
    assert_true(node(0)->member && node(1)->member);
}

static void test_rdzv_skew_within_the_bound_evicts_nobody(void **unused)
{
    (void)unused;
    size(3, 3);
    gather(3);
    node(1)->skew_ns = 4900 * (int64_t)WORLD_MS;
    node(2)->skew_ns = -4900 * (int64_t)WORLD_MS;
    world_run(&w, 300 * WORLD_S);
    for (size_t i = 0; i < 3; i++) {
        assert_true(node(i)->member);
        assert_true((node(i)->told & (MU_RDZV_LOST | MU_RDZV_ENDED)) == 0);
        assert_int_equal(node(i)->assignments, 1);
    }
}

static void test_rdzv_members_cost_little_while_nothing_happens(void **unused)
{
    uint64_t reads;
    uint64_t writes;

    (void)unused;
    gather(2);
    world_run(&w, 10 * WORLD_S);
    reads = w.reads;
    writes = w.writes;
    world_run(&w, 110 * WORLD_S);
    /* Each beats every 5 s; each looks once when it was told that the other did. */
    assert_in_range(w.writes - writes, 38, 42);
    assert_in_range(w.reads - reads, 20, 82);
}

static void test_rdzv_hundreds_that_start_together_all_get_in(void **unused)
{
    (void)unused;
    size(200, 200);
    w.latency = 100000;
    for (size_t i = 0; i < 200; i++) {
        char name[16];

        (void)snprintf(name, sizeof(name), "n%03u", (unsigned)i);
        world_join(&w, world_add(&w, name));
    }
    world_run_until_assigned(&w, 10 * WORLD_S);
    assert_true(w.now < WORLD_S);
    /* Each must read and write once; losing and looking may cost a few times that, not 200. */
    assert_true(w.reads < 200 * 8);
    assert_true(w.writes < 200 * 4);
    for (size_t i = 0; i < 200; i++) {
        assert_int_equal(node(i)->rank, i);
    }
}

/* --- memory ------------------------------------------------------------ */

static long fail_nth;
static bool failed_any;
static char story[1u << 16];
static char expected_story[1u << 16];

static void note(struct world *world, const char *line)
{
    size_t n = strlen(story);

    (void)world;
    assert_true((size_t)snprintf(story + n, sizeof(story) - n, "%s\n", line) < sizeof(story) - n);
}

/* What the machine holds, in bytes; who is silent at that time is left out. */
static void hold_still(const struct mu_rdzv *r, mu_wall_t at, struct mu_buf *out)
{
    struct mu_rdzv_state s;

    mu_rdzv_state_init(&s);
    mu_buf_init(out, 1u << 20);
    assert_int_equal(mu_rdzv_state_copy(&s, &r->state), 0);
    (void)mu_rdzv_sanitise(&s, &r->config.settings, at);
    assert_int_equal(mu_rdzv_state_encode(out, &s, MU_RDZV_DIALECT_2), 0);
    mu_rdzv_state_fini(&s);
    assert_int_equal(mu_buf_append(out, mu_span(&r->v.phase, sizeof(r->v.phase))), 0);
    assert_int_equal(mu_buf_append(out, mu_buf_span(&r->token)), 0);
}

/* A step whose allocation number fail_nth fails; if it says so, it is given again. */
static int step_in_need(struct mu_rdzv *r, const struct mu_rdzv_event *ev,
                        struct mu_rdzv_update *up)
{
    struct mu_buf before;
    struct mu_buf after;
    int err;

    hold_still(r, ev->now.wall, &before);
    failheap_arm(fail_nth);
    err = mu_rdzv_step(r, ev, up);
    failed_any = failed_any || failheap_fired();
    failheap_disarm();
    if (err == MUSTER_ENOMEM) {
        hold_still(r, ev->now.wall, &after);
        assert_true(mu_span_eq(mu_buf_span(&before), mu_buf_span(&after)));
        mu_buf_fini(&after);
        err = mu_rdzv_step(r, ev, up);
    }
    mu_buf_fini(&before);
    return err;
}

/* A life with everything in it: losses, a late one, a death, a leave, a spare, a close. */
static void live_through(void)
{
    world_init(&w);
    story[0] = '\0';
    failed_any = false;
    w.say = note;
    w.step = step_in_need;
    size(2, 2);
    gather(3);
    node(0)->rejoin = true;
    world_run(&w, 10 * WORLD_S);
    world_crash(&w, 1);
    world_run(&w, 40 * WORLD_S);
    world_join(&w, world_add(&w, "d"));
    world_join(&w, world_add(&w, "e"));
    world_run(&w, 42 * WORLD_S);
    world_wish(&w, 3, MU_RDZV_LEAVE);
    world_run(&w, 43 * WORLD_S);
    world_wish(&w, 0, MU_RDZV_CLOSE);
    world_run(&w, 50 * WORLD_S);
    world_fini(&w);
}

static void test_rdzv_a_step_without_memory_changes_nothing(void **unused)
{
    (void)unused;
    fail_nth = 1000000;
    live_through();
    assert_false(failed_any);
    memcpy(expected_story, story, sizeof(story));
    assert_non_null(strstr(story, "closed"));

    fail_nth = 0;
    do {
        live_through();
        assert_string_equal(story, expected_story);
        fail_nth++;
    } while (failed_any);
    assert_true(fail_nth > 10);
}

#define TOGETHER(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TOGETHER(test_rdzv_two_nodes_meet),
        TOGETHER(test_rdzv_ranks_follow_names_not_arrival),
        TOGETHER(test_rdzv_last_call_ends_with_who_is_there),
        TOGETHER(test_rdzv_without_push_it_works_as_well),
        TOGETHER(test_rdzv_a_timeout_names_who_came_and_who_is_missing),
        TOGETHER(test_rdzv_a_missed_deadline_is_rolled_back),
        TOGETHER(test_rdzv_a_latecomer_waits_and_all_meet_in_the_next_round),
        TOGETHER(test_rdzv_a_spare_waits_past_its_deadline_and_ends_gracefully),
        TOGETHER(test_rdzv_a_spare_takes_the_place_of_the_dead),
        TOGETHER(test_rdzv_three_settle_on_two_seats),
        TOGETHER(test_rdzv_generation_1_knows_no_spares),
        TOGETHER(test_rdzv_a_closed_run_takes_nobody),
        TOGETHER(test_rdzv_a_dead_member_is_lost_to_the_others),
        TOGETHER(test_rdzv_who_was_stopped_learns_that_it_is_out_and_can_join_again),
        TOGETHER(test_rdzv_who_reads_late_does_not_believe_in_a_smaller_world),
        TOGETHER(test_rdzv_leaving_takes_itself_off_every_list),
        TOGETHER(test_rdzv_a_member_out_of_touch_for_too_long_is_none_any_more),
        TOGETHER(test_rdzv_a_state_that_was_lost_is_begun_behind_its_rounds),
        TOGETHER(test_rdzv_a_clock_that_is_ahead_is_told_of),
        TOGETHER(test_rdzv_skew_within_the_bound_evicts_nobody),
        TOGETHER(test_rdzv_members_cost_little_while_nothing_happens),
        TOGETHER(test_rdzv_hundreds_that_start_together_all_get_in),
        cmocka_unit_test(test_rdzv_a_step_without_memory_changes_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

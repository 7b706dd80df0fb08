/*
 * The rules of the rendezvous: every row of the join table in both generations, every action and
 * what it does to the state, the silent and the skewed. All times are given; nothing waits.
 */
#include "unit.h"

#include "failheap.h"
#include "proto/rdzv/rules.h"

#define S MU_NS_PER_S

enum { P = 1, W = 2, R = 4 }; /* participant, wait list, redundancy list */

static struct mu_rdzv_state state;
static struct mu_rdzv_settings settings;
static const struct mu_now now = {.mono = {1000 * S}, .wall = {1700000000 * S}};

static int setup(void **unused)
{
    (void)unused;
    mu_rdzv_state_init(&state);
    settings = mu_rdzv_settings_defaults();
    settings.min_nodes = 2;
    settings.max_nodes = 3;
    return 0;
}

static int teardown(void **unused)
{
    (void)unused;
    mu_rdzv_state_fini(&state);
    return 0;
}

static struct mu_rdzv_node node_of(const char *addr)
{
    return (struct mu_rdzv_node){.addr = (char *)(uintptr_t)addr, .pid = 7, .local_id = 0};
}

static mu_wall_t wall_ago(double seconds)
{
    return (mu_wall_t){(uint64_t)((double)now.wall.ns / 1e3 - seconds * 1e6) * 1000};
}

/* Puts a node into the state, last heard of `age` seconds ago; below -100: never. */
static struct mu_rdzv_member *put(const char *addr, int where, double age)
{
    struct mu_rdzv_node node = node_of(addr);
    struct mu_rdzv_member *m;

    assert_int_equal(mu_rdzv_state_add(&state, &node, &m), 0);
    m->participant = (where & P) != 0;
    m->waiting = (where & W) != 0;
    m->spare = (where & R) != 0;
    m->has_heartbeat = age > -100;
    m->heartbeat = wall_ago(age);
    return m;
}

static struct mu_rdzv_member *find(const char *addr)
{
    struct mu_rdzv_node node = node_of(addr);

    return mu_rdzv_state_find(&state, &node);
}

static void apply(enum mu_rdzv_action action, const char *addr)
{
    struct mu_rdzv_node node = node_of(addr);

    assert_int_equal(mu_rdzv_apply(&state, action, &node, &settings, now.wall), 0);
}

/* The question of node "me" at `late` seconds past the operation's deadline. */
static struct mu_rdzv_ask ask_late(double late)
{
    static struct mu_rdzv_node me;

    me = node_of("me");
    return (struct mu_rdzv_ask){
        .state = &state,
        .node = &me,
        .settings = &settings,
        .now = now,
        .deadline = {(uint64_t)((double)now.mono.ns - late * 1e9)},
    };
}

static void assert_action(enum mu_rdzv_action got, enum mu_rdzv_action expected, const char *what)
{
    if (got != expected) {
        fail_msg("%s: %s instead of %s", what, mu_rdzv_action_name(got),
                 mu_rdzv_action_name(expected));
    }
}

/* --- the join table ------------------------------------------------ */

struct join_case {
    const char *row;
    bool closed;
    bool complete;
    int me;              /* P, W, R; 0: nowhere */
    size_t others;       /* participants besides me; min is 2, max is 3 */
    double beat_age;     /* of my heartbeat, in seconds */
    double deadline_age; /* of the last call's end; 0: there is none */
    double late;         /* past the operation's deadline */
    enum mu_rdzv_action second;
    enum mu_rdzv_action first; /* in generation 1, where a redundancy list means nothing */
};

#define ACT(name) MU_RDZV_ACT_##name

static const struct join_case join_cases[] = {
    {"1: closed, spare", true, true, R, 3, 0, 0, -9, ACT(ERROR_GRACEFUL), ACT(ERROR_CLOSED)},
    {"2: closed", true, false, 0, 1, 0, 0, -9, ACT(ERROR_CLOSED), ACT(ERROR_CLOSED)},
    {"2: closed, waiting", true, true, W, 2, 0, 0, -9, ACT(ERROR_CLOSED), ACT(ERROR_CLOSED)},
    {"2: closed, late", true, false, P, 1, 0, 0, 1, ACT(ERROR_CLOSED), ACT(ERROR_CLOSED)},
    {"2: closed wins over row 5", true, true, P, 1, 0, 0, -9, ACT(ERROR_CLOSED), ACT(ERROR_CLOSED)},
    {"3: spare, full", false, true, R, 3, 4.9, 0, -9, ACT(SYNC), ACT(SYNC)},
    {"3: spare, full, due", false, true, R, 3, 5, 0, -9, ACT(KEEP_ALIVE), ACT(KEEP_ALIVE)},
    {"3: no timeout applies", false, true, R, 3, 0, 0, 900, ACT(SYNC), ACT(ERROR_TIMEOUT)},
    {"4: spare, room", false, true, R, 2, 0, 0, -9, ACT(REMOVE_FROM_REDUNDANCY_LIST),
     ACT(ADD_TO_WAIT_LIST)},
    {"4: spare, room, late", false, true, R, 2, 0, 0, 1, ACT(REMOVE_FROM_REDUNDANCY_LIST),
     ACT(ERROR_TIMEOUT)},
    {"4: spare, next round", false, false, R, 0, 0, 0, -9, ACT(REMOVE_FROM_REDUNDANCY_LIST),
     ACT(ADD_TO_PARTICIPANTS)},
    {"5: complete, in it", false, true, P, 1, 0, 0, -9, ACT(FINISH), ACT(FINISH)},
    {"5: even late", false, true, P, 1, 0, 0, 99, ACT(FINISH), ACT(FINISH)},
    {"6: late, in it", false, false, P, 0, 0, 0, 0.001, ACT(REMOVE_FROM_PARTICIPANTS),
     ACT(REMOVE_FROM_PARTICIPANTS)},
    {"6: until 5 s", false, false, P, 0, 0, 0, 5, ACT(REMOVE_FROM_PARTICIPANTS),
     ACT(REMOVE_FROM_PARTICIPANTS)},
    {"6: before row 12", false, false, P, 1, 0, 9, 1, ACT(REMOVE_FROM_PARTICIPANTS),
     ACT(REMOVE_FROM_PARTICIPANTS)},
    {"7: late, waiting", false, true, W, 2, 0, 0, 1, ACT(REMOVE_FROM_WAIT_LIST),
     ACT(REMOVE_FROM_WAIT_LIST)},
    {"8: late, nowhere", false, false, 0, 1, 0, 0, 1, ACT(ERROR_TIMEOUT), ACT(ERROR_TIMEOUT)},
    {"8: too late, in it", false, false, P, 0, 0, 0, 5.001, ACT(ERROR_TIMEOUT), ACT(ERROR_TIMEOUT)},
    {"8: too late, waiting", false, true, W, 2, 0, 0, 5.001, ACT(ERROR_TIMEOUT),
     ACT(ERROR_TIMEOUT)},
    {"not late at the deadline", false, false, P, 0, 0, 0, 0, ACT(SYNC), ACT(SYNC)},
    {"9: complete, room", false, true, 0, 2, 0, 0, -9, ACT(ADD_TO_WAIT_LIST),
     ACT(ADD_TO_WAIT_LIST)},
    {"10: complete, full", false, true, 0, 3, 0, 0, -9, ACT(ADD_TO_REDUNDANCY_LIST), ACT(SYNC)},
    {"10: overfull", false, true, 0, 4, 0, 0, -9, ACT(ADD_TO_REDUNDANCY_LIST), ACT(SYNC)},
    {"11: waiting, room", false, true, W, 2, 4.9, 0, -9, ACT(SYNC), ACT(SYNC)},
    {"ours: waiting, full", false, true, W, 3, 9, 0, -9, ACT(ADD_TO_REDUNDANCY_LIST),
     ACT(REMOVE_FROM_WAIT_LIST)},
    {"11: waiting, due", false, true, W, 2, 5, 0, -9, ACT(KEEP_ALIVE), ACT(KEEP_ALIVE)},
    {"12: last call over", false, false, P, 1, 0, 0.001, -9, ACT(MARK_COMPLETE),
     ACT(MARK_COMPLETE)},
    {"12: with the most", false, false, P, 2, 0, 1, -9, ACT(MARK_COMPLETE), ACT(MARK_COMPLETE)},
    {"13: too many", false, false, P, 3, 0, 1, -9, ACT(SYNC), ACT(SYNC)},
    {"13: last call", false, false, P, 1, 0, -1, -9, ACT(SYNC), ACT(SYNC)},
    {"13: too few", false, false, P, 0, 0, 1, -9, ACT(SYNC), ACT(SYNC)},
    {"13: enough, no deadline", false, false, P, 1, 0, 0, -9, ACT(SYNC), ACT(SYNC)},
    {"14: not complete", false, false, 0, 1, 0, 0, -9, ACT(ADD_TO_PARTICIPANTS),
     ACT(ADD_TO_PARTICIPANTS)},
    {"14: from the wait list", false, false, W, 0, 0, 0, -9, ACT(ADD_TO_PARTICIPANTS),
     ACT(ADD_TO_PARTICIPANTS)},
    {"15: due", false, false, P, 0, 5, 0, -9, ACT(KEEP_ALIVE), ACT(KEEP_ALIVE)},
    {"15: never without one", false, false, P, 0, -200, 0, -9, ACT(SYNC), ACT(SYNC)},
    {"16: nothing", false, false, P, 0, 4.999, 0, -9, ACT(SYNC), ACT(SYNC)},
};

static void make_join_case(const struct join_case *c)
{
    static const char *const names[] = {"a", "b", "c", "d"};
    int64_t rank = 0;

    state.closed = c->closed;
    state.complete = c->complete;
    state.has_deadline = c->deadline_age != 0;
    state.deadline = wall_ago(c->deadline_age);
    for (size_t i = 0; i < c->others; i++) {
        put(names[i], P, 1)->rank = c->complete ? rank++ : 0;
    }
    if (c->me != 0) {
        put("me", c->me, c->beat_age)->rank = c->complete ? rank : 0;
    }
}

static void run_join_table(enum mu_rdzv_generation generation)
{
    for (size_t i = 0; i < sizeof(join_cases) / sizeof(join_cases[0]); i++) {
        const struct join_case *c = &join_cases[i];
        struct mu_rdzv_ask ask;

        teardown(NULL);
        setup(NULL);
        settings.generation = generation;
        make_join_case(c);
        ask = ask_late(c->late);
        assert_action(mu_rdzv_decide_join(&ask),
                      generation == MU_RDZV_GENERATION_1 ? c->first : c->second, c->row);
    }
}

static void test_rdzv_join_table_of_generation_2(void **unused)
{
    (void)unused;
    run_join_table(MU_RDZV_GENERATION_2);
}

static void test_rdzv_join_table_of_generation_1(void **unused)
{
    (void)unused;
    run_join_table(MU_RDZV_GENERATION_1);
}

static void test_rdzv_join_does_not_take_a_round_that_somebody_left(void **unused)
{
    struct mu_rdzv_ask ask = ask_late(-9);

    (void)unused;
    put("a", 0, 0);
    put("me", 0, 0);
    put("z", 0, 0);
    for (size_t i = 0; i < 3; i++) {
        state.members[i].participant = true;
    }
    apply(ACT(MARK_COMPLETE), "a");
    assert_true(mu_rdzv_intact(&state));
    assert_action(mu_rdzv_decide_join(&ask), ACT(FINISH), "all there");

    /* The last rank leaves no gap; only the seal tells. */
    apply(ACT(REMOVE_FROM_PARTICIPANTS), "z");
    assert_false(mu_rdzv_intact(&state));
    assert_action(mu_rdzv_decide_join(&ask), ACT(REMOVE_FROM_PARTICIPANTS), "one gone");
    ask = ask_late(1);
    assert_action(mu_rdzv_decide_join(&ask), ACT(REMOVE_FROM_PARTICIPANTS), "late: row 6");
    ask = ask_late(6);
    assert_action(mu_rdzv_decide_join(&ask), ACT(ERROR_TIMEOUT), "late: row 8");

    /* PyTorch's rounds have no seal; a gap shows in the ranks. */
    state.has_deadline = false;
    assert_true(mu_rdzv_intact(&state));
    apply(ACT(REMOVE_FROM_PARTICIPANTS), "a");
    assert_false(mu_rdzv_intact(&state));
}

static void test_rdzv_a_round_with_doubtful_ranks_is_not_intact(void **unused)
{
    static const int64_t ranks[][4] = {{0, 0, 3, 3}, {0, 1, 2, 4}, {-1, 0, 1, 2}, {1, 2, 3, 4}};
    static const char *const names[] = {"a", "b", "c", "d"};

    (void)unused;
    assert_false(mu_rdzv_intact(&state));
    state.complete = true;
    assert_false(mu_rdzv_intact(&state));
    for (size_t i = 0; i < 4; i++) {
        put(names[i], P, 0)->rank = 3 - (int64_t)i;
    }
    assert_true(mu_rdzv_intact(&state));
    for (size_t k = 0; k < 4; k++) {
        for (size_t i = 0; i < 4; i++) {
            find(names[i])->rank = ranks[k][i];
        }
        assert_false(mu_rdzv_intact(&state));
    }
}

/* --- the other operations ------------------------------------------ */

static void test_rdzv_exit_removes_participants_only(void **unused)
{
    struct mu_rdzv_ask ask = ask_late(-9);
    struct mu_rdzv_ask late = ask_late(0.001);

    (void)unused;
    assert_action(mu_rdzv_decide_exit(&ask), ACT(FINISH), "nowhere");
    put("me", W, 0);
    assert_action(mu_rdzv_decide_exit(&ask), ACT(FINISH), "waiting");
    find("me")->participant = true;
    assert_action(mu_rdzv_decide_exit(&ask), ACT(REMOVE_FROM_PARTICIPANTS), "in it");
    assert_action(mu_rdzv_decide_exit(&late), ACT(ERROR_TIMEOUT), "late");
    find("me")->participant = false;
    assert_action(mu_rdzv_decide_exit(&late), ACT(FINISH), "late, but out");
}

static void test_rdzv_leave_removes_from_everything(void **unused)
{
    struct mu_rdzv_ask ask = ask_late(-9);
    struct mu_rdzv_ask late = ask_late(0.001);

    (void)unused;
    assert_action(mu_rdzv_decide_leave(&ask), ACT(FINISH), "nowhere");
    put("me", P | W | R, 0);
    assert_action(mu_rdzv_decide_leave(&ask), ACT(REMOVE_FROM_PARTICIPANTS), "in it");
    find("me")->participant = false;
    assert_action(mu_rdzv_decide_leave(&ask), ACT(REMOVE_FROM_WAIT_LIST), "waiting");
    find("me")->waiting = false;
    assert_action(mu_rdzv_decide_leave(&ask), ACT(REMOVE_FROM_REDUNDANCY_LIST), "spare");
    assert_action(mu_rdzv_decide_leave(&late), ACT(ERROR_TIMEOUT), "late");
    find("me")->spare = false;
    assert_action(mu_rdzv_decide_leave(&late), ACT(FINISH), "late, but out");
}

static void test_rdzv_close_ends_when_it_is_closed(void **unused)
{
    struct mu_rdzv_ask ask = ask_late(0);
    struct mu_rdzv_ask late = ask_late(0.001);

    (void)unused;
    assert_action(mu_rdzv_decide_close(&ask), ACT(MARK_CLOSED), "open");
    assert_action(mu_rdzv_decide_close(&late), ACT(ERROR_TIMEOUT), "late");
    apply(ACT(MARK_CLOSED), "me");
    assert_true(state.closed);
    assert_action(mu_rdzv_decide_close(&late), ACT(FINISH), "closed");
}

static void test_rdzv_keep_alive_is_due_after_the_interval(void **unused)
{
    struct mu_rdzv_ask ask = ask_late(0);
    struct mu_rdzv_ask late = ask_late(0.001);

    (void)unused;
    assert_action(mu_rdzv_decide_keep_alive(&ask), ACT(FINISH), "an expelled node stays out");
    put("me", P, 4.999);
    assert_action(mu_rdzv_decide_keep_alive(&late), ACT(FINISH), "fresh");
    find("me")->heartbeat = wall_ago(5);
    assert_action(mu_rdzv_decide_keep_alive(&ask), ACT(KEEP_ALIVE), "due");
    assert_action(mu_rdzv_decide_keep_alive(&late), ACT(ERROR_TIMEOUT), "late");
}

/* --- actions -------------------------------------------------------- */

static void test_rdzv_keep_alive_writes_the_time_in_microseconds(void **unused)
{
    struct mu_rdzv_node me = node_of("me");
    mu_wall_t odd = {now.wall.ns + 1234567};

    (void)unused;
    put("me", P, 9);
    assert_int_equal(mu_rdzv_apply(&state, ACT(KEEP_ALIVE), &me, &settings, odd), 0);
    assert_true(find("me")->heartbeat.ns == now.wall.ns + 1234000);
}

static void test_rdzv_participants_come_one_by_one(void **unused)
{
    (void)unused;
    put("me", W, 9);
    apply(ACT(ADD_TO_PARTICIPANTS), "me");
    assert_true(find("me")->participant);
    assert_false(find("me")->waiting);
    assert_true(find("me")->heartbeat.ns == now.wall.ns);
    assert_false(state.has_deadline);

    /* The second makes the minimum: last call. */
    apply(ACT(ADD_TO_PARTICIPANTS), "host-2");
    assert_true(state.has_deadline);
    assert_true(state.deadline.ns == now.wall.ns + 30 * S);
    assert_false(state.complete);
    assert_int_equal(find("host-2")->rank, 0);

    /* The third makes the maximum: complete, in the order of the names, not of coming. */
    apply(ACT(ADD_TO_PARTICIPANTS), "host-10");
    assert_true(state.complete);
    assert_int_equal(find("host-10")->rank, 0);
    assert_int_equal(find("host-2")->rank, 1);
    assert_int_equal(find("me")->rank, 2);
    assert_true(mu_rdzv_intact(&state));
}

static void test_rdzv_last_call_starts_at_exactly_the_minimum(void **unused)
{
    (void)unused;
    settings.max_nodes = 4;
    put("a", P, 0);
    put("b", P, 0);
    apply(ACT(ADD_TO_PARTICIPANTS), "c");
    assert_false(state.has_deadline);

    /* Dying back below the minimum forgets it, so joining starts it anew. */
    state.has_deadline = true;
    state.deadline = wall_ago(20);
    apply(ACT(REMOVE_FROM_PARTICIPANTS), "a");
    assert_true(state.has_deadline);
    apply(ACT(REMOVE_FROM_PARTICIPANTS), "b");
    assert_false(state.has_deadline);
    apply(ACT(ADD_TO_PARTICIPANTS), "b");
    assert_true(state.deadline.ns == now.wall.ns + 30 * S);
}

static void test_rdzv_add_to_participants_leaves_the_redundancy_list_alone(void **unused)
{
    (void)unused;
    put("me", R, 0);
    apply(ACT(ADD_TO_PARTICIPANTS), "me");
    assert_true(find("me")->spare);
}

static void test_rdzv_lists_take_and_give_up_a_node(void **unused)
{
    (void)unused;
    apply(ACT(ADD_TO_REDUNDANCY_LIST), "me");
    assert_true(find("me")->spare);
    assert_true(find("me")->has_heartbeat);
    assert_int_equal(mu_rdzv_spares(&state), 1);

    apply(ACT(ADD_TO_WAIT_LIST), "me");
    assert_false(find("me")->spare);
    assert_true(find("me")->waiting);
    assert_int_equal(mu_rdzv_waiting(&state), 1);

    apply(ACT(ADD_TO_REDUNDANCY_LIST), "me");
    assert_false(find("me")->waiting);
    apply(ACT(ADD_TO_WAIT_LIST), "me");
    apply(ACT(REMOVE_FROM_WAIT_LIST), "me");
    assert_null(find("me"));
    apply(ACT(ADD_TO_REDUNDANCY_LIST), "me");
    apply(ACT(REMOVE_FROM_REDUNDANCY_LIST), "me");
    assert_null(find("me"));
    assert_int_equal(state.member_count, 0);
}

static void test_rdzv_the_last_to_leave_begins_the_next_round(void **unused)
{
    (void)unused;
    put("a", P, 0);
    put("b", P, 0);
    put("w", W, 0);
    apply(ACT(MARK_COMPLETE), "a");
    assert_int_equal(find("b")->rank, 1);

    apply(ACT(REMOVE_FROM_PARTICIPANTS), "a");
    assert_true(state.complete);
    assert_int_equal(state.round, 0);
    apply(ACT(REMOVE_FROM_PARTICIPANTS), "b");
    assert_false(state.complete);
    assert_false(state.has_deadline);
    assert_int_equal(state.round, 1);
    assert_true(find("w")->waiting);
}

static void test_rdzv_removing_who_is_not_there_changes_nothing(void **unused)
{
    (void)unused;
    state.complete = true;
    apply(ACT(REMOVE_FROM_PARTICIPANTS), "me");
    apply(ACT(REMOVE_FROM_WAIT_LIST), "me");
    assert_int_equal(state.round, 0);
    assert_true(state.complete);
}

static void test_rdzv_the_round_does_not_overflow(void **unused)
{
    (void)unused;
    put("a", P, 0);
    state.complete = true;
    state.round = MU_RDZV_ROUND_MAX;
    apply(ACT(REMOVE_FROM_PARTICIPANTS), "a");
    assert_true(state.round == MU_RDZV_ROUND_MAX);
}

static void test_rdzv_other_actions_change_nothing(void **unused)
{
    (void)unused;
    put("a", P, 0);
    for (int a = ACT(SYNC); a <= ACT(ERROR_GRACEFUL); a++) {
        assert_false(mu_rdzv_action_writes((enum mu_rdzv_action)a));
        apply((enum mu_rdzv_action)a, "me");
    }
    for (int a = ACT(KEEP_ALIVE); a <= ACT(MARK_CLOSED); a++) {
        assert_true(mu_rdzv_action_writes((enum mu_rdzv_action)a));
    }
    assert_int_equal(state.member_count, 1);
    assert_false(state.complete || state.closed || state.has_deadline);
}

static void test_rdzv_apply_without_memory_changes_nothing(void **unused)
{
    static const enum mu_rdzv_action adding[] = {ACT(ADD_TO_PARTICIPANTS), ACT(ADD_TO_WAIT_LIST),
                                                 ACT(ADD_TO_REDUNDANCY_LIST)};
    struct mu_rdzv_node me = node_of("me");

    (void)unused;
    for (size_t i = 0; i < 3; i++) {
        for (long nth = 0;; nth++) {
            bool fired;
            int err;

            teardown(NULL);
            setup(NULL);
            failheap_arm(nth);
            err = mu_rdzv_apply(&state, adding[i], &me, &settings, now.wall);
            fired = failheap_fired();
            failheap_disarm();
            assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
            assert_int_equal(state.member_count, fired ? 0 : 1);
            if (!fired) {
                break;
            }
        }
    }
}

/* --- the silent and the skewed -------------------------------------- */

static void test_rdzv_sanitise_drops_who_was_silent_for_15_s(void **unused)
{
    (void)unused;
    put("alive", P, 15);
    put("dead", P | W | R, 15.001);
    put("mute", W, -200); /* no heartbeat: never expires */
    put("ghost", 0, 20);  /* nothing but an old heartbeat */
    state.has_deadline = true;
    assert_int_equal(mu_rdzv_sanitise(&state, &settings, now.wall), 2);

    assert_non_null(find("alive"));
    assert_null(find("dead"));
    assert_non_null(find("mute"));
    assert_null(find("ghost"));
    assert_false(state.has_deadline); /* one is left, two are needed */
    assert_int_equal(mu_rdzv_sanitise(&state, &settings, now.wall), 0);
}

static void test_rdzv_sanitise_ends_a_round_nobody_is_left_of(void **unused)
{
    (void)unused;
    put("a", P, 16);
    put("b", P, 17);
    put("w", W, 1);
    apply(ACT(MARK_COMPLETE), "a");
    find("a")->heartbeat = wall_ago(16);
    assert_int_equal(mu_rdzv_sanitise(&state, &settings, now.wall), 2);
    assert_false(state.complete);
    assert_int_equal(state.round, 1);

    /* Who waits does not count. */
    find("w")->heartbeat = wall_ago(60);
    assert_int_equal(mu_rdzv_sanitise(&state, &settings, now.wall), 1);
    assert_int_equal(state.round, 1);
}

static void test_rdzv_skew_is_told_beyond_the_bound(void **unused)
{
    struct mu_rdzv_node me = node_of("me");
    const struct mu_rdzv_member *whose = NULL;

    (void)unused;
    put("me", P, -60);
    put("a", P, -5);
    put("b", P, 10);
    assert_int_equal(mu_rdzv_skew(&state, &me, &settings, now.wall, &whose), 0);
    assert_null(whose);

    put("c", P, -6);
    put("d", W, -7.5);
    assert_int_equal(mu_rdzv_skew(&state, &me, &settings, now.wall, &whose), 7500);
    assert_string_equal(whose->node.addr, "d");
    settings.skew_ms_max = 7500;
    assert_int_equal(mu_rdzv_skew(&state, &me, &settings, now.wall, &whose), 0);
    settings.skew_ms_max = 7499;
    assert_int_equal(mu_rdzv_skew(&state, &me, &settings, now.wall, &whose), 7500);
}

static void test_rdzv_extreme_clocks_do_no_harm(void **unused)
{
    struct mu_rdzv_ask ask = ask_late(-9);
    const struct mu_rdzv_member *whose;

    (void)unused;
    put("a", P, 0)->heartbeat.ns = UINT64_MAX;
    put("b", P, 0)->heartbeat.ns = 0;
    put("me", P, 0)->heartbeat.ns = UINT64_MAX;
    assert_int_equal(mu_rdzv_sanitise(&state, &settings, now.wall), 1);
    assert_action(mu_rdzv_decide_join(&ask), ACT(SYNC), "a beat far ahead is not due");
    assert_true(mu_rdzv_skew(&state, ask.node, &settings, now.wall, &whose) > 1000000);
    assert_int_equal(mu_rdzv_sanitise(&state, &settings, (mu_wall_t){UINT64_MAX}), 0);
    assert_int_equal(mu_rdzv_sanitise(&state, &settings, (mu_wall_t){0}), 0);
}

/* --- settings -------------------------------------------------------- */

static void test_rdzv_settings_are_checked(void **unused)
{
    struct mu_errmsg msg;
    struct mu_rdzv_settings s = settings;

    (void)unused;
    assert_int_equal(mu_rdzv_settings_check(&s, &msg), 0);
    assert_int_equal(mu_rdzv_dead_after_ms(&s), 15000);

    s.min_nodes = 0;
    assert_int_equal(mu_rdzv_settings_check(&s, &msg), MUSTER_EINVAL);
    s = settings;
    s.max_nodes = 1;
    assert_int_equal(mu_rdzv_settings_check(&s, &msg), MUSTER_EINVAL);
    assert_non_null(strstr(msg.text, "maximum number of nodes (1)"));
    s = settings;
    s.max_nodes = MU_RDZV_MEMBERS_MAX + 1;
    assert_int_equal(mu_rdzv_settings_check(&s, &msg), MUSTER_EINVAL);
    s = settings;
    s.last_call_timeout_ms = 0;
    assert_int_equal(mu_rdzv_settings_check(&s, &msg), MUSTER_EINVAL);
    s.last_call_timeout_ms = MU_RDZV_TIMEOUT_MS_MAX;
    assert_int_equal(mu_rdzv_settings_check(&s, &msg), 0);
    s.last_call_timeout_ms = MU_RDZV_TIMEOUT_MS_MAX + 1;
    assert_int_equal(mu_rdzv_settings_check(&s, &msg), MUSTER_EINVAL);
    assert_non_null(strstr(msg.text, "last call"));
    s = settings;
    s.keep_alive_max_attempt = UINT32_MAX;
    assert_int_equal(mu_rdzv_settings_check(&s, &msg), MUSTER_EINVAL);
    s.keep_alive_interval_ms = UINT64_MAX;
    assert_true(mu_rdzv_dead_after_ms(&s) == UINT64_MAX);
    assert_int_equal(mu_rdzv_settings_check(&s, &msg), MUSTER_EINVAL);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_rdzv_join_table_of_generation_2),
        TEST(test_rdzv_join_table_of_generation_1),
        TEST(test_rdzv_join_does_not_take_a_round_that_somebody_left),
        TEST(test_rdzv_a_round_with_doubtful_ranks_is_not_intact),
        TEST(test_rdzv_exit_removes_participants_only),
        TEST(test_rdzv_leave_removes_from_everything),
        TEST(test_rdzv_close_ends_when_it_is_closed),
        TEST(test_rdzv_keep_alive_is_due_after_the_interval),
        TEST(test_rdzv_keep_alive_writes_the_time_in_microseconds),
        TEST(test_rdzv_participants_come_one_by_one),
        TEST(test_rdzv_last_call_starts_at_exactly_the_minimum),
        TEST(test_rdzv_add_to_participants_leaves_the_redundancy_list_alone),
        TEST(test_rdzv_lists_take_and_give_up_a_node),
        TEST(test_rdzv_the_last_to_leave_begins_the_next_round),
        TEST(test_rdzv_removing_who_is_not_there_changes_nothing),
        TEST(test_rdzv_the_round_does_not_overflow),
        TEST(test_rdzv_other_actions_change_nothing),
        TEST(test_rdzv_apply_without_memory_changes_nothing),
        TEST(test_rdzv_sanitise_drops_who_was_silent_for_15_s),
        TEST(test_rdzv_sanitise_ends_a_round_nobody_is_left_of),
        TEST(test_rdzv_skew_is_told_beyond_the_bound),
        TEST(test_rdzv_extreme_clocks_do_no_harm),
        TEST(test_rdzv_settings_are_checked),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * The hub in the simulator: what PyTorch's users ask for in vain, one test each. The rules
 * themselves are proven with the room; here it is the whole way from a node's bytes to its reply.
 */
#include "hub_rig.h"

/* Three nodes that are in round 0 together: a, b, c with ranks 0, 1, 2. */
struct trio {
    struct hub_world *w;
    struct hub_node *n[3];
};

static struct trio make_trio(struct mu_rdzv_join join)
{
    static const char *const names[] = {"a", "b", "c"};
    struct trio t = {.w = hub_world_new(NULL)};

    for (int i = 0; i < 3; i++) {
        t.n[i] = hub_node_new(t.w, names[i]);
    }
    for (int i = 0; i < 3; i++) {
        hub_join(t.n[i], join);
    }
    hub_run_ms(t.w, join.nodes_max == 3 ? 20 : 1100);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(t.n[i]->world_size, 3);
        assert_int_equal(t.n[i]->rank, i);
        hub_forget(t.n[i]);
    }
    return t;
}

/* Kills the process as kill -9 does; when. */
static uint64_t kill_node(struct hub_node *n)
{
    mu_sim_kill(n->proc, MU_SIM_KILL_PROCESS);
    return mu_sim_now_ns(n->world->sim);
}

/* --- what users ask for ----------------------------------------------------------------------- */

static void test_hub_tells_a_node_that_it_entered_and_then_its_rank(void **state)
{
    struct hub_world *w = hub_world_new(NULL);
    struct hub_node *b = hub_node_new(w, "b");
    struct hub_node *a = hub_node_new(w, "a");
    struct mu_rdzv_join join = hub_join_of(2, 2);

    (void)state;
    join.flags = MU_RDZV_JOIN_MEMBERS;
    join.addr = MU_SPAN_LIT("10.0.0.2");
    hub_join(b, join);
    hub_run_ms(w, 20);
    assert_string_equal(b->told, "entered gathering\n");
    join.flags = 0;
    join.addr = MU_SPAN_LIT("10.0.0.1");
    hub_join(a, join);
    hub_run_ms(w, 20);
    assert_string_equal(b->told, "entered gathering\nassigned 0 1/2\n");
    assert_string_equal(a->told, "entered gathering\nassigned 0 0/2\n");
    /* The list is for those who asked for it. */
    assert_string_equal(b->members, "a@10.0.0.1 b@10.0.0.2");
    assert_string_equal(a->members, "");
    assert_int_not_equal(a->incarnation, 0);
    assert_int_equal(a->incarnation, b->incarnation);
    hub_world_free(w);
}

/* One list for each of N nodes is N squared bytes: only a few are told so many. */
static void test_hub_tells_the_members_of_a_small_world_only(void **state)
{
    static const uint32_t sizes[] = {MU_RDZV_FEW, MU_RDZV_FEW + 1};

    (void)state;
    for (size_t s = 0; s < 2; s++) {
        struct hub_world *w = hub_world_new(NULL);
        struct mu_rdzv_join join = hub_join_of(sizes[s], sizes[s]);
        struct hub_node *n[MU_RDZV_FEW + 1];

        join.flags = MU_RDZV_JOIN_FEW;
        for (uint32_t i = 0; i < sizes[s]; i++) {
            char name[16];

            (void)snprintf(name, sizeof(name), "n%u", i);
            n[i] = hub_node_new(w, name);
            hub_join(n[i], join);
        }
        hub_run_ms(w, 200);
        assert_int_equal(n[5]->world_size, sizes[s]);
        assert_int_equal(n[5]->members[0] != '\0', sizes[s] <= MU_RDZV_FEW);
        hub_world_free(w);
    }
}

/* A node that is older than lists in the store has asked for the members and not for few. */
static void test_hub_tells_older_nodes_all_members_of_a_large_world(void **state)
{
    const uint32_t size = MU_RDZV_FEW + 1;
    struct hub_world *w = hub_world_new(NULL);
    struct hub_node *n[MU_RDZV_FEW + 1];

    (void)state;
    for (uint32_t i = 0; i < size; i++) {
        struct mu_rdzv_join join = hub_join_of(size, size);
        char name[16];

        (void)snprintf(name, sizeof(name), "n%u", i);
        join.flags = i == 7 ? MU_RDZV_JOIN_MEMBERS : MU_RDZV_JOIN_MEMBERS | MU_RDZV_JOIN_FEW;
        n[i] = hub_node_new(w, name);
        hub_join(n[i], join);
    }
    hub_run_ms(w, 200);
    assert_int_equal(n[7]->world_size, size);
    assert_int_not_equal(n[7]->members[0], '\0');
    assert_int_equal(n[8]->world_size, size);
    assert_int_equal(n[8]->members[0], '\0');
    hub_world_free(w);
}

/* Nodes would look for the list in etcd, or at another server. */
static void test_hub_tells_all_members_itself_where_keys_are_elsewhere(void **state)
{
    const uint32_t size = MU_RDZV_FEW + 1;
    struct hub_world *w = hub_world_new(NULL);
    struct hub_node *n[MU_RDZV_FEW + 1];

    (void)state;
    hub_run_ms(w, 10);
    mu_store_server_hub(w->server)->on.keys_elsewhere = true;
    for (uint32_t i = 0; i < size; i++) {
        struct mu_rdzv_join join = hub_join_of(size, size);
        char name[16];

        (void)snprintf(name, sizeof(name), "n%u", i);
        join.flags = MU_RDZV_JOIN_MEMBERS | MU_RDZV_JOIN_FEW;
        n[i] = hub_node_new(w, name);
        hub_join(n[i], join);
    }
    hub_run_ms(w, 200);
    assert_int_equal(n[8]->world_size, size);
    assert_int_not_equal(n[8]->members[0], '\0');
    hub_world_free(w);
}

static void test_hub_lost_member_ends_the_round_for_the_survivors_at_once_by_push(void **state)
{
    struct trio t = make_trio(hub_join_of(2, 3));
    uint64_t killed = kill_node(t.n[1]);

    (void)state;
    hub_run_ms(t.w, 100);
    assert_string_equal(t.n[0]->told, "ended 0 lost b\n");
    assert_string_equal(t.n[2]->told, "ended 0 lost b\n");
    assert_true(hub_told_after_ms(t.n[0], killed) < 50);
    assert_true(hub_told_after_ms(t.n[2], killed) < 50);
    /* They are in the next gathering without asking again. */
    hub_run_ms(t.w, 1100);
    assert_string_equal(t.n[0]->told, "ended 0 lost b\nassigned 1 0/2\n");
    assert_string_equal(t.n[2]->told, "ended 0 lost b\nassigned 1 1/2\n");
    hub_world_free(t.w);
}

static void test_hub_reset_that_resumes_within_its_grace_ends_nothing(void **state)
{
    struct trio t = make_trio(hub_join_of(2, 3));

    (void)state;
    mu_sim_reset(t.n[1]->host, t.w->host);
    hub_run_ms(t.w, 5000);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(t.n[i]->told, "");
    }
    hub_fail(t.n[1]);
    hub_run_ms(t.w, 20);
    assert_string_equal(t.n[1]->told, "ended 0 failed b\nassigned 1 1/3\n");
    assert_string_equal(t.n[2]->told, "ended 0 failed b\nassigned 1 2/3\n");
    hub_world_free(t.w);
}

static void test_hub_reset_that_does_not_resume_within_its_grace_is_a_death(void **state)
{
    struct trio t = make_trio(hub_join_of(2, 3));
    uint64_t at = mu_sim_now_ns(t.w->sim);

    (void)state;
    t.n[1]->gone = true;
    mu_sim_reset(t.n[1]->host, t.w->host);
    hub_run_ms(t.w, 1900);
    assert_string_equal(t.n[0]->told, "");
    hub_run_ms(t.w, 200);
    assert_string_equal(t.n[0]->told, "ended 0 lost b\n");
    assert_true(hub_told_after_ms(t.n[0], at) >= 2000);
    hub_world_free(t.w);
}

static void test_hub_silence_is_a_death_within_its_bound_and_the_node_learns_it(void **state)
{
    struct mu_rdzv_join join = hub_join_of(2, 3);
    struct trio t;
    uint64_t at;

    (void)state;
    join.last_call_ms = 4000; /* no new round before we have looked */
    t = make_trio(join);
    hub_run_ms(t.w, 5000); /* beats go on */
    at = mu_sim_now_ns(t.w->sim);
    mu_sim_pause(t.n[1]->proc, 10 * MU_NS_PER_S);
    hub_run_ms(t.w, 3300);
    assert_string_equal(t.n[0]->told, "ended 0 lost b\n");
    assert_true(hub_told_after_ms(t.n[0], at) >= 2000);
    assert_true(hub_told_after_ms(t.n[0], at) <= 3300);
    assert_string_equal(t.n[1]->told, "");
    /* Awake again, it learns that it is out, and can join again. */
    hub_run_ms(t.w, 7000);
    assert_string_equal(t.n[1]->told, "reply MUSTER_ESESSION\n");
    hub_forget(t.n[1]);
    t.n[1]->join.incarnation = t.n[1]->incarnation;
    hub_join(t.n[1], t.n[1]->join);
    hub_run_ms(t.w, 20);
    assert_int_equal(t.n[1]->world_size, 3);
    assert_int_equal(t.n[0]->world_size, 3);
    assert_int_equal(t.n[1]->round, t.n[0]->round);
    hub_world_free(t.w);
}

static void test_hub_paused_server_declares_nobody_dead(void **state)
{
    struct trio t = make_trio(hub_join_of(2, 3));

    (void)state;
    for (int i = 0; i < 3; i++) {
        mu_sim_pause(t.w->proc, 20 * MU_NS_PER_S);
        hub_run_ms(t.w, 30000);
    }
    for (int i = 0; i < 3; i++) {
        assert_string_equal(t.n[i]->told, "");
        assert_int_equal(t.n[i]->world_size, 3);
    }
    hub_world_free(t.w);
}

static void test_hub_paused_server_counts_no_grace_meanwhile(void **state)
{
    struct trio t = make_trio(hub_join_of(2, 3));

    (void)state;
    /* Both at once: the connection is lost and the server asleep for longer than the grace. */
    mu_sim_reset(t.n[1]->host, t.w->host);
    hub_run_ms(t.w, 1);
    mu_sim_cut(t.n[1]->host, t.w->host, 5500 * MU_NS_PER_MS);
    mu_sim_pause(t.w->proc, 5 * MU_NS_PER_S);
    hub_run_ms(t.w, 10000);
    assert_string_equal(t.n[0]->told, "");
    assert_string_equal(t.n[1]->told, "");
    hub_world_free(t.w);
}

static void test_hub_nobody_waits_out_the_last_call_when_the_maximum_is_reached(void **state)
{
    struct mu_rdzv_join join = hub_join_of(1, 2);
    struct hub_world *w = hub_world_new(NULL);
    struct hub_node *a = hub_node_new(w, "a");
    struct hub_node *b = hub_node_new(w, "b");
    uint64_t at;

    (void)state;
    join.last_call_ms = UINT64_MAX;
    hub_join(a, join);
    hub_run_ms(w, 60000);
    assert_string_equal(a->told, "entered gathering\n");
    at = mu_sim_now_ns(w->sim);
    hub_join(b, join);
    hub_run_ms(w, 100);
    assert_int_equal(a->world_size, 2);
    assert_int_equal(b->world_size, 2);
    assert_true(hub_told_after_ms(a, at) < 5);
    assert_true(hub_told_after_ms(b, at) < 5);
    hub_world_free(w);
}

static void test_hub_nobody_waits_out_the_last_call_when_an_announced_target_is_met(void **state)
{
    struct mu_rdzv_join join = hub_join_of(1, 10);
    struct hub_world *w = hub_world_new(NULL);
    struct hub_node *a = hub_node_new(w, "a");
    struct hub_node *b = hub_node_new(w, "b");
    uint64_t at;

    (void)state;
    join.last_call_ms = 600000;
    join.target = 2;
    hub_join(a, join);
    hub_run_ms(w, 60000);
    at = mu_sim_now_ns(w->sim);
    hub_join(b, join);
    hub_run_ms(w, 100);
    assert_int_equal(a->world_size, 2);
    assert_int_equal(b->world_size, 2);
    assert_true(hub_told_after_ms(b, at) < 5);
    hub_world_free(w);
}

static void test_hub_last_call_ends_by_the_servers_clock(void **state)
{
    struct hub_world *w = hub_world_new(NULL);
    struct hub_node *a = hub_node_new(w, "a");
    uint64_t at = mu_sim_now_ns(w->sim);

    (void)state;
    hub_join(a, hub_join_of(1, 10));
    hub_run_ms(w, 2000);
    assert_string_equal(a->told, "entered gathering\nassigned 0 0/1\n");
    assert_true(hub_told_after_ms(a, at) >= 1000);
    assert_true(hub_told_after_ms(a, at) < 1010);
    hub_world_free(w);
}

static void test_hub_late_arrivals_are_batched_into_one_new_round(void **state)
{
    struct trio t = make_trio(hub_join_of(2, 10));
    struct hub_node *late[3];

    (void)state;
    for (int i = 0; i < 3; i++) {
        late[i] = hub_node_new(t.w, i == 0 ? "x" : i == 1 ? "y" : "z");
        hub_join(late[i], hub_join_of(2, 10));
        hub_run_ms(t.w, 200);
        assert_string_equal(late[i]->told, "entered waiting\n");
    }
    hub_run_ms(t.w, 600);
    assert_string_equal(t.n[0]->told, "waiters 1\nended 0 upscale \nassigned 1 0/6\n");
    assert_string_equal(t.n[2]->told, "waiters 1\nended 0 upscale \nassigned 1 2/6\n");
    assert_string_equal(late[0]->told, "entered waiting\nassigned 1 3/6\n");
    assert_string_equal(late[2]->told, "entered waiting\nassigned 1 5/6\n");
    hub_world_free(t.w);
}

static void
test_hub_closed_run_starts_again_as_a_new_incarnation_and_old_nodes_are_fenced(void **state)
{
    struct trio t = make_trio(hub_join_of(2, 3));
    struct mu_rdzv_join join = hub_join_of(1, 1);
    uint64_t old = t.n[1]->incarnation;
    char why[128];

    (void)state;
    assert_int_equal(hub_ask(t.n[0], MU_RDZV_METHOD_CLOSE, "run"), 0);
    hub_run_ms(t.w, 20);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(t.n[i]->told, "reply MUSTER_ERDZV_CLOSED\n");
        hub_forget(t.n[i]);
    }
    /* Before and after it was opened again. */
    join.incarnation = old;
    hub_join(t.n[1], join);
    hub_run_ms(t.w, 20);
    assert_string_equal(t.n[1]->told, "reply MUSTER_ERDZV_CLOSED\n");
    hub_forget(t.n[1]);
    join.incarnation = 0;
    hub_join(t.n[0], join); /* and with other numbers */
    hub_run_ms(t.w, 20);
    assert_string_equal(t.n[0]->told, "entered gathering\nassigned 0 0/1\n");
    assert_true(t.n[0]->incarnation > old);
    join.incarnation = old;
    hub_join(t.n[1], join);
    hub_run_ms(t.w, 20);
    assert_string_equal(t.n[1]->told, "reply MUSTER_ERDZV_CLOSED\n");
    (void)snprintf(why, sizeof(why), "incarnation %" PRIu64 " of this run is over", old);
    assert_string_equal(t.n[1]->why, why);
    hub_forget(t.n[1]);
    /* A new node, and one of the present incarnation, are let in. */
    join.incarnation = t.n[0]->incarnation;
    hub_join(t.n[1], join);
    join.incarnation = 0;
    hub_join(t.n[2], join);
    hub_run_ms(t.w, 20);
    assert_string_equal(t.n[1]->told, "entered spare\n");
    assert_string_equal(t.n[2]->told, "entered spare\n");
    hub_world_free(t.w);
}

static void test_hub_fast_rejoin_never_hangs_or_splits_the_world(void **state)
{
    struct trio t = make_trio(hub_join_of(3, 3));
    struct hub_node *again = hub_node_new(t.w, "b2");
    struct mu_rdzv_join join = hub_join_of(3, 3);

    (void)state;
    join.node = MU_SPAN_LIT("b");
    hub_join(again, join);
    hub_run_ms(t.w, 20);
    assert_string_equal(t.n[1]->told, "reply MUSTER_ERDZV_LOST\n");
    /* The one before it may not hear of it, and has its time to stop. */
    assert_string_equal(t.n[0]->told, "ended 0 lost b\n");
    hub_run_ms(t.w, 2000);
    assert_string_equal(t.n[0]->told, "ended 0 lost b\nassigned 1 0/3\n");
    assert_string_equal(again->told, "entered gathering\nassigned 1 1/3\n");
    assert_string_equal(t.n[2]->told, "ended 0 lost b\nassigned 1 2/3\n");
    /* Twice over the same session. */
    hub_forget(again);
    hub_join(again, join);
    hub_run_ms(t.w, 20);
    assert_string_equal(again->told, "reply MUSTER_ERDZV_LOST to the old one\n"
                                     "entered gathering\nassigned 2 1/3\n");
    assert_int_equal(t.n[0]->world_size, 3);
    assert_int_equal(t.n[0]->round, 2);
    hub_world_free(t.w);
}

static void test_hub_timeout_says_which_nodes_are_missing(void **state)
{
    struct mu_rdzv_join join = hub_join_of(3, 3);
    struct trio t;
    uint64_t at;

    (void)state;
    join.join_timeout_ms = 5000;
    t = make_trio(join);
    hub_run_ms(t.w, 20300); /* in a round nobody waits */
    assert_string_equal(t.n[0]->told, "");
    at = kill_node(t.n[1]);
    hub_run_ms(t.w, 4900);
    assert_string_equal(t.n[0]->told, "ended 0 lost b\n");
    hub_run_ms(t.w, 200);
    assert_string_equal(t.n[0]->told, "ended 0 lost b\nreply MUSTER_ERDZV_TIMEOUT\n");
    assert_string_equal(t.n[2]->told, "ended 0 lost b\nreply MUSTER_ERDZV_TIMEOUT\n");
    assert_string_equal(t.n[0]->why,
                        "timed out after 5 s: 2 of 3 nodes are here; not back since round 0: b; "
                        "here: a, c");
    assert_string_equal(t.n[2]->why, t.n[0]->why);
    assert_true(hub_told_after_ms(t.n[0], at) >= 5000);
    hub_world_free(t.w);
}

static void test_hub_join_timeout_does_not_count_while_spare(void **state)
{
    struct mu_rdzv_join join = hub_join_of(2, 2);
    struct hub_world *w = hub_world_new(NULL);
    struct hub_node *n[3];

    (void)state;
    join.join_timeout_ms = 2000;
    for (int i = 0; i < 3; i++) {
        n[i] = hub_node_new(w, i == 0 ? "a" : i == 1 ? "b" : "s");
        hub_join(n[i], join);
    }
    hub_run_ms(w, 10000);
    assert_string_equal(n[2]->told, "entered spare\n");
    /* Promoted into a gathering that does not come about: from there on it counts. */
    hub_bye(n[0]);
    hub_bye(n[1]);
    hub_run_ms(w, 1900);
    assert_string_equal(n[2]->told, "entered spare\nassigned 1 0/2\nended 1 left b\n");
    hub_run_ms(w, 200);
    assert_string_equal(
        n[2]->told, "entered spare\nassigned 1 0/2\nended 1 left b\nreply MUSTER_ERDZV_TIMEOUT\n");
    assert_string_equal(n[2]->why, "timed out after 2 s: 1 of 2 nodes are here: s");
    hub_world_free(w);
}

static void test_hub_join_timeout_begins_when_a_spare_is_promoted_into_a_gathering(void **state)
{
    struct mu_rdzv_join join = hub_join_of(3, 3);
    struct hub_world *w = hub_world_new(NULL);
    struct hub_node *two = hub_node_new(w, "two");
    struct hub_node *c = hub_node_new(w, "c");
    struct hub_node *spare = hub_node_new(w, "s");

    (void)state;
    /* Two members in one session, which are lost in the same moment. */
    two->several = true;
    join.node = MU_SPAN_LIT("a");
    hub_join(two, join);
    join.node = MU_SPAN_LIT("b");
    hub_join(two, join);
    join.node.len = 0;
    hub_join(c, join);
    join.join_timeout_ms = 2000;
    hub_run_ms(w, 20);
    hub_join(spare, join);
    hub_run_ms(w, 7300);
    kill_node(two);
    hub_run_ms(w, 1900);
    assert_string_equal(spare->told, "entered spare\n");
    hub_run_ms(w, 200);
    assert_string_equal(spare->told, "entered spare\nreply MUSTER_ERDZV_TIMEOUT\n");
    hub_world_free(w);
}

static void test_hub_spares_wait_connected_and_are_promoted_with_one_message(void **state)
{
    struct trio t = make_trio(hub_join_of(3, 3));
    struct hub_node *spare = hub_node_new(t.w, "s");
    struct mu_store_server_stats before;
    struct mu_store_server_stats after;
    uint64_t at;

    (void)state;
    hub_join(spare, hub_join_of(3, 3));
    hub_run_ms(t.w, 60000);
    assert_string_equal(spare->told, "entered spare\n");
    assert_string_equal(t.n[0]->told, "");
    mu_store_server_stats(t.w->server, &before);
    at = kill_node(t.n[1]);
    hub_run_ms(t.w, 100);
    assert_string_equal(spare->told, "entered spare\nassigned 1 1/3\n");
    assert_true(hub_told_after_ms(spare, at) < 50);
    mu_store_server_stats(t.w->server, &after);
    assert_int_equal(after.notices - before.notices, 1 + 2 * 2);
    hub_world_free(t.w);
}

static void test_hub_refuses_who_is_one_spare_too_many(void **state)
{
    struct mu_rdzv_join join = hub_join_of(3, 3);
    struct trio t;
    struct hub_node *spare;
    struct hub_node *late;

    (void)state;
    join.flags = MU_RDZV_JOIN_SPARES;
    join.spares = 1;
    t = make_trio(join);
    spare = hub_node_new(t.w, "s");
    hub_join(spare, hub_join_of(3, 3)); /* the first node of the run has set it */
    hub_run_ms(t.w, 20);
    assert_string_equal(spare->told, "entered spare\n");
    late = hub_node_new(t.w, "z");
    hub_join(late, join);
    hub_run_ms(t.w, 20);
    assert_string_equal(late->told, "reply MUSTER_ELIMIT\n");
    /* Its place is free again when somebody goes. */
    (void)kill_node(t.n[1]);
    hub_run_ms(t.w, 3000);
    hub_forget(late);
    hub_join(late, join);
    hub_run_ms(t.w, 20);
    assert_string_equal(late->told, "entered spare\n");
    hub_world_free(t.w);
}

static void test_hub_closed_run_lets_spares_go_with_grace(void **state)
{
    struct trio t = make_trio(hub_join_of(3, 3));
    struct hub_node *spare = hub_node_new(t.w, "s");

    (void)state;
    hub_join(spare, hub_join_of(3, 3));
    hub_run_ms(t.w, 20);
    assert_int_equal(hub_ask(spare, MU_RDZV_METHOD_CLOSE, "run"), 0);
    assert_string_equal(spare->told, "entered spare\nreply MUSTER_ERDZV_GRACEFUL\n");
    assert_string_equal(t.n[0]->told, "reply MUSTER_ERDZV_CLOSED\n");
    hub_world_free(t.w);
}

static void test_hub_restart_budget_is_kept_by_the_server(void **state)
{
    struct mu_rdzv_join join = hub_join_of(2, 3);
    struct trio t;

    (void)state;
    join.restarts_max = 1;
    t = make_trio(join);
    hub_fail(t.n[0]); /* each node's first */
    hub_run_ms(t.w, 20);
    assert_string_equal(t.n[2]->told, "ended 0 failed a\nassigned 1 2/3\n");
    hub_fail(t.n[1]);
    hub_run_ms(t.w, 20);
    assert_string_equal(t.n[2]->told, "ended 0 failed a\nassigned 1 2/3\nended 1 failed b\n");
    hub_run_ms(t.w, 2100); /* All were heard since: nobody is lost. */
    assert_string_equal(t.n[2]->told, "ended 0 failed a\nassigned 1 2/3\nended 1 failed b\n"
                                      "reply MUSTER_ERDZV_RESTARTS\n");
    assert_string_equal(
        t.n[2]->why, "the run has used up its 1 restarts; the last round ended because b failed");
    assert_int_equal(t.n[0]->status, MUSTER_ERDZV_RESTARTS);
    assert_int_equal(t.n[1]->status, MUSTER_ERDZV_RESTARTS);
    hub_world_free(t.w);
}

static void test_hub_members_that_are_lost_or_stop_cost_no_restart(void **state)
{
    struct mu_rdzv_join join = hub_join_of(2, 3);
    struct trio t;

    (void)state;
    join.restarts_max = 0;
    t = make_trio(join);
    hub_stop(t.n[1]);
    hub_stop(t.n[2]); /* of the same round: one event */
    hub_run_ms(t.w, 20);
    assert_string_equal(t.n[0]->told, "ended 0 lost b\nassigned 1 0/3\n");
    assert_string_equal(t.n[1]->told, "ended 0 lost b\nassigned 1 1/3\n");
    assert_string_equal(t.n[2]->told, "ended 0 lost b\nassigned 1 2/3\n");
    mu_sim_kill(t.n[2]->proc, MU_SIM_KILL_PROCESS);
    hub_run_ms(t.w, 1300);
    assert_string_equal(t.n[0]->told, "ended 0 lost b\nassigned 1 0/3\n"
                                      "ended 1 lost c\nassigned 2 0/2\n");
    hub_world_free(t.w);
}

/* Workers end when they lose a peer, and before anybody else has noticed that it is gone. */
static void test_hub_failure_while_another_is_out_of_reach_costs_no_restart(void **state)
{
    struct mu_rdzv_join join = hub_join_of(2, 3);
    struct trio t;

    (void)state;
    join.restarts_max = 0;
    t = make_trio(join);
    mu_sim_cut(t.n[2]->host, t.w->host, 60 * MU_NS_PER_S);
    hub_run_ms(t.w, 2700);
    hub_fail(t.n[0]);
    hub_run_ms(t.w, 20);
    assert_int_equal(t.n[0]->status, 0);
    assert_true(strstr(t.n[0]->told, "ended 0 lost c\n") != NULL);
    hub_world_free(t.w);
}

/* The process has just ended, and has some milliseconds left to be held for lost. */
static void test_hub_failure_while_anothers_link_is_gone_costs_no_restart(void **state)
{
    struct mu_rdzv_join join = hub_join_of(2, 3);
    struct trio t;

    (void)state;
    join.restarts_max = 0;
    t = make_trio(join);
    mu_sim_kill(t.n[2]->proc, MU_SIM_KILL_PROCESS);
    hub_run_ms(t.w, 10);
    assert_string_equal(t.n[0]->told, "");
    hub_fail(t.n[0]);
    hub_run_ms(t.w, 500);
    assert_int_equal(t.n[0]->status, 0);
    assert_true(strstr(t.n[0]->told, "ended 0 lost c\n") != NULL);
    hub_world_free(t.w);
}

/* The loss is noticed only after the failure that it has caused, and nothing is left to spend. */
static void test_hub_failure_is_the_echo_of_a_loss_that_is_noticed_later(void **state)
{
    struct mu_rdzv_join join = hub_join_of(2, 3);
    struct trio t;

    (void)state;
    join.restarts_max = 0;
    t = make_trio(join);
    mu_sim_cut(t.n[2]->host, t.w->host, 60 * MU_NS_PER_S);
    hub_run_ms(t.w, 10);
    hub_fail(t.n[0]);
    hub_run_ms(t.w, 20);
    assert_string_equal(t.n[1]->told, "ended 0 failed a\n");
    hub_run_ms(t.w, 6000);
    assert_int_equal(t.n[1]->status, 0);
    assert_string_equal(t.n[1]->told, "ended 0 failed a\nassigned 1 1/2\n");
    hub_world_free(t.w);
}

/* The server is away for a while, and forgives the silence of all. That is no sign of life, and who
 * is lost is lost later; neither makes the failure another's own. */
static void test_hub_failure_is_the_echo_of_a_loss_that_the_server_was_away_for(void **state)
{
    const uint64_t from_ms[] = {10, 1200, 2500, 4000};
    const uint64_t for_ms[] = {300, 1500, 9000};

    (void)state;
    for (unsigned i = 0; i < 24; i++) {
        struct mu_rdzv_join join = hub_join_of(2, 3);
        bool reset = i >= 12;
        struct trio t;

        join.restarts_max = 0;
        t = make_trio(join);
        if (!reset) {
            mu_sim_cut(t.n[2]->host, t.w->host, 60 * MU_NS_PER_S);
            hub_run_ms(t.w, 10);
        }
        hub_fail(t.n[0]);
        hub_run_ms(t.w, 5);
        if (reset) {
            mu_sim_kill(t.n[2]->proc, MU_SIM_KILL_POWER); /* Nothing comes from it any more. */
        }
        hub_run_ms(t.w, from_ms[i % 4]);
        mu_sim_pause(t.w->proc, for_ms[i / 4 % 3] * MU_NS_PER_MS);
        hub_run_ms(t.w, 25000);
        assert_int_equal(t.n[1]->status, 0);
        assert_string_equal(t.n[1]->told, "ended 0 failed a\nassigned 1 1/2\n");
        hub_world_free(t.w);
    }
}

/* A node goes down in pieces: its workers, then, when another's have failed because of that, the
 * rest of it. Likewise a node that is told to go. */
static void test_hub_failure_is_the_echo_of_a_node_that_goes_a_moment_later(void **state)
{
    (void)state;
    for (unsigned leaves = 0; leaves < 2; leaves++) {
        struct mu_rdzv_join join = hub_join_of(2, 3);
        struct trio t;

        join.restarts_max = 0;
        t = make_trio(join);
        hub_fail(t.n[0]);
        hub_run_ms(t.w, 800);
        if (leaves != 0) {
            hub_leave(t.n[2]);
        } else {
            mu_sim_kill(t.n[2]->proc, MU_SIM_KILL_PROCESS);
        }
        hub_run_ms(t.w, 6000);
        assert_int_equal(t.n[1]->status, 0);
        assert_string_equal(t.n[1]->told, "ended 0 failed a\nassigned 1 1/2\n");
        hub_world_free(t.w);
    }
}

static void test_hub_run_that_loses_nodes_without_end_is_over(void **state)
{
    struct mu_rdzv_join join = hub_join_of(1, 3);
    struct trio t;

    (void)state;
    join.flags |= MU_RDZV_JOIN_LOSSES;
    join.losses_max = 1;
    join.losses_ms = 3600000;
    t = make_trio(join);
    mu_sim_kill(t.n[2]->proc, MU_SIM_KILL_PROCESS);
    hub_run_ms(t.w, 1300);
    assert_string_equal(t.n[0]->told, "ended 0 lost c\nassigned 1 0/2\n");
    mu_sim_kill(t.n[1]->proc, MU_SIM_KILL_PROCESS);
    hub_run_ms(t.w, 1300);
    assert_int_equal(t.n[0]->status, MUSTER_ERDZV_LOSSES);
    assert_string_equal(t.n[0]->why, "the run has lost nodes too often: more than 1 times within "
                                     "3600 s, the bound of --max-losses; the last one was b");
    hub_world_free(t.w);
}

/* A server that takes another's place knows nobody who was cut off from that one. */
static void test_hub_members_of_another_server_wait_for_whom_it_lost(void **state)
{
    struct hub_world *w = hub_world_new(NULL);
    struct hub_node *a = hub_node_new(w, "a");
    struct hub_node *b = hub_node_new(w, "b");
    struct mu_rdzv_join join = hub_join_of(2, 2);

    (void)state;
    join.incarnation = 77;
    join.restarts_max = 3;
    join.flags |= MU_RDZV_JOIN_SPENT;
    join.spent = 2;
    hub_join(a, join);
    join.spent = 1;
    hub_join(b, join);
    hub_run_ms(w, 1900);
    assert_string_equal(a->told, "entered gathering\n");
    hub_run_ms(w, 200);
    assert_string_equal(a->told, "entered gathering\nassigned 0 0/2\n");
    /* What was spent there is spent. */
    hub_fail(a);
    hub_run_ms(w, 20);
    assert_int_equal(a->status, 0);
    hub_fail(a);
    hub_run_ms(w, 2500);
    assert_int_equal(a->status, MUSTER_ERDZV_RESTARTS);
    hub_world_free(w);
}

/* --- leaving ---------------------------------------------------------------------------------- */

static void test_hub_end_and_goodbye_are_leaving_with_grace(void **state)
{
    struct mu_rdzv_join join = hub_join_of(1, 3);
    struct trio t;

    (void)state;
    join.restarts_max = 0; /* leaving costs no restart */
    t = make_trio(join);
    hub_leave(t.n[0]);
    hub_run_ms(t.w, 20);
    assert_string_equal(t.n[0]->told, "reply 0\n");
    assert_string_equal(t.n[1]->told, "ended 0 left a\n");
    hub_run_ms(t.w, 1100);
    assert_string_equal(t.n[1]->told, "ended 0 left a\nassigned 1 1/2\n");
    hub_bye(t.n[2]);
    hub_run_ms(t.w, 20);
    assert_string_equal(t.n[1]->told, "ended 0 left a\nassigned 1 1/2\nended 1 left c\n");
    hub_world_free(t.w);
}

static void expect_shown(struct hub_world *w, const char *text)
{
    struct mu_buf out;

    mu_buf_init(&out, 1 << 20);
    assert_int_equal(mu_store_server_status(w->server, &out), 0);
    assert_non_null(memmem(out.data, out.len, text, strlen(text)));
    mu_buf_fini(&out);
}

static void test_hub_excluded_node_is_told_why_and_is_not_let_in(void **state)
{
    struct mu_rdzv_join join = hub_join_of(2, 3);
    struct mu_store_server_stats stats;
    struct hub_node *again;
    struct trio t;

    (void)state;
    t = make_trio(join);
    assert_int_equal(hub_exclude(t.n[0], "b", 60000), 0);
    assert_int_equal(t.n[1]->status, MUSTER_ERDZV_EXCLUDED);
    assert_string_equal(t.n[1]->why, "this node is excluded from the run for another 60 s: loud; "
                                     "`muster rdzv include b` lets it in");
    hub_run_ms(t.w, 1300);
    assert_string_equal(t.n[0]->told, "ended 0 left b\nassigned 1 0/2\n");
    expect_shown(t.w, "\"exclusions\":[{\"node\":\"b\",\"machine\":\"b\",\"reason\":\"loud\"");

    again = hub_node_new(t.w, "b_2");
    hub_join(again, join);
    hub_run_ms(t.w, 20);
    assert_int_equal(again->status, MUSTER_ERDZV_EXCLUDED);
    mu_store_server_stats(t.w->server, &stats);
    assert_int_equal(stats.exclusions, 1);
    assert_int_equal(stats.excluded_joins, 1);

    assert_int_equal(hub_exclude(t.n[0], "nobody", 0), MUSTER_EINVAL);
    assert_int_equal(hub_exclude(t.n[0], "", 1000), MUSTER_EINVAL);
    assert_int_equal(hub_exclude(t.n[0], "b", 0), 0);
    expect_shown(t.w, "\"exclusions\":[]");
    again = hub_node_new(t.w, "b_3");
    hub_join(again, join);
    hub_run_ms(t.w, 1300);
    assert_int_equal(again->world_size, 3);
    assert_int_equal(hub_ask(t.n[0], MU_RDZV_METHOD_CLOSE, "run"), 0);
    assert_int_equal(hub_exclude(t.n[0], "b", 60000), MUSTER_ECLOSED);
    hub_world_free(t.w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hub_excluded_node_is_told_why_and_is_not_let_in),
        cmocka_unit_test(test_hub_tells_a_node_that_it_entered_and_then_its_rank),
        cmocka_unit_test(test_hub_tells_the_members_of_a_small_world_only),
        cmocka_unit_test(test_hub_tells_older_nodes_all_members_of_a_large_world),
        cmocka_unit_test(test_hub_tells_all_members_itself_where_keys_are_elsewhere),
        cmocka_unit_test(test_hub_lost_member_ends_the_round_for_the_survivors_at_once_by_push),
        cmocka_unit_test(test_hub_reset_that_resumes_within_its_grace_ends_nothing),
        cmocka_unit_test(test_hub_reset_that_does_not_resume_within_its_grace_is_a_death),
        cmocka_unit_test(test_hub_silence_is_a_death_within_its_bound_and_the_node_learns_it),
        cmocka_unit_test(test_hub_paused_server_declares_nobody_dead),
        cmocka_unit_test(test_hub_paused_server_counts_no_grace_meanwhile),
        cmocka_unit_test(test_hub_nobody_waits_out_the_last_call_when_the_maximum_is_reached),
        cmocka_unit_test(test_hub_nobody_waits_out_the_last_call_when_an_announced_target_is_met),
        cmocka_unit_test(test_hub_last_call_ends_by_the_servers_clock),
        cmocka_unit_test(test_hub_late_arrivals_are_batched_into_one_new_round),
        cmocka_unit_test(
            test_hub_closed_run_starts_again_as_a_new_incarnation_and_old_nodes_are_fenced),
        cmocka_unit_test(test_hub_fast_rejoin_never_hangs_or_splits_the_world),
        cmocka_unit_test(test_hub_timeout_says_which_nodes_are_missing),
        cmocka_unit_test(test_hub_join_timeout_does_not_count_while_spare),
        cmocka_unit_test(test_hub_join_timeout_begins_when_a_spare_is_promoted_into_a_gathering),
        cmocka_unit_test(test_hub_spares_wait_connected_and_are_promoted_with_one_message),
        cmocka_unit_test(test_hub_refuses_who_is_one_spare_too_many),
        cmocka_unit_test(test_hub_closed_run_lets_spares_go_with_grace),
        cmocka_unit_test(test_hub_restart_budget_is_kept_by_the_server),
        cmocka_unit_test(test_hub_members_that_are_lost_or_stop_cost_no_restart),
        cmocka_unit_test(test_hub_failure_while_another_is_out_of_reach_costs_no_restart),
        cmocka_unit_test(test_hub_failure_while_anothers_link_is_gone_costs_no_restart),
        cmocka_unit_test(test_hub_failure_is_the_echo_of_a_loss_that_is_noticed_later),
        cmocka_unit_test(test_hub_failure_is_the_echo_of_a_loss_that_the_server_was_away_for),
        cmocka_unit_test(test_hub_failure_is_the_echo_of_a_node_that_goes_a_moment_later),
        cmocka_unit_test(test_hub_run_that_loses_nodes_without_end_is_over),
        cmocka_unit_test(test_hub_members_of_another_server_wait_for_whom_it_lost),
        cmocka_unit_test(test_hub_end_and_goodbye_are_leaving_with_grace),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

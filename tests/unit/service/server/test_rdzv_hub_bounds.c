/*
 * What the hub must bear, in the simulator: readers that are behind, a slow disk, limits, a want of
 * memory, being started anew; and what it shows and cleans up.
 */
#include "hub_rig.h"

#include "failheap.h"
#include "service/server/server_internal.h"

/* Changes the server's keyspace behind its back; the server pays. */
static void set_key(struct hub_world *w, const char *key)
{
    struct mu_sim_heap *heap = mu_sim_outside();

    mu_sim_inside(w->heap);
    assert_int_equal(mu_ks_set(&w->server->ks, mu_span_str(key), MU_SPAN_LIT("x"), 0), 0);
    mu_sim_inside(heap);
}

#define OTHERS_MAX 16

/* --- readers that are behind ------------------------------------------------------------------ */

static void test_hub_reader_without_credit_is_told_less_and_in_order(void **state)
{
    struct hub_world *w = hub_world_new(NULL);
    struct hub_node *slow = hub_node_new(w, "slow");
    struct hub_node *a = hub_node_new(w, "a");
    struct mu_store_server_stats first;
    struct mu_store_server_stats last;

    (void)state;
    slow->miserly = true;
    mu_sim_run_for(w->sim, MU_NS_PER_MS);
    slow->rpc.item_window = slow->rpc.config.item_window_bytes = 1; /* credit for one item */
    hub_join(slow, hub_join_of(2, 2));
    hub_join(a, hub_join_of(2, 2));
    hub_run_ms(w, 100);
    assert_string_equal(slow->told, "entered gathering\n");
    mu_store_server_stats(w->server, &first);
    for (int i = 0; i < 1000; i++) {
        hub_fail(a);
        hub_run_ms(w, 2);
        hub_forget(a);
    }
    assert_int_equal(a->round, 1000);
    mu_store_server_stats(w->server, &last);
    assert_true(last.buffer_bytes <= first.buffer_bytes + 65536);
    /* It never heard of the thousand rounds before. */
    hub_relent(slow);
    hub_run_ms(w, 100);
    assert_string_equal(slow->told, "entered gathering\nassigned 1000 1/2\n");
    hub_world_free(w);
}

static void test_hub_end_that_found_no_credit_comes_before_the_next_rank(void **state)
{
    struct hub_world *w = hub_world_new(NULL);
    struct hub_node *slow = hub_node_new(w, "slow");
    struct hub_node *a = hub_node_new(w, "a");

    (void)state;
    slow->miserly = true;
    slow->rpc.item_window = slow->rpc.config.item_window_bytes = 100; /* credit for two items */
    hub_join(slow, hub_join_of(2, 2));
    hub_join(a, hub_join_of(2, 2));
    hub_run_ms(w, 100);
    assert_string_equal(slow->told, "entered gathering\nassigned 0 1/2\n");
    for (int i = 0; i < 10; i++) {
        hub_fail(a);
        hub_run_ms(w, 2);
    }
    hub_relent(slow);
    hub_run_ms(w, 100);
    assert_string_equal(slow->told,
                        "entered gathering\nassigned 0 1/2\nended 0 failed a\nassigned 10 1/2\n");
    hub_world_free(w);
}

/* --- the disk --------------------------------------------------------------------------------- */

static void test_hub_answers_do_not_wait_for_the_disk(void **state)
{
    struct mu_sim_faults faults = mu_sim_faults_none();
    struct hub_world *w;
    struct hub_node *a;
    struct hub_node *b;
    uint64_t at;
    size_t blocked = 0;

    (void)state;
    faults.work_max_ns = 5 * MU_NS_PER_S; /* a very slow disk */
    w = hub_world_with(NULL, &faults, true);
    a = hub_node_new(w, "a");
    b = hub_node_new(w, "b");
    for (int i = 0; i < 5; i++) {
        char key[32];

        /* As a client's write would: a commit begins with the next turn. */
        (void)snprintf(key, sizeof(key), "/k%d", i);
        set_key(w, key);
        at = mu_sim_now_ns(w->sim);
        hub_join(a, hub_join_of(2, 2));
        hub_join(b, hub_join_of(2, 2));
        hub_run_ms(w, 20);
        assert_int_equal(a->world_size, 2);
        assert_true(hub_told_after_ms(b, at) < 5);
        blocked += w->server->committing;
        hub_leave(a);
        hub_leave(b);
        hub_run_ms(w, 20);
        hub_forget(a);
        hub_forget(b);
    }
    assert_true(blocked >= 3); /* else nothing was shown */
    hub_world_free(w);
}

/* --- keys ------------------------------------------------------------------------------------- */

static void put_key(struct hub_world *w, const char *key)
{
    struct mu_sim_heap *heap = mu_sim_outside();
    size_t len;

    set_key(w, key);
    mu_sim_inside(w->heap);
    assert_int_equal(mu_ks_queue_push(&w->server->ks, mu_span_str(key), MU_SPAN_LIT("x"), &len), 0);
    mu_sim_inside(heap);
}

static bool has_key(const struct hub_world *w, const char *key)
{
    return mu_ks_has(&w->server->ks, mu_span_str(key));
}

/* A key of a run's incarnation, and what stands behind that. */
static const char *key_of(const char *run, uint64_t incarnation, const char *rest)
{
    static char key[64];

    (void)snprintf(key, sizeof(key), "/rdzv/%s/%" PRIu64 "%s", run, incarnation, rest);
    return key;
}

static void test_hub_deletes_the_keys_of_rounds_long_past(void **state)
{
    struct hub_world *w = hub_world_new(NULL);
    struct hub_node *a = hub_node_new(w, "a");
    uint64_t first;

    (void)state;
    hub_join(a, hub_join_of(1, 1));
    hub_run_ms(w, 20);
    first = a->incarnation;
    put_key(w, key_of("run", first, ".0/k"));
    put_key(w, key_of("run", first, ".00/k"));
    put_key(w, key_of("run", first, ".1/k"));
    put_key(w, key_of("run", first, ".2/k"));
    put_key(w, key_of("runner", first, ".0/k"));
    hub_fail(a);
    hub_run_ms(w, 20);
    assert_int_equal(a->round, 1);
    assert_true(has_key(w, key_of("run", first, ".0/k")));
    hub_fail(a);
    hub_run_ms(w, 20);
    assert_int_equal(a->round, 2);
    assert_false(has_key(w, key_of("run", first, ".0/k")));
    assert_true(has_key(w, key_of("run", first, ".00/k")));
    assert_true(has_key(w, key_of("run", first, ".1/k")));
    /* A new incarnation takes all of the old one with it. */
    assert_int_equal(hub_ask(a, MU_RDZV_METHOD_CLOSE, "run"), 0);
    assert_true(has_key(w, key_of("run", first, ".2/k")));
    put_key(w, key_of("run", first, "0.0/k"));
    hub_join(a, hub_join_of(1, 1));
    hub_run_ms(w, 20);
    assert_false(has_key(w, key_of("run", first, ".1/k")));
    assert_false(has_key(w, key_of("run", first, ".2/k")));
    assert_true(has_key(w, key_of("run", first, "0.0/k")));
    assert_true(has_key(w, key_of("runner", first, ".0/k")));
    hub_world_free(w);
}

/* --- status ----------------------------------------------------------------------------------- */

static struct mu_rdzv_run_msg status_of(struct hub_node *n, const char *run_id)
{
    struct mu_rdzv_run_msg run;
    struct mu_span runs;

    assert_int_equal(hub_ask(n, MU_RDZV_METHOD_STATUS, run_id), 0);
    runs = mu_span(n->answer, n->answer_len);
    assert_int_equal(mu_rdzv_run_next(&runs, &run), 0);
    return run;
}

static void test_hub_status_shows_a_run_with_its_members(void **state)
{
    struct hub_world *w = hub_world_new(NULL);
    struct hub_node *a = hub_node_new(w, "a");
    struct hub_node *b = hub_node_new(w, "b");
    struct mu_rdzv_join join = hub_join_of(2, 2);
    struct mu_rdzv_member_msg m;
    struct mu_rdzv_run_msg run;

    (void)state;
    join.restarts_max = 3;
    join.addr = MU_SPAN_LIT("10.0.0.1");
    hub_join(a, join);
    hub_run_ms(w, 500);
    run = status_of(b, "run");
    assert_span_text(run.run_id, "run");
    assert_int_equal(run.state, MU_ROOM_IS_GATHERING);
    assert_int_equal(run.incarnation, a->incarnation);
    assert_int_equal(run.nodes_min, 2);
    assert_int_equal(run.nodes_max, 2);
    assert_int_equal(run.restarts_left, 3);
    assert_int_equal(run.counts[MU_RDZV_PLACE_GATHERING - 1], 1);
    assert_span_text(run.text, "1 of 2 nodes are here: a");
    assert_int_equal(run.member_count, 1);
    assert_int_equal(mu_rdzv_member_next(&run.members, &m), 0);
    assert_span_text(m.node, "a");
    assert_span_text(m.addr, "10.0.0.1");
    assert_int_equal(m.rank, UINT32_MAX);
    assert_int_equal(m.place, MU_RDZV_PLACE_GATHERING);
    assert_true(m.silent_ms >= 490 && m.silent_ms <= 520);
    /* All of them, without their members. */
    run = status_of(b, "");
    assert_span_text(run.run_id, "run");
    assert_int_equal(run.member_count, 1);
    assert_int_equal(run.members.len, 0);
    assert_int_equal(hub_ask(b, MU_RDZV_METHOD_STATUS, "none"), 0);
    assert_int_equal(b->answer_len, 0);
    /* Also when it is over. */
    assert_int_equal(hub_ask(b, MU_RDZV_METHOD_CLOSE, "run"), 0);
    run = status_of(b, "run");
    assert_int_equal(run.state, MU_ROOM_IS_CLOSED);
    assert_int_equal(run.member_count, 0);
    assert_span_text(run.text, "the run is closed");
    assert_int_equal(hub_ask(b, MU_RDZV_METHOD_CLOSE, "run"), 0);
    assert_int_equal(hub_ask(b, MU_RDZV_METHOD_CLOSE, "none"), MUSTER_ENOENT);
    assert_int_equal(hub_ask(b, "muster::Rendezvous.dance", "run"), MUSTER_ENOMETHOD);
    hub_world_free(w);
}

/* --- limits ----------------------------------------------------------------------------------- */

static int join_status(struct hub_node *n, struct mu_rdzv_join join)
{
    hub_forget(n);
    hub_join(n, join);
    hub_run_ms(n->world, 20);
    return n->replied ? n->status : 0;
}

/* Meets INCARNATION_MAX of service/server/rdzv_hub.c. */
static void test_hub_refuses_in_words_what_does_not_fit(void **state)
{
    static const char long_name[] = "a\nb";
    struct hub_world *w = hub_world_new(NULL);
    struct hub_node *a = hub_node_new(w, "a");
    struct hub_node *b = hub_node_new(w, "b");
    struct mu_rdzv_join join = hub_join_of(0, 2);

    (void)state;
    assert_int_equal(join_status(a, join), MUSTER_EINVAL);
    assert_int_equal(join_status(a, hub_join_of(3, 2)), MUSTER_EINVAL);
    assert_int_equal(join_status(a, hub_join_of(1, 65537)), MUSTER_ELIMIT);
    join = hub_join_of(2, 2);
    join.run_id.len = 0;
    assert_int_equal(join_status(a, join), MUSTER_EINVAL);
    join.run_id = MU_SPAN_LIT("run");
    join.node = mu_span_str(long_name);
    assert_int_equal(join_status(a, join), MUSTER_EINVAL);
    join.node.len = 0;
    join.incarnation = UINT64_MAX / 2 + 1;
    assert_int_equal(join_status(a, join), MUSTER_EINVAL);
    /* None of these opened a run. */
    assert_int_equal(hub_ask(a, MU_RDZV_METHOD_STATUS, ""), 0);
    assert_int_equal(a->answer_len, 0);
    assert_int_equal(join_status(a, hub_join_of(2, 2)), 0);
    assert_int_equal(join_status(b, hub_join_of(2, 3)), MUSTER_EINVAL);
    assert_string_equal(
        b->why, "this run has --nnodes 2:2, and this node gives 2:3; give all nodes the same");
    hub_world_free(w);
}

static void test_hub_keeps_to_its_limits(void **state)
{
    struct mu_store_server_config config = mu_store_server_config_defaults();
    struct mu_rdzv_join join = hub_join_of(1, 1);
    struct hub_world *w;
    struct hub_node *n[4];

    (void)state;
    config.rdzv = (struct mu_rdzv_hub_config){
        .runs_max = 2, .runs_idle_max = 2, .members_max = 2, .joins_max = 2};
    w = hub_world_new(&config);
    for (int i = 0; i < 4; i++) {
        n[i] = hub_node_new(w, (const char *[]){"a", "b", "c", "d"}[i]);
    }
    assert_int_equal(join_status(n[0], join), 0);
    assert_int_equal(join_status(n[1], join), 0);
    assert_int_equal(join_status(n[2], join), MUSTER_ELIMIT); /* members of a run */
    join.run_id = MU_SPAN_LIT("second");
    assert_int_equal(join_status(n[2], join), 0);
    join.run_id = MU_SPAN_LIT("third");
    assert_int_equal(join_status(n[3], join), MUSTER_ELIMIT); /* runs */
    join.run_id = MU_SPAN_LIT("second");
    join.node = MU_SPAN_LIT("other");
    assert_int_equal(join_status(n[2], join), 0); /* a second membership of the session */
    join.node = MU_SPAN_LIT("yet another");
    assert_int_equal(join_status(n[2], join), MUSTER_ELIMIT); /* joins of a session */
    hub_world_free(w);
}

static void test_hub_forgets_the_oldest_of_the_runs_that_are_over(void **state)
{
    struct mu_store_server_config config = mu_store_server_config_defaults();
    struct mu_rdzv_join join = hub_join_of(1, 1);
    uint64_t given[4];
    struct hub_world *w;
    struct hub_node *a;

    (void)state;
    config.rdzv.runs_idle_max = 2;
    w = hub_world_new(&config);
    a = hub_node_new(w, "a");
    for (int i = 0; i < 4; i++) {
        char id[16];

        (void)snprintf(id, sizeof(id), "run%d", i);
        join.run_id = mu_span_str(id);
        assert_int_equal(join_status(a, join), 0);
        given[i] = a->incarnation;
        assert_true(i == 0 || given[i] > given[i - 1]);
        assert_int_equal(hub_ask(a, MU_RDZV_METHOD_CLOSE, id), 0);
    }
    assert_int_equal(hub_ask(a, MU_RDZV_METHOD_STATUS, "run1"), 0);
    assert_int_equal(a->answer_len, 0);
    assert_int_equal(status_of(a, "run2").incarnation, given[2]);
    /* What is forgotten is fenced all the same, and numbers go on. */
    join.run_id = MU_SPAN_LIT("run1");
    join.incarnation = given[1];
    assert_int_equal(join_status(a, join), MUSTER_ERDZV_CLOSED);
    join.incarnation = 0;
    assert_int_equal(join_status(a, join), 0);
    assert_true(a->incarnation > given[3]);
    hub_world_free(w);
}

static void test_hub_run_without_members_takes_other_numbers_as_a_new_incarnation(void **state)
{
    struct mu_rdzv_join join = hub_join_of(1, 1);
    struct hub_world *w = hub_world_new(NULL);
    struct hub_node *a = hub_node_new(w, "a");
    struct mu_rdzv_run_msg run;
    uint64_t first;

    (void)state;
    join.restarts_max = 5;
    assert_int_equal(join_status(a, join), 0);
    first = a->incarnation;
    hub_fail(a);
    hub_run_ms(w, 20);
    hub_leave(a);
    hub_run_ms(w, 20);
    /* The same numbers: the same run, with the budget that is left. */
    assert_int_equal(join_status(a, join), 0);
    assert_int_equal(a->incarnation, first);
    run = status_of(a, "run");
    assert_int_equal(run.restarts_left, 4);
    assert_int_equal(a->round, 2);
    hub_leave(a);
    hub_run_ms(w, 20);
    assert_int_equal(join_status(a, hub_join_of(1, 2)), 0);
    assert_true(a->incarnation > first);
    hub_world_free(w);
}

static void garbage_inside(void *arg)
{
    struct hub_node *n = arg;

    assert_int_equal(
        mu_rpc_item(&n->rpc, mu_env_now(n->env), n->call, MU_SPAN_LIT("what is this?")), 0);
    hub_pump(n);
}

static void test_hub_member_that_talks_nonsense_is_out(void **state)
{
    struct hub_world *w = hub_world_new(NULL);
    struct hub_node *a = hub_node_new(w, "a");
    struct hub_node *b = hub_node_new(w, "b");

    (void)state;
    hub_join(a, hub_join_of(2, 2));
    hub_join(b, hub_join_of(2, 2));
    hub_run_ms(w, 20);
    hub_forget(a);
    hub_forget(b);
    mu_sim_call(a->proc, garbage_inside, a);
    hub_run_ms(w, 20);
    assert_string_equal(a->told, "reply MUSTER_EPROTO\n");
    assert_string_equal(b->told, "ended 0 lost a\n");
    hub_world_free(w);
}

/* --- a server that is started anew ------------------------------------------------------------ */

static void test_hub_survivors_of_a_server_that_was_started_anew_find_each_other(void **state)
{
    struct mu_rdzv_join join = hub_join_of(1, 1);
    struct hub_world *w = hub_world_with(NULL, NULL, true);
    struct hub_node *n[3];
    uint64_t old;

    (void)state;
    for (int i = 0; i < 3; i++) {
        n[i] = hub_node_new(w, (const char *[]){"a", "b", "c"}[i]);
    }
    /* So that the run has a number above those of a new server. */
    assert_int_equal(join_status(n[0], join), 0);
    assert_int_equal(hub_ask(n[0], MU_RDZV_METHOD_CLOSE, "run"), 0);
    for (int i = 0; i < 3; i++) {
        hub_join(n[i], hub_join_of(3, 3));
    }
    hub_run_ms(w, 20);
    old = n[1]->incarnation;
    assert_int_equal(n[1]->world_size, 3);
    mu_sim_kill(w->proc, MU_SIM_KILL_PROCESS);
    hub_run_ms(w, 100);
    mu_sim_restart(w->proc);
    hub_run_ms(w, 2000);
    for (int i = 0; i < 3; i++) {
        assert_true(n[i]->replied);
        assert_int_equal(n[i]->status, MUSTER_ESESSION);
        hub_forget(n[i]);
    }
    join = hub_join_of(3, 3);
    join.incarnation = 0;
    hub_join(n[2], join); /* one that does not remember */
    join.incarnation = old;
    hub_join(n[0], join);
    hub_join(n[1], join);
    hub_run_ms(w, 20);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(n[i]->world_size, 3);
        assert_int_equal(n[i]->incarnation, n[0]->incarnation);
        assert_int_not_equal(n[i]->incarnation, old);
    }
    hub_world_free(w);
}

/* --- a want of memory ------------------------------------------------------------------------- */

static struct hub_world *starving;

/* Only the server starves. */
static bool fail_server_only(size_t size)
{
    struct mu_sim_heap *heap = mu_sim_outside();

    mu_sim_inside(heap);
    return heap != starving->heap || failheap_hook(size);
}

static void starve(struct hub_world *w, long nth)
{
    starving = w;
    failheap_arm(nth);
    mu_alloc_hook = fail_server_only;
}

/* Steps with a member lost among them, starved from the nth allocation on, for a while. */
static bool run_starved(long nth)
{
    struct mu_rdzv_join join = hub_join_of(2, 3);
    struct hub_world *w = hub_world_new(NULL);
    struct hub_node *n[3];
    bool fired;

    join.flags = MU_RDZV_JOIN_MEMBERS;
    n[0] = hub_node_new(w, "a");
    n[1] = hub_node_new(w, "b");
    for (int i = 0; i < 2; i++) {
        n[i]->rejoins = true;
        n[i]->config.grace_ms = 10000;
    }
    starve(w, nth);
    n[2] = hub_node_new(w, "c");
    for (int i = 0; i < 3; i++) {
        hub_join(n[i], join);
    }
    hub_run_ms(w, 100);
    hub_fail(n[0]);
    hub_run_ms(w, 100);
    mu_sim_kill(n[2]->proc, MU_SIM_KILL_PROCESS);
    hub_run_ms(w, 1200);
    fired = failheap_fired();
    failheap_disarm();
    hub_run_ms(w, 5000);
    /* Whatever was told when: the two that are left are in one world. */
    for (int i = 0; i < 2; i++) {
        if (n[i]->world_size != 2 || n[i]->round != n[0]->round || n[i]->replied) {
            fail_msg("allocation %ld: %s was told\n%s", nth, n[i]->name, n[i]->told);
        }
        assert_string_equal(n[i]->members, "a@ b@");
    }
    assert_int_not_equal(n[0]->rank, n[1]->rank);
    hub_world_free(w);
    return fired;
}

static void test_hub_bears_a_want_of_memory_at_any_step(void **state)
{
    long nth = 0;

    (void)state;
    while (run_starved(nth)) {
        nth++;
    }
    assert_true(nth > 20); /* or nothing was swept */
}

static void put_alone(struct hub_world *w, const char *name, const char *run_id, uint32_t nodes)
{
    struct mu_rdzv_join join = hub_join_of(nodes, nodes);

    join.run_id = mu_span_str(run_id);
    hub_join(hub_node_new(w, name), join);
    hub_run_ms(w, 100);
}

/* Nodes that were given different ids wait for each other in vain: each is told of the other's.
 * Meets OTHERS_MAX of service/server/rdzv_hub_ask.c: so many other runs are looked at. */
static void test_hub_explains_with_another_run_that_waits(void **state)
{
    static char names[OTHERS_MAX + 1][8];
    struct hub_world *w = hub_world_new(NULL);
    struct hub_node *asker = hub_node_new(w, "asker");

    (void)state;
    put_alone(w, "a", "job", 2);
    assert_int_equal(hub_ask(asker, MU_RDZV_METHOD_EXPLAIN, "job"), 0);
    assert_span_text(mu_span(asker->answer, asker->answer_len), "1 of 2 nodes are here: a");
    for (int i = 0; i < OTHERS_MAX; i++) {
        (void)snprintf(names[i], sizeof(names[i]), "n%d", i);
        put_alone(w, names[i], names[i], 1);
        if (i == OTHERS_MAX - 2) {
            put_alone(w, "b", "jobb", 2);
            assert_int_equal(hub_ask(asker, MU_RDZV_METHOD_EXPLAIN, "job"), 0);
            assert_span_text(mu_span(asker->answer, asker->answer_len),
                             "1 of 2 nodes are here: a; the run \"jobb\" also waits for nodes: "
                             "check that all nodes have the same --rdzv-id");
            assert_int_equal(hub_ask(asker, MU_RDZV_METHOD_CLOSE, "jobb"), 0);
        }
    }
    /* Behind so many others it is not looked for. */
    put_alone(w, "c", "jobc", 2);
    assert_int_equal(hub_ask(asker, MU_RDZV_METHOD_EXPLAIN, "job"), 0);
    assert_span_text(mu_span(asker->answer, asker->answer_len), "1 of 2 nodes are here: a");
    hub_world_free(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hub_explains_with_another_run_that_waits),
        cmocka_unit_test(test_hub_reader_without_credit_is_told_less_and_in_order),
        cmocka_unit_test(test_hub_end_that_found_no_credit_comes_before_the_next_rank),
        cmocka_unit_test(test_hub_answers_do_not_wait_for_the_disk),
        cmocka_unit_test(test_hub_deletes_the_keys_of_rounds_long_past),
        cmocka_unit_test(test_hub_status_shows_a_run_with_its_members),
        cmocka_unit_test(test_hub_refuses_in_words_what_does_not_fit),
        cmocka_unit_test(test_hub_keeps_to_its_limits),
        cmocka_unit_test(test_hub_forgets_the_oldest_of_the_runs_that_are_over),
        cmocka_unit_test(test_hub_run_without_members_takes_other_numbers_as_a_new_incarnation),
        cmocka_unit_test(test_hub_member_that_talks_nonsense_is_out),
        cmocka_unit_test(test_hub_survivors_of_a_server_that_was_started_anew_find_each_other),
        cmocka_unit_test(test_hub_bears_a_want_of_memory_at_any_step),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

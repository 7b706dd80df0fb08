/*
 * Goal: the static backend keeps the handler's contract: everybody has the rank that it was given,
 * rank 0 goes on when all have come and not before, and whoever cannot go on is told why in time.
 * Method: nodes in the simulator, where minutes of waiting cost nothing.
 */
#include "unit.h"

#include <stdio.h>

#include <muster/log.h>

#include "service/rdzv/rdzv.h"
#include "sim.h"

struct node {
    struct mu_sim *sim;
    struct mu_sim_proc *proc;
    struct mu_env *env;
    struct mu_rdzv_handler *handler;
    const char *endpoint;
    const char *run_id;
    const char *config;
    uint32_t world; /* as configured */
    int open_status;
    struct mu_errmsg msg;
    int assigned, failed, left, closed, freed, records;
    uint64_t round;
    uint32_t rank;
    uint32_t told_world;
    char url[256];
    int status;
    char text[MU_ERRMSG_CAP];
    uint64_t told_ms; /* when the last of them was told */
    bool in_call;
    void (*verb)(struct mu_rdzv_handler *handler); /* of ask() */
};

/* --- events ----------------------------------------------------------------------------------- */

static struct node *called(void *context)
{
    struct node *n = context;

    assert_false(n->in_call);
    assert_int_equal(n->freed, 0);
    n->told_ms = mu_sim_now_ns(n->sim) / MU_NS_PER_MS;
    return n;
}

static void on_assigned(void *context, const struct mu_rdzv_assignment *a)
{
    struct node *n = called(context);

    n->assigned++;
    n->round = a->round;
    n->rank = a->rank;
    n->told_world = a->world;
    assert_int_equal(a->restarts_left, UINT32_MAX);
    assert_int_equal(a->member_count, 0);
    (void)snprintf(n->url, sizeof(n->url), "%s", a->store);
}

static void on_failed(void *context, int status, const char *text)
{
    struct node *n = called(context);

    n->failed++;
    n->status = status;
    (void)snprintf(n->text, sizeof(n->text), "%s", text);
}

static void on_left(void *context)
{
    called(context)->left++;
}

static void on_closed(void *context)
{
    called(context)->closed++;
}

static void on_record(void *context, const struct mu_rdzv_record *record)
{
    struct node *n = context;

    assert_false(n->in_call);
    assert_string_equal(record->run_id, n->run_id);
    n->records++;
}

static void on_freed(void *context)
{
    called(context)->freed++;
}

/* Nothing of this backend ends a round, or lets anybody wait. */
static void on_ended(void *context, const struct mu_rdzv_ending *ending)
{
    (void)context;
    fail_msg("a round ended: %s", ending->text);
}

static void on_waiting(void *context, uint32_t count)
{
    (void)context;
    fail_msg("%u wait", (unsigned)count);
}

static void on_close_failed(void *context, int status, const char *text)
{
    (void)context;
    fail_msg("the close failed: %d %s", status, text);
}

/* --- the stage -------------------------------------------------------------------------------- */

static struct mu_sim *make_sim(void)
{
    struct mu_sim *sim =
        mu_sim_new(&(struct mu_sim_config){.seed = 5, .faults = mu_sim_faults_none()});

    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    assert_non_null(sim);
    return sim;
}

static void free_sim(struct mu_sim *sim)
{
    assert_null(mu_sim_failure(sim));
    mu_sim_free(sim);
}

static void open_one(void *arg)
{
    struct node *n = arg;
    const struct mu_rdzv_events events = {
        .assigned = on_assigned,
        .ended = on_ended,
        .waiting = on_waiting,
        .closed = on_closed,
        .failed = on_failed,
        .left = on_left,
        .close_failed = on_close_failed,
        .record = on_record,
        .freed = on_freed,
        .context = n,
    };
    const struct mu_rdzv_params params = {
        .backend = "static",
        .endpoint = n->endpoint,
        .run_id = n->run_id,
        .nodes_min = n->world,
        .nodes_max = n->world,
        .config = n->config,
    };

    n->in_call = true;
    n->freed = 0;
    n->open_status = mu_rdzv_open(n->env, &params, &events, &n->handler, &n->msg);
    n->in_call = false;
}

static void do_verb(void *arg)
{
    struct node *n = arg;

    n->in_call = true;
    n->verb(n->handler);
    n->in_call = false;
}

/* Asks something of the handler, in the node's process. No event may be told inside the call. */
static void ask(struct node *n, void (*verb)(struct mu_rdzv_handler *handler))
{
    n->verb = verb;
    mu_sim_call(n->proc, do_verb, n);
}

static int start_node(struct mu_env *env, void *arg)
{
    ((struct node *)arg)->env = env;
    return 0;
}

/* A node on a host of its own, open but for what is asked of it. */
static void add_node(struct mu_sim *sim, struct node *n, const char *host)
{
    n->sim = sim;
    n->endpoint = n->endpoint == NULL ? "a:29500" : n->endpoint;
    n->run_id = n->run_id == NULL ? "job" : n->run_id;
    n->proc =
        mu_sim_proc_new(mu_sim_host_new(sim, host),
                        &(struct mu_sim_program){.name = "node", .start = start_node, .arg = n});
    mu_sim_run_for(sim, MU_NS_PER_MS);
    mu_sim_call(n->proc, open_one, n);
}

static void add_joined(struct mu_sim *sim, struct node *n, const char *host)
{
    add_node(sim, n, host);
    if (n->open_status != 0) {
        fail_msg("%s: %s", host, n->msg.text);
    }
    ask(n, mu_rdzv_join);
}

static bool is_told(void *arg)
{
    struct node *n = arg;

    return n->assigned + n->failed != 0;
}

static void wait_told(struct node *n)
{
    assert_true(mu_sim_run_until(n->sim, 3600 * MU_NS_PER_S, is_told, n));
}

static void forget(struct node *n)
{
    n->assigned = n->failed = n->left = n->closed = 0;
}

static bool is_freed(void *arg)
{
    return ((struct node *)arg)->freed != 0;
}

/* Frees it and checks that nothing is left of it. */
static void free_node(struct node *n)
{
    ask(n, mu_rdzv_free);
    assert_true(mu_sim_run_until(n->sim, 60 * MU_NS_PER_S, is_freed, n));
    mu_sim_run_for(n->sim, MU_NS_PER_S);
    assert_int_equal(n->freed, 1);
    assert_int_equal(mu_sim_proc_blocks(n->proc), 0);
    assert_true(mu_sim_proc_idle(n->proc));
}

static void assert_assigned(const struct node *n, uint32_t rank, uint64_t round)
{
    if (n->failed != 0) {
        fail_msg("rank %u failed: %s", (unsigned)rank, n->text);
    }
    assert_int_equal(n->assigned, 1);
    assert_int_equal(n->rank, rank);
    assert_int_equal(n->told_world, n->world);
    assert_int_equal(n->round, round);
}

static void assert_failed(const struct node *n, int status, const char *word)
{
    assert_int_equal(n->assigned, 0);
    assert_int_equal(n->failed, 1);
    assert_int_equal(n->status, status);
    if (strstr(n->text, word) == NULL) {
        fail_msg("no '%s' in: %s", word, n->text);
    }
}

/* --- who meets whom --------------------------------------------------------------------------- */

static void test_rdzv_static_gives_the_ranks_that_were_configured(void **state)
{
    struct mu_sim *sim = make_sim();
    struct node a = {.config = "rank=0", .world = 3};
    struct node b = {.config = "rank=1", .world = 3};
    struct node c = {.config = "rank=2", .world = 3};

    (void)state;
    add_joined(sim, &c, "c"); /* Nobody serves yet. */
    mu_sim_run_for(sim, 20 * MU_NS_PER_S);
    assert_int_equal(c.assigned + c.failed, 0);
    add_joined(sim, &a, "a");
    wait_told(&c);
    assert_assigned(&c, 2, 0);
    mu_sim_run_for(sim, 20 * MU_NS_PER_S);
    assert_int_equal(a.assigned, 0); /* Two of three. */
    add_joined(sim, &b, "b");
    wait_told(&b);
    wait_told(&a);
    assert_assigned(&a, 0, 0);
    assert_assigned(&b, 1, 0);
    assert_true(a.handler->hosting);
    assert_false(b.handler->hosting);
    assert_true(a.told_ms - b.told_ms < 100); /* Asked every 10 ms, and not much later. */
    assert_string_equal(a.url, "tcp://a:29500?prefix=job");
    assert_string_equal(b.url, a.url);
    assert_string_equal(c.url, a.url);
    assert_true(a.records >= 3 && b.records >= 2);
    free_node(&c);
    free_node(&b);
    free_node(&a);
    free_sim(sim);
}

static void test_rdzv_static_is_one_node_alone_at_once(void **state)
{
    struct mu_sim *sim = make_sim();
    struct node a = {.config = "rank=0", .world = 1, .run_id = "a b%/\xc3\xa9"};

    (void)state;
    add_joined(sim, &a, "a");
    wait_told(&a);
    assert_assigned(&a, 0, 0);
    assert_string_equal(a.url, "tcp://a:29500?prefix=a%20b%25/%C3%A9");
    free_node(&a);
    free_sim(sim);
}

static void test_rdzv_static_joined_again_is_the_same_at_once(void **state)
{
    struct mu_sim *sim = make_sim();
    struct node a = {.config = "rank=0", .world = 2};
    struct node b = {.config = "rank=1", .world = 2};

    (void)state;
    add_joined(sim, &a, "a");
    add_joined(sim, &b, "b");
    wait_told(&a);
    wait_told(&b);
    for (uint64_t round = 1; round < 4; round++) {
        uint64_t before = mu_sim_now_ns(sim) / MU_NS_PER_MS;

        forget(&a);
        ask(&a, mu_rdzv_join);
        ask(&a, mu_rdzv_join); /* A wish is a wish. */
        wait_told(&a);
        assert_assigned(&a, 0, round);
        assert_int_equal(a.told_ms, before);
        mu_sim_run_for(sim, MU_NS_PER_S);
        assert_int_equal(a.assigned, 1);
    }
    /* Nobody else hears of it. */
    assert_assigned(&b, 1, 0);
    free_node(&b);
    free_node(&a);
    free_sim(sim);
}

static void test_rdzv_static_can_be_hosted_by_another_rank(void **state)
{
    struct mu_sim *sim = make_sim();
    struct node a = {.config = "rank=0,is_host=false", .world = 2};
    struct node b = {.config = "rank=1,is_host=true", .world = 2, .endpoint = "b:29500"};

    (void)state;
    a.endpoint = "b:29500";
    add_joined(sim, &a, "a");
    mu_sim_run_for(sim, MU_NS_PER_S);
    add_joined(sim, &b, "b");
    wait_told(&a);
    wait_told(&b);
    assert_assigned(&a, 0, 0);
    assert_assigned(&b, 1, 0);
    assert_false(a.handler->hosting);
    assert_true(b.handler->hosting);
    free_node(&a);
    free_node(&b);
    free_sim(sim);
}

/* --- time ------------------------------------------------------------------------------------- */

static void test_rdzv_static_rank_0_says_how_many_have_come_when_time_is_up(void **state)
{
    struct mu_sim *sim = make_sim();
    struct node a = {.config = "rank=0,timeout=7", .world = 3};
    struct node b = {.config = "rank=1,timeout=7", .world = 3};
    struct node c = {.config = "rank=2,timeout=7", .world = 3};
    uint64_t began;

    (void)state;
    add_joined(sim, &a, "a");
    began = mu_sim_now_ns(sim) / MU_NS_PER_MS;
    add_joined(sim, &b, "b");
    wait_told(&b);
    assert_assigned(&b, 1, 0);
    wait_told(&a);
    assert_failed(&a, MUSTER_ERDZV_TIMEOUT, "2 of 3 nodes");
    assert_non_null(strstr(a.text, "timed out after 7 s"));
    assert_true(a.told_ms >= began + 7000 && a.told_ms < began + 7100);

    /* Who tries again is not counted again. */
    forget(&a);
    ask(&a, mu_rdzv_join);
    mu_sim_run_for(sim, 3 * MU_NS_PER_S);
    assert_int_equal(a.assigned + a.failed, 0);
    add_joined(sim, &c, "c");
    wait_told(&a);
    assert_assigned(&a, 0, 0);
    free_node(&c);
    free_node(&b);
    free_node(&a);
    free_sim(sim);
}

static void test_rdzv_static_fails_in_time_where_nobody_serves(void **state)
{
    struct mu_sim *sim = make_sim();
    struct node a = {.config = "rank=0", .world = 2};
    struct node b = {.config = "rank=1,timeout=5", .world = 2};
    uint64_t began;

    (void)state;
    add_joined(sim, &b, "b");
    began = mu_sim_now_ns(sim) / MU_NS_PER_MS;
    wait_told(&b);
    assert_failed(&b, MUSTER_ERDZV_CONN, "");
    assert_true(b.text[0] != '\0');
    assert_true(b.told_ms >= began + 4900 && b.told_ms < began + 6000);

    /* And finds whoever comes later. */
    add_joined(sim, &a, "a");
    forget(&b);
    ask(&b, mu_rdzv_join);
    wait_told(&b);
    wait_told(&a);
    assert_assigned(&b, 1, 0);
    assert_assigned(&a, 0, 0);
    free_node(&b);
    free_node(&a);
    free_sim(sim);
}

/* --- ends ------------------------------------------------------------------------------------- */

static void test_rdzv_static_can_be_left_while_it_waits(void **state)
{
    struct mu_sim *sim = make_sim();
    struct node a = {.config = "rank=0,timeout=5", .world = 2};
    struct node b = {.config = "rank=1,timeout=5", .world = 2};

    (void)state;
    add_joined(sim, &b, "b"); /* Dials in vain. */
    mu_sim_run_for(sim, 50 * MU_NS_PER_MS);
    ask(&b, mu_rdzv_leave);
    mu_sim_run_for(sim, 20 * MU_NS_PER_S);
    add_joined(sim, &a, "a"); /* Waits for the other. */
    mu_sim_run_for(sim, 50 * MU_NS_PER_MS);
    ask(&a, mu_rdzv_leave);
    mu_sim_run_for(sim, 20 * MU_NS_PER_S);
    ask(&a, mu_rdzv_join);
    ask(&a, mu_rdzv_leave); /* Before it has begun. */
    mu_sim_run_for(sim, 20 * MU_NS_PER_S);
    assert_int_equal(a.left, 2);
    assert_int_equal(b.left, 1);
    assert_int_equal(a.assigned + a.failed, 0);
    assert_int_equal(b.assigned + b.failed, 0);

    forget(&a);
    forget(&b);
    ask(&a, mu_rdzv_join);
    ask(&b, mu_rdzv_join);
    wait_told(&a);
    wait_told(&b);
    assert_assigned(&a, 0, 0);
    assert_assigned(&b, 1, 0);
    free_node(&b);
    free_node(&a);
    free_sim(sim);
}

static void test_rdzv_static_close_is_nobody_elses_concern(void **state)
{
    struct mu_sim *sim = make_sim();
    struct node a = {.config = "rank=0", .world = 2};
    struct node b = {.config = "rank=1", .world = 2};

    (void)state;
    add_joined(sim, &a, "a");
    add_joined(sim, &b, "b");
    wait_told(&a);
    ask(&b, mu_rdzv_close_run);
    mu_sim_run_for(sim, 10 * MU_NS_PER_S);
    assert_int_equal(b.closed, 1);
    assert_int_equal(a.closed, 0);
    assert_int_equal(a.failed + b.failed, 0);
    free_node(&a); /* The host first: nobody hears of that either. */
    mu_sim_run_for(sim, 10 * MU_NS_PER_S);
    assert_int_equal(b.failed, 0);
    free_node(&b);
    free_sim(sim);
}

/* At whichever moment it is freed, nothing is left and nothing is told. */
static void test_rdzv_static_can_be_freed_at_any_moment(void **state)
{
    (void)state;
    for (uint64_t us = 0; us < 40000; us += 700) {
        struct mu_sim *sim = make_sim();
        struct node a = {.config = "rank=0", .world = 2};
        struct node b = {.config = "rank=1", .world = 2};

        add_joined(sim, &a, "a");
        add_joined(sim, &b, "b");
        mu_sim_run_for(sim, us * 1000);
        forget(&a);
        ask(&a, mu_rdzv_free);
        ask(&b, mu_rdzv_free);
        assert_true(mu_sim_run_until(sim, 700 * MU_NS_PER_S, is_freed, &a));
        assert_true(mu_sim_run_until(sim, 700 * MU_NS_PER_S, is_freed, &b));
        mu_sim_run_for(sim, MU_NS_PER_S);
        assert_int_equal(a.assigned + a.failed, 0);
        assert_int_equal(mu_sim_proc_blocks(a.proc), 0);
        assert_int_equal(mu_sim_proc_blocks(b.proc), 0);
        free_sim(sim);
    }
}

/* --- errors ----------------------------------------------------------------------------------- */

static void test_rdzv_static_refuses_what_makes_no_sense(void **state)
{
    static const struct {
        const char *endpoint;
        const char *config;
        int status;
        const char *word;
    } cases[] = {
        {"a:29500", "", MUSTER_EINVAL, "needs this node's rank"},
        {"a:29500", "timeout=5", MUSTER_EINVAL, "needs this node's rank"},
        {"a:29500", "rank=-1", MUSTER_EINVAL, "between 0 and 1"},
        {"a:29500", "rank=2", MUSTER_EINVAL, "between 0 and 1"},
        {"a:29500", "rank=99999999999999999999", MUSTER_EINVAL, "rank"},
        {"a:29500", "rank=one", MUSTER_EINVAL, "one"},
        {"a:29500", "rank=0,timeout=0", MUSTER_EINVAL, "timeout"},
        {"a:29500", "rank=0,is_host=perhaps", MUSTER_EINVAL, "perhaps"},
        {"a:29500", "rank=0,join_timeout=0", MUSTER_EINVAL, "join_timeout"},
        {"a:29500", "rnak=0", MUSTER_EINVAL, "did you mean \"rank\""},
        {"a", "rank=0", MUSTER_EINVAL, "endpoint with a port"},
        {"", "rank=0", MUSTER_EINVAL, "endpoint with a port"},
        {"::1", "rank=0", MUSTER_EINVAL, "["},
        {"elsewhere:29500", "rank=0,is_host=true", MUSTER_EADDR, "is_host is true"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_sim *sim = make_sim();
        struct node n = {.endpoint = cases[i].endpoint, .config = cases[i].config, .world = 2};

        add_node(sim, &n, "a");
        if (n.open_status != cases[i].status || strstr(n.msg.text, cases[i].word) == NULL) {
            fail_msg("'%s' at '%s': %d %s", cases[i].config, cases[i].endpoint, n.open_status,
                     n.msg.text);
        }
        mu_sim_run_for(sim, MU_NS_PER_S);
        assert_int_equal(mu_sim_proc_blocks(n.proc), 0);
        free_sim(sim);
    }
}

static void test_rdzv_static_that_does_not_find_its_place_taken_hosts(void **state)
{
    struct mu_sim *sim = make_sim();
    struct node a = {.config = "rank=0", .world = 2};
    struct node b = {.config = "rank=0", .world = 2};

    (void)state;
    add_joined(sim, &a, "a");
    /* The same rank by mistake, elsewhere: it cannot bind, so it is a client and waits as well. */
    add_joined(sim, &b, "b");
    wait_told(&a);
    wait_told(&b);
    assert_assigned(&a, 0, 0);
    assert_assigned(&b, 0, 0);
    assert_true(a.handler->hosting);
    assert_false(b.handler->hosting);
    free_node(&b);
    free_node(&a);
    free_sim(sim);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rdzv_static_gives_the_ranks_that_were_configured),
        cmocka_unit_test(test_rdzv_static_is_one_node_alone_at_once),
        cmocka_unit_test(test_rdzv_static_joined_again_is_the_same_at_once),
        cmocka_unit_test(test_rdzv_static_can_be_hosted_by_another_rank),
        cmocka_unit_test(test_rdzv_static_rank_0_says_how_many_have_come_when_time_is_up),
        cmocka_unit_test(test_rdzv_static_fails_in_time_where_nobody_serves),
        cmocka_unit_test(test_rdzv_static_can_be_left_while_it_waits),
        cmocka_unit_test(test_rdzv_static_close_is_nobody_elses_concern),
        cmocka_unit_test(test_rdzv_static_can_be_freed_at_any_moment),
        cmocka_unit_test(test_rdzv_static_refuses_what_makes_no_sense),
        cmocka_unit_test(test_rdzv_static_that_does_not_find_its_place_taken_hosts),
    };

    return cmocka_run_group_tests_name("rdzv_static", tests, NULL, NULL);
}

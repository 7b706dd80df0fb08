/*
 * Goal: every rank of a round learns where its workers meet, from a rank 0 of our own, of PyTorch
 * 1.13 or of 2.11, and never from one that is gone. Method: nodes in the simulator on one store
 * server; what PyTorch would publish is put into the store by hand.
 */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include <muster/log.h>

#include "core/alloc.h"
#include "service/rdzv/bootstrap.h"
#include "service/server/server.h"
#include "sim.h"

#define PORT 29500

struct world {
    struct mu_sim *sim;
    struct mu_sim_proc *server;
};

struct node {
    struct world *world;
    struct mu_sim_proc *proc;
    struct mu_env *env;
    struct mu_rdzv_bootstrap_config config;
    struct mu_rdzv_round_store stores;
    struct mu_rdzv_bootstrap *bootstrap;
    int start_status;
    struct mu_errmsg msg;
    int done;
    int failed;
    int ended;
    int status;
    char addr[256];
    uint16_t port;
    uint64_t told_ms;
    bool store_closed;
    char text[256];
};

static void server_stopped(void *context, int status, const char *why)
{
    (void)context;
    (void)status;
    (void)why;
}

static int start_server(struct mu_env *env, void *arg)
{
    struct mu_store_server_config config = mu_store_server_config_defaults();
    struct mu_store_server *server;
    struct mu_errmsg msg;

    (void)arg;
    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};
    config.stopped = server_stopped;
    return mu_store_server_start(env, &config, &server, &msg);
}

static struct world make_world(void)
{
    struct mu_sim_config config = {.seed = 11, .faults = mu_sim_faults_none()};
    struct world w = {0};

    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    w.sim = mu_sim_new(&config);
    assert_non_null(w.sim);
    w.server = mu_sim_proc_new(mu_sim_host_new(w.sim, "s"),
                               &(struct mu_sim_program){.name = "server", .start = start_server});
    return w;
}

static void free_world(struct world *w)
{
    assert_null(mu_sim_failure(w->sim));
    mu_sim_free(w->sim);
}

/* --- a node ----------------------------------------------------------------------------------- */

static void on_done(void *context, const char *addr, uint16_t port)
{
    struct node *n = context;

    n->done++;
    (void)snprintf(n->addr, sizeof(n->addr), "%s", addr);
    n->port = port;
    n->told_ms = mu_sim_now_ns(n->world->sim) / MU_NS_PER_MS;
}

static void on_failed(void *context, int status, const char *text)
{
    struct node *n = context;

    n->failed++;
    n->status = status;
    (void)snprintf(n->text, sizeof(n->text), "%s", text);
    n->told_ms = mu_sim_now_ns(n->world->sim) / MU_NS_PER_MS;
}

static void on_ended(void *context)
{
    ((struct node *)context)->ended++;
}

static void begin(void *arg)
{
    struct node *n = arg;
    char url[128];

    (void)snprintf(url, sizeof(url), "tcp://s:%d?prefix=torch.rendezvous.job.%u&protocol=muster",
                   PORT, (unsigned)n->config.round);
    assert_int_equal(mu_rdzv_round_store_open(n->env, url, 5000, &n->stores, &n->msg), 0);
    n->config.store = n->stores.store;
    n->config.run = n->stores.run;
    n->config.prefix = n->stores.prefix;
    n->config.done = on_done;
    n->config.failed = on_failed;
    n->config.ended = on_ended;
    n->config.context = n;
    n->done = n->failed = n->ended = 0;
    n->store_closed = false;
    n->start_status = mu_rdzv_bootstrap_start(n->env, &n->config, &n->bootstrap, &n->msg);
}

static int start_node(struct mu_env *env, void *arg)
{
    struct node *n = arg;

    n->env = env;
    begin(n);
    return 0;
}

static void add_node(struct world *w, struct node *n, const char *host)
{
    n->world = w;
    n->proc =
        mu_sim_proc_new(mu_sim_host_new(w->sim, host),
                        &(struct mu_sim_program){.name = "node", .start = start_node, .arg = n});
}

static bool is_told(void *arg)
{
    struct node *n = arg;

    return n->done + n->failed != 0;
}

static void wait_told(struct node *n)
{
    assert_true(mu_sim_run_until(n->world->sim, 120 * MU_NS_PER_S, is_told, n));
    assert_int_equal(n->start_status, 0);
}

static void on_store_closed(void *context)
{
    ((struct node *)context)->store_closed = true;
}

static void end(void *arg)
{
    struct node *n = arg;

    mu_rdzv_bootstrap_end(n->bootstrap);
    mu_rdzv_bootstrap_end(n->bootstrap); /* Twice is harmless. */
    assert_int_equal(n->ended, 0);
    mu_store_close(n->stores.store, on_store_closed, n);
}

static bool is_over(void *arg)
{
    struct node *n = arg;

    return n->ended != 0 && n->store_closed;
}

/* Ends it and checks that nothing is left. */
static void end_node(struct node *n)
{
    int told = n->done + n->failed;

    mu_sim_call(n->proc, end, n);
    assert_true(mu_sim_run_until(n->world->sim, 60 * MU_NS_PER_S, is_over, n));
    assert_int_equal(n->ended, 1);
    assert_int_equal(n->done + n->failed, told);
    mu_sim_run_for(n->world->sim, MU_NS_PER_S);
    assert_int_equal(mu_sim_proc_blocks(n->proc), 0);
    assert_true(mu_sim_proc_idle(n->proc));
}

/* --- a store by hand -------------------------------------------------------------------------- */

struct hand {
    struct mu_env *env;
    struct mu_store *store;
    struct mu_store_op op;
    struct mu_span key;
    struct mu_span value;
    const char *url;
    bool ended;
    bool closed;
};

static void on_hand_done(struct mu_store_op *op)
{
    MU_CONTAINER_OF(op, struct hand, op)->ended = true;
}

static void submit_by_hand(void *arg)
{
    struct hand *h = arg;
    struct mu_errmsg msg;

    if (h->store == NULL) {
        assert_int_equal(mu_store_open(h->env, h->url, 3000, &h->store, &msg), 0);
    }
    h->op.request.keys = &h->key;
    h->op.request.key_count = 1;
    h->op.request.values = &h->value;
    h->op.request.value_count = h->value.len != 0;
    h->op.timeout_ms = 5000;
    h->op.done = on_hand_done;
    mu_store_submit(h->store, &h->op);
}

static bool hand_ended(void *arg)
{
    return ((struct hand *)arg)->ended;
}

static void hand_closed(void *context)
{
    ((struct hand *)context)->closed = true;
}

static bool is_hand_closed(void *arg)
{
    return ((struct hand *)arg)->closed;
}

static void close_hand(void *arg)
{
    struct hand *h = arg;

    mu_store_close(h->store, hand_closed, h);
}

/* One operation on a store of its own; the number of the reply, or the error. */
static int64_t by_hand(struct world *w, struct mu_sim_proc *proc, const char *url,
                       enum mu_store_verb verb, const char *key, const char *value)
{
    struct hand h = {.env = mu_sim_proc_env(proc), .url = url};
    int64_t result;

    h.op.request.verb = verb;
    h.key = mu_span_str(key);
    h.value = mu_span_str(value);
    mu_sim_call(proc, submit_by_hand, &h);
    assert_true(mu_sim_run_until(w->sim, 30 * MU_NS_PER_S, hand_ended, &h));
    result = h.op.status != 0 ? h.op.status : h.op.reply.number;
    mu_sim_call(proc, close_hand, &h);
    assert_true(mu_sim_run_until(w->sim, 30 * MU_NS_PER_S, is_hand_closed, &h));
    return result;
}

static int start_nothing(struct mu_env *env, void *arg)
{
    (void)env;
    (void)arg;
    return 0;
}

/* A process that does nothing by itself. */
static struct mu_sim_proc *add_hand(struct world *w, const char *host)
{
    struct mu_sim_proc *p =
        mu_sim_proc_new(mu_sim_host_new(w->sim, host),
                        &(struct mu_sim_program){.name = "hand", .start = start_nothing});

    mu_sim_run_for(w->sim, MU_NS_PER_MS);
    return p;
}

/* As an agent of PyTorch would. */
static void publish(struct world *w, struct mu_sim_proc *proc, unsigned round, const char *addr,
                    const char *port)
{
    char key[128];

    (void)snprintf(key, sizeof(key), "torch.rendezvous.job.%u/MASTER_ADDR", round);
    assert_int_equal(by_hand(w, proc, "tcp://s:29500", MU_STORE_SET, key, addr), 0);
    (void)snprintf(key, sizeof(key), "torch.rendezvous.job.%u/MASTER_PORT", round);
    assert_int_equal(by_hand(w, proc, "tcp://s:29500", MU_STORE_SET, key, port), 0);
}

/* --- the tests -------------------------------------------------------------------------------- */

static void test_rdzv_bootstrap_serves_a_fresh_store_each_round(void **state)
{
    struct world w = make_world();
    struct node a = {.config = {.rank = 0, .addr = "a", .share = true}};
    struct node b = {.config = {.rank = 1, .addr_0 = "a"}};
    char first[300];
    char second[300];

    (void)state;
    add_node(&w, &b, "b");
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    assert_int_equal(b.done, 0);
    add_node(&w, &a, "a");
    wait_told(&a);
    wait_told(&b);
    assert_string_equal(a.addr, "a");
    assert_string_equal(b.addr, "a");
    assert_int_equal(a.port, b.port);
    (void)snprintf(first, sizeof(first), "tcp://%s:%u", b.addr, b.port);
    assert_int_equal(by_hand(&w, b.proc, first, MU_STORE_SET, "left", "over"), 0);
    end_node(&b);
    end_node(&a);

    a.config.round = b.config.round = 1;
    mu_sim_call(a.proc, begin, &a);
    mu_sim_call(b.proc, begin, &b);
    wait_told(&a);
    wait_told(&b);
    assert_int_equal(a.port, b.port);
    (void)snprintf(second, sizeof(second), "tcp://%s:%u", b.addr, b.port);
    assert_int_equal(by_hand(&w, b.proc, second, MU_STORE_CHECK, "left", ""), 0);
    end_node(&a);
    end_node(&b);
    free_world(&w);
}

static void test_rdzv_bootstrap_without_sharing_names_a_port_where_nobody_listens(void **state)
{
    struct world w = make_world();
    struct node a = {.config = {.rank = 0, .addr = "a"}};
    struct node b = {.config = {.rank = 1}};
    char url[300];

    (void)state;
    add_node(&w, &a, "a");
    add_node(&w, &b, "b");
    wait_told(&a);
    wait_told(&b);
    assert_int_equal(a.port, b.port);
    assert_int_not_equal(a.port, 0);
    (void)snprintf(url, sizeof(url), "tcp://%s:%u", b.addr, b.port);
    assert_int_equal(by_hand(&w, b.proc, url, MU_STORE_CHECK, "any", ""), MUSTER_ECONN);
    end_node(&a);
    end_node(&b);
    free_world(&w);
}

/* PyTorch 2.11: published in round 1, not again in rounds 2 and 3. */
static void test_rdzv_bootstrap_finds_a_rank_0_that_published_once(void **state)
{
    struct world w = make_world();
    struct mu_sim_proc *hand = add_hand(&w, "p");
    struct node c = {.config = {.rank = 2, .round = 3, .addr_0 = "s"}};

    (void)state;
    publish(&w, hand, 0, "gone", "29500");
    publish(&w, hand, 1, "s", "29500");
    add_node(&w, &c, "c");
    wait_told(&c);
    assert_int_equal(c.done, 1);
    assert_string_equal(c.addr, "s");
    assert_int_equal(c.port, 29500);
    assert_true(c.told_ms >= MU_RDZV_BOOTSTRAP_PATIENCE_MS);
    end_node(&c);
    free_world(&w);
}

static void test_rdzv_bootstrap_takes_no_pair_of_another_node_or_of_the_dead(void **state)
{
    struct world w = make_world();
    struct mu_sim_proc *hand = add_hand(&w, "p");
    struct node c = {.config = {.rank = 2, .round = 4, .addr_0 = "p"}};

    (void)state;
    publish(&w, hand, 0, "p", "nonsense");
    publish(&w, hand, 1, "s", "29500");
    publish(&w, hand, 3, "p", "29501"); /* Nobody listens there. */
    add_node(&w, &c, "c");
    wait_told(&c);
    assert_int_equal(c.failed, 1);
    assert_int_equal(c.status, MUSTER_ERDZV_TIMEOUT);
    assert_non_null(strstr(c.text, "rank 0 (\"p\")"));
    assert_non_null(strstr(c.text, "round 4"));
    assert_non_null(strstr(c.text, "60 s"));
    end_node(&c);
    free_world(&w);
}

/* It still serves the round before while it stops its workers, but will serve another store. */
static void test_rdzv_bootstrap_waits_for_one_of_ours_that_is_late(void **state)
{
    struct world w = make_world();
    struct node a = {.config = {.rank = 0, .addr = "a", .share = true}};
    struct node b = {.config = {.rank = 1, .round = 1, .addr_0 = "a"}};

    (void)state;
    add_node(&w, &a, "a");
    wait_told(&a);
    add_node(&w, &b, "b");
    mu_sim_run_for(w.sim, 2 * MU_RDZV_BOOTSTRAP_PATIENCE_MS * MU_NS_PER_MS);
    assert_int_equal(b.done, 0);
    end_node(&a);
    a.config.round = 1;
    mu_sim_call(a.proc, begin, &a);
    wait_told(&a);
    wait_told(&b);
    assert_int_equal(b.done, 1);
    assert_int_equal(a.port, b.port);
    end_node(&a);
    end_node(&b);
    free_world(&w);
}

static void test_rdzv_bootstrap_prefers_the_pair_of_its_own_round(void **state)
{
    struct world w = make_world();
    struct mu_sim_proc *hand = add_hand(&w, "p");
    struct node c = {.config = {.rank = 1, .round = 1, .patience_ms = 60000}};

    (void)state;
    publish(&w, hand, 0, "s", "29500");
    add_node(&w, &c, "c");
    mu_sim_run_for(w.sim, 5 * MU_NS_PER_S);
    assert_int_equal(c.done, 0);
    publish(&w, hand, 1, "elsewhere", "4711");
    wait_told(&c);
    assert_string_equal(c.addr, "elsewhere");
    assert_int_equal(c.port, 4711);
    end_node(&c);
    free_world(&w);
}

static void test_rdzv_bootstrap_takes_no_garbage_for_an_address(void **state)
{
    static const char *const pairs[][2] = {
        {"two words", "1"}, {"a\n", "1"}, {"a", "0"},       {"a", "65536"},
        {"a", "-1"},        {"a", "1x"},  {"a", "0000001"}, {"\xff", "1"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++) {
        struct world w = make_world();
        struct mu_sim_proc *hand = add_hand(&w, "p");
        struct node c = {.config = {.rank = 1}};

        publish(&w, hand, 0, pairs[i][0], pairs[i][1]);
        add_node(&w, &c, "c");
        wait_told(&c);
        assert_int_equal(c.failed, 1);
        assert_int_equal(c.status, MUSTER_ERDZV_STATE);
        end_node(&c);
        free_world(&w);
    }
}

static void test_rdzv_bootstrap_says_that_the_store_is_gone(void **state)
{
    struct world w = make_world();
    struct node c = {.config = {.rank = 1, .round = 7}};

    (void)state;
    add_node(&w, &c, "c");
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    mu_sim_kill(w.server, MU_SIM_KILL_PROCESS);
    wait_told(&c);
    assert_int_equal(c.failed, 1);
    assert_int_equal(c.status, MUSTER_ERDZV_CONN);
    assert_non_null(strstr(c.text, "round 7"));
    end_node(&c);
    free_world(&w);
}

/* Whatever it is doing when it is ended: nothing is told any more, and nothing is left. */
static void test_rdzv_bootstrap_can_be_ended_at_any_time(void **state)
{
    (void)state;
    for (uint64_t us = 0; us < 8000; us += 50) {
        struct world w = make_world();
        struct mu_sim_proc *hand = add_hand(&w, "p");
        struct node a = {.config = {.rank = 0, .addr = "a", .share = us % 100 == 0}};
        struct node c = {.config = {.rank = 1, .round = 1, .patience_ms = 1}};

        publish(&w, hand, 0, "s", "29500");
        add_node(&w, &a, "a");
        add_node(&w, &c, "c");
        mu_sim_run_for(w.sim, MU_NS_PER_MS / 1000); /* The processes are there. */
        mu_sim_run_for(w.sim, us * MU_NS_PER_MS / 1000);
        assert_non_null(a.bootstrap);
        assert_non_null(c.bootstrap);
        end_node(&a);
        end_node(&c);
        free_world(&w);
    }
}

static void test_rdzv_bootstrap_refuses_what_cannot_be_an_address(void **state)
{
    struct world w = make_world();
    struct node a = {.config = {.rank = 0, .addr = "not a host", .share = true}};

    (void)state;
    add_node(&w, &a, "a");
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    assert_int_equal(a.start_status, MUSTER_EINVAL);
    assert_non_null(strstr(a.msg.text, "not a host"));
    free_world(&w);
}

static void test_rdzv_round_store_has_both_views_on_one_connection(void **state)
{
    static const char *const bad[] = {"", "tcp://s:1?prefix", "what://s", "tcp://s:1?nonsense=1"};
    struct world w = make_world();
    struct mu_sim_proc *hand = add_hand(&w, "p");
    struct mu_rdzv_round_store stores;
    struct mu_errmsg msg;

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(
            mu_rdzv_round_store_open(mu_sim_proc_env(hand), bad[i], 1000, &stores, &msg),
            MUSTER_EURL);
    }
    assert_int_equal(
        mu_rdzv_round_store_open(mu_sim_proc_env(hand), "hash:?prefix=a%2Fb%26c", 0, &stores, &msg),
        0);
    assert_string_equal(stores.prefix, "a/b&c");
    assert_ptr_not_equal(stores.store, stores.run);
    mu_store_close(stores.store, NULL, NULL);
    assert_int_equal(mu_rdzv_round_store_open(mu_sim_proc_env(hand), "hash:", 0, &stores, &msg), 0);
    assert_string_equal(stores.prefix, "");
    assert_ptr_equal(stores.store, stores.run);
    mu_store_close(stores.store, NULL, NULL);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    free_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rdzv_bootstrap_serves_a_fresh_store_each_round),
        cmocka_unit_test(test_rdzv_bootstrap_without_sharing_names_a_port_where_nobody_listens),
        cmocka_unit_test(test_rdzv_bootstrap_finds_a_rank_0_that_published_once),
        cmocka_unit_test(test_rdzv_bootstrap_takes_no_pair_of_another_node_or_of_the_dead),
        cmocka_unit_test(test_rdzv_bootstrap_waits_for_one_of_ours_that_is_late),
        cmocka_unit_test(test_rdzv_bootstrap_prefers_the_pair_of_its_own_round),
        cmocka_unit_test(test_rdzv_bootstrap_takes_no_garbage_for_an_address),
        cmocka_unit_test(test_rdzv_bootstrap_says_that_the_store_is_gone),
        cmocka_unit_test(test_rdzv_bootstrap_can_be_ended_at_any_time),
        cmocka_unit_test(test_rdzv_bootstrap_refuses_what_cannot_be_an_address),
        cmocka_unit_test(test_rdzv_round_store_has_both_views_on_one_connection),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

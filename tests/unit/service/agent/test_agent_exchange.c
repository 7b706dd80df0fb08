/*
 * Agents that meet in one store: ranks, addresses and the barrier at the end, in both generations;
 * then one of ours with an agent of PyTorch 2.11, whose operations were taken off the wire.
 */
#include "unit.h"

#include <stdio.h>
#include <stdlib.h>

#include "core/alloc.h"
#include "failheap.h"
#include "service/agent/exchange.h"
#include "sim.h"

#define AGENTS_MAX 5
#define LOG_CAP    8192

/* An agent's view of the store: what it asks is noted and passed on. */
struct spy {
    struct mu_store base;
    struct mu_store *inner;
    size_t count;
    char log[LOG_CAP];
};

struct agent {
    struct mu_agent_exchange x;
    struct spy spy;
    int ended;
    int status;
};

struct world {
    struct mu_sim *sim;
    struct mu_sim_proc *proc;
    struct mu_env *env;
    struct mu_store *store;
    size_t agent_count;
    struct agent agents[AGENTS_MAX];
    void (*act)(struct world *w);
    bool closed;
};

/* --- the store -------------------------------------------------------------------------------- */

static const char *verb_name(enum mu_store_verb verb)
{
    switch ((int)verb) {
#define CASE(name, number, ...)                                                                    \
    case number:                                                                                   \
        return #name;
        MU_STORE_VERB_MAP(CASE)
#undef CASE
    default:
        return "?";
    }
}

static void spy_submit(struct mu_store *store, struct mu_store_op *op)
{
    struct spy *s = MU_CONTAINER_OF(store, struct spy, base);
    size_t n = strlen(s->log);

    s->count++;
    n += (size_t)snprintf(s->log + n, LOG_CAP - n, "%s", verb_name(op->request.verb));
    for (size_t i = 0; i < op->request.key_count; i++) {
        n += (size_t)snprintf(s->log + n, LOG_CAP - n, " %.*s", (int)op->request.keys[i].len,
                              (const char *)op->request.keys[i].data);
        if (i < op->request.value_count) {
            n += (size_t)snprintf(s->log + n, LOG_CAP - n, "=%.*s", (int)op->request.values[i].len,
                                  (const char *)op->request.values[i].data);
        }
    }
    (void)snprintf(s->log + n, LOG_CAP - n, "\n");
    mu_store_submit(s->inner, op);
}

static const struct mu_store_kind spy_kind = {.submit = spy_submit};

/* --- the world -------------------------------------------------------------------------------- */

static int start(struct mu_env *env, void *arg)
{
    struct world *w = arg;

    w->env = env;
    return mu_store_hash_new(env, &w->store);
}

static void on_done(struct mu_agent_exchange *x, int status)
{
    struct agent *a = MU_CONTAINER_OF(x, struct agent, x);

    a->ended++;
    a->status = status;
}

static struct world *open_world(size_t agents, enum mu_exchange_generation generation)
{
    struct world *w = calloc(1, sizeof(*w));
    struct mu_sim_config config = {.seed = 3, .faults = mu_sim_faults_none()};

    assert_non_null(w);
    w->sim = mu_sim_new(&config);
    w->proc = mu_sim_proc_new(mu_sim_host_new(w->sim, "host"),
                              &(struct mu_sim_program){.name = "agents", .start = start, .arg = w});
    mu_sim_run_for(w->sim, MU_NS_PER_MS);
    assert_non_null(w->store);
    w->agent_count = agents;
    for (size_t i = 0; i < agents; i++) {
        struct agent *a = &w->agents[i];

        a->spy.base = (struct mu_store){.kind = &spy_kind, .env = w->env};
        a->spy.inner = w->store;
        a->x.config = (struct mu_agent_exchange_config){
            .env = w->env,
            .store = &a->spy.base,
            .generation = generation,
            .rank = (uint32_t)i,
            .world = (uint32_t)agents,
            .workers = 2,
            .role = "default",
            .timeout_ms = 5000,
            .master_addr = "node0.example",
            .master_port = 43210,
            .done = on_done,
        };
    }
    return w;
}

static void on_store_closed(void *context)
{
    ((struct world *)context)->closed = true;
}

static void close_store(void *arg)
{
    struct world *w = arg;

    mu_store_close(w->store, on_store_closed, w);
}

static void close_world(struct world *w)
{
    mu_sim_call(w->proc, close_store, w);
    mu_sim_run_for(w->sim, MU_NS_PER_S);
    assert_true(w->closed);
    assert_int_equal(mu_sim_proc_blocks(w->proc), 0);
    assert_null(mu_sim_failure(w->sim));
    mu_sim_free(w->sim);
    free(w);
}

static void act(void *arg)
{
    struct world *w = arg;

    w->act(w);
}

/* Runs it in the place of the process. */
static void call(struct world *w, void (*run)(struct world *w))
{
    w->act = run;
    mu_sim_call(w->proc, act, w);
}

static void run_ms(struct world *w, uint64_t ms)
{
    mu_sim_run_for(w->sim, ms * MU_NS_PER_MS);
}

static void start_all(struct world *w)
{
    for (size_t i = 0; i < w->agent_count; i++) {
        mu_agent_exchange_start(&w->agents[i].x);
        assert_int_equal(w->agents[i].ended, 0); /* never inside the call */
    }
}

static void start_first(struct world *w)
{
    mu_agent_exchange_start(&w->agents[0].x);
}

static void assert_ended(struct world *w, int status)
{
    for (size_t i = 0; i < w->agent_count; i++) {
        assert_int_equal(w->agents[i].ended, 1);
        if (w->agents[i].status != status) {
            fail_msg("agent %zu: %d (%s) is not %d", i, w->agents[i].status,
                     w->agents[i].x.errmsg.text, status);
        }
    }
}

static void assert_ranks(const struct agent *a, struct mu_ranks expected)
{
    assert_memory_equal(&a->x.ranks, &expected, sizeof(expected));
}

/* --- ranks ------------------------------------------------------------------------------------ */

static void mix_roles(struct world *w)
{
    static const char *const roles[] = {"trainer", "reader", "trainer", "reader", "trainer"};
    static const uint32_t workers[] = {2, 1, 3, 4, 1};

    for (size_t i = 0; i < w->agent_count; i++) {
        w->agents[i].x.config.role = roles[i];
        w->agents[i].x.config.workers = workers[i];
    }
}

static void check_mixed(enum mu_exchange_generation generation)
{
    static const struct mu_ranks expected[] = {
        {0, 11, 0, 6}, {2, 11, 0, 5}, {3, 11, 2, 6}, {6, 11, 1, 5}, {10, 11, 5, 6}};
    struct world *w = open_world(5, generation);

    mix_roles(w);
    call(w, start_all);
    run_ms(w, 100);
    assert_ended(w, 0);
    for (size_t i = 0; i < 5; i++) {
        assert_ranks(&w->agents[i], expected[i]);
    }
    close_world(w);
}

static void test_agent_exchange_counts_roles_apart_in_generation_1(void **state)
{
    (void)state;
    check_mixed(MU_EXCHANGE_1);
}

static void test_agent_exchange_counts_roles_apart_in_generation_2(void **state)
{
    (void)state;
    check_mixed(MU_EXCHANGE_2);
}

static void test_agent_exchange_of_generation_2_costs_a_few_operations_each(void **state)
{
    struct world *w = open_world(5, MU_EXCHANGE_2);

    (void)state;
    call(w, start_all);
    run_ms(w, 100);
    assert_ended(w, 0);
    assert_int_equal(w->agents[0].spy.count, 3);
    for (size_t i = 1; i < 5; i++) {
        assert_int_equal(w->agents[i].spy.count, 2);
    }
    close_world(w);
}

static void test_agent_exchange_of_generation_1_says_pytorchs_words(void **state)
{
    struct world *w = open_world(2, MU_EXCHANGE_1);

    (void)state;
    call(w, start_all);
    run_ms(w, 100);
    assert_ended(w, 0);
    assert_string_equal(w->agents[0].spy.log,
                        "SET torchelastic/role_info0={\"role\": \"default\", \"rank\": 0, "
                        "\"local_world_size\": 2}\n"
                        "MULTI_GET torchelastic/role_info0 torchelastic/role_info1\n"
                        "SET torchelastic/role_info0.FIN=FIN\n"
                        "MULTI_GET torchelastic/role_info0.FIN torchelastic/role_info1.FIN\n"
                        "SET MASTER_ADDR=node0.example\n"
                        "SET MASTER_PORT=43210\n"
                        "MULTI_GET MASTER_ADDR MASTER_PORT\n");
    assert_string_equal(w->agents[1].spy.log,
                        "SET torchelastic/role_info1={\"role\": \"default\", \"rank\": 1, "
                        "\"local_world_size\": 2}\n"
                        "MULTI_GET torchelastic/role_info0 torchelastic/role_info1\n"
                        "SET torchelastic/role_info1.FIN=FIN\n"
                        "MULTI_GET MASTER_ADDR MASTER_PORT\n");
    for (size_t i = 0; i < 2; i++) {
        assert_string_equal(w->agents[i].x.master_addr, "node0.example");
        assert_int_equal(w->agents[i].x.master_port, 43210);
    }
    close_world(w);
}

static void test_agent_exchange_of_identical_agents_needs_no_word(void **state)
{
    struct world *w = open_world(3, MU_EXCHANGE_2);

    (void)state;
    for (size_t i = 0; i < 3; i++) {
        w->agents[i].x.config.identical = true;
        w->agents[i].x.config.workers = 4;
    }
    call(w, start_all);
    run_ms(w, 1);
    assert_ended(w, 0);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(w->agents[i].spy.count, 0);
        assert_ranks(&w->agents[i], (struct mu_ranks){i * 4, 12, i * 4, 12});
    }
    close_world(w);
}

static void test_agent_exchange_of_one_agent_alone_ends(void **state)
{
    (void)state;
    for (enum mu_exchange_generation g = MU_EXCHANGE_1; g <= MU_EXCHANGE_2; g++) {
        struct world *w = open_world(1, g);

        call(w, start_all);
        run_ms(w, 10);
        assert_ended(w, 0);
        assert_ranks(&w->agents[0], (struct mu_ranks){0, 2, 0, 2});
        close_world(w);
    }
}

/* --- what goes wrong -------------------------------------------------------------------------- */

static void test_agent_exchange_that_takes_too_long_names_who_is_missing(void **state)
{
    (void)state;
    for (enum mu_exchange_generation g = MU_EXCHANGE_1; g <= MU_EXCHANGE_2; g++) {
        struct world *w = open_world(2, g);

        call(w, start_first);
        run_ms(w, 4900);
        assert_int_equal(w->agents[0].ended, 0);
        run_ms(w, 200);
        assert_int_equal(w->agents[0].ended, 1);
        assert_int_equal(w->agents[0].status, MUSTER_ETIMEDOUT);
        assert_non_null(
            strstr(w->agents[0].x.errmsg.text, g == MU_EXCHANGE_1 ? "role_info1" : "role_info/1"));
        close_world(w);
    }
}

static void cancel_first(struct world *w)
{
    mu_agent_exchange_cancel(&w->agents[0].x);
    mu_agent_exchange_cancel(&w->agents[0].x);
    assert_int_equal(w->agents[0].ended, 0);
}

static void test_agent_exchange_can_be_canceled_at_any_moment(void **state)
{
    (void)state;
    for (enum mu_exchange_generation g = MU_EXCHANGE_1; g <= MU_EXCHANGE_2; g++) {
        for (uint64_t steps = 0; steps < 12; steps++) {
            struct world *w = open_world(2, g);

            w->agents[0].x.config.timeout_ms = 0;
            call(w, start_first);
            for (uint64_t i = 0; i < steps; i++) {
                (void)mu_sim_step(w->sim);
            }
            assert_int_equal(w->agents[0].ended, 0); /* the other one has not come */
            call(w, cancel_first);
            run_ms(w, 10);
            assert_int_equal(w->agents[0].ended, 1);
            assert_int_equal(w->agents[0].status, MUSTER_ECANCELED);
            mu_agent_exchange_cancel(&w->agents[0].x); /* harmless now */
            close_world(w);
        }
    }
}

/* A peer that says what it likes, through the store. */
struct liar {
    struct mu_store_op op;
    struct mu_span key;
    struct mu_span value;
};

static void ignore_op(struct mu_store_op *op)
{
    assert_int_equal(op->status, 0);
}

static void lie(struct world *w, struct liar *l, const char *key, const char *value)
{
    l->key = mu_span_str(key);
    l->value = mu_span_str(value);
    l->op = (struct mu_store_op){.request = {.verb = MU_STORE_SET,
                                             .keys = &l->key,
                                             .key_count = 1,
                                             .values = &l->value,
                                             .value_count = 1},
                                 .done = ignore_op};
    mu_store_submit(w->store, &l->op);
}

static struct liar liars[2];

static void lie_about_role(struct world *w)
{
    lie(w, &liars[0], "torchelastic/role_info/1", "{\"role\": \"x\", \"rank\": 0}");
}

static void lie_about_ranks(struct world *w)
{
    /* Room for one worker only, at the end of the world. */
    lie(w, &liars[0], "torchelastic/assigned_ranks/1", "[3, 4, 0, 4]");
}

static void lie_about_port(struct world *w)
{
    lie(w, &liars[0], "torchelastic/role_info0",
        "{\"role\": \"default\", \"rank\": 0, \"local_world_size\": 1}");
    lie(w, &liars[1], "MASTER_PORT", "70000");
}

static struct liar more_lies;

static void lie_about_address(struct world *w)
{
    lie(w, &more_lies, "MASTER_ADDR", "a");
}

static void start_second(struct world *w)
{
    mu_agent_exchange_start(&w->agents[1].x);
}

static void test_agent_exchange_refuses_what_peers_make_up(void **state)
{
    struct world *w = open_world(2, MU_EXCHANGE_2);

    (void)state;
    call(w, lie_about_role);
    call(w, start_first);
    run_ms(w, 10);
    assert_int_equal(w->agents[0].status, MUSTER_EPROTO);
    assert_non_null(strstr(w->agents[0].x.errmsg.text, "agent 1 describes itself"));
    close_world(w);

    w = open_world(2, MU_EXCHANGE_2);
    call(w, lie_about_ranks);
    call(w, start_second);
    run_ms(w, 10);
    assert_int_equal(w->agents[1].status, MUSTER_EPROTO);
    assert_non_null(strstr(w->agents[1].x.errmsg.text, "ranks from 3 of 4 to 2 workers"));
    close_world(w);

    w = open_world(2, MU_EXCHANGE_1);
    call(w, lie_about_port);
    call(w, lie_about_address);
    call(w, start_second);
    run_ms(w, 10);
    assert_int_equal(w->agents[1].status, MUSTER_EPROTO);
    close_world(w);
}

static void speak_as_1_13(struct world *w)
{
    lie(w, &liars[0], "torchelastic/role_info2",
        "{\"role\": \"default\", \"rank\": 2, \"local_world_size\": 1}");
}

static void test_agent_exchange_says_that_another_is_pytorch_1_13(void **state)
{
    struct world *w = open_world(3, MU_EXCHANGE_2);

    (void)state;
    call(w, speak_as_1_13);
    call(w, start_first);
    call(w, start_second);
    run_ms(w, 4500); /* it looks at one of the others every two seconds */
    for (int i = 0; i < 2; i++) {
        assert_int_equal(w->agents[i].status, MUSTER_EPROTO);
        assert_non_null(strstr(w->agents[i].x.errmsg.text, "agent 2 is PyTorch 1.13's"));
        assert_non_null(strstr(w->agents[i].x.errmsg.text, "--rdzv-conf dialect=1.13"));
    }
    close_world(w);
}

static void start_third(struct world *w)
{
    mu_agent_exchange_start(&w->agents[2].x);
}

static void test_agent_exchange_waits_on_for_an_agent_that_is_late(void **state)
{
    struct world *w = open_world(3, MU_EXCHANGE_2);

    (void)state;
    call(w, start_first);
    call(w, start_second);
    run_ms(w, 4500);
    call(w, start_third);
    run_ms(w, 100);
    assert_ended(w, 0);
    close_world(w);
}

static void test_agent_exchange_refuses_a_rank_beyond_the_world(void **state)
{
    struct world *w = open_world(1, MU_EXCHANGE_2);

    (void)state;
    w->agents[0].x.config.rank = 1;
    call(w, start_all);
    run_ms(w, 10);
    assert_ended(w, MUSTER_EINVAL);
    close_world(w);
}

static void test_agent_exchange_without_memory_fails_and_leaves_nothing(void **state)
{
    (void)state;
    for (enum mu_exchange_generation g = MU_EXCHANGE_1; g <= MU_EXCHANGE_2; g++) {
        bool fired = true;

        for (long nth = 0; fired; nth++) {
            struct world *w = open_world(1, g);

            failheap_arm(nth);
            call(w, start_first);
            run_ms(w, 100);
            fired = failheap_fired();
            failheap_disarm();
            assert_int_equal(w->agents[0].ended, 1);
            assert_int_equal(w->agents[0].status, fired ? MUSTER_ENOMEM : 0);
            close_world(w);
            assert_true(nth < 1000);
        }
    }
}

/* --- the barrier ------------------------------------------------------------------------------ */

static void enter_all_but_last(struct world *w)
{
    for (size_t i = 0; i + 1 < w->agent_count; i++) {
        mu_agent_barrier_start(&w->agents[i].x);
    }
}

static void enter_last(struct world *w)
{
    mu_agent_barrier_start(&w->agents[w->agent_count - 1].x);
}

static void test_agent_barrier_holds_all_until_the_last_has_come(void **state)
{
    (void)state;
    for (enum mu_exchange_generation g = MU_EXCHANGE_1; g <= MU_EXCHANGE_2; g++) {
        struct world *w = open_world(4, g);

        call(w, enter_all_but_last);
        run_ms(w, 4000);
        for (size_t i = 0; i < 3; i++) {
            assert_int_equal(w->agents[i].ended, 0);
        }
        call(w, enter_last);
        run_ms(w, 100);
        assert_ended(w, 0);
        close_world(w);
    }
}

static void test_agent_barrier_of_generation_1_says_pytorchs_words(void **state)
{
    struct world *w = open_world(2, MU_EXCHANGE_1);

    (void)state;
    call(w, enter_all_but_last);
    call(w, enter_last);
    run_ms(w, 100);
    assert_ended(w, 0);
    assert_string_equal(
        w->agents[0].spy.log,
        "SET torchelastic/agent/terminal_state0=0\n"
        "MULTI_GET torchelastic/agent/terminal_state0 torchelastic/agent/terminal_state1\n"
        "SET torchelastic/agent/terminal_state0.FIN=FIN\n"
        "MULTI_GET torchelastic/agent/terminal_state0.FIN "
        "torchelastic/agent/terminal_state1.FIN\n");
    close_world(w);
}

static void test_agent_barrier_ends_when_its_time_is_up(void **state)
{
    struct world *w = open_world(2, MU_EXCHANGE_2);

    (void)state;
    call(w, enter_all_but_last);
    run_ms(w, 5100);
    assert_int_equal(w->agents[0].ended, 1);
    assert_int_equal(w->agents[0].status, MUSTER_ETIMEDOUT);
    close_world(w);
}

/* --- an agent of PyTorch ---------------------------------------------------------------------- */

#define LINES_MAX 32

/* One agent of the vector: its operations, one after the other. */
struct replay {
    struct world *w;
    char lines[LINES_MAX][256];
    size_t count;
    size_t at;
    struct mu_store_op op;
    struct mu_span keys[4];
    struct mu_span value;
    char last[128]; /* what it was given last */
};

static struct replay replay;

/* Reads the lines of one agent from the part before or behind "end". */
static void load_replay(struct replay *r, char agent, bool end)
{
    FILE *f = fopen(MU_VECTOR_DIR "/agents-2.11.txt", "r");
    bool behind = false;
    char line[256];

    assert_non_null(f);
    memset(r, 0, sizeof(*r));
    while (fgets(line, sizeof(line), f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strcmp(line, "end") == 0) {
            behind = true;
        } else if (line[0] == agent && behind == end) {
            memcpy(r->lines[r->count++], line + 2, sizeof(line) - 2);
            assert_true(r->count < LINES_MAX);
        }
    }
    (void)fclose(f);
    assert_true(r->count > 1);
}

static void say_next(struct replay *r);

static void on_said(struct mu_store_op *op)
{
    struct replay *r = MU_CONTAINER_OF(op, struct replay, op);

    assert_int_equal(op->status, 0);
    if (op->reply.value_count != 0) {
        struct mu_span v = op->reply.values[op->reply.value_count - 1];

        (void)snprintf(r->last, sizeof(r->last), "%.*s", (int)v.len, (const char *)v.data);
    }
    r->at++;
    say_next(r);
}

static void say_next(struct replay *r)
{
    char verb[16];
    char *rest;
    struct mu_store_request *q = &r->op.request;

    if (r->at == r->count) {
        return;
    }
    r->op = (struct mu_store_op){.timeout_ms = 5000, .done = on_said};
    assert_int_equal(sscanf(r->lines[r->at], "%15s", verb), 1);
    rest = r->lines[r->at] + strlen(verb) + 1;
    q->verb = strcmp(verb, "SET") == 0 || strcmp(verb, "MULTI_SET") == 0 ? MU_STORE_SET
              : strcmp(verb, "GET") == 0                                 ? MU_STORE_GET
              : strcmp(verb, "MULTI_GET") == 0                           ? MU_STORE_MULTI_GET
              : strcmp(verb, "WAIT") == 0                                ? MU_STORE_WAIT
                                                                         : MU_STORE_ADD;
    q->number = 1;
    q->keys = r->keys;
    for (; *rest != '\0' && q->key_count < 4; q->key_count++) {
        size_t len = strcspn(rest, " ");

        r->keys[q->key_count] = mu_span(rest, len);
        rest += len + (rest[len] == ' ');
        if (q->verb == MU_STORE_SET || q->verb == MU_STORE_ADD) {
            q->key_count++;
            break;
        }
    }
    if (q->verb == MU_STORE_SET) {
        r->value = mu_span_str(rest);
        q->values = &r->value;
        q->value_count = 1;
    }
    mu_store_submit(r->w->store, &r->op);
}

static void start_replay(struct world *w)
{
    replay.w = w;
    say_next(&replay);
}

static void enter_second(struct world *w)
{
    mu_agent_barrier_start(&w->agents[1].x);
}

static void enter_first(struct world *w)
{
    mu_agent_barrier_start(&w->agents[0].x);
}

static void test_agent_exchange_as_agent_1_with_pytorch_as_agent_0(void **state)
{
    struct world *w = open_world(2, MU_EXCHANGE_2);

    (void)state;
    load_replay(&replay, '0', false);
    call(w, start_replay);
    run_ms(w, 100);
    call(w, start_second);
    run_ms(w, 100);
    assert_int_equal(replay.at, replay.count);
    assert_int_equal(w->agents[1].status, 0);
    assert_ranks(&w->agents[1], (struct mu_ranks){2, 4, 2, 4});

    w->agents[1].ended = 0;
    load_replay(&replay, '0', true);
    call(w, start_replay);
    run_ms(w, 100);
    assert_true(replay.at < replay.count); /* it waits for us */
    call(w, enter_second);
    run_ms(w, 100);
    assert_int_equal(replay.at, replay.count);
    assert_int_equal(w->agents[1].ended, 1);
    assert_int_equal(w->agents[1].status, 0);
    close_world(w);
}

static void test_agent_exchange_as_agent_0_with_pytorch_as_agent_1(void **state)
{
    struct world *w = open_world(2, MU_EXCHANGE_2);

    (void)state;
    load_replay(&replay, '1', false);
    call(w, start_first);
    run_ms(w, 100);
    call(w, start_replay);
    run_ms(w, 100);
    assert_int_equal(replay.at, replay.count);
    assert_string_equal(replay.last, "[2, 4, 2, 4]"); /* what 2.11's own agent 0 had told it */
    assert_int_equal(w->agents[0].status, 0);
    assert_ranks(&w->agents[0], (struct mu_ranks){0, 4, 0, 4});

    w->agents[0].ended = 0;
    load_replay(&replay, '1', true);
    call(w, enter_first);
    run_ms(w, 100);
    assert_int_equal(w->agents[0].ended, 0);
    call(w, start_replay);
    run_ms(w, 100);
    assert_int_equal(replay.at, replay.count);
    assert_int_equal(w->agents[0].ended, 1);
    assert_int_equal(w->agents[0].status, 0);
    close_world(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agent_exchange_counts_roles_apart_in_generation_1),
        cmocka_unit_test(test_agent_exchange_counts_roles_apart_in_generation_2),
        cmocka_unit_test(test_agent_exchange_of_generation_2_costs_a_few_operations_each),
        cmocka_unit_test(test_agent_exchange_of_generation_1_says_pytorchs_words),
        cmocka_unit_test(test_agent_exchange_of_identical_agents_needs_no_word),
        cmocka_unit_test(test_agent_exchange_says_that_another_is_pytorch_1_13),
        cmocka_unit_test(test_agent_exchange_waits_on_for_an_agent_that_is_late),
        cmocka_unit_test(test_agent_exchange_of_one_agent_alone_ends),
        cmocka_unit_test(test_agent_exchange_that_takes_too_long_names_who_is_missing),
        cmocka_unit_test(test_agent_exchange_can_be_canceled_at_any_moment),
        cmocka_unit_test(test_agent_exchange_refuses_what_peers_make_up),
        cmocka_unit_test(test_agent_exchange_refuses_a_rank_beyond_the_world),
        cmocka_unit_test(test_agent_exchange_without_memory_fails_and_leaves_nothing),
        cmocka_unit_test(test_agent_barrier_holds_all_until_the_last_has_come),
        cmocka_unit_test(test_agent_barrier_of_generation_1_says_pytorchs_words),
        cmocka_unit_test(test_agent_barrier_ends_when_its_time_is_up),
        cmocka_unit_test(test_agent_exchange_as_agent_1_with_pytorch_as_agent_0),
        cmocka_unit_test(test_agent_exchange_as_agent_0_with_pytorch_as_agent_1),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

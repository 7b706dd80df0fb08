/*
 * Goal: the c10d backend keeps the handler's contract on a real store: who meets whom, what ends a
 * round, what happens to a key that is gone or holds what nobody should have written. Everything on
 * one loop: the server, a client that meddles, and the nodes.
 */
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>

#include "unit.h"

#include "service/rdzv/c10d.h"
#include "service/store/store.h"
#include "service/server/server.h"
#include "transport/uv_env.h"

#define RUN "run"
#define KEY "torch.rendezvous." RUN

static struct mu_uv_env *uv;
static struct mu_env *env;
static struct mu_store_server *server;
static struct mu_addr where;
static char endpoint[64];
static struct mu_store *store;

struct node {
    struct mu_rdzv_handler *handler;
    int assigned, ended, left, closed, failed, close_failed, sure, freed;
    uint64_t round;
    uint32_t rank, world, waiting;
    size_t members;
    enum mu_rdzv_end_reason reason;
    char who[128];
    char url[256];
    int status;
    char text[MU_ERRMSG_CAP];
    bool rejoins;
    bool in_call;
};

/* --- events ----------------------------------------------------------------------------------- */

static struct node *called(void *context)
{
    struct node *n = context;

    assert_false(n->in_call);
    return n;
}

static void on_assigned(void *context, const struct mu_rdzv_assignment *a)
{
    struct node *n = called(context);

    n->assigned++;
    n->round = a->round;
    n->rank = a->rank;
    n->world = a->world;
    n->members = a->member_count;
    (void)snprintf(n->url, sizeof(n->url), "%s", a->store);
    if (a->member_count != 0) {
        assert_string_equal(a->members[a->rank].name, n->handler->node);
        assert_string_equal(a->members[a->rank].addr, n->handler->addr);
    }
}

static void on_ended(void *context, const struct mu_rdzv_ending *e)
{
    struct node *n = called(context);

    n->ended++;
    n->reason = e->reason;
    (void)snprintf(n->who, sizeof(n->who), "%s", e->who == NULL ? "" : e->who);
    assert_non_null(e->text);
    if (n->rejoins) {
        mu_rdzv_join(n->handler);
    }
}

static void on_waiting(void *context, uint32_t count)
{
    called(context)->waiting = count;
}

static void on_closed(void *context)
{
    called(context)->closed++;
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

static void on_close_failed(void *context, int status, const char *text)
{
    (void)status;
    (void)text;
    called(context)->close_failed++;
}

static void on_sure(void *context)
{
    called(context)->sure++;
}

static void on_freed(void *context)
{
    called(context)->freed++;
}

/* --- the stage -------------------------------------------------------------------------------- */

static int set_up(void **state)
{
    struct mu_store_tcp_config config = mu_store_tcp_config_defaults();
    struct mu_errmsg why = {{0}};

    (void)state;
    if (mu_uv_env_new(&uv) != 0) {
        return -1;
    }
    env = mu_uv_env_env(uv);
    where = (struct mu_addr){.kind = MU_ADDR_TCP, .host = "127.0.0.1"};
    if (mu_rdzv_host(env, MU_RDZV_HOST_YES, false, &where, &server, &why) != 1) {
        return -1;
    }
    (void)snprintf(endpoint, sizeof(endpoint), "127.0.0.1:%u", where.port);
    config.addr = where;
    config.protocol = MU_STORE_TCP_MUSTER;
    return mu_store_tcp_new(env, &config, &store);
}

static void count_call(void *context)
{
    ++*(int *)context;
}

static int tear_down(void **state)
{
    int closed = 0;

    (void)state;
    mu_store_close(store, count_call, &closed);
    while (closed == 0) {
        mu_uv_env_turn(uv);
    }
    mu_rdzv_unhost(server, 0, count_call, &closed);
    while (closed == 1) {
        mu_uv_env_turn(uv);
    }
    mu_uv_env_free(uv);
    return 0;
}

static void open_node(struct node *n, const char *nnodes, const char *config)
{
    const struct mu_rdzv_events events = {
        .assigned = on_assigned,
        .ended = on_ended,
        .waiting = on_waiting,
        .closed = on_closed,
        .failed = on_failed,
        .left = on_left,
        .close_failed = on_close_failed,
        .sure = on_sure,
        .freed = on_freed,
        .context = n,
    };
    char all[256];
    struct mu_rdzv_params params = {
        .backend = "c10d",
        .endpoint = endpoint,
        .run_id = RUN,
        .nodes_min = (uint32_t)strtoul(nnodes, NULL, 10),
        .local_addr = "here",
        .config = all,
    };
    struct mu_errmsg msg = {{0}};

    (void)snprintf(all, sizeof(all), "is_host=false%s%s", config[0] == '\0' ? "" : ",", config);
    params.nodes_max = strchr(nnodes, ':') == NULL
                           ? params.nodes_min
                           : (uint32_t)strtoul(strchr(nnodes, ':') + 1, NULL, 10);
    *n = (struct node){.in_call = true};
    if (mu_rdzv_open(env, &params, &events, &n->handler, &msg) != 0) {
        fail_msg("%s", msg.text);
    }
    n->in_call = false;
}

static void join(struct node *n)
{
    n->in_call = true;
    mu_rdzv_join(n->handler);
    n->in_call = false;
}

static void free_node(struct node *n)
{
    n->in_call = true;
    mu_rdzv_free(n->handler);
    n->in_call = false;
    while (n->freed == 0) {
        mu_uv_env_turn(uv);
    }
    assert_int_equal(n->freed, 1);
}

static void await(const int *count, int wanted)
{
    while (*count < wanted) {
        mu_uv_env_turn(uv);
    }
    assert_int_equal(*count, wanted);
}

struct meddling {
    struct mu_store_op op;
    bool done;
};

static void on_meddled(struct mu_store_op *op)
{
    MU_CONTAINER_OF(op, struct meddling, op)->done = true;
}

/* Does something to the register behind everybody's back. */
static void meddle_with(struct mu_span key, enum mu_store_verb verb, struct mu_span value)
{
    struct meddling m = {.op = {.request = {.verb = verb,
                                            .keys = &key,
                                            .key_count = 1,
                                            .values = &value,
                                            .value_count = verb == MU_STORE_SET ? 1 : 0},
                                .timeout_ms = 10000,
                                .done = on_meddled}};

    mu_store_submit(store, &m.op);
    while (!m.done) {
        mu_uv_env_turn(uv);
    }
    assert_int_equal(m.op.status, 0);
}

static void meddle(enum mu_store_verb verb, struct mu_span value)
{
    meddle_with(MU_SPAN_LIT(KEY), verb, value);
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_c10d_nodes_meet_and_leave(void **state)
{
    struct node a;
    struct node b;

    (void)state;
    open_node(&a, "2", "pid=2,local_id=0");
    open_node(&b, "2", "pid=1,local_id=7");
    assert_string_equal(b.handler->node, "here_1_7");
    join(&a);
    join(&b);
    await(&a.assigned, 1);
    await(&b.assigned, 1);
    assert_int_equal(a.rank, 1);
    assert_int_equal(b.rank, 0);
    assert_int_equal(a.world, 2);
    assert_int_equal(a.members, 2);
    assert_non_null(strstr(a.url, "?prefix=" KEY ".0"));
    mu_rdzv_leave(b.handler);
    await(&b.left, 1);
    await(&a.ended, 1);
    assert_int_equal(a.reason, MU_RDZV_ENDED_LOST);
    assert_string_equal(a.who, "here_1_7");
    free_node(&b);
    free_node(&a);
}

static void test_c10d_join_within_a_round_ends_it_for_all(void **state)
{
    struct node a;
    struct node b;

    (void)state;
    open_node(&a, "2", "");
    open_node(&b, "2", "");
    b.rejoins = true;
    join(&a);
    join(&b);
    await(&a.assigned, 1);
    await(&b.assigned, 1);
    join(&a); /* its workers failed */
    await(&b.ended, 1);
    await(&a.assigned, 2);
    await(&b.assigned, 2);
    assert_int_equal(a.round, 1);
    assert_int_equal(b.round, 1);
    assert_int_equal(a.ended, 0);
    free_node(&a);
    free_node(&b);
}

/* A host that was started anew begins with an empty state, which may be known for a moment before
 * the round is over by it. */
static void test_c10d_state_without_the_members_does_not_show_that_they_are_there(void **state)
{
    const struct mu_rdzv_update nothing = {0};
    struct mu_rdzv_state empty;
    struct mu_rdzv_state known;
    struct mu_rdzv_c10d *c;
    struct node a;
    struct node b;

    (void)state;
    open_node(&a, "2", "");
    open_node(&b, "2", "");
    join(&a);
    join(&b);
    await(&a.assigned, 1);
    await(&b.assigned, 1);
    mu_rdzv_doubt(a.handler);
    c = MU_CONTAINER_OF(a.handler, struct mu_rdzv_c10d, base);
    while (c->beats == NULL) {
        mu_uv_env_turn(uv);
    }
    mu_rdzv_state_init(&empty);
    known = c->machine.state;
    c->machine.state = empty;
    mu_rdzv_c10d_tell(c, &nothing);
    c->machine.state = known;
    assert_int_equal(a.sure, 0);

    for (uint32_t i = 0; i < a.world; i++) {
        c->beats[i].ns -= 1;
    }
    mu_rdzv_c10d_tell(c, &nothing);
    assert_int_equal(a.sure, 1);
    free_node(&a);
    free_node(&b);
}

static void test_c10d_late_node_is_let_in_after_the_delay(void **state)
{
    struct node a;
    struct node b;

    (void)state;
    open_node(&a, "1:2", "last_call_timeout=0.05,upscale_delay=0.05");
    a.rejoins = true;
    join(&a);
    await(&a.assigned, 1);
    open_node(&b, "1:2", "last_call_timeout=0.05");
    join(&b);
    await(&a.ended, 1);
    assert_int_equal(a.waiting, 1);
    assert_int_equal(a.reason, MU_RDZV_ENDED_UPSCALE);
    await(&a.assigned, 2);
    await(&b.assigned, 1);
    assert_int_equal(b.world, 2);
    free_node(&a);
    free_node(&b);
}

static void test_c10d_close_is_told_once_to_all_and_fails_joins(void **state)
{
    struct node a;
    struct node b;

    (void)state;
    open_node(&a, "1", "");
    join(&a);
    await(&a.assigned, 1);
    open_node(&b, "1", "");
    mu_rdzv_close_run(b.handler);
    await(&b.closed, 1);
    await(&a.closed, 1);
    join(&b);
    await(&b.failed, 1);
    assert_int_equal(b.status, MUSTER_ERDZV_CLOSED);
    mu_rdzv_close_run(b.handler);
    free_node(&b);
    assert_int_equal(b.closed, 1);
    free_node(&a);
}

static void test_c10d_key_that_is_gone_is_made_again(void **state)
{
    struct node a;

    (void)state;
    open_node(&a, "1", "keep_alive_interval=0.2");
    join(&a);
    await(&a.assigned, 1);
    meddle(MU_STORE_DELETE, (struct mu_span){0});
    await(&a.ended, 1);
    assert_int_equal(a.reason, MU_RDZV_ENDED_DROPPED);
    join(&a);
    await(&a.assigned, 2);
    assert_true(a.round > 0);
    free_node(&a);
}

/* Somebody has died while it was its turn. */
static void test_c10d_turn_that_was_lost_is_found_again(void **state)
{
    struct node nodes[8];
    bool seen[8] = {false};

    (void)state;
    open_node(&nodes[0], "8", "");
    join(&nodes[0]);
    meddle_with(MU_SPAN_LIT(KEY ".turn"), MU_STORE_QUEUE_POP, (struct mu_span){0});
    for (int i = 1; i < 8; i++) {
        open_node(&nodes[i], "8", "");
        join(&nodes[i]);
    }
    for (int i = 0; i < 8; i++) {
        await(&nodes[i].assigned, 1);
        assert_int_equal(nodes[i].world, 8);
        assert_false(seen[nodes[i].rank]);
        seen[nodes[i].rank] = true;
    }
    for (int i = 0; i < 8; i++) {
        free_node(&nodes[i]);
    }
}

/* Garbage that is base64, and garbage that is not. */
static struct mu_span make_garbage(char *text, size_t i)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t random = (uint32_t)i * 2654435761u + 1;
    size_t len = 4 + random % 60 * 4;

    for (size_t k = 0; k < len; k++) {
        random = random * 1664525u + 1013904223u;
        text[k] = letters[random >> 26];
    }
    if (i % 3 == 0) {
        text[len / 2] = '!';
    } else if (i % 3 == 1) {
        memcpy(text, "gASV", 4); /* as a pickle begins */
    }
    return mu_span(text, len);
}

static void test_c10d_thousand_garbage_states_are_errors_of_kind_state(void **state)
{
    struct node a;
    struct mallinfo2 before;
    struct mallinfo2 after;
    char text[300];

    (void)state;
    open_node(&a, "1", "");
    for (int i = 0; i < 1000; i++) {
        if (i == 10) {
            before = mallinfo2();
        }
        meddle(MU_STORE_SET, make_garbage(text, (size_t)i));
        join(&a);
        await(&a.failed, i + 1);
        if (a.status != MUSTER_ERDZV_STATE) {
            fail_msg("state %d: %d: %s", i, a.status, a.text);
        }
    }
    after = mallinfo2();
    if (after.uordblks > before.uordblks + (1 << 20)) {
        fail_msg("%zu bytes have become %zu", before.uordblks, after.uordblks);
    }
    assert_int_equal(a.assigned, 0);
    meddle(MU_STORE_DELETE, (struct mu_span){0});
    join(&a);
    await(&a.assigned, 1);
    free_node(&a);
}

static void test_c10d_host_that_is_not_there_fails_the_join_in_time(void **state)
{
    struct node a;
    char kept[sizeof(endpoint)];

    (void)state;
    memcpy(kept, endpoint, sizeof(kept));
    (void)snprintf(endpoint, sizeof(endpoint), "127.0.0.1:1");
    open_node(&a, "1", "join_timeout=0.2");
    memcpy(endpoint, kept, sizeof(kept));
    for (int i = 1; i <= 2; i++) {
        join(&a);
        await(&a.failed, i);
        assert_int_equal(a.status, MUSTER_ERDZV_CONN);
        assert_non_null(strstr(a.text, "127.0.0.1:1"));
    }
    free_node(&a);
}

static void on_tick(struct mu_timer *timer)
{
    (void)timer;
}

/* A turn that waits for nothing for long. */
static void turn_soon(void)
{
    struct mu_timer timer;

    mu_timer_init(&timer, on_tick);
    mu_env_timer_arm(env, &timer, mu_mono_add_ms(mu_env_now(env).mono, 1));
    mu_uv_env_turn(uv);
    mu_env_timer_arm(env, &timer, MU_MONO_NEVER);
}

static void test_c10d_node_can_be_freed_at_any_moment(void **state)
{
    (void)state;
    for (int turns = 0; turns < 40; turns++) {
        struct node a;
        struct node b;

        open_node(&a, "2", "");
        open_node(&b, "2", "");
        join(&a);
        join(&b);
        mu_rdzv_close_run(b.handler);
        for (int i = 0; i < turns; i++) {
            turn_soon();
        }
        free_node(&a);
        free_node(&b);
        meddle(MU_STORE_DELETE, (struct mu_span){0});
    }
}

static void test_c10d_options_are_refused_by_name(void **state)
{
    static const struct {
        const char *config;
        const char *word;
    } cases[] = {
        {"join_timeout=0", "join_timeout"},
        {"dialect=3", "dialect"},
        {"store_type=hash", "store_type"},
        {"protocol=etcd", "protocol"},
        {"keep_alive_max_attempt=0", "keep_alive_max_attempt"},
        {"is_host=perhaps", "is_host"},
        {"beat=1", "it is for: muster"},
        {"read_timout=9", "did you mean \"read_timeout\""},
        {"upscale_delay=-1", "upscale_delay"},
    };
    const struct mu_rdzv_events events = {0};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_rdzv_params params = {.backend = "c10d",
                                        .endpoint = endpoint,
                                        .run_id = RUN,
                                        .nodes_min = 1,
                                        .nodes_max = 1,
                                        .config = cases[i].config};
        struct mu_rdzv_handler *h = NULL;
        struct mu_errmsg msg = {{0}};

        assert_int_equal(mu_rdzv_open(env, &params, &events, &h, &msg), MUSTER_EINVAL);
        if (strstr(msg.text, cases[i].word) == NULL) {
            fail_msg("%s: %s", cases[i].config, msg.text);
        }
    }
}

#define STAGED(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        STAGED(test_c10d_nodes_meet_and_leave),
        STAGED(test_c10d_join_within_a_round_ends_it_for_all),
        STAGED(test_c10d_state_without_the_members_does_not_show_that_they_are_there),
        STAGED(test_c10d_late_node_is_let_in_after_the_delay),
        STAGED(test_c10d_close_is_told_once_to_all_and_fails_joins),
        STAGED(test_c10d_key_that_is_gone_is_made_again),
        STAGED(test_c10d_turn_that_was_lost_is_found_again),
        STAGED(test_c10d_thousand_garbage_states_are_errors_of_kind_state),
        STAGED(test_c10d_host_that_is_not_there_fails_the_join_in_time),
        STAGED(test_c10d_node_can_be_freed_at_any_moment),
        STAGED(test_c10d_options_are_refused_by_name),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

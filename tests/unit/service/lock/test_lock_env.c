/*
 * The locked environment among hosts that have addresses, in the simulator: who reaches a listener,
 * how much it is trusted, and what who does not get in is told.
 */
#include "service/lock/env.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include <muster/log.h>

#include "lock_rig.h"

/* Of the native wire, and a bad one: who is handed it sees so. */
#define GREETING "MUSTER\r\nand a frame behind it that is no hello"

static void test_lock_env_lets_in_who_has_the_token(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, STRANGER, MY_TOKEN, MY_TOKEN);
    say(&w, "hello");
    assert_span_text(mu_buf_span(&w.client.got), "hello");
    assert_int_equal(w.server.trust, MU_TRUST_OPEN);
    world_fini(&w);
}

static void test_lock_env_tells_another_token_why(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, STRANGER, MY_TOKEN, NOT_IT);
    say(&w, "hello");
    assert_int_equal(w.client.status, MUSTER_ETLS);
    assert_non_null(strstr(w.client.why.text, "it has a different token"));
    assert_int_equal(w.server.got.len, 0);
    world_fini(&w);
}

static void test_lock_env_shuts_out_who_shows_nothing(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, STRANGER, MY_TOKEN, NULL);
    say(&w, "\x0e of PyTorch");
    assert_false(w.client.live);
    assert_int_equal(w.client.got.len, 0);
    /* The listener has not even heard of it. */
    assert_int_equal(w.server.accepted, 0);
    world_fini(&w);
}

static void test_lock_env_passes_up_a_native_greeting_to_be_refused(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, STRANGER, MY_TOKEN, NULL);
    say(&w, GREETING);
    assert_int_equal(w.server.trust, MU_TRUST_PLAIN);
    assert_span_text(mu_buf_span(&w.client.got), GREETING);
    world_fini(&w);
}

static void test_lock_env_takes_plain_bytes_from_a_range(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, ALLOWED, MY_TOKEN, NULL);
    say(&w, "\x0e of PyTorch");
    assert_span_text(mu_buf_span(&w.client.got), "\x0e of PyTorch");
    assert_int_equal(w.server.trust, MU_TRUST_PLAIN);
    world_fini(&w);
}

static void test_lock_env_says_that_a_server_answers_no_tls(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, STRANGER, NULL, MY_TOKEN);
    say(&w, "hello");
    assert_int_equal(w.client.status, MUSTER_ENOTLS);
    assert_int_equal(w.server.accepted, 0);
    world_fini(&w);
}

static void test_lock_env_drops_who_says_nothing(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, STRANGER, MY_TOKEN, NULL);
    w.client.conn = (struct mu_conn){.on = &events};
    w.client.live = true;
    assert_int_equal(
        mu_env_dial(w.client.env, &w.client.conn, &(struct mu_addr[]){server_addr()}[0]), 0);
    assert_true(mu_sim_run_until(w.sim, PATIENCE, is_settled, &w.client));
    mu_sim_run_for(w.sim, (MU_LOCK_SPEAK_MS - 1000) * MU_NS_PER_MS);
    assert_true(w.client.live);
    mu_sim_run_for(w.sim, 2000 * MU_NS_PER_MS);
    assert_false(w.client.live);
    assert_int_equal(w.server.accepted, 0);
    world_fini(&w);
}

/* As the second connection of a store of PyTorch 1.13. */
static void test_lock_env_lets_loopback_say_nothing(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, "127.0.0.1", MY_TOKEN, NULL);
    w.client.conn = (struct mu_conn){.on = &events};
    w.client.live = true;
    assert_int_equal(
        mu_env_dial(w.client.env, &w.client.conn, &(struct mu_addr[]){server_addr()}[0]), 0);
    assert_true(mu_sim_run_until(w.sim, PATIENCE, is_settled, &w.client));
    mu_sim_run_for(w.sim, 10 * MU_LOCK_SPEAK_MS * MU_NS_PER_MS);
    assert_true(w.client.live);
    assert_int_equal(w.server.accepted, 1);
    world_fini(&w);
}

static void test_lock_env_ends_with_silent_guests(void **state)
{
    struct mu_addr addr = server_addr();
    struct world w;

    (void)state;
    world_init(&w, STRANGER, MY_TOKEN, NULL);
    w.client.conn = (struct mu_conn){.on = &events};
    w.client.live = true;
    assert_int_equal(mu_env_dial(w.client.env, &w.client.conn, &addr), 0);
    assert_true(mu_sim_run_until(w.sim, PATIENCE, is_settled, &w.client));
    mu_sim_run_for(w.sim, 100 * MU_NS_PER_MS);
    mu_env_unlisten(w.server.env, &w.server.listener);
    /* At once, and not when their time is over. */
    assert_true(mu_sim_run_until(w.sim, MU_NS_PER_S, is_at_rest, &w.server));
    world_fini(&w);
}

static void test_lock_env_refuses_to_listen_in_words(void **state)
{
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};
    struct mu_addr near = {.kind = MU_ADDR_TCP, .port = PORT, .host = "127.0.0.1"};
    struct mu_sim *sim;
    struct node n;

    (void)state;
    sim = mu_sim_new(&(struct mu_sim_config){.seed = 7, .faults = mu_sim_faults_none()});
    node_init(&n, sim, SERVER, NULL, false, NULL);
    assert_int_equal(mu_env_listen(n.env, &n.listener, &addr), MUSTER_ELOCKED);
    assert_non_null(strstr(mu_env_strerror(n.env, MUSTER_ELOCKED), "--token-file"));
    assert_true(mu_sim_run_until(sim, PATIENCE, is_at_rest, &n));
    assert_int_equal(mu_env_listen(n.env, &n.listener, &near), 0);
    n.listening = true;
    /* What is wrong with the address itself comes first. */
    assert_int_equal(
        mu_env_listen(n.env, &(struct mu_listener[]){n.listener}[0], &(struct mu_addr[]){addr}[0]),
        -EADDRINUSE);
    node_fini(&n);
    mu_sim_free(sim);
}

static void test_lock_env_speaks_plain_only_where_it_may(void **state)
{
    struct mu_addr addr = server_addr();
    struct world w;

    (void)state;
    world_init(&w, ALLOWED, MY_TOKEN, MY_TOKEN);
    w.client.conn = (struct mu_conn){.on = &events};
    assert_int_equal(mu_env_dial_plain(w.client.env, &w.client.conn, &addr), MUSTER_ELOCKED);
    assert_non_null(strstr(mu_env_why(w.client.env), "--allow"));
    world_fini(&w);
}

/* --- strangers -------------------------------------------------------------------------------- */

/* Connections of one node that has no credential, which say what they are told to. */
struct knocks {
    struct node *node;
    struct mu_conn conns[8];
    bool open[8];
    bool live[8];
    size_t heard[8];
};

static struct knocks *knocks;

static size_t knock_of(struct mu_conn *conn)
{
    return (size_t)(conn - knocks->conns);
}

static void knock_open(struct mu_conn *conn)
{
    knocks->open[knock_of(conn)] = true;
}

static size_t knock_data(struct mu_conn *conn, struct mu_span in)
{
    if (conn >= knocks->conns && conn < knocks->conns + 8) {
        knocks->heard[knock_of(conn)] += in.len;
    }
    return in.len;
}

static void knock_eof(struct mu_conn *conn)
{
    mu_env_close(knocks->node->env, conn, false);
}

static void knock_closed(struct mu_conn *conn, int status)
{
    (void)status;
    knocks->live[knock_of(conn)] = false;
}

static const struct mu_conn_events knock_events = {.open = knock_open,
                                                   .data = knock_data,
                                                   .eof = knock_eof,
                                                   .writable = on_writable,
                                                   .closed = knock_closed};

static void knock_from(struct knocks *k, struct node *n, size_t count)
{
    struct mu_addr addr = server_addr();

    *k = (struct knocks){.node = n};
    knocks = k;
    for (size_t i = 0; i < count; i++) {
        k->conns[i].on = &knock_events;
        k->live[i] = true;
        assert_int_equal(mu_env_dial(n->env, &k->conns[i], &addr), 0);
        mu_sim_run_for(n->sim, 50 * MU_NS_PER_MS);
        assert_true(k->open[i]);
    }
}

static void knock_say(struct knocks *k, size_t i, struct mu_span text)
{
    size_t taken = 0;

    mu_env_send(k->node->env, &k->conns[i], text, &taken);
    mu_sim_run_for(k->node->sim, 50 * MU_NS_PER_MS);
}

static void knock_end(struct knocks *k)
{
    for (size_t i = 0; i < 8; i++) {
        if (k->live[i]) {
            mu_env_close(k->node->env, &k->conns[i], true);
        }
    }
    mu_sim_run_for(k->node->sim, MU_NS_PER_S);
}

static size_t count_live(const struct knocks *k)
{
    size_t count = 0;

    for (size_t i = 0; i < 8; i++) {
        count += k->live[i] ? 1 : 0;
    }
    return count;
}

/* A hello of somebody with a token, be it the right one. */
static size_t make_hello(const char *token, uint8_t ret[512])
{
    struct mu_tls_config config = {.token = mu_span_str(token)};
    struct mu_tls_context *context;
    struct mu_errmsg why;
    struct mu_tls t;
    size_t len;

    assert_int_equal(mu_tls_context_new(&config, &context, &why), 0);
    assert_int_equal(mu_tls_init(&t, context, "node"), 0);
    len = mu_tls_output(&t).len;
    assert_true(len < 512);
    memcpy(ret, mu_tls_output(&t).data, len);
    mu_tls_fini(&t);
    mu_tls_context_free(context);
    return len;
}

/* Goal: half a hello is not worth more than a few bytes, nor five seconds. */
static void test_lock_env_waits_five_seconds_for_a_hello(void **state)
{
    uint8_t hello[512];
    size_t len = make_hello(MY_TOKEN, hello);
    struct knocks k;
    struct world w;

    (void)state;
    world_init(&w, STRANGER, MY_TOKEN, NULL);
    knock_from(&k, &w.client, 1);
    knock_say(&k, 0, mu_span(hello, 1));
    knock_say(&k, 0, mu_span(hello + 1, len - 2));
    mu_sim_run_for(w.sim, (MU_LOCK_HELLO_MS - 1000) * MU_NS_PER_MS);
    assert_true(k.live[0]);
    mu_sim_run_for(w.sim, 2 * MU_NS_PER_S);
    assert_false(k.live[0]);
    assert_int_equal(w.server.accepted, 0);
    knock_end(&k);
    world_fini(&w);
}

/* Nor is a whole one, which anybody can have recorded: its listener does not hear of it. */
static void test_lock_env_waits_five_seconds_for_the_rest_of_a_handshake(void **state)
{
    uint8_t hello[512];
    size_t len = make_hello(MY_TOKEN, hello);
    struct knocks k;
    struct world w;

    (void)state;
    world_init(&w, STRANGER, MY_TOKEN, NULL);
    knock_from(&k, &w.client, 1);
    knock_say(&k, 0, mu_span(hello, 3));
    knock_say(&k, 0, mu_span(hello + 3, len - 3));
    mu_sim_run_for(w.sim, 4 * MU_NS_PER_S);
    assert_true(k.live[0]);
    mu_sim_run_for(w.sim, 2 * MU_NS_PER_S);
    assert_false(k.live[0]);
    assert_int_equal(w.server.accepted, 0);
    knock_end(&k);
    world_fini(&w);
}

/* Goal: who begins to greet on the native wire, and shows nothing, is a stranger like any other: it
 * is nobody's, and has as long. */
static void test_lock_env_waits_five_seconds_for_a_native_greeting(void **state)
{
    struct knocks k;
    struct world w;

    (void)state;
    world_init(&w, STRANGER, MY_TOKEN, NULL);
    knock_from(&k, &w.client, 2);
    knock_say(&k, 0, MU_SPAN_LIT("M"));
    knock_say(&k, 1, MU_SPAN_LIT("MUSTER\r\n"));
    mu_sim_run_for(w.sim, 4 * MU_NS_PER_S);
    assert_int_equal(count_live(&k), 2);
    mu_sim_run_for(w.sim, 2 * MU_NS_PER_S);
    assert_int_equal(count_live(&k), 0);
    assert_int_equal(w.server.accepted, 0);
    knock_end(&k);
    world_fini(&w);
}

/* Goal: strangers of one address are so many and no more, whatever they have said, and do not keep
 * another out. */
static void test_lock_env_bounds_who_is_nobody(void **state)
{
    static const struct mu_lock_limits limits = {
        .guests = 4, .of_address = 4, .shaking = 3, .shaking_of_address = 2};
    uint8_t hello[512];
    size_t len = make_hello(MY_TOKEN, hello);

    (void)state;
    for (size_t said = 0; said < 3; said++) {
        struct node honest;
        struct knocks k;
        struct world w;

        world_init(&w, STRANGER, MY_TOKEN, NULL);
        node_init(&honest, w.sim, "10.0.0.3", MY_TOKEN, false, NULL);
        mu_lock_env_limit(w.server.lock, &limits);
        knock_from(&k, &w.client, 4);
        for (size_t i = 0; said != 0 && i < 4; i++) {
            knock_say(&k, i, mu_span(hello, said == 1 ? 1 : len));
        }
        assert_int_equal(count_live(&k), 4);
        say_from(&honest, "hello");
        assert_span_text(mu_buf_span(&honest.got), "hello");
        /* Somebody had to go, which one sees when the next one comes. */
        mu_sim_run_for(w.sim, 50 * MU_NS_PER_MS);
        assert_int_equal(count_live(&k), 3);
        knock_end(&k);
        node_fini(&honest);
        world_fini(&w);
    }
}

/* Goal: who waits for another of its address gets its turn when that one is gone, although nobody
 * else comes. */
static void test_lock_env_gives_the_next_its_turn(void **state)
{
    static const struct mu_lock_limits limits = {
        .guests = 8, .of_address = 8, .shaking = 8, .shaking_of_address = 1};
    uint8_t hello[512];
    size_t len = make_hello(MY_TOKEN, hello);
    struct knocks k;
    struct world w;

    (void)state;
    world_init(&w, STRANGER, MY_TOKEN, NULL);
    mu_lock_env_limit(w.server.lock, &limits);
    knock_from(&k, &w.client, 2);
    knock_say(&k, 0, mu_span(hello, len));
    knock_say(&k, 1, mu_span(hello, len));
    assert_true(k.heard[0] != 0);
    assert_int_equal(k.heard[1], 0);
    mu_env_close(w.client.env, &k.conns[0], true);
    mu_sim_run_for(w.sim, 100 * MU_NS_PER_MS);
    assert_true(k.heard[1] != 0);
    knock_end(&k);
    world_fini(&w);
}

static struct mu_conn silent[MU_LOCK_SILENT_MAX + 2];
static size_t silent_live;

static void silent_closed(struct mu_conn *conn, int status)
{
    (void)conn;
    (void)status;
    silent_live--;
}

static const struct mu_conn_events silent_events = {.open = on_writable,
                                                    .data = knock_data,
                                                    .eof = knock_eof,
                                                    .writable = on_writable,
                                                    .closed = silent_closed};

/* Goal: so many may have connected and said nothing, even if no other bound holds; the next is
 * turned away. */
static void test_lock_env_bounds_who_is_silent(void **state)
{
    static const struct mu_lock_limits limits = {
        .guests = 1 << 20, .of_address = 1 << 20, .shaking = 3, .shaking_of_address = 2};
    struct mu_addr addr = server_addr();
    struct knocks k;
    struct world w;

    (void)state;
    world_init(&w, STRANGER, MY_TOKEN, NULL);
    mu_lock_env_limit(w.server.lock, &limits);
    k = (struct knocks){.node = &w.client};
    knocks = &k;
    for (size_t i = 0; i < MU_LOCK_SILENT_MAX + 2; i++) {
        silent[i] = (struct mu_conn){.on = &silent_events};
        assert_int_equal(mu_env_dial(w.client.env, &silent[i], &addr), 0);
        silent_live++;
    }
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    assert_int_equal(silent_live, MU_LOCK_SILENT_MAX);
    mu_sim_run_for(w.sim, 2 * MU_LOCK_SPEAK_MS * MU_NS_PER_MS);
    assert_int_equal(silent_live, 0);
    world_fini(&w);
}

/* Says the greeting of the native wire on each of so many connections. */
static void greet_from(struct node *n, size_t first, size_t count)
{
    struct mu_addr addr = server_addr();
    size_t taken;

    for (size_t i = first; i < first + count; i++) {
        silent[i] = (struct mu_conn){.on = &silent_events};
        assert_int_equal(mu_env_dial(n->env, &silent[i], &addr), 0);
        silent_live++;
    }
    mu_sim_run_for(n->sim, 50 * MU_NS_PER_MS);
    for (size_t i = first; i < first + count; i++) {
        mu_env_send(n->env, &silent[i], MU_SPAN_LIT(GREETING), &taken);
    }
    mu_sim_run_for(n->sim, 50 * MU_NS_PER_MS);
}

/* Goal: strangers of the native wire are refused in words, but only so many in a second. Meets
 * FAREWELLS_MAX of service/lock/hear.c. */
static void test_lock_env_has_words_for_so_many(void **state)
{
    struct knocks k;
    struct world w;

    (void)state;
    world_init(&w, STRANGER, MY_TOKEN, NULL);
    k = (struct knocks){.node = &w.client};
    knocks = &k;
    greet_from(&w.client, 0, 70);
    assert_int_equal(w.server.accepted, 64);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    greet_from(&w.client, 70, 2);
    assert_int_equal(w.server.accepted, 66);
    mu_sim_run_for(w.sim, 2 * MU_LOCK_SPEAK_MS * MU_NS_PER_MS);
    world_fini(&w);
}

/* Goal: who is sent away knows that it may come again, and not that this is no TLS. */
static void test_lock_env_tells_whom_it_sends_away(void **state)
{
    static const uint8_t busy[] = {21, 3, 3, 0, 2, 2, 80};
    struct mu_tls_config config = {.token = mu_span_str(MY_TOKEN)};
    struct mu_span in = mu_span(busy, sizeof(busy));
    struct mu_tls_context *context;
    struct mu_errmsg why;
    uint8_t plain[64];
    struct mu_tls t;
    size_t len = 0;

    (void)state;
    assert_int_equal(mu_tls_context_new(&config, &context, &why), 0);
    assert_int_equal(mu_tls_init(&t, context, "node"), 0);
    assert_int_equal(mu_tls_recv(&t, &in, plain, sizeof(plain), &len), MUSTER_ECONN);
    assert_non_null(strstr(mu_tls_errmsg(&t), "too busy"));
    mu_tls_fini(&t);
    mu_tls_context_free(context);
}

/* --- the log ---------------------------------------------------------------------------------- */

static char lines[16][256];
static size_t line_count;

static void on_line(void *context, enum muster_log_level level, const char *id, const char *line)
{
    (void)context;
    assert_int_equal(level, MUSTER_LOG_WARN);
    assert_string_equal(id, "LOCK-REFUSED");
    assert_true(line_count < 16);
    (void)snprintf(lines[line_count++], sizeof(lines[0]), "%s", line);
}

static int set_up_log(void **state)
{
    (void)state;
    line_count = 0;
    muster_log_set(on_line, NULL, MUSTER_LOG_WARN);
    return 0;
}

static int tear_down_log(void **state)
{
    (void)state;
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
    return 0;
}

/* Until its server knows as well. */
static void knock(struct node *n, const char *text)
{
    say_from(n, text);
    mu_sim_run_for(n->sim, 10 * MU_NS_PER_MS);
}

/* How many are named or counted in all. */
static uint64_t count_refused(void)
{
    uint64_t count = 0;

    for (size_t i = 0; i < line_count; i++) {
        const char *more = strstr(lines[i], "more=");

        count += strstr(lines[i], "peer=") != NULL ? 1u : 0u;
        count += more == NULL ? 0 : strtoull(more + 5, NULL, 10);
    }
    return count;
}

static void test_lock_env_names_whom_it_refuses_and_why(void **state)
{
    static const struct {
        const char *token;
        const char *text;
        const char *why;
    } cases[] = {
        {NOT_IT, "hello", "the other end has a different token"},
        {NULL, GREETING, "it shows no credential"},
        {NULL, "\x0e of PyTorch", "plain connections from its address are not allowed"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct world w;

        line_count = 0;
        world_init(&w, STRANGER, MY_TOKEN, cases[i].token);
        knock(&w.client, cases[i].text);
        assert_int_equal(line_count, 1);
        assert_non_null(strstr(lines[0], "peer=" STRANGER ":"));
        if (strstr(lines[0], cases[i].why) == NULL) {
            fail_msg("%s", lines[0]);
        }
        assert_null(strstr(lines[0], MY_TOKEN));
        world_fini(&w);
    }
}

static void test_lock_env_says_nothing_of_who_is_let_in(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, STRANGER, MY_TOKEN, MY_TOKEN);
    say(&w, "hello");
    world_fini(&w);
    assert_int_equal(line_count, 0);
}

static void test_lock_env_names_an_address_once_a_minute_and_counts_the_rest(void **state)
{
    struct world w;

    (void)state;
    world_init(&w, STRANGER, MY_TOKEN, NOT_IT);
    for (int i = 0; i < 20; i++) {
        say(&w, "hello");
        mu_sim_run_for(w.sim, 2 * MU_NS_PER_S);
    }
    assert_int_equal(line_count, 1);
    mu_sim_run_for(w.sim, 60 * MU_NS_PER_S);
    assert_int_equal(line_count, 2);
    assert_non_null(strstr(lines[1], "more=19"));
    /* What is unsaid at the end is said then. */
    for (int i = 0; i < 3; i++) {
        knock(&w.client, "hello");
    }
    assert_int_equal(line_count, 3);
    world_fini(&w);
    assert_int_equal(line_count, 4);
    assert_int_equal(count_refused(), 23);
}

static void test_lock_env_writes_a_line_a_second_however_many_come(void **state)
{
    static struct node many[24];
    struct world w;

    (void)state;
    world_init(&w, STRANGER, MY_TOKEN, NULL);
    for (size_t i = 0; i < 24; i++) {
        char address[32];

        (void)snprintf(address, sizeof(address), "10.9.0.%zu", i + 1);
        node_init(&many[i], w.sim, address, NULL, false, NULL);
    }
    for (size_t i = 0; i < 24; i++) {
        knock(&many[i], "\x0e of PyTorch");
    }
    assert_int_equal(line_count, 1);
    assert_non_null(strstr(lines[0], "peer=10.9.0.1:"));
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    knock(&w.client, "\x0e of PyTorch");
    assert_int_equal(line_count, 2);
    assert_non_null(strstr(lines[1], "peer=" STRANGER ":"));
    assert_non_null(strstr(lines[1], "more=23"));
    for (size_t i = 0; i < 24; i++) {
        node_fini(&many[i]);
    }
    world_fini(&w);
    assert_int_equal(count_refused(), 25);
}

int main(void)
{
#define LOGGED(name) cmocka_unit_test_setup_teardown(name, set_up_log, tear_down_log)
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lock_env_lets_in_who_has_the_token),
        cmocka_unit_test(test_lock_env_tells_another_token_why),
        cmocka_unit_test(test_lock_env_shuts_out_who_shows_nothing),
        cmocka_unit_test(test_lock_env_passes_up_a_native_greeting_to_be_refused),
        cmocka_unit_test(test_lock_env_takes_plain_bytes_from_a_range),
        cmocka_unit_test(test_lock_env_says_that_a_server_answers_no_tls),
        cmocka_unit_test(test_lock_env_drops_who_says_nothing),
        cmocka_unit_test(test_lock_env_lets_loopback_say_nothing),
        cmocka_unit_test(test_lock_env_ends_with_silent_guests),
        cmocka_unit_test(test_lock_env_refuses_to_listen_in_words),
        cmocka_unit_test(test_lock_env_speaks_plain_only_where_it_may),
        cmocka_unit_test(test_lock_env_waits_five_seconds_for_a_hello),
        cmocka_unit_test(test_lock_env_waits_five_seconds_for_a_native_greeting),
        cmocka_unit_test(test_lock_env_waits_five_seconds_for_the_rest_of_a_handshake),
        cmocka_unit_test(test_lock_env_bounds_who_is_nobody),
        cmocka_unit_test(test_lock_env_gives_the_next_its_turn),
        cmocka_unit_test(test_lock_env_bounds_who_is_silent),
        cmocka_unit_test(test_lock_env_has_words_for_so_many),
        cmocka_unit_test(test_lock_env_tells_whom_it_sends_away),
        LOGGED(test_lock_env_names_whom_it_refuses_and_why),
        LOGGED(test_lock_env_says_nothing_of_who_is_let_in),
        LOGGED(test_lock_env_names_an_address_once_a_minute_and_counts_the_rest),
        LOGGED(test_lock_env_writes_a_line_a_second_however_many_come),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * The secure environment against a plain end of OpenSSL, in the simulator: what its owner hears of
 * ends, and of writes that have to wait.
 */
#include "service/lock/tls_env.h"

#include "sim.h"
#include "tls_ends.h"
#include "unit.h"

#define PORT     80
#define TOKEN    "the token of this test"
#define PATIENCE (60 * MU_NS_PER_S)

/* One that dials with TLS, and a listener whose connection is plain: OpenSSL is behind it. */
struct world {
    struct mu_sim *sim;
    struct mu_env *ours;
    struct mu_env *theirs;
    struct mu_tls_env *tls;
    struct tls_ends plain; /* only the end of OpenSSL is used */
    struct mu_listener listener;
    struct mu_conn accepted;
    struct mu_conn conn;
    struct mu_errmsg why; /* that was said with `eof` or `closed` */
    bool deaf;            /* the listener's connection reads nothing */
    bool greets;          /* says hello when there is room */
    bool open;
    bool eof;
    bool closed;
    int status;
    bool they_closed;
    bool unlistened;
};

static struct world *world_of(struct mu_conn *conn)
{
    return MU_CONTAINER_OF(conn, struct world, conn);
}

static struct world *their_world(struct mu_conn *conn)
{
    return MU_CONTAINER_OF(conn, struct world, accepted);
}

static void on_open(struct mu_conn *conn)
{
    world_of(conn)->open = true;
}

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    (void)conn;
    return in.len;
}

static void on_eof(struct mu_conn *conn)
{
    struct world *w = world_of(conn);

    w->eof = true;
    (void)mu_err(&w->why, 0, "%s", mu_env_why(conn->env));
    mu_env_close(conn->env, conn, false);
}

static void on_writable(struct mu_conn *conn)
{
    struct world *w = world_of(conn);
    size_t taken = 0;

    if (w->greets) {
        mu_env_send(conn->env, conn, MU_SPAN_LIT("hello"), &taken);
        w->greets = taken == 0;
    }
}

static void on_closed(struct mu_conn *conn, int status)
{
    struct world *w = world_of(conn);

    w->closed = true;
    w->status = status;
    if (!w->eof) {
        (void)mu_err(&w->why, 0, "%s", mu_env_why(mu_tls_env_env(w->tls)));
    }
}

static const struct mu_conn_events our_events = {
    .open = on_open, .data = on_data, .eof = on_eof, .writable = on_writable, .closed = on_closed};

/* Sends what OpenSSL has to say. */
static void flush(struct world *w)
{
    char *bytes;
    long len = BIO_get_mem_data(w->plain.from, &bytes);
    size_t taken = 0;

    mu_env_send(w->theirs, &w->accepted, mu_span(bytes, (size_t)len), &taken);
    assert_int_equal(taken, len);
    (void)BIO_reset(w->plain.from);
}

static size_t on_their_data(struct mu_conn *conn, struct mu_span in)
{
    struct world *w = their_world(conn);

    if (w->deaf) {
        return 0;
    }
    assert_int_equal(BIO_write(w->plain.to, in.data, (int)in.len), (int)in.len);
    if (SSL_is_init_finished(w->plain.ssl) == 0) {
        (void)SSL_do_handshake(w->plain.ssl);
        flush(w);
    }
    return in.len;
}

static void on_their_eof(struct mu_conn *conn)
{
    mu_env_close(conn->env, conn, false);
}

static void on_their_writable(struct mu_conn *conn)
{
    (void)conn;
}

static void on_their_closed(struct mu_conn *conn, int status)
{
    (void)status;
    their_world(conn)->they_closed = true;
}

static const struct mu_conn_events their_events = {.data = on_their_data,
                                                   .eof = on_their_eof,
                                                   .writable = on_their_writable,
                                                   .closed = on_their_closed};

static struct mu_conn *on_accept(struct mu_listener *listener)
{
    struct world *w = MU_CONTAINER_OF(listener, struct world, listener);

    w->accepted = (struct mu_conn){.on = &their_events};
    return &w->accepted;
}

static void on_unlistened(struct mu_listener *listener)
{
    MU_CONTAINER_OF(listener, struct world, listener)->unlistened = true;
}

static int start(struct mu_env *env, void *arg)
{
    (void)env;
    (void)arg;
    return 0;
}

static struct mu_env *new_host(struct world *w, const char *name)
{
    struct mu_sim_program program = {.name = "node", .start = start};
    struct mu_sim_proc *proc = mu_sim_proc_new(mu_sim_host_new(w->sim, name), &program);

    assert_true(mu_sim_step(w->sim));
    return mu_sim_proc_env(proc);
}

static bool is_open(void *arg)
{
    return ((struct world *)arg)->open;
}

static bool is_closed(void *arg)
{
    return ((struct world *)arg)->closed;
}

static bool is_at_rest(void *arg)
{
    struct world *w = arg;

    return w->closed && w->they_closed && w->unlistened;
}

static void world_init(struct world *w)
{
    struct mu_tls_config config = {.token = MU_SPAN_LIT(TOKEN)};
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PORT, .host = "theirs"};
    struct mu_errmsg why;

    *w = (struct world){.plain = {.we_dial = true, .token = TOKEN}};
    tls_ends_init(&w->plain);
    w->sim = mu_sim_new(&(struct mu_sim_config){.seed = 7, .faults = mu_sim_faults_none()});
    w->ours = new_host(w, "ours");
    w->theirs = new_host(w, "theirs");
    w->listener = (struct mu_listener){.accept = on_accept, .closed = on_unlistened};
    assert_int_equal(mu_env_listen(w->theirs, &w->listener, &addr), 0);
    assert_int_equal(mu_tls_env_new(w->ours, &config, &w->tls, &why), 0);
    w->conn.on = &our_events;
    assert_int_equal(mu_env_dial(mu_tls_env_env(w->tls), &w->conn, &addr), 0);
    assert_true(mu_sim_run_until(w->sim, PATIENCE, is_open, w));
    mu_sim_run_for(w->sim, MU_NS_PER_S);
    assert_int_equal(SSL_is_init_finished(w->plain.ssl), 1);
}

static void world_fini(struct world *w)
{
    if (!w->closed) {
        mu_env_close(w->conn.env, &w->conn, true);
    }
    if (!w->they_closed) {
        mu_env_close(w->theirs, &w->accepted, true);
    }
    mu_env_unlisten(w->theirs, &w->listener);
    assert_true(mu_sim_run_until(w->sim, PATIENCE, is_at_rest, w));
    mu_tls_env_free(w->tls);
    mu_sim_free(w->sim);
    tls_ends_fini(&w->plain);
}

static void test_tls_env_says_whether_an_end_was_vouched_for(void **state)
{
    (void)state;
    for (int farewell = 0; farewell < 2; farewell++) {
        struct world w;

        world_init(&w);
        if (farewell != 0) {
            assert_int_equal(SSL_shutdown(w.plain.ssl), 0);
            flush(&w);
        }
        mu_env_close(w.theirs, &w.accepted, false);
        assert_true(mu_sim_run_until(w.sim, PATIENCE, is_closed, &w));
        assert_true(w.eof);
        assert_int_equal(w.status, 0);
        if (farewell != 0) {
            assert_string_equal(w.why.text, "");
        } else {
            assert_non_null(strstr(w.why.text, "cut off"));
        }
        world_fini(&w);
    }
}

/* Goal: what is written while half a message of the other end is here goes out when the rest comes.
 * Method: a ticket in two records. */
static void test_tls_env_writes_once_a_split_ticket_is_whole(void **state)
{
    static const uint8_t ticket[] = {4, 0, 0, 16, 0, 0, 0,   60,  0, 0,
                                     0, 0, 1, 7,  0, 2, 't', 't', 0, 0};
    uint8_t record[64];
    uint8_t got[16];
    struct tls_forge forge;
    struct world w;
    size_t n = 1;

    (void)state;
    world_init(&w);
    tls_forge_init(&forge, false);
    mu_env_send(w.theirs, &w.accepted,
                tls_forge_seal(&forge, TLS_FORGE_HANDSHAKE, mu_span(ticket, 9), record), &n);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    mu_env_send(w.conn.env, &w.conn, MU_SPAN_LIT("hello"), &n);
    assert_int_equal(n, 0);
    w.greets = true;
    mu_env_send(w.theirs, &w.accepted,
                tls_forge_seal(&forge, TLS_FORGE_HANDSHAKE, mu_span(ticket + 9, sizeof(ticket) - 9),
                               record),
                &n);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    assert_false(w.closed);
    assert_false(w.greets);
    assert_int_equal(SSL_read_ex(w.plain.ssl, got, sizeof(got), &n), 1);
    assert_span_text(mu_span(got, n), "hello");
    world_fini(&w);
}

static void test_tls_env_closes_one_that_asks_for_keys_and_never_reads(void **state)
{
    static const uint8_t update[] = {24, 0, 0, 1, 1};
    struct tls_forge forge;
    struct world w;
    size_t sent = 0;

    (void)state;
    world_init(&w);
    tls_forge_init(&forge, false);
    w.deaf = true;
    for (; !w.closed && sent < 100000; sent++) {
        uint8_t record[64];
        size_t n = 0;

        mu_env_send(
            w.theirs, &w.accepted,
            tls_forge_seal(&forge, TLS_FORGE_HANDSHAKE, mu_span(update, sizeof(update)), record),
            &n);
        tls_forge_update(&forge);
        if (sent % 1000 == 0) {
            mu_sim_run_for(w.sim, MU_NS_PER_S);
        }
    }
    assert_true(w.closed && sent < 50000);
    assert_int_equal(w.status, MUSTER_ETLS);
    assert_non_null(strstr(w.why.text, "does not read our answers"));
    world_fini(&w);
}

/* --- strangers -------------------------------------------------------------------------------- */

#define STRANGERS 67

static struct mu_conn strangers[STRANGERS];
static size_t told; /* strangers that heard an alert and a proper end */
static size_t cut;  /* strangers whose connection was reset */
static bool alerted[STRANGERS];

static void on_stranger_open(struct mu_conn *conn)
{
    static const uint8_t hello[] = {22, 3, 1, 0, 5, 1, 0, 0, 1, 0}; /* It is too short. */
    size_t taken;

    mu_env_send(conn->env, conn, mu_span(hello, sizeof(hello)), &taken);
}

static size_t on_stranger_data(struct mu_conn *conn, struct mu_span in)
{
    alerted[conn - strangers] = in.data[0] == 21;
    return in.len;
}

static void on_stranger_eof(struct mu_conn *conn)
{
    told += alerted[conn - strangers];
    mu_env_close(conn->env, conn, false);
}

static void on_stranger_closed(struct mu_conn *conn, int status)
{
    (void)conn;
    cut += status != 0;
}

static void knock(struct mu_env *env, size_t first, size_t count)
{
    static const struct mu_conn_events on = {.open = on_stranger_open,
                                             .data = on_stranger_data,
                                             .eof = on_stranger_eof,
                                             .writable = on_their_writable,
                                             .closed = on_stranger_closed};
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PORT, .host = "theirs"};

    for (size_t i = first; i < first + count; i++) {
        strangers[i] = (struct mu_conn){.on = &on};
        assert_int_equal(mu_env_dial(env, &strangers[i], &addr), 0);
    }
}

/* Goal: only so many strangers in a second may linger until they have read why they are refused;
 * the connections of others are reset. Meets FAREWELLS_MAX of service/lock/tls_env.c. */
static void test_tls_env_tells_so_many_strangers_why(void **state)
{
    struct mu_tls_config config = {.token = MU_SPAN_LIT(TOKEN)};
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PORT, .host = "theirs"};
    struct world w = {.closed = true, .they_closed = true};
    struct mu_errmsg why;

    (void)state;
    w.sim = mu_sim_new(&(struct mu_sim_config){.seed = 7, .faults = mu_sim_faults_none()});
    w.ours = new_host(&w, "ours");
    w.theirs = new_host(&w, "theirs");
    assert_int_equal(mu_tls_env_new(w.theirs, &config, &w.tls, &why), 0);
    w.listener = (struct mu_listener){.accept = on_accept, .closed = on_unlistened};
    assert_int_equal(mu_env_listen(mu_tls_env_env(w.tls), &w.listener, &addr), 0);
    knock(w.ours, 0, 64);
    mu_sim_run_for(w.sim, 100 * MU_NS_PER_MS);
    assert_true(told == 64 && cut == 0);
    knock(w.ours, 64, 2);
    mu_sim_run_for(w.sim, 100 * MU_NS_PER_MS);
    assert_true(told == 64 && cut == 2);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    knock(w.ours, 66, 1);
    mu_sim_run_for(w.sim, 100 * MU_NS_PER_MS);
    assert_true(told == 65 && cut == 2);
    mu_env_unlisten(mu_tls_env_env(w.tls), &w.listener);
    assert_true(mu_sim_run_until(w.sim, PATIENCE, is_at_rest, &w));
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    mu_tls_env_free(w.tls);
    mu_sim_free(w.sim);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tls_env_says_whether_an_end_was_vouched_for),
        cmocka_unit_test(test_tls_env_writes_once_a_split_ticket_is_whole),
        cmocka_unit_test(test_tls_env_closes_one_that_asks_for_keys_and_never_reads),
        cmocka_unit_test(test_tls_env_tells_so_many_strangers_why),
    };
    int failed;

    tls_ends_set_up();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    tls_ends_tear_down();
    return failed;
}

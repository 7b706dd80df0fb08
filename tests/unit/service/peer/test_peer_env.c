/* Connections that are streams between peers, in the simulator; test_peer_env_rpc.c has RPC agents
 * on them. */
#include "service/peer/env.h"

#include <errno.h>

#include "peer_rig.h"

#define ALL SIZE_MAX

/* One end of a connection: sends the pattern, and checks that what comes is the pattern. */
struct end {
    struct mu_conn conn;
    size_t to_send, sent;
    size_t got;
    size_t uses;      /* of what it is lent, at the most each time */
    bool resumes;     /* and asks for the rest at once */
    bool closes;      /* at the first byte */
    bool answers_eof; /* closes then */
    bool wrong;       /* not the pattern */
    size_t lent;      /* the last time */
    size_t asked;     /* calls of `data` */
    size_t opens, eofs, closed;
    int status;
    char why[256];
    char peer[80];
};

struct wire {
    struct rig_node *node;
    struct mu_peer_env *peers;
    struct mu_env *env;
    struct mu_listener listener;
    struct end accepted;
    bool refuses;
    size_t accepts;
    size_t unlistened;
};

static void send_more(struct end *e)
{
    while (e->sent < e->to_send) {
        uint8_t chunk[5000];
        size_t n = e->to_send - e->sent < sizeof(chunk) ? e->to_send - e->sent : sizeof(chunk);
        size_t taken;

        for (size_t i = 0; i < n; i++) {
            chunk[i] = rig_byte(e->sent + i);
        }
        mu_env_send(e->conn.env, &e->conn, mu_span(chunk, n), &taken);
        e->sent += taken;
        if (taken < n) {
            return;
        }
    }
}

static struct end *end_of(struct mu_conn *conn)
{
    return MU_CONTAINER_OF(conn, struct end, conn);
}

static void on_open(struct mu_conn *conn)
{
    end_of(conn)->opens++;
    send_more(end_of(conn));
}

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    struct end *e = end_of(conn);
    size_t n = in.len < e->uses ? in.len : e->uses;

    e->asked++;
    e->lent = in.len;
    for (size_t i = 0; i < in.len; i++) {
        e->wrong = e->wrong || in.data[i] != rig_byte(e->got + i);
    }
    e->got += n;
    if (e->resumes && n < in.len) {
        mu_env_resume(conn->env, conn);
    }
    if (e->closes) {
        mu_env_close(conn->env, conn, false);
    }
    /* What was lent is there until we return. */
    e->wrong = e->wrong || in.data[in.len - 1] != rig_byte(e->got - n + in.len - 1);
    return n;
}

static void on_eof(struct mu_conn *conn)
{
    struct end *e = end_of(conn);

    e->eofs++;
    if (e->answers_eof) {
        mu_env_close(conn->env, conn, false);
    }
}

static void on_writable(struct mu_conn *conn)
{
    send_more(end_of(conn));
}

static void on_closed(struct mu_conn *conn, int status)
{
    struct end *e = end_of(conn);

    e->closed++;
    e->status = status;
    (void)snprintf(e->why, sizeof(e->why), "%s", mu_env_why(conn->env));
    mu_env_peer(conn->env, conn, e->peer, sizeof(e->peer));
}

static const struct mu_conn_events events = {
    .open = on_open,
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .closed = on_closed,
};

static struct mu_conn *on_accept(struct mu_listener *listener)
{
    struct wire *w = MU_CONTAINER_OF(listener, struct wire, listener);

    w->accepts++;
    return w->refuses ? NULL : &w->accepted.conn;
}

static void on_unlistened(struct mu_listener *listener)
{
    MU_CONTAINER_OF(listener, struct wire, listener)->unlistened++;
}

static void wire_inside(void *arg)
{
    struct wire *w = arg;
    struct mu_addr addr = {.kind = MU_ADDR_PEER};
    char id[MU_PEER_ID_TEXT_MAX];

    assert_int_equal(mu_peer_env_new(w->node->host, &w->peers), 0);
    w->env = mu_peer_env_env(w->peers);
    w->listener = (struct mu_listener){.accept = on_accept, .closed = on_unlistened};
    w->accepted = (struct end){.conn.on = &events, .uses = ALL, .answers_eof = true};
    assert_int_equal(mu_env_listen(w->env, &w->listener, &addr), 0);
    (void)mu_peer_id_format(&w->node->identity.id, id);
    assert_string_equal(addr.host, id);
}

static void unlisten_inside(void *arg)
{
    struct wire *w = arg;

    mu_env_unlisten(w->env, &w->listener);
    assert_int_equal(w->unlistened, 0);
}

static void unwire_inside(void *arg)
{
    struct wire *w = arg;

    assert_int_equal(w->unlistened, 1);
    mu_peer_env_free(w->peers);
}

struct world {
    struct rig r;
    struct wire a, b;
    struct end e; /* a's, to b */
};

static void open_world(struct world *w)
{
    memset(w, 0, sizeof(*w));
    rig_open(&w->r, 2, NULL);
    rig_run_all(&w->r);
    w->a.node = &w->r.node[0];
    w->b.node = &w->r.node[1];
    mu_sim_call(w->a.node->proc, wire_inside, &w->a);
    mu_sim_call(w->b.node->proc, wire_inside, &w->b);
    rig_introduce(w->a.node, w->b.node);
    w->e = (struct end){.conn.on = &events, .uses = ALL};
}

static void close_world(struct world *w)
{
    struct wire *wires[] = {&w->a, &w->b};

    for (int i = 0; i < 2; i++) {
        mu_sim_call(wires[i]->node->proc, unlisten_inside, wires[i]);
        rig_run(&w->r, 10);
        mu_sim_call(wires[i]->node->proc, unwire_inside, wires[i]);
    }
    rig_close(&w->r);
}

static void dial_inside(void *arg)
{
    struct world *w = arg;
    struct mu_addr addr = rig_addr(w->b.node);

    assert_int_equal(mu_env_dial(w->a.env, &w->e.conn, &addr), 0);
    assert_int_equal(w->e.opens, 0);
}

static void dial(struct world *w)
{
    mu_sim_call(w->a.node->proc, dial_inside, w);
}

struct closing {
    struct end *e;
    bool abort;
    size_t times;
};

static void close_inside(void *arg)
{
    const struct closing *c = arg;
    size_t before = c->e->closed;

    for (size_t i = 0; i < c->times; i++) {
        mu_env_close(c->e->conn.env, &c->e->conn, c->abort);
    }
    assert_int_equal(c->e->closed, before); /* on a later turn */
}

static void close_end(struct wire *w, struct end *e, bool abort, size_t times)
{
    mu_sim_call(w->node->proc, close_inside, &(struct closing){e, abort, times});
}

static void resume_inside(void *arg)
{
    struct end *e = arg;
    size_t asked = e->asked;

    mu_env_resume(e->conn.env, &e->conn);
    assert_int_equal(e->asked, asked);
}

static void resume(struct wire *w, struct end *e)
{
    mu_sim_call(w->node->proc, resume_inside, e);
}

static void assert_closed(const struct end *e, int status)
{
    assert_int_equal(e->closed, 1);
    assert_int_equal(e->status, status);
    assert_false(e->wrong);
}

static void send_inside(void *arg)
{
    send_more(arg);
}

static void test_peer_env_bytes_go_both_ways_and_the_end_is_told(void **state)
{
    struct world w;
    char text[80];

    (void)state;
    open_world(&w);
    w.e.to_send = 3 << 20;
    dial(&w);
    rig_run(&w.r, 20);
    w.b.accepted.to_send = 1 << 20;
    mu_sim_call(w.b.node->proc, send_inside, &w.b.accepted);
    rig_run(&w.r, 5000);
    assert_int_equal(w.e.got, 1 << 20);
    assert_int_equal(w.e.opens, 1);
    assert_int_equal(w.b.accepts, 1);
    assert_int_equal(w.b.accepted.opens, 0); /* up when it was accepted */
    assert_int_equal(w.b.accepted.got, 3 << 20);
    mu_env_peer(w.b.env, &w.b.accepted.conn, text, sizeof(text));
    assert_memory_equal(text, "peer:12D3KooW", 13);
    close_end(&w.a, &w.e, false, 1);
    rig_run(&w.r, 1000);
    assert_closed(&w.e, 0);
    assert_int_equal(w.b.accepted.eofs, 1);
    assert_closed(&w.b.accepted, 0);
    assert_string_equal(w.b.accepted.peer, "?");
    close_world(&w);
}

static void test_peer_env_answer_comes_after_the_end_of_what_was_asked(void **state)
{
    struct world w;

    (void)state;
    open_world(&w);
    dial(&w);
    rig_run(&w.r, 100);
    w.b.accepted.to_send = 500000;
    mu_sim_call(w.b.node->proc, send_inside, &w.b.accepted);
    rig_run(&w.r, 1000);
    assert_int_equal(w.e.got, 500000);
    assert_false(w.e.wrong);
    assert_int_equal(w.e.eofs, 0);
    close_end(&w.b, &w.b.accepted, false, 1);
    rig_run(&w.r, 1000);
    assert_int_equal(w.e.eofs, 1);
    assert_int_equal(w.e.closed, 0); /* it may still speak, and is heard by nobody */
    close_end(&w.a, &w.e, false, 1);
    rig_run(&w.r, 1000);
    assert_closed(&w.e, 0);
    assert_closed(&w.b.accepted, 0);
    close_world(&w);
}

static void test_peer_env_slow_reader_holds_back_the_writer(void **state)
{
    struct world w;
    size_t sent;

    (void)state;
    open_world(&w);
    w.e.to_send = 16 << 20;
    w.b.accepted.uses = 0;
    dial(&w);
    rig_run(&w.r, 20000);
    sent = w.e.sent;
    assert_true(sent > 0);
    assert_true(sent <= 2 << 20);
    assert_int_equal(w.b.accepted.asked, 1); /* nothing more comes before resume */
    resume(&w.b, &w.b.accepted);
    rig_run(&w.r, 1000);
    assert_int_equal(w.b.accepted.asked, 2); /* and it uses none of it again */
    assert_true(w.b.accepted.lent > 1000);
    assert_int_equal(w.e.sent, sent);
    w.b.accepted.uses = ALL;
    resume(&w.b, &w.b.accepted);
    rig_run(&w.r, 20000);
    assert_int_equal(w.e.sent, 16 << 20);
    assert_int_equal(w.b.accepted.got, 16 << 20);
    close_end(&w.a, &w.e, false, 1);
    rig_run(&w.r, 1000);
    assert_closed(&w.e, 0);
    assert_closed(&w.b.accepted, 0);
    close_world(&w);
}

static void test_peer_env_what_is_not_used_comes_again_after_resume(void **state)
{
    struct world w;

    (void)state;
    open_world(&w);
    w.e.to_send = 100000;
    w.b.accepted.uses = 777;
    w.b.accepted.resumes = true;
    dial(&w);
    rig_run(&w.r, 100);
    close_end(&w.a, &w.e, false, 1);
    rig_run(&w.r, 2000);
    assert_int_equal(w.b.accepted.got, 100000);
    assert_true(w.b.accepted.asked >= 100000 / 777);
    assert_int_equal(w.b.accepted.eofs, 1);
    assert_closed(&w.b.accepted, 0);
    assert_closed(&w.e, 0);
    close_world(&w);
}

static void test_peer_env_end_waits_for_what_was_not_used(void **state)
{
    struct world w;

    (void)state;
    open_world(&w);
    w.e.to_send = 1000;
    w.b.accepted.uses = 300;
    dial(&w);
    rig_run(&w.r, 100);
    close_end(&w.a, &w.e, false, 1);
    rig_run(&w.r, 1000);
    assert_closed(&w.e, 0);
    assert_int_equal(w.b.accepted.got, 300);
    assert_int_equal(w.b.accepted.eofs, 0);
    w.b.accepted.uses = ALL;
    resume(&w.b, &w.b.accepted);
    rig_run(&w.r, 100);
    assert_int_equal(w.b.accepted.got, 1000);
    assert_int_equal(w.b.accepted.eofs, 1);
    assert_closed(&w.b.accepted, 0);
    close_world(&w);
}

/* Who closes has five seconds for what it has said, whatever the other does. */
static void test_peer_env_closed_connection_is_reset_when_its_time_is_up(void **state)
{
    struct world w;

    (void)state;
    open_world(&w);
    w.e.to_send = 1000;
    w.b.accepted.uses = 300;
    dial(&w);
    rig_run(&w.r, 100);
    close_end(&w.a, &w.e, false, 1);
    rig_run(&w.r, 4000);
    assert_int_equal(w.b.accepted.closed, 0);
    rig_run(&w.r, 2000);
    assert_closed(&w.b.accepted, MUSTER_ECLOSED);
    assert_string_equal(w.b.accepted.why, "reset by the peer");
    close_world(&w);
}

static void test_peer_env_abort_drops_what_was_sent(void **state)
{
    struct world w;

    (void)state;
    open_world(&w);
    w.e.to_send = 16 << 20;
    w.b.accepted.uses = 0;
    dial(&w);
    rig_run(&w.r, 1000);
    close_end(&w.a, &w.e, true, 1);
    rig_run(&w.r, 100);
    assert_closed(&w.e, 0);
    assert_closed(&w.b.accepted, MUSTER_ECLOSED);
    assert_int_equal(w.b.accepted.eofs, 0);
    close_world(&w);
}

static void close_both_ways(void *arg)
{
    struct end *e = arg;
    size_t taken = 0;

    mu_env_close(e->conn.env, &e->conn, false);
    mu_env_send(e->conn.env, &e->conn, MU_SPAN_LIT("behind the end"), &taken);
    assert_int_equal(taken, 14);
    mu_env_resume(e->conn.env, &e->conn);
    mu_env_close(e->conn.env, &e->conn, true);
}

static void test_peer_env_close_twice_is_as_once(void **state)
{
    struct world w;

    (void)state;
    open_world(&w);
    w.e.to_send = 1000;
    dial(&w);
    rig_run(&w.r, 100);
    close_end(&w.a, &w.e, false, 2);
    rig_run(&w.r, 1000);
    assert_closed(&w.e, 0);
    assert_closed(&w.b.accepted, 0);
    w.e = (struct end){.conn.on = &events, .uses = ALL};
    w.b.accepted = (struct end){.conn.on = &events, .uses = ALL};
    dial(&w);
    rig_run(&w.r, 100);
    mu_sim_call(w.a.node->proc, close_both_ways, &w.e);
    rig_run(&w.r, 1000);
    assert_closed(&w.e, 0);
    assert_closed(&w.b.accepted, MUSTER_ECLOSED);
    assert_int_equal(w.b.accepted.got, 0);
    close_world(&w);
}

static void test_peer_env_may_be_closed_inside_of_data(void **state)
{
    struct world w;

    (void)state;
    open_world(&w);
    w.e.to_send = 1 << 20;
    w.b.accepted.closes = true;
    dial(&w);
    rig_run(&w.r, 1000);
    assert_closed(&w.b.accepted, 0);
    assert_int_equal(w.b.accepted.asked, 1);
    assert_int_equal(w.e.sent, 1 << 20); /* what it says is thrown away and holds nobody up */
    assert_int_equal(w.e.eofs, 1);
    close_end(&w.a, &w.e, false, 1);
    /* Now with what was kept, of which some is used. */
    rig_run(&w.r, 1000);
    w.e = (struct end){.conn.on = &events, .uses = ALL, .to_send = 100000};
    w.b.accepted = (struct end){.conn.on = &events, .uses = 10};
    dial(&w);
    rig_run(&w.r, 100);
    w.b.accepted.closes = true;
    resume(&w.b, &w.b.accepted);
    rig_run(&w.r, 100);
    assert_closed(&w.b.accepted, 0);
    assert_int_equal(w.e.eofs, 1);
    close_end(&w.a, &w.e, false, 1);
    rig_run(&w.r, 1000);
    assert_closed(&w.e, 0);
    close_world(&w);
}

static void dial_send_close(void *arg)
{
    struct world *w = arg;

    dial_inside(w);
    send_more(&w->e);
    mu_env_close(w->a.env, &w->e.conn, false);
}

static void test_peer_env_what_was_taken_before_it_is_open_arrives(void **state)
{
    struct rig_call first;
    struct world w;

    (void)state;
    open_world(&w);
    rig_call(w.a.node, w.b.node, &first, 10); /* so that there is a connection */
    rig_run(&w.r, 1000);
    w.e.to_send = 1000;
    mu_sim_call(w.a.node->proc, dial_send_close, &w);
    rig_run(&w.r, 1000);
    assert_closed(&w.e, 0);
    assert_int_equal(w.e.opens, 0);
    assert_int_equal(w.b.accepted.got, w.e.sent);
    assert_int_equal(w.e.sent, 1000);
    assert_closed(&w.b.accepted, 0);
    close_world(&w);
}

static void test_peer_env_cut_connection_is_told_at_both_ends(void **state)
{
    struct world w;

    (void)state;
    open_world(&w);
    dial(&w);
    rig_run(&w.r, 100);
    mu_sim_reset(w.a.node->sim_host, w.b.node->sim_host);
    rig_run(&w.r, 1000);
    assert_closed(&w.e, MUSTER_ECONN);
    assert_closed(&w.b.accepted, MUSTER_ECONN);
    assert_true(w.e.why[0] != '\0');
    close_world(&w);
}

static void refuse_inside(void *arg)
{
    struct world *w = arg;
    struct mu_addr tcp = {.kind = MU_ADDR_TCP, .port = 1, .host = "b"};
    struct mu_addr nonsense = {.kind = MU_ADDR_PEER, .host = "nobody"};
    struct mu_addr other = rig_addr(w->b.node);
    struct mu_addr us = rig_addr(w->a.node);
    struct mu_listener listener = {.accept = on_accept, .closed = on_unlistened};

    assert_int_equal(mu_env_dial(w->a.env, &w->e.conn, &tcp), MUSTER_EINVAL);
    assert_int_equal(mu_env_dial(w->a.env, &w->e.conn, &nonsense), MUSTER_EINVAL);
    assert_int_equal(mu_env_listen(w->a.env, &listener, &tcp), MUSTER_EINVAL);
    assert_int_equal(mu_env_listen(w->a.env, &listener, &other), MUSTER_EINVAL);
    assert_int_equal(mu_env_listen(w->a.env, &listener, &us), -EADDRINUSE);
}

static void dial_stranger(void *arg)
{
    struct world *w = arg;
    struct mu_addr addr = {.kind = MU_ADDR_PEER,
                           .host = "12D3KooWNvSZnPi3RrhrTwEY4LuuBeB6K6facKUCJcyWG1aoDd2p"};

    assert_int_equal(mu_env_dial(w->a.env, &w->e.conn, &addr), 0);
}

static void test_peer_env_who_cannot_be_reached_is_told_why(void **state)
{
    struct world w;

    (void)state;
    open_world(&w);
    mu_sim_call(w.a.node->proc, refuse_inside, &w);
    mu_sim_call(w.a.node->proc, dial_stranger, &w);
    rig_run(&w.r, 20000);
    assert_closed(&w.e, MUSTER_ENOENT);
    assert_string_equal(w.e.why, "no address of that peer is known");
    /* One that turns us away, and one that does not listen. */
    w.b.refuses = true;
    w.e = (struct end){.conn.on = &events, .uses = ALL};
    dial(&w);
    rig_run(&w.r, 1000);
    assert_int_equal(w.e.closed, 1);
    assert_true(w.e.status < 0);
    w.e = (struct end){.conn.on = &events, .uses = ALL};
    dial(&w);
    close_end(&w.a, &w.e, false, 1); /* or nobody waits for it */
    rig_run(&w.r, 1000);
    assert_closed(&w.e, 0);
    assert_int_equal(w.e.opens, 0);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_peer_env_bytes_go_both_ways_and_the_end_is_told),
        cmocka_unit_test(test_peer_env_answer_comes_after_the_end_of_what_was_asked),
        cmocka_unit_test(test_peer_env_slow_reader_holds_back_the_writer),
        cmocka_unit_test(test_peer_env_what_is_not_used_comes_again_after_resume),
        cmocka_unit_test(test_peer_env_end_waits_for_what_was_not_used),
        cmocka_unit_test(test_peer_env_closed_connection_is_reset_when_its_time_is_up),
        cmocka_unit_test(test_peer_env_abort_drops_what_was_sent),
        cmocka_unit_test(test_peer_env_close_twice_is_as_once),
        cmocka_unit_test(test_peer_env_may_be_closed_inside_of_data),
        cmocka_unit_test(test_peer_env_what_was_taken_before_it_is_open_arrives),
        cmocka_unit_test(test_peer_env_cut_connection_is_told_at_both_ends),
        cmocka_unit_test(test_peer_env_who_cannot_be_reached_is_told_why),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

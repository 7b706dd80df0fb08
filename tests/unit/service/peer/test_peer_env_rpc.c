/* RPC agents whose addresses are peer ids, in the simulator. */
#include "peer_rig.h"
#include "service/peer/env.h"
#include "service/rpc/agent.h"

struct worker {
    struct rig_node *node;
    struct mu_peer_env *peers;
    struct mu_rpc_agent *agent;
    struct mu_rpc_handler echo;
    struct mu_rpc_handler silent;
    const char *name;
    int32_t id;
    struct worker *other;
    size_t served;
    bool stopped;
};

struct rpc_call {
    struct mu_rpc_out out;
    struct mu_rpc_part part;
    struct worker *from;
    const char *method;
    size_t ended;
    int status;
    bool same; /* the answer is what was sent */
    char text[256];
};

static uint8_t long_message[6 << 20];

static void on_echo(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    MU_CONTAINER_OF(h, struct worker, echo)->served++;
    mu_rpc_in_reply(in, 0, message);
}

static void on_silent(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    (void)h;
    (void)in;
    (void)message;
}

static void on_silent_cancel(struct mu_rpc_in *in, int why)
{
    mu_rpc_in_reply(in, why, MU_SPAN_LIT("canceled"));
}

static void on_agent_stopped(void *context)
{
    ((struct worker *)context)->stopped = true;
}

static void start_worker(void *arg)
{
    struct mu_rpc_agent_config config = mu_rpc_agent_config_defaults();
    struct worker *w = arg;
    struct mu_addr addr = rig_addr(w->other->node);
    struct mu_errmsg msg;

    assert_int_equal(mu_peer_env_new(w->node->host, &w->peers), 0);
    (void)snprintf(config.name, sizeof(config.name), "%s", w->name);
    config.id = w->id;
    config.listens = true;
    config.listen = (struct mu_addr){.kind = MU_ADDR_PEER};
    config.stopped = on_agent_stopped;
    config.context = w;
    assert_int_equal(mu_rpc_agent_start(mu_peer_env_env(w->peers), &config, &w->agent, &msg), 0);
    w->echo = (struct mu_rpc_handler){.method = "t::T.echo", .start = on_echo};
    w->silent = (struct mu_rpc_handler){
        .method = "t::T.silent", .start = on_silent, .cancel = on_silent_cancel};
    assert_int_equal(mu_rpc_agent_serve(w->agent, &w->echo), 0);
    assert_int_equal(mu_rpc_agent_serve(w->agent, &w->silent), 0);
    assert_int_equal(mu_rpc_agent_add(w->agent, w->other->name, w->other->id, &addr, &msg), 0);
}

static void stop_worker(void *arg)
{
    mu_rpc_agent_stop(((struct worker *)arg)->agent);
}

static void free_worker(void *arg)
{
    struct worker *w = arg;

    mu_rpc_agent_free(w->agent);
    mu_peer_env_free(w->peers);
}

struct workers {
    struct rig r;
    struct worker w[2];
};

static void open_workers(struct workers *p)
{
    memset(p, 0, sizeof(*p));
    rig_open(&p->r, 2, NULL);
    rig_run_all(&p->r);
    for (int i = 0; i < 2; i++) {
        p->w[i].node = &p->r.node[i];
        p->w[i].other = &p->w[1 - i];
        p->w[i].name = i == 0 ? "a" : "b";
        p->w[i].id = i;
        rig_introduce(&p->r.node[i], &p->r.node[1 - i]);
    }
    for (int i = 0; i < 2; i++) {
        mu_sim_call(p->w[i].node->proc, start_worker, &p->w[i]);
    }
}

static void close_workers(struct workers *p)
{
    for (int i = 0; i < 2; i++) {
        if (!p->w[i].stopped) {
            mu_sim_call(p->w[i].node->proc, stop_worker, &p->w[i]);
            rig_run(&p->r, 20000);
        }
        assert_true(p->w[i].stopped);
        mu_sim_call(p->w[i].node->proc, free_worker, &p->w[i]);
    }
    rig_close(&p->r);
}

static void on_ended(struct mu_rpc_out *out, int status, const char *text, struct mu_span message)
{
    struct rpc_call *c = MU_CONTAINER_OF(out, struct rpc_call, out);
    struct mu_span sent = c->part.data;

    c->ended++;
    c->status = status;
    c->same = status == 0 && message.len >= sent.len &&
              memcmp(message.data + message.len - sent.len, sent.data, sent.len) == 0;
    (void)snprintf(c->text, sizeof(c->text), "%s", text);
}

static void call_inside(void *arg)
{
    struct rpc_call *c = arg;

    c->out.to = mu_rpc_agent_find(c->from->agent, c->from->other->name);
    c->out.method = c->method;
    c->out.parts = &c->part;
    c->out.part_count = 1;
    c->out.ended = on_ended;
    mu_rpc_agent_call(c->from->agent, &c->out);
    mu_rpc_agent_turn(c->from->agent);
}

static void rpc_call(struct worker *from, struct rpc_call *c, const char *method, size_t bytes)
{
    memset(c, 0, sizeof(*c));
    for (size_t i = 0; i < bytes; i++) {
        long_message[i] = rig_byte(i);
    }
    c->from = from;
    c->method = method;
    c->part = (struct mu_rpc_part){mu_span(long_message, bytes), -1};
    mu_sim_call(from->node->proc, call_inside, c);
}

static void assert_answered(const struct rpc_call *c)
{
    assert_string_equal(c->text, "");
    assert_int_equal(c->ended, 1);
    assert_int_equal(c->status, 0);
    assert_true(c->same);
}

static void test_rpc_agents_call_each_other_by_peer_id(void **state)
{
    struct mu_rpc_agent_stats stats;
    struct rpc_call c[4];
    struct workers p;

    (void)state;
    open_workers(&p);
    rpc_call(&p.w[0], &c[0], "t::T.echo", 20);
    rig_run(&p.r, 2000);
    rpc_call(&p.w[1], &c[1], "t::T.echo", 20);
    rig_run(&p.r, 2000);
    assert_answered(&c[0]);
    assert_answered(&c[1]);
    /* A long one, both ways at once, over the one session that there is. */
    rpc_call(&p.w[0], &c[2], "t::T.echo", sizeof(long_message));
    rpc_call(&p.w[1], &c[3], "t::T.echo", sizeof(long_message));
    rig_run(&p.r, 20000);
    assert_answered(&c[2]);
    assert_answered(&c[3]);
    assert_int_equal(p.w[0].served, 2);
    assert_int_equal(p.w[1].served, 2);
    mu_rpc_agent_stats(p.w[0].agent, &stats);
    assert_int_equal(stats.sessions, 1);
    assert_int_equal(stats.dials + stats.accepts, 1);
    close_workers(&p);
}

static void test_rpc_agents_go_on_after_the_connection_was_cut(void **state)
{
    struct rpc_call c[3];
    struct workers p;

    (void)state;
    open_workers(&p);
    rpc_call(&p.w[0], &c[0], "t::T.echo", 20);
    rig_run(&p.r, 2000);
    assert_answered(&c[0]);
    /* While a long message is under way: the session outlives the stream. */
    rpc_call(&p.w[0], &c[1], "t::T.echo", sizeof(long_message));
    rig_run(&p.r, 5);
    assert_int_equal(c[1].ended, 0);
    mu_sim_reset(p.r.node[0].sim_host, p.r.node[1].sim_host);
    rig_run(&p.r, 20000);
    assert_answered(&c[1]);
    assert_int_equal(p.w[1].served, 2);
    rpc_call(&p.w[1], &c[2], "t::T.echo", 20);
    rig_run(&p.r, 2000);
    assert_answered(&c[2]);
    close_workers(&p);
}

static void test_rpc_agents_stop_in_the_middle(void **state)
{
    struct rpc_call c[4];
    struct workers p;

    (void)state;
    open_workers(&p);
    rpc_call(&p.w[0], &c[0], "t::T.echo", 20);
    rpc_call(&p.w[0], &c[1], "t::T.silent", 20);
    rpc_call(&p.w[1], &c[2], "t::T.silent", 20);
    rig_run(&p.r, 2000);
    assert_answered(&c[0]);
    rpc_call(&p.w[0], &c[3], "t::T.echo", sizeof(long_message));
    rig_run(&p.r, 5);
    mu_sim_call(p.w[0].node->proc, stop_worker, &p.w[0]);
    rig_run(&p.r, 20000);
    assert_true(p.w[0].stopped);
    assert_int_equal(c[1].ended, 1);
    assert_int_equal(c[1].status, MUSTER_ECLOSED);
    assert_int_equal(c[2].ended, 1);
    assert_true(c[2].status < 0);
    assert_int_equal(c[3].ended, 1);
    assert_int_equal(c[3].status, MUSTER_ECLOSED);
    close_workers(&p);
}

/* The first words of both, at once. */
static void test_rpc_agents_that_dial_each_other_at_once_both_get_their_answers(void **state)
{
    struct rpc_call c[2];
    struct workers p;

    (void)state;
    open_workers(&p);
    rpc_call(&p.w[0], &c[0], "t::T.echo", 20);
    rpc_call(&p.w[1], &c[1], "t::T.echo", 20);
    rig_run(&p.r, 5000);
    assert_answered(&c[0]);
    assert_answered(&c[1]);
    close_workers(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rpc_agents_call_each_other_by_peer_id),
        cmocka_unit_test(test_rpc_agents_go_on_after_the_connection_was_cut),
        cmocka_unit_test(test_rpc_agents_stop_in_the_middle),
        cmocka_unit_test(test_rpc_agents_that_dial_each_other_at_once_both_get_their_answers),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

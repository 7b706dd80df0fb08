/* RPC agents in the simulator, where every moment can be had: dials at once, retries, abandoned
 * streams, workers that come back. sim/scenarios/rpc/rpc.c has the storms. */
#include "unit.h"

#include <stdio.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "service/rpc/agent.h"
#include "service/rpc/gather.h"
#include "sim.h"

#define PORT      7000
#define SENDS_MAX 16

struct call {
    struct mu_rpc_out out;
    bool ended;
    int status;
    char text[256];
    uint64_t ended_ns;
    struct mu_sim *sim;
};

struct peer {
    struct mu_sim *sim;
    const char *name;
    int32_t id;
    struct mu_sim_proc *proc;
    struct mu_sim_host *host;
    struct mu_env *env;
    struct mu_rpc_agent *agent; /* the process's */
    struct mu_rpc_gather *gather;
    struct mu_rpc_handler echo;
    struct mu_rpc_handler fail;
    struct mu_rpc_handler stream;
    struct mu_rpc_handler silent;
    size_t fails_left;        /* of "fail"; SIZE_MAX: always */
    size_t message_bytes_max; /* 0: the default, of these as well */
    size_t coming_bytes_max;
    size_t sessions_max;
    uint32_t eof_grace_ms;
    uint32_t budget_percent;
    uint64_t runs_ns[SENDS_MAX];
    size_t runs;
    size_t streams; /* that run */
    bool stopped;
};

static void on_echo(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    (void)h;
    mu_rpc_in_reply(in, 0, message);
}

/* Fails, and notes when. */
static void on_fail(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    struct peer *p = MU_CONTAINER_OF(h, struct peer, fail);

    (void)message;
    p->runs_ns[p->runs++ % SENDS_MAX] = mu_sim_now_ns(p->sim);
    if (p->fails_left == 0) {
        mu_rpc_in_reply(in, 0, mu_span("", 1));
        return;
    }
    p->fails_left -= p->fails_left == SIZE_MAX ? 0 : 1;
    mu_rpc_in_reply(in, MUSTER_EREMOTE, MU_SPAN_LIT("no"));
}

/* Answers when it is canceled. */
static void on_silent(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    (void)h;
    (void)message;
    in->owner = NULL;
}

static void on_silent_cancel(struct mu_rpc_in *in, int why)
{
    mu_rpc_in_reply(in, why == MUSTER_ESESSION ? 0 : why, mu_span("", 1));
}

static void on_stream(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    (void)message;
    in->owner = MU_CONTAINER_OF(h, struct peer, stream);
    MU_CONTAINER_OF(h, struct peer, stream)->streams++;
}

static void on_stream_item(struct mu_rpc_in *in, struct mu_span message)
{
    (void)in;
    (void)message; /* It is never taken. */
}

static void on_stream_end(struct mu_rpc_in *in)
{
    (void)in;
}

static void on_stream_cancel(struct mu_rpc_in *in, int why)
{
    ((struct peer *)in->owner)->streams--;
    mu_rpc_in_reply(in, why, MU_SPAN_LIT("canceled"));
}

static void on_stopped(void *context)
{
    struct peer *p = context;

    p->stopped = true;
    mu_rpc_gather_free(p->gather);
    mu_rpc_agent_free(p->agent);
    p->agent = NULL;
    mu_sim_exit(p->env);
}

static int start_peer(struct mu_env *env, void *arg)
{
    struct mu_rpc_agent_config config = mu_rpc_agent_config_defaults();
    struct peer *p = arg;
    struct mu_errmsg msg;

    (void)snprintf(config.name, sizeof(config.name), "%s", p->name);
    config.id = p->id;
    config.listens = true;
    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};
    config.stopped = on_stopped;
    config.context = p;
    config.budget_percent = p->budget_percent;
    config.budget_burst = p->budget_percent != 0 ? 2 : config.budget_burst;
    config.message_bytes_max =
        p->message_bytes_max != 0 ? p->message_bytes_max : config.message_bytes_max;
    config.coming_bytes_max =
        p->coming_bytes_max != 0 ? p->coming_bytes_max : config.coming_bytes_max;
    config.sessions_max = p->sessions_max != 0 ? p->sessions_max : config.sessions_max;
    config.eof_grace_ms = p->eof_grace_ms != 0 ? p->eof_grace_ms : config.eof_grace_ms;
    p->env = env;
    assert_int_equal(mu_rpc_agent_start(env, &config, &p->agent, &msg), 0);
    p->echo = (struct mu_rpc_handler){.method = "t::T.echo", .start = on_echo};
    p->fail = (struct mu_rpc_handler){.method = "t::T.fail", .start = on_fail};
    p->stream = (struct mu_rpc_handler){.method = "t::T.stream",
                                        .stream = true,
                                        .start = on_stream,
                                        .item = on_stream_item,
                                        .end = on_stream_end,
                                        .writable = on_stream_end,
                                        .cancel = on_stream_cancel};
    assert_int_equal(mu_rpc_agent_serve(p->agent, &p->echo), 0);
    assert_int_equal(mu_rpc_agent_serve(p->agent, &p->fail), 0);
    assert_int_equal(mu_rpc_agent_serve(p->agent, &p->stream), 0);
    p->silent = (struct mu_rpc_handler){
        .method = "t::T.silent", .start = on_silent, .cancel = on_silent_cancel};
    assert_int_equal(mu_rpc_agent_serve(p->agent, &p->silent), 0);
    for (int i = 0; i < 2; i++) {
        struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PORT};

        (void)snprintf(addr.host, sizeof(addr.host), "%s", i == 0 ? "a" : "b");
        assert_int_equal(mu_rpc_agent_add(p->agent, i == 0 ? "a" : "b", i, &addr, &msg), 0);
    }
    return 0;
}

struct pair {
    struct mu_sim *sim;
    struct peer peer[2];
};

/* What `limits` says is both peers'; NULL: the defaults. */
static void open_pair_with(struct pair *w, const struct peer *limits)
{
    memset(w, 0, sizeof(*w));
    w->sim = mu_sim_new(&(struct mu_sim_config){.seed = 1, .faults = mu_sim_faults_none()});
    assert_non_null(w->sim);
    for (int i = 0; i < 2; i++) {
        struct peer *p = &w->peer[i];

        *p = limits != NULL ? *limits : (struct peer){0};
        p->sim = w->sim;
        p->name = i == 0 ? "a" : "b";
        p->id = i;
        p->fails_left = SIZE_MAX;
        p->host = mu_sim_host_new(w->sim, p->name);
        p->proc = mu_sim_proc_new(
            p->host, &(struct mu_sim_program){.name = "worker", .start = start_peer, .arg = p});
    }
    mu_sim_run_for(w->sim, MU_NS_PER_MS);
}

static void open_pair(struct pair *w)
{
    open_pair_with(w, NULL);
}

static void stop(void *arg)
{
    struct peer *p = arg;

    if (p->gather != NULL) {
        mu_rpc_gather_stop(p->gather);
    }
    mu_rpc_agent_stop(p->agent);
}

static void close_pair(struct pair *w)
{
    for (int i = 0; i < 2; i++) {
        if (mu_sim_proc_alive(w->peer[i].proc)) {
            mu_sim_call(w->peer[i].proc, stop, &w->peer[i]);
            mu_sim_run_for(w->sim, 5 * MU_NS_PER_S);
            assert_true(w->peer[i].stopped);
        }
    }
    assert_null(mu_sim_failure(w->sim));
    mu_sim_free(w->sim);
}

/* --- calls ------------------------------------------------------------------------------------ */

static void on_ended(struct mu_rpc_out *out, int status, const char *text, struct mu_span message)
{
    struct call *c = MU_CONTAINER_OF(out, struct call, out);

    (void)message;
    assert_false(c->ended);
    c->ended = true;
    c->status = status;
    c->ended_ns = mu_sim_now_ns(c->sim);
    (void)snprintf(c->text, sizeof(c->text), "%s", text);
}

static void ignore_item(struct mu_rpc_out *out, struct mu_span message)
{
    (void)out;
    (void)message;
}

static void ignore(struct mu_rpc_out *out)
{
    (void)out;
}

struct beginning {
    struct peer *from;
    const char *to;
    struct call *call;
    size_t count;
};

static void begin(void *arg)
{
    struct beginning *b = arg;

    for (size_t i = 0; i < b->count; i++) {
        b->call[i].out.to = mu_rpc_agent_find(b->from->agent, b->to);
        b->call[i].out.ended = on_ended;
        b->call[i].out.item = ignore_item;
        b->call[i].out.writable = ignore;
        b->call[i].sim = b->from->sim;
        mu_rpc_agent_call(b->from->agent, &b->call[i].out);
    }
    mu_rpc_agent_turn(b->from->agent);
}

static void call(struct peer *from, const char *to, struct call *c, const char *method)
{
    struct beginning b = {from, to, c, 1};

    c->out.method = method;
    mu_sim_call(from->proc, begin, &b);
}

static struct mu_rpc_agent_stats stats_of(struct peer *p)
{
    struct mu_rpc_agent_stats stats;

    mu_rpc_agent_stats(p->agent, &stats);
    return stats;
}

static void test_rpc_agents_that_dial_each_other_keep_one_session(void **state)
{
    struct call calls[2] = {0};
    struct pair w;

    (void)state;
    open_pair(&w);
    call(&w.peer[0], "b", &calls[0], "t::T.echo");
    call(&w.peer[1], "a", &calls[1], "t::T.echo");
    mu_sim_run_for(w.sim, 5 * MU_NS_PER_S);
    for (int i = 0; i < 2; i++) {
        assert_true(calls[i].ended);
        assert_int_equal(calls[i].status, 0);
        assert_int_equal(stats_of(&w.peer[i]).dials, 1);
        assert_int_equal(stats_of(&w.peer[i]).sessions, 1);
    }
    /* The one whose name is less. */
    assert_int_equal(stats_of(&w.peer[0]).accepts, 0);
    assert_int_equal(stats_of(&w.peer[1]).accepts, 1);
    close_pair(&w);
}

static void test_rpc_agent_retries_at_the_times_of_the_formula(void **state)
{
    static const uint64_t gaps_ms[] = {1000, 1000, 1500, 2250, 3375};
    struct call c = {0};
    struct pair w;

    (void)state;
    open_pair(&w);
    call(&w.peer[0], "b", &c, "t::T.echo"); /* so that the session is there */
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    c = (struct call){.out = {.retrying = true, .retry = mu_rpc_retry_options_defaults()}};
    call(&w.peer[0], "b", &c, "t::T.fail");
    mu_sim_run_for(w.sim, 20 * MU_NS_PER_S);
    assert_true(c.ended);
    assert_int_equal(c.status, MUSTER_EREMOTE);
    assert_non_null(strstr(c.text, "max retries (5)"));
    assert_int_equal(w.peer[1].runs, 6);
    for (size_t i = 0; i < 5; i++) {
        uint64_t gap = w.peer[1].runs_ns[i + 1] - w.peer[1].runs_ns[i];

        /* Two ways of a fifth of a millisecond, and times cut to whole ones. */
        assert_true(gap > (gaps_ms[i] - 2) * MU_NS_PER_MS && gap < (gaps_ms[i] + 2) * MU_NS_PER_MS);
    }
    assert_int_equal(stats_of(&w.peer[0]).retries, 5);
    close_pair(&w);
}

static void test_rpc_agent_stop_ends_a_call_that_waits_for_its_next_try(void **state)
{
    struct call c = {.out = {.retrying = true, .retry = mu_rpc_retry_options_defaults()}};
    struct pair w;

    (void)state;
    open_pair(&w);
    call(&w.peer[0], "b", &c, "t::T.fail");
    mu_sim_run_for(w.sim, 500 * MU_NS_PER_MS);
    assert_false(c.ended);
    assert_int_equal(stats_of(&w.peer[0]).waiting, 1);
    mu_sim_call(w.peer[0].proc, stop, &w.peer[0]);
    mu_sim_run_for(w.sim, 100 * MU_NS_PER_MS);
    assert_true(c.ended);
    assert_int_equal(c.status, MUSTER_ECLOSED);
    assert_non_null(strstr(c.text, "shut down while the call waited for its next try"));
    close_pair(&w);
}

static void
test_rpc_agent_retry_succeeds_after_three_failures_at_the_times_of_the_formula(void **state)
{
    static const uint64_t gaps_ms[] = {1000, 1000, 1500};
    struct call c = {.out = {.retrying = true, .retry = mu_rpc_retry_options_defaults()}};
    struct pair w;

    (void)state;
    open_pair(&w);
    w.peer[1].fails_left = 3;
    call(&w.peer[0], "b", &c, "t::T.fail");
    mu_sim_run_for(w.sim, 20 * MU_NS_PER_S);
    assert_true(c.ended);
    assert_int_equal(c.status, 0);
    assert_int_equal(w.peer[1].runs, 4);
    for (size_t i = 1; i < 3; i++) { /* The first one waited for the connection. */
        uint64_t gap = w.peer[1].runs_ns[i + 1] - w.peer[1].runs_ns[i];

        assert_true(gap > (gaps_ms[i] - 2) * MU_NS_PER_MS && gap < (gaps_ms[i] + 2) * MU_NS_PER_MS);
    }
    close_pair(&w);
}

static void test_rpc_agent_retry_whose_send_fails_ends_at_once(void **state)
{
    struct call c = {
        .out = {.retrying = true, .once = true, .retry = mu_rpc_retry_options_defaults()}};
    struct pair w;

    (void)state;
    open_pair(&w);
    call(&w.peer[0], "b", &c, "t::T.silent");
    mu_sim_run_for(w.sim, 100 * MU_NS_PER_MS);
    /* The one that it was sent to is no more: its next send is refused before it is sent. */
    mu_sim_kill(w.peer[1].proc, MU_SIM_KILL_PROCESS);
    mu_sim_restart(w.peer[1].proc);
    mu_sim_run_for(w.sim, 3 * MU_NS_PER_S);
    assert_true(c.ended);
    assert_int_equal(c.status, MUSTER_EONCE);
    assert_non_null(strstr(c.text, "to b: "));
    assert_int_equal(stats_of(&w.peer[0]).retries, 1);
    close_pair(&w);
}

static void test_rpc_agent_budget_of_a_worker_ends_retries_to_it(void **state)
{
    static struct call calls[4];
    struct pair w;

    (void)state;
    open_pair_with(&w, &(struct peer){.budget_percent = 10}); /* A burst of two. */
    for (int i = 0; i < 4; i++) {
        calls[i] =
            (struct call){.out = {.retrying = true,
                                  .retry = {.retries_max = 5, .duration_ms = 10, .backoff = 1}}};
        call(&w.peer[0], "b", &calls[i], "t::T.fail");
    }
    mu_sim_run_for(w.sim, 5 * MU_NS_PER_S);
    assert_int_equal(stats_of(&w.peer[0]).retries, 2);
    for (int i = 0; i < 4; i++) {
        assert_true(calls[i].ended);
        assert_int_equal(calls[i].status, MUSTER_EREMOTE);
        assert_non_null(strstr(calls[i].text, "too many calls to this worker"));
    }
    close_pair(&w);
}

static void test_rpc_agent_a_deadline_is_kept_though_nobody_is_there(void **state)
{
    struct call c = {.out = {.timeout_ms = 700}};
    struct pair w;
    uint64_t began;

    (void)state;
    open_pair(&w);
    mu_sim_kill(w.peer[1].proc, MU_SIM_KILL_POWER);
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    began = mu_sim_now_ns(w.sim);
    call(&w.peer[0], "b", &c, "t::T.echo");
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    assert_true(c.ended);
    assert_int_equal(c.status, MUSTER_ETIMEDOUT);
    assert_true(c.ended_ns - began >= 700 * MU_NS_PER_MS);
    assert_true(c.ended_ns - began < 705 * MU_NS_PER_MS);
    assert_non_null(strstr(c.text, "to b: "));
    close_pair(&w);
}

static void test_rpc_agent_worker_that_comes_back_is_reached_again(void **state)
{
    struct call lost[10] = {0};
    struct call later = {0};
    struct pair w;

    (void)state;
    open_pair(&w);
    for (int i = 0; i < 10; i++) {
        lost[i].out.stream = true; /* so that nobody answers */
        call(&w.peer[0], "b", &lost[i], "t::T.stream");
    }
    mu_sim_run_for(w.sim, 50 * MU_NS_PER_MS);
    assert_int_equal(w.peer[1].streams, 10);
    mu_sim_kill(w.peer[1].proc, MU_SIM_KILL_PROCESS);
    mu_sim_restart(w.peer[1].proc);
    mu_sim_run_for(w.sim, 3 * MU_NS_PER_S);
    for (int i = 0; i < 10; i++) {
        assert_true(lost[i].ended);
        assert_int_equal(lost[i].status, MUSTER_ESESSION);
    }
    call(&w.peer[0], "b", &later, "t::T.echo");
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    assert_int_equal(later.status, 0);
    assert_true(later.ended);
    close_pair(&w);
}

static void cancel_all(void *arg)
{
    struct beginning *b = arg;

    for (size_t i = 0; i < b->count; i++) {
        mu_rpc_out_cancel(&b->call[i].out);
    }
    mu_rpc_agent_turn(b->from->agent);
}

static void test_rpc_agent_thousand_abandoned_streams_leave_nothing(void **state)
{
    static struct call calls[1000];
    struct beginning b;
    struct pair w;
    size_t before;

    (void)state;
    open_pair(&w);
    memset(calls, 0, sizeof(calls));
    call(&w.peer[0], "b", &calls[0], "t::T.echo");
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    before = mu_sim_proc_blocks(w.peer[1].proc);
    for (int round = 0; round < 3; round++) {
        for (size_t i = 0; i < 1000; i++) {
            calls[i] = (struct call){.out = {.method = "t::T.stream", .stream = true}};
        }
        b = (struct beginning){&w.peer[0], "b", calls, 1000};
        mu_sim_call(w.peer[0].proc, begin, &b);
        mu_sim_run_for(w.sim, MU_NS_PER_S);
        assert_int_equal(w.peer[1].streams, 1000);
        mu_sim_call(w.peer[0].proc, cancel_all, &b);
        mu_sim_run_for(w.sim, 20 * MU_NS_PER_S); /* some beats, so that spare memory goes as well */
        assert_int_equal(w.peer[1].streams, 0);
        for (size_t i = 0; i < 1000; i++) {
            assert_int_equal(calls[i].status, MUSTER_ECANCELED);
        }
    }
    assert_true(mu_sim_proc_blocks(w.peer[1].proc) <= before + 40);
    close_pair(&w);
}

static void test_rpc_agent_thousand_calls_of_unknown_methods_leave_nothing(void **state)
{
    static struct call calls[1000];
    struct beginning b;
    struct pair w;
    size_t before;

    (void)state;
    open_pair(&w);
    memset(calls, 0, sizeof(calls));
    call(&w.peer[0], "b", &calls[0], "t::T.echo");
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    before = mu_sim_proc_blocks(w.peer[1].proc);
    for (size_t i = 0; i < 1000; i++) {
        calls[i] = (struct call){.out = {.method = "t::T.none", .once = i % 2 == 0}};
    }
    b = (struct beginning){&w.peer[0], "b", calls, 1000};
    mu_sim_call(w.peer[0].proc, begin, &b);
    mu_sim_run_for(w.sim, 20 * MU_NS_PER_S);
    for (size_t i = 0; i < 1000; i++) {
        assert_int_equal(calls[i].status, MUSTER_ENOMETHOD);
        assert_non_null(strstr(calls[i].text, "to b: b serves no method \"t::T.none\""));
    }
    assert_true(mu_sim_proc_blocks(w.peer[1].proc) <= before + 40);
    close_pair(&w);
}

static void test_rpc_agent_message_over_the_limit_is_refused_and_forgotten(void **state)
{
    static uint8_t data[4 << 20];
    struct mu_rpc_part part = {mu_span(data, sizeof(data)), -1};
    struct call c = {.out = {.parts = &part, .part_count = 1}};
    struct call later = {0};
    struct pair w;
    size_t before;

    (void)state;
    open_pair_with(&w, &(struct peer){.message_bytes_max = 1 << 20});
    call(&w.peer[0], "b", &later, "t::T.echo");
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    before = mu_sim_proc_blocks(w.peer[1].proc);
    call(&w.peer[0], "b", &c, "t::T.echo");
    mu_sim_run_for(w.sim, 20 * MU_NS_PER_S);
    assert_true(c.ended);
    assert_int_equal(c.status, MUSTER_ELIMIT);
    assert_non_null(strstr(c.text, "to b: the message is longer than this worker accepts"));
    assert_true(mu_sim_proc_blocks(w.peer[1].proc) <= before + 40);
    later = (struct call){0};
    call(&w.peer[0], "b", &later, "t::T.echo");
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    assert_int_equal(later.status, 0);
    close_pair(&w);
}

/* The old process is only stopped, and says all it had to say when it goes on. */
static void test_rpc_agent_replies_of_the_process_before_are_refused(void **state)
{
    struct call lost[10] = {0};
    struct call greeting = {0};
    struct call later = {0};
    struct peer successor = {.name = "b", .id = 1, .fails_left = SIZE_MAX};
    struct pair w;

    (void)state;
    open_pair(&w);
    for (int i = 0; i < 10; i++) {
        call(&w.peer[0], "b", &lost[i], "t::T.silent");
    }
    mu_sim_run_for(w.sim, 50 * MU_NS_PER_MS);
    mu_sim_pause(w.peer[1].proc, 2 * MU_NS_PER_S);
    successor.sim = w.sim;
    successor.host = mu_sim_host_new(w.sim, "b2");
    successor.proc = mu_sim_proc_new(
        successor.host,
        &(struct mu_sim_program){.name = "worker", .start = start_peer, .arg = &successor});
    mu_sim_run_for(w.sim, 10 * MU_NS_PER_MS);
    call(&successor, "a", &greeting, "t::T.echo");
    mu_sim_run_for(w.sim, 500 * MU_NS_PER_MS);
    assert_int_equal(greeting.status, 0);
    for (int i = 0; i < 10; i++) {
        assert_true(lost[i].ended);
        assert_int_equal(lost[i].status, MUSTER_ESESSION);
        assert_non_null(strstr(lost[i].text, "to b: "));
    }
    call(&w.peer[0], "b", &later, "t::T.fail");
    mu_sim_run_for(w.sim, 500 * MU_NS_PER_MS);
    assert_true(later.ended);
    assert_int_equal(successor.runs, 1);
    assert_int_equal(w.peer[1].runs, 0);
    mu_sim_run_for(w.sim, 5 * MU_NS_PER_S); /* No call ends twice: on_ended() sees to that. */
    mu_sim_call(successor.proc, stop, &successor);
    mu_sim_run_for(w.sim, 5 * MU_NS_PER_S);
    assert_true(successor.stopped);
    close_pair(&w);
}

/* --- limits ----------------------------------------------------------------------------------- */

static void test_rpc_agent_calls_that_are_not_whole_are_so_many_bytes(void **state)
{
    static uint8_t data[2 << 20];
    struct mu_rpc_part parts[] = {{mu_span(data, 1 << 20), -1}, {mu_span(data, 2 << 20), -1}};
    struct pair w;

    (void)state;
    open_pair_with(&w, &(struct peer){.coming_bytes_max = (1 << 20) + (1 << 19)});
    /* What was refused does not count any more, and what is whole does not either. */
    for (int i = 0; i < 6; i++) {
        struct call c = {.out = {.parts = &parts[i % 2], .part_count = 1}};

        call(&w.peer[0], "b", &c, "t::T.echo");
        mu_sim_run_for(w.sim, 5 * MU_NS_PER_S);
        assert_true(c.ended);
        assert_int_equal(c.status, i % 2 == 0 ? 0 : MUSTER_ELIMIT);
        if (i % 2 != 0) {
            assert_non_null(strstr(c.text, "to b: the message is longer than this worker accepts"));
        }
    }
    close_pair(&w);
}

static void test_rpc_agent_has_so_many_sessions(void **state)
{
    struct peer third = {.name = "c", .id = 2, .fails_left = SIZE_MAX};
    struct call first = {0};
    struct call second = {0};
    struct call again = {0};
    struct pair w;

    (void)state;
    open_pair_with(&w, &(struct peer){.sessions_max = 1});
    third.sim = w.sim;
    third.host = mu_sim_host_new(w.sim, "c");
    third.proc = mu_sim_proc_new(
        third.host, &(struct mu_sim_program){.name = "worker", .start = start_peer, .arg = &third});
    mu_sim_run_for(w.sim, MU_NS_PER_MS);
    call(&w.peer[0], "b", &first, "t::T.echo");
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    assert_int_equal(first.status, 0);
    call(&third, "b", &second, "t::T.echo");
    mu_sim_run_for(w.sim, 20 * MU_NS_PER_S);
    assert_true(second.ended);
    assert_int_equal(second.status, MUSTER_EREFUSED);
    assert_non_null(strstr(second.text, "the server has as many sessions as it may"));
    assert_int_equal(stats_of(&w.peer[1]).sessions, 1);
    call(&w.peer[0], "b", &again, "t::T.echo");
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    assert_true(again.ended && again.status == 0);
    /* When that one has said goodbye there is room for the other. */
    mu_sim_call(w.peer[0].proc, stop, &w.peer[0]);
    mu_sim_run_for(w.sim, 5 * MU_NS_PER_S);
    second = (struct call){0};
    call(&third, "b", &second, "t::T.echo");
    mu_sim_run_for(w.sim, 20 * MU_NS_PER_S);
    assert_true(second.ended && second.status == 0);
    mu_sim_call(third.proc, stop, &third);
    mu_sim_run_for(w.sim, 5 * MU_NS_PER_S);
    assert_true(third.stopped);
    close_pair(&w);
}

/* Of a process that is gone without goodbye, what it was served goes after this, not before. */
static void test_rpc_agent_keeps_the_session_of_a_dead_process_so_long(void **state)
{
    struct call c = {.out = {.stream = true}};
    struct pair w;

    (void)state;
    open_pair_with(&w, &(struct peer){.eof_grace_ms = 2000});
    call(&w.peer[0], "b", &c, "t::T.stream");
    mu_sim_run_for(w.sim, MU_NS_PER_S);
    assert_int_equal(w.peer[1].streams, 1);
    mu_sim_kill(w.peer[0].proc, MU_SIM_KILL_PROCESS);
    mu_sim_run_for(w.sim, 1900 * MU_NS_PER_MS);
    assert_int_equal(w.peer[1].streams, 1);
    mu_sim_run_for(w.sim, 400 * MU_NS_PER_MS);
    assert_int_equal(w.peer[1].streams, 0);
    assert_int_equal(stats_of(&w.peer[1]).sessions, 0);
    close_pair(&w);
}

static void start_gather(void *arg)
{
    struct peer *p = arg;

    assert_int_equal(mu_rpc_gather_start(p->env, p->agent, &p->gather), 0);
}

/* A worker that comes to a room waits there for the leader; a room whose name is too long there is
 * not. */
static void test_rpc_gather_tag_is_so_long_and_no_longer(void **state)
{
    static const uint8_t wait_ms[4] = {0xe8, 3};
    static char tag[MU_RPC_GATHER_TAG_MAX + 1];
    struct pair w;

    (void)state;
    memset(tag, 't', sizeof(tag));
    open_pair(&w);
    mu_sim_call(w.peer[1].proc, start_gather, &w.peer[1]);
    for (size_t more = 0; more < 2; more++) {
        struct mu_rpc_part parts[] = {{mu_span(tag, MU_RPC_GATHER_TAG_MAX + more), -1},
                                      {MU_SPAN_LIT("object"), -1},
                                      {mu_span(wait_ms, sizeof(wait_ms)), -1}};
        struct call c = {.out = {.parts = parts, .part_count = 3}};

        call(&w.peer[0], "b", &c, MU_RPC_GATHER_METHOD);
        mu_sim_run_for(w.sim, 500 * MU_NS_PER_MS);
        assert_int_equal(c.ended, more != 0);
        mu_sim_run_for(w.sim, MU_NS_PER_S);
        assert_true(c.ended);
        assert_int_equal(c.status, more == 0 ? MUSTER_ETIMEDOUT : MUSTER_EPROTO);
    }
    close_pair(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(
            test_rpc_agent_retry_succeeds_after_three_failures_at_the_times_of_the_formula),
        cmocka_unit_test(test_rpc_agent_retry_whose_send_fails_ends_at_once),
        cmocka_unit_test(test_rpc_agent_budget_of_a_worker_ends_retries_to_it),
        cmocka_unit_test(test_rpc_agent_thousand_calls_of_unknown_methods_leave_nothing),
        cmocka_unit_test(test_rpc_agent_message_over_the_limit_is_refused_and_forgotten),
        cmocka_unit_test(test_rpc_agent_replies_of_the_process_before_are_refused),
        cmocka_unit_test(test_rpc_agents_that_dial_each_other_keep_one_session),
        cmocka_unit_test(test_rpc_agent_retries_at_the_times_of_the_formula),
        cmocka_unit_test(test_rpc_agent_stop_ends_a_call_that_waits_for_its_next_try),
        cmocka_unit_test(test_rpc_agent_a_deadline_is_kept_though_nobody_is_there),
        cmocka_unit_test(test_rpc_agent_worker_that_comes_back_is_reached_again),
        cmocka_unit_test(test_rpc_agent_thousand_abandoned_streams_leave_nothing),
        cmocka_unit_test(test_rpc_agent_calls_that_are_not_whole_are_so_many_bytes),
        cmocka_unit_test(test_rpc_agent_has_so_many_sessions),
        cmocka_unit_test(test_rpc_agent_keeps_the_session_of_a_dead_process_so_long),
        cmocka_unit_test(test_rpc_gather_tag_is_so_long_and_no_longer),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * Workers that call each other through RPC agents: short calls, long ones in pieces, slow ones,
 * ones that fail, are canceled or run out of time, streams both ways, and calls that are tried
 * again but must run at most once. Every worker calls every other, so two often dial each other at
 * once.
 *
 * What must hold: every call ends exactly once, an answer is that of its own call, a call that must
 * run at most once never runs twice, whatever is killed or lost, and when the faults have ended
 * every worker reaches every other.
 */
#include "scenarios/scenarios.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkers/once.h"
#include <muster/log.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/rpc/agent.h"

#define WORKERS     4
#define PORT        7000
#define CALLS_MAX   20 /* calls of one worker in progress */
#define RUNS_MAX    20000
#define FAULTY_NS   (15 * MU_NS_PER_S)
#define CONVERGE_NS (240 * MU_NS_PER_S)
#define LONG_BYTES  (1500u << 10)

static const char *const names[WORKERS] = {"w0", "w1", "w2", "w3"};

struct worker_state {
    struct rpc_world *world;
    uint32_t number;
    uint64_t reached[WORKERS]; /* calls that were answered, by worker */
    struct mu_addr near;       /* as it was last told; w0 and w1 are on one host */
    struct mu_sim_proc *proc;
};

/* What outlives the processes. */
struct rpc_world {
    struct mu_sim *sim;
    struct once *calls;
    struct worker_state workers[WORKERS];
    uint64_t wanted[WORKERS][WORKERS];
    uint8_t *runs; /* how often each `once` call ran */
    uint32_t run_count;
    uint64_t retried;
    bool leaving;
    bool short_of_memory;
    bool keyless; /* a planted bug: calls that must run at most once are sent without a key */
};

enum kind {
    KIND_ECHO,
    KIND_LONG,
    KIND_SLEEP,
    KIND_FAIL,
    KIND_NOBODY,
    KIND_ONCE,
    KIND_STREAM,
    KINDS,
};

static const char *const methods[KINDS] = {
    "sim::T.echo", "sim::T.echo", "sim::T.sleep",  "sim::T.fail",
    "sim::T.none", "sim::T.once", "sim::T.stream",
};

struct worker {
    struct worker_state *state;
    struct mu_env *env;
    struct mu_rpc_agent *agent;
    struct mu_timer next;
    struct mu_rpc_handler handlers[5];
    size_t under_way;
    bool stopping;
};

/* --- serving ---------------------------------------------------------------------------------- */

/* A call that is not answered at once. */
struct sleeper {
    struct mu_timer timer;
    struct mu_env *env;
    struct mu_rpc_in *in;
    struct mu_buf answer;
    struct mu_buf unsent; /* of a stream: items that found no room, each after a u32 length */
    bool ended;
};

static struct worker *worker_of(struct mu_rpc_handler *handler, size_t index)
{
    return MU_CONTAINER_OF(handler - index, struct worker, handlers);
}

static void answer(struct sleeper *s, int status, struct mu_span message)
{
    mu_env_timer_arm(s->env, &s->timer, MU_MONO_NEVER);
    mu_rpc_in_reply(s->in, status, message);
    mu_buf_fini(&s->answer);
    mu_buf_fini(&s->unsent);
    mu_free(s);
}

static void wake(struct mu_timer *timer)
{
    struct sleeper *s = MU_CONTAINER_OF(timer, struct sleeper, timer);
    struct mu_rpc_agent *a = s->in->agent;

    answer(s, 0, mu_buf_span(&s->answer));
    mu_rpc_agent_turn(a);
}

static struct sleeper *fall_asleep(struct worker *w, struct mu_rpc_in *in, struct mu_span message,
                                   uint64_t ms_max)
{
    struct sleeper *s = mu_sim_calloc(sizeof(*s));
    uint64_t draw;

    mu_env_entropy(w->env, &draw, sizeof(draw));
    s->env = w->env;
    s->in = in;
    in->owner = s;
    mu_buf_init(&s->answer, SIZE_MAX);
    mu_buf_init(&s->unsent, SIZE_MAX);
    mu_sim_spare_memory(true);
    MU_ASSERT(mu_buf_append(&s->answer, message) == 0);
    mu_sim_spare_memory(false);
    mu_timer_init(&s->timer, wake);
    if (ms_max != 0) {
        mu_env_timer_arm(w->env, &s->timer, mu_mono_add_ms(mu_env_now(w->env).mono, draw % ms_max));
    }
    return s;
}

static void on_echo(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    (void)h;
    mu_rpc_in_reply(in, 0, message);
}

static void on_fail(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    (void)h;
    (void)message;
    mu_rpc_in_reply(in, MUSTER_EREMOTE, MU_SPAN_LIT("as was asked for"));
}

static void on_sleep(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    (void)fall_asleep(worker_of(h, 2), in, message, 800);
}

static void on_once(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    struct worker *w = worker_of(h, 3);
    struct rpc_world *world = w->state->world;
    uint32_t number = message.len >= 5 ? mu_get_u32(message.data + 1) : UINT32_MAX;

    if (number >= world->run_count) {
        mu_sim_fail(world->sim, "a call that nobody made: %" PRIu32, number);
    } else if (++world->runs[number] > 1) {
        mu_sim_fail(world->sim, "call %" PRIu32 " ran twice", number);
    }
    (void)fall_asleep(w, in, message, 400);
}

static void on_cancel(struct mu_rpc_in *in, int why)
{
    answer(in->owner, why, MU_SPAN_LIT("canceled"));
}

/* A stream is an echo of its items; its answer is its first message. */
static void on_stream(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    (void)fall_asleep(worker_of(h, 4), in, message, 0);
}

static void push_items(struct sleeper *s)
{
    while (s->unsent.len != 0) {
        struct mu_span held = mu_buf_span(&s->unsent);
        size_t len = mu_get_u32(held.data);
        int err = mu_rpc_in_item(s->in, mu_span(held.data + 4, len));

        if (err == MUSTER_EAGAIN) {
            return;
        }
        if (err == MUSTER_ENOMEM) {
            answer(s, err, MU_SPAN_LIT("no memory"));
            return;
        }
        MU_ASSERT(err == 0 || err == MUSTER_ECANCELED);
        mu_rpc_in_consumed(s->in, len);
        mu_buf_consume(&s->unsent, 4 + len);
    }
    if (s->ended) {
        answer(s, 0, mu_buf_span(&s->answer));
    }
}

static void on_stream_item(struct mu_rpc_in *in, struct mu_span message)
{
    struct sleeper *s = in->owner;

    mu_sim_spare_memory(true);
    MU_ASSERT(mu_buf_reserve(&s->unsent, 4 + message.len) == 0);
    mu_sim_spare_memory(false);
    mu_buf_put_u32(&s->unsent, (uint32_t)message.len);
    mu_buf_put(&s->unsent, message);
    push_items(s);
}

static void on_stream_end(struct mu_rpc_in *in)
{
    struct sleeper *s = in->owner;

    s->ended = true;
    push_items(s);
}

static void on_stream_writable(struct mu_rpc_in *in)
{
    push_items(in->owner);
}

/* --- calling ---------------------------------------------------------------------------------- */

struct call {
    struct mu_rpc_out out;
    struct worker *worker;
    struct mu_timer cancel;
    enum kind kind;
    uint32_t to;
    uint32_t number; /* KIND_ONCE */
    uint64_t ticket;
    uint64_t began_ns;
    uint32_t items; /* KIND_STREAM: items to send */
    uint32_t sent;
    uint32_t echoed; /* items that have come back */
    bool ended;
    bool left; /* END was sent */
    struct mu_rpc_part part;
    size_t len;
    uint8_t *data;
};

static bool may_fail_with(const struct call *c, int status)
{
    switch (status) {
    case MUSTER_ETIMEDOUT:
        return c->out.timeout_ms != 0;
    case MUSTER_ECANCELED:
    case MUSTER_ECONN:
    case MUSTER_ESESSION:
    case MUSTER_ECLOSED:
    case MUSTER_EDRAIN:
        return true;
    case MUSTER_EREFUSED:
        return true;
    case MUSTER_ENOMEM:
        return c->worker->state->world->short_of_memory;
    case MUSTER_EONCE:
        return c->kind == KIND_ONCE;
    case MUSTER_EREMOTE:
        return c->kind == KIND_FAIL;
    case MUSTER_ENOMETHOD:
        return c->kind == KIND_NOBODY;
    default:
        return false;
    }
}

static void check_end(struct call *c, int status, const char *text, struct mu_span message)
{
    struct rpc_world *w = c->worker->state->world;
    size_t head;

    once_end(w->calls, c->ticket);
    if (status != 0) {
        if (!may_fail_with(c, status)) {
            mu_sim_fail(w->sim, "%s to %s ended with %d: %s", c->out.method, names[c->to], status,
                        text);
        }
        if (strstr(text, names[c->to]) == NULL && !w->short_of_memory) {
            mu_sim_fail(w->sim, "an error does not name the worker: %s", text);
        }
        return;
    }
    if (c->kind == KIND_FAIL || c->kind == KIND_NOBODY) {
        mu_sim_fail(w->sim, "%s was answered", c->out.method);
    }
    head = c->len > MU_RPC_MSG_LONG ? 15 : 1;
    if (message.len != c->len + head || memcmp(message.data + head, c->data, c->len) != 0) {
        mu_sim_fail(w->sim, "%s: the answer of another call", c->out.method);
    }
    if (c->kind == KIND_ONCE && w->runs[c->number] != 1) {
        mu_sim_fail(w->sim, "call %" PRIu32 " was answered and ran %u times", c->number,
                    w->runs[c->number]);
    }
    if (c->kind == KIND_STREAM && c->echoed != c->items) {
        mu_sim_fail(w->sim, "a stream ended after %" PRIu32 " of %" PRIu32 " items", c->echoed,
                    c->items);
    }
    c->worker->state->reached[c->to]++;
}

static void leave_if_done(struct worker *w)
{
    if (w->stopping || !w->state->world->leaving) {
        return;
    }
    w->stopping = true;
    mu_env_timer_arm(w->env, &w->next, MU_MONO_NEVER);
    mu_rpc_agent_stop(w->agent);
}

static void on_ended(struct mu_rpc_out *out, int status, const char *text, struct mu_span message)
{
    struct call *c = MU_CONTAINER_OF(out, struct call, out);
    struct worker *w = c->worker;

    if (mu_sim_tracing(w->state->world->sim)) {
        mu_sim_note(w->state->world->sim, mu_sim_proc_of(w->env), "call %" PRIu64 ": %d %s",
                    c->ticket, status, text);
    }
    w->state->world->retried += out->again.count;
    check_end(c, status, text, message);
    mu_env_timer_arm(w->env, &c->cancel, MU_MONO_NEVER);
    w->under_way--;
    /* The borrowed memory must not be read any more, not even to send it again. */
    memset(c->data, 0xdd, c->len);
    mu_free(c->data);
    mu_free(c);
}

static void feed_stream(struct call *c)
{
    while (c->sent < c->items) {
        uint8_t item[8] = {0};
        int err;

        mu_put_u32(item, c->sent);
        err = mu_rpc_out_item(&c->out, mu_span(item, sizeof(item)));
        if (err == MUSTER_ENOMEM) {
            mu_rpc_out_cancel(&c->out);
        }
        if (err != 0) {
            return;
        }
        c->sent++;
    }
    if (!c->left) {
        int err = mu_rpc_out_end(&c->out);

        c->left = err == 0;
        if (err == MUSTER_ENOMEM) {
            mu_rpc_out_cancel(&c->out);
        }
    }
}

static void on_writable(struct mu_rpc_out *out)
{
    feed_stream(MU_CONTAINER_OF(out, struct call, out));
}

static void on_item(struct mu_rpc_out *out, struct mu_span message)
{
    struct call *c = MU_CONTAINER_OF(out, struct call, out);

    if (message.len != 8 || mu_get_u32(message.data) != c->echoed) {
        mu_sim_fail(c->worker->state->world->sim, "item %" PRIu32 " of a stream is another one",
                    c->echoed);
    }
    c->echoed++;
    mu_rpc_out_consumed(out, message.len);
}

static void on_cancel_timer(struct mu_timer *timer)
{
    struct call *c = MU_CONTAINER_OF(timer, struct call, cancel);
    struct mu_rpc_agent *a = c->worker->agent;

    mu_rpc_out_cancel(&c->out);
    mu_rpc_agent_turn(a);
}

static void fill_once(struct call *c, struct mu_prng *prng)
{
    struct rpc_world *w = c->worker->state->world;

    c->number = w->run_count++;
    mu_put_u32(c->data, c->number);
    c->out.once = !w->keyless;
    c->out.retrying = true;
    c->out.retry = (struct mu_rpc_retry_options){
        .retries_max = (int32_t)mu_prng_below(prng, 8),
        .duration_ms = (int64_t)mu_prng_below(prng, 1000),
        .backoff = 1.5,
        .jitter = mu_prng_chance(prng, 500000) ? 0.5 : 0,
    };
}

static void begin(struct worker *w, struct mu_prng *prng)
{
    struct rpc_world *world = w->state->world;
    struct call *c = mu_sim_calloc(sizeof(*c));

    c->worker = w;
    c->kind = (enum kind)mu_prng_below(prng, KINDS);
    c->kind = c->kind == KIND_LONG && mu_prng_chance(prng, 900000) ? KIND_ECHO : c->kind;
    c->kind = c->kind == KIND_ONCE && world->run_count == RUNS_MAX ? KIND_ECHO : c->kind;
    c->to = (uint32_t)mu_prng_below(prng, WORKERS);
    c->len = c->kind == KIND_LONG ? LONG_BYTES / 8 + mu_prng_below(prng, LONG_BYTES)
                                  : 4 + mu_prng_below(prng, 60);
    c->data = mu_sim_calloc(c->len);
    mu_env_entropy(w->env, c->data, c->len < 64 ? c->len : 64);
    for (size_t i = 64; i < c->len; i++) {
        c->data[i] = (uint8_t)(c->data[i % 61] + i / 251); /* The pattern shows a piece that is out
                                                              of place. */
    }
    c->out.method = methods[c->kind];
    c->out.timeout_ms = 50 + (uint32_t)mu_prng_below(prng, 4000);
    c->out.stream = c->kind == KIND_STREAM;
    c->items = c->out.stream ? (uint32_t)mu_prng_below(prng, 20) : 0;
    c->out.ended = on_ended;
    c->out.item = on_item;
    c->out.writable = on_writable;
    if (c->kind == KIND_ONCE) {
        fill_once(c, prng);
    }
    c->part = (struct mu_rpc_part){mu_span(c->data, c->len), -1};
    c->out.parts = &c->part;
    c->out.part_count = 1;
    c->out.to = mu_rpc_agent_find(w->agent, names[c->to]);
    MU_ASSERT(c->out.to != NULL);
    c->ticket = once_begin(world->calls, w->state->number);
    mu_timer_init(&c->cancel, on_cancel_timer);
    if (mu_prng_chance(prng, 100000)) {
        mu_env_timer_arm(w->env, &c->cancel,
                         mu_mono_add_ms(mu_env_now(w->env).mono, mu_prng_below(prng, 500)));
    }
    w->under_way++;
    if (mu_sim_tracing(world->sim)) {
        mu_sim_note(world->sim, mu_sim_proc_of(w->env), "call %" PRIu64 ": %s to %s", c->ticket,
                    c->out.method, names[c->to]);
    }
    mu_rpc_agent_call(w->agent, &c->out);
}

static void on_next(struct mu_timer *timer)
{
    struct worker *w = MU_CONTAINER_OF(timer, struct worker, next);
    struct mu_prng *prng = mu_sim_prng(w->state->world->sim);

    if (w->state->world->leaving) {
        leave_if_done(w);
        return;
    }
    if (w->under_way < CALLS_MAX) {
        begin(w, prng);
        mu_rpc_agent_turn(w->agent);
    }
    mu_env_timer_arm(w->env, timer,
                     mu_mono_add_ms(mu_env_now(w->env).mono, mu_prng_chance(prng, 20000)
                                                                 ? 4000
                                                                 : 5 + mu_prng_below(prng, 80)));
}

/* --- a worker --------------------------------------------------------------------------------- */

static void on_stopped(void *context)
{
    struct worker *w = context;
    struct mu_env *env = w->env;

    if (w->under_way != 0) {
        mu_sim_fail(w->state->world->sim, "the agent stopped with %zu calls under way",
                    w->under_way);
    }
    mu_rpc_agent_free(w->agent);
    mu_free(w);
    mu_sim_exit(env);
}

static void serve(struct worker *w)
{
    w->handlers[0] = (struct mu_rpc_handler){.method = "sim::T.echo", .start = on_echo};
    w->handlers[1] = (struct mu_rpc_handler){.method = "sim::T.fail", .start = on_fail};
    w->handlers[2] =
        (struct mu_rpc_handler){.method = "sim::T.sleep", .start = on_sleep, .cancel = on_cancel};
    w->handlers[3] =
        (struct mu_rpc_handler){.method = "sim::T.once", .start = on_once, .cancel = on_cancel};
    w->handlers[4] = (struct mu_rpc_handler){.method = "sim::T.stream",
                                             .stream = true,
                                             .start = on_stream,
                                             .item = on_stream_item,
                                             .end = on_stream_end,
                                             .writable = on_stream_writable,
                                             .cancel = on_cancel};
    for (size_t i = 0; i < 5; i++) {
        MU_ASSERT(mu_rpc_agent_serve(w->agent, &w->handlers[i]) == 0);
    }
}

static int start_worker(struct mu_env *env, void *arg)
{
    struct worker_state *state = arg;
    struct mu_rpc_agent_config config = mu_rpc_agent_config_defaults();
    struct worker *w = mu_sim_calloc(sizeof(*w));
    struct mu_errmsg msg;
    int err;

    w->state = state;
    w->env = env;
    (void)snprintf(config.name, sizeof(config.name), "%s", names[state->number]);
    config.id = (int32_t)state->number;
    config.listens = true;
    config.listen = (struct mu_addr){
        .kind = MU_ADDR_TCP, .port = (uint16_t)(PORT + state->number), .host = "0.0.0.0"};
    config.near = true;
    config.connect_ms = 3000;
    config.reconnect_ms = 2000;
    config.rpc.grace_ms = 2000;
    config.rpc.beat_ms = 300;
    config.rpc.dead_ms = 1000;
    config.rpc.trace = mu_sim_trace(env);
    config.stopped = on_stopped;
    config.context = w;
    mu_sim_spare_memory(true); /* A worker that cannot start is not tested here. */
    err = mu_rpc_agent_start(env, &config, &w->agent, &msg);
    if (err != 0) {
        return err;
    }
    serve(w);
    state->near = *mu_rpc_agent_near_addr(w->agent);
    for (int i = 0; i < WORKERS; i++) {
        struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = (uint16_t)(PORT + i)};
        const struct mu_addr *near = &state->world->workers[i].near;

        (void)snprintf(addr.host, sizeof(addr.host), "%s", names[i == 1 ? 0 : i]);
        MU_ASSERT(mu_rpc_agent_add(w->agent, names[i], i, &addr, &msg) == 0);
        /* An address of a process that is there, or that was, or of no process. */
        MU_ASSERT(mu_rpc_agent_set_near(w->agent, names[i], near->kind == 0 ? NULL : near) == 0);
    }
    mu_sim_spare_memory(false);
    mu_timer_init(&w->next, on_next);
    mu_env_timer_arm(env, &w->next, mu_env_now(env).mono);
    return 0;
}

static void worker_killed(void *arg)
{
    struct worker_state *state = arg;

    once_forgive(state->world->calls, state->number);
}

/* --- the story -------------------------------------------------------------------------------- */

static bool all_reached(void *arg)
{
    struct rpc_world *w = arg;

    for (int i = 0; i < WORKERS; i++) {
        for (int j = 0; j < WORKERS; j++) {
            if (w->workers[i].reached[j] < w->wanted[i][j]) {
                return false;
            }
        }
    }
    return true;
}

static bool all_left(void *arg)
{
    struct rpc_world *w = arg;

    for (int i = 0; i < WORKERS; i++) {
        if (mu_sim_proc_alive(w->workers[i].proc)) {
            return false;
        }
    }
    return true;
}

static void run_world(struct mu_sim *sim, bool keyless)
{
    struct rpc_world *w = mu_sim_calloc(sizeof(*w));
    struct mu_sim_host *host = NULL;

    mu_sim_trace_log(sim);
    w->sim = sim;
    w->keyless = keyless;
    w->short_of_memory =
        mu_sim_faults(sim)->alloc_fail_ppm != 0 || mu_sim_faults(sim)->shortage_every_ns != 0;
    w->calls = once_new(sim, "call");
    w->runs = mu_sim_calloc(RUNS_MAX);
    for (uint32_t i = 0; i < WORKERS; i++) {
        w->workers[i] = (struct worker_state){.world = w, .number = i};
        host = i == 1 ? host : mu_sim_host_new(sim, names[i]);
        w->workers[i].proc = mu_sim_proc_new(host, &(struct mu_sim_program){.name = "worker",
                                                                            .start = start_worker,
                                                                            .killed = worker_killed,
                                                                            .arg = &w->workers[i]});
    }
    mu_sim_run_for(sim, FAULTY_NS);
    mu_sim_heal(sim);
    for (int i = 0; i < WORKERS; i++) {
        for (int j = 0; j < WORKERS; j++) {
            w->wanted[i][j] = w->workers[i].reached[j] + 2;
        }
    }
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_reached, w)) {
        mu_sim_fail(sim, "a worker did not get through though all faults had ended");
    }
    w->leaving = true;
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_left, w)) {
        mu_sim_fail(sim, "a worker did not leave");
    }
    once_finish(w->calls);
    once_free(w->calls);
    mu_free(w->runs);
    mu_free(w);
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
}

SIM_SCENARIO(rpc, "rpc",
             "workers that call each other: each call ends once, and runs at most once if wanted",
             mu_sim_faults_draw_all, false, run_world(sim, false))
SIM_SCENARIO(rpc_twice, "rpc-twice", "the same, with calls that are tried again and have no key",
             mu_sim_faults_draw_all, true, run_world(sim, true))

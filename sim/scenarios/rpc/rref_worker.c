/* A worker of the scenario "rref": it makes values, passes references on, fetches and releases. */
#include "scenarios/rpc/rref_world.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"

#define PORT     7000
#define REFS_MAX 12 /* of one worker */

const char *const rref_names[WORKERS] = {"w0", "w1", "w2", "w3"};

struct ref {
    struct mu_rref base;
    struct worker *worker;
    struct mu_list link;
    size_t record;
    uint32_t fetching; /* fetches that have not ended */
    bool released;
};

struct worker {
    struct worker_state *state;
    struct mu_env *env;
    struct mu_rpc_agent *agent;
    struct mu_rref_agent *refs;
    struct mu_timer next;
    struct mu_rpc_handler handlers[2];
    struct mu_list held; /* struct ref */
    struct mu_list sleepers;
    size_t held_count;
    size_t under_way;
    bool known[WORKERS]; /* workers that were not removed */
    bool stopping;
};

static bool is_gone(const struct rref_world *w, uint32_t worker, uint64_t life)
{
    return worker < WORKERS && (w->workers[worker].life != life || w->workers[worker].left);
}

/* --- what must hold --------------------------------------------------------------------------- */

static void on_freed(void *context, struct mu_rref_id id)
{
    struct worker *owner = context;
    struct rref_world *w = owner->state->world;

    for (size_t i = 0; i < w->user_count && !owner->stopping; i++) {
        struct user_record *u = &w->users[i];

        if (mu_rref_id_equal(u->rref, id) && u->confirmed && !u->released &&
            w->workers[u->worker].live != NULL && !is_gone(w, u->worker, u->life)) {
            mu_sim_fail(w->sim, "%s freed a value that %s still uses",
                        rref_names[owner->state->number], rref_names[u->worker]);
        }
    }
}

/* A call that is not `once` may run in a process, and in the one after it. */
static bool was_taken_before(const struct rref_world *w, const struct user_record *u)
{
    for (const struct user_record *at = w->users; at < u; at++) {
        if (mu_rref_id_equal(at->fork, u->fork)) {
            return true;
        }
    }
    return false;
}

/* A user that cannot be used must have a reason. */
static void check_lost(struct rref_world *w, const struct user_record *u, int status)
{
    bool owner_gone = is_gone(w, u->owner, u->owner_life);
    bool parent_gone = is_gone(w, u->parent, u->parent_life);

    if (is_gone(w, u->worker, u->life)) {
        return; /* The worker leaves, and was removed. */
    }
    if (status == MUSTER_ENOENT && !owner_gone && !parent_gone && !was_taken_before(w, u)) {
        mu_sim_fail(w->sim, "the value was freed before the token from %s reached %s",
                    rref_names[u->parent], rref_names[u->worker]);
    } else if (status == MUSTER_ESESSION && u->parent < WORKERS && !owner_gone) {
        mu_sim_fail(w->sim, "%s gave up on %s, which is still there", rref_names[u->worker],
                    rref_names[u->owner]);
    }
}

static void on_changed(struct mu_rref *base)
{
    struct ref *r = MU_CONTAINER_OF(base, struct ref, base);
    struct rref_world *w = r->worker->state->world;
    struct user_record *u = &w->users[r->record];
    const char *text;
    int status = mu_rref_status(base, &text);

    if (mu_sim_tracing(w->sim)) {
        mu_sim_note(w->sim, mu_sim_proc_of(r->worker->env), "user %zu: %d %s", r->record, status,
                    text);
    }
    u->confirmed = status == 0;
    u->owner_life = base->user->owner_life;
    if (status != 0) {
        check_lost(w, u, status);
    }
}

static struct ref *hold(struct worker *w)
{
    struct ref *r = w->held_count < REFS_MAX && w->state->world->user_count < USERS_MAX
                        ? mu_sim_calloc(sizeof(*r))
                        : NULL;

    if (r != NULL) {
        r->worker = w;
        r->base.changed = on_changed;
    }
    return r;
}

static uint32_t number_of(const char *name)
{
    return (uint32_t)(name[1] - '0');
}

/* A reference exists here from now on. */
static void held(struct ref *r, uint32_t parent)
{
    struct worker *w = r->worker;
    struct rref_world *world = w->state->world;
    const char *text;

    r->record = world->user_count++;
    world->users[r->record] = (struct user_record){
        .rref = r->base.user->rref,
        .fork = r->base.user->fork,
        .worker = w->state->number,
        .life = w->state->life,
        .owner = number_of(mu_rref_owner(&r->base)),
        .owner_life = r->base.user->owner_life,
        .parent = parent,
        .parent_life = r->base.user->fork.life,
        .confirmed = mu_rref_status(&r->base, &text) == 0,
    };
    mu_list_push(&w->held, &r->link);
    w->held_count++;
    if (mu_sim_tracing(world->sim)) {
        mu_sim_note(world->sim, mu_sim_proc_of(w->env), "user %zu: of %s from %u", r->record,
                    mu_rref_owner(&r->base), parent);
    }
}

static void free_if_over(struct ref *r)
{
    if (r->released && r->fetching == 0) {
        mu_free(r);
    }
}

static void let_go(struct ref *r)
{
    struct rref_world *w = r->worker->state->world;

    if (mu_sim_tracing(w->sim)) {
        mu_sim_note(w->sim, mu_sim_proc_of(r->worker->env), "user %zu: released", r->record);
    }
    w->users[r->record].released = true;
    r->released = true;
    mu_list_remove(&r->link);
    r->worker->held_count--;
    mu_rref_agent_release(&r->base);
    free_if_over(r);
}

/* --- serving ---------------------------------------------------------------------------------- */

struct sleeper {
    struct mu_timer timer;
    struct mu_list link;
    struct worker *worker;
    struct mu_rpc_in *in; /* NULL: it was answered */
    uint32_t parent;
    struct mu_buf message;
};

static void end_sleep(struct sleeper *s)
{
    mu_env_timer_arm(s->worker->env, &s->timer, MU_MONO_NEVER);
    mu_list_remove(&s->link);
    mu_buf_fini(&s->message);
    mu_free(s);
}

static struct sleeper *fall_asleep(struct worker *w, struct mu_rpc_in *in, struct mu_span message,
                                   uint64_t ms_max, void (*wake)(struct mu_timer *timer))
{
    struct sleeper *s = mu_sim_calloc(sizeof(*s));
    struct mu_prng *prng = mu_sim_prng(w->state->world->sim);

    s->worker = w;
    mu_list_push(&w->sleepers, &s->link);
    s->in = in;
    in->owner = s;
    s->parent = number_of(in->caller);
    mu_buf_init(&s->message, SIZE_MAX);
    mu_sim_spare_memory(true);
    MU_ASSERT(mu_buf_append(&s->message, message) == 0);
    mu_sim_spare_memory(false);
    mu_timer_init(&s->timer, wake);
    mu_env_timer_arm(w->env, &s->timer,
                     mu_mono_add_ms(mu_env_now(w->env).mono, mu_prng_below(prng, ms_max)));
    return s;
}

static void answer_made(struct mu_rpc_in *in, struct mu_span message)
{
    if (message.len > 1 && message.data[1] == 'f') {
        mu_rpc_in_reply(in, MUSTER_EREMOTE, MU_SPAN_LIT("as was asked for"));
    } else {
        mu_rpc_in_reply(in, 0, message);
    }
}

static void made(struct mu_timer *timer)
{
    struct sleeper *s = MU_CONTAINER_OF(timer, struct sleeper, timer);
    struct mu_rpc_agent *a = s->worker->agent;

    answer_made(s->in, mu_buf_span(&s->message));
    end_sleep(s);
    mu_rpc_agent_turn(a);
}

/* A value is what it was made of; one that begins with an 'f' fails. */
static void on_make(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    struct worker *w = MU_CONTAINER_OF(h, struct worker, handlers[0]);

    if (mu_prng_chance(mu_sim_prng(w->state->world->sim), 500000)) {
        (void)fall_asleep(w, in, message, 400, made);
    } else {
        answer_made(in, message);
    }
}

static void on_make_cancel(struct mu_rpc_in *in, int why)
{
    struct sleeper *s = in->owner;

    mu_rpc_in_reply(in, why, MU_SPAN_LIT("canceled"));
    end_sleep(s);
}

static void take(struct worker *w, struct mu_span message, uint32_t parent)
{
    struct ref *r = message.len > 1 && !w->stopping && !w->state->world->draining ? hold(w) : NULL;
    struct mu_errmsg msg;
    int err;

    if (r == NULL) {
        return;
    }
    err = mu_rref_agent_take(w->refs, &r->base, mu_span_skip(message, 1), &msg);
    if (err == 0) {
        held(r, parent);
        w->state->world->passed++;
        return;
    }
    mu_free(r);
    if (err != MUSTER_ECANCELED && err != MUSTER_ESESSION && err != MUSTER_ENOENT &&
        err != MUSTER_EEXIST && !(err == MUSTER_ENOMEM && w->state->world->short_of_memory)) {
        mu_sim_fail(w->state->world->sim, "a token was refused with %d: %s", err, msg.text);
    }
}

static void taken(struct mu_timer *timer)
{
    struct sleeper *s = MU_CONTAINER_OF(timer, struct sleeper, timer);
    struct mu_rpc_agent *a = s->worker->agent;

    take(s->worker, mu_buf_span(&s->message), s->parent);
    if (s->in != NULL) {
        mu_rpc_in_reply(s->in, 0, mu_span("", 1));
    }
    end_sleep(s);
    mu_rpc_agent_turn(a);
}

/* The token is taken at once, before the answer, or some time after it, when it may be void. */
static void on_pass(struct mu_rpc_handler *h, struct mu_rpc_in *in, struct mu_span message)
{
    struct worker *w = MU_CONTAINER_OF(h, struct worker, handlers[1]);
    uint64_t draw = mu_prng_below(mu_sim_prng(w->state->world->sim), 3);
    struct sleeper *s;

    if (draw == 0) {
        take(w, message, number_of(in->caller));
        mu_rpc_in_reply(in, 0, mu_span("", 1));
        return;
    }
    s = fall_asleep(w, in, message, 300, taken);
    if (draw == 1) {
        s->in = NULL;
        mu_rpc_in_reply(in, 0, mu_span("", 1));
    }
}

static void on_pass_cancel(struct mu_rpc_in *in, int why)
{
    struct sleeper *s = in->owner;

    s->in = NULL;
    mu_rpc_in_reply(in, why, MU_SPAN_LIT("canceled"));
}

/* --- using ------------------------------------------------------------------------------------ */

struct call {
    struct mu_rpc_out out;
    struct mu_rref_fetch fetch;
    struct worker *worker;
    struct ref *ref; /* of a fetch */
    uint64_t ticket;
    uint64_t token_number;
    struct mu_rpc_part part;
    uint8_t token[MU_RREF_TOKEN_MAX];
};

static struct call *new_call(struct worker *w)
{
    struct call *c = mu_sim_calloc(sizeof(*c));

    c->worker = w;
    c->ticket = once_begin(w->state->world->calls, w->state->number);
    w->under_way++;
    return c;
}

static void end_call(struct call *c)
{
    once_end(c->worker->state->world->calls, c->ticket);
    c->worker->under_way--;
    mu_free(c);
}

static void check_fetched(struct call *c, int status, const char *text, struct mu_span message)
{
    struct rref_world *w = c->worker->state->world;
    const struct user_record *u = &w->users[c->ref->record];

    if (status == 0) {
        uint64_t number = message.len == 9 ? mu_get_u64(message.data + 1) : 0;

        if (number != u->rref.number) {
            mu_sim_fail(w->sim, "another value was fetched");
        }
        w->fetched++;
    } else if (status == MUSTER_ENOENT && u->confirmed && !c->ref->released &&
               !is_gone(w, u->owner, u->owner_life) && !is_gone(w, u->worker, u->life)) {
        mu_sim_fail(w->sim, "a confirmed user did not find its value: %s", text);
    }
}

static void on_fetched(struct mu_rpc_out *out, int status, const char *text, struct mu_span message)
{
    struct call *c = MU_CONTAINER_OF(out, struct call, out);

    if (mu_sim_tracing(c->worker->state->world->sim)) {
        mu_sim_note(c->worker->state->world->sim, mu_sim_proc_of(c->worker->env),
                    "fetch of user %zu: %d %s", c->ref->record, status, text);
    }
    check_fetched(c, status, text, message);
    c->ref->fetching--;
    free_if_over(c->ref);
    end_call(c);
}

static void fetch(struct worker *w, struct ref *r, struct mu_prng *prng)
{
    struct call *c = new_call(w);

    c->ref = r;
    r->fetching++;
    c->fetch.out = &c->out;
    c->out.timeout_ms = 200 + (uint32_t)mu_prng_below(prng, 3000);
    c->out.ended = on_fetched;
    mu_rref_agent_fetch(&r->base, &c->fetch);
}

static void on_passed(struct mu_rpc_out *out, int status, const char *text, struct mu_span message)
{
    struct call *c = MU_CONTAINER_OF(out, struct call, out);
    struct worker *w = c->worker;

    (void)message;
    if (mu_sim_tracing(w->state->world->sim)) {
        mu_sim_note(w->state->world->sim, mu_sim_proc_of(w->env), "token %" PRIu64 ": %d %s",
                    c->token_number, status, text);
    }
    mu_rref_agent_cancel(w->refs, c->token_number);
    end_call(c);
}

static void pass(struct worker *w, struct ref *r, struct mu_prng *prng)
{
    uint32_t to = (uint32_t)mu_prng_below(prng, WORKERS);
    struct mu_rpc_peer *peer = w->known[to] ? mu_rpc_agent_find(w->agent, rref_names[to]) : NULL;
    uint8_t token[MU_RREF_TOKEN_MAX];
    struct call *c;
    size_t len;
    uint64_t number;

    if (peer == NULL || mu_rref_agent_fork(&r->base, rref_names[to], token, &len, &number) != 0) {
        return;
    }
    c = new_call(w);
    c->token_number = number;
    memcpy(c->token, token, len);
    c->part = (struct mu_rpc_part){mu_span(c->token, len), -1};
    c->out.to = peer;
    c->out.method = "sim::R.pass";
    c->out.parts = &c->part;
    c->out.part_count = 1;
    c->out.timeout_ms = 50 + (uint32_t)mu_prng_below(prng, 2000);
    c->out.once = mu_prng_chance(prng, 700000);
    c->out.retrying = mu_prng_chance(prng, 500000);
    c->out.retry =
        (struct mu_rpc_retry_options){.retries_max = 3, .duration_ms = 100, .backoff = 1};
    c->out.ended = on_passed;
    if (mu_sim_tracing(w->state->world->sim)) {
        mu_sim_note(w->state->world->sim, mu_sim_proc_of(w->env),
                    "token %" PRIu64 " of user %zu goes to %s", number, r->record, rref_names[to]);
    }
    mu_rpc_agent_call(w->agent, &c->out);
}

static void make(struct worker *w, struct mu_prng *prng)
{
    uint32_t to = (uint32_t)mu_prng_below(prng, WORKERS);
    uint8_t data[8];
    struct mu_rpc_part part = {mu_span(data, sizeof(data)), -1};
    struct mu_rref_remote call = {
        .method = mu_prng_chance(prng, 30000) ? "sim::R.none" : "sim::R.make",
        .parts = &part,
        .part_count = 1,
        .timeout_ms = 50 + (uint32_t)mu_prng_below(prng, 2000),
        .retrying = mu_prng_chance(prng, 500000),
        .retry = {.retries_max = 3, .duration_ms = 100, .backoff = 1.5},
    };
    struct ref *r = hold(w);

    if (r == NULL || !w->known[to]) {
        mu_free(r);
        return;
    }
    /* The value is its own number, which is the next one of this process. */
    mu_put_u64(data, mu_rref_agent_last_number(w->refs) + 1);
    if (mu_rref_agent_remote(w->refs, &r->base, rref_names[to], &call) != 0) {
        mu_free(r);
        return;
    }
    held(r, WORKERS);
}

static struct ref *pick(struct worker *w, struct mu_prng *prng)
{
    uint64_t n = w->held_count == 0 ? 0 : mu_prng_below(prng, w->held_count);

    MU_LIST_FOREACH (it, &w->held) {
        if (n-- == 0) {
            return MU_CONTAINER_OF(it, struct ref, link);
        }
    }
    return NULL;
}

static void act(struct worker *w, struct mu_prng *prng)
{
    struct ref *r = pick(w, prng);

    switch (mu_prng_below(prng, 6)) {
    case 0:
    case 1:
        make(w, prng);
        break;
    case 2:
    case 3:
        if (r != NULL) {
            pass(w, r, prng);
        }
        if (r != NULL && mu_prng_chance(prng, 400000)) {
            let_go(r); /* Released right after the token was sent. */
        }
        break;
    case 4:
        if (r != NULL) {
            fetch(w, r, prng);
        }
        break;
    default:
        if (r != NULL) {
            let_go(r);
        }
        break;
    }
}

/* --- a worker --------------------------------------------------------------------------------- */

static void leave(struct worker *w)
{
    if (!w->stopping) {
        w->stopping = true;
        mu_env_timer_arm(w->env, &w->next, MU_MONO_NEVER);
        mu_rref_agent_stop(w->refs);
        mu_rpc_agent_stop(w->agent);
    }
}

/* Each worker removes, in its own time, those that have left for good. */
static void remove_the_left(struct worker *w, struct mu_prng *prng)
{
    for (uint32_t i = 0; i < WORKERS; i++) {
        if (w->state->world->workers[i].left && w->known[i] && mu_prng_chance(prng, 200000)) {
            w->known[i] = false;
            (void)mu_rpc_agent_remove(w->agent, rref_names[i]);
            mu_rref_agent_gone(w->refs, rref_names[i]);
        }
    }
}

static void on_next(struct mu_timer *timer)
{
    struct worker *w = MU_CONTAINER_OF(timer, struct worker, next);
    struct mu_prng *prng = mu_sim_prng(w->state->world->sim);

    if (w->state->world->leaving || w->state->left) {
        leave(w);
        return;
    }
    remove_the_left(w, prng);
    if (w->state->world->draining) {
        while (!mu_list_empty(&w->held)) {
            let_go(MU_CONTAINER_OF(w->held.next, struct ref, link));
        }
    } else {
        act(w, prng);
    }
    mu_rpc_agent_turn(w->agent);
    mu_env_timer_arm(w->env, timer,
                     mu_mono_add_ms(mu_env_now(w->env).mono, 10 + mu_prng_below(prng, 120)));
}

static void on_stopped(void *context)
{
    struct worker *w = context;
    struct mu_env *env = w->env;

    while (!mu_list_empty(&w->held)) {
        let_go(MU_CONTAINER_OF(w->held.next, struct ref, link));
    }
    while (!mu_list_empty(&w->sleepers)) {
        end_sleep(MU_CONTAINER_OF(w->sleepers.next, struct sleeper, link));
    }
    mu_rref_agent_free(w->refs);
    if (w->under_way != 0) {
        mu_sim_fail(w->state->world->sim, "the agent stopped with %zu calls under way",
                    w->under_way);
    }
    mu_rpc_agent_free(w->agent);
    w->state->live = NULL;
    mu_free(w);
    mu_sim_exit(env);
}

static int start_refs(struct worker *w)
{
    struct mu_rref_agent_config config = mu_rref_agent_config_defaults();
    const struct rref_world *world = w->state->world;

    config.rref.again_ms = 100;
    config.rref.again_ms_max = 1000;
    config.rref.probe_ms = 1000;
    config.rref.hasty = world->hasty;
    config.rref.leaky = world->leaky;
    config.call_ms = 700;
    config.retry.duration_ms = 200;
    config.freed = on_freed;
    config.context = w;
    return mu_rref_agent_start(w->env, w->agent, rref_names[w->state->number],
                               (int32_t)w->state->number, &config, &w->refs);
}

int rref_worker_start(struct mu_env *env, void *arg)
{
    struct worker_state *state = arg;
    struct mu_rpc_agent_config config = mu_rpc_agent_config_defaults();
    struct worker *w = mu_sim_calloc(sizeof(*w));
    struct mu_errmsg msg;
    int err;

    w->state = state;
    w->env = env;
    mu_list_init(&w->held);
    mu_list_init(&w->sleepers);
    (void)snprintf(config.name, sizeof(config.name), "%s", rref_names[state->number]);
    config.id = (int32_t)state->number;
    config.listens = true;
    config.listen = (struct mu_addr){.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};
    config.connect_ms = 2000;
    config.reconnect_ms = 1000;
    config.rpc.grace_ms = 1000;
    config.rpc.beat_ms = 300;
    config.rpc.dead_ms = 1000;
    config.rpc.trace = mu_sim_trace(env);
    config.stopped = on_stopped;
    config.context = w;
    mu_sim_spare_memory(true); /* A worker that cannot start is not tested here. */
    err = mu_rpc_agent_start(env, &config, &w->agent, &msg);
    if (err == 0) {
        err = start_refs(w);
    }
    if (err != 0) {
        return err;
    }
    w->handlers[0] = (struct mu_rpc_handler){
        .method = "sim::R.make", .start = on_make, .cancel = on_make_cancel};
    w->handlers[1] = (struct mu_rpc_handler){
        .method = "sim::R.pass", .start = on_pass, .cancel = on_pass_cancel};
    MU_ASSERT(mu_rpc_agent_serve(w->agent, &w->handlers[0]) == 0);
    MU_ASSERT(mu_rpc_agent_serve(w->agent, &w->handlers[1]) == 0);
    for (int i = 0; i < WORKERS; i++) {
        struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PORT};

        w->known[i] = !state->world->workers[i].left;
        (void)snprintf(addr.host, sizeof(addr.host), "%s", rref_names[i]);
        MU_ASSERT(!w->known[i] || mu_rpc_agent_add(w->agent, rref_names[i], i, &addr, &msg) == 0);
        MU_ASSERT(!w->known[i] || mu_rref_agent_back(w->refs, rref_names[i]) == 0);
    }
    mu_sim_spare_memory(false);
    state->life = mu_rref_agent_life(w->refs);
    state->live = w;
    mu_timer_init(&w->next, on_next);
    mu_env_timer_arm(env, &w->next, mu_env_now(env).mono);
    return 0;
}

void rref_worker_killed(void *arg)
{
    struct worker_state *state = arg;

    state->live = NULL;
    once_forgive(state->world->calls, state->number);
}

void rref_worker_stats(const struct worker *w, struct mu_rref_stats *ret)
{
    mu_rref_agent_stats(w->refs, ret);
}

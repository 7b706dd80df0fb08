/* A node of the scenario `average`: a peer in the DHT that averages again and again. */
#include "scenarios/average/average_world.h"

#include <stdio.h>
#include <string.h>

#include "codec/bin/msgpack.h"
#include "core/assert.h"
#include "scenarios/peer/peer_talk.h"

#define PORT 4001

static void rearm(struct average_app *app, uint64_t ms)
{
    mu_env_timer_arm(app->env, &app->timer, mu_mono_add_ms(mu_env_now(app->env).mono, ms));
}

/* --- steps ------------------------------------------------------------------------------------ */

/* Which node it is, and which of its steps: members tell each other. */
static void read_user(struct mu_span user, uint32_t *ret_node, uint32_t *ret_step)
{
    struct mu_mp t;

    MU_ASSERT(mu_mp_next(&user, &t) == 0 && t.type == MU_MP_UINT);
    *ret_node = (uint32_t)(t.number >> 16);
    *ret_step = (uint32_t)(t.number & 0xffff);
}

static void on_done(struct mu_averager_step *step, const struct mu_averager_result *result)
{
    struct average_app *app = MU_CONTAINER_OF(step, struct average_app, step);
    struct average_node *n = app->state;
    struct average_record *r = &n->records[app->at];

    app->active = false;
    r->ended = true;
    r->status = result->status;
    r->members = (uint32_t)result->member_count;
    r->parts_local = result->parts_local;
    memcpy(r->group_id, result->group_id, sizeof(r->group_id));
    memcpy(r->out, app->values, sizeof(r->out));
    for (size_t i = 0; i < result->member_count; i++) {
        read_user(result->members[i].user, &r->nodes[i], &r->steps[i]);
    }
    mu_sim_note(n->world->sim, n->proc, "step %u: status %d, %u members, %u of %u parts local",
                app->at, r->status, r->members, r->parts_local, result->parts);
    for (size_t i = 0; i < result->member_count; i++) {
        r->counted |= (uint32_t)result->members[i].counted << i;
        r->weights[i] = result->members[i].weight;
    }
    memcpy(r->digest, result->digest, sizeof(r->digest));
    average_check(n->world, app, r);
    n->good += r->calm && r->status == 0 ? 1 : 0;
}

static void begin(struct average_app *app)
{
    static const double weights[] = {1, 1, 1, 0, 2.5, 1000};
    struct average_node *n = app->state;
    struct mu_prng *prng = mu_sim_prng(n->world->sim);
    struct average_record *r;
    struct mu_errmsg msg;
    struct mu_buf user;
    struct mu_mp_out out;

    if (n->steps == AVERAGE_STEPS) {
        return;
    }
    app->at = n->steps++;
    r = &n->records[app->at];
    for (uint32_t i = 0; i < AVERAGE_FLOATS; i++) {
        app->values[i] = (float)((double)mu_prng_below(prng, 2000001) / 1e6 - 1);
        r->in[i] = app->values[i];
    }
    r->weight = n->mode == MU_AVG_AUX ? 0 : weights[mu_prng_below(prng, 6)];
    r->calm = n->world->quiet;
    average_note_given(app, r);
    mu_buf_init(&user, 16);
    out = mu_mp_out(&user);
    mu_mp_put_uint(&out, (uint64_t)n->number << 16 | app->at);
    app->step = (struct mu_averager_step){.weight = r->weight,
                                          .timeout_ms = AVERAGE_TIMEOUT_MS,
                                          .user = mu_buf_span(&user),
                                          .done = on_done};
    app->begun_ns = mu_sim_now_ns(n->world->sim);
    app->active = out.err == 0 && mu_averager_step(app->averager, &app->step, &msg) == 0;
    mu_buf_fini(&user);
}

/* --- life ------------------------------------------------------------------------------------- */

static void on_host_stopped(void *context)
{
    struct average_app *app = context;

    mu_env_timer_arm(app->env, &app->timer, MU_MONO_NEVER);
    mu_peer_host_free(app->host);
    app->state->app = NULL;
    mu_sim_exit(app->env);
    mu_free(app);
}

static void on_swarm_stopped(void *context)
{
    ((struct average_app *)context)->swarm_stopped = true;
}

static void on_averager_stopped(void *context)
{
    struct average_app *app = context;

    app->averager = NULL;
    app->averager_stopped = true;
}

static void leave(struct average_app *app)
{
    if (!app->stopping) {
        app->stopping = true;
        mu_averager_stop(app->averager);
    } else if (app->averager_stopped && app->swarm != NULL) {
        mu_state_swarm_stop(app->swarm);
        app->swarm = NULL;
    } else if (app->swarm_stopped && app->host != NULL) {
        app->swarm_stopped = false;
        mu_peer_host_stop(app->host);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct average_app *app = MU_CONTAINER_OF(timer, struct average_app, timer);
    struct average_world *w = app->state->world;

    rearm(app, 300 + mu_prng_below(mu_sim_prng(w->sim), 2700));
    if (w->leaving) {
        leave(app);
    } else if (!app->active) {
        begin(app);
    }
}

static int start_host(struct average_app *app)
{
    struct mu_peer_host_config config = mu_peer_host_config_defaults();
    struct average_node *state = app->state;
    struct average_node *seed = &state->world->nodes[0];
    struct mu_errmsg msg;
    struct mu_buf addr;
    char text[64];
    int err;

    config.identity = &state->identity;
    config.connect_ms = 4000;
    config.stopped = on_host_stopped;
    config.context = app;
    err = mu_peer_host_start(app->env, &config, &app->host, &msg);
    (void)snprintf(text, sizeof(text), "/dns/%s/tcp/%d", state->name, PORT);
    err = err != 0 ? err : mu_peer_host_listen(app->host, text, &msg);
    if (err == 0 && state != seed) {
        mu_buf_init(&addr, MU_MULTIADDR_MAX);
        (void)snprintf(text, sizeof(text), "/dns/%s/tcp/%d", seed->name, PORT);
        err = mu_multiaddr_parse(&addr, text, &msg);
        err = err != 0 ? err
                       : mu_peer_host_add_addr(app->host, &seed->identity.id, mu_buf_span(&addr));
        mu_buf_fini(&addr);
    }
    return err;
}

static int start_swarm(struct average_app *app)
{
    struct mu_state_swarm_config config = mu_state_swarm_config_defaults();
    struct average_node *state = app->state;
    struct mu_errmsg msg;

    config.host = app->host;
    config.peers = &state->world->nodes[0].identity.id;
    config.peer_count = state->number == 0 ? 0 : 1;
    config.stopped = on_swarm_stopped;
    config.context = app;
    return mu_state_swarm_start(&config, &app->swarm, &msg);
}

static int start_averager(struct average_app *app)
{
    struct mu_averager_config config = mu_averager_config_defaults();
    struct average_node *state = app->state;
    struct average_world *w = state->world;
    struct mu_errmsg msg;

    config.host = app->host;
    config.calls = mu_state_swarm_calls(app->swarm);
    config.dht = mu_state_swarm_dht(app->swarm);
    config.prefix = AVERAGE_PREFIX;
    config.layout = &w->layout;
    config.data = app->data;
    config.native = w->native;
    config.quant = w->quant;
    config.part_bytes = AVERAGE_PART_BYTES;
    config.mode = state->mode;
    config.target_size = w->target;
    config.matchmaking_ms = 3000;
    config.request_ms = 1500;
    config.sender_ms = 2000;
    config.reducer_ms = 4000;
    config.reduce_ms = 10000;
    config.linger_ms = 2000;
    config.stopped = on_averager_stopped;
    config.context = app;
    return mu_averager_start(&config, &app->averager, &msg);
}

static int start(struct mu_env *env, void *arg)
{
    struct average_node *state = arg;
    struct average_app *app = mu_sim_calloc(sizeof(*app));
    uint64_t at = 0;
    int err;

    app->state = state;
    app->env = env;
    mu_timer_init(&app->timer, on_timer);
    for (size_t i = 0; i < AVERAGE_TENSORS; i++) {
        app->data[i] = (uint8_t *)(app->values + at);
        at += mu_layout_elements(&state->world->layout, i);
    }
    err = start_host(app);
    err = err != 0 ? err : start_swarm(app);
    err = err != 0 ? err : start_averager(app);
    if (err == 0) {
        state->app = app;
        rearm(app, 100);
    }
    return err;
}

void average_node_killed(void *arg)
{
    struct average_node *state = arg;

    if (state->app != NULL && state->app->host != NULL) {
        peer_host_release_crypto(state->app->host);
    }
    state->app = NULL;
}

void average_node_start(struct average_world *w, uint32_t number)
{
    struct average_node *state = &w->nodes[number];
    uint64_t draw = mu_prng_below(mu_sim_prng(w->sim), 8);

    (void)snprintf(state->name, sizeof(state->name), "m%u", number);
    state->mode = number == 0 || draw > 1 ? MU_AVG_NODE : draw == 0 ? MU_AVG_CLIENT : MU_AVG_AUX;
    state->proc =
        mu_sim_proc_new(mu_sim_host_new(w->sim, state->name),
                        &(struct mu_sim_program){.name = "member",
                                                 .start = start,
                                                 .killed = average_node_killed,
                                                 .arg = state,
                                                 .flags = number == 0 ? MU_SIM_KEEP_ALIVE : 0});
    mu_sim_note(w->sim, state->proc, "is %s, mode %d",
                mu_peer_id_format(&state->identity.id, (char[MU_PEER_ID_TEXT_MAX]){0}),
                (int)state->mode);
}

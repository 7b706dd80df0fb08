/*
 * Scenario: hosts of a run are lost and succeeded. Three to nine nodes, one or three of them named
 * as endpoints, run the machine of proto/rdzv/succession.h in a minimal service
 * (succession_node.h). Their messages go over the simulator's connections, one for each direction
 * between two nodes, with its delays, resets, cuts, pauses and clocks; and fewer than half of the
 * nodes are killed, mostly hosts, each at a step that is drawn, so that over all seeds that is any
 * step. Some are back while the others still have trouble, as newcomers.
 * The checker of checkers/succession.h sees every promise, host and round.
 *
 * At the end all faults are over, and who was killed is back. If more than half of
 * every electorate that may be the last committed one has lived through it, all nodes must come to
 * run in one round.
 */
#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/buf.h"
#include "scenarios/rdzv/succession_node.h"
#include "scenarios/scenarios.h"

#define PORT        29400
#define BEAT_NS     (500 * MU_NS_PER_MS)
#define DEAD_NS     (3 * MU_NS_PER_S)
#define GATHER_NS   (300 * MU_NS_PER_MS)
#define FAULTY_NS   (30 * MU_NS_PER_S)
#define CONVERGE_NS (400 * MU_NS_PER_S)
#define DEATHS_MAX  4
#define STEPS_DRAWN 4000 /* within which a node is killed, and within which it is back */
#define FORMED_MAX  512
#define OWN_MAX     16  /* messages of a node to itself at a time */
#define BEAT        255 /* a message that says nothing */
#define WIRE_MAX    (1 << 20)

struct world;

/* What is left of a node when its process is dead. */
struct place {
    struct world *world;
    uint32_t id;
    struct mu_sim_proc *proc;
    struct agent *agent; /* NULL: it is dead */
};

/* At step `at`; back at step `back_at`, or (0) at the end. */
struct death {
    uint64_t at, back_at;
    uint32_t node; /* where to begin to look */
    bool any;      /* not only hosts */
    bool power;
    struct place *victim;
};

/* A round as it was formed: who is in it is not asked of the nodes. */
struct formed {
    uint64_t term, round;
    uint32_t world;
    struct succ_voter voters[SUCC_NODES_MAX];
};

struct world {
    struct mu_sim *sim;
    enum succ_bug bug;
    bool turned; /* Half of the nodes have the line in another order. */
    uint32_t nodes, endpoints;
    struct place places[SUCC_NODES_MAX];
    struct succ_truth truth;
    struct formed formed[FORMED_MAX];
    uint32_t formed_count;
    uint32_t death_count;
    struct death deaths[DEATHS_MAX];
};

/* --- connections ------------------------------------------------------------------------------ */

/* To a node (dialled), or from one (accepted; `peer` is known once its first bytes have come). */
struct wire {
    struct mu_conn conn;
    struct agent *agent;
    struct mu_list link;
    bool dialled, open, closing, known;
    uint32_t peer;
    struct mu_buf out, in;
};

struct agent {
    struct succ_node node;
    struct place *place;
    struct mu_env *env;
    struct mu_listener listener;
    struct mu_timer timer;
    struct mu_list wires;
    struct wire *to[SUCC_NODES_MAX];
    mu_mono_t heard[SUCC_NODES_MAX];
    mu_mono_t beat_at, form_at;
    struct succ_msg own[OWN_MAX];
    uint32_t own_count;
};

static mu_mono_t now_of(const struct agent *a)
{
    return mu_env_now(a->env).mono;
}

static void flush_wire(struct wire *w)
{
    size_t taken;

    if (!w->closing && w->out.len > 0) {
        mu_env_send(w->conn.env, &w->conn, mu_buf_span(&w->out), &taken);
        mu_buf_consume(&w->out, taken);
    }
}

static void close_wire(struct wire *w)
{
    if (!w->closing) {
        w->closing = true;
        if (w->dialled && w->agent->to[w->peer] == w) {
            w->agent->to[w->peer] = NULL;
        }
        mu_env_close(w->conn.env, &w->conn, true);
    }
}

static void settle(struct agent *a);

/* Nothing is heard of that node any more, or its connection is gone. */
static void sever(struct agent *a, uint32_t peer)
{
    struct succ_node *n = &a->node;

    MU_LIST_FOREACH (it, &a->wires) {
        struct wire *w = MU_CONTAINER_OF(it, struct wire, link);

        if ((w->dialled || w->known) && w->peer == peer) {
            close_wire(w);
        }
    }
    if (succ_node_asks(n, peer) < MU_SUCCESSION_CALLS) {
        succ_node_unreached(n, now_of(a), succ_node_asks(n, peer));
    }
    if (succ_node_has_host(n) && n->join_to == peer && n->join_call != 0) {
        succ_node_lost(n, now_of(a));
    }
    succ_node_drop(n, now_of(a), peer);
}

static void wire_open(struct mu_conn *conn)
{
    struct wire *w = MU_CONTAINER_OF(conn, struct wire, conn);

    w->open = true;
    flush_wire(w);
}

static void wire_writable(struct mu_conn *conn)
{
    flush_wire(MU_CONTAINER_OF(conn, struct wire, conn));
}

static void take(struct wire *w, const uint8_t *bytes)
{
    struct agent *a = w->agent;
    struct succ_msg msg;

    memcpy(&msg, bytes, sizeof(msg));
    a->heard[w->peer] = now_of(a);
    if (msg.kind != BEAT) {
        succ_node_receive(&a->node, now_of(a), w->peer, &msg);
    }
}

static size_t wire_data(struct mu_conn *conn, struct mu_span in)
{
    struct wire *w = MU_CONTAINER_OF(conn, struct wire, conn);

    if (w->closing || mu_buf_append(&w->in, in) != 0) {
        return in.len;
    }
    if (!w->known && w->in.len >= 1) {
        w->known = true;
        w->peer = mu_buf_span(&w->in).data[0];
        w->agent->heard[w->peer] = now_of(w->agent);
        mu_buf_consume(&w->in, 1);
    }
    while (!w->closing && w->in.len >= sizeof(struct succ_msg)) {
        take(w, mu_buf_span(&w->in).data);
        mu_buf_consume(&w->in, sizeof(struct succ_msg));
    }
    settle(w->agent);
    return in.len;
}

static void wire_eof(struct mu_conn *conn)
{
    struct wire *w = MU_CONTAINER_OF(conn, struct wire, conn);
    struct agent *a = w->agent;

    if (w->dialled || w->known) {
        sever(a, w->peer);
    }
    close_wire(w);
    settle(a);
}

static void wire_closed(struct mu_conn *conn, int status)
{
    struct wire *w = MU_CONTAINER_OF(conn, struct wire, conn);
    struct agent *a = w->agent;
    bool was_up = !w->closing;

    (void)status;
    w->closing = true;
    if (w->dialled && a->to[w->peer] == w) {
        a->to[w->peer] = NULL;
    }
    if (was_up && (w->dialled || w->known)) {
        sever(a, w->peer);
    }
    mu_list_remove(&w->link);
    mu_buf_fini(&w->in);
    mu_buf_fini(&w->out);
    mu_free(w);
    settle(a);
}

static const struct mu_conn_events wire_events = {
    .open = wire_open,
    .data = wire_data,
    .eof = wire_eof,
    .writable = wire_writable,
    .closed = wire_closed,
};

static struct wire *wire_new(struct agent *a)
{
    struct wire *w = mu_sim_calloc(sizeof(*w));

    w->agent = a;
    w->conn.on = &wire_events;
    mu_buf_init(&w->in, WIRE_MAX);
    mu_buf_init(&w->out, WIRE_MAX);
    mu_list_push(&a->wires, &w->link);
    return w;
}

static struct mu_conn *accept_wire(struct mu_listener *listener)
{
    return &wire_new(MU_CONTAINER_OF(listener, struct agent, listener))->conn;
}

static void listener_closed(struct mu_listener *listener)
{
    (void)listener;
}

static void dial(struct agent *a, uint32_t to)
{
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PORT};
    struct wire *w = wire_new(a);
    uint8_t id = (uint8_t)a->node.id;

    w->dialled = true;
    w->peer = to;
    a->to[to] = w;
    a->heard[to] = now_of(a);
    (void)snprintf(addr.host, sizeof(addr.host), "%s", succ_heirs()[to].name);
    MU_ASSERT(mu_buf_append(&w->out, mu_span(&id, 1)) == 0);
    MU_ASSERT(mu_env_dial(a->env, &w->conn, &addr) == 0);
}

static void send_msg(void *context, uint32_t from, uint32_t to, const struct succ_msg *msg)
{
    struct agent *a = context;

    (void)from;
    if (to == a->node.id) {
        MU_ASSERT(a->own_count < OWN_MAX);
        a->own[a->own_count++] = *msg;
        return;
    }
    if (a->to[to] == NULL) {
        dial(a, to);
    }
    MU_ASSERT(mu_buf_append(&a->to[to]->out, mu_span(msg, sizeof(*msg))) == 0);
    flush_wire(a->to[to]);
}

/* --- a node ----------------------------------------------------------------------------------- */

static void node_failed(void *context, const char *what)
{
    struct agent *a = context;

    mu_sim_fail(a->place->world->sim, "%s: %s", succ_heirs()[a->node.id].name, what);
}

static bool is_related(const struct agent *a, uint32_t peer)
{
    const struct succ_node *n = &a->node;

    return peer != n->id && ((succ_node_has_host(n) && n->join_to == peer) ||
                             succ_node_asks(n, peer) < MU_SUCCESSION_CALLS ||
                             n->clients[peer].joined || n->clients[peer].asks);
}

static void form(struct agent *a)
{
    struct world *world = a->place->world;
    struct succ_node *n = &a->node;
    struct formed *f = &world->formed[world->formed_count];

    if (world->formed_count == FORMED_MAX) {
        mu_sim_fail(world->sim, "there are too many rounds");
        return;
    }
    world->formed_count++;
    f->term = n->m.host_term;
    f->round = n->m.first_round;
    f->world = 0;
    for (uint32_t i = 0; i < n->count; i++) {
        if (n->clients[i].joined) {
            f->voters[f->world++] =
                (struct succ_voter){.node = (uint8_t)i, .life = world->truth.lives[i]};
        }
    }
    succ_node_form(n, now_of(a));
}

/* After everything that happens: what the node said to itself, and the next time to look. */
static void settle(struct agent *a)
{
    mu_mono_t at;

    while (a->own_count > 0) {
        struct succ_msg msg = a->own[0];

        a->own_count--;
        memmove(&a->own[0], &a->own[1], a->own_count * sizeof(a->own[0]));
        succ_node_receive(&a->node, now_of(a), a->node.id, &msg);
    }
    if (!succ_node_may_form(&a->node)) {
        a->form_at = MU_MONO_NEVER;
    } else if (a->form_at.ns == UINT64_MAX) {
        a->form_at = mu_mono_add_ns(now_of(a), GATHER_NS);
    }
    at = mu_mono_min(a->beat_at, a->form_at);
    mu_env_timer_arm(a->env, &a->timer, mu_mono_min(at, mu_succession_deadline(&a->node.m)));
}

/* Whom it dials does not answer. */
static bool is_out_of_reach(const struct agent *a, uint32_t peer)
{
    const struct wire *w = a->to[peer];

    return w != NULL && !w->open &&
           mu_mono_since(a->heard[peer], now_of(a)) > MU_SUCCESSION_REACH_MS * MU_NS_PER_MS;
}

static void beat(struct agent *a)
{
    mu_mono_t now = now_of(a);

    a->beat_at = mu_mono_add_ns(now, BEAT_NS);
    for (uint32_t i = 0; i < a->node.count; i++) {
        if (!is_related(a, i)) {
            a->heard[i] = now; /* Who has nothing to say is not missed. */
            continue;
        }
        if (mu_mono_since(a->heard[i], now) > DEAD_NS || is_out_of_reach(a, i)) {
            sever(a, i);
        } else {
            send_msg(a, a->node.id, i, &(struct succ_msg){.kind = BEAT});
        }
    }
}

static void fire(struct mu_timer *timer)
{
    struct agent *a = MU_CONTAINER_OF(timer, struct agent, timer);
    mu_mono_t now = now_of(a);

    if (mu_mono_reached(a->beat_at, now)) {
        beat(a);
    }
    if (mu_mono_reached(a->form_at, now) && succ_node_may_form(&a->node)) {
        form(a);
    }
    succ_node_tick(&a->node, now);
    settle(a);
}

static int start_agent(struct mu_env *env, void *arg)
{
    struct place *place = arg;
    struct world *world = place->world;
    struct agent *a = mu_sim_calloc(sizeof(*a));
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};
    bool anew = mu_sim_proc_starts(mu_sim_proc_of(env)) > 1;
    uint64_t seed;

    a->place = place;
    a->env = env;
    place->agent = a;
    mu_list_init(&a->wires);
    mu_timer_init(&a->timer, fire);
    a->listener.accept = accept_wire;
    a->listener.closed = listener_closed;
    a->form_at = MU_MONO_NEVER;
    a->beat_at = now_of(a);
    a->node.truth = &world->truth;
    a->node.bug = world->bug;
    a->node.turned = world->turned && place->id % 2 != 0;
    a->node.send = send_msg;
    a->node.failed = node_failed;
    a->node.context = a;
    a->node.trace = mu_sim_trace(env);
    MU_ASSERT(mu_env_listen(env, &a->listener, &addr) == 0);
    mu_env_entropy(env, &seed, sizeof(seed));
    if (anew) {
        succ_truth_reborn(&world->truth, place->id);
    }
    succ_node_start(&a->node, now_of(a), place->id, world->nodes, world->endpoints, anew, seed);
    settle(a);
    return 0;
}

static void agent_killed(void *arg)
{
    ((struct place *)arg)->agent = NULL;
}

/* --- the end ---------------------------------------------------------------------------------- */

static uint32_t count_voters(const struct world *world, const struct mu_electorate *e)
{
    uint32_t alive = 0;

    if (e->term == 0) {
        for (uint32_t i = 0; i < world->endpoints; i++) {
            alive += world->truth.lives[i] == 0;
        }
        return alive;
    }
    for (uint32_t i = 0; i < world->formed_count; i++) {
        const struct formed *f = &world->formed[i];

        for (uint32_t k = 0; f->term == e->term && f->round == e->round && k < f->world; k++) {
            alive += world->truth.lives[f->voters[k].node] == f->voters[k].life;
        }
    }
    return alive;
}

static bool can_go_on(const struct world *world)
{
    const struct mu_succession_view *latest = NULL;

    for (uint32_t i = 0; i < world->nodes; i++) {
        const struct agent *a = world->places[i].agent;

        if (a == NULL) {
            return false;
        }
        if (latest == NULL || mu_succession_view_later(&a->node.m.view, latest)) {
            latest = &a->node.m.view;
        }
    }
    for (uint32_t i = 0; i < latest->count; i++) {
        if (2 * count_voters(world, &latest->may[i]) <= latest->may[i].world) {
            return false;
        }
    }
    return true;
}

static bool all_run(void *arg)
{
    const struct world *world = arg;
    const struct succ_commit *last;

    if (world->truth.commit_count == 0) {
        return false;
    }
    last = &world->truth.commits[world->truth.commit_count - 1];
    if (last->world != world->nodes) {
        return false;
    }
    for (uint32_t i = 0; i < world->nodes; i++) {
        const struct agent *a = world->places[i].agent;

        if (a == NULL || a->node.round != last->round || a->node.round_term != last->term ||
            (!succ_node_has_host(&a->node) && a->node.m.state != MU_SUCCESSION_HOSTING)) {
            return false;
        }
    }
    return true;
}

/* Whom the death that was drawn takes: a host, as soon as there is one, or any node. */
static struct place *find_victim(struct world *world, const struct death *d)
{
    for (uint32_t i = 0; i < world->nodes; i++) {
        struct place *p = &world->places[(d->node + i) % world->nodes];

        if (p->agent != NULL && (d->any || p->agent->node.m.state == MU_SUCCESSION_HOSTING)) {
            return p;
        }
    }
    return NULL;
}

static void kill_nodes(struct mu_sim *sim, void *arg)
{
    struct world *world = arg;

    for (uint32_t k = 0; k < world->death_count; k++) {
        struct death *d = &world->deaths[k];
        struct place *p;

        if (d->victim != NULL && d->back_at != 0 && mu_sim_steps(sim) >= d->back_at) {
            d->back_at = 0;
            mu_sim_restart(d->victim->proc);
        }
        if (d->victim != NULL || mu_sim_steps(sim) < d->at) {
            continue;
        }
        p = find_victim(world, d);
        if (p != NULL) {
            d->victim = p;
            mu_sim_kill(p->proc, d->power ? MU_SIM_KILL_POWER : MU_SIM_KILL_PROCESS);
            return;
        }
    }
}

static void draw_deaths(struct world *world, struct mu_prng *prng)
{
    world->death_count = (uint32_t)mu_prng_below(prng, (world->nodes + 1) / 2);
    for (uint32_t k = 0; k < world->death_count; k++) {
        struct death *d = &world->deaths[k];

        d->at = 1 + mu_prng_below(prng, STEPS_DRAWN);
        d->node = (uint32_t)mu_prng_below(prng, world->nodes);
        d->any = mu_prng_chance(prng, 200000);
        d->power = mu_prng_chance(prng, 500000);
        d->back_at = mu_prng_chance(prng, 500000) ? d->at + mu_prng_below(prng, STEPS_DRAWN) : 0;
    }
}

static void tell_states(struct world *world)
{
    char text[256];

    for (uint32_t i = 0; i < world->nodes; i++) {
        const struct agent *a = world->places[i].agent;

        if (a != NULL) {
            mu_succession_explain(&a->node.m, text, sizeof(text));
            mu_sim_note(world->sim, world->places[i].proc,
                        "state %d, promised %" PRIu64 ", round %" PRIu64 "/%" PRIu64 ": %s",
                        (int)a->node.m.state, a->node.m.promised, a->node.round_term, a->node.round,
                        text);
        }
    }
}

static void note_end(struct world *world)
{
    uint32_t hosts = 0;

    for (uint32_t i = 0; i < SUCC_TERMS_MAX; i++) {
        hosts += world->truth.terms[i].host != 0;
    }
    mu_sim_note(
        world->sim, NULL,
        "healed: %" PRIu32 " nodes, %" PRIu32 " hosts, %" PRIu32 " rounds; the run %s go on",
        world->nodes, hosts, world->truth.commit_count, can_go_on(world) ? "must" : "need not");
}

static void run_world(struct mu_sim *sim, enum succ_bug bug, bool turned)
{
    struct mu_prng *prng = mu_sim_prng(sim);
    struct world *world = mu_calloc(1, sizeof(*world));

    world->sim = sim;
    world->bug = bug;
    world->turned = turned;
    world->nodes = 3 + (uint32_t)mu_prng_below(prng, SUCC_NODES_MAX - 2);
    world->endpoints = mu_prng_chance(prng, 500000) ? 1 : 3;
    draw_deaths(world, prng);
    for (uint32_t i = 0; i < world->nodes; i++) {
        struct place *p = &world->places[i];

        p->world = world;
        p->id = i;
        p->proc = mu_sim_proc_new(mu_sim_host_new(sim, succ_heirs()[i].name),
                                  &(struct mu_sim_program){.name = "agent",
                                                           .start = start_agent,
                                                           .killed = agent_killed,
                                                           .arg = p,
                                                           .flags = MU_SIM_KEEP_ALIVE});
    }
    mu_sim_add_checker(sim, kill_nodes, world);
    mu_sim_run_for(sim, mu_sim_length_ns(sim, FAULTY_NS));
    world->death_count = 0;
    mu_sim_heal(sim);
    mu_sim_run_for(sim, MU_NS_PER_S);
    note_end(world);
    if (can_go_on(world) && !mu_sim_run_until(sim, CONVERGE_NS, all_run, world)) {
        tell_states(world);
        mu_sim_fail(sim, "the run does not go on");
    }
    mu_free(world);
}

static struct mu_sim_faults draw_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    f.alloc_fail_ppm = 0;
    f.shortage_every_ns = 0;
    return f;
}

SIM_SCENARIO(rdzv_succession, "rdzv-succession",
             "hosts are lost at any step, and succeeded: never two, and the run goes on",
             draw_faults, false, run_world(sim, SUCC_BUG_NONE, false))

SIM_SCENARIO(rdzv_succession_lines, "rdzv-succession-lines",
             "the same when the nodes do not agree on the order of the line", draw_faults, false,
             run_world(sim, SUCC_BUG_NONE, true))

#define PLANTED(id, bug, what)                                                                     \
    SIM_SCENARIO(rdzv_succession_##id, "rdzv-succession-" #id, "planted bug: " what, draw_faults,  \
                 true, run_world(sim, bug, false))

PLANTED(twice, SUCC_BUG_PROMISE_TWICE, "a promise is forgotten once it is given")
PLANTED(minority, SUCC_BUG_MINORITY, "one promise makes a host")
PLANTED(prepared, SUCC_BUG_PREPARED_IGNORED, "a round that may have begun is not told of")
PLANTED(early, SUCC_BUG_COMMIT_EARLY, "a round begins when nobody is ready")
PLANTED(round, SUCC_BUG_ROUND_REUSED, "a new host counts its rounds from 1")
PLANTED(legacy, SUCC_BUG_OLD_LEGACY, "a new host has the legacy of the first term")

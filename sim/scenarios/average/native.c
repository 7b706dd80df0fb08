/*
 * Scenario: one round of averaging in the native mode. Two to seven members, some of them clients,
 * each with a vector of its own in float32, int8 or fp8, run the machine of proto/average/native.h
 * (native_node.h). Between two members is one connection of the simulator, with its delays, resets,
 * cuts and pauses; a link that is silent for too long is over. Some members are killed, each at a
 * step that is drawn, so that over all seeds that is any step.
 *
 * The observer of native_node.h compares every result with those of the others and with a model.
 * In the end everybody that lives must have ended within the time of a round; and with success, if
 * it belongs to a quorum whose members live and have not lost each other.
 */
#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/buf.h"
#include "scenarios/average/native_node.h"
#include "scenarios/scenarios.h"

#define PORT        29500
#define BEAT_NS     (300 * MU_NS_PER_MS)
#define DEAD_NS     (2 * MU_NS_PER_S)
#define DIAL_NS     (3 * MU_NS_PER_S) /* for links to come up */
#define AGAIN_NS    (100 * MU_NS_PER_MS)
#define TOTAL_MS    60000
#define FAULTY_NS   (40 * MU_NS_PER_S)
#define STEPS_DRAWN 400
#define WIRE_MAX    (1 << 20)

struct world;
struct member;

struct place {
    struct world *world;
    uint32_t id;
    struct mu_sim_proc *proc;
    struct member *member; /* NULL: it is dead */
    bool killed, ended, released;
    int status;
    uint64_t lost; /* whom it has lost that was not on its way out */
};

struct death {
    uint64_t at;
    uint32_t node;
    bool power, done;
};

struct world {
    struct mu_sim *sim;
    enum nat_bug bug;
    struct nat_round round;
    struct nat_truth truth;
    struct place places[NAT_NODES_MAX];
    struct death deaths[NAT_NODES_MAX];
    uint32_t death_count;
};

/* --- links ------------------------------------------------------------------------------------ */

struct wire {
    struct mu_conn conn;
    struct member *member;
    struct mu_list link;
    bool dialled, open, closing, known;
    uint32_t peer;
    struct mu_buf out, in;
};

struct member {
    struct nat_node node;
    struct place *place;
    struct mu_env *env;
    struct mu_listener listener;
    struct mu_timer timer;
    struct mu_list wires;
    struct wire *to[NAT_NODES_MAX];
    bool up[NAT_NODES_MAX], over[NAT_NODES_MAX];
    mu_mono_t heard[NAT_NODES_MAX], dial_at[NAT_NODES_MAX];
    mu_mono_t beat_at, dial_until;
    struct mu_buf early[NAT_NODES_MAX]; /* what was to be sent before there was a link */
    bool busy;
};

static struct mu_now now_of(const struct member *m)
{
    return (struct mu_now){mu_env_now(m->env).mono, {0}};
}

static void flush(struct wire *w)
{
    size_t taken;

    if (!w->closing && w->open && w->out.len > 0) {
        mu_env_send(w->conn.env, &w->conn, mu_buf_span(&w->out), &taken);
        mu_buf_consume(&w->out, taken);
    }
}

static void close_wire(struct wire *w, bool abort_it)
{
    if (!w->closing) {
        w->closing = true;
        if (w->known && w->member->to[w->peer] == w) {
            w->member->to[w->peer] = NULL;
        }
        mu_env_close(w->conn.env, &w->conn, abort_it);
    }
}

static void settle(struct member *m);

/* The link to that member is over, for this round. */
static void sever(struct member *m, uint32_t peer)
{
    struct place *other = &m->place->world->places[peer];

    if (m->over[peer]) {
        return;
    }
    m->over[peer] = true;
    MU_LIST_FOREACH (it, &m->wires) {
        struct wire *w = MU_CONTAINER_OF(it, struct wire, link);

        if (w->known && w->peer == peer) {
            close_wire(w, true);
        }
    }
    if (!m->node.released && !other->released) {
        m->place->lost |= UINT64_C(1) << peer;
    }
    nat_node_lost(&m->node, now_of(m), peer);
}

static void put_frame(struct mu_buf *out, struct mu_span frame)
{
    MU_ASSERT(mu_buf_reserve(out, frame.len + 2) == 0);
    mu_buf_put_u16(out, (uint16_t)frame.len);
    mu_buf_put(out, frame);
}

static void send_frame(void *context, uint32_t from, uint32_t to, const struct nat_frame *frame)
{
    struct member *m = context;

    if (mu_sim_tracing(m->place->world->sim)) {
        struct mu_native_msg msg;

        MU_ASSERT(mu_native_msg_decode(mu_span(frame->bytes, frame->len), &msg) == 0);
        mu_sim_note(m->place->world->sim, m->place->proc,
                    "%u to %u: %s ballot %u sum %u part %u shard %u%s", from, to,
                    mu_native_type_name(msg.type), msg.ballot, msg.sum, msg.part, msg.shard,
                    m->over[to] ? ", in vain" : "");
    }
    if (m->over[to]) {
        return;
    }
    if (m->up[to] && m->to[to] != NULL) {
        put_frame(&m->to[to]->out, mu_span(frame->bytes, frame->len));
        flush(m->to[to]);
    } else {
        put_frame(&m->early[to], mu_span(frame->bytes, frame->len));
    }
}

static void put_hello(struct member *m, struct mu_buf *out)
{
    struct mu_native_msg msg = {.type = MU_NATIVE_HELLO,
                                .hello = {.version = MU_NATIVE_VERSION,
                                          .round = m->node.round->salt,
                                          .position = (uint8_t)m->node.id,
                                          .members = (uint8_t)m->node.round->count}};
    struct mu_buf frame;

    mu_buf_init(&frame, 4096);
    MU_ASSERT(mu_native_msg_encode(&msg, &frame) == 0);
    put_frame(out, mu_buf_span(&frame));
    mu_buf_fini(&frame);
}

/* The first frame on a link says whose it is. Only then it is one. */
static void greet(struct wire *w, struct mu_span frame)
{
    struct member *m = w->member;
    struct mu_native_msg msg;

    if (mu_native_msg_decode(frame, &msg) != 0 || msg.type != MU_NATIVE_HELLO ||
        msg.hello.round != m->node.round->salt || msg.hello.members != m->node.round->count) {
        mu_sim_fail(m->place->world->sim, "a link does not begin with a hello");
        return;
    }
    if (m->over[msg.hello.position] || m->up[msg.hello.position]) {
        close_wire(w, true);
        return;
    }
    w->peer = msg.hello.position;
    w->known = true;
    m->to[w->peer] = w;
    m->up[w->peer] = true;
    if (!w->dialled) {
        put_hello(m, &w->out);
    }
    MU_ASSERT(mu_buf_append(&w->out, mu_buf_span(&m->early[w->peer])) == 0);
    mu_buf_reset(&m->early[w->peer]);
    flush(w);
}

static void take_frame(struct wire *w, struct mu_span frame)
{
    struct member *m = w->member;

    if (!w->known || !m->up[w->peer]) {
        greet(w, frame);
        return;
    }
    m->heard[w->peer] = now_of(m).mono;
    if (frame.len > 0 && !m->over[w->peer]) {
        nat_node_receive(&m->node, now_of(m), w->peer, frame);
    }
}

static size_t wire_data(struct mu_conn *conn, struct mu_span in)
{
    struct wire *w = MU_CONTAINER_OF(conn, struct wire, conn);

    if (w->closing || mu_buf_append(&w->in, in) != 0) {
        return in.len;
    }
    while (!w->closing && w->in.len >= 2) {
        struct mu_span all = mu_buf_span(&w->in);
        uint16_t len = mu_get_u16(all.data);
        uint8_t frame[NAT_FRAME_MAX];

        if (all.len < 2u + len) {
            break;
        }
        MU_ASSERT(len <= sizeof(frame));
        memcpy(frame, all.data + 2, len);
        mu_buf_consume(&w->in, 2u + len);
        take_frame(w, mu_span(frame, len));
    }
    settle(w->member);
    return in.len;
}

static void wire_open(struct mu_conn *conn)
{
    struct wire *w = MU_CONTAINER_OF(conn, struct wire, conn);

    w->open = true;
    flush(w);
}

static void wire_writable(struct mu_conn *conn)
{
    flush(MU_CONTAINER_OF(conn, struct wire, conn));
}

/* A connection on which nothing was agreed is tried again; a link is not. */
static void wire_gone(struct wire *w)
{
    struct member *m = w->member;

    if (w->known && m->to[w->peer] == w) {
        m->to[w->peer] = NULL;
    }
    if (w->known && m->up[w->peer]) {
        sever(m, w->peer);
    } else if (w->dialled) {
        m->dial_at[w->peer] = mu_mono_add_ns(now_of(m).mono, AGAIN_NS);
    }
}

static void wire_eof(struct mu_conn *conn)
{
    struct wire *w = MU_CONTAINER_OF(conn, struct wire, conn);
    struct member *m = w->member;

    if (!w->closing) {
        close_wire(w, true);
        wire_gone(w);
    }
    settle(m);
}

static void wire_closed(struct mu_conn *conn, int status)
{
    struct wire *w = MU_CONTAINER_OF(conn, struct wire, conn);
    struct member *m = w->member;
    bool was_up = !w->closing;

    (void)status;
    w->closing = true;
    if (was_up) {
        wire_gone(w);
    }
    mu_list_remove(&w->link);
    mu_buf_fini(&w->in);
    mu_buf_fini(&w->out);
    mu_free(w);
    settle(m);
}

static const struct mu_conn_events wire_events = {
    .open = wire_open,
    .data = wire_data,
    .eof = wire_eof,
    .writable = wire_writable,
    .closed = wire_closed,
};

static struct wire *wire_new(struct member *m)
{
    struct wire *w = mu_sim_calloc(sizeof(*w));

    w->member = m;
    w->conn.on = &wire_events;
    mu_buf_init(&w->in, WIRE_MAX);
    mu_buf_init(&w->out, WIRE_MAX);
    mu_list_push(&m->wires, &w->link);
    return w;
}

static struct mu_conn *accept_wire(struct mu_listener *listener)
{
    struct wire *w = wire_new(MU_CONTAINER_OF(listener, struct member, listener));

    w->open = true;
    return &w->conn;
}

static void listener_closed(struct mu_listener *listener)
{
    (void)listener;
}

static void dial(struct member *m, uint32_t to)
{
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PORT};
    struct wire *w = wire_new(m);

    w->dialled = true;
    w->known = true;
    w->peer = to;
    m->dial_at[to] = MU_MONO_NEVER;
    (void)snprintf(addr.host, sizeof(addr.host), "member%u", to);
    put_hello(m, &w->out);
    MU_ASSERT(mu_env_dial(m->env, &w->conn, &addr) == 0);
}

/* --- a member --------------------------------------------------------------------------------- */

static void node_failed(void *context, const char *what)
{
    struct member *m = context;

    mu_sim_fail(m->place->world->sim, "member %u: %s", m->node.id, what);
}

/* After everything that happens: what is due, and the next time to look. */
static void settle(struct member *m)
{
    mu_mono_t at = mu_mono_min(m->beat_at, mu_native_deadline(&m->node.m));

    m->place->ended = m->node.ended;
    m->place->status = m->node.status;
    if (m->node.released && !m->place->released) {
        m->place->released = true;
        MU_LIST_FOREACH (it, &m->wires) {
            struct wire *w = MU_CONTAINER_OF(it, struct wire, link);

            close_wire(w, false);
        }
    }
    for (uint32_t i = 0; i < m->node.round->count; i++) {
        at = mu_mono_min(at, m->dial_at[i]);
    }
    mu_env_timer_arm(m->env, &m->timer, m->node.released ? MU_MONO_NEVER : at);
}

static void beat(struct member *m)
{
    mu_mono_t now = now_of(m).mono;

    m->beat_at = mu_mono_add_ns(now, BEAT_NS);
    for (uint32_t i = 0; i < m->node.round->count; i++) {
        if (i == m->node.id || m->over[i]) {
            continue;
        }
        if (m->up[i] ? mu_mono_since(m->heard[i], now) > DEAD_NS
                     : mu_mono_reached(m->dial_until, now)) {
            sever(m, i);
        } else if (m->up[i] && m->to[i] != NULL) {
            put_frame(&m->to[i]->out, (struct mu_span){0});
            flush(m->to[i]);
        }
    }
}

static void fire(struct mu_timer *timer)
{
    struct member *m = MU_CONTAINER_OF(timer, struct member, timer);
    mu_mono_t now = now_of(m).mono;

    for (uint32_t i = 0; i < m->node.id; i++) {
        if (mu_mono_reached(m->dial_at[i], now) && !m->over[i] && !m->node.released) {
            dial(m, i);
        } else if (mu_mono_reached(m->dial_at[i], now)) {
            m->dial_at[i] = MU_MONO_NEVER;
        }
    }
    if (mu_mono_reached(m->beat_at, now)) {
        beat(m);
    }
    nat_node_tick(&m->node, now_of(m));
    settle(m);
}

static int start_member(struct mu_env *env, void *arg)
{
    struct place *place = arg;
    struct world *world = place->world;
    struct member *m;
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = PORT, .host = "0.0.0.0"};

    if (mu_sim_proc_starts(mu_sim_proc_of(env)) > 1) {
        return 0; /* Who was killed does not come back into this round. */
    }
    m = mu_sim_calloc(sizeof(*m));
    m->place = place;
    m->env = env;
    place->member = m;
    mu_list_init(&m->wires);
    mu_timer_init(&m->timer, fire);
    m->listener.accept = accept_wire;
    m->listener.closed = listener_closed;
    m->beat_at = mu_mono_add_ns(now_of(m).mono, BEAT_NS);
    m->dial_until = mu_mono_add_ns(now_of(m).mono, DIAL_NS);
    for (uint32_t i = 0; i < NAT_NODES_MAX; i++) {
        mu_buf_init(&m->early[i], WIRE_MAX);
        m->heard[i] = now_of(m).mono;
        m->dial_at[i] = i < place->id ? now_of(m).mono : MU_MONO_NEVER;
    }
    m->node.truth = &world->truth;
    m->node.bug = world->bug;
    m->node.send = send_frame;
    m->node.failed = node_failed;
    m->node.context = m;
    MU_ASSERT(mu_env_listen(env, &m->listener, &addr) == 0);
    nat_node_start(&m->node, now_of(m), place->id, &world->round);
    settle(m);
    return 0;
}

static void member_killed(void *arg)
{
    struct place *place = arg;

    place->member = NULL;
    place->killed = true;
}

/* --- the end ---------------------------------------------------------------------------------- */

static bool is_quorum(const struct world *world, uint64_t members)
{
    uint64_t voters = ((UINT64_C(1) << world->round.count) - 1) & ~world->round.clients;
    int all = __builtin_popcountll(voters);
    int some = __builtin_popcountll(members & voters);

    return 2 * some > all || (2 * some == all && (members & voters & (~voters + 1)) != 0);
}

/* Those that live and have not lost each other: who has lost most is left out first. */
static uint64_t find_together(const struct world *world)
{
    uint64_t together = 0;

    for (uint32_t i = 0; i < world->round.count; i++) {
        together |= world->places[i].killed ? 0 : UINT64_C(1) << i;
    }
    for (;;) {
        uint32_t worst = 0;
        int most = 0;

        for (uint32_t i = 0; i < world->round.count; i++) {
            uint64_t apart = world->places[i].lost;

            for (uint32_t k = 0; k < world->round.count; k++) {
                apart |= (world->places[k].lost >> i & 1) != 0 ? UINT64_C(1) << k : 0;
            }
            if ((together >> i & 1) != 0 && __builtin_popcountll(apart & together) > most) {
                most = __builtin_popcountll(apart & together);
                worst = i;
            }
        }
        if (most == 0) {
            return together;
        }
        together &= ~(UINT64_C(1) << worst);
    }
}

static bool all_ended(void *arg)
{
    const struct world *world = arg;

    for (uint32_t i = 0; i < world->round.count; i++) {
        if (!world->places[i].killed && !world->places[i].released) {
            return false;
        }
    }
    return true;
}

static void check_end(struct world *world)
{
    uint64_t together = find_together(world);
    bool quorum = is_quorum(world, together);

    for (uint32_t i = 0; i < world->round.count; i++) {
        const struct place *p = &world->places[i];

        mu_sim_note(world->sim, p->proc, "%s, status %d, lost %" PRIx64,
                    p->killed  ? "killed"
                    : p->ended ? "ended"
                               : "not ended",
                    p->status, p->lost);
        if (!p->killed && !p->ended) {
            mu_sim_fail(world->sim, "member %u does not end", i);
        } else if (!p->killed && quorum && (together >> i & 1) != 0 && p->status != 0) {
            mu_sim_fail(world->sim, "member %u reaches a quorum and ends with %d", i, p->status);
        }
    }
}

static void kill_members(struct mu_sim *sim, void *arg)
{
    struct world *world = arg;

    for (uint32_t k = 0; k < world->death_count; k++) {
        struct death *d = &world->deaths[k];

        if (!d->done && mu_sim_steps(sim) >= d->at && world->places[d->node].member != NULL) {
            d->done = true;
            mu_sim_kill(world->places[d->node].proc,
                        d->power ? MU_SIM_KILL_POWER : MU_SIM_KILL_PROCESS);
            return;
        }
    }
}

static void draw_world(struct world *world, struct mu_prng *prng)
{
    uint32_t count = 2 + (uint32_t)mu_prng_below(prng, NAT_NODES_MAX - 1);
    uint64_t clients = mu_prng_chance(prng, 300000) ? mu_prng_below(prng, 1u << count) : 0;
    uint32_t parts = 1 + (uint32_t)mu_prng_below(prng, 2);
    uint32_t codec = (uint32_t)mu_prng_below(prng, 3);

    clients = clients == (1u << count) - 1 ? 0 : clients;
    nat_round_init(&world->round, count, clients, parts, codec,
                   mu_prng_below(prng, UINT64_C(1) << 56));
    world->round.times.gather_ms = 5000;
    world->round.times.propose_ms = 3000;
    world->round.times.prepare_ms = 1000;
    world->round.times.takeover_ms = 8000;
    world->round.times.total_ms = TOTAL_MS;
    world->death_count = (uint32_t)mu_prng_below(prng, count);
    for (uint32_t k = 0; k < world->death_count; k++) {
        world->deaths[k] = (struct death){.at = 1 + mu_prng_below(prng, STEPS_DRAWN),
                                          .node = (uint32_t)mu_prng_below(prng, count),
                                          .power = mu_prng_chance(prng, 500000)};
    }
}

static void run_world(struct mu_sim *sim, enum nat_bug bug)
{
    static const char *const names[] = {"member0", "member1", "member2", "member3",
                                        "member4", "member5", "member6"};
    struct world *world = mu_calloc(1, sizeof(*world));

    world->sim = sim;
    world->bug = bug;
    draw_world(world, mu_sim_prng(sim));
    for (uint32_t i = 0; i < world->round.count; i++) {
        struct place *p = &world->places[i];

        p->world = world;
        p->id = i;
        p->proc = mu_sim_proc_new(mu_sim_host_new(sim, names[i]),
                                  &(struct mu_sim_program){.name = "average",
                                                           .start = start_member,
                                                           .killed = member_killed,
                                                           .arg = p,
                                                           .flags = MU_SIM_KEEP_ALIVE});
    }
    mu_sim_add_checker(sim, kill_members, world);
    if (!mu_sim_run_until(sim, FAULTY_NS, all_ended, world)) {
        mu_sim_heal(sim); /* A member that is paused for ever does not end. */
        (void)mu_sim_run_until(sim, (TOTAL_MS + 20000) * MU_NS_PER_MS, all_ended, world);
    }
    if (mu_sim_failure(sim) == NULL) {
        check_end(world);
    }
    mu_sim_run_for(sim, MU_NS_PER_S);
    mu_free(world);
}

static struct mu_sim_faults draw_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    f.alloc_fail_ppm = 0;
    f.shortage_every_ns = 0;
    return f;
}

SIM_SCENARIO(average_native, "average-native",
             "members of a round of averaging are lost at any step: one result, of whom it names",
             draw_faults, false, run_world(sim, NAT_BUG_NONE))

#define PLANTED(id, bug, what)                                                                     \
    SIM_SCENARIO(average_native_##id, "average-native-" #id, "planted bug: " what, draw_faults,    \
                 true, run_world(sim, bug))

PLANTED(all, NAT_BUG_SUM_ALL, "an owner sums all that it has")
PLANTED(raw, NAT_BUG_RAW_OWN, "an owner does not round its own values")
PLANTED(feedback, NAT_BUG_FEEDBACK, "averages have error feedback")
PLANTED(relabel, NAT_BUG_RELABEL, "an average is taken whatever sum it is of")
PLANTED(regive, NAT_BUG_REGIVE, "values have changed when they are given again")
PLANTED(hide, NAT_BUG_HIDE, "a promise does not tell what was accepted")
PLANTED(minority, NAT_BUG_MINORITY, "who was never heard of counts")
PLANTED(early, NAT_BUG_EARLY, "averages are placed before they are final")
PLANTED(boast, NAT_BUG_BOAST, "an owner says that it has everything")
PLANTED(leave, NAT_BUG_LEAVE, "who has its result leaves at once")
PLANTED(deaf, NAT_BUG_DEAF, "nobody is sent what it asks for")

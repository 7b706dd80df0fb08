/*
 * Jobs: keys under a lease, and keys under a session. The oracle tells to the nanosecond when the
 * server deletes one, in true time.
 *
 * A lease lasts its time from the last keep that was acknowledged, counted from when it was asked
 * for, by the server's clock, which drifts. It does not last longer than its time from when the
 * last keep can have been executed; a server that was suspended gives another full time. A session
 * lasts its grace from the last answer that came over it, counted likewise, unless its client was
 * killed; it ends when its client was dead for the time it takes to notice, plus its grace. Neither
 * survives the server.
 */
#include "scenarios/store/store_world.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"

#define DRIFT(ns) ((ns) - (ns) / 1000 - MU_NS_PER_MS) /* at least, by a clock that is too fast */
#define LATE(ns)  ((ns) + (ns) / 1000)                /* at most, by one that is too slow */
#define SLACK_NS  MU_NS_PER_S                         /* timers, a tick, a commit */
#define SEEN      16
#define APART_NS  (100 * MU_NS_PER_MS)
#define TICKS_NS  (1200 * MU_NS_PER_MS) /* how late a lease may end for lack of memory */
#define DEAD_NS   (15 * MU_NS_PER_S)    /* until a silent end is given up: rpc's dead_ms */

/* A key that a lease or a session holds. */
struct hold {
    char key[24];
    uint32_t incarnation; /* of the server, when it was first told of the key */
    uint64_t ttl_ns;
    uint64_t seen_ns;           /* when the last acknowledged keep was asked for */
    uint64_t seen_before[SEEN]; /* earlier ones, some time apart */
    uint32_t seen_count;
    uint64_t until_ns; /* no keep was executed after this; UINT64_MAX: one may be */
    bool bound;        /* the key was acknowledged */
    bool revoked;      /* or the holder left or was killed: it may go at once */
    bool gone;         /* the oracle saw its end */
};

struct hold_state {
    struct hold *holds;
    size_t count;
    size_t cap;
    size_t latest[STORE_CLIENTS * STORE_WORKERS_MAX]; /* by role, plus one */
    char letter;
};

enum phase {
    PHASE_GRANT = 0,
    PHASE_BIND,
    PHASE_KEEP,
    PHASE_REVOKE,
};

struct hold_worker {
    struct store_worker base;
    enum phase phase;
    uint64_t lease;
    uint32_t ttl_ms;
    uint32_t keeps; /* still to do */
    char key_text[24];
    char text[24];
    struct mu_span key;
    struct mu_span value;
};

static bool is_native(enum mu_store_tcp_protocol protocol)
{
    return protocol == MU_STORE_TCP_MUSTER;
}

static void lease_make(struct store_world *w, void *state)
{
    (void)w;
    ((struct hold_state *)state)->letter = 'l';
}

static void session_make(struct store_world *w, void *state)
{
    (void)w;
    ((struct hold_state *)state)->letter = 's';
}

static void drop(void *state)
{
    mu_free(((struct hold_state *)state)->holds);
}

static struct hold *hold_of(const struct store_role *role)
{
    struct hold_state *s = role->state;

    return &s->holds[s->latest[role->number] - 1];
}

static struct hold *begin_hold(struct store_role *role, uint64_t ttl_ns)
{
    struct hold_state *s = role->state;
    struct hold *h;

    s->holds = store_grow(s->holds, s->count, &s->cap, sizeof(*s->holds));
    h = &s->holds[s->count++];
    *h = (struct hold){
        .incarnation = role->world->incarnation, .ttl_ns = ttl_ns, .until_ns = UINT64_MAX};
    (void)snprintf(h->key, sizeof(h->key), "%c%zu", s->letter, s->count);
    s->latest[role->number] = s->count;
    return h;
}

/* An answer can outlive the server that gave it: then that server is unknown. */
static bool is_certain(const struct store_worker *worker, const struct hold *h)
{
    uint32_t now = worker->role->world->incarnation;

    return worker->incarnation == now && h->incarnation == now &&
           worker->role->world->hosts[0].serving != NULL;
}

/* Everything is checked while it happens. */
static void check_nothing(struct store_world *w, void *state)
{
    (void)w;
    (void)state;
}

/* --- what the server does --------------------------------------------------------------------- */

static void check_nothing_survived(struct store_world *w, void *state)
{
    const struct mu_map_node *cursor = NULL;
    struct mu_span key;
    struct mu_span value;

    while (mu_ks_next_key(&w->hosts[0].serving->server->ks, &cursor, &key, &value)) {
        if (key.len > 1 && key.data[1] == (uint8_t)((struct hold_state *)state)->letter) {
            mu_sim_fail(w->sim, "%.*s was under a lease and survived the server", (int)key.len,
                        (const char *)key.data);
        }
    }
}

static void see(struct hold *h, uint64_t ns)
{
    h->seen_ns = ns;
    if (h->seen_count == 0 || ns > h->seen_before[(h->seen_count - 1) % SEEN] + APART_NS) {
        h->seen_before[h->seen_count++ % SEEN] = ns;
    }
}

/*
 * Returns when it was last held, as far as that counts now. A server without memory deletes a
 * little late what is over; meanwhile its client may have come back, and seen a key that is not its
 * own any more.
 */
static uint64_t last_held(const struct store_world *w, const struct hold *h, uint64_t now)
{
    uint64_t latest = 0;

    if (!w->memory) {
        return h->seen_ns;
    }
    for (uint32_t i = 0; i < SEEN && i < h->seen_count; i++) {
        uint64_t ns = h->seen_before[i];

        latest = ns > latest && ns + TICKS_NS < now ? ns : latest;
    }
    return latest;
}

static void noted(struct store_world *w, void *state, const struct mu_change *change)
{
    struct hold_state *s = state;
    uint64_t now = mu_sim_now_ns(w->sim);

    if (change->kind != MU_CHANGE_EXPIRED) {
        return;
    }
    for (size_t i = 0; i < s->count; i++) {
        struct hold *h = &s->holds[i];
        uint64_t held;

        if (strlen(h->key) + 1 != change->key.len ||
            memcmp(h->key, change->key.data + 1, change->key.len - 1) != 0) {
            continue;
        }
        h->gone = true;
        held = last_held(w, h, now);
        if (!h->revoked && held != 0 && now < held + DRIFT(h->ttl_ns)) {
            mu_sim_fail(w->sim, "%s expired %.3f ms after it was last held, of %.3f ms", h->key,
                        (double)(now - held) / 1e6, (double)h->ttl_ns / 1e6);
        }
    }
}

static void check_gone(struct store_world *w, struct hold_state *s, uint64_t notice_ns)
{
    uint64_t now = mu_sim_now_ns(w->sim);

    for (size_t i = 0; i < s->count; i++) {
        struct hold *h = &s->holds[i];
        uint64_t from = h->until_ns > w->quiet_ns ? h->until_ns : w->quiet_ns;

        if (h->bound && !h->gone && h->incarnation == w->incarnation && h->until_ns != UINT64_MAX &&
            now > from + LATE(h->ttl_ns) + notice_ns + SLACK_NS) {
            struct mu_span value;

            if (store_world_peek(w, h->key, &value)) {
                mu_sim_fail(w->sim, "%s is still there %.3f s after nobody held it", h->key,
                            (double)(now - h->until_ns) / 1e9);
            }
        }
    }
}

/* --- leases ----------------------------------------------------------------------------------- */

static void lease_calm(struct store_world *w, void *state)
{
    check_gone(w, state, 0);
}

/* This is a copy, because the list of holds moves when it grows. */
static void name_key(struct hold_worker *c)
{
    (void)snprintf(c->key_text, sizeof(c->key_text), "%s", hold_of(c->base.role)->key);
    c->key = mu_span_str(c->key_text);
}

static void request_bind(struct hold_worker *c, uint64_t lease)
{
    struct mu_store_request *q = &c->base.op.request;

    (void)snprintf(c->text, sizeof(c->text), "%" PRId64, store_worker_unique(&c->base));
    name_key(c);
    c->value = mu_span_str(c->text);
    *q = (struct mu_store_request){.verb = MU_STORE_SET,
                                   .keys = &c->key,
                                   .key_count = 1,
                                   .values = &c->value,
                                   .value_count = 1,
                                   .lease = lease};
}

static void lease_next(struct store_worker *worker)
{
    struct hold_worker *c = MU_CONTAINER_OF(worker, struct hold_worker, base);
    struct mu_store_request *q = &worker->op.request;

    if (worker->role->world->finishing) {
        store_worker_stop(worker);
        return;
    }
    worker->op.timeout_ms = 200 + (uint32_t)mu_prng_below(&worker->prng, 2000);
    switch (c->phase) {
    case PHASE_GRANT:
        c->ttl_ms = 300 + (uint32_t)mu_prng_below(&worker->prng, 2000);
        c->keeps = (uint32_t)mu_prng_below(&worker->prng, 8);
        (void)begin_hold(worker->role, (uint64_t)c->ttl_ms * MU_NS_PER_MS);
        *q = (struct mu_store_request){.verb = MU_STORE_LEASE_GRANT, .number = c->ttl_ms};
        break;
    case PHASE_BIND:
        request_bind(c, c->lease);
        break;
    case PHASE_KEEP:
        *q = (struct mu_store_request){.verb = MU_STORE_LEASE_KEEP, .lease = c->lease};
        hold_of(worker->role)->until_ns = UINT64_MAX;
        if (worker->role->world->setup->plant == STORE_PLANT_CARELESS_KEEPER) {
            see(hold_of(worker->role), mu_sim_now_ns(worker->role->world->sim));
        }
        break;
    case PHASE_REVOKE:
        *q = (struct mu_store_request){.verb = MU_STORE_LEASE_REVOKE, .lease = c->lease};
        hold_of(worker->role)->revoked = true;
        break;
    }
    store_worker_submit(worker);
}

/* A hold without known facts is left alone. */
static void lease_done(struct store_worker *worker, enum store_verdict verdict)
{
    struct hold_worker *c = MU_CONTAINER_OF(worker, struct hold_worker, base);
    struct hold *h = hold_of(worker->role);
    uint64_t now = mu_sim_now_ns(worker->role->world->sim);
    enum phase phase = c->phase;

    c->phase = PHASE_GRANT;
    if (verdict == STORE_DONE && phase != PHASE_REVOKE) {
        if (phase != PHASE_BIND) {
            see(h, worker->submitted_ns);
            h->until_ns = now;
        }
        if (phase == PHASE_GRANT) {
            c->lease = (uint64_t)worker->op.reply.number;
            h->incarnation = worker->incarnation;
            c->phase = PHASE_BIND;
        } else {
            h->bound = h->bound || is_certain(worker, h);
            c->phase = c->keeps-- != 0                        ? PHASE_KEEP
                       : mu_prng_below(&worker->prng, 3) == 0 ? PHASE_REVOKE
                                                              : PHASE_GRANT;
        }
    }
    if (c->phase == PHASE_KEEP) {
        struct mu_env *env = worker->peer->env;

        mu_env_timer_arm(
            env, &worker->timer,
            mu_mono_add_ms(mu_env_now(env).mono, mu_prng_below(&worker->prng, c->ttl_ms * 2 / 3)));
        return;
    }
    store_worker_think(worker, c->phase == PHASE_GRANT ? 100 : 1);
}

const struct store_job store_job_lease = {
    .state_size = sizeof(struct hold_state),
    .worker_size = sizeof(struct hold_worker),
    .suits = is_native,
    .make = lease_make,
    .drop = drop,
    .check = check_nothing,
    .next = lease_next,
    .done = lease_done,
    .calm = lease_calm,
    .server_up = check_nothing_survived,
    .noted = noted,
};

/* --- sessions --------------------------------------------------------------------------------- */

static void session_calm(struct store_world *w, void *state)
{
    check_gone(w, state, DEAD_NS);
}

/* Binds a key, and then checks that it exists: each answer shows that the session lives. */
static void session_next(struct store_worker *worker)
{
    struct hold_worker *c = MU_CONTAINER_OF(worker, struct hold_worker, base);
    struct store_world *w = worker->role->world;

    if (w->finishing) {
        if (c->phase == PHASE_KEEP) {
            hold_of(worker->role)->revoked = true; /* The session will end in order. */
        }
        store_worker_stop(worker);
        return;
    }
    worker->op.timeout_ms = 200 + (uint32_t)mu_prng_below(&worker->prng, 10000);
    if (c->phase != PHASE_KEEP) {
        (void)begin_hold(worker->role, (uint64_t)w->grace_ms * MU_NS_PER_MS);
        c->phase = PHASE_BIND;
        request_bind(c, MU_LEASE_SESSION);
    } else {
        name_key(c);
        worker->op.request = (struct mu_store_request){
            .verb = MU_STORE_GET, .flags = MU_STORE_NOWAIT, .keys = &c->key, .key_count = 1};
        if (w->setup->plant == STORE_PLANT_WISHFUL_CLIENT) {
            see(hold_of(worker->role), mu_sim_now_ns(w->sim));
        }
    }
    store_worker_submit(worker);
}

static void session_done(struct store_worker *worker, enum store_verdict verdict)
{
    struct hold_worker *c = MU_CONTAINER_OF(worker, struct hold_worker, base);
    struct store_world *w = worker->role->world;
    struct hold *h = hold_of(worker->role);

    if (verdict == STORE_DONE) {
        see(h, worker->submitted_ns);
        h->incarnation = c->phase == PHASE_BIND ? worker->incarnation : h->incarnation;
        h->bound = h->bound || is_certain(worker, h);
        c->phase = PHASE_KEEP;
    } else if (verdict == STORE_ABSENT || c->phase == PHASE_BIND) {
        if (h->bound && !h->gone && h->incarnation == w->incarnation) {
            mu_sim_fail(w->sim, "%s is not there, and it never went", h->key);
        }
        c->phase = PHASE_BIND;
    }
    store_worker_think(worker, 100);
}

static void session_killed(struct store_role *role)
{
    struct hold_state *s = role->state;

    if (s->latest[role->number] != 0) {
        hold_of(role)->until_ns = mu_sim_now_ns(role->world->sim);
        /* The server sees the end of its connection, unless the host lost its power. */
        hold_of(role)->revoked = true;
    }
}

const struct store_job store_job_session = {
    .state_size = sizeof(struct hold_state),
    .worker_size = sizeof(struct hold_worker),
    .suits = is_native,
    .make = session_make,
    .drop = drop,
    .check = check_nothing,
    .next = session_next,
    .done = session_done,
    .killed = session_killed,
    .calm = session_calm,
    .server_up = check_nothing_survived,
    .noted = noted,
};

/*
 * Jobs: writers, which set, delete and write several keys at once, and watchers of one key, of a
 * prefix or of everything. The oracle records what the server does, so that watches can be compared
 * with it (checkers/watch.h), and so can the answers to writers: an acknowledged write happened
 * once, any other at most once.
 */
#include "scenarios/store/store_world.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "checkers/watch.h"
#include "core/alloc.h"

#define KEYS     3
#define SLACK_NS MU_NS_PER_S /* how soon a watcher must hear of a change in a quiet world */
#define LAST_NS  (3 * MU_NS_PER_S)

/* --- watchers --------------------------------------------------------------------------------- */

struct watch_state {
    struct watch_history history;
    size_t latest[STORE_CLIENTS * STORE_WORKERS_MAX]; /* by role: its run, plus one */
};

struct watch_worker {
    struct store_worker base;
    size_t run;
    bool watching;
    bool canceled; /* by its own choice */
    bool last;     /* it waits for the last changes */
    char pattern[8];
    struct mu_span key;
};

static bool is_native(enum mu_store_tcp_protocol protocol)
{
    return protocol == MU_STORE_TCP_MUSTER;
}

static void watch_make(struct store_world *w, void *state)
{
    (void)w;
    (void)state;
}

static void watch_drop(void *state)
{
    watch_fini(&((struct watch_state *)state)->history);
}

static void watch_judge(struct store_world *w, void *state)
{
    struct mu_errmsg msg;

    if (watch_check(&((struct watch_state *)state)->history, SLACK_NS, &msg) != 0) {
        mu_sim_fail(w->sim, "%s", msg.text);
    }
}

/* Returns the key as the client sees it: on the wire, keys begin with a slash. */
static struct mu_change as_client(const struct mu_change *change)
{
    struct mu_change c = *change;

    c.key = mu_span_skip(c.key, c.key.len == 0 ? 0 : 1);
    return c;
}

static void watch_server_up(struct store_world *w, void *state)
{
    struct watch_history *h = &((struct watch_state *)state)->history;
    const struct mu_keyspace *ks = &w->hosts[0].serving->server->ks;
    struct mu_change change = {.revision = ks->revision};
    const struct mu_map_node *cursor = NULL;

    watch_life_begins(h, ks->revision);
    while (mu_ks_next_key(ks, &cursor, &change.key, &change.value)) {
        struct mu_change c = as_client(&change);

        watch_note(h, &c, 0, mu_sim_now_ns(w->sim));
    }
}

static void watch_noted(struct store_world *w, void *state, const struct mu_change *change)
{
    struct mu_change c = as_client(change);

    watch_note(&((struct watch_state *)state)->history, &c, (int)c.kind, mu_sim_now_ns(w->sim));
}

static struct watch_run *run_of(const struct watch_worker *c)
{
    return &((struct watch_state *)c->base.role->state)->history.runs[c->run];
}

/* Checks now and then whether to stop or to watch something else. */
static void arm(struct watch_worker *c, uint64_t ns)
{
    struct mu_env *env = c->base.peer->env;

    mu_env_timer_arm(env, &c->base.timer, mu_mono_add_ns(mu_env_now(env).mono, ns));
}

static void begin_watch(struct watch_worker *c)
{
    struct store_world *w = c->base.role->world;
    struct watch_state *state = c->base.role->state;
    struct mu_store_request *q = &c->base.op.request;
    uint64_t kind = mu_prng_below(&c->base.prng, 4);
    bool current = mu_prng_below(&c->base.prng, 4) != 0;
    uint64_t number = mu_prng_below(&c->base.prng, KEYS);

    /* One key, all of ours, or everything. */
    if (kind >= 2) {
        (void)snprintf(c->pattern, sizeof(c->pattern), "w%" PRIu64, number);
    } else {
        (void)snprintf(c->pattern, sizeof(c->pattern), "%s", kind == 1 ? "w" : "");
    }
    c->key = mu_span_str(c->pattern);
    *q = (struct mu_store_request){.verb = MU_STORE_WATCH, .keys = &c->key, .key_count = 1};
    q->flags = (kind < 2 ? MU_STORE_PREFIX : 0) | (current ? MU_STORE_CURRENT : 0);
    c->run = watch_begin(&state->history, c->pattern, kind < 2, current, w->incarnation);
    state->latest[c->base.role->number] = c->run + 1;
    c->base.op.timeout_ms = 0;
    c->watching = true;
    c->canceled = false;
    if (mu_sim_tracing(w->sim)) {
        mu_sim_note(w->sim, c->base.role->member->proc, "watch %zu: %s flags %" PRIu32, c->run,
                    c->pattern, q->flags);
    }
    store_worker_submit(&c->base);
}

static void watch_next(struct store_worker *worker)
{
    struct watch_worker *c = MU_CONTAINER_OF(worker, struct watch_worker, base);
    struct store_world *w = worker->role->world;

    if (!c->watching && w->finishing) {
        store_worker_stop(worker);
        return;
    }
    if (!c->watching) {
        begin_watch(c);
    } else if (c->canceled) {
        return; /* The watch ends soon. */
    } else if (w->finishing && !c->last) {
        c->last = true;
        arm(c, LAST_NS);
        return;
    } else if (c->last || (!w->calm && mu_prng_below(&worker->prng, 40) == 0)) {
        if (c->last) {
            run_of(c)->live_ns = mu_sim_now_ns(w->sim);
        } else {
            run_of(c)->ended = true;
        }
        c->canceled = true;
        mu_store_cancel(&worker->op);
        return;
    }
    arm(c, w->finishing ? MU_NS_PER_MS : w->think_max_ns);
}

static void watch_change(struct store_worker *worker, const struct mu_change *change)
{
    struct watch_worker *c = MU_CONTAINER_OF(worker, struct watch_worker, base);
    struct watch_state *state = worker->role->state;
    struct store_world *w = worker->role->world;
    /* Keys that are bound to a lease do not go to the disk. */
    bool kept = w->disk == STORE_DISK_ALWAYS && change->key.len != 0 && change->key.data[0] == 'w';

    worker->role->answered++;
    if (mu_sim_tracing(w->sim)) {
        mu_sim_note(w->sim, worker->role->member->proc,
                    "watch %zu told: %.*s revision %" PRIu64 " kind %d", c->run,
                    (int)change->key.len, (const char *)change->key.data, change->revision,
                    (int)change->kind);
    }
    watch_told(&state->history, c->run, change,
               kept ? mu_sim_disk_revision(mu_sim_proc_host(w->hosts[0].proc), "data") : UINT64_MAX,
               mu_sim_now_ns(w->sim));
}

static void watch_done(struct store_worker *worker, enum store_verdict verdict)
{
    struct watch_worker *c = MU_CONTAINER_OF(worker, struct watch_worker, base);
    struct store_world *w = worker->role->world;

    (void)verdict;
    if (worker->op.status == 0) {
        mu_sim_fail(w->sim, "client %" PRIu32 ": a watch ended and did not say why",
                    worker->role->member->number);
    }
    if (w->setup->plant == STORE_PLANT_FORGETFUL_WATCH && !c->canceled && !w->finishing) {
        worker->op.request.flags &= ~MU_STORE_CURRENT;
        store_worker_submit(worker);
        return;
    }
    if (run_of(c)->live_ns == 0) {
        run_of(c)->ended = true;
    }
    c->watching = false;
    store_worker_think(worker, 50);
}

static void watch_killed(struct store_role *role)
{
    struct watch_state *state = role->state;
    size_t run = state->latest[role->number];

    if (run != 0 && state->history.runs[run - 1].live_ns == 0) {
        state->history.runs[run - 1].ended = true;
    }
}

const struct store_job store_job_watch = {
    .state_size = sizeof(struct watch_state),
    .worker_size = sizeof(struct watch_worker),
    .suits = is_native,
    .make = watch_make,
    .drop = watch_drop,
    .check = watch_judge,
    .next = watch_next,
    .done = watch_done,
    .change = watch_change,
    .killed = watch_killed,
    .server_up = watch_server_up,
    .noted = watch_noted,
};

/* --- writers ---------------------------------------------------------------------------------- */

struct write {
    int64_t number;
    uint32_t keys;
    uint32_t seen; /* by the oracle */
    bool acknowledged;
};

struct write_state {
    struct write *writes; /* by ascending number */
    size_t count;
    size_t cap;
    size_t pad; /* bytes that every value has at least */
};

struct write_worker {
    struct store_worker base;
    size_t write;
    bool deletes;
    char key_texts[KEYS][8];
    struct mu_span keys[KEYS];
    struct mu_span values[KEYS];
    char text[24];
    char *padded;
};

static void write_make(struct store_world *w, void *state)
{
    struct write_state *s = state;

    /* Values are long, so that a watcher that is away falls behind. */
    s->pad = mu_prng_below(mu_sim_prng(w->sim), 8) == 0
                 ? 1000 + (size_t)mu_prng_below(mu_sim_prng(w->sim), 60000)
                 : 0;
}

static void write_drop(void *state)
{
    mu_free(((struct write_state *)state)->writes);
}

static void write_judge(struct store_world *w, void *state)
{
    struct write_state *s = state;

    for (size_t i = 0; i < s->count; i++) {
        const struct write *x = &s->writes[i];

        if (x->seen > x->keys || (x->acknowledged && x->seen != x->keys)) {
            mu_sim_fail(w->sim, "a write of %" PRIu32 " keys%s made %" PRIu32 " changes: %" PRId64,
                        x->keys, x->acknowledged ? " that was acknowledged" : "", x->seen,
                        x->number);
        }
    }
}

static void write_noted(struct store_world *w, void *state, const struct mu_change *change)
{
    struct write_state *s = state;
    struct mu_span text = change->value;
    size_t low = 0;
    size_t high = s->count;
    int64_t number;

    (void)w;
    text.len = text.len < 23 ? text.len : 23;
    if (change->key.len < 2 || change->key.data[1] != 'w' || text.len == 0 ||
        !store_read_number(text, &number)) {
        return;
    }
    while (low < high) {
        size_t mid = low + (high - low) / 2;

        if (s->writes[mid].number < number) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    if (low < s->count && s->writes[low].number == number) {
        s->writes[low].seen++;
    }
}

/* The value is the number in 23 digits, and padding. */
static struct mu_span make_value(struct write_worker *c, int64_t number)
{
    size_t pad = ((struct write_state *)c->base.role->state)->pad;
    size_t len = pad < 23 ? 23 : pad;

    c->padded = mu_sim_calloc(len + 1);
    memset(c->padded, '.', len);
    (void)snprintf(c->text, sizeof(c->text), "%023" PRId64, number);
    memcpy(c->padded, c->text, 23);
    return mu_span(c->padded, len);
}

static void write_next(struct store_worker *worker)
{
    struct write_worker *c = MU_CONTAINER_OF(worker, struct write_worker, base);
    struct write_state *s = worker->role->state;
    struct store_world *w = worker->role->world;
    uint64_t kind = mu_prng_below(&worker->prng, 8);
    uint32_t first = (uint32_t)mu_prng_below(&worker->prng, KEYS);
    uint32_t count = kind == 0 ? KEYS : 1;
    int64_t number = store_worker_unique(worker);

    if (w->finishing) {
        store_worker_stop(worker);
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        (void)snprintf(c->key_texts[i], sizeof(c->key_texts[i]), "w%" PRIu32, (first + i) % KEYS);
        c->keys[i] = mu_span_str(c->key_texts[i]);
    }
    worker->op.request =
        (struct mu_store_request){.verb = MU_STORE_DELETE, .keys = c->keys, .key_count = count};
    worker->op.timeout_ms = 200 + (uint32_t)mu_prng_below(&worker->prng, 10000);
    c->deletes = kind == 1;
    if (!c->deletes) {
        s->writes = store_grow(s->writes, s->count, &s->cap, sizeof(*s->writes));
        s->writes[s->count] = (struct write){.number = number, .keys = count};
        c->write = s->count++;
        c->values[0] = c->values[1] = c->values[2] = make_value(c, number);
        worker->op.request.verb = count == 1 ? MU_STORE_SET : MU_STORE_MULTI_SET;
        worker->op.request.values = c->values;
        worker->op.request.value_count = count;
    }
    store_worker_submit(worker);
}

static void write_done(struct store_worker *worker, enum store_verdict verdict)
{
    struct write_worker *c = MU_CONTAINER_OF(worker, struct write_worker, base);
    struct write_state *s = worker->role->state;

    mu_free(c->padded);
    c->padded = NULL;
    if (!c->deletes && verdict == STORE_DONE) {
        s->writes[c->write].acknowledged = true;
    }
    store_worker_think(worker, 100);
}

const struct store_job store_job_write = {
    .state_size = sizeof(struct write_state),
    .worker_size = sizeof(struct write_worker),
    .suits = is_native,
    .make = write_make,
    .drop = write_drop,
    .check = write_judge,
    .next = write_next,
    .done = write_done,
    .noted = write_noted,
};

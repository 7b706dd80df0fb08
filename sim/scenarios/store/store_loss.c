/*
 * Job: what a crash takes. Each worker writes ascending numbers, to a key alone and to a group of
 * keys at once, one write after another, and notes when each was acknowledged. Whenever the server
 * comes up, the content of its disk is checked before any client is served: the number must be at
 * least the last one that was acknowledged early enough, and at most the last one that was written;
 * and a group must be whole.
 *
 * Early enough, with `--sync interval`: a change waits an interval, or for the commit in progress
 * when it is made if that takes longer, and then for its own commit to end. With `--sync always`,
 * and after a server that left in order, nothing may be missing.
 */
#include "scenarios/store/store_world.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"

#define GROUP_KEYS 3

/* What one worker wrote in one life of its client; an earlier life may overtake a later one. */
struct trail {
    char key[24];
    int64_t written;
    struct step {
        uint64_t acked_ns; /* 0: not known */
        bool group;
    } * steps; /* by number, from 1 */
    size_t step_cap;
};

struct loss_state {
    struct trail *trails;
    size_t count;
    size_t cap;
    uint64_t down_ns;
    uint64_t window_ns; /* what was acknowledged longer ago than this is on disk */
};

struct loss_worker {
    struct store_worker base;
    size_t trail; /* plus one */
    char key_texts[GROUP_KEYS][28];
    char text[24];
    struct mu_span keys[GROUP_KEYS];
    struct mu_span values[GROUP_KEYS];
};

static bool is_native(enum mu_store_tcp_protocol protocol)
{
    return protocol == MU_STORE_TCP_MUSTER;
}

static void make(struct store_world *w, void *state)
{
    struct loss_state *s = state;
    const struct mu_sim_faults *f = mu_sim_faults(w->sim);
    uint64_t interval = (uint64_t)w->sync_interval_ms * MU_NS_PER_MS;
    uint64_t commit = f->work_max_ns + 1000;

    interval += interval / 1000 + f->timer_late_max_ns + MU_NS_PER_MS;
    /* A server that has no memory cannot begin a commit. */
    s->window_ns = (interval > commit ? interval : commit) + commit + 4 * f->shortage_max_ns +
                   (f->alloc_fail_ppm != 0 ? 200 * MU_NS_PER_MS : 0);
}

static void drop(void *state)
{
    struct loss_state *s = state;

    for (size_t i = 0; i < s->count; i++) {
        mu_free(s->trails[i].steps);
    }
    mu_free(s->trails);
}

static void check(struct store_world *w, void *state)
{
    (void)w;
    (void)state;
}

/* --- checking --------------------------------------------------------------------------------- */

static int64_t peek_number(struct store_world *w, const char *key)
{
    struct mu_span value;
    int64_t number = 0;

    if (store_world_peek(w, key, &value) && !store_read_number(value, &number)) {
        mu_sim_fail(w->sim, "%s holds no number", key);
    }
    return number;
}

static void look_at(struct store_world *w, const struct loss_state *s, struct trail *t)
{
    bool all = w->drained || w->disk == STORE_DISK_ALWAYS;
    int64_t alone = peek_number(w, t->key);
    int64_t group[GROUP_KEYS];
    int64_t found;

    for (int i = 0; i < GROUP_KEYS; i++) {
        char key[32];

        (void)snprintf(key, sizeof(key), "%s.%d", t->key, i);
        group[i] = peek_number(w, key);
    }
    if (group[0] != group[1] || group[0] != group[2]) {
        mu_sim_fail(w->sim, "%s: half of a multi_set is on disk: %" PRId64 " %" PRId64 " %" PRId64,
                    t->key, group[0], group[1], group[2]);
    }
    found = alone > group[0] ? alone : group[0];
    if (found > t->written) {
        mu_sim_fail(w->sim, "%s holds %" PRId64 " and only %" PRId64 " were written", t->key, found,
                    t->written);
    }
    for (int64_t n = 1; n <= t->written; n++) {
        uint64_t acked = t->steps[n].acked_ns;

        if (acked == 0 || n <= (t->steps[n].group ? group[0] : alone)) {
            continue;
        }
        /* Everything before a change that was kept must have been kept as well. */
        if (all || n < found || acked + s->window_ns < s->down_ns) {
            mu_sim_fail(w->sim,
                        "%s: %" PRId64 " was acknowledged %.3f ms before the end and is lost "
                        "(%" PRId64 " is there; %.3f ms may be lost)",
                        t->key, n, (double)(s->down_ns - acked) / 1e6, found,
                        all ? 0.0 : (double)s->window_ns / 1e6);
        }
        t->steps[n].acked_ns = 0; /* It is lost: the server's next life is not checked for it
                                     again. */
    }
}

static void server_up(struct store_world *w, void *state)
{
    struct loss_state *s = state;

    for (size_t i = 0; i < s->count; i++) {
        look_at(w, s, &s->trails[i]);
    }
}

static void server_down(struct store_world *w, void *state)
{
    ((struct loss_state *)state)->down_ns = mu_sim_now_ns(w->sim);
}

/* --- writing ---------------------------------------------------------------------------------- */

static void begin_trail(struct loss_worker *c)
{
    struct loss_state *s = c->base.role->state;
    struct trail *t;

    s->trails = store_grow(s->trails, s->count, &s->cap, sizeof(*s->trails));
    t = &s->trails[s->count++];
    *t = (struct trail){0};
    (void)snprintf(t->key, sizeof(t->key), "i%zu", s->count);
    c->trail = s->count;
}

static void next(struct store_worker *worker)
{
    struct loss_worker *c = MU_CONTAINER_OF(worker, struct loss_worker, base);
    struct loss_state *s = worker->role->state;
    struct mu_store_request *q = &worker->op.request;
    struct trail *t;
    bool group = mu_prng_below(&worker->prng, 2) == 0;

    if (worker->role->world->finishing) {
        store_worker_stop(worker);
        return;
    }
    if (c->trail == 0) {
        begin_trail(c);
    }
    t = &s->trails[c->trail - 1];
    t->steps = store_grow(t->steps, (size_t)t->written + 1, &t->step_cap, sizeof(*t->steps));
    t->steps[++t->written] = (struct step){.group = group};
    (void)snprintf(c->text, sizeof(c->text), "%" PRId64, t->written);
    for (int i = 0; i < GROUP_KEYS; i++) {
        (void)snprintf(c->key_texts[i], sizeof(c->key_texts[i]), group ? "%s.%d" : "%s", t->key, i);
        c->keys[i] = mu_span_str(c->key_texts[i]);
        c->values[i] = mu_span_str(c->text);
    }
    *q = (struct mu_store_request){.verb = group ? MU_STORE_MULTI_SET : MU_STORE_SET,
                                   .keys = c->keys,
                                   .key_count = group ? GROUP_KEYS : 1,
                                   .values = c->values,
                                   .value_count = group ? GROUP_KEYS : 1};
    worker->op.timeout_ms = 200 + (uint32_t)mu_prng_below(&worker->prng, 10000);
    store_worker_submit(worker);
}

static void done(struct store_worker *worker, enum store_verdict verdict)
{
    struct loss_worker *c = MU_CONTAINER_OF(worker, struct loss_worker, base);
    struct store_world *w = worker->role->world;
    struct trail *t = &((struct loss_state *)worker->role->state)->trails[c->trail - 1];

    /* An answer that outlived its server may be about a change that is lost already. */
    if (verdict == STORE_DONE && worker->incarnation == w->incarnation) {
        t->steps[t->written].acked_ns = mu_sim_now_ns(w->sim);
    }
    store_worker_think(worker, 25);
}

const struct store_job store_job_loss = {
    .state_size = sizeof(struct loss_state),
    .worker_size = sizeof(struct loss_worker),
    .suits = is_native,
    .make = make,
    .drop = drop,
    .check = check,
    .next = next,
    .done = done,
    .server_up = server_up,
    .server_down = server_down,
};

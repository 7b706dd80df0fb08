/* Job: values that grow by append, and are read now and then. checkers/append.h judges. */
#include "scenarios/store/store_world.h"

#include <inttypes.h>
#include <stdio.h>

#include "checkers/append.h"

#define KEYS 2

struct append_state {
    struct append_log logs[KEYS];
};

struct append_worker {
    struct store_worker base;
    uint32_t key;
    bool reads;
    size_t op; /* in the log */
    uint64_t invoked;
    bool last;     /* it reads all values at the end */
    uint32_t read; /* keys whose final value it has read */
    char key_text[16];
    char text[APPEND_TOKEN_LEN + 1];
    struct mu_span key_span;
    struct mu_span value;
};

static void make(struct store_world *w, void *state)
{
    (void)w;
    for (size_t i = 0; i < KEYS; i++) {
        append_init(&((struct append_state *)state)->logs[i]);
    }
}

static void drop(void *state)
{
    for (size_t i = 0; i < KEYS; i++) {
        append_fini(&((struct append_state *)state)->logs[i]);
    }
}

static void check(struct store_world *w, void *state)
{
    struct mu_errmsg msg;

    for (size_t i = 0; i < KEYS; i++) {
        if (append_check(&((struct append_state *)state)->logs[i], &msg) != 0) {
            mu_sim_fail(w->sim, "a%zu: %s", i, msg.text);
        }
    }
}

static void next(struct store_worker *worker)
{
    struct append_worker *c = MU_CONTAINER_OF(worker, struct append_worker, base);
    struct append_state *state = worker->role->state;
    struct store_world *w = worker->role->world;
    struct mu_store_request *q = &worker->op.request;

    if (w->finishing && c->read == KEYS) {
        store_worker_stop(worker);
        return;
    }
    c->last = w->finishing;
    c->key = w->finishing ? c->read : (uint32_t)mu_prng_below(&worker->prng, KEYS);
    c->reads = w->finishing || mu_prng_below(&worker->prng, 3) == 0;
    c->invoked = store_world_order(w);
    (void)snprintf(c->key_text, sizeof(c->key_text), "a%" PRIu32, c->key);
    c->key_span = mu_span_str(c->key_text);
    *q = (struct mu_store_request){.verb = MU_STORE_GET, .keys = &c->key_span, .key_count = 1};
    worker->op.timeout_ms = 200 + (uint32_t)mu_prng_below(&worker->prng, 10000);
    if (c->reads) {
        q->flags = MU_STORE_NOWAIT;
    } else {
        int64_t token = (int64_t)c->invoked;

        c->op = append_invoke(&state->logs[c->key], token, c->invoked);
        append_format(token, c->text);
        c->value = mu_span_str(c->text);
        q->verb = MU_STORE_APPEND;
        q->values = &c->value;
        q->value_count = 1;
    }
    store_worker_submit(worker);
}

static void done(struct store_worker *worker, enum store_verdict verdict)
{
    struct append_worker *c = MU_CONTAINER_OF(worker, struct append_worker, base);
    struct append_log *log = &((struct append_state *)worker->role->state)->logs[c->key];
    const struct mu_store_reply *reply = &worker->op.reply;
    struct store_world *w = worker->role->world;
    struct mu_errmsg msg;

    if (c->reads && verdict != STORE_UNKNOWN) {
        struct mu_span value = verdict == STORE_DONE ? reply->values[0] : mu_span("", 0);

        if (append_read(log, value, c->invoked, store_world_order(w), &msg) != 0) {
            mu_sim_fail(w->sim, "%s: %s", c->key_text, msg.text);
        }
        c->read += c->last ? 1 : 0;
    } else if (!c->reads && verdict == STORE_DONE) {
        append_return(log, c->op, reply->number > 0 ? (size_t)reply->number : 0,
                      store_world_order(w));
    }
    store_worker_think(worker, 100);
}

const struct store_job store_job_append = {
    .state_size = sizeof(struct append_state),
    .worker_size = sizeof(struct append_worker),
    .make = make,
    .drop = drop,
    .check = check,
    .next = next,
    .done = done,
};

/*
 * Job: queues. Elements are pushed, popped with and without waiting. At the end every worker pops
 * until nothing is left: its own pushes were acknowledged before that, so nothing acknowledged can
 * be left over. checkers/queue.h judges.
 */
#include "scenarios/store/store_world.h"

#include <inttypes.h>
#include <stdio.h>

#include "checkers/queue.h"

#define QUEUES 2

struct queue_state {
    struct queue_history queues[QUEUES];
};

struct queue_worker {
    struct store_worker base;
    uint32_t queue;
    bool pops;
    size_t op;        /* in the history */
    bool last;        /* it pops until nothing is left */
    uint32_t drained; /* queues that are known to be empty */
    bool holds;       /* a planted bug: it keeps back an element that it should have worked on
                         first */
    int64_t held;
    char key_text[16];
    char text[24];
    struct mu_span key;
    struct mu_span value;
};

static bool suits(enum mu_store_tcp_protocol protocol)
{
    return protocol != MU_STORE_TCP_TORCH1;
}

static void make(struct store_world *w, void *state)
{
    (void)w;
    (void)state;
}

static void drop(void *state)
{
    for (size_t i = 0; i < QUEUES; i++) {
        queue_fini(&((struct queue_state *)state)->queues[i]);
    }
}

static void check(struct store_world *w, void *state)
{
    struct mu_errmsg msg;

    for (size_t i = 0; i < QUEUES; i++) {
        if (queue_check(&((struct queue_state *)state)->queues[i], &msg) != 0) {
            mu_sim_fail(w->sim, "q%zu: %s", i, msg.text);
        }
    }
}

static struct queue_history *history_of(const struct queue_worker *c)
{
    return &((struct queue_state *)c->base.role->state)->queues[c->queue];
}

static void fill_request(struct queue_worker *c)
{
    struct store_world *w = c->base.role->world;
    struct mu_store_request *q = &c->base.op.request;

    (void)snprintf(c->key_text, sizeof(c->key_text), "q%" PRIu32, c->queue);
    c->key = mu_span_str(c->key_text);
    *q = (struct mu_store_request){.verb = MU_STORE_QUEUE_POP, .keys = &c->key, .key_count = 1};
    c->base.op.timeout_ms = 200 + (uint32_t)mu_prng_below(&c->base.prng, 5000);
    if (c->pops) {
        c->op = queue_pop(history_of(c), store_world_order(w));
        q->flags = w->finishing || mu_prng_below(&c->base.prng, 2) == 0 ? MU_STORE_NOWAIT : 0;
    } else {
        int64_t element = store_worker_unique(&c->base);

        c->op = queue_push(history_of(c), element, store_world_order(w));
        (void)snprintf(c->text, sizeof(c->text), "%" PRId64, element);
        c->value = mu_span_str(c->text);
        q->verb = MU_STORE_QUEUE_PUSH;
        q->values = &c->value;
        q->value_count = 1;
    }
}

static void next(struct store_worker *worker)
{
    struct queue_worker *c = MU_CONTAINER_OF(worker, struct queue_worker, base);
    struct store_world *w = worker->role->world;

    if (w->finishing && c->drained == QUEUES) {
        store_worker_stop(worker);
        return;
    }
    c->last = w->finishing;
    c->queue = w->finishing ? c->drained : (uint32_t)mu_prng_below(&worker->prng, QUEUES);
    c->pops = w->finishing || mu_prng_below(&worker->prng, 20) < 9;
    fill_request(c);
    if (mu_sim_tracing(w->sim)) {
        mu_sim_note(w->sim, worker->role->member->proc, "%s %s %s", c->pops ? "pop" : "push",
                    c->key_text, c->pops ? "" : c->text);
    }
    store_worker_submit(worker);
}

/* A planted bug: a worker that has got an element works on the next one first. */
static bool puts_off(struct queue_worker *c, int64_t element)
{
    if (c->base.role->world->setup->plant != STORE_PLANT_IMPATIENT_POP || c->holds) {
        return false;
    }
    c->holds = true;
    c->held = element;
    c->base.op.request.flags = MU_STORE_NOWAIT;
    store_worker_submit(&c->base);
    return true;
}

static void take_held(struct queue_worker *c)
{
    struct store_world *w = c->base.role->world;
    size_t pop;

    if (c->holds) {
        c->holds = false;
        pop = queue_pop(history_of(c), store_world_order(w));
        queue_popped(history_of(c), pop, QUEUE_DONE, c->held, store_world_order(w));
    }
}

/* Handles the result of a pop. False if another was begun in its place. */
static bool take_pop(struct queue_worker *c, enum store_verdict verdict)
{
    struct store_world *w = c->base.role->world;
    const struct mu_store_op *op = &c->base.op;
    enum queue_outcome outcome = QUEUE_UNKNOWN;
    int64_t element = 0;

    switch (verdict) {
    case STORE_DONE:
        outcome = QUEUE_DONE;
        if (op->reply.value_count != 1 || !store_read_number(op->reply.values[0], &element)) {
            mu_sim_fail(w->sim, "client %" PRIu32 " popped no number",
                        c->base.role->member->number);
        }
        if (puts_off(c, element)) {
            return false;
        }
        break;
    case STORE_ABSENT:
        outcome = QUEUE_EMPTY;
        c->drained += c->last ? 1 : 0;
        break;
    case STORE_UNKNOWN:
        if (store_worker_told_timeout(&c->base)) {
            outcome = QUEUE_NOTHING;
        } else if (w->setup->plant == STORE_PLANT_RETRYING_POP) {
            store_worker_submit(&c->base);
            return false;
        }
        break;
    }
    if (outcome != QUEUE_UNKNOWN) {
        queue_popped(history_of(c), c->op, outcome, element, store_world_order(w));
    }
    take_held(c);
    return true;
}

static void done(struct store_worker *worker, enum store_verdict verdict)
{
    struct queue_worker *c = MU_CONTAINER_OF(worker, struct queue_worker, base);
    struct store_world *w = worker->role->world;

    if (c->pops) {
        if (!take_pop(c, verdict)) {
            return;
        }
    } else if (verdict == STORE_DONE) {
        queue_pushed(history_of(c), c->op, store_world_order(w));
    } else if (w->setup->plant == STORE_PLANT_RETRYING_PUSH) {
        store_worker_submit(worker);
        return;
    }
    store_worker_think(worker, 100);
}

const struct store_job store_job_queue = {
    .state_size = sizeof(struct queue_state),
    .worker_size = sizeof(struct queue_worker),
    .suits = suits,
    .make = make,
    .drop = drop,
    .check = check,
    .next = next,
    .done = done,
};

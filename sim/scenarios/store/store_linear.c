/*
 * Job: single keys, and a group of keys that is only ever written whole. All answers must be those
 * of one store that does one thing after another: checkers/linear.h. A group counts as one key
 * there; that a multi_get never sees half of a multi_set is checked when it is answered.
 */
#include "scenarios/store/store_world.h"

#include <inttypes.h>
#include <string.h>

#include "checkers/linear.h"

#define KEYS       6
#define GROUP      KEYS /* the number of the group, as a key */
#define GROUP_KEYS 3

struct linear_state {
    struct linear_history history;
};

struct linear_worker {
    struct store_worker base;
    struct linear_value seen[KEYS + 1]; /* what it last saw, for compare_set */
    uint32_t op;                        /* in the history */
    enum linear_kind kind;
    uint32_t key;
    uint32_t part; /* of a group that is written in pieces by a planted bug */
    uint32_t read; /* keys read since the world is finishing */
    char key_texts[GROUP_KEYS][16];
    char texts[2][24];
    struct mu_span keys[GROUP_KEYS];
    struct mu_span values[GROUP_KEYS];
};

static void linear_make(struct store_world *w, void *state)
{
    (void)w;
    linear_init(&((struct linear_state *)state)->history);
}

static void linear_drop_state(void *state)
{
    linear_fini(&((struct linear_state *)state)->history);
}

static void linear_judge(struct store_world *w, void *state)
{
    struct mu_errmsg msg = {0};

    switch (linear_check(&((struct linear_state *)state)->history, &msg)) {
    case LINEAR_OK:
        break;
    case LINEAR_VIOLATION:
        mu_sim_fail(w->sim, "%s", msg.text);
        break;
    case LINEAR_GAVE_UP:
        mu_sim_note(w->sim, NULL, "%s", msg.text);
        mu_sim_undecided(w->sim);
        break;
    }
}

static enum mu_store_verb verb_of(enum linear_kind kind, bool group)
{
    switch (kind) {
    case LINEAR_GET:
        return group ? MU_STORE_MULTI_GET : MU_STORE_GET;
    case LINEAR_SET:
        return group ? MU_STORE_MULTI_SET : MU_STORE_SET;
    case LINEAR_ADD:
        return MU_STORE_ADD;
    case LINEAR_COMPARE_SET:
        return MU_STORE_COMPARE_SET;
    case LINEAR_DELETE:
        return MU_STORE_DELETE;
    case LINEAR_CHECK:
        return MU_STORE_CHECK;
    case LINEAR_WAIT:
        return MU_STORE_WAIT;
    }
    return MU_STORE_GET;
}

/* --- issuing ---------------------------------------------------------------------------------- */

/* Mostly reads, as of keys that gateways hold. */
static enum linear_kind draw_read(struct mu_prng *prng)
{
    static const enum linear_kind menu[] = {LINEAR_GET, LINEAR_GET,   LINEAR_GET,
                                            LINEAR_GET, LINEAR_CHECK, LINEAR_WAIT};

    return menu[mu_prng_below(prng, sizeof(menu) / sizeof(menu[0]))];
}

static enum linear_kind draw_kind(struct mu_prng *prng)
{
    static const struct {
        enum linear_kind kind;
        uint32_t weight;
    } menu[] = {
        {LINEAR_GET, 25},   {LINEAR_SET, 20},  {LINEAR_ADD, 25}, {LINEAR_COMPARE_SET, 15},
        {LINEAR_DELETE, 5}, {LINEAR_CHECK, 5}, {LINEAR_WAIT, 5},
    };
    uint64_t left = mu_prng_below(prng, 100);

    for (size_t i = 0; i < sizeof(menu) / sizeof(menu[0]); i++) {
        if (left < menu[i].weight) {
            return menu[i].kind;
        }
        left -= menu[i].weight;
    }
    return LINEAR_GET;
}

static enum linear_kind draw_group_kind(struct mu_prng *prng)
{
    static const enum linear_kind menu[] = {LINEAR_GET, LINEAR_GET,   LINEAR_GET, LINEAR_SET,
                                            LINEAR_SET, LINEAR_CHECK, LINEAR_WAIT};

    return menu[mu_prng_below(prng, sizeof(menu) / sizeof(menu[0]))];
}

/* Generation 1 writes and reads a group key by key. */
static bool has_groups(const struct linear_worker *c)
{
    return c->base.role->member->protocol != MU_STORE_TCP_TORCH1;
}

static struct linear_op draw_op(struct linear_worker *c)
{
    struct mu_prng *prng = &c->base.prng;
    struct linear_op op = {.client = c->base.role->member->number};

    op.key = (uint32_t)mu_prng_below(prng, has_groups(c) ? KEYS + 1 : KEYS);
    op.kind = op.key == GROUP ? draw_group_kind(prng)
              : c->base.role->world->setup->reading && mu_prng_below(prng, 4) != 0
                  ? draw_read(prng)
                  : draw_kind(prng);
    switch (op.kind) {
    case LINEAR_SET:
        op.number = store_worker_unique(&c->base);
        break;
    case LINEAR_ADD:
        op.number = 1 + (int64_t)mu_prng_below(prng, 5);
        break;
    case LINEAR_COMPARE_SET:
        op.number = store_worker_unique(&c->base);
        op.expected = c->seen[op.key];
        break;
    case LINEAR_GET:
    case LINEAR_DELETE:
    case LINEAR_CHECK:
    case LINEAR_WAIT:
        break;
    }
    return op;
}

static struct mu_span put_number(char *text, size_t cap, int64_t number)
{
    (void)snprintf(text, cap, "%" PRId64, number);
    return mu_span_str(text);
}

static void fill_keys(struct linear_worker *c, struct mu_store_request *q)
{
    bool group = c->key == GROUP;

    for (uint32_t i = 0; i < (group ? GROUP_KEYS : 1); i++) {
        (void)snprintf(c->key_texts[i], sizeof(c->key_texts[i]), group ? "g%" PRIu32 : "k%" PRIu32,
                       group ? i : c->key);
        c->keys[i] = mu_span_str(c->key_texts[i]);
    }
    q->keys = c->keys;
    q->key_count = group ? GROUP_KEYS : 1;
}

static void fill_request(struct linear_worker *c, const struct linear_op *op)
{
    struct mu_store_request *q = &c->base.op.request;

    *q = (struct mu_store_request){.verb = verb_of(op->kind, op->key == GROUP)};
    fill_keys(c, q);
    switch (op->kind) {
    case LINEAR_GET:
        q->flags = mu_prng_below(&c->base.prng, 5) == 0 && !c->base.role->world->finishing
                       ? 0
                       : MU_STORE_NOWAIT;
        break;
    case LINEAR_SET:
        c->values[0] = put_number(c->texts[0], sizeof(c->texts[0]), op->number);
        c->values[1] = c->values[2] = c->values[0];
        q->values = c->values;
        q->value_count = q->key_count;
        break;
    case LINEAR_ADD:
        q->number = op->number;
        break;
    case LINEAR_COMPARE_SET:
        c->values[0] = op->expected.present
                           ? put_number(c->texts[0], sizeof(c->texts[0]), op->expected.number)
                           : mu_span("", 0);
        c->values[1] = put_number(c->texts[1], sizeof(c->texts[1]), op->number);
        q->values = c->values;
        q->value_count = 2;
        break;
    case LINEAR_DELETE:
    case LINEAR_CHECK:
    case LINEAR_WAIT:
        break;
    }
}

/* A planted bug: the next key of a group is set by itself. */
static void submit_part(struct linear_worker *c)
{
    struct mu_store_request *q = &c->base.op.request;

    q->verb = MU_STORE_SET;
    q->keys = &c->keys[c->part++];
    q->key_count = 1;
    q->value_count = 1;
    store_worker_submit(&c->base);
}

static void issue(struct linear_worker *c, const struct linear_op *op)
{
    struct store_world *w = c->base.role->world;
    struct linear_history *h = &((struct linear_state *)c->base.role->state)->history;
    char text[160];

    c->op = linear_invoke(h, op, mu_sim_now_ns(w->sim));
    c->kind = op->kind;
    c->key = op->key;
    c->part = 0;
    if (mu_sim_tracing(w->sim)) {
        mu_sim_note(w->sim, c->base.role->member->proc, "op %" PRIu32 " key %" PRIu32 ": %s", c->op,
                    op->key, linear_format(&h->ops[c->op], text, sizeof(text)));
    }
    fill_request(c, op);
    c->base.op.timeout_ms = 200 + (uint32_t)mu_prng_below(&c->base.prng, 10000);
    if (w->setup->plant == STORE_PLANT_TORN_SET && op->kind == LINEAR_SET && op->key == GROUP) {
        submit_part(c);
        return;
    }
    store_worker_submit(&c->base);
}

/* Of the linear workers of a client, the first reads everything at the end. */
static bool is_reader(const struct store_role *role)
{
    const struct store_role *s = role->member->roles;

    while (s->job != role->job) {
        s++;
    }
    return s == role;
}

static void linear_next(struct store_worker *worker)
{
    struct linear_worker *c = MU_CONTAINER_OF(worker, struct linear_worker, base);
    struct linear_op op;

    if (!worker->role->world->finishing) {
        op = draw_op(c);
    } else if (is_reader(worker->role) && c->read < (has_groups(c) ? KEYS + 1 : KEYS)) {
        op = (struct linear_op){
            .kind = LINEAR_GET, .client = worker->role->member->number, .key = c->read};
    } else {
        store_worker_stop(worker);
        return;
    }
    issue(c, &op);
}

/* --- answers ---------------------------------------------------------------------------------- */

enum outcome {
    KNOWN = 1, /* the result says what */
    UNKNOWN,
    NOTHING, /* it certainly had no effect, or tells nothing */
};

static void read_group(struct linear_worker *c, struct linear_result *ret)
{
    const struct mu_store_reply *reply = &c->base.op.reply;
    struct mu_sim *sim = c->base.role->world->sim;
    int64_t numbers[GROUP_KEYS] = {0};

    for (size_t i = 0; i < GROUP_KEYS; i++) {
        if (reply->value_count != GROUP_KEYS || !store_read_number(reply->values[i], &numbers[i])) {
            mu_sim_fail(sim, "multi_get: client %" PRIu32 " got no number",
                        c->base.role->member->number);
            return;
        }
        if (numbers[i] != numbers[0]) {
            mu_sim_fail(sim, "multi_get saw half of a multi_set: %" PRId64 " beside %" PRId64,
                        numbers[0], numbers[i]);
        }
    }
    ret->value = (struct linear_value){true, numbers[0]};
}

/* Translates the answer for the checker. */
static enum outcome read_reply(struct linear_worker *c, struct linear_result *ret)
{
    const struct mu_store_reply *reply = &c->base.op.reply;
    bool torch = c->base.role->member->protocol != MU_STORE_TCP_MUSTER;

    *ret = (struct linear_result){.flag = reply->number != 0, .flag_known = true};
    switch (c->kind) {
    case LINEAR_GET:
    case LINEAR_COMPARE_SET:
        if (c->key == GROUP) {
            read_group(c, ret);
            return KNOWN;
        }
        /* PyTorch's protocol only guesses whether it was written. */
        ret->flag_known = c->kind == LINEAR_GET || !torch;
        if (reply->value_count == 1 && reply->values[0].len == 0 &&
            (torch || c->kind == LINEAR_COMPARE_SET)) {
            /* A PyTorch client's get is two requests, and a key deleted in between reads as empty,
             * which tells nothing. An empty answer to compare_set: absent, as expected. */
            return c->kind == LINEAR_GET ? NOTHING : KNOWN;
        }
        ret->value.present = true;
        if (reply->value_count != 1 || !store_read_number(reply->values[0], &ret->value.number)) {
            mu_sim_fail(c->base.role->world->sim, "client %" PRIu32 " got no number",
                        c->base.role->member->number);
        }
        return KNOWN;
    case LINEAR_ADD:
        ret->value = (struct linear_value){true, reply->number};
        return KNOWN;
    case LINEAR_SET:
    case LINEAR_DELETE:
    case LINEAR_CHECK:
    case LINEAR_WAIT:
        break;
    }
    return KNOWN;
}

/* What a later compare_set will expect. */
static void learn(struct linear_worker *c, const struct linear_op *op)
{
    struct linear_value *seen = &c->seen[op->key];

    switch (op->kind) {
    case LINEAR_GET:
    case LINEAR_ADD:
    case LINEAR_COMPARE_SET:
        *seen = op->result.value;
        break;
    case LINEAR_SET:
        *seen = (struct linear_value){true, op->number};
        break;
    case LINEAR_DELETE:
        *seen = (struct linear_value){0};
        break;
    case LINEAR_CHECK:
    case LINEAR_WAIT:
        break;
    }
}

static enum outcome read_verdict(struct linear_worker *c, enum store_verdict verdict,
                                 struct linear_result *ret)
{
    *ret = (struct linear_result){.flag_known = true};
    switch (verdict) {
    case STORE_DONE:
        return read_reply(c, ret);
    case STORE_ABSENT:
        return c->kind == LINEAR_GET ? KNOWN : NOTHING;
    case STORE_UNKNOWN:
        break;
    }
    return UNKNOWN;
}

static void linear_done(struct store_worker *worker, enum store_verdict verdict)
{
    struct linear_worker *c = MU_CONTAINER_OF(worker, struct linear_worker, base);
    struct store_world *w = worker->role->world;
    struct linear_history *h = &((struct linear_state *)worker->role->state)->history;
    struct linear_result result;
    char text[160];

    if (verdict == STORE_UNKNOWN && w->setup->plant == STORE_PLANT_RETRYING_CLIENT &&
        c->kind == LINEAR_ADD) {
        store_worker_submit(worker);
        return;
    }
    if (verdict == STORE_DONE && c->part != 0 && c->part < GROUP_KEYS) {
        submit_part(c);
        return;
    }
    switch (read_verdict(c, verdict, &result)) {
    case KNOWN:
        linear_return(h, c->op, &result, mu_sim_now_ns(w->sim));
        learn(c, &h->ops[c->op]);
        if (w->finishing && c->kind == LINEAR_GET && c->key == c->read) {
            c->read++;
        }
        break;
    case UNKNOWN:
        break;
    case NOTHING:
        linear_drop(h, c->op);
        break;
    }
    if (mu_sim_tracing(w->sim)) {
        mu_sim_note(w->sim, worker->role->member->proc, "op %" PRIu32 " ends: %s", c->op,
                    linear_format(&h->ops[c->op], text, sizeof(text)));
    }
    store_worker_think(worker, 100);
}

const struct store_job store_job_linear = {
    .state_size = sizeof(struct linear_state),
    .worker_size = sizeof(struct linear_worker),
    .make = linear_make,
    .drop = linear_drop_state,
    .check = linear_judge,
    .next = linear_next,
    .done = linear_done,
};

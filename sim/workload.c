#include "workload.h"

#include <inttypes.h>
#include <string.h>

#include "core/assert.h"

void workload_init(struct workload *w, struct mu_sim *sim, uint32_t keys)
{
    MU_ASSERT(keys <= WORKLOAD_KEYS_MAX);
    *w = (struct workload){.sim = sim, .keys = keys, .think_max_ns = 300 * MU_NS_PER_MS};
    linear_init(&w->history);
    w->ops = once_new(sim, "operation");
    MU_ASSERT(w->ops != NULL);
}

void workload_fini(struct workload *w)
{
    linear_fini(&w->history);
    once_free(w->ops);
}

void workload_finish(struct workload *w)
{
    w->finishing = true;
}

void workload_client_killed(struct workload *w, uint32_t number)
{
    once_forgive(w->ops, number);
}

void workload_check(struct workload *w)
{
    struct mu_errmsg msg = {0};

    once_finish(w->ops);
    switch (linear_check(&w->history, &msg)) {
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

/* --- clients ---------------------------------------------------------------------------------- */

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

/* A value that nobody else writes, so that a stale one gives itself away. */
static int64_t draw_unique(struct workload_client *c)
{
    return ((int64_t)c->number + 1) * 1000000000 +
           (int64_t)mu_prng_below(&c->prng, 1000) * 1000000 + ++c->unique * 1000;
}

static struct linear_op draw_op(struct workload_client *c)
{
    struct linear_op op = {.client = c->number};

    op.kind = draw_kind(&c->prng);
    op.key = (uint32_t)mu_prng_below(&c->prng, c->workload->keys);
    switch (op.kind) {
    case LINEAR_SET:
        op.number = draw_unique(c);
        break;
    case LINEAR_ADD:
        op.number = 1 + (int64_t)mu_prng_below(&c->prng, 5);
        break;
    case LINEAR_COMPARE_SET:
        op.number = draw_unique(c);
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

static void issue(struct workload_client *c, const struct linear_op *op)
{
    struct workload *w = c->workload;
    char text[160];

    c->busy = true;
    c->ticket = once_begin(w->ops, c->number);
    c->op = linear_invoke(&w->history, op, mu_sim_now_ns(w->sim));
    if (mu_sim_tracing(w->sim)) {
        mu_sim_note(w->sim, mu_sim_proc_of(c->env), "op %" PRIu32 " key %" PRIu32 ": %s", c->op,
                    op->key, linear_format(&w->history.ops[c->op], text, sizeof(text)));
    }
    c->ops->issue(c, op);
}

static void think_over(struct mu_timer *timer)
{
    struct workload_client *c = MU_CONTAINER_OF(timer, struct workload_client, think);
    struct linear_op op;

    if (!c->workload->finishing) {
        op = draw_op(c);
    } else if (c->read < c->workload->keys) {
        op = (struct linear_op){.kind = LINEAR_GET, .client = c->number, .key = c->read};
    } else {
        c->workload->tallies[c->number].stopped = true;
        c->ops->stop(c);
        return;
    }
    issue(c, &op);
}

static void think(struct workload_client *c)
{
    uint64_t max = c->workload->finishing ? MU_NS_PER_MS : c->workload->think_max_ns;

    mu_env_timer_arm(c->env, &c->think,
                     mu_mono_add_ns(mu_env_now(c->env).mono, mu_prng_below(&c->prng, max)));
}

void workload_client_start(struct workload_client *c, struct workload *w, uint32_t number,
                           struct mu_env *env)
{
    uint64_t seed;

    MU_ASSERT(number < WORKLOAD_CLIENTS_MAX);
    c->workload = w;
    c->number = number;
    c->env = env;
    mu_env_entropy(env, &seed, sizeof(seed));
    mu_prng_seed(&c->prng, seed);
    mu_timer_init(&c->think, think_over);
    think(c);
}

/* What a later compare_set will expect. */
static void learn(struct workload_client *c, const struct linear_op *op)
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

void workload_done(struct workload_client *c, enum workload_outcome outcome,
                   const struct linear_result *result)
{
    struct workload *w = c->workload;
    struct linear_op *op = &w->history.ops[c->op];
    char text[160];

    once_end(w->ops, c->ticket);
    if (!c->busy) {
        return; /* The run has failed. */
    }
    c->busy = false;
    w->tallies[c->number].completed++;
    switch (outcome) {
    case WORKLOAD_KNOWN:
        w->tallies[c->number].known++;
        linear_return(&w->history, c->op, result, mu_sim_now_ns(w->sim));
        learn(c, op);
        if (w->finishing && op->kind == LINEAR_GET && op->key == c->read) {
            c->read++;
        }
        break;
    case WORKLOAD_UNKNOWN:
        break;
    case WORKLOAD_NOTHING:
        linear_drop(&w->history, c->op);
        break;
    }
    if (mu_sim_tracing(w->sim)) {
        mu_sim_note(w->sim, mu_sim_proc_of(c->env), "op %" PRIu32 " ends: %s", c->op,
                    linear_format(op, text, sizeof(text)));
    }
    think(c);
}

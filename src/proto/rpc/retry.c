#include "proto/rpc/retry.h"

#define GAP_MS_MAX (365.0 * 24 * 3600 * 1000)

struct mu_rpc_retry_options mu_rpc_retry_options_defaults(void)
{
    return (struct mu_rpc_retry_options){.retries_max = 5, .duration_ms = 1000, .backoff = 1.5};
}

int mu_rpc_retry_check(const struct mu_rpc_retry_options *o, struct mu_errmsg *reterr_msg)
{
    if (o->retries_max < 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the number of retries cannot be negative");
    }
    /* Written so that NaN is refused as well. */
    if (!(o->backoff >= 1)) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the back-off must be at least 1: gaps may grow");
    }
    if (o->duration_ms < 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the retry duration cannot be negative");
    }
    if (!(o->jitter >= 0 && o->jitter <= 1)) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "jitter is a part from 0 to 1");
    }
    return 0;
}

/* --- the budget ------------------------------------------------------------------------------- */

void mu_rpc_budget_init(struct mu_rpc_budget *b, uint32_t percent, uint32_t burst)
{
    uint32_t most = burst > UINT32_MAX / 2000 ? UINT32_MAX / 2 : burst * 1000;

    percent = percent > 100000 ? 100000 : percent;
    *b = (struct mu_rpc_budget){.earn = percent * 10, .most = most, .have = most};
}

void mu_rpc_budget_earn(struct mu_rpc_budget *b)
{
    b->have = b->most - b->have < b->earn ? b->most : b->have + b->earn;
}

static bool spend(struct mu_rpc_budget *b)
{
    if (b == NULL || b->earn == 0) {
        return true;
    }
    if (b->have < 1000) {
        return false;
    }
    b->have -= 1000;
    return true;
}

/* --- due times -------------------------------------------------------------------------------- */

void mu_rpc_retry_set_init(struct mu_rpc_retry_set *s, uint64_t seed)
{
    *s = (struct mu_rpc_retry_set){0};
    mu_heap_init(&s->due);
    mu_prng_seed(&s->prng, seed);
}

void mu_rpc_retry_begin(struct mu_rpc_retry *r, const struct mu_rpc_retry_options *options)
{
    *r = (struct mu_rpc_retry){.options = *options, .again = MU_MONO_NEVER};
    mu_heap_node_init(&r->due);
}

static uint64_t gap_ms(struct mu_rpc_retry_set *s, const struct mu_rpc_retry_options *o,
                       uint32_t power)
{
    double gap = (double)o->duration_ms;

    for (uint32_t i = 0; i < power && gap > 0 && gap < GAP_MS_MAX; i++) {
        gap *= o->backoff;
    }
    if (o->jitter > 0) {
        gap -= gap * o->jitter * ((double)(mu_prng_u64(&s->prng) >> 11) / (double)(1ull << 53));
    }
    return (uint64_t)(gap < GAP_MS_MAX ? gap : GAP_MS_MAX);
}

void mu_rpc_retry_sent(struct mu_rpc_retry_set *s, struct mu_rpc_retry *r, mu_mono_t now)
{
    /* The exponent counts the retries before this one, as PyTorch's agent does. */
    mu_mono_t again = mu_mono_add_ms(now, gap_ms(s, &r->options, r->count));

    r->again = (mu_mono_t){again.ns / MU_NS_PER_MS * MU_NS_PER_MS};
    r->count += r->sent ? 1 : 0;
    r->sent = true;
}

enum mu_rpc_retry_verdict mu_rpc_retry_failed(struct mu_rpc_retry_set *s, struct mu_rpc_retry *r,
                                              struct mu_rpc_budget *budget, bool retryable)
{
    if (s->stopped) {
        return MU_RPC_RETRY_STOPPED;
    }
    if (!retryable) {
        return MU_RPC_RETRY_FINAL;
    }
    if (r->count >= (uint32_t)r->options.retries_max) {
        return MU_RPC_RETRY_EXHAUSTED;
    }
    if (!spend(budget)) {
        return MU_RPC_RETRY_BUDGET;
    }
    mu_heap_insert(&s->due, &r->due, r->again);
    s->waiting++;
    return MU_RPC_RETRY_WAIT;
}

void mu_rpc_retry_drop(struct mu_rpc_retry_set *s, struct mu_rpc_retry *r)
{
    if (mu_heap_contains(&r->due)) {
        mu_heap_remove(&s->due, &r->due);
        s->waiting--;
    }
}

static struct mu_rpc_retry *take(struct mu_rpc_retry_set *s, struct mu_heap_node *node)
{
    if (node == NULL) {
        return NULL;
    }
    s->waiting--;
    return MU_CONTAINER_OF(node, struct mu_rpc_retry, due);
}

struct mu_rpc_retry *mu_rpc_retry_next(struct mu_rpc_retry_set *s, mu_mono_t now)
{
    return s->stopped ? NULL : take(s, mu_heap_pop_due(&s->due, now));
}

mu_mono_t mu_rpc_retry_deadline(const struct mu_rpc_retry_set *s)
{
    return mu_heap_deadline(&s->due);
}

void mu_rpc_retry_stop(struct mu_rpc_retry_set *s)
{
    s->stopped = true;
}

struct mu_rpc_retry *mu_rpc_retry_flush(struct mu_rpc_retry_set *s)
{
    struct mu_heap_node *node = mu_heap_min(&s->due);

    if (node != NULL) {
        mu_heap_remove(&s->due, node);
    }
    return take(s, node);
}

#include "proto/state/gate.h"

#include <muster/error.h>

#include "core/assert.h"

/* A bucket holds at least a chunk of the usual length. */
#define BURST_BYTES_MIN ((uint64_t)1 << 20)
#define RETRY_MS_MAX    UINT32_C(10000)
/* The limit at which a second's worth can be counted in 64 bits to the nanosecond. */
#define RATE_MAX (UINT64_MAX / MU_NS_PER_S - 1)

struct mu_state_gate_config mu_state_gate_config_defaults(void)
{
    return (struct mu_state_gate_config){.slots = 16, .retry_ms = 250};
}

static uint64_t burst_of(const struct mu_state_gate_config *c)
{
    uint64_t burst = c->burst_bytes != 0 ? c->burst_bytes : c->bytes_per_s / 4;

    if (c->burst_bytes == 0 && burst < BURST_BYTES_MIN) {
        burst = BURST_BYTES_MIN;
    }
    return burst < INT64_MAX / 2 ? burst : INT64_MAX / 2;
}

/* A rate that is too large to count is no limit. */
static struct mu_state_gate_config tame(const struct mu_state_gate_config *config)
{
    struct mu_state_gate_config c = *config;

    c.bytes_per_s = c.bytes_per_s > RATE_MAX ? 0 : c.bytes_per_s;
    return c;
}

void mu_state_gate_init(struct mu_state_gate *g, const struct mu_state_gate_config *config,
                        mu_mono_t now)
{
    *g = (struct mu_state_gate){.config = tame(config), .filled = now};
    g->tokens = (int64_t)burst_of(&g->config);
    mu_list_init(&g->queue);
}

/* --- slots -------------------------------------------------------- */

int mu_state_gate_enter(struct mu_state_gate *g, uint32_t *ret_retry_ms)
{
    uint64_t ms;

    if (g->taken < g->config.slots) {
        g->taken++;
        return 0;
    }
    /* Each slot may be given back by then, so as many more newcomers may come as there are
     * slots. */
    ms = (uint64_t)g->config.retry_ms * (1 + g->refused / (g->config.slots + 1));
    g->refused++;
    *ret_retry_ms = ms < RETRY_MS_MAX ? (uint32_t)ms : RETRY_MS_MAX;
    return MUSTER_EBUSY;
}

void mu_state_gate_leave(struct mu_state_gate *g)
{
    MU_ASSERT(g->taken != 0);
    g->taken--;
    g->refused = 0;
}

/* --- tokens ------------------------------------------------------- */

static void fill(struct mu_state_gate *g, mu_mono_t now)
{
    uint64_t ns = mu_mono_since(g->filled, now);
    uint64_t rate = g->config.bytes_per_s;
    uint64_t lacking = (uint64_t)((int64_t)burst_of(&g->config) - g->tokens);
    uint64_t part = ns % MU_NS_PER_S * rate + g->carry;
    uint64_t bytes;

    g->filled = now;
    if (__builtin_mul_overflow(ns / MU_NS_PER_S, rate, &bytes) ||
        __builtin_add_overflow(bytes, part / MU_NS_PER_S, &bytes) || bytes >= lacking) {
        g->tokens += (int64_t)lacking;
        g->carry = 0;
        return;
    }
    g->tokens += (int64_t)bytes;
    g->carry = part % MU_NS_PER_S;
}

void mu_state_gate_configure(struct mu_state_gate *g, const struct mu_state_gate_config *config,
                             mu_mono_t now)
{
    struct mu_state_gate_config c = tame(config);
    int64_t burst = (int64_t)burst_of(&c);

    fill(g, now);
    g->config = c;
    g->tokens = g->tokens < burst ? g->tokens : burst;
}

void mu_state_turn_init(struct mu_state_turn *turn)
{
    mu_list_init(&turn->link);
    turn->bytes = 0;
}

void mu_state_gate_wait(struct mu_state_gate *g, struct mu_state_turn *turn, size_t bytes)
{
    turn->bytes = bytes;
    if (mu_list_empty(&turn->link)) {
        mu_list_push(&g->queue, &turn->link);
    }
}

void mu_state_gate_unwait(struct mu_state_turn *turn)
{
    mu_list_remove(&turn->link);
}

struct mu_state_turn *mu_state_gate_next(struct mu_state_gate *g, mu_mono_t now)
{
    struct mu_list *node;
    struct mu_state_turn *turn;

    if (mu_list_empty(&g->queue)) {
        return NULL;
    }
    if (g->config.bytes_per_s != 0) {
        fill(g, now);
        if (g->tokens <= 0) {
            return NULL;
        }
    }
    node = mu_list_pop(&g->queue);
    turn = MU_CONTAINER_OF(node, struct mu_state_turn, link);
    if (g->config.bytes_per_s != 0) {
        g->tokens -= (int64_t)turn->bytes;
    }
    return turn;
}

void mu_state_gate_refund(struct mu_state_gate *g, size_t bytes)
{
    int64_t burst = (int64_t)burst_of(&g->config);

    if (g->config.bytes_per_s != 0) {
        g->tokens += (int64_t)bytes;
        g->tokens = g->tokens < burst ? g->tokens : burst;
    }
}

mu_mono_t mu_state_gate_deadline(const struct mu_state_gate *g)
{
    uint64_t rate = g->config.bytes_per_s;
    uint64_t lacking;
    uint64_t ns;

    if (mu_list_empty(&g->queue)) {
        return MU_MONO_NEVER;
    }
    if (rate == 0 || g->tokens > 0) {
        return g->filled;
    }
    lacking = (uint64_t)(1 - g->tokens);
    if (__builtin_mul_overflow(lacking / rate, MU_NS_PER_S, &ns)) {
        return MU_MONO_NEVER;
    }
    return mu_mono_add_ns(mu_mono_add_ns(g->filled, ns),
                          (lacking % rate * MU_NS_PER_S + rate - 1) / rate);
}

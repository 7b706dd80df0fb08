#include "proto/state_gate.h"

#include <muster/error.h>

#include "core/assert.h"

/* A bucket holds at least what a chunk of the usual length takes. */
#define BURST_BYTES_MIN ((uint64_t)1 << 20)
#define RETRY_MS_MAX    UINT32_C(10000)

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

void mu_state_gate_init(struct mu_state_gate *g, const struct mu_state_gate_config *config,
                        mu_mono_t now)
{
    *g = (struct mu_state_gate){.config = *config, .filled = now};
    g->tokens = (int64_t)burst_of(config);
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
    /* A slot for each may be given back by then, so as many more come as there are slots. */
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
    int64_t burst = (int64_t)burst_of(&g->config);
    unsigned __int128 sum = (unsigned __int128)ns * rate + g->carry;
    unsigned __int128 bytes = sum / MU_NS_PER_S;

    g->filled = now;
    if (bytes >= (unsigned __int128)(burst - g->tokens)) {
        g->tokens = burst;
        g->carry = 0;
        return;
    }
    g->tokens += (int64_t)bytes;
    g->carry = (uint64_t)(sum % MU_NS_PER_S);
}

void mu_state_gate_configure(struct mu_state_gate *g, const struct mu_state_gate_config *config,
                             mu_mono_t now)
{
    int64_t burst = (int64_t)burst_of(config);

    fill(g, now);
    g->config = *config;
    g->tokens = g->tokens < burst ? g->tokens : burst;
}

void mu_state_seat_init(struct mu_state_seat *seat)
{
    mu_list_init(&seat->link);
    seat->bytes = 0;
}

void mu_state_gate_wait(struct mu_state_gate *g, struct mu_state_seat *seat, size_t bytes)
{
    seat->bytes = bytes;
    if (mu_list_empty(&seat->link)) {
        mu_list_push(&g->queue, &seat->link);
    }
}

void mu_state_gate_unwait(struct mu_state_seat *seat)
{
    mu_list_remove(&seat->link);
}

struct mu_state_seat *mu_state_gate_next(struct mu_state_gate *g, mu_mono_t now)
{
    struct mu_list *node;
    struct mu_state_seat *seat;

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
    seat = MU_CONTAINER_OF(node, struct mu_state_seat, link);
    if (g->config.bytes_per_s != 0) {
        g->tokens -= (int64_t)seat->bytes;
    }
    return seat;
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
    unsigned __int128 lacking;
    unsigned __int128 ns;

    if (mu_list_empty(&g->queue)) {
        return MU_MONO_NEVER;
    }
    if (g->config.bytes_per_s == 0 || g->tokens > 0) {
        return g->filled;
    }
    lacking = (unsigned __int128)(uint64_t)(1 - g->tokens) * MU_NS_PER_S - g->carry;
    ns = (lacking + g->config.bytes_per_s - 1) / g->config.bytes_per_s;
    return mu_mono_add_ns(g->filled, ns > UINT64_MAX ? UINT64_MAX : (uint64_t)ns);
}

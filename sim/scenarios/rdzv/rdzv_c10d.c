/*
 * The rendezvous over a compare-and-set key of our store, with nodes that are told of changes and
 * nodes that poll, in PyTorch's protocol. What it can promise, and what it cannot:
 *
 *  - Everything depends on the key. A server in memory that is killed loses it, and rounds are
 *    counted from the start again; so only a server with a disk is killed.
 *  - Heartbeats are wall-clock times. With clocks that are off by more than a node may be silent,
 *    living nodes are dropped again and again and dead ones seem to live; what a node is told must
 *    be true even then, but nodes must meet only where clocks are off by at most a second.
 *  - There are no incarnations: a closed run stays closed, and nodes go on to another run.
 *  - A loss is noticed by silence, and by each node for itself.
 */
#include <inttypes.h>

#include "core/assert.h"
#include "scenarios/rdzv/rdzv_world.h"
#include "scenarios/scenarios.h"
#include "service/rdzv/c10d.h"

static void configure_c10d(struct rdzv_node *n, char *text, size_t cap)
{
    struct rdzv_world *w = n->world;
    size_t len = rdzv_config_delay(text, cap, "last_call_timeout", w->last_call_ms + 1);
    int more;

    len += rdzv_config_delay(text + len, cap - len, "upscale_delay", w->upscale_delay_ms);
    /* Our server takes a client of the older protocol for an agent of PyTorch 1.13, and writes the
     * state in its dialect, which has no spares. */
    more =
        snprintf(text + len, cap - len,
                 ",dialect=2,pid=%" PRIu32 ",protocol=%s,keep_alive_interval=%" PRIu32, n->number,
                 !n->polls                                             ? "muster"
                 : n->number % 2 == 0 && w->node_count <= w->nodes_max ? "torch1"
                                                                       : "torch2",
                 w->beat_s);
    MU_ASSERT(more > 0 && (size_t)more < cap - len);
}

static void c10d_check(struct rdzv_world *w)
{
    for (uint32_t i = 0; i < w->node_count; i++) {
        rdzv_node_note_spare(&w->nodes[i]);
    }
}

static void c10d_tune(struct rdzv_world *w)
{
    w->disk = w->disk || w->server_dies;
    w->restarts_max = UINT32_MAX;
    /* A node that polls looks once a second, and must see a round that is being formed. */
    w->last_call_ms += 1500;
    w->join_timeout_ms += 1500 * w->node_count;
    w->hopeless = mu_sim_faults(w->sim)->wall_skew_max_ns > MU_NS_PER_S;
    w->beat_s = mu_prng_below(mu_sim_prng(w->sim), 2) == 0 ? 1 : 5;
}

/* When an operation of 30 s has ended: it may ask for 5 s more, and its last question has 5 s and a
 * last chance of one. */
#define OP_NS (42 * MU_NS_PER_S)

#define C10D                                                                                       \
    .backend = "c10d", .final = true, .polling = true, .converge_ns = 180 * MU_NS_PER_S,           \
    .join_factor = 1, .answer_ns = 10 * MU_NS_PER_S, .leave_ns = OP_NS, .close_ns = OP_NS,         \
    .lost_ns = 25 * MU_NS_PER_S, .configure = configure_c10d, .may_wait = rdzv_c10d_may_wait,      \
    .check = c10d_check

/* Clocks are off by up to a second in half of the seeds that have them off at all. */
static struct mu_sim_faults c10d_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw_all(prng);

    if (f.wall_skew_max_ns > MU_NS_PER_S && mu_prng_below(prng, 2) == 0) {
        f.wall_skew_max_ns = MU_NS_PER_S;
    }
    return f;
}

RDZV_SCENARIO(rdzv_c10d, "rdzv-c10d", "a rendezvous over a key of the store under churn",
              c10d_faults, false, C10D, .tune = c10d_tune)

/* Kills are frequent enough that there is something to forget. */
static struct mu_sim_faults forgetting_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = c10d_faults(prng);

    f.kill_every_ns = MU_NS_PER_S;
    f.down_max_ns = 100 * MU_NS_PER_MS;
    return f;
}

static void amnesia_tune(struct rdzv_world *w)
{
    c10d_tune(w);
    w->disk = false;
    w->server_dies = true;
}

RDZV_SCENARIO(rdzv_c10d_amnesia, "rdzv-c10d-amnesia",
              "planted bug: the store forgets the key when it is killed", forgetting_faults, true,
              C10D, .tune = amnesia_tune)

/*
 * The rendezvous on etcd, where a node's life is a lease, over a cluster of three whose members go
 * down, are cut off and compact. What that promises beyond the others:
 *
 *  - There are never two worlds. A node that the others have gone on without learns of it before
 *    they do: its lease ends by its own clock first. A process that is suspended or late learns of
 *    it when it wakes, so this is checked only in seeds without suspended processes, with clocks of
 *    nearly the same speed.
 *  - Wall clocks do not matter, however far they are off.
 *  - A loss is known within the lease's time and a little more; a node that leaves is missed at
 *    once.
 *
 * There are no incarnations: a closed run stays closed, and nodes go on to another run.
 */
#include <inttypes.h>

#include "core/assert.h"
#include "fake_etcd.h"
#include "scenarios/rdzv/rdzv_world.h"
#include "scenarios/scenarios.h"
#include "service/rdzv/c10d.h"

#define SPLIT_NS (20 * MU_NS_PER_MS)

static void configure_etcd(struct rdzv_node *n, char *text, size_t cap)
{
    struct rdzv_world *w = n->world;
    size_t len = rdzv_config_delay(text, cap, "last_call_timeout", w->last_call_ms + 1);
    int more;

    len += rdzv_config_delay(text + len, cap - len, "upscale_delay", w->upscale_delay_ms);
    more = snprintf(text + len, cap - len, ",pid=%" PRIu32 ",lease_ttl=%" PRIu32, n->number,
                    w->beat_s);
    MU_ASSERT(more > 0 && (size_t)more < cap - len);
}

/* --- the cluster ------------------------------------------------------------------------------ */

static void on_nemesis(struct mu_sim *sim, void *arg)
{
    struct rdzv_world *w = arg;
    bool over = w->healed;

    fake_etcd_trouble(w->etcd, mu_sim_prng(sim), over);
    if (!over) {
        MU_ASSERT(mu_sim_at(sim,
                            mu_sim_now_ns(sim) + mu_prng_below(mu_sim_prng(sim), 4 * MU_NS_PER_S),
                            on_nemesis, w) == 0);
    }
}

static void begin(struct rdzv_world *w)
{
    static const char *const hosts[] = {"e0", "e1", "e2"};

    w->etcd = fake_etcd_new(w->sim, hosts, FAKE_ETCD_MEMBERS);
    on_nemesis(w->sim, w);
}

static void begin_immortal(struct rdzv_world *w)
{
    begin(w);
    fake_etcd_immortal(w->etcd);
}

static void heal(struct rdzv_world *w)
{
    fake_etcd_mend(w->etcd);
}

static void finish(struct rdzv_world *w)
{
    fake_etcd_free(w->etcd);
}

/* --- checks ---------------------------------------------------------------------------------- */

static bool is_split(const struct rdzv_world *w)
{
    const struct rounds_world *first = NULL;

    for (uint32_t i = 0; i < w->node_count; i++) {
        const struct rounds_world *round = rounds_of(&w->rounds, i);

        if (round != NULL && first != NULL && round->incarnation == first->incarnation &&
            round->round != first->round) {
            return true;
        }
        first = round != NULL ? round : first;
    }
    return false;
}

static void etcd_check(struct rdzv_world *w)
{
    uint64_t now = mu_sim_now_ns(w->sim);

    for (uint32_t i = 0; i < w->node_count; i++) {
        rdzv_node_note_spare(&w->nodes[i]);
    }
    if (!w->strict || !is_split(w)) {
        w->split_ns = 0;
    } else if (w->split_ns == 0) {
        w->split_ns = now;
    } else if (now > w->split_ns + SPLIT_NS) {
        mu_sim_fail(w->sim, "there are two worlds at the same time");
    }
}

static void etcd_tune(struct rdzv_world *w)
{
    const struct mu_sim_faults *f = mu_sim_faults(w->sim);

    w->strict = f->pause_every_ns == 0 && f->timer_late_ppm == 0 && !w->memory;
    w->restarts_max = UINT32_MAX;
    w->beat_s = mu_prng_below(mu_sim_prng(w->sim), 2) == 0 ? 2 : 5;
    /* A request may be lost with a member that is cut off, and is sent again after a while. */
    w->join_timeout_ms += 5000;
}

#define ETCD                                                                                       \
    .backend = "etcd-v3", .endpoint = "etcd://e0,e1,e2/p", .final = true,                          \
    .converge_ns = 120 * MU_NS_PER_S, .join_factor = 1, .answer_ns = 12 * MU_NS_PER_S,             \
    .leave_ns = 36 * MU_NS_PER_S, .close_ns = 36 * MU_NS_PER_S, .lost_ns = 9 * MU_NS_PER_S,        \
    .configure = configure_etcd, .may_wait = rdzv_c10d_may_wait, .check = etcd_check,              \
    .tune = etcd_tune, .heal = heal, .finish = finish

RDZV_SCENARIO(rdzv_etcd, "rdzv-etcd", "a rendezvous on an etcd cluster whose members come and go",
              mu_sim_faults_draw_all, false, ETCD, .begin = begin)
RDZV_SCENARIO(rdzv_etcd_deaf, "rdzv-etcd-deaf",
              "planted bug: a node that does not hear of the end of a round", mu_sim_faults_draw,
              true, ETCD, .begin = begin, .plant = RDZV_PLANT_DEAF)
RDZV_SCENARIO(rdzv_etcd_immortal, "rdzv-etcd-immortal",
              "planted bug: an etcd whose leases never end by themselves", mu_sim_faults_draw, true,
              ETCD, .begin = begin_immortal)

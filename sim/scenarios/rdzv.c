/*
 * Scenarios of the rendezvous: which backend, what it can promise, and which bug on purpose.
 * scenarios/rdzv_world.h tells the story they share.
 */
#include <inttypes.h>
#include <string.h>

#include "core/assert.h"
#include "scenarios/rdzv_world.h"
#include "scenarios/scenarios.h"

/* --- native ----------------------------------------------------------------------------------- */

static size_t add_delay(char *text, size_t cap, const char *key, uint64_t ms)
{
    int len = ms == UINT64_MAX ? snprintf(text, cap, ",%s=never", key)
              : ms == 0
                  ? snprintf(text, cap, ",%s=0", key)
                  : snprintf(text, cap, ",%s=%" PRIu64 ".%03" PRIu64, key, ms / 1000, ms % 1000);

    MU_ASSERT(len > 0 && (size_t)len < cap);
    return (size_t)len;
}

static void configure_native(struct rdzv_node *n, char *text, size_t cap)
{
    struct rdzv_world *w = n->world;
    size_t len = add_delay(text, cap, "last_call_timeout", w->last_call_ms);
    int more;

    len += add_delay(text + len, cap - len, "upscale_delay", w->upscale_delay_ms);
    more = snprintf(text + len, cap - len, ",name=%s", n->name);
    len += (size_t)more;
    if (w->restarts_max != UINT32_MAX) {
        more = snprintf(text + len, cap - len, ",max_restarts=%" PRIu32, w->restarts_max);
        len += (size_t)more;
    }
    if (w->target != 0) {
        more = snprintf(text + len, cap - len, ",target=%" PRIu32, w->target);
        len += (size_t)more;
    }
    MU_ASSERT(len < cap);
}

static bool native_may_wait(const struct rdzv_node *n)
{
    (void)n;
    return false;
}

static void native_check(struct rdzv_world *w)
{
    (void)w;
}

#define NATIVE                                                                                     \
    .backend = "muster", .converge_ns = 60 * MU_NS_PER_S, .answer_ns = 5 * MU_NS_PER_S,            \
    .leave_ns = 2 * MU_NS_PER_S, .close_ns = 31 * MU_NS_PER_S, .lost_ns = 2500 * MU_NS_PER_MS,     \
    .configure = configure_native, .may_wait = native_may_wait, .check = native_check

/* SCENARIO(identifier, name, summary, faults, bug, setup...) */
#define SCENARIO(id, text, words, faults_of, is_planted, ...)                                      \
    static void run_##id(struct mu_sim *sim)                                                       \
    {                                                                                              \
        static const struct rdzv_setup setup = {__VA_ARGS__};                                      \
                                                                                                   \
        rdzv_world_run(sim, &setup);                                                               \
    }                                                                                              \
    const struct mu_sim_scenario mu_sim_scenario_##id = {                                          \
        .name = (text),                                                                            \
        .summary = (words),                                                                        \
        .faults = (faults_of),                                                                     \
        .run = run_##id,                                                                           \
        .planted = (is_planted),                                                                   \
    };

SCENARIO(rdzv, "rdzv", "native rendezvous under churn: one world per round, everybody gets there",
         rdzv_world_faults, false, NATIVE)

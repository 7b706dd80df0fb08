/*
 * Peers average again and again in hivemind's way, while some of them die, pause, are cut off and
 * come back. Nobody lies; what liars can do is for tests/unit and tests/fuzz.
 *
 * What must hold: a step ends before its deadline; each part of what a member holds afterwards is
 * the weighted average of what some members of its group had, itself included, or what it had
 * itself, and the second in no more parts than the result says; members of a group that got all
 * parts hold the same. Once all faults have ended, steps succeed, and then all parts are averages
 * of all members.
 */
#include "scenarios/average/average_world.h"

#include <string.h>

#include <muster/log.h>

#include "core/assert.h"
#include "scenarios/scenarios.h"

#define FAULTY_NS   (60 * MU_NS_PER_S)
#define EXPIRE_NS   (20 * MU_NS_PER_S) /* entries of the dead expire */
#define CONVERGE_NS (400 * MU_NS_PER_S)
#define SLACK_NS    (3 * MU_NS_PER_S)
#define TOLERANCE   1e-5

static double distance(double a, double b)
{
    return a < b ? b - a : a - b;
}

/* --- the model -------------------------------------------------------------------------------- */

/* Whether values [from, to) of a record are the average of the members in `set`. */
static bool is_average_of(struct average_world *w, const struct average_record *r, uint32_t set,
                          uint32_t from, uint32_t to)
{
    const struct average_record *of[AVERAGE_NODES];
    double total = 0;

    for (uint32_t m = 0; m < r->members; m++) {
        of[m] = &w->nodes[r->nodes[m]].records[r->steps[m]];
        total += (set >> m & 1) != 0 ? of[m]->weight : 0;
    }
    for (uint32_t i = from; i < to; i++) {
        double sum = 0;

        for (uint32_t m = 0; m < r->members; m++) {
            sum += (set >> m & 1) != 0 ? of[m]->weight * (double)of[m]->in[i] : 0;
        }
        /* Without weights there is no average, and all keep what they have. */
        sum = total > 0 ? sum / total : (double)r->in[i];
        if (distance((double)r->out[i], sum) > TOLERANCE) {
            return false;
        }
    }
    return true;
}

/* Whether they are that of some members, of which the record's own is one. */
static bool is_average(struct average_world *w, const struct average_record *r, uint32_t own,
                       uint32_t from, uint32_t to)
{
    for (uint32_t set = 1u << r->members; set-- > 1;) {
        if ((set >> own & 1) != 0 && is_average_of(w, r, set, from, to)) {
            return true;
        }
    }
    return false;
}

static bool is_unchanged(const struct average_record *r, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        if (distance((double)r->out[i], (double)r->in[i]) > TOLERANCE) {
            return false;
        }
    }
    return true;
}

uint32_t average_next_part(const struct average_world *w, size_t *tensor, uint64_t *at)
{
    uint64_t left = mu_layout_elements(&w->layout, *tensor) - *at;
    uint64_t most = AVERAGE_PART_BYTES / sizeof(float);
    uint32_t len = (uint32_t)(left < most ? left : most);

    *at += len;
    if (*at == mu_layout_elements(&w->layout, *tensor)) {
        ++*tensor;
        *at = 0;
    }
    return len;
}

static void check_values(struct average_world *w, const struct average_record *r, uint32_t own)
{
    uint32_t unchanged = 0;
    uint32_t from = 0;
    uint64_t at = 0;
    size_t tensor = 0;

    while (tensor < w->layout.count) {
        uint32_t to = from + average_next_part(w, &tensor, &at);

        if (to != from && !is_average(w, r, own, from, to)) {
            unchanged++;
            if (!is_unchanged(r, from, to)) {
                mu_sim_fail(w->sim, "values %u to %u are neither an average nor as they were", from,
                            to);
                return;
            }
        }
        from = to;
    }
    if (unchanged > r->parts_local) {
        mu_sim_fail(w->sim, "%u parts are as they were, and the result admits %u", unchanged,
                    r->parts_local);
    }
}

static void check_same(struct average_world *w, const struct average_record *r)
{
    for (uint32_t m = 0; m < r->members; m++) {
        const struct average_record *o = &w->nodes[r->nodes[m]].records[r->steps[m]];

        if (o == r || !o->ended || o->status != 0 || o->parts_local != 0 ||
            memcmp(o->group_id, r->group_id, sizeof(r->group_id)) != 0) {
            continue;
        }
        for (uint32_t i = 0; i < AVERAGE_FLOATS; i++) {
            /* Without weights there is no average to agree on. */
            if (distance((double)o->out[i], (double)r->out[i]) > TOLERANCE &&
                !(is_unchanged(r, i, i + 1) && is_unchanged(o, i, i + 1))) {
                mu_sim_fail(w->sim, "two members of a group hold different averages");
                return;
            }
        }
    }
}

void average_check(struct average_world *w, const struct average_app *app,
                   const struct average_record *r)
{
    uint32_t own = 0;

    if (r->members == 0) {
        if (!is_unchanged(r, 0, AVERAGE_FLOATS)) {
            mu_sim_fail(w->sim, "there was no group, and values have changed");
        }
        return;
    }
    while (own < r->members && &w->nodes[r->nodes[own]].records[r->steps[own]] != r) {
        own++;
    }
    if (own == r->members) {
        mu_sim_fail(w->sim, "a group has a member that is not in it");
        return;
    }
    if (w->native) {
        average_check_native(w, app, r, own);
        return;
    }
    check_values(w, r, own);
    if (r->status == 0 && r->parts_local == 0) {
        check_same(w, r);
    }
    if (r->calm && r->status == 0 &&
        (r->parts_local != 0 || !is_average_of(w, r, (1u << r->members) - 1, 0, AVERAGE_FLOATS))) {
        mu_sim_fail(w->sim, "after all faults a step is not the average of all members");
    }
}

/* --- planted bugs ----------------------------------------------------------------------------- */

static void plant(struct average_world *w, struct average_app *app)
{
    struct mu_averager_round *r = app->averager == NULL ? NULL : app->averager->round;

    if (r == NULL) {
        return;
    }
    if (w->plant == AVERAGE_PLANT_WRONG && !w->planted) {
        for (uint32_t i = 0; r->sums != NULL && i < r->window; i++) {
            if (r->sum_parts[i] != UINT32_MAX && r->division.parts[r->sum_parts[i]].elements != 0) {
                r->sums[i][0] += 50;
                w->planted = true;
            }
        }
    } else if (w->plant == AVERAGE_PLANT_STUCK) {
        r->reduce.config.sender_ms = 0;
        r->reduce.config.reducer_ms = 0;
        r->reduce.until = MU_MONO_NEVER;
        w->planted = true;
    } else if (w->plant == AVERAGE_PLANT_HALF) {
        for (uint32_t i = 0; i < r->division.member_count; i++) {
            struct mu_reduce_member *m = &r->reduce.members[i];

            if (m->out == MU_REDUCE_OUT_LOST) {
                m->results = r->division.count[i];
                w->planted = true;
            }
        }
    }
}

static void check(struct mu_sim *sim, void *arg)
{
    struct average_world *w = arg;
    uint64_t now = mu_sim_now_ns(sim);

    for (uint32_t i = 0; i < w->count; i++) {
        struct average_app *app = w->nodes[i].app;
        uint64_t late;

        if (app == NULL || !app->active) {
            continue;
        }
        if (w->native) {
            average_plant_native(w, app);
        } else {
            plant(w, app);
        }
        late = app->begun_ns + AVERAGE_TIMEOUT_MS * MU_NS_PER_MS * 11 / 10 + SLACK_NS;
        if (now > late && now > mu_sim_proc_awake_ns(w->nodes[i].proc) + SLACK_NS) {
            mu_sim_fail(sim, "a step has not ended though its time is over");
        }
    }
}

/* --- the world -------------------------------------------------------------------------------- */

static void make_world(struct average_world *w)
{
    const uint64_t shapes[AVERAGE_TENSORS][2] = {{700, 0}, {0, 0}, {20, 20}};
    const size_t ranks[AVERAGE_TENSORS] = {1, 1, 2};
    uint8_t seed[MU_IDENTITY_SEED_LEN];

    for (uint32_t i = 0; i < w->count; i++) {
        memset(seed, (int)i + 1, sizeof(seed));
        w->nodes[i].world = w;
        w->nodes[i].number = i;
        w->nodes[i].records = mu_sim_calloc(AVERAGE_STEPS * sizeof(struct average_record));
        MU_ASSERT(mu_identity_from_seed(&w->nodes[i].identity, seed) == 0);
    }
    mu_layout_init(&w->layout);
    for (size_t i = 0; i < AVERAGE_TENSORS; i++) {
        MU_ASSERT(mu_layout_add(&w->layout, mu_span(&"abc"[i], 1), MU_DTYPE_F32, shapes[i],
                                ranks[i]) == 0);
    }
}

static bool all_good(void *arg)
{
    const struct average_world *w = arg;

    for (uint32_t i = 0; i < w->count; i++) {
        if (w->nodes[i].good == 0) {
            return false;
        }
    }
    return true;
}

static bool all_left(void *arg)
{
    const struct average_world *w = arg;

    for (uint32_t i = 0; i < w->count; i++) {
        if (mu_sim_proc_alive(w->nodes[i].proc)) {
            return false;
        }
    }
    return true;
}

static void run_world(struct mu_sim *sim, enum average_plant plant_what, bool native)
{
    struct average_world *w = mu_sim_calloc(sizeof(*w));
    struct mu_prng *prng = mu_sim_prng(sim);
    struct mu_sim_faults f = *mu_sim_faults(sim);

    mu_sim_trace_log(sim);
    mu_sim_wall_set(sim);
    w->sim = sim;
    w->plant = plant_what;
    w->native = native;
    if (native) {
        w->quant = plant_what == AVERAGE_PLANT_RESIDUAL ? MU_QUANT_INT8
                                                        : (enum mu_quant)mu_prng_below(prng, 3);
    }
    w->count = 2 + (uint32_t)mu_prng_below(prng, AVERAGE_NODES - 1);
    w->target = mu_prng_chance(prng, 500000) ? w->count : 0;
    make_world(w);
    mu_sim_add_checker(sim, check, w);
    for (uint32_t i = 0; i < w->count; i++) {
        average_node_start(w, i);
        mu_sim_run_for(sim, mu_prng_below(prng, 500) * MU_NS_PER_MS);
    }
    mu_sim_run_for(sim, FAULTY_NS);
    mu_sim_heal(sim);
    mu_sim_run_for(sim, f.pause_max_ns + EXPIRE_NS);
    w->quiet = true;
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_good, w)) {
        mu_sim_fail(sim, "somebody could not average though all faults had ended");
    }
    w->leaving = true;
    if (!mu_sim_run_until(sim, CONVERGE_NS, all_left, w)) {
        mu_sim_fail(sim, "somebody did not stop");
    }
    for (uint32_t i = 0; i < w->count; i++) {
        average_node_killed(&w->nodes[i]); /* a node that still runs because the run has failed */
        mu_identity_fini(&w->nodes[i].identity);
        mu_free(w->nodes[i].records);
    }
    mu_layout_fini(&w->layout);
    mu_free(w);
    muster_log_set(NULL, NULL, MUSTER_LOG_WARN);
}

/* Declared times are of the wall clock, on which all must agree. */
static struct mu_sim_faults draw_faults(struct mu_prng *prng)
{
    struct mu_sim_faults f = mu_sim_faults_draw(prng);

    f.wall_skew_max_ns = 0;
    f.wall_jump_every_ns = 0;
    return f;
}

SIM_SCENARIO(
    average, "average",
    "members of groups die, pause and are cut off: averages of those that the model allows",
    draw_faults, false, run_world(sim, AVERAGE_PLANT_NONE, false))
SIM_SCENARIO(average_wrong, "average-wrong", "the same, where a sum has a wrong value", draw_faults,
             true, run_world(sim, AVERAGE_PLANT_WRONG, false))
SIM_SCENARIO(average_stuck, "average-stuck",
             "the same, where the deadlines of a round are forgotten", draw_faults, true,
             run_world(sim, AVERAGE_PLANT_STUCK, false))
SIM_SCENARIO(average_half, "average-half",
             "the same, where parts of a lost member count as averaged", draw_faults, true,
             run_world(sim, AVERAGE_PLANT_HALF, false))
SIM_SCENARIO(average_service, "average-service",
             "the same on the native wire: one digest, the average of exactly those that are named",
             draw_faults, false, run_world(sim, AVERAGE_PLANT_NONE, true))
SIM_SCENARIO(average_service_wrong, "average-service-wrong",
             "the same, where an average has a wrong value", draw_faults, true,
             run_world(sim, AVERAGE_PLANT_AVERAGE, true))
SIM_SCENARIO(average_service_stuck, "average-service-stuck",
             "the same, where the deadlines of a round are forgotten", draw_faults, true,
             run_world(sim, AVERAGE_PLANT_DEADLINES, true))
SIM_SCENARIO(average_service_named, "average-service-named",
             "the same, where a result names somebody who is not in it", draw_faults, true,
             run_world(sim, AVERAGE_PLANT_COUNT, true))
SIM_SCENARIO(average_service_residual, "average-service-residual",
             "the same, where what is rounded off is forgotten", draw_faults, true,
             run_world(sim, AVERAGE_PLANT_RESIDUAL, true))

/*
 * What must hold in the scenario `average-service`, where the nodes of the scenario `average` speak
 * the native wire: who ends with success holds, to the bit, the average of exactly those members
 * that its result names, with their weights, and all of a group hold the same; who ends with an
 * error has what it had. What an encoding rounds off is kept by those that were counted.
 */
#include <string.h>

#include "codec/average/quant.h"
#include "core/assert.h"
#include "crypto/hash.h"
#include "scenarios/average/average_world.h"

#define PART_FLOATS (AVERAGE_PART_BYTES / 4)

/* What a member makes of values that were encoded. */
static void carry(enum mu_quant quant, const float *in, uint32_t n, float *out)
{
    uint8_t bytes[2 * AVERAGE_PART_BYTES];

    if (quant == 0) {
        memcpy(out, in, n * sizeof(*in));
        return;
    }
    MU_ASSERT(mu_quant_encode(quant, MU_AVERAGER_BLOCK, in, NULL, n, bytes) == 0);
    MU_ASSERT(mu_quant_decode(quant, MU_AVERAGER_BLOCK,
                              mu_span(bytes, mu_quant_len(MU_AVERAGER_BLOCK, n)), out, n) == 0);
}

/* The model: one part, straight down from what the members gave. */
static void average_of(const struct average_world *w, const struct average_record *r, uint32_t from,
                       uint32_t n, float *ret)
{
    float sum[PART_FLOATS] = {0};
    double weights = 0;

    for (uint32_t m = 0; m < r->members; m++) {
        const struct average_record *of = &w->nodes[r->nodes[m]].records[r->steps[m]];
        float values[PART_FLOATS];

        if ((r->counted >> m & 1) == 0) {
            continue;
        }
        carry(w->quant, of->given + from, n, values);
        for (uint32_t i = 0; i < n; i++) {
            volatile float product = (float)of->weight * values[i];

            sum[i] += product;
        }
        weights += of->weight;
    }
    for (uint32_t i = 0; i < n; i++) {
        sum[i] /= (float)weights;
    }
    carry(w->quant, sum, n, ret);
}

static void check_values(struct average_world *w, const struct average_record *r)
{
    uint8_t digest[MU_NATIVE_DIGEST_LEN];
    float want[AVERAGE_FLOATS];
    uint32_t from = 0;
    uint64_t at = 0;
    size_t tensor = 0;

    while (tensor < w->layout.count) {
        uint32_t n = average_next_part(w, &tensor, &at);

        if (n != 0) {
            average_of(w, r, from, n, want + from);
        }
        from += n;
    }
    if (memcmp(want, r->out, sizeof(want)) != 0) {
        mu_sim_fail(w->sim, "the average is not that of the members that it names");
        return;
    }
    mu_sha256(digest, mu_span((const uint8_t *)want, sizeof(want)));
    if (memcmp(digest, r->digest, sizeof(digest)) != 0) {
        mu_sim_fail(w->sim, "the digest is not that of the average");
    }
}

static void check_same(struct average_world *w, const struct average_record *r)
{
    for (uint32_t m = 0; m < r->members; m++) {
        const struct average_record *o = &w->nodes[r->nodes[m]].records[r->steps[m]];

        if ((r->counted >> m & 1) != 0 && r->weights[m] != o->weight) {
            mu_sim_fail(w->sim, "a weight is not what the member said");
        }
        if (o != r && o->ended && o->status == 0 &&
            memcmp(o->group_id, r->group_id, sizeof(r->group_id)) == 0 &&
            (o->counted != r->counted || memcmp(o->digest, r->digest, sizeof(r->digest)) != 0)) {
            mu_sim_fail(w->sim, "two members of a group end with different results");
        }
    }
}

/* What was rounded off of our values is what is added to the next ones, if they were counted. */
static void check_residuals(struct average_world *w, const struct average_app *app,
                            const struct average_record *r, uint32_t own)
{
    const float *residuals = app->averager->residuals;
    bool counted = r->status == 0 && (r->counted >> own & 1) != 0;
    uint32_t from = 0;
    uint64_t at = 0;
    size_t tensor = 0;

    while (residuals != NULL && tensor < w->layout.count) {
        uint32_t n = average_next_part(w, &tensor, &at);
        float carried[PART_FLOATS];

        carry(w->quant, r->given + from, n, carried);
        for (uint32_t i = from; i < from + n; i++) {
            float want = counted ? r->given[i] - carried[i - from] : app->residuals[i];

            if (memcmp(&want, &residuals[i], sizeof(want)) != 0) {
                mu_sim_fail(w->sim, "value %u: what was rounded off is not what is kept", i);
                return;
            }
        }
        from += n;
    }
}

void average_check_native(struct average_world *w, const struct average_app *app,
                          const struct average_record *r, uint32_t own)
{
    check_residuals(w, app, r, own);
    if (r->status != 0) {
        if (memcmp(r->in, r->out, sizeof(r->in)) != 0) {
            mu_sim_fail(w->sim, "the step failed, and values have changed");
        }
        return;
    }
    check_values(w, r);
    check_same(w, r);
    if (r->calm && r->counted != (1u << r->members) - 1) {
        mu_sim_fail(w->sim, "after all faults a step is not the average of all members");
    }
}

void average_note_given(struct average_app *app, struct average_record *r)
{
    const float *residuals = app->averager->residuals;

    for (uint32_t i = 0; i < AVERAGE_FLOATS; i++) {
        app->residuals[i] = residuals != NULL ? residuals[i] : 0;
        r->given[i] = residuals != NULL ? r->in[i] + residuals[i] : r->in[i];
    }
}

/* --- planted bugs ----------------------------------------------------------------------------- */

static void spoil_average(struct average_world *w, struct mu_averager_native *r)
{
    for (uint32_t p = 0; p < r->division.part_count && !w->planted; p++) {
        if (r->averages[p] != NULL && r->division.parts[p].owner == r->hello.position) {
            r->averages[p]->bytes[0] ^= 4;
            w->planted = true;
        }
    }
}

void average_plant_native(struct average_world *w, struct average_app *app)
{
    struct mu_averager_native *r = app->averager == NULL ? NULL : app->averager->native;

    if (r == NULL || !r->running) {
        return;
    }
    if (w->plant == AVERAGE_PLANT_AVERAGE && !w->planted) {
        spoil_average(w, r);
    } else if (w->plant == AVERAGE_PLANT_DEADLINES) {
        r->machine.until = MU_MONO_NEVER;
        r->machine.patience = MU_MONO_NEVER;
        r->machine.lead_until = MU_MONO_NEVER;
        r->machine.have_at = MU_MONO_NEVER;
        r->beat_at = MU_MONO_NEVER;
    } else if (w->plant == AVERAGE_PLANT_COUNT && r->place_due && !w->planted) {
        r->machine.set.members ^= 1;
        w->planted = true;
    } else if (w->plant == AVERAGE_PLANT_RESIDUAL) {
        memset(app->averager->residuals, 0, AVERAGE_FLOATS * sizeof(float));
    }
}

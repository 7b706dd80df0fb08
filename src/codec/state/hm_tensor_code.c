/* Codebooks of the 8-bit encodings: how a donor chooses them. A reader does not need this. */
#include <stdlib.h>

#include "codec/state/hm_tensor_internal.h"
#include "core/alloc.h"

#define UNIFORM_SIGMAS 6.0
#define UNIFORM_MIDDLE 128
#define QUANTILES      (MU_HM_CODES + 1)
#define QUANTILE_CHUNK 100000 /* how many values are sorted at a time, or up to twice as many */

double mu_hm_root(double x)
{
    uint64_t bits;
    double y;

    if (!(x > 0) || x > 1e300) {
        return x > 0 || x != x ? x : 0;
    }
    /* Half the exponent is a good guess, and each step doubles the number of correct digits. */
    memcpy(&bits, &x, sizeof(bits));
    bits = (bits >> 1) + UINT64_C(0x1ff8000000000000);
    memcpy(&y, &bits, sizeof(y));
    for (int i = 0; i < 6; i++) {
        y = 0.5 * (y + x / y);
    }
    return y;
}

uint8_t mu_hm_border_index(const float borders[MU_HM_CODES - 1], float x)
{
    unsigned below = 0;

    for (unsigned step = MU_HM_CODES / 2; step != 0; step /= 2) {
        if (borders[below + step - 1] < x) {
            below += step;
        }
    }
    return (uint8_t)below;
}

uint8_t mu_hm_uniform_index(const struct mu_hm_encoder *e, float x)
{
    double at = e->scale > 0 ? ((double)x - e->shift) / e->scale : 0;

    if (!(at > -UNIFORM_MIDDLE)) {
        return at != at ? UNIFORM_MIDDLE : 0;
    }
    if (at >= MU_HM_CODES - 1 - UNIFORM_MIDDLE) {
        return MU_HM_CODES - 1;
    }
    /* A double of this size has no room for a fraction, so adding rounds it off, ties to even. */
    at = (at + 0x1.8p52) - 0x1.8p52;
    return (uint8_t)((int)at + UNIFORM_MIDDLE);
}

/* The code of an index is the mean of the values that have it. */
static void average_buckets(struct mu_hm_encoder *e,
                            uint8_t (*index_of)(const struct mu_hm_encoder *e, float x))
{
    double sums[MU_HM_CODES] = {0};
    uint64_t counts[MU_HM_CODES] = {0};

    for (uint64_t i = 0; i < e->elements; i++) {
        float x = mu_hm_float_at(e->t.dtype, e->values, i);
        uint8_t index = index_of(e, x);

        sums[index] += (double)x;
        counts[index]++;
    }
    for (int k = 0; k < MU_HM_CODES; k++) {
        e->codes[k] = counts[k] == 0 ? 0 : (float)(sums[k] / (double)counts[k]);
    }
}

void mu_hm_make_uniform(struct mu_hm_encoder *e)
{
    double sum = 0;
    double squares = 0;

    for (uint64_t i = 0; i < e->elements; i++) {
        sum += (double)mu_hm_float_at(e->t.dtype, e->values, i);
    }
    e->shift = e->elements == 0 ? 0 : sum / (double)e->elements;
    for (uint64_t i = 0; i < e->elements; i++) {
        double off = (double)mu_hm_float_at(e->t.dtype, e->values, i) - e->shift;

        squares += off * off;
    }
    e->scale = e->elements < 2
                   ? 0
                   : UNIFORM_SIGMAS * mu_hm_root(squares / (double)(e->elements - 1)) / MU_HM_CODES;
    average_buckets(e, mu_hm_uniform_index);
}

/* --- quantiles -------------------------------------------------------------------------------- */

/* NaN comes last. */
static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a;
    float y = *(const float *)b;

    if (x != x || y != y) {
        return (x != x) - (y != y);
    }
    return (x > y) - (x < y);
}

/* Takes the 257 quantiles of sorted values, interpolated between two of them. */
static void take_quantiles(const float *sorted, size_t count, float *out)
{
    for (size_t q = 0; q < QUANTILES; q++) {
        double at = (double)q / (QUANTILES - 1) * (double)(count - 1);
        size_t left = (size_t)at;
        double part = at - (double)left;

        out[q] = part > 0 ? (float)((double)sorted[left] +
                                    ((double)sorted[left + 1] - (double)sorted[left]) * part)
                          : sorted[left];
    }
}

static uint8_t quantile_index(const struct mu_hm_encoder *e, float x)
{
    return mu_hm_border_index(e->borders, x);
}

/* Takes quantiles of the quantiles of pieces, so that a large tensor is never sorted as a whole. */
int mu_hm_make_quantile(struct mu_hm_encoder *e)
{
    size_t count = (size_t)e->elements;
    size_t pieces = count < QUANTILE_CHUNK ? 1 : count / QUANTILE_CHUNK;
    float *piece = mu_calloc(count / pieces + 1, sizeof(*piece));
    float *found = mu_calloc(pieces * QUANTILES, sizeof(*found));
    float quantiles[QUANTILES] = {0};

    if (piece == NULL || found == NULL) {
        mu_free(piece);
        mu_free(found);
        return MUSTER_ENOMEM;
    }
    for (size_t k = 0, at = 0; k < pieces && count != 0; k++) {
        size_t n = count / pieces + (k < count % pieces);

        for (size_t i = 0; i < n; i++) {
            piece[i] = mu_hm_float_at(e->t.dtype, e->values, at + i);
        }
        qsort(piece, n, sizeof(*piece), compare_floats);
        take_quantiles(piece, n, found + k * QUANTILES);
        at += n;
    }
    qsort(found, pieces * QUANTILES, sizeof(*found), compare_floats);
    take_quantiles(found, pieces * QUANTILES, quantiles);
    memcpy(e->borders, quantiles + 1, (MU_HM_CODES - 1) * sizeof(*quantiles));
    mu_free(piece);
    mu_free(found);
    average_buckets(e, quantile_index);
    return 0;
}

/* --- blocks ----------------------------------------------------------------------------------- */

void mu_hm_make_dynamic(float codes[MU_HM_CODES], float borders[MU_HM_CODES - 1])
{
    static const double powers[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1};
    size_t at = 0;

    for (int i = 0; i < 7; i++) {
        int parts = 1 << i;

        /* The middles of equal parts of 0.1 to 1. */
        for (int k = 0; k < parts; k++) {
            double middle = 0.1 + 0.9 * (k + 0.5) / parts;

            codes[at++] = (float)(powers[i] * middle);
            codes[at++] = (float)(-powers[i] * middle);
        }
    }
    codes[at++] = 0;
    codes[at++] = 1;
    qsort(codes, MU_HM_CODES, sizeof(*codes), compare_floats);
    for (size_t i = 0; i + 1 < MU_HM_CODES; i++) {
        borders[i] = (codes[i] + codes[i + 1]) / 2;
    }
}

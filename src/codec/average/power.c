#include "codec/average/power.h"

#include <string.h>

#include "codec/bin/tensor.h"
#include "core/assert.h"

#define SHORTEST 1e-8 /* what the length of a column is divided by at least, as in hivemind */

bool mu_avg_power_matrix(const uint64_t *shape, size_t axes, uint32_t rank, double ratio,
                         struct mu_avg_matrix *ret)
{
    uint64_t dims[MU_TENSOR_RANK_MAX];
    double values = 1;
    double kept;

    MU_ASSERT(axes <= MU_TENSOR_RANK_MAX);
    for (size_t i = 0; i < axes; i++) {
        dims[i] = shape[i];
        values *= (double)shape[i];
    }
    if (axes < 2 || values <= 0) {
        return false;
    }
    while (axes > 2) {
        size_t at = 0;

        for (size_t i = 1; i + 1 < axes; i++) {
            at = dims[i] * dims[i + 1] < dims[at] * dims[at + 1] ? i : at;
        }
        dims[at] *= dims[at + 1];
        memmove(&dims[at + 1], &dims[at + 2], (axes - at - 2) * sizeof(dims[0]));
        axes--;
    }
    kept = (double)rank * ((double)dims[0] + (double)dims[1]) / values;
    *ret = (struct mu_avg_matrix){.rows = (size_t)dims[0], .columns = (size_t)dims[1]};
    return !(1 - kept < ratio);
}

void mu_avg_power_p(float *p, const float *m, const float *q, const struct mu_avg_matrix *of,
                    uint32_t rank)
{
    double row[MU_AVG_RANK_MAX];

    for (size_t i = 0; i < of->rows; i++) {
        memset(row, 0, sizeof(row));
        for (size_t j = 0; j < of->columns; j++) {
            double x = (double)m[i * of->columns + j];

            for (uint32_t k = 0; k < rank; k++) {
                row[k] += x * (double)q[j * rank + k];
            }
        }
        for (uint32_t k = 0; k < rank; k++) {
            p[i * rank + k] = (float)row[k];
        }
    }
}

/* Newton's, from above: it falls until float64 cannot tell two steps apart. */
static double root(double x)
{
    double at = x > 1 ? x : 1;
    double next = (at + x / at) / 2;

    while (next < at) {
        at = next;
        next = (at + x / at) / 2;
    }
    return at;
}

/* The product of two columns. */
static double product(const float *p, size_t rows, uint32_t rank, uint32_t a, uint32_t b)
{
    double sum = 0;

    for (size_t i = 0; i < rows; i++) {
        sum += (double)p[i * rank + a] * (double)p[i * rank + b];
    }
    return sum;
}

void mu_avg_power_orthogonalize(float *p, size_t rows, uint32_t rank)
{
    for (uint32_t k = 0; k < rank; k++) {
        double length = root(product(p, rows, rank, k, k));

        length = length > SHORTEST ? length : SHORTEST;
        for (size_t i = 0; i < rows; i++) {
            p[i * rank + k] = (float)((double)p[i * rank + k] / length);
        }
        for (uint32_t rest = k + 1; rest < rank; rest++) {
            double along = product(p, rows, rank, k, rest);

            for (size_t i = 0; i < rows; i++) {
                p[i * rank + rest] =
                    (float)((double)p[i * rank + rest] - along * (double)p[i * rank + k]);
            }
        }
    }
}

void mu_avg_power_q(float *q, const float *m, const float *p, const struct mu_avg_matrix *of,
                    uint32_t rank)
{
    memset(q, 0, of->columns * rank * sizeof(*q));
    for (size_t i = 0; i < of->rows; i++) {
        for (size_t j = 0; j < of->columns; j++) {
            float x = m[i * of->columns + j];

            for (uint32_t k = 0; k < rank; k++) {
                q[j * rank + k] += x * p[i * rank + k];
            }
        }
    }
}

void mu_avg_power_expand(float *out, float *m, const float *p, const float *q,
                         const struct mu_avg_matrix *of, uint32_t rank)
{
    for (size_t i = 0; i < of->rows; i++) {
        for (size_t j = 0; j < of->columns; j++) {
            size_t at = i * of->columns + j;
            float sum = 0;

            for (uint32_t k = 0; k < rank; k++) {
                sum += p[i * rank + k] * q[j * rank + k];
            }
            out[at] = sum;
            m[at] -= sum;
        }
    }
}

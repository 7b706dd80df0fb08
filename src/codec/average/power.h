/*
 * The arithmetic of PowerSGD (arXiv 1905.13727), as hivemind's averager does it. A gradient is
 * taken for a matrix, and members average two thin ones of `rank` columns instead of it:
 *
 *     M = what was not carried the last time + the gradient
 *     P = M Q         averaged, then orthogonalised: the same at all members
 *     Q = Mᵀ P        averaged, and kept for the next time
 *     the gradient becomes P Qᵀ, and M keeps the rest
 *
 * Matrices lie row by row. Pure loops; nothing here takes memory.
 */
#ifndef MU_AVG_POWER_H
#define MU_AVG_POWER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MU_AVG_RANK_MAX 64

struct mu_avg_matrix {
    size_t rows, columns;
};

/**
 * As which matrix a tensor is carried: of neighbouring axes, those with the smallest product are
 * merged until two are left, the first of equals. False: it is averaged as it is, because it has
 * fewer than two axes or no values, or because less than the share `ratio` of it would be saved.
 */
bool mu_avg_power_matrix(const uint64_t *shape, size_t axes, uint32_t rank, double ratio,
                         struct mu_avg_matrix *ret);
/** p = m q: rows × rank. */
void mu_avg_power_p(float *p, const float *m, const float *q, const struct mu_avg_matrix *of,
                    uint32_t rank);
/** Makes the columns of p orthogonal and of length one, in order; one that is too short to have a
 * direction becomes zero, nearly. */
void mu_avg_power_orthogonalize(float *p, size_t rows, uint32_t rank);
/** q = mᵀ p: columns × rank. */
void mu_avg_power_q(float *q, const float *m, const float *p, const struct mu_avg_matrix *of,
                    uint32_t rank);
/** out = p qᵀ, and m -= out. */
void mu_avg_power_expand(float *out, float *m, const float *p, const float *q,
                         const struct mu_avg_matrix *of, uint32_t rank);

#endif

#include "codec/average/divide.h"

#include "core/alloc.h"
#include "core/assert.h"

int mu_avg_fractions(uint64_t values, const struct mu_avg_gather *members, size_t count,
                     uint64_t *ret_fractions)
{
    double scores[MU_AVG_MEMBERS_MAX];
    double sum = 0;
    uint64_t given = 0;

    if (count == 0 || count > MU_AVG_MEMBERS_MAX || values > MU_AVG_VALUES_MAX) {
        return MUSTER_EINVAL;
    }
    for (size_t i = 0; i < count; i++) {
        bool client = members[i].mode == MU_AVG_CLIENT;

        if (!client && members[i].bandwidth_known && members[i].bandwidth > 0) {
            return MUSTER_ENOTSUP;
        }
        scores[i] = client || members[i].bandwidth_known ? 0 : 1;
        sum += scores[i];
    }
    if (!(sum > 0)) {
        return MUSTER_EINVAL;
    }
    for (size_t i = 0; i < count; i++) {
        ret_fractions[i] = (uint64_t)((double)values * scores[i] / sum);
        given += ret_fractions[i];
    }
    MU_ASSERT(given <= values);
    /* What is left goes where the quotient is greatest; there is less of it than members. */
    for (; given < values; given++) {
        size_t best = 0;

        for (size_t i = 1; i < count; i++) {
            if (scores[i] / (double)(ret_fractions[i] + 1) >
                scores[best] / (double)(ret_fractions[best] + 1)) {
                best = i;
            }
        }
        ret_fractions[best]++;
    }
    return 0;
}

/* --- parts ------------------------------------------------------------------------------------ */

/* Values in a part of the tensor. 0: there is no such part. */
static uint64_t values_in_part(const struct mu_avg_tensor *t, uint64_t part_bytes)
{
    double bits = (double)mu_dtype_bits(t->told);
    double size = (double)mu_dtype_bits(t->dtype) / 8;
    double ratio = 1;

    switch (t->compression) {
    case MU_HM_NONE:
        break;
    case MU_HM_FLOAT16:
    case MU_HM_MEANSTD_16BIT:
        ratio = 16 / bits;
        break;
    case MU_HM_QUANTILE_8BIT:
    case MU_HM_UNIFORM_8BIT:
    case MU_HM_BLOCKWISE_8BIT:
        ratio = 8 / bits;
        break;
    }
    return (uint64_t)((double)part_bytes / (size * ratio));
}

static bool is_float(enum mu_dtype dtype)
{
    return dtype == MU_DTYPE_F16 || dtype == MU_DTYPE_BF16 || dtype == MU_DTYPE_F32 ||
           dtype == MU_DTYPE_F64;
}

/* Checks the tensors and counts values and parts. */
static int count_parts(const struct mu_avg_tensor *tensors, size_t count, uint64_t part_bytes,
                       uint64_t *ret_values, uint64_t *ret_parts)
{
    uint64_t values = 0;
    uint64_t parts = 0;

    if (count > MU_AVG_TENSORS_MAX) {
        return MUSTER_ELIMIT;
    }
    if (part_bytes > MU_AVG_PART_BYTES_MAX) {
        return MUSTER_EINVAL;
    }
    for (size_t i = 0; i < count; i++) {
        const struct mu_avg_tensor *t = &tensors[i];
        uint64_t each;

        if (!is_float(t->dtype) || !is_float(t->told)) {
            return MUSTER_EINVAL;
        }
        each = values_in_part(t, part_bytes);
        if (each == 0 || each > MU_AVG_PART_BYTES_MAX / (mu_dtype_bits(t->dtype) / 8)) {
            return MUSTER_EINVAL;
        }
        if (t->elements > MU_AVG_VALUES_MAX - values) {
            return MUSTER_ELIMIT;
        }
        values += t->elements;
        parts += t->elements == 0 ? 1 : (t->elements - 1) / each + 1;
        if (parts > MU_AVG_PARTS_MAX) {
            return MUSTER_ELIMIT;
        }
    }
    *ret_values = values;
    *ret_parts = parts;
    return 0;
}

/* The walk over the parts: how far it is, and whose share it is in. */
struct walk {
    const uint64_t *pivots;
    uint64_t at;
    size_t owner;
};

/* Returns who has the most of the next `len` values, the first of equals. */
static uint32_t own(struct walk *w, uint64_t len)
{
    uint64_t end = w->at + len;
    size_t owner = w->owner;
    uint64_t most;

    if (end > w->pivots[w->owner]) {
        most = w->pivots[w->owner] - w->at;
        while (end > w->pivots[w->owner]) {
            uint64_t to;

            w->owner++;
            to = end < w->pivots[w->owner] ? end : w->pivots[w->owner];
            if (to - w->pivots[w->owner - 1] > most) {
                most = to - w->pivots[w->owner - 1];
                owner = w->owner;
            }
        }
    }
    w->at = end;
    return (uint32_t)owner;
}

/* Computes where the shares end: each step rounded to float64, as Python does. */
static int find_pivots(const uint64_t *fractions, size_t count, uint64_t values, uint64_t *pivots)
{
    uint64_t sum = 0;

    uint64_t all = 0;

    for (size_t i = 0; i < count; i++) {
        if (fractions[i] > MU_AVG_VALUES_MAX - all) {
            return MUSTER_EINVAL;
        }
        all += fractions[i];
    }
    if (all == 0 && values != 0) {
        return MUSTER_EINVAL;
    }
    for (size_t i = 0; i < count; i++) {
        double share;

        sum += fractions[i];
        share = all == 0 ? 0 : (double)sum / (double)all;
        pivots[i] = (uint64_t)(share * (double)values);
    }
    pivots[count - 1] = values;
    return 0;
}

static void cut_tensor(struct mu_avg_division *d, struct walk *w, uint32_t tensor,
                       const struct mu_avg_tensor *t, uint64_t part_bytes)
{
    uint64_t each = values_in_part(t, part_bytes);
    uint64_t offset = 0;

    do {
        uint64_t left = t->elements - offset;
        uint64_t len = left < each ? left : each;
        uint32_t owner = own(w, len);

        if (d->count[owner]++ == 0) {
            d->first[owner] = (uint32_t)d->part_count;
        }
        d->parts[d->part_count++] = (struct mu_avg_part){tensor, owner, offset, len};
        offset += len;
    } while (offset < t->elements);
}

int mu_avg_divide_vector(struct mu_avg_division *d, const struct mu_avg_tensor *tensors,
                         size_t tensor_count, const uint64_t *fractions, size_t member_count,
                         uint64_t part_bytes)
{
    uint64_t pivots[MU_AVG_MEMBERS_MAX];
    struct walk w = {.pivots = pivots};
    uint64_t values;
    uint64_t parts;
    int err;

    memset(d, 0, sizeof(*d));
    if (member_count == 0 || member_count > MU_AVG_MEMBERS_MAX) {
        return MUSTER_EINVAL;
    }
    err = count_parts(tensors, tensor_count, part_bytes, &values, &parts);
    err = err != 0 ? err : find_pivots(fractions, member_count, values, pivots);
    if (err != 0) {
        return err;
    }
    d->parts = mu_calloc((size_t)parts + 1, sizeof(*d->parts));
    if (d->parts == NULL) {
        return MUSTER_ENOMEM;
    }
    d->member_count = member_count;
    memcpy(d->fractions, fractions, member_count * sizeof(*fractions));
    for (size_t i = 0; i < tensor_count; i++) {
        cut_tensor(d, &w, (uint32_t)i, &tensors[i], part_bytes);
    }
    MU_ASSERT(d->part_count == parts && w.at == values);
    return 0;
}

void mu_avg_division_fini(struct mu_avg_division *d)
{
    mu_free(d->parts);
    memset(d, 0, sizeof(*d));
}

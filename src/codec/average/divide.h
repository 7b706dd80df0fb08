/*
 * Who reduces what: how all members of a group cut the same vector into the same parts, and which
 * member is the owner (reducer) of each. Nothing on the wire says whether members agree, so this
 * is hivemind's arithmetic to the bit, with its float64 traps: a pivot is not a cumulative sum.
 *
 *     fractions     values for each member, from what it told of itself
 *     pivots        where one member's share ends and the next begins, rounded in float64
 *     parts         tensors in order, each cut into parts of about part_bytes; a part that lies
 *                   across a pivot belongs to the member that has most of it
 *
 * Owners never decrease from part to part, so the parts of a member are a run of the list; a member
 * may own none although its fraction is positive. A part of an empty tensor has no values, and may
 * be given to a member with fraction 0; nobody can send it there, and nothing is lost by that.
 */
#ifndef MU_AVG_DIVIDE_H
#define MU_AVG_DIVIDE_H

#include "codec/average/msg.h"

#define MU_AVG_PART_BYTES  524288              /* hivemind's default */
#define MU_AVG_VALUES_MAX  ((uint64_t)1 << 48) /* in float64, all sums are exact */
#define MU_AVG_PARTS_MAX   (1u << 22)
#define MU_AVG_TENSORS_MAX (1u << 20)

/* One tensor of the vector, as far as the cut depends on it. */
struct mu_avg_tensor {
    uint64_t elements;
    enum mu_dtype dtype; /* what is averaged */
    enum mu_dtype told;  /* the type by which the codec's ratio is computed. For gradients the
                            tensor's own; for a training state that of the model's parameter,
                            which may be shorter than what is averaged */
    enum mu_hm_compression compression;
};

struct mu_avg_part {
    uint32_t tensor;
    uint32_t owner;
    uint64_t offset;   /* of its first value in the tensor */
    uint64_t elements; /* may be 0 */
};

/* A vector that was divided among members. */
struct mu_avg_division {
    struct mu_avg_part *parts;
    size_t part_count;
    uint32_t first[MU_AVG_MEMBERS_MAX]; /* of each member: its first part, */
    uint32_t count[MU_AVG_MEMBERS_MAX]; /* and how many it owns */
    uint64_t fractions[MU_AVG_MEMBERS_MAX];
    size_t member_count;
};

/**
 * How many values each member is to reduce. A client reduces none. MUSTER_ENOTSUP: a member told a
 * bandwidth above zero, for which hivemind solves a linear program whose optimum is not unique;
 * MUSTER_EINVAL: no member can reduce, or there are more than MU_AVG_VALUES_MAX values, or no
 * members, or more than MU_AVG_MEMBERS_MAX.
 */
int mu_avg_fractions(uint64_t values, const struct mu_avg_gather *members, size_t count,
                     uint64_t *ret_fractions);
/**
 * Cuts the vector by `fractions`, of which only the proportions count: those of the gradients are
 * those of both phases of PowerSGD. MUSTER_EINVAL: all are zero, or `part_bytes` is less than a
 * value or makes parts over MU_AVG_PART_BYTES_MAX, or a tensor's type cannot be averaged;
 * MUSTER_ELIMIT: more than MU_AVG_PARTS_MAX parts, MU_AVG_TENSORS_MAX tensors or MU_AVG_VALUES_MAX
 * values; MUSTER_ENOMEM.
 */
int mu_avg_divide_vector(struct mu_avg_division *d, const struct mu_avg_tensor *tensors,
                         size_t tensor_count, const uint64_t *fractions, size_t member_count,
                         uint64_t part_bytes);
void mu_avg_division_fini(struct mu_avg_division *d);

#endif

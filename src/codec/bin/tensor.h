/*
 * Tensors as they travel: a name, an element type, a shape, and where the bytes are. A layout is an
 * ordered list of them; their bytes follow each other in that order, without gaps, little-endian,
 * the last dimension running fastest.
 */
#ifndef MU_TENSOR_H
#define MU_TENSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/span.h"

#define MU_TENSOR_RANK_MAX 64

/* Manifests contain these numbers (codec/state/manifest.h): new types go to the end. */
enum mu_dtype {
    MU_DTYPE_BOOL = 1,
    MU_DTYPE_U8,
    MU_DTYPE_I8,
    MU_DTYPE_F8_E5M2,
    MU_DTYPE_F8_E4M3,
    MU_DTYPE_F8_E8M0,
    MU_DTYPE_I16,
    MU_DTYPE_U16,
    MU_DTYPE_F16,
    MU_DTYPE_BF16,
    MU_DTYPE_I32,
    MU_DTYPE_U32,
    MU_DTYPE_F32,
    MU_DTYPE_I64,
    MU_DTYPE_U64,
    MU_DTYPE_F64,
    MU_DTYPE_C64,
    MU_DTYPE_F4,
    MU_DTYPE_F6_E2M3,
    MU_DTYPE_F6_E3M2,
};
#define MU_DTYPE_LAST MU_DTYPE_F6_E3M2

/** As safetensors calls it, "F32". */
const char *mu_dtype_name(enum mu_dtype dtype);
/** As PyTorch calls it, "float32"; NULL if PyTorch has no such type. */
const char *mu_dtype_torch_name(enum mu_dtype dtype);
/** Bits of an element. */
unsigned mu_dtype_bits(enum mu_dtype dtype);
/** Finds a type by either name; 0: there is no such type. */
enum mu_dtype mu_dtype_parse(struct mu_span name);

struct mu_tensor {
    size_t name_at; /* in the layout's names */
    size_t name_len;
    size_t shape_at; /* in its shapes */
    uint32_t rank;
    enum mu_dtype dtype;
    uint64_t offset; /* of its bytes */
    uint64_t len;
};

struct mu_layout {
    struct mu_tensor *tensors;
    size_t count;
    size_t cap;
    uint64_t *shapes;
    size_t shape_count;
    size_t shape_cap;
    struct mu_buf names;
    uint64_t bytes; /* of all tensors */
};

void mu_layout_init(struct mu_layout *l);
void mu_layout_fini(struct mu_layout *l);
/**
 * Adds a tensor at the end; copies name and shape. MUSTER_EINVAL: too many dimensions or elements,
 * or bits that do not make whole bytes; MUSTER_ELIMIT, MUSTER_ENOMEM.
 */
int mu_layout_add(struct mu_layout *l, struct mu_span name, enum mu_dtype dtype,
                  const uint64_t *shape, size_t rank);
static inline struct mu_span mu_layout_name(const struct mu_layout *l, size_t i)
{
    return mu_span(l->names.data == NULL ? NULL
                                         : l->names.data + l->names.head + l->tensors[i].name_at,
                   l->tensors[i].name_len);
}
static inline const uint64_t *mu_layout_shape(const struct mu_layout *l, size_t i)
{
    return l->shapes == NULL ? NULL : l->shapes + l->tensors[i].shape_at;
}
/** How many elements tensor `i` has. */
uint64_t mu_layout_elements(const struct mu_layout *l, size_t i);
/** Whether tensor `i`, which both have, has the same type and shape in both. */
bool mu_layout_same_type(const struct mu_layout *a, const struct mu_layout *b, size_t i);
/** Writes its type and shape, "F32[2,3]", terminated, cut if there is no room. Returns `buf`. */
char *mu_layout_describe(const struct mu_layout *l, size_t i, char *buf, size_t cap);
/**
 * Fills `index`, with room for l->count, with the tensors in the order of their names.
 * MUSTER_EEXIST: a name occurs twice; `*ret_twice` says which.
 */
int mu_layout_sort(const struct mu_layout *l, size_t *index, size_t *ret_twice);
/** MUSTER_EEXIST, with a text: two tensors have one name, so that looking it up would be ambiguous.
 * MUSTER_ENOMEM. */
int mu_layout_check_names(const struct mu_layout *l, struct mu_errmsg *reterr_msg);
/**
 * Checks that `got` is what `expected` says: the same tensors in the same order with the same types
 * and shapes. MUSTER_EINVAL, with a text that names the first that differs.
 */
int mu_layout_check(const struct mu_layout *expected, const struct mu_layout *got,
                    struct mu_errmsg *reterr_msg);

#endif

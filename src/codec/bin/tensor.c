#include "codec/bin/tensor.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/alloc.h"
#include "core/assert.h"

#define NAMES_BYTES_MAX ((size_t)256 << 20)
#define TENSORS_MAX     ((size_t)16 << 20)

static const struct {
    const char *name;
    const char *torch;
    unsigned bits;
} dtypes[] = {
    [MU_DTYPE_BOOL] = {"BOOL", "bool", 8},
    [MU_DTYPE_U8] = {"U8", "uint8", 8},
    [MU_DTYPE_I8] = {"I8", "int8", 8},
    [MU_DTYPE_F8_E5M2] = {"F8_E5M2", "float8_e5m2", 8},
    [MU_DTYPE_F8_E4M3] = {"F8_E4M3", "float8_e4m3fn", 8},
    [MU_DTYPE_F8_E8M0] = {"F8_E8M0", "float8_e8m0fnu", 8},
    [MU_DTYPE_I16] = {"I16", "int16", 16},
    [MU_DTYPE_U16] = {"U16", "uint16", 16},
    [MU_DTYPE_F16] = {"F16", "float16", 16},
    [MU_DTYPE_BF16] = {"BF16", "bfloat16", 16},
    [MU_DTYPE_I32] = {"I32", "int32", 32},
    [MU_DTYPE_U32] = {"U32", "uint32", 32},
    [MU_DTYPE_F32] = {"F32", "float32", 32},
    [MU_DTYPE_I64] = {"I64", "int64", 64},
    [MU_DTYPE_U64] = {"U64", "uint64", 64},
    [MU_DTYPE_F64] = {"F64", "float64", 64},
    [MU_DTYPE_C64] = {"C64", "complex64", 64},
    [MU_DTYPE_F4] = {"F4", NULL, 4},
    [MU_DTYPE_F6_E2M3] = {"F6_E2M3", NULL, 6},
    [MU_DTYPE_F6_E3M2] = {"F6_E3M2", NULL, 6},
};

const char *mu_dtype_name(enum mu_dtype dtype)
{
    return dtypes[dtype].name;
}

const char *mu_dtype_torch_name(enum mu_dtype dtype)
{
    return dtypes[dtype].torch;
}

unsigned mu_dtype_bits(enum mu_dtype dtype)
{
    return dtypes[dtype].bits;
}

enum mu_dtype mu_dtype_parse(struct mu_span name)
{
    for (int i = MU_DTYPE_BOOL; i <= MU_DTYPE_LAST; i++) {
        if (mu_span_eq(name, mu_span_str(dtypes[i].name)) ||
            (dtypes[i].torch != NULL && mu_span_eq(name, mu_span_str(dtypes[i].torch)))) {
            return (enum mu_dtype)i;
        }
    }
    return (enum mu_dtype)0;
}

void mu_layout_init(struct mu_layout *l)
{
    memset(l, 0, sizeof(*l));
    mu_buf_init(&l->names, NAMES_BYTES_MAX);
}

void mu_layout_fini(struct mu_layout *l)
{
    mu_free(l->tensors);
    mu_free(l->shapes);
    mu_buf_fini(&l->names);
    mu_layout_init(l);
}

/* Makes room for `more` elements of `size` bytes after `count` of them. */
static int grow(void **array, size_t *cap, size_t count, size_t more, size_t size)
{
    size_t wanted = *cap == 0 ? 16 : *cap;
    void *bigger;

    if (more <= *cap - count) {
        return 0;
    }
    if (count + more > TENSORS_MAX) {
        return MUSTER_ELIMIT;
    }
    while (wanted < count + more) {
        wanted *= 2;
    }
    bigger = mu_realloc(*array, wanted * size);
    if (bigger == NULL) {
        return MUSTER_ENOMEM;
    }
    *array = bigger;
    *cap = wanted;
    return 0;
}

/* Computes a tensor's bytes; false: too many, or not a whole number. */
static bool size_of(enum mu_dtype dtype, const uint64_t *shape, size_t rank, uint64_t *ret)
{
    uint64_t bits = mu_dtype_bits(dtype);

    for (size_t i = 0; i < rank; i++) {
        if (shape[i] == 0) {
            *ret = 0;
            return true;
        }
    }
    for (size_t i = 0; i < rank; i++) {
        if (__builtin_mul_overflow(bits, shape[i], &bits)) {
            return false;
        }
    }
    *ret = bits / 8;
    return bits % 8 == 0;
}

int mu_layout_add(struct mu_layout *l, struct mu_span name, enum mu_dtype dtype,
                  const uint64_t *shape, size_t rank)
{
    uint64_t len;
    uint64_t end;
    int err;

    if (rank > MU_TENSOR_RANK_MAX || !size_of(dtype, shape, rank, &len) ||
        __builtin_add_overflow(l->bytes, len, &end)) {
        return MUSTER_EINVAL;
    }
    err = grow((void **)&l->tensors, &l->cap, l->count, 1, sizeof(*l->tensors));
    if (err == 0) {
        err = grow((void **)&l->shapes, &l->shape_cap, l->shape_count, rank, sizeof(*l->shapes));
    }
    if (err == 0) {
        err = mu_buf_append(&l->names, name);
    }
    if (err != 0) {
        return err;
    }
    l->tensors[l->count++] = (struct mu_tensor){
        .name_at = l->names.len - name.len,
        .name_len = name.len,
        .shape_at = l->shape_count,
        .rank = (uint32_t)rank,
        .dtype = dtype,
        .offset = l->bytes,
        .len = len,
    };
    for (size_t i = 0; i < rank; i++) {
        l->shapes[l->shape_count++] = shape[i];
    }
    l->bytes = end;
    return 0;
}

uint64_t mu_layout_elements(const struct mu_layout *l, size_t i)
{
    uint64_t bits = mu_dtype_bits(l->tensors[i].dtype);

    /* The bits were counted without overflow, or there are no bits. */
    return l->tensors[i].len / bits * 8 + l->tensors[i].len % bits * 8 / bits;
}

static int compare_names(struct mu_span a, struct mu_span b)
{
    size_t shorter = a.len < b.len ? a.len : b.len;
    int order = shorter == 0 ? 0 : memcmp(a.data, b.data, shorter);

    return order != 0 ? order : (a.len > b.len) - (a.len < b.len);
}

static int compare_indices(const void *a, const void *b, void *layout)
{
    return compare_names(mu_layout_name(layout, *(const size_t *)a),
                         mu_layout_name(layout, *(const size_t *)b));
}

int mu_layout_sort(const struct mu_layout *l, size_t *index, size_t *ret_twice)
{
    for (size_t i = 0; i < l->count; i++) {
        index[i] = i;
    }
    if (l->count > 1) {
        qsort_r(index, l->count, sizeof(*index), compare_indices, (void *)(uintptr_t)l);
    }
    for (size_t i = 1; i < l->count; i++) {
        if (mu_span_eq(mu_layout_name(l, index[i - 1]), mu_layout_name(l, index[i]))) {
            *ret_twice = index[i];
            return MUSTER_EEXIST;
        }
    }
    return 0;
}

char *mu_layout_describe(const struct mu_layout *l, size_t i, char *buf, size_t cap)
{
    const struct mu_tensor *t = &l->tensors[i];
    size_t at = (size_t)snprintf(buf, cap, "%s[", mu_dtype_name(t->dtype));

    for (uint32_t k = 0; k < t->rank && at < cap; k++) {
        at += (size_t)snprintf(buf + at, cap - at, "%s%" PRIu64, k == 0 ? "" : ",",
                               mu_layout_shape(l, i)[k]);
    }
    if (at < cap) {
        (void)snprintf(buf + at, cap - at, "]");
    }
    return buf;
}

bool mu_layout_same_type(const struct mu_layout *a, const struct mu_layout *b, size_t i)
{
    const struct mu_tensor *x = &a->tensors[i];
    const struct mu_tensor *y = &b->tensors[i];

    return x->dtype == y->dtype && x->rank == y->rank &&
           (x->rank == 0 ||
            memcmp(mu_layout_shape(a, i), mu_layout_shape(b, i), x->rank * sizeof(uint64_t)) == 0);
}

int mu_layout_check(const struct mu_layout *expected, const struct mu_layout *got,
                    struct mu_errmsg *reterr_msg)
{
    size_t both = expected->count < got->count ? expected->count : got->count;
    char names[2][64];
    char types[2][64];

    for (size_t i = 0; i < both; i++) {
        if (!mu_span_eq(mu_layout_name(expected, i), mu_layout_name(got, i))) {
            return mu_err(reterr_msg, MUSTER_EINVAL, "tensor %zu is %s, but %s was expected", i,
                          mu_span_quote(names[0], sizeof(names[0]), mu_layout_name(got, i)),
                          mu_span_quote(names[1], sizeof(names[1]), mu_layout_name(expected, i)));
        }
        if (!mu_layout_same_type(expected, got, i)) {
            mu_layout_describe(got, i, types[0], sizeof(types[0]));
            mu_layout_describe(expected, i, types[1], sizeof(types[1]));
            return mu_err(reterr_msg, MUSTER_EINVAL, "tensor %s is %s, but %s was expected",
                          mu_span_quote(names[0], sizeof(names[0]), mu_layout_name(got, i)),
                          types[0], types[1]);
        }
    }
    if (expected->count != got->count) {
        const struct mu_layout *more = got->count > expected->count ? got : expected;

        return mu_err(
            reterr_msg, MUSTER_EINVAL, "there are %zu tensors, but %zu were expected: %s is %s",
            got->count, expected->count,
            mu_span_quote(names[0], sizeof(names[0]),
                          mu_layout_name(more, more == got ? expected->count : got->count)),
            more == got ? "one too many" : "missing");
    }
    return 0;
}

int mu_layout_check_names(const struct mu_layout *l, struct mu_errmsg *reterr_msg)
{
    size_t *index;
    size_t twice = 0;
    char name[64];
    int err;

    if (l->count < 2) {
        return 0;
    }
    index = mu_calloc(l->count, sizeof(*index));
    if (index == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "there is no memory for the names of the tensors");
    }
    err = mu_layout_sort(l, index, &twice);
    mu_free(index);
    if (err != 0) {
        return mu_err(reterr_msg, err, "two tensors have the name %s",
                      mu_span_quote(name, sizeof(name), mu_layout_name(l, twice)));
    }
    return 0;
}

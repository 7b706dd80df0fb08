/* The client's side of codec/state/hm_state.h. */
#include "codec/state/hm_state.h"

#include <inttypes.h>
#include <stdio.h>

#include "core/alloc.h"

struct mu_hm_assembler_config mu_hm_assembler_config_defaults(void)
{
    return (struct mu_hm_assembler_config){
        .bytes_max = (uint64_t)16 << 30,
        .tensors_max = 1u << 20,
        .metadata_len_max = 16u << 20,
        .encoded_max = (uint64_t)16 << 30,
    };
}

void mu_hm_loaded_fini(struct mu_hm_loaded *l)
{
    for (size_t i = 0; l->values != NULL && i < l->layout.count; i++) {
        mu_free(l->values[i]);
    }
    mu_free(l->values);
    l->values = NULL;
    mu_layout_fini(&l->layout);
    mu_buf_fini(&l->metadata);
}

void mu_hm_assembler_init(struct mu_hm_assembler *a, const struct mu_hm_assembler_config *config)
{
    *a = (struct mu_hm_assembler){.config = *config};
    mu_layout_init(&a->got.layout);
    mu_buf_init(&a->got.metadata, config->metadata_len_max);
    mu_buf_init(&a->encoded, SIZE_MAX);
    mu_buf_init(&a->decoded, SIZE_MAX);
}

void mu_hm_assembler_fini(struct mu_hm_assembler *a)
{
    mu_hm_loaded_fini(&a->got);
    mu_buf_fini(&a->encoded);
    mu_buf_fini(&a->decoded);
}

void mu_hm_assembler_reset(struct mu_hm_assembler *a)
{
    struct mu_hm_assembler_config config = a->config;

    mu_hm_assembler_fini(a);
    mu_hm_assembler_init(a, &config);
}

static size_t last_of(const struct mu_hm_assembler *a)
{
    return a->got.layout.count - 1;
}

static struct mu_hm_tensor tensor_of(const struct mu_hm_assembler *a)
{
    size_t i = last_of(a);

    return (struct mu_hm_tensor){
        .dtype = a->got.layout.tensors[i].dtype,
        .compression = a->compression,
        .shape = mu_layout_shape(&a->got.layout, i),
        .rank = a->got.layout.tensors[i].rank,
    };
}

/* Whether `len` bytes come in as many chunks, of which the first has the usual length. */
static bool comes_in(uint64_t len, const struct mu_hm_part *p)
{
    return len > (p->chunks - 1) * MU_HM_CHUNK && len <= p->chunks * MU_HM_CHUNK;
}

/* How long an element is that can be decoded alone; 0: the tensor must be there as a whole. What is
 * kept in memory anyway is decoded as a whole. */
static uint32_t element_len(const struct mu_hm_assembler *a, const struct mu_hm_part *p)
{
    uint64_t elements = mu_layout_elements(&a->got.layout, last_of(a));

    if (!a->config.pass_on || p->buffer.len != MU_HM_CHUNK || p->chunks < 2) {
        return 0;
    }
    if (a->compression == MU_HM_FLOAT16) {
        return 2;
    }
    /* bfloat16, as it is or as float32: with two chunks or more, their number tells which. */
    return a->compression != MU_HM_NONE ? 0
           : comes_in(4 * elements, p)  ? 4
           : comes_in(2 * elements, p)  ? 2
                                        : 0;
}

/* Chooses how the bytes of a tensor become its values. */
static void choose_decoding(struct mu_hm_assembler *a, const struct mu_hm_part *p)
{
    a->element_len = element_len(a, p);
    a->decoding =
        a->compression == MU_HM_NONE && a->got.layout.tensors[last_of(a)].dtype != MU_DTYPE_BF16
            ? MU_HM_DECODE_NOTHING
        : a->element_len != 0 ? MU_HM_DECODE_ELEMENTS
                              : MU_HM_DECODE_WHOLE;
}

/* "tensor 3, "w"": for error texts. */
static const char *name_tensor(const struct mu_layout *l, size_t i, char *buf, size_t cap)
{
    char name[64];

    (void)snprintf(buf, cap, "tensor %zu%s%s", i, l == NULL ? "" : ", ",
                   l == NULL ? "" : mu_span_quote(name, sizeof(name), mu_layout_name(l, i)));
    return buf;
}

static int check_expected(struct mu_hm_assembler *a, struct mu_errmsg *reterr_msg)
{
    const struct mu_layout *expected = a->config.expected;
    size_t i = last_of(a);
    char name[96];
    char types[2][64];

    if (expected == NULL || mu_layout_same_type(expected, &a->got.layout, i)) {
        return 0;
    }
    return mu_err(reterr_msg, MUSTER_EINVAL, "%s is %s, but %s was expected",
                  name_tensor(expected, i, name, sizeof(name)),
                  mu_layout_describe(&a->got.layout, i, types[0], sizeof(types[0])),
                  mu_layout_describe(expected, i, types[1], sizeof(types[1])));
}

/* Makes room for the tensor's bytes; those of a state that is passed on lie there only until the
 * next message. */
static int add_value(struct mu_hm_assembler *a, uint64_t len, uint8_t **ret)
{
    size_t i = last_of(a);

    if (a->config.pass_on) {
        mu_buf_reset(&a->decoded);
        if (mu_buf_reserve(&a->decoded, (size_t)len + 1) != 0) { /* never without memory */
            return MUSTER_ENOMEM;
        }
        *ret = mu_buf_grow(&a->decoded, (size_t)len);
        return 0;
    }
    *ret = a->got.values[i] = mu_malloc((size_t)len);
    return *ret == NULL ? MUSTER_ENOMEM : 0;
}

/* Makes room for one more tensor; a layout with a tensor always has a place for its value. */
static int make_place(struct mu_hm_assembler *a, struct mu_errmsg *reterr_msg)
{
    size_t count = a->got.layout.count;
    size_t max = a->config.tensors_max;
    size_t cap = a->value_cap == 0 ? 64 : 2 * a->value_cap;
    uint8_t **bigger;

    if (a->config.expected != NULL && count == a->config.expected->count) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "there are more tensors than the %zu expected",
                      count);
    }
    if (count >= max) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "there are more than %zu tensors", max);
    }
    if (count < a->value_cap || a->config.pass_on) {
        return 0;
    }
    bigger = mu_realloc(a->got.values, cap * sizeof(*bigger));
    if (bigger == NULL) {
        return MUSTER_ENOMEM;
    }
    a->got.values = bigger;
    a->value_cap = cap;
    return 0;
}

static int add_tensor(struct mu_hm_assembler *a, const struct mu_hm_part *p,
                      struct mu_errmsg *reterr_msg)
{
    struct mu_layout *l = &a->got.layout;
    enum mu_dtype dtype = mu_dtype_parse(p->dtype);
    struct mu_span name = {0};
    char quoted[64];
    int err;

    if (dtype == 0 || mu_dtype_torch_name(dtype) == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOTSUP, "tensor %zu has the type %s", l->count,
                      mu_span_quote(quoted, sizeof(quoted), p->dtype));
    }
    if (a->config.expected != NULL) {
        name = mu_layout_name(a->config.expected, l->count);
    }
    if (!a->config.pass_on) {
        a->got.values[l->count] = NULL;
    }
    err = mu_layout_add(l, name, dtype, p->shape, p->rank);
    if (err == MUSTER_EINVAL) {
        return mu_err(reterr_msg, MUSTER_EPROTO, "tensor %zu is impossibly large", l->count);
    }
    return err;
}

static int start_tensor(struct mu_hm_assembler *a, const struct mu_hm_part *p,
                        struct mu_errmsg *reterr_msg)
{
    struct mu_hm_tensor t;
    uint8_t *place;
    int err = make_place(a, reterr_msg);

    err = err != 0 ? err : add_tensor(a, p, reterr_msg);
    err = err != 0 ? err : check_expected(a, reterr_msg);
    if (err != 0) {
        return err;
    }
    if (p->compression > MU_HM_COMPRESSION_LAST) {
        return mu_err(reterr_msg, MUSTER_ENOTSUP, "tensor %zu has the encoding %" PRIu64,
                      last_of(a), p->compression);
    }
    if (a->got.layout.bytes > a->config.bytes_max) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "there are more than %" PRIu64 " bytes",
                      a->config.bytes_max);
    }
    a->compression = (enum mu_hm_compression)p->compression;
    t = tensor_of(a);
    err = mu_hm_encoded_len_max(&t, &a->encoded_max);
    if (err != 0) {
        return mu_err(reterr_msg, err, "tensor %zu, %s as %s: %s", last_of(a),
                      mu_dtype_name(t.dtype), mu_hm_compression_name(t.compression),
                      muster_strerror(err));
    }
    /* An encoding can be twice as long as the tensor (bfloat16), and longer for a small one. */
    if (a->encoded_max > 4096 && a->encoded_max / 2 > a->config.bytes_max) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "tensor %zu: an encoding of %" PRIu64 " bytes",
                      last_of(a), a->encoded_max);
    }
    if (p->chunks > INT32_MAX || (p->chunks == 0) != (p->buffer.len == 0)) {
        return mu_err(reterr_msg, MUSTER_EPROTO, "tensor %zu has %zu bytes in %" PRIu64 " chunks",
                      last_of(a), p->buffer.len, p->chunks);
    }
    choose_decoding(a, p);
    if (a->config.pass_on && a->decoding == MU_HM_DECODE_WHOLE &&
        a->encoded_max > a->config.encoded_max) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "tensor %zu: an encoding of %" PRIu64 " bytes",
                      last_of(a), a->encoded_max);
    }
    a->chunk_count = p->chunks == 0 ? 1 : p->chunks;
    a->chunks = 0;
    a->encoded_len = 0;
    a->coming = true;
    return a->decoding == MU_HM_DECODE_NOTHING && !a->config.pass_on
               ? add_value(a, a->encoded_max, &place)
               : 0;
}

/* Decodes so many bytes from the front of what has come into `len` bytes of the tensor. */
static int decode(struct mu_hm_assembler *a, const struct mu_hm_tensor *t, size_t encoded_len,
                  uint64_t offset, uint64_t len, struct mu_errmsg *reterr_msg)
{
    size_t i = last_of(a);
    uint8_t *place;
    int err = add_value(a, len, &place);

    if (err != 0) {
        return err;
    }
    err = mu_hm_decode(t, mu_span(mu_buf_span(&a->encoded).data, encoded_len),
                       (struct mu_space){place, (size_t)len}, reterr_msg);
    if (err != 0) {
        mu_err_prefix(reterr_msg, "tensor %zu", i);
    } else if (a->config.pass_on) {
        a->piece = (struct mu_hm_piece){a->got.layout.tensors[i].offset + offset,
                                        mu_span(place, (size_t)len)};
    }
    mu_buf_consume(&a->encoded, encoded_len);
    return err;
}

/* Decodes the elements that have come. */
static int decode_elements(struct mu_hm_assembler *a, struct mu_errmsg *reterr_msg)
{
    struct mu_hm_tensor t = tensor_of(a);
    const struct mu_tensor *whole = &a->got.layout.tensors[last_of(a)];
    uint64_t total = mu_layout_elements(&a->got.layout, last_of(a));
    uint64_t count = a->encoded.len / a->element_len;
    uint64_t before = a->encoded_len / a->element_len;

    if (count == 0) {
        return 0;
    }
    if (before + count > total) {
        return mu_err(reterr_msg, MUSTER_EPROTO, "tensor %zu: more than its %" PRIu64 " elements",
                      last_of(a), total);
    }
    t.shape = &count;
    t.rank = 1;
    return decode(a, &t, (size_t)count * a->element_len, before * (whole->len / total),
                  count * (whole->len / total), reterr_msg);
}

/* Finishes a tensor whose chunks have all come. */
static int finish_tensor(struct mu_hm_assembler *a, struct mu_errmsg *reterr_msg)
{
    struct mu_hm_tensor t = tensor_of(a);
    size_t i = last_of(a);
    uint64_t len = a->got.layout.tensors[i].len;
    uint64_t must = len;

    a->coming = false;
    if (a->decoding == MU_HM_DECODE_WHOLE) {
        return decode(a, &t, a->encoded.len, 0, len, reterr_msg);
    }
    if (a->decoding == MU_HM_DECODE_ELEMENTS) {
        must = mu_layout_elements(&a->got.layout, i) * a->element_len;
    }
    return a->encoded_len == must
               ? 0
               : mu_err(reterr_msg, MUSTER_EPROTO,
                        "tensor %zu: %" PRIu64 " bytes where there must be %" PRIu64, i,
                        a->encoded_len, must);
}

static int take_chunk(struct mu_hm_assembler *a, const struct mu_hm_part *p,
                      struct mu_errmsg *reterr_msg)
{
    int err = 0;

    if (p->buffer.len > a->encoded_max - a->encoded_len) {
        return mu_err(reterr_msg, MUSTER_EPROTO,
                      "tensor %zu: more than the %" PRIu64 " bytes that it can have", last_of(a),
                      a->encoded_max);
    }
    if (a->decoding != MU_HM_DECODE_NOTHING) {
        err = mu_buf_append(&a->encoded, p->buffer);
        err =
            err == 0 && a->decoding == MU_HM_DECODE_ELEMENTS ? decode_elements(a, reterr_msg) : err;
    } else if (a->config.pass_on) {
        a->piece = (struct mu_hm_piece){a->got.layout.tensors[last_of(a)].offset + a->encoded_len,
                                        p->buffer};
    } else if (p->buffer.len != 0) {
        memcpy(a->got.values[last_of(a)] + a->encoded_len, p->buffer.data, p->buffer.len);
    }
    if (err != 0) {
        return err;
    }
    a->encoded_len += p->buffer.len;
    a->bytes += p->buffer.len;
    a->chunks++;
    return a->chunks == a->chunk_count ? finish_tensor(a, reterr_msg) : 0;
}

static int cut_off(const struct mu_hm_assembler *a, struct mu_errmsg *reterr_msg)
{
    char name[96];

    return mu_err(reterr_msg, MUSTER_EPROTO, "%s has %" PRIu64 " of %" PRIu64 " chunks",
                  name_tensor(a->config.expected, last_of(a), name, sizeof(name)), a->chunks,
                  a->chunk_count);
}

static int take_part(struct mu_hm_assembler *a, const struct mu_hm_part *p,
                     struct mu_errmsg *reterr_msg)
{
    int err;

    if (p->metadata.len != 0) {
        mu_buf_reset(&a->got.metadata);
        err = mu_buf_append(&a->got.metadata, p->metadata);
        if (err != 0) {
            return mu_err(reterr_msg, err, "%zu bytes of metadata: %s", p->metadata.len,
                          muster_strerror(err));
        }
    }
    if (p->dtype.len != 0) {
        if (a->coming) {
            return cut_off(a, reterr_msg);
        }
        err = start_tensor(a, p, reterr_msg);
        if (err != 0) {
            return err;
        }
    } else if (!p->tensor) {
        return 0;
    } else if (!a->coming) {
        return mu_err(reterr_msg, MUSTER_EPROTO, "a chunk belongs to no tensor");
    }
    return take_chunk(a, p, reterr_msg);
}

int mu_hm_assembler_take(struct mu_hm_assembler *a, struct mu_span message,
                         struct mu_errmsg *reterr_msg)
{
    struct mu_hm_part part;

    reterr_msg->text[0] = '\0';
    a->piece = (struct mu_hm_piece){0};
    if (a->status == 0) {
        a->messages++;
        a->status = mu_hm_part_decode(message, &part);
        if (a->status == 0) {
            a->status = take_part(a, &part, reterr_msg);
        }
    }
    if (a->status != 0) {
        a->piece = (struct mu_hm_piece){0};
    }
    if (a->status != 0 && reterr_msg->text[0] == '\0') {
        (void)mu_err(reterr_msg, a->status, "message %" PRIu64 ": %s", a->messages,
                     muster_strerror(a->status));
    }
    return a->status;
}

static int check_whole(const struct mu_hm_assembler *a, struct mu_errmsg *reterr_msg)
{
    const struct mu_layout *expected = a->config.expected;
    size_t count = a->got.layout.count;
    char name[96];

    if (a->messages == 0) {
        return mu_err(reterr_msg, MUSTER_EREFUSED, "the donor does not share its state");
    }
    if (a->coming) {
        (void)cut_off(a, reterr_msg);
        mu_err_prefix(reterr_msg, "the stream ended early");
        return MUSTER_EPROTO;
    }
    if (count == 0) {
        return mu_err(reterr_msg, MUSTER_EPROTO,
                      "the stream ended early: it had metadata, but no tensor");
    }
    if (expected != NULL && count < expected->count) {
        return mu_err(reterr_msg, MUSTER_EPROTO,
                      "the stream ended early: %zu of %zu tensors, without %s", count,
                      expected->count, name_tensor(expected, count, name, sizeof(name)));
    }
    if (a->got.metadata.len == 0) {
        return mu_err(reterr_msg, MUSTER_EPROTO, "it had %zu tensors, but no metadata", count);
    }
    return 0;
}

int mu_hm_assembler_end(struct mu_hm_assembler *a, struct mu_hm_loaded *ret,
                        struct mu_errmsg *reterr_msg)
{
    int err = a->status;

    if (err != 0) {
        return mu_err(reterr_msg, err, "%s", muster_strerror(err));
    }
    err = check_whole(a, reterr_msg);
    if (err != 0) {
        return err;
    }
    *ret = a->got;
    a->got.values = NULL;
    a->value_cap = 0;
    mu_layout_init(&a->got.layout);
    mu_buf_init(&a->got.metadata, a->config.metadata_len_max);
    mu_hm_assembler_reset(a);
    return 0;
}

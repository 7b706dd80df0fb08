/* Messages, and the client's side of codec/state/hm_state.h. */
#include "codec/state/hm_state.h"

#include <inttypes.h>
#include <stdio.h>

#include "codec/bin/msgpack.h"
#include "codec/bin/pb.h"
#include "core/alloc.h"

/* --- messages --------------------------------------------------------------------------------- */

static int add_dimension(struct mu_hm_part *p, uint64_t value)
{
    if (p->rank == MU_TENSOR_RANK_MAX || value > UINT32_MAX) {
        return MUSTER_EPROTO;
    }
    p->shape[p->rank++] = value;
    return 0;
}

/* Repeated numbers may be packed into one field or be a field each. */
static int decode_shape(struct mu_pb_field *field, struct mu_hm_part *ret)
{
    uint64_t value;
    int got;

    if (field->type == MU_PB_VARINT) {
        return add_dimension(ret, field->value);
    }
    if (field->type != MU_PB_BYTES) {
        return MUSTER_EPROTO;
    }
    while ((got = mu_pb_next_varint(&field->bytes, &value)) == 1) {
        if (add_dimension(ret, value) != 0) {
            return MUSTER_EPROTO;
        }
    }
    return got;
}

static int decode_tensor(struct mu_span in, struct mu_hm_part *ret)
{
    struct mu_pb_field field;
    int got;

    while ((got = mu_pb_next(&in, &field)) == 1) {
        bool bytes = field.type == MU_PB_BYTES;

        if (field.number == 2) {
            if (decode_shape(&field, ret) != 0) {
                return MUSTER_EPROTO;
            }
            continue;
        }
        if (field.number <= 6 && bytes != (field.number == 1 || field.number == 4)) {
            return MUSTER_EPROTO;
        }
        switch (field.number) {
        case 1:
            ret->buffer = field.bytes;
            break;
        case 3:
            ret->requires_grad = field.value != 0;
            break;
        case 4:
            ret->dtype = field.bytes;
            break;
        case 5:
            ret->compression = field.value;
            break;
        case 6:
            ret->chunks = field.value;
            break;
        default:
            break;
        }
    }
    return got;
}

int mu_hm_part_decode(struct mu_span message, struct mu_hm_part *ret)
{
    struct mu_pb_field field;
    int got;

    *ret = (struct mu_hm_part){0};
    while ((got = mu_pb_next(&message, &field)) == 1) {
        if (field.number > 2) {
            continue;
        }
        if (field.type != MU_PB_BYTES) {
            return MUSTER_EPROTO;
        }
        if (field.number == 1) {
            ret->metadata = field.bytes;
        } else {
            ret->tensor = true;
            got = decode_tensor(field.bytes, ret);
            if (got != 0) {
                return got;
            }
        }
    }
    return got;
}

int mu_hm_request_decode(struct mu_span message)
{
    struct mu_pb_field field;
    int got;

    while ((got = mu_pb_next(&message, &field)) == 1) {
    }
    return got;
}

int mu_hm_metadata_epoch(struct mu_span metadata, uint64_t *ret_epoch)
{
    struct mu_mp map;
    struct mu_mp key;
    struct mu_mp value;
    struct mu_span whole;

    if (mu_mp_next(&metadata, &map) != 0 || map.type != MU_MP_MAP) {
        return MUSTER_EPROTO;
    }
    for (uint32_t i = 0; i < map.count; i++) {
        struct mu_span name;

        if (mu_mp_skip(&metadata, &name) != 0 || mu_mp_skip(&metadata, &whole) != 0) {
            return MUSTER_EPROTO;
        }
        if (mu_mp_next(&name, &key) == 0 && key.type == MU_MP_STR &&
            mu_span_eq(key.bytes, MU_SPAN_LIT("epoch"))) {
            if (mu_mp_next(&whole, &value) != 0 || value.type != MU_MP_UINT) {
                return MUSTER_ENOENT;
            }
            *ret_epoch = value.number;
            return 0;
        }
    }
    return MUSTER_ENOENT;
}

int mu_hm_metadata_tell_epoch(struct mu_span metadata, uint64_t epoch, struct mu_buf *out)
{
    struct mu_mp_out mp = mu_mp_out(out);
    struct mu_mp head = {0};
    uint64_t told;

    if (metadata.len != 0 && !mu_mp_is_value(metadata)) {
        return MUSTER_EPROTO;
    }
    if (metadata.len == 0 || mu_hm_metadata_epoch(metadata, &told) == MUSTER_ENOENT) {
        if (metadata.len != 0) {
            (void)mu_mp_next(&metadata, &head);
        }
        mu_mp_put_map(&mp, (size_t)head.count + 1);
        mu_mp_put_str(&mp, MU_SPAN_LIT("epoch"));
        mu_mp_put_uint(&mp, epoch);
    }
    mu_mp_put_raw(&mp, metadata);
    return mp.err;
}

/* --- assembling ------------------------------------------------------------------------------- */

struct mu_hm_assembler_config mu_hm_assembler_config_defaults(void)
{
    return (struct mu_hm_assembler_config){
        .bytes_max = (uint64_t)16 << 30,
        .tensors_max = 1u << 20,
        .metadata_len_max = 16u << 20,
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
}

void mu_hm_assembler_fini(struct mu_hm_assembler *a)
{
    mu_hm_loaded_fini(&a->got);
    mu_buf_fini(&a->encoded);
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

/* Whether the bytes need no decoding, and go to their place as they come. */
static bool goes_direct(const struct mu_hm_assembler *a)
{
    return a->compression == MU_HM_NONE && a->got.layout.tensors[last_of(a)].dtype != MU_DTYPE_BF16;
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

static int add_value(struct mu_hm_assembler *a, uint64_t len)
{
    size_t i = last_of(a);

    a->got.values[i] = mu_malloc((size_t)len);
    return a->got.values[i] == NULL ? MUSTER_ENOMEM : 0;
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
    if (count < a->value_cap) {
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
    a->got.values[l->count] = NULL;
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
    a->chunk_count = p->chunks == 0 ? 1 : p->chunks;
    a->chunks = 0;
    a->encoded_len = 0;
    a->coming = true;
    return goes_direct(a) ? add_value(a, a->encoded_max) : 0;
}

/* Finishes a tensor whose chunks have all come. */
static int finish_tensor(struct mu_hm_assembler *a, struct mu_errmsg *reterr_msg)
{
    struct mu_hm_tensor t = tensor_of(a);
    size_t i = last_of(a);
    uint64_t len = a->got.layout.tensors[i].len;
    int err;

    a->coming = false;
    if (goes_direct(a)) {
        return a->encoded_len == len
                   ? 0
                   : mu_err(reterr_msg, MUSTER_EPROTO,
                            "tensor %zu: %" PRIu64 " bytes where there must be %" PRIu64, i,
                            a->encoded_len, len);
    }
    err = add_value(a, len);
    if (err == 0) {
        err = mu_hm_decode(&t, mu_buf_span(&a->encoded),
                           (struct mu_space){a->got.values[i], (size_t)len}, reterr_msg);
        if (err != 0) {
            mu_err_prefix(reterr_msg, "tensor %zu", i);
        }
    }
    mu_buf_reset(&a->encoded);
    return err;
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
    if (!goes_direct(a)) {
        err = mu_buf_append(&a->encoded, p->buffer);
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
    if (a->status == 0) {
        a->messages++;
        a->status = mu_hm_part_decode(message, &part);
        if (a->status == 0) {
            a->status = take_part(a, &part, reterr_msg);
        }
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

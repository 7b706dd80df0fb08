/* AveragingData of codec/average/msg.h: parts and results, with their values. */
#include "codec/average/kernel.h"
#include "codec/average/msg.h"
#include "codec/bin/pb.h"
#include "codec/bin/uvarint.h"
#include "codec/state/hm_state.h"

#define FLOATS (1u << MU_DTYPE_F16 | 1u << MU_DTYPE_BF16 | 1u << MU_DTYPE_F32 | 1u << MU_DTYPE_F64)

/* What the tensor codec is to be told of a part. */
static struct mu_hm_tensor tensor_of(const struct mu_avg_data *data)
{
    return (struct mu_hm_tensor){
        .dtype = data->dtype,
        .compression = data->compression,
        .shape = &data->elements,
        .rank = 1,
    };
}

static int take_tensor(const struct mu_hm_part *part, struct mu_avg_data *ret)
{
    struct mu_hm_tensor tensor;
    uint64_t len;
    uint64_t encoded;

    ret->dtype = mu_dtype_parse(part->dtype);
    if (part->rank != 1 || part->chunks > 1) {
        return MUSTER_EPROTO;
    }
    if (ret->dtype == 0 || (FLOATS >> ret->dtype & 1) == 0 ||
        part->compression > MU_HM_COMPRESSION_LAST) {
        return MUSTER_ENOTSUP;
    }
    ret->compression = (enum mu_hm_compression)part->compression;
    ret->elements = part->shape[0];
    ret->buffer = part->buffer;
    tensor = tensor_of(ret);
    if (mu_hm_tensor_check(&tensor) != 0) {
        return MUSTER_ENOTSUP;
    }
    if (mu_hm_tensor_len(&tensor, &len) != 0 || len > MU_AVG_PART_BYTES_MAX ||
        mu_hm_encoded_len_max(&tensor, &encoded) != 0 || part->buffer.len > MU_AVG_PART_BYTES_MAX) {
        return MUSTER_ELIMIT;
    }
    return part->buffer.len > encoded ? MUSTER_EPROTO : 0;
}

static int read_field(const struct mu_pb_field *field, struct mu_avg_data *ret)
{
    struct mu_hm_part part = {0};
    int err;

    switch (field->number) {
    case 1:
        if (field->type != MU_PB_VARINT || field->value > MU_AVG_CODE_LAST) {
            return MUSTER_EPROTO;
        }
        ret->code = (enum mu_avg_code)field->value;
        return 0;
    case 2:
        ret->group_id = field->bytes;
        return field->type == MU_PB_BYTES ? 0 : MUSTER_EPROTO;
    case 4:
        err = field->type == MU_PB_BYTES ? mu_hm_part_tensor_decode(field->bytes, &part)
                                         : MUSTER_EPROTO;
        ret->tensor = true;
        return err != 0 ? err : take_tensor(&part, ret);
    case 5:
        ret->weight = mu_pb_double(field);
        return field->type == MU_PB_FIXED64 ? 0 : MUSTER_EPROTO;
    default:
        return 0;
    }
}

int mu_avg_data_decode(struct mu_span in, struct mu_avg_data *ret)
{
    struct mu_avg_data data = {0};
    struct mu_pb_field field;
    int got;

    while ((got = mu_pb_next(&in, &field)) == 1) {
        int err = read_field(&field, &data);

        if (err != 0) {
            return err;
        }
    }
    if (got != 0) {
        return got;
    }
    if (data.group_id.len > MU_AVG_GROUP_ID_MAX) {
        return MUSTER_ELIMIT;
    }
    /* NaN fails both comparisons. */
    if (!(data.weight >= 0 && data.weight <= MU_AVG_WEIGHT_MAX)) {
        return MUSTER_EPROTO;
    }
    *ret = data;
    return 0;
}

size_t mu_avg_data_len(const struct mu_avg_data *data)
{
    return (size_t)data->elements * mu_dtype_bits(data->dtype) / 8;
}

int mu_avg_data_values(const struct mu_avg_data *data, struct mu_space out)
{
    struct mu_hm_tensor tensor = tensor_of(data);
    struct mu_errmsg msg;
    size_t len = mu_avg_data_len(data);
    int err;

    if (out.len < len) {
        return MUSTER_EINVAL;
    }
    err = mu_hm_decode(&tensor, data->buffer, (struct mu_space){out.data, len}, &msg);
    if (err != 0) {
        return err;
    }
    return mu_avg_finite(data->dtype, out.data, (size_t)data->elements) ? 0 : MUSTER_EPROTO;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* What follows the buffer in a Tensor. At most 1 + 1 + 10, 1 + 1 + 8 and 1 + 1 bytes. */
static int put_description(const struct mu_avg_data *data, struct mu_buf *out)
{
    struct mu_pb_out pb = mu_pb_out(out);
    uint8_t size[MU_UVARINT_LEN_MAX];

    mu_pb_put_bytes(&pb, 2, mu_span(size, mu_uvarint_put(size, data->elements)));
    mu_pb_put_bytes(&pb, 4, mu_span_str(mu_dtype_torch_name(data->dtype)));
    if (data->compression != MU_HM_NONE) {
        mu_pb_put_varint(&pb, 5, data->compression);
    }
    return pb.err;
}

/* Appends the field `buffer`, encoded straight into its place. An empty one is left out. */
static int put_values(const struct mu_hm_encoder *e, struct mu_buf *out)
{
    struct mu_pb_out pb = mu_pb_out(out);
    size_t len = (size_t)mu_hm_encoder_len(e);
    struct mu_hm_cursor cursor;
    int err;

    if (len == 0) {
        return 0;
    }
    mu_pb_put_head(&pb, 1, len);
    err = pb.err != 0 ? pb.err : mu_buf_reserve(out, len);
    if (err == 0) {
        mu_hm_cursor_init(&cursor);
        mu_hm_encoder_read(e, &cursor, mu_buf_grow(out, len), len);
    }
    return err;
}

static int put_tensor(const struct mu_avg_data *data, struct mu_span values, struct mu_buf *out)
{
    struct mu_pb_out pb = mu_pb_out(out);
    struct mu_hm_tensor tensor = tensor_of(data);
    struct mu_hm_encoder e;
    struct mu_buf rest;
    size_t len;
    int err = mu_hm_encoder_init(&e, &tensor, values);

    if (err != 0) {
        return err;
    }
    mu_buf_init(&rest, 64);
    err = put_description(data, &rest);
    len = (size_t)mu_hm_encoder_len(&e);
    if (err == 0) {
        mu_pb_put_head(&pb, 4, (len == 0 ? 0 : mu_pb_bytes_len(1, len)) + rest.len);
        err = pb.err != 0 ? pb.err : put_values(&e, out);
    }
    err = err != 0 ? err : mu_buf_append(out, mu_buf_span(&rest));
    mu_buf_fini(&rest);
    mu_hm_encoder_fini(&e);
    return err;
}

int mu_avg_data_encode(const struct mu_avg_data *data, struct mu_span values, struct mu_buf *out)
{
    struct mu_pb_out pb = mu_pb_out(out);

    if (data->code != MU_AVG_NO_CODE) {
        mu_pb_put_varint(&pb, 1, data->code);
    }
    if (data->group_id.len != 0) {
        mu_pb_put_bytes(&pb, 2, data->group_id);
    }
    if (pb.err == 0 && data->tensor) {
        pb.err = put_tensor(data, values, out);
    }
    if (data->weight != 0) {
        mu_pb_put_double(&pb, 5, data->weight);
    }
    return pb.err;
}

/* Messages of codec/state/hm_state.h, and the metadata in them. */
#include "codec/state/hm_state.h"

#include "codec/bin/msgpack.h"
#include "codec/bin/pb.h"

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

int mu_hm_part_tensor_decode(struct mu_span in, struct mu_hm_part *ret)
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
            got = mu_hm_part_tensor_decode(field.bytes, ret);
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

#include "codec/bin/pb.h"

#include <muster/error.h>

#include "codec/bin/uvarint.h"
#include "core/reader.h"

#define VARINT_LEN_MAX 10
#define NUMBER_MAX     0x1fffffff

int mu_pb_next_varint(struct mu_span *in, uint64_t *ret_value)
{
    uint64_t value = 0;

    if (in->len == 0) {
        return 0;
    }
    for (size_t i = 0; i < VARINT_LEN_MAX && i < in->len; i++) {
        uint8_t byte = in->data[i];

        if (i == VARINT_LEN_MAX - 1 && byte > 1) {
            return MUSTER_EPROTO; /* more than 64 bits */
        }
        value |= (uint64_t)(byte & 0x7f) << (7 * i);
        if ((byte & 0x80) == 0) {
            *in = mu_span_skip(*in, i + 1);
            *ret_value = value;
            return 1;
        }
    }
    return MUSTER_EPROTO;
}

static int read_value(struct mu_span *in, struct mu_pb_field *field)
{
    struct mu_reader r = mu_reader(*in);
    uint64_t len;

    switch (field->type) {
    case MU_PB_VARINT:
        return mu_pb_next_varint(in, &field->value) == 1 ? 1 : MUSTER_EPROTO;
    case MU_PB_FIXED64:
        field->value = mu_read_u64(&r);
        break;
    case MU_PB_FIXED32:
        field->value = mu_read_u32(&r);
        break;
    case MU_PB_BYTES:
        if (mu_pb_next_varint(in, &len) != 1) {
            return MUSTER_EPROTO;
        }
        r = mu_reader(*in);
        field->bytes = mu_read_bytes(&r, len);
        break;
    }
    *in = r.rest;
    return r.failed ? MUSTER_EPROTO : 1;
}

int mu_pb_next(struct mu_span *in, struct mu_pb_field *ret_field)
{
    struct mu_pb_field field = {0};
    struct mu_span rest = *in;
    uint64_t key;
    int err = mu_pb_next_varint(&rest, &key);

    if (err != 1) {
        return err;
    }
    if (key >> 3 == 0 || key >> 3 > NUMBER_MAX) {
        return MUSTER_EPROTO;
    }
    field.number = (uint32_t)(key >> 3);
    switch (key & 7) {
    case MU_PB_VARINT:
    case MU_PB_FIXED64:
    case MU_PB_BYTES:
    case MU_PB_FIXED32:
        field.type = (enum mu_pb_type)(key & 7);
        break;
    default:
        return MUSTER_EPROTO;
    }
    err = read_value(&rest, &field);
    if (err != 1) {
        return err;
    }
    *in = rest;
    *ret_field = field;
    return 1;
}

double mu_pb_double(const struct mu_pb_field *field)
{
    double value;

    memcpy(&value, &field->value, sizeof(value));
    return value;
}

void mu_pb_put_raw(struct mu_pb_out *out, struct mu_span bytes)
{
    if (out->err == 0) {
        out->err = mu_buf_append(out->buf, bytes);
    }
}

static void put_number(struct mu_pb_out *out, uint64_t value)
{
    uint8_t bytes[VARINT_LEN_MAX];

    mu_pb_put_raw(out, mu_span(bytes, mu_uvarint_put(bytes, value)));
}

static void put_key(struct mu_pb_out *out, uint32_t number, enum mu_pb_type type)
{
    put_number(out, (uint64_t)number << 3 | (uint64_t)type);
}

void mu_pb_put_varint(struct mu_pb_out *out, uint32_t number, uint64_t value)
{
    put_key(out, number, MU_PB_VARINT);
    put_number(out, value);
}

void mu_pb_put_head(struct mu_pb_out *out, uint32_t number, size_t len)
{
    put_key(out, number, MU_PB_BYTES);
    put_number(out, len);
}

void mu_pb_put_bytes(struct mu_pb_out *out, uint32_t number, struct mu_span bytes)
{
    mu_pb_put_head(out, number, bytes.len);
    mu_pb_put_raw(out, bytes);
}

void mu_pb_put_double(struct mu_pb_out *out, uint32_t number, double value)
{
    uint64_t bits;
    uint8_t bytes[8];

    memcpy(&bits, &value, sizeof(bits));
    mu_put_u64(bytes, bits);
    put_key(out, number, MU_PB_FIXED64);
    mu_pb_put_raw(out, mu_span(bytes, sizeof(bytes)));
}

size_t mu_pb_bytes_len(uint32_t number, size_t len)
{
    return mu_uvarint_len((uint64_t)number << 3 | MU_PB_BYTES) + mu_uvarint_len(len) + len;
}

#include "codec/bin/msgpack.h"

#include <muster/error.h>

#include "core/reader.h"

/* Big-endian, as nothing else here. */
static uint64_t read_big(struct mu_reader *r, size_t len)
{
    struct mu_span s = mu_read_bytes(r, len);
    uint64_t value = 0;

    for (size_t i = 0; i < s.len; i++) {
        value = value << 8 | s.data[i];
    }
    return value;
}

static void set_int(struct mu_mp *t, int64_t value)
{
    t->type = value < 0 ? MU_MP_INT : MU_MP_UINT;
    t->negative = value < 0 ? value : 0;
    t->number = value < 0 ? 0 : (uint64_t)value;
}

static void set_float(struct mu_mp *t, uint64_t bits, size_t len)
{
    uint32_t half = (uint32_t)bits;
    float single;

    t->type = MU_MP_FLOAT;
    if (len == 8) {
        memcpy(&t->real, &bits, sizeof(t->real));
    } else {
        memcpy(&single, &half, sizeof(single));
        t->real = (double)single;
    }
}

static void read_ext(struct mu_reader *r, struct mu_mp *t, uint64_t len)
{
    t->type = MU_MP_EXT;
    t->ext = (int8_t)mu_read_u8(r);
    t->bytes = mu_read_bytes(r, len);
}

static void read_bytes(struct mu_reader *r, struct mu_mp *t, enum mu_mp_type type, uint64_t len)
{
    t->type = type;
    t->bytes = mu_read_bytes(r, len);
}

static void read_count(struct mu_mp *t, enum mu_mp_type type, uint64_t count)
{
    t->type = type;
    t->count = (uint32_t)count;
}

/* The codes 0xc0 to 0xdf. */
static int read_coded(struct mu_reader *r, uint8_t code, struct mu_mp *t)
{
    uint64_t bits;
    size_t len;

    switch (code) {
    case 0xc0:
        t->type = MU_MP_NIL;
        return 0;
    case 0xc2:
    case 0xc3:
        t->type = MU_MP_BOOL;
        t->boolean = code == 0xc3;
        return 0;
    case 0xc4:
    case 0xc5:
    case 0xc6:
        read_bytes(r, t, MU_MP_BIN, read_big(r, (size_t)1 << (code - 0xc4)));
        return 0;
    case 0xc7:
    case 0xc8:
    case 0xc9:
        read_ext(r, t, read_big(r, (size_t)1 << (code - 0xc7)));
        return 0;
    case 0xca:
    case 0xcb:
        len = code == 0xca ? 4 : 8;
        set_float(t, read_big(r, len), len);
        return 0;
    case 0xcc:
    case 0xcd:
    case 0xce:
    case 0xcf:
        t->type = MU_MP_UINT;
        t->number = read_big(r, (size_t)1 << (code - 0xcc));
        return 0;
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
        len = (size_t)1 << (code - 0xd0);
        bits = read_big(r, len) << (64 - 8 * len);
        set_int(t, (int64_t)bits >> (64 - 8 * len));
        return 0;
    case 0xd4:
    case 0xd5:
    case 0xd6:
    case 0xd7:
    case 0xd8:
        read_ext(r, t, (uint64_t)1 << (code - 0xd4));
        return 0;
    case 0xd9:
    case 0xda:
    case 0xdb:
        read_bytes(r, t, MU_MP_STR, read_big(r, (size_t)1 << (code - 0xd9)));
        return 0;
    case 0xdc:
    case 0xdd:
        read_count(t, MU_MP_ARRAY, read_big(r, code == 0xdc ? 2 : 4));
        return 0;
    case 0xde:
    case 0xdf:
        read_count(t, MU_MP_MAP, read_big(r, code == 0xde ? 2 : 4));
        return 0;
    default:
        return MUSTER_EPROTO; /* 0xc1 is never used */
    }
}

int mu_mp_next(struct mu_span *in, struct mu_mp *ret)
{
    struct mu_reader r = mu_reader(*in);
    struct mu_mp t = {0};
    uint8_t code = mu_read_u8(&r);
    int err = 0;

    if (code <= 0x7f) {
        set_int(&t, code);
    } else if (code <= 0x8f) {
        read_count(&t, MU_MP_MAP, code & 0x0f);
    } else if (code <= 0x9f) {
        read_count(&t, MU_MP_ARRAY, code & 0x0f);
    } else if (code <= 0xbf) {
        read_bytes(&r, &t, MU_MP_STR, code & 0x1f);
    } else if (code >= 0xe0) {
        set_int(&t, (int8_t)code);
    } else {
        err = read_coded(&r, code, &t);
    }
    if (err != 0 || r.failed) {
        return MUSTER_EPROTO;
    }
    *in = r.rest;
    *ret = t;
    return 0;
}

int mu_mp_skip(struct mu_span *in, struct mu_span *ret_value)
{
    struct mu_span rest = *in;
    uint64_t left = 1; /* how many values must still come */

    while (left > 0) {
        struct mu_mp t;

        /* Each takes at least a byte, so a count that promises more is refused at once. */
        if (left > rest.len || mu_mp_next(&rest, &t) != 0) {
            return MUSTER_EPROTO;
        }
        left--;
        if (t.type == MU_MP_ARRAY) {
            left += t.count;
        } else if (t.type == MU_MP_MAP) {
            left += 2 * (uint64_t)t.count;
        }
    }
    *ret_value = mu_span(in->data, in->len - rest.len);
    *in = rest;
    return 0;
}

bool mu_mp_is_value(struct mu_span bytes)
{
    struct mu_span value;

    return mu_mp_skip(&bytes, &value) == 0 && bytes.len == 0;
}

bool mu_mp_double(const struct mu_mp *t, double *ret)
{
    if (t->type == MU_MP_FLOAT) {
        *ret = t->real;
    } else if (t->type == MU_MP_UINT) {
        *ret = (double)t->number;
    } else if (t->type == MU_MP_INT) {
        *ret = (double)t->negative;
    } else {
        return false;
    }
    return true;
}

/* --- writing ---------------------------------------------------------------------------------- */

void mu_mp_put_raw(struct mu_mp_out *out, struct mu_span encoded)
{
    if (out->err == 0) {
        out->err = mu_buf_append(out->buf, encoded);
    }
}

/* Writes a code, then a number of `len` bytes. */
static void put_coded(struct mu_mp_out *out, uint8_t code, uint64_t value, size_t len)
{
    uint8_t bytes[9] = {code};

    for (size_t i = 0; i < len; i++) {
        bytes[1 + i] = (uint8_t)(value >> (8 * (len - 1 - i)));
    }
    mu_mp_put_raw(out, mu_span(bytes, 1 + len));
}

static void put_byte(struct mu_mp_out *out, uint8_t byte)
{
    mu_mp_put_raw(out, mu_span(&byte, 1));
}

void mu_mp_put_nil(struct mu_mp_out *out)
{
    put_byte(out, 0xc0);
}

void mu_mp_put_bool(struct mu_mp_out *out, bool value)
{
    put_byte(out, value ? 0xc3 : 0xc2);
}

void mu_mp_put_uint(struct mu_mp_out *out, uint64_t value)
{
    if (value <= 0x7f) {
        put_byte(out, (uint8_t)value);
    } else if (value <= UINT8_MAX) {
        put_coded(out, 0xcc, value, 1);
    } else if (value <= UINT16_MAX) {
        put_coded(out, 0xcd, value, 2);
    } else if (value <= UINT32_MAX) {
        put_coded(out, 0xce, value, 4);
    } else {
        put_coded(out, 0xcf, value, 8);
    }
}

void mu_mp_put_int(struct mu_mp_out *out, int64_t value)
{
    if (value >= 0) {
        mu_mp_put_uint(out, (uint64_t)value);
    } else if (value >= -32) {
        put_byte(out, (uint8_t)value);
    } else if (value >= INT8_MIN) {
        put_coded(out, 0xd0, (uint64_t)value, 1);
    } else if (value >= INT16_MIN) {
        put_coded(out, 0xd1, (uint64_t)value, 2);
    } else if (value >= INT32_MIN) {
        put_coded(out, 0xd2, (uint64_t)value, 4);
    } else {
        put_coded(out, 0xd3, (uint64_t)value, 8);
    }
}

void mu_mp_put_double(struct mu_mp_out *out, double value)
{
    uint64_t bits;

    memcpy(&bits, &value, sizeof(bits));
    put_coded(out, 0xcb, bits, 8);
}

/* Writes a length in one, two or four bytes; their codes follow each other. */
static void put_length(struct mu_mp_out *out, uint8_t code, size_t len)
{
    if (len <= UINT8_MAX) {
        put_coded(out, code, len, 1);
    } else if (len <= UINT16_MAX) {
        put_coded(out, (uint8_t)(code + 1), len, 2);
    } else if (len <= UINT32_MAX) {
        put_coded(out, (uint8_t)(code + 2), len, 4);
    } else if (out->err == 0) {
        out->err = MUSTER_EINVAL;
    }
}

void mu_mp_put_str(struct mu_mp_out *out, struct mu_span text)
{
    if (text.len <= 31) {
        put_byte(out, (uint8_t)(0xa0 | text.len));
    } else {
        put_length(out, 0xd9, text.len);
    }
    mu_mp_put_raw(out, text);
}

void mu_mp_put_bin(struct mu_mp_out *out, struct mu_span bytes)
{
    put_length(out, 0xc4, bytes.len);
    mu_mp_put_raw(out, bytes);
}

static void put_count(struct mu_mp_out *out, uint8_t fixed, uint8_t code, size_t count)
{
    if (count <= 15) {
        put_byte(out, (uint8_t)(fixed | count));
    } else if (count <= UINT16_MAX) {
        put_coded(out, code, count, 2);
    } else if (count <= UINT32_MAX) {
        put_coded(out, (uint8_t)(code + 1), count, 4);
    } else if (out->err == 0) {
        out->err = MUSTER_EINVAL;
    }
}

void mu_mp_put_array(struct mu_mp_out *out, size_t count)
{
    put_count(out, 0x90, 0xdc, count);
}

void mu_mp_put_map(struct mu_mp_out *out, size_t count)
{
    put_count(out, 0x80, 0xde, count);
}

void mu_mp_put_ext(struct mu_mp_out *out, int8_t ext, size_t len)
{
    switch (len) {
    case 1:
        put_byte(out, 0xd4);
        break;
    case 2:
        put_byte(out, 0xd5);
        break;
    case 4:
        put_byte(out, 0xd6);
        break;
    case 8:
        put_byte(out, 0xd7);
        break;
    case 16:
        put_byte(out, 0xd8);
        break;
    default:
        put_length(out, 0xc7, len);
        break;
    }
    put_byte(out, (uint8_t)ext);
}

size_t mu_mp_array_len(size_t count)
{
    return count <= 15 ? 1 : count <= UINT16_MAX ? 3 : 5;
}

size_t mu_mp_bin_len(size_t len)
{
    return len + (len <= UINT8_MAX ? 2 : len <= UINT16_MAX ? 3 : 5);
}

/*
 * MessagePack as hivemind's DHT uses it: a reader that takes one token at a time, and a writer that
 * has one form for each value. There is no tree, no memory and no recursion: an array or a map is a
 * token that says how many values follow, and a caller that skips a whole value counts them.
 *
 *     while (in.len != 0 && (err = mu_mp_next(&in, &t)) == 0) { t.type ... }
 *
 * Text (str) and bytes (bin) are kept apart. Two extensions mean something here: a tuple, whose
 * body is an array, and a dictionary of the DHT (codec/dht/dict.h); any other is only its body.
 *
 * The writer is canonical: the shortest form of every length and number, floats as float64. That
 * matters where bytes are compared or signed: a subkey is its encoding.
 */
#ifndef MU_MSGPACK_H
#define MU_MSGPACK_H

#include <stdbool.h>

#include "core/buf.h"
#include "core/span.h"

#define MU_MP_EXT_TUPLE 0x40
#define MU_MP_EXT_DICT  0x50

enum mu_mp_type {
    MU_MP_NIL = 1,
    MU_MP_BOOL,
    MU_MP_UINT,
    MU_MP_INT, /* below zero */
    MU_MP_FLOAT,
    MU_MP_STR,
    MU_MP_BIN,
    MU_MP_ARRAY,
    MU_MP_MAP,
    MU_MP_EXT,
};

struct mu_mp {
    enum mu_mp_type type;
    bool boolean;
    int8_t ext;
    uint32_t count;       /* ARRAY: values that follow; MAP: pairs of them */
    uint64_t number;      /* UINT */
    int64_t negative;     /* INT */
    double real;          /* FLOAT */
    struct mu_span bytes; /* STR, BIN, EXT; points into the input */
};

/** Takes the next token off `*in`. MUSTER_EPROTO: it is cut off, or is not MessagePack. */
int mu_mp_next(struct mu_span *in, struct mu_mp *ret);
/**
 * Takes a whole value off `*in`, with everything in it, and returns its encoding. The bodies of
 * extensions are not checked. MUSTER_EPROTO.
 */
int mu_mp_skip(struct mu_span *in, struct mu_span *ret_value);
/** Whether the bytes are one value and nothing else. */
bool mu_mp_is_value(struct mu_span bytes);
/** A number as a double. False: it is not a number. */
bool mu_mp_double(const struct mu_mp *t, double *ret);

/*
 * Writing. As with mu_pb_out, the first error (MUSTER_ELIMIT, MUSTER_ENOMEM; MUSTER_EINVAL for a
 * value that is too long for the format) sticks.
 */
struct mu_mp_out {
    struct mu_buf *buf;
    int err;
};

static inline struct mu_mp_out mu_mp_out(struct mu_buf *buf)
{
    return (struct mu_mp_out){buf, 0};
}

void mu_mp_put_nil(struct mu_mp_out *out);
void mu_mp_put_bool(struct mu_mp_out *out, bool value);
void mu_mp_put_uint(struct mu_mp_out *out, uint64_t value);
void mu_mp_put_int(struct mu_mp_out *out, int64_t value);
void mu_mp_put_double(struct mu_mp_out *out, double value);
void mu_mp_put_str(struct mu_mp_out *out, struct mu_span text);
void mu_mp_put_bin(struct mu_mp_out *out, struct mu_span bytes);
/** Begins an array: `count` values follow. */
void mu_mp_put_array(struct mu_mp_out *out, size_t count);
/** Begins a map: `count` pairs of values follow. */
void mu_mp_put_map(struct mu_mp_out *out, size_t count);
/** Begins an extension: its `len` bytes follow. */
void mu_mp_put_ext(struct mu_mp_out *out, int8_t ext, size_t len);
/** Writes an encoding as it is. */
void mu_mp_put_raw(struct mu_mp_out *out, struct mu_span encoded);

/** How long the head of an array, or of bytes, is, to compute lengths beforehand. */
size_t mu_mp_array_len(size_t count);
size_t mu_mp_bin_len(size_t len);
#define MU_MP_DOUBLE_LEN 9

#endif

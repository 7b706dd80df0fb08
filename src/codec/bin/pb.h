/*
 * Protocol buffers as far as the peer protocols use them: a reader that walks the fields of one
 * message, and a writer. A dozen small messages are not worth generated code with memory management
 * of its own: a decoder here is a loop with a switch over field numbers, points into its input, and
 * takes no memory.
 *
 *     while ((err = mu_pb_next(&in, &field)) == 1) {
 *         switch (field.number) { case 1: id = field.bytes; break; ... }
 *     }
 *
 * Unknown fields are skipped by not being asked for; groups, which are no longer used, are refused.
 * If a field that must occur once is repeated, the last counts.
 */
#ifndef MU_PB_H
#define MU_PB_H

#include "core/buf.h"
#include "core/span.h"

enum mu_pb_type {
    MU_PB_VARINT = 0,
    MU_PB_FIXED64 = 1,
    MU_PB_BYTES = 2,
    MU_PB_FIXED32 = 5,
};

struct mu_pb_field {
    uint32_t number;
    enum mu_pb_type type;
    uint64_t value;       /* VARINT, FIXED64, FIXED32 */
    struct mu_span bytes; /* BYTES; points into the input */
};

/** Takes the next field off `*in`. 1: there is one; 0: there are no more; MUSTER_EPROTO. */
int mu_pb_next(struct mu_span *in, struct mu_pb_field *ret_field);
/** For packed numbers: takes one varint off. 1, 0 or MUSTER_EPROTO. */
int mu_pb_next_varint(struct mu_span *in, uint64_t *ret_value);
/** A double is a FIXED64. */
double mu_pb_double(const struct mu_pb_field *field);

/*
 * Writing. The first error (MUSTER_ELIMIT, MUSTER_ENOMEM) sticks, so a message is written straight
 * down and checked once at the end. Every field is written, zero values too: the caller decides
 * whether an empty field is left out.
 */
struct mu_pb_out {
    struct mu_buf *buf;
    int err;
};

static inline struct mu_pb_out mu_pb_out(struct mu_buf *buf)
{
    return (struct mu_pb_out){buf, 0};
}

void mu_pb_put_varint(struct mu_pb_out *out, uint32_t number, uint64_t value);
void mu_pb_put_bytes(struct mu_pb_out *out, uint32_t number, struct mu_span bytes);
void mu_pb_put_double(struct mu_pb_out *out, uint32_t number, double value);
/** Writes the head of a field whose `len` bytes follow: for messages inside messages. */
void mu_pb_put_head(struct mu_pb_out *out, uint32_t number, size_t len);
/** Writes bytes without a head. */
void mu_pb_put_raw(struct mu_pb_out *out, struct mu_span bytes);
/** How long a field of `len` bytes is, with its head. */
size_t mu_pb_bytes_len(uint32_t number, size_t len);

#endif

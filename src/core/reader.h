/*
 * A cursor over bytes from outside. Every getter checks; after the first short read all of them
 * return zeroes, so a decoder reads its fields straight down and asks once at the end whether it
 * was all there. No decoder does pointer arithmetic of its own.
 */
#ifndef MU_READER_H
#define MU_READER_H

#include "core/buf.h"
#include "core/span.h"

struct mu_reader {
    struct mu_span rest;
    bool failed;
};

static inline struct mu_reader mu_reader(struct mu_span s)
{
    return (struct mu_reader){.rest = s};
}

/** The next `n` bytes, borrowed from the input; empty after a failure. */
static inline struct mu_span mu_read_bytes(struct mu_reader *r, uint64_t n)
{
    struct mu_span out = {r->rest.data, (size_t)n};

    if (r->failed || n > r->rest.len) {
        r->failed = true;
        return (struct mu_span){0};
    }
    r->rest = mu_span_skip(r->rest, (size_t)n);
    return out;
}

static inline uint8_t mu_read_u8(struct mu_reader *r)
{
    struct mu_span s = mu_read_bytes(r, 1);

    return r->failed ? 0 : s.data[0];
}

static inline uint16_t mu_read_u16(struct mu_reader *r)
{
    struct mu_span s = mu_read_bytes(r, 2);

    return r->failed ? 0 : mu_get_u16(s.data);
}

static inline uint32_t mu_read_u32(struct mu_reader *r)
{
    struct mu_span s = mu_read_bytes(r, 4);

    return r->failed ? 0 : mu_get_u32(s.data);
}

static inline uint64_t mu_read_u64(struct mu_reader *r)
{
    struct mu_span s = mu_read_bytes(r, 8);

    return r->failed ? 0 : mu_get_u64(s.data);
}

/** Bytes that follow a u32 length. */
static inline struct mu_span mu_read_span32(struct mu_reader *r)
{
    return mu_read_bytes(r, mu_read_u32(r));
}

/** Whether everything was there and nothing is left over. */
static inline bool mu_reader_done(const struct mu_reader *r)
{
    return !r->failed && r->rest.len == 0;
}

#endif

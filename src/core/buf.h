/*
 * A growable byte buffer with a ceiling: bytes are appended at the back and consumed from the
 * front. There is no buffer without a maximum. An empty buffer holds no memory once mu_buf_trim()
 * ran.
 *
 * Integers are little-endian, the order of every wire we speak.
 */
#ifndef MU_BUF_H
#define MU_BUF_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "core/span.h"

struct mu_buf {
    uint8_t *data;
    size_t head; /* first byte that is held */
    size_t len;  /* bytes held */
    size_t cap;
    size_t max; /* most bytes it may hold */
};

void mu_buf_init(struct mu_buf *b, size_t max);
void mu_buf_fini(struct mu_buf *b);

/** Makes room for `n` more bytes. MUSTER_ELIMIT over the maximum, MUSTER_ENOMEM; nothing changed.
 */
int mu_buf_reserve(struct mu_buf *b, size_t n);
/** Appends a copy. Errors as mu_buf_reserve(). */
int mu_buf_append(struct mu_buf *b, struct mu_span s);
/** Drops the first `n` bytes; `n` is at most the length. */
void mu_buf_consume(struct mu_buf *b, size_t n);
/** Drops everything and keeps the memory. */
void mu_buf_reset(struct mu_buf *b);
/** Gives the memory back if the buffer is empty and holds more than `keep` bytes of room. */
void mu_buf_trim(struct mu_buf *b, size_t keep);

/** The bytes that are held; valid until the next call that changes the buffer. */
static inline struct mu_span mu_buf_span(const struct mu_buf *b)
{
    return (struct mu_span){b->data == NULL ? NULL : b->data + b->head, b->len};
}

/*
 * The writers below append to room that mu_buf_reserve() has made; they cannot fail and do not
 * check (a reply is sized first, then written).
 */
static inline uint8_t *mu_buf_grow(struct mu_buf *b, size_t n)
{
    uint8_t *at = b->data + b->head + b->len;

    b->len += n;
    return at;
}

static inline void mu_put_u16(uint8_t *p, uint16_t v)
{
    p[0] = (uint8_t)v;
    p[1] = (uint8_t)(v >> 8);
}

static inline void mu_put_u32(uint8_t *p, uint32_t v)
{
    for (int i = 0; i < 4; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

static inline void mu_put_u64(uint8_t *p, uint64_t v)
{
    for (int i = 0; i < 8; i++) {
        p[i] = (uint8_t)(v >> (8 * i));
    }
}

static inline uint16_t mu_get_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t mu_get_u32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static inline uint64_t mu_get_u64(const uint8_t *p)
{
    return (uint64_t)mu_get_u32(p) | (uint64_t)mu_get_u32(p + 4) << 32;
}

static inline void mu_buf_put_u8(struct mu_buf *b, uint8_t v)
{
    *mu_buf_grow(b, 1) = v;
}

static inline void mu_buf_put_u16(struct mu_buf *b, uint16_t v)
{
    mu_put_u16(mu_buf_grow(b, 2), v);
}

static inline void mu_buf_put_u32(struct mu_buf *b, uint32_t v)
{
    mu_put_u32(mu_buf_grow(b, 4), v);
}

static inline void mu_buf_put_u64(struct mu_buf *b, uint64_t v)
{
    mu_put_u64(mu_buf_grow(b, 8), v);
}

static inline void mu_buf_put(struct mu_buf *b, struct mu_span s)
{
    if (s.len != 0) {
        memcpy(mu_buf_grow(b, s.len), s.data, s.len);
    }
}

#endif

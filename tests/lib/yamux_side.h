/* One end of yamux for unit tests: bytes in hex, and what must come of them. */
#ifndef MU_TEST_YAMUX_SIDE_H
#define MU_TEST_YAMUX_SIDE_H

#include "unit.h"

#include <muster/error.h>

#include "hex.h"
#include "proto/peer/yamux.h"

static inline mu_mono_t at_ms(uint64_t ms)
{
    return mu_mono_add_ms((mu_mono_t){MU_NS_PER_S}, ms);
}

static inline void start(struct mu_yamux *y, enum mu_yamux_role role)
{
    struct mu_yamux_config config = mu_yamux_config_defaults();

    config.role = role;
    config.seed = 5;
    config.keep_alive_ms = 0;
    assert_int_equal(mu_yamux_init(y, &config, at_ms(0)), 0);
}

/* What it lends lives until the next call. */
static inline int feed(struct mu_yamux *y, const char *hex)
{
    static uint8_t bytes[512];
    size_t len = hex_decode(bytes, sizeof(bytes), hex);
    size_t used;

    return mu_yamux_recv(y, at_ms(0), mu_span(bytes, len), &used);
}

static inline void expect_output(struct mu_yamux *y, const char *hex)
{
    uint8_t bytes[512];
    size_t len = hex_decode(bytes, sizeof(bytes), hex);
    struct mu_span out = mu_yamux_output(y);

    assert_int_equal(out.len, len);
    if (len != 0) {
        assert_memory_equal(out.data, bytes, len);
    }
    mu_yamux_sent(y, len);
}

static inline struct mu_yamux_event expect_event(struct mu_yamux *y, enum mu_yamux_event_type type,
                                                 uint32_t id)
{
    struct mu_yamux_event e = {0};

    assert_true(mu_yamux_next_event(y, &e));
    assert_int_equal(e.type, type);
    assert_int_equal(e.id, id);
    return e;
}

static inline void expect_no_event(struct mu_yamux *y)
{
    struct mu_yamux_event e;

    assert_false(mu_yamux_next_event(y, &e));
}

static inline void expect_write(struct mu_yamux *y, uint32_t id, struct mu_span data, size_t want)
{
    size_t taken = SIZE_MAX;

    assert_int_equal(mu_yamux_write(y, id, data, &taken), 0);
    assert_int_equal(taken, want);
}

/* A frame of zeroes with a body of `len`. */
static inline size_t put_data(uint8_t *to, uint16_t flags, uint32_t id, uint32_t len)
{
    const uint8_t head[MU_YAMUX_HEADER] = {
        0,
        0,
        (uint8_t)(flags >> 8),
        (uint8_t)flags,
        (uint8_t)(id >> 24),
        (uint8_t)(id >> 16),
        (uint8_t)(id >> 8),
        (uint8_t)id,
        (uint8_t)(len >> 24),
        (uint8_t)(len >> 16),
        (uint8_t)(len >> 8),
        (uint8_t)len,
    };

    memcpy(to, head, sizeof(head));
    memset(to + sizeof(head), 0, len);
    return sizeof(head) + len;
}

#endif

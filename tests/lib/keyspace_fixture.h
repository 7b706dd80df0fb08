/* A keyspace and short words for it, for tests that read as sequences of operations. */
#ifndef MU_KEYSPACE_FIXTURE_H
#define MU_KEYSPACE_FIXTURE_H

#include "unit.h"

#include "core/alloc.h"
#include "proto/store/keyspace.h"

static struct mu_keyspace ks;

static inline struct mu_ks_config fixture_config(void)
{
    struct mu_ks_config config = mu_ks_config_defaults();

    config.seed = 1;
    return config;
}

/** A cmocka setup: a keyspace with the default limits. */
static inline int setup_keyspace(void **state)
{
    struct mu_ks_config config = fixture_config();

    (void)state;
    return mu_ks_init(&ks, &config);
}

/** A cmocka setup: one with a journal. */
static inline int setup_journaled(void **state)
{
    struct mu_ks_config config = fixture_config();

    (void)state;
    config.journal = true;
    return mu_ks_init(&ks, &config);
}

/** A cmocka teardown. */
static inline int teardown_keyspace(void **state)
{
    (void)state;
    mu_ks_fini(&ks);
    return 0;
}

static inline void set(const char *key, const char *value)
{
    assert_int_equal(mu_ks_set(&ks, mu_span_str(key), mu_span_str(value), 0), 0);
}

static inline void set_leased(const char *key, const char *value, uint64_t lease)
{
    assert_int_equal(mu_ks_set(&ks, mu_span_str(key), mu_span_str(value), lease), 0);
}

static inline int64_t add(const char *key, int64_t delta)
{
    int64_t sum = 0;

    assert_int_equal(mu_ks_add(&ks, mu_span_str(key), delta, 0, &sum), 0);
    return sum;
}

static inline size_t append(const char *key, const char *value)
{
    size_t len = 0;

    assert_int_equal(mu_ks_append(&ks, mu_span_str(key), mu_span_str(value), 0, &len), 0);
    return len;
}

static inline bool compare_set(const char *key, const char *expected, const char *desired,
                               const char *reply)
{
    struct mu_span value;
    bool written;

    assert_int_equal(mu_ks_compare_set(&ks, mu_span_str(key), mu_span_str(expected),
                                       mu_span_str(desired), 0, &value, &written),
                     0);
    assert_span_text(value, reply);
    return written;
}

static inline bool del(const char *key)
{
    bool removed;

    assert_int_equal(mu_ks_delete(&ks, mu_span_str(key), &removed), 0);
    return removed;
}

static inline size_t push(const char *key, const char *value)
{
    size_t len = 0;

    assert_int_equal(mu_ks_queue_push(&ks, mu_span_str(key), mu_span_str(value), &len), 0);
    return len;
}

/** Pops and compares; returns the length before. */
static inline int64_t pop(const char *key, const char *expected)
{
    uint8_t *data;
    size_t len;
    int64_t len_before;

    assert_int_equal(mu_ks_queue_pop(&ks, mu_span_str(key), &data, &len, &len_before), 0);
    assert_span_text(mu_span(data, len), expected);
    mu_free(data);
    return len_before;
}

/** Fails unless the key holds that value; NULL: unless it holds none. */
static inline void assert_value(const char *key, const char *expected)
{
    struct mu_span value;

    if (expected == NULL) {
        assert_int_equal(mu_ks_get(&ks, mu_span_str(key), &value), MUSTER_ENOENT);
    } else {
        assert_int_equal(mu_ks_get(&ks, mu_span_str(key), &value), 0);
        assert_span_text(value, expected);
    }
}

#endif

/* States to share and to compare, for tests of the download. */
#ifndef STATE_RIG_H
#define STATE_RIG_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/muster.h>

/* A model of three tensors, the last one small, which lie here and there in memory. */
struct model {
    uint64_t shapes[3][2];
    struct muster_tensor tensors[3];
};

/** Fills memory with bytes that follow from the seed. */
static inline void model_fill(uint8_t *data, size_t len, uint64_t seed)
{
    uint64_t x = (seed + 1) * 0x9e3779b97f4a7c15u;

    for (size_t i = 0; i < len; i += sizeof(x)) {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        memcpy(data + i, &x, len - i < sizeof(x) ? len - i : sizeof(x));
    }
}

/** About `mib` MiB of elements, in pieces that chunks straddle. */
static inline void model_make(struct model *m, uint64_t mib, uint64_t seed)
{
    static const char *const names[] = {"embed.weight", "head.weight", "head.bias"};

    memset(m, 0, sizeof(*m));
    m->shapes[0][0] = mib * 100 + 3;
    m->shapes[0][1] = 1024;
    m->shapes[1][0] = mib * 150 + 1;
    m->shapes[1][1] = 1024;
    m->shapes[2][0] = 77;
    for (size_t i = 0; i < 3; i++) {
        struct muster_tensor *t = &m->tensors[i];

        t->name = names[i];
        t->dtype = i == 2 ? MUSTER_DTYPE_F64 : MUSTER_DTYPE_F32;
        t->rank = i == 2 ? 1 : 2;
        t->shape = m->shapes[i];
        t->data = malloc(muster_tensor_bytes(t));
        model_fill(t->data, muster_tensor_bytes(t), seed * 3 + i);
    }
}

static inline void model_free(struct model *m)
{
    for (size_t i = 0; i < 3; i++) {
        free(m->tensors[i].data);
    }
}

static inline uint64_t model_bytes(const struct model *m)
{
    uint64_t bytes = 0;

    for (size_t i = 0; i < 3; i++) {
        bytes += muster_tensor_bytes(&m->tensors[i]);
    }
    return bytes;
}

static inline void model_assert_same(const struct model *a, const struct model *b)
{
    for (size_t i = 0; i < 3; i++) {
        assert_memory_equal(a->tensors[i].data, b->tensors[i].data,
                            muster_tensor_bytes(&a->tensors[i]));
    }
}

static inline void copy_assert_same(const muster_state_copy *copy, const struct model *m)
{
    assert_int_equal(muster_state_copy_count(copy), 3);
    for (size_t i = 0; i < 3; i++) {
        struct muster_tensor t = muster_state_copy_tensor(copy, i);

        assert_string_equal(t.name, m->tensors[i].name);
        assert_int_equal(t.dtype, m->tensors[i].dtype);
        assert_int_equal(t.rank, m->tensors[i].rank);
        assert_memory_equal(t.shape, m->shapes[i], t.rank * sizeof(uint64_t));
        assert_memory_equal(t.data, m->tensors[i].data, muster_tensor_bytes(&t));
    }
}

/** A donor with one state. */
static inline muster_state *donor_open(muster_runtime *rt, const struct muster_state_config *config,
                                       const struct model *m, uint64_t epoch)
{
    struct muster_state_source source = {
        .prefix = "job",
        .epoch = epoch,
        .step = 7,
        .priority = (double)epoch,
        .metadata = {"\x81\xa2lr\xcb\x3f\x50\x62\x4d\xd2\xf1\xa9\xfc", 13},
        .tensors = m->tensors,
        .tensor_count = 3};
    muster_state *state;

    assert_int_equal(muster_state_open(rt, config, &state), 0);
    if (muster_state_share(state, &source) != 0) {
        fail_msg("%s", muster_errmsg());
    }
    return state;
}

#endif

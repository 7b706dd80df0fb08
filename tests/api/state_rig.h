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

/*
 * What a test has open. One that fails leaves it to its tear-down: a runtime that is freed with
 * something open ends the program, and with it the message of the test that failed.
 */
enum rig_kind {
    RIG_LOADING = 0,
    RIG_COPY,
    RIG_STATE,
    RIG_KINDS,
};

#define RIG_OPEN_MAX 64

static struct {
    enum rig_kind kind;
    void *what;
} rig_open[RIG_OPEN_MAX];

static inline int rig_opened(enum rig_kind kind, int err, void *what)
{
    for (size_t i = 0; err == 0 && what != NULL && i < RIG_OPEN_MAX; i++) {
        if (rig_open[i].what == NULL) {
            rig_open[i].kind = kind;
            rig_open[i].what = what;
            break;
        }
    }
    return err;
}

static inline void *rig_closed(void *what)
{
    for (size_t i = 0; i < RIG_OPEN_MAX; i++) {
        if (rig_open[i].what == what) {
            rig_open[i].what = NULL;
        }
    }
    return what;
}

static inline int rig_state_open(muster_runtime *rt, const struct muster_state_config *config,
                                 muster_state **ret)
{
    int err = muster_state_open(rt, config, ret);

    return rig_opened(RIG_STATE, err, err == 0 ? *ret : NULL);
}

static inline int rig_load_begin(muster_runtime *rt, const struct muster_state_request *request,
                                 muster_state_loading **ret)
{
    int err = muster_state_load_begin(rt, request, ret);

    return rig_opened(RIG_LOADING, err, err == 0 ? *ret : NULL);
}

static inline int rig_load_end(muster_state_loading *loading, muster_state_copy **ret)
{
    int err = muster_state_load_end(rig_closed(loading), ret);

    return rig_opened(RIG_COPY, err, err == 0 && ret != NULL ? *ret : NULL);
}

static inline int rig_load(muster_runtime *rt, const struct muster_state_request *request,
                           muster_state_copy **ret)
{
    int err = muster_state_load(rt, request, ret);

    return rig_opened(RIG_COPY, err, err == 0 && ret != NULL ? *ret : NULL);
}

static inline void rig_copy_free(muster_state_copy *copy)
{
    muster_state_copy_free(rig_closed(copy));
}

static inline void rig_state_close(muster_state *state)
{
    muster_state_close(rig_closed(state));
}

/** Before the runtimes are freed. */
static inline void rig_close_all(void)
{
    for (int kind = RIG_LOADING; kind < RIG_KINDS; kind++) {
        for (size_t i = 0; i < RIG_OPEN_MAX; i++) {
            void *what = rig_open[i].what;

            if (what == NULL || (int)rig_open[i].kind != kind) {
                continue;
            }
            if (kind == RIG_LOADING) {
                muster_state_load_cancel(what);
                (void)rig_load_end(what, NULL);
            } else if (kind == RIG_COPY) {
                rig_copy_free(what);
            } else {
                rig_state_close(what);
            }
        }
    }
}

#define muster_state_open       rig_state_open
#define muster_state_close      rig_state_close
#define muster_state_load       rig_load
#define muster_state_load_begin rig_load_begin
#define muster_state_load_end   rig_load_end
#define muster_state_copy_free  rig_copy_free

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
        .size = sizeof(struct muster_state_source),
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

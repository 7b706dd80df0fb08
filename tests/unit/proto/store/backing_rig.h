/* The machine of proto/store/backing.h with answers made by hand, for its unit tests. */
#ifndef MU_TEST_BACKED_RIG_H
#define MU_TEST_BACKED_RIG_H

#include <stdio.h>
#include <string.h>

#include "codec/text/base64.h"
#include "proto/store/backing.h"
#include "unit.h"

#define LEASE 0x77

/* A machine, and answers made by hand. */
struct rig {
    struct mu_backing m;
    int64_t revision;
    struct mu_etcd_kv kvs[128];
    struct mu_etcd_result results[128];
    struct mu_etcd_reply reply;
};

static inline void set_up(struct rig *r)
{
    struct mu_backing_config config = mu_backing_config_defaults();

    *r = (struct rig){.revision = 100};
    config.prefix = MU_SPAN_LIT("/p");
    assert_int_equal(mu_backing_init(&r->m, &config), 0);
    mu_backing_set_session(&r->m, LEASE);
    mu_backing_set_watching(&r->m, true);
}

struct op {
    struct mu_backing_op base;
    struct mu_span keys[2];
    struct mu_span values[2];
};

static inline struct op *make(struct op *op, enum mu_store_verb verb, const char *key,
                              const char *value)
{
    *op = (struct op){.keys = {mu_span_str(key)}};
    op->base.request = (struct mu_store_request){.verb = verb, .keys = op->keys, .key_count = 1};
    if (value != NULL) {
        op->values[0] = mu_span_str(value);
        op->base.request.values = op->values;
        op->base.request.value_count = 1;
    }
    return op;
}

static inline void submit(struct rig *r, struct mu_backing_client *c, struct op *op)
{
    mu_backing_submit(&r->m, c, &op->base);
}

static inline struct op *make_add(struct op *op, const char *key, int64_t delta)
{
    make(op, MU_STORE_ADD, key, NULL);
    op->base.request.number = delta;
    return op;
}

static inline struct op *make_get(struct op *op, const char *key)
{
    make(op, MU_STORE_GET, key, NULL);
    op->base.request.flags = MU_STORE_NOWAIT;
    return op;
}

/* Whether a transaction's text has this key or value in it, in base64. */
static inline size_t mentions(const struct mu_backing_txn *t, const char *text)
{
    struct mu_buf coded;
    struct mu_span body = mu_backing_txn_body(t);
    size_t count = 0;

    mu_buf_init(&coded, 4096);
    assert_int_equal(mu_buf_append(&coded, MU_SPAN_LIT("\"")), 0);
    assert_int_equal(mu_base64_encode(&coded, mu_span_str(text)), 0);
    assert_int_equal(mu_buf_append(&coded, MU_SPAN_LIT("\"")), 0);
    for (size_t i = 0; i + coded.len <= body.len; i++) {
        count += memcmp(body.data + i, mu_buf_span(&coded).data, coded.len) == 0;
    }
    mu_buf_fini(&coded);
    return count;
}

static inline struct mu_backing_txn *next(struct rig *r)
{
    struct mu_backing_txn *t = mu_backing_next_txn(&r->m);

    assert_non_null(t);
    return t;
}

/* It succeeded, at the next revision if it writes. */
static inline void succeed(struct rig *r, struct mu_backing_txn *t)
{
    r->revision += mu_backing_txn_writes(t) ? 1 : 0;
    memset(r->results, 0, sizeof(r->results));
    r->reply = (struct mu_etcd_reply){
        .succeeded = true, .revision = r->revision, .results = r->results, .result_count = 128};
    mu_backing_txn_done(&r->m, t, 0, &r->reply, false, NULL);
}

/* It did not: the slot is as it was at `slot`, and the one guarded key holds that. */
static inline void refuse(struct rig *r, struct mu_backing_txn *t, int64_t slot,
                          const char *slot_value, int64_t mod, const char *value, bool retried)
{
    memset(r->results, 0, sizeof(r->results));
    r->reply =
        (struct mu_etcd_reply){.revision = r->revision, .results = r->results, .result_count = 2};
    if (slot != 0) {
        r->kvs[0] = (struct mu_etcd_kv){.mod_revision = slot, .value = mu_span_str(slot_value)};
        r->results[0] = (struct mu_etcd_result){.kvs = &r->kvs[0], .kv_count = 1, .count = 1};
    }
    if (mod != 0) {
        r->kvs[1] = (struct mu_etcd_kv){.mod_revision = mod, .value = mu_span_str(value)};
        r->results[1] = (struct mu_etcd_result){.kvs = &r->kvs[1], .kv_count = 1, .count = 1};
    }
    mu_backing_txn_done(&r->m, t, 0, &r->reply, retried, NULL);
}

static inline void tell_put(struct rig *r, const char *name, const char *value, int64_t revision)
{
    struct mu_etcd_kv kv = {.key = mu_span_str(name),
                            .value = mu_span_str(value),
                            .mod_revision = revision,
                            .create_revision = revision};

    assert_int_equal(mu_backing_changed(&r->m, &kv, false, true, false, revision), 0);
}

static inline void assert_done(struct rig *r, struct op *op, int status)
{
    struct mu_backing_op *got = mu_backing_next_done(&r->m);

    assert_ptr_equal(got, &op->base);
    assert_int_equal(got->status, status);
}

static inline void drop(struct op *op)
{
    mu_backing_op_fini(&op->base);
}

static inline void tear_down(struct rig *r)
{
    assert_null(mu_backing_next_done(&r->m));
    mu_backing_fini(&r->m);
}

/* However far these have come, they are given back, and nothing is left. */
static inline void stop_all(struct rig *r, struct op *ops, size_t count)
{
    mu_backing_stop(&r->m);
    while (mu_backing_next_done(&r->m) != NULL) {
    }
    for (size_t i = 0; i < count; i++) {
        assert_true(mu_backing_cancel(&r->m, &ops[i].base));
        drop(&ops[i]);
    }
    assert_int_equal(r->m.op_count, 0);
    tear_down(r);
}

#endif

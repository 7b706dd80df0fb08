/* Replies of both of etcd's APIs: whatever was decoded lies within the text or the reply. */
#include "codec/etcd/json.h"
#include "codec/etcd/v2.h"
#include "core/assert.h"

static uint64_t sum;

static void touch(struct mu_span s)
{
    for (size_t i = 0; i < s.len; i++) {
        sum += s.data[i];
    }
}

static void touch_kv(const struct mu_etcd_kv *kv)
{
    touch(kv->key);
    touch(kv->value);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_etcd_reply r;
    struct mu_etcd2_reply r2;

    mu_etcd_reply_init(&r);
    for (int twice = 0; twice < 2; twice++) {
        if (mu_etcd_reply_decode(&r, mu_span(data, size)) == 0) {
            touch(r.message);
            touch(r.token);
            touch(r.version);
            for (size_t i = 0; i < r.result_count; i++) {
                for (size_t k = 0; k < r.results[i].kv_count; k++) {
                    touch_kv(&r.results[i].kvs[k]);
                }
            }
            for (size_t i = 0; i < r.event_count; i++) {
                touch_kv(&r.events[i].kv);
                touch_kv(&r.events[i].prev);
            }
        }
    }
    mu_etcd_reply_fini(&r);
    mu_etcd2_reply_init(&r2);
    if (mu_etcd2_reply_decode(&r2, mu_span(data, size)) == 0) {
        touch(r2.message);
        touch(r2.cause);
        touch(r2.action);
        for (size_t i = 0; i < r2.node_count; i++) {
            touch(r2.nodes[i].key);
            touch(r2.nodes[i].value);
        }
    }
    mu_etcd2_reply_fini(&r2);
    return 0;
}

/*
 * PyTorch's protocol, server side: a fresh keyspace and four connections. The input is a list of
 * steps: one byte says which connection and what, one how many bytes, then those bytes.
 */
#include "codec/store/torch_wire.h"
#include "core/assert.h"
#include "proto/store/torch_server.h"

#define CONNS 4

struct conn {
    struct mu_torch_server t;
    int err;
};

struct world {
    struct mu_torch_limits limits;
    struct mu_keyspace ks;
    struct conn conns[CONNS];
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(struct world *w, struct conn *c)
{
    MU_ASSERT(c->t.in.len <= w->limits.request_bytes_max);
    MU_ASSERT(c->t.out.len <= w->limits.output_bytes_max + w->limits.output_bytes_high);
    MU_ASSERT(c->t.watch_count <= w->limits.watches_max);
    if (c->err != 0) {
        size_t used;

        MU_ASSERT(c->t.poison == c->err && mu_torch_server_errmsg(&c->t)[0] != '\0');
        MU_ASSERT(mu_torch_server_recv(&c->t, &w->ks, mu_span("\1", 1), &used) == c->err);
    }
}

static void pump(struct world *w)
{
    struct mu_ks_wait *wait;
    struct mu_ks_watch *watch;
    struct mu_change change;

    while ((wait = mu_ks_next_ready(&w->ks)) != NULL) {
        struct conn *c = wait->owner;
        int err = mu_torch_server_wake(mu_torch_server_of_wait(wait), wait);

        c->err = c->err != 0 ? c->err : err;
    }
    while (mu_ks_next_change(&w->ks, &watch, &change)) {
        struct conn *c = watch->owner;
        int err = mu_torch_server_changed(&c->t, watch, &change);

        c->err = c->err != 0 ? c->err : err;
    }
}

static void open_conn(struct world *w, size_t i, bool greet)
{
    uint8_t hello[MU_TORCH_VALIDATE_LEN] = {0};
    size_t used;

    w->conns[i].err = 0;
    mu_torch_server_init(&w->conns[i].t, &w->limits, &w->conns[i]);
    if (greet) {
        mu_put_u32(hello + 1, MU_TORCH_MAGIC);
        (void)mu_torch_server_recv(&w->conns[i].t, &w->ks, mu_span(hello, sizeof(hello)), &used);
    }
}

static void feed(struct world *w, struct conn *c, struct mu_span in)
{
    while (in.len != 0 && c->err == 0) {
        size_t used = 0;

        c->err = mu_torch_server_recv(&c->t, &w->ks, in, &used);
        pump(w);
        MU_ASSERT(used <= in.len);
        if (c->err == 0 && used < in.len) {
            MU_ASSERT(c->t.out.len > w->limits.output_bytes_high);
            mu_torch_server_sent(&c->t, mu_torch_server_output_len(&c->t));
        }
        in = mu_span_skip(in, used);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_ks_config config = mu_ks_config_defaults();
    struct world w;

    config.value_bytes_max = 512;
    config.memory_bytes_max = 64 * 1024;
    w.limits = (struct mu_torch_limits){
        .key_bytes_max = 64,
        .value_bytes_max = 256,
        .keys_max = 40,
        .request_bytes_max = 1024,
        .output_bytes_high = 200,
        .output_bytes_max = 2000,
        .watches_max = 3,
    };
    if (size == 0 || mu_ks_init(&w.ks, &config) != 0) {
        return 0;
    }
    for (size_t i = 0; i < CONNS; i++) {
        open_conn(&w, i, (data[0] >> i & 1) != 0);
    }
    for (size_t at = 1; at + 2 <= size;) {
        size_t i = data[at] % CONNS;
        size_t len = data[at + 1];
        unsigned what = data[at] >> 2;

        at += 2;
        len = len < size - at ? len : size - at;
        if (what == 1 || what == 2) {
            mu_torch_server_fini(&w.conns[i].t, &w.ks);
            open_conn(&w, i, what == 1);
        } else if (what == 3) {
            mu_torch_server_sent(&w.conns[i].t, mu_torch_server_output_len(&w.conns[i].t) / 2);
        }
        feed(&w, &w.conns[i], mu_span(data + at, len));
        check(&w, &w.conns[i]);
        at += len;
    }
    for (size_t i = 0; i < CONNS; i++) {
        mu_torch_server_fini(&w.conns[i].t, &w.ks);
    }
    MU_ASSERT(w.ks.wait_count == 0 && w.ks.watch_count == 0);
    mu_ks_fini(&w.ks);
    return 0;
}

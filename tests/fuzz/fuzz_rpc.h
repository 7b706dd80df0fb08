/*
 * What the fuzz targets of both ends of the native wire share. The input is a list of steps, each
 * a byte that says what happens, a byte with a number, and, where bytes arrive, as many bytes:
 *
 *     0  bytes from the peer          4  the peer's calls that are being served get an item
 *     1  time passes: number^2 ms     5  the oldest of them is answered
 *     2  the link is lost             6  we call; an odd number: with an item and an end
 *     3  a link is made               7  the oldest call of ours is cancelled
 *
 * Whatever arrives, the machine must stay within its memory, answer the same error for ever after
 * a violation, and end every call of ours exactly once.
 */
#ifndef MU_FUZZ_RPC_H
#define MU_FUZZ_RPC_H

#include <stdlib.h>

#include "core/assert.h"
#include "proto/rpc/rpc.h"

#define FUZZ_CALLS 64

struct fuzz_rpc {
    struct mu_rpc rpc;
    struct mu_rpc_greet greet; /* server */
    bool greeted;
    struct mu_now now;
    uint64_t in[FUZZ_CALLS]; /* ids of calls that are being served */
    size_t in_count;
    uint64_t out[FUZZ_CALLS]; /* ids of our calls that have not ended */
    size_t out_count;
};

static inline void fuzz_remove(uint64_t *ids, size_t *count, size_t at)
{
    MU_ASSERT(at < *count);
    for (size_t i = at + 1; i < *count; i++) {
        ids[i - 1] = ids[i];
    }
    (*count)--;
}

static inline void fuzz_ended(struct fuzz_rpc *f, uint64_t id)
{
    size_t at = 0;

    while (at < f->out_count && f->out[at] != id) {
        at++;
    }
    fuzz_remove(f->out, &f->out_count, at); /* asserts that it was out: no second reply */
}

static inline void fuzz_events(struct fuzz_rpc *f)
{
    struct mu_rpc_event ev;

    while (mu_rpc_next_event(&f->rpc, &ev)) {
        if (ev.payload.len != 0) {
            /* Reads the ends of what is lent, for a sanitizer to see. */
            volatile uint8_t seen =
                (uint8_t)(ev.payload.data[0] + ev.payload.data[ev.payload.len - 1]);

            (void)seen;
        }
        if (ev.type == MU_RPC_EV_CALL && f->in_count < FUZZ_CALLS && ev.payload.len % 2 != 0) {
            f->in[f->in_count++] = ev.id;
        } else if (ev.type == MU_RPC_EV_CALL) {
            (void)mu_rpc_reply(&f->rpc, f->now, ev.id, 0, ev.payload);
        } else if (ev.type == MU_RPC_EV_ITEM && ev.payload.len % 3 != 0) {
            (void)mu_rpc_consumed(&f->rpc, f->now, ev.id, ev.payload.len);
        } else if (ev.type == MU_RPC_EV_REPLY) {
            fuzz_ended(f, ev.id);
        }
    }
}

/* The socket takes what there is; every other time only a part of it. */
static inline void fuzz_drain(struct fuzz_rpc *f, size_t most)
{
    for (int i = 0; i < 64; i++) {
        size_t n = mu_rpc_output(&f->rpc).len;

        if (n == 0) {
            return;
        }
        mu_rpc_sent(&f->rpc, n < most ? n : most);
        fuzz_events(f);
    }
}

static inline void fuzz_link(struct fuzz_rpc *f)
{
    mu_rpc_unlinked(&f->rpc, f->now);
    mu_buf_reset(&f->greet.in);
    f->greeted = false;
    if (f->rpc.config.role == MU_RPC_CLIENT) {
        (void)mu_rpc_dialled(&f->rpc, f->now);
        fuzz_drain(f, SIZE_MAX);
    }
}

static inline void fuzz_feed(struct fuzz_rpc *f, struct mu_span in)
{
    size_t used = 0;

    if (f->rpc.config.role == MU_RPC_SERVER && !f->greeted) {
        struct mu_rpc_hello hello;
        int err = mu_rpc_greet_recv(&f->greet, in, &used, &hello);

        if (err != 0) {
            return;
        }
        f->greeted = true;
        (void)mu_rpc_accepted(&f->rpc, f->now, &hello);
        in = mu_span_skip(in, used);
        fuzz_drain(f, SIZE_MAX);
    }
    while (in.len != 0) {
        int err = mu_rpc_recv(&f->rpc, f->now, in, &used);

        if (err != 0) {
            MU_ASSERT(mu_rpc_recv(&f->rpc, f->now, in, &used) == err);
            MU_ASSERT(mu_rpc_errmsg(&f->rpc)[0] != '\0');
            break;
        }
        in = mu_span_skip(in, used);
        fuzz_events(f);
    }
    fuzz_events(f);
}

static inline void fuzz_call(struct fuzz_rpc *f, uint8_t number)
{
    uint64_t id;

    if (f->out_count == FUZZ_CALLS ||
        mu_rpc_call(&f->rpc, f->now, MU_SPAN_LIT("m"), mu_span("payload", number % 8), number, 0,
                    &id) != 0) {
        return;
    }
    f->out[f->out_count++] = id;
    if (number % 2 != 0) {
        (void)mu_rpc_item(&f->rpc, f->now, id, mu_span("item", number % 5));
        (void)mu_rpc_end(&f->rpc, f->now, id);
    }
}

static inline void fuzz_step(struct fuzz_rpc *f, uint8_t what, uint8_t number)
{
    switch (what % 8) {
    case 1:
        f->now.mono = mu_mono_add_ms(f->now.mono, (uint64_t)number * number);
        (void)mu_rpc_tick(&f->rpc, f->now);
        break;
    case 2:
        mu_rpc_unlinked(&f->rpc, f->now);
        break;
    case 3:
        fuzz_link(f);
        break;
    case 4:
        for (size_t i = 0; i < f->in_count; i++) {
            (void)mu_rpc_item(&f->rpc, f->now, f->in[i], mu_span("item", number % 5));
        }
        break;
    case 5:
        if (f->in_count != 0) {
            (void)mu_rpc_reply(&f->rpc, f->now, f->in[0], number % 2 == 0 ? 0 : MUSTER_EINVAL,
                               MU_SPAN_LIT("text"));
            fuzz_remove(f->in, &f->in_count, 0);
        }
        break;
    case 6:
        fuzz_call(f, number);
        break;
    case 7:
        if (f->out_count != 0) {
            (void)mu_rpc_cancel(&f->rpc, f->now, f->out[0]);
        }
        break;
    default:
        break;
    }
    fuzz_events(f);
    fuzz_drain(f, number % 2 == 0 ? SIZE_MAX : 1 + (size_t)number);
}

static inline int fuzz_run(enum mu_rpc_role role, const uint8_t *data, size_t size)
{
    struct mu_span in = mu_span(data, size);
    struct mu_rpc_config config = mu_rpc_config_defaults();
    struct fuzz_rpc f = {.now = {.mono = {MU_NS_PER_S}}};

    config.role = role;
    config.calls_max = 4;
    config.call_window_bytes = MU_RPC_CREDIT_MIN;
    config.item_window_bytes = 256;
    config.output_bytes_high = 1024;
    MU_ASSERT(mu_rpc_init(&f.rpc, &config) == 0);
    mu_rpc_greet_init(&f.greet);
    fuzz_link(&f);
    while (in.len >= 2) {
        uint8_t what = in.data[0];
        uint8_t number = in.data[1];

        in = mu_span_skip(in, 2);
        if (what % 8 == 0) {
            size_t n = number < in.len ? number : in.len;
            uint8_t *copy = malloc(n + 1); /* of its own, for a sanitizer to see its end */

            MU_ASSERT(copy != NULL);
            if (n != 0) {
                memcpy(copy + 1, in.data, n);
            }
            fuzz_feed(&f, mu_span(copy + 1, n));
            free(copy);
            in = mu_span_skip(in, n);
        } else {
            fuzz_step(&f, what, number);
        }
        MU_ASSERT(mu_rpc_memory(&f.rpc) < 4 << 20);
        MU_ASSERT(mu_rpc_calls_out(&f.rpc) <= f.out_count);
    }
    (void)mu_rpc_close(&f.rpc, f.now);
    fuzz_events(&f);
    MU_ASSERT(f.out_count == 0);
    mu_rpc_greet_fini(&f.greet);
    mu_rpc_fini(&f.rpc);
    return 0;
}

#endif

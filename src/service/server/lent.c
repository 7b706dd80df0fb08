/*
 * Answers of native calls whose large values are not copied: the values stay in the keyspace's
 * memory until the client has acknowledged the answer. The bytes between them, lengths and small
 * values, are our own.
 */
#include "codec/store/msg.h"
#include "core/alloc.h"
#include "proto/store/keyspace.h"
#include "service/server/server_internal.h"

/* Shorter values are copied. */
#define LEND_MIN ((size_t)4096)

struct lent_answer {
    struct mu_rpc_lent base;
    struct mu_ks_block **blocks;
    size_t block_count;
    struct mu_span spans[];
};

static void release(struct mu_rpc_lent *base)
{
    struct lent_answer *a = MU_CONTAINER_OF(base, struct lent_answer, base);

    for (size_t i = 0; i < a->block_count; i++) {
        mu_ks_release(a->blocks[i]);
    }
    mu_free(a);
}

static bool is_lent(const struct mu_store_reply *reply, size_t i)
{
    return reply->blocks[i] != NULL && reply->values[i].len >= LEND_MIN;
}

/* Makes the bytes from `*piece` to `at` the next span; it is never empty, as each value has a
 * length. */
static void end_piece(struct lent_answer *a, uint8_t **piece, uint8_t *at)
{
    if (at != *piece) {
        a->spans[a->base.count++] = mu_span(*piece, (size_t)(at - *piece));
        *piece = at;
    }
}

/* Writes the same bytes as mu_store_reply_encode(). */
static void fill(struct lent_answer *a, const struct mu_store_reply *reply, uint8_t *at)
{
    uint8_t *piece = at;

    mu_put_u64(at, (uint64_t)reply->number);
    mu_put_u32(at + 8, (uint32_t)reply->value_count);
    at += 12;
    for (size_t i = 0; i < reply->value_count; i++) {
        struct mu_span value = reply->values[i];

        mu_put_u32(at, (uint32_t)value.len);
        at += 4;
        if (is_lent(reply, i)) {
            end_piece(a, &piece, at);
            a->spans[a->base.count++] = value;
            mu_ks_hold(reply->blocks[i]);
            a->blocks[a->block_count++] = reply->blocks[i];
        } else if (value.len != 0) {
            memcpy(at, value.data, value.len);
            at += value.len;
        }
    }
    end_piece(a, &piece, at);
}

struct mu_rpc_lent *mu_store_lent_new(const struct mu_store_reply *reply)
{
    struct lent_answer *a;
    size_t lent = 0;
    size_t copied = 12;
    size_t memory;

    for (size_t i = 0; reply->blocks != NULL && i < reply->value_count; i++) {
        lent += is_lent(reply, i) ? 1 : 0;
        copied += 4 + (is_lent(reply, i) ? 0 : reply->values[i].len);
    }
    if (lent == 0) {
        return NULL;
    }
    memory = sizeof(*a) + (2 * lent + 1) * sizeof(a->spans[0]) + lent * sizeof(a->blocks[0]);
    a = mu_malloc(memory + copied);
    if (a == NULL) {
        return NULL;
    }
    a->base =
        (struct mu_rpc_lent){.spans = a->spans, .memory = memory + copied, .release = release};
    a->blocks = (struct mu_ks_block **)(void *)(a->spans + 2 * lent + 1);
    a->block_count = 0;
    fill(a, reply, (uint8_t *)a + memory);
    return &a->base;
}

/*
 * Three nodes of a rendezvous and the register they meet over, as one value: it can be copied, and
 * two of them that mean the same have the same print.
 */
#ifndef MU_TEST_RDZV_SYS_H
#define MU_TEST_RDZV_SYS_H

#include "unit.h"

#include <stdlib.h>

#include "core/alloc.h"
#include "proto/rdzv/node.h"

#define NODES    3
#define BLOB_MAX 1024
#define ROUNDS   16
#define S        MU_NS_PER_S
#define MONO     (UINT64_C(5000) * S)
#define EPOCH    (UINT64_C(1700000000) * S)

/* A state in bytes, and a number that is the same for states that mean the same. */
struct blob {
    uint64_t meaning;
    int64_t round;
    bool complete;
    bool participant[NODES];
    size_t len;
    uint8_t bytes[BLOB_MAX];
};

enum stage { NOT_ASKING = 0, SENT, DONE };

struct actor {
    struct mu_rdzv r;
    bool alive;
    bool wants; /* to be in a round: has joined, and neither left nor failed */
    bool paused;
    bool watch; /* a change it was not told of */
    enum stage stage;
    uint64_t request;
    bool write;
    bool has_token;
    uint64_t token; /* of the write; then that of the answer */
    bool accepted;
    bool present;
    struct blob blob; /* to be written; then what is answered */
    bool joined;      /* at least once */
    size_t waiting;
    size_t left;
    size_t world;
    int64_t last_round; /* assigned; -1: none */
};

struct budget {
    unsigned joins; /* beyond the first of each */
    unsigned leaves;
    unsigned crashes;
    unsigned closes;
    unsigned pauses;
    unsigned ticks;
};

struct sys {
    struct actor a[NODES];
    bool present;
    uint64_t version;
    struct blob reg;
    uint64_t now;
    bool closed; /* or about to be */
    struct budget left;
    char worlds[ROUNDS][8]; /* members by rank, as letters */
};

/* --- copies ---------------------------------------------------------- */

static inline void copy_buf(struct mu_buf *to, const struct mu_buf *from)
{
    mu_buf_init(to, from->max);
    assert_int_equal(mu_buf_append(to, mu_buf_span(from)), 0);
}

static inline void copy_state(struct mu_rdzv_state *to, const struct mu_rdzv_state *from)
{
    mu_rdzv_state_init(to);
    assert_int_equal(mu_rdzv_state_copy(to, from), 0);
}

static inline void copy_node(struct mu_rdzv *to, const struct mu_rdzv *from)
{
    *to = *from;
    to->node.addr = mu_strndup(from->node.addr, strlen(from->node.addr));
    assert_non_null(to->node.addr);
    to->config.node = to->node;
    copy_state(&to->state, &from->state);
    copy_state(&to->next, &from->next);
    /* What these hold is not looked at again. */
    mu_rdzv_state_init(&to->old);
    mu_rdzv_state_init(&to->roster);
    mu_buf_init(&to->old_token, from->old_token.max);
    mu_buf_init(&to->out, from->out.max);
    to->members = NULL;
    to->member_cap = 0;
    copy_buf(&to->token, &from->token);
}

static inline struct sys *copy_sys(const struct sys *from)
{
    struct sys *to = malloc(sizeof(*to));

    assert_non_null(to);
    *to = *from;
    for (size_t i = 0; i < NODES; i++) {
        copy_node(&to->a[i].r, &from->a[i].r);
    }
    return to;
}

static inline void free_sys(struct sys *s)
{
    for (size_t i = 0; i < NODES; i++) {
        mu_rdzv_fini(&s->a[i].r);
    }
    free(s);
}

/* --- what a state means ------------------------------------------------ */

static inline uint64_t mix(uint64_t h, uint64_t x)
{
    struct mu_prng p = {h ^ (x * UINT64_C(0x9e3779b97f4a7c15))};

    return mu_prng_u64(&p);
}

/* The order in which members came does not count. */
static inline uint64_t meaning(const struct mu_rdzv_state *s)
{
    uint64_t h = mix(1, (uint64_t)s->round * 8 + s->complete * 4 + s->closed * 2 + s->has_deadline);
    uint64_t sum = 0;

    h = mix(h, s->has_deadline ? s->deadline.ns : 0);
    for (size_t i = 0; i < s->member_count; i++) {
        const struct mu_rdzv_member *m = &s->members[i];
        uint64_t one = mix(2, (uint64_t)m->node.addr[0]);

        one = mix(one, (uint64_t)m->rank * 16 + m->participant * 8u + m->waiting * 4u +
                           m->spare * 2u + m->has_heartbeat);
        sum += mix(one, m->has_heartbeat ? m->heartbeat.ns : 0);
    }
    return mix(h, sum);
}

static inline uint64_t hash_version(uint64_t version)
{
    /* As the machine does it: FNV-1a over the token. */
    uint64_t hash = UINT64_C(0xcbf29ce484222325);

    for (int i = 0; i < 8; i++) {
        hash = (hash ^ (version >> (8 * i) & 0xff)) * UINT64_C(0x100000001b3);
    }
    return hash;
}

/* Tokens count only by being the newest or not, and the one a watch told of or not. */
static inline uint64_t token_class(const struct sys *s, const struct mu_rdzv_vars *v,
                                   uint64_t version)
{
    return (version == s->version) * 2u + (v->watch_hash == hash_version(version));
}

static inline uint64_t print_actor(const struct sys *s, const struct actor *a, uint64_t h)
{
    const struct mu_rdzv_vars *v = &a->r.v;
    uint64_t token = v->has_token ? mu_get_u64(a->r.token.data + a->r.token.head) : 0;

    if (!a->alive) {
        /* Its write may still be on its way. */
        h = mix(h, a->stage == SENT && a->write ? 7 + (a->token == s->version) : 0);
        return a->stage == SENT && a->write ? mix(h, a->blob.meaning) : h;
    }
    h = mix(h, (uint64_t)v->phase * 4096 + v->closing * 2048u + v->reading * 1024u +
                   v->writing * 512u + v->known * 256u + v->stale * 128u + v->held * 64u +
                   v->backed_off * 32u + v->read_again * 16u + (v->losses > 0) * 8u +
                   v->has_token * 4u + v->closed_said * 2u + a->wants);
    h = mix(h, a->paused * 128u + a->joined * 64u + a->waiting * 16u + a->left * 4u + a->world);
    h = mix(h, (uint64_t)a->last_round);
    h = mix(h, v->phase == MU_RDZV_IDLE ? 0 : v->op_deadline.ns);
    h = mix(h, v->closing ? v->close_deadline.ns : 0);
    h = mix(h, v->beat_deadline.ns);
    h = mix(h, v->synced_at.ns);
    h = mix(h, v->stale ? v->read_at.ns : 0);
    h = mix(h, v->wake.ns);
    h = mix(h, v->phase == MU_RDZV_MEMBER ? (uint64_t)v->round * 64 + v->left * 8 + v->waiting : 0);
    h = mix(h, v->known ? meaning(&a->r.state) : 0);
    h = mix(h, token_class(s, v, token) * 4 + a->watch * 2u + (v->watch_hash != 0));
    h = mix(h, (uint64_t)a->stage);
    if (a->stage != NOT_ASKING) {
        h = mix(h, a->write * 16u + a->has_token * 8u + a->accepted * 4u + a->present * 2u +
                       (a->request == v->request));
        h = mix(h, token_class(s, v, a->token));
        h = mix(h, a->write || (a->stage == DONE && a->present) ? a->blob.meaning : 0);
        h = mix(h, v->asked_at.ns);
        h = mix(h, v->warned ? v->warned_at.ns : 0);
    }
    return h;
}

static inline uint64_t print_sys(const struct sys *s)
{
    const struct budget *b = &s->left;
    uint64_t h = mix(s->now, s->present ? s->reg.meaning : 0);

    h = mix(h, (((b->joins * 8u + b->leaves) * 8u + b->crashes) * 8u + b->closes) * 64u + b->ticks);
    h = mix(h, b->pauses);
    for (size_t i = 0; i < NODES; i++) {
        h = print_actor(s, &s->a[i], h);
    }
    for (size_t i = 0; i < ROUNDS; i++) {
        h = mix(h, mu_get_u64((const uint8_t *)s->worlds[i]));
    }
    return h == 0 ? 1 : h;
}

#endif

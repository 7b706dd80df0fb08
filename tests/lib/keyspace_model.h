/*
 * A naive keyspace for a test to compare with: arrays, and loops over all of them. Each function
 * says what must be so after an operation that succeeded; the waits that end are collected in
 * `ready`, the changes that are told in `news` and `listeners`, in the order in which they must
 * come.
 */
#ifndef MU_KEYSPACE_MODEL_H
#define MU_KEYSPACE_MODEL_H

#include "unit.h"

#include "proto/store/keyspace.h"

#define VALUE_MAX     7000
#define QUEUE_MAX     6
#define WAITS         14
#define WATCHES       9
#define LEASES        5
#define NEWS_MAX      64
#define LISTENERS_MAX (NEWS_MAX * WATCHES)

static const char *const key_texts[] = {
    "",      "a",     "ab",     "abc",     "abd",   "b",  "ba",      "job/",
    "job/1", "job/2", "job/12", "job/1/x", "queue", "q2", "counter", "zz",
};
#define KEYS (sizeof(key_texts) / sizeof(key_texts[0]))

struct bytes {
    size_t len;
    uint8_t data[VALUE_MAX];
};

struct model_key {
    bool there;
    struct bytes value;
    int lease; /* -1: none */
    uint64_t bound;
    size_t queue_len;
    struct bytes queue[QUEUE_MAX];
};

struct model_wait {
    bool active;
    enum mu_ks_wait_kind kind;
    bool missing[KEYS];
    uint64_t ticket;
    struct bytes popped;
    size_t len_before;
};

struct model_watch {
    bool active;
    size_t key;
    bool prefix;
    uint64_t ticket;
};

struct model_lease {
    bool active;
    uint64_t id;
    uint64_t ttl_ms;
    uint64_t deadline_ns;
    uint64_t armed;
};

struct news {
    enum mu_change_kind kind;
    uint64_t revision;
    size_t key;
    struct bytes old_value;
    struct bytes value;
};

static uint64_t ticket;
static uint64_t revision;
static struct model_key keys[KEYS];
static struct model_wait waits[WAITS];
static struct model_watch watches[WATCHES];
static struct model_lease leases[LEASES];
static size_t ready[WAITS];
static size_t ready_count;
static struct news news[NEWS_MAX];
static size_t news_count;
static struct {
    size_t watch;
    size_t news;
} listeners[LISTENERS_MAX];
static size_t listener_count;

static inline struct mu_span key_span(size_t key)
{
    return mu_span_str(key_texts[key]);
}

static inline struct mu_span bytes_span(const struct bytes *b)
{
    return mu_span(b->data, b->len);
}

static inline void bytes_set(struct bytes *b, struct mu_span s)
{
    b->len = s.len;
    if (s.len != 0) {
        memmove(b->data, s.data, s.len);
    }
}

static inline bool is_watching(const struct model_watch *w, size_t key)
{
    return w->active &&
           (w->prefix ? mu_span_starts_with(key_span(key), key_span(w->key)) : w->key == key);
}

/* Whether `a` hears of a change before `b`: watches of the key, then of ever longer prefixes. */
static inline bool hears_earlier(const struct model_watch *a, const struct model_watch *b)
{
    size_t rank_a = a->prefix ? 1 + strlen(key_texts[a->key]) : 0;
    size_t rank_b = b->prefix ? 1 + strlen(key_texts[b->key]) : 0;

    return rank_a != rank_b ? rank_a < rank_b : a->ticket < b->ticket;
}

static inline void model_change(size_t key, enum mu_change_kind kind, struct mu_span value)
{
    struct news *n = &news[news_count];
    bool told[WATCHES] = {0};
    bool any = false;

    revision++;
    for (;;) {
        size_t next = WATCHES;

        for (size_t i = 0; i < WATCHES; i++) {
            if (!told[i] && is_watching(&watches[i], key) &&
                (next == WATCHES || hears_earlier(&watches[i], &watches[next]))) {
                next = i;
            }
        }
        if (next == WATCHES) {
            break;
        }
        told[next] = true;
        any = true;
        listeners[listener_count].watch = next;
        listeners[listener_count++].news = news_count;
    }
    if (any) {
        n->kind = kind;
        n->revision = revision;
        n->key = key;
        bytes_set(&n->old_value, bytes_span(&keys[key].value));
        bytes_set(&n->value, value);
        news_count++;
        assert_true(news_count < NEWS_MAX);
    }
}

static inline bool is_complete(const struct model_wait *w)
{
    for (size_t i = 0; i < KEYS; i++) {
        if (w->missing[i]) {
            return false;
        }
    }
    return true;
}

static inline bool model_count_down(size_t wait, size_t key)
{
    waits[wait].missing[key] = false;
    if (!is_complete(&waits[wait])) {
        return false;
    }
    waits[wait].active = false;
    ready[ready_count++] = wait;
    return true;
}

/* The longest waiting of the given kinds (two may be named) that misses the key; WAITS: none. */
static inline size_t first_wait(size_t key, enum mu_ks_wait_kind kind, enum mu_ks_wait_kind other)
{
    size_t first = WAITS;

    for (size_t i = 0; i < WAITS; i++) {
        if (waits[i].active && waits[i].missing[key] &&
            (waits[i].kind == kind || waits[i].kind == other) &&
            (first == WAITS || waits[i].ticket < waits[first].ticket)) {
            first = i;
        }
    }
    return first;
}

static inline void model_wake(size_t key, enum mu_ks_wait_kind kind)
{
    size_t wait;

    while ((wait = first_wait(key, kind, kind)) != WAITS) {
        (void)model_count_down(wait, key);
    }
}

static inline void model_put(size_t key, struct mu_span value, enum mu_change_kind kind,
                             bool rebind, int lease)
{
    struct model_key *k = &keys[key];

    model_change(key, k->there ? kind : MU_CHANGE_CREATED, value);
    bytes_set(&k->value, value);
    k->there = true;
    if (rebind && k->lease != lease) {
        k->lease = lease;
        k->bound = ++ticket;
    }
    model_wake(key, MU_KS_WAIT_TORCH);
    model_wake(key, MU_KS_WAIT_ALL);
}

static inline void model_delete(size_t key, enum mu_change_kind kind)
{
    model_change(key, kind, (struct mu_span){0});
    keys[key].there = false;
    keys[key].value.len = 0;
    keys[key].lease = -1;
}

static inline void model_pop(size_t key, struct bytes *ret)
{
    struct model_key *k = &keys[key];

    bytes_set(ret, bytes_span(&k->queue[0]));
    k->queue_len--;
    for (size_t i = 0; i < k->queue_len; i++) {
        bytes_set(&k->queue[i], bytes_span(&k->queue[i + 1]));
    }
}

static inline void model_push(size_t key, struct mu_span value)
{
    bytes_set(&keys[key].queue[keys[key].queue_len++], value);
    model_wake(key, MU_KS_WAIT_ALL);
    for (;;) {
        size_t wait = first_wait(key, MU_KS_WAIT_TORCH, MU_KS_WAIT_POP);

        if (wait == WAITS) {
            return;
        }
        if (waits[wait].kind == MU_KS_WAIT_POP) {
            waits[wait].len_before = keys[key].queue_len;
            model_pop(key, &waits[wait].popped);
        }
        if (model_count_down(wait, key)) {
            return;
        }
    }
}

static inline void model_end_lease(int lease)
{
    for (;;) {
        size_t next = KEYS;

        for (size_t i = 0; i < KEYS; i++) {
            if (keys[i].there && keys[i].lease == lease &&
                (next == KEYS || keys[i].bound < keys[next].bound)) {
                next = i;
            }
        }
        if (next == KEYS) {
            break;
        }
        model_delete(next, MU_CHANGE_EXPIRED);
    }
    leases[lease].active = false;
}

#endif

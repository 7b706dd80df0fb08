#include "proto/store/holds.h"

#include <muster/error.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"

/* A key with more holders than this has a bit for each holder that there is. */
#define FEW          4
#define LEASE_MS_MAX 60000u

/* A key that is held, or that somebody wants to change. */
struct mu_hold_key {
    struct mu_map_node node; /* holds->keys */
    struct mu_list link;     /* holds->recalling: holders have to be told yet */
    struct mu_list claims;   /* struct claim */
    uint32_t count;          /* holders */
    uint32_t words;          /* of `bits`; 0: the holders are in `few` */
    uint32_t told;           /* holders below this index were told */
    bool recalled;
    union {
        uint32_t few[FEW];
        uint64_t *bits;
    } by;
    uint8_t key[];
};

struct claim {
    struct mu_list of_writer;
    struct mu_list of_key;
    struct mu_hold_key *key;
    struct mu_hold_writer *writer;
};

struct mu_holds_config mu_holds_config_defaults(void)
{
    return (struct mu_holds_config){
        .keys_max = 1048576,
        .bytes_max = (size_t)256 << 20,
        .lease_ms = 2000,
        .renewals_max = 5000,
    };
}

void mu_holds_init(struct mu_holds *h, const struct mu_holds_config *config)
{
    *h = (struct mu_holds){.config = *config};
    mu_map_init(&h->keys, config->seed);
    mu_list_init(&h->recalling);
    mu_list_init(&h->ready);
    mu_heap_init(&h->late);
}

static size_t size_of(const struct mu_hold_key *k)
{
    return sizeof(*k) + k->node.key.len + (size_t)k->words * sizeof(uint64_t);
}

static void free_key(struct mu_holds *h, struct mu_hold_key *k)
{
    h->bytes -= size_of(k);
    h->count--;
    mu_list_remove(&k->link);
    mu_map_remove(&h->keys, &k->node);
    if (k->words != 0) {
        mu_free(k->by.bits);
    }
    mu_free(k);
}

void mu_holds_fini(struct mu_holds *h)
{
    struct mu_map_node *n = mu_map_next(&h->keys, NULL);

    while (n != NULL) {
        struct mu_hold_key *k = MU_CONTAINER_OF(n, struct mu_hold_key, node);

        n = mu_map_next(&h->keys, n);
        MU_ASSERT(mu_list_empty(&k->claims));
        free_key(h, k);
    }
    for (uint32_t i = 0; i < h->holder_cap; i++) {
        mu_free(h->holders[i]);
    }
    mu_free(h->holders);
    mu_map_fini(&h->keys);
}

/* --- who holds a key -------------------------------------------------------------------------- */

static bool has(const struct mu_hold_key *k, uint32_t index)
{
    if (k->words != 0) {
        return index / 64 < k->words && (k->by.bits[index / 64] >> (index % 64) & 1) != 0;
    }
    for (uint32_t i = 0; i < k->count; i++) {
        if (k->by.few[i] == index) {
            return true;
        }
    }
    return false;
}

/* The first holder from an index on; UINT32_MAX: none. */
static uint32_t next_of(const struct mu_hold_key *k, uint32_t from)
{
    uint32_t least = UINT32_MAX;

    if (k->words == 0) {
        for (uint32_t i = 0; i < k->count; i++) {
            least = k->by.few[i] >= from && k->by.few[i] < least ? k->by.few[i] : least;
        }
        return least;
    }
    for (uint32_t w = from / 64; w < k->words; w++) {
        uint64_t bits = k->by.bits[w];

        if (w == from / 64) {
            bits &= ~(uint64_t)0 << (from % 64);
        }
        if (bits != 0) {
            return w * 64 + (uint32_t)__builtin_ctzll(bits);
        }
    }
    return UINT32_MAX;
}

/* Makes room for one more holder. False: no memory. */
static bool widen(struct mu_holds *h, struct mu_hold_key *k, uint32_t index)
{
    uint32_t words = h->holder_cap / 64 + 1;
    uint64_t *bits;

    if (k->words == 0 ? k->count < FEW : index / 64 < k->words) {
        return true;
    }
    bits = mu_calloc(words, sizeof(*bits));
    if (bits == NULL) {
        return false;
    }
    if (k->words == 0) {
        for (uint32_t i = 0; i < k->count; i++) {
            bits[k->by.few[i] / 64] |= (uint64_t)1 << (k->by.few[i] % 64);
        }
    } else {
        memcpy(bits, k->by.bits, k->words * sizeof(*bits));
        mu_free(k->by.bits);
    }
    h->bytes += (size_t)(words - k->words) * sizeof(*bits);
    k->by.bits = bits;
    k->words = words;
    return true;
}

static void note_recalled(struct mu_holds *h, struct mu_holder *holder)
{
    if (holder->recalled++ == 0 && !mu_heap_contains(&holder->node)) {
        mu_heap_insert(&h->late, &holder->node, holder->until);
    }
}

/* Nobody holds the key any more. */
static void release_key(struct mu_holds *h, struct mu_hold_key *k)
{
    k->recalled = false;
    k->told = 0;
    mu_list_remove(&k->link);
    if (mu_list_empty(&k->claims)) {
        free_key(h, k);
        return;
    }
    MU_LIST_FOREACH (it, &k->claims) {
        struct mu_hold_writer *w = MU_CONTAINER_OF(it, struct claim, of_key)->writer;

        if (--w->pending == 0) {
            mu_list_push(&h->ready, &w->ready);
        }
    }
}

/* Takes a key from a holder; may free the key. */
static void take(struct mu_holds *h, struct mu_hold_key *k, struct mu_holder *holder)
{
    if (!has(k, holder->index)) {
        return;
    }
    if (k->words != 0) {
        k->by.bits[holder->index / 64] &= ~((uint64_t)1 << (holder->index % 64));
    } else {
        uint32_t i = 0;

        while (k->by.few[i] != holder->index) {
            i++;
        }
        k->by.few[i] = k->by.few[k->count - 1];
    }
    k->count--;
    h->holds--;
    holder->held--;
    if (k->recalled && --holder->recalled == 0 && holder->owner != NULL) {
        mu_heap_remove(&h->late, &holder->node);
    }
    if (k->count == 0) {
        release_key(h, k);
    }
}

/* Its lease is over: it holds nothing. */
static void take_all(struct mu_holds *h, struct mu_holder *holder)
{
    struct mu_map_node *n = holder->held == 0 ? NULL : mu_map_next(&h->keys, NULL);

    while (n != NULL && holder->held != 0) {
        struct mu_hold_key *k = MU_CONTAINER_OF(n, struct mu_hold_key, node);

        n = mu_map_next(&h->keys, n);
        take(h, k, holder);
    }
    MU_ASSERT(holder->held == 0 && holder->recalled == 0);
}

static bool is_over(const struct mu_holder *holder, mu_mono_t now)
{
    return !mu_mono_before(now, holder->until);
}

/* --- holders ---------------------------------------------------------------------------------- */

static void free_holder(struct mu_holds *h, struct mu_holder *holder)
{
    mu_heap_remove(&h->late, &holder->node);
    h->holders[holder->index] = NULL;
    h->holder_count--;
    mu_free(holder);
}

struct mu_holder *mu_holds_join(struct mu_holds *h, void *owner)
{
    struct mu_holder *holder = mu_calloc(1, sizeof(*holder));
    uint32_t index = 0;

    if (holder == NULL) {
        return NULL;
    }
    if (h->holder_count == h->holder_cap) {
        uint32_t cap = h->holder_cap == 0 ? 64 : 2 * h->holder_cap;
        struct mu_holder **more = mu_realloc(h->holders, cap * sizeof(struct mu_holder *));

        if (more == NULL) {
            mu_free(holder);
            return NULL;
        }
        memset(more + h->holder_cap, 0, (cap - h->holder_cap) * sizeof(struct mu_holder *));
        index = h->holder_cap;
        h->holders = more;
        h->holder_cap = cap;
    }
    while (h->holders[index] != NULL) {
        index++;
    }
    holder->owner = owner;
    holder->index = index;
    mu_heap_node_init(&holder->node);
    h->holders[index] = holder;
    h->holder_count++;
    return holder;
}

void mu_holds_leave(struct mu_holds *h, struct mu_holder *holder, bool dropped)
{
    if (dropped || holder->held == 0) {
        take_all(h, holder);
        free_holder(h, holder);
        return;
    }
    holder->owner = NULL;
    if (!mu_heap_contains(&holder->node)) {
        mu_heap_insert(&h->late, &holder->node, holder->until);
    }
}

/* A lease that is over before `limit` with its margin; 0: that would be too short to be of use. */
static uint32_t lease_before(const struct mu_holds *h, mu_mono_t now, mu_mono_t limit)
{
    /* Each renews once in half a lease. */
    uint64_t many = (uint64_t)2000 * h->holder_count / h->config.renewals_max;
    uint64_t lease_ms = many > LEASE_MS_MAX ? LEASE_MS_MAX : many;
    uint64_t left = mu_mono_until_ms(limit, now);

    lease_ms = lease_ms < h->config.lease_ms ? h->config.lease_ms : lease_ms;
    if (limit.ns != MU_MONO_NEVER.ns && h->config.plant != MU_HOLDS_PLANT_LONG_LEASE) {
        left = left == 0 ? 0 : (left - 1) * 8 / 9; /* it was rounded up */
        lease_ms = left < lease_ms ? left : lease_ms;
    }
    return lease_ms < h->config.lease_ms / 16 ? 0 : (uint32_t)lease_ms;
}

uint32_t mu_holds_renew(struct mu_holds *h, struct mu_holder *holder, mu_mono_t now,
                        mu_mono_t limit)
{
    uint32_t lease_ms = lease_before(h, now, limit);
    mu_mono_t until = mu_mono_add_ms(now, h->config.plant == MU_HOLDS_PLANT_SHORT_LEASE
                                              ? lease_ms / 2
                                              : (uint64_t)lease_ms + lease_ms / 8);

    if (is_over(holder, now)) {
        take_all(h, holder); /* it may have thought so, too, and dropped everything */
    }
    if (holder->recalled != 0 || lease_ms == 0) {
        return 0; /* somebody waits for it, and need not wait for longer than the lease it has */
    }
    holder->until = mu_mono_before(holder->until, until) ? until : holder->until;
    if (mu_heap_contains(&holder->node)) {
        mu_heap_remove(&h->late, &holder->node);
        mu_heap_insert(&h->late, &holder->node, holder->until);
    }
    return lease_ms;
}

bool mu_holds_nothing(const struct mu_holder *holder, mu_mono_t now)
{
    return holder->held == 0 || is_over(holder, now);
}

static struct mu_hold_key *find_key(const struct mu_holds *h, struct mu_span key)
{
    struct mu_map_node *n = h->count == 0 ? NULL : mu_map_find(&h->keys, key);

    return n == NULL ? NULL : MU_CONTAINER_OF(n, struct mu_hold_key, node);
}

bool mu_holds_has(const struct mu_holds *h, struct mu_span key)
{
    return find_key(h, key) != NULL;
}

/* NULL: over a bound, or no memory. */
static struct mu_hold_key *add_key(struct mu_holds *h, struct mu_span key)
{
    struct mu_hold_key *k;

    if (h->count >= h->config.keys_max || h->bytes >= h->config.bytes_max) {
        return NULL;
    }
    k = mu_malloc(sizeof(*k) + key.len);
    if (k == NULL) {
        return NULL;
    }
    *k = (struct mu_hold_key){.count = 0};
    mu_list_init(&k->link);
    mu_list_init(&k->claims);
    if (key.len != 0) {
        memcpy(k->key, key.data, key.len);
    }
    if (mu_map_insert(&h->keys, &k->node, mu_span(k->key, key.len)) != 0) {
        mu_free(k);
        return NULL;
    }
    h->count++;
    h->bytes += size_of(k);
    return k;
}

bool mu_holds_grant(struct mu_holds *h, struct mu_holder *holder, mu_mono_t now, struct mu_span key)
{
    struct mu_hold_key *k = find_key(h, key);

    if (is_over(holder, now) || (k != NULL && (k->recalled || !mu_list_empty(&k->claims)) &&
                                 h->config.plant != MU_HOLDS_PLANT_EARLY_GRANT)) {
        return false;
    }
    if (k == NULL) {
        k = add_key(h, key);
    } else if (has(k, holder->index)) {
        return true;
    }
    if (k == NULL) {
        return false;
    }
    if (!widen(h, k, holder->index)) {
        if (k->count == 0) {
            free_key(h, k);
        }
        return false;
    }
    if (k->words != 0) {
        k->by.bits[holder->index / 64] |= (uint64_t)1 << (holder->index % 64);
    } else {
        k->by.few[k->count] = holder->index;
    }
    k->count++;
    holder->held++;
    h->holds++;
    h->granted++;
    if (k->recalled) {
        note_recalled(h, holder); /* only by a planted bug */
    }
    return true;
}

void mu_holds_drop(struct mu_holds *h, struct mu_holder *holder, struct mu_span key)
{
    struct mu_hold_key *k = find_key(h, key);

    if (k != NULL) {
        take(h, k, holder);
    }
}

/* --- writers ---------------------------------------------------------------------------------- */

/* Takes the key from those whose lease is over; may free it. Returns whether somebody is left. */
static bool is_held(struct mu_holds *h, struct mu_hold_key *k, mu_mono_t now)
{
    uint32_t left = k->count;

    for (uint32_t i = next_of(k, 0); i != UINT32_MAX; i = next_of(k, i + 1)) {
        struct mu_holder *holder = h->holders[i];

        if (is_over(holder, now)) {
            left--;
            h->expired++;
            take(h, k, holder);
            if (left == 0) {
                return false; /* the key may be gone */
            }
        }
    }
    return left != 0;
}

static void begin_recall(struct mu_holds *h, struct mu_hold_key *k)
{
    if (k->recalled) {
        return;
    }
    k->recalled = true;
    k->told = 0;
    for (uint32_t i = next_of(k, 0); i != UINT32_MAX; i = next_of(k, i + 1)) {
        note_recalled(h, h->holders[i]);
    }
    mu_list_push(&h->recalling, &k->link);
}

void mu_holds_withdraw(struct mu_holds *h, struct mu_hold_writer *w)
{
    struct mu_list *it;

    if (w->claims.next == NULL) {
        return;
    }
    while ((it = mu_list_pop(&w->claims)) != NULL) {
        struct claim *c = MU_CONTAINER_OF(it, struct claim, of_writer);
        struct mu_hold_key *k = c->key;

        mu_list_remove(&c->of_key);
        mu_free(c);
        if (k->count == 0 && mu_list_empty(&k->claims)) {
            free_key(h, k);
        }
    }
    w->pending = 0;
    mu_list_remove(&w->ready);
}

static bool has_claimed(const struct mu_hold_key *k, const struct mu_hold_writer *w)
{
    /* Its claims of this call are the last ones. */
    return !mu_list_empty(&k->claims) &&
           MU_CONTAINER_OF(k->claims.prev, struct claim, of_key)->writer == w;
}

/* The key must be given back before `w` may change it. MUSTER_ENOMEM. */
static int add_claim(struct mu_holds *h, struct mu_hold_writer *w, struct mu_hold_key *k)
{
    struct claim *c;

    if (has_claimed(k, w)) {
        return 0;
    }
    c = mu_malloc(sizeof(*c));
    if (c == NULL) {
        return MUSTER_ENOMEM;
    }
    *c = (struct claim){.key = k, .writer = w};
    mu_list_init(&c->of_writer);
    mu_list_init(&c->of_key);
    mu_list_push(&w->claims, &c->of_writer);
    mu_list_push(&k->claims, &c->of_key);
    w->pending++;
    begin_recall(h, k);
    return 0;
}

static void begin_asking(struct mu_holds *h, struct mu_hold_writer *w)
{
    if (w->claims.next == NULL) {
        mu_list_init(&w->claims);
        mu_list_init(&w->ready);
    }
    mu_holds_withdraw(h, w);
}

static int end_asking(struct mu_holds *h, struct mu_hold_writer *w, int err)
{
    if (err != 0) {
        mu_holds_withdraw(h, w);
        return err;
    }
    if (h->config.plant == MU_HOLDS_PLANT_LATE_RECALL) {
        mu_holds_withdraw(h, w);
    }
    return w->pending == 0 ? 1 : 0;
}

int mu_holds_ask(struct mu_holds *h, struct mu_hold_writer *w, struct mu_holder *self,
                 mu_mono_t now, const struct mu_span *keys, size_t count)
{
    int err = 0;

    begin_asking(h, w);
    for (size_t i = 0; i < count && err == 0; i++) {
        struct mu_hold_key *k = find_key(h, keys[i]);

        if (k != NULL && self != NULL) {
            take(h, k, self);
            k = find_key(h, keys[i]);
        }
        if (k != NULL && k->count != 0 && is_held(h, k, now)) {
            err = add_claim(h, w, k);
        }
    }
    return end_asking(h, w, err);
}

int mu_holds_ask_prefix(struct mu_holds *h, struct mu_hold_writer *w, mu_mono_t now,
                        struct mu_span prefix)
{
    struct mu_map_node *n;
    int err = 0;

    begin_asking(h, w);
    n = mu_map_next(&h->keys, NULL);
    while (n != NULL && err == 0) {
        struct mu_hold_key *k = MU_CONTAINER_OF(n, struct mu_hold_key, node);

        n = mu_map_next(&h->keys, n);
        if (k->count != 0 && mu_span_starts_with(k->node.key, prefix) && is_held(h, k, now)) {
            err = add_claim(h, w, k);
        }
    }
    return end_asking(h, w, err);
}

/* --- what follows ----------------------------------------------------------------------------- */

bool mu_holds_next_recall(struct mu_holds *h, struct mu_holder **ret_holder,
                          struct mu_span *ret_key)
{
    while (!mu_list_empty(&h->recalling)) {
        struct mu_hold_key *k = MU_CONTAINER_OF(h->recalling.next, struct mu_hold_key, link);
        uint32_t i = next_of(k, k->told);

        if (i == UINT32_MAX) {
            mu_list_remove(&k->link);
            continue;
        }
        k->told = i + 1;
        if (h->holders[i]->owner != NULL) {
            h->recalls++;
            *ret_holder = h->holders[i];
            *ret_key = k->node.key;
            return true;
        }
    }
    return false;
}

struct mu_hold_writer *mu_holds_next_writer(struct mu_holds *h)
{
    struct mu_list *it = mu_list_pop(&h->ready);

    return it == NULL ? NULL : MU_CONTAINER_OF(it, struct mu_hold_writer, ready);
}

mu_mono_t mu_holds_deadline(const struct mu_holds *h)
{
    return mu_heap_deadline(&h->late);
}

void mu_holds_tick(struct mu_holds *h, mu_mono_t now)
{
    struct mu_heap_node *n;

    while ((n = mu_heap_pop_due(&h->late, now)) != NULL) {
        struct mu_holder *holder = MU_CONTAINER_OF(n, struct mu_holder, node);

        h->expired += holder->held;
        take_all(h, holder);
        if (holder->owner == NULL) {
            free_holder(h, holder);
        }
    }
}

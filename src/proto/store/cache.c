#include "proto/store/cache.h"

#include <muster/error.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/reader.h"

struct entry {
    struct mu_map_node node; /* cache->keys */
    struct mu_list used;     /* cache->used */
    uint32_t state;          /* MU_FOUND_... */
    size_t len;
    uint8_t bytes[]; /* the key, then the value */
};

/* A key that was changed or asked back since the oldest flight was sent. */
struct spoil {
    struct mu_map_node node;
    uint64_t seq;
    uint8_t key[];
};

struct mu_cache_config mu_cache_config_defaults(void)
{
    return (struct mu_cache_config){
        .keys_max = 262144, .bytes_max = (size_t)64 << 20, .spoils_max = 4096};
}

void mu_cache_init(struct mu_cache *c, const struct mu_cache_config *config)
{
    *c = (struct mu_cache){.config = *config};
    mu_map_init(&c->keys, config->seed);
    mu_map_init(&c->spoils, config->seed);
    mu_map_init(&c->flights, config->seed);
    mu_list_init(&c->used);
    mu_list_init(&c->to_send);
    mu_buf_init(&c->scratch, SIZE_MAX / 2);
}

/* --- memory ----------------------------------------------------------------------------------- */

static size_t size_of(const struct entry *e)
{
    return sizeof(*e) + e->node.key.len + e->len;
}

static void forget(struct mu_cache *c, struct entry *e)
{
    c->bytes -= size_of(e);
    c->count--;
    mu_list_remove(&e->used);
    mu_map_remove(&c->keys, &e->node);
    mu_free(e);
}

static struct entry *find(const struct mu_cache *c, struct mu_span key)
{
    struct mu_map_node *n = c->count == 0 ? NULL : mu_map_find(&c->keys, key);

    return n == NULL ? NULL : MU_CONTAINER_OF(n, struct entry, node);
}

static void forget_all(struct mu_cache *c)
{
    while (!mu_list_empty(&c->used)) {
        forget(c, MU_CONTAINER_OF(c->used.next, struct entry, used));
    }
}

/* Whether the lease holds. If not, nothing of what it was for may be answered ever again: the
 * server may have let others change it. */
static bool is_leased(struct mu_cache *c, mu_mono_t now)
{
    if (mu_mono_before(now, c->until) ||
        (c->config.plant == MU_CACHE_PLANT_NO_LEASE && c->until.ns != 0)) {
        return true;
    }
    forget_all(c);
    return false;
}

static void keep(struct mu_cache *c, struct mu_span key, const struct mu_found *found)
{
    struct entry *e = find(c, key);
    size_t len = (found->state & MU_FOUND_VALUE) != 0 ? found->value.len : 0;

    if (e != NULL) {
        forget(c, e);
    }
    if (sizeof(*e) + key.len + len > c->config.bytes_max) {
        return;
    }
    e = mu_malloc(sizeof(*e) + key.len + len);
    if (e == NULL) {
        return;
    }
    *e = (struct entry){.state = found->state, .len = len};
    if (key.len != 0) {
        memcpy(e->bytes, key.data, key.len);
    }
    if (len != 0) {
        memcpy(e->bytes + key.len, found->value.data, len);
    }
    if (mu_map_insert(&c->keys, &e->node, mu_span(e->bytes, key.len)) != 0) {
        mu_free(e);
        return;
    }
    mu_list_init(&e->used);
    mu_list_push(&c->used, &e->used);
    c->count++;
    c->bytes += size_of(e);
    while (c->bytes > c->config.bytes_max || c->count > c->config.keys_max) {
        forget(c, MU_CONTAINER_OF(c->used.next, struct entry, used));
    }
}

/* --- keys that change while flights are under way --------------------------------------------- */

static void free_spoils(struct mu_cache *c)
{
    struct mu_map_node *n = mu_map_next(&c->spoils, NULL);

    while (n != NULL) {
        struct spoil *s = MU_CONTAINER_OF(n, struct spoil, node);

        n = mu_map_next(&c->spoils, n);
        mu_map_remove(&c->spoils, &s->node);
        mu_free(s);
    }
}

static void spoil(struct mu_cache *c, struct mu_span key)
{
    struct mu_map_node *n;
    struct spoil *s;

    if (c->aloft == 0) {
        return;
    }
    c->seq++;
    n = mu_map_find(&c->spoils, key);
    if (n != NULL) {
        MU_CONTAINER_OF(n, struct spoil, node)->seq = c->seq;
        return;
    }
    s = c->spoils.count >= c->config.spoils_max ? NULL : mu_malloc(sizeof(*s) + key.len);
    if (s != NULL) {
        *s = (struct spoil){.seq = c->seq};
        if (key.len != 0) {
            memcpy(s->key, key.data, key.len);
        }
        if (mu_map_insert(&c->spoils, &s->node, mu_span(s->key, key.len)) == 0) {
            return;
        }
        mu_free(s);
    }
    c->spoiled_all = c->seq;
    free_spoils(c);
}

static bool is_spoiled(const struct mu_cache *c, const struct mu_cache_flight *f,
                       struct mu_span key)
{
    struct mu_map_node *n;

    if (c->config.plant == MU_CACHE_PLANT_SPOILED) {
        return false;
    }
    if (f->seq < c->spoiled_all) {
        return true;
    }
    n = c->spoils.count == 0 ? NULL : mu_map_find(&c->spoils, key);
    return n != NULL && MU_CONTAINER_OF(n, struct spoil, node)->seq > f->seq;
}

static void drop_key(struct mu_cache *c, struct mu_span key)
{
    struct entry *e = find(c, key);

    if (e != NULL) {
        forget(c, e);
    }
    spoil(c, key);
}

void mu_cache_change(struct mu_cache *c, struct mu_span key)
{
    drop_key(c, key);
}

void mu_cache_recall(struct mu_cache *c, struct mu_span key)
{
    c->recalls++;
    if (c->config.plant != MU_CACHE_PLANT_KEEP) {
        drop_key(c, key);
    }
}

void mu_cache_clear(struct mu_cache *c)
{
    if (c->config.plant == MU_CACHE_PLANT_FOREVER) {
        return;
    }
    forget_all(c);
    free_spoils(c);
    c->until = (mu_mono_t){0};
    c->renewed_at = (mu_mono_t){0};
    c->spoiled_all = ++c->seq;
    c->cleared = c->seq;
}

/* --- answers ---------------------------------------------------------------------------------- */

bool mu_cache_fits(const struct mu_store_request *q)
{
    switch ((int)q->verb) {
    case MU_STORE_GET:
    case MU_STORE_MULTI_GET:
    case MU_STORE_CHECK:
    case MU_STORE_WAIT:
        return q->key_count != 0 && q->key_count <= MU_HOLD_KEYS_MAX;
    default:
        return false;
    }
}

/* Room for the values of a reply. MUSTER_ENOMEM. */
static int reserve_values(struct mu_cache *c, size_t count)
{
    struct mu_span *values;

    if (count <= c->value_cap) {
        return 0;
    }
    values = mu_realloc(c->values, count * sizeof(*values));
    if (values == NULL) {
        return MUSTER_ENOMEM;
    }
    c->values = values;
    c->value_cap = count;
    return 0;
}

/* Where the states of a request's keys come from: what a flight has brought, or memory. */
struct source {
    struct mu_cache *c;
    const struct mu_found *found; /* NULL: from memory */
};

/* MUSTER_EAGAIN: not in memory. */
static int look(const struct source *from, const struct mu_store_request *q, size_t i,
                struct mu_found *ret)
{
    struct entry *e;

    if (from->found != NULL) {
        *ret = from->found[i];
        return 0;
    }
    e = find(from->c, q->keys[i]);
    if (e == NULL) {
        return MUSTER_EAGAIN;
    }
    mu_list_remove(&e->used);
    mu_list_push(&from->c->used, &e->used);
    *ret = (struct mu_found){e->state, mu_span(e->bytes + e->node.key.len, e->len)};
    return 0;
}

/* 0, MUSTER_ENOENT, MUSTER_EAGAIN: not known, or not yet; MUSTER_ELIMIT: only a call of its own can
 * answer it. */
static int answer_from(const struct source *from, const struct mu_store_request *q,
                       struct mu_store_reply *ret)
{
    struct mu_cache *c = from->c;
    bool gets = q->verb == MU_STORE_GET || q->verb == MU_STORE_MULTI_GET;
    bool all = true;
    int err = gets ? reserve_values(c, q->key_count) : 0;

    for (size_t i = 0; i < q->key_count && err == 0; i++) {
        struct mu_found found;

        err = look(from, q, i, &found);
        if (err != 0) {
            return err;
        }
        if (q->verb == MU_STORE_WAIT && c->config.plant == MU_CACHE_PLANT_EAGER_WAIT) {
            continue;
        }
        if (!gets) {
            all = all && found.state != 0 && found.state != MU_FOUND_HELD;
        } else if ((found.state & MU_FOUND_LARGE) != 0 ||
                   ((found.state & (MU_FOUND_QUEUE | MU_FOUND_VALUE)) == MU_FOUND_QUEUE &&
                    (q->flags & MU_STORE_NOWAIT) == 0)) {
            err = MUSTER_ELIMIT; /* the server has its own words for a get of a queue */
        } else if ((found.state & MU_FOUND_VALUE) != 0) {
            c->values[i] = found.value;
        } else if ((q->flags & MU_STORE_OR_EMPTY) != 0) {
            c->values[i] = (struct mu_span){0};
        } else {
            all = false;
        }
    }
    if (err != 0) {
        return err == MUSTER_ENOMEM ? MUSTER_EAGAIN : err;
    }
    *ret = (struct mu_store_reply){0};
    if (q->verb == MU_STORE_CHECK) {
        ret->number = all ? 1 : 0;
        return 0;
    }
    if (!all) {
        return gets && (q->flags & MU_STORE_NOWAIT) != 0 ? MUSTER_ENOENT : MUSTER_EAGAIN;
    }
    ret->values = gets ? c->values : NULL;
    ret->value_count = gets ? q->key_count : 0;
    return 0;
}

int mu_cache_answer(struct mu_cache *c, mu_mono_t now, const struct mu_store_request *q,
                    struct mu_store_reply *ret_reply)
{
    struct source memory = {.c = c};
    int err;

    if (c->count == 0 || !is_leased(c, now)) {
        return MUSTER_EAGAIN;
    }
    err = answer_from(&memory, q, ret_reply);
    if (err == 0 || err == MUSTER_ENOENT) {
        c->hits++;
        c->asked = true;
    }
    return err == MUSTER_ELIMIT ? MUSTER_EAGAIN : err;
}

bool mu_cache_peek(struct mu_cache *c, mu_mono_t now, struct mu_span key, struct mu_found *ret)
{
    struct entry *e = c->on && is_leased(c, now) ? find(c, key) : NULL;

    if (e == NULL) {
        return false;
    }
    *ret = (struct mu_found){e->state, mu_span(e->bytes + e->node.key.len, e->len)};
    return true;
}

mu_mono_t mu_cache_until(struct mu_cache *c, mu_mono_t now)
{
    c->asked = true;
    return c->on && is_leased(c, now) ? c->until : (mu_mono_t){0};
}

bool mu_cache_knows(struct mu_cache *c, mu_mono_t now, const struct mu_store_request *q)
{
    struct source memory = {.c = c};
    struct mu_store_reply reply;
    int err;

    if (c->count == 0 || !is_leased(c, now)) {
        return false;
    }
    err = answer_from(&memory, q, &reply);
    return err == 0 || err == MUSTER_ENOENT;
}

/* --- flights ---------------------------------------------------------------------------------- */

static uint32_t flags_of(const struct mu_store_request *q)
{
    bool waits = q->verb == MU_STORE_WAIT ||
                 (q->verb != MU_STORE_CHECK && (q->flags & MU_STORE_NOWAIT) == 0);

    return (waits ? MU_FETCH_WAIT : 0) |
           ((q->flags & MU_STORE_IN_TURN) != 0 && waits ? MU_FETCH_IN_TURN : 0);
}

static struct mu_cache_flight *new_flight(struct mu_cache *c, const struct mu_store_request *q,
                                          struct mu_span payload)
{
    struct mu_cache_flight *f =
        mu_malloc(sizeof(*f) + payload.len + q->key_count * sizeof(struct mu_span));
    struct mu_reader r;

    if (f == NULL) {
        return NULL;
    }
    *f = (struct mu_cache_flight){.key_count = q->key_count,
                                  .waits = (flags_of(q) & MU_FETCH_WAIT) != 0};
    f->keys = (struct mu_span *)(void *)(f + 1);
    memcpy(f->keys + q->key_count, payload.data, payload.len);
    f->payload = mu_span(f->keys + q->key_count, payload.len);
    r = mu_reader(mu_span_skip(f->payload, 8));
    for (size_t i = 0; i < q->key_count; i++) {
        f->keys[i] = mu_read_span32(&r);
    }
    mu_list_init(&f->link);
    mu_list_init(&f->first);
    mu_list_init(&f->later);
    if (mu_map_insert(&c->flights, &f->node, f->payload) != 0) {
        mu_free(f);
        return NULL;
    }
    mu_list_push(&c->to_send, &f->link);
    return f;
}

int mu_cache_join(struct mu_cache *c, struct mu_cache_ask *ask)
{
    const struct mu_store_request *q = ask->request;
    struct mu_cache_flight *f;
    struct mu_map_node *n;
    struct mu_span payload;
    int err;

    mu_buf_reset(&c->scratch);
    err = mu_fetch_encode(&c->scratch, flags_of(q), q->keys, q->key_count);
    if (err != 0) {
        return err;
    }
    payload = mu_buf_span(&c->scratch);
    n = mu_map_find(&c->flights, payload);
    if (n == NULL) {
        f = new_flight(c, q, payload);
        if (f == NULL) {
            return MUSTER_ENOMEM;
        }
        c->misses++;
    } else {
        f = MU_CONTAINER_OF(n, struct mu_cache_flight, node);
        c->joined++;
    }
    mu_buf_reset(&c->scratch);
    mu_buf_trim(&c->scratch, (size_t)1 << 16);
    ask->flight = f;
    mu_list_init(&ask->link);
    mu_list_push(f->aloft ? &f->later : &f->first, &ask->link);
    return 0;
}

struct mu_cache_flight *mu_cache_leave(struct mu_cache *c, struct mu_cache_ask *ask)
{
    struct mu_cache_flight *f = ask->flight;

    mu_list_remove(&ask->link);
    ask->flight = NULL;
    if (f == c->landed || !mu_list_empty(&f->first) || !mu_list_empty(&f->later)) {
        return NULL;
    }
    mu_map_remove(&c->flights, &f->node);
    f->abandoned = true; /* nobody joins it any more */
    if (f->aloft) {
        return f;
    }
    mu_list_remove(&f->link);
    mu_free(f);
    return NULL;
}

struct mu_cache_flight *mu_cache_next_flight(struct mu_cache *c, mu_mono_t now)
{
    struct mu_list *it = mu_list_pop(&c->to_send);
    struct mu_cache_flight *f;

    if (it == NULL) {
        return NULL;
    }
    f = MU_CONTAINER_OF(it, struct mu_cache_flight, link);
    f->aloft = true;
    f->sent_at = now;
    f->seq = c->seq;
    c->aloft++;
    c->waiting += f->waits ? 1 : 0;
    return f;
}

void mu_cache_renewed(struct mu_cache *c, mu_mono_t now, mu_mono_t sent_at, uint32_t lease_ms)
{
    mu_mono_t until =
        mu_mono_add_ms(c->config.plant == MU_CACHE_PLANT_LATE_LEASE ? now : sent_at, lease_ms);

    if (lease_ms == 0) {
        c->renewed_at = mu_mono_add_ms(c->renewed_at, c->lease_ms / 4); /* we ask again soon */
    }
    (void)is_leased(c, now); /* what a lease that is over was for stays forgotten */
    if (mu_mono_before(c->until, until)) {
        c->until = until;
        c->renewed_at = sent_at;
        c->asked = false;
        c->lease_ms = lease_ms;
    }
}

mu_mono_t mu_cache_renew_at(const struct mu_cache *c)
{
    if (!c->on || (c->waiting == 0 && (c->count == 0 || !c->asked))) {
        return MU_MONO_NEVER;
    }
    return mu_mono_add_ms(c->renewed_at, c->lease_ms / 2);
}

void mu_cache_land(struct mu_cache *c, mu_mono_t now, struct mu_cache_flight *f, int status,
                   struct mu_span payload)
{
    uint32_t lease_ms = 0;
    size_t count = 0;

    MU_ASSERT(c->landed == NULL && f->aloft);
    c->found = NULL;
    if (status == 0) {
        status = mu_found_decode(payload, &lease_ms, &c->found, &count);
    }
    if (status == 0 && count != f->key_count) {
        mu_free(c->found);
        c->found = NULL;
        status = MUSTER_EPROTO;
    }
    c->status = status;
    /* A lease from before everything was forgotten was for other keys, perhaps of others. */
    if (status == 0 && lease_ms != 0 && f->seq >= c->cleared) {
        mu_cache_renewed(c, now, f->sent_at, lease_ms);
    }
    for (size_t i = 0; status == 0 && c->on && is_leased(c, now) && i < count; i++) {
        if ((c->found[i].state & MU_FOUND_HELD) != 0 && !is_spoiled(c, f, f->keys[i])) {
            keep(c, f->keys[i], &c->found[i]);
        }
    }
    c->aloft--;
    c->waiting -= f->waits ? 1 : 0;
    if (c->aloft == 0) {
        free_spoils(c);
    }
    if (!f->abandoned) {
        mu_map_remove(&c->flights, &f->node);
    }
    c->landed = f;
}

/* Whether what ended the wait was an element of a queue, which is for one of those who wait. */
static bool is_for_one(const struct mu_cache *c, const struct mu_cache_flight *f)
{
    bool queue = false;

    for (size_t i = 0; i < f->key_count && f->waits; i++) {
        queue = queue || (c->found[i].state & (MU_FOUND_QUEUE | MU_FOUND_VALUE | MU_FOUND_LARGE)) ==
                             MU_FOUND_QUEUE;
    }
    return queue;
}

/* Puts an ask onto the next flight. False: there is no memory, and it is passed on. */
static bool go_round(struct mu_cache *c, struct mu_cache_ask *ask)
{
    ask->flight = NULL;
    return mu_cache_join(c, ask) == 0;
}

/* Whether the ask, one of the first, is answered by what the flight has brought. */
static int answer_first(struct mu_cache *c, struct mu_cache_flight *f, struct mu_cache_ask *ask,
                        struct mu_cache_outcome *ret)
{
    struct source brought = {.c = c, .found = c->found};
    const struct mu_store_request *q = ask->request;

    if (q->verb == MU_STORE_WAIT) {
        if (is_for_one(c, f)) {
            /* The oldest takes it. */
            if (f->taken) {
                return MUSTER_EAGAIN;
            }
            f->taken = true;
            ret->took = true;
        }
        ret->reply = (struct mu_store_reply){0};
        return 0;
    }
    return answer_from(&brought, q, &ret->reply);
}

static void free_landed(struct mu_cache *c)
{
    mu_free(c->landed);
    mu_free(c->found);
    c->landed = NULL;
    c->found = NULL;
}

bool mu_cache_next(struct mu_cache *c, mu_mono_t now, struct mu_cache_outcome *ret)
{
    struct mu_cache_flight *f = c->landed;
    struct mu_list *it;

    while (f != NULL) {
        bool first = !mu_list_empty(&f->first);
        struct mu_cache_ask *ask;
        int err;

        it = mu_list_pop(first ? &f->first : &f->later);
        if (it == NULL) {
            free_landed(c);
            return false;
        }
        ask = MU_CONTAINER_OF(it, struct mu_cache_ask, link);
        *ret = (struct mu_cache_outcome){.ask = ask};
        if (c->status != 0) {
            ask->flight = NULL;
            ret->failed = true;
            ret->status = c->status;
            return true;
        }
        err = first ? answer_first(c, f, ask, ret)
                    : mu_cache_answer(c, now, ask->request, &ret->reply);
        ret->late = err == MUSTER_EAGAIN && f->taken && ask->request->verb == MU_STORE_WAIT &&
                    (ask->request->flags & MU_STORE_IN_TURN) != 0;
        if (err == MUSTER_EAGAIN && !ret->late && go_round(c, ask)) {
            continue;
        }
        ask->flight = NULL;
        ret->brought = first;
        ret->pass = err == MUSTER_ELIMIT || (err == MUSTER_EAGAIN && !ret->late);
        ret->status = err == MUSTER_ENOENT ? err : 0;
        return true;
    }
    return false;
}

void mu_cache_fini(struct mu_cache *c)
{
    MU_ASSERT(c->flights.count == 0 && c->aloft == 0 && c->landed == NULL);
    forget_all(c);
    free_spoils(c);
    mu_map_fini(&c->keys);
    mu_map_fini(&c->spoils);
    mu_map_fini(&c->flights);
    mu_buf_fini(&c->scratch);
    mu_free(c->values);
}

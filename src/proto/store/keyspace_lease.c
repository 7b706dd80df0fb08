#include "core/alloc.h"
#include "core/assert.h"
#include "proto/store/keyspace_internal.h"

static size_t lease_cost(void)
{
    return sizeof(struct mu_ks_lease) + 2 * sizeof(void *) + MU_KS_ALLOC_OVERHEAD;
}

static struct mu_ks_lease *lease_of(struct mu_map_node *node)
{
    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_ks_lease, node);
}

struct mu_ks_lease *mu_ks_lease_find(const struct mu_keyspace *ks, uint64_t lease)
{
    uint8_t key[8];

    mu_put_u64(key, lease);
    return lease_of(mu_map_find(&ks->leases, mu_span(key, sizeof(key))));
}

void mu_ks_lease_bind(struct mu_ks_entry *e, struct mu_ks_lease *lease)
{
    mu_list_remove(&e->lease_link);
    e->lease = lease;
    if (lease != NULL) {
        mu_list_push(&lease->entries, &e->lease_link);
    }
}

static void arm_at(struct mu_keyspace *ks, struct mu_ks_lease *l, mu_mono_t now, mu_mono_t at)
{
    if (ks->lease_deadlines.root == NULL) {
        /* No ticks were requested until now. */
        ks->last_tick = now;
    }
    mu_heap_insert(&ks->lease_deadlines, &l->deadline, at);
}

static void arm(struct mu_keyspace *ks, struct mu_ks_lease *l, mu_mono_t now)
{
    mu_heap_remove(&ks->lease_deadlines, &l->deadline);
    if (l->ttl_ms != 0) {
        arm_at(ks, l, now, mu_mono_add_ms(now, l->ttl_ms));
    }
}

int mu_ks_lease_grant_as(struct mu_keyspace *ks, mu_mono_t now, uint64_t ttl_ms, uint64_t lease)
{
    struct mu_ks_lease *l;
    int err;

    if (lease == 0 || lease == MU_LEASE_SESSION || mu_ks_lease_find(ks, lease) != NULL) {
        return MUSTER_EINVAL;
    }
    if (ks->leases.count >= ks->config.leases_max) {
        return MUSTER_ELIMIT;
    }
    err = mu_ks_charge(ks, lease_cost(), 0);
    if (err != 0) {
        return err;
    }
    l = mu_malloc(sizeof(*l));
    if (l == NULL) {
        mu_ks_uncharge(ks, lease_cost());
        return MUSTER_ENOMEM;
    }
    *l = (struct mu_ks_lease){.ttl_ms = ttl_ms};
    mu_put_u64(l->key, lease);
    mu_list_init(&l->entries);
    err = mu_map_insert(&ks->leases, &l->node, mu_span(l->key, sizeof(l->key)));
    if (err != 0) {
        mu_ks_uncharge(ks, lease_cost());
        mu_free(l);
        return err;
    }
    arm(ks, l, now);
    return 0;
}

int mu_ks_lease_grant(struct mu_keyspace *ks, mu_mono_t now, uint64_t ttl_ms, uint64_t *ret_lease)
{
    uint64_t lease = ks->lease_id + 1;
    int err;

    while (mu_ks_lease_find(ks, lease) != NULL) {
        lease++; /* A client has drawn that number. */
    }
    err = mu_ks_lease_grant_as(ks, now, ttl_ms, lease);
    if (err == 0) {
        ks->lease_id = lease;
        *ret_lease = lease;
    }
    return err;
}

int mu_ks_lease_keep(struct mu_keyspace *ks, mu_mono_t now, uint64_t lease, uint64_t *ret_ttl_ms)
{
    struct mu_ks_lease *l = mu_ks_lease_find(ks, lease);

    if (l == NULL || l->over) {
        return MUSTER_ENOENT;
    }
    arm(ks, l, now);
    *ret_ttl_ms = l->ttl_ms;
    return 0;
}

/* Deletes a key whose lease ends. The first of `news` is about it, unless it is not watched. */
static void drop_entry(struct mu_keyspace *ks, struct mu_ks_entry *e, struct mu_list *news)
{
    struct mu_ks_change *change = NULL;

    if (!mu_list_empty(news)) {
        change = MU_CONTAINER_OF(news->next, struct mu_ks_change, link);
        if (mu_span_eq(change->what.key, e->node.key)) {
            mu_list_remove(&change->link);
        } else {
            change = NULL;
        }
    }
    mu_ks_change_commit(ks, change);
    /* A leased value is not in the journal: there is nothing to delete from it. */
    MU_ASSERT(e->record == 0);
    mu_ks_lease_bind(e, NULL);
    mu_ks_entry_clear(ks, e);
    mu_ks_entry_settle(ks, e);
}

/* Prepares the news of all keys that end with a lease, in the order of their binding. */
static int stage_news(struct mu_keyspace *ks, struct mu_ks_lease *l, struct mu_list *news)
{
    if (ks->watch_count == 0) {
        return 0;
    }
    MU_LIST_FOREACH (it, &l->entries) {
        struct mu_ks_entry *e = MU_CONTAINER_OF(it, struct mu_ks_entry, lease_link);
        struct mu_ks_change *change;
        int err = mu_ks_change_new(ks, e, MU_CHANGE_EXPIRED, (struct mu_span){0},
                                   (struct mu_span){0}, &change);

        if (err != 0) {
            return err;
        }
        if (change != NULL) {
            mu_list_push(news, &change->link);
        }
    }
    return 0;
}

/* Ends a lease: deletes its keys and frees it. MUSTER_ENOMEM changes nothing. */
static int end_lease(struct mu_keyspace *ks, struct mu_ks_lease *l, size_t *ret_removed)
{
    struct mu_list news;
    struct mu_list *at;
    size_t removed = 0;
    int err;

    mu_list_init(&news);
    err = stage_news(ks, l, &news);
    if (err != 0) {
        while ((at = mu_list_pop(&news)) != NULL) {
            mu_ks_change_free(ks, MU_CONTAINER_OF(at, struct mu_ks_change, link));
        }
        return err;
    }
    while (!mu_list_empty(&l->entries)) {
        drop_entry(ks, MU_CONTAINER_OF(l->entries.next, struct mu_ks_entry, lease_link), &news);
        removed++;
    }
    mu_heap_remove(&ks->lease_deadlines, &l->deadline);
    mu_map_remove(&ks->leases, &l->node);
    mu_ks_uncharge(ks, lease_cost());
    mu_free(l);
    *ret_removed = removed;
    return 0;
}

int mu_ks_lease_revoke(struct mu_keyspace *ks, uint64_t lease, size_t *ret_removed)
{
    struct mu_ks_lease *l = mu_ks_lease_find(ks, lease);

    return l == NULL ? MUSTER_ENOENT : end_lease(ks, l, ret_removed);
}

void mu_ks_lease_end(struct mu_keyspace *ks, mu_mono_t now, uint64_t lease)
{
    struct mu_ks_lease *l = mu_ks_lease_find(ks, lease);
    size_t removed;

    if (l != NULL && end_lease(ks, l, &removed) != 0) {
        l->over = true;
        mu_heap_remove(&ks->lease_deadlines, &l->deadline);
        arm_at(ks, l, now, mu_mono_add_ns(now, MU_KS_TICK_NS));
    }
}

mu_mono_t mu_ks_deadline(const struct mu_keyspace *ks)
{
    if (ks->lease_deadlines.root == NULL) {
        return MU_MONO_NEVER;
    }
    return mu_mono_min(mu_heap_deadline(&ks->lease_deadlines),
                       mu_mono_add_ns(ks->last_tick, MU_KS_TICK_NS));
}

void mu_ks_tick(struct mu_keyspace *ks, mu_mono_t now)
{
    mu_mono_t asked = mu_ks_deadline(ks);
    bool tilt = mu_mono_since(asked, now) > MU_KS_TILT_NS;
    struct mu_heap_node *due;

    while ((due = mu_heap_min(&ks->lease_deadlines)) != NULL && mu_mono_reached(due->at, now)) {
        struct mu_ks_lease *l = MU_CONTAINER_OF(due, struct mu_ks_lease, deadline);
        size_t removed;

        if (tilt && !l->over) {
            arm(ks, l, now);
        } else if (end_lease(ks, l, &removed) != 0) {
            /* There is no memory for the news: a lease may end late, but news must not be lost.
             */
            mu_heap_remove(&ks->lease_deadlines, due);
            mu_heap_insert(&ks->lease_deadlines, due, mu_mono_add_ns(now, MU_KS_TICK_NS));
        }
    }
    ks->last_tick = now;
}

void mu_ks_lease_fini(struct mu_keyspace *ks)
{
    struct mu_map_node *node = mu_map_next(&ks->leases, NULL);

    while (node != NULL) {
        struct mu_map_node *next = mu_map_next(&ks->leases, node);

        mu_free(lease_of(node));
        node = next;
    }
    mu_map_fini(&ks->leases);
    mu_heap_init(&ks->lease_deadlines);
}

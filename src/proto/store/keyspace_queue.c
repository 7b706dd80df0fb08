#include "core/alloc.h"
#include "core/assert.h"
#include "proto/store/keyspace_internal.h"

static size_t element_cost(size_t len)
{
    return sizeof(struct mu_ks_element) + len + 2 * MU_KS_ALLOC_OVERHEAD;
}

static void element_free(struct mu_keyspace *ks, struct mu_ks_element *el)
{
    mu_ks_uncharge(ks, element_cost(el->len));
    mu_free(el->data);
    mu_free(el);
}

static int element_new(struct mu_keyspace *ks, struct mu_span value, struct mu_ks_element **ret)
{
    struct mu_ks_element *el;
    int err = mu_ks_charge(ks, element_cost(value.len), 0);

    if (err != 0) {
        return err;
    }
    el = mu_malloc(sizeof(*el));
    if (el == NULL) {
        mu_ks_uncharge(ks, element_cost(value.len));
        return MUSTER_ENOMEM;
    }
    *el = (struct mu_ks_element){.len = value.len, .data = mu_malloc(value.len)};
    if (el->data == NULL) {
        element_free(ks, el);
        return MUSTER_ENOMEM;
    }
    if (value.len != 0) {
        memcpy(el->data, value.data, value.len);
    }
    mu_list_init(&el->link);
    *ret = el;
    return 0;
}

uint8_t *mu_ks_element_take(struct mu_keyspace *ks, struct mu_ks_waiting *waiting, size_t *ret_len)
{
    struct mu_list *at = mu_list_pop(&waiting->elements);
    struct mu_ks_element *el = MU_CONTAINER_OF(at, struct mu_ks_element, link);
    uint8_t *data = el->data;

    MU_ASSERT(at != NULL);
    waiting->element_count--;
    mu_ks_journal_del(ks, &el->record);
    *ret_len = el->len;
    el->data = NULL;
    element_free(ks, el);
    return data;
}

/* Makes the entry of `key`, its waiting list, and an element that is not in the queue yet. */
static int prepare_element(struct mu_keyspace *ks, struct mu_span key, struct mu_span value,
                           struct mu_ks_entry **ret_entry, struct mu_ks_element **ret_element)
{
    uint64_t hash = mu_map_hash(&ks->entries, key);
    struct mu_ks_entry *e = mu_ks_entry_of(mu_map_find_hash(&ks->entries, key, hash));
    int err = e != NULL ? 0 : mu_ks_entry_new(ks, key, hash, 0, &e);

    if (err != 0) {
        return err;
    }
    err = mu_ks_entry_waiting(ks, e);
    if (err == 0) {
        err = element_new(ks, value, ret_element);
    }
    if (err != 0) {
        mu_ks_entry_settle(ks, e);
        return err;
    }
    *ret_entry = e;
    return 0;
}

int mu_ks_queue_push(struct mu_keyspace *ks, struct mu_span key, struct mu_span value,
                     size_t *ret_len)
{
    struct mu_ks_element *el;
    struct mu_ks_entry *e;
    int err;

    if (key.len > ks->config.key_bytes_max || value.len > ks->config.value_bytes_max) {
        return MUSTER_ELIMIT;
    }
    /* The pop of a waiting client may follow the push. */
    err = mu_ks_journal_reserve(ks, mu_ks_journal_put_len(ks, key.len, value.len) +
                                        mu_ks_journal_del_len(ks));
    if (err == 0) {
        err = prepare_element(ks, key, value, &e, &el);
    }
    if (err != 0) {
        return err;
    }
    mu_list_push(&e->waiting->elements, &el->link);
    *ret_len = ++e->waiting->element_count;
    mu_ks_serve_push(ks, e->waiting);
    /* An element that goes straight to a waiting client never enters the journal. */
    if (e->waiting->element_count != 0) {
        mu_ks_journal_element(ks, e, el);
    }
    mu_ks_entry_settle(ks, e);
    return 0;
}

int mu_ks_queue_pop(struct mu_keyspace *ks, struct mu_span key, uint8_t **ret_value,
                    size_t *ret_value_len, int64_t *ret_len_before)
{
    struct mu_ks_entry *e = mu_ks_find(ks, key);
    int err;

    if (e == NULL || e->waiting == NULL || e->waiting->element_count == 0) {
        return MUSTER_ENOENT;
    }
    err = mu_ks_journal_reserve(ks, mu_ks_journal_del_len(ks));
    if (err != 0) {
        return err;
    }
    *ret_len_before = (int64_t)e->waiting->element_count;
    *ret_value = mu_ks_element_take(ks, e->waiting, ret_value_len);
    mu_ks_entry_settle(ks, e);
    return 0;
}

/* Drops the elements of a key's queue; false if there was no memory to journal that. */
static bool drop_elements(struct mu_keyspace *ks, struct mu_ks_waiting *waiting)
{
    while (waiting->element_count != 0) {
        size_t len;

        if (mu_ks_journal_reserve(ks, mu_ks_journal_del_len(ks)) != 0) {
            return false;
        }
        mu_free(mu_ks_element_take(ks, waiting, &len));
    }
    return true;
}

void mu_ks_delete_prefix(struct mu_keyspace *ks, struct mu_span prefix, size_t *ret_removed)
{
    struct mu_map_node *next = mu_map_next(&ks->entries, NULL);

    *ret_removed = 0;
    while (next != NULL) {
        struct mu_ks_entry *e = mu_ks_entry_of(next);
        bool removed = false;

        next = mu_map_next(&ks->entries, next);
        if (!mu_span_starts_with(e->node.key, prefix) || !mu_ks_present(e)) {
            continue;
        }
        if (e->waiting != NULL && !drop_elements(ks, e->waiting)) {
            continue;
        }
        if (e->has_value) {
            (void)mu_ks_delete(ks, e->node.key, &removed);
        } else {
            mu_ks_entry_settle(ks, e);
            removed = true;
        }
        *ret_removed += removed;
    }
}

size_t mu_ks_queue_len(const struct mu_keyspace *ks, struct mu_span key)
{
    const struct mu_ks_entry *e = mu_ks_find(ks, key);

    return e == NULL || e->waiting == NULL ? 0 : e->waiting->element_count;
}

int mu_ks_load_element(struct mu_keyspace *ks, uint64_t number, struct mu_span key,
                       struct mu_span value)
{
    struct mu_ks_element *el;
    struct mu_ks_entry *e;
    int err = prepare_element(ks, key, value, &e, &el);

    if (err != 0) {
        return err;
    }
    el->record = number;
    mu_list_push(&e->waiting->elements, &el->link);
    e->waiting->element_count++;
    return 0;
}

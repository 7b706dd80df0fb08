#include "core/alloc.h"
#include "core/assert.h"
#include "proto/store/keyspace_internal.h"

static size_t regs_cost(size_t count)
{
    return count * sizeof(struct mu_ks_reg) + MU_KS_ALLOC_OVERHEAD;
}

static struct mu_list *list_of_kind(struct mu_ks_waiting *waiting, enum mu_ks_wait_kind kind)
{
    switch (kind) {
    case MU_KS_WAIT_TORCH:
        return &waiting->torch;
    case MU_KS_WAIT_ALL:
        return &waiting->all;
    case MU_KS_WAIT_POP:
        return &waiting->pops;
    }
    mu_panic(__FILE__, __LINE__, "a kind of wait");
}

static struct mu_ks_reg *first_reg(struct mu_list *list)
{
    return mu_list_empty(list) ? NULL : MU_CONTAINER_OF(list->next, struct mu_ks_reg, link);
}

/* Gives back the memory that a wait holds; its registrations are off all lists. */
static void release_regs(struct mu_keyspace *ks, struct mu_ks_wait *w)
{
    mu_ks_uncharge(ks, regs_cost(w->reg_count));
    if (w->regs != &w->one) {
        mu_free(w->regs);
    }
    w->regs = NULL;
    w->reg_count = 0;
    ks->wait_count--;
}

/* One key of a wait came. Returns whether that ended the wait. */
static bool count_down(struct mu_keyspace *ks, struct mu_ks_reg *reg)
{
    struct mu_ks_wait *w = reg->wait;

    mu_list_remove(&reg->link);
    reg->entry = NULL;
    if (--w->missing != 0) {
        return false;
    }
    release_regs(ks, w);
    mu_list_push(&ks->ready, &w->ready);
    return true;
}

static void count_down_all(struct mu_keyspace *ks, struct mu_list *list)
{
    struct mu_ks_reg *reg;

    while ((reg = first_reg(list)) != NULL) {
        (void)count_down(ks, reg);
    }
}

void mu_ks_wake(struct mu_keyspace *ks, struct mu_ks_waiting *waiting)
{
    count_down_all(ks, &waiting->torch);
    count_down_all(ks, &waiting->all);
}

void mu_ks_serve_push(struct mu_keyspace *ks, struct mu_ks_waiting *waiting)
{
    bool claimed = false;

    count_down_all(ks, &waiting->all);
    while (!claimed) {
        struct mu_ks_reg *torch = first_reg(&waiting->torch);
        struct mu_ks_reg *pop = first_reg(&waiting->pops);

        if (pop != NULL && (torch == NULL || pop->ticket < torch->ticket)) {
            struct mu_ks_wait *w = pop->wait;

            w->len_before = (int64_t)waiting->element_count;
            w->popped = mu_ks_element_take(ks, waiting, &w->popped_len);
            claimed = count_down(ks, pop);
        } else if (torch != NULL) {
            /* A wait that still misses other keys is not about to pop: the next one gets the
             * turn. */
            claimed = count_down(ks, torch);
        } else {
            break;
        }
    }
}

/* Takes a wait off all keys; entries that nothing else keeps are freed. */
static void unregister(struct mu_keyspace *ks, struct mu_ks_wait *w)
{
    for (size_t i = 0; i < w->reg_count; i++) {
        struct mu_ks_reg *reg = &w->regs[i];

        if (reg->entry != NULL) {
            mu_list_remove(&reg->link);
            mu_ks_entry_settle(ks, reg->entry);
        }
    }
    w->missing = 0;
    release_regs(ks, w);
}

/* Registers a wait for a key that is missing, unless it is registered for it already. */
static int register_key(struct mu_keyspace *ks, struct mu_ks_wait *w, struct mu_span key)
{
    uint64_t hash = mu_map_hash(&ks->entries, key);
    struct mu_ks_entry *e = mu_ks_entry_of(mu_map_find_hash(&ks->entries, key, hash));
    struct mu_ks_reg *reg = &w->regs[w->missing];
    struct mu_list *list;
    int err = 0;

    if (e == NULL) {
        err = mu_ks_entry_new(ks, key, hash, 0, &e);
    }
    if (err != 0) {
        return err;
    }
    err = mu_ks_entry_waiting(ks, e);
    if (err != 0) {
        mu_ks_entry_settle(ks, e);
        return err;
    }
    list = list_of_kind(e->waiting, w->kind);
    /* No other wait registers meanwhile: a key that was named before has this very wait at its
     * end. */
    if (!mu_list_empty(list) && MU_CONTAINER_OF(list->prev, struct mu_ks_reg, link)->wait == w) {
        return 0;
    }
    *reg = (struct mu_ks_reg){.entry = e, .wait = w, .ticket = ++ks->ticket};
    mu_list_push(list, &reg->link);
    w->missing++;
    return 0;
}

static bool is_missing(const struct mu_keyspace *ks, enum mu_ks_wait_kind kind, struct mu_span key)
{
    return kind == MU_KS_WAIT_POP ? mu_ks_queue_len(ks, key) == 0 : !mu_ks_has(ks, key);
}

/* Counts the missing keys; a wait for no keys is over. */
static int count_missing(const struct mu_keyspace *ks, enum mu_ks_wait_kind kind,
                         const struct mu_span *keys, size_t count, size_t *ret_missing)
{
    size_t missing = 0;

    if (count > ks->config.keys_max) {
        return MUSTER_ELIMIT;
    }
    for (size_t i = 0; i < count; i++) {
        if (keys[i].len > ks->config.key_bytes_max) {
            return MUSTER_ELIMIT;
        }
        missing += is_missing(ks, kind, keys[i]) ? 1 : 0;
    }
    *ret_missing = missing;
    return 0;
}

/* Makes room for `count` empty registrations. */
static int reserve_regs(struct mu_keyspace *ks, struct mu_ks_wait *w, size_t count)
{
    struct mu_ks_reg *regs = &w->one;
    int err = mu_ks_charge(ks, regs_cost(count), 0);

    if (err != 0) {
        return err;
    }
    if (count > 1) {
        regs = mu_calloc(count, sizeof(*regs));
        if (regs == NULL) {
            mu_ks_uncharge(ks, regs_cost(count));
            return MUSTER_ENOMEM;
        }
    }
    w->one = (struct mu_ks_reg){0};
    w->regs = regs;
    w->reg_count = count;
    ks->wait_count++;
    return 0;
}

int mu_ks_wait(struct mu_keyspace *ks, struct mu_ks_wait *w, enum mu_ks_wait_kind kind,
               const struct mu_span *keys, size_t count, bool *ret_ready)
{
    size_t missing;
    int err;

    MU_ASSERT(!mu_ks_wait_active(w) && w->popped == NULL);
    MU_ASSERT(kind != MU_KS_WAIT_POP || count == 1);
    err = count_missing(ks, kind, keys, count, &missing);
    if (err != 0) {
        return err;
    }
    if (missing == 0) {
        if (kind == MU_KS_WAIT_POP) {
            err = mu_ks_queue_pop(ks, keys[0], &w->popped, &w->popped_len, &w->len_before);
        }
        if (err == 0) {
            w->kind = kind;
            *ret_ready = true;
        }
        return err;
    }
    err = reserve_regs(ks, w, missing);
    if (err != 0) {
        return err;
    }
    w->kind = kind;
    w->missing = 0;
    for (size_t i = 0; i < count && err == 0; i++) {
        if (is_missing(ks, kind, keys[i])) {
            err = register_key(ks, w, keys[i]);
        }
    }
    if (err != 0) {
        unregister(ks, w);
        return err;
    }
    *ret_ready = false;
    return 0;
}

void mu_ks_wait_cancel(struct mu_keyspace *ks, struct mu_ks_wait *w)
{
    if (w->reg_count != 0) {
        unregister(ks, w);
    } else if (w->ready.next != NULL) {
        mu_list_remove(&w->ready);
        w->ready.next = NULL;
    }
    mu_free(w->popped);
    w->popped = NULL;
    w->popped_len = 0;
}

bool mu_ks_wait_active(const struct mu_ks_wait *w)
{
    return w->reg_count != 0 || w->ready.next != NULL;
}

size_t mu_ks_wait_missing(const struct mu_ks_wait *w, struct mu_span *ret_keys, size_t cap)
{
    size_t n = 0;

    for (size_t i = 0; i < w->reg_count && n < cap; i++) {
        if (w->regs[i].entry != NULL) {
            ret_keys[n++] = w->regs[i].entry->node.key;
        }
    }
    return w->missing;
}

uint8_t *mu_ks_wait_take_popped(struct mu_ks_wait *w, size_t *ret_len)
{
    uint8_t *popped = w->popped;

    *ret_len = w->popped_len;
    w->popped = NULL;
    w->popped_len = 0;
    return popped;
}

/* --- barrier ---------------------------------------------------------------------------------- */

/*
 * Clients that must wait do so on the queue of a companion key, because a queue shows in neither
 * num_keys nor list_keys: the client that completes the count pushes an element there, which wakes
 * all of them, and removes it again at once. So nothing stays behind. PyTorch's own keys begin with
 * '/' or 'i', so a companion is never mistaken for one of them.
 */
#define COMPANION_PREFIX "\0barrier"

static int wake_barrier(struct mu_keyspace *ks, struct mu_span companion)
{
    uint8_t *element;
    size_t len;
    int64_t len_before;
    int err = mu_ks_queue_push(ks, companion, (struct mu_span){0}, &len);

    if (err == 0 && mu_ks_queue_pop(ks, companion, &element, &len, &len_before) == 0) {
        mu_free(element);
    }
    return err;
}

int mu_ks_barrier(struct mu_keyspace *ks, struct mu_ks_wait *w, struct mu_span key, int64_t world,
                  bool *ret_ready)
{
    struct mu_buf name;
    struct mu_span companion;
    int64_t count = 0;
    bool ready = false;
    int err;

    mu_buf_init(&name, SIZE_MAX / 2);
    err = mu_buf_reserve(&name, sizeof(COMPANION_PREFIX) + key.len);
    if (err != 0) {
        return err;
    }
    mu_buf_put(&name, mu_span(COMPANION_PREFIX, sizeof(COMPANION_PREFIX)));
    mu_buf_put(&name, key);
    companion = mu_buf_span(&name);
    /* Registering comes first, so that a failure leaves the count as it was. */
    err = mu_ks_wait(ks, w, MU_KS_WAIT_ALL, &companion, 1, &ready);
    if (err == 0) {
        err = mu_ks_add(ks, key, 1, 0, &count);
    }
    if (err == 0 && count >= world) {
        mu_ks_wait_cancel(ks, w);
        err = wake_barrier(ks, companion);
        ready = true;
    }
    mu_buf_fini(&name);
    if (err != 0) {
        mu_ks_wait_cancel(ks, w);
        return err;
    }
    *ret_ready = ready;
    return 0;
}

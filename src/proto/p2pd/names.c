#include "proto/p2pd/names.h"

#include <string.h>

#include <muster/error.h>

#include "codec/peer/multiaddr.h"
#include "core/alloc.h"

void mu_p2pd_names_init(struct mu_p2pd_names *names, size_t name_len_max, uint64_t seed)
{
    *names = (struct mu_p2pd_names){.name_len_max = name_len_max};
    mu_map_init(&names->map, seed);
    mu_list_init(&names->gone);
}

void mu_p2pd_names_fini(struct mu_p2pd_names *names)
{
    mu_map_fini(&names->map);
}

static struct mu_p2pd_name *find(const struct mu_p2pd_names *names, struct mu_span text)
{
    struct mu_map_node *node = mu_map_find(&names->map, text);

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_p2pd_name, by_name);
}

static size_t *count_of(struct mu_p2pd_name *n)
{
    return n->unary ? &n->names->unary_count : &n->names->addr_count;
}

/* --- adding ----------------------------------------------------------------------------------- */

static struct mu_p2pd_name *make(struct mu_p2pd_names *names, struct mu_span text, bool unary)
{
    struct mu_p2pd_name *n = mu_calloc(1, sizeof(*n) + text.len + 1);

    if (n == NULL) {
        return NULL;
    }
    n->names = names;
    n->unary = unary;
    memcpy(n->text, text.data, text.len);
    mu_list_init(&n->gone);
    if (mu_map_insert(&names->map, &n->by_name, mu_span(n->text, text.len)) != 0) {
        mu_free(n);
        return NULL;
    }
    return n;
}

static int append(struct mu_p2pd_name *n, struct mu_p2pd_user *user, struct mu_span addr)
{
    struct mu_p2pd_handler *h;

    if (n->count == n->cap) {
        size_t cap = n->cap == 0 ? 2 : n->cap * 2;
        struct mu_p2pd_handler **bigger = mu_realloc(n->handlers, cap * sizeof(*bigger));

        if (bigger == NULL) {
            return MUSTER_ENOMEM;
        }
        n->handlers = bigger;
        n->cap = cap;
    }
    h = mu_calloc(1, sizeof(*h) + addr.len);
    if (h == NULL) {
        return MUSTER_ENOMEM;
    }
    h->user = user;
    h->addr_len = addr.len;
    if (addr.len != 0) {
        memcpy(h->addr, addr.data, addr.len);
    }
    n->handlers[n->count++] = h;
    ++*count_of(n);
    return 0;
}

static void bury(struct mu_p2pd_name *n)
{
    mu_map_remove(&n->names->map, &n->by_name);
    mu_list_push(&n->names->gone, &n->gone);
}

static int cannot_set(struct mu_span text, struct mu_errmsg *reterr_msg, int err)
{
    return mu_err(reterr_msg, err,
                  err == MUSTER_EEXIST ? "handler for protocol %.*s already set"
                                       : "handler for protocol %.*s cannot be set",
                  (int)(text.len < 160 ? text.len : 160), (const char *)text.data);
}

int mu_p2pd_names_add(struct mu_p2pd_names *names, struct mu_span text, struct mu_p2pd_user *user,
                      struct mu_span addr, bool balanced, struct mu_p2pd_name **ret_name,
                      struct mu_errmsg *reterr_msg)
{
    struct mu_p2pd_name *n = find(names, text);

    if (text.len == 0 || text.len > names->name_len_max ||
        memchr(text.data, '\0', text.len) != NULL) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the name of a protocol has 1 to %d characters",
                      (int)names->name_len_max);
    }
    if (n != NULL && (!balanced || n->unary != (user != NULL))) {
        return cannot_set(text, reterr_msg, MUSTER_EEXIST);
    }
    if (n == NULL) {
        n = make(names, text, user != NULL);
        if (n == NULL) {
            return cannot_set(text, reterr_msg, MUSTER_ENOMEM);
        }
    }
    if (append(n, user, addr) != 0) {
        if (n->count == 0) {
            bury(n);
        }
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    *ret_name = n;
    return 0;
}

/* --- removing --------------------------------------------------------------------------------- */

/* The handler whose turn it is stays the one whose turn it is. */
static void remove_at(struct mu_p2pd_name *n, size_t i)
{
    mu_free(n->handlers[i]);
    memmove(&n->handlers[i], &n->handlers[i + 1], (n->count - i - 1) * sizeof(n->handlers[0]));
    n->count--;
    --*count_of(n);
    if (i < n->next) {
        n->next--;
    }
    if (n->next == n->count) {
        n->next = 0;
    }
    if (n->count == 0) {
        bury(n);
    }
}

int mu_p2pd_names_refuse(struct mu_p2pd_name *name, int err, struct mu_errmsg *reterr_msg)
{
    (void)cannot_set(name->by_name.key, reterr_msg, err);
    remove_at(name, name->count - 1);
    return err;
}

static size_t index_of(const struct mu_p2pd_name *n, const struct mu_p2pd_user *user,
                       struct mu_span addr)
{
    size_t i = 0;

    while (i < n->count &&
           (n->handlers[i]->user != user ||
            !mu_span_eq(mu_span(n->handlers[i]->addr, n->handlers[i]->addr_len), addr))) {
        i++;
    }
    return i;
}

int mu_p2pd_names_remove(struct mu_p2pd_names *names, struct mu_span text,
                         struct mu_p2pd_user *user, struct mu_span addr,
                         struct mu_errmsg *reterr_msg)
{
    struct mu_p2pd_name *n = find(names, text);
    char addr_text[MU_ERRMSG_CAP];
    size_t i;

    if (n == NULL || n->unary != (user != NULL)) {
        return mu_err(reterr_msg, MUSTER_ENOENT, "handler for protocol %.*s does not exist",
                      (int)(text.len < 160 ? text.len : 160), (const char *)text.data);
    }
    i = index_of(n, user, addr);
    if (i == n->count && user != NULL) {
        return mu_err(reterr_msg, MUSTER_ENOENT,
                      "handler for protocol %.120s was not created in this persistent connection",
                      n->text);
    }
    if (i == n->count) {
        return mu_err(reterr_msg, MUSTER_ENOENT,
                      "handler for protocol %.80s with maddr %.110s does not exist", n->text,
                      mu_multiaddr_format(addr, addr_text, sizeof(addr_text)));
    }
    remove_at(n, i);
    return 0;
}

void mu_p2pd_names_drop(struct mu_p2pd_names *names, const struct mu_p2pd_user *user)
{
    struct mu_map_node *node = mu_map_next(&names->map, NULL);

    while (node != NULL) {
        struct mu_p2pd_name *n = MU_CONTAINER_OF(node, struct mu_p2pd_name, by_name);

        node = mu_map_next(&names->map, node);
        for (size_t i = n->count; i > 0; i--) {
            if (n->handlers[i - 1]->user == user) {
                remove_at(n, i - 1);
            }
        }
    }
}

void mu_p2pd_names_clear(struct mu_p2pd_names *names)
{
    struct mu_map_node *node;

    while ((node = mu_map_next(&names->map, NULL)) != NULL) {
        remove_at(MU_CONTAINER_OF(node, struct mu_p2pd_name, by_name), 0);
    }
}

struct mu_p2pd_name *mu_p2pd_names_gone(const struct mu_p2pd_names *names)
{
    return mu_list_empty(&names->gone)
               ? NULL
               : MU_CONTAINER_OF(names->gone.next, struct mu_p2pd_name, gone);
}

void mu_p2pd_name_free(struct mu_p2pd_name *name)
{
    mu_list_remove(&name->gone);
    mu_free(name->handlers);
    mu_free(name);
}

/* --- turns ------------------------------------------------------------------------------------ */

struct mu_p2pd_handler *mu_p2pd_names_next(struct mu_p2pd_names *names, struct mu_span text)
{
    struct mu_p2pd_name *n = find(names, text);
    struct mu_p2pd_handler *h;

    if (n == NULL) {
        return NULL;
    }
    h = n->handlers[n->next];
    n->next = (n->next + 1) % n->count;
    return h;
}

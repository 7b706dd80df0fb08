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

static struct mu_p2pd_handler *handler_of(struct mu_list *link)
{
    return MU_CONTAINER_OF(link, struct mu_p2pd_handler, link);
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
    mu_list_init(&n->handlers);
    if (mu_map_insert(&names->map, &n->by_name, mu_span(n->text, text.len)) != 0) {
        mu_free(n);
        return NULL;
    }
    return n;
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
    struct mu_p2pd_handler *h;

    if (text.len == 0 || text.len > names->name_len_max ||
        memchr(text.data, '\0', text.len) != NULL) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the name of a protocol has 1 to %d characters",
                      (int)names->name_len_max);
    }
    if (n != NULL && (!balanced || n->unary != (user != NULL))) {
        return cannot_set(text, reterr_msg, MUSTER_EEXIST);
    }
    h = mu_calloc(1, sizeof(*h) + addr.len);
    if (h == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    n = n != NULL ? n : make(names, text, user != NULL);
    if (n == NULL) {
        mu_free(h);
        return cannot_set(text, reterr_msg, MUSTER_ENOMEM);
    }
    h->user = user;
    h->addr_len = addr.len;
    if (addr.len != 0) {
        memcpy(h->addr, addr.data, addr.len);
    }
    mu_list_push(&n->handlers, &h->link);
    n->next = n->next == NULL ? &h->link : n->next;
    ++*count_of(n);
    *ret_name = n;
    return 0;
}

/* --- removing --------------------------------------------------------------------------------- */

/* The next has its turn; behind the last one comes the first. */
static void pass_turn(struct mu_p2pd_name *n)
{
    n->next = n->next->next == &n->handlers ? n->handlers.next : n->next->next;
}

static void remove_handler(struct mu_p2pd_name *n, struct mu_p2pd_handler *h)
{
    if (n->next == &h->link) {
        pass_turn(n);
    }
    mu_list_remove(&h->link);
    mu_free(h);
    --*count_of(n);
    if (mu_list_empty(&n->handlers)) {
        mu_map_remove(&n->names->map, &n->by_name);
        mu_list_push(&n->names->gone, &n->gone);
    }
}

int mu_p2pd_names_refuse(struct mu_p2pd_name *name, int err, struct mu_errmsg *reterr_msg)
{
    (void)cannot_set(name->by_name.key, reterr_msg, err);
    remove_handler(name, handler_of(name->handlers.prev));
    return err;
}

static struct mu_p2pd_handler *find_handler(const struct mu_p2pd_name *n,
                                            const struct mu_p2pd_user *user, struct mu_span addr)
{
    MU_LIST_FOREACH (it, &n->handlers) {
        struct mu_p2pd_handler *h = handler_of(it);

        if (h->user == user && mu_span_eq(mu_span(h->addr, h->addr_len), addr)) {
            return h;
        }
    }
    return NULL;
}

int mu_p2pd_names_remove(struct mu_p2pd_names *names, struct mu_span text,
                         struct mu_p2pd_user *user, struct mu_span addr,
                         struct mu_errmsg *reterr_msg)
{
    struct mu_p2pd_name *n = find(names, text);
    char addr_text[MU_ERRMSG_CAP];
    struct mu_p2pd_handler *h;

    if (n == NULL || n->unary != (user != NULL)) {
        return mu_err(reterr_msg, MUSTER_ENOENT, "handler for protocol %.*s does not exist",
                      (int)(text.len < 160 ? text.len : 160), (const char *)text.data);
    }
    h = find_handler(n, user, addr);
    if (h == NULL && user != NULL) {
        return mu_err(reterr_msg, MUSTER_ENOENT,
                      "handler for protocol %.120s was not created in this persistent connection",
                      n->text);
    }
    if (h == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOENT,
                      "handler for protocol %.80s with maddr %.110s does not exist", n->text,
                      mu_multiaddr_format(addr, addr_text, sizeof(addr_text)));
    }
    remove_handler(n, h);
    return 0;
}

void mu_p2pd_names_drop(struct mu_p2pd_names *names, const struct mu_p2pd_user *user)
{
    struct mu_map_node *node = mu_map_next(&names->map, NULL);

    while (node != NULL) {
        struct mu_p2pd_name *n = MU_CONTAINER_OF(node, struct mu_p2pd_name, by_name);

        node = mu_map_next(&names->map, node);
        MU_LIST_FOREACH_SAFE (it, tmp, &n->handlers) {
            if (user == NULL || handler_of(it)->user == user) {
                remove_handler(n, handler_of(it));
            }
        }
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
    mu_free(name);
}

/* --- turns ------------------------------------------------------------------------------------ */

struct mu_p2pd_handler *mu_p2pd_names_next(struct mu_p2pd_names *names, struct mu_span text)
{
    struct mu_p2pd_name *n = find(names, text);
    struct mu_p2pd_handler *h = n == NULL ? NULL : handler_of(n->next);

    if (h != NULL) {
        pass_turn(n);
    }
    return h;
}

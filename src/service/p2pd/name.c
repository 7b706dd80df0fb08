/* Who handles what: for each protocol those who do, in turn. */
#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "service/p2pd/p2pd_internal.h"

static struct mu_p2pd_name *find(struct mu_p2pd *d, struct mu_span name)
{
    struct mu_map_node *node = mu_map_find(&d->names, name);

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_p2pd_name, by_name);
}

static void free_name(struct mu_p2pd_name *n)
{
    mu_peer_host_unserve(&n->handler);
    mu_map_remove(&n->d->names, &n->by_name);
    for (size_t i = 0; i < n->count; i++) {
        mu_free(n->targets[i]);
    }
    mu_free(n->targets);
    mu_free(n);
}

static struct mu_host_stream *on_opened(struct mu_peer_handler *handler,
                                        const struct mu_peer_id *peer, struct mu_span name)
{
    struct mu_p2pd_name *n = MU_CONTAINER_OF(handler, struct mu_p2pd_name, handler);

    return n->unary ? mu_p2pd_leg_opened(n->d, name)
                    : mu_p2pd_pipe_opened(n->d, mu_p2pd_name_next(n->d, name), peer, name);
}

static struct mu_p2pd_name *make(struct mu_p2pd *d, struct mu_span name, bool unary,
                                 struct mu_errmsg *reterr_msg)
{
    struct mu_p2pd_name *n = mu_calloc(1, sizeof(*n) + name.len + 1);
    int err = n == NULL ? MUSTER_ENOMEM : 0;

    if (err == 0) {
        n->d = d;
        n->unary = unary;
        if (name.len != 0) {
            memcpy(n->text, name.data, name.len);
        }
        n->handler.name = n->text;
        n->handler.opened = on_opened;
        mu_list_init(&n->handler.link);
        err = mu_map_insert(&d->names, &n->by_name, mu_span(n->text, name.len));
    }
    if (err == 0) {
        err = mu_peer_host_serve(d->host, &n->handler);
        if (err != 0) {
            mu_map_remove(&d->names, &n->by_name);
        }
    }
    if (err != 0) {
        mu_free(n);
        (void)mu_err(reterr_msg, err,
                     err == MUSTER_EEXIST ? "handler for protocol %.*s already set"
                                          : "handler for protocol %.*s cannot be set",
                     (int)(name.len < 160 ? name.len : 160), (const char *)name.data);
        return NULL;
    }
    return n;
}

static int append(struct mu_p2pd_name *n, struct mu_p2pd_client *client, struct mu_span addr)
{
    struct mu_p2pd_target *t;

    if (n->count == n->cap) {
        size_t cap = n->cap == 0 ? 2 : n->cap * 2;
        struct mu_p2pd_target **bigger = mu_realloc(n->targets, cap * sizeof(*bigger));

        if (bigger == NULL) {
            return MUSTER_ENOMEM;
        }
        n->targets = bigger;
        n->cap = cap;
    }
    t = mu_calloc(1, sizeof(*t) + addr.len);
    if (t == NULL) {
        return MUSTER_ENOMEM;
    }
    t->client = client;
    t->addr_len = addr.len;
    if (addr.len != 0) {
        memcpy(t->addr, addr.data, addr.len);
    }
    n->targets[n->count++] = t;
    return 0;
}

int mu_p2pd_name_add(struct mu_p2pd *d, struct mu_span name, struct mu_p2pd_client *client,
                     struct mu_span addr, bool balanced, struct mu_errmsg *reterr_msg)
{
    struct mu_p2pd_name *n = find(d, name);

    if (name.len == 0 || name.len > MU_MSS_NAME_MAX || memchr(name.data, '\0', name.len) != NULL) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "the name of a protocol has 1 to %d characters",
                      (int)MU_MSS_NAME_MAX);
    }
    if (n != NULL && (!balanced || n->unary != (client != NULL))) {
        return mu_err(reterr_msg, MUSTER_EEXIST, "handler for protocol %.160s already set",
                      n->text);
    }
    if (n == NULL) {
        n = make(d, name, client != NULL, reterr_msg);
        if (n == NULL) {
            return MUSTER_EEXIST;
        }
    }
    if (append(n, client, addr) != 0) {
        if (n->count == 0) {
            free_name(n);
        }
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    return 0;
}

/* Whose turn it is stays whose turn it is. */
static void remove_at(struct mu_p2pd_name *n, size_t i)
{
    mu_free(n->targets[i]);
    memmove(&n->targets[i], &n->targets[i + 1], (n->count - i - 1) * sizeof(n->targets[0]));
    n->count--;
    if (i < n->next) {
        n->next--;
    }
    if (n->next == n->count) {
        n->next = 0;
    }
}

static size_t index_of(const struct mu_p2pd_name *n, const struct mu_p2pd_client *client,
                       struct mu_span addr)
{
    size_t i = 0;

    while (i < n->count &&
           (n->targets[i]->client != client ||
            !mu_span_eq(mu_span(n->targets[i]->addr, n->targets[i]->addr_len), addr))) {
        i++;
    }
    return i;
}

int mu_p2pd_name_remove(struct mu_p2pd *d, struct mu_span name, struct mu_p2pd_client *client,
                        struct mu_span addr, struct mu_errmsg *reterr_msg)
{
    struct mu_p2pd_name *n = find(d, name);
    char text[MU_ERRMSG_CAP];
    size_t i;

    if (n == NULL || n->unary != (client != NULL)) {
        return mu_err(reterr_msg, MUSTER_ENOENT, "handler for protocol %.*s does not exist",
                      (int)(name.len < 160 ? name.len : 160), (const char *)name.data);
    }
    i = index_of(n, client, addr);
    if (i == n->count && client != NULL) {
        return mu_err(reterr_msg, MUSTER_ENOENT,
                      "handler for protocol %.120s was not created in this persistent connection",
                      n->text);
    }
    if (i == n->count) {
        return mu_err(reterr_msg, MUSTER_ENOENT,
                      "handler for protocol %.80s with maddr %.110s does not exist", n->text,
                      mu_multiaddr_format(addr, text, sizeof(text)));
    }
    remove_at(n, i);
    if (n->count == 0) {
        free_name(n);
    }
    return 0;
}

void mu_p2pd_name_drop(struct mu_p2pd_client *client)
{
    struct mu_p2pd *d = client->d;
    struct mu_map_node *node = mu_map_next(&d->names, NULL);

    while (node != NULL) {
        struct mu_p2pd_name *n = MU_CONTAINER_OF(node, struct mu_p2pd_name, by_name);

        node = mu_map_next(&d->names, node);
        for (size_t i = n->count; i > 0; i--) {
            if (n->targets[i - 1]->client == client) {
                remove_at(n, i - 1);
            }
        }
        if (n->count == 0) {
            free_name(n);
        }
    }
}

void mu_p2pd_name_drop_all(struct mu_p2pd *d)
{
    struct mu_map_node *node;

    while ((node = mu_map_next(&d->names, NULL)) != NULL) {
        free_name(MU_CONTAINER_OF(node, struct mu_p2pd_name, by_name));
    }
}

struct mu_p2pd_target *mu_p2pd_name_next(struct mu_p2pd *d, struct mu_span name)
{
    struct mu_p2pd_name *n = find(d, name);
    struct mu_p2pd_target *t;

    if (n == NULL) {
        return NULL;
    }
    t = n->targets[n->next];
    n->next = (n->next + 1) % n->count;
    return t;
}

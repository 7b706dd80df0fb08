/* Listening: connections that come in, until they have shown a credential. */
#include "core/alloc.h"
#include "service/lock/tls_env_internal.h"

/* How long the handshake of a stranger may take. It is two round trips over the network, and some
 * packets may have to be sent again. */
#define ACCEPTED_MS 5000

/* The end of a listener waits for the connections that its owner would have got. */
static void free_listener_if_shut(struct tls_listener *l)
{
    struct mu_listener *listener = l->listener;

    if (!l->shut || !mu_list_empty(&l->guests)) {
        return;
    }
    l->env->live--;
    mu_free(l);
    listener->impl = NULL;
    listener->closed(listener);
}

void mu_tls_leave_listener(struct tls_conn *c)
{
    struct tls_listener *l = c->listener;

    if (l != NULL) {
        c->listener = NULL;
        mu_list_remove(&c->link);
        free_listener_if_shut(l);
    }
}

void mu_tls_find_owner(struct tls_conn *c)
{
    struct tls_listener *l = c->listener;

    if (c->env->shown != NULL) {
        c->env->shown(c->env->shown_context, &c->wire);
    }
    /* The owner may stop listening in `accept`, which does not end this connection. */
    mu_list_remove(&c->link);
    c->conn = l->listener->accept(l->listener);
    if (c->conn == NULL) {
        mu_list_push(&l->guests, &c->link);
        c->closing = true;
        mu_tls_close_wire(c, true);
        return;
    }
    c->listener = NULL;
    c->conn->env = &c->env->layer.env;
    c->conn->impl = c;
}

static struct tls_listener *listener_of(struct mu_listener *wire)
{
    return MU_CONTAINER_OF(wire, struct tls_listener, wire);
}

static struct mu_conn *wire_accept(struct mu_listener *wire)
{
    struct tls_listener *l = listener_of(wire);
    struct tls_conn *c = mu_tls_conn_new(l->env, NULL);

    if (c == NULL) {
        return NULL;
    }
    c->listener = l;
    mu_list_push(&l->guests, &c->link);
    mu_tls_arm_handshake(c, ACCEPTED_MS);
    return &c->wire;
}

static void wire_accept_failed(struct mu_listener *wire, int status)
{
    struct mu_listener *listener = listener_of(wire)->listener;

    if (listener->accept_failed != NULL) {
        listener->accept_failed(listener, status);
    }
}

static void wire_unlistened(struct mu_listener *wire)
{
    struct tls_listener *l = listener_of(wire);

    l->shut = true;
    free_listener_if_shut(l);
}

int mu_tls_env_listen(struct mu_env *env, struct mu_listener *listener, struct mu_addr *addr)
{
    struct mu_tls_env *tls = tls_of(env);
    struct tls_listener *l = mu_calloc(1, sizeof(*l));
    int err;

    if (l == NULL) {
        return MUSTER_ENOMEM;
    }
    l->wire.accept = wire_accept;
    l->wire.accept_failed = wire_accept_failed;
    l->wire.closed = wire_unlistened;
    l->listener = listener;
    l->env = tls;
    mu_list_init(&l->guests);
    err = mu_env_listen(tls->layer.below, &l->wire, addr);
    if (err != 0) {
        mu_free(l);
        return err;
    }
    tls->live++;
    listener->env = env;
    listener->impl = l;
    listener->here_only = l->wire.here_only;
    return 0;
}

void mu_tls_env_unlisten(struct mu_env *env, struct mu_listener *listener)
{
    struct tls_listener *l = listener->impl;

    MU_LIST_FOREACH (it, &l->guests) {
        struct tls_conn *c = MU_CONTAINER_OF(it, struct tls_conn, link);

        c->closing = true;
        mu_tls_close_wire(c, true);
    }
    mu_env_unlisten(tls_of(env)->layer.below, &l->wire);
}

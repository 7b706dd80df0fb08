/* Listening, and the TLS layer that is fed with what comes in. */
#include "core/alloc.h"
#include "service/lock/env_internal.h"

void mu_lock_free_listener_if_shut(struct lock_listener *l)
{
    struct mu_listener *owner = l->owner;

    if (l->raw_open || l->through_open || l->guests != 0) {
        return;
    }
    mu_lock_say_unsaid(l->lock);
    l->lock->live--;
    mu_free(l);
    if (owner != NULL) {
        owner->impl = NULL;
        owner->closed(owner);
    }
}

/* --- listening -------------------------------------------------------------------------------- */

static struct mu_conn *raw_accept(struct mu_listener *raw)
{
    struct lock_listener *l = MU_CONTAINER_OF(raw, struct lock_listener, raw);
    struct mu_lock_env *lock = l->lock;
    struct lock_conn *c = lock->silent_count >= MU_LOCK_SILENT_MAX ? NULL : mu_lock_conn_new(lock);

    if (c == NULL) {
        return NULL;
    }
    c->listener = l;
    l->guests++;
    mu_lock_greet(c);
    return &c->raw;
}

static void raw_accept_failed(struct mu_listener *raw, int status)
{
    struct mu_listener *owner = MU_CONTAINER_OF(raw, struct lock_listener, raw)->owner;

    if (owner->accept_failed != NULL) {
        owner->accept_failed(owner, status);
    }
}

static struct mu_conn *through_accept(struct mu_listener *through)
{
    struct mu_listener *owner = MU_CONTAINER_OF(through, struct lock_listener, through)->owner;

    return owner->accept(owner);
}

/* The TLS layer's listener ends with the listener below. */
static void raw_unlistened(struct mu_listener *raw)
{
    struct lock_listener *l = MU_CONTAINER_OF(raw, struct lock_listener, raw);

    l->raw_open = false;
    if (l->through_open) {
        l->feed->closed(l->feed);
    } else {
        mu_lock_free_listener_if_shut(l);
    }
}

static void through_unlistened(struct mu_listener *through)
{
    struct lock_listener *l = MU_CONTAINER_OF(through, struct lock_listener, through);

    l->through_open = false;
    mu_lock_free_listener_if_shut(l);
}

/* The TLS layer listens here: it is fed with what the listener below accepts. */
int mu_lock_wire_listen(struct mu_env *env, struct mu_listener *listener, struct mu_addr *addr)
{
    struct lock_listener *l = lock_of_wire(env)->feeding;

    (void)addr;
    l->feed = listener;
    listener->env = env;
    listener->impl = l;
    return 0;
}

/* The caller calls `closed` itself: with the listener below, or at once. */
void mu_lock_wire_unlisten(struct mu_env *env, struct mu_listener *listener)
{
    (void)env;
    (void)listener;
}

/* Makes the TLS layer listen too, if there is one. */
static int listen_through(struct lock_listener *l, struct mu_addr *addr)
{
    struct mu_lock_env *lock = l->lock;
    int err;

    if (lock->sealed == NULL) {
        return 0;
    }
    l->through.accept = through_accept;
    l->through.closed = through_unlistened;
    lock->feeding = l;
    err = mu_env_listen(lock->sealed, &l->through, addr);
    lock->feeding = NULL;
    l->through_open = err == 0;
    return err;
}

static int listen_locked(struct mu_lock_env *lock, struct mu_listener *listener,
                         struct mu_addr *addr)
{
    struct lock_listener *l = mu_calloc(1, sizeof(*l));
    int err;

    if (l == NULL) {
        return MUSTER_ENOMEM;
    }
    l->raw.accept = raw_accept;
    l->raw.accept_failed = raw_accept_failed;
    l->raw.closed = raw_unlistened;
    l->lock = lock;
    lock->live++;
    err = listen_through(l, addr);
    if (err == 0) {
        err = mu_env_listen(lock->below, &l->raw, addr);
        l->raw_open = err == 0;
    }
    if (err != 0 && l->through_open) {
        mu_env_unlisten(lock->sealed, &l->through);
        l->feed->closed(l->feed); /* which frees ours */
        return err;
    }
    if (err != 0) {
        mu_lock_free_listener_if_shut(l);
        return err;
    }
    l->owner = listener;
    listener->env = &lock->users.env;
    listener->impl = l;
    listener->here_only = l->raw.here_only;
    return 0;
}

/* A listener that only shows whether the address is available. */
struct probe {
    struct mu_listener raw;
    struct mu_lock_env *lock;
};

static struct mu_conn *turn_away(struct mu_listener *listener)
{
    (void)listener;
    return NULL;
}

static void probe_closed(struct mu_listener *listener)
{
    struct probe *p = MU_CONTAINER_OF(listener, struct probe, raw);

    p->lock->live--;
    mu_free(p);
}

/* An address that is in use, or not of this host, is reported as such before the lock is
 * mentioned. */
static int refuse_to_listen(struct mu_lock_env *lock, struct mu_addr addr, int refusal)
{
    struct probe *p = mu_calloc(1, sizeof(*p));
    int err;

    if (p == NULL) {
        return MUSTER_ENOMEM;
    }
    p->lock = lock;
    p->raw.accept = turn_away;
    p->raw.closed = probe_closed;
    err = mu_env_listen(lock->below, &p->raw, &addr);
    if (err != 0) {
        mu_free(p);
        return err;
    }
    lock->live++;
    mu_env_unlisten(lock->below, &p->raw);
    lock->why = lock->refusal.text;
    return refusal;
}

int mu_lock_users_listen(struct mu_env *env, struct mu_listener *listener, struct mu_addr *addr)
{
    struct mu_lock_env *lock = lock_of_users(env);
    int err = mu_lock_listen(&lock->policy, addr, &lock->refusal);

    lock->why = NULL;
    if (err != 0) {
        return refuse_to_listen(lock, *addr, err);
    }
    if (lock->sealed == NULL && (lock->policy.insecure || mu_addr_is_loopback(addr))) {
        return mu_env_listen(lock->below, listener, addr); /* There is nothing to decide. */
    }
    return listen_locked(lock, listener, addr);
}

void mu_lock_users_unlisten(struct mu_env *env, struct mu_listener *listener)
{
    struct mu_lock_env *lock = lock_of_users(env);
    struct lock_listener *l = listener->impl;

    if (listener->env != env) {
        mu_env_unlisten(listener->env, listener);
        return;
    }
    mu_lock_shut_guests(l);
    if (l->through_open) {
        mu_env_unlisten(lock->sealed, &l->through);
    }
    mu_env_unlisten(lock->below, &l->raw);
}

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/lock/env_internal.h"

static struct lock_conn *conn_of(struct mu_conn *raw)
{
    return MU_CONTAINER_OF(raw, struct lock_conn, raw);
}

/* --- callbacks of the environment below ------------------------------------------------------- */

static size_t raw_data(struct mu_conn *raw, struct mu_span in)
{
    struct lock_conn *c = conn_of(raw);

    if (c->closing || in.len == 0) {
        return in.len;
    }
    return c->upper == NULL ? mu_lock_hear(c, in) : c->upper->on->data(c->upper, in);
}

static struct mu_space raw_room(struct mu_conn *raw)
{
    struct lock_conn *c = conn_of(raw);

    return c->upper == NULL || c->closing || c->upper->on->room == NULL
               ? (struct mu_space){0}
               : c->upper->on->room(c->upper);
}

static void raw_eof(struct mu_conn *raw)
{
    struct lock_conn *c = conn_of(raw);

    if (c->upper != NULL && !c->closing) {
        c->upper->on->eof(c->upper);
    } else {
        mu_lock_shut(c);
    }
}

static void raw_writable(struct mu_conn *raw)
{
    struct lock_conn *c = conn_of(raw);

    if (c->upper != NULL && !c->closing) {
        c->upper->on->writable(c->upper);
    }
}

static void raw_open(struct mu_conn *raw)
{
    struct lock_conn *c = conn_of(raw);
    char peer[64];

    if (c->closing) {
        return;
    }
    mu_env_peer(c->lock->below, raw, peer, sizeof(peer));
    if (c->ask_open && !mu_lock_peer_is_near(peer) &&
        !mu_lock_peer_is_allowed(&c->lock->policy, peer)) {
        c->locked = true;
        mu_env_close(c->lock->below, raw, true);
        return;
    }
    c->upper->on->open(c->upper);
}

static const char plain_refused[] = "a job that has a credential does not speak PyTorch's plain "
                                    "protocol to another host, unless --allow CIDR names that host";

static void raw_closed(struct mu_conn *raw, int status)
{
    struct lock_conn *c = conn_of(raw);
    struct mu_lock_env *lock = c->lock;
    struct mu_conn *upper = c->upper;
    bool locked = c->locked && !c->closing;

    mu_lock_guest_gone(c);
    lock->live--;
    mu_free(c);
    if (upper != NULL) {
        upper->impl = NULL;
        lock->why = locked ? plain_refused : NULL;
        upper->on->closed(upper, locked ? MUSTER_ELOCKED : status);
        lock->why = NULL;
    }
}

static const struct mu_conn_events raw_events = {
    .open = raw_open,
    .data = raw_data,
    .room = raw_room,
    .eof = raw_eof,
    .writable = raw_writable,
    .closed = raw_closed,
};

struct lock_conn *mu_lock_conn_new(struct mu_lock_env *lock)
{
    struct lock_conn *c = mu_calloc(1, sizeof(*c));

    if (c != NULL) {
        c->raw.on = &raw_events;
        c->lock = lock;
        c->trust = MU_TRUST_OPEN;
        mu_list_init(&c->link);
        mu_list_init(&c->fresh);
        lock->live++;
    }
    return c;
}

/* --- verbs of connections, the same for both environments ------------------------------------- */

/* Whether the connection is one of ours; else `conn->env` knows it. */
static bool is_ours(const struct mu_env *env, const struct mu_conn *conn)
{
    return conn->env == env;
}

static void env_sendv(struct mu_env *env, struct mu_conn *conn, const struct mu_span *spans,
                      size_t count, size_t *ret_taken)
{
    struct lock_conn *c = conn->impl;

    if (!is_ours(env, conn)) {
        mu_env_sendv(conn->env, conn, spans, count, ret_taken);
    } else if (c == NULL) {
        *ret_taken = mu_span_total(spans, count);
    } else {
        mu_env_sendv(c->lock->below, &c->raw, spans, count, ret_taken);
    }
}

static void env_resume(struct mu_env *env, struct mu_conn *conn)
{
    struct lock_conn *c = conn->impl;

    if (!is_ours(env, conn)) {
        mu_env_resume(conn->env, conn);
    } else if (c != NULL) {
        mu_env_resume(c->lock->below, &c->raw);
    }
}

static void env_close(struct mu_env *env, struct mu_conn *conn, bool abort)
{
    struct lock_conn *c = conn->impl;

    if (!is_ours(env, conn)) {
        mu_env_close(conn->env, conn, abort);
    } else if (c != NULL) {
        c->closing = true;
        mu_env_close(c->lock->below, &c->raw, abort);
    }
}

static void env_peer(struct mu_env *env, const struct mu_conn *conn, char *buf, size_t cap)
{
    const struct lock_conn *c = conn->impl;

    if (!is_ours(env, conn)) {
        mu_env_peer(conn->env, conn, buf, cap);
    } else if (c == NULL) {
        (void)snprintf(buf, cap, "?");
    } else {
        mu_env_peer(c->lock->below, &c->raw, buf, cap);
    }
}

static enum mu_trust env_trust(struct mu_env *env, const struct mu_conn *conn)
{
    const struct lock_conn *c = conn->impl;

    return is_ours(env, conn) && c != NULL ? c->trust : MU_TRUST_OPEN;
}

static const char *env_why(struct mu_env *env)
{
    struct mu_lock_env *lock = lock_of_users(env);
    const char *why = lock->sealed == NULL ? "" : mu_env_why(lock->sealed);

    if (why[0] == '\0') {
        why = lock->why != NULL ? lock->why : mu_env_why(lock->below);
    }
    return why;
}

/* --- dialling --------------------------------------------------------------------------------- */

static int users_dial(struct mu_env *env, struct mu_conn *conn, const struct mu_addr *addr)
{
    struct mu_lock_env *lock = lock_of_users(env);

    lock->why = NULL;
    return mu_env_dial(
        lock->sealed == NULL || mu_addr_is_loopback(addr) ? lock->below : lock->sealed, conn, addr);
}

static int users_dial_plain(struct mu_env *env, struct mu_conn *conn, const struct mu_addr *addr)
{
    struct mu_lock_env *lock = lock_of_users(env);
    struct lock_conn *c;
    int err;

    lock->why = NULL;
    switch (mu_lock_dial_plain(&lock->policy, addr)) {
    case MU_LOCK_PLAIN_YES:
        return mu_env_dial(lock->below, conn, addr);
    case MU_LOCK_PLAIN_NO:
        lock->why = plain_refused;
        return MUSTER_ELOCKED;
    case MU_LOCK_PLAIN_IF_ALLOWED:
        break;
    }
    c = mu_lock_conn_new(lock);
    if (c == NULL) {
        return MUSTER_ENOMEM;
    }
    c->ask_open = true;
    c->upper = conn;
    err = mu_env_dial(lock->below, &c->raw, addr);
    if (err != 0) {
        lock->live--;
        mu_free(c);
        return err;
    }
    conn->env = env;
    conn->impl = c;
    return 0;
}

static int wire_dial(struct mu_env *env, struct mu_conn *conn, const struct mu_addr *addr)
{
    return mu_env_dial(lock_of_wire(env)->below, conn, addr);
}

/* --- life ------------------------------------------------------------------------------------- */

static const struct mu_env_ops users_ops = {
    MU_ENV_LAYER_OPS,
    .dial = users_dial,
    .dial_plain = users_dial_plain,
    .listen = mu_lock_users_listen,
    .unlisten = mu_lock_users_unlisten,
    .sendv = env_sendv,
    .resume = env_resume,
    .close = env_close,
    .peer = env_peer,
    .trust = env_trust,
    .why = env_why,
};

static const struct mu_env_ops wire_ops = {
    MU_ENV_LAYER_OPS,
    .dial = wire_dial,
    .listen = mu_lock_wire_listen,
    .unlisten = mu_lock_wire_unlisten,
    .sendv = env_sendv,
    .resume = env_resume,
    .close = env_close,
    .peer = env_peer,
};

int mu_lock_env_new(struct mu_env *env, const struct mu_lock_policy *policy,
                    struct mu_lock_env **ret)
{
    static const struct mu_lock_limits default_limits = {
        MU_LOCK_GUESTS, MU_LOCK_GUESTS_OF_ADDRESS, MU_LOCK_SHAKING, MU_LOCK_SHAKING_OF_ADDRESS};
    struct mu_lock_env *lock = mu_calloc(1, sizeof(*lock));
    uint64_t seed;

    if (lock == NULL) {
        return MUSTER_ENOMEM;
    }
    lock->policy = *policy;
    lock->policy.sealed = false;
    if (policy->allow_count != 0) {
        lock->allow = mu_calloc(policy->allow_count, sizeof(*lock->allow));
        if (lock->allow == NULL) {
            mu_free(lock);
            return MUSTER_ENOMEM;
        }
        memcpy(lock->allow, policy->allow, policy->allow_count * sizeof(*lock->allow));
    }
    lock->policy.allow = lock->allow;
    mu_env_entropy(env, &seed, sizeof(seed));
    if (mu_guests_init(&lock->book, &default_limits, seed) != 0) {
        mu_free(lock->allow);
        mu_free(lock);
        return MUSTER_ENOMEM;
    }
    lock->below = env;
    lock->users.env.ops = &users_ops;
    lock->wire.env.ops = &wire_ops;
    lock->users.below = lock->wire.below = env;
    mu_list_init(&lock->silent);
    mu_list_init(&lock->begun);
    mu_list_init(&lock->waiting);
    mu_list_init(&lock->fresh);
    mu_timer_init(&lock->timer, mu_lock_on_timer);
    mu_timer_init(&lock->turn, mu_lock_on_turn);
    mu_timer_init(&lock->unsaid_timer, mu_lock_on_unsaid);
    *ret = lock;
    return 0;
}

void mu_lock_env_limit(struct mu_lock_env *lock, const struct mu_lock_limits *limits)
{
    lock->book.limits = *limits;
}

void mu_lock_env_shown(void *lock, struct mu_conn *wire)
{
    (void)lock;
    mu_lock_guest_leaves(wire->impl);
}

struct mu_env *mu_lock_env_wire(struct mu_lock_env *lock)
{
    return &lock->wire.env;
}

void mu_lock_env_seal(struct mu_lock_env *lock, struct mu_env *sealed)
{
    lock->sealed = sealed;
    lock->policy.sealed = true;
}

struct mu_env *mu_lock_env_env(struct mu_lock_env *lock)
{
    return &lock->users.env;
}

const struct mu_lock_policy *mu_lock_env_policy(const struct mu_lock_env *lock)
{
    return &lock->policy;
}

bool mu_lock_env_idle(const struct mu_lock_env *lock)
{
    return lock->live == 0;
}

void mu_lock_env_free(struct mu_lock_env *lock)
{
    if (lock != NULL) {
        MU_ASSERT(lock->live == 0);
        mu_lock_say_unsaid(lock);
        mu_env_timer_arm(lock->below, &lock->turn, MU_MONO_NEVER);
        mu_guests_fini(&lock->book);
        mu_free(lock->allow);
        mu_free(lock);
    }
}

#include "service/lock_env.h"

#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/env_layer.h"
#include "service/log.h"

/* Whom the log has named of late: one line for an address and a minute. */
#define NAMED_MAX 64
#define NAMED_MS  60000

struct named {
    char peer[48]; /* without its port */
    mu_mono_t until;
};

struct lock_listener;

/*
 * Two environments with the same connections: the one that users get, and the one below the layer
 * of TLS. A connection that is not ours to look at (dialled, or accepted with no question to ask)
 * belongs to another environment, as its `env` says, and is passed on there.
 */
struct mu_lock_env {
    struct mu_env_layer users;
    struct mu_env_layer wire;
    struct mu_env *below;
    struct mu_env *sealed; /* the layer of TLS; NULL: no credential */
    struct mu_lock_policy policy;
    struct mu_cidr *allow;
    struct mu_list silent; /* those who have said nothing, oldest first */
    size_t silent_count;
    struct mu_timer timer;         /* of the oldest of them */
    struct lock_listener *feeding; /* the one for which the layer of TLS is being asked to listen */
    size_t live;
    const char *why; /* of the `closed` that is being told, or of a verb that said ELOCKED */
    struct mu_errmsg refusal;
    struct named named[NAMED_MAX];
    size_t named_next;
};

/* A connection that is, or was, looked at: accepted ones, and plain ones to a name. */
struct lock_conn {
    struct mu_conn raw;    /* the one below */
    struct mu_conn *upper; /* its owner's, or that of the layer of TLS; NULL: nobody's yet */
    struct mu_lock_env *lock;
    struct lock_listener *listener; /* until it is somebody's; NULL: dialled */
    struct mu_list link;            /* lock->silent, while nothing was said */
    mu_mono_t speak_by;
    enum mu_trust trust;
    bool ask_open; /* dialled: who it is decides once it is open */
    bool locked;   /* and was not allowed */
    bool closing;
};

struct lock_listener {
    struct mu_listener raw;     /* on the environment below */
    struct mu_listener through; /* of the layer of TLS, which gets no connection but from us */
    struct mu_listener *feed;   /* that layer's own, on our wire */
    struct mu_listener *owner;  /* NULL: it never came to be */
    struct mu_lock_env *lock;
    size_t guests; /* connections that are nobody's yet, or never will be */
    bool raw_open;
    bool through_open;
};

static struct mu_lock_env *lock_of_users(struct mu_env *env)
{
    return MU_CONTAINER_OF(env, struct mu_lock_env, users.env);
}

static struct mu_lock_env *lock_of_wire(struct mu_env *env)
{
    return MU_CONTAINER_OF(env, struct mu_lock_env, wire.env);
}

static struct lock_conn *conn_of(struct mu_conn *raw)
{
    return MU_CONTAINER_OF(raw, struct lock_conn, raw);
}

static void free_listener_if_shut(struct lock_listener *l)
{
    struct mu_listener *owner = l->owner;

    if (l->raw_open || l->through_open || l->guests != 0) {
        return;
    }
    l->lock->live--;
    mu_free(l);
    if (owner != NULL) {
        owner->impl = NULL;
        owner->closed(owner);
    }
}

/* --- those who have said nothing -------------------------------------------------------------- */

static void arm_timer(struct mu_lock_env *lock)
{
    mu_mono_t at = MU_MONO_NEVER;

    if (!mu_list_empty(&lock->silent)) {
        at = MU_CONTAINER_OF(lock->silent.next, struct lock_conn, link)->speak_by;
    }
    if (!mu_heap_contains(&lock->timer.node) || at.ns != lock->timer.node.at.ns) {
        mu_env_timer_arm(lock->below, &lock->timer, at);
    }
}

static void leave_silence(struct lock_conn *c)
{
    if (!mu_list_empty(&c->link)) {
        mu_list_remove(&c->link);
        c->lock->silent_count--;
        arm_timer(c->lock);
    }
}

static void shut(struct lock_conn *c)
{
    leave_silence(c);
    if (!c->closing) {
        c->closing = true;
        mu_env_close(c->lock->below, &c->raw, true);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_lock_env *lock = MU_CONTAINER_OF(timer, struct mu_lock_env, timer);
    mu_mono_t now = mu_env_now(lock->below).mono;

    while (!mu_list_empty(&lock->silent)) {
        struct lock_conn *c = MU_CONTAINER_OF(lock->silent.next, struct lock_conn, link);

        if (!mu_mono_reached(c->speak_by, now)) {
            break;
        }
        shut(c);
    }
    arm_timer(lock);
}

/* --- the log ---------------------------------------------------------------------------------- */

/* False: this address was named less than a minute ago. */
static bool name_peer(struct mu_lock_env *lock, const char *peer)
{
    mu_mono_t now = mu_env_now(lock->below).mono;
    const char *port = strrchr(peer, ':');
    size_t len = port == NULL ? strlen(peer) : (size_t)(port - peer);
    struct named *n;

    len = len < sizeof(n->peer) ? len : sizeof(n->peer) - 1;
    for (size_t i = 0; i < NAMED_MAX; i++) {
        n = &lock->named[i];
        if (strlen(n->peer) == len && memcmp(n->peer, peer, len) == 0 &&
            mu_mono_before(now, n->until)) {
            return false;
        }
    }
    n = &lock->named[lock->named_next++ % NAMED_MAX];
    memcpy(n->peer, peer, len);
    n->peer[len] = '\0';
    n->until = mu_mono_add_ms(now, NAMED_MS);
    return true;
}

static void log_shut(struct mu_lock_env *lock, const char *peer, uint8_t first)
{
    if (name_peer(lock, peer)) {
        mu_log(MUSTER_LOG_WARN, "LOCK-REFUSED", "peer=%s why=\"%s\"", peer,
               first == 0x16 ? "it speaks TLS, and this job has no credential (--token-file)"
                             : "it shows no credential (--token-file), and plain connections are "
                               "not taken from there (--allow CIDR)");
    }
}

/* --- the decision ----------------------------------------------------------------------------- */

/* Makes the connection somebody's. False: it was turned away. */
static bool hand_over(struct lock_conn *c, struct mu_listener *to, struct mu_env *env)
{
    struct mu_conn *upper = to->accept(to);

    if (upper == NULL) {
        shut(c);
        return false;
    }
    upper->env = env;
    upper->impl = c;
    c->upper = upper;
    c->listener->guests--;
    c->listener = NULL;
    return true;
}

/* The first byte is there. False: it is closed. */
static bool decide(struct lock_conn *c, uint8_t first)
{
    struct mu_lock_env *lock = c->lock;
    struct lock_listener *l = c->listener;
    char peer[64];

    leave_silence(c);
    mu_env_peer(lock->below, &c->raw, peer, sizeof(peer));
    switch (mu_lock_judge(&lock->policy, peer, first)) {
    case MU_LOCK_OPEN:
        c->trust = MU_TRUST_OPEN;
        return hand_over(c, l->owner, &lock->users.env);
    case MU_LOCK_PLAIN:
        c->trust = MU_TRUST_PLAIN;
        return hand_over(c, l->owner, &lock->users.env);
    case MU_LOCK_SEALED:
        c->trust = MU_TRUST_OPEN;
        return hand_over(c, l->feed, &lock->wire.env);
    case MU_LOCK_SHUT:
        log_shut(lock, peer, first);
        shut(c);
        return false;
    }
    return false;
}

/* --- what comes from below -------------------------------------------------------------------- */

static size_t raw_data(struct mu_conn *raw, struct mu_span in)
{
    struct lock_conn *c = conn_of(raw);

    if (c->closing || in.len == 0 || (c->upper == NULL && !decide(c, in.data[0]))) {
        return in.len;
    }
    return c->upper->on->data(c->upper, in);
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
        shut(c);
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

static const char plain_refused[] =
    "PyTorch's plain protocol is not spoken to other hosts by a job that has a credential, unless "
    "--allow CIDR names them";

static void raw_closed(struct mu_conn *raw, int status)
{
    struct lock_conn *c = conn_of(raw);
    struct mu_lock_env *lock = c->lock;
    struct mu_conn *upper = c->upper;
    struct lock_listener *l = c->listener;
    bool locked = c->locked && !c->closing;

    leave_silence(c);
    lock->live--;
    mu_free(c);
    if (l != NULL) {
        l->guests--;
        free_listener_if_shut(l);
    }
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

static struct lock_conn *new_conn(struct mu_lock_env *lock)
{
    struct lock_conn *c = mu_calloc(1, sizeof(*c));

    if (c != NULL) {
        c->raw.on = &raw_events;
        c->lock = lock;
        c->trust = MU_TRUST_OPEN;
        mu_list_init(&c->link);
        lock->live++;
    }
    return c;
}

/* --- verbs of connections, the same for both environments ------------------------------------- */

/* Whether it is one of ours; else `conn->env` knows it. */
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
    c = new_conn(lock);
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

/* --- listening -------------------------------------------------------------------------------- */

static struct mu_conn *raw_accept(struct mu_listener *raw)
{
    struct lock_listener *l = MU_CONTAINER_OF(raw, struct lock_listener, raw);
    struct mu_lock_env *lock = l->lock;
    struct lock_conn *c = lock->silent_count >= MU_LOCK_SILENT_MAX ? NULL : new_conn(lock);

    if (c == NULL) {
        return NULL;
    }
    c->listener = l;
    l->guests++;
    c->speak_by = mu_mono_add_ms(mu_env_now(lock->below).mono, MU_LOCK_SPEAK_MS);
    mu_list_push(&lock->silent, &c->link);
    lock->silent_count++;
    arm_timer(lock);
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

/* The layer of TLS goes with the listener below. */
static void raw_unlistened(struct mu_listener *raw)
{
    struct lock_listener *l = MU_CONTAINER_OF(raw, struct lock_listener, raw);

    l->raw_open = false;
    if (l->through_open) {
        l->feed->closed(l->feed);
    } else {
        free_listener_if_shut(l);
    }
}

static void through_unlistened(struct mu_listener *through)
{
    struct lock_listener *l = MU_CONTAINER_OF(through, struct lock_listener, through);

    l->through_open = false;
    free_listener_if_shut(l);
}

/* The layer of TLS listens at us: it is fed with what the listener below accepts. */
static int wire_listen(struct mu_env *env, struct mu_listener *listener, struct mu_addr *addr)
{
    struct lock_listener *l = lock_of_wire(env)->feeding;

    (void)addr;
    l->feed = listener;
    listener->env = env;
    listener->impl = l;
    return 0;
}

/* Its `closed` is told by whoever asked for this: with the listener below, or at once. */
static void wire_unlisten(struct mu_env *env, struct mu_listener *listener)
{
    (void)env;
    (void)listener;
}

/* Has the layer of TLS listen too, if there is one. */
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
        free_listener_if_shut(l);
        return err;
    }
    l->owner = listener;
    listener->env = &lock->users.env;
    listener->impl = l;
    return 0;
}

/* A listener that only shows whether the address can be had. */
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

/* That an address is no address of this host, or in use, is said before that it is locked. */
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

static int users_listen(struct mu_env *env, struct mu_listener *listener, struct mu_addr *addr)
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

static void users_unlisten(struct mu_env *env, struct mu_listener *listener)
{
    struct mu_lock_env *lock = lock_of_users(env);
    struct lock_listener *l = listener->impl;

    if (listener->env != env) {
        mu_env_unlisten(listener->env, listener);
        return;
    }
    MU_LIST_FOREACH_SAFE (it, tmp, &lock->silent) {
        struct lock_conn *c = MU_CONTAINER_OF(it, struct lock_conn, link);

        if (c->listener == l) {
            shut(c);
        }
    }
    if (l->through_open) {
        mu_env_unlisten(lock->sealed, &l->through);
    }
    mu_env_unlisten(lock->below, &l->raw);
}

/* --- life ------------------------------------------------------------------------------------- */

static const struct mu_env_ops users_ops = {
    MU_ENV_LAYER_OPS,
    .dial = users_dial,
    .dial_plain = users_dial_plain,
    .listen = users_listen,
    .unlisten = users_unlisten,
    .sendv = env_sendv,
    .resume = env_resume,
    .close = env_close,
    .peer = env_peer,
    .trust = env_trust,
    .why = env_why,
};

static const struct mu_env_ops wire_ops = {
    MU_ENV_LAYER_OPS,   .dial = wire_dial,    .listen = wire_listen, .unlisten = wire_unlisten,
    .sendv = env_sendv, .resume = env_resume, .close = env_close,    .peer = env_peer,
};

int mu_lock_env_new(struct mu_env *env, const struct mu_lock_policy *policy,
                    struct mu_lock_env **ret)
{
    struct mu_lock_env *lock = mu_calloc(1, sizeof(*lock));

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
    lock->below = env;
    lock->users.env.ops = &users_ops;
    lock->wire.env.ops = &wire_ops;
    lock->users.below = lock->wire.below = env;
    mu_list_init(&lock->silent);
    mu_timer_init(&lock->timer, on_timer);
    *ret = lock;
    return 0;
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

void mu_lock_env_free(struct mu_lock_env *lock)
{
    if (lock != NULL) {
        MU_ASSERT(lock->live == 0);
        mu_free(lock->allow);
        mu_free(lock);
    }
}

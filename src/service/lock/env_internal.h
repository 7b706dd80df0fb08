/* What the files of the locked environment share: connections, listeners, and the log. */
#ifndef MU_LOCK_ENV_INTERNAL_H
#define MU_LOCK_ENV_INTERNAL_H

#include "core/env_layer.h"
#include "service/lock/env.h"
#include "service/base/log.h"

/* Refusals that the log has named lately: one line a minute for an address and a reason. */
#define NAMED_MAX 64
#define NAMED_MS  60000

struct named {
    char peer[48]; /* without its port */
    uint32_t reason;
    mu_mono_t until;
};

struct lock_listener;

/*
 * Two environments with the same connections: the one that users get, and the one below the TLS
 * layer. A connection that we need not look at (dialled, or accepted without conditions) belongs to
 * another environment, as its `env` says, and is passed on there.
 */
struct mu_lock_env {
    struct mu_env_layer users;
    struct mu_env_layer wire;
    struct mu_env *below;
    struct mu_env *sealed; /* the layer of TLS; NULL: no credential */
    struct mu_lock_policy policy;
    struct mu_cidr *allow;
    struct mu_list silent; /* connections that have sent nothing, oldest first */
    size_t silent_count;
    struct mu_list begun;   /* connections that have begun a hello, oldest first */
    struct mu_list waiting; /* connections whose hello is whole */
    struct mu_list fresh;   /* connections whose address was not asked for yet */
    struct mu_guests book;
    uint64_t come; /* guests, ever; what it was in the last turn, and at the last handshake */
    uint64_t come_before;
    uint64_t come_at_shake;
    mu_mono_t farewells_since; /* for clients that greeted natively and learn why not */
    unsigned farewells;
    struct mu_timer timer;         /* of the oldest of both */
    mu_mono_t forgiven;            /* until then no connection counts as late: we were */
    struct mu_timer turn;          /* armed while a connection may begin TLS */
    struct lock_listener *feeding; /* the one for which the TLS layer is being asked to listen */
    size_t live;
    const char *why; /* of the `closed` that is being called, or of a verb that returned ELOCKED */
    struct mu_errmsg refusal;
    struct named named[NAMED_MAX];
    size_t named_next;
    struct mu_log_limit limit;
    struct mu_timer unsaid_timer; /* armed while refusals wait for their line */
};

/* A connection that the lock judges or has judged: accepted ones, and plain ones to a name. */
struct lock_conn {
    struct mu_conn raw;    /* the one below */
    struct mu_conn *upper; /* the owner's, or that of the TLS layer; NULL: it has no owner yet */
    struct mu_lock_env *lock;
    struct lock_listener *listener; /* until it has an owner; NULL: dialled */
    struct mu_list link;            /* lock->silent, begun or waiting */
    struct mu_list fresh;           /* lock->fresh */
    struct mu_guest guest;
    mu_mono_t by; /* when it is late */
    uint8_t *hello;
    size_t hello_len;
    bool native; /* the hello is that of the native wire; it will be refused */
    enum mu_trust trust;
    bool ask_open; /* dialled: its address decides once it is open */
    bool locked;   /* the address was not allowed */
    bool closing;
};

struct lock_listener {
    struct mu_listener raw;     /* on the environment below */
    struct mu_listener through; /* of the TLS layer, which gets connections only from us */
    struct mu_listener *feed;   /* that layer's own, on our wire */
    struct mu_listener *owner;  /* NULL: listening failed */
    struct mu_lock_env *lock;
    size_t guests; /* connections that have no owner yet, or never will have one */
    bool raw_open;
    bool through_open;
};

static inline struct mu_lock_env *lock_of_users(struct mu_env *env)
{
    return MU_CONTAINER_OF(env, struct mu_lock_env, users.env);
}

static inline struct mu_lock_env *lock_of_wire(struct mu_env *env)
{
    return MU_CONTAINER_OF(env, struct mu_lock_env, wire.env);
}

/** Makes a connection that the lock judges; NULL: no memory. */
struct lock_conn *mu_lock_conn_new(struct mu_lock_env *lock);

/** The connection was accepted; its first callbacks come in this turn. */
void mu_lock_greet(struct lock_conn *c);
/** Ends all guests of that listener. */
void mu_lock_shut_guests(struct lock_listener *l);
void mu_lock_free_listener_if_shut(struct lock_listener *l);
/** Takes bytes of a connection without an owner, which may give it one. Returns how many were used.
 */
size_t mu_lock_hear(struct lock_conn *c, struct mu_span in);
/** Ends a connection that has no owner. */
void mu_lock_shut(struct lock_conn *c);
/** It has shown its credential, or is gone: the next of its address may have its turn. */
void mu_lock_guest_leaves(struct lock_conn *c);
/** The connection is gone; if it had no owner, its listener does not wait for it any more. */
void mu_lock_guest_gone(struct lock_conn *c);
/** A guest is late. */
void mu_lock_on_timer(struct mu_timer *timer);
/** A guest may begin TLS. */
void mu_lock_on_turn(struct mu_timer *timer);

/** Logs how many were refused without a line of their own, if there were any. */
void mu_lock_say_unsaid(struct mu_lock_env *lock);
void mu_lock_on_unsaid(struct mu_timer *timer);

int mu_lock_users_listen(struct mu_env *env, struct mu_listener *listener, struct mu_addr *addr);
void mu_lock_users_unlisten(struct mu_env *env, struct mu_listener *listener);
int mu_lock_wire_listen(struct mu_env *env, struct mu_listener *listener, struct mu_addr *addr);
void mu_lock_wire_unlisten(struct mu_env *env, struct mu_listener *listener);

#endif

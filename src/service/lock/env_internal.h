/* What the files of the locked environment share: connections, listeners, and the log. */
#ifndef MU_LOCK_ENV_INTERNAL_H
#define MU_LOCK_ENV_INTERNAL_H

#include "core/env_layer.h"
#include "service/lock/env.h"
#include "service/base/log.h"

/* Whom the log has named of late: one line for an address, a reason and a minute. */
#define NAMED_MAX 64
#define NAMED_MS  60000

struct named {
    char peer[48]; /* without its port */
    uint32_t reason;
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
    struct mu_list begun;   /* those who have begun a hello; oldest first */
    struct mu_list waiting; /* those whose hello is whole */
    struct mu_list fresh;   /* those whose address was not asked for yet */
    struct mu_guests book;
    uint64_t come; /* guests, ever; what it was in the last turn, and at the last handshake */
    uint64_t come_before;
    uint64_t come_at_shake;
    mu_mono_t farewells_since; /* those who greeted natively, and learn why they are refused */
    unsigned farewells;
    struct mu_timer timer;         /* of the oldest of both */
    mu_mono_t forgiven;            /* until then nobody is late: we were */
    struct mu_timer turn;          /* armed while somebody may begin TLS */
    struct lock_listener *feeding; /* the one for which the layer of TLS is being asked to listen */
    size_t live;
    const char *why; /* of the `closed` that is being told, or of a verb that said ELOCKED */
    struct mu_errmsg refusal;
    struct named named[NAMED_MAX];
    size_t named_next;
    struct mu_log_limit limit;
    struct mu_timer unsaid_timer; /* armed while something is unsaid */
};

/* A connection that is, or was, looked at: accepted ones, and plain ones to a name. */
struct lock_conn {
    struct mu_conn raw;    /* the one below */
    struct mu_conn *upper; /* its owner's, or that of the layer of TLS; NULL: nobody's yet */
    struct mu_lock_env *lock;
    struct lock_listener *listener; /* until it is somebody's; NULL: dialled */
    struct mu_list link;            /* lock->silent, begun or waiting */
    struct mu_list fresh;           /* lock->fresh */
    struct mu_guest guest;
    mu_mono_t by; /* when it is late */
    uint8_t *hello;
    size_t hello_len;
    bool native; /* the hello is that of the native wire, which will be refused */
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

static inline struct mu_lock_env *lock_of_users(struct mu_env *env)
{
    return MU_CONTAINER_OF(env, struct mu_lock_env, users.env);
}

static inline struct mu_lock_env *lock_of_wire(struct mu_env *env)
{
    return MU_CONTAINER_OF(env, struct mu_lock_env, wire.env);
}

/** One that is, or will be, looked at; NULL: no memory. */
struct lock_conn *mu_lock_conn_new(struct mu_lock_env *lock);

/** It was accepted, and will be told of in this turn. */
void mu_lock_greet(struct lock_conn *c);
/** All of that listener. */
void mu_lock_shut_guests(struct lock_listener *l);
void mu_lock_free_listener_if_shut(struct lock_listener *l);
/** Bytes of a connection that is nobody's, and may become somebody's by them. How many were used.
 */
size_t mu_lock_hear(struct lock_conn *c, struct mu_span in);
/** Ends one that is nobody's. */
void mu_lock_shut(struct lock_conn *c);
/** The connection is gone; if it was nobody's, its listener does not wait for it any more. */
void mu_lock_guest_gone(struct lock_conn *c);
/** Somebody is late. */
void mu_lock_on_timer(struct mu_timer *timer);
/** Somebody may begin TLS. */
void mu_lock_on_turn(struct mu_timer *timer);

/** How many were refused without a line of their own, if there were such. */
void mu_lock_say_unsaid(struct mu_lock_env *lock);
void mu_lock_on_unsaid(struct mu_timer *timer);

int mu_lock_users_listen(struct mu_env *env, struct mu_listener *listener, struct mu_addr *addr);
void mu_lock_users_unlisten(struct mu_env *env, struct mu_listener *listener);
int mu_lock_wire_listen(struct mu_env *env, struct mu_listener *listener, struct mu_addr *addr);
void mu_lock_wire_unlisten(struct mu_env *env, struct mu_listener *listener);

#endif

/* What the files of the secure environment share: connections and listeners. */
#ifndef MU_TLS_ENV_INTERNAL_H
#define MU_TLS_ENV_INTERNAL_H

#include "core/env_layer.h"
#include "service/lock/tls_env.h"

struct mu_tls_env {
    struct mu_env_layer layer;
    struct mu_tls_context *context;
    const struct mu_errmsg *why; /* the reason of the `closed` or `eof` that is being called */
    void (*refused)(void *context, const char *peer, const char *why);
    void *to_whom;
    void (*begin)(void *context);
    void *begin_context;
    void (*shown)(void *context, struct mu_conn *wire);
    void *shown_context;
    mu_mono_t farewells_since;
    unsigned farewells;
    size_t live;
    uint8_t plain[MU_TLS_RECORD_MAX]; /* lent to one `data` at a time */
};

struct tls_conn {
    struct mu_conn wire;
    struct mu_conn *conn; /* the owner's; NULL: accepted, and it has not shown a credential */
    struct mu_tls_env *env;
    struct tls_listener *listener; /* NULL: it has an owner, or was dialled */
    struct mu_list link;           /* listener->guests */
    struct mu_tls tls;
    struct mu_timer timer; /* delivers again what was not used; closing: the end of patience */
    mu_mono_t by;          /* when the handshake must be done */
    struct mu_buf rest;    /* plain bytes that the owner has not used */
    bool dialled;
    bool wire_up; /* the connection below is there */
    bool ready_told;
    bool in_data;
    bool resume;  /* the owner asked for it inside `data` */
    bool paused;  /* the owner has used less than it was given */
    bool blocked; /* the wire took less than it was given */
    bool want_writable;
    bool eof; /* the other end has ended; the owner was told, or will be */
    bool eof_told;
    bool closing;         /* the owner has closed */
    bool over;            /* the wire is being closed */
    int status;           /* the owner gets it on a failure, */
    struct mu_errmsg why; /* and this text */
};

struct tls_listener {
    struct mu_listener wire;
    struct mu_listener *listener;
    struct mu_tls_env *env;
    struct mu_list guests; /* accepted below, and without an owner yet */
    bool shut;
};

static inline struct mu_tls_env *tls_of(struct mu_env *env)
{
    return MU_CONTAINER_OF(env, struct mu_tls_env, layer.env);
}

/** `host` NULL: accepted. NULL: no memory. */
struct tls_conn *mu_tls_conn_new(struct mu_tls_env *tls, const char *host);
/** How long the handshake may take. */
void mu_tls_arm_handshake(struct tls_conn *c, uint32_t ms);
void mu_tls_close_wire(struct tls_conn *c, bool abort);

/** The handshake of an accepted connection is done: the listener takes it, or it is closed. */
void mu_tls_find_owner(struct tls_conn *c);
/** The connection has an owner, or never will. Twice is harmless. */
void mu_tls_leave_listener(struct tls_conn *c);

int mu_tls_env_listen(struct mu_env *env, struct mu_listener *listener, struct mu_addr *addr);
void mu_tls_env_unlisten(struct mu_env *env, struct mu_listener *listener);

#endif

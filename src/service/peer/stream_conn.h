/*
 * A stream between peers as a connection of an environment (core/env.h): bytes that the owner does
 * not use wait here, within the stream's window, and output goes out after the owner has closed.
 * The environment that is made of them (service/peer/env.c, service/peer/circuit.c) decides how
 * streams are opened and what is sent on them first:
 *
 *     struct mu_stream_conns   the first member of the environment; `all` has its connections
 *     struct mu_stream_conn    the first member of a connection, zero but for what is named below
 *
 * mu_stream_conn_data() and the like pass events of a stream on, inside the event, or, where
 * `deferred`, on a turn of its own: for owners in whose own turns the stream's events come.
 */
#ifndef MU_STREAM_CONN_H
#define MU_STREAM_CONN_H

#include "core/buf.h"
#include "core/env_layer.h"
#include "core/err.h"
#include "service/peer/host.h"

struct mu_stream_conn;

struct mu_stream_conns {
    struct mu_env_layer layer;
    struct mu_list all;
    const char *why; /* the reason of the `closed` that is being called */
    bool deferred;
    /** Whether the output so far may go out when the owner closes; else the stream is reset. */
    bool (*may_end)(const struct mu_stream_conn *c);
    /** The connection is over: frees it, after mu_stream_conn_fini(). */
    void (*over)(struct mu_stream_conn *c);
};

/* It may outlive its owner while its last output goes out. */
struct mu_stream_conn {
    struct mu_list link;
    struct mu_stream_conns *of;
    struct mu_host_stream stream; /* the environment sets its events */
    struct mu_conn *conn;         /* the owner's; NULL: it has no owner yet, or not any more */
    struct mu_timer timer;        /* without an owner: ends it */
    struct mu_buf rest;           /* what the owner has not used */
    struct mu_errmsg text;
    int status;
    bool in_data;
    bool resume; /* the owner asked for it inside `data` */
    bool paused;
    bool want_writable;
    bool due_open;
    bool due_writable;
    bool eof;
    bool eof_told;
    bool closing; /* the owner has closed */
    bool gone;    /* the stream is gone */
};

void mu_stream_conn_init(struct mu_stream_conn *c, struct mu_stream_conns *of);
/** Resets the stream, if there is one. */
void mu_stream_conn_fini(struct mu_stream_conn *c);
void mu_stream_conn_own(struct mu_stream_conn *c, struct mu_conn *conn);
/** Arms the timer, in milliseconds; with 0 all callbacks that are due come then. */
void mu_stream_conn_arm(struct mu_stream_conn *c, uint32_t ms);

/* --- events of the stream --------------------------------------------------------------------- */

void mu_stream_conn_open(struct mu_stream_conn *c);
void mu_stream_conn_data(struct mu_stream_conn *c, struct mu_span bytes);
void mu_stream_conn_eof(struct mu_stream_conn *c);
/** There is room; the owner hears of it if it wanted more than there was. */
void mu_stream_conn_writable(struct mu_stream_conn *c);
/** The stream has ended, or must end: it is reset if it is still there. The first reason counts. */
void mu_stream_conn_end(struct mu_stream_conn *c, int status, const char *text);

/* --- verbs of the environment ----------------------------------------------------------------- */

void mu_stream_conn_sendv(struct mu_env *env, struct mu_conn *conn, const struct mu_span *spans,
                          size_t count, size_t *ret_taken);
void mu_stream_conn_resume(struct mu_env *env, struct mu_conn *conn);
void mu_stream_conn_close(struct mu_env *env, struct mu_conn *conn, bool abort);
const char *mu_stream_conn_why(struct mu_env *env);
/** Writes the peer of the stream as text; "?" where the stream is gone. */
void mu_stream_conn_peer(const struct mu_conn *conn, const char *before, const char *behind,
                         char *buf, size_t cap);

#endif

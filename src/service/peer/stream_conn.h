/*
 * A stream between peers as a connection of an environment (core/env.h): what its owner does not
 * use waits here, within the stream's window, and what was taken goes out when it has closed. Whose
 * streams they are, how they come to be and what is said on them first is for the environment that
 * is made of them (service/peer/env.c, service/peer/circuit.c):
 *
 *     struct mu_stream_conns   the first member of the environment; `all` has its connections
 *     struct mu_stream_conn    the first member of a connection, zero but for what is named below
 *
 * Events of a stream are passed on by mu_stream_conn_data() and the like, inside of the event, or,
 * where `deferred`, on a turn of its own: for an owner within whose turns the stream's events are.
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
    const char *why; /* of the `closed` that is being told */
    bool deferred;
    /** Whether what was said so far may go out when the owner closes; else it is reset. */
    bool (*may_end)(const struct mu_stream_conn *c);
    /** It is over: frees it, by mu_stream_conn_fini() first. */
    void (*over)(struct mu_stream_conn *c);
};

/* It may outlive its owner while its last words go out. */
struct mu_stream_conn {
    struct mu_list link;
    struct mu_stream_conns *of;
    struct mu_host_stream stream; /* its events are set by the environment */
    struct mu_conn *conn;         /* its owner's; NULL: there is none yet, or none any more */
    struct mu_timer timer;        /* without an owner: the end of it */
    struct mu_buf rest;           /* what the owner has not used */
    struct mu_errmsg text;
    int status;
    bool in_data;
    bool resume; /* asked for inside of `data` */
    bool paused;
    bool want_writable;
    bool due_open;
    bool due_writable;
    bool eof;
    bool eof_told;
    bool closing; /* the owner has closed */
    bool gone;    /* the stream is */
};

void mu_stream_conn_init(struct mu_stream_conn *c, struct mu_stream_conns *of);
/** Resets the stream, if there is one. */
void mu_stream_conn_fini(struct mu_stream_conn *c);
void mu_stream_conn_own(struct mu_stream_conn *c, struct mu_conn *conn);
/** Lets the timer come in so many milliseconds: 0, and all that is due is told. */
void mu_stream_conn_arm(struct mu_stream_conn *c, uint32_t ms);

/* --- what the stream tells -------------------------------------------------------------------- */

void mu_stream_conn_open(struct mu_stream_conn *c);
void mu_stream_conn_data(struct mu_stream_conn *c, struct mu_span bytes);
void mu_stream_conn_eof(struct mu_stream_conn *c);
/** There is room; told if the owner has wanted more than there was. */
void mu_stream_conn_writable(struct mu_stream_conn *c);
/** There is no more of the stream, or there shall not be: it is reset if it is there. The first
 * reason counts. */
void mu_stream_conn_end(struct mu_stream_conn *c, int status, const char *text);

/* --- verbs of the environment ----------------------------------------------------------------- */

void mu_stream_conn_sendv(struct mu_env *env, struct mu_conn *conn, const struct mu_span *spans,
                          size_t count, size_t *ret_taken);
void mu_stream_conn_resume(struct mu_env *env, struct mu_conn *conn);
void mu_stream_conn_close(struct mu_env *env, struct mu_conn *conn, bool abort);
const char *mu_stream_conn_why(struct mu_env *env);
/** The peer of the stream in words; "?" where there is none any more. */
void mu_stream_conn_peer(const struct mu_conn *conn, const char *before, const char *behind,
                         char *buf, size_t cap);

#endif

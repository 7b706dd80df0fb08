/*
 * A small HTTP server: GET and HEAD, short answers made at once, and streams of events (text/
 * event-stream) of which every listener gets the newest. For status pages with a few readers; not
 * for many. A service: it runs on libuv and in the simulator.
 *
 *     mu_http_server_start(env, &config, &server, &msg);
 *     mu_http_server_push(server, event);      to all listeners of /events
 *     mu_http_server_stop(server);             stopped() follows
 *
 * Access. With a token, a request must show it: as "Authorization: Bearer TOKEN", or as the
 * password of "Basic", which a browser asks its user for; or it shows the key that is derived from
 * the token for this purpose (crypto/page_key.h), so that the token itself need not be sent. A path
 * that the config calls open is answered to everybody: what probes a container has no secret.
 * Without a token, and listening on loopback, a request must call us by a name of loopback: a
 * foreign web page, opened in a browser of this host, can send requests here under a name of its
 * own, and must learn nothing.
 */
#ifndef MU_HTTP_SERVER_H
#define MU_HTTP_SERVER_H

#include "codec/text/http_head.h"
#include "core/buf.h"
#include "core/env.h"
#include "core/err.h"
#include "crypto/page_key.h"

struct mu_http_server;

/* An answer. It is all zero when `answer` is called, but for `body`, which is empty. */
struct mu_http_answer {
    int status;       /* 200, 404, ...; 0: 404 */
    const char *type; /* of the body */
    struct mu_buf *body;
    bool stream; /* the stream of events instead of a body */
    /* Set before the call: the asker has not shown the token, and the path is open. */
    bool stranger;
};

struct mu_http_server_config {
    struct mu_addr listen;  /* the port is filled in */
    size_t connections_max; /* 64; one more replaces the least important one */
    uint32_t head_ms;       /* how long a request may take to come. 5 s */
    uint32_t idle_ms;       /* how long until the next one, or until an answer is read. 30 s */
    struct mu_span token;   /* empty: no token. Copied */
    /** Returns whether a path needs no token. NULL: all do. */
    bool (*open)(const struct mu_http_head *head);
    void (*answer)(void *context, const struct mu_http_head *head, struct mu_http_answer *ret);
    /** A new listener to the events has come: the newest event should be pushed. */
    void (*listened)(void *context);
    /** The last callback. */
    void (*stopped)(void *context);
    void *context;
};

struct mu_http_server_config mu_http_server_config_defaults(void);

/** MUSTER_EADDR, MUSTER_ENOMEM. */
int mu_http_server_start(struct mu_env *env, const struct mu_http_server_config *config,
                         struct mu_http_server **ret_server, struct mu_errmsg *reterr_msg);
const struct mu_addr *mu_http_server_addr(const struct mu_http_server *s);
/** How many listen to the events. */
size_t mu_http_server_listeners(const struct mu_http_server *s);
/**
 * Sends one line of text to all listeners. One that has not read the last line yet gets this one
 * instead of any in between. MUSTER_ENOMEM: the line was not sent.
 */
int mu_http_server_push(struct mu_http_server *s, struct mu_span line);
/** Closes everything; `stopped` follows. Twice is harmless. */
void mu_http_server_stop(struct mu_http_server *s);
/** After `stopped`. */
void mu_http_server_free(struct mu_http_server *s);

#endif

/*
 * A small HTTP server: GET and HEAD, short answers made at once, and streams of events (text/
 * event-stream) of which every listener gets the newest. For pages that say how things stand; not
 * for many. A service: it runs on libuv and in the simulator.
 *
 *     mu_http_server_start(env, &config, &server, &msg);
 *     mu_http_server_push(server, event);      to all who listen to /events
 *     mu_http_server_stop(server);             stopped() follows
 *
 * Who may ask. With a token, only who shows it: "Authorization: Bearer TOKEN", or as the password
 * of "Basic", which a browser asks its user for; or who shows the key that is made of it for that
 * (crypto/page_key.h), so that the token itself need not be sent. Without one, and listening on
 * loopback, only who calls us by a name of loopback: a page of somebody else's, opened in a browser
 * of this host, can send requests here under a name of its own, and shall learn nothing.
 */
#ifndef MU_HTTP_SERVER_H
#define MU_HTTP_SERVER_H

#include "codec/text/http_head.h"
#include "core/buf.h"
#include "core/env.h"
#include "core/err.h"
#include "crypto/page_key.h"

struct mu_http_server;

/* What an answer is made of; all zero when it is asked for, but for `body`, which is empty. */
struct mu_http_answer {
    int status;       /* 200, 404, ...; 0: 404 */
    const char *type; /* of the body */
    struct mu_buf *body;
    bool stream; /* the events, in the place of a body */
};

struct mu_http_server_config {
    struct mu_addr listen;  /* rewritten with the port that was found */
    size_t connections_max; /* 64; one more takes the place of the one that is missed the least */
    uint32_t head_ms;       /* how long a request may take to come. 5 s */
    uint32_t idle_ms;       /* and the next one, or an answer to be read. 30 s */
    struct mu_span token;   /* empty: none. Copied */
    void (*answer)(void *context, const struct mu_http_head *head, struct mu_http_answer *ret);
    /** Somebody listens to the events who was not there before: the newest should be pushed. */
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
 * Tells all who listen: one line of text. Who has not read the last one yet gets this one instead
 * of any in between. MUSTER_ENOMEM: nobody was told.
 */
int mu_http_server_push(struct mu_http_server *s, struct mu_span line);
/** Closes everything; `stopped` follows. Twice is harmless. */
void mu_http_server_stop(struct mu_http_server *s);
/** After `stopped`. */
void mu_http_server_free(struct mu_http_server *s);

#endif

/*
 * One HTTP exchange, as a service asks the environment for it: a request goes out whole, the answer
 * comes in pieces, and it ends exactly once.
 *
 *     http.on = &events;
 *     mu_env_http(env, &http, &request);      head, data ..., done follow, on later turns
 *
 * The environment owns the connections: it keeps and reuses them, one exchange at a time on each
 * (HTTP/1.1). An environment never repeats a request by itself once any of it may have reached the
 * server, whatever the method: the caller knows what may be repeated, see `sent`.
 */
#ifndef MU_HTTP_H
#define MU_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "core/span.h"

/* How long the header in `keep` may be, with its terminator. */
#define MU_HTTP_KEPT_MAX 64
/* How much of an answer the environment holds while the owner does not take it. */
#define MU_HTTP_HELD_MAX 65536

struct mu_env;
struct mu_http;

struct mu_http_events {
    /** The answer begins: http->code and http->kept are set. At most once, before any data. */
    void (*head)(struct mu_http *http);
    /**
     * Bytes of the answer's body have come. Returns how many were used; if not all were, the
     * environment keeps the rest and, once it holds MU_HTTP_HELD_MAX, reads no more until
     * mu_env_http_resume(), which delivers the rest again. `in` is valid until the callback
     * returns.
     */
    size_t (*data)(struct mu_http *http, struct mu_span in);
    /**
     * The last callback, also after mu_env_http_cancel(). Status 0: the answer is whole, whatever
     * its code says; all of it was delivered. Otherwise a negative code, with a sentence in
     * http->error:
     *   MUSTER_ENAME       the host name is unknown
     *   MUSTER_ECONN       there is no connection, or it was lost
     *   MUSTER_ETIMEDOUT   connect_ms or timeout_ms is over
     *   MUSTER_ETLS        one end does not accept the other's certificate or protocol, or a file
     *                      with a certificate or key cannot be used
     *   MUSTER_EPROTO      the answer is not HTTP
     *   MUSTER_ENOTSUP     this system has no library for HTTP, and no request will do better
     *   MUSTER_ECANCELED   after mu_env_http_cancel()
     *   MUSTER_ENOMEM
     * Bytes that `data` has not used are dropped. The memory is the owner's again.
     */
    void (*done)(struct mu_http *http, int status);
};

/* Copied, except for `body`, which must stay valid until `done`. */
struct mu_http_request {
    const char *method;         /* "GET", "PUT", "POST" or "DELETE" */
    const char *url;            /* http://HOST:PORT/PATH[?QUERY] or https:, escaped by the caller */
    const char *const *headers; /* "Name: value", the last one NULL; NULL: no headers */
    struct mu_span body;        /* PUT and POST always have a body, the others never */
    const char *keep;           /* a header of the answer that is wanted, or NULL */

    /* TLS: files in PEM, each NULL or there. */
    const char *cacert; /* the authorities of the server; NULL: the system's list */
    const char *cert;   /* ours, with its chain */
    const char *key;    /* its private key; NULL: in `cert` */

    /* Our credential: a name with a password (basic), or the whole value of `Authorization`. */
    const char *user;
    const char *password;
    const char *authorization;

    uint32_t connect_ms; /* until there is a connection, TLS included. 0: 10 s */
    uint32_t timeout_ms; /* until all is over. 0: never */
};

struct mu_http {
    const struct mu_http_events *on; /* set before it is started */
    struct mu_env *env;              /* the environment's from here */
    void *impl;
    int code; /* of the answer: 200, 404 ...; 0 before `head` */
    /*
     * Valid in `done`: whether the server may have got the request. False is certain: the request
     * was not executed, and may be tried elsewhere.
     */
    bool sent;
    char kept[MU_HTTP_KEPT_MAX]; /* the header named by `keep`; "" if absent or too long */
    struct mu_errmsg error;
};

#endif

/*
 * Reads a page from an HTTP server: one GET at a time, each on a connection of its own. For the
 * status pages of muster, which speak plain HTTP. An https:// page, which a proxy in front of
 * one may offer, is read by the environment's verb `http`, which needs libcurl; nothing else does.
 *
 *     mu_page_client_init(&client, env, bytes_max, on_done);
 *     mu_page_client_get(&client, &request);        done() follows, on a later turn
 *     mu_page_client_fini(&client);
 */
#ifndef MU_PAGE_CLIENT_H
#define MU_PAGE_CLIENT_H

#include "codec/text/http_reply.h"
#include "core/buf.h"
#include "core/env.h"
#include "core/err.h"

/* How long a request may be: the URL, and our credential. */
#define MU_PAGE_REQUEST_MAX 8192

struct mu_page_request {
    /* http://[USER[:PASSWORD]@]HOST[:PORT][/PATH], or https://... USER and PASSWORD are a
     * credential if `authorization` is NULL. Not kept. */
    const char *url;
    const char *authorization; /* the value of the header, or NULL. Not kept */
    uint32_t connect_ms;       /* until there is a connection */
    uint32_t timeout_ms;       /* until all is over */
};

struct mu_page_client {
    /**
     * It is over. Status 0: the answer is whole, and `code` and `body` have it. Otherwise a
     * negative code, with a sentence in `error`:
     *   MUSTER_ENAME       the host name is unknown
     *   MUSTER_ECONN       there is no connection, or it was lost; also a negated errno
     *   MUSTER_ETIMEDOUT   connect_ms or timeout_ms is over
     *   MUSTER_EPROTO      the answer is not HTTP that we understand
     *   MUSTER_ELIMIT      the body is larger than bytes_max
     *   MUSTER_ECANCELED   after mu_page_client_cancel()
     *   MUSTER_ENOMEM
     *   MUSTER_ETLS, MUSTER_ENOTSUP   of https://, as core/http.h has them
     * It may start the next one.
     */
    void (*done)(struct mu_page_client *client, int status);
    int code; /* of the answer: 200, 404 ...; 0: there was none */
    struct mu_buf body;
    struct mu_errmsg error;

    /* private */
    struct mu_env *env;
    struct mu_conn conn;
    struct mu_http http; /* https:// */
    struct mu_timer timer;
    mu_mono_t until;
    uint32_t timeout_ms;
    struct mu_buf out; /* of the request, what was not sent */
    struct mu_buf in;  /* of the answer, what was not understood */
    struct mu_http_body framing;
    char server[MU_ADDR_HOST_MAX + 16];
    int status;
    bool busy;
    bool secure; /* https:// */
    bool open;
    bool ending;
};

void mu_page_client_init(struct mu_page_client *c, struct mu_env *env, size_t bytes_max,
                         void (*done)(struct mu_page_client *client, int status));
/** After `done`, or if nothing was started. */
void mu_page_client_fini(struct mu_page_client *c);
/**
 * Asks for a page; `done` follows. MUSTER_EURL, with the reason in `error`: it is not a URL of a
 * page; MUSTER_ELIMIT: the request is longer than MU_PAGE_REQUEST_MAX; MUSTER_ENOMEM.
 */
int mu_page_client_get(struct mu_page_client *c, const struct mu_page_request *request);
/** Ends it; `done` follows. Twice is harmless, and so is one without a request. */
void mu_page_client_cancel(struct mu_page_client *c);

#endif

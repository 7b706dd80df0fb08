/*
 * The status pages of a server, an agent or shared states, over HTTP:
 *
 *     /             for people: live, readable on a phone, nothing from outside
 *     /status.json  the same for programs; /events the same whenever it changes, as a stream
 *     /metrics      for Prometheus
 *     /stacks       an agent's: the stacks of all ranks when the run hung last, as text
 *     /healthz      200: the loop turns
 *     /readyz       200: it does its work; 503: not yet, or not any more
 *
 * The last two need no token, and then say no more than their first line. One page shows all kinds:
 * docs/operate.md lists the members of the JSON.
 */
#ifndef MU_STATUS_PAGE_H
#define MU_STATUS_PAGE_H

#include "service/page/http_server.h"

struct mu_status_page;

/* Where the status comes from. It is asked whenever somebody looks: on the loop, so it must be
 * quick. */
struct mu_status_source {
    /** Appends the status as one line of JSON. MUSTER_ENOMEM, MUSTER_ELIMIT. */
    int (*json)(void *context, struct mu_buf *out);
    /** The same as text for Prometheus. */
    int (*metrics)(void *context, struct mu_buf *out);
    bool (*ready)(void *context);
    /** Appends what there is to say of stacks; to ask for it costs nobody else anything. NULL:
     * there is no such page. */
    int (*stacks)(void *context, struct mu_buf *out);
    /** Returns what the service cannot do though it is ready, or NULL. The pointer may be NULL
     * itself. */
    const char *(*ailment)(void *context);
    void *context;
};

struct mu_status_page_config {
    struct mu_addr listen; /* port 0: any free one */
    struct mu_span token;  /* as mu_http_server_config has it */
    /** The last callback. */
    void (*stopped)(void *context);
    void *context;
};

/**
 * The source must live until `stopped`. The caller sees to it that a page beyond loopback has a
 * token. MUSTER_EADDR, MUSTER_EINVAL, MUSTER_ENOMEM.
 */
int mu_status_page_start(struct mu_env *env, const struct mu_status_source *source,
                         const struct mu_status_page_config *config,
                         struct mu_status_page **ret_page, struct mu_errmsg *reterr_msg);
const struct mu_addr *mu_status_page_addr(const struct mu_status_page *page);
/** Sends the page to all listeners now: for what would be gone at the next time. */
void mu_status_page_tell(struct mu_status_page *page);
void mu_status_page_stop(struct mu_status_page *page);
/** After `stopped`. */
void mu_status_page_free(struct mu_status_page *page);

/* The page, made from status_page.html when the tree is built. */
extern const unsigned char mu_status_page_html[];
extern const size_t mu_status_page_html_len;

#endif

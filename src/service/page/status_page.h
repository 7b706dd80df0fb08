/*
 * The pages that say how something stands (a server, an agent, states that are shared), over HTTP:
 *
 *     /             for people: live, readable on a phone, nothing from outside
 *     /status.json  the same for programs; /events the same whenever it changes, as a stream
 *     /metrics      for Prometheus
 *     /healthz      200: the loop turns
 *     /readyz       200: it does its work; 503: not yet, or not any more
 *
 * One page shows all kinds: docs/operate.md has the members of what it is told.
 */
#ifndef MU_STATUS_PAGE_H
#define MU_STATUS_PAGE_H

#include "service/page/http_server.h"

struct mu_status_page;

/* What is told. Asked whenever somebody looks; short, and on the loop. */
struct mu_status_source {
    /** Appends how it stands as one line of JSON. MUSTER_ENOMEM, MUSTER_ELIMIT. */
    int (*json)(void *context, struct mu_buf *out);
    /** The same as text for Prometheus. */
    int (*metrics)(void *context, struct mu_buf *out);
    bool (*ready)(void *context);
    /** What it cannot do though it is ready, or NULL. May be NULL itself. */
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
 * What the source tells of must live until `stopped`. That a page beyond loopback has a token is
 * the caller's to see to. MUSTER_EADDR, MUSTER_EINVAL, MUSTER_ENOMEM.
 */
int mu_status_page_start(struct mu_env *env, const struct mu_status_source *source,
                         const struct mu_status_page_config *config,
                         struct mu_status_page **ret_page, struct mu_errmsg *reterr_msg);
const struct mu_addr *mu_status_page_addr(const struct mu_status_page *page);
/** Tells all who look at once: for what would be gone at the next time. */
void mu_status_page_tell(struct mu_status_page *page);
void mu_status_page_stop(struct mu_status_page *page);
/** After `stopped`. */
void mu_status_page_free(struct mu_status_page *page);

/* The page, made from status_page.html when the tree is built. */
extern const unsigned char mu_status_page_html[];
extern const size_t mu_status_page_html_len;

#endif

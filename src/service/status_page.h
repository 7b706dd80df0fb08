/*
 * The pages that say how a store server stands, over HTTP:
 *
 *     /             for people: live, readable on a phone, nothing from outside
 *     /status.json  the same for programs; /events the same whenever it changes, as a stream
 *     /metrics      for Prometheus
 *     /healthz      200: the server's loop turns
 *     /readyz       200: it takes requests; 503: it is about to end
 */
#ifndef MU_STATUS_PAGE_H
#define MU_STATUS_PAGE_H

#include "service/http_server.h"
#include "service/store_server.h"

struct mu_status_page;

struct mu_status_page_config {
    struct mu_addr listen; /* port 0: any free one */
    struct mu_span token;  /* as mu_http_server_config has it */
    /** The last callback. */
    void (*stopped)(void *context);
    void *context;
};

/** The server must live until `stopped`. MUSTER_EADDR, MUSTER_EINVAL, MUSTER_ENOMEM. */
int mu_status_page_start(struct mu_env *env, struct mu_store_server *store,
                         const struct mu_status_page_config *config,
                         struct mu_status_page **ret_page, struct mu_errmsg *reterr_msg);
const struct mu_addr *mu_status_page_addr(const struct mu_status_page *page);
void mu_status_page_stop(struct mu_status_page *page);
/** After `stopped`. */
void mu_status_page_free(struct mu_status_page *page);

/* The page, made from status_page.html when the tree is built. */
extern const unsigned char mu_status_page_html[];
extern const size_t mu_status_page_html_len;

#endif

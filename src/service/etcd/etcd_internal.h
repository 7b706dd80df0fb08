/* What the files of the etcd client share: etcd.c (calls), watch.c, lease.c. Each drives a machine
 * of proto/etcd with HTTP and a timer. */
#ifndef MU_ETCD_INTERNAL_H
#define MU_ETCD_INTERNAL_H

#include "service/etcd/etcd.h"

struct mu_etcd_endpoint {
    char base[MU_ADDR_HOST_MAX + 32]; /* https://HOST:PORT */
};

struct mu_etcd {
    struct mu_env *env;
    struct mu_etcd_config config; /* its texts are ours */
    char *texts;
    struct mu_etcd_endpoint endpoints[MU_ETCD_ENDPOINTS_MAX];
    uint32_t endpoint_count;
    struct mu_etcd_route route;
    struct mu_list calls;
    struct mu_list watches;
    struct mu_list leases;
    struct mu_etcd_reply reply; /* of the call that is being told */
    struct mu_buf url;

    /* The user. */
    struct mu_etcd_call auth;
    struct mu_buf auth_body;
    struct mu_buf token;

    void (*trouble)(void *context, int status, const char *where, const char *why); /* or NULL */
    void *trouble_context;
    void (*closed)(void *context);
    void *context;
    struct mu_timer closer;
};

static inline mu_mono_t mu_etcd_now(const struct mu_etcd *etcd)
{
    return mu_env_now(etcd->env).mono;
}

/** The next endpoint of a list with commas between them, of which `count` were taken: moves `list`
 * behind it. MUSTER_EURL with words. */
int mu_etcd_next_endpoint(const char **list, size_t count, struct mu_addr *ret,
                          struct mu_errmsg *reterr_msg);
/** Starts an exchange with an endpoint. */
int mu_etcd_exchange(struct mu_etcd *etcd, struct mu_http *http, uint32_t endpoint,
                     const struct mu_http_request *request, const char *path, bool v2);
/** How an exchange ended, but for its text. */
struct mu_etcd_exchange mu_etcd_exchange_of(struct mu_etcd *etcd, const struct mu_http *http,
                                            int status, uint32_t endpoint);
/** A machine wants a token. */
void mu_etcd_authenticate(struct mu_etcd *etcd);
void mu_etcd_watch_authed(struct mu_etcd_watch *w, int status, const char *text);
/** Something has ended: ends the closing if it was the last. */
void mu_etcd_check_closed(struct mu_etcd *etcd);
void mu_etcd_watch_stop(struct mu_etcd_watch *w, int why);
void mu_etcd_lease_close(struct mu_etcd_lease *l);

#endif

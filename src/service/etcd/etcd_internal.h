/* What the files of the etcd client share: etcd.c (calls), judge.c (what answers mean),
 * watch.c, lease.c. */
#ifndef MU_ETCD_INTERNAL_H
#define MU_ETCD_INTERNAL_H

#include "core/prng.h"
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
    uint32_t current; /* the one that answered last */
    struct mu_prng prng;
    struct mu_list calls;
    struct mu_list watches;
    struct mu_list leases;
    struct mu_etcd_reply reply; /* of the call that is being told */
    struct mu_buf url;
    mu_mono_t answered; /* when an endpoint last did */
    bool ever_answered;

    /* Who we are. */
    struct mu_etcd_call auth;
    struct mu_buf auth_body;
    struct mu_buf token;
    uint64_t token_number; /* counts tokens; 0: none yet */
    bool auth_off;         /* the server asks for none */

    bool closing;
    void (*closed)(void *context);
    void *context;
    struct mu_timer closer;
};

/* How one exchange ended. */
enum mu_etcd_verdict {
    MU_ETCD_DONE = 1, /* it was answered: status says how */
    MU_ETCD_NEXT,     /* it did not happen: try elsewhere */
    MU_ETCD_HOPELESS, /* nor will it here; elsewhere, perhaps */
    MU_ETCD_REAUTH,   /* it did not happen: our token is no good any more */
    MU_ETCD_UNKNOWN,  /* perhaps it happened */
};

/** What a refusal of etcd means: a code, with words in `msg`. */
enum mu_etcd_verdict mu_etcd_judge(const struct mu_etcd_reply *r, int *ret_status,
                                   struct mu_errmsg *msg);
/** What the answer to a call means: its status, reply, text and words are set. */
enum mu_etcd_verdict mu_etcd_judge_answer(struct mu_etcd_call *call);
/** What an exchange without an answer means. */
enum mu_etcd_verdict mu_etcd_judge_http(const struct mu_http *http, int status);
/** Starts an exchange with an endpoint. */
int mu_etcd_exchange(struct mu_etcd *etcd, struct mu_http *http, uint32_t endpoint,
                     const struct mu_http_request *request, const char *path, bool v2);
/** An endpoint failed: who goes there next goes to the one behind it. */
void mu_etcd_leave(struct mu_etcd *etcd, uint32_t endpoint);
void mu_etcd_answered(struct mu_etcd *etcd, uint32_t endpoint);
/** How long to wait before try number `tries` (from 1). */
uint64_t mu_etcd_rest_ns(struct mu_etcd *etcd, uint32_t tries);
/** Whether the cluster has been silent for too long, as seen by what has begun then. */
bool mu_etcd_out_of_patience(const struct mu_etcd *etcd, mu_mono_t started);
/** Whether a token is wanted and there is none: then it is asked for. */
bool mu_etcd_needs_token(struct mu_etcd *etcd);
/** The token of that number is no good: drops it, if it is still the one in use. */
void mu_etcd_drop_token(struct mu_etcd *etcd, uint64_t number);
/** Something has ended: ends the closing if it was the last. */
void mu_etcd_check_closed(struct mu_etcd *etcd);
/** The client goes, or could not get a token: ends each with that. */
void mu_etcd_watch_end_all(struct mu_etcd *etcd);
void mu_etcd_lease_end_all(struct mu_etcd *etcd);
/** There is a token, or (status not 0) there will be none. */
void mu_etcd_watch_authed(struct mu_etcd *etcd, int status, const char *text);

#endif

/*
 * What the end of an HTTP exchange with etcd means: whether it is an answer, what etcd refuses, and
 * what may be tried again. Functions without a state.
 */
#ifndef MU_ETCD_JUDGE_H
#define MU_ETCD_JUDGE_H

#include "codec/etcd/json.h"
#include "core/err.h"
#include "core/span.h"

/* How one exchange ended. */
struct mu_etcd_exchange {
    int status;        /* 0: there is an answer, whatever its code says */
    bool sent;         /* the server may have got the request */
    int code;          /* HTTP's; 0: the answer did not begin */
    const char *error; /* the words of `status` */
    const char *where; /* the endpoint */
    const char *index; /* v2: the header X-Etcd-Index */
    struct mu_span text;
    struct mu_etcd_reply *reply; /* v3: the text is decoded into it */
};

enum mu_etcd_verdict {
    MU_ETCD_DONE = 1, /* etcd answered: the status says how */
    MU_ETCD_NEXT,     /* it did not happen: try elsewhere */
    MU_ETCD_HOPELESS, /* it will not happen here; elsewhere, perhaps */
    MU_ETCD_REAUTH,   /* it did not happen: etcd does not accept the token any more */
    MU_ETCD_UNKNOWN,  /* perhaps it happened */
};

/* What came of a call; service/etcd/etcd.h says what the members mean. */
struct mu_etcd_answer {
    int status;
    bool unknown;
    int64_t grpc_code;
    const struct mu_etcd_reply *reply;
    struct mu_span text;
    int code;
    int64_t index;
    struct mu_errmsg errmsg; /* the words of `status` */
};

/** What a refusal of etcd means: a code, with words in `msg`. */
enum mu_etcd_verdict mu_etcd_judge_refusal(const struct mu_etcd_reply *r, int *ret_status,
                                           struct mu_errmsg *msg);
/** What an answer of the v3 API means. `has_user`: the request names a user. */
enum mu_etcd_verdict mu_etcd_judge_v3(const struct mu_etcd_exchange *x, bool has_user,
                                      struct mu_etcd_answer *a);
/** The same for the v2 API. */
enum mu_etcd_verdict mu_etcd_judge_v2(const struct mu_etcd_exchange *x, bool has_user,
                                      struct mu_etcd_answer *a);

#endif

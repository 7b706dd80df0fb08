#include "proto/etcd/judge.h"

#include <stdlib.h>
#include <string.h>

#define TEXT_SHOWN 100
#define TOO_LARGE                                                                                  \
    "it is too large for this etcd, which takes 1.5 MiB in a request unless it was started with "  \
    "a larger --max-request-bytes; "

static bool says(struct mu_span text, const char *words)
{
    return text.len > 0 && memmem(text.data, text.len, words, strlen(words)) != NULL;
}

static int quote_text(struct mu_errmsg *msg, int status, const char *prefix, struct mu_span text)
{
    int len = (int)(text.len < TEXT_SHOWN ? text.len : TEXT_SHOWN);

    while (len > 0 && (text.data[len - 1] == '\n' || text.data[len - 1] == '\r')) {
        len--;
    }
    return mu_err(msg, status, "%s%.*s", prefix, len, (const char *)text.data);
}

/* Refusals that mean that nothing was done. */
static enum mu_etcd_verdict judge_unavailable(struct mu_span message)
{
    return says(message, "no leader") || says(message, "too many requests") ||
                   says(message, "not capable") || says(message, "learner") ||
                   says(message, "connection refused") || says(message, "unhealthy cluster")
               ? MU_ETCD_NEXT
               : MU_ETCD_UNKNOWN;
}

enum mu_etcd_verdict mu_etcd_judge_refusal(const struct mu_etcd_reply *r, int *ret_status,
                                           struct mu_errmsg *msg)
{
    enum mu_etcd_verdict verdict = MU_ETCD_DONE;
    int status;

    switch (r->code) {
    case MU_ETCD_NOT_FOUND:
        status = MUSTER_ENOENT;
        break;
    case MU_ETCD_DENIED:
        status = MUSTER_EREFUSED;
        break;
    case MU_ETCD_UNAUTHORIZED:
        status = MUSTER_EREFUSED;
        verdict = MU_ETCD_REAUTH;
        break;
    case MU_ETCD_INVALID:
        status = says(r->message, "authentication failed") || says(r->message, "user name is empty")
                     ? MUSTER_EREFUSED
                 : says(r->message, "too large") || says(r->message, "too many operations")
                     ? MUSTER_ELIMIT
                     : MUSTER_EINVAL;
        verdict = says(r->message, "revision of auth store is old") ? MU_ETCD_REAUTH : MU_ETCD_DONE;
        break;
    case MU_ETCD_EXHAUSTED:
        status = says(r->message, "too many requests") ? MUSTER_ECONN
                 : says(r->message, "space exceeded")  ? MUSTER_EFULL
                                                       : MUSTER_ELIMIT;
        verdict = status == MUSTER_ECONN ? MU_ETCD_NEXT : MU_ETCD_DONE;
        break;
    case MU_ETCD_PRECONDITION:
        status = MUSTER_EREFUSED;
        break;
    case MU_ETCD_OUT_OF_RANGE:
        status = MUSTER_EOVERFLOW;
        break;
    case MU_ETCD_UNIMPLEMENTED:
        status = MUSTER_EVERSION;
        break;
    default:
        status = MUSTER_ECONN;
        verdict = judge_unavailable(r->message);
        break;
    }
    *ret_status = quote_text(msg, status,
                             status == MUSTER_ELIMIT && !says(r->message, "operations")
                                 ? TOO_LARGE "etcd says: "
                                 : "etcd says: ",
                             r->message);
    return verdict;
}

/* An answer that is not the API's own: a proxy's, another server's, one that has no such API. */
static enum mu_etcd_verdict judge_stranger(const struct mu_etcd_exchange *x, bool has_user,
                                           const char *no_api, struct mu_etcd_answer *a)
{
    if (says(x->text, "HTTP request to an HTTPS server")) {
        a->status =
            mu_err(&a->errmsg, MUSTER_ETLS, "this server wants TLS: give cacert=FILE, or tls=true");
        return MU_ETCD_HOPELESS;
    }
    if (x->code == 404) {
        a->status = mu_err(&a->errmsg, MUSTER_EVERSION, "%s", no_api);
        return MU_ETCD_HOPELESS;
    }
    if (x->code == 401 || x->code == 403) {
        a->status = mu_err(&a->errmsg, MUSTER_EREFUSED, "%s",
                           has_user ? "etcd does not accept this user and password"
                                    : "etcd wants a user and a password");
        return MU_ETCD_DONE;
    }
    a->status = quote_text(&a->errmsg, MUSTER_EPROTO, "not an answer of etcd's: ", x->text);
    return x->code >= 500 ? MU_ETCD_UNKNOWN : MU_ETCD_HOPELESS;
}

enum mu_etcd_verdict mu_etcd_judge_v2(const struct mu_etcd_exchange *x, bool has_user,
                                      struct mu_etcd_answer *a)
{
    bool ours = x->text.len == 0 || x->text.data[0] == '{';

    if (ours && x->code >= 500) {
        a->status = quote_text(&a->errmsg, MUSTER_ECONN, "etcd says: ", x->text);
        return says(x->text, "\"errorCode\":301") ? MU_ETCD_NEXT : MU_ETCD_UNKNOWN;
    }
    if (!ours || x->code == 401 || x->code == 403) {
        return judge_stranger(x, has_user,
                              "this etcd does not offer the v2 API: up to 3.5 it does if started "
                              "with --enable-v2, and 3.6 has none; use --rdzv-backend etcd-v3, or "
                              "a store without api=v2",
                              a);
    }
    a->status = 0;
    a->text = x->text;
    a->index = strtoll(x->index, NULL, 10);
    return MU_ETCD_DONE;
}

enum mu_etcd_verdict mu_etcd_judge_v3(const struct mu_etcd_exchange *x, bool has_user,
                                      struct mu_etcd_answer *a)
{
    int err = mu_etcd_reply_decode(x->reply, x->text);

    if (err == MUSTER_ENOMEM) {
        a->status = mu_err(&a->errmsg, err, "%s", muster_strerror(err));
        a->unknown = true;
        return MU_ETCD_DONE;
    }
    if (err != 0) {
        return judge_stranger(x, has_user, "this server does not offer etcd's v3 API at /v3", a);
    }
    if (x->code == 200 && !x->reply->is_error) {
        a->status = 0;
        a->reply = x->reply;
        a->text = x->text;
        return MU_ETCD_DONE;
    }
    a->grpc_code = x->reply->code;
    return mu_etcd_judge_refusal(x->reply, &a->status, &a->errmsg);
}

/* What an answer means: whether it is one, what etcd refuses, and what may be tried again. */
#include <stdlib.h>
#include <string.h>

#include "service/etcd/etcd_internal.h"

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

enum mu_etcd_verdict mu_etcd_judge(const struct mu_etcd_reply *r, int *ret_status,
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

enum mu_etcd_verdict mu_etcd_judge_http(const struct mu_http *http, int status)
{
    if (status == MUSTER_ETLS) {
        return MU_ETCD_HOPELESS;
    }
    return http->sent ? MU_ETCD_UNKNOWN : MU_ETCD_NEXT;
}

/* An answer that is not the API's own: a proxy's, another server's, one that has no such API. */
static enum mu_etcd_verdict judge_stranger(struct mu_etcd_call *call)
{
    struct mu_span text = mu_buf_span(&call->in);

    if (says(text, "HTTP request to an HTTPS server")) {
        call->status = mu_err(&call->errmsg, MUSTER_ETLS,
                              "this server wants TLS: give cacert=FILE, or tls=true");
        return MU_ETCD_HOPELESS;
    }
    if (call->code == 404) {
        call->status = mu_err(&call->errmsg, MUSTER_EVERSION,
                              call->v2 ? "this etcd does not offer the v2 API "
                                         "(up to 3.5 it does if started with --enable-v2)"
                                       : "this server does not offer etcd's v3 API at /v3");
        return MU_ETCD_HOPELESS;
    }
    if (call->code == 401 || call->code == 403) {
        call->status =
            mu_err(&call->errmsg, MUSTER_EREFUSED, "%s",
                   call->etcd->config.user == NULL ? "etcd wants a user and a password"
                                                   : "etcd does not accept this user and password");
        return MU_ETCD_DONE;
    }
    call->status = quote_text(&call->errmsg, MUSTER_EPROTO, "not an answer of etcd's: ", text);
    return call->code >= 500 ? MU_ETCD_UNKNOWN : MU_ETCD_HOPELESS;
}

static enum mu_etcd_verdict judge_v2(struct mu_etcd_call *call)
{
    struct mu_span text = mu_buf_span(&call->in);

    if (text.len > 0 && text.data[0] != '{') {
        return judge_stranger(call);
    }
    if (call->code >= 500) {
        call->status = quote_text(&call->errmsg, MUSTER_ECONN, "etcd says: ", text);
        return says(text, "\"errorCode\":301") ? MU_ETCD_NEXT : MU_ETCD_UNKNOWN;
    }
    if (call->code == 401 || call->code == 403) {
        return judge_stranger(call);
    }
    call->text = text;
    call->index = strtoll(call->http.kept, NULL, 10);
    return MU_ETCD_DONE;
}

enum mu_etcd_verdict mu_etcd_judge_answer(struct mu_etcd_call *call)
{
    struct mu_etcd *etcd = call->etcd;
    int err;

    call->status = 0;
    call->code = call->http.code;
    if (call->bare) {
        call->text = mu_buf_span(&call->in);
        return MU_ETCD_DONE;
    }
    if (call->v2) {
        return judge_v2(call);
    }
    err = mu_etcd_reply_decode(&etcd->reply, mu_buf_span(&call->in));
    if (err == MUSTER_ENOMEM) {
        call->status = mu_err(&call->errmsg, err, "%s", muster_strerror(err));
        call->unknown = true;
        return MU_ETCD_DONE;
    }
    if (err != 0) {
        return judge_stranger(call);
    }
    if (call->code == 200 && !etcd->reply.is_error) {
        call->reply = &etcd->reply;
        call->text = mu_buf_span(&call->in);
        return MU_ETCD_DONE;
    }
    call->grpc_code = etcd->reply.code;
    return mu_etcd_judge(&etcd->reply, &call->status, &call->errmsg);
}

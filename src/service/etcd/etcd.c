/* The client: its endpoints, its calls (proto/etcd/route.h) and its token. */
#include "service/etcd/etcd.h"

#include <stdio.h>
#include <string.h>

#include "core/addr.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "service/etcd/etcd_internal.h"

#define URL_MAX   (64u << 10)
#define TOKEN_MAX 8192u

struct mu_etcd_config mu_etcd_config_defaults(void)
{
    return (struct mu_etcd_config){
        .first_ms = 30000,
        .patience_ms = 10000,
        .connect_ms = 2000,
        .try_ms = 8000,
        .quiet_ms = 20000,
        .reply_bytes_max = 256u << 20,
    };
}

int mu_etcd_exchange(struct mu_etcd *etcd, struct mu_http *http, uint32_t endpoint,
                     const struct mu_http_request *request, const char *path, bool v2)
{
    static const char *const json[] = {"Content-Type: application/json",
                                       "Grpc-Metadata-hasleader: true", NULL};
    static const char *const form[] = {"Content-Type: application/x-www-form-urlencoded", NULL};
    struct mu_http_request q = *request;
    const char *base = etcd->endpoints[endpoint].base;
    int err;

    mu_buf_reset(&etcd->url);
    err = mu_buf_append(&etcd->url, mu_span_str(base));
    if (err == 0) {
        err = mu_buf_append(&etcd->url, mu_span(path, strlen(path) + 1));
    }
    if (err != 0) {
        return err;
    }
    q.url = (const char *)mu_buf_span(&etcd->url).data;
    q.headers = v2 ? form : json;
    q.cacert = etcd->config.cacert;
    q.cert = etcd->config.cert;
    q.key = etcd->config.key;
    q.connect_ms = etcd->config.connect_ms;
    if (v2 && etcd->config.user != NULL) {
        q.user = etcd->config.user;
        q.password = etcd->config.password;
    } else if (!v2 && etcd->route.token == MU_ETCD_TOKEN_HELD) {
        q.authorization = (const char *)mu_buf_span(&etcd->token).data;
    }
    return mu_env_http(etcd->env, http, &q);
}

/* --- calls ------------------------------------------------------------------------------------ */

bool mu_etcd_call_active(const struct mu_etcd_call *call)
{
    return call->asker.state != MU_ETCD_ASKER_IDLE;
}

static void end_call(struct mu_etcd_call *call)
{
    struct mu_etcd *etcd = call->etcd;
    const struct mu_etcd_answer *a = &call->asker.answer;
    struct mu_buf in = call->in; /* The call may be gone, or out again, when `done` returns. */

    mu_env_timer_arm(etcd->env, &call->timer, MU_MONO_NEVER);
    mu_list_remove(&call->link);
    call->status = a->status;
    call->unknown = a->unknown;
    call->tries = call->asker.tries;
    call->grpc_code = a->grpc_code;
    call->reply = a->reply;
    call->text = a->text;
    call->code = a->code;
    call->index = a->index;
    call->errmsg = a->errmsg;
    mu_buf_init(&call->in, 0);
    call->done(call);
    mu_buf_fini(&in);
    mu_etcd_check_closed(etcd);
}

static size_t on_data(struct mu_http *http, struct mu_span in);
static void on_http_done(struct mu_http *http, int status);

static void on_head(struct mu_http *http)
{
    (void)http;
}

static void send_call(struct mu_etcd_call *call)
{
    static const struct mu_http_events events = {on_head, on_data, on_http_done};
    struct mu_etcd *etcd = call->etcd;
    struct mu_http_request q = {
        .method = call->method != NULL ? call->method : "POST",
        .body = call->body,
        .keep = call->v2 ? "X-Etcd-Index" : NULL,
        .timeout_ms = call->asker.try_ms,
    };
    int err;

    mu_buf_fini(&call->in);
    mu_buf_init(&call->in, etcd->config.reply_bytes_max);
    call->http.on = &events;
    err = mu_etcd_exchange(etcd, &call->http, call->asker.endpoint, &q, call->path, call->v2);
    if (err != 0) {
        mu_etcd_asker_unsent(&call->asker, err, mu_etcd_now(etcd));
    }
}

static void pump(struct mu_etcd_call *call)
{
    struct mu_etcd *etcd = call->etcd;
    enum mu_etcd_asker_action action;

    while ((action = mu_etcd_asker_next(&call->asker)) != 0) {
        switch (action) {
        case MU_ETCD_ASKER_SEND:
            send_call(call);
            break;
        case MU_ETCD_ASKER_CANCEL:
            mu_env_http_cancel(etcd->env, &call->http);
            break;
        case MU_ETCD_ASKER_AUTHENTICATE:
            mu_etcd_authenticate(etcd);
            break;
        case MU_ETCD_ASKER_END:
            end_call(call);
            return;
        }
    }
    mu_env_timer_arm(etcd->env, &call->timer, call->asker.wake);
}

static size_t on_data(struct mu_http *http, struct mu_span in)
{
    struct mu_etcd_call *call = MU_CONTAINER_OF(http, struct mu_etcd_call, http);
    int err = call->asker.spoilt != 0 ? 0 : mu_buf_append(&call->in, in);

    if (err != 0) {
        mu_etcd_asker_spoil(&call->asker, err);
        pump(call);
    }
    return in.len;
}

struct mu_etcd_exchange mu_etcd_exchange_of(struct mu_etcd *etcd, const struct mu_http *http,
                                            int status, uint32_t endpoint)
{
    return (struct mu_etcd_exchange){
        .status = status,
        .sent = http->sent,
        .code = http->code,
        .error = http->error.text,
        .where = etcd->endpoints[endpoint].base,
        .index = http->kept,
        .reply = &etcd->reply,
    };
}

static void on_http_done(struct mu_http *http, int status)
{
    struct mu_etcd_call *call = MU_CONTAINER_OF(http, struct mu_etcd_call, http);
    struct mu_etcd_exchange x = mu_etcd_exchange_of(call->etcd, http, status, call->asker.endpoint);

    if (status != 0 && status != MUSTER_ECANCELED && call->etcd->trouble != NULL && !call->poll) {
        call->etcd->trouble(call->etcd->trouble_context, status, x.where,
                            x.error[0] != '\0' ? x.error : muster_strerror(status));
    }
    x.text = mu_buf_span(&call->in);
    mu_etcd_asker_done(&call->asker, &x, mu_etcd_now(call->etcd));
    pump(call);
}

static void on_call_timer(struct mu_timer *timer)
{
    struct mu_etcd_call *call = MU_CONTAINER_OF(timer, struct mu_etcd_call, timer);

    mu_etcd_asker_tick(&call->asker, mu_etcd_now(call->etcd));
    pump(call);
}

void mu_etcd_submit(struct mu_etcd *etcd, struct mu_etcd_call *call)
{
    struct mu_etcd_terms terms = {
        .repeat = call->repeat,
        .v2 = call->v2,
        .poll = call->poll,
        .bare = call->bare,
        .named = !call->v2 && !call->bare && call != &etcd->auth,
        .timeout_ms = call->timeout_ms,
    };

    call->etcd = etcd;
    mu_buf_init(&call->in, etcd->config.reply_bytes_max);
    mu_timer_init(&call->timer, on_call_timer);
    mu_list_init(&call->link);
    mu_list_push(&etcd->calls, &call->link);
    mu_etcd_asker_start(&call->asker, &etcd->route, &terms, mu_etcd_now(etcd));
    pump(call);
}

static void stop_call(struct mu_etcd_call *call, int why)
{
    if (mu_etcd_call_active(call)) {
        mu_etcd_asker_stop(&call->asker, why, mu_etcd_now(call->etcd));
        pump(call);
    }
}

void mu_etcd_cancel(struct mu_etcd_call *call)
{
    stop_call(call, MUSTER_ECANCELED);
}

void mu_etcd_on_trouble(struct mu_etcd *etcd,
                        void (*trouble)(void *context, int status, const char *where,
                                        const char *why),
                        void *context)
{
    etcd->trouble = trouble;
    etcd->trouble_context = context;
}

/* --- the token -------------------------------------------------------------------------------- */

static int keep_token(struct mu_etcd *etcd, struct mu_span token)
{
    int err;

    mu_buf_reset(&etcd->token);
    err = mu_buf_reserve(&etcd->token, token.len + 1);
    if (err == MUSTER_ELIMIT) {
        return mu_err(
            &etcd->auth.errmsg, err,
            "etcd's token for user \"%.64s\" has %zu bytes, and at most %u are taken: use "
            "etcd --auth-token=simple, or shorter JWT claims",
            etcd->route.config.user, token.len, TOKEN_MAX - 1);
    }
    if (err == 0) {
        (void)mu_buf_append(&etcd->token, token);
        (void)mu_buf_append(&etcd->token, mu_span("", 1));
    }
    return err;
}

static void on_auth_done(struct mu_etcd_call *auth)
{
    struct mu_etcd *etcd = auth->etcd;
    int status = auth->status == 0 ? keep_token(etcd, auth->reply->token) : auth->status;

    status = mu_etcd_route_authed(&etcd->route, status, &auth->errmsg);
    MU_LIST_FOREACH (it, &etcd->calls) {
        struct mu_etcd_call *call = MU_CONTAINER_OF(it, struct mu_etcd_call, link);

        mu_etcd_asker_authed(&call->asker, status, auth->errmsg.text, mu_etcd_now(etcd));
        pump(call);
    }
    MU_LIST_FOREACH (it, &etcd->watches) {
        mu_etcd_watch_authed(MU_CONTAINER_OF(it, struct mu_etcd_watch, link), status,
                             auth->errmsg.text);
    }
}

void mu_etcd_authenticate(struct mu_etcd *etcd)
{
    etcd->auth.path = "/v3/auth/authenticate";
    etcd->auth.body = mu_buf_span(&etcd->auth_body);
    etcd->auth.repeat = true;
    etcd->auth.done = on_auth_done;
    mu_etcd_submit(etcd, &etcd->auth);
}

int mu_etcd_read_password(struct mu_env *env, const char *path, char *buf, size_t cap,
                          struct mu_errmsg *reterr_msg)
{
    const struct mu_paths *paths = mu_env_paths(env);
    size_t len = 0;
    int err;

    buf[0] = '\0';
    if (path == NULL || path[0] == '\0') {
        return 0;
    }
    err = paths == NULL ? MUSTER_ENOTSUP : paths->read(path, buf, cap - 1, &len);
    if (err != 0) {
        return mu_err(reterr_msg, MUSTER_EURL, "the password_file %.128s cannot be read: %s", path,
                      muster_strerror(err));
    }
    buf[len] = '\0';
    buf[strcspn(buf, "\r\n")] = '\0';
    return 0;
}

/* --- the client ------------------------------------------------------------------------------- */

int mu_etcd_next_endpoint(const char **list, size_t count, struct mu_addr *ret,
                          struct mu_errmsg *reterr_msg)
{
    char text[MU_ADDR_HOST_MAX + 16];
    size_t len = strcspn(*list, ",");
    int err;

    if (count == 0 && **list == '\0') {
        return mu_err(reterr_msg, MUSTER_EURL, "no etcd endpoint is named; write HOST:PORT");
    }
    if (count == MU_ETCD_ENDPOINTS_MAX) {
        return mu_err(reterr_msg, MUSTER_EURL, "there are more than %d etcd endpoints",
                      MU_ETCD_ENDPOINTS_MAX);
    }
    if (len >= sizeof(text)) {
        return mu_err(reterr_msg, MUSTER_EURL, "an etcd endpoint's name is too long");
    }
    memcpy(text, *list, len);
    text[len] = '\0';
    *list += len + ((*list)[len] == ',' ? 1 : 0);
    err = mu_addr_parse(text, MU_ETCD_PORT, ret, reterr_msg);
    if (err == 0 && (ret->kind != MU_ADDR_TCP || ret->port == 0)) {
        err = mu_err(reterr_msg, MUSTER_EURL, "etcd is not found at \"%.64s\"", text);
    }
    return err;
}

static int add_endpoints(struct mu_etcd *etcd, const char *list, struct mu_errmsg *reterr_msg)
{
    char name[MU_ADDR_HOST_MAX + 16];
    struct mu_addr addr;
    int err;

    do {
        err = mu_etcd_next_endpoint(&list, etcd->endpoint_count, &addr, reterr_msg);
        if (err == 0) {
            struct mu_etcd_endpoint *e = &etcd->endpoints[etcd->endpoint_count++];

            (void)snprintf(e->base, sizeof(e->base), "http%s://%s", etcd->config.tls ? "s" : "",
                           mu_addr_format(&addr, name, sizeof(name)));
        }
    } while (err == 0 && *list != '\0');
    return err;
}

/* The config's texts, one behind the other in memory of ours. */
static int copy_texts(struct mu_etcd *etcd)
{
    const char **texts[] = {&etcd->config.cacert, &etcd->config.cert, &etcd->config.key,
                            &etcd->config.user, &etcd->config.password};
    size_t bytes = 1;
    char *at;

    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        bytes += *texts[i] == NULL ? 0 : strlen(*texts[i]) + 1;
    }
    etcd->texts = at = mu_malloc(bytes);
    if (at == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (*texts[i] != NULL) {
            size_t len = strlen(*texts[i]) + 1;

            memcpy(at, *texts[i], len);
            *texts[i] = at;
            at += len;
        }
    }
    etcd->config.endpoints = NULL;
    return 0;
}

static void free_etcd(struct mu_etcd *etcd)
{
    mu_etcd_reply_fini(&etcd->reply);
    mu_buf_fini(&etcd->url);
    mu_buf_fini(&etcd->auth_body);
    mu_buf_fini(&etcd->token);
    mu_free(etcd->texts);
    mu_free(etcd);
}

static bool is_idle(const struct mu_etcd *etcd)
{
    return mu_list_empty(&etcd->calls) && mu_list_empty(&etcd->watches) &&
           mu_list_empty(&etcd->leases);
}

static void on_closer(struct mu_timer *timer)
{
    struct mu_etcd *etcd = MU_CONTAINER_OF(timer, struct mu_etcd, closer);

    if (is_idle(etcd)) {
        if (etcd->closed != NULL) {
            etcd->closed(etcd->context);
        }
        free_etcd(etcd);
    }
}

void mu_etcd_check_closed(struct mu_etcd *etcd)
{
    if (etcd->route.closing && is_idle(etcd)) {
        mu_env_timer_arm(etcd->env, &etcd->closer, mu_etcd_now(etcd));
    }
}

int mu_etcd_new(struct mu_env *env, const struct mu_etcd_config *config, struct mu_etcd **ret_etcd,
                struct mu_errmsg *reterr_msg)
{
    struct mu_etcd *etcd = mu_calloc(1, sizeof(*etcd));
    uint64_t seed;
    int err;

    if (etcd == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    etcd->env = env;
    etcd->config = *config;
    etcd->config.tls =
        config->tls || config->cacert != NULL || config->cert != NULL || config->key != NULL;
    mu_list_init(&etcd->calls);
    mu_list_init(&etcd->watches);
    mu_list_init(&etcd->leases);
    mu_etcd_reply_init(&etcd->reply);
    mu_buf_init(&etcd->url, URL_MAX);
    mu_buf_init(&etcd->auth_body, URL_MAX);
    mu_buf_init(&etcd->token, TOKEN_MAX);
    mu_timer_init(&etcd->closer, on_closer);
    err = add_endpoints(etcd, config->endpoints != NULL ? config->endpoints : "", reterr_msg);
    if (err == 0) {
        err = copy_texts(etcd);
    }
    if (err == 0 && etcd->config.user != NULL) {
        err = mu_etcd_encode_auth(
            &etcd->auth_body, mu_span_str(etcd->config.user),
            mu_span_str(etcd->config.password != NULL ? etcd->config.password : ""));
    }
    if (err != 0) {
        free_etcd(etcd);
        return err == MUSTER_EURL ? err : mu_err(reterr_msg, err, "%s", muster_strerror(err));
    }
    mu_env_entropy(env, &seed, sizeof(seed));
    mu_etcd_route_init(&etcd->route,
                       &(struct mu_etcd_route_config){
                           .endpoint_count = etcd->endpoint_count,
                           .first_ms = config->first_ms,
                           .patience_ms = config->patience_ms,
                           .try_ms = config->try_ms,
                           .quiet_ms = config->quiet_ms,
                           .reply_bytes_max = config->reply_bytes_max,
                           .user = etcd->config.user,
                       },
                       seed);
    *ret_etcd = etcd;
    return 0;
}

void mu_etcd_close(struct mu_etcd *etcd, void (*closed)(void *context), void *context)
{
    etcd->route.closing = true;
    etcd->closed = closed;
    etcd->context = context;
    MU_LIST_FOREACH (it, &etcd->leases) {
        mu_etcd_lease_close(MU_CONTAINER_OF(it, struct mu_etcd_lease, link));
    }
    MU_LIST_FOREACH (it, &etcd->watches) {
        mu_etcd_watch_stop(MU_CONTAINER_OF(it, struct mu_etcd_watch, link), MUSTER_ECLOSED);
    }
    MU_LIST_FOREACH (it, &etcd->calls) {
        stop_call(MU_CONTAINER_OF(it, struct mu_etcd_call, link), MUSTER_ECLOSED);
    }
    mu_etcd_check_closed(etcd);
}

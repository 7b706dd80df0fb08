/* The client: endpoints, calls, and who we are. */
#include "service/etcd/etcd.h"

#include <stdio.h>
#include <string.h>

#include "core/addr.h"
#include "core/alloc.h"
#include "core/assert.h"
#include "service/etcd/etcd_internal.h"

#define REST_MIN_MS 20u
#define REST_MAX_MS 500u
#define AUTHS_MAX   4u
#define URL_MAX     (64u << 10)
#define TOKEN_MAX   8192u

enum call_state {
    IDLE = 0,
    RESTING, /* until its timer */
    UNNAMED, /* until there is a token */
    RUNNING,
};

static void try_call(struct mu_etcd_call *call);

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

/* --- endpoints -------------------------------------------------------------------------------- */

void mu_etcd_leave(struct mu_etcd *etcd, uint32_t endpoint)
{
    if (etcd->current == endpoint) {
        etcd->current = (endpoint + 1) % etcd->endpoint_count;
    }
}

void mu_etcd_answered(struct mu_etcd *etcd, uint32_t endpoint)
{
    etcd->current = endpoint;
    etcd->answered = mu_env_now(etcd->env).mono;
    etcd->ever_answered = true;
}

uint64_t mu_etcd_rest_ns(struct mu_etcd *etcd, uint32_t tries)
{
    uint32_t rounds = tries / etcd->endpoint_count;
    uint64_t ms = REST_MIN_MS;

    if (tries % etcd->endpoint_count != 0) {
        return 0;
    }
    while (rounds-- > 1 && ms < REST_MAX_MS) {
        ms *= 2;
    }
    ms = ms < REST_MAX_MS ? ms : REST_MAX_MS;
    return (ms / 2) * MU_NS_PER_MS + mu_prng_below(&etcd->prng, ms / 2 * MU_NS_PER_MS + 1);
}

bool mu_etcd_out_of_patience(const struct mu_etcd *etcd, mu_mono_t started)
{
    uint32_t ms = etcd->ever_answered ? etcd->config.patience_ms : etcd->config.first_ms;
    mu_mono_t since =
        etcd->ever_answered && mu_mono_before(started, etcd->answered) ? etcd->answered : started;

    return mu_mono_reached(mu_mono_add_ms(since, ms), mu_env_now(etcd->env).mono);
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
    } else if (!v2 && etcd->token.len > 0) {
        q.authorization = (const char *)mu_buf_span(&etcd->token).data;
    }
    return mu_env_http(etcd->env, http, &q);
}

/* --- calls ------------------------------------------------------------------------------------ */

bool mu_etcd_call_active(const struct mu_etcd_call *call)
{
    return call->state != IDLE;
}

static void finish_call(struct mu_etcd_call *call, int status)
{
    struct mu_etcd *etcd = call->etcd;

    mu_env_timer_arm(etcd->env, &call->timer, MU_MONO_NEVER);
    mu_list_remove(&call->link);
    call->state = IDLE;
    call->status = status;
    if (status == 0) {
        call->unknown = false;
    } else if (call->errmsg.text[0] == '\0') {
        (void)mu_err(&call->errmsg, status, "%s", muster_strerror(status));
    }
    if (status != 0) {
        call->reply = NULL;
    }
    {
        struct mu_buf in = call->in; /* The call may be gone, or out again, when `done` returns. */

        mu_buf_init(&call->in, 0);
        call->done(call);
        mu_buf_fini(&in);
    }
    mu_etcd_check_closed(etcd);
}

/* The words for a call that ends without an answer. */
static void end_call(struct mu_etcd_call *call, int status)
{
    struct mu_errmsg last = call->errmsg;

    switch (status) {
    case MUSTER_ETIMEDOUT:
        (void)mu_err(&call->errmsg, status, "etcd did not answer within %u ms%s%.150s",
                     call->timeout_ms, last.text[0] != '\0' ? ": " : "", last.text);
        break;
    case MUSTER_ECANCELED:
    case MUSTER_ECLOSED:
        (void)mu_err(&call->errmsg, status, "%s", muster_strerror(status));
        break;
    default:
        break;
    }
    if (call->unknown && status != MUSTER_ECLOSED && status != MUSTER_ECANCELED && !call->repeat) {
        mu_err_prefix(&call->errmsg, "it may or may not have happened");
    }
    finish_call(call, status);
}

static void rest_call(struct mu_etcd_call *call, uint64_t ns)
{
    struct mu_env *env = call->etcd->env;
    mu_mono_t at = mu_mono_add_ns(mu_env_now(env).mono, ns);

    call->state = RESTING;
    mu_env_timer_arm(env, &call->timer, mu_mono_min(at, call->deadline));
}

/* It will not be tried again, or it will. */
static void try_again(struct mu_etcd_call *call, enum mu_etcd_verdict verdict)
{
    struct mu_etcd *etcd = call->etcd;
    int status = call->status != 0 ? call->status : MUSTER_ECONN;

    call->hopeless |= verdict == MU_ETCD_HOPELESS ? 1u << call->endpoint : 0;
    if (verdict == MU_ETCD_UNKNOWN) {
        call->unknown = true;
    }
    if (verdict == MU_ETCD_REAUTH) {
        mu_etcd_drop_token(etcd, call->token);
        if (etcd->config.user == NULL || ++call->auths > AUTHS_MAX) {
            end_call(call, status);
            return;
        }
        rest_call(call, 0);
        return;
    }
    call->tries++;
    mu_etcd_leave(etcd, call->endpoint);
    if (call->hopeless == (1u << etcd->endpoint_count) - 1 || (call->unknown && !call->repeat)) {
        end_call(call, status);
    } else if (mu_mono_reached(call->deadline, mu_env_now(etcd->env).mono)) {
        end_call(call, MUSTER_ETIMEDOUT);
    } else if (mu_etcd_out_of_patience(etcd, call->started)) {
        end_call(call, status);
    } else {
        rest_call(call, mu_etcd_rest_ns(etcd, call->tries));
    }
}

static void on_head(struct mu_http *http)
{
    (void)http;
}

static size_t on_data(struct mu_http *http, struct mu_span in)
{
    struct mu_etcd_call *call = MU_CONTAINER_OF(http, struct mu_etcd_call, http);
    int err = call->too_long ? 0 : mu_buf_append(&call->in, in);

    if (err != 0) {
        call->too_long = true;
        call->status = err;
        mu_env_http_cancel(call->etcd->env, http);
    }
    return in.len;
}

static void on_http_done(struct mu_http *http, int status)
{
    struct mu_etcd_call *call = MU_CONTAINER_OF(http, struct mu_etcd_call, http);
    struct mu_etcd *etcd = call->etcd;
    enum mu_etcd_verdict verdict;

    if (call->ending != 0) {
        call->unknown = call->unknown || http->sent;
        end_call(call, call->ending);
        return;
    }
    if (call->too_long) {
        call->unknown = true;
        (void)mu_err(&call->errmsg, call->status, "the answer is longer than %zu bytes",
                     etcd->config.reply_bytes_max);
        end_call(call, call->status);
        return;
    }
    if (status == MUSTER_ETIMEDOUT && call->poll && http->code == 200) {
        mu_etcd_answered(etcd, call->endpoint); /* By its head. */
        finish_call(call, status);
        return;
    }
    if (status != 0) {
        call->status = status;
        (void)mu_err(&call->errmsg, status, "%s: %.180s", etcd->endpoints[call->endpoint].base,
                     http->error.text);
        try_again(call, mu_etcd_judge_http(http, status));
        return;
    }
    verdict = mu_etcd_judge_answer(call);
    if (verdict == MU_ETCD_DONE) {
        mu_etcd_answered(etcd, call->endpoint);
        finish_call(call, call->status);
        return;
    }
    if (call->status != 0) {
        mu_err_prefix(&call->errmsg, "%s", etcd->endpoints[call->endpoint].base);
    }
    try_again(call, verdict);
}

static const struct mu_http_events call_events = {
    .head = on_head,
    .data = on_data,
    .done = on_http_done,
};

static uint32_t try_ms(const struct mu_etcd_call *call)
{
    uint64_t left = mu_mono_until_ms(call->deadline, mu_env_now(call->etcd->env).mono);

    left = call->deadline.ns == MU_MONO_NEVER.ns || left > INT32_MAX ? 0 : left == 0 ? 1 : left;
    if (call->repeat && (left == 0 || left > call->etcd->config.try_ms)) {
        left = call->etcd->config.try_ms;
    }
    return (uint32_t)left;
}

static void try_call(struct mu_etcd_call *call)
{
    struct mu_etcd *etcd = call->etcd;
    struct mu_http_request q = {
        .method = call->method != NULL ? call->method : "POST",
        .body = call->body,
        .keep = call->v2 ? "X-Etcd-Index" : NULL,
        .timeout_ms = try_ms(call),
    };
    int err;

    if (!call->v2 && !call->bare && call != &etcd->auth && mu_etcd_needs_token(etcd)) {
        call->state = UNNAMED;
        mu_env_timer_arm(etcd->env, &call->timer, call->deadline);
        return;
    }
    mu_buf_fini(&call->in);
    mu_buf_init(&call->in, etcd->config.reply_bytes_max);
    call->endpoint = etcd->current;
    call->token = etcd->token_number;
    call->tried = mu_env_now(etcd->env).mono;
    call->http.on = &call_events;
    err = mu_etcd_exchange(etcd, &call->http, call->endpoint, &q, call->path, call->v2);
    if (err != 0) {
        call->ending = err;
        rest_call(call, 0);
        return;
    }
    call->state = RUNNING;
}

static void on_call_timer(struct mu_timer *timer)
{
    struct mu_etcd_call *call = MU_CONTAINER_OF(timer, struct mu_etcd_call, timer);

    if (call->ending != 0) {
        end_call(call, call->ending);
    } else if (mu_mono_reached(call->deadline, mu_env_now(call->etcd->env).mono)) {
        end_call(call, MUSTER_ETIMEDOUT);
    } else {
        try_call(call);
    }
}

void mu_etcd_submit(struct mu_etcd *etcd, struct mu_etcd_call *call)
{
    MU_ASSERT(call->state == IDLE);
    call->etcd = etcd;
    call->started = mu_env_now(etcd->env).mono;
    call->deadline =
        call->timeout_ms == 0 ? MU_MONO_NEVER : mu_mono_add_ms(call->started, call->timeout_ms);
    call->status = 0;
    call->unknown = false;
    call->grpc_code = 0;
    call->reply = NULL;
    call->text = (struct mu_span){0};
    call->code = 0;
    call->index = 0;
    call->errmsg.text[0] = '\0';
    call->tries = call->hopeless = call->auths = 0;
    call->ending = etcd->closing ? MUSTER_ECLOSED : 0;
    call->too_long = false;
    mu_buf_init(&call->in, etcd->config.reply_bytes_max);
    mu_timer_init(&call->timer, on_call_timer);
    mu_list_init(&call->link);
    mu_list_push(&etcd->calls, &call->link);
    if (call->ending != 0) {
        rest_call(call, 0);
    } else {
        try_call(call);
    }
}

static void stop_call(struct mu_etcd_call *call, int why)
{
    if (call->state == IDLE || call->ending != 0) {
        return;
    }
    call->ending = why;
    if (call->state == RUNNING) {
        mu_env_http_cancel(call->etcd->env, &call->http);
    } else {
        rest_call(call, 0);
    }
}

void mu_etcd_cancel(struct mu_etcd_call *call)
{
    stop_call(call, MUSTER_ECANCELED);
}

/* --- who we are ------------------------------------------------------------------------------- */

/* All who waited for a token go on, or end. */
static void wake_unnamed(struct mu_etcd *etcd, int status, const char *text)
{
    struct mu_list waiting;
    struct mu_list *it;

    mu_list_init(&waiting);
    MU_LIST_FOREACH_SAFE (c, tmp, &etcd->calls) {
        if (MU_CONTAINER_OF(c, struct mu_etcd_call, link)->state == UNNAMED) {
            mu_list_remove(c);
            mu_list_push(&waiting, c);
        }
    }
    while ((it = mu_list_pop(&waiting)) != NULL) {
        struct mu_etcd_call *call = MU_CONTAINER_OF(it, struct mu_etcd_call, link);

        mu_list_push(&etcd->calls, &call->link);
        if (status != 0) {
            (void)mu_err(&call->errmsg, status, "%s", text);
            call->ending = status;
        }
        rest_call(call, 0);
    }
    mu_etcd_watch_authed(etcd, status, text);
}

static void on_auth_done(struct mu_etcd_call *call)
{
    struct mu_etcd *etcd = call->etcd;
    struct mu_span none = MU_SPAN_LIT("authentication is not enabled");
    int status = call->status;

    if (status == 0) {
        mu_buf_reset(&etcd->token);
        status = mu_buf_append(&etcd->token, call->reply->token);
        if (status == 0) {
            status = mu_buf_append(&etcd->token, mu_span("", 1));
        }
        etcd->token_number++;
    } else if (status == MUSTER_EREFUSED && strstr(call->errmsg.text, (const char *)none.data)) {
        etcd->auth_off = true;
        status = 0;
    } else if (status == MUSTER_EREFUSED) {
        (void)mu_err(&call->errmsg, status, "etcd does not accept the password of user \"%.64s\"",
                     etcd->config.user);
    }
    wake_unnamed(etcd, status, status == 0 ? "" : call->errmsg.text);
}

bool mu_etcd_needs_token(struct mu_etcd *etcd)
{
    if (etcd->config.user == NULL || etcd->auth_off || etcd->token.len > 0) {
        return false;
    }
    if (!mu_etcd_call_active(&etcd->auth)) {
        etcd->auth.path = "/v3/auth/authenticate";
        etcd->auth.body = mu_buf_span(&etcd->auth_body);
        etcd->auth.repeat = true;
        etcd->auth.done = on_auth_done;
        mu_etcd_submit(etcd, &etcd->auth);
    }
    return true;
}

void mu_etcd_drop_token(struct mu_etcd *etcd, uint64_t number)
{
    if (etcd->token_number == number) {
        mu_buf_reset(&etcd->token);
    }
    etcd->auth_off = false; /* Somebody may have switched it on. */
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

static int add_endpoint(struct mu_etcd *etcd, const char *text, struct mu_errmsg *reterr_msg)
{
    struct mu_etcd_endpoint *e = &etcd->endpoints[etcd->endpoint_count];
    char name[MU_ADDR_HOST_MAX + 16];
    struct mu_addr addr;
    int err;

    if (etcd->endpoint_count == MU_ETCD_ENDPOINTS_MAX) {
        return mu_err(reterr_msg, MUSTER_EURL, "there are more than %d etcd endpoints",
                      MU_ETCD_ENDPOINTS_MAX);
    }
    err = mu_addr_parse(text, MU_ETCD_PORT, &addr, reterr_msg);
    if (err == 0 && (addr.kind != MU_ADDR_TCP || addr.port == 0)) {
        err = mu_err(reterr_msg, MUSTER_EURL, "etcd is not found at \"%.64s\"", text);
    }
    if (err == 0) {
        (void)snprintf(e->base, sizeof(e->base), "http%s://%s", etcd->config.tls ? "s" : "",
                       mu_addr_format(&addr, name, sizeof(name)));
        etcd->endpoint_count++;
    }
    return err;
}

static int add_endpoints(struct mu_etcd *etcd, const char *list, struct mu_errmsg *reterr_msg)
{
    char text[MU_ADDR_HOST_MAX + 16];
    int err = 0;

    while (err == 0 && list != NULL && *list != '\0') {
        size_t len = strcspn(list, ",");

        if (len >= sizeof(text)) {
            return mu_err(reterr_msg, MUSTER_EURL, "an etcd endpoint's name is too long");
        }
        memcpy(text, list, len);
        text[len] = '\0';
        err = add_endpoint(etcd, text, reterr_msg);
        list += len + (list[len] == ',' ? 1 : 0);
    }
    if (err == 0 && etcd->endpoint_count == 0) {
        err = mu_err(reterr_msg, MUSTER_EURL, "no etcd endpoint is named; write HOST:PORT");
    }
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

static void on_closer(struct mu_timer *timer)
{
    struct mu_etcd *etcd = MU_CONTAINER_OF(timer, struct mu_etcd, closer);

    if (!mu_list_empty(&etcd->calls) || !mu_list_empty(&etcd->watches) ||
        !mu_list_empty(&etcd->leases)) {
        return;
    }
    if (etcd->closed != NULL) {
        etcd->closed(etcd->context);
    }
    free_etcd(etcd);
}

void mu_etcd_check_closed(struct mu_etcd *etcd)
{
    if (etcd->closing && mu_list_empty(&etcd->calls) && mu_list_empty(&etcd->watches) &&
        mu_list_empty(&etcd->leases)) {
        mu_env_timer_arm(etcd->env, &etcd->closer, mu_env_now(etcd->env).mono);
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
    mu_env_entropy(env, &seed, sizeof(seed));
    mu_prng_seed(&etcd->prng, seed);
    mu_list_init(&etcd->calls);
    mu_list_init(&etcd->watches);
    mu_list_init(&etcd->leases);
    mu_etcd_reply_init(&etcd->reply);
    mu_buf_init(&etcd->url, URL_MAX);
    mu_buf_init(&etcd->auth_body, URL_MAX);
    mu_buf_init(&etcd->token, TOKEN_MAX);
    mu_timer_init(&etcd->closer, on_closer);
    err = add_endpoints(etcd, config->endpoints, reterr_msg);
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
    /* Not everybody goes to the first of the list. */
    etcd->current = (uint32_t)mu_prng_below(&etcd->prng, etcd->endpoint_count);
    *ret_etcd = etcd;
    return 0;
}

void mu_etcd_close(struct mu_etcd *etcd, void (*closed)(void *context), void *context)
{
    etcd->closing = true;
    etcd->closed = closed;
    etcd->context = context;
    mu_etcd_lease_end_all(etcd);
    mu_etcd_watch_end_all(etcd);
    MU_LIST_FOREACH (it, &etcd->calls) {
        stop_call(MU_CONTAINER_OF(it, struct mu_etcd_call, link), MUSTER_ECLOSED);
    }
    mu_etcd_check_closed(etcd);
}

/*
 * HTTP exchanges on libcurl's multi interface. libcurl says which sockets it wants watched and when
 * it wants to be called; one poll handle for each socket and one timer do that. It resolves names
 * on a thread of its own.
 *
 * No owner is called back from inside libcurl: its callbacks only note what came, and once it has
 * returned, the exchanges report what they have. So an owner may start and cancel exchanges from
 * anywhere.
 *
 *     RUNNING ── libcurl is done ──► OVER ── all data used ──► done, freed
 *        └────── cancel ───────────► OVER (nothing to use) ──►
 */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "transport/uv_curl.h"
#include "transport/uv_internal.h"

#define CONNECT_MS 10000u
#define IDLE_MAX   64L /* idle connections that are kept */
#define IDLE_MAX_S 60L /* how long they are kept */
#define KEEP_NAME  64
#define RECV_CHUNK CURL_MAX_WRITE_SIZE

struct uv_http_pool {
    struct mu_uv_env *uv;
    CURLM *multi;
    struct mu_timer timer;
    struct mu_list ready; /* struct exchange: it has something to report */
    struct mu_uv_later later;
    bool inside; /* libcurl is running */
};

struct watched {
    uv_poll_t poll;
    struct uv_http_pool *pool;
    curl_socket_t fd;
    int events; /* events that libcurl wants to hear of */
};

struct exchange {
    struct uv_http_pool *pool;
    struct mu_http *http;
    CURL *easy;
    struct curl_slist *headers;
    struct mu_list ready; /* pool->ready */
    char *cert;           /* the file of our certificate, or NULL */
    bool tls;
    struct mu_span body;
    size_t body_at;
    struct mu_buf held;
    char keep[KEEP_NAME];
    char kept[MU_HTTP_KEPT_MAX];
    char text[CURL_ERROR_SIZE];
    long code;
    int status;
    bool sent;
    bool head_due;
    bool over;
    bool paused; /* libcurl keeps bytes back */
    bool stuck;  /* the owner used less than it was given */
    bool body_lost;
};

/* --- telling ---------------------------------------------------------------------------------- */

static void tell_ready(struct uv_http_pool *pool);

static void mark_ready(struct exchange *x)
{
    if (mu_list_empty(&x->ready)) {
        mu_list_push(&x->pool->ready, &x->ready);
    }
    if (!x->pool->inside) {
        mu_uv_later_add(x->pool->uv, &x->pool->later);
    }
}

static void free_exchange(struct exchange *x)
{
    mu_list_remove(&x->ready);
    if (x->easy != NULL) {
        (void)mu_uv_curl.multi_remove_handle(x->pool->multi, x->easy);
        mu_uv_curl.easy_cleanup(x->easy);
    }
    if (x->headers != NULL) {
        mu_uv_curl.slist_free_all(x->headers);
    }
    mu_free(x->cert);
    mu_buf_fini(&x->held);
    mu_free(x);
}

static void tell_done(struct exchange *x)
{
    struct mu_http *http = x->http;
    int status = x->status;

    http->sent = x->sent;
    if (status != 0 && http->error.text[0] == '\0') {
        (void)mu_err(&http->error, status, "%s",
                     x->text[0] != '\0' ? x->text : muster_strerror(status));
    }
    x->pool->uv->live--;
    http->impl = NULL;
    free_exchange(x);
    http->on->done(http, status);
}

/* Reports everything that an exchange has, as far as its owner takes it. */
static void tell(struct exchange *x)
{
    struct mu_http *http = x->http;

    if (x->head_due && !(x->over && x->status != 0)) {
        x->head_due = false;
        http->code = (int)x->code;
        memcpy(http->kept, x->kept, sizeof(http->kept));
        http->on->head(http);
    }
    while (x->held.len > 0 && !x->stuck && !(x->over && x->status != 0)) {
        struct mu_span in = mu_buf_span(&x->held);
        size_t used;

        x->stuck = true; /* a resume from inside counts */
        used = http->on->data(http, in);
        MU_ASSERT(used <= in.len);
        mu_buf_consume(&x->held, used);
        if (used == in.len) {
            x->stuck = false;
        }
    }
    if (x->over && (x->status != 0 || x->held.len == 0)) {
        tell_done(x);
        return;
    }
    if (x->paused && x->held.len == 0) {
        x->paused = false;
        x->pool->inside = true; /* what libcurl held back comes now */
        (void)mu_uv_curl.easy_pause(x->easy, CURLPAUSE_CONT);
        x->pool->inside = false;
        if (!mu_list_empty(&x->pool->ready)) {
            mu_uv_later_add(x->pool->uv, &x->pool->later);
        }
    }
}

/* Exchanges that become ready meanwhile get their turn as well; stuck ones do not. */
static void tell_ready(struct uv_http_pool *pool)
{
    struct mu_list *it;

    while ((it = mu_list_pop(&pool->ready)) != NULL) {
        tell(MU_CONTAINER_OF(it, struct exchange, ready));
    }
}

static void on_later(struct mu_uv_later *later)
{
    tell_ready(MU_CONTAINER_OF(later, struct uv_http_pool, later));
}

/* --- how an exchange ended -------------------------------------------------------------------- */

/* Whether OpenSSL's text says that the server refused our certificate: it is a failed read. */
static bool tells_of_alert(const struct exchange *x)
{
    return strstr(x->text, "alert") != NULL &&
           (strstr(x->text, "SSL") != NULL || strstr(x->text, "TLS") != NULL ||
            strstr(x->text, "tls") != NULL);
}

static int translate(const struct exchange *x, CURLcode code)
{
    switch ((int)code) {
    case CURLE_OK:
        return 0;
    case CURLE_OUT_OF_MEMORY:
        return MUSTER_ENOMEM;
    case CURLE_OPERATION_TIMEDOUT:
        return MUSTER_ETIMEDOUT;
    case CURLE_COULDNT_RESOLVE_HOST:
        return MUSTER_ENAME;
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_CERTPROBLEM:
    case CURLE_SSL_CIPHER:
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
    case CURLE_SSL_ISSUER_ERROR:
    case CURLE_SSL_INVALIDCERTSTATUS:
        return MUSTER_ETLS;
    case CURLE_UNSUPPORTED_PROTOCOL:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_HTTP2:
    case CURLE_BAD_CONTENT_ENCODING:
        return MUSTER_EPROTO;
    default:
        return tells_of_alert(x) ? MUSTER_ETLS : MUSTER_ECONN;
    }
}

/* Whether the server may have got the request. */
static bool was_sent(const struct exchange *x, CURLcode code)
{
    long bytes = 0;

    if (code == CURLE_OK || x->body_at > 0) {
        return true;
    }
    (void)mu_uv_curl.easy_getinfo(x->easy, CURLINFO_REQUEST_SIZE, &bytes);
    /* A server refuses our certificate before it reads, but says so only afterwards. */
    return bytes > 0 && !tells_of_alert(x);
}

/* Whether the exchange failed on a connection that was there. libcurl's own time of connecting is
 * no answer: some versions set it only when TLS is ready, too. */
static bool was_cut(CURLcode code)
{
    return code == CURLE_SSL_CONNECT_ERROR || code == CURLE_RECV_ERROR ||
           code == CURLE_SEND_ERROR || code == CURLE_GOT_NOTHING;
}

/* Adds what libcurl's text leaves out. */
static void explain(struct exchange *x, CURLcode code)
{
    curl_off_t secured = 0;
    size_t len;

    (void)mu_uv_curl.easy_getinfo(x->easy, CURLINFO_APPCONNECT_TIME_T, &secured);
    if (x->text[0] == '\0') {
        (void)snprintf(x->text, sizeof(x->text), "%s", mu_uv_curl.easy_strerror(code));
    }
    len = strlen(x->text);
    if (code == CURLE_SEND_FAIL_REWIND) {
        (void)snprintf(x->text, sizeof(x->text), "the connection was lost");
    } else if (tells_of_alert(x) && x->cert != NULL) {
        mu_uv_http_explain_cert(x->cert, true, x->text, sizeof(x->text));
    } else if (tells_of_alert(x)) {
        (void)snprintf(x->text + len, sizeof(x->text) - len,
                       ": the server wants a client certificate");
    } else if (x->status == MUSTER_ECONN && x->tls && x->cert != NULL && x->code == 0 &&
               was_cut(code)) {
        /* A server that hangs up over a certificate may do so before its reason is read. */
        mu_uv_http_explain_cert(x->cert, false, x->text, sizeof(x->text));
    } else if ((x->status == MUSTER_ECONN ||
                (x->status == MUSTER_ETLS && strstr(x->text, "SSL") == NULL)) &&
               x->tls && was_cut(code) && secured == 0) {
        (void)snprintf(x->text + len, sizeof(x->text) - len,
                       " (in the TLS handshake: does it speak SSL or TLS at all?)");
    } else if (code == CURLE_GOT_NOTHING && !x->tls) {
        (void)snprintf(x->text + len, sizeof(x->text) - len, " (does it want TLS?)");
    }
}

static void end_exchange(struct exchange *x, CURLcode code)
{
    x->status = x->body_lost ? MUSTER_ENOMEM : translate(x, code);
    x->sent = was_sent(x, code) && !tells_of_alert(x);
    if (code != CURLE_OK) {
        explain(x, code);
    }
    x->over = true;
    mark_ready(x);
}

static void collect_ended(struct uv_http_pool *pool)
{
    CURLMsg *msg;
    int left;

    while ((msg = mu_uv_curl.multi_info_read(pool->multi, &left)) != NULL) {
        struct exchange *x = NULL;

        (void)mu_uv_curl.easy_getinfo(msg->easy_handle, CURLINFO_PRIVATE, &x);
        if (msg->msg == CURLMSG_DONE && x != NULL && !x->over) {
            end_exchange(x, msg->data.result);
        }
    }
}

static void act(struct uv_http_pool *pool, curl_socket_t fd, int events)
{
    int running;

    pool->inside = true;
    (void)mu_uv_curl.multi_socket_action(pool->multi, fd, events, &running);
    collect_ended(pool);
    pool->inside = false;
    tell_ready(pool);
}

/* --- what libcurl asks for -------------------------------------------------------------------- */

static void on_poll(uv_poll_t *poll, int status, int events)
{
    struct watched *w = poll->data;
    int flags = 0;

    flags |= (events & UV_READABLE) != 0 ? CURL_CSELECT_IN : 0;
    flags |= (events & UV_WRITABLE) != 0 ? CURL_CSELECT_OUT : 0;
    /* A server that hung up may have said why before. So libcurl must read, and finds the error
     * after that; if it were told of an error, it would not read. */
    flags |= status < 0 ? CURL_CSELECT_IN | CURL_CSELECT_OUT : 0;
    act(w->pool, w->fd, flags);
    if (status < 0 && !uv_is_closing((uv_handle_t *)poll)) {
        (void)uv_poll_start(poll, w->events, on_poll); /* libuv has stopped it */
    }
}

static void on_poll_closed(uv_handle_t *handle)
{
    mu_free(handle->data);
}

static int on_socket(CURL *easy, curl_socket_t fd, int what, void *arg, void *mine)
{
    struct uv_http_pool *pool = arg;
    struct watched *w = mine;
    int events = 0;

    (void)easy;
    if (what == CURL_POLL_REMOVE) {
        if (w != NULL) {
            (void)uv_poll_stop(&w->poll);
            uv_close((uv_handle_t *)&w->poll, on_poll_closed);
            (void)mu_uv_curl.multi_assign(pool->multi, fd, NULL);
        }
        return 0;
    }
    if (w == NULL) {
        w = mu_calloc(1, sizeof(*w));
        if (w == NULL || uv_poll_init_socket(&pool->uv->loop, &w->poll, fd) != 0) {
            mu_free(w);
            return -1; /* libcurl gives the connection up */
        }
        w->poll.data = w;
        w->pool = pool;
        w->fd = fd;
        (void)mu_uv_curl.multi_assign(pool->multi, fd, w);
    }
    events |= (what & CURL_POLL_IN) != 0 ? UV_READABLE : 0;
    events |= (what & CURL_POLL_OUT) != 0 ? UV_WRITABLE : 0;
    w->events = events;
    (void)uv_poll_start(&w->poll, events, on_poll);
    return 0;
}

static void on_timer(struct mu_timer *timer)
{
    act(MU_CONTAINER_OF(timer, struct uv_http_pool, timer), CURL_SOCKET_TIMEOUT, 0);
}

static int on_set_timer(CURLM *multi, long ms, void *arg)
{
    struct uv_http_pool *pool = arg;
    struct mu_env *env = &pool->uv->env;

    (void)multi;
    mu_env_timer_arm(env, &pool->timer,
                     ms < 0 ? MU_MONO_NEVER : mu_mono_add_ms(mu_env_now(env).mono, (uint64_t)ms));
    return 0;
}

static int on_new_socket(void *arg, curl_socket_t fd, curlsocktype purpose)
{
    (void)arg;
    (void)purpose;
    mu_uv_sock_tune(fd);
    return CURL_SOCKOPT_OK;
}

/* The body cannot be rewound, so libcurl cannot repeat what a server may have read. */
static size_t on_read_body(char *out, size_t size, size_t count, void *arg)
{
    struct exchange *x = arg;
    size_t n = x->body.len - x->body_at;

    n = n < size * count ? n : size * count;
    if (n != 0) {
        memcpy(out, x->body.data + x->body_at, n);
    }
    x->body_at += n;
    return n;
}

static size_t on_header(char *line, size_t size, size_t count, void *arg)
{
    struct exchange *x = arg;
    size_t len = size * count;
    size_t name = strlen(x->keep);

    if (len > 5 && memcmp(line, "HTTP/", 5) == 0) {
        x->kept[0] = '\0'; /* only the last answer's headers count, after a 100 */
    } else if (name > 0 && len > name && line[name] == ':' &&
               strncasecmp(line, x->keep, name) == 0) {
        const char *at = line + name + 1;
        const char *end = line + len;

        while (at < end && (*at == ' ' || *at == '\t')) {
            at++;
        }
        while (end > at && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' ')) {
            end--;
        }
        if ((size_t)(end - at) < sizeof(x->kept)) {
            memcpy(x->kept, at, (size_t)(end - at));
            x->kept[end - at] = '\0';
        }
    } else if (len <= 2) {
        (void)mu_uv_curl.easy_getinfo(x->easy, CURLINFO_RESPONSE_CODE, &x->code);
        if (x->code >= 200) {
            x->head_due = true;
            mark_ready(x);
        }
    }
    return len;
}

static size_t on_body(char *in, size_t size, size_t count, void *arg)
{
    struct exchange *x = arg;
    size_t len = size * count;

    if (x->held.len >= MU_HTTP_HELD_MAX) {
        x->paused = true;
        return CURL_WRITEFUNC_PAUSE;
    }
    if (mu_buf_append(&x->held, mu_span(in, len)) != 0) {
        x->body_lost = true;
        return 0;
    }
    mark_ready(x);
    return len;
}

/* --- the pool --------------------------------------------------------------------------------- */

static bool start_multi(struct uv_http_pool *pool)
{
    pool->multi = mu_uv_curl.multi_init();
    if (pool->multi == NULL) {
        return false;
    }
    (void)mu_uv_curl.multi_setopt(pool->multi, CURLMOPT_SOCKETFUNCTION, on_socket);
    (void)mu_uv_curl.multi_setopt(pool->multi, CURLMOPT_SOCKETDATA, pool);
    (void)mu_uv_curl.multi_setopt(pool->multi, CURLMOPT_TIMERFUNCTION, on_set_timer);
    (void)mu_uv_curl.multi_setopt(pool->multi, CURLMOPT_TIMERDATA, pool);
    (void)mu_uv_curl.multi_setopt(pool->multi, CURLMOPT_MAXCONNECTS, IDLE_MAX);
    (void)mu_uv_curl.multi_setopt(pool->multi, CURLMOPT_PIPELINING, CURLPIPE_NOTHING);
    return true;
}

/* Without libcurl, all that a pool does is to tell its exchanges so. */
static struct uv_http_pool *get_pool(struct mu_uv_env *uv, bool with_curl)
{
    struct uv_http_pool *pool = uv->http;

    if (pool != NULL) {
        return pool;
    }
    pool = mu_calloc(1, sizeof(*pool));
    if (pool == NULL) {
        return NULL;
    }
    pool->uv = uv;
    if (with_curl && !start_multi(pool)) {
        mu_free(pool);
        return NULL;
    }
    mu_list_init(&pool->ready);
    mu_list_init(&pool->later.link);
    pool->later.run = on_later;
    mu_timer_init(&pool->timer, on_timer);
    uv->http = pool;
    return pool;
}

void mu_uv_http_free(struct mu_uv_env *uv)
{
    struct uv_http_pool *pool = uv->http;

    if (pool == NULL) {
        return;
    }
    MU_ASSERT(mu_list_empty(&pool->ready));
    if (pool->multi != NULL) {
        (void)mu_uv_curl.multi_cleanup(pool->multi); /* closes idle connections: on_socket() */
    }
    mu_env_timer_arm(&uv->env, &pool->timer, MU_MONO_NEVER);
    mu_list_remove(&pool->later.link);
    uv->http = NULL;
    mu_free(pool);
}

/* --- an exchange ------------------------------------------------------------------------------ */

static bool has_body(const char *method)
{
    return strcmp(method, "PUT") == 0 || strcmp(method, "POST") == 0;
}

static bool is_usable(const struct mu_http_request *q)
{
    bool known =
        has_body(q->method) || strcmp(q->method, "GET") == 0 || strcmp(q->method, "DELETE") == 0;
    bool url = strncmp(q->url, "http://", 7) == 0 || strncmp(q->url, "https://", 8) == 0;

    return known && url && (q->body.len == 0 || has_body(q->method)) &&
           (q->keep == NULL || strlen(q->keep) < KEEP_NAME);
}

static bool add_header(struct exchange *x, const char *line)
{
    struct curl_slist *longer = mu_uv_curl.slist_append(x->headers, line);

    if (longer == NULL) {
        return false;
    }
    x->headers = longer;
    return true;
}

static bool set_headers(struct exchange *x, const struct mu_http_request *q)
{
    bool ok = add_header(x, "Expect:"); /* do not wait for a 100 before a body */

    for (size_t i = 0; ok && q->headers != NULL && q->headers[i] != NULL; i++) {
        ok = add_header(x, q->headers[i]);
    }
    if (ok && q->authorization != NULL) {
        size_t len = strlen(q->authorization) + sizeof("Authorization: ");
        char *line = mu_malloc(len);

        ok = line != NULL;
        if (ok) {
            (void)snprintf(line, len, "Authorization: %s", q->authorization);
            ok = add_header(x, line);
        }
        mu_free(line);
    }
    return ok && mu_uv_curl.easy_setopt(x->easy, CURLOPT_HTTPHEADER, x->headers) == CURLE_OK;
}

static bool set_text(CURL *easy, CURLoption option, const char *text)
{
    return text == NULL || mu_uv_curl.easy_setopt(easy, option, text) == CURLE_OK;
}

static bool set_method(struct exchange *x, const struct mu_http_request *q)
{
    CURL *e = x->easy;

    if (has_body(q->method)) {
        (void)mu_uv_curl.easy_setopt(e, CURLOPT_POST, 1L);
        (void)mu_uv_curl.easy_setopt(e, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)q->body.len);
        (void)mu_uv_curl.easy_setopt(e, CURLOPT_READFUNCTION, on_read_body);
        (void)mu_uv_curl.easy_setopt(e, CURLOPT_READDATA, x);
    }
    if (strcmp(q->method, "DELETE") == 0 || (has_body(q->method) && q->body.len == 0)) {
        /* libcurl would repeat a request without a body when a kept connection is dead. */
        (void)mu_uv_curl.easy_setopt(e, CURLOPT_FRESH_CONNECT, 1L);
    }
    return strcmp(q->method, "GET") == 0 || strcmp(q->method, "POST") == 0 ||
           mu_uv_curl.easy_setopt(e, CURLOPT_CUSTOMREQUEST, q->method) == CURLE_OK;
}

static bool set_tls_and_name(CURL *e, const struct mu_http_request *q)
{
    bool ok = set_text(e, CURLOPT_CAINFO, q->cacert) && set_text(e, CURLOPT_SSLCERT, q->cert) &&
              set_text(e, CURLOPT_SSLKEY, q->key);

    if (ok && q->cacert != NULL) {
        ok = mu_uv_curl.easy_setopt(e, CURLOPT_CAPATH, NULL) == CURLE_OK;
    }
    if (ok && q->user != NULL) {
        (void)mu_uv_curl.easy_setopt(e, CURLOPT_HTTPAUTH, (long)CURLAUTH_BASIC);
        ok = set_text(e, CURLOPT_USERNAME, q->user) &&
             set_text(e, CURLOPT_PASSWORD, q->password != NULL ? q->password : "");
    }
    return ok;
}

static bool set_all(struct exchange *x, const struct mu_http_request *q)
{
    CURL *e = x->easy;

    (void)mu_uv_curl.easy_setopt(e, CURLOPT_PRIVATE, x);
    (void)mu_uv_curl.easy_setopt(e, CURLOPT_ERRORBUFFER, x->text);
    (void)mu_uv_curl.easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    /* Never wait for the resolver's thread. Before 7.87 there is no such option, and an exchange
     * that is canceled while a name is looked up waits for the end of that. */
    (void)mu_uv_curl.easy_setopt(e, CURLOPT_QUICK_EXIT, 1L);
    /* A second lock, unknown before 7.85: is_usable() has seen to it, and redirections are not
     * followed. */
    (void)mu_uv_curl.easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    (void)mu_uv_curl.easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    (void)mu_uv_curl.easy_setopt(e, CURLOPT_MAXAGE_CONN, IDLE_MAX_S);
    (void)mu_uv_curl.easy_setopt(e, CURLOPT_SOCKOPTFUNCTION, on_new_socket);
    (void)mu_uv_curl.easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header);
    (void)mu_uv_curl.easy_setopt(e, CURLOPT_HEADERDATA, x);
    (void)mu_uv_curl.easy_setopt(e, CURLOPT_WRITEFUNCTION, on_body);
    (void)mu_uv_curl.easy_setopt(e, CURLOPT_WRITEDATA, x);
    (void)mu_uv_curl.easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS,
                                 (long)(q->connect_ms == 0 ? CONNECT_MS : q->connect_ms));
    (void)mu_uv_curl.easy_setopt(e, CURLOPT_TIMEOUT_MS, (long)q->timeout_ms);
    /* The proxy in the environment's variables is for the web, not for a cluster. */
    return mu_uv_curl.easy_setopt(e, CURLOPT_PROXY, "") == CURLE_OK &&
           mu_uv_curl.easy_setopt(e, CURLOPT_URL, q->url) == CURLE_OK && set_method(x, q) &&
           set_tls_and_name(e, q) && set_headers(x, q);
}

static bool start_exchange(struct exchange *x, const struct mu_http_request *q)
{
    x->easy = mu_uv_curl.easy_init();
    return x->easy != NULL && set_all(x, q) &&
           mu_uv_curl.multi_add_handle(x->pool->multi, x->easy) == CURLM_OK;
}

int mu_uv_http(struct mu_env *env, struct mu_http *http, const struct mu_http_request *q)
{
    struct mu_uv_env *uv = mu_uv_of(env);
    const char *why = NULL;
    struct uv_http_pool *pool;
    struct exchange *x;
    int err;

    if (!is_usable(q)) {
        return MUSTER_EINVAL;
    }
    err = mu_uv_curl_load(&why);
    pool = get_pool(uv, err == 0);
    x = pool == NULL ? NULL : mu_calloc(1, sizeof(*x));
    if (x == NULL) {
        return MUSTER_ENOMEM;
    }
    x->pool = pool;
    x->http = http;
    x->body = q->body;
    mu_list_init(&x->ready);
    mu_buf_init(&x->held, MU_HTTP_HELD_MAX + RECV_CHUNK);
    x->tls = strncmp(q->url, "https:", 6) == 0;
    x->cert = q->cert == NULL ? NULL : mu_strndup(q->cert, strlen(q->cert));
    if (q->keep != NULL) {
        memcpy(x->keep, q->keep, strlen(q->keep) + 1);
    }
    if (err != 0) {
        (void)snprintf(x->text, sizeof(x->text), "%s", why);
        x->status = err;
        x->over = true;
        mark_ready(x);
    } else if (!start_exchange(x, q)) {
        free_exchange(x);
        return MUSTER_ENOMEM;
    }
    http->env = env;
    http->impl = x;
    http->code = 0;
    http->sent = false;
    http->kept[0] = '\0';
    http->error.text[0] = '\0';
    uv->live++;
    return 0;
}

int mu_uv_env_check_http(struct mu_errmsg *reterr_msg)
{
    const char *why = "";
    int err = mu_uv_curl_load(&why);

    return err == 0 ? 0 : mu_err(reterr_msg, err, "%s", why);
}

void mu_uv_http_resume(struct mu_env *env, struct mu_http *http)
{
    struct exchange *x = http->impl;

    (void)env;
    x->stuck = false;
    mark_ready(x);
}

void mu_uv_http_cancel(struct mu_env *env, struct mu_http *http)
{
    struct exchange *x = http->impl;

    (void)env;
    if (x->over && x->status != 0) {
        return;
    }
    x->sent = x->over || was_sent(x, CURLE_ABORTED_BY_CALLBACK);
    x->over = true;
    x->status = MUSTER_ECANCELED;
    x->text[0] = '\0';
    mark_ready(x);
}

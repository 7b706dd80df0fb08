#include "service/page/http_server.h"

#include <inttypes.h>
#include <stdio.h>

#include "codec/text/base64.h"
#include "core/alloc.h"
#include "service/base/log.h"

#define TOKEN_MAX 512
/* How many bytes of unread requests a connection may hold. */
#define IN_MAX (2 * MU_HTTP_HEAD_MAX)
/* The longest answer; a page of ten thousand members is some megabytes. */
#define OUT_MAX ((size_t)64 << 20)
/* How often a stream sends a sign of life, so that both ends notice when it is dead. */
#define BEAT_NS (10 * MU_NS_PER_S)

struct http_conn {
    struct mu_conn base;
    struct mu_http_server *server;
    struct mu_list link;
    struct mu_timer idle;
    struct mu_buf in;
    struct mu_buf out;
    uint64_t told; /* stream: the number of the last event sent to it */
    bool stream;
    bool asked; /* it has had an answer */
    bool last;  /* closes when all is sent */
    bool closing;
};

struct mu_http_server {
    struct mu_env *env;
    struct mu_http_server_config config;
    struct mu_listener listener;
    struct mu_list conns;
    size_t conn_count;
    size_t closing_count; /* of these, those that are being closed */
    size_t listeners;
    struct mu_buf event; /* the newest */
    uint64_t events;
    bool listening;
    bool stopping;
    struct mu_log_limit refused;
    size_t token_len;
    uint8_t token[TOKEN_MAX];
    char key[MU_PAGE_KEY_CAP]; /* derived from the token */
};

struct mu_http_server_config mu_http_server_config_defaults(void)
{
    return (struct mu_http_server_config){.connections_max = 64, .head_ms = 5000, .idle_ms = 30000};
}

/* --- access ----------------------------------------------------------------------------------- */

/* Takes the same time wherever the two differ. */
static bool is_same(struct mu_span wanted, struct mu_span shown)
{
    unsigned differs = shown.len != wanted.len;

    for (size_t i = 0; i < shown.len; i++) {
        differs |= (unsigned)(shown.data[i] ^ wanted.data[i % wanted.len]);
    }
    return differs == 0;
}

static bool is_token(const struct mu_http_server *s, struct mu_span shown)
{
    bool token = is_same(mu_span(s->token, s->token_len), shown);
    bool key = is_same(mu_span_str(s->key), shown);

    return token || key;
}

/* The header has "USER:PASSWORD" in base64; any user will do. */
static bool shows_password(const struct mu_http_server *s, struct mu_span text)
{
    struct mu_buf plain;
    struct mu_span p;
    const uint8_t *colon = NULL;
    bool well = false;

    mu_buf_init(&plain, TOKEN_MAX + 256);
    if (mu_base64_decode(&plain, text) == 0) {
        p = mu_buf_span(&plain);
        colon = p.len == 0 ? NULL : memchr(p.data, ':', p.len);
        well = colon != NULL && is_token(s, mu_span_skip(p, (size_t)(colon + 1 - p.data)));
    }
    mu_buf_fini(&plain);
    return well;
}

static bool shows_token(const struct mu_http_server *s, struct mu_span authorization)
{
    struct mu_span scheme = authorization;
    struct mu_span rest;

    scheme.len = 0;
    while (scheme.len < authorization.len && authorization.data[scheme.len] != ' ') {
        scheme.len++;
    }
    rest = mu_span_skip(authorization, scheme.len);
    while (rest.len != 0 && rest.data[0] == ' ') {
        rest = mu_span_skip(rest, 1);
    }
    return mu_http_same(scheme, "bearer")  ? is_token(s, rest)
           : mu_http_same(scheme, "basic") ? shows_password(s, rest)
                                           : false;
}

/* Whether a Host is a name of loopback, with or without a port. */
static bool is_loopback_name(struct mu_span host)
{
    static const char *const names[] = {"localhost", "127.0.0.1", "[::1]"};

    for (size_t i = host.len; i > 0; i--) {
        if (host.data[i - 1] == ':' && host.data[host.len - 1] != ']') {
            host.len = i - 1;
            break;
        }
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (mu_http_same(host, names[i])) {
            return true;
        }
    }
    return false;
}

/* Returns 0, or the HTTP status of the refusal. */
static int check_asker(const struct mu_http_server *s, const struct mu_http_head *head,
                       bool *ret_stranger)
{
    *ret_stranger = false;
    if (s->token_len != 0) {
        if (shows_token(s, head->authorization)) {
            return 0;
        }
        *ret_stranger = s->config.open != NULL && s->config.open(head);
        return *ret_stranger ? 0 : 401;
    }
    if (mu_addr_is_loopback(&s->config.listen) && !is_loopback_name(head->host)) {
        return 421;
    }
    return 0;
}

/* --- out -------------------------------------------------------------------------------------- */

static void end_conn(struct http_conn *c, bool abort)
{
    if (!c->closing) {
        c->closing = true;
        c->server->closing_count++;
        mu_env_timer_arm(c->server->env, &c->idle, MU_MONO_NEVER);
        mu_env_close(c->server->env, &c->base, abort);
    }
}

static void close_conn(struct http_conn *c)
{
    end_conn(c, false);
}

/* Whether a request is under way; the first one is from the start. */
static bool is_asking(const struct http_conn *c)
{
    return !c->stream && c->out.len == 0 && (c->in.len != 0 || !c->asked);
}

static void arm(struct http_conn *c)
{
    const struct mu_http_server_config *config = &c->server->config;
    uint64_t ns =
        c->stream ? BEAT_NS : (is_asking(c) ? config->head_ms : config->idle_ms) * MU_NS_PER_MS;

    mu_env_timer_arm(c->server->env, &c->idle, mu_mono_add_ns(mu_env_now(c->server->env).mono, ns));
}

/* Adds the newest event, if it was not sent. What is in `out` is sent first. */
static void add_event(struct http_conn *c)
{
    struct mu_http_server *s = c->server;

    if (c->stream && c->out.len == 0 && c->told != s->events &&
        mu_buf_reserve(&c->out, s->event.len + 8) == 0) {
        mu_buf_put(&c->out, MU_SPAN_LIT("data: "));
        mu_buf_put(&c->out, mu_buf_span(&s->event));
        mu_buf_put(&c->out, MU_SPAN_LIT("\n\n"));
        c->told = s->events;
    }
}

static void flush(struct http_conn *c)
{
    size_t taken = 1;

    while (!c->closing && taken != 0) {
        add_event(c);
        if (c->out.len == 0) {
            mu_buf_trim(&c->out, 0);
            if (c->last) {
                close_conn(c);
            }
            return;
        }
        mu_env_send(c->server->env, &c->base, mu_buf_span(&c->out), &taken);
        mu_buf_consume(&c->out, taken);
        arm(c);
    }
}

static const char *reason(int status)
{
    switch (status) {
    case 200:
        return "OK";
    case 400:
        return "Bad Request";
    case 401:
        return "Unauthorized";
    case 404:
        return "Not Found";
    case 405:
        return "Method Not Allowed";
    case 421:
        return "Misdirected Request";
    case 431:
        return "Request Header Fields Too Large";
    case 503:
        return "Service Unavailable";
    case 505:
        return "HTTP Version Not Supported";
    default:
        return "Status";
    }
}

/* Adds the head of an answer and its body. False: there is no memory for it. */
static bool put_answer(struct http_conn *c, const struct mu_http_answer *a, bool with_body)
{
    struct mu_span body = mu_buf_span(a->body);
    char length[64] = "";
    char head[768];
    int n;

    if (!a->stream) {
        (void)snprintf(length, sizeof(length), "Content-Length: %zu\r\n", body.len);
    }
    n = snprintf(head, sizeof(head),
                 "HTTP/1.1 %d %s\r\nContent-Type: %s\r\n%s%s%s"
                 "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n"
                 "Referrer-Policy: no-referrer\r\n"
                 "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; "
                 "script-src 'unsafe-inline'; connect-src 'self'; img-src data:; "
                 "frame-ancestors 'none'\r\n\r\n",
                 a->status, reason(a->status), a->type, length,
                 a->status == 401 ? "WWW-Authenticate: Basic realm=\"muster\"\r\n" : "",
                 c->last ? "Connection: close\r\n" : "");
    if (mu_buf_append(&c->out, mu_span(head, (size_t)n)) != 0) {
        return false;
    }
    return !with_body || a->stream || mu_buf_append(&c->out, body) == 0;
}

/* --- in --------------------------------------------------------------------------------------- */

static void refuse(struct http_conn *c, int status, const char *why)
{
    struct mu_buf body;
    struct mu_http_answer a = {.status = status, .type = "text/plain", .body = &body};

    mu_buf_init(&body, 4096);
    c->last = true;
    if (mu_buf_append(&body, mu_span_str(why)) != 0 || !put_answer(c, &a, true)) {
        close_conn(c);
    }
    mu_buf_fini(&body);
}

static void answer(struct http_conn *c, const struct mu_http_head *head, bool stranger)
{
    struct mu_http_server *s = c->server;
    struct mu_buf body;
    struct mu_http_answer a = {
        .type = "text/plain; charset=utf-8", .body = &body, .stranger = stranger};

    mu_buf_init(&body, OUT_MAX);
    c->asked = true;
    s->config.answer(s->config.context, head, &a);
    if (a.status == 0) {
        a.status = 404;
        (void)mu_buf_append(&body, MU_SPAN_LIT("muster: there is no such page\n"));
    }
    if (!put_answer(c, &a, head->method == MU_HTTP_GET)) {
        close_conn(c);
    } else if (a.stream && head->method == MU_HTTP_GET) {
        c->stream = true;
        s->listeners++;
        if (s->config.listened != NULL) {
            s->config.listened(s->config.context);
        }
    }
    mu_buf_fini(&body);
}

/* A client that shows nothing may be a browser that has not asked its user yet. */
static void log_refused(struct http_conn *c)
{
    struct mu_http_server *s = c->server;
    mu_mono_t now = mu_env_now(s->env).mono;
    char peer[64];

    if (!mu_log_may(&s->refused, now)) {
        s->refused.unsaid++;
        return;
    }
    mu_env_peer(s->env, &c->base, peer, sizeof(peer));
    mu_log_said(&s->refused, now, MUSTER_LOG_WARN, "HTTP-REFUSED",
                "peer=%s why=\"it has a different token\"", peer);
}

static void take_request(struct http_conn *c, const struct mu_http_head *head)
{
    bool stranger;
    int status = check_asker(c->server, head, &stranger);

    c->last = c->last || !head->keep || head->body;
    if (status == 401) {
        if (head->authorization.len != 0) {
            log_refused(c);
        }
        refuse(c, status,
               "muster: send the server's token, as a bearer token or as the password\n");
    } else if (status != 0) {
        refuse(c, status, "muster: use localhost or 127.0.0.1 as this server's name\n");
    } else if (head->method == MU_HTTP_OTHER || head->body) {
        refuse(c, 405, "muster: only GET and HEAD are supported\n");
    } else {
        answer(c, head, stranger);
    }
}

/* Takes request after request, as long as the answer to each could be sent. */
static void take_requests(struct http_conn *c)
{
    while (!c->closing && !c->last && !c->stream && c->out.len == 0 && c->in.len != 0) {
        struct mu_http_head head;
        size_t used = 0;
        int err = mu_http_head_parse(mu_buf_span(&c->in), &head, &used);

        if (err == MUSTER_EAGAIN) {
            break;
        }
        if (err == MUSTER_ELIMIT) {
            refuse(c, 431, "muster: the request is too long\n");
        } else if (err == MUSTER_EVERSION) {
            refuse(c, 505, "muster: use HTTP/1.1\n");
        } else if (err != 0) {
            refuse(c, 400, "muster: this is not an HTTP request\n");
        } else {
            take_request(c, &head);
            mu_buf_consume(&c->in, used);
        }
        flush(c);
    }
}

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    struct http_conn *c = MU_CONTAINER_OF(conn, struct http_conn, base);
    size_t room = IN_MAX - c->in.len;
    size_t n = in.len < room ? in.len : room;
    bool begins = c->in.len == 0 && c->asked;

    if (c->closing || c->last || c->stream) {
        return in.len; /* The client has nothing more to say. */
    }
    if (mu_buf_append(&c->in, mu_span(in.data, n)) != 0) {
        close_conn(c);
        return in.len;
    }
    take_requests(c);
    if (begins && !c->closing && c->in.len != 0 && c->out.len == 0) {
        arm(c);
    }
    return n;
}

static void on_writable(struct mu_conn *conn)
{
    struct http_conn *c = MU_CONTAINER_OF(conn, struct http_conn, base);

    flush(c);
    take_requests(c);
    if (!c->closing && c->out.len == 0) {
        mu_env_resume(c->server->env, conn);
    }
}

static void on_eof(struct mu_conn *conn)
{
    struct http_conn *c = MU_CONTAINER_OF(conn, struct http_conn, base);

    c->last = true;
    if (c->stream || c->out.len == 0) {
        close_conn(c);
    }
}

static void finish(struct mu_http_server *s)
{
    if (s->stopping && !s->listening && s->conn_count == 0) {
        s->config.stopped(s->config.context);
    }
}

static void on_closed(struct mu_conn *conn, int status)
{
    struct http_conn *c = MU_CONTAINER_OF(conn, struct http_conn, base);
    struct mu_http_server *s = c->server;

    (void)status;
    mu_env_timer_arm(s->env, &c->idle, MU_MONO_NEVER);
    mu_list_remove(&c->link);
    s->conn_count--;
    s->closing_count -= c->closing ? 1 : 0;
    s->listeners -= c->stream ? 1 : 0;
    mu_buf_fini(&c->in);
    mu_buf_fini(&c->out);
    mu_free(c);
    finish(s);
}

static const struct mu_conn_events conn_events = {
    .data = on_data, .eof = on_eof, .writable = on_writable, .closed = on_closed};

static void on_idle(struct mu_timer *timer)
{
    struct http_conn *c = MU_CONTAINER_OF(timer, struct http_conn, idle);

    if (c->stream && c->out.len == 0 && mu_buf_append(&c->out, MU_SPAN_LIT(": \n\n")) == 0) {
        flush(c);
        return;
    }
    end_conn(c, true);
}

/* The least important go first: those that had their answer, those that have not asked, streams. */
static int importance(const struct http_conn *c)
{
    return c->stream ? 3 : c->out.len != 0 ? 2 : is_asking(c) ? 1 : 0;
}

/* Closes a connection to make room for another: the oldest of the least important ones. */
static void make_room(struct mu_http_server *s)
{
    struct http_conn *least = NULL;

    MU_LIST_FOREACH (it, &s->conns) {
        struct http_conn *c = MU_CONTAINER_OF(it, struct http_conn, link);

        if (!c->closing && (least == NULL || importance(c) < importance(least))) {
            least = c;
        }
    }
    if (least != NULL) {
        end_conn(least, true);
    }
}

static struct mu_conn *on_accept(struct mu_listener *listener)
{
    struct mu_http_server *s = MU_CONTAINER_OF(listener, struct mu_http_server, listener);
    struct http_conn *c = mu_calloc(1, sizeof(*c));

    if (c == NULL) {
        return NULL;
    }
    if (s->conn_count - s->closing_count >= s->config.connections_max) {
        make_room(s);
    }
    c->server = s;
    c->base.on = &conn_events;
    mu_buf_init(&c->in, IN_MAX);
    mu_buf_init(&c->out, OUT_MAX + 4096);
    mu_timer_init(&c->idle, on_idle);
    mu_list_push(&s->conns, &c->link);
    s->conn_count++;
    arm(c);
    return &c->base;
}

/* --- life ------------------------------------------------------------------------------------- */

static void on_unlistened(struct mu_listener *listener)
{
    struct mu_http_server *s = MU_CONTAINER_OF(listener, struct mu_http_server, listener);

    s->listening = false;
    finish(s);
}

int mu_http_server_start(struct mu_env *env, const struct mu_http_server_config *config,
                         struct mu_http_server **ret_server, struct mu_errmsg *reterr_msg)
{
    struct mu_http_server *s = mu_calloc(1, sizeof(*s));
    char text[MU_ADDR_HOST_MAX + 16];
    int err;

    if (s == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "no memory for an HTTP server");
    }
    s->env = env;
    s->config = *config;
    mu_list_init(&s->conns);
    mu_buf_init(&s->event, OUT_MAX);
    if (config->token.len > sizeof(s->token)) {
        mu_free(s);
        return mu_err(reterr_msg, MUSTER_EINVAL, "the token is longer than %d bytes", TOKEN_MAX);
    }
    s->token_len = config->token.len;
    if (s->token_len != 0) {
        memcpy(s->token, config->token.data, s->token_len);
        mu_page_key(config->token, s->key);
    }
    s->listener.accept = on_accept;
    s->listener.closed = on_unlistened;
    err = mu_env_listen(env, &s->listener, &s->config.listen);
    (void)mu_addr_format(&s->config.listen, text, sizeof(text));
    if (err != 0) {
        mu_free(s);
        return mu_err(reterr_msg, MUSTER_EADDR, "cannot serve HTTP at %s: %s", text,
                      muster_strerror(err));
    }
    s->listening = true;
    mu_log(MUSTER_LOG_INFO, "HTTP-SERVING", "addr=%s", text);
    *ret_server = s;
    return 0;
}

const struct mu_addr *mu_http_server_addr(const struct mu_http_server *s)
{
    return &s->config.listen;
}

size_t mu_http_server_listeners(const struct mu_http_server *s)
{
    return s->listeners;
}

int mu_http_server_push(struct mu_http_server *s, struct mu_span line)
{
    if (mu_buf_reserve(&s->event, line.len) != 0) {
        return MUSTER_ENOMEM;
    }
    mu_buf_reset(&s->event);
    mu_buf_put(&s->event, line);
    s->events++;
    MU_LIST_FOREACH (it, &s->conns) {
        struct http_conn *c = MU_CONTAINER_OF(it, struct http_conn, link);

        if (c->stream) {
            flush(c);
        }
    }
    return 0;
}

void mu_http_server_stop(struct mu_http_server *s)
{
    if (s->stopping) {
        return;
    }
    s->stopping = true;
    mu_env_unlisten(s->env, &s->listener);
    MU_LIST_FOREACH (it, &s->conns) {
        struct http_conn *c = MU_CONTAINER_OF(it, struct http_conn, link);

        c->last = true;
        if (c->stream || c->out.len == 0) {
            close_conn(c);
        }
    }
}

void mu_http_server_free(struct mu_http_server *s)
{
    if (s != NULL) {
        mu_buf_fini(&s->event);
        mu_free(s);
    }
}

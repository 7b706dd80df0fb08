#include "service/page/page_client.h"

#include <stdio.h>
#include <string.h>

#include "codec/text/base64.h"
#include "core/url.h"

/* --- the end ---------------------------------------------------------------------------------- */

static void tell(struct mu_page_client *c, int status)
{
    c->busy = false;
    mu_env_timer_arm(c->env, &c->timer, MU_MONO_NEVER);
    c->done(c, status);
}

/* Closes the connection, or what stands for it; done() follows. `error` has the reason. */
static void end(struct mu_page_client *c, int status)
{
    if (!c->ending) {
        c->ending = true;
        c->status = status;
        if (c->secure) {
            mu_env_http_cancel(c->env, &c->http);
        } else {
            mu_env_close(c->env, &c->conn, true);
        }
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_page_client *c = MU_CONTAINER_OF(timer, struct mu_page_client, timer);

    end(c, c->open ? mu_err(&c->error, MUSTER_ETIMEDOUT, "%s has not answered within %g s",
                            c->server, c->timeout_ms / 1000.0)
                   : mu_err(&c->error, MUSTER_ETIMEDOUT, "cannot connect to %s: %s", c->server,
                            muster_strerror(MUSTER_ETIMEDOUT)));
}

/* --- plain HTTP ------------------------------------------------------------------------------- */

static void flush(struct mu_page_client *c)
{
    size_t taken = 1;

    while (!c->ending && c->out.len != 0 && taken != 0) {
        mu_env_send(c->env, &c->conn, mu_buf_span(&c->out), &taken);
        mu_buf_consume(&c->out, taken);
    }
}

static void on_open(struct mu_conn *conn)
{
    struct mu_page_client *c = MU_CONTAINER_OF(conn, struct mu_page_client, conn);

    c->open = true;
    mu_env_timer_arm(c->env, &c->timer, c->until);
    flush(c);
}

static void on_writable(struct mu_conn *conn)
{
    flush(MU_CONTAINER_OF(conn, struct mu_page_client, conn));
}

static int explain(struct mu_page_client *c, int err)
{
    if (err == MUSTER_ENOTSUP) {
        return mu_err(&c->error, MUSTER_EPROTO, "%s answers in a coding that was not asked for",
                      c->server);
    }
    if (err == MUSTER_ENOMEM) {
        return mu_err(&c->error, err, "%s", muster_strerror(err));
    }
    return mu_err(&c->error, MUSTER_EPROTO, "the answer of %s is not HTTP/1.1; is it https://?",
                  c->server);
}

static int refuse_size(struct mu_page_client *c)
{
    return mu_err(&c->error, MUSTER_ELIMIT, "the page at %s is larger than %zu bytes", c->server,
                  c->body.max);
}

/* Reads heads until one that is not just an announcement. */
static int take_head(struct mu_page_client *c)
{
    while (c->code < 200) {
        struct mu_http_reply reply;
        size_t used = 0;
        int err = mu_http_reply_parse(mu_buf_span(&c->in), &reply, &used);

        if (err != 0) {
            return err == MUSTER_EAGAIN ? err : explain(c, err);
        }
        mu_buf_consume(&c->in, used);
        c->code = reply.code;
        mu_http_body_init(&c->framing, &reply);
        if (reply.length > c->body.max) {
            return refuse_size(c);
        }
    }
    return 0;
}

static int take_body(struct mu_page_client *c)
{
    while (!c->framing.ended) {
        struct mu_span in = mu_buf_span(&c->in);
        struct mu_span data = {0};
        int err = mu_http_body_take(&c->framing, &in, &data);

        if (err != 0) {
            return err == MUSTER_EAGAIN ? err : explain(c, err);
        }
        err = mu_buf_append(&c->body, data);
        if (err != 0) {
            return err == MUSTER_ELIMIT ? refuse_size(c) : explain(c, err);
        }
        mu_buf_consume(&c->in, c->in.len - in.len);
    }
    return 0;
}

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    struct mu_page_client *c = MU_CONTAINER_OF(conn, struct mu_page_client, conn);
    struct mu_span rest = in;

    /* A whole buffer is never too little for the next step, so this ends. */
    while (rest.len != 0 && !c->ending) {
        size_t room = c->in.max - c->in.len;
        size_t n = rest.len < room ? rest.len : room;
        int err = mu_buf_append(&c->in, mu_span(rest.data, n));

        rest = mu_span_skip(rest, n);
        if (err != 0) {
            end(c, explain(c, err));
            break;
        }
        err = take_head(c);
        err = err != 0 ? err : take_body(c);
        if (err != MUSTER_EAGAIN) {
            end(c, err);
        }
    }
    return in.len;
}

static void on_eof(struct mu_conn *conn)
{
    struct mu_page_client *c = MU_CONTAINER_OF(conn, struct mu_page_client, conn);

    if (c->code >= 200 && mu_http_body_end(&c->framing) == 0) {
        end(c, 0);
    } else {
        end(c, mu_err(&c->error, MUSTER_ECONN, "%s closed the connection before its answer was %s",
                      c->server, c->code >= 200 ? "whole" : "there"));
    }
}

static void on_closed(struct mu_conn *conn, int status)
{
    struct mu_page_client *c = MU_CONTAINER_OF(conn, struct mu_page_client, conn);

    if (!c->ending && c->open) {
        status = mu_err(&c->error, status, "the connection to %s was lost: %s", c->server,
                        muster_strerror(status));
    } else if (!c->ending) {
        status = mu_err(&c->error, status, "cannot connect to %s: %s", c->server,
                        muster_strerror(status));
    }
    tell(c, c->ending ? c->status : status);
}

static const struct mu_conn_events conn_events = {
    .open = on_open, .data = on_data, .eof = on_eof, .writable = on_writable, .closed = on_closed};

/* --- HTTPS ------------------------------------------------------------------------------------ */

static void on_secure_head(struct mu_http *http)
{
    MU_CONTAINER_OF(http, struct mu_page_client, http)->code = http->code;
}

static size_t on_secure_data(struct mu_http *http, struct mu_span in)
{
    struct mu_page_client *c = MU_CONTAINER_OF(http, struct mu_page_client, http);
    int err = mu_buf_append(&c->body, in);

    if (err != 0) {
        end(c, err == MUSTER_ELIMIT ? refuse_size(c) : explain(c, err));
    }
    return in.len;
}

static void on_secure_done(struct mu_http *http, int status)
{
    struct mu_page_client *c = MU_CONTAINER_OF(http, struct mu_page_client, http);

    if (!c->ending && status != 0) {
        c->error = http->error;
    }
    tell(c, c->ending ? c->status : status);
}

static const struct mu_http_events secure_events = {
    .head = on_secure_head, .data = on_secure_data, .done = on_secure_done};

static int get_secure(struct mu_page_client *c, const struct mu_page_request *q)
{
    const struct mu_http_request request = {.method = "GET",
                                            .url = q->url,
                                            .authorization = q->authorization,
                                            .connect_ms = q->connect_ms,
                                            .timeout_ms = q->timeout_ms};
    int err;

    c->http.on = &secure_events;
    (void)snprintf(c->server, sizeof(c->server), "%.*s", (int)strcspn(q->url + 8, "/"), q->url + 8);
    err = mu_env_http(c->env, &c->http, &request);
    return err == MUSTER_EINVAL
               ? mu_err(&c->error, MUSTER_EURL, "\"%s\" is not the URL of a page", q->url)
               : err;
}

/* --- a request -------------------------------------------------------------------------------- */

/* The parts of an http:// URL, as they stand in it. */
struct parts {
    struct mu_span user; /* with the password */
    struct mu_span host; /* with the port */
    struct mu_span path;
};

static int split(struct mu_page_client *c, const char *url, struct parts *ret,
                 struct mu_addr *ret_addr)
{
    struct parts p = {0};
    const char *at;
    char text[MU_ADDR_HOST_MAX + 16];
    int err;

    if (strncmp(url, "http://", 7) != 0) {
        return mu_err(&c->error, MUSTER_EURL, "\"%s\" does not begin with http:// or https://",
                      url);
    }
    for (at = url; *at > ' ' && *at < 127; at++) {
    }
    if (*at != '\0') {
        return mu_err(&c->error, MUSTER_EURL, "\"%s\" has characters that a URL cannot have", url);
    }
    p.host = mu_span(url + 7, strcspn(url + 7, "/"));
    p.path = mu_span_str(url + 7 + p.host.len);
    at = memrchr(p.host.data, '@', p.host.len);
    if (at != NULL) {
        p.user = mu_span(p.host.data, (size_t)(at - (const char *)p.host.data));
        p.host = mu_span_skip(p.host, p.user.len + 1);
    }
    (void)snprintf(text, sizeof(text), "%.*s", (int)p.host.len, (const char *)p.host.data);
    err = mu_addr_parse(text, 80, ret_addr, &c->error);
    if (err == 0 && (ret_addr->kind != MU_ADDR_TCP || ret_addr->host[0] == '\0' ||
                     ret_addr->port == 0 || p.host.len >= sizeof(text))) {
        err = mu_err(&c->error, MUSTER_EURL, "\"%s\" does not name a host and a port", url);
    }
    *ret = p;
    return err;
}

/* Adds the credential of a URL; %XX in it is decoded. */
static int put_user(struct mu_page_client *c, struct mu_span user)
{
    struct mu_url decoded;
    char text[MU_URL_MAX + 8];
    int err;

    (void)snprintf(text, sizeof(text), "basic:%.*s", (int)user.len, (const char *)user.data);
    err = mu_url_parse(&decoded, text, &c->error);
    if (err == 0) {
        err = mu_buf_append(&c->out, MU_SPAN_LIT("Authorization: Basic "));
    }
    if (err == 0) {
        err = mu_base64_encode(&c->out, mu_span_str(decoded.path));
    }
    return err != 0 ? err : mu_buf_append(&c->out, MU_SPAN_LIT("\r\n"));
}

static int put_request(struct mu_page_client *c, const struct parts *p, const char *authorization)
{
    const struct mu_span begin[] = {MU_SPAN_LIT("GET "),
                                    p->path.len == 0 ? MU_SPAN_LIT("/") : p->path,
                                    MU_SPAN_LIT(" HTTP/1.1\r\nHost: "), p->host,
                                    MU_SPAN_LIT("\r\nAccept-Encoding: identity\r\n"
                                                "Connection: close\r\n")};
    const struct mu_span shown[] = {MU_SPAN_LIT("Authorization: "),
                                    mu_span_str(authorization == NULL ? "" : authorization),
                                    MU_SPAN_LIT("\r\n")};
    int err = 0;

    for (size_t i = 0; err == 0 && i < sizeof(begin) / sizeof(begin[0]); i++) {
        err = mu_buf_append(&c->out, begin[i]);
    }
    for (size_t i = 0; err == 0 && authorization != NULL && i < 3; i++) {
        err = mu_buf_append(&c->out, shown[i]);
    }
    if (err == 0 && authorization == NULL && p->user.len != 0) {
        err = put_user(c, p->user);
    }
    return err != 0 ? err : mu_buf_append(&c->out, MU_SPAN_LIT("\r\n"));
}

static int get_plain(struct mu_page_client *c, const struct mu_page_request *q)
{
    struct mu_addr addr;
    struct parts parts;
    mu_mono_t now = mu_env_now(c->env).mono;
    int err = split(c, q->url, &parts, &addr);

    if (err == 0) {
        (void)mu_addr_format(&addr, c->server, sizeof(c->server));
        err = put_request(c, &parts, q->authorization);
    }
    if (err != 0) {
        return err;
    }
    c->conn.on = &conn_events;
    c->timeout_ms = q->timeout_ms;
    c->until = mu_mono_add_ms(now, q->timeout_ms);
    err = mu_env_dial_plain(c->env, &c->conn, &addr);
    if (err == 0) {
        mu_env_timer_arm(c->env, &c->timer,
                         mu_mono_min(c->until, mu_mono_add_ms(now, q->connect_ms)));
        return 0;
    }
    return err == MUSTER_ENOMEM ? err
                                : mu_err(&c->error, MUSTER_EURL, "cannot connect to %s: %s",
                                         c->server, mu_env_strerror(c->env, err));
}

void mu_page_client_init(struct mu_page_client *c, struct mu_env *env, size_t bytes_max,
                         void (*done)(struct mu_page_client *client, int status))
{
    *c = (struct mu_page_client){.env = env, .done = done};
    mu_buf_init(&c->body, bytes_max);
    mu_buf_init(&c->out, MU_PAGE_REQUEST_MAX);
    mu_buf_init(&c->in, MU_HTTP_REPLY_MAX);
    mu_timer_init(&c->timer, on_timer);
}

void mu_page_client_fini(struct mu_page_client *c)
{
    mu_buf_fini(&c->body);
    mu_buf_fini(&c->out);
    mu_buf_fini(&c->in);
}

int mu_page_client_get(struct mu_page_client *c, const struct mu_page_request *q)
{
    int err;

    mu_buf_reset(&c->body);
    mu_buf_reset(&c->out);
    mu_buf_reset(&c->in);
    c->code = c->status = 0;
    c->open = c->ending = false;
    c->error.text[0] = '\0';
    c->secure = strncmp(q->url, "https://", 8) == 0;
    err = c->secure ? get_secure(c, q) : get_plain(c, q);
    c->busy = err == 0;
    return err;
}

void mu_page_client_cancel(struct mu_page_client *c)
{
    if (c->busy) {
        end(c, mu_err(&c->error, MUSTER_ECANCELED, "%s", muster_strerror(MUSTER_ECANCELED)));
    }
}

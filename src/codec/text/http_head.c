#include "codec/text/http_head.h"

#include <muster/error.h>

static uint8_t lower(uint8_t c)
{
    return c >= 'A' && c <= 'Z' ? (uint8_t)(c + 32) : c;
}

bool mu_http_same(struct mu_span a, const char *text)
{
    struct mu_span b = mu_span_str(text);

    if (a.len != b.len) {
        return false;
    }
    for (size_t i = 0; i < a.len; i++) {
        if (lower(a.data[i]) != lower(b.data[i])) {
            return false;
        }
    }
    return true;
}

/* The characters of a method's or a field's name. */
static bool is_token(uint8_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           (c != 0 && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

/* Takes what comes before `end`, which is dropped; false if there is no `end`. */
static bool take_until(struct mu_span *in, uint8_t end, struct mu_span *ret)
{
    const uint8_t *at = in->len == 0 ? NULL : memchr(in->data, end, in->len);

    if (at == NULL) {
        return false;
    }
    *ret = mu_span(in->data, (size_t)(at - in->data));
    *in = mu_span_skip(*in, ret->len + 1);
    return true;
}

bool mu_http_take_line(struct mu_span *in, struct mu_span *ret)
{
    if (!take_until(in, '\n', ret) || ret->len == 0 || ret->data[ret->len - 1] != '\r') {
        return false;
    }
    ret->len--;
    return memchr(ret->data, '\r', ret->len) == NULL;
}

static int parse_request(struct mu_span line, struct mu_http_head *h)
{
    struct mu_span method;
    struct mu_span target;

    if (!take_until(&line, ' ', &method) || !take_until(&line, ' ', &target) || method.len == 0 ||
        target.len == 0 || target.data[0] != '/') {
        return MUSTER_EPROTO;
    }
    for (size_t i = 0; i < method.len; i++) {
        if (!is_token(method.data[i])) {
            return MUSTER_EPROTO;
        }
    }
    for (size_t i = 0; i < target.len; i++) {
        if (target.data[i] <= ' ' || target.data[i] >= 127) {
            return MUSTER_EPROTO;
        }
    }
    if (!mu_span_starts_with(line, MU_SPAN_LIT("HTTP/")) || line.len != 8) {
        return MUSTER_EPROTO;
    }
    h->keep = mu_span_eq(line, MU_SPAN_LIT("HTTP/1.1"));
    if (!h->keep && !mu_span_eq(line, MU_SPAN_LIT("HTTP/1.0"))) {
        return MUSTER_EVERSION;
    }
    h->method = mu_span_eq(method, MU_SPAN_LIT("GET"))    ? MU_HTTP_GET
                : mu_span_eq(method, MU_SPAN_LIT("HEAD")) ? MU_HTTP_HEAD
                                                          : MU_HTTP_OTHER;
    if (take_until(&target, '?', &h->path)) {
        h->query = target;
    } else {
        h->path = target;
    }
    return 0;
}

static struct mu_span trim(struct mu_span s)
{
    while (s.len != 0 && (s.data[0] == ' ' || s.data[0] == '\t')) {
        s = mu_span_skip(s, 1);
    }
    while (s.len != 0 && (s.data[s.len - 1] == ' ' || s.data[s.len - 1] == '\t')) {
        s.len--;
    }
    return s;
}

bool mu_http_split_field(struct mu_span line, struct mu_span *ret_name, struct mu_span *ret_value)
{
    struct mu_span name;
    struct mu_span value;

    if (!take_until(&line, ':', &name) || name.len == 0) {
        return false;
    }
    for (size_t i = 0; i < name.len; i++) {
        if (!is_token(name.data[i])) {
            return false;
        }
    }
    value = trim(line);
    for (size_t i = 0; i < value.len; i++) {
        if ((value.data[i] < ' ' && value.data[i] != '\t') || value.data[i] == 127) {
            return false;
        }
    }
    *ret_name = name;
    *ret_value = value;
    return true;
}

static int parse_field(struct mu_span line, struct mu_http_head *h)
{
    struct mu_span name;
    struct mu_span value;

    if (!mu_http_split_field(line, &name, &value)) {
        return MUSTER_EPROTO;
    }
    if (mu_http_same(name, "host")) {
        /* Two of them are ambiguous, and a proxy may choose the other one. */
        if (h->host.data != NULL) {
            return MUSTER_EPROTO;
        }
        h->host = value;
    } else if (mu_http_same(name, "authorization")) {
        if (h->authorization.data != NULL) {
            return MUSTER_EPROTO;
        }
        h->authorization = value;
    } else if (mu_http_same(name, "connection")) {
        h->keep = h->keep && !mu_http_same(value, "close");
    } else if (mu_http_same(name, "transfer-encoding")) {
        h->body = true;
    } else if (mu_http_same(name, "content-length")) {
        h->body = h->body || !mu_span_eq(value, MU_SPAN_LIT("0"));
    }
    return 0;
}

int mu_http_head_parse(struct mu_span in, struct mu_http_head *ret_head, size_t *ret_used)
{
    struct mu_span whole = mu_span(in.data, in.len < MU_HTTP_HEAD_MAX ? in.len : MU_HTTP_HEAD_MAX);
    struct mu_http_head h = {0};
    struct mu_span rest = whole;
    struct mu_span line;
    bool first = true;

    /* A request ends with an empty line; before that it is not checked closely, but what cannot be
     * a request is refused at once. */
    if (whole.len != 0 && !is_token(whole.data[0])) {
        return MUSTER_EPROTO;
    }
    if (whole.len < 4 || memmem(whole.data, whole.len, "\r\n\r\n", 4) == NULL) {
        return whole.len == MU_HTTP_HEAD_MAX ? MUSTER_ELIMIT : MUSTER_EAGAIN;
    }
    for (;;) {
        int err;

        if (!mu_http_take_line(&rest, &line)) {
            return MUSTER_EPROTO;
        }
        if (line.len == 0 && !first) {
            break;
        }
        err = first ? parse_request(line, &h) : parse_field(line, &h);
        if (err != 0) {
            return err;
        }
        first = false;
    }
    *ret_head = h;
    *ret_used = whole.len - rest.len;
    return 0;
}

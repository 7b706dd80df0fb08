#include "codec/text/http_reply.h"

#include <muster/error.h>

#include "codec/text/http_head.h"

static bool is_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

static int hex_digit(uint8_t c)
{
    return is_digit(c)            ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* --- the head --------------------------------------------------------------------------------- */

/* "HTTP/1.1 200 OK"; some servers leave out the words, and the blank before them. */
static int parse_status(struct mu_span line, struct mu_http_reply *r)
{
    if (!mu_span_starts_with(line, MU_SPAN_LIT("HTTP/")) || line.len < 12 || line.data[8] != ' ') {
        return MUSTER_EPROTO;
    }
    if (memcmp(line.data + 5, "1.1", 3) != 0 && memcmp(line.data + 5, "1.0", 3) != 0) {
        return MUSTER_EVERSION;
    }
    for (size_t i = 9; i < 12; i++) {
        if (!is_digit(line.data[i])) {
            return MUSTER_EPROTO;
        }
        r->code = r->code * 10 + (line.data[i] - '0');
    }
    return r->code >= 100 && (line.len == 12 || line.data[12] == ' ') ? 0 : MUSTER_EPROTO;
}

static int parse_length(struct mu_span value, struct mu_http_reply *r)
{
    uint64_t length = 0;

    if (value.len == 0) {
        return MUSTER_EPROTO;
    }
    for (size_t i = 0; i < value.len; i++) {
        if (!is_digit(value.data[i]) || __builtin_mul_overflow(length, 10, &length) ||
            __builtin_add_overflow(length, value.data[i] - '0', &length)) {
            return MUSTER_EPROTO;
        }
    }
    /* Two that differ are ambiguous. */
    if (r->sized && r->length != length) {
        return MUSTER_EPROTO;
    }
    r->sized = true;
    r->length = length;
    return 0;
}

static int parse_field(struct mu_span line, struct mu_http_reply *r)
{
    struct mu_span name;
    struct mu_span value;

    if (!mu_http_split_field(line, &name, &value)) {
        return MUSTER_EPROTO;
    }
    if (mu_http_same(name, "content-length")) {
        return parse_length(value, r);
    }
    if (mu_http_same(name, "transfer-encoding") && !mu_http_same(value, "identity")) {
        if (r->chunked || !mu_http_same(value, "chunked")) {
            return MUSTER_ENOTSUP;
        }
        r->chunked = true;
    }
    return 0;
}

int mu_http_reply_parse(struct mu_span in, struct mu_http_reply *ret_reply, size_t *ret_used)
{
    static const char begin[] = "HTTP/";
    struct mu_span whole =
        mu_span(in.data, in.len < MU_HTTP_REPLY_MAX ? in.len : MU_HTTP_REPLY_MAX);
    struct mu_http_reply r = {0};
    struct mu_span rest = whole;
    struct mu_span line;
    bool first = true;

    /* What cannot be a reply is refused at once: nobody waits for the end of another protocol. */
    for (size_t i = 0; i < whole.len && i < sizeof(begin) - 1; i++) {
        if (whole.data[i] != (uint8_t)begin[i]) {
            return MUSTER_EPROTO;
        }
    }
    if (whole.len < 4 || memmem(whole.data, whole.len, "\r\n\r\n", 4) == NULL) {
        return whole.len == MU_HTTP_REPLY_MAX ? MUSTER_ELIMIT : MUSTER_EAGAIN;
    }
    for (;;) {
        int err;

        if (!mu_http_take_line(&rest, &line)) {
            return MUSTER_EPROTO;
        }
        if (line.len == 0) {
            break; /* never the first: that begins with "HTTP/" */
        }
        err = first ? parse_status(line, &r) : parse_field(line, &r);
        if (err != 0) {
            return err;
        }
        first = false;
    }
    if (r.code < 200 || r.code == 204 || r.code == 304) {
        r = (struct mu_http_reply){.code = r.code, .sized = true}; /* it never has a body */
    } else if (r.chunked) {
        r = (struct mu_http_reply){.code = r.code, .chunked = true}; /* a length does not count */
    }
    *ret_reply = r;
    *ret_used = whole.len - rest.len;
    return 0;
}

/* --- the body --------------------------------------------------------------------------------- */

void mu_http_body_init(struct mu_http_body *body, const struct mu_http_reply *reply)
{
    *body = (struct mu_http_body){
        .state = reply->chunked ? MU_HTTP_BODY_SIZE_LINE
                 : reply->sized ? MU_HTTP_BODY_SIZED
                                : MU_HTTP_BODY_UNSIZED,
        .left = reply->length,
        .ended = reply->sized && reply->length == 0,
    };
}

/* "1f" or "1f;name=value" */
static int take_size(struct mu_http_body *b, struct mu_span line)
{
    size_t digits = 0;
    uint64_t size = 0;

    while (digits < line.len && hex_digit(line.data[digits]) >= 0) {
        if (size >> 60 != 0) {
            return MUSTER_EPROTO;
        }
        size = size << 4 | (uint64_t)hex_digit(line.data[digits]);
        digits++;
    }
    if (digits == 0 || (digits < line.len && line.data[digits] != ';' && line.data[digits] != ' ' &&
                        line.data[digits] != '\t')) {
        return MUSTER_EPROTO;
    }
    b->left = size;
    b->state = size == 0 ? MU_HTTP_BODY_TRAILERS : MU_HTTP_BODY_CHUNK;
    return 0;
}

static int take_line(struct mu_http_body *b, struct mu_span *in)
{
    struct mu_span rest =
        mu_span(in->data, in->len < MU_HTTP_CHUNK_LINE_MAX ? in->len : MU_HTTP_CHUNK_LINE_MAX);
    size_t had = rest.len;
    struct mu_span line;
    int err = 0;

    if (had == 0 || memchr(rest.data, '\n', had) == NULL) {
        return had == MU_HTTP_CHUNK_LINE_MAX ? MUSTER_ELIMIT : MUSTER_EAGAIN;
    }
    if (!mu_http_take_line(&rest, &line)) {
        return MUSTER_EPROTO;
    }
    if (b->state == MU_HTTP_BODY_SIZE_LINE) {
        err = take_size(b, line);
    } else if (b->state == MU_HTTP_BODY_CHUNK_END) {
        err = line.len == 0 ? 0 : MUSTER_EPROTO;
        b->state = MU_HTTP_BODY_SIZE_LINE;
    } else if (line.len == 0) {
        b->ended = true;
    } else {
        err = b->trailers++ < MU_HTTP_TRAILERS_MAX ? 0 : MUSTER_ELIMIT;
    }
    *in = mu_span_skip(*in, had - rest.len);
    return err;
}

int mu_http_body_take(struct mu_http_body *b, struct mu_span *in, struct mu_span *ret_data)
{
    size_t n = in->len;

    if (b->ended || b->state == MU_HTTP_BODY_SIZE_LINE || b->state == MU_HTTP_BODY_CHUNK_END ||
        b->state == MU_HTTP_BODY_TRAILERS) {
        *ret_data = mu_span(in->data, 0);
        return b->ended ? 0 : take_line(b, in);
    }
    if (n == 0) {
        return MUSTER_EAGAIN;
    }
    if (b->state != MU_HTTP_BODY_UNSIZED) {
        n = n < b->left ? n : (size_t)b->left;
        b->left -= n;
        if (b->left == 0) {
            b->ended = b->state == MU_HTTP_BODY_SIZED;
            b->state = b->ended ? MU_HTTP_BODY_SIZED : MU_HTTP_BODY_CHUNK_END;
        }
    }
    *ret_data = mu_span(in->data, n);
    *in = mu_span_skip(*in, n);
    return 0;
}

int mu_http_body_end(struct mu_http_body *b)
{
    b->ended = b->ended || b->state == MU_HTTP_BODY_UNSIZED;
    return b->ended ? 0 : MUSTER_ECONN;
}

/*
 * A reply of an HTTP/1.1 server to a GET, as far as a small client needs it: the head, then the
 * body, which ends after a length, after its last chunk, or with the connection.
 *
 *     err = mu_http_reply_parse(in, &reply, &used);
 *     mu_http_body_init(&body, &reply);
 *     while (!body.ended && mu_http_body_take(&body, &in, &data) == 0) ...      append `data`
 *     if the connection ends: mu_http_body_end(&body)
 *
 * Lines end with CR LF, and nothing is folded. A reply with a code below 200 only announces
 * another, which follows it.
 */
#ifndef MU_HTTP_REPLY_H
#define MU_HTTP_REPLY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/span.h"

/* Of a head. Proxies add cookies and traces. */
#define MU_HTTP_REPLY_MAX 32768
/* Of a line between chunks, or after the last one, with its CR LF. */
#define MU_HTTP_CHUNK_LINE_MAX 1024
/* How many lines may follow the last chunk. */
#define MU_HTTP_TRAILERS_MAX 64

struct mu_http_reply {
    int code; /* 100 to 999 */
    bool chunked;
    bool sized;      /* there is a length; never with `chunked` */
    uint64_t length; /* of the body */
};

/**
 * Reads a head from the beginning of `in`. 0: it has `*ret_used` bytes. MUSTER_EAGAIN: it is valid
 * so far but not whole; MUSTER_EPROTO: it is not a head; MUSTER_EVERSION: an HTTP version other
 * than 1.0 and 1.1; MUSTER_ENOTSUP: the body is sent in a coding other than chunks; MUSTER_ELIMIT:
 * longer than MU_HTTP_REPLY_MAX.
 */
int mu_http_reply_parse(struct mu_span in, struct mu_http_reply *ret_reply, size_t *ret_used);

/* A body that comes in pieces. */
struct mu_http_body {
    bool ended; /* it is whole */
    /* private */
    enum {
        MU_HTTP_BODY_UNSIZED = 0, /* it ends with the connection */
        MU_HTTP_BODY_SIZED,
        MU_HTTP_BODY_SIZE_LINE, /* the size of a chunk is next */
        MU_HTTP_BODY_CHUNK,
        MU_HTTP_BODY_CHUNK_END, /* the line end after it is next */
        MU_HTTP_BODY_TRAILERS,
    } state;
    uint64_t left; /* of the body or the chunk */
    unsigned trailers;
};

void mu_http_body_init(struct mu_http_body *body, const struct mu_http_reply *reply);
/**
 * Takes bytes off the front of `in`. 0: `*ret_data`, which may be empty, is the next piece of the
 * body and lies in `in`; call it again until `ended` is set. MUSTER_EAGAIN: it needs more bytes
 * than there are, after those that are left in `in`. MUSTER_EPROTO: these are not chunks.
 * MUSTER_ELIMIT: a line between chunks is too long, or too many follow the last one.
 */
int mu_http_body_take(struct mu_http_body *body, struct mu_span *in, struct mu_span *ret_data);
/** The connection has ended. 0: the body is whole; MUSTER_ECONN: a part of it is missing. */
int mu_http_body_end(struct mu_http_body *body);

#endif

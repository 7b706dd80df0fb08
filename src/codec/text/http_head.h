/*
 * The head of an HTTP/1.1 request, as far as a small server needs it: the path, the host name, and
 * the credential. It is strict: lines end with CR LF, no blanks follow a name, nothing is folded.
 * Requests with a body are recognised, but the body is not read.
 */
#ifndef MU_HTTP_HEAD_H
#define MU_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/span.h"

#define MU_HTTP_HEAD_MAX 8192

enum mu_http_method {
    MU_HTTP_OTHER = 0,
    MU_HTTP_GET,
    MU_HTTP_HEAD,
};

/* Spans point into the input; empty: absent. */
struct mu_http_head {
    enum mu_http_method method;
    struct mu_span path;  /* as it came, up to "?" */
    struct mu_span query; /* after it */
    struct mu_span host;
    struct mu_span authorization;
    bool keep; /* the connection may serve another request */
    bool body; /* there is a body */
};

/**
 * Reads a head from the beginning of `in`. 0: it has `*ret_used` bytes. MUSTER_EAGAIN: it is valid
 * so far but not whole; MUSTER_EPROTO: it is not a head; MUSTER_EVERSION: an HTTP version other
 * than 1.0 and 1.1; MUSTER_ELIMIT: longer than MU_HTTP_HEAD_MAX.
 */
int mu_http_head_parse(struct mu_span in, struct mu_http_head *ret_head, size_t *ret_used);

/** Takes a line off `in`, without its CR LF. False: there is no whole one, or a CR is within it. */
bool mu_http_take_line(struct mu_span *in, struct mu_span *ret);
/** Splits a line of a head, "name: value". False: it is not one. */
bool mu_http_split_field(struct mu_span line, struct mu_span *ret_name, struct mu_span *ret_value);
/** Whether a name and a text are the same apart from the case of ASCII letters. */
bool mu_http_same(struct mu_span a, const char *text);

#endif

/*
 * The head of an HTTP/1.1 request, as far as a small server needs it: what is asked for, by which
 * name of ours, and with which credential. Strict: lines end with CR LF, names have no blanks
 * behind them, nothing is folded. Requests that bring a body are told apart, not read.
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

/* Spans are lent by the bytes that were parsed; empty: not there. */
struct mu_http_head {
    enum mu_http_method method;
    struct mu_span path;  /* as it came, up to "?" */
    struct mu_span query; /* behind it */
    struct mu_span host;
    struct mu_span authorization;
    bool keep; /* the connection may serve another request */
    bool body; /* there is one */
};

/**
 * Reads a head from the beginning of `in`. 0: `*ret_used` bytes were it. MUSTER_EAGAIN: it is well
 * so far and not whole; MUSTER_EPROTO: it is none; MUSTER_EVERSION: of an HTTP that is not 1.0 or
 * 1.1; MUSTER_ELIMIT: longer than MU_HTTP_HEAD_MAX.
 */
int mu_http_head_parse(struct mu_span in, struct mu_http_head *ret_head, size_t *ret_used);

/** Whether a name and a text are the same but for the case of ASCII letters. */
bool mu_http_same(struct mu_span a, const char *text);

#endif

/*
 * Calls with one message each way, whatever carries them: peers' streams (service/peer/call.h), or
 * what a test has in their place. Caller and handler see only this.
 *
 * A call's `done` comes exactly once, on a later turn, unless the call was canceled; then never.
 * The handler answers a request exactly once, with mu_unary_reply(), then or later, unless `gone`
 * has come for it.
 */
#ifndef MU_UNARY_H
#define MU_UNARY_H

#include "codec/peer/id.h"
#include "core/span.h"

struct mu_unary;

struct mu_unary_call {
    /* The owner's. */
    struct mu_peer_id peer;
    const char *method; /* borrowed until the end */
    uint32_t timeout_ms;
    /** `status` is 0 or negative; `text` says more of a failure. All lent for the call. */
    void (*done)(struct mu_unary_call *call, int status, const char *text, struct mu_span message);
    /* The carrier's. */
    void *impl;
};

struct mu_unary_handler;

struct mu_unary_request {
    struct mu_peer_id peer; /* the caller; proved */
    struct mu_unary_handler *handler;
    struct mu_unary *unary;
    void *owner; /* the handler's */
};

struct mu_unary_handler {
    const char *method; /* borrowed, as the handler is, while it serves */
    /** `message` is lent for the call. */
    void (*start)(struct mu_unary_handler *handler, struct mu_unary_request *request,
                  struct mu_span message);
    /** The caller is gone; the handler must not answer or use the request any more. */
    void (*gone)(struct mu_unary_handler *handler, struct mu_unary_request *request);
    void *impl;
};

struct mu_unary_ops {
    /** The message is borrowed for the call. MUSTER_ELIMIT, MUSTER_ENOMEM: `done` will not come. */
    int (*call)(struct mu_unary *unary, struct mu_unary_call *call, struct mu_span message);
    /** Harmless when the call is done. */
    void (*cancel)(struct mu_unary *unary, struct mu_unary_call *call);
    /** MUSTER_EEXIST, MUSTER_ENOMEM. */
    int (*serve)(struct mu_unary *unary, struct mu_unary_handler *handler);
    /** Requests under way end without an answer. */
    void (*unserve)(struct mu_unary *unary, struct mu_unary_handler *handler);
    /** With a negative status the message is a text that says why. The request is over. */
    void (*reply)(struct mu_unary_request *request, int status, struct mu_span message);
};

struct mu_unary {
    const struct mu_unary_ops *ops;
};

static inline void mu_unary_reply(struct mu_unary_request *r, int status, struct mu_span message)
{
    r->unary->ops->reply(r, status, message);
}

#endif

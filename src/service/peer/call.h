/*
 * Calls between peers in hivemind's framing (codec/peer/frame.h), on the streams of a host
 * (service/peer/host.h). A handler's name is the name of its stream's protocol:
 * `namespace::Service.method`.
 *
 * Unary calls are a struct mu_unary (service/base/unary.h), on which the DHT runs:
 *
 *     mu_peer_calls_new(host, NULL, &calls);
 *     struct mu_unary *unary = mu_peer_calls_unary(calls);
 *
 * Streaming calls have items both ways, each a struct mu_peer_items at either end:
 *
 *     mu_peer_items_open(calls, &items, &peer, "ns::Service.method");
 *     mu_peer_items_send(&items, message)    MUSTER_EAGAIN: `writable` follows
 *     mu_peer_items_end(&items)              that was all of ours
 *     mu_peer_items_pause(&items)            no items until mu_peer_items_resume()
 *     mu_peer_items_cancel(&items)           nothing comes any more
 */
#ifndef MU_PEER_CALL_H
#define MU_PEER_CALL_H

#include "core/buf.h"
#include "core/env.h"
#include "core/err.h"
#include "service/peer/host.h"
#include "service/base/unary.h"

struct mu_peer_calls;

struct mu_peer_calls_config {
    uint32_t requests_max;    /* of other peers, served at a time. 512 */
    size_t request_bytes_max; /* bytes that these have sent, in all. 64 MiB */
    uint32_t linger_ms;       /* for the other side to close a finished stream. 5 s */
    size_t item_len_max;      /* of a streaming call. 64 MiB */
    size_t item_bytes_max;    /* bytes of ours that wait to be sent, for each call. 1 MiB */
};

struct mu_peer_calls_config mu_peer_calls_config_defaults(void);
/** `config` NULL: the defaults. MUSTER_ENOMEM. */
int mu_peer_calls_new(struct mu_peer_host *host, const struct mu_peer_calls_config *config,
                      struct mu_peer_calls **ret);
/** Calls and requests under way are cut off without a callback. Before the host is freed; their own
 * callbacks may call this as well. */
void mu_peer_calls_free(struct mu_peer_calls *c);
struct mu_unary *mu_peer_calls_unary(struct mu_peer_calls *c);

/* --- items ------------------------------------------------------------------------------------ */

struct mu_peer_items;

struct mu_peer_items_events {
    /** An item of the other side has come; lent. */
    void (*item)(struct mu_peer_items *items, struct mu_span message);
    /** The handler's side: the caller has sent all of its items. May be NULL. */
    void (*end)(struct mu_peer_items *items);
    /** After MUSTER_EAGAIN, there is room again. May be NULL. */
    void (*writable)(struct mu_peer_items *items);
    /**
     * The last callback. 0: all items of both sides were there; MUSTER_EREMOTE: the handler failed,
     * and the text is its own; MUSTER_EPROTO: the stream ended within an item; others of host.h.
     */
    void (*ended)(struct mu_peer_items *items, int status, const char *text);
};

struct mu_peer_items {
    const struct mu_peer_items_events *on; /* the owner's */
    /* Read-only. */
    struct mu_peer_id peer;
    /* private from here */
    struct mu_host_stream stream;
    struct mu_peer_calls *calls;
    struct mu_list link;
    struct mu_span name;
    struct mu_buf in;
    struct mu_buf out;
    bool ours;
    bool active;
    bool wants;    /* MUSTER_EAGAIN was returned */
    bool closing;  /* all of our items are in `out` */
    bool over;     /* the other side has ended its items */
    bool paused;   /* the owner wants no items for now */
    bool taking;   /* items are being handed over */
    size_t unread; /* bytes that came meanwhile, which the peer may not replace yet */
    bool failed;   /* with an error, which is in `text` */
    bool *gone;    /* set when the call goes, for code that returns from a callback */
    int status;
    struct mu_errmsg text;
};

/** Cannot fail here. `name` is borrowed until the end. */
void mu_peer_items_open(struct mu_peer_calls *c, struct mu_peer_items *items,
                        const struct mu_peer_id *peer, const char *name);
/** Takes all or nothing. MUSTER_EAGAIN; MUSTER_ELIMIT: longer than any item may be; MUSTER_ECLOSED:
 * after the end; MUSTER_ENOMEM. */
int mu_peer_items_send(struct mu_peer_items *items, struct mu_span message);
/** The same for an item that lies in two places. */
int mu_peer_items_send_two(struct mu_peer_items *items, struct mu_span a, struct mu_span b);
/** How many bytes have come of an item that is not all there yet. */
size_t mu_peer_items_partial(const struct mu_peer_items *items);
/** Ends our items. On the handler's side the call is over once they have gone out. */
int mu_peer_items_end(struct mu_peer_items *items);
/** The handler's side: the call has failed. Where there is no memory to say so the stream is reset,
 * and `ended` has come before this returns. Harmless when it has ended. */
void mu_peer_items_fail(struct mu_peer_items *items, const char *text);
/** The call is gone at once, and no callback comes any more. Harmless when it has ended. */
void mu_peer_items_cancel(struct mu_peer_items *items);
/** No `item` and no `end` come until mu_peer_items_resume(). Meanwhile the other side can send only
 * as much as the stream's window holds. */
void mu_peer_items_pause(struct mu_peer_items *items);
/** Hands over what has come meanwhile, before it returns. Harmless when it is not paused. */
void mu_peer_items_resume(struct mu_peer_items *items);

struct mu_peer_items_handler {
    const char *name; /* borrowed */
    /** `peer` calls: returns the memory for the call, with `on` set, or NULL to refuse. */
    struct mu_peer_items *(*opened)(struct mu_peer_items_handler *handler,
                                    const struct mu_peer_id *peer);
    struct mu_peer_handler base; /* private from here */
    struct mu_peer_calls *calls;
};

/** MUSTER_EEXIST, MUSTER_EINVAL, MUSTER_ENOMEM. */
int mu_peer_items_serve(struct mu_peer_calls *c, struct mu_peer_items_handler *handler);
void mu_peer_items_unserve(struct mu_peer_items_handler *handler);

#endif

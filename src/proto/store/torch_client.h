/*
 * The client side of PyTorch's TCPStore protocol, either generation: a stream machine for one
 * connection. Requests are submitted with a tag, answers are pulled with the same tag, in order.
 *
 * Requests that do not block may be pipelined: any number of requests, answers in order. A request
 * that blocks (wait; get, multi_get and queue_pop without MU_STORE_NOWAIT) must have the connection
 * to itself, because the servers answer later requests ahead of a pending WAIT. get and multi_get
 * take two steps, WAIT (or CHECK with MU_STORE_NOWAIT) and then GET, since some servers close the
 * connection on a GET of an absent key; nothing can be submitted after them until they are done. A
 * key that is deleted between the two steps reads as empty, or costs the connection, depending on
 * the server.
 *
 * set, append, multi_set and queue_push have no answer in the protocol; this client sends an empty
 * CHECK after each, whose answer means that the server has executed it. The reply has 0 for what
 * the protocol does not tell: the length after append and queue_push. Whether compare_set wrote is
 * a guess: 1 if the answer equals the desired value.
 *
 * Keys get the leading '/' here, except "init/" (the worker count). The keys of a prefix store are
 * joined already.
 */
#ifndef MU_TORCH_CLIENT_H
#define MU_TORCH_CLIENT_H

#include "core/buf.h"
#include "core/err.h"
#include "core/list.h"
#include "core/span.h"
#include "codec/store/op.h"
#include "proto/store/torch_server.h"

struct mu_torch_client_config {
    enum mu_torch_generation generation; /* which one to use; the owner found it out */
    uint32_t nonce;                      /* generation 2: nonce of the PING in the handshake */
    size_t value_bytes_max;              /* of one answer. 1 GiB: 1.13 has no limit */
    size_t values_max;                   /* list_keys: how many keys. 16 Mi */
    size_t output_bytes_max;             /* requests waiting to be sent. 1 GiB */
};

struct mu_torch_client_config mu_torch_client_config_defaults(void);

enum mu_torch_client_event_type {
    MU_TORCH_CLIENT_READY = 1, /* the handshake is done (generation 1: at once) */
    MU_TORCH_CLIENT_REPLY,
};

struct mu_torch_client_event {
    enum mu_torch_client_event_type type;
    uint64_t tag;
    /*
     * 0; MUSTER_ENOENT (MU_STORE_NOWAIT); MUSTER_ECANCELED for a cancelled request; MUSTER_EAGAIN
     * for a queue_pop that waited and then found the queue empty, because another client was
     * faster.
     */
    int status;
    struct mu_store_reply reply; /* spans lent until the next recv */
};

struct mu_torch_client; /* laid out below */

/** Writes the handshake of generation 2. MUSTER_ENOMEM. */
int mu_torch_client_init(struct mu_torch_client *c, const struct mu_torch_client_config *config);
void mu_torch_client_fini(struct mu_torch_client *c);

/**
 * Encodes a request. MUSTER_EAGAIN: it blocks and others are in flight, or one is in flight that
 * nothing can follow; MUSTER_ENOTSUP: the generation has no such operation (watch, leases,
 * MU_STORE_PREFIX; with generation 1 also append, multi_*, queue_*, list_keys; barrier, which the
 * store above composes); MUSTER_EINVAL (not as many keys or values as the operation takes);
 * MUSTER_ELIMIT, MUSTER_ENOMEM. Nothing changed then.
 */
int mu_torch_client_submit(struct mu_torch_client *c, const struct mu_store_request *request,
                           uint64_t tag);
/**
 * Gives up the blocking request in flight. Generation 2 sends CANCEL_WAIT, and its reply event
 * comes with MUSTER_ECANCELED (or with the answer, if that was faster). Generation 1 cannot cancel:
 * MUSTER_ENOTSUP, the owner must drop the connection. MUSTER_ENOENT if nothing blocks. Harmless
 * when repeated.
 */
int mu_torch_client_cancel(struct mu_torch_client *c);
/** Returns the number of requests without an answer yet. */
size_t mu_torch_client_in_flight(const struct mu_torch_client *c);

/**
 * Takes bytes up to the one that completes an event; pull events, then continue with the rest. An
 * answer without a request and lengths over the limits are MUSTER_EPROTO / MUSTER_ELIMIT and poison
 * the machine.
 */
int mu_torch_client_recv(struct mu_torch_client *c, struct mu_span in, size_t *ret_used);
bool mu_torch_client_next_event(struct mu_torch_client *c, struct mu_torch_client_event *ret);
struct mu_span mu_torch_client_output(const struct mu_torch_client *c);
void mu_torch_client_sent(struct mu_torch_client *c, size_t n);
const char *mu_torch_client_errmsg(const struct mu_torch_client *c);

struct mu_torch_client {
    struct mu_torch_client_config config;
    int poison;
    struct mu_errmsg errmsg;
    struct mu_buf in;
    struct mu_buf out;
    /* Private. */
    struct mu_list flights; /* requests in flight, oldest first */
    size_t flight_count;
    bool greeted;   /* the handshake's answer has come */
    bool canceling; /* CANCEL_WAIT was sent */
    bool has_event;
    bool lent; /* the last event points into `in` */
    struct mu_torch_client_event event;
    struct mu_span *values; /* values of the event */
    size_t values_cap;
    size_t scan_offset;
    uint64_t scan_left;
};

#endif

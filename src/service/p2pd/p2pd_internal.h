/*
 * What the files of the daemon share.
 *
 *     p2pd.c       life, listening, stats
 *     boot.c       the peers to bootstrap from
 *     client.c     connections of clients: bytes, messages, the end
 *     request.c    what they request
 *     call.c       unary calls, of clients and for them
 *     handler.c    the protocols that clients handle
 *     pipe.c       connections that are streams
 */
#ifndef MU_P2PD_INTERNAL_H
#define MU_P2PD_INTERNAL_H

#include "core/prng.h"
#include "proto/p2pd/pipe.h"
#include "service/peer/autonat.h"
#include "service/peer/kad.h"
#include "service/p2pd/p2pd.h"

/* Over so much that waits to be sent to a client, nothing is read from it and no message of a
 * peer's is added. */
#define MU_P2PD_HIGH_BYTES (1u << 20)

struct mu_p2pd_client {
    struct mu_conn base;
    struct mu_p2pd *d;
    struct mu_list link; /* d->clients */
    struct mu_p2pd_conn pc;
    bool open;    /* a dialled one is */
    bool closing; /* mu_env_close() was called */
    bool last;    /* to be closed when all is sent */
    bool eof;     /* it says no more */
    bool blocked; /* `writable` follows */
    bool paused;  /* `data` has left something */
    bool raw;     /* it is a stream's */

    /* A request under way. */
    struct mu_p2pd_request_work {
        enum mu_p2pd_type type;
        struct mu_peer_connect connect;
        struct mu_timer timer;
        struct mu_span *names; /* STREAM_OPEN */
    } work;

    /* A stream. */
    struct mu_host_stream stream;
    struct mu_p2pd_pipe pipe;

    /* A persistent connection. */
    bool persistent;
    struct mu_p2pd_user user;
};

struct mu_p2pd_listener {
    struct mu_listener base;
    struct mu_p2pd *d;
    struct mu_list link;
    struct mu_buf addr;
};

/* One of those to bootstrap from. */
struct mu_p2pd_boot {
    struct mu_p2pd *d;
    struct mu_list link;
    struct mu_peer_connect connect;
    bool busy;
    bool met;
    bool tried;
    bool kept;
    uint64_t order;
    size_t addr_len;
    uint8_t addr[];
};

struct mu_p2pd {
    struct mu_env *env;
    struct mu_p2pd_config config;
    struct mu_peer_host *host;
    struct mu_kad *kad;
    struct mu_peer_relay *relay;
    struct mu_peer_autonat *autonat;
    struct mu_list listeners;
    struct mu_list clients;
    struct mu_list boots;
    struct mu_p2pd_calls calls;
    mu_mono_t calls_until; /* what calls_timer is armed for */
    struct mu_timer calls_timer;
    struct mu_prng prng;
    struct mu_timer idle_timer;
    struct mu_timer boot_timer;
    struct mu_timer soon; /* nobody is left, which is told from nobody's callback */
    enum mu_p2pd_end why;
    bool booting; /* `bootstrapped` is to be told */
    bool host_stopped;
    bool stopping;
    bool stopped;
};

/* --- p2pd.c ----------------------------------------------------------------------------------- */

/** A client has become a persistent one, or one of them is gone. */
void mu_p2pd_persistent(struct mu_p2pd *d, bool more);
/** Whether that was all that had to end. */
void mu_p2pd_check_stopped(struct mu_p2pd *d);
/** The tail of what the environment called us for: does what is due, and sends it to peers. */
void mu_p2pd_turn(struct mu_p2pd *d);

/* --- boot.c ------------------------------------------------------------------------------ */

void mu_p2pd_boot_timer(struct mu_timer *timer);
void mu_p2pd_boot_free(struct mu_p2pd *d);

/* --- client.c ---------------------------------------------------------------------------- */

struct mu_conn *mu_p2pd_accept(struct mu_listener *listener);
/** One that is dialled, for a stream; NULL: no memory, or as many as may be. */
struct mu_p2pd_client *mu_p2pd_client_new(struct mu_p2pd *d);
/** It was never connected. */
void mu_p2pd_client_free(struct mu_p2pd_client *c);
/** Sends what can be sent, and takes up what waited for that. */
void mu_p2pd_client_flush(struct mu_p2pd_client *c);
/** There may be reason to read again. */
void mu_p2pd_client_resume(struct mu_p2pd_client *c);
/** Ends it; `abort`: at once. */
void mu_p2pd_client_close(struct mu_p2pd_client *c, bool abort);
/** A reply was made, or could not be: goes on with the connection. */
void mu_p2pd_client_replied(struct mu_p2pd_client *c, int err);
/** Sends the messages that it is to hear, as far as it takes them. */
void mu_p2pd_client_send(struct mu_p2pd_client *c);

/* --- request.c --------------------------------------------------------------------------- */

void mu_p2pd_request(struct mu_p2pd_client *c, const struct mu_p2pd_request *r);
/** Whatever it has asked for goes without an answer. */
void mu_p2pd_request_drop(struct mu_p2pd_client *c);
/** Where a connected peer is; appends a multiaddr. */
void mu_p2pd_remote(struct mu_p2pd *d, const struct mu_peer_id *peer, struct mu_buf *out);

/* --- call.c ----------------------------------------------------------------------------------- */

/** Does what calls have due. After everything that may change one. */
void mu_p2pd_pump(struct mu_p2pd *d);
void mu_p2pd_calls_timer(struct mu_timer *timer);
/** What a client has sent on its persistent connection; `message` is all of it. */
void mu_p2pd_said(struct mu_p2pd_client *c, const struct mu_p2pd_call *m, struct mu_span message);
/** A stream of a peer's for a handler of unary calls: the memory for it, or NULL. */
struct mu_host_stream *mu_p2pd_call_opened(struct mu_p2pd *d, const struct mu_peer_id *peer,
                                           struct mu_span name);

/* --- handler.c -------------------------------------------------------------------------------- */

/** Adds a client for unary calls, or (NULL) an address for streams. 0 or an error, in words. */
int mu_p2pd_handle(struct mu_p2pd *d, struct mu_span name, struct mu_p2pd_user *user,
                   struct mu_span addr, bool balanced, struct mu_errmsg *reterr_msg);
/** The name has no handler any more. */
void mu_p2pd_unserve(struct mu_p2pd_name *name);

/* --- pipe.c ----------------------------------------------------------------------------------- */

/** Opens a stream, for a request. */
void mu_p2pd_pipe_open(struct mu_p2pd_client *c, const struct mu_peer_id *peer,
                       const struct mu_span *names, size_t count);
/** A stream of a peer's for a handler: the memory for it, or NULL. */
struct mu_host_stream *mu_p2pd_pipe_opened(struct mu_p2pd *d, const struct mu_p2pd_handler *handler,
                                           const struct mu_peer_id *peer, struct mu_span name);
/** What the client sends; returns how much was taken. */
size_t mu_p2pd_pipe_data(struct mu_p2pd_client *c, struct mu_span bytes);
void mu_p2pd_pipe_eof(struct mu_p2pd_client *c);
/** The client's socket is open, or takes more. */
void mu_p2pd_pipe_flush(struct mu_p2pd_client *c);

#endif

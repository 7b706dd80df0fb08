/*
 * What the files of the daemon share.
 *
 *     p2pd.c            life, listening, stats
 *     boot.c       those to bootstrap from
 *     client.c     connections of clients: bytes, messages, the end
 *     request.c    what they request
 *     name.c       who handles what
 *     pipe.c       connections that are streams
 *     unary.c      unary calls, of clients and for them
 *     leg.c        the stream of such a call
 */
#ifndef MU_P2PD_INTERNAL_H
#define MU_P2PD_INTERNAL_H

#include "core/buf.h"
#include "core/list.h"
#include "core/map.h"
#include "core/prng.h"
#include "proto/p2pd/conn.h"
#include "service/peer/kad.h"
#include "service/p2pd/p2pd.h"

/* Over so much that waits to be sent to a client, nothing is read from it and no big message is
 * added. */
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
        struct mu_buf names; /* STREAM_OPEN: their texts */
        struct mu_span *name_list;
    } work;

    /* A stream. */
    struct mu_host_stream stream;
    struct mu_buf down; /* for the client */
    size_t down_own;    /* of that, the first bytes are ours and not the stream's */
    bool down_end;      /* nothing follows it */
    bool finished;      /* the client was told so */

    /* A persistent connection. */
    bool persistent;
    struct mu_map calls;    /* struct mu_p2pd_leg: its own */
    struct mu_map served;   /* of others, that it was asked */
    struct mu_list waiting; /* legs whose message it has no room for */
    uint64_t held_bytes;    /* of its calls, that peers have not taken */
};

/* Who handles a protocol. */
struct mu_p2pd_target {
    struct mu_p2pd_client *client; /* unary; or NULL, and */
    size_t addr_len;
    uint8_t addr[];
};

struct mu_p2pd_name {
    struct mu_p2pd *d;
    struct mu_map_node by_name; /* d->names */
    struct mu_peer_handler handler;
    bool unary;
    struct mu_p2pd_target **targets;
    size_t count;
    size_t cap;
    size_t next; /* whose turn it is */
    char text[];
};

/*
 * The stream of a unary call.
 *
 *     ours:    ASKING --answer is whole--> WHOLE --told--> LEAVING
 *     theirs:  READING --> WHOLE --client is told--> ASKED --it answers--> ANSWERING --> LEAVING
 */
enum mu_p2pd_leg_state {
    MU_P2PD_LEG_READING = 1, /* a message of the peer's, which begins the call or answers it */
    MU_P2PD_LEG_WHOLE,       /* it is there; the client has no room for it yet */
    MU_P2PD_LEG_ASKED,       /* theirs: the client has it */
    MU_P2PD_LEG_ANSWERING,   /* theirs: what the client has answered goes out */
    MU_P2PD_LEG_LEAVING,     /* done with; the peer has to end it too */
};

struct mu_p2pd_leg {
    struct mu_p2pd *d;
    struct mu_list link; /* d->legs */
    enum mu_p2pd_leg_state state;
    bool ours;
    struct mu_p2pd_client *client; /* whose it is, or who was asked; NULL: nobody (any more) */
    struct mu_map_node by_id;      /* client->calls or client->served */
    struct mu_list waiting;        /* client->waiting */
    struct mu_list starving;       /* d->starving */
    struct mu_host_stream stream;
    struct mu_timer timer;
    uint8_t id[MU_P2PD_CALL_ID_LEN];
    struct mu_buf in;
    size_t need; /* how long the message in `in` is going to be; 0: not known */
    size_t head;
    size_t unread;     /* of `in`, that the peer was not told to be dealt with */
    uint64_t reserved; /* of d->held_bytes */
    struct mu_buf out;
    struct mu_span name; /* of the protocol: `text` */
    char text[];
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
    struct mu_list listeners;
    struct mu_list clients;
    struct mu_list legs;
    struct mu_list starving;
    struct mu_list boots;
    struct mu_map names;
    struct mu_prng prng;
    struct mu_timer idle_timer;
    struct mu_timer boot_timer;
    struct mu_timer soon; /* nobody is left, which is told from nobody's callback */
    enum mu_p2pd_end why;
    uint64_t client_count;
    uint64_t leg_count;
    struct mu_p2pd_stats stats;
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
/** The tail of what the environment called us for: sends what peers are to be sent. */
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
/** Tells a persistent one; one that takes nothing is closed. */
void mu_p2pd_client_tell(struct mu_p2pd_client *c, const struct mu_p2pd_call *call);

/* --- request.c --------------------------------------------------------------------------- */

void mu_p2pd_request(struct mu_p2pd_client *c, const struct mu_p2pd_request *r);
/** Whatever it has asked for goes without an answer. */
void mu_p2pd_request_drop(struct mu_p2pd_client *c);
/** Where a connected peer is; appends a multiaddr. */
void mu_p2pd_remote(struct mu_p2pd *d, const struct mu_peer_id *peer, struct mu_buf *out);

/* --- name.c ------------------------------------------------------------------------------ */

/** A client for unary calls, or (NULL) an address for streams. 0 or an error, in words. */
int mu_p2pd_name_add(struct mu_p2pd *d, struct mu_span name, struct mu_p2pd_client *client,
                     struct mu_span addr, bool balanced, struct mu_errmsg *reterr_msg);
int mu_p2pd_name_remove(struct mu_p2pd *d, struct mu_span name, struct mu_p2pd_client *client,
                        struct mu_span addr, struct mu_errmsg *reterr_msg);
/** A client is gone. */
void mu_p2pd_name_drop(struct mu_p2pd_client *client);
void mu_p2pd_name_drop_all(struct mu_p2pd *d);
/** Whose turn it is; NULL: nobody's. */
struct mu_p2pd_target *mu_p2pd_name_next(struct mu_p2pd *d, struct mu_span name);

/* --- pipe.c ------------------------------------------------------------------------------ */

/** Opens a stream, for a request. */
void mu_p2pd_pipe_open(struct mu_p2pd_client *c, const struct mu_peer_id *peer,
                       const struct mu_span *names, size_t count);
/** A stream of a peer's for a handler: the memory for it, or NULL. */
struct mu_host_stream *mu_p2pd_pipe_opened(struct mu_p2pd *d, const struct mu_p2pd_target *target,
                                           const struct mu_peer_id *peer, struct mu_span name);
/** What the client sends; returns how much was taken. */
size_t mu_p2pd_pipe_up(struct mu_p2pd_client *c, struct mu_span bytes);
void mu_p2pd_pipe_eof(struct mu_p2pd_client *c);
/** Sends on what came from the peer. */
void mu_p2pd_pipe_down(struct mu_p2pd_client *c);

/* --- unary.c ----------------------------------------------------------------------------- */

/** What a client has sent on its persistent connection; `message` is all of it. */
void mu_p2pd_unary(struct mu_p2pd_client *c, const struct mu_p2pd_call *call,
                   struct mu_span message);
/** The client is gone: so are its calls, and those that it was asked. */
void mu_p2pd_client_drop_calls(struct mu_p2pd_client *c);
/** There is room for what waits. */
void mu_p2pd_unary_room(struct mu_p2pd_client *c);
/** A leg's message is whole: 0, or why the peer cannot be served. */
void mu_p2pd_unary_whole(struct mu_p2pd_leg *leg);
/** A leg's stream has ended before its time. It is freed. */
void mu_p2pd_unary_lost(struct mu_p2pd_leg *leg, int status, const char *text);

/* --- leg.c ------------------------------------------------------------------------------- */

/** NULL: no memory. `name` is copied. */
struct mu_p2pd_leg *mu_p2pd_leg_new(struct mu_p2pd *d, bool ours, struct mu_span name);
/** Writes what can be written. */
void mu_p2pd_leg_flush(struct mu_p2pd_leg *leg);
/** It has no client any more. */
void mu_p2pd_leg_detach(struct mu_p2pd_leg *leg);
/** Done with: ends our side once all is written, and waits for the peer's. */
void mu_p2pd_leg_leave(struct mu_p2pd_leg *leg);
/** At once. */
void mu_p2pd_leg_drop(struct mu_p2pd_leg *leg);
/** The message that came is not needed any more. */
void mu_p2pd_leg_release(struct mu_p2pd_leg *leg);
/** For a handler of unary calls. */
struct mu_host_stream *mu_p2pd_leg_opened(struct mu_p2pd *d, struct mu_span name);

#endif

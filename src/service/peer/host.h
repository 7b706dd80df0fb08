/*
 * A libp2p host, on the loop's thread: an identity that listens, dials, and speaks to other peers
 * on named streams. A service: it runs on libuv and in the simulator. Each connection is a
 * proto/peer/conn.h; docs/peer.md has the picture.
 *
 *     mu_peer_host_start(env, &config, &host, &msg);
 *     mu_peer_host_listen(host, "/ip4/127.0.0.1/tcp/0", &msg);
 *     mu_peer_host_serve(host, &handler);             streams that others open
 *     mu_peer_host_add_addr(host, &peer, addr);       where a peer can be found
 *     mu_host_stream_open(host, &stream, &peer, names, 1);    dials if it must
 *     mu_host_stream_write() mu_host_stream_end() mu_host_stream_reset()
 *     mu_peer_host_stop(host);                        everything ends; stopped() follows
 *
 * Streams. A struct mu_host_stream is embedded in its owner's memory, from mu_host_stream_open() or
 * a handler's `opened` until its `ended`, which comes exactly once, or until
 * mu_host_stream_reset(), after which no callback comes. It ends with 0 when both sides have ended
 * it; else with MUSTER_EREFUSED (the peer knows none of the names), _ECLOSED (reset by the peer, or
 * the connection was closed), _ECONN, _ETIMEDOUT, _ENOENT (no address of the peer is known),
 * _EPEERID, _ESIGNATURE, _EPEERDENIED, _ELIMIT and others of conn.h. The text says more.
 *
 * One connection to a peer is used both ways, whichever side dialled. Of two that were made at
 * once, the one that the peer with the lesser id (byte for byte) dialled is kept, and of two others
 * the newer; no stream is opened on the other any more, and when its streams have ended it is
 * closed. A connection without streams is closed after `idle_ms`, unless the peer is kept
 * (mu_peer_host_keep()). Closing is gentle: the other side is told first, streams that it opened
 * before it heard of it are served, and streams of ours that the peer has not accepted yet, and to
 * which nothing was written, are opened again on another connection.
 *
 * No callback runs inside a function of this header, except inside mu_peer_host_turn(). Bytes that
 * are written outside of a callback go out on the next turn of the loop, or when
 * mu_peer_host_turn() is called.
 */
#ifndef MU_PEER_HOST_H
#define MU_PEER_HOST_H

#include "codec/peer/multiaddr.h"
#include "codec/peer/id.h"
#include "core/env.h"
#include "core/err.h"
#include "core/map.h"
#include "crypto/identity.h"
#include "proto/peer/conn.h"

#define MU_PEER_IDENTIFY_NAME "/ipfs/id/1.0.0"
#define MU_PEER_PUSH_NAME     "/ipfs/id/push/1.0.0"
#define MU_PEER_PING_NAME     "/ipfs/ping/1.0.0"
#define MU_PEER_PING_LEN      32

struct mu_peer_host;
struct mu_host_conn;
struct mu_host_stream;

struct mu_peer_host_config {
    const struct mu_identity *identity; /* borrowed until the host is freed */
    const char *agent;                  /* our agent version for identify. "muster" */
    uint32_t connect_ms;                /* until a peer is reached, all its addresses tried. 15 s */
    uint32_t dial_ms;                   /* for one address, handshake included. 5 s */
    uint32_t stagger_ms;                /* until the next address is tried beside it. 250 */
    uint32_t idle_ms;                   /* for a connection without streams. 10 min; 0: no limit */
    uint32_t drain_ms;                  /* until an unanswered farewell ends. 5 s */
    uint32_t settle_ms;        /* dials within so much of each other are simultaneous. 10 s */
    uint32_t conns_max;        /* 1,024 */
    uint32_t conns_peer_max;   /* with one peer. 8 */
    uint32_t pending_max;      /* incoming connections whose peer has not proved its id; the oldest
                                  makes room. 128 */
    uint32_t book_max;         /* peers whose addresses are known. 4,096 */
    uint32_t addrs_max;        /* of one peer. 16 */
    uint64_t memory_bytes_max; /* that windows grant to all connections, a fourth to one. 1 GiB */
    bool private_swarm;        /* only peers of mu_peer_host_allow() are let in */
    bool no_identify;          /* no identify, neither way. For tests */
    struct mu_peer_conn_config conn; /* terms of the connections */
    /** The last callback. */
    void (*stopped)(void *context);
    void *context;
};

struct mu_peer_host_config mu_peer_host_config_defaults(void);

/* --- life ------------------------------------------------------------------------------------- */

/** MUSTER_EINVAL, MUSTER_ENOMEM. */
int mu_peer_host_start(struct mu_env *env, const struct mu_peer_host_config *config,
                       struct mu_peer_host **ret_host, struct mu_errmsg *reterr_msg);
/** Ends everything: streams with MUSTER_ECLOSED, connections with a farewell. `stopped` follows.
 * Twice is harmless. */
void mu_peer_host_stop(struct mu_peer_host *h);
/** After `stopped`. */
void mu_peer_host_free(struct mu_peer_host *h);
/** The tail of a turn: sends output, and reports what has ended. Not from a callback. */
void mu_peer_host_turn(struct mu_peer_host *h);
const struct mu_peer_id *mu_peer_host_id(const struct mu_peer_host *h);
const struct mu_identity *mu_peer_host_identity(const struct mu_peer_host *h);
struct mu_env *mu_peer_host_env(const struct mu_peer_host *h);

/* --- addresses -------------------------------------------------------------------------------- */

/**
 * Listens at a multiaddr (/ip4/…/tcp/…, /ip6/…, /dns/…, /unix/…; port 0: any). A peer named in it
 * must be us. MUSTER_EADDR or a negated errno, MUSTER_EINVAL, MUSTER_ENOMEM.
 */
int mu_peer_host_listen(struct mu_peer_host *h, const char *multiaddr,
                        struct mu_errmsg *reterr_msg);
/** Adds an address that others are told instead of those at which we listen. Errors as
 * mu_peer_host_listen(). */
int mu_peer_host_announce(struct mu_peer_host *h, const char *multiaddr,
                          struct mu_errmsg *reterr_msg);
/** Returns address number `i` at which we listen, with its port; empty after the last. */
struct mu_span mu_peer_host_listening(const struct mu_peer_host *h, size_t i);
/** Returns address number `i` that others are told. Listening everywhere (0.0.0.0, ::) becomes
 * the IP addresses under which other peers have seen us. */
struct mu_span mu_peer_host_announced(const struct mu_peer_host *h, size_t i);
/** Adds an IP address of this host, for listening everywhere: others are told it like those under
 * which they have seen us. MUSTER_EINVAL, MUSTER_ENOMEM. */
int mu_peer_host_add_number(struct mu_peer_host *h, const char *ip);
/**
 * Adds an address of a peer to the book; a known one is moved to the front. A peer named in the
 * address must be that one. MUSTER_EPEERID, MUSTER_ENOTSUP (no such transport here), MUSTER_EPROTO,
 * MUSTER_ENOMEM.
 */
int mu_peer_host_add_addr(struct mu_peer_host *h, const struct mu_peer_id *peer,
                          struct mu_span addr);
/** Returns address number `i` in the book, without the peer's id; empty after the last. */
struct mu_span mu_peer_host_addr(const struct mu_peer_host *h, const struct mu_peer_id *peer,
                                 size_t i);

/*
 * A router finds addresses of peers (peer routing). When a peer is wanted and no address of it
 * works, `find` is called once; it adds addresses, and then calls mu_peer_host_found(), on a later
 * turn, whether it found any or not. The time for this is part of `connect_ms`.
 */
struct mu_peer_router {
    void (*find)(struct mu_peer_router *router, const struct mu_peer_id *peer);
};

/** NULL: no router. Borrowed. */
void mu_peer_host_set_router(struct mu_peer_host *h, struct mu_peer_router *router);
void mu_peer_host_found(struct mu_peer_host *h, const struct mu_peer_id *peer);

/*
 * The service that connects through relays (service/peer/relay.h). Its connections are limited: a
 * relay may end them at any time. They are used like others where there is no other.
 */
struct mu_peer_circuits {
    /**
     * Dials a peer at an address that leads through a relay. `conn` is the host's; its callbacks
     * and verbs are those of an environment (core/env.h) that is named in it. Errors as of
     * mu_env_dial().
     */
    int (*dial)(struct mu_peer_circuits *circuits, struct mu_conn *conn, struct mu_span addr,
                const struct mu_peer_id *peer);
};

/** NULL: no circuits, and such addresses are not kept. Borrowed. */
void mu_peer_host_set_circuits(struct mu_peer_host *h, struct mu_peer_circuits *circuits);
/** A connection has come through a relay, from the peer that the relay calls `from`: works as
 * `accept` of a listener. The caller sets its environment. */
struct mu_conn *mu_peer_host_accept(struct mu_peer_host *h, const struct mu_peer_id *from);
/** Whether the peer at the other end of such a connection has still to prove its id. */
bool mu_peer_host_is_pending(const struct mu_conn *conn);
/** How many such connections there may be at once, by relay or not. */
uint32_t mu_peer_host_pending_max(const struct mu_peer_host *h);
/** Sets the addresses at which relays reach us, which others are told beside those at which we
 * listen, or which we announce. All of them, each time. MUSTER_ENOMEM: nothing has changed. */
int mu_peer_host_tell_circuits(struct mu_peer_host *h, const struct mu_span *addrs, size_t count);

/* --- access ----------------------------------------------------------------------------------- */

/** Allows a peer. In a private swarm all others are turned away as soon as they have proved their
 * id, whichever side dialled. MUSTER_ENOMEM. */
int mu_peer_host_allow(struct mu_peer_host *h, const struct mu_peer_id *peer);
/** Bans a peer: its connections are closed, and it can neither connect nor be dialled:
 * MUSTER_EPEERDENIED. MUSTER_ENOMEM. */
int mu_peer_host_ban(struct mu_peer_host *h, const struct mu_peer_id *peer);
void mu_peer_host_unban(struct mu_peer_host *h, const struct mu_peer_id *peer);

/* --- peers ------------------------------------------------------------------------------------ */

/* Callbacks for peers that come and go. */
struct mu_peer_watch {
    /** The first connection to a peer is there. May be NULL, as may the others. */
    void (*connected)(struct mu_peer_watch *watch, const struct mu_peer_id *peer);
    /** The peer has said which protocols and addresses it has, for the first time or anew. */
    void (*identified)(struct mu_peer_watch *watch, const struct mu_peer_id *peer);
    /** The last connection to it is gone. */
    void (*disconnected)(struct mu_peer_watch *watch, const struct mu_peer_id *peer, int why);
    struct mu_list link; /* private */
};

void mu_peer_host_watch(struct mu_peer_host *h, struct mu_peer_watch *watch);
void mu_peer_host_unwatch(struct mu_peer_watch *watch);

/* A wish to be connected to a peer. Embedded in its owner's memory. */
struct mu_peer_connect {
    /* The owner's. */
    struct mu_peer_id peer; /* its length 0: any peer at `addr`; filled in */
    struct mu_span addr;    /* a multiaddr; empty: one of the book. Borrowed for the call */
    /** The end, exactly once. */
    void (*done)(struct mu_peer_connect *connect, int status, const char *text);
    /* private from here */
    struct mu_list link;
    struct mu_peer_host *host;
    struct mu_host_conn *conn; /* of a dial to any peer at `addr` */
    int status;
    struct mu_errmsg text;
    bool active;
};

/** Cannot fail here. An address is also added to the book. */
void mu_peer_host_connect(struct mu_peer_host *h, struct mu_peer_connect *connect);
/** No callback comes any more; the dial may go on. Harmless when it is done. */
void mu_peer_host_connect_cancel(struct mu_peer_connect *connect);
/** Closes all connections to a peer; streams end with MUSTER_ECLOSED. */
void mu_peer_host_disconnect(struct mu_peer_host *h, const struct mu_peer_id *peer);
bool mu_peer_host_connected(const struct mu_peer_host *h, const struct mu_peer_id *peer);
/** Whether the connection to the peer is through a relay. */
bool mu_peer_host_limited(const struct mu_peer_host *h, const struct mu_peer_id *peer);
/** The peer's connections are not closed for being idle. Calls are counted: turn it off as often as
 * on. MUSTER_ENOMEM. */
int mu_peer_host_keep(struct mu_peer_host *h, const struct mu_peer_id *peer, bool keep);
/** Whether the peer has said that it speaks this protocol; false while it has not said anything. */
bool mu_peer_host_speaks(const struct mu_peer_host *h, const struct mu_peer_id *peer,
                         const char *name);
/** The peer's agent version; empty: it has not said. Lent. */
struct mu_span mu_peer_host_agent(const struct mu_peer_host *h, const struct mu_peer_id *peer);
/** Why the last dial to the peer failed, with the address that was dialled; empty: none failed, or
 * it is connected now. Lent. */
const char *mu_peer_host_why(const struct mu_peer_host *h, const struct mu_peer_id *peer);
/** Returns the next connected peer; begins with NULL, and ends with NULL. There is no order.
 * Nothing else may happen between two calls. */
const struct mu_peer_id *mu_peer_host_next_peer(const struct mu_peer_host *h,
                                                const struct mu_peer_id *after);
/** Whether the peer is on this host, or on its link: then the addresses it names there may be
 * true. */
bool mu_peer_host_near(const struct mu_peer_host *h, const struct mu_peer_id *peer);
/** Writes the address of the peer's connection as text: terminated, at most `cap`. Empty: no
 * connection. */
void mu_peer_host_remote(const struct mu_peer_host *h, const struct mu_peer_id *peer, char *text,
                         size_t cap);

/* --- streams ---------------------------------------------------------------------------------- */

struct mu_host_stream_events {
    /** Streams of ours only: the peer agreed on `name`, lent. May be NULL. */
    void (*ready)(struct mu_host_stream *s, struct mu_span name);
    /**
     * Bytes have come from the peer, lent for the call. The owner keeps those that it cannot handle
     * at once, and calls mu_host_stream_consumed() for those that it has handled; then the peer may
     * send as many more.
     */
    void (*data)(struct mu_host_stream *s, struct mu_span bytes);
    /** The peer sends no more. May be NULL. */
    void (*eof)(struct mu_host_stream *s);
    /** A write that took less than all may go on. May be NULL if all is written in `ready`. */
    void (*writable)(struct mu_host_stream *s);
    /** The last callback: the memory is the owner's again. `text` is lent. */
    void (*ended)(struct mu_host_stream *s, int status, const char *text);
};

enum mu_host_stream_state {
    MU_HOST_STREAM_NONE = 0, /* not begun, or ended */
    MU_HOST_STREAM_WAITING,  /* for a connection */
    MU_HOST_STREAM_OPENING,  /* on one, for a name */
    MU_HOST_STREAM_OPEN,
    MU_HOST_STREAM_ENDING, /* `ended` follows on this turn */
};

struct mu_host_stream {
    const struct mu_host_stream_events *on; /* the owner's */
    /* Read-only. */
    struct mu_peer_host *host;
    struct mu_peer_id peer;
    enum mu_host_stream_state state;
    bool ours;
    /* private from here */
    struct mu_host_conn *conn;
    uint32_t id;
    struct mu_map_node by_id; /* conn->streams */
    struct mu_list link;      /* peer->waiting, host->ending */
    const struct mu_span *names;
    size_t name_count;
    bool used;   /* something was written, or ended */
    bool wants;  /* a write took less than all */
    bool ending; /* mu_host_stream_end() was called */
    bool remote_end;
    bool tied; /* bound to this connection */
    uint8_t tries;
    int status; /* ENDING */
    struct mu_errmsg text;
};

/**
 * Opens a stream for the first of the names that the peer knows; `names` are borrowed until
 * `ready` or the end. Cannot fail here. A stream for one name may be written to at once: nothing is
 * taken while there is no connection, and `writable` follows.
 */
void mu_host_stream_open(struct mu_peer_host *h, struct mu_host_stream *s,
                         const struct mu_peer_id *peer, const struct mu_span *names, size_t count);
/** Returns how many bytes were taken; `writable` follows if these were not all. Nothing is taken
 * after the end. */
size_t mu_host_stream_write(struct mu_host_stream *s, struct mu_span bytes);
/** The owner has handled `n` of the bytes that `data` lent. */
void mu_host_stream_consumed(struct mu_host_stream *s, size_t n);
/** Ends our side of the stream. Twice is harmless. */
void mu_host_stream_end(struct mu_host_stream *s);
/** The stream is gone at once, and no callback comes any more. Harmless when it has ended. */
void mu_host_stream_reset(struct mu_host_stream *s);
/** The round-trip time that the connection measured last, in ns; 0: not known. */
uint64_t mu_host_stream_rtt_ns(const struct mu_host_stream *s);
/** Whether the stream's connection is through a relay. */
bool mu_host_stream_limited(const struct mu_host_stream *s);

struct mu_peer_handler {
    const char *name; /* borrowed */
    bool prefix;      /* serves all names that begin so; others are not told */
    /**
     * `peer` opens a stream: returns the memory for it, with `on` set, or NULL to refuse. Nothing
     * may be written to it before this returns; `writable` is the first callback.
     */
    struct mu_host_stream *(*opened)(struct mu_peer_handler *handler, const struct mu_peer_id *peer,
                                     struct mu_span name);
    struct mu_map_node by_name; /* private from here */
    struct mu_list link;
    struct mu_peer_host *host;
};

/** Borrowed until mu_peer_host_unserve() or the end. MUSTER_EEXIST, MUSTER_EINVAL, MUSTER_ENOMEM.
 */
int mu_peer_host_serve(struct mu_peer_host *h, struct mu_peer_handler *handler);
/** Ends a handler; its streams stay. Harmless for one that does not serve. */
void mu_peer_host_unserve(struct mu_peer_handler *handler);

/* --- ping ------------------------------------------------------------------------------------- */

/* One ping: a stream of its own. Embedded in its owner's memory. */
struct mu_peer_ping {
    struct mu_peer_id peer; /* the owner's */
    uint32_t timeout_ms;
    /** The end, exactly once, with the time from the first byte out to the last one in. */
    void (*done)(struct mu_peer_ping *ping, int status, const char *text, uint64_t rtt_ns);
    /* private from here */
    struct mu_host_stream stream;
    struct mu_timer timer;
    uint8_t bytes[MU_PEER_PING_LEN];
    size_t sent;
    size_t got;
    mu_mono_t at;
    uint64_t rtt_ns;
};

/** Cannot fail here. */
void mu_peer_host_ping(struct mu_peer_host *h, struct mu_peer_ping *ping);
/** Nothing comes any more. */
void mu_peer_host_ping_cancel(struct mu_peer_ping *ping);

/* --- statistics ------------------------------------------------------------------------------- */

struct mu_peer_host_stats {
    uint64_t dials, accepts, secured;              /* so far */
    uint64_t failed;                               /* handshakes that failed */
    uint64_t turned_away;                          /* because of a limit */
    uint64_t denied;                               /* not allowed, or banned */
    uint64_t violations;                           /* of the protocol, afterwards */
    uint64_t streams_opened, streams_closed;       /* so far; their difference is open now */
    uint64_t streams_refused;                      /* because of a limit */
    uint64_t bytes_in, bytes_out;                  /* of the wire */
    uint64_t conns, pending, peers, book, granted; /* now; granted: bytes that windows allow */
    int last_failure;                              /* the last error code of those above */
};

void mu_peer_host_stats(const struct mu_peer_host *h, struct mu_peer_host_stats *ret);

#endif

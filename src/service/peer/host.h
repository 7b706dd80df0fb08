/*
 * A host of libp2p, on the loop's thread: an identity that listens, dials, and speaks to other
 * peers on named streams. A service: it runs on libuv and in the simulator. Each connection is a
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
 * Streams. struct mu_host_stream is one, embedded in its owner's memory, from
 * mu_host_stream_open() or a handler's `opened` until its `ended`, which comes exactly once, or
 * until mu_host_stream_reset(), after which nothing comes. It ends with 0 when both sides have
 * ended it; else with MUSTER_EREFUSED (the peer knows none of the names), _ECLOSED (reset by the
 * peer, or the connection was closed), _ECONN, _ETIMEDOUT, _ENOENT (no address of the peer is
 * known), _EPEERID, _ESIGNATURE, _EPEERDENIED, _ELIMIT and others of conn.h. The text says
 * more.
 *
 * One connection to a peer is used both ways: who dialled does not matter. Of two that were made at
 * once the one is kept that was dialled by the peer whose id is less, byte for byte, and of two
 * others the newer; no stream is opened on the other any more, and when its streams have ended it
 * is closed. A connection without streams is closed after `idle_ms`, unless the peer is kept
 * (mu_peer_host_keep()). Closing is gentle: the other side is told first, streams that it opened
 * before it heard of it are served, and streams of ours that the peer has not taken up yet, with
 * nothing written to them, are opened again on another connection.
 *
 * No callback runs inside a function of this header, except inside mu_peer_host_turn(). What is
 * written outside of a callback goes out on the next turn of the loop, or when
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
    const char *agent;                  /* what we call ourselves. "muster" */
    uint32_t connect_ms;                /* until a peer is reached, all its addresses tried. 15 s */
    uint32_t dial_ms;                   /* for one address, handshake included. 5 s */
    uint32_t stagger_ms;                /* until the next address is tried beside it. 250 */
    uint32_t idle_ms;                   /* a connection without streams. 10 min; 0: for ever */
    uint32_t drain_ms;                  /* a farewell that is not answered. 5 s */
    uint32_t settle_ms;        /* dials within so much of each other are simultaneous. 10 s */
    uint32_t conns_max;        /* 1,024 */
    uint32_t conns_peer_max;   /* with one peer. 8 */
    uint32_t pending_max;      /* that others dialled and have not proved themselves on: the oldest
                                  makes room. 128 */
    uint32_t book_max;         /* peers whose addresses are known. 4,096 */
    uint32_t addrs_max;        /* of one peer. 16 */
    uint64_t memory_bytes_max; /* that windows grant to all, a fourth to one. 1 GiB */
    bool private_swarm;        /* only those of mu_peer_host_allow() */
    bool no_identify;          /* neither asks nor tells. For tests */
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
/** The tail of a turn: sends what is to be sent, tells what has ended. Not from a callback. */
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
/** What to tell others instead of the addresses that we listen at; once for each. Errors as
 * mu_peer_host_listen(). */
int mu_peer_host_announce(struct mu_peer_host *h, const char *multiaddr,
                          struct mu_errmsg *reterr_msg);
/** Address number `i` that we listen at, with the port that was found; empty behind the last. */
struct mu_span mu_peer_host_listening(const struct mu_peer_host *h, size_t i);
/** Address number `i` that others are told. Listening everywhere (0.0.0.0, ::) becomes the numbers
 * that other peers have seen us under. */
struct mu_span mu_peer_host_announced(const struct mu_peer_host *h, size_t i);
/** A number of this machine's, for listening everywhere: told as those that others have seen us
 * under. MUSTER_EINVAL, MUSTER_ENOMEM. */
int mu_peer_host_add_number(struct mu_peer_host *h, const char *ip);
/**
 * A peer can be found there; one that is known is moved to the front. A peer named in the address
 * must be that one. MUSTER_EPEERID, MUSTER_ENOTSUP (no such transport here), MUSTER_EPROTO,
 * MUSTER_ENOMEM.
 */
int mu_peer_host_add_addr(struct mu_peer_host *h, const struct mu_peer_id *peer,
                          struct mu_span addr);
/** Address number `i` in the book, without the peer's name; empty behind the last. */
struct mu_span mu_peer_host_addr(const struct mu_peer_host *h, const struct mu_peer_id *peer,
                                 size_t i);

/*
 * Who knows where peers are (peer routing). When a peer is wanted and no address of it works,
 * `find` is called once; it adds addresses, and then says so, on a later turn, with
 * mu_peer_host_found(), whatever has come of it. The time is within `connect_ms`.
 */
struct mu_peer_router {
    void (*find)(struct mu_peer_router *router, const struct mu_peer_id *peer);
};

/** NULL: nobody. Borrowed. */
void mu_peer_host_set_router(struct mu_peer_host *h, struct mu_peer_router *router);
void mu_peer_host_found(struct mu_peer_host *h, const struct mu_peer_id *peer);

/*
 * Who leads through relays (service/peer/relay.h). Connections that it brings are limited: a relay
 * ends them when it likes. They are used like others where there is no other.
 */
struct mu_peer_circuits {
    /**
     * Dials a peer at an address that leads through a relay. `conn` is the host's; what follows,
     * and its verbs, are those of an environment (core/env.h) that is named in it. Errors as of
     * mu_env_dial().
     */
    int (*dial)(struct mu_peer_circuits *circuits, struct mu_conn *conn, struct mu_span addr,
                const struct mu_peer_id *peer);
};

/** NULL: nobody, and such addresses are not kept. Borrowed. */
void mu_peer_host_set_circuits(struct mu_peer_host *h, struct mu_peer_circuits *circuits);
/** A connection has come through a relay, from somebody who is said to be `from`: as `accept` of
 * a listener. Its environment is set by who calls this. */
struct mu_conn *mu_peer_host_accept(struct mu_peer_host *h, const struct mu_peer_id *from);
/** Whether whoever is at the other end of such a connection has still to prove who it is. */
bool mu_peer_host_is_pending(const struct mu_conn *conn);
/** How many such there may be at once, however they have come. */
uint32_t mu_peer_host_pending_max(const struct mu_peer_host *h);
/** What to tell others beside the addresses that we listen at, or announce: where we are reached
 * through relays. All of them, each time. MUSTER_ENOMEM: nothing has changed. */
int mu_peer_host_tell_circuits(struct mu_peer_host *h, const struct mu_span *addrs, size_t count);

/* --- who may come ----------------------------------------------------------------------------- */

/** In a private swarm others are turned away as soon as they have proved who they are, whoever
 * dialled. MUSTER_ENOMEM. */
int mu_peer_host_allow(struct mu_peer_host *h, const struct mu_peer_id *peer);
/** Its connections are closed, and it can neither come nor be dialled: MUSTER_EPEERDENIED.
 * MUSTER_ENOMEM. */
int mu_peer_host_ban(struct mu_peer_host *h, const struct mu_peer_id *peer);
void mu_peer_host_unban(struct mu_peer_host *h, const struct mu_peer_id *peer);

/* --- peers ------------------------------------------------------------------------------------ */

/* Whoever wants to know of peers that come and go. */
struct mu_peer_watch {
    /** The first connection to a peer is there. May be NULL, as the others. */
    void (*connected)(struct mu_peer_watch *watch, const struct mu_peer_id *peer);
    /** It has said what it speaks and where it is, for the first time or anew. */
    void (*identified)(struct mu_peer_watch *watch, const struct mu_peer_id *peer);
    /** The last connection to it is gone. */
    void (*disconnected)(struct mu_peer_watch *watch, const struct mu_peer_id *peer, int why);
    struct mu_list link; /* private */
};

void mu_peer_host_watch(struct mu_peer_host *h, struct mu_peer_watch *watch);
void mu_peer_host_unwatch(struct mu_peer_watch *watch);

/* What is asked of a peer as a whole: to be there. Embedded in its owner's memory. */
struct mu_peer_connect {
    /* The owner's. */
    struct mu_peer_id peer; /* its length 0: whoever is at `addr`; filled in */
    struct mu_span addr;    /* a multiaddr, or empty: the book knows. Borrowed for the call */
    /** The end, exactly once. */
    void (*done)(struct mu_peer_connect *connect, int status, const char *text);
    /* private from here */
    struct mu_list link;
    struct mu_peer_host *host;
    struct mu_host_conn *conn; /* to whoever is there */
    int status;
    struct mu_errmsg text;
    bool active;
};

/** Cannot fail here. An address is also added to the book. */
void mu_peer_host_connect(struct mu_peer_host *h, struct mu_peer_connect *connect);
/** Nothing comes of it any more; the dial may go on. Harmless when it is done. */
void mu_peer_host_connect_cancel(struct mu_peer_connect *connect);
/** Closes all connections to a peer; streams end with MUSTER_ECLOSED. */
void mu_peer_host_disconnect(struct mu_peer_host *h, const struct mu_peer_id *peer);
bool mu_peer_host_connected(const struct mu_peer_host *h, const struct mu_peer_id *peer);
/** Whether the way to it leads through a relay. */
bool mu_peer_host_limited(const struct mu_peer_host *h, const struct mu_peer_id *peer);
/** Its connections are not closed for being idle. Counts: as often on as off. MUSTER_ENOMEM. */
int mu_peer_host_keep(struct mu_peer_host *h, const struct mu_peer_id *peer, bool keep);
/** Whether it has said that it speaks this; false while it has not said anything. */
bool mu_peer_host_speaks(const struct mu_peer_host *h, const struct mu_peer_id *peer,
                         const char *name);
/** What it calls itself; empty: it has not said. Lent. */
struct mu_span mu_peer_host_agent(const struct mu_peer_host *h, const struct mu_peer_id *peer);
/** The next connected peer; NULL: the first, and behind the last. No order. Nothing may come
 * between two calls. */
const struct mu_peer_id *mu_peer_host_next_peer(const struct mu_peer_host *h,
                                                const struct mu_peer_id *after);
/** Whether it is on this host, or on its link: what it says of addresses there can be true. */
bool mu_peer_host_near(const struct mu_peer_host *h, const struct mu_peer_id *peer);
/** Where the peer's connection comes from, as text: terminated, at most `cap`. Empty: none. */
void mu_peer_host_remote(const struct mu_peer_host *h, const struct mu_peer_id *peer, char *text,
                         size_t cap);

/* --- streams ---------------------------------------------------------------------------------- */

struct mu_host_stream_events {
    /** Ours only: agreed on `name`, lent. May be NULL. */
    void (*ready)(struct mu_host_stream *s, struct mu_span name);
    /**
     * Bytes of the peer's, lent for the call. What is not dealt with at once is to be kept; call
     * mu_host_stream_consumed() for what is, and the peer may send as much more.
     */
    void (*data)(struct mu_host_stream *s, struct mu_span bytes);
    /** The peer says no more. May be NULL. */
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
    /* To be read. */
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
    bool tied; /* to this connection and no other */
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
/** How much was taken; `writable` follows if that was not all. Nothing is taken behind the end. */
size_t mu_host_stream_write(struct mu_host_stream *s, struct mu_span bytes);
/** `n` bytes of what `data` lent were dealt with. */
void mu_host_stream_consumed(struct mu_host_stream *s, size_t n);
/** We say no more. Twice is harmless. */
void mu_host_stream_end(struct mu_host_stream *s);
/** It is gone, at once, and nothing comes any more. Harmless when it has ended. */
void mu_host_stream_reset(struct mu_host_stream *s);
/** How long a round trip takes, as the connection last measured it, in ns; 0: not known. */
uint64_t mu_host_stream_rtt_ns(const struct mu_host_stream *s);
/** Whether its connection leads through a relay. */
bool mu_host_stream_limited(const struct mu_host_stream *s);

struct mu_peer_handler {
    const char *name; /* borrowed */
    bool prefix;      /* all names that begin so; not told to others */
    /**
     * A stream was opened by `peer`: returns the memory for it, with `on` set, or NULL to refuse.
     * Nothing may be written to it before this returns; `writable` is the first callback.
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
/** Its streams stay. Harmless for one that does not serve. */
void mu_peer_host_unserve(struct mu_peer_handler *handler);

/* --- ping ------------------------------------------------------------------------------------- */

/* One ping: a stream of its own. Embedded in its owner's memory. */
struct mu_peer_ping {
    struct mu_peer_id peer; /* the owner's */
    uint32_t timeout_ms;
    /** The end, exactly once; how long it took, from the first byte out to the last one in. */
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

/* --- for show --------------------------------------------------------------------------------- */

struct mu_peer_host_stats {
    uint64_t dials, accepts, secured;              /* ever */
    uint64_t failed;                               /* handshakes */
    uint64_t turned_away;                          /* for a limit */
    uint64_t denied;                               /* not allowed, or banned */
    uint64_t violations;                           /* of the protocol, afterwards */
    uint64_t streams_opened, streams_closed;       /* ever; their difference is held */
    uint64_t streams_refused;                      /* for a limit */
    uint64_t bytes_in, bytes_out;                  /* of the wire */
    uint64_t conns, pending, peers, book, granted; /* now; granted: what windows may bring */
    int last_failure;                              /* the last code of those above */
};

void mu_peer_host_stats(const struct mu_peer_host *h, struct mu_peer_host_stats *ret);

#endif

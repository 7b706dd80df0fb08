/*
 * What the files of the host share.
 *
 *     host.c           life, listening, handlers, the turn
 *     host_conn.c      connections: one peer_conn on one connection of the environment each
 *     host_peer.c      peers: their addresses, dialling, which connection is used
 *     host_stream.c    streams
 *     host_id.c        identify and its push
 *     host_near.c      which peers are on this host
 *     host_ping.c      ping
 */
#ifndef MU_PEER_HOST_INTERNAL_H
#define MU_PEER_HOST_INTERNAL_H

#include "codec/peer/identify.h"
#include "core/prng.h"
#include "service/peer/host.h"

/* An address of a peer. */
struct mu_host_addr {
    struct mu_list link; /* peer->addrs */
    bool tried;          /* by the dial that is under way */
    uint16_t len;
    uint8_t bytes[];
};

struct mu_host_peer {
    struct mu_peer_host *host;
    struct mu_map_node by_id; /* host->peers */
    struct mu_peer_id id;
    struct mu_list link;  /* host->book; the one that was unused for longest comes first */
    struct mu_list dirty; /* host->dirty_peers */
    struct mu_list conns; /* connections on which it has proved its id, in that order */
    struct mu_list waiting;
    struct mu_list connects;
    struct mu_list addrs;
    size_t addr_count;
    uint32_t conn_count;
    uint32_t keep;
    bool allowed;
    bool banned;
    bool told; /* `connected` was called */
    /* dialling */
    bool dialling;
    bool routing; /* the router was asked, and has not answered */
    bool routed;
    bool due; /* it is time to try the next address */
    uint32_t attempts;
    mu_mono_t give_up_at;
    mu_mono_t next_at;
    struct mu_timer timer;
    int why_status;
    struct mu_errmsg why;
    /* from identify */
    bool identified;
    uint64_t record_seq;     /* of the last signed record of its addresses */
    struct mu_buf protocols; /* names, each behind its length in two bytes */
    char agent[64];
};

/* An exchange on a connection that failed, and is tried again. */
struct mu_host_retry {
    mu_mono_t at; /* MU_MONO_NEVER: no try is due */
    uint8_t tries;
};

struct mu_host_conn {
    struct mu_conn base;
    struct mu_peer_host *host;
    struct mu_peer_conn pc;
    struct mu_list link;             /* host->conns */
    struct mu_list dirty;            /* host->dirty_conns */
    struct mu_host_peer *peer;       /* set once its id is proved, until the connection is over */
    struct mu_list of_peer;          /* peer->conns */
    struct mu_host_peer *target;     /* the peer that we dial, until its id is proved */
    struct mu_peer_connect *connect; /* or the wish for which we dial */
    struct mu_addr addr;             /* the address that was dialled */
    struct mu_map streams;
    struct mu_list nudged;  /* streams whose `writable` is due */
    struct mu_list starved; /* streams whose `writable` comes when there may be memory again */
    struct mu_timer timer;
    mu_mono_t secured_at;
    mu_mono_t idle_at;         /* since when it has no streams; MU_MONO_NEVER: it has some */
    mu_mono_t close_at;        /* when it is closed at the latest */
    mu_mono_t retry_at;        /* when there may be memory again */
    struct mu_host_retry ask;  /* identify */
    struct mu_host_retry push; /* the push of our changes */
    uint64_t granted;          /* its part of host->granted */
    uint32_t pings;            /* ping streams that the peer opened */
    int refused;               /* why we close it; the text is below */
    struct mu_errmsg why;
    bool dialled;
    bool limited; /* it is through a relay: `base` has an environment of its own */
    bool open;    /* the environment's connection is open */
    bool pending; /* it counts in host->pending */
    bool blocked;
    bool paused;
    bool closing; /* mu_env_close() was called */
    bool drains;
    bool away;     /* the peer takes no more streams */
    bool over;     /* and all its events were reported */
    bool observed; /* the peer has told us our address */
    bool stale;    /* something changed here before we knew whether the peer takes a push */
};

struct mu_host_listener {
    struct mu_listener base;
    struct mu_peer_host *host;
    struct mu_list link;
    bool wild; /* 0.0.0.0 or :: */
    bool v6;
    uint16_t port;
    struct mu_buf addr;
};

#define MU_HOST_SEEN_MAX 16
/* One connection may have a fourth of the memory that windows allow. */
#define MU_HOST_SHARE 4

struct mu_peer_host {
    struct mu_env *env;
    struct mu_peer_host_config config;
    struct mu_list listeners;
    struct mu_list announced; /* struct mu_host_addr: from the user */
    struct mu_list circuits;  /* struct mu_host_addr: through relays */
    struct mu_list told;      /* struct mu_host_addr: what others are told, made of the above */
    struct mu_list conns;
    struct mu_list dirty_conns;
    struct mu_list dirty_peers;
    struct mu_list ending;   /* streams */
    struct mu_list connects; /* whose `done` is due */
    struct mu_list watches;
    struct mu_map peers;
    struct mu_list book;
    struct mu_map handlers;
    struct mu_list handler_list;
    struct mu_list prefixes;
    struct mu_peer_router *router;
    struct mu_peer_circuits *through;
    struct mu_timer soon;
    struct mu_timer again; /* there was no memory for the list of our addresses */
    struct mu_prng prng;
    uint32_t conn_count;
    uint32_t pending;
    uint64_t granted;
    struct mu_peer_host_stats stats;
    struct mu_peer_handler identify_handler;
    struct mu_peer_handler push_handler;
    struct mu_peer_handler ping_handler;
    struct mu_buf seen[MU_HOST_SEEN_MAX]; /* our IP addresses as others see them: multiaddr parts */
    size_t seen_next;
    struct mu_buf record; /* our signed addresses; empty: made when needed */
    uint64_t record_seq;
    bool push;  /* what we say in identify has changed */
    bool armed; /* `soon` is armed */
    bool in_turn;
    bool stopping;
    bool stopped;
};

/* --- host.c ------------------------------------------------------------------------------ */

/** To be called around each callback of the environment. */
void mu_host_enter(struct mu_peer_host *h);
void mu_host_leave(struct mu_peer_host *h);
/** There is something to do: at the end of this turn, or on the next one. */
void mu_host_touch(struct mu_peer_host *h);
struct mu_peer_handler *mu_host_find_handler(struct mu_peer_host *h, struct mu_span name);
/** Our addresses for others have changed. */
void mu_host_readdress(struct mu_peer_host *h);
struct mu_host_addr *mu_host_addr_new(struct mu_span bytes);
void mu_host_addrs_free(struct mu_list *list);

/* --- host_conn.c ------------------------------------------------------------------------- */

struct mu_conn *mu_host_accept(struct mu_listener *listener);
/** Dials for a target, or for a connect. MUSTER_ELIMIT, MUSTER_ENOMEM and others, with a text. */
int mu_host_dial(struct mu_peer_host *h, struct mu_host_peer *target,
                 struct mu_peer_connect *connect, const struct mu_addr *addr,
                 struct mu_errmsg *reterr_msg);
/** Dials a target through a relay. Errors likewise. */
int mu_host_dial_circuit(struct mu_peer_host *h, struct mu_host_peer *target, struct mu_span addr,
                         struct mu_errmsg *reterr_msg);
/** Whether the other end is on this host, or on its link. */
bool mu_host_conn_is_near(const struct mu_host_conn *c);
static inline struct mu_env *mu_host_conn_env(const struct mu_host_conn *c)
{
    return c->limited ? c->base.env : c->host->env;
}
void mu_host_conn_touch(struct mu_host_conn *c);
void mu_host_conn_pump(struct mu_host_conn *c);
/** There was no memory: tries again soon. */
void mu_host_conn_starve(struct mu_host_conn *c);
/** Closes the connection; its streams end. */
void mu_host_conn_close(struct mu_host_conn *c, int why, const char *text);
/** Closes the oldest connection that is not used and has no streams. False: there is none. */
bool mu_host_conn_make_room(struct mu_host_peer *peer);

/* --- host_peer.c ------------------------------------------------------------------------- */

struct mu_host_peer *mu_host_peer_find(const struct mu_peer_host *h, const struct mu_peer_id *id);
/** Finds or makes a peer. NULL: there is no memory, or the book is full of peers that are
 * needed. */
struct mu_host_peer *mu_host_peer_get(struct mu_peer_host *h, const struct mu_peer_id *id);
void mu_host_peer_free(struct mu_host_peer *peer);
void mu_host_peer_touch(struct mu_host_peer *peer);
/** Goes on with dialling, and opens streams that wait. */
void mu_host_peer_step(struct mu_host_peer *peer);
/** The connection for new streams; NULL: there is none. */
struct mu_host_conn *mu_host_peer_best(const struct mu_host_peer *peer);
bool mu_host_peer_denied(const struct mu_host_peer *peer);
/** The peer has proved its id. 0, or why the connection cannot stay, with a text. */
int mu_host_peer_attach(struct mu_host_conn *c, struct mu_errmsg *reterr_msg);
void mu_host_peer_detach(struct mu_host_conn *c, int why);
/** A dial has failed. */
void mu_host_attempt_failed(struct mu_host_conn *c, int status, const char *text);
void mu_host_connect_end(struct mu_peer_connect *connect, int status, const char *text);
int mu_host_peer_learn(struct mu_host_peer *peer, struct mu_span addr);
/** Ends all streams and wishes that wait for the peer. */
void mu_host_peer_fail(struct mu_host_peer *peer, int status, const char *text);

/* --- host_stream.c ----------------------------------------------------------------------- */

/** Opens a stream that is bound to this connection. */
void mu_host_stream_open_on(struct mu_host_conn *c, struct mu_host_stream *s,
                            const struct mu_span *names, size_t count);
/** Calls `writable` of the streams for which it is due. */
void mu_host_streams_nudge(struct mu_host_conn *c);
/** Opens a stream that waits. */
void mu_host_stream_begin(struct mu_host_stream *s, struct mu_host_conn *c);
/** Ends the stream; `ended` comes on this turn. */
void mu_host_stream_finish(struct mu_host_stream *s, int status, const char *text);
void mu_host_stream_event(struct mu_host_conn *c, const struct mu_peer_event *e);
void mu_host_streams_tell(struct mu_peer_host *h);

/* --- host_id.c --------------------------------------------------------------------------- */

int mu_host_id_init(struct mu_peer_host *h);
void mu_host_id_fini(struct mu_peer_host *h);
/** Asks the peer to identify itself. */
void mu_host_identify(struct mu_host_conn *c);
/** Repeats an identify or a push that failed, if it is due. */
void mu_host_identify_again(struct mu_host_conn *c);
/** Tells all connections what has changed. */
void mu_host_push(struct mu_peer_host *h);

/* --- host_ping.c ------------------------------------------------------------------------- */

int mu_host_ping_init(struct mu_peer_host *h);

#endif

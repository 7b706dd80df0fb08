/*
 * The listening end of the native wire: connections, the sessions on them, and the calls that those
 * serve. The store server (with the rendezvous), the RPC agent and the donor of states embed one
 * each, and give it a table of callbacks:
 *
 *     the environment      accept, data, room, eof, writable, closed          timers
 *                                |                                              |
 *     rpc_server_conn.c    struct mu_rpc_conn: input, output, end of life       |
 *                                | the owner's protocol: mu_rpc_native,         |
 *                                | or one that passes native bytes on to it     |
 *     rpc_server.c         struct mu_rpc_session: greeting, resuming, grace, <--+
 *                          refusals, silence, our own absence
 *     rpc_served.c         struct mu_rpc_served: a call that is not answered at once
 *                                |
 *     the owner            greet(), session_new(), call() or event(), session_free();
 *                          turn_ended(): the last thing in each of these callbacks
 *
 * The end of the turn. What is said on a connection is not sent at once: mu_rpc_conn_touch() notes
 * the connection, and in turn_ended() the owner first does what it put off and then calls
 * mu_rpc_server_flush(). The owner calls its own function for turn_ended() at the end of every
 * callback of the environment that the server does not see.
 *
 * Connections. An owner that speaks other protocols on the same port gives a struct mu_rpc_protocol
 * of its own, which passes the bytes of native connections on to mu_rpc_native. The server refuses
 * a client that greets on a connection that the environment does not trust (mu_env_trust()).
 *
 * Sessions. A session begins with its first link and ends with the goodbye of its client, with its
 * grace, with a violation, or with mu_rpc_session_end().
 */
#ifndef MU_RPC_SERVER_H
#define MU_RPC_SERVER_H

#include "core/env.h"
#include "proto/rpc/rpc.h"

struct mu_rpc_server;
struct mu_rpc_session;
struct mu_rpc_conn;

/* What is spoken on connections. */
struct mu_rpc_protocol {
    /** Returns how many bytes were used; with less than all, the connection is paused: nothing more
     * comes before mu_rpc_conn_resume(), and then the rest comes again. */
    size_t (*input)(struct mu_rpc_conn *c, struct mu_span in);
    /** What may be sent now, in up to `cap` spans; returns how many. */
    size_t (*output)(const struct mu_rpc_conn *c, struct mu_span *spans, size_t cap);
    void (*sent)(struct mu_rpc_conn *c, size_t n);
    /** The client has sent all it will send. Returns whether the connection stays open, for what
     * the client is still owed. */
    bool (*eof)(struct mu_rpc_conn *c);
};

/** The native wire: connections begin with the magic. */
extern const struct mu_rpc_protocol mu_rpc_native;

/* A connection, all zeroes to begin with. The owner may embed it, as the first member. */
struct mu_rpc_conn {
    struct mu_conn base;
    struct mu_rpc_server *server;
    const struct mu_listener *listener; /* which it came by */
    struct mu_list link;                /* server->conns */
    struct mu_list touched;             /* server->touched: has something to send */
    bool closing;                       /* `closed` of the environment will come */
    bool blocked;                       /* the environment takes no more output until `writable` */
    bool paused;                        /* the environment keeps input that was not used */
    /* The native wire's. */
    bool greeted;
    struct mu_rpc_greet greet;
    struct mu_rpc_session *session; /* NULL: not greeted yet, or it went on without us */
};

/* One session; embedded in its owner's, first or not. */
struct mu_rpc_session {
    struct mu_rpc rpc;
    struct mu_map_node by_id; /* server->sessions */
    struct mu_list link;      /* server->list */
    uint8_t id[MU_RPC_SESSION_LEN];
    struct mu_rpc_server *server;
    struct mu_rpc_conn *conn; /* NULL while there is no link */
    struct mu_map calls;      /* struct mu_rpc_served by id */
    struct mu_timer timer;
    bool goodbye; /* it ends because its client said so */
    char peer[64];
};

struct mu_rpc_server_ops {
    /** The end of a turn: the owner does what it put off, and calls mu_rpc_server_flush(). */
    void (*turn_ended)(struct mu_rpc_server *s);
    /** A line for the log: a peer lost its connection or its session because of what it did. */
    void (*complain)(struct mu_rpc_server *s, const char *peer, const char *why);
    /** Accepting has failed: see struct mu_listener. */
    void (*accept_failed)(struct mu_listener *listener, int status);
    const struct mu_rpc_protocol *protocol;

    /* Connections. Each may be NULL. */
    /** Memory from mu_calloc() for a connection, or NULL to turn it away. NULL: connections have
     * nothing of the owner's, and none is turned away before mu_rpc_server_leave(). */
    struct mu_rpc_conn *(*conn_new)(struct mu_rpc_server *s);
    /** Sends output at the end of the turn, by mu_rpc_conn_send(). NULL: mu_rpc_conn_flush(). */
    void (*flush)(struct mu_rpc_conn *c);
    /** The connection is being closed, or is gone: lets go of everything. Once. */
    void (*release)(struct mu_rpc_conn *c);
    /** The connection is gone; it is freed when this returns. Status: see struct mu_conn_events. */
    void (*closed)(struct mu_rpc_conn *c, int status);

    /* Back-pressure. Each may be NULL. */
    /** Whether no events may be handed out for now. NULL: they always may. */
    bool (*is_busy)(const struct mu_rpc_server *s);
    /** Events of this connection's session wait for that: mu_rpc_session_pump() afterwards. */
    void (*wait)(struct mu_rpc_conn *c);
    /** The machine of a session holds so much memory. */
    void (*account)(struct mu_rpc_session *session, size_t bytes);

    /* Sessions. */
    /**
     * Whether the one that greets may have a session, or (`known`) go on with the one it has.
     * 0, or a status with which it is refused. NULL: everybody may.
     */
    int (*greet)(struct mu_rpc_server *s, const struct mu_rpc_hello *hello,
                 struct mu_rpc_session *known, struct mu_errmsg *reterr_msg);
    /** Zeroed memory for a session; NULL: there is none. */
    struct mu_rpc_session *(*session_new)(struct mu_rpc_server *s,
                                          const struct mu_rpc_hello *hello);
    /** The session has a link: the first one, or another. Must not end it. May be NULL. */
    void (*session_linked)(struct mu_rpc_session *session);
    /** It is over, in no table any more, and its calls are freed: frees the rest and its memory. */
    void (*session_free)(struct mu_rpc_session *session);
    /**
     * A CALL: the owner answers it, or keeps it by mu_rpc_served_add(), and what else comes for it
     * goes to its own table. Must not end the session.
     */
    void (*call)(struct mu_rpc_session *session, const struct mu_rpc_event *event);
    /**
     * For an owner that makes calls as well, in place of `call`: a CALL, ITEM, END, CANCEL, REPLY,
     * CREDIT or DRAIN. Must not end the session.
     */
    void (*event)(struct mu_rpc_session *session, const struct mu_rpc_event *event);
};

struct mu_rpc_server_config {
    struct mu_rpc_config rpc; /* terms, and the seed; role and ids are set by the server */
    size_t sessions_max;
    uint32_t eof_grace_ms; /* of a session whose client closed its connection without goodbye */
};

/* Where peers come in. A server may have several. */
struct mu_rpc_listener {
    struct mu_listener base;
    struct mu_rpc_server *server;
    struct mu_list link; /* server->listeners */
};

struct mu_rpc_server {
    struct mu_env *env;
    struct mu_rpc_server_config config;
    const struct mu_rpc_server_ops *ops;
    struct mu_conn_events conn_events;
    struct mu_list listeners; /* that were not told to stop */
    size_t listening;         /* with those that were, and have not stopped yet */
    struct mu_list conns;
    size_t conn_count;
    struct mu_list touched;
    bool leaving;
    struct mu_map sessions;
    struct mu_list list;
    struct mu_timer pulse_timer; /* while there are sessions */
    mu_mono_t pulse;             /* when we were last known to be awake */
    uint8_t incarnation[MU_RPC_SESSION_LEN];
    uint64_t frames_in; /* of sessions that are over */
    uint64_t frames_out;
};

/** Takes no memory. The config's borrowed parts are borrowed for the server's life. */
void mu_rpc_server_init(struct mu_rpc_server *s, struct mu_env *env,
                        const struct mu_rpc_server_config *config,
                        const struct mu_rpc_server_ops *ops);
/** Listens at once; `addr` and errors as of mu_env_listen(). */
int mu_rpc_server_listen(struct mu_rpc_server *s, struct mu_rpc_listener *l, struct mu_addr *addr);
/** Stops listening everywhere; turn_ended() follows. Twice is harmless. */
void mu_rpc_server_unlisten(struct mu_rpc_server *s);
/** The end of a turn that began with something of the owner's: calls turn_ended(). */
static inline void mu_rpc_server_end_turn(struct mu_rpc_server *s)
{
    s->ops->turn_ended(s);
}
/** Sends to every connection that was touched. For turn_ended(). */
void mu_rpc_server_flush(struct mu_rpc_server *s);
/** Tells all clients that we are about to leave. */
void mu_rpc_server_drain(struct mu_rpc_server *s, const char *why);
/** Closes all connections; `abort` drops what was not sent. */
void mu_rpc_server_close_conns(struct mu_rpc_server *s, bool abort);
/** Ends what sessions are left. */
void mu_rpc_server_end_all(struct mu_rpc_server *s, const char *why);
/** Stops listening, says goodbye on all sessions, ends them, closes their connections. */
void mu_rpc_server_leave(struct mu_rpc_server *s, const char *why);
/** Whether it neither listens nor has connections. */
bool mu_rpc_server_is_empty(const struct mu_rpc_server *s);
/** Disarms its timer; the sessions stay until they are ended. */
void mu_rpc_server_stop(struct mu_rpc_server *s);
/** After mu_rpc_server_stop() and the end of every session. */
void mu_rpc_server_fini(struct mu_rpc_server *s);
/**
 * The beginning of every timer's callback, before anybody is found to be late: if it was us who
 * were away (stopped, suspended, busy), the sessions are forgiven that time.
 */
void mu_rpc_server_feel_pulse(struct mu_rpc_server *s);
/** Sequenced frames of all sessions that ever were. */
void mu_rpc_server_frames(const struct mu_rpc_server *s, uint64_t *ret_in, uint64_t *ret_out);

/* --- connections ------------------------------------------------------------------------------ */

/** The connection has output: it is sent at the end of the turn. */
void mu_rpc_conn_touch(struct mu_rpc_conn *c);
/** Sends up to `max` bytes; returns how many. */
size_t mu_rpc_conn_send(struct mu_rpc_conn *c, size_t max);
/** Sends all that can be sent, then mu_rpc_conn_flushed(). */
void mu_rpc_conn_flush(struct mu_rpc_conn *c);
/** All that could be sent was: calls that waited for that are served on the next turn. */
void mu_rpc_conn_flushed(struct mu_rpc_conn *c);
/** Takes up reading again, if the connection is paused. */
void mu_rpc_conn_resume(struct mu_rpc_conn *c);
/** Closes it; `abort` drops what was not sent. Twice is harmless. */
void mu_rpc_conn_close(struct mu_rpc_conn *c, bool abort);
/** Closes it and complains. */
void mu_rpc_conn_drop(struct mu_rpc_conn *c, const char *why);
/** The session, if any, goes on without this connection: the first part of closing it. */
void mu_rpc_conn_unlink(struct mu_rpc_conn *c);

/* --- sessions --------------------------------------------------------------------------------- */

/** The machine was given something to send or to do. */
void mu_rpc_session_touch(struct mu_rpc_session *session);
/** Handles what the machine has to say, re-arms its timer. May end the session. */
void mu_rpc_session_pump(struct mu_rpc_session *session);
/** Ends it; its link, if any, is closed. */
void mu_rpc_session_end(struct mu_rpc_session *session, const char *why);
/** Sends an item. Errors as of mu_rpc_item(), and the item is still the caller's then. */
int mu_rpc_session_item(struct mu_rpc_session *session, uint64_t id, struct mu_span payload);
/** Ends a call; `payload` is the error's text if status is one. */
void mu_rpc_session_reply(struct mu_rpc_session *session, uint64_t id, int status,
                          struct mu_span payload);

/* --- calls that go on ------------------------------------------------------------------------- */

struct mu_rpc_served;

/*
 * All of these run within the handling of an event of the call's session; each may answer the call
 * and free it, or any other call. None may end a session.
 */
struct mu_rpc_served_ops {
    /** The caller cancelled, its deadline passed, or its session began anew: answers it. */
    void (*cancel)(struct mu_rpc_served *call, int why);
    /** An item that found no credit may be sent now. */
    void (*credit)(struct mu_rpc_served *call);
    /** NULL: what comes is dropped. It counts as consumed when this returns. */
    void (*item)(struct mu_rpc_served *call, struct mu_span payload);
    /** The caller has no more items. NULL: nothing follows from that. */
    void (*end)(struct mu_rpc_served *call);
    /** Nobody will answer it: lets go of everything, mu_rpc_served_remove() included. */
    void (*free)(struct mu_rpc_served *call);
};

/* A call that was not answered at once; embedded in what its service keeps of it. */
struct mu_rpc_served {
    const struct mu_rpc_served_ops *ops;
    struct mu_map_node by_id; /* session->calls */
    uint64_t id;
    struct mu_rpc_session *session;
};

/** Puts a call into its session's table; `call` is zeroed. MUSTER_ENOMEM. */
int mu_rpc_served_add(struct mu_rpc_served *call, const struct mu_rpc_served_ops *ops,
                      struct mu_rpc_session *session, uint64_t id);
void mu_rpc_served_remove(struct mu_rpc_served *call);
/** NULL: it was answered, or never was. */
struct mu_rpc_served *mu_rpc_served_find(struct mu_rpc_session *session, uint64_t id);
/** An event of a session whose owner has `call`: goes there, or to the table of its call. */
void mu_rpc_served_event(struct mu_rpc_session *session, const struct mu_rpc_event *event);
/** Frees what calls are left. */
void mu_rpc_served_free_all(struct mu_rpc_session *session);

#endif

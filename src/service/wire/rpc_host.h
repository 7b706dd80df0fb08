/*
 * The listening end of native sessions: greeting, sessions by id, links, resuming, grace, refusals,
 * silence and our own absence. Whoever listens embeds one, keeps the connections (and may speak
 * other protocols on the same port), and is told what the sessions have to say:
 *
 *     its owner                                  the host
 *     accepts a connection, reads the magic
 *     mu_rpc_hosted_init()
 *     mu_rpc_hosted_input()                      HELLO: greet(), session_new(), or a refusal
 *                                                event() for each thing of a call
 *     touch(): has output                        whatever is said on a session
 *     mu_rpc_hosted_output(), _sent()
 *     mu_rpc_hosted_eof(), _release()            the session lives on for its grace
 *                                                session_free()
 *
 * Who greets on a connection that the environment does not trust (mu_env_trust()) is refused.
 *
 * A session begins with its first link and ends with the goodbye of its client, with its grace,
 * with a violation, or with mu_rpc_session_end(). All that runs inside a callback of the
 * environment which the host does not see is followed by the owner's own turn's end; for the
 * host's timers, turn_ended() is called.
 */
#ifndef MU_RPC_HOST_H
#define MU_RPC_HOST_H

#include "core/env.h"
#include "proto/rpc/rpc.h"

struct mu_rpc_host;
struct mu_rpc_session;

/* The native half of a connection; embedded in its owner's. */
struct mu_rpc_hosted {
    struct mu_rpc_host *host;
    struct mu_conn *conn;
    struct mu_rpc_session *session; /* NULL: not greeted yet, or it went on without us */
    struct mu_rpc_greet greet;
    bool greeting;
    bool released;
};

/* One session; embedded in its owner's, first or not. */
struct mu_rpc_session {
    struct mu_rpc rpc;
    struct mu_map_node by_id; /* host->sessions */
    struct mu_list link;      /* host->list */
    uint8_t id[MU_RPC_SESSION_LEN];
    struct mu_rpc_host *host;
    struct mu_rpc_hosted *conn; /* NULL while there is no link */
    struct mu_timer timer;
    bool goodbye; /* it ends because its client said so */
    char peer[64];
};

struct mu_rpc_host_ops {
    /** Has output: to be sent by the end of the turn. */
    void (*touch)(struct mu_rpc_hosted *c);
    /** To be closed, mu_rpc_hosted_release() included; `abort` drops what was not sent. */
    void (*close)(struct mu_rpc_hosted *c, bool abort);
    /** A line for the log: a peer lost its connection or its session because of what it did. */
    void (*complain)(struct mu_rpc_host *h, const char *peer, const char *why);
    /** Whether input of this connection was left with the environment. */
    bool (*is_paused)(const struct mu_rpc_hosted *c);
    /** Whether no events may be handed out for now. NULL: they always may. */
    bool (*is_busy)(const struct mu_rpc_host *h);
    /** Events of this connection's session wait for that: mu_rpc_session_pump() afterwards. */
    void (*wait)(struct mu_rpc_hosted *c);
    /** The machine of a session holds so much memory; false: all together hold too much. */
    bool (*account)(struct mu_rpc_session *session, size_t bytes);
    /**
     * Whether the one that greets may have a session, or (`known`) go on with the one it has.
     * 0, or a status with which it is refused. NULL: everybody may.
     */
    int (*greet)(struct mu_rpc_host *h, const struct mu_rpc_hello *hello,
                 struct mu_rpc_session *known, struct mu_errmsg *reterr_msg);
    /** Zeroed memory for a session; NULL: there is none. */
    struct mu_rpc_session *(*session_new)(struct mu_rpc_host *h, const struct mu_rpc_hello *hello);
    /** It has a link: the first one, or another. May be NULL. */
    void (*session_linked)(struct mu_rpc_session *session);
    /** It is over, and in no table any more: everything of it and its memory. */
    void (*session_free)(struct mu_rpc_session *session);
    /** A CALL, ITEM, END, CANCEL, REPLY, CREDIT or DRAIN. Must not end the session. */
    void (*event)(struct mu_rpc_session *session, const struct mu_rpc_event *event);
    /** The end of a turn that began with a timer of the host. */
    void (*turn_ended)(struct mu_rpc_host *h);
};

struct mu_rpc_host_config {
    struct mu_rpc_config rpc; /* terms, and the seed; role and ids are set by the host */
    size_t sessions_max;
    uint32_t eof_grace_ms; /* of a session whose client closed its connection without goodbye */
};

struct mu_rpc_host {
    struct mu_env *env;
    struct mu_rpc_host_config config;
    const struct mu_rpc_host_ops *ops;
    struct mu_map sessions;
    struct mu_list list;
    struct mu_timer pulse_timer; /* while there are sessions */
    mu_mono_t pulse;             /* when we were last known to be awake */
    uint8_t incarnation[MU_RPC_SESSION_LEN];
    uint64_t frames_in; /* of sessions that are over */
    uint64_t frames_out;
};

/** Takes no memory. The config's borrowed parts are borrowed for the host's life. */
void mu_rpc_host_init(struct mu_rpc_host *h, struct mu_env *env,
                      const struct mu_rpc_host_config *config, const struct mu_rpc_host_ops *ops);
/** Disarms its timer; the sessions stay until they are ended. */
void mu_rpc_host_stop(struct mu_rpc_host *h);
/** Ends what sessions are left. */
void mu_rpc_host_end_all(struct mu_rpc_host *h, const char *why);
/** After mu_rpc_host_stop() and the end of every session. */
void mu_rpc_host_fini(struct mu_rpc_host *h);
/** Tells all clients that we are about to leave. */
void mu_rpc_host_drain(struct mu_rpc_host *h, const char *why);
/**
 * The beginning of every timer's callback, before anybody is found to be late: if it was us who
 * were away (stopped, suspended, busy), the sessions are forgiven that time.
 */
void mu_rpc_host_feel_pulse(struct mu_rpc_host *h);
/** Sequenced frames of all sessions that ever were. */
void mu_rpc_host_frames(const struct mu_rpc_host *h, uint64_t *ret_in, uint64_t *ret_out);

/* --- connections ------------------------------------------------------------------------------ */

/** A connection that begins with the magic, which is still to be given to it. */
void mu_rpc_hosted_init(struct mu_rpc_hosted *c, struct mu_rpc_host *h, struct mu_conn *conn);
/** Returns how many bytes were used: all of them, unless the host is busy. */
size_t mu_rpc_hosted_input(struct mu_rpc_hosted *c, struct mu_span in);
/** Where the next bytes should lie. Only for hosts that are never busy. */
struct mu_space mu_rpc_hosted_room(struct mu_rpc_hosted *c);
/** Bytes for the connection. */
struct mu_span mu_rpc_hosted_output(const struct mu_rpc_hosted *c);
/** The same in up to `cap` spans; returns how many. */
size_t mu_rpc_hosted_outputv(const struct mu_rpc_hosted *c, struct mu_span *spans, size_t cap);
void mu_rpc_hosted_sent(struct mu_rpc_hosted *c, size_t n);
/** All that could be sent was: calls that waited for that are served on the next turn. */
void mu_rpc_hosted_flushed(struct mu_rpc_hosted *c);
/** The client has closed its end, without goodbye. The owner closes the connection. */
void mu_rpc_hosted_eof(struct mu_rpc_hosted *c);
/** The connection is gone, or being closed. Twice is harmless. */
void mu_rpc_hosted_release(struct mu_rpc_hosted *c);

/* --- sessions --------------------------------------------------------------------------------- */

/** The machine was given something to send or to do. */
void mu_rpc_session_touch(struct mu_rpc_session *session);
/** Handles what the machine has to say, re-arms its timer. May end the session. */
void mu_rpc_session_pump(struct mu_rpc_session *session);
/** Ends it; its link, if any, is closed. */
void mu_rpc_session_end(struct mu_rpc_session *session, const char *why);

#endif

/*
 * The dialling end of a native session, with everything around it: connecting, connecting again
 * with growing pauses, taking the session up, giving up. Whatever speaks the native wire to a
 * server embeds one and is told what the machine has to say.
 *
 *     mu_rpc_client_init(&c, env, &config, &events);        dials at once
 *     mu_rpc_client_call(&c, method, payload, timeout, &id);   reply(context, id, ...) follows once
 *     mu_rpc_client_close(&c);                               closed(context) follows
 *
 * A connection that is given up while the session goes on is reset, never ended in order: to the
 * server an orderly end without a goodbye is the death of this process.
 *
 * When the owner is called. No callback runs inside a function of this header, nor in the middle of
 * anything that the client does: all callbacks come from the tail of one pump, which runs after
 * whatever happened. First the machine takes bytes up to the first thing that it has to say, and is
 * at rest; then the client does what follows for itself; last it tells its owner, and the pump
 * begins anew with the rest of the bytes. So from inside a callback anything may be called, and
 * what the owner does there (it cancels, grants credit, says where the next item goes) counts for
 * the next thing that it is told.
 */
#ifndef MU_RPC_CLIENT_H
#define MU_RPC_CLIENT_H

#include "core/env.h"
#include "core/err.h"
#include "proto/rpc/rpc.h"

struct mu_rpc_client_config {
    struct mu_addr addr;
    struct mu_addr near; /* of the same peer, if it is on this host: tried first. kind 0: none */
    const char *name;    /* ours, in the server's logs; borrowed for the client's life */
    uint32_t connect_ms; /* how long the first connection may take, retries included; 0: for ever */
    uint32_t reconnect_ms; /* how long a lost one may stay lost before `gave_up`; 0: for ever */
    uint32_t probe_ms;     /* how long a peer may keep silent after our first greeting */
    uint32_t greetings;    /* first greetings in a row that may end without an answer */
    uint32_t name_ms;      /* how long the host's name may be unknown before `failed`, until there
                              was a first connection; 0: that is like any other trouble */
    bool try_once; /* `failed` as soon as nobody takes the first connection, in connect_ms */
    /* Our wishes for the session, as in struct mu_rpc_config; 0: its defaults. */
    uint32_t grace_ms;
    uint32_t beat_ms;
    uint32_t dead_ms;
    const struct mu_rpc_config
        *terms;                /* windows and limits; NULL: the defaults. Lent for _init() */
    struct mu_span credential; /* borrowed for the client's life */
};

struct mu_rpc_client_events {
    /** Welcomed for the first time: calls may be made. */
    void (*ready)(void *context);
    /** Not a muster server: it hung up on our greeting, or (`silent`) did not answer. Once. */
    void (*mismatch)(void *context, bool silent);
    /** The first connection could not be had, or we were refused. Once. */
    void (*failed)(void *context, int status, const char *text);
    /** A try to connect has failed, or (`was_open`) a connection was lost, and it goes on trying.
     * Each time. May be NULL. */
    void (*trouble)(void *context, int status, bool was_open);
    /** No connection for reconnect_ms. It goes on trying; what the user waits for should end. */
    void (*gave_up)(void *context, int status, const char *text);
    /** The end of a call. `payload` is lent; with a status other than 0 it is the error's text. */
    void (*reply)(void *context, uint64_t id, int status, struct mu_span payload);
    /**
     * An item of a call's stream, lent; it counts as consumed when this returns. NULL: for who
     * calls no streams.
     */
    void (*item)(void *context, uint64_t id, struct mu_span payload);
    /**
     * For owners that serve calls as well, or else NULL: all that the machine has to say, in place
     * of `reply` and `item`. The owner speaks to the machine (`rpc`) itself, consumes items and
     * replies; mu_rpc_client_flush() afterwards, unless it is inside a callback. WELCOMED and
     * REFUSED come after their own callbacks, BYE when the session is over.
     */
    void (*event)(void *context, const struct mu_rpc_event *event);
    /**
     * The end of a turn in which anything happened, once `ready` was told: the owner does what it
     * put off, and tries again what got MUSTER_EAGAIN. May be NULL.
     */
    void (*turn_ended)(void *context);
    /** The last one, after mu_rpc_client_close(). The memory is the owner's again. */
    void (*closed)(void *context);
    void *context;
};

enum mu_rpc_client_link {
    MU_RPC_CLIENT_DOWN = 0, /* waiting for the time to dial again */
    MU_RPC_CLIENT_DIALLING,
    MU_RPC_CLIENT_UP,      /* connected; greeted once mu_rpc_linked() */
    MU_RPC_CLIENT_CLOSING, /* `closed` of the connection will come */
};

/* What the owner is told besides what the machine has to say. */
enum mu_rpc_client_news {
    MU_RPC_CLIENT_NO_NEWS = 0,
    MU_RPC_CLIENT_MISMATCH,
    MU_RPC_CLIENT_SILENT, /* likewise */
    MU_RPC_CLIENT_FAILED,
    MU_RPC_CLIENT_GAVE_UP,
};

struct mu_rpc_client {
    struct mu_env *env;
    struct mu_rpc_client_config config;
    struct mu_rpc_client_events events;
    int last_error; /* of dialling or of the connection; 0 while all is well */
    bool ready;     /* was welcomed once */
    char addr[MU_ADDR_HOST_MAX + 16];
    struct mu_rpc rpc;
    /* private from here */
    struct mu_rpc_config terms;
    struct mu_conn conn;
    enum mu_rpc_client_link link;
    bool blocked; /* the environment takes no more output */
    bool closing;
    bool silent;       /* the other end did not answer on this link until it was given up */
    bool reported;     /* `mismatch` or `failed` was told: nothing more is done */
    bool near_failed;  /* nobody is there, or not any more */
    bool dialled_near; /* the connection that is, or is being made */
    bool starved;      /* the machine found no memory for what is due: not at once again */
    bool broken;       /* the server broke the session: another is begun when the owner was told */
    bool ready_owed;   /* `ready` was not told yet */
    int trouble;       /* was not told yet; 0: none */
    bool trouble_open; /* the connection was there */
    mu_mono_t unknown_since; /* the host's name; MU_MONO_NEVER: it is known, or was not asked for */
    enum mu_rpc_client_news news;
    int news_status;
    struct mu_errmsg news_text;
    struct mu_timer timer;
    mu_mono_t dial_at;
    mu_mono_t dialled_at;
    mu_mono_t welcomed_at; /* on this link; MU_MONO_NEVER: not yet */
    mu_mono_t probe_at;
    mu_mono_t give_up_at;
    mu_mono_t linger_at; /* closing: when the server has had its time to read our goodbye */
    uint32_t attempts;
    uint32_t unanswered; /* greetings */
    uint32_t not_tls;    /* servers that did not answer ours */
};

/** Dials at once. MUSTER_EINVAL. */
int mu_rpc_client_init(struct mu_rpc_client *c, struct mu_env *env,
                       const struct mu_rpc_client_config *config,
                       const struct mu_rpc_client_events *events);
/** Errors as mu_rpc_call(). Before `ready`, and in the replies of a session that the server broke:
 * MUSTER_EAGAIN. */
int mu_rpc_client_call(struct mu_rpc_client *c, struct mu_span method, struct mu_span payload,
                       uint32_t timeout_ms, uint64_t *ret_id);
/** Sends an item of a call. Errors as mu_rpc_item(): after MUSTER_EAGAIN, `turn_ended` follows. */
int mu_rpc_client_item(struct mu_rpc_client *c, uint64_t id, struct mu_span payload);
/** The call has no more items from us. Errors as mu_rpc_end(). */
int mu_rpc_client_end(struct mu_rpc_client *c, uint64_t id);
/** Its reply (MUSTER_ECANCELED) follows. MUSTER_ENOENT, MUSTER_ENOMEM. */
int mu_rpc_client_cancel(struct mu_rpc_client *c, uint64_t id);
/**
 * Has `turn_ended` called on the next turn, so that what is asked for on this one goes out at once.
 */
void mu_rpc_client_run_soon(struct mu_rpc_client *c);
/** Sends what the machine has to send, now, and looks after its deadline. */
void mu_rpc_client_flush(struct mu_rpc_client *c);
/** Says goodbye; calls that are out end with MUSTER_ECLOSED; `closed` follows. */
void mu_rpc_client_close(struct mu_rpc_client *c);
/** Whether there is a connection, and it was greeted. */
bool mu_rpc_client_linked(const struct mu_rpc_client *c);
/** When the present connection was welcomed, or, until it is, dialled. MU_MONO_NEVER: there is
 * none. */
static inline mu_mono_t mu_rpc_client_since(const struct mu_rpc_client *c)
{
    bool tried = c->link == MU_RPC_CLIENT_DIALLING || c->link == MU_RPC_CLIENT_UP;

    return !tried                                  ? MU_MONO_NEVER
           : c->welcomed_at.ns != MU_MONO_NEVER.ns ? c->welcomed_at
                                                   : c->dialled_at;
}
/** Whether the connection is that to the nearer address. */
static inline bool mu_rpc_client_is_near(const struct mu_rpc_client *c)
{
    return c->link == MU_RPC_CLIENT_UP && c->dialled_near;
}
/** Somebody waits for a connection from now on: `gave_up` comes if there is none in time. */
void mu_rpc_client_need(struct mu_rpc_client *c);

/** For an address, and for how many seconds its name was asked for. */
#define MU_RPC_CLIENT_UNKNOWN_TEXT                                                                 \
    "cannot connect to %.100s: the host name is unknown (asked for %u s); check its spelling and " \
    "this host's DNS"

/** How long to wait before dialling again: doubles from 20 ms to 1 s, with jitter. */
uint32_t mu_rpc_client_backoff_ms(uint32_t *attempt, struct mu_env *env);

#endif

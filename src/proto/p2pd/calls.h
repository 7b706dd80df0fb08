/*
 * The unary calls of a daemon: those that its clients make to peers, and those of peers that its
 * clients handle. A call is a stream between two daemons with one message each way, whole. A
 * machine: it sees messages, bytes and times. service/p2pd/call.c drives it and has the streams.
 *
 * A user is a client with a persistent connection. A call belongs to a user by its id: `calls` are
 * those that the user makes, `served` those that it was asked to handle.
 *
 *     of a user:  READING --the answer is here--> WHOLE --the user is told--> LEAVING
 *     of a peer:  READING --the request is here--> WHOLE --a user is told--> ASKED
 *                 ASKED --the user answers--> ANSWERING --all is written--> LEAVING
 *     either:     LEAVING --the stream is gone, or linger_ms--> OVER
 *                 WHOLE of a user, told, but the peer has not taken the whole request --> OVER
 *                 READING, WHOLE, ASKED, ANSWERING --see below--> OVER
 *
 * What ends a call before its time, and who hears of it:
 *
 *     the user cancels its call                    the user hears CANCEL, the peer a reset
 *     the stream fails, or the peer breaks a rule  the user hears DAEMON_ERROR; if it was ASKED to
 *                                                  handle the call, CANCEL
 *     the user is gone                             the peer hears a reset
 *     nobody handles the call, or request_ms pass
 *     before a user is told of it                  the peer hears a reset
 *     the peer takes no byte of its answer for
 *     request_ms                                   the peer hears a reset
 *
 * So each call of a user's is answered once, unless the user is gone; a user that was asked either
 * answers or hears CANCEL; and a peer that calls hears an answer or a reset.
 *
 * Memory is bounded. A message of a peer's that is longer than `free_bytes` must be granted its
 * whole length of `held_bytes_max` before the peer may send more than its first window; those that
 * have to wait for it are granted it in turn. A user with more than `high_bytes` unsent is told of
 * no further message until there is room.
 *
 *     events:  mu_p2pd_user_...()     what clients say, and that they have read
 *              mu_p2pd_unary_...()    what happens to the stream of a call
 *     then:    while (mu_p2pd_calls_next(&calls, now, &action)) ...
 *              and again at mu_p2pd_calls_deadline()
 *
 * The driver owns the memory of users and calls; that of a call until the action OVER.
 */
#ifndef MU_P2PD_CALLS_H
#define MU_P2PD_CALLS_H

#include "codec/peer/id.h"
#include "core/heap.h"
#include "core/prng.h"
#include "core/time.h"
#include "proto/p2pd/conn.h"
#include "proto/p2pd/names.h"

struct mu_p2pd_calls_config {
    size_t msg_len_max;      /* of a message */
    size_t name_len_max;     /* of a protocol */
    size_t free_bytes;       /* the window that a stream has anyway */
    size_t high_bytes;       /* over so much unsent, a user is told of no message of a peer's */
    uint32_t calls_max;      /* both ways, those that are LEAVING included */
    uint32_t request_ms;     /* from a peer's stream until a user has the whole request; and how
                                long a peer may take no byte of its answer */
    uint32_t linger_ms;      /* LEAVING */
    uint64_t held_bytes_max; /* of messages that are not whole yet or not taken */
    uint64_t seed;           /* of maps: not to be guessed by peers */
};

enum mu_p2pd_unary_state {
    MU_P2PD_UNARY_READING = 1,
    MU_P2PD_UNARY_WHOLE,
    MU_P2PD_UNARY_ASKED,
    MU_P2PD_UNARY_ANSWERING,
    MU_P2PD_UNARY_LEAVING,
    MU_P2PD_UNARY_OVER,
};

struct mu_p2pd_unary {
    /* To be read. */
    enum mu_p2pd_unary_state state;
    bool ours;                 /* of a user */
    struct mu_p2pd_user *user; /* that makes it or was asked; NULL: nobody (any more) */
    struct mu_peer_id peer;
    struct mu_span name; /* of the protocol; lent by the driver */
    /* private from here */
    struct mu_p2pd_calls *calls;
    bool has_stream;
    unsigned todo;           /* actions that are due, as bits */
    struct mu_list due;      /* calls->due */
    struct mu_list link;     /* calls->list */
    struct mu_list waiting;  /* user->waiting: there is no room for its message */
    struct mu_list starving; /* calls->starving: its message is not granted */
    struct mu_heap_node timer;
    struct mu_map_node by_id; /* user->calls or user->served */
    uint8_t id[MU_P2PD_CALL_ID_LEN];
    struct mu_buf in;
    size_t need;       /* how long the message in `in` is going to be; 0: not known */
    size_t head;       /* of that, its length's own */
    size_t unread;     /* of `in`, that the peer was not told to be dealt with */
    size_t consumed;   /* for the action CONSUMED */
    uint64_t reserved; /* of calls->held_bytes */
    struct mu_buf out;
};

struct mu_p2pd_user {
    struct mu_p2pd_conn *conn; /* what it is told is in its output */
    uint64_t held_bytes;       /* of its calls, that peers have not taken */
    /* private from here */
    struct mu_p2pd_calls *all;
    bool failed; /* it could not be told something: CLOSE */
    unsigned todo;
    struct mu_list due; /* all->due_users */
    struct mu_map calls;
    struct mu_map served;
    struct mu_list waiting; /* calls whose message it has no room for */
};

struct mu_p2pd_stats {
    /* The driver's. */
    uint64_t clients, persistent; /* connections, now */
    uint64_t streams;             /* piped, now */
    /* The machine's. */
    uint64_t handlers;                   /* of unary calls, now */
    uint64_t stream_handlers;            /* addresses that streams are brought to, now */
    uint64_t calls, served;              /* unary, now: of clients; of peers */
    uint64_t unary;                      /* streams of such calls, with those that are done */
    uint64_t calls_ever, served_ever;    /* and all that ever were */
    uint64_t canceled, failed, answered; /* ever, of clients' calls */
    uint64_t held_bytes;
};

struct mu_p2pd_calls {
    struct mu_p2pd_calls_config config;
    struct mu_p2pd_names names;
    struct mu_p2pd_stats stats;
    /* private from here */
    struct mu_prng prng;
    struct mu_list list;
    struct mu_list due;
    struct mu_list due_users;
    struct mu_list starving;
    struct mu_heap timers;
};

void mu_p2pd_calls_init(struct mu_p2pd_calls *calls, const struct mu_p2pd_calls_config *config);
/** All calls go to OVER, all names are gone: actions follow. For the end. */
void mu_p2pd_calls_clear(struct mu_p2pd_calls *calls);
/** After mu_p2pd_calls_clear() and its actions. */
void mu_p2pd_calls_fini(struct mu_p2pd_calls *calls);

/* --- users ------------------------------------------------------------------------------------ */

/** `conn` is persistent, or becomes it before anything else happens here. */
void mu_p2pd_user_init(struct mu_p2pd_calls *calls, struct mu_p2pd_user *user,
                       struct mu_p2pd_conn *conn);
/** The client is gone, and its handlers and its calls with it. */
void mu_p2pd_user_leave(struct mu_p2pd_user *user);
/** After mu_p2pd_user_leave(). */
void mu_p2pd_user_fini(struct mu_p2pd_user *user);
/**
 * The user says `m`, a CALL_UNARY; `message` is all of it. `call` is memory for the call, or NULL:
 * there is none. `name` is m->name in memory that lives as long. False: it was refused, the user
 * is told why, and the memory stays the driver's.
 */
bool mu_p2pd_user_call(struct mu_p2pd_user *user, struct mu_p2pd_unary *call, struct mu_span name,
                       const struct mu_p2pd_call *m, struct mu_span message);
/** The user says another thing: UNARY_RESPONSE and CANCEL. Other kinds are ignored. */
void mu_p2pd_user_said(struct mu_p2pd_user *user, const struct mu_p2pd_call *m,
                       struct mu_span message);
/** A handler of the user's was added or removed, or (`error`) was not. */
void mu_p2pd_user_answer(struct mu_p2pd_user *user, struct mu_span id, const char *error);
/** Something of the output of its connection was sent. */
void mu_p2pd_user_sent(struct mu_p2pd_user *user);

/* --- streams ---------------------------------------------------------------------------------- */

/** `peer` opens a stream for a protocol of unary calls. False: there are as many as may be, and the
 * memory stays the driver's. */
bool mu_p2pd_unary_opened(struct mu_p2pd_calls *calls, struct mu_p2pd_unary *call, mu_mono_t now,
                          const struct mu_peer_id *peer, struct mu_span name);
void mu_p2pd_unary_heard(struct mu_p2pd_unary *call, struct mu_span bytes);
void mu_p2pd_unary_eof(struct mu_p2pd_unary *call);
void mu_p2pd_unary_writable(struct mu_p2pd_unary *call);
/** The answer to WRITE: how much the stream took. */
void mu_p2pd_unary_written(struct mu_p2pd_unary *call, size_t n);
/** The stream is gone. */
void mu_p2pd_unary_ended(struct mu_p2pd_unary *call, int status, const char *text);

/* --- actions ---------------------------------------------------------------------------------- */

enum mu_p2pd_action_type {
    MU_P2PD_ACTION_OPEN = 1, /* a stream to call->peer for call->name */
    MU_P2PD_ACTION_CONSUMED, /* the peer may send `len` bytes more */
    MU_P2PD_ACTION_WRITE,    /* `bytes`; then mu_p2pd_unary_written() */
    MU_P2PD_ACTION_END,      /* our side of the stream */
    MU_P2PD_ACTION_RESET,    /* the stream; nothing comes of it any more */
    MU_P2PD_ACTION_OVER,     /* the memory of `call` is the driver's again */
    MU_P2PD_ACTION_SEND,     /* there is output for `user`; then mu_p2pd_user_sent() */
    MU_P2PD_ACTION_RESUME,   /* `user` may be read from again, if nothing else forbids it */
    MU_P2PD_ACTION_CLOSE,    /* `user` cannot be told what it must be told */
    MU_P2PD_ACTION_UNSERVE,  /* `name` is gone; then mu_p2pd_name_free() */
};

struct mu_p2pd_action {
    enum mu_p2pd_action_type type;
    struct mu_p2pd_unary *call;
    struct mu_p2pd_user *user;
    struct mu_p2pd_name *name;
    struct mu_span bytes;
    size_t len;
};

/** What to do now. False: nothing, until something happens. */
bool mu_p2pd_calls_next(struct mu_p2pd_calls *calls, mu_mono_t now, struct mu_p2pd_action *ret);
mu_mono_t mu_p2pd_calls_deadline(const struct mu_p2pd_calls *calls);

#endif

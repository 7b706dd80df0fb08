/*
 * What the files of the store server share. Who does what:
 *
 *     server.c    life: start, drain, stop; the pump's tail (finish_turn)
 *     conn.c      connections: deciding the wire, moving bytes, dropping peers
 *     commit.c    the journal on its way to the disk, and the answers that wait for it
 *     session.c   native sessions: their calls, on top of wire/rpc_server.h
 *     calls.c     the store's operations as native calls
 *     lent.c      answers of these that share their values with the keyspace
 *     carrier.c   connections that are carried to another server
 *     hold_calls.c  keys that gateways may answer for, and changes that wait until they do not
 *     lend_calls.c  the same where this is a gateway itself
 *     status.c    how it stands, in words for people and programs
 *     gateway_serve.c    requests of both wires where the keys are elsewhere
 *     gateway_lease.c  a session's keys where another server has them
 *     rdzv_hub*.c       the rendezvous as native calls: see rdzv_hub.h
 *
 * A native call is dispatched by the name of its service. One that is not answered at once is a
 * struct mu_rpc_served in its session's table, embedded in what its service keeps of it.
 */
#ifndef MU_STORE_SERVER_INTERNAL_H
#define MU_STORE_SERVER_INTERNAL_H

#include "service/server/rdzv_hub.h"
#include "service/wire/rpc_server.h"
#include "service/page/status_text.h"
#include "service/store/exec.h"
#include "service/wire/carry.h"
#include "service/server/gateway.h"
#include "service/server/server.h"

/*
 * What is sent at once to whoever asked. Of longer answers the rest is sent in turns, one for each
 * turn of the loop, in which all those who have something coming take part.
 */
#define MU_STORE_AT_ONCE_BYTES ((size_t)256 << 10)
#define MU_STORE_TURN_BYTES    ((size_t)1024 << 10)
#define MU_STORE_SLICE_BYTES   ((size_t)512 << 10) /* of one connection */

enum mu_store_conn_kind {
    MU_STORE_CONN_NEW = 0, /* not a byte yet: a 1.13 client keeps such a second one for ever */
    MU_STORE_CONN_TORCH,
    MU_STORE_CONN_NATIVE,
    MU_STORE_CONN_CARRIED, /* to another server: carrier.c */
};

struct mu_store_conn {
    struct mu_rpc_conn base;
    struct mu_ks_owner owner;
    struct mu_store_server *server;
    struct mu_list held;        /* server->held_conns: its answers wait for the disk */
    struct mu_list stalled;     /* server->stalled: its requests wait for the disk */
    struct mu_list in_turn;     /* server->in_turn: has more to send than can be sent at once */
    size_t ready;               /* bytes of the output that may be sent, */
    size_t next;                /* and that may once the commit in flight is done */
    size_t memory;              /* counted in server->buffer_bytes */
    mu_mono_t moved;            /* when some of its output went, or, with none, its input came */
    uint64_t wrote;             /* torch: the batch with the last of its changes */
    struct mu_store_peer *peer; /* torch, keys elsewhere: its requests */
    struct mu_store_carried *carried;
    enum mu_store_conn_kind kind;
    bool eof;   /* the peer will send no more, or nothing more is taken from it */
    bool ended; /* it broke a rule: it gets the answers it is owed, and then the end */
    struct mu_torch_server torch;
};

struct mu_store_session {
    struct mu_rpc_session base;
    struct mu_store_server *server;
    uint64_t lease;                /* of the keys that live as long as the session; 0: none yet */
    struct mu_gateway_lease *gate; /* the same, where the keys are with another server */
    size_t backlog;                /* bytes in the backlogs of its watches */
    size_t joins;                  /* of its calls, those that are memberships of a rendezvous */
    size_t memory;                 /* counted in server->buffer_bytes */
    /* Held keys: see hold_calls.c. */
    struct mu_holder *holder; /* a gateway's; NULL: it holds nothing */
    bool lends;               /* others may hold what it holds */
    uint64_t era;             /* at a gateway: of the session in which it was lent what it holds */
    struct mu_list unsure;    /* server->unsure: it was not told that it may hold keys */
    uint64_t hold_id;         /* the call whose items ask keys back */
    struct mu_buf recalls;    /* keys that it was not asked back yet, as they are sent */
    size_t recall_count;
    struct mu_list recalled;      /* server->recalled: there are some */
    struct mu_ks_owner owner;     /* of the writer */
    struct mu_hold_writer writer; /* the first of `deferred` */
    struct mu_list deferred;      /* its calls, from one on that waits for keys to be given back */
    struct mu_gateway_client client; /* where the keys are with another server */
};

/* A store's call that could not be answered at once: a wait, a pop, a watch. */
struct mu_store_call {
    struct mu_rpc_served base;
    struct mu_store_exec exec;
    struct mu_store_sink sink;
    struct mu_buf backlog; /* watch: items without credit, each behind a u32 length */
};

/* An answer of a native call that waits for the disk. */
struct mu_store_held {
    struct mu_list link;
    struct mu_store_session *session;
    uint64_t id;
    uint64_t batch;
    int status;
    bool item;
    bool wrote;               /* it tells of a change */
    struct mu_rpc_lent *lent; /* in the place of `data` */
    size_t len;
    uint8_t data[];
};

struct mu_store_server {
    struct mu_env *env;
    struct mu_store_server_config config;
    struct mu_keyspace ks; /* empty where the keys are elsewhere */
    struct mu_holds holds; /* who answers for them */
    bool grants;           /* gateways may do so */
    struct mu_list recalled;
    struct mu_list recalling; /* keys that the other server wants back: lend_calls.c */
    struct mu_list unsure;    /* sessions that would hold keys, if the other server lets us lend */
    struct mu_list prefixes;  /* of keys to delete once they are given back: struct prefix_job */
    struct mu_executor executor;
    struct mu_gateway *backing; /* NULL: the keys are in the keyspace */
    bool backing_closing;
    struct mu_carry_env *carry;       /* `env`, with connections that are carried to us */
    struct mu_store_carrier *carrier; /* NULL: nobody wants to be carried */
    struct mu_rdzv_hub hub;
    struct mu_rpc_server wire;
    struct mu_rpc_listener listener;
    struct mu_rpc_listener more[MU_STORE_SERVER_MORE]; /* mu_store_server_listen() */
    size_t more_count;
    struct mu_timer timer; /* leases, and the interval of the disk */
    struct mu_timer drain_timer;
    struct mu_timer turn_timer; /* fires at once: the next turn for those in_turn */
    struct mu_list in_turn;
    struct mu_list stalled;
    struct mu_buf scratch; /* a reply being made */
    size_t buffer_bytes;
    struct mu_store_server_stats stats;
    struct mu_status_events events;
    /* the disk */
    struct mu_work commit;
    struct mu_buf commit_journal;
    uint64_t commit_revision;
    int commit_status;
    struct mu_errmsg commit_errmsg;
    bool committing;
    bool disk_full; /* the piece that is being committed did not fit, */
    struct mu_errmsg full_why;
    uint64_t batch_started;
    uint64_t batch_done;
    mu_mono_t next_commit;  /* SYNC_INTERVAL: for what was changed since the last one began */
    mu_mono_t commit_again; /* when to try once more to begin one that found no memory */
    struct mu_list held_conns;
    struct mu_list held_replies;
    size_t held_bytes; /* in held_replies; counted in buffer_bytes */
    /* the end */
    bool draining;
    bool stopping; /* connections are being closed; `stopped` follows the last one */
    bool stopped;
    int status;
    struct mu_errmsg why;
    /* peers' lines in the log are limited */
    mu_mono_t log_period;
    uint32_t log_lines;
    uint64_t log_suppressed;
};

/* server.c */
/** The tail of every callback: tells waiters and watchers, starts a commit, sends, re-arms. */
void mu_store_server_finish_turn(struct mu_store_server *s);
/** The disk failed or the like: every connection is dropped, `stopped` follows. */
void mu_store_server_fail(struct mu_store_server *s, int status, const char *why);
/** Says why a peer lost its connection; a flood of such lines is counted instead of written. */
void mu_store_server_log_peer(struct mu_store_server *s, const char *peer, const char *why);

/* status.c */
/** Answers MU_STORE_METHOD_CLOCK. */
void mu_store_clock_start(struct mu_store_session *session, const struct mu_rpc_event *event);

/* conn.c */
/** What is spoken on the port. */
extern const struct mu_rpc_protocol mu_store_protocol;
struct mu_rpc_conn *mu_store_conn_new(struct mu_rpc_server *wire);
/** Sends what may be sent. */
void mu_store_conn_flush(struct mu_rpc_conn *base);
/** Lets go of what the connection holds. */
void mu_store_conn_release(struct mu_rpc_conn *base);
/** The timer's: sends some to those whose turn it is. */
void mu_store_conn_turn(struct mu_timer *timer);
/** Output of a torch connection, all of it, held or not. */
size_t mu_store_conn_output_len(const struct mu_store_conn *c);
/** A torch connection broke a rule, or cannot be answered. */
void mu_store_conn_end_torch(struct mu_store_conn *c);
/** Counts a torch connection's buffers anew. */
void mu_store_conn_account(struct mu_store_conn *c);
/** Counts the buffers of a peer anew. Where all together are over the limit, who has had the most
 * for longest without a move loses its connection at the end of the turn, whoever came last. */
void mu_store_account(struct mu_store_server *s, size_t *counted, size_t now);

/* commit.c */
/** Whether answers must wait for the disk at this moment. */
bool mu_store_commit_gates(const struct mu_store_server *s);
/** Whether so much waits for the disk that no more requests should be read or served. */
bool mu_store_commit_saturated(const struct mu_store_server *s);
/** Called at the end of a turn: starts a commit if one is due. */
void mu_store_commit_pump(struct mu_store_server *s);
/** Decides how much of a torch connection's output may be sent now. */
void mu_store_commit_mark(struct mu_store_conn *c);
mu_mono_t mu_store_commit_deadline(const struct mu_store_server *s);
/** Nothing is on its way to the disk or waits for it. */
bool mu_store_commit_idle(const struct mu_store_server *s);
/** Notes that a torch connection may have changed something since the journal was this long. */
void mu_store_commit_note(struct mu_store_conn *c, size_t journal_len);
/** Answers a native call, or sends an item of it, now or when the disk has caught up. `wrote`: it
 * says that something was changed. */
void mu_store_answer(struct mu_store_session *session, uint64_t id, bool item, bool wrote,
                     int status, struct mu_span payload);
/** Forgets what is held for a session, or (NULL) for all. */
void mu_store_commit_forget(struct mu_store_server *s, const struct mu_store_session *session);

/** Answers a native call likewise, with what is sent from where it lies; taken. */
void mu_store_answer_lent(struct mu_store_session *session, uint64_t id, struct mu_rpc_lent *lent);

/* gateway_serve.c */
/** Of a server whose keys are elsewhere: its calls are executed there. */
struct mu_executor mu_executor_backed(void);
/** A torch connection begins. MUSTER_ENOMEM. */
int mu_store_backed_open(struct mu_store_conn *c);
/** Passes on the requests that were read. An error has poisoned the connection's machine. */
int mu_store_backed_take(struct mu_store_conn *c);
/** A torch connection ends, before its machine does. What was asked for is done nevertheless. */
void mu_store_backed_release(struct mu_store_conn *c);

/* gateway_lease.c */
/** The lease of a session's keys with another server; granted if there is none. MUSTER_ENOMEM. */
int mu_store_gate_lease(struct mu_store_session *session, uint64_t *ret_lease);
/** The session has ended. */
void mu_store_gate_lease_end(struct mu_store_session *session);

/* session.c */
/** The server's end of native sessions. */
extern const struct mu_rpc_server_ops mu_store_wire_ops;
/** Sends an answer that mu_store_answer_lent() let through. */
void mu_store_session_lend(struct mu_store_session *session, uint64_t id, struct mu_rpc_lent *lent);
/** Sends an answer that mu_store_answer() let through. */
void mu_store_session_send(struct mu_store_session *session, uint64_t id, bool item, int status,
                           struct mu_span payload);
/** An answer, or an item, found no memory: the call ends, and the client learns that when it can.
 */
void mu_store_session_fail(struct mu_store_session *session, uint64_t id, bool item);
/** The session of a call. */
struct mu_store_session *mu_store_session_of(const struct mu_rpc_served *call);

/* lent.c */
/** An answer whose large values are held where they are. NULL: it has none, or there is no memory
 * for that, and it is to be copied. */
struct mu_rpc_lent *mu_store_lent_new(const struct mu_store_reply *reply);

/* hold_calls.c */
/** Starts to grant keys, if the server does that. */
void mu_store_holds_init(struct mu_store_server *s);
void mu_store_holds_fini(struct mu_store_server *s);
/** A call: one of the store's, or one about held keys. All of a session's take effect in order. */
void mu_store_holds_start(struct mu_store_session *session, const struct mu_rpc_event *event);
/** Asks keys back, and goes on with changes that waited for them. At the end of a turn. */
void mu_store_holds_pump(struct mu_store_server *s);
/** Whether a native call may change its keys now. False: session->writer waits. MUSTER_ENOMEM goes
 * to `*ret_err`. */
bool mu_store_holds_may(struct mu_store_session *session, const struct mu_store_request *q,
                        int *ret_err);
/** The session is over. */
void mu_store_holds_leave(struct mu_store_session *session);
/** Deletes all keys with this prefix, now or when they were given back. */
void mu_store_holds_delete(void *server, struct mu_span prefix);

/** Starts the lease of the session's holder again, by a call that came then; 0: not now, or the
 * call is old: its gateway counts from there, and may be dead by now. */
uint32_t mu_store_holds_renew(struct mu_store_session *session, mu_mono_t asked);
/** Whether keys may be held through this gateway is known now: 0, or why not. */
void mu_store_holds_lends(void *server, int status);

/* lend_calls.c */
/** At a gateway: when what a session is lent must be over; 0: it is lent no longer. */
mu_mono_t mu_store_lend_until(struct mu_store_session *session);
/** A fetch at a gateway. */
void mu_store_lend_fetch(struct mu_store_session *session, uint64_t id, struct mu_span payload);
/** Keys that the other server wants back. False: nobody holds them through this gateway. */
bool mu_store_lend_recalled(void *server, struct mu_span payload);
void mu_store_lend_fini(struct mu_store_server *s);

/* carrier.c */
/** Whether a connection that begins so wants to be carried. */
bool mu_store_carry_sniff(struct mu_span in);
/** NULL, or why it cannot be. */
const char *mu_store_carry_begin(struct mu_store_conn *c);
size_t mu_store_carry_input(struct mu_store_conn *c, struct mu_span in);
size_t mu_store_carry_output_len(const struct mu_store_conn *c);
size_t mu_store_carry_output(const struct mu_store_conn *c, struct mu_span *spans, size_t cap);
void mu_store_carry_sent(struct mu_store_conn *c, size_t n);
/** The server has closed it, and all that came before is sent. */
bool mu_store_carry_is_over(const struct mu_store_conn *c);
void mu_store_carry_eof(struct mu_store_conn *c);
void mu_store_carry_release(struct mu_store_conn *c);
/** Ends the session by which connections are carried. False: its end follows on a later turn. */
bool mu_store_carrier_close(struct mu_store_server *s);
/** How many connections are carried now. */
size_t mu_store_carrier_count(const struct mu_store_server *s);

/* calls.c */
/** Executes a call. False: keys that it changes have to be given back first; session->writer waits
 * for them, and nothing has happened. */
bool mu_store_calls_start(struct mu_store_session *session, const struct mu_rpc_event *event);
/** Whether items of the call wait, so that a new one must wait behind them. */
bool mu_store_calls_waiting(struct mu_store_session *session, uint64_t id);
/** An item could not be sent for want of credit: kept, or the watch ends. */
void mu_store_calls_backlog(struct mu_store_session *session, uint64_t id, struct mu_span payload);

#endif

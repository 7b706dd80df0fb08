/*
 * Inside the engine for PyTorch's protocol. Three ideas, a file each:
 *
 *   torch_client.c       the store: which generation, when to dial, what goes on which connection
 *   torch_client_conn.c  a connection: a machine and the steps that are in flight on it
 *   torch_client_task.c  an operation: its steps, and the text of its answer or its timeout
 *
 * A step is one request on the wire. Steps that do not block share the main connection, in order;
 * each one that blocks has a connection of its own for as long as it does, because the servers
 * answer later requests ahead of a pending WAIT.
 */
#ifndef MU_STORE_TORCH_H
#define MU_STORE_TORCH_H

#include "core/addr.h"
#include "proto/store/torch_client.h"
#include "service/store/engine.h"

struct torch_store;
struct torch_conn;
struct torch_task;

#define MU_TORCH_MISSING_NAMED 16 /* keys that a timeout names, and checks at a time */

struct torch_step {
    struct mu_list link;     /* of a queue of the store, or conn->steps once sent */
    struct mu_list of_task;  /* of task->steps */
    struct torch_task *task; /* NULL: the answer is not wanted any more */
    struct torch_conn *conn; /* NULL: not sent */
    struct mu_store_request request;
    size_t index; /* which key, where an operation takes a step for each */
};

enum torch_conn_state {
    TORCH_CONN_DIALLING = 1,
    TORCH_CONN_GREETING, /* connected; not known yet whether it is a store of our generation */
    TORCH_CONN_UP,
    TORCH_CONN_CLOSING, /* `closed` will come; the store has forgotten it */
};

struct torch_conn {
    struct mu_conn conn;
    struct torch_store *store;
    struct mu_list link; /* store->conns */
    struct mu_list steps;
    struct mu_timer timer; /* greeting: silent; canceling: no answer; idle: not needed */
    struct mu_torch_client machine;
    enum torch_conn_state state;
    bool has_machine;
    bool blocked; /* the environment takes no more output */
};

enum torch_phase {
    TORCH_TASK_RUNNING = 0,
    TORCH_TASK_CANCELING,  /* out of time; its blocking step is being canceled */
    TORCH_TASK_EXPLAINING, /* out of time; asks which keys are missing */
};

/* A submitted op. */
struct torch_task {
    struct mu_list link; /* store->incoming, then store->tasks */
    struct mu_list steps;
    struct mu_store_op *op;
    struct torch_store *store;
    enum torch_phase phase;
    bool waits;             /* counts in store->waits */
    size_t next;            /* a step for each key: the next one to start, */
    size_t under_way;       /* and how many have no answer */
    struct mu_span *values; /* composed multi_get: copies, */
    size_t value_count;     /* as many as keys; the op may be gone before them */
    uint32_t tries;         /* composed append */
    struct mu_buf text;     /* composed append: what is expected, then the piece */
    struct mu_span swap[2]; /* composed append: expected, desired */
    size_t missing[MU_TORCH_MISSING_NAMED];
    size_t missing_count;
};

/* When to try again to connect, and until when. */
struct torch_dialler {
    mu_mono_t at;
    mu_mono_t give_up_at;
    uint32_t attempts;
};

struct torch_store {
    struct mu_store base;
    struct mu_store_tcp_config config;
    struct mu_store_engine_events events;
    enum mu_torch_generation generation; /* the one that is spoken, or tried */
    uint32_t probes;                     /* that failed for this generation, in a row */
    struct torch_conn *main;             /* NULL: no connection */
    struct mu_list conns;                /* all, also those that are closing */
    struct torch_dialler main_dialler;
    struct torch_dialler own_dialler; /* of connections for steps that block */
    struct mu_timer timer;
    int last_error;          /* of dialling or of a connection */
    mu_mono_t unknown_since; /* the host's name; MU_MONO_NEVER: it is known */
    bool ready;
    bool reported; /* `mismatch` or `failed` was called: nothing more is done */
    bool closing;
    size_t waits;            /* tasks with a step that blocks */
    struct mu_list incoming; /* tasks that have not begun */
    struct mu_list tasks;
    struct mu_list main_queue; /* steps */
    struct mu_list own_queue;  /* steps that block */
    char addr[MU_ADDR_HOST_MAX + 16];
};

/* --- torch_client.c ----------------------------------------------------------------------------
 * */

/** To be called after anything happened: does what can be done. May free the store, so it comes
 * last. */
void mu_torch_store_pump(struct torch_store *s);
/** Calls the pump on the next turn. */
void mu_torch_store_wake(struct torch_store *s);
void mu_torch_store_conn_up(struct torch_store *s, struct torch_conn *c);
/** An answer has come: the server is well. */
void mu_torch_store_conn_answered(struct torch_store *s, struct torch_conn *c);
/** The connection is gone, or useless. `was` says how far it came. */
void mu_torch_store_conn_lost(struct torch_store *s, struct torch_conn *c,
                              enum torch_conn_state was, int status);

/* --- torch_client_conn.c -----------------------------------------------------------------------
 * */

/** Dials, and adds the connection to the store's. MUSTER_ENOMEM, MUSTER_EINVAL. */
int mu_torch_conn_dial(struct torch_store *s, struct torch_conn **ret_conn);
/** Whether nothing is in flight on the connection and anything may be sent. */
bool mu_torch_conn_idle(const struct torch_conn *c);
/** Takes a step off its queue and sends it. As mu_torch_client_submit(): nothing changed on errors.
 */
int mu_torch_conn_send(struct torch_conn *c, struct torch_step *step);
/** Cancels the blocking step in flight; where that is impossible, drops the connection. */
void mu_torch_conn_cancel(struct torch_conn *c);
/** Closes it now. Steps in flight are queued again or their tasks end: the store is told. */
void mu_torch_conn_drop(struct torch_conn *c, int status);

/* --- torch_client_task.c -----------------------------------------------------------------------
 * */

/** Makes a task; it does not begin yet. NULL: no memory. */
struct torch_task *mu_torch_task_new(struct torch_store *s, struct mu_store_op *op);
void mu_torch_task_start(struct torch_task *t);
/** Ends the op; the task is freed. */
void mu_torch_task_end(struct torch_task *t, int status, const char *text);
/** Frees the task without ending the op. */
void mu_torch_task_abandon(struct torch_task *t);
/** Ends a task that waits for a connection: there will be none. */
void mu_torch_task_give_up(struct torch_task *t, const char *text);
/** A step has its answer (`reply` lent for the call). It has left its connection, and is freed
 * here. */
void mu_torch_step_answered(struct torch_step *step, int status,
                            const struct mu_store_reply *reply);
/** Whether a step whose connection is lost may be sent once more. */
bool mu_torch_step_repeats(const struct torch_step *step);
/** A step that may not be sent again has lost its connection. It is freed here. */
void mu_torch_step_lost(struct torch_step *step);

#endif

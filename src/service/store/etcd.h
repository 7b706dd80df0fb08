/*
 * The store in etcd, v3: every operation is a transaction. Its files share this header: etcd.c (the
 * store, its session), etcd_op.c (writes), etcd_list.c (counts, lists, leases), etcd_wait.c
 * (reading, waiting, watching). etcd_v2.c is another store, in PyTorch's layout.
 *
 * Under the prefix P:
 *
 *     P/k/KEY                       a value
 *     P/q/LLLLLLLL/KEY/NAME         an element of the queue of KEY, whose length is L in hex;
 *                                   elements are ordered by creation, and the name only makes them
 *                                   unique
 *     P/s/SESSION/SLOT              see below
 *
 * Exactly once. An answer can be lost, and a write that may have happened must neither be dropped
 * nor repeated. So each write takes a slot: a key that only this client writes, and that every
 * write changes in the same transaction, provided that the slot is as the client knows it. A second
 * try of a write that happened finds the slot changed, and at which revision; what the answer would
 * have said is read as of that revision. Slots are bound to the session's lease, and go with it. If
 * the lease is lost while a write is in doubt, the write ends with MUSTER_ESESSION.
 *
 * Waiting. All waiting operations share one watch over P/k/ and P/q/ that reports puts. An
 * operation that found a key missing at revision R sleeps only if that watch reports everything
 * after R.
 */
#ifndef MU_STORE_ETCD_H
#define MU_STORE_ETCD_H

#include "core/map.h"
#include "service/etcd/etcd.h"
#include "service/store/store.h"

#define MU_SETCD_SESSION_S 10  /* the same as the grace of a muster server's sessions */
#define MU_SETCD_TXN_OPS   100 /* of etcd's 128 */

struct mu_setcd;
struct mu_setcd_op;

struct mu_setcd_slot {
    struct mu_list link; /* s->slots while it is free */
    int64_t known;       /* its revision; 0: the key is absent */
    uint64_t session;    /* the session it belongs to */
    size_t len;
    char key[]; /* etcd's */
};

/* The keys of a request, as etcd has them. */
struct mu_setcd_name {
    struct mu_span key;
    struct mu_span queue; /* the prefix of its elements */
    struct mu_span queue_end;
    bool come;     /* wait: the key was there */
    size_t offset; /* multi_get: its value in `held` */
    size_t len;
};

/* An operation's place among those that wait for a key. */
struct mu_setcd_reg {
    struct mu_list link;
    struct mu_setcd_key *key;
    struct mu_setcd_op *e;
    size_t index;
};

struct mu_setcd_op {
    struct mu_setcd *s;
    struct mu_store_op *op;
    struct mu_list link;    /* s->ops */
    struct mu_list unbound; /* s->unbound: goes on once there is a session */
    struct mu_list due;     /* s->due: will be woken because something came */
    void (*step)(struct mu_setcd_op *e);
    struct mu_etcd_call call;
    struct mu_buf body;
    struct mu_buf held;
    struct mu_setcd_name *names;
    struct mu_setcd_slot *slot;
    struct mu_span target; /* queue_push, queue_pop: the element's key */
    char *element;
    int64_t seen; /* the revision that a write expects its key to have */
    int64_t seen_lease;
    int64_t number; /* for the answer */
    size_t at;      /* how many keys are done */
    int64_t revision;
    bool value_is_expected; /* compare_set of a key that is not there */
    uint32_t conflicts;
    uint32_t sessions;
    int ending;
    struct mu_setcd_reg *regs;
    size_t reg_count;
    bool waiting;
    bool poked;
    struct mu_etcd_watch watch;
    bool watching;
    struct mu_buf watch_end;
};

struct mu_setcd {
    struct mu_store base;
    struct mu_etcd *etcd;
    struct mu_list ops;
    struct mu_list unbound;
    struct mu_list due;
    struct mu_list slots;
    uint64_t slot_count;
    uint64_t element_count;
    uint64_t element_seed;

    struct mu_etcd_lease lease;
    uint64_t session; /* counts sessions */
    enum {
        MU_SETCD_NONE = 0,
        MU_SETCD_STARTING,
        MU_SETCD_UP,
        MU_SETCD_STOPPING,
    } session_state;

    struct mu_map waited; /* struct mu_setcd_key */
    struct mu_etcd_watch wake;
    bool wake_runs;
    struct mu_timer wake_idle;
    struct mu_buf wake_from;
    struct mu_buf wake_to;
    bool closing;
    bool leaving;
    size_t prefix_len;
    char prefix[];
};

/* etcd.c */
/** Ends an op; what it lent is invalid when this returns. */
void mu_setcd_finish(struct mu_setcd_op *e, int status, const char *text);
void mu_setcd_answer(struct mu_setcd_op *e, int64_t number, const struct mu_span *values,
                     size_t count);
/** Ends an op on a later turn. */
void mu_setcd_fail_later(struct mu_setcd_op *e, int status);
/** Calls e->step once there is a session: at once, or later. */
void mu_setcd_with_session(struct mu_setcd_op *e, void (*step)(struct mu_setcd_op *e));
/** etcd no longer knows our session. */
void mu_setcd_session_gone(struct mu_setcd *s, uint64_t session);
/** Takes a free slot of the present session. NULL: no memory. */
struct mu_setcd_slot *mu_setcd_slot_take(struct mu_setcd *s);
/** Gives a slot back. `clean`: its write has certainly ended, and `known` is right. */
void mu_setcd_slot_give(struct mu_setcd *s, struct mu_setcd_slot *slot, bool clean);
/** Sends e->body to a path; `done` follows. */
void mu_setcd_send(struct mu_setcd_op *e, const char *path,
                   void (*done)(struct mu_etcd_call *call));

/* etcd_op.c */
/** Makes the op's key names and starts it. Errors end it later. */
int mu_setcd_start(struct mu_setcd_op *e);
/** Sends a read; the caller handles errors. */
int mu_setcd_range(struct mu_setcd_op *e, const struct mu_etcd_op *op,
                   void (*done)(struct mu_etcd_call *call));
/** Reads a number as strtoll() does, from bytes without a zero behind them. */
bool mu_setcd_read_number(struct mu_span s, int64_t *ret);
/** Whether the call ended without an answer: then the op has ended, too. */
bool mu_setcd_call_failed(struct mu_setcd_op *e);

/* etcd_list.c */
/** Starts num_keys or list_keys. */
int mu_setcd_list(struct mu_setcd_op *e, bool count);
int mu_setcd_lease(struct mu_setcd_op *e);
/** Answers with the count that was read. */
void mu_setcd_on_counted(struct mu_etcd_call *call);

/* etcd_wait.c */
/** Reads all keys of the op and answers; if the op may wait, waits for those that are missing. */
void mu_setcd_read(struct mu_setcd_op *e);
/** A key was missing at `revision`: calls e->step when it may have come. */
void mu_setcd_sleep(struct mu_setcd_op *e, int64_t revision);
void mu_setcd_unwait(struct mu_setcd_op *e);
void mu_setcd_watch(struct mu_setcd_op *e);
void mu_setcd_wake_init(struct mu_setcd *s);
/** Writes what an op that is out of time waited for. */
void mu_setcd_timeout_text(const struct mu_setcd_op *e, char *text, size_t cap);

/* --- opening ---------------------------------------------------------------------------------- */

/** Makes a store under `prefix` (with its slash). It takes the client and closes it.
 * MUSTER_ENOMEM. */
int mu_store_etcd_new(struct mu_etcd *etcd, struct mu_env *env, const char *prefix,
                      struct mu_store **ret_store);
/** Makes PyTorch's EtcdStore, on v2. Otherwise as above. */
int mu_store_etcd_v2_new(struct mu_etcd *etcd, struct mu_env *env, const char *prefix,
                         struct mu_store **ret_store);

#endif

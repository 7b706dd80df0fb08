/*
 * A store whose keys are in etcd, for the clients of one server: a decision machine between
 * operations of a store and transactions of etcd. Several servers with the same prefix are one
 * store. docs/etcd.md explains all of it.
 *
 *     mu_backing_submit(&m, &client, &op);            any number of them
 *     while ((txn = mu_backing_next_txn(&m)) != NULL) { post mu_backing_txn_body(txn) }
 *     ... mu_backing_txn_done(&m, txn, 0, reply, retried);
 *     mu_backing_changed(&m, key, kv, revision);      what the single watch tells
 *     while ((op = mu_backing_next_done(&m)) != NULL) { op->status, op->reply }
 *
 * Order. What one client submits takes effect in that order, and is given back in it, except that a
 * wait or a barrier lets those behind it pass. Clients are independent of each other.
 *
 * Reading. While the watch is established, the mirror answers, as of the revision that the watch
 * has reached: all gets, checks and waits that come while a question is in progress share the next
 * question, which asks etcd only for its revision, and are answered once the watch has reached it:
 * linearizable. With `cached` nothing is asked: they are answered once the watch has reached all
 * that was answered before.
 * If the mirror cannot answer (no watch yet, or revisions of keys other than ours, which the watch
 * does not see), reads share a transaction of ranges, each key once. Of a long value that the
 * mirror has, only the revision is asked for. If this goes on, the server writes a key of its own,
 * PREFIX/m/SESSION, so that the watch gets past those revisions.
 *
 * Writing. Writes of many clients share one transaction. While a large one is in progress, new
 * writes are gathered for the next; while a small one is, another goes at once. Operations that
 * depend on the present value (add, append, compare_set, delete, pop) are decided here, from the
 * mirror, under the condition that the mirror is right: the transaction compares. If the mirror is
 * wrong, etcd tells the present values, and the transaction's operations are decided again. Such a
 * key gets its own transactions for a while, so that others do not suffer. Two transactions in
 * progress never write the same key.
 *
 * Once, and only once. Each writing transaction changes a key of its own, its slot, and compares it
 * with what it was. A transaction whose answer was lost is sent again unchanged; if it had
 * happened, the slot shows it, and the answers are those that were decided then. A transaction that
 * certainly failed, but perhaps only this time (an earlier try may still be on its way), is fenced
 * off by changing the slot alone before it is decided again. Slots are bound to the session's
 * lease.
 *
 * Waiting. An operation that waits for a key has learnt, as of some revision, that the key is
 * absent, and sleeps until the watch tells of a later put. An operation that falls asleep before
 * there is a watch is asked for once more when the watch is established. A watcher misses nothing
 * that was requested after it: until the watch is established, nothing new is sent. There is no
 * watch before a client reads, waits or watches (wants_watch): clients that only write do not pay
 * for it.
 *
 * The watch and answers fill the mirror. It has the latest news of each key, which an answer may
 * have told before the watch. It is the store as of `reached`, except for keys that are newer; a
 * read of such a key waits until the watch is there, too. Without a watch, the mirror is forgotten
 * whenever it has grown large, because deletions are not told then.
 *
 * Ownership: operations and clients are the caller's memory, and must stay until
 * mu_backing_next_done() or mu_backing_cancel() gave the operation back. The same holds for what a
 * request points to.
 */
#ifndef MU_BACKING_H
#define MU_BACKING_H

#include "codec/etcd/json.h"
#include "codec/store/op.h"
#include "core/buf.h"
#include "core/err.h"
#include "core/list.h"
#include "core/map.h"

#define MU_BACKING_KEYS      100 /* keys of one transaction; etcd takes 128 operations */
#define MU_BACKING_TXNS      8   /* transactions of each kind in progress, at most */
#define MU_BACKING_PREFIX    1024
#define MU_BACKING_SLOT      (MU_BACKING_PREFIX + 64)
#define MU_BACKING_GAP_READS 4 /* transactions that bypass a gap before a mark is written */

struct mu_backing_config {
    struct mu_span prefix;   /* in front of all keys, with a leading slash and no trailing one.
                                Copied */
    uint64_t seed;           /* seed of the tables */
    uint64_t element_seed;   /* random: begins the names of queue elements */
    size_t writes_max;       /* transactions in progress. 2 */
    size_t reads_max;        /* 2 */
    size_t txn_bytes_max;    /* bytes of values in one. 512 KiB: etcd takes 1.5 MiB */
    size_t cached_bytes_min; /* values from this length on are not read again. 512 */
    size_t loose_keys_max;   /* keys that the mirror may hold without a watch. 64 Ki */
    size_t loose_bytes_max;  /* bytes, likewise. 64 MiB */
    bool cached;             /* reads see what this server has answered, and do not ask etcd */
    bool hasty;              /* a planted bug for the simulator: reads do not wait for the
                                watch */
};

struct mu_backing_config mu_backing_config_defaults(void);

/* A client, whose operations are done in order. Zero it, and keep it while it has operations. */
struct mu_backing_client {
    struct mu_list link;  /* private: m->clients */
    struct mu_list queue; /* operations that are in no transaction */
    size_t flying;        /* operations in a transaction, or held */
    size_t held;          /* operations that wait for the watch, in m->held */
    bool stuck;           /* one of them must be read once more, and those after it too */
};

/* Flags in addition to a request's own: */
#define MU_BACKING_NO_QUEUES 0x100u /* check, wait: a queue's element does not count */
#define MU_BACKING_IN_TURN   0x400u /* wait: a push ends one such wait, first come, first served */
#define MU_BACKING_OR_EMPTY  0x200u /* multi_get: an absent key has the empty value */

/* Private: an operation's place in the queue for a key. */
struct mu_backing_reg {
    struct mu_list link;
    struct mu_backing_key *key; /* NULL once the key came */
    struct mu_backing_op *op;
    int64_t since; /* the key was absent at this revision */
};

/* Zero it; set the request. */
struct mu_backing_op {
    struct mu_store_request request;
    /* Valid once it is done: */
    int status;   /* those of keyspace.h, of service/etcd/etcd.h, or MUSTER_ESESSION */
    bool unknown; /* it may have been carried out, whatever the status */
    struct mu_store_reply reply; /* lent until mu_backing_op_fini() */
    struct mu_errmsg errmsg;
    /* Private from here. */
    struct mu_list link;
    struct mu_backing_client *client;
    struct mu_backing_client own; /* used if no client was given */
    enum {
        MU_BACKING_IDLE = 0,
        MU_BACKING_QUEUED,
        MU_BACKING_FLYING,
        MU_BACKING_SLEEPING,
        MU_BACKING_WATCHING,
        MU_BACKING_DONE,
    } state;
    bool canceled;
    bool chosen;  /* queue_pop: etcd has said which element is the first; it is in `held` */
    bool full;    /* read it with its value, whatever the mirror has */
    bool alone;   /* in its own transaction */
    bool local;   /* a read that the mirror answers */
    int64_t need; /* once the watch has reached this revision */
    bool sleeps;  /* barrier: it sleeps once it is written */
    bool holds;   /* asleep, and later operations wait for it */
    size_t at;    /* keys that are done */
    size_t upto;  /* keys up to which this transaction goes */
    int64_t number;
    int64_t element_mod;
    size_t result_at; /* queue_push, queue_pop: which result has the count */
    size_t name_len;  /* queue_push, queue_pop: in `held`, before the value */
    struct mu_buf held;
    size_t *lens; /* multi_get: of the values in `held` */
    struct mu_span one;
    struct mu_span *values;
    struct mu_backing_reg *regs;
    size_t reg_count;
    size_t missing;
};

struct mu_backing_txn;

struct mu_backing {
    struct mu_backing_config config;
    int64_t session; /* the lease of slots; 0: no lease, and nothing is written */
    uint64_t slots;  /* names given */
    struct mu_map keys;
    struct mu_map elements;
    struct mu_list clients; /* clients that have queued operations, first come first */
    struct mu_list watchers;
    struct mu_list sleepers; /* operations that sleep */
    bool wants_watch;        /* an operation needs the watch */
    bool tracking;           /* the watch was begun */
    bool watching;           /* the watch is established: the mirror hears of every change */
    bool whole;              /* the mirror has all keys */
    bool holed;              /* the mirror lacks keys because there was no memory */
    int64_t reached;         /* all changes up to this revision were told */
    int64_t expected;        /* the changes up to this one will certainly be told */
    int64_t answered;        /* all answers were true at this revision or before */
    struct mu_list held;     /* reads that wait for `reached`, in order */
    struct mu_list tombs;    /* keys that are gone, which the watch has not told yet */
    int64_t gap;             /* a revision that the watch does not tell of; 0: no gap */
    uint32_t wary;           /* while above 0, a few reads ask for their keys at once, because
                                others write */
    uint32_t gap_reads;      /* transactions that bypassed the gap */
    uint32_t gap_reads_max;  /* how many of them before a mark is written */
    bool mark_due;
    bool marking;
    size_t value_bytes;     /* of all values in the mirror */
    struct mu_list *cursor; /* the next watcher to hear of `told` */
    struct mu_change told;
    bool told_initial;
    struct mu_buf old; /* what `told` replaced */
    struct mu_list done;
    struct mu_backing_txn *writes[MU_BACKING_TXNS];
    struct mu_backing_txn *reads[MU_BACKING_TXNS];
    struct mu_backing_txn *mark;
    uint64_t element_count; /* names given */
    size_t queued;          /* operations that are in no transaction, and could be */
    size_t fences;          /* transactions that wait to be sent once more */
    size_t op_count;        /* submitted and not given back, except watches and sleepers */
    struct {
        uint64_t reads, writes, conflicts, fences, settled; /* transactions */
        uint64_t read_ops, written_ops;
        uint64_t local_ops, marks; /* reads that the mirror answered */
    } stats;
    size_t prefix_len;
    char prefix[MU_BACKING_PREFIX];
};

/** MUSTER_ELIMIT: the prefix is too long; MUSTER_ENOMEM. */
int mu_backing_init(struct mu_backing *m, const struct mu_backing_config *config);
/** All operations must have been given back; no transaction may be in progress. */
void mu_backing_fini(struct mu_backing *m);

/** Submits an operation. `client` NULL: it gets its own client. Watches are submitted as well; they
 * never end by themselves. */
void mu_backing_submit(struct mu_backing *m, struct mu_backing_client *client,
                       struct mu_backing_op *op);
/**
 * Takes an operation back. True: it is the caller's again. False: it is part of a transaction, and
 * mu_backing_next_done() will give it back.
 */
bool mu_backing_cancel(struct mu_backing *m, struct mu_backing_op *op);
/** Ends all operations that wait for a transaction, or to be settled, with MUSTER_ECLOSED. */
void mu_backing_stop(struct mu_backing *m);
/** Returns the next operation that ended, in order; NULL if there is none. */
struct mu_backing_op *mu_backing_next_done(struct mu_backing *m);
/** Frees what the operation holds; it may be submitted again then. */
void mu_backing_op_fini(struct mu_backing_op *op);
/** Lists the keys that a sleeping operation still waits for: fills up to `cap`, returns how
 * many. */
size_t mu_backing_missing(const struct mu_backing_op *op, struct mu_span *ret_keys, size_t cap);

/** Sets the session's lease; 0: it was lost. */
void mu_backing_set_session(struct mu_backing *m, int64_t lease);
/** Returns the next transaction to send; NULL if there is none, or too many are in progress. */
struct mu_backing_txn *mu_backing_next_txn(struct mu_backing *m);
/** Returns the path to post it to: /v3/kv/txn, or a range. */
const char *mu_backing_txn_path(const struct mu_backing_txn *txn);
/** Returns the body to post; lent until mu_backing_txn_done(). It may be sent again unchanged. */
struct mu_span mu_backing_txn_body(const struct mu_backing_txn *txn);
bool mu_backing_txn_writes(const struct mu_backing_txn *txn);
/** For the caller. */
void **mu_backing_txn_context(struct mu_backing_txn *txn);
/**
 * Takes the result of a transaction. Status 0: `reply` is the answer; `retried`: an earlier try may
 * have happened, or may yet. Otherwise it will not be sent again: its operations end, or are tried
 * once more if that helps (MUSTER_ELIMIT: in smaller parts; MUSTER_ENOENT: in another session).
 */
void mu_backing_txn_done(struct mu_backing *m, struct mu_backing_txn *txn, int status,
                         const struct mu_etcd_reply *reply, bool retried, const char *text);

/* --- the watch over [mu_backing_watch_from, mu_backing_watch_to) -------------------------------
 * */

/** Appends the range to watch to the buffers. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_backing_watch_range(const struct mu_backing *m, struct mu_buf *from, struct mu_buf *to);
/** The watch begins, or begins again: the mirror is forgotten. Watchers are not told. */
void mu_backing_begin_watch(struct mu_backing *m);
void mu_backing_forget(struct mu_backing *m);
/** The watch is established: all present keys were told, and every change will be. Or it has
 * ended. */
void mu_backing_set_watching(struct mu_backing *m, bool watching);
/**
 * Takes a change from etcd. Afterwards mu_backing_next_watcher() returns the watchers to tell.
 * MUSTER_ENOMEM: the mirror is not right any more; the watch must begin again.
 */
int mu_backing_changed(struct mu_backing *m, const struct mu_etcd_kv *kv, bool deleted,
                       bool created, bool initial, int64_t revision);
/** All changes up to this revision were told, including the keys that were there at first. */
void mu_backing_told(struct mu_backing *m, int64_t revision);
/** Returns whether reads wait for the watch. Reads that wait for long should ask etcd itself: */
bool mu_backing_holds(const struct mu_backing *m);
void mu_backing_unhold(struct mu_backing *m);
/** Returns the next watcher of the last change; `ret_change` is lent until the next change. */
bool mu_backing_next_watcher(struct mu_backing *m, struct mu_backing_op **ret_op,
                             struct mu_change *ret_change);
/** Walks the keys in the mirror that have a value, for a watch that begins, as mu_ks_next_key()
 * does. */
bool mu_backing_next_key(const struct mu_backing *m, const struct mu_map_node **cursor,
                         struct mu_change *ret_change);

#endif

/*
 * A store whose keys are in etcd, for the clients of one server: a decision machine between
 * operations of a store and transactions of etcd. Several servers with the same prefix are one
 * store. docs/etcd.md has the whole story.
 *
 *     mu_backing_submit(&m, &client, &op);            any number of them
 *     while ((txn = mu_backing_next_txn(&m)) != NULL) { post mu_backing_txn_body(txn) }
 *     ... mu_backing_txn_done(&m, txn, 0, reply, retried);
 *     mu_backing_changed(&m, key, kv, revision);      what the one watch tells
 *     while ((op = mu_backing_next_done(&m)) != NULL) { op->status, op->reply }
 *
 * Order. What one client submits takes effect in that order, and is given back in it, except that a
 * wait or a barrier lets those behind it pass. Clients are independent of each other.
 *
 * Reading. While the watch stands, the mirror answers, as it was at the revision that the watch has
 * reached: all gets, checks and waits that have come while a question is under way share the next
 * one, which asks etcd for nothing but its revision, and are answered once the watch has reached
 * that: linearizable. With `cached` nothing is asked: they are answered once the watch has reached
 * all that was answered before.
 * Where the mirror cannot answer (no watch yet, or revisions of other keys than ours, of which no
 * watch tells), reads share a transaction of ranges, each key once. Of a value that the mirror has
 * and that is long only the revision is asked for then. When that goes on, a key of our own is
 * written, PREFIX/m/SESSION, so that the watch gets past those revisions.
 *
 * Writing. Writes of many clients share one transaction. While a large one is under way, what comes
 * is gathered for the next; while a small one is, another goes at once. What depends on what is
 * there (add, append, compare_set, delete, pop) is decided here, from the mirror, under the
 * condition that the mirror is right: the transaction compares. If it is not, etcd says what there
 * is, and those that were part of it are decided anew. A key that this happens to gets transactions
 * of its own for a while, so that others do not suffer. Two transactions that are under way never
 * write the same key.
 *
 * Once, and only once. Each writing transaction changes a key of its own, its slot, and compares it
 * with what it was. One whose answer was lost is sent again as it was; if it had happened, the slot
 * shows it, and the answers are those that were decided then. One that certainly failed, but
 * perhaps only this time (an earlier try of it may still be on its way), is fenced off by changing
 * the slot alone before it is decided anew. Slots are bound to the session's lease.
 *
 * Waiting. What waits for a key was told, as of some revision, that the key is not there, and
 * sleeps until the watch tells of a later put. Who falls asleep before there is one is asked for
 * once more when it stands. A watcher misses nothing that was asked for behind it: until the watch
 * stands, nothing new is sent. There is no watch before somebody reads, waits or watches
 * (wants_watch): who only writes does not pay for it.
 *
 * The mirror is filled by the watch and by answers. Of each key it has what was last heard, which
 * answers may have told before the watch does. It is as the store was at `reached` but for keys
 * that are newer; who reads one of those waits until the watch is there, too. Without a watch it is
 * forgotten whenever it has grown large, as nobody says then what is gone.
 *
 * Ownership: operations and clients are the caller's memory, and stay until mu_backing_next_done()
 * or mu_backing_cancel() gave the operation back. What a request points to stays as long.
 */
#ifndef MU_BACKING_H
#define MU_BACKING_H

#include "codec/etcd/json.h"
#include "codec/store/op.h"
#include "core/buf.h"
#include "core/err.h"
#include "core/list.h"
#include "core/map.h"

#define MU_BACKING_KEYS      100 /* of one transaction; etcd takes 128 operations */
#define MU_BACKING_TXNS      8   /* of each kind under way, at the most */
#define MU_BACKING_PREFIX    1024
#define MU_BACKING_SLOT      (MU_BACKING_PREFIX + 64)
#define MU_BACKING_GAP_READS 4 /* transactions that go round a gap, until a mark is written */

struct mu_backing_config {
    struct mu_span prefix;   /* before all keys, with its slash in front and none behind. Copied */
    uint64_t seed;           /* of the tables */
    uint64_t element_seed;   /* random: begins the names of queue elements */
    size_t writes_max;       /* transactions under way. 2 */
    size_t reads_max;        /* 2 */
    size_t txn_bytes_max;    /* of values in one. 512 KiB: etcd takes 1.5 MiB */
    size_t cached_bytes_min; /* values from this length on are not read again. 512 */
    size_t loose_keys_max;   /* what the mirror may hold without a watch. 64 Ki, */
    size_t loose_bytes_max;  /* 64 MiB */
    bool cached;             /* reads see what this server has answered, and ask etcd for nothing */
    bool hasty;              /* planted, for the simulator: reads do not wait for the watch */
};

struct mu_backing_config mu_backing_config_defaults(void);

/* Whose operations are done in order. Zero it, and keep it while it has operations. */
struct mu_backing_client {
    struct mu_list link;  /* private: m->clients */
    struct mu_list queue; /* of operations that are in no transaction */
    size_t flying;        /* operations in a transaction, or held */
    size_t held;          /* those that wait for the watch, in m->held */
    bool stuck;           /* one of them has to be read once more, and those behind it with it */
};

/* Beside a request's flags: */
#define MU_BACKING_NO_QUEUES 0x100u /* check, wait: a queue's element does not count */
#define MU_BACKING_IN_TURN   0x400u /* wait: a push ends one such, first come, first served */
#define MU_BACKING_OR_EMPTY  0x200u /* multi_get: the empty value where there is none */

/* Private: an operation's place among those who wait for a key. */
struct mu_backing_reg {
    struct mu_list link;
    struct mu_backing_key *key; /* NULL once it came */
    struct mu_backing_op *op;
    int64_t since; /* it was not there at this revision */
};

/* Zero it; set the request. */
struct mu_backing_op {
    struct mu_store_request request;
    /* Valid once it is done: */
    int status;   /* those of keyspace.h, of service/etcd/etcd.h, or MUSTER_ESESSION */
    bool unknown; /* it may have happened, whatever the status */
    struct mu_store_reply reply; /* lent until mu_backing_op_fini() */
    struct mu_errmsg errmsg;
    /* Private from here. */
    struct mu_list link;
    struct mu_backing_client *client;
    struct mu_backing_client own; /* where none was given */
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
    bool full;    /* read with its value, whatever the mirror has */
    bool alone;   /* in a transaction of its own */
    bool local;   /* a read that the mirror answers, */
    int64_t need; /* once the watch has reached this revision */
    bool sleeps;  /* barrier: once it is written */
    bool holds;   /* asleep, and those behind it wait for it */
    size_t at;    /* keys that are done */
    size_t upto;  /* and those that this transaction does */
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
    int64_t session; /* the lease of slots; 0: none, and nothing is written */
    uint64_t slots;  /* names given */
    struct mu_map keys;
    struct mu_map elements;
    struct mu_list clients; /* those that have queued operations, first come first */
    struct mu_list watchers;
    struct mu_list sleepers; /* operations that sleep */
    bool wants_watch;        /* somebody is there whom it is for */
    bool tracking;           /* the watch was begun */
    bool watching;           /* the watch stands: the mirror hears of every change */
    bool whole;              /* the mirror has all keys */
    bool holed;              /* or had: there was no memory */
    int64_t reached;         /* all changes up to this revision were told */
    int64_t expected;        /* up to this one they certainly will be */
    int64_t answered;        /* what was answered was so at this revision, or before */
    struct mu_list held;     /* reads that wait for `reached`, in order */
    struct mu_list tombs;    /* keys that are gone, which the watch has not told yet */
    int64_t gap;             /* a revision that the watch does not tell of; 0: none */
    uint32_t wary;           /* few reads ask for their keys at once for so long, as others write */
    uint32_t gap_reads;      /* transactions that went round it */
    uint32_t gap_reads_max;  /* then a mark is written */
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
    size_t op_count;        /* submitted and not given back, but for watches and sleepers */
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
/** All operations must have been given back; no transaction is under way any more. */
void mu_backing_fini(struct mu_backing *m);

/** `client` NULL: a client of its own. Watches are submitted as well; they are never done by
 * themselves. */
void mu_backing_submit(struct mu_backing *m, struct mu_backing_client *client,
                       struct mu_backing_op *op);
/**
 * Takes an operation back. True: it is the caller's again. False: it is part of a transaction, and
 * mu_backing_next_done() will give it back.
 */
bool mu_backing_cancel(struct mu_backing *m, struct mu_backing_op *op);
/** Ends all operations that wait for a transaction, or to be settled, with MUSTER_ECLOSED. */
void mu_backing_stop(struct mu_backing *m);
/** The next operation that ended, in order; NULL if none. */
struct mu_backing_op *mu_backing_next_done(struct mu_backing *m);
/** Frees what the operation holds; it may be submitted again then. */
void mu_backing_op_fini(struct mu_backing_op *op);
/** The keys that a sleeping operation still waits for: fills up to `cap`, returns how many. */
size_t mu_backing_missing(const struct mu_backing_op *op, struct mu_span *ret_keys, size_t cap);

/** The session's lease, or 0 if it was lost. */
void mu_backing_set_session(struct mu_backing *m, int64_t lease);
/** The next transaction to send; NULL if there is none, or no room for one under way. */
struct mu_backing_txn *mu_backing_next_txn(struct mu_backing *m);
/** Where it is to be posted to: /v3/kv/txn, or a range. */
const char *mu_backing_txn_path(const struct mu_backing_txn *txn);
/** To be posted; lent until mu_backing_txn_done(). It may be sent again as it is. */
struct mu_span mu_backing_txn_body(const struct mu_backing_txn *txn);
bool mu_backing_txn_writes(const struct mu_backing_txn *txn);
/** The caller's. */
void **mu_backing_txn_context(struct mu_backing_txn *txn);
/**
 * How it went. status 0: `reply` is what came; `retried`: an earlier try of it may have happened,
 * or may yet. Otherwise it will not be sent again: its operations end, or are tried once more where
 * that helps (MUSTER_ELIMIT: in smaller parts; MUSTER_ENOENT: in another session).
 */
void mu_backing_txn_done(struct mu_backing *m, struct mu_backing_txn *txn, int status,
                         const struct mu_etcd_reply *reply, bool retried, const char *text);

/* --- the watch over [mu_backing_watch_from, mu_backing_watch_to) -------------------------------
 * */

/** What is to be watched, appended to the buffers. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_backing_watch_range(const struct mu_backing *m, struct mu_buf *from, struct mu_buf *to);
/** The watch begins, or begins anew: what the mirror has is forgotten. Watchers are not told. */
void mu_backing_begin_watch(struct mu_backing *m);
void mu_backing_forget(struct mu_backing *m);
/** It stands: what is there was told, and all that changes will be. Or it has ended. */
void mu_backing_set_watching(struct mu_backing *m, bool watching);
/**
 * A change, as etcd has it. Afterwards mu_backing_next_watcher() says who is to be told.
 * MUSTER_ENOMEM: the mirror is not right any more; the watch is to begin anew.
 */
int mu_backing_changed(struct mu_backing *m, const struct mu_etcd_kv *kv, bool deleted,
                       bool created, bool initial, int64_t revision);
/** All changes up to this revision were told, what was there at first included. */
void mu_backing_told(struct mu_backing *m, int64_t revision);
/** Whether reads wait for the watch. Those that do for long had better ask etcd itself: */
bool mu_backing_holds(const struct mu_backing *m);
void mu_backing_unhold(struct mu_backing *m);
/** The next watcher of the last change; `ret_change` is lent until the next change. */
bool mu_backing_next_watcher(struct mu_backing *m, struct mu_backing_op **ret_op,
                             struct mu_change *ret_change);
/** The keys in the mirror that have a value, for a watch that begins: as mu_ks_next_key(). */
bool mu_backing_next_key(const struct mu_backing *m, const struct mu_map_node **cursor,
                         struct mu_change *ret_change);

#endif

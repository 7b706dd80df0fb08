/*
 * What the files of the machine share: backing.c (operations, clients, when transactions are sent),
 * backing_mirror.c (what is known of keys, and the operations that wait for them), backing_local.c
 * (reads that the mirror answers), and the two kinds of transactions: backing_read.c,
 * backing_write.c with backing_text.c.
 */
#ifndef MU_BACKING_INTERNAL_H
#define MU_BACKING_INTERNAL_H

#include "proto/store/backing.h"

/* What is known of one key of the store. The record exists while there is anything to know. */
struct mu_backing_key {
    struct mu_map_node node;
    int64_t mod;   /* the revision of its last put; 0: it is absent, as far as we know */
    int64_t as_of; /* all this was true at that revision */
    int64_t lease;
    uint8_t *value;
    size_t len;
    uint8_t *was; /* what `value` replaced, for watchers if our own answer came first; or NULL */
    size_t was_len;
    int64_t gone;            /* it was deleted, as of this revision; 0: the watch told so */
    struct mu_list tomb;     /* m->tombs */
    bool told;               /* by the present watch */
    struct mu_list sleepers; /* struct mu_backing_reg */
    struct mu_list elements; /* elements of its queue, oldest first */
    size_t pins;             /* how many transactions use it */
    struct mu_backing_txn *writer;
    struct mu_backing_txn
        *popper; /* the transaction that takes an element; later elements must wait for it */
    struct mu_backing_touch *draft; /* in the transaction that is being made */
    uint32_t hot;                   /* how many own transactions it still gets */
    uint8_t bytes[];
};

struct mu_backing_element {
    struct mu_map_node node; /* m->elements, by its whole name */
    struct mu_list link;
    struct mu_backing_key *key;
    int64_t created;
    bool taken; /* by our transaction in progress, or by another client for good */
    size_t name_len;
    size_t len;
    uint8_t *value; /* after the name */
    uint8_t bytes[];
};

/* A key in a transaction. */
struct mu_backing_touch {
    struct mu_backing_key *key;
    /* Writing: what the key will hold. */
    bool guard; /* compared with `mod` */
    bool dirty;
    bool present;
    int64_t mod;
    int64_t lease;
    uint8_t *value; /* NULL unless dirty: then it is the key's own */
    size_t len;
    /* Reading: what is asked for, and which result answers it. */
    bool wants_value;
    bool wants_presence;
    bool wants_queue;
    bool wants_first; /* also asks for its oldest element */
    bool keys_only;
    size_t value_at;
    size_t queue_at;
};

struct mu_backing_txn {
    struct mu_backing *m;
    void *context;
    bool writes;
    bool sent;     /* the caller has it */
    bool fencing;  /* only its slot is being changed */
    bool asking;   /* if it fails, etcd tells what the slot holds */
    bool again;    /* it must be sent once more, in another form */
    bool doubtful; /* a try may have happened, or may yet */
    struct mu_list ops;
    size_t op_count;
    size_t results; /* results of the success branch counted so far */
    size_t bytes;
    struct mu_backing_key *only; /* it is about this key alone */
    struct mu_buf body;
    /* reading */
    bool local; /* the mirror answers the reads that it can */
    bool plain; /* not a transaction, but a range that tells the revision */
    bool counts_keys;
    bool lists_keys;
    size_t count_at;
    size_t list_at;
    /* writing */
    bool closed;  /* no other operation may be added */
    bool starved; /* there was no memory for all of a multi_set */
    size_t queue_ops;
    int64_t slot_known;
    int64_t slot_session; /* the slot's lease */
    size_t slot_len;
    char slot[MU_BACKING_SLOT];
    size_t touch_count;
    struct mu_backing_touch touches[MU_BACKING_KEYS];
};

/* backing.c */
/** Ends an operation: mu_backing_next_done() gives it back. */
void mu_backing_finish(struct mu_backing *m, struct mu_backing_op *op, int status,
                       const char *text);
void mu_backing_answer(struct mu_backing *m, struct mu_backing_op *op, int64_t number,
                       const struct mu_span *values, size_t count);
/** Wakes an operation: later ones need not wait for it. */
void mu_backing_let_pass(struct mu_backing_op *op);
/** Puts it back at the front of its client's queue. Call it in reverse order of submission. */
void mu_backing_requeue(struct mu_backing *m, struct mu_backing_op *op);
/** Takes it out of its transaction. True: it was cancelled, and has ended. */
bool mu_backing_land(struct mu_backing *m, struct mu_backing_op *op);
void mu_backing_fly(struct mu_backing_txn *t, struct mu_backing_op *op);
/**
 * Fills a transaction with operations of all clients that have no operation in progress; `take`
 * takes those of one client that fit, and returns whether there is room for more. False: there are
 * no operations, and the transaction is released.
 */
bool mu_backing_fill(struct mu_backing_txn *t,
                     bool (*take)(struct mu_backing_txn *t, struct mu_backing_client *c));
/** Finds or makes the touch of a key; NULL: no memory, or no room. */
struct mu_backing_touch *mu_backing_touch(struct mu_backing_txn *t, struct mu_span key);
/** Releases all keys. */
void mu_backing_release(struct mu_backing_txn *t);
/** Append etcd's name of a key, or of a queue's elements. */
int mu_backing_name_key(const struct mu_backing *m, struct mu_buf *out, struct mu_span key);
int mu_backing_name_queue(const struct mu_backing *m, struct mu_buf *out, struct mu_span key,
                          bool end);

/* backing_mirror.c */
struct mu_backing_key *mu_backing_find(const struct mu_backing *m, struct mu_span key);
/** Finds a key, or makes it. NULL: no memory. */
struct mu_backing_key *mu_backing_get(struct mu_backing *m, struct mu_span key);
/** Frees a key if nothing is known of it. */
void mu_backing_put(struct mu_backing *m, struct mu_backing_key *k);
/** Learns what etcd has under a key at a revision; kv NULL: nothing. Older news than what is known
 * is ignored. MUSTER_ENOMEM: the key is forgotten. */
int mu_backing_learn(struct mu_backing *m, struct mu_backing_key *k, const struct mu_etcd_kv *kv,
                     int64_t revision);
/** The same, and takes ownership of the value. */
void mu_backing_learn_own(struct mu_backing *m, struct mu_backing_key *k, uint8_t *value,
                          size_t len, bool present, int64_t lease, int64_t revision);
/** Makes the operation wait for a key that was absent at `since`. MUSTER_ENOMEM. */
int mu_backing_register(struct mu_backing *m, struct mu_backing_op *op, struct mu_span key,
                        int64_t since);
void mu_backing_unregister(struct mu_backing *m, struct mu_backing_op *op);
/** Everything that it waits for is registered: it sleeps, or continues at once. */
void mu_backing_sleep(struct mu_backing *m, struct mu_backing_op *op);
/** Returns the oldest element that was not taken, or NULL. */
struct mu_backing_element *mu_backing_first_element(const struct mu_backing *m, struct mu_span key);
struct mu_backing_element *mu_backing_find_element(const struct mu_backing *m, struct mu_span name);
/** The element is still there after all. */
void mu_backing_untake(struct mu_backing *m, struct mu_backing_element *e);

/* backing_write.c */
/** Makes the next transaction of its kind; false: there is nothing to send. */
bool mu_backing_plan_writes(struct mu_backing_txn *t);
void mu_backing_written(struct mu_backing_txn *t, int status, const struct mu_etcd_reply *reply,
                        const char *text);
bool mu_backing_is_write(const struct mu_backing *m, struct mu_backing_op *op);

/* backing_text.c */
/* What a slot holds: a repeated fence must not be mistaken for what it fences off. */
#define MU_BACKING_WRITTEN "w"
#define MU_BACKING_FENCED  "f"
/** Writes the transaction into t->body. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int mu_backing_encode(struct mu_backing_txn *t);
/** The same, and asks for its slot and its guarded keys if it fails. The first text leaves that
 * out, because etcd reads it slowly, unless a guard is likely to fail. */
int mu_backing_encode_asking(struct mu_backing_txn *t);
/** Writes only the slot: no earlier try of this can happen after it. */
int mu_backing_encode_fence(struct mu_backing_txn *t);

/** Returns what a key will hold. */
static inline struct mu_span mu_backing_value(const struct mu_backing_touch *touch)
{
    return touch->present ? mu_span(touch->value, touch->len) : (struct mu_span){0};
}

/** Returns whether the key's queue is pushed or popped in this transaction. */
static inline bool mu_backing_on_queue(const struct mu_backing_op *op)
{
    return op->status == 0 &&
           (op->request.verb == MU_STORE_QUEUE_PUSH || op->request.verb == MU_STORE_QUEUE_POP);
}

/* backing_local.c */
/** Returns whether the mirror answers reads at present. */
bool mu_backing_is_whole(const struct mu_backing *m);
/** Returns whether the mirror should answer those that wait now. */
bool mu_backing_trusts_mirror(const struct mu_backing *m);
bool mu_backing_is_local(const struct mu_backing_op *op);
/** A read in a transaction waits from now on for the watch to reach `need`. */
void mu_backing_hold(struct mu_backing *m, struct mu_backing_op *op, int64_t need);
/** Answers the held reads that can be answered; if some never can be, all are asked for again. */
void mu_backing_settle(struct mu_backing *m);
/** Answers or holds cached reads that no earlier operation blocks. */
void mu_backing_read_cached(struct mu_backing *m);
/** Takes etcd's revision from a read; returns whether the watch gets there. */
void mu_backing_note_probe(struct mu_backing *m, int64_t revision);
/** A read was made that bypassed a gap. */
void mu_backing_note_gap(struct mu_backing *m);
bool mu_backing_plan_mark(struct mu_backing *m);
void mu_backing_marked(struct mu_backing *m, int status, const struct mu_etcd_reply *reply);
/** Something was answered that was true at that revision. */
static inline void mu_backing_note_answered(struct mu_backing *m, int64_t revision)
{
    m->answered = revision > m->answered ? revision : m->answered;
}
/** The watch will certainly reach that revision: it changed a key of ours. */
static inline void mu_backing_expect(struct mu_backing *m, int64_t revision)
{
    m->expected = revision > m->expected ? revision : m->expected;
}

/* backing_read.c */
/** All values are in `held`: answers. */
void mu_backing_answer_many(struct mu_backing *m, struct mu_backing_op *op);
/** Makes room for the lengths of a multi_get's values. MUSTER_ENOMEM. */
int mu_backing_make_lens(struct mu_backing_op *op);
bool mu_backing_plan_reads(struct mu_backing_txn *t);
void mu_backing_read(struct mu_backing_txn *t, int status, const struct mu_etcd_reply *reply,
                     const char *text);

#endif

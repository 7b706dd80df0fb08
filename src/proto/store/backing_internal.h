/*
 * What the files of the machine share: gateway_serve.c (operations, clients, what is sent when),
 * backing_mirror.c (what is known of keys, and who waits for them), backing_local.c (reads that the
 * mirror answers), and the two kinds of transactions: backing_read.c, backing_write.c with
 * backing_text.c.
 */
#ifndef MU_BACKING_INTERNAL_H
#define MU_BACKING_INTERNAL_H

#include "proto/store/backing.h"

/* What is known of one key of the store. It is there while there is anything to know. */
struct mu_backing_key {
    struct mu_map_node node;
    int64_t mod;   /* the revision of its last put; 0: it is not there, as far as we know */
    int64_t as_of; /* all this was so at that revision */
    int64_t lease;
    uint8_t *value;
    size_t len;
    uint8_t
        *was; /* what `value` replaced, for watchers whom an answer of ours came before; or NULL */
    size_t was_len;
    int64_t gone;        /* it was there and is not, as of this revision; 0: the watch said so */
    struct mu_list tomb; /* m->tombs */
    bool told;           /* by the watch that there is now */
    struct mu_list sleepers; /* struct mu_backing_reg */
    struct mu_list elements; /* of its queue, the oldest first */
    size_t pins;             /* by transactions */
    struct mu_backing_txn *writer;
    struct mu_backing_txn
        *popper; /* an element behind one that it takes must not be taken before */
    struct mu_backing_touch *draft; /* in the transaction that is being made */
    uint32_t hot;                   /* transactions of its own to come */
    uint8_t bytes[];
};

struct mu_backing_element {
    struct mu_map_node node; /* m->elements, by its whole name */
    struct mu_list link;
    struct mu_backing_key *key;
    int64_t created;
    bool taken; /* by a transaction of ours that is under way, or by anybody for good */
    size_t name_len;
    size_t len;
    uint8_t *value; /* behind the name */
    uint8_t bytes[];
};

/* A key in a transaction. */
struct mu_backing_touch {
    struct mu_backing_key *key;
    /* Writing: what it will hold. */
    bool guard; /* compared with `mod` */
    bool dirty;
    bool present;
    int64_t mod;
    int64_t lease;
    uint8_t *value; /* NULL unless dirty: the key's own then */
    size_t len;
    /* Reading: what is asked for, and which result answers it. */
    bool wants_value;
    bool wants_presence;
    bool wants_queue;
    bool wants_first; /* and its oldest element */
    bool keys_only;
    size_t value_at;
    size_t queue_at;
};

struct mu_backing_txn {
    struct mu_backing *m;
    void *context;
    bool writes;
    bool sent;     /* it is with the caller */
    bool fencing;  /* only its slot is being changed */
    bool asking;   /* should it fail, what the slot holds is told */
    bool again;    /* it is to be sent once more, in another shape */
    bool doubtful; /* a try of it may have happened, or may yet */
    struct mu_list ops;
    size_t op_count;
    size_t results; /* of the success branch, as far as they are counted */
    size_t bytes;
    struct mu_backing_key *only; /* it is about this one alone */
    struct mu_buf body;
    /* reading */
    bool local; /* the mirror answers those that it can */
    bool plain; /* no transaction, but a range that tells the revision */
    bool counts_keys;
    bool lists_keys;
    size_t count_at;
    size_t list_at;
    /* writing */
    bool closed;  /* no other operation may come in */
    bool starved; /* there was no memory for all of a multi_set */
    size_t queue_ops;
    int64_t slot_known;
    int64_t slot_session; /* the lease of it */
    size_t slot_len;
    char slot[MU_BACKING_SLOT];
    size_t touch_count;
    struct mu_backing_touch touches[MU_BACKING_KEYS];
};

/* gateway_serve.c */
/** It ends: mu_backing_next_done() gives it back. */
void mu_backing_finish(struct mu_backing *m, struct mu_backing_op *op, int status,
                       const char *text);
void mu_backing_answer(struct mu_backing *m, struct mu_backing_op *op, int64_t number,
                       const struct mu_span *values, size_t count);
/** It sleeps no more: those behind it need not wait for it. */
void mu_backing_let_pass(struct mu_backing_op *op);
/** Back to the front of its client's queue. In reverse order of submission. */
void mu_backing_requeue(struct mu_backing *m, struct mu_backing_op *op);
/** Out of its transaction: is nobody's. True: nobody wants it any more, and it has ended. */
bool mu_backing_land(struct mu_backing *m, struct mu_backing_op *op);
void mu_backing_fly(struct mu_backing_txn *t, struct mu_backing_op *op);
/**
 * Fills it with operations of all clients of whom none flies; `take` takes those of one client that
 * can come in, and returns whether there is room for more. False: there are none, it is released.
 */
bool mu_backing_fill(struct mu_backing_txn *t,
                     bool (*take)(struct mu_backing_txn *t, struct mu_backing_client *c));
/** Finds or makes the touch of a key; NULL: no memory, or no room. */
struct mu_backing_touch *mu_backing_touch(struct mu_backing_txn *t, struct mu_span key);
/** Lets go of all keys. */
void mu_backing_release(struct mu_backing_txn *t);
/** etcd's name of a key, of a queue's elements; appended. */
int mu_backing_name_key(const struct mu_backing *m, struct mu_buf *out, struct mu_span key);
int mu_backing_name_queue(const struct mu_backing *m, struct mu_buf *out, struct mu_span key,
                          bool end);

/* backing_mirror.c */
struct mu_backing_key *mu_backing_find(const struct mu_backing *m, struct mu_span key);
/** Makes it if need be. NULL: no memory. */
struct mu_backing_key *mu_backing_get(struct mu_backing *m, struct mu_span key);
/** Frees it if nothing is known. */
void mu_backing_put(struct mu_backing *m, struct mu_backing_key *k);
/** What etcd has under a key at a revision; kv NULL: nothing. What is older than what is known is
 * ignored. MUSTER_ENOMEM: it is forgotten. */
int mu_backing_learn(struct mu_backing *m, struct mu_backing_key *k, const struct mu_etcd_kv *kv,
                     int64_t revision);
/** As above, and takes the value. */
void mu_backing_learn_own(struct mu_backing *m, struct mu_backing_key *k, uint8_t *value,
                          size_t len, bool present, int64_t lease, int64_t revision);
/** Has the operation wait for a key that was not there at `since`. MUSTER_ENOMEM. */
int mu_backing_register(struct mu_backing *m, struct mu_backing_op *op, struct mu_span key,
                        int64_t since);
void mu_backing_unregister(struct mu_backing *m, struct mu_backing_op *op);
/** All it waits for is registered: it sleeps, or goes on at once. */
void mu_backing_sleep(struct mu_backing *m, struct mu_backing_op *op);
/** The oldest element that nobody has taken, or NULL. */
struct mu_backing_element *mu_backing_first_element(const struct mu_backing *m, struct mu_span key);
struct mu_backing_element *mu_backing_find_element(const struct mu_backing *m, struct mu_span name);
/** It is still there after all. */
void mu_backing_untake(struct mu_backing *m, struct mu_backing_element *e);

/* backing_write.c */
/** Makes the next of its kind; false: there is nothing that may go. */
bool mu_backing_plan_writes(struct mu_backing_txn *t);
void mu_backing_written(struct mu_backing_txn *t, int status, const struct mu_etcd_reply *reply,
                        const char *text);
bool mu_backing_is_write(const struct mu_backing *m, struct mu_backing_op *op);

/* backing_text.c */
/* What a slot holds: a fence that was repeated must not be taken for what it fences off. */
#define MU_BACKING_WRITTEN "w"
#define MU_BACKING_FENCED  "f"
/** Into t->body. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int mu_backing_encode(struct mu_backing_txn *t);
/** The same, and if it fails, what its slot and its guarded keys hold. The first text leaves that
 * out, as etcd reads it slowly, unless a guard is likely to fail. */
int mu_backing_encode_asking(struct mu_backing_txn *t);
/** Only the slot: no earlier try of this can happen any more behind it. */
int mu_backing_encode_fence(struct mu_backing_txn *t);

/** What a key will hold. */
static inline struct mu_span mu_backing_value(const struct mu_backing_touch *touch)
{
    return touch->present ? mu_span(touch->value, touch->len) : (struct mu_span){0};
}

/** Whether it pushes or pops in this transaction. */
static inline bool mu_backing_on_queue(const struct mu_backing_op *op)
{
    return op->status == 0 &&
           (op->request.verb == MU_STORE_QUEUE_PUSH || op->request.verb == MU_STORE_QUEUE_POP);
}

/* backing_local.c */
/** Whether the mirror answers reads, at present. */
bool mu_backing_is_whole(const struct mu_backing *m);
/** And whether those that wait now had better be. */
bool mu_backing_trusts_mirror(const struct mu_backing *m);
bool mu_backing_is_local(const struct mu_backing_op *op);
/** A read that flies waits from now on for the watch to reach `need`. */
void mu_backing_hold(struct mu_backing *m, struct mu_backing_op *op, int64_t need);
/** Answers those held that can be; if some never will, all are asked for anew. */
void mu_backing_settle(struct mu_backing *m);
/** Cached reads that nobody before them stops: answered, or held. */
void mu_backing_read_cached(struct mu_backing *m);
/** etcd's revision, told by a read: whether the watch gets there. */
void mu_backing_note_probe(struct mu_backing *m, int64_t revision);
/** A read was made that went round a gap. */
void mu_backing_note_gap(struct mu_backing *m);
bool mu_backing_plan_mark(struct mu_backing *m);
void mu_backing_marked(struct mu_backing *m, int status, const struct mu_etcd_reply *reply);
/** Something was answered that was so at that revision. */
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
/** The values in `held` are all: answers. */
void mu_backing_answer_many(struct mu_backing *m, struct mu_backing_op *op);
/** Room for the lengths of a multi_get's values. MUSTER_ENOMEM. */
int mu_backing_make_lens(struct mu_backing_op *op);
bool mu_backing_plan_reads(struct mu_backing_txn *t);
void mu_backing_read(struct mu_backing_txn *t, int status, const struct mu_etcd_reply *reply,
                     const char *text);

#endif

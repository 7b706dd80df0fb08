/*
 * The public store from inside.
 *
 *     store.c         opening and closing, calls that wait
 *     store_op.c      operations: copied in, posted to the loop, their results copied out
 *     store_change.c  the changes of a watch that has a queue, until they are taken
 */
#ifndef MU_API_STORE_H
#define MU_API_STORE_H

#include "api/queue_api.h"
#include "service/store/store.h"

struct muster_store {
    muster_runtime *rt;
    struct mu_store *store;
    atomic_uint timeout_ms;
};

/* The changes of a watch that wait to be taken; under the op's lock. */
struct mu_op_changes {
    struct mu_list waiting; /* struct mu_op_change */
    struct mu_op_change *taken;
    size_t bytes;  /* of those that wait, with what it takes to keep them */
    int lost;      /* why there are no more: MUSTER_EOVERFLOW, MUSTER_ENOMEM; or 0 */
    bool end_told; /* the op's end was queued */
};

/* So many bytes of changes may wait; no store has values that come near this. */
#define MU_OP_CHANGES_BYTES_MAX ((size_t)16 << 20)

/*
 * An operation. Two sides hold it: the user, until muster_op_free(), and the loop, until it has
 * ended; the last of them frees it.
 *
 * Callbacks run on the loop without the lock, between two looks at it: `freed` is seen before, and
 * `calling` tells the thread that frees the op to wait until after.
 */
struct muster_op {
    struct mu_store_op op;
    struct mu_post post;
    struct mu_post cancel_post;
    muster_store *store;
    muster_runtime *rt;
    muster_op_done *done;
    muster_store_on_change *on_change;
    void *context;
    atomic_bool over; /* it has ended, and `done` has returned: a hint, without the lock */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    /* Under the lock. */
    unsigned holders;
    bool ended;     /* its results are there */
    bool calling;   /* one of its callbacks runs */
    bool freed;     /* by its user: no callback begins any more, and nothing is queued */
    bool canceling; /* the cancel_post was posted */
    struct mu_queued place;
    struct mu_op_changes changes;

    int64_t number;
    struct muster_value *values;
    size_t value_count;
    struct mu_span spans[]; /* keys, then values, then their bytes */
};

/* --- store_op.c ------------------------------------------------------------------------------- */

/** As muster_store_submit(), with a request of this version. */
int mu_api_submit(muster_store *store, const struct muster_store_request *q, muster_op **ret_op);

/* --- store_change.c --------------------------------------------------------------------------- */

/** These are called under the op's lock. */
void mu_op_changes_init(muster_op *op);
void mu_op_changes_fini(muster_op *op);
/** Keeps a change and queues the op. False: it could not be kept, and the watch must end. */
bool mu_op_changes_keep(muster_op *op, const struct mu_change *change);
/** The op has ended: queues that, now or when its changes have been taken. */
void mu_op_changes_end(muster_op *op);

#endif

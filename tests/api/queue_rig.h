/* A runtime with a queue, a store whose operations go into it, and what comes out. */
#ifndef MU_TEST_QUEUE_RIG_H
#define MU_TEST_QUEUE_RIG_H

#include <poll.h>
#include <stdlib.h>

#include "rpc_two_rig.h"

static muster_store *store;
static muster_queue *queue;

static inline int open_queue(void **state)
{
    return open_two(state) != 0 || muster_store_open(rt, "hash:", NULL, &store) != 0 ||
                   muster_queue_new(rt, &queue) != 0
               ? -1
               : 0;
}

static inline int close_queue(void **state)
{
    muster_queue_free(queue);
    muster_store_close(store);
    return close_two(state);
}

static inline bool is_readable(const muster_queue *q)
{
    struct pollfd poller = {.fd = muster_queue_fd(q), .events = POLLIN};
    int count = poll(&poller, 1, 0);

    assert_true(count >= 0);
    return count == 1;
}

/* What the queue says and what is in it must be the same. */
static inline void assert_empty(muster_queue *q)
{
    struct muster_queued event;

    assert_false(is_readable(q));
    assert_int_equal(muster_queue_wait(q, 0), MUSTER_ETIMEDOUT);
    assert_int_equal(muster_queue_take(q, &event, 1), 0);
}

static inline struct muster_queued take_one(muster_queue *q)
{
    struct muster_queued event = {0};

    assert_int_equal(muster_queue_wait(q, 20000), 0);
    assert_true(is_readable(q));
    assert_int_equal(muster_queue_take(q, &event, 1), 1);
    return event;
}

static inline void take_this(muster_queue *q, enum muster_queued_kind kind, void *object,
                             void *context)
{
    struct muster_queued event = take_one(q);

    assert_int_equal(event.kind, kind);
    assert_ptr_equal(event.object, object);
    assert_ptr_equal(event.context, context);
}

/* The loop has done everything that it was given before this. */
static inline void settle(void)
{
    bool there;

    assert_int_equal(muster_store_check(store, &(struct muster_bytes){"settled", 7}, 1, &there,
                                        MUSTER_TIMEOUT_DEFAULT),
                     0);
}

static inline muster_op *begin(enum muster_store_verb verb, const char *key, void *context)
{
    struct muster_store_request q = muster_store_request_defaults();
    struct muster_bytes bytes = muster_str(key);
    muster_op *op = NULL;

    q.verb = verb;
    q.keys = &bytes;
    q.key_count = 1;
    q.queue = queue;
    q.context = context;
    if (muster_store_submit(store, &q, &op) != 0) {
        fail_msg("%s", muster_errmsg());
    }
    return op;
}

static inline void set_text(const char *key, const char *value)
{
    assert_int_equal(
        muster_store_set(store, muster_str(key), muster_str(value), MUSTER_TIMEOUT_DEFAULT), 0);
}

#endif

/* Queues: a list under a lock, and a descriptor that is readable while something is in it. */
#include "api/queue_api.h"

#include <errno.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/assert.h"

/* --- the descriptor --------------------------------------------------------------------------- */

/*
 * Both under the lock, so that the descriptor never says what is not so, and both only when the
 * queue begins or ceases to be empty: things that end while others wait to be taken cost no system
 * call. The counter is never above 1, so that one read makes the descriptor unreadable.
 */

static void raise_flag(muster_queue *q)
{
    MU_ASSERT(eventfd_write(q->fd, 1) == 0);
}

static void lower_flag(muster_queue *q)
{
    eventfd_t count;

    (void)eventfd_read(q->fd, &count); /* a program may have read it, against the rule */
}

/* --- places ----------------------------------------------------------------------------------- */

muster_queue *mu_queue_ref(muster_queue *q)
{
    (void)atomic_fetch_add_explicit(&q->refs, 1, memory_order_relaxed);
    return q;
}

void mu_queue_unref(muster_queue *q)
{
    if (atomic_fetch_sub_explicit(&q->refs, 1, memory_order_acq_rel) == 1) {
        (void)pthread_mutex_destroy(&q->lock);
        mu_free(q);
    }
}

int mu_queue_check(const muster_queue *q, const muster_runtime *rt)
{
    return q == NULL || q->rt == rt
               ? 0
               : mu_api_error(MUSTER_EINVAL, "the queue belongs to another runtime: make one with "
                                             "the runtime of the object that is put into it");
}

void mu_queued_init(struct mu_queued *p, muster_queue *q, void *object, void *context)
{
    mu_list_init(&p->link);
    p->queue = q == NULL ? NULL : mu_queue_ref(q);
    p->what = (struct muster_queued){.object = object, .context = context};
}

void mu_queued_fini(struct mu_queued *p)
{
    if (p->queue != NULL) {
        (void)mu_queued_leave(p);
        mu_queue_unref(p->queue);
        p->queue = NULL;
    }
}

bool mu_queued_push(struct mu_queued *p, enum muster_queued_kind kind)
{
    muster_queue *q = p->queue;
    bool freed;

    if (q == NULL) {
        return false;
    }
    (void)pthread_mutex_lock(&q->lock);
    freed = q->fd < 0;
    if (!freed && mu_list_empty(&p->link)) {
        p->what.kind = kind;
        if (mu_list_empty(&q->places)) {
            raise_flag(q);
        }
        mu_list_push(&q->places, &p->link);
    }
    (void)pthread_mutex_unlock(&q->lock);
    return !freed;
}

bool mu_queued_leave(struct mu_queued *p)
{
    muster_queue *q = p->queue;
    bool was;

    if (q == NULL) {
        return false;
    }
    (void)pthread_mutex_lock(&q->lock);
    was = !mu_list_empty(&p->link);
    if (was) {
        mu_list_remove(&p->link);
        if (q->fd >= 0 && mu_list_empty(&q->places)) {
            lower_flag(q);
        }
    }
    (void)pthread_mutex_unlock(&q->lock);
    return was;
}

/* --- what the user has of it ------------------------------------------------------------------ */

int muster_queue_new(muster_runtime *rt, muster_queue **ret_queue)
{
    muster_queue *q;

    if (rt == NULL || ret_queue == NULL) {
        return mu_api_error(MUSTER_EINVAL,
                            "muster_queue_new() needs a runtime and a place for the result");
    }
    q = mu_calloc(1, sizeof(*q));
    if (q == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    q->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (q->fd < 0) {
        int err = -errno;

        mu_free(q);
        return mu_api_error(err, NULL);
    }
    q->rt = rt;
    atomic_init(&q->refs, 1);
    mu_list_init(&q->places);
    (void)pthread_mutex_init(&q->lock, NULL);
    *ret_queue = q;
    return 0;
}

int muster_queue_fd(const muster_queue *q)
{
    return q->fd;
}

size_t muster_queue_take(muster_queue *q, struct muster_queued *ret, size_t cap)
{
    size_t count = 0;

    (void)pthread_mutex_lock(&q->lock);
    while (count < cap && !mu_list_empty(&q->places)) {
        ret[count++] = MU_CONTAINER_OF(mu_list_pop(&q->places), struct mu_queued, link)->what;
    }
    if (count != 0 && mu_list_empty(&q->places)) {
        lower_flag(q);
    }
    (void)pthread_mutex_unlock(&q->lock);
    return count;
}

/* What is left until then, rounded up, as poll(2) takes it. */
static int left_ms(const struct timespec *until)
{
    struct timespec now = mu_wait_until(0);
    int64_t left = ((int64_t)until->tv_sec - now.tv_sec) * 1000 +
                   (until->tv_nsec - now.tv_nsec + 999999) / 1000000;

    return left < 0 ? 0 : (int)left;
}

int muster_queue_wait(muster_queue *q, int64_t timeout_ms)
{
    struct pollfd poller = {.fd = q->fd, .events = POLLIN};
    struct timespec until;
    int64_t wait_ms;
    int left;
    int err = mu_api_patience(timeout_ms, &wait_ms);

    if (err != 0) {
        return err;
    }
    if (wait_ms != 0 && mu_runtime_is_mine(q->rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
    }
    left = (int)wait_ms;
    until = mu_wait_until(wait_ms < 0 ? 0 : wait_ms);
    for (;;) {
        int count = poll(&poller, 1, left);

        if (count > 0) {
            /* Whoever put it there has let go of it, and what it did is seen here. */
            (void)pthread_mutex_lock(&q->lock);
            (void)pthread_mutex_unlock(&q->lock);
            return 0;
        }
        if (count == 0 && left == 0) {
            return mu_api_error(MUSTER_ETIMEDOUT, "nothing has come into the queue yet");
        }
        if (count < 0 && errno != EINTR && errno != EAGAIN) {
            return mu_api_error(-errno, NULL);
        }
        left = wait_ms < 0 ? -1 : left_ms(&until);
    }
}

void muster_queue_free(muster_queue *q)
{
    struct mu_list *it;

    if (q == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&q->lock);
    (void)close(q->fd);
    q->fd = -1; /* from now on nothing enters */
    while ((it = mu_list_pop(&q->places)) != NULL) {
        struct mu_queued *p = MU_CONTAINER_OF(it, struct mu_queued, link);

        /* It has left: nobody but us answers it, however long that takes. */
        if (p->dropped != NULL) {
            (void)pthread_mutex_unlock(&q->lock);
            p->dropped(p);
            (void)pthread_mutex_lock(&q->lock);
        }
    }
    (void)pthread_mutex_unlock(&q->lock);
    mu_queue_unref(q);
}

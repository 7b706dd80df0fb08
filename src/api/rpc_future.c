/* Futures: how a call ends, who is told of it, and until when. */
#include <string.h>

#include "api/rpc_future.h"
#include "core/alloc.h"

struct callback {
    struct mu_list link;
    muster_rpc_done *done;
    void *context;
};

static void drop(muster_rpc_future *f)
{
    if (atomic_fetch_sub(&f->refs, 1) != 1) {
        return;
    }
    mu_queued_fini(&f->place);
    mu_rpc_pool_give(f->pool, &f->buf);
    mu_rpc_pool_drop(f->pool);
    mu_free(f->parts);
    mu_free(f->text);
    mu_free(f->request);
    mu_free(f->fetch);
    (void)pthread_cond_destroy(&f->cond);
    (void)pthread_mutex_destroy(&f->lock);
    mu_free(f);
}

/* --- callbacks -------------------------------------------------------------------------------- */

/* Calls those that are due, on the loop, until there are none or the user frees the future. Under
 * the lock, which is not held while one of them runs. */
static void call_all(muster_rpc_future *f)
{
    struct mu_list *it;

    f->calling = true;
    if (f->done != NULL && !f->freed) {
        muster_rpc_done *done = f->done;

        f->done = NULL;
        (void)pthread_mutex_unlock(&f->lock);
        done(f, f->context);
        (void)pthread_mutex_lock(&f->lock);
    }
    while ((it = mu_list_pop(&f->callbacks)) != NULL) {
        struct callback *c = MU_CONTAINER_OF(it, struct callback, link);

        (void)pthread_mutex_unlock(&f->lock);
        c->done(f, c->context);
        mu_free(c);
        (void)pthread_mutex_lock(&f->lock);
    }
    f->calling = false;
}

static void call_late(struct mu_post *post)
{
    muster_rpc_future *f = MU_CONTAINER_OF(post, muster_rpc_future, then_post);

    (void)pthread_mutex_lock(&f->lock);
    f->then_posted = false;
    call_all(f);
    (void)pthread_mutex_unlock(&f->lock);
    (void)pthread_cond_broadcast(&f->cond);
    drop(f);
}

int muster_rpc_future_then(muster_rpc_future *f, muster_rpc_done *done, void *context)
{
    struct callback *c = mu_calloc(1, sizeof(*c));
    bool post;

    if (c == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    *c = (struct callback){.done = done, .context = context};
    (void)pthread_mutex_lock(&f->lock);
    mu_list_push(&f->callbacks, &c->link);
    /* If those that were due at the end are still being called, it is called after them. */
    post = f->ended && !f->calling && !f->then_posted;
    f->then_posted = f->then_posted || post;
    (void)pthread_mutex_unlock(&f->lock);
    if (post) {
        (void)atomic_fetch_add(&f->refs, 1);
        f->then_post.run = call_late;
        mu_uv_env_post(f->rt->uv, &f->then_post);
    }
    return 0;
}

/* --- the end, on the loop --------------------------------------------------------------------- */

static int keep_answer(muster_rpc_future *f, struct mu_span message)
{
    struct mu_buf whole = mu_rpc_agent_steal(f->agent->agent);
    int err;

    mu_buf_init(&f->buf, SIZE_MAX / 4);
    if (whole.len != 0) {
        f->buf = whole;
    } else {
        mu_buf_fini(&whole);
        err = mu_buf_append(&f->buf, message);
        if (err != 0) {
            return err;
        }
    }
    err = mu_rpc_msg_decode(mu_buf_span(&f->buf), &f->parts, &f->part_count);
    for (size_t i = 0; err == 0 && i < f->part_count; i++) {
        err = mu_rpc_map_device(f->agent, f->to, f->parts[i].device, true, &f->parts[i].device);
    }
    return err;
}

static char *copy_text(const char *text)
{
    char *copy = mu_malloc(strlen(text) + 1);

    if (copy != NULL) {
        memcpy(copy, text, strlen(text) + 1);
    }
    return copy;
}

void mu_rpc_future_end(muster_rpc_future *f, int status, const char *text)
{
    if (f->over != NULL) {
        f->over(f->over_context);
    }
    (void)pthread_mutex_lock(&f->lock);
    f->status = status;
    f->text = status == 0 ? NULL : copy_text(text);
    f->ended = true;
    call_all(f);
    if (!f->freed) {
        (void)mu_queued_push(&f->place, MUSTER_QUEUED_FUTURE);
    }
    /* Not under the lock: a waiting thread would wake up only to wait for the lock. */
    (void)pthread_mutex_unlock(&f->lock);
    (void)pthread_cond_broadcast(&f->cond);
    drop(f);
}

static void on_ended(struct mu_rpc_out *out, int status, const char *text, struct mu_span message)
{
    muster_rpc_future *f = MU_CONTAINER_OF(out, muster_rpc_future, out);

    if (status == 0) {
        status = keep_answer(f, message);
        text = status == MUSTER_EINVAL ? "the answer is on a device that is not mapped"
                                       : muster_strerror(status);
    }
    mu_rpc_future_end(f, status, text);
}

void mu_rpc_future_init(muster_rpc_future *f, muster_rpc_agent *a,
                        const struct mu_rpc_request *asked)
{
    const struct muster_rpc_request *q = &asked->q;
    pthread_condattr_t attr;

    f->agent = a;
    f->rt = a->rt;
    f->pool = mu_rpc_pool_ref(a->pool);
    atomic_init(&f->refs, 2);
    mu_list_init(&f->callbacks);
    f->done = q->done;
    f->context = q->context;
    mu_queued_init(&f->place, q->queue, f, q->context);
    (void)pthread_mutex_init(&f->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&f->cond, &attr);
    (void)pthread_condattr_destroy(&attr);
    f->by_name = q->to != NULL;
    f->to_id = q->to_id;
    if (q->to != NULL) {
        memcpy(f->to, q->to, strlen(q->to));
    }
    memcpy(f->method, q->method, strlen(q->method));
    f->out = (struct mu_rpc_out){
        .method = f->method,
        .parts = f->request,
        .part_count = q->part_count,
        .timeout_ms = asked->timeout_ms,
        .once = (q->flags & MUSTER_RPC_ONCE) != 0,
        .retrying = (q->flags & MUSTER_RPC_RETRY) != 0,
        .retry = asked->retry,
        .ended = on_ended,
    };
}

/* --- what its user does with it --------------------------------------------------------------- */

/*
 * Whether it is over: the call has ended, and no callback runs or is due. On the loop it is over
 * inside its own callbacks as well, which are then further up on this very stack. Under the lock.
 */
static bool is_over(const muster_rpc_future *f)
{
    return f->ended && ((!f->calling && mu_list_empty(&f->callbacks)) || mu_runtime_is_mine(f->rt));
}

/* Waits for that, below zero without bound. */
static bool wait_over(muster_rpc_future *f, int64_t wait_ms)
{
    struct timespec at = mu_wait_until(wait_ms < 0 ? 0 : wait_ms);
    bool over;

    (void)pthread_mutex_lock(&f->lock);
    while (!(over = is_over(f)) && wait_ms != 0) {
        int err = wait_ms < 0 ? pthread_cond_wait(&f->cond, &f->lock)
                              : pthread_cond_timedwait(&f->cond, &f->lock, &at);

        wait_ms = err != 0 ? 0 : wait_ms; /* look once more */
    }
    (void)pthread_mutex_unlock(&f->lock);
    return over;
}

int muster_rpc_future_wait(muster_rpc_future *f, int64_t timeout_ms)
{
    int err = mu_api_patience(timeout_ms, &timeout_ms);

    if (err != 0) {
        return err;
    }
    if (timeout_ms != 0 && mu_runtime_is_mine(f->rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
    }
    return wait_over(f, timeout_ms) ? mu_api_error(f->status, f->text)
                                    : mu_api_error(MUSTER_ETIMEDOUT, "the call has not ended yet");
}

bool muster_rpc_future_ended(muster_rpc_future *f)
{
    return wait_over(f, 0);
}

static void cancel_on_loop(struct mu_post *post)
{
    muster_rpc_future *f = MU_CONTAINER_OF(post, muster_rpc_future, cancel_post);

    if (!f->ended) { /* only this thread sets it: the agent still exists */
        struct mu_rpc_agent *agent = f->agent->agent;

        if (f->fetch != NULL) {
            mu_rref_fetch_cancel(f->fetch);
        } else {
            mu_rpc_out_cancel(&f->out);
        }
        mu_rpc_agent_turn(agent);
    }
    drop(f);
}

void muster_rpc_future_cancel(muster_rpc_future *f)
{
    bool post;

    (void)pthread_mutex_lock(&f->lock);
    post = !f->ended && !f->cancel_posted;
    f->cancel_posted = true;
    (void)pthread_mutex_unlock(&f->lock);
    if (post) {
        (void)atomic_fetch_add(&f->refs, 1);
        f->cancel_post.run = cancel_on_loop;
        mu_uv_env_post(f->rt->uv, &f->cancel_post);
    }
}

void muster_rpc_future_free(muster_rpc_future *f)
{
    struct mu_list *it;

    if (f == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&f->lock);
    f->freed = true;
    (void)mu_queued_leave(&f->place);
    while ((it = mu_list_pop(&f->callbacks)) != NULL) {
        mu_free(MU_CONTAINER_OF(it, struct callback, link));
    }
    /* On the loop it is our own callback that runs, further up on this stack. */
    while (f->calling && !mu_runtime_is_mine(f->rt)) {
        (void)pthread_cond_wait(&f->cond, &f->lock);
    }
    (void)pthread_mutex_unlock(&f->lock);
    drop(f);
}

int muster_rpc_future_status(const muster_rpc_future *f)
{
    return f->status;
}

enum muster_rpc_kind muster_rpc_future_kind(const muster_rpc_future *f)
{
    switch (f->status) {
    case 0:
        return MUSTER_RPC_UNKNOWN;
    case MUSTER_ETIMEDOUT:
        return MUSTER_RPC_TIMEOUT;
    case MUSTER_ECONN:
    case MUSTER_ESESSION:
    case MUSTER_EREFUSED:
    case MUSTER_EADDR:
    case MUSTER_ETLS:
        return MUSTER_RPC_LOST;
    case MUSTER_ECANCELED:
        return MUSTER_RPC_CANCELED;
    case MUSTER_ECLOSED:
    case MUSTER_EDRAIN:
        return MUSTER_RPC_SHUT_DOWN;
    case MUSTER_EWORKER:
    case MUSTER_ENOMETHOD:
    case MUSTER_EINVAL:
    case MUSTER_ELIMIT:
    case MUSTER_EONCE:
        return MUSTER_RPC_REFUSED;
    case MUSTER_ENOMEM:
    case MUSTER_EPROTO:
        return MUSTER_RPC_UNKNOWN;
    default:
        return MUSTER_RPC_REMOTE;
    }
}

const char *muster_rpc_future_errmsg(const muster_rpc_future *f)
{
    return f->status == 0 ? "" : f->text != NULL ? f->text : muster_strerror(f->status);
}

size_t muster_rpc_future_part_count(const muster_rpc_future *f)
{
    return f->part_count;
}

struct muster_rpc_part muster_rpc_future_part(const muster_rpc_future *f, size_t index)
{
    if (index >= f->part_count) {
        return (struct muster_rpc_part){.device = MUSTER_RPC_CPU};
    }
    return (struct muster_rpc_part){{f->parts[index].data.data, f->parts[index].data.len},
                                    f->parts[index].device};
}

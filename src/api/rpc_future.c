/* Calls as other threads see them: requests go to the loop, which completes the futures. */
#include <string.h>

#include "api/rpc_api.h"
#include "core/alloc.h"

struct callback {
    struct mu_list link;
    struct mu_post post;
    muster_rpc_future *future;
    muster_rpc_done *done;
    void *context;
};

struct muster_rpc_future {
    struct mu_rpc_out out; /* the loop's, until the end */
    muster_rpc_agent *agent;
    muster_runtime *rt;
    struct mu_post post;
    struct mu_post cancel_post;
    atomic_int refs;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    bool ended;
    bool cancel_posted;
    int status;
    char *text;
    struct mu_rpc_pool *pool;
    struct mu_buf buf;
    struct mu_rpc_part *parts; /* of the answer, in `buf` */
    size_t part_count;
    struct mu_list callbacks;
    struct callback first;
    /* The request. */
    int32_t to_id;
    bool by_name;
    char to[MU_RPC_WORKER_MAX + 1];
    char method[MU_RPC_METHOD_MAX + 1];
    struct mu_rpc_part *request;
    struct mu_rref_fetch *fetch; /* of a remote reference, whose call begins in its own way */
};

static void drop(muster_rpc_future *f)
{
    if (atomic_fetch_sub(&f->refs, 1) != 1) {
        return;
    }
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

static void end_future(muster_rpc_future *f, int status, const char *text)
{
    struct mu_list *it;

    (void)pthread_mutex_lock(&f->lock);
    f->status = status;
    f->text = status == 0 ? NULL : copy_text(text);
    f->ended = true;
    /* Not under the lock: a waiting thread would wake up only to wait for the lock. */
    (void)pthread_mutex_unlock(&f->lock);
    (void)pthread_cond_broadcast(&f->cond);
    (void)pthread_mutex_lock(&f->lock);
    while ((it = mu_list_pop(&f->callbacks)) != NULL) {
        struct callback *c = MU_CONTAINER_OF(it, struct callback, link);

        (void)pthread_mutex_unlock(&f->lock);
        c->done(f, c->context);
        if (c != &f->first) {
            mu_free(c);
        }
        (void)pthread_mutex_lock(&f->lock);
    }
    (void)pthread_mutex_unlock(&f->lock);
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
    end_future(f, status, text);
}

/* --- the beginning ---------------------------------------------------------------------------- */

/* Finds the worker, and maps the devices. On an error, `reterr_msg` says what is missing. */
static int resolve(muster_rpc_future *f, struct mu_errmsg *reterr_msg)
{
    struct mu_rpc_agent *agent = f->agent->agent;

    f->out.to =
        f->by_name ? mu_rpc_agent_find(agent, f->to) : mu_rpc_agent_find_id(agent, f->to_id);
    if (f->out.to == NULL && f->by_name) {
        return mu_err(reterr_msg, MUSTER_EWORKER, "%.100s could not find the worker %.100s",
                      f->agent->name, f->to);
    }
    if (f->out.to == NULL) {
        return mu_err(reterr_msg, MUSTER_EWORKER, "%.100s could not find the worker with the id %d",
                      f->agent->name, (int)f->to_id);
    }
    memcpy(f->to, mu_rpc_peer_name(f->out.to), strlen(mu_rpc_peer_name(f->out.to)) + 1);
    for (size_t i = 0; i < f->out.part_count; i++) {
        struct mu_rpc_part *part = &f->request[i];

        if (mu_rpc_map_device(f->agent, f->to, part->device, false, &part->device) != 0) {
            return mu_err(reterr_msg, MUSTER_EINVAL,
                          "part %zu is on device %d, which is not mapped to one of %.100s: move it "
                          "to memory, or set a device map",
                          i, (int)part->device, f->to);
        }
    }
    return 0;
}

static void begin_on_loop(struct mu_post *post)
{
    muster_rpc_future *f = MU_CONTAINER_OF(post, muster_rpc_future, post);
    struct mu_rpc_agent *agent = f->agent->agent;
    struct mu_errmsg msg;
    int err = resolve(f, &msg);

    if (err != 0) {
        end_future(f, err, msg.text);
        return;
    }
    mu_rpc_agent_call(agent, &f->out);
    mu_rpc_agent_turn(agent);
}

int mu_rpc_check_request(const struct muster_rpc_request *q)
{
    struct mu_rpc_retry_options retry = {q->retry.retries_max, q->retry.duration_ms,
                                         q->retry.backoff, q->retry.jitter};
    struct mu_errmsg msg;

    if (mu_rpc_check_method(q->method) != 0) {
        return MUSTER_EINVAL;
    }
    if (q->to != NULL && strlen(q->to) > MU_RPC_WORKER_MAX) {
        return mu_api_error(MUSTER_EINVAL, "the worker's name is too long");
    }
    if (q->part_count > MU_RPC_PARTS_MAX) {
        return mu_api_error(MUSTER_EINVAL, "a message may have at most 65535 parts");
    }
    if (q->timeout_ms < MUSTER_TIMEOUT_DEFAULT || q->timeout_ms > INT32_MAX) {
        return mu_api_error(MUSTER_EINVAL, "a timeout must be -1 (default), 0 (never) or up to "
                                           "2147483647 ms");
    }
    if (q->flags > (MUSTER_RPC_RETRY | MUSTER_RPC_ONCE | MUSTER_RPC_BORROW)) {
        return mu_api_error(MUSTER_EINVAL, "the call has an unknown flag");
    }
    if ((q->flags & MUSTER_RPC_RETRY) != 0 && mu_rpc_out_retry_check(&retry, &msg) != 0) {
        return mu_api_error(MUSTER_EINVAL, msg.text);
    }
    return 0;
}

/* Copies the table of parts, and their bytes after it unless they are borrowed. */
static int copy_request(muster_rpc_future *f, const struct muster_rpc_request *q)
{
    bool borrow = (q->flags & MUSTER_RPC_BORROW) != 0;
    size_t bytes = 0;
    uint8_t *at;

    for (size_t i = 0; i < q->part_count && !borrow; i++) {
        if (q->parts[i].data.len > SIZE_MAX / 4 - bytes) {
            return MUSTER_ELIMIT;
        }
        bytes += q->parts[i].data.len;
    }
    f->request = mu_malloc((q->part_count + 1) * sizeof(*f->request) + bytes);
    if (f->request == NULL) {
        return MUSTER_ENOMEM;
    }
    at = (uint8_t *)(f->request + q->part_count + 1);
    for (size_t i = 0; i < q->part_count; i++) {
        struct muster_bytes from = q->parts[i].data;

        if (borrow) {
            f->request[i].data = mu_span(from.data, from.len);
        } else {
            if (from.len != 0) {
                memcpy(at, from.data, from.len);
            }
            f->request[i].data = mu_span(at, from.len);
            at += from.len;
        }
        f->request[i].device = q->parts[i].device;
    }
    return 0;
}

static void init_future(muster_rpc_future *f, muster_rpc_agent *a,
                        const struct muster_rpc_request *q)
{
    pthread_condattr_t attr;

    f->agent = a;
    f->rt = a->rt;
    f->pool = mu_rpc_pool_ref(a->pool);
    atomic_init(&f->refs, 2);
    mu_list_init(&f->callbacks);
    if (q->done != NULL) {
        f->first = (struct callback){.done = q->done, .context = q->context};
        mu_list_push(&f->callbacks, &f->first.link);
    }
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
        .timeout_ms = q->timeout_ms == MUSTER_TIMEOUT_DEFAULT ? muster_rpc_timeout(a)
                                                              : (uint32_t)q->timeout_ms,
        .once = (q->flags & MUSTER_RPC_ONCE) != 0,
        .retrying = (q->flags & MUSTER_RPC_RETRY) != 0,
        .retry = {q->retry.retries_max, q->retry.duration_ms, q->retry.backoff, q->retry.jitter},
        .ended = on_ended,
    };
}

static bool only_memory(const struct muster_rpc_request *q)
{
    for (size_t i = 0; i < q->part_count; i++) {
        if (q->parts[i].device != MUSTER_RPC_CPU) {
            return false;
        }
    }
    return true;
}

static int new_future(muster_rpc_agent *a, const struct muster_rpc_request *q,
                      muster_rpc_future **ret_future)
{
    int err = mu_rpc_check_request(q);
    muster_rpc_future *f;

    if (err != 0) {
        return err;
    }
    f = mu_calloc(1, sizeof(*f));
    if (f == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    err = copy_request(f, q);
    if (err != 0) {
        mu_free(f);
        return mu_api_error(err, NULL);
    }
    init_future(f, a, q);
    *ret_future = f;
    return 0;
}

int mu_rpc_future_for_fetch(muster_rpc_agent *a, const struct muster_rpc_request *q,
                            muster_rpc_future **ret_future, struct mu_rref_fetch **ret_fetch)
{
    struct mu_rref_fetch *fetch = mu_calloc(1, sizeof(*fetch));
    int err = fetch == NULL ? mu_api_error(MUSTER_ENOMEM, NULL) : new_future(a, q, ret_future);

    if (err != 0) {
        mu_free(fetch);
        return err;
    }
    (*ret_future)->fetch = fetch;
    fetch->out = &(*ret_future)->out;
    *ret_fetch = fetch;
    return 0;
}

int muster_rpc_call(muster_rpc_agent *a, const struct muster_rpc_request *q,
                    muster_rpc_future **ret_future)
{
    muster_rpc_future *f;
    int err = new_future(a, q, &f);

    if (err != 0) {
        return err;
    }
    f->post.run = begin_on_loop;
    *ret_future = f;
    /* This is most likely inside a callback of the agent, which sends it at the end of its turn;
     * but no callback of the call itself may come before this returns. */
    if (mu_runtime_is_mine(a->rt) && q->to != NULL && mu_rpc_agent_find(a->agent, q->to) != NULL &&
        only_memory(q)) {
        f->out.to = mu_rpc_agent_find(a->agent, q->to);
        mu_rpc_agent_call(a->agent, &f->out);
        mu_rpc_agent_soon(a->agent);
    } else {
        mu_uv_env_post(a->rt->uv, &f->post);
    }
    return 0;
}

int mu_rpc_future_await(muster_rpc_future *f, muster_rpc_future **ret_future)
{
    int err = muster_rpc_future_wait(f, MUSTER_RPC_FOREVER);

    if (err != 0) {
        muster_rpc_future_free(f);
    } else {
        *ret_future = f;
    }
    return err;
}

int muster_rpc_sync(muster_rpc_agent *a, const struct muster_rpc_request *q,
                    muster_rpc_future **ret_future)
{
    muster_rpc_future *f;
    int err = mu_runtime_is_mine(a->rt)
                  ? mu_api_error(MUSTER_EINVAL, "waiting on the runtime's thread would wait for "
                                                "ever")
                  : muster_rpc_call(a, q, &f);

    return err != 0 ? err : mu_rpc_future_await(f, ret_future);
}

struct muster_rpc_retry muster_rpc_retry_defaults(void)
{
    struct mu_rpc_retry_options o = mu_rpc_out_retry_defaults();

    return (struct muster_rpc_retry){o.retries_max, o.duration_ms, o.backoff, o.jitter};
}

/* --- futures ---------------------------------------------------------------------------------- */

static bool wait_end(muster_rpc_future *f, int64_t timeout_ms)
{
    struct timespec at;

    if (timeout_ms < 0) {
        while (!f->ended) {
            (void)pthread_cond_wait(&f->cond, &f->lock);
        }
        return true;
    }
    at = mu_wait_until(timeout_ms);
    while (!f->ended && pthread_cond_timedwait(&f->cond, &f->lock, &at) == 0) {
    }
    return f->ended;
}

int muster_rpc_future_wait(muster_rpc_future *f, int64_t timeout_ms)
{
    bool ended;

    if (mu_runtime_is_mine(f->rt) && timeout_ms != 0) {
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
    }
    (void)pthread_mutex_lock(&f->lock);
    ended = wait_end(f, timeout_ms);
    (void)pthread_mutex_unlock(&f->lock);
    return ended ? mu_api_error(f->status, f->text)
                 : mu_api_error(MUSTER_ETIMEDOUT, "the call has not ended yet");
}

bool muster_rpc_future_ended(muster_rpc_future *f)
{
    bool ended;

    (void)pthread_mutex_lock(&f->lock);
    ended = f->ended;
    (void)pthread_mutex_unlock(&f->lock);
    return ended;
}

static void run_callback(struct mu_post *post)
{
    struct callback *c = MU_CONTAINER_OF(post, struct callback, post);

    c->done(c->future, c->context);
    drop(c->future);
    mu_free(c);
}

int muster_rpc_future_then(muster_rpc_future *f, muster_rpc_done *done, void *context)
{
    struct callback *c = mu_calloc(1, sizeof(*c));
    bool ended;

    if (c == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    *c = (struct callback){.future = f, .done = done, .context = context};
    (void)pthread_mutex_lock(&f->lock);
    ended = f->ended && mu_list_empty(&f->callbacks);
    if (!ended) {
        mu_list_push(&f->callbacks, &c->link);
    }
    (void)pthread_mutex_unlock(&f->lock);
    if (ended) {
        (void)atomic_fetch_add(&f->refs, 1);
        c->post.run = run_callback;
        mu_uv_env_post(f->rt->uv, &c->post);
    }
    return 0;
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
    if (f != NULL) {
        drop(f);
    }
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

/* Operations of a store: copied in, posted to the loop, their results copied out. */
#include "api/store_api.h"

#include <sched.h>
#include <string.h>

#include "core/alloc.h"

void muster_store_request_init(struct muster_store_request *ret, size_t size)
{
    struct muster_store_request ours = {.timeout_ms = MUSTER_TIMEOUT_DEFAULT};

    mu_api_give(ret, size, &ours, sizeof(ours));
}

/* --- an operation's life ---------------------------------------------------------------------- */

static void free_results(muster_op *op)
{
    for (size_t i = 0; i < op->value_count; i++) {
        mu_free(op->values[i].data);
    }
    mu_free(op->values);
    op->values = NULL;
    op->value_count = 0;
}

/* Unlocks it too. */
static void let_go(muster_op *op)
{
    unsigned left = --op->holders;

    (void)pthread_mutex_unlock(&op->lock);
    if (left == 0) {
        free_results(op);
        mu_op_changes_fini(op);
        mu_queued_fini(&op->place);
        (void)pthread_cond_destroy(&op->cond);
        (void)pthread_mutex_destroy(&op->lock);
        mu_free(op);
    }
}

static bool copy_value(struct muster_value *ret, struct mu_span from)
{
    ret->data = mu_strndup((const char *)(from.len == 0 ? (const void *)"" : from.data), from.len);
    ret->len = from.len;
    return ret->data != NULL;
}

static int copy_results(muster_op *op)
{
    const struct mu_store_reply *reply = &op->op.reply;

    op->number = reply->number;
    if (reply->value_count == 0) {
        return 0;
    }
    op->values = mu_calloc(reply->value_count, sizeof(*op->values));
    if (op->values == NULL) {
        return MUSTER_ENOMEM;
    }
    for (; op->value_count < reply->value_count; op->value_count++) {
        if (!copy_value(&op->values[op->value_count], reply->values[op->value_count])) {
            free_results(op);
            return MUSTER_ENOMEM;
        }
    }
    return 0;
}

/* Whether a cancel is to be posted, which then holds the op. Under the lock. */
static bool claim_cancel(muster_op *op)
{
    if (op->ended || op->canceling) {
        return false;
    }
    op->canceling = true;
    op->holders++;
    return true;
}

/* A watch that could not keep a change has a gap from there on, however it ended. */
static void tell_loss(muster_op *op)
{
    op->op.status = op->changes.lost;
    (void)mu_err(&op->op.errmsg, op->op.status, "%s",
                 op->changes.lost == MUSTER_EOVERFLOW
                     ? "more than 16 MiB of the watch's changes waited: take them sooner with "
                       "muster_op_change_next()"
                     : "out of memory");
}

static void on_done(struct mu_store_op *inner)
{
    muster_op *op = MU_CONTAINER_OF(inner, muster_op, op);

    if (inner->status == 0) {
        inner->status = copy_results(op);
        if (inner->status != 0) {
            (void)mu_err(&inner->errmsg, inner->status, "out of memory");
        }
    }
    (void)pthread_mutex_lock(&op->lock);
    if (op->changes.lost != 0) {
        tell_loss(op);
    }
    op->ended = true;
    if (op->done != NULL && !op->freed) {
        op->calling = true;
        (void)pthread_mutex_unlock(&op->lock);
        op->done(op, op->context);
        (void)pthread_mutex_lock(&op->lock);
        op->calling = false;
    }
    if (op->place.queue != NULL && !op->freed) {
        mu_op_changes_end(op);
    }
    atomic_store_explicit(&op->over, true, memory_order_release);
    /* Not under the lock: a waiting thread would wake up only to wait for the lock. */
    (void)pthread_mutex_unlock(&op->lock);
    (void)pthread_cond_broadcast(&op->cond);
    (void)pthread_mutex_lock(&op->lock);
    let_go(op);
}

static void call_on_change(muster_op *op, const struct mu_change *change)
{
    struct muster_change out = {
        .kind = (enum muster_change_kind)change->kind,
        .revision = change->revision,
        .key = {change->key.data, change->key.len},
        .value = {change->value.data, change->value.len},
    };

    op->calling = true;
    (void)pthread_mutex_unlock(&op->lock);
    op->on_change(op, &out, op->context);
    (void)pthread_mutex_lock(&op->lock);
    op->calling = false;
    if (op->freed) {
        (void)pthread_cond_broadcast(&op->cond);
    }
}

static void on_change(struct mu_store_op *inner, const struct mu_change *change)
{
    muster_op *op = MU_CONTAINER_OF(inner, muster_op, op);
    bool post = false;

    (void)pthread_mutex_lock(&op->lock);
    if (!op->freed && op->on_change != NULL) {
        call_on_change(op, change);
    } else if (!op->freed && op->place.queue != NULL) {
        post = !mu_op_changes_keep(op, change) && claim_cancel(op);
    }
    (void)pthread_mutex_unlock(&op->lock);
    if (post) {
        mu_uv_env_post(op->rt->uv, &op->cancel_post);
    }
}

static void start_on_loop(struct mu_post *post)
{
    muster_op *op = MU_CONTAINER_OF(post, muster_op, post);

    mu_store_submit(op->store->store, &op->op);
}

static void cancel_on_loop(struct mu_post *post)
{
    muster_op *op = MU_CONTAINER_OF(post, muster_op, cancel_post);
    bool ended;

    (void)pthread_mutex_lock(&op->lock);
    ended = op->ended;
    (void)pthread_mutex_unlock(&op->lock);
    if (!ended) {
        mu_store_cancel(&op->op);
    }
    (void)pthread_mutex_lock(&op->lock);
    let_go(op);
}

/* --- requests --------------------------------------------------------------------------------- */

/* The public numbers are the internal ones. */
#define SAME(name, ...)                                                                            \
    _Static_assert((int)MUSTER_STORE_##name == (int)MU_STORE_##name, "MUSTER_STORE_" #name);
MU_STORE_VERB_MAP(SAME)
SAME(NOWAIT)
SAME(PREFIX)
SAME(CURRENT)
SAME(ONCE)
#undef SAME
_Static_assert((int)MUSTER_CHANGE_CREATED == (int)MU_CHANGE_CREATED &&
                   (int)MUSTER_CHANGE_EXPIRED == (int)MU_CHANGE_EXPIRED,
               "kinds of changes");

static int check_request(const muster_store *store, const struct muster_store_request *q)
{
    struct mu_store_request inner = {.verb = (enum mu_store_verb)q->verb,
                                     .key_count = q->key_count,
                                     .value_count = q->value_count};
    int err = mu_store_check(&inner);

    if (err == MUSTER_ENOMETHOD) {
        return mu_api_error(MUSTER_EINVAL, "there is no such store operation");
    }
    if (err != 0 || q->flags > 15 || (q->verb == MUSTER_STORE_BARRIER && q->number < 1)) {
        return mu_api_error(MUSTER_EINVAL, "the store operation does not take these arguments");
    }
    if (q->queue != NULL && (q->done != NULL || q->on_change != NULL)) {
        return mu_api_error(MUSTER_EINVAL, "a store operation has callbacks or a queue, not both");
    }
    return mu_queue_check(q->queue, store->rt);
}

static size_t total_len(const struct muster_bytes *items, size_t count)
{
    size_t n = 0;

    for (size_t i = 0; i < count; i++) {
        n += items[i].len;
    }
    return n;
}

static uint8_t *copy_spans(struct mu_span *to, const struct muster_bytes *from, size_t count,
                           uint8_t *at)
{
    for (size_t i = 0; i < count; i++) {
        if (from[i].len != 0) {
            memcpy(at, from[i].data, from[i].len);
        }
        to[i] = mu_span(at, from[i].len);
        at += from[i].len;
    }
    return at;
}

static void init_op(muster_op *op, muster_store *store, const struct muster_store_request *q)
{
    pthread_condattr_t attr;

    op->op.done = on_done;
    op->op.change = on_change;
    op->store = store;
    op->rt = store->rt;
    op->done = q->done;
    op->on_change = q->on_change;
    op->context = q->context;
    op->holders = 2;
    mu_op_changes_init(op);
    mu_queued_init(&op->place, q->queue, op, q->context);
    (void)pthread_mutex_init(&op->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&op->cond, &attr);
    (void)pthread_condattr_destroy(&attr);
    op->post.run = start_on_loop;
    op->cancel_post.run = cancel_on_loop;
}

int mu_api_submit(muster_store *store, const struct muster_store_request *q, muster_op **ret_op)
{
    size_t parts = q->key_count + q->value_count;
    int err = check_request(store, q);
    uint32_t timeout_ms = 0;
    muster_op *op;
    uint8_t *at;

    if (err == 0) {
        /* A watch goes on until it is cancelled, unless a timeout is named. */
        err = mu_api_timeout(q->timeout_ms,
                             q->verb == MUSTER_STORE_WATCH ? MU_API_NO_BOUND
                                                           : atomic_load(&store->timeout_ms),
                             &timeout_ms);
    }
    if (err != 0) {
        return err;
    }
    op = mu_calloc(1, sizeof(*op) + parts * sizeof(struct mu_span) +
                          total_len(q->keys, q->key_count) + total_len(q->values, q->value_count));
    if (op == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    at = copy_spans(op->spans, q->keys, q->key_count, (uint8_t *)(op->spans + parts));
    (void)copy_spans(op->spans + q->key_count, q->values, q->value_count, at);
    op->op.request = (struct mu_store_request){
        .verb = (enum mu_store_verb)q->verb,
        .flags = q->flags,
        .keys = op->spans,
        .key_count = q->key_count,
        .values = op->spans + q->key_count,
        .value_count = q->value_count,
        .number = q->number,
        .lease = q->lease,
    };
    op->op.timeout_ms = timeout_ms;
    init_op(op, store, q);
    *ret_op = op; /* before the loop may end it and call `done` */
    mu_uv_env_post(store->rt->uv, &op->post);
    return 0;
}

int muster_store_submit(muster_store *store, const struct muster_store_request *request,
                        muster_op **ret_op)
{
    struct muster_store_request q;
    int err = MU_API_TAKE(store_request, &q, request);

    return err != 0 ? err : mu_api_submit(store, &q, ret_op);
}

/* --- what its user does with it --------------------------------------------------------------- */

/*
 * Whether it is over: it has ended, and `done` has returned. On the loop it is over inside `done`
 * as well, which is then further up on this very stack. Under the lock.
 */
static bool is_over(const muster_op *op)
{
    return op->ended && (!op->calling || mu_runtime_is_mine(op->rt));
}

/* How long a caller looks for the answer before it sleeps. To wake a thread takes as long as an
 * answer from a server nearby. */
#define LOOK_NS 50000
/* A core for the caller, one for the loop, one for a server on this machine, and one to spare. */
#define LOOK_CORES 4

static bool has_cores(void)
{
    static atomic_int cores; /* 0: nobody has counted them yet */
    int n = atomic_load_explicit(&cores, memory_order_relaxed);
    cpu_set_t set;

    if (n == 0) {
        n = sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
        atomic_store_explicit(&cores, n, memory_order_relaxed);
    }
    return n >= LOOK_CORES;
}

static int64_t now_ns(void)
{
    struct timespec now = mu_wait_until(0);

    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Lets the core's other thread work meanwhile. */
static void pause_a_moment(void)
{
#if defined(__x86_64__)
    for (int i = 0; i < 16; i++) {
        __builtin_ia32_pause();
    }
#endif
}

static void look_ahead(const muster_op *op)
{
    int64_t end = now_ns() + LOOK_NS;

    while (!atomic_load_explicit(&op->over, memory_order_acquire) && now_ns() < end) {
        pause_a_moment();
    }
}

/* Waits for that, below zero without bound. */
static bool wait_over(muster_op *op, int64_t wait_ms)
{
    struct timespec at = mu_wait_until(wait_ms < 0 ? 0 : wait_ms);
    bool over;

    if (wait_ms != 0 && has_cores()) {
        look_ahead(op);
    }
    (void)pthread_mutex_lock(&op->lock);
    while (!(over = is_over(op)) && wait_ms != 0) {
        int err = wait_ms < 0 ? pthread_cond_wait(&op->cond, &op->lock)
                              : pthread_cond_timedwait(&op->cond, &op->lock, &at);

        wait_ms = err != 0 ? 0 : wait_ms; /* look once more */
    }
    (void)pthread_mutex_unlock(&op->lock);
    return over;
}

int muster_op_wait(muster_op *op)
{
    return muster_op_wait_for(op, MUSTER_TIMEOUT_NEVER);
}

int muster_op_wait_for(muster_op *op, int64_t timeout_ms)
{
    int64_t wait_ms;
    int err = mu_api_patience(timeout_ms, &wait_ms);

    if (err != 0) {
        return err;
    }
    if (wait_ms != 0 && mu_runtime_is_mine(op->rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
    }
    return wait_over(op, wait_ms)
               ? mu_api_error(op->op.status, op->op.errmsg.text)
               : mu_api_error(MUSTER_ETIMEDOUT, "the operation has not ended yet");
}

bool muster_op_ended(muster_op *op)
{
    return wait_over(op, 0);
}

void muster_op_cancel(muster_op *op)
{
    bool post;

    (void)pthread_mutex_lock(&op->lock);
    post = claim_cancel(op);
    (void)pthread_mutex_unlock(&op->lock);
    if (post) {
        mu_uv_env_post(op->rt->uv, &op->cancel_post);
    }
}

void muster_op_free(muster_op *op)
{
    if (op == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&op->lock);
    op->freed = true;
    (void)mu_queued_leave(&op->place);
    if (claim_cancel(op)) {
        (void)pthread_mutex_unlock(&op->lock);
        mu_uv_env_post(op->rt->uv, &op->cancel_post);
        (void)pthread_mutex_lock(&op->lock);
    }
    /* On the loop it is our own callback that runs, further up on this stack. */
    while (op->calling && !mu_runtime_is_mine(op->rt)) {
        (void)pthread_cond_wait(&op->cond, &op->lock);
    }
    let_go(op);
}

int muster_op_status(const muster_op *op)
{
    return op->op.status;
}

const char *muster_op_errmsg(const muster_op *op)
{
    return op->op.errmsg.text;
}

int64_t muster_op_number(const muster_op *op)
{
    return op->number;
}

size_t muster_op_value_count(const muster_op *op)
{
    return op->value_count;
}

struct muster_bytes muster_op_value(const muster_op *op, size_t index)
{
    return index < op->value_count
               ? (struct muster_bytes){op->values[index].data, op->values[index].len}
               : (struct muster_bytes){0};
}

/*
 * The store in a file. All file I/O happens in one piece of work at a time, which takes every
 * operation that is there along: lock, read what others wrote, decide, append, unlock. While it
 * runs, only that work touches the cache; in between, the loop's thread does.
 *
 *     pending --work--> answered
 *                  `--> waiting --work, every 10 ms or with the next operation--> answered
 *
 * A timeout or a cancellation that comes while the work is under way takes effect when it is done,
 * unless the operation has been answered by then: what is written cannot be taken back.
 */
#include "service/store/file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "service/store/file_cache.h"
#include "service/base/log.h"
#include "core/file_log.h"

#define POLL_MS     10  /* PyTorch's */
#define LEAVE_TRIES 250 /* to get the lock at the end, about 5 s */

struct file_op {
    struct mu_store_op *op;
    struct mu_list link;
    struct mu_store_request request; /* with the keys as in the file */
    struct mu_file_answer answer;
    uint64_t generation; /* of the cache when it was last decided on */
    bool ran;            /* it was decided on at least once */
    bool expired;
    bool canceled;
    struct mu_span keys[]; /* the bytes of the keys follow */
};

struct file_store {
    struct mu_store base;
    struct mu_file_log *log;
    int64_t world_size;
    struct mu_file_cache cache;
    struct mu_list pending; /* struct file_op */
    struct mu_list waiting;
    struct mu_list batch; /* the work's, while it is under way */
    struct mu_list ended; /* answered; `done` will be called */
    struct mu_timer timer;
    mu_mono_t poll_at;
    struct mu_work work;
    bool working;
    bool attention; /* an op has expired or was cancelled */
    bool closing;
    bool leaving;
    unsigned leave_tries;
    int err; /* of the last work; MUSTER_EAGAIN: others have the lock */
    struct mu_errmsg errmsg;
    char path[];
};

static void pump(struct file_store *s);

static void run_soon(struct file_store *s)
{
    mu_env_timer_arm(s->base.env, &s->timer, mu_env_now(s->base.env).mono);
}

static void move_all(struct mu_list *to, struct mu_list *from)
{
    struct mu_list *it;

    while ((it = mu_list_pop(from)) != NULL) {
        mu_list_push(to, it);
    }
}

/* --- the work, on a worker thread ------------------------------------------------------------- */

static bool any_writes(const struct mu_list *ops)
{
    MU_LIST_FOREACH (it, ops) {
        if (!mu_store_verb_is_read(MU_CONTAINER_OF(it, struct file_op, link)->request.verb)) {
            return true;
        }
    }
    return false;
}

/* Ops that waited already come first; a second pass lets them see what the others just wrote. */
static void decide(struct file_store *s)
{
    for (int pass = 0; pass < 2; pass++) {
        MU_LIST_FOREACH (it, &s->batch) {
            struct file_op *f = MU_CONTAINER_OF(it, struct file_op, link);

            if (!f->answer.given && (!f->ran || f->generation != s->cache.generation)) {
                mu_file_cache_execute(&s->cache, &f->request, &f->answer);
                f->generation = s->cache.generation;
                f->ran = true;
            }
        }
    }
}

/*
 * The batch could not be written: ops that wanted to write fail; the others have seen values that
 * were never written, and are decided anew.
 */
static void undo(struct file_store *s, int err)
{
    MU_LIST_FOREACH (it, &s->batch) {
        struct file_op *f = MU_CONTAINER_OF(it, struct file_op, link);

        mu_file_answer_clear(&f->answer);
        f->ran = false;
        if (!mu_store_verb_is_read(f->request.verb)) {
            f->answer.given = true;
            f->answer.status = err;
            f->answer.errmsg = s->errmsg;
        }
    }
}

/* Brings the cache up to date; `*ret_locked` says whether the lock is held on return. */
static int refresh(struct file_store *s, bool write, bool *ret_locked)
{
    struct mu_file_log_state state;
    uint64_t size = 0;
    int err = s->log->ops->look(s->log, write, &state, &s->errmsg);

    *ret_locked = false;
    if (err != 0) {
        return err;
    }
    if (state.replaced) {
        mu_file_cache_reset(&s->cache);
    }
    if (!state.exists || (!write && state.size == s->cache.size)) {
        return 0; /* nothing was appended since */
    }
    err = s->log->ops->lock(s->log, write, &size, &s->errmsg);
    if (err != 0) {
        return err;
    }
    err = mu_file_cache_read(&s->cache, s->log, s->path, size, &s->errmsg);
    if (err != 0) {
        s->log->ops->unlock(s->log);
        return err;
    }
    *ret_locked = true;
    return 0;
}

static void run_batch(struct mu_work *work)
{
    struct file_store *s = MU_CONTAINER_OF(work, struct file_store, work);
    bool locked;
    int err;

    s->err = refresh(s, any_writes(&s->batch), &locked);
    if (s->err != 0) {
        return;
    }
    decide(s);
    err = mu_file_cache_write(&s->cache, s->log, s->path, &s->errmsg);
    if (err != 0) {
        undo(s, err);
    }
    if (locked) {
        s->log->ops->unlock(s->log);
    }
}

/* The last user removes the file, as PyTorch 1.13 counts them, unless users of 2.x, which count
 * themselves in `refcount/`, still have it open. */
static int leave(struct file_store *s)
{
    struct mu_span key = MU_SPAN_LIT(MU_FILE_CLEANUP_KEY);
    struct mu_store_request q = {.verb = MU_STORE_ADD, .keys = &key, .key_count = 1, .number = 1};
    struct mu_file_answer answer = {0};
    int err;

    mu_file_cache_execute(&s->cache, &q, &answer);
    err = answer.status;
    if (err != 0) {
        s->errmsg = answer.errmsg;
    }
    mu_file_answer_clear(&answer);
    if (err == 0) {
        err = mu_file_cache_write(&s->cache, s->log, s->path, &s->errmsg);
    }
    if (err == 0 && mu_file_cache_counter(&s->cache, key) == s->world_size &&
        mu_file_cache_counter(&s->cache, MU_SPAN_LIT(MU_FILE_REFCOUNT_KEY)) <= 0) {
        err = s->log->ops->remove(s->log, &s->errmsg);
    }
    return err;
}

static void run_leave(struct mu_work *work)
{
    struct file_store *s = MU_CONTAINER_OF(work, struct file_store, work);
    struct mu_file_log_state state;
    bool locked = false;

    s->err = s->log->ops->look(s->log, false, &state, &s->errmsg);
    if (s->err == 0 && state.replaced) {
        mu_file_cache_reset(&s->cache);
    }
    if (s->err != 0 || !state.exists) {
        return; /* another user has removed it already, as with PyTorch */
    }
    s->err = refresh(s, true, &locked);
    if (s->err == 0) {
        s->err = leave(s);
    }
    if (locked) {
        s->log->ops->unlock(s->log);
    }
}

/* --- the loop's thread ------------------------------------------------------------------------ */

static void end_op(struct file_store *s, struct file_op *f, int status, const char *text)
{
    struct mu_store_op *op = f->op;

    mu_env_timer_arm(s->base.env, &op->timer, MU_MONO_NEVER);
    mu_list_remove(&f->link);
    op->impl = NULL;
    op->reply = (struct mu_store_reply){.number = f->answer.number,
                                        .values = f->answer.values,
                                        .value_count = f->answer.value_count};
    mu_store_finish(op, status, text);
    mu_file_answer_clear(&f->answer);
    mu_free(f);
}

static void answer_with(struct file_op *f, int status, const char *text)
{
    mu_file_answer_clear(&f->answer);
    f->answer.given = true;
    f->answer.status = status;
    (void)mu_err(&f->answer.errmsg, status, "%s", text);
}

static void tell_ended(struct file_store *s)
{
    struct mu_list now;

    mu_list_init(&now);
    move_all(&now, &s->ended);
    while (!mu_list_empty(&now)) {
        struct file_op *f = MU_CONTAINER_OF(now.next, struct file_op, link);

        end_op(s, f, f->answer.status, f->answer.status == 0 ? NULL : f->answer.errmsg.text);
    }
}

/* Ends an op that is out of time, and says what it waited for. */
static void expire(struct file_store *s, struct file_op *f)
{
    struct mu_errmsg text;

    if (f->ran) {
        mu_file_cache_explain(&s->cache, &f->request, &text);
    } else {
        (void)mu_err(&text, MUSTER_ETIMEDOUT,
                     "timed out after %u ms: another process keeps %.140s locked; see which one "
                     "(fuser, lslocks)",
                     f->op->timeout_ms, s->path);
    }
    answer_with(f, MUSTER_ETIMEDOUT, text.text);
}

static void sweep(struct file_store *s, struct mu_list *ops)
{
    MU_LIST_FOREACH_SAFE (it, next, ops) {
        struct file_op *f = MU_CONTAINER_OF(it, struct file_op, link);

        if (s->closing) {
            answer_with(f, MUSTER_ECLOSED, muster_strerror(MUSTER_ECLOSED));
        } else if (f->canceled) {
            answer_with(f, MUSTER_ECANCELED, muster_strerror(MUSTER_ECANCELED));
        } else if (f->expired) {
            expire(s, f);
        } else {
            continue;
        }
        mu_list_remove(&f->link);
        mu_list_push(&s->ended, &f->link);
    }
}

static void on_batch_done(struct mu_work *work)
{
    struct file_store *s = MU_CONTAINER_OF(work, struct file_store, work);
    struct mu_list *it;

    s->working = false;
    while ((it = mu_list_pop(&s->batch)) != NULL) {
        struct file_op *f = MU_CONTAINER_OF(it, struct file_op, link);

        if (s->err != 0 && s->err != MUSTER_EAGAIN) {
            answer_with(f, s->err, s->errmsg.text);
        }
        mu_list_push(f->answer.given ? &s->ended : f->ran ? &s->waiting : &s->pending, &f->link);
    }
    s->poll_at = mu_mono_add_ms(mu_env_now(s->base.env).mono, POLL_MS);
    pump(s);
}

static void start_batch(struct file_store *s)
{
    struct mu_list *it;

    move_all(&s->batch, &s->waiting);
    move_all(&s->batch, &s->pending);
    s->work.run = run_batch;
    s->work.done = on_batch_done;
    s->working = mu_env_work(s->base.env, &s->work) == 0;
    while (!s->working && (it = mu_list_pop(&s->batch)) != NULL) {
        struct file_op *f = MU_CONTAINER_OF(it, struct file_op, link);

        answer_with(f, MUSTER_ENOMEM, muster_strerror(MUSTER_ENOMEM));
        mu_list_push(&s->ended, &f->link);
    }
}

static void free_store(struct file_store *s)
{
    mu_file_cache_fini(&s->cache);
    s->log->ops->close(s->log);
    mu_free(s);
}

static void finish_close(struct file_store *s)
{
    mu_env_timer_arm(s->base.env, &s->timer, MU_MONO_NEVER);
    if (s->base.closed != NULL) {
        s->base.closed(s->base.context);
    }
    free_store(s);
}

static void on_leave_done(struct mu_work *work)
{
    struct file_store *s = MU_CONTAINER_OF(work, struct file_store, work);

    s->working = false;
    if (s->err == MUSTER_EAGAIN && ++s->leave_tries < LEAVE_TRIES) {
        s->leaving = false;
    } else if (s->err != 0) {
        mu_log(MUSTER_LOG_WARN, "STORE-FILE-LEAVE", "path=%s why=\"%s\"", s->path,
               s->err == MUSTER_EAGAIN ? "another process keeps it locked" : s->errmsg.text);
    }
    pump(s);
}

static void start_leave(struct file_store *s)
{
    s->leaving = true;
    s->work.run = run_leave;
    s->work.done = on_leave_done;
    s->working = mu_env_work(s->base.env, &s->work) == 0;
}

/* To be called after anything happened. May free the store. */
static void pump(struct file_store *s)
{
    mu_mono_t now = mu_env_now(s->base.env).mono;

    if (!s->working && (s->attention || s->closing)) {
        s->attention = false;
        sweep(s, &s->pending);
        sweep(s, &s->waiting);
    }
    tell_ended(s);
    if (s->closing && !s->working && mu_list_empty(&s->pending) && mu_list_empty(&s->ended)) {
        if (s->world_size >= 0 && !s->leaving) {
            start_leave(s);
        }
        if (!s->working) {
            finish_close(s);
            return;
        }
    }
    if (!s->working && !s->closing &&
        (!mu_list_empty(&s->pending) ||
         (!mu_list_empty(&s->waiting) && mu_mono_reached(s->poll_at, now)))) {
        start_batch(s);
    }
    if (!mu_list_empty(&s->ended) || ((s->attention || s->closing) && !s->working)) {
        run_soon(s);
    } else {
        mu_env_timer_arm(s->base.env, &s->timer,
                         s->working || mu_list_empty(&s->waiting) ? MU_MONO_NEVER : s->poll_at);
    }
}

static void on_timer(struct mu_timer *timer)
{
    pump(MU_CONTAINER_OF(timer, struct file_store, timer));
}

static void on_op_timeout(struct mu_timer *timer)
{
    struct mu_store_op *op = MU_CONTAINER_OF(timer, struct mu_store_op, timer);
    struct file_store *s = MU_CONTAINER_OF(op->store, struct file_store, base);
    struct file_op *f = op->impl;

    f->expired = true;
    s->attention = true;
    run_soon(s);
}

/* --- the store's operations ------------------------------------------------------------------- */

/* Makes an op with its keys as they are in the file. NULL: no memory. */
static struct file_op *make_op(struct mu_store_op *op)
{
    const struct mu_store_request *q = &op->request;
    size_t bytes = q->key_count * (sizeof(struct mu_span) + 1);
    struct file_op *f;
    uint8_t *at;

    for (size_t i = 0; i < q->key_count; i++) {
        bytes += q->keys[i].len;
    }
    f = mu_calloc(1, sizeof(*f) + bytes);
    if (f == NULL) {
        return NULL;
    }
    at = (uint8_t *)(f->keys + q->key_count);
    for (size_t i = 0; i < q->key_count; i++) {
        f->keys[i] = mu_span(at, q->keys[i].len + 1);
        *at++ = MU_FILE_USER_PREFIX;
        if (q->keys[i].len != 0) {
            memcpy(at, q->keys[i].data, q->keys[i].len);
        }
        at += q->keys[i].len;
    }
    f->op = op;
    f->request = *q;
    f->request.keys = f->keys;
    mu_list_init(&f->link);
    return f;
}

static void file_submit(struct mu_store *store, struct mu_store_op *op)
{
    struct file_store *s = MU_CONTAINER_OF(store, struct file_store, base);
    struct file_op *f = make_op(op);

    op->impl = f;
    if (f == NULL) {
        mu_store_fail_later(store, op, MUSTER_ENOMEM);
        return;
    }
    op->deadline = mu_store_deadline(store, op);
    mu_timer_init(&op->timer, on_op_timeout);
    if (mu_file_supports(&op->request, &f->answer.errmsg)) {
        mu_env_timer_arm(store->env, &op->timer, op->deadline);
        mu_list_push(&s->pending, &f->link);
    } else {
        f->answer.given = true;
        f->answer.status = MUSTER_ENOTSUP;
        mu_list_push(&s->ended, &f->link);
    }
    run_soon(s);
}

static void file_cancel(struct mu_store *store, struct mu_store_op *op)
{
    struct file_store *s = MU_CONTAINER_OF(store, struct file_store, base);
    struct file_op *f = op->impl;

    if (f != NULL) {
        f->canceled = true;
        s->attention = true;
        run_soon(s);
    }
}

static void file_close(struct mu_store *store)
{
    struct file_store *s = MU_CONTAINER_OF(store, struct file_store, base);

    s->closing = true;
    run_soon(s);
}

static const struct mu_store_kind file_kind = {
    .submit = file_submit,
    .cancel = file_cancel,
    .close = file_close,
};

int mu_store_file_new_on(struct mu_env *env, struct mu_file_log *log, const char *path,
                         int64_t world_size, struct mu_store **ret_store)
{
    size_t len = strlen(path);
    struct file_store *s = mu_calloc(1, sizeof(*s) + len + 1);
    uint64_t seed;

    if (s == NULL) {
        return MUSTER_ENOMEM;
    }
    mu_env_entropy(env, &seed, sizeof(seed));
    if (mu_file_cache_init(&s->cache, seed) != 0) {
        mu_free(s);
        return MUSTER_ENOMEM;
    }
    memcpy(s->path, path, len + 1);
    s->base.kind = &file_kind;
    s->base.env = env;
    s->log = log;
    s->world_size = world_size;
    s->poll_at = MU_MONO_NEVER;
    mu_timer_init(&s->timer, on_timer);
    mu_list_init(&s->pending);
    mu_list_init(&s->waiting);
    mu_list_init(&s->batch);
    mu_list_init(&s->ended);
    *ret_store = &s->base;
    return 0;
}

int mu_store_file_new(struct mu_env *env, const char *path, int64_t world_size,
                      struct mu_store **ret_store)
{
    const struct mu_paths *paths = mu_env_paths(env);
    struct mu_file_log *log;
    int err = paths == NULL ? MUSTER_ENOTSUP : paths->open_log(path, &log);

    if (err != 0) {
        return err;
    }
    err = mu_store_file_new_on(env, log, path, world_size, ret_store);
    if (err != 0) {
        log->ops->close(log);
    }
    return err;
}

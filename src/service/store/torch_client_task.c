/*
 * One operation on a server of PyTorch's protocol: mostly a single step. Servers of generation 1
 * lack some operations, which are composed of others here, as in PyTorch's own clients.
 */
#include "service/store/torch_client.h"

#include <stdio.h>

#include "core/alloc.h"

#define EXPLAIN_MS   1000 /* how long we may ask which keys are missing */
#define APPEND_TRIES 1000 /* of a composed append, each lost to another client's change */

/* --- steps and the end ------------------------------------------------------------------------ */

/* Queues a step; the pump sends it. */
static int add_step(struct torch_task *t, const struct mu_store_request *q, size_t index)
{
    struct torch_store *s = t->store;
    struct torch_step *step = mu_calloc(1, sizeof(*step));

    if (step == NULL) {
        return MUSTER_ENOMEM;
    }
    step->task = t;
    step->request = *q;
    step->index = index;
    mu_list_push(mu_store_may_block(q) ? &s->own_queue : &s->main_queue, &step->link);
    mu_list_push(&t->steps, &step->of_task);
    mu_torch_store_wake(s);
    return 0;
}

/* Forgets the steps that are queued, disowns those in flight. */
static void release_steps(struct torch_task *t)
{
    struct mu_list *it;

    while ((it = mu_list_pop(&t->steps)) != NULL) {
        struct torch_step *step = MU_CONTAINER_OF(it, struct torch_step, of_task);

        step->task = NULL;
        if (step->conn == NULL) {
            mu_list_remove(&step->link);
            mu_free(step);
        } else if (mu_store_may_block(&step->request) && !t->store->closing) {
            mu_torch_conn_cancel(step->conn);
        }
    }
    t->under_way = 0;
}

static void free_values(struct torch_task *t)
{
    for (size_t i = 0; t->values != NULL && i < t->value_count; i++) {
        mu_free((void *)(uintptr_t)t->values[i].data);
    }
    mu_free(t->values);
    t->values = NULL;
}

static void free_task(struct torch_task *t)
{
    free_values(t);
    mu_buf_fini(&t->text);
    mu_free(t);
}

/* After this nothing points to the task any more. */
static void take_out(struct torch_task *t)
{
    release_steps(t);
    mu_list_remove(&t->link);
    mu_env_timer_arm(t->store->base.env, &t->op->timer, MU_MONO_NEVER);
    t->op->impl = NULL;
    if (t->waits) {
        t->store->waits--;
    }
}

void mu_torch_task_end(struct torch_task *t, int status, const char *text)
{
    take_out(t);
    mu_store_finish(t->op, status, text);
    free_task(t);
}

void mu_torch_task_abandon(struct torch_task *t)
{
    take_out(t);
    free_task(t);
}

/* --- timeouts --------------------------------------------------------------------------------- */

/* `known` is false if we could not ask for some keys: those are counted as missing. */
static void end_timed_out(struct torch_task *t, bool known)
{
    const struct mu_store_request *q = &t->op->request;
    size_t count = t->missing_count;
    size_t named = 0;
    char text[MU_ERRMSG_CAP];
    size_t n;

    if (count == 0) {
        (void)snprintf(text, sizeof(text), "timed out waiting for %zu keys, %s", q->key_count,
                       known ? "which have all come since"
                             : "and the server did not say which are missing");
        mu_torch_task_end(t, MUSTER_ETIMEDOUT, text);
        return;
    }
    n = (size_t)snprintf(text, sizeof(text),
                         "timed out waiting for %s%zu %s:", known ? "" : "some of ", count,
                         count == 1 ? "key" : "keys");
    while (named < count && named < MU_TORCH_MISSING_NAMED && n + 96 < sizeof(text)) {
        char quoted[72];

        n += (size_t)snprintf(text + n, sizeof(text) - n, " %s",
                              mu_span_quote(quoted, sizeof(quoted), q->keys[t->missing[named]]));
        named++;
    }
    if (named < count) {
        (void)snprintf(text + n, sizeof(text) - n, " and %zu more", count - named);
    }
    mu_torch_task_end(t, MUSTER_ETIMEDOUT, text);
}

static void note_missing(struct torch_task *t, size_t index)
{
    if (t->missing_count < MU_TORCH_MISSING_NAMED) {
        t->missing[t->missing_count] = index;
    }
    t->missing_count++;
}

/* It will not be known which keys are missing. */
static void end_unexplained(struct torch_task *t)
{
    t->missing_count = 0;
    for (size_t i = 0; i < t->op->request.key_count; i++) {
        note_missing(t, i);
    }
    end_timed_out(t, t->op->request.key_count == 1);
}

/* Keeps a few steps under way, one for each key, until all keys had theirs. */
static int fan_out(struct torch_task *t)
{
    const struct mu_store_request *q = &t->op->request;

    while (t->next < q->key_count && t->under_way < MU_TORCH_MISSING_NAMED) {
        struct mu_store_request one = {
            .verb = MU_STORE_CHECK, .keys = &q->keys[t->next], .key_count = 1};
        int err;

        if (t->phase != TORCH_TASK_EXPLAINING && q->verb == MU_STORE_MULTI_GET) {
            one.verb = MU_STORE_GET;
            one.flags = MU_STORE_NOWAIT;
        } else if (t->phase != TORCH_TASK_EXPLAINING) {
            one.verb = MU_STORE_SET;
            one.values = &q->values[t->next];
            one.value_count = 1;
        }
        err = add_step(t, &one, t->next);
        if (err != 0) {
            return err;
        }
        t->next++;
        t->under_way++;
    }
    return 0;
}

/* The wait is over: finds out which keys have not come. */
static void explain(struct torch_task *t)
{
    struct mu_env *env = t->store->base.env;

    release_steps(t);
    if (t->op->request.key_count <= 1 || t->store->main == NULL || t->store->closing) {
        end_unexplained(t);
        return;
    }
    t->phase = TORCH_TASK_EXPLAINING;
    t->next = 0;
    if (fan_out(t) != 0) {
        end_unexplained(t);
        return;
    }
    mu_env_timer_arm(env, &t->op->timer, mu_mono_add_ms(mu_env_now(env).mono, EXPLAIN_MS));
}

static void take_explanation(struct torch_task *t, size_t index, int64_t there)
{
    t->under_way--;
    if (there == 0) {
        note_missing(t, index);
    }
    if (fan_out(t) != 0) {
        end_unexplained(t);
    } else if (t->under_way == 0) {
        end_timed_out(t, true);
    }
}

/* Whether any step is in flight, and which one blocks. */
static struct torch_step *find_sent(struct torch_task *t, bool *ret_any)
{
    *ret_any = false;
    MU_LIST_FOREACH (it, &t->steps) {
        struct torch_step *step = MU_CONTAINER_OF(it, struct torch_step, of_task);

        *ret_any = *ret_any || step->conn != NULL;
        if (step->conn != NULL && mu_store_may_block(&step->request)) {
            return step;
        }
    }
    return NULL;
}

static void run_out_of_time(struct torch_task *t)
{
    struct torch_store *s = t->store;
    enum mu_store_verb verb = t->op->request.verb;
    bool any;
    struct torch_step *step = find_sent(t, &any);
    char text[MU_ERRMSG_CAP];

    if (step != NULL) {
        t->phase = TORCH_TASK_CANCELING; /* goes on with the step's answer, or its loss */
        mu_torch_conn_cancel(step->conn);
        return;
    }
    if (any) {
        (void)snprintf(text, sizeof(text), "timed out after %u ms: no answer from %.120s%s%s%s",
                       t->op->timeout_ms, s->addr,
                       mu_store_verb_is_read(verb) ? "" : "; the outcome of ",
                       mu_store_verb_is_read(verb) ? "" : mu_store_verb_facts(verb)->name,
                       mu_store_verb_is_read(verb) ? "" : " is unknown");
    } else {
        (void)snprintf(text, sizeof(text), "timed out after %u ms: no connection to %.120s%s%s",
                       t->op->timeout_ms, s->addr, s->last_error != 0 ? ": " : "",
                       s->last_error != 0 ? muster_strerror(s->last_error) : "");
    }
    mu_torch_task_end(t, MUSTER_ETIMEDOUT, text);
}

static void on_op_timeout(struct mu_timer *timer)
{
    struct torch_task *t = MU_CONTAINER_OF(timer, struct mu_store_op, timer)->impl;
    struct torch_store *s = t->store;

    if (t->phase == TORCH_TASK_EXPLAINING) {
        end_unexplained(t);
    } else {
        run_out_of_time(t);
    }
    mu_torch_store_pump(s);
}

void mu_torch_task_give_up(struct torch_task *t, const char *text)
{
    if (t->phase == TORCH_TASK_EXPLAINING) {
        end_unexplained(t);
    } else {
        mu_torch_task_end(t, MUSTER_ECONN, text);
    }
}

/* --- what generation 1 lacks ------------------------------------------------------------------ */

/*
 * Tries append as compare_set, given the present value. If another client has just set the value
 * that we want, it counts as ours; the protocol cannot distinguish them, and PyTorch's clients do
 * the same.
 */
static int try_append(struct torch_task *t, struct mu_span current)
{
    const struct mu_store_request *q = &t->op->request;
    struct mu_store_request swap = {.verb = MU_STORE_COMPARE_SET,
                                    .keys = q->keys,
                                    .key_count = 1,
                                    .values = t->swap,
                                    .value_count = 2};
    int err;

    if (t->tries++ >= APPEND_TRIES) {
        return MUSTER_EAGAIN;
    }
    mu_buf_reset(&t->text);
    err = mu_buf_append(&t->text, current);
    if (err == 0) {
        err = mu_buf_append(&t->text, q->values[0]);
    }
    if (err != 0) {
        return err;
    }
    t->swap[1] = mu_buf_span(&t->text);
    t->swap[0] = mu_span(t->swap[1].data, current.len);
    return add_step(t, &swap, 0);
}

static void take_append(struct torch_task *t, const struct mu_store_reply *reply)
{
    struct mu_span now = reply->values[0];
    int err;

    if (mu_span_eq(now, t->swap[1])) {
        t->op->reply = (struct mu_store_reply){.number = (int64_t)now.len};
        mu_torch_task_end(t, 0, NULL);
        return;
    }
    /* The answer is what we expected, and yet it was not replaced: this is the answer for an absent
     * key. */
    if (mu_span_eq(now, t->swap[0])) {
        now.len = 0;
    }
    err = try_append(t, now);
    if (err != 0) {
        mu_torch_task_end(
            t, err,
            err == MUSTER_EAGAIN
                ? "other clients keep changing the value while we append to it; try again"
                : NULL);
    }
}

static int wait_for_all(struct torch_task *t)
{
    struct mu_store_request wait = t->op->request;

    wait.verb = MU_STORE_WAIT;
    t->next = 0;
    return add_step(t, &wait, 0);
}

/* A key of a multi_get is gone. */
static int miss_key(struct torch_task *t)
{
    if ((t->op->request.flags & MU_STORE_NOWAIT) != 0) {
        return MUSTER_ENOENT;
    }
    release_steps(t);
    free_values(t);
    t->value_count = t->op->request.key_count;
    t->values = mu_calloc(t->value_count, sizeof(*t->values));
    return t->values == NULL ? MUSTER_ENOMEM : wait_for_all(t);
}

static int take_value(struct torch_task *t, size_t index, struct mu_span value)
{
    char *copy = mu_strndup(value.len == 0 ? "" : (const char *)value.data, value.len);

    if (copy == NULL) {
        return MUSTER_ENOMEM;
    }
    mu_free((void *)(uintptr_t)t->values[index].data);
    t->values[index] = mu_span(copy, value.len);
    return 0;
}

/* The answer to a step of multi_get or multi_set. */
static void take_part(struct torch_task *t, enum mu_store_verb verb, size_t index, int status,
                      const struct mu_store_reply *reply)
{
    if (verb != MU_STORE_WAIT) {
        t->under_way--;
    }
    if (verb == MU_STORE_GET && status == MUSTER_ENOENT) {
        status = miss_key(t);
    } else {
        if (status == 0 && verb == MU_STORE_GET) {
            status = take_value(t, index, reply->values[0]);
        }
        if (status == 0) {
            status = fan_out(t);
        }
    }
    if (status != 0) {
        mu_torch_task_end(t, status, NULL);
    } else if (mu_list_empty(&t->steps)) {
        t->op->reply = (struct mu_store_reply){0};
        if (verb == MU_STORE_GET) {
            t->op->reply.values = t->values;
            t->op->reply.value_count = t->op->request.key_count;
        }
        mu_torch_task_end(t, 0, NULL);
    }
}

static unsigned kind_of(const struct torch_store *s)
{
    return s->generation == MU_TORCH_1 ? MU_STORE_IN_TORCH1 : MU_STORE_IN_TORCH2;
}

/* Whether the server does not know the verb, but knows others of which we can compose it. */
static bool is_composed(const struct torch_task *t)
{
    return (mu_store_verb_facts(t->op->request.verb)->known & kind_of(t->store)) == 0;
}

static int start_composed(struct torch_task *t)
{
    const struct mu_store_request *q = &t->op->request;

    if (q->verb == MU_STORE_APPEND) {
        return q->key_count == 1 && q->value_count == 1 ? try_append(t, (struct mu_span){0})
                                                        : MUSTER_EINVAL;
    }
    if (q->value_count != (q->verb == MU_STORE_MULTI_SET ? q->key_count : 0)) {
        return MUSTER_EINVAL;
    }
    if (q->verb == MU_STORE_MULTI_GET) {
        t->value_count = q->key_count;
        t->values = mu_calloc(t->value_count, sizeof(*t->values));
        if (t->values == NULL) {
            return MUSTER_ENOMEM;
        }
    }
    return mu_store_may_block(q) ? wait_for_all(t) : fan_out(t);
}

/* --- the beginning ---------------------------------------------------------------------------- */

struct torch_task *mu_torch_task_new(struct torch_store *s, struct mu_store_op *op)
{
    struct torch_task *t = mu_calloc(1, sizeof(*t));

    if (t == NULL) {
        return NULL;
    }
    t->op = op;
    t->store = s;
    mu_list_init(&t->link);
    mu_list_init(&t->steps);
    mu_buf_init(&t->text, SIZE_MAX);
    mu_store_begin(&s->base, op, t, on_op_timeout);
    return t;
}

void mu_torch_task_start(struct torch_task *t)
{
    struct torch_store *s = t->store;
    struct mu_store_request q = t->op->request;
    const char *lacking = mu_store_lacks(kind_of(s), &q);
    char text[MU_ERRMSG_CAP];
    int err;

    if (lacking != NULL) {
        (void)snprintf(text, sizeof(text), "%.120s is PyTorch%s store, which does not support %s",
                       s->addr, s->generation == MU_TORCH_1 ? " 1.13's" : "'s", lacking);
        mu_torch_task_end(t, MUSTER_ENOTSUP, text);
        return;
    }
    if (mu_store_may_block(&q) && s->waits >= s->config.waits_max) {
        (void)snprintf(text, sizeof(text),
                       "%zu operations wait on %.120s already, each on a connection of its own, "
                       "and more are not allowed",
                       s->waits, s->addr);
        mu_torch_task_end(t, MUSTER_EBUSY, text);
        return;
    }
    t->waits = mu_store_may_block(&q);
    s->waits += t->waits ? 1 : 0;
    if (is_composed(t)) {
        err = start_composed(t);
    } else {
        if (q.verb == MU_STORE_LIST_KEYS) { /* the prefix is applied here */
            q.flags &= ~MU_STORE_PREFIX;
            q.key_count = 0;
        }
        err = add_step(t, &q, 0);
    }
    if (err != 0) {
        mu_torch_task_end(t, err, NULL);
    } else if (mu_list_empty(&t->steps)) { /* there are no keys */
        t->op->reply = (struct mu_store_reply){0};
        mu_torch_task_end(t, 0, NULL);
    }
}

/* --- answers ---------------------------------------------------------------------------------- */

static void end_list(struct torch_task *t, const struct mu_store_reply *reply)
{
    const struct mu_store_request *q = &t->op->request;
    struct mu_span prefix = q->key_count != 0 ? q->keys[0] : (struct mu_span){0};
    struct mu_span *kept = mu_calloc(reply->value_count, sizeof(*kept));
    size_t count = 0;

    if (kept == NULL) {
        mu_torch_task_end(t, MUSTER_ENOMEM, NULL);
        return;
    }
    for (size_t i = 0; i < reply->value_count; i++) {
        if (mu_span_starts_with(reply->values[i], prefix)) {
            kept[count++] = reply->values[i];
        }
    }
    t->op->reply =
        (struct mu_store_reply){.number = (int64_t)count, .values = kept, .value_count = count};
    mu_torch_task_end(t, 0, NULL);
    mu_free(kept);
}

static void take_answer(struct torch_task *t, enum mu_store_verb verb, size_t index, int status,
                        const struct mu_store_reply *reply)
{
    if (is_composed(t) && t->op->request.verb == MU_STORE_APPEND && status == 0) {
        take_append(t, reply);
    } else if (is_composed(t)) {
        take_part(t, verb, index, status, reply);
    } else if (verb == MU_STORE_LIST_KEYS && status == 0) {
        end_list(t, reply);
    } else if (verb == MU_STORE_QUEUE_POP && status == MUSTER_EAGAIN) {
        status = add_step(t, &t->op->request, 0); /* another client was quicker: waits again */
        if (status != 0) {
            mu_torch_task_end(t, status, NULL);
        }
    } else {
        t->op->reply = *reply;
        mu_torch_task_end(t, status, NULL);
    }
}

void mu_torch_step_answered(struct torch_step *step, int status, const struct mu_store_reply *reply)
{
    struct torch_task *t = step->task;
    enum mu_store_verb verb = step->request.verb;
    size_t index = step->index;

    mu_list_remove(&step->of_task);
    mu_free(step);
    if (t == NULL) {
        return;
    }
    switch (t->phase) {
    case TORCH_TASK_RUNNING:
        take_answer(t, verb, index, status, reply);
        break;
    case TORCH_TASK_CANCELING: /* the answer may have come before the cancel */
        if (status == 0 && !is_composed(t)) {
            take_answer(t, verb, index, status, reply);
        } else {
            explain(t);
        }
        break;
    case TORCH_TASK_EXPLAINING:
        take_explanation(t, index, reply->number);
        break;
    }
}

bool mu_torch_step_repeats(const struct torch_step *step)
{
    return step->task != NULL && step->task->phase != TORCH_TASK_CANCELING &&
           mu_store_verb_is_read(step->request.verb);
}

void mu_torch_step_lost(struct torch_step *step)
{
    struct torch_task *t = step->task;
    char text[MU_ERRMSG_CAP];

    mu_list_remove(&step->of_task);
    mu_free(step);
    if (t == NULL) {
        return;
    }
    if (t->phase == TORCH_TASK_CANCELING) {
        explain(t);
        return;
    }
    (void)snprintf(text, sizeof(text),
                   "lost the connection to %.120s: the outcome of %s is unknown", t->store->addr,
                   mu_store_verb_facts(t->op->request.verb)->name);
    mu_torch_task_end(t, MUSTER_ECONN, text);
}

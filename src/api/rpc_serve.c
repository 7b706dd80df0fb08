/* Handlers as their authors see them: on the loop, or on threads where they may block. */
#include <string.h>
#include <time.h>

#include "api/rpc_serve.h"
#include "core/alloc.h"

/* --- counting --------------------------------------------------------------------------------- */

static uint64_t now_ns(void)
{
    struct timespec now = mu_wait_until(0);

    return (uint64_t)now.tv_sec * MU_NS_PER_S + (uint64_t)now.tv_nsec;
}

static bool is_profiled(const muster_rpc_call_in *c)
{
    return atomic_load_explicit(&c->agent->profiling, memory_order_relaxed);
}

static void count_begin(muster_rpc_call_in *c)
{
    if (c->came_ns == 0) {
        return;
    }
    c->began_ns = now_ns();
    if ((c->method->flags & MUSTER_RPC_BLOCKS) != 0) {
        uint64_t us = (c->began_ns - c->came_ns) / 1000;
        unsigned n = 0;

        while (n < MU_RPC_BUCKETS - 1 && us >= UINT64_C(1) << n) {
            n++;
        }
        (void)pthread_mutex_lock(&c->agent->lock);
        c->agent->queue_us[n]++;
        (void)pthread_mutex_unlock(&c->agent->lock);
    }
}

static void count_end(muster_rpc_call_in *c, int status)
{
    struct muster_rpc_profile *p = &c->method->profile;
    uint64_t queued = c->began_ns - c->came_ns;
    uint64_t ran;

    if (c->began_ns == 0 || !is_profiled(c)) {
        return;
    }
    ran = now_ns() - c->began_ns;
    (void)pthread_mutex_lock(&c->agent->lock);
    p->calls++;
    p->errors += status != 0 ? 1 : 0;
    p->queue_us += queued;
    p->queue_us_max = queued > p->queue_us_max ? queued : p->queue_us_max;
    p->handler_us += ran;
    p->handler_us_max = ran > p->handler_us_max ? ran : p->handler_us_max;
    (void)pthread_mutex_unlock(&c->agent->lock);
}

/* --- answering -------------------------------------------------------------------------------- */

static void answer_on_loop(struct mu_post *post)
{
    muster_rpc_call_in *c = MU_CONTAINER_OF(post, muster_rpc_call_in, post);
    struct mu_rpc_agent *agent = c->agent->agent;

    mu_queued_fini(&c->place);
    mu_rpc_in_reply_buf(c->in, c->status, &c->answer);
    mu_rpc_pool_give(c->agent->pool, &c->buf);
    mu_free(c->parts);
    mu_free(c);
    mu_rpc_agent_turn(agent);
}

static void answer_later(muster_rpc_call_in *c, int status)
{
    c->status = status;
    count_end(c, status);
    c->post.run = answer_on_loop;
    mu_uv_env_post(c->agent->rt->uv, &c->post);
}

static void answer(muster_rpc_call_in *c, int status)
{
    if (!mu_runtime_is_mine(c->agent->rt)) {
        answer_later(c, status);
        return;
    }
    c->status = status;
    count_end(c, status);
    answer_on_loop(&c->post);
}

int mu_rpc_encode_parts(struct mu_buf *out, const struct muster_rpc_part *parts, size_t count)
{
    struct mu_rpc_part *inner = mu_calloc(count + 1, sizeof(*inner));
    size_t size = 0;
    int err;

    if (inner == NULL || count > MU_RPC_PARTS_MAX) {
        mu_free(inner);
        return inner == NULL ? MUSTER_ENOMEM : MUSTER_ELIMIT;
    }
    for (size_t i = 0; i < count; i++) {
        inner[i] =
            (struct mu_rpc_part){mu_span(parts[i].data.data, parts[i].data.len), parts[i].device};
    }
    err = mu_rpc_msg_size(inner, count, &size);
    if (err == 0) {
        err = mu_buf_reserve(out, size + 3 + count * 12); /* all at once: growing would copy */
    }
    if (err == 0) {
        err = mu_rpc_msg_head(out, inner, count);
    }
    for (size_t i = 0; err == 0 && i < count; i++) {
        err = mu_buf_append(out, inner[i].data);
    }
    mu_free(inner);
    return err;
}

/* Takes memory for a long answer, from the pool if it has some. */
static void take_long_buf(muster_rpc_call_in *c, const struct muster_rpc_part *parts, size_t count)
{
    size_t size = 3 + count * 12;

    for (size_t i = 0; i < count; i++) {
        if (parts[i].data.len > SIZE_MAX / 4 - size) {
            return; /* it will be refused */
        }
        size += parts[i].data.len;
    }
    if (size > MU_RPC_MSG_LONG && c->answer.data == NULL) {
        c->answer = mu_rpc_pool_take(c->agent->pool, size, size);
        c->answer.max = SIZE_MAX / 4;
    }
}

void muster_rpc_reply(muster_rpc_call_in *c, const struct muster_rpc_part *parts, size_t count)
{
    int err;

    take_long_buf(c, parts, count);
    err = mu_rpc_encode_parts(&c->answer, parts, count);

    if (err != 0) {
        mu_buf_reset(&c->answer);
    }
    answer(c, err);
}

static void say(muster_rpc_call_in *c, const char *text)
{
    size_t len = text == NULL ? 0 : strlen(text);

    mu_buf_reset(&c->answer);
    (void)mu_buf_append(&c->answer,
                        mu_span(text, len < MU_RPC_MESSAGE_MAX ? len : MU_RPC_MESSAGE_MAX));
}

void muster_rpc_fail(muster_rpc_call_in *c, int code, const char *text)
{
    say(c, text);
    answer(c, code < 0 ? code : MUSTER_EREMOTE);
}

/* --- queues ----------------------------------------------------------------------------------- */

static const char queue_freed[] = "the worker has freed the queue of this method";

/* The queue was freed, and nobody took the call. */
static void on_dropped(struct mu_queued *place)
{
    muster_rpc_call_in *c = MU_CONTAINER_OF(place, muster_rpc_call_in, place);

    say(c, queue_freed);
    answer_later(c, MUSTER_ECLOSED);
}

static void enter_queue(muster_rpc_call_in *c)
{
    struct mu_rpc_served *m = c->method;

    mu_queued_init(&c->place, m->queue, c, m->context);
    c->place.dropped = on_dropped;
    count_begin(c);
    if (!mu_queued_push(&c->place, MUSTER_QUEUED_CALL)) {
        muster_rpc_fail(c, MUSTER_ECLOSED, queue_freed);
    }
}

/* --- threads ---------------------------------------------------------------------------------- */

static void run_handler(struct mu_rpc_job *job)
{
    muster_rpc_call_in *c = MU_CONTAINER_OF(job, muster_rpc_call_in, job);
    int why = muster_rpc_in_canceled(c);

    count_begin(c);
    if (why != 0) {
        muster_rpc_fail(c, why, "canceled before it began");
    } else {
        c->method->handler(c, c->method->context);
    }
}

static void *serve_queue(void *context)
{
    muster_rpc_agent *a = context;
    struct mu_rpc_job *job;
    struct mu_list *it;

    (void)pthread_mutex_lock(&a->lock);
    for (;;) {
        it = mu_list_pop(&a->queue);
        if (it != NULL) {
            a->queued--;
            a->idle_count--;
            (void)pthread_mutex_unlock(&a->lock);
            job = MU_CONTAINER_OF(it, struct mu_rpc_job, link);
            job->run(job);
            (void)pthread_mutex_lock(&a->lock);
            a->idle_count++;
        } else if (a->closing) {
            break;
        } else {
            (void)pthread_cond_wait(&a->work, &a->lock);
        }
    }
    (void)pthread_mutex_unlock(&a->lock);
    return NULL;
}

bool mu_rpc_enqueue(muster_rpc_agent *a, struct mu_rpc_job *job)
{
    bool taken;

    (void)pthread_mutex_lock(&a->lock);
    if (a->idle_count <= a->queued && a->thread_count < a->threads_max &&
        pthread_create(&a->threads[a->thread_count], NULL, serve_queue, a) == 0) {
        a->thread_count++;
        a->idle_count++;
    }
    taken = a->thread_count != 0;
    if (taken) {
        mu_list_push(&a->queue, &job->link);
        a->queued++;
        (void)pthread_cond_signal(&a->work);
    }
    (void)pthread_mutex_unlock(&a->lock);
    return taken;
}

void mu_rpc_threads_end(muster_rpc_agent *a)
{
    (void)pthread_mutex_lock(&a->lock);
    a->closing = true;
    (void)pthread_cond_broadcast(&a->work);
    (void)pthread_mutex_unlock(&a->lock);
    for (uint32_t i = 0; i < a->thread_count; i++) {
        (void)pthread_join(a->threads[i], NULL);
    }
}

/* --- incoming calls --------------------------------------------------------------------------- */

static void on_start(struct mu_rpc_handler *base, struct mu_rpc_in *in, struct mu_span message)
{
    struct mu_rpc_served *m = MU_CONTAINER_OF(base, struct mu_rpc_served, base.base);
    muster_rpc_call_in *c = mu_calloc(1, sizeof(*c));
    int err = c == NULL ? MUSTER_ENOMEM : 0;

    if (err == 0) {
        c->buf = mu_rpc_agent_steal(m->base.agent->agent);
        c->buf.max = SIZE_MAX / 4;
        mu_buf_init(&c->answer, SIZE_MAX / 4);
        err = c->buf.len != 0 ? 0 : mu_buf_append(&c->buf, message);
    }
    if (err == 0) {
        err = mu_rpc_msg_decode(mu_buf_span(&c->buf), &c->parts, &c->part_count);
    }
    if (err != 0) {
        if (c != NULL) {
            mu_buf_fini(&c->buf);
            mu_free(c);
        }
        mu_rpc_in_reply(in, err, mu_span_str(muster_strerror(err)));
        return;
    }
    c->agent = m->base.agent;
    c->method = m;
    c->in = in;
    in->owner = c;
    memcpy(c->caller, in->caller, sizeof(c->caller));
    c->has_deadline = in->deadline.ns != MU_MONO_NEVER.ns;
    if (c->has_deadline) {
        uint64_t left = mu_mono_until_ms(in->deadline, mu_env_now(c->agent->rt->env).mono);

        c->deadline = mu_wait_until(left > INT32_MAX ? INT32_MAX : (int64_t)left);
    }
    c->job.run = run_handler;
    if ((m->flags & MUSTER_RPC_BLOCKS) != 0 || is_profiled(c)) {
        c->came_ns = now_ns();
    }
    if (m->queue != NULL) {
        enter_queue(c);
    } else if ((m->flags & MUSTER_RPC_BLOCKS) == 0) {
        count_begin(c);
        m->handler(c, m->context);
    } else if (!mu_rpc_enqueue(c->agent, &c->job)) {
        muster_rpc_fail(c, MUSTER_ELIMIT, "no thread could be started for the handler");
    }
}

static void on_cancel(struct mu_rpc_in *in, int why)
{
    muster_rpc_call_in *c = in->owner;
    muster_rpc_agent *a = c->agent;
    void (*told)(muster_rpc_call_in * call, void *context);
    void *context;

    (void)pthread_mutex_lock(&a->lock);
    c->canceled = why;
    told = c->on_cancel;
    context = c->cancel_context;
    (void)pthread_cond_broadcast(&a->cond);
    (void)pthread_mutex_unlock(&a->lock);
    if (told != NULL) {
        told(c, context);
    } else if (mu_queued_leave(&c->place)) {
        /* Nobody has taken it. Later, as the agent is in the middle of something. */
        say(c, "canceled before it was taken from the queue");
        answer_later(c, why);
    }
}

/* --- registering ------------------------------------------------------------------------------ */

struct serve_door {
    struct mu_rpc_door base;
    struct mu_rpc_method *method;
    int err;
};

static void serve_on_loop(struct mu_door *door)
{
    struct serve_door *d = MU_CONTAINER_OF(door, struct serve_door, base.door);

    d->err = mu_rpc_agent_serve(d->base.agent->agent, &d->method->base);
    if (d->err == 0) {
        mu_list_push(&d->base.agent->handlers, &d->method->link);
    }
    mu_door_open(door);
}

int mu_rpc_serve_method(muster_rpc_agent *a, struct mu_rpc_method *m)
{
    struct serve_door d = {.method = m};

    m->agent = a;
    mu_rpc_pass(a, &d.base, serve_on_loop);
    if (d.err != 0) {
        mu_free(m);
        return mu_api_error(d.err,
                            d.err == MUSTER_EEXIST ? "the method already has a handler" : NULL);
    }
    return 0;
}

int mu_rpc_check_method(const char *method)
{
    const char *dot = method == NULL ? NULL : strrchr(method, '.');
    const char *colons = NULL;

    for (const char *at = method; dot != NULL && at + 2 < dot; at++) {
        colons = at[0] == ':' && at[1] == ':' ? at : colons;
    }
    if (colons == NULL || colons == method || dot[1] == '\0' ||
        !mu_rpc_is_method(mu_span_str(method))) {
        return mu_api_error(MUSTER_EINVAL, "a method must be namespace::Service.method, up to 255 "
                                           "printable characters without spaces");
    }
    return 0;
}

int mu_rpc_method_new(const char *name, size_t size, struct mu_rpc_method **ret)
{
    struct mu_rpc_method *m;

    if (mu_rpc_check_method(name) != 0) {
        return MUSTER_EINVAL;
    }
    m = mu_calloc(1, size + strlen(name) + 1);
    if (m == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    m->base.method = memcpy((char *)m + size, name, strlen(name) + 1);
    *ret = m;
    return 0;
}

int muster_rpc_register(muster_rpc_agent *a, const char *method, muster_rpc_handler *handler,
                        void *context, uint32_t flags)
{
    struct mu_rpc_method *base;
    struct mu_rpc_served *m;
    int err;

    if (handler == NULL || flags > MUSTER_RPC_BLOCKS) {
        return mu_api_error(MUSTER_EINVAL, "a handler needs a function and known flags");
    }
    err = mu_rpc_method_new(method, sizeof(*m), &base);
    if (err != 0) {
        return err;
    }
    m = MU_CONTAINER_OF(base, struct mu_rpc_served, base);
    m->handler = handler;
    m->context = context;
    m->flags = flags;
    base->base.start = on_start;
    base->base.cancel = on_cancel;
    return mu_rpc_serve_method(a, base);
}

int muster_rpc_register_queue(muster_rpc_agent *a, const char *method, muster_queue *queue,
                              void *context)
{
    struct mu_rpc_method *base;
    struct mu_rpc_served *m;
    int err;

    if (queue == NULL) {
        return mu_api_error(MUSTER_EINVAL, "muster_rpc_register_queue() needs a queue");
    }
    err = mu_queue_check(queue, a->rt);
    if (err == 0) {
        err = mu_rpc_method_new(method, sizeof(*m), &base);
    }
    if (err != 0) {
        return err;
    }
    m = MU_CONTAINER_OF(base, struct mu_rpc_served, base);
    m->queue = mu_queue_ref(queue);
    m->context = context;
    base->base.start = on_start;
    base->base.cancel = on_cancel;
    err = mu_rpc_serve_method(a, base);
    if (err != 0) {
        mu_queue_unref(queue);
    }
    return err;
}

static struct mu_rpc_served *served_of(struct mu_list *it)
{
    struct mu_rpc_method *m = MU_CONTAINER_OF(it, struct mu_rpc_method, link);

    return m->base.start == on_start ? MU_CONTAINER_OF(m, struct mu_rpc_served, base) : NULL;
}

size_t mu_rpc_profiles(muster_rpc_agent *a, struct muster_rpc_profile *ret, size_t cap)
{
    size_t count = 0;

    (void)pthread_mutex_lock(&a->lock);
    MU_LIST_FOREACH (it, &a->handlers) {
        struct mu_rpc_served *m = served_of(it);

        if (m != NULL && count < cap) {
            ret[count] = m->profile;
            memcpy(ret[count].method, m->base.base.method, strlen(m->base.base.method) + 1);
            ret[count].queue_us /= 1000;
            ret[count].queue_us_max /= 1000;
            ret[count].handler_us /= 1000;
            ret[count].handler_us_max /= 1000;
        }
        count += m != NULL ? 1 : 0;
    }
    (void)pthread_mutex_unlock(&a->lock);
    return count;
}

void mu_rpc_profiles_reset(muster_rpc_agent *a)
{
    (void)pthread_mutex_lock(&a->lock);
    MU_LIST_FOREACH (it, &a->handlers) {
        struct mu_rpc_served *m = served_of(it);

        if (m != NULL) {
            m->profile = (struct muster_rpc_profile){0};
        }
    }
    (void)pthread_mutex_unlock(&a->lock);
}

void mu_rpc_handlers_free(muster_rpc_agent *a)
{
    MU_LIST_FOREACH_SAFE (it, tmp, &a->handlers) {
        struct mu_rpc_served *m = served_of(it);

        if (m != NULL && m->queue != NULL) {
            mu_queue_unref(m->queue);
        }
        mu_free(MU_CONTAINER_OF(it, struct mu_rpc_method, link));
    }
}

/*
 * Streams as threads see them. Either end has two queues: messages that came and were not taken
 * yet, and messages that were not sent yet. The wire's windows bound the first one, since they open
 * again only for what is taken.
 */
#include <string.h>

#include "api/rpc_api.h"
#include "core/alloc.h"

#define UNSENT_MAX ((size_t)4 << 20) /* how many bytes wait to be sent before a sender must wait */

#define UNMAPPED "a part is on a device that is not mapped to one of the worker's"

/* A message, in either direction. */
struct item {
    struct mu_list link;
    struct mu_rpc_part *parts; /* of a message that came; NULL: it will be sent */
    size_t part_count;
    size_t len;
    uint8_t data[];
};

struct muster_rpc_stream {
    muster_rpc_agent *agent;
    muster_runtime *rt;
    bool caller;
    struct mu_rpc_out out; /* the loop's: of the caller */
    struct mu_rpc_in *in;  /* or of the callee, until it has answered */
    bool running;          /* the loop's: the call has begun and not ended */
    bool end_sent;
    struct mu_post post; /* the first one, then each kick */
    struct mu_rpc_job job;
    struct stream_method *method;
    atomic_int refs;
    struct item *lent;             /* the reader's */
    struct muster_rpc_part *shown; /* its parts as the reader sees them */
    /* Under the lock. */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    struct mu_list came;
    struct mu_list unsent;
    size_t unsent_bytes;
    size_t taken; /* bytes that the window will open for again */
    bool kicked;
    bool counts;   /* whether bytes that are taken count */
    bool no_more;  /* nothing more comes from the other end */
    bool ended;    /* nothing more will be sent from here */
    bool over;     /* `status` says how it ended */
    bool canceled; /* by muster_rpc_stream_close() */
    bool answered; /* the callee's handler has returned `status` */
    int status;
    struct mu_errmsg text;
    char to[MU_RPC_WORKER_MAX + 1]; /* "": no worker has to_id */
    int32_t to_id;
    bool mapped;                   /* the caller's end, to another worker */
    struct mu_rpc_device_map *map; /* as it was when the stream was opened */
    char name[MU_RPC_METHOD_MAX + 1];
    struct item *first; /* the request, and its parts */
    struct mu_rpc_part first_part;
};

struct stream_method {
    struct mu_rpc_method base;
    muster_rpc_stream_handler *handler;
    void *context;
};

/* --- items ------------------------------------------------------------------------------------ */

static struct item *new_item(const muster_rpc_stream *s, const struct muster_rpc_part *parts,
                             size_t count, int *ret_err)
{
    struct mu_rpc_part *inner = mu_calloc(count + 1, sizeof(*inner));
    struct item *item = NULL;
    struct mu_buf head;
    size_t size = 0;

    *ret_err = inner == NULL ? MUSTER_ENOMEM : count > MU_RPC_PARTS_MAX ? MUSTER_ELIMIT : 0;
    for (size_t i = 0; *ret_err == 0 && i < count; i++) {
        inner[i] =
            (struct mu_rpc_part){mu_span(parts[i].data.data, parts[i].data.len), parts[i].device};
        if (s->mapped) {
            *ret_err = mu_rpc_map_with(s->map, parts[i].device, false, &inner[i].device);
        }
    }
    mu_buf_init(&head, SIZE_MAX / 4);
    if (*ret_err == 0) {
        *ret_err = mu_rpc_msg_size(inner, count, &size);
    }
    if (*ret_err == 0) {
        *ret_err = mu_rpc_msg_head(&head, inner, count);
    }
    if (*ret_err == 0) {
        item = mu_malloc(sizeof(*item) + head.len + size);
        *ret_err = item == NULL ? MUSTER_ENOMEM : 0;
    }
    if (item != NULL) {
        *item = (struct item){.len = head.len};
        memcpy(item->data, mu_buf_span(&head).data, head.len);
        for (size_t i = 0; i < count; i++) {
            if (inner[i].data.len != 0) {
                memcpy(item->data + item->len, inner[i].data.data, inner[i].data.len);
            }
            item->len += inner[i].data.len;
        }
    }
    mu_buf_fini(&head);
    mu_free(inner);
    return item;
}

static struct item *came_item(const muster_rpc_stream *s, struct mu_span message, int *ret_err)
{
    struct item *item = mu_malloc(sizeof(*item) + message.len);

    *ret_err = item == NULL ? MUSTER_ENOMEM : 0;
    if (item == NULL) {
        return NULL;
    }
    *item = (struct item){.len = message.len};
    if (message.len != 0) {
        memcpy(item->data, message.data, message.len);
    }
    *ret_err = mu_rpc_msg_decode(mu_span(item->data, item->len), &item->parts, &item->part_count);
    for (size_t i = 0; *ret_err == 0 && s->mapped && i < item->part_count; i++) {
        *ret_err = mu_rpc_map_with(s->map, item->parts[i].device, true, &item->parts[i].device);
    }
    if (*ret_err != 0) {
        mu_free(item->parts);
        mu_free(item);
        return NULL;
    }
    return item;
}

static void free_item(struct item *item)
{
    if (item != NULL) {
        mu_free(item->parts);
        mu_free(item);
    }
}

static void free_items(struct mu_list *list)
{
    struct mu_list *it;

    while ((it = mu_list_pop(list)) != NULL) {
        free_item(MU_CONTAINER_OF(it, struct item, link));
    }
}

/* --- life ------------------------------------------------------------------------------------- */

static muster_rpc_stream *new_stream(muster_rpc_agent *a, bool caller)
{
    muster_rpc_stream *s = mu_calloc(1, sizeof(*s));
    pthread_condattr_t attr;

    if (s == NULL) {
        return NULL;
    }
    s->agent = a;
    s->rt = a->rt;
    s->caller = caller;
    s->counts = caller;
    atomic_init(&s->refs, 2);
    mu_list_init(&s->came);
    mu_list_init(&s->unsent);
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&s->cond, &attr);
    (void)pthread_condattr_destroy(&attr);
    return s;
}

static void drop(muster_rpc_stream *s)
{
    if (atomic_fetch_sub(&s->refs, 1) != 1) {
        return;
    }
    free_items(&s->came);
    free_items(&s->unsent);
    free_item(s->lent);
    free_item(s->first);
    mu_free(s->shown);
    mu_free(s->map);
    (void)pthread_cond_destroy(&s->cond);
    (void)pthread_mutex_destroy(&s->lock);
    mu_free(s);
}

/* --- on the loop ------------------------------------------------------------------------------ */

static int send_one(muster_rpc_stream *s, struct mu_span message)
{
    return s->caller ? mu_rpc_out_item(&s->out, message) : mu_rpc_in_item(s->in, message);
}

/* Sends what can be sent. False: something is left. */
static bool push(muster_rpc_stream *s)
{
    for (;;) {
        struct item *item = NULL;
        int err;

        (void)pthread_mutex_lock(&s->lock);
        if (!mu_list_empty(&s->unsent)) {
            item = MU_CONTAINER_OF(s->unsent.next, struct item, link);
        }
        (void)pthread_mutex_unlock(&s->lock);
        if (item == NULL) {
            return true;
        }
        err = send_one(s, mu_span(item->data, item->len));
        if (err == MUSTER_EAGAIN) {
            return false;
        }
        (void)pthread_mutex_lock(&s->lock);
        mu_list_remove(&item->link);
        s->unsent_bytes -= item->len;
        if (err != 0 && !s->over) {
            s->over = true;
            s->status = mu_err(&s->text, err, "%s", muster_strerror(err));
        }
        (void)pthread_cond_broadcast(&s->cond);
        (void)pthread_mutex_unlock(&s->lock);
        free_item(item);
    }
}

/* Does what the threads have asked for. */
static void pump(muster_rpc_stream *s)
{
    bool ended;
    bool canceled;
    bool answered;
    size_t taken;

    if (!s->running) {
        return;
    }
    (void)pthread_mutex_lock(&s->lock);
    taken = s->taken;
    s->taken = 0;
    ended = s->ended;
    canceled = s->canceled;
    answered = s->answered;
    (void)pthread_mutex_unlock(&s->lock);
    if (canceled) {
        mu_rpc_out_cancel(&s->out);
        return;
    }
    if (taken != 0 && s->caller) {
        mu_rpc_out_consumed(&s->out, taken);
    } else if (taken != 0) {
        mu_rpc_in_consumed(s->in, taken);
    }
    if (!push(s)) {
        return;
    }
    if (s->caller && ended && !s->end_sent) {
        s->end_sent = mu_rpc_out_end(&s->out) == 0;
    }
    if (!s->caller && answered) {
        s->running = false;
        mu_rpc_in_reply(s->in, s->status,
                        s->status == 0 ? MU_SPAN_LIT("") : mu_span_str(s->text.text));
        drop(s);
    }
}

static void kick_on_loop(struct mu_post *post)
{
    muster_rpc_stream *s = MU_CONTAINER_OF(post, muster_rpc_stream, post);
    bool running = s->running;
    struct mu_rpc_agent *agent = running ? s->agent->agent : NULL;

    (void)pthread_mutex_lock(&s->lock);
    s->kicked = false; /* first of all: what threads ask for from now on kicks again */
    (void)pthread_mutex_unlock(&s->lock);
    pump(s);
    if (running) {
        mu_rpc_agent_turn(agent);
    }
    drop(s);
}

/* With the lock: makes the loop look. */
static void kick(muster_rpc_stream *s)
{
    if (!s->kicked) {
        s->kicked = true;
        (void)atomic_fetch_add(&s->refs, 1);
        s->post.run = kick_on_loop;
        mu_uv_env_post(s->rt->uv, &s->post);
    }
}

/* A message came. */
static void take(muster_rpc_stream *s, struct mu_span message)
{
    int err = 0;
    struct item *item = came_item(s, message, &err);

    (void)pthread_mutex_lock(&s->lock);
    if (item != NULL) {
        mu_list_push(&s->came, &item->link);
    } else if (!s->over) {
        s->over = true;
        s->status = mu_err(&s->text, err, "a message could not be read: %s",
                           err == MUSTER_EINVAL ? "a part is on a device that is not mapped"
                                                : muster_strerror(err));
    }
    (void)pthread_cond_broadcast(&s->cond);
    (void)pthread_mutex_unlock(&s->lock);
}

static void finish(muster_rpc_stream *s, int status, const char *text)
{
    (void)pthread_mutex_lock(&s->lock);
    s->no_more = true;
    if (!s->over) {
        s->over = true;
        s->status = mu_err(&s->text, status, "%s", text);
    }
    (void)pthread_cond_broadcast(&s->cond);
    (void)pthread_mutex_unlock(&s->lock);
}

/* --- the caller ------------------------------------------------------------------------------- */

static void on_out_ended(struct mu_rpc_out *out, int status, const char *text,
                         struct mu_span message)
{
    muster_rpc_stream *s = MU_CONTAINER_OF(out, muster_rpc_stream, out);

    (void)message;
    s->running = false;
    finish(s, status, text);
    drop(s);
}

static void on_out_item(struct mu_rpc_out *out, struct mu_span message)
{
    take(MU_CONTAINER_OF(out, muster_rpc_stream, out), message);
}

static void on_out_writable(struct mu_rpc_out *out)
{
    pump(MU_CONTAINER_OF(out, muster_rpc_stream, out));
}

static void open_on_loop(struct mu_post *post)
{
    muster_rpc_stream *s = MU_CONTAINER_OF(post, muster_rpc_stream, post);
    struct mu_rpc_agent *agent = s->agent->agent;
    bool canceled;

    (void)pthread_mutex_lock(&s->lock);
    s->kicked = false;
    canceled = s->canceled;
    (void)pthread_mutex_unlock(&s->lock);
    s->out.to = mu_rpc_agent_find(agent, s->to);
    if (canceled || s->out.to == NULL) {
        struct mu_errmsg msg;

        (void)mu_err(&msg, MUSTER_EWORKER, "%.100s could not find the worker %.100s",
                     s->agent->name, s->to);
        if (s->to[0] == '\0') {
            (void)mu_err(&msg, MUSTER_EWORKER, "%.100s could not find the worker with the id %d",
                         s->agent->name, (int)s->to_id);
        }
        finish(s, canceled ? MUSTER_ECANCELED : MUSTER_EWORKER, msg.text);
        drop(s);
        return;
    }
    s->running = true;
    mu_rpc_agent_call(agent, &s->out);
    mu_rpc_agent_turn(agent);
}

static int check_open(const struct muster_rpc_request *q)
{
    if (q->to != NULL && strlen(q->to) > MU_RPC_WORKER_MAX) {
        return mu_api_error(MUSTER_EINVAL, "the worker's name is too long");
    }
    if (mu_rpc_check_method(q->method) != 0) {
        return MUSTER_EINVAL;
    }
    if (q->flags != 0) {
        return mu_api_error(MUSTER_EINVAL, "a stream takes no flags");
    }
    return 0;
}

/* Finds the worker, and its device map. If the worker is unknown, the stream ends with that. */
static int resolve(muster_rpc_stream *s, const struct muster_rpc_request *q)
{
    struct muster_rpc_worker worker = {.id = q->to_id};

    if (q->to != NULL) {
        memcpy(s->to, q->to, strlen(q->to));
    } else if (muster_rpc_worker_info(s->agent, NULL, q->to_id, &worker) == 0) {
        memcpy(s->to, worker.name, strlen(worker.name));
    }
    s->to_id = q->to_id;
    s->mapped = strcmp(s->to, s->agent->name) != 0; /* our own devices need no map */
    return s->mapped ? mu_rpc_copy_map(s->agent, s->to, &s->map) : 0;
}

static int open_stream(muster_rpc_agent *a, const struct muster_rpc_request *q, uint32_t timeout_ms,
                       muster_rpc_stream **ret_stream)
{
    muster_rpc_stream *s;
    int err;

    s = new_stream(a, true);
    if (s == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    err = resolve(s, q);
    if (err == 0) {
        s->first = new_item(s, q->parts, q->part_count, &err);
    }
    if (err != 0) {
        atomic_store(&s->refs, 1);
        drop(s);
        return mu_api_error(err, err == MUSTER_EINVAL ? UNMAPPED : NULL);
    }
    memcpy(s->name, q->method, strlen(q->method));
    /* The message is already made: as one part it would be wrapped once more. */
    s->first_part = (struct mu_rpc_part){mu_span(s->first->data, s->first->len), -1};
    s->out = (struct mu_rpc_out){
        .method = s->name,
        .parts = &s->first_part,
        .part_count = 1,
        .raw = true,
        .stream = true,
        .timeout_ms = timeout_ms,
        .ended = on_out_ended,
        .item = on_out_item,
        .writable = on_out_writable,
    };
    s->kicked = true; /* nothing overtakes the beginning */
    s->post.run = open_on_loop;
    *ret_stream = s;
    mu_uv_env_post(a->rt->uv, &s->post);
    return 0;
}

int muster_rpc_stream_open(muster_rpc_agent *a, const struct muster_rpc_request *request,
                           muster_rpc_stream **ret_stream)
{
    struct muster_rpc_request q;
    uint32_t timeout_ms = 0;
    int err = MU_API_TAKE(rpc_request, &q, request);

    if (err == 0) {
        err = check_open(&q);
    }
    if (err == 0) {
        err = mu_api_timeout(q.timeout_ms, atomic_load(&a->timeout_ms), &timeout_ms);
    }
    return err != 0 ? err : open_stream(a, &q, timeout_ms, ret_stream);
}

void muster_rpc_stream_close(muster_rpc_stream *s)
{
    if (s == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&s->lock);
    if (!s->over) {
        s->canceled = true;
        kick(s);
    }
    (void)pthread_mutex_unlock(&s->lock);
    drop(s);
}

/* --- the callee ------------------------------------------------------------------------------- */

static void run_stream(struct mu_rpc_job *job)
{
    muster_rpc_stream *s = MU_CONTAINER_OF(job, muster_rpc_stream, job);
    int status = s->method->handler(s, s->method->context);

    (void)pthread_mutex_lock(&s->lock);
    s->answered = true;
    s->over = true;
    s->status = mu_err(&s->text, status < 0 ? status : 0, "%s", muster_strerror(status));
    kick(s);
    (void)pthread_mutex_unlock(&s->lock);
    drop(s);
}

static void on_in_start(struct mu_rpc_handler *base, struct mu_rpc_in *in, struct mu_span message)
{
    struct stream_method *m = MU_CONTAINER_OF(base, struct stream_method, base.base);
    muster_rpc_stream *s = new_stream(m->base.agent, false);

    if (s == NULL) {
        mu_rpc_in_reply(in, MUSTER_ENOMEM, MU_SPAN_LIT("there is no memory for another stream"));
        return;
    }
    s->in = in;
    s->method = m;
    s->running = true;
    s->job.run = run_stream;
    in->owner = s;
    take(s, message);
    if (!mu_rpc_enqueue(m->base.agent, &s->job)) {
        s->running = false;
        mu_rpc_in_reply(in, MUSTER_ELIMIT,
                        MU_SPAN_LIT("no thread could be started for the handler"));
        atomic_store(&s->refs, 1);
        drop(s);
    }
}

static void on_in_item(struct mu_rpc_in *in, struct mu_span message)
{
    take(in->owner, message);
}

static void on_in_end(struct mu_rpc_in *in)
{
    muster_rpc_stream *s = in->owner;

    (void)pthread_mutex_lock(&s->lock);
    s->no_more = true;
    (void)pthread_cond_broadcast(&s->cond);
    (void)pthread_mutex_unlock(&s->lock);
}

static void on_in_writable(struct mu_rpc_in *in)
{
    pump(in->owner);
}

static void on_in_cancel(struct mu_rpc_in *in, int why)
{
    muster_rpc_stream *s = in->owner;

    finish(s, why, muster_strerror(why));
    (void)pthread_mutex_lock(&s->lock);
    free_items(&s->unsent); /* nobody would read them */
    s->unsent_bytes = 0;
    (void)pthread_mutex_unlock(&s->lock);
    pump(s);
}

int muster_rpc_register_stream(muster_rpc_agent *a, const char *method,
                               muster_rpc_stream_handler *handler, void *context)
{
    struct mu_rpc_method *base;
    struct stream_method *m;
    int err;

    if (handler == NULL) {
        return mu_api_error(MUSTER_EINVAL, "a handler needs a function");
    }
    err = mu_rpc_method_new(method, sizeof(*m), &base);
    if (err != 0) {
        return err;
    }
    m = MU_CONTAINER_OF(base, struct stream_method, base);
    m->handler = handler;
    m->context = context;
    base->base = (struct mu_rpc_handler){
        .method = base->base.method,
        .stream = true,
        .start = on_in_start,
        .item = on_in_item,
        .end = on_in_end,
        .writable = on_in_writable,
        .cancel = on_in_cancel,
    };
    return mu_rpc_serve_method(a, base);
}

/* --- either end ------------------------------------------------------------------------------- */

/* With the lock: waits for a change; false when the time has passed. */
static bool wait_change(muster_rpc_stream *s, int64_t timeout_ms, const struct timespec *at)
{
    if (timeout_ms < 0) {
        return pthread_cond_wait(&s->cond, &s->lock) == 0;
    }
    return pthread_cond_timedwait(&s->cond, &s->lock, at) == 0;
}

int muster_rpc_stream_send(muster_rpc_stream *s, const struct muster_rpc_part *parts, size_t count,
                           int64_t timeout_ms)
{
    struct mu_errmsg text = {0};
    struct timespec at;
    bool late = false;
    struct item *item;
    int err = mu_api_patience(timeout_ms, &timeout_ms);

    if (err != 0) {
        return err;
    }
    at = mu_wait_until(timeout_ms < 0 ? 0 : timeout_ms);
    item = new_item(s, parts, count, &err);
    if (err != 0) {
        return mu_api_error(err, err == MUSTER_EINVAL ? UNMAPPED : NULL);
    }
    (void)pthread_mutex_lock(&s->lock);
    while (s->unsent_bytes > UNSENT_MAX && !s->over && !late) {
        late = mu_runtime_is_mine(s->rt) || !wait_change(s, timeout_ms, &at);
    }
    if (s->over || s->ended) {
        err = s->over && s->status != 0 ? s->status : MUSTER_ECLOSED;
        text = err == s->status ? s->text : text;
    } else if (s->unsent_bytes > UNSENT_MAX) {
        err = MUSTER_ETIMEDOUT;
    } else {
        mu_list_push(&s->unsent, &item->link);
        s->unsent_bytes += item->len;
        kick(s);
    }
    (void)pthread_mutex_unlock(&s->lock);
    if (err != 0) {
        free_item(item);
    }
    return mu_api_error(err, text.text);
}

int muster_rpc_stream_end(muster_rpc_stream *s)
{
    (void)pthread_mutex_lock(&s->lock);
    s->ended = true;
    kick(s);
    (void)pthread_mutex_unlock(&s->lock);
    return 0;
}

/* Hands an item to the reader, and frees the one before. */
static int show(muster_rpc_stream *s, struct item *item, const struct muster_rpc_part **ret_parts,
                size_t *ret_count)
{
    struct muster_rpc_part *shown = mu_calloc(item->part_count + 1, sizeof(*shown));

    free_item(s->lent);
    mu_free(s->shown);
    s->lent = item;
    s->shown = shown;
    if (shown == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    for (size_t i = 0; i < item->part_count; i++) {
        shown[i] = (struct muster_rpc_part){{item->parts[i].data.data, item->parts[i].data.len},
                                            item->parts[i].device};
    }
    *ret_parts = shown;
    *ret_count = item->part_count;
    return 1;
}

int muster_rpc_stream_recv(muster_rpc_stream *s, const struct muster_rpc_part **ret_parts,
                           size_t *ret_count, int64_t timeout_ms)
{
    struct item *item = NULL;
    struct mu_errmsg text;
    struct timespec at;
    bool late = false;
    int err = mu_api_patience(timeout_ms, &timeout_ms);

    if (err != 0) {
        return err;
    }
    at = mu_wait_until(timeout_ms < 0 ? 0 : timeout_ms);
    if (mu_runtime_is_mine(s->rt)) {
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
    }
    (void)pthread_mutex_lock(&s->lock);
    while (mu_list_empty(&s->came) && !s->no_more && !s->over && !late) {
        late = !wait_change(s, timeout_ms, &at);
    }
    if (!mu_list_empty(&s->came)) {
        item = MU_CONTAINER_OF(mu_list_pop(&s->came), struct item, link);
        /* The callee's first message came with the call and does not count. */
        s->taken += s->counts ? item->len : 0;
        s->counts = true;
        kick(s);
    } else if (s->over) {
        err = s->status;
        text = s->text;
    } else if (!s->no_more) {
        err = mu_err(&text, MUSTER_ETIMEDOUT, "nothing has come");
    }
    (void)pthread_mutex_unlock(&s->lock);
    return item != NULL ? show(s, item, ret_parts, ret_count)
                        : mu_api_error(err, err != 0 ? text.text : NULL);
}

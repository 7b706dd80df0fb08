/* The public rendezvous as other threads see it: parameters, the ops, and our own backends. */
#include "api/rdzv_api.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/alloc.h"

/* A rendezvous host that closes lets the others get their last answers and go first, but not for
 * long: they may have much to do. */
#define HOST_LINGER_MS 1000

/* --- parameters ------------------------------------------------------------------------------- */

void muster_rdzv_params_init(struct muster_rdzv_params *ret, size_t size)
{
    struct muster_rdzv_params ours = {.backend = "muster", .nodes_min = 1, .nodes_max = 1};

    mu_api_give(ret, size, &ours, sizeof(ours));
}

static struct mu_rdzv_params inner_params(const struct muster_rdzv_params *p)
{
    return (struct mu_rdzv_params){
        .backend = p->backend,
        .endpoint = p->endpoint,
        .run_id = p->run_id,
        .nodes_min = p->nodes_min,
        .nodes_max = p->nodes_max,
        .local_addr = p->local_addr,
        .config = p->config,
    };
}

int muster_rdzv_params_check(const struct muster_rdzv_params *given)
{
    struct muster_rdzv_params p;
    struct mu_rdzv_params params;
    struct mu_errmsg msg;
    int err = MU_API_TAKE(rdzv_params, &p, given);

    if (err != 0) {
        return err;
    }
    params = inner_params(&p);
    err = mu_rdzv_params_check(&params, &msg);
    if (err == 0 && p.flags > (MUSTER_RDZV_NO_STORE | MUSTER_RDZV_NO_BOOTSTRAP)) {
        err = mu_err(&msg, MUSTER_EINVAL, "the parameters have an unknown flag");
    }
    return err == 0 ? 0 : mu_api_error(err, msg.text);
}

int muster_rdzv_config_bool(const struct muster_rdzv_params *params, const char *key, bool fallback,
                            bool *ret)
{
    struct muster_rdzv_params p;
    struct mu_errmsg msg;
    int err = MU_API_TAKE(rdzv_params, &p, params);

    if (err != 0) {
        return err;
    }
    err = mu_rdzv_config_bool(p.config, key, fallback, ret, &msg);
    return err == 0 ? 0 : mu_api_error(err, msg.text);
}

int muster_rdzv_config_int(const struct muster_rdzv_params *params, const char *key,
                           int64_t fallback, int64_t *ret)
{
    struct muster_rdzv_params p;
    struct mu_errmsg msg;
    int err = MU_API_TAKE(rdzv_params, &p, params);

    if (err != 0) {
        return err;
    }
    err = mu_rdzv_config_int(p.config, key, fallback, ret, &msg);
    return err == 0 ? 0 : mu_api_error(err, msg.text);
}

struct muster_bytes muster_rdzv_config_text(const struct muster_rdzv_params *params,
                                            const char *key, const char *fallback)
{
    struct muster_rdzv_params p;
    struct mu_span value;

    if (MU_API_TAKE(rdzv_params, &p, params) == 0 && mu_rdzv_config_get(p.config, key, &value)) {
        return (struct muster_bytes){value.data, value.len};
    }
    return muster_str(fallback == NULL ? "" : fallback);
}

/* --- calls that wait -------------------------------------------------------------------------- */

static void client_close(void *context);

static int refuse_waiting(void)
{
    return mu_api_error(MUSTER_EINVAL,
                        "this call waits: make it on a thread of your own, not the runtime's");
}

static int refuse_closed(void)
{
    return mu_api_error(MUSTER_ECLOSED, "the rendezvous was closed by muster_rdzv_close()");
}

/* Takes the lock for a call that may wait. False: the handler is being closed. */
static bool enter(struct mu_rdzv_client *s)
{
    (void)pthread_mutex_lock(&s->lock);
    if (s->going) {
        (void)pthread_mutex_unlock(&s->lock);
        return false;
    }
    s->callers++;
    return true;
}

static void leave(struct mu_rdzv_client *s)
{
    s->callers--;
    if (s->going) {
        (void)pthread_cond_broadcast(&s->cond); /* close() waits for the last one */
    }
    (void)pthread_mutex_unlock(&s->lock);
}

bool mu_rdzv_hold(muster_rdzv *r)
{
    struct mu_rdzv_client *s = r->context;

    if (r->ops.close != client_close) {
        return true;
    }
    if (!enter(s)) {
        (void)refuse_closed();
        return false;
    }
    (void)pthread_mutex_unlock(&s->lock);
    return true;
}

void mu_rdzv_unhold(muster_rdzv *r)
{
    struct mu_rdzv_client *s = r->context;

    if (r->ops.close == client_close) {
        (void)pthread_mutex_lock(&s->lock);
        leave(s);
    }
}

/* Waits for a change, at most until `*at`; false when that has passed. */
static bool wait_change(struct mu_rdzv_client *s, int64_t timeout_ms, const struct timespec *at)
{
    if (timeout_ms < 0) {
        return pthread_cond_wait(&s->cond, &s->lock) == 0;
    }
    return timeout_ms != 0 && pthread_cond_timedwait(&s->cond, &s->lock, at) == 0;
}

static int check_timeout(const struct mu_rdzv_client *s, int64_t timeout_ms)
{
    return timeout_ms != 0 && mu_runtime_is_mine(s->rt) ? refuse_waiting() : 0;
}

struct client_door {
    struct mu_door door;
    struct mu_rdzv_client *client;
    const struct mu_rdzv_params *params;
    int err;
    struct mu_errmsg msg;
};

static void join_on_loop(struct mu_door *door)
{
    mu_rdzv_client_join(MU_CONTAINER_OF(door, struct client_door, door)->client);
    mu_door_open(door);
}

static int client_next(void *context, struct muster_rdzv_info *ret_info)
{
    struct mu_rdzv_client *s = context;
    struct client_door d = {.client = s};
    struct mu_errmsg msg = {""};
    int err;

    if (mu_runtime_is_mine(s->rt)) {
        return refuse_waiting();
    }
    if (!enter(s)) {
        return refuse_closed();
    }
    if (s->next_wanted) {
        leave(s);
        return mu_api_error(MUSTER_EBUSY, "muster_rdzv_next() is under way on another thread");
    }
    s->next_wanted = true;
    s->next_done = false;
    (void)pthread_mutex_unlock(&s->lock);
    mu_door_pass(s->rt, &d.door, join_on_loop);
    (void)pthread_mutex_lock(&s->lock);
    while (!s->next_done && !s->going) {
        (void)pthread_cond_wait(&s->cond, &s->lock);
    }
    err = s->going ? MUSTER_ECLOSED : s->next_status;
    if (err == 0) {
        *ret_info = s->info;
    } else {
        msg = s->next_text;
    }
    s->next_wanted = false;
    leave(s);
    return err == MUSTER_ECLOSED ? refuse_closed() : mu_api_error(err, msg.text);
}

static void explain_on_loop(struct mu_door *door)
{
    struct client_door *d = MU_CONTAINER_OF(door, struct client_door, door);

    d->err = mu_rdzv_client_explain(d->client) ? 0 : MUSTER_ENOTSUP;
    mu_door_open(door);
}

static int client_explain(struct mu_rdzv_client *s, int64_t timeout_ms)
{
    struct timespec at = mu_wait_until(timeout_ms < 0 ? 0 : timeout_ms);
    struct client_door d = {.client = s};
    struct mu_errmsg msg;
    uint64_t before;
    int err = 0;

    if (mu_runtime_is_mine(s->rt)) {
        return refuse_waiting();
    }
    if (!enter(s)) {
        return refuse_closed();
    }
    before = s->explained;
    if (s->next_wanted && !s->next_done) {
        (void)pthread_mutex_unlock(&s->lock);
        mu_door_pass(s->rt, &d.door, explain_on_loop);
        (void)pthread_mutex_lock(&s->lock);
    }
    err = d.err;
    while (err == 0 && s->explained == before && s->next_wanted && !s->next_done && !s->going) {
        err = wait_change(s, timeout_ms, &at) ? 0 : MUSTER_ETIMEDOUT;
    }
    err = s->going ? MUSTER_ECLOSED : s->explained != before ? 0 : err != 0 ? err : MUSTER_ENOENT;
    msg = s->explained_text;
    leave(s);
    if (err == 0) {
        mu_api_say(msg.text);
        return 0;
    }
    return err == MUSTER_ECLOSED   ? refuse_closed()
           : err == MUSTER_ENOTSUP ? mu_api_error(err, "this backend cannot tell what it waits for")
           : err == MUSTER_ETIMEDOUT
               ? mu_api_error(err, "the rendezvous has not said in time what it waits for")
               : mu_api_error(err, "no call of muster_rdzv_next() is under way");
}

static int client_is_closed(void *context, bool *ret_closed)
{
    struct mu_rdzv_client *s = context;

    (void)pthread_mutex_lock(&s->lock);
    *ret_closed = s->closed;
    (void)pthread_mutex_unlock(&s->lock);
    return 0;
}

static int client_num_nodes_waiting(void *context, uint32_t *ret_count)
{
    struct mu_rdzv_client *s = context;

    (void)pthread_mutex_lock(&s->lock);
    *ret_count = s->waiting;
    (void)pthread_mutex_unlock(&s->lock);
    return 0;
}

static void close_run_on_loop(struct mu_door *door)
{
    mu_rdzv_close_run(MU_CONTAINER_OF(door, struct client_door, door)->client->handler);
    mu_door_open(door);
}

static int client_set_closed(void *context)
{
    struct mu_rdzv_client *s = context;
    struct client_door d = {.client = s};
    struct mu_errmsg msg = {""};
    int err = 0;

    if (mu_runtime_is_mine(s->rt)) {
        return refuse_waiting();
    }
    if (!enter(s)) {
        return refuse_closed();
    }
    if (!s->closed && !s->close_wanted) {
        s->close_wanted = true;
        (void)pthread_mutex_unlock(&s->lock);
        mu_door_pass(s->rt, &d.door, close_run_on_loop);
        (void)pthread_mutex_lock(&s->lock);
    }
    while (!s->closed && s->close_wanted && !s->going) {
        (void)pthread_cond_wait(&s->cond, &s->lock);
    }
    if (!s->closed) {
        err = s->close_wanted ? MUSTER_ECLOSED : s->close_status;
        msg = s->close_text;
    }
    leave(s);
    return err == MUSTER_ECLOSED ? refuse_closed() : mu_api_error(err, msg.text);
}

static int client_ended(void *context, int64_t timeout_ms)
{
    struct mu_rdzv_client *s = context;
    struct timespec at = mu_wait_until(timeout_ms < 0 ? 0 : timeout_ms);
    struct mu_errmsg msg;
    int err = check_timeout(s, timeout_ms);

    if (err != 0) {
        return err;
    }
    if (!enter(s)) {
        return refuse_closed();
    }
    while (s->in_round && !s->going && err == 0) {
        err = wait_change(s, timeout_ms, &at) ? 0 : MUSTER_ETIMEDOUT;
    }
    err = s->going ? MUSTER_ECLOSED : s->in_round ? MUSTER_ETIMEDOUT : 0;
    msg = s->end_text;
    leave(s);
    if (err == 0) {
        mu_api_say(msg.text);
        return 0;
    }
    return err == MUSTER_ECLOSED ? refuse_closed() : mu_api_error(err, "the round goes on");
}

/* Takes the next event that was not reported yet; false: there is no event. */
static bool take_event(struct mu_rdzv_client *s, struct muster_rdzv_event *ret)
{
    *ret = (struct muster_rdzv_event){.round = s->round_number, .text = s->event_text.text};
    if (s->tell_waiting) {
        s->tell_waiting = false;
        ret->kind = MUSTER_RDZV_EVENT_WAITING;
        ret->waiting = s->waiting;
        (void)mu_err(&s->event_text, 0, "%u %s to be let in", s->waiting,
                     s->waiting == 1 ? "node waits" : "nodes wait");
    } else if (s->tell_ended) {
        s->tell_ended = false;
        ret->kind = MUSTER_RDZV_EVENT_ENDED;
        ret->reason = s->end_reason;
        ret->status = s->end_status;
        ret->who = s->end_has_who ? s->event_who : NULL;
        ret->who_rank = s->end_who_rank;
        memcpy(s->event_who, s->end_who, sizeof(s->end_who));
        s->event_text = s->end_text;
    } else if (s->tell_closed) {
        s->tell_closed = false;
        ret->kind = MUSTER_RDZV_EVENT_CLOSED;
        (void)mu_err(&s->event_text, 0, "the run was closed");
    } else {
        return false;
    }
    return true;
}

static int client_wait_event(struct mu_rdzv_client *s, int64_t timeout_ms,
                             struct muster_rdzv_event *ret_event)
{
    struct timespec at = mu_wait_until(timeout_ms < 0 ? 0 : timeout_ms);
    struct muster_rdzv_event event;
    bool taken = false;
    bool late = false;
    int err = check_timeout(s, timeout_ms);

    if (err != 0) {
        return err;
    }
    if (!enter(s)) {
        return refuse_closed();
    }
    while (!s->going && !(taken = take_event(s, &event)) && !late) {
        late = !wait_change(s, timeout_ms, &at);
    }
    err = taken ? 0 : s->going ? MUSTER_ECLOSED : MUSTER_ETIMEDOUT;
    leave(s);
    if (err == 0) {
        *ret_event = event;
        return 0;
    }
    return err == MUSTER_ECLOSED ? refuse_closed() : mu_api_error(err, "nothing has happened");
}

static bool client_use_agent_store(void *context)
{
    struct mu_rdzv_client *s = context;
    bool share;

    (void)pthread_mutex_lock(&s->lock);
    share = s->share;
    (void)pthread_mutex_unlock(&s->lock);
    return share;
}

static bool client_shutdown(void *context)
{
    return client_set_closed(context) == 0;
}

/* --- life ------------------------------------------------------------------------------------- */

static void free_client(struct mu_rdzv_client *s)
{
    (void)pthread_cond_destroy(&s->cond);
    (void)pthread_mutex_destroy(&s->lock);
    mu_free(s);
}

static void free_on_loop(struct mu_door *door)
{
    mu_rdzv_client_free(MU_CONTAINER_OF(door, struct client_door, door)->client);
    mu_door_open(door);
}

void muster_rdzv_interrupt(muster_rdzv *r)
{
    struct mu_rdzv_client *s = r->context;

    if (r->ops.close == client_close) {
        (void)pthread_mutex_lock(&s->lock);
        s->going = true;
        (void)pthread_cond_broadcast(&s->cond);
        (void)pthread_mutex_unlock(&s->lock);
    }
}

static void client_close(void *context)
{
    struct mu_rdzv_client *s = context;
    struct client_door d = {.client = s};

    (void)pthread_mutex_lock(&s->lock);
    s->going = true;
    (void)pthread_cond_broadcast(&s->cond);
    while (s->callers != 0) {
        (void)pthread_cond_wait(&s->cond, &s->lock);
    }
    (void)pthread_mutex_unlock(&s->lock);
    mu_door_pass(s->rt, &d.door, free_on_loop);
    (void)pthread_mutex_lock(&s->lock);
    while (!s->gone) {
        (void)pthread_cond_wait(&s->cond, &s->lock);
    }
    (void)pthread_mutex_unlock(&s->lock);
    free_client(s);
}

static const struct muster_rdzv_ops client_ops = {
    .size = sizeof(struct muster_rdzv_ops),
    .next = client_next,
    .is_closed = client_is_closed,
    .set_closed = client_set_closed,
    .num_nodes_waiting = client_num_nodes_waiting,
    .ended = client_ended,
    .use_agent_store = client_use_agent_store,
    .shutdown = client_shutdown,
    .close = client_close,
};

static void open_on_loop(struct mu_door *door)
{
    struct client_door *d = MU_CONTAINER_OF(door, struct client_door, door);
    struct mu_rdzv_events events = mu_rdzv_client_events(d->client);

    d->err = mu_rdzv_open(d->client->rt->env, d->params, &events, &d->client->handler, &d->msg);
    if (d->err == 0) {
        d->client->handler->linger_ms = HOST_LINGER_MS;
    }
    mu_door_open(door);
}

static void init_client(struct mu_rdzv_client *s, muster_runtime *rt, uint32_t flags)
{
    const char *disable = getenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE");
    pthread_condattr_t attr;

    s->rt = rt;
    s->flags = flags;
    s->share_wanted = s->share = disable == NULL || strcmp(disable, "1") != 0;
    s->pid = getpid();
    if (gethostname(s->host, sizeof(s->host) - 1) != 0) {
        s->host[0] = '\0';
    }
    (void)mu_err(&s->end_text, 0, "no round has begun");
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&s->cond, &attr);
    (void)pthread_condattr_destroy(&attr);
}

int mu_rdzv_client_new(muster_runtime *rt, const struct muster_rdzv_params *p,
                       muster_rdzv **ret_rdzv)
{
    struct mu_rdzv_params params = inner_params(p);
    struct mu_rdzv_client *s = mu_calloc(1, sizeof(*s));
    struct client_door d = {.client = s, .params = &params};
    muster_rdzv *r;
    int err;

    if (s == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    err = muster_rdzv_new(p->backend, p->run_id, &client_ops, s, &r);
    if (err != 0) {
        mu_free(s);
        return err;
    }
    init_client(s, rt, p->flags);
    if (strcmp(p->backend, "static") == 0) {
        s->is_static = s->share = true;
        d.err = mu_rdzv_endpoint_parse(p->endpoint, MU_RDZV_PORT, &s->endpoint, &d.msg);
    }
    if (d.err == 0) {
        mu_door_pass(rt, &d.door, open_on_loop);
    }
    if (d.err != 0) {
        free_client(s);
        mu_free(r);
        return mu_api_error(d.err, d.msg.text);
    }
    *ret_rdzv = r;
    return 0;
}

/* --- any backend ------------------------------------------------------------------------------ */

int muster_rdzv_next(muster_rdzv *r, struct muster_rdzv_info *ret_info)
{
    return r->ops.next(r->context, ret_info);
}

int muster_rdzv_is_closed(muster_rdzv *r, bool *ret_closed)
{
    return r->ops.is_closed(r->context, ret_closed);
}

int muster_rdzv_set_closed(muster_rdzv *r)
{
    return r->ops.set_closed(r->context);
}

int muster_rdzv_num_nodes_waiting(muster_rdzv *r, uint32_t *ret_count)
{
    return r->ops.num_nodes_waiting(r->context, ret_count);
}

int muster_rdzv_ended(muster_rdzv *r, int64_t timeout_ms)
{
    int err = mu_api_patience(timeout_ms, &timeout_ms);

    if (err != 0) {
        return err;
    }
    if (r->ops.ended == NULL) {
        return mu_api_error(MUSTER_ENOTSUP, "this backend does not report when a round is over");
    }
    return r->ops.ended(r->context, timeout_ms);
}

int muster_rdzv_explain(muster_rdzv *r, int64_t timeout_ms)
{
    int err = mu_api_patience(timeout_ms, &timeout_ms);

    if (err != 0) {
        return err;
    }
    if (r->ops.next != client_next) {
        return mu_api_error(MUSTER_ENOTSUP, "this backend cannot tell what it waits for");
    }
    return client_explain(r->context, timeout_ms);
}

int muster_rdzv_wait_event(muster_rdzv *r, int64_t timeout_ms, struct muster_rdzv_event *ret_event)
{
    int err = mu_api_patience(timeout_ms, &timeout_ms);

    if (err != 0) {
        return err;
    }
    if (r->ops.next != client_next) {
        return mu_api_error(MUSTER_ENOTSUP, "this backend does not report events");
    }
    return client_wait_event(r->context, timeout_ms, ret_event);
}

const char *muster_rdzv_backend(const muster_rdzv *r)
{
    return r->backend;
}

const char *muster_rdzv_run_id(const muster_rdzv *r)
{
    return r->run_id;
}

bool muster_rdzv_use_agent_store(const muster_rdzv *r)
{
    return r->ops.use_agent_store != NULL && r->ops.use_agent_store(r->context);
}

bool muster_rdzv_shutdown(muster_rdzv *r)
{
    return r->ops.shutdown(r->context);
}

void muster_rdzv_close(muster_rdzv *r)
{
    if (r != NULL) {
        r->ops.close(r->context);
        mu_free(r);
    }
}

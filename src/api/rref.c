/* Remote references as other threads see them: a handle for each, doors and posts to the loop. */
#include <stdio.h>
#include <string.h>

#include <muster/rref.h>

#include "api/rpc_api.h"
#include "core/alloc.h"

struct muster_rref {
    struct mu_rref base; /* the loop's */
    struct mu_list link; /* agent->rref_handles, the loop's */
    struct mu_post post;
    muster_runtime *rt; /* valid while there is an agent */
    char owner[MU_RPC_WORKER_MAX + 1];
    bool is_owner;
    pthread_mutex_t lock;
    pthread_cond_t cond;
    /* Under the lock. */
    muster_rpc_agent *agent; /* NULL: it was shut down */
    int status;              /* MUSTER_EAGAIN: not confirmed yet */
    struct mu_errmsg text;
};

static void free_rref(muster_rref *r)
{
    (void)pthread_cond_destroy(&r->cond);
    (void)pthread_mutex_destroy(&r->lock);
    mu_free(r);
}

static muster_rref *new_rref(muster_rpc_agent *a)
{
    muster_rref *r = mu_calloc(1, sizeof(*r));
    pthread_condattr_t attr;

    if (r == NULL) {
        return NULL;
    }
    r->agent = a;
    r->rt = a->rt;
    r->status = MUSTER_EAGAIN;
    mu_list_init(&r->link);
    (void)pthread_mutex_init(&r->lock, NULL);
    (void)pthread_condattr_init(&attr);
    (void)pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&r->cond, &attr);
    (void)pthread_condattr_destroy(&attr);
    return r;
}

/* --- on the loop ------------------------------------------------------------------------------ */

static void on_changed(struct mu_rref *base)
{
    muster_rref *r = MU_CONTAINER_OF(base, muster_rref, base);
    const char *text;
    int status = mu_rref_status(base, &text);

    (void)pthread_mutex_lock(&r->lock);
    r->status = status;
    (void)mu_err(&r->text, status, "the reference to a value of %s failed: %s", r->owner, text);
    (void)pthread_cond_broadcast(&r->cond);
    (void)pthread_mutex_unlock(&r->lock);
}

/* The loop has made the reference: registers it. */
static void adopt(muster_rref *r)
{
    const char *text;

    r->base.changed = on_changed;
    (void)snprintf(r->owner, sizeof(r->owner), "%s", mu_rref_owner(&r->base));
    r->is_owner = mu_rref_is_owner(&r->base);
    r->status = mu_rref_status(&r->base, &text);
    mu_list_push(&r->agent->rref_handles, &r->link);
}

void mu_rrefs_orphan(muster_rpc_agent *a)
{
    struct mu_list *it;

    while ((it = mu_list_pop(&a->rref_handles)) != NULL) {
        muster_rref *r = MU_CONTAINER_OF(it, muster_rref, link);

        mu_rref_agent_release(&r->base);
        (void)pthread_mutex_lock(&r->lock);
        r->agent = NULL;
        r->status = mu_err(&r->text, MUSTER_ECLOSED, "the agent was shut down");
        (void)pthread_cond_broadcast(&r->cond);
        (void)pthread_mutex_unlock(&r->lock);
    }
}

static void free_on_loop(struct mu_post *post)
{
    muster_rref *r = MU_CONTAINER_OF(post, muster_rref, post);
    muster_rpc_agent *a;

    (void)pthread_mutex_lock(&r->lock); /* its user has freed it */
    a = r->agent;
    (void)pthread_mutex_unlock(&r->lock);
    if (a != NULL) {
        mu_list_remove(&r->link);
        mu_rref_agent_release(&r->base);
    }
    free_rref(r);
}

void muster_rref_free(muster_rref *r)
{
    bool here;

    if (r == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&r->lock);
    here = r->agent == NULL;
    if (!here && !mu_runtime_is_mine(r->rt)) {
        r->post.run = free_on_loop;
        mu_uv_env_post(r->rt->uv, &r->post);
        (void)pthread_mutex_unlock(&r->lock);
        return;
    }
    (void)pthread_mutex_unlock(&r->lock);
    free_on_loop(&r->post);
}

/* --- making them ------------------------------------------------------------------------------ */

struct rref_door {
    struct mu_rpc_door base;
    muster_rref *rref;
    const char *to;
    int32_t to_id;
    struct mu_rref_remote call;
    struct mu_buf *message;
    struct mu_span token;
    struct muster_rref_token *ret_token;
    uint64_t number;
    struct mu_rref_fetch *fetch;
    int err;
    struct mu_errmsg msg;
};

static struct rref_door *door_of(struct mu_door *door)
{
    return MU_CONTAINER_OF(door, struct rref_door, base.door);
}

/* Passes the door, and returns the reference or the error. */
static int pass(muster_rpc_agent *a, struct rref_door *d, void (*run)(struct mu_door *door),
                muster_rref **ret_rref)
{
    d->rref = new_rref(a);
    if (d->rref == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    mu_rpc_pass(a, &d->base, run);
    if (d->err != 0) {
        free_rref(d->rref);
        return mu_api_error(d->err, d->msg.text);
    }
    *ret_rref = d->rref;
    return 0;
}

static void remote_on_loop(struct mu_door *door)
{
    struct rref_door *d = door_of(door);
    muster_rpc_agent *a = d->base.agent;
    struct mu_rpc_peer *peer = d->to != NULL ? mu_rpc_agent_find(a->agent, d->to)
                                             : mu_rpc_agent_find_id(a->agent, d->to_id);
    const char *to = d->to != NULL                     ? d->to
                     : peer != NULL                    ? mu_rpc_peer_name(peer)
                     : d->to_id == a->id && a->id >= 0 ? a->name
                                                       : NULL;

    if (to == NULL || (peer == NULL && strcmp(to, a->name) != 0)) {
        d->err = mu_err(&d->msg, MUSTER_EWORKER, "%.100s could not find the worker %.100s", a->name,
                        to != NULL ? to : "with that id");
    } else {
        d->err = mu_rref_agent_remote(a->rrefs, &d->rref->base, to, &d->call);
        (void)mu_err(&d->msg, d->err, "%s", muster_strerror(d->err));
    }
    if (d->err == 0) {
        adopt(d->rref);
    }
    mu_door_open(door);
}

static int copy_parts(muster_rpc_agent *a, const struct muster_rpc_request *q,
                      struct mu_rpc_part *ret_parts)
{
    struct muster_rpc_worker owner = {.id = -1};

    if (q->to == NULL && q->to_id == a->id) {
        memcpy(owner.name, a->name, sizeof(owner.name));
    } else if (q->to == NULL) {
        (void)muster_rpc_worker_info(a, NULL, q->to_id, &owner); /* an unknown id is found later */
    }
    for (size_t i = 0; i < q->part_count; i++) {
        ret_parts[i].data = mu_span(q->parts[i].data.data, q->parts[i].data.len);
        if (mu_rpc_map_device(a, q->to != NULL ? q->to : owner.name, q->parts[i].device, false,
                              &ret_parts[i].device) != 0) {
            return mu_api_error(MUSTER_EINVAL, "a part is on a device that is not mapped to one of "
                                               "the owner's: move it to memory, or set a device "
                                               "map");
        }
    }
    return 0;
}

static int check_agent(const muster_rpc_agent *a)
{
    return a->id >= 0 ? 0
                      : mu_api_error(MUSTER_EINVAL,
                                     "a worker without an id cannot hold references: start the "
                                     "agent with an id");
}

int muster_rref_remote(muster_rpc_agent *a, const struct muster_rpc_request *request,
                       muster_rref **ret_rref)
{
    struct mu_rpc_request asked;
    const struct muster_rpc_request *q = &asked.q;
    struct rref_door d = {0};
    struct mu_rpc_part *parts;
    int err = check_agent(a);

    if (err == 0) {
        err = mu_rpc_take_request(a, request, &asked);
    }
    if (err != 0) {
        return err;
    }
    d.to = q->to;
    d.to_id = q->to_id;
    parts = mu_calloc(q->part_count + 1, sizeof(*parts));
    if (parts == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    err = copy_parts(a, q, parts);
    if (err == 0) {
        d.call = (struct mu_rref_remote){
            .method = q->method,
            .parts = parts,
            .part_count = q->part_count,
            .timeout_ms = asked.timeout_ms,
            .retrying = (q->flags & MUSTER_RPC_RETRY) != 0,
            .retry = asked.retry,
        };
        err = pass(a, &d, remote_on_loop, ret_rref);
    }
    mu_free(parts);
    return err;
}

static void local_on_loop(struct mu_door *door)
{
    struct rref_door *d = door_of(door);

    d->err = mu_rref_agent_local(d->base.agent->rrefs, &d->rref->base, d->message);
    if (d->err == 0) {
        adopt(d->rref);
    }
    mu_door_open(door);
}

int muster_rref_new(muster_rpc_agent *a, const struct muster_rpc_part *parts, size_t count,
                    muster_rref **ret_rref)
{
    struct rref_door d = {.to_id = -1};
    struct mu_buf message;
    int err = check_agent(a);

    if (err != 0) {
        return err;
    }
    mu_buf_init(&message, SIZE_MAX / 4);
    err = mu_rpc_encode_parts(&message, parts, count);
    d.message = &message;
    err = err != 0 ? mu_api_error(err, NULL) : pass(a, &d, local_on_loop, ret_rref);
    mu_buf_fini(&message);
    return err;
}

static void take_on_loop(struct mu_door *door)
{
    struct rref_door *d = door_of(door);

    d->err = mu_rref_agent_take(d->base.agent->rrefs, &d->rref->base, d->token, &d->msg);
    if (d->err == 0) {
        adopt(d->rref);
    }
    mu_door_open(door);
}

int muster_rref_take(muster_rpc_agent *a, struct muster_bytes token, muster_rref **ret_rref)
{
    struct rref_door d = {.token = mu_span(token.data, token.len)};
    int err = check_agent(a);

    return err != 0 ? err : pass(a, &d, take_on_loop, ret_rref);
}

/* --- asking ----------------------------------------------------------------------------------- */

const char *muster_rref_owner(const muster_rref *r)
{
    return r->owner;
}

bool muster_rref_is_owner(const muster_rref *r)
{
    return r->is_owner;
}

/* The agent, if it was not shut down. */
static int agent_of(const muster_rref *r, muster_rpc_agent **ret_agent)
{
    pthread_mutex_t *lock = (pthread_mutex_t *)&r->lock;

    (void)pthread_mutex_lock(lock);
    *ret_agent = r->agent;
    (void)pthread_mutex_unlock(lock);
    return *ret_agent != NULL ? 0 : mu_api_error(MUSTER_ECLOSED, "the agent was shut down");
}

int muster_rref_owner_info(const muster_rref *r, struct muster_rpc_worker *ret_worker)
{
    muster_rpc_agent *a;
    int err = agent_of(r, &a);

    if (err == 0 && r->is_owner) {
        (void)snprintf(ret_worker->name, sizeof(ret_worker->name), "%s", a->name);
        ret_worker->id = a->id;
        return 0;
    }
    return err != 0 ? err : muster_rpc_worker_info(a, r->owner, -1, ret_worker);
}

bool muster_rref_is_confirmed(muster_rref *r)
{
    bool is;

    (void)pthread_mutex_lock(&r->lock);
    is = r->status == 0;
    (void)pthread_mutex_unlock(&r->lock);
    return is;
}

int muster_rref_wait_confirmed(muster_rref *r, int64_t timeout_ms)
{
    struct mu_errmsg text;
    struct timespec at;
    int status;
    int err = mu_api_patience(timeout_ms, &timeout_ms);

    if (err != 0) {
        return err;
    }
    at = mu_wait_until(timeout_ms < 0 ? 0 : timeout_ms);
    (void)pthread_mutex_lock(&r->lock);
    if (r->agent != NULL && mu_runtime_is_mine(r->rt) && timeout_ms != 0) {
        (void)pthread_mutex_unlock(&r->lock);
        return mu_api_error(MUSTER_EINVAL,
                            "this call waits: make it on a thread of your own, not the runtime's");
    }
    while (r->status == MUSTER_EAGAIN && err == 0) {
        err = timeout_ms < 0 ? pthread_cond_wait(&r->cond, &r->lock)
                             : pthread_cond_timedwait(&r->cond, &r->lock, &at);
    }
    status = r->status;
    text = r->text;
    (void)pthread_mutex_unlock(&r->lock);
    return status == MUSTER_EAGAIN
               ? mu_api_error(MUSTER_ETIMEDOUT, "the owner has not confirmed the reference yet")
               : mu_api_error(status, text.text);
}

/* --- fetching --------------------------------------------------------------------------------- */

static void fetch_on_loop(struct mu_door *door)
{
    struct rref_door *d = door_of(door);

    mu_rref_agent_fetch(&d->rref->base, d->fetch);
    mu_door_open(door);
}

int muster_rref_fetch(muster_rref *r, int64_t timeout_ms, muster_rpc_done *done, void *context,
                      muster_rpc_future **ret_future)
{
    struct muster_rpc_request q = muster_rpc_request_defaults();
    struct rref_door d = {.rref = r};
    muster_rpc_agent *a;
    int err = agent_of(r, &a);

    q.to = r->owner;
    q.method = "muster::RRef.fetch";
    q.timeout_ms = timeout_ms;
    q.done = done;
    q.context = context;
    if (err == 0) {
        err = mu_rpc_future_for_fetch(a, &q, ret_future, &d.fetch);
    }
    if (err == 0) {
        mu_rpc_pass(a, &d.base, fetch_on_loop);
    }
    return err;
}

int muster_rref_to_here(muster_rref *r, int64_t timeout_ms, muster_rpc_future **ret_future)
{
    muster_rpc_future *f;
    muster_rpc_agent *a;
    int err = agent_of(r, &a);

    if (err == 0 && mu_runtime_is_mine(a->rt)) {
        err = mu_api_error(MUSTER_EINVAL,
                           "this call waits: make it on a thread of your own, not the runtime's");
    }
    if (err == 0) {
        err = muster_rref_fetch(r, timeout_ms, NULL, NULL, &f);
    }
    return err != 0 ? err : mu_rpc_future_await(f, ret_future);
}

int muster_rref_local_value(muster_rref *r, int64_t timeout_ms, muster_rpc_future **ret_future)
{
    return r->is_owner ? muster_rref_to_here(r, timeout_ms, ret_future)
                       : mu_api_error(MUSTER_EINVAL, "only the owner has the value; fetch a copy "
                                                     "with muster_rref_to_here()");
}

/* --- passing on ------------------------------------------------------------------------------- */

static void fork_on_loop(struct mu_door *door)
{
    struct rref_door *d = door_of(door);
    struct muster_rref_token *t = d->ret_token;

    d->err = mu_rref_agent_fork(&d->rref->base, d->to, t->bytes, &t->len, &t->number);
    mu_door_open(door);
}

int muster_rref_fork(muster_rref *r, const char *worker, struct muster_rref_token *ret_token)
{
    struct muster_rref_token token = {0};
    struct rref_door d = {.rref = r, .to = worker, .ret_token = &token};
    muster_rpc_agent *a;
    int err = agent_of(r, &a);

    _Static_assert(MUSTER_RREF_TOKEN_MAX >= MU_RREF_TOKEN_MAX, "the public token must have room");
    if (err != 0) {
        return err;
    }
    if (worker == NULL || !mu_rpc_worker_name_ok(mu_span_str(worker))) {
        return mu_api_error(MUSTER_EINVAL,
                            "a token needs the name of the worker that will take it");
    }
    mu_rpc_pass(a, &d.base, fork_on_loop);
    if (d.err == MUSTER_EAGAIN) {
        return mu_api_error(d.err,
                            "the reference is not confirmed yet and cannot be passed on: call "
                            "muster_rref_wait_confirmed() first");
    }
    if (d.err != 0) {
        return muster_rref_wait_confirmed(r, 0) != 0 ? d.err : mu_api_error(d.err, NULL);
    }
    *ret_token = token;
    return 0;
}

static void fork_end_on_loop(struct mu_door *door)
{
    struct rref_door *d = door_of(door);

    mu_rref_agent_cancel(d->base.agent->rrefs, d->number);
    mu_door_open(door);
}

void muster_rref_fork_end(muster_rpc_agent *a, const struct muster_rref_token *token)
{
    struct rref_door d = {.number = token->number};

    mu_rpc_pass(a, &d.base, fork_end_on_loop);
}

/* A call that carries tokens. */
struct carrier {
    muster_rpc_agent *agent;
    size_t count;
    struct muster_rpc_part *parts;
    struct muster_rref_token tokens[];
};

static void end_tokens(struct carrier *c)
{
    for (size_t i = 0; i < c->count; i++) {
        muster_rref_fork_end(c->agent, &c->tokens[i]);
    }
}

static void on_carried(void *context)
{
    struct carrier *c = context;

    end_tokens(c);
    mu_free(c->parts);
    mu_free(c);
}

static int begin_carrier(struct carrier *c, const struct muster_rpc_request *request,
                         const char *to, muster_rref *const *rrefs, size_t count,
                         muster_rpc_future **ret_future)
{
    struct muster_rpc_request q = *request;

    for (size_t i = 0; i < request->part_count; i++) {
        c->parts[i] = request->parts[i];
    }
    for (; c->count < count; c->count++) {
        struct muster_rref_token *token = &c->tokens[c->count];
        int err = muster_rref_fork(rrefs[c->count], to, token);

        if (err != 0) {
            return err;
        }
        c->parts[request->part_count + c->count] =
            (struct muster_rpc_part){{token->bytes, token->len}, MUSTER_RPC_CPU};
    }
    q.to = to;
    q.parts = c->parts;
    q.part_count = request->part_count + count;
    q.flags |= MUSTER_RPC_ONCE;
    return mu_rpc_call_over(c->agent, &q, on_carried, c, ret_future);
}

int muster_rref_call(muster_rpc_agent *a, const struct muster_rpc_request *asked,
                     muster_rref *const *rrefs, size_t count, muster_rpc_future **ret_future)
{
    struct muster_rpc_worker worker = {.id = -1};
    struct muster_rpc_request q;
    const struct muster_rpc_request *request = &q;
    struct carrier *c;
    int err = MU_API_TAKE(rpc_request, &q, asked);

    if (err != 0) {
        return err;
    }
    if (count > MU_RPC_PARTS_MAX || request->part_count > MU_RPC_PARTS_MAX) {
        return mu_api_error(MUSTER_EINVAL, "a message may have at most 65535 parts");
    }
    if (request->to == NULL) {
        err = muster_rpc_worker_info(a, NULL, request->to_id, &worker);
    }
    if (err != 0) {
        return err;
    }
    c = mu_calloc(1, sizeof(*c) + count * sizeof(c->tokens[0]));
    if (c != NULL) {
        c->parts = mu_calloc(request->part_count + count + 1, sizeof(*c->parts));
    }
    if (c == NULL || c->parts == NULL) {
        mu_free(c);
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    c->agent = a;
    err = begin_carrier(c, request, request->to != NULL ? request->to : worker.name, rrefs, count,
                        ret_future);
    if (err != 0) {
        end_tokens(c);
        mu_free(c->parts);
        mu_free(c);
    }
    return err;
}

/* Calls as other threads begin them: checked, copied, and posted to the loop. */
#include <string.h>

#include "api/rpc_future.h"
#include "core/alloc.h"

/* --- on the loop ------------------------------------------------------------------------------ */

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
        mu_rpc_future_end(f, err, msg.text);
        return;
    }
    mu_rpc_agent_call(agent, &f->out);
    mu_rpc_agent_turn(agent);
}

/* --- requests --------------------------------------------------------------------------------- */

void muster_rpc_request_init(struct muster_rpc_request *ret, size_t size)
{
    struct muster_rpc_request ours = {.to_id = -1, .timeout_ms = MUSTER_TIMEOUT_DEFAULT};

    mu_api_give(ret, size, &ours, sizeof(ours));
}

void muster_rpc_retry_init(struct muster_rpc_retry *ret, size_t size)
{
    struct mu_rpc_retry_options o = mu_rpc_out_retry_defaults();
    struct muster_rpc_retry ours = {.retries_max = o.retries_max,
                                    .duration_ms = o.duration_ms,
                                    .backoff = o.backoff,
                                    .jitter = o.jitter};

    mu_api_give(ret, size, &ours, sizeof(ours));
}

/* How to try again, for a call that does. */
static int take_retry(const struct muster_rpc_request *q, struct mu_rpc_retry_options *ret)
{
    struct muster_rpc_retry retry;
    struct mu_errmsg msg;
    int err;

    *ret = mu_rpc_out_retry_defaults();
    if ((q->flags & MUSTER_RPC_RETRY) == 0 || q->retry == NULL) {
        return 0;
    }
    err = MU_API_TAKE(rpc_retry, &retry, q->retry);
    if (err != 0) {
        return err;
    }
    *ret = (struct mu_rpc_retry_options){retry.retries_max, retry.duration_ms, retry.backoff,
                                         retry.jitter};
    return mu_rpc_out_retry_check(ret, &msg) == 0 ? 0 : mu_api_error(MUSTER_EINVAL, msg.text);
}

static int check_request(const struct muster_rpc_request *q)
{
    if (mu_rpc_check_method(q->method) != 0) {
        return MUSTER_EINVAL;
    }
    if (q->to != NULL && strlen(q->to) > MU_RPC_WORKER_MAX) {
        return mu_api_error(MUSTER_EINVAL, "the worker's name is too long");
    }
    if (q->part_count > MU_RPC_PARTS_MAX) {
        return mu_api_error(MUSTER_EINVAL, "a message may have at most 65535 parts");
    }
    if (q->flags > (MUSTER_RPC_RETRY | MUSTER_RPC_ONCE | MUSTER_RPC_BORROW)) {
        return mu_api_error(MUSTER_EINVAL, "the call has an unknown flag");
    }
    if (q->done != NULL && q->queue != NULL) {
        return mu_api_error(MUSTER_EINVAL, "a call has a callback or a queue, not both");
    }
    return 0;
}

int mu_rpc_take_request(const muster_rpc_agent *a, const struct muster_rpc_request *request,
                        struct mu_rpc_request *ret)
{
    int err = MU_API_TAKE(rpc_request, &ret->q, request);

    if (err == 0) {
        err = check_request(&ret->q);
    }
    if (err == 0) {
        err = mu_queue_check(ret->q.queue, a->rt);
    }
    if (err == 0) {
        err = mu_api_timeout(ret->q.timeout_ms, atomic_load(&a->timeout_ms), &ret->timeout_ms);
    }
    return err != 0 ? err : take_retry(&ret->q, &ret->retry);
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

static bool only_memory(const struct muster_rpc_request *q)
{
    for (size_t i = 0; i < q->part_count; i++) {
        if (q->parts[i].device != MUSTER_RPC_CPU) {
            return false;
        }
    }
    return true;
}

static int new_future(muster_rpc_agent *a, const struct mu_rpc_request *asked,
                      muster_rpc_future **ret_future)
{
    muster_rpc_future *f;
    int err;

    f = mu_calloc(1, sizeof(*f));
    if (f == NULL) {
        return mu_api_error(MUSTER_ENOMEM, NULL);
    }
    err = copy_request(f, &asked->q);
    if (err != 0) {
        mu_free(f);
        return mu_api_error(err, NULL);
    }
    mu_rpc_future_init(f, a, asked);
    *ret_future = f;
    return 0;
}

int mu_rpc_future_for_fetch(muster_rpc_agent *a, const struct muster_rpc_request *request,
                            muster_rpc_future **ret_future, struct mu_rref_fetch **ret_fetch)
{
    struct mu_rpc_request asked;
    struct mu_rref_fetch *fetch;
    int err = mu_rpc_take_request(a, request, &asked);

    if (err != 0) {
        return err;
    }
    fetch = mu_calloc(1, sizeof(*fetch));
    err = fetch == NULL ? mu_api_error(MUSTER_ENOMEM, NULL) : new_future(a, &asked, ret_future);
    if (err != 0) {
        mu_free(fetch);
        return err;
    }
    (*ret_future)->fetch = fetch;
    fetch->out = &(*ret_future)->out;
    *ret_fetch = fetch;
    return 0;
}

int mu_rpc_call_over(muster_rpc_agent *a, const struct muster_rpc_request *request,
                     void (*over)(void *context), void *context, muster_rpc_future **ret_future)
{
    struct mu_rpc_request asked;
    const struct muster_rpc_request *q = &asked.q;
    muster_rpc_future *f;
    int err = mu_rpc_take_request(a, request, &asked);

    if (err == 0) {
        err = new_future(a, &asked, &f);
    }
    if (err != 0) {
        return err;
    }
    f->over = over;
    f->over_context = context;
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

int muster_rpc_call(muster_rpc_agent *a, const struct muster_rpc_request *request,
                    muster_rpc_future **ret_future)
{
    return mu_rpc_call_over(a, request, NULL, NULL, ret_future);
}

int mu_rpc_future_await(muster_rpc_future *f, muster_rpc_future **ret_future)
{
    int err = muster_rpc_future_wait(f, MUSTER_TIMEOUT_NEVER);

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

/* A call that came in, as the one who answers it sees it. */
#include "api/rpc_serve.h"

const char *muster_rpc_in_method(const muster_rpc_call_in *c)
{
    return c->method->base.base.method;
}

const char *muster_rpc_in_caller(const muster_rpc_call_in *c)
{
    return c->caller;
}

size_t muster_rpc_in_part_count(const muster_rpc_call_in *c)
{
    return c->part_count;
}

struct muster_rpc_part muster_rpc_in_part(const muster_rpc_call_in *c, size_t index)
{
    if (index >= c->part_count) {
        return (struct muster_rpc_part){.device = MUSTER_RPC_CPU};
    }
    return (struct muster_rpc_part){{c->parts[index].data.data, c->parts[index].data.len},
                                    c->parts[index].device};
}

int64_t muster_rpc_in_time_left(const muster_rpc_call_in *c)
{
    struct timespec now = mu_wait_until(0);
    int64_t left;

    if (!c->has_deadline) {
        return -1;
    }
    left = (int64_t)(c->deadline.tv_sec - now.tv_sec) * 1000 +
           (c->deadline.tv_nsec - now.tv_nsec) / 1000000;
    return left < 0 ? 0 : left;
}

int muster_rpc_in_canceled(const muster_rpc_call_in *c)
{
    int why;

    (void)pthread_mutex_lock(&c->agent->lock);
    why = c->canceled;
    (void)pthread_mutex_unlock(&c->agent->lock);
    return why;
}

int muster_rpc_in_wait_canceled(muster_rpc_call_in *c, int64_t timeout_ms)
{
    muster_rpc_agent *a = c->agent;
    struct timespec at;
    int why;
    int err = mu_api_patience(timeout_ms, &timeout_ms);

    if (err != 0) {
        return err;
    }
    if (mu_runtime_is_mine(a->rt)) {
        return mu_api_error(MUSTER_EINVAL, "waiting on the runtime's thread would hold up all "
                                           "calls: register the method with MUSTER_RPC_BLOCKS");
    }
    at = mu_wait_until(timeout_ms < 0 ? 0 : timeout_ms);
    (void)pthread_mutex_lock(&a->lock);
    while (c->canceled == 0 &&
           (timeout_ms < 0 ? pthread_cond_wait(&a->cond, &a->lock)
                           : pthread_cond_timedwait(&a->cond, &a->lock, &at)) == 0) {
    }
    why = c->canceled;
    (void)pthread_mutex_unlock(&a->lock);
    return why != 0 ? 0 : mu_api_error(MUSTER_ETIMEDOUT, "the call was not canceled");
}

void muster_rpc_in_on_cancel(muster_rpc_call_in *c,
                             void (*canceled)(muster_rpc_call_in *call, void *context),
                             void *context)
{
    bool at_once;

    (void)pthread_mutex_lock(&c->agent->lock);
    at_once = c->canceled != 0;
    c->on_cancel = canceled;
    c->cancel_context = context;
    (void)pthread_mutex_unlock(&c->agent->lock);
    if (at_once) {
        canceled(c, context);
    }
}

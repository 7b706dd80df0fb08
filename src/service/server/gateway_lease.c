/*
 * Keys that live as long as a session, where the session is with a gateway and the keys are with
 * another server. Each session here has a lease there, under a number drawn here, so that keys
 * bound to it need not wait for the answer. The lease is kept while the session lasts, given up
 * with it, and runs out if the gateway dies.
 */
#include "service/server/server_internal.h"

#include "core/alloc.h"

#define TTL_MS  10000
#define KEEP_MS 3000

struct mu_gateway_lease {
    struct mu_gateway_op op;
    struct mu_timer timer;
    struct mu_store_server *server;
    struct mu_store_session *session; /* NULL: ended */
    bool busy;
};

static void on_done(struct mu_gateway_op *op);

static void ask(struct mu_gateway_lease *l, enum mu_store_verb verb)
{
    uint64_t lease = l->op.base.request.lease;

    l->busy = true;
    l->op = (struct mu_gateway_op){.base.request = {.verb = verb, .lease = lease, .number = TTL_MS},
                                   .done = on_done};
    mu_gateway_submit(l->server->backing, NULL, &l->op);
}

static void free_lease(struct mu_gateway_lease *l)
{
    mu_env_timer_arm(l->server->env, &l->timer, MU_MONO_NEVER);
    if (l->session != NULL) {
        l->session->gate = NULL;
    }
    mu_free(l);
}

static void on_done(struct mu_gateway_op *op)
{
    struct mu_gateway_lease *l = MU_CONTAINER_OF(op, struct mu_gateway_lease, op);
    int status = op->base.status;
    enum mu_store_verb verb = op->base.request.verb;

    l->busy = false;
    if (verb == MU_STORE_LEASE_REVOKE || status == MUSTER_ENOENT || status == MUSTER_ESESSION ||
        status == MUSTER_EINVAL || status == MUSTER_ECLOSED) {
        free_lease(l); /* it is gone; the next key gets a new one */
    } else if (l->session == NULL) {
        ask(l, MU_STORE_LEASE_REVOKE);
    } else {
        mu_env_timer_arm(l->server->env, &l->timer,
                         mu_mono_add_ms(mu_env_now(l->server->env).mono, KEEP_MS));
    }
}

static void on_timer(struct mu_timer *timer)
{
    ask(MU_CONTAINER_OF(timer, struct mu_gateway_lease, timer), MU_STORE_LEASE_KEEP);
}

int mu_store_gate_lease(struct mu_store_session *session, uint64_t *ret_lease)
{
    struct mu_gateway_lease *l = session->gate;

    if (l == NULL) {
        uint64_t drawn;

        l = mu_calloc(1, sizeof(*l));
        if (l == NULL) {
            return MUSTER_ENOMEM;
        }
        mu_env_entropy(session->server->env, &drawn, sizeof(drawn));
        l->server = session->server;
        l->session = session;
        session->gate = l;
        mu_timer_init(&l->timer, on_timer);
        /* The number is positive in a reply, and above those that servers count up from a random
         * start. */
        l->op.base.request.lease = (drawn >> 2) | (uint64_t)1 << 62;
        ask(l, MU_STORE_LEASE_GRANT);
    }
    *ret_lease = l->op.base.request.lease;
    return 0;
}

void mu_store_gate_lease_end(struct mu_store_session *session)
{
    struct mu_gateway_lease *l = session->gate;

    if (l != NULL) {
        session->gate = NULL;
        l->session = NULL;
        mu_env_timer_arm(l->server->env, &l->timer, MU_MONO_NEVER);
        if (!l->busy) {
            ask(l, MU_STORE_LEASE_REVOKE);
        }
    }
}

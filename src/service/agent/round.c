/* The store of a round: ranks through it, the workers' own store, the barrier at the end. */
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/agent/agent_internal.h"
#include "service/server/server.h"

#define STATIC_PORT 29500

static bool is_static(const struct mu_agent_service *s)
{
    return strcmp(s->rdzv->backend, "static") == 0;
}

/* Whether PyTorch's agents may be in the run. */
static bool is_mixed(const struct mu_agent_service *s)
{
    return strcmp(s->rdzv->backend, "c10d") == 0 || strcmp(s->rdzv->backend, "etcd-v2") == 0;
}

/* --- life ------------------------------------------------------------------------------------- */

/* They serve to see whether a node was lost; without memory, the number of nodes has to do. */
static void keep_names(struct mu_agent_round *r, const struct mu_rdzv_assignment *a)
{
    size_t bytes = 0;
    char *at;

    for (size_t i = 0; i < a->member_count; i++) {
        bytes += strlen(a->members[i].name) + 1;
    }
    r->names = bytes == 0 ? NULL : mu_malloc(bytes);
    if (r->names == NULL) {
        return;
    }
    at = r->names;
    for (size_t i = 0; i < a->member_count; i++) {
        size_t len = strlen(a->members[i].name) + 1;

        memcpy(at, a->members[i].name, len);
        at += len;
    }
    r->names_count = (uint32_t)a->member_count;
}

static bool is_in(const struct mu_rdzv_assignment *a, const char *name)
{
    for (size_t i = 0; i < a->member_count; i++) {
        if (strcmp(a->members[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

bool mu_agent_round_has_fewer(const struct mu_agent_round *r, const struct mu_rdzv_assignment *a)
{
    const char *name = r->names;

    if (r->names_count == 0 || a->member_count == 0) {
        return a->world < r->world;
    }
    for (uint32_t i = 0; i < r->names_count; i++) {
        if (!is_in(a, name)) {
            return true;
        }
        name += strlen(name) + 1;
    }
    return false;
}

struct mu_agent_round *mu_agent_round_new(struct mu_agent_service *s,
                                          const struct mu_rdzv_assignment *a)
{
    struct mu_agent_round *r = mu_calloc(1, sizeof(*r));

    if (r == NULL) {
        return NULL;
    }
    r->s = s;
    r->number = a->round;
    r->rank = a->rank;
    r->world = a->world;
    r->restarts_left = a->restarts_left;
    /* Workers of PyTorch 1.13 put a prefix before keys in an agent's store: all must, or no one. */
    r->generation = a->torch_1 ? MU_EXCHANGE_1 : s->config.generation;
    r->share = is_static(s) || s->config.backing != NULL || s->config.sealed ||
               (s->config.share && r->generation == MU_EXCHANGE_2 && !a->workers_serve);
    mu_buf_init(&r->op_text, MU_FAILURE_BYTES_MAX);
    mu_buf_init(&r->op_known, MU_FAILURE_BYTES_MAX);
    mu_buf_init(&r->running_text, MU_AGENT_RUNNING_BYTES);
    mu_buf_init(&r->hang.bytes, 0);
    mu_agent_kept_op_init(r);
    r->store_url = mu_strndup(a->store, strlen(a->store));
    if (a->member_count != 0 && a->members[0].addr != NULL) {
        r->addr_0 = mu_strndup(a->members[0].addr, strlen(a->members[0].addr));
    }
    if (r->store_url == NULL || (a->member_count != 0 && r->addr_0 == NULL)) {
        mu_free(r->store_url);
        mu_free(r->addr_0);
        mu_free(r);
        return NULL;
    }
    keep_names(r, a);
    mu_agent_stacks_init(r);
    mu_list_push(&s->rounds, &r->link);
    return r;
}

static void on_store_closed(void *context)
{
    struct mu_agent_round *r = context;

    r->store_open = false;
    r->store_closing = false;
    mu_agent_round_settle(r);
}

static void on_bootstrap_ended(void *context)
{
    struct mu_agent_round *r = context;

    r->bootstrap = NULL;
    r->bootstrap_ending = false;
    mu_agent_round_settle(r);
}

void mu_agent_round_settle(struct mu_agent_round *r)
{
    struct mu_agent_service *s = r->s;

    if (!r->closing) {
        return;
    }
    if (r->bootstrap != NULL && !r->bootstrap_ending) {
        const struct mu_store_server *server = mu_rdzv_bootstrap_server(r->bootstrap);

        r->bootstrap_ending = true;
        mu_rdzv_bootstrap_end(r->bootstrap);
        if (server != NULL) {
            mu_agent_guard(s, mu_store_server_addr(server)); /* it is freed on a later turn */
        }
    }
    if (r->gateway != NULL) {
        mu_agent_gateway_end(r->gateway); /* settles the round when it is gone */
        return;
    }
    if (r->exchanging || r->op_busy || r->running_busy || r->step_busy || r->hang.busy ||
        r->pace.busy || r->kept.busy || r->bootstrap != NULL || !mu_agent_stacks_closed(r)) {
        return;
    }
    if (r->store_open) {
        if (!r->store_closing) {
            r->store_closing = true;
            mu_store_close(r->stores.store, on_store_closed, r);
        }
        return;
    }
    mu_list_remove(&r->link);
    mu_buf_fini(&r->op_text);
    mu_buf_fini(&r->op_known);
    mu_buf_fini(&r->running_text);
    mu_agent_hang_op_fini(&r->hang);
    mu_agent_kept_op_fini(&r->kept);
    mu_agent_pace_op_fini(&r->pace);
    mu_agent_stacks_fini(r);
    mu_free(r->store_url);
    mu_free(r->addr_0);
    mu_free(r->names);
    mu_free(r);
    mu_agent_settle(s);
}

void mu_agent_round_close(struct mu_agent_round *r)
{
    if (r == NULL || r->closing) {
        return;
    }
    r->closing = true;
    if (r->exchanging) {
        mu_agent_exchange_cancel(&r->exchange);
    }
    if (r->op_busy) {
        mu_store_cancel(&r->op);
    }
    if (r->running_busy) {
        mu_store_cancel(&r->running_op);
    }
    if (r->step_busy) {
        mu_store_cancel(&r->step_op);
    }
    if (r->hang.busy) {
        mu_store_cancel(&r->hang.op);
    }
    if (r->pace.busy) {
        mu_store_cancel(&r->pace.op);
    }
    mu_agent_kept_close(r);
    mu_agent_stacks_close(r);
    mu_agent_round_settle(r);
}

/* --- ranks ------------------------------------------------------------------------------------ */

void mu_agent_round_not_ready(struct mu_agent_round *r, int status, const char *text)
{
    if (!r->closing && r->s->round == r) {
        mu_agent_tell(r->s, (struct mu_agent_event){.type = MU_AGENT_NOT_READY,
                                                    .round = r->number,
                                                    .code = status,
                                                    .text = text});
    }
}

static void maybe_ready(struct mu_agent_round *r)
{
    if (r->has_ranks && r->has_kept && r->has_master && !r->closing && r->s->round == r) {
        mu_agent_stacks_start(r);
        mu_agent_kept_run(r);
        mu_agent_tell(r->s, (struct mu_agent_event){
                                .type = MU_AGENT_READY, .round = r->number, .base = r->ranks.base});
    }
}

static void on_exchanged(struct mu_agent_exchange *x, int status)
{
    struct mu_agent_round *r = MU_CONTAINER_OF(x, struct mu_agent_round, exchange);
    struct mu_agent_service *s = r->s;

    r->exchanging = false;
    if (r->closing) {
        mu_agent_round_settle(r);
    } else if (r->is_barrier) {
        mu_agent_tell(s, (struct mu_agent_event){.type = MU_AGENT_BARRIER_DONE,
                                                 .round = r->number,
                                                 .code = status,
                                                 .text = status == 0 ? NULL : x->errmsg.text});
    } else if (status != 0) {
        mu_agent_round_not_ready(r, status, x->errmsg.text);
    } else {
        r->has_ranks = true;
        r->ranks = x->ranks;
        if (!r->has_master) {
            if (x->config.generation == MU_EXCHANGE_1) {
                (void)snprintf(r->master_addr, sizeof(r->master_addr), "%s", x->master_addr);
                r->master_port = x->master_port;
                r->has_master = true;
            }
        }
        mu_agent_kept_decide(r);
    }
}

void mu_agent_round_decided(struct mu_agent_round *r)
{
    r->has_kept = true;
    maybe_ready(r);
}

static void start_exchange(struct mu_agent_round *r)
{
    struct mu_agent_service *s = r->s;

    r->exchange = (struct mu_agent_exchange){
        .config =
            {
                .env = s->env,
                .store = r->stores.store,
                .generation = r->generation,
                .identical = s->config.identical,
                .rank = r->rank,
                .world = r->world,
                .workers = s->config.policy.workers,
                .role = s->config.role,
                .timeout_ms = s->config.policy.exchange_ms > UINT32_MAX
                                  ? UINT32_MAX
                                  : (uint32_t)s->config.policy.exchange_ms,
                .master_addr = r->master_addr,
                .master_port = r->master_port,
                .done = on_exchanged,
            },
    };
    r->exchanging = true;
    mu_agent_exchange_start(&r->exchange);
}

/* --- the workers' store ----------------------------------------------------------------------- */

/* In generation 1, the address goes through the exchange itself. */
static bool is_first_needed(const struct mu_agent_round *r)
{
    return r->generation == MU_EXCHANGE_1 && r->rank == 0;
}

void mu_agent_round_master(struct mu_agent_round *r, const char *addr, uint16_t port)
{
    (void)snprintf(r->master_addr, sizeof(r->master_addr), "%s", addr);
    r->master_port = port;
    r->has_master = true;
    if (is_first_needed(r) && !r->closing) {
        start_exchange(r);
    } else {
        maybe_ready(r);
    }
}

static bool is_loopback(const char *host)
{
    return strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0 ||
           strncmp(host, "127.", 4) == 0;
}

/* The workers' store is at this address: for them, or for our gateway. */
static int take_master(struct mu_agent_round *r, const char *addr, uint16_t port,
                       struct mu_errmsg *reterr_msg)
{
    if (r->s->config.sealed && r->share && !is_loopback(addr)) {
        return mu_agent_gateway_to_node(r, addr, port, reterr_msg);
    }
    mu_agent_round_master(r, addr, port);
    return 0;
}

static void on_master(void *context, const char *addr, uint16_t port)
{
    struct mu_agent_round *r = context;
    struct mu_errmsg msg = {{0}};
    int err = take_master(r, addr, port, &msg);

    if (err != 0) {
        mu_agent_round_not_ready(r, err, msg.text);
    }
}

static void on_master_failed(void *context, int status, const char *text)
{
    mu_agent_round_not_ready(context, status, text);
}

/* Fixed by the user: workers meet at the rendezvous' own endpoint. */
static int take_static_master(struct mu_agent_round *r, struct mu_errmsg *reterr_msg)
{
    struct mu_addr addr;
    int err = mu_rdzv_endpoint_parse(r->s->config.rdzv.endpoint, STATIC_PORT, &addr, reterr_msg);

    return err != 0 ? err : take_master(r, addr.host, addr.port, reterr_msg);
}

static int start_bootstrap(struct mu_agent_round *r, struct mu_errmsg *reterr_msg)
{
    struct mu_agent_service *s = r->s;
    const struct mu_rdzv_bootstrap_config config = {
        .store = r->stores.store,
        /* Only where PyTorch's agents may be rank 0: an agent of ours that is still stopping its
         * workers serves the round before, and must not be believed. */
        .run = is_mixed(s) ? r->stores.run : NULL,
        .prefix = r->stores.prefix,
        .round = r->number,
        .rank = r->rank,
        .addr = s->rdzv->addr,
        .addr_0 = r->addr_0,
        .alone = r->world == 1,
        .share = r->share,
        .timeout_ms = s->config.store_ms,
        .done = on_master,
        .failed = on_master_failed,
        .ended = on_bootstrap_ended,
        .context = r,
    };

    return mu_rdzv_bootstrap_start(s->env, &config, &r->bootstrap, reterr_msg);
}

void mu_agent_round_begin(struct mu_agent_round *r)
{
    struct mu_agent_service *s = r->s;
    struct mu_errmsg msg = {{0}};
    int err = 0;

    if ((s->config.backing != NULL || s->config.sealed) && r->generation != MU_EXCHANGE_2) {
        err = mu_err(&msg, MUSTER_ENOTSUP,
                     "PyTorch 1.13's agents cannot use a store that every node serves; leave "
                     "out --store-backing");
    } else if (s->config.backing != NULL) {
        err = mu_agent_gateway_to_etcd(r, &msg);
    } else if (is_static(s)) {
        err = take_static_master(r, &msg);
    } else if (r->generation == MU_EXCHANGE_2 || r->rank == 0) {
        err = start_bootstrap(r, &msg);
    }
    if (err != 0) {
        mu_agent_round_not_ready(r, err, msg.text);
    } else if (!is_first_needed(r) || r->has_master) {
        start_exchange(r);
    }
}

void mu_agent_round_exchange(struct mu_agent_round *r)
{
    struct mu_agent_service *s = r->s;
    struct mu_errmsg msg = {{0}};
    int err = mu_rdzv_round_store_open(s->env, r->store_url, s->config.store_ms, &r->stores, &msg);

    if (err != 0) {
        mu_agent_round_not_ready(r, err, msg.text);
        return;
    }
    r->store_open = true;
    if (!mu_agent_kept_report(r)) {
        mu_agent_round_begin(r);
    }
}

void mu_agent_service_stores(const struct mu_agent_service *s,
                             const struct mu_store_server **ret_gateway,
                             const struct mu_store_server **ret_server)
{
    const struct mu_agent_round *r = s->round;

    *ret_gateway = r == NULL || r->gateway == NULL ? NULL : mu_agent_gateway_server(r->gateway);
    *ret_server = r == NULL || r->bootstrap == NULL ? NULL : mu_rdzv_bootstrap_server(r->bootstrap);
}

/* --- the barrier ------------------------------------------------------------------------------ */

void mu_agent_round_barrier(struct mu_agent_round *r)
{
    uint64_t ms = r->s->config.policy.exit_barrier_ms;

    MU_ASSERT(!r->exchanging);
    r->is_barrier = true;
    r->exchanging = true;
    r->exchange.config.timeout_ms = ms > UINT32_MAX ? UINT32_MAX : (uint32_t)ms;
    mu_agent_barrier_start(&r->exchange);
}

/*
 * The static backend: every node knows its rank beforehand, and the rendezvous is a store to which
 * all connect. It works as PyTorch's StaticTCPRendezvous: each node adds one to the worker count
 * `init/`, and rank 0, which hosts, waits until all have come. No node is lost, no node waits,
 * nothing is closed; a node that joins again is assigned at once, with the same store.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/addr.h"
#include "core/alloc.h"
#include "core/url.h"
#include "service/base/log.h"
#include "service/rdzv/rdzv.h"
#include "service/store/store.h"

#define TIMEOUT_MS     UINT64_C(600000)
#define POLL_MS        10 /* PyTorch's; no server lets us watch the count */
#define COUNT_KEY      "init/"
#define URL_CAP        (MU_ADDR_HOST_MAX + 3 * MU_RDZV_RUN_ID_MAX + 64)
#define ANSWER_MS      UINT32_C(60000)
#define AGAIN_MS       1000 /* until a refusal is tried again, with keep_trying */
#define REACHES_INT(n) ((uint32_t)((n) < INT32_MAX ? (n) : INT32_MAX))

enum static_state {
    STATIC_OUT = 0,
    STATIC_COUNTING, /* the add is out */
    STATIC_WAITING,  /* rank 0: until all have come */
    STATIC_IN,
};

enum {
    SOON_RECORD = 1 << 0,
    SOON_JOIN = 1 << 1,
    SOON_LEFT = 1 << 2,
    SOON_CLOSED = 1 << 3,
    SOON_EXPLAIN = 1 << 4,
};

struct rdzv_static {
    struct mu_rdzv_handler base;
    struct mu_addr endpoint;
    uint32_t rank;
    uint32_t world;
    uint64_t timeout_ms;
    struct mu_store_server *server;
    struct mu_store *store;
    struct mu_store *leaving; /* one that is being closed */
    struct mu_store_op op;
    struct mu_span key;
    bool busy;    /* the op is under way */
    bool counted; /* we have added ourselves */
    bool met;     /* the count was reached once, which holds for good */
    bool freeing;
    enum static_state state;
    int64_t count; /* the last known value */
    uint64_t round;
    unsigned soon;
    mu_mono_t deadline;
    mu_mono_t again_at; /* when a join that was refused is tried again; MU_MONO_NEVER */
    struct mu_timer timer;
    struct mu_errmsg host_text;
};

static struct rdzv_static *static_of(struct mu_rdzv_handler *h)
{
    return MU_CONTAINER_OF(h, struct rdzv_static, base);
}

static void do_soon(struct rdzv_static *n, unsigned what)
{
    n->soon |= what;
    mu_env_timer_arm(n->base.env, &n->timer, mu_env_now(n->base.env).mono);
}

/* --- callbacks of the user -------------------------------------------------------------------- */

static void put_url(const struct rdzv_static *n, char *url)
{
    char address[MU_ADDR_HOST_MAX + 16];
    char *at =
        url + snprintf(url, URL_CAP,
                       "tcp://%s?prefix=", mu_addr_format(&n->endpoint, address, sizeof(address)));

    for (const char *c = n->base.run_id; *c != '\0'; c++) {
        at = mu_url_escape(at, *c, "-._~/:@");
    }
    *at = '\0';
}

static void tell_assigned(struct rdzv_static *n)
{
    char url[URL_CAP];
    struct mu_rdzv_assignment assignment = {
        .round = n->round++,
        .rank = n->rank,
        .world = n->world,
        .restarts_left = UINT32_MAX,
        .store = url,
    };

    n->state = STATIC_IN;
    n->met = true;
    put_url(n, url);
    mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_SUCCEEDED, n->rank, "static.assigned",
                           "rank %" PRIu32 " of %" PRIu32 ", as configured", n->rank, n->world);
    n->base.events.assigned(n->base.events.context, &assignment);
}

static void tell_failed(struct rdzv_static *n, int status, const char *text)
{
    n->state = STATIC_OUT;
    mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_FAILED, n->rank, "static.failed", "%s", text);
    n->base.events.failed(n->base.events.context, status, text);
}

static void tell_late(struct rdzv_static *n)
{
    char text[MU_ERRMSG_CAP];

    (void)snprintf(text, sizeof(text),
                   "timed out after %g s: %" PRId64 " of %" PRIu32 " nodes came to the static "
                   "rendezvous",
                   (double)n->timeout_ms / 1000, n->count, n->world);
    tell_failed(n, MUSTER_ERDZV_TIMEOUT, text);
}

static void tell_waits(struct rdzv_static *n)
{
    char where[MU_ADDR_HOST_MAX + 16];
    struct mu_errmsg words = {{0}};

    (void)mu_addr_format(&n->endpoint, where, sizeof(where));
    if (n->state == STATIC_WAITING) {
        (void)mu_err(&words, 0,
                     "%" PRId64 " of %" PRIu32 " nodes are here; on a missing node, try `muster "
                     "doctor %.100s`",
                     n->count, n->world, where);
    } else if (n->state == STATIC_COUNTING) {
        mu_rdzv_handler_unreached(&n->base, where, where, &words);
    } else {
        return;
    }
    mu_rdzv_handler_explained(&n->base, n->deadline, words.text);
}

static void on_trouble(void *context, int status)
{
    struct rdzv_static *n = context;
    char where[MU_ADDR_HOST_MAX + 16];

    if (n->state == STATIC_COUNTING && !n->freeing) {
        mu_rdzv_handler_trouble(&n->base, status,
                                mu_addr_format(&n->endpoint, where, sizeof(where)), NULL);
    }
}

/* --- the count -------------------------------------------------------------------------------- */

static void on_done(struct mu_store_op *op);

static void submit(struct rdzv_static *n, enum mu_store_verb verb)
{
    uint64_t left = mu_mono_until_ms(n->deadline, mu_env_now(n->base.env).mono);

    n->busy = true;
    n->op.request = (struct mu_store_request){
        .verb = verb, .keys = &n->key, .key_count = 1, .number = verb == MU_STORE_ADD ? 1 : 0};
    n->op.timeout_ms = verb == MU_STORE_ADD ? REACHES_INT(left + 1) : ANSWER_MS;
    n->op.done = on_done;
    mu_store_submit(n->store, &n->op);
}

/* Reads a decimal number, as add writes it. */
static int64_t read_count(struct mu_span text)
{
    int64_t count = 0;

    for (size_t i = 0; i < text.len && text.data[i] >= '0' && text.data[i] <= '9'; i++) {
        if (count > INT32_MAX) {
            break;
        }
        count = count * 10 + (text.data[i] - '0');
    }
    return count;
}

/* Only rank 0 waits for the others. */
static void go_on(struct rdzv_static *n)
{
    mu_mono_t now = mu_env_now(n->base.env).mono;

    if (n->rank != 0 || n->count >= (int64_t)n->world) {
        tell_assigned(n);
    } else if (mu_mono_reached(n->deadline, now)) {
        tell_late(n);
    } else {
        n->state = STATIC_WAITING;
        mu_env_timer_arm(n->base.env, &n->timer, mu_mono_add_ms(now, POLL_MS));
    }
}

/* A store that could not be reached has given up for good: the next join opens a new one. */
static int open_store(struct rdzv_static *n)
{
    struct mu_store_tcp_config config = mu_store_tcp_config_defaults();

    config.addr = n->endpoint;
    config.connect_ms = REACHES_INT(n->timeout_ms);
    config.name = n->base.node;
    config.name_ms = n->base.keep_trying ? 0 : MU_RDZV_NAME_MS;
    config.trouble = on_trouble;
    config.context = n;
    return mu_store_tcp_new(n->base.env, &config, &n->store);
}

static void on_store_closed(void *context)
{
    struct rdzv_static *n = context;

    n->leaving = NULL;
    do_soon(n, 0);
}

static void drop_store(struct rdzv_static *n)
{
    n->leaving = n->store;
    n->store = NULL;
    mu_store_close(n->leaving, on_store_closed, n);
}

/* Returns whether a join that was refused is tried again in a moment. */
static bool tries_again(struct rdzv_static *n, const struct mu_store_op *op)
{
    mu_mono_t now = mu_env_now(n->base.env).mono;
    char where[MU_ADDR_HOST_MAX + 16];

    if (!n->base.keep_trying || !mu_rdzv_is_refusal(op->status) ||
        mu_mono_reached(n->deadline, now)) {
        return false;
    }
    mu_rdzv_handler_trouble(&n->base, op->status,
                            mu_addr_format(&n->endpoint, where, sizeof(where)), op->errmsg.text);
    n->again_at = mu_mono_add_ms(now, AGAIN_MS);
    mu_env_timer_arm(n->base.env, &n->timer, n->again_at);
    return true;
}

static void on_done(struct mu_store_op *op)
{
    struct rdzv_static *n = MU_CONTAINER_OF(op, struct rdzv_static, op);

    n->busy = false;
    if (n->freeing) {
        return;
    }
    if (n->soon != 0) {
        do_soon(n, 0); /* a join that had to wait */
    }
    if (op->status == 0 && op->request.verb == MU_STORE_ADD) {
        n->counted = true;
        n->count = op->reply.number;
    } else if (op->status == 0 && op->reply.value_count == 1) {
        n->count = read_count(op->reply.values[0]);
    }
    if (!n->counted && op->status != 0) {
        drop_store(n); /* the store has given up for good; the next join opens another */
    }
    if ((n->soon & SOON_JOIN) != 0 || n->state == STATIC_OUT || n->state == STATIC_IN) {
        return; /* the node has left meanwhile */
    }
    if (op->status == 0 || (op->status == MUSTER_ETIMEDOUT && n->state == STATIC_WAITING)) {
        go_on(n);
    } else if (!tries_again(n, op)) {
        tell_failed(n, MUSTER_ERDZV_CONN, op->errmsg.text);
    }
}

/* --- wishes ----------------------------------------------------------------------------------- */

static void count_in(struct rdzv_static *n)
{
    n->again_at = MU_MONO_NEVER;
    if (n->store == NULL && open_store(n) != 0) {
        n->store = NULL;
        tell_failed(n, MUSTER_ERDZV_CONN, "out of memory");
        return;
    }
    submit(n, n->counted ? MU_STORE_GET : MU_STORE_ADD);
}

static void start(struct rdzv_static *n)
{
    n->base.trouble_count = 0;
    mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_RUNNING, n->rank, "static.join",
                           "joins as rank %" PRIu32 " of %" PRIu32, n->rank, n->world);
    if (n->met) {
        tell_assigned(n);
        return;
    }
    n->deadline = mu_mono_add_ms(mu_env_now(n->base.env).mono, n->timeout_ms);
    count_in(n);
}

static void static_join(struct mu_rdzv_handler *h)
{
    struct rdzv_static *n = static_of(h);

    if (!n->freeing && (n->state == STATIC_OUT || n->state == STATIC_IN)) {
        n->state = STATIC_COUNTING;
        do_soon(n, SOON_JOIN);
    }
}

static void static_explain(struct mu_rdzv_handler *h)
{
    if (!static_of(h)->freeing) {
        do_soon(static_of(h), SOON_EXPLAIN);
    }
}

static void static_leave(struct mu_rdzv_handler *h)
{
    struct rdzv_static *n = static_of(h);

    n->state = STATIC_OUT;
    n->soon &= ~(unsigned)SOON_JOIN;
    do_soon(n, SOON_LEFT);
}

/* As in PyTorch, it does nothing: the other nodes do not hear of it. */
static void static_close_run(struct mu_rdzv_handler *h)
{
    do_soon(static_of(h), SOON_CLOSED);
}

static void static_free(struct mu_rdzv_handler *h)
{
    struct rdzv_static *n = static_of(h);

    if (!n->freeing) {
        n->freeing = true;
        do_soon(n, 0);
    }
}

static const struct mu_rdzv_handler_ops static_ops = {
    .join = static_join,
    .explain = static_explain,
    .leave = static_leave,
    .close_run = static_close_run,
    .free = static_free,
};

/* --- turns ------------------------------------------------------------------------------------ */

static void on_unhosted(void *context)
{
    struct rdzv_static *n = context;

    mu_env_timer_arm(n->base.env, &n->timer, MU_MONO_NEVER);
    n->base.events.freed(n->base.events.context);
    mu_free(n);
}

/* First the store, then the server, then the end. */
static void go_on_freeing(struct rdzv_static *n)
{
    if (n->leaving != NULL) {
        return;
    }
    if (n->store != NULL) {
        drop_store(n);
    } else if (n->server != NULL) {
        struct mu_store_server *server = n->server;

        n->server = NULL;
        mu_rdzv_unhost(server, n->base.linger_ms, on_unhosted, n);
    } else {
        on_unhosted(n);
    }
}

static bool take(struct rdzv_static *n, unsigned what)
{
    bool is = (n->soon & what) != 0 && !n->freeing;

    n->soon &= is ? ~what : ~0u;
    return is;
}

static void on_timer(struct mu_timer *timer)
{
    struct rdzv_static *n = MU_CONTAINER_OF(timer, struct rdzv_static, timer);

    if (take(n, SOON_RECORD)) {
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_INIT, n->rank, "static.host", "%s",
                               n->host_text.text);
    }
    if (take(n, SOON_LEFT)) {
        n->base.events.left(n->base.events.context);
    }
    if (take(n, SOON_CLOSED)) {
        n->base.events.closed(n->base.events.context);
    }
    if (take(n, SOON_EXPLAIN)) {
        tell_waits(n);
    }
    if (n->freeing) {
        go_on_freeing(n);
        return;
    }
    if (n->busy || n->leaving != NULL) {
        return; /* the callback of what ends goes on from there */
    }
    if (take(n, SOON_JOIN)) {
        start(n);
    } else if (n->state == STATIC_WAITING) {
        submit(n, MU_STORE_GET);
    } else if (n->state == STATIC_COUNTING &&
               mu_mono_reached(n->again_at, mu_env_now(n->base.env).mono)) {
        count_in(n);
    } else if (n->state == STATIC_COUNTING) {
        mu_env_timer_arm(n->base.env, &n->timer, n->again_at);
    }
}

/* --- the beginning ---------------------------------------------------------------------------- */

static int configure(struct rdzv_static *n, const struct mu_rdzv_params *params,
                     enum mu_rdzv_host_wish *ret_host, struct mu_errmsg *reterr_msg)
{
    int64_t rank = -1;
    bool host = false;
    struct mu_span value;
    int err = mu_rdzv_handler_keys(params, reterr_msg);

    if (err == 0) {
        err = mu_rdzv_config_int(params->config, "rank", -1, &rank, reterr_msg);
    }
    if (err == 0 && !mu_rdzv_config_get(params->config, "rank", &value)) {
        err = mu_err(reterr_msg, MUSTER_EINVAL,
                     "the static rendezvous needs this node's rank: --node-rank, or rank= in the "
                     "configuration");
    }
    if (err == 0 && (rank < 0 || rank >= (int64_t)params->nodes_max)) {
        err = mu_err(reterr_msg, MUSTER_EINVAL,
                     "the rank is %" PRId64 ": it must be between 0 "
                     "and %" PRIu32,
                     rank, params->nodes_max - 1);
    }
    /* The other backends' name for it; this backend's own name wins. */
    if (err == 0) {
        err = mu_rdzv_config_seconds(params->config, "join_timeout", TIMEOUT_MS, &n->timeout_ms,
                                     reterr_msg);
    }
    if (err == 0) {
        err = mu_rdzv_config_seconds(params->config, "timeout", n->timeout_ms, &n->timeout_ms,
                                     reterr_msg);
    }
    if (err == 0) {
        err = mu_rdzv_config_bool(params->config, "is_host", rank == 0, &host, reterr_msg);
    }
    if (err == 0) {
        err = mu_rdzv_endpoint_parse(params->endpoint, 0, &n->endpoint, reterr_msg);
    }
    if (err == 0 && n->endpoint.port == 0) {
        err = mu_err(reterr_msg, MUSTER_EINVAL,
                     "the static rendezvous needs an endpoint with a port: --master-addr and "
                     "--master-port, or host:port");
    }
    n->rank = (uint32_t)rank;
    n->world = params->nodes_max;
    /* Rank 0 hosts, unless there is a server already. */
    *ret_host = !host                                                   ? MU_RDZV_HOST_NO
                : mu_rdzv_config_get(params->config, "is_host", &value) ? MU_RDZV_HOST_YES
                                                                        : MU_RDZV_HOST_TRY;
    return err;
}

int mu_rdzv_static_new(struct mu_env *env, const struct mu_rdzv_params *params,
                       const struct mu_rdzv_events *events, struct mu_rdzv_handler **ret_handler,
                       struct mu_errmsg *reterr_msg)
{
    struct rdzv_static *n = mu_calloc(1, sizeof(*n));
    enum mu_rdzv_host_wish host = MU_RDZV_HOST_NO;
    int err;

    if (n == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    mu_timer_init(&n->timer, on_timer);
    n->again_at = MU_MONO_NEVER;
    n->key = MU_SPAN_LIT(COUNT_KEY);
    err = mu_rdzv_handler_init(&n->base, &static_ops, env, params, events, reterr_msg);
    if (err == 0) {
        err = configure(n, params, &host, reterr_msg);
    }
    if (err == 0) {
        int rc = mu_rdzv_host(env, host, false, &n->endpoint, &n->server, &n->host_text);

        n->base.hosting = rc == 1;
        err = rc < 0 ? mu_err(reterr_msg, rc, "%s", n->host_text.text) : 0;
    }
    if (err != 0) {
        mu_free(n);
        return err;
    }
    mu_log(MUSTER_LOG_INFO, "RDZV-HOST", "backend=static run=\"%s\" %s", n->base.run_id,
           n->host_text.text);
    do_soon(n, SOON_RECORD);
    *ret_handler = &n->base;
    return 0;
}

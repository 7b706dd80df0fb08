#include "service/dht/dht.h"

#include <inttypes.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/log.h"

/* A call of ours under way. */
struct dht_out {
    struct mu_list link;
    struct mu_dht_service *service;
    uint64_t number;
    struct mu_unary_call call;
};

/* A request of another peer that is not answered yet. */
struct dht_in {
    struct mu_list link;
    struct mu_unary_request *request;
    uint64_t token;
};

struct served {
    struct mu_unary_handler handler;
    struct mu_dht_service *service;
    enum mu_dht_method method;
};

struct mu_dht_service {
    struct mu_env *env;
    struct mu_dht_service_config config;
    struct mu_dht *node;
    struct mu_timer timer;
    struct mu_list outs;
    struct mu_list ins;
    struct served served[3];
    uint64_t tokens;
    uint64_t refused; /* as far as it was logged */
    bool pumping;
    bool stopping;
};

/* --- the pump --------------------------------------------------------------------------------- */

static void on_call_done(struct mu_unary_call *call, int status, const char *text,
                         struct mu_span message);

static void make_call(struct mu_dht_service *s, const struct mu_dht_event *e)
{
    struct dht_out *out = mu_calloc(1, sizeof(*out));
    int err = MUSTER_ENOMEM;

    if (out != NULL) {
        out->service = s;
        out->number = e->number;
        out->call.peer = e->peer;
        out->call.method = mu_dht_method_name(e->method);
        out->call.timeout_ms = e->timeout_ms;
        out->call.done = on_call_done;
        mu_list_init(&out->link);
        err = s->config.unary->ops->call(s->config.unary, &out->call, e->message);
    }
    if (err == 0) {
        mu_list_push(&s->outs, &out->link);
        return;
    }
    mu_free(out);
    mu_dht_answer(s->node, mu_env_now(s->env), e->number, err, (struct mu_span){0});
}

static void send_reply(struct mu_dht_service *s, const struct mu_dht_event *e)
{
    MU_LIST_FOREACH (it, &s->ins) {
        struct dht_in *in = MU_CONTAINER_OF(it, struct dht_in, link);

        if (in->token == e->number) {
            mu_list_remove(&in->link);
            mu_unary_reply(in->request, e->status, e->message);
            mu_free(in);
            return;
        }
    }
}

static void end_wish(struct mu_dht_op *op)
{
    struct mu_dht_wish *wish = op->context;

    if (wish != NULL) {
        wish->op = NULL;
        wish->done(wish, op);
    }
    mu_dht_op_free(op);
}

/* Logs a line when records were refused that no honest peer sends, at most one each time it is
 * pumped. */
static void tell_refusals(struct mu_dht_service *s)
{
    struct mu_dht_stats stats;
    uint64_t refused;

    mu_dht_stats(s->node, &stats);
    refused = stats.refused_owner + stats.refused_future + stats.refused_subkeys +
              stats.refused_quota + stats.refused_full;
    if (refused > 2 * s->refused) {
        mu_log(MUSTER_LOG_WARN, "DHT-REFUSED",
               "owner=%" PRIu64 " future=%" PRIu64 " subkeys=%" PRIu64 " quota=%" PRIu64
               " full=%" PRIu64,
               stats.refused_owner, stats.refused_future, stats.refused_subkeys,
               stats.refused_quota, stats.refused_full);
        s->refused = refused;
    }
}

static void pump(struct mu_dht_service *s)
{
    struct mu_dht_event e;

    if (s->pumping || s->stopping) {
        return;
    }
    s->pumping = true;
    while (!s->stopping && mu_dht_next_event(s->node, &e)) {
        switch (e.type) {
        case MU_DHT_EVENT_CALL:
            make_call(s, &e);
            break;
        case MU_DHT_EVENT_REPLY:
            send_reply(s, &e);
            break;
        case MU_DHT_EVENT_ENDED:
            end_wish(e.op);
            break;
        }
    }
    s->pumping = false;
    if (!s->stopping) {
        tell_refusals(s);
        mu_env_timer_arm(s->env, &s->timer, mu_dht_deadline(s->node));
    }
}

/* The owner's operations end on a later turn, so the pump runs then. */
static void pump_later(struct mu_dht_service *s)
{
    if (!s->pumping && !s->stopping) {
        mu_env_timer_arm(s->env, &s->timer, mu_env_now(s->env).mono);
    }
}

/* --- calls and requests ----------------------------------------------------------------------- */

static void on_call_done(struct mu_unary_call *call, int status, const char *text,
                         struct mu_span message)
{
    struct dht_out *out = MU_CONTAINER_OF(call, struct dht_out, call);
    struct mu_dht_service *s = out->service;
    uint64_t number = out->number;

    (void)text;
    mu_list_remove(&out->link);
    mu_free(out);
    mu_dht_answer(s->node, mu_env_now(s->env), number, status, message);
    pump(s);
}

static void on_request(struct mu_unary_handler *handler, struct mu_unary_request *request,
                       struct mu_span message)
{
    struct served *served = MU_CONTAINER_OF(handler, struct served, handler);
    struct mu_dht_service *s = served->service;
    struct dht_in *in = mu_calloc(1, sizeof(*in));
    int err = MUSTER_ENOMEM;

    if (in != NULL) {
        in->request = request;
        in->token = ++s->tokens;
        mu_list_init(&in->link);
        mu_list_push(&s->ins, &in->link);
        request->owner = in;
        err = mu_dht_request(s->node, mu_env_now(s->env), in->token, &request->peer, served->method,
                             message);
    }
    if (err != 0) {
        if (in != NULL) {
            mu_list_remove(&in->link);
            mu_free(in);
        }
        mu_unary_reply(request, err, mu_span_str(muster_strerror(err)));
    }
    pump(s);
}

static void on_gone(struct mu_unary_handler *handler, struct mu_unary_request *request)
{
    struct served *served = MU_CONTAINER_OF(handler, struct served, handler);
    struct dht_in *in = request->owner;

    if (!served->service->stopping) {
        mu_dht_request_gone(served->service->node, in->token);
    }
    mu_list_remove(&in->link);
    mu_free(in);
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_dht_service *s = MU_CONTAINER_OF(timer, struct mu_dht_service, timer);

    if (s->stopping) {
        if (s->config.stopped != NULL) {
            s->config.stopped(s->config.context);
        }
        return;
    }
    mu_dht_tick(s->node, mu_env_now(s->env));
    pump(s);
}

/* --- life ------------------------------------------------------------------------------------- */

static int serve_all(struct mu_dht_service *s)
{
    for (int i = 0; i < 3; i++) {
        struct served *served = &s->served[i];
        int err;

        served->service = s;
        served->method = (enum mu_dht_method)(MU_DHT_PING + i);
        served->handler.method = mu_dht_method_name(served->method);
        served->handler.start = on_request;
        served->handler.gone = on_gone;
        err = s->config.unary->ops->serve(s->config.unary, &served->handler);
        if (err != 0) {
            while (i-- > 0) {
                s->config.unary->ops->unserve(s->config.unary, &s->served[i].handler);
            }
            return err;
        }
    }
    return 0;
}

int mu_dht_service_start(struct mu_env *env, const struct mu_dht_service_config *config,
                         struct mu_dht_service **ret, struct mu_errmsg *reterr_msg)
{
    struct mu_dht_service *s = mu_calloc(1, sizeof(*s));
    int err = MUSTER_ENOMEM;

    if (s == NULL) {
        return mu_err(reterr_msg, err, "%s", muster_strerror(err));
    }
    s->env = env;
    s->config = *config;
    mu_list_init(&s->outs);
    mu_list_init(&s->ins);
    mu_timer_init(&s->timer, on_timer);
    mu_env_entropy(env, s->config.dht.self.node.bytes, MU_DHT_ID_LEN);
    mu_env_entropy(env, &s->config.dht.seed, sizeof(s->config.dht.seed));
    err = mu_dht_new(&s->config.dht, &s->node);
    if (err == 0 && !config->dht.client) {
        err = serve_all(s);
    }
    if (err != 0) {
        mu_dht_free(s->node);
        mu_free(s);
        return mu_err(reterr_msg, err, "the DHT cannot be served: %s", muster_strerror(err));
    }
    *ret = s;
    return 0;
}

static void end_wishes(struct mu_dht_service *s)
{
    struct mu_dht_event e;

    mu_dht_close(s->node);
    while (mu_dht_next_event(s->node, &e)) {
        if (e.type == MU_DHT_EVENT_ENDED) {
            end_wish(e.op);
        }
    }
}

void mu_dht_service_stop(struct mu_dht_service *s)
{
    if (s->stopping) {
        return;
    }
    s->stopping = true;
    for (int i = 0; i < 3 && !s->config.dht.client; i++) {
        s->config.unary->ops->unserve(s->config.unary, &s->served[i].handler);
    }
    while (!mu_list_empty(&s->outs)) {
        struct dht_out *out = MU_CONTAINER_OF(mu_list_pop(&s->outs), struct dht_out, link);

        s->config.unary->ops->cancel(s->config.unary, &out->call);
        mu_free(out);
    }
    MU_ASSERT(mu_list_empty(&s->ins));
    end_wishes(s);
    mu_env_timer_arm(s->env, &s->timer, mu_env_now(s->env).mono);
}

void mu_dht_service_free(struct mu_dht_service *s)
{
    if (s != NULL) {
        mu_dht_free(s->node);
        mu_free(s);
    }
}

/* --- wishes ----------------------------------------------------------------------------------- */

static int begin(struct mu_dht_service *s, struct mu_dht_wish *wish, int err, struct mu_dht_op *op)
{
    if (err != 0) {
        return err;
    }
    wish->op = op;
    wish->service = s;
    op->context = wish;
    pump_later(s);
    return 0;
}

int mu_dht_service_join(struct mu_dht_service *s, struct mu_dht_wish *wish,
                        const struct mu_peer_id *peers, size_t count)
{
    struct mu_dht_op *op = NULL;
    int err;

    if (s->stopping) {
        return MUSTER_ECLOSED;
    }
    err = mu_dht_bootstrap(s->node, mu_env_now(s->env), peers, count, &op);
    return begin(s, wish, err, op);
}

int mu_dht_service_store(struct mu_dht_service *s, struct mu_dht_wish *wish,
                         const struct mu_dht_put *puts, size_t count)
{
    struct mu_dht_op *op = NULL;
    int err;

    if (s->stopping) {
        return MUSTER_ECLOSED;
    }
    err = mu_dht_store(s->node, mu_env_now(s->env), puts, count, &op);
    return begin(s, wish, err, op);
}

int mu_dht_service_get(struct mu_dht_service *s, struct mu_dht_wish *wish,
                       const struct mu_dht_id *keys, size_t count, bool latest)
{
    struct mu_dht_op *op = NULL;
    int err;

    if (s->stopping) {
        return MUSTER_ECLOSED;
    }
    err = mu_dht_get(s->node, mu_env_now(s->env), keys, count, latest, &op);
    return begin(s, wish, err, op);
}

void mu_dht_service_cancel(struct mu_dht_wish *wish)
{
    if (wish->op != NULL) {
        mu_dht_op_cancel(wish->service->node, wish->op);
        pump_later(wish->service);
    }
}

double mu_dht_service_time(const struct mu_dht_service *s)
{
    return (double)mu_env_now(s->env).wall.ns / 1e9;
}

struct mu_dht *mu_dht_service_node(struct mu_dht_service *s)
{
    return s->node;
}

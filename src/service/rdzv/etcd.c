/*
 * The etcd backend: the machine of proto/rdzv/etcd.h on etcd's v2 API. Each lane of the machine has
 * one call at a time. Calls of the user reach the machine on the next turn, so that no callback
 * runs inside a call.
 */
#include "service/rdzv/etcd.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "service/base/log.h"

#define KEYS           "/v2/keys"
#define PATH_MAX_BYTES (64u << 10)
#define BODY_MAX       (16u << 20)
#define CALL_MS        10000u /* etcd itself takes 7 s to give up */
#define LEASE_MS       3000u  /* of a life of 10 s, so that there is time for a second try */
#define NOTICE_MS      1000u  /* between the end of a key and our knowing of it */

static struct mu_rdzv_etcd *etcd_of(struct mu_rdzv_handler *h)
{
    return MU_CONTAINER_OF(h, struct mu_rdzv_etcd, base);
}

static void rearm(struct mu_rdzv_etcd *n)
{
    mu_mono_t at =
        n->freeing ? MU_MONO_NEVER : mu_mono_min(n->upscale_at, mu_retcd_deadline(&n->machine));

    if (n->soon != 0) {
        at = mu_env_now(n->base.env).mono;
    }
    mu_env_timer_arm(n->base.env, &n->timer, at);
}

static void ask_for(struct mu_rdzv_etcd *n, unsigned what)
{
    n->soon |= what;
    rearm(n);
}

/* --- requests --------------------------------------------------------------------------------- */

static void feed(struct mu_rdzv_etcd *n, struct mu_retcd_event *event);
static void send_request(struct mu_rdzv_etcd_lane *l);

static int put_field(struct mu_buf *b, const char *name, struct mu_span value)
{
    return mu_etcd2_field(b, name, value);
}

static int put_number(struct mu_buf *b, const char *name, int64_t value)
{
    char text[24];

    (void)snprintf(text, sizeof(text), "%" PRId64, value);
    return mu_etcd2_field(b, name, mu_span_str(text));
}

/* Makes the form of a write, with the fields that PyTorch's client sends. */
static int make_body(struct mu_buf *b, const struct mu_retcd_request *q)
{
    const struct mu_span yes = MU_SPAN_LIT("true");
    const struct mu_span no = MU_SPAN_LIT("false");
    int err = 0;

    if (q->verb == MU_RETCD_MAKE || q->verb == MU_RETCD_SWAP || q->verb == MU_RETCD_COUNT) {
        err = put_field(b, "value", q->value);
    }
    if (err == 0 && q->ttl_s != 0) {
        err = put_number(b, "ttl", q->ttl_s);
    }
    if (err == 0 && q->verb == MU_RETCD_MKDIR) {
        err = put_field(b, "dir", yes);
    }
    if (err == 0 && (q->verb == MU_RETCD_MKDIR || q->verb == MU_RETCD_MAKE)) {
        err = put_field(b, "prevExist", no);
    }
    if (err == 0 && (q->verb == MU_RETCD_COUNT || q->verb == MU_RETCD_REFRESH)) {
        err = put_field(b, "prevExist", yes);
    }
    if (err == 0 && q->verb == MU_RETCD_REFRESH) {
        err = put_field(b, "refresh", yes);
    }
    if (err == 0 && q->verb == MU_RETCD_COUNT) {
        err = put_number(b, "prevIndex", q->index);
    }
    if (err == 0 && q->verb == MU_RETCD_SWAP) {
        err = put_field(b, "prevValue", q->prev);
    }
    return err;
}

/*
 * Makes the query of the other requests. Reads are quorum reads of the cluster, not of what one
 * member has seen: after a change of member the state must not be older.
 */
static int make_query(struct mu_buf *b, const struct mu_retcd_request *q)
{
    const struct mu_span yes = MU_SPAN_LIT("true");
    struct mu_buf query;
    int err = 0;

    mu_buf_init(&query, BODY_MAX);
    switch ((int)q->verb) {
    case MU_RETCD_GET:
    case MU_RETCD_LIST:
        err = put_field(&query, "quorum", yes);
        break;
    case MU_RETCD_WATCH:
        err = put_field(&query, "wait", yes);
        err = err != 0 ? err : put_number(&query, "waitIndex", q->index);
        err = err != 0 || !q->recursive ? err : put_field(&query, "recursive", yes);
        break;
    case MU_RETCD_DROP:
        err = put_field(&query, "prevValue", q->prev);
        break;
    }
    if (err == 0 && query.len != 0) {
        err = mu_buf_append(b, MU_SPAN_LIT("?"));
        err = err != 0 ? err : mu_buf_append(b, mu_buf_span(&query));
    }
    mu_buf_fini(&query);
    return err != 0 ? err : mu_buf_append(b, mu_span("", 1));
}

static enum mu_retcd_lane_id lane_of(const struct mu_rdzv_etcd_lane *l)
{
    return (enum mu_retcd_lane_id)(l - l->n->lanes);
}

/* Reports the result of a call to the machine. */
static void on_call_done(struct mu_etcd_call *call)
{
    struct mu_rdzv_etcd_lane *l = MU_CONTAINER_OF(call, struct mu_rdzv_etcd_lane, call);
    struct mu_rdzv_etcd *n = l->n;
    struct mu_retcd_event event = {
        .type = MU_RETCD_ANSWER,
        .lane = lane_of(l),
        .number = l->number,
        .status = call->status,
        .text = call->errmsg.text,
        .index = call->index,
    };

    if (n->freeing) {
        return;
    }
    if (l->pending) {
        l->pending = false; /* this call was given up for another one */
        send_request(l);
        return;
    }
    if (call->status == 0) {
        n->found = true;
        n->base.trouble_count = 0;
        event.status = mu_etcd2_reply_decode(&n->reply, call->text);
        event.text = event.status == 0 ? NULL : "etcd's answer cannot be read";
        event.reply = &n->reply;
        if (event.status == MUSTER_EPROTO && call->text.len == 0) {
            event.status = MUSTER_ETIMEDOUT; /* a watch that ended without an event */
        }
    }
    feed(n, &event);
    if (!n->freeing) {
        rearm(n);
    }
}

static int start_call(struct mu_rdzv_etcd_lane *l, const struct mu_retcd_request *q)
{
    bool read = q->verb == MU_RETCD_GET || q->verb == MU_RETCD_LIST || q->verb == MU_RETCD_WATCH;
    bool watch = q->verb == MU_RETCD_WATCH;
    bool lease = lane_of(l) == MU_RETCD_RANK;
    int err;

    mu_buf_reset(&l->path);
    mu_buf_reset(&l->body);
    err = mu_buf_append(&l->path, MU_SPAN_LIT(KEYS));
    err = err != 0 ? err : mu_etcd2_path(&l->path, q->key);
    err = err != 0 ? err : make_query(&l->path, q);
    if (err == 0 && !read && q->verb != MU_RETCD_DROP) {
        err = make_body(&l->body, q);
    }
    if (err != 0) {
        return err;
    }
    l->call = (struct mu_etcd_call){
        .method = read                       ? "GET"
                  : q->verb == MU_RETCD_DROP ? "DELETE"
                                             : "PUT",
        .path = (const char *)mu_buf_span(&l->path).data,
        .body = mu_buf_span(&l->body),
        .repeat = (read && !watch) || q->verb == MU_RETCD_MKDIR || q->verb == MU_RETCD_PUT ||
                  q->verb == MU_RETCD_REFRESH,
        .v2 = true,
        .poll = watch,
        .timeout_ms = watch   ? (uint32_t)q->timeout_ms
                      : lease ? LEASE_MS
                              : CALL_MS,
        .done = on_call_done,
    };
    mu_etcd_submit(l->n->etcd, &l->call);
    return 0;
}

static void send_request(struct mu_rdzv_etcd_lane *l)
{
    struct mu_rdzv_etcd *n = l->n;
    enum mu_retcd_lane_id id = lane_of(l);
    const struct mu_retcd_lane *from = &n->machine.lanes[id];
    int err;

    if (!from->out) {
        return; /* it was given up meanwhile */
    }
    l->number = from->request.number;
    err = start_call(l, &from->request);
    if (err != 0) {
        struct mu_retcd_event event = {.type = MU_RETCD_ANSWER,
                                       .lane = id,
                                       .number = l->number,
                                       .status = err,
                                       .text = muster_strerror(err)};

        feed(n, &event);
    }
}

/* Tells the user first, then sends the requests. */
static void carry_out(struct mu_rdzv_etcd *n, const struct mu_retcd_update *up)
{
    mu_rdzv_etcd_tell(n, up);
    for (size_t i = 0; i < MU_RETCD_LANES && !n->freeing; i++) {
        struct mu_rdzv_etcd_lane *l = &n->lanes[i];
        bool active = mu_etcd_call_active(&l->call);

        if ((up->cancels & 1u << i) != 0 && active) {
            mu_etcd_cancel(&l->call);
            l->pending = true;
        }
        if ((up->requests & 1u << i) != 0 && !active) {
            send_request(l);
        }
    }
}

static void feed(struct mu_rdzv_etcd *n, struct mu_retcd_event *event)
{
    struct mu_retcd_update up;

    event->now = mu_env_now(n->base.env).mono;
    mu_retcd_step(&n->machine, event, &up);
    carry_out(n, &up);
}

/* --- wishes ----------------------------------------------------------------------------------- */

static void grant(struct mu_rdzv_etcd *n, unsigned wish, enum mu_retcd_event_type type)
{
    struct mu_retcd_event event = {.type = type};

    if ((n->soon & wish) == 0 || n->freeing) {
        return;
    }
    n->soon &= ~wish;
    if (wish == MU_RDZV_ETCD_JOIN) {
        n->rank = -1;
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_RUNNING, -1, "etcd.join",
                               "%s wants to join the next round", n->base.node);
    }
    feed(n, &event);
}

static void finish_free(void *context)
{
    struct mu_rdzv_etcd *n = context;

    for (size_t i = 0; i < MU_RETCD_LANES; i++) {
        mu_buf_fini(&n->lanes[i].path);
        mu_buf_fini(&n->lanes[i].body);
    }
    mu_retcd_fini(&n->machine);
    mu_etcd2_reply_fini(&n->reply);
    mu_env_timer_arm(n->base.env, &n->timer, MU_MONO_NEVER);
    n->base.events.freed(n->base.events.context);
    mu_free(n);
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_rdzv_etcd *n = MU_CONTAINER_OF(timer, struct mu_rdzv_etcd, timer);
    struct mu_retcd_event event = {.type = MU_RETCD_TIMEOUT};

    if ((n->soon & MU_RDZV_ETCD_FREE) != 0) {
        n->soon = 0;
        mu_etcd_close(n->etcd, finish_free, n);
        return;
    }
    if ((n->soon & MU_RDZV_ETCD_RECORD) != 0) {
        n->soon &= ~(unsigned)MU_RDZV_ETCD_RECORD;
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_INIT, -1, "etcd.host",
                               "the rendezvous is in etcd at %.200s", n->config.endpoints);
    }
    if ((n->soon & MU_RDZV_ETCD_EXPLAIN) != 0) {
        n->soon &= ~(unsigned)MU_RDZV_ETCD_EXPLAIN;
        mu_rdzv_etcd_explain(n);
    }
    grant(n, MU_RDZV_ETCD_LEAVE, MU_RETCD_LEAVE);
    grant(n, MU_RDZV_ETCD_CLOSE, MU_RETCD_CLOSE_RUN);
    grant(n, MU_RDZV_ETCD_JOIN, MU_RETCD_JOIN);
    if (!n->freeing && mu_mono_reached(n->upscale_at, mu_env_now(n->base.env).mono)) {
        mu_rdzv_etcd_upscale(n);
    }
    if (!n->freeing &&
        mu_mono_reached(mu_retcd_deadline(&n->machine), mu_env_now(n->base.env).mono)) {
        feed(n, &event);
    }
    rearm(n);
}

static void etcd_join(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_etcd *n = etcd_of(h);

    if (n->freeing || n->state == MU_RDZV_ETCD_JOINING) {
        return;
    }
    n->state = MU_RDZV_ETCD_JOINING;
    n->base.trouble_count = 0;
    n->upscale_at = MU_MONO_NEVER;
    ask_for(n, MU_RDZV_ETCD_JOIN);
}

static void etcd_explain(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_etcd *n = etcd_of(h);

    if (!n->freeing) {
        ask_for(n, MU_RDZV_ETCD_EXPLAIN);
    }
}

static void etcd_leave(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_etcd *n = etcd_of(h);

    if (!n->freeing) {
        n->state = MU_RDZV_ETCD_OUT;
        n->upscale_at = MU_MONO_NEVER;
        n->soon &= ~(unsigned)MU_RDZV_ETCD_JOIN;
        ask_for(n, MU_RDZV_ETCD_LEAVE);
    }
}

static void etcd_close_run(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_etcd *n = etcd_of(h);

    if (!n->freeing) {
        ask_for(n, MU_RDZV_ETCD_CLOSE);
    }
}

static void etcd_free(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_etcd *n = etcd_of(h);

    if (!n->freeing) {
        n->freeing = true;
        n->soon = 0;
        ask_for(n, MU_RDZV_ETCD_FREE);
    }
}

static const struct mu_rdzv_handler_ops etcd_ops = {
    .join = etcd_join,
    .explain = etcd_explain,
    .leave = etcd_leave,
    .close_run = etcd_close_run,
    .free = etcd_free,
};

/* --- the beginning ---------------------------------------------------------------------------- */

static int init_machine(struct mu_rdzv_etcd *n, struct mu_errmsg *reterr_msg)
{
    struct mu_retcd_config config = n->config.machine;
    int err;

    config.prefix = n->config.prefix;
    config.run_id = n->base.run_id;
    mu_env_entropy(n->base.env, &config.seed, sizeof(config.seed));
    err = mu_retcd_init(&n->machine, &config);
    if (err != 0) {
        return mu_err(reterr_msg, err, "%s", muster_strerror(err));
    }
    err = mu_rdzv_etcd_client(&n->config, n->base.env, &n->etcd, reterr_msg);
    if (err != 0) {
        mu_retcd_fini(&n->machine);
        return err;
    }
    mu_etcd_on_trouble(n->etcd, mu_rdzv_etcd_trouble, n);
    return 0;
}

int mu_rdzv_etcd_new(struct mu_env *env, const struct mu_rdzv_params *params,
                     const struct mu_rdzv_events *events, struct mu_rdzv_handler **ret_handler,
                     struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_etcd *n = mu_calloc(1, sizeof(*n));
    int err;

    if (n == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    mu_timer_init(&n->timer, on_timer);
    mu_etcd2_reply_init(&n->reply);
    n->upscale_at = MU_MONO_NEVER;
    n->rank = -1;
    for (size_t i = 0; i < MU_RETCD_LANES; i++) {
        n->lanes[i].n = n;
        mu_buf_init(&n->lanes[i].path, PATH_MAX_BYTES + BODY_MAX);
        mu_buf_init(&n->lanes[i].body, BODY_MAX);
    }
    err = mu_rdzv_handler_init(&n->base, &etcd_ops, env, params, events, reterr_msg);
    n->base.keep_trying = true; /* The machine tries until its timeout, as PyTorch's does. */
    if (err == 0) {
        err = mu_rdzv_etcd_configure(&n->config, params, reterr_msg);
    }
    if (err == 0) {
        err = init_machine(n, reterr_msg);
    }
    if (err != 0) {
        mu_free(n);
        return err;
    }
    if (n->config.machine.notice_lost) {
        n->base.doubt_ms = MU_RETCD_RANK_TTL_S * 1000 + MU_RETCD_LOOK_MS + NOTICE_MS;
    }
    mu_log(MUSTER_LOG_INFO, "RDZV-HOST", "backend=etcd run=\"%s\" endpoints=%.200s", n->base.run_id,
           n->config.endpoints);
    n->soon = MU_RDZV_ETCD_RECORD;
    rearm(n);
    *ret_handler = &n->base;
    return 0;
}

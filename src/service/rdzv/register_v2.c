#include "service/rdzv/register_v2.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "codec/text/base64.h"
#include "codec/etcd/v2.h"
#include "core/alloc.h"

#define DIRECTORY "/v2/keys/torch/elastic/rendezvous/"
#define TTL_S     "7200"
#define WAIT_MS   15000u /* how often a wait for a change begins anew */
#define REST_MS   500    /* after a wait that failed */
#define TOKEN_CAP 24
#define QUERY_CAP 64
/* Enough for the base64 of the longest state, of which every byte may be escaped. */
#define TEXT_BYTES_MAX ((size_t)MU_RDZV_STATE_BYTES_MAX / 3 * 4 + 8)

struct v2_register {
    struct mu_rdzv_register base;
    struct mu_etcd *etcd;
    uint32_t answer_ms;
    struct mu_timer timer;   /* a rest after a wait that failed; an answer on a later turn */
    struct mu_etcd_call ask; /* reads and writes */
    struct mu_etcd_call wait;
    bool checking;     /* a read to find out whether a write has happened */
    bool failed_early; /* the request found no memory: reported on the next turn */
    uint64_t asked;    /* the request that `ask` is for */
    int64_t seen;      /* the index of the cluster up to which we know it */
    bool found;
    bool closing;
    struct mu_buf desired;      /* what is being written */
    struct mu_buf next_desired; /* of a write that waits for the one before to end */
    char expected[TOKEN_CAP];   /* "": the key is absent */
    char next_expected[TOKEN_CAP];
    struct mu_buf body;
    struct mu_buf bytes; /* of the state that was read */
    struct mu_buf path;
    struct mu_buf ask_path;
    struct mu_buf wait_path;
    struct mu_etcd2_reply reply;
};

static void pump(struct v2_register *c);
static void read_state(struct v2_register *c);

static struct v2_register *register_of(struct mu_rdzv_register *reg)
{
    return MU_CONTAINER_OF(reg, struct v2_register, base);
}

/* --- the watch -------------------------------------------------------------------------------- */

static int append_query(struct mu_buf *out, const struct v2_register *c, const char *query)
{
    int err;

    mu_buf_reset(out);
    err = mu_buf_append(out, mu_buf_span(&c->path));
    return err != 0 ? err : mu_buf_append(out, mu_span(query, strlen(query) + 1));
}

static void wait_for_change(struct v2_register *c);

static void on_waited(struct mu_etcd_call *call)
{
    struct v2_register *c = MU_CONTAINER_OF(call, struct v2_register, wait);

    if (c->closing) {
        return;
    }
    if (call->status == MUSTER_ETIMEDOUT) {
        wait_for_change(c);
    } else if (call->status == 0) {
        /* The key changed; or the history after our index is gone, and then it may have changed. */
        c->base.events.changed(c->base.events.context);
    } else {
        mu_env_timer_arm(c->base.env, &c->timer,
                         mu_mono_add_ms(mu_env_now(c->base.env).mono, REST_MS));
    }
}

/* Reports one change for every answer. */
static void wait_for_change(struct v2_register *c)
{
    char query[QUERY_CAP];

    if (mu_etcd_call_active(&c->wait) || c->closing) {
        return;
    }
    (void)snprintf(query, sizeof(query), "?wait=true&waitIndex=%" PRId64, c->seen + 1);
    if (append_query(&c->wait_path, c, query) != 0) {
        mu_env_timer_arm(c->base.env, &c->timer,
                         mu_mono_add_ms(mu_env_now(c->base.env).mono, REST_MS));
        return;
    }
    c->wait = (struct mu_etcd_call){
        .method = "GET",
        .path = (const char *)mu_buf_span(&c->wait_path).data,
        .repeat = true,
        .v2 = true,
        .timeout_ms = WAIT_MS,
        .done = on_waited,
    };
    mu_etcd_submit(c->etcd, &c->wait);
}

/* --- answers ---------------------------------------------------------------------------------- */

static void tell_found(struct v2_register *c)
{
    const struct mu_rdzv_register_found found = {
        .push = true,
        .text = "etcd answers and reports changes",
    };

    if (!c->found) {
        c->found = true;
        c->base.events.found(c->base.events.context, &found);
    }
}

/* Answers that there is no state, as of an index of the cluster. */
static void answer_nothing(struct v2_register *c, enum mu_rdzv_event_type type, int64_t index)
{
    struct mu_rdzv_event event = {.type = type};

    c->seen = index;
    tell_found(c);
    wait_for_change(c);
    mu_rdzv_register_answer(&c->base, &event);
}

static void answer_state(struct v2_register *c, enum mu_rdzv_event_type type,
                         const struct mu_etcd2_node *node)
{
    struct mu_rdzv_event event = {.type = type, .present = true};
    char token[TOKEN_CAP];
    int err;

    mu_buf_reset(&c->bytes);
    err =
        node->value.len > TEXT_BYTES_MAX ? MUSTER_ELIMIT : mu_base64_decode(&c->bytes, node->value);
    if (err == MUSTER_ENOMEM) {
        mu_rdzv_register_fail(&c->base, err, "out of memory", true);
        return;
    }
    if (err != 0 || node->dir) {
        mu_rdzv_register_fail(&c->base, MUSTER_ECORRUPT,
                              node->dir              ? "it is a directory"
                              : err == MUSTER_ELIMIT ? "it is longer than any state"
                                                     : "it is not base64",
                              false);
        return;
    }
    c->seen = node->modified;
    (void)snprintf(token, sizeof(token), "%" PRId64, node->modified);
    event.bytes = mu_buf_span(&c->bytes);
    event.token = mu_span_str(token);
    tell_found(c);
    wait_for_change(c);
    mu_rdzv_register_answer(&c->base, &event);
    mu_buf_reset(&c->bytes);
    mu_buf_trim(&c->bytes, 1u << 20);
}

static void answer_written(struct v2_register *c, const struct mu_etcd2_node *node)
{
    char token[TOKEN_CAP];
    struct mu_rdzv_event event = {.type = MU_RDZV_STATE_WRITTEN};

    c->seen = node->modified;
    (void)snprintf(token, sizeof(token), "%" PRId64, node->modified);
    event.token = mu_span_str(token);
    tell_found(c);
    wait_for_change(c);
    mu_rdzv_register_answer(&c->base, &event);
}

static void answer_refusal(struct v2_register *c)
{
    const struct mu_etcd2_reply *r = &c->reply;
    char text[MU_ERRMSG_CAP];

    (void)snprintf(text, sizeof(text), "etcd says: %.*s (%.*s)",
                   (int)(r->message.len < 80 ? r->message.len : 80), (const char *)r->message.data,
                   (int)(r->cause.len < 80 ? r->cause.len : 80), (const char *)r->cause.data);
    mu_rdzv_register_fail(&c->base, MUSTER_EREFUSED, text, false);
}

static void on_read(struct v2_register *c)
{
    const struct mu_etcd2_reply *r = &c->reply;
    enum mu_rdzv_event_type type = c->checking ? MU_RDZV_WRITE_LOST : MU_RDZV_STATE_READ;

    if (r->code == MU_ETCD2_NOT_FOUND) {
        answer_nothing(c, type, r->index);
    } else if (r->code != 0 || r->node_count == 0) {
        answer_refusal(c);
    } else if (c->checking && mu_span_eq(r->nodes[0].value, mu_buf_span(&c->desired))) {
        answer_written(c, &r->nodes[0]); /* the first try succeeded, and its answer got lost */
    } else {
        answer_state(c, type, &r->nodes[0]);
    }
}

static void on_written(struct v2_register *c)
{
    const struct mu_etcd2_reply *r = &c->reply;

    if (r->code == MU_ETCD2_COMPARE_FAILED || r->code == MU_ETCD2_EXISTS ||
        r->code == MU_ETCD2_NOT_FOUND) {
        c->checking = true;
        read_state(c);
    } else if (r->code != 0 || r->node_count == 0) {
        answer_refusal(c);
    } else {
        answer_written(c, &r->nodes[0]);
    }
}

static void on_asked(struct mu_etcd_call *call)
{
    struct v2_register *c = MU_CONTAINER_OF(call, struct v2_register, ask);
    int err = 0;

    if (c->closing) {
        return;
    }
    if (c->base.want == MU_RDZV_REGISTER_NOTHING || c->asked != c->base.request) {
        pump(c); /* another request has replaced it */
        return;
    }
    if (call->status == 0) {
        err = mu_etcd2_reply_decode(&c->reply, call->text);
    }
    if (call->status != 0) {
        struct mu_errmsg msg = call->errmsg;

        mu_rdzv_register_fail(&c->base, call->status, msg.text,
                              mu_rdzv_register_is_transient(call->status));
    } else if (err != 0) {
        mu_rdzv_register_fail(&c->base, err, "etcd's answer cannot be read", err == MUSTER_ENOMEM);
    } else if (c->base.want == MU_RDZV_REGISTER_READ || c->checking) {
        on_read(c);
    } else {
        on_written(c);
    }
}

/* --- requests --------------------------------------------------------------------------------- */

static void fail_soon(struct v2_register *c)
{
    c->failed_early = true;
    mu_env_timer_arm(c->base.env, &c->timer, mu_env_now(c->base.env).mono);
}

static void submit(struct v2_register *c, const char *method, const char *query)
{
    if (append_query(&c->ask_path, c, query) != 0) {
        fail_soon(c);
        return;
    }
    c->ask = (struct mu_etcd_call){
        .method = method,
        .path = (const char *)mu_buf_span(&c->ask_path).data,
        .body = strcmp(method, "PUT") == 0 ? mu_buf_span(&c->body) : (struct mu_span){0},
        .repeat = true,
        .v2 = true,
        .timeout_ms = c->answer_ms,
        .done = on_asked,
    };
    mu_etcd_submit(c->etcd, &c->ask);
}

static void read_state(struct v2_register *c)
{
    submit(c, "GET", "?quorum=true");
}

static void write_state(struct v2_register *c)
{
    struct mu_buf was = c->desired;
    int err;

    c->desired = c->next_desired;
    c->next_desired = was;
    memcpy(c->expected, c->next_expected, sizeof(c->expected));
    mu_buf_reset(&c->body);
    err = mu_etcd2_field(&c->body, "value", mu_buf_span(&c->desired));
    if (err == 0) {
        err = mu_etcd2_field(&c->body, "ttl", MU_SPAN_LIT(TTL_S));
    }
    if (err == 0) {
        err = c->expected[0] == '\0'
                  ? mu_etcd2_field(&c->body, "prevExist", MU_SPAN_LIT("false"))
                  : mu_etcd2_field(&c->body, "prevIndex", mu_span_str(c->expected));
    }
    if (err != 0) {
        fail_soon(c);
    } else {
        submit(c, "PUT", "");
    }
}

/* Sends the request to etcd, as soon as no other is under way. */
static void pump(struct v2_register *c)
{
    if (c->closing || c->base.want == MU_RDZV_REGISTER_NOTHING || mu_etcd_call_active(&c->ask)) {
        return;
    }
    c->asked = c->base.request;
    c->checking = false;
    if (c->base.want == MU_RDZV_REGISTER_READ) {
        read_state(c);
    } else {
        write_state(c);
    }
}

static void want(struct v2_register *c, enum mu_rdzv_register_want what, uint64_t request)
{
    c->base.want = what;
    c->base.request = request;
    if (mu_etcd_call_active(&c->ask)) {
        mu_etcd_cancel(&c->ask);
    } else {
        pump(c);
    }
}

static void v2_register_read(struct mu_rdzv_register *reg, uint64_t request)
{
    want(register_of(reg), MU_RDZV_REGISTER_READ, request);
}

static int v2_register_write(struct mu_rdzv_register *reg, const struct mu_rdzv_update *up)
{
    struct v2_register *c = register_of(reg);
    int err;

    if (up->has_token && up->token.len >= TOKEN_CAP) {
        return MUSTER_ELIMIT;
    }
    mu_buf_reset(&c->next_desired);
    err = mu_base64_encode(&c->next_desired, up->bytes);
    if (err != 0) {
        return err;
    }
    memset(c->next_expected, 0, sizeof(c->next_expected));
    if (up->has_token) {
        memcpy(c->next_expected, up->token.data, up->token.len);
    }
    want(c, MU_RDZV_REGISTER_WRITE, up->request);
    return 0;
}

/* --- life ------------------------------------------------------------------------------------- */

static void on_timer(struct mu_timer *timer)
{
    struct v2_register *c = MU_CONTAINER_OF(timer, struct v2_register, timer);

    if (c->failed_early) {
        c->failed_early = false;
        mu_rdzv_register_fail(&c->base, MUSTER_ENOMEM, "out of memory", true);
    } else if (!mu_etcd_call_active(&c->wait)) {
        c->base.events.changed(c->base.events.context); /* the watch was lost */
    }
}

static void free_register(struct v2_register *c)
{
    mu_buf_fini(&c->desired);
    mu_buf_fini(&c->next_desired);
    mu_buf_fini(&c->body);
    mu_buf_fini(&c->bytes);
    mu_buf_fini(&c->path);
    mu_buf_fini(&c->ask_path);
    mu_buf_fini(&c->wait_path);
    mu_etcd2_reply_fini(&c->reply);
    mu_free(c);
}

static void on_etcd_closed(void *context)
{
    struct v2_register *c = context;
    struct mu_rdzv_register_events events = c->base.events;

    free_register(c);
    events.closed(events.context);
}

static void v2_register_close(struct mu_rdzv_register *reg)
{
    struct v2_register *c = register_of(reg);

    c->closing = true;
    mu_env_timer_arm(c->base.env, &c->timer, MU_MONO_NEVER);
    mu_etcd_close(c->etcd, on_etcd_closed, c);
}

static const struct mu_rdzv_register_kind v2_register_kind = {
    .read = v2_register_read,
    .write = v2_register_write,
    .close = v2_register_close,
};

int mu_rdzv_v2_register_new(struct mu_env *env, struct mu_etcd *etcd, const char *run_id,
                            uint32_t answer_ms, const struct mu_rdzv_register_events *events,
                            struct mu_rdzv_register **ret_register)
{
    struct v2_register *c = mu_calloc(1, sizeof(*c));
    int err;

    if (c == NULL) {
        return MUSTER_ENOMEM;
    }
    c->base = (struct mu_rdzv_register){.kind = &v2_register_kind, .env = env, .events = *events};
    c->etcd = etcd;
    c->answer_ms = answer_ms;
    mu_timer_init(&c->timer, on_timer);
    mu_buf_init(&c->desired, TEXT_BYTES_MAX);
    mu_buf_init(&c->next_desired, TEXT_BYTES_MAX);
    mu_buf_init(&c->body, 3 * TEXT_BYTES_MAX + 256);
    mu_buf_init(&c->bytes, MU_RDZV_STATE_BYTES_MAX + 8);
    mu_buf_init(&c->path, 4096);
    mu_buf_init(&c->ask_path, 4096);
    mu_buf_init(&c->wait_path, 4096);
    mu_etcd2_reply_init(&c->reply);
    err = mu_buf_append(&c->path, MU_SPAN_LIT(DIRECTORY));
    if (err == 0) {
        err = mu_etcd2_path(&c->path, mu_span_str(run_id));
    }
    if (err != 0) {
        free_register(c);
        return err;
    }
    *ret_register = &c->base;
    return 0;
}

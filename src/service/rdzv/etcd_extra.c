/*
 *     [ASK the version] -> GET -+- store: MAKE, or SWAP against what was read -> done
 *                          ^    +- load: it is there -> done; else WAIT -> GET
 *                          +---- another was quicker: a tenth of a second later
 */
#include "service/rdzv/etcd_extra.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "service/rdzv/etcd.h"

#define AGAIN_MS 100u
#define WAIT_MS  15000u
#define CALL_MS  10000u
#define BODY_MAX (16u << 20)

enum step {
    ASK = 1,
    GET,
    WRITE,
    WAIT,
    AGAIN,
};

struct extra {
    struct mu_rdzv_etcd_extra_config config;
    struct mu_rdzv_etcd_config backend;
    char run_id[MU_RDZV_RUN_ID_MAX + 1];
    struct mu_env *env;
    struct mu_etcd *etcd;
    struct mu_etcd_call call;
    struct mu_etcd2_reply reply;
    struct mu_timer timer;
    struct mu_buf path;
    struct mu_buf body;
    struct mu_buf value; /* the answer */
    enum step step;
    mu_mono_t deadline;
    int64_t index;
    int status;
    struct mu_errmsg text;
};

static void go(struct extra *x, enum step step);

/* --- the end ---------------------------------------------------------------------------------- */

static void on_closed(void *context)
{
    struct extra *x = context;

    x->config.done(x->config.context, x->status, mu_buf_span(&x->value), x->text.text);
    mu_etcd2_reply_fini(&x->reply);
    mu_buf_fini(&x->path);
    mu_buf_fini(&x->body);
    mu_buf_fini(&x->value);
    mu_free(x);
}

static void finish(struct extra *x, int status)
{
    x->status = status;
    if (status != 0 && x->text.text[0] == '\0') {
        (void)mu_err(&x->text, status, "%s", muster_strerror(status));
    }
    mu_env_timer_arm(x->env, &x->timer, MU_MONO_NEVER);
    mu_etcd_close(x->etcd, on_closed, x);
}

/* --- answers ---------------------------------------------------------------------------------- */

static void take_version(struct extra *x)
{
    struct mu_retcd_state state = {0};

    if (x->reply.code == MU_ETCD2_NOT_FOUND ||
        (x->reply.code == 0 &&
         (mu_retcd_state_decode(x->reply.nodes[0].value, &state) != 0 || state.version == 0))) {
        finish(x, mu_err(&x->text, MUSTER_ENOENT, "the run has no active version"));
        return;
    }
    x->config.version = state.version;
    go(x, GET);
}

/* Writes the form of the next request: one that creates the key, or a swap against the present
 * value. */
static int make_form(struct extra *x, struct mu_span old)
{
    struct mu_buf text;
    int err;

    mu_buf_reset(&x->body);
    mu_buf_init(&text, MU_RETCD_STATE_MAX);
    err = mu_retcd_extra_edit(old, x->config.name, x->config.value, &text);
    err = err != 0 ? err : mu_etcd2_field(&x->body, "value", mu_buf_span(&text));
    if (err == 0) {
        err = old.len == 0 ? mu_etcd2_field(&x->body, "prevExist", MU_SPAN_LIT("false"))
                           : mu_etcd2_field(&x->body, "prevValue", old);
    }
    mu_buf_fini(&text);
    return err;
}

static void take_data(struct extra *x)
{
    bool there = x->reply.code == 0 && x->reply.node_count > 0;
    struct mu_span old = there ? x->reply.nodes[0].value : (struct mu_span){0};
    int rc;

    x->index = x->call.index;
    if (!x->config.load) {
        rc = make_form(x, old);
        if (rc != 0) {
            finish(x, rc);
        } else {
            go(x, WRITE);
        }
        return;
    }
    rc = there ? mu_retcd_extra_get(old, x->config.name, &x->value) : 0;
    if (rc == 0) {
        go(x, WAIT);
    } else {
        finish(x, rc == 1 ? 0 : rc);
    }
}

static void take_written(struct extra *x)
{
    int err;

    if (x->reply.code != 0) {
        go(x, AGAIN);
        return;
    }
    err = mu_buf_append(&x->value, x->config.value);
    finish(x, err);
}

static void on_call_done(struct mu_etcd_call *call)
{
    struct extra *x = MU_CONTAINER_OF(call, struct extra, call);
    bool waited = x->step == WAIT;

    if (waited && (call->status == 0 || call->status == MUSTER_ETIMEDOUT)) {
        go(x, GET);
        return;
    }
    if (call->status != 0) {
        x->text = call->errmsg;
        finish(x, call->status);
        return;
    }
    if (mu_etcd2_reply_decode(&x->reply, call->text) != 0 ||
        (x->reply.code == 0 && x->reply.node_count == 0)) {
        finish(x, mu_err(&x->text, MUSTER_EPROTO, "etcd's answer cannot be read"));
        return;
    }
    switch (x->step) {
    case ASK:
        take_version(x);
        break;
    case GET:
        take_data(x);
        break;
    case WRITE:
        take_written(x);
        break;
    case WAIT:
    case AGAIN:
        break;
    }
}

/* --- requests --------------------------------------------------------------------------------- */

static int make_path(struct extra *x)
{
    char tail[96] = "active_version?quorum=true";

    if (x->step != ASK) {
        int n = snprintf(tail, sizeof(tail), "v_%" PRIu64 "/extra_data", x->config.version);

        if (x->step == GET) {
            (void)snprintf(tail + n, sizeof(tail) - (size_t)n, "?quorum=true");
        } else if (x->step == WAIT) {
            (void)snprintf(tail + n, sizeof(tail) - (size_t)n, "?wait=true&waitIndex=%" PRId64,
                           x->index + 1);
        }
    }
    mu_buf_reset(&x->path);
    return mu_rdzv_etcd_path(&x->path, &x->backend, x->run_id, tail);
}

static uint32_t time_left(const struct extra *x, uint32_t most)
{
    uint64_t left = mu_mono_until_ms(x->deadline, mu_env_now(x->env).mono);

    return left == 0 ? 1 : left < most ? (uint32_t)left : most;
}

static void go(struct extra *x, enum step step)
{
    int err;

    x->step = step;
    if (mu_mono_reached(x->deadline, mu_env_now(x->env).mono)) {
        finish(x, mu_err(&x->text, MUSTER_ETIMEDOUT, "version %" PRIu64 " has no such extra data",
                         x->config.version));
        return;
    }
    if (step == AGAIN) {
        mu_env_timer_arm(x->env, &x->timer, mu_mono_add_ms(mu_env_now(x->env).mono, AGAIN_MS));
        return;
    }
    err = make_path(x);
    if (err != 0) {
        finish(x, err);
        return;
    }
    x->call = (struct mu_etcd_call){
        .method = step == WRITE ? "PUT" : "GET",
        .path = (const char *)mu_buf_span(&x->path).data,
        .body = step == WRITE ? mu_buf_span(&x->body) : (struct mu_span){0},
        .repeat = step == ASK || step == GET,
        .v2 = true,
        .poll = step == WAIT,
        .timeout_ms = time_left(x, step == WAIT ? WAIT_MS : CALL_MS),
        .done = on_call_done,
    };
    mu_etcd_submit(x->etcd, &x->call);
}

static void on_timer(struct mu_timer *timer)
{
    struct extra *x = MU_CONTAINER_OF(timer, struct extra, timer);

    go(x, x->config.version == 0 ? ASK : GET);
}

int mu_rdzv_etcd_extra(struct mu_env *env, const struct mu_rdzv_etcd_extra_config *config,
                       struct mu_errmsg *reterr_msg)
{
    struct extra *x = mu_calloc(1, sizeof(*x));
    const char *run_id = config->params->run_id;
    int err;

    if (x == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    x->env = env;
    x->config = *config;
    x->config.params = NULL;
    (void)snprintf(x->run_id, sizeof(x->run_id), "%s", run_id == NULL ? "" : run_id);
    x->deadline = config->timeout_ms == 0
                      ? MU_MONO_NEVER
                      : mu_mono_add_ms(mu_env_now(env).mono, config->timeout_ms);
    mu_etcd2_reply_init(&x->reply);
    mu_buf_init(&x->path, BODY_MAX);
    mu_buf_init(&x->body, BODY_MAX);
    mu_buf_init(&x->value, BODY_MAX);
    err = mu_rdzv_etcd_configure(&x->backend, config->params, reterr_msg);
    err = err != 0 ? err : mu_rdzv_etcd_client(&x->backend, env, &x->etcd, reterr_msg);
    if (err != 0) {
        mu_free(x);
        return err;
    }
    mu_timer_init(&x->timer, on_timer);
    mu_env_timer_arm(env, &x->timer, mu_env_now(env).mono);
    return 0;
}

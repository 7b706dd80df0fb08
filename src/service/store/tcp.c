/*
 * A client of a store across the network. It finds out which protocol the server speaks without
 * doing harm: the native greeting comes first, because PyTorch 1.13 just drops it (a greeting of
 * PyTorch 2.x would make a 1.13 server wait for the rest of a request, and block all its clients),
 * then a one-byte request of 1.13, then the handshake of 2.x. A server that answers none of them
 * may be a store that is stopped, or a gateway whose own server is silent: the client asks again
 * from the start until connect_ms have passed. Only a server that answers something else, or hangs
 * up time and again, is not a store.
 */
#include "service/store/engine.h"

#include <stdio.h>
#include <string.h>

#include "core/addr.h"
#include "core/alloc.h"
#include "service/base/log.h"

#define SLOW_MS 2000 /* until the log says that there is no connection yet */
#define NATIVE_TRIES                                                                               \
    2 /* a server that dies in the middle of a greeting must not be taken for PyTorch's */

struct tcp_store {
    struct mu_store base;
    struct mu_store_tcp_config config;
    struct mu_store *engine;  /* the one that is being tried, or that fits */
    struct mu_store *leaving; /* one that did not fit, until it is closed */
    struct mu_list queued;    /* ops that wait for an engine that fits */
    struct mu_timer timer;    /* for what must end on a later turn */
    uint32_t native_tries;
    enum mu_store_tcp_protocol speaks; /* the protocol being tried; the config says which may be */
    mu_mono_t give_up_at;
    enum mu_store_tcp_protocol found;
    bool ready;
    bool closing;
    struct mu_timer slow; /* for that line of the log */
    int trouble;          /* of the last try to connect; 0: none, or the server is mute */
    bool mute;            /* the server has accepted a connection and not answered our greetings */
    int status;           /* why nothing fits */
    struct mu_errmsg why;
    int native_status; /* the native engine's error, when PyTorch's is tried; 0: none */
    struct mu_errmsg native_why;
};

struct mu_store_tcp_config mu_store_tcp_config_defaults(void)
{
    return (struct mu_store_tcp_config){
        .connect_ms = 300000,
        .reconnect_ms = 10000,
        .probe_ms = 1000,
        .waits_max = 64,
        .value_bytes_max = (size_t)1 << 30,
        .name = "muster",
    };
}

/* --- finding the engine that fits ------------------------------------------------------------- */

static int try_engine(struct tcp_store *s, bool native);

static void end_queued(struct tcp_store *s, int status, const char *text)
{
    struct mu_list *it;

    while ((it = mu_list_pop(&s->queued)) != NULL) {
        struct mu_store_op *op = MU_CONTAINER_OF(it, struct mu_store_op, link);

        mu_env_timer_arm(s->base.env, &op->timer, MU_MONO_NEVER);
        mu_store_finish(op, status, text);
    }
}

static void give_up(struct tcp_store *s, int status, const char *text)
{
    s->status = mu_err(&s->why, status, "%s", text);
    mu_env_timer_arm(s->base.env, &s->timer, mu_env_now(s->base.env).mono);
}

static const char *addr_of(const struct tcp_store *s, char addr[MU_ADDR_HOST_MAX + 16])
{
    return mu_addr_format(&s->config.addr, addr, MU_ADDR_HOST_MAX + 16);
}

static void on_trouble(void *context, int status)
{
    struct tcp_store *s = context;

    s->trouble = status;
}

/* Nobody else says why this takes so long. */
static void on_slow(struct mu_timer *timer)
{
    struct tcp_store *s = MU_CONTAINER_OF(timer, struct tcp_store, slow);
    char addr[MU_ADDR_HOST_MAX + 16];

    if (!s->ready && !s->closing && s->status == 0) {
        mu_log(MUSTER_LOG_WARN, "STORE-UNREACHED", "server=%s why=\"%s\"; still trying",
               addr_of(s, addr),
               s->mute           ? "it accepts connections but does not answer"
               : s->trouble != 0 ? muster_strerror(s->trouble)
                                 : "it does not answer");
    }
}

static void on_ready(void *context, enum mu_store_tcp_protocol found)
{
    struct tcp_store *s = context;
    struct mu_list *it;

    mu_env_timer_arm(s->base.env, &s->slow, MU_MONO_NEVER);
    s->found = found;
    s->ready = true;
    s->mute = false;
    while ((it = mu_list_pop(&s->queued)) != NULL) {
        struct mu_store_op *op = MU_CONTAINER_OF(it, struct mu_store_op, link);
        uint64_t left = mu_mono_until_ms(op->deadline, mu_env_now(s->base.env).mono);

        mu_env_timer_arm(s->base.env, &op->timer, MU_MONO_NEVER);
        if (op->timeout_ms != 0) {
            op->timeout_ms = left == 0 ? 1 : (uint32_t)left;
        }
        mu_store_submit(s->engine, op);
    }
}

static void on_engine_closed(void *context)
{
    struct tcp_store *s = context;

    s->leaving = NULL;
    if (s->closing) {
        mu_env_timer_arm(s->base.env, &s->timer, mu_env_now(s->base.env).mono);
    } else if (s->status == 0) {
        bool may_be_native = s->speaks == MU_STORE_TCP_ANY || s->speaks == MU_STORE_TCP_MUSTER;
        int err = try_engine(s, may_be_native && s->native_tries < NATIVE_TRIES);

        if (err != 0) {
            give_up(s, err, muster_strerror(err));
        }
    }
}

static void drop_engine(struct tcp_store *s)
{
    s->leaving = s->engine;
    s->engine = NULL;
    mu_store_close(s->leaving, on_engine_closed, s);
}

static void give_up_mute(struct tcp_store *s)
{
    char addr[MU_ADDR_HOST_MAX + 16];
    char text[MU_ERRMSG_CAP];

    (void)snprintf(text, sizeof(text),
                   "%.150s accepts connections but does not answer (tried for %u ms)",
                   addr_of(s, addr), s->config.connect_ms);
    give_up(s, MUSTER_ECONN, text);
}

/* No greeting was answered: begins again, while there is time. */
static void start_over(struct tcp_store *s)
{
    s->mute = true;
    s->speaks = s->config.protocol;
    s->native_tries = 0;
    s->native_status = 0;
    if (mu_mono_reached(s->give_up_at, mu_env_now(s->base.env).mono)) {
        give_up_mute(s);
    }
}

static void on_native_mismatch(void *context, bool silent)
{
    struct tcp_store *s = context;

    s->mute = silent;
    /* Only PyTorch 2.x ignores what it does not know and keeps the connection. */
    if (silent && s->speaks == MU_STORE_TCP_ANY) {
        s->speaks = MU_STORE_TCP_TORCH2;
    } else if (silent) {
        start_over(s);
    } else if (s->speaks == MU_STORE_TCP_MUSTER) {
        char addr[MU_ADDR_HOST_MAX + 16];
        char text[MU_ERRMSG_CAP];

        (void)snprintf(text, sizeof(text), "%.200s is not a muster store; check the port",
                       addr_of(s, addr));
        give_up(s, MUSTER_ENOTSTORE, text);
    }
    drop_engine(s);
}

static void on_torch_mismatch(void *context, bool silent)
{
    struct tcp_store *s = context;
    char addr[MU_ADDR_HOST_MAX + 16];
    char text[MU_ERRMSG_CAP];

    if (silent) {
        start_over(s);
    } else if (s->native_status == MUSTER_EREFUSED) {
        give_up(s, s->native_status, s->native_why.text); /* nor does it let us in this way */
    } else {
        /* A locked server hangs up on PyTorch's protocol without an answer. If muster's own was
         * tried first, the server has said that it is locked, and we do not come here. */
        (void)snprintf(
            text, sizeof(text),
            s->config.protocol == MU_STORE_TCP_ANY
                ? "%.120s accepts connections but is not a store (neither muster's nor PyTorch's); "
                  "check the port"
                : "%.80s hangs up on PyTorch's protocol: check the port; if the server is locked, "
                  "leave protocol= out and give the credential (--token-file FILE)",
            addr_of(s, addr));
        give_up(s, MUSTER_ENOTSTORE, text);
    }
    drop_engine(s);
}

static void on_failed(void *context, int status, const char *text)
{
    struct tcp_store *s = context;

    if (status == MUSTER_ENOTLS && s->speaks == MU_STORE_TCP_ANY) {
        /* PyTorch's servers know no TLS either; this may be one, if we may speak to one there. */
        s->native_status = mu_err(&s->native_why, status, "%s", text);
        s->native_tries = NATIVE_TRIES;
    } else if (status == MUSTER_EREFUSED && s->speaks == MU_STORE_TCP_ANY) {
        /* A server of ours wants a credential that we do not have. Its --allow may name us: then it
         * takes PyTorch's protocol from us. */
        s->native_status = mu_err(&s->native_why, status, "%s", text);
        s->speaks = MU_STORE_TCP_TORCH2;
    } else if (s->native_status == MUSTER_EREFUSED ||
               (s->native_status == MUSTER_ENOTLS && status == MUSTER_ELOCKED)) {
        give_up(s, s->native_status, s->native_why.text);
    } else if (status == MUSTER_ELOCKED && s->mute && s->speaks == MU_STORE_TCP_TORCH2) {
        start_over(s); /* PyTorch's protocol is not allowed there: a server of ours may be busy */
    } else if (status == MUSTER_ECONN && s->mute) {
        give_up_mute(s);
    } else {
        give_up(s, status, text);
    }
    drop_engine(s);
}

static int try_engine(struct tcp_store *s, bool native)
{
    struct mu_store_engine_events events = {
        .ready = on_ready,
        .mismatch = native ? on_native_mismatch : on_torch_mismatch,
        .failed = on_failed,
        .context = s,
    };
    struct mu_store_tcp_config config = s->config;
    int err;

    config.protocol = s->speaks;
    config.once = s->native_status == MUSTER_EREFUSED;
    if (config.connect_ms != 0) {
        uint64_t left = mu_mono_until_ms(s->give_up_at, mu_env_now(s->base.env).mono);

        config.connect_ms = left == 0 ? 1 : (uint32_t)left;
    }
    if (native) {
        s->native_tries++;
        err = mu_store_native_new(s->base.env, &config, &events, &s->engine);
    } else {
        err = mu_store_torch_new(s->base.env, &config, &events, &s->engine);
    }
    if (err != 0) {
        s->engine = NULL;
    }
    return err;
}

/* --- the store -------------------------------------------------------------------------------- */

static void finish_close(struct tcp_store *s)
{
    mu_env_timer_arm(s->base.env, &s->timer, MU_MONO_NEVER);
    mu_env_timer_arm(s->base.env, &s->slow, MU_MONO_NEVER);
    if (s->base.closed != NULL) {
        s->base.closed(s->base.context);
    }
    mu_free(s);
}

static void on_timer(struct mu_timer *timer)
{
    struct tcp_store *s = MU_CONTAINER_OF(timer, struct tcp_store, timer);

    if (s->closing) {
        end_queued(s, MUSTER_ECLOSED, NULL);
        if (s->engine == NULL && s->leaving == NULL) {
            finish_close(s);
        }
    } else if (s->status != 0) {
        end_queued(s, s->status, s->why.text);
    }
}

static void on_queued_timeout(struct mu_timer *timer)
{
    struct mu_store_op *op = MU_CONTAINER_OF(timer, struct mu_store_op, timer);
    struct tcp_store *s = MU_CONTAINER_OF(op->store, struct tcp_store, base);
    char addr[MU_ADDR_HOST_MAX + 16];
    char text[MU_ERRMSG_CAP];

    mu_list_remove(&op->link);
    (void)snprintf(text, sizeof(text),
                   s->mute ? "timed out after %u ms: %.150s accepts connections but does not answer"
                           : "timed out after %u ms: no connection to %.150s yet",
                   op->timeout_ms, addr_of(s, addr));
    mu_store_finish(op, MUSTER_ETIMEDOUT, text);
}

static void tcp_submit(struct mu_store *store, struct mu_store_op *op)
{
    struct tcp_store *s = MU_CONTAINER_OF(store, struct tcp_store, base);

    if (s->ready) {
        mu_store_submit(s->engine, op);
        return;
    }
    mu_store_begin(store, op, NULL, on_queued_timeout);
    mu_list_push(&s->queued, &op->link);
    if (s->status != 0) {
        mu_env_timer_arm(store->env, &s->timer, mu_env_now(store->env).mono);
    }
}

static void tcp_cancel(struct mu_store *store, struct mu_store_op *op)
{
    mu_list_remove(&op->link);
    mu_env_timer_arm(store->env, &op->timer, MU_MONO_NEVER);
    mu_store_fail_later(store, op, MUSTER_ECANCELED);
}

static void tcp_close(struct mu_store *store)
{
    struct tcp_store *s = MU_CONTAINER_OF(store, struct tcp_store, base);

    s->closing = true;
    if (s->engine != NULL) {
        drop_engine(s);
    }
    mu_env_timer_arm(store->env, &s->timer, mu_env_now(store->env).mono);
}

static const struct mu_store_kind tcp_kind = {
    .submit = tcp_submit,
    .cancel = tcp_cancel,
    .close = tcp_close,
};

enum mu_store_tcp_protocol mu_store_tcp_found(const struct mu_store *store)
{
    return store->kind == &tcp_kind ? MU_CONTAINER_OF(store, const struct tcp_store, base)->found
                                    : MU_STORE_TCP_ANY;
}

int mu_store_tcp_new(struct mu_env *env, const struct mu_store_tcp_config *config,
                     struct mu_store **ret_store)
{
    struct tcp_store *s = mu_calloc(1, sizeof(*s));
    int err;

    if (s == NULL) {
        return MUSTER_ENOMEM;
    }
    s->base.kind = &tcp_kind;
    s->base.env = env;
    s->config = *config;
    s->speaks = config->protocol;
    s->give_up_at = config->connect_ms == 0
                        ? MU_MONO_NEVER
                        : mu_mono_add_ms(mu_env_now(env).mono, config->connect_ms);
    mu_list_init(&s->queued);
    mu_timer_init(&s->timer, on_timer);
    mu_timer_init(&s->slow, on_slow);
    if (config->trouble == NULL) {
        s->config.trouble = on_trouble;
        s->config.context = s;
        mu_env_timer_arm(env, &s->slow, mu_mono_add_ms(mu_env_now(env).mono, SLOW_MS));
    }
    err = try_engine(s, config->protocol == MU_STORE_TCP_ANY ||
                            config->protocol == MU_STORE_TCP_MUSTER);
    if (err != 0) {
        mu_env_timer_arm(env, &s->slow, MU_MONO_NEVER);
        mu_free(s);
        return err;
    }
    *ret_store = &s->base;
    return 0;
}

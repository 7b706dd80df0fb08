#include "service/server/gateway_etcd.h"

#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/url.h"
#include "service/etcd/url.h"
#include "service/base/log.h"

/* A write in doubt can be settled as long as the session and its slots last, so the session
 * outlasts any outage that jobs survive. Slots of a server that died stay that long, too. */
#define SESSION_S   600
#define SILENCE_MS  2000 /* without an answer, until the log says so */
#define TRY_MS      3000 /* one try; every transaction can be repeated */
#define AGAIN_MS    200  /* until a call, a watch or a session that ended begins anew */
#define DROP_MS     2000
#define LAG_MS      20 /* how long reads wait for a watch that does not advance */
#define FLIGHTS     (2 * (size_t)MU_BACKING_TXNS)
#define PATIENCE_MS ((uint32_t)INT32_MAX)

/* A transaction on its way. */
struct flight {
    struct mu_gateway_etcd *backing;
    struct mu_backing_txn *txn;
    struct mu_etcd_call call;
    struct mu_timer again;
    mu_mono_t since;
    bool doubtful;
    bool busy;
};

struct mu_gateway_etcd {
    struct mu_env *env;
    struct mu_etcd *etcd;
    struct mu_gateway_events events;
    struct mu_backing machine;
    struct flight flights[FLIGHTS];
    struct mu_timer pump;
    struct mu_timer silence;
    bool silent;
    struct mu_etcd_watch watch;
    struct mu_buf watch_from;
    struct mu_buf watch_to;
    struct mu_timer watch_again;
    struct mu_timer lag;
    int64_t lag_reached; /* the revision of the watch when that was set */
    bool watching;
    bool cached;        /* reads come from the mirror */
    bool current_told;  /* the watch has reported all: the mirror has all keys */
    bool mirror_broken; /* the watch must begin anew */
    bool watch_missed;  /* the log has said that there is none */
    struct mu_etcd_lease lease;
    struct mu_timer lease_again;
    enum {
        NO_SESSION = 0,
        STARTING,
        UP,
        STOPPING,
    } session;
    bool session_missed; /* the log has said that there is none */
    bool closing;
    bool drop; /* deletes all keys before leaving */
    struct mu_etcd_call drop_call;
    struct mu_buf drop_body;
    bool leaving;
    void (*closed)(void *context);
    void *context;
};

static void start_session(struct mu_gateway_etcd *b);
static void start_watch(struct mu_gateway_etcd *b);
static void go_on_closing(struct mu_gateway_etcd *b);

static void arm_in(struct mu_gateway_etcd *b, struct mu_timer *timer, uint32_t ms)
{
    mu_env_timer_arm(b->env, timer, mu_mono_add_ms(mu_env_now(b->env).mono, ms));
}

/* --- the pump --------------------------------------------------------------------------------- */

/* Everything that arrives on one turn of the loop is gathered before it is sent. */
static void pump_soon(struct mu_gateway_etcd *b)
{
    if (!mu_heap_contains(&b->pump.node)) {
        mu_env_timer_arm(b->env, &b->pump, mu_env_now(b->env).mono);
    }
}

static void give_back(struct mu_gateway_etcd *b)
{
    struct mu_backing_op *op;

    while ((op = mu_backing_next_done(&b->machine)) != NULL) {
        struct mu_gateway_op *o = MU_CONTAINER_OF(op, struct mu_gateway_op, base);

        o->done(o);
    }
}

/* Reads do not wait long for the watch: it may hang on a member that is cut off. */
static void mind_lag(struct mu_gateway_etcd *b)
{
    if (mu_backing_holds(&b->machine) && !mu_heap_contains(&b->lag.node)) {
        b->lag_reached = b->machine.reached;
        arm_in(b, &b->lag, LAG_MS);
    }
}

static void finish_turn(struct mu_gateway_etcd *b)
{
    give_back(b);
    mind_lag(b);
    if (b->machine.session == 0 && b->session == UP) {
        b->session = STOPPING;
        mu_etcd_lease_stop(&b->lease, false);
    }
    if (!mu_list_empty(&b->machine.clients) || b->machine.fences != 0) {
        pump_soon(b);
    }
    if (b->closing) {
        go_on_closing(b);
    } else {
        b->events.turn_ended(b->events.context);
    }
}

static void on_lag(struct mu_timer *timer)
{
    struct mu_gateway_etcd *b = MU_CONTAINER_OF(timer, struct mu_gateway_etcd, lag);

    if (b->machine.reached == b->lag_reached) {
        mu_backing_unhold(&b->machine);
    }
    finish_turn(b);
}

/* --- silence ---------------------------------------------------------------------------------- */

static void on_silence(struct mu_timer *timer)
{
    struct mu_gateway_etcd *b = MU_CONTAINER_OF(timer, struct mu_gateway_etcd, silence);
    mu_mono_t oldest = MU_MONO_NEVER;
    const char *why = "it does not answer";

    for (size_t i = 0; i < FLIGHTS; i++) {
        if (b->flights[i].busy && mu_mono_before(b->flights[i].since, oldest)) {
            oldest = b->flights[i].since;
            why = b->flights[i].call.errmsg.text[0] != '\0' ? b->flights[i].call.errmsg.text : why;
        }
    }
    if (oldest.ns == MU_MONO_NEVER.ns) {
        return;
    }
    oldest = mu_mono_add_ms(oldest, SILENCE_MS);
    if (!mu_mono_reached(oldest, mu_env_now(b->env).mono)) {
        mu_env_timer_arm(b->env, &b->silence, oldest);
    } else if (!b->silent) {
        b->silent = true;
        mu_log(MUSTER_LOG_WARN, "BACKING-UNREACHABLE", "why=\"%s\" clients=waiting", why);
    }
}

static void heard(struct mu_gateway_etcd *b)
{
    if (b->silent) {
        b->silent = false;
        mu_log(MUSTER_LOG_WARN, "BACKING-REACHABLE", "clients=going-on");
    }
}

/* --- transactions ----------------------------------------------------------------------------- */

static void on_flight_done(struct mu_etcd_call *call);

static void send(struct flight *f)
{
    f->call = (struct mu_etcd_call){
        .path = mu_backing_txn_path(f->txn),
        .body = mu_backing_txn_body(f->txn),
        .repeat = true,
        .done = on_flight_done,
    };
    mu_etcd_submit(f->backing->etcd, &f->call);
}

static void on_again(struct mu_timer *timer)
{
    struct flight *f = MU_CONTAINER_OF(timer, struct flight, again);

    send(f);
}

/* Whether the same transaction may succeed at another time. */
static bool is_passing(int status)
{
    return status == MUSTER_ECONN || status == MUSTER_ENAME || status == MUSTER_ETIMEDOUT ||
           status == MUSTER_EPROTO || status == MUSTER_ENOMEM;
}

static void on_flight_done(struct mu_etcd_call *call)
{
    struct flight *f = MU_CONTAINER_OF(call, struct flight, call);
    struct mu_gateway_etcd *b = f->backing;
    struct mu_backing_txn *txn = f->txn;

    f->doubtful = f->doubtful || call->unknown || call->tries > 0;
    if (is_passing(call->status) && !b->closing) {
        arm_in(b, &f->again, AGAIN_MS);
        return;
    }
    if (call->status == 0) {
        heard(b);
    }
    f->busy = false;
    mu_backing_txn_done(&b->machine, txn, b->closing ? MUSTER_ECLOSED : call->status, call->reply,
                        f->doubtful, call->errmsg.text);
    finish_turn(b);
}

static void launch(struct mu_gateway_etcd *b, struct mu_backing_txn *txn)
{
    struct flight *f = NULL;

    for (size_t i = 0; i < FLIGHTS && f == NULL; i++) {
        f = b->flights[i].busy ? NULL : &b->flights[i];
    }
    MU_ASSERT(f != NULL);
    f->busy = true;
    f->txn = txn;
    f->doubtful = false;
    f->since = mu_env_now(b->env).mono;
    if (!b->silent && !mu_heap_contains(&b->silence.node)) {
        arm_in(b, &b->silence, SILENCE_MS);
    }
    send(f);
}

static void on_pump(struct mu_timer *timer)
{
    struct mu_gateway_etcd *b = MU_CONTAINER_OF(timer, struct mu_gateway_etcd, pump);
    struct mu_backing_txn *txn;

    if (b->closing) {
        return;
    }
    while ((txn = mu_backing_next_txn(&b->machine)) != NULL) {
        launch(b, txn);
    }
    give_back(b);
    mind_lag(b);
    b->events.turn_ended(b->events.context);
}

/* --- the session ------------------------------------------------------------------------------ */

static void on_granted(struct mu_etcd_lease *lease)
{
    struct mu_gateway_etcd *b = MU_CONTAINER_OF(lease, struct mu_gateway_etcd, lease);

    heard(b);
    b->session = UP;
    b->session_missed = false;
    mu_backing_set_session(&b->machine, lease->id);
    pump_soon(b);
}

static void end_session(struct mu_gateway_etcd *b)
{
    b->session = NO_SESSION;
    mu_backing_set_session(&b->machine, 0);
    if (b->closing) {
        go_on_closing(b);
    } else {
        arm_in(b, &b->lease_again, AGAIN_MS);
    }
}

static void on_lost(struct mu_etcd_lease *lease, int status)
{
    struct mu_gateway_etcd *b = MU_CONTAINER_OF(lease, struct mu_gateway_etcd, lease);

    /* It is tried again for as long as it takes; one line is enough for that. */
    if (status != MUSTER_ECLOSED && !b->session_missed) {
        b->session_missed = true;
        mu_log(MUSTER_LOG_WARN, "BACKING-SESSION-LOST", "why=\"%s\"", lease->errmsg.text);
    }
    end_session(b);
}

static void on_stopped(struct mu_etcd_lease *lease)
{
    end_session(MU_CONTAINER_OF(lease, struct mu_gateway_etcd, lease));
}

static void start_session(struct mu_gateway_etcd *b)
{
    b->session = STARTING;
    b->lease = (struct mu_etcd_lease){
        .ttl_s = SESSION_S, .granted = on_granted, .lost = on_lost, .stopped = on_stopped};
    mu_etcd_lease_start(b->etcd, &b->lease);
}

static void on_lease_again(struct mu_timer *timer)
{
    start_session(MU_CONTAINER_OF(timer, struct mu_gateway_etcd, lease_again));
}

/* --- the watch -------------------------------------------------------------------------------- */

static void on_change(struct mu_etcd_watch *watch, const struct mu_etcd_change *c)
{
    struct mu_gateway_etcd *b = MU_CONTAINER_OF(watch, struct mu_gateway_etcd, watch);
    struct mu_backing_op *op;
    struct mu_change change;

    if (b->mirror_broken) {
        return;
    }
    b->current_told = true; /* all present keys come on one turn */
    if (mu_backing_changed(&b->machine, &c->kv, c->deleted, c->created, c->initial, c->revision) !=
        0) {
        b->mirror_broken = true;
        mu_etcd_watch_cancel(watch);
        return;
    }
    while (mu_backing_next_watcher(&b->machine, &op, &change)) {
        struct mu_gateway_op *o = MU_CONTAINER_OF(op, struct mu_gateway_op, base);

        o->change(o, &change, false);
    }
}

static void on_told(struct mu_etcd_watch *watch)
{
    struct mu_gateway_etcd *b = MU_CONTAINER_OF(watch, struct mu_gateway_etcd, watch);

    if (!b->mirror_broken) {
        mu_backing_told(&b->machine, watch->next - 1);
        finish_turn(b);
    }
}

/* Ends the clients' watches: they have to begin anew, too. */
static void end_watchers(struct mu_gateway_etcd *b)
{
    struct mu_list *it = b->machine.watchers.next;

    while (it != &b->machine.watchers) {
        struct mu_gateway_op *o = MU_CONTAINER_OF(it, struct mu_gateway_op, base.link);

        it = it->next;
        o->change(o, NULL, true);
    }
}

static void on_watch_ended(struct mu_etcd_watch *watch, int status)
{
    struct mu_gateway_etcd *b = MU_CONTAINER_OF(watch, struct mu_gateway_etcd, watch);

    b->watching = false;
    mu_backing_set_watching(&b->machine, false);
    if (b->closing) {
        go_on_closing(b);
        return;
    }
    if (!b->watch_missed) {
        b->watch_missed = true;
        mu_log(MUSTER_LOG_WARN, "BACKING-WATCH-ENDED", "why=\"%s\"",
               status == MUSTER_ECANCELED ? "out of memory" : watch->errmsg.text);
    }
    arm_in(b, &b->watch_again, AGAIN_MS);
    end_watchers(b);
    mu_backing_forget(&b->machine);
    finish_turn(b);
}

static void on_watch_ready(struct mu_etcd_watch *watch)
{
    struct mu_gateway_etcd *b = MU_CONTAINER_OF(watch, struct mu_gateway_etcd, watch);

    if (b->mirror_broken) {
        return;
    }
    b->current_told = true;
    b->watch_missed = false;
    mu_backing_set_watching(&b->machine, true);
    MU_LIST_FOREACH_SAFE (it, tmp, &b->machine.watchers) {
        struct mu_gateway_op *o = MU_CONTAINER_OF(it, struct mu_gateway_op, base.link);

        if (o->stands != NULL) {
            o->stands(o);
        }
    }
    finish_turn(b);
}

static void start_watch(struct mu_gateway_etcd *b)
{
    b->watching = true;
    b->current_told = b->mirror_broken = false;
    mu_backing_begin_watch(&b->machine);
    b->watch = (struct mu_etcd_watch){
        .key = mu_buf_span(&b->watch_from),
        .end = mu_buf_span(&b->watch_to),
        .current = true,
        .change = on_change,
        .told = on_told,
        .ready = on_watch_ready,
        .ended = on_watch_ended,
    };
    mu_etcd_watch_start(b->etcd, &b->watch);
}

static void on_watch_again(struct mu_timer *timer)
{
    start_watch(MU_CONTAINER_OF(timer, struct mu_gateway_etcd, watch_again));
}

/* --- operations ------------------------------------------------------------------------------- */

void mu_gateway_etcd_submit(struct mu_gateway_etcd *b, struct mu_backing_client *client,
                            struct mu_gateway_op *op)
{
    mu_backing_submit(&b->machine, client, &op->base);
    if (b->machine.wants_watch && !b->watching && !mu_heap_contains(&b->watch_again.node)) {
        start_watch(b);
    }
    pump_soon(b);
}

bool mu_gateway_etcd_cancel(struct mu_gateway_etcd *b, struct mu_gateway_op *op)
{
    bool back = mu_backing_cancel(&b->machine, &op->base);

    if (!b->closing) {
        pump_soon(b); /* others may have waited for its watch */
    }
    return back;
}

bool mu_gateway_etcd_watches(const struct mu_gateway_etcd *b)
{
    return b->machine.watching;
}

void mu_gateway_etcd_tell_current(struct mu_gateway_etcd *b, struct mu_gateway_op *op)
{
    const struct mu_store_request *q = &op->base.request;
    const struct mu_map_node *cursor = NULL;
    struct mu_change change;

    if (!b->current_told) {
        return; /* the watch is about to report it */
    }
    while (op->base.state == MU_BACKING_WATCHING &&
           mu_backing_next_key(&b->machine, &cursor, &change)) {
        if ((q->flags & MU_STORE_PREFIX) != 0 ? mu_span_starts_with(change.key, q->keys[0])
                                              : mu_span_eq(change.key, q->keys[0])) {
            op->change(op, &change, false);
        }
    }
}

bool mu_gateway_etcd_idle(const struct mu_gateway_etcd *b)
{
    for (size_t i = 0; i < FLIGHTS; i++) {
        if (b->flights[i].busy) {
            return false;
        }
    }
    return mu_list_empty(&b->machine.clients) && mu_list_empty(&b->machine.done) &&
           !mu_backing_holds(&b->machine);
}

const struct mu_backing *mu_gateway_etcd_machine(const struct mu_gateway_etcd *b)
{
    return &b->machine;
}

/* --- life ------------------------------------------------------------------------------------- */

static void free_backing(struct mu_gateway_etcd *b)
{
    mu_backing_fini(&b->machine);
    mu_buf_fini(&b->watch_from);
    mu_buf_fini(&b->watch_to);
    mu_buf_fini(&b->drop_body);
    mu_free(b);
}

static int parse_url(struct mu_url *url, const char *text, char *prefix, size_t cap,
                     struct mu_errmsg *reterr_msg)
{
    static const char *const known[] = {"tls",           "cacert", "cert",  "key", "user",
                                        "password_file", "api",    "reads", NULL};
    const char *reads;
    const char *api;
    int err = mu_url_parse(url, text, reterr_msg);

    if (err == 0 && strcmp(url->scheme, "etcd") != 0) {
        err =
            mu_err(reterr_msg, MUSTER_EURL,
                   "\"%.32s\" cannot be the backing of a store; write etcd://HOST,HOST,HOST/PREFIX",
                   url->scheme);
    }
    for (size_t i = 0; err == 0 && i < url->param_count; i++) {
        const char *const *k = known;

        while (*k != NULL && strcmp(*k, url->params[i].name) != 0) {
            k++;
        }
        if (*k == NULL) {
            err = mu_err(reterr_msg, MUSTER_EURL, "an etcd: URL has no parameter \"%.64s\"",
                         url->params[i].name);
        }
    }
    api = err == 0 ? mu_url_param(url, "api") : NULL;
    if (api != NULL && strcmp(api, "v3") != 0) {
        err = mu_err(
            reterr_msg, MUSTER_EURL,
            "a backing in etcd needs the v3 API, since v2 has no transactions; leave out api=v2");
    }
    reads = err == 0 ? mu_url_param(url, "reads") : NULL;
    if (reads != NULL && strcmp(reads, "cached") != 0 && strcmp(reads, "linearizable") != 0) {
        err = mu_err(reterr_msg, MUSTER_EURL,
                     "the URL's reads must be \"linearizable\" or \"cached\"");
    }
    return err != 0 ? err : mu_etcd_url_prefix(url, "/muster", prefix, cap, reterr_msg);
}

int mu_gateway_etcd_check(const char *text, struct mu_errmsg *reterr_msg)
{
    char prefix[MU_BACKING_PREFIX];
    struct mu_url url;

    return parse_url(&url, text, prefix, sizeof(prefix), reterr_msg);
}

static int open_url(struct mu_gateway_etcd *b, const char *text, char *prefix, size_t cap,
                    struct mu_errmsg *reterr_msg)
{
    struct mu_etcd_config config = mu_etcd_config_defaults();
    struct mu_url url;
    int err = parse_url(&url, text, prefix, cap, reterr_msg);

    if (err == 0) {
        const char *reads = mu_url_param(&url, "reads");

        b->cached = reads != NULL && strcmp(reads, "cached") == 0;
    }
    config.first_ms = config.patience_ms = PATIENCE_MS;
    config.try_ms = TRY_MS;
    return err != 0 ? err : mu_etcd_new_url(b->env, &url, &config, &b->etcd, reterr_msg);
}

static int start_machine(struct mu_gateway_etcd *b, const char *prefix,
                         struct mu_errmsg *reterr_msg)
{
    struct mu_backing_config config = mu_backing_config_defaults();
    int err;

    config.prefix = mu_span_str(prefix);
    config.cached = b->cached;
    mu_env_entropy(b->env, &config.seed, sizeof(config.seed));
    mu_env_entropy(b->env, &config.element_seed, sizeof(config.element_seed));
    err = mu_backing_init(&b->machine, &config);
    if (err == 0) {
        err = mu_backing_watch_range(&b->machine, &b->watch_from, &b->watch_to);
        if (err != 0) {
            mu_backing_fini(&b->machine);
        }
    }
    return err == 0 ? 0 : mu_err(reterr_msg, err, "%s", muster_strerror(err));
}

int mu_gateway_etcd_new(struct mu_env *env, const char *url, const struct mu_gateway_events *events,
                        struct mu_gateway_etcd **ret_gateway, struct mu_errmsg *reterr_msg)
{
    struct mu_gateway_etcd *b = mu_calloc(1, sizeof(*b));
    char prefix[MU_BACKING_PREFIX];
    int err;

    if (b == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    b->env = env;
    b->events = *events;
    mu_buf_init(&b->watch_from, 2 * MU_BACKING_PREFIX);
    mu_buf_init(&b->watch_to, 2 * MU_BACKING_PREFIX);
    mu_buf_init(&b->drop_body, 8 * MU_BACKING_PREFIX);
    mu_timer_init(&b->pump, on_pump);
    mu_timer_init(&b->silence, on_silence);
    mu_timer_init(&b->watch_again, on_watch_again);
    mu_timer_init(&b->lag, on_lag);
    mu_timer_init(&b->lease_again, on_lease_again);
    for (size_t i = 0; i < FLIGHTS; i++) {
        b->flights[i].backing = b;
        mu_timer_init(&b->flights[i].again, on_again);
    }
    err = open_url(b, url, prefix, sizeof(prefix), reterr_msg);
    if (err == 0) {
        err = start_machine(b, prefix, reterr_msg);
        if (err != 0) {
            mu_etcd_close(b->etcd, NULL, NULL);
        }
    }
    if (err != 0) {
        mu_buf_fini(&b->watch_from);
        mu_buf_fini(&b->watch_to);
        mu_free(b);
        return err;
    }
    start_session(b);
    *ret_gateway = b;
    return 0;
}

static void on_etcd_closed(void *context)
{
    struct mu_gateway_etcd *b = context;
    void (*closed)(void *) = b->closed;
    void *closed_context = b->context;

    free_backing(b);
    closed(closed_context);
}

static void on_dropped(struct mu_etcd_call *call)
{
    struct mu_gateway_etcd *b = MU_CONTAINER_OF(call, struct mu_gateway_etcd, drop_call);

    if (call->status != 0) {
        mu_log(MUSTER_LOG_WARN, "BACKING-KEYS-LEFT", "prefix=\"%.*s\" why=\"%s\"",
               (int)b->machine.prefix_len, b->machine.prefix, call->errmsg.text);
    }
    go_on_closing(b);
}

static void drop_keys(struct mu_gateway_etcd *b)
{
    struct mu_span prefix = b->machine.config.prefix;
    uint8_t from[MU_BACKING_PREFIX + 1];
    uint8_t to[MU_BACKING_PREFIX + 1];
    struct mu_etcd_op op = {.kind = MU_ETCD_DELETE};

    b->drop = false;
    memcpy(from, prefix.data, prefix.len);
    memcpy(to, prefix.data, prefix.len);
    from[prefix.len] = '/';
    to[prefix.len] = '/' + 1;
    op.key = mu_span(from, prefix.len + 1);
    op.end = mu_span(to, prefix.len + 1);
    if (mu_etcd_encode_op(&b->drop_body, &op) != 0) {
        go_on_closing(b);
        return;
    }
    b->drop_call = (struct mu_etcd_call){
        .path = mu_etcd_op_path(MU_ETCD_DELETE),
        .body = mu_buf_span(&b->drop_body),
        .repeat = true,
        .timeout_ms = DROP_MS,
        .done = on_dropped,
    };
    mu_etcd_submit(b->etcd, &b->drop_call);
}

/* The session ends first, so that nothing of ours stays in etcd but the keys. */
static void go_on_closing(struct mu_gateway_etcd *b)
{
    if (b->leaving) {
        return;
    }
    for (size_t i = 0; i < FLIGHTS; i++) {
        if (b->flights[i].busy) {
            return; /* its end comes next */
        }
    }
    if (b->session == UP || b->session == STARTING) {
        b->session = STOPPING;
        mu_etcd_lease_stop(&b->lease, true);
    } else if (b->session == NO_SESSION && b->drop) {
        drop_keys(b);
    } else if (b->session == NO_SESSION && !mu_etcd_call_active(&b->drop_call)) {
        b->leaving = true;
        mu_etcd_close(b->etcd, on_etcd_closed, b);
    }
}

void mu_gateway_etcd_close(struct mu_gateway_etcd *b, bool drop, void (*closed)(void *context),
                           void *context)
{
    struct mu_timer *timers[] = {&b->pump, &b->silence, &b->watch_again, &b->lag, &b->lease_again};

    b->closing = true;
    b->drop = drop;
    b->closed = closed;
    b->context = context;
    for (size_t i = 0; i < sizeof(timers) / sizeof(timers[0]); i++) {
        mu_env_timer_arm(b->env, timers[i], MU_MONO_NEVER);
    }
    if (b->watching) {
        mu_etcd_watch_cancel(&b->watch);
    }
    mu_backing_stop(&b->machine);
    give_back(b);
    for (size_t i = 0; i < FLIGHTS; i++) {
        struct flight *f = &b->flights[i];

        if (f->busy && mu_etcd_call_active(&f->call)) {
            mu_etcd_cancel(&f->call);
        } else if (f->busy) {
            send(f); /* it rested between two tries: it ends as the others do */
            mu_env_timer_arm(b->env, &f->again, MU_MONO_NEVER);
            mu_etcd_cancel(&f->call);
        }
    }
    go_on_closing(b);
}

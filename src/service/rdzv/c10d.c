/*
 * The backends c10d, etcd-v2 and etcd-v3: the machine of proto/rdzv/node.h on a register. The first
 * two keep their state as PyTorch's backends of these names do, so that both kinds of nodes meet in
 * one run. Calls of the user reach the machine on the next turn, so that no callback runs inside a
 * call.
 */
#include "service/rdzv/c10d.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "service/base/log.h"
#include "service/rdzv/register_store.h"
#include "service/rdzv/register_v2.h"
#include "service/rdzv/register_v3.h"

#define NO_MEMORY_MS 50 /* until a step that found no memory is tried again */
/* How long a node waits for its turn to write. */
#define TURN_MS          200
#define TURN_MS_PER_NODE 10
#define NOTICE_MS        2000 /* between a member's last moment and our knowing of it */

static struct mu_rdzv_c10d *c10d_of(struct mu_rdzv_handler *h)
{
    return MU_CONTAINER_OF(h, struct mu_rdzv_c10d, base);
}

static bool can_join(const struct mu_rdzv_c10d *n)
{
    return n->machine.v.phase == MU_RDZV_IDLE || n->machine.v.phase == MU_RDZV_MEMBER;
}

static void rearm(struct mu_rdzv_c10d *n)
{
    /* A join waits until the node has left. */
    unsigned soon = can_join(n) ? n->soon : n->soon & ~(unsigned)MU_RDZV_C10D_JOIN;
    mu_mono_t now = mu_env_now(n->base.env).mono;
    mu_mono_t at = MU_MONO_NEVER;

    if (!n->freeing) {
        at = mu_mono_min(n->upscale_at, mu_rdzv_deadline(&n->machine));
    }
    if (soon != 0) {
        at = now;
    }
    if (mu_mono_before(n->retry_at, MU_MONO_NEVER) && mu_mono_before(at, n->retry_at)) {
        at = n->retry_at; /* what is due found no memory: waits a little */
    }
    mu_env_timer_arm(n->base.env, &n->timer, at);
}

static void ask_for(struct mu_rdzv_c10d *n, unsigned what)
{
    n->soon |= what;
    n->retry_at = MU_MONO_NEVER;
    rearm(n);
}

/* --- the machine ------------------------------------------------------------------------------ */

static void carry_out(struct mu_rdzv_c10d *n, const struct mu_rdzv_update *up);

/* Returns the machine's errors, after which it has not changed: MUSTER_ENOMEM, MUSTER_EINVAL. */
static int feed(struct mu_rdzv_c10d *n, struct mu_rdzv_event *event)
{
    struct mu_rdzv_update up;
    int err;

    event->now = mu_env_now(n->base.env);
    err = mu_rdzv_step(&n->machine, event, &up);
    if (err == 0) {
        carry_out(n, &up);
    }
    return err;
}

/* The machine waits a moment after such an answer, and needs no memory to do so. */
static void feed_failure(struct mu_rdzv_c10d *n, uint64_t request, int status)
{
    struct mu_rdzv_event event = {
        .type = MU_RDZV_BACKEND_FAILED,
        .request = request,
        .status = status,
        .text = muster_strerror(status),
        .transient = true,
    };

    (void)feed(n, &event);
}

static void give_up(struct mu_rdzv_c10d *n)
{
    struct mu_errmsg text;
    struct mu_rdzv_event event = {
        .type = MU_RDZV_BACKEND_FAILED,
        .request = n->machine.v.request,
        .status = MUSTER_ENAME,
        .text = text.text,
    };

    (void)mu_err(&text, 0,
                 "cannot connect to etcd at %.80s: %.80s (asked for %d s); check its spelling and "
                 "this host's DNS",
                 n->config.etcd.authority, n->base.trouble.text, MU_RDZV_NAME_MS / 1000);
    (void)feed(n, &event);
}

/* Tells the user first, because what is lent is invalid after the next step; then sends the
 * request. */
static void carry_out(struct mu_rdzv_c10d *n, const struct mu_rdzv_update *up)
{
    int err = 0;

    mu_rdzv_c10d_tell(n, up);
    if (n->freeing) {
        return;
    }
    if ((up->flags & MU_RDZV_DO_READ) != 0) {
        mu_rdzv_register_read(n->reg, up->request);
    }
    if ((up->flags & MU_RDZV_DO_WRITE) != 0) {
        err = mu_rdzv_register_write(n->reg, up);
    }
    if (err != 0) {
        feed_failure(n, up->request, err);
    }
}

/* --- the register
 * --------------------------------------------------------------------------------- */

static void on_found(void *context, const struct mu_rdzv_register_found *found)
{
    struct mu_rdzv_c10d *n = context;

    n->found = true;
    n->base.trouble_count = 0;
    /* The machine was made for a register that pushes; so far it has only asked for the first
     * read. */
    n->machine.config.push = found->push;
    n->machine.config.turns = found->turns;
    if (!n->config.dialect_given && found->dialect != MU_RDZV_DIALECT_UNKNOWN) {
        n->config.dialect = found->dialect;
        n->machine.config.dialect = found->dialect;
    }
    mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_RUNNING, -1, mu_rdzv_c10d_step(n, "store"),
                           "%s", found->text);
}

static void record_answer(struct mu_rdzv_c10d *n, const struct mu_rdzv_event *event)
{
    switch ((int)event->type) {
    case MU_RDZV_STATE_WRITTEN:
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_RUNNING, n->rank,
                               mu_rdzv_c10d_step(n, "write"), "the change was accepted");
        break;
    case MU_RDZV_WRITE_LOST:
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_RUNNING, n->rank,
                               mu_rdzv_c10d_step(n, "write"),
                               "another node was quicker; trying the change again");
        break;
    case MU_RDZV_BACKEND_FAILED:
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_RUNNING, n->rank,
                               mu_rdzv_c10d_step(n, "failure"), "%s: %s",
                               muster_strerror(event->status), event->text);
        break;
    }
}

static void on_answer(void *context, struct mu_rdzv_event *event)
{
    struct mu_rdzv_c10d *n = context;

    if (n->freeing) {
        return;
    }
    record_answer(n, event);
    if (event->type != MU_RDZV_BACKEND_FAILED) {
        n->base.trouble_count = 0;
    }
    if (event->type == MU_RDZV_BACKEND_FAILED && n->base.keep_trying &&
        mu_rdzv_is_refusal(event->status)) {
        mu_rdzv_handler_trouble(&n->base, event->status, n->config.endpoint.host, event->text);
        event->transient = true;
    }
    if (feed(n, event) != 0) {
        feed_failure(n, event->request, MUSTER_ENOMEM);
    }
    rearm(n);
}

/* Many changes may come on one turn. */
static void on_changed(void *context)
{
    struct mu_rdzv_c10d *n = context;

    if (!n->freeing && (n->soon & MU_RDZV_C10D_WATCH) == 0) {
        ask_for(n, MU_RDZV_C10D_WATCH);
    }
}

static void finish_free(void *context)
{
    struct mu_rdzv_c10d *n = context;

    mu_rdzv_fini(&n->machine);
    mu_env_timer_arm(n->base.env, &n->timer, MU_MONO_NEVER);
    n->base.events.freed(n->base.events.context);
    mu_free(n);
}

static void on_register_closed(void *context)
{
    struct mu_rdzv_c10d *n = context;

    if (n->server != NULL) {
        mu_rdzv_unhost(n->server, n->base.linger_ms, finish_free, n);
    } else {
        finish_free(n);
    }
}

/* --- wishes ----------------------------------------------------------------------------------- */

/* Hands a wish to the machine. False: it must be tried again. */
static bool grant(struct mu_rdzv_c10d *n, unsigned wish, enum mu_rdzv_event_type type)
{
    /* What was known before a failure tells nothing of who was there after it. */
    struct mu_rdzv_event event = {.type = type, .anew = n->doubts};

    if ((n->soon & wish) == 0 || n->freeing) {
        return true;
    }
    if (wish == MU_RDZV_C10D_JOIN && !can_join(n)) {
        return true; /* later, once it has left */
    }
    n->soon &= ~wish;
    if (wish == MU_RDZV_C10D_JOIN) {
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_RUNNING, -1, mu_rdzv_c10d_step(n, "join"),
                               "%s wants to join the next round", n->base.node);
        n->rank = -1;
    }
    if (feed(n, &event) != 0) {
        n->soon |= wish;
        return false;
    }
    return true;
}

static void run(struct mu_rdzv_c10d *n)
{
    struct mu_rdzv_event event = {.type = MU_RDZV_TIMEOUT};
    bool granted;

    n->retry_at = MU_MONO_NEVER;
    if ((n->soon & MU_RDZV_C10D_RECORD) != 0) {
        n->soon &= ~(unsigned)MU_RDZV_C10D_RECORD;
        mu_rdzv_handler_record(&n->base, MU_RDZV_RECORD_INIT, -1, mu_rdzv_c10d_step(n, "host"),
                               "%s", n->host_text.text);
    }
    if ((n->soon & MU_RDZV_C10D_EXPLAIN) != 0) {
        n->soon &= ~(unsigned)MU_RDZV_C10D_EXPLAIN;
        mu_rdzv_c10d_explain(n);
    }
    if ((n->soon & MU_RDZV_C10D_GIVE_UP) != 0) {
        n->soon &= ~(unsigned)MU_RDZV_C10D_GIVE_UP;
        give_up(n);
    }
    granted = grant(n, MU_RDZV_C10D_LEAVE, MU_RDZV_LEAVE);
    granted = grant(n, MU_RDZV_C10D_CLOSE, MU_RDZV_CLOSE) && granted;
    granted = grant(n, MU_RDZV_C10D_JOIN, MU_RDZV_JOIN) && granted;
    granted = grant(n, MU_RDZV_C10D_WATCH, MU_RDZV_WATCH) && granted;
    granted = grant(n, MU_RDZV_C10D_LOOK, MU_RDZV_LOOK) && granted;
    if (!n->freeing && mu_mono_reached(n->upscale_at, mu_env_now(n->base.env).mono)) {
        mu_rdzv_c10d_upscale(n);
    }
    if (!n->freeing &&
        mu_mono_reached(mu_rdzv_deadline(&n->machine), mu_env_now(n->base.env).mono)) {
        granted = feed(n, &event) == 0 && granted;
    }
    if (!granted) {
        n->retry_at = mu_mono_add_ms(mu_env_now(n->base.env).mono, NO_MEMORY_MS);
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_rdzv_c10d *n = MU_CONTAINER_OF(timer, struct mu_rdzv_c10d, timer);

    if (!n->freeing) {
        run(n);
    }
    if (n->freeing) {
        if ((n->soon & MU_RDZV_C10D_FREE) != 0) {
            n->soon = 0;
            mu_rdzv_register_close(n->reg);
        }
        return;
    }
    rearm(n);
}

static void c10d_join(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_c10d *n = c10d_of(h);

    if (n->freeing || n->state == MU_RDZV_C10D_JOINING) {
        return;
    }
    n->state = MU_RDZV_C10D_JOINING;
    n->base.trouble_count = 0;
    n->upscale_at = MU_MONO_NEVER;
    mu_rdzv_c10d_end_doubt(n);
    ask_for(n, MU_RDZV_C10D_JOIN);
}

static void c10d_explain(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_c10d *n = c10d_of(h);

    if (!n->freeing) {
        ask_for(n, MU_RDZV_C10D_EXPLAIN);
    }
}

static void c10d_doubt(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_c10d *n = c10d_of(h);

    if (!n->freeing && n->state == MU_RDZV_C10D_IN) {
        n->doubts = true;
        ask_for(n, MU_RDZV_C10D_LOOK);
    }
}

static void c10d_leave(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_c10d *n = c10d_of(h);

    if (n->freeing) {
        return;
    }
    n->state = MU_RDZV_C10D_OUT;
    n->upscale_at = MU_MONO_NEVER;
    mu_rdzv_c10d_end_doubt(n);
    n->soon &= ~(unsigned)MU_RDZV_C10D_JOIN;
    ask_for(n, MU_RDZV_C10D_LEAVE);
}

static void c10d_close_run(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_c10d *n = c10d_of(h);

    if (!n->freeing) {
        ask_for(n, MU_RDZV_C10D_CLOSE);
    }
}

static void c10d_free(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_c10d *n = c10d_of(h);

    if (!n->freeing) {
        n->freeing = true;
        n->soon = 0;
        mu_rdzv_c10d_end_doubt(n);
        ask_for(n, MU_RDZV_C10D_FREE);
    }
}

/* As of the last time that this was asked. The others write down that they live. */
static bool c10d_deserted(struct mu_rdzv_handler *h)
{
    struct mu_rdzv_c10d *n = c10d_of(h);
    const struct mu_rdzv_state *state = mu_rdzv_state(&n->machine);

    if (n->freeing || n->server == NULL) {
        return false;
    }
    ask_for(n, MU_RDZV_C10D_LOOK);
    return n->state == MU_RDZV_C10D_OUT && state != NULL && state->member_count == 0;
}

static const struct mu_rdzv_handler_ops c10d_ops = {
    .join = c10d_join,
    .explain = c10d_explain,
    .doubt = c10d_doubt,
    .leave = c10d_leave,
    .close_run = c10d_close_run,
    .deserted = c10d_deserted,
    .free = c10d_free,
};

/* --- the beginning ---------------------------------------------------------------------------- */

static uint32_t clamp_ms(uint64_t ms)
{
    return (uint32_t)(ms < INT32_MAX ? ms : INT32_MAX);
}

static int open_store_register(struct mu_rdzv_c10d *n, const struct mu_rdzv_register_events *events)
{
    const struct mu_rdzv_c10d_config *c = &n->config;
    struct mu_rdzv_store_register_config config = {
        .path = c->file ? c->path : NULL,
        .tcp = mu_store_tcp_config_defaults(),
        .answer_ms = clamp_ms(c->read_timeout_ms),
        .first_delay_ms = n->machine.config.first_delay_ms,
        .turn_ms = TURN_MS + TURN_MS_PER_NODE * (uint32_t)c->settings.max_nodes,
    };

    config.tcp.addr = c->endpoint;
    config.tcp.protocol = c->protocol;
    config.tcp.connect_ms = clamp_ms(c->settings.join_timeout_ms);
    config.tcp.value_bytes_max = (size_t)MU_RDZV_STATE_BYTES_MAX / 3 * 4 + 64;
    config.tcp.name = n->base.node;
    config.tcp.name_ms = n->base.keep_trying ? 0 : MU_RDZV_NAME_MS;
    config.tcp.trouble = mu_rdzv_c10d_trouble;
    config.tcp.context = n;
    (void)snprintf(config.key, sizeof(config.key), "torch.rendezvous.%s", n->base.run_id);
    return mu_rdzv_store_register_new(n->base.env, &config, events, &n->reg);
}

static int open_etcd_register(struct mu_rdzv_c10d *n, const struct mu_rdzv_register_events *events,
                              struct mu_errmsg *reterr_msg)
{
    const struct mu_rdzv_c10d_config *c = &n->config;
    struct mu_etcd *etcd;
    int err = mu_rdzv_c10d_open_etcd(c, n->base.env, &etcd, reterr_msg);

    if (err != 0) {
        return err;
    }
    mu_etcd_on_trouble(etcd, mu_rdzv_c10d_etcd_trouble, n);
    if (c->place == MU_RDZV_C10D_ETCD_V2) {
        err = mu_rdzv_v2_register_new(n->base.env, etcd, n->base.run_id,
                                      clamp_ms(c->read_timeout_ms), events, &n->reg);
    } else {
        char prefix[MU_RDZV_V3_PREFIX_CAP];
        const struct mu_rdzv_v3_config config = {
            .prefix = mu_rdzv_c10d_v3_prefix(prefix, sizeof(prefix), c, n->base.run_id),
            .settings = c->settings,
            .node = n->machine.node,
            .lease_ttl_s = c->lease_ttl_s,
        };

        err = mu_rdzv_v3_register_new(n->base.env, etcd, &config, events, &n->reg);
    }
    if (err != 0) {
        mu_etcd_close(etcd, NULL, NULL);
        return mu_err(reterr_msg, err, "%s", muster_strerror(err));
    }
    return 0;
}

static int open_register(struct mu_rdzv_c10d *n, struct mu_errmsg *reterr_msg)
{
    const struct mu_rdzv_register_events events = {
        .found = on_found,
        .answer = on_answer,
        .changed = on_changed,
        .closed = on_register_closed,
        .context = n,
    };
    int err;

    if (n->config.place != MU_RDZV_C10D_STORE) {
        return open_etcd_register(n, &events, reterr_msg);
    }
    err = open_store_register(n, &events);
    return err != 0 ? mu_err(reterr_msg, err, "out of memory") : 0;
}

static int init_machine(struct mu_rdzv_c10d *n, struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_config config = mu_rdzv_config_defaults();
    struct mu_rdzv_c10d_config *c = &n->config;
    char name[MU_RDZV_C10D_NAME_CAP];
    uint32_t random;
    int err;

    /* PyTorch counts its handlers; but processes in containers share addresses and process ids. */
    mu_env_entropy(n->base.env, &random, sizeof(random));
    config.settings = c->settings;
    config.dialect = c->dialect;
    config.push = true;
    config.plain = c->place == MU_RDZV_C10D_ETCD_V3;
    config.node = (struct mu_rdzv_node){
        .addr = n->base.addr,
        .pid = c->pid,
        .local_id = c->local_id >= 0 ? c->local_id : MU_RDZV_OWN_ID | (int64_t)(random >> 2),
    };
    mu_env_entropy(n->base.env, &config.seed, sizeof(config.seed));
    n->base.doubt_ms = NOTICE_MS + (config.plain ? (uint64_t)c->lease_ttl_s * 1000
                                                 : mu_rdzv_dead_after_ms(&config.settings));
    err = mu_rdzv_init(&n->machine, &config, reterr_msg);
    if (err == 0) {
        (void)snprintf(n->base.node, sizeof(n->base.node), "%.*s", MU_RDZV_RUN_ID_MAX,
                       mu_rdzv_c10d_name(name, &n->machine.node));
    }
    return err;
}

static int elect(struct mu_rdzv_c10d *n, struct mu_errmsg *reterr_msg)
{
    int rc;

    n->soon = MU_RDZV_C10D_RECORD;
    if (n->config.place != MU_RDZV_C10D_STORE) {
        (void)mu_err(&n->host_text, 0, "the rendezvous is in etcd at %.160s",
                     n->config.etcd.authority);
        return 0;
    }
    if (n->config.file) {
        (void)mu_err(&n->host_text, 0, "the rendezvous is in the file %.200s", n->config.path);
        return 0;
    }
    rc = mu_rdzv_host(n->base.env, n->config.host, false, &n->config.endpoint, &n->server,
                      &n->host_text);
    if (rc < 0) {
        return mu_err(reterr_msg, rc, "%s", n->host_text.text);
    }
    n->base.hosting = rc == 1;
    return 0;
}

/* Settles which node hosts, then makes the register there. */
static int begin(struct mu_rdzv_c10d *n, struct mu_errmsg *reterr_msg)
{
    int err = elect(n, reterr_msg);

    if (err == 0) {
        err = open_register(n, reterr_msg);
        if (err != 0 && n->server != NULL) {
            mu_rdzv_unhost(n->server, 0, NULL, NULL);
        }
    }
    if (err != 0) {
        mu_rdzv_fini(&n->machine);
    }
    return err;
}

const char *mu_rdzv_c10d_step(struct mu_rdzv_c10d *n, const char *step)
{
    (void)snprintf(n->step, sizeof(n->step), "%s.%s", n->base.backend, step);
    return n->step;
}

int mu_rdzv_c10d_new(struct mu_env *env, const struct mu_rdzv_params *params,
                     const struct mu_rdzv_events *events, struct mu_rdzv_handler **ret_handler,
                     struct mu_errmsg *reterr_msg)
{
    struct mu_rdzv_c10d *n = mu_calloc(1, sizeof(*n));
    int err;

    if (n == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    mu_timer_init(&n->timer, on_timer);
    n->retry_at = n->upscale_at = MU_MONO_NEVER;
    n->rank = -1;
    err = mu_rdzv_handler_init(&n->base, &c10d_ops, env, params, events, reterr_msg);
    if (err == 0) {
        err = mu_rdzv_c10d_configure(&n->config, env, params, reterr_msg);
    }
    if (err == 0) {
        err = init_machine(n, reterr_msg);
    }
    if (err == 0) {
        err = begin(n, reterr_msg);
    }
    if (err != 0) {
        mu_free(n);
        return err;
    }
    mu_log(MUSTER_LOG_INFO, "RDZV-HOST", "backend=%s run=\"%s\" %s", n->base.backend,
           n->base.run_id, n->host_text.text);
    rearm(n);
    *ret_handler = &n->base;
    return 0;
}

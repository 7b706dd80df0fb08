#include "service/wire/rpc_client_internal.h"

#include <stdio.h>

#include "core/addr.h"

#define LINGER_MS 1000
/* A link that has lasted this long was a good one: the next one is dialled without much of a rest.
 * Who welcomes us and hangs up at once is not. */
#define STEADY_MS 1000

/* A server that hangs up on TLS so often knows none; so does one that keeps silent so long. */
#define NOT_TLS_TRIES     3
#define NOT_TLS_SILENT_MS 5000

uint32_t mu_rpc_client_backoff_ms(uint32_t *attempt, struct mu_env *env)
{
    uint32_t base = *attempt >= 6 ? 1000 : 20u << *attempt;
    uint32_t random;

    (*attempt)++;
    mu_env_entropy(env, &random, sizeof(random));
    return base / 2 + random % (base / 2 + 1);
}

/* --- the connection --------------------------------------------------------------------------- */

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    mu_rpc_client_pump(MU_CONTAINER_OF(conn, struct mu_rpc_client, conn), in);
    return in.len;
}

static struct mu_space on_room(struct mu_conn *conn)
{
    struct mu_rpc_client *c = MU_CONTAINER_OF(conn, struct mu_rpc_client, conn);

    return c->link == MU_RPC_CLIENT_UP ? mu_rpc_room(&c->rpc) : (struct mu_space){0};
}

static void on_open(struct mu_conn *conn)
{
    struct mu_rpc_client *c = MU_CONTAINER_OF(conn, struct mu_rpc_client, conn);
    struct mu_now now = mu_env_now(c->env);

    c->link = MU_RPC_CLIENT_UP;
    c->blocked = false;
    if (!c->ready) {
        c->probe_at = mu_mono_add_ms(now.mono, c->config.probe_ms);
        c->give_up_at = c->config.try_once ? MU_MONO_NEVER : c->give_up_at; /* It was taken. */
    }
    if (mu_rpc_dialled(&c->rpc, now) != 0) {
        mu_rpc_client_close_link(c);
    }
    mu_rpc_client_pump(c, (struct mu_span){0});
}

/* A name that nobody knows may be that of a host that is about to start, but not for long. */
static void look_at_name(struct mu_rpc_client *c, bool known)
{
    mu_mono_t now = mu_env_now(c->env).mono;
    char text[MU_ERRMSG_CAP];

    if (known || c->unknown_since.ns == MU_MONO_NEVER.ns) {
        c->unknown_since = known ? MU_MONO_NEVER : now;
    } else if (c->config.name_ms != 0 &&
               mu_mono_since(c->unknown_since, now) >= c->config.name_ms * MU_NS_PER_MS) {
        (void)snprintf(text, sizeof(text), MU_RPC_CLIENT_UNKNOWN_TEXT, c->addr,
                       c->config.name_ms / 1000);
        mu_rpc_client_report(c, MU_RPC_CLIENT_FAILED, MUSTER_ENAME, text);
    }
}

static void note_trouble(struct mu_rpc_client *c, int status, bool was_open)
{
    c->last_error = status;
    c->trouble = status;
    c->trouble_open = was_open;
    look_at_name(c, status != MUSTER_ENAME);
}

static void on_eof(struct mu_conn *conn)
{
    struct mu_rpc_client *c = MU_CONTAINER_OF(conn, struct mu_rpc_client, conn);

    note_trouble(c, MUSTER_ECLOSED, true);
    mu_rpc_client_close_link(c);
    mu_rpc_client_pump(c, (struct mu_span){0});
}

static void on_writable(struct mu_conn *conn)
{
    struct mu_rpc_client *c = MU_CONTAINER_OF(conn, struct mu_rpc_client, conn);

    c->blocked = false;
    mu_rpc_client_pump(c, (struct mu_span){0});
}

static void give_up(struct mu_rpc_client *c)
{
    char text[MU_ERRMSG_CAP];

    c->give_up_at = MU_MONO_NEVER;
    if (!c->ready) {
        (void)snprintf(text, sizeof(text),
                       "cannot connect to %.120s: %s (tried for %u ms); is a server running there?",
                       c->addr,
                       muster_strerror(c->last_error != 0 ? c->last_error : MUSTER_ETIMEDOUT),
                       c->config.connect_ms);
        mu_rpc_client_report(c, MU_RPC_CLIENT_FAILED, MUSTER_ECONN, text);
        return;
    }
    (void)snprintf(text, sizeof(text), "lost the connection to %.120s: %s (tried again for %u ms)",
                   c->addr, muster_strerror(c->last_error != 0 ? c->last_error : MUSTER_ECLOSED),
                   c->config.reconnect_ms);
    mu_rpc_client_note(c, MU_RPC_CLIENT_GAVE_UP, MUSTER_ECONN, text);
}

/* The two ends do not trust each other, and trying again would not help. */
static void fail_insecure(struct mu_rpc_client *c)
{
    const char *why = mu_env_why(c->env);
    char text[MU_ERRMSG_CAP];

    (void)snprintf(text, sizeof(text), "cannot connect to %.80s: %s", c->addr,
                   why[0] != '\0' ? why : muster_strerror(MUSTER_ETLS));
    mu_rpc_client_report(c, MU_RPC_CLIENT_FAILED, MUSTER_ETLS, text);
}

/* We have a credential, and the server knows nothing of it. Or it was about to die: so not after
 * the first time. */
static void fail_unlocked(struct mu_rpc_client *c)
{
    char text[MU_ERRMSG_CAP];
    uint64_t took = mu_mono_since(c->dialled_at, mu_env_now(c->env).mono);

    if (++c->not_tls < NOT_TLS_TRIES && took < NOT_TLS_SILENT_MS * MU_NS_PER_MS) {
        return;
    }
    (void)snprintf(text, sizeof(text),
                   "cannot connect to %.80s: it does not speak TLS. It was started without the "
                   "job's credential (--token-file), or it is not a muster server",
                   c->addr);
    mu_rpc_client_report(c, MU_RPC_CLIENT_FAILED, MUSTER_ENOTLS, text);
}

static void on_closed(struct mu_conn *conn, int status)
{
    struct mu_rpc_client *c = MU_CONTAINER_OF(conn, struct mu_rpc_client, conn);
    struct mu_now now = mu_env_now(c->env);
    bool was_open = c->link == MU_RPC_CLIENT_UP || c->link == MU_RPC_CLIENT_CLOSING;
    /* The peer is on another host, or this is not its socket any more: it has another address. */
    bool too_far = c->dialled_near && (c->link == MU_RPC_CLIENT_DIALLING || !c->ready);

    if (status != 0) {
        note_trouble(c, status, was_open);
    }
    if (c->link == MU_RPC_CLIENT_UP) {
        mu_rpc_unlinked(&c->rpc, now);
    }
    c->link = MU_RPC_CLIENT_DOWN;
    c->probe_at = MU_MONO_NEVER;
    if (!c->ready && status == MUSTER_ETLS) {
        fail_insecure(c);
    }
    if (!c->ready && status == MUSTER_ENOTLS) {
        fail_unlocked(c);
    } else {
        c->not_tls = 0;
    }
    if (!c->ready && was_open && !too_far && ++c->unanswered >= c->config.greetings) {
        mu_rpc_client_report(c, c->silent ? MU_RPC_CLIENT_SILENT : MU_RPC_CLIENT_MISMATCH, 0, "");
    }
    if (!c->ready && !too_far && c->config.try_once) {
        give_up(c);
    }
    if (mu_mono_since(c->welcomed_at, now.mono) >= STEADY_MS * MU_NS_PER_MS) {
        c->attempts = 0;
    }
    if (!c->closing && !c->reported) {
        mu_rpc_client_need(c);
        c->near_failed = c->near_failed || too_far;
        c->dial_at = too_far
                         ? now.mono
                         : mu_mono_add_ms(now.mono, mu_rpc_client_backoff_ms(&c->attempts, c->env));
    }
    mu_rpc_client_pump(c, (struct mu_span){0});
}

static const struct mu_conn_events conn_events = {
    .open = on_open,
    .data = on_data,
    .room = on_room,
    .eof = on_eof,
    .writable = on_writable,
    .closed = on_closed,
};

static void dial(struct mu_rpc_client *c)
{
    int err;

    c->dial_at = MU_MONO_NEVER;
    c->dialled_at = mu_env_now(c->env).mono;
    c->welcomed_at = MU_MONO_NEVER;
    c->silent = false;
    c->conn.on = &conn_events;
    c->dialled_near = c->config.near.kind != 0 && !c->near_failed;
    err = mu_env_dial(c->env, &c->conn, c->dialled_near ? &c->config.near : &c->config.addr);
    if (err != 0 && c->dialled_near) {
        c->near_failed = true;
        c->dialled_near = false;
        err = mu_env_dial(c->env, &c->conn, &c->config.addr);
    }
    if (err != 0) {
        note_trouble(c, err, false);
        c->dial_at =
            mu_mono_add_ms(mu_env_now(c->env).mono, mu_rpc_client_backoff_ms(&c->attempts, c->env));
    } else {
        c->link = MU_RPC_CLIENT_DIALLING;
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct mu_rpc_client *c = MU_CONTAINER_OF(timer, struct mu_rpc_client, timer);
    struct mu_now now = mu_env_now(c->env);

    c->starved = mu_rpc_tick(&c->rpc, now) == MUSTER_ENOMEM;
    if (mu_mono_reached(c->give_up_at, now.mono)) {
        give_up(c);
    }
    if (mu_mono_reached(c->probe_at, now.mono)) {
        c->probe_at = MU_MONO_NEVER;
        mu_rpc_client_report(c, MU_RPC_CLIENT_SILENT, 0, "");
    }
    if (mu_mono_reached(c->linger_at, now.mono)) {
        c->linger_at = MU_MONO_NEVER;
        mu_rpc_client_close_link(c);
    }
    if (mu_mono_reached(c->dial_at, now.mono) && c->link == MU_RPC_CLIENT_DOWN && !c->closing) {
        dial(c);
    }
    mu_rpc_client_pump(c, (struct mu_span){0});
}

/* --- for its owner ---------------------------------------------------------------------------- */

int mu_rpc_client_init(struct mu_rpc_client *c, struct mu_env *env,
                       const struct mu_rpc_client_config *config,
                       const struct mu_rpc_client_events *events)
{
    mu_mono_t now = mu_env_now(env).mono;
    int err;

    *c = (struct mu_rpc_client){
        .env = env,
        .config = *config,
        .events = *events,
        .terms = config->terms != NULL ? *config->terms : mu_rpc_config_defaults(),
        .dial_at = now,
        .probe_at = MU_MONO_NEVER,
        .linger_at = MU_MONO_NEVER,
        .unknown_since = MU_MONO_NEVER,
        .give_up_at =
            config->connect_ms == 0 ? MU_MONO_NEVER : mu_mono_add_ms(now, config->connect_ms),
    };
    err = mu_rpc_client_begin_session(c);
    if (err != 0) {
        return err;
    }
    (void)mu_addr_format(&config->addr, c->addr, sizeof(c->addr));
    mu_timer_init(&c->timer, on_timer);
    mu_env_timer_arm(env, &c->timer, now);
    return 0;
}

void mu_rpc_client_run_soon(struct mu_rpc_client *c)
{
    mu_env_timer_arm(c->env, &c->timer, mu_env_now(c->env).mono);
}

int mu_rpc_client_call(struct mu_rpc_client *c, struct mu_span method, struct mu_span payload,
                       uint32_t timeout_ms, uint64_t *ret_id)
{
    int err;

    if (!c->ready || c->broken) {
        return MUSTER_EAGAIN;
    }
    err = mu_rpc_call(&c->rpc, mu_env_now(c->env), method, payload, timeout_ms, 0, ret_id);
    if (err == 0) {
        mu_rpc_client_run_soon(c);
    }
    return err;
}

int mu_rpc_client_item(struct mu_rpc_client *c, uint64_t id, struct mu_span payload)
{
    int err = mu_rpc_item(&c->rpc, mu_env_now(c->env), id, payload);

    if (err == 0) {
        mu_rpc_client_run_soon(c);
    }
    return err;
}

int mu_rpc_client_end(struct mu_rpc_client *c, uint64_t id)
{
    int err = mu_rpc_end(&c->rpc, mu_env_now(c->env), id);

    if (err == 0) {
        mu_rpc_client_run_soon(c);
    }
    return err;
}

int mu_rpc_client_cancel(struct mu_rpc_client *c, uint64_t id)
{
    int err = mu_rpc_cancel(&c->rpc, mu_env_now(c->env), id);

    mu_rpc_client_run_soon(c);
    return err;
}

bool mu_rpc_client_linked(const struct mu_rpc_client *c)
{
    return mu_rpc_linked(&c->rpc);
}

void mu_rpc_client_need(struct mu_rpc_client *c)
{
    if (c->link != MU_RPC_CLIENT_UP && c->ready && c->give_up_at.ns == MU_MONO_NEVER.ns &&
        c->config.reconnect_ms != 0) {
        c->give_up_at = mu_mono_add_ms(mu_env_now(c->env).mono, c->config.reconnect_ms);
        mu_rpc_client_run_soon(c);
    }
}

void mu_rpc_client_close(struct mu_rpc_client *c)
{
    if (c->closing) {
        return;
    }
    c->closing = true;
    c->dial_at = c->give_up_at = c->probe_at = MU_MONO_NEVER;
    c->linger_at = mu_mono_add_ms(mu_env_now(c->env).mono, LINGER_MS);
    (void)mu_rpc_close(&c->rpc, mu_env_now(c->env));
    if (c->link == MU_RPC_CLIENT_DIALLING || (c->link == MU_RPC_CLIENT_UP && !c->ready)) {
        mu_rpc_client_close_link(c);
    }
    mu_rpc_client_run_soon(c);
}

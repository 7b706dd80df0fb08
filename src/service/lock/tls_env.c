#include "service/lock/tls_env_internal.h"

#include <errno.h>

#include "core/alloc.h"
#include "core/assert.h"

/* How long output may wait for room on the wire once the owner has closed the connection. */
#define PATIENCE_MS 5000
/* How long a handshake may take, once there is a connection. A client may be one among a thousand,
 * at a server that has other things to do or was stopped for a while. */
#define DIALLED_MS 30000
/* A connection whose time ended longer ago than this when we look was kept waiting by us. */
#define LATE_MS 1000
/* How many strangers a second learn why they are refused, for which their connection has to linger
 * until they have read it. The others are cut off. */
#define FAREWELLS_MAX 64

static struct tls_conn *conn_of(struct mu_conn *wire)
{
    return MU_CONTAINER_OF(wire, struct tls_conn, wire);
}

/* Sending. */

void mu_tls_close_wire(struct tls_conn *c, bool abort)
{
    c->over = true;
    mu_env_close(c->env->layer.below, &c->wire, abort);
}

static void flush(struct tls_conn *c)
{
    struct mu_span out = mu_tls_output(&c->tls);

    while (out.len != 0 && !c->blocked) {
        size_t taken = 0;

        mu_env_send(c->env->layer.below, &c->wire, out, &taken);
        c->blocked = taken < out.len;
        mu_tls_sent(&c->tls, taken);
        out = mu_tls_output(&c->tls);
    }
}

static void tell_refused(struct tls_conn *c)
{
    char peer[64];

    if (!c->dialled && c->status == MUSTER_ETLS && c->env->refused != NULL) {
        mu_env_peer(c->env->layer.below, &c->wire, peer, sizeof(peer));
        c->env->refused(c->env->to_whom, peer, c->why.text);
    }
}

/* Whether a connection that failed may linger. */
static bool may_linger(struct tls_conn *c)
{
    mu_mono_t now = mu_env_now(c->env->layer.below).mono;

    if (c->conn != NULL) {
        return true;
    }
    if (mu_mono_since(c->env->farewells_since, now) >= MU_NS_PER_S) {
        c->env->farewells_since = now;
        c->env->farewells = 0;
    }
    return c->env->farewells++ < FAREWELLS_MAX;
}

/* The connection has failed; the other end is told if it still reads. */
static void fail(struct tls_conn *c, int status, const char *why)
{
    if (!c->closing && c->status == 0) {
        c->status = status;
        (void)mu_err(&c->why, status, "%s", why);
        tell_refused(c);
    }
    flush(c);
    if (!c->over) {
        mu_tls_close_wire(c, !may_linger(c));
    }
}

/* Writes as much of one span as is taken. False: no more is taken, or the connection failed
 * (status). */
static bool write_span(struct tls_conn *c, struct mu_span data, size_t *taken)
{
    while (data.len != 0) {
        size_t n = 0;
        int err = mu_tls_write(&c->tls, data, &n);

        if (err != 0) {
            fail(c, err, mu_tls_errmsg(&c->tls));
            return false;
        }
        *taken += n;
        data = mu_span_skip(data, n);
        flush(c);
        if (n == 0) {
            return false;
        }
    }
    return true;
}

static void env_sendv(struct mu_env *env, struct mu_conn *conn, const struct mu_span *spans,
                      size_t count, size_t *ret_taken)
{
    struct tls_conn *c = conn->impl;
    size_t total = mu_span_total(spans, count);
    size_t taken = 0;

    (void)env;
    *ret_taken = total;
    if (c == NULL || c->closing || c->over) {
        return;
    }
    if (mu_tls_ready(&c->tls)) {
        for (size_t i = 0; i < count && write_span(c, spans[i], &taken); i++) {
        }
    }
    if (c->over) {
        return; /* It has failed: what is written to it is dropped. */
    }
    c->want_writable = taken < total;
    *ret_taken = taken;
}

static void tell_writable(struct tls_conn *c)
{
    if (c->want_writable && !c->closing && !c->over && !c->blocked && mu_tls_ready(&c->tls)) {
        c->want_writable = false;
        c->conn->on->writable(c->conn);
    }
}

static void wire_writable(struct mu_conn *wire)
{
    struct tls_conn *c = conn_of(wire);

    c->blocked = false;
    flush(c);
    if (c->closing) {
        if (!c->blocked && !c->over) {
            mu_tls_close_wire(c, false);
        }
        return;
    }
    tell_writable(c);
}

/* Receiving. */

/* Hands out plain bytes; what is not used is kept, unless it is in `rest` already. */
static bool deliver(struct tls_conn *c, struct mu_span plain, size_t *ret_used)
{
    c->in_data = true;
    c->resume = false;
    *ret_used = c->conn->on->data(c->conn, plain);
    c->in_data = false;
    MU_ASSERT(*ret_used <= plain.len);
    if (c->closing || c->over) {
        return false;
    }
    c->paused = *ret_used < plain.len;
    if (c->paused && c->resume) {
        mu_env_timer_arm(c->env->layer.below, &c->timer, mu_env_now(c->env->layer.below).mono);
    }
    return !c->paused;
}

static void tell_eof(struct tls_conn *c)
{
    static const struct mu_errmsg cut = {
        "the other end hung up without TLS's close_notify: it died or was cut off, and the end of "
        "what it sent may be missing"};

    if (c->eof && !c->eof_told && !c->paused && !c->closing && !c->over) {
        c->eof_told = true;
        c->env->why = c->tls.peer_ended ? NULL : &cut;
        c->conn->on->eof(c->conn);
        c->env->why = NULL;
    }
}

/* Reports the end of the handshake, if it is done. False: the connection was closed meanwhile. */
static bool tell_ready(struct tls_conn *c)
{
    if (c->ready_told || !mu_tls_ready(&c->tls)) {
        return true;
    }
    c->ready_told = true;
    mu_env_timer_arm(c->env->layer.below, &c->timer, MU_MONO_NEVER);
    if (c->dialled) {
        c->conn->on->open(c->conn);
    } else {
        mu_tls_find_owner(c);
    }
    return !c->closing && !c->over;
}

/* Where the next plain bytes are to lie: where their owner wants them, if it says so. What of a
 * record has no place there is given out by the next mu_tls_recv(). */
static struct mu_space room_of(struct tls_conn *c)
{
    struct mu_space room = {0};

    if (c->ready_told && c->conn->on->room != NULL) {
        room = c->conn->on->room(c->conn);
    }
    return room.len != 0 ? room : (struct mu_space){c->env->plain, sizeof(c->env->plain)};
}

static size_t wire_data(struct mu_conn *wire, struct mu_span in)
{
    struct tls_conn *c = conn_of(wire);
    struct mu_span left = in;

    while (!c->paused && !c->closing && !c->over && !c->eof) {
        struct mu_space room = room_of(c);
        size_t len = 0;
        size_t used = 0;
        int err = mu_tls_recv(&c->tls, &left, room.data, room.len, &len);

        if (err != 0) {
            fail(c, err, mu_tls_errmsg(&c->tls));
            break;
        }
        flush(c);
        if (!tell_ready(c)) {
            break;
        }
        if (len != 0 && !deliver(c, mu_span(room.data, len), &used) && c->paused) {
            MU_ASSERT(room.data == c->env->plain);
            if (mu_buf_append(&c->rest, mu_span(room.data + used, len - used)) != 0) {
                fail(c, MUSTER_ENOMEM, "out of memory");
            }
        }
        c->eof = c->tls.peer_ended;
        if (len == 0 && left.len == 0) {
            break;
        }
    }
    tell_writable(c); /* What came may have been what a write waited for. */
    tell_eof(c);
    /* Behind the peer's farewell, and after our own close, nothing counts. */
    return c->paused && !c->eof ? in.len - left.len : in.len;
}

/* Whoever does not know TLS hangs up on our hello without a word. One that breaks off later has
 * died, or is too busy, and may be tried again. */
static void fail_early(struct tls_conn *c)
{
    static const char text[] =
        "the other end hung up, or fell silent, in the middle of the handshake";

    if (c->dialled && !c->tls.heard) {
        fail(c, MUSTER_ENOTLS, muster_strerror(MUSTER_ENOTLS));
    } else {
        fail(c, c->dialled ? MUSTER_ECONN : MUSTER_ETLS, text);
    }
}

void mu_tls_arm_handshake(struct tls_conn *c, uint32_t ms)
{
    c->by = mu_mono_add_ms(mu_env_now(c->env->layer.below).mono, ms);
    mu_env_timer_arm(c->env->layer.below, &c->timer, c->by);
}

/* The time for the handshake is over, unless we were asleep and have yet to read what came
 * meanwhile. */
static void end_handshake(struct tls_conn *c)
{
    if (mu_mono_since(c->by, mu_env_now(c->env->layer.below).mono) > LATE_MS * MU_NS_PER_MS) {
        mu_tls_arm_handshake(c, LATE_MS);
    } else {
        fail_early(c);
    }
}

static void wire_eof(struct mu_conn *wire)
{
    struct tls_conn *c = conn_of(wire);

    if (c->closing || c->over) {
        return;
    }
    if (!mu_tls_ready(&c->tls)) {
        fail_early(c);
        return;
    }
    c->eof = true;
    tell_eof(c);
}

static void deliver_rest(struct tls_conn *c)
{
    size_t used = 0;
    bool all = deliver(c, mu_buf_span(&c->rest), &used);

    if (c->closing || c->over) {
        return;
    }
    mu_buf_consume(&c->rest, used);
    if (all) {
        mu_buf_trim(&c->rest, 0);
        tell_eof(c);
        if (!c->closing && !c->over) {
            mu_env_resume(c->env->layer.below, &c->wire);
        }
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct tls_conn *c = MU_CONTAINER_OF(timer, struct tls_conn, timer);

    if (c->closing) {
        mu_tls_close_wire(c, true);
    } else if (!c->ready_told && !c->over) {
        end_handshake(c);
    } else if (c->paused && !c->over) {
        deliver_rest(c);
    }
}

static void env_resume(struct mu_env *env, struct mu_conn *conn)
{
    struct tls_conn *c = conn->impl;

    (void)env;
    if (c == NULL) {
        return;
    }
    if (c->in_data) {
        c->resume = true;
    } else if (c->paused && !c->closing && !c->over) {
        mu_env_timer_arm(c->env->layer.below, &c->timer, mu_env_now(c->env->layer.below).mono);
    }
}

/* Beginning and end. */

static void wire_open(struct mu_conn *wire)
{
    conn_of(wire)->wire_up = true;
    mu_tls_arm_handshake(conn_of(wire), DIALLED_MS);
    flush(conn_of(wire)); /* our hello */
}

static void free_conn(struct tls_conn *c)
{
    mu_env_timer_arm(c->env->layer.below, &c->timer, MU_MONO_NEVER);
    mu_tls_leave_listener(c);
    mu_tls_fini(&c->tls);
    mu_buf_fini(&c->rest);
    c->env->live--;
    mu_free(c);
}

static void wire_closed(struct mu_conn *wire, int status)
{
    struct tls_conn *c = conn_of(wire);
    struct mu_tls_env *tls = c->env;
    struct mu_conn *conn = c->conn;
    int result = c->closing ? 0 : c->status != 0 ? c->status : status;
    struct mu_errmsg why = c->why;

    if (result == -ECONNRESET && c->dialled && c->wire_up && !c->tls.heard) {
        result = mu_err(&why, MUSTER_ENOTLS, "%s", muster_strerror(MUSTER_ENOTLS));
    }
    free_conn(c);
    if (conn == NULL) {
        return;
    }
    conn->impl = NULL;
    tls->why = &why;
    conn->on->closed(conn, result);
    tls->why = NULL;
}

static const struct mu_conn_events wire_events = {
    .open = wire_open,
    .data = wire_data,
    .eof = wire_eof,
    .writable = wire_writable,
    .closed = wire_closed,
};

struct tls_conn *mu_tls_conn_new(struct mu_tls_env *tls, const char *host)
{
    struct tls_conn *c = mu_calloc(1, sizeof(*c));

    if (c == NULL) {
        return NULL;
    }
    if (tls->begin != NULL) {
        tls->begin(tls->begin_context);
    }
    if (mu_tls_init(&c->tls, tls->context, host) != 0) {
        mu_tls_fini(&c->tls);
        mu_free(c);
        return NULL;
    }
    c->wire.on = &wire_events;
    c->env = tls;
    mu_list_init(&c->link);
    c->dialled = host != NULL;
    mu_timer_init(&c->timer, on_timer);
    mu_buf_init(&c->rest, MU_TLS_RECORD_MAX);
    tls->live++;
    return c;
}

static int env_dial(struct mu_env *env, struct mu_conn *conn, const struct mu_addr *addr)
{
    struct mu_tls_env *tls = tls_of(env);
    struct tls_conn *c =
        mu_tls_conn_new(tls, addr->kind == MU_ADDR_UNIX ? "localhost" : addr->host);
    int err;

    if (c == NULL) {
        return MUSTER_ENOMEM;
    }
    c->conn = conn;
    err = mu_env_dial(tls->layer.below, &c->wire, addr);
    if (err != 0) {
        free_conn(c);
        return err;
    }
    conn->env = env;
    conn->impl = c;
    return 0;
}

static void env_close(struct mu_env *env, struct mu_conn *conn, bool abort)
{
    struct tls_conn *c = conn->impl;
    bool first;

    (void)env;
    if (c == NULL) {
        return; /* it was closed already */
    }
    first = !c->closing;
    c->closing = true;
    mu_env_timer_arm(c->env->layer.below, &c->timer, MU_MONO_NEVER);
    if (abort) {
        mu_tls_close_wire(c, true);
        return;
    }
    if (!first || c->over) {
        return;
    }
    mu_tls_end(&c->tls);
    flush(c);
    if (!c->blocked) {
        mu_tls_close_wire(c, false);
        return;
    }
    mu_env_timer_arm(c->env->layer.below, &c->timer,
                     mu_mono_add_ms(mu_env_now(c->env->layer.below).mono, PATIENCE_MS));
}

static void env_peer(struct mu_env *env, const struct mu_conn *conn, char *buf, size_t cap)
{
    const struct tls_conn *c = conn->impl;

    mu_env_peer(tls_of(env)->layer.below, &c->wire, buf, cap);
}

static const char *env_why(struct mu_env *env)
{
    struct mu_tls_env *tls = tls_of(env);

    return tls->why == NULL ? "" : tls->why->text;
}

static const struct mu_env_ops tls_ops = {
    MU_ENV_LAYER_OPS,
    .dial = env_dial,
    .listen = mu_tls_env_listen,
    .unlisten = mu_tls_env_unlisten,
    .sendv = env_sendv,
    .resume = env_resume,
    .close = env_close,
    .peer = env_peer,
    .why = env_why,
};

int mu_tls_env_new(struct mu_env *env, const struct mu_tls_config *config, struct mu_tls_env **ret,
                   struct mu_errmsg *reterr_msg)
{
    struct mu_tls_env *tls = mu_calloc(1, sizeof(*tls));
    int err;

    if (tls == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    err = mu_tls_context_new(config, &tls->context, reterr_msg);
    if (err != 0) {
        mu_free(tls);
        return err;
    }
    tls->layer.env.ops = &tls_ops;
    tls->layer.below = env;
    *ret = tls;
    return 0;
}

void mu_tls_env_free(struct mu_tls_env *tls)
{
    if (tls != NULL) {
        MU_ASSERT(tls->live == 0);
        mu_tls_context_free(tls->context);
        mu_free(tls);
    }
}

struct mu_env *mu_tls_env_env(struct mu_tls_env *tls)
{
    return &tls->layer.env;
}

struct mu_tls_context *mu_tls_env_context(struct mu_tls_env *tls)
{
    return tls->context;
}

void mu_tls_env_on_begin(struct mu_tls_env *tls, void (*begin)(void *context), void *context)
{
    tls->begin = begin;
    tls->begin_context = context;
}

void mu_tls_env_on_shown(struct mu_tls_env *tls, void (*shown)(void *context, struct mu_conn *wire),
                         void *context)
{
    tls->shown = shown;
    tls->shown_context = context;
}

void mu_tls_env_on_refused(struct mu_tls_env *tls,
                           void (*refused)(void *context, const char *peer, const char *why),
                           void *context)
{
    tls->refused = refused;
    tls->to_whom = context;
}

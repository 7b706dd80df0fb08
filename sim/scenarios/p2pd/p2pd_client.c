/* A client of a daemon: calls peers, and handles their calls, until it is killed. */
#include <string.h>

#include <muster/error.h>

#include "codec/bin/uvarint.h"
#include "core/alloc.h"
#include "scenarios/p2pd/p2pd_world.h"

#define OUT_MAX (8u << 20)

uint8_t p2pd_byte(uint32_t number, uint32_t len, uint32_t at)
{
    return (uint8_t)(at * 7 + (at >> 9) + number * 31 + len);
}

bool p2pd_next_message(struct mu_buf *in, struct mu_span *ret, size_t *ret_used)
{
    struct mu_span all = mu_buf_span(in);
    uint64_t len;
    size_t head;

    if (mu_uvarint_get(all, &head, &len) != 0 || all.len - head < len) {
        return false;
    }
    *ret = mu_span(all.data + head, (size_t)len);
    *ret_used = head + (size_t)len;
    return true;
}

static void flush(struct p2pd_client_app *app)
{
    size_t taken;

    if (app->open && !app->blocked && app->out.len != 0) {
        size_t len = app->out.len;

        mu_env_send(app->env, &app->conn, mu_buf_span(&app->out), &taken);
        mu_buf_consume(&app->out, taken);
        app->blocked = taken < len;
    }
}

static void tell(struct p2pd_client_app *app, const struct mu_p2pd_call *call)
{
    mu_sim_spare_memory(true);
    if (mu_p2pd_call_encode(&app->out, call) != 0) {
        mu_sim_fail(app->state->world->sim, "a client has no room for what it says");
    }
    mu_sim_spare_memory(false);
    flush(app);
}

/* --- calling ---------------------------------------------------------------------------------- */

static struct p2pd_call_app *find_call(struct p2pd_client_app *app, struct mu_span id)
{
    for (size_t i = 0; i < P2PD_CALLS; i++) {
        if (app->calls[i].used &&
            mu_span_eq(mu_span(app->calls[i].id, sizeof(app->calls[i].id)), id)) {
            return &app->calls[i];
        }
    }
    return NULL;
}

static void make_call(struct p2pd_client_app *app, uint32_t to)
{
    struct p2pd_world *w = app->state->world;
    struct mu_prng *prng = mu_sim_prng(w->sim);
    struct p2pd_call_app *call = NULL;
    struct mu_p2pd_call m = {.kind = MU_P2PD_CALL_UNARY, .name = mu_span_str(P2PD_UNARY)};
    uint8_t *data;

    for (size_t i = 0; i < P2PD_CALLS && call == NULL; i++) {
        call = app->calls[i].used ? NULL : &app->calls[i];
    }
    if (call == NULL) {
        return;
    }
    *call = (struct p2pd_call_app){.used = true};
    mu_env_entropy(app->env, call->id, sizeof(call->id));
    call->len = (uint32_t)(mu_prng_chance(prng, 15000) ? 300000 + mu_prng_below(prng, 200000)
                                                       : mu_prng_below(prng, 600));
    call->ticket = once_begin(w->calls, app->state->number);
    app->call_count++;
    data = mu_sim_calloc(call->len + 1);
    for (uint32_t i = 0; i < call->len; i++) {
        data[i] = p2pd_byte(app->state->number, call->len, i);
    }
    m.id = mu_span(call->id, sizeof(call->id));
    m.peer = mu_peer_id_span(&w->daemons[to].identity.id);
    m.data = mu_span(data, call->len);
    if (!w->healed && mu_prng_chance(prng, 30000)) {
        m.name = mu_span_str("sim::Nobody.nothing");
    }
    tell(app, &m);
    mu_free(data);
}

static void cancel_one(struct p2pd_client_app *app)
{
    struct p2pd_call_app *call =
        &app->calls[mu_prng_below(mu_sim_prng(app->state->world->sim), P2PD_CALLS)];

    if (call->used && !call->canceled) {
        call->canceled = true;
        tell(app, &(struct mu_p2pd_call){.kind = MU_P2PD_CANCEL,
                                         .id = mu_span(call->id, sizeof(call->id))});
    }
}

static void take_answer(struct p2pd_client_app *app, const struct mu_p2pd_call *m)
{
    struct p2pd_world *w = app->state->world;
    struct p2pd_call_app *call = find_call(app, m->id);
    struct mu_span data;

    if (call == NULL) {
        if (m->kind == MU_P2PD_DAEMON_ERROR && m->id.data[0] == 1 && m->id.data[1] == 0) {
            /* The daemon had no memory for the handler: the client begins again. */
            mu_env_close(app->env, &app->conn, false);
        } else if (m->kind != MU_P2PD_NOTHING) {
            mu_sim_fail(w->sim, "client %u heard of a call that it has not made, or had an end",
                        app->state->number);
        }
        return;
    }
    if (m->kind == MU_P2PD_CALL_RESPONSE && mu_p2pd_body_decode(m->body, &data)) {
        for (uint32_t i = 0; i < data.len || i < call->len; i++) {
            if (data.len != call->len ||
                data.data[i] != p2pd_byte(app->state->number, call->len, i)) {
                mu_sim_fail(w->sim, "client %u was answered with what it had not said",
                            app->state->number);
                return;
            }
        }
        app->state->answered++;
    } else if (m->kind == MU_P2PD_CANCEL && !call->canceled) {
        mu_sim_fail(w->sim, "client %u: a call was canceled that nobody canceled",
                    app->state->number);
    }
    if (mu_sim_tracing(w->sim)) {
        mu_sim_note(w->sim, app->state->proc, "call ended: kind %d %.*s", (int)m->kind,
                    (int)(m->data.len < 80 ? m->data.len : 80), (const char *)m->data.data);
    }
    call->used = false;
    once_end(w->calls, call->ticket);
}

/* --- handling --------------------------------------------------------------------------------- */

static void take_request(struct p2pd_client_app *app, const struct mu_p2pd_call *m)
{
    struct mu_prng *prng = mu_sim_prng(app->state->world->sim);

    for (size_t i = 0; i < P2PD_REQUESTS; i++) {
        struct p2pd_request_app *r = &app->requests[i];

        if (!r->used) {
            r->used = true;
            memcpy(r->id, m->id.data, sizeof(r->id));
            r->at = mu_mono_add_ms(mu_env_now(app->env).mono,
                                   mu_prng_chance(prng, 700000) ? 0 : mu_prng_below(prng, 3000));
            mu_buf_init(&r->data, OUT_MAX);
            mu_sim_spare_memory(true);
            if (mu_buf_append(&r->data, m->data) != 0) {
                r->used = false;
            }
            mu_sim_spare_memory(false);
            return;
        }
    }
}

static void drop_request(struct p2pd_client_app *app, struct mu_span id)
{
    for (size_t i = 0; i < P2PD_REQUESTS; i++) {
        struct p2pd_request_app *r = &app->requests[i];

        if (r->used && (id.len == 0 || mu_span_eq(mu_span(r->id, sizeof(r->id)), id))) {
            r->used = false;
            mu_buf_fini(&r->data);
        }
    }
}

static void answer_requests(struct p2pd_client_app *app)
{
    struct mu_prng *prng = mu_sim_prng(app->state->world->sim);

    for (size_t i = 0; i < P2PD_REQUESTS; i++) {
        struct p2pd_request_app *r = &app->requests[i];
        struct mu_p2pd_call m = {.kind = MU_P2PD_UNARY_RESPONSE};
        struct mu_buf body;

        if (!r->used || !mu_mono_reached(r->at, mu_env_now(app->env).mono)) {
            continue;
        }
        mu_buf_init(&body, OUT_MAX);
        mu_sim_spare_memory(true);
        if (mu_p2pd_body_encode(&body, mu_prng_chance(prng, 50000), mu_buf_span(&r->data)) == 0) {
            m.id = mu_span(r->id, sizeof(r->id));
            m.body = mu_buf_span(&body);
            tell(app, &m);
        }
        mu_sim_spare_memory(false);
        mu_buf_fini(&body);
        r->used = false;
        mu_buf_fini(&r->data);
    }
}

/* --- the connection --------------------------------------------------------------------------- */

static void on_upgraded(struct p2pd_client_app *app)
{
    struct mu_p2pd_call m = {
        .kind = MU_P2PD_ADD_UNARY, .name = mu_span_str(P2PD_UNARY), .balanced = true};
    uint8_t id[MU_P2PD_CALL_ID_LEN] = {1};

    app->upgraded = true;
    m.id = mu_span(id, sizeof(id));
    tell(app, &m);
}

static void take_message(struct p2pd_client_app *app, struct mu_span message)
{
    struct p2pd_world *w = app->state->world;
    struct mu_p2pd_response r;
    struct mu_p2pd_call m;

    if (!app->upgraded) {
        if (mu_p2pd_response_decode(message, &r) != 0 || !r.ok) {
            mu_sim_fail(w->sim, "a client was refused");
        }
        on_upgraded(app);
    } else if (mu_p2pd_answer_decode(message, &m) != 0) {
        mu_sim_fail(w->sim, "a client cannot read what a daemon says");
    } else if (m.kind == MU_P2PD_REQUEST) {
        take_request(app, &m);
    } else if (m.kind == MU_P2PD_CANCEL && find_call(app, m.id) == NULL) {
        drop_request(app, m.id);
    } else {
        take_answer(app, &m);
    }
}

static void on_open(struct mu_conn *conn)
{
    struct p2pd_client_app *app = MU_CONTAINER_OF(conn, struct p2pd_client_app, conn);

    app->open = true;
    mu_sim_spare_memory(true);
    if (mu_p2pd_request_encode(&app->out, &(struct mu_p2pd_request){.type = MU_P2PD_UPGRADE},
                               (struct mu_span){0}) != 0) {
        mu_sim_fail(app->state->world->sim, "a client has no room for what it says");
    }
    mu_sim_spare_memory(false);
    flush(app);
}

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    struct p2pd_client_app *app = MU_CONTAINER_OF(conn, struct p2pd_client_app, conn);
    struct mu_span message;
    size_t used;

    mu_sim_spare_memory(true);
    if (mu_buf_append(&app->in, in) != 0) {
        mu_sim_fail(app->state->world->sim, "a client has no room for what it hears");
    }
    mu_sim_spare_memory(false);
    while (p2pd_next_message(&app->in, &message, &used)) {
        take_message(app, message);
        mu_buf_consume(&app->in, used);
    }
    answer_requests(app);
    return in.len;
}

static void on_eof(struct mu_conn *conn)
{
    struct p2pd_client_app *app = MU_CONTAINER_OF(conn, struct p2pd_client_app, conn);

    mu_env_close(app->env, conn, false);
}

static void on_writable(struct mu_conn *conn)
{
    struct p2pd_client_app *app = MU_CONTAINER_OF(conn, struct p2pd_client_app, conn);

    app->blocked = false;
    flush(app);
}

/* Its calls are lost with the connection. */
static void on_closed(struct mu_conn *conn, int status)
{
    struct p2pd_client_app *app = MU_CONTAINER_OF(conn, struct p2pd_client_app, conn);

    (void)status;
    for (size_t i = 0; i < P2PD_CALLS; i++) {
        if (app->calls[i].used) {
            app->calls[i].used = false;
            once_end(app->state->world->calls, app->calls[i].ticket);
        }
    }
    drop_request(app, (struct mu_span){0});
    mu_buf_fini(&app->in);
    mu_buf_fini(&app->out);
    app->dialled = app->open = app->upgraded = app->blocked = false;
    p2pd_client_check_left(app);
}

static const struct mu_conn_events client_events = {
    .open = on_open,
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .closed = on_closed,
};

static void dial(struct p2pd_client_app *app)
{
    struct mu_addr addr = {.kind = MU_ADDR_UNIX, .host = P2PD_CONTROL};

    app->conn.on = &client_events;
    app->dialled = mu_env_dial(app->env, &app->conn, &addr) == 0;
}

/* --- the process ------------------------------------------------------------------------------ */

void p2pd_client_check_left(struct p2pd_client_app *app)
{
    if (app->leaving && !app->exited && !app->dialled && p2pd_streams_left(app)) {
        app->exited = true;
        mu_env_timer_arm(app->env, &app->timer, MU_MONO_NEVER);
        mu_sim_exit(app->env);
        mu_free(app);
    }
}

static void leave(struct p2pd_client_app *app)
{
    app->leaving = true;
    if (app->dialled) {
        mu_env_close(app->env, &app->conn, false);
    }
    p2pd_streams_leave(app);
    p2pd_client_check_left(app);
}

/* Before the healing, the client calls any peer in any way; then it makes the calls that must
 * succeed, until they have. */
static void act(struct p2pd_client_app *app)
{
    struct p2pd_world *w = app->state->world;
    struct mu_prng *prng = mu_sim_prng(w->sim);
    uint32_t me = app->state->number;
    uint32_t to = (app->state->daemon + 1 + (uint32_t)mu_prng_below(prng, 2) * 3) % P2PD_DAEMONS;

    if (w->healed) {
        if (app->upgraded && app->state->answered < w->wanted_answers[me]) {
            make_call(app, to);
        }
        if (app->state->echoed < w->wanted_echoes[me]) {
            p2pd_stream_open(app, to);
        }
        return;
    }
    if (app->upgraded && app->call_count < 8) {
        make_call(app, to);
        if (mu_prng_chance(prng, 300000)) {
            make_call(app, to);
        }
        if (mu_prng_chance(prng, 200000)) {
            cancel_one(app);
        }
    }
    if (mu_prng_chance(prng, 150000)) {
        p2pd_stream_open(app, to);
    }
    if (app->open && mu_prng_chance(prng, 40000)) {
        mu_env_close(app->env, &app->conn, mu_prng_chance(prng, 500000));
    }
}

static void on_timer(struct mu_timer *timer)
{
    struct p2pd_client_app *app = MU_CONTAINER_OF(timer, struct p2pd_client_app, timer);
    struct p2pd_world *w = app->state->world;

    if (w->leaving) {
        leave(app);
        return;
    }
    mu_env_timer_arm(
        app->env, &app->timer,
        mu_mono_add_ms(mu_env_now(app->env).mono,
                       w->healed ? 1000 : 50 + mu_prng_below(mu_sim_prng(w->sim), 900)));
    if (!app->dialled) {
        dial(app);
    }
    p2pd_streams_listen(app);
    answer_requests(app);
    act(app);
}

int p2pd_client_start(struct mu_env *env, void *arg)
{
    struct p2pd_client_state *state = arg;
    struct p2pd_client_app *app = mu_sim_calloc(sizeof(*app));

    app->state = state;
    app->env = env;
    mu_buf_init(&app->in, OUT_MAX);
    mu_buf_init(&app->out, OUT_MAX);
    mu_timer_init(&app->timer, on_timer);
    mu_env_timer_arm(env, &app->timer, mu_env_now(env).mono);
    return 0;
}

void p2pd_client_killed(void *arg)
{
    struct p2pd_client_state *state = arg;

    once_forgive(state->world->calls, state->number);
    once_forgive(state->world->streams, state->number);
}

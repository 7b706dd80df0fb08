#include "battery_peer.h"

#include <string.h>

struct env_under_test *battery_eut;
const char *battery_broken;
int battery_in_verb;

void battery_expect(bool held, const char *rule)
{
    if (!held && battery_broken == NULL) {
        battery_broken = rule;
    }
}

/* Running. */

struct waiting {
    bool (*done)(void *context);
    void *context;
};

static bool done_or_broken(void *context)
{
    struct waiting *w = context;

    return battery_broken != NULL || w->done(w->context);
}

void battery_run_until(bool (*done)(void *context), void *context)
{
    struct waiting w = {done, context};
    bool came = battery_eut->run_until(battery_eut, done_or_broken, &w);

    if (battery_broken != NULL) {
        fail_msg("broken: %s", battery_broken);
    }
    if (!came) {
        battery_broken = "what the test waits for comes";
        fail_msg("what the test waits for did not come");
    }
}

static bool is_set(void *context)
{
    return *(const bool *)context;
}

void battery_run_until_set(const bool *flag)
{
    battery_run_until(is_set, (void *)(uintptr_t)flag);
}

struct counting {
    const size_t *count;
    size_t at_least;
};

static bool is_counted(void *context)
{
    struct counting *c = context;

    return *c->count >= c->at_least;
}

void battery_run_until_count(const size_t *count, size_t at_least)
{
    struct counting c = {count, at_least};

    battery_run_until(is_counted, &c);
}

struct alarm {
    struct mu_timer timer;
    bool rang;
};

static void ring(struct mu_timer *timer)
{
    MU_CONTAINER_OF(timer, struct alarm, timer)->rang = true;
}

void battery_run_for_ms(uint64_t ms)
{
    struct mu_env *env = battery_eut->env;
    struct alarm alarm = {0};

    mu_timer_init(&alarm.timer, ring);
    mu_env_timer_arm(env, &alarm.timer, mu_mono_add_ms(mu_env_now(env).mono, ms));
    battery_run_until_set(&alarm.rang);
}

/* Peers. */

static uint8_t pattern(size_t i)
{
    return (uint8_t)(i * 131 + (i >> 8) * 17 + (i >> 16) * 5);
}

static struct peer *peer_of(struct mu_conn *conn)
{
    EXPECT(battery_in_verb == 0);
    EXPECT(conn->env == battery_eut->env || battery_eut->passes_on);
    return MU_CONTAINER_OF(conn, struct peer, conn);
}

/* Spans of 0, 1, 2, 4, ... bytes over a chunk; more of them than are looked at. */
static size_t cut_chunk(const uint8_t *chunk, size_t len, struct mu_span *spans, size_t cap)
{
    size_t count = 0;
    size_t at = 0;

    while (at < len && count < cap - 1) {
        size_t n = count % 9 == 0 ? 0 : (size_t)1 << count % 9;

        n = n < len - at ? n : len - at;
        spans[count++] = mu_span(n == 0 ? NULL : chunk + at, n);
        at += n;
    }
    spans[count++] = mu_span(chunk + at, len - at);
    return count;
}

static void send_chunk(struct peer *p, const uint8_t *chunk, size_t n, size_t *taken)
{
    struct mu_span spans[2 * MU_ENV_SPANS_MAX];
    size_t count;

    if (!p->in_spans) {
        VERB(mu_env_send(battery_eut->env, &p->conn, mu_span(chunk, n), taken));
        return;
    }
    count = cut_chunk(chunk, n, spans, 2 * MU_ENV_SPANS_MAX);
    VERB(mu_env_sendv(battery_eut->env, &p->conn, spans, count, taken));
}

void peer_push(struct peer *p)
{
    uint8_t chunk[16384];

    while (p->sent < p->send_total && !p->want_writable) {
        size_t n = p->send_total - p->sent;
        size_t taken = SIZE_MAX;

        n = n < sizeof(chunk) ? n : sizeof(chunk);
        for (size_t i = 0; i < n; i++) {
            chunk[i] = pattern(p->sent + i);
        }
        send_chunk(p, chunk, n, &taken);
        EXPECT(taken <= n);
        memset(chunk, 0xee, n); /* it was borrowed for the call only */
        p->sent += taken;
        if (taken < n) {
            p->short_takes++;
            p->want_writable = true;
        }
    }
}

static void push_held(struct peer *p)
{
    size_t taken = SIZE_MAX;

    if (p->held_len == 0 || p->want_writable) {
        return;
    }
    VERB(mu_env_send(battery_eut->env, &p->conn, mu_span(p->held, p->held_len), &taken));
    EXPECT(taken <= p->held_len);
    p->held_len -= taken;
    memmove(p->held, p->held + taken, p->held_len);
    p->want_writable = p->held_len != 0;
}

static void on_open(struct mu_conn *conn)
{
    struct peer *p = peer_of(conn);

    EXPECT(!p->opened && !p->closed);
    p->opened = true;
    if (p->on_open != NULL) {
        p->on_open(p);
    } else {
        peer_push(p);
    }
}

static size_t on_data(struct mu_conn *conn, struct mu_span in)
{
    struct peer *p = peer_of(conn);
    size_t use = in.len;

    EXPECT(p->opened && !p->eof && !p->closed);
    EXPECT(in.len != 0);
    p->deliveries++;
    p->last_delivery = in.len;
    if (p->room != NULL && in.data == p->room + p->received) {
        EXPECT(in.len <= p->room_len - p->received % p->room_len);
        p->in_room += in.len;
    }
    if (p->use_max != 0 && use > p->use_max) {
        use = p->use_max;
    }
    if (p->echo) {
        size_t room = sizeof(p->held) - p->held_len;

        use = use < room ? use : room;
        memcpy(p->held + p->held_len, in.data, use);
        p->held_len += use;
    }
    for (size_t i = 0; i < use && !p->no_check; i++) {
        EXPECT(in.data[i] == pattern(p->received + i));
    }
    p->received += use;
    if (p->on_data != NULL) {
        p->on_data(p);
    }
    if (p->echo) {
        push_held(p);
        if (use < in.len && !p->want_writable) {
            /* Nothing else would wake us; from within `data` this must work as well. */
            peer_resume(p);
        }
    }
    /* Still lent, even if the connection was closed meanwhile. */
    EXPECT(p->no_check || in.data[use - (use != 0)] == pattern(p->received - (use != 0)));
    return use;
}

/* Where the next bytes are to lie: up to the end of the piece that they are in. */
static struct mu_space on_room(struct mu_conn *conn)
{
    struct peer *p = peer_of(conn);

    EXPECT(p->opened && !p->eof && !p->closed);
    if (p->room == NULL) {
        return (struct mu_space){0};
    }
    return (struct mu_space){p->room + p->received, p->room_len - p->received % p->room_len};
}

static void on_eof(struct mu_conn *conn)
{
    struct peer *p = peer_of(conn);

    EXPECT(p->opened && !p->eof && !p->closed);
    p->eof = true;
    if (p->on_eof != NULL) {
        p->on_eof(p);
    }
    if (p->close_on_eof) {
        peer_close(p, false);
    }
}

static void on_hung_up(struct mu_conn *conn)
{
    struct peer *p = peer_of(conn);

    EXPECT(p->eof && !p->hung_up && !p->close_on_eof && !p->closed);
    p->hung_up = true;
}

static void on_writable(struct mu_conn *conn)
{
    struct peer *p = peer_of(conn);

    EXPECT(p->opened && p->want_writable && !p->closed);
    p->writables++;
    p->want_writable = false;
    if (p->on_writable != NULL) {
        p->on_writable(p);
    } else if (p->echo) {
        push_held(p);
        if (!p->want_writable) {
            peer_resume(p);
        }
    } else {
        peer_push(p);
    }
}

static void on_closed(struct mu_conn *conn, int status)
{
    struct peer *p = peer_of(conn);

    EXPECT(p->closed_count == 0 && status <= 0);
    p->closed = true;
    p->closed_count++;
    p->status = status;
    if (p->on_closed != NULL) {
        p->on_closed(p);
    }
}

static const struct mu_conn_events peer_events = {
    .open = on_open,
    .data = on_data,
    .room = on_room,
    .eof = on_eof,
    .hung_up = on_hung_up,
    .writable = on_writable,
    .closed = on_closed,
};

void peer_init(struct peer *p)
{
    *p = (struct peer){.conn.on = &peer_events};
}

void peer_close(struct peer *p, bool abort)
{
    VERB(mu_env_close(battery_eut->env, &p->conn, abort));
}

void peer_resume(struct peer *p)
{
    VERB(mu_env_resume(battery_eut->env, &p->conn));
}

/* Hubs. */

static struct mu_conn *hub_accept(struct mu_listener *listener)
{
    struct hub *h = MU_CONTAINER_OF(listener, struct hub, listener);

    EXPECT(battery_in_verb == 0 && !h->closed);
    if (h->accepted == h->room) {
        return NULL;
    }
    h->peers[h->accepted].opened = true;
    return &h->peers[h->accepted++].conn;
}

static void hub_closed(struct mu_listener *listener)
{
    struct hub *h = MU_CONTAINER_OF(listener, struct hub, listener);

    EXPECT(battery_in_verb == 0 && !h->closed);
    h->closed = true;
}

void hub_open(struct hub *h, struct peer *peers, size_t room)
{
    int rc;

    *h = (struct hub){
        .listener = {.accept = hub_accept, .closed = hub_closed}, .peers = peers, .room = room};
    battery_eut->listen_addr(battery_eut, &h->addr);
    VERB(rc = mu_env_listen(battery_eut->env, &h->listener, &h->addr));
    assert_int_equal(rc, 0);
    battery_eut->dial_addr(battery_eut, &h->addr, &h->dial);
}

void hub_close(struct hub *h)
{
    VERB(mu_env_unlisten(battery_eut->env, &h->listener));
    battery_run_until_set(&h->closed);
}

void hub_dial(struct hub *h, struct peer *p)
{
    int rc;

    VERB(rc = mu_env_dial(battery_eut->env, &p->conn, &h->dial));
    assert_int_equal(rc, 0);
}

/* Pairs. */

void pair_init(struct pair *pair)
{
    peer_init(&pair->a);
    peer_init(&pair->b);
}

static bool is_connected(void *context)
{
    struct pair *pair = context;

    return pair->a.opened && pair->b.opened;
}

void pair_connect(struct pair *pair)
{
    hub_open(&pair->hub, &pair->b, 1);
    hub_dial(&pair->hub, &pair->a);
    battery_run_until(is_connected, pair);
}

void pair_end(struct pair *pair)
{
    if (!pair->a.closed) {
        peer_close(&pair->a, false);
        battery_run_until_set(&pair->a.closed);
    }
    if (!pair->b.closed) {
        peer_close(&pair->b, false);
        battery_run_until_set(&pair->b.closed);
    }
    hub_close(&pair->hub);
    assert_int_equal(pair->a.closed_count, 1);
    assert_int_equal(pair->b.closed_count, 1);
}

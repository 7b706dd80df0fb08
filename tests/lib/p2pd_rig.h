/*
 * Users and peers around the calls of a p2p daemon (proto/p2pd/calls.h): what a driver does,
 * without sockets and streams. Each action is told to `acted`, each message that a user reads to
 * `heard`.
 */
#ifndef MU_P2PD_RIG_H
#define MU_P2PD_RIG_H

#include <string.h>

#include <muster/error.h>

#include "codec/bin/uvarint.h"
#include "core/assert.h"
#include "core/list.h"
#include "proto/p2pd/calls.h"

#define RIG_USERS   4
#define RIG_STREAMS 16
#define RIG_TAKEN   "taken" /* a protocol that the host serves itself */

struct rig_stream {
    struct mu_p2pd_unary unary;
    bool used;     /* the machine has the memory */
    bool open;     /* there is a stream */
    bool ended;    /* on our side */
    size_t takes;  /* how much more of what is written it takes */
    size_t window; /* how much the peer may send */
    struct mu_buf sent;
    char name[64];
};

struct rig_user {
    struct mu_p2pd_user user;
    struct mu_p2pd_conn conn;
    bool here;
    bool deaf; /* it reads nothing */
};

struct rig {
    struct mu_p2pd_calls calls;
    struct rig_user users[RIG_USERS];
    struct rig_stream streams[RIG_STREAMS];
    struct mu_buf scratch;
    mu_mono_t now;
    size_t takes;   /* of each new stream */
    size_t out_max; /* bytes that may wait to be read by one user */
    void (*acted)(struct rig *r, const struct mu_p2pd_action *a, size_t n);
    void (*heard)(struct rig *r, struct rig_user *u, const struct mu_p2pd_call *m);
};

static inline struct mu_peer_id rig_peer(uint8_t fill)
{
    struct mu_peer_id id = {.len = 38, .bytes = {0, 0x24, 8, 1, 0x12, 0x20}};

    memset(id.bytes + 6, fill, 32);
    return id;
}

static inline void rig_init(struct rig *r, const struct mu_p2pd_calls_config *config)
{
    memset(r, 0, sizeof(*r));
    r->now = (mu_mono_t){1};
    r->takes = SIZE_MAX;
    r->out_max = 4u << 20;
    mu_buf_init(&r->scratch, 1u << 22);
    mu_p2pd_calls_init(&r->calls, config);
}

static inline struct rig_stream *rig_stream_of(const struct mu_p2pd_unary *call)
{
    return MU_CONTAINER_OF(call, struct rig_stream, unary);
}

static inline struct rig_user *rig_user_of(const struct mu_p2pd_user *user)
{
    return MU_CONTAINER_OF(user, struct rig_user, user);
}

/* --- actions ---------------------------------------------------------------------------------- */

static inline void rig_read(struct rig *r, struct rig_user *u)
{
    struct mu_span out = mu_p2pd_conn_output(&u->conn);
    size_t sent = out.len;

    while (out.len != 0) {
        struct mu_p2pd_call m;
        size_t head;
        uint64_t len;

        MU_ASSERT(mu_uvarint_get(out, &head, &len) == 0 && len <= out.len - head);
        MU_ASSERT(mu_p2pd_answer_decode(mu_span(out.data + head, (size_t)len), &m) == 0);
        r->heard(r, u, &m);
        out = mu_span_skip(out, head + (size_t)len);
    }
    mu_p2pd_conn_sent(&u->conn, sent);
    mu_p2pd_user_sent(&u->user);
}

static inline void rig_leave(struct rig_user *u)
{
    u->here = false;
    mu_p2pd_user_leave(&u->user);
    mu_p2pd_user_fini(&u->user);
    mu_p2pd_conn_fini(&u->conn);
}

static inline size_t rig_write(struct rig_stream *s, struct mu_span bytes)
{
    size_t n = bytes.len < s->takes ? bytes.len : s->takes;

    MU_ASSERT(s->open && !s->ended && bytes.len != 0);
    s->takes -= s->takes == SIZE_MAX ? 0 : n;
    return mu_buf_append(&s->sent, mu_span(bytes.data, n)) == 0 ? n : 0;
}

static inline size_t rig_act(const struct mu_p2pd_action *a)
{
    struct rig_stream *s = a->call == NULL ? NULL : rig_stream_of(a->call);
    struct rig_user *u = a->user == NULL ? NULL : rig_user_of(a->user);
    size_t n = 0;

    MU_ASSERT(s == NULL || s->used);
    MU_ASSERT(u == NULL || u->here);
    switch (a->type) {
    case MU_P2PD_ACTION_OPEN:
        MU_ASSERT(!s->open);
        s->open = true;
        break;
    case MU_P2PD_ACTION_CONSUMED:
        MU_ASSERT(s->open && a->len != 0);
        s->window += a->len;
        break;
    case MU_P2PD_ACTION_WRITE:
        n = rig_write(s, a->bytes);
        mu_p2pd_unary_written(a->call, n);
        break;
    case MU_P2PD_ACTION_END:
        MU_ASSERT(s->open && !s->ended);
        s->ended = true;
        break;
    case MU_P2PD_ACTION_RESET:
        MU_ASSERT(s->open);
        s->open = false;
        break;
    case MU_P2PD_ACTION_OVER:
        MU_ASSERT(!s->open && s->unary.state == MU_P2PD_UNARY_OVER);
        s->used = false;
        mu_buf_fini(&s->sent);
        break;
    case MU_P2PD_ACTION_SEND:
    case MU_P2PD_ACTION_RESUME:
    case MU_P2PD_ACTION_UNSERVE:
    case MU_P2PD_ACTION_CLOSE:
        break;
    }
    return n;
}

static inline void rig_pump(struct rig *r)
{
    struct mu_p2pd_action a;

    while (mu_p2pd_calls_next(&r->calls, r->now, &a)) {
        size_t n = rig_act(&a);

        r->acted(r, &a, n);
        if (a.type == MU_P2PD_ACTION_SEND && !rig_user_of(a.user)->deaf) {
            rig_read(r, rig_user_of(a.user));
        } else if (a.type == MU_P2PD_ACTION_CLOSE) {
            rig_leave(rig_user_of(a.user));
        } else if (a.type == MU_P2PD_ACTION_UNSERVE) {
            mu_p2pd_name_free(a.name);
        }
    }
}

/* --- events ----------------------------------------------------------------------------------- */

static inline struct rig_stream *rig_new_stream(struct rig *r, struct mu_span name)
{
    for (size_t i = 0; i < RIG_STREAMS; i++) {
        struct rig_stream *s = &r->streams[i];

        if (!s->used && name.len <= sizeof(s->name)) {
            memset(s, 0, sizeof(*s));
            mu_buf_init(&s->sent, 1u << 22);
            s->takes = r->takes;
            s->window = r->calls.config.free_bytes;
            if (name.len != 0) {
                memcpy(s->name, name.data, name.len);
            }
            return s;
        }
    }
    return NULL;
}

/* NULL: it was refused. */
static inline struct rig_stream *rig_open(struct rig *r, const struct mu_peer_id *peer,
                                          struct mu_span name)
{
    struct rig_stream *s = rig_new_stream(r, name);

    if (s == NULL ||
        !mu_p2pd_unary_opened(&r->calls, &s->unary, r->now, peer, mu_span(s->name, name.len))) {
        return NULL;
    }
    s->used = true;
    s->open = true;
    return s;
}

static inline void rig_join(struct rig *r, struct rig_user *u)
{
    struct mu_p2pd_conn_config config = {.msg_len_max = r->calls.config.msg_len_max,
                                         .out_len_max = r->out_max};
    static const uint8_t upgrade[] = {2, 8, 9};
    struct mu_p2pd_event e;
    size_t used;

    mu_p2pd_conn_init(&u->conn, &config);
    if (mu_p2pd_conn_recv(&u->conn, mu_span(upgrade, sizeof(upgrade)), &used) != 0 ||
        !mu_p2pd_conn_next_event(&u->conn, &e) || mu_p2pd_conn_reply_upgrade(&u->conn) != 0) {
        mu_p2pd_conn_fini(&u->conn);
        return;
    }
    mu_p2pd_conn_sent(&u->conn, u->conn.out.len);
    u->here = true;
    u->deaf = false;
    mu_p2pd_user_init(&r->calls, &u->user, &u->conn);
}

static inline int rig_add(struct rig *r, struct mu_span name, struct rig_user *u,
                          struct mu_span addr, bool balanced, struct mu_errmsg *msg)
{
    struct mu_p2pd_name *n;
    int err = mu_p2pd_names_add(&r->calls.names, name, u == NULL ? NULL : &u->user, addr, balanced,
                                &n, msg);

    if (err == 0 && n->owner == NULL && mu_span_eq(name, MU_SPAN_LIT(RIG_TAKEN))) {
        return mu_p2pd_names_refuse(n, MUSTER_EEXIST, msg);
    }
    if (err == 0) {
        n->owner = r;
    }
    return err;
}

/* The user says something. Returns the stream of a call that begins. */
static inline struct rig_stream *rig_say(struct rig *r, struct rig_user *u,
                                         const struct mu_p2pd_call *say)
{
    struct rig_stream *s = NULL;
    struct mu_p2pd_event e;
    struct mu_errmsg msg;
    struct mu_span in;
    size_t used;
    int err;

    mu_buf_reset(&r->scratch);
    if (mu_p2pd_call_encode(&r->scratch, say) != 0) {
        return NULL;
    }
    for (in = mu_buf_span(&r->scratch); in.len != 0; in = mu_span_skip(in, used)) {
        if (mu_p2pd_conn_recv(&u->conn, in, &used) != 0) {
            rig_leave(u);
            return NULL;
        }
    }
    if (!mu_p2pd_conn_next_event(&u->conn, &e)) {
        return NULL;
    }
    if (e.call.kind == MU_P2PD_CALL_UNARY) {
        s = rig_new_stream(r, e.call.name);
        if (mu_p2pd_user_call(&u->user, s == NULL ? NULL : &s->unary,
                              s == NULL ? e.call.name : mu_span(s->name, e.call.name.len), &e.call,
                              e.message)) {
            s->used = true;
        } else {
            s = NULL;
        }
    } else if (e.call.kind == MU_P2PD_ADD_UNARY) {
        err = rig_add(r, e.call.name, u, (struct mu_span){0}, e.call.balanced, &msg);
        mu_p2pd_user_answer(&u->user, e.call.id, err == 0 ? NULL : msg.text);
    } else if (e.call.kind == MU_P2PD_REMOVE_UNARY) {
        err =
            mu_p2pd_names_remove(&r->calls.names, e.call.name, &u->user, (struct mu_span){0}, &msg);
        mu_p2pd_user_answer(&u->user, e.call.id, err == 0 ? NULL : msg.text);
    } else {
        mu_p2pd_user_said(&u->user, &e.call, e.message);
    }
    return s;
}

/* The peer says bytes, within its window. Returns how many it could. */
static inline size_t rig_peer_says(struct rig_stream *s, struct mu_span bytes)
{
    size_t n = bytes.len < s->window ? bytes.len : s->window;

    s->window -= n;
    mu_p2pd_unary_heard(&s->unary, mu_span(bytes.data, n));
    return n;
}

static inline void rig_stream_gone(struct rig_stream *s, int status, const char *text)
{
    s->open = false;
    mu_p2pd_unary_ended(&s->unary, status, text);
}

/* Everybody leaves, and nothing is left. */
static inline void rig_fini(struct rig *r)
{
    for (size_t i = 0; i < RIG_USERS; i++) {
        if (r->users[i].here) {
            rig_leave(&r->users[i]);
        }
    }
    mu_p2pd_calls_clear(&r->calls);
    rig_pump(r);
    for (size_t i = 0; i < RIG_STREAMS; i++) {
        MU_ASSERT(!r->streams[i].used);
    }
    MU_ASSERT(r->calls.stats.unary + r->calls.stats.calls + r->calls.stats.served +
                  r->calls.stats.held_bytes ==
              0);
    MU_ASSERT(r->calls.names.unary_count + r->calls.names.addr_count == 0);
    MU_ASSERT(mu_p2pd_calls_deadline(&r->calls).ns == MU_MONO_NEVER.ns);
    mu_p2pd_calls_fini(&r->calls);
    mu_buf_fini(&r->scratch);
}

#endif

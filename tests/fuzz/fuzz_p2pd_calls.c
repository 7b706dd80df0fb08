/*
 * The calls of a p2p daemon under events in any order, made of the input: users that call, answer,
 * cancel, handle protocols, read or do not read and are gone; peers that open streams, say whole
 * messages or pieces or nonsense, take what is written or do not, end and reset; time.
 *
 * Every call of a user that stays gets one answer, every change of a handler too; a user that was
 * asked hears cancel only before it has answered; a peer hears no more than one whole answer with
 * its own id; memory is counted right and stays within its limits; in the end nothing is left.
 */
#include "core/reader.h"
#include "p2pd_rig.h"

#define MSG_MAX 3000
#define IDS     64 /* of calls of users; as many above them are of peers, and then of handlers */

struct model {
    uint32_t open[RIG_USERS][4 * IDS]; /* said or asked, and not answered */
    struct mu_buf said[RIG_STREAMS];   /* by the peer, in order */
};

static struct rig rig;
static struct model model;
static const uint8_t zeroes[MSG_MAX + 100];

static size_t index_of(const struct rig_user *u)
{
    return (size_t)(u - rig.users);
}

/* The user is another one from now on. */
static void forget(size_t user)
{
    memset(model.open[user], 0, sizeof(model.open[user]));
}

static void on_heard(struct rig *r, struct rig_user *u, const struct mu_p2pd_call *m)
{
    uint32_t *open = &model.open[index_of(u)][m->id.data[0]];

    (void)r;
    MU_ASSERT(u->here);
    if (m->kind == MU_P2PD_REQUEST) {
        MU_ASSERT(m->id.data[0] >= IDS && m->id.data[0] < 2 * IDS && *open == 0);
        *open = 1;
    } else {
        MU_ASSERT(*open != 0);
        --*open;
        MU_ASSERT((m->id.data[0] < IDS && m->kind != MU_P2PD_NOTHING) ||
                  (m->id.data[0] < 2 * IDS && m->kind == MU_P2PD_CANCEL) ||
                  (m->id.data[0] >= 2 * IDS &&
                   (m->kind == MU_P2PD_NOTHING || m->kind == MU_P2PD_DAEMON_ERROR)));
    }
}

/* The first message of them; returns how long it is, or 0 if it cannot be read. */
static size_t decode(struct mu_span in, struct mu_p2pd_call *ret)
{
    uint64_t len;
    size_t head;

    MU_ASSERT(mu_uvarint_get(in, &head, &len) == 0 && in.len >= head + len);
    *ret = (struct mu_p2pd_call){0};
    (void)mu_p2pd_call_decode(mu_span(in.data + head, (size_t)len), ret);
    return head + (size_t)len;
}

/* What went to a peer as the answer to its call: one message, with the peer's own id. */
static void check_answer(const struct rig_stream *s)
{
    struct mu_span said = mu_buf_span(&model.said[s - rig.streams]);
    struct mu_p2pd_call asked;
    struct mu_p2pd_call answer;

    MU_ASSERT(decode(mu_buf_span(&s->sent), s->unary.ours ? &asked : &answer) == s->sent.len);
    MU_ASSERT(decode(said, s->unary.ours ? &answer : &asked) != 0);
    MU_ASSERT(asked.kind == MU_P2PD_CALL_UNARY);
    MU_ASSERT(s->unary.ours ||
              (answer.kind == MU_P2PD_UNARY_RESPONSE && mu_span_eq(asked.id, answer.id)));
}

static void on_acted(struct rig *r, const struct mu_p2pd_action *a, size_t n)
{
    (void)n;
    if (a->type == MU_P2PD_ACTION_END) {
        check_answer(rig_stream_of(a->call));
    } else if (a->type == MU_P2PD_ACTION_OVER) {
        mu_buf_fini(&model.said[rig_stream_of(a->call) - rig.streams]);
    } else if (a->type == MU_P2PD_ACTION_CLOSE) {
        forget(index_of(rig_user_of(a->user)));
    } else if (a->type == MU_P2PD_ACTION_UNSERVE) {
        MU_ASSERT(a->name->owner == NULL || a->name->owner == r);
    }
}

/* --- what must hold between events ------------------------------------------------------------ */

static void check(void)
{
    const struct mu_p2pd_stats *stats = &rig.calls.stats;
    uint64_t user_bytes[RIG_USERS] = {0};
    uint64_t unary = 0;
    uint64_t calls = 0;
    uint64_t served = 0;
    uint64_t held = 0;
    uint64_t granted = 0;

    for (size_t i = 0; i < RIG_STREAMS; i++) {
        const struct mu_p2pd_unary *call = &rig.streams[i].unary;

        if (!rig.streams[i].used) {
            continue;
        }
        MU_ASSERT(call->state != MU_P2PD_UNARY_OVER);
        MU_ASSERT(call->in.len <= MSG_MAX + rig.calls.config.free_bytes + 9);
        MU_ASSERT(call->reserved != 0 || call->in.len <= 2 * rig.calls.config.free_bytes);
        MU_ASSERT(rig.streams[i].ended == (call->state == MU_P2PD_UNARY_LEAVING));
        unary++;
        held += call->reserved;
        granted += call->reserved != 0;
        if (call->user != NULL) {
            MU_ASSERT(rig_user_of(call->user)->here);
            calls += call->ours;
            served += !call->ours;
            user_bytes[index_of(rig_user_of(call->user))] += call->ours ? call->out.len : 0;
        }
    }
    MU_ASSERT(unary == stats->unary && calls == stats->calls && served == stats->served);
    MU_ASSERT(unary <= rig.calls.config.calls_max && held == stats->held_bytes);
    MU_ASSERT(held <= rig.calls.config.held_bytes_max || granted == 1);
    for (size_t i = 0; i < RIG_USERS; i++) {
        MU_ASSERT(!rig.users[i].here || rig.users[i].user.held_bytes == user_bytes[i]);
        MU_ASSERT(!rig.users[i].here || rig.users[i].deaf || rig.users[i].conn.out.len == 0);
    }
    MU_ASSERT(rig.now.ns < mu_p2pd_calls_deadline(&rig.calls).ns);
}

/* --- events ----------------------------------------------------------------------------------- */

static struct mu_span read_name(struct mu_reader *r)
{
    static const char *const names[] = {"a", "b", RIG_TAKEN, "", "a-name-of-more-than-twenty"};

    return mu_span_str(names[mu_read_u8(r) % 5]);
}

static struct mu_span read_data(struct mu_reader *r)
{
    return mu_span(zeroes, mu_read_u16(r) % (MSG_MAX - 200));
}

static void user_says(struct rig_user *u, uint8_t what, struct mu_reader *r)
{
    uint8_t id[MU_P2PD_CALL_ID_LEN] = {(uint8_t)(mu_read_u8(r) % IDS)};
    struct mu_peer_id peer = rig_peer(mu_read_u8(r));
    struct mu_p2pd_call m = {.id = mu_span(id, sizeof(id)), .peer = mu_peer_id_span(&peer)};
    uint8_t body[MSG_MAX + 8];
    struct mu_buf b = {.data = body, .cap = sizeof(body), .max = sizeof(body)};
    uint32_t *open = model.open[index_of(u)];

    m.balanced = (what & 8) != 0;
    m.name = read_name(r);
    switch (what % 8) {
    case 0:
    case 1:
        id[0] = (uint8_t)(id[0] + 2 * IDS);
        m.kind = what % 8 == 0 ? MU_P2PD_ADD_UNARY : MU_P2PD_REMOVE_UNARY;
        open[id[0]]++;
        break;
    case 2:
        m.kind = MU_P2PD_CANCEL; /* what is not under way is ignored */
        break;
    case 3:
    case 4:
        id[0] = (uint8_t)(id[0] + IDS);
        m.kind = MU_P2PD_UNARY_RESPONSE;
        MU_ASSERT(mu_p2pd_body_encode(&b, m.balanced, read_data(r)) == 0);
        m.body = mu_buf_span(&b);
        if (u->deaf) {
            return; /* It would answer what it has not read. */
        }
        open[id[0]] = 0;
        break;
    default:
        m.kind = MU_P2PD_CALL_UNARY;
        m.peer = (what & 16) != 0 ? MU_SPAN_LIT("?") : m.peer;
        m.data = read_data(r);
        open[id[0]]++;
        break;
    }
    (void)rig_say(&rig, u, &m);
}

static void user_event(uint8_t what, struct mu_reader *r)
{
    struct rig_user *u = &rig.users[mu_read_u8(r) % RIG_USERS];

    if (!u->here) {
        rig_join(&rig, u);
    } else if (what % 16 == 0) {
        rig_leave(u);
        forget(index_of(u));
    } else if (what % 16 == 1) {
        u->deaf = true;
    } else if (what % 16 == 2) {
        u->deaf = false;
        rig_read(&rig, u);
    } else {
        user_says(u, mu_read_u8(r), r);
    }
}

static struct rig_stream *read_stream(struct mu_reader *r)
{
    size_t n = mu_read_u8(r) % RIG_STREAMS;

    for (size_t i = 0; i < RIG_STREAMS; i++, n = (n + 1) % RIG_STREAMS) {
        if (rig.streams[n].used && rig.streams[n].open) {
            return &rig.streams[n];
        }
    }
    return NULL;
}

static void peer_says(struct rig_stream *s, uint8_t what, struct mu_reader *r)
{
    uint8_t id[MU_P2PD_CALL_ID_LEN] = {(uint8_t)(IDS + mu_read_u8(r) % IDS)};
    struct mu_p2pd_call m = {.id = mu_span(id, sizeof(id)),
                             .peer = MU_SPAN_LIT("p"),
                             .name = MU_SPAN_LIT("n"),
                             .body = MU_SPAN_LIT("\x0a\x01x")};
    struct mu_buf *said = &model.said[s - rig.streams];
    struct mu_buf out;
    size_t len;

    mu_buf_init(&out, 2 * MSG_MAX);
    m.data = mu_span(zeroes, mu_read_u16(r) % (MSG_MAX + 50));
    m.kind = what % 2 == 0 ? MU_P2PD_CALL_UNARY : MU_P2PD_UNARY_RESPONSE;
    if (what % 8 == 7) {
        MU_ASSERT(mu_buf_append(&out, r->rest) == 0);
    } else {
        MU_ASSERT(mu_p2pd_call_encode(&out, &m) == 0);
    }
    len = what % 8 == 6 ? out.len / 2 : out.len;
    len = len < s->window ? len : s->window;
    said->max = 1u << 22;
    MU_ASSERT(mu_buf_append(said, mu_span(mu_buf_span(&out).data, len)) == 0);
    (void)rig_peer_says(s, mu_span(mu_buf_span(&out).data, len));
    mu_buf_fini(&out);
}

static void stream_event(uint8_t what, struct mu_reader *r)
{
    struct rig_stream *s = read_stream(r);

    if (s == NULL || what % 8 == 0) {
        struct mu_peer_id peer = rig_peer(what);

        (void)rig_open(&rig, &peer, read_name(r));
    } else if (what % 8 == 1) {
        mu_p2pd_unary_eof(&s->unary);
    } else if (what % 8 == 2) {
        rig_stream_gone(s, what == 2 ? MUSTER_EREFUSED : MUSTER_ECLOSED, "gone");
    } else if (what % 8 == 3) {
        s->takes = mu_read_u16(r);
        mu_p2pd_unary_writable(&s->unary);
    } else {
        peer_says(s, what >> 3, r);
    }
}

static void other_event(uint8_t what, struct mu_reader *r)
{
    struct mu_span addr = mu_span(zeroes, 1 + what % 3);
    struct mu_span name = read_name(r);
    struct mu_errmsg msg;

    if (what % 4 == 0) {
        rig.now.ns += mu_read_u16(r) * MU_NS_PER_MS;
    } else if (what % 4 == 1) {
        (void)rig_add(&rig, name, NULL, addr, what > 127, &msg);
    } else if (what % 4 == 2) {
        (void)mu_p2pd_names_remove(&rig.calls.names, name, NULL, addr, &msg);
    } else {
        (void)mu_p2pd_names_next(&rig.calls.names, name);
    }
}

/* --- the run ---------------------------------------------------------------------------------- */

/* All streams end, and all users read: each has all its answers then. */
static void finish(void)
{
    for (size_t i = 0; i < RIG_USERS; i++) {
        rig.users[i].deaf = false;
        if (rig.users[i].here) {
            rig_read(&rig, &rig.users[i]);
            rig_pump(&rig);
        }
    }
    for (size_t i = 0; i < RIG_STREAMS; i++) {
        if (rig.streams[i].used && rig.streams[i].open) {
            rig_stream_gone(&rig.streams[i], MUSTER_ECLOSED, "gone");
            rig_pump(&rig);
        }
    }
    check();
    MU_ASSERT(rig.calls.stats.unary == 0);
    for (size_t i = 0; i < RIG_USERS; i++) {
        for (size_t id = 0; rig.users[i].here && id < 4 * IDS; id++) {
            MU_ASSERT(model.open[i][id] == 0);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_reader r = mu_reader(mu_span(data, size));
    struct mu_p2pd_calls_config config = {
        .msg_len_max = MSG_MAX, .name_len_max = 20, .request_ms = 60000, .linger_ms = 5000};

    config.calls_max = mu_read_u8(&r) % RIG_STREAMS;
    config.free_bytes = 1 + mu_read_u16(&r) % 1000;
    config.held_bytes_max = mu_read_u16(&r);
    config.high_bytes = mu_read_u16(&r) % 8192;
    config.seed = mu_read_u8(&r);
    rig_init(&rig, &config);
    memset(&model, 0, sizeof(model));
    rig.out_max = config.high_bytes + MSG_MAX;
    rig.takes = mu_read_u16(&r);
    rig.acted = on_acted;
    rig.heard = on_heard;
    while (!r.failed && r.rest.len > 0) {
        uint8_t kind = mu_read_u8(&r);
        uint8_t what = mu_read_u8(&r);
        struct mu_reader inside = mu_reader(mu_read_bytes(&r, kind >> 2));

        if (kind % 4 == 0) {
            other_event(what, &inside);
        } else if (kind % 4 == 1) {
            user_event(what, &inside);
        } else {
            stream_event(what, &inside);
        }
        rig_pump(&rig);
        check();
    }
    finish();
    rig_fini(&rig);
    return 0;
}

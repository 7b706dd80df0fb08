/* peer_conn: its streams, and the names they are opened for. */
#include <muster/error.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "proto/peer/conn_internal.h"

enum {
    /* This much data gets its own message; less is sent together with other output. */
    DIRECT_BYTES_MIN = 8192,
};

/* --- records ---------------------------------------------------------------------------------- */

struct mu_peer_stream *mu_peer_find(const struct mu_peer_conn *c, uint32_t id)
{
    struct mu_map_node *node = mu_map_find(&c->streams, mu_span(&id, sizeof(id)));

    return node == NULL ? NULL : MU_CONTAINER_OF(node, struct mu_peer_stream, by_id);
}

static struct mu_peer_stream *new_stream(struct mu_peer_conn *c, uint32_t id, bool ours)
{
    struct mu_peer_stream *s = mu_calloc(1, sizeof(*s));

    if (s == NULL) {
        return NULL;
    }
    s->id = id;
    s->ours = ours;
    s->state = ours ? MU_PEER_STREAM_QUEUED : MU_PEER_STREAM_RESPONDING;
    mu_list_init(&s->link);
    mu_list_init(&s->attention);
    if (mu_map_insert(&c->streams, &s->by_id, mu_span(&s->id, sizeof(s->id))) != 0) {
        mu_free(s);
        return NULL;
    }
    c->ours += ours ? 1 : 0;
    c->opened++;
    return s;
}

static struct mu_mss *new_mss(enum mu_mss_role role)
{
    struct mu_mss *mss = mu_malloc(sizeof(*mss));

    if (mss != NULL) {
        mu_mss_init(mss, role);
    }
    return mss;
}

static void free_mss(struct mu_peer_stream *s)
{
    if (s->mss != NULL) {
        mu_mss_fini(s->mss);
        mu_free(s->mss);
        s->mss = NULL;
    }
}

void mu_peer_release(struct mu_peer_conn *c, struct mu_peer_stream *s)
{
    free_mss(s);
    mu_list_remove(&s->link);
    mu_list_remove(&s->attention);
    mu_map_remove(&c->streams, &s->by_id);
    c->ours -= s->ours ? 1 : 0;
    c->closed++;
    if (c->asked_id == s->id) {
        c->asked_id = 0;
    }
    mu_free(s);
}

/* The stream will be handled when events are asked for. */
static void call_attention(struct mu_peer_conn *c, struct mu_peer_stream *s)
{
    mu_list_remove(&s->attention);
    mu_list_push(&c->attention, &s->attention);
}

static void start_negotiating(struct mu_peer_conn *c, struct mu_peer_stream *s)
{
    mu_list_remove(&s->link);
    mu_list_push(&c->negotiating, &s->link);
    s->deadline = mu_mono_add_ms(c->now, c->config.negotiate_ms);
}

static void become_open(struct mu_peer_conn *c, struct mu_peer_stream *s)
{
    mu_list_remove(&s->link);
    s->state = MU_PEER_STREAM_OPEN;
    call_attention(c, s);
}

/* Yamux forgets the stream now; the peer is told as soon as there is memory. */
static void reset(struct mu_peer_conn *c, uint32_t id)
{
    c->starved = mu_yamux_reset(&c->yamux, id) != 0 || c->starved;
}

/* One of our streams fails to open: that is told, and then it is gone. Yamux forgets it now. */
static void give_up(struct mu_peer_conn *c, struct mu_peer_stream *s, int err)
{
    reset(c, s->id);
    mu_list_remove(&s->link);
    s->state = MU_PEER_STREAM_FAILED;
    s->err = err;
    call_attention(c, s);
}

/* Ends the stream for both sides, whatever its state. */
static void drop(struct mu_peer_conn *c, struct mu_peer_stream *s)
{
    if (c->stage != MU_PEER_OVER) {
        reset(c, s->id);
    }
    mu_peer_release(c, s);
}

/* --- out -------------------------------------------------------------------------------------- */

static bool may_send(const struct mu_peer_stream *s)
{
    return s->state == MU_PEER_STREAM_OPEN ||
           (s->state == MU_PEER_STREAM_PROPOSING && mu_mss_may_send(s->mss));
}

/*
 * Sends the negotiation of the name, and the stream's end if that is due. 1: all of it is out, and
 * data may follow; 0: not yet; MUSTER_ENOMEM.
 */
static int flush(struct mu_peer_conn *c, struct mu_peer_stream *s)
{
    int err;

    if (s->state == MU_PEER_STREAM_QUEUED || s->state == MU_PEER_STREAM_FAILED) {
        return 0;
    }
    if (s->mss != NULL && mu_mss_output(s->mss).len != 0) {
        size_t taken;

        err = mu_yamux_write(&c->yamux, s->id, mu_mss_output(s->mss), &taken);
        if (err == MUSTER_ENOMEM) {
            return err;
        }
        /* A stream that the peer has just reset takes nothing; the reset is about to be told. */
        mu_mss_sent(s->mss, err == 0 ? taken : 0);
        if (err != 0 || mu_mss_output(s->mss).len != 0) {
            return 0;
        }
    }
    if (!may_send(s)) {
        return 0;
    }
    if (s->ending && !s->ended) {
        err = mu_yamux_end(&c->yamux, s->id);
        if (err == MUSTER_ENOMEM) {
            return err;
        }
        s->ended = err == 0;
    }
    return 1;
}

/* The same as flush() when no caller waits for the result: it is tried again, and WRITABLE is
 * told. */
static void flush_later(struct mu_peer_conn *c, struct mu_peer_stream *s)
{
    int done = flush(c, s);

    if (done < 0 || (done == 1 && s->wants)) {
        call_attention(c, s);
    }
}

/* Seals large frames straight from the caller's memory; returns how many bytes. The caller writes
 * the rest. */
static size_t write_direct(struct mu_peer_conn *c, uint32_t id, struct mu_span data)
{
    size_t taken = 0;

    while (data.len - taken >= DIRECT_BYTES_MIN) {
        uint8_t head[MU_YAMUX_HEADER];
        struct mu_span parts[2] = {mu_span(head, sizeof(head)), mu_span_skip(data, taken)};

        if (!mu_peer_seal(c)) { /* Earlier output goes first. */
            break;
        }
        parts[1].len = mu_yamux_frame(&c->yamux, id, parts[1].len, head);
        if (parts[1].len < DIRECT_BYTES_MIN || mu_noise_send_whole(&c->noise, parts, 2) != 0) {
            break;
        }
        mu_yamux_framed(&c->yamux, id, parts[1].len);
        mu_yamux_set_behind(&c->yamux, mu_noise_output(&c->noise).len);
        taken += parts[1].len;
    }
    return taken;
}

int mu_peer_conn_write(struct mu_peer_conn *c, uint32_t id, struct mu_span data, size_t *ret_taken)
{
    struct mu_peer_stream *s = mu_peer_find(c, id);
    size_t taken = 0;
    int err;

    *ret_taken = 0;
    if (s == NULL || c->stage == MU_PEER_OVER || s->state == MU_PEER_STREAM_RESPONDING ||
        s->state == MU_PEER_STREAM_ASKED || s->state == MU_PEER_STREAM_FAILED) {
        return MUSTER_ENOENT;
    }
    if (s->ending) {
        return MUSTER_EINVAL;
    }
    err = flush(c, s);
    if (err < 0) {
        return err;
    }
    if (err == 1) {
        size_t direct = write_direct(c, id, data);

        err = mu_yamux_write(&c->yamux, id, mu_span_skip(data, direct), &taken);
        if (err != 0 && direct == 0) {
            return err;
        }
        taken += direct;
    }
    *ret_taken = taken;
    s->wants = taken < data.len;
    if (err < 0) {
        call_attention(c, s); /* Nothing else would wake the writer. */
    }
    return 0;
}

/* Our end was sent and theirs was told: yamux has forgotten the stream, and so do we. */
static bool release_ended(struct mu_peer_conn *c, struct mu_peer_stream *s)
{
    if (s->ended && s->remote_end) {
        mu_peer_release(c, s);
        return true;
    }
    return false;
}

int mu_peer_conn_end(struct mu_peer_conn *c, uint32_t id)
{
    struct mu_peer_stream *s = mu_peer_find(c, id);

    if (s == NULL || c->stage == MU_PEER_OVER || s->state == MU_PEER_STREAM_RESPONDING ||
        s->state == MU_PEER_STREAM_ASKED || s->state == MU_PEER_STREAM_FAILED) {
        return MUSTER_ENOENT;
    }
    if (!s->ending) {
        s->ending = true;
        s->wants = false;
        flush_later(c, s);
        (void)release_ended(c, s);
    }
    return 0;
}

void mu_peer_conn_reset(struct mu_peer_conn *c, uint32_t id)
{
    struct mu_peer_stream *s = mu_peer_find(c, id);

    if (s != NULL) {
        drop(c, s);
    }
}

static void give_credit(struct mu_peer_conn *c, struct mu_peer_stream *s)
{
    if (mu_yamux_consumed(&c->yamux, c->now, s->id, s->credit) == 0) {
        s->credit = 0;
    } else {
        call_attention(c, s);
    }
}

void mu_peer_conn_consumed(struct mu_peer_conn *c, mu_mono_t now, uint32_t id, size_t n)
{
    struct mu_peer_stream *s = mu_peer_find(c, id);

    c->now = now;
    if (s != NULL && c->stage != MU_PEER_OVER) {
        MU_ASSERT(n <= UINT32_MAX - s->credit);
        s->credit += (uint32_t)n;
        give_credit(c, s);
    }
}

/* --- ours ------------------------------------------------------------------------------------- */

int mu_peer_conn_open(struct mu_peer_conn *c, mu_mono_t now, const struct mu_span *names,
                      size_t count, uint32_t *ret_id)
{
    struct mu_mss *mss;
    struct mu_peer_stream *s = NULL;
    uint32_t id;
    int err = count == 0 ? MUSTER_EINVAL : 0;

    c->now = now;
    if (c->stage == MU_PEER_OVER || c->eof || c->yamux.refused) {
        return MUSTER_ECLOSED;
    }
    if (c->ours >= c->config.streams_max) {
        return MUSTER_ELIMIT;
    }
    mss = new_mss(MU_MSS_INITIATOR);
    if (mss == NULL) {
        return MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < count && err == 0; i++) {
        err = mu_mss_propose(mss, names[i]);
    }
    if (err == 0) {
        err = mu_yamux_allot(&c->yamux, &id);
    }
    if (err == 0) {
        s = new_stream(c, id, true);
        err = s == NULL ? MUSTER_ENOMEM : 0;
    }
    if (err != 0) {
        mu_mss_fini(mss);
        mu_free(mss);
        return err;
    }
    s->mss = mss;
    mu_list_push(&c->queued, &s->link);
    if (c->stage == MU_PEER_OPEN) {
        (void)mu_peer_open_queued(c);
    }
    *ret_id = id;
    return 0;
}

bool mu_peer_open_queued(struct mu_peer_conn *c)
{
    bool some = false;

    while (!mu_list_empty(&c->queued)) {
        struct mu_peer_stream *s = MU_CONTAINER_OF(c->queued.next, struct mu_peer_stream, link);
        int err = mu_yamux_open_as(&c->yamux, c->now, s->id);

        if (err == MUSTER_EAGAIN || err == MUSTER_ENOMEM) {
            c->starved = c->starved || err == MUSTER_ENOMEM;
            break;
        }
        some = true;
        if (err != 0) {
            give_up(c, s, MUSTER_ECLOSED);
            continue;
        }
        s->state = MU_PEER_STREAM_PROPOSING;
        start_negotiating(c, s);
        flush_later(c, s);
    }
    return some;
}

/* --- theirs ----------------------------------------------------------------------------------- */

static struct mu_peer_stream *find_asked(struct mu_peer_conn *c, uint32_t id)
{
    return id != 0 && id == c->asked_id && c->stage != MU_PEER_OVER ? mu_peer_find(c, id) : NULL;
}

int mu_peer_conn_accept(struct mu_peer_conn *c, uint32_t id)
{
    struct mu_peer_stream *s = find_asked(c, id);
    int err;

    if (s == NULL) {
        return MUSTER_ENOENT;
    }
    err = mu_mss_accept(s->mss);
    if (err == 0) {
        c->asked_id = 0;
        become_open(c, s);
        flush_later(c, s);
    }
    return err;
}

int mu_peer_conn_refuse(struct mu_peer_conn *c, uint32_t id)
{
    struct mu_peer_stream *s = find_asked(c, id);

    if (s == NULL) {
        return MUSTER_ENOENT;
    }
    c->asked_id = 0;
    s->state = MU_PEER_STREAM_RESPONDING;
    if (mu_mss_refuse(s->mss) != 0) {
        drop(c, s); /* There is no memory for a polite refusal. */
    } else {
        flush_later(c, s);
    }
    return 0;
}

void mu_peer_refuse_asked(struct mu_peer_conn *c)
{
    if (c->asked_id != 0) {
        (void)mu_peer_conn_refuse(c, c->asked_id);
    }
}

void mu_peer_expire(struct mu_peer_conn *c)
{
    while (!mu_list_empty(&c->negotiating)) {
        struct mu_peer_stream *s =
            MU_CONTAINER_OF(c->negotiating.next, struct mu_peer_stream, link);

        if (!mu_mono_reached(s->deadline, c->now)) {
            break;
        }
        if (s->ours) {
            give_up(c, s, MUSTER_ETIMEDOUT);
        } else {
            drop(c, s);
        }
    }
}

/* --- in --------------------------------------------------------------------------------------- */

/* Handles the result of a negotiation. True: there is something to tell. */
static bool take_mss(struct mu_peer_conn *c, struct mu_peer_stream *s, struct mu_peer_event *ret)
{
    struct mu_mss_event e;

    if (!mu_mss_next_event(s->mss, &e)) {
        flush_later(c, s); /* Sends the next proposal, or an answer that the owner need not give. */
        return false;
    }
    switch (e.type) {
    case MU_MSS_EV_PROPOSED:
        s->state = MU_PEER_STREAM_ASKED;
        c->asked_id = s->id;
        *ret =
            (struct mu_peer_event){.type = MU_PEER_EV_STREAM_OPENED, .id = s->id, .name = e.name};
        return true;
    case MU_MSS_EV_AGREED:
        become_open(c, s);
        *ret = (struct mu_peer_event){.type = MU_PEER_EV_STREAM_READY, .id = s->id, .name = e.name};
        return true;
    case MU_MSS_EV_REFUSED:
        give_up(c, s, MUSTER_EREFUSED);
        break;
    }
    return false;
}

/* Takes data that belongs to the negotiation of a name; more may follow it. */
static bool take_negotiation(struct mu_peer_conn *c, struct mu_peer_stream *s,
                             struct mu_peer_event *ret)
{
    size_t used = 0;
    int err = 0;

    if (s->mss == NULL) {
        s->mss = new_mss(MU_MSS_RESPONDER);
        err = s->mss == NULL ? MUSTER_ENOMEM : 0;
    }
    if (err == 0) {
        err = mu_mss_recv(s->mss, c->lent, &used);
    }
    if (err == MUSTER_ENOMEM) {
        c->starved = true;
        return false;
    }
    c->lent = mu_span_skip(c->lent, used);
    s->credit += (uint32_t)used;
    give_credit(c, s);
    if (err != 0 && s->ours) {
        give_up(c, s, err);
        return false;
    }
    if (err != 0) {
        drop(c, s);
        return false;
    }
    return take_mss(c, s, ret);
}

bool mu_peer_take_lent(struct mu_peer_conn *c, struct mu_peer_event *ret)
{
    while (c->lent.len != 0 && !c->starved) {
        struct mu_peer_stream *s = mu_peer_find(c, c->lent_id);

        if (s == NULL || s->state == MU_PEER_STREAM_FAILED) {
            c->lent = (struct mu_span){0};
        } else if (s->state == MU_PEER_STREAM_OPEN) {
            *ret = (struct mu_peer_event){.type = MU_PEER_EV_DATA, .id = s->id, .data = c->lent};
            c->lent = (struct mu_span){0};
            return true;
        } else if (take_negotiation(c, s, ret)) {
            return true;
        }
    }
    return false;
}

/* The peer has ended or reset it. */
static bool take_end(struct mu_peer_conn *c, struct mu_peer_stream *s, bool reset,
                     struct mu_peer_event *ret)
{
    *ret = (struct mu_peer_event){
        .type = reset ? MU_PEER_EV_RESET : MU_PEER_EV_EOF,
        .id = s->id,
        .err = reset ? MUSTER_ECLOSED : 0,
    };
    if (s->state == MU_PEER_STREAM_FAILED) {
        return false; /* The end was told already. */
    }
    if (s->state != MU_PEER_STREAM_OPEN) {
        if (s->ours) {
            give_up(c, s, MUSTER_ECLOSED);
        } else {
            drop(c, s);
        }
        return false;
    }
    if (reset) {
        mu_peer_release(c, s);
        return true;
    }
    s->remote_end = true;
    (void)release_ended(c, s);
    return true;
}

static void take_opened(struct mu_peer_conn *c, uint32_t id)
{
    struct mu_peer_stream *s = new_stream(c, id, false);

    if (s == NULL) {
        reset(c, id);
    } else {
        start_negotiating(c, s);
    }
}

bool mu_peer_take_yamux(struct mu_peer_conn *c, const struct mu_yamux_event *e,
                        struct mu_peer_event *ret)
{
    struct mu_peer_stream *s = mu_peer_find(c, e->id);

    switch (e->type) {
    case MU_YAMUX_EV_OPENED:
        take_opened(c, e->id);
        return false;
    case MU_YAMUX_EV_DATA:
        c->lent_id = e->id;
        c->lent = e->data;
        return false;
    case MU_YAMUX_EV_EOF:
    case MU_YAMUX_EV_RESET:
        return s != NULL && take_end(c, s, e->type == MU_YAMUX_EV_RESET, ret);
    case MU_YAMUX_EV_WRITABLE:
        if (s != NULL) {
            flush_later(c, s);
        }
        return false;
    case MU_YAMUX_EV_GO_AWAY:
        *ret = (struct mu_peer_event){.type = MU_PEER_EV_GO_AWAY};
        return true;
    case MU_YAMUX_EV_DEAD:
        mu_peer_fail(c, MUSTER_ETIMEDOUT, "the peer does not answer any more", "");
        return false;
    }
    return false;
}

/* --- attention -------------------------------------------------------------------------------- */

static bool attend_to(struct mu_peer_conn *c, struct mu_peer_stream *s, struct mu_peer_event *ret)
{
    int done;

    if (s->state == MU_PEER_STREAM_FAILED) {
        *ret = (struct mu_peer_event){.type = MU_PEER_EV_STREAM_READY, .id = s->id, .err = s->err};
        mu_peer_release(c, s);
        return true;
    }
    if (s->credit != 0) {
        give_credit(c, s);
    }
    done = flush(c, s);
    if (done < 0 || s->credit != 0) {
        c->starved = true;
        call_attention(c, s);
        return false;
    }
    if (s->state == MU_PEER_STREAM_OPEN && s->mss != NULL && mu_mss_output(s->mss).len == 0) {
        free_mss(s);
    }
    if (release_ended(c, s) || done != 1 || !s->wants) {
        return false;
    }
    s->wants = false;
    *ret = (struct mu_peer_event){.type = MU_PEER_EV_WRITABLE, .id = s->id};
    return true;
}

bool mu_peer_attend(struct mu_peer_conn *c, struct mu_peer_event *ret)
{
    struct mu_list *link;

    while (!c->starved && (link = mu_list_pop(&c->attention)) != NULL) {
        if (attend_to(c, MU_CONTAINER_OF(link, struct mu_peer_stream, attention), ret)) {
            return true;
        }
    }
    return false;
}

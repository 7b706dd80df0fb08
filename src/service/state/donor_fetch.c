/* Chunks and offers on their way out. */
#include <string.h>

#include "core/alloc.h"
#include "service/state/donor_internal.h"

#define OFFER_PIECE ((size_t)256 << 10)
#define SWEEP_MS    20 /* how often it is looked whether what was lent has left */

/* A chunk that is read from its file. */
struct mu_state_job {
    struct mu_work work;
    struct mu_state_donor *donor;
    struct mu_state_stream *stream; /* NULL: nobody wants it any more */
    struct mu_state_share *share;   /* a reference */
    uint64_t offset;
    struct mu_rpc_blob *blob;
    int err;
};

/* --- life ------------------------------------------------------------------------------------- */

static const struct mu_rpc_served_ops stream_ops;

static struct mu_state_stream *stream_of(struct mu_rpc_served *base)
{
    return MU_CONTAINER_OF(base, struct mu_state_stream, base);
}

static void free_stream(struct mu_state_stream *s)
{
    mu_list_remove(&s->link);
    mu_rpc_blob_drop(s->hold);
    mu_rpc_blob_drop(s->pending);
    mu_state_share_drop(s->share);
    mu_buf_fini(&s->asks);
    mu_free(s);
}

static struct mu_rpc_blob *new_blob(size_t len)
{
    struct mu_rpc_blob *blob;
    struct mu_buf buf;

    mu_buf_init(&buf, len);
    if (mu_buf_reserve(&buf, len) != 0) {
        return NULL;
    }
    buf.len = len;
    blob = mu_rpc_blob_new(&buf);
    mu_buf_fini(&buf);
    return blob;
}

int mu_state_stream_new(struct mu_state_client *client, uint64_t id, struct mu_state_given *given,
                        bool is_offer)
{
    struct mu_state_donor *d = client->donor;
    struct mu_state_stream *s = mu_calloc(1, sizeof(*s));
    struct mu_buf nothing;

    if (s == NULL) {
        return MUSTER_ENOMEM;
    }
    mu_buf_init(&nothing, 0);
    mu_list_init(&s->link);
    mu_state_turn_init(&s->turn);
    mu_buf_init(&s->asks, d->config.asks_max * sizeof(uint32_t));
    s->donor = d;
    s->is_offer = is_offer;
    s->hold = mu_rpc_blob_new(&nothing);
    if (s->hold == NULL || mu_rpc_served_add(&s->base, &stream_ops, &client->base, id) != 0) {
        free_stream(s);
        return MUSTER_ENOMEM;
    }
    s->given = given;
    s->share = mu_state_share_hold(given->share);
    given->downloads += is_offer ? 0 : 1;
    s->meter.since = s->meter.mark = mu_env_now(d->env).mono;
    mu_list_push(&d->streams, &s->link);
    if (is_offer) {
        mu_state_stream_go(s);
    }
    return 0;
}

/* Nothing more is sent on it. */
static void detach(struct mu_state_stream *s)
{
    struct mu_state_given *given = s->given;

    if (given == NULL) {
        return;
    }
    mu_rpc_served_remove(&s->base);
    mu_state_gate_unwait(&s->turn);
    if (s->job != NULL) {
        s->job->stream = NULL;
        s->job = NULL;
    }
    s->given = NULL;
    mu_list_remove(&s->link);
    if (!s->is_offer) {
        mu_state_gate_leave(&s->donor->gate);
        given->downloads--;
    }
}

void mu_state_stream_end(struct mu_state_stream *s, int status, const char *text)
{
    struct mu_state_donor *d = s->donor;
    struct mu_rpc_session *session = s->base.session;
    struct mu_state_given *given = s->is_offer ? NULL : s->given;
    struct mu_now now = mu_env_now(d->env);

    if (mu_rpc_reply(&session->rpc, now, s->base.id, status, mu_span_str(text)) != 0) {
        mu_rpc_fail(&session->rpc, now, s->base.id, status != 0 ? status : MUSTER_ENOMEM);
    }
    mu_rpc_session_touch(session);
    detach(s);
    if (s->hold->refs > 1) {
        s->until = mu_mono_add_ms(now.mono, d->config.drain_ms);
        mu_list_push(&d->draining, &s->link);
        mu_env_timer_arm(d->env, &d->timer, mu_mono_add_ms(now.mono, SWEEP_MS));
    } else {
        free_stream(s);
    }
    if (given != NULL) {
        mu_state_given_settle(given);
    }
}

void mu_state_stream_orphan(struct mu_state_stream *s)
{
    struct mu_state_given *given = s->is_offer ? NULL : s->given;

    detach(s);
    free_stream(s);
    if (given != NULL) {
        mu_state_given_settle(given);
    }
}

mu_mono_t mu_state_streams_sweep(struct mu_state_donor *d)
{
    mu_mono_t now = mu_env_now(d->env).mono;
    struct mu_rpc_session *slow = NULL;

    MU_LIST_FOREACH_SAFE (it, tmp, &d->draining) {
        struct mu_state_stream *s = MU_CONTAINER_OF(it, struct mu_state_stream, link);

        if (s->hold->refs == 1) {
            free_stream(s);
        } else if (mu_mono_reached(s->until, now)) {
            slow = s->base.session;
        }
    }
    if (slow != NULL) {
        /* Others of the same session may be among those above: one session at a time. */
        mu_rpc_session_end(slow, "did not take what it was sent of a state that is gone");
        return now;
    }
    return mu_list_empty(&d->draining) ? MU_MONO_NEVER : mu_mono_add_ms(now, SWEEP_MS);
}

/* --- offers ----------------------------------------------------------------------------------- */

static void send_offer(struct mu_state_stream *s)
{
    struct mu_rpc *rpc = &s->base.session->rpc;
    struct mu_span left = mu_span_skip(mu_buf_span(&s->share->offer.bytes), s->offer_at);
    int err = 0;

    while (err == 0 && left.len > OFFER_PIECE) {
        err = mu_rpc_item_lent(rpc, mu_env_now(s->donor->env), s->base.id,
                               mu_span(left.data, OFFER_PIECE), s->hold);
        if (err == 0) {
            s->offer_at += OFFER_PIECE;
            left = mu_span_skip(left, OFFER_PIECE);
        }
    }
    if (err == MUSTER_EAGAIN) {
        s->stalled = true;
    } else if (err != 0) {
        mu_state_stream_end(s, err, muster_strerror(err));
        return;
    } else if (mu_rpc_reply(rpc, mu_env_now(s->donor->env), s->base.id, 0, left) != 0) {
        mu_state_stream_end(s, MUSTER_ENOMEM, "out of memory");
        return;
    } else {
        struct mu_state_donor *d = s->donor;

        detach(s);
        s->until = mu_mono_add_ms(mu_env_now(d->env).mono, d->config.drain_ms * 10);
        mu_list_push(&d->draining, &s->link);
        mu_rpc_session_touch(s->base.session);
        return;
    }
    mu_rpc_session_touch(s->base.session);
}

/* --- chunks ----------------------------------------------------------------------------------- */

/* Chunks that are asked for. */
static void take_asks(struct mu_rpc_served *base, struct mu_span item)
{
    struct mu_state_stream *s = stream_of(base);
    uint32_t chunk;
    int rc = s->is_offer ? MUSTER_EPROTO : mu_state_ask_next(&item, s->share->chunks, &chunk);

    while (rc == 1) {
        int err = mu_buf_append(&s->asks, mu_span(&chunk, sizeof(chunk)));

        if (err != 0) {
            mu_state_stream_end(s, err,
                                err == MUSTER_ELIMIT ? "too many chunks are asked for ahead"
                                                     : "out of memory");
            return;
        }
        rc = mu_state_ask_next(&item, s->share->chunks, &chunk);
    }
    if (rc != 0) {
        mu_state_stream_end(s, MUSTER_EPROTO, "a chunk was asked for that there is not");
        return;
    }
    mu_state_stream_go(s);
}

/* The chunk that is due; there is one. */
static uint32_t first_ask(const struct mu_state_stream *s)
{
    uint32_t chunk;

    memcpy(&chunk, mu_buf_span(&s->asks).data, sizeof(chunk));
    return chunk;
}

void mu_state_stream_go(struct mu_state_stream *s)
{
    if (s->stalled || s->job != NULL) {
        return;
    }
    if (s->is_offer) {
        send_offer(s);
    } else if (s->asks.len != 0) {
        mu_state_gate_wait(&s->donor->gate, &s->turn, mu_state_share_len(s->share, first_ask(s)));
        if (!s->donor->in_turn) {
            mu_env_timer_arm(s->donor->env, &s->donor->timer, mu_env_now(s->donor->env).mono);
        }
    } else if (s->ended) {
        mu_state_stream_end(s, 0, "");
    }
}

static void run_job(struct mu_work *work)
{
    struct mu_state_job *job = MU_CONTAINER_OF(work, struct mu_state_job, work);
    struct mu_buf *buf = &job->blob->buf;

    job->err = job->share->read(job->share, job->offset, buf->data + buf->head, buf->len);
}

static void job_done(struct mu_work *work)
{
    struct mu_state_job *job = MU_CONTAINER_OF(work, struct mu_state_job, work);
    struct mu_state_donor *d = job->donor;
    struct mu_state_stream *s = job->stream;

    d->jobs--;
    if (s != NULL) {
        s->job = NULL;
        if (job->err != 0) {
            mu_state_stream_end(s, MUSTER_EDISK, "the file of that state cannot be read any more");
        } else {
            s->pending = job->blob;
            job->blob = NULL;
            mu_state_stream_go(s);
        }
    }
    mu_rpc_blob_drop(job->blob);
    mu_state_share_drop(job->share);
    mu_free(job);
    mu_state_donor_turn(d);
}

/* Has a worker read the chunk; the stream goes on when that is done. */
static int begin_read(struct mu_state_stream *s, uint32_t chunk)
{
    struct mu_state_job *job = mu_calloc(1, sizeof(*job));

    if (job == NULL) {
        return MUSTER_ENOMEM;
    }
    job->blob = new_blob(mu_state_share_len(s->share, chunk));
    job->work.run = run_job;
    job->work.done = job_done;
    job->donor = s->donor;
    job->stream = s;
    job->share = s->share;
    job->offset = mu_state_chunk_offset(&s->share->offer.manifest, chunk);
    if (job->blob == NULL || mu_env_work(s->donor->env, &job->work) != 0) {
        mu_rpc_blob_drop(job->blob);
        mu_free(job);
        return MUSTER_ENOMEM;
    }
    (void)mu_state_share_hold(job->share);
    s->donor->jobs++;
    s->job = job;
    return 0;
}

/* Hands the chunk to the session. MUSTER_EAGAIN: there is no room, or it is being read. */
static int send_chunk(struct mu_state_stream *s, uint32_t chunk)
{
    struct mu_rpc *rpc = &s->base.session->rpc;
    struct mu_now now = mu_env_now(s->donor->env);
    struct mu_space place;
    int err;

    if (!mu_state_share_has(s->share, chunk)) {
        return mu_rpc_item(rpc, now, s->base.id, (struct mu_span){0});
    }
    if (s->pending == NULL && s->share->read != NULL && !s->donor->config.sends_files) {
        err = begin_read(s, chunk);
        return err != 0 ? err : MUSTER_EAGAIN;
    }
    if (s->pending == NULL && mu_state_share_place(s->share, chunk, &place)) {
        return mu_rpc_item_lent(rpc, now, s->base.id, mu_span(place.data, place.len), s->hold);
    }
    if (s->pending == NULL) {
        s->pending = new_blob(mu_state_share_len(s->share, chunk));
        if (s->pending == NULL) {
            return MUSTER_ENOMEM;
        }
        mu_state_share_gather(s->share, chunk, s->pending->buf.data + s->pending->buf.head);
    }
    err = mu_rpc_item_lent(rpc, now, s->base.id, mu_buf_span(&s->pending->buf), s->pending);
    if (err == 0) {
        mu_rpc_blob_drop(s->pending);
        s->pending = NULL;
    }
    return err;
}

void mu_state_stream_serve(struct mu_state_stream *s)
{
    struct mu_state_donor *d = s->donor;
    uint32_t chunk = first_ask(s);
    size_t len = mu_state_share_len(s->share, chunk);
    bool has = mu_state_share_has(s->share, chunk);
    int err = send_chunk(s, chunk);

    if (err != 0 || !has) {
        mu_state_gate_refund(&d->gate, len);
    }
    if (err == MUSTER_EAGAIN) {
        s->stalled = s->job == NULL;
        return;
    }
    if (err != 0) {
        mu_state_stream_end(s, err, muster_strerror(err));
        return;
    }
    mu_buf_consume(&s->asks, sizeof(chunk));
    d->stats.chunks += has ? 1 : 0;
    d->stats.bytes += has ? len : 0;
    mu_state_meter_add(&s->meter, mu_env_now(d->env).mono, has ? len : 0);
    mu_rpc_session_touch(s->base.session);
    mu_state_stream_go(s);
}

/* --- what the fetcher says -------------------------------------------------------------------- */

static void end_asks(struct mu_rpc_served *base)
{
    stream_of(base)->ended = true;
    mu_state_stream_go(stream_of(base));
}

static void cancel(struct mu_rpc_served *base, int why)
{
    (void)why;
    mu_state_stream_end(stream_of(base), MUSTER_ECANCELED, "canceled");
}

static void take_credit(struct mu_rpc_served *base)
{
    stream_of(base)->stalled = false;
    mu_state_stream_go(stream_of(base));
}

static void orphan(struct mu_rpc_served *base)
{
    mu_state_stream_orphan(stream_of(base));
}

static const struct mu_rpc_served_ops stream_ops = {
    .cancel = cancel,
    .credit = take_credit,
    .item = take_asks,
    .end = end_asks,
    .free = orphan,
};

/* The stream of a unary call: one message each way, whole. */
#include <string.h>

#include <muster/error.h>

#include "codec/bin/uvarint.h"
#include "core/alloc.h"
#include "service/p2pd/p2pd_internal.h"

/* A message that fits the window that each stream has anyway needs no leave. */
#define FREE_BYTES MU_YAMUX_WINDOW_FIRST
#define REQUEST_MS 60000 /* for a peer to bring all of its request */

static const struct mu_host_stream_events leg_events;

static void on_timer(struct mu_timer *timer)
{
    mu_p2pd_leg_drop(MU_CONTAINER_OF(timer, struct mu_p2pd_leg, timer));
}

struct mu_p2pd_leg *mu_p2pd_leg_new(struct mu_p2pd *d, bool ours, struct mu_span name)
{
    struct mu_p2pd_leg *leg;

    if (d->leg_count >= d->config.calls_max) {
        return NULL;
    }
    leg = mu_calloc(1, sizeof(*leg) + name.len);
    if (leg == NULL) {
        return NULL;
    }
    leg->d = d;
    leg->ours = ours;
    leg->state = MU_P2PD_LEG_READING;
    leg->stream.on = &leg_events;
    if (name.len != 0) {
        memcpy(leg->text, name.data, name.len);
    }
    leg->name = mu_span(leg->text, name.len);
    mu_buf_init(&leg->in, d->config.msg_len_max + FREE_BYTES);
    mu_buf_init(&leg->out, d->config.msg_len_max + MU_UVARINT_LEN_MAX);
    mu_timer_init(&leg->timer, on_timer);
    mu_list_init(&leg->waiting);
    mu_list_init(&leg->starving);
    mu_list_init(&leg->link);
    mu_list_push(&d->legs, &leg->link);
    d->leg_count++;
    return leg;
}

static void arm(struct mu_p2pd_leg *leg, uint64_t ms)
{
    mu_env_timer_arm(leg->d->env, &leg->timer, mu_mono_add_ms(mu_env_now(leg->d->env).mono, ms));
}

struct mu_host_stream *mu_p2pd_leg_opened(struct mu_p2pd *d, struct mu_span name)
{
    struct mu_p2pd_leg *leg = mu_p2pd_leg_new(d, false, name);

    if (leg == NULL) {
        return NULL;
    }
    arm(leg, REQUEST_MS);
    return &leg->stream;
}

/* --- the end ---------------------------------------------------------------------------------- */

void mu_p2pd_leg_detach(struct mu_p2pd_leg *leg)
{
    struct mu_p2pd_client *c = leg->client;

    if (c != NULL) {
        leg->client = NULL;
        mu_list_remove(&leg->waiting);
        if (leg->ours) {
            mu_map_remove(&c->calls, &leg->by_id);
            leg->d->stats.calls--;
            c->held_bytes -= leg->out.len;
            mu_p2pd_client_resume(c);
        } else {
            mu_map_remove(&c->served, &leg->by_id);
            leg->d->stats.served--;
        }
    }
}

static void free_leg(struct mu_p2pd_leg *leg)
{
    struct mu_p2pd *d = leg->d;

    mu_p2pd_leg_detach(leg);
    mu_p2pd_leg_release(leg);
    mu_env_timer_arm(d->env, &leg->timer, MU_MONO_NEVER);
    mu_list_remove(&leg->link);
    mu_buf_fini(&leg->in);
    mu_buf_fini(&leg->out);
    mu_free(leg);
    d->leg_count--;
}

void mu_p2pd_leg_drop(struct mu_p2pd_leg *leg)
{
    mu_host_stream_reset(&leg->stream);
    free_leg(leg);
}

void mu_p2pd_leg_leave(struct mu_p2pd_leg *leg)
{
    mu_p2pd_leg_detach(leg);
    mu_p2pd_leg_release(leg);
    leg->state = MU_P2PD_LEG_LEAVING;
    if (leg->out.len == 0) {
        mu_host_stream_end(&leg->stream);
        arm(leg, leg->d->config.linger_ms);
    }
}

/* --- writing ---------------------------------------------------------------------------------- */

void mu_p2pd_leg_flush(struct mu_p2pd_leg *leg)
{
    size_t taken;

    if (leg->out.len == 0) {
        return;
    }
    taken = mu_host_stream_write(&leg->stream, mu_buf_span(&leg->out));
    mu_buf_consume(&leg->out, taken);
    mu_buf_trim(&leg->out, 0);
    if (leg->ours && leg->client != NULL && taken != 0) {
        leg->client->held_bytes -= taken;
        mu_p2pd_client_resume(leg->client);
    }
    if (leg->out.len == 0 && leg->state == MU_P2PD_LEG_ANSWERING) {
        mu_p2pd_leg_leave(leg);
    }
}

static void on_writable(struct mu_host_stream *s)
{
    mu_p2pd_leg_flush(MU_CONTAINER_OF(s, struct mu_p2pd_leg, stream));
}

static void on_ready(struct mu_host_stream *s, struct mu_span name)
{
    (void)name;
    on_writable(s);
}

/* --- reading ---------------------------------------------------------------------------------- */

static void grant(struct mu_p2pd_leg *leg)
{
    leg->reserved = leg->need;
    leg->d->stats.held_bytes += leg->need;
    mu_host_stream_consumed(&leg->stream, leg->unread);
    leg->unread = 0;
}

static bool may_grant(const struct mu_p2pd *d, const struct mu_p2pd_leg *leg)
{
    return d->stats.held_bytes == 0 || d->stats.held_bytes + leg->need <= d->config.held_bytes_max;
}

void mu_p2pd_leg_release(struct mu_p2pd_leg *leg)
{
    struct mu_p2pd *d = leg->d;

    mu_list_remove(&leg->starving);
    mu_buf_reset(&leg->in);
    mu_buf_trim(&leg->in, 0);
    if (leg->unread != 0) {
        mu_host_stream_consumed(&leg->stream, leg->unread);
        leg->unread = 0;
    }
    if (leg->reserved == 0) {
        return;
    }
    d->stats.held_bytes -= leg->reserved;
    leg->reserved = 0;
    while (!mu_list_empty(&d->starving)) {
        struct mu_p2pd_leg *next = MU_CONTAINER_OF(d->starving.next, struct mu_p2pd_leg, starving);

        if (!may_grant(d, next)) {
            break;
        }
        mu_list_remove(&next->starving);
        grant(next);
    }
}

/* How long the message is going to be, once that is there. */
static int read_head(struct mu_p2pd_leg *leg)
{
    struct mu_p2pd *d = leg->d;
    uint64_t len;
    int err = mu_uvarint_get(mu_buf_span(&leg->in), &leg->head, &len);

    if (err == MUSTER_EAGAIN) {
        return 0;
    }
    if (err != 0 || len > d->config.msg_len_max) {
        return err != 0 ? err : MUSTER_ELIMIT;
    }
    leg->need = leg->head + (size_t)len;
    if (leg->need <= FREE_BYTES) {
        return 0;
    }
    if (may_grant(d, leg) && mu_list_empty(&d->starving)) {
        grant(leg);
    } else {
        mu_list_push(&d->starving, &leg->starving);
    }
    return 0;
}

static void on_data(struct mu_host_stream *s, struct mu_span bytes)
{
    struct mu_p2pd_leg *leg = MU_CONTAINER_OF(s, struct mu_p2pd_leg, stream);
    int err;

    if (leg->state != MU_P2PD_LEG_READING) {
        mu_host_stream_consumed(s, bytes.len); /* nothing is to come behind a message */
        return;
    }
    err = mu_buf_append(&leg->in, bytes);
    leg->unread += bytes.len;
    if (err == 0 && leg->need == 0) {
        err = read_head(leg);
    }
    if (err != 0) {
        mu_host_stream_reset(s);
        mu_p2pd_unary_lost(leg, err,
                           err == MUSTER_ELIMIT ? "the peer's message is longer than may be"
                                                : muster_strerror(err));
        return;
    }
    if (leg->need != 0 && (leg->reserved != 0 || leg->need <= FREE_BYTES)) {
        mu_host_stream_consumed(s, leg->unread);
        leg->unread = 0;
    }
    if (leg->need != 0 && leg->in.len >= leg->need) {
        leg->state = MU_P2PD_LEG_WHOLE;
        mu_p2pd_unary_whole(leg);
    }
}

/* --- the peer's end --------------------------------------------------------------------------- */

/* Whoever calls does not end his side before he has the answer: he does not want it any more. And
 * who ends it without an answer has none. */
static void on_eof(struct mu_host_stream *s)
{
    struct mu_p2pd_leg *leg = MU_CONTAINER_OF(s, struct mu_p2pd_leg, stream);

    if (leg->state == MU_P2PD_LEG_LEAVING || leg->state == MU_P2PD_LEG_ANSWERING ||
        (leg->ours && leg->state == MU_P2PD_LEG_WHOLE)) {
        return;
    }
    mu_host_stream_reset(s);
    mu_p2pd_unary_lost(leg, MUSTER_ECLOSED, "EOF: the peer has ended the call without an answer");
}

static void on_ended(struct mu_host_stream *s, int status, const char *text)
{
    struct mu_p2pd_leg *leg = MU_CONTAINER_OF(s, struct mu_p2pd_leg, stream);

    if (leg->ours && leg->state == MU_P2PD_LEG_WHOLE) {
        return; /* What it had to say is there; it goes when it is told. */
    }
    if (leg->state == MU_P2PD_LEG_LEAVING) {
        free_leg(leg);
        return;
    }
    mu_p2pd_unary_lost(leg, status, text);
}

static const struct mu_host_stream_events leg_events = {
    .ready = on_ready,
    .data = on_data,
    .eof = on_eof,
    .writable = on_writable,
    .ended = on_ended,
};

/*
 * The links of a round on the native wire. Between two members is one stream: the one with the
 * lower position calls the other, but a client always calls, as nobody can call it; two clients
 * have no link. Each side says HELLO first. An item without bytes says only that its sender lives.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "core/assert.h"
#include "service/average/averager_native.h"

#define MESSAGE_ROOM 4096 /* of a message without values */

static struct mu_now now_of(const struct mu_averager *a)
{
    return mu_env_now(a->env);
}

/* --- streams ---------------------------------------------------------------------------------- */

static void watch(struct mu_averager_stream *s, uint32_t ms)
{
    struct mu_averager *a = s->averager;

    mu_env_timer_arm(a->env, &s->timer,
                     ms == 0 ? MU_MONO_NEVER : mu_mono_add_ms(now_of(a).mono, ms));
}

void mu_averager_stream_free(struct mu_averager_stream *s)
{
    watch(s, 0);
    mu_peer_items_cancel(&s->items);
    mu_list_remove(&s->link);
    s->averager->streams -= s->ours ? 0 : 1;
    if (s->of != NULL) {
        s->of->stream = NULL;
    }
    mu_free(s);
}

/* --- out -------------------------------------------------------------------------------------- */

static void drop_frame(struct mu_averager_link *l, struct mu_averager_frame *f)
{
    mu_list_remove(&f->link);
    l->queued--;
    mu_buf_fini(&f->message);
    mu_free(f);
}

static void drop_queue(struct mu_averager_link *l)
{
    while (!mu_list_empty(&l->queue)) {
        drop_frame(l, MU_CONTAINER_OF(l->queue.next, struct mu_averager_frame, link));
    }
}

void mu_averager_link_sever(struct mu_averager_link *l, const char *why)
{
    struct mu_averager_native *r = l->round;

    if (l->over) {
        return;
    }
    l->over = true;
    (void)mu_err(&l->why, 0, "%s", why);
    drop_queue(l);
    if (l->stream != NULL) {
        mu_averager_stream_free(l->stream);
    }
    if (r->running && !r->leaving) {
        mu_native_lost(&r->machine, now_of(r->averager), l->member);
    }
}

/* Sends values from where they lie. False: they are not wanted any more. */
static bool send_values(struct mu_averager_link *l, const struct mu_averager_frame *f, int *ret_err)
{
    struct mu_averager_native *r = l->round;
    struct mu_native_msg msg = {
        .type = f->type, .part = f->part, .sum = f->sum, .weight = r->weight};
    const struct mu_averager_average *average = r->averages[f->part];
    struct mu_span values;
    struct mu_buf head;

    if (f->type == MU_NATIVE_PART ? r->ended : average == NULL || average->sum != f->sum) {
        return false;
    }
    values = f->type == MU_NATIVE_PART ? mu_averager_encoded(r, f->part)
                                       : mu_span(average->bytes, average->len);
    mu_buf_init(&head, MESSAGE_ROOM);
    *ret_err = mu_native_msg_encode(&msg, &head);
    *ret_err = *ret_err != 0
                   ? *ret_err
                   : mu_peer_items_send_two(&l->stream->items, mu_buf_span(&head), values);
    r->bytes_sent += *ret_err == 0 ? head.len + values.len : 0;
    mu_buf_fini(&head);
    return true;
}

void mu_averager_link_flush(struct mu_averager_link *l)
{
    struct mu_averager_native *r = l->round;

    while (l->stream != NULL && !mu_list_empty(&l->queue)) {
        struct mu_averager_frame *f =
            MU_CONTAINER_OF(l->queue.next, struct mu_averager_frame, link);
        bool values = f->type == MU_NATIVE_PART || f->type == MU_NATIVE_AVERAGE;
        int err = 0;

        if (!values) {
            err = mu_peer_items_send(&l->stream->items, mu_buf_span(&f->message));
        } else if (!send_values(l, f, &err)) {
            err = 0;
        }
        if (err == MUSTER_EAGAIN) {
            return;
        }
        if (err != 0) {
            mu_averager_link_sever(l, "our messages could not be sent");
            return;
        }
        l->said = now_of(r->averager).mono;
        drop_frame(l, f);
        if (values) {
            mu_native_sent(&r->machine, now_of(r->averager), l->member);
        }
    }
    if (l->stream != NULL && r->leaving && !l->ending) {
        l->ending = true;
        (void)mu_peer_items_end(&l->stream->items);
    }
}

static void push(struct mu_averager_link *l, struct mu_averager_frame *frame)
{
    struct mu_averager_frame *f = l->over ? NULL : mu_malloc(sizeof(*f));

    if (f == NULL || l->queued == MU_AVERAGER_CONTROL_MAX) {
        mu_free(f);
        mu_buf_fini(&frame->message);
        mu_averager_link_sever(l, "it does not read what we send it");
        return;
    }
    *f = *frame;
    mu_list_init(&f->link);
    mu_list_push(&l->queue, &f->link);
    l->queued++;
    mu_averager_link_flush(l);
}

void mu_averager_link_say(struct mu_averager_link *l, const struct mu_native_msg *msg)
{
    struct mu_averager_frame frame = {.type = msg->type};

    mu_buf_init(&frame.message, MESSAGE_ROOM);
    if (l->over || mu_native_msg_encode(msg, &frame.message) != 0) {
        mu_buf_fini(&frame.message);
        mu_averager_link_sever(l, "our messages could not be sent");
        return;
    }
    push(l, &frame);
}

void mu_averager_link_give(struct mu_averager_link *l, enum mu_native_type type, uint32_t part,
                           uint32_t sum)
{
    struct mu_averager_frame frame = {.type = type, .part = part, .sum = sum};

    mu_buf_init(&frame.message, 0);
    push(l, &frame);
}

void mu_averager_link_leave(struct mu_averager_link *l)
{
    if (!l->over && l->stream == NULL) {
        mu_averager_link_sever(l, "");
    }
    mu_averager_link_flush(l);
}

/* --- who is there ----------------------------------------------------------------------------- */

void mu_averager_links_beat(struct mu_averager_native *r)
{
    struct mu_averager *a = r->averager;
    mu_mono_t now = now_of(a).mono;
    uint64_t silent_ms = a->config.sender_ms;
    char why[80];

    (void)snprintf(why, sizeof(why), "nothing was heard of it for %" PRIu64 " ms", silent_ms);
    for (uint32_t i = 0; i < r->division.member_count; i++) {
        struct mu_averager_link *l = &r->links[i];
        size_t partial = l->stream == NULL ? 0 : mu_peer_items_partial(&l->stream->items);

        if (l->over || i == r->hello.position) {
            continue;
        }
        if (partial != l->partial) {
            l->partial = partial;
            l->heard = now;
        }
        if (mu_mono_reached(mu_mono_add_ms(l->heard, silent_ms), now)) {
            mu_averager_link_sever(l, why);
        } else if (l->stream != NULL && !l->ending && mu_list_empty(&l->queue) &&
                   mu_mono_reached(mu_mono_add_ms(l->said, silent_ms / 4), now)) {
            l->said = now;
            (void)mu_peer_items_send(&l->stream->items, (struct mu_span){0});
        }
    }
}

/* --- in --------------------------------------------------------------------------------------- */

static void greet(struct mu_averager_link *l)
{
    struct mu_native_msg msg = {.type = MU_NATIVE_HELLO, .hello = l->round->hello};
    struct mu_buf out;
    int err;

    mu_buf_init(&out, MESSAGE_ROOM);
    err = mu_native_msg_encode(&msg, &out);
    err = err != 0 ? err : mu_peer_items_send(&l->stream->items, mu_buf_span(&out));
    mu_buf_fini(&out);
    l->said = now_of(l->round->averager).mono;
    if (err != 0) {
        mu_averager_link_sever(l, "our messages could not be sent");
    }
}

/* The round of a group, if it runs here. */
static struct mu_averager_native *find_round(struct mu_averager *a, const uint8_t *group_id)
{
    if (a->native != NULL && a->native->running && !a->native->leaving &&
        memcmp(a->native->hello.group_id, group_id, MU_AVG_GROUP_ID_LEN) == 0) {
        return a->native;
    }
    MU_LIST_FOREACH (it, &a->lingering) {
        struct mu_averager_native *r = MU_CONTAINER_OF(it, struct mu_averager_native, link);

        if (!r->leaving && memcmp(r->hello.group_id, group_id, MU_AVG_GROUP_ID_LEN) == 0) {
            return r;
        }
    }
    return NULL;
}

/* Whether we call that member, or it calls us. */
static bool is_ours_to_call(const struct mu_averager_native *r, uint32_t member)
{
    bool we = (r->clients >> r->hello.position & 1) != 0;
    bool they = (r->clients >> member & 1) != 0;

    return we != they ? we : r->hello.position < member;
}

static bool is_welcome(const struct mu_averager_native *r, const struct mu_averager_stream *s)
{
    uint32_t member = s->hello.position;

    return mu_native_hello_check(&r->hello, &s->hello) == NULL &&
           member < r->division.member_count && mu_peer_id_eq(&r->peers[member], &s->items.peer) &&
           !is_ours_to_call(r, member) && !r->links[member].over && r->links[member].stream == NULL;
}

/* Whether a group may still become known here. */
static bool may_wait(const struct mu_averager *a)
{
    return a->match != NULL || (a->native != NULL && !a->native->running && !a->native->ended);
}

/* The caller said HELLO: it gets its place in the round, waits for one, or is turned away. */
static void seat(struct mu_averager_stream *s)
{
    struct mu_averager *a = s->averager;
    struct mu_averager_native *r = find_round(a, s->hello.group_id);
    struct mu_averager_link *l;

    s->waiting = r == NULL && may_wait(a);
    if (s->waiting) {
        watch(s, 0);
        mu_peer_items_pause(&s->items);
        return;
    }
    if (r == NULL || !is_welcome(r, s)) {
        mu_averager_stream_free(s);
        return;
    }
    watch(s, 0);
    l = &r->links[s->hello.position];
    l->stream = s;
    l->heard = now_of(a).mono;
    s->of = l;
    mu_list_remove(&s->link);
    greet(l);
    mu_averager_link_flush(l);
    if (l->stream == s) {
        mu_peer_items_resume(&s->items);
    }
}

/* The next stream that need not wait any more. */
static struct mu_averager_stream *next_sorted(struct mu_averager *a)
{
    MU_LIST_FOREACH (it, &a->strangers) {
        struct mu_averager_stream *s = MU_CONTAINER_OF(it, struct mu_averager_stream, link);

        if (s->waiting && (find_round(a, s->hello.group_id) != NULL || !may_wait(a))) {
            return s;
        }
    }
    return NULL;
}

void mu_averager_sort_streams(struct mu_averager *a)
{
    struct mu_averager_stream *s;

    while ((s = next_sorted(a)) != NULL) {
        seat(s);
    }
}

/* The first item of the other side. */
static void hear_hello(struct mu_averager_stream *s, struct mu_span message)
{
    struct mu_native_msg msg;
    const char *fault = "it does not say who it is";

    if (mu_native_msg_decode(message, &msg) == 0 && msg.type == MU_NATIVE_HELLO) {
        fault = NULL;
        s->hello = msg.hello;
        s->greeted = true;
    }
    if (s->of == NULL) {
        if (fault != NULL) {
            mu_averager_stream_free(s);
        } else {
            seat(s);
        }
        return;
    }
    if (fault == NULL) {
        fault = mu_native_hello_check(&s->of->round->hello, &s->hello);
    }
    if (fault == NULL && s->hello.position != s->of->member) {
        fault = "it says that it is another member";
    }
    if (fault != NULL) {
        mu_averager_link_sever(s->of, fault);
    }
}

static void on_item(struct mu_peer_items *items, struct mu_span message)
{
    struct mu_averager_stream *s = MU_CONTAINER_OF(items, struct mu_averager_stream, items);
    struct mu_averager *a = s->averager;

    if (s->of != NULL) {
        s->of->heard = now_of(a).mono;
    }
    if (!s->greeted) {
        hear_hello(s, message);
    } else if (s->of != NULL && message.len != 0) {
        mu_averager_native_take(s->of, message);
    }
    mu_averager_pump(a);
}

static void on_writable(struct mu_peer_items *items)
{
    struct mu_averager_stream *s = MU_CONTAINER_OF(items, struct mu_averager_stream, items);
    struct mu_averager *a = s->averager;

    if (s->of != NULL) {
        mu_averager_link_flush(s->of);
        mu_averager_pump(a);
    }
}

/* The other side sends no more: for a link, that is its end. */
static void on_end(struct mu_peer_items *items)
{
    struct mu_averager_stream *s = MU_CONTAINER_OF(items, struct mu_averager_stream, items);
    struct mu_averager *a = s->averager;

    if (s->of != NULL && !s->of->round->leaving) {
        s->of->left = true;
        mu_averager_link_sever(s->of, "it has left the round");
    } else if (s->of == NULL) {
        mu_averager_stream_free(s);
    } else {
        (void)mu_peer_items_end(items);
    }
    mu_averager_pump(a);
}

static void on_ended(struct mu_peer_items *items, int status, const char *text)
{
    struct mu_averager_stream *s = MU_CONTAINER_OF(items, struct mu_averager_stream, items);
    struct mu_averager *a = s->averager;

    if (s->of != NULL) {
        s->of->left = status == 0;
        mu_averager_link_sever(s->of, status == 0 ? "it has left the round" : text);
    } else {
        mu_averager_stream_free(s);
    }
    mu_averager_pump(a);
}

static const struct mu_peer_items_events events = {
    .item = on_item,
    .end = on_end,
    .writable = on_writable,
    .ended = on_ended,
};

static void on_timer(struct mu_timer *timer)
{
    struct mu_averager_stream *s = MU_CONTAINER_OF(timer, struct mu_averager_stream, timer);
    struct mu_averager *a = s->averager;

    mu_averager_stream_free(s);
    mu_averager_pump(a);
}

static struct mu_averager_stream *new_stream(struct mu_averager *a, bool ours)
{
    struct mu_averager_stream *s = mu_calloc(1, sizeof(*s));

    if (s != NULL) {
        s->averager = a;
        s->ours = ours;
        s->items.on = &events;
        mu_timer_init(&s->timer, on_timer);
        mu_list_init(&s->link);
    }
    return s;
}

struct mu_peer_items *mu_averager_on_link(struct mu_peer_items_handler *h,
                                          const struct mu_peer_id *peer)
{
    struct mu_averager *a = MU_CONTAINER_OF(h, struct mu_averager, part_handler);
    struct mu_averager_stream *s = mu_averager_may_open(a, peer) ? new_stream(a, false) : NULL;

    if (s == NULL) {
        return NULL;
    }
    s->items.peer = *peer;
    mu_list_push(&a->strangers, &s->link);
    a->streams++;
    watch(s, a->config.sender_ms);
    return &s->items;
}

/* --- our calls -------------------------------------------------------------------------------- */

static void call(struct mu_averager_link *l)
{
    struct mu_averager_native *r = l->round;
    struct mu_averager *a = r->averager;

    l->stream = new_stream(a, true);
    if (l->stream == NULL) {
        mu_averager_link_sever(l, "there was no memory for a call to it");
        return;
    }
    l->stream->of = l;
    mu_peer_items_open(a->config.calls, &l->stream->items, &r->peers[l->member], a->part_name);
    greet(l);
}

void mu_averager_links_open(struct mu_averager_native *r)
{
    bool client = (r->clients >> r->hello.position & 1) != 0;

    for (uint32_t i = 0; i < r->division.member_count; i++) {
        struct mu_averager_link *l = &r->links[i];

        if (i == r->hello.position) {
            continue;
        }
        if (client && (r->clients >> i & 1) != 0) {
            mu_averager_link_sever(l, ""); /* neither can call the other */
        } else if (is_ours_to_call(r, i)) {
            call(l);
        }
    }
}

/* Calls of other members, with parts for us to average, and our answers to them. */
#include <string.h>

#include <muster/error.h>

#include "codec/average/kernel.h"
#include "core/assert.h"
#include "service/average/averager_internal.h"

#define WAITING_BYTES_MAX ((size_t)MU_AVG_PART_BYTES_MAX + 4096)

static void watch(struct mu_averager_sender *s, uint32_t ms)
{
    struct mu_env *env = s->averager->env;

    mu_env_timer_arm(env, &s->timer,
                     ms == 0 ? MU_MONO_NEVER : mu_mono_add_ms(mu_env_now(env).mono, ms));
}

static void free_values(struct mu_averager_sender *s)
{
    for (uint32_t i = 0; s->values != NULL && i < s->window; i++) {
        mu_buf_fini(&s->values[i].bytes);
    }
    mu_free(s->values);
    s->values = NULL;
}

static void free_answers(struct mu_averager_sender *s)
{
    while (!mu_list_empty(&s->answers)) {
        struct mu_averager_answer *x =
            MU_CONTAINER_OF(mu_list_pop(&s->answers), struct mu_averager_answer, link);

        mu_buf_fini(&x->message);
        mu_free(x);
    }
}

void mu_averager_sender_free(struct mu_averager_sender *s)
{
    watch(s, 0);
    mu_list_remove(&s->link);
    s->averager->streams--;
    mu_buf_fini(&s->first);
    mu_buf_fini(&s->decoded.bytes);
    free_values(s);
    free_answers(s);
    mu_free(s);
}

struct mu_averager_sender *mu_averager_sender_of(struct mu_averager *a, uint32_t member)
{
    MU_LIST_FOREACH (it, &a->senders) {
        struct mu_averager_sender *s = MU_CONTAINER_OF(it, struct mu_averager_sender, link);

        if (s->in_round && s->member == member) {
            return s;
        }
    }
    return NULL;
}

/* --- answers ---------------------------------------------------------------------------------- */

void mu_averager_sender_flush(struct mu_averager_sender *s)
{
    bool moved = false;

    while (!s->ended && !s->withheld && !mu_list_empty(&s->answers)) {
        struct mu_averager_answer *x =
            MU_CONTAINER_OF(s->answers.next, struct mu_averager_answer, link);

        if (mu_peer_items_send(&s->items, mu_buf_span(&x->message)) != 0) {
            break;
        }
        s->averager->result.bytes_sent += s->in_round ? x->message.len : 0;
        moved = true;
        mu_list_remove(&x->link);
        mu_buf_fini(&x->message);
        mu_free(x);
    }
    if (!s->ended && s->finishing && mu_list_empty(&s->answers)) {
        s->ended = true;
        moved = true;
        if (s->requests_ended) {
            (void)mu_peer_items_end(&s->items);
        }
    }
    if (moved && !s->in_round) {
        watch(s, s->averager->config.reducer_ms);
    }
}

int mu_averager_sender_answer(struct mu_averager_sender *s, struct mu_buf *message)
{
    struct mu_averager_answer *x = mu_calloc(1, sizeof(*x));

    if (x == NULL) {
        return MUSTER_ENOMEM;
    }
    x->message = *message;
    mu_buf_init(message, 0);
    mu_list_init(&x->link);
    mu_list_push(&s->answers, &x->link);
    mu_averager_sender_flush(s);
    return 0;
}

void mu_averager_sender_refuse(struct mu_averager_sender *s, enum mu_avg_code code)
{
    struct mu_avg_data data = {.code = code};
    struct mu_buf message;

    if (s->ended) {
        return;
    }
    s->in_round = false;
    s->ended = true;
    free_answers(s);
    mu_buf_init(&message, 64);
    if (mu_avg_data_encode(&data, (struct mu_span){0}, &message) == 0) {
        (void)mu_peer_items_send(&s->items, mu_buf_span(&message));
    }
    mu_buf_fini(&message);
    if (s->requests_ended) {
        (void)mu_peer_items_end(&s->items);
    }
    watch(s, s->averager->config.linger_ms);
}

void mu_averager_sender_leave(struct mu_averager_sender *s)
{
    s->in_round = false;
    s->withheld = false;
    free_values(s);
    watch(s, s->averager->config.reducer_ms);
    mu_averager_sender_flush(s);
}

/* --- parts ------------------------------------------------------------------------------------ */

/* Decodes the values of a part that can be the next one. */
static bool decode(struct mu_averager_sender *s, const struct mu_avg_data *data)
{
    const struct mu_averager_round *r = s->averager->round;
    const struct mu_avg_division *d = &r->division;
    const struct mu_reduce_member *m = &r->reduce.members[s->member];
    uint32_t position = r->reduce.config.position;
    size_t len = mu_avg_data_len(data);

    if (!data->tensor || m->delivered >= d->count[position] ||
        data->elements != d->parts[d->first[position] + m->delivered].elements) {
        return false;
    }
    s->decoded.dtype = data->dtype;
    s->decoded.compression = data->compression;
    s->decoded.elements = data->elements;
    mu_buf_reset(&s->decoded.bytes);
    return mu_buf_reserve(&s->decoded.bytes, len) == 0 &&
           mu_avg_data_values(
               data, (struct mu_space){mu_averager_room(&s->decoded.bytes, len), len}) == 0 &&
           mu_avg_can_add(data->dtype, mu_buf_span(&s->decoded.bytes).data, (size_t)data->elements,
                          data->weight);
}

/* Gives the message at hand to the machine. */
static void give(struct mu_averager_sender *s)
{
    struct mu_averager *a = s->averager;
    struct mu_averager_round *r = a->round;
    struct mu_averager_values *v;
    struct mu_buf spare;
    uint32_t first = r->division.first[r->reduce.config.position];
    uint32_t part;
    int got = mu_reduce_part(&r->reduce, mu_env_now(a->env), s->member, &s->data, s->good, &part);

    s->held = got == MUSTER_EAGAIN;
    if (s->held) {
        mu_peer_items_pause(&s->items);
        return;
    }
    if (got != 1) {
        return; /* it is banned */
    }
    mu_avg_add(mu_averager_sum(r, part), s->decoded.dtype, mu_buf_span(&s->decoded.bytes).data,
               (size_t)s->decoded.elements, s->data.weight);
    v = &s->values[(part - first) % r->window];
    spare = v->bytes;
    *v = s->decoded;
    s->decoded.bytes = spare;
    if (s->withheld && r->reduce.members[s->member].in == MU_REDUCE_IN_DELIVERED) {
        s->withheld = false;
        mu_averager_sender_flush(s);
    }
}

static void take_part(struct mu_averager_sender *s, struct mu_span message)
{
    struct mu_avg_data data = {0};
    int err = mu_avg_data_decode(message, &data);

    s->averager->result.bytes_received += message.len;
    s->data = err == 0 ? data : (struct mu_avg_data){0};
    s->good = err == 0 && decode(s, &data);
    s->data.group_id = (struct mu_span){0};
    s->data.buffer = (struct mu_span){0};
    give(s);
}

void mu_averager_sender_read(struct mu_averager_sender *s)
{
    if (s->held) {
        give(s);
    }
    if (!s->held) {
        mu_peer_items_resume(&s->items);
    }
}

/* --- whose call it is ------------------------------------------------------------------------- */

static int take_values(struct mu_averager_sender *s, uint32_t window)
{
    s->window = window;
    s->values = mu_calloc(window, sizeof(*s->values));
    for (uint32_t i = 0; s->values != NULL && i < window; i++) {
        mu_buf_init(&s->values[i].bytes, (size_t)MU_AVG_PART_BYTES_MAX + 8);
    }
    return s->values == NULL ? MUSTER_ENOMEM : 0;
}

/* The caller is in our group, or is told that it is not. */
static void enter(struct mu_averager_sender *s, struct mu_span message)
{
    struct mu_averager *a = s->averager;
    struct mu_averager_round *r = a->round;
    struct mu_avg_data data;
    enum mu_avg_code code;
    uint32_t member = 0;

    while (member < a->result.member_count &&
           !mu_peer_id_eq(&a->members[member].peer, &s->items.peer)) {
        member++;
    }
    if (member == a->result.member_count) {
        s->ended = true;
        watch(s, a->config.linger_ms);
        mu_peer_items_fail(&s->items, "you are not in this group");
        return;
    }
    if (mu_avg_data_decode(message, &data) != 0) {
        mu_averager_sender_refuse(s, MU_AVG_INTERNAL_ERROR);
        return;
    }
    if (!mu_reduce_opened(&r->reduce, mu_env_now(a->env), member, &data, &code)) {
        mu_averager_sender_refuse(s, code);
        return;
    }
    s->member = member;
    s->in_round = true;
    s->withheld = r->division.fractions[member] == 0;
    watch(s, 0); /* the machine has the deadlines */
    if (take_values(s, r->window) != 0) {
        mu_reduce_ended(&r->reduce, mu_env_now(a->env), member);
        mu_averager_sender_refuse(s, MU_AVG_INTERNAL_ERROR);
        return;
    }
    take_part(s, message);
}

static bool is_ours(const struct mu_averager *a, struct mu_span group_id)
{
    return a->round != NULL &&
           mu_span_eq(group_id, mu_span(a->round->group_id, a->round->group_id_len));
}

/* The first message of a call. */
static void begin(struct mu_averager_sender *s, struct mu_span message)
{
    struct mu_averager *a = s->averager;
    struct mu_avg_data data;

    s->begun = true;
    if (mu_avg_data_decode(message, &data) != 0 || data.code != MU_AVG_PART_FOR_AVERAGING) {
        mu_averager_sender_refuse(s, MU_AVG_INTERNAL_ERROR);
    } else if (is_ours(a, data.group_id)) {
        enter(s, message);
    } else if (a->match != NULL || mu_averager_is_next(a, data.group_id)) {
        /* Its news of the group was faster than ours, or it is a phase ahead. */
        if (mu_buf_append(&s->first, message) != 0) {
            mu_averager_sender_refuse(s, MU_AVG_INTERNAL_ERROR);
            return;
        }
        watch(s, 0);
        mu_peer_items_pause(&s->items);
    } else {
        mu_averager_sender_refuse(s, MU_AVG_BAD_GROUP_ID);
    }
}

void mu_averager_sort_senders(struct mu_averager *a)
{
    MU_LIST_FOREACH_SAFE (it, next, &a->senders) {
        struct mu_averager_sender *s = MU_CONTAINER_OF(it, struct mu_averager_sender, link);
        struct mu_buf first = s->first;

        if (first.len == 0) {
            continue;
        }
        mu_buf_init(&s->first, WAITING_BYTES_MAX);
        begin(s, mu_buf_span(&first));
        mu_buf_fini(&first);
        if (!s->held && s->first.len == 0) {
            mu_peer_items_resume(&s->items);
        }
    }
}

/* --- the call --------------------------------------------------------------------------------- */

static void on_item(struct mu_peer_items *items, struct mu_span message)
{
    struct mu_averager_sender *s = MU_CONTAINER_OF(items, struct mu_averager_sender, items);
    struct mu_averager *a = s->averager;

    if (s->ended) {
        return;
    }
    if (!s->begun) {
        begin(s, message);
    } else if (s->in_round) {
        take_part(s, message);
    }
    mu_averager_pump(a);
}

static void on_end(struct mu_peer_items *items)
{
    struct mu_averager_sender *s = MU_CONTAINER_OF(items, struct mu_averager_sender, items);
    struct mu_averager *a = s->averager;

    s->requests_ended = true;
    if (s->ended) {
        (void)mu_peer_items_end(items);
    } else if (s->in_round && a->round != NULL) {
        mu_reduce_ended(&a->round->reduce, mu_env_now(a->env), s->member);
    } else if (!s->begun) {
        mu_averager_sender_refuse(s, MU_AVG_INTERNAL_ERROR);
    }
    mu_averager_pump(a);
}

static void on_writable(struct mu_peer_items *items)
{
    mu_averager_sender_flush(MU_CONTAINER_OF(items, struct mu_averager_sender, items));
}

static void on_ended(struct mu_peer_items *items, int status, const char *text)
{
    struct mu_averager_sender *s = MU_CONTAINER_OF(items, struct mu_averager_sender, items);
    struct mu_averager *a = s->averager;

    (void)status;
    (void)text;
    if (s->in_round && a->round != NULL) {
        mu_reduce_ended(&a->round->reduce, mu_env_now(a->env), s->member);
    }
    mu_averager_sender_free(s);
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
    struct mu_averager_sender *s = MU_CONTAINER_OF(timer, struct mu_averager_sender, timer);
    struct mu_averager *a = s->averager;

    mu_peer_items_cancel(&s->items);
    mu_averager_sender_free(s);
    mu_averager_pump(a);
}

struct mu_peer_items *mu_averager_on_part(struct mu_peer_items_handler *h,
                                          const struct mu_peer_id *peer)
{
    struct mu_averager *a = MU_CONTAINER_OF(h, struct mu_averager, part_handler);
    struct mu_averager_sender *s = mu_averager_may_open(a, peer) ? mu_calloc(1, sizeof(*s)) : NULL;

    if (s == NULL) {
        return NULL;
    }
    s->averager = a;
    s->items.on = &events;
    s->items.peer = *peer;
    mu_buf_init(&s->first, WAITING_BYTES_MAX);
    mu_buf_init(&s->decoded.bytes, (size_t)MU_AVG_PART_BYTES_MAX + 8);
    mu_list_init(&s->answers);
    mu_timer_init(&s->timer, on_timer);
    mu_list_init(&s->link);
    mu_list_push(&a->senders, &s->link);
    a->streams++;
    watch(s, a->config.sender_ms);
    return &s->items;
}

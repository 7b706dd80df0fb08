/* How an averager averages in its group: the round, our calls to the owners of parts, the sums. */
#include <stdio.h>
#include <string.h>

#include <muster/error.h>

#include "codec/average/kernel.h"
#include "core/assert.h"
#include "service/average/averager_internal.h"
#include "service/base/log.h"

#define NO_PART UINT32_MAX

/* --- memory ----------------------------------------------------------------------------------- */

uint8_t *mu_averager_own(const struct mu_averager *a, const struct mu_avg_part *part)
{
    uint32_t tensor = a->filled != NULL ? a->filled[part->tensor] : part->tensor;

    return a->config.data[tensor] +
           part->offset * (mu_dtype_bits(a->config.layout->tensors[tensor].dtype) / 8);
}

static uint8_t *own_values(const struct mu_averager_round *r, const struct mu_avg_part *part)
{
    return r->vector.data[part->tensor] +
           part->offset * (mu_dtype_bits(r->vector.tensors[part->tensor].dtype) / 8);
}

float *mu_averager_sum(struct mu_averager_round *r, uint32_t part)
{
    uint32_t first = r->division.first[r->reduce.config.position];
    uint32_t slot = (part - first) % r->window;

    if (r->sum_parts[slot] != part) {
        r->sum_parts[slot] = part;
        memset(r->sums[slot], 0, (size_t)r->division.parts[part].elements * sizeof(float));
    }
    return r->sums[slot];
}

/* Room for the sums of our parts. */
static int take_sums(struct mu_averager_round *r, uint32_t position)
{
    const struct mu_avg_division *d = &r->division;
    uint64_t most = 0;

    for (uint32_t i = 0; i < d->count[position]; i++) {
        uint64_t n = d->parts[d->first[position] + i].elements;

        most = n > most ? n : most;
    }
    r->sums = mu_calloc(r->window, sizeof(*r->sums));
    r->sum_parts = mu_calloc(r->window, sizeof(*r->sum_parts));
    if (r->sums == NULL || r->sum_parts == NULL) {
        return MUSTER_ENOMEM;
    }
    for (uint32_t i = 0; i < r->window; i++) {
        r->sum_parts[i] = NO_PART;
        r->sums[i] = i < d->count[position] ? mu_malloc((size_t)most * sizeof(float)) : NULL;
        if (r->sums[i] == NULL && i < d->count[position]) {
            return MUSTER_ENOMEM;
        }
    }
    return 0;
}

void mu_averager_out_free(struct mu_averager_out *o)
{
    mu_env_timer_arm(o->averager->env, &o->timer, MU_MONO_NEVER);
    if (o->active) {
        mu_peer_items_cancel(&o->items);
    }
    mu_list_remove(&o->link);
    mu_buf_fini(&o->message);
    mu_free(o);
}

/* The round is over: the call ends now, or, if it has done its work, by itself. */
static void leave_out(const struct mu_averager_round *r, struct mu_averager_out *o)
{
    struct mu_averager *a = o->averager;

    if (!o->active || r->reduce.members[o->member].out != MU_REDUCE_OUT_DONE) {
        mu_averager_out_free(o);
        return;
    }
    o->over = true;
    mu_list_push(&a->outs, &o->link);
    mu_env_timer_arm(a->env, &o->timer,
                     mu_mono_add_ms(mu_env_now(a->env).mono, a->config.linger_ms));
}

void mu_averager_round_free(struct mu_averager *a)
{
    struct mu_averager_round *r = a->round;

    if (r == NULL) {
        return;
    }
    for (size_t i = 0; r->outs != NULL && i < r->division.member_count; i++) {
        if (r->outs[i] != NULL) {
            leave_out(r, r->outs[i]);
        }
    }
    for (uint32_t i = 0; r->sums != NULL && i < r->window; i++) {
        mu_free(r->sums[i]);
    }
    mu_free(r->sums);
    mu_free(r->sum_parts);
    mu_free(r->outs);
    mu_buf_fini(&r->scratch);
    mu_avg_division_fini(&r->division);
    mu_free(r);
    a->round = NULL;
}

/* --- its begin -------------------------------------------------------------------------------- */

/* What each member said of itself, and the bucket of the next step. */
static int take_group(struct mu_averager *a, struct mu_avg_gather *gathered, struct mu_errmsg *msg)
{
    const struct mu_avg_reply *group = &a->match->group;
    size_t n = group->member_count;
    size_t at = 0;

    mu_buf_reset(&a->told);
    for (size_t i = 0; i < n; i++) {
        if (mu_buf_append(&a->told, group->gathered[i]) != 0) {
            return mu_err(msg, MUSTER_ENOMEM, "out of memory");
        }
    }
    a->members = mu_calloc(n, sizeof(*a->members));
    a->whys = mu_calloc(n, sizeof(*a->whys));
    if (a->members == NULL || a->whys == NULL) {
        return mu_err(msg, MUSTER_ENOMEM, "out of memory");
    }
    for (size_t i = 0; i < n; i++) {
        struct mu_span own = mu_span(mu_buf_span(&a->told).data + at, group->gathered[i].len);

        if (mu_avg_gather_decode(own, &gathered[i]) != 0) {
            return mu_err(msg, MUSTER_EPROTO, "a member of the group cannot be understood");
        }
        at += own.len;
        a->members[i] = (struct mu_averager_member){
            .peer = group->members[i], .mode = gathered[i].mode, .user = gathered[i].user};
    }
    a->result.member_count = n;
    a->result.position = a->match->position;
    a->result.leading = a->match->leading;
    memcpy(a->result.group_id, group->group_id.data, sizeof(a->result.group_id));
    /* A group that is larger than our aim, because its leader aims at more, stays in its bucket. */
    if (mu_avg_next_bits(group->group_id, a->config.target_size, (uint32_t)n, a->match->position,
                         a->bits) == 0) {
        (void)mu_avg_key_format(a->key, a->prefix, a->bits);
    }
    return 0;
}

static int cannot_divide(int err, struct mu_errmsg *msg)
{
    return mu_err(msg, err, "the vector cannot be divided among the members: %s",
                  muster_strerror(err));
}

/* The group, and how much of all values each member is to average. */
static int take_fractions(struct mu_averager *a, uint64_t *ret, struct mu_errmsg *msg)
{
    struct mu_avg_gather gathered[MU_AVG_MEMBERS_MAX];
    int err = take_group(a, gathered, msg);

    if (err != 0) {
        return err;
    }
    err = mu_avg_fractions(a->values, gathered, a->result.member_count, ret);
    if (err == MUSTER_ENOTSUP) {
        return mu_err(msg, err,
                      "a member of the group tells its bandwidth, for which the shares of members "
                      "are not unique; set bandwidth=None at all of hivemind's averagers");
    }
    return err == 0 ? 0 : cannot_divide(err, msg);
}

int mu_averager_take_group(struct mu_averager *a, struct mu_avg_division *ret,
                           struct mu_errmsg *msg)
{
    uint64_t fractions[MU_AVG_MEMBERS_MAX];
    int err = take_fractions(a, fractions, msg);

    if (err != 0) {
        return err;
    }
    err = mu_avg_divide_vector(ret, a->tensors, a->tensor_count, fractions, a->result.member_count,
                               a->config.part_bytes);
    return err == 0 ? 0 : cannot_divide(err, msg);
}

/* How long the phase may take: what is left of the round, and of the step. */
static uint32_t time_left(const struct mu_averager *a, struct mu_now now)
{
    uint64_t all = a->config.reduce_ms;
    uint64_t spent = mu_mono_since(a->reducing, now.mono) / MU_NS_PER_MS;
    uint64_t left = all == 0 ? UINT32_MAX : all > spent ? all - spent : 1;

    if (a->until.ns != MU_MONO_NEVER.ns) {
        uint64_t of_step = mu_mono_until_ms(a->until, now.mono);

        of_step = of_step == 0 ? 1 : of_step;
        left = of_step < left ? of_step : left;
    }
    return left >= UINT32_MAX ? 0 : (uint32_t)left;
}

static int begin_machine(struct mu_averager *a, struct mu_errmsg *msg)
{
    struct mu_reduce_config config = mu_reduce_config_defaults();
    struct mu_averager_round *r = a->round;
    struct mu_now now = mu_env_now(a->env);
    int err;

    config.division = &r->division;
    config.group_id = mu_span(r->group_id, r->group_id_len);
    config.position = a->result.position;
    config.weight = a->config.mode == MU_AVG_AUX ? 0 : a->step->weight;
    config.sender_ms = a->config.sender_ms;
    config.reducer_ms = a->config.reducer_ms;
    config.total_ms = time_left(a, now);
    r->window = config.window;
    err = take_sums(r, config.position);
    err = err != 0 ? err : mu_reduce_init(&r->reduce, &config, now);
    return err == 0 ? 0 : mu_err(msg, err, "cannot begin a round: %s", muster_strerror(err));
}

static void name_phase(struct mu_averager *a, struct mu_averager_round *r)
{
    static const char *const suffixes[] = {"", MU_AVG_PHASE_P, MU_AVG_PHASE_Q};
    size_t len = strlen(suffixes[r->phase]);

    memcpy(r->group_id, a->result.group_id, sizeof(a->result.group_id));
    memcpy(r->group_id + sizeof(a->result.group_id), suffixes[r->phase], len);
    r->group_id_len = sizeof(a->result.group_id) + len;
}

static int begin_round(struct mu_averager *a, unsigned phase,
                       const struct mu_averager_vector *vector, const uint64_t *fractions,
                       struct mu_errmsg *msg)
{
    struct mu_averager_round *r = mu_calloc(1, sizeof(*r));
    int err;

    if (r == NULL) {
        return mu_err(msg, MUSTER_ENOMEM, "out of memory");
    }
    a->round = r;
    r->phase = phase;
    r->vector = *vector;
    mu_buf_init(&r->scratch, 2 * (size_t)MU_AVG_PART_BYTES_MAX);
    name_phase(a, r);
    err = mu_avg_divide_vector(&r->division, vector->tensors, vector->count, fractions,
                               a->result.member_count, a->config.part_bytes);
    if (err != 0) {
        err = cannot_divide(err, msg);
    } else {
        r->outs = mu_calloc(r->division.member_count, sizeof(*r->outs));
        err = r->outs == NULL ? mu_err(msg, MUSTER_ENOMEM, "out of memory") : 0;
    }
    err = err != 0 ? err : begin_machine(a, msg);
    if (err != 0) {
        mu_averager_round_free(a);
    }
    return err;
}

int mu_averager_round_begin(struct mu_averager *a, struct mu_errmsg *msg)
{
    struct mu_averager_vector vector = {a->tensors, a->tensor_count, a->config.data};
    uint64_t fractions[MU_AVG_MEMBERS_MAX];
    int err = take_fractions(a, fractions, msg);

    a->reducing = mu_env_now(a->env).mono;
    if (err == 0 && a->power != NULL && mu_averager_power_begin(a, &vector) != 0) {
        err = mu_err(msg, MUSTER_ENOMEM, "there is no memory for what PowerSGD averages");
    }
    err = err != 0 ? err
                   : begin_round(a, a->power != NULL ? MU_AVERAGER_PHASE_P : MU_AVERAGER_WHOLE,
                                 &vector, fractions, msg);
    if (err != 0) {
        mu_averager_power_end(a);
        return err;
    }
    mu_log(MUSTER_LOG_INFO, "AVERAGE-GROUP", "key=%s members=%zu position=%u%s", a->result_key,
           a->result.member_count, a->result.position, a->result.leading ? " leading" : "");
    return 0;
}

bool mu_averager_is_next(const struct mu_averager *a, struct mu_span group_id)
{
    size_t len = sizeof(a->result.group_id);

    return a->round != NULL && a->round->phase == MU_AVERAGER_PHASE_P && group_id.len > len &&
           memcmp(group_id.data, a->result.group_id, len) == 0 &&
           mu_span_eq(mu_span_skip(group_id, len), MU_SPAN_LIT(MU_AVG_PHASE_Q));
}

/* --- our calls -------------------------------------------------------------------------------- */

static void on_result(struct mu_peer_items *items, struct mu_span message)
{
    struct mu_averager_out *o = MU_CONTAINER_OF(items, struct mu_averager_out, items);
    struct mu_averager *a = o->averager;
    struct mu_averager_round *r = a->round;
    const struct mu_avg_division *d = o->over ? NULL : &r->division;
    struct mu_avg_data data = {0};
    bool good = false;
    uint32_t due;
    uint32_t part;

    if (o->over) {
        return;
    }
    due = d->first[o->member] + r->reduce.members[o->member].results;
    a->result.bytes_received += message.len;
    if (mu_avg_data_decode(message, &data) == 0 && data.tensor &&
        r->reduce.members[o->member].results < d->count[o->member] &&
        data.elements == d->parts[due].elements &&
        data.dtype == mu_avg_delta_dtype(r->vector.tensors[d->parts[due].tensor].dtype)) {
        size_t len = mu_avg_data_len(&data);

        mu_buf_reset(&r->scratch);
        good = mu_buf_reserve(&r->scratch, len) == 0 &&
               mu_avg_data_values(
                   &data, (struct mu_space){mu_averager_room(&r->scratch, len), len}) == 0 &&
               mu_avg_can_apply(r->vector.tensors[d->parts[due].tensor].dtype,
                                own_values(r, &d->parts[due]), mu_buf_span(&r->scratch).data,
                                (size_t)d->parts[due].elements, 1);
    }
    if (mu_reduce_result(&r->reduce, mu_env_now(a->env), o->member, &data, good, &part) == 1) {
        const struct mu_avg_part *p = &d->parts[part];

        mu_avg_apply(r->vector.tensors[p->tensor].dtype, own_values(r, p),
                     mu_buf_span(&r->scratch).data, (size_t)p->elements, 1);
        r->parts_done++;
    }
    mu_averager_pump(a);
}

static void on_out_ended(struct mu_peer_items *items, int status, const char *text)
{
    struct mu_averager_out *o = MU_CONTAINER_OF(items, struct mu_averager_out, items);
    struct mu_averager *a = o->averager;

    o->active = false;
    if (o->over) {
        mu_averager_out_free(o);
        mu_averager_pump(a);
        return;
    }
    (void)mu_err(&o->why, status, "%s",
                 status == 0 ? "it ended the call before all results had come" : text);
    mu_reduce_cut_off(&a->round->reduce, mu_env_now(a->env), o->member, o->why.text);
    mu_averager_pump(a);
}

/* Sends the message that waits, if there is room. */
static void send_waiting(struct mu_averager_out *o)
{
    struct mu_averager *a = o->averager;
    int err;

    if (!o->waiting) {
        return;
    }
    err = mu_peer_items_send(&o->items, mu_buf_span(&o->message));
    if (err == MUSTER_EAGAIN) {
        return;
    }
    o->waiting = false;
    a->result.bytes_sent += err == 0 ? o->message.len : 0;
    mu_buf_reset(&o->message);
    if (err == 0 && o->last) {
        err = mu_peer_items_end(&o->items);
    }
    if (err != 0) {
        o->active = false;
        mu_peer_items_cancel(&o->items);
        (void)mu_err(&o->why, err, "our part could not be sent: %s", muster_strerror(err));
        mu_reduce_cut_off(&a->round->reduce, mu_env_now(a->env), o->member, o->why.text);
        return;
    }
    mu_reduce_sent(&a->round->reduce, mu_env_now(a->env), o->member);
}

static void on_out_writable(struct mu_peer_items *items)
{
    struct mu_averager_out *o = MU_CONTAINER_OF(items, struct mu_averager_out, items);

    if (!o->over) {
        send_waiting(o);
        mu_averager_pump(o->averager);
    }
}

static void on_out_timer(struct mu_timer *timer)
{
    struct mu_averager_out *o = MU_CONTAINER_OF(timer, struct mu_averager_out, timer);
    struct mu_averager *a = o->averager;

    mu_averager_out_free(o);
    mu_averager_pump(a);
}

static const struct mu_peer_items_events out_events = {
    .item = on_result,
    .writable = on_out_writable,
    .ended = on_out_ended,
};

static void open_out(struct mu_averager *a, uint32_t member)
{
    struct mu_averager_out *o = mu_calloc(1, sizeof(*o));

    if (o == NULL) {
        mu_reduce_cut_off(&a->round->reduce, mu_env_now(a->env), member,
                          "there was no memory for a call to it");
        return;
    }
    a->round->outs[member] = o;
    o->averager = a;
    o->member = member;
    mu_buf_init(&o->message, 2 * (size_t)MU_AVG_PART_BYTES_MAX);
    mu_list_init(&o->link);
    mu_timer_init(&o->timer, on_out_timer);
    o->items.on = &out_events;
    o->active = true;
    mu_peer_items_open(a->config.calls, &o->items, &a->members[member].peer, a->part_name);
}

static void send_part(struct mu_averager *a, const struct mu_reduce_event *e)
{
    struct mu_averager_out *o = a->round->outs[e->member];
    const struct mu_avg_part *p = &a->round->division.parts[e->part];
    const struct mu_avg_tensor *t = &a->round->vector.tensors[p->tensor];
    struct mu_avg_data data = {
        .code = e->first ? MU_AVG_PART_FOR_AVERAGING : MU_AVG_NO_CODE,
        .weight = a->round->reduce.config.weight,
        .tensor = true,
        .dtype = t->dtype,
        .compression = t->compression,
        .elements = p->elements,
    };
    int err;

    if (e->first) {
        data.group_id = mu_span(a->round->group_id, a->round->group_id_len);
    }
    mu_buf_reset(&o->message);
    err = mu_avg_data_encode(&data, mu_span(own_values(a->round, p), mu_avg_data_len(&data)),
                             &o->message);
    if (err != 0) {
        o->active = false;
        mu_peer_items_cancel(&o->items);
        (void)mu_err(&o->why, err, "our part could not be encoded: %s", muster_strerror(err));
        mu_reduce_cut_off(&a->round->reduce, mu_env_now(a->env), e->member, o->why.text);
        return;
    }
    o->waiting = true;
    o->last = e->last;
    send_waiting(o);
}

static void cut_out(struct mu_averager *a, uint32_t member)
{
    struct mu_averager_out *o = a->round->outs[member];

    if (o != NULL && o->active) {
        o->active = false;
        o->waiting = false;
        mu_peer_items_cancel(&o->items);
    }
}

/* --- sums ------------------------------------------------------------------------------------- */

/* Answers a member with what its values differ by; NULL: there is no average. */
static int answer(struct mu_averager *a, struct mu_averager_sender *s, uint32_t part,
                  const float *average)
{
    struct mu_averager_round *r = a->round;
    uint32_t first = r->division.first[r->reduce.config.position];
    struct mu_averager_values *v = &s->values[(part - first) % r->window];
    struct mu_avg_data data = {
        .code = MU_AVG_AVERAGED_PART,
        .tensor = true,
        .dtype = mu_avg_delta_dtype(v->dtype),
        .compression = v->compression,
        .elements = v->elements,
    };
    size_t len = mu_avg_data_len(&data);
    struct mu_buf message;
    uint8_t *delta;
    int err;

    mu_buf_reset(&r->scratch);
    err = mu_buf_reserve(&r->scratch, len);
    if (err != 0) {
        return err;
    }
    delta = mu_averager_room(&r->scratch, len);
    if (average != NULL) {
        mu_avg_delta(delta, average, v->dtype, mu_buf_span(&v->bytes).data, (size_t)v->elements);
    } else if (len != 0) {
        memset(delta, 0, len);
    }
    mu_buf_init(&message, 2 * (size_t)MU_AVG_PART_BYTES_MAX);
    err = mu_avg_data_encode(&data, mu_buf_span(&r->scratch), &message);
    err = err != 0 ? err : mu_averager_sender_answer(s, &message);
    mu_buf_fini(&message);
    return err;
}

static void apply_own(struct mu_averager *a, const struct mu_avg_part *p, const float *average)
{
    struct mu_averager_round *r = a->round;
    enum mu_dtype dtype = r->vector.tensors[p->tensor].dtype;
    size_t len = (size_t)p->elements * mu_dtype_bits(mu_avg_delta_dtype(dtype)) / 8;
    uint8_t *own = own_values(r, p);
    uint8_t *delta;

    r->parts_done++;
    mu_buf_reset(&r->scratch);
    if (average == NULL || mu_buf_reserve(&r->scratch, len) != 0) {
        return;
    }
    delta = mu_averager_room(&r->scratch, len);
    mu_avg_delta(delta, average, dtype, own, (size_t)p->elements);
    if (mu_avg_can_apply(dtype, own, delta, (size_t)p->elements, 1)) {
        mu_avg_apply(dtype, own, delta, (size_t)p->elements, 1);
    }
}

/* The average of a part of ours; NULL: there is none, because all weights are zero, or are as
 * floats. */
static const float *average_of(struct mu_averager_round *r, const struct mu_reduce_event *e)
{
    size_t n = (size_t)r->division.parts[e->part].elements;
    float *average;

    if (e->weights <= 0) {
        return NULL;
    }
    average = mu_averager_sum(r, e->part);
    mu_avg_divide(average, n, e->weights);
    return mu_avg_finite(MU_DTYPE_F32, (const uint8_t *)average, n) ? average : NULL;
}

static void part_done(struct mu_averager *a, const struct mu_reduce_event *e)
{
    struct mu_averager_round *r = a->round;
    const struct mu_avg_part *p = &r->division.parts[e->part];
    const float *average = average_of(r, e);

    for (uint32_t i = 0; i < r->division.member_count; i++) {
        struct mu_averager_sender *s;

        if (!r->reduce.included[i] || i == r->reduce.config.position ||
            r->reduce.members[i].in == MU_REDUCE_IN_BANNED) {
            continue;
        }
        s = mu_averager_sender_of(a, i);
        if (s != NULL && answer(a, s, e->part, average) != 0) {
            mu_averager_sender_refuse(s, MU_AVG_INTERNAL_ERROR);
            mu_peer_items_resume(&s->items);
        }
    }
    apply_own(a, p, average);
    r->sum_parts[(e->part - r->division.first[r->reduce.config.position]) % r->window] = NO_PART;
}

static void add_own(struct mu_averager *a, uint32_t part)
{
    struct mu_averager_round *r = a->round;
    const struct mu_avg_part *p = &r->division.parts[part];

    mu_avg_add(mu_averager_sum(r, part), r->vector.tensors[p->tensor].dtype, own_values(r, p),
               (size_t)p->elements, r->reduce.config.weight);
}

/* --- its end ---------------------------------------------------------------------------------- */

/* Of all phases. */
static void tell_members(struct mu_averager *a)
{
    const struct mu_averager_round *r = a->round;

    for (uint32_t i = 0; i < r->division.member_count; i++) {
        const struct mu_reduce_member *m = &r->reduce.members[i];
        struct mu_averager_member *told = &a->members[i];

        if (i == r->reduce.config.position) {
            told->weighed = true;
            told->weight = r->reduce.config.weight;
            continue;
        }
        told->weight = m->weighed ? m->weight : told->weight;
        told->weighed |= m->weighed;
        told->sent += m->delivered;
        told->owed += m->in == MU_REDUCE_IN_NONE ? 0 : r->division.count[r->reduce.config.position];
        told->results += m->results;
        told->owns += m->out == MU_REDUCE_OUT_NONE ? 0 : r->division.count[i];
        if (m->why != NULL && told->why == NULL) {
            (void)mu_err(&a->whys[i], 0, "%s", m->why);
            told->why = a->whys[i].text;
        }
    }
}

/* The second phase of PowerSGD, or the end. */
static void go_on(struct mu_averager *a, unsigned phase, const uint64_t *fractions)
{
    struct mu_averager_vector vector;
    struct mu_errmsg msg;
    int err = phase == MU_AVERAGER_PHASE_P   ? mu_averager_power_turn(a, &vector)
              : phase == MU_AVERAGER_PHASE_Q ? mu_averager_power_put(a)
                                             : 0;

    if (err != 0) {
        (void)mu_err(&msg, err, "the average of the compressed gradients is not finite");
    } else if (phase == MU_AVERAGER_PHASE_P) {
        err = begin_round(a, MU_AVERAGER_PHASE_Q, &vector, fractions, &msg);
        if (err == 0) {
            return;
        }
    }
    mu_averager_finish(a, err, err == 0 ? "" : msg.text);
}

static void end_round(struct mu_averager *a)
{
    struct mu_averager_round *r = a->round;
    unsigned phase = r->phase;
    uint64_t fractions[MU_AVG_MEMBERS_MAX];
    int status = mu_reduce_status(&r->reduce);

    memcpy(fractions, r->division.fractions, sizeof(fractions));
    a->result.reduce_ms = mu_mono_since(a->reducing, mu_env_now(a->env).mono) / MU_NS_PER_MS;
    a->result.parts += (uint32_t)r->division.part_count;
    a->result.parts_local += mu_reduce_parts_local(&r->reduce);
    tell_members(a);
    MU_LIST_FOREACH_SAFE (it, next, &a->senders) {
        struct mu_averager_sender *s = MU_CONTAINER_OF(it, struct mu_averager_sender, link);

        if (s->in_round) {
            mu_averager_sender_leave(s);
        }
    }
    if (status != 0) {
        mu_averager_finish(a, status, mu_reduce_text(&r->reduce));
    }
    mu_averager_round_free(a);
    if (status == 0) {
        go_on(a, phase, fractions);
    }
    if (a->round == NULL) {
        mu_averager_power_end(a);
    }
    mu_averager_sort_senders(a); /* those that were a phase ahead */
}

static void carry_out(struct mu_averager *a, const struct mu_reduce_event *e)
{
    struct mu_averager_sender *s = NULL;

    switch (e->type) {
    case MU_REDUCE_OPEN:
        open_out(a, e->member);
        return;
    case MU_REDUCE_SEND:
        send_part(a, e);
        return;
    case MU_REDUCE_CUT:
        cut_out(a, e->member);
        return;
    case MU_REDUCE_OWN:
        add_own(a, e->part);
        return;
    case MU_REDUCE_DONE:
        part_done(a, e);
        return;
    case MU_REDUCE_END:
        end_round(a);
        return;
    case MU_REDUCE_READ:
    case MU_REDUCE_BAN:
    case MU_REDUCE_FINISH:
        break;
    }
    s = mu_averager_sender_of(a, e->member);
    if (s == NULL) {
        return;
    }
    if (e->type == MU_REDUCE_READ) {
        mu_averager_sender_read(s);
    } else if (e->type == MU_REDUCE_BAN) {
        mu_averager_sender_refuse(s, e->code);
        mu_peer_items_resume(&s->items);
    } else {
        s->finishing = true;
        mu_averager_sender_flush(s);
    }
}

void mu_averager_round_pump(struct mu_averager *a)
{
    struct mu_reduce_event e;

    while (a->round != NULL && mu_reduce_next_event(&a->round->reduce, &e)) {
        carry_out(a, &e);
    }
}

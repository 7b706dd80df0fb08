#include "proto/average/reduce.h"

#include "core/assert.h"

struct mu_reduce_config mu_reduce_config_defaults(void)
{
    return (struct mu_reduce_config){
        .weight = 1,
        .window = 8,
        .sender_ms = 15000,
        .reducer_ms = 30000,
        .total_ms = 60000,
    };
}

/* How many parts are ours. */
static uint32_t own_count(const struct mu_reduce *r)
{
    return r->config.division->count[r->config.position];
}

static mu_mono_t after(mu_mono_t since, uint32_t ms)
{
    return ms == 0 ? MU_MONO_NEVER : mu_mono_add_ms(since, ms);
}

int mu_reduce_init(struct mu_reduce *r, const struct mu_reduce_config *config, struct mu_now now)
{
    const struct mu_avg_division *d = config->division;

    memset(r, 0, sizeof(*r));
    if (config->position >= d->member_count || config->window == 0 || config->group_id.len == 0 ||
        config->group_id.len > MU_AVG_GROUP_ID_MAX ||
        !(config->weight >= 0 && config->weight <= MU_AVG_WEIGHT_MAX)) {
        return MUSTER_EINVAL;
    }
    r->config = *config;
    memcpy(r->group_id, config->group_id.data, config->group_id.len);
    r->group_id_len = config->group_id.len;
    r->config.group_id = (struct mu_span){0}; /* it was lent */
    r->now = now.mono;
    r->until = after(now.mono, config->total_ms);
    for (size_t i = 0; i < d->member_count; i++) {
        struct mu_reduce_member *m = &r->members[i];

        /* A member without a share may have been given parts without values; it has no handler. */
        if (i != config->position && d->count[i] != 0 && d->fractions[i] != 0) {
            m->out = MU_REDUCE_OUT_NEW;
        }
        if (own_count(r) != 0 && d->fractions[config->position] != 0) {
            m->in = i == config->position ? MU_REDUCE_IN_OPEN : MU_REDUCE_IN_WAITING;
        }
        m->out_since = now.mono;
        m->in_since = now.mono;
    }
    if (r->members[config->position].in == MU_REDUCE_IN_NONE) {
        r->current = own_count(r);
    }
    return 0;
}

/* --- what goes wrong -------------------------------------------------------------------------- */

static void cut(struct mu_reduce *r, uint32_t member, const char *why)
{
    struct mu_reduce_member *m = &r->members[member];

    if (m->out == MU_REDUCE_OUT_NEW || m->out == MU_REDUCE_OUT_OPEN) {
        m->tell_cut = m->out == MU_REDUCE_OUT_OPEN;
        m->out = MU_REDUCE_OUT_LOST;
        m->why = why;
    }
}

static void ban(struct mu_reduce *r, uint32_t member, enum mu_avg_code code, const char *why)
{
    struct mu_reduce_member *m = &r->members[member];

    if (m->in == MU_REDUCE_IN_WAITING || m->in == MU_REDUCE_IN_OPEN ||
        m->in == MU_REDUCE_IN_DELIVERED) {
        m->in = MU_REDUCE_IN_BANNED;
        m->code = code;
        m->tell_ban = m->called;
        m->tell_read = false;
        m->tell_finish = false;
        m->why = why;
    }
}

static void end(struct mu_reduce *r, int status, const char *text, enum mu_avg_code code)
{
    if (r->ended) {
        return;
    }
    for (uint32_t i = 0; i < r->config.division->member_count; i++) {
        cut(r, i, text);
        /* Who has got all answers needs no code. */
        if (i != r->config.position && r->current < own_count(r)) {
            ban(r, i, code, text);
        }
    }
    r->ended = true;
    r->status = status;
    (void)mu_err(&r->text, status, "%s", text);
}

void mu_reduce_cancel(struct mu_reduce *r, struct mu_now now)
{
    r->now = now.mono;
    end(r, MUSTER_ECANCELED, "the round was cancelled", MU_AVG_CANCELLED);
}

/* --- as a sender ------------------------------------------------------------------------------ */

void mu_reduce_sent(struct mu_reduce *r, struct mu_now now, uint32_t member)
{
    struct mu_reduce_member *m = &r->members[member];

    if (m->out != MU_REDUCE_OUT_OPEN || !m->sending) {
        return;
    }
    m->sending = false;
    /* Nothing was owed before, or nothing is read before all is sent: the wait begins now. */
    if (m->results == m->sent || r->config.division->fractions[r->config.position] == 0) {
        m->out_since = now.mono;
    }
    m->sent++;
}

int mu_reduce_result(struct mu_reduce *r, struct mu_now now, uint32_t member,
                     const struct mu_avg_data *data, bool good, uint32_t *ret_part)
{
    const struct mu_avg_division *d = r->config.division;
    struct mu_reduce_member *m = &r->members[member];
    uint32_t part = d->first[member] + m->results;

    if (r->ended || m->out != MU_REDUCE_OUT_OPEN) {
        if (m->out == MU_REDUCE_OUT_DONE && !r->ended) {
            m->tell_cut = true; /* more results than parts; what came counts */
        }
        return 0;
    }
    if (!data->tensor || data->code != MU_AVG_AVERAGED_PART) {
        cut(r, member, "it refused our parts");
    } else if (m->results == m->sent + m->sending) {
        cut(r, member, "it answered a part before it was sent");
    } else if (!good || data->elements != d->parts[part].elements) {
        cut(r, member,
            "its result cannot be read, is not finite with our values, or has another length than "
            "our part");
    } else {
        *ret_part = part;
        m->results++;
        m->out_since = now.mono;
        m->out = m->results == d->count[member] ? MU_REDUCE_OUT_DONE : m->out;
        return 1;
    }
    return 0;
}

void mu_reduce_cut_off(struct mu_reduce *r, struct mu_now now, uint32_t member, const char *why)
{
    (void)now;
    cut(r, member, why);
    r->members[member].tell_cut = false; /* it is closed already */
}

/* --- as a reducer ----------------------------------------------------------------------------- */

bool mu_reduce_opened(struct mu_reduce *r, struct mu_now now, uint32_t member,
                      const struct mu_avg_data *first, enum mu_avg_code *ret_code)
{
    struct mu_reduce_member *m = &r->members[member];

    r->now = now.mono;
    *ret_code = MU_AVG_INTERNAL_ERROR;
    if (r->ended) {
        *ret_code = r->status == MUSTER_ECANCELED ? MU_AVG_CANCELLED : MU_AVG_INTERNAL_ERROR;
        return false;
    }
    if (member == r->config.position) {
        return false;
    }
    if (m->in != MU_REDUCE_IN_WAITING) {
        ban(r, member, MU_AVG_INTERNAL_ERROR, "it called twice");
        return false;
    }
    if (first->code != MU_AVG_PART_FOR_AVERAGING) {
        ban(r, member, MU_AVG_INTERNAL_ERROR, "its first message is not a part");
        return false;
    }
    if (!mu_span_eq(first->group_id, mu_span(r->group_id, r->group_id_len))) {
        *ret_code = MU_AVG_BAD_GROUP_ID;
        return false;
    }
    m->in = MU_REDUCE_IN_OPEN;
    m->called = true;
    m->in_since = now.mono;
    return true;
}

/* Whether the part can be this member's next one; otherwise it is banned. */
static bool is_sound(struct mu_reduce *r, uint32_t member, const struct mu_avg_data *data,
                     bool good)
{
    const struct mu_avg_division *d = r->config.division;
    struct mu_reduce_member *m = &r->members[member];
    const char *why = NULL;

    if (m->delivered == own_count(r)) {
        why = "it sent more parts than there are";
    } else if (!data->tensor ||
               (data->code != MU_AVG_NO_CODE && data->code != MU_AVG_PART_FOR_AVERAGING)) {
        why = "it sent something else than a part";
    } else if (!good ||
               data->elements != d->parts[d->first[r->config.position] + m->delivered].elements) {
        why = "a part of it cannot be read, is not finite or too large to be added, or has a wrong "
              "length";
    } else if (!(data->weight >= 0 && data->weight <= MU_AVG_WEIGHT_MAX) ||
               (m->weighed && m->weight != data->weight)) {
        why = "its weight cannot be, or has changed";
    }
    if (why != NULL) {
        ban(r, member, MU_AVG_INTERNAL_ERROR, why);
    }
    return why == NULL;
}

int mu_reduce_part(struct mu_reduce *r, struct mu_now now, uint32_t member,
                   const struct mu_avg_data *data, bool good, uint32_t *ret_part)
{
    struct mu_reduce_member *m = &r->members[member];

    if (r->ended || member == r->config.position ||
        (m->in != MU_REDUCE_IN_OPEN && m->in != MU_REDUCE_IN_DELIVERED)) {
        return 0;
    }
    r->now = now.mono;
    if (!is_sound(r, member, data, good)) {
        return 0;
    }
    if (m->delivered >= r->current + r->config.window) {
        m->held = true;
        return MUSTER_EAGAIN;
    }
    m->held = false;
    m->weighed = true;
    m->weight = data->weight;
    *ret_part = r->config.division->first[r->config.position] + m->delivered;
    m->delivered++;
    m->in_since = now.mono;
    m->in = m->delivered == own_count(r) ? MU_REDUCE_IN_DELIVERED : m->in;
    return 1;
}

void mu_reduce_ended(struct mu_reduce *r, struct mu_now now, uint32_t member)
{
    r->now = now.mono;
    if (r->members[member].in != MU_REDUCE_IN_DELIVERED) {
        ban(r, member, MU_AVG_INTERNAL_ERROR, "it left before it had sent all its parts");
    }
}

/* --- time ------------------------------------------------------------------------------------- */

/* Whether the member owes the part that is waited for, or has not even called. */
static bool is_owing(const struct mu_reduce *r, uint32_t member)
{
    const struct mu_reduce_member *m = &r->members[member];

    return member != r->config.position &&
           (m->in == MU_REDUCE_IN_WAITING ||
            (m->in == MU_REDUCE_IN_OPEN && m->delivered < r->current + r->config.window));
}

static mu_mono_t in_deadline(const struct mu_reduce *r, uint32_t member)
{
    return is_owing(r, member) ? after(r->members[member].in_since, r->config.sender_ms)
                               : MU_MONO_NEVER;
}

static mu_mono_t out_deadline(const struct mu_reduce *r, uint32_t member)
{
    const struct mu_reduce_member *m = &r->members[member];

    return m->out == MU_REDUCE_OUT_OPEN || m->out == MU_REDUCE_OUT_NEW
               ? after(m->out_since, r->config.reducer_ms)
               : MU_MONO_NEVER;
}

mu_mono_t mu_reduce_deadline(const struct mu_reduce *r)
{
    mu_mono_t at = r->until;

    if (r->ended) {
        return MU_MONO_NEVER;
    }
    for (uint32_t i = 0; i < r->config.division->member_count; i++) {
        at = mu_mono_min(at, mu_mono_min(in_deadline(r, i), out_deadline(r, i)));
    }
    return at;
}

void mu_reduce_tick(struct mu_reduce *r, struct mu_now now)
{
    if (r->ended) {
        return;
    }
    r->now = now.mono;
    for (uint32_t i = 0; i < r->config.division->member_count; i++) {
        if (mu_mono_reached(in_deadline(r, i), now.mono)) {
            ban(r, i, MU_AVG_INTERNAL_ERROR, "it did not send its next part in time");
        }
        if (mu_mono_reached(out_deadline(r, i), now.mono)) {
            cut(r, i, "it did not send its next result in time");
        }
    }
    if (mu_mono_reached(r->until, now.mono)) {
        end(r, MUSTER_ETIMEDOUT, "the round took too long", MU_AVG_INTERNAL_ERROR);
    }
}

/* --- out -------------------------------------------------------------------------------------- */

static bool tell(struct mu_reduce_event *ret, enum mu_reduce_event_type type, uint32_t member,
                 uint32_t part)
{
    *ret = (struct mu_reduce_event){.type = type, .member = member, .part = part};
    return true;
}

/* What is to be said of one member. */
static bool next_of_member(struct mu_reduce *r, uint32_t i, struct mu_reduce_event *ret)
{
    const struct mu_avg_division *d = r->config.division;
    struct mu_reduce_member *m = &r->members[i];

    if (m->tell_ban) {
        m->tell_ban = false;
        (void)tell(ret, MU_REDUCE_BAN, i, 0);
        ret->code = m->code;
        return true;
    }
    if (m->tell_cut) {
        m->tell_cut = false;
        return tell(ret, MU_REDUCE_CUT, i, d->first[i] + m->results);
    }
    if (m->tell_read) {
        m->tell_read = false;
        return tell(ret, MU_REDUCE_READ, i, 0);
    }
    if (m->tell_finish) {
        m->tell_finish = false;
        return tell(ret, MU_REDUCE_FINISH, i, 0);
    }
    if (m->out == MU_REDUCE_OUT_NEW) {
        m->out = MU_REDUCE_OUT_OPEN;
        return tell(ret, MU_REDUCE_OPEN, i, 0);
    }
    if (m->out == MU_REDUCE_OUT_OPEN && !m->sending && m->sent < d->count[i]) {
        m->sending = true;
        (void)tell(ret, MU_REDUCE_SEND, i, d->first[i] + m->sent);
        ret->first = m->sent == 0;
        ret->last = m->sent + 1 == d->count[i];
        return true;
    }
    return false;
}

/* Whether all have delivered the part that is waited for. */
static bool is_complete(const struct mu_reduce *r)
{
    for (uint32_t i = 0; i < r->config.division->member_count; i++) {
        const struct mu_reduce_member *m = &r->members[i];

        if ((m->in == MU_REDUCE_IN_WAITING || m->in == MU_REDUCE_IN_OPEN) &&
            m->delivered <= r->current) {
            return false;
        }
    }
    return true;
}

/* The window moves by a part: who was held back may go on. */
static void advance(struct mu_reduce *r)
{
    uint32_t opened = r->current + r->config.window;

    r->current++;
    for (uint32_t i = 0; i < r->config.division->member_count; i++) {
        struct mu_reduce_member *m = &r->members[i];

        if (m->in == MU_REDUCE_IN_OPEN && m->delivered == opened) {
            m->in_since = r->now;
            m->tell_read = m->held;
            m->held = false;
        }
        if (m->in == MU_REDUCE_IN_DELIVERED && r->current == own_count(r)) {
            m->tell_finish = i != r->config.position;
        }
    }
}

/* Our own parts are added as the window comes to them, and a part that is complete is done. */
static bool next_of_ours(struct mu_reduce *r, struct mu_reduce_event *ret)
{
    struct mu_reduce_member *self = &r->members[r->config.position];
    uint32_t first = r->config.division->first[r->config.position];

    if (self->in == MU_REDUCE_IN_OPEN && self->delivered < r->current + r->config.window) {
        (void)tell(ret, MU_REDUCE_OWN, r->config.position, first + self->delivered);
        self->weight = r->config.weight;
        self->delivered++;
        self->in = self->delivered == own_count(r) ? MU_REDUCE_IN_DELIVERED : self->in;
        return true;
    }
    if (r->current < own_count(r) && is_complete(r)) {
        (void)tell(ret, MU_REDUCE_DONE, r->config.position, first + r->current);
        for (uint32_t i = 0; i < r->config.division->member_count; i++) {
            r->included[i] = r->members[i].delivered > r->current;
            ret->weights += r->included[i] ? r->members[i].weight : 0;
        }
        advance(r);
        return true;
    }
    return false;
}

/* Nothing more is to come. */
static bool is_over(const struct mu_reduce *r)
{
    for (uint32_t i = 0; i < r->config.division->member_count; i++) {
        if (r->members[i].out == MU_REDUCE_OUT_NEW || r->members[i].out == MU_REDUCE_OUT_OPEN) {
            return false;
        }
    }
    return r->current == own_count(r);
}

bool mu_reduce_next_event(struct mu_reduce *r, struct mu_reduce_event *ret)
{
    if (r->told) {
        return false;
    }
    if (!r->ended && next_of_ours(r, ret)) {
        return true;
    }
    for (uint32_t i = 0; i < r->config.division->member_count; i++) {
        if (next_of_member(r, i, ret)) {
            return true;
        }
    }
    if (!r->ended && is_over(r)) {
        r->ended = true;
    }
    if (r->ended) {
        r->told = true;
        return tell(ret, MU_REDUCE_END, 0, 0);
    }
    return false;
}

int mu_reduce_status(const struct mu_reduce *r)
{
    return r->status;
}

const char *mu_reduce_text(const struct mu_reduce *r)
{
    return r->text.text;
}

uint32_t mu_reduce_parts_local(const struct mu_reduce *r)
{
    const struct mu_avg_division *d = r->config.division;
    uint32_t parts = own_count(r) - r->current;

    for (size_t i = 0; i < d->member_count; i++) {
        if (i != r->config.position) {
            parts += d->count[i] - r->members[i].results;
        }
    }
    return parts;
}

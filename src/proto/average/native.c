#include "proto/average/native.h"

#include <stdarg.h>
#include <stdio.h>

#include "core/assert.h"
#include "proto/average/native_internal.h"

struct mu_native_config mu_native_config_defaults(void)
{
    return (struct mu_native_config){
        .weight = 1,
        .window = 4,
        .gather_ms = 30000,
        .propose_ms = 20000,
        .prepare_ms = 3000,
        .takeover_ms = 60000,
        .total_ms = 300000,
    };
}

bool mu_native__quorum(const struct mu_native *n, uint64_t members)
{
    uint32_t all = count_of(n->voters);
    uint32_t some = count_of(members & n->voters);
    uint64_t first = n->voters & (~n->voters + 1);

    return 2 * some > all || (2 * some == all && (members & first) != 0);
}

uint32_t mu_native_owner(const struct mu_native *n, uint32_t shard, uint64_t owners)
{
    for (uint32_t i = 0; i < n->count; i++) {
        uint32_t member = (shard + i) % n->count;

        if (has(owners, member)) {
            return member;
        }
    }
    MU_ASSERT(false);
    return 0;
}

uint32_t mu_native_second(const struct mu_native *n, uint32_t shard)
{
    for (uint32_t i = 1; i < n->count; i++) {
        uint32_t member = (shard + i) % n->count;

        if (has(n->voters, member)) {
            return member;
        }
    }
    return shard;
}

static bool is_possible(const struct mu_native_config *c)
{
    size_t count = c->division->member_count;

    return count != 0 && count <= MU_NATIVE_MEMBERS_MAX && c->position < count &&
           c->division->part_count != 0 && c->window != 0 && c->got != NULL && c->weight >= 0 &&
           c->weight <= MU_AVG_WEIGHT_MAX && c->gather_ms != 0 && c->propose_ms != 0 &&
           c->prepare_ms != 0 && c->takeover_ms != 0 && c->total_ms != 0;
}

int mu_native_init(struct mu_native *n, const struct mu_native_config *config, struct mu_now now)
{
    memset(n, 0, sizeof(*n));
    if (!is_possible(config)) {
        return MUSTER_EINVAL;
    }
    n->config = *config;
    n->count = (uint32_t)config->division->member_count;
    n->all = n->count == 64 ? UINT64_MAX : bit(n->count) - 1;
    n->voters = n->all & ~config->clients;
    if (n->voters == 0 || (config->clients & ~n->all) != 0) {
        return MUSTER_EINVAL;
    }
    n->owners = n->voters;
    n->promised = (uint32_t)__builtin_ctzll(n->voters);
    n->highest = n->promised;
    n->ballot = n->promised;
    n->sum = n->proposed_sum = MU_NATIVE_NO_SUM;
    n->fetch_from = NOBODY;
    n->now = now.mono;
    n->until = mu_mono_add_ms(now.mono, config->total_ms);
    n->have_at = mu_mono_add_ms(now.mono, config->gather_ms / 2);
    n->lead_until = MU_MONO_NEVER;
    for (uint32_t i = 0; i < n->count; i++) {
        n->members[i].give_shard = n->members[i].tell_shard = NOBODY;
        n->members[i].whole = MU_NATIVE_NO_SUM;
        n->shards[i].source = NOBODY;
        n->filled |= parts_of(n, i) != 0 ? bit(i) : 0;
        for (uint32_t k = 0; k < n->count; k++) {
            n->config.got[i * n->count + k] = k == self(n) ? parts_of(n, i) : 0;
        }
    }
    n->members[self(n)].weight = config->weight;
    n->members[self(n)].weighed = true;
    if (n->promised == self(n)) {
        n->lead = MU_NATIVE_LEAD_GATHERING;
        n->lead_until = mu_mono_add_ms(now.mono, config->gather_ms);
    }
    mu_native__wait(n);
    mu_native__owe(n);
    for (uint32_t i = 0; i < n->count; i++) {
        mu_native__tell_have(n, i, false);
    }
    return 0;
}

/* --- the end ---------------------------------------------------------------------------------- */

void mu_native__end(struct mu_native *n, int status, const char *format, ...)
{
    char text[MU_ERRMSG_CAP];
    va_list args;

    if (n->ended || n->placed) {
        return;
    }
    va_start(args, format);
    (void)vsnprintf(text, sizeof(text), format, args);
    va_end(args);
    n->ended = true;
    n->released = true;
    n->status = mu_err(&n->text, status, "%s", text);
    n->lead = MU_NATIVE_LEAD_IDLE;
    n->lead_until = n->patience = n->have_at = n->until = MU_MONO_NEVER;
    for (uint32_t i = 0; i < n->count; i++) {
        uint32_t said = n->members[i].say & 1u << MU_NATIVE_FAIL;

        mu_native__drop(n, i);
        n->members[i].say = i == self(n) ? 0 : said;
    }
}

void mu_native_cancel(struct mu_native *n, struct mu_now now)
{
    n->now = now.mono;
    mu_native__end(n, MUSTER_ECANCELED, "the round was cancelled");
}

static void end_by(struct mu_native *n, const struct mu_native_msg *msg)
{
    switch (msg->why) {
    case MU_NATIVE_WHY_DIGEST:
        mu_native__end(n, MUSTER_ECORRUPT,
                       "members %u and %u hold different averages after two attempts; check the "
                       "memory of both machines",
                       (unsigned)msg->one, (unsigned)msg->other);
        break;
    case MU_NATIVE_WHY_VALUE:
        mu_native__end(n, MUSTER_EINVAL,
                       "the average of part %u is not finite; look for values that are too large",
                       (unsigned)msg->part);
        break;
    case MU_NATIVE_WHY_WEIGHT:
        mu_native__end(n, MUSTER_EINVAL, "no member has a weight above zero");
        break;
    }
}

/* --- whom we believe in ----------------------------------------------------------------------- */

static uint32_t believed(const struct mu_native *n)
{
    return coordinator(n, n->promised > n->highest ? n->promised : n->highest);
}

/* How many living voters come before us in the line of succession. */
static uint32_t rank(const struct mu_native *n)
{
    uint32_t before = 0;

    for (uint32_t i = 1; i < n->count; i++) {
        uint32_t member = (believed(n) + i) % n->count;

        if (member == self(n)) {
            break;
        }
        before += has(n->voters & ~n->gone, member);
    }
    return before;
}

void mu_native__wait(struct mu_native *n)
{
    uint64_t places = rank(n) + (has(n->gone, believed(n)) ? 0 : 1);

    n->patience = mu_mono_add_ms(n->now, n->config.takeover_ms * (places == 0 ? 1 : places));
    if (!has(n->voters, self(n)) || n->released || n->lead != MU_NATIVE_LEAD_IDLE ||
        (n->placed && !has(n->gone, believed(n)))) {
        n->patience = MU_MONO_NEVER;
    }
}

/* Somebody whom the coordinator has lost, but not we, may still need us. */
static void try_release(struct mu_native *n)
{
    n->released =
        n->released || (n->placed && (n->all & ~n->gone & ~n->closed & ~bit(self(n))) == 0);
}

void mu_native_lost(struct mu_native *n, struct mu_now now, uint32_t member)
{
    n->now = now.mono;
    if (member >= n->count || member == self(n) || has(n->gone, member) || n->released) {
        return;
    }
    n->gone |= bit(member);
    mu_native__drop(n, member);
    try_release(n);
    if (n->released) {
        return;
    }
    if (!n->placed && (n->final ? (n->all & ~n->gone) == bit(self(n))
                                : !mu_native__quorum(n, n->voters & ~n->gone))) {
        mu_native__end(n, MUSTER_ECONN,
                       "lost too many members of the group to know what the others do; load a "
                       "state from one of them");
        return;
    }
    for (uint32_t i = 0; i < n->count; i++) {
        mu_native__tell_have(n, i, false);
    }
    if (n->lead != MU_NATIVE_LEAD_IDLE) {
        mu_native__lead_lost(n, member);
    } else if (has(n->gone, believed(n)) && rank(n) == 0 && has(n->voters, self(n))) {
        mu_native__begin(n);
    } else {
        say(n, coordinator(n, n->promised), MU_NATIVE_LOST);
        mu_native__wait(n);
    }
    mu_native__find_sources(n);
}

void mu_native__cut(struct mu_native *n, uint32_t member)
{
    if (member != self(n) && !has(n->gone, member)) {
        n->cuts |= bit(member);
        mu_native_lost(n, (struct mu_now){n->now, {0}}, member);
    }
}

void mu_native_tick(struct mu_native *n, struct mu_now now)
{
    n->now = now.mono;
    if (mu_mono_reached(n->until, n->now)) {
        n->until = MU_MONO_NEVER;
        n->released = n->released || n->placed;
        mu_native__end(n, MUSTER_ETIMEDOUT, "the round did not end within %u ms",
                       n->config.total_ms);
    }
    if (n->released) {
        return;
    }
    if (mu_mono_reached(n->have_at, n->now)) {
        n->have_at = MU_MONO_NEVER;
        n->hurry = true;
        for (uint32_t i = 0; i < n->count; i++) {
            mu_native__tell_have(n, i, false);
        }
    }
    if (mu_mono_reached(n->lead_until, n->now)) {
        mu_native__lead_late(n);
    }
    if (mu_mono_reached(n->patience, n->now)) {
        mu_native__begin(n);
    }
}

/* --- messages --------------------------------------------------------------------------------- */

static void take_newer(struct mu_native *n, const struct mu_native_msg *msg)
{
    n->highest = msg->ballot > n->highest ? msg->ballot : n->highest;
    if (n->lead != MU_NATIVE_LEAD_IDLE && n->lead != MU_NATIVE_LEAD_FINISHING &&
        msg->ballot > n->ballot) {
        mu_native__step_down(n);
    }
}

static void take_want(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg)
{
    if (msg->sum == n->sum) {
        n->members[from].wanted |= msg->mask & n->filled;
    }
}

static void take_fail(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg)
{
    if (n->lead == MU_NATIVE_LEAD_PROPOSED && msg->why == MU_NATIVE_WHY_VALUE) {
        mu_native__told_fail(n, from, msg);
    } else if (from == coordinator(n, n->promised) && !n->final) {
        end_by(n, msg);
    }
}

/* Whether only the coordinator of its ballot says it, and whether this is one. */
static bool is_proper(const struct mu_native *n, uint32_t from, const struct mu_native_msg *msg)
{
    switch (msg->type) {
    case MU_NATIVE_HELLO:
    case MU_NATIVE_PART:
    case MU_NATIVE_AVERAGE:
        return false;
    case MU_NATIVE_PREPARE:
    case MU_NATIVE_ASSIGN:
    case MU_NATIVE_PROPOSE:
    case MU_NATIVE_FINAL:
        return msg->ballot < MU_NATIVE_BALLOT_MAX && coordinator(n, msg->ballot) == from &&
               has(n->voters, from);
    case MU_NATIVE_NEWER:
        return msg->ballot < MU_NATIVE_BALLOT_MAX;
    case MU_NATIVE_LOST:
    case MU_NATIVE_WANT:
    case MU_NATIVE_CLOSE:
        return (msg->mask & ~n->all) == 0;
    case MU_NATIVE_HAVE:
    case MU_NATIVE_PROMISE:
    case MU_NATIVE_ACCEPT:
    case MU_NATIVE_DONE:
    case MU_NATIVE_FAIL:
        return true;
    }
    return false;
}

static void take(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg)
{
    if (!is_proper(n, from, msg)) {
        mu_native__cut(n, from);
        return;
    }
    switch (msg->type) {
    case MU_NATIVE_HELLO:
    case MU_NATIVE_PART:
    case MU_NATIVE_AVERAGE:
        break;
    case MU_NATIVE_HAVE:
        mu_native__told_have(n, from, msg);
        break;
    case MU_NATIVE_PREPARE:
        mu_native__prepare(n, from, msg);
        break;
    case MU_NATIVE_NEWER:
        take_newer(n, msg);
        break;
    case MU_NATIVE_PROMISE:
        mu_native__promised(n, from, msg);
        break;
    case MU_NATIVE_ASSIGN:
        mu_native__assign(n, from, msg);
        break;
    case MU_NATIVE_PROPOSE:
        mu_native__propose(n, from, msg);
        break;
    case MU_NATIVE_ACCEPT:
        mu_native__told_accept(n, from, msg);
        break;
    case MU_NATIVE_FINAL:
        mu_native__final(n, from, msg);
        break;
    case MU_NATIVE_WANT:
        take_want(n, from, msg);
        break;
    case MU_NATIVE_DONE:
        mu_native__told_done(n, from);
        break;
    case MU_NATIVE_CLOSE:
        n->closed |= msg->mask;
        try_release(n);
        break;
    case MU_NATIVE_LOST:
        mu_native__told_lost(n, from, msg->mask);
        break;
    case MU_NATIVE_FAIL:
        take_fail(n, from, msg);
        break;
    }
}

void mu_native_received(struct mu_native *n, struct mu_now now, uint32_t from,
                        const struct mu_native_msg *msg)
{
    n->now = now.mono;
    if (!n->released && from < n->count && !has(n->gone, from)) {
        take(n, from, msg);
    }
}

/* --- what we say ------------------------------------------------------------------------------ */

static void put_have(struct mu_native *n, struct mu_native_msg *out)
{
    out->shard = (uint32_t)__builtin_ctzll(n->have_due);
    out->set.members = mu_native__have(n, out->shard);
    for (uint32_t i = 0; i < n->count; i++) {
        out->set.weights[i] = has(out->set.members, i) ? n->members[i].weight : 0;
    }
    n->have_due &= n->have_due - 1;
}

static void put_sum(const struct mu_native *n, struct mu_native_msg *out)
{
    out->ballot = n->ballot;
    out->sum = n->sum_led;
    out->set = n->set_led;
    out->bound = n->bound_led;
    memcpy(out->digest, n->digest_led, sizeof(out->digest));
}

/* Says what is so now, which may not be what it was when there was something to say. False: there
 * is nothing to say any more. */
static bool put(struct mu_native *n, uint32_t to, enum mu_native_type type)
{
    struct mu_native_msg *out = &n->out;
    bool ours = n->lead != MU_NATIVE_LEAD_IDLE;
    bool theirs = to == coordinator(n, n->promised);

    *out = (struct mu_native_msg){.type = type};
    switch (type) {
    case MU_NATIVE_HELLO:
    case MU_NATIVE_PART:
    case MU_NATIVE_AVERAGE:
        return false;
    case MU_NATIVE_HAVE:
        if (!theirs || n->have_due == 0) {
            return false;
        }
        put_have(n, out);
        return true;
    case MU_NATIVE_PREPARE:
        out->ballot = n->ballot;
        return n->lead == MU_NATIVE_LEAD_PREPARING;
    case MU_NATIVE_NEWER:
        out->ballot = n->promised;
        return true;
    case MU_NATIVE_PROMISE:
        mu_native__put_promise(n, out);
        return theirs;
    case MU_NATIVE_ASSIGN:
        out->ballot = n->ballot;
        out->mask = n->owners;
        return ours && n->lead != MU_NATIVE_LEAD_PREPARING && n->lead != MU_NATIVE_LEAD_FETCHING;
    case MU_NATIVE_PROPOSE:
        put_sum(n, out);
        return n->lead == MU_NATIVE_LEAD_PROPOSED;
    case MU_NATIVE_ACCEPT:
        out->ballot = n->accepted_at;
        out->sum = n->sum;
        memcpy(out->digest, n->digest, sizeof(out->digest));
        return theirs && n->accepted && n->accepted_at == n->promised;
    case MU_NATIVE_FINAL:
        put_sum(n, out);
        return n->lead == MU_NATIVE_LEAD_FINISHING;
    case MU_NATIVE_WANT:
        out->sum = n->sum;
        out->mask = n->want_due;
        n->want_due = 0;
        return out->mask != 0;
    case MU_NATIVE_DONE:
        out->sum = n->sum;
        return n->placed;
    case MU_NATIVE_CLOSE:
        out->mask = n->dones;
        return n->lead == MU_NATIVE_LEAD_FINISHING;
    case MU_NATIVE_LOST:
        out->mask = n->gone;
        return theirs;
    case MU_NATIVE_FAIL:
        *out = n->failure;
        return true;
    }
    return false;
}

/* The next thing to say; what we say to ourselves is heard at once. */
static bool next_said(struct mu_native *n, struct mu_native_event *ret)
{
    for (uint32_t i = 0; i < n->count; i++) {
        struct mu_native_member *m = &n->members[i];

        while (m->say != 0 && !has(n->gone, i)) {
            enum mu_native_type type = (enum mu_native_type)__builtin_ctz(m->say);
            bool said = put(n, i, type);

            if (type != MU_NATIVE_HAVE || n->have_due == 0 || !said) {
                m->say &= m->say - 1;
            }
            if (said && i == self(n)) {
                struct mu_native_msg msg = n->out;

                take(n, i, &msg);
                i = 0;
                m = &n->members[0];
                continue;
            }
            if (said) {
                *ret = (struct mu_native_event){
                    .type = MU_NATIVE_EVENT_SEND, .member = i, .msg = &n->out};
                return true;
            }
        }
    }
    return false;
}

bool mu_native_next_event(struct mu_native *n, struct mu_native_event *ret)
{
    *ret = (struct mu_native_event){0};
    if (n->cuts != 0) {
        ret->type = MU_NATIVE_EVENT_CUT;
        ret->member = (uint32_t)__builtin_ctzll(n->cuts);
        n->cuts &= n->cuts - 1;
        return true;
    }
    if (next_said(n, ret)) {
        return true;
    }
    if (!n->released && mu_native__data_event(n, ret)) {
        return true;
    }
    if (n->place_due) {
        n->place_due = false;
        n->ended = true;
        ret->type = MU_NATIVE_EVENT_PLACE;
        ret->sum = n->sum;
        return true;
    }
    if (n->ended && !n->end_told) {
        n->end_told = true;
        ret->type = MU_NATIVE_EVENT_END;
        return true;
    }
    if (n->released && !n->release_told) {
        n->release_told = true;
        ret->type = MU_NATIVE_EVENT_RELEASE;
        return true;
    }
    return false;
}

mu_mono_t mu_native_deadline(const struct mu_native *n)
{
    mu_mono_t at = mu_mono_min(n->until, n->patience);

    at = mu_mono_min(at, n->ended ? MU_MONO_NEVER : n->have_at);
    return n->released ? MU_MONO_NEVER : mu_mono_min(at, n->lead_until);
}

int mu_native_status(const struct mu_native *n)
{
    return n->status;
}

const char *mu_native_text(const struct mu_native *n)
{
    return n->text.text;
}

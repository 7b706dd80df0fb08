#include "proto/average/native_internal.h"

#include "core/assert.h"

/* A later ballot, of another or our own. */
static void enter(struct mu_native *n, uint32_t ballot)
{
    n->promised = ballot;
    n->highest = ballot > n->highest ? ballot : n->highest;
    if (n->lead != MU_NATIVE_LEAD_IDLE && n->ballot != ballot) {
        mu_native__step_down(n);
    }
    mu_native__wait(n);
}

void mu_native__prepare(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg)
{
    if (msg->ballot < n->promised) {
        say(n, from, MU_NATIVE_NEWER);
        return;
    }
    enter(n, msg->ballot);
    say(n, from, MU_NATIVE_PROMISE);
}

void mu_native__put_promise(struct mu_native *n, struct mu_native_msg *out)
{
    bool whole = mu_native__whole(n) && n->hashed && n->sum == n->proposed_sum;

    out->ballot = n->promised;
    out->mask = n->gone;
    out->proposed = n->proposed;
    out->proposed_at = n->proposed_at;
    out->sum = n->proposed_sum;
    out->set = n->set;
    out->whole = n->proposed && whole;
    out->accepted = n->accepted;
    out->accepted_at = n->accepted_at;
    out->final = n->final;
    memcpy(out->digest, n->final ? n->wanted_digest : n->digest, sizeof(out->digest));
}

void mu_native__assign(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg)
{
    if (msg->mask == 0 || (msg->mask & ~n->voters) != 0) {
        mu_native__cut(n, from);
        return;
    }
    if (msg->ballot < n->promised) {
        say(n, from, MU_NATIVE_NEWER);
        return;
    }
    enter(n, msg->ballot);
    n->owners = msg->mask;
    n->have_at = mu_mono_add_ms(n->now, n->config.gather_ms / 2);
    n->hurry = false;
    mu_native__owe(n);
    for (uint32_t i = 0; i < n->count; i++) {
        mu_native__tell_have(n, i, true);
    }
}

/* Whether we can make all sums that are ours. */
static bool is_makeable(const struct mu_native *n, uint64_t members)
{
    for (uint32_t i = 0; i < n->count; i++) {
        if (has(n->filled, i) && mu_native_owner(n, i, n->owners) == self(n) &&
            (members & ~mu_native__have(n, i)) != 0) {
            return false;
        }
    }
    return true;
}

/* Who will send us the averages that are missing. */
static void expect_averages(struct mu_native *n, uint32_t from, bool dropped)
{
    uint64_t missing = 0;

    for (uint32_t i = 0; i < n->count; i++) {
        uint32_t owner = mu_native_owner(n, i, n->owners);

        if (!n->bound && owner == self(n) && has(n->filled, i)) {
            mu_native__own(n, i);
        } else if (!is_averaged(n, i)) {
            n->shards[i].source = owner;
            missing |= bit(i);
        }
    }
    if ((n->bound || dropped) && from != self(n)) {
        mu_native__want(n, from, missing);
    }
    mu_native__find_sources(n);
}

void mu_native__propose(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg)
{
    bool dropped;

    if (msg->set.members == 0 || (msg->set.members & ~n->all) != 0 ||
        (!msg->bound && msg->ballot >= n->promised && !is_makeable(n, msg->set.members))) {
        mu_native__cut(n, from);
        return;
    }
    if (msg->ballot < n->promised) {
        say(n, from, MU_NATIVE_NEWER);
        return;
    }
    enter(n, msg->ballot);
    if ((n->proposed && n->proposed_at == msg->ballot) || (n->final && msg->sum != n->sum)) {
        return;
    }
    n->proposed = true;
    n->proposed_at = msg->ballot;
    n->proposed_sum = msg->sum;
    n->set = msg->set;
    if (!n->final) {
        n->bound = msg->bound;
        memcpy(n->wanted_digest, msg->digest, sizeof(n->wanted_digest));
    }
    /* We may have dropped averages of a sum that is not new while we kept those of another. */
    dropped = n->sum != MU_NATIVE_NO_SUM && n->sum != msg->sum && msg->sum != msg->ballot;
    mu_native__switch(n, msg->sum);
    expect_averages(n, from, dropped);
    mu_native__settle(n);
}

void mu_native__final(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg)
{
    if (msg->set.members == 0 || (msg->set.members & ~n->all) != 0) {
        mu_native__cut(n, from);
        return;
    }
    if (msg->ballot >= n->promised) {
        enter(n, msg->ballot);
    }
    if (!n->final) {
        n->final = true;
        n->proposed = true;
        n->proposed_at = msg->ballot > n->proposed_at ? msg->ballot : n->proposed_at;
        n->proposed_sum = msg->sum;
        n->set = msg->set;
        memcpy(n->wanted_digest, msg->digest, sizeof(n->wanted_digest));
        mu_native__switch(n, msg->sum);
    }
    mu_native__find_sources(n);
    mu_native__settle(n);
    if (n->placed) {
        say(n, from, MU_NATIVE_DONE);
    }
    mu_native__wait(n);
}

/* Our averages are not those of the others. They are fetched again, once. */
static void differ(struct mu_native *n)
{
    uint32_t other = coordinator(n, n->promised);

    if (n->refetched) {
        mu_native__end(n, MUSTER_ECORRUPT,
                       "members %u and %u hold different averages after two attempts; check the "
                       "memory of both machines",
                       self(n), other);
        return;
    }
    mu_native__refetch(n);
}

void mu_native__settle(struct mu_native *n)
{
    bool same;

    if (n->placed && n->promised == n->proposed_at && n->sum == n->proposed_sum) {
        n->accepted_at = n->promised; /* by one who does not know yet that it is decided */
        say(n, coordinator(n, n->promised), MU_NATIVE_ACCEPT);
        return;
    }
    if (n->ended || n->placed || !n->hashed || !n->proposed || n->sum != n->proposed_sum) {
        return;
    }
    same = memcmp(n->digest, n->wanted_digest, sizeof(n->digest)) == 0;
    if (n->final) {
        if (!same) {
            differ(n);
            return;
        }
        n->placed = true;
        n->place_due = true;
        say(n, coordinator(n, n->promised), MU_NATIVE_DONE);
        mu_native__wait(n);
        return;
    }
    if (n->promised != n->proposed_at) {
        return; /* A later coordinator will say what becomes of it. */
    }
    if (n->bound && !same) {
        differ(n);
        return;
    }
    n->accepted = true;
    n->accepted_at = n->promised;
    say(n, coordinator(n, n->promised), MU_NATIVE_ACCEPT);
}

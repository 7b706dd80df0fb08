#include "proto/average/native_internal.h"

#include "core/assert.h"

/* --- our parts, to owners --------------------------------------------------------------------- */

/* Whom we owe which of our shards: its owner, and of our own shard a second one. What is on its way
 * to somebody who owns it no longer is brought to its end. */
void mu_native__owe(struct mu_native *n)
{
    for (uint32_t i = 0; i < n->count; i++) {
        n->members[i].owed = 0;
    }
    for (uint32_t j = 0; j < n->count; j++) {
        uint32_t owner = mu_native_owner(n, j, n->owners);

        if (has(n->filled, j) && owner != self(n)) {
            n->members[owner].owed |= bit(j);
        }
        if (has(n->filled, j) && j == self(n)) {
            n->members[mu_native_second(n, j)].owed |= bit(j);
        }
    }
    for (uint32_t i = 0; i < n->count; i++) {
        struct mu_native_member *m = &n->members[i];

        m->owed &= i == self(n) || has(n->gone, i) ? 0 : ~m->given;
    }
}

uint64_t mu_native__have(const struct mu_native *n, uint32_t shard)
{
    uint64_t mask = bit(self(n));

    for (uint32_t i = 0; i < n->count; i++) {
        if (n->config.got[shard * n->count + i] == parts_of(n, shard)) {
            mask |= bit(i);
        }
    }
    return mask;
}

/* An owner tells once of whom it has everything: when there is nobody to wait for. Only when time
 * is short it tells of each as it comes. */
void mu_native__tell_have(struct mu_native *n, uint32_t shard, bool force)
{
    uint64_t have = mu_native__have(n, shard);
    bool ours = mu_native_owner(n, shard, n->owners) == self(n);
    bool second = mu_native_second(n, shard) == self(n) && shard != self(n) && has(have, shard);
    bool complete = ours ? (n->all & ~n->gone & ~have) == 0 : second;

    if (!has(n->filled, shard) || (!ours && !second) || n->ended ||
        (have == n->shards[shard].have_told && !force) || (!complete && !force && !n->hurry)) {
        return;
    }
    n->shards[shard].have_told = have;
    n->have_due |= bit(shard);
    say(n, coordinator(n, n->promised), MU_NATIVE_HAVE);
}

bool mu_native_contributed(struct mu_native *n, struct mu_now now, uint32_t from, uint32_t part,
                           double weight, bool good)
{
    const struct mu_avg_division *d = n->config.division;
    struct mu_native_member *m = &n->members[from];
    uint32_t shard;
    uint32_t *got;

    n->now = now.mono;
    if (n->ended || has(n->gone, from)) {
        return false;
    }
    if (from == self(n) || part >= d->part_count || !good ||
        !(weight >= 0 && weight <= MU_AVG_WEIGHT_MAX) || (m->weighed && m->weight != weight)) {
        mu_native__cut(n, from);
        return false;
    }
    shard = d->parts[part].owner;
    got = &n->config.got[shard * n->count + from];
    if (part - d->first[shard] != *got) {
        /* Again, by a member that gives a shard to the same owner in a later ballot. */
        if (part - d->first[shard] > *got) {
            mu_native__cut(n, from);
        }
        return false;
    }
    m->weight = weight;
    m->weighed = true;
    ++*got;
    if (*got == parts_of(n, shard)) {
        mu_native__tell_have(n, shard, false);
    }
    return true;
}

/* --- averages --------------------------------------------------------------------------------- */

/* From now on we keep the averages of another sum. What was accepted of the old one is forgotten:
 * that there is a new sum shows that the old one was not chosen. */
void mu_native__switch(struct mu_native *n, uint32_t sum)
{
    if (n->sum == sum) {
        return;
    }
    n->forget = n->sum != MU_NATIVE_NO_SUM;
    n->sum = sum;
    n->hash_due = n->hash_asked = n->hashed = n->accepted = false;
    n->want_due = 0;
    for (uint32_t i = 0; i < n->count; i++) {
        n->shards[i].averaged = n->shards[i].summing = 0;
        n->shards[i].shared = false;
        n->shards[i].source = NOBODY;
        n->members[i].wanted = 0;
        n->members[i].tell_shard = NOBODY;
    }
}

void mu_native__refetch(struct mu_native *n)
{
    uint32_t sum = n->sum;

    n->refetched = true;
    n->clear = true;
    mu_native__switch(n, MU_NATIVE_NO_SUM);
    mu_native__switch(n, sum);
    n->forget = false;
    mu_native__find_sources(n);
}

bool mu_native__whole(const struct mu_native *n)
{
    if (n->sum == MU_NATIVE_NO_SUM) {
        return false;
    }
    for (uint32_t i = 0; i < n->count; i++) {
        if (!is_averaged(n, i)) {
            return false;
        }
    }
    return true;
}

void mu_native__want(struct mu_native *n, uint32_t from, uint64_t shards)
{
    for (uint32_t i = 0; i < n->count; i++) {
        if (has(shards, i) && !is_averaged(n, i)) {
            n->shards[i].source = from;
            n->want_due |= bit(i);
        }
    }
    if (n->want_due != 0) {
        say(n, from, MU_NATIVE_WANT);
    }
}

void mu_native__find_sources(struct mu_native *n)
{
    uint64_t orphans = 0;
    uint32_t from = coordinator(n, n->promised);

    if (n->sum == MU_NATIVE_NO_SUM || n->ended) {
        return;
    }
    for (uint32_t i = 0; i < n->count; i++) {
        const struct mu_native_shard *s = &n->shards[i];

        if (!is_averaged(n, i) && (s->source == NOBODY || has(n->gone, s->source))) {
            orphans |= bit(i);
        }
    }
    from = from == self(n) ? mu_native__holder(n) : from;
    if (orphans != 0 && from != NOBODY && !has(n->gone, from) &&
        (n->final || (n->proposed && n->proposed_sum == n->sum))) {
        mu_native__want(n, from, orphans);
    }
}

/* We are the owner of that shard: its averages are ours to make and to send. */
void mu_native__own(struct mu_native *n, uint32_t shard)
{
    struct mu_native_shard *s = &n->shards[shard];

    if (!is_averaged(n, shard)) {
        s->source = self(n);
        s->summing = s->averaged;
    }
    for (uint32_t i = 0; i < n->count && !s->shared; i++) {
        if (i != self(n) && !has(n->gone, i)) {
            n->members[i].wanted |= bit(shard);
        }
    }
    s->shared = true;
}

/* One more average is here. */
static void gain(struct mu_native *n, uint32_t shard)
{
    n->shards[shard].averaged++;
    n->hash_due = n->hash_due || mu_native__whole(n);
}

bool mu_native_averaged(struct mu_native *n, struct mu_now now, uint32_t from, uint32_t sum,
                        uint32_t part, bool good)
{
    const struct mu_avg_division *d = n->config.division;
    uint32_t shard;

    n->now = now.mono;
    if (n->ended || has(n->gone, from)) {
        return false;
    }
    if (from == self(n) || part >= d->part_count || !good || sum >= MU_NATIVE_BALLOT_MAX) {
        mu_native__cut(n, from);
        return false;
    }
    if (sum != n->sum) {
        /* An owner may know of a proposal before we do. But what we have told in a promise we keep,
         * as we may be asked for it. If a sum of which we drop averages is proposed again, we ask
         * for all of them. */
        if (n->final || (n->proposed && sum <= n->proposed_at) ||
            (n->sum != MU_NATIVE_NO_SUM && (sum < n->promised || sum < n->sum))) {
            return false;
        }
        mu_native__switch(n, sum);
    }
    shard = d->parts[part].owner;
    if (part - d->first[shard] != n->shards[shard].averaged || n->shards[shard].source == self(n)) {
        return false;
    }
    gain(n, shard);
    return true;
}

bool mu_native_summed(struct mu_native *n, struct mu_now now, uint32_t sum, uint32_t part,
                      bool good)
{
    const struct mu_avg_division *d = n->config.division;
    struct mu_native_shard *s;
    uint32_t shard;

    n->now = now.mono;
    if (n->ended || sum != n->sum || part >= d->part_count) {
        return false;
    }
    shard = d->parts[part].owner;
    s = &n->shards[shard];
    if (s->source != self(n) || part - d->first[shard] != s->averaged ||
        s->averaged >= s->summing) {
        return false;
    }
    if (!good) {
        n->failure = (struct mu_native_msg){.type = MU_NATIVE_FAIL,
                                            .why = MU_NATIVE_WHY_VALUE,
                                            .sum = sum,
                                            .part = part,
                                            .one = (uint8_t)self(n),
                                            .other = (uint8_t)self(n)};
        say(n, coordinator(n, n->promised), MU_NATIVE_FAIL);
        return false;
    }
    gain(n, shard);
    return true;
}

void mu_native_hashed(struct mu_native *n, struct mu_now now, uint32_t sum,
                      const uint8_t digest[MU_NATIVE_DIGEST_LEN])
{
    n->now = now.mono;
    if (n->ended || sum != n->sum || !n->hash_asked || n->hashed || !mu_native__whole(n)) {
        return;
    }
    memcpy(n->digest, digest, MU_NATIVE_DIGEST_LEN);
    n->hashed = true;
    if (n->lead == MU_NATIVE_LEAD_FETCHING) {
        mu_native__fetched(n);
    }
    mu_native__settle(n);
}

/* --- links ------------------------------------------------------------------------------------ */

void mu_native_sent(struct mu_native *n, struct mu_now now, uint32_t member)
{
    n->now = now.mono;
    n->members[member].sending = false;
}

void mu_native__drop(struct mu_native *n, uint32_t member)
{
    struct mu_native_member *m = &n->members[member];

    m->say = 0;
    m->owed = m->wanted = 0;
    m->give_shard = m->tell_shard = NOBODY;
}

/* --- events ----------------------------------------------------------------------------------- */

static uint32_t lowest(uint64_t mask)
{
    return mask == 0 ? NOBODY : (uint32_t)__builtin_ctzll(mask);
}

static bool next_give(struct mu_native *n, uint32_t member, struct mu_native_event *ret)
{
    struct mu_native_member *m = &n->members[member];

    if (m->give_shard == NOBODY) {
        m->give_shard = lowest(m->owed);
        m->give_next = 0;
        if (m->give_shard == NOBODY) {
            return false;
        }
    }
    *ret = (struct mu_native_event){.type = MU_NATIVE_EVENT_GIVE, .member = member};
    ret->part = n->config.division->first[m->give_shard] + m->give_next++;
    if (m->give_next == parts_of(n, m->give_shard)) {
        m->given |= bit(m->give_shard);
        m->owed &= ~m->given;
        m->give_shard = NOBODY;
    }
    return true;
}

static uint32_t next_tellable(const struct mu_native *n, uint64_t wanted)
{
    for (uint32_t i = 0; i < n->count; i++) {
        if (has(wanted, i) && (is_averaged(n, i) || n->shards[i].source == self(n))) {
            return i;
        }
    }
    return NOBODY;
}

static bool next_tell(struct mu_native *n, uint32_t member, struct mu_native_event *ret)
{
    struct mu_native_member *m = &n->members[member];

    if (m->tell_shard == NOBODY) {
        m->tell_shard = next_tellable(n, m->wanted);
        m->tell_next = 0;
    }
    if (m->tell_shard == NOBODY || m->tell_next >= n->shards[m->tell_shard].averaged) {
        return false;
    }
    *ret = (struct mu_native_event){.type = MU_NATIVE_EVENT_TELL, .member = member, .sum = n->sum};
    ret->part = n->config.division->first[m->tell_shard] + m->tell_next++;
    if (m->tell_next == parts_of(n, m->tell_shard)) {
        m->wanted &= ~bit(m->tell_shard);
        m->tell_shard = NOBODY;
    }
    return true;
}

static bool next_sum(struct mu_native *n, struct mu_native_event *ret)
{
    if (!n->proposed || n->proposed_sum != n->sum) {
        return false;
    }
    for (uint32_t i = 0; i < n->count; i++) {
        struct mu_native_shard *s = &n->shards[i];

        if (s->source == self(n) && s->summing < parts_of(n, i) &&
            s->summing - s->averaged < n->config.window) {
            *ret = (struct mu_native_event){
                .type = MU_NATIVE_EVENT_SUM, .sum = n->sum, .set = &n->set};
            ret->part = n->config.division->first[i] + s->summing++;
            return true;
        }
    }
    return false;
}

bool mu_native__data_event(struct mu_native *n, struct mu_native_event *ret)
{
    if (n->forget || n->clear) {
        *ret = (struct mu_native_event){.type = MU_NATIVE_EVENT_FORGET,
                                        .sum = n->clear ? MU_NATIVE_NO_SUM : n->sum};
        n->forget = n->clear = false;
        return true;
    }
    if (next_sum(n, ret)) {
        return true;
    }
    for (uint32_t i = 0; i < n->count; i++) {
        struct mu_native_member *m = &n->members[i];

        if (i != self(n) && !m->sending && !has(n->gone, i) &&
            (next_tell(n, i, ret) || (!n->ended && next_give(n, i, ret)))) {
            m->sending = true;
            return true;
        }
    }
    if (n->hash_due && !n->ended) {
        n->hash_due = false;
        n->hash_asked = true;
        *ret = (struct mu_native_event){.type = MU_NATIVE_EVENT_HASH, .sum = n->sum};
        return true;
    }
    return false;
}

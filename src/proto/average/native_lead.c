#include "proto/average/native_internal.h"

#include "core/assert.h"

static void lead_until(struct mu_native *n, uint32_t ms)
{
    n->lead_until = mu_mono_add_ms(n->now, ms);
}

void mu_native__step_down(struct mu_native *n)
{
    n->lead = MU_NATIVE_LEAD_IDLE;
    n->lead_until = MU_MONO_NEVER;
    mu_native__wait(n);
}

void mu_native__begin(struct mu_native *n)
{
    uint32_t latest = n->promised > n->highest ? n->promised : n->highest;

    if (n->ended && !n->placed) {
        return;
    }
    n->ballot = latest - latest % n->count + self(n);
    n->ballot += n->ballot <= latest ? n->count : 0;
    if (n->ballot >= MU_NATIVE_BALLOT_MAX) {
        mu_native__end(n, MUSTER_ECONN,
                       "the members of the group take over from each other without end");
        return;
    }
    n->lead = MU_NATIVE_LEAD_PREPARING;
    n->patience = MU_MONO_NEVER;
    n->decided = n->seen = n->bound_led = false;
    n->promises = n->holders = n->backed = n->dones = 0;
    n->fetch_from = NOBODY;
    for (uint32_t i = 0; i < n->count; i++) {
        n->members[i].accepted = false;
        n->members[i].whole = MU_NATIVE_NO_SUM;
        n->shards[i].held = 0;
    }
    lead_until(n, n->config.prepare_ms);
    say_all(n, n->voters, MU_NATIVE_PREPARE);
}

/* --- promises --------------------------------------------------------------------------------- */

static uint64_t owners_left(const struct mu_native *n)
{
    uint64_t left = n->promises & ~n->gone & ~n->excluded;

    return left != 0 ? left : n->promises & ~n->gone;
}

static void gather(struct mu_native *n)
{
    n->lead = MU_NATIVE_LEAD_GATHERING;
    lead_until(n, n->config.gather_ms);
    n->owners = owners_left(n);
    say_all(n, n->all, MU_NATIVE_ASSIGN);
}

static void propose(struct mu_native *n)
{
    n->lead = MU_NATIVE_LEAD_PROPOSED;
    lead_until(n, n->config.propose_ms);
    for (uint32_t i = 0; i < n->count; i++) {
        n->members[i].accepted = false;
    }
    if (!n->bound_led) {
        n->was_free = true;
        n->free_at = n->ballot;
    } else {
        n->was_free = false;
    }
    say_all(n, n->all, MU_NATIVE_PROPOSE);
}

static void finish(struct mu_native *n)
{
    n->lead = MU_NATIVE_LEAD_FINISHING;
    n->lead_until = MU_MONO_NEVER;
    say_all(n, n->all, MU_NATIVE_FINAL);
}

/* The averages of a sum that we must propose are here. */
void mu_native__fetched(struct mu_native *n)
{
    if (n->sum != n->sum_led) {
        return;
    }
    if (memcmp(n->digest, n->digest_led, sizeof(n->digest)) != 0) {
        if (n->refetched) {
            mu_native__fail(n, MU_NATIVE_WHY_DIGEST, self(n),
                            n->fetch_from == NOBODY ? self(n) : n->fetch_from);
            return;
        }
        mu_native__refetch(n);
        mu_native__want(n, n->fetch_from, n->filled);
        return;
    }
    propose(n);
}

uint32_t mu_native__holder(const struct mu_native *n)
{
    uint64_t left = n->holders & ~n->gone & ~bit(self(n));

    if (n->lead == MU_NATIVE_LEAD_FINISHING) {
        for (uint32_t i = 0; i < n->count; i++) {
            const struct mu_native_member *m = &n->members[i];

            if (m->accepted && i != self(n) && !has(n->gone, i) &&
                memcmp(m->digest, n->digest_led, sizeof(m->digest)) == 0) {
                left |= bit(i);
            }
        }
    } else if (n->lead != MU_NATIVE_LEAD_FETCHING) {
        return NOBODY;
    }
    return left == 0 ? NOBODY : (uint32_t)__builtin_ctzll(left);
}

/* Something was accepted or even decided before, and has to be gone on with. */
static void go_on(struct mu_native *n)
{
    bool ours = n->sum == n->sum_led && n->hashed &&
                memcmp(n->digest, n->digest_led, sizeof(n->digest)) == 0;

    n->bound_led = true;
    if (n->decided) {
        finish(n);
        return;
    }
    if (ours) {
        propose(n);
        return;
    }
    n->lead = MU_NATIVE_LEAD_FETCHING;
    lead_until(n, n->config.propose_ms);
    n->fetch_from = mu_native__holder(n);
    if (n->fetch_from == NOBODY) {
        mu_native__begin(n);
        return;
    }
    if (n->sum == n->sum_led) {
        mu_native__refetch(n);
    }
    mu_native__switch(n, n->sum_led);
    mu_native__want(n, n->fetch_from, n->filled);
}

/* The members that have accepted those bits in that ballot. */
static uint64_t acceptors(const struct mu_native *n, uint32_t ballot, const uint8_t *digest)
{
    uint64_t mask = 0;

    for (uint32_t i = 0; i < n->count; i++) {
        const struct mu_native_member *m = &n->members[i];

        if (m->accepted && m->accepted_at == ballot && has(n->voters, i) &&
            memcmp(m->digest, digest, sizeof(m->digest)) == 0) {
            mask |= bit(i);
        }
    }
    return mask;
}

/* In which ballot the latest acceptance was; NOBODY: there is none. */
static uint32_t latest_accepted(const struct mu_native *n)
{
    uint32_t latest = NOBODY;

    for (uint32_t i = 0; i < n->count; i++) {
        const struct mu_native_member *m = &n->members[i];

        if (m->accepted && has(n->voters, i) && (latest == NOBODY || m->accepted_at > latest)) {
            latest = m->accepted_at;
        }
    }
    return latest;
}

/*
 * A quorum has promised. What one of it has accepted last may have been finalised by the
 * coordinator of that ballot, and binds us; but not if that was us, and we did not, and were not
 * bound ourselves. If members hold different bits of it, those count that a quorum may hold.
 */
static void conclude(struct mu_native *n)
{
    uint32_t latest = latest_accepted(n);
    uint32_t one = NOBODY;
    uint32_t other = NOBODY;

    if (n->decided) {
        for (uint32_t i = 0; i < n->count; i++) {
            n->holders |= n->members[i].whole == n->sum_led ? bit(i) : 0;
        }
        go_on(n);
        return;
    }
    if (latest == NOBODY || (n->repeat && n->was_free && latest == n->free_at)) {
        gather(n);
        return;
    }
    for (uint32_t i = 0; i < n->count; i++) {
        const struct mu_native_member *m = &n->members[i];
        uint64_t with;

        if (!m->accepted || m->accepted_at != latest || !has(n->voters, i)) {
            continue;
        }
        with = acceptors(n, latest, m->digest);
        if (one == NOBODY) {
            one = i;
            n->holders = with;
        } else if (!has(n->holders, i) && other == NOBODY) {
            bool first = mu_native__quorum(n, n->holders | (n->voters & ~n->promises));
            bool second = mu_native__quorum(n, with | (n->voters & ~n->promises));

            if (first && second) {
                other = i;
            } else if (second) {
                one = i;
                n->holders = with;
            }
        }
    }
    if (other != NOBODY) {
        mu_native__fail(n, MU_NATIVE_WHY_DIGEST, one, other);
        return;
    }
    memcpy(n->digest_led, n->members[one].digest, sizeof(n->digest_led));
    go_on(n);
}

/* All who can promise have, or (late) enough of them. What is decided needs no promises. */
static void try_conclude(struct mu_native *n, bool late)
{
    if (n->lead == MU_NATIVE_LEAD_PREPARING &&
        (n->decided || (has(n->promises, self(n)) && mu_native__quorum(n, n->promises) &&
                        (late || (n->voters & ~n->gone & ~n->promises) == 0)))) {
        conclude(n);
    }
}

/* Somebody promises when it is known already that there is a result. */
static void take_holder(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg)
{
    if (n->lead == MU_NATIVE_LEAD_FINISHING && msg->ballot == n->ballot && msg->whole &&
        msg->sum == n->sum_led) {
        n->holders |= bit(from);
        mu_native__find_sources(n);
    }
}

void mu_native__promised(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg)
{
    struct mu_native_member *m = &n->members[from];

    if ((msg->mask & ~n->all) != 0 || !has(n->voters, from)) {
        mu_native__cut(n, from);
        return;
    }
    if (n->lead != MU_NATIVE_LEAD_PREPARING || msg->ballot != n->ballot || has(n->promises, from)) {
        take_holder(n, from, msg);
        return;
    }
    n->promises |= bit(from);
    m->lost = msg->mask;
    if (msg->proposed && (!n->seen || msg->proposed_at > n->seen_at)) {
        n->seen = true;
        n->seen_at = msg->proposed_at;
        n->seen_sum = msg->sum;
        n->seen_set = msg->set;
    }
    if (msg->accepted) {
        uint32_t latest = latest_accepted(n);

        m->accepted = true;
        m->accepted_at = msg->accepted_at;
        memcpy(m->digest, msg->digest, sizeof(m->digest));
        if (!n->decided && (latest == NOBODY || msg->accepted_at > latest)) {
            n->sum_led = msg->sum;
            n->set_led = msg->set;
        }
    }
    if (msg->final && !n->decided) {
        n->decided = true;
        n->sum_led = msg->sum;
        n->set_led = msg->set;
        memcpy(n->digest_led, msg->digest, sizeof(n->digest_led));
    }
    m->whole = msg->whole ? msg->sum : MU_NATIVE_NO_SUM;
    try_conclude(n, false);
}

/* --- contributions ---------------------------------------------------------------------------- */

static bool is_apart(const struct mu_native *n, uint32_t a, uint32_t b)
{
    return has(n->gone, a) || has(n->gone, b) || has(n->members[a].lost, b) ||
           has(n->members[b].lost, a);
}

/* Whom the owner of a shard still waits for and can hear. */
static uint64_t awaited(const struct mu_native *n, uint32_t shard)
{
    uint32_t owner = mu_native_owner(n, shard, n->owners);
    uint64_t mask = 0;

    for (uint32_t i = 0; i < n->count; i++) {
        if (!has(n->shards[shard].held, i) && !is_apart(n, i, owner)) {
            mask |= bit(i);
        }
    }
    return mask;
}

/* Whether the second owner of a shard is to get the owner's own parts, and has not. */
static bool is_backing(const struct mu_native *n, uint32_t shard)
{
    uint32_t second = mu_native_second(n, shard);

    return second != shard && mu_native_owner(n, shard, n->owners) == shard &&
           !has(n->backed, shard) && !is_apart(n, shard, second);
}

static bool is_gathered(const struct mu_native *n)
{
    for (uint32_t i = 0; i < n->count; i++) {
        if (has(n->filled, i) && (awaited(n, i) != 0 || is_backing(n, i))) {
            return false;
        }
    }
    return true;
}

static uint64_t complete_members(const struct mu_native *n)
{
    uint64_t mask = n->all & ~n->unfair;

    for (uint32_t i = 0; i < n->count; i++) {
        mask &= has(n->filled, i) ? n->shards[i].held : n->all;
    }
    return mask;
}

/* Names the members whose average it will be. Averages that were made of them before are used. */
static void choose(struct mu_native *n, uint64_t members)
{
    double weights = 0;

    n->sum_led = n->ballot;
    n->set_led = (struct mu_native_set){.members = members};
    if (n->seen && !n->repeat && (n->seen_set.members & ~members) == 0) {
        n->sum_led = n->seen_sum;
        n->set_led = n->seen_set;
    } else {
        for (uint32_t i = 0; i < n->count; i++) {
            n->set_led.weights[i] = has(members, i) ? n->told[i] : 0;
        }
    }
    for (uint32_t i = 0; i < n->count; i++) {
        weights += n->set_led.weights[i];
    }
    n->repeat = false;
    if (!(weights > 0)) {
        mu_native__fail(n, MU_NATIVE_WHY_WEIGHT, self(n), self(n));
        return;
    }
    propose(n);
}

static void try_choose(struct mu_native *n)
{
    if (n->lead == MU_NATIVE_LEAD_GATHERING && is_gathered(n) && complete_members(n) != 0) {
        choose(n, complete_members(n));
    }
}

/* Owners that lack most of what they should have are the ones that are slow, not the members. */
static uint64_t slow_owners(const struct mu_native *n)
{
    uint32_t alive = count_of(n->all & ~n->gone);
    uint64_t slow = 0;

    for (uint32_t i = 0; i < n->count; i++) {
        uint32_t lacking = count_of(awaited(n, i));

        if (has(n->filled, i) && 2 * lacking > alive) {
            slow |= bit(mu_native_owner(n, i, n->owners));
        }
    }
    return slow;
}

static void gather_late(struct mu_native *n)
{
    uint64_t slow = slow_owners(n);

    if (slow == 0 && complete_members(n) != 0) {
        choose(n, complete_members(n));
        return;
    }
    n->excluded = (n->excluded | slow) == n->excluded ? 0 : n->excluded | slow;
    mu_native__begin(n);
}

void mu_native__told_have(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg)
{
    uint32_t owner;

    if (msg->shard >= n->count || (msg->set.members & ~n->all) != 0) {
        mu_native__cut(n, from);
        return;
    }
    if (n->lead != MU_NATIVE_LEAD_GATHERING) {
        return;
    }
    for (uint32_t i = 0; i < n->count; i++) {
        if (has(msg->set.members, i) && has(n->known, i) && n->told[i] != msg->set.weights[i]) {
            n->unfair |= bit(i);
        } else if (has(msg->set.members, i)) {
            n->known |= bit(i);
            n->told[i] = msg->set.weights[i];
        }
    }
    owner = mu_native_owner(n, msg->shard, n->owners);
    if (owner == from) {
        n->shards[msg->shard].held |= msg->set.members;
    }
    if (has(msg->set.members, msg->shard) && from != msg->shard) {
        n->backed |= bit(msg->shard);
    }
    try_choose(n);
}

/* --- acceptance ------------------------------------------------------------------------------- */

/* No bits can get a quorum any more. */
static void split(struct mu_native *n)
{
    uint32_t one = NOBODY;
    uint32_t other = NOBODY;

    for (uint32_t i = 0; i < n->count; i++) {
        if (n->members[i].accepted && has(n->voters, i)) {
            if (one == NOBODY) {
                one = i;
            } else if (memcmp(n->members[i].digest, n->members[one].digest, MU_NATIVE_DIGEST_LEN) !=
                       0) {
                other = i;
            }
        }
    }
    if (other == NOBODY) {
        return;
    }
    if (n->repeated) {
        mu_native__fail(n, MU_NATIVE_WHY_DIGEST, one, other);
        return;
    }
    n->repeated = true;
    n->repeat = true;
    mu_native__begin(n);
}

static void count_accepted(struct mu_native *n)
{
    uint64_t silent = 0;
    bool possible = false;

    for (uint32_t i = 0; i < n->count; i++) {
        silent |= has(n->voters & ~n->gone, i) && !n->members[i].accepted ? bit(i) : 0;
    }
    for (uint32_t i = 0; i < n->count; i++) {
        struct mu_native_member *m = &n->members[i];
        uint64_t with = m->accepted ? acceptors(n, n->ballot, m->digest) : 0;

        if (with != 0 && mu_native__quorum(n, with)) {
            memcpy(n->digest_led, m->digest, sizeof(n->digest_led));
            finish(n);
            return;
        }
        possible = possible || mu_native__quorum(n, with | silent);
    }
    if (!possible) {
        split(n);
    }
}

void mu_native__told_accept(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg)
{
    struct mu_native_member *m = &n->members[from];

    if ((n->lead != MU_NATIVE_LEAD_PROPOSED && n->lead != MU_NATIVE_LEAD_FINISHING) ||
        msg->ballot != n->ballot || msg->sum != n->sum_led || m->accepted) {
        return;
    }
    m->accepted = true;
    m->accepted_at = msg->ballot;
    memcpy(m->digest, msg->digest, sizeof(m->digest));
    if (n->lead == MU_NATIVE_LEAD_PROPOSED) {
        count_accepted(n);
    } else {
        mu_native__find_sources(n);
    }
}

/* Everybody who could be here and place it has: nobody needs us any more. */
static void try_close(struct mu_native *n)
{
    if (n->lead == MU_NATIVE_LEAD_FINISHING && (n->all & ~n->gone & ~n->dones) == 0) {
        say_all(n, n->all, MU_NATIVE_CLOSE);
    }
}

void mu_native__told_done(struct mu_native *n, uint32_t from)
{
    if (n->lead == MU_NATIVE_LEAD_FINISHING) {
        n->dones |= bit(from);
        n->holders |= bit(from); /* Who is done has everything that we may lack. */
        mu_native__find_sources(n);
        try_close(n);
    }
}

/* --- trouble ---------------------------------------------------------------------------------- */

void mu_native__fail(struct mu_native *n, enum mu_native_reason why, uint32_t one, uint32_t other)
{
    n->failure = (struct mu_native_msg){.type = MU_NATIVE_FAIL,
                                        .why = why,
                                        .sum = n->sum_led,
                                        .one = (uint8_t)one,
                                        .other = (uint8_t)other};
    n->lead = MU_NATIVE_LEAD_IDLE;
    n->lead_until = MU_MONO_NEVER;
    say_all(n, n->all, MU_NATIVE_FAIL);
}

/* As its coordinator we pass an owner's failure on. */
void mu_native__told_fail(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg)
{
    if (n->lead == MU_NATIVE_LEAD_PROPOSED && msg->why == MU_NATIVE_WHY_VALUE &&
        msg->sum == n->sum_led) {
        mu_native__fail(n, msg->why, from, from);
        n->failure.part = msg->part;
    }
}

static bool is_owner(const struct mu_native *n, uint32_t member, bool missing)
{
    for (uint32_t i = 0; i < n->count; i++) {
        if (has(n->filled, i) && mu_native_owner(n, i, n->owners) == member &&
            (!missing || n->sum != n->sum_led || !is_averaged(n, i))) {
            return true;
        }
    }
    return false;
}

void mu_native__lead_lost(struct mu_native *n, uint32_t member)
{
    switch (n->lead) {
    case MU_NATIVE_LEAD_IDLE:
        break;
    case MU_NATIVE_LEAD_PREPARING:
        try_conclude(n, false);
        break;
    case MU_NATIVE_LEAD_FETCHING:
        if (member == n->fetch_from) {
            mu_native__begin(n);
        }
        break;
    case MU_NATIVE_LEAD_GATHERING:
        if (is_owner(n, member, false)) {
            mu_native__begin(n);
        } else {
            try_choose(n);
        }
        break;
    case MU_NATIVE_LEAD_PROPOSED:
        if (!n->bound_led && is_owner(n, member, true)) {
            mu_native__begin(n);
        } else {
            count_accepted(n);
        }
        break;
    case MU_NATIVE_LEAD_FINISHING:
        try_close(n);
        break;
    }
}

void mu_native__told_lost(struct mu_native *n, uint32_t from, uint64_t members)
{
    n->members[from].lost |= members;
    try_choose(n);
}

void mu_native__lead_late(struct mu_native *n)
{
    switch (n->lead) {
    case MU_NATIVE_LEAD_IDLE:
    case MU_NATIVE_LEAD_FINISHING:
        n->lead_until = MU_MONO_NEVER;
        break;
    case MU_NATIVE_LEAD_PREPARING:
        try_conclude(n, true);
        if (n->lead == MU_NATIVE_LEAD_PREPARING) {
            mu_native__begin(n);
        }
        break;
    case MU_NATIVE_LEAD_FETCHING:
        mu_native__begin(n);
        break;
    case MU_NATIVE_LEAD_GATHERING:
        gather_late(n);
        break;
    case MU_NATIVE_LEAD_PROPOSED:
        for (uint32_t i = 0; i < n->count; i++) {
            uint32_t owner = mu_native_owner(n, i, n->owners);

            if (!is_averaged(n, i) && owner != self(n)) {
                n->excluded |= bit(owner);
            }
        }
        mu_native__begin(n);
        break;
    }
}

/* What the files of the machine of proto/average/native.h share. */
#ifndef MU_NATIVE_INTERNAL_H
#define MU_NATIVE_INTERNAL_H

#include "proto/average/native.h"

#define NOBODY UINT32_MAX

static inline uint64_t bit(uint32_t i)
{
    return UINT64_C(1) << i;
}

static inline bool has(uint64_t mask, uint32_t i)
{
    return (mask >> i & 1) != 0;
}

static inline uint32_t count_of(uint64_t mask)
{
    uint32_t count = 0;

    for (; mask != 0; mask &= mask - 1) {
        count++;
    }
    return count;
}

static inline uint32_t self(const struct mu_native *n)
{
    return n->config.position;
}

static inline uint32_t coordinator(const struct mu_native *n, uint32_t ballot)
{
    return ballot % n->count;
}

static inline uint32_t parts_of(const struct mu_native *n, uint32_t shard)
{
    return n->config.division->count[shard];
}

static inline bool is_averaged(const struct mu_native *n, uint32_t shard)
{
    return n->shards[shard].averaged == parts_of(n, shard);
}

static inline void say(struct mu_native *n, uint32_t member, enum mu_native_type type)
{
    if (!has(n->gone, member)) {
        n->members[member].say |= 1u << type;
    }
}

static inline void say_all(struct mu_native *n, uint64_t members, enum mu_native_type type)
{
    for (uint32_t i = 0; i < n->count; i++) {
        if (has(members, i)) {
            say(n, i, type);
        }
    }
}

/* --- native.c --------------------------------------------------------------------------------- */

bool mu_native__quorum(const struct mu_native *n, uint64_t members);
void mu_native__end(struct mu_native *n, int status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/** That member breaks the rules. */
void mu_native__cut(struct mu_native *n, uint32_t member);
void mu_native__wait(struct mu_native *n);

/* --- native_data.c: parts and averages -------------------------------------------------------- */

void mu_native__owe(struct mu_native *n);
uint64_t mu_native__have(const struct mu_native *n, uint32_t shard);
void mu_native__tell_have(struct mu_native *n, uint32_t shard, bool force);
void mu_native__switch(struct mu_native *n, uint32_t sum);
/** Forgets the averages of this sum as well. */
void mu_native__refetch(struct mu_native *n);
bool mu_native__whole(const struct mu_native *n);
/** Asks that member for what is missing of the shards. */
void mu_native__want(struct mu_native *n, uint32_t from, uint64_t shards);
/** Asks somebody for what nobody sends any more. */
void mu_native__find_sources(struct mu_native *n);
void mu_native__own(struct mu_native *n, uint32_t shard);
bool mu_native__data_event(struct mu_native *n, struct mu_native_event *ret);
void mu_native__drop(struct mu_native *n, uint32_t member);

/* --- native_follow.c: as a member ------------------------------------------------------------- */

void mu_native__prepare(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg);
void mu_native__assign(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg);
void mu_native__propose(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg);
void mu_native__final(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg);
/** Accepts or places the averages if it is time. */
void mu_native__settle(struct mu_native *n);
void mu_native__put_promise(struct mu_native *n, struct mu_native_msg *out);

/* --- native_lead.c: as a coordinator ---------------------------------------------------------- */

void mu_native__begin(struct mu_native *n);
void mu_native__promised(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg);
void mu_native__told_have(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg);
void mu_native__told_accept(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg);
void mu_native__told_done(struct mu_native *n, uint32_t from);
void mu_native__told_lost(struct mu_native *n, uint32_t from, uint64_t members);
void mu_native__told_fail(struct mu_native *n, uint32_t from, const struct mu_native_msg *msg);
void mu_native__lead_lost(struct mu_native *n, uint32_t member);
void mu_native__lead_late(struct mu_native *n);
/** All averages that were fetched are here. */
void mu_native__fetched(struct mu_native *n);
void mu_native__step_down(struct mu_native *n);
/** Of whom a coordinator can get averages; NOBODY. */
uint32_t mu_native__holder(const struct mu_native *n);
/** Tells all of the failure that is in n->failure. */
void mu_native__fail(struct mu_native *n, enum mu_native_reason why, uint32_t one, uint32_t other);

#endif

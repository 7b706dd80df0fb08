/*
 * What a group of averagers is called: the schema that its members share, the key of their bucket
 * in the DHT, the names of their handlers, and the bits of the next bucket of each member (the
 * grid of Moshpit averaging).
 */
#ifndef MU_AVG_GROUP_H
#define MU_AVG_GROUP_H

#include "codec/average/divide.h"
#include "codec/average/schema.h"

#define MU_AVG_NAME_MAX 256

/** The schema hash. MUSTER_ENOTSUP, MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_avg_schema_hash(const struct mu_layout *layout, uint8_t ret[MU_AVG_SCHEMA_LEN]);

/** Writes "<prefix>.0b<bits>". MUSTER_EINVAL: there is no prefix, it has a dot, or bits are not 0
 * and 1; MUSTER_ELIMIT: longer than MU_AVG_KEY_MAX. */
int mu_avg_key_format(char ret[MU_AVG_KEY_MAX + 1], const char *prefix, const char *bits);

/** Writes "<prefix>::<averager>.<method>"; `averager` is the class of all members in Python.
 * MUSTER_EINVAL: one of them is empty; MUSTER_ELIMIT: longer than `cap`. */
int mu_avg_handler_format(char *buf, size_t cap, const char *prefix, const char *averager,
                          const char *method);

/**
 * The bits after a group of `members`, for the one at `position`; done as soon as the group is
 * known, whatever becomes of the round. `target` is the size of a group that was aimed at, 0 if
 * there is none. No bits stay none. `bits` has at most MU_AVG_BITS_MAX characters and keeps their
 * number. MUSTER_EINVAL: a group larger than `target`, or larger than MU_AVG_MEMBERS_MAX.
 */
int mu_avg_next_bits(struct mu_span group_id, uint32_t target, uint32_t members, uint32_t position,
                     char bits[MU_AVG_BITS_MAX + 1]);

#endif

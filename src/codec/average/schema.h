/*
 * What averagers must have in common to be in one group, as hivemind writes it: the schema of their
 * tensors and the key of their bucket in the DHT. And Python's generator of random numbers, by
 * which members choose their next buckets without a message.
 */
#ifndef MU_AVG_SCHEMA_H
#define MU_AVG_SCHEMA_H

#include "codec/average/msg.h"

#define MU_AVG_BITS_MAX 64

/**
 * Appends the text whose SHA-1 is the schema hash: MessagePack of a list with a map for each
 * tensor, all values as Python prints them. Names do not count. MUSTER_ENOTSUP: PyTorch has no such
 * type; MUSTER_ELIMIT, MUSTER_ENOMEM.
 */
int mu_avg_schema_encode(const struct mu_layout *layout, struct mu_buf *out);

/** Whether it is a group key: a prefix without a dot, ".0b", and bits, of which there may be none.
 */
bool mu_avg_key_is_valid(struct mu_span key);

/* MT19937, seeded as Python's random.Random(bytes) seeds it. */
struct mu_avg_mt {
    uint32_t words[624];
    size_t at;
};

/** Seeds with a number of any length in big-endian bytes. For random.Random(bytes) this is the
 * bytes and then their SHA-512; at most 256 bytes together. */
void mu_avg_mt_seed(struct mu_avg_mt *mt, struct mu_span number);
uint32_t mu_avg_mt_next(struct mu_avg_mt *mt);
/** random.sample(range(n), count), `count` at most n and at most MU_AVG_MEMBERS_MAX. */
void mu_avg_mt_sample(struct mu_avg_mt *mt, uint32_t n, uint32_t count, uint32_t *ret);

#endif

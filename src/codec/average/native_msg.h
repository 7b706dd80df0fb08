/*
 * The messages of averaging in the native mode (proto/average/native.h). A message is one frame of
 * the wire that carries it: a byte that says which it is, and its fields in order, little-endian.
 *
 *     HELLO     u16 version, group id, u64 round, schema hash, u8 position, u8 members
 *     PART      u32 part, f64 weight, the encoded values
 *     AVERAGE   u32 sum, u32 part, the encoded average
 *     HAVE      u8 shard, set
 *     PREPARE   u32 ballot
 *     NEWER     u32 ballot
 *     PROMISE   u32 ballot, u8 flags, u64 lost [, u32 proposed_at, u32 sum, set]
 *               [, u32 accepted_at] [, digest]
 *     ASSIGN    u32 ballot, u64 owners
 *     PROPOSE   u32 ballot, u32 sum, set, u8 bound [, digest]
 *     ACCEPT    u32 ballot, u32 sum, digest
 *     FINAL     u32 ballot, u32 sum, set, digest
 *     WANT      u32 sum, u64 shards
 *     DONE      u32 sum
 *     CLOSE     u64 members
 *     LOST      u64 members
 *     FAIL      u8 why, u32 sum, u32 part, u8 member, u8 member
 *
 * A set is a u64 whose bits are members, and an f64 weight for each of them in order. The decoder
 * points into its input and takes no memory; it accepts nothing that the encoder does not write:
 * no flag that is not known, no weight that is not finite or out of range, no byte too many.
 */
#ifndef MU_NATIVE_MSG_H
#define MU_NATIVE_MSG_H

#include "codec/average/msg.h"

#define MU_NATIVE_VERSION     1
#define MU_NATIVE_MEMBERS_MAX 64 /* so that a set of members is a word */
#define MU_NATIVE_DIGEST_LEN  32
#define MU_NATIVE_SCHEMA_LEN  32

enum mu_native_type {
    MU_NATIVE_HELLO = 1,
    MU_NATIVE_PART,
    MU_NATIVE_AVERAGE,
    MU_NATIVE_HAVE,
    MU_NATIVE_PREPARE,
    MU_NATIVE_NEWER,
    MU_NATIVE_PROMISE,
    MU_NATIVE_ASSIGN,
    MU_NATIVE_PROPOSE,
    MU_NATIVE_ACCEPT,
    MU_NATIVE_FINAL,
    MU_NATIVE_WANT,
    MU_NATIVE_DONE,
    MU_NATIVE_CLOSE,
    MU_NATIVE_LOST,
    MU_NATIVE_FAIL,
};
#define MU_NATIVE_TYPE_LAST MU_NATIVE_FAIL

enum mu_native_reason {
    MU_NATIVE_WHY_DIGEST = 1, /* two members hold different bits */
    MU_NATIVE_WHY_VALUE,      /* the average of `part` is not finite */
    MU_NATIVE_WHY_WEIGHT,     /* no weight is above zero */
};
#define MU_NATIVE_WHY_LAST MU_NATIVE_WHY_WEIGHT

/* The members that a sum is made of. The weights of others are zero. */
struct mu_native_set {
    uint64_t members;
    double weights[MU_NATIVE_MEMBERS_MAX];
};

struct mu_native_hello {
    uint16_t version;
    uint8_t group_id[MU_AVG_GROUP_ID_LEN];
    uint64_t round;
    uint8_t schema[MU_NATIVE_SCHEMA_LEN];
    uint8_t position, members;
};

struct mu_native_msg {
    enum mu_native_type type;
    uint32_t ballot;
    uint32_t sum; /* the ballot in which this sum was first proposed */
    uint32_t part;
    uint32_t shard;
    double weight;
    uint64_t mask; /* PROMISE, LOST: who is lost; ASSIGN: owners; WANT: shards; CLOSE: who is
                      done */
    bool proposed, accepted, final, whole; /* PROMISE */
    bool bound;                            /* PROPOSE: to that digest */
    uint32_t proposed_at, accepted_at;
    struct mu_native_set set;
    uint8_t digest[MU_NATIVE_DIGEST_LEN];
    enum mu_native_reason why;
    uint8_t one, other;    /* FAIL */
    struct mu_span values; /* PART, AVERAGE: at most MU_AVG_PART_BYTES_MAX */
    struct mu_native_hello hello;
};

/** MUSTER_EPROTO: the bytes are not such a message; MUSTER_ELIMIT: a part that is too long. */
int mu_native_msg_decode(struct mu_span in, struct mu_native_msg *ret);
/** MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_native_msg_encode(const struct mu_native_msg *msg, struct mu_buf *out);
/** "PROPOSE". */
const char *mu_native_type_name(enum mu_native_type type);

#endif

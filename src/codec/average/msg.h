/*
 * The messages with which hivemind's averagers find a group and average in it. Framing, streams and
 * the DHT are elsewhere; here are the bodies.
 *
 *     JoinRequest         mu_avg_join     a follower asks a leader to let it into its group
 *     MessageFromLeader   mu_avg_reply    what the leader says: first ACCEPTED, later the group
 *     AveragingData       mu_avg_data     a part of the vector with a weight, or a result
 *     gather              mu_avg_gather   what each member tells all others, inside JoinRequest
 *
 * Decoders point into their input and take no memory. They accept what hivemind can send and
 * nothing else: numbers are finite, lengths are within the limits below, a part has one dimension
 * and a type that can be averaged. Unknown fields are skipped, as protocol buffers want it. Whether
 * a message is right at its place (a part of that length, from that member) is for the machines of
 * proto/average to say. Encoders write what hivemind writes, byte for byte: a zero, an empty text
 * and empty bytes are left out.
 *
 * Errors of all decoders: MUSTER_EPROTO, the bytes are not such a message; MUSTER_ELIMIT, it is
 * larger than we accept; MUSTER_ENOTSUP, a type or an encoding that we do not have. Errors of all
 * encoders: MUSTER_ELIMIT, MUSTER_ENOMEM.
 */
#ifndef MU_AVG_MSG_H
#define MU_AVG_MSG_H

#include "codec/peer/id.h"
#include "codec/state/hm_tensor.h"
#include "core/buf.h"

#define MU_AVG_SCHEMA_LEN     20
#define MU_AVG_GROUP_ID_LEN   20
#define MU_AVG_GROUP_ID_MAX   32             /* with the suffix of a phase */
#define MU_AVG_KEY_MAX        255            /* bytes of a group key */
#define MU_AVG_MEMBERS_MAX    256            /* of a group */
#define MU_AVG_GATHER_MAX     65536          /* bytes that one member tells the others */
#define MU_AVG_GATHERED_MAX   (1u << 20)     /* bytes of what all members of a group tell */
#define MU_AVG_PART_BYTES_MAX (16u << 20)    /* of a part, encoded or not */
#define MU_AVG_WEIGHT_MAX     1099511627776. /* 2^40: no member has seen more samples */

/* The suffixes of a group id in the two phases of PowerSGD. */
#define MU_AVG_PHASE_P "PHASE_P"
#define MU_AVG_PHASE_Q "PHASE_Q"

enum mu_avg_code {
    MU_AVG_NO_CODE = 0,
    MU_AVG_REQUEST_JOIN = 1, /* never sent */
    MU_AVG_ACCEPTED = 2,
    MU_AVG_BEGIN_ALLREDUCE = 3,
    MU_AVG_PART_FOR_AVERAGING = 4,
    MU_AVG_AVERAGED_PART = 5,
    MU_AVG_NOT_DECLARED = 6,
    MU_AVG_NOT_A_LEADER = 7,
    MU_AVG_BAD_EXPIRATION_TIME = 8,
    MU_AVG_BAD_SCHEMA_HASH = 9,
    MU_AVG_BAD_GROUP_ID = 10,
    MU_AVG_DUPLICATE_PEER_ID = 11,
    MU_AVG_GROUP_IS_FULL = 12,
    MU_AVG_NOT_LOOKING_FOR_GROUP = 13,
    MU_AVG_PROTOCOL_VIOLATION = 14,
    MU_AVG_INTERNAL_ERROR = 15,
    MU_AVG_CANCELLED = 16,
    MU_AVG_GROUP_DISBANDED = 17,
    MU_AVG_BAD_GROUP_KEY = 18,
};
#define MU_AVG_CODE_LAST MU_AVG_BAD_GROUP_KEY

/** As hivemind calls it, "GROUP_IS_FULL". */
const char *mu_avg_code_name(enum mu_avg_code code);

/* --- what members tell each other ------------------------------------------------------------- */

enum mu_avg_mode {
    MU_AVG_NODE = 0,   /* sends and reduces */
    MU_AVG_CLIENT = 1, /* sends; cannot be called, so it neither leads nor reduces */
    MU_AVG_AUX = 2,    /* reduces; what it sends has weight zero */
};

/* An array of three: bandwidth, mode, the user's data as bytes. */
struct mu_avg_gather {
    bool bandwidth_known;
    double bandwidth; /* finite and not below zero */
    enum mu_avg_mode mode;
    struct mu_span user; /* one MessagePack value; points into the input */
};

int mu_avg_gather_decode(struct mu_span in, struct mu_avg_gather *ret);
/** MUSTER_EINVAL as well: `user` is not a value. */
int mu_avg_gather_encode(const struct mu_avg_gather *g, struct mu_buf *out);

/* --- finding a group -------------------------------------------------------------------------- */

struct mu_avg_join {
    struct mu_span schema_hash; /* may be empty or of any length: the leader answers that */
    double expiration;          /* seconds since 1970; may be anything: the leader answers that */
    struct mu_span gather;      /* at most MU_AVG_GATHER_MAX */
    bool client_mode;
    struct mu_span group_key; /* at most MU_AVG_KEY_MAX */
};

int mu_avg_join_decode(struct mu_span in, struct mu_avg_join *ret);
int mu_avg_join_encode(const struct mu_avg_join *join, struct mu_buf *out);

struct mu_avg_reply {
    enum mu_avg_code code;
    struct mu_span group_id;                       /* BEGIN_ALLREDUCE: MU_AVG_GROUP_ID_LEN bytes */
    bool suggested;                                /* there is a suggested leader */
    struct mu_peer_id suggested_leader;            /* NOT_A_LEADER, GROUP_DISBANDED */
    size_t member_count;                           /* BEGIN_ALLREDUCE: at least 1; otherwise 0 */
    struct mu_peer_id members[MU_AVG_MEMBERS_MAX]; /* in the order of the group */
    struct mu_span gathered[MU_AVG_MEMBERS_MAX];   /* one for each member */
};

/** A group has distinct members, and has as many gathered as members. */
int mu_avg_reply_decode(struct mu_span in, struct mu_avg_reply *ret);
int mu_avg_reply_encode(const struct mu_avg_reply *reply, struct mu_buf *out);
/** A reply that has only a code, and perhaps a leader to go to instead; NULL: no leader. */
int mu_avg_refusal_encode(enum mu_avg_code code, const struct mu_peer_id *suggested,
                          struct mu_buf *out);

/* --- averaging -------------------------------------------------------------------------------- */

/*
 * A part on its way to a reducer, or a result on its way back. `tensor` false: the message has only
 * a code, and says that something is wrong.
 */
struct mu_avg_data {
    enum mu_avg_code code;   /* PART_FOR_AVERAGING in the first part, then none; AVERAGED_PART */
    struct mu_span group_id; /* in the first part; at most MU_AVG_GROUP_ID_MAX */
    double weight;           /* of a part; 0 in a result */
    bool tensor;
    enum mu_dtype dtype; /* float32, float16, bfloat16 or float64 */
    enum mu_hm_compression compression;
    uint64_t elements;
    struct mu_span buffer; /* of `tensor`: encoded. At most MU_AVG_PART_BYTES_MAX */
};

/** The weight is finite and from 0 to MU_AVG_WEIGHT_MAX. */
int mu_avg_data_decode(struct mu_span in, struct mu_avg_data *ret);
/**
 * Decodes the values of a part into `out`, which has at least mu_avg_data_len() bytes (otherwise
 * MUSTER_EINVAL). MUSTER_EPROTO also if a value is not finite: a sum would carry it to everybody.
 */
int mu_avg_data_values(const struct mu_avg_data *data, struct mu_space out);
/** Bytes of the part when it is decoded. */
size_t mu_avg_data_len(const struct mu_avg_data *data);
/**
 * Appends the message, with `values` encoded by data->compression; data->buffer is not looked at.
 * `values` has mu_avg_data_len() bytes. MUSTER_ENOTSUP: there is no such encoding of such a type.
 */
int mu_avg_data_encode(const struct mu_avg_data *data, struct mu_span values, struct mu_buf *out);

#endif

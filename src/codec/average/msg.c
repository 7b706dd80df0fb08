#include "codec/average/msg.h"

#include "codec/bin/msgpack.h"
#include "codec/bin/pb.h"
#include "codec/state/hm_state.h"

static const char *const names[] = {
    "NO_CODE",
    "REQUEST_JOIN",
    "ACCEPTED",
    "BEGIN_ALLREDUCE",
    "PART_FOR_AVERAGING",
    "AVERAGED_PART",
    "NOT_DECLARED",
    "NOT_A_LEADER",
    "BAD_EXPIRATION_TIME",
    "BAD_SCHEMA_HASH",
    "BAD_GROUP_ID",
    "DUPLICATE_PEER_ID",
    "GROUP_IS_FULL",
    "NOT_LOOKING_FOR_GROUP",
    "PROTOCOL_VIOLATION",
    "INTERNAL_ERROR",
    "CANCELLED",
    "GROUP_DISBANDED",
    "BAD_GROUP_KEY",
};

const char *mu_avg_code_name(enum mu_avg_code code)
{
    return names[code];
}

static bool is_finite(double x)
{
    return x - x == 0;
}

static int read_code(const struct mu_pb_field *field, enum mu_avg_code *ret)
{
    if (field->value > MU_AVG_CODE_LAST) {
        return MUSTER_EPROTO;
    }
    *ret = (enum mu_avg_code)field->value;
    return 0;
}

/* Appends a field of bytes unless it is empty. */
static void put_bytes(struct mu_pb_out *out, uint32_t number, struct mu_span bytes)
{
    if (bytes.len != 0) {
        mu_pb_put_bytes(out, number, bytes);
    }
}

/* --- gather ----------------------------------------------------------------------------------- */

int mu_avg_gather_decode(struct mu_span in, struct mu_avg_gather *ret)
{
    struct mu_avg_gather g = {0};
    struct mu_mp t;

    if (in.len > MU_AVG_GATHER_MAX) {
        return MUSTER_ELIMIT;
    }
    if (mu_mp_next(&in, &t) != 0 || t.type != MU_MP_ARRAY || t.count != 3 ||
        mu_mp_next(&in, &t) != 0) {
        return MUSTER_EPROTO;
    }
    if (t.type != MU_MP_NIL) {
        g.bandwidth_known = true;
        if (!mu_mp_double(&t, &g.bandwidth) || !is_finite(g.bandwidth) || g.bandwidth < 0) {
            return MUSTER_EPROTO;
        }
    }
    if (mu_mp_next(&in, &t) != 0 || t.type != MU_MP_UINT || t.number > MU_AVG_AUX) {
        return MUSTER_EPROTO;
    }
    g.mode = (enum mu_avg_mode)t.number;
    if (mu_mp_next(&in, &t) != 0 || t.type != MU_MP_BIN || in.len != 0 ||
        !mu_mp_is_value(t.bytes)) {
        return MUSTER_EPROTO;
    }
    g.user = t.bytes;
    *ret = g;
    return 0;
}

int mu_avg_gather_encode(const struct mu_avg_gather *g, struct mu_buf *out)
{
    struct mu_mp_out mp = mu_mp_out(out);

    if (!mu_mp_is_value(g->user)) {
        return MUSTER_EINVAL;
    }
    mu_mp_put_array(&mp, 3);
    if (g->bandwidth_known) {
        mu_mp_put_double(&mp, g->bandwidth);
    } else {
        mu_mp_put_nil(&mp);
    }
    mu_mp_put_uint(&mp, g->mode);
    mu_mp_put_bin(&mp, g->user);
    return mp.err;
}

/* --- JoinRequest ------------------------------------------------------------------------------ */

static int read_join_field(const struct mu_pb_field *field, struct mu_avg_join *ret)
{
    static const enum mu_pb_type types[] = {
        [2] = MU_PB_BYTES,  [3] = MU_PB_FIXED64, [4] = MU_PB_BYTES,
        [5] = MU_PB_VARINT, [6] = MU_PB_BYTES,
    };

    if (field->number < 2 || field->number > 6) {
        return 0;
    }
    if (field->type != types[field->number]) {
        return MUSTER_EPROTO;
    }
    switch (field->number) {
    case 2:
        ret->schema_hash = field->bytes;
        break;
    case 3:
        ret->expiration = mu_pb_double(field);
        break;
    case 4:
        ret->gather = field->bytes;
        break;
    case 5:
        ret->client_mode = field->value != 0;
        break;
    default:
        ret->group_key = field->bytes;
        break;
    }
    return 0;
}

int mu_avg_join_decode(struct mu_span in, struct mu_avg_join *ret)
{
    struct mu_avg_join join = {0};
    struct mu_pb_field field;
    int got;

    while ((got = mu_pb_next(&in, &field)) == 1) {
        if (read_join_field(&field, &join) != 0) {
            return MUSTER_EPROTO;
        }
    }
    if (got != 0) {
        return got;
    }
    if (join.gather.len > MU_AVG_GATHER_MAX || join.group_key.len > MU_AVG_KEY_MAX) {
        return MUSTER_ELIMIT;
    }
    *ret = join;
    return 0;
}

int mu_avg_join_encode(const struct mu_avg_join *join, struct mu_buf *out)
{
    struct mu_pb_out pb = mu_pb_out(out);

    put_bytes(&pb, 2, join->schema_hash);
    if (join->expiration != 0) {
        mu_pb_put_double(&pb, 3, join->expiration);
    }
    put_bytes(&pb, 4, join->gather);
    if (join->client_mode) {
        mu_pb_put_varint(&pb, 5, 1);
    }
    put_bytes(&pb, 6, join->group_key);
    return pb.err;
}

/* --- MessageFromLeader ------------------------------------------------------------------------ */

struct reply_counts {
    size_t members, gathered;
    size_t gathered_bytes;
};

static int read_member(struct mu_span bytes, struct reply_counts *n, struct mu_avg_reply *ret)
{
    if (n->members == MU_AVG_MEMBERS_MAX) {
        return MUSTER_ELIMIT;
    }
    if (mu_peer_id_from_bytes(&ret->members[n->members], bytes) != 0) {
        return MUSTER_EPROTO;
    }
    for (size_t i = 0; i < n->members; i++) {
        if (mu_peer_id_eq(&ret->members[i], &ret->members[n->members])) {
            return MUSTER_EPROTO;
        }
    }
    n->members++;
    return 0;
}

static int read_gathered(struct mu_span bytes, struct reply_counts *n, struct mu_avg_reply *ret)
{
    n->gathered_bytes += bytes.len;
    if (n->gathered == MU_AVG_MEMBERS_MAX || bytes.len > MU_AVG_GATHER_MAX ||
        n->gathered_bytes > MU_AVG_GATHERED_MAX) {
        return MUSTER_ELIMIT;
    }
    ret->gathered[n->gathered++] = bytes;
    return 0;
}

static int read_reply_field(const struct mu_pb_field *field, struct reply_counts *n,
                            struct mu_avg_reply *ret)
{
    if (field->number <= 5 && field->type != (field->number == 1 ? MU_PB_VARINT : MU_PB_BYTES)) {
        return MUSTER_EPROTO;
    }
    switch (field->number) {
    case 1:
        return read_code(field, &ret->code);
    case 2:
        ret->group_id = field->bytes;
        return 0;
    case 3:
        ret->suggested = field->bytes.len != 0;
        return ret->suggested && mu_peer_id_from_bytes(&ret->suggested_leader, field->bytes) != 0
                   ? MUSTER_EPROTO
                   : 0;
    case 4:
        return read_member(field->bytes, n, ret);
    case 5:
        return read_gathered(field->bytes, n, ret);
    default:
        return 0;
    }
}

int mu_avg_reply_decode(struct mu_span in, struct mu_avg_reply *ret)
{
    struct reply_counts n = {0};
    struct mu_pb_field field;
    bool begins;
    int got;

    /* The arrays are read only as far as the counts. */
    ret->code = MU_AVG_NO_CODE;
    ret->group_id = (struct mu_span){0};
    ret->suggested = false;
    ret->member_count = 0;
    while ((got = mu_pb_next(&in, &field)) == 1) {
        int err = read_reply_field(&field, &n, ret);

        if (err != 0) {
            return err;
        }
    }
    if (got != 0) {
        return got;
    }
    begins = ret->code == MU_AVG_BEGIN_ALLREDUCE;
    if (n.members != n.gathered || begins != (n.members != 0) ||
        ret->group_id.len != (begins ? MU_AVG_GROUP_ID_LEN : 0)) {
        return MUSTER_EPROTO;
    }
    ret->member_count = n.members;
    return 0;
}

int mu_avg_reply_encode(const struct mu_avg_reply *reply, struct mu_buf *out)
{
    struct mu_pb_out pb = mu_pb_out(out);

    if (reply->code != MU_AVG_NO_CODE) {
        mu_pb_put_varint(&pb, 1, reply->code);
    }
    put_bytes(&pb, 2, reply->group_id);
    if (reply->suggested) {
        mu_pb_put_bytes(&pb, 3, mu_peer_id_span(&reply->suggested_leader));
    }
    for (size_t i = 0; i < reply->member_count; i++) {
        mu_pb_put_bytes(&pb, 4, mu_peer_id_span(&reply->members[i]));
    }
    for (size_t i = 0; i < reply->member_count; i++) {
        mu_pb_put_bytes(&pb, 5, reply->gathered[i]);
    }
    return pb.err;
}

int mu_avg_refusal_encode(enum mu_avg_code code, const struct mu_peer_id *suggested,
                          struct mu_buf *out)
{
    struct mu_pb_out pb = mu_pb_out(out);

    mu_pb_put_varint(&pb, 1, code);
    if (suggested != NULL) {
        mu_pb_put_bytes(&pb, 3, mu_peer_id_span(suggested));
    }
    return pb.err;
}

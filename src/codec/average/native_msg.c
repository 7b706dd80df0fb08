#include "codec/average/native_msg.h"

#include "core/assert.h"
#include "core/reader.h"

/* Of a message without the values of a part. */
#define FIXED_LEN (128 + 8 * MU_NATIVE_MEMBERS_MAX)

/* Flags of a promise. */
#define PROPOSED 1u
#define ACCEPTED 2u
#define DECIDED  4u
#define WHOLE    8u

const char *mu_native_type_name(enum mu_native_type type)
{
    static const char *const names[] = {
        "",        "HELLO",  "PART",  "AVERAGE", "HAVE", "PREPARE", "NEWER", "PROMISE", "ASSIGN",
        "PROPOSE", "ACCEPT", "FINAL", "WANT",    "DONE", "CLOSE",   "LOST",  "FAIL"};

    return type >= 1 && type <= MU_NATIVE_TYPE_LAST ? names[type] : "?";
}

/* --- decoding --------------------------------------------------------------------------------- */

static double read_weight(struct mu_reader *in)
{
    uint64_t bits = mu_read_u64(in);
    double weight;

    memcpy(&weight, &bits, sizeof(weight));
    /* A weight of minus zero has another encoding of zero; there is one. */
    if (!(weight >= 0 && weight <= MU_AVG_WEIGHT_MAX) || (weight == 0 && bits != 0)) {
        in->failed = true;
        return 0;
    }
    return weight;
}

static void read_set(struct mu_reader *in, struct mu_native_set *set)
{
    set->members = mu_read_u64(in);
    for (uint32_t i = 0; i < MU_NATIVE_MEMBERS_MAX && !in->failed; i++) {
        if ((set->members >> i & 1) != 0) {
            set->weights[i] = read_weight(in);
        }
    }
}

static void read_array(struct mu_reader *in, uint8_t *ret, size_t len)
{
    struct mu_span bytes = mu_read_bytes(in, len);

    if (!in->failed) {
        memcpy(ret, bytes.data, len);
    }
}

static uint8_t read_below(struct mu_reader *in, uint8_t limit)
{
    uint8_t value = mu_read_u8(in);

    in->failed = in->failed || value >= limit;
    return value;
}

static void read_hello(struct mu_reader *in, struct mu_native_hello *h)
{
    h->version = mu_read_u16(in);
    read_array(in, h->group_id, sizeof(h->group_id));
    h->round = mu_read_u64(in);
    read_array(in, h->schema, sizeof(h->schema));
    h->position = mu_read_u8(in);
    h->members = mu_read_u8(in);
    in->failed = in->failed || h->members > MU_NATIVE_MEMBERS_MAX || h->position >= h->members;
}

static void read_promise(struct mu_reader *in, struct mu_native_msg *m)
{
    uint8_t flags;

    m->ballot = mu_read_u32(in);
    flags = read_below(in, 16);
    m->mask = mu_read_u64(in);
    m->proposed = (flags & PROPOSED) != 0;
    m->accepted = (flags & ACCEPTED) != 0;
    m->final = (flags & DECIDED) != 0;
    m->whole = (flags & WHOLE) != 0;
    if (m->proposed) {
        m->proposed_at = mu_read_u32(in);
        m->sum = mu_read_u32(in);
        read_set(in, &m->set);
    }
    if (m->accepted) {
        m->accepted_at = mu_read_u32(in);
    }
    if (m->accepted || m->final) {
        read_array(in, m->digest, sizeof(m->digest));
    }
    /* Who has accepted has everything, and all of it was proposed, in that ballot or before. */
    in->failed = in->failed || (!m->proposed && flags != 0) || (m->accepted && !m->whole) ||
                 (m->accepted && m->accepted_at > m->proposed_at) ||
                 (m->proposed && m->sum > m->proposed_at);
}

static void read_fail(struct mu_reader *in, struct mu_native_msg *m)
{
    m->why = (enum mu_native_reason)read_below(in, MU_NATIVE_WHY_LAST + 1);
    m->sum = mu_read_u32(in);
    m->part = mu_read_u32(in);
    m->one = read_below(in, MU_NATIVE_MEMBERS_MAX);
    m->other = read_below(in, MU_NATIVE_MEMBERS_MAX);
    in->failed = in->failed || m->why == 0;
}

static void read_sum(struct mu_reader *in, struct mu_native_msg *m, bool set, bool digest)
{
    m->ballot = mu_read_u32(in);
    m->sum = mu_read_u32(in);
    if (set) {
        read_set(in, &m->set);
    }
    if (digest) {
        read_array(in, m->digest, sizeof(m->digest));
    }
    in->failed = in->failed || m->sum > m->ballot;
}

static void read_fields(struct mu_reader *in, struct mu_native_msg *m)
{
    switch (m->type) {
    case MU_NATIVE_HELLO:
        read_hello(in, &m->hello);
        break;
    case MU_NATIVE_PART:
        m->part = mu_read_u32(in);
        m->weight = read_weight(in);
        m->values = mu_read_bytes(in, in->rest.len);
        break;
    case MU_NATIVE_AVERAGE:
        m->sum = mu_read_u32(in);
        m->part = mu_read_u32(in);
        m->values = mu_read_bytes(in, in->rest.len);
        break;
    case MU_NATIVE_HAVE:
        m->shard = read_below(in, MU_NATIVE_MEMBERS_MAX);
        read_set(in, &m->set);
        break;
    case MU_NATIVE_PREPARE:
    case MU_NATIVE_NEWER:
        m->ballot = mu_read_u32(in);
        break;
    case MU_NATIVE_PROMISE:
        read_promise(in, m);
        break;
    case MU_NATIVE_ASSIGN:
        m->ballot = mu_read_u32(in);
        m->mask = mu_read_u64(in);
        break;
    case MU_NATIVE_PROPOSE:
        read_sum(in, m, true, false);
        m->bound = read_below(in, 2) != 0;
        if (m->bound) {
            read_array(in, m->digest, sizeof(m->digest));
        }
        break;
    case MU_NATIVE_ACCEPT:
        read_sum(in, m, false, true);
        break;
    case MU_NATIVE_FINAL:
        read_sum(in, m, true, true);
        break;
    case MU_NATIVE_WANT:
        m->sum = mu_read_u32(in);
        m->mask = mu_read_u64(in);
        break;
    case MU_NATIVE_DONE:
        m->sum = mu_read_u32(in);
        break;
    case MU_NATIVE_CLOSE:
    case MU_NATIVE_LOST:
        m->mask = mu_read_u64(in);
        break;
    case MU_NATIVE_FAIL:
        read_fail(in, m);
        break;
    }
}

int mu_native_msg_decode(struct mu_span in, struct mu_native_msg *ret)
{
    struct mu_reader r = mu_reader(in);
    struct mu_native_msg m = {0};
    uint8_t type = mu_read_u8(&r);

    if (type == 0 || type > MU_NATIVE_TYPE_LAST) {
        return MUSTER_EPROTO;
    }
    m.type = (enum mu_native_type)type;
    read_fields(&r, &m);
    if (!mu_reader_done(&r)) {
        return MUSTER_EPROTO;
    }
    if (m.values.len > MU_AVG_PART_BYTES_MAX) {
        return MUSTER_ELIMIT;
    }
    *ret = m;
    return 0;
}

/* --- encoding --------------------------------------------------------------------------------- */

static void put_weight(struct mu_buf *out, double weight)
{
    uint64_t bits;

    MU_ASSERT(weight >= 0 && weight <= MU_AVG_WEIGHT_MAX);
    memcpy(&bits, &weight, sizeof(bits));
    mu_buf_put_u64(out, weight == 0 ? 0 : bits);
}

static void put_set(struct mu_buf *out, const struct mu_native_set *set)
{
    mu_buf_put_u64(out, set->members);
    for (uint32_t i = 0; i < MU_NATIVE_MEMBERS_MAX; i++) {
        if ((set->members >> i & 1) != 0) {
            put_weight(out, set->weights[i]);
        }
    }
}

static void put_hello(struct mu_buf *out, const struct mu_native_hello *h)
{
    mu_buf_put_u16(out, h->version);
    mu_buf_put(out, mu_span(h->group_id, sizeof(h->group_id)));
    mu_buf_put_u64(out, h->round);
    mu_buf_put(out, mu_span(h->schema, sizeof(h->schema)));
    mu_buf_put_u8(out, h->position);
    mu_buf_put_u8(out, h->members);
}

static void put_promise(struct mu_buf *out, const struct mu_native_msg *m)
{
    mu_buf_put_u32(out, m->ballot);
    mu_buf_put_u8(out, (uint8_t)((m->proposed ? PROPOSED : 0) | (m->accepted ? ACCEPTED : 0) |
                                 (m->final ? DECIDED : 0) | (m->whole ? WHOLE : 0)));
    mu_buf_put_u64(out, m->mask);
    if (m->proposed) {
        mu_buf_put_u32(out, m->proposed_at);
        mu_buf_put_u32(out, m->sum);
        put_set(out, &m->set);
    }
    if (m->accepted) {
        mu_buf_put_u32(out, m->accepted_at);
    }
    if (m->accepted || m->final) {
        mu_buf_put(out, mu_span(m->digest, sizeof(m->digest)));
    }
}

static void put_fields(struct mu_buf *out, const struct mu_native_msg *m)
{
    switch (m->type) {
    case MU_NATIVE_HELLO:
        put_hello(out, &m->hello);
        break;
    case MU_NATIVE_PART:
        mu_buf_put_u32(out, m->part);
        put_weight(out, m->weight);
        mu_buf_put(out, m->values);
        break;
    case MU_NATIVE_AVERAGE:
        mu_buf_put_u32(out, m->sum);
        mu_buf_put_u32(out, m->part);
        mu_buf_put(out, m->values);
        break;
    case MU_NATIVE_HAVE:
        mu_buf_put_u8(out, (uint8_t)m->shard);
        put_set(out, &m->set);
        break;
    case MU_NATIVE_PREPARE:
    case MU_NATIVE_NEWER:
        mu_buf_put_u32(out, m->ballot);
        break;
    case MU_NATIVE_PROMISE:
        put_promise(out, m);
        break;
    case MU_NATIVE_ASSIGN:
        mu_buf_put_u32(out, m->ballot);
        mu_buf_put_u64(out, m->mask);
        break;
    case MU_NATIVE_PROPOSE:
    case MU_NATIVE_ACCEPT:
    case MU_NATIVE_FINAL:
        mu_buf_put_u32(out, m->ballot);
        mu_buf_put_u32(out, m->sum);
        if (m->type != MU_NATIVE_ACCEPT) {
            put_set(out, &m->set);
        }
        if (m->type == MU_NATIVE_PROPOSE) {
            mu_buf_put_u8(out, m->bound ? 1 : 0);
        }
        if (m->type != MU_NATIVE_PROPOSE || m->bound) {
            mu_buf_put(out, mu_span(m->digest, sizeof(m->digest)));
        }
        break;
    case MU_NATIVE_WANT:
        mu_buf_put_u32(out, m->sum);
        mu_buf_put_u64(out, m->mask);
        break;
    case MU_NATIVE_DONE:
        mu_buf_put_u32(out, m->sum);
        break;
    case MU_NATIVE_CLOSE:
    case MU_NATIVE_LOST:
        mu_buf_put_u64(out, m->mask);
        break;
    case MU_NATIVE_FAIL:
        mu_buf_put_u8(out, (uint8_t)m->why);
        mu_buf_put_u32(out, m->sum);
        mu_buf_put_u32(out, m->part);
        mu_buf_put_u8(out, m->one);
        mu_buf_put_u8(out, m->other);
        break;
    }
}

int mu_native_msg_encode(const struct mu_native_msg *msg, struct mu_buf *out)
{
    int rc;

    if (msg->values.len > MU_AVG_PART_BYTES_MAX) {
        return MUSTER_ELIMIT;
    }
    rc = mu_buf_reserve(out, FIXED_LEN + msg->values.len);
    if (rc != 0) {
        return rc;
    }
    mu_buf_put_u8(out, (uint8_t)msg->type);
    put_fields(out, msg);
    return 0;
}

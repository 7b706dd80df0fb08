#include "codec/rdzv/state.h"

#include <muster/error.h>

#include "codec/bin/pickle.h"
#include "core/civil.h"
#include "core/utf8.h"

#define NODE_ATTRIBUTES_MAX 64 /* many more than any PyTorch gives a node */
#define MEMORY_BASE         ((size_t)64 << 10)
#define MEMORY_PER_BYTE     16
#define MEMORY_MAX          ((size_t)96 << 20)
#define TIME_SIZE           10
#define FOLD                0x80 /* in the month: the second of two equal local times */
#define SECONDS_PER_DAY     86400

struct decoder {
    struct mu_pickle p;
    struct mu_rdzv_state s;
    struct mu_errmsg *msg;
    size_t hint; /* the last member that was met: lists tend to have the same order */
    bool has_spares;
    bool has_fqdn_only;
    bool has_addr_only;
    bool has_naive;
    bool has_aware;
};

static int refuse(struct decoder *d, const char *what)
{
    return mu_err(d->msg, MUSTER_ECORRUPT, "%s", what);
}

/* Finds a required attribute. */
static int need(struct decoder *d, uint32_t attributes, const char *name, uint32_t *ret_number)
{
    uint32_t number = mu_pickle_get(&d->p, attributes, name);

    if (number == MU_PICKLE_NOTHING) {
        return mu_err(d->msg, MUSTER_ECORRUPT, "there is no attribute \"%s\"", name);
    }
    *ret_number = number;
    return 0;
}

static int need_kind(struct decoder *d, uint32_t attributes, const char *name,
                     enum mu_pickle_kind kind, uint32_t *ret_number)
{
    int err = need(d, attributes, name, ret_number);

    if (err == 0 && !mu_pickle_is(&d->p, *ret_number, kind)) {
        err = mu_err(d->msg, MUSTER_ECORRUPT, "attribute \"%s\" is of the wrong kind", name);
    }
    return err;
}

static int need_int(struct decoder *d, uint32_t attributes, const char *name, int64_t *ret)
{
    uint32_t number = 0;
    int err = need_kind(d, attributes, name, MU_PICKLE_INT, &number);

    if (err == 0) {
        *ret = mu_pickle_at(&d->p, number)->as.integer;
    }
    return err;
}

static int need_bool(struct decoder *d, uint32_t attributes, const char *name, bool *ret)
{
    uint32_t number = 0;
    int err = need_kind(d, attributes, name, MU_PICKLE_BOOL, &number);

    if (err == 0) {
        *ret = mu_pickle_at(&d->p, number)->as.integer != 0;
    }
    return err;
}

/* Copies the address and terminates it. */
static int read_addr(struct decoder *d, uint32_t number, char buffer[MU_RDZV_ADDR_MAX + 1])
{
    struct mu_span text;

    if (!mu_pickle_is(&d->p, number, MU_PICKLE_TEXT)) {
        return refuse(d, "a node's address is not a text");
    }
    text = mu_pickle_bytes(&d->p, number);
    if (text.len > MU_RDZV_ADDR_MAX) {
        return mu_err(d->msg, MUSTER_ELIMIT, "a node's address of %zu bytes is longer than %d",
                      text.len, MU_RDZV_ADDR_MAX);
    }
    memcpy(buffer, text.data, text.len);
    buffer[text.len] = '\0';
    while (text.len != 0) {
        size_t len = mu_utf8_len(text);

        if (len == 0 || text.data[0] == '\0') {
            return refuse(d, "a node's address is not a text");
        }
        text = mu_span_skip(text, len);
    }
    return 0;
}

/* 1.13 calls the address `fqdn`, 2 `addr`; a node that both can read has both. */
static int read_node(struct decoder *d, uint32_t attributes, char buffer[MU_RDZV_ADDR_MAX + 1],
                     struct mu_rdzv_node *ret_node)
{
    struct mu_rdzv_node node = {.addr = buffer};
    uint32_t addr = mu_pickle_get(&d->p, attributes, "addr");
    uint32_t fqdn = mu_pickle_get(&d->p, attributes, "fqdn");
    int err;

    if (addr == MU_PICKLE_NOTHING && fqdn == MU_PICKLE_NOTHING) {
        return refuse(d, "a node has no address");
    }
    d->has_fqdn_only |= addr == MU_PICKLE_NOTHING;
    d->has_addr_only |= fqdn == MU_PICKLE_NOTHING;
    err = read_addr(d, addr != MU_PICKLE_NOTHING ? addr : fqdn, buffer);
    if (err == 0) {
        err = need_int(d, attributes, "pid", &node.pid);
    }
    if (err == 0) {
        err = need_int(d, attributes, "local_id", &node.local_id);
    }
    if (err == 0) {
        *ret_node = node;
    }
    return err;
}

/* Finds or adds the member for a node. The object keeps the number of its member. */
static int meet_node(struct decoder *d, uint32_t number, struct mu_rdzv_member **ret_member)
{
    char buffer[MU_RDZV_ADDR_MAX + 1];
    struct mu_pickle_value *object = mu_pickle_at(&d->p, number);
    uint32_t attributes;
    struct mu_rdzv_node node;
    size_t count = d->s.member_count;
    int err;

    if (!mu_pickle_is_object(&d->p, number, MU_PICKLE_CLASS_NODE) ||
        object->as.object.attributes == MU_PICKLE_NOTHING) {
        return refuse(d, "there is something else where a node belongs");
    }
    if (object->count != 0) {
        d->hint = object->count - 1;
        *ret_member = &d->s.members[d->hint];
        return 0;
    }
    attributes = object->as.object.attributes;
    /* Many nodes can refer to one big dict; it must not be searched for each of them. */
    if (mu_pickle_at(&d->p, attributes)->count > 2 * NODE_ATTRIBUTES_MAX) {
        return refuse(d, "a node has too many attributes");
    }
    err = read_node(d, attributes, buffer, &node);
    if (err != 0) {
        return err;
    }
    d->hint = d->hint + 1 < count ? d->hint + 1 : 0;
    if (count != 0 && mu_rdzv_node_equal(&d->s.members[d->hint].node, &node)) {
        *ret_member = &d->s.members[d->hint];
    } else {
        err = mu_rdzv_state_add(&d->s, &node, ret_member);
        if (err == MUSTER_ELIMIT) {
            return mu_err(d->msg, err, "there are more than %d nodes", MU_RDZV_MEMBERS_MAX);
        }
        if (err != 0) {
            return mu_err(d->msg, err, "there is no memory for the nodes");
        }
        d->hint = (size_t)(*ret_member - d->s.members);
    }
    d->s.nodes_repeated |= d->s.member_count == count;
    object->count = (uint32_t)d->hint + 1;
    return 0;
}

/* Reads the ten bytes in which Python packs a time. Protocol 2 has no bytes and writes them as a
 * text whose characters are below 256. */
static int read_packed_time(struct decoder *d, uint32_t number, uint8_t ret[TIME_SIZE])
{
    uint32_t args = mu_pickle_at(&d->p, number)->as.object.args;
    struct mu_span s;
    size_t n = 0;

    if (mu_pickle_is(&d->p, number, MU_PICKLE_BYTES)) {
        s = mu_pickle_bytes(&d->p, number);
        if (s.len != TIME_SIZE) {
            return refuse(d, "a time is not packed in ten bytes");
        }
        memcpy(ret, s.data, TIME_SIZE);
        return 0;
    }
    if (!mu_pickle_is_object(&d->p, number, MU_PICKLE_CLASS_ENCODE) ||
        mu_pickle_at(&d->p, args)->count != 2 ||
        !mu_pickle_is(&d->p, mu_pickle_item(&d->p, args, 0), MU_PICKLE_TEXT) ||
        !mu_pickle_is(&d->p, mu_pickle_item(&d->p, args, 1), MU_PICKLE_TEXT) ||
        !mu_span_eq(mu_pickle_bytes(&d->p, mu_pickle_item(&d->p, args, 1)),
                    MU_SPAN_LIT("latin1"))) {
        return refuse(d, "a time is not packed in bytes");
    }
    s = mu_pickle_bytes(&d->p, mu_pickle_item(&d->p, args, 0));
    while (s.len != 0 && n < TIME_SIZE) {
        size_t len = mu_utf8_len(s);

        if (len == 0 || len > 2 || (len == 2 && s.data[0] > 0xc3)) {
            return refuse(d, "a time is not packed in bytes");
        }
        ret[n++] = (uint8_t)(len == 1 ? s.data[0] : s.data[0] << 6 | (s.data[1] & 0x3f));
        s = mu_span_skip(s, len);
    }
    return s.len == 0 && n == TIME_SIZE ? 0 : refuse(d, "a time is not packed in ten bytes");
}

/* How far a time zone is from UTC: timezone(timedelta(days, seconds, microseconds)[, name]). */
static int read_zone(struct decoder *d, uint32_t number, int64_t *ret_us)
{
    static const int64_t low[] = {-1, 0, 0};
    static const int64_t high[] = {0, SECONDS_PER_DAY - 1, 999999};
    int64_t parts[3];
    uint32_t args;
    uint32_t delta;

    if (!mu_pickle_is_object(&d->p, number, MU_PICKLE_CLASS_TIMEZONE)) {
        return refuse(d, "a time has a time zone of another class");
    }
    args = mu_pickle_at(&d->p, number)->as.object.args;
    delta = mu_pickle_at(&d->p, args)->count != 0 ? mu_pickle_item(&d->p, args, 0) : args;
    if (!mu_pickle_is_object(&d->p, delta, MU_PICKLE_CLASS_TIMEDELTA)) {
        return refuse(d, "a time zone has no offset");
    }
    args = mu_pickle_at(&d->p, delta)->as.object.args;
    for (size_t i = 0; i < 3; i++) {
        uint32_t item =
            i < mu_pickle_at(&d->p, args)->count ? mu_pickle_item(&d->p, args, i) : args;

        parts[i] = mu_pickle_at(&d->p, item)->as.integer;
        if (!mu_pickle_is(&d->p, item, MU_PICKLE_INT) || parts[i] < low[i] || parts[i] > high[i]) {
            return refuse(d, "a time zone's offset is invalid");
        }
    }
    *ret_us = (parts[0] * SECONDS_PER_DAY + parts[1]) * 1000000 + parts[2];
    return 0;
}

static mu_wall_t clamp_wall(int64_t us)
{
    if (us < 0) {
        return (mu_wall_t){0};
    }
    if ((uint64_t)us > UINT64_MAX / 1000) {
        us = (int64_t)(UINT64_MAX / 1000);
    }
    return (mu_wall_t){(uint64_t)us * 1000};
}

static int read_time(struct decoder *d, uint32_t number, mu_wall_t *ret_wall)
{
    uint8_t b[TIME_SIZE];
    struct mu_civil civil;
    int64_t zone_us = 0;
    int64_t us = 0;
    uint32_t args;
    uint32_t count;
    int err;

    if (!mu_pickle_is_object(&d->p, number, MU_PICKLE_CLASS_DATETIME)) {
        return refuse(d, "there is something else where a time belongs");
    }
    args = mu_pickle_at(&d->p, number)->as.object.args;
    count = mu_pickle_at(&d->p, args)->count;
    if (count != 1 && count != 2) {
        return refuse(d, "a time is not made of its bytes and a time zone");
    }
    err = read_packed_time(d, mu_pickle_item(&d->p, args, 0), b);
    if (err == 0 && count == 2) {
        err = read_zone(d, mu_pickle_item(&d->p, args, 1), &zone_us);
    }
    if (err != 0) {
        return err;
    }
    civil = (struct mu_civil){.year = b[0] << 8 | b[1],
                              .month = b[2] & ~FOLD,
                              .day = b[3],
                              .hour = b[4],
                              .minute = b[5],
                              .second = b[6],
                              .microsecond = b[7] << 16 | b[8] << 8 | b[9]};
    if (mu_civil_to_us(&civil, &us) != 0) {
        return refuse(d, "a time is not a valid date");
    }
    d->has_aware |= count == 2;
    d->has_naive |= count == 1;
    *ret_wall = clamp_wall(us - zone_us);
    return 0;
}

static int read_participants(struct decoder *d, uint32_t dict)
{
    struct mu_pickle_walk w = mu_pickle_walk(&d->p, dict);
    uint32_t key;
    int err = 0;

    while (err == 0 && (key = mu_pickle_next(&d->p, &w)) != MU_PICKLE_NOTHING) {
        uint32_t rank = mu_pickle_next(&d->p, &w);
        struct mu_rdzv_member *member = NULL;

        err = meet_node(d, key, &member);
        if (err == 0 && !mu_pickle_is(&d->p, rank, MU_PICKLE_INT)) {
            err = refuse(d, "a participant's rank is not a number");
        }
        if (err == 0) {
            member->participant = true;
            member->rank = mu_pickle_at(&d->p, rank)->as.integer;
        }
    }
    return err;
}

static int read_heartbeats(struct decoder *d, uint32_t dict)
{
    struct mu_pickle_walk w = mu_pickle_walk(&d->p, dict);
    uint32_t key;
    int err = 0;

    while (err == 0 && (key = mu_pickle_next(&d->p, &w)) != MU_PICKLE_NOTHING) {
        uint32_t at = mu_pickle_next(&d->p, &w);
        struct mu_rdzv_member *member = NULL;

        err = meet_node(d, key, &member);
        if (err == 0) {
            err = read_time(d, at, &member->heartbeat);
        }
        if (err == 0) {
            member->has_heartbeat = true;
        }
    }
    return err;
}

/* A set, which protocols below 4 make from a list. */
static int read_list(struct decoder *d, uint32_t number, bool spare)
{
    struct mu_pickle_walk w;
    uint32_t node;
    int err = 0;

    if (mu_pickle_is_object(&d->p, number, MU_PICKLE_CLASS_SET)) {
        uint32_t args = mu_pickle_at(&d->p, number)->as.object.args;

        if (mu_pickle_at(&d->p, args)->count == 0) {
            return 0;
        }
        number = mu_pickle_item(&d->p, args, 0);
        if (mu_pickle_at(&d->p, args)->count != 1 || !mu_pickle_is(&d->p, number, MU_PICKLE_LIST)) {
            return refuse(d, "a set is not made of a list");
        }
    } else if (!mu_pickle_is(&d->p, number, MU_PICKLE_SET)) {
        return refuse(d, "there is something else where a set of nodes belongs");
    }
    w = mu_pickle_walk(&d->p, number);
    while (err == 0 && (node = mu_pickle_next(&d->p, &w)) != MU_PICKLE_NOTHING) {
        struct mu_rdzv_member *member = NULL;

        err = meet_node(d, node, &member);
        if (err == 0) {
            member->spare |= spare;
            member->waiting |= !spare;
        }
    }
    return err;
}

static int read_deadline(struct decoder *d, uint32_t attributes)
{
    uint32_t number = 0;
    int err = need(d, attributes, "deadline", &number);

    if (err == 0 && !mu_pickle_is(&d->p, number, MU_PICKLE_NONE)) {
        err = read_time(d, number, &d->s.deadline);
        d->s.has_deadline = err == 0;
    }
    return err;
}

static int read_members(struct decoder *d, uint32_t attributes)
{
    uint32_t spares = mu_pickle_get(&d->p, attributes, "redundancy_list");
    uint32_t number = 0;
    int err = need_kind(d, attributes, "participants", MU_PICKLE_DICT, &number);

    if (err == 0) {
        err = read_participants(d, number);
    }
    if (err == 0) {
        err = need(d, attributes, "wait_list", &number);
    }
    if (err == 0) {
        err = read_list(d, number, false);
    }
    if (err == 0 && spares != MU_PICKLE_NOTHING) {
        d->has_spares = true;
        err = read_list(d, spares, true);
    }
    if (err == 0) {
        err = need_kind(d, attributes, "last_heartbeats", MU_PICKLE_DICT, &number);
    }
    return err != 0 ? err : read_heartbeats(d, number);
}

static int read_state(struct decoder *d)
{
    uint32_t attributes;
    int err;

    if (!mu_pickle_is_object(&d->p, d->p.root, MU_PICKLE_CLASS_STATE) ||
        mu_pickle_at(&d->p, d->p.root)->as.object.attributes == MU_PICKLE_NOTHING) {
        return refuse(d, "it is not a rendezvous state");
    }
    attributes = mu_pickle_at(&d->p, d->p.root)->as.object.attributes;
    err = need_int(d, attributes, "round", &d->s.round);
    if (err == 0 && (d->s.round < 0 || d->s.round > MU_RDZV_ROUND_MAX)) {
        err = refuse(d, "the round is not a number");
    }
    if (err == 0) {
        err = need_bool(d, attributes, "complete", &d->s.complete);
    }
    if (err == 0) {
        err = need_bool(d, attributes, "closed", &d->s.closed);
    }
    if (err == 0) {
        err = read_deadline(d, attributes);
    }
    return err != 0 ? err : read_members(d, attributes);
}

/* Python's own agents fail on a mixture; this says what is wrong. */
static int tell_dialect(struct decoder *d, enum mu_rdzv_dialect *ret_dialect)
{
    if (d->has_fqdn_only && d->has_addr_only) {
        return refuse(d, "agents of PyTorch 1.13 and 2 are mixed in one run");
    }
    if (d->has_naive && d->has_aware) {
        return refuse(d, "agents that write times with and without a time zone are mixed in one "
                         "run");
    }
    if (d->has_fqdn_only && d->has_aware) {
        return refuse(d, "nodes of PyTorch 1.13 have times of a later one");
    }
    if (d->has_aware) {
        *ret_dialect = MU_RDZV_DIALECT_2;
    } else if (d->has_fqdn_only) {
        *ret_dialect = MU_RDZV_DIALECT_1_13;
    } else if (d->has_addr_only) {
        *ret_dialect =
            d->has_naive || !d->has_spares ? MU_RDZV_DIALECT_2_NAIVE : MU_RDZV_DIALECT_UNKNOWN;
    } else if (d->has_spares) {
        *ret_dialect = d->has_naive ? MU_RDZV_DIALECT_2_NAIVE : MU_RDZV_DIALECT_UNKNOWN;
    } else {
        *ret_dialect = MU_RDZV_DIALECT_1_13;
    }
    return 0;
}

int mu_rdzv_state_decode(struct mu_span in, struct mu_rdzv_state *ret,
                         enum mu_rdzv_dialect *ret_dialect, struct mu_errmsg *reterr_msg)
{
    struct decoder d = {.msg = reterr_msg};
    size_t memory_max = MEMORY_BASE + MEMORY_PER_BYTE * in.len;
    int err;

    if (in.len > MU_RDZV_STATE_BYTES_MAX) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "a state of %zu bytes is longer than %u", in.len,
                      MU_RDZV_STATE_BYTES_MAX);
    }
    mu_pickle_init(&d.p);
    mu_rdzv_state_init(&d.s);
    err = mu_pickle_read(&d.p, in, memory_max < MEMORY_MAX ? memory_max : MEMORY_MAX, reterr_msg);
    if (err == 0) {
        err = read_state(&d);
    }
    if (err == 0) {
        err = tell_dialect(&d, ret_dialect);
    }
    mu_pickle_fini(&d.p);
    if (err != 0) {
        mu_rdzv_state_fini(&d.s);
        return err;
    }
    mu_rdzv_state_fini(ret);
    *ret = d.s;
    return 0;
}

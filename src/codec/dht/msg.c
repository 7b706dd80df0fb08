#include "codec/dht/msg.h"

#include <muster/error.h>

#include "codec/bin/pb.h"

/* Field numbers; 1 is the wrapper everywhere. */
enum {
    FIELD_AUTH = 1,
    NODE_ID = 1,
    PING_PEER = 2,
    PING_VALIDATE = 3,
    PING_TIME = 4,
    PING_AVAILABLE = 5,
    STORE_KEYS = 2,
    STORE_TAGS = 3,
    STORE_VALUES = 4,
    STORE_EXPIRATIONS = 5,
    STORE_IN_CACHE = 6,
    STORE_PEER = 7,
    STORED_OK = 2,
    STORED_PEER = 3,
    FIND_KEYS = 2,
    FIND_PEER = 3,
    FOUND_RESULTS = 2,
    FOUND_PEER = 3,
    RESULT_TYPE = 1,
    RESULT_VALUE = 2,
    RESULT_EXPIRATION = 3,
    RESULT_NODES = 4,
    RESULT_PEERS = 5,
    DOUBLE_LEN = 8,
};

/* --- lists ------------------------------------------------------------------------------------ */

static struct mu_dht_walk walk_of(struct mu_span message, uint32_t number)
{
    return (struct mu_dht_walk){.rest = message, .number = number};
}

/* Takes the next field of the list: a number in a list may be packed or not. */
static int next_field(struct mu_dht_walk *w, struct mu_pb_field *ret)
{
    int got;

    while ((got = mu_pb_next(&w->rest, ret)) == 1) {
        if (ret->number == w->number) {
            return 1;
        }
    }
    return got;
}

static int next_bytes(struct mu_dht_walk *w, struct mu_span *ret)
{
    struct mu_pb_field f;
    int got = next_field(w, &f);

    if (got == 1) {
        if (f.type != MU_PB_BYTES) {
            return MUSTER_EPROTO;
        }
        *ret = f.bytes;
    }
    return got;
}

static int next_bool(struct mu_dht_walk *w, bool *ret)
{
    struct mu_pb_field f;
    uint64_t value;

    while (w->packed.len == 0) {
        int got = next_field(w, &f);

        if (got != 1) {
            return got;
        }
        if (f.type == MU_PB_VARINT) {
            *ret = f.value != 0;
            return 1;
        }
        if (f.type != MU_PB_BYTES) {
            return MUSTER_EPROTO;
        }
        w->packed = f.bytes;
    }
    if (mu_pb_next_varint(&w->packed, &value) != 1) {
        return MUSTER_EPROTO;
    }
    *ret = value != 0;
    return 1;
}

static int next_double(struct mu_dht_walk *w, double *ret)
{
    struct mu_pb_field f = {0};

    while (w->packed.len == 0) {
        int got = next_field(w, &f);

        if (got != 1) {
            return got;
        }
        if (f.type == MU_PB_FIXED64) {
            *ret = mu_pb_double(&f);
            return 1;
        }
        if (f.type != MU_PB_BYTES) {
            return MUSTER_EPROTO;
        }
        w->packed = f.bytes;
    }
    if (w->packed.len < DOUBLE_LEN) {
        return MUSTER_EPROTO;
    }
    f.value = mu_get_u64(w->packed.data);
    *ret = mu_pb_double(&f);
    w->packed = mu_span_skip(w->packed, DOUBLE_LEN);
    return 1;
}

/* Counts them; each must be readable, and ids must have the right length. */
static int count_bytes(struct mu_dht_walk w, bool ids, size_t *ret)
{
    struct mu_span bytes;
    size_t count = 0;
    int got;

    while ((got = next_bytes(&w, &bytes)) == 1) {
        if (ids && bytes.len != MU_DHT_ID_LEN) {
            return MUSTER_EPROTO;
        }
        count++;
    }
    *ret = count;
    return got;
}

static int count_bools(struct mu_dht_walk w, size_t *ret)
{
    size_t count = 0;
    bool value;
    int got;

    while ((got = next_bool(&w, &value)) == 1) {
        count++;
    }
    *ret = count;
    return got;
}

static int count_doubles(struct mu_dht_walk w, size_t *ret)
{
    size_t count = 0;
    double value;
    int got;

    while ((got = next_double(&w, &value)) == 1) {
        count++;
    }
    *ret = count;
    return got;
}

/* --- heads ------------------------------------------------------------------------------------ */

static int read_node(struct mu_span bytes, struct mu_dht_head *head)
{
    struct mu_pb_field f;
    int got;

    while ((got = mu_pb_next(&bytes, &f)) == 1) {
        if (f.number != NODE_ID) {
            continue;
        }
        if (f.type != MU_PB_BYTES) {
            return MUSTER_EPROTO;
        }
        head->has_node = f.bytes.len != 0;
        if (head->has_node && !mu_dht_id_from(&head->node, f.bytes)) {
            return MUSTER_EPROTO;
        }
    }
    return got;
}

/* Takes a field of the head, if it is one. If a field occurs twice, the last counts. */
static int take_head(struct mu_dht_head *head, const struct mu_pb_field *f, uint32_t peer_number)
{
    if (f->number == FIELD_AUTH || f->number == peer_number) {
        if (f->type != MU_PB_BYTES) {
            return MUSTER_EPROTO;
        }
        if (f->number == FIELD_AUTH) {
            head->auth = f->bytes;
        } else {
            return read_node(f->bytes, head);
        }
    }
    return 0;
}

static int read_head(struct mu_span bytes, struct mu_dht_head *head, uint32_t peer_number)
{
    struct mu_pb_field f;
    int got;

    *head = (struct mu_dht_head){0};
    while ((got = mu_pb_next(&bytes, &f)) == 1) {
        int err = take_head(head, &f, peer_number);

        if (err != 0) {
            return err;
        }
    }
    return got;
}

static void put_auth(struct mu_pb_out *out, const struct mu_dht_head *head)
{
    if (head->auth.len != 0) {
        mu_pb_put_bytes(out, FIELD_AUTH, head->auth);
    }
}

static void put_peer(struct mu_pb_out *out, const struct mu_dht_head *head, uint32_t number)
{
    size_t len = head->has_node ? mu_pb_bytes_len(NODE_ID, MU_DHT_ID_LEN) : 0;

    mu_pb_put_head(out, number, len);
    if (head->has_node) {
        mu_pb_put_bytes(out, NODE_ID, mu_dht_id_span(&head->node));
    }
}

/* --- ping ------------------------------------------------------------------------------------- */

int mu_dht_ping_decode(struct mu_span bytes, struct mu_dht_ping *ret)
{
    struct mu_dht_ping ping = {0};
    struct mu_pb_field f;
    int got;

    while ((got = mu_pb_next(&bytes, &f)) == 1) {
        int err = take_head(&ping.head, &f, PING_PEER);

        if (err != 0) {
            return err;
        }
        if (f.number == PING_VALIDATE && f.type == MU_PB_VARINT) {
            ping.validate = f.value != 0;
        }
    }
    if (got == 0) {
        *ret = ping;
    }
    return got;
}

int mu_dht_ping_reply_decode(struct mu_span bytes, struct mu_dht_ping_reply *ret)
{
    struct mu_dht_ping_reply reply = {0};
    struct mu_pb_field f;
    int got;

    while ((got = mu_pb_next(&bytes, &f)) == 1) {
        int err = take_head(&reply.head, &f, PING_PEER);

        if (err != 0) {
            return err;
        }
        if (f.number == PING_TIME && f.type == MU_PB_FIXED64) {
            reply.dht_time = mu_pb_double(&f);
        } else if (f.number == PING_AVAILABLE && f.type == MU_PB_VARINT) {
            reply.available = f.value != 0;
        }
    }
    if (got == 0) {
        *ret = reply;
    }
    return got;
}

int mu_dht_ping_encode(struct mu_buf *out, const struct mu_dht_ping *ping)
{
    struct mu_pb_out pb = mu_pb_out(out);

    put_auth(&pb, &ping->head);
    put_peer(&pb, &ping->head, PING_PEER);
    if (ping->validate) {
        mu_pb_put_varint(&pb, PING_VALIDATE, 1);
    }
    return pb.err;
}

int mu_dht_ping_reply_encode(struct mu_buf *out, const struct mu_dht_ping_reply *reply)
{
    struct mu_pb_out pb = mu_pb_out(out);

    put_auth(&pb, &reply->head);
    put_peer(&pb, &reply->head, PING_PEER);
    if (reply->dht_time != 0) {
        mu_pb_put_double(&pb, PING_TIME, reply->dht_time);
    }
    if (reply->available) {
        mu_pb_put_varint(&pb, PING_AVAILABLE, 1);
    }
    return pb.err;
}

/* --- store ------------------------------------------------------------------------------------ */

int mu_dht_store_decode(struct mu_span bytes, struct mu_dht_store *ret)
{
    struct mu_dht_store store = {
        .keys = walk_of(bytes, STORE_KEYS),
        .tags = walk_of(bytes, STORE_TAGS),
        .values = walk_of(bytes, STORE_VALUES),
        .expirations = walk_of(bytes, STORE_EXPIRATIONS),
        .in_cache = walk_of(bytes, STORE_IN_CACHE),
    };
    size_t tags;
    size_t values;
    size_t expirations;
    size_t in_cache;

    if (read_head(bytes, &store.head, STORE_PEER) != 0 ||
        count_bytes(store.keys, true, &store.count) != 0 ||
        count_bytes(store.tags, false, &tags) != 0 ||
        count_bytes(store.values, false, &values) != 0 ||
        count_doubles(store.expirations, &expirations) != 0 ||
        count_bools(store.in_cache, &in_cache) != 0 || tags != store.count ||
        values != store.count || expirations != store.count || in_cache != store.count) {
        return MUSTER_EPROTO;
    }
    *ret = store;
    return 0;
}

bool mu_dht_store_next(struct mu_dht_store *store, struct mu_dht_item *ret)
{
    struct mu_span key;

    return next_bytes(&store->keys, &key) == 1 && mu_dht_id_from(&ret->key, key) &&
           next_bytes(&store->tags, &ret->tag) == 1 &&
           next_bytes(&store->values, &ret->value) == 1 &&
           next_double(&store->expirations, &ret->expiration) == 1 &&
           next_bool(&store->in_cache, &ret->in_cache) == 1;
}

int mu_dht_store_reply_decode(struct mu_span bytes, struct mu_dht_store_reply *ret)
{
    struct mu_dht_store_reply reply = {.ok = walk_of(bytes, STORED_OK)};

    if (read_head(bytes, &reply.head, STORED_PEER) != 0 ||
        count_bools(reply.ok, &reply.count) != 0) {
        return MUSTER_EPROTO;
    }
    *ret = reply;
    return 0;
}

bool mu_dht_store_reply_next(struct mu_dht_store_reply *reply, bool *ret_ok)
{
    return next_bool(&reply->ok, ret_ok) == 1;
}

static void put_bools(struct mu_pb_out *pb, uint32_t number, const bool *values, size_t stride,
                      size_t count)
{
    if (count == 0) {
        return;
    }
    mu_pb_put_head(pb, number, count);
    for (size_t i = 0; i < count; i++) {
        uint8_t byte = *(const bool *)((const uint8_t *)values + i * stride) ? 1 : 0;

        mu_pb_put_raw(pb, mu_span(&byte, 1));
    }
}

int mu_dht_store_encode(struct mu_buf *out, const struct mu_dht_head *head,
                        const struct mu_dht_item *items, size_t count)
{
    struct mu_pb_out pb = mu_pb_out(out);

    put_auth(&pb, head);
    for (size_t i = 0; i < count; i++) {
        mu_pb_put_bytes(&pb, STORE_KEYS, mu_dht_id_span(&items[i].key));
    }
    for (size_t i = 0; i < count; i++) {
        mu_pb_put_bytes(&pb, STORE_TAGS, items[i].tag);
    }
    for (size_t i = 0; i < count; i++) {
        mu_pb_put_bytes(&pb, STORE_VALUES, items[i].value);
    }
    if (count != 0) {
        mu_pb_put_head(&pb, STORE_EXPIRATIONS, count * DOUBLE_LEN);
    }
    for (size_t i = 0; i < count; i++) {
        uint8_t bytes[DOUBLE_LEN];
        uint64_t bits;

        memcpy(&bits, &items[i].expiration, sizeof(bits));
        mu_put_u64(bytes, bits);
        mu_pb_put_raw(&pb, mu_span(bytes, sizeof(bytes)));
    }
    if (count != 0) {
        put_bools(&pb, STORE_IN_CACHE, &items[0].in_cache, sizeof(items[0]), count);
    }
    put_peer(&pb, head, STORE_PEER);
    return pb.err;
}

int mu_dht_store_reply_encode(struct mu_buf *out, const struct mu_dht_head *head, const bool *ok,
                              size_t count)
{
    struct mu_pb_out pb = mu_pb_out(out);

    put_auth(&pb, head);
    put_bools(&pb, STORED_OK, ok, sizeof(*ok), count);
    put_peer(&pb, head, STORED_PEER);
    return pb.err;
}

/* --- find ------------------------------------------------------------------------------------- */

int mu_dht_find_decode(struct mu_span bytes, struct mu_dht_find *ret)
{
    struct mu_dht_find find = {.keys = walk_of(bytes, FIND_KEYS)};

    if (read_head(bytes, &find.head, FIND_PEER) != 0 ||
        count_bytes(find.keys, true, &find.count) != 0) {
        return MUSTER_EPROTO;
    }
    *ret = find;
    return 0;
}

bool mu_dht_find_next(struct mu_dht_find *find, struct mu_dht_id *ret_key)
{
    struct mu_span key;

    return next_bytes(&find->keys, &key) == 1 && mu_dht_id_from(ret_key, key);
}

int mu_dht_find_encode(struct mu_buf *out, const struct mu_dht_head *head,
                       const struct mu_dht_id *keys, size_t count)
{
    struct mu_pb_out pb = mu_pb_out(out);

    put_auth(&pb, head);
    for (size_t i = 0; i < count; i++) {
        mu_pb_put_bytes(&pb, FIND_KEYS, mu_dht_id_span(&keys[i]));
    }
    put_peer(&pb, head, FIND_PEER);
    return pb.err;
}

static int read_found(struct mu_span bytes, struct mu_dht_found *ret)
{
    struct mu_dht_found found = {
        .near_nodes = walk_of(bytes, RESULT_NODES),
        .near_peers = walk_of(bytes, RESULT_PEERS),
    };
    struct mu_pb_field f;
    size_t peers;
    int got;

    while ((got = mu_pb_next(&bytes, &f)) == 1) {
        if (f.number == RESULT_TYPE && f.type == MU_PB_VARINT) {
            if (f.value > MU_DHT_FOUND_DICTIONARY) {
                return MUSTER_EPROTO;
            }
            found.type = (enum mu_dht_found_type)f.value;
        } else if (f.number == RESULT_VALUE && f.type == MU_PB_BYTES) {
            found.value = f.bytes;
        } else if (f.number == RESULT_EXPIRATION && f.type == MU_PB_FIXED64) {
            found.expiration = mu_pb_double(&f);
        }
    }
    if (got != 0 || count_bytes(found.near_nodes, true, &found.near_count) != 0 ||
        count_bytes(found.near_peers, false, &peers) != 0 || peers != found.near_count) {
        return MUSTER_EPROTO;
    }
    *ret = found;
    return 0;
}

int mu_dht_find_reply_decode(struct mu_span bytes, struct mu_dht_find_reply *ret)
{
    struct mu_dht_find_reply reply = {.results = walk_of(bytes, FOUND_RESULTS)};
    struct mu_dht_walk walk = reply.results;
    struct mu_span result;
    int got;

    if (read_head(bytes, &reply.head, FOUND_PEER) != 0) {
        return MUSTER_EPROTO;
    }
    while ((got = next_bytes(&walk, &result)) == 1) {
        struct mu_dht_found found;

        if (read_found(result, &found) != 0) {
            return MUSTER_EPROTO;
        }
        reply.count++;
    }
    if (got == 0) {
        *ret = reply;
    }
    return got;
}

bool mu_dht_find_reply_next(struct mu_dht_find_reply *reply, struct mu_dht_found *ret)
{
    struct mu_span result;

    return next_bytes(&reply->results, &result) == 1 && read_found(result, ret) == 0;
}

bool mu_dht_found_next(struct mu_dht_found *found, struct mu_dht_neighbour *ret)
{
    struct mu_span node;
    struct mu_span peer;

    while (next_bytes(&found->near_nodes, &node) == 1 &&
           next_bytes(&found->near_peers, &peer) == 1) {
        if (mu_dht_id_from(&ret->node, node) && mu_peer_id_from_bytes(&ret->peer, peer) == 0) {
            return true;
        }
    }
    return false;
}

static size_t finding_len(const struct mu_dht_finding *f)
{
    size_t len = f->type != MU_DHT_NOT_FOUND ? 2 : 0;

    len += f->value.len != 0 ? mu_pb_bytes_len(RESULT_VALUE, f->value.len) : 0;
    len += f->expiration != 0 ? 1 + DOUBLE_LEN : 0;
    for (size_t i = 0; i < f->near_count; i++) {
        len += mu_pb_bytes_len(RESULT_NODES, MU_DHT_ID_LEN) +
               mu_pb_bytes_len(RESULT_PEERS, f->near[i].peer.len);
    }
    return len;
}

int mu_dht_finding_encode(struct mu_buf *out, const struct mu_dht_finding *f)
{
    struct mu_pb_out pb = mu_pb_out(out);

    mu_pb_put_head(&pb, FOUND_RESULTS, finding_len(f));
    if (f->type != MU_DHT_NOT_FOUND) {
        mu_pb_put_varint(&pb, RESULT_TYPE, (uint64_t)f->type);
    }
    if (f->value.len != 0) {
        mu_pb_put_bytes(&pb, RESULT_VALUE, f->value);
    }
    if (f->expiration != 0) {
        mu_pb_put_double(&pb, RESULT_EXPIRATION, f->expiration);
    }
    for (size_t i = 0; i < f->near_count; i++) {
        mu_pb_put_bytes(&pb, RESULT_NODES, mu_dht_id_span(&f->near[i].node));
    }
    for (size_t i = 0; i < f->near_count; i++) {
        mu_pb_put_bytes(&pb, RESULT_PEERS, mu_peer_id_span(&f->near[i].peer));
    }
    return pb.err;
}

int mu_dht_find_reply_end(struct mu_buf *out, const struct mu_dht_head *head)
{
    struct mu_pb_out pb = mu_pb_out(out);

    put_peer(&pb, head, FOUND_PEER);
    return pb.err;
}

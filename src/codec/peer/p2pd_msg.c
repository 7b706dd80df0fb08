/* Requests and responses; p2pd_call.c has the calls. */
#include "codec/peer/p2pd_msg.h"

#include <muster/error.h>

#include "codec/bin/pb.h"
#include "codec/bin/uvarint.h"

#define MESSAGE_MAX (1u << 20) /* of messages that we write */

/* Field numbers. */
enum {
    REQUEST_TYPE = 1,
    RESPONSE_TYPE = 1,
    RESPONSE_ERROR = 2,
    RESPONSE_STREAM = 3,
    RESPONSE_IDENTIFY = 4,
    RESPONSE_DHT = 5,
    RESPONSE_PEERS = 6,
    ERROR_TEXT = 1,
    PEER_ID = 1,
    PEER_ADDRS = 2,
    STREAM_PEER = 1,
    STREAM_ADDR = 2,
    STREAM_NAME = 3,
    DHT_TYPE = 1,
    DHT_PEER = 2,
    DHT_VALUE = 3,
};

/* Where the parameters of a request are, and which of them are required (a bit for each field). */
static const struct shape {
    uint8_t field;    /* of the request; 0: no parameters */
    uint8_t required; /* bits by field number */
    uint8_t peer;     /* field numbers; 0: no such field */
    uint8_t addr;
    uint8_t addrs;
    uint8_t names;
    uint8_t timeout;
    uint8_t balanced;
    uint8_t what;
    uint8_t key;
} shapes[MU_P2PD_TYPE_MAX + 1] = {
    [MU_P2PD_CONNECT] = {.field = 2, .required = 1 << 1, .peer = 1, .addrs = 2, .timeout = 3},
    [MU_P2PD_STREAM_OPEN] = {.field = 3, .required = 1 << 1, .peer = 1, .names = 2, .timeout = 3},
    /* hivemind's clients say whether they share a handler; libp2p's own do not. */
    [MU_P2PD_STREAM_HANDLER] =
        {.field = 4, .required = 1 << 1, .addr = 1, .names = 2, .balanced = 3},
    [MU_P2PD_DHT] = {.field = 5, .required = 1 << 1, .what = 1, .peer = 2, .key = 4, .timeout = 7},
    [MU_P2PD_CONNMANAGER] = {.field = 6, .required = 1 << 1, .what = 1, .peer = 2},
    [MU_P2PD_DISCONNECT] = {.field = 7, .required = 1 << 1, .peer = 1},
    [MU_P2PD_PUBSUB] = {.field = 8, .required = 1 << 1, .what = 1},
    [MU_P2PD_REMOVE_STREAM_HANDLER] = {.field = 9, .required = 1 << 1, .addr = 1, .names = 2},
};

/* --- requests --------------------------------------------------------------------------------- */

static void take_bytes(struct mu_p2pd_request *r, const struct shape *shape,
                       const struct mu_pb_field *f)
{
    if (f->number == shape->peer) {
        r->peer = f->bytes;
        r->has_peer = true;
    } else if (f->number == shape->addr) {
        r->addr = f->bytes;
    } else if (f->number == shape->key) {
        r->key = f->bytes;
        r->has_key = true;
    }
}

static void take_number(struct mu_p2pd_request *r, const struct shape *shape,
                        const struct mu_pb_field *f)
{
    if (f->number == shape->timeout) {
        r->timeout_s = (int64_t)f->value;
    } else if (f->number == shape->balanced) {
        r->balanced = f->value != 0;
    } else if (f->number == shape->what) {
        r->what = f->value;
    }
}

static int decode_params(struct mu_p2pd_request *r, const struct shape *shape)
{
    struct mu_span in = r->all;
    struct mu_pb_field f;
    unsigned seen = 0;
    int got;

    while ((got = mu_pb_next(&in, &f)) == 1) {
        bool number =
            f.number == shape->timeout || f.number == shape->balanced || f.number == shape->what;

        if (f.number > 7 || f.type != (number ? MU_PB_VARINT : MU_PB_BYTES)) {
            continue;
        }
        seen |= 1u << f.number;
        if (number) {
            take_number(r, shape, &f);
        } else {
            take_bytes(r, shape, &f);
        }
    }
    return got != 0 || (seen & shape->required) != shape->required ? MUSTER_EPROTO : 0;
}

int mu_p2pd_request_decode(struct mu_span in, struct mu_p2pd_request *ret)
{
    struct mu_p2pd_request r = {0};
    struct mu_span walk = in;
    struct mu_pb_field f;
    bool typed = false;
    int got;

    while ((got = mu_pb_next(&walk, &f)) == 1) {
        if (f.number == REQUEST_TYPE && f.type == MU_PB_VARINT) {
            if (f.value > MU_P2PD_TYPE_MAX) {
                return MUSTER_EPROTO;
            }
            r.type = (enum mu_p2pd_type)f.value;
            typed = true;
        }
    }
    if (got != 0 || !typed) {
        return MUSTER_EPROTO;
    }
    while (shapes[r.type].field != 0 && mu_pb_next(&in, &f) == 1) {
        if (f.number == shapes[r.type].field && f.type == MU_PB_BYTES) {
            r.all = f.bytes;
            r.given = true;
        }
    }
    if (r.given && decode_params(&r, &shapes[r.type]) != 0) {
        return MUSTER_EPROTO;
    }
    *ret = r;
    return 0;
}

static bool next_bytes(struct mu_span *walk, uint32_t number, struct mu_span *ret)
{
    struct mu_pb_field f;

    while (number != 0 && mu_pb_next(walk, &f) == 1) {
        if (f.number == number && f.type == MU_PB_BYTES) {
            *ret = f.bytes;
            return true;
        }
    }
    return false;
}

bool mu_p2pd_next_addr(const struct mu_p2pd_request *r, struct mu_span *walk, struct mu_span *ret)
{
    return next_bytes(walk, shapes[r->type].addrs, ret);
}

bool mu_p2pd_next_name(const struct mu_p2pd_request *r, struct mu_span *walk, struct mu_span *ret)
{
    return next_bytes(walk, shapes[r->type].names, ret);
}

/* Writes the length of `body`, then `body`. */
static int frame(struct mu_buf *out, struct mu_buf *body, int err)
{
    if (err == 0) {
        err = mu_buf_reserve(out, MU_UVARINT_LEN_MAX + body->len);
    }
    if (err == 0) {
        (void)mu_uvarint_append(out, body->len);
        mu_buf_put(out, mu_buf_span(body));
    }
    mu_buf_fini(body);
    return err;
}

static void put_params(struct mu_pb_out *pb, const struct mu_p2pd_request *r,
                       const struct shape *shape, struct mu_span name)
{
    if (shape->what != 0) {
        mu_pb_put_varint(pb, shape->what, r->what);
    }
    if (shape->peer != 0 && (shape->what == 0 || r->has_peer)) {
        mu_pb_put_bytes(pb, shape->peer, r->peer);
    }
    if (shape->addr != 0) {
        mu_pb_put_bytes(pb, shape->addr, r->addr);
    }
    if (shape->addrs != 0 && r->addr.len != 0) {
        mu_pb_put_bytes(pb, shape->addrs, r->addr);
    }
    if (shape->names != 0 && name.len != 0) {
        mu_pb_put_bytes(pb, shape->names, name);
    }
    if (shape->balanced != 0) {
        mu_pb_put_varint(pb, shape->balanced, r->balanced ? 1 : 0);
    }
    if (shape->key != 0 && r->has_key) {
        mu_pb_put_bytes(pb, shape->key, r->key);
    }
    if (shape->timeout != 0 && r->timeout_s != 0) {
        mu_pb_put_varint(pb, shape->timeout, (uint64_t)r->timeout_s);
    }
}

int mu_p2pd_request_encode(struct mu_buf *out, const struct mu_p2pd_request *r, struct mu_span name)
{
    const struct shape *shape = &shapes[r->type];
    struct mu_buf params;
    struct mu_buf body;
    struct mu_pb_out inner = mu_pb_out(&params);
    struct mu_pb_out outer = mu_pb_out(&body);

    mu_buf_init(&params, MESSAGE_MAX);
    mu_buf_init(&body, MESSAGE_MAX);
    mu_pb_put_varint(&outer, REQUEST_TYPE, r->type);
    if (shape->field != 0) {
        put_params(&inner, r, shape, name);
        mu_pb_put_bytes(&outer, shape->field, mu_buf_span(&params));
    }
    mu_buf_fini(&params);
    return frame(out, &body, inner.err != 0 ? inner.err : outer.err);
}

/* --- responses -------------------------------------------------------------------------------- */

/* Writes a response with one of its fields and the field's content; NULL: no content. */
static int put_response(struct mu_buf *out, bool ok, uint32_t number, struct mu_buf *inner, int err)
{
    struct mu_buf body;
    struct mu_pb_out pb = mu_pb_out(&body);

    mu_buf_init(&body, MESSAGE_MAX);
    mu_pb_put_varint(&pb, RESPONSE_TYPE, ok ? 0 : 1);
    if (inner != NULL) {
        mu_pb_put_bytes(&pb, number, mu_buf_span(inner));
        mu_buf_fini(inner);
    }
    return frame(out, &body, err != 0 ? err : pb.err);
}

int mu_p2pd_put_ok(struct mu_buf *out)
{
    return put_response(out, true, 0, NULL, 0);
}

int mu_p2pd_put_error(struct mu_buf *out, const char *text)
{
    struct mu_buf inner;
    struct mu_pb_out pb = mu_pb_out(&inner);

    mu_buf_init(&inner, MESSAGE_MAX);
    mu_pb_put_bytes(&pb, ERROR_TEXT, mu_span_str(text));
    return put_response(out, false, RESPONSE_ERROR, &inner, pb.err);
}

static void put_peer(struct mu_pb_out *pb, const struct mu_p2pd_peer *peer)
{
    mu_pb_put_bytes(pb, PEER_ID, peer->id);
    for (size_t i = 0; i < peer->addr_count; i++) {
        mu_pb_put_bytes(pb, PEER_ADDRS, peer->addrs[i]);
    }
}

int mu_p2pd_put_identify(struct mu_buf *out, const struct mu_p2pd_peer *self)
{
    struct mu_buf inner;
    struct mu_pb_out pb = mu_pb_out(&inner);

    mu_buf_init(&inner, MESSAGE_MAX);
    put_peer(&pb, self);
    return put_response(out, true, RESPONSE_IDENTIFY, &inner, pb.err);
}

int mu_p2pd_put_peers(struct mu_buf *out, const struct mu_p2pd_peer *peers, size_t count)
{
    struct mu_buf body;
    struct mu_buf inner;
    struct mu_pb_out pb = mu_pb_out(&body);

    mu_buf_init(&body, MESSAGE_MAX);
    mu_buf_init(&inner, MESSAGE_MAX);
    mu_pb_put_varint(&pb, RESPONSE_TYPE, 0);
    for (size_t i = 0; i < count && pb.err == 0; i++) {
        struct mu_pb_out one = mu_pb_out(&inner);

        mu_buf_reset(&inner);
        put_peer(&one, &peers[i]);
        mu_pb_put_bytes(&pb, RESPONSE_PEERS, mu_buf_span(&inner));
        pb.err = pb.err != 0 ? pb.err : one.err;
    }
    mu_buf_fini(&inner);
    return frame(out, &body, pb.err);
}

static int put_info(struct mu_buf *inner, const struct mu_p2pd_stream_info *info)
{
    struct mu_pb_out pb = mu_pb_out(inner);

    mu_buf_init(inner, MESSAGE_MAX);
    mu_pb_put_bytes(&pb, STREAM_PEER, info->peer);
    mu_pb_put_bytes(&pb, STREAM_ADDR, info->addr);
    mu_pb_put_bytes(&pb, STREAM_NAME, info->name);
    return pb.err;
}

int mu_p2pd_put_stream(struct mu_buf *out, const struct mu_p2pd_stream_info *info)
{
    struct mu_buf inner;
    int err = put_info(&inner, info);

    return put_response(out, true, RESPONSE_STREAM, &inner, err);
}

int mu_p2pd_put_stream_info(struct mu_buf *out, const struct mu_p2pd_stream_info *info)
{
    struct mu_buf inner;
    int err = put_info(&inner, info);

    return frame(out, &inner, err);
}

int mu_p2pd_put_dht(struct mu_buf *out, bool bare, enum mu_p2pd_dht_answer answer,
                    const struct mu_p2pd_peer *peer, struct mu_span value)
{
    struct mu_buf inner;
    struct mu_buf info;
    struct mu_pb_out pb = mu_pb_out(&inner);
    struct mu_pb_out one = mu_pb_out(&info);

    mu_buf_init(&inner, MESSAGE_MAX);
    mu_buf_init(&info, MESSAGE_MAX);
    mu_pb_put_varint(&pb, DHT_TYPE, answer);
    if (peer != NULL) {
        put_peer(&one, peer);
        mu_pb_put_bytes(&pb, DHT_PEER, mu_buf_span(&info));
    }
    if (value.len != 0) {
        mu_pb_put_bytes(&pb, DHT_VALUE, value);
    }
    mu_buf_fini(&info);
    pb.err = pb.err != 0 ? pb.err : one.err;
    return bare ? frame(out, &inner, pb.err)
                : put_response(out, true, RESPONSE_DHT, &inner, pb.err);
}

int mu_p2pd_stream_info_decode(struct mu_span in, struct mu_p2pd_stream_info *ret)
{
    struct mu_p2pd_stream_info info = {0};
    struct mu_pb_field f;
    unsigned seen = 0;
    int got;

    while ((got = mu_pb_next(&in, &f)) == 1) {
        if (f.type != MU_PB_BYTES || f.number > STREAM_NAME) {
            continue;
        }
        seen |= 1u << f.number;
        if (f.number == STREAM_PEER) {
            info.peer = f.bytes;
        } else if (f.number == STREAM_ADDR) {
            info.addr = f.bytes;
        } else {
            info.name = f.bytes;
        }
    }
    if (got != 0 || seen != (1u << STREAM_PEER | 1u << STREAM_ADDR | 1u << STREAM_NAME)) {
        return MUSTER_EPROTO;
    }
    *ret = info;
    return 0;
}

static int take_response_field(struct mu_p2pd_response *r, const struct mu_pb_field *f)
{
    struct mu_p2pd_stream_info info;
    struct mu_span walk = f->bytes;
    int err = 0;

    switch (f->number) {
    case RESPONSE_ERROR:
        (void)next_bytes(&walk, ERROR_TEXT, &r->error);
        break;
    case RESPONSE_STREAM:
        err = mu_p2pd_stream_info_decode(walk, &info);
        if (err == 0) {
            r->peer = info.peer;
            r->name = info.name;
        }
        break;
    case RESPONSE_IDENTIFY:
        (void)next_bytes(&walk, PEER_ID, &r->peer);
        break;
    case RESPONSE_PEERS:
        r->peers++;
        break;
    default:
        break;
    }
    return err;
}

int mu_p2pd_response_decode(struct mu_span in, struct mu_p2pd_response *ret)
{
    struct mu_p2pd_response r = {0};
    struct mu_pb_field f;
    bool typed = false;
    int got;

    while ((got = mu_pb_next(&in, &f)) == 1) {
        if (f.number == RESPONSE_TYPE && f.type == MU_PB_VARINT) {
            typed = true;
            r.ok = f.value == 0;
        } else if (f.type == MU_PB_BYTES && take_response_field(&r, &f) != 0) {
            return MUSTER_EPROTO;
        }
    }
    if (got != 0 || !typed) {
        return MUSTER_EPROTO;
    }
    *ret = r;
    return 0;
}

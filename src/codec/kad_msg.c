#include "codec/kad_msg.h"

#include <muster/error.h>

#include "codec/pb.h"
#include "codec/uvarint.h"

enum {
    FIELD_TYPE = 1,
    FIELD_KEY = 2,
    FIELD_CLOSER = 8,
    PEER_ID = 1,
    PEER_ADDRS = 2,
    PEER_CONNECTION = 3,
};

static int decode_body(struct mu_span in, struct mu_kad_message *ret)
{
    struct mu_kad_message m = {.peers = in};
    struct mu_pb_field f;
    int got;

    while ((got = mu_pb_next(&in, &f)) == 1) {
        if (f.number == FIELD_TYPE && f.type == MU_PB_VARINT) {
            m.type = f.value;
        } else if (f.number == FIELD_KEY && f.type == MU_PB_BYTES) {
            m.key = f.bytes;
        }
    }
    if (got != 0) {
        return MUSTER_EPROTO;
    }
    *ret = m;
    return 1;
}

int mu_kad_decode(struct mu_span in, struct mu_kad_message *ret, size_t *ret_used)
{
    uint64_t len;
    size_t head;
    int err = mu_uvarint_get(in, &head, &len);

    if (err != 0) {
        return err == MUSTER_EAGAIN ? 0 : err;
    }
    if (len > MU_KAD_MESSAGE_MAX) {
        return MUSTER_ELIMIT;
    }
    if (in.len - head < len) {
        return 0;
    }
    *ret_used = head + (size_t)len;
    return decode_body(mu_span(in.data + head, (size_t)len), ret);
}

bool mu_kad_next_peer(struct mu_span *walk, struct mu_kad_peer *ret)
{
    struct mu_pb_field f;

    while (mu_pb_next(walk, &f) == 1) {
        struct mu_span rest = f.bytes;
        struct mu_pb_field inner;

        if (f.number != FIELD_CLOSER || f.type != MU_PB_BYTES) {
            continue;
        }
        *ret = (struct mu_kad_peer){.addrs = f.bytes};
        while (mu_pb_next(&rest, &inner) == 1) {
            if (inner.number == PEER_ID && inner.type == MU_PB_BYTES) {
                ret->id = inner.bytes;
            }
        }
        if (ret->id.len != 0) {
            return true;
        }
    }
    return false;
}

bool mu_kad_next_addr(struct mu_span *walk, struct mu_span *ret)
{
    struct mu_pb_field f;

    while (mu_pb_next(walk, &f) == 1) {
        if (f.number == PEER_ADDRS && f.type == MU_PB_BYTES) {
            *ret = f.bytes;
            return true;
        }
    }
    return false;
}

int mu_kad_request_encode(struct mu_buf *out, enum mu_kad_type type, struct mu_span key)
{
    struct mu_pb_out pb = mu_pb_out(out);
    size_t len = 2 + (key.len != 0 ? mu_pb_bytes_len(FIELD_KEY, key.len) : 0);
    int err = mu_uvarint_append(out, len);

    if (err != 0) {
        return err;
    }
    mu_pb_put_varint(&pb, FIELD_TYPE, (uint64_t)type);
    if (key.len != 0) {
        mu_pb_put_bytes(&pb, FIELD_KEY, key);
    }
    return pb.err;
}

int mu_kad_peer_encode(struct mu_buf *body, struct mu_span id, const struct mu_span *addrs,
                       size_t count, bool connected)
{
    struct mu_pb_out pb = mu_pb_out(body);
    size_t len = mu_pb_bytes_len(PEER_ID, id.len) + (connected ? 2 : 0);

    for (size_t i = 0; i < count; i++) {
        len += mu_pb_bytes_len(PEER_ADDRS, addrs[i].len);
    }
    mu_pb_put_head(&pb, FIELD_CLOSER, len);
    mu_pb_put_bytes(&pb, PEER_ID, id);
    for (size_t i = 0; i < count; i++) {
        mu_pb_put_bytes(&pb, PEER_ADDRS, addrs[i]);
    }
    if (connected) {
        mu_pb_put_varint(&pb, PEER_CONNECTION, 1);
    }
    return pb.err;
}

int mu_kad_reply_encode(struct mu_buf *out, enum mu_kad_type type, struct mu_span body)
{
    struct mu_pb_out pb = mu_pb_out(out);
    int err = mu_uvarint_append(out, 2 + body.len);

    if (err != 0) {
        return err;
    }
    mu_pb_put_varint(&pb, FIELD_TYPE, (uint64_t)type);
    mu_pb_put_raw(&pb, body);
    return pb.err;
}

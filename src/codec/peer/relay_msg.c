#include "codec/peer/relay_msg.h"

#include <muster/error.h>

#include "codec/peer/multiaddr.h"
#include "codec/bin/pb.h"

enum {
    MSG_TYPE = 1,
    MSG_PEER = 2,
    HOP_RESERVATION = 3,
    HOP_LIMIT = 4,
    HOP_STATUS = 5,
    STOP_LIMIT = 3,
    STOP_STATUS = 4,
    PEER_ID = 1,
    RESERVATION_EXPIRE = 1,
    RESERVATION_ADDR = 2,
    RESERVATION_VOUCHER = 3,
    LIMIT_DURATION = 1,
    LIMIT_DATA = 2,
    VOUCHER_RELAY = 1,
    VOUCHER_PEER = 2,
    VOUCHER_EXPIRE = 3,
};

const char *mu_relay_status_text(uint32_t status)
{
    switch (status) {
    case MU_RELAY_OK:
        return "the relay agrees";
    case MU_RELAY_RESERVATION_REFUSED:
        return "the relay refuses the reservation";
    case MU_RELAY_RESOURCE_LIMIT_EXCEEDED:
        return "the relay has no resources left";
    case MU_RELAY_PERMISSION_DENIED:
        return "the relay does not allow it";
    case MU_RELAY_CONNECTION_FAILED:
        return "the relay cannot reach that peer";
    case MU_RELAY_NO_RESERVATION:
        return "that peer has no reservation at the relay";
    case MU_RELAY_MALFORMED_MESSAGE:
        return "the relay could not read the request";
    case MU_RELAY_UNEXPECTED_MESSAGE:
        return "the relay did not expect the request";
    default:
        return "the relay answered with an unknown status";
    }
}

/* --- reading ---------------------------------------------------------------------------------- */

static int read_peer(struct mu_span in, struct mu_peer_id *ret)
{
    struct mu_span id = {0};
    struct mu_pb_field f;
    int err;

    while ((err = mu_pb_next(&in, &f)) == 1) {
        if (f.number == PEER_ID && f.type == MU_PB_BYTES) {
            id = f.bytes;
        }
    }
    return err != 0 || mu_peer_id_from_bytes(ret, id) != 0 ? MUSTER_EPROTO : 0;
}

static int read_reservation(struct mu_span in, struct mu_relay_msg *ret)
{
    struct mu_pb_field f;
    int err;

    ret->reserved = true;
    ret->addrs = in;
    while ((err = mu_pb_next(&in, &f)) == 1) {
        if (f.number == RESERVATION_EXPIRE && f.type == MU_PB_VARINT) {
            ret->expire_s = f.value;
        } else if (f.number == RESERVATION_VOUCHER && f.type == MU_PB_BYTES) {
            ret->voucher = f.bytes;
        }
    }
    return err;
}

static int read_limit(struct mu_span in, struct mu_relay_msg *ret)
{
    struct mu_pb_field f;
    int err;

    ret->limited = true;
    while ((err = mu_pb_next(&in, &f)) == 1) {
        if (f.number == LIMIT_DURATION && f.type == MU_PB_VARINT) {
            ret->limit.duration_s = f.value > UINT32_MAX ? UINT32_MAX : (uint32_t)f.value;
        } else if (f.number == LIMIT_DATA && f.type == MU_PB_VARINT) {
            ret->limit.data_bytes = f.value;
        }
    }
    return err;
}

/* Reads the type: each side has numbers of its own. 0: there is no such type. */
static enum mu_relay_type read_type(enum mu_relay_side side, uint64_t value)
{
    uint64_t type = value + (side == MU_RELAY_HOP ? MU_RELAY_RESERVE : MU_RELAY_CONNECT);

    return value > MU_RELAY_STATUS || type > MU_RELAY_STATUS ? 0 : (enum mu_relay_type)type;
}

static int read_field(bool hop, const struct mu_pb_field *f, struct mu_relay_msg *msg)
{
    if (f->type == MU_PB_VARINT) {
        if (f->number == MSG_TYPE) {
            msg->type = read_type(hop ? MU_RELAY_HOP : MU_RELAY_STOP, f->value);
            return msg->type == 0 ? MUSTER_EPROTO : 0;
        }
        if (f->number == (hop ? HOP_STATUS : STOP_STATUS)) {
            msg->status = f->value > UINT32_MAX ? UINT32_MAX : (uint32_t)f->value;
        }
        return 0;
    }
    if (f->type != MU_PB_BYTES) {
        return 0;
    }
    if (f->number == MSG_PEER) {
        return read_peer(f->bytes, &msg->peer);
    }
    if (f->number == (hop ? HOP_LIMIT : STOP_LIMIT)) {
        return read_limit(f->bytes, msg);
    }
    return hop && f->number == HOP_RESERVATION ? read_reservation(f->bytes, msg) : 0;
}

int mu_relay_msg_decode(enum mu_relay_side side, struct mu_span bytes, struct mu_relay_msg *ret)
{
    struct mu_relay_msg msg = {0};
    struct mu_pb_field f;
    int err;

    while ((err = mu_pb_next(&bytes, &f)) == 1) {
        err = read_field(side == MU_RELAY_HOP, &f, &msg);
        if (err != 0) {
            return err;
        }
    }
    if (err != 0 || msg.type == 0 || (msg.type == MU_RELAY_CONNECT && msg.peer.len == 0)) {
        return MUSTER_EPROTO;
    }
    *ret = msg;
    return 0;
}

bool mu_relay_next_addr(struct mu_span *walk, struct mu_span *ret_addr)
{
    struct mu_pb_field f;

    while (mu_pb_next(walk, &f) == 1) {
        if (f.number == RESERVATION_ADDR && f.type == MU_PB_BYTES &&
            mu_multiaddr_check(f.bytes) == 0) {
            *ret_addr = f.bytes;
            return true;
        }
    }
    return false;
}

/* --- writing ---------------------------------------------------------------------------------- */

static size_t varint_field_len(uint64_t value)
{
    return 1 + mu_uvarint_len(value); /* all our fields have numbers below 16 */
}

static size_t reservation_len(const struct mu_relay_out *say)
{
    size_t len = varint_field_len(say->expire_s);

    for (size_t i = 0; i < say->addr_count; i++) {
        len += mu_pb_bytes_len(RESERVATION_ADDR, say->addrs[i].len);
    }
    return say->voucher.len == 0 ? len
                                 : len + mu_pb_bytes_len(RESERVATION_VOUCHER, say->voucher.len);
}

static void put_reservation(struct mu_pb_out *pb, const struct mu_relay_out *say)
{
    mu_pb_put_head(pb, HOP_RESERVATION, reservation_len(say));
    mu_pb_put_varint(pb, RESERVATION_EXPIRE, say->expire_s);
    for (size_t i = 0; i < say->addr_count; i++) {
        mu_pb_put_bytes(pb, RESERVATION_ADDR, say->addrs[i]);
    }
    if (say->voucher.len != 0) {
        mu_pb_put_bytes(pb, RESERVATION_VOUCHER, say->voucher);
    }
}

static void put_limit(struct mu_pb_out *pb, uint32_t number, const struct mu_relay_limit *limit)
{
    size_t len = 0;

    len += limit->duration_s == 0 ? 0 : varint_field_len(limit->duration_s);
    len += limit->data_bytes == 0 ? 0 : varint_field_len(limit->data_bytes);
    if (len == 0) {
        return;
    }
    mu_pb_put_head(pb, number, len);
    if (limit->duration_s != 0) {
        mu_pb_put_varint(pb, LIMIT_DURATION, limit->duration_s);
    }
    if (limit->data_bytes != 0) {
        mu_pb_put_varint(pb, LIMIT_DATA, limit->data_bytes);
    }
}

static int encode_body(bool hop, const struct mu_relay_out *say, struct mu_buf *body)
{
    struct mu_pb_out pb = mu_pb_out(body);

    mu_pb_put_varint(&pb, MSG_TYPE,
                     (uint64_t)say->type - (hop ? MU_RELAY_RESERVE : MU_RELAY_CONNECT));
    if (say->peer != NULL) {
        mu_pb_put_head(&pb, MSG_PEER, mu_pb_bytes_len(PEER_ID, say->peer->len));
        mu_pb_put_bytes(&pb, PEER_ID, mu_peer_id_span(say->peer));
    }
    if (hop && say->expire_s != 0) {
        put_reservation(&pb, say);
    }
    put_limit(&pb, hop ? HOP_LIMIT : STOP_LIMIT, &say->limit);
    if (say->status != MU_RELAY_UNSAID) {
        mu_pb_put_varint(&pb, hop ? HOP_STATUS : STOP_STATUS, (uint64_t)say->status);
    }
    return pb.err;
}

int mu_relay_msg_encode(enum mu_relay_side side, const struct mu_relay_out *say, struct mu_buf *out)
{
    struct mu_buf body;
    int err;

    mu_buf_init(&body, MU_RELAY_MSG_MAX);
    err = encode_body(side == MU_RELAY_HOP, say, &body);
    if (err == 0) {
        err = mu_buf_reserve(out, mu_uvarint_len(body.len) + body.len);
    }
    if (err == 0) {
        (void)mu_uvarint_append(out, body.len);
        mu_buf_put(out, mu_buf_span(&body));
    }
    mu_buf_fini(&body);
    return err;
}

/* --- on a stream ------------------------------------------------------------------------------ */

void mu_relay_in_init(struct mu_relay_in *in)
{
    *in = (struct mu_relay_in){0};
    mu_buf_init(&in->bytes, MU_RELAY_MSG_MAX);
}

void mu_relay_in_fini(struct mu_relay_in *in)
{
    mu_buf_fini(&in->bytes);
}

/* Takes the length, a byte at a time. Also 0 while it is not whole. */
static int take_head(struct mu_relay_in *in, struct mu_span bytes, size_t *ret_used)
{
    size_t used = 0;

    while (!in->known && used < bytes.len) {
        uint64_t value;
        size_t len;
        int err;

        in->head[in->head_len++] = bytes.data[used++];
        err = mu_uvarint_get(mu_span(in->head, in->head_len), &len, &value);
        if (err == 0) {
            if (value == 0 || value > MU_RELAY_MSG_MAX) {
                in->poison = value == 0 ? MUSTER_EPROTO : MUSTER_ELIMIT;
                return in->poison;
            }
            in->known = true;
            in->left = (size_t)value;
        } else if (err != MUSTER_EAGAIN || in->head_len == sizeof(in->head)) {
            in->poison = err == MUSTER_EAGAIN ? MUSTER_ELIMIT : err;
            return in->poison;
        }
    }
    *ret_used = used;
    return 0;
}

int mu_relay_in_recv(struct mu_relay_in *in, struct mu_span bytes, size_t *ret_used,
                     struct mu_span *ret_msg)
{
    size_t used = 0;
    size_t n;
    int err = in->poison;

    if (err != 0) {
        return err;
    }
    if (in->known && in->left == 0) {
        mu_buf_reset(&in->bytes); /* the previous message has been read */
        in->known = false;
        in->head_len = 0;
    }
    /* Memory comes before the length, so that nothing is taken if there is no memory. */
    err = mu_buf_reserve(&in->bytes, in->known                      ? in->left
                                     : bytes.len < MU_RELAY_MSG_MAX ? bytes.len
                                                                    : MU_RELAY_MSG_MAX);
    if (err == 0) {
        err = take_head(in, bytes, &used);
    }
    if (err != 0) {
        return err;
    }
    n = bytes.len - used;
    n = n < in->left ? n : in->left;
    if (in->known && n != 0) {
        mu_buf_put(&in->bytes, mu_span(bytes.data + used, n));
        in->left -= n;
        used += n;
    }
    *ret_used = used;
    if (!in->known || in->left != 0) {
        return 0;
    }
    *ret_msg = mu_buf_span(&in->bytes);
    return 1;
}

/* --- vouchers --------------------------------------------------------------------------------- */

int mu_relay_voucher_encode(const struct mu_relay_voucher *voucher, struct mu_buf *out)
{
    struct mu_pb_out pb = mu_pb_out(out);

    mu_pb_put_bytes(&pb, VOUCHER_RELAY, mu_peer_id_span(&voucher->relay));
    mu_pb_put_bytes(&pb, VOUCHER_PEER, mu_peer_id_span(&voucher->peer));
    mu_pb_put_varint(&pb, VOUCHER_EXPIRE, voucher->expire_s);
    return pb.err;
}

int mu_relay_voucher_decode(struct mu_span bytes, struct mu_relay_voucher *ret)
{
    struct mu_relay_voucher voucher = {0};
    struct mu_span relay = {0};
    struct mu_span peer = {0};
    struct mu_pb_field f;
    int err;

    while ((err = mu_pb_next(&bytes, &f)) == 1) {
        if (f.number == VOUCHER_RELAY && f.type == MU_PB_BYTES) {
            relay = f.bytes;
        } else if (f.number == VOUCHER_PEER && f.type == MU_PB_BYTES) {
            peer = f.bytes;
        } else if (f.number == VOUCHER_EXPIRE && f.type == MU_PB_VARINT) {
            voucher.expire_s = f.value;
        }
    }
    if (err != 0 || mu_peer_id_from_bytes(&voucher.relay, relay) != 0 ||
        mu_peer_id_from_bytes(&voucher.peer, peer) != 0) {
        return MUSTER_EPROTO;
    }
    *ret = voucher;
    return 0;
}

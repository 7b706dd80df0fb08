#include "codec/peer/autonat_msg.h"

#include <muster/error.h>

#include "codec/bin/pb.h"
#include "codec/bin/uvarint.h"
#include "codec/peer/multiaddr.h"

enum {
    MSG_TYPE = 1,
    MSG_DIAL = 2,
    MSG_RESPONSE = 3,
    DIAL_PEER = 1,
    PEER_ID = 1,
    PEER_ADDR = 2,
    RESPONSE_STATUS = 1,
    RESPONSE_TEXT = 2,
    RESPONSE_ADDR = 3,
    TYPE_DIAL = 0,
    TYPE_RESPONSE = 1,
};

/* --- reading ---------------------------------------------------------------------------------- */

static int read_peer(struct mu_span in, struct mu_autonat_msg *ret)
{
    struct mu_pb_field f;
    int err;

    ret->addrs = in;
    while ((err = mu_pb_next(&in, &f)) == 1) {
        if (f.number == PEER_ID && f.type == MU_PB_BYTES) {
            ret->peer = f.bytes;
        }
    }
    return err;
}

static int read_dial(struct mu_span in, struct mu_autonat_msg *ret)
{
    struct mu_pb_field f;
    int err;

    while ((err = mu_pb_next(&in, &f)) == 1) {
        if (f.number == DIAL_PEER && f.type == MU_PB_BYTES) {
            err = read_peer(f.bytes, ret);
            if (err != 0) {
                return err;
            }
        }
    }
    return err;
}

static int read_response(struct mu_span in, struct mu_autonat_msg *ret)
{
    struct mu_pb_field f;
    int err;

    while ((err = mu_pb_next(&in, &f)) == 1) {
        if (f.number == RESPONSE_STATUS && f.type == MU_PB_VARINT) {
            ret->status = f.value > UINT32_MAX ? UINT32_MAX : (uint32_t)f.value;
        } else if (f.number == RESPONSE_TEXT && f.type == MU_PB_BYTES) {
            ret->text = f.bytes;
        } else if (f.number == RESPONSE_ADDR && f.type == MU_PB_BYTES) {
            ret->addr = f.bytes;
        }
    }
    return err;
}

int mu_autonat_msg_decode(struct mu_span bytes, struct mu_autonat_msg *ret)
{
    struct mu_autonat_msg msg = {0};
    uint64_t type = TYPE_DIAL;
    bool dial = false;
    bool response = false;
    struct mu_pb_field f;
    int err;

    while ((err = mu_pb_next(&bytes, &f)) == 1) {
        if (f.number == MSG_TYPE && f.type == MU_PB_VARINT) {
            type = f.value;
        } else if (f.number == MSG_DIAL && f.type == MU_PB_BYTES) {
            dial = true;
            err = read_dial(f.bytes, &msg);
        } else if (f.number == MSG_RESPONSE && f.type == MU_PB_BYTES) {
            response = true;
            err = read_response(f.bytes, &msg);
        }
        if (err < 0) {
            return err;
        }
    }
    msg.response = type == TYPE_RESPONSE;
    if (err != 0 || type > TYPE_RESPONSE || (msg.response ? !response : !dial)) {
        return MUSTER_EPROTO;
    }
    *ret = msg;
    return 0;
}

bool mu_autonat_next_addr(struct mu_span *walk, struct mu_span *ret_addr)
{
    struct mu_pb_field f;

    while (mu_pb_next(walk, &f) == 1) {
        if (f.number == PEER_ADDR && f.type == MU_PB_BYTES && mu_multiaddr_check(f.bytes) == 0) {
            *ret_addr = f.bytes;
            return true;
        }
    }
    return false;
}

/* --- writing ---------------------------------------------------------------------------------- */

/* The type's field: all our fields have numbers below 16, and both types fit one byte. */
#define TYPE_LEN 2

static int begin(struct mu_buf *out, size_t len)
{
    int err = len > MU_AUTONAT_MSG_MAX ? MUSTER_ELIMIT : mu_buf_reserve(out, len + 2);

    return err != 0 ? err : mu_uvarint_append(out, len);
}

int mu_autonat_ask(const struct mu_peer_id *self, const struct mu_span *addrs, size_t count,
                   struct mu_buf *out)
{
    struct mu_pb_out pb = mu_pb_out(out);
    size_t info = mu_pb_bytes_len(PEER_ID, self->len);
    size_t dial;
    int err;

    for (size_t i = 0; i < count; i++) {
        info += mu_pb_bytes_len(PEER_ADDR, addrs[i].len);
    }
    dial = mu_pb_bytes_len(DIAL_PEER, info);
    err = begin(out, TYPE_LEN + mu_pb_bytes_len(MSG_DIAL, dial));
    if (err != 0) {
        return err;
    }
    mu_pb_put_varint(&pb, MSG_TYPE, TYPE_DIAL);
    mu_pb_put_head(&pb, MSG_DIAL, dial);
    mu_pb_put_head(&pb, DIAL_PEER, info);
    mu_pb_put_bytes(&pb, PEER_ID, mu_peer_id_span(self));
    for (size_t i = 0; i < count; i++) {
        mu_pb_put_bytes(&pb, PEER_ADDR, addrs[i]);
    }
    return pb.err;
}

int mu_autonat_answer(enum mu_autonat_status status, struct mu_span text, struct mu_span addr,
                      struct mu_buf *out)
{
    struct mu_pb_out pb = mu_pb_out(out);
    size_t len = 1 + mu_uvarint_len(status) + mu_pb_bytes_len(RESPONSE_TEXT, text.len) +
                 mu_pb_bytes_len(RESPONSE_ADDR, addr.len);
    int err = begin(out, TYPE_LEN + mu_pb_bytes_len(MSG_RESPONSE, len));

    if (err != 0) {
        return err;
    }
    mu_pb_put_varint(&pb, MSG_TYPE, TYPE_RESPONSE);
    mu_pb_put_head(&pb, MSG_RESPONSE, len);
    mu_pb_put_varint(&pb, RESPONSE_STATUS, status);
    mu_pb_put_bytes(&pb, RESPONSE_TEXT, text);
    mu_pb_put_bytes(&pb, RESPONSE_ADDR, addr);
    return pb.err;
}

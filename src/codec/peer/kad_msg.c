#include "codec/peer/kad_msg.h"

#include <muster/error.h>

#include "codec/peer/multiaddr.h"
#include "codec/bin/pb.h"
#include "codec/bin/uvarint.h"

enum { FIELD_TYPE = 1, FIELD_KEY = 2, FIELD_CLOSER = 8 };
enum { PEER_ID = 1, PEER_ADDR = 2, PEER_CONNECTION = 3 };

int mu_kad_msg_decode(struct mu_span bytes, struct mu_kad_msg *ret_msg)
{
    struct mu_kad_msg msg = {.type = MU_KAD_PUT_VALUE, .closer = bytes};
    struct mu_pb_field field;
    int more;

    while ((more = mu_pb_next(&bytes, &field)) == 1) {
        if (field.number == FIELD_TYPE && field.type == MU_PB_VARINT) {
            if (field.value > MU_KAD_PING) {
                return MUSTER_EPROTO;
            }
            msg.type = (enum mu_kad_type)field.value;
        } else if (field.number == FIELD_KEY && field.type == MU_PB_BYTES) {
            msg.key = field.bytes;
        }
    }
    if (more < 0) {
        return more;
    }
    *ret_msg = msg;
    return 0;
}

/* Takes the next bytes field of that number off. */
static bool next_bytes(struct mu_span *walk, uint32_t number, struct mu_span *ret)
{
    struct mu_pb_field field;

    while (mu_pb_next(walk, &field) == 1) {
        if (field.number == number && field.type == MU_PB_BYTES) {
            *ret = field.bytes;
            return true;
        }
    }
    return false;
}

bool mu_kad_next_peer(struct mu_span *walk, struct mu_kad_peer *ret_peer)
{
    struct mu_span bytes;

    while (next_bytes(walk, FIELD_CLOSER, &bytes)) {
        struct mu_span rest = bytes;
        struct mu_span id;

        if (next_bytes(&rest, PEER_ID, &id) && mu_peer_id_from_bytes(&ret_peer->id, id) == 0) {
            ret_peer->addrs = bytes;
            return true;
        }
    }
    return false;
}

bool mu_kad_next_addr(struct mu_span *walk, struct mu_span *ret_addr)
{
    while (next_bytes(walk, PEER_ADDR, ret_addr)) {
        if (mu_multiaddr_check(*ret_addr) == 0) {
            return true;
        }
    }
    return false;
}

/* Writes the length, the type and the key; `more` bytes follow. */
static int put_head(struct mu_buf *out, enum mu_kad_type type, struct mu_span key, size_t more)
{
    size_t len = 2 + (key.len == 0 ? 0 : mu_pb_bytes_len(FIELD_KEY, key.len)) + more;
    struct mu_pb_out pb;
    int err = mu_buf_reserve(out, len + MU_UVARINT_LEN_MAX);

    if (err != 0) {
        return err;
    }
    (void)mu_uvarint_append(out, len);
    pb = mu_pb_out(out);
    mu_pb_put_varint(&pb, FIELD_TYPE, (uint64_t)type);
    if (key.len != 0) {
        mu_pb_put_bytes(&pb, FIELD_KEY, key);
    }
    return pb.err;
}

int mu_kad_msg_encode(struct mu_buf *out, enum mu_kad_type type, struct mu_span key)
{
    return put_head(out, type, key, 0);
}

void mu_kad_answer_init(struct mu_kad_answer *a)
{
    mu_buf_init(&a->peers, MU_KAD_MSG_MAX / 2);
    mu_buf_init(&a->peer, MU_KAD_MSG_MAX / 2);
    a->err = 0;
}

void mu_kad_answer_fini(struct mu_kad_answer *a)
{
    mu_buf_fini(&a->peers);
    mu_buf_fini(&a->peer);
}

static void keep_error(struct mu_kad_answer *a, int err)
{
    if (a->err == 0) {
        a->err = err;
    }
}

void mu_kad_answer_peer(struct mu_kad_answer *a, const struct mu_peer_id *id)
{
    struct mu_pb_out pb;

    mu_buf_reset(&a->peer);
    pb = mu_pb_out(&a->peer);
    mu_pb_put_bytes(&pb, PEER_ID, mu_peer_id_span(id));
    keep_error(a, pb.err);
}

void mu_kad_answer_addr(struct mu_kad_answer *a, struct mu_span addr)
{
    struct mu_pb_out pb = mu_pb_out(&a->peer);

    mu_pb_put_bytes(&pb, PEER_ADDR, addr);
    keep_error(a, pb.err);
}

void mu_kad_answer_peer_done(struct mu_kad_answer *a, enum mu_kad_connection connection)
{
    struct mu_span walk = mu_buf_span(&a->peer);
    struct mu_span addr;
    struct mu_pb_out pb = mu_pb_out(&a->peer);

    if (!mu_kad_next_addr(&walk, &addr)) {
        return;
    }
    mu_pb_put_varint(&pb, PEER_CONNECTION, (uint64_t)connection);
    keep_error(a, pb.err);
    pb = mu_pb_out(&a->peers);
    mu_pb_put_bytes(&pb, FIELD_CLOSER, mu_buf_span(&a->peer));
    keep_error(a, pb.err);
}

int mu_kad_answer_seal(struct mu_kad_answer *a, enum mu_kad_type type, struct mu_buf *out)
{
    size_t before = out->len;
    int err = a->err;

    if (err == 0) {
        err = put_head(out, type, mu_span(NULL, 0), a->peers.len);
    }
    if (err == 0) {
        err = mu_buf_append(out, mu_buf_span(&a->peers));
    }
    if (err != 0) {
        out->len = before;
    }
    return err;
}

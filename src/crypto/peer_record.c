#include "crypto/peer_record.h"

#include <muster/error.h>

#include "codec/multiaddr.h"
#include "codec/pb.h"
#include "codec/uvarint.h"

enum {
    ENVELOPE_KEY = 1,
    ENVELOPE_TYPE = 2,
    ENVELOPE_PAYLOAD = 3,
    ENVELOPE_SIGNATURE = 5,
    RECORD_PEER = 1,
    RECORD_SEQ = 2,
    RECORD_ADDR = 3,
    ADDR_MULTIADDR = 1,
};

static const struct mu_span domain = {(const uint8_t *)"libp2p-peer-record", 18};
static const struct mu_span payload_type = {(const uint8_t *)"\x03\x01", 2};

/* What is signed: domain, type and payload, each behind its length. */
static int make_signed(struct mu_span payload, struct mu_buf *out)
{
    const struct mu_span parts[] = {domain, payload_type, payload};
    int err = 0;

    for (size_t i = 0; i < 3 && err == 0; i++) {
        err = mu_uvarint_append(out, parts[i].len);
        if (err == 0) {
            err = mu_buf_append(out, parts[i]);
        }
    }
    return err;
}

static int verify(struct mu_span key, struct mu_span payload, struct mu_span signature)
{
    struct mu_buf text;
    int err;

    mu_buf_init(&text, 2 * MU_PEER_RECORD_MAX);
    err = make_signed(payload, &text);
    if (err == 0) {
        err = mu_public_key_verify(key, mu_buf_span(&text), signature);
    }
    mu_buf_fini(&text);
    return err == MUSTER_ECORRUPT ? MUSTER_ESIGNATURE : err == MUSTER_EINVAL ? MUSTER_EPROTO : err;
}

static int read_record(struct mu_span payload, struct mu_peer_record *ret)
{
    struct mu_span peer = {0};
    struct mu_pb_field f;
    int err;

    *ret = (struct mu_peer_record){.addrs = payload};
    while ((err = mu_pb_next(&payload, &f)) == 1) {
        if (f.number == RECORD_PEER && f.type == MU_PB_BYTES) {
            peer = f.bytes;
        } else if (f.number == RECORD_SEQ && f.type == MU_PB_VARINT) {
            ret->seq = f.value;
        }
    }
    return err != 0 || mu_peer_id_from_bytes(&ret->peer, peer) != 0 ? MUSTER_EPROTO : 0;
}

int mu_peer_record_open(struct mu_span envelope, struct mu_peer_record *ret)
{
    struct mu_span key = {0};
    struct mu_span type = {0};
    struct mu_span payload = {0};
    struct mu_span signature = {0};
    struct mu_peer_record record;
    struct mu_peer_id signer;
    struct mu_pb_field f;
    int err;

    if (envelope.len > MU_PEER_RECORD_MAX) {
        return MUSTER_EPROTO;
    }
    while ((err = mu_pb_next(&envelope, &f)) == 1) {
        struct mu_span *to = f.type != MU_PB_BYTES            ? NULL
                             : f.number == ENVELOPE_KEY       ? &key
                             : f.number == ENVELOPE_TYPE      ? &type
                             : f.number == ENVELOPE_PAYLOAD   ? &payload
                             : f.number == ENVELOPE_SIGNATURE ? &signature
                                                              : NULL;

        if (to != NULL) {
            *to = f.bytes;
        }
    }
    if (err != 0 || !mu_span_eq(type, payload_type) || read_record(payload, &record) != 0) {
        return MUSTER_EPROTO;
    }
    err = verify(key, payload, signature);
    if (err != 0) {
        return err;
    }
    if (mu_public_key_peer(key, &signer) != 0 || !mu_peer_id_eq(&signer, &record.peer)) {
        return MUSTER_EPEERID;
    }
    *ret = record;
    return 0;
}

bool mu_peer_record_next_addr(struct mu_span *walk, struct mu_span *ret_addr)
{
    struct mu_pb_field f;

    while (mu_pb_next(walk, &f) == 1) {
        struct mu_span inside = f.bytes;
        struct mu_pb_field addr;

        if (f.number == RECORD_ADDR && f.type == MU_PB_BYTES && mu_pb_next(&inside, &addr) == 1 &&
            addr.number == ADDR_MULTIADDR && addr.type == MU_PB_BYTES &&
            mu_multiaddr_check(addr.bytes) == 0) {
            *ret_addr = addr.bytes;
            return true;
        }
    }
    return false;
}

int mu_peer_record_seal(const struct mu_identity *identity, uint64_t seq,
                        const struct mu_span *addrs, size_t count, struct mu_buf *out)
{
    struct mu_buf payload;
    struct mu_buf text;
    struct mu_buf signature;
    struct mu_pb_out pb = mu_pb_out(&payload);
    int err;

    mu_buf_init(&payload, MU_PEER_RECORD_MAX);
    mu_buf_init(&text, 2 * MU_PEER_RECORD_MAX);
    mu_buf_init(&signature, MU_IDENTITY_SIG_LEN_MAX);
    mu_pb_put_bytes(&pb, RECORD_PEER, mu_peer_id_span(&identity->id));
    mu_pb_put_varint(&pb, RECORD_SEQ, seq);
    for (size_t i = 0; i < count; i++) {
        mu_pb_put_head(&pb, RECORD_ADDR, mu_pb_bytes_len(ADDR_MULTIADDR, addrs[i].len));
        mu_pb_put_bytes(&pb, ADDR_MULTIADDR, addrs[i]);
    }
    err = pb.err;
    if (err == 0) {
        err = make_signed(mu_buf_span(&payload), &text);
    }
    if (err == 0) {
        err = mu_identity_sign(identity, mu_buf_span(&text), &signature);
    }
    if (err == 0) {
        pb = mu_pb_out(out);
        mu_pb_put_bytes(&pb, ENVELOPE_KEY, mu_buf_span(&identity->public_key));
        mu_pb_put_bytes(&pb, ENVELOPE_TYPE, payload_type);
        mu_pb_put_bytes(&pb, ENVELOPE_PAYLOAD, mu_buf_span(&payload));
        mu_pb_put_bytes(&pb, ENVELOPE_SIGNATURE, mu_buf_span(&signature));
        err = pb.err;
    }
    mu_buf_fini(&payload);
    mu_buf_fini(&text);
    mu_buf_fini(&signature);
    return err;
}

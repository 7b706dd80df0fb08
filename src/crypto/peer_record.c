#include "crypto/peer_record.h"

#include <muster/error.h>

#include "codec/peer/multiaddr.h"
#include "codec/bin/pb.h"
#include "crypto/envelope.h"

enum {
    RECORD_PEER = 1,
    RECORD_SEQ = 2,
    RECORD_ADDR = 3,
    ADDR_MULTIADDR = 1,
};

static const struct mu_span domain = {(const uint8_t *)"libp2p-peer-record", 18};
static const struct mu_span payload_type = {(const uint8_t *)"\x03\x01", 2};

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
    struct mu_peer_record record;
    struct mu_peer_id signer;
    struct mu_span payload;
    int err = mu_envelope_open(envelope, domain, payload_type, &payload, &signer);

    if (err == 0) {
        err = read_record(payload, &record);
    }
    if (err == 0 && !mu_peer_id_eq(&signer, &record.peer)) {
        err = MUSTER_EPEERID;
    }
    if (err == 0) {
        *ret = record;
    }
    return err;
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
    struct mu_pb_out pb = mu_pb_out(&payload);
    int err;

    mu_buf_init(&payload, MU_PEER_RECORD_MAX);
    mu_pb_put_bytes(&pb, RECORD_PEER, mu_peer_id_span(&identity->id));
    mu_pb_put_varint(&pb, RECORD_SEQ, seq);
    for (size_t i = 0; i < count; i++) {
        mu_pb_put_head(&pb, RECORD_ADDR, mu_pb_bytes_len(ADDR_MULTIADDR, addrs[i].len));
        mu_pb_put_bytes(&pb, ADDR_MULTIADDR, addrs[i]);
    }
    err = pb.err;
    if (err == 0) {
        err = mu_envelope_seal(identity, domain, payload_type, mu_buf_span(&payload), out);
    }
    mu_buf_fini(&payload);
    return err;
}

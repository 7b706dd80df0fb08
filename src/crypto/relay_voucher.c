#include "crypto/relay_voucher.h"

#include <muster/error.h>

#include "crypto/envelope.h"

static const struct mu_span domain = {(const uint8_t *)"libp2p-relay-rsvp", 17};
static const struct mu_span payload_type = {(const uint8_t *)"\x03\x02", 2};

int mu_relay_voucher_open(struct mu_span envelope, struct mu_relay_voucher *ret)
{
    struct mu_relay_voucher voucher;
    struct mu_peer_id signer;
    struct mu_span payload;
    int err = mu_envelope_open(envelope, domain, payload_type, &payload, &signer);

    if (err == MUSTER_ENOENT) {
        err = MUSTER_EPROTO;
    }
    if (err == 0) {
        err = mu_relay_voucher_decode(payload, &voucher);
    }
    if (err == 0 && !mu_peer_id_eq(&signer, &voucher.relay)) {
        err = MUSTER_EPEERID;
    }
    if (err == 0) {
        *ret = voucher;
    }
    return err;
}

int mu_relay_voucher_seal(const struct mu_identity *relay, const struct mu_peer_id *peer,
                          uint64_t expire_s, struct mu_buf *out)
{
    const struct mu_relay_voucher voucher = {relay->id, *peer, expire_s};
    struct mu_buf payload;
    int err;

    mu_buf_init(&payload, MU_RELAY_VOUCHER_MAX);
    err = mu_relay_voucher_encode(&voucher, &payload);
    if (err == 0) {
        err = mu_envelope_seal(relay, domain, payload_type, mu_buf_span(&payload), out);
    }
    mu_buf_fini(&payload);
    return err;
}

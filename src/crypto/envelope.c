#include "crypto/envelope.h"

#include <muster/error.h>

#include "codec/bin/pb.h"
#include "codec/bin/uvarint.h"

enum {
    ENVELOPE_KEY = 1,
    ENVELOPE_TYPE = 2,
    ENVELOPE_PAYLOAD = 3,
    ENVELOPE_SIGNATURE = 5,
};

/* Makes the bytes that are signed: domain, type and payload, each after its length. */
static int make_signed(struct mu_span domain, struct mu_span type, struct mu_span payload,
                       struct mu_buf *out)
{
    const struct mu_span parts[] = {domain, type, payload};
    int err = 0;

    for (size_t i = 0; i < 3 && err == 0; i++) {
        err = mu_uvarint_append(out, parts[i].len);
        if (err == 0) {
            err = mu_buf_append(out, parts[i]);
        }
    }
    return err;
}

int mu_envelope_open(struct mu_span envelope, struct mu_span domain, struct mu_span type,
                     struct mu_span *ret_payload, struct mu_peer_id *ret_signer)
{
    struct mu_span found[ENVELOPE_SIGNATURE + 1] = {{0}};
    struct mu_pb_field f;
    struct mu_buf text;
    int err;

    if (envelope.len > MU_ENVELOPE_MAX) {
        return MUSTER_EPROTO;
    }
    while ((err = mu_pb_next(&envelope, &f)) == 1) {
        if (f.type == MU_PB_BYTES && f.number <= ENVELOPE_SIGNATURE) {
            found[f.number] = f.bytes;
        }
    }
    if (err != 0) {
        return MUSTER_EPROTO;
    }
    if (!mu_span_eq(found[ENVELOPE_TYPE], type)) {
        return found[ENVELOPE_TYPE].len == 0 ? MUSTER_EPROTO : MUSTER_ENOENT;
    }
    mu_buf_init(&text, 2 * MU_ENVELOPE_MAX);
    err = make_signed(domain, type, found[ENVELOPE_PAYLOAD], &text);
    if (err == 0) {
        err = mu_public_key_verify(found[ENVELOPE_KEY], mu_buf_span(&text),
                                   found[ENVELOPE_SIGNATURE]);
    }
    mu_buf_fini(&text);
    if (err != 0) {
        return err == MUSTER_ECORRUPT ? MUSTER_ESIGNATURE
               : err == MUSTER_EINVAL ? MUSTER_EPROTO
                                      : err;
    }
    if (mu_public_key_peer(found[ENVELOPE_KEY], ret_signer) != 0) {
        return MUSTER_EPROTO;
    }
    *ret_payload = found[ENVELOPE_PAYLOAD];
    return 0;
}

int mu_envelope_seal(const struct mu_identity *identity, struct mu_span domain, struct mu_span type,
                     struct mu_span payload, struct mu_buf *out)
{
    struct mu_buf text;
    struct mu_buf signature;
    int err;

    mu_buf_init(&text, 2 * MU_ENVELOPE_MAX);
    mu_buf_init(&signature, MU_IDENTITY_SIG_LEN_MAX);
    err = make_signed(domain, type, payload, &text);
    if (err == 0) {
        err = mu_identity_sign(identity, mu_buf_span(&text), &signature);
    }
    if (err == 0) {
        struct mu_pb_out pb = mu_pb_out(out);

        mu_pb_put_bytes(&pb, ENVELOPE_KEY, mu_buf_span(&identity->public_key));
        mu_pb_put_bytes(&pb, ENVELOPE_TYPE, type);
        mu_pb_put_bytes(&pb, ENVELOPE_PAYLOAD, payload);
        mu_pb_put_bytes(&pb, ENVELOPE_SIGNATURE, mu_buf_span(&signature));
        err = pb.err;
    }
    mu_buf_fini(&text);
    mu_buf_fini(&signature);
    return err;
}

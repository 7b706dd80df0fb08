/*
 * Manifests and offers of states: what is read is written again the same, and an offer does not
 * care how it is cut.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "crypto/state_tree.h"

static void check_manifest(struct mu_span in)
{
    struct mu_state_manifest m;
    struct mu_errmsg msg;
    struct mu_buf out;

    if (mu_state_manifest_decode(in, &m, &msg) != 0) {
        return;
    }
    mu_buf_init(&out, MU_STATE_MANIFEST_MAX);
    if (mu_state_manifest_encode(&m, &out, &msg) != 0 || !mu_span_eq(mu_buf_span(&out), in)) {
        abort();
    }
    for (uint32_t i = 0; i < mu_state_chunk_count(&m); i += 1 + i / 2) {
        uint32_t len = mu_state_chunk_len(&m, i);

        if (len == 0 || mu_state_chunk_offset(&m, i) + len > m.layout.bytes) {
            abort();
        }
    }
    mu_buf_fini(&out);
    mu_state_manifest_fini(&m);
}

static int take_offer(struct mu_state_offer *o, struct mu_span in, size_t step)
{
    struct mu_errmsg msg;
    int err = MUSTER_EAGAIN;

    mu_state_offer_init(o);
    while (in.len != 0 && err == MUSTER_EAGAIN) {
        size_t n = in.len < step ? in.len : step;

        err = mu_state_offer_recv(o, mu_span(in.data, n), &msg);
        in = mu_span_skip(in, n);
    }
    return err == 0 && in.len != 0 ? mu_state_offer_recv(o, in, &msg) : err;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct mu_span in = mu_span(data, size);
    struct mu_state_offer whole;
    struct mu_state_offer cut;
    struct mu_peer_id signer;
    struct mu_errmsg msg;
    uint8_t id[MU_STATE_ID_LEN];
    int err;

    check_manifest(in);
    err = take_offer(&whole, in, size == 0 ? 1 : size);
    if (take_offer(&cut, in, size < 256 ? 1 : 7) != err) {
        abort();
    }
    if (err == 0) {
        if (!mu_span_eq(mu_buf_span(&whole.bytes), mu_buf_span(&cut.bytes)) ||
            whole.leaves.len != (size_t)mu_state_chunk_count(&whole.manifest) * MU_STATE_HASH_LEN) {
            abort();
        }
        check_manifest(whole.manifest_bytes);
        (void)mu_state_offer_verify(&whole, NULL, id, &signer, &msg);
    }
    mu_state_offer_fini(&whole);
    mu_state_offer_fini(&cut);
    return 0;
}

/*
 * Noise: the first byte says which side we are and how much is read at once; what follows comes
 * from the wire. In pieces or whole, the same is said and understood, and nothing is understood
 * before the other side has proved who it is.
 */
#include <stdint.h>
#include <stdlib.h>

#include "core/assert.h"
#include "proto/peer/noise.h"

static struct mu_identity identity;

static int run(uint8_t how, struct mu_span in, size_t step, struct mu_buf *ret_said)
{
    bool dialler = how % 2 == 0;
    struct mu_noise_config config = {
        .role = dialler ? MU_NOISE_DIALLER : MU_NOISE_LISTENER,
        .identity = &identity,
        .muxer = "/yamux/1.0.0",
        .output_bytes_max = 1 << 18,
    };
    struct mu_noise n;
    int err = 0;

    memset(config.secret_static, dialler ? 4 : 3, sizeof(config.secret_static));
    memset(config.secret_ephemeral, dialler ? 6 : 5, sizeof(config.secret_ephemeral));
    MU_ASSERT(mu_noise_init(&n, &config) == 0);
    for (size_t at = 0; at < in.len && err == 0;) {
        size_t piece = in.len - at < step ? in.len - at : step;
        size_t used;

        err = mu_noise_recv(&n, mu_span(in.data + at, piece), &used);
        MU_ASSERT(err != 0 || used != 0);
        at += used;
        MU_ASSERT(mu_noise_done(&n) || mu_noise_plain(&n).len == 0);
        MU_ASSERT(mu_buf_append(ret_said, mu_noise_plain(&n)) == 0);
        mu_noise_consume(&n, mu_noise_plain(&n).len);
    }
    MU_ASSERT(mu_buf_append(ret_said, mu_noise_output(&n)) == 0);
    mu_noise_fini(&n);
    return err;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static uint8_t seed[MU_IDENTITY_SEED_LEN];
    struct mu_buf whole;
    struct mu_buf pieces;
    struct mu_span in;

    if (size < 1) {
        return 0;
    }
    /* The identity of the transcript. */
    memset(seed, data[0] % 2 == 0 ? 2 : 1, sizeof(seed));
    MU_ASSERT(mu_identity_from_seed(&identity, seed) == 0);
    mu_buf_init(&whole, 1 << 22);
    mu_buf_init(&pieces, 1 << 22);
    in = mu_span(data + 1, size - 1);
    MU_ASSERT(run(data[0], in, size, &whole) ==
              run(data[0], in, (size_t)(data[0] >> 1) * 3 + 1, &pieces));
    MU_ASSERT(mu_span_eq(mu_buf_span(&whole), mu_buf_span(&pieces)));
    mu_buf_fini(&whole);
    mu_buf_fini(&pieces);
    mu_identity_fini(&identity);
    return 0;
}

#include "proto/peer/noise.h"

#include <muster/error.h>

#include "codec/bin/pb.h"
#include "core/assert.h"

/* Names as in the Noise specification: h is `hash`, ck is `chain`, k is `key`, n is `counter`. */

enum {
    PAYLOAD_KEY = 1,
    PAYLOAD_SIGNATURE = 2,
    PAYLOAD_EXTENSIONS = 4,
    EXTENSION_MUXERS = 2,
    SEALED_STATIC_LEN = MU_X25519_LEN + MU_AEAD_TAG_LEN,
    OUTPUT_BYTES_LEAST = 2 * (MU_NOISE_FRAME_MAX + 1),
    LENGTH_LEN = 2,
};

static const char protocol_name[MU_SHA256_LEN + 1] = "Noise_XX_25519_ChaChaPoly_SHA256";
static const char signed_prefix[] = "noise-libp2p-static-key:";

static int fail(struct mu_noise *n, int code, const char *text)
{
    n->poison = code;
    return mu_err(&n->why, code, "%s", text);
}

/* --- the symmetric state ---------------------------------------------------------------------- */

static void mix_hash(struct mu_noise *n, struct mu_span data)
{
    mu_sha256_pair(n->hash, mu_span(n->hash, sizeof(n->hash)), data);
}

static void derive(const uint8_t chain[MU_SHA256_LEN], struct mu_span input,
                   uint8_t ret_first[MU_SHA256_LEN], uint8_t ret_second[MU_SHA256_LEN])
{
    static const uint8_t one = 1;
    static const uint8_t two = 2;
    uint8_t temp[MU_SHA256_LEN];
    struct mu_span key;

    mu_hmac_sha256(temp, mu_span(chain, MU_SHA256_LEN), input, (struct mu_span){0});
    key = mu_span(temp, sizeof(temp));
    mu_hmac_sha256(ret_first, key, mu_span(&one, 1), (struct mu_span){0});
    mu_hmac_sha256(ret_second, key, mu_span(ret_first, MU_SHA256_LEN), mu_span(&two, 1));
    explicit_bzero(temp, sizeof(temp));
}

static int mix_key(struct mu_noise *n, const uint8_t secret[MU_X25519_LEN],
                   const uint8_t peer[MU_X25519_LEN])
{
    uint8_t shared[MU_X25519_LEN];
    uint8_t chain[MU_SHA256_LEN];
    int err = mu_x25519(shared, secret, peer);

    if (err == 0) {
        memcpy(chain, n->chain, sizeof(chain));
        derive(chain, mu_span(shared, sizeof(shared)), n->chain, n->key);
        n->has_key = true;
        n->counter = 0;
    }
    explicit_bzero(shared, sizeof(shared));
    explicit_bzero(chain, sizeof(chain));
    return err == MUSTER_ECORRUPT ? fail(n, MUSTER_EPROTO, "the peer's key is weak") : err;
}

/* Seals after what `out` has, and mixes the result in. */
static int encrypt_and_hash(struct mu_noise *n, struct mu_buf *out, struct mu_span plain)
{
    struct mu_aead aead = {0};
    uint8_t *to;
    int err = mu_buf_reserve(out, plain.len + MU_AEAD_TAG_LEN);

    if (err == 0) {
        err = mu_aead_init(&aead, MU_AEAD_SEAL, n->key);
    }
    if (err == 0) {
        to = mu_buf_grow(out, plain.len + MU_AEAD_TAG_LEN);
        err = mu_aead_seal(&aead, n->counter, mu_span(n->hash, sizeof(n->hash)), plain, to);
        mix_hash(n, mu_span(to, plain.len + MU_AEAD_TAG_LEN));
        n->counter++;
    }
    mu_aead_fini(&aead);
    return err;
}

/* Opens into `to`, which has room for it. */
static int decrypt_and_hash(struct mu_noise *n, struct mu_span sealed, uint8_t *to)
{
    struct mu_aead aead;
    int err = mu_aead_init(&aead, MU_AEAD_OPEN, n->key);

    if (err != 0) {
        return err;
    }
    err = mu_aead_open(&aead, n->counter, mu_span(n->hash, sizeof(n->hash)), sealed, to);
    mu_aead_fini(&aead);
    if (err == MUSTER_ECORRUPT) {
        return fail(n, MUSTER_ECORRUPT, "the handshake was changed on its way");
    }
    if (err == 0) {
        mix_hash(n, sealed);
        n->counter++;
    }
    return err;
}

/* --- identities ------------------------------------------------------------------------------- */

static int make_payload(struct mu_noise *n, const uint8_t public_static[MU_X25519_LEN],
                        struct mu_buf *out)
{
    uint8_t text[sizeof(signed_prefix) - 1 + MU_X25519_LEN];
    struct mu_pb_out pb = mu_pb_out(out);
    struct mu_buf signature;
    int err;

    memcpy(text, signed_prefix, sizeof(signed_prefix) - 1);
    memcpy(text + sizeof(signed_prefix) - 1, public_static, MU_X25519_LEN);
    mu_buf_init(&signature, MU_IDENTITY_SIG_LEN_MAX);
    err = mu_identity_sign(n->config.identity, mu_span(text, sizeof(text)), &signature);
    if (err == 0) {
        mu_pb_put_bytes(&pb, PAYLOAD_KEY, mu_buf_span(&n->config.identity->public_key));
        mu_pb_put_bytes(&pb, PAYLOAD_SIGNATURE, mu_buf_span(&signature));
        if (n->config.muxer != NULL) {
            struct mu_span muxer = mu_span_str(n->config.muxer);

            mu_pb_put_head(&pb, PAYLOAD_EXTENSIONS, mu_pb_bytes_len(EXTENSION_MUXERS, muxer.len));
            mu_pb_put_bytes(&pb, EXTENSION_MUXERS, muxer);
        }
        err = pb.err;
    }
    mu_buf_fini(&signature);
    return err;
}

/* We support one muxer, so it is agreed if the other side knows it. */
static int read_extensions(struct mu_noise *n, struct mu_span in)
{
    struct mu_pb_field f;
    size_t count = 0;
    bool known = false;
    int err;

    while ((err = mu_pb_next(&in, &f)) == 1) {
        if (f.number == EXTENSION_MUXERS && f.type == MU_PB_BYTES) {
            count++;
            known = known ||
                    (n->config.muxer != NULL && mu_span_eq(f.bytes, mu_span_str(n->config.muxer)));
        }
    }
    n->muxer_agreed = known && count <= MU_NOISE_MUXERS_MAX;
    return err;
}

static int check_identity(struct mu_noise *n, struct mu_span key, struct mu_span signature,
                          const uint8_t remote_static[MU_X25519_LEN])
{
    uint8_t text[sizeof(signed_prefix) - 1 + MU_X25519_LEN];
    struct mu_peer_id id;
    int err;

    memcpy(text, signed_prefix, sizeof(signed_prefix) - 1);
    memcpy(text + sizeof(signed_prefix) - 1, remote_static, MU_X25519_LEN);
    err = mu_public_key_verify(key, mu_span(text, sizeof(text)), signature);
    if (err == MUSTER_ENOMEM) {
        return err;
    }
    if (err == MUSTER_ENOTSUP) {
        return fail(n, MUSTER_ESIGNATURE,
                    "the peer's key is secp256k1; only Ed25519, RSA and ECDSA are verified");
    }
    if (err == MUSTER_EINVAL) {
        return fail(n, MUSTER_ESIGNATURE, "the peer's key is not valid");
    }
    if (err != 0 || mu_public_key_peer(key, &id) != 0) {
        return fail(n, MUSTER_ESIGNATURE, "the peer's signature does not match its key");
    }
    if (n->config.expected.len != 0 && !mu_peer_id_eq(&id, &n->config.expected)) {
        char found[MU_PEER_ID_TEXT_MAX];
        char wanted[MU_PEER_ID_TEXT_MAX];

        n->poison = MUSTER_EPEERID;
        return mu_err(&n->why, MUSTER_EPEERID, "this is %s, not %s", mu_peer_id_format(&id, found),
                      mu_peer_id_format(&n->config.expected, wanted));
    }
    n->remote = id;
    return 0;
}

static int read_payload(struct mu_noise *n, struct mu_span in,
                        const uint8_t remote_static[MU_X25519_LEN])
{
    struct mu_span key = {0};
    struct mu_span signature = {0};
    struct mu_span extensions = {0};
    struct mu_pb_field f;
    int err;

    while ((err = mu_pb_next(&in, &f)) == 1) {
        if (f.type != MU_PB_BYTES) {
            continue;
        }
        switch (f.number) {
        case PAYLOAD_KEY:
            key = f.bytes;
            break;
        case PAYLOAD_SIGNATURE:
            signature = f.bytes;
            break;
        case PAYLOAD_EXTENSIONS:
            extensions = f.bytes;
            break;
        }
    }
    if (err != 0 || read_extensions(n, extensions) != 0) {
        return fail(n, MUSTER_EPROTO, "the payload of the handshake cannot be read");
    }
    return check_identity(n, key, signature, remote_static);
}

/* --- the three messages ----------------------------------------------------------------------- */

/* Puts the length in front of a message that was written after `start`. */
static void close_frame(struct mu_buf *out, size_t start)
{
    size_t len = out->len - start - LENGTH_LEN;
    uint8_t *at = out->data + out->head + start;

    MU_ASSERT(len <= MU_NOISE_FRAME_MAX);
    at[0] = (uint8_t)(len >> 8);
    at[1] = (uint8_t)len;
}

/* Writes the place of the length, and our ephemeral key. */
static int write_ephemeral(struct mu_noise *n, struct mu_buf *out)
{
    uint8_t bytes[LENGTH_LEN + MU_X25519_LEN] = {0};
    int err = mu_x25519_public(bytes + LENGTH_LEN, n->config.secret_ephemeral);

    if (err == 0) {
        err = mu_buf_append(out, mu_span(bytes, sizeof(bytes)));
    }
    if (err == 0) {
        mix_hash(n, mu_span(bytes + LENGTH_LEN, MU_X25519_LEN));
    }
    return err;
}

/* Writes our static key, mixes in the key that it makes with the peer's ephemeral one, and writes
 * our identity. */
static int write_static(struct mu_noise *n, struct mu_buf *out)
{
    uint8_t ours[MU_X25519_LEN];
    struct mu_buf payload;
    int err = mu_x25519_public(ours, n->config.secret_static);

    mu_buf_init(&payload, MU_NOISE_FRAME_MAX / 2);
    if (err == 0) {
        err = encrypt_and_hash(n, out, mu_span(ours, sizeof(ours)));
    }
    if (err == 0) {
        err = mix_key(n, n->config.secret_static, n->remote_ephemeral);
    }
    if (err == 0) {
        err = make_payload(n, ours, &payload);
    }
    if (err == 0) {
        err = encrypt_and_hash(n, out, mu_buf_span(&payload));
    }
    mu_buf_fini(&payload);
    return err;
}

static void read_ephemeral(struct mu_noise *n, struct mu_span frame)
{
    memcpy(n->remote_ephemeral, frame.data, MU_X25519_LEN);
    mix_hash(n, mu_span(n->remote_ephemeral, MU_X25519_LEN));
}

/* Reads the other side's static key and payload: the rest of B, or all of C. */
static int read_static(struct mu_noise *n, struct mu_span rest)
{
    uint8_t theirs[MU_X25519_LEN];
    uint8_t plain[MU_NOISE_FRAME_MAX];
    int err;

    if (rest.len < SEALED_STATIC_LEN + MU_AEAD_TAG_LEN) {
        return fail(n, MUSTER_EPROTO, "a message of the handshake is too short");
    }
    err = decrypt_and_hash(n, mu_span(rest.data, SEALED_STATIC_LEN), theirs);
    if (err == 0) {
        err = mix_key(n, n->config.secret_ephemeral, theirs);
    }
    if (err != 0) {
        return err;
    }
    rest = mu_span_skip(rest, SEALED_STATIC_LEN);
    err = decrypt_and_hash(n, rest, plain);
    return err == 0 ? read_payload(n, mu_span(plain, rest.len - MU_AEAD_TAG_LEN), theirs) : err;
}

static int split(struct mu_noise *n)
{
    uint8_t first[MU_SHA256_LEN];
    uint8_t second[MU_SHA256_LEN];
    bool dialler = n->role == MU_NOISE_DIALLER;
    int err;

    derive(n->chain, (struct mu_span){0}, first, second);
    err = mu_aead_init(&n->sealing, MU_AEAD_SEAL, dialler ? first : second);
    if (err == 0) {
        err = mu_aead_init(&n->opening, MU_AEAD_OPEN, dialler ? second : first);
    }
    explicit_bzero(first, sizeof(first));
    explicit_bzero(second, sizeof(second));
    if (err == 0) {
        explicit_bzero(n->config.secret_static, sizeof(n->config.secret_static));
        explicit_bzero(n->config.secret_ephemeral, sizeof(n->config.secret_ephemeral));
        explicit_bzero(n->key, sizeof(n->key));
        explicit_bzero(n->chain, sizeof(n->chain));
        n->state = MU_NOISE_OPEN;
    }
    return err;
}

static int step_a(struct mu_noise *n, struct mu_span frame, struct mu_buf *out)
{
    int err;

    if (frame.len != MU_X25519_LEN) {
        return fail(n, MUSTER_EPROTO, "the first message of the handshake is not a key");
    }
    read_ephemeral(n, frame);
    mix_hash(n, (struct mu_span){0});
    err = write_ephemeral(n, out);
    if (err == 0) {
        err = mix_key(n, n->config.secret_ephemeral, n->remote_ephemeral);
    }
    if (err == 0) {
        err = write_static(n, out);
    }
    n->state = MU_NOISE_WANT_C;
    return err;
}

static int step_b(struct mu_noise *n, struct mu_span frame, struct mu_buf *out)
{
    static const uint8_t zero[LENGTH_LEN];
    int err;

    if (frame.len < MU_X25519_LEN) {
        return fail(n, MUSTER_EPROTO, "the second message of the handshake is too short");
    }
    read_ephemeral(n, frame);
    err = mix_key(n, n->config.secret_ephemeral, n->remote_ephemeral);
    if (err == 0) {
        err = read_static(n, mu_span_skip(frame, MU_X25519_LEN));
    }
    if (err == 0) {
        err = mu_buf_append(out, mu_span(zero, sizeof(zero)));
    }
    if (err == 0) {
        err = write_static(n, out);
    }
    return err == 0 ? split(n) : err;
}

static int step_c(struct mu_noise *n, struct mu_span frame)
{
    int err = read_static(n, frame);

    return err == 0 ? split(n) : err;
}

/* Handles a message of the handshake. A step that finds no memory has changed nothing. */
static int take_handshake(struct mu_noise *n, struct mu_span frame)
{
    struct mu_noise before = *n;
    struct mu_buf answer;
    int err = 0;

    mu_buf_init(&answer, MU_NOISE_FRAME_MAX + LENGTH_LEN);
    switch (n->state) {
    case MU_NOISE_WANT_A:
        err = step_a(n, frame, &answer);
        break;
    case MU_NOISE_WANT_B:
        err = step_b(n, frame, &answer);
        break;
    case MU_NOISE_WANT_C:
        err = step_c(n, frame);
        break;
    case MU_NOISE_OPEN:
        MU_ASSERT(false); /* an open connection takes messages, not handshakes */
        break;
    }
    if (err == 0 && answer.len != 0) {
        close_frame(&answer, 0);
        err = mu_buf_append(&n->out, mu_buf_span(&answer));
    }
    if (err != 0 && n->poison == 0) {
        mu_aead_fini(&n->sealing);
        mu_aead_fini(&n->opening);
        *n = before;
    }
    mu_buf_fini(&answer);
    return err;
}

/* --- life ------------------------------------------------------------------------------------- */

int mu_noise_init(struct mu_noise *n, const struct mu_noise_config *config)
{
    int err = 0;

    if (config->identity == NULL || config->output_bytes_max < OUTPUT_BYTES_LEAST) {
        return MUSTER_EINVAL;
    }
    *n = (struct mu_noise){.role = config->role, .config = *config};
    mu_buf_init(&n->in, MU_NOISE_FRAME_MAX + LENGTH_LEN);
    mu_buf_init(&n->plain, SIZE_MAX / 2);
    mu_buf_init(&n->out, config->output_bytes_max);
    memcpy(n->hash, protocol_name, sizeof(n->hash));
    memcpy(n->chain, protocol_name, sizeof(n->chain));
    mix_hash(n, (struct mu_span){0});
    if (config->role == MU_NOISE_LISTENER) {
        n->state = MU_NOISE_WANT_A;
        return 0;
    }
    n->state = MU_NOISE_WANT_B;
    err = write_ephemeral(n, &n->out);
    if (err != 0) {
        mu_noise_fini(n);
        return err;
    }
    close_frame(&n->out, 0);
    mix_hash(n, (struct mu_span){0});
    return 0;
}

void mu_noise_fini(struct mu_noise *n)
{
    mu_aead_fini(&n->sealing);
    mu_aead_fini(&n->opening);
    mu_buf_fini(&n->in);
    mu_buf_fini(&n->plain);
    mu_buf_fini(&n->out);
    explicit_bzero(n, sizeof(*n));
}

/* --- in --------------------------------------------------------------------------------------- */

static int take_message(struct mu_noise *n, struct mu_span frame)
{
    size_t len = frame.len - MU_AEAD_TAG_LEN;
    int err;

    if (frame.len < MU_AEAD_TAG_LEN) {
        return fail(n, MUSTER_EPROTO, "a message is too short");
    }
    if (n->opened == UINT64_MAX) {
        return fail(n, MUSTER_ELIMIT, "more messages than there are counters");
    }
    err = mu_buf_reserve(&n->plain, len);
    if (err != 0) {
        return err;
    }
    /* An empty message may be the first one, when no memory is allocated yet. */
    err = mu_aead_open(&n->opening, n->opened, (struct mu_span){0}, frame,
                       len == 0 ? NULL : n->plain.data + n->plain.head + n->plain.len);
    if (err == MUSTER_ECORRUPT) {
        return fail(n, MUSTER_ECORRUPT, "a message was changed on its way");
    }
    if (err == 0) {
        n->opened++;
        n->plain.len += len;
    }
    return err;
}

/* Finds the next complete frame, in what was kept or in what has come, and its length, so that it
 * can be dropped. False: there is no complete frame yet. */
static bool find_frame(struct mu_span in, struct mu_span *ret_frame)
{
    size_t len;

    if (in.len < LENGTH_LEN) {
        return false;
    }
    len = (size_t)in.data[0] << 8 | in.data[1];
    if (in.len - LENGTH_LEN < len) {
        return false;
    }
    *ret_frame = mu_span(in.data + LENGTH_LEN, len);
    return true;
}

/* Returns how many bytes the frame that was begun in `held` lacks; at least one. */
static size_t missing(struct mu_span held)
{
    size_t len;

    if (held.len < LENGTH_LEN) {
        return LENGTH_LEN - held.len;
    }
    len = (size_t)held.data[0] << 8 | held.data[1];
    return len + LENGTH_LEN - held.len;
}

static int take_frame(struct mu_noise *n, struct mu_span frame)
{
    return n->state == MU_NOISE_OPEN ? take_message(n, frame) : take_handshake(n, frame);
}

/* Adds bytes to the frame that was begun, and handles it if it is complete. */
static int recv_rest(struct mu_noise *n, struct mu_span in, size_t *ret_used)
{
    size_t used = 0;
    int err = 0;

    while (used < in.len && n->in.len != 0) {
        size_t want = missing(mu_buf_span(&n->in));
        size_t len = want < in.len - used ? want : in.len - used;
        struct mu_span frame;

        err = mu_buf_append(&n->in, mu_span(in.data + used, len));
        if (err != 0) {
            break;
        }
        if (find_frame(mu_buf_span(&n->in), &frame)) {
            err = take_frame(n, frame);
            if (err != 0) {
                n->in.len -= len; /* the bytes count as not received */
                break;
            }
            mu_buf_reset(&n->in);
        }
        used += len;
    }
    *ret_used = used;
    return err;
}

int mu_noise_recv(struct mu_noise *n, struct mu_span in, size_t *ret_used)
{
    size_t used = 0;
    struct mu_span frame;
    int err;

    *ret_used = 0;
    if (n->poison != 0) {
        return n->poison;
    }
    err = recv_rest(n, in, &used);
    while (err == 0 && n->in.len == 0 && n->plain.len < MU_NOISE_FRAME_MAX &&
           find_frame(mu_span_skip(in, used), &frame)) {
        err = take_frame(n, frame);
        used += err == 0 ? LENGTH_LEN + frame.len : 0;
    }
    if (err == 0 && used < in.len && n->in.len == 0 &&
        !find_frame(mu_span_skip(in, used), &frame)) {
        err = mu_buf_append(&n->in, mu_span_skip(in, used));
        used = err == 0 ? in.len : used;
    }
    *ret_used = used;
    /* Frames before an error count first; the next call returns the error again. */
    return used != 0 && n->poison == 0 ? 0 : err;
}

bool mu_noise_done(const struct mu_noise *n)
{
    return n->state == MU_NOISE_OPEN;
}

struct mu_span mu_noise_plain(const struct mu_noise *n)
{
    return mu_buf_span(&n->plain);
}

void mu_noise_consume(struct mu_noise *n, size_t len)
{
    mu_buf_consume(&n->plain, len);
}

/* --- out -------------------------------------------------------------------------------------- */

int mu_noise_send_whole(struct mu_noise *n, const struct mu_span *parts, size_t count)
{
    size_t len = mu_span_total(parts, count);
    size_t start = n->out.len;
    int err;

    MU_ASSERT(len <= MU_NOISE_PLAIN_MAX);
    if (n->poison != 0) {
        return n->poison;
    }
    if (n->state != MU_NOISE_OPEN) {
        return MUSTER_EAGAIN;
    }
    if (n->sealed == UINT64_MAX) {
        return MUSTER_ELIMIT;
    }
    err = mu_buf_reserve(&n->out, LENGTH_LEN + len + MU_AEAD_TAG_LEN);
    if (err != 0) {
        return err == MUSTER_ELIMIT ? MUSTER_EAGAIN : err;
    }
    err = mu_aead_sealv(&n->sealing, n->sealed, (struct mu_span){0}, parts, count,
                        n->out.data + n->out.head + start + LENGTH_LEN);
    if (err == 0) {
        n->out.len += LENGTH_LEN + len + MU_AEAD_TAG_LEN;
        close_frame(&n->out, start);
        n->sealed++;
    }
    return err;
}

int mu_noise_send(struct mu_noise *n, struct mu_span plain, size_t *ret_taken)
{
    size_t taken = 0;
    int err = n->poison == 0 && n->state != MU_NOISE_OPEN ? MUSTER_EAGAIN : n->poison;

    *ret_taken = 0;
    while (taken < plain.len && err == 0) {
        struct mu_span part = mu_span_skip(plain, taken);

        part.len = part.len < MU_NOISE_PLAIN_MAX ? part.len : MU_NOISE_PLAIN_MAX;
        err = mu_noise_send_whole(n, &part, 1);
        taken += err == 0 ? part.len : 0;
    }
    *ret_taken = taken;
    /* The handshake is over and there is no room: nothing more is taken now. */
    return taken != 0 || (err == MUSTER_EAGAIN && n->state == MU_NOISE_OPEN) ? 0 : err;
}

struct mu_span mu_noise_output(const struct mu_noise *n)
{
    return mu_buf_span(&n->out);
}

void mu_noise_sent(struct mu_noise *n, size_t len)
{
    mu_buf_consume(&n->out, len);
}

const char *mu_noise_errmsg(const struct mu_noise *n)
{
    return n->why.text;
}

#include "crypto/state_tree.h"

#include <inttypes.h>

#include "core/assert.h"

static const uint8_t leaf_tag = 0x00;
static const uint8_t node_tag = 0x01;

/* --- leaves and root -------------------------------------------------------------------------- */

void mu_state_leaf(uint8_t ret[MU_STATE_HASH_LEN], const struct mu_span *spans, size_t count)
{
    struct mu_sha256 sha;

    mu_sha256_begin(&sha);
    mu_sha256_add(&sha, mu_span(&leaf_tag, 1));
    for (size_t i = 0; i < count; i++) {
        mu_sha256_add(&sha, spans[i]);
    }
    mu_sha256_end(&sha, ret);
}

void mu_state_leaf_two(uint8_t ret_a[MU_STATE_HASH_LEN], struct mu_span a,
                       uint8_t ret_b[MU_STATE_HASH_LEN], struct mu_span b)
{
    struct mu_sha256 first;
    struct mu_sha256 second;

    mu_sha256_begin(&first);
    mu_sha256_begin(&second);
    mu_sha256_add(&first, mu_span(&leaf_tag, 1));
    mu_sha256_add(&second, mu_span(&leaf_tag, 1));
    mu_sha256_add_two(&first, a, &second, b);
    mu_sha256_end(&first, ret_a);
    mu_sha256_end(&second, ret_b);
}

static void hash_node(uint8_t ret[MU_STATE_HASH_LEN], const uint8_t *left, const uint8_t *right)
{
    uint8_t both[1 + 2 * MU_STATE_HASH_LEN];

    both[0] = node_tag;
    memcpy(both + 1, left, MU_STATE_HASH_LEN);
    memcpy(both + 1 + MU_STATE_HASH_LEN, right, MU_STATE_HASH_LEN);
    mu_sha256(ret, mu_span(both, sizeof(both)));
}

/*
 * The leaves so far are runs of 2^i with i falling, as the bits of their count say, and the root of
 * each run is known. One more leaf is a run of one, which joins its equals as a carry does.
 */
void mu_state_root_add(struct mu_state_root *r, const uint8_t leaf[MU_STATE_HASH_LEN])
{
    uint8_t run[MU_STATE_HASH_LEN];
    size_t i = 0;

    memcpy(run, leaf, MU_STATE_HASH_LEN);
    for (uint64_t bits = r->count; (bits & 1) != 0; bits >>= 1) {
        hash_node(run, r->full[i], run);
        i++;
    }
    MU_ASSERT(i < MU_STATE_TREE_DEPTH);
    memcpy(r->full[i], run, MU_STATE_HASH_LEN);
    r->count++;
}

/* A node without a neighbour is carried up: it meets the next longer run. */
void mu_state_root_get(const struct mu_state_root *r, uint8_t ret[MU_STATE_HASH_LEN])
{
    uint8_t root[MU_STATE_HASH_LEN] = {0};
    bool any = false;

    for (size_t i = 0; i < MU_STATE_TREE_DEPTH; i++) {
        if ((r->count >> i & 1) == 0) {
            continue;
        }
        if (any) {
            hash_node(root, r->full[i], root);
        } else {
            memcpy(root, r->full[i], MU_STATE_HASH_LEN);
            any = true;
        }
    }
    memcpy(ret, root, MU_STATE_HASH_LEN);
}

void mu_state_root_of(uint8_t ret[MU_STATE_HASH_LEN], struct mu_span leaves)
{
    struct mu_state_root root = {.count = 0};

    for (size_t at = 0; at + MU_STATE_HASH_LEN <= leaves.len; at += MU_STATE_HASH_LEN) {
        mu_state_root_add(&root, leaves.data + at);
    }
    mu_state_root_get(&root, ret);
}

/* --- of what comes in pieces ------------------------------------------------------------------ */

static void begin_leaf(struct mu_state_builder *b)
{
    mu_sha256_begin(&b->sha);
    mu_sha256_add(&b->sha, mu_span(&leaf_tag, 1));
    b->filled = 0;
}

void mu_state_builder_init(struct mu_state_builder *b, uint32_t chunk_bytes)
{
    *b = (struct mu_state_builder){.chunk_bytes = chunk_bytes};
    mu_buf_init(&b->leaves, (size_t)MU_STATE_CHUNKS_MAX * MU_STATE_HASH_LEN);
    begin_leaf(b);
}

void mu_state_builder_fini(struct mu_state_builder *b)
{
    mu_buf_fini(&b->leaves);
}

static int end_leaf(struct mu_state_builder *b)
{
    uint8_t *leaf;
    int err = mu_buf_reserve(&b->leaves, MU_STATE_HASH_LEN);

    if (err != 0) {
        return err;
    }
    leaf = mu_buf_grow(&b->leaves, MU_STATE_HASH_LEN);
    mu_sha256_end(&b->sha, leaf);
    mu_state_root_add(&b->root, leaf);
    begin_leaf(b);
    return 0;
}

int mu_state_builder_add(struct mu_state_builder *b, struct mu_span bytes)
{
    while (bytes.len != 0) {
        size_t room = b->chunk_bytes - b->filled;
        size_t n = bytes.len < room ? bytes.len : room;

        mu_sha256_add(&b->sha, mu_span(bytes.data, n));
        b->filled += (uint32_t)n;
        bytes = mu_span_skip(bytes, n);
        if (b->filled == b->chunk_bytes) {
            int err = end_leaf(b);

            if (err != 0) {
                return err;
            }
        }
    }
    return 0;
}

int mu_state_builder_end(struct mu_state_builder *b, uint8_t ret_root[MU_STATE_HASH_LEN])
{
    int err = b->filled == 0 ? 0 : end_leaf(b);

    if (err == 0) {
        mu_state_root_get(&b->root, ret_root);
    }
    return err;
}

/* --- the offer -------------------------------------------------------------------------------- */

void mu_state_id(uint8_t ret[MU_STATE_ID_LEN], struct mu_span manifest)
{
    mu_sha256(ret, manifest);
}

#define SIGNED_TEXT "muster-state:"
#define SIGNED_LEN  (sizeof(SIGNED_TEXT) - 1 + MU_STATE_ID_LEN)

static struct mu_span signed_message(uint8_t out[SIGNED_LEN], const uint8_t id[MU_STATE_ID_LEN])
{
    memcpy(out, SIGNED_TEXT, sizeof(SIGNED_TEXT) - 1);
    memcpy(out + sizeof(SIGNED_TEXT) - 1, id, MU_STATE_ID_LEN);
    return mu_span(out, SIGNED_LEN);
}

static int make_offer(const struct mu_state_manifest *m, struct mu_span leaves,
                      const struct mu_identity *identity, struct mu_buf *bytes,
                      struct mu_buf *signature, struct mu_buf *out, uint8_t ret_id[MU_STATE_ID_LEN],
                      struct mu_errmsg *reterr_msg)
{
    uint8_t message[SIGNED_LEN];
    uint8_t id[MU_STATE_ID_LEN];
    int err = mu_state_manifest_encode(m, bytes, reterr_msg);

    if (err != 0) {
        return err;
    }
    mu_state_id(id, mu_buf_span(bytes));
    err = mu_identity_sign(identity, signed_message(message, id), signature);
    if (err == 0) {
        err = mu_state_offer_encode(out, mu_buf_span(bytes), leaves,
                                    mu_buf_span(&identity->public_key), mu_buf_span(signature));
    }
    if (err != 0) {
        return mu_err(reterr_msg, err, "the offer cannot be made: %s", muster_strerror(err));
    }
    memcpy(ret_id, id, MU_STATE_ID_LEN);
    return 0;
}

int mu_state_offer_make(struct mu_state_manifest *m, struct mu_span leaves,
                        const struct mu_identity *identity, struct mu_buf *out,
                        uint8_t ret_id[MU_STATE_ID_LEN], struct mu_errmsg *reterr_msg)
{
    struct mu_buf bytes;
    struct mu_buf signature;
    int err = mu_state_manifest_check(m, reterr_msg);

    if (err != 0) {
        return err;
    }
    if (leaves.len != (size_t)mu_state_chunk_count(m) * MU_STATE_HASH_LEN) {
        return mu_err(reterr_msg, MUSTER_EINVAL, "%zu leaves for %" PRIu32 " chunks",
                      leaves.len / MU_STATE_HASH_LEN, mu_state_chunk_count(m));
    }
    mu_state_root_of(m->root, leaves);
    mu_buf_init(&bytes, MU_STATE_MANIFEST_MAX);
    mu_buf_init(&signature, MU_STATE_SIG_LEN_MAX);
    err = make_offer(m, leaves, identity, &bytes, &signature, out, ret_id, reterr_msg);
    mu_buf_fini(&bytes);
    mu_buf_fini(&signature);
    return err;
}

int mu_state_signer(const uint8_t id[MU_STATE_ID_LEN], struct mu_span public_key,
                    struct mu_span signature, struct mu_peer_id *ret_signer,
                    struct mu_errmsg *reterr_msg)
{
    uint8_t message[SIGNED_LEN];
    int err = mu_public_key_verify(public_key, signed_message(message, id), signature);

    switch (err) {
    case 0:
        break;
    case MUSTER_ECORRUPT:
        return mu_err(reterr_msg, MUSTER_ESIGNATURE, "the offer is not signed by its key");
    case MUSTER_EINVAL:
        return mu_err(reterr_msg, MUSTER_ESIGNATURE, "the offer has no key");
    default:
        return mu_err(reterr_msg, err, "the offer's signature cannot be checked: %s",
                      muster_strerror(err));
    }
    return mu_public_key_peer(public_key, ret_signer) == 0
               ? 0
               : mu_err(reterr_msg, MUSTER_ESIGNATURE, "the offer's key is not a peer's key");
}

int mu_state_offer_verify(const struct mu_state_offer *o, const uint8_t *expected,
                          uint8_t ret_id[MU_STATE_ID_LEN], struct mu_peer_id *ret_signer,
                          struct mu_errmsg *reterr_msg)
{
    uint8_t id[MU_STATE_ID_LEN];
    uint8_t root[MU_STATE_HASH_LEN];
    struct mu_peer_id signer;
    int err;

    MU_ASSERT(o->whole);
    mu_state_id(id, o->manifest_bytes);
    if (expected != NULL && memcmp(id, expected, MU_STATE_ID_LEN) != 0) {
        return mu_err(reterr_msg, MUSTER_ENOENT,
                      "this is not the state that was asked for: epoch %" PRIu64 ", step %" PRIu64,
                      o->manifest.epoch, o->manifest.step);
    }
    err = mu_state_signer(id, o->public_key, o->signature, &signer, reterr_msg);
    if (err != 0) {
        return err;
    }
    mu_state_root_of(root, o->leaves);
    if (memcmp(root, o->manifest.root, MU_STATE_HASH_LEN) != 0) {
        return mu_err(reterr_msg, MUSTER_ECORRUPT,
                      "the leaves do not belong to the manifest's tree");
    }
    memcpy(ret_id, id, MU_STATE_ID_LEN);
    *ret_signer = signer;
    return 0;
}

/*
 * The hash tree of a state and the signature over it. Pure.
 *
 * A leaf is SHA-256(0x00, chunk), a node SHA-256(0x01, left, right); a node without a neighbour is
 * carried up as it is. A state without bytes has a root of zeroes. The id of a state is the SHA-256
 * of its manifest's bytes, and a donor signs "muster-state:" and the id. Leaves travel whole and
 * are checked against the root before any is used, so that each chunk can be checked alone,
 * whichever donor sent it.
 */
#ifndef MU_STATE_TREE_H
#define MU_STATE_TREE_H

#include "codec/state/manifest.h"
#include "crypto/hash.h"
#include "crypto/identity.h"

#define MU_STATE_TREE_DEPTH 32 /* more than MU_STATE_CHUNKS_MAX needs */

/** The leaf of a chunk that lies in `count` spans, one after the other. Safe on any thread. */
void mu_state_leaf(uint8_t ret[MU_STATE_HASH_LEN], const struct mu_span *spans, size_t count);
/** The leaves of two chunks, each in one piece, in little more than the time of one if the
 * processor supports that. Safe on any thread. */
void mu_state_leaf_two(uint8_t ret_a[MU_STATE_HASH_LEN], struct mu_span a,
                       uint8_t ret_b[MU_STATE_HASH_LEN], struct mu_span b);

/* The root of leaves that come in order; takes no memory. A zeroed one is empty. */
struct mu_state_root {
    uint8_t full[MU_STATE_TREE_DEPTH][MU_STATE_HASH_LEN]; /* of 2^i leaves, where count has bit i */
    uint64_t count;
};

void mu_state_root_add(struct mu_state_root *r, const uint8_t leaf[MU_STATE_HASH_LEN]);
void mu_state_root_get(const struct mu_state_root *r, uint8_t ret[MU_STATE_HASH_LEN]);
/** The root of leaves that lie one after the other. */
void mu_state_root_of(uint8_t ret[MU_STATE_HASH_LEN], struct mu_span leaves);

/*
 * Leaves and root of bytes that come in pieces of any length, such as a file, or tensors that are
 * scattered in memory. For bytes in one piece and several threads, use mu_state_leaf().
 */
struct mu_state_builder {
    struct mu_sha256 sha;
    uint32_t chunk_bytes;
    uint32_t filled; /* of the chunk under way */
    struct mu_state_root root;
    struct mu_buf leaves;
};

/** `chunk_bytes` as in a manifest. */
void mu_state_builder_init(struct mu_state_builder *b, uint32_t chunk_bytes);
void mu_state_builder_fini(struct mu_state_builder *b);
/** MUSTER_ELIMIT: there are more chunks than allowed; MUSTER_ENOMEM. After an error the builder
 * cannot be used. */
int mu_state_builder_add(struct mu_state_builder *b, struct mu_span bytes);
/** Ends the input: `b->leaves` has all leaves, and this is the root. Once; errors as above. */
int mu_state_builder_end(struct mu_state_builder *b, uint8_t ret_root[MU_STATE_HASH_LEN]);

/** The id of the state whose manifest has these bytes. */
void mu_state_id(uint8_t ret[MU_STATE_ID_LEN], struct mu_span manifest);

/**
 * Appends the offer of a manifest, whose root is set here from the leaves, signed by `identity`.
 * MUSTER_EINVAL: there are not as many leaves as chunks; errors of mu_state_manifest_encode();
 * nothing was appended.
 */
int mu_state_offer_make(struct mu_state_manifest *m, struct mu_span leaves,
                        const struct mu_identity *identity, struct mu_buf *out,
                        uint8_t ret_id[MU_STATE_ID_LEN], struct mu_errmsg *reterr_msg);
/**
 * Tells which peer has signed an id: that of this key, if the signature is the key's.
 * MUSTER_ESIGNATURE; MUSTER_ENOTSUP: an unknown kind of key; MUSTER_ENOMEM.
 */
int mu_state_signer(const uint8_t id[MU_STATE_ID_LEN], struct mu_span public_key,
                    struct mu_span signature, struct mu_peer_id *ret_signer,
                    struct mu_errmsg *reterr_msg);
/**
 * Checks that a whole offer is consistent: its leaves give its root, and its key has signed its id.
 * With `expected`, that it has this id. Safe on any thread: it takes some milliseconds with
 * thousands of leaves. MUSTER_ECORRUPT: the leaves are of another tree; MUSTER_ESIGNATURE;
 * MUSTER_ENOENT: it is not the state that was asked for; MUSTER_ENOTSUP: an unknown kind of key;
 * MUSTER_ENOMEM.
 */
int mu_state_offer_verify(const struct mu_state_offer *o, const uint8_t *expected,
                          uint8_t ret_id[MU_STATE_ID_LEN], struct mu_peer_id *ret_signer,
                          struct mu_errmsg *reterr_msg);

#endif

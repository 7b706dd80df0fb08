/*
 * The manifest describes a state, in exactly one form. The offer is a manifest with the hashes of
 * its chunks and a donor's signature. Bytes only; hashing, signing and checking are in
 * crypto/state_tree.h. docs/state.md, section "On the wire".
 *
 * The bytes of all tensors, one after the other, are cut into chunks of `chunk_bytes`, the last one
 * shorter. The manifest's bytes, little-endian; there is one way to write each manifest:
 *
 *     "MUSM", u8 1, u64 epoch, u64 step, u32 chunk_bytes, 32 bytes root of the hash tree,
 *     u32 length and bytes of the metadata,
 *     u32 tensors, for each: u8 dtype, u8 rank, u64 for each dimension, u32 length and name
 *
 * Their SHA-256 is the state's id: the same content has the same id. The offer:
 *
 *     "MUSO", u8 1, u32 length of the manifest, u32 leaves, u16 length of the key,
 *     u16 length of the signature,
 *     the manifest, 32 bytes for each leaf, the signer's public key (a libp2p protocol buffer),
 *     its signature
 */
#ifndef MU_STATE_MANIFEST_H
#define MU_STATE_MANIFEST_H

#include "codec/bin/tensor.h"
#include "core/buf.h"
#include "core/err.h"
#include "core/span.h"

#define MU_STATE_HASH_LEN 32
#define MU_STATE_ID_LEN   MU_STATE_HASH_LEN

/* A chunk is what a lost donor costs at most, and the unit of hashing; a power of two. */
#define MU_STATE_CHUNK_BYTES     ((uint32_t)1 << 20)
#define MU_STATE_CHUNK_BYTES_MIN ((uint32_t)1 << 10)
#define MU_STATE_CHUNK_BYTES_MAX ((uint32_t)1 << 22) /* a dozen are in memory */

#define MU_STATE_CHUNKS_MAX   ((uint64_t)1 << 22) /* 4 TiB in chunks of 1 MiB; 128 MiB of leaves */
#define MU_STATE_METADATA_MAX ((size_t)16 << 20)
#define MU_STATE_TENSORS_MAX  ((size_t)1 << 20)
#define MU_STATE_NAME_MAX     ((size_t)65535)
#define MU_STATE_MANIFEST_MAX ((size_t)64 << 20)

#define MU_STATE_OFFER_HEAD_LEN 17
#define MU_STATE_KEY_LEN_MAX    2048 /* as MU_PUBLIC_KEY_LEN_MAX */
#define MU_STATE_SIG_LEN_MAX    1024 /* as MU_IDENTITY_SIG_LEN_MAX */
#define MU_STATE_OFFER_BYTES_MAX                                                                   \
    (MU_STATE_OFFER_HEAD_LEN + MU_STATE_MANIFEST_MAX +                                             \
     (size_t)MU_STATE_CHUNKS_MAX * MU_STATE_HASH_LEN + MU_STATE_KEY_LEN_MAX +                      \
     MU_STATE_SIG_LEN_MAX)

/* --- the manifest ----------------------------------------------------------------------------- */

struct mu_state_manifest {
    uint64_t epoch;
    uint64_t step;
    uint32_t chunk_bytes;
    uint8_t root[MU_STATE_HASH_LEN]; /* all zero if there are no chunks */
    struct mu_buf metadata;          /* msgpack, not checked here */
    struct mu_layout layout;
};

/** Empty, with chunks of MU_STATE_CHUNK_BYTES. */
void mu_state_manifest_init(struct mu_state_manifest *m);
void mu_state_manifest_fini(struct mu_state_manifest *m);

/**
 * Checks that a state of these lengths can have a manifest: MUSTER_EINVAL for a chunk length that
 * is not a power of two within the limits, MUSTER_ELIMIT for too many chunks, tensors, or bytes of
 * metadata or of a name.
 */
int mu_state_manifest_check(const struct mu_state_manifest *m, struct mu_errmsg *reterr_msg);
/** Appends the canonical bytes. Errors as mu_state_manifest_check(), MUSTER_EEXIST for a name that
 * occurs twice, MUSTER_ENOMEM, MUSTER_ELIMIT: nothing was appended. */
int mu_state_manifest_encode(const struct mu_state_manifest *m, struct mu_buf *out,
                             struct mu_errmsg *reterr_msg);
/**
 * Reads the canonical bytes and nothing else: what this accepts is encoded into the same bytes
 * again. `*ret` is initialised here on success. MUSTER_EVERSION, MUSTER_EPROTO, MUSTER_ELIMIT, each
 * with a text; MUSTER_ENOMEM.
 */
int mu_state_manifest_decode(struct mu_span in, struct mu_state_manifest *ret,
                             struct mu_errmsg *reterr_msg);

/** How many chunks `bytes` bytes have. */
static inline uint64_t mu_state_chunks(uint64_t bytes, uint32_t chunk_bytes)
{
    return bytes / chunk_bytes + (bytes % chunk_bytes != 0);
}
static inline uint32_t mu_state_chunk_count(const struct mu_state_manifest *m)
{
    return (uint32_t)mu_state_chunks(m->layout.bytes, m->chunk_bytes);
}
static inline uint64_t mu_state_chunk_offset(const struct mu_state_manifest *m, uint32_t chunk)
{
    return (uint64_t)chunk * m->chunk_bytes;
}
/** The length of chunk `i`, which must exist. */
static inline uint32_t mu_state_chunk_len(const struct mu_state_manifest *m, uint32_t chunk)
{
    uint64_t rest = m->layout.bytes - mu_state_chunk_offset(m, chunk);

    return rest < m->chunk_bytes ? (uint32_t)rest : m->chunk_bytes;
}

/* --- the offer -------------------------------------------------------------------------------- */

/**
 * Appends an offer. `leaves` has 32 bytes for each chunk. MUSTER_EINVAL: an impossible length;
 * MUSTER_ELIMIT, MUSTER_ENOMEM: nothing was appended.
 */
int mu_state_offer_encode(struct mu_buf *out, struct mu_span manifest, struct mu_span leaves,
                          struct mu_span public_key, struct mu_span signature);

/*
 * An offer that comes in pieces. Memory is taken for what has come, not for what is announced. Its
 * bytes are kept, so that it can be passed on as it is.
 */
struct mu_state_offer {
    struct mu_buf bytes;
    size_t total; /* 0: not known yet */
    int poison;
    bool whole;
    struct mu_state_manifest manifest; /* valid once it is whole, as what follows */
    struct mu_span manifest_bytes;
    struct mu_span leaves;
    struct mu_span public_key;
    struct mu_span signature;
};

void mu_state_offer_init(struct mu_state_offer *o);
void mu_state_offer_fini(struct mu_state_offer *o);
/**
 * Takes the next piece. 0: the offer is whole and can be read, though its hashes and signature were
 * not checked (mu_state_offer_verify() does that). MUSTER_EAGAIN: valid so far, more must come.
 * MUSTER_EVERSION, MUSTER_EPROTO (also bytes after the end, and not as many leaves as chunks),
 * MUSTER_ELIMIT: with a text, and further calls return it again. MUSTER_ENOMEM: this piece was not
 * taken.
 */
int mu_state_offer_recv(struct mu_state_offer *o, struct mu_span in, struct mu_errmsg *reterr_msg);
/** The hash of an existing chunk, of an offer that is whole; 32 bytes. */
static inline const uint8_t *mu_state_offer_leaf(const struct mu_state_offer *o, uint32_t chunk)
{
    return o->leaves.data + (size_t)chunk * MU_STATE_HASH_LEN;
}

#endif

/*
 * A state that can be given to others: its offer, and where its bytes lie. Donors share complete
 * states, loaders what they have verified so far.
 *
 *     mu_state_share_new(&spec, &share, &msg);                what it consists of
 *     mu_state_share_hash(share, first, count);               on any number of threads
 *     mu_state_share_seal(share, identity, &msg);             signs it
 *     mu_state_donor_put(donor, share)                        holds a reference from then on
 *     mu_state_share_drop(share);                             `released` follows the last one
 *
 * References are counted on the loop's thread; before a share is given to a donor, on any.
 */
#ifndef MU_STATE_SHARE_H
#define MU_STATE_SHARE_H

#include "codec/state/manifest.h"
#include "codec/state/msg.h"
#include "crypto/identity.h"

/* Some of the bytes of a state, in one piece. */
struct mu_state_segment {
    uint64_t offset;
    uint64_t len;
    uint8_t *data;
};

struct mu_state_share {
    char prefix[MU_STATE_PREFIX_MAX + 1];
    double priority;
    bool hidden;                 /* not listed, and no download of it begins */
    struct mu_state_offer offer; /* complete once the share is sealed */
    uint8_t id[MU_STATE_ID_LEN];
    uint32_t chunks;
    struct mu_state_segment *segments; /* in order, without gaps, not empty */
    size_t segment_count;
    /* Which chunks are there; NULL: all. Borrowed, and may change at any turn. */
    const uint8_t *have;
    uint32_t have_count;
    /**
     * Reads bytes of the file that is mapped into the segments, and that another process may cut
     * short; on any thread. NULL: the segments are ordinary memory.
     */
    int (*read)(struct mu_state_share *share, uint64_t offset, void *buf, size_t len);
    /**
     * Makes the memory of these bytes ready to be written to; on any thread, and before anything is
     * put there. NULL: it is ready. A negated errno, MUSTER_ENOMEM.
     */
    int (*prepare)(struct mu_state_share *share, uint64_t offset, uint64_t len);
    /** The last reference is gone; the owner frees its own memory. The share itself is freed after
     * this. May be NULL. */
    void (*released)(struct mu_state_share *share);
    void *owner; /* of `read`, `prepare` and `released` */
    /* private from here */
    size_t refs;
    struct mu_state_manifest manifest; /* until it is sealed */
    uint8_t *leaves;
};

struct mu_state_share_spec {
    struct mu_span prefix;
    double priority;
    bool hidden;
    uint64_t epoch;
    uint64_t step;
    struct mu_span metadata;
    const struct mu_layout *layout; /* copied */
    uint8_t *const *tensors;        /* where each lies; or else */
    uint8_t *data;                  /* all of them, one behind the other */
    uint32_t chunk_bytes;           /* 0: MU_STATE_CHUNK_BYTES */
};

/** Makes a share with one reference. MUSTER_EINVAL (the prefix, the priority), MUSTER_ELIMIT,
 * MUSTER_ENOMEM. */
int mu_state_share_new(const struct mu_state_share_spec *spec, struct mu_state_share **ret,
                       struct mu_errmsg *reterr_msg);
/** Hashes `count` chunks from `first` on; several threads may do so, each with its own chunks.
 * Errors of `read`, MUSTER_ENOMEM. */
int mu_state_share_hash(struct mu_state_share *share, uint32_t first, uint32_t count);
/** Sets the hashes of all chunks, which were made as the bytes came. MUSTER_EINVAL: there are not
 * as many as chunks. */
int mu_state_share_set_leaves(struct mu_state_share *share, struct mu_span leaves);
/** Signs a share whose chunks were all hashed. Errors as mu_state_offer_make(). */
int mu_state_share_seal(struct mu_state_share *share, const struct mu_identity *identity,
                        struct mu_errmsg *reterr_msg);
/**
 * Makes a share of a verified offer. It takes the offer and the allocated `segments`.
 * MUSTER_ENOMEM: both are still the caller's.
 */
int mu_state_share_of(struct mu_state_offer *offer, const uint8_t id[MU_STATE_ID_LEN],
                      struct mu_state_segment *segments, size_t segment_count,
                      struct mu_state_share **ret);

static inline struct mu_state_share *mu_state_share_hold(struct mu_state_share *share)
{
    share->refs++;
    return share;
}
/** NULL is fine. */
void mu_state_share_drop(struct mu_state_share *share);

/** The list entry of a sealed share; lent by it. */
struct mu_state_entry mu_state_share_entry(const struct mu_state_share *share);
/** Of a sealed share. */
static inline uint32_t mu_state_share_len(const struct mu_state_share *share, uint32_t chunk)
{
    return mu_state_chunk_len(&share->offer.manifest, chunk);
}
static inline bool mu_state_share_has(const struct mu_state_share *share, uint32_t chunk)
{
    return share->have == NULL || mu_state_bit(share->have, chunk);
}
/** Finds the place of a chunk; false: it is in pieces. */
bool mu_state_share_place(const struct mu_state_share *share, uint32_t chunk,
                          struct mu_space *ret_place);
/** Copies a chunk out of its pieces, or into them. */
void mu_state_share_gather(const struct mu_state_share *share, uint32_t chunk, uint8_t *to);
void mu_state_share_scatter(const struct mu_state_share *share, uint32_t chunk,
                            const uint8_t *from);

/** Returns the bytes of a tensor of a sealed share; they are in one piece. */
struct mu_span mu_state_share_tensor(const struct mu_state_share *share, size_t i);

/** Makes segments for tensors that are scattered in memory. MUSTER_ENOMEM. */
int mu_state_segments_new(const struct mu_layout *layout, uint8_t *const *tensors, uint8_t *data,
                          struct mu_state_segment **ret, size_t *ret_count);

#endif

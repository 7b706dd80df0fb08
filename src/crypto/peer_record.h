/*
 * A peer's addresses with its signature, so that others can pass them on (a libp2p envelope with a
 * peer record in it). Of two records of one peer, the one with the greater sequence number counts.
 */
#ifndef MU_PEER_RECORD_H
#define MU_PEER_RECORD_H

#include <stdbool.h>

#include "crypto/identity.h"

#define MU_PEER_RECORD_MAX 8192

struct mu_peer_record {
    struct mu_peer_id peer;
    uint64_t seq;
    struct mu_span addrs; /* points into the envelope; walk it with mu_peer_record_next_addr() */
};

/**
 * Reads an envelope. MUSTER_EPROTO: it is not one; MUSTER_ENOENT: it has another kind of record;
 * MUSTER_ESIGNATURE: its key did not sign it;
 * MUSTER_EPEERID: the key is not that of the peer in the record; MUSTER_ENOTSUP, MUSTER_ENOMEM.
 */
int mu_peer_record_open(struct mu_span envelope, struct mu_peer_record *ret);
/** Takes the next address off `*walk`; unknown kinds are skipped. */
bool mu_peer_record_next_addr(struct mu_span *walk, struct mu_span *ret_addr);
/** Appends an envelope with our own record. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_peer_record_seal(const struct mu_identity *identity, uint64_t seq,
                        const struct mu_span *addrs, size_t count, struct mu_buf *out);

#endif

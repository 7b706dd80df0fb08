/* What a relay signs with a reservation: which peer can be reached through it, and until when. */
#ifndef MU_RELAY_VOUCHER_H
#define MU_RELAY_VOUCHER_H

#include "codec/peer/relay_msg.h"
#include "crypto/identity.h"

/**
 * Reads an envelope. MUSTER_EPROTO: it is not one; MUSTER_ESIGNATURE: its key did not sign it;
 * MUSTER_EPEERID: the key is not the relay's; MUSTER_ENOTSUP, MUSTER_ENOMEM.
 */
int mu_relay_voucher_open(struct mu_span envelope, struct mu_relay_voucher *ret);
/** Appends an envelope with our voucher for that peer. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_relay_voucher_seal(const struct mu_identity *relay, const struct mu_peer_id *peer,
                          uint64_t expire_s, struct mu_buf *out);

#endif

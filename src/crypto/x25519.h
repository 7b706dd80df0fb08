/* X25519 (RFC 7748). Pure: private keys are drawn elsewhere. */
#ifndef MU_X25519_H
#define MU_X25519_H

#include <stdint.h>

#define MU_X25519_LEN 32

/** The public key of a private one, which need not be clamped. MUSTER_ENOMEM. */
int mu_x25519_public(uint8_t ret[MU_X25519_LEN], const uint8_t secret[MU_X25519_LEN]);
/** What the two share. MUSTER_ECORRUPT: the peer's key is one that gives nothing away (a point of
 * small order); MUSTER_ENOMEM. */
int mu_x25519(uint8_t ret[MU_X25519_LEN], const uint8_t secret[MU_X25519_LEN],
              const uint8_t peer[MU_X25519_LEN]);

#endif

/* X25519 (RFC 7748). Pure: private keys come from elsewhere. */
#ifndef MU_X25519_H
#define MU_X25519_H

#include <stdint.h>

#define MU_X25519_LEN 32

/** The public key of a private one, which need not be clamped. MUSTER_ENOMEM. */
int mu_x25519_public(uint8_t ret[MU_X25519_LEN], const uint8_t secret[MU_X25519_LEN]);
/** The secret that both ends share. MUSTER_ECORRUPT: the other end's key is a point of small order,
 * with which there is no secret; MUSTER_ENOMEM. */
int mu_x25519(uint8_t ret[MU_X25519_LEN], const uint8_t secret[MU_X25519_LEN],
              const uint8_t peer[MU_X25519_LEN]);

#endif

#include "crypto/x25519.h"

#include <openssl/evp.h>

#include <muster/error.h>

int mu_x25519_public(uint8_t ret[MU_X25519_LEN], const uint8_t secret[MU_X25519_LEN])
{
    EVP_PKEY *key = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, secret, MU_X25519_LEN);
    size_t len = MU_X25519_LEN;
    int err = key != NULL && EVP_PKEY_get_raw_public_key(key, ret, &len) == 1 ? 0 : MUSTER_ENOMEM;

    EVP_PKEY_free(key);
    return err;
}

int mu_x25519(uint8_t ret[MU_X25519_LEN], const uint8_t secret[MU_X25519_LEN],
              const uint8_t peer[MU_X25519_LEN])
{
    EVP_PKEY *ours = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, secret, MU_X25519_LEN);
    EVP_PKEY *theirs = EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, NULL, peer, MU_X25519_LEN);
    EVP_PKEY_CTX *context = ours == NULL ? NULL : EVP_PKEY_CTX_new(ours, NULL);
    size_t len = MU_X25519_LEN;
    int err = MUSTER_ENOMEM;

    if (context != NULL && theirs != NULL && EVP_PKEY_derive_init(context) == 1 &&
        EVP_PKEY_derive_set_peer(context, theirs) == 1) {
        /* It fails for a secret of all zeroes, and for nothing else that depends on the peer. */
        err = EVP_PKEY_derive(context, ret, &len) == 1 ? 0 : MUSTER_ECORRUPT;
    }
    EVP_PKEY_CTX_free(context);
    EVP_PKEY_free(theirs);
    EVP_PKEY_free(ours);
    return err;
}

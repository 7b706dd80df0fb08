#include "crypto/x25519.h"

#include <openssl/core_names.h>
#include <openssl/evp.h>
#include <openssl/params.h>

#include <muster/error.h>

int mu_x25519_public(uint8_t ret[MU_X25519_LEN], const uint8_t secret[MU_X25519_LEN])
{
    EVP_PKEY *key = EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, NULL, secret, MU_X25519_LEN);
    size_t len = MU_X25519_LEN;
    int err = key != NULL && EVP_PKEY_get_raw_public_key(key, ret, &len) == 1 ? 0 : MUSTER_ENOMEM;

    EVP_PKEY_free(key);
    return err;
}

/* A private key for an exchange. From the secret alone OpenSSL would compute the public key as
 * well, at the price of another exchange, and then not use it: so it is given a dummy instead. */
static EVP_PKEY *new_secret(const uint8_t secret[MU_X25519_LEN],
                            const uint8_t something[MU_X25519_LEN])
{
    EVP_PKEY_CTX *context = EVP_PKEY_CTX_new_id(EVP_PKEY_X25519, NULL);
    OSSL_PARAM params[] = {
        OSSL_PARAM_construct_octet_string(OSSL_PKEY_PARAM_PRIV_KEY, (void *)secret, MU_X25519_LEN),
        OSSL_PARAM_construct_octet_string(OSSL_PKEY_PARAM_PUB_KEY, (void *)something,
                                          MU_X25519_LEN),
        OSSL_PARAM_construct_end(),
    };
    EVP_PKEY *key = NULL;

    if (context != NULL && EVP_PKEY_fromdata_init(context) == 1 &&
        EVP_PKEY_fromdata(context, &key, EVP_PKEY_KEYPAIR, params) != 1) {
        key = NULL;
    }
    EVP_PKEY_CTX_free(context);
    return key;
}

int mu_x25519(uint8_t ret[MU_X25519_LEN], const uint8_t secret[MU_X25519_LEN],
              const uint8_t peer[MU_X25519_LEN])
{
    EVP_PKEY *ours = new_secret(secret, peer);
    EVP_PKEY *theirs = EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, NULL, peer, MU_X25519_LEN);
    EVP_PKEY_CTX *context = ours == NULL ? NULL : EVP_PKEY_CTX_new(ours, NULL);
    size_t len = MU_X25519_LEN;
    int err = MUSTER_ENOMEM;

    if (context != NULL && theirs != NULL && EVP_PKEY_derive_init(context) == 1 &&
        EVP_PKEY_derive_set_peer(context, theirs) == 1) {
        /* It fails for a shared secret of all zeroes, and for nothing else that depends on the
         * other end. */
        err = EVP_PKEY_derive(context, ret, &len) == 1 ? 0 : MUSTER_ECORRUPT;
    }
    EVP_PKEY_CTX_free(context);
    EVP_PKEY_free(theirs);
    EVP_PKEY_free(ours);
    return err;
}

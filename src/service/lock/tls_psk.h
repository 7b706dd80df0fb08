/*
 * TLS with a secret that both ends share instead of certificates (RFC 8446, 4.2.11: an external
 * pre-shared key, with Diffie-Hellman, so that recorded traffic stays closed to an attacker who
 * learns the secret later). The secret never goes over the wire; a key is derived from it, and each
 * end proves that it has the same one.
 */
#ifndef MU_TLS_PSK_H
#define MU_TLS_PSK_H

#include <stdbool.h>

#include <openssl/ssl.h>

#include "core/span.h"

/** Makes connections of the context require the key of this token, and accept nothing else. False:
 * no memory. */
bool mu_tls_psk_use(SSL_CTX *ctx, struct mu_span token);

#endif

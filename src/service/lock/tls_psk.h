/*
 * TLS with a secret that both ends share, in the place of certificates (RFC 8446, 4.2.11: an
 * external pre-shared key, with Diffie-Hellman: what was recorded stays closed to one who learns
 * the secret later). The secret never goes over the wire; a key is made of it, and each end proves
 * that it has the same one.
 */
#ifndef MU_TLS_PSK_H
#define MU_TLS_PSK_H

#include <stdbool.h>

#include <openssl/ssl.h>

#include "core/span.h"

/** Both ends of the context want the key of this token, and take nothing else. False: no memory. */
bool mu_tls_psk_use(SSL_CTX *ctx, struct mu_span token);

#endif

/*
 * The records of TLS 1.3 (RFC 8446, 5.2) once the handshake is done: one struct is one direction.
 * OpenSSL does the handshake, and would do this as well, but copies each byte twice on either side,
 * which costs as much as two thirds of the cipher. Here bytes are sealed from where they lie to
 * where they are sent from, and opened to where they are to lie.
 */
#ifndef MU_TLS_RECORD_H
#define MU_TLS_RECORD_H

#include <stdbool.h>

#include "core/span.h"

#define MU_TLS_RECORD_HEAD  5
#define MU_TLS_RECORD_EXTRA 22 /* bytes of a record beside what it carries */
/* The longest that a peer may send, without its head: it may pad. */
#define MU_TLS_RECORD_LONGEST (16384 + 256)
#define MU_TLS_SECRET_MAX     48
/* That a key may seal; AES-GCM's bound is half as many more. */
#define MU_TLS_RECORDS_OF_A_KEY (UINT64_C(1) << 24)

/* What a record carries, in the numbers of the protocol. */
enum mu_tls_type {
    MU_TLS_ALERT = 21,
    MU_TLS_HANDSHAKE = 22,
    MU_TLS_DATA = 23,
};

struct ssl_cipher_st; /* OpenSSL's SSL_CIPHER */

struct mu_tls_half {
    const struct ssl_cipher_st *suite;
    void *context; /* NULL: no key */
    bool seals;
    uint8_t secret[MU_TLS_SECRET_MAX];
    size_t secret_len;
    uint8_t iv[12];
    uint64_t count; /* of records with this key */
};

/** Makes key and nonces of a traffic secret, for the suite that was agreed on. MUSTER_ENOMEM. */
int mu_tls_half_init(struct mu_tls_half *h, bool seals, const struct ssl_cipher_st *suite,
                     struct mu_span secret);
/** Also of a zeroed one. The key is wiped. */
void mu_tls_half_fini(struct mu_tls_half *h);
/** The key that follows (RFC 8446, 7.2); the one before it is wiped. MUSTER_ENOMEM: it is of no
 * more use. */
int mu_tls_half_update(struct mu_tls_half *h);

/** Writes a record of in.len + MU_TLS_RECORD_EXTRA bytes. MUSTER_ENOMEM. */
int mu_tls_half_seal(struct mu_tls_half *h, enum mu_tls_type type, struct mu_span in, uint8_t *out);

/** The length of a record, of its head; 0: it is none of this kind. */
size_t mu_tls_record_len(const uint8_t head[MU_TLS_RECORD_HEAD]);
/**
 * Opens a whole record; `out` has room for all but MU_TLS_RECORD_EXTRA bytes of it. What it carries
 * may be shorter than that, and of any type. MUSTER_ECORRUPT: it was not sealed so, and what is in
 * `out` is of no use; MUSTER_ENOMEM.
 */
int mu_tls_half_open(struct mu_tls_half *h, struct mu_span record, uint8_t *out, uint8_t *ret_type,
                     size_t *ret_len);

#endif

/*
 * TLS 1.3 as a stream machine: what the wire brought goes in, what it must carry comes out, and in
 * between are the plain bytes. Both sides show a certificate and want one that their authority
 * signed; or both prove that they have the same token, and there are no certificates.
 *
 *     mu_tls_recv(&t, &in, buf, cap, &len)   takes off `in`; `len` plain bytes are in `buf`
 *     mu_tls_ready(&t)                       both sides are satisfied: plain bytes may be written
 *     mu_tls_write(&t, data, &taken)
 *     mu_tls_end(&t)                         nothing more is written; the peer learns of it
 *     mu_tls_output(&t) mu_tls_sent(&t, n)   bytes for the wire: after each of the above
 *
 * OpenSSL does all of TLS: the handshake and the records. It reads from the span that
 * mu_tls_recv() is lent and writes to the output; there is no buffer between. An idle connection
 * holds no buffer of either.
 *
 * It has a machine's shape and none of its purity: OpenSSL reads files, the time and randomness.
 */
#ifndef MU_TLS_H
#define MU_TLS_H

#include <stdbool.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/span.h"

/* The plain bytes of a record: with that much room, mu_tls_recv() holds none back. */
#define MU_TLS_RECORD_MAX 16384
/* How many records one key may seal before it is changed. AES-GCM's bound is half as many more
 * (RFC 8446, 5.5), and OpenSSL does not watch it. */
#define MU_TLS_RECORDS_OF_A_KEY (UINT64_C(1) << 24)

/* Certificates or a token, not both. */
struct mu_tls_config {
    const char
        *cert;       /* path of our certificate (PEM), those that lead to the authority behind it */
    const char *key; /* path of its private key */
    const char *ca;  /* path of the authority that others' certificates must come from */
    const char *name; /* what the certificate of whoever is dialled must be for. NULL: the host that
                         was dialled; "": any that the authority signed */
    struct mu_span token; /* empty: certificates. Not kept: a key is made of it */
};

/* What all connections share; of one thread, as they are. */
struct mu_tls_context;

/* When certificates end. */
struct mu_tls_end {
    int64_t at_s;   /* since 1970 */
    char path[200]; /* of the file, cut */
};

#define MU_TLS_DATE_CAP 24

/** Reads the files. MUSTER_EINVAL: a path is missing, or there is a token as well; MUSTER_ETLS: a
 * file cannot be read or is not what it should be, the key is another certificate's;
 * MUSTER_ENOMEM. */
int mu_tls_context_new(const struct mu_tls_config *config, struct mu_tls_context **ret,
                       struct mu_errmsg *reterr_msg);
/** Reads them again: connections that begin from now on use what is there now. On an error, which
 * is as above or that the new certificates have ended, all stays as it is. */
int mu_tls_context_renew(struct mu_tls_context *context, const struct mu_tls_config *config,
                         struct mu_errmsg *reterr_msg);
/** Which of our certificate and the authority's ends first, and when. False: there is a token,
 * which has no end. */
bool mu_tls_context_end(const struct mu_tls_context *context, struct mu_tls_end *ret);
/** "2026-11-16 09:30 UTC" */
void mu_tls_format_end(int64_t at_s, char ret_text[MU_TLS_DATE_CAP]);
/** After the last connection's end. NULL is fine. */
void mu_tls_context_free(struct mu_tls_context *context);

struct mu_tls {
    void *ssl;
    const struct mu_tls_context *context;
    struct mu_span *in; /* lent during mu_tls_recv() */
    struct mu_buf out;
    uint64_t sealed; /* records of data with the present key */
    bool dials;
    bool token; /* in the place of certificates */
    bool heard; /* something of the peer */
    bool ready;
    bool peer_ended; /* the peer has said that it writes no more: nothing was cut off its end */
    bool ended;      /* nor do we */
    int err;         /* it has failed */
    struct mu_errmsg why;
    struct mu_errmsg blame; /* the part of it that names a certificate */
};

/** The side that dials names `host`, whom it wants to reach; the side that listens: NULL.
 * MUSTER_ENOMEM. */
int mu_tls_init(struct mu_tls *t, struct mu_tls_context *context, const char *host);
void mu_tls_fini(struct mu_tls *t);

/**
 * Takes bytes off `*in` until there are plain ones, at most `cap` of them in `buf`; with 0 of them,
 * all of `*in` was used, unless the peer has ended (`peer_ended`). What the peer does wrong, or
 * dislikes of us: MUSTER_ETLS, mu_tls_errmsg(), and from then on always; there may still be
 * output, which tells the peer. MUSTER_ENOMEM likewise; MUSTER_ENOTLS, when whoever was dialled
 * answers with something else; and MUSTER_ECONN, when it is too busy or what it said in the
 * handshake was damaged on the way, and it may be tried again.
 */
int mu_tls_recv(struct mu_tls *t, struct mu_span *in, uint8_t *buf, size_t cap, size_t *ret_len);
/** The handshake is done, as far as this side can tell. */
bool mu_tls_ready(const struct mu_tls *t);
/** Takes all but when output is piled up, or a message of the peer's has come only in part: then
 * less, or nothing until more was received. Only when ready, not after mu_tls_end(). Errors as
 * above. */
int mu_tls_write(struct mu_tls *t, struct mu_span data, size_t *ret_taken);
/** Twice is harmless. */
void mu_tls_end(struct mu_tls *t);
struct mu_span mu_tls_output(const struct mu_tls *t);
void mu_tls_sent(struct mu_tls *t, size_t len);
const char *mu_tls_errmsg(const struct mu_tls *t);

#endif

/*
 * TLS 1.3 as a stream machine: what the wire brought goes in, what it must carry comes out, and in
 * between are the plain bytes. Both sides show a certificate and want one that their authority
 * signed; or both prove that they have the same token, and there are no certificates.
 *
 *     mu_tls_recv(&t, &in, buf, cap, &len)   takes off `in`; `len` plain bytes are in `buf`
 *     mu_tls_ready(&t)                       both sides are satisfied: plain bytes may be written
 *     mu_tls_write(&t, data, &taken)
 *     mu_tls_end(&t)                         nothing more is written; the other end learns of it
 *     mu_tls_output(&t) mu_tls_sent(&t, n)   bytes for the wire: after each of the above
 *
 * OpenSSL does all of TLS: the handshake and the records. It reads from the span that mu_tls_recv()
 * is lent and writes to the output; there is no buffer between. An idle connection holds no buffer.
 *
 * It has the shape of a machine but is not pure: OpenSSL reads files, the time and randomness.
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

/** Starts OpenSSL, which would otherwise start with its first use. In exit() it takes itself down
 * after what was given to atexit() later than this call, and before what came earlier. */
void mu_tls_begin(void);

/* Certificates or a token, not both. */
struct mu_tls_config {
    const char *cert; /* path of our certificate (PEM), then those up to the authority */
    const char *key;  /* path of its private key */
    const char *ca;   /* path of the authority that must have signed the other end's certificate */
    const char *name; /* the name that a dialled server's certificate must have. NULL: the host that
                         was dialled; "": any that the authority signed */
    struct mu_span token; /* empty: certificates. Not kept: a key is derived from it */
};

/* What all connections share. It belongs to one thread, as they do. */
struct mu_tls_context;

/* When certificates end. */
struct mu_tls_end {
    int64_t at_s;   /* since 1970 */
    char path[200]; /* of the file, cut */
};

#define MU_TLS_DATE_CAP 24

/** Reads the files. MUSTER_EINVAL: a path is missing, or there is a token as well; MUSTER_ETLS: a
 * file cannot be read or is not what it should be, or the key belongs to another certificate;
 * MUSTER_ENOMEM. */
int mu_tls_context_new(const struct mu_tls_config *config, struct mu_tls_context **ret,
                       struct mu_errmsg *reterr_msg);
/** Reads them again: connections that begin from now on use what is there now. On an error, which
 * is one of the above or that the new certificates have ended, all stays as it is. */
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
    bool token; /* we use a token instead of certificates */
    bool heard; /* something has come from the other end */
    bool ready;
    bool peer_ended; /* the other end has said that it writes no more: its end was not cut off */
    bool ended;      /* we have said so, too */
    int err;         /* it has failed */
    struct mu_errmsg why;
    struct mu_errmsg blame; /* the part of `why` that names a certificate */
};

/** `host` is the one that the dialling side wants to reach; NULL on the listening side.
 * MUSTER_ENOMEM. */
int mu_tls_init(struct mu_tls *t, struct mu_tls_context *context, const char *host);
void mu_tls_fini(struct mu_tls *t);

/**
 * Takes bytes off `*in` until there are plain ones, at most `cap` of them in `buf`; with 0 of them,
 * all of `*in` was used, unless the other end has ended (`peer_ended`). MUSTER_ETLS: the other end
 * broke the protocol or refuses us, as mu_tls_errmsg() says; every later call fails likewise, and
 * there may still be output that tells the other end. MUSTER_ENOMEM likewise. MUSTER_ENOTLS: the
 * server that was dialled answers with something else. MUSTER_ECONN: it is too busy, or the
 * handshake was damaged on the way; the caller may try again.
 */
int mu_tls_recv(struct mu_tls *t, struct mu_span *in, uint8_t *buf, size_t cap, size_t *ret_len);
/** The handshake is done, as far as this side can tell. */
bool mu_tls_ready(const struct mu_tls *t);
/** Takes all of `data`, except while much output waits or a message of the other end has come only
 * in part: then less, or nothing until more was received. Only when ready, not after mu_tls_end().
 * Errors as above. */
int mu_tls_write(struct mu_tls *t, struct mu_span data, size_t *ret_taken);
/** Twice is harmless. */
void mu_tls_end(struct mu_tls *t);
struct mu_span mu_tls_output(const struct mu_tls *t);
void mu_tls_sent(struct mu_tls *t, size_t len);
const char *mu_tls_errmsg(const struct mu_tls *t);

#endif

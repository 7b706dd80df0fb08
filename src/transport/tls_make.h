/*
 * Makes the certificates of a job's own authority: files in a directory, for service/lock/tls.h.
 *
 *     DIR/ca.pem   DIR/ca.key     the authority; its key can let others in
 *     DIR/HOST.pem DIR/HOST.key   for each host, a name or an address in numbers
 *
 * Keys are P-256, and readable by their owner alone.
 */
#ifndef MU_TLS_MAKE_H
#define MU_TLS_MAKE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

/**
 * Makes the authority if it does not exist yet, and then sets `*ret_made`; an existing one signs.
 * Nothing is overwritten: MUSTER_EEXIST. MUSTER_EINVAL (an invalid host), MUSTER_ETLS (the
 * authority cannot be used), a negated errno of a file, MUSTER_ENOMEM; each with a text.
 */
int mu_tls_make(const char *directory, const char *const *hosts, size_t count, uint32_t days,
                bool *ret_made, struct mu_errmsg *reterr_msg);

/* The size of a token that is made here, with its terminator: 32 random bytes in base64url. */
#define MU_TLS_TOKEN_CAP 44

/** False: the system has no random bytes. */
bool mu_tls_make_token(char ret_token[MU_TLS_TOKEN_CAP]);

#endif

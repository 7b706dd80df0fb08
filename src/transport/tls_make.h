/*
 * Makes the certificates of a job's own authority: files in a directory, for service/lock/tls.h.
 *
 *     DIR/ca.pem   DIR/ca.key     the authority; who has the key can let others in
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
 * The authority is made if it is not there yet, `*ret_made` then; an existing one signs. Nothing is
 * overwritten: MUSTER_EEXIST. MUSTER_EINVAL (a host that cannot be one), MUSTER_ETLS (the authority
 * cannot be used), a negated errno of a file, MUSTER_ENOMEM; in words.
 */
int mu_tls_make(const char *directory, const char *const *hosts, size_t count, uint32_t days,
                bool *ret_made, struct mu_errmsg *reterr_msg);

/* Of a token that is made here, with its end: 32 random bytes in letters for names and URLs. */
#define MU_TLS_TOKEN_CAP 44

/** False: the system has no random bytes. */
bool mu_tls_make_token(char ret_token[MU_TLS_TOKEN_CAP]);

#endif

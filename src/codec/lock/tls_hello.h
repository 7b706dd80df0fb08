/*
 * The length of TLS's first message: whether a hello has come whole, before anything is allocated
 * for a client without a credential. OpenSSL reads what it says.
 */
#ifndef MU_TLS_HELLO_H
#define MU_TLS_HELLO_H

#include "core/span.h"

/* The longest hello that is accepted, with the heads of its records. Ours has some 300 bytes; those
 * of browsers, which we do not serve, 2 KB. */
#define MU_TLS_HELLO_MAX 4096

/** 1: it is whole; 0: more must come; MUSTER_ECORRUPT: it is not a hello, or too long. */
int mu_tls_hello_scan(struct mu_span in);

#endif

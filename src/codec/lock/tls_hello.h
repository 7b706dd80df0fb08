/*
 * The first message of TLS, as far as its length: whether a stranger's hello has come whole, before
 * anything is made for it. What it says is OpenSSL's to read.
 */
#ifndef MU_TLS_HELLO_H
#define MU_TLS_HELLO_H

#include "core/span.h"

/* The longest that is taken, with the heads of its records. Ours has some 300 bytes; those of
 * browsers, which we do not serve, 2 KB. */
#define MU_TLS_HELLO_MAX 4096

/** 1: it is whole; 0: more of it is to come; MUSTER_ECORRUPT: it is no hello, or too long. */
int mu_tls_hello_scan(struct mu_span in);

#endif

/*
 * The key of a status page. A browser sends it as it is, as a password, so it must not be the job's
 * token: it is derived from the token, in letters, and reveals nothing of the token or of the key
 * that secures connections.
 */
#ifndef MU_PAGE_KEY_H
#define MU_PAGE_KEY_H

#include "core/span.h"

#define MU_PAGE_KEY_CAP 65 /* with its terminator */

void mu_page_key(struct mu_span token, char ret_text[MU_PAGE_KEY_CAP]);

#endif

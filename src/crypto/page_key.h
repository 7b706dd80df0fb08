/*
 * What shows the job's token where it goes over the wire as it is, as a password does: to a status
 * page. A key that is made of the token, in letters; it tells nothing of the token, nor of the key
 * by which connections are secured.
 */
#ifndef MU_PAGE_KEY_H
#define MU_PAGE_KEY_H

#include "core/span.h"

#define MU_PAGE_KEY_CAP 65 /* with its end */

void mu_page_key(struct mu_span token, char ret_text[MU_PAGE_KEY_CAP]);

#endif

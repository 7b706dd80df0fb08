/*
 * The copies of one rank's versions that an agent holds for another node: two places, of which one
 * has a whole version while the next is loaded into the other.
 *
 *     place = mu_copies_next(&c);            which is overwritten next
 *     if (mu_copies_wants(&c, &head))        the source has something newer
 *         mu_copies_begin(&c, &head);        from here on that place has nothing
 *         mu_copies_end(&c, true);           from here on it has this version
 *
 * What `whole` says is what is told to others, so it is true at any time. When the workers of a
 * round have begun from some version, what is newer is of no use: not all ranks had it.
 *
 *     mu_copies_forget(&c, &version);
 */
#ifndef MU_COPIES_H
#define MU_COPIES_H

#include "codec/state/kept.h"

#define MU_COPIES_PLACES 2u

struct mu_copies {
    struct mu_kept_head heads[MU_COPIES_PLACES]; /* it counts if `whole` */
    bool whole[MU_COPIES_PLACES];
    bool loading;
    unsigned into; /* which place, if `loading` */
    struct mu_kept_head coming;
};

/** The place without a whole version, or with the older one. */
unsigned mu_copies_next(const struct mu_copies *c);
/** The newest whole version; NULL: there is none. */
const struct mu_kept_head *mu_copies_newest(const struct mu_copies *c);
/** Whether this version is newer than all that are there, and nothing is being loaded. */
bool mu_copies_wants(const struct mu_copies *c, const struct mu_kept_head *head);
/** Returns the place. Nothing may be being loaded. */
unsigned mu_copies_begin(struct mu_copies *c, const struct mu_kept_head *head);
/** Forgets what is newer than this version; NULL: everything. Nothing may be being loaded. */
void mu_copies_forget(struct mu_copies *c, const struct mu_kept_version *version);
/** It is all there, and was verified; or it never will be. */
void mu_copies_end(struct mu_copies *c, bool whole);

#endif

/*
 * "Did you mean": the name that a mistyped word was most likely meant to be.
 *
 *     struct mu_guess g = {.word = word};
 *     mu_guess_try(&g, name)                each name that there is
 *     g.best                                the nearest one; NULL: no name is near
 */
#ifndef MU_GUESS_H
#define MU_GUESS_H

#include "core/span.h"

struct mu_guess {
    struct mu_span word; /* what the user wrote */
    const char *best;    /* borrowed from mu_guess_try() */
    size_t distance;     /* private: how many letters of it are wrong */
};

/** Considers a name. It is near if one to three letters of the word, depending on its length, are
 * wrong, missing, added or swapped, or if one of the two begins with the other. */
void mu_guess_try(struct mu_guess *g, const char *name);

#endif

/*
 * URLs as muster writes them: scheme, authority, path and query, percent-decoded. Bounded: a URL of
 * more than MU_URL_MAX bytes or with more than MU_URL_PARAMS_MAX parameters is refused.
 */
#ifndef MU_URL_H
#define MU_URL_H

#include <stddef.h>

#include "core/err.h"

#define MU_URL_MAX        2048
#define MU_URL_PARAMS_MAX 16
#define MU_URL_ESCAPED    3 /* bytes of an escaped one */

struct mu_url {
    const char *scheme;    /* lower case */
    const char *authority; /* "" if there is none */
    const char *path;      /* decoded, with its leading slash; "" if there is none */
    size_t param_count;
    struct {
        const char *name;
        const char *value;
    } params[MU_URL_PARAMS_MAX]; /* decoded */
    char text[MU_URL_MAX + 8];   /* what the pointers point into: the struct must not be moved */
};

/** MUSTER_EURL, with the reason in `reterr_msg`. A decoded NUL is refused. */
int mu_url_parse(struct mu_url *url, const char *text, struct mu_errmsg *reterr_msg);
/** The value of a parameter, or NULL. */
const char *mu_url_param(const struct mu_url *url, const char *name);
/** Writes `c` to `at`, as a percent sign and two digits unless it is a letter, a digit or one of
 * `plain`, and returns the place behind it. Needs room for MU_URL_ESCAPED bytes. */
char *mu_url_escape(char *at, char c, const char *plain);

#endif

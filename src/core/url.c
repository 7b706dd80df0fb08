#include "core/url.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    if (c >= 'A' && c <= 'F') {
        return c - 'A' + 10;
    }
    return -1;
}

/* Decodes %XX in place; false for a bad escape or an encoded NUL. */
static bool decode(char *s)
{
    char *out = s;

    while (*s != '\0') {
        if (*s == '%') {
            int hi = hex_digit(s[1]);
            int lo = hi < 0 ? -1 : hex_digit(s[2]);

            if (lo < 0 || (hi == 0 && lo == 0)) {
                return false;
            }
            *out++ = (char)(hi << 4 | lo);
            s += 3;
        } else {
            *out++ = *s++;
        }
    }
    *out = '\0';
    return true;
}

static bool is_scheme_char(char c, bool first)
{
    bool alpha = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');

    return alpha || (!first && ((c >= '0' && c <= '9') || c == '+' || c == '-' || c == '.'));
}

/* Cuts the scheme off the front; returns what follows its colon, or NULL. */
static char *cut_scheme(struct mu_url *url, char *text)
{
    char *p = text;

    while (is_scheme_char(*p, p == text)) {
        if (*p >= 'A' && *p <= 'Z') {
            *p = (char)(*p - 'A' + 'a');
        }
        p++;
    }
    if (p == text || *p != ':') {
        return NULL;
    }
    *p = '\0';
    url->scheme = text;
    return p + 1;
}

static int cut_params(struct mu_url *url, char *query, struct mu_errmsg *reterr_msg)
{
    while (query != NULL && *query != '\0') {
        char *next = strchr(query, '&');
        char *value;

        if (next != NULL) {
            *next++ = '\0';
        }
        value = strchr(query, '=');
        if (value == NULL || value == query) {
            return mu_err(reterr_msg, MUSTER_EURL, "the URL's parameter \"%.64s\" has no value",
                          query);
        }
        *value++ = '\0';
        if (url->param_count == MU_URL_PARAMS_MAX) {
            return mu_err(reterr_msg, MUSTER_EURL, "the URL has more than %d parameters",
                          MU_URL_PARAMS_MAX);
        }
        if (!decode(query) || !decode(value)) {
            return mu_err(reterr_msg, MUSTER_EURL, "the URL has an invalid %%XX escape");
        }
        url->params[url->param_count].name = query;
        url->params[url->param_count].value = value;
        url->param_count++;
        query = next;
    }
    return 0;
}

int mu_url_parse(struct mu_url *url, const char *text, struct mu_errmsg *reterr_msg)
{
    size_t len = strlen(text);
    char *rest;
    char *query;

    *url = (struct mu_url){.scheme = "", .authority = "", .path = ""};
    if (len > MU_URL_MAX) {
        return mu_err(reterr_msg, MUSTER_EURL, "the URL is longer than %d bytes", MU_URL_MAX);
    }
    /* The authority gets a terminator of its own, so the copy leaves one byte between it and the
     * path: everything after the scheme is kept one byte to the right. */
    memcpy(url->text, text, len + 1);
    rest = cut_scheme(url, url->text);
    if (rest == NULL) {
        return mu_err(reterr_msg, MUSTER_EURL,
                      "\"%.64s\" is not a URL; a store is named like tcp://HOST:PORT, "
                      "etcd://HOST:PORT/PREFIX, file:///PATH or hash:",
                      text);
    }
    query = strchr(rest, '?');
    if (query != NULL) {
        *query++ = '\0';
    }
    if (rest[0] == '/' && rest[1] == '/') {
        char *path = strchr(rest + 2, '/');

        url->authority = rest + 2;
        if (path != NULL) {
            size_t path_len = strlen(path);

            if (query != NULL) {
                path_len += 1 + strlen(query);
                query++;
            }
            memmove(path + 1, path, path_len + 1);
            *path = '\0';
            url->path = path + 1;
            if (!decode(path + 1)) {
                return mu_err(reterr_msg, MUSTER_EURL, "the URL has an invalid %%XX escape");
            }
        }
    } else {
        url->path = rest;
        if (!decode(rest)) {
            return mu_err(reterr_msg, MUSTER_EURL, "the URL has an invalid %%XX escape");
        }
    }
    return cut_params(url, query, reterr_msg);
}

const char *mu_url_param(const struct mu_url *url, const char *name)
{
    for (size_t i = 0; i < url->param_count; i++) {
        if (strcmp(url->params[i].name, name) == 0) {
            return url->params[i].value;
        }
    }
    return NULL;
}

char *mu_url_escape(char *at, char c, const char *plain)
{
    static const char hex[] = "0123456789ABCDEF";

    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
        (c != '\0' && strchr(plain, c) != NULL)) {
        *at++ = c;
    } else {
        *at++ = '%';
        *at++ = hex[(uint8_t)c >> 4];
        *at++ = hex[(uint8_t)c & 15];
    }
    return at;
}

/*
 * A reader of JSON text, one token at a time: no tree, no memory, no recursion. For small texts of
 * others, such as an agent's role or a worker's error file.
 *
 *     mu_json_init(&j, text);
 *     while ((err = mu_json_next(&j, &t)) == 0) { t.type, t.depth, t.text }
 *     MUSTER_ENOENT: the text is over, and was well-formed
 *
 * A member of an object comes as a KEY and then its value. Depth counts the containers around a
 * token; a container's begin and end have the depth outside it.
 */
#ifndef MU_JSON_H
#define MU_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/span.h"

#define MU_JSON_DEPTH_MAX 64

enum mu_json_type {
    MU_JSON_OBJECT = 1, /* '{' */
    MU_JSON_OBJECT_END,
    MU_JSON_ARRAY, /* '[' */
    MU_JSON_ARRAY_END,
    MU_JSON_KEY,
    MU_JSON_STRING,
    MU_JSON_NUMBER,
    MU_JSON_TRUE,
    MU_JSON_FALSE,
    MU_JSON_NULL,
};

struct mu_json_token {
    enum mu_json_type type;
    unsigned depth;
    struct mu_span text; /* lent: a number as written, a string between its quotes, undecoded */
};

struct mu_json {
    struct mu_span in;
    size_t at;
    unsigned depth;
    uint64_t objects; /* a bit for each container around: set if it is an object */
    unsigned expect;
};

void mu_json_init(struct mu_json *j, struct mu_span in);
/** The next token. MUSTER_ENOENT: none is left; MUSTER_EPROTO: it is not JSON, or too deep. */
int mu_json_next(struct mu_json *j, struct mu_json_token *ret_token);

/**
 * Decodes the text of a KEY or STRING into `out`, with a zero behind it. Returns the length it has
 * without that, which is more than fits if it is at least `cap`: it was cut then. A half of a
 * surrogate pair becomes U+FFFD.
 */
size_t mu_json_decode(struct mu_span text, char *out, size_t cap);
/** Whether the text of a KEY or STRING is the plain ASCII `text`. */
bool mu_json_is(struct mu_span text, const char *plain);
/** A whole number that fits; false otherwise. */
bool mu_json_int(struct mu_span text, int64_t *ret);
/**
 * Writes `in`, as UTF-8, as a JSON string with its quotes. Returns the length, which is more than
 * `cap` if it did not fit: nothing behind `cap` is written then. Bytes that are not ASCII stay.
 */
size_t mu_json_quote(struct mu_span in, char *out, size_t cap);

#endif

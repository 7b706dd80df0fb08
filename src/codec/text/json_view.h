/*
 * JSON read in place. A text is checked once, as a whole; values are then spans of that text, so
 * nothing is allocated, and a value that is not asked for costs nothing.
 *
 * Not a general library: it reads what servers and agents send to us. The depth is bounded, so that
 * a hostile text costs no stack. Names of members are compared as they are written, without
 * decoding escapes.
 *
 * Why not jansson, which writes our --json: its allocator is one for the whole process, which we
 * share with the program that loads us, so a test could not make its allocations fail; and it
 * copies every value, which here are mostly base64 that is decoded next.
 */
#ifndef MU_JV_H
#define MU_JV_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/span.h"

#define MU_JV_DEPTH_MAX 64

/** Whether the text is one JSON value with nothing but white space around it, and not too deep. */
bool mu_jv_valid(struct mu_span text);

/* The rest is for values of a valid text: their spans begin with the first byte of the value and
 * end with its last. */

/** The one value of a valid text. */
struct mu_span mu_jv_root(struct mu_span text);

/* A walk over the members of an object or the elements of an array. */
struct mu_jv_walk {
    struct mu_span rest;
    bool object;
};

/** A value that is neither an object nor an array has no members. */
struct mu_jv_walk mu_jv_walk(struct mu_span value);
/** Takes the next one: false at the end. `ret_name` (without quotes, as written) may be NULL. */
bool mu_jv_next(struct mu_jv_walk *w, struct mu_span *ret_name, struct mu_span *ret_value);
/** The first member of that name, or an empty span. */
struct mu_span mu_jv_member(struct mu_span object, const char *name);

bool mu_jv_is_object(struct mu_span value);
bool mu_jv_is_string(struct mu_span value);
bool mu_jv_is_true(struct mu_span value);
/** Reads a whole number, written as one or in quotes; 0 and false for anything else. */
bool mu_jv_int(struct mu_span value, int64_t *ret_number);
/**
 * Reads what is between the quotes: a span of the text if it has no escape, otherwise appended to
 * `out`, which must have room for as many bytes as the value has. False: it is not a string, or has
 * an invalid escape (a half of a surrogate pair).
 */
bool mu_jv_string(struct mu_span value, struct mu_buf *out, struct mu_span *ret_text);

/* --- members by name ---------------------------------------------------------------------------*/

/* A member, its kind, and where its value goes. */
struct mu_jv_field {
    const char *name;
    enum {
        MU_JV_INT = 1, /* int64_t */
        MU_JV_TEXT,    /* struct mu_span: a string */
        MU_JV_BASE64,  /* struct mu_span: the decoded bytes of a string in base64 */
        MU_JV_TRUE,    /* bool: whether it is `true` */
        MU_JV_ANY,     /* struct mu_span: the value as it is */
    } kind;
    void *to;
};

/**
 * Reads a member, if it is one of the fields: 1; 0: it is not. MUSTER_EPROTO: it is of the wrong
 * kind. Decoded strings go to `out`, which must have room for twice as many bytes as the value has.
 */
int mu_jv_read(const struct mu_jv_field *fields, size_t count, struct mu_span name,
               struct mu_span value, struct mu_buf *out);
/** Reads all members of an object that are among the fields; others are skipped. MUSTER_EPROTO,
 * also if it is not an object. */
int mu_jv_read_all(struct mu_span object, const struct mu_jv_field *fields, size_t count,
                   struct mu_buf *out);

/* --- splitting -----------------------------------------------------------------------------------
 *
 * A stream of objects, one after the other, is split by brackets and quotes alone. Each piece is
 * then a text to check.
 */
struct mu_jv_split {
    uint32_t depth;
    bool quoted;
    bool escaped;
    bool broken; /* something other than an object, or too deep: all later input is refused */
};

/**
 * Goes on with `in`. Returns how many bytes of it belong to the current object (or to the white
 * space before it); `*ret_whole` says that the last of them ends it. MUSTER_EPROTO.
 */
int mu_jv_split(struct mu_jv_split *s, struct mu_span in, size_t *ret_used, bool *ret_whole);

#endif

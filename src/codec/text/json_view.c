#include "codec/text/json_view.h"

#include <muster/error.h>

#include "codec/text/base64.h"
#include "codec/text/json_string.h"
#include "core/assert.h"
#include "core/utf8.h"

static bool is_space(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

static size_t skip_space(struct mu_span s, size_t at)
{
    while (at < s.len && is_space(s.data[at])) {
        at++;
    }
    return at;
}

static bool is_hex_digit(uint8_t c)
{
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* --- checking: each returns the place after what it read, or 0 -------------------------------- */

static size_t read_string(struct mu_span s, size_t at)
{
    if (at >= s.len || s.data[at] != '"') {
        return 0;
    }
    for (at++; at < s.len; at++) {
        uint8_t c = s.data[at];

        if (c == '"') {
            return at + 1;
        }
        if (c < 0x20) {
            return 0;
        }
        if (c != '\\') {
            continue;
        }
        at++;
        if (at >= s.len) {
            return 0;
        }
        if (s.data[at] == 'u') {
            for (int i = 0; i < 4; i++) {
                at++;
                if (at >= s.len || !is_hex_digit(s.data[at])) {
                    return 0;
                }
            }
        } else if (memchr("\"\\/bfnrt", s.data[at], 8) == NULL) {
            return 0;
        }
    }
    return 0;
}

static size_t read_digits(struct mu_span s, size_t at)
{
    size_t from = at;

    while (at < s.len && is_digit(s.data[at])) {
        at++;
    }
    return at == from ? 0 : at;
}

static size_t read_number(struct mu_span s, size_t at)
{
    size_t first = at + (s.data[at] == '-' ? 1 : 0);

    at = read_digits(s, first);
    if (at == 0 || (s.data[first] == '0' && at != first + 1)) {
        return 0;
    }
    if (at < s.len && s.data[at] == '.') {
        at = read_digits(s, at + 1);
    }
    if (at != 0 && at < s.len && (s.data[at] == 'e' || s.data[at] == 'E')) {
        at++;
        if (at < s.len && (s.data[at] == '+' || s.data[at] == '-')) {
            at++;
        }
        at = read_digits(s, at);
    }
    return at;
}

static size_t read_word(struct mu_span s, size_t at, const char *word)
{
    size_t len = strlen(word);

    return s.len - at >= len && memcmp(s.data + at, word, len) == 0 ? at + len : 0;
}

/* Reads anything but a bracket. */
static size_t read_scalar(struct mu_span s, size_t at)
{
    switch (s.data[at]) {
    case '"':
        return read_string(s, at);
    case 't':
        return read_word(s, at, "true");
    case 'f':
        return read_word(s, at, "false");
    case 'n':
        return read_word(s, at, "null");
    default:
        return s.data[at] == '-' || is_digit(s.data[at]) ? read_number(s, at) : 0;
    }
}

/* Reads a member's name and its colon. */
static size_t read_name(struct mu_span s, size_t at)
{
    at = read_string(s, skip_space(s, at));
    if (at == 0) {
        return 0;
    }
    at = skip_space(s, at);
    return at < s.len && s.data[at] == ':' ? at + 1 : 0;
}

/* The open brackets, one bit for each level: 1 for an object. */
struct levels {
    uint64_t objects;
    unsigned depth;
};

static bool in_object(const struct levels *l)
{
    return l->depth > 0 && (l->objects & 1) != 0;
}

/* Closes what can be closed at `at` and goes on to the place of the next value; 0: malformed. */
static size_t end_value(struct mu_span s, size_t at, struct levels *l)
{
    while (l->depth > 0) {
        at = skip_space(s, at);
        if (at >= s.len) {
            return 0;
        }
        if (s.data[at] == ',') {
            at++;
            return in_object(l) ? read_name(s, at) : at;
        }
        if (s.data[at] != (in_object(l) ? '}' : ']')) {
            return 0;
        }
        at++;
        l->objects >>= 1;
        l->depth--;
    }
    return at;
}

/* Opens a bracket; `*ret_empty` if it closes at once; the place is then its end. */
static size_t open_bracket(struct mu_span s, size_t at, struct levels *l, bool *ret_empty)
{
    bool object = s.data[at] == '{';
    size_t inside = skip_space(s, at + 1);

    if (l->depth == MU_JV_DEPTH_MAX) {
        return 0;
    }
    *ret_empty = inside < s.len && s.data[inside] == (object ? '}' : ']');
    l->objects = l->objects << 1 | (object ? 1 : 0);
    l->depth++;
    if (*ret_empty) {
        return inside;
    }
    return object ? read_name(s, inside) : inside;
}

bool mu_jv_valid(struct mu_span s)
{
    struct levels l = {0};
    size_t at = 0;

    for (;;) {
        bool empty = true;

        at = skip_space(s, at);
        if (at >= s.len) {
            return false;
        }
        if (s.data[at] == '{' || s.data[at] == '[') {
            at = open_bracket(s, at, &l, &empty);
            if (at != 0 && !empty) {
                continue;
            }
        } else {
            at = read_scalar(s, at);
        }
        at = at == 0 ? 0 : end_value(s, at, &l);
        if (at == 0) {
            return false;
        }
        if (l.depth == 0) {
            return skip_space(s, at) == s.len;
        }
    }
}

/* --- walking: the text is known to be valid --------------------------------------------------- */

/* The place after a string that begins at `at`. Strings are long, in base64, and passed once for
 * each level they are in: so this only looks for their end. */
static size_t pass_string(struct mu_span s, size_t at)
{
    size_t from = at + 1;
    size_t escapes;

    do {
        const uint8_t *end = memchr(s.data + at + 1, '"', s.len - at - 1);

        at = (size_t)(end - s.data);
        escapes = 0;
        while (at - escapes > from && s.data[at - escapes - 1] == '\\') {
            escapes++;
        }
    } while (escapes % 2 != 0);
    return at + 1;
}

static size_t pass_value(struct mu_span s, size_t at)
{
    size_t depth = 0;

    do {
        uint8_t c = s.data[at];

        if (c == '"') {
            at = pass_string(s, at);
        } else if (c == '{' || c == '[') {
            depth++;
            at++;
        } else if (c == '}' || c == ']') {
            depth--;
            at++;
        } else if (depth > 0) {
            at++;
        } else {
            while (at < s.len && s.data[at] != ',' && s.data[at] != '}' && s.data[at] != ']' &&
                   !is_space(s.data[at])) {
                at++;
            }
        }
    } while (depth > 0);
    return at;
}

struct mu_span mu_jv_root(struct mu_span text)
{
    size_t at = skip_space(text, 0);

    return mu_span(text.data + at, pass_value(text, at) - at);
}

struct mu_jv_walk mu_jv_walk(struct mu_span value)
{
    if (value.len < 2 || (value.data[0] != '{' && value.data[0] != '[')) {
        return (struct mu_jv_walk){0};
    }
    return (struct mu_jv_walk){
        .rest = mu_span(value.data + 1, value.len - 2),
        .object = value.data[0] == '{',
    };
}

bool mu_jv_next(struct mu_jv_walk *w, struct mu_span *ret_name, struct mu_span *ret_value)
{
    size_t at = skip_space(w->rest, 0);
    size_t end;

    if (at < w->rest.len && w->rest.data[at] == ',') {
        at = skip_space(w->rest, at + 1);
    }
    if (at >= w->rest.len) {
        return false;
    }
    if (w->object) {
        end = pass_string(w->rest, at);
        if (ret_name != NULL) {
            *ret_name = mu_span(w->rest.data + at + 1, end - at - 2);
        }
        at = skip_space(w->rest, end);
        at = skip_space(w->rest, at + 1);
    }
    end = pass_value(w->rest, at);
    *ret_value = mu_span(w->rest.data + at, end - at);
    w->rest = mu_span_skip(w->rest, end);
    return true;
}

struct mu_span mu_jv_member(struct mu_span object, const char *name)
{
    struct mu_jv_walk w = mu_jv_walk(object);
    struct mu_span wanted = mu_span_str(name);
    struct mu_span key;
    struct mu_span value;

    while (w.object && mu_jv_next(&w, &key, &value)) {
        if (mu_span_eq(key, wanted)) {
            return value;
        }
    }
    return (struct mu_span){0};
}

bool mu_jv_is_object(struct mu_span value)
{
    return value.len > 0 && value.data[0] == '{';
}

bool mu_jv_is_string(struct mu_span value)
{
    return value.len > 0 && value.data[0] == '"';
}

bool mu_jv_is_true(struct mu_span value)
{
    return mu_span_eq(value, MU_SPAN_LIT("true"));
}

bool mu_jv_int(struct mu_span value, int64_t *ret_number)
{
    uint64_t n = 0;
    size_t at = 0;
    bool minus;

    *ret_number = 0;
    if (value.len >= 2 && value.data[0] == '"') {
        value = mu_span(value.data + 1, value.len - 2);
    }
    minus = value.len > 0 && value.data[0] == '-';
    at = minus ? 1 : 0;
    if (at == value.len) {
        return false;
    }
    for (; at < value.len; at++) {
        uint64_t digit = (uint64_t)(value.data[at] - '0');

        if (!is_digit(value.data[at]) || n > (UINT64_MAX - digit) / 10) {
            return false;
        }
        n = n * 10 + digit;
    }
    if (n > (uint64_t)INT64_MAX + (minus ? 1 : 0)) {
        return false;
    }
    *ret_number = (int64_t)(minus ? ~n + 1 : n);
    return true;
}

/* --- strings ---------------------------------------------------------------------------------- */

bool mu_jv_string(struct mu_span value, struct mu_buf *out, struct mu_span *ret_text)
{
    struct mu_span s;
    size_t from;

    if (value.len < 2 || value.data[0] != '"') {
        return false;
    }
    s = mu_span(value.data + 1, value.len - 2);
    if (s.len == 0 || memchr(s.data, '\\', s.len) == NULL) {
        *ret_text = s;
        return true;
    }
    MU_ASSERT(out->head + out->len + s.len <= out->cap);
    from = out->len;
    for (size_t at = 0; at < s.len;) {
        uint8_t bytes[4];
        uint32_t c;

        if (s.data[at] != '\\') {
            mu_buf_put_u8(out, s.data[at++]);
            continue;
        }
        c = mu_json_escape(s, &at);
        if (c == MU_JSON_HALF) {
            out->len = from;
            return false;
        }
        mu_buf_put(out, mu_span(bytes, mu_utf8_put(bytes, c)));
    }
    *ret_text = mu_span_skip(mu_buf_span(out), from);
    return true;
}

/* --- members by name -------------------------------------------------------------------------- */

static bool read_base64(struct mu_span value, struct mu_buf *out, struct mu_span *ret)
{
    struct mu_span text;
    size_t from;

    if (!mu_jv_string(value, out, &text)) {
        return false;
    }
    from = out->len;
    if (mu_base64_decode(out, text) != 0) {
        return false;
    }
    *ret = mu_span_skip(mu_buf_span(out), from);
    return true;
}

int mu_jv_read(const struct mu_jv_field *fields, size_t count, struct mu_span name,
               struct mu_span value, struct mu_buf *out)
{
    bool good = true;

    while (count > 0 && !mu_span_eq(name, mu_span_str(fields->name))) {
        fields++;
        count--;
    }
    if (count == 0) {
        return 0;
    }
    switch (fields->kind) {
    case MU_JV_INT:
        good = mu_jv_int(value, fields->to);
        break;
    case MU_JV_TEXT:
        good = mu_jv_string(value, out, fields->to);
        break;
    case MU_JV_BASE64:
        good = read_base64(value, out, fields->to);
        break;
    case MU_JV_TRUE:
        *(bool *)fields->to = mu_jv_is_true(value);
        break;
    case MU_JV_ANY:
        *(struct mu_span *)fields->to = value;
        break;
    }
    return good ? 1 : MUSTER_EPROTO;
}

int mu_jv_read_all(struct mu_span object, const struct mu_jv_field *fields, size_t count,
                   struct mu_buf *out)
{
    struct mu_jv_walk w = mu_jv_walk(object);
    struct mu_span name;
    struct mu_span value;
    int rc = w.object ? 0 : MUSTER_EPROTO;

    while (rc >= 0 && mu_jv_next(&w, &name, &value)) {
        rc = mu_jv_read(fields, count, name, value, out);
    }
    return rc < 0 ? rc : 0;
}

/* --- splitting -------------------------------------------------------------------------------- */

int mu_jv_split(struct mu_jv_split *s, struct mu_span in, size_t *ret_used, bool *ret_whole)
{
    *ret_used = 0;
    *ret_whole = false;
    for (size_t at = 0; at < in.len && !s->broken; at++) {
        uint8_t c = in.data[at];

        if (s->quoted) {
            s->quoted = s->escaped || c != '"';
            s->escaped = !s->escaped && c == '\\';
        } else if (c == '"') {
            s->quoted = s->depth > 0;
            s->broken = s->depth == 0;
        } else if (c == '{' || (c == '[' && s->depth > 0)) {
            s->broken = s->depth == MU_JV_DEPTH_MAX;
            s->depth++;
        } else if (c == '}' || c == ']') {
            s->broken = s->depth == 0;
            if (s->depth == 1) {
                s->depth = 0;
                *ret_used = at + 1;
                *ret_whole = true;
                return 0;
            }
            s->depth--;
        } else if (s->depth == 0 && !is_space(c)) {
            s->broken = true;
        }
    }
    if (s->broken) {
        return MUSTER_EPROTO;
    }
    *ret_used = in.len;
    return 0;
}

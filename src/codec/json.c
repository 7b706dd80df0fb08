#include "codec/json.h"

#include <muster/error.h>

/* What may come next. */
enum {
    EXPECT_VALUE = 1 << 0,
    EXPECT_KEY = 1 << 1,
    EXPECT_COMMA = 1 << 2,
    EXPECT_END = 1 << 3, /* of the container */
    EXPECT_NOTHING = 1 << 4,
};

void mu_json_init(struct mu_json *j, struct mu_span in)
{
    *j = (struct mu_json){.in = in, .expect = EXPECT_VALUE};
}

static bool is_blank(uint8_t c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static bool is_digit(uint8_t c)
{
    return c >= '0' && c <= '9';
}

static int hex_value(uint8_t c)
{
    if (is_digit(c)) {
        return c - '0';
    }
    c |= 0x20;
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static uint8_t byte_at(const struct mu_json *j, size_t at)
{
    return at < j->in.len ? j->in.data[at] : 0;
}

static bool in_object(const struct mu_json *j)
{
    return j->depth != 0 && (j->objects >> (j->depth - 1) & 1) != 0;
}

static void expect_after_value(struct mu_json *j)
{
    j->expect = j->depth == 0 ? EXPECT_NOTHING : EXPECT_COMMA | EXPECT_END;
}

/* The string that begins at `at`, behind its first quote. The next byte is behind its last one. */
static int read_string(struct mu_json *j, struct mu_span *ret)
{
    size_t start = j->at + 1;
    size_t at = start;

    for (; byte_at(j, at) != '"'; at++) {
        uint8_t c = byte_at(j, at);

        if (c < 0x20) {
            return MUSTER_EPROTO; /* the end of the text, too */
        }
        if (c != '\\') {
            continue;
        }
        c = byte_at(j, ++at);
        if (c == 'u') {
            for (int i = 0; i < 4; i++) {
                if (hex_value(byte_at(j, ++at)) < 0) {
                    return MUSTER_EPROTO;
                }
            }
        } else if (c == 0 || strchr("\"\\/bfnrt", c) == NULL) {
            return MUSTER_EPROTO;
        }
    }
    *ret = mu_span(j->in.data + start, at - start);
    j->at = at + 1;
    return 0;
}

static size_t skip_digits(const struct mu_json *j, size_t at)
{
    while (is_digit(byte_at(j, at))) {
        at++;
    }
    return at;
}

static int read_number(struct mu_json *j, struct mu_span *ret)
{
    size_t start = j->at;
    size_t at = start + (byte_at(j, start) == '-');
    size_t digits = at;

    at = byte_at(j, at) == '0' ? at + 1 : skip_digits(j, at);
    if (at == digits) {
        return MUSTER_EPROTO;
    }
    if (byte_at(j, at) == '.') {
        digits = ++at;
        at = skip_digits(j, at);
        if (at == digits) {
            return MUSTER_EPROTO;
        }
    }
    if ((byte_at(j, at) | 0x20) == 'e') {
        at++;
        at += byte_at(j, at) == '+' || byte_at(j, at) == '-';
        digits = at;
        at = skip_digits(j, at);
        if (at == digits) {
            return MUSTER_EPROTO;
        }
    }
    *ret = mu_span(j->in.data + start, at - start);
    j->at = at;
    return 0;
}

static int read_word(struct mu_json *j, struct mu_json_token *t)
{
    static const struct {
        struct mu_span text;
        enum mu_json_type type;
    } words[] = {{{(const uint8_t *)"true", 4}, MU_JSON_TRUE},
                 {{(const uint8_t *)"false", 5}, MU_JSON_FALSE},
                 {{(const uint8_t *)"null", 4}, MU_JSON_NULL}};

    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (mu_span_starts_with(mu_span_skip(j->in, j->at), words[i].text)) {
            t->type = words[i].type;
            t->text = words[i].text;
            j->at += words[i].text.len;
            return 0;
        }
    }
    return MUSTER_EPROTO;
}

static int open_container(struct mu_json *j, struct mu_json_token *t, bool object)
{
    if (j->depth == MU_JSON_DEPTH_MAX) {
        return MUSTER_EPROTO;
    }
    t->type = object ? MU_JSON_OBJECT : MU_JSON_ARRAY;
    j->objects &= ~(UINT64_C(1) << j->depth);
    j->objects |= (uint64_t)object << j->depth;
    j->depth++;
    j->at++;
    j->expect = (object ? EXPECT_KEY : EXPECT_VALUE) | EXPECT_END;
    return 0;
}

static int close_container(struct mu_json *j, struct mu_json_token *t, bool object)
{
    if ((j->expect & EXPECT_END) == 0 || in_object(j) != object) {
        return MUSTER_EPROTO;
    }
    j->depth--;
    j->at++;
    t->type = object ? MU_JSON_OBJECT_END : MU_JSON_ARRAY_END;
    t->depth = j->depth;
    expect_after_value(j);
    return 0;
}

static void skip_blanks(struct mu_json *j)
{
    while (j->at < j->in.len && is_blank(j->in.data[j->at])) {
        j->at++;
    }
}

static int read_key(struct mu_json *j, struct mu_json_token *t)
{
    int err = byte_at(j, j->at) == '"' ? read_string(j, &t->text) : MUSTER_EPROTO;

    skip_blanks(j);
    if (err != 0 || byte_at(j, j->at) != ':') {
        return MUSTER_EPROTO;
    }
    j->at++;
    t->type = MU_JSON_KEY;
    j->expect = EXPECT_VALUE;
    return 0;
}

static int read_scalar(struct mu_json *j, struct mu_json_token *t)
{
    uint8_t c = byte_at(j, j->at);
    int err;

    if (c == '"') {
        t->type = MU_JSON_STRING;
        err = read_string(j, &t->text);
    } else if (c == '-' || is_digit(c)) {
        t->type = MU_JSON_NUMBER;
        err = read_number(j, &t->text);
    } else {
        err = read_word(j, t);
    }
    expect_after_value(j);
    return err;
}

static int read_token(struct mu_json *j, struct mu_json_token *t)
{
    uint8_t c = byte_at(j, j->at);

    if (c == '}' || c == ']') {
        return close_container(j, t, c == '}');
    }
    if ((j->expect & EXPECT_COMMA) != 0) {
        if (c != ',') {
            return MUSTER_EPROTO;
        }
        j->at++;
        skip_blanks(j);
        c = byte_at(j, j->at);
        j->expect = in_object(j) ? EXPECT_KEY : EXPECT_VALUE;
    }
    if ((j->expect & EXPECT_KEY) != 0) {
        return read_key(j, t);
    }
    if (c == '{' || c == '[') {
        return open_container(j, t, c == '{');
    }
    return read_scalar(j, t);
}

int mu_json_next(struct mu_json *j, struct mu_json_token *ret_token)
{
    struct mu_json_token t = {.depth = j->depth};
    int err;

    if (j->expect == 0) {
        return MUSTER_EPROTO; /* as before */
    }
    skip_blanks(j);
    if (j->expect == EXPECT_NOTHING) {
        if (j->at == j->in.len) {
            return MUSTER_ENOENT;
        }
        err = MUSTER_EPROTO;
    } else {
        err = read_token(j, &t);
    }
    if (err != 0) {
        j->expect = 0;
        return err;
    }
    *ret_token = t;
    return 0;
}

/* --- values ----------------------------------------------------------------------------------- */

static void put(char *out, size_t cap, size_t *len, unsigned c)
{
    if (*len + 1 < cap) {
        out[*len] = (char)c;
    }
    (*len)++;
}

static void put_utf8(char *out, size_t cap, size_t *len, uint32_t c)
{
    if (c < 0x80) {
        put(out, cap, len, c);
    } else if (c < 0x800) {
        put(out, cap, len, 0xc0 | c >> 6);
        put(out, cap, len, 0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
        put(out, cap, len, 0xe0 | c >> 12);
        put(out, cap, len, 0x80 | (c >> 6 & 0x3f));
        put(out, cap, len, 0x80 | (c & 0x3f));
    } else {
        put(out, cap, len, 0xf0 | c >> 18);
        put(out, cap, len, 0x80 | (c >> 12 & 0x3f));
        put(out, cap, len, 0x80 | (c >> 6 & 0x3f));
        put(out, cap, len, 0x80 | (c & 0x3f));
    }
}

/* The four digits of \uXXXX whose backslash is at `at`; -1 if there is none. */
static int32_t unit_at(struct mu_span text, size_t at)
{
    int32_t v = 0;

    if (text.len < 6 || at > text.len - 6 || text.data[at] != '\\' || text.data[at + 1] != 'u') {
        return -1;
    }
    for (size_t i = 2; i < 6; i++) {
        int digit = hex_value(text.data[at + i]);

        if (digit < 0) {
            return -1;
        }
        v = v << 4 | digit;
    }
    return v;
}

/* Decodes the escape at `*at` and moves behind it. */
static uint32_t take_escape(struct mu_span text, size_t *at)
{
    static const char names[] = "bfnrt";
    static const char means[] = "\b\f\n\r\t";
    int32_t unit = unit_at(text, *at);
    int32_t low;
    const char *name;

    if (unit < 0) {
        uint8_t c = *at + 1 < text.len ? text.data[*at + 1] : '\\';

        *at += 2;
        name = c == 0 ? NULL : strchr(names, c);
        return name == NULL ? c : (uint8_t)means[name - names];
    }
    *at += 6;
    if (unit < 0xd800 || unit > 0xdfff) {
        return (uint32_t)unit;
    }
    low = unit_at(text, *at);
    if (unit > 0xdbff || low < 0xdc00 || low > 0xdfff) {
        return 0xfffd;
    }
    *at += 6;
    return 0x10000 + ((uint32_t)(unit - 0xd800) << 10 | (uint32_t)(low - 0xdc00));
}

size_t mu_json_decode(struct mu_span text, char *out, size_t cap)
{
    size_t len = 0;

    for (size_t at = 0; at < text.len;) {
        if (text.data[at] == '\\') {
            put_utf8(out, cap, &len, take_escape(text, &at));
        } else {
            put(out, cap, &len, text.data[at++]);
        }
    }
    if (cap != 0) {
        out[len < cap ? len : cap - 1] = '\0';
    }
    return len;
}

bool mu_json_is(struct mu_span text, const char *plain)
{
    return mu_span_eq(text, mu_span_str(plain));
}

bool mu_json_int(struct mu_span text, int64_t *ret)
{
    bool negative = text.len != 0 && text.data[0] == '-';
    uint64_t v = 0;

    text = mu_span_skip(text, negative);
    if (text.len == 0 || text.len > 18) {
        return false; /* 18 digits fit in any case */
    }
    for (size_t i = 0; i < text.len; i++) {
        if (!is_digit(text.data[i])) {
            return false;
        }
        v = v * 10 + (uint64_t)(text.data[i] - '0');
    }
    *ret = negative ? -(int64_t)v : (int64_t)v;
    return true;
}

static void put_raw(char *out, size_t cap, size_t *len, char c)
{
    if (*len < cap) {
        out[*len] = c;
    }
    (*len)++;
}

size_t mu_json_quote(struct mu_span in, char *out, size_t cap)
{
    static const char hex[] = "0123456789abcdef";
    size_t len = 0;

    put_raw(out, cap, &len, '"');
    for (size_t i = 0; i < in.len; i++) {
        uint8_t c = in.data[i];

        if (c == '"' || c == '\\') {
            put_raw(out, cap, &len, '\\');
            put_raw(out, cap, &len, (char)c);
        } else if (c < 0x20) {
            const char escape[] = {'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]};

            for (size_t k = 0; k < sizeof(escape); k++) {
                put_raw(out, cap, &len, escape[k]);
            }
        } else {
            put_raw(out, cap, &len, (char)c);
        }
    }
    put_raw(out, cap, &len, '"');
    return len;
}

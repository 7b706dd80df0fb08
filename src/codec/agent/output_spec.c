#include "codec/agent/output_spec.h"

#include <stdio.h>

#include "core/alloc.h"

static int bad(struct mu_errmsg *msg, const char *what, struct mu_span text)
{
    char quoted[80];

    return mu_err(msg, MUSTER_EINVAL, "%s in %s", what,
                  mu_span_quote(quoted, sizeof(quoted), text));
}

static struct mu_span trim(struct mu_span s)
{
    while (s.len > 0 && (s.data[0] == ' ' || s.data[0] == '\t')) {
        s = mu_span_skip(s, 1);
    }
    while (s.len > 0 && (s.data[s.len - 1] == ' ' || s.data[s.len - 1] == '\t')) {
        s.len--;
    }
    return s;
}

static bool parse_u32(struct mu_span s, uint32_t *ret)
{
    uint64_t v = 0;

    s = trim(s);
    if (s.len == 0) {
        return false;
    }
    for (size_t i = 0; i < s.len; i++) {
        if (s.data[i] < '0' || s.data[i] > '9') {
            return false;
        }
        v = v * 10 + (uint64_t)(s.data[i] - '0');
        if (v > UINT32_MAX) {
            return false;
        }
    }
    *ret = (uint32_t)v;
    return true;
}

/* Takes the next item of a list and its comma; false after the last. */
static bool next_item(struct mu_span *rest, struct mu_span *ret)
{
    const uint8_t *comma;

    if (rest->data == NULL) {
        return false;
    }
    comma = rest->len == 0 ? NULL : memchr(rest->data, ',', rest->len);
    if (comma == NULL) {
        *ret = *rest;
        *rest = (struct mu_span){0};
        return true;
    }
    *ret = mu_span(rest->data, (size_t)(comma - rest->data));
    *rest = mu_span_skip(*rest, ret->len + 1);
    return true;
}

static size_t count_items(struct mu_span text)
{
    size_t n = 1;

    for (size_t i = 0; i < text.len; i++) {
        n += text.data[i] == ',';
    }
    return n;
}

/* --- masks ------------------------------------------------------------------------------------ */

static int parse_rank_mask(struct mu_span item, struct mu_std_rank *ret)
{
    const uint8_t *colon = item.len == 0 ? NULL : memchr(item.data, ':', item.len);
    uint32_t mask;
    size_t len;

    if (colon == NULL) {
        return MUSTER_EINVAL;
    }
    len = (size_t)(colon - item.data);
    if (!parse_u32(mu_span(item.data, len), &ret->rank) ||
        !parse_u32(mu_span_skip(item, len + 1), &mask) || mask > MU_STD_ALL) {
        return MUSTER_EINVAL;
    }
    ret->mask = (uint8_t)mask;
    return 0;
}

int mu_std_masks_parse(struct mu_span text, struct mu_std_masks *ret, struct mu_errmsg *reterr_msg)
{
    struct mu_std_masks m = {0};
    struct mu_span whole = trim(text);
    struct mu_span rest = whole;
    struct mu_span item;
    uint32_t all;

    if (whole.len == 1 && parse_u32(whole, &all) && all <= MU_STD_ALL) {
        *ret = (struct mu_std_masks){.all = (uint8_t)all};
        return 0;
    }
    if (count_items(whole) > MU_SPEC_ITEMS_MAX) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "more than %d ranks are named", MU_SPEC_ITEMS_MAX);
    }
    m.ranks = mu_calloc(count_items(whole), sizeof(*m.ranks));
    if (m.ranks == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    while (next_item(&rest, &item)) {
        if (parse_rank_mask(item, &m.ranks[m.count]) != 0) {
            mu_free(m.ranks);
            return bad(reterr_msg, "neither a mask (0 to 3) nor rank:mask,...", text);
        }
        m.count++;
    }
    if (m.count == 0) {
        mu_free(m.ranks);
        return bad(reterr_msg, "neither a mask (0 to 3) nor rank:mask,...", text);
    }
    *ret = m;
    return 0;
}

void mu_std_masks_fini(struct mu_std_masks *m)
{
    mu_free(m->ranks);
    *m = (struct mu_std_masks){0};
}

uint8_t mu_std_masks_get(const struct mu_std_masks *m, uint32_t rank)
{
    for (size_t i = m->count; i > 0; i--) {
        if (m->ranks[i - 1].rank == rank) {
            return m->ranks[i - 1].mask;
        }
    }
    return m->all;
}

/* --- which ranks are shown -------------------------------------------------------------------- */

int mu_rank_filter_parse(struct mu_span text, struct mu_rank_filter *ret,
                         struct mu_errmsg *reterr_msg)
{
    struct mu_rank_filter f = {0};
    struct mu_span rest = trim(text);
    struct mu_span item;

    if (rest.len == 0) {
        *ret = f;
        return 0;
    }
    if (count_items(rest) > MU_SPEC_ITEMS_MAX) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "more than %d ranks are named", MU_SPEC_ITEMS_MAX);
    }
    f.ranks = mu_calloc(count_items(rest), sizeof(*f.ranks));
    if (f.ranks == NULL) {
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    while (next_item(&rest, &item)) {
        bool negative;

        item = trim(item);
        negative = item.len > 0 && item.data[0] == '-';
        if (!parse_u32(mu_span_skip(item, negative ? 1 : 0), &f.ranks[f.count])) {
            mu_free(f.ranks);
            return bad(reterr_msg, "not a comma-separated list of local ranks", text);
        }
        f.ranks[f.count] = negative ? UINT32_MAX : f.ranks[f.count];
        f.count++;
    }
    *ret = f;
    return 0;
}

void mu_rank_filter_fini(struct mu_rank_filter *f)
{
    mu_free(f->ranks);
    *f = (struct mu_rank_filter){0};
}

bool mu_rank_filter_shows(const struct mu_rank_filter *f, uint32_t rank)
{
    for (size_t i = 0; i < f->count; i++) {
        if (f->ranks[i] == rank) {
            return true;
        }
    }
    return f->count == 0;
}

/* --- which lines are copied ------------------------------------------------------------------- */

static void fill_texts(struct mu_span text, struct mu_text_filter *f)
{
    size_t at = 0;
    size_t start = 0;

    for (size_t i = 0; i <= text.len; i++) {
        bool comma = i < text.len && text.data[i] == ',';

        if (comma && i + 1 < text.len && text.data[i + 1] == ',') {
            f->bytes[at++] = ',';
            i++;
        } else if (comma || i == text.len) {
            if (at > start) {
                f->texts[f->count++] = mu_span(f->bytes + start, at - start);
            }
            start = at;
        } else {
            f->bytes[at++] = text.data[i];
        }
    }
}

int mu_text_filter_parse(struct mu_span text, struct mu_text_filter *ret,
                         struct mu_errmsg *reterr_msg)
{
    struct mu_text_filter f = {0};

    if (text.len == 0) {
        *ret = f;
        return 0;
    }
    if (count_items(text) > MU_SPEC_ITEMS_MAX) {
        return mu_err(reterr_msg, MUSTER_ELIMIT, "more than %d texts", MU_SPEC_ITEMS_MAX);
    }
    f.bytes = mu_malloc(text.len);
    f.texts = mu_calloc(count_items(text), sizeof(*f.texts));
    if (f.bytes == NULL || f.texts == NULL) {
        mu_text_filter_fini(&f);
        return mu_err(reterr_msg, MUSTER_ENOMEM, "out of memory");
    }
    fill_texts(text, &f);
    *ret = f;
    return 0;
}

void mu_text_filter_fini(struct mu_text_filter *f)
{
    mu_free(f->bytes);
    mu_free(f->texts);
    *f = (struct mu_text_filter){0};
}

/* A simple search will do: lines are short, and only those for the console are searched. */
static bool contains(struct mu_span line, struct mu_span text)
{
    while (line.len >= text.len) {
        const uint8_t *at = memchr(line.data, text.data[0], line.len - text.len + 1);

        if (at == NULL) {
            return false;
        }
        if (memcmp(at, text.data, text.len) == 0) {
            return true;
        }
        line = mu_span_skip(line, (size_t)(at - line.data) + 1);
    }
    return false;
}

bool mu_text_filter_matches(const struct mu_text_filter *f, struct mu_span line)
{
    for (size_t i = 0; i < f->count; i++) {
        if (contains(line, f->texts[i])) {
            return true;
        }
    }
    return false;
}

/* --- prefixes --------------------------------------------------------------------------------- */

static bool is_name(uint8_t c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

/* Reads what follows a dollar: how many bytes it spans and, if it is one of ours, its name. */
static size_t read_variable(struct mu_span s, struct mu_span *ret_name)
{
    size_t start = s.len > 1 && s.data[1] == '{' ? 2 : 1;
    size_t n = start;

    while (n < s.len && is_name(s.data[n])) {
        n++;
    }
    *ret_name = mu_span(s.data + start, n - start);
    if (start == 2) {
        if (n == s.len || s.data[n] != '}') {
            *ret_name = (struct mu_span){0};
            return 1;
        }
        n++;
    }
    return n;
}

int mu_prefix_expand(struct mu_span template, struct mu_span role, uint32_t rank,
                     uint32_t local_rank, struct mu_buf *out)
{
    int rc = 0;

    while (rc == 0 && template.len > 0) {
        const uint8_t *dollar = memchr(template.data, '$', template.len);
        size_t n = dollar == NULL ? template.len : (size_t)(dollar - template.data);
        struct mu_span name;
        char number[16];

        rc = mu_buf_append(out, mu_span(template.data, n));
        template = mu_span_skip(template, n);
        if (rc != 0 || template.len == 0) {
            break;
        }
        if (template.len > 1 && template.data[1] == '$') {
            rc = mu_buf_append(out, MU_SPAN_LIT("$"));
            template = mu_span_skip(template, 2);
            continue;
        }
        n = read_variable(template, &name);
        if (mu_span_eq(name, MU_SPAN_LIT("role_name"))) {
            rc = mu_buf_append(out, role);
        } else if (mu_span_eq(name, MU_SPAN_LIT("rank")) ||
                   mu_span_eq(name, MU_SPAN_LIT("local_rank"))) {
            (void)snprintf(number, sizeof(number), "%lu",
                           (unsigned long)(name.len == 4 ? rank : local_rank));
            rc = mu_buf_append(out, mu_span_str(number));
        } else {
            rc = mu_buf_append(out, mu_span(template.data, n));
        }
        template = mu_span_skip(template, n);
    }
    return rc;
}

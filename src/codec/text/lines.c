#include "codec/text/lines.h"

void mu_lines_init(struct mu_lines *l, size_t max)
{
    *l = (struct mu_lines){.max = max};
    mu_buf_init(&l->part, max);
}

void mu_lines_fini(struct mu_lines *l)
{
    mu_buf_fini(&l->part);
}

static void drop_given(struct mu_lines *l)
{
    mu_buf_consume(&l->part, l->drop);
    l->drop = 0;
    mu_buf_trim(&l->part, 1024);
}

static void give(struct mu_lines *l, struct mu_span text, enum mu_line_end end, struct mu_line *ret)
{
    *ret = (struct mu_line){.text = text, .end = end, .goes_on = l->goes_on, .shown = l->shown};
    l->goes_on = end == MU_LINE_CUT;
    l->shown = 0;
}

/* Gives the line in `part`, which is whole by now. */
static bool give_part(struct mu_lines *l, enum mu_line_end end, struct mu_line *ret)
{
    give(l, mu_buf_span(&l->part), end, ret);
    l->drop = l->part.len;
    return true;
}

/* The bytes up to the first that may end a line. */
static size_t plain_len(struct mu_span in)
{
    const uint8_t *feed = in.len == 0 ? NULL : memchr(in.data, '\n', in.len);
    size_t len = feed == NULL ? in.len : (size_t)(feed - in.data);
    const uint8_t *back = len == 0 ? NULL : memchr(in.data, '\r', len);

    return back == NULL ? len : (size_t)(back - in.data);
}

bool mu_lines_next(struct mu_lines *l, struct mu_span *in, struct mu_line *ret)
{
    size_t n;
    bool cut;

    drop_given(l);
    if (l->held && in->len > 0) {
        bool feed = in->data[0] == '\n';

        l->held = false;
        *in = mu_span_skip(*in, feed ? 1 : 0);
        return give_part(l, feed ? MU_LINE_CRLF : MU_LINE_CR, ret);
    }
    if (in->len == 0) {
        return false;
    }
    n = plain_len(*in);
    if (n <= l->max && l->part.len == 0 && n < in->len && in->data[n] == '\n') {
        give(l, mu_span(in->data, n), MU_LINE_LF, ret); /* the common case: whole as it came */
        *in = mu_span_skip(*in, n + 1);
        return true;
    }
    cut = l->part.len + n > l->max; /* exactly `max` bytes and an end are not cut */
    n = cut ? l->max - l->part.len : n;
    if (mu_buf_append(&l->part, mu_span(in->data, n)) != 0) {
        if (l->part.len > 0) {
            return give_part(l, MU_LINE_CUT, ret);
        }
        give(l, mu_span(in->data, n), MU_LINE_CUT, ret);
        *in = mu_span_skip(*in, n);
        return true;
    }
    *in = mu_span_skip(*in, n);
    if (cut) {
        return give_part(l, MU_LINE_CUT, ret);
    }
    if (in->len == 0) {
        return false;
    }
    if (in->data[0] == '\n') {
        *in = mu_span_skip(*in, 1);
        return give_part(l, MU_LINE_LF, ret);
    }
    *in = mu_span_skip(*in, 1);
    l->held = true;
    return mu_lines_next(l, in, ret); /* once: `held` and bytes give a line, no bytes end it */
}

bool mu_lines_peek(struct mu_lines *l, struct mu_line *ret)
{
    drop_given(l);
    if (l->part.len <= l->shown) {
        return false;
    }
    *ret = (struct mu_line){.text = mu_buf_span(&l->part),
                            .end = MU_LINE_NONE,
                            .goes_on = l->goes_on,
                            .shown = l->shown};
    l->shown = l->part.len;
    return true;
}

bool mu_lines_end(struct mu_lines *l, struct mu_line *ret)
{
    drop_given(l);
    if (l->held) {
        l->held = false;
        return give_part(l, MU_LINE_CR, ret);
    }
    if (l->part.len == 0) {
        return false;
    }
    return give_part(l, MU_LINE_NONE, ret);
}

/* A span borrows bytes: a pointer and a length, never owned, never terminated. */
#ifndef MU_SPAN_H
#define MU_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct mu_span {
    const uint8_t *data;
    size_t len;
};

/* Memory that is borrowed to be written to; len 0: no memory. */
struct mu_space {
    uint8_t *data;
    size_t len;
};

/** A span over a string literal, without its terminator. */
#define MU_SPAN_LIT(text) ((struct mu_span){(const uint8_t *)(text), sizeof(text) - 1})

static inline struct mu_span mu_span(const void *data, size_t len)
{
    return (struct mu_span){(const uint8_t *)data, len};
}

static inline struct mu_span mu_span_str(const char *text)
{
    return mu_span(text, strlen(text));
}

static inline bool mu_span_eq(struct mu_span a, struct mu_span b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

static inline bool mu_span_starts_with(struct mu_span s, struct mu_span prefix)
{
    return s.len >= prefix.len && (prefix.len == 0 || memcmp(s.data, prefix.data, prefix.len) == 0);
}

/** How many bytes these have together. */
static inline size_t mu_span_total(const struct mu_span *spans, size_t count)
{
    size_t total = 0;

    for (size_t i = 0; i < count; i++) {
        total += spans[i].len;
    }
    return total;
}

/** The span without its first `n` bytes; `n` is at most its length. */
static inline struct mu_span mu_span_skip(struct mu_span s, size_t n)
{
    return (struct mu_span){n == 0 ? s.data : s.data + n, s.len - n};
}

/** Copies the bytes to `*at` and ends them with a zero; `*at` moves past that. Returns their
 * place. */
char *mu_span_put_text(char **at, struct mu_span text);
/**
 * Writes a printable, quoted, terminated form of bytes from outside for a log line or an error
 * text: at most `cap` bytes, everything but printable ASCII as \xNN, an ellipsis where it was cut.
 * Returns `out`. `cap` is at least 8.
 */
char *mu_span_quote(char *out, size_t cap, struct mu_span s);

/**
 * Compares as people do: runs of decimal digits as numbers of any length, all else by bytes, so
 * that node2 comes before node10. Of two that are equal in that sense (node1, node01) the shorter
 * one comes first, then bytes decide: the order is total. The result is below, equal to or above
 * zero as a is before, the same as or after b.
 */
int mu_span_natural_cmp(struct mu_span a, struct mu_span b);

#endif

#include "codec/text/guess.h"

#include <string.h>

#define WORD_MAX 63

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* How many letters must be written, left out, changed or exchanged with their neighbour to make one
 * word of the other. Both have at most WORD_MAX letters. */
static size_t distance(struct mu_span a, struct mu_span b)
{
    size_t rows[3][WORD_MAX + 1];
    size_t *before = rows[0];
    size_t *last = rows[1];
    size_t *now = rows[2];

    for (size_t j = 0; j <= b.len; j++) {
        last[j] = j;
    }
    for (size_t i = 1; i <= a.len; i++) {
        size_t *spare = before;

        now[0] = i;
        for (size_t j = 1; j <= b.len; j++) {
            size_t n = last[j - 1] + (a.data[i - 1] != b.data[j - 1]);

            n = least(n, least(last[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a.data[i - 1] == b.data[j - 2] &&
                a.data[i - 2] == b.data[j - 1]) {
                n = least(n, before[j - 2] + 1);
            }
            now[j] = n;
        }
        before = last;
        last = now;
        now = spare;
    }
    return last[b.len];
}

void mu_guess_try(struct mu_guess *g, const char *name)
{
    struct mu_span other = mu_span_str(name);
    size_t len = g->word.len;
    size_t shorter = least(len, other.len);
    size_t d;

    if (len < 2 || len > WORD_MAX || other.len > WORD_MAX) {
        return;
    }
    d = distance(g->word, other);
    /* One word begins with the other: "--time" for "--timeout". */
    if (shorter >= 3 && memcmp(g->word.data, other.data, shorter) == 0) {
        d = least(d, 2);
    }
    if (d <= (len <= 3 ? 1u : len <= 6 ? 2u : 3u) && (g->best == NULL || d < g->distance)) {
        g->best = name;
        g->distance = d;
    }
}

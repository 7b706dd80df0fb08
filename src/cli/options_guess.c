#include "cli/options.h"

#include <stdio.h>
#include <string.h>

#define NAME_MAX_LEN 63

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* How many letters must be written, left out, changed or exchanged with their neighbour to make one
 * word of the other. Both have at most NAME_MAX_LEN letters. */
static size_t distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    size_t rows[3][NAME_MAX_LEN + 1];
    size_t *before = rows[0];
    size_t *last = rows[1];
    size_t *now = rows[2];

    for (size_t j = 0; j <= b_len; j++) {
        last[j] = j;
    }
    for (size_t i = 1; i <= a_len; i++) {
        size_t *spare = before;

        now[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            size_t n = last[j - 1] + (a[i - 1] != b[j - 1]);

            n = least(n, least(last[j], now[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                n = least(n, before[j - 2] + 1);
            }
            now[j] = n;
        }
        before = last;
        last = now;
        now = spare;
    }
    return last[b_len];
}

void cli_guess_try(struct cli_guess *g, const char *name)
{
    size_t len = strlen(name);
    size_t shorter = least(g->len, len);
    size_t d;

    if (g->len < 2 || g->len > NAME_MAX_LEN || len > NAME_MAX_LEN) {
        return;
    }
    d = distance(g->word, g->len, name, len);
    /* One word begins with the other: "--time" for "--timeout". */
    if (shorter >= 3 && strncmp(g->word, name, shorter) == 0) {
        d = least(d, 2);
    }
    if (d <= (g->len <= 3 ? 1u : g->len <= 6 ? 2u : 3u) && (g->best == NULL || d < g->distance)) {
        g->best = name;
        g->distance = d;
    }
}

const char *cli_guess_say(const struct cli_guess *g, const char *before, char out[96])
{
    out[0] = '\0';
    if (g->best != NULL) {
        (void)snprintf(out, 96, " (did you mean %s%s?)", before, g->best);
    }
    return out;
}

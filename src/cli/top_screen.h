/*
 * What `muster top` shows: a status (docs/operate.md) drawn into so many lines of so many columns.
 */
#ifndef MU_TOP_SCREEN_H
#define MU_TOP_SCREEN_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

struct top_screen {
    int width;
    int height;
    bool color;
    const json_t *now;
    const json_t *before; /* a status before it, for rates; NULL: none */
};

/** Returns a text of at most `height` lines, each ended; to be freed. NULL: no memory. */
char *top_screen_draw(const struct top_screen *screen);

#endif

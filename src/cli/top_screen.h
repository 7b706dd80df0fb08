/*
 * The screen of `muster top`: a status (docs/operate.md), drawn into a number of lines and columns.
 */
#ifndef MU_TOP_SCREEN_H
#define MU_TOP_SCREEN_H

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

#define TOP_WHOLE 1000000 /* no line and no list is that long: nothing is cut */

struct top_screen {
    int width;  /* TOP_WHOLE: lines are not cut */
    int height; /* TOP_WHOLE: lists are not cut */
    bool color;
    const json_t *now;
    const json_t *before; /* an earlier status, for rates; NULL: there is no earlier one */
};

/** Returns a text of at most `height` lines, each with its newline, which the caller frees. NULL:
 * out of memory. */
char *top_screen_draw(const struct top_screen *screen);

#endif

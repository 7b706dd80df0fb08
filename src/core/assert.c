#include "core/assert.h"

#include <stdio.h>
#include <stdlib.h>

void mu_panic(const char *file, int line, const char *what)
{
    (void)fprintf(stderr, "muster: bug at %s:%d: expected %s\n", file, line, what);
    abort();
}

/* The recorded states of tests/vectors: base64, one on each line behind a line that names it. */
#ifndef MU_RDZV_VECTORS_H
#define MU_RDZV_VECTORS_H

#include <stdio.h>

#include "codec/text/base64.h"
#include "unit.h"

#ifndef MU_VECTOR_DIR
#define MU_VECTOR_DIR "tests/vectors"
#endif
#define RDZV_VECTORS_1_13 "rdzv-state-1.13.txt"
#define RDZV_VECTORS_2_11 "rdzv-state-2.11.txt"

/** Reads the state of that name, or the state number `index` if there is no name, into `out`.
 * False: there is none. */
static inline bool rdzv_vector(const char *file, const char *name, size_t index, struct mu_buf *out)
{
    char line[4096];
    bool found = false;
    size_t seen = 0;
    FILE *f;

    (void)snprintf(line, sizeof(line), "%s/%s", MU_VECTOR_DIR, file);
    f = fopen(line, "r");
    assert_non_null(f);
    mu_buf_reset(out);
    while (!found && fgets(line, sizeof(line), f) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "= ", 2) == 0) {
            found = name != NULL ? strcmp(line + 2, name) == 0 : seen == index;
            seen++;
        }
    }
    if (found) {
        assert_non_null(fgets(line, sizeof(line), f));
        line[strcspn(line, "\n")] = '\0';
        assert_int_equal(mu_base64_decode(out, mu_span_str(line)), 0);
    }
    (void)fclose(f);
    return found;
}

#endif

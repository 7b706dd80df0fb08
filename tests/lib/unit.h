/* What every unit test includes: cmocka and the headers it wants before it. */
#ifndef MU_UNIT_H
#define MU_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/span.h"

/** Fails with both sides printed unless the span holds exactly the text. */
static inline void assert_span_text(struct mu_span s, const char *text)
{
    assert_int_equal(s.len, strlen(text));
    if (s.len != 0) {
        assert_memory_equal(s.data, text, s.len);
    }
}

#endif

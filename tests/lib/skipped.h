/*
 * Tests that need something of the system that is not there. cmocka ends well all the same; so that
 * such a test does not count as passed, its program ends as meson and others call skipped.
 *
 *     skip_saying("no cgroup can be made here");            in a test
 *     return skipped_or(cmocka_run_group_tests(...));       in main
 */
#ifndef MU_TEST_SKIPPED_H
#define MU_TEST_SKIPPED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define SKIPPED_EXIT 77

/* One for all files of a program. */
__attribute__((weak)) int skipped_count;

#define skip_saying(what)                                                                          \
    do {                                                                                           \
        skipped_count++;                                                                           \
        print_message("%s; the test needs it\n", what);                                            \
        skip();                                                                                    \
    } while (0)

static inline int skipped_or(int failed)
{
    return failed == 0 && skipped_count != 0 ? SKIPPED_EXIT : failed;
}

#endif

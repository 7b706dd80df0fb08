/* The texts of /proc: where files are mapped, what a thread does in the kernel. */
#include "proto/stacks/maps.h"

#include <stdio.h>
#include <string.h>

#include "proto/stacks/kernel.h"
#include "unit.h"

static struct mu_maps maps;

static const char python[] =
    "55d0c0a00000-55d0c0a28000 r--p 00000000 fe:01 1234       /usr/bin/my python3.9\n"
    "55d0c0a28000-55d0c0c00000 r-xp 00028000 fe:01 1234       /usr/bin/my python3.9\n"
    "7f0000300000-7f0000400000 rw-p 00000000 00:00 0\n"
    "7f0000200000-7f0000280000 r-xp 00021000 fe:01 99         /lib/libpython3.12.so.1.0\n"
    "7f0000000000-7f0000200000 r--p 00000000 fe:01 99         /lib/libpython3.12.so.1.0\n"
    "7f0001000000-7f0002000000 r--p 00000000 fe:01 98         /lib/libpython3.13.so.1.0\n"
    "7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0          [stack]\n";

static void feed(struct mu_span exe, const char *text, size_t piece)
{
    struct mu_span rest = mu_span_str(text);

    mu_maps_init(&maps, exe);
    while (rest.len != 0) {
        size_t n = rest.len < piece ? rest.len : piece;

        mu_maps_feed(&maps, mu_span(rest.data, n));
        rest = mu_span_skip(rest, n);
    }
}

static void test_stacks_maps_finds_program_and_library(void **state)
{
    (void)state;
    for (size_t piece = 1; piece < 200; piece += 66) {
        feed(MU_SPAN_LIT("/usr/bin/my python3.9"), python, piece);
        assert_true(maps.program.found);
        assert_int_equal(maps.program.start, 0x55d0c0a00000);
        assert_string_equal(maps.program.path, "/usr/bin/my python3.9");
        assert_true(maps.library.found);
        assert_int_equal(maps.library.start, 0x7f0000000000);
        assert_string_equal(maps.library.path, "/lib/libpython3.12.so.1.0");
    }
}

/* A program that a loader has started is a file like a library. */
static void test_stacks_maps_finds_a_program_of_a_loader(void **state)
{
    (void)state;
    feed(MU_SPAN_LIT("/lib/ld.so"),
         "7f0000000000-7f0000200000 r--p 00000000 fe:01 9 /x/python3.14\n", 99);
    assert_false(maps.program.found);
    assert_string_equal(maps.library.path, "/x/python3.14");
}

static void test_stacks_maps_skips_what_is_malformed(void **state)
{
    (void)state;
    feed(MU_SPAN_LIT("/a"),
         "\n-\nxyz\n12\n12-\n12-13\n12-13 r\n12-13 r 0\n13-12 r 0 0 0 /a\n"
         "fffffffffffffffff-13 r 0 0 0 /a\n12-13 r z 0 0 /a\n12-13 r 0 0 0 a\n12-13 r 1 0 0 /a\n",
         7);
    assert_false(maps.program.found || maps.library.found);
}

/* Meets MU_MAPS_LINE_MAX and MU_MAPS_PATH_MAX. */
static void test_stacks_maps_lines_are_bounded(void **state)
{
    static char text[3 * MU_MAPS_LINE_MAX];
    static char path[MU_MAPS_PATH_MAX + 2];
    int n;

    (void)state;
    memset(text, 'x', sizeof(text));
    memset(path, 'y', sizeof(path));
    path[0] = '/';
    /* The end of a long line looks like a mapping. */
    n = snprintf(text + MU_MAPS_LINE_MAX + 1, 200,
                 "3000-4000 r--p 0 0 0 /libpython3.8.so\n1000-2000 r--p 0 0 0 /libpython3.9.so\n");
    text[MU_MAPS_LINE_MAX + 1 + n] = '\0';
    feed(mu_span(path, sizeof(path)), text, 1000);
    assert_int_equal(maps.library.start, 0x1000);
    assert_int_equal(strlen(maps.exe), 0);
    feed(mu_span(path, MU_MAPS_PATH_MAX), "", 1);
    assert_int_equal(strlen(maps.exe), MU_MAPS_PATH_MAX);
}

static void test_stacks_maps_version_is_in_the_name(void **state)
{
    (void)state;
    assert_int_equal(mu_maps_version("/usr/lib/libpython3.9.so.1.0"), 0x03090000);
    assert_int_equal(mu_maps_version("/opt/python3.8/bin/python3.12"), 0x030c0000);
    assert_int_equal(mu_maps_version("/usr/bin/python3.10d"), 0x030a0000);
    assert_int_equal(mu_maps_version("/opt/python3.8/bin/python"), 0);
    assert_int_equal(mu_maps_version("/usr/bin/python3."), 0);
    assert_int_equal(mu_maps_version("python3.4711"), 0);
    assert_int_equal(mu_maps_version(""), 0);
}

static void assert_kernel(const char *call, const char *place, const char *expected)
{
    char text[64];

    assert_int_equal(mu_kernel_text(text, sizeof(text), mu_span_str(call), mu_span_str(place)),
                     strlen(expected));
    assert_string_equal(text, expected);
}

static void test_stacks_kernel_says_where_a_thread_is(void **state)
{
    (void)state;
#if defined(__x86_64__)
    assert_kernel("202 0x7f 0x80\n", "futex_wait_queue", "futex (futex_wait_queue)");
    assert_kernel("202 0x7f 0x80\n", "0", "futex");
#endif
    assert_kernel("9999 0x0\n", "", "system call 9999");
    assert_kernel("running\n", "0", "");
    assert_kernel("", "pipe_read", "pipe_read");
    assert_kernel("", "", "");
}

static void test_stacks_kernel_reads_stat(void **state)
{
    static const char good[] =
        "4711 (a) R 1 b)) S 1 2 3 0 -1 6 7 8 9 10 11 12 13 14 20 0 1 0 123456 22 23";
    struct mu_kernel_stat stat;

    (void)state;
    assert_true(mu_kernel_stat_read(MU_SPAN_LIT(good), &stat));
    assert_int_equal(stat.state, 'S');
    assert_int_equal(stat.start, 123456);
    assert_false(mu_kernel_stat_read(MU_SPAN_LIT(""), &stat));
    assert_false(mu_kernel_stat_read(MU_SPAN_LIT("4711 (a) S 1 2 3"), &stat));
    assert_false(mu_kernel_stat_read(MU_SPAN_LIT("4711 (a)"), &stat));
}

static void test_stacks_kernel_reads_the_inner_number(void **state)
{
    (void)state;
    assert_int_equal(mu_kernel_inner_tid(MU_SPAN_LIT("Name: x\nNSpid:\t4711\t12\t3\nNSpgid: 9\n")),
                     3);
    assert_int_equal(mu_kernel_inner_tid(MU_SPAN_LIT("Name: x\nNSpid:\t4711\n")), 4711);
    assert_int_equal(mu_kernel_inner_tid(MU_SPAN_LIT("Name: NSpid: 5\n")), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stacks_maps_finds_program_and_library),
        cmocka_unit_test(test_stacks_maps_finds_a_program_of_a_loader),
        cmocka_unit_test(test_stacks_maps_skips_what_is_malformed),
        cmocka_unit_test(test_stacks_maps_lines_are_bounded),
        cmocka_unit_test(test_stacks_maps_version_is_in_the_name),
        cmocka_unit_test(test_stacks_kernel_says_where_a_thread_is),
        cmocka_unit_test(test_stacks_kernel_reads_stat),
        cmocka_unit_test(test_stacks_kernel_reads_the_inner_number),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

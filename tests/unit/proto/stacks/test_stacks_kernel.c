/* What the texts of /proc say in numbers, and what a process that is not Python waits for. */
#include "unit.h"

#include "proto/stacks/kernel.h"
#include "proto/stacks/stance.h"

static void test_kernel_stat_is_read_past_any_name(void **state)
{
    struct mu_kernel_stat stat;

    (void)state;
    assert_true(mu_kernel_stat_read(
        MU_SPAN_LIT("7 (a) S (b c) D 1 7 7 0 -1 4194560 100 0 0 0 300 20 1000 5 20 0 1 0 4711 8"),
        &stat));
    assert_int_equal(stat.state, 'D');
    assert_int_equal(stat.cpu_ns, (300 + 20 + 1000 + 5) * UINT64_C(10000000));
    assert_int_equal(stat.start, 4711);
    assert_int_equal(stat.memory_bytes, 0); /* it is not said */
    assert_true(mu_kernel_stat_read(
        MU_SPAN_LIT("7 (a) S 1 7 7 0 -1 4194560 100 0 0 0 300 20 1000 5 20 0 1 0 4711 8 25 9"),
        &stat));
    assert_int_equal(stat.memory_bytes, 25 * 4096);
    assert_false(mu_kernel_stat_read(MU_SPAN_LIT("7 (a) S 1 7 7"), &stat));
    assert_false(mu_kernel_stat_read(MU_SPAN_LIT(""), &stat));
}

static void test_kernel_io_adds_up_bytes_but_not_calls(void **state)
{
    (void)state;
    assert_int_equal(mu_kernel_io_bytes(MU_SPAN_LIT("rchar: 1\nwchar: 20\nsyscr: 7\nsyscw: 7\n"
                                                    "read_bytes: 300\nwrite_bytes: 4000\n"
                                                    "cancelled_write_bytes: 7\n")),
                     4321);
    assert_int_equal(mu_kernel_io_bytes(MU_SPAN_LIT("")), 0);
}

static void test_kernel_sees_a_debugger(void **state)
{
    (void)state;
    assert_true(mu_kernel_is_traced(MU_SPAN_LIT("Name:\tx\nTracerPid:\t12\nUid:\t0\n")));
    assert_false(mu_kernel_is_traced(MU_SPAN_LIT("Name:\tTracerPid:\t1\nTracerPid:\t0\n")));
}

static void test_kernel_knows_what_is_frozen(void **state)
{
    (void)state;
    assert_true(mu_kernel_is_frozen(MU_SPAN_LIT("__refrigerator")));
    assert_true(mu_kernel_is_frozen(MU_SPAN_LIT("do_freezer_trap\n")));
    assert_false(mu_kernel_is_frozen(MU_SPAN_LIT("do_freezer_trap_late")));
    assert_false(mu_kernel_is_frozen(MU_SPAN_LIT("io_schedule")));
    assert_false(mu_kernel_is_frozen(MU_SPAN_LIT("")));
}

static void test_kernel_children_come_one_by_one(void **state)
{
    struct mu_span rest = MU_SPAN_LIT("12 345 ");
    struct mu_span none = MU_SPAN_LIT("99999999999 1");
    int64_t pid;

    (void)state;
    assert_true(mu_kernel_child_next(&rest, &pid));
    assert_int_equal(pid, 12);
    assert_true(mu_kernel_child_next(&rest, &pid));
    assert_int_equal(pid, 345);
    assert_false(mu_kernel_child_next(&rest, &pid));
    assert_false(mu_kernel_child_next(&none, &pid)); /* no such process can be */
}

static void test_kernel_counts_disks_and_links(void **state)
{
    (void)state;
    assert_int_equal(mu_kernel_disk_bytes(MU_SPAN_LIT("   8       0 sda 9 9 2 9 9 9 3 9 0 0 0\n"
                                                      "   8       1 sda1 9 9 1 9 9 9 1 9 0 0 0\n")),
                     7 * 512);
    assert_int_equal(
        mu_kernel_net_bytes(MU_SPAN_LIT("Inter-|   Receive  |  Transmit\n"
                                        " face |bytes packets|bytes packets\n"
                                        "    lo: 1000 1 0 0 0 0 0 0 1000 1 0 0 0 0 0 0\n"
                                        "  eth0:20 1 0 0 0 0 0 0 3 1 0 0 0 0 0 0\n")),
        23);
}

/* A report of a process that is not Python. */
static void make_report(const char *kernel, struct mu_buf *bytes, struct mu_stacks_report *ret)
{
    struct mu_stacks_report head = {.kind = MU_STACKS_OTHER, .rank = 1};
    struct mu_stacks_thread thread = {.tid = 7, .main = true, .state = 'S'};
    struct mu_stacks_writer w;

    thread.kernel = mu_span_str(kernel);
    mu_buf_init(bytes, MU_STACKS_REPORT_BYTES_MAX);
    mu_stacks_writer_init(&w);
    assert_int_equal(mu_stacks_writer_thread(&w, &thread, NULL), 0);
    assert_int_equal(mu_stacks_writer_finish(&w, &head, bytes), 0);
    mu_stacks_writer_fini(&w);
    assert_int_equal(mu_stacks_report_decode(mu_buf_span(bytes), ret), 0);
}

static void test_stance_of_other_processes_is_where_they_are_in_the_kernel(void **state)
{
    static const struct {
        const char *kernel;
        enum mu_pulse_stance stance;
    } cases[] = {
        {"epoll_wait (do_epoll_wait)", MU_STANCE_REQUESTS},
        {"accept4", MU_STANCE_REQUESTS},
        {"poll (poll_schedule_timeout)", MU_STANCE_REQUESTS},
        {"pselect6", MU_STANCE_REQUESTS},
        {"futex (futex_do_wait)", MU_STANCE_UNKNOWN},
        {"wait4", MU_STANCE_UNKNOWN},
        {"clock_nanosleep", MU_STANCE_UNKNOWN},
    };
    uint64_t last = 0;

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_stacks_report report;
        struct mu_buf bytes;

        make_report(cases[i].kernel, &bytes, &report);
        assert_int_equal(mu_stance_of(&report), cases[i].stance);
        assert_int_not_equal(mu_stance_place(&report), 0);
        assert_int_not_equal(mu_stance_place(&report), last);
        last = mu_stance_place(&report);
        mu_buf_fini(&bytes);
    }
}

static void test_stance_of_a_process_that_runs_is_not_known(void **state)
{
    struct mu_stacks_report report;
    struct mu_buf bytes;

    (void)state;
    make_report("", &bytes, &report);
    assert_int_equal(mu_stance_of(&report), MU_STANCE_UNKNOWN);
    assert_int_equal(mu_stance_place(&report), 0);
    mu_buf_fini(&bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kernel_stat_is_read_past_any_name),
        cmocka_unit_test(test_kernel_io_adds_up_bytes_but_not_calls),
        cmocka_unit_test(test_kernel_sees_a_debugger),
        cmocka_unit_test(test_kernel_knows_what_is_frozen),
        cmocka_unit_test(test_kernel_children_come_one_by_one),
        cmocka_unit_test(test_kernel_counts_disks_and_links),
        cmocka_unit_test(test_stance_of_other_processes_is_where_they_are_in_the_kernel),
        cmocka_unit_test(test_stance_of_a_process_that_runs_is_not_known),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

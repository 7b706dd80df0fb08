/* The samples of the hang watchdog, from processes that exist only as texts. */
#include "unit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "service/stacks/sample.h"

#define TEXTS 32

/* A file of /proc; pid 0: of the machine. */
static struct text {
    int64_t pid;
    const char *name;
    char text[256];
} texts[TEXTS];
static int opened;
static unsigned asked; /* for texts */

struct mu_peek_process {
    int64_t pid;
};

static void set(int64_t pid, const char *name, const char *text)
{
    for (size_t i = 0; i < TEXTS; i++) {
        if (texts[i].name == NULL || (texts[i].pid == pid && strcmp(texts[i].name, name) == 0)) {
            texts[i].pid = pid;
            texts[i].name = name;
            (void)snprintf(texts[i].text, sizeof(texts[i].text), "%s", text);
            return;
        }
    }
    fail();
}

static int find(int64_t pid, const char *name, char *buf, size_t cap, size_t *ret_len)
{
    for (size_t i = 0; i < TEXTS && texts[i].name != NULL; i++) {
        if (texts[i].pid == pid && strcmp(texts[i].name, name) == 0) {
            *ret_len = strlen(texts[i].text);
            assert_true(*ret_len <= cap);
            memcpy(buf, texts[i].text, *ret_len);
            return 0;
        }
    }
    return -ESRCH;
}

static int fake_open(int64_t pid, struct mu_peek_process **ret)
{
    char buf[256];
    size_t len;

    if (find(pid, "stat", buf, sizeof(buf), &len) != 0) {
        return -ESRCH;
    }
    *ret = mu_malloc(sizeof(**ret));
    (*ret)->pid = pid;
    opened++;
    return 0;
}

static void fake_close(struct mu_peek_process *p)
{
    opened -= p != NULL ? 1 : 0;
    mu_free(p);
}

static int fake_same(struct mu_peek_process *p)
{
    (void)p;
    return 0;
}

static int fake_read(struct mu_peek_process *p, uint64_t addr, void *to, size_t len)
{
    (void)p;
    (void)addr;
    (void)to;
    (void)len;
    return -EPERM;
}

static int fake_exe(struct mu_peek_process *p, char *buf, size_t cap, size_t *ret_len)
{
    (void)p;
    (void)cap;
    buf[0] = 'x';
    *ret_len = 1;
    return 0;
}

static int fake_threads(struct mu_peek_process *p, uint64_t *tids, size_t cap, size_t *ret_count)
{
    (void)cap;
    tids[0] = (uint64_t)p->pid;
    *ret_count = 1;
    return 0;
}

static int fake_text(struct mu_peek_process *p, uint64_t tid, const char *name, uint64_t offset,
                     char *buf, size_t cap, size_t *ret_len)
{
    (void)tid;
    asked++;
    if (offset != 0 || strcmp(name, "maps") == 0) {
        *ret_len = 0;
        return 0;
    }
    return find(p->pid, name, buf, cap, ret_len);
}

static int fake_machine(const char *name, char *buf, size_t cap, size_t *ret_len)
{
    return find(0, name, buf, cap, ret_len);
}

static int fake_open_file(struct mu_peek_process *p, const char *path)
{
    (void)p;
    (void)path;
    return -ENOENT;
}

static int fake_read_file(struct mu_peek_process *p, uint64_t offset, void *to, size_t len)
{
    (void)p;
    (void)offset;
    (void)to;
    (void)len;
    return -EIO;
}

static const struct mu_peek fake = {
    .open = fake_open,
    .close = fake_close,
    .same = fake_same,
    .read = fake_read,
    .exe = fake_exe,
    .threads = fake_threads,
    .text = fake_text,
    .machine = fake_machine,
    .open_file = fake_open_file,
    .read_file = fake_read_file,
};

static void set_stat(int64_t pid, char state, unsigned ticks)
{
    char text[128];

    (void)snprintf(text, sizeof(text), "%lld (x) %c 1 1 1 0 -1 0 0 0 0 0 %u 0 0 0 20 0 1 0 5 0 3",
                   (long long)pid, state, ticks);
    set(pid, "stat", text);
}

static struct mu_stacks_sampler sampler;
#define TICK_NS UINT64_C(10000000)

static int setup(void **state)
{
    (void)state;
    memset(texts, 0, sizeof(texts));
    opened = 0;
    assert_int_equal(mu_stacks_sampler_init(&sampler, &fake, 2), 0);
    sampler.busy_ns = 5 * TICK_NS;
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    mu_stacks_sampler_fini(&sampler);
    assert_int_equal(opened, 0);
    return 0;
}

static const struct mu_watchdog_sample *run_once(void)
{
    asked = 0;
    mu_stacks_sampler_run(&sampler);
    return &sampler.workers[0].sample;
}

/* --- the tests -------------------------------------------------------------------------------- */

static void test_sample_has_the_time_and_the_bytes_of_a_worker(void **state)
{
    const struct mu_watchdog_sample *s;

    (void)state;
    set_stat(10, 'R', 100);
    set(10, "io", "rchar: 40\nwchar: 2\n");
    set(10, "net/dev", "eth0: 5 0 0 0 0 0 0 0 6 0\n");
    set(0, "diskstats", "8 0 sda 0 0 1 0 0 0 1 0\n");
    sampler.workers[0].pid = 10;
    s = run_once();
    assert_int_equal(s->cpu_ns, 100 * TICK_NS);
    assert_int_equal(s->io_bytes, 42);
    assert_int_equal(s->memory_bytes, 3 * 4096);
    assert_false(s->ended || s->unseen || s->stopped || s->traced || s->on_disk);
    assert_true(sampler.workers[1].sample.ended); /* there is none */
    assert_int_equal(sampler.node.net_bytes, 11);
    assert_int_equal(sampler.node.disk_bytes, 1024);
}

static void test_sample_adds_the_family_of_a_worker_that_does_not_compute(void **state)
{
    const struct mu_watchdog_sample *s;

    (void)state;
    set_stat(10, 'S', 100);
    set(10, "children", "11 12 ");
    set_stat(11, 'R', 30);
    set(11, "io", "rchar: 7\n");
    set(11, "children", "13 ");
    set_stat(13, 'R', 4);
    sampler.workers[0].pid = 10;
    (void)run_once(); /* all of its time is new: it computes */
    assert_true(asked < 5);
    s = run_once();
    assert_int_equal(s->cpu_ns, 100 * TICK_NS);
    assert_int_equal(s->family_ns, 34 * TICK_NS); /* 12 has ended meanwhile */
    assert_int_equal(s->io_bytes, 7);
    /* While it computes, what the family had used stays: it is no move that it is not looked at. */
    set_stat(10, 'R', 200);
    s = run_once();
    assert_int_equal(s->cpu_ns, 200 * TICK_NS);
    assert_int_equal(s->family_ns, 34 * TICK_NS);
    assert_int_equal(s->io_bytes, 7);
}

static void test_sample_finds_new_children_in_time(void **state)
{
    const struct mu_watchdog_sample *s;

    (void)state;
    set_stat(10, 'S', 100);
    sampler.workers[0].pid = 10;
    (void)run_once();
    (void)run_once();
    set(10, "children", "11");
    set_stat(11, 'R', 30);
    s = run_once();
    for (int i = 0; i < MU_STACKS_FAMILY_RUNS; i++) {
        s = run_once();
    }
    assert_int_equal(s->family_ns, 30 * TICK_NS);
}

static void test_sample_watches_a_bounded_family(void **state)
{
    (void)state;
    set_stat(10, 'S', 100);
    set(10, "children", "11 11 11 11 11 11 11 11 11 11 11 11 11 11 11 11 11 11 11 11 11");
    set_stat(11, 'R', 1);
    set(11, "children", "11 11 11 11 11 11 11 11 11 11 11 11 11 11 11 11 11 11 11 11 11");
    sampler.workers[0].pid = 10;
    (void)run_once();
    (void)run_once();
    assert_int_equal(sampler.workers[0].family_count, MU_STACKS_FAMILY_MAX);
}

static void test_sample_sees_who_is_stopped_held_or_on_disk(void **state)
{
    const struct mu_watchdog_sample *s;

    (void)state;
    sampler.workers[0].pid = 10;
    set_stat(10, 'T', 1);
    assert_true(run_once()->stopped);
    set_stat(10, 't', 1);
    assert_true(run_once()->traced);
    set_stat(10, 'D', 1);
    assert_true(run_once()->on_disk);
    set_stat(10, 'S', 1);
    assert_false(run_once()->traced);
    set(10, "status", "Name:\tx\nTracerPid:\t9\n");
    s = run_once(); /* at once: a debugger that has just been attached must not look like a hang */
    assert_true(s->traced && !s->stopped);
    set_stat(10, 'Z', 1);
    assert_true(run_once()->ended);
}

/* Somebody waits for it, and it is not in /proc: it is another user's, and hidden. */
static void test_sample_does_not_take_who_is_hidden_for_ended(void **state)
{
    const struct mu_watchdog_sample *s;

    (void)state;
    sampler.workers[0].pid = 10;
    sampler.workers[0].wants_place = true;
    s = run_once();
    assert_true(s->unseen && !s->ended);
    set_stat(10, 'S', 1);
    s = run_once();
    assert_false(s->unseen || s->ended);
    set(10, "stat", ""); /* it has gone away between two looks */
    s = run_once();
    assert_true(s->unseen && !s->ended);
    sampler.workers[0].pid = 0;
    assert_true(run_once()->ended);
}

static void test_sample_forgets_a_worker_whose_place_is_taken(void **state)
{
    const struct mu_watchdog_sample *s;

    (void)state;
    set_stat(10, 'S', 100);
    set(10, "children", "11");
    set_stat(11, 'R', 30);
    set_stat(20, 'S', 2);
    sampler.workers[0].pid = 10;
    (void)run_once();
    (void)run_once();
    sampler.workers[0].pid = 20;
    s = run_once();
    assert_int_equal(s->cpu_ns, 2 * TICK_NS);
    assert_int_equal(opened, 1);
    mu_stacks_sampler_reset(&sampler);
    assert_int_equal(opened, 0);
    assert_true(run_once()->ended);
}

static void test_sample_looks_only_when_it_is_asked_to(void **state)
{
    const struct mu_watchdog_sample *s;

    (void)state;
    set_stat(10, 'S', 1);
    set(10, "comm", "x\n");
    set(10, "syscall", "running\n");
    set(10, "wchan", "do_something");
    sampler.workers[0].pid = 10;
    s = run_once();
    assert_int_equal(s->place, 0);
    sampler.workers[0].wants_place = true;
    s = run_once();
    assert_int_not_equal(s->place, 0);
    set(10, "wchan", "0");
    s = run_once();
    assert_int_equal(s->place, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_sample_has_the_time_and_the_bytes_of_a_worker, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(
            test_sample_adds_the_family_of_a_worker_that_does_not_compute, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sample_finds_new_children_in_time, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sample_watches_a_bounded_family, setup, teardown),
        cmocka_unit_test_setup_teardown(test_sample_sees_who_is_stopped_held_or_on_disk, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_sample_does_not_take_who_is_hidden_for_ended, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_sample_forgets_a_worker_whose_place_is_taken, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_sample_looks_only_when_it_is_asked_to, setup,
                                        teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

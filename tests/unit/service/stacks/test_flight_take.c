/* Taking the dumps of flight recorders from workers that the test makes up. */
#include "unit.h"

#include <errno.h>
#include <stdio.h>

#include <muster/error.h>

#include "codec/stacks/flight.h"
#include "flight_dump.h"
#include "service/stacks/flight_take.h"

struct mu_peek_process {
    int unused;
};

static struct {
    struct mu_peek_process process;
    int poke_err;
    unsigned pokes;
    uint64_t mark; /* of its dump; 0: there is none */
    uint64_t len;  /* that it claims */
    struct mu_span dump;
    mu_mono_t now;
    struct mu_timer *timer;
    bool done;
} box;

static int peek_open(int64_t pid, struct mu_peek_process **ret)
{
    *ret = &box.process;
    return pid == 10 ? 0 : -ESRCH;
}

static void peek_close(struct mu_peek_process *p)
{
    (void)p;
}

static int peek_open_file(struct mu_peek_process *p, const char *path)
{
    (void)p;
    return box.mark != 0 && strcmp(path, "/tmp/f-3") == 0 ? 0 : -ENOENT;
}

static int peek_file_state(struct mu_peek_process *p, uint64_t *ret_len, uint64_t *ret_mark)
{
    (void)p;
    *ret_len = box.len;
    *ret_mark = box.mark;
    return 0;
}

static int peek_read_file(struct mu_peek_process *p, uint64_t offset, void *to, size_t len)
{
    (void)p;
    assert_true(offset + len <= box.dump.len);
    memcpy(to, box.dump.data + offset, len);
    return 0;
}

static int peek_poke(struct mu_peek_process *p, const char *path)
{
    (void)p;
    assert_string_equal(path, "/tmp/f-3.pipe");
    box.pokes++;
    return box.poke_err;
}

static const struct mu_peek fake = {.open = peek_open,
                                    .close = peek_close,
                                    .open_file = peek_open_file,
                                    .file_state = peek_file_state,
                                    .read_file = peek_read_file,
                                    .poke = peek_poke};

static const struct mu_peek *get_peek(struct mu_env *env)
{
    (void)env;
    return &fake;
}

static int do_work(struct mu_env *env, struct mu_work *work)
{
    work->env = env;
    work->run(work);
    work->done(work);
    return 0;
}

static struct mu_now get_now(struct mu_env *env)
{
    (void)env;
    return (struct mu_now){.mono = box.now};
}

static void arm_timer(struct mu_env *env, struct mu_timer *timer, mu_mono_t at)
{
    (void)env;
    (void)at;
    box.timer = timer;
}

static const struct mu_env_ops ops = {
    .peek = get_peek, .work = do_work, .now = get_now, .timer_arm = arm_timer};
static struct mu_env env = {.ops = &ops};
static struct mu_flight_take take;
static struct mu_flight_take_worker worker;

static void on_done(struct mu_flight_take *t)
{
    (void)t;
    box.done = true;
}

static void begin(size_t brief_max)
{
    box.done = false;
    box.now = (mu_mono_t){MU_NS_PER_S};
    worker = (struct mu_flight_take_worker){.pid = 10, .rank = 3};
    take = (struct mu_flight_take){.config = {.env = &env,
                                              .pipe = "/tmp/f-",
                                              .dumps = {NULL, "/tmp/f-"},
                                              .timeout_ms = 1000,
                                              .brief_max = brief_max,
                                              .done = on_done},
                                   .workers = &worker,
                                   .count = 1};
    assert_int_equal(mu_flight_take_start(&take), 0);
}

/* Looks again and again, until it is done. */
static void wait_done(void)
{
    for (int i = 0; i < 100 && !box.done; i++) {
        box.now = mu_mono_add_ms(box.now, MU_FLIGHT_POLL_MS);
        box.timer->fire(box.timer);
    }
    assert_true(box.done);
}

static void test_flight_take_reads_a_dump_that_is_new_and_whole(void **state)
{
    struct mu_errmsg msg = {{0}};
    struct mu_flight f;
    struct dump d;

    (void)state;
    memset(&box, 0, sizeof(box));
    dump_begin(&d, "2.10");
    dump_group(&d, "0", "default_pg", "[0, 1]");
    for (int i = 1; i < 200; i++) {
        dump_entry(&d, (struct dump_op){.seq = i});
    }
    box.dump = dump_end(&d);
    box.len = box.dump.len;
    box.mark = 7; /* an old one is there before */
    begin(MU_FLIGHT_BRIEF_MAX);
    assert_int_equal(box.pokes, 1);
    box.timer->fire(box.timer);
    assert_false(box.done);
    box.mark = 8; /* It is being written: */
    box.len = box.dump.len / 2;
    box.timer->fire(box.timer);
    assert_false(box.done);
    box.len = box.dump.len;
    box.timer->fire(box.timer);
    assert_true(box.done);
    mu_flight_init(&f);
    assert_int_equal(mu_flight_decode(&f, mu_buf_span(&worker.brief), &msg), 0);
    assert_true(f.entry_count > 10 && f.entry_count < 199);
    mu_flight_fini(&f);
    mu_flight_take_fini(&take);
    /* One that cannot be shortened enough is named. */
    box.mark = 7;
    begin(64);
    box.mark = 8;
    wait_done();
    assert_string_equal(worker.note, "its dump has too many groups");
    mu_flight_take_fini(&take);
    dump_free(&d);
}

static void test_flight_take_says_why_there_is_none(void **state)
{
    static const struct {
        int err;
        const char *note;
    } cases[] = {{-ENOENT, ""},
                 {-ENXIO, "nobody reads from its pipe"},
                 {-EIO, "something else is in the place of its pipe"},
                 {0, "it was asked, but has not written a dump in time"}};
    char path[MU_FLIGHT_PATH_MAX + 1];

    (void)state;
    memset(&box, 0, sizeof(box));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        box.poke_err = cases[i].err;
        begin(MU_FLIGHT_BRIEF_MAX);
        wait_done();
        assert_string_equal(worker.note, cases[i].note);
        assert_int_equal(worker.brief.len, 0);
        mu_flight_take_fini(&take);
    }
    box.mark = 7;
    begin(MU_FLIGHT_BRIEF_MAX);
    box.mark = 8;
    box.len = MU_FLIGHT_BYTES_MAX + 1; /* and nothing of it is read */
    wait_done();
    assert_string_equal(worker.note, "its dump is too long");
    mu_flight_take_fini(&take);
    /* A path that is too long is not cut: that would be another file. */
    memset(path, 'x', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    box.pokes = 0;
    worker = (struct mu_flight_take_worker){.pid = 10, .rank = 3};
    take.config.pipe = take.config.dumps[1] = path;
    box.done = false;
    assert_int_equal(mu_flight_take_start(&take), 0);
    assert_true(box.done);
    assert_int_equal(box.pokes, 0);
    assert_non_null(strstr(worker.note, "its pipe cannot be written to"));
    mu_flight_take_fini(&take);
}

/* A job that uses no NCCL has no dumps to miss: that a worker has ended is news only where others
 * of this node listen. */
static void test_flight_take_of_workers_that_are_gone(void **state)
{
    struct mu_flight_take_worker workers[] = {
        {.pid = 10, .rank = 3}, {.pid = 0, .rank = 4}, {.pid = 11, .rank = 5}};

    (void)state;
    memset(&box, 0, sizeof(box));
    for (int listens = 0; listens < 2; listens++) {
        begin(MU_FLIGHT_BRIEF_MAX);
        wait_done();
        mu_flight_take_fini(&take);
        box.poke_err = listens ? 0 : -ENOENT;
        take.workers = workers;
        take.count = 3;
        box.done = false;
        assert_int_equal(mu_flight_take_start(&take), 0);
        wait_done();
        assert_string_equal(workers[1].note, listens ? "it does not run" : "");
        assert_string_equal(workers[2].note, listens ? "it has ended" : "");
        mu_flight_take_fini(&take);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flight_take_reads_a_dump_that_is_new_and_whole),
        cmocka_unit_test(test_flight_take_says_why_there_is_none),
        cmocka_unit_test(test_flight_take_of_workers_that_are_gone),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

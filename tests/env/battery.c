/*
 * Time, work, and the list of all tests. One rule runs through the battery: nothing waits for luck.
 * A test says what must become true and runs the environment until it is.
 */
#include "battery.h"

#include <stdlib.h>
#include <string.h>

#include "battery_peer.h"

/* Timers that write down the order in which they fire. */
struct clock {
    struct mu_timer timer;
    char name;
    mu_mono_t at;
    struct story *story;
    void (*then)(struct clock *clock);
};

struct story {
    char text[64];
    size_t len;
    struct clock clocks[8];
    struct mu_now seen;
    bool changed; /* two timers of one turn saw different times */
};

static void tick(struct mu_timer *timer)
{
    struct clock *c = MU_CONTAINER_OF(timer, struct clock, timer);
    struct mu_now now = mu_env_now(battery_eut->env);

    EXPECT(battery_in_verb == 0);
    EXPECT(now.mono.ns >= c->at.ns);
    EXPECT(c->story->len < sizeof(c->story->text) - 1);
    c->story->text[c->story->len++] = c->name;
    c->story->seen = now;
    if (c->then != NULL) {
        c->then(c);
    }
    EXPECT(mu_env_now(battery_eut->env).mono.ns == now.mono.ns);
    EXPECT(mu_env_now(battery_eut->env).wall.ns == now.wall.ns);
}

static void clock_set(struct clock *c, uint64_t in_ns)
{
    c->at = mu_mono_add_ns(mu_env_now(battery_eut->env).mono, in_ns);
    VERB(mu_env_timer_arm(battery_eut->env, &c->timer, c->at));
}

static void story_init(struct story *s)
{
    memset(s, 0, sizeof(*s));
    for (int i = 0; i < 8; i++) {
        s->clocks[i].name = (char)('a' + i);
        s->clocks[i].story = s;
        mu_timer_init(&s->clocks[i].timer, tick);
    }
}

static void test_timers_fire_in_order_of_time_then_of_arming(void **state)
{
    struct story s;

    (void)state;
    story_init(&s);
    clock_set(&s.clocks[0], 5 * MU_NS_PER_MS);
    clock_set(&s.clocks[1], 2 * MU_NS_PER_MS);
    clock_set(&s.clocks[2], 2 * MU_NS_PER_MS + 1);
    clock_set(&s.clocks[3], 2 * MU_NS_PER_MS);
    clock_set(&s.clocks[4], 0);
    assert_int_equal(s.len, 0);

    battery_run_until_count(&s.len, 5);

    assert_string_equal(s.text, "ebdca");
}

static void test_timer_for_the_past_fires_once_on_a_later_turn(void **state)
{
    struct story s;

    (void)state;
    story_init(&s);
    VERB(mu_env_timer_arm(battery_eut->env, &s.clocks[0].timer, (mu_mono_t){0}));
    assert_int_equal(s.len, 0);

    battery_run_until_count(&s.len, 1);
    battery_run_for_ms(3);

    assert_string_equal(s.text, "a");
}

static void test_timer_armed_again_moves(void **state)
{
    struct story s;

    (void)state;
    story_init(&s);
    clock_set(&s.clocks[0], 1 * MU_NS_PER_MS);
    clock_set(&s.clocks[1], 2 * MU_NS_PER_MS);
    clock_set(&s.clocks[0], 3 * MU_NS_PER_MS);
    clock_set(&s.clocks[2], 4 * MU_NS_PER_MS);
    clock_set(&s.clocks[2], 1 * MU_NS_PER_MS);

    battery_run_until_count(&s.len, 3);
    battery_run_for_ms(5);

    assert_string_equal(s.text, "cba");
}

static void test_timer_disarmed_never_fires(void **state)
{
    struct story s;

    (void)state;
    story_init(&s);
    clock_set(&s.clocks[0], 1 * MU_NS_PER_MS);
    clock_set(&s.clocks[1], 2 * MU_NS_PER_MS);
    VERB(mu_env_timer_arm(battery_eut->env, &s.clocks[0].timer, MU_MONO_NEVER));
    VERB(mu_env_timer_arm(battery_eut->env, &s.clocks[0].timer, MU_MONO_NEVER));

    battery_run_for_ms(4);

    assert_string_equal(s.text, "b");
}

static void disarm_next(struct clock *c)
{
    VERB(mu_env_timer_arm(battery_eut->env, &c[1].timer, MU_MONO_NEVER));
}

static void test_timer_disarmed_by_another_that_is_due_with_it(void **state)
{
    struct story s;

    (void)state;
    story_init(&s);
    s.clocks[0].then = disarm_next;
    clock_set(&s.clocks[0], 0);
    clock_set(&s.clocks[1], 0);
    clock_set(&s.clocks[2], 0);

    battery_run_for_ms(3);

    assert_string_equal(s.text, "ac");
}

static void again_at_once(struct clock *c)
{
    if (c->story->len < 6) {
        /* The past is as good as now: it must not overtake what was due before. */
        c->at = (mu_mono_t){0};
        VERB(mu_env_timer_arm(battery_eut->env, &c->timer, c->at));
    }
}

static void test_timer_that_arms_itself_at_once_lets_the_others_come(void **state)
{
    struct story s;

    (void)state;
    story_init(&s);
    s.clocks[0].then = again_at_once;
    clock_set(&s.clocks[0], 0);
    clock_set(&s.clocks[1], 0);
    clock_set(&s.clocks[2], 0);

    battery_run_until_count(&s.len, 6);

    assert_memory_equal(s.text, "abcaaa", 6);
}

static void test_timer_that_arms_itself_at_once_lets_bytes_through(void **state)
{
    struct pair pair;
    struct story s;

    (void)state;
    story_init(&s);
    s.clocks[0].then = again_at_once;
    s.len = 0;
    pair_init(&pair);
    pair_connect(&pair);
    pair.a.send_total = 100;
    clock_set(&s.clocks[0], 0);
    peer_push(&pair.a);

    battery_run_until_count(&pair.b.received, 100);

    battery_run_until_count(&s.len, 6);
    pair_end(&pair);
}

static void test_now_never_goes_back_and_goes_on(void **state)
{
    mu_mono_t before = mu_env_now(battery_eut->env).mono;
    mu_mono_t after;

    (void)state;
    battery_run_for_ms(2);
    after = mu_env_now(battery_eut->env).mono;

    assert_true(after.ns >= before.ns + 2 * MU_NS_PER_MS);
    assert_true(mu_env_now(battery_eut->env).wall.ns != 0);
}

static void test_timers_of_one_turn_see_the_same_time(void **state)
{
    struct story s;
    struct mu_now first;

    (void)state;
    story_init(&s);
    clock_set(&s.clocks[0], 0);
    clock_set(&s.clocks[1], 0);
    battery_run_until_count(&s.len, 1);
    first = s.seen;

    /* Both were due in that turn, so the second has been called as well. */
    assert_string_equal(s.text, "ab");
    assert_true(first.mono.ns == s.seen.mono.ns);
}

static void test_entropy_differs(void **state)
{
    uint8_t a[32] = {0};
    uint8_t b[32] = {0};

    (void)state;
    mu_env_entropy(battery_eut->env, a, sizeof(a));
    mu_env_entropy(battery_eut->env, b, sizeof(b));
    mu_env_entropy(battery_eut->env, b, 0);

    assert_memory_not_equal(a, b, sizeof(a));
}

/* Work. */

struct job {
    struct mu_work work;
    size_t ran;
    size_t done;
    size_t again; /* how often `done` asks for it anew */
};

static void job_run(struct mu_work *work)
{
    MU_CONTAINER_OF(work, struct job, work)->ran++;
}

static void job_done(struct mu_work *work)
{
    struct job *job = MU_CONTAINER_OF(work, struct job, work);

    EXPECT(battery_in_verb == 0);
    job->done++;
    EXPECT(job->ran == job->done);
    if (job->again != 0) {
        int rc;

        job->again--;
        VERB(rc = mu_env_work(battery_eut->env, work));
        EXPECT(rc == 0);
    }
}

static void test_work_is_run_once_then_done_on_a_later_turn(void **state)
{
    struct job jobs[16] = {0};
    int rc;

    (void)state;
    for (int i = 0; i < 16; i++) {
        jobs[i].work.run = job_run;
        jobs[i].work.done = job_done;
        VERB(rc = mu_env_work(battery_eut->env, &jobs[i].work));
        assert_int_equal(rc, 0);
        assert_int_equal(jobs[i].done, 0);
    }
    for (int i = 0; i < 16; i++) {
        battery_run_until_count(&jobs[i].done, 1);
    }
    battery_run_for_ms(1);

    for (int i = 0; i < 16; i++) {
        assert_int_equal(jobs[i].ran, 1);
        assert_int_equal(jobs[i].done, 1);
    }
}

static void test_work_can_be_asked_for_again_when_done(void **state)
{
    struct job job = {.work = {.run = job_run, .done = job_done}, .again = 4};
    int rc;

    (void)state;
    VERB(rc = mu_env_work(battery_eut->env, &job.work));
    assert_int_equal(rc, 0);

    battery_run_until_count(&job.done, 5);

    assert_int_equal(job.ran, 5);
}

static const struct CMUnitTest time_tests[] = {
    cmocka_unit_test(test_timers_fire_in_order_of_time_then_of_arming),
    cmocka_unit_test(test_timer_for_the_past_fires_once_on_a_later_turn),
    cmocka_unit_test(test_timer_armed_again_moves),
    cmocka_unit_test(test_timer_disarmed_never_fires),
    cmocka_unit_test(test_timer_disarmed_by_another_that_is_due_with_it),
    cmocka_unit_test(test_timer_that_arms_itself_at_once_lets_the_others_come),
    cmocka_unit_test(test_timer_that_arms_itself_at_once_lets_bytes_through),
    cmocka_unit_test(test_now_never_goes_back_and_goes_on),
    cmocka_unit_test(test_timers_of_one_turn_see_the_same_time),
    cmocka_unit_test(test_entropy_differs),
    cmocka_unit_test(test_work_is_run_once_then_done_on_a_later_turn),
    cmocka_unit_test(test_work_can_be_asked_for_again_when_done),
    {0},
};

/* All of it. */

#define TESTS_MAX 96u

static int set_up(void **state)
{
    (void)state;
    battery_broken = NULL;
    battery_in_verb = 0;
    return battery_eut->up(battery_eut);
}

static int tear_down(void **state)
{
    (void)state;
    /* After a broken rule nothing is known of what is still open, and the test has failed. */
    if (battery_broken == NULL) {
        battery_eut->down(battery_eut);
    }
    return 0;
}

void battery_tcp_listen(struct env_under_test *eut, struct mu_addr *ret)
{
    (void)eut;
    *ret = (struct mu_addr){.kind = MU_ADDR_TCP, .host = "127.0.0.1"};
}

void battery_same_addr(struct env_under_test *eut, const struct mu_addr *listening,
                       struct mu_addr *ret)
{
    (void)eut;
    *ret = *listening;
}

void battery_tcp_refused(struct env_under_test *eut, struct mu_addr *ret)
{
    (void)eut;
    *ret = (struct mu_addr){.kind = MU_ADDR_TCP, .host = "127.0.0.1", .port = 1};
}

int battery_main(const char *name, struct env_under_test *eut)
{
    const struct CMUnitTest *lists[] = {time_tests, battery_conn_tests, battery_end_tests,
                                        battery_child_tests, battery_standby_tests};
    struct CMUnitTest all[TESTS_MAX];
    size_t count = 0;

    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        for (const struct CMUnitTest *t = lists[i]; t->test_func != NULL; t++) {
            if (count == TESTS_MAX) {
                abort();
            }
            all[count] = *t;
            all[count].setup_func = set_up;
            all[count].teardown_func = tear_down;
            count++;
        }
    }
    battery_eut = eut;
    return _cmocka_run_group_tests(name, all, count, NULL, NULL);
}

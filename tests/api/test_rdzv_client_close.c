/*
 * Goal: whoever is inside a call of the public handler when it is closed comes out of it, and what
 * may not be asked, or not from this thread, is refused. Method: as test_rdzv_client.c.
 */
#include "client_rig.h"

#include <sched.h>
#include <unistd.h>

/* --- closing the handler ---------------------------------------------------------------------- */

/* Until so many threads are inside a call: none may begin one when it is closed. */
static void wait_callers(muster_rdzv *rdzv, unsigned number)
{
    struct mu_rdzv_client *s = rdzv->context;
    unsigned callers;

    do {
        (void)sched_yield();
        (void)pthread_mutex_lock(&s->lock);
        callers = s->callers;
        (void)pthread_mutex_unlock(&s->lock);
    } while (callers != number);
}

static void *run_close(void *context)
{
    muster_rdzv_close(context);
    return NULL;
}

static void test_rdzv_close_ends_every_call_of_other_threads(void **state)
{
    struct muster_rdzv_info info;
    muster_rdzv *rdzv = open_in_round(&info);
    struct caller ended;
    struct caller event;
    struct caller closes;
    pthread_t thread;

    (void)state;
    start(&ended, rdzv, call_ended);
    start(&event, rdzv, call_event);
    start(&closes, rdzv, call_set_closed);
    wait_count(fake, &fake->close_runs, 1);
    wait_callers(rdzv, 3);
    assert_int_equal(pthread_create(&thread, NULL, run_close, rdzv), 0);
    assert_int_equal(finish(&ended), MUSTER_ECLOSED);
    assert_int_equal(finish(&event), MUSTER_ECLOSED);
    assert_int_equal(finish(&closes), MUSTER_ECLOSED);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(fake->leaves, 1);
    free_fake();
}

static void test_rdzv_close_interrupts_next(void **state)
{
    struct caller c;

    (void)state;
    for (int opening = 0; opening < 2; opening++) {
        muster_rdzv *rdzv = open_one();

        start(&c, rdzv, call_next);
        wait_count(fake, &fake->joins, 1);
        if (opening != 0) {
            assign(30, 1);
        }
        muster_rdzv_close(rdzv);
        assert_int_equal(finish(&c), MUSTER_ECLOSED);
        assert_says(c.text, "muster_rdzv_close");
        assert_int_equal(fake->leaves, 1);
        free_fake();
    }
}

static void test_rdzv_interrupt_ends_calls_and_frees_nothing(void **state)
{
    muster_rdzv *rdzv = open_one();
    struct muster_rdzv_info info;
    struct caller c;

    (void)state;
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 1);
    muster_rdzv_interrupt(rdzv);
    assert_int_equal(finish(&c), MUSTER_ECLOSED);
    muster_rdzv_interrupt(rdzv);
    assert_int_equal(muster_rdzv_next(rdzv, &info), MUSTER_ECLOSED);
    assert_int_equal(muster_rdzv_ended(rdzv, MUSTER_TIMEOUT_NEVER), MUSTER_ECLOSED);
    assert_int_equal(fake->leaves, 0);
    close_one(rdzv, 1);
}

static void test_rdzv_close_waits_for_no_farewell_for_ever(void **state)
{
    struct muster_rdzv_info info;
    muster_rdzv *rdzv = open_in_round(&info);

    (void)state;
    fake_manner = MUTE;
    close_one(rdzv, 1);
    fake_manner = 0;
}

static void test_rdzv_next_is_for_one_thread_at_a_time(void **state)
{
    muster_rdzv *rdzv = open_one();
    struct muster_rdzv_info info;
    struct caller c;

    (void)state;
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 1);
    assert_int_equal(muster_rdzv_next(rdzv, &info), MUSTER_EBUSY);
    assign(40, 0);
    assert_int_equal(finish(&c), 0);
    close_one(rdzv, 1);
}

struct on_loop {
    struct mu_door door;
    muster_rdzv *rdzv;
    int status[5];
};

static void call_on_loop(struct mu_door *door)
{
    struct on_loop *o = MU_CONTAINER_OF(door, struct on_loop, door);
    struct muster_rdzv_params p = params(0);
    struct muster_rdzv_event event;
    struct muster_rdzv_info info;
    muster_rdzv *other;

    o->status[0] = muster_rdzv_next(o->rdzv, &info);
    o->status[1] = muster_rdzv_set_closed(o->rdzv);
    o->status[2] = muster_rdzv_ended(o->rdzv, 1);
    o->status[3] = muster_rdzv_wait_event(o->rdzv, 1, &event);
    o->status[4] = muster_rdzv_open(rt, &p, &other);
    mu_door_open(door);
}

static void test_rdzv_calls_on_the_runtimes_thread_are_refused(void **state)
{
    muster_rdzv *rdzv = open_one();
    struct on_loop o = {.rdzv = rdzv};

    (void)state;
    mu_door_pass(rt, &o.door, call_on_loop);
    for (size_t i = 0; i < 5; i++) {
        assert_int_equal(o.status[i], MUSTER_EINVAL);
    }
    close_one(rdzv, 0);
}

static void test_rdzv_open_fails_with_the_words_of_the_backend(void **state)
{
    struct muster_rdzv_params p = params(0);
    muster_rdzv *rdzv;

    (void)state;
    p.nodes_max = 666;
    assert_int_equal(muster_rdzv_open(rt, &p, &rdzv), MUSTER_EADDR);
    assert_string_equal(muster_errmsg(), "the fake has no address");
    p = params(8);
    assert_int_equal(muster_rdzv_open(rt, &p, &rdzv), MUSTER_EINVAL);
    assert_says(muster_errmsg(), "flag");
}

static void test_rdzv_sharing_can_be_turned_off_as_with_pytorch(void **state)
{
    struct muster_rdzv_info info;
    muster_rdzv *rdzv;
    muster_store *bootstrap;
    char text[64];

    (void)state;
    assert_int_equal(setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1", 1), 0);
    rdzv = open_in_round(&info);
    assert_int_equal(unsetenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE"), 0);
    assert_false(muster_rdzv_use_agent_store(rdzv));
    assert_int_not_equal(info.bootstrap_port, 0);
    (void)snprintf(text, sizeof(text), "tcp://127.0.0.1:%u", info.bootstrap_port);
    assert_int_not_equal(
        muster_store_open(
            rt, text, &(struct muster_store_config){sizeof(struct muster_store_config), 1000, 300},
            &bootstrap),
        0);
    close_one(rdzv, 1);
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rdzv_close_ends_every_call_of_other_threads),
        cmocka_unit_test(test_rdzv_close_interrupts_next),
        cmocka_unit_test(test_rdzv_interrupt_ends_calls_and_frees_nothing),
        cmocka_unit_test(test_rdzv_close_waits_for_no_farewell_for_ever),
        cmocka_unit_test(test_rdzv_next_is_for_one_thread_at_a_time),
        cmocka_unit_test(test_rdzv_calls_on_the_runtimes_thread_are_refused),
        cmocka_unit_test(test_rdzv_open_fails_with_the_words_of_the_backend),
        cmocka_unit_test(test_rdzv_sharing_can_be_turned_off_as_with_pytorch),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}

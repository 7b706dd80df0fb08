/* The loop of libuv's environment: it neither spins nor sleeps when it should not, and messages of
 * other threads come in their order. */
#include "uv_rig.h"

#include <pthread.h>
#include <stdlib.h>

static void test_urgent_byte_does_not_make_the_loop_spin(void **state)
{
    struct door d;
    struct mu_timer timer;
    int fd;
    size_t turns = 0;
    mu_mono_t until;

    (void)state;
    (void)timer;
    door_open(&d, "127.0.0.1");
    fd = plain_connect("127.0.0.1", d.addr.port);
    run_until_count(&d.accepted, 1);
    d.ends[0].hold = true;
    assert_int_equal(send(fd, "x", 1, 0), 1);
    run_until_count(&d.ends[0].received, 1);
    /* It is paused now. */
    assert_int_equal(send(fd, "!", 1, MSG_OOB), 1);
    mu_timer_init(&timer, (void (*)(struct mu_timer *))end_writable);
    for (int i = 0; i < 5; i++) {
        until = mu_mono_add_ms(mu_env_now(env).mono, 10);
        mu_env_timer_arm(env, &timer, until);
        while (mu_heap_contains(&timer.node)) {
            mu_uv_env_turn(uv);
            turns++;
        }
    }
    assert_true(turns < 30);
    (void)close(fd);
    door_close(&d);
}

struct restless {
    struct mu_timer timer;
    size_t fired;
    bool stop;
};

static void fire_again(struct mu_timer *timer)
{
    struct restless *r = MU_CONTAINER_OF(timer, struct restless, timer);

    r->fired++;
    if (!r->stop && r->fired < 10000000) {
        mu_env_timer_arm(env, timer, mu_env_now(env).mono);
    }
}

static void test_timer_that_is_always_due_does_not_starve_the_sockets(void **state)
{
    struct restless r = {0};
    struct door d;
    int fd;

    (void)state;
    mu_timer_init(&r.timer, fire_again);
    door_open(&d, "127.0.0.1");
    mu_env_timer_arm(env, &r.timer, mu_env_now(env).mono);
    fd = plain_connect("127.0.0.1", d.addr.port);
    assert_int_equal(send(fd, "x", 1, 0), 1);
    run_until_count(&d.accepted, 1);
    run_until_count(&d.ends[0].received, 1);
    assert_true(r.fired < 1000000);
    r.stop = true;
    while (mu_heap_contains(&r.timer.node)) {
        mu_uv_env_turn(uv);
    }
    (void)close(fd);
    door_close(&d);
}

struct bell {
    struct mu_timer timer;
    int rings;
};

static void on_bell(struct mu_timer *timer)
{
    MU_CONTAINER_OF(timer, struct bell, timer)->rings++;
}

/* Nothing else is there to wait for: a turn that goes on to sleep sleeps for ever. */
static void test_turn_in_which_a_timer_rang_does_not_sleep(void **state)
{
    static const uint64_t after_ms[] = {0, 1, 3};
    struct bell bell = {0};

    (void)state;
    mu_timer_init(&bell.timer, on_bell);
    (void)alarm(20); /* ends the program */
    for (int i = 0; i < 30; i++) {
        mu_env_timer_arm(env, &bell.timer, mu_mono_add_ms(mu_env_now(env).mono, after_ms[i % 3]));
        if (i % 2 == 0) {
            (void)usleep(5000); /* As when somebody else has the core: it is due before the turn. */
        }
        while (bell.rings == i) {
            mu_uv_env_turn(uv);
        }
        assert_int_equal(bell.rings, i + 1);
    }
    (void)alarm(0);
}

/* The rig's end with another `data`. */
static mu_mono_t told_at[2];
static size_t told;

static size_t note_time(struct mu_conn *conn, struct mu_span in)
{
    struct timespec while_stopped = {.tv_nsec = 20 * 1000 * 1000};

    (void)conn;
    if (told < 2) {
        told_at[told++] = mu_env_now(env).mono;
        (void)nanosleep(&while_stopped, NULL); /* as if the process was stopped */
    }
    return in.len;
}

static void test_bytes_are_never_newer_than_the_time_they_come_with(void **state)
{
    struct mu_conn_events on;
    struct door d;
    int fds[2];

    (void)state;
    door_open(&d, "127.0.0.1");
    for (int i = 0; i < 2; i++) {
        fds[i] = plain_connect("127.0.0.1", d.addr.port);
        run_until_count(&d.accepted, (size_t)i + 1);
    }
    on = *d.ends[0].conn.on;
    on.data = note_time;
    told = 0;
    for (int i = 0; i < 2; i++) {
        d.ends[i].conn.on = &on;
        assert_int_equal(send(fds[i], "x", 1, 0), 1);
    }
    run_until_count(&told, 2); /* both come in one turn */
    assert_true(told_at[1].ns >= told_at[0].ns + 20 * MU_NS_PER_MS);
    (void)close(fds[0]);
    (void)close(fds[1]);
    door_close(&d);
}

#define POSTERS  4u
#define MESSAGES 20000u

struct message {
    struct mu_post post;
    uint32_t poster;
    uint32_t number;
};

struct posters {
    struct message *messages[POSTERS];
    uint32_t next[POSTERS];
    size_t run;
    bool disordered;
};

static struct posters posters;

static void on_message(struct mu_post *post)
{
    struct message *m = MU_CONTAINER_OF(post, struct message, post);

    posters.disordered = posters.disordered || posters.next[m->poster] != m->number;
    posters.next[m->poster]++;
    posters.run++;
    memset(m, 0xa5, sizeof(*m)); /* the memory is the sender's no more */
    if (posters.run == (size_t)POSTERS * MESSAGES) {
        mu_uv_env_stop(uv);
    }
}

static void *post_all(void *arg)
{
    uint32_t poster = (uint32_t)(uintptr_t)arg;

    for (uint32_t i = 0; i < MESSAGES; i++) {
        struct message *m = &posters.messages[poster][i];

        *m = (struct message){.post.run = on_message, .poster = poster, .number = i};
        mu_uv_env_post(uv, &m->post);
    }
    return NULL;
}

static void test_posts_from_threads_all_come_in_the_order_of_each(void **state)
{
    pthread_t threads[POSTERS];

    (void)state;
    memset(&posters, 0, sizeof(posters));
    for (uintptr_t i = 0; i < POSTERS; i++) {
        posters.messages[i] = calloc(MESSAGES, sizeof(struct message));
        assert_non_null(posters.messages[i]);
    }
    for (uintptr_t i = 0; i < POSTERS; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, post_all, (void *)i), 0);
    }
    mu_uv_env_run(uv);
    for (uintptr_t i = 0; i < POSTERS; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        free(posters.messages[i]);
    }
    assert_int_equal(posters.run, POSTERS * MESSAGES);
    assert_false(posters.disordered);
}

static void post_stop(struct mu_post *post)
{
    (void)post;
    mu_uv_env_stop(uv);
}

static void *run_loop(void *arg)
{
    mu_uv_env_run(arg);
    return NULL;
}

/* As a client does that lives for one call: the loop on its thread, stopped by the last message,
 * and freed while the sender may still be on its way out of the call. */
static void test_loop_is_freed_right_after_its_last_message(void **state)
{
    struct mu_uv_env *kept = uv;

    (void)state;
    for (int i = 0; i < 200; i++) {
        struct mu_post post = {.run = post_stop};
        pthread_t thread;

        assert_int_equal(mu_uv_env_new(&uv), 0);
        assert_int_equal(pthread_create(&thread, NULL, run_loop, uv), 0);
        mu_uv_env_post(uv, &post);
        assert_int_equal(pthread_join(thread, NULL), 0);
        mu_uv_env_free(uv);
    }
    uv = kept;
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    static const struct CMUnitTest tests[] = {
        TEST(test_urgent_byte_does_not_make_the_loop_spin),
        TEST(test_timer_that_is_always_due_does_not_starve_the_sockets),
        TEST(test_turn_in_which_a_timer_rang_does_not_sleep),
        TEST(test_bytes_are_never_newer_than_the_time_they_come_with),
        TEST(test_posts_from_threads_all_come_in_the_order_of_each),
        TEST(test_loop_is_freed_right_after_its_last_message),
    };

    return cmocka_run_group_tests_name("uv_loop", tests, open_first, NULL);
}

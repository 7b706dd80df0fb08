/* Standbys: that they come, become children, are replaced, and what their zygote's end means. */
#include <signal.h>
#include <string.h>

#include "battery_peer.h"
#include "core/err.h"

/* Standbys that remember what was told of them. */
struct kennel {
    struct mu_standbys standbys;
    bool ended;
    bool refused;
    char why[128]; /* "": closed */
};

struct dog {
    struct mu_child child;
    char text[256];
    size_t text_len;
    int start_status;
    int status;
    bool gone;
};

static void on_changed(struct mu_standbys *standbys)
{
    EXPECT(battery_in_verb == 0);
    EXPECT(!MU_CONTAINER_OF(standbys, struct kennel, standbys)->ended);
}

static void on_ended(struct mu_standbys *standbys, bool refused, const char *why)
{
    struct kennel *k = MU_CONTAINER_OF(standbys, struct kennel, standbys);

    EXPECT(battery_in_verb == 0);
    EXPECT(!k->ended);
    EXPECT(standbys->waiting == 0);
    k->ended = true;
    k->refused = refused;
    if (why != NULL) {
        EXPECT(strlen(why) < sizeof(k->why));
        memcpy(k->why, why, strlen(why) + 1);
    }
}

static const struct mu_standbys_events kennel_events = {.changed = on_changed, .ended = on_ended};

static void on_started(struct mu_child *child, int status)
{
    MU_CONTAINER_OF(child, struct dog, child)->start_status = status;
}

static size_t on_output(struct mu_child *child, enum mu_stream stream, struct mu_span in)
{
    struct dog *d = MU_CONTAINER_OF(child, struct dog, child);

    EXPECT(stream == MU_STDOUT);
    EXPECT(d->text_len + in.len < sizeof(d->text));
    if (in.len > 0) {
        memcpy(d->text + d->text_len, in.data, in.len);
    }
    d->text_len += in.len;
    return in.len;
}

static void on_exited(struct mu_child *child, int status)
{
    MU_CONTAINER_OF(child, struct dog, child)->status = status;
}

static void on_gone(struct mu_child *child)
{
    MU_CONTAINER_OF(child, struct dog, child)->gone = true;
}

static const struct mu_child_events dog_events = {
    .started = on_started, .output = on_output, .exited = on_exited, .gone = on_gone};

static const char *const envp[] = {"PATH=/usr/bin:/bin", NULL};

static void open_kennel(struct kennel *k, const char *first, const char *second)
{
    const char *argv[] = {battery_eut->zoo, first, second, NULL};
    const struct mu_spawn what = {.argv = argv, .envp = envp};
    int rc;

    memset(k, 0, sizeof(*k));
    k->standbys.on = &kennel_events;
    VERB(rc = mu_env_standbys_open(battery_eut->env, &k->standbys, &what));
    assert_int_equal(rc, 0);
}

static bool three_wait(void *context)
{
    return ((struct kennel *)context)->standbys.waiting == 3;
}

static void want_three(struct kennel *k)
{
    VERB(mu_env_standbys_want(battery_eut->env, &k->standbys, 3));
    battery_run_until(three_wait, k);
}

static void close_kennel(struct kennel *k)
{
    VERB(mu_env_standbys_close(battery_eut->env, &k->standbys));
    VERB(mu_env_standbys_close(battery_eut->env, &k->standbys));
    assert_false(k->ended);
    battery_run_until_set(&k->ended);
    assert_string_equal(k->why, "");
}

static int take(struct kennel *k, struct dog *d, const char *word)
{
    const char *argv[] = {battery_eut->zoo, word, "exit=3", NULL};
    struct mu_spawn what = {
        .argv = argv, .envp = envp, .streams = {[1] = {MU_SPAWN_PIPE, NULL}}, .from = &k->standbys};
    int rc;

    *d = (struct dog){.child.on = &dog_events, .start_status = 1};
    VERB(rc = mu_env_spawn(battery_eut->env, &d->child, &what));
    return rc;
}

static void test_standbys_become_children(void **state)
{
    struct kennel k;
    struct dog dogs[3];

    (void)state;
    open_kennel(&k, "zygote", NULL);
    assert_int_equal(take(&k, &dogs[0], "out=early"), MUSTER_EAGAIN);
    want_three(&k);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(take(&k, &dogs[i], "out=woof"), 0);
        assert_int_equal(k.standbys.waiting, 2 - i);
    }
    for (int i = 0; i < 3; i++) {
        battery_run_until_set(&dogs[i].gone);
        assert_int_equal(dogs[i].start_status, 0);
        assert_true(dogs[i].child.pid > 0);
        assert_int_equal(dogs[i].status, 3);
        assert_string_equal(dogs[i].text, "woof\n");
    }
    assert_int_equal(take(&k, &dogs[0], "out=none"), MUSTER_EAGAIN);
    close_kennel(&k);
}

static void test_standbys_that_were_used_are_replaced_when_wanted(void **state)
{
    struct kennel k;
    struct dog d;

    (void)state;
    open_kennel(&k, "zygote", NULL);
    want_three(&k);
    assert_int_equal(take(&k, &d, "out=one"), 0);
    battery_run_until_set(&d.gone);
    assert_int_equal(k.standbys.waiting, 2);
    want_three(&k);
    close_kennel(&k);
}

static void test_child_outlives_the_standbys_it_comes_from(void **state)
{
    struct kennel k;
    struct dog d;

    (void)state;
    open_kennel(&k, "zygote", NULL);
    want_three(&k);
    assert_int_equal(take(&k, &d, "sleep=0"), 0);
    close_kennel(&k);
    assert_false(d.gone);
    VERB((void)mu_env_child_signal(battery_eut->env, &d.child, SIGTERM, MU_CHILD_FAMILY));
    battery_run_until_set(&d.gone);
    assert_int_equal(d.status, -SIGTERM);
}

static void test_zygote_that_refuses_says_why(void **state)
{
    struct kennel k;

    (void)state;
    open_kennel(&k, "refuse=no such module", NULL);
    VERB(mu_env_standbys_want(battery_eut->env, &k.standbys, 3));
    battery_run_until_set(&k.ended);
    assert_true(k.refused);
    assert_string_equal(k.why, "no such module");
}

static void test_zygote_that_dies_takes_those_that_wait_with_it(void **state)
{
    struct kennel k;
    struct dog d;

    (void)state;
    open_kennel(&k, "dies=300", "zygote");
    VERB(mu_env_standbys_want(battery_eut->env, &k.standbys, MU_STANDBYS_MAX + 1));
    VERB(mu_env_standbys_want(battery_eut->env, &k.standbys, 3));
    battery_run_until_set(&k.ended);
    assert_false(k.refused);
    assert_string_equal(k.why, "it was ended by signal 9");
    open_kennel(&k, "zygote", NULL);
    want_three(&k);
    assert_int_equal(take(&k, &d, "out=again"), 0);
    battery_run_until_set(&d.gone);
    close_kennel(&k);
}

static void test_standbys_of_nothing_are_refused(void **state)
{
    struct kennel k = {.standbys.on = &kennel_events};
    const struct mu_spawn what = {0};
    int rc;

    (void)state;
    VERB(rc = mu_env_standbys_open(battery_eut->env, &k.standbys, &what));
    assert_int_equal(rc, MUSTER_EINVAL);
    battery_run_for_ms(2);
    assert_false(k.ended);
}

const struct CMUnitTest battery_standby_tests[] = {
    cmocka_unit_test(test_standbys_become_children),
    cmocka_unit_test(test_standbys_that_were_used_are_replaced_when_wanted),
    cmocka_unit_test(test_child_outlives_the_standbys_it_comes_from),
    cmocka_unit_test(test_zygote_that_refuses_says_why),
    cmocka_unit_test(test_zygote_that_dies_takes_those_that_wait_with_it),
    cmocka_unit_test(test_standbys_of_nothing_are_refused),
    {0},
};

/* Trainers of one run: how far each is, and how one that is behind catches up. */
#include "state_rig.h"

#include <math.h>
#include <time.h>

#define PREFIX "run_state_averager"

static muster_runtime *rt;

static int set_up(void **state)
{
    (void)state;
    return muster_runtime_new(&rt);
}

static int tear_down(void **state)
{
    (void)state;
    muster_runtime_free(rt);
    return 0;
}

static void must(int err)
{
    if (err != 0) {
        fail_msg("%s\n%s", muster_errmsg(), muster_state_report());
    }
}

struct trainer {
    muster_state *state;
    muster_progress *progress;
    struct model model;
};

static const char *first[1];

static void trainer_open(struct trainer *t, uint64_t seed, uint64_t epoch)
{
    struct muster_state_config config = muster_state_config_defaults();
    struct muster_progress_config progress = muster_progress_config_defaults();

    config.listen = "/ip4/127.0.0.1/tcp/0";
    config.key = "";
    config.dht = first;
    config.dht_count = first[0] == NULL ? 0 : 1;
    config.hivemind = "DecentralizedAverager";
    must(muster_state_open(rt, &config, &t->state));
    progress.run = "run";
    progress.batch = 100;
    progress.epoch = epoch;
    progress.look_ms = 50;
    must(muster_progress_open(t->state, &progress, &t->progress));
    assert_int_equal(muster_progress_open(t->state, &progress, &(muster_progress *){NULL}),
                     MUSTER_EBUSY);
    model_make(&t->model, 1, seed);
}

static void trainer_close(struct trainer *t)
{
    muster_progress_close(t->progress);
    muster_state_close(t->state);
    model_free(&t->model);
}

static void share(struct trainer *t, uint64_t epoch)
{
    /* {"lr_step": 4000}: where the schedule of the learning rate is. */
    struct muster_state_source source = {.size = sizeof(struct muster_state_source),
                                         .prefix = PREFIX,
                                         .epoch = epoch,
                                         .priority = (double)epoch,
                                         .metadata = {"\x81\xa7lr_step\xcd\x0f\xa0", 12},
                                         .tensors = t->model.tensors,
                                         .tensor_count = 3};

    must(muster_state_share(t->state, &source));
}

static void rest(void)
{
    struct timespec pause = {.tv_nsec = 5000000};

    (void)nanosleep(&pause, NULL);
}

/* Looks until the swarm is at that epoch with so many peers. */
static struct muster_progress_view await(struct trainer *t, uint64_t epoch, uint64_t peers)
{
    struct muster_progress_view v = {0};

    for (int i = 0; i < 4000; i++) {
        muster_progress_get(t->progress, &v);
        if (v.swarm_epoch == epoch && v.peers == peers) {
            return v;
        }
        rest();
    }
    fail_msg("epoch %d with %d peers", (int)v.swarm_epoch, (int)v.peers);
    return v;
}

struct order {
    char said[4];
    size_t count;
    int err;
};

static int join_round(void *context)
{
    struct order *o = context;

    o->said[o->count++] = 'r';
    return MUSTER_ECONN; /* A round that fails is let go of. */
}

static int await_updates(void *context)
{
    struct order *o = context;

    o->said[o->count++] = 'u';
    return o->err;
}

static void test_progress_of_all_trainers_ends_an_epoch(void **state)
{
    struct muster_progress_view v;
    struct trainer t[2];

    (void)state;
    first[0] = NULL;
    trainer_open(&t[0], 0, 3);
    first[0] = muster_state_address(t[0].state);
    trainer_open(&t[1], 1, 3);
    muster_progress_report(t[0].progress, 3, 40);
    muster_progress_report(t[1].progress, 3, 30);
    v = await(&t[0], 3, 2);
    assert_int_equal(v.epoch, 3);
    for (int i = 0; v.swarm_samples != 70 && i < 2000; i++) {
        rest();
        muster_progress_get(t[0].progress, &v);
    }
    assert_int_equal(v.swarm_samples, 70);
    assert_false(muster_progress_needs_state(t[0].progress));
    muster_progress_report(t[1].progress, 3, 60);
    for (int i = 0; !muster_progress_ready(t[0].progress) && i < 2000; i++) {
        rest();
    }
    assert_true(muster_progress_ready(t[0].progress));
    muster_progress_enter_epoch(t[0].progress, 4);
    muster_progress_get(t[0].progress, &v);
    assert_int_equal(v.epoch, 4);
    assert_int_equal(v.samples, 0);
    assert_false(muster_progress_ready(t[0].progress));

    /* Who leaves says so. */
    trainer_close(&t[1]);
    v = await(&t[0], 4, 1);
    trainer_close(&t[0]);
}

static void test_progress_newcomer_catches_up(void **state)
{
    struct muster_state_request r = muster_state_request_defaults();
    struct order order = {.err = MUSTER_EBUSY};
    struct muster_progress_hooks hooks = {sizeof(hooks), join_round, await_updates, &order};
    struct muster_progress_view v;
    struct trainer t[3];
    struct model mine;
    muster_state_copy *copy;

    (void)state;
    first[0] = NULL;
    trainer_open(&t[0], 0, 7);
    first[0] = muster_state_address(t[0].state);
    trainer_open(&t[1], 1, 7);
    share(&t[0], 7);
    muster_progress_report(t[0].progress, 7, 10);
    muster_progress_report(t[1].progress, 7, 10);
    (void)await(&t[0], 7, 2);
    trainer_open(&t[2], 2, 0);
    (void)await(&t[2], 7, 2);
    assert_true(muster_progress_needs_state(t[2].progress));
    assert_true(muster_progress_needs_state(t[2].progress)); /* more than the tolerance */
    model_make(&mine, 1, 9);
    r.prefix = PREFIX;
    r.tensors = mine.tensors;
    r.tensor_count = 3;
    r.timeout_ms = 20000;

    /* Updates that do not end: nothing is loaded. */
    assert_int_equal(muster_progress_catch_up(t[2].progress, &hooks, &r, &copy), MUSTER_EBUSY);
    assert_string_equal(order.said, "ru");
    order = (struct order){.err = 0};
    must(muster_progress_catch_up(t[2].progress, &hooks, &r, &copy));
    assert_string_equal(order.said, "ru");
    model_assert_same(&mine, &t[0].model);
    assert_int_equal(muster_state_copy_metadata(copy).len, 12);
    muster_state_copy_free(copy);
    muster_progress_get(t[2].progress, &v);
    assert_int_equal(v.epoch, 7);
    assert_false(muster_progress_needs_state(t[2].progress));
    for (size_t i = 3; i-- > 0;) {
        trainer_close(&t[i]);
    }
    model_free(&mine);
}

static void test_progress_paused_does_not_look(void **state)
{
    struct muster_progress_view v;
    struct trainer t[2];
    uint64_t looks;

    (void)state;
    first[0] = NULL;
    trainer_open(&t[0], 0, 1);
    first[0] = muster_state_address(t[0].state);
    trainer_open(&t[1], 1, 1);
    muster_progress_report(t[0].progress, 1, 10);
    (void)await(&t[0], 1, 1);
    muster_progress_pause(t[0].progress);
    muster_progress_report(t[1].progress, 1, 10);
    muster_progress_get(t[1].progress, &v);
    looks = v.looks;
    (void)await(&t[1], 1, 2);
    for (int i = 0; v.looks < looks + 4 && i < 2000; i++) {
        rest();
        muster_progress_get(t[1].progress, &v);
    }
    muster_progress_get(t[0].progress, &v);
    assert_int_equal(v.peers, 1);
    muster_progress_resume(t[0].progress);
    (void)await(&t[0], 1, 2);
    trainer_close(&t[1]);
    trainer_close(&t[0]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_progress_of_all_trainers_ends_an_epoch),
        cmocka_unit_test(test_progress_newcomer_catches_up),
        cmocka_unit_test(test_progress_paused_does_not_look),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}

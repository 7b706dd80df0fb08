/*
 * What agents make of the health of their machine, with a probe of the test's own: the real one
 * looks at GPUs and at the rest in two threads, and either may be first.
 */
#include "agent_seats.h"

#define GPUS 8

struct mu_health_probe {
    struct mu_health health;
};

static struct mu_health_probe the_probe;

static int probe_open(struct mu_env *env, const struct mu_health_config *config,
                      struct mu_health_probe **ret_probe)
{
    (void)env;
    (void)config;
    *ret_probe = &the_probe;
    return 0;
}

static void probe_read(struct mu_health_probe *probe, struct mu_health *ret_health)
{
    *ret_health = probe->health;
}

static uint64_t probe_version(struct mu_health_probe *probe)
{
    (void)probe;
    return 1;
}

static void probe_ask(struct mu_health_probe *probe)
{
    (void)probe;
}

static void probe_close(struct mu_health_probe *probe)
{
    (void)probe;
}

static const struct mu_health_source the_source = {
    .open = probe_open,
    .read = probe_read,
    .version = probe_version,
    .ask = probe_ask,
    .close = probe_close,
};

static const struct mu_health_source *source(struct mu_env *env)
{
    (void)env;
    return &the_source;
}

/* --- the machine ------------------------------------------------------------------------------ */

static int machine_setup(void **state)
{
    static struct mu_env_ops ops;
    struct mu_health *h = &the_probe.health;
    int err = seats_setup(state);

    ops = *mu_uv_env_env(uv)->ops;
    ops.health = source;
    mu_uv_env_env(uv)->ops = &ops;
    *h = (struct mu_health){.gpu_state = MU_HEALTH_GPUS_SEEN, .gpu_count = GPUS};
    for (int i = 0; i < GPUS; i++) {
        (void)snprintf(h->gpus[i].name, sizeof(h->gpus[i].name), "GPU");
    }
    return err;
}

static struct seat *start_with_gpus(const char *script, const char *visible)
{
    static const char *inherited[] = {"PATH=/usr/bin:/bin", NULL, NULL};
    struct seat *a = seat_prepare(0, script, 1, 1, "");

    inherited[1] = visible;
    a->config.inherited = inherited;
    a->config.health = MU_AGENT_HEALTH_ON;
    a->config.policy.check = true;
    seat_start(a);
    return a;
}

/* --- the tests -------------------------------------------------------------------------------- */

static void test_gpu_of_others_does_not_keep_the_node_out(void **state)
{
    struct seat *a;

    (void)state;
    the_probe.health.gpus[1].lost = true;
    the_probe.health.gpu_looks = 1;
    the_probe.health.host_looks = 0; /* the rest was not seen yet */
    a = start_with_gpus("true", "CUDA_VISIBLE_DEVICES=4,5");
    seat_wait_ended(a);
    assert_outcome(a, MU_AGENT_SUCCEEDED);
    assert_null(strstr(a->log, "GPU 1"));
}

static void test_own_gpu_keeps_the_node_out(void **state)
{
    struct seat *a;

    (void)state;
    the_probe.health.gpus[5].lost = true;
    the_probe.health.gpu_looks = 1;
    a = start_with_gpus("true", "CUDA_VISIBLE_DEVICES=4,5");
    while (strstr(a->log, "this node is kept out by its check: GPU 5 is lost") == NULL) {
        mu_uv_env_turn(uv);
    }
    seat_stop(a);
    assert_int_equal(a->starts, 0);
}

/* What counts is what was seen of the GPUs at first, whichever thread was first. */
static void test_errors_count_from_the_first_look_at_gpus(void **state)
{
    struct seat *a;

    (void)state;
    the_probe.health.gpus[4].has_ecc = true;
    the_probe.health.gpus[4].ecc_errors = 7;
    the_probe.health.gpu_looks = 1;
    the_probe.health.host_looks = 0;
    a = start_with_gpus("exec sleep 1000", "CUDA_VISIBLE_DEVICES=4,5");
    while (a->starts == 0) {
        mu_uv_env_turn(uv);
    }
    the_probe.health.host_looks = 1;
    the_probe.health.gpus[4].ecc_errors = 9;
    while (strstr(a->log, "GPU 4 has had 2 uncorrected memory errors") == NULL) {
        mu_uv_env_turn(uv);
    }
    seat_stop(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_gpu_of_others_does_not_keep_the_node_out,
                                        machine_setup, seats_teardown),
        cmocka_unit_test_setup_teardown(test_own_gpu_keeps_the_node_out, machine_setup,
                                        seats_teardown),
        cmocka_unit_test_setup_teardown(test_errors_count_from_the_first_look_at_gpus,
                                        machine_setup, seats_teardown),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

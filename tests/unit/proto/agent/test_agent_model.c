/*
 * The agent's policy in a world from a seed (agent_world.h), thousands of times: never two
 * generations of workers alive, each child reaped once, the restart budget kept, the first failure
 * named, every wait bounded, everything ends. And worlds with a planted bug, which must be found.
 *
 *     test_agent_model                  some thousand seeds
 *     test_agent_model --seeds 100000   that many
 *     test_agent_model --seed 0x1f3a    one, told step by step
 */
#include "unit.h"

#include <stdlib.h>

#include "agent_world.h"

static uint64_t seed_count = 5000;
static struct world world;

static const char *const plants[] = {
    [WORLD_EARLY_GONE] = "a driver that forgets the children of workers",
    [WORLD_NO_BUDGET] = "a machine that forgets restarts",
    [WORLD_DEAF] = "a driver that does not watch the time",
    [WORLD_REAPS_TWICE] = "a machine that forgets who has exited",
    [WORLD_CLOSING_SIGNAL] = "a signal that closes the run",
    [WORLD_WISHFUL] = "a driver that takes every exit for a good one",
    [WORLD_LAST_BLAMED] = "a machine that names the last failure",
    [WORLD_HASTY] = "a machine that starts when it is assigned",
};

static void test_agent_model_keeps_every_promise(void **state)
{
    uint64_t outcomes[6] = {0};
    uint64_t generations = 0;
    uint64_t steps = 0;
    (void)state;

    for (uint64_t seed = 0; seed < seed_count; seed++) {
        world_init(&world, seed, WORLD_SOUND);
        world_run(&world);
        if (world.fault[0] != '\0') {
            fail_msg("seed 0x%llx: %s", (unsigned long long)seed, world.fault);
        }
        outcomes[world.outcome] += 1;
        generations += world.generation;
        steps += world.steps;
    }
    for (int i = MU_AGENT_SUCCEEDED; i <= MU_AGENT_ERROR; i++) {
        print_message("%8llu %s\n", (unsigned long long)outcomes[i],
                      mu_agent_outcome_name((enum mu_agent_outcome)i));
        assert_true(outcomes[i] > seed_count / 1000);
    }
    print_message("%8llu generations, %llu steps\n", (unsigned long long)generations,
                  (unsigned long long)steps);
}

static void test_agent_model_finds_what_is_planted(void **state)
{
    (void)state;

    for (int plant = 1; plant < WORLD_PLANTS; plant++) {
        uint64_t seed = 0;

        do {
            world_init(&world, seed, (enum world_plant)plant);
            world_run(&world);
            seed += 1;
        } while (world.fault[0] == '\0' && seed < 1000);
        if (world.fault[0] == '\0') {
            fail_msg("not found in %llu seeds: %s", (unsigned long long)seed, plants[plant]);
        }
        print_message("seed %llu: %s (%s)\n", (unsigned long long)seed - 1, world.fault,
                      plants[plant]);
    }
}

/* The same seed tells the same story. */
static void test_agent_model_is_deterministic(void **state)
{
    static struct world again;
    (void)state;

    for (uint64_t seed = 0; seed < 20; seed++) {
        world_init(&world, seed, WORLD_SOUND);
        world_run(&world);
        world_init(&again, seed, WORLD_SOUND);
        world_run(&again);
        assert_int_equal(world.steps, again.steps);
        assert_int_equal(world.now_ms, again.now_ms);
        assert_int_equal(world.prng.state, again.prng.state);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_agent_model_keeps_every_promise),
        cmocka_unit_test(test_agent_model_finds_what_is_planted),
        cmocka_unit_test(test_agent_model_is_deterministic),
    };

    if (argc == 3 && strcmp(argv[1], "--seeds") == 0) {
        seed_count = strtoull(argv[2], NULL, 0);
    } else if (argc == 3 && strcmp(argv[1], "--seed") == 0) {
        world_init(&world, strtoull(argv[2], NULL, 0), WORLD_SOUND);
        world.loud = true;
        world_run(&world);
        printf("%s\n", world.fault[0] == '\0' ? "every promise was kept" : world.fault);
        return world.fault[0] != '\0';
    }
    return cmocka_run_group_tests_name("agent_model", tests, NULL, NULL);
}

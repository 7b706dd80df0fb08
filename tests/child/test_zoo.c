/*
 * The process zoo. Each round starts a handful of beasts of random habits, stops them as a launcher
 * would (a signal to the groups, then KILL to the families, with the time between them cut short),
 * and looks into /proc: nothing lives, no zombie is left. Other rounds are those of an agent that
 * is killed with SIGKILL while its beasts run, where nothing may be left within a bound.
 *
 *     test_zoo ZOO [--rounds N] [--seed S]
 */
#include "zoo_rig.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/prng.h"
#include "transport/child_internal.h"

#define BEASTS 4
#define HABITS 14

/* What a beast does, up to a NULL. Those that end by themselves come first. */
static const char *const habits[HABITS][8] = {
    {"exit=0"},
    {"exit=3"},
    {"raise=11"},
    {"out=x", "daemon=0", "exit=0"},
    {"child=0", "daemon=0", "raise=9"},
    {"flood=300", "exit=0"},
    {"daemon=3", "daemon=1", "daemon=2", "exit=1"},
    {"sleep=0"},
    {"ignore=15", "sleep=0"},
    {"ignore=0", "child=0", "daemon=0", "sleep=0"},
    {"raise=19", "sleep=0"},
    {"scrub=0", "daemon=0", "sleep=0"},
    {"closed", "daemon=0", "child=0", "sleep=0"},
    {"bomb=24"},
};

static int rounds = 12;
static uint64_t seed = 1;
static const char *own_path;
static const char *program;

static void start_some(struct beast *beasts, struct mu_prng *prng)
{
    for (int i = 0; i < BEASTS; i++) {
        const char *const *habit = habits[mu_prng_below(prng, HABITS)];

        beast_init(&beasts[i]);
        if (mu_prng_below(prng, 12) == 0) {
            struct mu_spawn what = {0};

            assert_int_equal(
                beast_spawn(&beasts[i], &what, (const char *[]){"/no/such/beast", NULL}), 0);
            continue;
        }
        beast_start(&beasts[i], habit[0], habit[1], habit[2], habit[3], habit[4], NULL);
    }
}

/* As a launcher stops its workers, at any point of their lives. */
static void stop_all(struct beast *beasts, struct mu_prng *prng)
{
    zoo_run_ms(mu_prng_below(prng, 15));
    for (int i = 0; i < BEASTS; i++) {
        if (!beasts[i].gone && !beasts[i].exited) {
            (void)mu_env_child_signal(zoo_env, &beasts[i].child, SIGTERM, MU_CHILD_GROUP);
        }
    }
    zoo_run_ms(mu_prng_below(prng, 10));
    for (int i = 0; i < BEASTS; i++) {
        if (!beasts[i].gone) {
            (void)mu_env_child_signal(zoo_env, &beasts[i].child, SIGKILL, MU_CHILD_FAMILY);
        }
    }
    for (int i = 0; i < BEASTS; i++) {
        zoo_run_until(&beasts[i].gone);
    }
}

static struct beast beasts[BEASTS + 1];
static char own_id[17];

/* Fails for every cgroup that is there, so that they are counted. */
static int note_cgroup(const struct mu_cgroup *g, uint64_t number)
{
    (void)g;
    (void)number;
    return -EEXIST;
}

static void assert_no_cgroups(const char *id)
{
    struct mu_cgroup g;
    size_t left = 1;

    mu_cgroup_find(&g, id);
    for (int i = 0; i < ZOO_PATIENCE_MS && left > 0; i++) {
        left = mu_cgroup_each(&g, note_cgroup);
        if (left > 0) {
            (void)usleep(1000);
        }
    }
    assert_int_equal(left, 0);
}

static void run_rounds(bool cgroups, uint64_t from)
{
    struct mu_prng prng;

    mu_uv_env_use_cgroups(zoo_uv, cgroups);
    for (int i = 0; i < rounds; i++) {
        mu_prng_seed(&prng, from + (uint64_t)i);
        start_some(beasts, &prng);
        stop_all(beasts, &prng);
        zoo_assert_empty();
    }
    beast_init(&beasts[0]);
    beast_start(&beasts[0], "env=MUSTER_CHILD", NULL);
    zoo_run_until(&beasts[0].gone);
    (void)snprintf(own_id, sizeof(own_id), "%.16s", beasts[0].text[0]);
}

static void test_zoo_leaves_nothing_behind(void **state)
{
    (void)state;
    run_rounds(false, seed);
}

static void test_zoo_leaves_nothing_behind_with_cgroups(void **state)
{
    (void)state;
    zoo_skip_without_cgroups();
    run_rounds(true, seed + 1000000);
}

/* With the end of the loop the last of its cgroups is gone. */
static int down_without_cgroups(void **state)
{
    int rc = zoo_down(state);

    assert_no_cgroups(own_id);
    return rc;
}

static void test_zoo_of_bombs_is_defused(void **state)
{
    (void)state;
    mu_uv_env_use_cgroups(zoo_uv, false);
    for (int i = 0; i < 2; i++) {
        beast_init(&beasts[i]);
        beast_start(&beasts[i], "bomb=150", NULL);
    }
    zoo_run_ms(3); /* in the middle of it, or not */
    for (int i = 0; i < 2; i++) {
        (void)mu_env_child_signal(zoo_env, &beasts[i].child, SIGKILL, MU_CHILD_FAMILY);
    }
    zoo_run_until(&beasts[0].gone);
    zoo_run_until(&beasts[1].gone);
    zoo_assert_empty();
}

/* --- an agent that is killed ------------------------------------------------------------------ */

/* In a process of its own: starts beasts, says so, and waits to be killed. */
static int be_agent(const char *zoo, bool cgroups, uint64_t from)
{
    struct mu_prng prng;

    /* The copy is the test's; this process only uses it. */
    (void)snprintf(zoo_path, sizeof(zoo_path), "%s", zoo);
    mu_prng_seed(&prng, from);
    if (zoo_up(NULL) != 0) {
        return 1;
    }
    mu_uv_env_use_cgroups(zoo_uv, cgroups);
    for (int i = 0; i < BEASTS; i++) {
        /* A stray without any mark, whose agent dies, is out of reach but for a cgroup. */
        const char *const *habit;

        do {
            habit = habits[mu_prng_below(&prng, HABITS)];
        } while (!cgroups && strcmp(habit[0], "scrub=0") == 0);
        beast_init(&beasts[i]);
        beast_start(&beasts[i], habit[0], habit[1], habit[2], habit[3], habit[4], NULL);
    }
    if (mu_prng_below(&prng, 2) == 0) {
        for (int i = 0; i < BEASTS; i++) {
            zoo_run_until(&beasts[i].started);
        }
        zoo_run_ms(mu_prng_below(&prng, 10));
    }
    /* It may not have got around to its name yet; that is all this waits for. */
    while (zoo_watcher_of(getpid()) == 0) {
        zoo_run_ms(1);
    }
    beast_init(&beasts[BEASTS]);
    beast_start(&beasts[BEASTS], "env=MUSTER_CHILD", "sleep=0", NULL);
    beast_run_until_said(&beasts[BEASTS], "\n");
    printf("watcher %ld of %.16s\n", (long)zoo_watcher_of(getpid()), beasts[BEASTS].text[0]);
    fflush(stdout);
    for (;;) {
        mu_uv_env_turn(zoo_uv);
    }
}

static bool is_there(long pid)
{
    return kill((pid_t)pid, 0) == 0 || errno != ESRCH;
}

static void kill_agent(bool cgroups, uint64_t from)
{
    char number[32];
    char line[64] = "";
    char id[17] = "";
    long watcher = 0;
    int status;
    int fds[2];
    pid_t pid;
    FILE *says;

    (void)snprintf(number, sizeof(number), "%llu", (unsigned long long)from);
    assert_int_equal(pipe(fds), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)dup2(fds[1], 1);
        (void)close(fds[0]);
        (void)close(fds[1]);
        (void)execl(own_path, own_path, zoo_path, cgroups ? "--agent-cgroups" : "--agent", number,
                    (char *)NULL);
        _exit(127);
    }
    (void)close(fds[1]);
    says = fdopen(fds[0], "r");
    assert_non_null(fgets(line, sizeof(line), says));
    assert_int_equal(sscanf(line, "watcher %ld of %16s", &watcher, id), 2);
    assert_true(watcher > 0);

    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);

    assert_true(zoo_empties());
    /* The watcher holds nothing of ours open, or this would wait for it. */
    assert_null(fgets(line, sizeof(line), says));
    (void)fclose(says);
    for (int i = 0; i < ZOO_PATIENCE_MS && is_there(watcher); i++) {
        (void)usleep(1000);
        (void)waitpid((pid_t)watcher, NULL, WNOHANG);
    }
    assert_false(is_there(watcher));
    assert_no_cgroups(id);
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
}

static void test_killed_agent_leaves_nothing_behind(void **state)
{
    (void)state;
    for (int i = 0; i < (rounds + 1) / 2; i++) {
        kill_agent(false, seed + 2000000 + (uint64_t)i);
    }
}

static void test_killed_agent_leaves_nothing_behind_with_cgroups(void **state)
{
    (void)state;
    zoo_skip_without_cgroups();
    for (int i = 0; i < (rounds + 1) / 2; i++) {
        kill_agent(true, seed + 3000000 + (uint64_t)i);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_zoo_leaves_nothing_behind, zoo_up, zoo_down),
        cmocka_unit_test_setup_teardown(test_zoo_leaves_nothing_behind_with_cgroups, zoo_up,
                                        down_without_cgroups),
        cmocka_unit_test_setup_teardown(test_zoo_of_bombs_is_defused, zoo_up, zoo_down),
        cmocka_unit_test_teardown(test_killed_agent_leaves_nothing_behind, zoo_kill_left),
        cmocka_unit_test_teardown(test_killed_agent_leaves_nothing_behind_with_cgroups,
                                  zoo_kill_left),
    };
    int failed;

    if (argc == 4 && strncmp(argv[2], "--agent", 7) == 0) {
        return be_agent(argv[1], strcmp(argv[2], "--agent-cgroups") == 0,
                        strtoull(argv[3], NULL, 10));
    }
    for (int i = 2; i + 1 < argc; i += 2) {
        if (strcmp(argv[i], "--rounds") == 0) {
            rounds = (int)strtol(argv[i + 1], NULL, 10);
        } else if (strcmp(argv[i], "--seed") == 0) {
            seed = strtoull(argv[i + 1], NULL, 10);
        }
    }
    if (argc < 2) {
        (void)fprintf(stderr, "usage: test_zoo ZOO [--rounds N] [--seed S]\n");
        return 2;
    }
    own_path = "/proc/self/exe";
    program = argv[1];
    /* Orphans of an agent that was killed come to us, where zombies can be seen and reaped. */
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1);
    zoo_open(program);
    failed = cmocka_run_group_tests_name("zoo", tests, NULL, NULL);
    zoo_close();
    return skipped_or(failed);
}

/* What only real standbys can be asked: what they get, how they fail, whose strays are whose. */
#include "zoo_rig.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "core/err.h"
#include "failheap.h"

static struct beast b;
static struct mu_standbys standbys;
static bool enough; /* as many wait as are wanted */
static bool ended;
static uint32_t wanted;

static void on_changed(struct mu_standbys *s)
{
    enough = s->waiting >= wanted;
}

static void on_ended(struct mu_standbys *s, bool refused, const char *why)
{
    (void)s;
    (void)refused;
    (void)why;
    ended = true;
}

static int open_zygote(void)
{
    static const struct mu_standbys_events events = {.changed = on_changed, .ended = on_ended};
    const char *argv[] = {zoo_path, "zygote", NULL};
    const char *envp[] = {"ZOO=zygote", NULL};
    const struct mu_spawn what = {.argv = argv, .envp = envp};

    ended = false;
    standbys = (struct mu_standbys){.on = &events};
    return mu_env_standbys_open(zoo_env, &standbys, &what);
}

static void want(uint32_t count)
{
    wanted = count;
    enough = standbys.waiting >= count;
    mu_env_standbys_want(zoo_env, &standbys, count);
    zoo_run_until(&enough);
}

static void close_zygote(void)
{
    mu_env_standbys_close(zoo_env, &standbys);
    zoo_run_until(&ended);
    zoo_assert_empty();
}

static int take(struct mu_spawn *what, const char *first, const char *second)
{
    beast_init(&b);
    what->from = &standbys;
    return beast_spawn(&b, what, (const char *[]){zoo_path, first, second, NULL});
}

static void test_standby_gets_what_a_new_process_would(void **state)
{
    char path[128];
    char text[32] = "";
    FILE *file;
    struct mu_spawn what = {.streams = {{MU_SPAWN_NULL, NULL}, {MU_SPAWN_FILE, path}},
                            .cwd = zoo_dir};

    (void)state;
    (void)snprintf(path, sizeof(path), "%s/out", zoo_dir);
    assert_int_equal(open_zygote(), 0);
    want(3);
    assert_int_equal(take(&what, "env=ZOO", "cwd"), 0);
    zoo_run_until(&b.gone);
    what.streams[1].to = MU_SPAWN_FILE_APPEND;
    assert_int_equal(take(&what, "out=more", NULL), 0);
    zoo_run_until(&b.gone);
    file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(text, sizeof(text), file));
    assert_string_equal(text, "beast\n");
    assert_non_null(fgets(path, sizeof(path), file));
    assert_int_equal(strncmp(path, zoo_dir, strlen(zoo_dir)), 0);
    assert_non_null(fgets(text, sizeof(text), file));
    assert_string_equal(text, "more\n");
    (void)fclose(file);
    what.streams[1].to = MU_SPAWN_PIPE;
    assert_int_equal(take(&what, "state", "cat"), 0);
    zoo_run_until(&b.gone);
    assert_int_equal(strncmp(b.text[0], "session=1 group=1 blocked=0", 27), 0);
    close_zygote();
}

static void test_standby_gets_vaults(void **state)
{
    struct mu_spawn what = {.streams = {[1] = {MU_SPAWN_PIPE, NULL}}};
    struct mu_vault vault;
    char text[6];

    (void)state;
    assert_int_equal(mu_env_vaults(zoo_env)->make(1 << 20, &vault), 0);
    what.vaults[1] = &vault;
    assert_int_equal(open_zygote(), 0);
    want(1);
    assert_int_equal(take(&what, "fill=1001", NULL), 0);
    zoo_run_until(&b.gone);
    assert_string_equal(b.text[0], "filled sealed\n");
    assert_int_equal(mu_env_vaults(zoo_env)->read(&vault, 4096, text, sizeof(text)), 0);
    assert_memory_equal(text, "filled", sizeof(text));
    mu_env_vaults(zoo_env)->drop(&vault);
    close_zygote();
}

static void test_standby_that_cannot_become_a_child_says_why(void **state)
{
    struct mu_spawn what = {.cwd = "/nowhere"};

    (void)state;
    assert_int_equal(open_zygote(), 0);
    want(1);
    assert_int_equal(take(&what, "exit=0", NULL), 0);
    zoo_run_until(&b.gone);
    assert_string_equal(b.story, "Sg");
    assert_int_equal(b.start_status, -ENOENT);
    assert_string_equal(b.child.error.text, "chdir '': No such file or directory");
    close_zygote();
}

static void test_stray_goes_with_the_last_child_although_a_zygote_lives(void **state)
{
    (void)state;
    mu_uv_env_use_cgroups(zoo_uv, false);
    assert_int_equal(open_zygote(), 0);
    want(1);
    beast_init(&b);
    beast_start(&b, "scrub=0", "out=ready", "sleep=0", NULL);
    beast_run_until_said(&b, "ready");
    zoo_run_until_count(4); /* a zygote, a standby, a child and the stray */
    (void)mu_env_child_signal(zoo_env, &b.child, SIGKILL, MU_CHILD_FAMILY);
    zoo_run_until(&b.gone);
    assert_int_equal(zoo_count(), 2);
    close_zygote();
}

static void test_what_a_standby_leaves_behind_is_its_own(void **state)
{
    struct mu_spawn what = {.streams = {[1] = {MU_SPAWN_PIPE, NULL}}};

    (void)state;
    mu_uv_env_use_cgroups(zoo_uv, false);
    assert_int_equal(open_zygote(), 0);
    want(2);
    assert_int_equal(take(&what, "daemon=0", "out=ready"), 0);
    b.kill_on_exit = SIGKILL;
    zoo_run_until(&b.gone);
    assert_int_equal(zoo_count(), 2); /* the zygote and the other standby */
    assert_int_equal(standbys.waiting, 1);
    close_zygote();
}

static void test_standbys_without_memory_are_refused_whole(void **state)
{
    (void)state;
    for (long nth = 0;; nth++) {
        bool fired;
        int rc;

        failheap_arm(nth);
        rc = open_zygote();
        fired = failheap_fired();
        failheap_disarm();
        if (rc == 0) {
            close_zygote();
        } else {
            assert_int_equal(rc, MUSTER_ENOMEM);
            zoo_run_ms(1);
            assert_false(ended);
        }
        if (!fired) {
            assert_true(nth > 1);
            break;
        }
    }
}

static void test_child_without_memory_leaves_the_standby_waiting(void **state)
{
    (void)state;
    assert_int_equal(open_zygote(), 0);
    want(1);
    for (long nth = 0;; nth++) {
        struct mu_spawn what = {.streams = {[1] = {MU_SPAWN_PIPE, NULL}}};
        bool fired;
        int rc;

        failheap_arm(nth);
        rc = take(&what, "out=x", NULL);
        fired = failheap_fired();
        failheap_disarm();
        if (rc == 0) {
            zoo_run_until(&b.gone);
            assert_string_equal(b.text[0], "x\n");
            assert_false(fired);
            break;
        }
        assert_int_equal(rc, MUSTER_ENOMEM);
        assert_int_equal(standbys.waiting, 1);
    }
    close_zygote();
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, zoo_up, zoo_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_standby_gets_what_a_new_process_would),
        TEST(test_standby_gets_vaults),
        TEST(test_standby_that_cannot_become_a_child_says_why),
        TEST(test_stray_goes_with_the_last_child_although_a_zygote_lives),
        TEST(test_what_a_standby_leaves_behind_is_its_own),
        TEST(test_standbys_without_memory_are_refused_whole),
        TEST(test_child_without_memory_leaves_the_standby_waiting),
    };
    int failed;

    if (argc < 2) {
        (void)fprintf(stderr, "usage: test_standby ZOO\n");
        return 2;
    }
    zoo_open(argv[1]);
    failed = cmocka_run_group_tests_name("standby", tests, NULL, NULL);
    zoo_close();
    return failed;
}

/* What control groups of both versions allow, as machines and containers show it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "transport/memory_limit.h"

#define V1_MOUNT                                                                                   \
    "30 20 0:25 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n"                                  \
    "31 20 0:26 / /sys/fs/cgroup/memory rw,nosuid - cgroup cgroup rw,memory\n"
#define V2_MOUNT "30 20 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n"

static char root[64];

/* Writes a file below the root, with the directories that lead to it. */
static void put(const char *path, const char *text)
{
    char full[512];
    FILE *file;

    (void)snprintf(full, sizeof(full), "%s%s", root, path);
    for (char *at = full + strlen(root) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        (void)mkdir(full, 0700);
        *at = '/';
    }
    file = fopen(full, "w");
    assert_non_null(file);
    (void)fputs(text, file);
    (void)fclose(file);
}

static int make_root(void **state)
{
    (void)state;
    (void)snprintf(root, sizeof(root), "/tmp/muster-test-XXXXXX");
    return mkdtemp(root) == NULL ? -1 : 0;
}

static int drop_root(void **state)
{
    char command[128];

    (void)state;
    (void)snprintf(command, sizeof(command), "rm -rf %s", root);
    return system(command);
}

static void test_without_groups_there_is_no_limit(void **state)
{
    (void)state;
    assert_int_equal(mu_memory_limit_of(root), UINT64_MAX);
    put("/proc/self/cgroup", "nonsense\n4:memory:/a\n0::/a\n");
    put("/proc/self/mountinfo", "nonsense\n");
    assert_int_equal(mu_memory_limit_of(root), UINT64_MAX);
}

static void test_version_2_is_the_least_on_the_way_up(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/kubepods/pod7/box\n");
    put("/proc/self/mountinfo", V2_MOUNT);
    put("/sys/fs/cgroup/kubepods/memory.max", "max\n");
    put("/sys/fs/cgroup/kubepods/pod7/memory.max", "536870912\n");
    put("/sys/fs/cgroup/kubepods/pod7/box/memory.max", "max\n");
    assert_int_equal(mu_memory_limit_of(root), 536870912);
    put("/sys/fs/cgroup/kubepods/pod7/box/memory.max", "268435456\n");
    assert_int_equal(mu_memory_limit_of(root), 268435456);
}

/* With a namespace of its own a container is at the top of all that it sees. */
static void test_version_2_in_a_namespace_of_its_own(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "0::/\n");
    put("/proc/self/mountinfo", V2_MOUNT);
    put("/sys/fs/cgroup/memory.max", "536870912\n");
    assert_int_equal(mu_memory_limit_of(root), 536870912);
}

static void test_version_1_is_found_among_its_controllers(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "5:cpu,cpuacct:/x\n4:hugetlb,memory:/a/b\n0::/\n");
    put("/proc/self/mountinfo", V1_MOUNT);
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000000\n");
    put("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "9223372036854771712\n");
    assert_int_equal(mu_memory_limit_of(root), 1000000);
}

/* Without one, it is told its whole path, of which only its own end is mounted. */
static void test_version_1_in_a_container_of_the_old_kind(void **state)
{
    (void)state;
    put("/proc/self/cgroup", "4:memory:/docker/abc\n");
    put("/proc/self/mountinfo",
        "31 20 0:26 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "1000000\n");
    assert_int_equal(mu_memory_limit_of(root), 1000000);
}

static void test_version_2_counts_who_was_killed(void **state)
{
    struct mu_memory_groups groups;
    (void)state;

    mu_memory_groups(root, &groups);
    assert_int_equal(groups.kills, 0);
    put("/proc/self/cgroup", "0::/pod7/box\n");
    put("/proc/self/mountinfo", V2_MOUNT);
    put("/sys/fs/cgroup/pod7/memory.max", "536870912\n");
    put("/sys/fs/cgroup/pod7/memory.events", "low 0\noom 9\noom_kill 9\n");
    put("/sys/fs/cgroup/pod7/box/memory.events", "low 0\noom 1\noom_kill 2\noom_group_kill 5\n");
    mu_memory_groups(root, &groups);
    assert_int_equal(groups.kills, 2);
    assert_int_equal(groups.limit, 536870912);
    assert_string_equal(groups.dir, "/sys/fs/cgroup/pod7");
}

static void test_version_1_counts_who_was_killed(void **state)
{
    struct mu_memory_groups groups;
    (void)state;

    put("/proc/self/cgroup", "4:memory:/a\n0::/\n");
    put("/proc/self/mountinfo", V1_MOUNT);
    put("/sys/fs/cgroup/memory/a/memory.limit_in_bytes", "1000000\n");
    put("/sys/fs/cgroup/memory/a/memory.oom_control",
        "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n");
    mu_memory_groups(root, &groups);
    assert_int_equal(groups.kills, 3);
    assert_string_equal(groups.dir, "/sys/fs/cgroup/memory/a");
}

static void test_the_kernels_log_names_who_was_killed(void **state)
{
    char log[128];
    (void)state;

    (void)snprintf(log, sizeof(log), "%s/kmsg", root);
    assert_false(mu_memory_killed(log, 4711));
    put("/kmsg", "3,1,5,-;Memory cgroup out of memory: Killed process 4711 (python3) "
                 "total-vm:93256kB, anon-rss:65024kB\n");
    assert_true(mu_memory_killed(log, 4711));
    assert_false(mu_memory_killed(log, 471));
}

static void test_this_machine_has_a_limit(void **state)
{
    (void)state;
    assert_in_range(mu_memory_limit(), 1 << 20, UINT64_MAX - 1);
}

int main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, make_root, drop_root)
    const struct CMUnitTest tests[] = {
        TEST(test_without_groups_there_is_no_limit),
        TEST(test_version_2_is_the_least_on_the_way_up),
        TEST(test_version_2_in_a_namespace_of_its_own),
        TEST(test_version_1_is_found_among_its_controllers),
        TEST(test_version_1_in_a_container_of_the_old_kind),
        TEST(test_version_2_counts_who_was_killed),
        TEST(test_version_1_counts_who_was_killed),
        TEST(test_the_kernels_log_names_who_was_killed),
        TEST(test_this_machine_has_a_limit),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * Goal: each worker gets the CPUs that PyTorch 2.11 would give it. The machines are made up: files
 * as the kernel and NVIDIA's driver have them, below a folder of the test's own.
 */
#include "unit.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/run_numa.h"

static char root[] = "/tmp/muster-numa-XXXXXX";
static struct run_numa numa;
static struct mu_errmsg msg;

/* --- machines --------------------------------------------------------------------------------- */

__attribute__((format(printf, 1, 3))) static void put(const char *format, const char *text, ...)
{
    char path[512];
    va_list args;
    FILE *file;
    int at = snprintf(path, sizeof(path), "%s", root);

    va_start(args, text);
    (void)vsnprintf(path + at, sizeof(path) - (size_t)at, format, args);
    va_end(args);
    for (char *slash = strchr(path + at + 1, '/'); slash != NULL; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        assert_true(mkdir(path, 0700) == 0 || errno == EEXIST);
        *slash = '/';
    }
    file = fopen(path, "w");
    assert_non_null(file);
    (void)fprintf(file, "%s\n", text);
    (void)fclose(file);
}

static int forget(const char *path, const struct stat *status, int kind, struct FTW *at)
{
    (void)status;
    (void)kind;
    return at->level == 0 ? 0 : remove(path);
}

static int clear_machine(void **state)
{
    (void)state;
    return nftw(root, forget, 16, FTW_DEPTH | FTW_PHYS);
}

static void put_node(unsigned node, const char *cpus)
{
    put("/sys/devices/system/node/node%u/cpulist", cpus, node);
}

static void put_gpu(const char *address, const char *node, const char *uuid)
{
    char text[128];

    (void)snprintf(text, sizeof(text), "Model: \t\t NVIDIA H200\nGPU UUID: \t %s\nDevice Minor: 0",
                   uuid);
    put("/proc/driver/nvidia/gpus/%s/information", text, address);
    put("/sys/bus/pci/devices/%s/numa_node", node, address);
}

/* One CPU: its socket, the threads of its core, and the CPUs that share its last cache. */
static void put_cpu(unsigned cpu, const char *socket, const char *threads, const char *cache)
{
    static const struct {
        const char *type, *level;
    } caches[] = {{"Data", "1"}, {"Instruction", "1"}, {"Unified", "2"}, {"Unified", "3"}};

    put("/sys/devices/system/cpu/cpu%u/topology/physical_package_id", socket, cpu);
    put("/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", threads, cpu);
    for (unsigned i = 0; i < 4; i++) {
        put("/sys/devices/system/cpu/cpu%u/cache/index%u/type", caches[i].type, cpu, i);
        put("/sys/devices/system/cpu/cpu%u/cache/index%u/level", caches[i].level, cpu, i);
        put("/sys/devices/system/cpu/cpu%u/cache/index%u/shared_cpu_list", i == 3 ? cache : threads,
            cpu, i);
    }
}

/*
 * Two sockets with two nodes each, four cores a node, two threads a core (N and N + 16), and two
 * caches a node. GPUs: two at node 0, one at node 1, three at node 3.
 */
static void put_server(void)
{
    char threads[32], cache[64], cpus[32];

    put("/sys/devices/system/node/possible", "0-3");
    for (unsigned node = 0; node < 4; node++) {
        (void)snprintf(cpus, sizeof(cpus), "%u-%u,%u-%u", node * 4, node * 4 + 3, node * 4 + 16,
                       node * 4 + 19);
        put_node(node, cpus);
    }
    for (unsigned cpu = 0; cpu < 32; cpu++) {
        unsigned core = cpu % 16, first = core / 2 * 2;

        (void)snprintf(threads, sizeof(threads), "%u,%u", core, core + 16);
        (void)snprintf(cache, sizeof(cache), "%u-%u,%u-%u", first, first + 1, first + 16,
                       first + 17);
        put_cpu(cpu, core < 8 ? "0" : "1", threads, cache);
    }
    put_gpu("0000:81:00.0", "1", "GPU-cc");
    put_gpu("0000:01:00.0", "0", "GPU-aa");
    put_gpu("0000:41:00.0", "0", "GPU-bb");
    put_gpu("0000:c1:00.0", "3", "GPU-dd");
    put_gpu("0000:c2:00.0", "3", "GPU-ee");
    put_gpu("0000:c3:00.0", "3", "GPU-ff");
}

static int open_machine(const char *visible, const char *allowed)
{
    struct mu_cpus cpus;

    assert_true(run_cpus_parse(allowed, &cpus));
    return run_numa_open(&numa, root, visible, &cpus, &msg);
}

static void assert_cpus(enum run_numa_mode mode, uint32_t gpu, const char *wanted)
{
    struct mu_cpus want, got;

    assert_true(run_cpus_parse(wanted, &want));
    if (run_numa_choose(&numa, mode, gpu, &got, &msg) != 0) {
        fail_msg("mode %d, GPU %u: %s", mode, gpu, msg.text);
    }
    if (memcmp(&want, &got, sizeof(want)) != 0) {
        fail_msg("mode %d, GPU %u: not %s but %llx", mode, gpu, wanted,
                 (unsigned long long)got.bits[0]);
    }
}

/* --- tests ------------------------------------------------------------------------------------ */

static void test_run_numa_lists_are_the_kernels(void **state)
{
    static const char *const wrong[] = {"a", "1-", "-1", "3,x", "4096", "1-4096", "1--2", "1.5"};
    struct mu_cpus set;

    (void)state;
    assert_true(run_cpus_parse("0-2,4,6-7\n", &set));
    assert_int_equal(set.bits[0], 0xd7);
    assert_true(run_cpus_parse("\n", &set)); /* a node of memory alone */
    assert_int_equal(set.bits[0], 0);
    _Static_assert(MU_CPUS_MAX == 4096, "the numbers below meet the limit");
    assert_true(run_cpus_parse("4095", &set));
    assert_true(set.bits[63] == UINT64_C(1) << 63);
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_false(run_cpus_parse(wrong[i], &set));
    }
}

static void test_run_numa_node_and_socket(void **state)
{
    (void)state;
    put_server();
    assert_int_equal(open_machine(NULL, "0-31"), 0);
    assert_int_equal(numa.gpus, 6);
    assert_cpus(RUN_NUMA_NODE, 0, "0-3,16-19");
    assert_cpus(RUN_NUMA_NODE, 2, "4-7,20-23");
    assert_cpus(RUN_NUMA_NODE, 5, "12-15,28-31");
    assert_cpus(RUN_NUMA_SOCKET, 0, "0-7,16-23");
    assert_cpus(RUN_NUMA_SOCKET, 2, "0-7,16-23");
    assert_cpus(RUN_NUMA_SOCKET, 4, "8-15,24-31");
    /* Only what this process may use. */
    assert_int_equal(open_machine(NULL, "1,5-6,17"), 0);
    assert_cpus(RUN_NUMA_NODE, 0, "1,17");
    assert_cpus(RUN_NUMA_SOCKET, 0, "1,5-6,17");
    assert_int_equal(run_numa_choose(&numa, RUN_NUMA_NODE, 3, &numa.allowed, &msg), MUSTER_EINVAL);
    assert_non_null(strstr(msg.text, "has no CPU on which this process may run"));
}

static void test_run_numa_exclusive_divides_cores(void **state)
{
    (void)state;
    put_server();
    assert_int_equal(open_machine(NULL, "0-31"), 0);
    assert_cpus(RUN_NUMA_EXCLUSIVE, 0, "0-1,16-17");
    assert_cpus(RUN_NUMA_EXCLUSIVE, 1, "2-3,18-19");
    assert_cpus(RUN_NUMA_EXCLUSIVE, 2, "4-7,20-23");
    /* Four cores for three: the first has one more. */
    assert_cpus(RUN_NUMA_EXCLUSIVE, 3, "12-13,28-29");
    assert_cpus(RUN_NUMA_EXCLUSIVE, 4, "14,30");
    assert_cpus(RUN_NUMA_EXCLUSIVE, 5, "15,31");
    /* A core of which only one thread may be used is a core. */
    assert_int_equal(open_machine(NULL, "0,17"), 0);
    assert_cpus(RUN_NUMA_EXCLUSIVE, 0, "0");
    assert_cpus(RUN_NUMA_EXCLUSIVE, 1, "17");
    assert_int_equal(open_machine(NULL, "12-13"), 0);
    assert_int_equal(run_numa_choose(&numa, RUN_NUMA_EXCLUSIVE, 3, &numa.allowed, &msg),
                     MUSTER_EINVAL);
    assert_string_equal(msg.text, "NUMA node 3 has 3 GPUs but only 2 physical cores for them");
}

static void test_run_numa_core_complex_takes_the_fullest_caches_first(void **state)
{
    (void)state;
    put_server();
    assert_int_equal(open_machine(NULL, "0-31"), 0);
    assert_cpus(RUN_NUMA_CORE_COMPLEX, 0, "0-1,16-17");
    assert_cpus(RUN_NUMA_CORE_COMPLEX, 1, "2-3,18-19");
    assert_cpus(RUN_NUMA_CORE_COMPLEX, 3, "12-13,28-29");
    assert_cpus(RUN_NUMA_CORE_COMPLEX, 4, "14-15,30-31");
    assert_cpus(RUN_NUMA_CORE_COMPLEX, 5, "12-13,28-29"); /* there are only two */
    /* The first cache has one CPU left, the second three. */
    assert_int_equal(open_machine(NULL, "0,2-3,18"), 0);
    assert_cpus(RUN_NUMA_CORE_COMPLEX, 0, "2-3,18");
    assert_cpus(RUN_NUMA_CORE_COMPLEX, 1, "0");
}

static void test_run_numa_gpus_are_those_that_cuda_shows(void **state)
{
    (void)state;
    put_server();
    assert_int_equal(open_machine("3,0", "0-31"), 0);
    assert_int_equal(numa.gpus, 2);
    assert_cpus(RUN_NUMA_NODE, 0, "12-15,28-31");
    assert_cpus(RUN_NUMA_EXCLUSIVE, 1, "0-3,16-19"); /* alone at its node, as far as it can see */
    assert_int_equal(open_machine("GPU-cc, GPU-a", "0-31"), 0);
    assert_cpus(RUN_NUMA_NODE, 0, "4-7,20-23");
    assert_cpus(RUN_NUMA_NODE, 1, "0-3,16-19");
    assert_int_equal(open_machine("1,-1,2", "0-31"), 0);
    assert_int_equal(numa.gpus, 1);
    assert_int_equal(run_numa_choose(&numa, RUN_NUMA_NODE, 1, &numa.allowed, &msg), MUSTER_EINVAL);
    assert_string_equal(msg.text, "worker 1 is placed by GPU 1, and this node has 1 GPUs");
    assert_int_equal(open_machine("6", "0-31"), MUSTER_EINVAL);
    assert_non_null(strstr(msg.text, "names 6, which is not one of the 6 GPUs"));
    assert_int_equal(open_machine("MIG-x", "0-31"), MUSTER_EINVAL);
}

static void test_run_numa_machine_of_one_node_says_minus_one(void **state)
{
    (void)state;
    put("/sys/devices/system/node/possible", "0");
    put_node(0, "0-1");
    put_cpu(0, "0", "0", "0-1");
    put_cpu(1, "0", "1", "0-1");
    put_gpu("0000:00:06.0", "-1", "GPU-aa");
    assert_int_equal(open_machine(NULL, "0-1"), 0);
    assert_cpus(RUN_NUMA_NODE, 0, "0-1");
    assert_cpus(RUN_NUMA_SOCKET, 0, "0-1");
    assert_cpus(RUN_NUMA_EXCLUSIVE, 0, "0-1");
    assert_cpus(RUN_NUMA_CORE_COMPLEX, 0, "0-1");
}

static void test_run_numa_says_what_is_missing(void **state)
{
    struct mu_cpus cpus;

    (void)state;
    assert_int_equal(open_machine(NULL, "0"), MUSTER_ENOENT);
    assert_non_null(strstr(msg.text, "there is none in /proc/driver/nvidia/gpus"));
    put("/proc/driver/nvidia/gpus/0000:00:06.0/information", "Model: x");
    assert_int_equal(open_machine(NULL, "0"), MUSTER_ENOENT);
    assert_non_null(strstr(msg.text, "the GPU at 0000:00:06.0"));
    put_gpu("0000:00:06.0", "0", "GPU-aa");
    assert_int_equal(open_machine(NULL, "0"), 0);
    assert_int_equal(run_numa_choose(&numa, RUN_NUMA_NODE, 0, &cpus, &msg), MUSTER_ENOENT);
    put_node(0, "0");
    for (int mode = RUN_NUMA_SOCKET; mode <= RUN_NUMA_CORE_COMPLEX; mode++) {
        assert_int_equal(run_numa_choose(&numa, (enum run_numa_mode)mode, 0, &cpus, &msg),
                         MUSTER_ENOENT);
        assert_non_null(strstr(msg.text, "how the CPUs of NUMA node 0 lie"));
    }
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup(name, clear_machine)
    const struct CMUnitTest tests[] = {
        TEST(test_run_numa_lists_are_the_kernels),
        TEST(test_run_numa_node_and_socket),
        TEST(test_run_numa_exclusive_divides_cores),
        TEST(test_run_numa_core_complex_takes_the_fullest_caches_first),
        TEST(test_run_numa_gpus_are_those_that_cuda_shows),
        TEST(test_run_numa_machine_of_one_node_says_minus_one),
        TEST(test_run_numa_says_what_is_missing),
    };
    int failed;

    if (mkdtemp(root) == NULL) {
        return 1;
    }
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)clear_machine(NULL);
    (void)rmdir(root);
    return failed;
}

/* What the health probe reads, from a fake driver (tests/fake/nvml.c) and a fake /sys. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "skipped.h"
#include "transport/health.h"

static char root[64];
static struct mu_health_probe *probe;
static struct mu_health h;

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

static int set_up(void **state)
{
    char path[128];

    (void)state;
    (void)snprintf(root, sizeof(root), "/tmp/muster-test-XXXXXX");
    if (mkdtemp(root) == NULL) {
        return -1;
    }
    (void)snprintf(path, sizeof(path), "%s/nvml", root);
    (void)setenv("FAKE_NVML", path, 1);
    (void)snprintf(path, sizeof(path), "%s/nvml.xid", root);
    probe = NULL;
    return mkfifo(path, 0600);
}

static int tear_down(void **state)
{
    char command[128];

    (void)state;
    mu_health_real.close(probe);
    (void)snprintf(command, sizeof(command), "rm -rf %s", root);
    return system(command);
}

static void open_probe(const char *words)
{
    const struct mu_health_config config = {.root = root, .log_dir = root};

    put("/nvml", words);
    assert_int_equal(mu_health_real.open(NULL, &config, &probe), 0);
}

/* Waits until what was asked for is there; a probe that never answers ends the test by its time. */
static void await_looks(void)
{
    do {
        (void)usleep(1000);
        mu_health_real.read(probe, &h);
    } while (h.gpu_looks < h.gpu_asked || h.host_looks < h.host_asked);
}

static void look(const char *words)
{
    if (probe == NULL) {
        open_probe(words);
    } else {
        put("/nvml", words);
        mu_health_real.ask(probe);
    }
    await_looks();
}

static void test_healthy_gpus(void **state)
{
    (void)state;
    look("gpus=8");
    assert_int_equal(h.gpu_state, MU_HEALTH_GPUS_SEEN);
    assert_int_equal(h.gpu_count, 8);
    assert_string_equal(h.driver, "570.00");
    assert_string_equal(h.gpus[7].name, "NVIDIA Fake 80GB");
    assert_string_equal(h.gpus[7].uuid, "GPU-000000a7-0000-0000-0000-000000000000");
    for (unsigned i = 0; i < 8; i++) {
        assert_true(h.gpus[i].has_ecc);
        assert_int_equal(h.gpus[i].ecc_errors, 0);
        assert_false(h.gpus[i].lost || h.gpus[i].needs_reset || h.gpus[i].remap_failed);
        assert_int_equal(h.gpus[i].recovery, MU_HEALTH_RECOVERY_NONE);
        assert_int_equal(h.gpus[i].used_bytes, 0); /* without what the driver keeps */
        assert_int_equal(h.gpus[i].slow, 0);
        assert_int_equal(h.gpus[i].celsius, 41);
    }
}

static void test_each_figure_of_a_sick_gpu(void **state)
{
    (void)state;
    look("gpus=3 ecc.1=5 retired.1=1 pending.1=1 failed.1=1 recovery.1=4 slow.1=0x44 slow.2=0x81 "
         "used.1=7");
    assert_int_equal(h.gpus[0].ecc_errors, 0);
    assert_int_equal(h.gpus[1].ecc_errors, 5);
    assert_true(h.gpus[1].retire_pending && h.gpus[1].remap_pending && h.gpus[1].remap_failed);
    assert_int_equal(h.gpus[1].recovery, MU_HEALTH_RECOVERY_DRAIN_RESET);
    assert_int_equal(h.gpus[1].slow, MU_HEALTH_SLOW_HOT); /* a cap on power is normal */
    assert_int_equal(h.gpus[2].slow, MU_HEALTH_SLOW_POWER);
    assert_int_equal(h.gpus[1].used_bytes, 7);
}

static void test_a_gpu_that_is_lost_later_keeps_its_name(void **state)
{
    (void)state;
    look("gpus=2");
    look("gpus=2 status.1=15 status.0=16");
    assert_true(h.gpus[1].lost);
    assert_false(h.gpus[1].needs_reset);
    assert_true(h.gpus[0].needs_reset);
    assert_string_equal(h.gpus[1].name, "NVIDIA Fake 80GB");
    look("gpus=2");
    assert_false(h.gpus[1].lost);
}

static void test_no_driver_is_no_gpu(void **state)
{
    (void)state;
    look("init=9");
    assert_int_equal(h.gpu_state, MU_HEALTH_GPUS_NONE);
    look(""); /* asked in vain, but answered */
    assert_int_equal(h.gpu_state, MU_HEALTH_GPUS_NONE);
}

static void test_a_library_that_does_not_fit_the_kernel(void **state)
{
    (void)state;
    look("init=18");
    assert_int_equal(h.gpu_state, MU_HEALTH_GPUS_MISMATCH);
}

static void test_a_driver_that_refuses(void **state)
{
    (void)state;
    look("init=999");
    assert_int_equal(h.gpu_state, MU_HEALTH_GPUS_FAILED);
    assert_int_equal(strlen(h.gpu_text), MU_HEALTH_TEXT_MAX); /* its words are cut */
}

static void test_a_driver_that_hangs(void **state)
{
    (void)state;
    open_probe("hang.1=1");
    do {
        (void)usleep(1000);
        mu_health_real.read(probe, &h); /* never waits for the driver */
    } while (h.gpu_busy_ms < 50 || h.host_looks == 0);
    assert_int_equal(h.gpu_looks, 0);
    assert_int_equal(h.gpu_state, MU_HEALTH_GPUS_UNKNOWN);
    assert_string_equal(h.gpu_what, "the GPU driver");
    assert_true(h.files_max != 0); /* the rest is known all the same */
}

static void test_an_error_that_the_driver_reports(void **state)
{
    char path[128];
    FILE *fifo;

    (void)state;
    look("gpus=4");
    do {
        (void)usleep(1000);
        mu_health_real.read(probe, &h);
    } while (!h.has_xids);
    (void)snprintf(path, sizeof(path), "%s/nvml.xid", root);
    fifo = fopen(path, "w");
    assert_non_null(fifo);
    for (int i = 0; i < MU_HEALTH_XIDS_MAX + 2; i++) {
        (void)fprintf(fifo, "%d %d\n", i % 4, 79 + i);
    }
    (void)fclose(fifo);
    do {
        (void)usleep(1000);
        mu_health_real.read(probe, &h);
    } while (h.xid_count < MU_HEALTH_XIDS_MAX + 2);
    assert_int_equal(h.xids[0].order, 3); /* two were dropped */
    assert_int_equal(h.xids[0].number, 81);
    assert_int_equal(h.xids[0].gpu, 2);
    assert_int_equal(h.xids[MU_HEALTH_XIDS_MAX - 1].order, MU_HEALTH_XIDS_MAX + 2);
}

static void test_memory_of_the_dead(void **state)
{
    pid_t pid = fork();
    char words[128];
    struct stat own;

    (void)state;
    if (pid == 0) {
        _exit(0);
    }
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    (void)snprintf(words, sizeof(words), "gpus=2 used.0=100 pid.0=%d used.1=5 pid.1=%d", (int)pid,
                   (int)getpid());
    look(words);
    if (stat("/proc/self/ns/pid", &own) != 0 || own.st_ino != 0xEFFFFFFC) {
        assert_false(h.gpus[0].has_holders); /* not by their names for processes of others */
        skip_saying("this is a container with processes of its own");
    }
    assert_true(h.gpus[0].has_holders);
    assert_int_equal(h.gpus[0].holder_count, 1);
    assert_int_equal(h.gpus[0].holders[0].pid, pid);
    assert_int_equal(h.gpus[0].holders[0].bytes, 100);
    assert_true(h.gpus[0].holders[0].dead);
    assert_false(h.gpus[1].holders[0].dead);
    (void)snprintf(words, sizeof(words), "gpus=1 used.0=80 pid.0=%d processes.0=20", (int)pid);
    look(words);
    assert_int_equal(h.gpus[0].holder_count, 20);
    assert_int_equal(h.gpus[0].holders[MU_HEALTH_HOLDERS_MAX - 1].pid, pid);
    look("gpus=2");
    assert_int_equal(h.gpus[0].holder_count, 0);
}

static void test_ports(void **state)
{
    (void)state;
    put("/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
    put("/sys/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    put("/sys/class/infiniband/mlx5_0/ports/1/rate", "400 Gb/sec (4X NDR)\n");
    put("/sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error", "3\n");
    put("/sys/class/infiniband/mlx5_0/ports/1/counters/port_rcv_errors", "4\n");
    put("/sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", "2\n");
    put("/sys/class/net/eth0/device/vendor", "0x15b3\n");
    put("/sys/class/net/eth0/operstate", "up\n");
    put("/sys/class/net/eth0/speed", "25000\n");
    put("/sys/class/net/eth0/statistics/rx_errors", "6\n");
    put("/sys/class/net/eth1/device/vendor", "0x15b3\n");
    put("/sys/class/net/eth1/operstate", "down\n");
    put("/sys/class/net/eth1/speed", "-1\n");
    put("/sys/class/net/docker0/operstate", "down\n");
    look("init=9");
    assert_int_equal(h.port_count, 4);
    assert_string_equal(h.ports[0].name, "eth0");
    assert_true(h.ports[0].up && !h.ports[0].infiniband);
    assert_int_equal(h.ports[0].mbits, 25000);
    assert_int_equal(h.ports[0].errors, 6);
    assert_false(h.ports[1].up);
    assert_int_equal(h.ports[1].mbits, 0);
    assert_string_equal(h.ports[2].name, "mlx5_0 port 1");
    assert_true(h.ports[2].up && h.ports[2].infiniband);
    assert_int_equal(h.ports[2].mbits, 400000);
    assert_int_equal(h.ports[2].errors, 7);
    assert_int_equal(h.ports[2].downs, 2);
    assert_false(h.ports[3].up);
}

static void test_more_ports_than_are_looked_at(void **state)
{
    char path[128];

    (void)state;
    for (int i = 0; i < MU_HEALTH_PORTS_MAX + 5; i++) {
        (void)snprintf(path, sizeof(path), "/sys/class/net/eth%d/device/vendor", i);
        put(path, "");
    }
    put("/sys/class/infiniband/"
        "an_adapter_with_a_name_that_is_longer_than_any_name_that_a_driver_gives/ports/1/state",
        "4: ACTIVE\n");
    look("init=9");
    assert_int_equal(h.port_count, MU_HEALTH_PORTS_MAX);
    assert_true(strlen(h.ports[0].name) <= MU_HEALTH_NAME_MAX);
    assert_true(h.ports[0].infiniband);
}

static void test_memory_and_disk(void **state)
{
    (void)state;
    put("/proc/meminfo", "MemTotal:       1000 kB\nMemFree: 5 kB\nMemAvailable:  100 kB\n"
                         "SwapTotal:      30 kB\nSwapFree:       20 kB\n");
    put("/dev/shm/x", "");
    look("init=9");
    assert_int_equal(h.memory_bytes, 1000 << 10);
    assert_int_equal(h.available_bytes, 100 << 10);
    assert_int_equal(h.swap_bytes, 30 << 10);
    assert_int_equal(h.swap_free_bytes, 20 << 10);
    assert_true(h.has_shm && h.has_disk);
    assert_int_equal(h.shm_bytes, h.disk_bytes);
    assert_true(h.disk_bytes != 0);
}

/* A container without /sys, /proc or /dev/shm. */
static void test_nothing_can_be_read(void **state)
{
    (void)state;
    look("init=9");
    assert_int_equal(h.port_count, 0);
    assert_int_equal(h.memory_bytes, 0);
    assert_false(h.has_shm);
}

static void test_more_gpus_than_are_looked_at(void **state)
{
    (void)state;
    look("gpus=60");
    assert_int_equal(h.gpu_count, MU_HEALTH_GPUS_MAX);
}

/* A library of years ago knows less, and that is all. */
static void test_an_old_library(void **state)
{
    (void)state;
    look("gpus=2 ecc.0=5 failed.0=1 slow.1=8 used.0=7");
    assert_int_equal(h.gpu_state, MU_HEALTH_GPUS_SEEN);
    assert_int_equal(h.gpu_count, 2);
    assert_false(h.gpus[0].has_ecc || h.gpus[0].remap_failed || h.gpus[0].has_holders);
    assert_int_equal(h.gpus[1].slow, MU_HEALTH_SLOW_HARDWARE);
    assert_int_equal(h.gpus[0].used_bytes, 7 + (1 << 29));
    assert_false(h.has_xids);
    look("gpus=2 status.1=15");
    assert_true(h.gpus[1].lost);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        TEST(test_healthy_gpus),
        TEST(test_each_figure_of_a_sick_gpu),
        TEST(test_a_gpu_that_is_lost_later_keeps_its_name),
        TEST(test_no_driver_is_no_gpu),
        TEST(test_a_library_that_does_not_fit_the_kernel),
        TEST(test_a_driver_that_refuses),
        TEST(test_a_driver_that_hangs),
        TEST(test_an_error_that_the_driver_reports),
        TEST(test_memory_of_the_dead),
        TEST(test_ports),
        TEST(test_more_ports_than_are_looked_at),
        TEST(test_memory_and_disk),
        TEST(test_nothing_can_be_read),
        TEST(test_more_gpus_than_are_looked_at),
    };
    const struct CMUnitTest old[] = {
        TEST(test_an_old_library),
        TEST(test_ports),
    };

    (void)argv;
    return skipped_or(argc > 1 ? cmocka_run_group_tests_name("health_old", old, NULL, NULL)
                               : cmocka_run_group_tests_name("health", tests, NULL, NULL));
}

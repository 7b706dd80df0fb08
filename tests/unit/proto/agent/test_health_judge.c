/* What is wrong with a machine, by what was seen of it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "proto/agent/health.h"

#define ALL UINT32_MAX

static struct mu_health first;
static struct mu_health now;
static struct mu_health_findings found;

/* Eight GPUs, two adapters and a network card, all well. */
static int set_up(void **state)
{
    static const char *const ports[] = {"eth0", "mlx5_0 port 1", "mlx5_1 port 1"};

    (void)state;
    first = (struct mu_health){
        .gpu_looks = 1,
        .host_looks = 1,
        .gpu_state = MU_HEALTH_GPUS_SEEN,
        .gpu_count = 8,
        .port_count = 3,
        .memory_bytes = UINT64_C(1) << 40,
        .available_bytes = UINT64_C(1) << 39,
        .has_shm = true,
        .shm_bytes = UINT64_C(1) << 30,
        .shm_free_bytes = UINT64_C(1) << 30,
        .files_max = 4096,
        .has_clock = true,
        .clock_synchronized = true,
        .has_disk = true,
        .disk_bytes = UINT64_C(1) << 40,
        .disk_free_bytes = UINT64_C(1) << 39,
        .disk_files = 1000,
        .disk_free_files = 10,
    };
    for (unsigned i = 0; i < 8; i++) {
        first.gpus[i].has_ecc = true;
        (void)snprintf(first.gpus[i].name, sizeof(first.gpus[i].name), "NVIDIA H100");
        (void)snprintf(first.gpus[i].uuid, sizeof(first.gpus[i].uuid), "GPU-%x0-11", 10 + i);
    }
    for (unsigned i = 0; i < 3; i++) {
        first.ports[i] = (struct mu_health_port){.infiniband = i != 0, .up = true, .errors = 7};
        (void)snprintf(first.ports[i].name, sizeof(first.ports[i].name), "%s", ports[i]);
    }
    now = first;
    return 0;
}

/* Judges, and expects one finding. */
static const struct mu_health_finding *one(enum mu_health_level level, enum mu_health_kind kind)
{
    mu_health_judge(&now, &first, ALL, &found);
    assert_int_equal(found.count, 1);
    assert_int_equal(found.items[0].level, level);
    assert_int_equal(found.items[0].kind, kind);
    return &found.items[0];
}

static void none(uint32_t gpus)
{
    mu_health_judge(&now, &first, gpus, &found);
    assert_int_equal(found.count, 0);
    assert_null(mu_health_worst(&found));
}

static void test_a_machine_that_is_well(void **state)
{
    (void)state;
    none(ALL);
    first.gpus[3].ecc_errors = now.gpus[3].ecc_errors = 9; /* old ones are no news */
    now.ports[0].errors += MU_HEALTH_ERRORS_NEW - 1;       /* and few of these are normal */
    now.gpus[0].used_bytes = UINT64_C(70) << 30;           /* workers use it */
    none(ALL);
    mu_health_judge(&now, NULL, ALL, &found);
    assert_int_equal(found.count, 1); /* but doctor tells of them */
    assert_int_equal(found.items[0].kind, MU_HEALTH_GPU_ECC);
}

static void test_a_machine_without_gpus(void **state)
{
    (void)state;
    now.gpu_state = MU_HEALTH_GPUS_NONE;
    now.gpu_count = 0;
    none(ALL);
}

static void test_a_lost_gpu(void **state)
{
    (void)state;
    now.gpus[2].lost = true;
    now.gpus[2].needs_reset = true;
    assert_string_equal(one(MU_HEALTH_FAULT, MU_HEALTH_GPU_LOST)->text,
                        "GPU 2 is lost: it has fallen off the bus");
    assert_int_equal(found.items[0].gpu, 2);
    none(0xfb); /* not one that workers use */
}

static void test_what_a_driver_asks_for(void **state)
{
    (void)state;
    now.gpus[2].needs_reset = true;
    (void)one(MU_HEALTH_FAULT, MU_HEALTH_GPU_RECOVERY);
    now.gpus[2].needs_reset = false;
    now.gpus[2].recovery = MU_HEALTH_RECOVERY_DRAIN_RESET;
    (void)one(MU_HEALTH_FAULT, MU_HEALTH_GPU_RECOVERY);
    now.gpus[2].recovery = MU_HEALTH_RECOVERY_RESET;
    assert_string_equal(one(MU_HEALTH_FAULT, MU_HEALTH_GPU_RECOVERY)->text, "GPU 2 needs a reset");
    assert_non_null(strstr(found.items[0].remedy, "nvidia-smi --gpu-reset -i 2"));
    now.gpus[2].recovery = MU_HEALTH_RECOVERY_REBOOT;
    assert_non_null(strstr(one(MU_HEALTH_FAULT, MU_HEALTH_GPU_RECOVERY)->text, "reboot"));
    now.gpus[2].recovery = MU_HEALTH_RECOVERY_DRAIN;
    (void)one(MU_HEALTH_WARN, MU_HEALTH_GPU_RECOVERY);
    now.gpus[2].recovery = MU_HEALTH_RECOVERY_DOMAIN;
    (void)one(MU_HEALTH_WARN, MU_HEALTH_GPU_RECOVERY);
}

static void test_bad_memory_of_a_gpu(void **state)
{
    (void)state;
    now.gpus[7].retire_pending = true;
    (void)one(MU_HEALTH_WARN, MU_HEALTH_GPU_PENDING);
    now.gpus[7].remap_failed = true;
    (void)one(MU_HEALTH_FAULT, MU_HEALTH_GPU_WORN);
    now.gpus[7].remap_failed = now.gpus[7].retire_pending = false;
    first.gpus[7].ecc_errors = 4;
    now.gpus[7].ecc_errors = 4 + MU_HEALTH_ECC_NEW;
    assert_string_equal(one(MU_HEALTH_WARN, MU_HEALTH_GPU_ECC)->text,
                        "GPU 7 has had 1 uncorrected memory error since the agent began");
}

static void test_a_slow_gpu(void **state)
{
    (void)state;
    now.gpus[1].slow = MU_HEALTH_SLOW_HOT | MU_HEALTH_SLOW_HARDWARE;
    now.gpus[1].celsius = 93;
    assert_string_equal(one(MU_HEALTH_WARN, MU_HEALTH_GPU_SLOW)->text,
                        "GPU 1 is slowed down: it is too hot (93 degrees)");
}

static void test_memory_of_others(void **state)
{
    struct mu_health_gpu *g = &now.gpus[1];

    (void)state;
    g->has_holders = true;
    g->holder_count = 1;
    g->holders[0] = (struct mu_health_holder){.pid = 7, .bytes = MU_HEALTH_USED_BYTES - 1};
    none(ALL);
    g->holders[0].bytes = MU_HEALTH_USED_BYTES;
    (void)one(MU_HEALTH_WARN, MU_HEALTH_GPU_USED);
    g->holders[0].dead = true;
    g->holders[0].bytes = UINT64_C(31) << 30;
    assert_string_equal(one(MU_HEALTH_FAULT, MU_HEALTH_GPU_HELD)->text,
                        "31.0 GiB of GPU 1 are still held by process 7, which is gone");
}

static void test_the_driver(void **state)
{
    (void)state;
    now.gpu_what = "the GPU driver";
    now.gpu_busy_ms = MU_HEALTH_SILENT_MS - 1;
    none(ALL);
    now.gpu_busy_ms = MU_HEALTH_SILENT_MS;
    assert_string_equal(one(MU_HEALTH_FAULT, MU_HEALTH_DRIVER_SILENT)->text,
                        "the GPU driver has not answered for 10 s");
    none(0); /* workers do not use it */
    now.gpu_busy_ms = 0;
    now.gpu_state = MU_HEALTH_GPUS_MISMATCH;
    (void)one(MU_HEALTH_FAULT, MU_HEALTH_DRIVER_MISMATCH);
    now.gpu_state = MU_HEALTH_GPUS_FAILED;
    (void)one(MU_HEALTH_WARN, MU_HEALTH_DRIVER_FAILED);
}

static void test_ports(void **state)
{
    (void)state;
    first.ports[2].up = now.ports[2].up = false; /* it has no cable */
    none(ALL);
    now.ports[1].up = false;
    assert_string_equal(one(MU_HEALTH_FAULT, MU_HEALTH_PORT_DOWN)->subject, "mlx5_0 port 1");
    now.ports[1].up = true;
    now.ports[0].up = false; /* it may be for something else */
    (void)one(MU_HEALTH_WARN, MU_HEALTH_PORT_DOWN);
    now.ports[0].up = true;
    now.ports[0].errors += MU_HEALTH_ERRORS_NEW;
    (void)one(MU_HEALTH_WARN, MU_HEALTH_PORT_ERRORS);
    now.ports[0].errors = 0; /* it was counted anew */
    now.ports[1].downs++;
    (void)one(MU_HEALTH_WARN, MU_HEALTH_PORT_ERRORS);
    now.port_count = 0; /* the adapter is gone, or cannot be read */
    mu_health_judge(&now, &first, ALL, &found);
    assert_int_equal(found.count, 2);
}

static void test_the_rest(void **state)
{
    (void)state;
    now.available_bytes = UINT64_C(1) << 33;
    (void)one(MU_HEALTH_WARN, MU_HEALTH_MEMORY);
    now.available_bytes = first.available_bytes;
    now.shm_free_bytes = MU_HEALTH_SHM_LEAST - 1;
    assert_string_equal(one(MU_HEALTH_WARN, MU_HEALTH_SHM)->text,
                        "/dev/shm has 15 MiB left of 1024");
    now.shm_free_bytes = first.shm_free_bytes;
    now.files_max = MU_HEALTH_FILES_LEAST - 1;
    (void)one(MU_HEALTH_WARN, MU_HEALTH_FILES);
    now.files_max = MU_HEALTH_FILES_LEAST;
    now.clock_synchronized = false;
    (void)one(MU_HEALTH_NOTE, MU_HEALTH_CLOCK);
    now.has_clock = false;
    now.host_busy_ms = MU_HEALTH_SILENT_MS;
    now.host_what = "the disk of the log files";
    (void)one(MU_HEALTH_WARN, MU_HEALTH_HOST_SILENT);
}

static void test_the_disk_of_logs(void **state)
{
    (void)state;
    now.disk_free_bytes = MU_HEALTH_DISK_LITTLE - 1;
    (void)one(MU_HEALTH_NOTE, MU_HEALTH_DISK);
    now.disk_bytes = UINT64_C(2) << 30; /* half of it is left */
    none(ALL);
    now.disk_free_bytes = MU_HEALTH_DISK_LEAST - 1;
    assert_non_null(strstr(one(MU_HEALTH_WARN, MU_HEALTH_DISK)->text, "full"));
    now.disk_free_bytes = first.disk_free_bytes;
    now.disk_free_files = 0;
    assert_non_null(strstr(one(MU_HEALTH_WARN, MU_HEALTH_DISK)->text, "inodes"));
    now.disk_files = 0; /* btrfs has none */
    none(ALL);
    now.disk_read_only = true;
    assert_non_null(strstr(one(MU_HEALTH_WARN, MU_HEALTH_DISK)->text, "read-only"));
}

static void test_more_than_can_be_told(void **state)
{
    (void)state;
    now.gpu_count = MU_HEALTH_GPUS_MAX;
    for (unsigned i = 0; i < MU_HEALTH_GPUS_MAX; i++) {
        now.gpus[i].remap_pending = true;
        now.gpus[i].has_ecc = true;
        now.gpus[i].ecc_errors = 5;
        now.gpus[i].slow = MU_HEALTH_SLOW_HOT;
        now.gpus[i].recovery = MU_HEALTH_RECOVERY_RESET;
    }
    mu_health_judge(&now, &first, ALL, &found);
    assert_int_equal(found.count, MU_HEALTH_FINDINGS_MAX - 1);
    assert_int_equal(mu_health_worst(&found)->level, MU_HEALTH_FAULT);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(mu_health_xid_name(79), "GPU has fallen off the bus");
    assert_null(mu_health_xid_name(0));
    for (int i = MU_HEALTH_DRIVER_SILENT; i <= MU_HEALTH_XID; i++) {
        assert_string_not_equal(mu_health_kind_name((enum mu_health_kind)i), "?");
    }
}

static void test_which_gpu_a_worker_has(void **state)
{
    (void)state;
    assert_int_equal(mu_health_gpu_of(&now, NULL, 3), 3);
    assert_int_equal(mu_health_gpu_of(&now, NULL, 8), -1);
    assert_int_equal(mu_health_gpu_of(&now, "4,5,6", 1), 5);
    assert_int_equal(mu_health_gpu_of(&now, "4,5,6", 3), -1);
    assert_int_equal(mu_health_gpu_of(&now, "GPU-c0,GPU-10", 0), 2);
    assert_int_equal(mu_health_gpu_of(&now, "GPU-c0,GPU-10", 1), 6);
    assert_int_equal(mu_health_gpu_of(&now, "GPU-1", 0), -1); /* there are two */
    assert_int_equal(mu_health_gpu_of(&now, "MIG-1", 0), -1);
    assert_int_equal(mu_health_gpu_of(&now, "99999999999999999999", 0), -1);
    assert_int_equal(mu_health_gpu_of(&now, "", 0), -1);
    assert_int_equal(mu_health_gpus_of(&now, NULL), ALL);
    assert_int_equal(mu_health_gpus_of(&now, ""), 0);
    assert_int_equal(mu_health_gpus_of(&now, "-1"), 0);
    assert_int_equal(mu_health_gpus_of(&now, "4,5"), 0x30);
    assert_int_equal(mu_health_gpus_of(&now, "4,MIG-5"), ALL);
    now.gpus[0].name[0] = 'X'; /* CUDA may count them in another order */
    assert_int_equal(mu_health_gpu_of(&now, NULL, 3), -1);
    assert_int_equal(mu_health_gpu_of(&now, "GPU-c0", 0), 2);
    assert_int_equal(mu_health_gpus_of(&now, "4,5"), ALL);
}

#define TEST(name) cmocka_unit_test_setup(name, set_up)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_a_machine_that_is_well),
        TEST(test_a_machine_without_gpus),
        TEST(test_a_lost_gpu),
        TEST(test_what_a_driver_asks_for),
        TEST(test_bad_memory_of_a_gpu),
        TEST(test_a_slow_gpu),
        TEST(test_memory_of_others),
        TEST(test_the_driver),
        TEST(test_ports),
        TEST(test_the_rest),
        TEST(test_the_disk_of_logs),
        TEST(test_more_than_can_be_told),
        TEST(test_names),
        TEST(test_which_gpu_a_worker_has),
    };

    return cmocka_run_group_tests_name("health_judge", tests, NULL, NULL);
}

/* What a machine is known by: a hash of its GPUs, its machine-id and its name. */
#include "unit.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "core/paths.h"
#include "service/rdzv/muster.h"

/* Meets GPUS_MAX of service/rdzv/machine.c, GPUS_BYTES_MAX of service/rdzv/machine.c,
 * INFO_BYTES_MAX of service/rdzv/machine.c and UUID_MAX of service/rdzv/machine.c. */
#define GPUS_MAX       64
#define GPUS_BYTES_MAX 8192
#define INFO_BYTES_MAX 2048
#define UUID_MAX       64

static struct {
    const char *host;
    const char *machine_id; /* NULL: there is no such file */
    size_t gpus;
    size_t first;   /* the number of the first of them */
    bool backwards; /* they are listed the other way round */
    size_t padding; /* bytes before the uuid in what the driver says */
    size_t uuid_len;
} box;

static int read_file(const char *path, char *buf, size_t cap, size_t *ret_len)
{
    char text[3 * INFO_BYTES_MAX] = "";
    unsigned gpu;

    if (strcmp(path, "/etc/machine-id") == 0) {
        if (box.machine_id == NULL) {
            return -ENOENT;
        }
        (void)snprintf(text, sizeof(text), "%s\n", box.machine_id);
    } else if (sscanf(path, "/proc/driver/nvidia/gpus/0000:%u:00.0/information", &gpu) == 1) {
        char uuid[512];

        memset(uuid, 'u', sizeof(uuid));
        (void)snprintf(uuid, 32, "GPU-%08u", gpu);
        uuid[strlen(uuid)] = box.uuid_len == 0 ? '\0' : '-';
        uuid[box.uuid_len == 0 ? 12 : box.uuid_len] = '\0';
        (void)snprintf(text, sizeof(text), "Model: %*s\nGPU UUID: \t %s\nBus: x\n",
                       (int)box.padding, "H", uuid);
    } else {
        return -ENOENT;
    }
    *ret_len = strlen(text) < cap ? strlen(text) : cap;
    memcpy(buf, text, *ret_len);
    return 0;
}

static int list(const char *path, char *buf, size_t cap, size_t *ret_len)
{
    size_t len = 0;

    assert_string_equal(path, "/proc/driver/nvidia/gpus");
    assert_int_equal(cap, GPUS_BYTES_MAX);
    if (box.gpus == 0) {
        return -ENOENT;
    }
    for (size_t i = 0; i < box.gpus; i++) {
        size_t k = box.first + (box.backwards ? box.gpus - 1 - i : i);

        len += (size_t)snprintf(buf + len, cap - len, "0000:%zu:00.0", k) + 1;
    }
    *ret_len = len;
    return 0;
}

static const struct mu_paths paths = {.read = read_file, .list = list};

static const struct mu_paths *get_paths(struct mu_env *env)
{
    (void)env;
    return box.host == NULL ? NULL : &paths;
}

static void get_self(struct mu_env *env, struct mu_self *ret)
{
    (void)env;
    *ret = (struct mu_self){.pid = 1};
    (void)snprintf(ret->host, sizeof(ret->host), "%s", box.host == NULL ? "bare" : box.host);
}

static const char *id(void)
{
    static char ids[8][MU_RDZV_MACHINE_LEN + 1];
    static unsigned next;
    const struct mu_env_ops ops = {.self = get_self, .paths = get_paths};
    struct mu_env env = {.ops = &ops};
    char *text = ids[next++ % 8];

    mu_rdzv_machine(&env, text);
    assert_int_equal(strlen(text), MU_RDZV_MACHINE_LEN);
    assert_int_equal(strspn(text, "0123456789abcdef"), MU_RDZV_MACHINE_LEN);
    return text;
}

#define BOX(...) (memset(&box, 0, sizeof(box)), box = (__typeof__(box)){__VA_ARGS__}, id())

static void test_machine_without_gpus_is_known_by_id_and_name(void **state)
{
    const char *a;

    (void)state;
    a = BOX(.host = "node1", .machine_id = "aa");
    assert_string_equal(a, BOX(.host = "node1", .machine_id = "aa"));
    assert_string_not_equal(a, BOX(.host = "node2", .machine_id = "aa")); /* pods of one image */
    assert_string_not_equal(a, BOX(.host = "node1", .machine_id = "ab"));
    assert_string_not_equal(a, BOX(.host = "node1"));
    assert_null(strstr(a, "aa"));
    (void)BOX(.host = NULL); /* no file system at all */
}

static void test_machine_with_gpus_is_known_by_them(void **state)
{
    const char *a;

    (void)state;
    a = BOX(.host = "pod-x", .gpus = 8);
    assert_string_equal(a, BOX(.host = "pod-y", .gpus = 8)); /* started again on the same GPUs */
    assert_string_equal(a, BOX(.host = "pod-x", .gpus = 8, .backwards = true));
    assert_string_not_equal(a, BOX(.host = "pod-x", .gpus = 8, .first = 8));
    assert_string_not_equal(a, BOX(.host = "pod-x", .gpus = 7));
}

static void test_machine_with_more_than_it_looks_at(void **state)
{
    const char *a;

    (void)state;
    a = BOX(.host = "h", .gpus = GPUS_MAX);
    assert_string_equal(a, BOX(.host = "h", .gpus = GPUS_MAX + 9));
    /* What the driver says before the uuid is too long: as if it were not there. */
    a = BOX(.host = "h");
    assert_string_equal(a, BOX(.host = "h", .gpus = 1, .padding = INFO_BYTES_MAX));
    /* A uuid that is too long is cut. */
    a = BOX(.host = "h", .gpus = 1, .uuid_len = UUID_MAX - 1);
    assert_string_equal(a, BOX(.host = "h", .gpus = 1, .uuid_len = UUID_MAX + 50));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_machine_without_gpus_is_known_by_id_and_name),
        cmocka_unit_test(test_machine_with_gpus_is_known_by_them),
        cmocka_unit_test(test_machine_with_more_than_it_looks_at),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* What this machine is known by, however often its node comes and goes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/paths.h"
#include "crypto/hash.h"
#include "service/rdzv/muster.h"

#define GPUS           "/proc/driver/nvidia/gpus"
#define GPUS_BYTES_MAX 8192
#define GPUS_MAX       64
#define INFO_BYTES_MAX 2048
#define UUID_MAX       64

struct gpus {
    char uuids[GPUS_MAX][UUID_MAX];
    size_t count;
};

/* Reads "GPU UUID:  GPU-1234..." out of what the driver says of a GPU. */
static void read_gpu(const struct mu_paths *paths, const char *name, struct gpus *gpus)
{
    char path[sizeof(GPUS) + 256];
    char text[INFO_BYTES_MAX + 1];
    const char *uuid;
    size_t len;

    (void)snprintf(path, sizeof(path), GPUS "/%.200s/information", name);
    if (gpus->count == GPUS_MAX || paths->read(path, text, INFO_BYTES_MAX, &len) != 0) {
        return;
    }
    text[len] = '\0';
    uuid = strstr(text, "GPU UUID:");
    if (uuid != NULL) {
        uuid += strlen("GPU UUID:");
        uuid += strspn(uuid, " \t");
        len = strcspn(uuid, " \t\n");
        (void)snprintf(gpus->uuids[gpus->count++], UUID_MAX, "%.*s",
                       (int)(len < UUID_MAX ? len : UUID_MAX - 1), uuid);
    }
}

static int compare(const void *a, const void *b)
{
    return strcmp(a, b);
}

static void find_gpus(const struct mu_paths *paths, struct gpus *gpus)
{
    char names[GPUS_BYTES_MAX];
    size_t len;

    if (paths->list == NULL || paths->list(GPUS, names, sizeof(names), &len) != 0) {
        return;
    }
    for (const char *name = names; name < names + len; name += strlen(name) + 1) {
        read_gpu(paths, name, gpus);
    }
    qsort(gpus->uuids, gpus->count, sizeof(gpus->uuids[0]), compare);
}

static void add(struct mu_sha256 *h, const char *kind, const char *text)
{
    mu_sha256_add(h, mu_span(kind, strlen(kind) + 1));
    mu_sha256_add(h, mu_span(text, strlen(text) + 1));
}

void mu_rdzv_machine(struct mu_env *env, char ret[MU_RDZV_MACHINE_LEN + 1])
{
    const struct mu_paths *paths = mu_env_paths(env);
    struct gpus gpus = {.count = 0};
    uint8_t hash[MU_SHA256_LEN];
    struct mu_sha256 h;
    struct mu_self self;
    char id[64];
    size_t len;

    mu_sha256_begin(&h);
    if (paths != NULL && paths->read("/etc/machine-id", id, sizeof(id) - 1, &len) == 0) {
        id[len] = '\0';
        id[strcspn(id, "\n")] = '\0';
        add(&h, "muster machine-id", id);
    }
    if (paths != NULL) {
        find_gpus(paths, &gpus);
    }
    for (size_t i = 0; i < gpus.count; i++) {
        add(&h, "gpu", gpus.uuids[i]);
    }
    if (gpus.count == 0) {
        mu_env_self(env, &self);
        add(&h, "host", self.host);
    }
    mu_sha256_end(&h, hash);
    for (size_t i = 0; i < MU_RDZV_MACHINE_LEN / 2; i++) {
        (void)snprintf(ret + 2 * i, 3, "%02x", hash[i]);
    }
}

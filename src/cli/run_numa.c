#include "cli/run_numa.h"

#include <dirent.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define TEXT_CAP  32768 /* of a file in sysfs: a list of every second CPU takes less */
#define GPUS_PATH "/proc/driver/nvidia/gpus"
#define NAME_CAP  64
#define NODES_MAX 1024 /* the kernel's own limit */

const char *const run_numa_modes[] = {
    [RUN_NUMA_NODE] = "node",           [RUN_NUMA_SOCKET] = "socket",
    [RUN_NUMA_EXCLUSIVE] = "exclusive", [RUN_NUMA_CORE_COMPLEX] = "core-complex",
    [RUN_NUMA_CORE_COMPLEX + 1] = NULL,
};

/* --- sets of CPUs ----------------------------------------------------------------------------- */

static bool has(const struct mu_cpus *set, uint32_t cpu)
{
    return (set->bits[cpu / 64] >> cpu % 64 & 1) != 0;
}

static void add(struct mu_cpus *set, uint32_t cpu)
{
    set->bits[cpu / 64] |= UINT64_C(1) << cpu % 64;
}

/* Returns MU_CPUS_MAX if the set is empty. */
static uint32_t lowest(const struct mu_cpus *set)
{
    uint32_t cpu = 0;

    while (cpu < MU_CPUS_MAX && !has(set, cpu)) {
        cpu++;
    }
    return cpu;
}

bool run_cpus_parse(const char *text, struct mu_cpus *ret)
{
    struct mu_cpus set = {{0}};

    for (;;) {
        unsigned long first, last;
        char *end;

        text += strspn(text, ", \t\n");
        if (*text == '\0') {
            *ret = set;
            return true;
        }
        first = last = strtoul(text, &end, 10);
        if (end == text || *text == '-') {
            return false;
        }
        if (*end == '-') {
            text = end + 1;
            last = strtoul(text, &end, 10);
            if (end == text || *text == '-') {
                return false;
            }
        }
        if (last >= MU_CPUS_MAX || (*end != '\0' && strchr(", \t\n", *end) == NULL)) {
            return false;
        }
        for (; first <= last; first++) {
            add(&set, (uint32_t)first);
        }
        text = end;
    }
}

struct mu_cpus run_numa_allowed(void)
{
    struct mu_cpus set = {{0}};

    (void)syscall(SYS_sched_getaffinity, 0, sizeof(set.bits), set.bits);
    return set;
}

/* --- files ------------------------------------------------------------------------------------ */

/* Reads a whole file below the root. NULL: it cannot be read, or is too long. The text is valid
 * until the next call. */
__attribute__((format(printf, 2, 3))) static char *read_text(const struct run_numa *n,
                                                             const char *format, ...)
{
    static char text[TEXT_CAP];
    char path[RUN_NUMA_PATH_CAP];
    va_list args;
    size_t len;
    FILE *file;
    int at = snprintf(path, sizeof(path), "%s", n->root);

    if (at < 0 || (size_t)at >= sizeof(path)) {
        return NULL;
    }
    va_start(args, format);
    len = (size_t)vsnprintf(path + at, sizeof(path) - (size_t)at, format, args);
    va_end(args);
    file = (size_t)at + len < sizeof(path) ? fopen(path, "re") : NULL;
    if (file == NULL) {
        return NULL;
    }
    len = fread(text, 1, sizeof(text), file);
    (void)fclose(file);
    if (len == sizeof(text)) {
        return NULL;
    }
    text[len] = '\0';
    return text;
}

static bool read_number(const char *text, long *ret)
{
    char *end;

    if (text == NULL) {
        return false;
    }
    *ret = strtol(text, &end, 10);
    return end != text;
}

/* --- GPUs ------------------------------------------------------------------------------------- */

struct gpu {
    char address[NAME_CAP]; /* PCI's, such as "0000:dc:00.0" */
    char uuid[NAME_CAP];    /* "" if the driver does not say it */
};

static int compare_gpus(const void *a, const void *b)
{
    return strcmp(((const struct gpu *)a)->address, ((const struct gpu *)b)->address);
}

static void read_uuid(const struct run_numa *n, struct gpu *gpu)
{
    const char *text = read_text(n, GPUS_PATH "/%s/information", gpu->address);
    const char *at = text == NULL ? NULL : strstr(text, "GPU UUID:");

    gpu->uuid[0] = '\0';
    if (at != NULL) {
        at += strlen("GPU UUID:");
        at += strspn(at, " \t");
        (void)snprintf(gpu->uuid, sizeof(gpu->uuid), "%.*s", (int)strcspn(at, " \t\n"), at);
    }
}

static uint32_t list_gpus(const struct run_numa *n, struct gpu gpus[RUN_GPUS_MAX])
{
    char path[RUN_NUMA_PATH_CAP];
    const struct dirent *entry;
    uint32_t count = 0;
    DIR *dir;

    (void)snprintf(path, sizeof(path), "%s" GPUS_PATH, n->root);
    dir = opendir(path);
    while (dir != NULL && count < RUN_GPUS_MAX && (entry = readdir(dir)) != NULL) {
        if (strchr(entry->d_name, ':') != NULL && strlen(entry->d_name) < NAME_CAP) {
            (void)snprintf(gpus[count++].address, NAME_CAP, "%s", entry->d_name);
        }
    }
    if (dir != NULL) {
        (void)closedir(dir);
    }
    qsort(gpus, count, sizeof(gpus[0]), compare_gpus);
    for (uint32_t i = 0; i < count; i++) {
        read_uuid(n, &gpus[i]);
    }
    return count;
}

/* Finds the GPU that one word of CUDA_VISIBLE_DEVICES names. `count`: there is no such GPU. */
static uint32_t find_gpu(const struct gpu *gpus, uint32_t count, const char *word, size_t len)
{
    uint32_t i = 0;

    if (strspn(word, "0123456789") >= len) {
        unsigned long number = strtoul(word, NULL, 10);

        return number < count ? (uint32_t)number : count;
    }
    while (i < count && strncmp(gpus[i].uuid, word, len) != 0) {
        i++;
    }
    return i;
}

/* The kernel writes -1 where there is only one node. */
static int place_gpu(struct run_numa *n, const struct gpu *gpu, struct mu_errmsg *reterr_msg)
{
    long node;

    if (!read_number(read_text(n, "/sys/bus/pci/devices/%s/numa_node", gpu->address), &node)) {
        return mu_err(reterr_msg, MUSTER_ENOENT,
                      "the kernel does not say to which NUMA node the GPU at %.32s belongs",
                      gpu->address);
    }
    n->node[n->gpus++] = node < 0 ? 0 : (uint32_t)node;
    return 0;
}

int run_numa_open(struct run_numa *n, const char *root, const char *visible,
                  const struct mu_cpus *allowed, struct mu_errmsg *reterr_msg)
{
    struct gpu gpus[RUN_GPUS_MAX];
    uint32_t count;
    int err = 0;

    *n = (struct run_numa){.root = root, .allowed = *allowed};
    count = list_gpus(n, gpus);
    if (count == 0) {
        return mu_err(reterr_msg, MUSTER_ENOENT,
                      "workers are placed by their GPUs, and there is none in " GPUS_PATH);
    }
    for (uint32_t i = 0; visible == NULL && i < count && err == 0; i++) {
        err = place_gpu(n, &gpus[i], reterr_msg);
    }
    while (visible != NULL && err == 0 && n->gpus < RUN_GPUS_MAX) {
        size_t len;
        uint32_t found;

        visible += strspn(visible, " \t");
        len = strcspn(visible, ", \t");
        if (len == 0 || visible[0] == '-') {
            break; /* as CUDA: what follows is hidden */
        }
        found = find_gpu(gpus, count, visible, len);
        if (found == count) {
            return mu_err(
                reterr_msg, MUSTER_EINVAL,
                "CUDA_VISIBLE_DEVICES names %.*s, which is not one of the %u GPUs in " GPUS_PATH,
                (int)len, visible, count);
        }
        err = place_gpu(n, &gpus[found], reterr_msg);
        visible += strcspn(visible, ",");
        visible += *visible == ',' ? 1 : 0;
    }
    return err;
}

/* --- where CPUs are --------------------------------------------------------------------------- */

/* The CPUs of a NUMA node on which we may run. */
static bool cpus_of_node(const struct run_numa *n, uint32_t node, struct mu_cpus *ret)
{
    const char *text = read_text(n, "/sys/devices/system/node/node%u/cpulist", node);

    if (text == NULL || !run_cpus_parse(text, ret)) {
        return false;
    }
    for (size_t i = 0; i < MU_CPUS_MAX / 64; i++) {
        ret->bits[i] &= n->allowed.bits[i];
    }
    return true;
}

static bool socket_of_cpu(const struct run_numa *n, uint32_t cpu, long *ret)
{
    return read_number(
        read_text(n, "/sys/devices/system/cpu/cpu%u/topology/physical_package_id", cpu), ret);
}

/* The lowest of the CPUs that are threads of the same core. */
static bool core_of_cpu(const struct run_numa *n, uint32_t cpu, uint32_t *ret)
{
    const char *text =
        read_text(n, "/sys/devices/system/cpu/cpu%u/topology/thread_siblings_list", cpu);
    struct mu_cpus set;

    *ret = text != NULL && run_cpus_parse(text, &set) ? lowest(&set) : MU_CPUS_MAX;
    return *ret != MU_CPUS_MAX;
}

static bool holds_data(const struct run_numa *n, uint32_t cpu, unsigned index)
{
    const char *text = read_text(n, "/sys/devices/system/cpu/cpu%u/cache/index%u/type", cpu, index);

    return text != NULL && (strncmp(text, "Unified", 7) == 0 || strncmp(text, "Data", 4) == 0);
}

/* The lowest of the CPUs that share its last cache. */
static bool cache_of_cpu(const struct run_numa *n, uint32_t cpu, uint32_t *ret)
{
    long highest = -1;
    long level;

    *ret = MU_CPUS_MAX;
    for (unsigned index = 0; read_number(
             read_text(n, "/sys/devices/system/cpu/cpu%u/cache/index%u/level", cpu, index), &level);
         index++) {
        struct mu_cpus set;
        const char *text;

        if (level <= highest || !holds_data(n, cpu, index)) {
            continue;
        }
        text =
            read_text(n, "/sys/devices/system/cpu/cpu%u/cache/index%u/shared_cpu_list", cpu, index);
        if (text == NULL || !run_cpus_parse(text, &set)) {
            return false;
        }
        highest = level;
        *ret = lowest(&set);
    }
    return *ret != MU_CPUS_MAX;
}

/* --- groups of CPUs --------------------------------------------------------------------------- */

/* The CPUs of a set, by what they share: a core, a cache. */
struct groups {
    uint32_t leader_of[MU_CPUS_MAX]; /* of each CPU in the set */
    uint32_t leaders[MU_CPUS_MAX];   /* ascending */
    uint32_t sizes[MU_CPUS_MAX];     /* by leader */
    uint32_t count;
};

static bool make_groups(struct groups *g, const struct run_numa *n, const struct mu_cpus *set,
                        bool (*leader)(const struct run_numa *n, uint32_t cpu, uint32_t *ret))
{
    memset(g, 0, sizeof(*g));
    for (uint32_t cpu = 0; cpu < MU_CPUS_MAX; cpu++) {
        if (has(set, cpu)) {
            if (!leader(n, cpu, &g->leader_of[cpu])) {
                return false;
            }
            g->sizes[g->leader_of[cpu]]++;
        }
    }
    for (uint32_t cpu = 0; cpu < MU_CPUS_MAX; cpu++) {
        if (g->sizes[cpu] != 0) {
            g->leaders[g->count++] = cpu;
        }
    }
    return true;
}

static void add_group(struct mu_cpus *to, const struct groups *g, const struct mu_cpus *set,
                      uint32_t leader)
{
    for (uint32_t cpu = 0; cpu < MU_CPUS_MAX; cpu++) {
        if (has(set, cpu) && g->leader_of[cpu] == leader) {
            add(to, cpu);
        }
    }
}

/* The group that is `place` groups behind the largest one; of equal ones, the lower comes first. */
static uint32_t leader_by_size(const struct groups *g, uint32_t place)
{
    for (uint32_t i = 0; i < g->count; i++) {
        uint32_t before = 0;

        for (uint32_t j = 0; j < g->count; j++) {
            uint32_t a = g->sizes[g->leaders[i]];
            uint32_t b = g->sizes[g->leaders[j]];

            before += b > a || (b == a && j < i) ? 1 : 0;
        }
        if (before == place) {
            return g->leaders[i];
        }
    }
    return g->leaders[0];
}

/* --- the modes -------------------------------------------------------------------------------- */

static int fail_topology(struct mu_errmsg *reterr_msg, uint32_t node)
{
    return mu_err(reterr_msg, MUSTER_ENOENT,
                  "the kernel does not say how the CPUs of NUMA node %u lie", node);
}

/* How many GPUs are at the node of this one, and how many of them come before it. */
static uint32_t count_at_node(const struct run_numa *n, uint32_t gpu, uint32_t *ret_before)
{
    uint32_t count = 0;

    *ret_before = 0;
    for (uint32_t i = 0; i < n->gpus; i++) {
        if (n->node[i] == n->node[gpu]) {
            *ret_before += i < gpu ? 1 : 0;
            count++;
        }
    }
    return count;
}

/* PyTorch fails at a node without a CPU for us, such as one of memory alone; here it has none to
 * add. */
static int choose_socket(const struct run_numa *n, uint32_t node, struct mu_cpus *cpus,
                         struct mu_errmsg *reterr_msg)
{
    const char *text = read_text(n, "/sys/devices/system/node/possible");
    struct mu_cpus nodes; /* a list of nodes has the same form */
    long socket, other;

    if (text == NULL || !run_cpus_parse(text, &nodes) || lowest(cpus) == MU_CPUS_MAX ||
        !socket_of_cpu(n, lowest(cpus), &socket)) {
        return fail_topology(reterr_msg, node);
    }
    for (uint32_t i = 0; i < NODES_MAX; i++) {
        struct mu_cpus more;

        if (has(&nodes, i) && cpus_of_node(n, i, &more) && lowest(&more) != MU_CPUS_MAX &&
            socket_of_cpu(n, lowest(&more), &other) && other == socket) {
            for (size_t j = 0; j < MU_CPUS_MAX / 64; j++) {
                cpus->bits[j] |= more.bits[j];
            }
        }
    }
    return 0;
}

static int choose_exclusive(const struct run_numa *n, uint32_t gpu, struct mu_cpus *cpus,
                            struct mu_errmsg *reterr_msg)
{
    static struct groups cores;
    struct mu_cpus set = *cpus;
    uint32_t before;
    uint32_t gpus = count_at_node(n, gpu, &before);
    uint32_t share, rest, first;

    if (!make_groups(&cores, n, &set, core_of_cpu)) {
        return fail_topology(reterr_msg, n->node[gpu]);
    }
    share = cores.count / gpus;
    rest = cores.count % gpus;
    if (share == 0) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "NUMA node %u has %u GPUs but only %u physical cores for them", n->node[gpu],
                      gpus, cores.count);
    }
    first = before * share + (before < rest ? before : rest);
    *cpus = (struct mu_cpus){{0}};
    for (uint32_t i = 0; i < share + (before < rest ? 1 : 0); i++) {
        add_group(cpus, &cores, &set, cores.leaders[first + i]);
    }
    return 0;
}

static int choose_core_complex(const struct run_numa *n, uint32_t gpu, struct mu_cpus *cpus,
                               struct mu_errmsg *reterr_msg)
{
    static struct groups caches;
    struct mu_cpus set = *cpus;
    uint32_t before;

    (void)count_at_node(n, gpu, &before);
    if (!make_groups(&caches, n, &set, cache_of_cpu)) {
        return fail_topology(reterr_msg, n->node[gpu]);
    }
    *cpus = (struct mu_cpus){{0}};
    if (caches.count != 0) {
        add_group(cpus, &caches, &set, leader_by_size(&caches, before % caches.count));
    }
    return 0;
}

int run_numa_choose(const struct run_numa *n, enum run_numa_mode mode, uint32_t gpu,
                    struct mu_cpus *ret_cpus, struct mu_errmsg *reterr_msg)
{
    struct mu_cpus cpus;
    int err = 0;

    if (gpu >= n->gpus) {
        return mu_err(reterr_msg, MUSTER_EINVAL,
                      "worker %u is placed by GPU %u, and this node has %u GPUs", gpu, gpu,
                      n->gpus);
    }
    if (!cpus_of_node(n, n->node[gpu], &cpus)) {
        return fail_topology(reterr_msg, n->node[gpu]);
    }
    switch (mode) {
    case RUN_NUMA_NODE:
        break;
    case RUN_NUMA_SOCKET:
        err = choose_socket(n, n->node[gpu], &cpus, reterr_msg);
        break;
    case RUN_NUMA_EXCLUSIVE:
        err = choose_exclusive(n, gpu, &cpus, reterr_msg);
        break;
    case RUN_NUMA_CORE_COMPLEX:
        err = choose_core_complex(n, gpu, &cpus, reterr_msg);
        break;
    }
    if (err == 0 && lowest(&cpus) == MU_CPUS_MAX) {
        err = mu_err(reterr_msg, MUSTER_EINVAL,
                     "NUMA node %u of GPU %u has no CPU on which this process may run",
                     n->node[gpu], gpu);
    }
    if (err == 0) {
        *ret_cpus = cpus;
    }
    return err;
}

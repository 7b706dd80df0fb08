/* This machine's health, as muster run sees it. */
#include "cli/doctor_host.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/cli_log.h"
#include "service/agent/health.h"
#include "transport/health.h"

#define HERE    "here"
#define STEP_NS 5000000

static struct mu_health_probe *probe;
static struct mu_health health;

static const char *log_dir(void)
{
    const char *dir = getenv("TMPDIR");

    return dir == NULL || dir[0] == '\0' ? "/tmp" : dir;
}

void doctor_health_begin(void)
{
    const struct mu_health_config config = {.root = "", .log_dir = log_dir()};

    if (mu_health_real.open(NULL, &config, &probe) != 0) {
        probe = NULL;
    }
}

/* A driver that does not answer within that time is a finding. */
static void await_health(void)
{
    const struct timespec step = {.tv_nsec = STEP_NS};

    mu_health_real.read(probe, &health);
    while ((health.gpu_looks == 0 || health.host_looks == 0) &&
           health.gpu_busy_ms < MU_HEALTH_SILENT_MS && health.host_busy_ms < MU_HEALTH_SILENT_MS) {
        (void)nanosleep(&step, NULL);
        mu_health_real.read(probe, &health);
    }
}

/* --- what is well ----------------------------------------------------------------------------- */

static void tell_gpus(struct doctor_report *r)
{
    const struct mu_health *h = &health;

    if (h->gpu_state == MU_HEALTH_GPUS_NONE) {
        (void)doctor_find(r, DOCTOR_OK, HERE, "no NVIDIA GPU, or no driver for it");
    } else if (h->gpu_state == MU_HEALTH_GPUS_SEEN) {
        (void)doctor_find(r, DOCTOR_OK, HERE, "%u GPU%s (%s), driver %s", h->gpu_count,
                          h->gpu_count == 1 ? "" : "s",
                          h->gpus[0].name[0] == '\0' ? "of an unknown kind" : h->gpus[0].name,
                          h->driver[0] == '\0' ? "of an unknown version" : h->driver);
    }
}

static void tell_ports(struct doctor_report *r)
{
    char text[256] = "";
    size_t len = 0;

    for (uint32_t i = 0; i < health.port_count && len < sizeof(text) - 1; i++) {
        const struct mu_health_port *p = &health.ports[i];
        int n = 0;

        if (p->up && p->mbits != 0) {
            n = snprintf(text + len, sizeof(text) - len, "%s%s (%g Gbit/s)", len == 0 ? "" : ", ",
                         p->name, p->mbits / 1000.0);
        } else if (p->up) {
            n = snprintf(text + len, sizeof(text) - len, "%s%s", len == 0 ? "" : ", ", p->name);
        }
        len += (size_t)n;
    }
    if (text[0] != '\0') {
        (void)doctor_find(r, DOCTOR_OK, HERE, "network ports that are up: %s", text);
    }
    for (uint32_t i = 0; i < health.port_count; i++) {
        const struct mu_health_port *p = &health.ports[i];

        if (p->infiniband && !p->up) {
            (void)doctor_find(r, DOCTOR_NOTE, HERE, "network port %s is down", p->name);
        } else if (p->infiniband && p->downs != 0) {
            (void)doctor_find(r, DOCTOR_NOTE, HERE, "network port %s has lost its link %llu times",
                              p->name, (unsigned long long)p->downs);
        }
    }
}

static void tell_memory(struct doctor_report *r)
{
    if (health.memory_bytes != 0) {
        (void)doctor_find(r, DOCTOR_OK, HERE, "%.1f of %.1f GiB of memory are available",
                          (double)health.available_bytes / (1 << 30),
                          (double)health.memory_bytes / (1 << 30));
    }
    if (health.has_disk) {
        (void)doctor_find(r, DOCTOR_OK, HERE, "log files go to %s, with %.1f GiB free", log_dir(),
                          (double)health.disk_free_bytes / (1 << 30));
    }
}

/* --- what is not ------------------------------------------------------------------------------ */

/* Whether it is told by doctor_self.c, in the words for its own figures. */
static bool is_told(enum mu_health_kind kind)
{
    return kind == MU_HEALTH_FILES || kind == MU_HEALTH_CLOCK;
}

static bool has(const struct mu_health_findings *all, enum mu_health_kind kind)
{
    for (size_t i = 0; i < all->count; i++) {
        if (all->items[i].kind == kind) {
            return true;
        }
    }
    return false;
}

static void tell_findings(struct doctor_report *r, const struct mu_health_findings *all)
{
    static const enum doctor_level levels[] = {
        [MU_HEALTH_NOTE] = DOCTOR_NOTE,
        [MU_HEALTH_WARN] = DOCTOR_WARN,
        [MU_HEALTH_FAULT] = DOCTOR_BAD,
    };

    for (size_t i = 0; i < all->count; i++) {
        const struct mu_health_finding *f = &all->items[i];

        if (!is_told(f->kind)) {
            doctor_remedy(doctor_find(r, levels[f->level], HERE, "%s", f->text), "%s", f->remedy);
        }
    }
}

/* --- JSON ------------------------------------------------------------------------------------- */

static json_t *gpu_json(const struct mu_health_gpu *g)
{
    static const char *const recoveries[] = {
        [MU_HEALTH_RECOVERY_NONE] = "none",     [MU_HEALTH_RECOVERY_RESET] = "reset",
        [MU_HEALTH_RECOVERY_REBOOT] = "reboot", [MU_HEALTH_RECOVERY_DRAIN] = "drain",
        [MU_HEALTH_RECOVERY_DOMAIN] = "domain", [MU_HEALTH_RECOVERY_DRAIN_RESET] = "drain_reset",
    };

    return json_pack("{s:o, s:o, s:b, s:s, s:o, s:b, s:b, s:b, s:i, s:I, s:I, s:I}", "name",
                     cli_log_text(g->name), "uuid", cli_log_text(g->uuid), "lost", g->lost,
                     "recovery", g->needs_reset ? "reset" : recoveries[g->recovery], "ecc_errors",
                     g->has_ecc ? json_integer((json_int_t)g->ecc_errors) : json_null(),
                     "replacement_pending", g->retire_pending || g->remap_pending,
                     "replacement_failed", g->remap_failed, "slowed_down", g->slow != 0, "celsius",
                     (int)g->celsius, "memory_bytes", (json_int_t)g->memory_bytes, "used_bytes",
                     (json_int_t)g->used_bytes, "processes", (json_int_t)g->holder_count);
}

static void put_facts(json_t *facts)
{
    const struct mu_health *h = &health;
    json_t *gpus = json_array();
    json_t *ports = json_array();

    for (uint32_t i = 0; i < h->gpu_count; i++) {
        (void)json_array_append_new(gpus, gpu_json(&h->gpus[i]));
    }
    for (uint32_t i = 0; i < h->port_count; i++) {
        const struct mu_health_port *p = &h->ports[i];

        (void)json_array_append_new(
            ports, json_pack("{s:o, s:b, s:b, s:i, s:I, s:I}", "name", cli_log_text(p->name),
                             "rdma", p->infiniband, "up", p->up, "mbits", (int)p->mbits, "errors",
                             (json_int_t)p->errors, "link_losses", (json_int_t)p->downs));
    }
    (void)json_object_set_new(facts, "gpus", gpus);
    (void)json_object_set_new(facts, "network_ports", ports);
    (void)json_object_set_new(facts, "memory_bytes", json_integer((json_int_t)h->memory_bytes));
    (void)json_object_set_new(facts, "memory_available_bytes",
                              json_integer((json_int_t)h->available_bytes));
    (void)json_object_set_new(facts, "swap_bytes", json_integer((json_int_t)h->swap_bytes));
    (void)json_object_set_new(facts, "shm_free_bytes", json_integer((json_int_t)h->shm_free_bytes));
    (void)json_object_set_new(facts, "log_disk_free_bytes",
                              json_integer((json_int_t)h->disk_free_bytes));
}

void doctor_health(struct doctor_report *r, json_t *facts)
{
    static struct mu_health_findings found;

    if (probe == NULL) {
        return;
    }
    await_health();
    mu_health_judge(&health, NULL, UINT32_MAX, &found);
    tell_gpus(r);
    tell_ports(r);
    if (!has(&found, MU_HEALTH_MEMORY) && !has(&found, MU_HEALTH_DISK)) {
        tell_memory(r);
    }
    tell_findings(r, &found);
    put_facts(facts);
    mu_health_real.close(probe);
}

#include "service/stacks/sample.h"

#include <errno.h>
#include <string.h>

#include <muster/error.h>

#include "core/alloc.h"
#include "proto/stacks/kernel.h"
#include "proto/stacks/stance.h"
#include "service/stacks/look.h"

#define LOOKS 3 /* at a main thread that changes each time it is looked at */

/* --- life ------------------------------------------------------------------------------------- */

int mu_stacks_sampler_init(struct mu_stacks_sampler *s, const struct mu_peek *peek, uint32_t count)
{
    *s = (struct mu_stacks_sampler){.peek = peek, .count = count, .looking = MU_STACKS_NOBODY};
    mu_buf_init(&s->whole, MU_STACKS_REPORT_BYTES_MAX);
    s->workers = mu_calloc(count, sizeof(*s->workers));
    return s->workers == NULL ? MUSTER_ENOMEM : 0;
}

static void forget(struct mu_stacks_sampler *s, struct mu_stacks_sampled *w)
{
    s->peek->close(w->process);
    *w = (struct mu_stacks_sampled){.pid = w->pid, .wants_place = w->wants_place};
}

void mu_stacks_sampler_reset(struct mu_stacks_sampler *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        s->workers[i].pid = 0;
        forget(s, &s->workers[i]);
    }
}

void mu_stacks_sampler_fini(struct mu_stacks_sampler *s)
{
    for (uint32_t i = 0; s->workers != NULL && i < s->count; i++) {
        s->peek->close(s->workers[i].process);
    }
    mu_free(s->workers);
    mu_free(s->look);
    mu_buf_fini(&s->whole);
    s->workers = NULL;
    s->look = NULL;
    s->count = 0;
}

/* --- numbers ---------------------------------------------------------------------------------- */

static struct mu_span read_text(struct mu_stacks_sampler *s, struct mu_peek_process *p,
                                uint64_t tid, const char *name)
{
    size_t len;

    return s->peek->text(p, tid, name, 0, s->text, sizeof(s->text), &len) == 0
               ? mu_span(s->text, len)
               : (struct mu_span){0};
}

static void add_up_family(struct mu_stacks_sampler *s, struct mu_stacks_sampled *w)
{
    w->family_ns = 0;
    w->family_bytes = 0;
    for (uint32_t i = 0; i < w->family_count; i++) {
        struct mu_kernel_stat stat;
        struct mu_peek_process *p;

        if (s->peek->open(w->family[i], &p) != 0) {
            continue; /* it has ended: what it used is counted by its parent */
        }
        if (mu_kernel_stat_read(read_text(s, p, 0, "stat"), &stat)) {
            w->family_ns += stat.cpu_ns;
        }
        w->family_bytes += mu_kernel_io_bytes(read_text(s, p, 0, "io"));
        s->peek->close(p);
    }
}

/* What only matters of a worker that does not compute. */
static void look_closer(struct mu_stacks_sampler *s, struct mu_stacks_sampled *w)
{
    if (w->runs % MU_STACKS_FAMILY_RUNS == 0) {
        w->family_count = mu_stacks_family(s->peek, w->process, w->family, MU_STACKS_FAMILY_MAX);
        w->frozen = mu_kernel_is_frozen(read_text(s, w->process, 0, "wchan"));
    }
    w->runs++;
    add_up_family(s, w);
    if (mu_kernel_is_traced(read_text(s, w->process, 0, "status"))) {
        w->sample.traced = true;
    }
    if (w->frozen) {
        w->sample.stopped = true;
        w->sample.on_disk = false;
    }
}

static void take_numbers(struct mu_stacks_sampler *s, struct mu_stacks_sampled *w)
{
    struct mu_kernel_stat stat;

    if (!mu_kernel_stat_read(read_text(s, w->process, 0, "stat"), &stat)) {
        w->sample.unseen = true;
        return;
    }
    if (stat.state == 'Z' || stat.state == 'X') {
        w->sample.ended = true;
        return;
    }
    w->sample.memory_bytes = stat.memory_bytes;
    w->sample.on_disk = stat.state == 'D';
    w->sample.stopped = stat.state == 'T';
    w->sample.traced = stat.state == 't';
    if (stat.cpu_ns - w->own_ns < s->busy_ns) {
        look_closer(s, w);
    }
    w->own_ns = stat.cpu_ns;
    w->sample.cpu_ns = w->own_ns;
    w->sample.family_ns = w->family_ns;
    w->sample.io_bytes = mu_kernel_io_bytes(read_text(s, w->process, 0, "io")) + w->family_bytes;
}

/* --- the place -------------------------------------------------------------------------------- */

/* Looks at one process; false: nothing is known of it. */
static bool look_at(struct mu_stacks_sampler *s, struct mu_stacks_sampled *w, int64_t pid,
                    struct mu_stacks_report *ret)
{
    const struct mu_stacks_report head = {.rank = MU_STACKS_NO_RANK};
    struct mu_errmsg why;
    int err;

    mu_buf_reset(&s->whole);
    s->look->known = pid == w->seen ? w->known : (struct mu_stacks_known){0};
    err = mu_stacks_look(s->look, pid, &head, &s->whole, &why);
    if (err == 0 && s->look->known.runtime != 0) {
        w->seen = pid;
        w->known = s->look->known;
    }
    return err == 0 && mu_stacks_report_decode(mu_buf_span(&s->whole), ret) == 0;
}

/* A worker that is not Python may be a script that has started it. */
static bool look_around(struct mu_stacks_sampler *s, struct mu_stacks_sampled *w,
                        struct mu_stacks_report *ret)
{
    uint32_t count =
        w->family_count < MU_STACKS_FAMILY_SEEN ? w->family_count : MU_STACKS_FAMILY_SEEN;

    if (w->seen != 0 && look_at(s, w, w->seen, ret) && ret->kind == MU_STACKS_PYTHON) {
        return true; /* it was found before */
    }
    if (look_at(s, w, w->pid, ret) && ret->kind == MU_STACKS_PYTHON) {
        return true;
    }
    for (uint32_t i = 0; i < count; i++) {
        if (look_at(s, w, w->family[i], ret) && ret->kind == MU_STACKS_PYTHON) {
            return true;
        }
    }
    return look_at(s, w, w->pid, ret);
}

static void take_place(struct mu_stacks_sampler *s, struct mu_stacks_sampled *w)
{
    struct mu_stacks_report report;

    if (s->look == NULL) {
        s->look = mu_malloc(sizeof(*s->look));
    }
    if (s->look == NULL) {
        return;
    }
    s->look->peek = s->peek;
    s->look->main_only = true;
    for (int i = 0; i < LOOKS && w->sample.place == 0; i++) {
        if (!look_around(s, w, &report)) {
            return;
        }
        w->sample.place = mu_stance_place(&report);
        w->sample.stance = mu_stance_of(&report);
    }
}

/* --- a run ------------------------------------------------------------------------------------ */

static void sample_worker(struct mu_stacks_sampler *s, struct mu_stacks_sampled *w)
{
    w->sample = (struct mu_watchdog_sample){0};
    if (w->pid != w->opened) {
        forget(s, w);
        w->opened = w->pid;
        if (w->pid != 0 && s->peek->open(w->pid, &w->process) != 0) {
            w->process = NULL;
        }
    }
    if (w->process == NULL) {
        /* Whoever waits for it knows best whether it has ended: other users' processes may be
         * hidden. */
        w->sample.ended = w->pid == 0;
        w->sample.unseen = w->pid != 0;
        w->opened = 0;
        return;
    }
    take_numbers(s, w);
    if (w->wants_place && !w->sample.ended && !w->sample.unseen) {
        s->looking = (uint32_t)(w - s->workers);
        take_place(s, w);
        s->looking = MU_STACKS_NOBODY;
    }
}

/* The network is that of the first worker: all have the same, unless they are in containers. */
static void sample_node(struct mu_stacks_sampler *s)
{
    size_t len;

    if (s->peek->machine("diskstats", s->text, sizeof(s->text), &len) == 0) {
        s->node.disk_bytes = mu_kernel_disk_bytes(mu_span(s->text, len));
    }
    for (uint32_t i = 0; i < s->count; i++) {
        if (s->workers[i].process != NULL) {
            s->node.net_bytes =
                mu_kernel_net_bytes(read_text(s, s->workers[i].process, 0, "net/dev"));
            return;
        }
    }
}

void mu_stacks_sampler_run(struct mu_stacks_sampler *s)
{
    for (uint32_t i = 0; i < s->count; i++) {
        sample_worker(s, &s->workers[i]);
    }
    sample_node(s);
}

#include "service/stacks/glance.h"

#include <muster/error.h>

#include "core/alloc.h"
#include "proto/stacks/kernel.h"
#include "proto/stacks/stance.h"

#define READS 64 /* of memory, for one frame */

int mu_stacks_glancer_init(struct mu_stacks_glancer *g, const struct mu_peek *peek, uint32_t count)
{
    *g = (struct mu_stacks_glancer){.peek = peek, .count = count};
    mu_buf_init(&g->report, MU_STACKS_REPORT_BYTES_MAX);
    g->workers = mu_calloc(count, sizeof(*g->workers));
    return g->workers == NULL ? MUSTER_ENOMEM : 0;
}

void mu_stacks_glancer_fini(struct mu_stacks_glancer *g)
{
    for (uint32_t i = 0; g->workers != NULL && i < g->count; i++) {
        g->peek->close(g->workers[i].process);
    }
    mu_free(g->workers);
    mu_free(g->look);
    mu_free(g->top);
    mu_buf_fini(&g->report);
    g->workers = NULL;
    g->look = NULL;
    g->top = NULL;
}

static struct mu_span read_text(const struct mu_stacks_glanced *w, uint64_t tid, const char *name,
                                char *buf, size_t cap)
{
    size_t len = 0;

    return w->peek->text(w->process, tid, name, 0, buf, cap, &len) == 0 ? mu_span(buf, len)
                                                                        : (struct mu_span){0};
}

static bool read_memory(void *context, uint64_t addr, void *to, size_t len)
{
    const struct mu_stacks_glanced *w = context;

    return w->peek->read(w->process, addr, to, len) == 0;
}

/* --- whom to look at -------------------------------------------------------------------------- */

static bool open_process(struct mu_stacks_glanced *w, int64_t pid)
{
    w->peek->close(w->process);
    w->process = NULL;
    w->found = false;
    w->known = (struct mu_stacks_known){0};
    w->seen = pid;
    return pid != 0 && w->peek->open(pid, &w->process) == 0;
}

/* Takes a whole look, which finds the main thread; false: it is not Python, or cannot be read. */
static bool look_at(struct mu_stacks_glancer *g, struct mu_stacks_glanced *w)
{
    const struct mu_stacks_report head = {.pid = w->seen};
    struct mu_stacks_report report;
    enum mu_pulse_stance stance;
    struct mu_errmsg why;

    mu_buf_reset(&g->report);
    g->look->peek = g->peek;
    g->look->main_only = true;
    g->look->known = w->known;
    w->found = false;
    if (mu_stacks_look(g->look, w->seen, &head, &g->report, &why) != 0 ||
        mu_stacks_report_decode(mu_buf_span(&g->report), &report) != 0 ||
        report.kind != MU_STACKS_PYTHON) {
        return false;
    }
    stance = mu_stance_of(&report);
    w->asks = stance == MU_STANCE_REQUESTS || stance == MU_STANCE_PERSON;
    w->known = g->look->known;
    w->python = g->look->python;
    w->python.memory = (struct mu_memory){read_memory, w};
    w->main = g->look->threads[0];
    w->found = w->main.tid != 0 && w->main.tid == g->look->inner[0];
    return w->found;
}

static void find_python(struct mu_stacks_glancer *g, struct mu_stacks_glanced *w)
{
    struct mu_span children;
    char text[256];
    int64_t child;

    if (w->process == NULL && !open_process(w, w->pid)) {
        return;
    }
    if (look_at(g, w) || w->seen != w->pid) {
        return;
    }
    children = read_text(w, (uint64_t)w->pid, "children", text, sizeof(text));
    if (mu_kernel_child_next(&children, &child) && open_process(w, child) && look_at(g, w)) {
        return;
    }
    (void)open_process(w, w->pid);
}

/* --- a glance --------------------------------------------------------------------------------- */

/* "running", or the number of a system call and its arguments. */
static bool is_at_lock(const struct mu_stacks_glanced *w)
{
    char text[256];
    char words[64];
    struct mu_span call = read_text(w, 0, "syscall", text, sizeof(text));
    size_t len = mu_kernel_text(words, sizeof(words), call, (struct mu_span){0});

    return mu_span_starts_with(mu_span(words, len), MU_SPAN_LIT("futex"));
}

static enum mu_pacer_stance stance_of(struct mu_stacks_glancer *g, struct mu_stacks_glanced *w)
{
    enum mu_pacer_wait wait;

    if (w->asks) {
        return MU_PACER_UNSEEN;
    }
    w->python.reads_left = READS;
    if (mu_python_top(&w->python, &w->main, g->top) != 0) {
        return MU_PACER_WORKS; /* its frames change while they are read */
    }
    wait = mu_pacer_wait_of(&g->top->frames[0]);
    return wait == MU_PACER_WAIT || (wait == MU_PACER_WAIT_AT_LOCK && is_at_lock(w))
               ? MU_PACER_WAITS
               : MU_PACER_WORKS;
}

static void glance_at(struct mu_stacks_glancer *g, struct mu_stacks_glanced *w)
{
    struct mu_span delay;
    char text[128];

    w->look = (struct mu_pacer_look){0};
    if (w->worker != w->pid) {
        g->peek->close(w->process);
        *w = (struct mu_stacks_glanced){.pid = w->pid, .worker = w->pid, .peek = g->peek};
    }
    if (w->pid == 0) {
        return;
    }
    if (w->runs++ % MU_STACKS_GLANCE_RUNS == 0) {
        find_python(g, w);
    }
    if (!w->found) {
        return;
    }
    delay = read_text(w, 0, "schedstat", text, sizeof(text));
    if (delay.len != 0) { /* else it has ended */
        w->look.delay_ns = mu_kernel_delay_ns(delay);
        w->look.stance = stance_of(g, w);
    }
}

void mu_stacks_glancer_run(struct mu_stacks_glancer *g)
{
    if (g->look == NULL) {
        g->look = mu_calloc(1, sizeof(*g->look));
    }
    if (g->top == NULL) {
        g->top = mu_calloc(1, sizeof(*g->top));
    }
    for (uint32_t i = 0; g->look != NULL && g->top != NULL && i < g->count; i++) {
        glance_at(g, &g->workers[i]);
    }
}

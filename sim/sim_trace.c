/*
 * The trace: one line for each step, with the columns of docs/simulator.md. The digest is taken
 * over the same facts, whether lines are written or not.
 */
#include "sim_impl.h"

#include <inttypes.h>
#include <stdarg.h>

static const char *const kind_text[] = {
#define KIND_TEXT(name, text) [SIM_##name] = (text),
    SIM_KIND_MAP(KIND_TEXT)
#undef KIND_TEXT
};

static void mix(struct mu_sim *sim, uint64_t v)
{
    sim->digest = (sim->digest ^ v) * UINT64_C(0x9e3779b97f4a7c15);
    sim->digest ^= sim->digest >> 29;
}

static void print_head(const struct mu_sim *sim, const struct mu_sim_proc *proc, const char *what)
{
    char who[2 * SIM_NAME_MAX + 16] = "-";

    if (proc != NULL) {
        (void)snprintf(who, sizeof(who), "%s/%s.%" PRIu32, proc->host->name, proc->program.name,
                       proc->starts);
    }
    fprintf(sim->config.trace, "%7" PRIu64 " %14.6f  %-16s %-9s", sim->steps,
            (double)sim->now_ns / (double)MU_NS_PER_MS, who, what);
}

void sim_trace_step(struct mu_sim *sim, uint64_t a, uint64_t b)
{
    const struct sim_action *action = sim->current;

    if (action == NULL) {
        return;
    }
    sim->current = NULL;
    mix(sim, sim->now_ns);
    mix(sim, (uint64_t)action->kind << 32 | (action->proc == NULL ? 0 : action->proc->starts));
    mix(sim, action->subject);
    mix(sim, a);
    mix(sim, b);
    if (sim->config.trace != NULL) {
        print_head(sim, action->proc, kind_text[action->kind]);
        fprintf(sim->config.trace, " %6" PRIu64 " %8" PRIu64 " %8" PRIu64 "\n", action->subject, a,
                b);
    }
}

bool mu_sim_tracing(const struct mu_sim *sim)
{
    return sim->config.trace != NULL;
}

void mu_sim_note(struct mu_sim *sim, const struct mu_sim_proc *proc, const char *format, ...)
{
    va_list args;

    if (sim->config.trace == NULL) {
        return;
    }
    print_head(sim, proc, "note");
    fputc(' ', sim->config.trace);
    va_start(args, format);
    vfprintf(sim->config.trace, format, args);
    va_end(args);
    fputc('\n', sim->config.trace);
}

static void emit(void *context, const char *what, uint64_t a, uint64_t b)
{
    struct mu_sim_proc *proc = context;

    mix(proc->sim, a);
    mix(proc->sim, b);
    mu_sim_note(proc->sim, proc, "%s %" PRIu64 " %" PRIu64, what, a, b);
}

struct mu_trace mu_sim_trace(struct mu_env *env)
{
    return (struct mu_trace){.emit = emit, .context = mu_sim_proc_of(env)};
}

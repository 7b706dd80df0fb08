/*
 * Standbys in the simulator. The zygote is a program of the words "zygote", which imports for some
 * time and then makes standbys, and "refuse=WHY" and "dies=MS", with which it does not, or not for
 * long. Nothing but a number waits: a standby that becomes a child is started like any other one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"
#include "core/assert.h"
#include "core/err.h"
#include "sim_impl.h"

#define IMPORT_NS (5 * MU_NS_PER_S)    /* from the start to the first standby, at most */
#define FORK_NS   (100 * MU_NS_PER_MS) /* from the question to the standbys, at most */

struct zygote {
    struct mu_list link; /* of sim->zygotes */
    struct mu_sim_proc *proc;
    struct mu_standbys *owner;
    struct sim_action step; /* it has imported, or forked, or its owner is told of its end */
    struct sim_action death;
    uint32_t wanted;
    bool imported;
    bool ending;
    bool closed;
    bool refused;
    char why[128];
};

static void free_zygote(struct zygote *z)
{
    sim_cancel(z->proc->sim, &z->step);
    sim_cancel(z->proc->sim, &z->death);
    mu_list_remove(&z->link);
    mu_free(z);
}

static void tell_end(struct zygote *z)
{
    struct mu_standbys *owner = z->owner;
    struct mu_sim_proc *proc = z->proc;
    char why[sizeof(z->why)];
    bool closed = z->closed;
    bool refused = z->refused;
    struct mu_sim_heap *heap = mu_sim_outside();

    memcpy(why, z->why, sizeof(why));
    free_zygote(z);
    mu_sim_inside(heap);
    owner->impl = NULL;
    owner->waiting = 0;
    sim_enter(proc);
    owner->on->ended(owner, refused, closed ? NULL : why);
    sim_leave(proc);
}

static void run_step(struct sim_action *action)
{
    struct zygote *z = MU_CONTAINER_OF(action, struct zygote, step);

    sim_trace_step(z->proc->sim, z->ending, z->wanted);
    if (z->ending) {
        tell_end(z);
        return;
    }
    z->imported = true;
    if (z->owner->waiting < z->wanted) {
        z->owner->waiting = z->wanted;
        sim_enter(z->proc);
        z->owner->on->changed(z->owner);
        sim_leave(z->proc);
    }
}

static void end_within(struct zygote *z, uint64_t ns)
{
    struct mu_sim *sim = z->proc->sim;

    z->ending = true;
    z->owner->waiting = 0;
    sim_schedule(sim, &z->step, sim->now_ns + 1 + mu_prng_below(&sim->prng, ns));
}

static void run_death(struct sim_action *action)
{
    struct zygote *z = MU_CONTAINER_OF(action, struct zygote, death);

    sim_trace_step(z->proc->sim, 2, 0);
    if (!z->ending) {
        (void)snprintf(z->why, sizeof(z->why), "it was ended by signal 9");
        end_within(z, MU_NS_PER_MS);
    }
}

int sim_standbys_open(struct mu_env *env, struct mu_standbys *standbys, const struct mu_spawn *what)
{
    struct mu_sim_proc *proc = mu_sim_proc_of(env);
    struct mu_sim *sim = proc->sim;
    struct mu_sim_heap *heap;
    struct zygote *z;

    if (what->argv == NULL || what->argv[0] == NULL || what->envp == NULL) {
        return MUSTER_EINVAL;
    }
    if (mu_sim_out_of_memory(env)) {
        return MUSTER_ENOMEM;
    }
    heap = mu_sim_outside();
    z = mu_calloc(1, sizeof(*z));
    mu_sim_inside(heap);
    MU_ASSERT(z != NULL);
    z->proc = proc;
    z->owner = standbys;
    z->step = (struct sim_action){.run = run_step, .proc = proc, .kind = SIM_STANDBY};
    z->death = (struct sim_action){.run = run_death, .proc = proc, .kind = SIM_STANDBY};
    mu_list_push(&sim->zygotes, &z->link);
    *standbys = (struct mu_standbys){.on = standbys->on, .env = env, .impl = z};
    sim_schedule(sim, &z->step, sim->now_ns + 1 + mu_prng_below(&sim->prng, IMPORT_NS));
    for (const char *const *word = what->argv + 1; *word != NULL; word++) {
        if (strncmp(*word, "refuse=", 7) == 0) {
            z->refused = z->ending = true;
            (void)snprintf(z->why, sizeof(z->why), "%s", *word + 7);
        } else if (strncmp(*word, "dies=", 5) == 0) {
            sim_schedule(sim, &z->death,
                         sim->now_ns + strtoull(*word + 5, NULL, 10) * MU_NS_PER_MS);
        }
    }
    return 0;
}

void sim_standbys_want(struct mu_env *env, struct mu_standbys *standbys, uint32_t count)
{
    struct zygote *z = standbys->impl;
    struct mu_sim *sim = z->proc->sim;

    (void)env;
    z->wanted = count < MU_STANDBYS_MAX ? count : MU_STANDBYS_MAX;
    if (z->imported && !z->ending && !sim_scheduled(&z->step)) {
        sim_schedule(sim, &z->step, sim->now_ns + 1 + mu_prng_below(&sim->prng, FORK_NS));
    }
}

void sim_standbys_close(struct mu_env *env, struct mu_standbys *standbys)
{
    struct zygote *z = standbys->impl;

    (void)env;
    if (!z->closed) {
        z->closed = true;
        end_within(z, MU_NS_PER_MS);
    }
}

int sim_standby_take(struct mu_standbys *standbys)
{
    if (standbys->waiting == 0) {
        return MUSTER_EAGAIN;
    }
    standbys->waiting--;
    return 0;
}

size_t sim_standbys_held(const struct mu_sim_proc *proc)
{
    size_t held = 0;

    MU_LIST_FOREACH (it, &proc->sim->zygotes) {
        held += MU_CONTAINER_OF(it, struct zygote, link)->proc == proc;
    }
    return held;
}

void sim_standbys_drop(struct mu_sim *sim, const struct mu_sim_proc *proc)
{
    MU_LIST_FOREACH_SAFE (it, next, &sim->zygotes) {
        struct zygote *z = MU_CONTAINER_OF(it, struct zygote, link);

        if (proc == NULL || z->proc == proc) {
            free_zygote(z);
        }
    }
}

/* The battery on the simulator: what a struct env_under_test needs; its context is one of these. */
#ifndef MU_TEST_DRIVE_SIM_H
#define MU_TEST_DRIVE_SIM_H

#include <stdint.h>

#include "battery.h"
#include "sim.h"

struct drive_sim {
    struct mu_sim_faults faults;
    uint64_t seed; /* counts up */
    struct mu_sim *sim;
    struct mu_sim_proc *proc;
};

/** A quiet world, or one with what a kernel may do at any time without breaking a promise. Faults
 * that end connections are for the scenarios. */
struct drive_sim drive_sim_quiet(void);
struct drive_sim drive_sim_rough(void);
int drive_sim_up(struct env_under_test *eut);
void drive_sim_down(struct env_under_test *eut);
bool drive_sim_run_until(struct env_under_test *eut, bool (*done)(void *context), void *context);

#endif

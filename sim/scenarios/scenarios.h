/* What each scenario file offers. */
#ifndef MU_SIM_SCENARIOS_H
#define MU_SIM_SCENARIOS_H

#include "sim.h"

extern const struct mu_sim_scenario mu_sim_scenario_env_echo;
extern const struct mu_sim_scenario mu_sim_scenario_store;
extern const struct mu_sim_scenario mu_sim_scenario_store_lying_disk;
extern const struct mu_sim_scenario mu_sim_scenario_store_retry;

#endif

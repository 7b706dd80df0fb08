/* What each scenario file offers. */
#ifndef MU_SIM_SCENARIOS_H
#define MU_SIM_SCENARIOS_H

#include "sim.h"

extern const struct mu_sim_scenario mu_sim_scenario_env_echo;
extern const struct mu_sim_scenario mu_sim_scenario_rpc;
extern const struct mu_sim_scenario mu_sim_scenario_rpc_twice;
extern const struct mu_sim_scenario mu_sim_scenario_store;
extern const struct mu_sim_scenario mu_sim_scenario_store_queue;
extern const struct mu_sim_scenario mu_sim_scenario_store_watch;
extern const struct mu_sim_scenario mu_sim_scenario_store_lease;
extern const struct mu_sim_scenario mu_sim_scenario_store_interval;
extern const struct mu_sim_scenario mu_sim_scenario_store_lying_disk;
extern const struct mu_sim_scenario mu_sim_scenario_store_retry;
extern const struct mu_sim_scenario mu_sim_scenario_store_torn_set;
extern const struct mu_sim_scenario mu_sim_scenario_store_enomem;
extern const struct mu_sim_scenario mu_sim_scenario_store_push_twice;
extern const struct mu_sim_scenario mu_sim_scenario_store_pop_twice;
extern const struct mu_sim_scenario mu_sim_scenario_store_pop_order;
extern const struct mu_sim_scenario mu_sim_scenario_store_watch_gap;
extern const struct mu_sim_scenario mu_sim_scenario_store_lease_early;
extern const struct mu_sim_scenario mu_sim_scenario_store_session_early;
extern const struct mu_sim_scenario mu_sim_scenario_store_slow_sync;

#endif

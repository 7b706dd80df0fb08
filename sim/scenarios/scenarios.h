/* What each scenario file offers. */
#ifndef MU_SIM_SCENARIOS_H
#define MU_SIM_SCENARIOS_H

#include "sim.h"

/* SIM_SCENARIO(identifier, name, summary, faults, bug, what is run on `sim`...) */
#define SIM_SCENARIO(id, text, words, faults_of, is_planted, ...)                                  \
    static void run_##id(struct mu_sim *sim)                                                       \
    {                                                                                              \
        __VA_ARGS__;                                                                               \
    }                                                                                              \
    const struct mu_sim_scenario mu_sim_scenario_##id = {                                          \
        .name = (text),                                                                            \
        .summary = (words),                                                                        \
        .faults = (faults_of),                                                                     \
        .run = run_##id,                                                                           \
        .planted = (is_planted),                                                                   \
    };

extern const struct mu_sim_scenario mu_sim_scenario_agent;
extern const struct mu_sim_scenario mu_sim_scenario_agent_early;
extern const struct mu_sim_scenario mu_sim_scenario_agent_fence;
extern const struct mu_sim_scenario mu_sim_scenario_agent_hang;
extern const struct mu_sim_scenario mu_sim_scenario_agent_hang_childless;
extern const struct mu_sim_scenario mu_sim_scenario_agent_hang_deaf;
extern const struct mu_sim_scenario mu_sim_scenario_agent_hang_forgetful;
extern const struct mu_sim_scenario mu_sim_scenario_agent_hang_liars;
extern const struct mu_sim_scenario mu_sim_scenario_agent_hang_mute;
extern const struct mu_sim_scenario mu_sim_scenario_agent_hang_sleepless;
extern const struct mu_sim_scenario mu_sim_scenario_agent_hang_swapped;
extern const struct mu_sim_scenario mu_sim_scenario_agent_warm;
extern const struct mu_sim_scenario mu_sim_scenario_copies;
extern const struct mu_sim_scenario mu_sim_scenario_copies_ageless;
extern const struct mu_sim_scenario mu_sim_scenario_copies_greedy;
extern const struct mu_sim_scenario mu_sim_scenario_copies_hasty;
extern const struct mu_sim_scenario mu_sim_scenario_copies_self;
extern const struct mu_sim_scenario mu_sim_scenario_copies_unheard;
extern const struct mu_sim_scenario mu_sim_scenario_kept;
extern const struct mu_sim_scenario mu_sim_scenario_kept_ageless;
extern const struct mu_sim_scenario mu_sim_scenario_kept_alone;
extern const struct mu_sim_scenario mu_sim_scenario_kept_greedy;
extern const struct mu_sim_scenario mu_sim_scenario_kept_hasty;
extern const struct mu_sim_scenario mu_sim_scenario_kept_shallow;
extern const struct mu_sim_scenario mu_sim_scenario_agent_hourly;
extern const struct mu_sim_scenario mu_sim_scenario_agent_numb;
extern const struct mu_sim_scenario mu_sim_scenario_agent_spendthrift;
extern const struct mu_sim_scenario mu_sim_scenario_agent_start;
extern const struct mu_sim_scenario mu_sim_scenario_average;
extern const struct mu_sim_scenario mu_sim_scenario_average_half;
extern const struct mu_sim_scenario mu_sim_scenario_average_service;
extern const struct mu_sim_scenario mu_sim_scenario_average_service_named;
extern const struct mu_sim_scenario mu_sim_scenario_average_service_residual;
extern const struct mu_sim_scenario mu_sim_scenario_average_service_stuck;
extern const struct mu_sim_scenario mu_sim_scenario_average_service_wrong;
extern const struct mu_sim_scenario mu_sim_scenario_average_stuck;
extern const struct mu_sim_scenario mu_sim_scenario_average_wrong;
extern const struct mu_sim_scenario mu_sim_scenario_average_native;
extern const struct mu_sim_scenario mu_sim_scenario_average_native_all;
extern const struct mu_sim_scenario mu_sim_scenario_average_native_boast;
extern const struct mu_sim_scenario mu_sim_scenario_average_native_deaf;
extern const struct mu_sim_scenario mu_sim_scenario_average_native_early;
extern const struct mu_sim_scenario mu_sim_scenario_average_native_feedback;
extern const struct mu_sim_scenario mu_sim_scenario_average_native_hide;
extern const struct mu_sim_scenario mu_sim_scenario_average_native_leave;
extern const struct mu_sim_scenario mu_sim_scenario_average_native_minority;
extern const struct mu_sim_scenario mu_sim_scenario_average_native_raw;
extern const struct mu_sim_scenario mu_sim_scenario_average_native_regive;
extern const struct mu_sim_scenario mu_sim_scenario_average_native_relabel;
extern const struct mu_sim_scenario mu_sim_scenario_backed;
extern const struct mu_sim_scenario mu_sim_scenario_backed_cached;
extern const struct mu_sim_scenario mu_sim_scenario_backed_cached_hasty;
extern const struct mu_sim_scenario mu_sim_scenario_backed_cached_linear;
extern const struct mu_sim_scenario mu_sim_scenario_backed_hasty;
extern const struct mu_sim_scenario mu_sim_scenario_backed_retry;
extern const struct mu_sim_scenario mu_sim_scenario_backed_queue;
extern const struct mu_sim_scenario mu_sim_scenario_gateway;
extern const struct mu_sim_scenario mu_sim_scenario_gateway_queue;
extern const struct mu_sim_scenario mu_sim_scenario_gateway_retry;
extern const struct mu_sim_scenario mu_sim_scenario_gateway_watch;
extern const struct mu_sim_scenario mu_sim_scenario_gateway_held;
extern const struct mu_sim_scenario mu_sim_scenario_gateway_deep;
extern const struct mu_sim_scenario mu_sim_scenario_gateway_tree;
extern const struct mu_sim_scenario mu_sim_scenario_tree_kept;
extern const struct mu_sim_scenario mu_sim_scenario_tree_forever;
extern const struct mu_sim_scenario mu_sim_scenario_tree_spoiled;
extern const struct mu_sim_scenario mu_sim_scenario_held_late_recall;
extern const struct mu_sim_scenario mu_sim_scenario_held_early_grant;
extern const struct mu_sim_scenario mu_sim_scenario_held_short_lease;
extern const struct mu_sim_scenario mu_sim_scenario_held_kept;
extern const struct mu_sim_scenario mu_sim_scenario_held_late_lease;
extern const struct mu_sim_scenario mu_sim_scenario_held_no_lease;
extern const struct mu_sim_scenario mu_sim_scenario_held_forever;
extern const struct mu_sim_scenario mu_sim_scenario_held_spoiled;
extern const struct mu_sim_scenario mu_sim_scenario_held_eager_wait;
extern const struct mu_sim_scenario mu_sim_scenario_lent_late_recall;
extern const struct mu_sim_scenario mu_sim_scenario_lent_early_grant;
extern const struct mu_sim_scenario mu_sim_scenario_lent_short_lease;
extern const struct mu_sim_scenario mu_sim_scenario_lent_short_loan;
extern const struct mu_sim_scenario mu_sim_scenario_lent_long_lease;
extern const struct mu_sim_scenario mu_sim_scenario_dht;
extern const struct mu_sim_scenario mu_sim_scenario_dht_flat;
extern const struct mu_sim_scenario mu_sim_scenario_dht_mute;
extern const struct mu_sim_scenario mu_sim_scenario_dht_old;
extern const struct mu_sim_scenario mu_sim_scenario_dht_slow;
extern const struct mu_sim_scenario mu_sim_scenario_dht_stale;
extern const struct mu_sim_scenario mu_sim_scenario_dht_swarm;
extern const struct mu_sim_scenario mu_sim_scenario_env_echo;
extern const struct mu_sim_scenario mu_sim_scenario_etcd;
extern const struct mu_sim_scenario mu_sim_scenario_etcd_repeat;
extern const struct mu_sim_scenario mu_sim_scenario_hm_state;
extern const struct mu_sim_scenario mu_sim_scenario_hm_state_torn;
extern const struct mu_sim_scenario mu_sim_scenario_p2pd;
extern const struct mu_sim_scenario mu_sim_scenario_p2pd_clings;
extern const struct mu_sim_scenario mu_sim_scenario_p2pd_forgets;
extern const struct mu_sim_scenario mu_sim_scenario_peer;
extern const struct mu_sim_scenario mu_sim_scenario_peer_greedy;
extern const struct mu_sim_scenario mu_sim_scenario_peer_losing;
extern const struct mu_sim_scenario mu_sim_scenario_peer_nonce;
extern const struct mu_sim_scenario mu_sim_scenario_peer_open_door;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_steady;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_relayed;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_relays;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_host_loss;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_c10d;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_c10d_amnesia;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_etcd;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_etcd_deaf;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_etcd_immortal;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_etcd_old;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_etcd_old_careless;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_hasty;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_deaf;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_dizzy;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_loose;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_ghost;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_forgetful;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_sulky;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_restless;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_recount;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_shuffled;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_succession;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_succession_early;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_succession_legacy;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_succession_lines;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_succession_minority;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_succession_prepared;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_succession_round;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_succession_twice;
extern const struct mu_sim_scenario mu_sim_scenario_rdzv_swapped;
extern const struct mu_sim_scenario mu_sim_scenario_relay;
extern const struct mu_sim_scenario mu_sim_scenario_relay_generous;
extern const struct mu_sim_scenario mu_sim_scenario_rpc;
extern const struct mu_sim_scenario mu_sim_scenario_rpc_twice;
extern const struct mu_sim_scenario mu_sim_scenario_rref;
extern const struct mu_sim_scenario mu_sim_scenario_rref_early;
extern const struct mu_sim_scenario mu_sim_scenario_rref_leak;
extern const struct mu_sim_scenario mu_sim_scenario_state;
extern const struct mu_sim_scenario mu_sim_scenario_state_many;
extern const struct mu_sim_scenario mu_sim_scenario_state_swarm;
extern const struct mu_sim_scenario mu_sim_scenario_state_swarm_old;
extern const struct mu_sim_scenario mu_sim_scenario_state_swarm_unverified;
extern const struct mu_sim_scenario mu_sim_scenario_state_unverified;
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

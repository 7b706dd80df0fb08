/* The list of scenarios, and one run of one. */
#include "sim.h"
#include "sim_impl.h"

#include <string.h>

#include "core/assert.h"
#include "scenarios/scenarios.h"

const struct mu_sim_scenario *const mu_sim_scenarios[] = {
    &mu_sim_scenario_average,
    &mu_sim_scenario_average_half,
    &mu_sim_scenario_average_service,
    &mu_sim_scenario_average_service_named,
    &mu_sim_scenario_average_service_residual,
    &mu_sim_scenario_average_service_stuck,
    &mu_sim_scenario_average_service_wrong,
    &mu_sim_scenario_average_stuck,
    &mu_sim_scenario_average_wrong,
    &mu_sim_scenario_average_native,
    &mu_sim_scenario_average_native_all,
    &mu_sim_scenario_average_native_boast,
    &mu_sim_scenario_average_native_deaf,
    &mu_sim_scenario_average_native_early,
    &mu_sim_scenario_average_native_feedback,
    &mu_sim_scenario_average_native_hide,
    &mu_sim_scenario_average_native_leave,
    &mu_sim_scenario_average_native_minority,
    &mu_sim_scenario_average_native_raw,
    &mu_sim_scenario_average_native_regive,
    &mu_sim_scenario_average_native_relabel,
    &mu_sim_scenario_dht,
    &mu_sim_scenario_dht_flat,
    &mu_sim_scenario_dht_mute,
    &mu_sim_scenario_dht_old,
    &mu_sim_scenario_dht_slow,
    &mu_sim_scenario_dht_stale,
    &mu_sim_scenario_dht_swarm,
    &mu_sim_scenario_env_echo,
    &mu_sim_scenario_etcd,
    &mu_sim_scenario_etcd_repeat,
    &mu_sim_scenario_backed,
    &mu_sim_scenario_backed_cached,
    &mu_sim_scenario_backed_cached_hasty,
    &mu_sim_scenario_backed_cached_linear,
    &mu_sim_scenario_backed_hasty,
    &mu_sim_scenario_backed_queue,
    &mu_sim_scenario_backed_retry,
    &mu_sim_scenario_gateway,
    &mu_sim_scenario_gateway_queue,
    &mu_sim_scenario_gateway_retry,
    &mu_sim_scenario_gateway_watch,
    &mu_sim_scenario_gateway_held,
    &mu_sim_scenario_gateway_deep,
    &mu_sim_scenario_gateway_tree,
    &mu_sim_scenario_tree_kept,
    &mu_sim_scenario_tree_forever,
    &mu_sim_scenario_tree_spoiled,
    &mu_sim_scenario_held_late_recall,
    &mu_sim_scenario_held_early_grant,
    &mu_sim_scenario_held_short_lease,
    &mu_sim_scenario_held_kept,
    &mu_sim_scenario_held_late_lease,
    &mu_sim_scenario_held_no_lease,
    &mu_sim_scenario_held_forever,
    &mu_sim_scenario_held_spoiled,
    &mu_sim_scenario_held_eager_wait,
    &mu_sim_scenario_lent_late_recall,
    &mu_sim_scenario_lent_early_grant,
    &mu_sim_scenario_lent_short_lease,
    &mu_sim_scenario_lent_short_loan,
    &mu_sim_scenario_lent_long_lease,
    &mu_sim_scenario_store,
    &mu_sim_scenario_store_queue,
    &mu_sim_scenario_store_watch,
    &mu_sim_scenario_store_lease,
    &mu_sim_scenario_store_interval,
    &mu_sim_scenario_store_lying_disk,
    &mu_sim_scenario_store_retry,
    &mu_sim_scenario_store_torn_set,
    &mu_sim_scenario_store_enomem,
    &mu_sim_scenario_store_push_twice,
    &mu_sim_scenario_store_pop_twice,
    &mu_sim_scenario_store_pop_order,
    &mu_sim_scenario_store_watch_gap,
    &mu_sim_scenario_store_lease_early,
    &mu_sim_scenario_store_session_early,
    &mu_sim_scenario_store_slow_sync,
    &mu_sim_scenario_rdzv,
    &mu_sim_scenario_rdzv_c10d,
    &mu_sim_scenario_rdzv_steady,
    &mu_sim_scenario_rdzv_relayed,
    &mu_sim_scenario_rdzv_relays,
    &mu_sim_scenario_rdzv_host_loss,
    &mu_sim_scenario_rdzv_etcd_old,
    &mu_sim_scenario_rdzv_etcd_old_careless,
    &mu_sim_scenario_rdzv_hasty,
    &mu_sim_scenario_rdzv_c10d_amnesia,
    &mu_sim_scenario_rdzv_etcd,
    &mu_sim_scenario_rdzv_etcd_deaf,
    &mu_sim_scenario_rdzv_etcd_immortal,
    &mu_sim_scenario_rdzv_deaf,
    &mu_sim_scenario_rdzv_dizzy,
    &mu_sim_scenario_rdzv_loose,
    &mu_sim_scenario_rdzv_ghost,
    &mu_sim_scenario_rdzv_forgetful,
    &mu_sim_scenario_rdzv_sulky,
    &mu_sim_scenario_rdzv_restless,
    &mu_sim_scenario_rdzv_recount,
    &mu_sim_scenario_rdzv_shuffled,
    &mu_sim_scenario_rdzv_succession,
    &mu_sim_scenario_rdzv_succession_early,
    &mu_sim_scenario_rdzv_succession_legacy,
    &mu_sim_scenario_rdzv_succession_lines,
    &mu_sim_scenario_rdzv_succession_minority,
    &mu_sim_scenario_rdzv_succession_prepared,
    &mu_sim_scenario_rdzv_succession_round,
    &mu_sim_scenario_rdzv_succession_twice,
    &mu_sim_scenario_rdzv_swapped,
    &mu_sim_scenario_agent,
    &mu_sim_scenario_agent_early,
    &mu_sim_scenario_agent_fence,
    &mu_sim_scenario_agent_hang,
    &mu_sim_scenario_agent_hang_childless,
    &mu_sim_scenario_agent_hang_deaf,
    &mu_sim_scenario_agent_hang_forgetful,
    &mu_sim_scenario_agent_hang_liars,
    &mu_sim_scenario_agent_hang_mute,
    &mu_sim_scenario_agent_hang_sleepless,
    &mu_sim_scenario_agent_hang_swapped,
    &mu_sim_scenario_agent_hourly,
    &mu_sim_scenario_copies,
    &mu_sim_scenario_copies_ageless,
    &mu_sim_scenario_copies_greedy,
    &mu_sim_scenario_copies_hasty,
    &mu_sim_scenario_copies_self,
    &mu_sim_scenario_copies_unheard,
    &mu_sim_scenario_kept,
    &mu_sim_scenario_kept_ageless,
    &mu_sim_scenario_kept_alone,
    &mu_sim_scenario_kept_greedy,
    &mu_sim_scenario_kept_hasty,
    &mu_sim_scenario_kept_shallow,
    &mu_sim_scenario_agent_numb,
    &mu_sim_scenario_agent_spendthrift,
    &mu_sim_scenario_agent_start,
    &mu_sim_scenario_agent_warm,
    &mu_sim_scenario_hm_state,
    &mu_sim_scenario_hm_state_torn,
    &mu_sim_scenario_p2pd,
    &mu_sim_scenario_p2pd_clings,
    &mu_sim_scenario_p2pd_forgets,
    &mu_sim_scenario_peer,
    &mu_sim_scenario_peer_greedy,
    &mu_sim_scenario_peer_losing,
    &mu_sim_scenario_peer_nonce,
    &mu_sim_scenario_peer_open_door,
    &mu_sim_scenario_relay,
    &mu_sim_scenario_relay_generous,
    &mu_sim_scenario_rpc,
    &mu_sim_scenario_rpc_twice,
    &mu_sim_scenario_rref,
    &mu_sim_scenario_rref_early,
    &mu_sim_scenario_rref_leak,
    &mu_sim_scenario_state,
    &mu_sim_scenario_state_many,
    &mu_sim_scenario_state_swarm,
    &mu_sim_scenario_state_swarm_old,
    &mu_sim_scenario_state_swarm_unverified,
    &mu_sim_scenario_state_unverified,
    NULL,
};

const struct mu_sim_scenario *mu_sim_scenario_find(const char *name)
{
    for (size_t i = 0; mu_sim_scenarios[i] != NULL; i++) {
        if (strcmp(mu_sim_scenarios[i]->name, name) == 0) {
            return mu_sim_scenarios[i];
        }
    }
    return NULL;
}

void mu_sim_scenario_run(const struct mu_sim_scenario *scenario, uint64_t seed, FILE *trace,
                         struct mu_sim_result *ret)
{
    mu_sim_scenario_run_for(scenario, seed, 0, trace, ret);
}

void mu_sim_scenario_run_for(const struct mu_sim_scenario *scenario, uint64_t seed,
                             uint64_t length_ns, FILE *trace, struct mu_sim_result *ret)
{
    struct mu_prng prng;
    struct mu_sim_config config = {.seed = seed,
                                   .trace = trace,
                                   .length_ns = length_ns,
                                   .steps_max = length_ns != 0 ? UINT64_MAX : 0};
    struct mu_sim *sim;
    const char *failure;

    mu_prng_seed(&prng, ~seed);
    config.faults = scenario->faults != NULL ? scenario->faults(&prng) : mu_sim_faults_draw(&prng);
    sim = mu_sim_new(&config);
    MU_ASSERT(sim != NULL);
    scenario->run(sim);
    failure = mu_sim_failure(sim);
    *ret = (struct mu_sim_result){
        .failed = failure != NULL,
        .undecided = sim->undecided,
        .steps = mu_sim_steps(sim),
        .digest = mu_sim_digest(sim),
        .virtual_ns = mu_sim_now_ns(sim),
    };
    (void)snprintf(ret->failure, sizeof(ret->failure), "%s", failure != NULL ? failure : "");
    mu_sim_free(sim);
}

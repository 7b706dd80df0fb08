/*
 * torchrun's event records (--event-log-handler console): one JSON object on a line of standard
 * error for each step of the agent and each start and end of a worker. Nothing is written unless
 * the handler was requested.
 */
#ifndef MU_RUN_EVENTS_H
#define MU_RUN_EVENTS_H

#include "cli/run_options.h"

#include "service/agent/agent.h"
#include "service/agent/output.h"

struct run_events {
    const struct run_options *o;
    struct mu_output *output;
    struct mu_env *env;
    const char *host;
    uint64_t began_ms;    /* when the agent began */
    uint64_t joined_ms;   /* when it began to wait for a round */
    uint64_t assigned_ms; /* when it was given a round */
    struct mu_agent_attempt attempt;
    bool has_attempt;
};

/** Everything is borrowed. */
void run_events_init(struct run_events *e, const struct run_options *o, struct mu_output *output,
                     struct mu_env *env, const char *host);
/** Takes the time of a step of the rendezvous; writes nothing. */
void run_events_record(struct run_events *e, const struct mu_rdzv_record *record);
/** The round and its ranks are there: writes RENDEZVOUS and ASSIGN_WORKER_RANKS. */
void run_events_prepare(struct run_events *e, const struct mu_agent_attempt *attempt);
/** Writes START of each worker. */
void run_events_started(struct run_events *e, const struct mu_agent_service *agent);
/** The workers are gone, and the agent waits for the next round. */
void run_events_gone(struct run_events *e);
/** Writes SUCCEEDED, FAILED or TERMINATED of each worker, then of the agent. */
void run_events_ended(struct run_events *e, const struct mu_agent_verdict *verdict);

#endif

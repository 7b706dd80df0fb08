/*
 * The health of an agent's machine: looked at before its node joins, again after its workers have
 * failed, and every ten seconds while they run. proto/agent/health.h says what is wrong; what is
 * new is told, and what was wrong shortly before a worker failed is in the cause of that.
 */
#ifndef MU_AGENT_SERVICE_HEALTH_H
#define MU_AGENT_SERVICE_HEALTH_H

#include "core/env.h"
#include "proto/agent/health.h"

#define MU_AGENT_HEALTH_FIRST_MS 250   /* for a driver that is slow to start, before we join */
#define MU_AGENT_HEALTH_HELD_MS  30000 /* for a driver to take back the memory of the dead */
#define MU_AGENT_HEALTH_XIDS     16    /* recent errors that a cause may name */

struct mu_agent_service;
struct mu_agent_worker;

/* A finding that was told, while it holds and for some time after. */
struct mu_agent_health_note {
    struct mu_health_finding finding;
    bool holds;
    mu_mono_t at;
};

struct mu_agent_health {
    const struct mu_health_source *source;
    struct mu_health_probe *probe; /* NULL: nobody looks */
    struct mu_timer timer;
    struct mu_health now;
    struct mu_health first;  /* GPUs and ports, as they were seen when the agent began */
    bool has_gpus, has_host; /* in `first` */
    uint32_t gpus;           /* those that workers may use */
    const char *visible;     /* CUDA_VISIBLE_DEVICES, or NULL */
    struct mu_health_findings found;
    size_t told_count;
    struct mu_agent_health_note told[MU_HEALTH_FINDINGS_MAX];
    uint64_t xid_count; /* of those that were told */
    struct mu_agent_health_xid {
        uint32_t gpu;
        uint32_t number;
        mu_mono_t at;
    } xids[MU_AGENT_HEALTH_XIDS]; /* a ring */

    /* the check */
    bool checking;
    bool checked; /* once before */
    struct mu_timer check_timer;
    mu_mono_t check_since;
    mu_mono_t said_at;
};

/** Begins to look, if the configuration has it. Without threads or memory nobody looks. */
void mu_agent_health_init(struct mu_agent_service *s);
void mu_agent_health_fini(struct mu_agent_service *s);
/** Whether the node is being looked at: mu_agent_check_health() follows. Else there is nothing to
 * wait for. */
bool mu_agent_health_check(struct mu_agent_service *s);
void mu_agent_health_check_stop(struct mu_agent_service *s);
/** Appends to `cause` what was wrong with the machine shortly before a worker failed. */
void mu_agent_health_cause(struct mu_agent_service *s, const struct mu_agent_worker *w, char *cause,
                           size_t cap);

#endif

/*
 * The status of an agent, for a page and for Prometheus, made of what it tells its user
 * (service/agent/agent.h). It asks nothing: the owner of the agent's callbacks passes them on.
 *
 *     mu_agent_status_init(&s, env, &config, &params, host)
 *     mu_agent_status_log(), _prepare(), _started(), _step(), _hang(), _straggler(),
 *         _paced(), _exited(), _gone(), _ended()
 *     struct mu_status_source source = mu_agent_status_source(&s);
 *     mu_agent_status_fini(&s)
 */
#ifndef MU_AGENT_STATUS_H
#define MU_AGENT_STATUS_H

#include "service/agent/agent.h"
#include "service/page/status_page.h"
#include "service/page/status_text.h"

#define MU_AGENT_STATUS_WORKERS 1024 /* that are listed one by one */
#define MU_AGENT_STATUS_RANKS   1024 /* of a run whose paces are listed one by one */
#define MU_AGENT_STATUS_UNKNOWN UINT16_MAX
#define MU_AGENT_STATUS_STEPS   120 /* whose times are kept, of the first worker that reports */
#define MU_AGENT_STATUS_ILL     8   /* findings about the machine's health that are told */

enum mu_agent_worker_state {
    MU_WORKER_STARTING = 1,
    MU_WORKER_RUNNING,
    MU_WORKER_SUCCEEDED,
    MU_WORKER_FAILED,
    MU_WORKER_STOPPED, /* by us: another failed, or the members changed */
};
#define MU_WORKER_STATES 6

struct mu_agent_status_worker {
    enum mu_agent_worker_state state;
    int64_t pid;
    int exit_code;
    mu_mono_t since;
    bool has_step; /* it has reported one in this round */
    uint64_t step;
    uint64_t step_ns; /* how long it took, or the last one of which that is known; 0: unknown */
    struct mu_straggle_rank pace;
};

/* How long the last steps took, as one worker reports them. */
struct mu_agent_status_steps {
    bool known;
    uint32_t local_rank;
    uint64_t count;                     /* of all times so far */
    uint32_t us[MU_AGENT_STATUS_STEPS]; /* a ring */
};

/* A node of the run, as the agent of node 0 sees it. */
struct mu_agent_status_node {
    char name[MU_PACE_NODE_MAX + 1];
    uint32_t first; /* of its ranks */
    uint32_t count;
    uint16_t kept_permille; /* by the rank of it that keeps the others waiting most */
};

struct mu_agent_status {
    struct mu_env *env;
    const struct mu_agent_service_config *config; /* borrowed, as is the next */
    const char *host;
    const struct mu_agent_service *agent; /* borrowed; NULL: not yet, or it has ended */
    const char *state; /* static: "joining", "starting", "running", "stopping", or the outcome */
    mu_mono_t began;
    struct mu_agent_attempt attempt;
    bool has_attempt;
    uint64_t failures; /* workers that failed by themselves since the agent began */
    struct mu_agent_status_worker *workers;
    uint32_t worker_count;
    char text[MU_STATUS_EVENT_MAX]; /* of the last decision */
    bool ended;
    char verdict[MU_STATUS_EVENT_MAX];
    struct mu_buf
        failure; /* the first one, as mu_failure_brief() writes it; empty: there was none */
    bool hangs;  /* since `hang_since`, with these ranks missing */
    int64_t hang_since;
    char hang_missing[MU_HANG_MISSING_MAX + 1];
    char hang_text[MU_HANG_TEXT_MAX + 1];
    struct mu_buf hang_stacks;        /* of the last hang, with its line; empty: there was none */
    uint64_t hang_count;              /* since the agent began */
    uint32_t fault_count, warn_count; /* what is wrong with this machine now */
    uint32_t ill_count;               /* of these, so many are in `ill` */
    struct mu_health_finding ill[MU_AGENT_STATUS_ILL];
    uint64_t xid_count; /* since the agent began */
    struct mu_stragglers stragglers;
    uint64_t straggler_count;           /* that were named since the agent began */
    struct mu_agent_status_node *nodes; /* node 0: of all of the run; owned, as are: */
    uint32_t node_count;
    uint16_t *kept; /* permille, by ranks; MU_AGENT_STATUS_UNKNOWN: not known */
    uint32_t kept_count;
    struct mu_status_events events;
    struct mu_status_history history;
    struct mu_agent_status_steps steps;
};

/** MUSTER_ENOMEM. */
int mu_agent_status_init(struct mu_agent_status *s, struct mu_env *env,
                         const struct mu_agent_service_config *config, const char *host);
void mu_agent_status_fini(struct mu_agent_status *s);

/* Each as the callback of the same name; `agent` knows the processes. */
void mu_agent_status_log(struct mu_agent_status *s, const char *line);
void mu_agent_status_prepare(struct mu_agent_status *s, const struct mu_agent_attempt *attempt);
void mu_agent_status_started(struct mu_agent_status *s, const struct mu_agent_service *agent);
void mu_agent_status_step(struct mu_agent_status *s, uint32_t local_rank, uint64_t step,
                          uint64_t ns);
void mu_agent_status_hang(struct mu_agent_status *s, const struct mu_hang *hang);
void mu_agent_status_health(struct mu_agent_status *s, const struct mu_health_findings *now,
                            const struct mu_health_finding *news);
void mu_agent_status_straggler(struct mu_agent_status *s, const struct mu_straggle_change *change);
void mu_agent_status_paced(struct mu_agent_status *s, const struct mu_agent_paced *paced);
void mu_agent_status_exited(struct mu_agent_status *s, const struct mu_agent_worker_end *end);
void mu_agent_status_gone(struct mu_agent_status *s);
void mu_agent_status_ended(struct mu_agent_status *s, const struct mu_agent_verdict *verdict);

/* status_pace.c, for status.c */
void mu_agent_status_put_stragglers(struct mu_status_text *t, const struct mu_agent_status *s);
void mu_agent_status_pace_metrics(struct mu_status_text *t, const struct mu_agent_status *s);

const char *mu_agent_worker_state_name(enum mu_agent_worker_state state);
struct mu_status_source mu_agent_status_source(struct mu_agent_status *s);

#endif

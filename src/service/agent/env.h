/*
 * The environment and the command with which a worker is started, as torchrun gives them. Pure:
 * values in, one block of memory out.
 *
 *     mu_agent_env_build(&env, local_rank, error_file, &envp, &msg)    envp for mu_free()
 *     mu_agent_argv_build(argv, local_rank, &args)                     args for mu_free()
 *
 * The variables of both generations of PyTorch are set, and ours:
 *
 *     MUSTER_ROUND      the number of the round
 *     MUSTER_GRACE      seconds between SIGTERM and SIGKILL
 *     MUSTER_NOTIFY_FD  the descriptor on which a worker can ask for a warning before a change
 *     MUSTER_VAULTS     where it keeps its state, and which version it loads (codec/state/kept.h)
 */
#ifndef MU_AGENT_ENV_H
#define MU_AGENT_ENV_H

#include "codec/agent/role_info.h"
#include "core/err.h"

/* What all workers of an agent have in common in one round. All text is borrowed. */
struct mu_agent_env {
    const char *const *inherited; /* "NAME=value", up to a NULL */
    const char *role;
    const char *run_id;
    uint32_t workers; /* of this agent */
    uint32_t restarts_max;
    uint32_t restart_count;
    uint64_t round;
    uint32_t group_rank;  /* of this agent */
    uint32_t group_world; /* agents */
    struct mu_ranks ranks;
    const char *master_addr;
    uint16_t master_port;
    bool use_agent_store;          /* a store already serves there: rank 0 opens no other */
    bool virtual_local_rank;       /* LOCAL_RANK=0 for all, each sees one GPU */
    const char *signals_to_handle; /* or NULL: as inherited */
    uint64_t grace_ms;
    int notify_fd;       /* negative: no channel */
    const char *vaults;  /* of this worker; or NULL: none */
    const char *flight;  /* or NULL: where flight recorders have their pipes and dumps */
    bool flight_renamed; /* PyTorch 2.9 and later warn of the older names */
};

/* What the flight recorder of a worker of PyTorch uses: a path is one of these and the rank. */
struct mu_agent_env_flight {
    const char *pipe;     /* and ".pipe"; NULL: it does not listen */
    const char *dumps[2]; /* either may be NULL */
};

/**
 * Makes the whole environment of one worker. Where OMP_NUM_THREADS is not inherited and there is
 * more than one worker, it is 1. PYTHONFAULTHANDLER is 1, and with `flight` there are the variables
 * of PyTorch's flight recorder, each where it is not inherited. `error_file` may be "".
 * MUSTER_EINVAL, with a text: virtual local ranks, but fewer devices in CUDA_VISIBLE_DEVICES than
 * workers; MUSTER_ENOMEM.
 */
int mu_agent_env_build(const struct mu_agent_env *e, uint32_t local_rank, const char *error_file,
                       const char *const **ret_envp, struct mu_errmsg *reterr_msg);

/** What workers will use that inherit this: their own settings, and `flight` where there are none.
 * `flight` is NULL: nothing. Lent as both are. */
struct mu_agent_env_flight mu_agent_env_flight(const char *const *inherited, const char *flight);

/**
 * Makes the command of one worker: in its arguments ${local_rank} and $local_rank become its
 * number, $$ becomes $, and anything else after a $ stays, as with Python's templates.
 * MUSTER_ENOMEM.
 */
int mu_agent_argv_build(const char *const *argv, uint32_t local_rank, const char *const **ret_argv);

/** Returns the value of a variable in such a list, or NULL. */
const char *mu_agent_env_get(const char *const *envp, const char *name);

#endif

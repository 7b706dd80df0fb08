/*
 * What the files of the remote references' driver share.
 *
 *     rref_agent.c        life, the pump, messages on their way
 *     rref_agent_ref.c    references and fetches of this process
 *     rref_agent_serve.c  requests of other workers, and the making of values
 */
#ifndef MU_RREF_AGENT_INTERNAL_H
#define MU_RREF_AGENT_INTERNAL_H

#include "service/rpc/rref_agent.h"

#define MU_RREF_METHODS 7

struct mu_rref_agent {
    struct mu_env *env;
    struct mu_rpc_agent *agent;
    struct mu_rref_agent_config config;
    int32_t id;
    struct mu_rref_table table;
    struct mu_timer timer;
    struct mu_heap deadlines; /* of fetches that wait here */
    struct mu_list ended;     /* fetches whose `ended` is due */
    struct mu_rpc_handler handlers[MU_RREF_METHODS];
    bool in_pump;
    bool stopped;
};

/* A message on its way. */
struct mu_rref_flight {
    struct mu_rpc_out out;
    struct mu_rref_agent *refs;
    struct mu_rref_op *op;
    struct mu_rpc_part *parts;
    struct mu_rpc_part part;
    uint8_t *msg; /* room for MU_RREF_MSG_LEN */
    uint8_t room[MU_RREF_MSG_LEN];
};

static inline mu_mono_t mu_rref_agent_now(const struct mu_rref_agent *refs)
{
    return mu_env_now(refs->env).mono;
}

/* --- rref_agent.c ----------------------------------------------------------------------------- */

/** Does everything that is due; inside a callback of the agent. */
void mu_rref_agent_pump(struct mu_rref_agent *refs);
/** Calls the pump on the next turn. */
void mu_rref_agent_poke(struct mu_rref_agent *refs);
/** Makes the message of a CREATE, with a copy of the arguments. NULL: no memory. */
struct mu_rref_flight *mu_rref_flight_new(const struct mu_rref_remote *call);

/* --- rref_agent_ref.c ------------------------------------------------------------------------- */

/** The reference has changed: fetches begin or end, and its owner is told. */
void mu_rref_tell(struct mu_rref *ref);
/** Ends a fetch, with a message (copied) or a text: the pump tells its owner. */
void mu_rref_fetch_end(struct mu_rref_fetch *fetch, int status, struct mu_span message);
void mu_rref_fetches_stop(struct mu_rref_agent *refs);
/** Calls `ended` of fetches that have ended; true if there was one. */
bool mu_rref_fetches_tell(struct mu_rref_agent *refs);
void mu_rref_fetches_tick(struct mu_rref_agent *refs);

/* --- rref_agent_serve.c ----------------------------------------------------------------------- */

extern const char *const mu_rref_methods[MU_RREF_METHODS]; /* by verb, and at 0 that of fetches */
/** MUSTER_EEXIST, MUSTER_ENOMEM. */
int mu_rref_serve(struct mu_rref_agent *refs);
/** Makes the value with a handler of ours; `message` is taken over. */
void mu_rref_make(struct mu_rref_agent *refs, struct mu_rref_value *v, struct mu_span method,
                  struct mu_buf *message, const char *caller, int32_t caller_id);
/** The value has no user any more. */
void mu_rref_bury(struct mu_rref_agent *refs, struct mu_rref_value *v);
/** Answers all that wait for values, and cancels the handlers that make them. */
void mu_rref_serve_stop(struct mu_rref_agent *refs);

#endif

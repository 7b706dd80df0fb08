/*
 * Remote references over the RPC agent, on the loop's thread: proto/rpc/rref.h decides, this
 * service sends. A service: it runs on libuv and in the simulator; api/rref.c has what other
 * threads see.
 *
 *     mu_rref_agent_start(env, agent, &config, &refs);
 *     mu_rref_agent_remote(refs, &ref, "worker1", &call);      the value is made there
 *     mu_rref_agent_fetch(&ref, &fetch);                       fetch.out's `ended` follows
 *     mu_rref_agent_fork(&ref, "worker2", token, &len, &n)     goes along with a call; when that
 *     mu_rref_agent_cancel(refs, n);                           has ended
 *     mu_rref_agent_take(refs, &ref, token, &msg);             at worker2
 *     mu_rref_agent_release(&ref);
 *
 * A reference lives in its owner's memory from when it is made until it is released. Messages are
 * calls that run at most once and are tried again; see docs/rpc.md.
 *
 * Call mu_rref_agent_back() with mu_rpc_agent_add(), and mu_rref_agent_gone() with
 * mu_rpc_agent_remove(). No callback runs inside a function of this header.
 */
#ifndef MU_RREF_AGENT_H
#define MU_RREF_AGENT_H

#include "proto/rpc/rref.h"
#include "service/rpc/agent.h"

struct mu_rref_agent;

struct mu_rref_agent_config {
    struct mu_rref_config rref; /* name, life and seed are filled in */
    uint32_t call_ms;           /* timeout of a message, of each try. 5,000 */
    struct mu_rpc_retry_options retry;
    void (*freed)(void *context, struct mu_rref_id id); /* a value was freed; may be NULL */
    void *context;
};

struct mu_rref_agent_config mu_rref_agent_config_defaults(void);

/** Serves the methods muster::RRef.* of the agent, whose name and id these are. MUSTER_EEXIST,
 * MUSTER_ENOMEM. */
int mu_rref_agent_start(struct mu_env *env, struct mu_rpc_agent *agent, const char *name,
                        int32_t id, const struct mu_rref_agent_config *config,
                        struct mu_rref_agent **ret_refs);
/** Before mu_rpc_agent_stop(): nothing more is sent, and handlers that make values are canceled. */
void mu_rref_agent_stop(struct mu_rref_agent *refs);
/** After the agent's `stopped`, and before it is freed. References that were not released are dead
 * from now on. */
void mu_rref_agent_free(struct mu_rref_agent *refs);

/** Changes our own id. */
void mu_rref_agent_set_id(struct mu_rref_agent *refs, int32_t id);
/** MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_rref_agent_back(struct mu_rref_agent *refs, const char *worker);
void mu_rref_agent_gone(struct mu_rref_agent *refs, const char *worker);

/* --- references ------------------------------------------------------------------------------- */

struct mu_rref {
    struct mu_rref_agent *refs;
    /** The reference was confirmed, or cannot be used any more: mu_rref_status(). May be NULL. */
    void (*changed)(struct mu_rref *ref);
    /* private from here */
    struct mu_rref_user *user;
    struct mu_list fetches; /* fetches that wait until it is confirmed */
    char *text;             /* the error of the creation */
};

struct mu_rref_remote {
    const char *method;
    const struct mu_rpc_part *parts; /* copied */
    size_t part_count;
    uint32_t timeout_ms; /* of each try; 0: no limit */
    bool retrying;
    struct mu_rpc_retry_options retry;
};

/** Makes a worker, which may be this one, run a method and keep its answer. MUSTER_EINVAL (the
 * method), MUSTER_ELIMIT, MUSTER_ENOMEM. */
int mu_rref_agent_remote(struct mu_rref_agent *refs, struct mu_rref *ref, const char *to,
                         const struct mu_rref_remote *call);
/** Makes a reference to a value of our own: a message, which is taken over. MUSTER_ENOMEM. */
int mu_rref_agent_local(struct mu_rref_agent *refs, struct mu_rref *ref, struct mu_buf *message);
/** Errors as mu_rref_take(). */
int mu_rref_agent_take(struct mu_rref_agent *refs, struct mu_rref *ref, struct mu_span token,
                       struct mu_errmsg *reterr_msg);
/** Errors as mu_rref_fork(). */
int mu_rref_agent_fork(struct mu_rref *ref, const char *child, uint8_t ret_token[MU_RREF_TOKEN_MAX],
                       size_t *ret_len, uint64_t *ret_number);
void mu_rref_agent_cancel(struct mu_rref_agent *refs, uint64_t number);
/** Fetches that wait end with MUSTER_ECANCELED, later. The memory is the owner's again. */
void mu_rref_agent_release(struct mu_rref *ref);

const char *mu_rref_owner(const struct mu_rref *ref);
bool mu_rref_is_owner(const struct mu_rref *ref);
/** 0: confirmed; MUSTER_EAGAIN: not yet; or why it cannot be used any more, with a text in
 * `*ret_text`.
 */
int mu_rref_status(const struct mu_rref *ref, const char **ret_text);
/** At the owner: the message, lent as long as the reference. MUSTER_EINVAL (we are not the owner),
 * MUSTER_EAGAIN (it is being made), or the error of the creation, with a text, lent too. */
int mu_rref_value(const struct mu_rref *ref, struct mu_span *ret_message);

/* Brings the value here. `out` is the owner's: `ended`, `timeout_ms`. */
struct mu_rref_fetch {
    struct mu_rpc_out *out;
    /* private from here */
    struct mu_rref_agent *refs;
    struct mu_list link; /* ref->fetches, value->local, refs->ended */
    struct mu_heap_node deadline;
    struct mu_rpc_part part;
    uint8_t msg[MU_RREF_MSG_LEN];
    const char *owner;
    int status;
    struct mu_buf message; /* or the error's text */
    bool called;           /* `out` is under way */
    bool over;
};

void mu_rref_agent_fetch(struct mu_rref *ref, struct mu_rref_fetch *fetch);
void mu_rref_fetch_cancel(struct mu_rref_fetch *fetch);

uint64_t mu_rref_agent_life(const struct mu_rref_agent *refs);
/** The last number that was given to a reference or to a token. */
uint64_t mu_rref_agent_last_number(const struct mu_rref_agent *refs);
void mu_rref_agent_stats(const struct mu_rref_agent *refs, struct mu_rref_stats *ret);

#endif

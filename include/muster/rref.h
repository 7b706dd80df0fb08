/*
 * Remote references: values that stay on the worker that made them, and handles to them that can be
 * passed around.
 *
 *     muster_rref *rref;
 *     struct muster_rpc_request make = {.to = "worker1", .method = "app::Model.load", ...};
 *     muster_rref_remote(agent, &make, &rref);            runs there; what it answers stays there
 *     if (muster_rref_to_here(rref, 5000, &future) == 0)  brings a copy here
 *         use(muster_rpc_future_part(future, 0).data);
 *     muster_rpc_future_free(future);
 *
 *     muster_rref_call(agent, &use_it, &rref, 1, &future);    a call with a reference among its
 *                                                             arguments, and there:
 *         size_t last = muster_rpc_in_part_count(call) - 1;
 *         muster_rref_take(agent, muster_rpc_in_part(call, last).data, &mine);
 *
 *     muster_rref_free(rref);
 *
 * The value is freed when, and only when, the last reference to it is gone, wherever that is: freed
 * by its user, or gone with its process (when another process takes its name, or when the worker is
 * removed from the group). docs/rpc.md has the protocol. What the making failed with is told to
 * whoever asks for the value.
 *
 * A reference is confirmed when the owner knows of it; until then it can be used, but not be passed
 * on. References must be of workers that know each other by name, and have ids.
 *
 * All functions may be called from any thread. Those that wait return MUSTER_EINVAL on the
 * runtime's own. When the agent is shut down, its references are dead, and are still to be freed.
 */
#ifndef MUSTER_RREF_H
#define MUSTER_RREF_H

#include <muster/rpc.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct muster_rref muster_rref;

/**
 * Has a worker (this one included) run a method and keep what it answers. It runs at most once;
 * with MUSTER_RPC_RETRY it is tried again until the owner has taken it on. `done` is not used.
 * MUSTER_EINVAL, MUSTER_EWORKER, MUSTER_ENOMEM.
 */
MUSTER_EXPORT int muster_rref_remote(muster_rpc_agent *agent,
                                     const struct muster_rpc_request *request,
                                     muster_rref **ret_rref);
/** A reference to a value of our own; the parts are copied. MUSTER_EINVAL, MUSTER_ENOMEM. */
MUSTER_EXPORT int muster_rref_new(muster_rpc_agent *agent, const struct muster_rpc_part *parts,
                                  size_t count, muster_rref **ret_rref);
/** Lets go of it; fetches under way that the owner was not asked for yet end. NULL is fine. */
MUSTER_EXPORT void muster_rref_free(muster_rref *rref);

/** The worker that has the value; lent as long as the reference. */
MUSTER_EXPORT const char *muster_rref_owner(const muster_rref *rref);
/** Its name and id. MUSTER_EWORKER: it is not known any more; MUSTER_ECLOSED. */
MUSTER_EXPORT int muster_rref_owner_info(const muster_rref *rref,
                                         struct muster_rpc_worker *ret_worker);
/** Whether the value is on this worker. */
MUSTER_EXPORT bool muster_rref_is_owner(const muster_rref *rref);
/** Whether the owner knows of it. */
MUSTER_EXPORT bool muster_rref_is_confirmed(muster_rref *rref);
/** Waits until the owner knows of it, for up to `timeout_ms` (MUSTER_RPC_FOREVER: no bound; 0: asks
 * without waiting, on any thread). MUSTER_ETIMEDOUT, or why that will never be: what the call
 * failed with, MUSTER_ENOENT, MUSTER_ESESSION, MUSTER_EWORKER, MUSTER_ECLOSED. */
MUSTER_EXPORT int muster_rref_wait_confirmed(muster_rref *rref, int64_t timeout_ms);

/**
 * Begins to bring a copy of the value here, once it is made. The future is as that of a call: its
 * error is that of the making, MUSTER_ENOENT (it was freed, which happens to those that were held
 * for gone), or one made on the way. `timeout_ms` as that of a call. MUSTER_EINVAL, MUSTER_ENOMEM,
 * MUSTER_ECLOSED (the agent was shut down). `done` may be NULL.
 */
MUSTER_EXPORT int muster_rref_fetch(muster_rref *rref, int64_t timeout_ms, muster_rpc_done *done,
                                    void *context, muster_rpc_future **ret_future);
/** The same, and waits. On an error there is no future. */
MUSTER_EXPORT int muster_rref_to_here(muster_rref *rref, int64_t timeout_ms,
                                      muster_rpc_future **ret_future);
/** The same, for the owner only (else MUSTER_EINVAL). */
MUSTER_EXPORT int muster_rref_local_value(muster_rref *rref, int64_t timeout_ms,
                                          muster_rpc_future **ret_future);

/* --- passing them on --------------------------------------------------------------------------
 *
 * A reference goes along with a call as a token, one part of the message. The worker that is called
 * takes it before it answers: a token whose call has ended is void.
 */

/**
 * As muster_rpc_call(), with a token for each reference behind the parts of the request. Runs at
 * most once (MUSTER_RPC_ONCE), since a token can be taken once only. MUSTER_EAGAIN: a reference is
 * not confirmed yet; or why it can be used no more.
 */
MUSTER_EXPORT int muster_rref_call(muster_rpc_agent *agent,
                                   const struct muster_rpc_request *request,
                                   muster_rref *const *rrefs, size_t count,
                                   muster_rpc_future **ret_future);
/**
 * What came with a call is a reference of this worker now. MUSTER_EPROTO (it is no token),
 * MUSTER_ECANCELED (it is void, or was taken), MUSTER_ESESSION (it is of a process that is gone),
 * MUSTER_ENOENT, MUSTER_ENOMEM.
 */
MUSTER_EXPORT int muster_rref_take(muster_rpc_agent *agent, struct muster_bytes token,
                                   muster_rref **ret_rref);

#define MUSTER_RREF_TOKEN_MAX 304

/* For those that have other ways to send it. */
struct muster_rref_token {
    uint64_t number;
    size_t len;
    uint8_t bytes[MUSTER_RREF_TOKEN_MAX];
};

/** Makes a token for a worker. Our reference lives on until it was taken or is void. Errors as
 * muster_rref_call(). */
MUSTER_EXPORT int muster_rref_fork(muster_rref *rref, const char *worker,
                                   struct muster_rref_token *ret_token);
/** It was delivered, or never will be: from now on it is void if it was not taken. To be called
 * once for each, sooner or later: until then the value is held. */
MUSTER_EXPORT void muster_rref_fork_end(muster_rpc_agent *agent,
                                        const struct muster_rref_token *token);

#ifdef __cplusplus
}
#endif

#endif

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
 * The value is freed when, and only when, the last reference to it is gone, wherever that is: its
 * user freed it, or its process is gone (when another process takes its name, or when the worker is
 * removed from the group). docs/rpc.md has the protocol. If making the value failed, every request
 * for it gets that error.
 *
 * A reference is confirmed when the owner knows of it; until then it can be used, but not passed
 * on. The workers that hold references must know each other by name, and have ids.
 *
 * All functions may be called from any thread. Functions that wait return MUSTER_EINVAL on the
 * runtime's own thread. When the agent is shut down, its references are dead; they must still be
 * freed.
 */
#ifndef MUSTER_RREF_H
#define MUSTER_RREF_H

#include <muster/rpc.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct muster_rref muster_rref;

/**
 * Asks a worker (or this one) to run a method and keep its answer. The method runs at most once;
 * with MUSTER_RPC_RETRY the request is tried again until the owner has accepted it. `done` is not
 * used. MUSTER_EINVAL, MUSTER_EWORKER, MUSTER_ENOMEM.
 */
MUSTER_EXPORT int muster_rref_remote(muster_rpc_agent *agent,
                                     const struct muster_rpc_request *request,
                                     muster_rref **ret_rref);
/** Makes a reference to a value of our own; the parts are copied. MUSTER_EINVAL, MUSTER_ENOMEM. */
MUSTER_EXPORT int muster_rref_new(muster_rpc_agent *agent, const struct muster_rpc_part *parts,
                                  size_t count, muster_rref **ret_rref);
/** Frees the reference; fetches that have not reached the owner yet end. NULL is fine. */
MUSTER_EXPORT void muster_rref_free(muster_rref *rref);

/** The worker that has the value; valid as long as the reference. */
MUSTER_EXPORT const char *muster_rref_owner(const muster_rref *rref);
/** The owner's name and id. MUSTER_EWORKER: the owner is no longer known; MUSTER_ECLOSED. */
MUSTER_EXPORT int muster_rref_owner_info(const muster_rref *rref,
                                         struct muster_rpc_worker *ret_worker);
/** Whether the value is on this worker. */
MUSTER_EXPORT bool muster_rref_is_owner(const muster_rref *rref);
/** Whether the owner knows of the reference. */
MUSTER_EXPORT bool muster_rref_is_confirmed(muster_rref *rref);
/** Waits until the owner knows of the reference, for up to `timeout_ms` (0 asks without waiting, on
 * any thread). MUSTER_ETIMEDOUT, or why that will never happen: the call's error, MUSTER_ENOENT,
 * MUSTER_ESESSION, MUSTER_EWORKER, MUSTER_ECLOSED. */
MUSTER_EXPORT int muster_rref_wait_confirmed(muster_rref *rref, int64_t timeout_ms);

/**
 * Begins to bring a copy of the value here, once it is made. The future is like that of a call: its
 * error is that of making the value, MUSTER_ENOENT (the value was freed because this worker was
 * taken for gone), or one from the way there or back. `timeout_ms` is like that of a call.
 * MUSTER_EINVAL, MUSTER_ENOMEM, MUSTER_ECLOSED (the agent was shut down). `done` may be NULL.
 */
MUSTER_EXPORT int muster_rref_fetch(muster_rref *rref, int64_t timeout_ms, muster_rpc_done *done,
                                    void *context, muster_rpc_future **ret_future);
/** As muster_rref_fetch(), and waits. On an error there is no future. */
MUSTER_EXPORT int muster_rref_to_here(muster_rref *rref, int64_t timeout_ms,
                                      muster_rpc_future **ret_future);
/** As muster_rref_to_here(), for the owner only (otherwise MUSTER_EINVAL). */
MUSTER_EXPORT int muster_rref_local_value(muster_rref *rref, int64_t timeout_ms,
                                          muster_rpc_future **ret_future);

/* --- passing them on --------------------------------------------------------------------------
 *
 * A reference goes along with a call as a token, one part of the message. The worker that is called
 * takes it before it answers: a token whose call has ended is void.
 */

/**
 * As muster_rpc_call(), with a token for each reference after the parts of the request. The call
 * runs at most once (MUSTER_RPC_ONCE), since a token can be taken only once. MUSTER_EAGAIN: a
 * reference is not confirmed yet; or the reason why it can no longer be used.
 */
MUSTER_EXPORT int muster_rref_call(muster_rpc_agent *agent,
                                   const struct muster_rpc_request *request,
                                   muster_rref *const *rrefs, size_t count,
                                   muster_rpc_future **ret_future);
/**
 * Turns a token that came with a call into a reference of this worker. MUSTER_EPROTO (it is not a
 * token), MUSTER_ECANCELED (it is void, or was taken), MUSTER_ESESSION (its process is gone),
 * MUSTER_ENOENT, MUSTER_ENOMEM.
 */
MUSTER_EXPORT int muster_rref_take(muster_rpc_agent *agent, struct muster_bytes token,
                                   muster_rref **ret_rref);

#define MUSTER_RREF_TOKEN_MAX 304

/* A token, for programs that send it in a way of their own. */
struct muster_rref_token {
    uint64_t number;
    size_t len;
    uint8_t bytes[MUSTER_RREF_TOKEN_MAX];
};

/** Makes a token for a worker. Our reference is held until the token is taken or void. Errors as
 * muster_rref_call(). */
MUSTER_EXPORT int muster_rref_fork(muster_rref *rref, const char *worker,
                                   struct muster_rref_token *ret_token);
/** Says that the token was delivered, or never will be: from now on it is void if it was not taken.
 * Call this once for each token, sooner or later: until then the value is held. */
MUSTER_EXPORT void muster_rref_fork_end(muster_rpc_agent *agent,
                                        const struct muster_rref_token *token);

#ifdef __cplusplus
}
#endif

#endif

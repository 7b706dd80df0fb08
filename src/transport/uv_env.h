/*
 * The environment on libuv. One struct mu_uv_env is one event loop; the thread that calls
 * mu_uv_env_run() is its thread. mu_uv_env_post() is the only door from other threads.
 */
#ifndef MU_UV_ENV_H
#define MU_UV_ENV_H

#include "core/env.h"
#include "core/err.h"

struct mu_uv_env;

/** MUSTER_ENOMEM, or a negated errno. */
int mu_uv_env_new(struct mu_uv_env **ret);
/** To call after mu_uv_env_run() has returned. All connections, listeners, timers and work must be
 * closed, and all children gone. */
void mu_uv_env_free(struct mu_uv_env *uv);
struct mu_env *mu_uv_env_env(struct mu_uv_env *uv);
/** Runs until mu_uv_env_stop(). */
void mu_uv_env_run(struct mu_uv_env *uv);
/** Runs one turn: waits until there is something to do, and returns when it is done. For blocking
 * callers and tests. */
void mu_uv_env_turn(struct mu_uv_env *uv);
/**
 * Whether each child gets a cgroup if the system allows it, so that nothing can leave its family.
 * The default is true; call this before the first child.
 */
void mu_uv_env_use_cgroups(struct mu_uv_env *uv, bool use);
/** On the loop's thread: mu_uv_env_run() returns after this turn. */
void mu_uv_env_stop(struct mu_uv_env *uv);
/** Whether this system has what the verb `http` needs: 0, or MUSTER_ENOTSUP with a text that names
 * the remedy. Any thread. */
int mu_uv_env_check_http(struct mu_errmsg *reterr_msg);

/** Calls `use` with each IP address of this machine, except for link-local ones. */
void mu_uv_env_each_number(void (*use)(void *context, const char *ip), void *context);
/** The same for those that other machines may reach: loopback only if there is no other. */
void mu_uv_env_each_far_number(void (*use)(void *context, const char *ip), void *context);

/* A message from another thread: the memory is the sender's until `run` is called on the loop. */
struct mu_post {
    struct mu_list link;
    void (*run)(struct mu_post *post);
};

/** From any thread: calls `post->run` on the loop's thread, in order. Cannot fail. */
void mu_uv_env_post(struct mu_uv_env *uv, struct mu_post *post);
/** On the loop's thread: does nothing at all until a message is posted. */
void mu_uv_env_rest(struct mu_uv_env *uv);

#endif

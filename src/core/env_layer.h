/*
 * A layer: an environment on top of another one that does some verbs its own way. This passes the
 * other verbs down:
 *
 *     static const struct mu_env_ops ops = {MU_ENV_LAYER_OPS, .dial = dial, .listen = ...};
 *
 * Connections and listeners are always a layer's own: dial, listen, unlisten, sendv, resume, close
 * and peer.
 */
#ifndef MU_ENV_LAYER_H
#define MU_ENV_LAYER_H

#include "core/env.h"

/* The first member of a layer's own struct. */
struct mu_env_layer {
    struct mu_env env;
    struct mu_env *below; /* borrowed */
};

static inline struct mu_env *mu_env_below(struct mu_env *env)
{
    return ((struct mu_env_layer *)env)->below;
}

struct mu_now mu_env_layer_now(struct mu_env *env);
void mu_env_layer_entropy(struct mu_env *env, void *buf, size_t len);
uint64_t mu_env_layer_memory(struct mu_env *env);
void mu_env_layer_self(struct mu_env *env, struct mu_self *ret_self);
const struct mu_paths *mu_env_layer_paths(struct mu_env *env);
const struct mu_vaults *mu_env_layer_vaults(struct mu_env *env);
const struct mu_peek *mu_env_layer_peek(struct mu_env *env);
const struct mu_health_source *mu_env_layer_health(struct mu_env *env);
void mu_env_layer_timer_arm(struct mu_env *env, struct mu_timer *timer, mu_mono_t at);
int mu_env_layer_work(struct mu_env *env, struct mu_work *work);
int mu_env_layer_spawn(struct mu_env *env, struct mu_child *child, const struct mu_spawn *what);
int mu_env_layer_child_signal(struct mu_env *env, struct mu_child *child, int signal,
                              enum mu_child_scope scope);
void mu_env_layer_child_resume(struct mu_env *env, struct mu_child *child, enum mu_stream stream);
void mu_env_layer_child_leave(struct mu_env *env, struct mu_child *child, int signal,
                              uint64_t grace_ms);
void mu_env_layer_children_until(struct mu_env *env, mu_mono_t until);
int mu_env_layer_standbys_open(struct mu_env *env, struct mu_standbys *standbys,
                               const struct mu_spawn *what);
void mu_env_layer_standbys_want(struct mu_env *env, struct mu_standbys *standbys, uint32_t count);
void mu_env_layer_standbys_close(struct mu_env *env, struct mu_standbys *standbys);
int mu_env_layer_http(struct mu_env *env, struct mu_http *http,
                      const struct mu_http_request *request);
void mu_env_layer_http_resume(struct mu_env *env, struct mu_http *http);
void mu_env_layer_http_cancel(struct mu_env *env, struct mu_http *http);

/* clang-format off */
#define MU_ENV_LAYER_OPS                                                                           \
    .now = mu_env_layer_now,                                                                       \
    .entropy = mu_env_layer_entropy,                                                               \
    .memory = mu_env_layer_memory,                                                                 \
    .self = mu_env_layer_self,                                                                     \
    .paths = mu_env_layer_paths,                                                                   \
    .vaults = mu_env_layer_vaults,                                                                 \
    .peek = mu_env_layer_peek,                                                                     \
    .health = mu_env_layer_health,                                                                 \
    .timer_arm = mu_env_layer_timer_arm,                                                           \
    .work = mu_env_layer_work,                                                                     \
    .spawn = mu_env_layer_spawn,                                                                   \
    .child_signal = mu_env_layer_child_signal,                                                     \
    .child_resume = mu_env_layer_child_resume,                                                     \
    .child_leave = mu_env_layer_child_leave,                                                       \
    .children_until = mu_env_layer_children_until,                                                 \
    .standbys_open = mu_env_layer_standbys_open,                                                   \
    .standbys_want = mu_env_layer_standbys_want,                                                   \
    .standbys_close = mu_env_layer_standbys_close,                                                 \
    .http = mu_env_layer_http,                                                                     \
    .http_resume = mu_env_layer_http_resume,                                                       \
    .http_cancel = mu_env_layer_http_cancel
/* clang-format on */

#endif

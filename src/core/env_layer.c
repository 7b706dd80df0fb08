#include "core/env_layer.h"

struct mu_now mu_env_layer_now(struct mu_env *env)
{
    return mu_env_now(mu_env_below(env));
}

void mu_env_layer_entropy(struct mu_env *env, void *buf, size_t len)
{
    mu_env_entropy(mu_env_below(env), buf, len);
}

uint64_t mu_env_layer_memory(struct mu_env *env)
{
    return mu_env_memory(mu_env_below(env));
}

void mu_env_layer_self(struct mu_env *env, struct mu_self *ret_self)
{
    mu_env_self(mu_env_below(env), ret_self);
}

const struct mu_paths *mu_env_layer_paths(struct mu_env *env)
{
    return mu_env_paths(mu_env_below(env));
}

const struct mu_vaults *mu_env_layer_vaults(struct mu_env *env)
{
    return mu_env_vaults(mu_env_below(env));
}

const struct mu_peek *mu_env_layer_peek(struct mu_env *env)
{
    return mu_env_peek(mu_env_below(env));
}

const struct mu_health_source *mu_env_layer_health(struct mu_env *env)
{
    return mu_env_health(mu_env_below(env));
}

void mu_env_layer_timer_arm(struct mu_env *env, struct mu_timer *timer, mu_mono_t at)
{
    mu_env_timer_arm(mu_env_below(env), timer, at);
}

int mu_env_layer_work(struct mu_env *env, struct mu_work *work)
{
    return mu_env_work(mu_env_below(env), work);
}

int mu_env_layer_spawn(struct mu_env *env, struct mu_child *child, const struct mu_spawn *what)
{
    return mu_env_spawn(mu_env_below(env), child, what);
}

int mu_env_layer_child_signal(struct mu_env *env, struct mu_child *child, int signal,
                              enum mu_child_scope scope)
{
    return mu_env_child_signal(mu_env_below(env), child, signal, scope);
}

void mu_env_layer_child_resume(struct mu_env *env, struct mu_child *child, enum mu_stream stream)
{
    mu_env_child_resume(mu_env_below(env), child, stream);
}

void mu_env_layer_child_leave(struct mu_env *env, struct mu_child *child, int signal,
                              uint64_t grace_ms)
{
    mu_env_child_leave(mu_env_below(env), child, signal, grace_ms);
}

void mu_env_layer_children_until(struct mu_env *env, mu_mono_t until)
{
    mu_env_children_until(mu_env_below(env), until);
}

int mu_env_layer_standbys_open(struct mu_env *env, struct mu_standbys *standbys,
                               const struct mu_spawn *what)
{
    return mu_env_standbys_open(mu_env_below(env), standbys, what);
}

void mu_env_layer_standbys_want(struct mu_env *env, struct mu_standbys *standbys, uint32_t count)
{
    mu_env_standbys_want(mu_env_below(env), standbys, count);
}

void mu_env_layer_standbys_close(struct mu_env *env, struct mu_standbys *standbys)
{
    mu_env_standbys_close(mu_env_below(env), standbys);
}

int mu_env_layer_http(struct mu_env *env, struct mu_http *http,
                      const struct mu_http_request *request)
{
    return mu_env_http(mu_env_below(env), http, request);
}

void mu_env_layer_http_resume(struct mu_env *env, struct mu_http *http)
{
    mu_env_http_resume(mu_env_below(env), http);
}

void mu_env_layer_http_cancel(struct mu_env *env, struct mu_http *http)
{
    mu_env_http_cancel(mu_env_below(env), http);
}

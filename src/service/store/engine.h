/*
 * The two ways a tcp store talks: the native wire and PyTorch's protocol. Each engine is a store of
 * its own that connects, reconnects and says how that went; tcp.c finds out which one fits.
 */
#ifndef MU_STORE_ENGINE_H
#define MU_STORE_ENGINE_H

#include "service/store/store.h"

struct mu_store_engine_events {
    /** The peer speaks this protocol of the engine's: ops may be submitted. At most once. */
    void (*ready)(void *context, enum mu_store_tcp_protocol found);
    /** It does not: it closed on us, or (`silent`) said nothing for probe_ms. At most once, before
     * `ready`. */
    void (*mismatch)(void *context, bool silent);
    /** The first connection could not be made within connect_ms, or we were refused. At most once,
     * before `ready`. */
    void (*failed)(void *context, int status, const char *text);
    void *context;
};

/*
 * A peer whose protocol the user has named gets more patience before it is taken for something
 * else: one that hangs up or keeps silent is more likely to be lost packets or a busy host.
 */
#define MU_STORE_TOLD_GREETINGS 8  /* greetings in a row that may end without an answer */
#define MU_STORE_TOLD_PATIENCE  10 /* times probe_ms */

int mu_store_native_new(struct mu_env *env, const struct mu_store_tcp_config *config,
                        const struct mu_store_engine_events *events, struct mu_store **ret_store);
/** `config->protocol` says which generation; MU_STORE_TCP_ANY: first 1, then 2. */
int mu_store_torch_new(struct mu_env *env, const struct mu_store_tcp_config *config,
                       const struct mu_store_engine_events *events, struct mu_store **ret_store);

/**
 * The bytes of a key on the wire. PyTorch's clients put a '/' before every key but the worker
 * count's, and share the key space with ours, so ours do the same.
 */
#define MU_STORE_WORKER_COUNT_KEY "init/"
static inline bool mu_store_key_is_bare(struct mu_span key)
{
    return mu_span_eq(key, MU_SPAN_LIT(MU_STORE_WORKER_COUNT_KEY));
}

#endif

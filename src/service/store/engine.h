/*
 * The two engines of a tcp store: the native wire and PyTorch's protocol. Each is a store of its
 * own that connects, reconnects and reports the result; tcp.c finds out which one fits.
 */
#ifndef MU_STORE_ENGINE_H
#define MU_STORE_ENGINE_H

#include "service/store/store.h"

struct mu_store_engine_events {
    /** The server speaks this protocol of the engine's: ops may be submitted. At most once. */
    void (*ready)(void *context, enum mu_store_tcp_protocol found);
    /** It does not: it closed the connection, or (`silent`) sent nothing for probe_ms. At most
     * once, before `ready`. */
    void (*mismatch)(void *context, bool silent);
    /** There was no first connection within connect_ms, or the server refused us. At most once,
     * before `ready`. */
    void (*failed)(void *context, int status, const char *text);
    void *context;
};

/*
 * A server whose protocol the user has named gets more patience before we take it for something
 * else: if it hangs up or is silent, lost packets or a busy host are more likely.
 */
#define MU_STORE_TOLD_GREETINGS 8  /* greetings in a row that may end without an answer */
#define MU_STORE_TOLD_PATIENCE  10 /* times probe_ms */

int mu_store_native_new(struct mu_env *env, const struct mu_store_tcp_config *config,
                        const struct mu_store_engine_events *events, struct mu_store **ret_store);
/** `config->protocol` says which generation; MU_STORE_TCP_ANY: first 1, then 2. */
int mu_store_torch_new(struct mu_env *env, const struct mu_store_tcp_config *config,
                       const struct mu_store_engine_events *events, struct mu_store **ret_store);

/**
 * Keys on the wire: PyTorch's clients put a '/' before every key but the worker count's, and share
 * the keyspace with ours, so ours do the same.
 */
#define MU_STORE_WORKER_COUNT_KEY "init/"
static inline bool mu_store_key_is_bare(struct mu_span key)
{
    return mu_span_eq(key, MU_SPAN_LIT(MU_STORE_WORKER_COUNT_KEY));
}

#endif

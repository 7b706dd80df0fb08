/*
 * Where the workers of a round meet: an address and a port that rank 0 publishes in the round's
 * store under MASTER_ADDR and MASTER_PORT, as PyTorch's agents do, so that both kinds understand
 * each other.
 *
 *     mu_rdzv_round_store_open(env, assignment->store, 60000, &stores, &msg)
 *     config.store = stores.store; config.rank = ...; config.addr = handler->addr; ...
 *     mu_rdzv_bootstrap_start(env, &config, &bootstrap, &msg)   done(addr, port) follows, or failed
 *     ... the round ...
 *     mu_rdzv_bootstrap_end(bootstrap)                          ended() follows; then it is gone
 *
 * Rank 0 with `share` starts a store server of its own at a free port, which lives until the end:
 * workers use it as clients. Every round has a new one, so that keys of an earlier attempt cannot
 * confuse a later one. Without `share` rank 0 publishes a port that was free a moment ago, at which
 * its first worker serves (PyTorch 1.13, and 2.x with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1).
 *
 * The others wait for the pair. A rank 0 of PyTorch 2.11 publishes it only in the first round it is
 * in and serves there for the rest of its life; so, when nothing was published for `patience_ms`,
 * the node looks at the pairs of earlier rounds, from the last one down, and takes the first one
 * that names rank 0's address and at which a server listens. Meanwhile a pair of this round still
 * wins. Our own nodes mark their pairs as good for one round, and these are passed over: an agent
 * of ours that is slow to stop its workers still serves the round before, and the node waits for
 * it.
 *
 * No callback runs inside a call; from inside a callback anything may be called.
 */
#ifndef MU_RDZV_BOOTSTRAP_H
#define MU_RDZV_BOOTSTRAP_H

#include "core/env.h"
#include "core/err.h"
#include "service/store/store.h"

#define MU_RDZV_BOOTSTRAP_PREFIX_MAX  1024
#define MU_RDZV_BOOTSTRAP_ROUNDS_MAX  256 /* how many earlier rounds are looked at */
#define MU_RDZV_BOOTSTRAP_TIMEOUT_MS  60000
#define MU_RDZV_BOOTSTRAP_PATIENCE_MS 3000

/* --- the round's store ------------------------------------------------------------------------ */

struct mu_rdzv_round_store {
    struct mu_store *store; /* of the round. Closing it closes the other as well */
    struct mu_store *run;   /* the same without its prefix */
    char prefix[MU_RDZV_BOOTSTRAP_PREFIX_MAX + 1]; /* "": no prefix, and the two are the same */
};

/** Opens the store of an assignment's URL. Both views share one connection. MUSTER_EURL with a
 * text, MUSTER_ENOMEM. */
int mu_rdzv_round_store_open(struct mu_env *env, const char *url, uint32_t connect_ms,
                             struct mu_rdzv_round_store *ret, struct mu_errmsg *reterr_msg);

/** Whether only this host can reach the store of that URL: then all nodes are here. */
bool mu_rdzv_round_store_is_near(const char *url);

/* --- the pair --------------------------------------------------------------------------------- */

struct mu_rdzv_bootstrap_config {
    struct mu_store
        *store;           /* of the round; used until done or failed, and may be closed any time */
    struct mu_store *run; /* the same without its prefix; NULL: does not look at earlier rounds */
    const char *prefix;   /* of `store` in `run`; must end in '.' and the round for a look back */
    uint64_t round;
    uint32_t rank;
    const char *addr;     /* rank 0: how others reach this node */
    bool nearby;          /* all nodes are on this host: where the job's lock keeps others out,
                             loopback is published instead of `addr` */
    const char *addr_0;   /* the others: rank 0's address, or NULL if it is not known */
    bool alone;           /* rank 0 is the only node: it serves its store on loopback only */
    bool share;           /* rank 0 serves a store there */
    uint32_t timeout_ms;  /* 0: 60 s */
    uint32_t patience_ms; /* 0: 3 s */
    /** Once, unless it was ended before. `addr` is lent until the end. */
    void (*done)(void *context, const char *addr, uint16_t port);
    /** MUSTER_ERDZV_TIMEOUT, MUSTER_ERDZV_CONN, MUSTER_ERDZV_STATE (what rank 0 published is not an
     * address and a port), MUSTER_ECLOSED (the store was closed). The caller still has to call
     * mu_rdzv_bootstrap_end(). */
    void (*failed)(void *context, int status, const char *text);
    /** The last callback, after mu_rdzv_bootstrap_end(). */
    void (*ended)(void *context);
    void *context;
};

struct mu_rdzv_bootstrap;

/** Texts are copied. MUSTER_EINVAL (the address is not one), MUSTER_EADDR, MUSTER_ELOCKED,
 * MUSTER_ENOMEM. */
int mu_rdzv_bootstrap_start(struct mu_env *env, const struct mu_rdzv_bootstrap_config *config,
                            struct mu_rdzv_bootstrap **ret_bootstrap, struct mu_errmsg *reterr_msg);
struct mu_store_server;
/** The server at this node; NULL: there is none. */
const struct mu_store_server *mu_rdzv_bootstrap_server(const struct mu_rdzv_bootstrap *b);
/** How often the keys of the server at this node were changed; 0: there is no server here. */
uint64_t mu_rdzv_bootstrap_changes(const struct mu_rdzv_bootstrap *b);
/** Ends the server, if there is one; neither done nor failed comes any more. `ended` follows. */
void mu_rdzv_bootstrap_end(struct mu_rdzv_bootstrap *b);

#endif

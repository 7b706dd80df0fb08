/*
 * What a callee remembers so that a call runs at most once, however often it arrives. A pure
 * machine.
 *
 * A call that must not run twice carries the caller's id (16 bytes, drawn when the caller started),
 * a number that the caller never uses again, and the caller's floor: the least number for which it
 * still wants an answer. Everything below the floor can be forgotten. So memory is bounded by the
 * calls in progress:
 *
 *     unknown key                    RUN: it runs, mu_rpc_once_answer() follows
 *     it runs now                    JOIN: one answer serves both
 *     it was answered                REPLAY: the same answer again
 *     below the floor, forgotten     REFUSE: it may have run
 *
 * Answers are kept up to a number of bytes; then the oldest lose their content (a repetition of
 * such a call is refused, it does not run again). Callers are kept up to a number; the one that was
 * silent the longest is forgotten, and from then on a repetition by an unknown caller is refused.
 */
#ifndef MU_RPC_ONCE_H
#define MU_RPC_ONCE_H

#include "core/buf.h"
#include "core/list.h"
#include "core/map.h"

#define MU_RPC_CALLER_LEN 16

struct mu_rpc_once_config {
    size_t callers_max; /* 4,096 */
    size_t keys_max;    /* of one caller, above its floor. 65,536 */
    size_t bytes_max;   /* of answers. 64 MiB */
    uint64_t seed;
};

struct mu_rpc_once_config mu_rpc_once_config_defaults(void);

struct mu_rpc_once {
    struct mu_rpc_once_config config;
    struct mu_map callers;
    struct mu_list recent;  /* callers, the latest at the end */
    struct mu_list answers; /* keys with content, oldest first */
    size_t bytes;
    size_t keys;
    bool forgot; /* a caller was forgotten */
};

struct mu_rpc_once_caller;

struct mu_rpc_once_key {
    struct mu_map_node by_seq;
    struct mu_list all;    /* in its caller's list */
    struct mu_list answer; /* once->answers */
    struct mu_list joined; /* for the owner: calls that wait for the answer */
    struct mu_rpc_once_caller *caller;
    uint64_t seq;
    bool done;
    bool lost; /* its content was dropped */
    int status;
    struct mu_buf content;
};

enum mu_rpc_once_verdict {
    MU_RPC_ONCE_RUN = 1,
    MU_RPC_ONCE_JOIN,
    MU_RPC_ONCE_REPLAY,
    MU_RPC_ONCE_REFUSE,
    MU_RPC_ONCE_FULL, /* over a limit, or no memory: it did not run, and is not remembered */
};

void mu_rpc_once_init(struct mu_rpc_once *o, const struct mu_rpc_once_config *config);
/** No key may be running. */
void mu_rpc_once_fini(struct mu_rpc_once *o);
/**
 * Takes a call that arrived. `again`: the caller has sent it before. With RUN, JOIN and REPLAY
 * `*ret_key` is its key, which lives as long as the call runs; after that until the next call of
 * this function.
 */
enum mu_rpc_once_verdict mu_rpc_once_begin(struct mu_rpc_once *o, const uint8_t *caller,
                                           uint64_t seq, uint64_t floor, bool again,
                                           struct mu_rpc_once_key **ret_key);
/** The call has run: keeps a copy of its answer if there is room. */
void mu_rpc_once_answer(struct mu_rpc_once *o, struct mu_rpc_once_key *key, int status,
                        struct mu_span content);
/** The call did not run after all, and may run another time. */
void mu_rpc_once_withdraw(struct mu_rpc_once *o, struct mu_rpc_once_key *key);

#endif

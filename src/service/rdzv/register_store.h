/*
 * The compare-and-set register in which PyTorch's c10d backend keeps its state: a key of a store.
 * It holds base64 of the state's bytes, or a sentinel that means "no state"; the token of a state
 * is its base64.
 *
 *     DOWN ──▶ CREATING ──▶ UP       what fails there: DOWN, and again when asked
 *              the sentinel
 *
 * See service/rdzv/register.h for what it does. With a store that can be watched there is a
 * `changed` for every change that an answer may not have seen. A key that is gone (a store that was
 * restarted) is made again.
 *
 * Turns. Hundreds of nodes that compete for one register lose most of their writes. On a store that
 * can be watched, which is muster's own, a node that has lost a write takes its turn before the
 * next one: it pops the one element of the queue KEY.turn, writes (the first write mostly loses and
 * brings the state, the second wins), and pushes the element back. Turns are voluntary: nodes that
 * do not know of them, such as PyTorch's, write at any time. A node that has waited too long writes
 * without a turn, and puts back the element of a node that died with it.
 */
#ifndef MU_RDZV_REGISTER_STORE_H
#define MU_RDZV_REGISTER_STORE_H

#include "core/buf.h"
#include "service/rdzv/register.h"
#include "service/store/store.h"

#define MU_RDZV_REGISTER_KEY_MAX 320

struct mu_rdzv_store_register_config {
    const char *path; /* of a file store; NULL: a tcp store. Borrowed for the register's life */
    struct mu_store_tcp_config tcp;
    uint32_t answer_ms;      /* how long the store may take to answer */
    uint32_t first_delay_ms; /* before the first request to a store that cannot be watched: random,
                                at most this */
    uint32_t turn_ms; /* how long to wait for a turn, plus a random time of up to half of it */
    char key[MU_RDZV_REGISTER_KEY_MAX];
};

/* A store's operation that may be under way. */
struct mu_rdzv_store_register_op {
    struct mu_store_op op;
    bool busy;
    bool called_back; /* it will end canceled, and its answer is ignored */
};

enum mu_rdzv_store_register_phase {
    MU_RDZV_STORE_REGISTER_DOWN = 0,
    MU_RDZV_STORE_REGISTER_CREATING,
    MU_RDZV_STORE_REGISTER_UP,
};

struct mu_rdzv_store_register {
    struct mu_rdzv_register base;
    struct mu_rdzv_store_register_config config;
    struct mu_store *store;   /* NULL: not open yet, or not any more */
    struct mu_store *leaving; /* one that is being closed */
    struct mu_timer timer;    /* DOWN: no memory; UP: the first delay; closing: the end */
    struct mu_span key;
    enum mu_rdzv_store_register_phase phase;
    bool store_up;   /* the store has answered, ever */
    bool found;      /* and it is known whether it can be watched: `push` */
    bool push;       /* true until the store says otherwise */
    bool delayed;    /* the first request waits for the timer */
    bool contended;  /* a write was lost: the next one takes its turn */
    bool holding;    /* it is our turn */
    bool give_again; /* the turn must be passed on once more */
    bool closing;
    struct mu_rdzv_store_register_op create;
    struct mu_rdzv_store_register_op watch;
    struct mu_rdzv_store_register_op ask;
    struct mu_rdzv_store_register_op turn;
    struct mu_rdzv_store_register_op give;
    struct mu_span turn_key;
    struct mu_span turn_value;
    char turn_name[MU_RDZV_REGISTER_KEY_MAX + 8];
    struct mu_span create_values[2];
    struct mu_span ask_values[2];
    uint64_t asked; /* the request that was sent to the store */
    struct mu_buf expected;
    struct mu_buf desired;
    struct mu_buf next_expected; /* of a write that waits */
    struct mu_buf next_desired;
    struct mu_buf bytes; /* of the state that was read */
};

/** Makes a register; it opens nothing before the first request. MUSTER_ENOMEM. */
int mu_rdzv_store_register_new(struct mu_env *env,
                               const struct mu_rdzv_store_register_config *config,
                               const struct mu_rdzv_register_events *events,
                               struct mu_rdzv_register **ret_register);

#endif

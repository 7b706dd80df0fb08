/*
 * The register that holds the shared state of a dynamic rendezvous, for the machine of
 * proto/rdzv/node.h, behind one small table of verbs.
 *
 *     register_store.c   a key of a store, as PyTorch's c10d backend has it
 *     register_v2.c      a key of etcd's v2 API, as PyTorch's etcd-v2 backend has it
 *     register_v3.c      keys of etcd's v3 API, where a node's life is a lease: ours
 *
 * There is one request at a time, and each is answered unless another one has replaced it. Where
 * changes are pushed, there is a `changed` (or the new state itself) for every change that an
 * answer may not have seen.
 */
#ifndef MU_RDZV_REGISTER_H
#define MU_RDZV_REGISTER_H

#include "core/env.h"
#include "proto/rdzv/node.h"

struct mu_rdzv_register;

/* What is known of a register once it has answered. */
struct mu_rdzv_register_found {
    bool push;  /* it reports changes */
    bool turns; /* it holds writes back until it is their turn */
    enum mu_rdzv_dialect
        dialect;      /* the one that the others must use; UNKNOWN: no reason to prefer one */
    const char *text; /* for the record */
};

struct mu_rdzv_register_events {
    /** Comes before the first answer that is not a failure, and again if something changes. */
    void (*found)(void *context, const struct mu_rdzv_register_found *found);
    /** STATE_READ (request 0: without a request), STATE_WRITTEN, WRITE_LOST or BACKEND_FAILED, for
     * the machine; its time is not set. What it points to is lent for the call. */
    void (*answer)(void *context, struct mu_rdzv_event *event);
    void (*changed)(void *context);
    /** The last callback; the register is gone. */
    void (*closed)(void *context);
    void *context;
};

struct mu_rdzv_register_kind {
    /** `answer` follows, on a later turn. Replaces an earlier request. */
    void (*read)(struct mu_rdzv_register *reg, uint64_t request);
    /** Likewise, for an update with DO_WRITE. MUSTER_ENOMEM, MUSTER_ELIMIT: there will be no
     * answer. */
    int (*write)(struct mu_rdzv_register *reg, const struct mu_rdzv_update *up);
    /** `closed` follows, on a later turn. */
    void (*close)(struct mu_rdzv_register *reg);
};

enum mu_rdzv_register_want {
    MU_RDZV_REGISTER_NOTHING = 0,
    MU_RDZV_REGISTER_READ,
    MU_RDZV_REGISTER_WRITE
};

/* The first member of every kind's struct. */
struct mu_rdzv_register {
    const struct mu_rdzv_register_kind *kind;
    struct mu_env *env;
    struct mu_rdzv_register_events events;
    enum mu_rdzv_register_want want; /* the request that has no answer yet */
    uint64_t request;
};

static inline void mu_rdzv_register_read(struct mu_rdzv_register *reg, uint64_t request)
{
    reg->kind->read(reg, request);
}

static inline int mu_rdzv_register_write(struct mu_rdzv_register *reg,
                                         const struct mu_rdzv_update *up)
{
    return reg->kind->write(reg, up);
}

static inline void mu_rdzv_register_close(struct mu_rdzv_register *reg)
{
    reg->kind->close(reg);
}

/* --- for the kinds ---------------------------------------------------------------------------- */

/** Answers the request under way. */
void mu_rdzv_register_answer(struct mu_rdzv_register *reg, struct mu_rdzv_event *event);
/** The same with BACKEND_FAILED; does nothing if there is no request. */
void mu_rdzv_register_fail(struct mu_rdzv_register *reg, int status, const char *text,
                           bool transient);
/** Whether another try may help before the deadline. */
bool mu_rdzv_register_is_transient(int status);

#endif

/*
 * Where the state of a dynamic rendezvous lies, for the machine of proto/rdzv/node.h: what a driver
 * owes that machine, behind one small table of verbs.
 *
 *     cell_store.c   a key of a store, as PyTorch's c10d backend has it
 *     cell_v2.c      a key of etcd's v2 API, as PyTorch's etcd-v2 backend has it
 *     cell_v3.c      keys of etcd's v3 API, where a node's life is a lease: ours
 *
 * One request at a time, each answered unless another one has taken its place, and where changes
 * are pushed a `changed` (or the new state itself) for every change that an answer may not have
 * seen.
 */
#ifndef MU_RDZV_CELL_H
#define MU_RDZV_CELL_H

#include "core/env.h"
#include "proto/rdzv/node.h"

struct mu_rdzv_cell;

/* How a cell turned out. */
struct mu_rdzv_cell_found {
    bool push;  /* changes are told */
    bool turns; /* it holds writes back until it is their turn */
    enum mu_rdzv_dialect
        dialect;      /* the one that the others must speak; UNKNOWN: no reason to prefer one */
    const char *text; /* for the record */
};

struct mu_rdzv_cell_events {
    /** Before the first answer that is not a failure, and again should it turn out otherwise. */
    void (*found)(void *context, const struct mu_rdzv_cell_found *found);
    /** STATE_READ (with request 0: nobody asked), STATE_WRITTEN, WRITE_LOST or BACKEND_FAILED, for
     * the machine; its time is not set. What it points to is lent for the call. */
    void (*answer)(void *context, struct mu_rdzv_event *event);
    void (*changed)(void *context);
    /** The last callback; the cell is gone. */
    void (*closed)(void *context);
    void *context;
};

struct mu_rdzv_cell_kind {
    /** `answer` follows, on a later turn. Takes the place of what was asked before. */
    void (*read)(struct mu_rdzv_cell *cell, uint64_t request);
    /** Likewise, for an update with DO_WRITE. MUSTER_ENOMEM, MUSTER_ELIMIT: there will be no
     * answer. */
    int (*write)(struct mu_rdzv_cell *cell, const struct mu_rdzv_update *up);
    /** `closed` follows, on a later turn. */
    void (*close)(struct mu_rdzv_cell *cell);
};

enum mu_rdzv_cell_want { MU_RDZV_CELL_NOTHING = 0, MU_RDZV_CELL_READ, MU_RDZV_CELL_WRITE };

/* The first member of every kind's own. */
struct mu_rdzv_cell {
    const struct mu_rdzv_cell_kind *kind;
    struct mu_env *env;
    struct mu_rdzv_cell_events events;
    enum mu_rdzv_cell_want want; /* the request that was asked for and not answered */
    uint64_t request;
};

static inline void mu_rdzv_cell_read(struct mu_rdzv_cell *cell, uint64_t request)
{
    cell->kind->read(cell, request);
}

static inline int mu_rdzv_cell_write(struct mu_rdzv_cell *cell, const struct mu_rdzv_update *up)
{
    return cell->kind->write(cell, up);
}

static inline void mu_rdzv_cell_close(struct mu_rdzv_cell *cell)
{
    cell->kind->close(cell);
}

/* --- for the kinds ---------------------------------------------------------------------------- */

/** Answers what is wanted, which then is nothing. */
void mu_rdzv_cell_answer(struct mu_rdzv_cell *cell, struct mu_rdzv_event *event);
/** Likewise, with BACKEND_FAILED; not where nothing is wanted. */
void mu_rdzv_cell_fail(struct mu_rdzv_cell *cell, int status, const char *text, bool transient);
/** Whether another try may help before the deadline. */
bool mu_rdzv_cell_is_transient(int status);

#endif

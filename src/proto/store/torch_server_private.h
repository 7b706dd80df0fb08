/* What torch_server.c (the stream), _exec.c (what each request does) and _out.c (answers) share. */
#ifndef MU_TORCH_SERVER_PRIVATE_H
#define MU_TORCH_SERVER_PRIVATE_H

#include "codec/store/torch_wire.h"
#include "proto/store/torch_server.h"

/* The most that is reserved ahead for later answers. */
#define MU_TORCH_HINT_MAX (256u * 1024)

/* A value of this size, which has its own block in any keyspace, is not copied. */
#define MU_TORCH_LEND_MIN ((size_t)4096)

/* A value that is sent straight from the keyspace. */
struct mu_torch_loan {
    struct mu_ks_block *block;
    struct mu_span rest; /* what is not sent yet */
    size_t before;       /* bytes of `out` between the value before it and this one */
};

/* The values of one answer. */
struct mu_torch_loans {
    struct mu_list link; /* in mu_torch_server.lent */
    size_t count;
    size_t first; /* the first that is not sent whole */
    size_t cap;
    struct mu_torch_loan loans[];
};

/* One WATCH_KEY registration. */
struct mu_torch_watch {
    struct mu_list link; /* in mu_torch_server.watches */
    struct mu_torch_server *server;
    struct mu_ks_watch watch;
};

/** Executes one complete, well-formed request. Its errors have poisoned `t` already. */
int mu_torch_server_execute(struct mu_torch_server *t, struct mu_keyspace *ks, enum mu_torch_op op,
                            struct mu_span request);
/**
 * Whether a request may be executed now: 1, or 0 if gateways have to give keys back first. An error
 * has poisoned `t`.
 */
int mu_torch_server_ask(struct mu_torch_server *t, enum mu_torch_op op, struct mu_span request);
/** Keeps one complete, well-formed request for another executor. Errors as above. */
int mu_torch_server_defer(struct mu_torch_server *t, enum mu_torch_op op, struct mu_span request);
void mu_torch_server_drop_deferred(struct mu_torch_server *t);
/* Drops the requests that will not be answered, because no more is taken from this connection. */
void mu_torch_server_drop_waits(struct mu_torch_server *t);
/** Makes room for `n` values of the next answer, all of which must be put. NULL: no memory. */
struct mu_torch_loans *mu_torch_loans_new(struct mu_torch_server *t, size_t n);
/** Puts a value after everything in the output. */
void mu_torch_loans_put(struct mu_torch_server *t, struct mu_torch_loans *loans,
                        struct mu_span value, struct mu_ks_block *block);
void mu_torch_loans_drop(struct mu_torch_server *t, struct mu_torch_loans *loans);
/** Poisons the machine; returns `code`. */
int mu_torch_server_fail(struct mu_torch_server *t, int code, const struct mu_errmsg *e);

#endif

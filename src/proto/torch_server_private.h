/* Between torch_server.c (the stream) and torch_server_exec.c (what each request does). */
#ifndef MU_TORCH_SERVER_PRIVATE_H
#define MU_TORCH_SERVER_PRIVATE_H

#include "codec/torch_wire.h"
#include "proto/torch_server.h"

/* The most that is reserved ahead for answers that did not come yet. */
#define MU_TORCH_HINT_MAX (256u * 1024)

/* One WATCH_KEY registration. */
struct mu_torch_watch {
    struct mu_list link; /* in mu_torch_server.watches */
    struct mu_torch_server *server;
    struct mu_ks_watch watch;
};

/** Executes one whole, well-formed request. Its errors have poisoned `t` already. */
int mu_torch_server_execute(struct mu_torch_server *t, struct mu_keyspace *ks, enum mu_torch_op op,
                            struct mu_span request);
/** Keeps one whole, well-formed request for somebody else. Errors as above. */
int mu_torch_server_defer(struct mu_torch_server *t, enum mu_torch_op op, struct mu_span request);
void mu_torch_server_drop_deferred(struct mu_torch_server *t);
/* Those that nobody will answer, as no more is taken from this connection. */
void mu_torch_server_drop_waits(struct mu_torch_server *t);
/** Poisons; returns `code`. */
int mu_torch_server_fail(struct mu_torch_server *t, int code, const struct mu_errmsg *e);

#endif

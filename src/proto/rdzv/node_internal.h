/* What the files of the rendezvous' node share. See proto/rdzv/node.h. */
#ifndef MU_RDZV_NODE_INTERNAL_H
#define MU_RDZV_NODE_INTERNAL_H

#include "proto/rdzv/node.h"

/* node_op.c: decides and acts until there is something to wait for. */
int mu_rdzv_node_run(struct mu_rdzv *r, struct mu_rdzv_update *up);
/* Ends these operations (MU_RDZV_OP_*) with a code; `v.why` has the text. */
void mu_rdzv_node_fail(struct mu_rdzv *r, struct mu_rdzv_update *up, unsigned ops, int code);
/* Returns the operations in progress, and the membership if there is one. */
unsigned mu_rdzv_node_ops(const struct mu_rdzv *r);
/* Returns the settings with the generation that follows from the dialect. */
struct mu_rdzv_settings mu_rdzv_node_settings(const struct mu_rdzv *r);
/* Returns the dialect to write. */
enum mu_rdzv_dialect mu_rdzv_node_dialect(const struct mu_rdzv *r);

/* node_time.c */
bool mu_rdzv_node_is_fresh(const struct mu_rdzv *r);
/* Returns when to look again if nothing happens. */
mu_mono_t mu_rdzv_node_next_look(struct mu_rdzv *r);
/* Returns when an operation has waited long enough for the backend; the earliest of `ops`. */
mu_mono_t mu_rdzv_node_patience(const struct mu_rdzv *r, unsigned ops);
/* Return when to write again after `v.losses` lost writes, and to ask again after `v.failures`
 * failures. */
mu_mono_t mu_rdzv_node_backoff(struct mu_rdzv *r);
/** Takes note of how long an answer took. */
void mu_rdzv_node_took(struct mu_rdzv *r, uint64_t ns);
/** Returns when a member that is told of a change may read again at the earliest. */
mu_mono_t mu_rdzv_node_next_member_read(const struct mu_rdzv *r);
/** Takes note of a new state. */
void mu_rdzv_node_measure_pace(struct mu_rdzv *r);
mu_mono_t mu_rdzv_node_retry(struct mu_rdzv *r);
/* Returns when to read after a watch fired. */
mu_mono_t mu_rdzv_node_spread(struct mu_rdzv *r);

/* node_say.c: write the reason into `v.why`. */
void mu_rdzv_node_say_join_timeout(struct mu_rdzv *r);
void mu_rdzv_node_say_closed(struct mu_rdzv *r);
void mu_rdzv_node_say_timeout(struct mu_rdzv *r, const char *what, uint64_t ms);
void mu_rdzv_node_say_backend(struct mu_rdzv *r, int status, const char *text);

#endif

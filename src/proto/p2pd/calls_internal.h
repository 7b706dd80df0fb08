/* What calls.c (users, actions) and unary.c (the stream of one call) share. */
#ifndef MU_P2PD_CALLS_INTERNAL_H
#define MU_P2PD_CALLS_INTERNAL_H

#include "proto/p2pd/calls.h"

/* --- calls.c ---------------------------------------------------------------------------------- */

/** Action `type` is due for a call. */
void mu_p2pd_call_due(struct mu_p2pd_unary *call, enum mu_p2pd_action_type type);
/** The user has bytes to be sent, may be read from, is to be closed. */
void mu_p2pd_user_due(struct mu_p2pd_user *user, enum mu_p2pd_action_type type);
void mu_p2pd_user_tell(struct mu_p2pd_user *user, const struct mu_p2pd_call *m);
void mu_p2pd_user_tell_simply(struct mu_p2pd_user *user, struct mu_span id,
                              enum mu_p2pd_call_kind kind, const char *text);

/* --- unary.c ---------------------------------------------------------------------------------- */

void mu_p2pd_unary_init(struct mu_p2pd_calls *calls, struct mu_p2pd_unary *call, bool ours,
                        const struct mu_peer_id *peer, struct mu_span name);
/** It counts from now on. */
void mu_p2pd_unary_begin(struct mu_p2pd_unary *call);
/** The message of the call goes to its user, which has room for it. */
void mu_p2pd_unary_deliver(struct mu_p2pd_unary *call);
/** The user has answered. */
void mu_p2pd_unary_answer(struct mu_p2pd_unary *call, struct mu_span message);
/** Ends the call at once, whatever its state. */
void mu_p2pd_unary_drop(struct mu_p2pd_unary *call);

#endif

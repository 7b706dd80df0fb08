/*
 * What the files of the client share. rpc_client.c: dialling, the connection, giving up.
 * rpc_client_pump.c: the session, and the owner.
 */
#ifndef MU_RPC_CLIENT_INTERNAL_H
#define MU_RPC_CLIENT_INTERNAL_H

#include "service/wire/rpc_client.h"

/** Begins a session. MUSTER_EINVAL: its terms cannot be. */
int mu_rpc_client_begin_session(struct mu_rpc_client *c);
/** Resets the connection, if there is one. */
void mu_rpc_client_close_link(struct mu_rpc_client *c);
/** The owner is told at the tail of the pump. */
void mu_rpc_client_note(struct mu_rpc_client *c, enum mu_rpc_client_news news, int status,
                        const char *text);
/** Likewise, once, of a client that was never greeted and never will be: its owner closes it. */
void mu_rpc_client_report(struct mu_rpc_client *c, enum mu_rpc_client_news news, int status,
                          const char *text);
/** After anything happened, with what came. May be the end of the client, and of its memory. */
void mu_rpc_client_pump(struct mu_rpc_client *c, struct mu_span in);

#endif

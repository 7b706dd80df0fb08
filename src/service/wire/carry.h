/*
 * Connections that are carried: one end dials a relay in place of the server, and says so by
 * MU_CARRY_MAGIC; the relay passes the bytes on as items of a call, MU_CARRY_METHOD, of its own
 * session with the server; and the server takes that call for one more connection.
 *
 *     dials                     the relay                          the server
 *     mu_carry_env_via()  --->  MU_CARRY_MAGIC, bytes   --call-->  mu_carry_serve()
 *
 * So a server has one connection for a relay and all that come by it, and the sessions of these are
 * theirs, not the relay's: when it is lost, they dial again, by another relay or directly, and go
 * on as after any lost connection.
 *
 * An environment on another one: it makes the connections of both ends.
 */
#ifndef MU_CARRY_H
#define MU_CARRY_H

#include "core/env.h"
#include "service/wire/rpc_server.h"

/* The first bytes of a connection that is to be carried. */
#define MU_CARRY_MAGIC     "\xcaMUSTER\n"
#define MU_CARRY_MAGIC_LEN ((size_t)8)
/* A stream both ways; the bytes of a connection in each. */
#define MU_CARRY_METHOD "muster::Wire.carry"
/* Bytes of one item. */
#define MU_CARRY_ITEM_MAX ((size_t)65536)
/* Relays that are tried in turn. */
#define MU_CARRY_RELAYS_MAX 4

struct mu_carry_env;

/** MUSTER_ENOMEM. `below` is borrowed. */
int mu_carry_env_new(struct mu_env *below, struct mu_carry_env **ret_carry);
/** All of its connections must be closed. NULL is fine. */
void mu_carry_env_free(struct mu_carry_env *carry);
struct mu_env *mu_carry_env_env(struct mu_carry_env *carry);
/**
 * From now on all is dialled by one of these relays, at most MU_CARRY_RELAYS_MAX. Whenever such a
 * connection ends, the next one is, and after the last none; before `closed`, `moved` is called.
 */
void mu_carry_env_via(struct mu_carry_env *carry, const struct mu_addr *relays, size_t count,
                      void (*moved)(void *context), void *context);
/** The relay that is dialled now; NULL: none, but the server itself. Lent until the next one is. */
const struct mu_addr *mu_carry_env_relay(const struct mu_carry_env *carry);
/** Leaves the relay that is dialled now for the next one: connections by it end at once. */
void mu_carry_env_next(struct mu_carry_env *carry);

/** A CALL of MU_CARRY_METHOD: it is accepted as a connection of this listener. */
void mu_carry_serve(struct mu_carry_env *carry, struct mu_rpc_session *session, uint64_t id,
                    struct mu_listener *listener);

#endif

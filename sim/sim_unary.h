/*
 * Unary calls in the simulator (service/base/unary.h): one connection for each, with a message each
 * way. It replaces peers' streams where these are not tested, so that a thousand nodes are cheap.
 * The caller's id is not verified.
 *
 * Peers are numbered; peer `n` is on host "n<n>".
 */
#ifndef MU_SIM_UNARY_H
#define MU_SIM_UNARY_H

#include "service/base/unary.h"
#include "sim.h"

struct sim_unary;

/** Listens on this process's host. MUSTER_ENOMEM, or the error of listening. */
int sim_unary_new(struct mu_env *env, uint32_t number, struct sim_unary **ret);
struct mu_unary *sim_unary_of(struct sim_unary *u);
/** All calls must be over or canceled, and nothing may be served. `done` follows; then it is
 * freed. */
void sim_unary_close(struct sim_unary *u, void (*done)(void *context), void *context);

struct mu_peer_id sim_unary_peer(uint32_t number);
uint32_t sim_unary_number(const struct mu_peer_id *peer);

#endif

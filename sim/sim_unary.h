/*
 * Unary calls in the simulator (service/base/unary.h): a connection for each, with a message each
 * way. It stands in for peers' streams where these are not what is tested, so that a thousand nodes
 * are cheap. Who calls is taken at his word.
 *
 * Peers are numbered; peer `n` is on host "n<n>".
 */
#ifndef MU_SIM_UNARY_H
#define MU_SIM_UNARY_H

#include "service/base/unary.h"
#include "sim.h"

struct sim_unary;

/** Listens on this process's host. MUSTER_ENOMEM or what listening failed with. */
int sim_unary_new(struct mu_env *env, uint32_t number, struct sim_unary **ret);
struct mu_unary *sim_unary_of(struct sim_unary *u);
/** All calls must be over or canceled, and nobody serve. `done` follows; then it is freed. */
void sim_unary_close(struct sim_unary *u, void (*done)(void *context), void *context);

struct mu_peer_id sim_unary_peer(uint32_t number);
uint32_t sim_unary_number(const struct mu_peer_id *peer);

#endif

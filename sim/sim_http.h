/*
 * HTTP in the simulator: mu_env_http() is served by objects at a host and a port. Such a server
 * belongs to the test and is not a process: its code runs outside of every process, is never paused
 * or killed, and can be made unreachable. Between it and its clients are the links of the simulated
 * network, with their latency and cuts; and, where connections are reset, requests that never
 * arrive, answers that are lost, and streams that break.
 */
#ifndef MU_SIM_HTTP_H
#define MU_SIM_HTTP_H

#include "sim.h"

struct mu_sim_http_server;
struct mu_sim_exchange;

struct mu_sim_http_ops {
    /** A request has arrived. The server answers it with mu_sim_http_answer(), now or later. */
    void (*request)(void *arg, struct mu_sim_exchange *x, const char *method, const char *path,
                    struct mu_span body);
    /** The exchange is over, answered or not; it must not be used any more. */
    void (*gone)(void *arg, struct mu_sim_exchange *x);
};

struct mu_sim_http_server *mu_sim_http_serve(struct mu_sim_host *host, uint16_t port,
                                             const struct mu_sim_http_ops *ops, void *arg);
/** Down: exchanges in progress are reset, and new ones are refused. */
void mu_sim_http_down(struct mu_sim_http_server *server, bool down);
/** Sets the value of the header that the request asked for. Call it before the answer begins. */
void mu_sim_http_keep(struct mu_sim_exchange *x, const char *value);
/** Sends a part of the answer; the first with its code. With `end` it is the last. */
void mu_sim_http_answer(struct mu_sim_exchange *x, int code, struct mu_span part, bool end);
/** For the server, while the exchange lasts. */
void mu_sim_http_set_context(struct mu_sim_exchange *x, void *context);
void *mu_sim_http_context(const struct mu_sim_exchange *x);

#endif

/* What the files of `muster rpc` share. */
#ifndef MU_CMD_RPC_H
#define MU_CMD_RPC_H

#include <muster/rpc.h>

#include "cli/cli_lock.h"

struct rpc_options {
    const char *name;
    const char *listen;
    const char *advertise;
    const char *to;
    const char *store;
    const char *group;
    const char *method;
    const char *data;
    struct cli_lock *lock;
    uint64_t id, world, threads;
    uint64_t retries, count, in_flight, size;
    double timeout, retry_delay, duration;
    bool once;
    bool wait;
    bool json;
};

/** Serves until SIGTERM or SIGINT. Returns an exit code, as the other functions do. */
int rpc_serve(const struct rpc_options *o);
int rpc_call(const struct rpc_options *o);
int rpc_bench(const struct rpc_options *o);

#endif

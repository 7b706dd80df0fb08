/*
 * The end of the process. exit() takes the libraries down one after the other while the threads of
 * runtimes that were left open still run: one that is in a handshake when OpenSSL goes would crash,
 * and turn the program's success into a failure. So exit() first lets these threads come to rest.
 * One that is called after that, by a destructor that comes later, goes on as before.
 */
#ifndef MU_RUNTIME_END_H
#define MU_RUNTIME_END_H

#include <stdbool.h>

#include <muster/runtime.h>

#include "core/list.h"
#include "transport/uv_env.h"

struct mu_runtime_end {
    struct mu_list link;
    struct mu_post post;
    bool rests; /* or need not come to rest */
};

/** The runtime is there; its thread may run. */
void mu_runtime_end_watch(muster_runtime *rt);
/** Before its thread stops. */
void mu_runtime_end_forget(muster_runtime *rt);

#endif

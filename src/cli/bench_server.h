/*
 * A server for benchmarks in its own process, so that its CPU time can be measured apart.
 */
#ifndef MU_BENCH_SERVER_H
#define MU_BENCH_SERVER_H

#include <stdint.h>
#include <sys/types.h>

#include "service/server/server.h"

struct bench_server {
    pid_t pid;
    int ask;    /* a byte in */
    int answer; /* the figures out */
    uint16_t port;
};

struct bench_server_figures {
    struct mu_store_server_stats stats;
    uint64_t cpu_us; /* of the process, user and system */
};

/** Forks; call it before there are threads. `backing` is NULL, or as that of a server. Returns 0,
 * or an exit code after it has printed the error. Of several, the last one is to be stopped
 * first. */
int bench_server_start(struct bench_server *s, const char *backing);
/** Returns false if the server is gone. */
bool bench_server_figures(struct bench_server *s, struct bench_server_figures *ret);
void bench_server_stop(struct bench_server *s);

#endif

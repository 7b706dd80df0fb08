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
    uint64_t cpu_us;     /* of the process, user and system */
    uint64_t memory_kib; /* the most that it ever had */
};

/* Loopback addresses at which a server can be. */
#define BENCH_SERVER_PLACES (1 + MU_STORE_SERVER_MORE)

/** Forks; call it before there are threads. `backing` is NULL, or as that of a server. It listens
 * at the same port of so many places. Returns 0, or an exit code after it has printed the error. Of
 * several, the last one is to be stopped first. */
int bench_server_start(struct bench_server *s, const char *backing, unsigned places);
/** Writes the host of a place: 127.0.0.1, 127.0.0.2, ... */
void bench_server_place(unsigned index, char *host, size_t cap);
/** Returns false if the server is gone. */
bool bench_server_figures(struct bench_server *s, struct bench_server_figures *ret);
void bench_server_stop(struct bench_server *s);

#endif

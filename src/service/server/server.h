/*
 * The store server: listens, distinguishes PyTorch's protocol and the native wire by their first
 * byte, and serves one keyspace and the rendezvous of any number of runs. A service: machines plus
 * an environment; it runs unchanged on libuv and in the simulator.
 *
 *     struct mu_store_server_config config = mu_store_server_config_defaults();
 *     mu_addr_parse("127.0.0.1:0", 0, &config.listen, &msg);
 *     mu_store_server_start(env, &config, &server, &msg);
 *     ... mu_store_server_addr(server) ...
 *     mu_store_server_drain(server);           stopped() follows
 *
 * Durability. Without a disk everything is in memory. With one, SYNC_ALWAYS sends no byte of an
 * answer before all changes that it could reflect are on disk: what a client was told survives a
 * crash and a power cut. SYNC_INTERVAL answers at once and writes every `sync_interval_ms`: a crash
 * loses at most the changes of the last interval and of the write in progress, or those of the last
 * two writes if they take longer than the interval.
 *
 * With a backing the keys are elsewhere, and this server is one of any number that serve them. With
 * etcd, an answered change is on the disks of most of its members; leases are not served. With
 * another server (this one is a gateway) everything is as on that server, over one session.
 * Rendezvous are not served in either case.
 *
 * A full disk stops only changes: they are refused with MUSTER_EDISK until it has room again, which
 * the server checks every second. Changes that were on their way to it are refused as well, though
 * they are visible from then on; a crash takes them back, or else the disk gets them when it has
 * room. A disk that fails otherwise ends the server (status MUSTER_EDISK): going on would
 * acknowledge what cannot be kept.
 */
#ifndef MU_STORE_SERVER_H
#define MU_STORE_SERVER_H

#include "core/disk.h"
#include "core/env.h"
#include "core/err.h"
#include "proto/store/holds.h"
#include "proto/store/keyspace.h"
#include "proto/rpc/rpc.h"
#include "proto/store/torch_server.h"
#include "service/server/rdzv_hub.h"
#include "service/page/status_page.h"

enum mu_sync {
    MU_SYNC_ALWAYS = 1,
    MU_SYNC_INTERVAL,
};

struct mu_store_server_config {
    struct mu_addr listen; /* the port is filled in */
    struct mu_ks_config keyspace;
    struct mu_torch_limits torch;
    struct mu_rpc_config rpc; /* terms for native sessions; the server sets role and ids */
    struct mu_rdzv_hub_config rdzv;
    size_t connections_max; /* 100,000; the descriptor limit usually comes first */
    size_t sessions_max;    /* 100,000 */
    bool fit; /* calls mu_store_server_config_fit() first, with the available memory. Yes */
    size_t buffer_bytes_max; /* half-read requests and unsent answers of all clients. 2 GiB */
    struct mu_disk *disk;    /* NULL: memory only. The server takes it and closes it at the end */
    /* The backing: NULL, or etcd://HOST,HOST/PREFIX, or tcp://HOST:PORT. Copied. Not with a
     * disk. */
    const char *backing;
    bool backing_ends; /* the keys are deleted when the server drains */
    bool holds; /* gateways may answer for keys. Not with a disk: who comes back from it does not
                   know what it has granted. Yes */
    struct mu_holds_config hold;
    enum mu_sync sync;
    uint32_t sync_interval_ms; /* 100 */
    size_t
        /* no more requests are read while this much waits for the disk. 64 MiB */
        journal_bytes_high;
    size_t backlog_bytes_max; /* of a watch that is behind; past it the watch ends. 4 MiB */
    uint32_t eof_grace_ms; /* of a session whose client closed its connection without a goodbye, as
                              a killed process does. 25 */
    uint32_t drain_ms;     /* how long a drain waits for slow readers. 5,000 */
    /** The last callback: 0 after a drain, else why the server had to stop. */
    void (*stopped)(void *context, int status, const char *why);
    void *context;
};

struct mu_store_server_config mu_store_server_config_defaults(void);
/**
 * Lowers limits so that a process that may use `memory` bytes (UINT64_MAX: not known) stays within
 * them: a half for keys and values, an eighth for buffers. The rest is for the journal,
 * connections, the kernel's part of them, and what an allocator cannot use.
 */
void mu_store_server_config_fit(struct mu_store_server_config *config, uint64_t memory);
/** Lowers the limits of one request, one answer and the journal to fit these two. */
void mu_store_server_config_settle(struct mu_store_server_config *config);

struct mu_store_server;

/**
 * Loads the disk, then listens. Errors: MUSTER_EADDR and MUSTER_ELOCKED (the address), MUSTER_EURL
 * (the backing), MUSTER_ECORRUPT, MUSTER_EDISK, MUSTER_EFULL (the disk holds more than the limits
 * allow), MUSTER_ENOMEM; the text names the thing. On an error the disk is still the caller's.
 */
int mu_store_server_start(struct mu_env *env, const struct mu_store_server_config *config,
                          struct mu_store_server **ret_server, struct mu_errmsg *reterr_msg);
/** The config's context. */
void *mu_store_server_context(const struct mu_store_server *server);
/** The hub of its rendezvous. */
struct mu_rdzv_hub *mu_store_server_hub(struct mu_store_server *server);
/** Listens at another address as well, MU_STORE_SERVER_MORE times; port 0 is rewritten. Errors as
 * of mu_store_server_start(). */
#define MU_STORE_SERVER_MORE 3
int mu_store_server_listen(struct mu_store_server *server, struct mu_addr *addr,
                           struct mu_errmsg *reterr_msg);
/** The address at which the server listens. */
const struct mu_addr *mu_store_server_addr(const struct mu_store_server *server);
/** Stops listening, answers the requests that were read, writes the journal, closes; `stopped`
 * follows. Twice is harmless. */
void mu_store_server_drain(struct mu_store_server *server);
/** After `stopped`. */
void mu_store_server_free(struct mu_store_server *server);

struct mu_store_server_stats {
    uint64_t connections, connections_total, sessions, keys, memory_bytes, buffer_bytes, revision;
    uint64_t peers_dropped, commits, waits, watches, disk_full;
    uint64_t runs, members;                            /* of rendezvous, now */
    uint64_t joins, rounds, losses, restarts, notices; /* of rendezvous, in all */
    uint64_t exclusions, excluded_joins;
    uint64_t holds, granted, recalls;          /* keys that gateways answer for; ever; asked back */
    uint64_t cached, cache_hits, cache_misses; /* of a gateway */
    uint64_t carried;                          /* connections, as a relay: now */
    uint64_t bytes_in, bytes_out, messages_in, messages_out; /* of all connections */
};
void mu_store_server_stats(const struct mu_store_server *server,
                           struct mu_store_server_stats *ret_stats);
/* A method of the native wire: the server's wall clock, u64 nanoseconds since 1970. For `muster
 * doctor`; nothing is decided by it. */
#define MU_STORE_METHOD_CLOCK "muster::Server.clock"

/** Whether the server takes requests: it listens, and is not about to end. */
bool mu_store_server_ready(const struct mu_store_server *server);
/**
 * Appends the status as one line of JSON: counters, runs with their members (of each run up to
 * MU_STORE_STATUS_MEMBERS), recent events. docs/operate.md lists its fields. MUSTER_ELIMIT,
 * MUSTER_ENOMEM: a part may have been appended.
 */
#define MU_STORE_STATUS_MEMBERS  1024
#define MU_STORE_STATUS_RUNS     1024
#define MU_STORE_STATUS_DETAILED 64 /* of runs with nodes, and of those without: the newest */
int mu_store_server_status(const struct mu_store_server *server, struct mu_buf *out);
/** Appends the same as text for Prometheus. */
int mu_store_server_metrics(const struct mu_store_server *server, struct mu_buf *out);
/** The source of the status page. */
struct mu_status_source mu_store_server_source(struct mu_store_server *server);

#endif

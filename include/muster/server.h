/*
 * The store server, embedded: what `muster serve` runs.
 */
#ifndef MUSTER_SERVER_H
#define MUSTER_SERVER_H

#include <muster/error.h>
#include <muster/runtime.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct muster_server muster_server;

enum muster_sync {
    MUSTER_SYNC_ALWAYS = 1, /* an answered write is on disk */
    /* A crash loses at most the last interval and the write in progress, or the last two writes
     * where they take longer than the interval. */
    MUSTER_SYNC_INTERVAL,
};

struct muster_server_config {
    size_t size;               /* set by the defaults */
    const char *listen;        /* "HOST:PORT", "[V6]:PORT" or "unix:PATH"; port 0: any free one */
    const char *data_dir;      /* NULL: in memory only */
    enum muster_sync sync;     /* MUSTER_SYNC_ALWAYS */
    uint32_t sync_interval_ms; /* 100 */
    uint64_t key_bytes_max;    /* 8 KiB */
    uint64_t value_bytes_max;  /* 8 MiB */
    uint64_t keys_max;         /* keys in one request: 131,072 */
    /* All keys and values together: 4 GiB, but no more than half of the memory that the process may
     * have: the limit of its control group (of either version, or of a group above it), or, without
     * a limit, the machine's memory. */
    uint64_t memory_bytes_max;
    /* All half-read requests and unsent answers together: 2 GiB, but no more than an eighth of that
     * memory. */
    uint64_t buffer_bytes_max;
    uint64_t connections_max;  /* 100,000 */
    uint64_t sessions_max;     /* 100,000 */
    uint32_t session_grace_ms; /* the longest time a session outlives its connection: 10,000 */
    uint32_t drain_ms;         /* how long a drain waits for slow readers: 5,000 */
    /* NULL, or etcd://HOST[,HOST...]/PREFIX: the keys are in etcd, and all servers with the same
     * backing serve the same store. Or tcp://HOST:PORT: another server has the keys, and this one
     * is a gateway to it, over one connection. Not with a data_dir. */
    const char *backing;
    /* Where the status page, /metrics, /healthz and /readyz are served: "HOST:PORT"; NULL: nowhere.
     * Beyond loopback this needs a token, or a lock that is `insecure`. */
    const char *http;
    /* The token that requests to `http` must carry, as a bearer token or as a password. NULL: one
     * that is derived from the token of the runtime's lock (`muster keygen page`), or no token if
     * the lock has none. */
    const char *http_token;
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_server_config_init(struct muster_server_config *ret, size_t size);
/** The struct with the defaults. */
static inline struct muster_server_config muster_server_config_defaults(void)
{
    struct muster_server_config it;

    muster_server_config_init(&it, sizeof(it));
    return it;
}

/**
 * Starts a server. Errors: MUSTER_EINVAL, MUSTER_EURL (an address or the backing is malformed),
 * MUSTER_EADDR (it cannot listen there; the text says why), MUSTER_ELOCKED (other hosts can reach
 * the address, and the runtime's lock has no credential), MUSTER_EBUSY (the data directory is in
 * use), MUSTER_ECORRUPT, MUSTER_EDISK, MUSTER_EFULL, MUSTER_ENOTSUP (the backing is in etcd, and
 * this system has no libcurl that can be used; the text says what to install), MUSTER_ENOMEM.
 */
MUSTER_EXPORT int muster_server_start(muster_runtime *runtime,
                                      const struct muster_server_config *config,
                                      muster_server **ret_server);
/** "HOST:PORT" where it listens, with the port that was found; valid until the server is freed. */
MUSTER_EXPORT const char *muster_server_address(const muster_server *server);
MUSTER_EXPORT uint16_t muster_server_port(const muster_server *server);
/** The address of its status page; "" if it has no page. */
MUSTER_EXPORT const char *muster_server_http_address(const muster_server *server);
/** Stops reading requests, answers those that were read, finishes its writes and closes. Does not
 * wait for that, and may be called more than once, on any thread. */
MUSTER_EXPORT void muster_server_drain(muster_server *server);
/** Waits until the server has stopped: 0 after a drain, otherwise why it could not go on
 * (MUSTER_EDISK). */
MUSTER_EXPORT int muster_server_wait(muster_server *server);
/** Drains the server unless that was done, waits, and frees it. NULL is fine. */
MUSTER_EXPORT void muster_server_free(muster_server *server);

#ifdef __cplusplus
}
#endif

#endif

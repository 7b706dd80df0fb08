/*
 * The runtime: one thread with an event loop that does all the work of the stores and servers
 * opened in it. Most programs have one.
 *
 * Every function of the library may be called from any thread, except where it says otherwise.
 * Callbacks run on the runtime's thread, one at a time; they must not block, and must not call
 * functions that wait. Such a function returns MUSTER_EINVAL there; one that returns nothing, such
 * as a close, does nothing and logs RUNTIME-CALL-REFUSED.
 *
 * A runtime has a lock, which everything opened in it obeys: servers, stores, rendezvous, RPC and
 * state. Loopback is open. Beyond it, every connection must show the job's credential, and the
 * runtime refuses to listen there without one (MUSTER_ELOCKED), unless the lock says otherwise. The
 * credential is a token in a file, the same on every node, or certificates of the job's own
 * authority. It never goes over the wire: both ends speak TLS 1.3 with it.
 */
#ifndef MUSTER_RUNTIME_H
#define MUSTER_RUNTIME_H

#include <stdbool.h>
#include <stddef.h>

#include <muster/types.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct muster_runtime muster_runtime;

/* A token or certificates, not both, or no credential at all. Text is copied. */
struct muster_lock {
    size_t size;            /* set by the defaults */
    const char *token_file; /* its first line is the job's token, of 16 bytes or more; readable by
                               its owner alone, or root's and its group's (0440, as Kubernetes has
                               it). `muster keygen token` makes one */
    /* Paths of PEM files. `muster keygen tls` makes them. */
    const char *cert; /* ours, followed by those that lead from it to the authority */
    const char *key;  /* its private key */
    const char *ca;   /* the authority: others' certificates must come from it */
    const char *name; /* the name that the certificate of a server must carry when we dial it. NULL:
                         the host in its address; "": any name will do */
    bool insecure;    /* beyond loopback everything is let in without a credential */
    /* Ranges ("10.0.0.0/8") from which connections in PyTorch's protocol are accepted and to which
     * they are made, since that protocol has no place for a credential. */
    const char *const *allow;
    size_t allow_count;
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_lock_init(struct muster_lock *ret, size_t size);
/** The struct with the defaults. */
static inline struct muster_lock muster_lock_defaults(void)
{
    struct muster_lock it;

    muster_lock_init(&it, sizeof(it));
    return it;
}

struct muster_runtime_config {
    size_t size; /* set by the defaults */
    /* NULL: the lock comes from the environment: MUSTER_TOKEN_FILE, or MUSTER_TLS_CERT,
     * MUSTER_TLS_KEY and MUSTER_TLS_CA; MUSTER_ALLOW (ranges with commas between them);
     * MUSTER_INSECURE=1. */
    const struct muster_lock *lock;
};

/** Fills in the defaults, in a struct that has `size` bytes. */
MUSTER_EXPORT void muster_runtime_config_init(struct muster_runtime_config *ret, size_t size);
/** The struct with the defaults. */
static inline struct muster_runtime_config muster_runtime_config_defaults(void)
{
    struct muster_runtime_config it;

    muster_runtime_config_init(&it, sizeof(it));
    return it;
}

/** Starts a runtime with the defaults. Errors as muster_runtime_new_with(). */
MUSTER_EXPORT int muster_runtime_new(muster_runtime **ret_runtime);
/** MUSTER_EINVAL, MUSTER_ETLS or a negated errno: a file of the lock is wrong; MUSTER_ENOMEM. */
MUSTER_EXPORT int muster_runtime_new_with(const struct muster_runtime_config *config,
                                          muster_runtime **ret_runtime);

/** Ends the runtime. Everything opened in it must have been closed. NULL is fine. A process may end
 * without this: exit() lets the runtime's thread come to rest before libraries are taken down. */
MUSTER_EXPORT void muster_runtime_free(muster_runtime *runtime);

#ifdef __cplusplus
}
#endif

#endif

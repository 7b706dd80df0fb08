/*
 * What the files of `muster peer` share.
 *
 *     cmd_peer.c         the verb; id
 *     cmd_peer_key.c     key files
 *     cmd_peer_host.c    a host on a loop: serve, ping
 */
#ifndef MU_CMD_PEER_H
#define MU_CMD_PEER_H

#include "cli/cli.h"
#include "crypto/identity.h"

struct peer_options {
    const char *identity; /* a key file; NULL: a key for this once */
    const char *type;
    const char *listen;
    const char *announce;
    const char *allow;
    const char *address; /* a multiaddr */
    uint64_t bits;
    uint64_t count;
    uint64_t timeout_ms;
    uint64_t idle;
    uint64_t conns_max;
    bool fresh; /* id: make the file */
    bool json;
};

/** The identity of a key file, or a new one if there is no file. Returns an exit code, said. */
int peer_key_get(const struct peer_options *o, struct mu_identity *ret);
/** Makes a key and its file, which must not be there. */
int peer_key_make(const struct peer_options *o, struct mu_identity *ret);

int peer_serve(const struct peer_options *o);
int peer_ping(const struct peer_options *o);

#endif

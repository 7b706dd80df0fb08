/*
 * What the files of `muster peer` share.
 *
 *     cmd_peer.c         the verb; id
 *     cmd_peer_key.c     key files
 *     cmd_peer_host.c    a host on a loop; serve
 *     cmd_peer_ping.c    ping
 *     cmd_peer_call.c    call
 */
#ifndef MU_CMD_PEER_H
#define MU_CMD_PEER_H

#include "cli/cli.h"
#include "cli/cli_loop.h"
#include "crypto/identity.h"
#include "service/peer/kad.h"
#include "service/peer/bootstrap.h"
#include "service/peer/call.h"
#include "service/peer/host.h"
#include "service/peer/relay.h"

struct peer_options {
    const char *identity; /* a key file; NULL: a key for this once */
    const char *type;
    const char *listen;
    const char *announce;
    const char *allow;
    const char *address; /* a multiaddr; call: or a peer id */
    const char *bootstrap;
    const char *via; /* serve: relays to be reached through */
    const char *method;
    const char *const *data; /* call: what is sent */
    size_t data_count;
    uint64_t bits;
    uint64_t count;
    uint64_t timeout_ms;
    uint64_t idle;
    uint64_t conns_max;
    uint64_t relay_bytes; /* serve --relay: of each circuit */
    uint64_t relay_seconds;
    bool relay;     /* serve: be one */
    bool autorelay; /* serve: be reached through those that are met */
    bool fresh;     /* id: make the file */
    bool stream;
    bool json;
};

/** The identity of a key file, or a new one if there is no file. Returns an exit code, said. */
int peer_key_get(const struct peer_options *o, struct mu_identity *ret);
/** Makes a key and its file, which must not be there. */
int peer_key_make(const struct peer_options *o, struct mu_identity *ret);

#define PEER_BOOTSTRAP_MAX 16

struct peer_app;

/* One through whom others are found. */
struct peer_bootstrap {
    struct mu_peer_bootstrap base;
    struct peer_app *app;
    bool tried; /* it was met, or not, once at least */
};

/* A host on a loop, embedded in what a verb needs beside it. */
struct peer_app {
    const struct peer_options *o;
    void (*ending)(struct peer_app *app); /* lets go of what it has on the host; may be NULL */
    int interrupted;                      /* the exit code after a signal */
    struct cli_loop loop;
    struct mu_identity identity;
    struct mu_peer_host *host;
    struct mu_peer_relay *relay;
    struct mu_peer_relay_config relay_config; /* made before peer_app_run(), if not the defaults */
    struct mu_kad *kad;                       /* of peer_app_calls() */
    struct mu_peer_calls *calls;              /* likewise */
    struct peer_bootstrap bootstrap[PEER_BOOTSTRAP_MAX];
    size_t bootstrap_count;
    /** One of them was reached, could not be, or was lost. May be NULL. */
    void (*bootstrapped)(struct peer_app *app, struct peer_bootstrap *b, int status,
                         const char *text);
    int (*begin)(struct peer_app *app); /* private */
};

/** Runs a loop around `begin`, which returns an exit code, until the host has stopped. Returns an
 * exit code. */
int peer_app_run(struct peer_app *app, int (*begin)(struct peer_app *app));
/** Ends it on a later turn: it may be called from any callback. The first code counts. */
void peer_app_stop(struct peer_app *app, int code);
/** Peer routing, which a client does not serve, and calls. Returns an exit code, said. */
int peer_app_calls(struct peer_app *app, bool client);
/** Calls `use` for each of the words between commas, until one fails. An exit code, said. */
int peer_each_word(struct peer_app *app, const char *list,
                   int (*use)(struct peer_app *app, const char *word, struct mu_errmsg *msg));

/** For peer_each_word(): connects to one through whom others are found, and stays so; until that
 * is so, it is tried again and again. */
int peer_use_bootstrap(struct peer_app *app, const char *word, struct mu_errmsg *msg);

int peer_serve(const struct peer_options *o);
int peer_ping(const struct peer_options *o);
int peer_call(const struct peer_options *o);

#endif

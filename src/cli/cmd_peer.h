/*
 * What the files of `muster peer` share.
 *
 *     cmd_peer.c         the command; id
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
#include "service/peer/autonat.h"
#include "service/peer/bootstrap.h"
#include "service/peer/call.h"
#include "service/peer/host.h"
#include "service/peer/relay.h"

struct peer_options {
    const char *identity; /* a key file; NULL: a temporary key */
    const char *type;
    const char *listen;
    const char *announce;
    const char *allow;
    const char *address; /* a multiaddr; call: or a peer id */
    const char *bootstrap;
    const char *via; /* serve: relays to be reached through */
    const char *method;
    const char *const *data; /* call: the messages to send */
    size_t data_count;
    uint64_t bits;
    uint64_t count;
    double timeout;
    double idle;
    uint64_t conns_max;
    uint64_t relay_bytes; /* serve --relay: limit of each circuit */
    double relay_time;
    bool relay;     /* serve: be a relay */
    bool autorelay; /* serve: be reached through relays among the connected peers */
    bool fresh;     /* id: make the key file */
    bool stream;
    bool json;
};

/** Reads the identity of a key file, or makes a temporary one if no file was named. Returns an exit
 * code, and prints the error. */
int peer_key_get(const struct peer_options *o, struct mu_identity *ret);
/** Makes a key and its file, which must not exist. */
int peer_key_make(const struct peer_options *o, struct mu_identity *ret);

#define PEER_BOOTSTRAP_MAX 16

struct peer_app;

/* A bootstrap peer: other peers are found through it. */
struct peer_bootstrap {
    struct mu_peer_bootstrap base;
    struct peer_app *app;
    bool tried; /* it was tried at least once */
};

/* A libp2p host on a loop; a command embeds it in its own struct. */
struct peer_app {
    const struct peer_options *o;
    void (*ending)(struct peer_app *app); /* releases what the command holds on the host; may be
                                             NULL */
    int interrupted;                      /* the exit code after a signal */
    struct cli_loop loop;
    struct mu_identity identity;
    struct mu_peer_host *host;
    struct mu_peer_relay *relay;
    struct mu_peer_autonat *autonat;
    bool unreached;                           /* a peer tried to dial us, and could not */
    struct mu_peer_relay_config relay_config; /* filled in before peer_app_run() if not the defaults
                                                 are wanted */
    struct mu_kad *kad;                       /* set by peer_app_calls() */
    struct mu_peer_calls *calls;              /* likewise */
    struct peer_bootstrap bootstrap[PEER_BOOTSTRAP_MAX];
    size_t bootstrap_count;
    /** Called when a bootstrap peer was reached, could not be reached, or was lost. May be NULL. */
    void (*bootstrapped)(struct peer_app *app, struct peer_bootstrap *b, int status,
                         const char *text);
    int (*begin)(struct peer_app *app); /* private */
};

/** Runs a loop around `begin`, which returns an exit code, until the host has stopped. Returns an
 * exit code. */
int peer_app_run(struct peer_app *app, int (*begin)(struct peer_app *app));
/** Ends the loop on a later turn, so any callback may call this. The first code counts. */
void peer_app_stop(struct peer_app *app, int code);
/** Opens peer routing, which a client does not serve to others, and calls. Returns an exit code,
 * and prints the error. */
int peer_app_calls(struct peer_app *app, bool client);
/** For cli_use_words(): connects to a bootstrap peer and keeps the connection. It tries again until
 * it is connected. */
int peer_use_bootstrap(void *context, const char *word, struct mu_errmsg *msg);

/** Says what came of a peer's dial to us (service/peer/autonat.h), the first time and when it has
 * changed: `unreached` is whether an earlier one failed. `remedy` ends the sentence. Returns
 * whether one failed. */
bool peer_say_dialled_back(const struct mu_peer_id *by, bool reached, const char *text,
                           bool unreached, const char *remedy);
/** Tells a host the addresses of this machine, for when it listens everywhere. */
void peer_use_numbers(struct mu_peer_host *host);

int peer_serve(const struct peer_options *o);
int peer_ping(const struct peer_options *o);
int peer_call(const struct peer_options *o);

#endif

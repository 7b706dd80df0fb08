/*
 * What the files of `muster dht` share.
 *
 *     cmd_dht.c          the command: serve, get, store
 *     cmd_dht_node.c     a node on a loop: host, calls, routing, DHT
 *     cmd_dht_value.c    MessagePack and JSON
 */
#ifndef MU_CMD_DHT_H
#define MU_CMD_DHT_H

#include <jansson.h>

#include "cli/cli.h"
#include "cli/cli_loop.h"
#include "crypto/identity.h"
#include "service/dht/dht.h"
#include "service/peer/autonat.h"
#include "service/peer/call.h"
#include "service/peer/host.h"
#include "service/peer/kad.h"
#include "service/peer/relay.h"

#define DHT_PEERS_MAX 64

struct dht_options {
    const char *identity;
    const char *owner; /* an RSA key file that signs the records that are stored */
    const char *listen;
    const char *announce;
    const char *peers;
    const char *subkey;
    double expiration; /* seconds from now */
    double timeout;
    uint64_t replicas;
    bool no_relay;
    bool latest;
    bool text;
    bool json;
    char **words; /* keys, or keys and values */
    size_t word_count;
};

struct dht_app {
    const struct dht_options *o;
    struct cli_loop loop;
    struct mu_identity identity;
    struct mu_identity owner;
    bool has_owner;
    struct mu_dht_owner_validator validator;
    struct mu_peer_host *host;
    struct mu_peer_relay *relay;
    struct mu_peer_autonat *autonat;
    bool unreached; /* a peer tried to dial us, and could not */
    struct mu_peer_calls *calls;
    struct mu_kad *kad;
    struct mu_dht_service *dht;
    struct mu_peer_id peers[DHT_PEERS_MAX];
    size_t peer_count;
    struct mu_dht_wish join;
    struct mu_dht_wish wish;
    /** Called once the node has joined; NULL: serve. Returns an exit code. */
    int (*begin)(struct dht_app *app);
    /** Called when it is about to stop; may be NULL. */
    void (*stopped)(struct dht_app *app);
    bool stopping;
    int code;
};

/** Runs a node until it is stopped; a client answers no requests. Returns an exit code. */
int dht_run(struct dht_app *app, bool client);
void dht_stop(struct dht_app *app, int code);

/**
 * Appends a word as MessagePack: the word is JSON, or "hex:..." for bytes, or else a text. With
 * `text` it is always a text. Returns an exit code, and prints the error.
 */
int dht_encode_word(struct mu_buf *out, const char *word, bool text);
/** Returns a value as JSON; a value that JSON cannot express becomes {"hex": ...}. NULL: out of
 * memory. */
json_t *dht_decode_value(struct mu_span value);

#endif

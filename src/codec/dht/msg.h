/*
 * The messages of hivemind's DHT: ping, store and find, each a request and an answer (protocol
 * buffers, proto3: zero values are left out, repeated numbers are packed).
 *
 *     mu_dht_store_decode(bytes, &store);            all of it is read once,
 *     while (mu_dht_store_next(&store, &item)) ...   so that walking it cannot fail
 *
 * Decoders take no memory and point into their input. A node that only asks (client mode) sends no
 * node id: `has_node` is false. A message with an id that does not have 20 bytes is refused.
 *
 * The authorization wrapper (field 1 of every message) is given as it came, empty if it is missing;
 * mu_dht_auth_decode() and mu_dht_reply_auth_decode() read it.
 */
#ifndef MU_DHT_MSG_H
#define MU_DHT_MSG_H

#include <stdbool.h>

#include "codec/dht/id.h"
#include "codec/peer/id.h"
#include "core/buf.h"
#include "core/span.h"

#define MU_DHT_PING_METHOD  "DHTProtocol.rpc_ping"
#define MU_DHT_STORE_METHOD "DHTProtocol.rpc_store"
#define MU_DHT_FIND_METHOD  "DHTProtocol.rpc_find"

/* What all messages have in common: the sender, and its authorization. */
struct mu_dht_head {
    struct mu_span auth;
    bool has_node;
    struct mu_dht_id node;
};

/* --- ping ------------------------------------------------------------------------------------- */

struct mu_dht_ping {
    struct mu_dht_head head;
    bool validate; /* ping back, and say whether that worked */
};

struct mu_dht_ping_reply {
    struct mu_dht_head head;
    double dht_time;
    bool available;
};

/** MUSTER_EPROTO, as for all decoders here. */
int mu_dht_ping_decode(struct mu_span bytes, struct mu_dht_ping *ret);
int mu_dht_ping_reply_decode(struct mu_span bytes, struct mu_dht_ping_reply *ret);
/** MUSTER_ELIMIT, MUSTER_ENOMEM, as for all encoders here. */
int mu_dht_ping_encode(struct mu_buf *out, const struct mu_dht_ping *ping);
int mu_dht_ping_reply_encode(struct mu_buf *out, const struct mu_dht_ping_reply *reply);

/* --- store ------------------------------------------------------------------------------------ */

struct mu_dht_item {
    struct mu_dht_id key;
    struct mu_span tag; /* MU_DHT_TAG_REGULAR, empty for a whole dictionary, or a subkey, encoded */
    struct mu_span value;
    double expiration;
    bool in_cache;
};

#define MU_DHT_TAG_REGULAR ((struct mu_span){(const uint8_t *)"\xc0", 1})

static inline bool mu_dht_tag_is_regular(struct mu_span tag)
{
    return tag.len == 1 && tag.data[0] == 0xc0;
}

/* One list of a message while it is walked. */
struct mu_dht_walk {
    struct mu_span rest;
    struct mu_span packed;
    uint32_t number;
};

struct mu_dht_store {
    struct mu_dht_head head;
    size_t count;
    struct mu_dht_walk keys, tags, values, expirations, in_cache;
};

struct mu_dht_store_reply {
    struct mu_dht_head head;
    size_t count;
    struct mu_dht_walk ok;
};

/** Lists of different lengths are refused. */
int mu_dht_store_decode(struct mu_span bytes, struct mu_dht_store *ret);
bool mu_dht_store_next(struct mu_dht_store *store, struct mu_dht_item *ret);
int mu_dht_store_reply_decode(struct mu_span bytes, struct mu_dht_store_reply *ret);
bool mu_dht_store_reply_next(struct mu_dht_store_reply *reply, bool *ret_ok);
int mu_dht_store_encode(struct mu_buf *out, const struct mu_dht_head *head,
                        const struct mu_dht_item *items, size_t count);
int mu_dht_store_reply_encode(struct mu_buf *out, const struct mu_dht_head *head, const bool *ok,
                              size_t count);

/* --- find ------------------------------------------------------------------------------------- */

enum mu_dht_found_type {
    MU_DHT_NOT_FOUND = 0,
    MU_DHT_FOUND_REGULAR = 1,
    MU_DHT_FOUND_DICTIONARY = 2,
};

struct mu_dht_find {
    struct mu_dht_head head;
    size_t count;
    struct mu_dht_walk keys;
};

struct mu_dht_neighbour {
    struct mu_dht_id node;
    struct mu_peer_id peer;
};

/* A result that was read. */
struct mu_dht_found {
    enum mu_dht_found_type type;
    struct mu_span value;
    double expiration;
    size_t near_count;
    struct mu_dht_walk near_nodes, near_peers;
};

/* A result to write; everything is borrowed. */
struct mu_dht_finding {
    enum mu_dht_found_type type;
    struct mu_span value;
    double expiration;
    const struct mu_dht_neighbour *near;
    size_t near_count;
};

struct mu_dht_find_reply {
    struct mu_dht_head head;
    size_t count;
    struct mu_dht_walk results;
};

int mu_dht_find_decode(struct mu_span bytes, struct mu_dht_find *ret);
bool mu_dht_find_next(struct mu_dht_find *find, struct mu_dht_id *ret_key);
int mu_dht_find_encode(struct mu_buf *out, const struct mu_dht_head *head,
                       const struct mu_dht_id *keys, size_t count);

int mu_dht_find_reply_decode(struct mu_span bytes, struct mu_dht_find_reply *ret);
bool mu_dht_find_reply_next(struct mu_dht_find_reply *reply, struct mu_dht_found *ret);
/** Neighbours with an invalid peer id are left out. */
bool mu_dht_found_next(struct mu_dht_found *found, struct mu_dht_neighbour *ret);
/** A reply is written piece by piece: each result, then the head. */
int mu_dht_finding_encode(struct mu_buf *out, const struct mu_dht_finding *finding);
int mu_dht_find_reply_end(struct mu_buf *out, const struct mu_dht_head *head);

/* --- authorization ---------------------------------------------------------------------------- */

struct mu_dht_token {
    struct mu_span username;
    struct mu_span public_key; /* as OpenSSH writes it */
    struct mu_span expiration_time;
    struct mu_span signature; /* by the authority that issued the token */
};

struct mu_dht_auth {
    struct mu_span token; /* encoded */
    struct mu_span service_key;
    double time;
    struct mu_span nonce;
    struct mu_span signature;
};

struct mu_dht_reply_auth {
    struct mu_span token;
    struct mu_span nonce;
    struct mu_span signature;
};

int mu_dht_token_decode(struct mu_span bytes, struct mu_dht_token *ret);
int mu_dht_token_encode(struct mu_buf *out, const struct mu_dht_token *token);
int mu_dht_auth_decode(struct mu_span bytes, struct mu_dht_auth *ret);
int mu_dht_auth_encode(struct mu_buf *out, const struct mu_dht_auth *auth);
int mu_dht_reply_auth_decode(struct mu_span bytes, struct mu_dht_reply_auth *ret);
int mu_dht_reply_auth_encode(struct mu_buf *out, const struct mu_dht_reply_auth *auth);
/** Finds the wrapper of any message; empty if there is no wrapper. MUSTER_EPROTO. */
int mu_dht_auth_find(struct mu_span message, struct mu_span *ret_auth);
/**
 * Appends a message with another wrapper in place of its own. This is how a message is signed, and
 * how the signed bytes are reconstructed. MUSTER_EPROTO if it is not a message.
 */
int mu_dht_auth_replace(struct mu_buf *out, struct mu_span message, struct mu_span auth);

#endif

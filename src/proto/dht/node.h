/*
 * A node of hivemind's DHT, whole and pure: what it answers to others, and what it asks of them for
 * its own gets and stores. It is a decision machine that service/dht/dht.h drives.
 *
 *     mu_dht_request(d, now, token, &from, method, message)     a call of another node
 *     mu_dht_answer(d, now, number, status, message)            the result of our call
 *     mu_dht_tick(d, now)                                       mu_dht_deadline() has passed
 *     mu_dht_bootstrap() mu_dht_get() mu_dht_store()            our operations
 *     while (mu_dht_next_event(d, &event)) ...                  after any of these
 *
 * Events: the driver makes a CALL and ends it with exactly one mu_dht_answer(), a failure with a
 * negative status; it keeps `timeout_ms`. REPLY answers the request with that token. ENDED says
 * that an operation is done; it holds the results until mu_dht_op_free(). The message of an event
 * is lent until the next call.
 *
 * Keys are ids (mu_dht_key()); values and subkeys are MessagePack. A record is signed when it is
 * sent, if a validator wants that, and comes back without the signature.
 *
 * Deliberate differences from hivemind: a store has succeeded if any node has accepted it, not only
 * if the last one to answer did; a refused record has no effect on what is kept; dead nodes leave
 * the beam; a node that has lost all others, or all nodes through which it joined, joins again
 * without being told and stores its own records again; everything has a limit.
 */
#ifndef MU_DHT_NODE_H
#define MU_DHT_NODE_H

#include "codec/dht/msg.h"
#include "core/err.h"
#include "core/prng.h"
#include "core/time.h"
#include "proto/dht/search.h"
#include "proto/dht/storage.h"
#include "proto/dht/table.h"
#include "proto/dht/validate.h"

enum mu_dht_method {
    MU_DHT_PING = 1,
    MU_DHT_STORE,
    MU_DHT_FIND,
};

const char *mu_dht_method_name(enum mu_dht_method method);

struct mu_dht_auth_terms; /* see auth.h */

struct mu_dht_config {
    struct mu_dht_neighbour self; /* the node id is random and new at every start */
    bool client;                  /* serves no other node, and is known to none */
    uint32_t bucket_size;         /* 20 */
    uint32_t depth_modulo;        /* 5 */
    uint32_t replicas;            /* how many nodes keep a record. 5 */
    uint32_t workers;             /* calls of one search in progress at a time. 4 */
    uint32_t search_calls_max;    /* calls of one query. 128 */
    uint32_t wait_ms;             /* time for an answer. 3 s */
    uint32_t op_ms;               /* time for a whole operation. 60 s */
    bool no_cache;                /* does not cache what it finds */
    bool no_cache_nearest;        /* does not have the nearest node cache it */
    bool no_refresh;              /* does not ask again for what it has read from its cache */
    uint32_t refresh_before_ms;   /* how long before a record expires. 5 s */
    uint32_t blacklist_ms;        /* after a failed find, or until it answers something else;
                                     doubles with each further one. 5 s */
    uint32_t upkeep_ms;           /* between two checks that the other nodes are still there. 60
                                     s */
    uint32_t rejoin_ms;           /* between two tries to find other nodes again. 5 s */
    uint32_t clock_ms;            /* how much clocks may differ. 3 s */
    uint32_t calls_max;           /* our calls at a time. 1,024 */
    uint32_t requests_max;        /* requests of others that wait for a ping back. 64 */
    uint32_t owned_max;           /* signatures that are checked for one request. 1,024 */
    size_t message_len_max;       /* 4 MiB */
    struct mu_dht_storage_config storage;
    struct mu_dht_storage_config cache;
    struct mu_dht_chain chain;
    struct mu_dht_auth_terms *auth; /* NULL: every node may ask, and nothing is signed. Borrowed */
    uint64_t seed;
};

enum mu_dht_event_type {
    MU_DHT_EVENT_CALL = 1,
    MU_DHT_EVENT_REPLY,
    MU_DHT_EVENT_ENDED,
};

struct mu_dht_event {
    enum mu_dht_event_type type;
    uint64_t number; /* CALL: of the call; REPLY: the request's token */
    enum mu_dht_method method;
    struct mu_peer_id peer;
    uint32_t timeout_ms;
    int status; /* REPLY */
    struct mu_span message;
    struct mu_dht_op *op;
};

/* --- operations ------------------------------------------------------------------------------- */

enum mu_dht_op_type {
    MU_DHT_OP_BOOTSTRAP = 1,
    MU_DHT_OP_GET,
    MU_DHT_OP_STORE,
};

/* The result of one key of a get, or of one item of a store. */
struct mu_dht_result {
    struct mu_dht_id key;
    enum mu_dht_found_type type; /* GET */
    double expiration;
    struct mu_buf value; /* GET: the value, or a dictionary (codec/dht/dict.h) */
    uint32_t stored;     /* STORE: nodes that accepted it */
    uint32_t refused;    /* STORE: nodes that refused it */
    uint32_t hops;       /* nodes that were asked one after the other */
    uint32_t calls;      /* nodes that were asked in all */
};

struct mu_dht_op {
    void *context; /* the owner's */
    enum mu_dht_op_type type;
    /* The status of an ended operation: 0, MUSTER_ETIMEDOUT, MUSTER_ECANCELED, MUSTER_ENOMEM,
     * MUSTER_ELIMIT. BOOTSTRAP: MUSTER_EDHT_NOBODY, MUSTER_EDHT_CLOCK too. After an error,
     * `results` still has what was found or stored. */
    int status;
    size_t count;
    struct mu_dht_result *results;
    uint32_t answered;  /* BOOTSTRAP: how many of the peers answered */
    uint32_t reachable; /* BOOTSTRAP: how many of them could reach us */
};

struct mu_dht_put {
    struct mu_dht_id key;
    struct mu_span subkey; /* encoded; empty: a regular value */
    struct mu_span value;  /* encoded */
    double expiration;
};

struct mu_dht_stats {
    uint64_t requests, replies_bad; /* requests of others; answers that made no sense */
    uint64_t calls, calls_failed;   /* of ours */
    uint64_t refused_expired, refused_future, refused_old, refused_owner; /* records */
    uint64_t refused_subkeys, refused_value, refused_quota, refused_full;
    uint64_t denied;  /* not authorized */
    uint64_t rejoins; /* how often we joined again and stored our records again */
    size_t nodes, records, cached, bytes;
};

struct mu_dht;

/** Computes the id of a key: a byte string is hashed as it is, any other value in its encoding. */
struct mu_dht_id mu_dht_key(struct mu_span encoded_or_raw);
/** Computes the id of a text. MUSTER_ELIMIT: more than 64 KiB; MUSTER_ENOMEM. */
int mu_dht_key_text(struct mu_span text, struct mu_dht_id *ret);

struct mu_dht_config mu_dht_config_defaults(void);
/** MUSTER_ENOMEM. */
int mu_dht_new(const struct mu_dht_config *config, struct mu_dht **ret);
/** Ends all operations with MUSTER_ECLOSED. No other events follow. */
void mu_dht_close(struct mu_dht *d);
/** Frees the node with all operations, which do not end any more. */
void mu_dht_free(struct mu_dht *d);

/* --- in --------------------------------------------------------------------------------------- */

/** Takes a request. A REPLY follows, now or later, unless it returns MUSTER_ENOMEM or
 * MUSTER_ELIMIT. */
int mu_dht_request(struct mu_dht *d, struct mu_now now, uint64_t token,
                   const struct mu_peer_id *from, enum mu_dht_method method,
                   struct mu_span message);
/** The caller no longer waits: no REPLY with that token follows. */
void mu_dht_request_gone(struct mu_dht *d, uint64_t token);
void mu_dht_answer(struct mu_dht *d, struct mu_now now, uint64_t number, int status,
                   struct mu_span message);
void mu_dht_tick(struct mu_dht *d, struct mu_now now);

/**
 * Joins the nodes that can be reached through these peers. The peers are remembered: whenever no
 * node is left they are asked again, and with each upkeep those that are not known any more.
 * Without peers, the node is the first of a new DHT. MUSTER_ENOMEM.
 */
int mu_dht_bootstrap(struct mu_dht *d, struct mu_now now, const struct mu_peer_id *peers,
                     size_t count, struct mu_dht_op **ret);
/** `latest`: looks at all nodes that may have it for the newest record instead of taking the first.
 * MUSTER_EINVAL, MUSTER_ENOMEM. */
int mu_dht_get(struct mu_dht *d, struct mu_now now, const struct mu_dht_id *keys, size_t count,
               bool latest, struct mu_dht_op **ret);
/** Copies its arguments. MUSTER_EDHT_EXPIRED; MUSTER_EDHT_VALUE: not MessagePack; MUSTER_EINVAL,
 * MUSTER_ENOMEM. */
int mu_dht_store(struct mu_dht *d, struct mu_now now, const struct mu_dht_put *puts, size_t count,
                 struct mu_dht_op **ret);
/** The operation ends with MUSTER_ECANCELED. */
void mu_dht_op_cancel(struct mu_dht *d, struct mu_dht_op *op);
/** Frees an operation after ENDED. */
void mu_dht_op_free(struct mu_dht_op *op);

/* --- out -------------------------------------------------------------------------------------- */

bool mu_dht_next_event(struct mu_dht *d, struct mu_dht_event *ret);
mu_mono_t mu_dht_deadline(const struct mu_dht *d);
void mu_dht_stats(const struct mu_dht *d, struct mu_dht_stats *ret);
/** For the simulator and tests: the records that are kept here. */
struct mu_dht_storage *mu_dht_main_storage(struct mu_dht *d);
const struct mu_dht_table *mu_dht_routing(const struct mu_dht *d);

#endif

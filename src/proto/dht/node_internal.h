/*
 * What the files of a DHT node share.
 *
 *     node.c          life, calls, events, the routing table, time
 *     node_serve.c    requests of others
 *     node_op.c       what all operations share
 *     node_get.c      gets, and the cache
 *     node_store.c    stores, and storing again
 *     node_join.c     joining, and joining again
 */
#ifndef MU_DHT_NODE_INTERNAL_H
#define MU_DHT_NODE_INTERNAL_H

#include "core/alloc.h"
#include "core/heap.h"
#include "proto/dht/auth.h"
#include "proto/dht/node.h"

#define DHT_SOURCES_MAX 4

enum dht_call_kind {
    DHT_CALL_JOIN = 1, /* a ping to a node that may let us join */
    DHT_CALL_BACK,     /* a ping to check whether a caller can be reached */
    DHT_CALL_EVICT,    /* a ping to a node whose place another node wants */
    DHT_CALL_FIND,
    DHT_CALL_STORE,
    DHT_CALL_SPREAD, /* a store whose outcome does not matter */
};

struct dht_op;

struct dht_call {
    struct mu_list link; /* to_send, under_way */
    uint64_t number;
    enum dht_call_kind kind;
    enum mu_dht_method method;
    struct mu_dht_neighbour who;
    bool has_node; /* its node id is known */
    struct mu_buf message;
    uint8_t nonce[MU_DHT_NONCE_LEN];
    double sent;
    struct dht_op *op; /* NULL: no operation waits for it any more */
    uint32_t key;
    uint64_t token;                       /* BACK */
    uint8_t back_nonce[MU_DHT_NONCE_LEN]; /* BACK: of the request */
    struct mu_dht_search_call search;     /* FIND */
};

struct dht_reply {
    struct mu_list link;
    uint64_t token;
    int status;
    struct mu_buf message;
};

/* A key of a get or a store that is in progress. */
struct dht_key {
    struct mu_dht_id id;
    bool done;
    bool searched;
    uint32_t query;
    double local; /* GET: when the record that was here at first expires; 0: there was no record */
    struct mu_peer_id sources[DHT_SOURCES_MAX];
    size_t source_count;
    struct mu_dht_neighbour *near; /* STORE: nodes that may keep it, nearest first; includes
                                      ourselves */
    size_t near_count;
    size_t near_next;
    uint32_t in_flight;
    uint32_t answered;
};

struct dht_item {
    uint32_t key;
    struct mu_dht_item what; /* in `bytes` */
    struct mu_buf bytes;
};

struct dht_op {
    struct mu_dht_op base;
    struct mu_list link; /* ops, ended */
    mu_mono_t deadline;
    bool internal; /* its end is not reported */
    bool ended;
    bool latest;
    bool restores;  /* JOIN: our records are stored again when it has succeeded */
    bool searching; /* JOIN: the pings are over */
    bool upkeep;    /* JOIN: searches whether or not a peer answers */
    uint32_t gaps;  /* JOIN: parts of the id space that are searched besides our own */
    uint32_t pings;
    uint32_t clocks; /* JOIN: clocks that do not agree with ours */
    struct mu_dht_search search;
    struct mu_dht_storage found; /* GET */
    struct dht_key *keys;
    size_t key_count;
    size_t keys_done;
    uint32_t *by_query; /* which key a query is for */
    struct dht_item *items;
    size_t item_count;
};

struct dht_refresh {
    struct mu_map_node by_key;
    struct mu_heap_node due;
    struct mu_dht_id key;
};

struct dht_blacklisted {
    struct mu_map_node by_peer;
    struct mu_list link; /* oldest first */
    struct mu_peer_id peer;
    mu_mono_t until;
    uint32_t failures;
};

struct mu_dht {
    struct mu_dht_config config;
    struct mu_now now;
    struct mu_prng prng;
    struct mu_dht_table table;
    struct mu_dht_storage main;
    struct mu_dht_storage cache;
    struct mu_dht_storage own; /* our own records */
    struct mu_list ops;
    struct mu_list ended;
    struct mu_list to_send;
    struct mu_list under_way;
    struct mu_list replies;
    uint32_t call_count;
    uint32_t back_count;
    uint64_t numbers;
    struct mu_buf lent; /* the message of the last event */
    struct mu_map refreshes;
    struct mu_heap refresh_due;
    struct mu_map blacklist;
    struct mu_list blacklist_order;
    struct mu_peer_id *joined; /* the peers through which we joined */
    size_t joined_count;
    bool had_others;
    bool alone; /* all of them are lost */
    mu_mono_t upkeep_at;
    mu_mono_t rejoin_at;
    bool moved; /* an operation has ended or begun since mu_dht_pump() looked */
    struct mu_dht_stats stats;
};

static inline double mu_dht_time(const struct mu_dht *d)
{
    return (double)d->now.wall.ns / 1e9;
}

/* node.c */
void mu_dht_enter(struct mu_dht *d, struct mu_now now);
struct mu_dht_head mu_dht_own_head(const struct mu_dht *d);
int mu_dht_call_new(struct mu_dht *d, enum dht_call_kind kind, enum mu_dht_method method,
                    const struct mu_dht_neighbour *who, bool has_node, struct dht_call **ret);
/** Queues a call whose message is written. Frees the call if that fails. */
int mu_dht_call_ready(struct mu_dht *d, struct dht_call *c, int err);
int mu_dht_ping_node(struct mu_dht *d, enum dht_call_kind kind, const struct mu_dht_neighbour *who,
                     bool has_node, bool validate, struct dht_call **ret);
/** Has some records stored on another node; the result does not matter. */
void mu_dht_spread(struct mu_dht *d, const struct mu_dht_neighbour *who,
                   const struct mu_dht_item *items, size_t count);
void mu_dht_heard(struct mu_dht *d, const struct mu_dht_id *node, const struct mu_peer_id *peer);
void mu_dht_lost(struct mu_dht *d, const struct mu_dht_neighbour *who, bool has_node);
int mu_dht_reply_new(struct mu_dht *d, uint64_t token, int status, struct mu_buf *message);
void mu_dht_count_refusal(struct mu_dht *d, int err);
bool mu_dht_is_blacklisted(const struct mu_dht *d, const struct mu_peer_id *peer);

/* node_serve.c */
void mu_dht_ping_answered_back(struct mu_dht *d, struct dht_call *c, bool reached);

/* node_op.c */
int mu_dht_op_new(struct mu_dht *d, enum mu_dht_op_type type, size_t keys, size_t results,
                  struct dht_op **ret);
void mu_dht_op_delete(struct dht_op *op);
/** Starts the operation; or, if `err` is not 0, deletes it and returns `err`. */
int mu_dht_op_begin(struct mu_dht *d, struct dht_op *op, int err, struct dht_op **ret);
int mu_dht_op_search(struct mu_dht *d, struct dht_op *op, uint32_t key);
void mu_dht_op_end(struct mu_dht *d, struct dht_op *op, int status);
void mu_dht_op_advance(struct mu_dht *d, struct dht_op *op);
void mu_dht_pump(struct mu_dht *d);

/* node_get.c */
void mu_dht_get_answered(struct mu_dht *d, struct dht_op *op, uint32_t query,
                         const struct mu_peer_id *from, const struct mu_dht_found *found);
void mu_dht_get_found(struct mu_dht *d, struct dht_op *op, uint32_t key);
void mu_dht_get_settle(struct mu_dht *d, struct dht_op *op);
void mu_dht_refresh_at(struct mu_dht *d, const struct mu_dht_id *key, double expiration);
void mu_dht_refresh_due(struct mu_dht *d);

/* node_store.c */
void mu_dht_store_found(struct mu_dht *d, struct dht_op *op, uint32_t key);
void mu_dht_store_answered(struct mu_dht *d, struct dht_op *op, uint32_t key, bool answered,
                           struct mu_dht_store_reply *reply);
void mu_dht_store_anew(struct mu_dht *d);

/* node_join.c */
void mu_dht_join_answered(struct mu_dht *d, struct dht_op *op, const struct dht_call *c,
                          const struct mu_dht_ping_reply *reply);
void mu_dht_join_found(struct mu_dht *d, struct dht_op *op);
void mu_dht_join_late(struct mu_dht *d, struct dht_op *op);
void mu_dht_join_tick(struct mu_dht *d);
bool mu_dht_is_joining(const struct mu_dht *d);

#endif

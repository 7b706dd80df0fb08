/*
 * One search in libp2p's DHT (FIND_NODE of /ipfs/kad/1.0.0): which peers are asked where the target
 * is, in which order, and when the search ends. A decision machine: it sees peer ids and times.
 * service/peer/kad.h drives it, has the streams and knows the addresses.
 *
 *     mu_kad_search_init(s, &config)
 *     mu_kad_search_add(s, &peer)                      each peer that we can ask from the start
 *     while (mu_kad_search_next(s, now, &action)) ...  then, and after every other call:
 *         ASK                                          open a stream to `peer` and ask it
 *         LATE                                         `peer` had its time: end its stream
 *         END                                          the last action: end all streams
 *     mu_kad_search_answered(s, &peer, named, count)   `peer` answered, and named these peers
 *     mu_kad_search_failed(s, &peer)                   `peer` cannot be asked, or broke the rules
 *     mu_kad_search_deadline(s)                        when to call mu_kad_search_next() again
 *
 * An ASK ends with one of answered, failed, LATE and END. An answer counts until LATE was given,
 * however long it took. The machine ignores answers of a peer that is not being asked.
 *
 *     search:  ASKING --an answer names the target-->  FOUND
 *              ASKING --mu_kad_search_stop()-->        STOPPED
 *              ASKING --no ask is under way, and-->    NOBODY   no peer was ever asked
 *                       no other peer may be asked     UNKNOWN  the nearest have all been asked
 *                                                      SPENT    asked_max have been asked
 *
 *     peer:    NEW --ASK--> ASKED --answered-->     ANSWERED
 *                           ASKED --failed, LATE--> FAILED
 *
 * Distance is the XOR of the SHA-256 of ids. The search keeps the peers that it has heard of, at
 * most MU_KAD_CANDIDATES_MAX, nearest to the target first. The farthest makes room for a nearer
 * one; if it is being asked, its answer still counts. The next peer to ask is the nearest that is
 * NEW, as long as it is among the `nearest` of those that have not FAILED: dead peers do not narrow
 * the search.
 *
 * A search for ourselves makes us known to the peers near us. It never ends with FOUND.
 *
 * proto/dht/search.h is the same beam for hivemind's DHT and is not used here: its ids are numbers
 * of 20 bytes that nodes choose, it asks about many keys in one call, it leaves timeouts to its
 * driver, and it can run out of memory.
 */
#ifndef MU_KAD_SEARCH_H
#define MU_KAD_SEARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "codec/peer/id.h"
#include "core/time.h"
#include "crypto/hash.h"

#define MU_KAD_CANDIDATES_MAX 128
#define MU_KAD_PARALLEL_MAX   64 /* a greater `parallel` is cut to it */
#define MU_KAD_NAMED_MAX      64 /* peers of one answer that count; the others are ignored */

struct mu_kad_search_config {
    struct mu_peer_id self; /* ourselves, who are not asked */
    struct mu_peer_id target;
    uint32_t nearest;   /* peers that must have been asked before the search gives up */
    uint32_t parallel;  /* asks that are under way at once */
    uint32_t asked_max; /* peers that may be asked in all */
    uint32_t answer_ms; /* for one peer to answer */
};

enum mu_kad_search_state {
    MU_KAD_SEARCH_ASKING = 1,
    MU_KAD_SEARCH_FOUND,
    MU_KAD_SEARCH_NOBODY,
    MU_KAD_SEARCH_UNKNOWN,
    MU_KAD_SEARCH_SPENT,
    MU_KAD_SEARCH_STOPPED,
};

enum mu_kad_peer_state {
    MU_KAD_PEER_NEW = 0,
    MU_KAD_PEER_ASKED,
    MU_KAD_PEER_ANSWERED,
    MU_KAD_PEER_FAILED,
};

enum mu_kad_action_type {
    MU_KAD_ACTION_ASK = 1,
    MU_KAD_ACTION_LATE,
    MU_KAD_ACTION_END,
};

struct mu_kad_action {
    enum mu_kad_action_type type;
    struct mu_peer_id peer; /* ASK, LATE */
};

struct mu_kad_candidate {
    struct mu_peer_id id;
    uint8_t key[MU_SHA256_LEN];
    enum mu_kad_peer_state state;
};

struct mu_kad_ask {
    struct mu_peer_id peer;
    mu_mono_t until;
};

/* It holds no other memory. Callers read `state` and `asked`. */
struct mu_kad_search {
    struct mu_kad_search_config config;
    uint8_t key[MU_SHA256_LEN]; /* the target's */
    enum mu_kad_search_state state;
    uint32_t asked;                              /* peers, ever */
    bool told;                                   /* END was given */
    size_t ask_count;                            /* under way */
    struct mu_kad_ask asks[MU_KAD_PARALLEL_MAX]; /* in no order */
    size_t count;
    struct mu_kad_candidate candidates[MU_KAD_CANDIDATES_MAX]; /* nearest first */
};

/** Cannot fail, and nothing needs to be freed. */
void mu_kad_search_init(struct mu_kad_search *s, const struct mu_kad_search_config *config);
/** Adds a peer that can be asked. Known peers, the target and ourselves are left out. */
void mu_kad_search_add(struct mu_kad_search *s, const struct mu_peer_id *peer);
/** `named` are the peers of the answer that can be reached. If the target is one, it is found. */
void mu_kad_search_answered(struct mu_kad_search *s, const struct mu_peer_id *peer,
                            const struct mu_peer_id *named, size_t count);
void mu_kad_search_failed(struct mu_kad_search *s, const struct mu_peer_id *peer);
/** Ends the search, unless it has ended. END follows. */
void mu_kad_search_stop(struct mu_kad_search *s);
/** Takes the next action. False: there is nothing to do until something happens. */
bool mu_kad_search_next(struct mu_kad_search *s, mu_mono_t now, struct mu_kad_action *ret);
/** Returns when the next ask is late. MU_MONO_NEVER: no ask is in progress. */
mu_mono_t mu_kad_search_deadline(const struct mu_kad_search *s);
/** Returns whether this peer is being asked. */
bool mu_kad_search_is_asking(const struct mu_kad_search *s, const struct mu_peer_id *peer);

/** Returns whether `a` is nearer to `key` than `b`. */
bool mu_kad_nearer(const uint8_t key[MU_SHA256_LEN], const uint8_t a[MU_SHA256_LEN],
                   const uint8_t b[MU_SHA256_LEN]);

#endif

/*
 * Held keys, at a gateway: what it may answer from memory, and which calls its clients share. The
 * other end is proto/store/holds.h.
 *
 *     GET k --> mu_cache_answer(): k is held                    answered from memory
 *               mu_cache_join(): it is not                      a flight takes off, or is joined
 *               mu_cache_next_flight()                          ... and is sent upstream
 *     reply --> mu_cache_land(), mu_cache_next()                answers those who wait for it
 *     SET k --> mu_cache_change()                               k is forgotten; the SET is sent
 *     recall -> mu_cache_recall(), then the acknowledgment      k is forgotten
 *
 * A flight is one call upstream for all who want the same keys. Those who joined before it was sent
 * are answered by what it brings. Those who came later are not: the answer may be older than their
 * question. They are answered from memory if the keys are held now, and take the next flight if
 * not.
 *
 * What a flight brings is kept only if the server lets us hold it, and if neither a recall nor a
 * change of our own has passed that key since the flight took off.
 *
 * Time: `until` is the end of the lease by our clock, counted from when the request that renewed it
 * was sent. From then on nothing in memory is answered, and all of it is forgotten.
 *
 * A decision machine, without any wire. It keeps copies of keys and values, in bounds; over a bound
 * it forgets what was not asked for longest.
 */
#ifndef MU_CACHE_H
#define MU_CACHE_H

#include "codec/store/hold.h"
#include "codec/store/op.h"
#include "core/list.h"
#include "core/map.h"
#include "core/time.h"

/* Planted bugs, for the simulator. */
enum mu_cache_plant {
    MU_CACHE_PLANT_NOTHING = 0,
    MU_CACHE_PLANT_KEEP,       /* keys that are given back are kept */
    MU_CACHE_PLANT_LATE_LEASE, /* the lease is counted from the answer */
    MU_CACHE_PLANT_NO_LEASE,   /* what it was for is answered after its end */
    MU_CACHE_PLANT_FOREVER,    /* nothing is forgotten with the session */
    MU_CACHE_PLANT_SPOILED,    /* what was asked back on its way is kept */
    MU_CACHE_PLANT_EAGER_WAIT, /* a wait is over if it is known that the key is not there */
};

struct mu_cache_config {
    enum mu_cache_plant plant;
    uint64_t seed;
    size_t keys_max;   /* keys in memory: 262144 */
    size_t bytes_max;  /* their memory: 64 MiB */
    size_t spoils_max; /* keys that have changed while flights are under way: 4096 */
};

struct mu_cache_config mu_cache_config_defaults(void);

/* One who waits for a flight; embedded by the caller, zeroed before its first use. */
struct mu_cache_ask {
    const struct mu_store_request *request; /* the caller's, until it is answered or has left */
    struct mu_cache_flight *flight;         /* private from here; NULL: none */
    struct mu_list link;
};

struct mu_cache_flight {
    struct mu_span payload; /* of the fetch; for the driver to send */
    mu_mono_t sent_at;
    void *impl; /* the driver's */
    bool waits; /* it lasts until all keys have existed */
    bool aloft; /* private from here: it was sent */
    bool abandoned;
    bool taken;   /* the element of a queue that ended the wait */
    uint64_t seq; /* of the last spoil before it was sent */
    struct mu_map_node node;
    struct mu_list link;
    struct mu_list first; /* asks that came before it was sent */
    struct mu_list later;
    struct mu_span *keys;
    size_t key_count;
    uint8_t bytes[];
};

struct mu_cache {
    struct mu_cache_config config;
    bool on;          /* the server lets us hold keys */
    uint64_t hits;    /* for people: requests that were answered from memory, */
    uint64_t misses;  /* that needed a flight of their own, */
    uint64_t joined;  /* that shared one; */
    uint64_t recalls; /* keys that were asked back */
    size_t count;     /* keys in memory */
    size_t bytes;     /* and what they take */
    mu_mono_t until;  /* private from here */
    mu_mono_t renewed_at;
    uint32_t lease_ms;
    bool asked; /* something was answered from memory since then */
    size_t aloft;
    size_t waiting;
    struct mu_map keys;
    struct mu_list used; /* the least recently used first */
    struct mu_map spoils;
    uint64_t seq;
    uint64_t spoiled_all; /* every flight that was sent before this one's number */
    uint64_t cleared;     /* likewise, by mu_cache_clear(): it renews nothing */
    struct mu_map flights;
    struct mu_list to_send;
    struct mu_cache_flight *landed;
    struct mu_found *found; /* what it brought */
    int status;
    struct mu_span *values; /* scratch */
    size_t value_cap;
    struct mu_buf scratch;
};

void mu_cache_init(struct mu_cache *c, const struct mu_cache_config *config);
/** No ask may wait for a flight; this is asserted. */
void mu_cache_fini(struct mu_cache *c);

/** Whether a request is of a kind that can be answered from memory. */
bool mu_cache_fits(const struct mu_store_request *q);
/**
 * Answers from memory. 0: `*ret_reply`, lent until the next call; MUSTER_ENOENT: it is known that a
 * key is not there; MUSTER_EAGAIN: it is not known.
 */
int mu_cache_answer(struct mu_cache *c, mu_mono_t now, const struct mu_store_request *q,
                    struct mu_store_reply *ret_reply);
/** Whether it could be answered so now. */
bool mu_cache_knows(struct mu_cache *c, mu_mono_t now, const struct mu_store_request *q);
/** What is in memory of a key, lent; false: it is not held. */
bool mu_cache_peek(struct mu_cache *c, mu_mono_t now, struct mu_span key, struct mu_found *ret);
/** Until when what is in memory may be answered, for who lends it on; 0: not now. It will be
 * renewed. */
mu_mono_t mu_cache_until(struct mu_cache *c, mu_mono_t now);
/** Waits for a flight with the keys of ask->request. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int mu_cache_join(struct mu_cache *c, struct mu_cache_ask *ask);
/** Does not want an answer any more. Returns the flight if nobody is left on it and it was sent: it
 * may be cancelled, and lands nevertheless. */
struct mu_cache_flight *mu_cache_leave(struct mu_cache *c, struct mu_cache_ask *ask);
/** A flight to send now; NULL: none. */
struct mu_cache_flight *mu_cache_next_flight(struct mu_cache *c, mu_mono_t now);

/**
 * A flight has ended with this status and answer, which must stay until mu_cache_next() has
 * returned false. A malformed answer counts as MUSTER_EPROTO.
 */
void mu_cache_land(struct mu_cache *c, mu_mono_t now, struct mu_cache_flight *flight, int status,
                   struct mu_span payload);

struct mu_cache_outcome {
    struct mu_cache_ask *ask; /* the caller's again */
    bool pass;                /* it can only be answered by a call of its own */
    bool failed;              /* the flight has failed, with `status` */
    bool brought;             /* it is what the flight has brought, and perhaps not in memory */
    bool took;                /* a queue's element has ended its wait */
    bool late;                /* that was given to another: it may ask again once that is popped */
    int status;               /* 0, or MUSTER_ENOENT */
    struct mu_store_reply reply;
};

/** What has come of an ask; false: no more. Others may leave and join between two calls. */
bool mu_cache_next(struct mu_cache *c, mu_mono_t now, struct mu_cache_outcome *ret);

/** A client of ours is about to change a key. */
void mu_cache_change(struct mu_cache *c, struct mu_span key);
/** The server wants a key back. To be called before it is acknowledged. */
void mu_cache_recall(struct mu_cache *c, struct mu_span key);
/** Forgets everything: the session with the server is over, or another one. */
void mu_cache_clear(struct mu_cache *c);
/** A renewal that was sent at that time was confirmed. */
void mu_cache_renewed(struct mu_cache *c, mu_mono_t now, mu_mono_t sent_at, uint32_t lease_ms);
/** When the lease should be renewed; MU_MONO_NEVER: nobody asks for what is in memory. */
mu_mono_t mu_cache_renew_at(const struct mu_cache *c);

#endif

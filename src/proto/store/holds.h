/*
 * Held keys, at the server: which gateways may answer for which keys. It stands beside a keyspace,
 * which it does not know; who changes a key asks here first.
 *
 *     fetch --> mu_holds_grant()                    the holder may answer for the key
 *     SET   --> mu_holds_ask(): not yet             the holders are asked to give the key back
 *               mu_holds_next_recall()              ... the driver tells each of them
 *     drop  --> mu_holds_drop()                     a holder has given it back
 *               mu_holds_next_writer()              the last one has: the SET asks again, and runs
 *
 * A key that somebody wants to change is granted to nobody until the change has been made or given
 * up: that is a claim. A holder whose lease is over holds nothing, whatever it says, so a holder
 * that does not answer delays a change by no more than its lease.
 *
 * The lease is a promise of the server's, and is counted twice: by the holder from when it sent the
 * request that renewed it, by the server from when it answered that request, with a margin for
 * clocks that run at different rates. So it is over at the holder before it is over here.
 *
 * A decision machine. It keeps copies of keys, in bounds: over a bound, nothing is granted.
 */
#ifndef MU_HOLDS_H
#define MU_HOLDS_H

#include "core/heap.h"
#include "core/list.h"
#include "core/map.h"
#include "core/span.h"
#include "core/time.h"

/* Planted bugs, for the simulator. */
enum mu_holds_plant {
    MU_HOLDS_PLANT_NOTHING = 0,
    MU_HOLDS_PLANT_LATE_RECALL, /* changes are made before the keys are given back */
    MU_HOLDS_PLANT_EARLY_GRANT, /* keys are granted while they are asked back */
    MU_HOLDS_PLANT_SHORT_LEASE, /* the server counts half of what it says */
    MU_HOLDS_PLANT_SHORT_LOAN,  /* what was lent on ends with the session of who lent it */
    MU_HOLDS_PLANT_LONG_LEASE,  /* keys are lent for longer than they are held */
};

struct mu_holds_config {
    enum mu_holds_plant plant;
    uint64_t seed;
    size_t keys_max;       /* keys that are held or claimed at a time: 1048576 */
    size_t bytes_max;      /* the memory for them: 256 MiB */
    uint32_t lease_ms;     /* 2000; longer with many holders, see `renewals_max` */
    uint32_t renewals_max; /* renewals a second of all holders together: 5000 */
};

struct mu_holds_config mu_holds_config_defaults(void);

/* One that may hold keys: a session of a gateway. */
struct mu_holder {
    void *owner;     /* the caller's; NULL: it is gone, and its lease runs out */
    mu_mono_t until; /* the end of its lease, as the server counts it */
    /* Private from here. */
    uint32_t index;
    size_t held;              /* keys that it holds */
    size_t recalled;          /* of these, the ones that it was asked to give back */
    struct mu_heap_node node; /* holds->late, by `until`, while it owes such keys */
    struct mu_list link;      /* holds->gone */
};

/* One that wants to change keys: embedded by the caller, zeroed before its first use. */
struct mu_hold_writer {
    void *owner;           /* the caller's */
    struct mu_list claims; /* private from here */
    struct mu_list ready;
    size_t pending; /* claimed keys that somebody still holds */
};

struct mu_holds {
    struct mu_holds_config config;
    size_t count;     /* keys in the table; 0: nothing is held, and nobody need ask */
    mu_mono_t now;    /* for a machine that has no time: the owner sets it before it feeds one */
    uint64_t granted; /* for people: holds that were ever granted, */
    uint64_t recalls; /* asked back, */
    uint64_t expired; /* and ended by time */
    size_t holds;     /* at present */
    /* Private from here. */
    size_t bytes;
    struct mu_map keys;
    struct mu_list recalling; /* struct mu_hold_key: has to be asked back, or is */
    struct mu_list *cursor;
    struct mu_holder **holders; /* by index; NULL: free */
    uint32_t holder_count;
    uint32_t holder_cap;
    uint32_t next_bit; /* of the key at the cursor, the holder that is told next */
    struct mu_heap late;
    struct mu_list ready;
    struct mu_list gone;
};

void mu_holds_init(struct mu_holds *h, const struct mu_holds_config *config);
/** Frees everything; no writer may have claims. Holders are freed. */
void mu_holds_fini(struct mu_holds *h);

/** A new holder, without a lease. NULL: no memory. */
struct mu_holder *mu_holds_join(struct mu_holds *h, void *owner);
/**
 * The holder is gone. With `dropped`, it is known to answer for nothing any more, and its holds end
 * now; else they last until its lease is over.
 */
void mu_holds_leave(struct mu_holds *h, struct mu_holder *holder, bool dropped);
/**
 * Starts the lease again, before an answer that says so. Returns how long it is for the holder; 0:
 * it has keys to give back first, or there is too little time, and the lease stays as it was. It is
 * over before `limit`: of who holds the keys itself, the end of its own lease, and else
 * MU_MONO_NEVER.
 */
uint32_t mu_holds_renew(struct mu_holds *h, struct mu_holder *holder, mu_mono_t now,
                        mu_mono_t limit);
/** Whether the holder has nothing that it may answer for. */
bool mu_holds_nothing(const struct mu_holder *holder, mu_mono_t now);
/** Lets the holder answer for a key, until the end of its lease. False: it may not. */
bool mu_holds_grant(struct mu_holds *h, struct mu_holder *holder, mu_mono_t now,
                    struct mu_span key);
/** Whether somebody may hold the key, or wants to change it. */
bool mu_holds_has(const struct mu_holds *h, struct mu_span key);
/** The holder has given a key back, or has forgotten it. */
void mu_holds_drop(struct mu_holds *h, struct mu_holder *holder, struct mu_span key);

/**
 * Asks to change keys. 1: it may be done at once, on this turn. 0: `w` waits, and comes out of
 * mu_holds_next_writer() to ask again with the same keys. `self`, or NULL, is the holder that wants
 * it: it has dropped the keys already. MUSTER_ENOMEM: as if it had not asked.
 */
int mu_holds_ask(struct mu_holds *h, struct mu_hold_writer *w, struct mu_holder *self,
                 mu_mono_t now, const struct mu_span *keys, size_t count);
/** The same for all keys that begin with `prefix`. */
int mu_holds_ask_prefix(struct mu_holds *h, struct mu_hold_writer *w, mu_mono_t now,
                        struct mu_span prefix);
/** The writer does not want it any more. Harmless on an idle one. */
void mu_holds_withdraw(struct mu_holds *h, struct mu_hold_writer *w);
static inline bool mu_hold_writer_waits(const struct mu_hold_writer *w)
{
    return w->claims.next != NULL && !mu_list_empty(&w->claims);
}

/** The next that has to be asked to give a key back, once each; the key is lent. */
bool mu_holds_next_recall(struct mu_holds *h, struct mu_holder **ret_holder,
                          struct mu_span *ret_key);
/** The next writer that nobody stands in the way of; NULL: none. It asks again. */
struct mu_hold_writer *mu_holds_next_writer(struct mu_holds *h);
/** When to call mu_holds_tick(). */
mu_mono_t mu_holds_deadline(const struct mu_holds *h);
/** Ends leases that are over and that somebody waits for. */
void mu_holds_tick(struct mu_holds *h, mu_mono_t now);

#endif

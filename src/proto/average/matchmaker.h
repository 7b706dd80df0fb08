/*
 * Finds a group to average with, as hivemind's averagers do: one search, from its begin until there
 * is a group or none was found. A decision machine; the calls, the DHT and the clock are its
 * driver's.
 *
 * Peers that look for a group write into one bucket of the DHT when they intend to begin: their
 * declared time. The one with the earliest time leads. The others ask it to join, and wait for the
 * group on the open stream.
 *
 *                      FETCH, DECLARE, CALL
 *              ┌─────────────┐   ACCEPTED    ┌───────────┐
 *     init ──▶ │  SEARCHING  │ ────────────▶ │ FOLLOWING │
 *              │             │ ◀──────────── │           │
 *              └─────────────┘  disbanded,   └───────────┘
 *       our time, enough │      closed, late       │ BEGIN_ALLREDUCE
 *       followers, or    │                         ▼
 *       as many as aimed └──────────────────▶   ENDED   ◀── deadline, cancel
 *
 * SEARCHING. We declare a time, read the bucket, and ask peers that precede us, (time, id) less
 * than ours, one after the other, each once for a time that it declared. At the same time others
 * ask us: we judge them in hivemind's order of checks, also while our own question is outstanding,
 * so that two peers that ask each other do not wait for each other. When our time comes, we lead
 * those who follow if they are enough, and otherwise send them away and declare a later time.
 * FOLLOWING. Our followers were sent away with the name of our leader. Nothing is declared or read;
 * who asks us is told our leader. ENDED. mu_matchmaker_status(); with 0, `group` says who.
 *
 * Client mode: nothing is declared and nobody can ask us; we may follow anybody.
 *
 * Where this is stricter than hivemind: the bucket is read at most every fetch_ms, with jitter, not
 * without a pause; expirations that are not finite, are over, or lie further ahead than ahead_ms
 * are ignored; of two that declared the same time only one may follow the other; what a joiner
 * gathers must decode, because one that does not decode would fail the round of all; a leader that
 * sends us on and on is left after hops_max; a group must contain us with what we said. A leader
 * whose time has come assembles at once, and does not declare a later time first.
 *
 * Time. Expirations are seconds of the wall clock in float64, as on the wire; members should agree
 * within skew_ms, and a greater difference costs groups, not safety. All waiting is by the
 * monotonic clock.
 *
 * The driver, after every input:
 *   1. pulls mu_matchmaker_next_event() until it is false, and does what each says, in order;
 *   2. calls mu_matchmaker_tick() at mu_matchmaker_deadline();
 *   3. tells what came of it, with the event's number: FETCH by fetched(), CALL by replied() for
 *      each message and closed() at its end. Answers to numbers that are over are ignored.
 *   4. gives each incoming call of rpc_join_group a number of its own, above zero, hands its one
 *      request to asked(), and says by gone() when its stream is over; a REPLY that is `last` ends
 *      it. Requests of the library's own peer id do not come.
 * DECLARE and LEAVE need no answer: if the record is lost, nobody asks us, and we still ask others.
 */
#ifndef MU_MATCHMAKER_H
#define MU_MATCHMAKER_H

#include "codec/average/msg.h"
#include "core/prng.h"
#include "core/time.h"

#define MU_MATCHMAKER_FETCH_MS_MIN 200 /* the least pause between two reads of the bucket */

struct mu_matchmaker_config {
    struct mu_peer_id self;
    uint8_t schema[MU_AVG_SCHEMA_LEN];
    char key[MU_AVG_KEY_MAX + 1];          /* a valid group key */
    struct mu_span gather;                 /* an encoded mu_avg_gather; copied */
    uint8_t group_id[MU_AVG_GROUP_ID_LEN]; /* random, for the group that we may lead */
    bool client;
    uint32_t target_size;    /* a group of ours of that size begins at once; 0: no such size */
    uint32_t size_min;       /* below it there is no group. 2 */
    uint32_t followers_max;  /* 255: with us, MU_AVG_MEMBERS_MAX */
    uint32_t candidates_max; /* entries of a bucket that are looked at, the earliest. 10,000 */
    uint32_t hops_max;       /* leaders that send us on, one after the other. 4 */
    uint32_t matchmaking_ms; /* how far ahead we declare. 5 s */
    uint32_t request_ms;     /* for an answer to a question. 3 s */
    uint32_t fetch_ms;       /* between reads of the bucket, half of it random. 500 */
    uint32_t fetch_lost_ms;  /* a read without an answer is repeated. 10 s */
    uint32_t skew_ms;        /* by how much clocks may differ. 3 s */
    uint32_t ahead_ms;       /* times further ahead are ignored. 1 h */
    uint64_t timeout_ms;     /* of the search; 0: it goes on until it is cancelled */
    double scheduled;        /* when we would begin, by the wall clock; 0: as soon as possible */
    uint64_t seed;
};

enum mu_matchmaker_state {
    MU_MATCHMAKER_SEARCHING = 1,
    MU_MATCHMAKER_FOLLOWING,
    MU_MATCHMAKER_ENDED,
};

enum mu_matchmaker_event_type {
    MU_MATCHMAKER_DECLARE = 1, /* store true under our id, until `expiration` */
    MU_MATCHMAKER_LEAVE,       /* store false under our id, until `expiration` */
    MU_MATCHMAKER_FETCH,       /* read the bucket */
    MU_MATCHMAKER_CALL,        /* call rpc_join_group of `peer` with `message`, and end requests */
    MU_MATCHMAKER_HANG_UP,     /* close that call of ours */
    MU_MATCHMAKER_REPLY,       /* send `message` to that caller; `last`: and end the stream */
    MU_MATCHMAKER_END,         /* the search is over */
};

struct mu_matchmaker_event {
    enum mu_matchmaker_event_type type;
    uint64_t number;        /* FETCH, CALL, HANG_UP: of the machine; REPLY: of asked() */
    double expiration;      /* DECLARE, LEAVE */
    struct mu_peer_id peer; /* CALL */
    struct mu_span message; /* CALL, REPLY; lent until the next call of the machine */
    bool last;              /* REPLY */
};

struct mu_matchmaker_follower;  /* who follows us */
struct mu_matchmaker_candidate; /* who may be followed */
struct mu_matchmaker_note;      /* an event that waits to be pulled */

struct mu_matchmaker {
    /* Read only. */
    enum mu_matchmaker_state state;
    double declared; /* our time; +inf in client mode, 0 before the first */
    uint32_t follower_count;
    struct mu_avg_reply group; /* after END with status 0 */
    struct mu_peer_id unlike;  /* who asked us last with another schema; its length 0: nobody */
    uint32_t position;         /* ours in the group */
    bool leading;              /* whether we lead it */
    /* private */
    struct mu_matchmaker_config config;
    struct mu_prng prng;
    struct mu_buf gather;
    struct mu_buf begin; /* the message of the group, which `group` points into */
    struct mu_buf out;
    struct mu_matchmaker_follower *followers;
    struct mu_matchmaker_candidate *candidates;
    size_t candidate_count;
    struct mu_matchmaker_note *notes;
    size_t note_head, note_count, note_cap;
    size_t gathered_bytes;
    mu_mono_t declared_at, until, fetch_at, call_until;
    double deadline, assured, asked_expiration;
    uint64_t numbers, fetching, calling;
    struct mu_peer_id leader; /* whom we ask or follow */
    uint32_t hops;
    int status;
    struct mu_errmsg text;
};

struct mu_matchmaker_config mu_matchmaker_config_defaults(void);
/**
 * Begins a search. MUSTER_EINVAL: a key or gather that is not valid, sizes that allow no group, a
 * request_ms that is not below matchmaking_ms; MUSTER_ENOMEM.
 */
int mu_matchmaker_init(struct mu_matchmaker *m, const struct mu_matchmaker_config *config,
                       struct mu_now now);
void mu_matchmaker_fini(struct mu_matchmaker *m);

/* --- in --------------------------------------------------------------------------------------- */

/** Takes what FETCH found: a dictionary (codec/dht/dict.h), or nothing. `status` below zero: the
 * bucket could not be read, and what is known stays. */
void mu_matchmaker_fetched(struct mu_matchmaker *m, struct mu_now now, uint64_t number, int status,
                           struct mu_span dictionary);
/** Takes a message of the peer that we called. */
void mu_matchmaker_replied(struct mu_matchmaker *m, struct mu_now now, uint64_t number,
                           struct mu_span message);
/** That call has ended, or could not be made. */
void mu_matchmaker_closed(struct mu_matchmaker *m, struct mu_now now, uint64_t number);
/** Takes the request of a peer that wants to join us: a REPLY follows. */
void mu_matchmaker_asked(struct mu_matchmaker *m, struct mu_now now, uint64_t number,
                         const struct mu_peer_id *peer, struct mu_span message);
/** That peer has closed its stream: it follows us no more. */
void mu_matchmaker_gone(struct mu_matchmaker *m, struct mu_now now, uint64_t number);
void mu_matchmaker_tick(struct mu_matchmaker *m, struct mu_now now);
/** Ends the search, with MUSTER_ECANCELED. */
void mu_matchmaker_cancel(struct mu_matchmaker *m, struct mu_now now);

/* --- out -------------------------------------------------------------------------------------- */

bool mu_matchmaker_next_event(struct mu_matchmaker *m, struct mu_matchmaker_event *ret);
mu_mono_t mu_matchmaker_deadline(const struct mu_matchmaker *m);
/** After END: 0, MUSTER_ETIMEDOUT (no group by the deadline), MUSTER_ECANCELED, MUSTER_ENOMEM. */
int mu_matchmaker_status(const struct mu_matchmaker *m);
/** One sentence for the status. */
const char *mu_matchmaker_text(const struct mu_matchmaker *m);

#endif

/*
 * One round of averaging in the native mode: an all-reduce that loses no shard when a member dies,
 * and after which all members that end with success hold the same bits. A decision machine without
 * arithmetic: values lie with the driver, and the machine says what to send, sum, hash and place.
 * docs/averaging.md has the protocol and why it holds; this is what a reader of the code needs.
 *
 * Words. The vector is cut into parts (codec/average/divide.h); the parts of one owner are its
 * SHARD. A member that is no client is a VOTER. A QUORUM is more than half of all voters of the
 * group, or exactly half with the first voter among them. A BALLOT is a number that belongs to one
 * member, its COORDINATOR: ballot b to member b mod n. A SUM is named by the ballot in which it was
 * first proposed; one sum has one set of members, and so one result.
 *
 * As a member, in each ballot:
 *
 *     PREPARE ──▶ promise ──ASSIGN──▶ give parts to owners, tell what we have (HAVE)
 *         ──PROPOSE──▶ owners sum and send averages ──▶ all averages ──▶ HASH ──▶ accept
 *         ──FINAL──▶ PLACE, END ──CLOSE──▶ RELEASE
 *
 * The first ballot needs neither PREPARE nor ASSIGN. As a coordinator:
 *
 *     PREPARING ──a quorum has promised──▶ GATHERING ──all have theirs, or late──▶ PROPOSED
 *         │                                                                       │
 *         └──one has accepted a sum──▶ FETCHING ──▶ PROPOSED ──a quorum accepts──▶ FINISHING
 *     any of them ──an owner is lost, or nothing goes on──▶ PREPARING, with the next own ballot
 *     any of them ──another has a later ballot──▶ IDLE
 *
 * The driver:
 *   1. pulls mu_native_next_event() after every input, until it is false, and does what it says;
 *   2. calls mu_native_tick() at mu_native_deadline();
 *   3. has one link to each other member: frames in order, none twice, none left out, until it says
 *      by lost() that the link is over, at the latest when nothing was heard for a time that it
 *      knows. From then on nothing goes either way: a link does not come back in a round. A HELLO
 *      on each link shows that both mean the same round of the same group;
 *   4. encodes our values once, before the round, and keeps the encoded parts to the end: GIVE may
 *      ask for any of them more than once, and what is given is always the same. For a sum it takes
 *      our own parts as it takes those of others, decoded from that encoding;
 *   5. gives control messages to received(), a PART to contributed(), an AVERAGE to averaged(), and
 *      keeps the bytes if those say so: contributions by part and member to the end, averages by
 *      part until FORGET. It keeps averages encoded: they are what TELL sends;
 *   6. after GIVE or TELL: sends that part to that member, and says by sent() when the link has
 *      taken it. Only then comes the next for it. Control messages never wait for that;
 *   7. after SUM: adds the contributions of `set` in the order of members, each with its weight,
 *      divides by the sum of the weights, encodes the average and keeps it; then calls summed(), in
 *      the order of the SUMs. Encoding an average has no error feedback: what another owner would
 *      compute must be the same;
 *   8. after HASH: decodes all averages in order and says their SHA-256 by hashed(). After PLACE it
 *      puts the same decoded values where they belong: the caller's values were not touched before;
 *   9. after END frees contributions; keeps averages, and goes on with 1 to 6, until RELEASE.
 * Every completion names the sum that it is about; one that comes late is ignored.
 */
#ifndef MU_NATIVE_H
#define MU_NATIVE_H

#include "codec/average/divide.h"
#include "codec/average/native_msg.h"
#include "core/err.h"
#include "core/time.h"

#define MU_NATIVE_NO_SUM     UINT32_MAX
#define MU_NATIVE_BALLOT_MAX (1u << 30) /* nobody gets there by honest means */

struct mu_native_config {
    const struct mu_avg_division *division; /* borrowed; with at least one part */
    uint32_t position;                      /* ours in the group */
    uint64_t clients;     /* members that own nothing, vote on nothing and are never coordinators */
    double weight;        /* ours; finite, from 0 to MU_AVG_WEIGHT_MAX */
    uint32_t *got;        /* borrowed: members x members numbers, which init() clears */
    uint32_t window;      /* SUMs at a time. 4 */
    uint32_t gather_ms;   /* for all to deliver everything. 30 s */
    uint32_t propose_ms;  /* for averages and acceptance. 20 s */
    uint32_t prepare_ms;  /* for promises. 3 s */
    uint32_t takeover_ms; /* before the next voter does not believe in the coordinator any more,
                             for each that comes before it; more than each of those. 60 s */
    uint32_t total_ms;    /* for the round. 300 s */
};

enum mu_native_event_type {
    MU_NATIVE_EVENT_SEND = 1, /* send `msg` to `member` */
    MU_NATIVE_EVENT_GIVE,     /* send it our values of `part`, as PART with our weight */
    MU_NATIVE_EVENT_TELL,     /* send it the average of `part`, as AVERAGE of `sum` */
    MU_NATIVE_EVENT_SUM,      /* make the average of `part` from `set` */
    MU_NATIVE_EVENT_FORGET,   /* free all averages but those of `sum` */
    MU_NATIVE_EVENT_HASH,     /* hash all averages */
    MU_NATIVE_EVENT_PLACE,    /* put all averages in place */
    MU_NATIVE_EVENT_CUT,      /* `member` breaks the rules: end its link. No lost() is needed */
    MU_NATIVE_EVENT_END,      /* the round has a result: see mu_native_status() */
    MU_NATIVE_EVENT_RELEASE,  /* nobody needs anything of us any more: end all links */
};

struct mu_native_event {
    enum mu_native_event_type type;
    uint32_t member, part, sum;
    const struct mu_native_set *set; /* SUM: valid until the next call */
    const struct mu_native_msg *msg; /* SEND: valid until the next call */
};

enum mu_native_lead {
    MU_NATIVE_LEAD_IDLE = 0,
    MU_NATIVE_LEAD_PREPARING,
    MU_NATIVE_LEAD_FETCHING,
    MU_NATIVE_LEAD_GATHERING,
    MU_NATIVE_LEAD_PROPOSED,
    MU_NATIVE_LEAD_FINISHING,
};

/* What has to be said to a member: bits by enum mu_native_type. */
struct mu_native_member {
    uint32_t say;
    double weight;
    bool weighed;
    bool sending;
    uint64_t owed, given; /* shards of which it is still to have our parts, and has them */
    uint64_t wanted;      /* shards of which it is to have averages */
    uint32_t give_shard, give_next; /* where we are */
    uint32_t tell_shard, tell_next;
    uint64_t lost; /* whom it has lost */
    /* as its coordinator: what it has accepted, and when; as it promises, or in this ballot */
    bool accepted;
    uint32_t accepted_at;
    uint32_t whole; /* the sum that it has all averages of */
    uint8_t digest[MU_NATIVE_DIGEST_LEN];
};

struct mu_native_shard {
    uint32_t averaged;  /* parts whose average is here, from the first */
    uint32_t summing;   /* parts for which SUM was said */
    uint32_t source;    /* who is to send the others */
    bool shared;        /* as its owner: everybody is being sent its averages */
    uint64_t have_told; /* members of which we said that we have everything */
    uint64_t held;      /* as the coordinator: members that its owner has everything of */
};

struct mu_native {
    /* Read only. */
    uint64_t gone;            /* members that are lost */
    struct mu_native_set set; /* after END with success: who took part, with which weight */
    uint8_t digest[MU_NATIVE_DIGEST_LEN]; /* and the digest of the averages */
    enum mu_native_lead lead;
    uint32_t promised; /* the latest ballot */
    /* private */
    struct mu_native_config config;
    uint32_t count;
    uint64_t all, voters, filled; /* members; those that vote; shards that have parts */
    mu_mono_t now, until, patience, lead_until, have_at;
    struct mu_native_member members[MU_NATIVE_MEMBERS_MAX];
    struct mu_native_shard shards[MU_NATIVE_MEMBERS_MAX];

    /* As a member: `set` and the next belong to the latest proposal. */
    uint64_t owners;
    bool proposed, bound, final, placed;
    uint32_t proposed_at, proposed_sum;
    uint8_t wanted_digest[MU_NATIVE_DIGEST_LEN]; /* if it is bound or final */
    uint32_t sum;                                /* whose averages are kept */
    bool hash_due, hash_asked, hashed, accepted, refetched, forget, clear, hurry;
    uint32_t accepted_at;
    uint64_t have_due, want_due;
    uint32_t highest; /* ballot that we have heard of */
    struct mu_native_msg failure;

    /* As a coordinator. */
    uint32_t ballot, sum_led, seen_at, seen_sum, fetch_from, free_at;
    bool decided, bound_led, seen, repeat, repeated, was_free;
    struct mu_native_set seen_set, set_led;
    uint8_t digest_led[MU_NATIVE_DIGEST_LEN];
    uint64_t promises, holders, backed, excluded, dones;
    double told[MU_NATIVE_MEMBERS_MAX]; /* weights, as owners tell them */
    uint64_t known, unfair;             /* who has one; who has two */

    /* The end. */
    bool place_due, ended, end_told, released, release_told;
    uint64_t cuts, closed;
    int status;
    struct mu_errmsg text;
    struct mu_native_msg out;
};

struct mu_native_config mu_native_config_defaults(void);
/** MUSTER_EINVAL: a position, weight, division or time that cannot be, or no voter. Takes no
 * memory. */
int mu_native_init(struct mu_native *n, const struct mu_native_config *config, struct mu_now now);

/* --- in --------------------------------------------------------------------------------------- */

/** Takes a control message: all but HELLO, PART and AVERAGE, which break the rules here. */
void mu_native_received(struct mu_native *n, struct mu_now now, uint32_t from,
                        const struct mu_native_msg *msg);
/** Takes a PART whose values are `good`: there are as many as there should be, all finite. True:
 * keep it. */
bool mu_native_contributed(struct mu_native *n, struct mu_now now, uint32_t from, uint32_t part,
                           double weight, bool good);
/** Takes an AVERAGE likewise. True: keep it. */
bool mu_native_averaged(struct mu_native *n, struct mu_now now, uint32_t from, uint32_t sum,
                        uint32_t part, bool good);
/** The part of the last GIVE or TELL to that member is on its way. */
void mu_native_sent(struct mu_native *n, struct mu_now now, uint32_t member);
/** The average of that part is there; or (`good` false) is not finite. True: keep it. */
bool mu_native_summed(struct mu_native *n, struct mu_now now, uint32_t sum, uint32_t part,
                      bool good);
void mu_native_hashed(struct mu_native *n, struct mu_now now, uint32_t sum,
                      const uint8_t digest[MU_NATIVE_DIGEST_LEN]);
/** The link to that member is over. */
void mu_native_lost(struct mu_native *n, struct mu_now now, uint32_t member);
void mu_native_tick(struct mu_native *n, struct mu_now now);
/** Ends the round at once, for us. */
void mu_native_cancel(struct mu_native *n, struct mu_now now);

/* --- out -------------------------------------------------------------------------------------- */

bool mu_native_next_event(struct mu_native *n, struct mu_native_event *ret);
mu_mono_t mu_native_deadline(const struct mu_native *n);
/**
 * After END: 0; MUSTER_ETIMEDOUT; MUSTER_ECANCELED; MUSTER_ECONN: no quorum can be reached;
 * MUSTER_ECORRUPT: members hold different bits; MUSTER_EINVAL: there is no finite average. After an
 * error the caller has its own values, and does not know whether others have others.
 */
int mu_native_status(const struct mu_native *n);
const char *mu_native_text(const struct mu_native *n);
/** Who owns that shard, given the members that may. */
uint32_t mu_native_owner(const struct mu_native *n, uint32_t shard, uint64_t owners);
/** Who gets the owner's own parts of its shard as well; the shard itself if there is nobody. */
uint32_t mu_native_second(const struct mu_native *n, uint32_t shard);

#endif

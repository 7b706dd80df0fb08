/*
 * Copies of kept states, between the files of kept*.c:
 *
 *     kept.c        vaults, reports, and the decision what workers load
 *     kept_offer.c  looks at the heads of our workers' vaults, hashes what is new, and gives it
 *     kept_copy.c   copies of the states of other nodes
 *     kept_fetch.c  what the plan of a round has us fetch before workers start
 *     kept_plan.c  the part of copies in that decision
 *     kept_place.c  memory that a version is loaded into, from other agents
 *
 * Other agents are given all that we have: versions in our workers' vaults, copies, and what we
 * have fetched. All of it is found under the rank that it belongs to.
 */
#ifndef MU_AGENT_KEPT_INTERNAL_H
#define MU_AGENT_KEPT_INTERNAL_H

#include "crypto/identity.h"
#include "proto/state/copies.h"
#include "service/agent/agent_internal.h"
#include "service/state/donor.h"
#include "service/state/loader.h"

#define MU_AGENT_KEPT_ADDR_CAP   (MU_ADDR_HOST_MAX + 16)
#define MU_AGENT_KEPT_PREFIX_CAP 24
#define MU_AGENT_KEPT_ANSWER_KEY "muster/kept/answer"

/* A version in a vault of a worker. */
struct mu_agent_kept_offer {
    struct mu_state_share *share; /* a reference; NULL: nobody gets it */
    struct mu_kept_head head;
    bool given;  /* it is hashed, and the donor has it */
    bool wanted; /* somebody fetches it for the round that begins */
};

/* Memory of our own for a version. */
struct mu_agent_kept_place {
    struct mu_agent_copies *c;
    bool made;
    struct mu_vault_own own;
    uint64_t written;                   /* how much of it has been, at most */
    struct mu_state_share *share;       /* a reference to the whole version; NULL: there is none */
    bool given;                         /* the donor has it */
    struct mu_agent_kept_place *beside; /* during a load: chunks may be there as well; or NULL */
};

/* Copies of the versions of one rank of another node. */
struct mu_agent_copier {
    struct mu_list link; /* c->copiers */
    struct mu_agent_copies *c;
    uint32_t rank;
    struct mu_copies copies;
    uint64_t gap; /* between the steps of versions, at least; 0: unknown */
    struct mu_agent_kept_place places[MU_COPIES_PLACES];
    char source[MU_AGENT_KEPT_ADDR_CAP]; /* "": nobody, in this round */
    struct mu_state_loader *loader;
    bool stopping; /* what the loader still brings does not count */
    bool loaded;   /* the last one has brought a version */
    bool leaving;  /* it goes when nothing uses its memory */
    bool refused;  /* there is no room, or the state is too large; said in this round */
};

/* What a rank of ours fetches. */
struct mu_agent_fetch {
    struct mu_list link; /* c->fetches */
    struct mu_agent_copies *c;
    struct mu_agent_round *round; /* that waits for it; NULL: none */
    uint32_t rank;
    bool replicated;
    struct mu_kept_version version;
    uint32_t world;
    bool whole;
    struct mu_kept_head head;
    struct mu_agent_kept_place place;
    struct mu_state_loader *loader;
    char from[64]; /* "node 1", for the log */
    mu_mono_t say_at;
    bool leaving;
};

struct mu_agent_copies {
    struct mu_agent_service *s;
    const struct mu_vaults *source;
    uint32_t wanted; /* --keep-copies */
    uint64_t total;  /* of memory, with the vaults of our workers */
    struct mu_identity identity;
    struct mu_state_donor *donor; /* NULL: not yet, or no longer */
    bool stopping;                /* it was told to */
    bool stopped;
    char addr[MU_AGENT_KEPT_ADDR_CAP];
    struct mu_timer timer;
    struct mu_agent_round *round;       /* whose workers run; NULL: none */
    struct mu_kept_answer answer;       /* of that round */
    struct mu_agent_kept_offer *offers; /* for each vault */
    uint64_t *sizes;                    /* the largest version that each worker place has kept */
    bool hashing;
    struct mu_list copiers;
    struct mu_list fetches;
    bool said_whole; /* in this round */
    bool said_room;
    bool said_fast;
};

/* kept_offer.c */
/** Makes it, if copies are wanted. A failure is said, and there are none. */
void mu_agent_copies_start(struct mu_agent_service *s);
void mu_agent_copies_fini(struct mu_agent_service *s);
/** Listens, if it does not yet. False: there are no copies. */
bool mu_agent_copies_listen(struct mu_agent_copies *c);
/** To be called soon after something has changed. */
void mu_agent_copies_wake(struct mu_agent_copies *c);
/** Has a version in our workers' vaults given to others. */
void mu_agent_copies_want(struct mu_agent_copies *c, const struct mu_kept_version *version,
                          bool replicated, uint32_t rank);
/** Writes the name under which the states of a rank are found. */
void mu_agent_copies_prefix(char out[MU_AGENT_KEPT_PREFIX_CAP], bool replicated, uint32_t rank);

/* kept_place.c */
/** Reads what an offer of another agent is of. False: nothing that we take. */
bool mu_agent_place_head(const struct mu_agent_copies *c, const struct mu_state_offer *offer,
                         struct mu_kept_head *ret);
/** Makes its memory, if it has none. MUSTER_ENOMEM, a negated errno. */
int mu_agent_place_make(struct mu_agent_kept_place *p);
/** Has a version put into it. MUSTER_ENOMEM. */
int mu_agent_place_plan(struct mu_agent_kept_place *p, struct mu_state_plan *plan);
/** It is all there: takes the share, writes the head, and gives it to others. */
void mu_agent_place_whole(struct mu_agent_kept_place *p, const struct mu_kept_head *head,
                          struct mu_state_share *share);
/** Gives it to others again. */
void mu_agent_place_give(struct mu_agent_kept_place *p);
/** Whether nobody uses its memory but us. If somebody does, it is given to nobody else. */
bool mu_agent_place_free(struct mu_agent_kept_place *p);
/** Lets go of its memory; nobody may use it. */
void mu_agent_place_fini(struct mu_agent_kept_place *p);

/* kept_copy.c */
/** The workers of a round start: from now on the states of its sources are copied. */
void mu_agent_copiers_begin(struct mu_agent_copies *c, struct mu_agent_round *r);
/** This node of the round is a source: it has these ranks, and gives what it has at `addr`. */
void mu_agent_copiers_source(struct mu_agent_copies *c, const char *addr, uint32_t base,
                             uint32_t workers);
/** Where a rank finds a version among our copies. NULL: nowhere. */
const struct mu_vault *mu_agent_copiers_find(const struct mu_agent_copies *c,
                                             const struct mu_kept_answer *answer, uint32_t rank);
/** Appends the heads of all whole copies. */
void mu_agent_copiers_report(const struct mu_agent_copies *c, struct mu_kept_holding *holding);
/** The round of copiers is over. */
void mu_agent_copiers_end(struct mu_agent_copies *c);
void mu_agent_copiers_look(struct mu_agent_copies *c);
/** Ends all of them; true: none is left. */
bool mu_agent_copiers_idle(struct mu_agent_copies *c);

/* kept_fetch.c */
/** Fetches what the plan says, from `count` of its nodes, whose holdings these are:
 * mu_agent_fetches_ended() follows, perhaps at once. */
void mu_agent_fetches_begin(struct mu_agent_round *r, const struct mu_kept_holding *holdings,
                            const uint32_t *nodes, size_t count);
/** Which nodes we fetch from, each once, at most `cap`. */
size_t mu_agent_fetches_nodes(const struct mu_agent_round *r, uint32_t *ret, size_t cap);
/** Has given to others what the plan says that we give. */
void mu_agent_fetches_give(struct mu_agent_round *r);
/** As of copiers. */
const struct mu_vault *mu_agent_fetches_find(const struct mu_agent_copies *c,
                                             const struct mu_kept_answer *answer, uint32_t rank);
void mu_agent_fetches_report(const struct mu_agent_copies *c, struct mu_kept_holding *holding);
/** The round does not wait for them any more. */
void mu_agent_fetches_cancel(struct mu_agent_copies *c, const struct mu_agent_round *r);
void mu_agent_fetches_look(struct mu_agent_copies *c);
bool mu_agent_fetches_idle(struct mu_agent_copies *c);

/* kept_plan.c */
/** Adds what we hold to the second key and value of our report. False: there are no copies. */
bool mu_agent_plan_report(struct mu_agent_round *r);
/** The round's reports are with node 0's agent, which is this one: it reads what all hold, and
 * decides. */
void mu_agent_plan_begin(struct mu_agent_round *r);
/** Node 0 has decided, with copies. Takes the plan. */
void mu_agent_plan_take(struct mu_agent_round *r, struct mu_kept_plan *plan);
/** All that we had to fetch is there, or not. */
void mu_agent_fetches_ended(struct mu_agent_round *r, bool all);

/* kept.c */
void mu_agent_kept_submit(struct mu_agent_round *r, enum mu_store_verb verb, size_t keys,
                          size_t values, uint32_t timeout_ms, void (*done)(struct mu_store_op *op));
/** Whether the round goes on after an operation. If not, it ends or was told why. */
bool mu_agent_kept_goes_on(struct mu_agent_round *r);
/** Makes the keys of all nodes, with this at their beginning, in r->kept.keys. MUSTER_ENOMEM. */
int mu_agent_kept_keys(struct mu_agent_round *r, const char *prefix, const uint32_t *nodes,
                       size_t count);
/** Writes what node 0 has decided without copies. */
void mu_agent_kept_answer(struct mu_agent_round *r);
/** It is decided; the workers of all nodes load this. */
void mu_agent_kept_settled(struct mu_agent_round *r, const struct mu_kept_answer *answer);

#endif

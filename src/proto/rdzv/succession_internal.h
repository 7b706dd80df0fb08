/*
 * What the files of the machine share. succession.c has the voter, succession_walk.c its way along
 * the line, succession_claim.c the candidate and those who ask it, succession_host.c the host, and
 * succession_say.c the texts.
 */
#ifndef MU_SUCCESSION_INTERNAL_H
#define MU_SUCCESSION_INTERNAL_H

#include "proto/rdzv/succession.h"

/* No honest node comes near it, and one more than it is still a term. */
#define MU_SUCCESSION_TERM_MAX (UINT64_MAX / 2)

static inline struct mu_succession_asker *mu_succession_asker_of(const struct mu_list *link)
{
    return MU_CONTAINER_OF(link, struct mu_succession_asker, link);
}

static inline struct mu_succession_peer *mu_succession_peer_of(const struct mu_list *link)
{
    return MU_CONTAINER_OF(link, struct mu_succession_peer, link);
}

/* An endpoint that was started anew may begin another incarnation of the run, whose rounds have the
 * same numbers; they have nothing in common with the others. */
static inline bool mu_electorate_same(const struct mu_electorate *a, const struct mu_electorate *b)
{
    return a->term == b->term && a->round == b->round && a->world == b->world &&
           a->incarnation == b->incarnation;
}

/* Whether it goes on without a majority. */
static inline bool mu_succession_is_any(const struct mu_succession *m)
{
    return m->config.mode == MU_SUCCESSION_ANY || m->insists;
}

/* --- the voter: succession.c ------------------------------------------------------------- */

/* Returns the action, which is the last; the caller fills it in. */
struct mu_succession_action *mu_succession_push(struct mu_succession *m,
                                                enum mu_succession_action_type type);
/* Sets a text of MU_SUCCESSION_NAME_MAX, cut. */
void mu_succession_set(char *text, const char *from);
/* The rank by which a node with that view votes, or NO_RANK. */
uint32_t mu_succession_vote(const struct mu_succession_view *view, const struct mu_electorate *in);
bool mu_succession_legacy_newer(const struct mu_succession_legacy *a,
                                const struct mu_succession_legacy *b);
/* Drops what no host could have told. */
void mu_succession_sanitise(struct mu_succession_view *view);
/* Joins that host: FOLLOW. */
void mu_succession_turn(struct mu_succession *m, uint64_t term, const char *address);

/* --- the walk: succession_walk.c --------------------------------------------------------- */

/* Asks at home and nowhere else, or stands there. */
void mu_succession_walk(struct mu_succession *m, mu_mono_t now);
/* Patience is over: visits the next entry, or asks anew at home. */
void mu_succession_walk_on(struct mu_succession *m, mu_mono_t now);
/* The first entry is home, until it is asked. */
void mu_succession_walk_home(struct mu_succession *m);
void mu_succession_hang_up(struct mu_succession *m);
/* Whether an ask is under way that promises a term. */
bool mu_succession_has_promised(const struct mu_succession *m);
/* Starts the wait that ends with `give_up`. */
void mu_succession_wait(struct mu_succession *m, mu_mono_t now);

/* --- the candidate: succession_claim.c --------------------------------------------------- */

/* What all votes together come to. */
struct mu_succession_tally {
    const struct mu_succession_view *view; /* the latest of all */
    uint32_t votes[MU_SUCCESSION_CONFIGS]; /* in each of its electorates */
    uint32_t lacking;                      /* index of the one that lacks most; count: none */
};

/* Counts those who have promised `term`; 0: those who would promise. */
void mu_succession_count(const struct mu_succession *m, uint64_t term,
                         struct mu_succession_tally *ret);
/* Claims a term if enough would promise; hosts it if enough have promised. */
void mu_succession_consider(struct mu_succession *m, mu_mono_t now);
/* Hosts a new term with what there is, if that is anything. */
void mu_succession_seize(struct mu_succession *m, mu_mono_t now);
void mu_succession_answer_all(struct mu_succession *m, uint64_t term, const char *address);
/* We have left: all are answered so. */
void mu_succession_refuse(struct mu_succession *m);

/* --- the host: succession_host.c --------------------------------------------------------- */

/* `bases` are set. */
void mu_succession_host(struct mu_succession *m, mu_mono_t now, uint64_t term);
/* Hosts no more, and joins the host at the address; "": stands. */
void mu_succession_step_down(struct mu_succession *m, mu_mono_t now, uint64_t term,
                             const char *address);
/* Whether a node was told more than we can have told: we host a run that we do not know. */
bool mu_succession_is_unknown(const struct mu_succession *m, const struct mu_succession_view *view);
/* How many voters of that base are READY, and whether these are enough. */
uint32_t mu_succession_count_ready(const struct mu_succession *m, uint32_t base);
bool mu_succession_is_ready(const struct mu_succession *m, uint32_t base);
/* MU_SUCCESSION_ANY commits without READY, but after PREPARE. */
void mu_succession_commit_any(struct mu_succession *m);
void mu_succession_probe_tick(struct mu_succession *m, mu_mono_t now);

#endif

/* What the parts of the matchmaker share: matchmaker.c has its life and its time,
 * matchmaker_follow.c whom it follows, matchmaker_lead.c who follows it. */
#ifndef MU_MATCHMAKER_INTERNAL_H
#define MU_MATCHMAKER_INTERNAL_H

#include "proto/average/matchmaker.h"

struct mu_matchmaker_follower {
    uint64_t number;
    struct mu_peer_id peer;
    uint8_t *gather; /* owned */
    size_t gather_len;
};

struct mu_matchmaker_candidate {
    struct mu_peer_id peer;
    double expiration;
    bool tried;
};

struct mu_matchmaker_note {
    enum mu_matchmaker_event_type type;
    uint64_t number;
    double expiration;      /* DECLARE, LEAVE, CALL */
    struct mu_peer_id peer; /* CALL */
    enum mu_avg_code code;  /* REPLY */
    bool last;              /* REPLY */
    bool suggest;           /* REPLY: with our leader, in `peer` */
};

static inline double mu_matchmaker_wall(struct mu_now now)
{
    return (double)now.wall.ns / 1e9;
}

static inline bool mu_matchmaker_is_finite(double x)
{
    return x - x == 0;
}

/** Below, equal to or above zero, by the bytes of the ids. */
int mu_matchmaker_compare_peers(const struct mu_peer_id *a, const struct mu_peer_id *b);
/** When `wall` will be, by the monotonic clock. */
mu_mono_t mu_matchmaker_when(struct mu_now now, double wall);
/** The time that we would declare now. */
double mu_matchmaker_next_time(const struct mu_matchmaker *m, struct mu_now now);
void mu_matchmaker_declare(struct mu_matchmaker *m, struct mu_now now);
void mu_matchmaker_note(struct mu_matchmaker *m, struct mu_matchmaker_note note);
void mu_matchmaker_end(struct mu_matchmaker *m, int status, const char *text);
/** Reads the group from `begin`. MUSTER_EPROTO: it is none that we can be in. */
int mu_matchmaker_read_group(struct mu_matchmaker *m, struct mu_avg_reply *ret,
                             uint32_t *ret_position);

/* --- matchmaker_follow.c ---------------------------------------------------------------------- */

/** Does what the search needs next: a question, a read of the bucket. */
void mu_matchmaker_search(struct mu_matchmaker *m, struct mu_now now);
/** Gives up the peer that we ask or follow, if there is one, and goes on searching. */
void mu_matchmaker_unfollow(struct mu_matchmaker *m, struct mu_now now, bool hang_up);

/* --- matchmaker_lead.c ------------------------------------------------------------------------ */

/** Sends all followers away, with the name of our leader if we have one. */
void mu_matchmaker_disband(struct mu_matchmaker *m);
/** Makes a group of the followers and us. */
void mu_matchmaker_assemble(struct mu_matchmaker *m);

#endif

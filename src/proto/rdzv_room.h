/*
 * A room: one run of a rendezvous, kept by the server. The native form of what proto/rdzv_node.h does
 * over a compare-and-set cell: here the server holds the state, a node says once that it wants in,
 * and is pushed what it needs to know. A decision machine: calls and the time go in, notices are
 * pulled.
 *
 *     mu_room_join(&room, now, &member, &config)      a node wants in
 *     mu_room_leave(&room, now, &member)              it wants out, with grace
 *     mu_room_lost(&room, now, &member)               it is gone without a word: its session ended
 *     mu_room_close(&room, now)                       the run is over
 *     mu_room_tick(&room, now)  mu_room_deadline()    last call, batching of late-comers
 *     while (mu_room_next_notice(&room, &member, &notice)) { push it to that member }
 *
 * A round goes through
 *
 *     GATHERING --(max reached | target met | min reached and last call over)--> RUNNING
 *         ^                                                                         |
 *         |   a member was lost, or left before the end, or late-comers are let in  |
 *         +-------------------------------------------------------------------------+
 *     CLOSED from anywhere; a room that is closed and empty can be opened again as a new incarnation
 *
 * and every rule that PyTorch's users ask for in vain is a rule here:
 *
 *  - nobody waits out the last call when the maximum is reached or an announced target is met;
 *  - a lost member ends the round for the survivors at once: each is told ENDED with who was lost and
 *    is back in the next gathering without asking again, unless it leaves;
 *  - late arrivals while a round is running and has room are batched (`upscale_delay`) and then end
 *    the round once, for all of them together; with no room they are spares: they stay, connected,
 *    and are promoted into the next round in order of arrival;
 *  - survivors keep their rank where the world's size allows; newcomers fill the gaps; first of all
 *    comes a topology key that the user may give, then the natural order of names (node2 before
 *    node10), then the order of arrival;
 *  - two worlds never exist for one run: a round's number is given once, ranks are given only when the
 *    round before it has ended for everybody who is still there (they are told before);
 *  - a closed run can be opened again under the same id as a new incarnation; nodes of the old one are
 *    fenced by its number;
 *  - the restart budget (`restarts_max`) is kept here, for the run, not per node: rounds that end
 *    because a member was lost or failed count, those that end to let somebody in do not;
 *  - a timeout can say who is there and how many are missing (mu_room_explain()).
 *
 * Cost: a round among N costs O(N log N) time and O(N) notices; a notice does not carry the list of
 * members, which a member asks for if it wants it.
 */
#ifndef MU_RDZV_ROOM_H
#define MU_RDZV_ROOM_H

#include "core/err.h"
#include "core/list.h"
#include "core/span.h"
#include "core/time.h"
#include "core/trace.h"

#define MU_ROOM_NAME_MAX     255
#define MU_ROOM_TOPOLOGY_MAX 255

/* What all members of a run must agree on: the first one sets it, others are refused if they differ
 * in min or max (MUSTER_EINVAL, in words). */
struct mu_room_config {
    uint32_t nodes_min;
    uint32_t nodes_max;
    uint64_t last_call_ms;     /* after the minimum is there. 30 s in PyTorch; ours 1 s */
    uint64_t upscale_delay_ms; /* how long late-comers are gathered before a running round ends. 1 s */
    uint32_t restarts_max;     /* UINT32_MAX: no bound */
    uint32_t members_max;      /* spares and waiters included. 65,536 */
    struct mu_trace trace;
};

enum mu_room_member_state {
    MU_ROOM_OUT = 0,
    MU_ROOM_GATHERING, /* in the round that is being formed */
    MU_ROOM_RUNNING,   /* has a rank in the round that runs */
    MU_ROOM_WAITING,   /* came late; there will be room in the next round */
    MU_ROOM_SPARE,     /* came late; there is no room */
};

/* One member. Embedded by whoever speaks for the node; zeroed before the first use. */
struct mu_room_member {
    void *owner; /* the caller's */
    char name[MU_ROOM_NAME_MAX + 1];
    char topology[MU_ROOM_TOPOLOGY_MAX + 1];
    uint32_t target; /* it announces how many nodes there will be in all; 0: it does not know */
    enum mu_room_member_state state;
    uint32_t rank; /* in the round that runs, or the last one it ran in */
    bool has_rank;
    uint64_t arrival; /* private from here: the order of arrival */
    struct mu_list link;
    struct mu_list noticed;
    uint32_t notices; /* a set of bits, one for each kind below */
};

enum mu_room_notice_kind {
    MU_ROOM_ASSIGNED = 1, /* round, rank, world, restarts left */
    MU_ROOM_ENDED,        /* the round is over: why, and the first member that was lost, if any */
    MU_ROOM_WAITERS,      /* how many wait to be let in */
    MU_ROOM_CLOSED,       /* the run is over; the member is out */
    MU_ROOM_FAILED,       /* the restart budget is spent; the member is out */
};

enum mu_room_end_reason {
    MU_ROOM_END_LOST = 1, /* a member is gone without a word */
    MU_ROOM_END_LEFT,     /* a member left */
    MU_ROOM_END_UPSCALE,  /* late-comers are let in */
};

struct mu_room_notice {
    enum mu_room_notice_kind kind;
    uint64_t incarnation;
    uint64_t round;
    uint32_t rank;
    uint32_t world;
    uint32_t restarts_left;
    uint32_t waiters;
    enum mu_room_end_reason reason;
    const char *who; /* the member that was lost or left; lent until the next call */
    uint32_t who_rank;
};

struct mu_room;

int mu_room_init(struct mu_room *room, const struct mu_room_config *config, uint64_t incarnation);
/** No member may be in it. */
void mu_room_fini(struct mu_room *room);

/**
 * A node wants in; it stays until it leaves, is lost, or is told CLOSED or FAILED. MUSTER_EINVAL (min,
 * max or name do not fit, in words), MUSTER_EEXIST (that name is in already: a fast rejoin whose old
 * session has not ended yet; the caller should end that one first), MUSTER_ELIMIT, MUSTER_ECLOSED.
 */
int mu_room_join(struct mu_room *room, mu_mono_t now, struct mu_room_member *member,
                 uint32_t nodes_min, uint32_t nodes_max, struct mu_errmsg *reterr_msg);
void mu_room_leave(struct mu_room *room, mu_mono_t now, struct mu_room_member *member);
void mu_room_lost(struct mu_room *room, mu_mono_t now, struct mu_room_member *member);
void mu_room_close(struct mu_room *room, mu_mono_t now);

mu_mono_t mu_room_deadline(const struct mu_room *room);
void mu_room_tick(struct mu_room *room, mu_mono_t now);
bool mu_room_next_notice(struct mu_room *room, struct mu_room_member **ret_member,
                         struct mu_room_notice *ret_notice);
/** The members of the running round in order of rank: calls `each` for every one of them. */
void mu_room_each_ranked(const struct mu_room *room,
                         void (*each)(void *context, const struct mu_room_member *member),
                         void *context);
/** One sentence on what the gathering waits for: "3 of 4 nodes are here: a, b, c". */
void mu_room_explain(const struct mu_room *room, char *text, size_t cap);

#endif

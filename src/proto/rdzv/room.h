/*
 * A room: one run of a rendezvous, kept by the server. It is the native form of what
 * proto/rdzv/node.h does over a compare-and-set register: here the server holds the state, a node
 * asks once to join, and the server pushes what it needs to know. It is a decision machine: calls
 * and the time go in, notices are pulled.
 *
 *     mu_room_join(&room, now, &member, 2, 4, &errmsg)  a node joins
 *     mu_room_leave(&room, now, &member)                it leaves, with grace
 *     mu_room_lost(&room, now, &member)                 it vanished
 *     mu_room_fail(&room, now, &member, round)          its workers failed; it stays
 *     mu_room_stop(&room, now, &member, round)          it has stopped them, or counts as lost
 *     mu_room_hold(&room, now, until)                   workers of a lost node may run until then
 *     mu_room_doubt(&room, now, until)                  nodes that are lost now are noticed by then
 *     mu_room_be_sure(&room, now)                       all of them were heard since
 *     mu_room_close(&room, now)                         the run is over
 *     mu_room_tick(&room, now)  mu_room_deadline()      last call, batching of late nodes
 *     while (mu_room_next_notice(&room, &member, &notice)) { push it to that member }
 *
 * A round goes through
 *
 *     GATHERING --(max reached | target met | min reached and last call over)--> RUNNING
 *         ^                                                                         |
 *         |   a member was lost, left or failed, or late nodes are let in           |
 *         +-------------------------------------------------------------------------+
 *     CLOSED from any state, FAILED when the restart budget is spent or too many members were lost;
 *     a room that is one of the two, and done, can be opened again as a new incarnation
 *
 * and these are its rules, which PyTorch's users ask for in vain:
 *
 *  - the last call is over when no node has come for its time (a node that comes renews it, up to
 *    MU_ROOM_LAST_CALLS times its length in all), and at once when the maximum is reached or every
 *    announced target is met; right after a round whose survivors are enough it takes a quarter
 *    (MU_ROOM_REGROUP): long enough for a failure of workers and the loss of a node behind it, or
 *    for a rack, to be one restart;
 *  - a lost member ends the round for the survivors at once: each is told ENDED with the lost
 *    member's name and is in the next gathering without asking again, unless it leaves;
 *  - late arrivals while a round is running and has room are batched (`upscale_delay_ms`) and then
 *    end the round once, for all of them together; the round after it is formed in the same moment,
 *    since the batching was its last call. There is no batching when no other node can come: when
 *    the late nodes fill the room, or meet the targets that the running round missed. Without room
 *    they are spares: they stay connected. For a member that is lost or leaves, the spare whose
 *    topology key is nearest to its own is promoted into the next round, and of several the one
 *    that came first;
 *  - survivors keep their rank where the world's size allows. A place that was lost goes to a node
 *    of the same name, if it is back; else to one with the same topology key; else to the one whose
 *    key has most parts in common with it ("zone2/rack7" and "zone2/rack9": one). The rest fill the
 *    gaps, ordered by topology key, then by name, both in natural order (node2 before node10), so
 *    that the same fleet gets the same ranks in whatever order it arrives;
 *  - two worlds never exist for one run: a round's number is given once, and every member that is
 *    still there and was told of a round is told of its end before any member is told a rank in the
 *    next;
 *  - a closed run can be opened again under the same id as a new incarnation; nodes of the old one
 *    are fenced by its number;
 *  - the restart budget (`restarts_max`) is kept here, for the run, not per node. It is for workers
 *    that failed by themselves: members that are lost, leave or are let in cost nothing;
 *  - workers end when they lose a peer, mostly before its loss is noticed. So a failure is in doubt
 *    for a time that the driver sets (mu_room_doubt()): if a member is lost or leaves meanwhile,
 *    the failure was the echo of that, and costs nothing. A failure that would spend more than the
 *    budget ends the run only when it is no longer in doubt; until then no round begins;
 *  - a run that loses members without end is in a loop: it fails when more rounds have ended
 *    because of losses than config.losses allows;
 *  - no round begins before a time that the driver sets (mu_room_hold()): a member that is out of
 *    reach, and not certainly dead, has until then to stop its workers;
 *  - a node that fails too often (config.exclude), or that somebody names (mu_room_exclude()), is
 *    not let in for a time. A failure counts for the member whose workers failed first in a round,
 *    unless it was the echo of a loss, and a loss for the member that was lost. A member that is
 *    excluded while it is in has to go, and for the others it left;
 *  - after a timeout, mu_room_explain() names the nodes that are there, how many are missing, and
 *    those that ran in the last round and are not back.
 *
 * Notices: everything that is pending for a member is merged. A member that was never told of a
 * round is not told of its end either; CLOSED and FAILED replace everything that was pending.
 *
 * Cost: a round among N costs O(N log N) time and O(N) notices; a notice does not carry the list of
 * members, which a member asks for if it wants it. No transition allocates; only a join can run out
 * of memory, and then nothing has changed.
 */
#ifndef MU_RDZV_ROOM_H
#define MU_RDZV_ROOM_H

#include "core/err.h"
#include "core/heap.h"
#include "core/list.h"
#include "core/map.h"
#include "core/span.h"
#include "core/time.h"
#include "core/trace.h"
#include "proto/rdzv/exclusions.h"
#include "proto/rdzv/losses.h"

#define MU_ROOM_NAME_MAX     255
#define MU_ROOM_TOPOLOGY_MAX 255
/* How many times shorter the last call is right after a round, if enough nodes are left. */
#define MU_ROOM_REGROUP 4
/* For how many times its length nodes that come can keep the last call open. */
#define MU_ROOM_LAST_CALLS 10
/* How often members are told of a changed number of waiting nodes, in milliseconds. */
#define MU_ROOM_WAITERS_MS UINT64_C(1000)
/* How many places that were lost since the last round are kept, to be given to the right nodes. */
#define MU_ROOM_PLACES_MAX 16

/* What all members of a run must agree on: the first one sets it, others are refused if they differ
 * in min or max (MUSTER_EINVAL, with a message). */
struct mu_room_config {
    uint32_t nodes_min;    /* at least 1 */
    uint32_t nodes_max;    /* at least nodes_min */
    uint64_t last_call_ms; /* without a newcomer, once the minimum is there; UINT64_MAX: only a full
                              room or a target forms a round. 30 s in PyTorch; ours 1 s */
    uint64_t upscale_delay_ms; /* how long late nodes are gathered before a running round ends;
                                  UINT64_MAX: they never end one. 1 s */
    uint32_t restarts_max;     /* UINT32_MAX: no limit */
    struct mu_losses losses;   /* how often members may be lost */
    struct mu_exclude_policy exclude; /* when a node that fails is not let in; off */
    uint32_t members_max; /* includes spares and waiting nodes; at least nodes_max. 65,536 */
    uint64_t seed;        /* of the table of names, against chosen collisions */
    struct mu_trace trace;
};

enum mu_room_member_state {
    MU_ROOM_OUT = 0,
    MU_ROOM_GATHERING, /* in the round that is being formed */
    MU_ROOM_RUNNING,   /* has a rank in the round that runs */
    MU_ROOM_WAITING,   /* came late; there will be room in the next round */
    MU_ROOM_SPARE,     /* came late; there is no room */
};

/** All states but OUT, in the order in which members are listed. */
#define MU_ROOM_STATES_IN 4
extern const enum mu_room_member_state mu_room_states_in[MU_ROOM_STATES_IN];

enum mu_room_notice_kind {
    MU_ROOM_ASSIGNED = 1, /* round, rank, world, restarts left */
    MU_ROOM_ENDED,        /* the round is over: the reason, and the member that caused it, if any */
    MU_ROOM_WAITERS,      /* how many nodes wait to be let in: told when the first one comes, then,
                             if it changes, once in a while (MU_ROOM_WAITERS_MS) */
    MU_ROOM_CLOSED,       /* the run is over; the member is out */
    MU_ROOM_FAILED,       /* the restart budget is spent, or too many members were lost; the member
                             is out. The reason is as in ENDED */
    MU_ROOM_EXCLUDED,     /* the member is out, and not let in: mu_room_explain_exclusion() */
};

enum mu_room_end_reason {
    MU_ROOM_END_LOST = 1, /* a member vanished, or was out of reach for too long */
    MU_ROOM_END_LEFT,     /* a member left */
    MU_ROOM_END_UPSCALE,  /* late nodes are let in */
    MU_ROOM_END_FAILED,   /* a member's workers failed; it is still there */
};

/* The last round of a member in a room that this one succeeds. */
struct mu_room_before {
    bool known;
    uint64_t round;
    uint32_t rank;
};

/*
 * One member. The caller embeds it, fills in the first six fields and leaves the rest zeroed
 * before the first join. It must stay in its place while it is in the room, and until its notices
 * were pulled or it was given up with mu_room_leave() or mu_room_lost().
 */
struct mu_room_member {
    void *owner;                     /* the caller's */
    char name[MU_ROOM_NAME_MAX + 1]; /* not empty, no control characters */
    char topology[MU_ROOM_TOPOLOGY_MAX + 1];
    char machine[MU_ROOM_NAME_MAX + 1]; /* "": only its name is known */
    uint32_t target; /* how many nodes there will be in all, as it announces; 0: it does not know */
    struct mu_room_before before;
    enum mu_room_member_state state;
    uint32_t rank; /* in the running round, or in the last one that it ran in */
    bool has_rank;
    bool finished;                  /* its workers have ended well: leaving it is no loss */
    uint64_t arrival;               /* its number among all joins of the room */
    bool told;                      /* private from here: it was told that it is in the running
                                       round */
    enum mu_room_member_state was;  /* its state before it was told CLOSED or FAILED */
    uint32_t notices;               /* what is pending: one bit for each kind */
    enum mu_room_end_reason reason; /* of the end that is pending, as are the next two */
    uint32_t who_rank;
    uint64_t ended_round;
    struct mu_map_node named;
    struct mu_heap_node targeted;
    struct mu_list link;  /* in the list of members in the same state */
    struct mu_list ended; /* in the list of members with a pending ENDED */
    struct mu_list news;  /* in the list of members with other notices pending */
};

/* Members that a kind does not use are zero. */
struct mu_room_notice {
    enum mu_room_notice_kind kind;
    uint64_t incarnation;
    uint64_t round; /* ASSIGNED: the one that begins; ENDED, FAILED: the one that is over */
    uint32_t rank;  /* ASSIGNED */
    uint32_t world;
    uint32_t restarts_left; /* UINT32_MAX: no limit */
    uint32_t waiters;
    enum mu_room_end_reason reason;
    const char *who; /* the member that was lost, left or failed; lent until the next call. NULL: no
                        member is the reason, or a later round has also ended before this notice was
                        pulled, and the name is no longer known */
    uint32_t who_rank;
    /* CLOSED, FAILED: what the member was. A spare ends with grace. */
    enum mu_room_member_state was;
};

enum mu_room_state {
    MU_ROOM_IS_GATHERING = 1,
    MU_ROOM_IS_RUNNING,
    MU_ROOM_IS_CLOSED,
    MU_ROOM_IS_FAILED,
};

/* The place in the last round of a member that is out. */
struct mu_room_place {
    char name[MU_ROOM_NAME_MAX + 1]; /* of the member */
    char topology[MU_ROOM_TOPOLOGY_MAX + 1];
    uint32_t rank;
    bool missing; /* it was lost, and no node of that name is back */
};

/* What a room knows of the run that another one, which is lost, has served before it. */
struct mu_room_legacy {
    uint64_t round;         /* the last number that may have been given */
    uint32_t restarts;      /* that were spent */
    mu_mono_t losses_until; /* when all losses so far are forgotten */
    uint32_t expected;      /* once so many are here, nobody else is waited for; 0: not known */
    uint32_t ran;           /* so many of the last round are waited for, even if enough are here */
    struct mu_room_place place; /* of the member that was lost with the room; name "": not known */
};

/* The members that are in one state. */
struct mu_room_group {
    struct mu_list members;
    uint32_t count;
};

/* Other files read these and do not write them. */
struct mu_room {
    struct mu_room_config config;
    enum mu_room_state state;
    uint64_t incarnation;
    uint64_t round;    /* the running round, or the next one */
    uint32_t restarts; /* how many of restarts_max are used up */
    /*
     * By state. GATHERING: survivors by their old rank, then the others as they came; RUNNING: by
     * rank; WAITING and SPARE: as they came, every spare later than every waiting member. While the
     * room gathers no member is WAITING, and there are spares only if it is full and held; while it
     * runs no member is GATHERING. In a room that succeeds another, the first gathering is those
     * who ran there, as they came, and the others are spares.
     */
    struct mu_room_group in[MU_ROOM_SPARE + 1];
    struct mu_map names;    /* of all members */
    struct mu_heap targets; /* targets of all members that announced one; the root is the largest */
    mu_mono_t last_call;    /* when the gathering ends */
    uint64_t call_ms;       /* private: its length this time */
    mu_mono_t call_end;     /* private: newcomers do not renew it beyond this */
    bool newcomer;          /* private: one has come since */
    mu_mono_t hold;         /* no round begins before it */
    mu_mono_t losses_until; /* private: when all losses so far are forgotten */
    bool too_many_losses;   /* FAILED: why */
    bool regroups;          /* private: a round has just ended */
    uint32_t expected;      /* private: of the first gathering after another room's; or 0 */
    uint32_t ran;           /* private: likewise, of those who ran there */
    bool succeeds;          /* private: no round was formed since that room was lost */
    mu_mono_t sure;         /* failures before it are in doubt */
    uint32_t doubted;       /* private: how many restarts these have cost */
    bool undecided;         /* a failure is in doubt, and would be the end of the run */
    mu_mono_t doubt_since;  /* private: when the first of them failed */
    struct mu_exclusions exclusions;
    mu_mono_t seen;         /* the time of the last call */
    mu_mono_t upscale;      /* when the running round ends to let late nodes in */
    mu_mono_t waiters_next; /* when the running members may be told of waiting nodes again */
    uint32_t waiters_told;
    struct mu_list ended; /* members that must be told the end of a round, before all else */
    struct mu_list news;  /* members that must be told something else */
    struct {
        uint64_t round;
        enum mu_room_end_reason reason; /* 0: no round has ended yet */
        bool has_who;
        uint32_t who_rank;
        char who[MU_ROOM_NAME_MAX + 1];
    } last_end;
    struct mu_room_place places[MU_ROOM_PLACES_MAX]; /* by rank */
    uint32_t place_count;
    bool missing_more; /* more were lost than could be kept */
    /* Counters for statistics. A step is a member that was looked at or moved. */
    uint64_t rounds;
    uint64_t notices;
    uint64_t arrivals;
    uint64_t promoted; /* spares */
    uint64_t steps;
};

/** Returns MUSTER_EINVAL if min, max or members_max do not fit each other. */
int mu_room_init(struct mu_room *room, const struct mu_room_config *config, uint64_t incarnation);
/** No member may be in the room. Notices that were not pulled are dropped. */
void mu_room_fini(struct mu_room *room);
/**
 * Returns whether the run is over and every member was told: the room can be given up, or finished
 * and initialised again with a higher incarnation.
 */
bool mu_room_done(const struct mu_room *room);

/**
 * A node joins; it stays until it leaves, is lost, or is told CLOSED or FAILED. Its state is in
 * member->state. Borrows the member as described there. MUSTER_ECLOSED, MUSTER_ERDZV_EXCLUDED,
 * MUSTER_EINVAL (min, max,
 * name or topology do not fit), MUSTER_EEXIST (that name is in already: a fast rejoin whose old
 * session has not ended yet; the caller should end that one first, with mu_room_find() and
 * mu_room_lost()), MUSTER_ELIMIT, MUSTER_ENOMEM; all with a message.
 */
int mu_room_join(struct mu_room *room, mu_mono_t now, struct mu_room_member *member,
                 uint32_t nodes_min, uint32_t nodes_max, struct mu_errmsg *reterr_msg);
/** Returns the member of that name, or NULL. */
struct mu_room_member *mu_room_find(const struct mu_room *room, struct mu_span name);
/**
 * The member is out and is told nothing more; its memory is the caller's again. If it ran, the
 * round ends for the others. Harmless for a member that is out.
 */
void mu_room_leave(struct mu_room *room, mu_mono_t now, struct mu_room_member *member);
/** The same as mu_room_leave(), and the others count it as missing. */
void mu_room_lost(struct mu_room *room, mu_mono_t now, struct mu_room_member *member);
/**
 * The member's workers failed in that round: the round ends for all members, which counts against
 * the restart budget, unless a member is found to be lost while the failure is in doubt; the member
 * stays, with its rank. Nothing happens if that round does not run any more, because another member
 * was faster.
 */
void mu_room_fail(struct mu_room *room, mu_mono_t now, struct mu_room_member *member,
                  uint64_t round);
/**
 * The same as mu_room_fail(), but no workers failed by themselves: the member has stopped its own
 * because it was out of reach, or counts as lost. It costs no restart, and the reason is LOST.
 */
void mu_room_stop(struct mu_room *room, mu_mono_t now, struct mu_room_member *member,
                  uint64_t round);
/** The member's workers have all ended well, and it is about to leave: that is no loss which others
 * could have noticed. */
void mu_room_finish(struct mu_room_member *member);
/**
 * Does not let a node in for that long, by its name, its host or its machine; members that are it
 * are told EXCLUDED. MUSTER_EINVAL (no name, no time, too long, control characters), with a
 * message; MUSTER_ENOMEM.
 */
int mu_room_exclude(struct mu_room *room, mu_mono_t now, struct mu_span who, struct mu_span reason,
                    uint64_t for_ms, struct mu_errmsg *reterr_msg);
/** Lets a node in again, by the same. Returns how many exclusions, and counts of failures, were
 * forgotten. */
uint32_t mu_room_include(struct mu_room *room, struct mu_span who);
/** Writes why a node is not let in, and what helps. */
void mu_room_explain_exclusion(const struct mu_room *room, mu_mono_t now,
                               const struct mu_room_member *member, struct mu_errmsg *ret);
/** No round begins before `until`. A later time that was set before stays. */
void mu_room_hold(struct mu_room *room, mu_mono_t now, mu_mono_t until);
/** A failure is in doubt until then, if no later time was set before. */
void mu_room_doubt(struct mu_room *room, mu_mono_t now, mu_mono_t until);
/** What is in doubt stays so until then at least: a member may be lost, and nobody knows yet. */
void mu_room_doubt_on(struct mu_room *room, mu_mono_t until);
/** No failure is in doubt any more: all members that ran were heard since. */
void mu_room_be_sure(struct mu_room *room, mu_mono_t now);
/** Sets how many restarts were spent before this room was opened, as far as is known. */
void mu_room_inherit(struct mu_room *room, uint32_t spent);
/**
 * Goes on where another room was, before anybody has joined: rounds are counted from there, its
 * loss is one, and the last call is as short as after a round. Members that ran there keep their
 * rank (mu_room_member.before); the others stand by until the round is formed, and get the rest.
 */
void mu_room_succeed(struct mu_room *room, mu_mono_t now, const struct mu_room_legacy *past);
/** Closes the run: all members are out, and are told CLOSED. Harmless if it is closed already. */
void mu_room_close(struct mu_room *room, mu_mono_t now);

/** Returns when mu_room_tick() has something to do. A late or needless tick is harmless. */
mu_mono_t mu_room_deadline(const struct mu_room *room);
void mu_room_tick(struct mu_room *room, mu_mono_t now);
bool mu_room_next_notice(struct mu_room *room, struct mu_room_member **ret_member,
                         struct mu_room_notice *ret_notice);
/** Calls `each` for every member of the running round, in order of rank. */
void mu_room_each_ranked(const struct mu_room *room,
                         void (*each)(void *context, const struct mu_room_member *member),
                         void *context);
/**
 * Writes one sentence on what the gathering waits for: "3 of 4 nodes are here: a, b, c". Always
 * terminated within `cap`, which is at least 1; names that do not fit are counted ("and 12 more").
 */
void mu_room_explain(const struct mu_room *room, char *text, size_t cap);
/** Whether nodes are here, and fewer than the minimum. */
bool mu_room_lacks(const struct mu_room *room);

#endif

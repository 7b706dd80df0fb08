/*
 * The rules of the rendezvous on a state: what a node does next, and what that does to the state.
 * They are pure functions, one for each operation; proto/rdzv/node.h or a server decides where the
 * state is kept, how it is transferred and when it is looked at again.
 *
 *     mu_rdzv_sanitise(state)                  drop nodes that were silent for too long
 *     action = mu_rdzv_decide_join(ask)        the join table, row by row
 *     mu_rdzv_apply(state, action)             one of the 13 actions
 *
 * The tables are PyTorch's (docs/rendezvous.md repeats them); what is ours is marked "ours" and is
 * invisible to PyTorch:
 *
 *     the seal  A round that we complete keeps its size in the field `deadline`, which means
 *               nothing while a round is complete. A participant that reads the round for the first
 *               time can tell whether a node has left since. PyTorch cannot, and then believes
 *               in a smaller world than the others.
 *     seats     A node on the wait list that finds the next round full goes to the redundancy list
 *               (of 1.13: off the list). PyTorch's stays, and the members, which see a node
 *               waiting, start over again and again to let in a node that has no seat.
 *     leaving   A node that gives up waiting removes itself from the wait list and redundancy list
 *               as well; PyTorch's is only forgotten when its heartbeat expires.
 */
#ifndef MU_RDZV_RULES_H
#define MU_RDZV_RULES_H

#include "codec/rdzv/state.h"
#include "core/err.h"
#include "core/time.h"

/* The numbers are PyTorch's of 2.x; they are on no wire. */
enum mu_rdzv_action {
    MU_RDZV_ACT_KEEP_ALIVE = 1,
    MU_RDZV_ACT_ADD_TO_PARTICIPANTS = 2,
    MU_RDZV_ACT_ADD_TO_WAIT_LIST = 3,
    MU_RDZV_ACT_ADD_TO_REDUNDANCY_LIST = 4, /* not in 1.13 */
    MU_RDZV_ACT_REMOVE_FROM_PARTICIPANTS = 5,
    MU_RDZV_ACT_REMOVE_FROM_WAIT_LIST = 6,
    MU_RDZV_ACT_REMOVE_FROM_REDUNDANCY_LIST = 7, /* not in 1.13; renews the join's deadline */
    MU_RDZV_ACT_MARK_COMPLETE = 8,
    MU_RDZV_ACT_MARK_CLOSED = 9,
    MU_RDZV_ACT_SYNC = 10, /* nothing to do until the state changes or time passes */
    MU_RDZV_ACT_ERROR_CLOSED = 11,
    MU_RDZV_ACT_ERROR_TIMEOUT = 12,
    MU_RDZV_ACT_FINISH = 13,
    MU_RDZV_ACT_ERROR_GRACEFUL = 14, /* PyTorch raises here, outside its list of 13 */
};

enum mu_rdzv_generation {
    MU_RDZV_GENERATION_1 = 1, /* 1.13: no redundancy list; rows 1, 3, 4 and 10 do not exist */
    MU_RDZV_GENERATION_2,     /* 2.x */
};

/* All nodes of a run must agree on these; each node applies its own to all. */
struct mu_rdzv_settings {
    size_t min_nodes;
    size_t max_nodes;
    uint64_t keep_alive_interval_ms; /* 5 s */
    uint32_t keep_alive_max_attempt; /* 3: dead after 15 s without a heartbeat */
    uint64_t join_timeout_ms;        /* 600 s */
    uint64_t last_call_timeout_ms;   /* 30 s */
    uint64_t close_timeout_ms;       /* 30 s */
    uint64_t heartbeat_timeout_ms;   /* 5 s: how long one keep-alive may take */
    uint64_t skew_ms_max;            /* 5 s: see mu_rdzv_skew() */
    enum mu_rdzv_generation generation;
};

#define MU_RDZV_ROLLBACK_MS 5000 /* time after a missed deadline for a node to remove itself */
/* A year. A longer time is a mistake in the unit, and sums of such times cannot overflow. */
#define MU_RDZV_TIMEOUT_MS_MAX UINT64_C(31536000000)

/** The defaults named above; min_nodes and max_nodes are the caller's to set. Generation 2. */
struct mu_rdzv_settings mu_rdzv_settings_defaults(void);
/** Returns MUSTER_EINVAL, with a message, for a time that is not positive or too long, a minimum
 * below one, a maximum below the minimum or above MU_RDZV_MEMBERS_MAX. */
int mu_rdzv_settings_check(const struct mu_rdzv_settings *settings, struct mu_errmsg *reterr_msg);

/* A question: what should `node` do now? `deadline` is the operation's. Everything is borrowed. */
struct mu_rdzv_ask {
    const struct mu_rdzv_state *state;
    const struct mu_rdzv_node *node;
    const struct mu_rdzv_settings *settings;
    struct mu_now now;
    mu_mono_t deadline;
};

/** ADD_*, REMOVE_*, MARK_COMPLETE, KEEP_ALIVE, SYNC, ERROR_*, or FINISH: the node is a member. */
enum mu_rdzv_action mu_rdzv_decide_join(const struct mu_rdzv_ask *ask);
/** Before joining again: REMOVE_FROM_PARTICIPANTS, ERROR_TIMEOUT or FINISH: it is not a
 * participant. */
enum mu_rdzv_action mu_rdzv_decide_exit(const struct mu_rdzv_ask *ask);
/** Ours. The same as exit, and removes the node from the lists as well. */
enum mu_rdzv_action mu_rdzv_decide_leave(const struct mu_rdzv_ask *ask);
/** MARK_CLOSED, ERROR_TIMEOUT or FINISH: the run is closed. */
enum mu_rdzv_action mu_rdzv_decide_close(const struct mu_rdzv_ask *ask);
/** KEEP_ALIVE, ERROR_TIMEOUT or FINISH: no keep-alive is due. For a node that was expelled, it
 * never is. */
enum mu_rdzv_action mu_rdzv_decide_keep_alive(const struct mu_rdzv_ask *ask);

/** Returns whether the action changes the state, which must then be written. */
bool mu_rdzv_action_writes(enum mu_rdzv_action action);
/** Returns a name such as "ADD_TO_PARTICIPANTS". The text is static. */
const char *mu_rdzv_action_name(enum mu_rdzv_action action);

/**
 * Applies the action to the state, for `node`; actions that change nothing do nothing.
 * MUSTER_ENOMEM, MUSTER_ELIMIT: the state is unchanged.
 */
int mu_rdzv_apply(struct mu_rdzv_state *s, enum mu_rdzv_action action,
                  const struct mu_rdzv_node *node, const struct mu_rdzv_settings *settings,
                  mu_wall_t now);

/**
 * Drops every node whose heartbeat is older than interval times attempts by our wall clock, from
 * participants, lists and heartbeats alike. A node without a heartbeat never expires. Returns how
 * many were dropped. Only the local copy changes; it counts once it is written for another reason.
 */
size_t mu_rdzv_sanitise(struct mu_rdzv_state *s, const struct mu_rdzv_settings *settings,
                        mu_wall_t now);

/** Drops the members for which `dead`, by their place in `members`, is set. Returns how many. */
size_t mu_rdzv_expel(struct mu_rdzv_state *s, const bool *dead,
                     const struct mu_rdzv_settings *settings);

/**
 * Measures how far clocks disagree, because PyTorch's format makes us compare them. The heartbeats
 * of others are read by our clock, so a clock that is behind by 15 s looks dead, and one that is
 * ahead looks alive for that much longer. A skew of up to skew_ms_max is tolerated silently.
 * Returns how many milliseconds the furthest heartbeat of another node lies in our future, if that
 * is more; else 0. `*ret_member` is that node, lent by the state; set unless 0 is returned.
 */
uint64_t mu_rdzv_skew(const struct mu_rdzv_state *s, const struct mu_rdzv_node *node,
                      const struct mu_rdzv_settings *settings, mu_wall_t now,
                      const struct mu_rdzv_member **ret_member);

size_t mu_rdzv_participants(const struct mu_rdzv_state *s);
size_t mu_rdzv_waiting(const struct mu_rdzv_state *s);
size_t mu_rdzv_spares(const struct mu_rdzv_state *s);

/**
 * Ours. Returns whether all nodes that were in the round when it was completed still are: the ranks
 * are 0 to n-1, each once, and n is what the seal says, if there is one. Also false while the round
 * is not complete.
 */
bool mu_rdzv_intact(const struct mu_rdzv_state *s);

/** Returns how long a node lives without a heartbeat: interval times attempts. */
uint64_t mu_rdzv_dead_after_ms(const struct mu_rdzv_settings *settings);

#endif

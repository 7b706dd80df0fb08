/*
 * What the files of the agent's policy share:
 *
 *     agent.c        life, which events are refused or stale, and what they do in each state
 *     act.c    the acts that states share: joining, stopping, ending
 *     keep.c         what keeps the node out: its check, and the run
 *     losses.c       failures that may be the echo of a loss, and losses without end
 */
#ifndef MU_AGENT_INTERNAL_H
#define MU_AGENT_INTERNAL_H

#include "proto/agent/agent.h"

/* Puts a line of text into the update. */
#define MU_AGENT_SAY(a, u, ...)                                                                    \
    do {                                                                                           \
        (void)mu_err(&(a)->line, 0, __VA_ARGS__);                                                  \
        (u)->text = (a)->line.text;                                                                \
    } while (0)

/* Whether our end closes the run. */
enum mu_agent_goodbye {
    MU_AGENT_QUIETLY = 1, /* says nothing: the rendezvous knows, or we are out of it */
    MU_AGENT_LEAVING,
    MU_AGENT_CLOSING, /* leaves as well */
};

void mu_agent_move(struct mu_agent *a, enum mu_agent_state to);

void mu_agent_join(struct mu_agent *a, struct mu_agent_update *u);
/** Does nothing if the agent is not in the rendezvous and is not joining it. */
void mu_agent_leave(struct mu_agent *a, struct mu_agent_update *u);
/** Does nothing if the run is closed. */
void mu_agent_close(struct mu_agent *a, struct mu_agent_update *u);
void mu_agent_exchange(struct mu_agent *a, struct mu_agent_update *u);

/** Enters STOPPING and sends `signal` to all; `a->outcome` says where it leads. */
void mu_agent_stop(struct mu_agent *a, struct mu_agent_update *u, int signal);
void mu_agent_kill(struct mu_agent *a, struct mu_agent_update *u);
/** No process is left: goes to the next round, or to ENDED. */
void mu_agent_proceed(struct mu_agent *a, struct mu_agent_update *u);

/**
 * The end is decided, and its text is that of the last MU_AGENT_SAY(). Workers are stopped first,
 * after they have saved if they are saving.
 */
void mu_agent_end(struct mu_agent *a, struct mu_agent_update *u, enum mu_agent_outcome outcome,
                  int code, enum mu_agent_goodbye goodbye);

/** Runs the check, if one is due, or joins, or goes on with the round that was assigned. */
void mu_agent_enter(struct mu_agent *a, struct mu_agent_update *u);
void mu_agent_take_checked(struct mu_agent *a, const struct mu_agent_event *e,
                           struct mu_agent_update *u);
/** The run does not let this node in: it stops, and waits. */
void mu_agent_take_excluded(struct mu_agent *a, const struct mu_agent_event *e,
                            struct mu_agent_update *u);
/** Waits out of the rendezvous, and tries again then. */
void mu_agent_keep_out(struct mu_agent *a, uint64_t pause_ms);

/** Says how the worker ended that failed first, and what follows from that. */
#define MU_AGENT_NO_RESTART "; no restart is left"
void mu_agent_say_how_it_ended(struct mu_agent *a, struct mu_agent_update *u, const char *then);
/** No restart is left, but the failure may be the echo of a loss that nobody has noticed yet. */
void mu_agent_doubt(struct mu_agent *a, struct mu_agent_update *u);
/** The workers have failed by themselves. */
void mu_agent_be_sure(struct mu_agent *a, struct mu_agent_update *u);
/** The round is over: a failure in doubt was the echo of that. */
void mu_agent_forgive(struct mu_agent *a, const struct mu_agent_event *e,
                      struct mu_agent_update *u);
/** A node was lost. Returns whether that was one too many, which ends the run. */
bool mu_agent_loses_too_many(struct mu_agent *a, const struct mu_agent_event *e,
                             struct mu_agent_update *u);

#endif

/*
 * Between the files of the agent's policy:
 *
 *     agent.c        life, which events are refused or stale, and state by state what they do
 *     act.c    the acts that states share: joining, stopping, ending
 */
#ifndef MU_AGENT_INTERNAL_H
#define MU_AGENT_INTERNAL_H

#include "proto/agent/agent.h"

/* Puts a line into the update. */
#define MU_AGENT_SAY(a, u, ...)                                                                    \
    do {                                                                                           \
        (void)mu_err(&(a)->line, 0, __VA_ARGS__);                                                  \
        (u)->text = (a)->line.text;                                                                \
    } while (0)

/* Whether the run is closed with our end. */
enum mu_agent_goodbye {
    MU_AGENT_QUIETLY = 1, /* no word: the rendezvous knows, or we are out of it */
    MU_AGENT_LEAVING,
    MU_AGENT_CLOSING, /* leaves as well */
};

void mu_agent_move(struct mu_agent *a, enum mu_agent_state to);

void mu_agent_join(struct mu_agent *a, struct mu_agent_update *u);
/** Nothing, if we are neither in nor on the way in. */
void mu_agent_leave(struct mu_agent *a, struct mu_agent_update *u);
/** Nothing, if the run is closed. */
void mu_agent_close(struct mu_agent *a, struct mu_agent_update *u);
void mu_agent_exchange(struct mu_agent *a, struct mu_agent_update *u);

/** STOPPING: `signal` to all; where it leads is `a->outcome`. */
void mu_agent_stop(struct mu_agent *a, struct mu_agent_update *u, int signal);
void mu_agent_kill(struct mu_agent *a, struct mu_agent_update *u);
/** No process is left: to the next round, or ENDED. */
void mu_agent_proceed(struct mu_agent *a, struct mu_agent_update *u);

/**
 * The end is decided; the words are those of the last MU_AGENT_SAY(). Workers are stopped first,
 * after they have saved if they are at it.
 */
void mu_agent_end(struct mu_agent *a, struct mu_agent_update *u, enum mu_agent_outcome outcome,
                  int code, enum mu_agent_goodbye goodbye);

#endif

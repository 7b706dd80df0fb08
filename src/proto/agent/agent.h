/*
 * The policy of an elastic agent: when to join, start, stop, restart and give up. It is a decision
 * machine that knows nothing of processes, stores or sockets; a driver carries out what it asks for
 * and tells it what happened.
 *
 *     mu_agent_init(&a, &config, &msg);
 *     for each event (a fact, or mu_agent_deadline() reached):
 *         mu_agent_step(&a, &event, &update);
 *         carry out update.flags, from the lowest bit up; log update.text; arm the one timer
 *
 * The states:
 *
 *           START            ASSIGNED              READY              SPAWNED
 *     IDLE -------> JOINING ----------> EXCHANGING -------> STARTING ---------> RUNNING
 *                    ^   ^                |     ^               |               | | |
 *                    |   |  the round is  |     |               |               | | | all exited
 *                    |   +----------------+     |               |               | | | with 0
 *                    |      over, not ready     |               |               | | +-----> BARRIER
 *                    |                          | gone, and     | round over,   | |            |
 *                    |                          | assigned      | one failed    | | round over,|
 *                    |        gone, not yet     | meanwhile     v               | | there is   |
 *                    +------------------------- STOPPING <------+---------------+ | time to    |
 *                             assigned            |   ^     round over, one failed| save       |
 *                                                 |   |                           v            |
 *                                                 |   +------------------------ SAVING         |
 *                                  gives up: gone |        saved, or time is up                |
 *                                                 v                                            |
 *                                               ENDED <----------------------------------------+
 *                                                           done, closed, round over, timed out
 *
 * With a check, START leads to CHECKING, and so do STOPPING and the end of a pause if workers of
 * this node failed since; the agent goes on to where it would have gone when the check has passed.
 * A node whose check fails, or that the run excludes, is in KEPT_OUT for a pause, without workers
 * and out of the rendezvous, and then tries again.
 *
 * A failure that may be the echo of a lost node leads from STOPPING to DOUBTING once the workers
 * are gone, and from there to JOINING (a node was lost) or ENDED.
 *
 * Anything that ends the agent (a signal, a rendezvous that failed, nothing left to try) leads to
 * STOPPING if there are processes, and to ENDED at once otherwise. Success leads to ENDED at once:
 * the driver ends what the workers have left behind, and the agent does not wait for that.
 *
 * Rules, each with a test of that name:
 *  - never two generations alive: nothing is started before every process of the last generation is
 *    gone, grandchildren included (GROUP_GONE). A rank in the next round that comes earlier is kept
 *    until then;
 *  - each child is reaped once: a second exit of the same worker is refused;
 *  - one deadline for all: the stop signal to all at once, KILL to all that are left when
 *    `grace_ms` is over, and an end to the waiting `kill_ms` after that, which is logged: the agent
 *    ends then, whatever it was about to do;
 *  - the restart budget is the job's: a budget that the backend keeps (restarts_left of an
 *    assignment) counts; else the agent's own, as in torchrun. Changes of membership cost nothing;
 *  - the backend that keeps it decides when it is spent: the agent reports a failure to it, and the
 *    failure is the end only if the backend says so;
 *  - the echo of a loss is not charged: workers fail when they lose another node's, mostly before
 *    the loss is noticed. Where the agent keeps the budget and nothing is left of it, a failure is
 *    in doubt: it is the end when the other nodes were heard since (SURE) or `doubt_ms` have
 *    passed, and not if the round ends first. Where something is left, the agent joins at once, and
 *    gets the restart back if a node of the round before does not come (`fewer`);
 *  - losses without end are an end: where the agent keeps the budget, it also counts the rounds
 *    that ended because a node was lost (config.losses);
 *  - the first failure is reported at once: the rendezvous hears of it when the first worker fails,
 *    not when the last one is gone, so that all agents stop their workers in the same time. So is
 *    the end of a round: the next one can form while workers are being stopped;
 *  - all with 0 is success: a worker that finishes early stays finished; any other end of a worker
 *    is the failure of the group. Once a round is over, or workers are being stopped, no exit
 *    counts as a failure or as success: a worker that was told to save may well end with 0;
 *  - ranks are the world's: a decision names a worker by its rank in the world, and then by its
 *    local rank;
 *  - stragglers are named: when some workers have succeeded and others still run `straggler_ms`
 *    later, that is logged once, and nothing is done about it. Other nodes may be waiting for just
 *    these;
 *  - a signal is passed on: to the workers (through the signal map); it ends everything, and the
 *    agent leaves the rendezvous at once without closing it; a second signal kills. Before workers
 *    run, and during the barrier, the agent just ends, as in torchrun: the outcome is STOPPED;
 *  - giving up closes the run: so do success and errors of our own, as in torchrun; signals do not,
 *    nor does what the rendezvous told us (we are out of it). An agent that gives up while in a
 *    round first ends the round for the others by leaving, so that they do not wait for workers
 *    that will not come;
 *  - a closed run lets workers finish: an agent whose workers still run goes on until they end.
 *    They are not started again: a failure is final, the end of the round too (ERROR,
 *    ERDZV_CLOSED);
 *  - a node that is cut off stops in time: when the rendezvous says how long the others wait for a
 *    node that is out of reach (CUT_OFF), everything is killed by then, whatever is left of
 *    `grace_ms` or `change_ms`; at once if that time is past, as it is for an agent that was
 *    suspended;
 *  - success stands: what happens during the exit barrier (a member lost, the round over, the
 *    rendezvous gone) does not undo it. If the round ends, the agent leaves without closing the run
 *    for the nodes that go on; an agent that others depend on (`host`) leaves the round but stays,
 *    until the run is closed, the others are gone (ALONE) or the barrier's time is up. The barrier
 *    may never fill in a closed run, or for a node that is cut off; all agents but a host wait no
 *    longer than `grace_ms` for it then;
 *  - a failed exchange is tried again: by joining again, up to `exchange_tries_max` times in a row;
 *    it costs nothing of any budget. Then it is an error;
 *  - a node is checked before it joins, and after its workers failed: until then none are started.
 *    The pause after a check that failed doubles each time, up to `check_pause_max_ms`;
 *  - an excluded node waits: it stops its workers, and asks every `excluded_ms` whether it is let
 *    in, unless `excluded_ends`. If the run is closed meanwhile it ends well, as a spare does;
 *  - stale events are ignored: those that name another round or generation than the machine's, and
 *    answers to a question that it no longer asks.
 *
 * Processes left behind by workers that all ended with 0 are left alone during the barrier, then
 * stopped like workers.
 *
 * The driver's duties:
 *     1. DO_SPAWN is answered by SPAWNED or SPAWN_FAILED (exits may come before). When it is asked
 *        to SIGNAL or KILL meanwhile, it starts no more. It sends one EXITED for each worker that
 *        was started, then GROUP_GONE when nothing is left, or at once if nothing could be started.
 *     2. DO_EXCHANGE and DO_BARRIER are answered by READY or NOT_READY and BARRIER_DONE; DO_JOIN,
 *        DO_LEAVE and ENDED cancel them, and DO_BARRIER outlives a DO_LEAVE of the same round.
 *     3. DO_JOIN is answered by ASSIGNED or RDZV_FAILED. In a round it means that workers failed
 *        (`failed`) or that the round is over for us; a second one replaces the first.
 *        DO_DOUBT may be answered by SURE; the end of the round, or of `doubt_ms`, does as well.
 *     4. DO_WARN is answered by SAVED, at once if no worker asked to be told.
 *     5. What DO_REPORT publishes is published before DO_JOIN, DO_LEAVE and DO_CLOSE of the same
 *        update are carried out (within a bound), so that a node that hears of the end can read the
 *        reason.
 *        DO_CHECK is answered by CHECKED, within a time of the driver's. ENDED cancels it.
 *     6. When mu_agent_deadline() is reached, send TIMEOUT. An early or second one is harmless.
 *     7. After ENDED the machine asks for nothing more. Only what could not be killed is left then.
 *
 * Text of an event is borrowed until step returns; text of an update is lent until the next step.
 * The machine allocates nothing. A step that fails (MUSTER_EINVAL: against the duties) has changed
 * nothing.
 */
#ifndef MU_AGENT_H
#define MU_AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "core/time.h"
#include "core/trace.h"
#include "proto/rdzv/losses.h"

#define MU_AGENT_WORKERS_MAX 4096
#define MU_AGENT_SIGNAL_MAX  64
#define MU_AGENT_NO_RANK     UINT32_MAX
#define MU_AGENT_NOT_KEPT    UINT32_MAX

struct mu_agent_config {
    uint32_t workers;         /* workers on this node: 1 to MU_AGENT_WORKERS_MAX */
    uint32_t restarts_max;    /* torchrun's --max-restarts. 0 */
    struct mu_losses losses;  /* --max-losses. 100 in an hour */
    uint64_t grace_ms;        /* between the stop signal and KILL. 30 s */
    uint64_t kill_ms;         /* after KILL, before a process is given up as unkillable. 10 s */
    uint64_t exchange_ms;     /* time to exchange ranks and addresses. 300 s */
    uint64_t exit_barrier_ms; /* 300 s */
    uint64_t straggler_ms;    /* after the last exit with 0, until workers that still run are named.
                                 30 s */
    uint64_t change_ms; /* how long workers that asked for it may save before a change. 0: not at
                           all */
    bool check;         /* DO_CHECK decides whether this node may join */
    uint64_t check_pause_ms;                     /* after a check that failed, at first. 5 s */
    uint64_t check_pause_max_ms;                 /* 5 min */
    bool excluded_ends;                          /* --exclude-action exit */
    uint64_t excluded_ms;                        /* until an excluded node asks again. 2 s: a server
                                                    stays for longer when its run is closed */
    uint64_t excluded_say_ms;                    /* until it says so again. 60 s */
    uint32_t exchange_tries_max;                 /* exchanges that may fail in a row. 3 */
    int stop_signal;                             /* for restarts. SIGTERM, 15 */
    uint8_t signal_map[MU_AGENT_SIGNAL_MAX + 1]; /* the signal that is passed on instead; 0: the
                                                    same */
    struct mu_trace trace;
};

/** The defaults named above; `workers` is the caller's to set. */
struct mu_agent_config mu_agent_config_defaults(void);

enum mu_agent_event_type {
    MU_AGENT_START = 1,
    MU_AGENT_ASSIGNED,     /* round, restarts_left, host, doubt_ms, fewer */
    MU_AGENT_READY,        /* round, base: ranks are exchanged, the worker's environment is known */
    MU_AGENT_NOT_READY,    /* round: the exchange failed; code, text */
    MU_AGENT_SPAWNED,      /* generation: all workers run */
    MU_AGENT_SPAWN_FAILED, /* generation: worker `local_rank` could not be started; code, text */
    MU_AGENT_EXITED,       /* generation, local_rank, exit_code (n, or -signal) */
    MU_AGENT_GROUP_GONE,   /* generation: no process of it is left */
    MU_AGENT_CUT_OFF,     /* by: the others may go on without this node then. ROUND_ENDED follows if
                              the node is in a round, and not in its exit barrier */
    MU_AGENT_ROUND_ENDED, /* round: told by the rendezvous; text, lost, failed */
    MU_AGENT_SURE,        /* round: all other nodes of it were heard after DO_DOUBT */
    MU_AGENT_SAVED,       /* generation: the workers that asked for time are done with it */
    MU_AGENT_RDZV_FAILED, /* code, text: the node is out of the rendezvous */
    MU_AGENT_RDZV_CLOSED,
    MU_AGENT_ALONE,        /* a host is out of its round, and no other node is in touch with it */
    MU_AGENT_BARRIER_DONE, /* round: all nodes are at the end, or the barrier failed (code) */
    MU_AGENT_CHECKED,      /* exit_code of the check; text: its last line */
    MU_AGENT_SIGNAL,       /* signal: the agent received it */
    MU_AGENT_TIMEOUT,      /* mu_agent_deadline() has been reached */
};

struct mu_agent_event {
    enum mu_agent_event_type type;
    struct mu_now now;
    uint64_t round;
    uint64_t generation;
    uint32_t restarts_left; /* MU_AGENT_NOT_KEPT: the backend has no budget */
    bool host;              /* others depend on this process: it serves the rendezvous */
    uint64_t doubt_ms; /* by when a loss is noticed; 0: no other nodes, or the backend decides */
    bool fewer;        /* a node of the round before is not in this one */
    bool lost;         /* the round is over because a node vanished */
    bool failed;       /* the round is over because workers of another node failed */
    uint32_t local_rank;
    uint32_t base; /* the rank in the world of this node's first worker */
    int exit_code;
    int signal;
    int code;
    mu_mono_t by;
    const char *text; /* may be NULL */
};

/* Flags, in the order in which they are carried out. */
enum {
    MU_AGENT_DO_REPORT = 1 << 0,   /* the first failure of this generation: publish it */
    MU_AGENT_DO_SIGNAL = 1 << 1,   /* `signal` to every worker's group */
    MU_AGENT_DO_KILL = 1 << 2,     /* SIGKILL to everything of this generation */
    MU_AGENT_DO_WARN = 1 << 3,     /* tell workers that asked: a change comes in `within_ms` */
    MU_AGENT_DO_JOIN = 1 << 4,     /* join the rendezvous (again). In a round this ends the round */
    MU_AGENT_DO_LEAVE = 1 << 5,    /* leave the rendezvous and say so */
    MU_AGENT_DO_CLOSE = 1 << 6,    /* close the rendezvous for all nodes */
    MU_AGENT_DO_EXCHANGE = 1 << 7, /* round: ranks and addresses through the round's store */
    MU_AGENT_DO_SPAWN = 1 << 8,    /* generation, restart_count: start all workers */
    MU_AGENT_DO_BARRIER = 1 << 9,  /* round: report that we are done, wait for the others */
    MU_AGENT_DO_DOUBT = 1 << 10,   /* see whether the other nodes of the round are there: SURE */
    MU_AGENT_DO_CHECK = 1 << 11,   /* run the check: CHECKED */
    MU_AGENT_ENDED = 1 << 12,      /* `outcome`; the last update */
};

enum mu_agent_outcome {
    MU_AGENT_SUCCEEDED = 1,
    MU_AGENT_FAILED,   /* workers failed and no restart is left, here or in the run */
    MU_AGENT_STOPPED,  /* a signal stopped the agent */
    MU_AGENT_GRACEFUL, /* the node was spare when the run ended */
    MU_AGENT_ERROR,    /* the rendezvous or the exchange failed, or a worker cannot be started or
                          killed */
};

struct mu_agent_update {
    unsigned flags;
    uint64_t round;      /* EXCHANGE, BARRIER */
    uint64_t generation; /* REPORT, SIGNAL, KILL, WARN, SPAWN */
    int signal;
    uint64_t within_ms;
    bool failed;            /* JOIN: workers of the round failed; else no failure that counts */
    uint32_t restart_count; /* SPAWN: TORCHELASTIC_RESTART_COUNT */
    enum mu_agent_outcome outcome;
    uint32_t first_rank; /* REPORT, ENDED: the local rank that failed first; MU_AGENT_NO_RANK */
    int exit_code;       /* the code of that rank */
    int code;            /* ENDED: why, for ERROR; else 0 */
    const char *text;    /* the decision in words, for the log; NULL: there was no decision */
    mu_mono_t deadline;
};

enum mu_agent_state {
    MU_AGENT_IS_IDLE = 1,
    MU_AGENT_IS_JOINING,
    MU_AGENT_IS_EXCHANGING,
    MU_AGENT_IS_STARTING,
    MU_AGENT_IS_RUNNING,
    MU_AGENT_IS_SAVING,
    MU_AGENT_IS_STOPPING,
    MU_AGENT_IS_DOUBTING,
    MU_AGENT_IS_BARRIER,
    MU_AGENT_IS_CHECKING,
    MU_AGENT_IS_KEPT_OUT,
    MU_AGENT_IS_ENDED,
};

/* How far the stopping of a generation is. */
enum mu_agent_stop {
    MU_AGENT_STOP_NO = 0,
    MU_AGENT_STOP_SIGNALLED,
    MU_AGENT_STOP_KILLED,
};

struct mu_agent {
    struct mu_agent_config config;
    enum mu_agent_state state;
    mu_mono_t now;
    mu_mono_t deadline; /* of the state; MU_MONO_NEVER: no deadline */

    /* the rendezvous */
    bool joining;  /* a rank was asked for */
    bool in_round; /* `round` is ours and not over */
    bool closed;   /* by another node or by us */
    bool host;
    uint64_t round; /* the last one */
    uint32_t restarts_left;
    uint32_t restarts_used; /* of our own budget */
    uint32_t exchange_failures;
    uint64_t doubt_ms;      /* of the last round */
    bool doubts;            /* a failure is in doubt, and would be the end */
    bool charged;           /* the last failure was charged; it may have been an echo */
    bool others_failed;     /* the last round ended because of that */
    mu_mono_t sure_at;      /* `doubts`: when it no longer is */
    mu_mono_t losses_until; /* see proto/rdzv/losses.h */

    /* why the node may not join */
    bool unchecked;          /* a check is due before anything is started */
    bool excluded;           /* the run has said so, since it last let us in */
    uint64_t pause_ms;       /* after the last check that failed */
    mu_mono_t excluded_said; /* when that was logged; MU_MONO_NEVER: not yet */

    /* the workers */
    uint64_t generation; /* the last one; 0: there was none yet */
    bool alive;          /* GROUP_GONE has not come for this generation */
    bool spawned;        /* all of its workers were started */
    enum mu_agent_stop stop;
    mu_mono_t by;    /* when it must have ended; MU_MONO_NEVER: no limit */
    uint32_t exited; /* how many workers have exited */
    uint64_t exited_bits[MU_AGENT_WORKERS_MAX / 64];
    uint32_t base; /* the rank of local rank 0 */
    uint32_t first_rank;
    int exit_code;

    /* the end */
    enum mu_agent_outcome outcome; /* where STOPPING leads; 0: to another round */
    int code;
    uint32_t signals;
    struct mu_errmsg why;  /* the words of `outcome` */
    struct mu_errmsg line; /* the text that an update lends */
};

/** Returns MUSTER_EINVAL, with a message, for a number of workers or a signal out of range. */
int mu_agent_init(struct mu_agent *a, const struct mu_agent_config *config,
                  struct mu_errmsg *reterr_msg);

/**
 * Returns 0, and `*ret_update` says what to do. MUSTER_EINVAL: START twice, the exit of a worker
 * that does not exist or has exited, GROUP_GONE before all have exited, an invalid signal. After an
 * error nothing has changed.
 */
int mu_agent_step(struct mu_agent *a, const struct mu_agent_event *event,
                  struct mu_agent_update *ret_update);
/** Returns when to send TIMEOUT; MU_MONO_NEVER: not at all. */
mu_mono_t mu_agent_deadline(const struct mu_agent *a);
/** Returns whether the agent stays only because other nodes depend on it; ALONE ends that. */
bool mu_agent_hosts_only(const struct mu_agent *a);

/** Returns how many restarts are left, of the backend's budget or of our own. */
uint32_t mu_agent_restarts_left(const struct mu_agent *a);
/** Returns whether the job ends because workers failed: this was decided, or will be because no
 * restart is left, unless the backend has another reason for the failure. */
bool mu_agent_has_failed(const struct mu_agent *a);
/** Return names such as "JOINING", "FAILED", "EXITED". The text is static. */
const char *mu_agent_state_name(enum mu_agent_state state);
const char *mu_agent_outcome_name(enum mu_agent_outcome outcome);
const char *mu_agent_event_name(enum mu_agent_event_type type);

#endif

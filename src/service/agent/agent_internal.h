/*
 * Between the files of the agent's service:
 *
 *     agent.c           life, the pump between machine and driver, the rendezvous
 *     round.c     the store of a round: ranks, the workers' store, the barrier
 *     gateway.c   the server on loopback, where workers do not go to their store themselves
 *     guard.c     ports of rounds that are over, where late workers are turned away
 *     check.c     the command that decides whether this node may join
 *     failure.c   the first failure: publishing and reading it
 *     watchdog.c  whether our workers stand still; hang.c: what other agents say of theirs
 *     kept.c      vaults, in which workers keep their state, and which version is loaded; see
 *                 kept_internal.h for copies of them on other nodes
 *     step.c      steps of training, as workers report them
 *     straggle.c  who keeps the other ranks waiting
 *     stacks.c    answers who asks what the workers are doing; stacks_ask.c asks
 *     workers.c   processes, their output and what they ask for
 *     warm.c      standbys, of which workers are made
 *     verdict.c   the verdict, for people and programs
 *
 * Facts come in as callbacks of the environment, of the rendezvous, of stores. Each becomes an
 * event of the machine through mu_agent_tell(), which then carries out what the machine wants.
 */
#ifndef MU_AGENT_SERVICE_INTERNAL_H
#define MU_AGENT_SERVICE_INTERNAL_H

#include "codec/stacks/answer.h"
#include "proto/state/recall.h"
#include "service/agent/agent.h"
#include "service/agent/health.h"
#include "service/agent/straggle.h"
#include "service/agent/watchdog.h"
#include "service/rdzv/bootstrap.h"

#define MU_AGENT_PENDING_MAX    16
#define MU_AGENT_CHECK_LINE_MAX 240 /* of a line of a check; the rest is cut off */
#define MU_AGENT_LINE_MAX       64  /* the longest line of a worker on its channel */
/* What an agent says of its workers that still ran, 4,096 at most. */
#define MU_AGENT_RUNNING_BYTES ((size_t)1 << 20)

#define MU_AGENT_STACKS_SHARED_MAX 4 /* questions that get the same answer, the last ones */

/* How a round answers questions for stacks: stacks.c. */
struct mu_agent_stacks {
    enum mu_agent_stacks_state {
        MU_AGENT_STACKS_OFF = 0,
        MU_AGENT_STACKS_WAITS,
        MU_AGENT_STACKS_COUNTS,
        MU_AGENT_STACKS_READS,
        MU_AGENT_STACKS_LOOKS,
        MU_AGENT_STACKS_WRITES,
        MU_AGENT_STACKS_DELETES,
        MU_AGENT_STACKS_RESTS,
    } state;
    struct mu_store_op op;
    bool busy;
    struct mu_timer timer;
    mu_mono_t woke;
    uint64_t seen;     /* the last question that was answered */
    uint64_t question; /* the one that is being answered */
    bool all_threads;
    uint32_t flight_ms; /* for which flight recorders are waited for */
    uint64_t fresh;     /* our answers that are in the store: the last, and how many before it */
    size_t fresh_count;
    uint64_t old; /* those that are being deleted, likewise */
    size_t old_count;
    struct mu_stacks_answer_writer answer;
    struct mu_span keys[MU_AGENT_STACKS_SHARED_MAX];
    struct mu_span values[MU_AGENT_STACKS_SHARED_MAX];
    char names[MU_AGENT_STACKS_SHARED_MAX][48];
    struct mu_list asks; /* struct mu_stacks_ask of ours, in this round */
};

/* What of kept states goes through a round's store: kept.c. */
struct mu_agent_kept_op {
    struct mu_store_op op;
    bool busy;
    bool reported; /* our report is in the store */
    size_t found;  /* how many whole versions our vaults have */
    bool holds;    /* and what we hold for others: kept_plan.c */
    struct mu_buf text;
    struct mu_buf holding; /* and later, the plan */
    struct mu_span pair[2];
    struct mu_span values[2];
    struct mu_span *keys; /* of all nodes; NULL: `pair` */
    char name[32];
    char second[48];
    struct mu_recall recall; /* of node 0 */
    uint32_t missing;        /* nodes that keep nothing, as far as node 0 knows */
    struct mu_kept_answer decided;
    uint8_t answer_bytes[MU_KEPT_ANSWER_LEN];
    bool has_answer; /* else workers get no vaults */
    struct mu_kept_answer answer;

    bool has_plan; /* all nodes make copies */
    struct mu_kept_plan plan;
    unsigned tries; /* how many plans could not be carried out */
    bool fetch_failed;
    bool fetched;                         /* all that we had to fetch is there */
    uint32_t sources[MU_KEPT_COPIES_MAX]; /* nodes whose states we copy */
};

/* One assignment and what belongs to it. It outlives its round: closing takes several turns. */
struct mu_agent_round {
    struct mu_list link; /* s->rounds */
    struct mu_agent_service *s;
    uint64_t number;
    uint32_t rank;
    uint32_t world;
    uint32_t restarts_left;
    enum mu_exchange_generation generation; /* of the members */
    bool share;                             /* an agent serves the workers' store, not rank 0 */
    char *store_url;
    char *addr_0;         /* of rank 0, or NULL */
    char *names;          /* of all members, each with a zero behind it, or NULL */
    uint32_t names_count; /* 0: not known */
    struct mu_rdzv_round_store stores;
    bool store_open;
    struct mu_agent_exchange exchange;
    bool exchanging; /* ranks or the barrier: `done` will come */
    bool is_barrier;
    struct mu_rdzv_bootstrap *bootstrap;
    struct mu_agent_gateway *gateway; /* a server on loopback: see gateway.c */
    struct mu_timer backing_timer;
    bool has_ranks;
    bool has_master;
    struct mu_ranks ranks;
    char master_addr[MU_ADDR_HOST_MAX + 1];
    uint16_t master_port;

    /* the first failure: failure.c */
    struct mu_store_op op;
    bool op_busy;
    bool store_gone; /* with its host: nothing is waited for */
    bool publishes;  /* the op writes; else it reads */
    bool again;      /* another of our workers has failed meanwhile */
    unsigned tries;
    uint64_t op_order;
    struct mu_span op_key;
    struct mu_span op_values[2];
    struct mu_buf op_text;  /* what we write */
    struct mu_buf op_known; /* what we believe is there */
    bool failure_known;
    bool reads_running;            /* the op reads which workers still ran */
    struct mu_store_op running_op; /* writes which of ours did */
    bool running_busy;
    bool running_told;
    struct mu_span running_key;
    struct mu_span running_value;
    struct mu_buf running_text;

    /* our last step, for a status page: step.c */
    struct mu_store_op step_op;
    bool step_busy;
    bool step_told; /* at `step_at`, of `step_worker` */
    mu_mono_t step_at;
    uint32_t step_worker;
    struct mu_span step_key;
    struct mu_span step_value;
    char step_name[32];
    char step_text[48];

    struct mu_agent_kept_op kept; /* kept.c */
    bool has_kept;                /* what workers load is decided, if anything */
    struct mu_agent_hang_op hang; /* hang.c */
    struct mu_agent_pace_op pace; /* straggle.c */
    struct mu_agent_stacks stacks;

    bool closing;
    bool bootstrap_ending;
    bool store_closing;
};

struct mu_agent_worker {
    struct mu_agent_service *s;
    uint32_t local_rank;
    struct mu_child child;
    bool spawned; /* a process exists, until `gone` */
    bool running; /* since `started` */
    bool ever_ran;
    bool warm;      /* it was a standby */
    bool again;     /* as that it could not start: it is started plainly when it is gone */
    int signal_due; /* a signal that came before it ran */
    bool kill_due;
    struct mu_agent_worker_end end;

    /* signs of failing: failure.c */
    struct mu_store_op ticket_op;
    struct mu_span ticket_key;
    bool ticket_busy;
    uint64_t ticket; /* 0: it has no ticket */
    mu_mono_t ticket_at;
    bool raised; /* it wrote a traceback, at `raised_at` */
    mu_mono_t raised_at;
    bool dying;  /* the kernel closes what it had open */
    bool failed; /* by itself; it has its ticket or waits for it */
    bool effect; /* it says that it failed because of a lost worker */
    bool held;   /* its signal is held back, to see whether it ends by itself */
    int held_signal;

    struct mu_conn channel;
    bool channel_open; /* `closed` will come */
    bool asked;        /* for a warning before changes */
    bool warned;       /* and has not written "saved" yet */
    char line[MU_AGENT_LINE_MAX];
    size_t line_len;
    bool has_step; /* it has reported one, at `step_at` */
    uint64_t step;
    mu_mono_t step_at;

    /* for the watchdog */
    uint64_t output_bytes;
    uint64_t mark_count; /* of steps */
    bool hung;           /* it was ended because the run hung */
};

/* The vaults of all workers: MU_KEPT_VAULTS for each. */
struct mu_agent_kept {
    const struct mu_vaults *source;
    struct mu_vault *vaults;
    uint32_t made;              /* 0: nothing is kept */
    uint64_t bytes;             /* of each */
    struct mu_kept_head *heads; /* as they were before the round; it counts if `whole` */
    bool *whole;
    struct mu_agent_copies *copies; /* for other nodes; NULL: none */
};

/* A fact that came while another one was being handled. */
struct mu_agent_pending {
    struct mu_agent_event event;
    struct mu_errmsg text;
};

struct mu_agent_service {
    struct mu_env *env;
    struct mu_agent_service_config config;
    struct mu_agent_service_events events;
    struct mu_agent machine;
    struct mu_rdzv_handler *rdzv;
    struct mu_timer timer; /* the machine's */
    bool pumping;
    struct mu_agent_pending pending[MU_AGENT_PENDING_MAX];
    size_t pending_count;

    struct mu_list rounds;
    struct mu_agent_round *round; /* in which workers run, or ranks are exchanged */
    struct mu_agent_round *next;  /* assigned, and not wanted yet */
    struct mu_list guards;        /* guard.c */
    size_t guard_count;           /* with those that are about to end */

    struct mu_agent_worker *workers;
    struct mu_agent_worker_end *ends; /* for the verdict */
    struct mu_agent_attempt attempt;
    uint32_t spawned_count;
    struct mu_timer hold_timer;
    uint32_t running_count;
    uint64_t generation; /* 0: no workers */
    bool spawn_failed;
    struct mu_agent_look *look; /* at the stacks of the workers, or NULL */

    struct mu_agent_check {
        struct mu_child child;
        bool spawned; /* until `gone` */
        bool over;    /* CHECKED was told, or nobody waits for it any more */
        int exit_code;
        struct mu_timer timer;
        char line[MU_AGENT_CHECK_LINE_MAX + 1]; /* the one that is being written */
        size_t line_len;
        char last[MU_AGENT_CHECK_LINE_MAX + 1]; /* the last one that is not empty */
    } check;

    unsigned rdzv_todo; /* MU_AGENT_DO_JOIN, _LEAVE, _CLOSE: held back until a report is out */
    bool join_failed;   /* we join because workers failed */
    bool joining;       /* `assigned` or `failed` will come */
    mu_mono_t join_since;
    struct mu_timer wait_timer; /* while it joins: logs what it waits for */
    bool leaving;               /* `left` will come */
    mu_mono_t until;            /* when the watcher ends the workers, if we are stopped */
    mu_mono_t missed_at;        /* when that was put off too late, or nearly; or NEVER */
    bool closing;               /* `closed` or `close_failed` will come */

    /* the end */
    bool over;  /* the machine has ended */
    bool asked; /* we asked the round's store for a failure */
    bool asked_again;
    struct mu_timer ask_timer;  /* armed while others may still report a failure */
    struct mu_timer host_timer; /* armed while we host the rendezvous only for others */
    bool host_waits;
    bool ask_waiting;
    bool told; /* `ended` was called */
    struct mu_timer end_timer;
    struct mu_timer soon; /* calls mu_agent_settle() on the next turn */
    bool in_call;         /* inside a call of our user: `ended` must not come in it */
    bool end_late;
    struct mu_agent_verdict verdict;
    struct mu_errmsg text;
    struct mu_errmsg said; /* the machine's last line */
    int last_signal;
    mu_mono_t since;

    struct mu_agent_watchdog watchdog;
    struct mu_agent_health health;
    struct mu_agent_straggle straggle;

    struct mu_agent_kept kept;

    struct mu_warm warm;
    struct mu_standbys standbys;
    struct mu_timer warm_timer;
    const char **warm_envp; /* the zygote's; owned */
    struct mu_buf warm_env; /* its last variable; owned */
    uint32_t warm_waited;   /* how many waited when we looked last */
    bool warm_told;         /* that all of them wait */
    bool ran;               /* workers were started before */

    bool freeing;
    bool rdzv_freed;
};

/* agent.c */
/** Gives the machine an event, and carries out what it wants; later, if this is under way
 * already. */
void mu_agent_tell(struct mu_agent_service *s, struct mu_agent_event event);
void mu_agent_log(struct mu_agent_service *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** To be called when something is finished for which the end, the rendezvous or freeing may have
 * waited. */
void mu_agent_settle(struct mu_agent_service *s);

/* round.c */
/** NULL: there is no memory. */
struct mu_agent_round *mu_agent_round_new(struct mu_agent_service *s,
                                          const struct mu_rdzv_assignment *a);
/** Whether a node of this round is not in the one that is assigned now, as far as can be told. */
bool mu_agent_round_has_fewer(const struct mu_agent_round *r, const struct mu_rdzv_assignment *a);
/** NULL is fine. It is freed once all of it is closed. */
void mu_agent_round_close(struct mu_agent_round *r);
/** READY or NOT_READY follows. */
void mu_agent_round_exchange(struct mu_agent_round *r);
/** BARRIER_DONE follows. */
void mu_agent_round_barrier(struct mu_agent_round *r);
/** Ends what can be ended; frees it if nothing is left. */
void mu_agent_round_settle(struct mu_agent_round *r);

/** Sets the address at which workers meet. */
void mu_agent_round_master(struct mu_agent_round *r, const char *addr, uint16_t port);
void mu_agent_round_not_ready(struct mu_agent_round *r, int status, const char *text);

/** The report of kept states is in the store: the rest of the exchange. */
void mu_agent_round_begin(struct mu_agent_round *r);
/** It is decided what workers load. */
void mu_agent_round_decided(struct mu_agent_round *r);

/* kept.c */
/** Makes the vaults, if states are kept; says so, or why not. */
void mu_agent_kept_start(struct mu_agent_service *s);
void mu_agent_kept_fini(struct mu_agent_service *s);
void mu_agent_kept_op_init(struct mu_agent_round *r);
void mu_agent_kept_op_fini(struct mu_agent_kept_op *k);
/** Writes what the vaults hold into the round's store: mu_agent_round_begin() follows, or the round
 * is not ready. False: there is nothing to write. */
bool mu_agent_kept_report(struct mu_agent_round *r);
/** Ranks are exchanged: mu_agent_round_decided() follows, perhaps at once, or the round is not
 * ready. */
void mu_agent_kept_decide(struct mu_agent_round *r);
/** The workers of the round start: copies of what they keep are made from now on. */
void mu_agent_kept_run(struct mu_agent_round *r);
/** The round closes. */
void mu_agent_kept_close(struct mu_agent_round *r);
/** Ends copies and what gives them to others; true: nothing of it is left. Otherwise
 * mu_agent_settle() follows. */
bool mu_agent_kept_idle(struct mu_agent_service *s);
/** What a worker gets. False: nothing. */
bool mu_agent_kept_give(const struct mu_agent_service *s, uint32_t local_rank,
                        const struct mu_vault *vaults[MU_CHILD_VAULTS_MAX],
                        struct mu_kept_terms *ret_terms);

/* guard.c */
/** The server of a round has just stopped listening at this address: nobody else will. */
void mu_agent_guard(struct mu_agent_service *s, const struct mu_addr *was);
/** Lets all of them go. True: none is left; otherwise mu_agent_settle() follows. */
bool mu_agent_guards_end(struct mu_agent_service *s);

/* gateway.c */
/** Serves the workers' store from etcd, and tells the round the address, or that it failed. */
int mu_agent_gateway_to_etcd(struct mu_agent_round *r, struct mu_errmsg *reterr_msg);
/** Serves the workers' store of another node, and tells the round the address. */
int mu_agent_gateway_to_node(struct mu_agent_round *r, const char *host, uint16_t port,
                             struct mu_errmsg *reterr_msg);
/** NULL: not yet, or not any more. */
const struct mu_store_server *mu_agent_gateway_server(const struct mu_agent_gateway *b);
/** When the gateway is gone, perhaps at once, r->gateway is NULL and the round is settled. */
void mu_agent_gateway_end(struct mu_agent_gateway *b);

/* step.c */
/** A worker wrote "step" and this. */
void mu_agent_step_take(struct mu_agent_worker *w, const char *digits);

/* stacks.c */
void mu_agent_stacks_init(struct mu_agent_round *r);
/** Answers questions from now on. The store is open; nothing happens if it has begun already. */
void mu_agent_stacks_start(struct mu_agent_round *r);
/** Ends it, and cancels our own questions; the round is settled when mu_agent_stacks_closed(). */
void mu_agent_stacks_close(struct mu_agent_round *r);
bool mu_agent_stacks_closed(const struct mu_agent_round *r);
/** After that. */
void mu_agent_stacks_fini(struct mu_agent_round *r);

/* check.c */
void mu_agent_check_init(struct mu_agent_service *s);
/** CHECKED follows. */
void mu_agent_check_start(struct mu_agent_service *s);
/** Nobody waits for it any more: it is killed. The agent is settled when it is gone. */
void mu_agent_check_stop(struct mu_agent_service *s);
/** This machine was looked at; `fault`: why the node must not join, or "". */
void mu_agent_check_health(struct mu_agent_service *s, const char *fault);

/* failure.c */
/** A worker shows a sign of failing: takes a place in the server's order. */
void mu_agent_failure_sign(struct mu_agent_worker *w);
/** A worker has failed by itself: writes that to the round's store, unless an earlier failure is
 * there. */
void mu_agent_failure_publish(struct mu_agent_worker *w);
/** Whether a worker that failed has said why, and does not complain of a lost one. */
bool mu_agent_failure_is_own(const struct mu_agent_worker *w);
/** Whether a failure is being published, and the other nodes must not be told yet. */
bool mu_agent_failure_is_publishing(const struct mu_agent_service *s);
/** Checks whether a failure is there. */
void mu_agent_failure_read(struct mu_agent_round *r);
/** The store is gone with its host: nothing that was asked of it is waited for any more. */
void mu_agent_failure_give_up(struct mu_agent_round *r);
/** Workers of ours were signalled, or a failure became known: tells the others which still ran. */
void mu_agent_failure_tell_running(struct mu_agent_service *s);
/** At the end: lists our own workers that still ran, unless those of all nodes are known. */
void mu_agent_failure_list_own(struct mu_agent_service *s);
/** Workers start again: a failure of the rounds before was recovered from, and ends nothing. */
void mu_agent_failure_forget(struct mu_agent_service *s);

/* hang.c; the rest is in watchdog.h */
void mu_agent_hang_op_fini(struct mu_agent_hang_op *io);

/* warm.c */
void mu_agent_warm_init(struct mu_agent_service *s);
/** Starts the zygote, if the configuration has one. */
void mu_agent_warm_start(struct mu_agent_service *s);
/** Where workers come from; NULL: no standby waits. */
struct mu_standbys *mu_agent_warm_standbys(struct mu_agent_service *s);
/** Workers were started; s->workers tells which of them were standbys. */
void mu_agent_warm_used(struct mu_agent_service *s);
/** All of them run: the next standbys are due. */
void mu_agent_warm_running(struct mu_agent_service *s);
/** A standby could not become a worker. */
void mu_agent_warm_refused(struct mu_agent_service *s, uint32_t local_rank, const char *why);
/** No more workers are started. Returns whether there are no standbys any more; mu_agent_settle()
 * is called when there are none. */
bool mu_agent_warm_end(struct mu_agent_service *s);

/* workers.c */
int mu_agent_workers_init(struct mu_agent_service *s);
void mu_agent_workers_fini(struct mu_agent_service *s);
void mu_agent_workers_spawn(struct mu_agent_service *s, uint64_t generation,
                            uint32_t restart_count);
void mu_agent_workers_signal(struct mu_agent_service *s, int signal, bool kill);
void mu_agent_workers_warn(struct mu_agent_service *s, uint64_t within_ms);
/** At the end: leaves what remains of the workers' processes to the environment. */
void mu_agent_workers_leave(struct mu_agent_service *s);

#endif

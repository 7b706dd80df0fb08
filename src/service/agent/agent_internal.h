/*
 * Between the files of the agent's service:
 *
 *     agent.c           life, the pump between machine and driver, the rendezvous
 *     round.c     the store of a round: ranks, the workers' store, the barrier
 *     backing.c   the server on loopback, where workers do not go to their store themselves
 *     failure.c   the first failure: publishing and reading it
 *     workers.c   processes, their output and what they ask for
 *     verdict.c   how it ended, for humans and programs
 *
 * Facts come in as callbacks of the environment, of the rendezvous, of stores; each becomes an
 * event of the machine through mu_agent_tell(), and what the machine then wants is carried out.
 */
#ifndef MU_AGENT_SERVICE_INTERNAL_H
#define MU_AGENT_SERVICE_INTERNAL_H

#include "service/agent/agent.h"
#include "service/rdzv/bootstrap.h"

#define MU_AGENT_PENDING_MAX 16
#define MU_AGENT_LINE_MAX    64 /* of what a worker says on its channel */

/* One assignment and what hangs on it. It outlives its round: closing takes turns. */
struct mu_agent_round {
    struct mu_list link; /* s->rounds */
    struct mu_agent_service *s;
    uint64_t number;
    uint32_t rank;
    uint32_t world;
    uint32_t restarts_left;
    enum mu_exchange_generation generation; /* of the members */
    bool share;                             /* the workers' store is an agent's, not rank 0's own */
    char *store_url;
    char *addr_0; /* of rank 0, or NULL */
    struct mu_rdzv_round_store stores;
    bool store_open;
    struct mu_agent_exchange exchange;
    bool exchanging; /* ranks or the barrier: `done` is to come */
    bool is_barrier;
    struct mu_rdzv_bootstrap *bootstrap;
    struct mu_agent_gateway *gateway; /* a server on loopback: see backing.c */
    struct mu_timer backing_timer;
    bool has_ranks;
    bool has_master;
    struct mu_ranks ranks;
    char master_addr[MU_ADDR_HOST_MAX + 1];
    uint16_t master_port;

    /* the first failure: failure.c */
    struct mu_store_op op;
    bool op_busy;
    bool publishes; /* the op is ours to write, not to read */
    bool again;     /* another of our workers has failed meanwhile */
    unsigned tries;
    uint64_t op_order;
    struct mu_span op_key;
    struct mu_span op_values[2];
    struct mu_buf op_text;  /* what we write */
    struct mu_buf op_known; /* what we believe is there */
    bool failure_known;

    bool closing;
    bool bootstrap_ending;
    bool store_closing;
};

struct mu_agent_worker {
    struct mu_agent_service *s;
    uint32_t local_rank;
    struct mu_child child;
    bool spawned; /* the environment has it, until `gone` */
    bool running; /* since `started` */
    bool ever_ran;
    int signal_due; /* came before it ran */
    bool kill_due;
    struct mu_agent_worker_end end;

    /* signs of failing: failure.c */
    struct mu_store_op ticket_op;
    struct mu_span ticket_key;
    bool ticket_busy;
    uint64_t ticket; /* 0: none */
    mu_mono_t ticket_at;
    bool raised; /* it wrote a traceback, at `raised_at` */
    mu_mono_t raised_at;
    bool dying;  /* the kernel closes what it had open */
    bool failed; /* by itself, with its ticket or waiting for it */
    bool effect; /* because of a lost peer, it says */
    bool held;   /* a signal waits, to see whether it ends by itself */
    int held_signal;

    struct mu_conn channel;
    bool channel_open; /* `closed` is to come */
    bool asked;        /* to be told of changes */
    bool warned;       /* and has not said yet that it has saved */
    char line[MU_AGENT_LINE_MAX];
    size_t line_len;
};

/* A fact that came up while another was being worked on. */
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
    struct mu_agent_round *round; /* that workers run in, or that is exchanged */
    struct mu_agent_round *next;  /* assigned, and not wanted yet */

    struct mu_agent_worker *workers;
    struct mu_agent_worker_end *ends; /* for the verdict */
    struct mu_agent_attempt attempt;
    uint32_t spawned_count;
    struct mu_timer hold_timer;
    uint32_t running_count;
    uint64_t generation; /* 0: no workers */
    bool spawn_failed;

    unsigned rdzv_todo; /* MU_AGENT_DO_JOIN, _LEAVE, _CLOSE: held until a report is out */
    bool join_failed;   /* the join is because workers failed */
    bool joining;       /* `assigned` or `failed` is to come */
    mu_mono_t join_since;
    struct mu_timer wait_timer; /* while it joins: says what for */
    bool leaving;               /* `left` is to come */
    bool closing;               /* `closed` or `close_failed` is to come */

    /* the end */
    bool over;  /* the machine has ended */
    bool asked; /* the round's store, for a failure */
    bool asked_again;
    struct mu_timer ask_timer;  /* armed while others may still have something to say */
    struct mu_timer host_timer; /* armed while we are there for the others alone */
    bool host_waits;
    bool ask_waiting;
    bool told; /* `ended` was called */
    struct mu_timer end_timer;
    struct mu_timer soon; /* settles on the next turn */
    bool in_call;         /* of our user: no word of the end inside it */
    bool end_late;
    struct mu_agent_verdict verdict;
    struct mu_errmsg text;
    struct mu_errmsg said; /* the last line of the machine's */
    int last_signal;
    mu_mono_t since;

    bool freeing;
    bool rdzv_freed;
};

/* agent.c */
/** Gives the machine an event, and carries out what it wants; later, if it is at it already. */
void mu_agent_tell(struct mu_agent_service *s, struct mu_agent_event event);
void mu_agent_log(struct mu_agent_service *s, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
/** Something was finished that the end, the rendezvous or freeing may have waited for. */
void mu_agent_settle(struct mu_agent_service *s);

/* round.c */
/** NULL: there is no memory. */
struct mu_agent_round *mu_agent_round_new(struct mu_agent_service *s,
                                          const struct mu_rdzv_assignment *a);
/** NULL is fine. It is freed once all of it is closed. */
void mu_agent_round_close(struct mu_agent_round *r);
/** READY or NOT_READY follows. */
void mu_agent_round_exchange(struct mu_agent_round *r);
/** BARRIER_DONE follows. */
void mu_agent_round_barrier(struct mu_agent_round *r);
/** Ends what can be ended; frees it if nothing is left. */
void mu_agent_round_settle(struct mu_agent_round *r);

/** Workers meet there. */
void mu_agent_round_master(struct mu_agent_round *r, const char *addr, uint16_t port);
void mu_agent_round_not_ready(struct mu_agent_round *r, int status, const char *text);

/* backing.c */
/** Serves the workers' store from etcd; the round is told where, or that it cannot be. */
int mu_agent_gateway_to_etcd(struct mu_agent_round *r, struct mu_errmsg *reterr_msg);
/** Serves the workers' store, which is at another node; the round is told where. */
int mu_agent_gateway_to_node(struct mu_agent_round *r, const char *host, uint16_t port,
                             struct mu_errmsg *reterr_msg);
/** r->gateway is NULL, and the round settled, when it is gone; perhaps at once. */
void mu_agent_gateway_end(struct mu_agent_gateway *b);

/* failure.c */
/** A worker shows that it may be failing: takes a place in the server's order. */
void mu_agent_failure_sign(struct mu_agent_worker *w);
/** A worker has failed by itself: into the round's store, unless an earlier one is there. */
void mu_agent_failure_publish(struct mu_agent_worker *w);
/** Whether the others are not to be told yet. */
bool mu_agent_failure_is_publishing(const struct mu_agent_service *s);
/** Looks whether there is one. */
void mu_agent_failure_read(struct mu_agent_round *r);

/* workers.c */
int mu_agent_workers_init(struct mu_agent_service *s);
void mu_agent_workers_fini(struct mu_agent_service *s);
void mu_agent_workers_spawn(struct mu_agent_service *s, uint64_t generation,
                            uint32_t restart_count);
void mu_agent_workers_signal(struct mu_agent_service *s, int signal, bool kill);
void mu_agent_workers_warn(struct mu_agent_service *s, uint64_t within_ms);
/** At the end: what is left of the workers' processes is the environment's to end. */
void mu_agent_workers_leave(struct mu_agent_service *s);

#endif

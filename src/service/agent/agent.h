/*
 * An elastic agent: the policy (proto/agent/agent.h) with a rendezvous, the exchange of ranks and
 * real workers around it. `muster run` is this with options and a console.
 *
 *     mu_agent_service_new(env, &config, &events, &agent, &msg)
 *     mu_agent_service_start(agent)             log(...), prepare(...), output(...) follow
 *     mu_agent_service_signal(agent, SIGTERM)   whenever the process gets one
 *     ... ended(verdict): no worker is left, and the rendezvous knows ...
 *     mu_agent_service_free(agent)              freed() follows: the last callback
 *
 * The caller handles files: where the output of workers goes (`streams`, `output`), its end
 * (`tail`), and where workers leave their error files (`prepare`, `error_file`).
 * service/agent/output.h does this.
 *
 * The first failure of a run, across all agents, is found through the store of the round: signs of
 * failing are counted there in the server's order, and the first worker that failed stands under
 * MU_AGENT_FAILURE_KEY before the rendezvous hears of it (docs/agent.md). Every agent reads the key
 * when the round is over. If all workers that failed complain of others, the one to blame may not
 * have failed at all, but hang: each agent appends to MU_AGENT_RUNNING_KEY the workers that it had
 * to stop.
 *
 * Workers can ask for a warning: with `change_ms` set, each has a channel (MUSTER_NOTIFY_FD). A
 * worker that writes "notify\n" there is sent "change MILLISECONDS\n" before it is stopped because
 * the members change. It has that long, or until it writes "saved\n" or ends.
 *
 * No callback runs inside a call, except `log`, `prepare`, `streams`, `tail`, `error_file`,
 * `read_error_file`, `explain` and `log_files`, which must not call back; from inside the others
 * anything may be called.
 */
#ifndef MU_AGENT_SERVICE_H
#define MU_AGENT_SERVICE_H

#include "codec/agent/failure.h"
#include "codec/agent/hang.h"
#include "core/buf.h"
#include "core/child.h"
#include "proto/agent/agent.h"
#include "proto/agent/relays.h"
#include "proto/agent/health.h"
#include "proto/agent/warm.h"
#include "proto/stacks/straggle.h"
#include "service/agent/exchange.h"
#include "service/rdzv/rdzv.h"

#define MU_AGENT_FAILURE_KEY "muster/failure"
#define MU_AGENT_RUNNING_KEY "muster/running"
#define MU_AGENT_RUNNING_MAX 16             /* workers that are named one by one */
#define MU_AGENT_STEP_KEY    "muster/step/" /* and the node's rank: "STEP MICROSECONDS" */
#define MU_AGENT_TAIL_BYTES  65536 /* of a worker's output, to distinguish a cause from an effect */

struct mu_agent_service;
struct mu_store_server;

/* What the health of the machine is for: service/agent/health.h. */
enum mu_agent_health_mode {
    MU_AGENT_HEALTH_OFF = 0, /* nobody looks */
    MU_AGENT_HEALTH_TELLS,
    MU_AGENT_HEALTH_ON, /* a fault keeps the node out; policy.check must be set */
};

/* All pointers are borrowed for as long as the agent lives. */
struct mu_agent_service_config {
    struct mu_agent_config policy; /* workers, restarts, times, signals; `trace` may be set */
    struct mu_rdzv_params rdzv;
    const char *const *argv;      /* of a worker, up to a NULL; ${local_rank} still in it */
    const char *const *inherited; /* "NAME=value", up to a NULL */
    const char *role;
    const char *host; /* our name in a verdict; NULL: the rendezvous' name for us */
    enum mu_exchange_generation generation; /* 2 */
    bool identical;                         /* TORCH_ELASTIC_WORKER_IDENTICAL */
    bool share;                             /* agents serve the workers' store. Default: true */
    const char *backing; /* NULL, or etcd://...: the backing of the workers' store, on every node */
    bool sealed;         /* nodes speak to each other under the job's credential, which workers do
                            not know: workers reach their store through a gateway on their
                            loopback */
    bool holds;          /* these gateways answer for keys, where the store lets them. Yes */
    uint32_t relays;     /* of these, how many stand between the others and the store; see
                            proto/agent/relays.h. MU_RELAYS_AUTO */
    bool virtual_local_rank;
    const char *signals_to_handle; /* or NULL */
    uint32_t store_ms;             /* to reach the round's store. 60 s */
    uint32_t verdict_ms;           /* to write or read the first failure. 2 s */
    const char *check; /* or NULL: a command for the shell that decides whether this node is fit
                            to join */
    uint32_t check_ms; /* how long it may take. 60 s */
    enum mu_agent_health_mode health; /* OFF */
    const char *log_dir;              /* or NULL: the directory whose disk is looked at */
    uint64_t hang_ms; /* without progress of any worker, until the run hangs; 0: nobody looks. 0 */
    enum mu_hang_action hang_action; /* of the agent of node 0, for all. Default: tell */
    uint64_t straggle_ms; /* a span, by which stragglers are judged; 0: nobody looks. 0 */
    bool marked;        /* mu_agent_service_mark() is called: other output is not progress. false */
    const char *flight; /* NULL, or the beginning of the paths at which the flight recorders of
                           workers listen, and to which they write */
    bool flight_renamed;  /* their PyTorch has later names for the variables. false */
    bool keeps;           /* workers get vaults to keep their state in, and load from them. false */
    uint64_t keep_bytes;  /* of all vaults together; 0: half of the memory that this process
                                  may have. 0 */
    uint32_t keep_copies; /* of what this node's workers keep, on so many other nodes. 1 */
    const char *const *zygote; /* NULL, or the command of a process that keeps standbys of workers
                                   ready (core/child.h) */
};

/** Policy and times have their defaults; the caller sets the rest. */
struct mu_agent_service_config mu_agent_service_config_defaults(void);

/* Workers that are about to be started. Lent. */
struct mu_agent_attempt {
    uint64_t round;
    uint64_t generation;
    uint32_t restart_count;
    uint32_t group_rank;
    uint32_t group_world;
    struct mu_ranks ranks;
    uint32_t workers;
    const char *run_id;
    const char *role;
};

/* What became of a worker of the last generation. */
struct mu_agent_worker_end {
    uint32_t rank; /* in the world */
    uint32_t local_rank;
    int64_t pid; /* 0: it never ran */
    int exit_code;
    bool exited;  /* exit_code holds */
    bool stopped; /* we sent it a signal before it ended */
};

/* A worker that was still running when others had failed because of a lost or silent one. */
struct mu_agent_running {
    uint32_t rank;
    uint32_t local_rank;
    char host[64]; /* cut if it is longer */
};

/* How the workers of this node did in the last MU_STRAGGLE_SHORT spans. Lent for a call. */
struct mu_agent_paced {
    const struct mu_straggle_rank *workers; /* policy.workers of them */
    const struct mu_straggle *run;          /* node 0: of all ranks; else NULL */
};

/* Lent until the agent is freed. */
struct mu_agent_verdict {
    enum mu_agent_outcome outcome;
    int code;           /* ERROR: why */
    const char *text;   /* in one sentence */
    const char *unsaid; /* the end of `text` that was not in the last line of `log`; perhaps "" */
    int signal;         /* STOPPED: the signal that did it */
    const char *run_id;
    const char *host;
    const char *program; /* argv[0] of a worker */
    bool has_failure;
    bool failure_here;               /* it was one of ours */
    struct mu_failure first_failure; /* of the last round in which workers ran, as far as it is
                                        known here; the run recovered from earlier ones */
    uint32_t running_count; /* in the whole job; of these MU_AGENT_RUNNING_MAX are in `running` */
    struct mu_agent_running running[MU_AGENT_RUNNING_MAX];
    const struct mu_hang *hang; /* NULL, or the hang that the last workers were in */
    uint32_t worker_count;
    const struct mu_agent_worker_end *workers;
    uint32_t restart_count;
    uint64_t round;
    uint64_t took_ms;
};

struct mu_agent_service_events {
    /** One line for each decision, without a line end. What ends the run badly at once is only in
     * the verdict. */
    void (*log)(void *context, const char *line);
    /** One line now and then while a join is under way: what it waits for. NULL: `log` gets it. */
    void (*waits)(void *context, const char *line);
    /** Called before workers are started. 0, or a negative code with a text: they are not started.
     * May be NULL. */
    int (*prepare)(void *context, const struct mu_agent_attempt *attempt,
                   struct mu_errmsg *reterr_msg);
    /** Where a worker leaves its error file; "": nowhere. Lent until the next call. May be NULL. */
    const char *(*error_file)(void *context, uint32_t local_rank);
    /** Appends what a worker left in its error file, if it did. May be NULL. */
    void (*read_error_file)(void *context, uint32_t local_rank, struct mu_buf *out);
    /**
     * Says in a sentence what this machine knows of the end of a worker that failed, beyond its
     * exit code; `tail` is the end of its output. The text is empty before, and has room for `cap`
     * bytes. May be NULL.
     */
    void (*explain)(void *context, const struct mu_agent_worker_end *end, const char *tail,
                    char *text, size_t cap);
    /** Names the files that a worker's output goes to, likewise. May be NULL. */
    void (*log_files)(void *context, uint32_t local_rank, char *text, size_t cap);
    /** All workers of an attempt are running. May be NULL. */
    void (*started)(void *context, const struct mu_agent_attempt *attempt);
    /**
     * Sets where the output of a worker goes: `what->streams` but stdin, for this call. Without it,
     * both go to `output`. A traceback on a stream that goes elsewhere is not seen as a sign of
     * failing. May be NULL.
     */
    void (*streams)(void *context, uint32_t local_rank, struct mu_spawn *what);
    /**
     * Bytes of a worker; an empty span is the end of that stream. Returns how many were used; with
     * less than all, mu_env_child_resume() takes it up again. Called again with what is left.
     */
    size_t (*output)(void *context, uint32_t local_rank, struct mu_child *child,
                     enum mu_stream stream, struct mu_span in);
    /** Copies the end of what a worker has written, at most `cap` bytes. Returns the length. */
    size_t (*tail)(void *context, uint32_t local_rank, uint8_t *buf, size_t cap);
    /**
     * No process of an attempt is left, or none that the agent waits for; its files can be closed.
     * May be NULL.
     */
    void (*gone)(void *context, const struct mu_agent_attempt *attempt);
    /** A worker says that it has finished a step of its training, which took so long; 0: unknown.
     * May be NULL. */
    void (*step)(void *context, uint32_t local_rank, uint64_t step, uint64_t ns);
    /** The run hangs, or moves again; `log` was told in a sentence. May be NULL. */
    void (*hang)(void *context, const struct mu_hang *hang);
    /** What is wrong with this machine has changed; `news`, if it is not NULL, was told to `log` in
     * a sentence. May be NULL. */
    void (*health)(void *context, const struct mu_health_findings *now,
                   const struct mu_health_finding *news);
    /** A rank or node keeps the others waiting, or does so no longer; `log` was told in a sentence.
     * May be NULL. */
    void (*straggler)(void *context, const struct mu_straggle_change *change);
    /** How the workers did lately, after each span. May be NULL. */
    void (*paced)(void *context, const struct mu_agent_paced *paced);
    /** A line of the check's output. NULL: `log` gets it. */
    void (*checked)(void *context, const char *line);
    /** A worker has ended. May be NULL. */
    void (*exited)(void *context, const struct mu_agent_worker_end *end);
    /** The agent's work is done. Once. */
    void (*ended)(void *context, const struct mu_agent_verdict *verdict);
    /** See service/rdzv/rdzv.h. May be NULL. */
    void (*record)(void *context, const struct mu_rdzv_record *record);
    void (*freed)(void *context);
    void *context;
};

/** MUSTER_EINVAL with a text, the errors of mu_rdzv_open(), MUSTER_ENOMEM. */
int mu_agent_service_new(struct mu_env *env, const struct mu_agent_service_config *config,
                         const struct mu_agent_service_events *events,
                         struct mu_agent_service **ret_agent, struct mu_errmsg *reterr_msg);
void mu_agent_service_start(struct mu_agent_service *s);
/** The process was sent `signal`. */
void mu_agent_service_signal(struct mu_agent_service *s, int signal);
/** A line of a worker's output was a mark of progress, with the number of a step or NULL. */
void mu_agent_service_mark(struct mu_agent_service *s, uint32_t local_rank, const uint64_t *step);
/** The process of a worker of the last attempt; 0: it never ran. */
int64_t mu_agent_service_pid(const struct mu_agent_service *s, uint32_t local_rank);
/** The servers of the workers' store at this node, in the round: the gateway of its workers, and
 * the one that has the keys, which is at node 0. NULL: there is none. */
void mu_agent_service_stores(const struct mu_agent_service *s,
                             const struct mu_store_server **ret_gateway,
                             const struct mu_store_server **ret_server);
/** After `ended`. */
void mu_agent_service_free(struct mu_agent_service *s);

/* --- the verdict ------------------------------------------------------------------------------ */

/** 0: SUCCEEDED, GRACEFUL; 3: the rendezvous timed out; 4: it could not be reached, or refused or
 * excluded this node; 1: all else, as torchrun has it. */
int mu_agent_verdict_exit_code(const struct mu_agent_verdict *v);
/**
 * Writes one screen for people; `brief`: without what the reader has seen in the log.
 * MUSTER_ENOMEM, MUSTER_ELIMIT.
 */
int mu_agent_verdict_text(const struct mu_agent_verdict *v, bool brief, struct mu_buf *out);
/** Writes one JSON object and a line end. Errors likewise. */
int mu_agent_verdict_json(const struct mu_agent_verdict *v, struct mu_buf *out);

#endif

/*
 * An elastic agent: the policy (proto/agent/agent.h) with a rendezvous, the exchange of ranks and
 * real workers around it. `muster run` is this, options and a console.
 *
 *     mu_agent_service_new(env, &config, &events, &agent, &msg)
 *     mu_agent_service_start(agent)             log(...), prepare(...), output(...) follow
 *     mu_agent_service_signal(agent, SIGTERM)   whenever the process gets one
 *     ... ended(verdict): nothing of the workers is left, and the rendezvous knows ...
 *     mu_agent_service_free(agent)              freed() follows: the last callback
 *
 * Files are the caller's: where the output of workers goes (`streams`, `output`), what came last
 * (`tail`), where they leave their error files (`prepare`, `error_file`). service/agent/output.h
 * does it.
 *
 * The first failure of a run, across all agents, is found through the store of the round: signs of
 * failing are counted there in the server's order, and the first of those that failed stands under
 * MU_AGENT_FAILURE_KEY before the rendezvous hears of it (docs/agent.md). Everybody reads the key
 * when the round is over.
 *
 * What workers can ask for: with `change_ms` set, each has a channel (MUSTER_NOTIFY_FD). Whoever
 * writes "notify\n" there is told "change MILLISECONDS\n" before it is stopped because the members
 * change, and has that long, or until it writes "saved\n" or ends.
 *
 * No callback runs inside a call, except `log`, `prepare`, `streams`, `tail`, `error_file` and
 * `read_error_file`, which must not call back; from inside the others anything may be called.
 */
#ifndef MU_AGENT_SERVICE_H
#define MU_AGENT_SERVICE_H

#include "codec/agent/failure.h"
#include "core/buf.h"
#include "core/child.h"
#include "proto/agent/agent.h"
#include "service/agent/exchange.h"
#include "service/rdzv/rdzv.h"

#define MU_AGENT_FAILURE_KEY "muster/failure"
#define MU_AGENT_TAIL_BYTES  65536 /* of a worker's output, to tell a cause from an effect */

struct mu_agent_service;

/* All that is pointed to is borrowed for as long as the agent lives. */
struct mu_agent_service_config {
    struct mu_agent_config policy; /* workers, restarts, times, signals; trace is free */
    struct mu_rdzv_params rdzv;
    const char *const *argv;      /* of a worker, up to a NULL; ${local_rank} still in it */
    const char *const *inherited; /* "NAME=value", up to a NULL */
    const char *role;
    const char *host; /* our name in a verdict; NULL: the rendezvous' name for us */
    enum mu_exchange_generation generation; /* 2 */
    bool identical;                         /* TORCH_ELASTIC_WORKER_IDENTICAL */
    bool share;                             /* agents serve the workers' store. true */
    const char *backing; /* NULL, or etcd://...: the workers' store is there, on every node */
    bool sealed;         /* other nodes are spoken to under the job's credential, which workers do
                            not know: they reach their store through a gateway on their loopback */
    bool virtual_local_rank;
    const char *signals_to_handle; /* or NULL */
    uint32_t store_ms;             /* to reach the round's store. 60 s */
    uint32_t verdict_ms;           /* to write or read the first failure. 2 s */
};

/** Policy and times by their defaults; the rest is the caller's to set. */
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
    bool stopped; /* it was sent a signal by us before it ended */
};

/* Lent until the agent is freed. */
struct mu_agent_verdict {
    enum mu_agent_outcome outcome;
    int code;         /* ERROR: why */
    const char *text; /* in one sentence */
    int signal;       /* STOPPED: by which */
    const char *run_id;
    const char *host;
    const char *program; /* argv[0] of a worker */
    bool has_failure;
    bool failure_here;               /* it was one of ours */
    struct mu_failure first_failure; /* of the run, as far as it is known here */
    uint32_t worker_count;
    const struct mu_agent_worker_end *workers;
    uint32_t restart_count;
    uint64_t round;
    uint64_t took_ms;
};

struct mu_agent_service_events {
    /** One line for each decision, without an end. */
    void (*log)(void *context, const char *line);
    /** Before workers are started. 0, or a negative code with words: they are not. May be NULL. */
    int (*prepare)(void *context, const struct mu_agent_attempt *attempt,
                   struct mu_errmsg *reterr_msg);
    /** Where a worker leaves its error file; "": nowhere. Lent until the next call. May be NULL. */
    const char *(*error_file)(void *context, uint32_t local_rank);
    /** Appends what a worker left in its error file, if it did. May be NULL. */
    void (*read_error_file)(void *context, uint32_t local_rank, struct mu_buf *out);
    /** All workers of an attempt run. May be NULL. */
    void (*started)(void *context, const struct mu_agent_attempt *attempt);
    /**
     * Where the output of a worker leads: sets `what->streams` but stdin, for this call. Both lead
     * to `output` otherwise. Of a stream that leads elsewhere a traceback is no sign of failing.
     * May be NULL.
     */
    void (*streams)(void *context, uint32_t local_rank, struct mu_spawn *what);
    /**
     * Bytes of a worker; an empty span is the end of that stream. Returns how many were used; with
     * less than all, mu_env_child_resume() takes it up again. Called again with what is left.
     */
    size_t (*output)(void *context, uint32_t local_rank, struct mu_child *child,
                     enum mu_stream stream, struct mu_span in);
    /** Copies the end of what a worker has written, at most `cap` bytes; its length. */
    size_t (*tail)(void *context, uint32_t local_rank, uint8_t *buf, size_t cap);
    /**
     * No process of an attempt is left, or none that anybody waits for; its files can be closed.
     * May be NULL.
     */
    void (*gone)(void *context, const struct mu_agent_attempt *attempt);
    /** A worker has ended. May be NULL. */
    void (*exited)(void *context, const struct mu_agent_worker_end *end);
    /** The agent's work is done. Once. */
    void (*ended)(void *context, const struct mu_agent_verdict *verdict);
    /** See service/rdzv/rdzv.h. May be NULL. */
    void (*record)(void *context, const struct mu_rdzv_record *record);
    void (*freed)(void *context);
    void *context;
};

/** MUSTER_EINVAL in words, what mu_rdzv_open() says, MUSTER_ENOMEM. */
int mu_agent_service_new(struct mu_env *env, const struct mu_agent_service_config *config,
                         const struct mu_agent_service_events *events,
                         struct mu_agent_service **ret_agent, struct mu_errmsg *reterr_msg);
void mu_agent_service_start(struct mu_agent_service *s);
/** The process was sent `signal`. */
void mu_agent_service_signal(struct mu_agent_service *s, int signal);
/** The process of a worker of the last attempt; 0: it never ran. */
int64_t mu_agent_service_pid(const struct mu_agent_service *s, uint32_t local_rank);
/** After `ended`. */
void mu_agent_service_free(struct mu_agent_service *s);

/* --- the verdict ------------------------------------------------------------------------------ */

/** 0: SUCCEEDED, GRACEFUL; 1: all else, as torchrun has it. */
int mu_agent_verdict_exit_code(const struct mu_agent_verdict *v);
/** One screen for a human. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int mu_agent_verdict_text(const struct mu_agent_verdict *v, struct mu_buf *out);
/** One JSON object with a line's end behind it. Likewise. */
int mu_agent_verdict_json(const struct mu_agent_verdict *v, struct mu_buf *out);

#endif

/*
 * The command line of `muster run`: every option of torchrun with its PET_ variable, and ours.
 *
 *     struct run_options o;
 *     code = run_options_parse(&o, argc, argv);        words and variables, as torchrun takes them
 *     if (code == 0) code = run_options_resolve(&o, &machine);   what they mean, on this machine
 *     ... o.rdzv, o.argv, o.workers, ...
 *     run_options_fini(&o);
 *
 * Errors are printed to standard error, in one sentence each, and returned as an exit code:
 * CLI_USAGE for what argparse would have refused, CLI_FAILED for a value that turns out to be wrong
 * later, as in torchrun. Text is borrowed from argv and the environment.
 */
#ifndef MU_RUN_OPTIONS_H
#define MU_RUN_OPTIONS_H

#include "cli/cli_lock.h"
#include "cli/cli_log.h"
#include "cli/run_numa.h"

#include <muster/rendezvous.h>

#include "codec/agent/output_spec.h"
#include "service/rdzv/url.h"

#define RUN_WORKERS_MAX  4096
#define RUN_SIGNAL_MAX   64
#define RUN_ROLE_LEN_MAX 255

/* What the machine has, kept apart so that a test can set it. */
struct run_machine {
    uint32_t cpus;
    uint32_t gpus;          /* GPUs that a worker could see */
    const char *root;       /* where its files are; "" */
    struct mu_cpus allowed; /* CPUs on which this process may run */
    /** Whether a name can be looked up here. NULL: all can. */
    bool (*knows_name)(const char *name);
};

/* A list of texts, ended by NULL; owned. */
struct run_texts {
    char **items;
    size_t count;
};

struct run_options {
    /* torchrun's options, as they were given. */
    const char *nnodes, *nproc_per_node;
    const char *rdzv_backend, *rdzv_endpoint, *rdzv_id, *rdzv_conf;
    bool standalone;
    int64_t max_restarts;
    double monitor_interval;
    const char *start_method, *event_log_handler, *role;
    bool module, no_python, run_path;
    const char *log_dir, *redirects, *tee, *local_ranks_filter;
    const char *duplicate_stdout_filters, *duplicate_stderr_filters;
    int64_t node_rank, master_port;
    const char *master_addr, *local_addr, *logs_specs, *numa_binding, *signals_to_handle;
    bool virtual_local_rank;
    bool json; /* ours */
    /* Our options. */
    double detect, grace, upscale_delay;
    uint64_t spares;
    const char *signal_map, *verdict, *store_backing, *store_hold, *relays, *max_losses,
        *succession;
    const char *exclude_after, *exclude_action, *check;
    double exclude_for, check_timeout;
    const char *warm; /* modules, or NULL */
    const char *hang, *hang_action, *health, *stragglers, *flight_recorder, *progress_regex;
    const char *keep_memory; /* or NULL */
    uint64_t keep_copies;
    bool keep_trying;
    const char *http;
    struct cli_log_options log;
    struct cli_lock lock;
    bool has_backend, has_node_rank, has_master_addr, has_master_port;
    bool has_detect, has_spares, has_upscale_delay, has_exclude_for, has_exclude_action;
    /* The script and what follows it, untouched. */
    int script_argc;
    char **script_argv;

    /* What run_options_resolve() made of them. */
    struct muster_rdzv_params rdzv; /* its texts live as long as this struct */
    uint32_t workers;
    uint32_t restarts_max;
    uint32_t losses_max; /* if max_losses is given */
    uint64_t losses_ms;
    uint64_t grace_ms;
    uint64_t hang_ms;        /* 0: nobody looks for hangs */
    uint64_t keep_bytes;     /* --keep-memory; 0: auto */
    uint32_t relay_count;    /* or MU_RELAYS_AUTO, MU_RELAYS_OFF */
    uint64_t straggle_ms;    /* 0: nobody looks for stragglers */
    struct run_texts argv;   /* a worker's; ${local_rank} is not replaced yet */
    struct run_texts zygote; /* --warm: the command that keeps standbys; empty: there is none */
    struct mu_std_masks redirect_masks;
    struct mu_std_masks tee_masks;
    struct mu_rank_filter shown;          /* --local-ranks-filter */
    struct mu_text_filter stdout_filters; /* --duplicate-stdout-filters */
    struct mu_text_filter stderr_filters; /* --duplicate-stderr-filters */
    bool handled[RUN_SIGNAL_MAX + 1];     /* signals that the agent passes on */
    int sent_for[RUN_SIGNAL_MAX + 1];     /* the signal that is sent instead; 0: the same */
    struct mu_cpus *cpus;                 /* of each worker; NULL: any. Owned */
    bool omp_threads; /* OMP_NUM_THREADS=1 is set for workers, because it was not set */
    bool events;      /* --event-log-handler console */
    char endpoint_text[512];
    char run_id_text[64];
    char *config_text;
    struct mu_rdzv_url url; /* the endpoint, if it is a URL */
};

/** Returns 0, or CLI_USAGE or CLI_FAILED after it has printed the error. Fills in the first half;
 * --help prints and exits. */
int run_options_parse(struct run_options *o, int argc, char **argv);
/** Returns 0, or CLI_USAGE or CLI_FAILED after it has printed the error. run_options_fini() is due
 * in any case. */
int run_options_resolve(struct run_options *o, const struct run_machine *machine);
void run_options_fini(struct run_options *o);

/** Reads what this machine has: CPUs that are online; CUDA_VISIBLE_DEVICES, or else NVIDIA's
 * devices. */
struct run_machine run_machine_probe(void);
/** Returns how many devices a CUDA_VISIBLE_DEVICES names: CUDA stops at the first one that is not
 * valid. */
uint32_t run_machine_count_devices(const char *visible);

/** Settles on which CPUs each worker runs (--numa-binding). Returns 0, or CLI_FAILED after it has
 * printed the error. */
int run_cpus_resolve(struct run_options *o, const struct run_machine *machine);

/** Makes the command that keeps standbys of `o->argv` (--warm), or prints why there is none.
 * Returns 0, or CLI_USAGE or CLI_FAILED after it has printed the error. */
int run_warm_resolve(struct run_options *o);

/** Prints one sentence to standard error, or writes it to the log. */
void run_warn(const char *format, ...) __attribute__((format(printf, 1, 2)));

/** Parses "TERM", "SIGTERM" or "15"; 0: there is no such signal. */
int run_signal_number(const char *text, size_t len);
/** Parses --signals-to-handle; names that do not exist are skipped with a warning, as in
 * torchrun. */
void run_signals_parse(const char *text, bool handled[RUN_SIGNAL_MAX + 1]);
/** Parses --signal-map USR1=TERM,... Returns 0, or CLI_USAGE after it has printed the error. A
 * signal that is mapped is also handled. */
int run_signal_map_parse(const char *text, bool handled[RUN_SIGNAL_MAX + 1],
                         int sent_for[RUN_SIGNAL_MAX + 1]);

/** Returns false if memory runs out. */
bool run_texts_add(struct run_texts *t, const char *text, size_t len);
void run_texts_fini(struct run_texts *t);

#endif

/* The table of `muster run`: torchrun's options in torchrun's order, then ours. */
#include "cli/run_options.h"

#include <stdlib.h>
#include <string.h>

static const char *const start_methods[] = {"spawn", "fork", "forkserver", NULL};
static const char *const numa_modes[] = {"node", "socket", "exclusive", "core-complex", NULL};

static const char description[] =
    "Starts the workers of a training job on this node and keeps them running, together with the\n"
    "agents on the job's other nodes. Takes torchrun's options, in both spellings "
    "(--nproc-per-node,\n"
    "--nproc_per_node), and its PET_ variables as their defaults (PET_NPROC_PER_NODE). SCRIPT is "
    "run\n"
    "by $PYTHON_EXEC or python3, unless --no-python says that it runs by itself; what follows it "
    "is\n"
    "passed on untouched, but for ${local_rank}. Without --rdzv-backend: \"static\" if "
    "--node-rank,\n"
    "--master-addr or --master-port is given, else \"muster\".";

/* What most lines have in common. */
#define TEXT(option, value, help, field, env)                                                      \
    {                                                                                              \
        option, value, help, CLI_TEXT, &parsed.field, 0, .variable = "PET_" env                    \
    }
#define FLAG(option, help, field, env)                                                             \
    {                                                                                              \
        option, NULL, help, CLI_FLAG, &parsed.field, 0, .variable = "PET_" env                     \
    }

#define LOCK(option, value, help, field)                                                           \
    {                                                                                              \
        option, value, help, CLI_TEXT, &parsed.lock.field, 0, .whole = true                        \
    }

/* Where the table puts what it takes. */
static struct run_options parsed;

static const struct cli_option options[] = {
    TEXT("nnodes", "N|MIN:MAX", "nodes of the job (1:1)", nnodes, "NNODES"),
    TEXT("nproc-per-node", "N|WORD", "workers here: a number, cpu, gpu or auto (1)", nproc_per_node,
         "NPROC_PER_NODE"),
    {"rdzv-backend", "NAME", "muster, c10d, etcd-v3, etcd-v2, etcd or static", CLI_TEXT,
     &parsed.rdzv_backend, 0, .variable = "PET_RDZV_BACKEND", .given = &parsed.has_backend},
    TEXT("rdzv-endpoint", "HOST:PORT", "where the nodes meet; who can bind it hosts there only",
         rdzv_endpoint, "RDZV_ENDPOINT"),
    TEXT("rdzv-id", "ID", "of the job (none)", rdzv_id, "RDZV_ID"),
    TEXT("rdzv-conf", "KEY=VALUE,...", "of the rendezvous: see muster-run(1)", rdzv_conf,
         "RDZV_CONF"),
    FLAG("standalone", "one node by itself, on a free port, under a random id", standalone,
         "STANDALONE"),
    {"max-restarts", "N", "of failed workers, before giving up (0)", CLI_INTEGER,
     &parsed.max_restarts, 0, .variable = "PET_MAX_RESTARTS"},
    {"monitor-interval", "SECONDS", "taken and not needed: the end of a worker is told at once",
     CLI_SECONDS, &parsed.monitor_interval, 0, .variable = "PET_MONITOR_INTERVAL"},
    {"start-method", "spawn, fork, forkserver", "taken and not needed: for Python functions",
     CLI_TEXT, &parsed.start_method, 0, .variable = "PET_START_METHOD", .of = start_methods},
    TEXT("event-log-handler", "NAME", "null, or console: the rendezvous in JSON (null)",
         event_log_handler, "EVENT_LOG_HANDLER"),
    TEXT("role", "NAME", "of the workers (default)", role, "ROLE"),
    {"module", NULL, "SCRIPT is a Python module", CLI_FLAG, &parsed.module, 0, .letter = 'm',
     .variable = "PET_MODULE"},
    FLAG("no-python", "SCRIPT is a program: run it by itself", no_python, "NO_PYTHON"),
    FLAG("run-path", "run SCRIPT by Python's runpy.run_path", run_path, "RUN_PATH"),
    TEXT("log-dir", "DIR", "of the workers' logs (a new one in $TMPDIR)", log_dir, "LOG_DIR"),
    {"redirects", "MASKS", "to log files: 1 output, 2 errors, 3 both; or RANK:MASK,... (0)",
     CLI_TEXT, &parsed.redirects, 0, .letter = 'r', .variable = "PET_REDIRECTS"},
    {"tee", "MASKS", "the same, and to the console (0)", CLI_TEXT, &parsed.tee, 0, .letter = 't',
     .variable = "PET_TEE"},
    TEXT("local-ranks-filter", "RANKS", "who is seen on the console (all)", local_ranks_filter,
         "LOCAL_RANKS_FILTER"),
    TEXT("duplicate-stdout-filters", "TEXTS",
         "tee'd lines with one of these go to one file as well", duplicate_stdout_filters,
         "DUPLICATE_STDOUT_FILTERS"),
    TEXT("duplicate-stderr-filters", "TEXTS", "the same of standard error",
         duplicate_stderr_filters, "DUPLICATE_STDERR_FILTERS"),
    {"node-rank", "RANK", "static: of this node (0)", CLI_INTEGER, &parsed.node_rank, 0,
     .variable = "PET_NODE_RANK", .given = &parsed.has_node_rank},
    {"master-addr", "HOST", "static: of node 0 (127.0.0.1)", CLI_TEXT, &parsed.master_addr, 0,
     .variable = "PET_MASTER_ADDR", .given = &parsed.has_master_addr},
    {"master-port", "PORT", "static: of node 0 (29500)", CLI_INTEGER, &parsed.master_port, 0,
     .variable = "PET_MASTER_PORT", .given = &parsed.has_master_port},
    TEXT("local-addr", "HOST", "how others reach this node (its name)", local_addr, "LOCAL_ADDR"),
    {"logs-specs", "NAME", "refused: it names a class inside Python", CLI_TEXT, &parsed.logs_specs,
     0},
    {"numa-binding", "node, socket, exclusive, core-complex", "refused: not yet", CLI_TEXT,
     &parsed.numa_binding, 0, .of = numa_modes},
    TEXT("signals-to-handle", "SIGNALS",
         "that are passed on to workers (SIGTERM,SIGINT,SIGHUP,SIGQUIT)", signals_to_handle,
         "SIGNALS_TO_HANDLE"),
    FLAG("virtual-local-rank", "LOCAL_RANK=0 and one visible GPU for each worker",
         virtual_local_rank, "VIRTUAL_LOCAL_RANK"),
    /* Ours: spelled out, so that torchrun's can be cut short as they always could. */
    {"detect", "SECONDS", "muster: a silent node is dead (3)", CLI_SECONDS, &parsed.detect, 0,
     .given = &parsed.has_detect, .whole = true},
    {"grace", "SECONDS", "between SIGTERM and SIGKILL (30)", CLI_SECONDS, &parsed.grace, 0,
     .whole = true},
    {"signal-map", "USR1=TERM,...", "pass a signal on as another one", CLI_TEXT, &parsed.signal_map,
     0, .whole = true},
    {"spares", "N", "how many nodes beyond --nnodes may wait for a place (any number)", CLI_NUMBER,
     &parsed.spares, 65536, .given = &parsed.has_spares, .whole = true},
    {"upscale-delay", "SECONDS", "how long late-comers are gathered (muster 1, c10d 0)",
     CLI_SECONDS, &parsed.upscale_delay, 0, .given = &parsed.has_upscale_delay, .whole = true},
    {"verdict", "FILE", "write how the job ended there, as JSON", CLI_TEXT, &parsed.verdict, 0,
     .whole = true},
    {"store-backing", "URL", "the workers' store is in etcd://HOST,HOST/PREFIX", CLI_TEXT,
     &parsed.store_backing, 0, .whole = true},
    {"http", "HOST:PORT", "a page that says how the agent and its workers stand", CLI_TEXT,
     &parsed.http, 0, .whole = true},
    CLI_LOG_OPTIONS(parsed.log),
    /* Those of cli_lock.h. */
    LOCK("token-file", "FILE", "the job's token (MUSTER_TOKEN_FILE; see muster keygen)",
         lock.token_file),
    LOCK("tls-cert", "FILE", "instead of a token: this node's certificate (MUSTER_TLS_CERT)",
         lock.cert),
    LOCK("tls-key", "FILE", "the certificate's private key (MUSTER_TLS_KEY)", lock.key),
    LOCK("tls-ca", "FILE", "the authority that signs all certificates (MUSTER_TLS_CA)", lock.ca),
    LOCK("tls-name", "NAME", "name that a dialled server's certificate must have (the host)",
         lock.name),
    LOCK("allow", "CIDR,...", "addresses to speak PyTorch's plain protocol with (MUSTER_ALLOW)",
         allow),
    {"insecure", NULL, "let everyone in, without a credential (MUSTER_INSECURE=1)", CLI_FLAG,
     &parsed.lock.lock.insecure, 0, .whole = true},
};
static const struct cli_verb verb = {.name = "run",
                                     .synopsis = "[OPTIONS] [--] SCRIPT [ARGUMENTS...]",
                                     .description = description,
                                     .options = options,
                                     .option_count = sizeof(options) / sizeof(options[0]),
                                     .argparse = true};

int run_options_parse(struct run_options *o, int argc, char **argv)
{
    int err;

    parsed = (struct run_options){
        .nnodes = "1:1",
        .nproc_per_node = "1",
        .rdzv_backend = "",
        .rdzv_endpoint = "",
        .rdzv_id = "none",
        .rdzv_conf = "",
        .monitor_interval = 0.1,
        .start_method = "spawn",
        .event_log_handler = "null",
        .role = "default",
        .redirects = "0",
        .tee = "0",
        .local_ranks_filter = "",
        .duplicate_stdout_filters = "",
        .duplicate_stderr_filters = "",
        .master_addr = "127.0.0.1",
        .master_port = 29500,
        .local_addr = "",
        .signals_to_handle = "SIGTERM,SIGINT,SIGHUP,SIGQUIT",
        .grace = 30,
    };
    err = cli_parse(&verb, &argc, &argv);
    *o = parsed;
    if (err != 0) {
        return err;
    }
    if (argc == 0) {
        return cli_usage("run", "the script to run is missing");
    }
    o->script_argc = argc;
    o->script_argv = argv;
    return 0;
}

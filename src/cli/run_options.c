/* The table of `muster run`: torchrun's options in torchrun's order, then ours. */
#include "cli/run_options.h"

#include <stdlib.h>
#include <string.h>

static const char *const successions[] = {"majority", "any", "off", NULL};
static const char *const start_methods[] = {"spawn", "fork", "forkserver", NULL};

static const char *const exclude_actions[] = {"wait", "exit", NULL};
static const char *const healths[] = {"on", "warn", "off", NULL};
static const char *const on_or_off[] = {"on", "off", NULL};
static const char *const hang_actions[] = {"tell", "stacks", "restart", "exclude", NULL};

static const char description[] =
    "Starts the workers of a training job on this node and keeps them running, together with the\n"
    "agents on the job's other nodes. Takes torchrun's options in both spellings\n"
    "(--nproc-per-node, --nproc_per_node), and their defaults from torchrun's PET_ variables\n"
    "(PET_NPROC_PER_NODE). Runs SCRIPT with $PYTHON_EXEC, or the Python of the virtual\n"
    "environment this command is in, or python3, or by itself with --no-python, and passes\n"
    "everything after it on unchanged, except ${local_rank}. The default backend is static if\n"
    "--node-rank, --master-addr or --master-port is given, and muster otherwise.";

/* The parts that most lines share. */
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

/* Where the table stores the values. */
static struct run_options parsed;

static const struct cli_option options[] = {
    TEXT("nnodes", "N|MIN:MAX", "number of nodes in the job (1:1)", nnodes, "NNODES"),
    TEXT("nproc-per-node", "N|WORD", "workers on this node: a number, cpu, gpu or auto (1)",
         nproc_per_node, "NPROC_PER_NODE"),
    {"rdzv-backend", "NAME", "muster, c10d, etcd-v3, etcd-v2, etcd or static", CLI_TEXT,
     &parsed.rdzv_backend, 0, .variable = "PET_RDZV_BACKEND", .given = &parsed.has_backend},
    TEXT("rdzv-endpoint", "HOST:PORT",
         "where the nodes meet; the node that can bind it hosts the rendezvous", rdzv_endpoint,
         "RDZV_ENDPOINT"),
    TEXT("rdzv-id", "ID", "id of the run (none)", rdzv_id, "RDZV_ID"),
    TEXT("rdzv-conf", "KEY=VALUE,...", "options of the backend; see muster-rdzv(1)", rdzv_conf,
         "RDZV_CONF"),
    FLAG("standalone", "run one node by itself, on a free port, with a random id", standalone,
         "STANDALONE"),
    {"max-restarts", "N", "how often failed workers are restarted before the job fails (0)",
     CLI_INTEGER, &parsed.max_restarts, 0, .variable = "PET_MAX_RESTARTS"},
    {"monitor-interval", "TIME", "ignored: the end of a worker is reported at once", CLI_SECONDS,
     &parsed.monitor_interval, 0, .variable = "PET_MONITOR_INTERVAL"},
    {"start-method", "spawn, fork, forkserver", "ignored: it is for Python functions", CLI_TEXT,
     &parsed.start_method, 0, .variable = "PET_START_METHOD", .of = start_methods},
    TEXT("event-log-handler", "NAME", "null, or console: torchrun's event records as JSON (null)",
         event_log_handler, "EVENT_LOG_HANDLER"),
    TEXT("role", "NAME", "role of the workers (default)", role, "ROLE"),
    {"module", NULL, "SCRIPT is a Python module", CLI_FLAG, &parsed.module, 0, .letter = 'm',
     .variable = "PET_MODULE"},
    FLAG("no-python", "SCRIPT is a program: run it without Python", no_python, "NO_PYTHON"),
    FLAG("run-path", "run SCRIPT with Python's runpy.run_path", run_path, "RUN_PATH"),
    TEXT("log-dir", "DIR", "directory for the workers' logs (a new one in $TMPDIR)", log_dir,
         "LOG_DIR"),
    {"redirects", "MASKS", "write to log files: 1 stdout, 2 stderr, 3 both; or RANK:MASK,... (0)",
     CLI_TEXT, &parsed.redirects, 0, .letter = 'r', .variable = "PET_REDIRECTS"},
    {"tee", "MASKS", "write to log files, and to the console with a prefix (0)", CLI_TEXT,
     &parsed.tee, 0, .letter = 't', .variable = "PET_TEE"},
    TEXT("local-ranks-filter", "RANKS", "show only these local ranks on the console (all)",
         local_ranks_filter, "LOCAL_RANKS_FILTER"),
    TEXT("duplicate-stdout-filters", "TEXTS",
         "also copy tee'd lines that contain one of these to one file", duplicate_stdout_filters,
         "DUPLICATE_STDOUT_FILTERS"),
    TEXT("duplicate-stderr-filters", "TEXTS", "the same for standard error",
         duplicate_stderr_filters, "DUPLICATE_STDERR_FILTERS"),
    {"node-rank", "RANK", "static: rank of this node (0)", CLI_INTEGER, &parsed.node_rank, 0,
     .variable = "PET_NODE_RANK", .given = &parsed.has_node_rank},
    {"master-addr", "HOST", "static: host of node 0 (127.0.0.1)", CLI_TEXT, &parsed.master_addr, 0,
     .variable = "PET_MASTER_ADDR", .given = &parsed.has_master_addr},
    {"master-port", "PORT", "static: port of node 0 (29500)", CLI_INTEGER, &parsed.master_port, 0,
     .variable = "PET_MASTER_PORT", .given = &parsed.has_master_port},
    TEXT("local-addr", "HOST", "address at which other nodes reach this one (the host's name)",
         local_addr, "LOCAL_ADDR"),
    {"logs-specs", "NAME",
     "refused: names a class inside Python; use --redirects, --tee and others", CLI_TEXT,
     &parsed.logs_specs, 0},
    {"numa-binding", "node, socket, exclusive, core-complex",
     "run each worker on the CPUs near its GPU", CLI_TEXT, &parsed.numa_binding, 0,
     .of = run_numa_modes},
    TEXT("signals-to-handle", "SIGNALS",
         "signals to pass on to workers (SIGTERM,SIGINT,SIGHUP,SIGQUIT)", signals_to_handle,
         "SIGNALS_TO_HANDLE"),
    FLAG("virtual-local-rank", "give each worker LOCAL_RANK=0 and one visible GPU",
         virtual_local_rank, "VIRTUAL_LOCAL_RANK"),
    /* Our options cannot be abbreviated, so that torchrun's abbreviations keep their meaning. */
    {"check", "COMMAND", "a shell command that must end with 0 before this node joins", CLI_TEXT,
     &parsed.check, 0, .whole = true},
    {"check-timeout", "TIME", "how long --check may take (60s)", CLI_SECONDS, &parsed.check_timeout,
     86400, .whole = true},
    {"detect", "TIME", "muster: how long a node may be silent before it counts as lost (3s)",
     CLI_SECONDS, &parsed.detect, 0, .given = &parsed.has_detect, .whole = true},
    {"exclude-action", "wait, exit", "muster: what an excluded node does (wait)", CLI_TEXT,
     &parsed.exclude_action, 0, .given = &parsed.has_exclude_action, .whole = true,
     .of = exclude_actions},
    {"exclude-after", "N/TIME", "muster: exclude a node that fails so often in a time (never)",
     CLI_TEXT, &parsed.exclude_after, 0, .whole = true},
    {"exclude-for", "TIME", "muster: for how long a node is excluded (30m)", CLI_SECONDS,
     &parsed.exclude_for, 31536000, .given = &parsed.has_exclude_for, .whole = true},
    {"flight-recorder", "on, off",
     "have PyTorch's flight recorder listen, so that it can be asked who hangs in NCCL (on)",
     CLI_TEXT, &parsed.flight_recorder, 0, .whole = true, .of = on_or_off},
    {"grace", "TIME", "time between SIGTERM and SIGKILL (30s)", CLI_SECONDS, &parsed.grace, 0,
     .whole = true},
    {"hang", "TIME|off", "say so if no worker makes progress for this time (60s)", CLI_TEXT,
     &parsed.hang, 0, .whole = true},
    {"hang-action", "tell, stacks, restart, exclude",
     "what to do then: also print stacks, end the missing rank, exclude its node (tell)", CLI_TEXT,
     &parsed.hang_action, 0, .whole = true, .of = hang_actions},
    {"health", "on, warn, off",
     "look at GPUs and more: keep this node out if it is sick, say so, do not look (on)", CLI_TEXT,
     &parsed.health, 0, .whole = true, .of = healths},
    {"keep-copies", "N", "muster: also keep the states of a node on so many others, at most 3 (1)",
     CLI_NUMBER, &parsed.keep_copies, 3, .whole = true},
    {"keep-memory", "SIZE|auto",
     "muster: keep the states of workers in so much memory; auto: half of what there is (off)",
     CLI_TEXT, &parsed.keep_memory, 0, .whole = true},
    {"keep-trying", NULL, "do not give up on an unknown host name or a refused credential",
     CLI_FLAG, &parsed.keep_trying, 0, .whole = true},
    {"max-losses", "N/TIME", "how many nodes may be lost in a time (100/1h)", CLI_TEXT,
     &parsed.max_losses, 0, .whole = true},
    {"progress-regex", "REGEX",
     "a line of output that matches is progress; group 1 is the step (none)", CLI_TEXT,
     &parsed.progress_regex, 0, .whole = true},
    {"stragglers", "TIME|off",
     "look for ranks that keep the others waiting, in spans of this time (10s)", CLI_TEXT,
     &parsed.stragglers, 0, .whole = true},
    {"succession", "majority, any, off",
     "muster: when another node hosts the rendezvous if its host is lost (majority)", CLI_TEXT,
     &parsed.succession, 0, .whole = true, .of = successions},
    {"signal-map", "USR1=TERM,...", "pass a signal on as another one", CLI_TEXT, &parsed.signal_map,
     0, .whole = true},
    {"spares", "N", "muster: how many nodes beyond --nnodes may wait for a place (any)", CLI_NUMBER,
     &parsed.spares, 65536, .given = &parsed.has_spares, .whole = true},
    {"upscale-delay", "TIME", "how long late nodes are gathered (muster 1s, c10d 0)", CLI_SECONDS,
     &parsed.upscale_delay, 0, .given = &parsed.has_upscale_delay, .whole = true},
    {"verdict", "FILE", "write how the job ended to FILE, as JSON", CLI_TEXT, &parsed.verdict, 0,
     .whole = true},
    {"store-backing", "URL", "keep the workers' store in etcd (etcd://HOST,HOST/PREFIX)", CLI_TEXT,
     &parsed.store_backing, 0, .whole = true},
    {"store-hold", "on, off",
     "let the gateways of the workers' store answer repeated reads themselves (on)", CLI_TEXT,
     &parsed.store_hold, 0, .whole = true, .of = on_or_off},
    {"relays", "auto|off|N",
     "so many nodes' gateways read for the others, and carry what these change (auto)", CLI_TEXT,
     &parsed.relays, 0, .whole = true},
    {"warm", "MODULES", "restart workers from processes that have imported these (torch)", CLI_TEXT,
     &parsed.warm, 0, .whole = true, .otherwise = "torch"},
    {"http", "HOST:PORT", "serve a status page of the agent and its workers", CLI_TEXT,
     &parsed.http, 0, .whole = true},
    CLI_LOG_OPTIONS(parsed.log),
    {"json", NULL, "the same as --log-format json", CLI_FLAG, &parsed.json, 0, .whole = true},
    /* The options of cli_lock.h. */
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
        .keep_copies = 1,
        .exclude_action = "wait",
        .hang = "60s",
        .hang_action = "tell",
        .health = "on",
        .stragglers = "10s",
        .flight_recorder = "on",
        .store_hold = "on",
        .relays = "auto",
        .check_timeout = 60,
    };
    err = cli_parse(&verb, &argc, &argv);
    if (parsed.json) {
        parsed.log.format = "json";
    }
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

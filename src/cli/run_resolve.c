/* Resolves the options of `muster run`: nodes, workers, rendezvous and a worker's command. */
#include "cli/run_options.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/cli_python.h"
#include "service/agent/agent.h"

/* Python's run_path for one script, which gets its arguments as its own argv. */
static const char run_path_program[] = "import runpy, sys; del sys.argv[0]; "
                                       "runpy.run_path(sys.argv[0], run_name='__main__')";

static int out_of_memory(void)
{
    return cli_fail(CLI_FAILED, "out of memory");
}

/* --- nodes and workers ------------------------------------------------------------------------ */

/* Parses a number as Python's int() does, with blanks around it, in the range that makes sense
 * here. */
static bool parse_count(const char *text, size_t len, int64_t *ret)
{
    char buf[16];
    uint64_t v;
    bool negative;

    while (len > 0 && (text[0] == ' ' || text[0] == '\t')) {
        text++;
        len--;
    }
    while (len > 0 && (text[len - 1] == ' ' || text[len - 1] == '\t')) {
        len--;
    }
    negative = len > 0 && text[0] == '-';
    if (len > 0 && (text[0] == '-' || text[0] == '+')) {
        text++;
        len--;
    }
    if (len >= sizeof(buf)) {
        return false;
    }
    memcpy(buf, text, len);
    buf[len] = '\0';
    if (!cli_parse_number(buf, false, INT32_MAX, &v)) {
        return false;
    }
    *ret = negative ? -(int64_t)v : (int64_t)v;
    return true;
}

static int resolve_nodes(struct run_options *o)
{
    const char *colon = strchr(o->nnodes, ':');
    const char *second = colon == NULL ? o->nnodes : colon + 1;
    int64_t min, max;

    if (strchr(second, ':') != NULL ||
        !parse_count(o->nnodes, colon == NULL ? strlen(o->nnodes) : (size_t)(colon - o->nnodes),
                     &min) ||
        !parse_count(second, strlen(second), &max)) {
        return cli_fail(CLI_FAILED, "nnodes=%s is not in \"N\" or \"MIN:MAX\" format", o->nnodes);
    }
    if (min < 1 || max < min) {
        return cli_fail(CLI_FAILED,
                        "--nnodes %s: the minimum must be at least 1, and at most the maximum",
                        o->nnodes);
    }
    o->rdzv.nodes_min = (uint32_t)min;
    o->rdzv.nodes_max = (uint32_t)max;
    return 0;
}

static int resolve_workers(struct run_options *o, const struct run_machine *machine)
{
    const char *word = o->nproc_per_node;
    int64_t n;

    if (parse_count(word, strlen(word), &n)) {
        if (n < 1 || n > RUN_WORKERS_MAX) {
            return cli_fail(CLI_FAILED, "--nproc-per-node %s: a node runs from 1 to %d workers",
                            word, RUN_WORKERS_MAX);
        }
    } else if (strcmp(word, "gpu") == 0) {
        if (machine->gpus == 0) {
            return cli_fail(CLI_FAILED, "Cuda is not available.");
        }
        n = machine->gpus;
    } else if (strcmp(word, "cpu") == 0) {
        n = machine->cpus;
    } else if (strcmp(word, "auto") == 0) {
        n = machine->gpus != 0 ? machine->gpus : machine->cpus;
    } else if (strcmp(word, "xpu") == 0) {
        return cli_fail(CLI_FAILED,
                        "Xpu is not available: only Python can count such devices; give "
                        "the number of workers");
    } else {
        return cli_fail(CLI_FAILED, "Unsupported nproc_per_node value: %s", word);
    }
    o->workers = n > RUN_WORKERS_MAX ? RUN_WORKERS_MAX : (uint32_t)n;
    o->omp_threads = o->workers > 1 && getenv("OMP_NUM_THREADS") == NULL;
    return 0;
}

/* --- the rendezvous --------------------------------------------------------------------------- */

static int make_run_id(struct run_options *o)
{
    FILE *f = fopen("/proc/sys/kernel/random/uuid", "re");
    bool ok = f != NULL && fgets(o->run_id_text, sizeof(o->run_id_text), f) != NULL;

    if (f != NULL) {
        (void)fclose(f);
    }
    if (!ok) {
        return cli_fail(CLI_FAILED,
                        "cannot make a random id for the run; give --rdzv-id ID instead");
    }
    o->run_id_text[strcspn(o->run_id_text, "\n")] = '\0';
    o->rdzv.run_id = o->run_id_text;
    return 0;
}

/* Nodes of one job have to be told where they meet: a job on localhost would wait for the others in
 * vain. */
static int refuse_no_endpoint(const struct run_options *o)
{
    char host[256] = "THIS-HOST";

    (void)gethostname(host, sizeof(host) - 1);
    return cli_fail(CLI_FAILED,
                    "--nnodes %s needs the address where the nodes meet, the same on every node: "
                    "`muster run --nnodes %s --rdzv-endpoint %s:29400 ...` has them meet on this "
                    "host",
                    o->nnodes, o->nnodes, host);
}

static int resolve_endpoint(struct run_options *o, bool is_static)
{
    int len = 0;

    if (strcmp(o->rdzv.backend, "muster") == 0 && !o->standalone && o->rdzv_endpoint[0] == '\0' &&
        o->rdzv.nodes_max > 1) {
        return refuse_no_endpoint(o);
    }
    o->rdzv.endpoint = o->rdzv_endpoint;
    if (o->standalone ||
        (!is_static && !o->has_backend && o->rdzv_endpoint[0] == '\0' && o->rdzv.nodes_max == 1)) {
        /* No other node joins, so any free port will do, and two jobs on one machine never meet.
         * The name localhost would have to be in /etc/hosts, and a bare container has no such
         * file. */
        o->rdzv.endpoint = "127.0.0.1:0";
    } else if (is_static && o->rdzv_endpoint[0] == '\0') {
        if (o->master_port < 0 || o->master_port > UINT16_MAX) {
            return cli_fail(CLI_FAILED, "--master-port %lld is not from 0 to 65535",
                            (long long)o->master_port);
        }
        len = snprintf(o->endpoint_text, sizeof(o->endpoint_text), "%s:%d", o->master_addr,
                       (int)o->master_port);
        if (len >= (int)sizeof(o->endpoint_text)) {
            return cli_fail(CLI_FAILED, "--master-addr is longer than any address");
        }
        o->rdzv.endpoint = o->endpoint_text;
    }
    return 0;
}

/* Returns whether the nodes meet at an address that only this machine has. */
static bool is_here_only(const char *endpoint)
{
    static const char *const hosts[] = {"localhost", "127.", "[::1]"};

    endpoint += strncmp(endpoint, "etcd://", 7) == 0 ? 7 : 0;
    for (size_t i = 0; i < sizeof(hosts) / sizeof(hosts[0]); i++) {
        if (strncmp(endpoint, hosts[i], strlen(hosts[i])) == 0) {
            return true;
        }
    }
    return false;
}

/* If all nodes are on this machine, its name need not be resolvable. Where workers get this as
 * MASTER_ADDR, it is what torchrun gives them, unless they could not look it up. */
static void resolve_local_addr(struct run_options *o, const struct run_machine *machine)
{
    static const char here[] = "localhost";

    o->rdzv.local_addr = o->local_addr;
    if (o->local_addr[0] == '\0' && (o->rdzv.nodes_max == 1 || is_here_only(o->rdzv.endpoint))) {
        o->rdzv.local_addr =
            machine->knows_name == NULL || machine->knows_name(here) ? here : "127.0.0.1";
    }
}

/* Adds "key=value" to the configuration; the last one of a key counts. */
static int add_config_text(struct run_options *o, const char *key, const char *value)
{
    size_t len = o->config_text == NULL ? 0 : strlen(o->config_text);
    size_t room = len + strlen(key) + strlen(value) + 3;
    char *text = realloc(o->config_text, room);

    if (text == NULL) {
        return out_of_memory();
    }
    (void)snprintf(text + len, room - len, "%s%s=%s", len == 0 ? "" : ",", key, value);
    o->config_text = text;
    o->rdzv.config = text;
    return 0;
}

static int add_config(struct run_options *o, const char *key, double value)
{
    char text[40];

    (void)snprintf(text, sizeof(text), "%.15g", value);
    return add_config_text(o, key, text);
}

static bool config_has(const char *config, const char *key)
{
    size_t len = strlen(key);

    for (const char *at = config; at != NULL; at = strchr(at, ',')) {
        at += strspn(at, ", \t");
        if (strncmp(at, key, len) == 0 && at[len + strspn(at + len, " \t")] == '=') {
            return true;
        }
    }
    return false;
}

static int add_exclusion(struct run_options *o, bool is_native)
{
    struct mu_errmsg msg = {{0}};
    uint64_t within_ms;
    uint32_t after;
    int err = 0;

    if (!is_native && (o->exclude_after != NULL || o->has_exclude_for || o->has_exclude_action)) {
        return cli_fail(CLI_FAILED,
                        "--exclude-after, --exclude-for and --exclude-action are for the backend "
                        "\"muster\"; with \"%s\" there is no server that could exclude a node",
                        o->rdzv.backend);
    }
    if (o->exclude_after != NULL) {
        if (mu_rdzv_failures_parse(mu_span_str(o->exclude_after), &after, &within_ms, &msg) != 0) {
            return cli_fail(CLI_FAILED, "--exclude-after: %s", msg.text);
        }
        err = add_config_text(o, "exclude_after", o->exclude_after);
    } else if (o->has_exclude_for) {
        return cli_fail(CLI_FAILED, "--exclude-for says for how long; also say when: "
                                    "--exclude-after 3/10m");
    }
    if (err == 0 && o->has_exclude_for) {
        if (!(o->exclude_for > 0)) {
            return cli_fail(CLI_FAILED, "--exclude-for %g must be greater than 0", o->exclude_for);
        }
        err = add_config(o, "exclude_for", o->exclude_for);
    }
    return err;
}

/* Relays stand before a server that outlives the nodes. */
static int add_succession(struct run_options *o)
{
    const char *mode = o->succession != NULL ? o->succession : "majority";

    if (config_has(o->rdzv_conf, "via")) {
        return o->succession == NULL || strcmp(o->succession, "off") == 0
                   ? 0
                   : cli_fail(CLI_FAILED,
                              "--succession %.16s and --rdzv-conf via= exclude each other: relays "
                              "stand before a `muster serve`, which no node succeeds",
                              o->succession);
    }
    return o->rdzv.nodes_max > 1 && !config_has(o->rdzv_conf, "succession")
               ? add_config_text(o, "succession", mode)
               : 0;
}

/* Checks those of our options that not every backend knows. */
static int add_own_config(struct run_options *o, bool is_native)
{
    bool is_static = strcmp(o->rdzv.backend, "static") == 0;
    int err = 0;

    if (o->has_detect && strcmp(o->rdzv.backend, "etcd-v3") == 0) {
        err = cli_fail(CLI_FAILED, "--detect is for the backend \"muster\"; \"etcd-v3\" has "
                                   "--rdzv-conf lease_ttl=SECONDS");
    } else if (o->has_detect && strcmp(o->rdzv.backend, "etcd") == 0) {
        err = cli_fail(CLI_FAILED, "--detect is for the backend \"muster\"; the keep-alive keys of "
                                   "\"etcd\" live for 10 s, for all agents alike");
    } else if (!is_native && o->has_detect) {
        err = cli_fail(CLI_FAILED,
                       "--detect is for the backend \"muster\"; \"%s\" has --rdzv-conf "
                       "keep_alive_interval=SECONDS, and all agents must agree on it",
                       o->rdzv.backend);
    } else if (is_static && o->has_upscale_delay) {
        err = cli_fail(CLI_FAILED, "--upscale-delay: the backend \"static\" has no late nodes");
    } else if (is_static && o->has_spares) {
        err =
            cli_fail(CLI_FAILED, "--spares: the backend \"static\" has fixed ranks, so no node can "
                                 "take the place of another");
    } else if (is_static && o->max_losses != NULL) {
        err = cli_fail(CLI_FAILED, "--max-losses: a job with the backend \"static\" ends when a "
                                   "node is lost; use --rdzv-backend muster");
    } else if (!is_native && o->has_spares) {
        err = cli_fail(CLI_FAILED,
                       "--spares is for the backend \"muster\"; with \"%s\" any number of "
                       "nodes may wait for a place",
                       o->rdzv.backend);
    }
    if (err == 0) {
        err = add_exclusion(o, is_native);
    }
    if (err == 0 && !is_native && o->succession != NULL) {
        err = cli_fail(CLI_FAILED,
                       "--succession is for the backend \"muster\", where a node hosts the "
                       "rendezvous; with \"%s\" none does, or another kind of server",
                       o->rdzv.backend);
    }
    if (err == 0 && is_native) {
        err = add_succession(o);
    }
    if (err == 0 && o->has_detect) {
        err = add_config(o, "dead", o->detect);
    }
    if (err == 0 && o->has_upscale_delay) {
        err = add_config(o, "upscale_delay", o->upscale_delay);
    }
    if (err == 0 && o->has_spares) {
        err = add_config(o, "spares", (double)o->spares);
    }
    if (err == 0 && o->keep_trying) {
        err = add_config(o, "keep_trying", 1);
    }
    if (err == 0 && o->max_losses != NULL && is_native) {
        err = add_config_text(o, "max_losses", o->max_losses);
    }
    /* The server counts the restarts of the whole job, and its losses. */
    return err == 0 && is_native ? add_config(o, "max_restarts", (double)o->max_restarts) : err;
}

/* An endpoint that is a URL also names the backend and its configuration. */
static int take_url(struct run_options *o)
{
    const struct mu_rdzv_params given = {
        .backend = o->has_backend ? o->rdzv_backend : "",
        .endpoint = o->rdzv_endpoint,
        .run_id = o->rdzv_id,
        .nodes_min = o->rdzv.nodes_min,
        .nodes_max = o->rdzv.nodes_max,
        .config = o->rdzv_conf,
    };
    struct mu_errmsg msg = {{0}};

    if (!mu_rdzv_url_is(given.backend, o->rdzv_endpoint)) {
        return 0;
    }
    if (mu_rdzv_url_init(&o->url, &given, &msg) != 0) {
        return cli_fail(CLI_FAILED, "--rdzv-endpoint: %s", msg.text);
    }
    o->has_backend = true;
    o->rdzv_backend = o->url.params.backend;
    o->rdzv_endpoint = o->url.params.endpoint;
    o->rdzv_id = o->url.params.run_id;
    o->rdzv_conf = o->url.params.config;
    o->rdzv.nodes_min = o->url.params.nodes_min;
    o->rdzv.nodes_max = o->url.params.nodes_max;
    return 0;
}

static int resolve_rdzv(struct run_options *o, const struct run_machine *machine)
{
    bool is_static, is_native;
    int err = take_url(o);

    if (err != 0) {
        return err;
    }
    o->rdzv.backend = o->rdzv_backend;
    if (o->standalone) {
        o->rdzv.backend = "muster";
    } else if (!o->has_backend) {
        o->rdzv.backend =
            o->has_node_rank || o->has_master_addr || o->has_master_port ? "static" : "muster";
    }
    is_static = strcmp(o->rdzv.backend, "static") == 0;
    is_native = strcmp(o->rdzv.backend, "muster") == 0;
    o->rdzv.run_id = o->rdzv_id;
    o->rdzv.config = o->rdzv_conf;
    if (o->rdzv_conf[0] != '\0') {
        o->config_text = strdup(o->rdzv_conf);
        if (o->config_text == NULL) {
            return out_of_memory();
        }
    }
    if (o->standalone || o->rdzv_id[0] == '\0') {
        err = make_run_id(o);
    }
    if (err == 0 && o->rdzv_id[0] == '\0' && o->rdzv.nodes_max > 1) {
        run_warn(
            "--rdzv-id is empty, so this node has drawn the id %s; to meet it, other nodes must "
            "be given the same id",
            o->rdzv.run_id);
    }
    if (err == 0) {
        err = resolve_endpoint(o, is_static);
    }
    if (err == 0) {
        resolve_local_addr(o, machine);
    }
    if (err == 0 && is_static) {
        err = add_config(o, "rank", (double)o->node_rank);
    }
    /* The same as in torchrun. */
    if (err == 0 && (is_static || strcmp(o->rdzv.backend, "etcd") == 0) &&
        !config_has(o->rdzv_conf, "timeout") && !config_has(o->rdzv_conf, "join_timeout")) {
        err = add_config(o, "timeout", 900);
    }
    return err != 0 ? err : add_own_config(o, is_native);
}

/* --- the command ------------------------------------------------------------------------------ */

static int resolve_command(struct run_options *o)
{
    const char *python = getenv("PYTHON_EXEC");
    bool ok = true;

    if (o->run_path) {
        o->module = o->no_python = false;
    }
    if (o->module && o->no_python) {
        return cli_fail(CLI_FAILED, "Don't use both the '--no_python' flag and the '--module' flag "
                                    "at the same time.");
    }
    if (!o->no_python) {
        python = python != NULL ? python : cli_python();
        ok = run_texts_add(&o->argv, python, strlen(python)) && run_texts_add(&o->argv, "-u", 2);
    }
    if (o->run_path) {
        ok = ok && run_texts_add(&o->argv, "-c", 2) &&
             run_texts_add(&o->argv, run_path_program, sizeof(run_path_program) - 1);
        /* Python makes -c argv[0], and the program drops it. */
    } else if (o->module) {
        ok = ok && run_texts_add(&o->argv, "-m", 2);
    }
    for (int i = 0; ok && i < o->script_argc; i++) {
        ok = run_texts_add(&o->argv, o->script_argv[i], strlen(o->script_argv[i]));
    }
    return ok ? 0 : out_of_memory();
}

/* --- output ----------------------------------------------------------------------------------- */

static int refuse_spec(const char *option, const char *text, const struct mu_errmsg *msg)
{
    return cli_fail(CLI_FAILED, "--%s %s: %s", option, text, msg->text);
}

static int resolve_output(struct run_options *o)
{
    struct mu_errmsg msg;

    if (mu_std_masks_parse(mu_span_str(o->redirects), &o->redirect_masks, &msg) != 0) {
        return refuse_spec("redirects", o->redirects, &msg);
    }
    if (mu_std_masks_parse(mu_span_str(o->tee), &o->tee_masks, &msg) != 0) {
        return refuse_spec("tee", o->tee, &msg);
    }
    if (mu_rank_filter_parse(mu_span_str(o->local_ranks_filter), &o->shown, &msg) != 0) {
        return refuse_spec("local-ranks-filter", o->local_ranks_filter, &msg);
    }
    if (mu_text_filter_parse(mu_span_str(o->duplicate_stdout_filters), &o->stdout_filters, &msg) !=
        0) {
        return refuse_spec("duplicate-stdout-filters", o->duplicate_stdout_filters, &msg);
    }
    if (mu_text_filter_parse(mu_span_str(o->duplicate_stderr_filters), &o->stderr_filters, &msg) !=
        0) {
        return refuse_spec("duplicate-stderr-filters", o->duplicate_stderr_filters, &msg);
    }
    return 0;
}

/* --- the rest --------------------------------------------------------------------------------- */

static int refuse_foreign(const struct run_options *o)
{
    const char *handler = o->event_log_handler;

    if (o->logs_specs != NULL) {
        return cli_fail(CLI_FAILED,
                        "--logs-specs %s names a class inside Python, and muster runs outside "
                        "Python; what it may do is also done by --log-dir, --redirects, --tee, "
                        "--local-ranks-filter and --duplicate-stdout-filters",
                        o->logs_specs);
    }
    if (o->store_backing != NULL && strncmp(o->store_backing, "etcd://", 7) != 0) {
        return cli_fail(CLI_FAILED,
                        "--store-backing %s does not name an etcd cluster; write "
                        "etcd://HOST,HOST,HOST/PREFIX",
                        o->store_backing);
    }
    if (strcmp(handler, "null") != 0 && strcmp(handler, "console") != 0 &&
        strcmp(handler, "dynamic_rendezvous") != 0) {
        return cli_fail(CLI_FAILED,
                        "--event-log-handler %s is unknown: handlers other than null and console "
                        "exist only inside Python",
                        handler);
    }
    return 0;
}

#define HANG_MIN_S 1 /* less is no hang, and would only cost time */

static int resolve_hang(struct run_options *o)
{
    double seconds = 0;
    bool bare;

    if (strcmp(o->hang, "off") == 0) {
        return 0;
    }
    if (!cli_parse_seconds(o->hang, &seconds, &bare)) {
        return cli_usage("run", "--hang: \"%s\" is not a time: write 60s, 5m or off", o->hang);
    }
    if (seconds != 0 && seconds < HANG_MIN_S) {
        return cli_usage("run", "--hang: %s is too short: write at least %ds, or off", o->hang,
                         HANG_MIN_S);
    }
    o->hang_ms = cli_ms(seconds);
    return 0;
}

static int resolve_relays(struct run_options *o)
{
    char *end;
    long n = strtol(o->relays, &end, 10);

    if (strcmp(o->relays, "auto") == 0 || strcmp(o->relays, "off") == 0) {
        o->relay_count = o->relays[0] == 'a' ? MU_RELAYS_AUTO : MU_RELAYS_OFF;
        return 0;
    }
    if (end == o->relays || *end != '\0' || n < 1 || n > (long)MU_RELAYS_MAX) {
        return cli_usage("run", "--relays: write auto, off, or a number from 1 to %u, not \"%s\"",
                         MU_RELAYS_MAX, o->relays);
    }
    o->relay_count = (uint32_t)n;
    return 0;
}

#define SPAN_MIN_S 1   /* ten looks in less cost more than they are worth */
#define SPAN_MAX_S 600 /* a straggler is named after a few of them */

static int resolve_keep_memory(struct run_options *o)
{
    if (o->keep_memory == NULL || strcmp(o->keep_memory, "auto") == 0) {
        return 0;
    }
    if (!cli_parse_number(o->keep_memory, true, UINT64_MAX / 2, &o->keep_bytes) ||
        o->keep_bytes == 0) {
        return cli_usage("run", "--keep-memory: \"%s\" is not a size: write 32G, 500M or auto",
                         o->keep_memory);
    }
    return 0;
}

static int resolve_stragglers(struct run_options *o)
{
    double seconds = 0;
    bool bare;

    if (strcmp(o->stragglers, "off") == 0) {
        return 0;
    }
    if (!cli_parse_seconds(o->stragglers, &seconds, &bare)) {
        return cli_usage("run", "--stragglers: \"%s\" is not a time: write 10s, 1m or off",
                         o->stragglers);
    }
    if (seconds != 0 && (seconds < SPAN_MIN_S || seconds > SPAN_MAX_S)) {
        return cli_usage("run", "--stragglers: write a time from %ds to %ds, or off", SPAN_MIN_S,
                         SPAN_MAX_S);
    }
    o->straggle_ms = cli_ms(seconds);
    return 0;
}

static int resolve_numbers(struct run_options *o)
{
    struct mu_errmsg msg = {{0}};
    int code;

    if (o->max_restarts < 0) {
        return cli_fail(CLI_FAILED, "--max-restarts %lld must be at least 0",
                        (long long)o->max_restarts);
    }
    if (!(o->monitor_interval > 0)) {
        return cli_fail(CLI_FAILED, "--monitor-interval %g must be greater than 0",
                        o->monitor_interval);
    }
    if (o->has_detect && !(o->detect > 0)) {
        return cli_fail(CLI_FAILED, "--detect %g must be greater than 0", o->detect);
    }
    code = resolve_relays(o);
    code = code != 0 ? code : resolve_hang(o);
    if (code == 0) {
        code = resolve_stragglers(o);
    }
    if (code == 0) {
        code = resolve_keep_memory(o);
    }
    if (code != 0) {
        return code;
    }
    if (o->max_losses != NULL && mu_rdzv_losses_parse(mu_span_str(o->max_losses), &o->losses_max,
                                                      &o->losses_ms, &msg) != 0) {
        return cli_fail(CLI_FAILED, "--max-losses: %s", msg.text);
    }
    if (o->check != NULL && o->check[strspn(o->check, " \t\n")] == '\0') {
        return cli_fail(CLI_FAILED, "--check is empty: name a command");
    }
    if (!(o->check_timeout > 0)) {
        return cli_fail(CLI_FAILED, "--check-timeout %g must be greater than 0", o->check_timeout);
    }
    if (strlen(o->role) > RUN_ROLE_LEN_MAX) {
        return cli_fail(CLI_FAILED, "--role is longer than %d bytes", RUN_ROLE_LEN_MAX);
    }
    o->restarts_max = (uint32_t)o->max_restarts;
    o->grace_ms = cli_ms(o->grace);
    o->events = strcmp(o->event_log_handler, "console") == 0;
    run_signals_parse(o->signals_to_handle, o->handled);
    return o->signal_map == NULL ? 0 : run_signal_map_parse(o->signal_map, o->handled, o->sent_for);
}

int run_options_resolve(struct run_options *o, const struct run_machine *machine)
{
    int err = refuse_foreign(o);

    if (err == 0) {
        err = resolve_nodes(o);
    }
    if (err == 0) {
        err = resolve_numbers(o);
    }
    if (err == 0) {
        err = resolve_workers(o, machine);
    }
    if (err == 0) {
        err = run_cpus_resolve(o, machine);
    }
    if (err == 0) {
        err = resolve_rdzv(o, machine);
    }
    if (err == 0) {
        err = resolve_output(o);
    }
    if (err == 0) {
        err = resolve_command(o);
    }
    return err != 0 ? err : run_warm_resolve(o);
}

void run_options_fini(struct run_options *o)
{
    run_texts_fini(&o->argv);
    run_texts_fini(&o->zygote);
    mu_std_masks_fini(&o->redirect_masks);
    mu_std_masks_fini(&o->tee_masks);
    mu_rank_filter_fini(&o->shown);
    mu_text_filter_fini(&o->stdout_filters);
    mu_text_filter_fini(&o->stderr_filters);
    free(o->config_text);
    o->config_text = NULL;
    free(o->cpus);
    o->cpus = NULL;
    mu_rdzv_url_fini(&o->url);
}

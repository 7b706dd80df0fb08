/* muster rdzv: a rendezvous from the shell. */
#include "cli/cmd_rdzv.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "service/rdzv/url.h"

int rdzv_parse_nnodes(const char *text, uint32_t *ret_min, uint32_t *ret_max)
{
    const char *colon = strchr(text, ':');
    char min[16] = "";
    uint64_t low = 0;
    uint64_t high = 0;
    size_t len = colon == NULL ? strlen(text) : (size_t)(colon - text);

    if (len < sizeof(min)) {
        memcpy(min, text, len);
    }
    if (!cli_parse_number(min, false, UINT32_MAX, &low) ||
        !cli_parse_number(colon == NULL ? min : colon + 1, false, UINT32_MAX, &high)) {
        return cli_usage("rdzv", "--nnodes %s is neither a number nor MIN:MAX", text);
    }
    *ret_min = (uint32_t)low;
    *ret_max = (uint32_t)high;
    return 0;
}

static const char *const operations[] = {"join",    "status", "close", "exclude",
                                         "include", "extra",  NULL};
static int (*const runs[])(const struct rdzv_options *o) = {rdzv_join,    rdzv_status,  rdzv_close,
                                                            rdzv_exclude, rdzv_include, rdzv_extra};

static int take_words(struct rdzv_options *o, int argc, char **argv)
{
    bool names = strcmp(argv[0], "exclude") == 0 || strcmp(argv[0], "include") == 0;
    int words = strcmp(argv[0], "extra") == 0 ? 2 : names ? 1 : 0;

    for (int i = 1; i < argc; i++) {
        if (i > words) {
            return cli_usage("rdzv", "unexpected argument \"%s\"", argv[i]);
        }
        o->words[i - 1] = argv[i];
    }
    if (names && (argc < 2 || argv[1][0] == '\0')) {
        return cli_usage("rdzv", "name the node: muster rdzv %s NODE", argv[0]);
    }
    return 0;
}

/* An endpoint that is a URL also names the backend and its configuration. */
static int take_url(struct rdzv_options *o, struct mu_rdzv_url *url)
{
    struct mu_rdzv_params given = {
        .backend = o->backend, .endpoint = o->endpoint, .run_id = o->run_id, .config = o->config};
    struct mu_errmsg msg = {{0}};
    int err = rdzv_parse_nnodes(o->nnodes, &given.nodes_min, &given.nodes_max);

    if (err == 0 && mu_rdzv_url_is(o->backend, o->endpoint)) {
        err = mu_rdzv_url_init(url, &given, &msg);
        if (err != 0) {
            return cli_usage("rdzv", "%s", msg.text);
        }
        o->backend = url->params.backend;
        o->endpoint = url->params.endpoint;
        o->run_id = url->params.run_id;
        o->config = url->params.config;
        (void)snprintf(o->nnodes_text, sizeof(o->nnodes_text), "%" PRIu32 ":%" PRIu32,
                       url->params.nodes_min, url->params.nodes_max);
        o->nnodes = o->nnodes_text;
    }
    if (o->backend[0] == '\0') {
        o->backend = "muster";
    }
    return err;
}

static int run_operation(const struct rdzv_options *o, const char *name)
{
    size_t i = 0;

    while (strcmp(name, operations[i]) != 0) {
        i++;
    }
    if (o->run_id == NULL && runs[i] != rdzv_status) {
        return cli_usage("rdzv", "name the run: --rdzv-id ID");
    }
    return runs[i](o);
}

int cmd_rdzv(int argc, char **argv)
{
    struct cli_lock lock = {0};
    struct rdzv_options o = {.backend = "",
                             .endpoint = "",
                             .nnodes = "1",
                             .config = "",
                             .local_addr = "",
                             .reason = "",
                             .exclude_for = 1800,
                             .timeout = 10,
                             .lock = &lock};
    const struct cli_option options[] = {
        {"rdzv-backend", "B", "muster (the default), c10d, etcd-v3, etcd-v2, etcd or static",
         CLI_TEXT, &o.backend, 0},
        {"rdzv-endpoint", "HOST[:PORT]", "where the server is (localhost:29400), or etcd://...",
         CLI_TEXT, &o.endpoint, 0},
        {"rdzv-id", "ID", "id of the run", CLI_TEXT, &o.run_id, 0},
        {"nnodes", "MIN:MAX", "number of nodes in a round, or just one number (1)", CLI_TEXT,
         &o.nnodes, 0},
        {"rdzv-conf", "K=V,...", "options of the backend; see muster-rdzv(1)", CLI_TEXT, &o.config,
         0},
        {"local-addr", "ADDR", "address at which other nodes reach this one (the host's name)",
         CLI_TEXT, &o.local_addr, 0},
        {"rejoin", NULL, "join: enter the next round when one ends, instead of leaving", CLI_FLAG,
         &o.rejoin, 0},
        {"json", NULL, "print one JSON object per line", CLI_FLAG, &o.json, 0},
        {"timeout", "TIME", "all but join: how long to wait for the server (10s)", CLI_SECONDS,
         &o.timeout, 86400},
        {"for", "TIME", "exclude: for how long (30m)", CLI_SECONDS, &o.exclude_for, 31536000},
        {"reason", "TEXT", "exclude: why, for those who look", CLI_TEXT, &o.reason, 0},
        {"version", "V", "extra: the version (the current one)", CLI_NUMBER, &o.version, INT64_MAX},
        {"quiet", NULL, "join: do not say which node hosts the rendezvous", CLI_FLAG, &o.quiet, 0},
        {"verbose", NULL, "join: log every step to standard error", CLI_FLAG, &o.verbose, 0},
        CLI_LOG_OPTIONS(o.log),
        CLI_LOCK_OPTIONS(&lock),
    };
    const struct cli_verb verb = {
        "rdzv",
        "join|status|close|exclude|include|extra --rdzv-id ID [OPTIONS]",
        "join    becomes a node of a run and prints its events, until the round ends or until\n"
        "        SIGTERM or SIGINT, on which it leaves in order\n"
        "status  prints the status of a run and of its nodes; without --rdzv-id, lists all runs\n"
        "close   ends a run for all of its nodes\n"
        "exclude NODE does not let a node into a run for a time; if it is in, it has to go. NODE "
        "is\n"
        "        its name, its host or its machine's id, as status shows them\n"
        "include NODE lets it in again\n"
        "extra   NAME VALUE publishes a value for the nodes of a version, NAME alone waits for it\n"
        "        and prints it: the extra data of PyTorch's backend etcd",
        options,
        sizeof(options) / sizeof(options[0]),
        .operations = operations};
    struct mu_rdzv_url url = {.config = NULL};
    int err = cli_parse(&verb, &argc, &argv);

    err = err != 0 ? err : take_words(&o, argc, argv);
    err = err != 0 ? err : take_url(&o, &url);
    if (err == 0) {
        err = cli_log_open(&o.log, o.quiet ? MUSTER_LOG_ERROR : MUSTER_LOG_WARN,
                           o.verbose ? MUSTER_LOG_DEBUG
                           : o.quiet ? MUSTER_LOG_ERROR
                                     : MUSTER_LOG_INFO);
        cli_log_place(o.run_id, -1, -1);
    }
    if (err == 0) {
        err = run_operation(&o, argv[0]);
    }
    mu_rdzv_url_fini(&url);
    return err;
}

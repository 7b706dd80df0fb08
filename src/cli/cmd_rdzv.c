/* muster rdzv: a rendezvous from the shell. */
#include "cli/cmd_rdzv.h"

#include <stdlib.h>
#include <string.h>

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

static const struct {
    const char *name;
    int (*run)(const struct rdzv_options *o);
} verbs[] = {
    {"join", rdzv_join},
    {"status", rdzv_status},
    {"close", rdzv_close},
};

/* Options may stand before and behind the verb. */
static int parse(const struct cli_verb *verb, int argc, char **argv, const char **ret_name)
{
    int err;

    *ret_name = NULL;
    err = cli_parse(verb, &argc, &argv);
    if (err == 0 && argc > 0) {
        *ret_name = argv[0];
        err = cli_parse(verb, &argc, &argv);
    }
    if (err == 0 && argc > 0) {
        return cli_usage("rdzv", "\"%s\" is not an option", argv[0]);
    }
    return err;
}

int cmd_rdzv(int argc, char **argv)
{
    struct rdzv_options o = {.backend = "muster",
                             .endpoint = "",
                             .nnodes = "1",
                             .config = "",
                             .local_addr = "",
                             .timeout = 10};
    const struct cli_option options[] = {
        {"rdzv-backend", "B", "muster (the default), c10d, etcd-v3, etcd-v2 or static", CLI_TEXT,
         &o.backend, 0},
        {"rdzv-endpoint", "HOST[:PORT]", "where the server is (localhost:29400); or etcd://...",
         CLI_TEXT, &o.endpoint, 0},
        {"rdzv-id", "ID", "the run", CLI_TEXT, &o.run_id, 0},
        {"nnodes", "MIN:MAX", "how many nodes, or just N (1)", CLI_TEXT, &o.nnodes, 0},
        {"rdzv-conf", "K=V,...", "options of the backend: see muster-rdzv(1)", CLI_TEXT, &o.config,
         0},
        {"local-addr", "ADDR", "how others reach this node (its host name)", CLI_TEXT,
         &o.local_addr, 0},
        {"rejoin", NULL, "join: go into the next round when one ends", CLI_FLAG, &o.rejoin, 0},
        {"json", NULL, "one line of JSON for each event, or run", CLI_FLAG, &o.json, 0},
        {"timeout", "SECONDS", "status, close: how long to wait for the server (10)", CLI_NUMBER,
         &o.timeout, 86400},
        {"quiet", NULL, "join: do not say who hosts", CLI_FLAG, &o.quiet, 0},
        {"verbose", NULL, "join: say every step on standard error", CLI_FLAG, &o.verbose, 0},
    };
    const struct cli_verb verb = {
        "rdzv", "join|status|close --rdzv-id ID [OPTIONS]",
        "join    becomes a node of a run, says what happens to it, and stays until SIGTERM or\n"
        "        SIGINT (it leaves in order) or the end of its round\n"
        "status  how a run stands and who is in it; without --rdzv-id all runs of the server\n"
        "close   ends a run for all of its nodes",
        options, sizeof(options) / sizeof(options[0])};
    const char *name;
    int err = parse(&verb, argc, argv, &name);

    if (err != 0) {
        return err;
    }
    for (size_t i = 0; name != NULL && i < sizeof(verbs) / sizeof(verbs[0]); i++) {
        if (strcmp(name, verbs[i].name) == 0) {
            if (o.run_id == NULL && verbs[i].run != rdzv_status) {
                return cli_usage("rdzv", "--rdzv-id is needed: the name of the run");
            }
            return verbs[i].run(&o);
        }
    }
    return cli_usage("rdzv", "one of join, status and close is needed");
}

/* muster stacks: shows what workers are doing, without stopping them. */
#include "cli/cmd_stacks.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/stacks_print.h"

/* --- processes by number ---------------------------------------------------------------------- */

static int add_pid(void *context, const char *word, struct mu_errmsg *msg)
{
    struct mu_stacks_report head = {.rank = MU_STACKS_NO_RANK, .local_rank = MU_STACKS_NO_RANK};
    uint64_t pid;

    if (!cli_parse_number(word, false, INT32_MAX, &pid) || pid == 0) {
        return mu_err(msg, MUSTER_EINVAL, "a process is named by its number, such as 4711");
    }
    head.pid = (int64_t)pid;
    if (!stacks_list_add(context, &head)) {
        return mu_err(msg, MUSTER_EINVAL, "name at most %d processes", STACKS_PIDS_MAX);
    }
    return 0;
}

/* Prints what became of one process. Returns an exit code. */
static int tell(const struct stacks_list *list, size_t i, bool json)
{
    struct mu_stacks_report report;
    struct mu_span bytes;
    const char *why = NULL;
    int err = stacks_list_report(list, i, &bytes, &why);

    if (err == 0) {
        err = mu_stacks_report_decode(bytes, &report);
    }
    if (err != 0) {
        return cli_fail(CLI_FAILED, "%s", why != NULL ? why : muster_strerror(err));
    }
    if (json) {
        cli_print_json(stacks_json(&report));
    } else {
        stacks_print(&report);
    }
    return report.kind == MU_STACKS_PYTHON ? CLI_OK : CLI_FAILED;
}

static int stacks_of_pids(const struct stacks_options *o)
{
    struct stacks_list *list = stacks_list_new();
    int code;

    if (list == NULL) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    code = cli_use_words(o->pids, add_pid, list);
    if (code == 0) {
        code = stacks_list_take(list);
        for (size_t i = 0; code != CLI_USAGE && i < stacks_list_count(list); i++) {
            int one = tell(list, i, o->json);

            code = code == CLI_OK ? one : code;
            if (!o->json && i + 1 < stacks_list_count(list)) {
                printf("\n");
            }
        }
    }
    stacks_list_free(list);
    return code;
}

/* --- the command ------------------------------------------------------------------------------ */

static int run_it(const struct stacks_options *o)
{
    if (o->pids != NULL && o->endpoint != NULL) {
        return cli_usage("stacks", "--pid and --rdzv-endpoint exclude each other");
    }
    if (o->pids != NULL) {
        return stacks_of_pids(o);
    }
    if (o->backend != NULL && strcmp(o->backend, "muster") != 0) {
        return cli_usage("stacks",
                         "only the backend muster has a server to ask, and \"%.32s\" is another; "
                         "for a run with another, call `muster stacks` on each of its nodes, "
                         "without --rdzv-backend and --rdzv-endpoint",
                         o->backend);
    }
    return o->endpoint != NULL ? stacks_of_run(o) : stacks_local(o);
}

int cmd_stacks(int argc, char **argv)
{
    struct cli_lock lock = {0};
    struct stacks_options o = {.timeout = 2, .lock = &lock};
    const struct cli_option options[] = {
        {"rdzv-endpoint", "HOST[:PORT],...",
         "nodes of the run, or its server: asks all nodes; without it, those of this machine",
         CLI_TEXT, &o.endpoint, 0},
        {"rdzv-id", "ID", "id of the run, if there are several", CLI_TEXT, &o.run_id, 0},
        {"rdzv-backend", "B", "muster; the others have no server that could be asked", CLI_TEXT,
         &o.backend, 0},
        {"pid", "PID,...", "these processes of this machine, each in full", CLI_TEXT, &o.pids, 0},
        {"all-threads", NULL, "after the groups, print all threads of every worker", CLI_FLAG,
         &o.all_threads, 0},
        {"timeout", "TIME", "how long to wait for the nodes' answers (2s)", CLI_SECONDS, &o.timeout,
         3600},
        {"json", NULL, "print one JSON object for each run, or for each process", CLI_FLAG, &o.json,
         0},
        CLI_LOCK_OPTIONS(&lock),
    };
    const struct cli_verb verb = {
        "stacks", "[--rdzv-endpoint HOST[:PORT]] [--rdzv-id ID] [--pid PID,...] [OPTIONS]",
        "Shows what each worker of a run is doing: workers in the same line of the same functions\n"
        "are one group, and the odd ones come first. It asks all nodes through the run's server,\n"
        "or without --rdzv-endpoint looks at the workers of `muster run` on this machine. The\n"
        "workers are not stopped and do not notice. CPython 3.8 to 3.14 can be read.\n\n"
        "With --pid, it shows the threads of any processes of this machine instead, where each is\n"
        "in the kernel, and its Python functions, with file and line, the innermost first.\n\n"
        "Exit codes: 0 all were printed, 1 a node has not answered, there is no worker, or a\n"
        "process (--pid) is gone, is not Python, or may not be looked into; 2 wrong usage,\n"
        "3 timeout, 4 cannot connect, 7 there is no such run.",
        options, sizeof(options) / sizeof(options[0])};
    int code = cli_parse(&verb, &argc, &argv);

    if (code != 0) {
        return code;
    }
    if (argc != 0) {
        return cli_usage("stacks", "unexpected argument \"%s\"", argv[0]);
    }
    if (!(o.timeout > 0)) {
        return cli_usage("stacks", "--timeout %g must be greater than 0", o.timeout);
    }
    code = run_it(&o);
    if (stacks_list_stuck()) {
        (void)fflush(NULL);
        _exit(code == CLI_OK ? CLI_FAILED : code);
    }
    return code;
}

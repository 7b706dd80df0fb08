/* muster stacks: shows what processes are doing, without stopping them. */
#include "cli/cli.h"

#include <stdio.h>
#include <string.h>

#include "cli/cli_loop.h"
#include "cli/stacks_print.h"
#include "core/alloc.h"
#include "service/stacks/take.h"

#define PIDS_MAX 4096

struct stacks_one {
    struct mu_stacks_take take;
    struct stacks *all;
};

struct stacks {
    struct cli_loop loop;
    const char *pids; /* numbers, separated by commas */
    bool json;
    struct stacks_one *list;
    size_t count;
    size_t begun;
    size_t ended;
};

/* --- what was asked for ----------------------------------------------------------------------- */

static int add_pid(void *context, const char *word, struct mu_errmsg *msg)
{
    struct stacks *s = context;
    uint64_t pid;

    if (!cli_parse_number(word, false, INT32_MAX, &pid) || pid == 0) {
        return mu_err(msg, MUSTER_EINVAL, "a process is named by its number, such as 4711");
    }
    if (s->count == PIDS_MAX) {
        return mu_err(msg, MUSTER_EINVAL, "name at most %d processes", PIDS_MAX);
    }
    s->list[s->count++] = (struct stacks_one){
        .take.pid = (int64_t)pid,
        .take.head = {.rank = MU_STACKS_NO_RANK, .local_rank = MU_STACKS_NO_RANK},
        .all = s,
    };
    return 0;
}

/* --- processes of this machine ---------------------------------------------------------------- */

static void on_taken(struct mu_stacks_take *take);

/* The pool has a few threads only: more at once would only hold memory. */
#define AT_ONCE 8

static void begin_more(struct stacks *s)
{
    while (s->begun < s->count && s->begun - s->ended < AT_ONCE) {
        struct mu_stacks_take *take = &s->list[s->begun++].take;

        take->done = on_taken;
        take->err = mu_stacks_take(s->loop.env, take);
        s->ended += take->err != 0 ? 1 : 0;
    }
    if (s->ended == s->count) {
        cli_loop_stop(&s->loop);
    }
}

static void on_taken(struct mu_stacks_take *take)
{
    struct stacks *s = MU_CONTAINER_OF(take, struct stacks_one, take)->all;

    s->ended++;
    begin_more(s);
}

/* Prints what became of one process. Returns an exit code. */
static int tell(const struct stacks *s, const struct mu_stacks_take *take)
{
    struct mu_stacks_report report;
    int err = take->err;

    if (err == 0) {
        err = mu_stacks_report_decode(mu_buf_span(&take->report), &report);
    }
    if (err != 0) {
        return cli_fail(CLI_FAILED, "%s",
                        take->why.text[0] != '\0' ? take->why.text : muster_strerror(err));
    }
    if (s->json) {
        cli_print_json(stacks_json(&report));
    } else {
        stacks_print(&report);
    }
    return report.kind == MU_STACKS_PYTHON ? CLI_OK : CLI_FAILED;
}

static void on_signal(void *context, int number)
{
    (void)context;
    (void)number; /* A look takes a moment: it ends by itself. */
}

static int take_all(struct stacks *s)
{
    int code = cli_loop_open(&s->loop, on_signal, s);

    if (code != 0) {
        return code;
    }
    begin_more(s);
    cli_loop_run(&s->loop);
    cli_loop_close(&s->loop);
    for (size_t i = 0; i < s->count; i++) {
        int one = tell(s, &s->list[i].take);

        code = code == CLI_OK ? one : code;
        if (!s->json && i + 1 < s->count) {
            printf("\n");
        }
        mu_stacks_take_fini(&s->list[i].take);
    }
    return code;
}

/* --- the command ------------------------------------------------------------------------------ */

int cmd_stacks(int argc, char **argv)
{
    struct stacks s = {0};
    const struct cli_option options[] = {
        {"json", NULL, "print one JSON object for each process", CLI_FLAG, &s.json, 0},
        {"pid", "PID,...", "the processes, which are on this machine", CLI_TEXT, &s.pids, 0},
    };
    const struct cli_verb verb = {
        "stacks", "--pid PID[,PID...] [OPTIONS]",
        "Shows what each process is doing: its threads, where each is in the kernel, and the\n"
        "Python functions that each is in, with file and line, the innermost first. The\n"
        "processes are not stopped and do not notice. CPython 3.8 to 3.14 can be read.\n\n"
        "Exit codes: 0 the stacks of all were printed, 1 a process is gone, is not Python, or\n"
        "may not be looked into.",
        options, sizeof(options) / sizeof(options[0])};
    int code = cli_parse(&verb, &argc, &argv);

    if (code != 0) {
        return code;
    }
    if (argc != 0 || s.pids == NULL) {
        return cli_usage("stacks", "name processes with --pid");
    }
    s.list = mu_calloc(PIDS_MAX, sizeof(*s.list));
    if (s.list == NULL) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    code = cli_use_words(s.pids, add_pid, &s);
    if (code == 0) {
        code = take_all(&s);
    }
    mu_free(s.list);
    return code;
}

/* muster rdzv status and close, which work without joining the run. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "cli/cmd_rdzv.h"
#include "service/rdzv/ask.h"
#include "service/rdzv/look.h"

struct ask {
    struct cli_loop loop;
    const struct rdzv_options *o;
    struct mu_rdzv_handler *handler; /* close with a backend other than muster */
    uint64_t exclude_ms;             /* 0: include */
    size_t runs;
    int code;
};

/* --- printing --------------------------------------------------------------------------------- */

static json_t *text(const char *bytes)
{
    json_t *string = json_string(bytes);

    return string != NULL ? string : json_string("?");
}

static json_t *number(uint64_t value)
{
    return json_integer((json_int_t)value);
}

static json_t *members_json(const struct mu_rdzv_run_view *run)
{
    json_t *members = json_array();

    for (size_t i = 0; i < run->member_count; i++) {
        const struct mu_rdzv_member_view *m = &run->members[i];
        json_t *member = json_object();

        (void)json_object_set_new(member, "name", text(m->node));
        (void)json_object_set_new(member, "addr", text(m->addr));
        (void)json_object_set_new(member, "rank",
                                  m->rank < 0 ? json_null() : json_integer(m->rank));
        (void)json_object_set_new(member, "place", json_string(m->place));
        (void)json_object_set_new(member, "silent_ms", number(m->silent_ms));
        (void)json_array_append_new(members, member);
    }
    return members;
}

static json_t *exclusions_json(const struct mu_rdzv_run_view *run)
{
    json_t *exclusions = json_array();

    for (size_t i = 0; i < run->exclusion_count; i++) {
        const struct mu_rdzv_exclusion_view *e = &run->exclusions[i];
        json_t *exclusion = json_object();

        (void)json_object_set_new(exclusion, "node", text(e->node));
        (void)json_object_set_new(exclusion, "machine", text(e->machine));
        (void)json_object_set_new(exclusion, "reason", text(e->reason));
        (void)json_object_set_new(exclusion, "left_ms", number(e->left_ms));
        (void)json_object_set_new(exclusion, "by_hand", json_boolean(e->by_hand));
        (void)json_array_append_new(exclusions, exclusion);
    }
    return exclusions;
}

static void print_run(const struct mu_rdzv_run_view *run, bool members)
{
    json_t *object = json_object();

    (void)json_object_set_new(object, "run_id", text(run->run_id));
    (void)json_object_set_new(object, "state", json_string(run->state));
    (void)json_object_set_new(object, "incarnation", number(run->incarnation));
    (void)json_object_set_new(object, "round", number(run->round));
    (void)json_object_set_new(object, "nodes_min",
                              run->nodes_max == 0 ? json_null() : number(run->nodes_min));
    (void)json_object_set_new(object, "nodes_max",
                              run->nodes_max == 0 ? json_null() : number(run->nodes_max));
    (void)json_object_set_new(object, "restarts_left",
                              run->restarts_left == UINT32_MAX ? json_null()
                                                               : number(run->restarts_left));
    (void)json_object_set_new(object, "gathering", number(run->gathering));
    (void)json_object_set_new(object, "running", number(run->running));
    (void)json_object_set_new(object, "waiting", number(run->waiting));
    (void)json_object_set_new(object, "spare", number(run->spare));
    (void)json_object_set_new(object, "text", text(run->text));
    if (members) {
        (void)json_object_set_new(object, "members", members_json(run));
        (void)json_object_set_new(object, "exclusions", exclusions_json(run));
    }
    (void)json_dumpf(object, stdout, JSON_COMPACT);
    (void)fputc('\n', stdout);
    (void)fflush(stdout);
    json_decref(object);
}

static void say_run(const struct mu_rdzv_run_view *run)
{
    printf("%s: %s, round %" PRIu64, run->run_id, run->state, run->round);
    if (run->nodes_max != 0) {
        printf(", %" PRIu32 " to %" PRIu32 " nodes, incarnation %" PRIu64, run->nodes_min,
               run->nodes_max, run->incarnation);
    }
    (void)fputc('\n', stdout);
    printf("  running %" PRIu32 ", gathering %" PRIu32 ", waiting %" PRIu32 ", spare %" PRIu32,
           run->running, run->gathering, run->waiting, run->spare);
    if (run->restarts_left != UINT32_MAX) {
        printf(", restarts left %" PRIu32, run->restarts_left);
    }
    (void)fputc('\n', stdout);
    if (run->text[0] != '\0') {
        printf("  %s\n", run->text);
    }
    if (run->member_count != 0) {
        printf("  %5s  %-10s %10s  %-40s %s\n", "rank", "place", "silent", "name", "address");
    }
    for (size_t i = 0; i < run->member_count; i++) {
        const struct mu_rdzv_member_view *m = &run->members[i];
        char rank[24] = "-";

        if (m->rank >= 0) {
            (void)snprintf(rank, sizeof(rank), "%" PRId64, m->rank);
        }
        printf("  %5s  %-10s %8.1f s  %-40s %s\n", rank, m->place, (double)m->silent_ms / 1000,
               m->node, m->addr);
    }
}

static void say_exclusions(const struct mu_rdzv_run_view *run)
{
    for (size_t i = 0; i < run->exclusion_count; i++) {
        const struct mu_rdzv_exclusion_view *e = &run->exclusions[i];

        printf("  excluded for another %" PRIu64 " s: %s (machine %s): %s\n",
               (e->left_ms + 999) / 1000, e->node, e->machine, e->reason);
    }
}

/* --- asking ----------------------------------------------------------------------------------- */

static void on_run(void *context, const struct mu_rdzv_run_view *run)
{
    struct ask *a = context;

    a->runs++;
    if (a->o->json) {
        print_run(run, a->o->run_id != NULL);
    } else {
        say_run(run);
        say_exclusions(run);
    }
}

static void on_done(void *context, int status, const char *why)
{
    struct ask *a = context;

    if (status == MUSTER_ENOENT) {
        a->code = cli_fail(CLI_NO_KEY, "%s has no run \"%s\"",
                           mu_rdzv_can_look(a->o->backend) ? "etcd" : "the server", a->o->run_id);
    } else if (status != 0) {
        a->code = cli_fail(cli_exit_code(status), "%s", why);
    }
    cli_loop_stop(&a->loop);
}

static void on_signal(void *context, int number)
{
    struct ask *a = context;

    a->code = 128 + number;
    exit(a->code);
}

static int ask(struct ask *a, enum mu_rdzv_question question)
{
    const struct mu_rdzv_ask_events events = {.run = on_run, .done = on_done, .context = a};
    const struct rdzv_options *o = a->o;
    struct mu_errmsg msg = {{0}};
    struct mu_rdzv_ask_servers servers;
    int err = mu_rdzv_endpoints_parse(o->endpoint, MU_RDZV_PORT, servers.addrs,
                                      MU_RDZV_ASK_SERVERS_MAX, &msg);

    if (err < 0) {
        return cli_usage("rdzv", "%s", msg.text);
    }
    servers.count = (size_t)err;
    err = cli_loop_open_locked(&a->loop, on_signal, a, o->lock);
    if (err != 0) {
        return err;
    }
    err = question == MU_RDZV_ASK_EXCLUDE
              ? mu_rdzv_ask_exclude(a->loop.env, &servers, o->run_id, o->words[0], o->reason,
                                    a->exclude_ms, cli_ms(o->timeout), &events)
              : mu_rdzv_ask(a->loop.env, question, &servers, o->run_id == NULL ? "" : o->run_id,
                            cli_ms(o->timeout), &events);
    if (err != 0) {
        cli_loop_close(&a->loop);
        return cli_fail(cli_exit_code(err), "%s", muster_strerror(err));
    }
    cli_loop_run(&a->loop);
    cli_loop_close(&a->loop);
    return a->code;
}

/* Used with a backend that has no muster server to ask. */
static int look(struct ask *a)
{
    const struct mu_rdzv_ask_events events = {.run = on_run, .done = on_done, .context = a};
    const struct rdzv_options *o = a->o;
    const struct mu_rdzv_params params = {
        .backend = o->backend,
        .endpoint = o->endpoint,
        .run_id = o->run_id,
        .nodes_min = 1,
        .nodes_max = 1,
        .config = o->config,
    };
    struct mu_errmsg msg = {{0}};
    int err;

    if (o->run_id == NULL) {
        return cli_usage("rdzv", "name the run: --rdzv-id ID; etcd keeps no list of runs");
    }
    err = cli_loop_open_locked(&a->loop, on_signal, a, o->lock);
    if (err != 0) {
        return err;
    }
    err = mu_rdzv_look(a->loop.env, &params, cli_ms(o->timeout), &events, &msg);
    if (err != 0) {
        cli_loop_close(&a->loop);
        return cli_fail(cli_exit_code(err), "%s", msg.text);
    }
    cli_loop_run(&a->loop);
    cli_loop_close(&a->loop);
    return a->code;
}

int rdzv_status(const struct rdzv_options *o)
{
    struct ask a = {.o = o};
    int code;

    if (mu_rdzv_can_look(o->backend)) {
        return look(&a);
    }
    if (strcmp(o->backend, "muster") != 0) {
        return cli_usage("rdzv",
                         "status asks a muster server or etcd, and the backend %s uses neither",
                         o->backend);
    }
    code = ask(&a, MU_RDZV_ASK_STATUS);
    if (code == 0 && a.runs == 0 && o->run_id == NULL && !o->json) {
        printf("no runs\n");
    }
    return code;
}

/* --- closing over other backends -------------------------------------------------------------- */

static void on_closed(void *context)
{
    struct ask *a = context;

    mu_rdzv_free(a->handler);
}

static void on_close_failed(void *context, int status, const char *why)
{
    struct ask *a = context;

    a->code = cli_fail(cli_exit_code(status), "%s", why);
    mu_rdzv_free(a->handler);
}

static void on_freed(void *context)
{
    struct ask *a = context;

    cli_loop_stop(&a->loop);
}

static void on_waiting(void *context, uint32_t count)
{
    (void)context;
    (void)count;
}

static int close_elsewhere(struct ask *a)
{
    const struct mu_rdzv_events events = {
        .waiting = on_waiting,
        .closed = on_closed,
        .failed = on_close_failed,
        .close_failed = on_close_failed,
        .freed = on_freed,
        .context = a,
    };
    const struct rdzv_options *o = a->o;
    struct mu_rdzv_params params = {
        .backend = o->backend,
        .endpoint = o->endpoint,
        .run_id = o->run_id,
        .config = o->config,
    };
    struct mu_errmsg msg = {{0}};
    int err = rdzv_parse_nnodes(o->nnodes, &params.nodes_min, &params.nodes_max);

    if (err == 0) {
        err = cli_loop_open_locked(&a->loop, on_signal, a, o->lock);
    }
    if (err != 0) {
        return err;
    }
    err = mu_rdzv_open(a->loop.env, &params, &events, &a->handler, &msg);
    if (err != 0) {
        cli_loop_close(&a->loop);
        return cli_fail(cli_exit_code(err), "%s", msg.text);
    }
    mu_rdzv_close_run(a->handler);
    cli_loop_run(&a->loop);
    cli_loop_close(&a->loop);
    return a->code;
}

int rdzv_close(const struct rdzv_options *o)
{
    struct ask a = {.o = o};

    return strcmp(o->backend, "muster") == 0 ? ask(&a, MU_RDZV_ASK_CLOSE) : close_elsewhere(&a);
}

/* --- who is let in ---------------------------------------------------------------------------- */

static int change_exclusions(const struct rdzv_options *o, uint64_t exclude_ms)
{
    struct ask a = {.o = o, .exclude_ms = exclude_ms};

    if (strcmp(o->backend, "muster") != 0) {
        return cli_usage("rdzv",
                         "a node can be excluded with the backend muster, and %s is another",
                         o->backend);
    }
    return ask(&a, MU_RDZV_ASK_EXCLUDE);
}

int rdzv_exclude(const struct rdzv_options *o)
{
    if (!(o->exclude_for > 0)) {
        return cli_usage("rdzv", "--for %g must be greater than 0; include lets a node in again",
                         o->exclude_for);
    }
    return change_exclusions(o, cli_ms(o->exclude_for));
}

int rdzv_include(const struct rdzv_options *o)
{
    return change_exclusions(o, 0);
}

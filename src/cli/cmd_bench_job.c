/*
 * muster bench job: what N ranks of PyTorch ask of a store while they start, through one gateway
 * for each of M nodes, against a server in another process. The gateways are divided among a few
 * processes, each gateway with its own session over its own socket; a rank hands its operations to
 * its node's gateway without a socket in between, since a process cannot have so many.
 *
 * With --lenders, these gateways go to that many gateways of the first level, each in a process of
 * its own, which lend them keys.
 *
 * What a rank does, in PyTorch 2.x with NCCL (docs/scale.md has the sources):
 *
 *     ADD init/ 1                           TCPStore's constructor
 *     ADD barrier 1, ADD barrier 0          the store based barrier; the last one SETs its key,
 *     WAIT barrier:last_worker              and all wait for it
 *     SET id/ROOT                           every 128th rank is a root and sets its ncclUniqueId
 *     WAIT id/0 .. id/R, MULTI_GET          all read all of them
 *     SET, or WAIT and GET                  a communicator of --group ranks
 *     CHECK dump                            the monitor, --checks times
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

#include "cli/bench_parts.h"
#include "cli/bench_server.h"
#include "cli/cli.h"
#include "cli/cli_loop.h"
#include "service/server/gateway.h"
#include "service/server/gateway_hold.h"

#define SPARE_DESCRIPTORS 64
#define NODES_PER_PROCESS 512
#define GATEWAY_NICE      19
#define RANKS_PER_ROOT    128
#define ID_BYTES          128 /* of an ncclUniqueId */
#define KEY_MAX           96

enum step {
    STEP_INIT,
    STEP_BARRIER,
    STEP_BARRIER_COUNT,
    STEP_BARRIER_LAST, /* only one of them */
    STEP_BARRIER_WAIT,
    STEP_ID_SET, /* only roots */
    STEP_ID_WAIT,
    STEP_ID_GET,
    STEP_GROUP_SET, /* the first of a group */
    STEP_GROUP_WAIT,
    STEP_GROUP_GET,
    STEP_CHECK,
    STEP_DONE,
};

struct rank {
    struct mu_gateway_op op;
    struct mu_gateway_client client;
    struct bench *b;
    struct mu_gateway *gateway;
    uint32_t number;
    uint32_t checks;
    enum step step;
    bool last; /* to come to the barrier */
    struct mu_span key;
    char text[KEY_MAX];
};

struct bench {
    uint64_t ranks;
    uint64_t nodes;
    uint64_t group;
    uint64_t checks;
    uint64_t lender_count;
    uint64_t processes;
    bool no_hold;
    bool json;
    double timeout;
    /* private */
    struct bench_server server;
    struct bench_server *lenders;
    struct bench_parts parts;
    double at[4]; /* when the stages had been passed; the first one connects the gateways */
    struct bench_server_figures figures[4];
    struct mu_span *ids;
    char *id_texts;
    uint64_t roots;
    /* of one process */
    struct bench_part *part;
    struct cli_loop loop;
    struct mu_timer timer;
    uint64_t node_first;
    uint64_t node_count;
    struct mu_gateway **gateways;
    struct rank *all;
    uint64_t rank_count;
    bool open;  /* the gateways are connected, and ranks go on */
    bool ended; /* nothing more is measured */
    uint64_t opened;
    uint64_t closed;
    uint64_t done[STEP_DONE + 1]; /* ranks that have passed a step */
    uint8_t value[ID_BYTES];
    int code;
};

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void start_step(struct rank *r);

/* --- the end ---------------------------------------------------------------------------------- */

static void on_closed(void *context)
{
    struct bench *b = context;

    if (++b->closed == b->opened) {
        cli_loop_stop(&b->loop);
    }
}

static void close_all(struct bench *b)
{
    mu_env_timer_arm(b->loop.env, &b->timer, MU_MONO_NEVER);
    for (uint64_t i = 0; i < b->opened; i++) {
        mu_gateway_close(b->gateways[i], false, on_closed, b);
    }
    if (b->opened == 0) {
        cli_loop_stop(&b->loop);
    }
}

static void give_up(struct bench *b, int code)
{
    if (b->code == 0) {
        b->code = code;
        bench_part_passed(b->part, code, 0);
        close_all(b);
    }
}

static void on_timeout(struct mu_timer *timer)
{
    struct bench *b = MU_CONTAINER_OF(timer, struct bench, timer);

    give_up(b,
            cli_fail(CLI_TIMEOUT,
                     "of %" PRIu64 " ranks of one process %" PRIu64
                     " have passed the barrier and %" PRIu64 " have all ids after %g s",
                     b->rank_count, b->done[STEP_BARRIER_WAIT], b->done[STEP_ID_GET], b->timeout));
}

static void on_signal(void *context, int number)
{
    give_up(context, 128 + number);
}

static void on_turn(void *context)
{
    (void)context;
}

/* --- ranks ------------------------------------------------------------------------------------ */

/* Everybody waits for the last one before a part that is measured by itself. */
static bool is_meeting(enum step step)
{
    return step == STEP_BARRIER_WAIT || step == STEP_GROUP_GET || step == STEP_CHECK;
}

static void pass_step(struct rank *r)
{
    struct bench *b = r->b;
    enum step step = r->step++;

    b->done[step]++;
    if (!is_meeting(step)) {
        start_step(r);
    } else if (b->done[step] == b->rank_count) {
        bench_part_passed(b->part, 0, now_s());
    }
}

static void on_done(struct mu_gateway_op *op)
{
    struct rank *r = MU_CONTAINER_OF(op, struct rank, op);
    struct bench *b = r->b;

    if (b->code != 0 || b->ended) {
        return;
    }
    if (op->base.status != 0) {
        give_up(b, cli_fail(cli_exit_code(op->base.status), "rank %" PRIu32 ": %s", r->number,
                            op->base.errmsg.text));
        return;
    }
    if (r->step == STEP_ID_GET && op->base.reply.value_count != b->roots) {
        give_up(b, cli_fail(CLI_FAILED, "rank %" PRIu32 " did not get all ids", r->number));
        return;
    }
    /* The ADDs of a barrier give everybody its own number, and one of them the last. */
    if (r->step == STEP_BARRIER && op->base.reply.number != (int64_t)b->ranks) {
        r->step = STEP_BARRIER_COUNT;
        b->done[STEP_BARRIER]++;
        start_step(r);
        return;
    }
    r->last = r->last || r->step == STEP_BARRIER;
    if (r->step == STEP_CHECK && ++r->checks < b->checks) {
        start_step(r);
        return;
    }
    pass_step(r);
}

static void submit(struct rank *r, enum mu_store_verb verb, uint32_t flags,
                   const struct mu_span *keys, size_t count, int64_t number)
{
    struct bench *b = r->b;
    static struct mu_span value;

    value = mu_span(b->value, sizeof(b->value));
    r->op = (struct mu_gateway_op){.base.request = {.verb = verb,
                                                    .flags = flags,
                                                    .keys = keys,
                                                    .key_count = count,
                                                    .values = &value,
                                                    .value_count = verb == MU_STORE_SET ? 1 : 0,
                                                    .number = number},
                                   .done = on_done,
                                   .client = &r->client};
    mu_gateway_submit(r->gateway, NULL, &r->op);
}

#define PREFIX "/default_pg/0//"

static const struct mu_span *key(struct rank *r, const char *text)
{
    r->key = mu_span_str(text);
    return &r->key;
}

static const struct mu_span *group_key(struct rank *r, uint64_t group)
{
    (void)snprintf(r->text, sizeof(r->text), PREFIX "group%" PRIu64 "/0", group);
    return key(r, r->text);
}

static void start_step(struct rank *r)
{
    struct bench *b = r->b;
    uint64_t group = r->number / b->group;
    bool leads = r->number % b->group == 0;

    switch (r->step) {
    case STEP_INIT:
        submit(r, MU_STORE_ADD, 0, key(r, "init/"), 1, 1);
        return;
    case STEP_BARRIER:
        submit(r, MU_STORE_ADD, 0, key(r, PREFIX "store_based_barrier_key:1"), 1, 1);
        return;
    case STEP_BARRIER_COUNT:
        submit(r, MU_STORE_ADD, 0, key(r, PREFIX "store_based_barrier_key:1"), 1, 0);
        return;
    case STEP_BARRIER_LAST:
        if (r->last) {
            submit(r, MU_STORE_SET, 0, key(r, PREFIX "store_based_barrier_key:1:last_worker"), 1,
                   0);
            return;
        }
        break;
    case STEP_BARRIER_WAIT:
        submit(r, MU_STORE_WAIT, MU_STORE_IN_TURN,
               key(r, PREFIX "store_based_barrier_key:1:last_worker"), 1, 0);
        return;
    case STEP_ID_SET:
        if (r->number % RANKS_PER_ROOT == 0) {
            submit(r, MU_STORE_SET, 0, &b->ids[r->number / RANKS_PER_ROOT], 1, 0);
            return;
        }
        break;
    case STEP_ID_WAIT:
        submit(r, MU_STORE_WAIT, MU_STORE_IN_TURN, b->ids, b->roots, 0);
        return;
    case STEP_ID_GET:
        submit(r, MU_STORE_MULTI_GET, MU_STORE_NOWAIT | MU_STORE_OR_EMPTY, b->ids, b->roots, 0);
        return;
    case STEP_GROUP_SET:
        if (leads) {
            submit(r, MU_STORE_SET, 0, group_key(r, group), 1, 0);
            return;
        }
        break;
    case STEP_GROUP_WAIT:
        if (!leads) {
            submit(r, MU_STORE_WAIT, MU_STORE_IN_TURN, group_key(r, group), 1, 0);
            return;
        }
        break;
    case STEP_GROUP_GET:
        if (!leads) {
            submit(r, MU_STORE_GET, MU_STORE_NOWAIT, group_key(r, group), 1, 0);
            return;
        }
        break;
    case STEP_CHECK:
        submit(r, MU_STORE_CHECK, 0, key(r, PREFIX "exception_dump"), 1, 0);
        return;
    case STEP_DONE:
        return;
    }
    pass_step(r);
}

/* --- figures ---------------------------------------------------------------------------------- */

static void print_figure(const struct bench *b, const char *what, double value, int digits,
                         const char *unit)
{
    char name[96];

    (void)snprintf(name, sizeof(name), "job.%" PRIu64 ".%s", b->ranks, what);
    cli_figure(b->json, name, value, digits, unit);
}

static void print_part(const struct bench *b, const char *part, size_t index)
{
    const struct bench_server_figures *x = &b->figures[index - 1];
    const struct bench_server_figures *y = &b->figures[index];
    const struct {
        const char *what;
        double value;
        const char *unit;
        int digits;
    } rows[] = {
        {"server_cpu", (double)(y->cpu_us - x->cpu_us) / 1e6, "s", 3},
        {"messages_in", (double)(y->stats.messages_in - x->stats.messages_in), "messages", 0},
        {"messages_out", (double)(y->stats.messages_out - x->stats.messages_out), "messages", 0},
        {"bytes_in", (double)(y->stats.bytes_in - x->stats.bytes_in), "B", 0},
        {"bytes_out", (double)(y->stats.bytes_out - x->stats.bytes_out), "B", 0},
    };

    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char what[48];

        (void)snprintf(what, sizeof(what), "%s.%s", part, rows[i].what);
        print_figure(b, what, rows[i].value, rows[i].digits, rows[i].unit);
    }
}

static void print_figures(const struct bench *b)
{
    print_figure(b, "barrier.time", b->at[1] - b->at[0], 3, "s");
    print_part(b, "barrier", 1);
    print_figure(b, "communicators.time", b->at[2] - b->at[1], 3, "s");
    print_part(b, "communicators", 2);
    print_figure(b, "checks.time", b->at[3] - b->at[2], 3, "s");
    print_part(b, "checks", 3);
}

/* --- steps of the bench ----------------------------------------------------------------------- */

static int make_keys(struct bench *b)
{
    b->roots = (b->ranks + RANKS_PER_ROOT - 1) / RANKS_PER_ROOT;
    b->ids = calloc(b->roots, sizeof(*b->ids));
    b->id_texts = calloc(b->roots, KEY_MAX);
    if (b->ids == NULL || b->id_texts == NULL) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    for (uint64_t i = 0; i < b->roots; i++) {
        char *text = b->id_texts + i * KEY_MAX;

        (void)snprintf(text, KEY_MAX, PREFIX "cuda//UniqueNCCLID:%" PRIu64, i);
        b->ids[i] = mu_span_str(text);
    }
    return 0;
}

static const char *url_of(const struct bench *b, const struct bench_server *s, char *url,
                          size_t cap)
{
    (void)snprintf(url, cap, "tcp://127.0.0.1:%u?connect=60000%s", (unsigned)s->port,
                   b->no_hold ? "&hold=no" : "");
    return url;
}

static int start_servers(struct bench *b)
{
    int err = bench_server_start(&b->server, NULL, 1);
    uint64_t wanted = b->lender_count;
    char url[96];

    b->lenders = calloc(wanted + 1, sizeof(*b->lenders));
    for (b->lender_count = 0; err == 0 && b->lender_count < wanted; b->lender_count++) {
        err = bench_server_start(&b->lenders[b->lender_count],
                                 url_of(b, &b->server, url, sizeof(url)), 1);
    }
    return err;
}

static void stop_servers(struct bench *b)
{
    while (b->lender_count > 0) {
        bench_server_stop(&b->lenders[--b->lender_count]);
    }
    bench_server_stop(&b->server);
    free(b->lenders);
}

/* --- one process ------------------------------------------------------------------------------ */

static int open_gateways(struct bench *b)
{
    const struct mu_gateway_events events = {.turn_ended = on_turn, .context = b};
    struct mu_errmsg msg = {{0}};
    char url[96];

    for (; b->opened < b->node_count; b->opened++) {
        uint64_t node = b->node_first + b->opened;
        const struct bench_server *to =
            b->lender_count == 0 ? &b->server : &b->lenders[node * b->lender_count / b->nodes];
        int err;

        (void)url_of(b, to, url, sizeof(url));
        err = mu_gateway_new(b->loop.env, url, &events, &b->gateways[b->opened], &msg);

        if (err != 0) {
            return cli_fail(cli_exit_code(err), "%s", msg.text);
        }
    }
    return 0;
}

/* The first rank of a node; of the node behind the last, their number. */
static uint64_t first_rank(const struct bench *b, uint64_t node)
{
    return (node * b->ranks + b->nodes - 1) / b->nodes;
}

static int make_ranks(struct bench *b)
{
    uint64_t first = first_rank(b, b->node_first);

    b->rank_count = first_rank(b, b->node_first + b->node_count) - first;
    b->all = calloc(b->rank_count, sizeof(*b->all));
    b->gateways = calloc(b->node_count, sizeof(struct mu_gateway *));
    return b->all != NULL && b->gateways != NULL ? 0 : cli_fail(CLI_FAILED, "out of memory");
}

static void place_ranks(struct bench *b)
{
    uint64_t first = first_rank(b, b->node_first);

    for (uint64_t i = 0; i < b->rank_count; i++) {
        uint64_t node = (first + i) * b->nodes / b->ranks;

        b->all[i] = (struct rank){.b = b,
                                  .number = (uint32_t)(first + i),
                                  .client = {.in_order = true, .single = true},
                                  .gateway = b->gateways[node - b->node_first]};
    }
}

/* The next stage: the gateways connect; ranks begin, and go on where they met; all is over. */
static void on_go(void *context)
{
    struct bench *b = context;

    if (b->code != 0) {
        return;
    }
    if (!b->open) {
        int err = open_gateways(b);

        b->open = true;
        if (err != 0) {
            give_up(b, err);
            return;
        }
        place_ranks(b);
        mu_timer_init(&b->timer, on_timeout);
        mu_env_timer_arm(b->loop.env, &b->timer,
                         mu_mono_add_ms(mu_env_now(b->loop.env).mono, cli_ms(b->timeout)));
        bench_part_passed(b->part, 0, now_s());
        return;
    }
    if (b->done[STEP_CHECK] == b->rank_count) {
        b->ended = true;
        bench_part_passed(b->part, 0, now_s());
        close_all(b);
        return;
    }
    for (uint64_t i = 0; i < b->rank_count; i++) {
        start_step(&b->all[i]);
    }
}

static int run_part(void *context, uint64_t index, struct bench_part *part)
{
    struct bench *b = context;
    int err;

    /* What is measured must not wait for those who measure it. */
    (void)setpriority(PRIO_PROCESS, 0, GATEWAY_NICE);
    b->part = part;
    b->node_first = index * b->nodes / b->processes;
    b->node_count = (index + 1) * b->nodes / b->processes - b->node_first;
    err = make_ranks(b);
    err = err != 0 ? err : cli_loop_open(&b->loop, on_signal, b);
    err = err != 0 ? err : bench_part_listen(part, b->loop.uv, on_go, b);
    if (err != 0) {
        bench_part_passed(part, err, 0);
        return err;
    }
    cli_loop_run(&b->loop);
    cli_loop_close(&b->loop);
    return b->code;
}

/* --- all of it -------------------------------------------------------------------------------- */

/* Waits until all sessions are there. */
static int await_sessions(struct bench *b)
{
    const struct timespec step = {.tv_nsec = 100000000};
    uint64_t wanted = b->nodes + b->lender_count;
    double until = now_s() + b->timeout;
    uint64_t sessions = 0;

    while (sessions != wanted) {
        if (now_s() > until) {
            return cli_fail(CLI_TIMEOUT, "%" PRIu64 " of %" PRIu64 " sessions after %g s", sessions,
                            wanted, b->timeout);
        }
        (void)nanosleep(&step, NULL);
        sessions = 0;
        for (uint64_t i = 0; i <= b->lender_count; i++) {
            struct bench_server_figures f;

            if (!bench_server_figures(i == b->lender_count ? &b->server : &b->lenders[i], &f)) {
                return cli_fail(CLI_FAILED, "a server for the benchmark is gone");
            }
            sessions += f.stats.sessions;
        }
    }
    return 0;
}

static int measure(struct bench *b)
{
    int err = bench_parts_stage(&b->parts, &b->at[0]);

    err = err != 0 ? err : await_sessions(b);
    for (size_t i = 0; i < 4 && err == 0; i++) {
        err = i == 0 ? 0 : bench_parts_stage(&b->parts, &b->at[i]);
        b->at[i] = i == 0 ? now_s() : b->at[i];
        if (err == 0 && !bench_server_figures(&b->server, &b->figures[i])) {
            err = cli_fail(CLI_FAILED, "a server for the benchmark is gone");
        }
    }
    return err;
}

static int run(struct bench *b)
{
    int err = start_servers(b);

    err = err != 0 ? err : make_keys(b);
    err = err != 0 ? err : bench_parts_start(&b->parts, b->processes, run_part, b);
    err = err != 0 ? err : measure(b);
    if (err == 0) {
        double at;

        print_figures(b);
        (void)bench_parts_stage(&b->parts, &at);
    }
    bench_parts_stop(&b->parts);
    stop_servers(b);
    free(b->ids);
    free(b->id_texts);
    return err;
}

int cmd_bench_job(int argc, char **argv)
{
    struct bench b = {.ranks = 1000, .group = 8, .checks = 1, .timeout = 600};
    const struct cli_option options[] = {
        {"ranks", "N", "number of ranks (1000)", CLI_NUMBER, &b.ranks, 1000000},
        {"nodes", "N", "number of nodes, each with a gateway (one for 8 ranks)", CLI_NUMBER,
         &b.nodes, 60000},
        {"group", "N", "ranks of the small communicators (8)", CLI_NUMBER, &b.group, 1000000},
        {"checks", "N", "how often each rank's monitor looks (1)", CLI_NUMBER, &b.checks, 1000000},
        {"lenders", "N", "gateways of a first level, to which those of nodes go (0)", CLI_NUMBER,
         &b.lender_count, 1000},
        {"processes", "N", "processes for the nodes' gateways (one for 512 nodes)", CLI_NUMBER,
         &b.processes, 1000},
        {"no-hold", NULL, "gateways pass every operation on", CLI_FLAG, &b.no_hold, 0},
        {"timeout", "TIME", "give up after this long (10m)", CLI_SECONDS, &b.timeout, 86400},
        {"json", NULL, "print one JSON object per line", CLI_FLAG, &b.json, 0},
    };
    const struct cli_verb verb = {
        "bench job", "[--ranks N] [--nodes N] [OPTIONS]",
        "Does what N ranks of PyTorch ask of a store while they start: a barrier, one NCCL\n"
        "communicator of all, one of each group, a look of the monitor. Each node's gateway has "
        "its\n"
        "own session over its own socket; a few processes have them all, another has the server.\n"
        "Prints `name value unit` lines: times, and what the server had to take and to send.",
        options, sizeof(options) / sizeof(options[0])};
    int err = cli_parse(&verb, &argc, &argv);
    uint64_t descriptors;

    if (err == 0 && argc != 0) {
        err = cli_usage("bench job", "unexpected argument \"%s\"", argv[0]);
    }
    if (err != 0) {
        return err;
    }
    b.nodes = b.nodes == 0 ? (b.ranks + 7) / 8 : b.nodes;
    if (b.ranks == 0 || b.group == 0 || b.checks == 0 || b.nodes > b.ranks) {
        return cli_usage("bench job", "name numbers above 0, and no more nodes than ranks");
    }
    b.processes =
        b.processes == 0 ? (b.nodes + NODES_PER_PROCESS - 1) / NODES_PER_PROCESS : b.processes;
    b.processes = b.processes > b.nodes ? b.nodes : b.processes;
    /* The server has a socket for each node. */
    descriptors = cli_raise_descriptor_limit();
    if (descriptors < b.nodes + SPARE_DESCRIPTORS) {
        return cli_fail(CLI_FAILED,
                        "%" PRIu64 " nodes need as many sockets, and this process may have %" PRIu64
                        " descriptors; raise the hard limit (ulimit -Hn) or name fewer nodes",
                        b.nodes, descriptors);
    }
    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    return run(&b);
}

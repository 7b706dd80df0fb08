/*
 * muster bench rdzv: N nodes of a rendezvous in this one process, each with its own session over
 * its own socket, against a server in another. All connect; then all join at once; the clock runs
 * from the last join that was sent to the last rank that came.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cli/bench_server.h"
#include "cli/cli.h"
#include "cli/cli_loop.h"
#include "service/rdzv/rdzv.h"

#define SPARE_DESCRIPTORS 64

struct node {
    struct bench *b;
    struct mu_rdzv_handler *handler;
    bool connected;
    bool assigned;
};

struct bench {
    uint64_t count;
    const char *backend;
    const char *address;
    bool members;
    double timeout;
    bool json;
    /* private */
    struct cli_loop loop;
    struct mu_timer timer; /* the time limit */
    struct bench_server server;
    bool own_server;
    struct node *nodes;
    uint8_t *ranks; /* ranks that were given out */
    uint64_t opened;
    uint64_t connected;
    uint64_t assigned;
    uint64_t freed;
    double opened_at;
    double connected_at;
    double joined_at; /* when the last join was sent */
    double done_at;
    struct bench_server_figures before;
    struct bench_server_figures after;
    int code;
};

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* --- what happens ----------------------------------------------------------------------------- */

static void free_all(struct bench *b)
{
    mu_env_timer_arm(b->loop.env, &b->timer, MU_MONO_NEVER);
    for (uint64_t i = 0; i < b->opened; i++) {
        mu_rdzv_free(b->nodes[i].handler);
    }
    if (b->opened == 0) {
        cli_loop_stop(&b->loop);
    }
}

static void give_up(struct bench *b, int code)
{
    if (b->code == 0) {
        b->code = code;
        free_all(b);
    }
}

static void join_all(struct bench *b)
{
    b->connected_at = now_s();
    if (b->own_server) {
        (void)bench_server_figures(&b->server, &b->before);
    }
    for (uint64_t i = 0; i < b->opened; i++) {
        mu_rdzv_join(b->nodes[i].handler);
    }
    b->joined_at = now_s();
}

static void on_assigned(void *context, const struct mu_rdzv_assignment *a)
{
    struct node *node = context;
    struct bench *b = node->b;

    if (a->world != b->count || node->assigned || b->ranks[a->rank] != 0) {
        give_up(
            b, cli_fail(CLI_FAILED, "rank %" PRIu32 " of %" PRIu32 " is wrong", a->rank, a->world));
        return;
    }
    node->assigned = true;
    b->ranks[a->rank] = 1;
    if (++b->assigned == b->count) {
        b->done_at = now_s();
        if (b->own_server) {
            (void)bench_server_figures(&b->server, &b->after);
        }
        free_all(b);
    }
}

/* The backend reports when it is connected and when it has sent its join. */
static void on_record(void *context, const struct mu_rdzv_record *record)
{
    struct node *node = context;
    struct bench *b = node->b;

    if (strcmp(record->name, "muster.connected") == 0 && !node->connected) {
        node->connected = true;
        if (++b->connected == b->count) {
            join_all(b);
        }
    } else if (strcmp(record->name, "muster.join") == 0) {
        b->joined_at = now_s();
    }
}

static void on_failed(void *context, int status, const char *text)
{
    struct node *node = context;

    give_up(node->b, cli_fail(cli_exit_code(status), "%s", text));
}

static void on_ended(void *context, const struct mu_rdzv_ending *ending)
{
    struct node *node = context;

    if (node->b->assigned < node->b->count) {
        give_up(node->b, cli_fail(CLI_FAILED, "%s", ending->text));
    }
}

static void on_waiting(void *context, uint32_t count)
{
    (void)context;
    (void)count;
}

static void on_closed(void *context)
{
    on_failed(context, MUSTER_ERDZV_CLOSED, "another node closed the run");
}

static void on_freed(void *context)
{
    struct node *node = context;

    if (++node->b->freed == node->b->opened) {
        cli_loop_stop(&node->b->loop);
    }
}

static void on_timeout(struct mu_timer *timer)
{
    struct bench *b = MU_CONTAINER_OF(timer, struct bench, timer);

    give_up(b, cli_fail(CLI_TIMEOUT,
                        "%" PRIu64 " of %" PRIu64 " connected and %" PRIu64
                        " were given a rank within %g s",
                        b->connected, b->count, b->assigned, b->timeout));
}

static void on_signal(void *context, int number)
{
    give_up(context, 128 + number);
}

/* --- steps ------------------------------------------------------------------------------------ */

static bool is_etcd(const struct bench *b)
{
    return strncmp(b->backend, "etcd", 4) == 0;
}

static int open_nodes(struct bench *b, const char *endpoint)
{
    bool native = strcmp(b->backend, "muster") == 0;
    struct mu_errmsg msg = {{0}};
    char run_id[64];

    (void)snprintf(run_id, sizeof(run_id), "bench-%" PRIu64 "-%" PRIx64, b->count,
                   (uint64_t)(now_s() * 1e9));
    b->opened_at = now_s();
    for (; b->opened < b->count; b->opened++) {
        struct node *node = &b->nodes[b->opened];
        /* No node leaves or closes the run. */
        const struct mu_rdzv_events events = {
            .record = on_record,
            .assigned = on_assigned,
            .waiting = on_waiting,
            .ended = on_ended,
            .closed = on_closed,
            .failed = on_failed,
            .freed = on_freed,
            .context = node,
        };
        char config[128];
        struct mu_rdzv_params params = {
            .backend = b->backend,
            .endpoint = endpoint,
            .run_id = run_id,
            .nodes_min = (uint32_t)b->count,
            .nodes_max = (uint32_t)b->count,
            .local_addr = "127.0.0.1",
            .config = config,
        };
        int err;

        (void)snprintf(config, sizeof(config), "%sname=node%05" PRIu64 "%s",
                       is_etcd(b) ? "" : "is_host=false,", b->opened,
                       b->members ? ",members=true" : "");
        node->b = b;
        err = mu_rdzv_open(b->loop.env, &params, &events, &node->handler, &msg);
        if (err != 0) {
            return cli_fail(cli_exit_code(err), "%s", msg.text);
        }
    }
    if (!native) {
        join_all(b);
    }
    return 0;
}

static void print_figure(const struct bench *b, const char *what, double value, int digits,
                         const char *unit)
{
    char name[96];

    (void)snprintf(name, sizeof(name), "rdzv.%s.%" PRIu64 ".%s", b->backend, b->count, what);
    cli_figure(b->json, name, value, digits, unit);
}

static void print_figures(const struct bench *b)
{
    const struct mu_store_server_stats *x = &b->before.stats;
    const struct mu_store_server_stats *y = &b->after.stats;

    if (b->connected == b->count) {
        print_figure(b, "connect", b->connected_at - b->opened_at, 6, "s");
    }
    print_figure(b, "last", b->done_at - b->joined_at, 6, "s");
    if (b->own_server) {
        print_figure(b, "server_cpu", (double)(b->after.cpu_us - b->before.cpu_us) / 1e6, 6, "s");
        print_figure(b, "messages_in", (double)(y->messages_in - x->messages_in), 0, "messages");
        print_figure(b, "messages_out", (double)(y->messages_out - x->messages_out), 0, "messages");
        print_figure(b, "bytes_in", (double)(y->bytes_in - x->bytes_in), 0, "B");
        print_figure(b, "bytes_out", (double)(y->bytes_out - x->bytes_out), 0, "B");
    }
}

static int run(struct bench *b)
{
    char endpoint[64];
    int err = 0;

    if (b->address == NULL) {
        err = bench_server_start(&b->server, NULL);
        if (err != 0) {
            return err;
        }
        b->own_server = true;
        (void)snprintf(endpoint, sizeof(endpoint), "127.0.0.1:%u", (unsigned)b->server.port);
    }
    err = cli_loop_open(&b->loop, on_signal, b);
    if (err != 0) {
        return err;
    }
    mu_timer_init(&b->timer, on_timeout);
    mu_env_timer_arm(b->loop.env, &b->timer,
                     mu_mono_add_ms(mu_env_now(b->loop.env).mono, cli_ms(b->timeout)));
    b->nodes = calloc(b->count, sizeof(*b->nodes));
    b->ranks = calloc(b->count, 1);
    if (b->nodes == NULL || b->ranks == NULL) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    err = open_nodes(b, b->address != NULL ? b->address : endpoint);
    if (err != 0) {
        give_up(b, err);
    }
    cli_loop_run(&b->loop);
    cli_loop_close(&b->loop);
    if (b->code == 0) {
        print_figures(b);
    }
    if (b->own_server) {
        bench_server_stop(&b->server);
    }
    free(b->nodes);
    free(b->ranks);
    return b->code;
}

int cmd_bench_rdzv(int argc, char **argv)
{
    struct bench b = {.count = 64, .backend = "muster", .timeout = 120};
    const struct cli_option options[] = {
        {"nodes", "N", "number of nodes (64)", CLI_NUMBER, &b.count, 60000},
        {"backend", "B", "muster (the default), c10d, etcd-v3 or etcd-v2", CLI_TEXT, &b.backend, 0},
        {"server", "HOST:PORT", "a running server; without it one is started, but not for etcd",
         CLI_TEXT, &b.address, 0},
        {"members", NULL, "every node also asks for the list of all members", CLI_FLAG, &b.members,
         0},
        {"timeout", "TIME", "give up after this long (2m)", CLI_SECONDS, &b.timeout, 86400},
        {"json", NULL, "print one JSON object per line", CLI_FLAG, &b.json, 0},
    };
    const struct cli_verb verb = {
        "bench rdzv", "[--nodes N] [--backend B] [OPTIONS]",
        "Measures a rendezvous of N nodes, all in this process over real sockets: the time from\n"
        "the last join sent to the last rank received. Prints `name value unit` lines.",
        options, sizeof(options) / sizeof(options[0])};
    int err = cli_parse(&verb, &argc, &argv);
    uint64_t descriptors;

    if (err == 0 && argc != 0) {
        err = cli_usage("bench rdzv", "unexpected argument \"%s\"", argv[0]);
    }
    if (err != 0 || b.count == 0) {
        return err != 0 ? err : cli_usage("bench rdzv", "--nodes must be at least 1");
    }
    if (is_etcd(&b) && b.address == NULL) {
        return cli_usage("bench rdzv", "name the address of etcd: --server HOST:PORT");
    }
    descriptors = cli_raise_descriptor_limit();
    if (descriptors < b.count + SPARE_DESCRIPTORS) {
        return cli_fail(CLI_FAILED,
                        "%" PRIu64 " nodes need as many sockets, and this process may have %" PRIu64
                        " descriptors; raise the hard limit (ulimit -Hn)",
                        b.count, descriptors);
    }
    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    return run(&b);
}

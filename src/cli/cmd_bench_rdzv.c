/*
 * muster bench rdzv: N nodes of a rendezvous, each with its own session over its own socket,
 * against a server in another process. A few processes have the nodes. All connect; then all join
 * at once; the clock runs from the last join that was sent to the last rank that came.
 *
 * With --relays, nodes reach the server by that many gateways, each in a process of its own, as
 * those of `muster run --rdzv-conf via=...` do; they are divided among them by their numbers, and
 * each also knows the next one.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "cli/bench_parts.h"
#include "cli/bench_server.h"
#include "cli/cli.h"
#include "cli/cli_loop.h"
#include "service/rdzv/rdzv.h"

#define SPARE_DESCRIPTORS 64
#define NODES_PER_PROCESS 16000
#define NODES_PER_PLACE   20000 /* below the ports that Linux has for one address, 28,232 */
#define CONFIG_MAX        256
#define BEATS             6   /* in the time of --detect, as by default, but without a bound */
#define CONNECTING_MAX    500 /* of one process at a time: those who wait give a relay up */

/* What the parts pass one after the other. */
enum stage {
    STAGE_CONNECT = 0,
    STAGE_JOIN,   /* the joins were sent */
    STAGE_ASSIGN, /* all have their ranks */
    STAGES,
};

struct node {
    struct bench *b;
    struct mu_rdzv_handler *handler;
    bool connected;
    bool joined;
    bool assigned;
};

struct bench {
    uint64_t count;
    uint64_t relay_count;
    uint64_t processes;
    const char *backend;
    const char *address;
    double detect; /* 0: the default */
    bool members;
    double timeout;
    bool json;
    /* private */
    struct bench_server server;
    bool own_server;
    struct bench_server *relays;
    struct bench_parts parts;
    char run_id[64];
    _Atomic uint8_t *ranks; /* that were given out: of all processes */
    double begun_at;
    double at[STAGES]; /* when the stages had been passed */
    struct bench_server_figures before;
    struct bench_server_figures after;
    /* of one process */
    struct bench_part *part;
    struct cli_loop loop;
    struct mu_timer timer; /* the time limit */
    struct node *nodes;
    uint64_t first;
    uint64_t node_count;
    enum stage stage; /* that was asked for */
    uint64_t opened;
    uint64_t connected;
    uint64_t joined;
    uint64_t assigned;
    uint64_t freed;
    double joined_at; /* when the last join was sent */
    double done_at;
    int code;
};

static double now_s(void)
{
    struct timespec t;

    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static bool is_native(const struct bench *b)
{
    return strcmp(b->backend, "muster") == 0;
}

static bool is_etcd(const struct bench *b)
{
    return strncmp(b->backend, "etcd", 4) == 0;
}

static void open_more(struct bench *b);

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
        bench_part_passed(b->part, code, 0);
        free_all(b);
    }
}

/* Tells the parent once, when the stage that it waits for has been passed. */
static void look(struct bench *b)
{
    uint64_t passed = b->stage == STAGE_CONNECT ? b->connected
                      : b->stage == STAGE_JOIN  ? b->joined
                                                : b->assigned;

    if (b->code != 0 || b->stage == STAGES || passed < b->node_count) {
        return;
    }
    bench_part_passed(b->part, 0,
                      b->stage == STAGE_CONNECT ? now_s()
                      : b->stage == STAGE_JOIN  ? b->joined_at
                                                : b->done_at);
    b->stage = STAGES;
}

static void on_assigned(void *context, const struct mu_rdzv_assignment *a)
{
    struct node *node = context;
    struct bench *b = node->b;
    bool listed = !b->members || a->member_count == a->world;

    if (a->world != b->count || node->assigned || atomic_exchange(&b->ranks[a->rank], 1) != 0) {
        give_up(
            b, cli_fail(CLI_FAILED, "rank %" PRIu32 " of %" PRIu32 " is wrong", a->rank, a->world));
        return;
    }
    if (!listed) {
        give_up(b, cli_fail(CLI_FAILED, "rank %" PRIu32 " was not told the members", a->rank));
        return;
    }
    node->assigned = true;
    b->assigned++;
    b->done_at = now_s();
    look(b);
}

static void note_join(struct node *node)
{
    node->b->joined += node->joined ? 0 : 1;
    node->joined = true;
    node->b->joined_at = now_s();
    look(node->b);
}

/* The backend reports when it is connected and when it has sent its join. */
static void on_record(void *context, const struct mu_rdzv_record *record)
{
    struct node *node = context;

    if (strcmp(record->name, "muster.connected") == 0 && !node->connected) {
        node->connected = true;
        node->b->connected++;
        open_more(node->b);
        look(node->b);
    } else if (strcmp(record->name, "muster.join") == 0) {
        note_join(node);
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

    /* Where the parts leave one after the other, the round ends for those that are left. */
    if (node->b->assigned < node->b->node_count) {
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
                        "of %" PRIu64 " nodes of one process %" PRIu64 " connected and %" PRIu64
                        " were given a rank within %g s",
                        b->node_count, b->connected, b->assigned, b->timeout));
}

static void on_signal(void *context, int number)
{
    give_up(context, 128 + number);
}

/* --- one process ------------------------------------------------------------------------------ */

static void add_text(char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void add_text(char *text, const char *format, ...)
{
    size_t len = strlen(text);
    va_list args;

    va_start(args, format);
    (void)vsnprintf(text + len, CONFIG_MAX - len, format, args);
    va_end(args);
}

/* A node's relay is that of its group, and the next one is there if that is lost. */
static void configure(const struct bench *b, uint64_t number, char *config)
{
    uint64_t relay = number * b->relay_count / b->count;

    config[0] = '\0';
    add_text(config, "%sname=node%05" PRIu64, is_etcd(b) ? "" : "is_host=false,", number);
    if (b->members) {
        add_text(config, ",members=true");
    }
    if (b->detect > 0) {
        add_text(config, ",dead=%g,beat=%g", b->detect, b->detect / BEATS);
    }
    for (uint64_t i = 0; i < 2 && i < b->relay_count; i++) {
        add_text(config, "%s127.0.0.1:%u", i == 0 ? ",via=" : ",",
                 (unsigned)b->relays[(relay + i) % b->relay_count].port);
    }
}

static const char *endpoint_of(const struct bench *b, uint64_t number, char *text, size_t cap)
{
    char host[24];

    if (!b->own_server) {
        return b->address;
    }
    bench_server_place(b->relay_count != 0 ? 0 : (unsigned)(number / NODES_PER_PLACE), host,
                       sizeof(host));
    (void)snprintf(text, cap, "%s:%u", host, (unsigned)b->server.port);
    return text;
}

static int open_node(struct bench *b, struct node *node, uint64_t number)
{
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
    char config[CONFIG_MAX];
    char endpoint[64];
    struct mu_rdzv_params params = {
        .backend = b->backend,
        .endpoint = endpoint_of(b, number, endpoint, sizeof(endpoint)),
        .run_id = b->run_id,
        .nodes_min = (uint32_t)b->count,
        .nodes_max = (uint32_t)b->count,
        .local_addr = "127.0.0.1",
        .config = config,
    };
    struct mu_errmsg msg = {{0}};
    int err;

    configure(b, number, config);
    node->b = b;
    err = mu_rdzv_open(b->loop.env, &params, &events, &node->handler, &msg);
    return err == 0 ? 0 : cli_fail(cli_exit_code(err), "%s", msg.text);
}

static void open_more(struct bench *b)
{
    uint64_t ahead = is_native(b) ? CONNECTING_MAX : b->node_count;

    while (b->code == 0 && b->opened < b->node_count && b->opened < b->connected + ahead) {
        int err = open_node(b, &b->nodes[b->opened], b->first + b->opened);

        if (err != 0) {
            give_up(b, err);
            return;
        }
        b->opened++;
    }
}

static void open_all(struct bench *b)
{
    mu_env_timer_arm(b->loop.env, &b->timer,
                     mu_mono_add_ms(mu_env_now(b->loop.env).mono, cli_ms(b->timeout)));
    open_more(b);
    if (!is_native(b)) {
        b->connected = b->node_count; /* it says nothing of that */
    }
}

static void join_all(struct bench *b)
{
    for (uint64_t i = 0; i < b->opened; i++) {
        mu_rdzv_join(b->nodes[i].handler);
        if (!is_native(b)) {
            note_join(&b->nodes[i]);
        }
    }
}

/* The next stage; after the last one, the end. */
static void on_go(void *context)
{
    struct bench *b = context;

    if (b->code != 0) {
        return;
    }
    if (b->opened == 0) {
        b->stage = STAGE_CONNECT;
        open_all(b);
    } else if (b->joined == 0) {
        b->stage = STAGE_JOIN;
        join_all(b);
    } else {
        b->stage = STAGE_ASSIGN;
    }
    look(b);
}

static int run_part(void *context, uint64_t index, struct bench_part *part)
{
    struct bench *b = context;
    int err = 0;

    b->part = part;
    b->stage = STAGES;
    b->first = index * b->count / b->processes;
    b->node_count = (index + 1) * b->count / b->processes - b->first;
    b->nodes = calloc(b->node_count, sizeof(*b->nodes));
    mu_timer_init(&b->timer, on_timeout);
    err = b->nodes == NULL ? cli_fail(CLI_FAILED, "out of memory") : 0;
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

/* --- figures ---------------------------------------------------------------------------------- */

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

    if (is_native(b)) {
        print_figure(b, "connect", b->at[STAGE_CONNECT] - b->begun_at, 6, "s");
    }
    print_figure(b, "last", b->at[STAGE_ASSIGN] - b->at[STAGE_JOIN], 6, "s");
    if (!b->own_server) {
        return;
    }
    if (is_native(b)) {
        print_figure(b, "connect_cpu", (double)b->before.cpu_us / 1e6, 6, "s");
    }
    print_figure(b, "server_cpu", (double)(b->after.cpu_us - b->before.cpu_us) / 1e6, 6, "s");
    print_figure(b, "messages_in", (double)(y->messages_in - x->messages_in), 0, "messages");
    print_figure(b, "messages_out", (double)(y->messages_out - x->messages_out), 0, "messages");
    print_figure(b, "bytes_in", (double)(y->bytes_in - x->bytes_in), 0, "B");
    print_figure(b, "bytes_out", (double)(y->bytes_out - x->bytes_out), 0, "B");
    print_figure(b, "connections", (double)y->connections, 0, "connections");
    print_figure(b, "memory", (double)b->after.memory_kib * 1024, 0, "B");
}

/* --- all of it -------------------------------------------------------------------------------- */

static int start_servers(struct bench *b)
{
    uint64_t wanted = b->relay_count;
    char url[64];
    int err = 0;

    if (b->address == NULL) {
        uint64_t places = b->relay_count != 0 ? 1 : 1 + (b->count - 1) / NODES_PER_PLACE;

        err = bench_server_start(&b->server, NULL, (unsigned)places);
        b->own_server = err == 0;
        (void)snprintf(url, sizeof(url), "tcp://127.0.0.1:%u", (unsigned)b->server.port);
    }
    b->relays = calloc(wanted + 1, sizeof(*b->relays));
    for (b->relay_count = 0; err == 0 && b->relay_count < wanted; b->relay_count++) {
        err = bench_server_start(&b->relays[b->relay_count], url, 1);
    }
    return err;
}

static void stop_servers(struct bench *b)
{
    while (b->relay_count > 0) {
        bench_server_stop(&b->relays[--b->relay_count]);
    }
    if (b->own_server) {
        bench_server_stop(&b->server);
    }
    free(b->relays);
}

static int share_ranks(struct bench *b)
{
    void *at = mmap(NULL, b->count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    b->ranks = at;
    return at != MAP_FAILED ? 0 : cli_fail(CLI_FAILED, "out of memory");
}

static int read_figures(struct bench *b, struct bench_server_figures *to)
{
    return !b->own_server || bench_server_figures(&b->server, to)
               ? 0
               : cli_fail(CLI_FAILED, "the server for the benchmark is gone");
}

static int measure(struct bench *b)
{
    int err = 0;

    b->begun_at = now_s();
    for (int i = 0; i < STAGES && err == 0; i++) {
        err = bench_parts_stage(&b->parts, &b->at[i]);
        if (err == 0 && i == STAGE_CONNECT) {
            err = read_figures(b, &b->before);
        }
    }
    return err != 0 ? err : read_figures(b, &b->after);
}

static int run(struct bench *b)
{
    int err = start_servers(b);

    (void)snprintf(b->run_id, sizeof(b->run_id), "bench-%" PRIu64 "-%" PRIx64, b->count,
                   (uint64_t)(now_s() * 1e9));
    err = err != 0 ? err : share_ranks(b);
    err = err != 0 ? err : bench_parts_start(&b->parts, b->processes, run_part, b);
    err = err != 0 ? err : measure(b);
    if (err == 0) {
        print_figures(b);
    }
    bench_parts_stop(&b->parts);
    stop_servers(b);
    return err;
}

/* --- the command ------------------------------------------------------------------------------ */

/* Which process would have too few descriptors, and what helps. */
static int check_descriptors(const struct bench *b, uint64_t limit)
{
    static const char *const remedy = "raise the hard limit (as root: ulimit -n 70000)";
    uint64_t of_process = (b->count + b->processes - 1) / b->processes;
    uint64_t of_relay = b->relay_count == 0 ? 0 : (b->count + b->relay_count - 1) / b->relay_count;

    if (of_process + SPARE_DESCRIPTORS > limit) {
        return cli_fail(CLI_FAILED,
                        "%" PRIu64 " nodes of one process need as many sockets, and it may have "
                        "%" PRIu64 " descriptors; name more --processes, or %s",
                        of_process, limit, remedy);
    }
    if (b->relay_count == 0 && b->address == NULL && b->count + SPARE_DESCRIPTORS > limit) {
        return cli_fail(CLI_FAILED,
                        "the server needs a socket for each of %" PRIu64 " nodes, and it may have "
                        "%" PRIu64 " descriptors; %s, or name --relays",
                        b->count, limit, remedy);
    }
    if (of_relay + SPARE_DESCRIPTORS > limit) {
        return cli_fail(CLI_FAILED,
                        "a relay needs a socket for each of %" PRIu64 " nodes, and it may have "
                        "%" PRIu64 " descriptors; name more --relays, or %s",
                        of_relay, limit, remedy);
    }
    return 0;
}

static int check(struct bench *b)
{
    uint64_t limit = cli_raise_descriptor_limit();
    uint64_t most = limit <= SPARE_DESCRIPTORS                      ? 1
                    : limit - SPARE_DESCRIPTORS < NODES_PER_PROCESS ? limit - SPARE_DESCRIPTORS
                                                                    : NODES_PER_PROCESS;

    if (b->count == 0) {
        return cli_usage("bench rdzv", "--nodes must be at least 1");
    }
    if (is_etcd(b) && b->address == NULL) {
        return cli_usage("bench rdzv", "name the address of etcd: --server HOST:PORT");
    }
    if (b->relay_count != 0 && (!is_native(b) || b->address != NULL)) {
        return cli_usage("bench rdzv",
                         "--relays are for the backend muster and the server that is started");
    }
    if (b->relay_count > b->count) {
        return cli_usage("bench rdzv", "there are more --relays than nodes");
    }
    b->processes = b->processes == 0 ? (b->count + most - 1) / most : b->processes;
    b->processes = b->processes > b->count ? b->count : b->processes;
    return check_descriptors(b, limit);
}

int cmd_bench_rdzv(int argc, char **argv)
{
    struct bench b = {.count = 64, .backend = "muster", .timeout = 120};
    const struct cli_option options[] = {
        {"nodes", "N", "number of nodes (64)", CLI_NUMBER, &b.count, 65536},
        {"relays", "N", "gateways by which the nodes reach the server, each in its process (0)",
         CLI_NUMBER, &b.relay_count, 1000},
        {"processes", "N", "processes for the nodes (one for 16,000)", CLI_NUMBER, &b.processes,
         1000},
        {"backend", "B", "muster (the default), c10d, etcd-v3 or etcd-v2", CLI_TEXT, &b.backend, 0},
        {"server", "HOST:PORT", "a running server; without it one is started, but not for etcd",
         CLI_TEXT, &b.address, 0},
        {"members", NULL, "every node also asks for the list of all members", CLI_FLAG, &b.members,
         0},
        {"detect", "TIME", "silence after which a node is lost, six of its beats (3s)", CLI_SECONDS,
         &b.detect, 86400},
        {"timeout", "TIME", "give up after this long (2m)", CLI_SECONDS, &b.timeout, 86400},
        {"json", NULL, "print one JSON object per line", CLI_FLAG, &b.json, 0},
    };
    const struct cli_verb verb = {
        "bench rdzv", "[--nodes N] [--relays N] [--backend B] [OPTIONS]",
        "Measures a rendezvous of N nodes, in a few processes over real sockets: the time from "
        "the\n"
        "last join sent to the last rank received, and what the server had to do for it. Prints\n"
        "`name value unit` lines.",
        options, sizeof(options) / sizeof(options[0])};
    int err = cli_parse(&verb, &argc, &argv);

    if (err == 0 && argc != 0) {
        err = cli_usage("bench rdzv", "unexpected argument \"%s\"", argv[0]);
    }
    err = err != 0 ? err : check(&b);
    if (err != 0) {
        return err;
    }
    muster_log_set(NULL, NULL, MUSTER_LOG_ERROR);
    return run(&b);
}

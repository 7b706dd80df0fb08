/* muster bench store: how many operations a second a store does for clients of this library. */
#include "cli/cli.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SAMPLES_MAX ((size_t)1 << 20)

struct bench {
    const char *url;
    uint64_t clients, in_flight, size;
    double duration;
    bool json;
    const char *op;
    muster_store **stores;
    char *value;
    atomic_bool stop;
};

/* One chain of operations: the end of one starts the next. */
struct chain {
    struct bench *bench;
    muster_store *store;
    muster_op *op;
    struct muster_bytes key, value;
    struct muster_store_request request;
    char key_text[32];
    struct timespec started;
    uint64_t done_count;
    int status;
    char why[256];
    uint64_t *samples; /* latencies in ns, a ring */
    atomic_bool ended;
};

static uint64_t elapsed_ns(const struct timespec *since)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)(now.tv_sec - since->tv_sec) * 1000000000u + (uint64_t)now.tv_nsec -
           (uint64_t)since->tv_nsec;
}

static void on_done(muster_op *op, void *context);

static void start_next(struct chain *c)
{
    (void)clock_gettime(CLOCK_MONOTONIC, &c->started);
    c->status = muster_store_submit(c->store, &c->request, &c->op);
    if (c->status != 0) {
        (void)snprintf(c->why, sizeof(c->why), "%s", muster_errmsg());
        atomic_store(&c->ended, true);
    }
}

static void on_done(muster_op *op, void *context)
{
    struct chain *c = context;

    c->status = muster_op_status(op);
    if (c->status == 0) {
        c->samples[c->done_count++ % SAMPLES_MAX] = elapsed_ns(&c->started);
    } else {
        (void)snprintf(c->why, sizeof(c->why), "%s", muster_op_errmsg(op));
    }
    muster_op_free(op);
    if (c->status != 0 || atomic_load(&c->bench->stop)) {
        atomic_store(&c->ended, true);
    } else {
        start_next(c);
    }
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static void print_figure(const struct bench *b, const char *what, double value, int digits,
                         const char *unit)
{
    char name[64];

    (void)snprintf(name, sizeof(name), "store.%s.%s", b->op, what);
    cli_figure(b->json, name, value, digits, unit);
}

static int report(struct bench *b, struct chain *chains, size_t count, double seconds)
{
    uint64_t total = 0;
    size_t n = 0;
    uint64_t *all;

    for (size_t i = 0; i < count; i++) {
        if (chains[i].status != 0) {
            return cli_fail(cli_exit_code(chains[i].status), "%s", chains[i].why);
        }
        total += chains[i].done_count;
        n += chains[i].done_count < SAMPLES_MAX ? chains[i].done_count : SAMPLES_MAX;
    }
    all = malloc((n + 1) * sizeof(*all));
    if (all == NULL || n == 0) {
        free(all);
        return cli_fail(CLI_FAILED, "nothing was measured");
    }
    n = 0;
    for (size_t i = 0; i < count; i++) {
        size_t mine = chains[i].done_count < SAMPLES_MAX ? chains[i].done_count : SAMPLES_MAX;

        memcpy(all + n, chains[i].samples, mine * sizeof(*all));
        n += mine;
    }
    qsort(all, n, sizeof(*all), compare_u64);
    print_figure(b, "rate", (double)total / seconds, 0, "ops/s");
    print_figure(b, "p50", (double)all[n / 2] / 1e3, 1, "us");
    print_figure(b, "p99", (double)all[n - 1 - n / 100] / 1e3, 1, "us");
    free(all);
    return CLI_OK;
}

static int prepare_chain(struct bench *b, struct chain *c, size_t index)
{
    static const struct {
        const char *name;
        enum muster_store_verb verb;
        bool value;
    } ops[] = {{"get", MUSTER_STORE_GET, false},
               {"set", MUSTER_STORE_SET, true},
               {"add", MUSTER_STORE_ADD, false}};

    (void)snprintf(c->key_text, sizeof(c->key_text), "bench/%zu", index);
    c->bench = b;
    c->store = b->stores[index % b->clients];
    c->key = muster_str(c->key_text);
    c->value = (struct muster_bytes){b->value, b->size};
    c->samples = malloc(SAMPLES_MAX * sizeof(*c->samples));
    for (size_t i = 0; c->samples != NULL && i < sizeof(ops) / sizeof(ops[0]); i++) {
        if (strcmp(ops[i].name, b->op) == 0) {
            c->request = muster_store_request_defaults();
            c->request.verb = ops[i].verb;
            c->request.keys = &c->key;
            c->request.key_count = 1;
            c->request.values = &c->value;
            c->request.value_count = ops[i].value;
            c->request.number = 1;
            c->request.done = on_done;
            c->request.context = c;
            if (ops[i].verb == MUSTER_STORE_ADD) {
                return muster_store_delete(c->store, c->key, NULL, MUSTER_TIMEOUT_DEFAULT);
            }
            return muster_store_set(c->store, c->key, c->value, MUSTER_TIMEOUT_DEFAULT);
        }
    }
    return MUSTER_EINVAL;
}

static int measure(struct bench *b)
{
    size_t count = b->clients * b->in_flight;
    struct chain *chains = calloc(count, sizeof(*chains));
    const struct timespec pause = {.tv_sec = cli_ms(b->duration) / 1000,
                                   .tv_nsec = cli_ms(b->duration) % 1000 * 1000000L};
    struct timespec started;
    double seconds;
    int err = chains == NULL ? MUSTER_ENOMEM : 0;

    for (size_t i = 0; err == 0 && i < count; i++) {
        err = prepare_chain(b, &chains[i], i);
    }
    if (err != 0) {
        return cli_fail(cli_exit_code(err), "%s", muster_errmsg());
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &started);
    for (size_t i = 0; i < count; i++) {
        start_next(&chains[i]);
    }
    (void)nanosleep(&pause, NULL);
    atomic_store(&b->stop, true);
    seconds = (double)elapsed_ns(&started) / 1e9;
    for (size_t i = 0; i < count; i++) {
        while (!atomic_load(&chains[i].ended)) {
            (void)nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        }
    }
    err = report(b, chains, count, seconds);
    for (size_t i = 0; i < count; i++) {
        free(chains[i].samples);
    }
    free(chains);
    return err;
}

static int run(struct bench *b)
{
    struct muster_store_config config = muster_store_config_defaults();
    muster_runtime *rt;
    size_t opened = 0;
    int code = 0;
    int err = muster_runtime_new(&rt);

    if (err != 0) {
        return cli_fail(CLI_FAILED, "cannot start: %s", muster_errmsg());
    }
    config.connect_timeout_ms = 10000;
    b->stores = calloc(b->clients, sizeof(*b->stores));
    b->value = calloc(1, b->size + 1);
    for (; code == 0 && opened < b->clients; opened++) {
        err = muster_store_open(rt, b->url, &config, &b->stores[opened]);
        if (err != 0) {
            code = cli_fail(cli_exit_code(err), "%s", muster_errmsg());
            break;
        }
    }
    if (code == 0) {
        code = measure(b);
    }
    for (size_t i = 0; i < opened; i++) {
        muster_store_close(b->stores[i]);
    }
    free(b->stores);
    free(b->value);
    muster_runtime_free(rt);
    return code;
}

int cmd_bench(int argc, char **argv)
{
    struct bench b = {.url = getenv("MUSTER_STORE"),
                      .clients = 8,
                      .in_flight = 1,
                      .duration = 3,
                      .size = 64,
                      .op = "get"};
    static const char *const operations[] = {"store", "rdzv", "etcd", "job", NULL};
    const struct cli_option options[] = {
        {"store", "URL", "the store (MUSTER_STORE)", CLI_TEXT, &b.url, 0},
        {"op", "OP", "the operation: get, set or add (get)", CLI_TEXT, &b.op, 0},
        {"clients", "N", "number of stores that are open side by side (8)", CLI_NUMBER, &b.clients,
         10000},
        {"in-flight", "N", "number of operations that each store has under way (1)", CLI_NUMBER,
         &b.in_flight, 1000},
        {"duration", "TIME", "how long to run (3s)", CLI_SECONDS, &b.duration, 3600},
        {"seconds", "N", "write --duration 3s", CLI_GONE, NULL, 0},
        {"size", "SIZE", "size of a value (64)", CLI_SIZE, &b.size, 8u << 20},
        {"json", NULL, "print one JSON object per line", CLI_FLAG, &b.json, 0},
    };
    const struct cli_verb verb = {
        "bench",
        "store --store URL [OPTIONS] | rdzv [OPTIONS] | etcd [OPTIONS] | job [OPTIONS]",
        "Measures a store through this library and prints `name value unit` lines. All clients\n"
        "share one thread; `make bench` compares servers with its own load generator.\n"
        "`muster bench rdzv --help` describes how to measure a rendezvous,\n"
        "`muster bench job --help` the start of a large job,\n"
        "`muster bench etcd --help` how to measure etcd by itself.",
        options,
        sizeof(options) / sizeof(options[0]),
        .operations = operations};
    int err;

    /* These have tables of their own. */
    if (argc >= 2 && strcmp(argv[1], "etcd") == 0) {
        return cmd_bench_etcd(argc - 1, argv + 1);
    }
    if (argc >= 2 && strcmp(argv[1], "rdzv") == 0) {
        return cmd_bench_rdzv(argc - 1, argv + 1);
    }
    if (argc >= 2 && strcmp(argv[1], "job") == 0) {
        return cmd_bench_job(argc - 1, argv + 1);
    }
    err = cli_parse(&verb, &argc, &argv);
    if (err == 0 && strcmp(argv[0], "store") != 0) {
        return cli_usage("bench", "write the options after the word: muster bench %s [OPTIONS]",
                         argv[0]);
    }
    if (err == 0 &&
        (b.url == NULL || argc != 1 || b.clients == 0 || b.in_flight == 0 || b.duration <= 0 ||
         (strcmp(b.op, "get") != 0 && strcmp(b.op, "set") != 0 && strcmp(b.op, "add") != 0))) {
        err = cli_usage(
            "bench",
            "name a store (--store), an operation (--op get, set or add) and numbers above 0");
    }
    return err != 0 ? err : run(&b);
}

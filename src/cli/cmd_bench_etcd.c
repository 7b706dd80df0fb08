/*
 * muster bench etcd: how many transactions a second an etcd cluster does for clients that each have
 * one in progress. A store that keeps its keys in etcd can be compared with it.
 */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli_loop.h"
#include "service/etcd/etcd.h"

struct chain {
    struct bench *bench;
    struct mu_etcd_call call;
    struct mu_buf body;
};

struct bench {
    const char *endpoints, *op;
    uint64_t clients, size;
    double duration;
    bool json;
    struct cli_loop loop;
    struct mu_etcd *etcd;
    struct mu_timer timer;
    struct chain *chains;
    size_t running;
    uint64_t done;
    bool stopping;
    mu_mono_t started;
    double took_s;
    int status;
    struct mu_errmsg why;
};

static void on_closed(void *context)
{
    cli_loop_stop(&((struct bench *)context)->loop);
}

static void end_chain(struct bench *b)
{
    if (--b->running == 0) {
        mu_env_timer_arm(b->loop.env, &b->timer, MU_MONO_NEVER);
        mu_etcd_close(b->etcd, on_closed, b);
    }
}

static void on_done(struct mu_etcd_call *call)
{
    struct chain *c = MU_CONTAINER_OF(call, struct chain, call);
    struct bench *b = c->bench;

    if (call->status != 0 && b->status == 0) {
        b->status = call->status;
        b->why = call->errmsg;
        b->stopping = true;
    }
    if (b->stopping) {
        end_chain(b);
        return;
    }
    b->done++;
    mu_etcd_submit(b->etcd, call);
}

static void on_timer(struct mu_timer *timer)
{
    struct bench *b = MU_CONTAINER_OF(timer, struct bench, timer);

    b->stopping = true;
    b->took_s = (double)mu_mono_since(b->started, mu_env_now(b->loop.env).mono) / 1e9;
}

static void on_signal(void *context, int number)
{
    (void)number;
    ((struct bench *)context)->stopping = true;
}

/* Starts a transaction with one operation on the chain's own key. */
static int prepare(struct bench *b, struct chain *c, size_t index, struct mu_span value)
{
    char key[64];
    bool get = strcmp(b->op, "get") == 0;
    struct mu_etcd_op op = {.kind = get ? MU_ETCD_RANGE : MU_ETCD_PUT, .value = value};

    (void)snprintf(key, sizeof(key), "/muster-bench/raw/%zu", index);
    op.key = mu_span_str(key);
    c->bench = b;
    mu_buf_init(&c->body, (size_t)64 << 20);
    c->call = (struct mu_etcd_call){.path = "/v3/kv/txn", .repeat = true, .done = on_done};
    return mu_etcd_encode_txn(&c->body, &(struct mu_etcd_txn){.success = &op, .success_count = 1});
}

static int measure(struct bench *b, struct mu_span value)
{
    char name[32];
    int err = 0;

    for (size_t i = 0; err == 0 && i < b->clients; i++) {
        err = prepare(b, &b->chains[i], i, value);
        b->chains[i].call.body = mu_buf_span(&b->chains[i].body);
    }
    if (err != 0) {
        return cli_fail(CLI_FAILED, "%s", muster_strerror(err));
    }
    mu_timer_init(&b->timer, on_timer);
    b->started = mu_env_now(b->loop.env).mono;
    mu_env_timer_arm(b->loop.env, &b->timer, mu_mono_add_ms(b->started, cli_ms(b->duration)));
    b->running = b->clients;
    for (size_t i = 0; i < b->clients; i++) {
        mu_etcd_submit(b->etcd, &b->chains[i].call);
    }
    cli_loop_run(&b->loop);
    if (b->status != 0) {
        return cli_fail(cli_exit_code(b->status), "%s", b->why.text);
    }
    if (!(b->took_s > 0) || b->done == 0) {
        return cli_fail(CLI_FAILED, "nothing was measured");
    }
    (void)snprintf(name, sizeof(name), "etcd.%s.rate", b->op);
    cli_figure(b->json, name, (double)b->done / b->took_s, 0, "txn/s");
    return CLI_OK;
}

static int run(struct bench *b)
{
    struct mu_etcd_config config = mu_etcd_config_defaults();
    struct mu_errmsg msg;
    char *value = calloc(1, b->size + 1);
    int code;

    b->chains = calloc(b->clients, sizeof(*b->chains));
    if (value == NULL || b->chains == NULL) {
        free(value);
        return cli_fail(CLI_FAILED, "out of memory");
    }
    code = cli_loop_open(&b->loop, on_signal, b);
    if (code == 0) {
        config.endpoints = b->endpoints;
        if (mu_etcd_new(b->loop.env, &config, &b->etcd, &msg) != 0) {
            code = cli_fail(CLI_FAILED, "%s", msg.text);
        } else {
            code = measure(b, mu_span(value, b->size));
        }
        cli_loop_close(&b->loop);
    }
    for (size_t i = 0; i < b->clients; i++) {
        mu_buf_fini(&b->chains[i].body);
    }
    free(b->chains);
    free(value);
    return code;
}

int cmd_bench_etcd(int argc, char **argv)
{
    static struct bench b = {.op = "put", .clients = 8, .duration = 3, .size = 64};
    const struct cli_option options[] = {
        {"endpoints", "HOST:PORT,...", "endpoints of the cluster", CLI_TEXT, &b.endpoints, 0},
        {"op", "OP", "the operation: put or get, in its own transaction (put)", CLI_TEXT, &b.op, 0},
        {"clients", "N", "number of transactions under way (8)", CLI_NUMBER, &b.clients, 10000},
        {"duration", "TIME", "how long to run (3s)", CLI_SECONDS, &b.duration, 3600},
        {"seconds", "N", "write --duration 3s", CLI_GONE, NULL, 0},
        {"size", "SIZE", "size of a value (64)", CLI_SIZE, &b.size, 1u << 20},
        {"json", NULL, "print one JSON object per line", CLI_FLAG, &b.json, 0},
    };
    const struct cli_verb verb = {
        "bench etcd", "--endpoints HOST:PORT,... [OPTIONS]",
        "Measures etcd by itself, so that a store that uses etcd can be compared with it, and\n"
        "prints `name value unit` lines.",
        options, sizeof(options) / sizeof(options[0])};
    int err = cli_parse(&verb, &argc, &argv);

    if (err == 0 && (b.endpoints == NULL || argc != 0 || b.clients == 0 || b.duration <= 0 ||
                     (strcmp(b.op, "put") != 0 && strcmp(b.op, "get") != 0))) {
        err = cli_usage(
            "bench etcd",
            "name the cluster (--endpoints), an operation (--op put or get) and numbers above 0");
    }
    return err != 0 ? err : run(&b);
}

/* muster rpc: runs a worker, or calls one, from the shell. */
#include "cli/cmd_rpc.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli_loop.h"

/* --- handlers --------------------------------------------------------------------------------- */

static void on_echo(muster_rpc_call_in *call, void *context)
{
    size_t count = muster_rpc_in_part_count(call);
    struct muster_rpc_part one = muster_rpc_in_part(call, 0);
    struct muster_rpc_part *parts = count <= 1 ? &one : calloc(count, sizeof(*parts));

    (void)context;
    if (parts == NULL) {
        muster_rpc_fail(call, MUSTER_ENOMEM, "out of memory");
        return;
    }
    for (size_t i = 0; i < count; i++) {
        parts[i] = muster_rpc_in_part(call, i);
    }
    muster_rpc_reply(call, parts, count);
    if (parts != &one) {
        free(parts);
    }
}

static void on_sleep(muster_rpc_call_in *call, void *context)
{
    struct muster_rpc_part part = muster_rpc_in_part(call, 0);
    char text[16] = "";
    uint64_t ms = 0;

    (void)context;
    if (part.data.len < sizeof(text)) {
        memcpy(text, part.data.data != NULL ? part.data.data : "", part.data.len);
    }
    if (!cli_parse_number(text, false, 3600000, &ms)) {
        muster_rpc_fail(call, MUSTER_EINVAL, "sleep takes a number of milliseconds");
    } else if (muster_rpc_in_wait_canceled(call, (uint32_t)ms) == 0) {
        muster_rpc_fail(call, muster_rpc_in_canceled(call), "the sleep was interrupted");
    } else {
        muster_rpc_reply(call, &part, 1);
    }
}

static void on_fail(muster_rpc_call_in *call, void *context)
{
    struct muster_rpc_part part = muster_rpc_in_part(call, 0);
    char text[256] = "the call failed because the caller asked it to";

    (void)context;
    if (part.data.len != 0) {
        (void)snprintf(text, sizeof(text), "%.*s", (int)(part.data.len < 250 ? part.data.len : 250),
                       (const char *)part.data.data);
    }
    muster_rpc_fail(call, MUSTER_EREMOTE, text);
}

/* Takes any amount of data and answers with its size: a receiver for measurements. */
static void on_count(muster_rpc_call_in *call, void *context)
{
    struct muster_rpc_part part = {.device = MUSTER_RPC_CPU};
    unsigned long long bytes = 0;
    char text[24];

    (void)context;
    for (size_t i = 0; i < muster_rpc_in_part_count(call); i++) {
        bytes += muster_rpc_in_part(call, i).data.len;
    }
    part.data = (struct muster_bytes){text, (size_t)snprintf(text, sizeof(text), "%llu", bytes)};
    muster_rpc_reply(call, &part, 1);
}

static void on_stats(muster_rpc_call_in *call, void *context)
{
    struct muster_rpc_metric metrics[128];
    size_t count = muster_rpc_metrics(context, metrics, 128);
    struct muster_rpc_part part = {.device = MUSTER_RPC_CPU};
    char text[128 * 84];
    size_t len = 0;

    for (size_t i = 0; i < count && i < 128; i++) {
        len += (size_t)snprintf(text + len, sizeof(text) - len, "%s %s\n", metrics[i].name,
                                metrics[i].value);
    }
    part.data = (struct muster_bytes){text, len};
    muster_rpc_reply(call, &part, 1);
}

static int register_handlers(muster_rpc_agent *agent)
{
    static const struct {
        const char *method;
        muster_rpc_handler *handler;
        uint32_t flags;
    } served[] = {
        {"muster::Rpc.echo", on_echo, 0},
        {"muster::Rpc.count", on_count, 0},
        {"muster::Rpc.sleep", on_sleep, MUSTER_RPC_BLOCKS},
        {"muster::Rpc.fail", on_fail, 0},
        {"muster::Rpc.stats", on_stats, 0},
    };

    for (size_t i = 0; i < sizeof(served) / sizeof(served[0]); i++) {
        int err =
            muster_rpc_register(agent, served[i].method, served[i].handler, agent, served[i].flags);

        if (err != 0) {
            return err;
        }
    }
    return 0;
}

/* --- serve ------------------------------------------------------------------------------------ */

static int join(const struct rpc_options *o, muster_runtime *rt, muster_rpc_agent *agent)
{
    muster_store *store;
    int err = muster_store_open(rt, o->store, NULL, &store);

    if (err != 0) {
        return err;
    }
    err =
        muster_rpc_join_group(agent, store, o->group, (uint32_t)o->world, cli_timeout(o->timeout));
    muster_store_close(store);
    return err;
}

static int serve_until_signal(const struct rpc_options *o, muster_runtime *rt,
                              const sigset_t *signals)
{
    struct muster_rpc_config config = muster_rpc_config_defaults();
    muster_rpc_agent *agent;
    int number = 0;
    int err;

    config.name = o->name;
    config.id = (int32_t)o->id;
    config.listen = o->listen;
    config.advertise = o->advertise;
    config.threads = (uint32_t)o->threads;
    err = muster_rpc_start(rt, &config, &agent);
    if (err != 0) {
        return cli_fail(cli_exit_code(err), "%s", muster_errmsg());
    }
    err = register_handlers(agent);
    if (err == 0 && o->store != NULL) {
        err = join(o, rt, agent);
    }
    if (err != 0) {
        err = cli_fail(cli_exit_code(err), "%s", muster_errmsg());
    } else {
        if (o->json) {
            cli_print_json(
                json_pack("{s:s, s:s}", "name", o->name, "address", muster_rpc_address(agent)));
        } else {
            printf("%s serves at %s\n", o->name, muster_rpc_address(agent));
            (void)fflush(stdout);
        }
        (void)sigwait(signals, &number);
    }
    muster_rpc_shutdown(agent);
    return err;
}

int rpc_serve(const struct rpc_options *o)
{
    muster_runtime *rt;
    sigset_t signals;
    int code;

    cli_block_signals(&signals, false);
    code = cli_runtime_new(o->lock, &rt);
    if (code != 0) {
        return code;
    }
    code = serve_until_signal(o, rt, &signals);
    muster_runtime_free(rt);
    return code;
}

/* --- the command ------------------------------------------------------------------------------ */

static int run(struct rpc_options *o, const char *what)
{
    if (strcmp(what, "serve") == 0) {
        return o->method != NULL ? cli_usage("rpc", "serve takes no arguments, only options")
                                 : rpc_serve(o);
    }
    if (strcmp(what, "bench") == 0) {
        return o->to == NULL ? cli_usage("rpc", "name the worker: --to [NAME@]HOST:PORT")
                             : rpc_bench(o);
    }
    return o->to == NULL || o->method == NULL
               ? cli_usage("rpc", "name the worker and the method: --to [NAME@]HOST:PORT METHOD")
               : rpc_call(o);
}

int cmd_rpc(int argc, char **argv)
{
    static const char *const operations[] = {"serve", "call", "bench", NULL};
    struct cli_lock lock = {0};
    struct rpc_options o = {.name = "worker",
                            .listen = "127.0.0.1:29600",
                            .group = "rpc",
                            .world = 1,
                            .threads = 16,
                            .timeout = 60,
                            .retry_delay = 1,
                            .count = 1,
                            .in_flight = 1,
                            .size = 64,
                            .duration = 3,
                            .lock = &lock};
    const struct cli_option options[] = {
        {"name", "NAME", "serve: the worker's name (worker)", CLI_TEXT, &o.name, 0},
        {"id", "N", "serve: the worker's number, unique in its group (0)", CLI_NUMBER, &o.id,
         32767},
        {"listen", "HOST:PORT", "serve: where to listen (127.0.0.1:29600)", CLI_TEXT, &o.listen, 0},
        {"advertise", "HOST", "serve: the host that others dial (that of --listen)", CLI_TEXT,
         &o.advertise, 0},
        {"store", "URL", "serve: meet the other workers of a group through this store", CLI_TEXT,
         &o.store, 0},
        {"group", "NAME", "serve: name of the group (rpc)", CLI_TEXT, &o.group, 0},
        {"world", "N", "serve: number of workers in the group (1)", CLI_NUMBER, &o.world, 32768},
        {"threads", "N", "serve: number of threads for handlers that block (16)", CLI_NUMBER,
         &o.threads, 4096},
        CLI_LOCK_OPTIONS(&lock),
        {"to", "[NAME@]HOST:PORT", "call, bench: the worker to call", CLI_TEXT, &o.to, 0},
        {"timeout", "TIME", "time limit for a call, or for meeting a group (1m); 0: no limit",
         CLI_SECONDS, &o.timeout, 86400},
        {"retries", "N", "call: how often a failed call is tried again (0)", CLI_NUMBER, &o.retries,
         1000},
        {"retry-delay", "TIME", "call: the gap before a retry (1s); it grows", CLI_SECONDS,
         &o.retry_delay, 3600},
        {"retry-ms", "MS", "write --retry-delay 1s, or --retry-delay 500ms", CLI_GONE, NULL, 0},
        {"once", NULL, "call: run the call at most once, however often it is tried", CLI_FLAG,
         &o.once, 0},
        {"count", "N", "call: number of calls (1)", CLI_NUMBER, &o.count, 100000000},
        {"in-flight", "N", "call, bench: number of calls at a time (1)", CLI_NUMBER, &o.in_flight,
         65536},
        {"duration", "TIME", "bench: how long to run (3s)", CLI_SECONDS, &o.duration, 3600},
        {"seconds", "N", "write --duration 3s", CLI_GONE, NULL, 0},
        {"wait", NULL, "bench: wait for each answer before the next call", CLI_FLAG, &o.wait, 0},
        {"size", "SIZE", "bench: size of a message (64)", CLI_SIZE, &o.size, (uint64_t)1 << 30},
        {"json", NULL, "print one JSON object per line", CLI_FLAG, &o.json, 0},
    };
    const struct cli_verb verb = {
        "rpc",
        "serve|call|bench [OPTIONS] [METHOD [DATA]]",
        "serve   runs a worker with the methods muster::Rpc.echo, .count, .sleep, .fail and "
        ".stats\n"
        "call    calls a method with DATA and prints the answer; with --count, how many succeeded\n"
        "bench   calls METHOD (muster::Rpc.echo) for a while and prints `name value unit` lines",
        options,
        sizeof(options) / sizeof(options[0]),
        .operations = operations};
    int err = cli_parse(&verb, &argc, &argv);

    if (err == 0 && argc > 3) {
        err = cli_usage("rpc", "unexpected argument \"%s\"", argv[3]);
    }
    if (err != 0) {
        return err;
    }
    o.method = argc > 1 ? argv[1] : NULL;
    o.data = argc > 2 ? argv[2] : NULL;
    return run(&o, argv[0]);
}

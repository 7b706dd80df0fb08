/* muster rpc call and bench: chains of calls, where the end of a call starts the next one. */
#include "cli/cmd_rpc.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SAMPLES_MAX  ((size_t)1 << 20)
#define TROUBLES_MAX 16

/* An error that some calls ended with. */
struct trouble {
    uint64_t count;
    int status;
    char text[256];
};

struct load {
    const struct rpc_options *o;
    muster_runtime *rt;
    muster_rpc_agent *agent;
    char name[128];
    struct muster_rpc_request request;
    struct muster_rpc_retry retry;
    struct muster_rpc_part part;
    char *data;
    bool timed;  /* limited by seconds, not by a number of calls */
    bool silent; /* the answer is not printed */
    /* Used only on the loop's thread. */
    uint64_t begun;
    uint64_t ok;
    uint64_t failed;
    uint64_t longest_ns;
    struct trouble troubles[TROUBLES_MAX];
    size_t trouble_count;
    uint64_t *samples;
    size_t sample_count;
    atomic_bool stop;
    /* Guarded by the lock. */
    pthread_mutex_t lock;
    pthread_cond_t cond;
    size_t chains;
};

struct chain {
    struct load *load;
    struct timespec started;
};

static uint64_t elapsed_ns(const struct timespec *since)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)(now.tv_sec - since->tv_sec) * 1000000000u + (uint64_t)now.tv_nsec -
           (uint64_t)since->tv_nsec;
}

static void end_chain(struct load *l)
{
    (void)pthread_mutex_lock(&l->lock);
    l->chains--;
    (void)pthread_cond_broadcast(&l->cond);
    (void)pthread_mutex_unlock(&l->lock);
}

static void note_trouble(struct load *l, int status, const char *text)
{
    size_t i = 0;

    while (i < l->trouble_count && strcmp(l->troubles[i].text, text) != 0) {
        i++;
    }
    if (i == TROUBLES_MAX) {
        i--;
    } else if (i == l->trouble_count) {
        l->trouble_count++;
        l->troubles[i].status = status;
        (void)snprintf(l->troubles[i].text, sizeof(l->troubles[i].text), "%s", text);
    }
    l->troubles[i].count++;
    l->failed++;
}

static void print_answer(const struct load *l, const muster_rpc_future *future)
{
    if (l->o->json) {
        json_t *object = json_object();
        json_t *parts = json_array();

        for (size_t i = 0; i < muster_rpc_future_part_count(future); i++) {
            json_t *part = json_object();

            cli_put_bytes(part, "data", muster_rpc_future_part(future, i).data);
            (void)json_array_append_new(parts, part);
        }
        (void)json_object_set_new(object, "parts", parts);
        cli_print_json(object);
        return;
    }
    for (size_t i = 0; i < muster_rpc_future_part_count(future); i++) {
        struct muster_bytes data = muster_rpc_future_part(future, i).data;

        (void)fwrite(data.data, 1, data.len, stdout);
    }
    (void)fputc('\n', stdout);
}

static bool is_over(const struct load *l)
{
    return atomic_load(&l->stop) || (!l->timed && l->begun == l->o->count);
}

static void on_done(muster_rpc_future *future, void *context);

static void begin_next(struct chain *c)
{
    struct load *l = c->load;
    struct muster_rpc_request q = l->request;
    muster_rpc_future *future;
    int err;

    l->begun++;
    q.done = on_done;
    q.context = c;
    (void)clock_gettime(CLOCK_MONOTONIC, &c->started);
    err = muster_rpc_call(l->agent, &q, &future);
    if (err != 0) {
        note_trouble(l, err, muster_errmsg());
        end_chain(l);
    }
}

static void on_done(muster_rpc_future *future, void *context)
{
    struct chain *c = context;
    struct load *l = c->load;
    uint64_t ns = elapsed_ns(&c->started);

    l->longest_ns = ns > l->longest_ns ? ns : l->longest_ns;
    if (muster_rpc_future_status(future) != 0) {
        note_trouble(l, muster_rpc_future_status(future), muster_rpc_future_errmsg(future));
    } else {
        l->ok++;
        if (l->samples != NULL) {
            l->samples[l->sample_count++ % SAMPLES_MAX] = ns;
        }
        if (!l->silent) {
            print_answer(l, future);
        }
    }
    muster_rpc_future_free(future);
    if (is_over(l)) {
        end_chain(l);
    } else {
        begin_next(c);
    }
}

/* --- set up ----------------------------------------------------------------------------------- */

static int fill_request(struct load *l)
{
    const struct rpc_options *o = l->o;

    l->part = (struct muster_rpc_part){{l->data, o->data == NULL ? o->size : strlen(o->data)},
                                       MUSTER_RPC_CPU};
    l->retry = muster_rpc_retry_defaults();
    l->retry.retries_max = (int32_t)o->retries;
    l->retry.duration_ms = cli_ms(o->retry_delay);
    l->request = muster_rpc_request_defaults();
    l->request.to = l->name;
    l->request.method = o->method;
    l->request.parts = &l->part;
    l->request.part_count = l->part.data.len == 0 && !l->timed ? 0 : 1;
    l->request.timeout_ms = cli_timeout(o->timeout);
    l->request.flags = MUSTER_RPC_BORROW | (o->once ? MUSTER_RPC_ONCE : 0) |
                       (o->retries != 0 ? MUSTER_RPC_RETRY : 0);
    l->request.retry = &l->retry;
    return 0;
}

/* "[NAME@]HOST:PORT" */
static int find_worker(struct load *l)
{
    const char *at = strchr(l->o->to, '@');
    size_t len = at == NULL ? 0 : (size_t)(at - l->o->to);

    if (len >= sizeof(l->name)) {
        return cli_usage("rpc", "a worker's name is at most 127 bytes long");
    }
    (void)snprintf(l->name, sizeof(l->name), "%.*s", at == NULL ? 6 : (int)len,
                   at == NULL ? "worker" : l->o->to);
    if (muster_rpc_add_worker(l->agent, l->name, 0, at == NULL ? l->o->to : at + 1) != 0) {
        return cli_fail(CLI_USAGE, "--to %s: %s", l->o->to, muster_errmsg());
    }
    return 0;
}

static int start(struct load *l)
{
    struct muster_rpc_config config = muster_rpc_config_defaults();
    char name[64];
    int err;

    (void)pthread_mutex_init(&l->lock, NULL);
    (void)pthread_cond_init(&l->cond, NULL);
    err = cli_runtime_new(l->o->lock, &l->rt);
    if (err != 0) {
        return err;
    }
    (void)snprintf(name, sizeof(name), "cli-%ld", (long)getpid());
    config.name = name;
    config.listen = NULL;
    err = muster_rpc_start(l->rt, &config, &l->agent);
    if (err != 0) {
        return cli_fail(cli_exit_code(err), "%s", muster_errmsg());
    }
    return find_worker(l);
}

static void finish(struct load *l)
{
    muster_rpc_shutdown(l->agent);
    if (l->rt != NULL) {
        muster_runtime_free(l->rt);
    }
    free(l->data);
    free(l->samples);
}

static long fraction_ns(double seconds)
{
    return (long)((seconds - (double)(time_t)seconds) * 1e9);
}

/* Makes one call after the other and waits for each, as a thread that needs the answers does. */
static int run_waiting(struct load *l, double *ret_seconds)
{
    struct timespec started;

    (void)clock_gettime(CLOCK_MONOTONIC, &started);
    do {
        muster_rpc_future *future;
        struct timespec begun;
        int err;

        (void)clock_gettime(CLOCK_MONOTONIC, &begun);
        err = muster_rpc_call(l->agent, &l->request, &future);
        if (err == 0) {
            err = muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER);
        }
        if (err != 0) {
            note_trouble(l, err, muster_errmsg());
            return 0;
        }
        muster_rpc_future_free(future);
        l->ok++;
        l->samples[l->sample_count++ % SAMPLES_MAX] = elapsed_ns(&begun);
        *ret_seconds = (double)elapsed_ns(&started) / 1e9;
    } while (*ret_seconds < l->o->duration);
    return 0;
}

/* Runs all chains to their end. */
static int run_chains(struct load *l, double *ret_seconds)
{
    size_t count = l->o->in_flight;
    struct chain *chains = calloc(count, sizeof(*chains));
    struct timespec started;

    if (chains == NULL) {
        return cli_fail(CLI_FAILED, "out of memory");
    }
    if (!l->timed && count > l->o->count) {
        count = l->o->count;
    }
    l->chains = count;
    (void)clock_gettime(CLOCK_MONOTONIC, &started);
    /* Once a chain runs, only the loop's thread changes the chains' counters. */
    for (size_t i = 0; i < count; i++) {
        chains[i].load = l;
    }
    l->begun = count;
    for (size_t i = 0; i < count; i++) {
        struct muster_rpc_request q = l->request;
        muster_rpc_future *future;

        q.done = on_done;
        q.context = &chains[i];
        (void)clock_gettime(CLOCK_MONOTONIC, &chains[i].started);
        if (muster_rpc_call(l->agent, &q, &future) != 0) {
            (void)cli_fail(CLI_FAILED, "%s", muster_errmsg());
            end_chain(l);
        }
    }
    if (l->timed) {
        (void)nanosleep(&(struct timespec){.tv_sec = (time_t)l->o->duration,
                                           .tv_nsec = fraction_ns(l->o->duration)},
                        NULL);
        atomic_store(&l->stop, true);
    }
    (void)pthread_mutex_lock(&l->lock);
    while (l->chains != 0) {
        (void)pthread_cond_wait(&l->cond, &l->lock);
    }
    (void)pthread_mutex_unlock(&l->lock);
    *ret_seconds = (double)elapsed_ns(&started) / 1e9;
    free(chains);
    return 0;
}

/* --- call ------------------------------------------------------------------------------------- */

static int report_calls(const struct load *l)
{
    if (l->silent && l->o->json) {
        cli_print_json(json_pack("{s:I, s:I, s:f}", "ok", (json_int_t)l->ok, "failed",
                                 (json_int_t)l->failed, "longest_s", (double)l->longest_ns / 1e9));
    } else if (l->silent) {
        printf("ok %llu\nfailed %llu\nlongest %.3f s\n", (unsigned long long)l->ok,
               (unsigned long long)l->failed, (double)l->longest_ns / 1e9);
    }
    for (size_t i = 0; i < l->trouble_count; i++) {
        const struct trouble *t = &l->troubles[i];

        if (l->silent) {
            (void)cli_fail(0, "%s (%llu calls)", t->text, (unsigned long long)t->count);
        } else {
            (void)cli_fail(0, "%s", t->text);
        }
    }
    return l->trouble_count == 0 ? CLI_OK : cli_exit_code(l->troubles[0].status);
}

int rpc_call(const struct rpc_options *o)
{
    struct load l = {.o = o, .silent = o->count != 1};
    double seconds;
    int err = start(&l);

    if (err == 0) {
        l.data = strdup(o->data == NULL ? "" : o->data);
        (void)fill_request(&l);
        l.part.data.len = strlen(l.data);
        l.request.part_count = l.part.data.len == 0 ? 0 : 1;
        err = run_chains(&l, &seconds);
    }
    if (err == 0) {
        err = report_calls(&l);
    }
    finish(&l);
    return err;
}

/* --- bench ------------------------------------------------------------------------------------ */

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a;
    uint64_t y = *(const uint64_t *)b;

    return x < y ? -1 : x > y;
}

static int report_bench(struct load *l, double seconds)
{
    size_t n = l->sample_count < SAMPLES_MAX ? l->sample_count : SAMPLES_MAX;
    bool json = l->o->json;

    if (l->trouble_count != 0 || n == 0) {
        return report_calls(l) != 0 ? CLI_FAILED : cli_fail(CLI_FAILED, "nothing was measured");
    }
    qsort(l->samples, n, sizeof(*l->samples), compare_u64);
    cli_figure(json, "rpc.echo.rate", (double)l->ok / seconds, 0, "calls/s");
    cli_figure(json, "rpc.echo.p50", (double)l->samples[n / 2] / 1e3, 1, "us");
    cli_figure(json, "rpc.echo.p99", (double)l->samples[n - 1 - n / 100] / 1e3, 1, "us");
    cli_figure(json, "rpc.echo.throughput",
               (double)l->ok * (double)l->o->size / seconds / (double)(1u << 30), 3, "GiB/s");
    return CLI_OK;
}

int rpc_bench(const struct rpc_options *o)
{
    struct rpc_options own = *o;
    struct load l = {.o = &own, .silent = true, .timed = true};
    double seconds = 0;
    int err;

    own.method = own.method == NULL ? "muster::Rpc.echo" : own.method;
    own.data = NULL;
    err = start(&l);
    if (err == 0) {
        l.data = malloc(own.size + 1);
        l.samples = malloc(SAMPLES_MAX * sizeof(*l.samples));
        err = l.data == NULL || l.samples == NULL ? cli_fail(CLI_FAILED, "out of memory") : 0;
    }
    if (err == 0) {
        memset(l.data, 'm', own.size + 1); /* This allocates real memory: zeros that were never
                                              written share one page. */
        (void)fill_request(&l);
        err = own.wait ? run_waiting(&l, &seconds) : run_chains(&l, &seconds);
    }
    if (err == 0) {
        err = report_bench(&l, seconds);
    }
    finish(&l);
    return err;
}

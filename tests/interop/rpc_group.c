/*
 * A group of three RPC workers on the store that is named: they join, one tries to leave alone,
 * then all leave. Prints what came of it, for rpc_group.py.
 *
 *     rpc_group URL
 */
#include <muster/muster.h>
#include <pthread.h>
#include <stdio.h>
#include <time.h>

#define WORKERS 3

struct worker {
    muster_rpc_agent *agent;
    muster_store *store;
    pthread_t thread;
    int status;
    char text[256];
};

static void keep(struct worker *w, int status)
{
    w->status = status;
    (void)snprintf(w->text, sizeof(w->text), "%s", status == 0 ? "" : muster_errmsg());
}

static void *join(void *context)
{
    struct worker *w = context;

    keep(w, muster_rpc_join_group(w->agent, w->store, "g", WORKERS, 10000));
    return NULL;
}

static void *leave(void *context)
{
    struct worker *w = context;

    keep(w, muster_rpc_leave_group(w->agent, w->store, 10000));
    return NULL;
}

static int all(struct worker *workers, const char *what, void *(*run)(void *context))
{
    int failed = 0;

    for (int i = 0; i < WORKERS; i++) {
        if (pthread_create(&workers[i].thread, NULL, run, &workers[i]) != 0) {
            return 1;
        }
        /* So that the others are waiting when the next one comes. */
        (void)nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
    }
    for (int i = 0; i < WORKERS; i++) {
        (void)pthread_join(workers[i].thread, NULL);
        printf("%s %d %s\n", what, workers[i].status, workers[i].text);
        failed += workers[i].status != 0 ? 1 : 0;
    }
    return failed;
}

int main(int argc, char **argv)
{
    static const char *const names[WORKERS] = {"w0", "w1", "w2"};
    struct worker workers[WORKERS] = {0};
    int64_t keys = -1;
    muster_runtime *rt;
    int failed = 0;

    if (argc != 2 || muster_runtime_new(&rt) != 0) {
        return 2;
    }
    for (int i = 0; i < WORKERS; i++) {
        struct muster_rpc_config config = muster_rpc_config_defaults();

        config.name = names[i];
        config.id = i;
        config.listen = "127.0.0.1:0";
        if (muster_rpc_start(rt, &config, &workers[i].agent) != 0 ||
            muster_store_open(rt, argv[1], NULL, &workers[i].store) != 0) {
            fprintf(stderr, "%s\n", muster_errmsg());
            return 2;
        }
    }
    failed = all(workers, "join", join);
    if (failed == 0) {
        keep(&workers[2], muster_rpc_leave_group(workers[2].agent, workers[2].store, 300));
        printf("alone %d %s\n", workers[2].status, workers[2].text);
        failed = all(workers, "leave", leave);
    }
    if (muster_store_num_keys(workers[0].store, &keys, 10000) == 0) {
        printf("keys %lld\n", (long long)keys);
    }
    for (int i = 0; i < WORKERS; i++) {
        muster_rpc_shutdown(workers[i].agent);
        muster_store_close(workers[i].store);
    }
    muster_runtime_free(rt);
    return failed == 0 ? 0 : 1;
}

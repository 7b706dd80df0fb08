/*
 * A group of workers in one process, a server, and a store for each of them. Real threads, real
 * sockets.
 */
#ifndef MU_TEST_RPC_GROUP_RIG_H
#define MU_TEST_RPC_GROUP_RIG_H

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>
#include <muster/muster.h>

#define WORKERS 4

struct member {
    muster_rpc_agent *agent;
    muster_store *store;
    const char *group;
    uint32_t world;
    int64_t timeout_ms;
    int status;
    char text[256];
    bool early; /* it left while something was under way */
    pthread_t thread;
};

static muster_runtime *rt;
static muster_server *server;
static muster_store *looking; /* the test's own */
static struct member m[WORKERS];

static inline int open_server(void **state)
{
    struct muster_server_config config = muster_server_config_defaults();
    char url[128];

    (void)state;
    assert_int_equal(muster_runtime_new(&rt), 0);
    config.listen = "127.0.0.1:0";
    assert_int_equal(muster_server_start(rt, &config, &server), 0);
    (void)snprintf(url, sizeof(url), "tcp://%s", muster_server_address(server));
    assert_int_equal(muster_store_open(rt, url, NULL, &looking), 0);
    for (int i = 0; i < WORKERS; i++) {
        m[i] = (struct member){.group = "g", .world = WORKERS, .timeout_ms = 60000};
        assert_int_equal(muster_store_open(rt, url, NULL, &m[i].store), 0);
    }
    return 0;
}

static inline int close_server(void **state)
{
    (void)state;
    for (int i = 0; i < WORKERS; i++) {
        muster_rpc_shutdown(m[i].agent);
        muster_store_close(m[i].store);
    }
    muster_store_close(looking);
    muster_server_free(server);
    muster_runtime_free(rt);
    return 0;
}

static inline void start(struct member *w, const char *name, int32_t id)
{
    struct muster_rpc_config config = muster_rpc_config_defaults();

    config.name = name;
    config.id = id;
    config.listen = "127.0.0.1:0";
    assert_int_equal(muster_rpc_start(rt, &config, &w->agent), 0);
}

static inline void start_all(void)
{
    static const char *const names[WORKERS] = {"w0", "w1", "w2", "w3"};

    for (int i = 0; i < WORKERS; i++) {
        start(&m[i], names[i], i);
    }
}

static inline void *join(void *context)
{
    struct member *w = context;

    w->status = muster_rpc_join_group(w->agent, w->store, w->group, w->world, w->timeout_ms);
    (void)snprintf(w->text, sizeof(w->text), "%s", w->status == 0 ? "" : muster_errmsg());
    return NULL;
}

static inline void begin(struct member *w, void *(*run)(void *context))
{
    assert_int_equal(pthread_create(&w->thread, NULL, run, w), 0);
}

static inline void await(struct member *w)
{
    assert_int_equal(pthread_join(w->thread, NULL), 0);
}

static inline void join_all(void)
{
    for (int i = 0; i < WORKERS; i++) {
        begin(&m[i], join);
    }
    for (int i = 0; i < WORKERS; i++) {
        await(&m[i]);
        if (m[i].status != 0) {
            fail_msg("worker %d: %s", i, m[i].text);
        }
    }
}

static inline void says(const struct member *w, int status, const char *part)
{
    if (w->status != status || strstr(w->text, part) == NULL) {
        fail_msg("%s: %d, and not %d with \"%s\": %s", muster_rpc_name(w->agent), w->status, status,
                 part, w->text);
    }
}

static inline int64_t keys_left(void)
{
    int64_t count = -1;

    assert_int_equal(muster_store_num_keys(looking, &count, 20000), 0);
    return count;
}

static inline int64_t now_ms(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

#endif

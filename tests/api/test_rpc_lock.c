/* RPC agents with a lock: beyond loopback, who holds a certificate of the job's authority is let in
 * and nobody else. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <muster/muster.h>
#include <muster/rpc.h>

#include "certs.h"
#include "own_network.h"
#include "skipped.h"

static char directory[64];
static const char *address; /* not loopback's */

struct worker {
    muster_runtime *rt;
    muster_rpc_agent *agent;
};

static void echo(muster_rpc_call_in *call, void *context)
{
    struct muster_rpc_part part = muster_rpc_in_part(call, 0);

    (void)context;
    muster_rpc_reply(call, &part, 1);
}

/* `leaf` NULL: no credential. */
static void open_runtime(muster_runtime **rt, const char *leaf)
{
    struct muster_runtime_config config = muster_runtime_config_defaults();
    char paths[3][128];
    struct muster_lock none = muster_lock_defaults();
    struct muster_lock lock = {
        .size = sizeof(struct muster_lock), .cert = paths[0], .key = paths[1], .ca = paths[2]};

    (void)snprintf(paths[0], sizeof(paths[0]), "%s/%s.pem", directory, leaf == NULL ? "" : leaf);
    (void)snprintf(paths[1], sizeof(paths[1]), "%s/%s.key", directory, leaf == NULL ? "" : leaf);
    (void)snprintf(paths[2], sizeof(paths[2]), "%s/ca.pem", directory);
    config.lock = leaf == NULL ? &none : &lock;
    assert_int_equal(muster_runtime_new_with(&config, rt), 0);
}

/* At `host`; NULL: it does not listen. */
static void start_at(struct worker *w, const char *name, int32_t id, const char *leaf,
                     const char *host)
{
    struct muster_rpc_config config = muster_rpc_config_defaults();
    char listen[64];

    (void)snprintf(listen, sizeof(listen), "%s:0", host == NULL ? "" : host);
    config.name = name;
    config.id = id;
    config.listen = host == NULL ? NULL : listen;
    config.connect_timeout_ms = 3000;
    open_runtime(&w->rt, leaf);
    assert_int_equal(muster_rpc_start(w->rt, &config, &w->agent), 0);
    assert_int_equal(muster_rpc_register(w->agent, "t::T.echo", echo, NULL, 0), 0);
}

static void start(struct worker *w, const char *name, int32_t id, const char *leaf)
{
    start_at(w, name, id, leaf, leaf == NULL ? NULL : address);
}

static void stop(struct worker *w)
{
    muster_rpc_shutdown(w->agent);
    muster_runtime_free(w->rt);
}

static muster_rpc_future *call(struct worker *from, const char *to, size_t len)
{
    struct muster_rpc_part part = {.data = {.data = calloc(1, len), .len = len}, .device = -1};
    struct muster_rpc_request q = {
        .size = sizeof(struct muster_rpc_request),
        .to = to,
        .method = "t::T.echo",
        .parts = &part,
        .part_count = 1,
        .timeout_ms = 20000,
    };
    muster_rpc_future *future;

    assert_non_null(part.data.data);
    assert_int_equal(muster_rpc_call(from->agent, &q, &future), 0);
    (void)muster_rpc_future_wait(future, MUSTER_TIMEOUT_NEVER);
    free((void *)(uintptr_t)part.data.data);
    return future;
}

static void test_workers_of_one_authority_call_each_other(void **state)
{
    struct worker a;
    struct worker b;
    muster_rpc_future *future;

    (void)state;
    start(&a, "a", 0, "node");
    start(&b, "b", 1, "node");
    assert_int_equal(muster_rpc_add_worker(a.agent, "b", 1, muster_rpc_address(b.agent)), 0);
    future = call(&a, "b", 3u << 20);
    assert_string_equal(muster_rpc_future_errmsg(future), "");
    assert_int_equal(muster_rpc_future_part(future, 0).data.len, 3u << 20);
    muster_rpc_future_free(future);
    /* And back, over the same connection. */
    assert_int_equal(muster_rpc_add_worker(b.agent, "a", 0, muster_rpc_address(a.agent)), 0);
    future = call(&b, "a", 100);
    assert_int_equal(muster_rpc_future_status(future), 0);
    muster_rpc_future_free(future);
    stop(&a);
    stop(&b);
}

/* The caller is told what is wrong, well before its deadline, and the honest worker goes on. */
static void expect_refused(const char *leaf, const char *text)
{
    struct worker stranger;
    struct worker a;
    struct worker b;
    muster_rpc_future *future;

    start(&stranger, "s", 2, leaf);
    start(&a, "a", 0, "node");
    start(&b, "b", 1, "node");
    assert_int_equal(muster_rpc_add_worker(stranger.agent, "b", 1, muster_rpc_address(b.agent)), 0);
    future = call(&stranger, "b", 10);
    assert_int_not_equal(muster_rpc_future_status(future), 0);
    assert_int_equal(muster_rpc_future_kind(future), MUSTER_RPC_LOST);
    if (strstr(muster_rpc_future_errmsg(future), text) == NULL) {
        fail_msg("%s", muster_rpc_future_errmsg(future));
    }
    muster_rpc_future_free(future);
    assert_int_equal(muster_rpc_add_worker(a.agent, "b", 1, muster_rpc_address(b.agent)), 0);
    future = call(&a, "b", 10);
    assert_int_equal(muster_rpc_future_status(future), 0);
    muster_rpc_future_free(future);
    stop(&stranger);
    stop(&a);
    stop(&b);
}

static void test_worker_of_another_authority_is_refused(void **state)
{
    (void)state;
    expect_refused("stray", "the other end refuses us");
}

static void test_worker_whose_certificate_has_expired_is_refused(void **state)
{
    (void)state;
    expect_refused("late", "the other end refuses us");
}

static void test_worker_without_a_certificate_is_refused(void **state)
{
    (void)state;
    expect_refused(NULL, "wants the job's credential");
}

static void test_worker_whose_certificate_is_for_another_host_is_not_called(void **state)
{
    struct worker a;
    struct worker b;
    muster_rpc_future *future;

    (void)state;
    start(&a, "a", 0, "node");
    start(&b, "b", 1, "elsewhere");
    assert_int_equal(muster_rpc_add_worker(a.agent, "b", 1, muster_rpc_address(b.agent)), 0);
    future = call(&a, "b", 10);
    assert_int_not_equal(muster_rpc_future_status(future), 0);
    assert_non_null(strstr(muster_rpc_future_errmsg(future), "IP address mismatch"));
    muster_rpc_future_free(future);
    stop(&a);
    stop(&b);
}

/* Each way, whatever the other one has. */
static void test_loopback_is_open(void **state)
{
    static const char *const leaves[2] = {"node", NULL};

    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct worker a;
        struct worker b;
        muster_rpc_future *future;

        start_at(&a, "a", 0, leaves[i], NULL);
        start_at(&b, "b", 1, leaves[1 - i], "127.0.0.1");
        assert_int_equal(muster_rpc_add_worker(a.agent, "b", 1, muster_rpc_address(b.agent)), 0);
        future = call(&a, "b", 10);
        assert_string_equal(muster_rpc_future_errmsg(future), "");
        muster_rpc_future_free(future);
        stop(&a);
        stop(&b);
    }
}

static void test_worker_without_a_credential_listens_on_loopback_only(void **state)
{
    struct muster_rpc_config config = muster_rpc_config_defaults();
    struct worker w;

    (void)state;
    open_runtime(&w.rt, NULL);
    config.name = "w";
    assert_int_equal(muster_rpc_start(w.rt, &config, &w.agent), 0);
    assert_memory_equal(muster_rpc_address(w.agent), "127.0.0.1:", 10);
    muster_rpc_shutdown(w.agent);
    config.listen = "0.0.0.0:0";
    assert_int_equal(muster_rpc_start(w.rt, &config, &w.agent), MUSTER_ELOCKED);
    assert_non_null(strstr(muster_errmsg(), "no credential"));
    muster_runtime_free(w.rt);
}

int main(void)
{
    static const char *const files[] = {"ca", "other", "node", "late", "stray", "elsewhere", NULL};
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workers_of_one_authority_call_each_other),
        cmocka_unit_test(test_worker_of_another_authority_is_refused),
        cmocka_unit_test(test_worker_whose_certificate_has_expired_is_refused),
        cmocka_unit_test(test_worker_without_a_certificate_is_refused),
        cmocka_unit_test(test_worker_whose_certificate_is_for_another_host_is_not_called),
        cmocka_unit_test(test_loopback_is_open),
        cmocka_unit_test(test_worker_without_a_credential_listens_on_loopback_only),
    };
    struct cert_authority ca;
    struct cert_authority other;
    char name[64];
    int failed;

    address = own_network();
    if (address == NULL) {
        (void)fprintf(stderr, "skipped: there is no address but loopback's\n");
        return SKIPPED_EXIT;
    }
    (void)snprintf(name, sizeof(name), "IP:%s", address);
    (void)snprintf(directory, sizeof(directory), "/tmp/muster-test-XXXXXX");
    if (mkdtemp(directory) == NULL) {
        return 1;
    }
    certs_authority(&ca, directory, "ca");
    certs_authority(&other, directory, "other");
    certs_leaf(&ca, directory, "node", name, 3600);
    certs_leaf(&ca, directory, "late", name, -60);
    certs_leaf(&ca, directory, "elsewhere", "IP:192.0.2.1", 3600);
    certs_leaf(&other, directory, "stray", name, 3600);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    certs_authority_free(&ca);
    certs_authority_free(&other);
    certs_remove(directory, files);
    return failed;
}

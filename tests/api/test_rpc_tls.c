/* RPC agents over TLS: who holds a certificate of the job's authority is let in, nobody else. */
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

static char directory[64];

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

/* `leaf` NULL: without TLS. */
static void start(struct worker *w, const char *name, int32_t id, const char *leaf)
{
    struct muster_rpc_config config = muster_rpc_config_defaults();
    char paths[3][128];
    struct muster_rpc_tls tls = {.cert = paths[0], .key = paths[1], .ca = paths[2]};

    (void)snprintf(paths[0], sizeof(paths[0]), "%s/%s.pem", directory, leaf == NULL ? "" : leaf);
    (void)snprintf(paths[1], sizeof(paths[1]), "%s/%s.key", directory, leaf == NULL ? "" : leaf);
    (void)snprintf(paths[2], sizeof(paths[2]), "%s/ca.pem", directory);
    config.name = name;
    config.id = id;
    config.listen = "127.0.0.1:0";
    config.connect_timeout_ms = 3000;
    config.tls = leaf == NULL ? NULL : &tls;
    assert_int_equal(muster_runtime_new(&w->rt), 0);
    assert_int_equal(muster_rpc_start(w->rt, &config, &w->agent), 0);
    assert_int_equal(muster_rpc_register(w->agent, "t::T.echo", echo, NULL, 0), 0);
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
        .to = to,
        .method = "t::T.echo",
        .parts = &part,
        .part_count = 1,
        .timeout_ms = 20000,
    };
    muster_rpc_future *future;

    assert_non_null(part.data.data);
    assert_int_equal(muster_rpc_call(from->agent, &q, &future), 0);
    (void)muster_rpc_future_wait(future, MUSTER_RPC_FOREVER);
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
    expect_refused("stray", "the peer refuses us");
}

static void test_worker_whose_certificate_has_expired_is_refused(void **state)
{
    (void)state;
    expect_refused("late", "the peer refuses us");
}

static void test_worker_without_tls_is_refused(void **state)
{
    (void)state;
    expect_refused(NULL, "cannot connect to 127.0.0.1");
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

int main(void)
{
    static const char *const files[] = {"ca", "other", "node", "late", "stray", "elsewhere", NULL};
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_workers_of_one_authority_call_each_other),
        cmocka_unit_test(test_worker_of_another_authority_is_refused),
        cmocka_unit_test(test_worker_whose_certificate_has_expired_is_refused),
        cmocka_unit_test(test_worker_without_tls_is_refused),
        cmocka_unit_test(test_worker_whose_certificate_is_for_another_host_is_not_called),
    };
    struct cert_authority ca;
    struct cert_authority other;
    int failed;

    (void)snprintf(directory, sizeof(directory), "/tmp/muster-test-XXXXXX");
    if (mkdtemp(directory) == NULL) {
        return 1;
    }
    certs_authority(&ca, directory, "ca");
    certs_authority(&other, directory, "other");
    certs_leaf(&ca, directory, "node", "IP:127.0.0.1", 3600);
    certs_leaf(&ca, directory, "late", "IP:127.0.0.1", -60);
    certs_leaf(&ca, directory, "elsewhere", "IP:10.0.0.1", 3600);
    certs_leaf(&other, directory, "stray", "IP:127.0.0.1", 3600);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    certs_authority_free(&ca);
    certs_authority_free(&other);
    certs_remove(directory, files);
    return failed;
}

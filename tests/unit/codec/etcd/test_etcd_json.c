/* etcd's JSON, both APIs: texts of requests, replies as the server writes them, and nonsense. */
#include "unit.h"

#include <muster/error.h>

#include "codec/etcd/json.h"
#include "codec/etcd/v2.h"
#include "core/prng.h"
#include "failheap.h"

static void assert_buf(struct mu_buf *b, const char *text)
{
    assert_span_text(mu_buf_span(b), text);
    mu_buf_reset(b);
}

static void test_etcd_json_requests_have_their_texts(void **unused)
{
    struct mu_etcd_compare compare = {.key = MU_SPAN_LIT("a"), .target = MU_ETCD_MOD, .number = 7};
    struct mu_etcd_op put = {
        .kind = MU_ETCD_PUT, .key = MU_SPAN_LIT("a"), .value = MU_SPAN_LIT("b"), .lease = 9};
    struct mu_etcd_op ranges[] = {
        {.kind = MU_ETCD_RANGE, .key = MU_SPAN_LIT("a")},
        {.kind = MU_ETCD_RANGE,
         .key = MU_SPAN_LIT("a"),
         .end = MU_SPAN_LIT("b"),
         .limit = 1,
         .by_creation = true,
         .count_only = true,
         .revision = 3},
    };
    struct mu_etcd_txn txn = {.compares = &compare,
                              .compare_count = 1,
                              .success = &put,
                              .success_count = 1,
                              .failure = ranges,
                              .failure_count = 2};
    struct mu_buf b;

    (void)unused;
    mu_buf_init(&b, 4096);
    assert_int_equal(mu_etcd_encode_txn(&b, &txn), 0);
    assert_buf(&b,
               "{\"compare\":[{\"key\":\"YQ==\",\"result\":\"EQUAL\",\"target\":\"MOD\","
               "\"mod_revision\":\"7\"}],\"success\":[{\"request_put\":{\"key\":\"YQ==\","
               "\"value\":\"Yg==\",\"lease\":\"9\"}}],\"failure\":[{\"request_range\":{\"key\":"
               "\"YQ==\"}},{\"request_range\":{\"key\":\"YQ==\",\"range_end\":\"Yg==\",\"limit\":"
               "\"1\",\"revision\":\"3\",\"sort_order\":\"ASCEND\",\"sort_target\":\"CREATE\","
               "\"count_only\":true}}]}");
    assert_int_equal(mu_etcd_encode_auth(&b, MU_SPAN_LIT("u\""), MU_SPAN_LIT("p\\\n")), 0);
    assert_buf(&b, "{\"name\":\"u\\u0022\",\"password\":\"p\\u005c\\u000a\"}");
    assert_int_equal(mu_etcd_encode_grant(&b, 5, 77), 0);
    assert_buf(&b, "{\"TTL\":\"5\",\"ID\":\"77\"}");
    assert_int_equal(
        mu_etcd_encode_watch(&b, &(struct mu_etcd_watch_request){.key = MU_SPAN_LIT("a"),
                                                                 .start_revision = 4,
                                                                 .prev_kv = true,
                                                                 .no_delete = true}),
        0);
    assert_buf(&b,
               "{\"create_request\":{\"key\":\"YQ==\",\"start_revision\":\"4\",\"prev_kv\":true,"
               "\"filters\":[\"NODELETE\"]}}");
    mu_buf_fini(&b);
}

static void test_etcd_json_request_that_fails_appends_nothing(void **unused)
{
    struct mu_etcd_op put = {.kind = MU_ETCD_PUT, .key = MU_SPAN_LIT("abcdefghijkl")};
    struct mu_buf b;

    (void)unused;
    mu_buf_init(&b, 20);
    assert_int_equal(mu_buf_append(&b, MU_SPAN_LIT("x")), 0);
    assert_int_equal(mu_etcd_encode_op(&b, &put), MUSTER_ELIMIT);
    assert_span_text(mu_buf_span(&b), "x");
    mu_buf_fini(&b);
}

static void test_etcd_json_prefix_ends_behind_all_of_it(void **unused)
{
    struct mu_buf b;

    (void)unused;
    mu_buf_init(&b, 64);
    assert_int_equal(mu_etcd_prefix_end(&b, MU_SPAN_LIT("/k/")), 0);
    assert_buf(&b, "/k0");
    assert_int_equal(mu_etcd_prefix_end(&b, MU_SPAN_LIT("a\xff\xff")), 0);
    assert_buf(&b, "b");
    assert_int_equal(mu_etcd_prefix_end(&b, MU_SPAN_LIT("\xff")), 0);
    assert_int_equal(b.len, 1);
    assert_int_equal(mu_buf_span(&b).data[0], 0);
    mu_buf_fini(&b);
}

static const char range_reply[] =
    "{\"header\":{\"cluster_id\":\"1\",\"revision\":\"12\",\"raft_term\":\"2\"},\"kvs\":[{\"key\":"
    "\"YQ==\",\"create_revision\":\"2\",\"mod_revision\":\"3\",\"version\":\"2\",\"value\":\"Yg=="
    "\","
    "\"lease\":\"44\"},{\"key\":\"Yg==\",\"mod_revision\":\"5\"}],\"more\":true,\"count\":\"9\"}";
static const char txn_reply[] =
    "{\"header\":{\"revision\":\"4\"},\"succeeded\":true,\"responses\":[{\"response_put\":{"
    "\"header\":"
    "{\"revision\":\"4\"}}},{\"response_range\":{\"kvs\":[{\"key\":\"YQ==\"}],\"count\":\"1\"}},"
    "{\"response_delete_range\":{\"deleted\":\"3\"}}]}";

static void test_etcd_json_reads_a_range(void **unused)
{
    struct mu_etcd_reply r;

    (void)unused;
    mu_etcd_reply_init(&r);
    assert_int_equal(mu_etcd_reply_decode(&r, mu_span_str(range_reply)), 0);
    assert_int_equal(r.revision, 12);
    assert_int_equal(r.result_count, 1);
    assert_int_equal(r.results[0].kv_count, 2);
    assert_int_equal(r.results[0].count, 9);
    assert_true(r.results[0].more);
    assert_span_text(r.results[0].kvs[0].value, "b");
    assert_int_equal(r.results[0].kvs[0].lease, 44);
    assert_span_text(r.results[0].kvs[1].key, "b");
    assert_span_text(r.results[0].kvs[1].value, "");
    assert_int_equal(mu_etcd_reply_decode(&r, MU_SPAN_LIT("{\"header\":{\"revision\":\"2\"}}")), 0);
    assert_int_equal(r.results[0].kv_count, 0);
    mu_etcd_reply_fini(&r);
}

static void test_etcd_json_reads_a_transaction(void **unused)
{
    struct mu_etcd_reply r;

    (void)unused;
    mu_etcd_reply_init(&r);
    assert_int_equal(mu_etcd_reply_decode(&r, mu_span_str(txn_reply)), 0);
    assert_true(r.succeeded);
    assert_int_equal(r.result_count, 3);
    assert_int_equal(r.results[0].kind, MU_ETCD_PUT);
    assert_int_equal(r.results[1].kv_count, 1);
    assert_int_equal(r.results[2].deleted, 3);
    mu_etcd_reply_fini(&r);
}

static void test_etcd_json_reads_pieces_of_a_watch(void **unused)
{
    struct mu_etcd_reply r;

    (void)unused;
    mu_etcd_reply_init(&r);
    assert_int_equal(
        mu_etcd_reply_decode(
            &r,
            MU_SPAN_LIT("{\"result\":{\"header\":{\"revision\":\"9\"},\"events\":[{\"kv\":{\"key\":"
                        "\"YQ==\",\"mod_revision\":\"8\",\"create_revision\":\"8\"}},{\"type\":"
                        "\"DELETE\",\"kv\":{\"key\":\"YQ==\",\"mod_revision\":\"9\"},\"prev_kv\":"
                        "{\"key\":\"YQ==\",\"value\":\"Yg==\"}}]}}")),
        0);
    assert_int_equal(r.event_count, 2);
    assert_false(r.events[0].deleted);
    assert_true(r.events[1].deleted && r.events[1].has_prev);
    assert_span_text(r.events[1].prev.value, "b");
    assert_int_equal(mu_etcd_reply_decode(&r, MU_SPAN_LIT("{\"result\":{\"canceled\":true,"
                                                          "\"compact_revision\":\"3\"}}")),
                     0);
    assert_true(r.canceled);
    assert_int_equal(r.compact_revision, 3);
    assert_int_equal(
        mu_etcd_reply_decode(
            &r, MU_SPAN_LIT("{\"error\":{\"grpc_code\":14,\"http_code\":503,\"message\":"
                            "\"etcdserver: no leader\"}}")),
        0);
    assert_true(r.is_error);
    assert_int_equal(r.code, 14);
    assert_span_text(r.message, "etcdserver: no leader");
    /* As 3.6 says it: a keep-alive after a restart, when it has forgotten our token. */
    assert_int_equal(mu_etcd_reply_decode(&r, MU_SPAN_LIT("{\"error\":{\"code\":16,\"message\":"
                                                          "\"etcdserver: invalid auth token\"}}")),
                     0);
    assert_true(r.is_error);
    assert_int_equal(r.code, MU_ETCD_UNAUTHORIZED);
    assert_span_text(r.message, "etcdserver: invalid auth token");
    mu_etcd_reply_fini(&r);
}

static void test_etcd_json_reads_refusals_and_leases(void **unused)
{
    struct mu_etcd_reply r;

    (void)unused;
    mu_etcd_reply_init(&r);
    assert_int_equal(
        mu_etcd_reply_decode(&r, MU_SPAN_LIT("{\"error\":\"x\",\"message\":\"no \\u003c\","
                                             "\"code\":5}")),
        0);
    assert_true(r.is_error);
    assert_int_equal(r.code, 5);
    assert_span_text(r.message, "no <");
    assert_int_equal(
        mu_etcd_reply_decode(&r, MU_SPAN_LIT("{\"result\":{\"ID\":\"7\",\"TTL\":\"3\"}}")), 0);
    assert_int_equal(r.ttl_s, 3);
    assert_int_equal(mu_etcd_reply_decode(&r, MU_SPAN_LIT("{\"ID\":\"7\",\"TTL\":\"-1\",\"keys\":"
                                                          "[\"YQ==\",\"Yg==\"]}")),
                     0);
    assert_int_equal(r.ttl_s, -1);
    assert_int_equal(r.lease_keys, 2);
    mu_etcd_reply_fini(&r);
}

static void test_etcd_json_refuses_nonsense(void **unused)
{
    static const char *const bad[] = {
        "",
        "Not Found",
        "[]",
        "{\"kvs\":[1]}",
        "{\"kvs\":{}}",
        "{\"kvs\":[{\"key\":\"YQ\"}]}",
        "{\"kvs\":[{\"key\":5}]}",
        "{\"kvs\":[{}],\"kvs\":[{}]}",
        "{\"count\":\"x\"}",
        "{\"responses\":[{\"response_else\":{}}]}",
        "{\"responses\":[{}]}",
        "{\"events\":[1]}",
        "{\"TTL\":\"99999999999999999999\"}",
        "{\"kvs\":[[],[],[],[]]}",
    };
    struct mu_etcd_reply r;

    (void)unused;
    mu_etcd_reply_init(&r);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (mu_etcd_reply_decode(&r, mu_span_str(bad[i])) != MUSTER_EPROTO) {
            fail_msg("%s is taken", bad[i]);
        }
        assert_int_equal(r.result_count, 0);
    }
    mu_etcd_reply_fini(&r);
}

static void test_etcd_json_survives_damage_and_want_of_memory(void **unused)
{
    struct mu_etcd_reply r;
    struct mu_prng prng;
    char text[sizeof(txn_reply)];

    (void)unused;
    mu_prng_seed(&prng, 7);
    mu_etcd_reply_init(&r);
    for (int i = 0; i < 20000; i++) {
        memcpy(text, txn_reply, sizeof(text));
        text[mu_prng_below(&prng, sizeof(text) - 1)] = (char)mu_prng_below(&prng, 256);
        (void)mu_etcd_reply_decode(&r, mu_span(text, mu_prng_below(&prng, sizeof(text))));
    }
    mu_etcd_reply_fini(&r);
    for (long nth = 0;; nth++) {
        bool fired;
        int err;

        mu_etcd_reply_init(&r);
        failheap_arm(nth);
        err = mu_etcd_reply_decode(&r, mu_span_str(txn_reply));
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(err, fired ? MUSTER_ENOMEM : 0);
        mu_etcd_reply_fini(&r);
        if (!fired) {
            break;
        }
    }
}

/* --- v2 --------------------------------------------------------------------------------------- */

static void test_etcd_v2_forms_are_escaped(void **unused)
{
    struct mu_buf b;

    (void)unused;
    mu_buf_init(&b, 256);
    assert_int_equal(mu_etcd2_field(&b, "value", MU_SPAN_LIT("a+/= &")), 0);
    assert_int_equal(mu_etcd2_field(&b, "ttl", MU_SPAN_LIT("5")), 0);
    assert_buf(&b, "value=a%2B%2F%3D%20%26&ttl=5");
    assert_int_equal(mu_etcd2_path(&b, MU_SPAN_LIT("/a b/Pz8/")), 0);
    assert_buf(&b, "/a%20b/Pz8/");
    mu_buf_fini(&b);
}

static void test_etcd_v2_reads_nodes_of_all_levels(void **unused)
{
    static const char text[] =
        "{\"action\":\"get\",\"node\":{\"key\":\"/d\",\"dir\":true,\"nodes\":[{\"key\":\"/d/a\","
        "\"value\":\"1\",\"modifiedIndex\":7,\"createdIndex\":6,\"ttl\":9},{\"key\":\"/d/"
        "s\",\"dir\":"
        "true,\"nodes\":[{\"key\":\"/d/s/x\",\"value\":\"q\\\"\"}]}],\"modifiedIndex\":4},"
        "\"prevNode\":{\"key\":\"/d\"}}";
    struct mu_etcd2_reply r;

    (void)unused;
    mu_etcd2_reply_init(&r);
    assert_int_equal(mu_etcd2_reply_decode(&r, MU_SPAN_LIT(text)), 0);
    assert_span_text(r.action, "get");
    assert_int_equal(r.node_count, 4);
    assert_true(r.nodes[0].dir && r.has_prev);
    assert_int_equal(r.nodes[1].modified, 7);
    assert_int_equal(r.nodes[1].ttl_s, 9);
    assert_span_text(r.nodes[3].key, "/d/s/x");
    assert_span_text(r.nodes[3].value, "q\"");
    assert_int_equal(mu_etcd2_reply_decode(
                         &r, MU_SPAN_LIT("{\"errorCode\":105,\"message\":\"Key already exists\","
                                         "\"cause\":\"/a\",\"index\":5}")),
                     0);
    assert_int_equal(r.code, MU_ETCD2_EXISTS);
    assert_int_equal(r.index, 5);
    assert_int_equal(mu_etcd2_reply_decode(&r, MU_SPAN_LIT("404 page not found")), MUSTER_EPROTO);
    assert_int_equal(mu_etcd2_reply_decode(&r, MU_SPAN_LIT("{\"node\":{\"nodes\":[1,2]}}")),
                     MUSTER_EPROTO);
    mu_etcd2_reply_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_etcd_json_requests_have_their_texts),
        cmocka_unit_test(test_etcd_json_request_that_fails_appends_nothing),
        cmocka_unit_test(test_etcd_json_prefix_ends_behind_all_of_it),
        cmocka_unit_test(test_etcd_json_reads_a_range),
        cmocka_unit_test(test_etcd_json_reads_a_transaction),
        cmocka_unit_test(test_etcd_json_reads_pieces_of_a_watch),
        cmocka_unit_test(test_etcd_json_reads_refusals_and_leases),
        cmocka_unit_test(test_etcd_json_refuses_nonsense),
        cmocka_unit_test(test_etcd_json_survives_damage_and_want_of_memory),
        cmocka_unit_test(test_etcd_v2_forms_are_escaped),
        cmocka_unit_test(test_etcd_v2_reads_nodes_of_all_levels),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

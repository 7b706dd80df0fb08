/* The native backend's options and texts, and what all handlers share. */
#include "unit.h"

#include <string.h>

#include "core/alloc.h"
#include "core/url.h"
#include "failheap.h"
#include "service/rdzv/muster.h"

static struct mu_rdzv_muster_config config;
static struct mu_errmsg msg;

static int configure(const char *text)
{
    const struct mu_rdzv_params params = {
        .backend = "muster", .run_id = "run", .nodes_min = 1, .nodes_max = 2, .config = text};

    msg.text[0] = '\0';
    return mu_rdzv_muster_configure(&config, &params, &msg);
}

static void test_options_have_the_documented_defaults(void **state)
{
    (void)state;
    assert_int_equal(configure(""), 0);
    assert_int_equal(config.join_timeout_ms, 600000);
    assert_int_equal(config.last_call_ms, 1000);
    assert_int_equal(config.upscale_delay_ms, 1000);
    assert_int_equal(config.beat_ms, 500);
    assert_int_equal(config.dead_ms, 3000);
    assert_int_equal(config.grace_ms, 3000); /* no shorter: who was cut off stops in that time */
    assert_true(config.restarts_max == UINT32_MAX);
    assert_int_equal(config.target, 0);
    assert_int_equal(config.join_flags, MU_RDZV_JOIN_FEW);
    assert_int_equal(config.host, MU_RDZV_HOST_TRY);
    assert_string_equal(config.topology, "");
}

static void test_options_are_taken(void **state)
{
    (void)state;
    assert_int_equal(configure("join_timeout=never,last_call_timeout=0,upscale_delay=never,"
                               "max_restarts=3,target=8,topology=rack 7,members=no,is_host=1,"
                               "name=me,addr=here"),
                     0);
    assert_int_equal(config.join_timeout_ms, 0);
    assert_int_equal(config.last_call_ms, 0);
    assert_true(config.upscale_delay_ms == UINT64_MAX);
    assert_int_equal(config.restarts_max, 3);
    assert_int_equal(config.target, 8);
    assert_string_equal(config.topology, "rack 7");
    assert_int_equal(config.join_flags, 0);
    assert_int_equal(config.host, MU_RDZV_HOST_YES);
    assert_int_equal(configure("spares=0"), 0);
    assert_int_equal(config.join_flags, MU_RDZV_JOIN_FEW | MU_RDZV_JOIN_SPARES);
    assert_int_equal(config.spares, 0);
    assert_int_equal(configure("spares=-1"), MUSTER_EINVAL);
    assert_int_equal(configure("max_losses=7/60"), 0);
    assert_int_equal(config.join_flags, MU_RDZV_JOIN_FEW | MU_RDZV_JOIN_LOSSES);
    assert_int_equal(config.losses_max, 7);
    assert_int_equal(config.losses_ms, 60000);
    assert_int_equal(configure("max_losses=7"), MUSTER_EINVAL);
    assert_string_equal(msg.text, "max_losses: \"7\" is not a number of losses and a time: write "
                                  "N/TIME, such as 100/1h");
    assert_int_equal(configure("members=true"), 0);
    assert_int_equal(config.join_flags, MU_RDZV_JOIN_MEMBERS | MU_RDZV_JOIN_FEW);
    assert_int_equal(configure("is_host=false"), 0);
    assert_int_equal(config.host, MU_RDZV_HOST_NO);
}

static void test_who_gives_one_bound_gets_fitting_others(void **state)
{
    (void)state;
    assert_int_equal(configure("dead=0.9"), 0);
    assert_int_equal(config.beat_ms, 150);
    assert_int_equal(config.grace_ms, 900);
    assert_int_equal(configure("dead=60"), 0);
    assert_int_equal(config.beat_ms, 1000);
    assert_int_equal(configure("beat=5"), 0);
    assert_int_equal(config.dead_ms, 15000);
    assert_int_equal(config.grace_ms, 15000);
}

static void test_options_of_pytorch_mean_the_same_here(void **state)
{
    (void)state;
    assert_int_equal(configure("timeout=70"), 0);
    assert_int_equal(config.join_timeout_ms, 70000);
    assert_int_equal(configure("timeout=70,join_timeout=80"), 0);
    assert_int_equal(config.join_timeout_ms, 80000);
    assert_int_equal(configure("keep_alive_interval=2,keep_alive_max_attempt=6"), 0);
    assert_int_equal(config.dead_ms, 12000);
    assert_int_equal(config.beat_ms, 1000);
    assert_int_equal(configure("keep_alive_interval=1"), 0);
    assert_int_equal(config.dead_ms, 3000);
    assert_int_equal(configure("keep_alive_max_attempt=2"), 0);
    assert_int_equal(config.dead_ms, 10000);
    assert_int_equal(configure("keep_alive_interval=2,dead=4"), 0);
    assert_int_equal(config.dead_ms, 4000);
    /* What has no meaning here changes nothing. */
    assert_int_equal(configure("read_timeout=60,close_timeout=30,heartbeat_timeout=5,"
                               "store_type=tcp,use_libuv=1,rank=3,protocol=https,cacert=F,cert=F,"
                               "key=F,etcd_prefix=/x,ssl_cert=F,ssl_cert_key=F,ca_cert=F"),
                     0);
    assert_int_equal(config.join_timeout_ms, 600000);
    assert_int_equal(config.dead_ms, 3000);
}

static void test_relays_are_a_list_and_stand_before_a_server_that_no_node_is(void **state)
{
    (void)state;
    assert_int_equal(configure("via=a:1"), 0);
    assert_int_equal(config.relay_count, 1);
    assert_int_equal(config.host, MU_RDZV_HOST_NO);
    assert_int_equal(configure("dead=5, via = a:1, [::1]:2 ,c:3,d:4,target=7,is_host=no"), 0);
    assert_int_equal(config.relay_count, 4);
    assert_string_equal(config.relays[1].host, "::1");
    assert_int_equal(config.relays[1].port, 2);
    assert_string_equal(config.relays[3].host, "d");
    assert_int_equal(config.target, 7);
    assert_int_equal(configure("via=a:1,b:2,c:3,d:4,e:5"), MUSTER_EINVAL);
    assert_string_equal(msg.text,
                        "the rendezvous configuration option 'via': there are more than 4 "
                        "relays");
    assert_int_equal(configure("via=a:1,b"), MUSTER_EINVAL);
    assert_string_equal(msg.text,
                        "the rendezvous configuration option 'via': \"b\" is not HOST:PORT");
    assert_int_equal(configure("via=unix:/x"), MUSTER_EINVAL);
    assert_int_equal(configure("via=a:0"), MUSTER_EINVAL);
    assert_int_equal(configure("via=a:1,is_host=true"), MUSTER_EINVAL);
    assert_non_null(strstr(msg.text, "via= and is_host=true exclude each other"));
    assert_int_equal(configure("succession=any,via=a:1"), MUSTER_EINVAL);
    assert_non_null(strstr(msg.text, "via= and succession= exclude each other"));
}

static void test_wrong_options_are_refused_by_name(void **state)
{
    static const struct {
        const char *text;
        const char *names;
    } wrong[] = {
        {"colour=red", "colour"},
        {"dead=1,beat=0.9", "beats"},
        {"dead=1,grace=2", "grace"},
        {"max_restarts=-1", "max_restarts"},
        {"target=4294967296", "target"},
        {"beat=3601", "beat"},
        {"join_timeout=soon", "join_tim"},
        {"members=perhaps", "members"},
        {"keep_alive_interval=0", "keep_alive_interval"},
        {"keep_alive_max_attempt=0", "keep_alive_max_attempt"},
        {"keep_alive_interval=3600", "dead"},
        {"join_timout=5", "did you mean \"join_timeout\"?"},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        assert_int_equal(configure(wrong[i].text), MUSTER_EINVAL);
        assert_non_null(strstr(msg.text, wrong[i].names));
    }
}

static void test_a_store_url_is_read_back_as_it_was_meant(void **state)
{
    const struct mu_addr six = {.kind = MU_ADDR_TCP, .port = 29400, .host = "fe80::1"};
    char text[MU_RDZV_STORE_URL_CAP];
    struct mu_url url;

    (void)state;
    (void)mu_rdzv_store_url(text, &six, "a b&c=%/d", 7, 12);
    assert_int_equal(mu_url_parse(&url, text, &msg), 0);
    assert_string_equal(url.authority, "[fe80::1]:29400");
    assert_string_equal(mu_url_param(&url, "prefix"), "rdzv/a b&c=%/d/7.12");
    assert_int_equal(url.param_count, 1);
}

static void test_a_store_url_has_room_for_the_longest_run(void **state)
{
    struct mu_addr addr = {.kind = MU_ADDR_TCP, .port = 65535};
    char run[MU_RDZV_RUN_ID_MAX + 1];
    char text[MU_RDZV_STORE_URL_CAP];
    struct mu_url url;

    (void)state;
    memset(run, '\xff', sizeof(run) - 1);
    run[sizeof(run) - 1] = '\0';
    memset(addr.host, 'h', MU_ADDR_HOST_MAX);
    (void)mu_rdzv_store_url(text, &addr, run, UINT64_MAX, UINT64_MAX);
    assert_int_equal(mu_url_parse(&url, text, &msg), 0);
    assert_int_equal(strlen(mu_url_param(&url, "prefix")), 5 + MU_RDZV_RUN_ID_MAX + 1 + 41);
}

static void encode_members(struct mu_buf *out, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        const char *names[] = {"node1", "", "node10"};
        const struct mu_rdzv_member_msg member = {
            .node = mu_span_str(names[i % 3]), .addr = MU_SPAN_LIT("10.0.0.1"), .rank = i};

        assert_int_equal(mu_rdzv_member_encode(out, &member), 0);
    }
}

static void test_members_are_decoded_only_if_all_are_there(void **state)
{
    struct mu_rdzv_peer *peers = NULL;
    struct mu_buf out;

    (void)state;
    mu_buf_init(&out, 4096);
    encode_members(&out, 3);
    assert_int_equal(mu_rdzv_peers_decode(mu_buf_span(&out), 2, &peers), MUSTER_EPROTO);
    assert_int_equal(mu_rdzv_peers_decode(mu_buf_span(&out), 4, &peers), MUSTER_EPROTO);
    assert_int_equal(mu_rdzv_peers_decode(mu_span(out.data, out.len - 1), 3, &peers),
                     MUSTER_EPROTO);
    assert_null(peers);
    failheap_arm(0);
    assert_int_equal(mu_rdzv_peers_decode(mu_buf_span(&out), 3, &peers), MUSTER_ENOMEM);
    failheap_disarm();
    assert_int_equal(mu_rdzv_peers_decode(mu_buf_span(&out), 3, &peers), 0);
    assert_string_equal(peers[0].name, "node1");
    assert_string_equal(peers[1].name, "");
    assert_string_equal(peers[2].name, "node10");
    assert_string_equal(peers[2].addr, "10.0.0.1");
    mu_free(peers);
    mu_buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_have_the_documented_defaults),
        cmocka_unit_test(test_options_are_taken),
        cmocka_unit_test(test_who_gives_one_bound_gets_fitting_others),
        cmocka_unit_test(test_options_of_pytorch_mean_the_same_here),
        cmocka_unit_test(test_relays_are_a_list_and_stand_before_a_server_that_no_node_is),
        cmocka_unit_test(test_wrong_options_are_refused_by_name),
        cmocka_unit_test(test_a_store_url_is_read_back_as_it_was_meant),
        cmocka_unit_test(test_a_store_url_has_room_for_the_longest_run),
        cmocka_unit_test(test_members_are_decoded_only_if_all_are_there),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* Goal: what PyTorch's users write behind --rdzv-conf is accepted whatever the backend, and what is
 * a mistake is refused in words that help. */
#include "unit.h"

#include "codec/rdzv/keys.h"

static const char *const backends[] = {"muster", "c10d", "etcd-v2", "etcd-v3", "etcd", "static"};

#define BACKEND_COUNT (sizeof(backends) / sizeof(backends[0]))

/* Every key that a backend of PyTorch 1.13 or 2.11 reads, with the backends of ours that use it, in
 * the order above. */
static const struct {
    const char *key;
    const char *used;
} torches[] = {
    {"join_timeout", "######"},
    {"last_call_timeout", "#####."},
    {"close_timeout", ".####."},
    {"heartbeat_timeout", ".##..."},
    {"keep_alive_interval", "####.."},
    {"keep_alive_max_attempt", "####.."},
    {"read_timeout", ".##..."},
    {"is_host", "##...#"},
    {"store_type", ".#...."},
    {"use_libuv", "......"},
    {"timeout", "#...##"},
    {"rank", ".....#"},
    {"etcd_prefix", "....#."},
    {"protocol", ".####."},
    {"cacert", "..###."},
    {"cert", "..###."},
    {"key", "..###."},
    {"ca_cert", "..###."},
    {"ssl_cert", "..###."},
    {"ssl_cert_key", "..###."},
};

static void test_rdzv_keys_of_pytorch_are_accepted_by_every_backend(void **state)
{
    struct mu_errmsg msg;

    (void)state;
    for (size_t i = 0; i < sizeof(torches) / sizeof(torches[0]); i++) {
        for (size_t b = 0; b < BACKEND_COUNT; b++) {
            enum mu_rdzv_key_verdict wanted =
                torches[i].used[b] == '#' ? MU_RDZV_KEY_USED : MU_RDZV_KEY_IGNORED;

            if (mu_rdzv_key_judge(backends[b], mu_span_str(torches[i].key), &msg) != wanted) {
                fail_msg("%s: %s", backends[b], torches[i].key);
            }
        }
    }
}

static void assert_refused(const char *backend, const char *key, const char *words)
{
    struct mu_errmsg msg = {{0}};

    assert_int_equal(mu_rdzv_key_judge(backend, mu_span_str(key), &msg), MU_RDZV_KEY_REFUSED);
    if (strstr(msg.text, words) == NULL) {
        fail_msg("%s of %s: \"%s\" without \"%s\"", key, backend, msg.text, words);
    }
}

static void test_rdzv_keys_of_ours_are_for_their_backends(void **state)
{
    struct mu_errmsg msg;

    (void)state;
    assert_int_equal(mu_rdzv_key_judge("muster", MU_SPAN_LIT("dead"), &msg), MU_RDZV_KEY_USED);
    assert_refused("c10d", "dead", "no configuration option \"dead\"; it is for: muster");
    assert_refused("muster", "dialect", "it is for: c10d, etcd-v2, etcd");
    for (size_t b = 0; b < BACKEND_COUNT; b++) {
        assert_int_equal(mu_rdzv_key_judge(backends[b], MU_SPAN_LIT("addr"), &msg),
                         MU_RDZV_KEY_USED);
    }
}

static void test_rdzv_keys_that_are_mistyped_get_a_suggestion(void **state)
{
    (void)state;
    assert_refused("muster", "join_timout", "did you mean \"join_timeout\"?");
    assert_refused("c10d", "jion_timeout", "did you mean \"join_timeout\"?");
    assert_refused("c10d", "last_call_timeot", "did you mean \"last_call_timeout\"?");
    assert_refused("c10d", "ishost", "did you mean \"is_host\"?");
    assert_refused("static", "rnak", "did you mean \"rank\"?");
    assert_refused("muster", "Join_Timeout", "did you mean \"join_timeout\"?");
    /* Only what the backend has a use for is suggested. */
    assert_refused("muster", "store_typ", "muster-rdzv(1)");
    assert_refused("c10d", "colour", "muster-rdzv(1)");
    assert_refused("c10d", "x", "muster-rdzv(1)");
    assert_refused("c10d", "", "muster-rdzv(1)");
    /* Meets WORD_MAX of codec/text/guess.c: 63 letters are compared, 64 are not. */
    assert_refused("c10d", "join_timeout___________________________________________________",
                   "did you mean \"join_timeout\"?");
    assert_refused("c10d", "join_timeout____________________________________________________",
                   "muster-rdzv(1)");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rdzv_keys_of_pytorch_are_accepted_by_every_backend),
        cmocka_unit_test(test_rdzv_keys_of_ours_are_for_their_backends),
        cmocka_unit_test(test_rdzv_keys_that_are_mistyped_get_a_suggestion),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

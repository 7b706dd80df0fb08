/* Our end of TLS against a plain one of OpenSSL: handshakes, suites, data and its end. */
#include "tls_ends.h"

#define TOKEN "a token of some length"

static void test_openssl_and_we_read_each_other_with_every_suite(void **state)
{
    static const char *const suites[] = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384",
                                         "TLS_CHACHA20_POLY1305_SHA256"};
    static const size_t rooms[] = {MU_TLS_RECORD_MAX, 100, 1};

    (void)state;
    for (size_t i = 0; i < 18; i++) {
        struct tls_ends e = {.we_dial = i % 2 == 0,
                             .suite = suites[i / 2 % 3],
                             .padding = i % 4 < 2 ? 0 : 512,
                             .room = rooms[i / 6],
                             .tickets = i / 6};

        tls_ends_init(&e);
        tls_ends_shake_hands(&e);
        assert_string_equal(SSL_get_cipher(e.ssl), suites[i / 2 % 3]);
        tls_ends_cross(&e);
        tls_ends_fini(&e);
    }
}

/* Goal: the token is on the wire what it always was. Method: the other end makes the key by itself,
 * and nothing of ours. */
static void test_openssl_and_we_read_each_other_with_a_token(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct tls_ends e = {.we_dial = i == 0, .token = TOKEN};

        tls_ends_init(&e);
        tls_ends_shake_hands(&e);
        assert_int_equal(SSL_session_reused(e.ssl), 1);
        tls_ends_cross(&e);
        tls_ends_fini(&e);
    }
}

/* Goal: a token alone opens no recording. Method: the other end would do without Diffie-Hellman,
 * and with no group in common has to. */
static void test_token_goes_with_diffie_hellman_only(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct tls_ends e = {.we_dial = i % 2 == 0, .token = TOKEN};

        tls_ends_init(&e);
        (void)SSL_set_options(e.ssl, SSL_OP_ALLOW_NO_DHE_KEX);
        if (i < 2) {
            tls_ends_shake_hands(&e);
            assert_int_equal(SSL_get_negotiated_group(e.ssl), NID_X25519);
        } else {
            assert_int_equal(SSL_set1_groups_list(e.ssl, "P-521"), 1);
            tls_ends_try(&e);
            assert_int_equal(e.err, MUSTER_ETLS);
            assert_false(mu_tls_ready(&e.t));
        }
        tls_ends_fini(&e);
    }
}

static void test_wrong_token_is_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct tls_ends e = {.we_dial = i == 0, .token = TOKEN, .their_token = "another token"};

        tls_ends_init(&e);
        tls_ends_try(&e);
        assert_int_equal(e.err, MUSTER_ETLS);
        assert_false(mu_tls_ready(&e.t));
        assert_int_equal(SSL_is_init_finished(e.ssl), 0);
        assert_non_null(strstr(mu_tls_errmsg(&e.t), "a different token"));
        tls_ends_fini(&e);
    }
}

static void test_tls_1_2_is_refused(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct tls_ends e = {
            .we_dial = i % 2 == 0, .token = i / 2 == 0 ? NULL : TOKEN, .version = TLS1_2_VERSION};

        tls_ends_init(&e);
        tls_ends_try(&e);
        assert_int_equal(e.err, MUSTER_ETLS);
        assert_false(mu_tls_ready(&e.t));
        assert_int_equal(SSL_is_init_finished(e.ssl), 0);
        assert_non_null(strstr(mu_tls_errmsg(&e.t), "protocol"));
        tls_ends_fini(&e);
    }
}

static void test_records_are_numbered_beyond_a_byte(void **state)
{
    struct tls_ends e = {.we_dial = true};

    (void)state;
    tls_ends_init(&e);
    tls_ends_shake_hands(&e);
    for (size_t i = 0; i < 700; i++) {
        uint8_t byte = (uint8_t)i;
        size_t n = 0;

        assert_int_equal(mu_tls_write(&e.t, mu_span(&byte, 1), &n), 0);
        tls_ends_to_them(&e);
        assert_int_equal(SSL_read_ex(e.ssl, &byte, 1, &n), 1);
        assert_int_equal(byte, i % 256);
        assert_int_equal(SSL_write_ex(e.ssl, &byte, 1, &n), 1);
        tls_ends_to_us(&e);
        assert_int_equal(e.err, 0);
        assert_int_equal(e.got.len, i + 1);
    }
    tls_ends_fini(&e);
}

static void test_suite_that_is_liked_best_is_the_quick_one(void **state)
{
    struct tls_ends e = {.we_dial = true};

    (void)state;
    tls_ends_init(&e);
    tls_ends_shake_hands(&e);
    assert_string_equal(SSL_get_cipher(e.ssl), "TLS_AES_128_GCM_SHA256");
    tls_ends_fini(&e);
}

static void test_no_ticket_is_sent(void **state)
{
    struct tls_ends e = {0};
    uint8_t byte;
    size_t n;

    (void)state;
    tls_ends_init(&e);
    tls_ends_shake_hands(&e);
    assert_int_equal(mu_tls_output(&e.t).len, 0);
    assert_int_equal(SSL_read_ex(e.ssl, &byte, 1, &n), 0);
    assert_int_equal(SSL_SESSION_has_ticket(SSL_get_session(e.ssl)), 0);
    tls_ends_fini(&e);
}

static void test_end_is_understood_by_either_side(void **state)
{
    struct tls_ends e = {.we_dial = true};
    uint8_t byte;
    size_t n;

    (void)state;
    tls_ends_init(&e);
    tls_ends_shake_hands(&e);
    mu_tls_end(&e.t);
    tls_ends_to_them(&e);
    assert_int_equal(SSL_read_ex(e.ssl, &byte, 1, &n), 0);
    assert_int_equal(SSL_get_error(e.ssl, 0), SSL_ERROR_ZERO_RETURN);
    /* They may still write, and we read it. */
    assert_int_equal(SSL_write_ex(e.ssl, "last words", 10, &n), 1);
    tls_ends_to_us(&e);
    assert_int_equal(e.err, 0);
    assert_int_equal(e.got.len, 10);
    assert_false(e.t.peer_ended);
    (void)SSL_shutdown(e.ssl);
    tls_ends_to_us(&e);
    assert_int_equal(e.err, 0);
    assert_true(e.t.peer_ended);
    tls_ends_fini(&e);
}

/* Goal: what was cut off is not taken for all there was. Method: the bytes stop before, in and
 * behind a record of data, and in the record that says the end. */
static void test_cut_is_told_apart_from_an_end(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct tls_ends e = {.we_dial = i % 2 == 0, .token = TOKEN};
        char *bytes;
        long all;
        size_t n;

        tls_ends_init(&e);
        tls_ends_shake_hands(&e);
        assert_int_equal(SSL_write_ex(e.ssl, "a payload", 9, &n), 1);
        assert_int_equal(SSL_shutdown(e.ssl), 0);
        all = BIO_get_mem_data(e.from, &bytes);
        assert_int_equal(all, 9 + TLS_FORGE_EXTRA + 2 + TLS_FORGE_EXTRA);
        n = (size_t[]){0, 20, 9 + TLS_FORGE_EXTRA, (size_t)all - 1}[i];
        tls_ends_hear(&e, mu_span(bytes, n));
        assert_int_equal(e.err, 0);
        assert_false(e.t.peer_ended);
        assert_int_equal(e.got.len, i < 2 ? 0 : 9);
        tls_ends_hear(&e, mu_span(bytes + n, (size_t)all - n));
        assert_true(e.t.peer_ended);
        assert_int_equal(e.got.len, 9);
        tls_ends_fini(&e);
    }
}

static void test_record_that_comes_again_or_too_early_is_refused(void **state)
{
    (void)state;
    for (int early = 0; early < 2; early++) {
        struct tls_ends e = {.token = TOKEN};
        size_t len = 3 + TLS_FORGE_EXTRA;
        char *bytes;
        size_t n;

        tls_ends_init(&e);
        tls_ends_shake_hands(&e);
        assert_int_equal(SSL_write_ex(e.ssl, "one", 3, &n), 1);
        assert_int_equal(SSL_write_ex(e.ssl, "two", 3, &n), 1);
        assert_int_equal(BIO_get_mem_data(e.from, &bytes), 2 * len);
        if (early == 0) {
            tls_ends_hear(&e, mu_span(bytes, len));
            tls_ends_hear(&e, mu_span(bytes, len));
        } else {
            tls_ends_hear(&e, mu_span(bytes + len, len));
        }
        assert_int_equal(e.err, MUSTER_ETLS);
        assert_int_equal(e.got.len, early == 0 ? 3 : 0);
        tls_ends_fini(&e);
    }
}

static void test_record_in_the_clear_is_refused(void **state)
{
    static const uint8_t close_notify[] = {21, 3, 3, 0, 2, 1, 0};
    static const uint8_t too_long[] = {23, 3, 3, 0x41, 1, 0};
    static const uint8_t too_short[] = {23, 3, 3, 0, 16, 0,  1,  2,  3,  4, 5,
                                        6,  7, 8, 9, 10, 11, 12, 13, 14, 15};
    const struct mu_span records[] = {mu_span(close_notify, sizeof(close_notify)),
                                      mu_span(too_long, sizeof(too_long)),
                                      mu_span(too_short, sizeof(too_short))};

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct tls_ends e = {0};

        tls_ends_init(&e);
        tls_ends_shake_hands(&e);
        tls_ends_hear(&e, records[i]);
        assert_int_equal(e.err, MUSTER_ETLS);
        assert_false(e.t.peer_ended);
        tls_ends_fini(&e);
    }
}

/* Goal: nobody has us do slow arithmetic for a hello. Method: hellos with one group each. */
static void test_groups_are_the_quick_ones(void **state)
{
    static const struct {
        const char *group;
        bool good;
    } cases[] = {{"X25519", true},     {"P-256", true}, {"ffdhe8192", false},
                 {"ffdhe2048", false}, {"X448", false}, {"P-521", false}};

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tls_ends e = {0};

        tls_ends_init(&e);
        assert_int_equal(SSL_set1_groups_list(e.ssl, cases[i].group), 1);
        if (cases[i].good) {
            tls_ends_shake_hands(&e);
        } else {
            (void)SSL_do_handshake(e.ssl);
            tls_ends_to_us(&e);
            assert_int_equal(e.err, MUSTER_ETLS);
            assert_true(mu_tls_output(&e.t).len < 16); /* an alert, and no key */
        }
        tls_ends_fini(&e);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_openssl_and_we_read_each_other_with_every_suite),
        cmocka_unit_test(test_openssl_and_we_read_each_other_with_a_token),
        cmocka_unit_test(test_token_goes_with_diffie_hellman_only),
        cmocka_unit_test(test_wrong_token_is_refused),
        cmocka_unit_test(test_tls_1_2_is_refused),
        cmocka_unit_test(test_records_are_numbered_beyond_a_byte),
        cmocka_unit_test(test_suite_that_is_liked_best_is_the_quick_one),
        cmocka_unit_test(test_no_ticket_is_sent),
        cmocka_unit_test(test_end_is_understood_by_either_side),
        cmocka_unit_test(test_cut_is_told_apart_from_an_end),
        cmocka_unit_test(test_record_that_comes_again_or_too_early_is_refused),
        cmocka_unit_test(test_record_in_the_clear_is_refused),
        cmocka_unit_test(test_groups_are_the_quick_ones),
    };
    int failed;

    tls_ends_set_up();
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    tls_ends_tear_down();
    return failed;
}

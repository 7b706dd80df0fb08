/* Our records against those of OpenSSL: the other end has all of TLS from there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <openssl/ssl.h>

#include "certs.h"
#include "core/alloc.h"
#include "transport/tls.h"

static char directory[64];
static const char *const all_files[] = {"ca", "node", NULL};

struct ends {
    struct mu_tls_context *context;
    struct mu_tls t;
    SSL_CTX *ctx;
    SSL *ssl;
    BIO *to;   /* the other end */
    BIO *from; /* it */
    struct mu_buf got;
    size_t room; /* that is given to what we receive */
    int err;
};

static void path_of(char path[128], const char *name, const char *kind)
{
    (void)snprintf(path, 128, "%s/%s.%s", directory, name, kind);
}

/* `suite` NULL: any. `padding`: of the other end's records. */
static void ends_init(struct ends *e, bool we_dial, const char *suite, size_t padding)
{
    char cert[128];
    char key[128];
    char ca[128];
    struct mu_tls_config config = {.cert = cert, .key = key, .ca = ca};
    struct mu_errmsg why;

    memset(e, 0, sizeof(*e));
    path_of(cert, "node", "pem");
    path_of(key, "node", "key");
    path_of(ca, "ca", "pem");
    assert_int_equal(mu_tls_context_new(&config, &e->context, &why), 0);
    e->ctx = SSL_CTX_new(TLS_method());
    assert_int_equal(SSL_CTX_use_certificate_chain_file(e->ctx, cert), 1);
    assert_int_equal(SSL_CTX_use_PrivateKey_file(e->ctx, key, SSL_FILETYPE_PEM), 1);
    assert_int_equal(SSL_CTX_load_verify_locations(e->ctx, ca, NULL), 1);
    SSL_CTX_set_verify(e->ctx, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, NULL);
    assert_int_equal(SSL_CTX_set_session_id_context(e->ctx, (const uint8_t *)"test", 4), 1);
    if (suite != NULL) {
        assert_int_equal(SSL_CTX_set_ciphersuites(e->ctx, suite), 1);
    }
    if (padding != 0) {
        assert_int_equal(SSL_CTX_set_block_padding(e->ctx, padding), 1);
    }
    e->ssl = SSL_new(e->ctx);
    e->to = BIO_new(BIO_s_mem());
    e->from = BIO_new(BIO_s_mem());
    SSL_set_bio(e->ssl, e->to, e->from);
    if (we_dial) {
        SSL_set_accept_state(e->ssl);
    } else {
        SSL_set_connect_state(e->ssl);
    }
    assert_int_equal(mu_tls_init(&e->t, e->context, we_dial ? "node1" : NULL), 0);
    mu_buf_init(&e->got, 1u << 20);
    e->room = MU_TLS_RECORD_MAX;
}

static void ends_fini(struct ends *e)
{
    mu_tls_fini(&e->t);
    mu_tls_context_free(e->context);
    SSL_free(e->ssl);
    SSL_CTX_free(e->ctx);
    mu_buf_fini(&e->got);
}

static void to_them(struct ends *e)
{
    struct mu_span out = mu_tls_output(&e->t);

    if (out.len != 0) {
        assert_int_equal(BIO_write(e->to, out.data, (int)out.len), (int)out.len);
        mu_tls_sent(&e->t, out.len);
    }
}

/* Two wire reads for all that they have said, so that a record is cut. */
static void to_us(struct ends *e)
{
    static uint8_t bytes[400000];
    static uint8_t plain[MU_TLS_RECORD_MAX];
    int all = BIO_read(e->from, bytes, sizeof(bytes));
    size_t half = all < 0 ? 0 : (size_t)all / 2;
    struct mu_span parts[] = {mu_span(bytes, half),
                              mu_span(bytes + half, all < 0 ? 0 : (size_t)all - half)};

    for (int i = 0; i < 2; i++) {
        size_t len = 1;

        while (e->err == 0 && (parts[i].len != 0 || len != 0) && !e->t.peer_ended) {
            e->err = mu_tls_recv(&e->t, &parts[i], plain, e->room, &len);
            if (e->err == 0) {
                assert_int_equal(mu_buf_append(&e->got, mu_span(plain, len)), 0);
            }
        }
    }
}

static void shake_hands(struct ends *e)
{
    for (int i = 0; i < 4; i++) {
        to_them(e);
        (void)SSL_do_handshake(e->ssl);
        to_us(e);
    }
    assert_int_equal(e->err, 0);
    assert_true(mu_tls_ready(&e->t));
    assert_int_equal(SSL_is_init_finished(e->ssl), 1);
}

static void cross(struct ends *e)
{
    static uint8_t data[100000];
    static uint8_t got[100000];
    size_t taken = 0;
    size_t have = 0;
    size_t n = 0;

    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (uint8_t)(i * 7 + (i >> 8));
    }
    assert_int_equal(SSL_write_ex(e->ssl, data, sizeof(data), &n), 1);
    to_us(e);
    assert_int_equal(e->err, 0);
    assert_true(mu_span_eq(mu_buf_span(&e->got), mu_span(data, sizeof(data))));
    assert_int_equal(mu_tls_write(&e->t, mu_span(data, sizeof(data)), &taken), 0);
    assert_int_equal(taken, sizeof(data));
    to_them(e);
    while (have < sizeof(got) && SSL_read_ex(e->ssl, got + have, sizeof(got) - have, &n) == 1) {
        have += n;
    }
    assert_int_equal(have, sizeof(got));
    assert_memory_equal(got, data, sizeof(data));
}

static void test_openssl_and_we_read_each_other_with_every_suite(void **state)
{
    static const char *const suites[] = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384",
                                         "TLS_CHACHA20_POLY1305_SHA256"};
    static const size_t rooms[] = {MU_TLS_RECORD_MAX, 100, 1};

    (void)state;
    for (size_t i = 0; i < 18; i++) {
        struct ends e;

        ends_init(&e, i % 2 == 0, suites[i / 2 % 3], i % 4 < 2 ? 0 : 512);
        e.room = rooms[i / 6];
        shake_hands(&e);
        assert_string_equal(SSL_get_cipher(e.ssl), suites[i / 2 % 3]);
        cross(&e);
        ends_fini(&e);
    }
}

static void test_records_are_numbered_beyond_a_byte(void **state)
{
    struct ends e;

    (void)state;
    ends_init(&e, true, NULL, 0);
    shake_hands(&e);
    for (size_t i = 0; i < 700; i++) {
        uint8_t byte = (uint8_t)i;
        size_t n = 0;

        assert_int_equal(mu_tls_write(&e.t, mu_span(&byte, 1), &n), 0);
        to_them(&e);
        assert_int_equal(SSL_read_ex(e.ssl, &byte, 1, &n), 1);
        assert_int_equal(byte, i % 256);
        assert_int_equal(SSL_write_ex(e.ssl, &byte, 1, &n), 1);
        to_us(&e);
        assert_int_equal(e.err, 0);
        assert_int_equal(e.got.len, i + 1);
    }
    ends_fini(&e);
}

static void test_suite_that_is_liked_best_is_the_quick_one(void **state)
{
    struct ends e;

    (void)state;
    ends_init(&e, true, NULL, 0);
    shake_hands(&e);
    assert_string_equal(SSL_get_cipher(e.ssl), "TLS_AES_128_GCM_SHA256");
    ends_fini(&e);
}

static void test_end_is_understood_by_either_side(void **state)
{
    struct ends e;
    uint8_t byte;
    size_t n;

    (void)state;
    ends_init(&e, true, NULL, 0);
    shake_hands(&e);
    mu_tls_end(&e.t);
    to_them(&e);
    assert_int_equal(SSL_read_ex(e.ssl, &byte, 1, &n), 0);
    assert_int_equal(SSL_get_error(e.ssl, 0), SSL_ERROR_ZERO_RETURN);
    (void)SSL_shutdown(e.ssl);
    to_us(&e);
    assert_int_equal(e.err, 0);
    assert_true(e.t.peer_ended);
    ends_fini(&e);
}

static void test_key_is_changed_by_them_and_by_us_if_they_wish(void **state)
{
    static const char *const suites[] = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"};

    (void)state;
    for (int i = 0; i < 4; i++) {
        struct ends e;

        ends_init(&e, i % 2 == 0, suites[i / 2], 0);
        shake_hands(&e);
        assert_int_equal(SSL_key_update(e.ssl, SSL_KEY_UPDATE_NOT_REQUESTED), 1);
        assert_int_equal(SSL_do_handshake(e.ssl), 1);
        cross(&e);
        assert_int_equal(e.t.receives.count, e.t.sends.count); /* from the change on, and all */
        mu_buf_reset(&e.got);
        assert_int_equal(SSL_key_update(e.ssl, SSL_KEY_UPDATE_REQUESTED), 1);
        assert_int_equal(SSL_do_handshake(e.ssl), 1);
        cross(&e);
        assert_int_equal(e.t.receives.count, e.t.sends.count);
        ends_fini(&e);
    }
}

/* The next record of ours, which must carry this. */
static void assert_record(struct ends *e, struct mu_tls_half *opener, uint8_t type,
                          struct mu_span text)
{
    struct mu_span out = mu_tls_output(&e->t);
    size_t len = mu_tls_record_len(out.data);
    uint8_t plain[64];
    uint8_t got_type = 0;
    size_t got = 0;

    assert_int_equal(mu_tls_half_open(opener, mu_span(out.data, len), plain, &got_type, &got), 0);
    assert_int_equal(got_type, type);
    assert_true(mu_span_eq(mu_span(plain, got), text));
    mu_tls_sent(&e->t, len);
}

static void test_key_is_changed_before_it_has_sealed_too_much(void **state)
{
    static const uint8_t update[] = {24, 0, 0, 1, 0};
    struct mu_tls_half opener;
    struct ends e;
    size_t taken;

    (void)state;
    ends_init(&e, true, NULL, 0);
    shake_hands(&e);
    to_them(&e);
    assert_int_equal(mu_tls_half_init(&opener, false, e.t.sends.suite,
                                      mu_span(e.t.sends.secret, e.t.sends.secret_len)),
                     0);
    opener.count = e.t.sends.count = MU_TLS_RECORDS_OF_A_KEY - 1;
    assert_int_equal(mu_tls_write(&e.t, MU_SPAN_LIT("last"), &taken), 0);
    assert_int_equal(mu_tls_write(&e.t, MU_SPAN_LIT("next"), &taken), 0);
    assert_record(&e, &opener, MU_TLS_DATA, MU_SPAN_LIT("last"));
    assert_record(&e, &opener, MU_TLS_HANDSHAKE, mu_span(update, sizeof(update)));
    assert_int_equal(mu_tls_half_update(&opener), 0);
    assert_record(&e, &opener, MU_TLS_DATA, MU_SPAN_LIT("next"));
    assert_int_equal(e.t.sends.count, 1);
    mu_tls_half_fini(&opener);
    ends_fini(&e);
}

static void test_change_of_the_key_that_is_malformed_is_refused(void **state)
{
    static const uint8_t texts[][6] = {
        {24, 0, 0, 1, 2}, {24, 0, 0, 2, 0, 0}, {24, 0, 0, 1}, {24, 0, 0, 0}, {24, 0, 1, 1, 0}};
    static const size_t lens[] = {5, 6, 4, 4, 5};

    (void)state;
    for (size_t i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
        uint8_t record[64];
        struct mu_span in = mu_span(record, lens[i] + MU_TLS_RECORD_EXTRA);
        struct mu_tls_half theirs;
        struct ends e;
        uint8_t plain[16];
        size_t len;

        ends_init(&e, false, NULL, 0);
        shake_hands(&e);
        assert_int_equal(mu_tls_half_init(&theirs, true, e.t.receives.suite,
                                          mu_span(e.t.receives.secret, e.t.receives.secret_len)),
                         0);
        theirs.count = e.t.receives.count;
        assert_int_equal(
            mu_tls_half_seal(&theirs, MU_TLS_HANDSHAKE, mu_span(texts[i], lens[i]), record), 0);
        assert_int_equal(mu_tls_recv(&e.t, &in, plain, sizeof(plain), &len), MUSTER_ETLS);
        assert_non_null(strstr(mu_tls_errmsg(&e.t), "change of the key"));
        mu_tls_half_fini(&theirs);
        ends_fini(&e);
    }
}

static void test_record_in_the_clear_is_refused(void **state)
{
    static const uint8_t close_notify[] = {21, 3, 3, 0, 2, 1, 0};
    static const uint8_t too_long[] = {23, 3, 3, 0x41, 1, 0};
    static const uint8_t too_short[] = {23, 3, 3, 0, 16, 0};
    const struct mu_span records[] = {mu_span(close_notify, sizeof(close_notify)),
                                      mu_span(too_long, sizeof(too_long)),
                                      mu_span(too_short, sizeof(too_short))};

    (void)state;
    for (int i = 0; i < 3; i++) {
        struct mu_span in = records[i];
        struct ends e;
        uint8_t plain[16];
        size_t len = 0;

        ends_init(&e, false, NULL, 0);
        shake_hands(&e);
        assert_int_equal(mu_tls_recv(&e.t, &in, plain, sizeof(plain), &len), MUSTER_ETLS);
        assert_false(e.t.peer_ended);
        ends_fini(&e);
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
        struct ends e;

        ends_init(&e, false, NULL, 0);
        assert_int_equal(SSL_set1_groups_list(e.ssl, cases[i].group), 1);
        if (cases[i].good) {
            shake_hands(&e);
        } else {
            (void)SSL_do_handshake(e.ssl);
            to_us(&e);
            assert_int_equal(e.err, MUSTER_ETLS);
            assert_true(mu_tls_output(&e.t).len < 16); /* an alert, and no key */
        }
        ends_fini(&e);
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_openssl_and_we_read_each_other_with_every_suite),
        cmocka_unit_test(test_records_are_numbered_beyond_a_byte),
        cmocka_unit_test(test_suite_that_is_liked_best_is_the_quick_one),
        cmocka_unit_test(test_end_is_understood_by_either_side),
        cmocka_unit_test(test_key_is_changed_by_them_and_by_us_if_they_wish),
        cmocka_unit_test(test_key_is_changed_before_it_has_sealed_too_much),
        cmocka_unit_test(test_change_of_the_key_that_is_malformed_is_refused),
        cmocka_unit_test(test_record_in_the_clear_is_refused),
        cmocka_unit_test(test_groups_are_the_quick_ones),
    };
    struct cert_authority ca;
    int failed;

    (void)snprintf(directory, sizeof(directory), "/tmp/muster-test-XXXXXX");
    if (mkdtemp(directory) == NULL) {
        return 1;
    }
    certs_authority(&ca, directory, "ca");
    certs_leaf(&ca, directory, "node", "DNS:node1", 3600);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    certs_authority_free(&ca);
    certs_remove(directory, all_files);
    return failed;
}

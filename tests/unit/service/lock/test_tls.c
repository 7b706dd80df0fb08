#include "service/lock/tls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "certs.h"
#include "core/alloc.h"
#include "core/prng.h"

/* The wall clock, which OpenSSL reads as well: the one of the system, so much ahead. */
static time_t ahead;

time_t time(time_t *ret)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    now.tv_sec += ahead;
    if (ret != NULL) {
        *ret = now.tv_sec;
    }
    return now.tv_sec;
}

static char directory[64];
static const char *const all_files[] = {"ca",    "other_ca", "node",  "late",
                                        "stray", "renamed",  "bulky", NULL};
static struct cert_authority root;

static struct mu_tls_context *context_of(const char *leaf, const char *ca, const char *name)
{
    char cert[128];
    char key[128];
    char authority[128];
    struct mu_tls_config config = {.cert = cert, .key = key, .ca = authority, .name = name};
    struct mu_tls_context *context;
    struct mu_errmsg why;

    (void)snprintf(cert, sizeof(cert), "%s/%s.pem", directory, leaf);
    (void)snprintf(key, sizeof(key), "%s/%s.key", directory, leaf);
    (void)snprintf(authority, sizeof(authority), "%s/%s.pem", directory, ca);
    assert_int_equal(mu_tls_context_new(&config, &context, &why), 0);
    return context;
}

static struct mu_tls_context *token_of(const char *token)
{
    struct mu_tls_config config = {.token = mu_span_str(token)};
    struct mu_tls_context *context;
    struct mu_errmsg why;

    assert_int_equal(mu_tls_context_new(&config, &context, &why), 0);
    return context;
}

/* Two ends and the bytes between them. */
struct ends {
    struct mu_tls_context *contexts[2];
    struct mu_tls t[2]; /* the one that dials, the one that listens */
    struct mu_buf got[2];
    int err[2];
    size_t chunk; /* so many bytes of the wire at a time; 0: all */
};

static void ends_init(struct ends *e, struct mu_tls_context *dials, struct mu_tls_context *listens)
{
    memset(e, 0, sizeof(*e));
    e->contexts[0] = dials;
    e->contexts[1] = listens;
    assert_int_equal(mu_tls_init(&e->t[0], dials, "node1"), 0);
    assert_int_equal(mu_tls_init(&e->t[1], listens, NULL), 0);
    mu_buf_init(&e->got[0], 64u << 20);
    mu_buf_init(&e->got[1], 64u << 20);
}

static void ends_fini(struct ends *e)
{
    for (int i = 0; i < 2; i++) {
        mu_tls_fini(&e->t[i]);
        mu_buf_fini(&e->got[i]);
        mu_tls_context_free(e->contexts[i]);
    }
}

/* Carries what `from` has to say to the other one. Whether there was anything. */
static bool carry(struct ends *e, int from)
{
    struct mu_span out = mu_tls_output(&e->t[from]);
    int to = 1 - from;
    size_t n = e->chunk == 0 || out.len < e->chunk ? out.len : e->chunk;
    struct mu_span in = mu_span(out.data, n);
    static uint8_t plain[MU_TLS_RECORD_MAX];
    size_t len = 1;

    if (out.len == 0) {
        return false;
    }
    while (e->err[to] == 0 && (in.len != 0 || len != 0) && !e->t[to].peer_ended) {
        e->err[to] = mu_tls_recv(&e->t[to], &in, plain, sizeof(plain), &len);
        if (e->err[to] == 0) {
            assert_int_equal(mu_buf_append(&e->got[to], mu_span(plain, len)), 0);
        }
    }
    mu_tls_sent(&e->t[from], n);
    return true;
}

static void run(struct ends *e)
{
    bool more;

    do {
        more = carry(e, 0);
        more = carry(e, 1) || more;
    } while (more);
}

static struct mu_tls_context *credential(bool token)
{
    return token ? token_of("a token of some length") : context_of("node", "ca", NULL);
}

static void bytes_cross(bool token)
{
    static const size_t chunks[] = {0, 1, 7, 1000};
    static uint8_t data[100000];

    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (uint8_t)(i * 7 + (i >> 8));
    }
    for (size_t i = 0; i < sizeof(chunks) / sizeof(chunks[0]); i++) {
        struct ends e;

        ends_init(&e, credential(token), credential(token));
        e.chunk = chunks[i];
        run(&e);
        assert_true(mu_tls_ready(&e.t[0]) && mu_tls_ready(&e.t[1]));
        for (int from = 0; from < 2; from++) {
            size_t taken = 0;

            assert_int_equal(mu_tls_write(&e.t[from], mu_span(data, sizeof(data)), &taken), 0);
            assert_int_equal(taken, sizeof(data));
            /* What is on the wire says nothing of what was written. */
            assert_null(
                memmem(mu_tls_output(&e.t[from]).data, mu_tls_output(&e.t[from]).len, data, 16));
        }
        run(&e);
        for (int to = 0; to < 2; to++) {
            assert_int_equal(e.err[to], 0);
            assert_int_equal(e.got[to].len, sizeof(data));
            assert_memory_equal(mu_buf_span(&e.got[to]).data, data, sizeof(data));
        }
        ends_fini(&e);
    }
}

static void test_bytes_cross_whatever_the_chunks(void **state)
{
    (void)state;
    bytes_cross(false);
}

static void test_bytes_cross_with_a_token_whatever_the_chunks(void **state)
{
    (void)state;
    bytes_cross(true);
}

/* Goal: the token is a secret of the two. Method: look for it in all that goes over the wire. */
static void test_token_is_not_on_the_wire(void **state)
{
    static const char token[] = "a token of some length";
    struct mu_buf wire;
    struct ends e;

    (void)state;
    mu_buf_init(&wire, 1u << 20);
    ends_init(&e, token_of(token), token_of(token));
    for (int i = 0; i < 8; i++) {
        assert_int_equal(mu_buf_append(&wire, mu_tls_output(&e.t[i & 1])), 0);
        (void)carry(&e, i & 1);
    }
    assert_true(mu_tls_ready(&e.t[0]) && mu_tls_ready(&e.t[1]));
    assert_true(wire.len > 200);
    assert_null(memmem(mu_buf_span(&wire).data, wire.len, token, sizeof(token) - 1));
    mu_buf_fini(&wire);
    ends_fini(&e);
}

static void test_end_of_one_side_leaves_the_other_free_to_write(void **state)
{
    struct ends e;
    size_t taken = 0;

    (void)state;
    ends_init(&e, context_of("node", "ca", NULL), context_of("node", "ca", NULL));
    run(&e);
    mu_tls_end(&e.t[0]);
    mu_tls_end(&e.t[0]);
    run(&e);
    assert_true(e.t[1].peer_ended);
    assert_false(e.t[0].peer_ended);
    assert_int_equal(mu_tls_write(&e.t[1], MU_SPAN_LIT("last words"), &taken), 0);
    run(&e);
    assert_int_equal(e.got[0].len, 10);
    assert_int_equal(e.err[0], 0);
    ends_fini(&e);
}

static void test_output_is_bounded(void **state)
{
    struct ends e;
    uint8_t *data = mu_calloc(1, 1u << 20);
    size_t taken = 0;
    size_t more = 1;

    (void)state;
    assert_non_null(data);
    ends_init(&e, context_of("node", "ca", NULL), context_of("node", "ca", NULL));
    run(&e);
    assert_int_equal(mu_tls_write(&e.t[0], mu_span(data, 1u << 20), &taken), 0);
    assert_true(taken > 0 && taken < 1u << 20);
    assert_int_equal(mu_tls_write(&e.t[0], mu_span(data, 1u << 20), &more), 0);
    assert_int_equal(more, 0);
    run(&e);
    assert_int_equal(e.got[1].len, taken);
    assert_int_equal(mu_tls_write(&e.t[0], mu_span(data, 100), &more), 0);
    assert_int_equal(more, 100);
    mu_free(data);
    ends_fini(&e);
}

/* What the two ends say when one does not like the other: `who` is the one that refuses. */
static void expect_refusal(struct mu_tls_context *dials, struct mu_tls_context *listens, int who,
                           const char *text)
{
    struct ends e;

    ends_init(&e, dials, listens);
    run(&e);
    assert_int_equal(e.err[who], MUSTER_ETLS);
    assert_non_null(strstr(mu_tls_errmsg(&e.t[who]), text));
    /* The other learns of it, too, and nothing was let through. */
    assert_int_equal(e.err[1 - who], MUSTER_ETLS);
    assert_non_null(strstr(mu_tls_errmsg(&e.t[1 - who]), "the other end refuses us"));
    assert_false(mu_tls_ready(&e.t[who]));
    assert_int_equal(e.got[0].len + e.got[1].len, 0);
    ends_fini(&e);
}

static void test_certificate_of_another_authority_is_refused_by_either_side(void **state)
{
    (void)state;
    expect_refusal(context_of("node", "ca", NULL), context_of("stray", "ca", NULL), 0,
                   "another authority than ours");
    expect_refusal(context_of("stray", "ca", NULL), context_of("node", "ca", NULL), 1,
                   "another authority than ours");
}

static void test_expired_certificate_is_refused_by_either_side(void **state)
{
    (void)state;
    expect_refusal(context_of("node", "ca", NULL), context_of("late", "ca", NULL), 0,
                   "certificate has expired");
    expect_refusal(context_of("late", "ca", NULL), context_of("node", "ca", NULL), 1,
                   "certificate has expired");
}

static void test_certificate_for_another_name_is_refused(void **state)
{
    struct ends e;

    (void)state;
    expect_refusal(context_of("node", "ca", NULL), context_of("renamed", "ca", NULL), 0,
                   "hostname mismatch");
    /* Unless that name is the one that is wanted, or any is good. */
    ends_init(&e, context_of("node", "ca", "node2"), context_of("renamed", "ca", NULL));
    run(&e);
    assert_true(mu_tls_ready(&e.t[0]) && mu_tls_ready(&e.t[1]));
    ends_fini(&e);
    ends_init(&e, context_of("node", "ca", ""), context_of("renamed", "ca", NULL));
    run(&e);
    assert_true(mu_tls_ready(&e.t[0]) && mu_tls_ready(&e.t[1]));
    ends_fini(&e);
}

static void test_another_token_is_refused_and_both_say_so(void **state)
{
    struct ends e;

    (void)state;
    expect_refusal(token_of("a token of some length"), token_of("a token of some lengti"), 1,
                   "the other end has a different token");
    ends_init(&e, token_of("a token of some length"), token_of("another token"));
    run(&e);
    assert_non_null(strstr(mu_tls_errmsg(&e.t[0]), "it has a different token"));
    ends_fini(&e);
}

static void test_token_and_certificate_do_not_go_together(void **state)
{
    struct ends e;

    (void)state;
    ends_init(&e, token_of("a token of some length"), context_of("node", "ca", NULL));
    run(&e);
    assert_int_equal(e.err[0], MUSTER_ETLS);
    assert_int_equal(e.err[1], MUSTER_ETLS);
    assert_non_null(strstr(mu_tls_errmsg(&e.t[0]), "locked with certificates"));
    ends_fini(&e);
    ends_init(&e, context_of("node", "ca", NULL), token_of("a token of some length"));
    run(&e);
    assert_int_equal(e.err[0], MUSTER_ETLS);
    assert_int_equal(e.err[1], MUSTER_ETLS);
    assert_non_null(strstr(mu_tls_errmsg(&e.t[0]), "locked with a token"));
    assert_non_null(strstr(mu_tls_errmsg(&e.t[1]), "the other end has certificates"));
    ends_fini(&e);
}

/* Goal: a token is as good after years, and whichever way a clock was set meanwhile. Method: move
 * the clock under contexts that were made before; that it is the one OpenSSL goes by is seen by a
 * certificate, which does end. */
static void test_token_has_no_age(void **state)
{
    static const time_t days[] = {0, 1, 400, -400, 0, 20 * 365, -30 * 365};
    struct mu_tls_context *dials = token_of("a token of some length");
    struct mu_tls_context *listens = token_of("a token of some length");
    struct ends e;

    (void)state;
    for (size_t i = 0; i < sizeof(days) / sizeof(days[0]); i++) {
        ahead = days[i] * 86400;
        ends_init(&e, dials, listens);
        run(&e);
        assert_int_equal(e.err[1], 0);
        assert_true(mu_tls_ready(&e.t[0]) && mu_tls_ready(&e.t[1]));
        e.contexts[0] = e.contexts[1] = NULL;
        ends_fini(&e);
    }
    mu_tls_context_free(dials);
    mu_tls_context_free(listens);
    ahead = 0;
    dials = context_of("node", "ca", NULL);
    listens = context_of("node", "ca", NULL);
    ahead = 7200;
    expect_refusal(dials, listens, 0, "certificate has expired");
    ahead = 0;
}

static void test_answer_that_is_no_tls_is_told_apart(void **state)
{
    static const char *const answers[] = {"HTTP/1.1 400 Bad Request\r\n", "MUSTER\r\n", "\x01"};

    (void)state;
    for (size_t i = 0; i < sizeof(answers) / sizeof(answers[0]); i++) {
        struct mu_tls_context *context = credential(i % 2 == 0);
        struct mu_span in = mu_span_str(answers[i]);
        uint8_t plain[64];
        size_t len;
        struct mu_tls t;

        assert_int_equal(mu_tls_init(&t, context, "node1"), 0);
        assert_int_equal(mu_tls_recv(&t, &in, plain, sizeof(plain), &len), MUSTER_ENOTLS);
        assert_int_equal(mu_tls_recv(&t, &in, plain, sizeof(plain), &len), MUSTER_ENOTLS);
        mu_tls_fini(&t);
        mu_tls_context_free(context);
    }
}

static void test_one_flipped_bit_ends_it(void **state)
{
    struct ends e;
    size_t taken = 0;
    uint8_t bytes[256];
    uint8_t plain[256];
    struct mu_span in;
    size_t len;

    (void)state;
    ends_init(&e, context_of("node", "ca", NULL), context_of("node", "ca", NULL));
    run(&e);
    assert_int_equal(mu_tls_write(&e.t[0], MU_SPAN_LIT("a payload"), &taken), 0);
    in = mu_tls_output(&e.t[0]);
    assert_true(in.len <= sizeof(bytes));
    memcpy(bytes, in.data, in.len);
    bytes[in.len - 3] ^= 4;
    in.data = bytes;
    assert_int_equal(mu_tls_recv(&e.t[1], &in, plain, sizeof(plain), &len), MUSTER_ETLS);
    assert_int_equal(mu_tls_recv(&e.t[1], &in, plain, sizeof(plain), &len), MUSTER_ETLS);
    assert_int_equal(e.got[1].len, 0);
    ends_fini(&e);
}

/* Goal: damage on the way is no wrong credential: one who dials tries again. Method: flip a bit of
 * the last sealed message of the other's first flight. */
static void test_damage_in_the_handshake_is_no_refusal(void **state)
{
    (void)state;

    for (int token = 0; token < 2; token++) {
        struct mu_span out;
        struct ends e;

        ends_init(&e, credential(token != 0), credential(token != 0));
        assert_true(carry(&e, 0));
        out = mu_tls_output(&e.t[1]);
        assert_true(out.len > 64);
        ((uint8_t *)(uintptr_t)out.data)[out.len - 8] ^= 1;
        run(&e);
        assert_int_equal(e.err[0], MUSTER_ECONN);
        assert_int_not_equal(e.err[1], 0);
        assert_non_null(strstr(mu_tls_errmsg(&e.t[0]), "damaged on the way"));
        ends_fini(&e);
    }
}

static void test_what_is_not_tls_is_refused(void **state)
{
    struct mu_prng prng;
    uint8_t plain[64];

    (void)state;
    mu_prng_seed(&prng, 1);
    for (int i = 0; i < 200; i++) {
        struct mu_tls_context *context = context_of("node", "ca", NULL);
        struct mu_tls t;
        uint8_t bytes[600];
        struct mu_span in = mu_span(bytes, sizeof(bytes));
        size_t len = 0;

        for (size_t k = 0; k < sizeof(bytes); k++) {
            bytes[k] = (uint8_t)mu_prng_u64(&prng);
        }
        if (i == 0) {
            in = MU_SPAN_LIT("GET / HTTP/1.1\r\nHost: node1\r\n\r\n");
        }
        assert_int_equal(mu_tls_init(&t, context, NULL), 0);
        (void)mu_tls_recv(&t, &in, plain, sizeof(plain), &len);
        assert_int_equal(len, 0);
        assert_false(mu_tls_ready(&t));
        assert_true(mu_tls_output(&t).len < 64);
        if (i == 0) {
            assert_int_equal(t.err, MUSTER_ETLS);
            assert_non_null(strstr(mu_tls_errmsg(&t), "http request"));
        }
        mu_tls_fini(&t);
        mu_tls_context_free(context);
    }
}

static void test_files_that_do_not_do_are_named(void **state)
{
    char good[3][128];
    struct mu_tls_config config = {.cert = good[0], .key = good[1], .ca = good[2]};
    struct mu_tls_config wrong;
    struct mu_tls_context *context;
    struct mu_errmsg why;

    (void)state;
    (void)snprintf(good[0], sizeof(good[0]), "%s/node.pem", directory);
    (void)snprintf(good[1], sizeof(good[1]), "%s/late.key", directory);
    (void)snprintf(good[2], sizeof(good[2]), "%s/ca.pem", directory);
    assert_int_equal(mu_tls_context_new(&config, &context, &why), MUSTER_ETLS);
    assert_non_null(strstr(why.text, "late.key"));
    wrong = config;
    wrong.cert = "/nonexistent.pem";
    assert_int_equal(mu_tls_context_new(&wrong, &context, &why), MUSTER_ETLS);
    assert_non_null(strstr(why.text, "/nonexistent.pem"));
    assert_non_null(strstr(why.text, "No such file"));
    wrong.cert = "/dev/null";
    assert_int_equal(mu_tls_context_new(&wrong, &context, &why), MUSTER_ETLS);
    assert_non_null(strstr(why.text, "no start line"));
    wrong = config;
    wrong.ca = NULL;
    assert_int_equal(mu_tls_context_new(&wrong, &context, &why), MUSTER_EINVAL);
    assert_non_null(strstr(why.text, "the authority is missing"));
    wrong.token = MU_SPAN_LIT("a token of some length");
    assert_int_equal(mu_tls_context_new(&wrong, &context, &why), MUSTER_EINVAL);
    assert_non_null(strstr(why.text, "not by both"));
}

/* Makes "bulky", a certificate whose message, with its authority's and what is around them, has so
 * many bytes. */
static void make_bulky(size_t bytes)
{
    static char names[20000];
    char path[128];
    size_t pad = bytes - 1000;
    size_t len = 0;

    (void)snprintf(path, sizeof(path), "%s/bulky.pem", directory);
    for (int tries = 0; tries < 8 && len != bytes; tries++) {
        FILE *file;
        X509 *cert;

        (void)snprintf(names, sizeof(names), "DNS:node1,DNS:%0*d", (int)pad, 0);
        certs_leaf(&root, directory, "bulky", names, 3600);
        file = fopen(path, "r");
        assert_non_null(file);
        cert = PEM_read_X509(file, NULL, NULL, NULL);
        (void)fclose(file);
        len = 1 + 3 + (size_t)(3 + i2d_X509(cert, NULL) + 2) +
              (size_t)(3 + i2d_X509(root.cert, NULL) + 2);
        X509_free(cert);
        pad += bytes - len;
    }
    assert_int_equal(len, bytes);
}

/* Meets CERTIFICATES_MAX of service/lock/tls_context.c. */
static void test_certificates_are_so_long_and_no_longer(void **state)
{
    struct ends e;

    (void)state;
    make_bulky(16384);
    for (int who = 0; who < 2; who++) {
        ends_init(&e, context_of(who == 0 ? "bulky" : "node", "ca", NULL),
                  context_of(who == 0 ? "node" : "bulky", "ca", NULL));
        run(&e);
        assert_true(mu_tls_ready(&e.t[0]) && mu_tls_ready(&e.t[1]));
        ends_fini(&e);
    }
    make_bulky(16385);
    expect_refusal(context_of("node", "ca", NULL), context_of("bulky", "ca", NULL), 0,
                   "excessive message size");
    expect_refusal(context_of("bulky", "ca", NULL), context_of("node", "ca", NULL), 1,
                   "excessive message size");
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bytes_cross_whatever_the_chunks),
        cmocka_unit_test(test_bytes_cross_with_a_token_whatever_the_chunks),
        cmocka_unit_test(test_token_is_not_on_the_wire),
        cmocka_unit_test(test_another_token_is_refused_and_both_say_so),
        cmocka_unit_test(test_token_and_certificate_do_not_go_together),
        cmocka_unit_test(test_token_has_no_age),
        cmocka_unit_test(test_answer_that_is_no_tls_is_told_apart),
        cmocka_unit_test(test_end_of_one_side_leaves_the_other_free_to_write),
        cmocka_unit_test(test_output_is_bounded),
        cmocka_unit_test(test_certificate_of_another_authority_is_refused_by_either_side),
        cmocka_unit_test(test_expired_certificate_is_refused_by_either_side),
        cmocka_unit_test(test_certificate_for_another_name_is_refused),
        cmocka_unit_test(test_certificates_are_so_long_and_no_longer),
        cmocka_unit_test(test_one_flipped_bit_ends_it),
        cmocka_unit_test(test_damage_in_the_handshake_is_no_refusal),
        cmocka_unit_test(test_what_is_not_tls_is_refused),
        cmocka_unit_test(test_files_that_do_not_do_are_named),
    };
    struct cert_authority other;
    int failed;

    (void)snprintf(directory, sizeof(directory), "/tmp/muster-test-XXXXXX");
    if (mkdtemp(directory) == NULL) {
        return 1;
    }
    certs_authority(&root, directory, "ca");
    certs_authority(&other, directory, "other_ca");
    certs_leaf(&root, directory, "node", "DNS:node1", 3600);
    certs_leaf(&root, directory, "late", "DNS:node1", -60);
    certs_leaf(&root, directory, "renamed", "DNS:node2", 3600);
    certs_leaf(&other, directory, "stray", "DNS:node1", 3600);
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    certs_authority_free(&root);
    certs_authority_free(&other);
    certs_remove(directory, all_files);
    return failed;
}

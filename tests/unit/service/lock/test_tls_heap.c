/*
 * TLS without memory: each allocation of ours and of OpenSSL's fails once, alone or with all behind
 * it, from the making of a context to the end of a connection.
 *
 * Goal: nothing crashes, nobody gets in who should not, what is read is what was written, and a
 * failure is told as what it is. Method: a story of two ends, told anew for each allocation.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

#include <openssl/crypto.h>
#include <openssl/ssl.h>

#include "certs.h"
#include "core/alloc.h"
#include "service/lock/tls.h"

static long left = -1; /* allocations until one fails; below zero: none does */
static bool only_one;  /* or all behind it as well */
static bool fired;

static bool may_have(size_t size)
{
    (void)size;
    if (left < 0 || left-- > 0) {
        return true;
    }
    left = only_one ? -1 : 0;
    fired = true;
    return false;
}

static void *get(size_t size, const char *file, int line)
{
    (void)file;
    (void)line;
    return may_have(size) ? malloc(size) : NULL;
}

static void *get_again(void *ptr, size_t size, const char *file, int line)
{
    (void)file;
    (void)line;
    return may_have(size) ? realloc(ptr, size) : NULL;
}

static void give(void *ptr, const char *file, int line)
{
    (void)file;
    (void)line;
    free(ptr);
}

static char directory[64];
static uint8_t data[40000];

/* What an end shows: a token, or the certificate of that name. */
struct credential {
    const char *token;
    const char *name;
};

struct story {
    struct mu_tls_context *contexts[2]; /* of the end that dials, of the one that listens */
    struct mu_tls t[2];
    bool was_ready[2];
    size_t got[2];
    int err; /* the first that was met, and its words */
    const char *why;
};

static void note(struct story *s, int err, const char *why)
{
    if (s->err == 0 && err != 0) {
        s->err = err;
        s->why = why;
    }
}

static int make_context(struct credential show, struct mu_tls_context **ret)
{
    char paths[3][128];
    struct mu_tls_config config = {.cert = paths[0], .key = paths[1], .ca = paths[2]};
    struct mu_errmsg why;

    (void)snprintf(paths[0], sizeof(paths[0]), "%s/%s.pem", directory, show.name);
    (void)snprintf(paths[1], sizeof(paths[1]), "%s/%s.key", directory, show.name);
    (void)snprintf(paths[2], sizeof(paths[2]), "%s/ca.pem", directory);
    if (show.token != NULL) {
        config = (struct mu_tls_config){.token = mu_span_str(show.token)};
    }
    return mu_tls_context_new(&config, ret, &why);
}

/* Carries all that one end has to say to the other. */
static void carry(struct story *s, int from)
{
    static uint8_t plain[MU_TLS_RECORD_MAX];
    struct mu_span out = mu_tls_output(&s->t[from]);
    struct mu_span in = out;
    int to = 1 - from;
    size_t len = 1;
    int err = 0;

    while (err == 0 && (in.len != 0 || len != 0) && !s->t[to].peer_ended) {
        err = mu_tls_recv(&s->t[to], &in, plain, sizeof(plain), &len);
        if (err == 0) {
            assert_true(s->got[to] + len <= sizeof(data));
            assert_memory_equal(plain, data + s->got[to], len);
            s->got[to] += len;
        }
    }
    note(s, err, mu_tls_errmsg(&s->t[to]));
    s->was_ready[to] = s->was_ready[to] || mu_tls_ready(&s->t[to]);
    mu_tls_sent(&s->t[from], out.len);
}

static void talk(struct story *s)
{
    for (int i = 0; i < 4; i++) {
        carry(s, i % 2);
    }
    for (int i = 0; i < 2; i++) {
        size_t taken = 0;

        if (mu_tls_ready(&s->t[i])) {
            s->t[i].sealed = MU_TLS_RECORDS_OF_A_KEY;
            note(s, mu_tls_write(&s->t[i], mu_span(data, sizeof(data)), &taken),
                 mu_tls_errmsg(&s->t[i]));
            carry(s, i);
        }
    }
    mu_tls_end(&s->t[0]);
    carry(s, 0);
}

/* Tells it with the allocation `nth` failing; whether there was one. */
static bool tell(struct story *s, long nth, bool alone)
{
    fired = false;
    only_one = alone;
    left = nth;
    for (int i = 0; i < 2; i++) {
        note(s, mu_tls_init(&s->t[i], s->contexts[i], i == 0 ? "node1" : NULL), "");
    }
    if (s->err == 0) {
        talk(s);
    }
    left = -1;
    /* The end that ran out is the first to fail, and nobody refused it. */
    assert_true(!fired || s->err == 0 || s->why[0] == '\0' || strstr(s->why, "refuses") == NULL);
    for (int i = 0; i < 2; i++) {
        mu_tls_fini(&s->t[i]);
    }
    return fired;
}

/* Each `step`th allocation of a connection fails. `lets_in`: the one that listens does, if none
 * does. */
static void sweep(struct credential dials, struct credential listens, long step, bool lets_in)
{
    struct mu_tls_context *contexts[2];
    long told = 0;

    assert_int_equal(make_context(dials, &contexts[0]), 0);
    assert_int_equal(make_context(listens, &contexts[1]), 0);
    for (int alone = 0; alone < 2; alone++) {
        for (long nth = -1;; nth += step, told++) {
            struct story s = {.contexts = {contexts[0], contexts[1]}};
            bool some = tell(&s, nth, alone != 0);

            assert_true(lets_in || (!s.was_ready[1] && s.got[0] + s.got[1] == 0));
            if (!some && lets_in) {
                assert_int_equal(s.err, 0);
                assert_int_equal(s.got[0], sizeof(data));
                assert_int_equal(s.got[1], sizeof(data));
            }
            if (!some && nth >= 0) {
                break;
            }
        }
    }
    assert_true(told > 50);
    mu_tls_context_free(contexts[0]);
    mu_tls_context_free(contexts[1]);
}

#define TOKEN ((struct credential){.token = "a token of some length"})
#define NODE  ((struct credential){.name = "node"})

static void test_connection_without_memory_with_a_token(void **state)
{
    (void)state;
    sweep(TOKEN, TOKEN, 1, true);
}

static void test_connection_without_memory_with_certificates(void **state)
{
    (void)state;
    sweep(NODE, NODE, 17, true);
}

static void test_want_of_memory_lets_nobody_in(void **state)
{
    (void)state;
    sweep((struct credential){.token = "another token"}, TOKEN, 1, false);
    sweep((struct credential){.name = "stray"}, NODE, 17, false);
    sweep(NODE, TOKEN, 1, false);
}

static void test_context_without_memory(void **state)
{
    static const struct {
        struct credential show;
        long step;
    } cases[] = {{{.token = "a token of some length"}, 1}, {{.name = "node"}, 199}};

    (void)state;
    for (int i = 0; i < 4; i++) {
        for (long nth = 0;; nth += cases[i / 2].step) {
            struct mu_tls_context *context = NULL;
            int err;

            fired = false;
            only_one = i % 2 == 0;
            left = nth;
            err = make_context(cases[i / 2].show, &context);
            left = -1;
            assert_true((err == 0) == (context != NULL) && (fired || err == 0));
            mu_tls_context_free(context);
            if (!fired) {
                break;
            }
        }
    }
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_connection_without_memory_with_a_token),
        cmocka_unit_test(test_connection_without_memory_with_certificates),
        cmocka_unit_test(test_want_of_memory_lets_nobody_in),
        cmocka_unit_test(test_context_without_memory),
    };
    static const char *const files[] = {"ca", "other_ca", "node", "stray", NULL};
    struct cert_authority ca;
    struct cert_authority other;
    int failed;

    certs_must(CRYPTO_set_mem_functions(get, get_again, give) == 1);
    mu_alloc_hook = may_have;
    (void)snprintf(directory, sizeof(directory), "/tmp/muster-test-XXXXXX");
    certs_must(mkdtemp(directory) != NULL);
    certs_authority(&ca, directory, "ca");
    certs_leaf(&ca, directory, "node", "DNS:node1", 3600);
    certs_authority(&other, directory, "other_ca");
    certs_leaf(&other, directory, "stray", "DNS:node1", 3600);
    certs_authority_free(&ca);
    certs_authority_free(&other);
    for (size_t i = 0; i < sizeof(data); i++) {
        data[i] = (uint8_t)(i * 7 + (i >> 8));
    }
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    certs_remove(directory, files);
    return failed;
}

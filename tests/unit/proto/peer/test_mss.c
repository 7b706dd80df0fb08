/* multistream-select: the bytes of both sides, in any pieces, and what a peer can do wrong. */
#include "unit.h"

#include <muster/error.h>

#include "core/prng.h"
#include "failheap.h"
#include "hex.h"
#include "proto/peer/mss.h"

#define HEADER   "132f6d756c746973747265616d2f312e302e300a "
#define NOISE    "072f6e6f6973650a "
#define NA       "036e610a "
#define LS       "036c730a "
#define PING     "112f697066732f70696e672f312e302e300a "
#define IDENTIFY "0f2f697066732f69642f312e302e300a "

/* Feeds hex text in pieces of `step` bytes, 0: random ones. `*ret_used` counts; PROPOSED is
 * answered by whether the name is `wanted`; the events become text. */
static int feed(struct mu_mss *m, const char *hex, size_t step, const char *wanted, char *story,
                size_t *ret_used)
{
    uint8_t bytes[4096];
    size_t len = hex_decode(bytes, sizeof(bytes), hex);
    struct mu_prng rng = {len};
    int err = 0;

    *ret_used = 0;
    for (size_t at = 0; at < len;) {
        size_t piece = step == 0 ? (size_t)mu_prng_below(&rng, 30) + 1 : step;
        struct mu_mss_event e;
        size_t used;

        piece = piece < len - at ? piece : len - at;
        err = mu_mss_recv(m, mu_span(bytes + at, piece), &used);
        at += used;
        *ret_used += used;
        while (mu_mss_next_event(m, &e)) {
            bool accept = e.type == MU_MSS_EV_PROPOSED && mu_span_eq(e.name, mu_span_str(wanted));

            (void)snprintf(story + strlen(story), 512 - strlen(story), "%d:%.*s ", (int)e.type,
                           (int)e.name.len, (const char *)e.name.data);
            if (e.type == MU_MSS_EV_PROPOSED) {
                assert_int_equal(accept ? mu_mss_accept(m) : mu_mss_refuse(m), 0);
            }
        }
        if (err != 0 || used == 0) {
            break;
        }
    }
    return err;
}

static void expect_output(struct mu_mss *m, const char *hex)
{
    uint8_t bytes[512];
    size_t len = hex_decode(bytes, sizeof(bytes), hex);
    struct mu_span out = mu_mss_output(m);

    assert_int_equal(out.len, len);
    if (len != 0) {
        assert_memory_equal(out.data, bytes, len);
    }
    mu_mss_sent(m, len);
}

static const size_t steps[] = {1, 2, 3, 7, 20, 1000, 0};
#define STEPS (sizeof(steps) / sizeof(steps[0]))

static void test_mss_initiator_speaks_the_vectors(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < STEPS; i++) {
        struct mu_mss m;
        char story[512] = "";
        size_t used;

        mu_mss_init(&m, MU_MSS_INITIATOR);
        assert_false(mu_mss_may_send(&m));
        assert_int_equal(mu_mss_propose(&m, MU_SPAN_LIT("/noise")), 0);
        assert_true(mu_mss_may_send(&m));
        expect_output(&m, HEADER NOISE);
        assert_int_equal(feed(&m, HEADER NOISE "0020ff", steps[i], "", story, &used), 0);
        /* What is behind the answer is not its business. */
        assert_int_equal(used, 28);
        assert_string_equal(story, "2:/noise ");
        assert_span_text(mu_mss_name(&m), "/noise");
        expect_output(&m, "");
        mu_mss_fini(&m);
    }
}

static void test_mss_initiator_proposes_one_after_the_other(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < STEPS; i++) {
        struct mu_mss m;
        char story[512] = "";
        size_t used;

        mu_mss_init(&m, MU_MSS_INITIATOR);
        assert_int_equal(mu_mss_propose(&m, MU_SPAN_LIT("/noise")), 0);
        assert_int_equal(mu_mss_propose(&m, MU_SPAN_LIT("/ipfs/ping/1.0.0")), 0);
        assert_int_equal(mu_mss_propose(&m, MU_SPAN_LIT("/ipfs/id/1.0.0")), 0);
        expect_output(&m, HEADER NOISE);
        assert_int_equal(feed(&m, HEADER NA, steps[i], "", story, &used), 0);
        assert_false(mu_mss_may_send(&m));
        expect_output(&m, PING);
        assert_int_equal(feed(&m, NA, steps[i], "", story, &used), 0);
        assert_true(mu_mss_may_send(&m));
        expect_output(&m, IDENTIFY);
        assert_string_equal(story, "");
        if (i % 2 == 0) {
            assert_int_equal(feed(&m, IDENTIFY, steps[i], "", story, &used), 0);
            assert_string_equal(story, "2:/ipfs/id/1.0.0 ");
            assert_true(mu_mss_may_send(&m));
        } else {
            assert_int_equal(feed(&m, NA "00", steps[i], "", story, &used), 0);
            assert_int_equal(used, 4);
            assert_string_equal(story, "3: ");
            assert_false(mu_mss_may_send(&m));
            assert_int_equal(mu_mss_name(&m).len, 0);
        }
        assert_int_equal(mu_mss_propose(&m, MU_SPAN_LIT("/noise")), MUSTER_EINVAL);
        expect_output(&m, "");
        mu_mss_fini(&m);
    }
}

static void test_mss_responder_speaks_the_vectors(void **unused)
{
    (void)unused;
    for (size_t i = 0; i < STEPS; i++) {
        struct mu_mss m;
        char story[512] = "";
        size_t used;

        mu_mss_init(&m, MU_MSS_RESPONDER);
        expect_output(&m, "");
        assert_int_equal(feed(&m, HEADER LS NOISE "010a" NA IDENTIFY PING "00112233", steps[i],
                              "/ipfs/ping/1.0.0", story, &used),
                         0);
        assert_int_equal(used, 20 + 4 + 8 + 2 + 4 + 16 + 18);
        assert_string_equal(story, "1:/noise 1:/ipfs/id/1.0.0 1:/ipfs/ping/1.0.0 ");
        expect_output(&m, HEADER NA NA NA NA NA PING);
        assert_span_text(mu_mss_name(&m), "/ipfs/ping/1.0.0");
        assert_true(mu_mss_may_send(&m));
        assert_int_equal(mu_mss_propose(&m, MU_SPAN_LIT("/noise")), MUSTER_EINVAL);
        mu_mss_fini(&m);
    }
}

static void test_mss_every_violation_has_its_own_words(void **unused)
{
    static const struct {
        enum mu_mss_role role;
        const char *hex;
        int err;
        const char *text;
    } cases[] = {
        {MU_MSS_RESPONDER, NOISE, MUSTER_EPROTO, "does not speak"},
        {MU_MSS_INITIATOR, NA, MUSTER_EPROTO, "does not speak"},
        {MU_MSS_RESPONDER, "00", MUSTER_EPROTO, "length"},
        {MU_MSS_RESPONDER, "8000", MUSTER_EPROTO, "length"},
        {MU_MSS_RESPONDER, "ffffffffffffffffff7f", MUSTER_EPROTO, "length"},
        {MU_MSS_RESPONDER, "8108", MUSTER_ELIMIT, "1024"},
        {MU_MSS_RESPONDER, "ffffffffffffffff7f", MUSTER_ELIMIT, "1024"},
        {MU_MSS_RESPONDER, "476554202f2048545450", 0, ""}, /* "GET / HTTP": 71 bytes are to come */
        {MU_MSS_RESPONDER, "036e6161", MUSTER_EPROTO, "line end"},
        {MU_MSS_INITIATOR, HEADER PING, MUSTER_EPROTO, "another protocol"},
        {MU_MSS_INITIATOR, HEADER LS, MUSTER_EPROTO, "another protocol"},
        {MU_MSS_INITIATOR, HEADER HEADER, MUSTER_EPROTO, "another protocol"},
    };

    (void)unused;
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        for (size_t i = 0; i < STEPS; i++) {
            struct mu_mss m;
            char story[512] = "";
            size_t used;

            mu_mss_init(&m, cases[c].role);
            if (cases[c].role == MU_MSS_INITIATOR) {
                assert_int_equal(mu_mss_propose(&m, MU_SPAN_LIT("/noise")), 0);
            }
            assert_int_equal(feed(&m, cases[c].hex, steps[i], "", story, &used), cases[c].err);
            assert_non_null(strstr(mu_mss_errmsg(&m), cases[c].text));
            assert_string_equal(story, "");
            if (cases[c].err != 0) {
                assert_int_equal(feed(&m, HEADER, steps[i], "", story, &used), cases[c].err);
                assert_int_equal(used, 0);
            }
            mu_mss_fini(&m);
        }
    }
}

/* The longest message is as long as may be; one byte more is refused, and so is a name that could
 * not be said. */
static void test_mss_names_have_a_greatest_length(void **unused)
{
    static uint8_t bytes[2 + MU_MSS_MESSAGE_MAX];
    static uint8_t name[MU_MSS_NAME_MAX + 1];
    struct mu_mss m;
    struct mu_mss_event e;
    size_t used;
    uint8_t head[20];

    (void)unused;
    memset(name, 'x', sizeof(name));
    mu_mss_init(&m, MU_MSS_INITIATOR);
    assert_int_equal(mu_mss_propose(&m, mu_span(name, sizeof(name))), MUSTER_EINVAL);
    assert_int_equal(mu_mss_propose(&m, MU_SPAN_LIT("")), MUSTER_EINVAL);
    assert_int_equal(mu_mss_propose(&m, MU_SPAN_LIT("/a\n/b")), MUSTER_EINVAL);
    assert_int_equal(mu_mss_propose(&m, mu_span(name, MU_MSS_NAME_MAX)), 0);
    for (int i = 1; i < MU_MSS_PROPOSALS_MAX; i++) {
        assert_int_equal(mu_mss_propose(&m, mu_span(name, MU_MSS_NAME_MAX)), 0);
    }
    assert_int_equal(mu_mss_propose(&m, MU_SPAN_LIT("/a")), MUSTER_ELIMIT);
    assert_int_equal(mu_mss_output(&m).len, 20 + 2 + MU_MSS_MESSAGE_MAX);
    mu_mss_fini(&m);

    mu_mss_init(&m, MU_MSS_RESPONDER);
    assert_int_equal(mu_mss_recv(&m, mu_span(head, hex_decode(head, 20, HEADER)), &used), 0);
    bytes[0] = 0x80;
    bytes[1] = 0x08;
    memset(bytes + 2, 'x', MU_MSS_NAME_MAX);
    bytes[sizeof(bytes) - 1] = '\n';
    assert_int_equal(mu_mss_recv(&m, mu_span(bytes, sizeof(bytes)), &used), 0);
    assert_true(mu_mss_next_event(&m, &e));
    assert_int_equal(e.name.len, MU_MSS_NAME_MAX);
    mu_mss_fini(&m);
}

/* Who proposes without end, or reads no answer, is not listened to. */
static void test_mss_responder_has_had_enough(void **unused)
{
    struct mu_mss m;
    char story[512] = "";
    size_t used;
    int err = 0;
    int proposals = 0;

    (void)unused;
    mu_mss_init(&m, MU_MSS_RESPONDER);
    assert_int_equal(feed(&m, HEADER, 100, "", story, &used), 0);
    for (; err == 0 && proposals < 1000; proposals++) {
        err = feed(&m, proposals % 2 == 0 ? NOISE : LS, 100, "", story, &used);
    }
    assert_int_equal(err, MUSTER_ELIMIT);
    assert_int_equal(proposals, MU_MSS_PROPOSALS_MAX + 1);
    mu_mss_fini(&m);
}

static void test_mss_survives_a_failing_heap(void **unused)
{
    static const char *const hex[] = {HEADER NA PING, HEADER NOISE PING};

    (void)unused;
    for (size_t role = 0; role < 2; role++) {
        bool fired = true;

        for (long nth = 0; fired; nth++) {
            struct mu_mss m;
            uint8_t bytes[128];
            struct mu_span in = mu_span(bytes, hex_decode(bytes, sizeof(bytes), hex[role]));
            int proposed = 0;

            mu_mss_init(&m, role == 0 ? MU_MSS_INITIATOR : MU_MSS_RESPONDER);
            failheap_arm(nth);
            while (m.state != MU_MSS_AGREED) {
                struct mu_mss_event e;
                size_t used = 0;
                int err = 0;

                if (m.state == MU_MSS_ASKED) {
                    err = in.len == 0 ? mu_mss_accept(&m) : mu_mss_refuse(&m);
                } else if (role == 0 && proposed < 2) {
                    err = mu_mss_propose(&m, proposed == 0 ? MU_SPAN_LIT("/noise")
                                                           : MU_SPAN_LIT("/ipfs/ping/1.0.0"));
                    proposed += err == 0 ? 1 : 0;
                } else {
                    err = mu_mss_recv(&m, in, &used);
                    in = mu_span_skip(in, used);
                }
                while (mu_mss_next_event(&m, &e)) {
                }
                if (err != 0) {
                    assert_int_equal(err, MUSTER_ENOMEM);
                    failheap_disarm();
                }
            }
            fired = failheap_fired();
            failheap_disarm();
            assert_int_equal(in.len, 0);
            expect_output(&m, role == 0 ? HEADER NOISE PING : HEADER NA PING);
            mu_mss_fini(&m);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mss_initiator_speaks_the_vectors),
        cmocka_unit_test(test_mss_initiator_proposes_one_after_the_other),
        cmocka_unit_test(test_mss_responder_speaks_the_vectors),
        cmocka_unit_test(test_mss_every_violation_has_its_own_words),
        cmocka_unit_test(test_mss_names_have_a_greatest_length),
        cmocka_unit_test(test_mss_responder_has_had_enough),
        cmocka_unit_test(test_mss_survives_a_failing_heap),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/* A client's connection, from the daemon's end: requests in turn, the two ways it can become
 * something else, every cut of what comes, and what a client must not do. */
#include "unit.h"

#include <stdio.h>

#include <muster/error.h>

#include "core/prng.h"
#include "failheap.h"
#include "hex.h"
#include "proto/p2pd/conn.h"

#define ID "000102030405060708090a0b0c0d0e0f"
/* Identify, an upgrade, a handler, a call that is given up. */
#define STORY                                                                                      \
    "020800"                                                                                       \
    "020809"                                                                                       \
    "1c0a10" ID "12080a046e616d651000"                                                             \
    "140a10" ID "2a00"

static struct mu_p2pd_conn conn;
static uint8_t scratch[4096];

static int set_up(void **unused)
{
    struct mu_p2pd_conn_config config = mu_p2pd_conn_config_defaults();

    (void)unused;
    config.msg_len_max = 1000;
    config.out_len_max = 5000;
    mu_p2pd_conn_init(&conn, &config);
    return 0;
}

static int tear_down(void **unused)
{
    (void)unused;
    mu_p2pd_conn_fini(&conn);
    return 0;
}

static struct mu_span hex(const char *text)
{
    return mu_span(scratch, hex_decode(scratch, sizeof(scratch), text));
}

static size_t feed(struct mu_span in)
{
    size_t used = 0;

    assert_int_equal(mu_p2pd_conn_recv(&conn, in, &used), 0);
    return used;
}

/* What has become of a story, as text. */
static void note(char *story, size_t cap, const struct mu_p2pd_event *e)
{
    size_t at = strlen(story);

    if (e->type == MU_P2PD_EV_REQUEST) {
        (void)snprintf(story + at, cap - at, "request %d; ", (int)e->request.type);
    } else {
        (void)snprintf(story + at, cap - at, "call %d %.*s (%zu); ", (int)e->call.kind,
                       (int)e->call.name.len, (const char *)e->call.name.data, e->message.len);
    }
}

static void reply(const struct mu_p2pd_event *e)
{
    struct mu_p2pd_peer self = {MU_SPAN_LIT("me"), NULL, 0};

    if (e->type == MU_P2PD_EV_CALL) {
        struct mu_p2pd_call call = {.kind = MU_P2PD_NOTHING, .id = e->call.id};

        assert_int_equal(mu_p2pd_conn_tell(&conn, &call), 0);
    } else if (e->request.type == MU_P2PD_UPGRADE) {
        assert_int_equal(mu_p2pd_conn_reply_upgrade(&conn), 0);
    } else {
        assert_int_equal(mu_p2pd_conn_reply_identify(&conn, &self), 0);
    }
}

/* Tells a story in pieces of at most `step` bytes; returns what came of it. */
static void tell(struct mu_span in, size_t step, struct mu_prng *prng, char *story, size_t cap,
                 struct mu_buf *out)
{
    size_t at = 0;

    story[0] = '\0';
    while (at < in.len) {
        size_t piece = prng == NULL ? step : 1 + (size_t)mu_prng_below(prng, step);
        struct mu_p2pd_event e;

        piece = piece < in.len - at ? piece : in.len - at;
        at += feed(mu_span(in.data + at, piece));
        while (mu_p2pd_conn_next_event(&conn, &e)) {
            note(story, cap, &e);
            reply(&e);
        }
    }
    while (mu_p2pd_conn_output(&conn).len != 0) {
        struct mu_span some = mu_p2pd_conn_output(&conn);

        assert_int_equal(mu_buf_append(out, mu_span(some.data, 1)), 0);
        mu_p2pd_conn_sent(&conn, 1);
    }
}

static void test_p2pd_conn_in_pieces_is_as_whole(void **unused)
{
    struct mu_span in = hex(STORY);
    struct mu_prng prng;
    char whole[512];
    char pieces[512];
    struct mu_buf out;
    struct mu_buf out_pieces;

    (void)unused;
    mu_prng_seed(&prng, 9);
    mu_buf_init(&out, 4096);
    mu_buf_init(&out_pieces, 4096);
    tell(in, in.len, NULL, whole, sizeof(whole), &out);
    assert_string_equal(whole, "request 0; request 9; call 1 name (29); call 8  (21); ");

    for (size_t step = 1; step < 40; step++) {
        mu_p2pd_conn_fini(&conn);
        (void)set_up(NULL);
        mu_buf_reset(&out_pieces);
        tell(in, step, step % 2 == 0 ? &prng : NULL, pieces, sizeof(pieces), &out_pieces);
        assert_string_equal(pieces, whole);
        assert_true(mu_span_eq(mu_buf_span(&out_pieces), mu_buf_span(&out)));
    }
    mu_buf_fini(&out);
    mu_buf_fini(&out_pieces);
}

static void test_p2pd_conn_takes_nothing_behind_a_request_that_is_not_answered(void **unused)
{
    struct mu_span in = hex("020805"
                            "020800");
    struct mu_p2pd_event e;

    (void)unused;
    assert_int_equal(feed(in), 3);
    assert_true(mu_p2pd_conn_next_event(&conn, &e));
    assert_int_equal(feed(mu_span_skip(in, 3)), 0);
    assert_false(mu_p2pd_conn_next_event(&conn, &e));
    assert_int_equal(mu_p2pd_conn_reply_ok(&conn), 0);
    assert_int_equal(mu_p2pd_conn_reply_ok(&conn), MUSTER_EINVAL);
    assert_int_equal(feed(mu_span_skip(in, 3)), 3);
    assert_true(mu_p2pd_conn_next_event(&conn, &e));
}

static void test_p2pd_conn_lends_a_request_until_it_is_answered(void **unused)
{
    struct mu_span in = hex("0a08021a060a01aa12016e"
                            "020800");
    struct mu_p2pd_event e;
    struct mu_p2pd_event other;
    struct mu_span name;
    struct mu_span walk;

    (void)unused;
    assert_int_equal(feed(in), 11);
    assert_true(mu_p2pd_conn_next_event(&conn, &e));
    assert_int_equal(feed(mu_span_skip(in, 11)), 0);
    assert_false(mu_p2pd_conn_next_event(&conn, &other));
    walk = e.request.all;
    assert_true(mu_p2pd_next_name(&e.request, &walk, &name));
    assert_span_text(name, "n");
    assert_ptr_equal(walk.data + walk.len, mu_buf_span(&conn.in).data + conn.in.len);
    assert_int_equal(mu_p2pd_conn_reply_error(&conn, "no"), 0);
    assert_int_equal(feed(mu_span_skip(in, 11)), 3);
    assert_int_equal(conn.in.len, 3);
}

static void test_p2pd_conn_that_is_a_stream_takes_nothing_of_it(void **unused)
{
    struct mu_p2pd_stream_info info = {MU_SPAN_LIT("p"), MU_SPAN_LIT("a"), MU_SPAN_LIT("n")};
    struct mu_span in = hex("0a08021a060a01aa12016e"
                            "68656c6c6f");
    struct mu_p2pd_event e;

    (void)unused;
    assert_int_equal(feed(in), 11);
    assert_true(mu_p2pd_conn_next_event(&conn, &e));
    assert_int_equal(e.request.type, MU_P2PD_STREAM_OPEN);
    assert_int_equal(mu_p2pd_conn_reply_stream(&conn, &info), 0);
    assert_int_equal(conn.phase, MU_P2PD_RAW);
    assert_int_equal(feed(mu_span_skip(in, 11)), 0);
    assert_false(mu_p2pd_conn_next_event(&conn, &e));
    assert_int_equal(mu_p2pd_conn_reply_ok(&conn), MUSTER_EINVAL);
}

static void test_p2pd_conn_refuses_a_message_that_is_too_long_at_its_length(void **unused)
{
    size_t used;

    (void)unused;
    assert_int_equal(mu_p2pd_conn_recv(&conn, hex("e907"), &used), MUSTER_ELIMIT); /* 1,001 */
    assert_int_equal(mu_p2pd_conn_recv(&conn, hex("020800"), &used), MUSTER_ELIMIT);
    assert_true(conn.in.cap < 512);
    assert_string_not_equal(mu_p2pd_conn_errmsg(&conn), "");
}

static void test_p2pd_conn_is_poisoned_by_what_cannot_be_read(void **unused)
{
    static const char *const bad[] = {
        "0100", "00", "02080b", "03080112", "808080808080808080800101", "8000",
    };
    struct mu_p2pd_event e;

    (void)unused;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct mu_span in = hex(bad[i]);
        size_t used;

        mu_p2pd_conn_fini(&conn);
        (void)set_up(NULL);
        (void)mu_p2pd_conn_recv(&conn, in, &used);
        assert_false(mu_p2pd_conn_next_event(&conn, &e));
        if (conn.err != MUSTER_EPROTO || conn.phase != MU_P2PD_OVER) {
            fail_msg("\"%s\" was read", bad[i]);
        }
        assert_int_equal(mu_p2pd_conn_recv(&conn, in, &used), MUSTER_EPROTO);
    }
}

static void test_p2pd_conn_tells_only_a_persistent_client(void **unused)
{
    struct mu_p2pd_call call = {.kind = MU_P2PD_CANCEL, .id = hex(ID)};

    (void)unused;
    assert_int_equal(mu_p2pd_conn_tell(&conn, &call), MUSTER_EINVAL);
}

static void test_p2pd_conn_output_has_a_limit_and_is_whole(void **unused)
{
    static const uint8_t id[MU_P2PD_CALL_ID_LEN];
    struct mu_p2pd_call call = {.kind = MU_P2PD_DAEMON_ERROR, .id = mu_span(id, sizeof(id))};
    struct mu_p2pd_event e;
    size_t len;
    int err = 0;

    (void)unused;
    (void)feed(hex("020809"));
    assert_true(mu_p2pd_conn_next_event(&conn, &e));
    assert_int_equal(mu_p2pd_conn_reply_upgrade(&conn), 0);
    call.data = mu_span(scratch, 700);
    while (err == 0) {
        len = mu_p2pd_conn_output(&conn).len;
        err = mu_p2pd_conn_tell(&conn, &call);
    }
    assert_int_equal(err, MUSTER_ELIMIT);
    assert_int_equal(mu_p2pd_conn_output(&conn).len, len);
    assert_true(len > 4000);
}

static void test_p2pd_conn_several_dht_answers_follow_one_request(void **unused)
{
    struct mu_p2pd_event e;

    (void)unused;
    (void)feed(hex("0408042a00"));
    assert_false(mu_p2pd_conn_next_event(&conn, &e)); /* a question that is none */
    mu_p2pd_conn_fini(&conn);
    (void)set_up(NULL);
    (void)feed(hex("0608042a020803"));
    assert_true(mu_p2pd_conn_next_event(&conn, &e));
    assert_int_equal(e.request.what, MU_P2PD_GET_CLOSEST_PEERS);
    assert_int_equal(
        mu_p2pd_conn_reply_dht(&conn, true, true, MU_P2PD_DHT_BEGIN, NULL, (struct mu_span){0}), 0);
    assert_true(conn.asked);
    assert_int_equal(
        mu_p2pd_conn_reply_dht(&conn, false, false, MU_P2PD_DHT_END, NULL, (struct mu_span){0}), 0);
    assert_false(conn.asked);
}

static void test_p2pd_conn_bears_garbage(void **unused)
{
    struct mu_prng prng;

    (void)unused;
    for (uint64_t seed = 0; seed < 3000; seed++) {
        uint8_t bytes[64];
        struct mu_p2pd_event e;
        size_t used;

        mu_prng_seed(&prng, seed);
        for (size_t i = 0; i < sizeof(bytes); i++) {
            bytes[i] = (uint8_t)(mu_prng_below(&prng, 3) == 0 ? mu_prng_u64(&prng)
                                                              : mu_prng_below(&prng, 24));
        }
        mu_p2pd_conn_fini(&conn);
        (void)set_up(NULL);
        for (size_t at = 0; at < sizeof(bytes); at += used) {
            if (mu_p2pd_conn_recv(&conn, mu_span(bytes + at, sizeof(bytes) - at), &used) != 0) {
                break;
            }
            while (mu_p2pd_conn_next_event(&conn, &e)) {
                (void)mu_p2pd_conn_reply_error(&conn, "no");
            }
            if (used == 0) {
                break;
            }
        }
        assert_true(conn.in.cap <= 2048);
    }
}

static void test_p2pd_conn_without_memory_goes_on_where_it_was(void **unused)
{
    struct mu_span in = hex(STORY);
    bool fired = true;

    (void)unused;
    for (long nth = 0; fired; nth++) {
        size_t at = 0;
        size_t events = 0;
        struct mu_p2pd_event e;

        mu_p2pd_conn_fini(&conn);
        (void)set_up(NULL);
        failheap_arm(nth);
        while (at < in.len) {
            size_t used = 0;
            int err = mu_p2pd_conn_recv(&conn, mu_span_skip(in, at), &used);

            at += used;
            assert_true(err == 0 || err == MUSTER_ENOMEM);
            fired = failheap_fired();
            if (fired) {
                failheap_disarm();
            }
            while (mu_p2pd_conn_next_event(&conn, &e)) {
                events++;
                if (e.type == MU_P2PD_EV_REQUEST) {
                    int (*say)(struct mu_p2pd_conn * c) = e.request.type == MU_P2PD_UPGRADE
                                                              ? mu_p2pd_conn_reply_upgrade
                                                              : mu_p2pd_conn_reply_ok;

                    if (say(&conn) == MUSTER_ENOMEM) {
                        failheap_disarm();
                        assert_int_equal(say(&conn), 0);
                    }
                }
            }
        }
        failheap_disarm();
        assert_int_equal(events, 4);
    }
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_p2pd_conn_in_pieces_is_as_whole),
        TEST(test_p2pd_conn_takes_nothing_behind_a_request_that_is_not_answered),
        TEST(test_p2pd_conn_lends_a_request_until_it_is_answered),
        TEST(test_p2pd_conn_that_is_a_stream_takes_nothing_of_it),
        TEST(test_p2pd_conn_refuses_a_message_that_is_too_long_at_its_length),
        TEST(test_p2pd_conn_is_poisoned_by_what_cannot_be_read),
        TEST(test_p2pd_conn_tells_only_a_persistent_client),
        TEST(test_p2pd_conn_output_has_a_limit_and_is_whole),
        TEST(test_p2pd_conn_several_dht_answers_follow_one_request),
        TEST(test_p2pd_conn_bears_garbage),
        TEST(test_p2pd_conn_without_memory_goes_on_where_it_was),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

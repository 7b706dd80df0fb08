/*
 * The machines of a p2p daemon: what the stories in tests/trace do not show. Who may be read from,
 * what an order of events may not change, and every failure of the heap.
 */
#include "unit.h"

#include "failheap.h"
#include "p2pd_rig.h"
#include "proto/p2pd/pipe.h"

#define PEERS_ID 77 /* of what a user is asked */

static struct rig rig;
static unsigned said[RIG_USERS];  /* what wants an answer */
static unsigned heard[RIG_USERS]; /* answers */
static unsigned asked[RIG_USERS];
static unsigned resumed;

static const uint8_t zeroes[4000];

static void on_acted(struct rig *r, const struct mu_p2pd_action *a, size_t n)
{
    (void)r;
    (void)n;
    resumed += a->type == MU_P2PD_ACTION_RESUME;
}

static void on_heard(struct rig *r, struct rig_user *u, const struct mu_p2pd_call *m)
{
    size_t i = (size_t)(u - r->users);

    if (m->kind == MU_P2PD_REQUEST) {
        asked[i]++;
    } else if (m->id.data[0] != PEERS_ID) {
        heard[i]++;
    }
}

static int set_up(void **unused)
{
    struct mu_p2pd_calls_config config = {.msg_len_max = 3000,
                                          .name_len_max = 20,
                                          .free_bytes = 500,
                                          .high_bytes = 1000,
                                          .calls_max = 10,
                                          .request_ms = 60000,
                                          .linger_ms = 5000,
                                          .held_bytes_max = 4000};

    (void)unused;
    rig_init(&rig, &config);
    rig.acted = on_acted;
    rig.heard = on_heard;
    memset(said, 0, sizeof(said));
    memset(heard, 0, sizeof(heard));
    memset(asked, 0, sizeof(asked));
    resumed = 0;
    for (size_t i = 0; i < 2; i++) {
        rig_join(&rig, &rig.users[i]);
        assert_true(rig.users[i].here);
    }
    return 0;
}

static int tear_down(void **unused)
{
    (void)unused;
    rig_fini(&rig);
    return 0;
}

/* User `i` says something, if it is still here. */
static struct rig_stream *say(size_t i, enum mu_p2pd_call_kind kind, uint8_t number, size_t len)
{
    uint8_t id[MU_P2PD_CALL_ID_LEN] = {number};
    struct mu_peer_id peer = rig_peer('P');
    struct mu_p2pd_call m = {.kind = kind,
                             .id = mu_span(id, sizeof(id)),
                             .peer = mu_peer_id_span(&peer),
                             .name = MU_SPAN_LIT("ping"),
                             .data = mu_span(zeroes, len),
                             .body = MU_SPAN_LIT("\x0a\x01x"),
                             .balanced = true};
    struct rig_stream *s;

    if (!rig.users[i].here) {
        return NULL;
    }
    s = rig_say(&rig, &rig.users[i], &m);
    said[i] += kind != MU_P2PD_UNARY_RESPONSE && kind != MU_P2PD_CANCEL;
    rig_pump(&rig);
    return s;
}

/* The peer of a stream says a message, in as many pieces as its window makes of it. */
static void peer_says(struct rig_stream *s, enum mu_p2pd_call_kind kind, size_t len)
{
    static uint8_t bytes[4000];
    struct mu_buf b = {.data = bytes, .cap = sizeof(bytes), .max = sizeof(bytes)};
    uint8_t id[MU_P2PD_CALL_ID_LEN] = {PEERS_ID};
    struct mu_p2pd_call m = {.kind = kind,
                             .id = mu_span(id, sizeof(id)),
                             .peer = MU_SPAN_LIT("p"),
                             .name = MU_SPAN_LIT("ping"),
                             .data = mu_span(zeroes, len),
                             .body = mu_span(zeroes, len)};

    assert_int_equal(mu_p2pd_call_encode(&b, &m), 0);
    while (b.len != 0 && s != NULL && s->used && s->open && s->window != 0) {
        mu_buf_consume(&b, rig_peer_says(s, mu_buf_span(&b)));
        rig_pump(&rig);
    }
}

static struct rig_stream *open_stream(void)
{
    struct mu_peer_id peer = rig_peer('Q');

    return rig_open(&rig, &peer, MU_SPAN_LIT("ping"));
}

/* --- who may be read from --------------------------------------------------------------------- */

static void test_bytes_of_a_user_count_until_the_peer_has_taken_them(void **unused)
{
    struct rig_stream *s;
    uint64_t len;

    (void)unused;
    rig.takes = 0;
    s = say(0, MU_P2PD_CALL_UNARY, 1, 2000);
    len = rig.users[0].user.held_bytes;
    assert_in_range(len, 2000, 2200);
    (void)say(0, MU_P2PD_CALL_UNARY, 2, 0);
    assert_in_range(rig.users[0].user.held_bytes, len + 1, len + 200);
    (void)say(0, MU_P2PD_CANCEL, 2, 0);
    assert_int_equal(rig.users[0].user.held_bytes, len);
    resumed = 0;
    s->takes = 1500;
    mu_p2pd_unary_writable(&s->unary);
    rig_pump(&rig);
    assert_int_equal(rig.users[0].user.held_bytes, len - 1500);
    assert_int_equal(resumed, 1);
    rig_stream_gone(s, MUSTER_ECLOSED, "gone");
    rig_pump(&rig);
    assert_int_equal(rig.users[0].user.held_bytes, 0);
    assert_int_equal(heard[0], 2);
    assert_int_equal(rig.users[1].user.held_bytes, 0);
}

static void test_user_that_has_failed_is_told_and_read_no_more(void **unused)
{
    (void)unused;
    mu_p2pd_conn_fini(&rig.users[0].conn);
    rig.users[0].conn.out.max = 10;
    (void)say(0, MU_P2PD_ADD_UNARY, 1, 0);
    assert_false(rig.users[0].here);
    assert_int_equal(rig.calls.names.unary_count, 0);
}

/* A peer that calls and then reads nothing does not hold the call for ever; one that reads slowly
 * gets all of its answer. */
static void test_answer_waits_so_long_for_its_peer(void **unused)
{
    struct rig_stream *s;

    (void)unused;
    (void)say(0, MU_P2PD_ADD_UNARY, 1, 0);
    rig.takes = 0;
    s = open_stream();
    peer_says(s, MU_P2PD_CALL_UNARY, 10);
    assert_int_equal(asked[0], 1);
    (void)say(0, MU_P2PD_UNARY_RESPONSE, PEERS_ID, 0);
    for (int i = 0; i < 3; i++) {
        rig.now = mu_mono_add_ms(rig.now, 59000);
        s->takes = 1;
        mu_p2pd_unary_writable(&s->unary);
        rig_pump(&rig);
        assert_int_equal(rig.calls.stats.unary, 1);
    }
    rig.now = mu_mono_add_ms(rig.now, 60000);
    rig_pump(&rig);
    assert_int_equal(rig.calls.stats.unary, 0);
}

/* --- handlers --------------------------------------------------------------------------------- */

/* What index arithmetic would do, here for a hundred random changes. */
static void test_turns_go_round_whoever_comes_and_goes(void **unused)
{
    uint8_t list[64];
    size_t count = 0;
    size_t next = 0;
    struct mu_prng prng;
    struct mu_errmsg msg;

    (void)unused;
    mu_prng_seed(&prng, 5);
    for (uint8_t n = 0; n < 100; n++) {
        struct mu_p2pd_handler *h;
        struct mu_span name = MU_SPAN_LIT("cast");

        if (count < 8 && mu_prng_below(&prng, 2) == 0) {
            assert_int_equal(rig_add(&rig, name, NULL, mu_span(&n, 1), true, &msg), 0);
            list[count++] = n;
        } else if (count != 0 && mu_prng_below(&prng, 2) == 0) {
            size_t i = (size_t)mu_prng_below(&prng, count);

            assert_int_equal(
                mu_p2pd_names_remove(&rig.calls.names, name, NULL, mu_span(&list[i], 1), &msg), 0);
            memmove(&list[i], &list[i + 1], --count - i);
            next -= i < next;
            next = next == count ? 0 : next;
            rig_pump(&rig);
        }
        h = mu_p2pd_names_next(&rig.calls.names, name);
        assert_int_equal(h == NULL, count == 0);
        if (h != NULL) {
            assert_int_equal(h->addr[0], list[next]);
            next = (next + 1) % count;
        }
        assert_int_equal(rig.calls.names.addr_count, count);
    }
}

/* --- without memory --------------------------------------------------------------------------- */

/* Both ways, long and short, with a handler that shares its name, a cancel and a leave. */
static void tell_story(void)
{
    struct rig_stream *s;
    struct rig_stream *t;

    (void)say(0, MU_P2PD_ADD_UNARY, 1, 0);
    (void)say(1, MU_P2PD_ADD_UNARY, 2, 0);
    s = say(0, MU_P2PD_CALL_UNARY, 3, 100);
    peer_says(s, MU_P2PD_UNARY_RESPONSE, 10);
    s = say(0, MU_P2PD_CALL_UNARY, 4, 2000);
    peer_says(s, MU_P2PD_UNARY_RESPONSE, 2000);
    s = open_stream();
    t = open_stream();
    peer_says(s, MU_P2PD_CALL_UNARY, 10);
    peer_says(t, MU_P2PD_CALL_UNARY, 2000);
    (void)say(0, MU_P2PD_UNARY_RESPONSE, PEERS_ID, 0);
    (void)say(1, MU_P2PD_UNARY_RESPONSE, PEERS_ID, 0);
    (void)say(0, MU_P2PD_CALL_UNARY, 5, 100);
    (void)say(0, MU_P2PD_CANCEL, 5, 0);
    (void)say(0, MU_P2PD_REMOVE_UNARY, 6, 0);
    (void)say(1, MU_P2PD_CALL_UNARY, 7, 100);
}

static void finish_story(void)
{
    for (size_t i = 0; i < RIG_STREAMS; i++) {
        if (rig.streams[i].used && rig.streams[i].open) {
            rig_stream_gone(&rig.streams[i], MUSTER_ECLOSED, "gone");
            rig_pump(&rig);
        }
    }
    for (size_t i = 0; i < 2; i++) {
        if (rig.users[i].here && heard[i] != said[i]) {
            fail_msg("user %zu has said %u things and heard %u answers", i, said[i], heard[i]);
        }
    }
}

static void test_calls_without_memory_are_answered_or_their_user_is_closed(void **unused)
{
    bool fired = true;
    long nth;

    (void)unused;
    for (nth = 0; fired; nth++) {
        rig_fini(&rig);
        (void)set_up(NULL);
        assert_int_equal(mu_buf_reserve(&rig.scratch, 8000), 0);
        failheap_arm(nth);
        tell_story();
        fired = failheap_fired();
        failheap_disarm();
        finish_story();
    }
    /* With all the memory it needs, everybody has stayed and been answered. */
    assert_true(nth > 10 && rig.users[0].here && rig.users[1].here);
    assert_int_equal(said[0], 5);
    assert_int_equal(heard[0], 5);
    assert_int_equal(heard[1], 2);
    assert_int_equal(asked[0], 1);
    assert_int_equal(asked[1], 1);
}

static void test_pipe_without_memory_is_aborted(void **unused)
{
    struct mu_p2pd_pipe_action a;
    struct mu_p2pd_pipe p;

    (void)unused;
    mu_p2pd_pipe_init(&p, 1000);
    failheap_arm(0);
    assert_int_equal(mu_p2pd_pipe_head(&p, mu_span(zeroes, 5)), MUSTER_ENOMEM);
    mu_p2pd_pipe_heard(&p, mu_span(zeroes, 10));
    assert_false(mu_p2pd_pipe_next(&p, &a));
    mu_p2pd_pipe_keep(&p);
    failheap_disarm();
    assert_true(mu_p2pd_pipe_next(&p, &a));
    assert_int_equal(a.type, MU_P2PD_PIPE_ABORT);
    assert_false(mu_p2pd_pipe_next(&p, &a));
    mu_p2pd_pipe_fini(&p);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(test_bytes_of_a_user_count_until_the_peer_has_taken_them),
        TEST(test_user_that_has_failed_is_told_and_read_no_more),
        TEST(test_answer_waits_so_long_for_its_peer),
        TEST(test_turns_go_round_whoever_comes_and_goes),
        TEST(test_calls_without_memory_are_answered_or_their_user_is_closed),
        TEST(test_pipe_without_memory_is_aborted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

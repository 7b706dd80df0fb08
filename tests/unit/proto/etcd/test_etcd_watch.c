/* A watch of etcd's keys: its limits, an owner that stops it in a callback, and no memory. The
 * stories tests/trace/etcd-watch-*.txt have what it does otherwise. */
#include "unit.h"

#include <muster/error.h>

#include "etcd_words.h"
#include "failheap.h"
#include "proto/etcd/watch.h"

#define PIECE_MAX 400

static mu_mono_t now = {MU_NS_PER_S};
static struct mu_etcd_route route;
static struct mu_etcd_watcher watcher;
static struct mu_etcd_reply reply;
static struct mu_buf text;
static int changes, told, ready, ended;
static int stop_at;                       /* the owner stops it in that change; 0: it does not */
static enum mu_etcd_watcher_action asked; /* the last thing to do that is not to be told */

static void start_span(struct mu_span key)
{
    struct mu_etcd_route_config config = {
        .endpoint_count = 1,
        .first_ms = 30000,
        .patience_ms = 10000,
        .try_ms = 8000,
        .quiet_ms = 20000,
        .reply_bytes_max = PIECE_MAX,
    };

    mu_etcd_route_init(&route, &config, 1);
    changes = told = ready = ended = stop_at = 0;
    asked = 0;
    watcher = (struct mu_etcd_watcher){0};
    mu_etcd_watcher_start(
        &watcher, &route,
        &(struct mu_etcd_watcher_config){.key = key, .end = MU_SPAN_LIT("z"), .current = true}, 1,
        now);
}

static void pump(void)
{
    enum mu_etcd_watcher_action action;

    while ((action = mu_etcd_watcher_next(&watcher, now)) != 0) {
        assert_int_equal(ended, 0);
        if (action == MU_ETCD_WATCHER_CHANGE) {
            if (++changes == stop_at) {
                mu_etcd_watcher_stop(&watcher, MUSTER_ECANCELED, now);
            }
        } else if (action == MU_ETCD_WATCHER_TOLD) {
            told++;
        } else if (action == MU_ETCD_WATCHER_READY) {
            ready++;
        } else if (action == MU_ETCD_WATCHER_END) {
            ended++;
        } else {
            asked = action;
        }
    }
}

static void tick(void)
{
    mu_etcd_watcher_tick(&watcher, now);
    pump();
}

static void read_range(const char *const *kvs, size_t count, int64_t revision)
{
    mu_buf_reset(&text);
    etcd_say_range(&text, revision, kvs, count);
    assert_int_equal(mu_etcd_reply_decode(&reply, mu_buf_span(&text)), 0);
}

static void end_read(void)
{
    mu_etcd_watcher_read_done(&watcher, &(struct mu_etcd_answer){.reply = &reply}, now);
    pump();
}

static void receive_span(struct mu_span in)
{
    while (in.len > 0) {
        in = mu_span_skip(in, mu_etcd_watcher_recv(&watcher, 200, in, now));
        pump();
    }
}

static void receive(void)
{
    receive_span(mu_buf_span(&text));
}

static void take_piece(const char *const *words, size_t count)
{
    mu_buf_reset(&text);
    etcd_say_piece(&text, words, count);
    receive();
}

static void end_stream(void)
{
    mu_etcd_watcher_stream_done(
        &watcher,
        &(struct mu_etcd_exchange){.status = MUSTER_ECANCELED, .error = "canceled", .where = "e"},
        now);
    pump();
}

/* Up to a stream, with a and b there at revision 9. */
static void start_streaming(void)
{
    static const char *const kvs[] = {"a=1@4", "b=2@9"};

    start_span(MU_SPAN_LIT("a"));
    tick();
    assert_int_equal(asked, MU_ETCD_WATCHER_READ);
    read_range(kvs, 2, 9);
    end_read();
    assert_int_equal(asked, MU_ETCD_WATCHER_STREAM);
    assert_true(changes == 2 && told == 1 && ended == 0);
}

static void test_no_change_comes_after_a_stop_in_a_change(void **state)
{
    static const char *const events[] = {"created", "put:a=2@10", "put:b=3@11", "del:a@12"};

    (void)state;
    start_streaming();
    stop_at = 4;
    take_piece(events, 4);
    assert_true(ready == 1 && changes == 4 && told == 1);
    assert_int_equal(asked, MU_ETCD_WATCHER_CANCEL_STREAM);
    take_piece(events, 4); /* on its way when it was stopped */
    assert_true(changes == 4 && ended == 0);
    end_stream();
    assert_true(ended == 1 && watcher.verdict == MUSTER_ECANCELED);
}

static void test_a_stop_while_a_reading_is_told_ends_it_at_once(void **state)
{
    static const char *const kvs[] = {"a=1@4", "b=2@9"};

    (void)state;
    start_span(MU_SPAN_LIT("a"));
    tick();
    stop_at = 1;
    read_range(kvs, 2, 9);
    end_read();
    assert_true(changes == 1 && told == 0 && ended == 1);
    assert_int_equal(watcher.verdict, MUSTER_ECANCELED);
}

/* The keys that are gone are told one by one, and the owner has had enough of it. */
static void test_a_stop_while_the_gone_are_told(void **state)
{
    static const char *const compacted[] = {"compacted:20"};

    (void)state;
    start_streaming();
    take_piece(compacted, 1);
    end_stream();
    tick();
    assert_int_equal(asked, MU_ETCD_WATCHER_READ);
    stop_at = 3;
    read_range(NULL, 0, 25);
    end_read();
    assert_true(changes == 3 && told == 1 && ended == 1);
}

static void test_a_piece_may_be_so_long(void **state)
{
    (void)state;
    for (int over = 0; over < 2; over++) {
        start_streaming();
        mu_buf_reset(&text);
        etcd_say(&text, "{\"result\":{}");
        while (text.len < PIECE_MAX - 1 + (size_t)over) {
            etcd_say(&text, " ");
        }
        etcd_say(&text, "}");
        receive();
        assert_int_equal(asked, over ? MU_ETCD_WATCHER_CANCEL_STREAM : MU_ETCD_WATCHER_STREAM);
        mu_etcd_watcher_stop(&watcher, MUSTER_ECANCELED, now); /* changes nothing that ends */
        pump();
        end_stream();
        assert_int_equal(ended, 1);
        assert_int_equal(watcher.verdict, over ? MUSTER_ELIMIT : MUSTER_ECANCELED);
    }
    assert_string_equal(watcher.errmsg.text, "a piece of a watch is longer than 400 bytes");
}

static void test_a_key_that_no_request_can_hold(void **state)
{
    static const uint8_t key[64 << 10];

    (void)state;
    start_span(mu_span(key, sizeof(key)));
    tick();
    assert_true(asked == 0 && ended == 0); /* not in the same turn */
    tick();
    assert_true(ended == 1 && watcher.verdict == MUSTER_ELIMIT);
}

/* --- no memory -------------------------------------------------------------------------------- */

/* What etcd says, made while there is memory. */
struct said {
    struct mu_buf text;
    struct mu_etcd_reply reply;
};

static void make_said(struct said *s, int64_t reading, const char *const *words, size_t count)
{
    mu_buf_init(&s->text, 1 << 16);
    mu_etcd_reply_init(&s->reply);
    if (reading == 0) {
        etcd_say_piece(&s->text, words, count);
    } else {
        etcd_say_range(&s->text, reading, words, count);
        assert_int_equal(mu_etcd_reply_decode(&s->reply, mu_buf_span(&s->text)), 0);
    }
}

/* Gives it readings and pieces as it wants them, stops it behind the last piece, until it ends. */
static void run_watch(struct said readings[2], struct said pieces[3])
{
    size_t reads = 0;
    size_t taken = 0;

    start_span(MU_SPAN_LIT("a"));
    for (int i = 0; ended == 0; i++) {
        assert_in_range(i, 0, 1000);
        if (watcher.state == MU_ETCD_WATCHER_READING) {
            assert_in_range(reads, 0, 1);
            mu_etcd_watcher_read_done(
                &watcher, &(struct mu_etcd_answer){.reply = &readings[reads++].reply}, now);
        } else if (watcher.state != MU_ETCD_WATCHER_STREAMING) {
            now = mu_mono_before(now, watcher.wake) ? watcher.wake : now;
            mu_etcd_watcher_tick(&watcher, now);
        } else if (asked == MU_ETCD_WATCHER_CANCEL_STREAM) {
            end_stream();
        } else if (taken < 3) {
            receive_span(mu_buf_span(&pieces[taken].text));
            taken += watcher.verdict != MUSTER_ENOMEM ? 1 : 0; /* etcd will say it again */
        } else {
            mu_etcd_watcher_stop(&watcher, MUSTER_ECANCELED, now);
        }
        pump();
    }
}

static void test_without_memory_it_ends_and_holds_none(void **state)
{
    static const char *const first[] = {"a=1@4", "b=2@9", "c=3@9"};
    static const char *const second[] = {"b=3@15:9", "f=4@18"};
    static const char *const events[] = {"created", "put:d=1@10", "del:a@11"};
    static const char *const compacted[] = {"compacted:20"};
    static const char *const later[] = {"put:e=5@21"};
    struct said readings[2];
    struct said pieces[3];
    bool fired = true;

    (void)state;
    make_said(&readings[0], 9, first, 3);
    make_said(&readings[1], 25, second, 2);
    make_said(&pieces[0], 0, events, 3);
    make_said(&pieces[1], 0, compacted, 1);
    make_said(&pieces[2], 0, later, 1);
    for (long nth = 0; fired; nth++) {
        failheap_arm(nth);
        run_watch(readings, pieces);
        fired = failheap_fired();
        failheap_disarm();
        assert_int_equal(watcher.verdict, fired ? MUSTER_ENOMEM : MUSTER_ECANCELED);
        assert_true(watcher.known.buckets == NULL && watcher.body.data == NULL &&
                    watcher.in.data == NULL && watcher.reply.kvs == NULL);
        assert_in_range(nth, fired ? 0 : 10, 200);
    }
    /* With memory: a, b, c; d, and a is gone; b, f, and c and d are gone; e. */
    assert_true(changes == 10 && told == 4 && ready == 1);
    for (size_t i = 0; i < 5; i++) {
        struct said *s = i < 2 ? &readings[i] : &pieces[i - 2];

        mu_etcd_reply_fini(&s->reply);
        mu_buf_fini(&s->text);
    }
}

static int set_up(void **state)
{
    (void)state;
    mu_etcd_reply_init(&reply);
    mu_buf_init(&text, 1 << 20);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    mu_etcd_reply_fini(&reply);
    mu_buf_fini(&text);
    return 0;
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_change_comes_after_a_stop_in_a_change),
        cmocka_unit_test(test_a_stop_while_a_reading_is_told_ends_it_at_once),
        cmocka_unit_test(test_a_stop_while_the_gone_are_told),
        cmocka_unit_test(test_a_piece_may_be_so_long),
        cmocka_unit_test(test_a_key_that_no_request_can_hold),
        cmocka_unit_test(test_without_memory_it_ends_and_holds_none),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}

/*
 * Goal: the public handler does what its header says at each step of a rendezvous, whatever comes
 * in between and from whichever thread. Method: a backend that does only what the test tells it to
 * stands in for ours, so that every order of events can be had.
 */
#include "client_rig.h"

#include <unistd.h>

#include <jansson.h>

#include "failheap.h"

/* --- a round ---------------------------------------------------------------------------------- */

static void test_rdzv_next_returns_what_was_assigned(void **state)
{
    struct muster_rdzv_info info;
    muster_rdzv *rdzv = open_in_round(&info);
    struct muster_value value;
    muster_store *bootstrap;
    char text[64];

    (void)state;
    assert_string_equal(muster_rdzv_backend(rdzv), "muster");
    assert_string_equal(muster_rdzv_run_id(rdzv), "job");
    assert_int_equal(info.round, 0);
    assert_int_equal(info.incarnation, 3);
    assert_int_equal(info.rank, 0);
    assert_int_equal(info.world_size, 2);
    assert_int_equal(info.restarts_left, 5);
    assert_int_equal(info.member_count, 2);
    assert_string_equal(info.members[1], "node1");
    assert_string_equal(info.member_addrs[1], "addr1");
    assert_says(info.store_url, "?prefix=torch.rendezvous.job.0");

    assert_int_equal(muster_store_set(info.store, muster_str("k"), muster_str("v"), 5000), 0);
    assert_int_equal(muster_store_get(info.store, muster_str("MASTER_PORT"), &value, 5000), 0);
    (void)snprintf(text, sizeof(text), "%u", info.bootstrap_port);
    assert_string_equal(value.data, text);
    muster_value_free(&value);
    assert_string_equal(info.bootstrap_addr, "127.0.0.1");
    assert_true(muster_rdzv_use_agent_store(rdzv));
    (void)snprintf(text, sizeof(text), "tcp://127.0.0.1:%u", info.bootstrap_port);
    assert_int_equal(muster_store_open(rt, text, NULL, &bootstrap), 0);
    muster_store_close(bootstrap);
    close_one(rdzv, 1);
    assert_int_not_equal(
        muster_store_open(
            rt, text, &(struct muster_store_config){sizeof(struct muster_store_config), 1000, 300},
            &bootstrap),
        0);
}

static void test_rdzv_flags_leave_out_what_is_not_wanted(void **state)
{
    muster_rdzv *rdzv = open_flagged(MUSTER_RDZV_NO_STORE);
    struct caller c;

    (void)state;
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 1);
    assign(4, 1);
    assert_int_equal(finish(&c), 0);
    assert_null(c.info.store);
    assert_string_equal(c.info.bootstrap_addr, "");
    assert_int_equal(c.info.rank, 1);
    close_one(rdzv, 1);

    rdzv = open_flagged(MUSTER_RDZV_NO_BOOTSTRAP);
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 1);
    assign(4, 1); /* Nobody publishes anything. */
    assert_int_equal(finish(&c), 0);
    assert_int_equal(muster_store_set(c.info.store, muster_str("k"), muster_str("v"), 5000), 0);
    close_one(rdzv, 1);
}

static void test_rdzv_next_goes_on_when_a_round_ends_before_it_is_open(void **state)
{
    muster_rdzv *rdzv = open_one();
    struct caller c;

    (void)state;
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 1);
    assign(10, 1); /* Its rank 0 publishes nothing: it is the one that is lost. */
    tell(tell_ended, &lost);
    wait_count(fake, &fake->joins, 2);
    assign(11, 0);
    assert_int_equal(finish(&c), 0);
    assert_int_equal(c.info.round, 11);
    close_one(rdzv, 1);
}

static void test_rdzv_next_leaves_a_round_whose_store_is_none(void **state)
{
    muster_rdzv *rdzv = open_one();
    struct caller c;

    (void)state;
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 1);
    tell(tell_assigned, &(struct mu_rdzv_assignment){.world = 1, .store = "nonsense"});
    assert_int_equal(finish(&c), MUSTER_ERDZV_STATE);
    assert_says(c.text, "URL");
    assert_int_equal(fake->leaves, 1);
    close_one(rdzv, 1); /* It is out: nothing to leave. */
}

static void test_rdzv_next_leaves_the_round_it_is_in(void **state)
{
    struct muster_rdzv_info info;
    muster_rdzv *rdzv = open_in_round(&info);
    struct caller waits;
    struct caller c;

    (void)state;
    start(&waits, rdzv, call_ended);
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 2);
    assert_int_equal(finish(&waits), 0);
    assert_says(waits.text, "next round");
    assign(1, 0);
    assert_int_equal(finish(&c), 0);
    assert_int_equal(c.info.round, 1);
    assert_int_not_equal(c.info.bootstrap_port, 0);
    close_one(rdzv, 1);
}

static void test_rdzv_next_fails_with_the_words_of_the_backend_and_can_be_tried_again(void **state)
{
    muster_rdzv *rdzv = open_one();
    struct caller c;

    (void)state;
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 1);
    tell(tell_failed, "1 of 2 nodes joined; missing: node1");
    assert_int_equal(finish(&c), MUSTER_ERDZV_TIMEOUT);
    assert_string_equal(c.text, "1 of 2 nodes joined; missing: node1");
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 2);
    assign(7, 0);
    assert_int_equal(finish(&c), 0);
    close_one(rdzv, 1);
}

/* --- what happens in a round ------------------------------------------------------------------ */

static void test_rdzv_ended_wakes_and_says_why(void **state)
{
    struct muster_rdzv_info info;
    muster_rdzv *rdzv = open_in_round(&info);
    struct muster_rdzv_event event;
    struct caller c;
    uint32_t n = 2;

    (void)state;
    assert_int_equal(muster_rdzv_ended(rdzv, 0), MUSTER_ETIMEDOUT);
    assert_int_equal(muster_rdzv_ended(rdzv, 5), MUSTER_ETIMEDOUT);
    assert_int_equal(muster_rdzv_ended(rdzv, -3), MUSTER_EINVAL);
    assert_int_equal(muster_rdzv_wait_event(rdzv, 0, &event), MUSTER_ETIMEDOUT);
    tell(tell_waiting, &n);
    assert_int_equal(muster_rdzv_num_nodes_waiting(rdzv, &n), 0);
    assert_int_equal(n, 2);
    assert_int_equal(muster_rdzv_wait_event(rdzv, -1, &event), 0);
    assert_int_equal(event.kind, MUSTER_RDZV_EVENT_WAITING);
    assert_int_equal(event.waiting, 2);
    assert_string_equal(event.text, "2 nodes wait to be let in");

    start(&c, rdzv, call_ended);
    tell(tell_ended, &lost);
    assert_int_equal(finish(&c), 0);
    assert_string_equal(c.text, "node1 was lost");
    assert_int_equal(muster_rdzv_num_nodes_waiting(rdzv, &n), 0);
    assert_int_equal(n, 0);
    assert_int_equal(muster_rdzv_wait_event(rdzv, -1, &event), 0);
    assert_int_equal(event.kind, MUSTER_RDZV_EVENT_ENDED);
    assert_int_equal(event.reason, MUSTER_RDZV_ENDED_LOST);
    assert_string_equal(event.who, "node1");
    assert_int_equal(event.who_rank, 1);
    assert_int_equal(muster_rdzv_wait_event(rdzv, 0, &event), MUSTER_ETIMEDOUT);
    /* What was lent is still there. */
    assert_int_equal(muster_store_set(info.store, muster_str("k"), muster_str("v"), 5000), 0);
    close_one(rdzv, 1);
}

static void test_rdzv_member_that_is_out_is_told_and_need_not_leave(void **state)
{
    struct muster_rdzv_info info;
    muster_rdzv *rdzv = open_in_round(&info);
    struct muster_rdzv_event event;

    (void)state;
    tell(tell_failed, "out of touch");
    assert_int_equal(muster_rdzv_ended(rdzv, -1), 0);
    assert_string_equal(muster_errmsg(), "out of touch");
    assert_int_equal(muster_rdzv_wait_event(rdzv, -1, &event), 0);
    assert_int_equal(event.reason, MUSTER_RDZV_ENDED_OUT);
    assert_int_equal(event.status, MUSTER_ERDZV_TIMEOUT);
    assert_null(event.who);
    close_one(rdzv, 0);
}

static void test_rdzv_asks_nothing_of_a_round_that_never_began(void **state)
{
    muster_rdzv *rdzv = open_one();
    bool closed = true;
    uint32_t n = 7;

    (void)state;
    assert_int_equal(muster_rdzv_ended(rdzv, -1), 0);
    assert_says(muster_errmsg(), "no round");
    assert_int_equal(muster_rdzv_is_closed(rdzv, &closed), 0);
    assert_false(closed);
    assert_int_equal(muster_rdzv_num_nodes_waiting(rdzv, &n), 0);
    assert_int_equal(n, 0);
    close_one(rdzv, 0);
}

/* --- closing the run -------------------------------------------------------------------------- */

static void test_rdzv_set_closed_is_waited_for_by_all_who_ask(void **state)
{
    struct muster_rdzv_info info;
    muster_rdzv *rdzv = open_in_round(&info);
    struct muster_rdzv_event event;
    struct caller a;
    struct caller b;
    struct caller waits;
    bool closed;

    (void)state;
    start(&waits, rdzv, call_ended);
    start(&a, rdzv, call_set_closed);
    start(&b, rdzv, call_set_closed);
    wait_count(fake, &fake->close_runs, 1);
    tell(tell_closed, NULL);
    assert_int_equal(finish(&a), 0);
    assert_int_equal(finish(&b), 0);
    assert_int_equal(fake->close_runs, 1);
    assert_int_equal(finish(&waits), 0);
    assert_says(waits.text, "closed");
    assert_int_equal(muster_rdzv_is_closed(rdzv, &closed), 0);
    assert_true(closed);
    assert_true(muster_rdzv_shutdown(rdzv));
    assert_int_equal(fake->close_runs, 1);
    assert_int_equal(muster_rdzv_wait_event(rdzv, -1, &event), 0);
    assert_int_equal(event.kind, MUSTER_RDZV_EVENT_ENDED);
    assert_int_equal(event.reason, MUSTER_RDZV_ENDED_CLOSED);
    assert_int_equal(muster_rdzv_wait_event(rdzv, -1, &event), 0);
    assert_int_equal(event.kind, MUSTER_RDZV_EVENT_CLOSED);
    close_one(rdzv, 0);
}

static void test_rdzv_set_closed_says_that_it_did_not_work(void **state)
{
    muster_rdzv *rdzv = open_one();
    struct caller c;

    (void)state;
    start(&c, rdzv, call_set_closed);
    wait_count(fake, &fake->close_runs, 1);
    tell(tell_close_failed, "nobody answers");
    assert_int_equal(finish(&c), MUSTER_ERDZV_CONN);
    assert_string_equal(c.text, "nobody answers");
    close_one(rdzv, 0);
}

static void test_rdzv_next_ends_when_the_run_is_closed_while_a_round_is_opened(void **state)
{
    muster_rdzv *rdzv = open_one();
    struct caller c;

    (void)state;
    start(&c, rdzv, call_next);
    wait_count(fake, &fake->joins, 1);
    assign(20, 1);
    tell(tell_closed, NULL);
    assert_int_equal(finish(&c), MUSTER_ERDZV_CLOSED);
    close_one(rdzv, 0);
}

/* --- the record ------------------------------------------------------------------------------- */

struct seen {
    int count;
    char name[32];
    char host[256];
    int64_t pid;
    int64_t rank;
    int64_t time_us;
    enum muster_rdzv_state state;
};

static void see(const struct muster_rdzv_record *r, void *context)
{
    struct seen *s = context;

    s->count++;
    (void)snprintf(s->name, sizeof(s->name), "%s", r->name);
    (void)snprintf(s->host, sizeof(s->host), "%s", r->host);
    s->pid = r->pid;
    s->rank = r->rank;
    s->time_us = r->time_us;
    s->state = r->state;
}

static void test_rdzv_sink_gets_every_record(void **state)
{
    struct seen seen = {0};
    struct muster_rdzv_info info;
    muster_rdzv *rdzv;
    char host[256] = "";

    (void)state;
    muster_rdzv_set_sink(see, &seen);
    rdzv = open_in_round(&info);
    muster_rdzv_set_sink(NULL, NULL); /* From here on `seen` is ours again. */
    assert_int_equal(gethostname(host, sizeof(host) - 1), 0);
    assert_int_equal(seen.count, 1);
    assert_string_equal(seen.name, "fake.join");
    assert_string_equal(seen.host, host);
    assert_int_equal(seen.pid, getpid());
    assert_int_equal(seen.rank, -1);
    assert_int_equal(seen.state, MUSTER_RDZV_RUNNING);
    assert_true(seen.time_us > INT64_C(1600000000000000));
    close_one(rdzv, 1);
}

static const char *text_of(json_t *line, const char *key)
{
    const char *text = json_string_value(json_object_get(line, key));

    return text == NULL ? "(none)" : text;
}

static void test_rdzv_sink_json_writes_lines_that_parse(void **state)
{
    struct muster_rdzv_record all = {.name = "x",
                                     .run_id = "r",
                                     .message = NULL,
                                     .host = "h",
                                     .pid = 9,
                                     .state = MUSTER_RDZV_FAILED,
                                     .rank = 3,
                                     .time_us = 1700000000000042};
    struct muster_rdzv_info info;
    char *text = NULL;
    size_t len = 0;
    FILE *file = open_memstream(&text, &len);
    char bytes[256];
    muster_rdzv *rdzv;
    json_t *line;
    char *next;

    (void)state;
    assert_non_null(file);
    muster_rdzv_set_sink(muster_rdzv_sink_json, file);
    rdzv = open_in_round(&info);
    muster_rdzv_set_sink(NULL, NULL);
    for (int i = 1; i < 256; i++) {
        bytes[i - 1] = (char)i;
    }
    bytes[255] = '\0';
    all.node = bytes;
    muster_rdzv_sink_json(&all, file);
    /* Cut off, too long for what they say, a surrogate, beyond the last one; and good ones. */
    all.node = "\xe2\x82|\xc0\x80|\xe0\x80\x80|\xed\xa0\x80|\xf4\x90\x80\x80|\xf0\x9f\x98\x80|"
               "\xc3\xa9|\xf0\x9f";
    muster_rdzv_sink_json(&all, file);
    assert_int_equal(fclose(file), 0);

    next = strchr(text, '\n');
    assert_non_null(next);
    line = json_loadb(text, (size_t)(next - text), 0, NULL);
    assert_non_null(line);
    assert_string_equal(text_of(line, "name"), "fake.join");
    assert_string_equal(text_of(line, "run_id"), "job");
    assert_string_equal(text_of(line, "message"), "a \"quoted\"\n\xef\xbf\xbd line \xe2\x82\xac");
    assert_string_equal(text_of(line, "node"), "n\\1");
    assert_string_equal(text_of(line, "node_state"), "RUNNING");
    assert_true(json_is_null(json_object_get(line, "rank")));
    assert_int_equal(json_integer_value(json_object_get(line, "pid")), getpid());
    json_decref(line);

    text[next - text] = '\0';
    line = json_loads(next + 1, JSON_DISABLE_EOF_CHECK, NULL);
    assert_non_null(line);
    assert_int_equal(json_integer_value(json_object_get(line, "rank")), 3);
    assert_true(json_real_value(json_object_get(line, "time")) > 1.6e9);
    assert_int_equal(strncmp(text_of(line, "node"), "\x01\x02\x03\x04\x05\x06\x07\b\t\n", 10), 0);
    json_decref(line);
    line = json_loads(strchr(next + 1, '\n') + 1, 0, NULL);
    assert_non_null(line);
#define BAD "\xef\xbf\xbd"
    assert_string_equal(text_of(line, "node"),
                        BAD BAD "|" BAD BAD "|" BAD BAD BAD "|" BAD BAD BAD "|" BAD BAD BAD BAD
                                "|\xf0\x9f\x98\x80|\xc3\xa9|" BAD BAD);
    json_decref(line);
    free(text);
    close_one(rdzv, 1);
}

/* --- no memory -------------------------------------------------------------------------------- */

static void test_rdzv_bears_a_failure_of_each_allocation(void **state)
{
    bool fired = true;

    (void)state;
    fake_manner = AUTO_ASSIGN;
    fake_store = "hash:?prefix=torch.rendezvous.job.0";
    for (long nth = 0; fired; nth++) {
        struct muster_rdzv_params p = params(0);
        struct muster_rdzv_info info;
        muster_rdzv *rdzv = NULL;
        int err;

        fresh_fake();
        failheap_arm(nth);
        err = muster_rdzv_open(rt, &p, &rdzv);
        if (err == 0) {
            err = muster_rdzv_next(rdzv, &info);
            muster_rdzv_close(rdzv);
        }
        fired = failheap_fired();
        failheap_disarm();
        /* A server that has no memory to listen with says that it cannot use its address. */
        if (err != 0 && err != MUSTER_ENOMEM && err != MUSTER_EADDR) {
            fail_msg("allocation %ld: %s", nth, muster_strerror(err));
        }
        assert_true(fired || err == 0);
        assert_true(nth < 1000);
        free_fake();
    }
    fake_manner = 0;
}
int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rdzv_next_returns_what_was_assigned),
        cmocka_unit_test(test_rdzv_flags_leave_out_what_is_not_wanted),
        cmocka_unit_test(test_rdzv_next_goes_on_when_a_round_ends_before_it_is_open),
        cmocka_unit_test(test_rdzv_next_leaves_a_round_whose_store_is_none),
        cmocka_unit_test(test_rdzv_next_leaves_the_round_it_is_in),
        cmocka_unit_test(test_rdzv_next_fails_with_the_words_of_the_backend_and_can_be_tried_again),
        cmocka_unit_test(test_rdzv_ended_wakes_and_says_why),
        cmocka_unit_test(test_rdzv_member_that_is_out_is_told_and_need_not_leave),
        cmocka_unit_test(test_rdzv_asks_nothing_of_a_round_that_never_began),
        cmocka_unit_test(test_rdzv_set_closed_is_waited_for_by_all_who_ask),
        cmocka_unit_test(test_rdzv_set_closed_says_that_it_did_not_work),
        cmocka_unit_test(test_rdzv_next_ends_when_the_run_is_closed_while_a_round_is_opened),
        cmocka_unit_test(test_rdzv_sink_gets_every_record),
        cmocka_unit_test(test_rdzv_sink_json_writes_lines_that_parse),
        cmocka_unit_test(test_rdzv_bears_a_failure_of_each_allocation),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}

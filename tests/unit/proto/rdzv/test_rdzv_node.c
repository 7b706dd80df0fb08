/*
 * The machine of one node, alone and fed by hand, where the order of single events matters.
 * test_rdzv_nodes.c has it in company.
 */
#include "unit.h"

#include "failheap.h"
#include "proto/rdzv/node.h"

#define MS    MU_NS_PER_MS
#define S     MU_NS_PER_S
#define MONO  (UINT64_C(5000) * S)
#define EPOCH (UINT64_C(1700000000) * S)

struct hand {
    struct mu_rdzv r;
    struct mu_now now;
    struct mu_rdzv_update up;
};

static struct hand h;

static void take_in_hand(bool push)
{
    struct mu_rdzv_config config = mu_rdzv_config_defaults();
    struct mu_errmsg msg;
    char addr[] = "me";

    config.settings.min_nodes = 2;
    config.settings.max_nodes = 3;
    config.node = (struct mu_rdzv_node){.addr = addr, .pid = 5, .local_id = 1};
    config.push = push;
    config.seed = 42;
    config.token_bytes_max = 16;
    assert_int_equal(mu_rdzv_init(&h.r, &config, &msg), 0);
    h.now = (struct mu_now){.mono = {MONO}, .wall = {EPOCH}};
}

static int setup_push(void **unused)
{
    (void)unused;
    take_in_hand(true);
    return 0;
}

static int setup_poll(void **unused)
{
    (void)unused;
    take_in_hand(false);
    return 0;
}

static int let_go(void **unused)
{
    (void)unused;
    mu_rdzv_fini(&h.r);
    return 0;
}

static int feed(struct mu_rdzv_event ev)
{
    ev.now = h.now;
    return mu_rdzv_step(&h.r, &ev, &h.up);
}

static void give(enum mu_rdzv_event_type type)
{
    assert_int_equal(feed((struct mu_rdzv_event){.type = type}), 0);
}

static void pass(uint64_t ns)
{
    h.now.mono.ns += ns;
    h.now.wall.ns += ns;
}

/* Waits until the deadline and says so. */
static void wait_deadline(void)
{
    mu_mono_t at = mu_rdzv_deadline(&h.r);

    assert_true(at.ns != MU_MONO_NEVER.ns);
    if (at.ns > h.now.mono.ns) {
        pass(at.ns - h.now.mono.ns);
    }
    give(MU_RDZV_TIMEOUT);
}

static void answer_nothing(void)
{
    assert_int_equal(
        feed((struct mu_rdzv_event){.type = MU_RDZV_STATE_READ, .request = h.up.request}), 0);
}

static void answer_state(enum mu_rdzv_event_type type, const struct mu_rdzv_state *s,
                         enum mu_rdzv_dialect dialect, const char *token)
{
    struct mu_buf buf;

    mu_buf_init(&buf, 1u << 20);
    assert_int_equal(mu_rdzv_state_encode(&buf, s, dialect), 0);
    assert_int_equal(feed((struct mu_rdzv_event){.type = type,
                                                 .request = h.up.request,
                                                 .present = true,
                                                 .bytes = mu_buf_span(&buf),
                                                 .token = mu_span_str(token)}),
                     0);
    mu_buf_fini(&buf);
}

static void answer_written(const char *token)
{
    assert_int_equal(feed((struct mu_rdzv_event){.type = MU_RDZV_STATE_WRITTEN,
                                                 .request = h.up.request,
                                                 .token = mu_span_str(token)}),
                     0);
}

static void answer_failed(bool transient, int status)
{
    assert_int_equal(feed((struct mu_rdzv_event){.type = MU_RDZV_BACKEND_FAILED,
                                                 .request = h.up.request,
                                                 .status = status,
                                                 .text = "it broke",
                                                 .transient = transient}),
                     0);
}

static void assert_flags(unsigned expected)
{
    assert_int_equal(h.up.flags & ~(unsigned)MU_RDZV_DEADLINE, expected);
}

/* A state with these participants, named by single letters, last heard of now. */
static void people(struct mu_rdzv_state *s, const char *letters)
{
    mu_rdzv_state_init(s);
    for (; *letters != '\0'; letters++) {
        char addr[2] = {*letters, '\0'};
        struct mu_rdzv_node n = {.addr = addr, .pid = 1, .local_id = 0};
        struct mu_rdzv_member *m;

        assert_int_equal(mu_rdzv_state_add(s, &n, &m), 0);
        m->participant = true;
        m->has_heartbeat = true;
        m->heartbeat = h.now.wall;
    }
}

static void decode_written(struct mu_rdzv_state *s, enum mu_rdzv_dialect *ret_dialect)
{
    struct mu_errmsg msg;

    mu_rdzv_state_init(s);
    assert_true((h.up.flags & MU_RDZV_DO_WRITE) != 0);
    assert_int_equal(mu_rdzv_state_decode(h.up.bytes, s, ret_dialect, &msg), 0);
}

static void test_rdzv_first_node_writes_only_if_there_is_nothing(void **unused)
{
    struct mu_rdzv_state s;
    enum mu_rdzv_dialect dialect;

    (void)unused;
    give(MU_RDZV_JOIN);
    assert_flags(MU_RDZV_DO_READ);
    assert_int_equal(h.up.request, 1);

    answer_nothing();
    assert_flags(MU_RDZV_DO_WRITE);
    assert_int_equal(h.up.request, 2);
    assert_false(h.up.has_token);
    decode_written(&s, &dialect);
    assert_int_equal(dialect, MU_RDZV_DIALECT_2);
    assert_int_equal(s.round, 0);
    assert_int_equal(s.member_count, 1);
    assert_string_equal(s.members[0].node.addr, "me");
    assert_int_equal(s.members[0].node.pid, 5);
    mu_rdzv_state_fini(&s);

    answer_written("t1");
    assert_flags(0);
    assert_true(h.up.deadline.ns > h.now.mono.ns);
    assert_int_equal(h.r.v.phase, MU_RDZV_JOINING);
}

static void test_rdzv_writes_carry_the_token_of_what_they_change(void **unused)
{
    struct mu_rdzv_state s;

    (void)unused;
    people(&s, "a");
    give(MU_RDZV_JOIN);
    answer_state(MU_RDZV_STATE_READ, &s, MU_RDZV_DIALECT_2, "before");
    assert_flags(MU_RDZV_DO_WRITE);
    assert_true(h.up.has_token);
    assert_span_text(h.up.token, "before");

    answer_written("after");
    wait_deadline();
    assert_flags(MU_RDZV_DO_WRITE);
    assert_span_text(h.up.token, "after");
    mu_rdzv_state_fini(&s);
}

static void test_rdzv_answers_to_other_requests_are_dropped(void **unused)
{
    struct mu_rdzv_state s;

    (void)unused;
    people(&s, "abc");
    give(MU_RDZV_JOIN);
    h.up.request += 7;
    answer_state(MU_RDZV_STATE_READ, &s, MU_RDZV_DIALECT_2, "t");
    assert_flags(0);
    assert_null(mu_rdzv_state(&h.r));

    h.up.request = 1;
    answer_written("t"); /* it was a read */
    assert_flags(0);
    h.up.request = 1;
    answer_state(MU_RDZV_WRITE_LOST, &s, MU_RDZV_DIALECT_2, "t");
    assert_flags(0);
    h.up.request = 1;
    answer_nothing();
    assert_flags(MU_RDZV_DO_WRITE);
    mu_rdzv_state_fini(&s);
}

static void
test_rdzv_without_push_the_first_join_is_delayed_and_reads_are_a_second_apart(void **unused)
{
    uint64_t start = h.now.mono.ns;

    (void)unused;
    give(MU_RDZV_JOIN);
    assert_flags(0);
    assert_true(h.up.deadline.ns < start + 300 * MS);
    wait_deadline();
    assert_flags(MU_RDZV_DO_READ);
    answer_nothing();
    answer_written("t");
    assert_flags(0);
    assert_true(h.up.deadline.ns == h.now.mono.ns + S);

    /* A watch says nothing here; the second is waited out. */
    give(MU_RDZV_WATCH);
    assert_flags(0);
    assert_true(h.up.deadline.ns == h.now.mono.ns + S);
    wait_deadline();
    assert_flags(MU_RDZV_DO_READ);
}

static void test_rdzv_without_push_a_state_of_less_than_a_second_is_not_read_again(void **unused)
{
    (void)unused;
    give(MU_RDZV_LOOK);
    assert_flags(MU_RDZV_DO_READ);
    answer_nothing();
    assert_flags(MU_RDZV_SEEN);
    assert_non_null(mu_rdzv_state(&h.r));

    pass(S - 1);
    give(MU_RDZV_LOOK);
    assert_flags(MU_RDZV_SEEN);
    pass(1);
    give(MU_RDZV_LOOK);
    assert_flags(MU_RDZV_DO_READ);
}

static void test_rdzv_a_round_that_was_given_up_is_not_told_again(void **unused)
{
    const uint64_t hour = 3600 * S;
    struct mu_rdzv_state s;
    struct mu_rdzv_state written;
    struct mu_rdzv_member *me;
    enum mu_rdzv_dialect dialect;

    (void)unused;
    people(&s, "ab");
    assert_int_equal(mu_rdzv_state_add(&s, &h.r.node, &me), 0);
    me->participant = me->has_heartbeat = true;
    me->heartbeat = h.now.wall;
    me->rank = 2;
    s.members[1].rank = 1;
    s.complete = true;
    s.round = 7;
    give(MU_RDZV_JOIN);
    h.r.v.phase = MU_RDZV_JOINING; /* it was let in while it did not look */
    answer_state(MU_RDZV_STATE_READ, &s, MU_RDZV_DIALECT_2, "t1");
    assert_flags(MU_RDZV_ASSIGNED);

    /* Its clock is set, so that all seem dead, and set back. */
    h.now.wall.ns += hour;
    give(MU_RDZV_JOIN);
    assert_flags(MU_RDZV_DO_WRITE);
    h.now.wall.ns -= hour;
    answer_state(MU_RDZV_WRITE_LOST, &s, MU_RDZV_DIALECT_2, "t2");
    assert_true((h.up.flags & MU_RDZV_ASSIGNED) == 0);
    while ((h.up.flags & MU_RDZV_DO_WRITE) == 0) {
        wait_deadline();
    }
    decode_written(&written, &dialect);
    assert_null(mu_rdzv_state_find(&written, &h.r.node));
    mu_rdzv_state_fini(&written);
    mu_rdzv_state_fini(&s);
}

static void give_look_anew(void)
{
    assert_int_equal(feed((struct mu_rdzv_event){.type = MU_RDZV_LOOK, .anew = true}), 0);
}

static void test_rdzv_a_look_anew_takes_no_answer_to_an_earlier_question(void **unused)
{
    struct mu_rdzv_state s;

    (void)unused;
    people(&s, "");
    give(MU_RDZV_LOOK);
    assert_flags(MU_RDZV_DO_READ);
    give_look_anew();
    assert_flags(0);
    h.up.request = 1;
    answer_state(MU_RDZV_STATE_READ, &s, MU_RDZV_DIALECT_2, "t1");
    assert_flags(MU_RDZV_DO_READ);
    answer_state(MU_RDZV_STATE_READ, &s, MU_RDZV_DIALECT_2, "t1");
    assert_flags(MU_RDZV_SEEN);

    give_look_anew();
    assert_flags(MU_RDZV_DO_READ);
    answer_state(MU_RDZV_STATE_READ, &s, MU_RDZV_DIALECT_2, "t1");
    assert_flags(MU_RDZV_SEEN);
    mu_rdzv_state_fini(&s);
}

static void test_rdzv_with_push_a_watch_is_waited_for(void **unused)
{
    (void)unused;
    give(MU_RDZV_JOIN);
    answer_nothing();
    answer_written("t1");
    assert_true(h.up.deadline.ns > h.now.mono.ns + 4 * S);

    /* Told of its own write: nothing to read. */
    assert_int_equal(
        feed((struct mu_rdzv_event){.type = MU_RDZV_WATCH, .token = mu_span_str("t1")}), 0);
    assert_flags(0);
    assert_true(h.up.deadline.ns > h.now.mono.ns + 4 * S);

    assert_int_equal(
        feed((struct mu_rdzv_event){.type = MU_RDZV_WATCH, .token = mu_span_str("t2")}), 0);
    assert_flags(0);
    assert_true(h.up.deadline.ns <= h.now.mono.ns + 2 * MS);
    wait_deadline();
    assert_flags(MU_RDZV_DO_READ);
}

static void test_rdzv_a_watch_during_a_read_leads_to_another(void **unused)
{
    struct mu_rdzv_state s;

    (void)unused;
    people(&s, "");
    give(MU_RDZV_LOOK);
    assert_flags(MU_RDZV_DO_READ);
    /* Overtaken: the answer may be older than the watch. */
    assert_int_equal(feed((struct mu_rdzv_event){
                         .type = MU_RDZV_WATCH, .request = 0, .token = mu_span_str("t2")}),
                     0);
    h.up.request = 1;
    answer_state(MU_RDZV_STATE_READ, &s, MU_RDZV_DIALECT_2, "t1");
    assert_true(h.r.v.stale);

    /* Unless it shows itself to be the one the watch told of. */
    pass(S);
    give(MU_RDZV_LOOK);
    assert_flags(MU_RDZV_DO_READ);
    assert_int_equal(
        feed((struct mu_rdzv_event){.type = MU_RDZV_WATCH, .token = mu_span_str("t3")}), 0);
    h.up.request = 2;
    answer_state(MU_RDZV_STATE_READ, &s, MU_RDZV_DIALECT_2, "t3");
    assert_false(h.r.v.stale);
    mu_rdzv_state_fini(&s);
}

static void test_rdzv_lost_writes_back_off_and_look_again(void **unused)
{
    struct mu_rdzv_state s;
    uint64_t longest = 0;

    (void)unused;
    people(&s, "");
    give(MU_RDZV_JOIN);
    wait_deadline();
    answer_nothing();
    for (int i = 0; i < 14; i++) {
        uint64_t pause;
        uint64_t bound = i < 9 ? (UINT64_C(2) << i) * MS : S;

        assert_flags(MU_RDZV_DO_WRITE);
        answer_state(MU_RDZV_WRITE_LOST, &s, MU_RDZV_DIALECT_2, "t");
        assert_flags(0);
        pause = h.up.deadline.ns - h.now.mono.ns;
        assert_true(pause <= bound);
        longest = pause > longest ? pause : longest;
        wait_deadline();
        assert_flags(MU_RDZV_DO_READ);
        answer_state(MU_RDZV_STATE_READ, &s, MU_RDZV_DIALECT_2, "t");
    }
    assert_true(longest > 200 * MS);
    assert_int_equal(h.r.stats.lost, 14);
    mu_rdzv_state_fini(&s);
}

static void test_rdzv_a_lost_write_that_brings_the_answer_is_no_loss(void **unused)
{
    struct mu_rdzv_state s;
    struct mu_rdzv_settings settings = h.r.config.settings;
    char addr[] = "b";
    struct mu_rdzv_node b = {.addr = addr, .pid = 1, .local_id = 0};

    (void)unused;
    people(&s, "a");
    give(MU_RDZV_JOIN);
    answer_state(MU_RDZV_STATE_READ, &s, MU_RDZV_DIALECT_2, "t");
    answer_written("t2");
    wait_deadline();
    assert_flags(MU_RDZV_DO_WRITE); /* KEEP_ALIVE; meanwhile b completes the round */
    assert_int_equal(
        mu_rdzv_apply(&s, MU_RDZV_ACT_ADD_TO_PARTICIPANTS, &h.r.node, &settings, h.now.wall), 0);
    assert_int_equal(mu_rdzv_apply(&s, MU_RDZV_ACT_ADD_TO_PARTICIPANTS, &b, &settings, h.now.wall),
                     0);
    answer_state(MU_RDZV_WRITE_LOST, &s, MU_RDZV_DIALECT_2, "t3");
    assert_flags(MU_RDZV_ASSIGNED);
    assert_int_equal(h.up.rank, 2);
    assert_int_equal(h.up.world, 3);
    assert_string_equal(h.up.members[1]->addr, "b");
    mu_rdzv_state_fini(&s);
}

static void test_rdzv_follows_the_dialect_it_finds(void **unused)
{
    static const enum mu_rdzv_dialect dialects[] = {MU_RDZV_DIALECT_1_13, MU_RDZV_DIALECT_2_NAIVE,
                                                    MU_RDZV_DIALECT_2};

    (void)unused;
    for (size_t i = 0; i < 3; i++) {
        struct mu_rdzv_state s;
        struct mu_rdzv_state written;
        enum mu_rdzv_dialect dialect;

        mu_rdzv_fini(&h.r);
        take_in_hand(true);
        people(&s, "a");
        give(MU_RDZV_JOIN);
        answer_state(MU_RDZV_STATE_READ, &s, dialects[i], "t");
        decode_written(&written, &dialect);
        assert_int_equal(dialect, dialects[i]);
        mu_rdzv_state_fini(&s);
        mu_rdzv_state_fini(&written);
    }
}

static void test_rdzv_a_corrupt_state_is_an_error_of_its_own(void **unused)
{
    (void)unused;
    give(MU_RDZV_JOIN);
    assert_int_equal(feed((struct mu_rdzv_event){.type = MU_RDZV_STATE_READ,
                                                 .request = h.up.request,
                                                 .present = true,
                                                 .bytes = MU_SPAN_LIT("junk"),
                                                 .token = MU_SPAN_LIT("t")}),
                     0);
    assert_flags(MU_RDZV_FAILED);
    assert_int_equal(h.up.failed, MU_RDZV_OP_JOIN);
    assert_int_equal(h.up.code, MUSTER_ERDZV_STATE);
    assert_non_null(strstr(h.up.text, "corrupt"));
    assert_true(h.up.deadline.ns == MU_MONO_NEVER.ns);

    give(MU_RDZV_JOIN);
    answer_failed(true, MUSTER_ECORRUPT);
    assert_int_equal(h.up.code, MUSTER_ERDZV_STATE);
}

static void test_rdzv_a_final_failure_ends_what_is_going_on(void **unused)
{
    (void)unused;
    give(MU_RDZV_JOIN);
    give(MU_RDZV_CLOSE);
    give(MU_RDZV_LOOK);
    h.up.request = 1;
    answer_failed(false, MUSTER_EREFUSED);
    assert_flags(MU_RDZV_FAILED);
    assert_int_equal(h.up.failed, MU_RDZV_OP_JOIN | MU_RDZV_OP_CLOSE | MU_RDZV_OP_LOOK);
    assert_int_equal(h.up.code, MUSTER_ERDZV_CONN);
    assert_string_equal(h.up.text, "it broke");
    assert_true(h.up.deadline.ns == MU_MONO_NEVER.ns);
}

static void test_rdzv_transient_failures_are_tried_again_until_the_deadline(void **unused)
{
    uint64_t start = h.now.mono.ns;
    unsigned tries = 0;

    (void)unused;
    give(MU_RDZV_JOIN);
    while ((h.up.flags & MU_RDZV_FAILED) == 0) {
        if ((h.up.flags & MU_RDZV_DO_READ) != 0) {
            tries++;
            answer_failed(true, MUSTER_ECONN);
        } else {
            wait_deadline();
        }
    }
    assert_int_equal(h.up.code, MUSTER_ERDZV_CONN);
    assert_non_null(strstr(h.up.text, "it broke"));
    assert_non_null(strstr(h.up.text, "in a row"));
    assert_true(h.now.mono.ns >= start + 600 * S);
    assert_true(h.now.mono.ns <= start + 606 * S);
    assert_in_range(tries, 600, 1300);
}

static void test_rdzv_a_write_of_unknown_fate_is_looked_at(void **unused)
{
    struct mu_rdzv_state s;

    (void)unused;
    give(MU_RDZV_JOIN);
    answer_nothing();
    decode_written(&s, &(enum mu_rdzv_dialect){0});
    answer_failed(true, MUSTER_ECONN); /* it went through all the same */
    assert_flags(0);
    wait_deadline();
    assert_flags(MU_RDZV_DO_READ);
    answer_state(MU_RDZV_STATE_READ, &s, MU_RDZV_DIALECT_2, "t");
    assert_flags(0); /* in it already */
    mu_rdzv_state_fini(&s);
}

static void test_rdzv_a_silent_backend_is_given_up_after_the_deadline(void **unused)
{
    (void)unused;
    give(MU_RDZV_JOIN);
    assert_true(h.up.deadline.ns == h.now.mono.ns + 605 * S);
    wait_deadline();
    assert_flags(0); /* if it was we who were stopped, the answer comes next */
    assert_true(h.up.deadline.ns == h.now.mono.ns + S);
    wait_deadline();
    assert_flags(MU_RDZV_FAILED);
    assert_int_equal(h.up.code, MUSTER_ERDZV_CONN);
    assert_non_null(strstr(h.up.text, "did not answer"));

    /* The late answer is not taken for one to the next request. */
    h.up.request = 1;
    answer_nothing();
    assert_flags(0);
    assert_null(mu_rdzv_state(&h.r));
}

static void test_rdzv_wishes_out_of_order_are_refused_or_harmless(void **unused)
{
    (void)unused;
    give(MU_RDZV_TIMEOUT);
    assert_flags(0);
    give(MU_RDZV_LEAVE);
    assert_flags(MU_RDZV_ENDED); /* it never was anywhere */
    give(MU_RDZV_JOIN);
    assert_int_equal(feed((struct mu_rdzv_event){.type = MU_RDZV_JOIN}), MUSTER_EINVAL);
    give(MU_RDZV_LEAVE);
    give(MU_RDZV_LEAVE);
    assert_int_equal(feed((struct mu_rdzv_event){.type = MU_RDZV_JOIN}), MUSTER_EINVAL);
    h.up.request = 1;
    answer_nothing();
    assert_flags(MU_RDZV_ENDED);
    assert_int_equal(h.up.end, MU_RDZV_END_LEFT);
    assert_int_equal(feed((struct mu_rdzv_event){.type = (enum mu_rdzv_event_type)99}),
                     MUSTER_EINVAL);
}

static void test_rdzv_config_is_checked(void **unused)
{
    struct mu_rdzv_config config = h.r.config;
    struct mu_rdzv other;
    struct mu_errmsg msg;
    char empty[] = "";

    (void)unused;
    config.node.addr = empty;
    assert_int_equal(mu_rdzv_init(&other, &config, &msg), MUSTER_EINVAL);
    config = h.r.config;
    config.settings.min_nodes = 0;
    assert_int_equal(mu_rdzv_init(&other, &config, &msg), MUSTER_EINVAL);
    config = h.r.config;
    config.dialect = MU_RDZV_DIALECT_UNKNOWN;
    assert_int_equal(mu_rdzv_init(&other, &config, &msg), MUSTER_EINVAL);
}

static void test_rdzv_init_without_memory_takes_nothing(void **unused)
{
    struct mu_rdzv_config config = mu_rdzv_config_defaults();
    struct mu_rdzv r;
    struct mu_errmsg msg;
    char addr[] = "x";

    (void)unused;
    config.settings.min_nodes = config.settings.max_nodes = 1;
    config.node.addr = addr;
    failheap_arm(0);
    assert_int_equal(mu_rdzv_init(&r, &config, &msg), MUSTER_ENOMEM);
    failheap_disarm();
}

#define BY_HAND(name)    cmocka_unit_test_setup_teardown(name, setup_push, let_go)
#define BY_POLLING(name) cmocka_unit_test_setup_teardown(name, setup_poll, let_go)

static void test_rdzv_a_token_that_is_too_long_is_an_error(void **unused)
{
    struct mu_rdzv_state s;

    (void)unused;
    people(&s, "a");
    give(MU_RDZV_JOIN);
    answer_state(MU_RDZV_STATE_READ, &s, MU_RDZV_DIALECT_2, "sixteen letters.");
    assert_flags(MU_RDZV_DO_WRITE);
    answer_written("seventeen letters");
    assert_flags(MU_RDZV_FAILED);
    assert_int_equal(h.up.code, MUSTER_ERDZV_STATE);
    assert_non_null(strstr(h.up.text, "its token is too long"));

    give(MU_RDZV_JOIN);
    answer_state(MU_RDZV_STATE_READ, &s, MU_RDZV_DIALECT_2, "seventeen letters");
    assert_flags(MU_RDZV_FAILED);
    assert_int_equal(h.up.code, MUSTER_ERDZV_STATE);
    assert_non_null(strstr(h.up.text, "its token is too long"));
    mu_rdzv_state_fini(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        BY_HAND(test_rdzv_first_node_writes_only_if_there_is_nothing),
        BY_HAND(test_rdzv_writes_carry_the_token_of_what_they_change),
        BY_HAND(test_rdzv_answers_to_other_requests_are_dropped),
        BY_POLLING(test_rdzv_without_push_the_first_join_is_delayed_and_reads_are_a_second_apart),
        BY_POLLING(test_rdzv_without_push_a_state_of_less_than_a_second_is_not_read_again),
        BY_HAND(test_rdzv_a_round_that_was_given_up_is_not_told_again),
        BY_HAND(test_rdzv_a_look_anew_takes_no_answer_to_an_earlier_question),
        BY_HAND(test_rdzv_with_push_a_watch_is_waited_for),
        BY_HAND(test_rdzv_a_watch_during_a_read_leads_to_another),
        BY_POLLING(test_rdzv_lost_writes_back_off_and_look_again),
        BY_HAND(test_rdzv_a_lost_write_that_brings_the_answer_is_no_loss),
        BY_HAND(test_rdzv_follows_the_dialect_it_finds),
        BY_HAND(test_rdzv_a_corrupt_state_is_an_error_of_its_own),
        BY_HAND(test_rdzv_a_final_failure_ends_what_is_going_on),
        BY_HAND(test_rdzv_transient_failures_are_tried_again_until_the_deadline),
        BY_HAND(test_rdzv_a_write_of_unknown_fate_is_looked_at),
        BY_HAND(test_rdzv_a_silent_backend_is_given_up_after_the_deadline),
        BY_HAND(test_rdzv_wishes_out_of_order_are_refused_or_harmless),
        BY_HAND(test_rdzv_config_is_checked),
        cmocka_unit_test(test_rdzv_init_without_memory_takes_nothing),
        BY_HAND(test_rdzv_a_token_that_is_too_long_is_an_error),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

/*
 * One member of a round in the native mode, rule by rule, among others that are played by the test.
 * That all rules together keep their promises is shown by tests/sim/test_native.c.
 */
#include "unit.h"

#include "proto/average/native.h"
#include "proto/average/native_schema.h"

#define PARTS_MAX 8

static struct mu_avg_division division;
static struct mu_avg_part parts[PARTS_MAX];
static uint32_t got[64 * 64];
static struct mu_native n;
static const uint8_t digest_a[MU_NATIVE_DIGEST_LEN] = {0xaa};
static const uint8_t digest_b[MU_NATIVE_DIGEST_LEN] = {0xbb};

static struct mu_now at_ms(uint64_t ms)
{
    return (struct mu_now){{(1000 + ms) * MU_NS_PER_MS}, {0}};
}

static struct mu_native_config config(uint32_t members, uint32_t position)
{
    struct mu_native_config c = mu_native_config_defaults();

    memset(&division, 0, sizeof(division));
    division.parts = parts;
    division.member_count = members;
    for (uint32_t i = 0; i < members && i < PARTS_MAX; i++) {
        parts[i] = (struct mu_avg_part){.owner = i, .elements = 4};
        division.first[i] = i;
        division.count[i] = 1;
        division.part_count++;
    }
    c.division = &division;
    c.position = position;
    c.got = got;
    return c;
}

static void begin(uint32_t members, uint32_t position)
{
    struct mu_native_config c = config(members, position);

    assert_int_equal(mu_native_init(&n, &c, at_ms(0)), 0);
}

/* Does what needs nobody else, until there is an event of that type (and message), or none. */
static bool find(enum mu_native_event_type type, enum mu_native_type said,
                 struct mu_native_event *ret)
{
    while (mu_native_next_event(&n, ret)) {
        if (ret->type == MU_NATIVE_EVENT_GIVE || ret->type == MU_NATIVE_EVENT_TELL) {
            mu_native_sent(&n, at_ms(0), ret->member);
        }
        if (ret->type == MU_NATIVE_EVENT_SUM && type != MU_NATIVE_EVENT_SUM) {
            mu_native_summed(&n, at_ms(0), ret->sum, ret->part, true);
        }
        if (ret->type == MU_NATIVE_EVENT_HASH && type != MU_NATIVE_EVENT_HASH) {
            mu_native_hashed(&n, at_ms(0), ret->sum, digest_a);
        }
        if (ret->type == type && (said == 0 || ret->msg->type == said)) {
            return true;
        }
    }
    return false;
}

static struct mu_native_event expect(enum mu_native_event_type type, enum mu_native_type said)
{
    struct mu_native_event e;

    assert_true(find(type, said, &e));
    return e;
}

static void expect_no(enum mu_native_event_type type, enum mu_native_type said)
{
    struct mu_native_event e;

    assert_false(find(type, said, &e));
}

static void drain(void)
{
    expect_no((enum mu_native_event_type)99, (enum mu_native_type)0);
}

static void hear(uint32_t from, struct mu_native_msg msg)
{
    mu_native_received(&n, at_ms(1), from, &msg);
}

static struct mu_native_msg have(uint32_t shard, uint64_t members)
{
    struct mu_native_msg m = {.type = MU_NATIVE_HAVE, .shard = shard, .set.members = members};

    for (uint32_t i = 0; i < 64; i++) {
        m.set.weights[i] = (members >> i & 1) != 0 ? 1 : 0;
    }
    return m;
}

static struct mu_native_msg propose(uint32_t ballot, uint32_t sum, uint64_t members)
{
    struct mu_native_msg m = have(0, members);

    m.type = MU_NATIVE_PROPOSE;
    m.ballot = ballot;
    m.sum = sum;
    return m;
}

static struct mu_native_msg final(uint32_t ballot, uint32_t sum, uint64_t members,
                                  const uint8_t *digest)
{
    struct mu_native_msg m = propose(ballot, sum, members);

    m.type = MU_NATIVE_FINAL;
    memcpy(m.digest, digest, sizeof(m.digest));
    return m;
}

static void all_give(uint32_t members, uint32_t part)
{
    for (uint32_t i = 0; i < members; i++) {
        if (i != n.config.position) {
            assert_true(mu_native_contributed(&n, at_ms(1), i, part, 1, true));
        }
    }
}

/* --- the begin -------------------------------------------------------------------------------- */

static void what_cannot_begin(void **state)
{
    struct mu_native_config c = config(3, 3);

    (void)state;
    assert_int_equal(mu_native_init(&n, &c, at_ms(0)), MUSTER_EINVAL);
    c = config(MU_NATIVE_MEMBERS_MAX + 1, 0);
    assert_int_equal(mu_native_init(&n, &c, at_ms(0)), MUSTER_EINVAL);
    c = config(MU_NATIVE_MEMBERS_MAX, 0);
    assert_int_equal(mu_native_init(&n, &c, at_ms(0)), 0);
    c = config(2, 0);
    c.clients = 3;
    assert_int_equal(mu_native_init(&n, &c, at_ms(0)), MUSTER_EINVAL);
    c = config(2, 0);
    c.clients = 8;
    assert_int_equal(mu_native_init(&n, &c, at_ms(0)), MUSTER_EINVAL);
    c = config(2, 0);
    c.weight = -1;
    assert_int_equal(mu_native_init(&n, &c, at_ms(0)), MUSTER_EINVAL);
    c = config(2, 0);
    c.got = NULL;
    assert_int_equal(mu_native_init(&n, &c, at_ms(0)), MUSTER_EINVAL);
    c = config(2, 0);
    division.part_count = 0;
    assert_int_equal(mu_native_init(&n, &c, at_ms(0)), MUSTER_EINVAL);
}

static void who_owns_what(void **state)
{
    struct mu_native_config c = config(4, 1);

    (void)state;
    c.clients = 4;
    assert_int_equal(mu_native_init(&n, &c, at_ms(0)), 0);
    assert_int_equal(mu_native_owner(&n, 0, n.owners), 0);
    assert_int_equal(mu_native_owner(&n, 2, n.owners), 3); /* 2 is a client */
    assert_int_equal(mu_native_owner(&n, 3, 3), 0);        /* 3 is lost */
    assert_int_equal(mu_native_second(&n, 1), 3);
    assert_int_equal(mu_native_second(&n, 3), 0);
    c = config(1, 0);
    assert_int_equal(mu_native_init(&n, &c, at_ms(0)), 0);
    assert_int_equal(mu_native_second(&n, 0), 0);
}

/* To each owner its shard, and our own shard to a second owner too. */
static void everything_lies_at_two_places(void **state)
{
    uint64_t given[3] = {0};
    struct mu_native_event e;

    (void)state;
    begin(3, 1);
    while (mu_native_next_event(&n, &e)) {
        assert_int_equal(e.type, MU_NATIVE_EVENT_GIVE);
        given[e.member] |= UINT64_C(1) << e.part;
        mu_native_sent(&n, at_ms(0), e.member);
    }
    assert_int_equal(given[0], 1);
    assert_int_equal(given[2], 6);
}

static void one_part_at_a_time(void **state)
{
    struct mu_native_event e;
    uint32_t to_two = 0;

    (void)state;
    begin(3, 1);
    while (mu_native_next_event(&n, &e)) {
        to_two += e.type == MU_NATIVE_EVENT_GIVE && e.member == 2;
    }
    assert_int_equal(to_two, 1);
    mu_native_sent(&n, at_ms(0), 2);
    assert_int_equal(expect(MU_NATIVE_EVENT_GIVE, (enum mu_native_type)0).member, 2);
}

static void an_owner_tells_when_it_has_all(void **state)
{
    struct mu_native_event e;

    (void)state;
    begin(3, 1);
    assert_true(mu_native_contributed(&n, at_ms(1), 0, 1, 1, true));
    expect_no(MU_NATIVE_EVENT_SEND, MU_NATIVE_HAVE);
    assert_true(mu_native_contributed(&n, at_ms(1), 2, 1, 1, true));
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_HAVE);
    assert_true(e.member == 0 && e.msg->shard == 1 && e.msg->set.members == 7);
    /* As a second owner of the shard of 0. */
    assert_true(mu_native_contributed(&n, at_ms(1), 0, 0, 1, true));
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_HAVE);
    assert_true(e.msg->shard == 0 && e.msg->set.members == 3);
}

static void or_when_time_is_short(void **state)
{
    struct mu_native_event e;

    (void)state;
    begin(3, 1);
    drain();
    mu_native_tick(&n, at_ms(15000));
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_HAVE);
    assert_true(e.msg->shard == 1 && e.msg->set.members == 2);
    assert_true(mu_native_contributed(&n, at_ms(15001), 0, 1, 1, true));
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_HAVE);
    assert_true(e.msg->set.members == 3);
}

/* --- who breaks the rules --------------------------------------------------------------------- */

static void expect_cut(uint32_t member)
{
    assert_int_equal(expect(MU_NATIVE_EVENT_CUT, (enum mu_native_type)0).member, member);
    assert_true((n.gone >> member & 1) != 0);
}

static void bad_parts_are_cut(void **state)
{
    (void)state;
    begin(5, 1);
    assert_true(mu_native_contributed(&n, at_ms(1), 0, 1, 1, true));
    assert_false(mu_native_contributed(&n, at_ms(1), 0, 1, 1, true)); /* again: ignored */
    expect_no(MU_NATIVE_EVENT_CUT, (enum mu_native_type)0);
    assert_false(mu_native_contributed(&n, at_ms(1), 0, 0, 2, true)); /* another weight */
    expect_cut(0);
    begin(5, 1);
    assert_false(mu_native_contributed(&n, at_ms(1), 2, 1, 1, false));
    expect_cut(2);
    assert_false(mu_native_contributed(&n, at_ms(1), 3, 99, 1, true));
    expect_cut(3);
    begin(5, 1);
    assert_false(mu_native_averaged(&n, at_ms(1), 4, 0, 99, true));
    expect_cut(4);
    begin(5, 1);
    assert_false(mu_native_averaged(&n, at_ms(1), 4, 0, 3, false));
    expect_cut(4);
}

static void messages_out_of_place_are_cut(void **state)
{
    (void)state;
    begin(5, 1);
    hear(2, (struct mu_native_msg){.type = MU_NATIVE_HELLO});
    expect_cut(2);
    hear(3, (struct mu_native_msg){.type = MU_NATIVE_PREPARE, .ballot = 9}); /* that of 4 */
    expect_cut(3);
    begin(5, 1);
    hear(4, (struct mu_native_msg){.type = MU_NATIVE_PREPARE, .ballot = MU_NATIVE_BALLOT_MAX + 1});
    expect_cut(4);
    begin(5, 1);
    hear(0, propose(0, 0, 0)); /* of nobody */
    expect_cut(0);
    begin(5, 1);
    hear(0, propose(0, 0, 31)); /* of whom we, an owner, have nothing */
    expect_cut(0);
    begin(5, 1);
    hear(0, (struct mu_native_msg){.type = MU_NATIVE_ASSIGN, .ballot = 0, .mask = 32});
    expect_cut(0);
    begin(5, 1);
    hear(3, (struct mu_native_msg){.type = MU_NATIVE_WANT, .mask = 32});
    expect_cut(3);
}

/* --- ballots ---------------------------------------------------------------------------------- */

static void a_later_ballot_binds(void **state)
{
    struct mu_native_event e;

    (void)state;
    begin(3, 1);
    hear(2, (struct mu_native_msg){.type = MU_NATIVE_PREPARE, .ballot = 5});
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_PROMISE);
    assert_true(e.member == 2 && e.msg->ballot == 5 && !e.msg->accepted);
    hear(0, (struct mu_native_msg){.type = MU_NATIVE_PREPARE, .ballot = 3});
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_NEWER);
    assert_true(e.member == 0 && e.msg->ballot == 5);
    all_give(3, 1);
    hear(0, propose(0, 0, 7));
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_NEWER);
    assert_false(n.proposed);
}

/* We accept, and tell a later coordinator what. */
static void accept_sum(void)
{
    begin(3, 1);
    all_give(3, 1);
    drain();
    hear(0, propose(0, 0, 7));
    assert_true(mu_native_averaged(&n, at_ms(1), 0, 0, 0, true));
    assert_true(mu_native_averaged(&n, at_ms(1), 2, 0, 2, true));
}

static void what_was_accepted_is_told(void **state)
{
    struct mu_native_event e;

    (void)state;
    accept_sum();
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_ACCEPT);
    assert_memory_equal(e.msg->digest, digest_a, sizeof(digest_a));
    hear(2, (struct mu_native_msg){.type = MU_NATIVE_PREPARE, .ballot = 2});
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_PROMISE);
    assert_true(e.msg->accepted && e.msg->whole && e.msg->accepted_at == 0 && e.msg->sum == 0 &&
                e.msg->set.members == 7);
    assert_memory_equal(e.msg->digest, digest_a, sizeof(digest_a));
}

static void nothing_is_accepted_after_a_promise(void **state)
{
    (void)state;
    begin(3, 1);
    all_give(3, 1);
    hear(0, propose(0, 0, 7));
    hear(2, (struct mu_native_msg){.type = MU_NATIVE_PREPARE, .ballot = 2});
    assert_true(mu_native_averaged(&n, at_ms(1), 0, 0, 0, true));
    assert_true(mu_native_averaged(&n, at_ms(1), 2, 0, 2, true));
    expect_no(MU_NATIVE_EVENT_SEND, MU_NATIVE_ACCEPT);
    assert_false(n.accepted);
}

static void averages_of_another_sum(void **state)
{
    (void)state;
    begin(3, 1);
    all_give(3, 1);
    /* Before its proposal: kept. Older ones: not. */
    assert_true(mu_native_averaged(&n, at_ms(1), 2, 3, 2, true));
    assert_false(mu_native_averaged(&n, at_ms(1), 0, 0, 0, true));
    hear(0, propose(3, 3, 7));
    assert_false(mu_native_averaged(&n, at_ms(1), 2, 2, 2, true));
    assert_true(mu_native_averaged(&n, at_ms(1), 0, 3, 0, true));
    assert_int_equal(expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_ACCEPT).msg->sum, 3);
    /* A newer sum shows that the old one was not chosen. */
    assert_true(mu_native_averaged(&n, at_ms(1), 2, 5, 2, true));
    assert_int_equal(expect(MU_NATIVE_EVENT_FORGET, (enum mu_native_type)0).sum, 5);
    assert_false(n.accepted);
}

static struct mu_native_msg promise(uint32_t ballot, const uint8_t *digest, uint32_t accepted_at)
{
    struct mu_native_msg m = {.type = MU_NATIVE_PROMISE, .ballot = ballot};

    if (digest != NULL) {
        m = propose(ballot, 0, 7);
        m.type = MU_NATIVE_PROMISE;
        m.proposed = m.accepted = m.whole = true;
        m.proposed_at = m.accepted_at = accepted_at;
        memcpy(m.digest, digest, sizeof(m.digest));
    }
    return m;
}

static void a_coordinator_goes_on_with_what_was_accepted(void **state)
{
    struct mu_native_event e;

    (void)state;
    begin(3, 1);
    mu_native_lost(&n, at_ms(1), 0);
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_PREPARE);
    assert_true(e.member == 2 && e.msg->ballot == 1);
    hear(2, promise(1, digest_a, 0));
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_WANT);
    assert_true(e.member == 2 && e.msg->sum == 0 && e.msg->mask == 7);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(mu_native_averaged(&n, at_ms(1), 2, 0, i, true));
    }
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_PROPOSE);
    assert_true(e.msg->bound && e.msg->sum == 0 && e.msg->set.members == 7);
    assert_memory_equal(e.msg->digest, digest_a, sizeof(digest_a));
}

static void and_is_free_if_nothing_was(void **state)
{
    struct mu_native_event e;

    (void)state;
    begin(3, 1);
    mu_native_lost(&n, at_ms(1), 0);
    drain();
    hear(2, promise(1, NULL, 0));
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_ASSIGN);
    assert_true(e.msg->mask == 6);
    assert_int_equal(mu_native_owner(&n, 0, n.owners), 1);
    assert_true(mu_native_contributed(&n, at_ms(1), 2, 0, 1, true));
    assert_true(mu_native_contributed(&n, at_ms(1), 2, 1, 1, true));
    drain();
    hear(2, have(2, 6));
    hear(2, have(1, 2)); /* it is our second owner */
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_PROPOSE);
    assert_true(!e.msg->bound && e.msg->sum == 1 && e.msg->set.members == 6);
}

/* Of two digests of one ballot, either may have been finalised: nobody can know which. */
static void two_digests_that_may_both_be_chosen(void **state)
{
    struct mu_native_event e;

    (void)state;
    begin(5, 1);
    mu_native_lost(&n, at_ms(1), 0);
    mu_native_lost(&n, at_ms(1), 4);
    drain();
    hear(2, promise(1, digest_a, 0));
    hear(3, promise(1, digest_b, 0));
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_FAIL);
    assert_true(e.msg->why == MU_NATIVE_WHY_DIGEST && e.msg->one == 2 && e.msg->other == 3);
    drain();
    assert_int_equal(mu_native_status(&n), MUSTER_ECORRUPT);
    assert_non_null(strstr(mu_native_text(&n), "members 2 and 3"));
}

/* We are the first coordinator of three that hold what they should. */
static void lead_to_proposal(void)
{
    begin(3, 0);
    drain();
    all_give(3, 0);
    hear(1, have(1, 7));
    hear(1, have(0, 1));
    hear(2, have(2, 7));
    hear(2, have(1, 2));
    assert_true(mu_native_contributed(&n, at_ms(1), 2, 2, 1, true));
}

static struct mu_native_msg accept(uint32_t ballot, uint32_t sum, const uint8_t *digest)
{
    struct mu_native_msg m = {.type = MU_NATIVE_ACCEPT, .ballot = ballot, .sum = sum};

    memcpy(m.digest, digest, sizeof(m.digest));
    return m;
}

static void a_quorum_decides(void **state)
{
    struct mu_native_event e;

    (void)state;
    lead_to_proposal();
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_PROPOSE);
    assert_true(e.msg->ballot == 0 && e.msg->sum == 0 && e.msg->set.members == 7);
    drain();
    hear(1, accept(0, 0, digest_b));
    expect_no(MU_NATIVE_EVENT_SEND, MU_NATIVE_FINAL);
    hear(1, accept(0, 0, digest_b)); /* said twice, counted once */
    expect_no(MU_NATIVE_EVENT_SEND, MU_NATIVE_FINAL);
    hear(2, accept(0, 0, digest_b));
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_FINAL);
    assert_memory_equal(e.msg->digest, digest_b, sizeof(digest_b));
}

/* A split is repeated once with a new sum, and then is an error that names both sides. */
static void a_split_is_repeated_once(void **state)
{
    struct mu_native_event e;

    (void)state;
    lead_to_proposal();
    assert_true(mu_native_averaged(&n, at_ms(1), 1, 0, 1, true));
    assert_true(mu_native_averaged(&n, at_ms(1), 2, 0, 2, true));
    drain();
    assert_true(n.accepted);
    mu_native_lost(&n, at_ms(1), 2);
    hear(1, accept(0, 0, digest_b));
    if (n.lead == MU_NATIVE_LEAD_PROPOSED) {
        fail();
    }
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_PREPARE);
    assert_int_equal(e.msg->ballot, 3);
    hear(1, promise(3, digest_b, 0));
    drain();
    assert_true(mu_native_contributed(&n, at_ms(1), 1, 2, 1, true));
    drain();
    hear(1, have(1, 7));
    hear(1, have(0, 1));
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_PROPOSE);
    assert_true(!e.msg->bound && e.msg->sum == 3);
    assert_true(mu_native_averaged(&n, at_ms(1), 1, 3, 1, true));
    drain();
    hear(1, accept(3, 3, digest_b));
    e = expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_FAIL);
    assert_true(e.msg->one == 0 && e.msg->other == 1);
}

/* --- the end ---------------------------------------------------------------------------------- */

static void other_bits_are_fetched_again_once(void **state)
{
    struct mu_native_event e;

    (void)state;
    accept_sum();
    drain();
    hear(0, final(0, 0, 7, digest_b));
    assert_int_equal(expect(MU_NATIVE_EVENT_SEND, MU_NATIVE_WANT).msg->mask, 7);
    assert_int_equal(expect(MU_NATIVE_EVENT_FORGET, (enum mu_native_type)0).sum, MU_NATIVE_NO_SUM);
    for (uint32_t i = 0; i < 3; i++) {
        assert_true(mu_native_averaged(&n, at_ms(1), 0, 0, i, true));
    }
    e = expect(MU_NATIVE_EVENT_END, (enum mu_native_type)0);
    assert_int_equal(mu_native_status(&n), MUSTER_ECORRUPT);
    assert_non_null(strstr(mu_native_text(&n), "members 1 and 0"));
    (void)e;
}

static void final_places(void **state)
{
    (void)state;
    accept_sum();
    drain();
    hear(0, final(0, 0, 7, digest_a));
    assert_int_equal(expect(MU_NATIVE_EVENT_PLACE, (enum mu_native_type)0).sum, 0);
    (void)expect(MU_NATIVE_EVENT_END, (enum mu_native_type)0);
    assert_int_equal(mu_native_status(&n), 0);
    assert_int_equal(n.set.members, 7);
    expect_no(MU_NATIVE_EVENT_RELEASE, (enum mu_native_type)0);
    /* Somebody asks for what it lacks. */
    hear(2, (struct mu_native_msg){.type = MU_NATIVE_WANT, .sum = 0, .mask = 1});
    assert_int_equal(expect(MU_NATIVE_EVENT_TELL, (enum mu_native_type)0).part, 0);
    /* The coordinator has lost 2; we have not, and stay for it. */
    hear(0, (struct mu_native_msg){.type = MU_NATIVE_CLOSE, .mask = 3});
    expect_no(MU_NATIVE_EVENT_RELEASE, (enum mu_native_type)0);
    mu_native_lost(&n, at_ms(2), 2);
    (void)expect(MU_NATIVE_EVENT_RELEASE, (enum mu_native_type)0);
}

static void half_decides_only_with_the_first(void **state)
{
    (void)state;
    begin(2, 1);
    mu_native_lost(&n, at_ms(1), 0);
    (void)expect(MU_NATIVE_EVENT_END, (enum mu_native_type)0);
    assert_int_equal(mu_native_status(&n), MUSTER_ECONN);
    begin(2, 0);
    drain();
    mu_native_lost(&n, at_ms(1), 1);
    (void)expect(MU_NATIVE_EVENT_PLACE, (enum mu_native_type)0);
    assert_int_equal(n.set.members, 1);
}

static void clients_do_not_count(void **state)
{
    struct mu_native_config c = config(4, 0);

    (void)state;
    c.clients = 12;
    assert_int_equal(mu_native_init(&n, &c, at_ms(0)), 0);
    drain();
    mu_native_lost(&n, at_ms(1), 2);
    mu_native_lost(&n, at_ms(1), 3);
    drain();
    assert_false(n.ended);
    hear(2, (struct mu_native_msg){.type = MU_NATIVE_PROMISE});
    c = config(4, 2);
    c.clients = 12;
    assert_int_equal(mu_native_init(&n, &c, at_ms(0)), 0);
    mu_native_tick(&n, at_ms(250000)); /* has no patience, as it cannot take over */
    expect_no(MU_NATIVE_EVENT_SEND, MU_NATIVE_PREPARE);
}

static void no_weight_at_all(void **state)
{
    struct mu_native_config c = config(1, 0);

    (void)state;
    c.weight = 0;
    assert_int_equal(mu_native_init(&n, &c, at_ms(0)), 0);
    drain();
    assert_int_equal(mu_native_status(&n), MUSTER_EINVAL);
    assert_non_null(strstr(mu_native_text(&n), "weight"));
}

static void an_average_that_is_not_finite(void **state)
{
    struct mu_native_event e;

    (void)state;
    begin(1, 0);
    e = expect(MU_NATIVE_EVENT_SUM, (enum mu_native_type)0);
    mu_native_summed(&n, at_ms(1), e.sum, e.part, false);
    drain();
    assert_int_equal(mu_native_status(&n), MUSTER_EINVAL);
    assert_non_null(strstr(mu_native_text(&n), "part 0"));
}

static void a_round_ends_in_time(void **state)
{
    (void)state;
    begin(3, 1);
    drain();
    mu_native_tick(&n, at_ms(300000));
    (void)expect(MU_NATIVE_EVENT_END, (enum mu_native_type)0);
    assert_int_equal(mu_native_status(&n), MUSTER_ETIMEDOUT);
    begin(3, 1);
    mu_native_cancel(&n, at_ms(1));
    (void)expect(MU_NATIVE_EVENT_RELEASE, (enum mu_native_type)0);
    assert_int_equal(mu_native_status(&n), MUSTER_ECANCELED);
    assert_int_equal(mu_native_deadline(&n).ns, UINT64_MAX);
}

static void only_equals_meet(void **state)
{
    struct mu_native_schema s = {.part_bytes = 1 << 19, .block = 64};
    struct mu_native_hello a = {.version = 1, .position = 0, .members = 3};
    struct mu_native_hello b = a;
    uint8_t other[MU_NATIVE_SCHEMA_LEN];

    (void)state;
    b.position = 1;
    mu_native_schema_hash(&s, a.schema);
    mu_native_schema_hash(&s, b.schema);
    assert_null(mu_native_hello_check(&a, &b));
    for (int i = 0; i < 5; i++) {
        struct mu_native_schema t = s;

        t.part_bytes += i == 0;
        t.block += i == 1;
        t.parts_codec = i == 2;
        t.averages_codec = i == 3;
        t.layout[0] = i == 4;
        mu_native_schema_hash(&t, other);
        assert_memory_not_equal(other, a.schema, sizeof(other));
    }
    memcpy(b.schema, other, sizeof(other));
    assert_string_equal(mu_native_hello_check(&a, &b), "another layout, codec or part size");
    b = a;
    assert_string_equal(mu_native_hello_check(&a, &b), "another list of members");
    b.round++;
    assert_string_equal(mu_native_hello_check(&a, &b), "another round");
    b.group_id[3]++;
    assert_string_equal(mu_native_hello_check(&a, &b), "another group");
    b.version++;
    assert_string_equal(mu_native_hello_check(&a, &b), "another version of the protocol");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_begin),
        cmocka_unit_test(who_owns_what),
        cmocka_unit_test(everything_lies_at_two_places),
        cmocka_unit_test(one_part_at_a_time),
        cmocka_unit_test(an_owner_tells_when_it_has_all),
        cmocka_unit_test(or_when_time_is_short),
        cmocka_unit_test(bad_parts_are_cut),
        cmocka_unit_test(messages_out_of_place_are_cut),
        cmocka_unit_test(a_later_ballot_binds),
        cmocka_unit_test(what_was_accepted_is_told),
        cmocka_unit_test(nothing_is_accepted_after_a_promise),
        cmocka_unit_test(averages_of_another_sum),
        cmocka_unit_test(a_coordinator_goes_on_with_what_was_accepted),
        cmocka_unit_test(and_is_free_if_nothing_was),
        cmocka_unit_test(two_digests_that_may_both_be_chosen),
        cmocka_unit_test(a_quorum_decides),
        cmocka_unit_test(a_split_is_repeated_once),
        cmocka_unit_test(other_bits_are_fetched_again_once),
        cmocka_unit_test(final_places),
        cmocka_unit_test(half_decides_only_with_the_first),
        cmocka_unit_test(clients_do_not_count),
        cmocka_unit_test(no_weight_at_all),
        cmocka_unit_test(an_average_that_is_not_finite),
        cmocka_unit_test(a_round_ends_in_time),
        cmocka_unit_test(only_equals_meet),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

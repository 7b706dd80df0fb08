/* One round of averaging at one member: its order, its limits, and what others can do to it. */
#include "unit.h"

#include "proto/average/reduce.h"

#define GROUP "group-of-twenty-byte"

static struct mu_avg_division division;
static struct mu_reduce r;

static struct mu_now at_ms(uint64_t ms)
{
    return (struct mu_now){{(1000 + ms) * MU_NS_PER_MS}, {0}};
}

/* Three members with two parts of two values each; we are the second. */
static void begin(uint32_t window)
{
    struct mu_avg_tensor t = {12, MU_DTYPE_F32, MU_DTYPE_F32, MU_HM_NONE};
    uint64_t fractions[] = {4, 4, 4};
    struct mu_reduce_config c = mu_reduce_config_defaults();

    assert_int_equal(mu_avg_divide_vector(&division, &t, 1, fractions, 3, 8), 0);
    c.division = &division;
    c.group_id = MU_SPAN_LIT(GROUP);
    c.position = 1;
    c.window = window;
    assert_int_equal(mu_reduce_init(&r, &c, at_ms(0)), 0);
}

static struct mu_avg_data part(bool first)
{
    struct mu_avg_data data = {.weight = 2, .tensor = true, .dtype = MU_DTYPE_F32, .elements = 2};

    if (first) {
        data.code = MU_AVG_PART_FOR_AVERAGING;
        data.group_id = MU_SPAN_LIT(GROUP);
    }
    return data;
}

static void expect(enum mu_reduce_event_type type, uint32_t member, uint32_t number)
{
    struct mu_reduce_event e;

    assert_true(mu_reduce_next_event(&r, &e));
    assert_int_equal(e.type, type);
    assert_int_equal(e.member, member);
    assert_int_equal(e.part, number);
}

static void expect_nothing(void)
{
    struct mu_reduce_event e;

    assert_false(mu_reduce_next_event(&r, &e));
}

/* What is said at the begin: our own parts, and a call to each of the others. */
static void expect_begin(void)
{
    expect(MU_REDUCE_OWN, 1, 2);
    expect(MU_REDUCE_OWN, 1, 3);
    expect(MU_REDUCE_OPEN, 0, 0);
    expect(MU_REDUCE_SEND, 0, 0);
    expect(MU_REDUCE_OPEN, 2, 0);
    expect(MU_REDUCE_SEND, 2, 4);
    expect_nothing();
}

static void open_call(uint32_t member, uint64_t ms, uint32_t want)
{
    struct mu_avg_data data = part(true);
    enum mu_avg_code code;
    uint32_t number;

    assert_true(mu_reduce_opened(&r, at_ms(ms), member, &data, &code));
    assert_int_equal(mu_reduce_part(&r, at_ms(ms), member, &data, true, &number), 1);
    assert_int_equal(number, want);
}

static void test_round(void **state)
{
    struct mu_avg_data result = {
        .code = MU_AVG_AVERAGED_PART, .tensor = true, .dtype = MU_DTYPE_F32, .elements = 2};
    struct mu_avg_data data = part(false);
    struct mu_reduce_event e;
    uint32_t number;

    (void)state;
    begin(8);
    expect_begin();
    mu_reduce_sent(&r, at_ms(1), 0);
    assert_true(mu_reduce_next_event(&r, &e));
    assert_true(e.type == MU_REDUCE_SEND && e.part == 1 && !e.first && e.last);
    open_call(0, 2, 2);
    expect_nothing();
    open_call(2, 3, 2);
    assert_true(mu_reduce_next_event(&r, &e));
    assert_true(e.type == MU_REDUCE_DONE && e.part == 2 && e.weights == 5);
    assert_true(r.included[0] && r.included[1] && r.included[2]);
    expect_nothing();
    for (uint32_t member = 0; member <= 2; member += 2) {
        assert_int_equal(mu_reduce_part(&r, at_ms(4), member, &data, true, &number), 1);
        assert_int_equal(number, 3);
        mu_reduce_ended(&r, at_ms(4), member);
    }
    expect(MU_REDUCE_DONE, 1, 3);
    expect(MU_REDUCE_FINISH, 0, 0);
    expect(MU_REDUCE_FINISH, 2, 0);
    expect_nothing();
    mu_reduce_sent(&r, at_ms(5), 0);
    mu_reduce_sent(&r, at_ms(5), 2);
    expect(MU_REDUCE_SEND, 2, 5);
    mu_reduce_sent(&r, at_ms(5), 2);
    for (uint32_t i = 0; i < 4; i++) {
        assert_int_equal(mu_reduce_result(&r, at_ms(6), i < 2 ? 0 : 2, &result, true, &number), 1);
        assert_int_equal(number, i < 2 ? i : i + 2);
    }
    expect(MU_REDUCE_END, 0, 0);
    expect_nothing();
    assert_int_equal(mu_reduce_status(&r), 0);
    assert_int_equal(mu_reduce_parts_local(&r), 0);
    mu_avg_division_fini(&division);
}

/* A member may be `window` parts ahead; the rest is held back, which costs it no time. */
static void test_window(void **state)
{
    struct mu_avg_data data = part(false);
    uint32_t number;

    (void)state;
    begin(1);
    expect(MU_REDUCE_OWN, 1, 2);
    expect(MU_REDUCE_OPEN, 0, 0);
    expect(MU_REDUCE_SEND, 0, 0);
    expect(MU_REDUCE_OPEN, 2, 0);
    expect(MU_REDUCE_SEND, 2, 4);
    open_call(0, 10, 2);
    assert_int_equal(mu_reduce_part(&r, at_ms(11), 0, &data, true, &number), MUSTER_EAGAIN);
    /* Member 2 is late, and is banned; member 0 is not. */
    assert_int_equal(mu_reduce_deadline(&r).ns, at_ms(15000).mono.ns);
    mu_reduce_tick(&r, at_ms(15000));
    assert_int_equal(r.members[2].in, MU_REDUCE_IN_BANNED);
    assert_int_equal(r.members[0].in, MU_REDUCE_IN_OPEN);
    expect(MU_REDUCE_DONE, 1, 2);
    assert_false(r.included[2]);
    expect(MU_REDUCE_OWN, 1, 3);
    expect(MU_REDUCE_READ, 0, 0);
    assert_int_equal(mu_reduce_part(&r, at_ms(15001), 0, &data, true, &number), 1);
    expect(MU_REDUCE_DONE, 1, 3);
    mu_avg_division_fini(&division);
}

/* Each of these costs the member a ban, at once, and the others nothing. */
static void test_hostile_senders(void **state)
{
    static const struct {
        double weight;
        uint64_t elements;
        enum mu_avg_code code;
        bool tensor, good;
    } cases[] = {
        {2, 2, MU_AVG_NO_CODE, true, false}, /* not finite */
        {2, 1, MU_AVG_NO_CODE, true, true},  /* one value, which could be broadcast */
        {2, 3, MU_AVG_NO_CODE, true, true},
        {2, 2, MU_AVG_AVERAGED_PART, true, true}, /* not a part */
        {2, 0, MU_AVG_NO_CODE, false, true},      /* nothing at all */
        {3, 2, MU_AVG_NO_CODE, true, true},       /* another weight than before */
        {1e300, 2, MU_AVG_NO_CODE, true, true},
        {-1, 2, MU_AVG_NO_CODE, true, true},
        {__builtin_nan(""), 2, MU_AVG_NO_CODE, true, true},
        {__builtin_inf(), 2, MU_AVG_NO_CODE, true, true},
    };

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct mu_avg_data data = part(false);
        struct mu_reduce_event e;
        uint32_t number;

        begin(8);
        expect_begin();
        open_call(0, 1, 2);
        open_call(2, 1, 2);
        expect(MU_REDUCE_DONE, 1, 2);
        data.weight = cases[i].weight;
        data.elements = cases[i].elements;
        data.code = cases[i].code;
        data.tensor = cases[i].tensor;
        assert_int_equal(mu_reduce_part(&r, at_ms(2), 0, &data, cases[i].good, &number), 0);
        assert_true(mu_reduce_next_event(&r, &e));
        assert_true(e.type == MU_REDUCE_BAN && e.member == 0 && e.code == MU_AVG_INTERNAL_ERROR);
        /* Nothing of it is taken any more, and the others go on without it. */
        data = part(false);
        assert_int_equal(mu_reduce_part(&r, at_ms(2), 0, &data, true, &number), 0);
        assert_int_equal(mu_reduce_part(&r, at_ms(2), 2, &data, true, &number), 1);
        expect(MU_REDUCE_DONE, 1, 3);
        assert_false(r.included[0]);
        mu_avg_division_fini(&division);
    }
}

static void test_calls(void **state)
{
    struct mu_avg_data data = part(true);
    enum mu_avg_code code;
    uint32_t number;

    (void)state;
    begin(8);
    expect_begin();
    data.group_id = MU_SPAN_LIT("group-of-twenty-bytesPHASE_P");
    assert_false(mu_reduce_opened(&r, at_ms(0), 0, &data, &code));
    assert_int_equal(code, MU_AVG_BAD_GROUP_ID);
    data = part(false);
    assert_false(mu_reduce_opened(&r, at_ms(0), 0, &data, &code));
    assert_int_equal(code, MU_AVG_INTERNAL_ERROR);
    assert_int_equal(r.members[0].in, MU_REDUCE_IN_BANNED);
    open_call(2, 0, 2);
    expect(MU_REDUCE_DONE, 1, 2);
    data = part(true);
    assert_false(mu_reduce_opened(&r, at_ms(0), 2, &data, &code));
    expect(MU_REDUCE_DONE, 1, 3);
    expect(MU_REDUCE_BAN, 2, 0);
    assert_int_equal(mu_reduce_part(&r, at_ms(0), 2, &data, true, &number), 0);
    /* Nobody can send as us. */
    assert_false(mu_reduce_opened(&r, at_ms(0), 1, &data, &code));
    assert_int_equal(r.members[1].in, MU_REDUCE_IN_DELIVERED);
    mu_reduce_cancel(&r, at_ms(1));
    assert_false(mu_reduce_opened(&r, at_ms(1), 0, &data, &code));
    assert_int_equal(code, MU_AVG_CANCELLED);
    mu_avg_division_fini(&division);
}

/* The two phases of PowerSGD are two rounds, told apart by the group id. */
static void test_phases(void **state)
{
    struct mu_avg_data data = part(true);
    struct mu_reduce_config c;
    enum mu_avg_code code;

    (void)state;
    begin(8);
    c = r.config;
    c.group_id = MU_SPAN_LIT(GROUP MU_AVG_PHASE_P);
    assert_int_equal(mu_reduce_init(&r, &c, at_ms(0)), 0);
    assert_false(mu_reduce_opened(&r, at_ms(0), 0, &data, &code));
    assert_int_equal(code, MU_AVG_BAD_GROUP_ID);
    data.group_id = MU_SPAN_LIT(GROUP MU_AVG_PHASE_Q);
    assert_false(mu_reduce_opened(&r, at_ms(0), 0, &data, &code));
    assert_int_equal(code, MU_AVG_BAD_GROUP_ID);
    data.group_id = MU_SPAN_LIT(GROUP MU_AVG_PHASE_P);
    assert_true(mu_reduce_opened(&r, at_ms(0), 0, &data, &code));
    mu_avg_division_fini(&division);
}

/* One part more than there are. */
static void test_surplus(void **state)
{
    struct mu_avg_data data = part(false);
    uint32_t number;

    (void)state;
    begin(8);
    expect_begin();
    open_call(0, 1, 2);
    assert_int_equal(mu_reduce_part(&r, at_ms(2), 0, &data, true, &number), 1);
    assert_int_equal(mu_reduce_part(&r, at_ms(3), 0, &data, true, &number), 0);
    expect(MU_REDUCE_BAN, 0, 0);
    mu_avg_division_fini(&division);
}

/* A sender that stops after any of its messages, and one that leaves. */
static void test_silent_senders(void **state)
{
    (void)state;
    begin(8);
    expect_begin();
    open_call(0, 100, 2);
    open_call(2, 14000, 2);
    expect(MU_REDUCE_DONE, 1, 2);
    mu_reduce_tick(&r, at_ms(15099));
    assert_int_equal(r.members[0].in, MU_REDUCE_IN_OPEN);
    mu_reduce_tick(&r, at_ms(15100));
    assert_int_equal(r.members[0].in, MU_REDUCE_IN_BANNED);
    expect(MU_REDUCE_BAN, 0, 0);
    mu_reduce_ended(&r, at_ms(15101), 2);
    expect(MU_REDUCE_DONE, 1, 3);
    assert_true(!r.included[0] && r.included[1] && !r.included[2]);
    mu_avg_division_fini(&division);
}

/* Reducers that are silent, refuse, send too much, too early or the wrong thing are cut. */
static void test_hostile_reducers(void **state)
{
    struct mu_avg_data result = {
        .code = MU_AVG_AVERAGED_PART, .tensor = true, .dtype = MU_DTYPE_F32, .elements = 2};
    struct mu_avg_data refusal = {.code = MU_AVG_INTERNAL_ERROR};
    uint32_t number;

    (void)state;
    begin(8);
    expect_begin();
    mu_reduce_sent(&r, at_ms(0), 0);
    assert_int_equal(mu_reduce_result(&r, at_ms(1), 0, &refusal, true, &number), 0);
    expect(MU_REDUCE_CUT, 0, 0);
    assert_int_equal(mu_reduce_result(&r, at_ms(1), 0, &result, true, &number), 0);
    mu_reduce_tick(&r, at_ms(14000));
    /* Member 2 answers a part that it was not sent yet. */
    assert_int_equal(mu_reduce_result(&r, at_ms(14001), 2, &result, true, &number), 1);
    assert_int_equal(mu_reduce_result(&r, at_ms(14001), 2, &result, true, &number), 0);
    expect(MU_REDUCE_CUT, 2, 5);
    mu_avg_division_fini(&division);

    begin(8);
    expect_begin();
    result.elements = 1;
    assert_int_equal(mu_reduce_result(&r, at_ms(1), 0, &result, true, &number), 0);
    expect(MU_REDUCE_CUT, 0, 0);
    result.elements = 2;
    assert_int_equal(mu_reduce_result(&r, at_ms(1), 2, &result, false, &number), 0);
    expect(MU_REDUCE_CUT, 2, 4);
    mu_avg_division_fini(&division);

    begin(8);
    expect_begin();
    mu_reduce_tick(&r, at_ms(29999));
    assert_int_equal(r.members[0].out, MU_REDUCE_OUT_OPEN);
    mu_reduce_tick(&r, at_ms(30000));
    assert_int_equal(r.members[0].out, MU_REDUCE_OUT_LOST);
    assert_int_equal(r.members[2].out, MU_REDUCE_OUT_LOST);
    expect(MU_REDUCE_DONE, 1, 2);
    expect(MU_REDUCE_DONE, 1, 3);
    expect(MU_REDUCE_CUT, 0, 0);
    expect(MU_REDUCE_CUT, 2, 4);
    expect(MU_REDUCE_END, 0, 0);
    assert_int_equal(mu_reduce_status(&r), 0);
    assert_int_equal(mu_reduce_parts_local(&r), 4);
    mu_avg_division_fini(&division);
}

/* Reducers that answer just in time, again and again, are bounded by the whole. */
static void test_total(void **state)
{
    (void)state;
    begin(8);
    r.config.reducer_ms = 0;
    r.config.sender_ms = 0;
    expect_begin();
    open_call(0, 5, 2);
    assert_int_equal(mu_reduce_deadline(&r).ns, at_ms(60000).mono.ns);
    mu_reduce_tick(&r, at_ms(60000));
    expect(MU_REDUCE_BAN, 0, 0);
    expect(MU_REDUCE_CUT, 0, 0);
    expect(MU_REDUCE_CUT, 2, 4);
    expect(MU_REDUCE_END, 0, 0);
    assert_int_equal(mu_reduce_status(&r), MUSTER_ETIMEDOUT);
    assert_int_equal(mu_reduce_parts_local(&r), 6);
    mu_avg_division_fini(&division);
}

static void test_config(void **state)
{
    struct mu_avg_tensor t = {12, MU_DTYPE_F32, MU_DTYPE_F32, MU_HM_NONE};
    uint64_t fractions[] = {0, 12};
    struct mu_reduce_config c = mu_reduce_config_defaults();
    struct mu_reduce_event e;

    (void)state;
    assert_int_equal(mu_avg_divide_vector(&division, &t, 1, fractions, 2, 8), 0);
    c.division = &division;
    c.group_id = MU_SPAN_LIT(GROUP);
    c.position = 2;
    assert_int_equal(mu_reduce_init(&r, &c, at_ms(0)), MUSTER_EINVAL);
    c.position = 0;
    c.window = 0;
    assert_int_equal(mu_reduce_init(&r, &c, at_ms(0)), MUSTER_EINVAL);
    c.window = 1;
    c.weight = MU_AVG_WEIGHT_MAX * 2;
    assert_int_equal(mu_reduce_init(&r, &c, at_ms(0)), MUSTER_EINVAL);
    c.weight = 1;
    c.group_id.len = 0;
    assert_int_equal(mu_reduce_init(&r, &c, at_ms(0)), MUSTER_EINVAL);
    c.group_id = MU_SPAN_LIT(GROUP);
    /* A client reduces nothing and is owed nothing by anybody but its reducers. */
    assert_int_equal(mu_reduce_init(&r, &c, at_ms(0)), 0);
    expect(MU_REDUCE_OPEN, 1, 0);
    expect(MU_REDUCE_SEND, 1, 0);
    mu_reduce_cut_off(&r, at_ms(0), 1, "it is gone");
    assert_true(mu_reduce_next_event(&r, &e) && e.type == MU_REDUCE_END);
    assert_int_equal(mu_reduce_parts_local(&r), 6);
    mu_avg_division_fini(&division);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round),           cmocka_unit_test(test_window),
        cmocka_unit_test(test_hostile_senders), cmocka_unit_test(test_calls),
        cmocka_unit_test(test_silent_senders),  cmocka_unit_test(test_hostile_reducers),
        cmocka_unit_test(test_surplus),         cmocka_unit_test(test_phases),
        cmocka_unit_test(test_total),           cmocka_unit_test(test_config),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

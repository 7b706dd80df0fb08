/* Goal: an agent of PyTorch 1.13 that comes to a rendezvous of muster's nodes finds a state that it
 * can read; nobody else's state is touched. */
#include "unit.h"

#include "torch_requests.h"

#include "codec/rdzv/state.h"
#include "codec/text/base64.h"
#include "proto/store/torch_dialect.h"

#define KEY            "/torch.rendezvous.job7"
#define SENTINEL       "Y2FuaW1hZGFt" /* PyTorch's: there is no state */
#define CAS_1(k, a, b) rig_bytes("bsss", 1, k, a, b)

static char text[4096];

/* The text of a state of one complete round with these two nodes. */
static const char *make_state(enum mu_rdzv_dialect dialect, int64_t first_id, int64_t second_id)
{
    const int64_t ids[] = {first_id, second_id};
    struct mu_rdzv_state s;
    struct mu_buf bytes, out;

    mu_rdzv_state_init(&s);
    mu_buf_init(&bytes, sizeof(text));
    mu_buf_init(&out, sizeof(text) - 1);
    s.round = 3;
    s.complete = true;
    for (int64_t i = 0; i < 2; i++) {
        char addr[] = "node0";
        struct mu_rdzv_node node = {.addr = addr, .pid = 100 + i, .local_id = ids[i]};
        struct mu_rdzv_member *m;

        assert_int_equal(mu_rdzv_state_add(&s, &node, &m), 0);
        m->participant = true;
        m->rank = i;
        m->has_heartbeat = true;
        m->heartbeat.ns = UINT64_C(1700000000) * MU_NS_PER_S;
    }
    assert_int_equal(mu_rdzv_state_encode(&bytes, &s, dialect), 0);
    assert_int_equal(mu_base64_encode(&out, mu_buf_span(&bytes)), 0);
    memcpy(text, mu_buf_span(&out).data, mu_buf_span(&out).len);
    text[mu_buf_span(&out).len] = '\0';
    mu_rdzv_state_fini(&s);
    mu_buf_fini(&bytes);
    mu_buf_fini(&out);
    return text;
}

static void put_state(struct rig *r, const char *value)
{
    assert_int_equal(mu_ks_set(&r->ks, mu_span_str(KEY), mu_span_str(value), 0), 0);
}

/* What is there now: its dialect, and that it is still the same round with the same nodes. */
static enum mu_rdzv_dialect dialect_of(struct rig *r)
{
    enum mu_rdzv_dialect dialect;
    struct mu_rdzv_state s;
    struct mu_errmsg msg;
    struct mu_span value;
    struct mu_buf bytes;

    mu_rdzv_state_init(&s);
    mu_buf_init(&bytes, sizeof(text));
    assert_int_equal(mu_ks_get(&r->ks, mu_span_str(KEY), &value), 0);
    assert_int_equal(mu_base64_decode(&bytes, value), 0);
    assert_int_equal(mu_rdzv_state_decode(mu_buf_span(&bytes), &s, &dialect, &msg), 0);
    assert_int_equal(s.round, 3);
    assert_true(s.complete);
    assert_int_equal(s.member_count, 2);
    assert_int_equal(s.members[1].node.pid, 101);
    assert_int_equal(s.members[1].rank, 1);
    assert_true(s.members[1].has_heartbeat);
    mu_rdzv_state_fini(&s);
    mu_buf_fini(&bytes);
    return dialect;
}

static void test_torch_dialect_an_agent_of_1_13_finds_what_it_can_read(void **state)
{
    struct rig r;
    struct mu_span value;

    (void)state;
    rig_init(&r, RIG_WHOLE, 0);
    put_state(&r, make_state(MU_RDZV_DIALECT_2, MU_RDZV_OWN_ID, MU_RDZV_OWN_ID + 5));
    rig_say(&r, 0, CAS_1(KEY, "", SENTINEL)); /* the first that such an agent asks */
    assert_int_equal(dialect_of(&r), MU_RDZV_DIALECT_1_13);
    assert_int_equal(mu_ks_get(&r.ks, mu_span_str(KEY), &value), 0);
    (void)snprintf(text, sizeof(text), "%.*s", (int)value.len, (const char *)value.data);
    rig_expect(&r, 0, rig_bytes("s", text));
    rig_fini(&r);
}

static void test_torch_dialect_one_that_comes_before_the_first_state_can_read_it(void **state)
{
    struct rig r;

    (void)state;
    rig_init(&r, RIG_WHOLE, 0);
    rig_ask(&r, 0, CAS_1(KEY, "", SENTINEL), rig_bytes("s", SENTINEL));
    put_state(&r, make_state(MU_RDZV_DIALECT_2, MU_RDZV_OWN_ID, MU_RDZV_OWN_ID + 5));
    rig_say(&r, 0, GET_1(KEY));
    assert_int_equal(dialect_of(&r), MU_RDZV_DIALECT_1_13);
    put_state(&r, make_state(MU_RDZV_DIALECT_2_NAIVE, MU_RDZV_OWN_ID, MU_RDZV_OWN_ID + 5));
    rig_say(&r, 0, CAS_1(KEY, SENTINEL, "x")); /* its own state, which is too late */
    assert_int_equal(dialect_of(&r), MU_RDZV_DIALECT_1_13);
    rig_fini(&r);
}

static void test_torch_dialect_a_state_with_a_node_of_pytorch_2_stays(void **state)
{
    struct rig r;

    (void)state;
    rig_init(&r, RIG_WHOLE, 0);
    put_state(&r, make_state(MU_RDZV_DIALECT_2, MU_RDZV_OWN_ID, 0));
    rig_say(&r, 0, CAS_1(KEY, "", SENTINEL));
    assert_int_equal(dialect_of(&r), MU_RDZV_DIALECT_2);
    rig_fini(&r);
}

static void test_torch_dialect_others_change_nothing(void **state)
{
    struct rig r;

    (void)state;
    rig_init(&r, RIG_WHOLE, 0);
    put_state(&r, make_state(MU_RDZV_DIALECT_2, MU_RDZV_OWN_ID, MU_RDZV_OWN_ID + 5));
    rig_say(&r, 0, GET_1(KEY)); /* somebody looks, who is no agent */
    rig_greet(&r, 1);
    rig_say(&r, 1, CAS(KEY, "", SENTINEL)); /* an agent of PyTorch 2.x */
    rig_say(&r, 1, GET(KEY));
    assert_int_equal(dialect_of(&r), MU_RDZV_DIALECT_2);
    rig_fini(&r);
}

static void test_torch_dialect_what_is_no_such_state_stays(void **state)
{
    static const char *const values[] = {SENTINEL, "", "gA", "gASVAAAA", "hello", "gA=="};
    struct mu_span value;
    struct rig r;

    (void)state;
    rig_init(&r, RIG_WHOLE, 0);
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        put_state(&r, values[i]);
        mu_torch_dialect_fit(&r.ks, mu_span_str(KEY));
        assert_int_equal(mu_ks_get(&r.ks, mu_span_str(KEY), &value), 0);
        assert_span_text(value, values[i]);
    }
    put_state(&r, make_state(MU_RDZV_DIALECT_1_13, MU_RDZV_OWN_ID, 1));
    mu_torch_dialect_fit(&r.ks, mu_span_str(KEY));
    assert_int_equal(mu_ks_get(&r.ks, mu_span_str(KEY), &value), 0);
    assert_span_text(value, text);
    mu_torch_dialect_fit(&r.ks, MU_SPAN_LIT("/torch.rendezvous.none"));
    assert_true(mu_torch_dialect_is_state(mu_span_str(KEY)));
    assert_false(mu_torch_dialect_is_state(MU_SPAN_LIT("/torch.rendezvous")));
    assert_false(mu_torch_dialect_is_state(MU_SPAN_LIT("/other/torch.rendezvous.job7")));
    rig_fini(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torch_dialect_an_agent_of_1_13_finds_what_it_can_read),
        cmocka_unit_test(test_torch_dialect_one_that_comes_before_the_first_state_can_read_it),
        cmocka_unit_test(test_torch_dialect_a_state_with_a_node_of_pytorch_2_stays),
        cmocka_unit_test(test_torch_dialect_others_change_nothing),
        cmocka_unit_test(test_torch_dialect_what_is_no_such_state_stays),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

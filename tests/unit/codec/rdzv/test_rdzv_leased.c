/* The texts of the etcd-v3 rendezvous: what is written is read, and nothing else is. */
#include "unit.h"

#include "codec/rdzv/leased.h"
#include "core/alloc.h"
#include "failheap.h"

static struct mu_rdzv_state state;

static int setup(void **unused)
{
    (void)unused;
    mu_rdzv_state_init(&state);
    return 0;
}

static int teardown(void **unused)
{
    (void)unused;
    mu_rdzv_state_fini(&state);
    return 0;
}

static struct mu_rdzv_member *put(const char *addr, int64_t pid, int64_t id, int64_t born)
{
    struct mu_rdzv_node node = {.addr = (char *)(uintptr_t)addr, .pid = pid, .local_id = id};
    struct mu_rdzv_member *m;

    assert_int_equal(mu_rdzv_state_add(&state, &node, &m), 0);
    m->born = born;
    return m;
}

static int decode(const char *text, struct mu_rdzv_state *ret, int64_t *seen)
{
    struct mu_errmsg msg = {{0}};
    int err = mu_rdzv_leased_decode(mu_span_str(text), ret, seen, &msg);

    assert_true((err == 0) == (msg.text[0] == '\0'));
    return err;
}

static void test_leased_state_comes_back(void **unused)
{
    static const char text[] =
        "{\"round\":3,\"complete\":true,\"world\":2,\"closed\":false,\"seen\":\"57\",\"nodes\":[\n"
        "{\"addr\":\"a\\\"\\u0001\",\"pid\":7,\"id\":\"1\",\"born\":\"40\",\"rank\":1},\n"
        "{\"addr\":\"b\",\"pid\":-9,\"id\":\"9223372036854775807\",\"born\":\"41\",\"rank\":0},\n"
        "{\"addr\":\"c\",\"pid\":5,\"id\":\"3\",\"born\":\"55\",\"list\":\"wait\"},\n"
        "{\"addr\":\"d\",\"pid\":5,\"id\":\"3\",\"born\":\"56\",\"list\":\"spare\"}]}";
    struct mu_rdzv_state again;
    struct mu_buf out;
    int64_t seen = 0;

    (void)unused;
    state.round = 3;
    state.complete = state.has_deadline = true;
    state.deadline.ns = 2000;
    put("a\"\x01", 7, 1, 40)->participant = true;
    put("a\"\x01", 7, 1, 40)->rank = 1;
    put("b", -9, INT64_MAX, 41)->participant = true;
    put("c", 5, 3, 55)->waiting = true;
    put("d", 5, 3, 56)->spare = true;
    mu_buf_init(&out, 1u << 20);
    assert_int_equal(mu_rdzv_leased_encode(&out, &state, 57), 0);
    assert_int_equal(out.len, sizeof(text) - 1);
    assert_memory_equal(mu_buf_span(&out).data, text, sizeof(text) - 1);
    mu_rdzv_state_init(&again);
    assert_int_equal(decode(text, &again, &seen), 0);
    assert_int_equal(seen, 57);
    mu_buf_reset(&out);
    assert_int_equal(mu_rdzv_leased_encode(&out, &again, seen), 0);
    assert_memory_equal(mu_buf_span(&out).data, text, sizeof(text) - 1);
    mu_rdzv_state_fini(&again);
    mu_buf_fini(&out);
}

static void test_leased_state_has_no_time(void **unused)
{
    int64_t seen;

    (void)unused;
    assert_int_equal(decode("{\"round\":0,\"complete\":false,\"last_call\":true,\"closed\":true,"
                            "\"seen\":0,\"nodes\":[]}",
                            &state, &seen),
                     0);
    assert_true(state.has_deadline && state.closed && !state.complete);
    assert_int_equal(state.deadline.ns, UINT64_MAX);
}

static void test_leased_decoder_refuses_what_is_no_state(void **unused)
{
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "{}",
        "{\"round\":-1,\"complete\":false,\"last_call\":false,\"closed\":false,\"seen\":0,"
        "\"nodes\":[]}",
        "{\"round\":0,\"complete\":false,\"closed\":false,\"seen\":0,\"nodes\":[]}",
        "{\"round\":0,\"complete\":true,\"last_call\":false,\"closed\":false,\"seen\":0,"
        "\"nodes\":[]}",
        "{\"round\":0,\"complete\":false,\"last_call\":false,\"closed\":1,\"seen\":0,\"nodes\":[]}",
        "{\"round\":0,\"complete\":false,\"last_call\":false,\"closed\":false,\"seen\":0,"
        "\"nodes\":{\"a\":1}}",
        "{\"round\":0,\"complete\":false,\"last_call\":false,\"closed\":false,\"seen\":0,"
        "\"nodes\":[1]}",
        "{\"round\":0,\"complete\":false,\"last_call\":false,\"closed\":false,\"seen\":0,"
        "\"nodes\":[{\"addr\":\"\",\"pid\":1,\"id\":1,\"born\":1}]}",
        "{\"round\":0,\"complete\":false,\"last_call\":false,\"closed\":false,\"seen\":0,"
        "\"nodes\":[{\"addr\":\"a\\u0000b\",\"pid\":1,\"id\":1,\"born\":1}]}",
        "{\"round\":0,\"complete\":false,\"last_call\":false,\"closed\":false,\"seen\":0,"
        "\"nodes\":[{\"addr\":\"a\",\"pid\":1,\"id\":1,\"born\":1,\"list\":\"other\"}]}",
        "{\"round\":0,\"complete\":true,\"world\":1,\"closed\":false,\"seen\":0,"
        "\"nodes\":[{\"addr\":\"a\",\"pid\":1,\"id\":1,\"born\":1}]}",
        "{\"round\":0,\"complete\":false,\"last_call\":false,\"closed\":false,\"seen\":0,"
        "\"nodes\":[{\"addr\":\"a\",\"pid\":1,\"id\":1,\"born\":1},"
        "{\"addr\":\"a\",\"pid\":1,\"id\":1,\"born\":2}]}",
    };
    int64_t seen;

    (void)unused;
    put("kept", 1, 1, 1)->waiting = true;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(decode(bad[i], &state, &seen), MUSTER_ECORRUPT);
        assert_int_equal(state.member_count, 1);
    }
}

static void test_leased_wishes_come_back(void **unused)
{
    struct mu_rdzv_node node = {.addr = (char *)(uintptr_t) "h/1", .pid = 3, .local_id = 4};
    struct mu_buf out;

    (void)unused;
    mu_buf_init(&out, 1u << 12);
    for (int wish = MU_RDZV_WISH_JOIN; wish <= MU_RDZV_WISH_UNSPARE; wish++) {
        struct mu_rdzv_node again;
        enum mu_rdzv_wish found;

        mu_buf_reset(&out);
        assert_int_equal(mu_rdzv_wish_encode(&out, &node, (enum mu_rdzv_wish)wish, 9), 0);
        assert_int_equal(mu_rdzv_wish_decode(mu_buf_span(&out), &again, &found), 0);
        assert_true(mu_rdzv_node_equal(&node, &again));
        assert_int_equal(found, wish);
        mu_free(again.addr);
        for (size_t len = 0; len < out.len; len++) {
            assert_int_equal(
                mu_rdzv_wish_decode(mu_span(mu_buf_span(&out).data, len), &again, &found),
                MUSTER_ECORRUPT);
        }
    }
    mu_buf_fini(&out);
}

static void test_leased_decoder_bears_a_want_of_memory(void **unused)
{
    static const char text[] =
        "{\"round\":0,\"complete\":false,\"last_call\":true,\"closed\":true,\"seen\":0,\"nodes\":["
        "{\"addr\":\"a\",\"pid\":1,\"id\":1,\"born\":1},{\"addr\":\"\\u0062\",\"pid\":1,\"id\":1,"
        "\"born\":2}]}";

    (void)unused;
    for (long nth = 0;; nth++) {
        int64_t seen = -1;
        int err;

        failheap_arm(nth);
        err = decode(text, &state, &seen);
        if (!failheap_fired()) {
            failheap_disarm();
            assert_int_equal(err, 0);
            assert_true(nth > 2);
            break;
        }
        failheap_disarm();
        assert_int_equal(err, MUSTER_ENOMEM);
        assert_int_equal(seen, -1);
        assert_int_equal(state.member_count, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
        TEST(test_leased_state_comes_back),
        TEST(test_leased_state_has_no_time),
        TEST(test_leased_decoder_refuses_what_is_no_state),
        TEST(test_leased_wishes_come_back),
        TEST(test_leased_decoder_bears_a_want_of_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

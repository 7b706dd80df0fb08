/* What agents say of themselves, and the ranks that follow. */
#include "unit.h"

#include <stdio.h>

#include "codec/agent/role_info.h"
#include "failheap.h"

static void test_role_info_is_written_as_pytorch_does(void **state)
{
    struct mu_role_info info = {.role = "default", .rank = 1, .local_world_size = 2};
    char text[MU_ROLE_INFO_LEN_MAX + 1];
    size_t len = mu_role_info_encode(&info, text);

    (void)state;
    assert_int_equal(len, strlen(text));
    assert_string_equal(text, "{\"role\": \"default\", \"rank\": 1, \"local_world_size\": 2}");
}

static void test_role_info_survives_the_way_there_and_back(void **state)
{
    struct mu_role_info info = {.rank = INT32_MAX, .local_world_size = INT32_MAX}, back;
    char text[MU_ROLE_INFO_LEN_MAX + 1];

    (void)state;
    memset(info.role, '\x01', MU_ROLE_LEN_MAX); /* the longest text that there is */
    assert_int_equal(mu_role_info_decode(mu_span(text, mu_role_info_encode(&info, text)), &back),
                     0);
    assert_string_equal(back.role, info.role);
    assert_int_equal(back.rank, info.rank);
    assert_int_equal(back.local_world_size, info.local_world_size);
}

static void test_role_info_takes_any_spacing_order_and_more(void **state)
{
    struct mu_role_info info;

    (void)state;
    assert_int_equal(
        mu_role_info_decode(MU_SPAN_LIT("{\"x\":{\"rank\":9,\"role\":[]},\"local_world_size\":3"
                                        ",\"rank\":4,\n\"role\":\"\\u00e9\"}"),
                            &info),
        0);
    assert_string_equal(info.role, "\xc3\xa9");
    assert_int_equal(info.rank, 4);
    assert_int_equal(info.local_world_size, 3);
}

static void test_role_info_refuses_what_makes_no_sense(void **state)
{
    static const char *const bad[] = {
        "",
        "[]",
        "{}",
        "{\"role\": \"a\", \"rank\": 0}",
        "{\"role\": \"a\", \"rank\": 0, \"local_world_size\": 0}",
        "{\"role\": \"a\", \"rank\": 0, \"local_world_size\": -1}",
        "{\"role\": \"a\", \"rank\": 0, \"local_world_size\": 2147483648}",
        "{\"role\": \"a\", \"rank\": \"0\", \"local_world_size\": 1}",
        "{\"role\": 1, \"rank\": 0, \"local_world_size\": 1}",
        "{\"role\": \"a\", \"rank\": 0, \"local_world_size\": 1} x",
        "{\"role\": \"a\", \"rank\": {}, \"local_world_size\": 1}",
        "{\"rank\": 0, \"local_world_size\": 1}",
        "{\"role\": \"a\\u0000\", \"rank\": 0, \"local_world_size\": 1}",
    };
    struct mu_role_info info = {.rank = 77};
    char text[MU_ROLE_LEN_MAX + 128];

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (mu_role_info_decode(mu_span_str(bad[i]), &info) != MUSTER_EPROTO || info.rank != 77) {
            fail_msg("taken: %s", bad[i]);
        }
    }
    (void)snprintf(text, sizeof(text), "{\"role\": \"%0*d\", \"rank\": 0, \"local_world_size\": 1}",
                   MU_ROLE_LEN_MAX + 1, 0);
    assert_int_equal(mu_role_info_decode(mu_span_str(text), &info), MUSTER_EPROTO);
}

static void test_ranks_are_written_and_read_as_pytorch_does(void **state)
{
    static const char *const bad[] = {"",
                                      "[]",
                                      "[0, 4, 0]",
                                      "[0,4,0,4,5]",
                                      "[4, 4, 0, 4]",
                                      "[0, 4, 4, 4]",
                                      "[-1,4,0,4]",
                                      "[0,4,0,\"4\"]",
                                      "[0,4,0,4]]",
                                      "{\"a\":0}",
                                      "[[0],4,0,4]"};
    struct mu_ranks r = {2, 4, 2, 4};
    char text[MU_RANKS_LEN_MAX + 1];

    (void)state;
    (void)mu_ranks_encode(&r, text);
    assert_string_equal(text, "[2, 4, 2, 4]");
    assert_int_equal(mu_ranks_decode(MU_SPAN_LIT("[1,5,0,3]"), &r), 0);
    assert_int_equal(r.base, 1);
    assert_int_equal(r.world, 5);
    assert_int_equal(r.role_base, 0);
    assert_int_equal(r.role_world, 3);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        if (mu_ranks_decode(mu_span_str(bad[i]), &r) != MUSTER_EPROTO || r.world != 5) {
            fail_msg("taken: %s", bad[i]);
        }
    }
}

/* Trainers and readers in turns, with different numbers of workers. */
static const struct mu_role_info mixed[] = {
    {"trainer", 0, 2}, {"reader", 1, 1}, {"trainer", 2, 3}, {"reader", 3, 4}};

static void test_ranks_count_agents_in_order_and_roles_apart(void **state)
{
    static const struct mu_ranks expected[] = {
        {0, 10, 0, 5}, {2, 10, 0, 5}, {3, 10, 2, 5}, {6, 10, 1, 5}};
    struct mu_ranks ranks[4];
    struct mu_errmsg msg;

    (void)state;
    assert_int_equal(mu_ranks_assign(mixed, 4, ranks, &msg), 0);
    assert_memory_equal(ranks, expected, sizeof(expected));
}

static void test_ranks_of_a_false_agent_are_refused_in_words(void **state)
{
    struct mu_role_info infos[] = {{"a", 0, 1}, {"a", 0, 1}};
    struct mu_ranks ranks[2];
    struct mu_errmsg msg;

    (void)state;
    assert_int_equal(mu_ranks_assign(infos, 2, ranks, &msg), MUSTER_EPROTO);
    assert_string_equal(msg.text, "the agent of rank 1 says that its rank is 0");
    infos[1] = (struct mu_role_info){"a", 1, INT32_MAX};
    assert_int_equal(mu_ranks_assign(infos, 2, ranks, &msg), MUSTER_ELIMIT);
}

static void test_ranks_want_of_memory_is_told(void **state)
{
    struct mu_ranks ranks[4];
    struct mu_errmsg msg;

    (void)state;
    failheap_arm(0);
    assert_int_equal(mu_ranks_assign(mixed, 4, ranks, &msg), MUSTER_ENOMEM);
    failheap_disarm();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_role_info_is_written_as_pytorch_does),
        cmocka_unit_test(test_role_info_survives_the_way_there_and_back),
        cmocka_unit_test(test_role_info_takes_any_spacing_order_and_more),
        cmocka_unit_test(test_role_info_refuses_what_makes_no_sense),
        cmocka_unit_test(test_ranks_are_written_and_read_as_pytorch_does),
        cmocka_unit_test(test_ranks_count_agents_in_order_and_roles_apart),
        cmocka_unit_test(test_ranks_of_a_false_agent_are_refused_in_words),
        cmocka_unit_test(test_ranks_want_of_memory_is_told),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}

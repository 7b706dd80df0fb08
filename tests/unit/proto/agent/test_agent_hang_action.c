/* What is done about a hang. */
#include "unit.h"

#include "proto/agent/hang.h"

static const struct mu_hang_view one_of_three = {
    .wanted = MU_HANG_EXCLUDE, .missing_count = 2, .missing_nodes = 1, .nodes = 3, .nodes_min = 2};

static void expect(struct mu_hang_view c, enum mu_hang_action want, const char *word)
{
    const char *why = "";

    assert_int_equal(mu_hang_decide(&c, &why), want);
    if (word == NULL) {
        assert_null(why);
    } else {
        assert_non_null(strstr(why, word));
    }
}

static void test_hang_action_excludes_the_node_of_the_missing_ranks(void **state)
{
    (void)state;
    expect(one_of_three, MU_HANG_EXCLUDE, NULL);
}

static void test_hang_action_excludes_nobody_by_guess(void **state)
{
    struct mu_hang_view c = one_of_three;

    (void)state;
    c.split = true;
    expect(c, MU_HANG_RESTART, "nobody can tell");
    c = one_of_three;
    c.missing_count = c.missing_nodes = 0;
    expect(c, MU_HANG_RESTART, "nobody can tell");
    c = one_of_three;
    c.missing_nodes = 2;
    expect(c, MU_HANG_RESTART, "several nodes");
}

static void test_hang_action_leaves_enough_nodes(void **state)
{
    struct mu_hang_view c = one_of_three;

    (void)state;
    c.nodes = 2;
    expect(c, MU_HANG_RESTART, "too few");
    c.nodes = c.nodes_min = 1;
    expect(c, MU_HANG_RESTART, "too few");
}

static void test_hang_action_does_what_is_wanted(void **state)
{
    struct mu_hang_view c = {.nodes = 1, .nodes_min = 1};

    (void)state;
    for (int a = MU_HANG_TELL; a < MU_HANG_EXCLUDE; a++) {
        c.wanted = (enum mu_hang_action)a;
        expect(c, c.wanted, NULL);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hang_action_excludes_the_node_of_the_missing_ranks),
        cmocka_unit_test(test_hang_action_excludes_nobody_by_guess),
        cmocka_unit_test(test_hang_action_leaves_enough_nodes),
        cmocka_unit_test(test_hang_action_does_what_is_wanted),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
